"""A small invented world in the formats of official data sets: photos, captions, texts, tasks."""

from __future__ import annotations

import base64
import bz2
import csv
import gzip
import io
import json
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.tiny.images import save_photo
from tests.tiny.tasks import squad as squad_json

SIZES = ("small", "big", "young", "old")
NOUNS = ("dog", "man", "woman", "child", "horse", "cat", "girl", "boy")
COLOURS = ("red", "blue", "green", "white")
THINGS = ("hat", "shirt", "ball", "coat")
VERBS = ("runs on", "sits in", "plays on", "jumps over")
PLACES = ("grass", "street", "snow", "beach")
_GERMAN = (
    "klein groß jung alt Hund Mann Frau Kind Pferd Katze Mädchen Junge rot blau grün weiß Hut "
)
_GERMAN += "Hemd Ball Mantel Gras Straße Schnee Strand ein der mit"
_ENGLISH = (*SIZES, *NOUNS, *COLOURS, *THINGS, *PLACES, "a", "the", "with")
GERMAN = dict(zip(_ENGLISH, _GERMAN.split(" "), strict=True))
SYNSETS = {"n02084071": "dog", "n02121620": "cat", "n02374451": "horse", "n10787470": "woman"}
WIDTH, HEIGHT = 60, 45  # of photos
CHANNELS = 6  # of region features


def parts(number: int) -> tuple[str, str, str, str]:
    """Return who, with what, does what, where, in the caption of a number."""
    draw = random.Random(number)
    who = f"a {draw.choice(SIZES)} {draw.choice(NOUNS)}"
    thing = f"a {draw.choice(COLOURS)} {draw.choice(THINGS)}"
    return who, thing, draw.choice(VERBS), f"the {draw.choice(PLACES)}"


def caption(number: int) -> str:
    """Return a sentence of about ten words, another one for each number."""
    who, thing, does, where = parts(number)
    return f"{who[0].upper()}{who[1:]} with {thing} {does} {where} ."


def captions(count: int, first: int = 0) -> list[str]:
    """Return that many sentences."""
    return [caption(first + n) for n in range(count)]


def put(path: Path, *lines: str) -> Path:
    """Write lines of text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def put_json(path: Path, body: Any) -> None:
    """Write one JSON value."""
    put(path, json.dumps(body))


def put_rows(path: Path, rows: Iterable[Any]) -> None:
    """Write one JSON value per line."""
    put(path, *map(json.dumps, rows))


def put_csv(path: Path, *rows: Sequence[object]) -> None:
    """Write a quoted table."""
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(out.getvalue(), newline="")


# ------------------------------------------------------------------------------ photos and captions
PHOTOS = [f"{1000 + n}_{n:010x}.jpg" for n in range(40)]


def flickr8k(folder: Path) -> None:
    """Captions, lists and 40 photos: of five, three are train, one dev, one test."""
    for number, name in enumerate(PHOTOS):
        save_photo(folder / "images" / name, number, (WIDTH, HEIGHT))
    lines = [f"{p}#{k}\t{caption(5 * n + k)}" for n, p in enumerate(PHOTOS) for k in range(5)]
    put(folder / "Flickr8k.token.txt", *lines)
    for split, rest in (("train", (0, 1, 2)), ("dev", (3,)), ("test", (4,))):
        names = [name for n, name in enumerate(PHOTOS) if n % 5 in rest]
        put(folder / f"Flickr_8k.{split}Images.txt", *names)


def entities(folder: Path) -> None:
    """Phrases and boxes of the same photos, and the lists of their splits."""
    for n, name in enumerate(PHOTOS):
        number = name.split("_")[0]
        lines = []
        for k in range(5):
            who, thing, does, where = parts(5 * n + k)
            marked = f"[/EN#1/people {who}] with [/EN#2/clothing {thing}] {does}"
            lines.append(f"{marked} [/EN#3/scene {where}] .")
        put(folder / "Sentences" / f"{number}.txt", *lines)
        boxes = ((1, 4, 4, 30, 40), (2, 28, 6, 56, 24), (3, 1, 30, 59, 44))
        objects = "".join(
            f"<object><name>{name}</name><bndbox><xmin>{a}</xmin><ymin>{b}</ymin><xmax>{c}</xmax>"
            f"<ymax>{d}</ymax></bndbox></object>"
            for name, a, b, c, d in boxes
        )
        size = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth></size>"
        body = f"<annotation><filename>{number}.jpg</filename>{size}{objects}</annotation>"
        put(folder / "Annotations" / f"{number}.xml", body)
    for split, rest in (("train", (0, 1, 2)), ("val", (3,)), ("test", (4,))):
        names = [name.split("_")[0] for n, name in enumerate(PHOTOS) if n % 5 in rest]
        put(folder / f"{split}.txt", *names)


COCO = {"train2014": range(1, 25), "val2014": range(101, 125), "val2017": range(101, 113)}


def coco(folder: Path) -> None:
    """Captions, instances, Karpathy's splits and photos."""
    for split, numbers in COCO.items():
        prefix = "" if split == "val2017" else f"COCO_{split}_"
        images = [
            {"id": n, "file_name": f"{prefix}{n:012}.jpg", "width": WIDTH, "height": HEIGHT}
            for n in numbers
        ]
        place = folder / ("images/val2017" if split == "val2017" else split)
        for image in images:
            save_photo(place / str(image["file_name"]), int(str(image["id"])), (WIDTH, HEIGHT))
        texts = [
            {"image_id": n, "id": 10 * n + k, "caption": caption(5 * n + k)}
            for n in numbers
            for k in range(5)
        ]
        boxes = [
            {
                "id": 10 * n + k, "image_id": n, "category_id": 1 + k, "iscrowd": 0,
                "bbox": [2 + 20 * k, 4, 24, 30],
                "segmentation": [[2 + 20 * k, 4, 26 + 20 * k, 4, 26 + 20 * k, 34, 2 + 20 * k, 34]],
            }
            for n in numbers
            for k in range(2)
        ]  # fmt: skip
        classes = [{"id": 1, "name": "dog"}, {"id": 2, "name": "ball"}]
        for where in (folder, folder / "annotations"):
            put_json(where / f"captions_{split}.json", {"images": images, "annotations": texts})
            body = {"images": images, "annotations": boxes, "categories": classes}
            put_json(where / f"instances_{split}.json", body)
    put_json(folder / "dataset_coco.json", {"dataset": "coco", "images": list(_karpathy())})


def _karpathy() -> Iterable[dict[str, Any]]:
    for split, numbers in list(COCO.items())[:2]:
        for n in numbers:
            texts = [caption(5 * n + k) for k in range(5)]
            part = "train" if split == "train2014" else ("restval", "val", "test")[n % 3]
            sentences = [{"raw": text, "tokens": text.lower().split()} for text in texts]
            name = f"COCO_{split}_{n:012}.jpg"
            yield {"filepath": split, "filename": name, "split": part, "sentences": sentences}


def visual_genome(folder: Path) -> None:
    """Photos, two of three of which are of COCO's val2014, and their regions."""
    images, regions = [], []
    for n in range(1, 37):
        save_photo(folder / "VG_100K" / f"{n}.jpg", 200 + n, (WIDTH, HEIGHT))
        known = None if n % 3 == 0 else COCO["val2014"][n % len(COCO["val2014"])]
        url = f"https://example.org/VG_100K/{n}.jpg"
        size = {"width": WIDTH, "height": HEIGHT}
        images.append({"image_id": n, "url": url, "coco_id": known, "flickr_id": None} | size)
        found = [
            {"region_id": 10 * n + k, "image_id": n, "phrase": " ".join(parts(5 * n + k)[k]
             .split()), "x": 2 + k, "y": 3, "width": 25, "height": 30}
            for k in range(2)
        ]  # fmt: skip
        regions.append({"id": n, "regions": found})
    put_json(folder / "image_data.json", images)
    put_json(folder / "region_descriptions.json", regions)


def conceptual(folder: Path) -> None:
    """Thirty captions with URLs, and the photos by line."""
    put(
        folder / "Train_GCC-training.tsv",
        *(f"{caption(700 + n)}\thttp://example.org/{n}.jpg" for n in range(30)),
    )
    for n in range(1, 31):
        save_photo(folder / "training" / f"{n}.jpg", 300 + n, (WIDTH, HEIGHT))


def sbu(folder: Path) -> None:
    """Forty captions, their URLs, and the photos."""
    names = [f"{5000 + n}_{n:04x}.jpg" for n in range(40)]
    stem = "SBU_captioned_photo_dataset"
    put(folder / f"{stem}_urls.txt", *(f"http://example.org/1/{name}" for name in names))
    put(folder / f"{stem}_captions.txt", *captions(40, 800))
    for n, name in enumerate(names):
        save_photo(folder / "images" / name, 400 + n, (WIDTH, HEIGHT))


def imagenet(folder: Path) -> None:
    """Ten pictures of each of four synsets."""
    for k, wnid in enumerate(SYNSETS):
        for n in range(10):
            save_photo(folder / wnid / f"{wnid}_{n}.JPEG", 500 + 10 * k + n, (WIDTH, HEIGHT))


def nouns(path: Path) -> None:
    """Rows of a bank of nouns for the photos of ImageNet."""
    put_rows(
        path,
        (
            {"image": f"{wnid}/{wnid}_{n}.JPEG", "nouns": [noun], "text": f"a {noun}"}
            for wnid, noun in SYNSETS.items()
            for n in range(10)
        ),
    )


def _region_line(image: str, seed: int, boxes: int) -> str:
    rng = np.random.default_rng(seed)
    corner = rng.uniform(0, (WIDTH / 2, HEIGHT / 2), (boxes, 2))
    corners = np.concatenate([corner, corner + rng.uniform(5, 20, (boxes, 2))], 1)

    def b64(values: Any, dtype: str) -> str:
        return base64.b64encode(np.asarray(values).astype(dtype).tobytes()).decode()

    return "\t".join(
        (
            image, str(HEIGHT), str(WIDTH),
            b64(range(boxes), "<i8"), b64(rng.random(boxes), "<f4"),
            b64([0] * boxes, "<i8"), b64([0] * boxes, "<f4"),
            str(boxes), b64(corners, "<f4"), b64(rng.standard_normal((boxes, CHANNELS)), "<f4"),
        )
    )  # fmt: skip


def lxmert(folder: Path) -> None:
    """Region features of COCO's photos, 36 of each, and of Flickr30k's, as LXMERT's TSV."""
    for split in ("train2014", "val2014"):
        names = [f"COCO_{split}_{n:012}" for n in COCO[split]]
        put(folder / f"{split}_obj36.tsv", *(_region_line(n, i, 36) for i, n in enumerate(names)))
    names = [name.split("_")[0] for name in PHOTOS]
    put(folder / "flickr30k.tsv", *(_region_line(n, 90 + i, 12) for i, n in enumerate(names)))


# -------------------------------------------------------------------------------------------- texts
def text(path: Path) -> None:
    """Write 120 sentences, a line each."""
    put(path, *captions(120, 2000))


def wikipedia(path: Path) -> None:
    """Write a dump of 150 articles of three paragraphs, one of them a redirect."""
    pages = [
        f"<page><title>Page {n}</title><ns>0</ns><id>{n}</id>{'<redirect />' * (n == 3)}<revision>"
        f"<text>{'&lt;br/&gt;'.join(captions(3, 9000 + 9 * n))}\n\n[[dog|{caption(n)}]]\n\n"
        f"{{{{box}}}}{' '.join(captions(4, 9500 + n))}</text></revision></page>"
        for n in range(150)
    ]
    path.write_bytes(bz2.compress("\n".join(("<mediawiki>", *pages, "</mediawiki>")).encode()))


def page_views(path: Path) -> None:
    """Write an hour's page views: two of three pages of the dump were read often enough."""
    put(path, *(f"en Page_{n} {n % 3 * 20} 0" for n in range(150)))


def wikitext(folder: Path) -> None:
    """WikiText as it is distributed: headings, blank lines, paragraphs."""
    for k, name in enumerate(("train", "valid", "test")):
        lines = [""]
        for n in range(12):
            heading = f" = Article {n} = " if n % 4 == 0 else f" = = Part {n} = = "
            lines += [heading, "", " " + " ".join(captions(3, 3000 + 500 * k + 3 * n)) + " ", ""]
        put(folder / f"{name}.txt", *lines)
        put(folder / f"wiki.{name}.tokens", *lines)


def fasttext(path: Path) -> None:
    """Word vectors of eight numbers for every word of the captions."""
    words = sorted({word.lower() for line in captions(400) for word in line.split()})
    rows = np.random.default_rng(0).standard_normal((len(words), 8))
    lines = [" ".join([w, *(f"{x:.4f}" for x in row)]) for w, row in zip(words, rows, strict=True)]
    put(path, f"{len(words)} 8", *lines)


def nltk_data(folder: Path) -> None:
    """Stop words where NLTK's downloader puts them."""
    put(folder / "corpora" / "stopwords" / "english", "a", "on", "the", "don't")


def skip_thoughts(folder: Path) -> None:
    """Word vectors in the form of skip-thoughts."""
    words = sorted({word.lower() for line in captions(400) for word in line.split()})
    put(folder / "dictionary.txt", *words, "UNK")
    rows = np.random.default_rng(1).standard_normal((len(words) + 1, 6)).astype(np.float32)
    np.save(folder / "utable.npy", rows)


def similarity(path: Path) -> None:
    """Pairs of words with a score, as SimLex-999 has them."""
    pairs = [(a, b) for a in NOUNS for b in (*THINGS, *PLACES)]
    rows = (f"{a}\t{b}\tN\t{n % 10}.0" for n, (a, b) in enumerate(pairs))
    put(path, "word1\tword2\tPOS\tSimLex999", *rows)


def norms(path: Path) -> None:
    """Concreteness of words, in the columns of Brysbaert et al. 2014."""
    words = sorted({word for n in range(200) for word in caption(n).split() if word.isalpha()})
    rows = (f"{word}\t0\t{1 + n % 5}.25\t0.5" for n, word in enumerate(words))
    put(path, "Word\tBigram\tConc.M\tConc.SD", *rows)


# -------------------------------------------------------------------------------------------- tasks
def _pairs(count: int, labels: Sequence[str], first: int) -> list[tuple[str, str, str]]:
    return [
        (caption(first + n), caption(first + n + n % 3), labels[n % len(labels)])
        for n in range(count)
    ]


def glue(folder: Path, count: int = 24) -> None:
    """The tasks of GLUE that the papers have, under their official names."""
    two = ("entailment", "not_entailment")
    three = ("entailment", "neutral", "contradiction")
    for k, split in enumerate(("train", "dev")):
        first = 4000 + 300 * k
        pairs = _pairs(count, two, first)
        rows = [f"{n}\t{a}\t{b}\t{label}" for n, (a, b, label) in enumerate(pairs)]
        put(folder / f"RTE/{split}.tsv", "index\tsentence1\tsentence2\tlabel", *rows)
        put(folder / f"QNLI/{split}.tsv", "index\tquestion\tsentence\tlabel", *rows)
        rows = [f"{n}\t{a}\t{b}\t{5.0 * (n % 2)}" for n, (a, b, _) in enumerate(pairs)]
        put(folder / f"STS-B/{split}.tsv", "index\tsentence1\tsentence2\tscore", *rows)
        rows = [f"{a}\t{n % 2}" for n, (a, _, _) in enumerate(pairs)]
        put(folder / f"SST-2/{split}.tsv", "sentence\tlabel", *rows)
        rows = [f"gj04\t{n % 2}\t\t{a}" for n, (a, _, _) in enumerate(pairs)]
        put(folder / f"CoLA/{split}.tsv", *rows)
        rows = [f"{n % 2}\t{n}\t{n + 900}\t{a}\t{b}" for n, (a, b, _) in enumerate(pairs)]
        name = "msr_paraphrase_train.txt" if split == "train" else "dev.tsv"
        put(folder / f"MRPC/{name}", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", *rows)
        header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
        rows = [f"{n}\t{n}\t{n + 900}\t{a}\t{b}\t{n % 2}" for n, (a, b, _) in enumerate(pairs)]
        put(folder / f"QQP/{split}.tsv", header, *rows)
        rows = [f"{n}\t{a}\t{b}\t{c}" for n, (a, b, c) in enumerate(_pairs(count, three, first))]
        for name in ("train",) if split == "train" else ("dev_matched", "dev_mismatched"):
            put(folder / f"MNLI/{name}.tsv", "index\tsentence1\tsentence2\tgold_label", *rows)


def squad(folder: Path) -> None:
    """SQuAD 1.1 and 2.0: contexts of four sentences."""
    for version in ("1.1", "2.0"):
        for k, split in enumerate(("train", "dev")):
            rows = []
            for n in range(12):
                lines = captions(4, 5000 + 100 * k + 4 * n)
                answer = None if version == "2.0" and n % 3 == 0 else lines[0].split(" with ")[0]
                context = " ".join(lines)
                rows.append({"context": context, "question": "Who is there ?", "answer": answer})
            put_json(folder / f"{split}-v{version}.json", squad_json(rows, version))


def swag(folder: Path) -> None:
    """SWAG's two files."""
    header = (
        ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3"
    )
    for k, split in enumerate(("train", "val")):
        rows = []
        for n in range(16):
            start = caption(6000 + 100 * k + n)
            ends = [parts(n + e)[2] for e in range(4)]
            rows.append([n, "v", n, f"{start} It", start, "It", "gold", *ends, n % 4])
        put_csv(folder / f"{split}.csv", [*header.split(","), "label"], *rows)


def readability(path: Path) -> None:
    """The training file of the CommonLit Readability Prize."""
    rows = [[n, "", "", f"{caption(n)}\n{caption(n + 1)}", n % 5 - 2.5, 0.5] for n in range(60)]
    header = ["id", "url_legal", "license", "excerpt", "target", "standard_error"]
    put_csv(path, header, *rows)


def joci(folder: Path) -> None:
    """JOCI's part A."""
    header = ("CONTEXT", "HYPOTHESIS", "LABEL", "CONTEXT_FROM", "HYPOTHESIS_FROM", "SUBSET")
    for k, split in enumerate(("train", "dev", "test")):
        pairs = _pairs(20, "12345", 6500 + 100 * k)
        put_csv(
            folder / f"A.{split}.csv", header, *((*row, "SNLI", "AGCI", "AGCI") for row in pairs)
        )


def pdtb(path: Path) -> None:
    """Implicit relations of all sections."""
    senses = ("Contingency.Cause.Reason", "Comparison.Contrast", "Expansion.List")
    header = (
        "Relation",
        "Section",
        "FileNumber",
        "ConnHeadSemClass1",
        "Arg1_RawText",
        "Arg2_RawText",
    )
    rows = [
        ("Implicit", section, n, sense, a, b)
        for section in range(24)
        for n, (a, b, sense) in enumerate(_pairs(6, senses, 6900 + 10 * section))
    ]
    put_csv(path, header, *rows)


def sick(folder: Path) -> None:
    """SICK's three files."""
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
    for k, name in enumerate(("train", "trial", "test_annotated")):
        found = enumerate(_pairs(24, ("NEUTRAL", "ENTAILMENT", "CONTRADICTION"), 7300 + 100 * k))
        put(
            folder / f"SICK_{name}.txt",
            header,
            *(f"{n}\t{a}\t{b}\t3.5\t{c}" for n, (a, b, c) in found),
        )


def vua(folder: Path) -> None:
    """VUA's verbs, and its sequences with their parts of speech."""
    kinds = {"a": "DET", "the": "DET", "with": "ADP", ".": "PUNCT"}
    kinds |= dict.fromkeys((*NOUNS, *THINGS, *PLACES), "NOUN")
    for k, split in enumerate(("train", "val", "test")):
        verbs, rows = [], []
        for n, line in enumerate(captions(24, 7700 + 100 * k)):
            words = line.split()
            verbs.append(["a1", n, words[7], line, 7, n % 2])
            tags = [kinds.get(word.lower(), "X") for word in words]
            found = [int(tag == "NOUN" and (n + i) % 2) for i, tag in enumerate(tags)]
            rows.append(["a1", n, line, str(found), str(tags), line, "news"])
        header = ["text_idx", "sentence_idx", "verb", "sentence", "verb_idx", "label"]
        put_csv(folder / f"VUA_formatted_{split}.csv", header, *verbs)
        header = [
            "txt_id",
            "sen_ix",
            "sentence",
            "label_seq",
            "pos_seq",
            "labeled_sentence",
            "genre",
        ]
        put_csv(folder / f"VUA_seq_formatted_{split}.csv", header, *rows)


def snli(folder: Path) -> None:
    """SNLI's three files: three hypotheses per premise, the caption of a photo."""
    for k, split in enumerate(("train", "dev", "test")):
        labels = ("entailment", "neutral", "contradiction")
        rows = [
            {
                "gold_label": labels[n % 3],
                "captionID": f"{PHOTOS[n // 3 % len(PHOTOS)]}#{k}",
                "pairID": f"{k}.{n}",
                "sentence1": caption(8000 + 100 * k + n // 3),
                "sentence2": caption(8500 + n),
            }
            for n in range(36)
        ]
        put_rows(folder / f"snli_1.0_{split}.jsonl", rows)


def snli_dev(path: Path) -> None:
    """SNLI's dev set as a hub has it: 40 premises of two hypotheses."""
    labels = ("entailment", "neutral", "contradiction")
    put_rows(
        path,
        (
            {"premise": caption(8000 + n // 2), "hypothesis": caption(n), "label": labels[n % 3]}
            for n in range(80)
        ),
    )


def conll(folder: Path) -> None:
    """CoNLL-2003's three files: animals and persons are PER, places LOC."""
    for k, name in enumerate(("eng.train", "eng.testa", "eng.testb")):
        lines = ["-DOCSTART- -X- -X- O", ""]
        for line in captions(20, 8800 + 100 * k):
            for word in line.split():
                tag = "I-PER" if word in NOUNS else "I-LOC" if word in PLACES else "O"
                lines.append(f"{word} X X {tag}")
            lines.append("")
        put(folder / name, *lines)


def _german(line: str) -> str:
    return " ".join(GERMAN.get(word.lower(), "steht") for word in line.split()[:-1]) + " ."


def multi30k(folder: Path) -> None:
    """Pairs of the photos of Flickr8k, and the lists of their photos."""
    for k, split in enumerate(("train", "val", "test_2016_flickr")):
        names = [name for n, name in enumerate(PHOTOS) if n % 5 in ((0, 1, 2), (3,), (4,))[k]]
        numbers = [name.split("_")[0] + ".jpg" for name in names]  # as in Flickr30k
        put(folder / f"task1/image_splits/{split}.txt", *numbers)
        put(folder / f"task2/image_splits/{split}_images.txt", *numbers)
        lines = [caption(5 * PHOTOS.index(name)) for name in names]
        _sides(folder / f"task1/raw/{split}", lines)
        for n in range(5):
            lines = [caption(5 * PHOTOS.index(name) + n) for name in names]
            _sides(folder / f"task2/raw/{split}.{n + 1}", lines)


def _sides(stem: Path, lines: list[str]) -> None:
    """Write compressed lines in two languages."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    for side, texts in (("en", lines), ("de", list(map(_german, lines)))):
        data = "".join(f"{line}\n" for line in texts).encode()
        Path(f"{stem}.{side}.gz").write_bytes(gzip.compress(data, mtime=0))


def pairs(folder: Path) -> None:
    """Aligned texts: src-train.txt, tgt-train.txt and so on."""
    for k, split in enumerate(("train", "val", "test")):
        lines = captions(40, 9200 + 100 * k)
        put(folder / f"src-{split}.txt", *lines)
        put(folder / f"tgt-{split}.txt", *map(_german, lines))


def proposals(path: Path) -> None:
    """Boxes of a detector for the photos of Flickr8k."""
    boxes = [[2, 3, 30, 40], [20, 5, 58, 30]]
    rows = (
        {"image": name.split("_")[0] + ".jpg", "boxes": boxes, "confidence": [0.9, 0.4]}
        for name in PHOTOS
    )
    put_rows(path, rows)


# A name that rows of `tests/examples` use, where it is made, and by what.
MADE: dict[str, tuple[str, Callable[[Path], None]]] = {
    "flickr8k": ("flickr8k", flickr8k),
    "entities": ("entities", entities),
    "coco": ("coco", coco),
    "genome": ("genome", visual_genome),
    "cc": ("cc", conceptual),
    "sbu": ("sbu", sbu),
    "imagenet": ("imagenet", imagenet),
    "nouns": ("nouns.jsonl", nouns),
    "lxmert": ("lxmert", lxmert),
    "text": ("text.txt", text),
    "wikitext": ("wikitext", wikitext),
    "dump": ("enwiki-pages-articles.xml.bz2", wikipedia),
    "views": ("pageviews.txt", page_views),
    "fasttext": ("crawl-300d-2M.vec", fasttext),
    "nltk_data": ("nltk_data", nltk_data),
    "skip_thoughts": ("skip-thoughts", skip_thoughts),
    "similarity": ("simlex999.txt", similarity),
    "norms": ("concreteness.txt", norms),
    "glue": ("glue", glue),
    "squad": ("squad", squad),
    "swag": ("swag", swag),
    "read": ("commonlit.csv", readability),
    "joci": ("joci", joci),
    "pdtb": ("pdtb2.csv", pdtb),
    "sick": ("sick", sick),
    "vua": ("vua", vua),
    "snli": ("snli", snli),
    "snli_dev": ("snli.dev.jsonl", snli_dev),
    "conll": ("conll", conll),
    "multi30k": ("multi30k", multi30k),
    "pairs": ("pairs", pairs),
    "proposals": ("boxes.jsonl", proposals),
}  # fmt: skip
