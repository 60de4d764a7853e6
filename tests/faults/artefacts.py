"""Good inputs of every command, tiny: the only module here that knows how tests build artefacts.

`python -m tests.faults.artefacts FOLDER` writes them. Cases name them as `in/NAME`.
"""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
import os
import shutil
import sys
import tarfile
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from vgtools.cli import run


def build(folder: Path) -> None:
    """Write all artefacts into an empty folder and make it the working directory."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    _prepare(Path("sets"))
    _pictures()
    _bank()
    _retriever()
    _located()
    _words()
    _language()
    _pieces()
    _visual()
    _grounded()
    _clip(Path("clip"))
    _tasks()
    _fused()


def _run(*args: object) -> None:
    code = run([str(a) for a in args])
    assert code == 0, f"vg {' '.join(map(str, args))} ended with {code}"


def _jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _parses(path: Path, texts: Iterable[str]) -> None:
    """Write parses in which every word depends on the word before it."""
    row = "{0}\t{1}\t{1}\tNOUN\t_\t_\t{2}\tdep\t_\t_\n"
    words = ([*enumerate(text.split(), 1)] for text in texts)
    parses = ("".join(row.format(n, word, n - 1) for n, word in text) for text in words)
    path.write_text("".join(f"{parse}\n" for parse in parses))


def _b64(values: Any, dtype: str) -> str:
    return base64.b64encode(np.asarray(values).astype(dtype).tobytes()).decode()


def _prepare(folder: Path) -> None:
    """Write a few rows of every data set that `vg prepare` reads."""
    from PIL import Image

    photos = folder / "photos"
    photos.mkdir(parents=True)
    for n in range(1, 4):
        Image.new("RGB", (8, 6), (n, 0, 0)).save(photos / f"{n}_693b08cb0e.jpg")
    tokens = [
        f"{n}_693b08cb0e.jpg#{k}\tcaption {k} of {n} .\n" for n in range(1, 4) for k in range(2)
    ]
    (folder / "tokens.txt").write_text("".join(tokens))
    (folder / "lists").mkdir()
    (folder / "lists/Flickr_8k.trainImages.txt").write_text("1_693b08cb0e.jpg\n")
    (folder / "lists/Flickr_8k.devImages.txt").write_text("2_693b08cb0e.jpg\n3_693b08cb0e.jpg\n")

    entities = folder / "entities"
    for name in ("Sentences", "Annotations"):
        (entities / name).mkdir(parents=True)
    for n in range(1, 4):
        (entities / f"Sentences/{n}.txt").write_text("[/EN#5/people A man] runs .\n")
        (entities / f"Annotations/{n}.xml").write_text(
            "<annotation><size><width>16</width><height>12</height></size><object><name>5</name>"
            "<bndbox><xmin>2</xmin><ymin>4</ymin><xmax>16</xmax><ymax>12</ymax></bndbox>"
            "</object></annotation>"
        )

    images = [
        {"id": n, "file_name": f"{n}_693b08cb0e.jpg", "width": 8, "height": 6} for n in range(1, 4)
    ]
    captions = [{"id": n, "image_id": n, "caption": f"A red square {n}."} for n in range(1, 4)]
    box = {"category_id": 1, "bbox": [1, 1, 4, 3.5], "iscrowd": 0}
    boxes = [{"id": n, "image_id": n} | box for n in range(1, 4)]
    coco = {"images": images, "annotations": captions}
    (folder / "captions.json").write_text(json.dumps(coco))
    split = [
        {
            "filename": f"{n}_693b08cb0e.jpg",
            "split": name,
            "sentences": [{"raw": f"A red square {n}."}, {"raw": f"Red {n}"}],
        }
        for n, name in enumerate(("train", "restval", "test"), 1)
    ]
    (folder / "karpathy.json").write_text(json.dumps({"images": split, "dataset": "coco"}))
    instances = {
        "images": images,
        "annotations": boxes,
        "categories": [{"id": 1, "name": "square"}],
    }
    (folder / "instances.json").write_text(json.dumps(instances))

    url = "https://x.org/VG_100K/{}.jpg"
    size = {"width": 20, "height": 16}
    data = [{"image_id": n, "url": url.format(n), "coco_id": None, **size} for n in range(1, 4)]
    (folder / "image_data.json").write_text(json.dumps(data))
    box = {"x": 1, "y": 2, "width": 9, "height": 8}
    regions = [{"id": n, "regions": [{"phrase": f"part of {n}", **box}]} for n in range(1, 4)]
    (folder / "region_descriptions.json").write_text(json.dumps(regions))
    web = "".join(f"a red {n}\thttp://x.org/{n}.jpg\n" for n in range(4))
    (folder / "web.tsv").write_text(web)
    (folder / "urls.txt").write_text("".join(f"http://f.org/{n}_a.jpg\n" for n in range(4)))
    (folder / "texts.txt").write_text("".join(f"A boat {n} .\n" for n in range(4)))
    wiki = " = Tower = \n \n It is on the rock . It is <unk> white . \n Two words \n"
    (folder / "wiki.txt").write_text(wiki)
    pages = "".join(
        f"<page><title>P {n}</title><ns>0</ns><id>{n}</id><revision><text>A [[dog]] {n}.</text>"
        "</revision></page>\n"
        for n in range(4)
    )
    (folder / "dump.xml").write_text(f"<mediawiki>{pages}</mediawiki>")
    (folder / "views.txt").write_text("".join(f"en P_{n} {30 - n} 0\n" for n in range(4)))
    for side, word in (("en", "dog"), ("de", "Hund")):
        lines = (f"{word} {n} .\n" for n in range(6))
        (folder / f"train.{side}").write_text("".join(lines))
    paragraphs = [{"context": f"One is here. Two is there {n}.", "qas": []} for n in range(3)]
    squad = {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}
    (folder / "squad.json").write_text(json.dumps(squad))

    columns = "Relation,Section,ConnHeadSemClass1,Arg1_RawText,Arg2_RawText\n"
    relations = "".join(f'Implicit,{n},Expansion.List.X,"a, {n}",b {n}\n' for n in range(4))
    (folder / "pdtb2.csv").write_text(columns + relations)
    columns = "sentence,label_seq,pos_seq\n"
    sentences = "".join(f"a dog {n},\"[0, 1, 0]\",\"['DET', 'NOUN', 'NUM']\"\n" for n in range(4))
    (folder / "vua.csv").write_text(columns + sentences)

    features = np.arange(8).reshape(2, 4) / 2
    corners = [[0, 0, 50, 25], [10, 5, 100, 50]]
    rows = []
    for n in range(3):
        row = {
            "img_id": f"COCO_{n}",
            "img_h": "50",
            "img_w": "100",
            "objects_id": _b64([0, 1], "<i8"),
            "objects_conf": _b64([0.5] * 2, "<f4"),
            "attrs_id": _b64([0] * 2, "<i8"),
            "attrs_conf": _b64([0] * 2, "<f4"),
            "num_boxes": "2",
            "boxes": _b64(corners, "<f4"),
            "features": _b64(features + n, "<f4"),
        }
        rows.append("\t".join(row.values()) + "\n")
    (folder / "lxmert.tsv").write_text("".join(rows))
    (folder / "names.txt").write_text("dog\ncat\n")
    np.save(folder / "others.npy", np.stack([features, features + 1]).astype(np.float32))
    _jsonl(
        folder / "others.jsonl",
        [{"image": f"i{n}", "width": 100, "height": 50, "boxes": corners} for n in range(2)],
    )

    vcr = folder / "vcr1images"
    vcr.mkdir()
    questions = []
    for n in range(2):
        Image.new("RGB", (40, 20), (0, n, 0)).save(vcr / f"{n}.jpg")
        seen = [[5 * n, 2, 30, 15, 0.9], [0, 0, 40, 20, 0.8]]
        facts = {"boxes": seen, "names": ["person", "dog"], "width": 40, "height": 20}
        (vcr / f"{n}.json").write_text(json.dumps(facts | {"segms": [[], []]}))
        names = {"img_fn": f"{n}.jpg", "metadata_fn": f"{n}.json"}
        questions.append(names | {"objects": ["person", "dog"]})
    _jsonl(folder / "vcr.jsonl", questions)


def _pictures() -> None:
    """Write pictures, a list of them, a tar, boxes, and a backbone."""
    from tests.tiny.images import save_backbone, save_photo

    save_backbone(Path("net"))
    Path("photos").mkdir()
    for number in range(7):
        save_photo(Path(f"photos/p{number}.png"), number)
        Path(f"photos/p{number}.txt").write_text(f"picture {number}\n")
    save_photo(Path("photos/p7.jpg"), 7)
    save_photo(Path("photos/p8.gif"), 8)
    names = sorted(p.name for p in Path("photos").iterdir() if p.suffix != ".txt")
    _jsonl(Path("images.jsonl"), ({"image": name, "path": f"photos/{name}"} for name in names))
    shown = [{"image": name, "text": text} for name in names for text in ("a dog", "the cat")]
    _jsonl(Path("photographed.jsonl"), shown)
    for name, part in (("train", shown[6:]), ("dev", shown[:6])):
        _jsonl(Path(f"photographed.{name}.jsonl"), part)
    Path("list.txt").write_text("".join(f"photos/{name}\n" for name in names))
    with tarfile.open("photos.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for name in names:
            facts = tarfile.TarInfo(name)
            facts.size = os.path.getsize(f"photos/{name}")
            with open(f"photos/{name}", "rb") as stream:
                archive.addfile(facts, stream)
    with tarfile.open("samples.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for number in range(3):
            picture = Path("photos/p3.png").read_bytes()
            record = json.dumps({"caption": "a dog", "url": "http://x"}).encode()
            for end, data in (("png", picture), ("txt", b"a cat"), ("json", record)):
                facts = tarfile.TarInfo(f"{number}.{end}")
                facts.size = len(data)
                archive.addfile(facts, io.BytesIO(data))
    stored = [
        {"image": {"bytes": Path("photos", name).read_bytes(), "path": name}} for name in names
    ]
    parquet.write_table(pa.Table.from_pylist(stored), "photos.parquet", row_group_size=4)
    phrases = [{"start": 0, "end": 1, "type": "people", "boxes": [[0, 0, 30, 30], [10, 5, 55, 40]]}]
    row = {"text": "x", "width": 60, "height": 45, "phrases": phrases}
    _jsonl(Path("boxes.jsonl"), ({"image": name} | row for name in names))


def _bank() -> None:
    """Write an encoder, features, a matcher run, indexes, voken rows."""
    from tests.tiny import save_encoder, save_feats, save_run_of, text
    from tests.tiny.dual import save_dual

    save_encoder(Path("encoder"))
    save_encoder(Path("encoder2"), seed=1)
    save_run_of(Path("matcher"), Path("encoder"))
    save_feats(Path("feats.npy"))
    _run("build-index", "feats.npy", "-m", "matcher", "-o", "vg.faiss", "--device", "cpu", "-q")
    save_dual(Path("dual"), "siglip")
    how = ("-b", "dual", "-o", "own.npy", "--device", "cpu", "-q")
    _run("extract-image-feats", "images.jsonl", "--on-error", "skip", *how)
    _run("build-index", "own.npy", "-m", "dual", "-o", "own.vg.faiss", "--device", "cpu", "-q")
    how = ("-b", "dual", "-o", "patches.npy", "--pooling", "none", "--picture", 32, "-q")
    _run("extract-image-feats", "images.jsonl", "--on-error", "skip", "--device", "cpu", *how)
    shutil.copy("own.npy", "clip.npy")
    shutil.copy("own.ids", "clip.txt")
    Path("embedded").mkdir()
    ids = Path("own.ids").read_text().splitlines()
    words = ("a dog", "a red cat", "a photo of dogs")
    _jsonl(Path("asked.jsonl"), ({"text": t, "image": image} for image in ids for t in words))
    for number, part in enumerate((slice(20), slice(20, None))):
        np.save(f"embedded/img_emb_{number}.npy", np.load("own.npy")[part].astype(np.float16))
        table = pa.table({"image_path": ids[part]})
        parquet.write_table(table, f"embedded/metadata_{number}.parquet")
    how = ("--factory", "IVF2,SQ8", "-o", "made.faiss", "--device", "cpu", "-q")
    _run("build-index", "own.npy", "-m", "dual", *how)
    shutil.copy("made.faiss", "lists.index")
    lines = "".join(line + "\n" for line in text(24, longest=9))
    Path("text.txt").write_text(lines)
    Path("text.txt.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    _jsonl(Path("text.jsonl"), ({"text": line} for line in lines.splitlines()))
    how = ("-e", "encoder", "-k", 5, "--layers", 1, "--device", "cpu", "-q")
    _run("prepare", "clusters", "text.txt", *how, "-o", "clusters.faiss")
    table = pa.table({"say": lines.splitlines(), "id": range(lines.count("\n"))})
    parquet.write_table(table, "text.parquet", row_group_size=10, write_page_checksum=True)
    with pa.OSFile("text.arrow", "wb") as out, pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table, 10)
    with open("text.csv", "w", newline="") as out:
        csv.writer(out).writerows([["say"], *([line] for line in lines.splitlines())])
    captions = [
        {"image": f"image{i % 12:03}", "text": f"a {line or 'dog'}"}
        for i, line in enumerate(lines.splitlines())
    ]
    _jsonl(Path("captions.jsonl"), captions)
    others = [row | {"image": f"image{i % 9 + 12:03}"} for i, row in enumerate(captions)]
    _jsonl(Path("captions.dev.jsonl"), others)
    shown = [
        row | {"phrases": [{"start": 0, "end": len(row["text"]), "type": "scene"}]}
        for row in captions[:12]
    ]
    _jsonl(Path("captions.phrases.jsonl"), shown)
    _parses(Path("captions.conllu"), (caption["text"] for caption in captions))
    for name in ("v.jsonl", "v2.jsonl"):
        flags = ("--index", "vg.faiss", "--device", "cpu", "-q")
        _run("vokenize", "text.txt", *flags, "-o", name)
    settings = 'text = "in/text.txt"\nindex = ["in/vg.faiss"]\ndevice = "cpu"\nquiet = true\n'
    Path("vokenize.toml").write_text(settings)
    for k, name in ((4, "found.jsonl"), (2, "found2.jsonl")):
        flags = ("--index", "vg.faiss", "-k", k, "--device", "cpu", "-q")
        _run("retrieve", "text.txt", *flags, "-o", name)
    rights = (
        {"image": f"image{i:03}", "license": "CC0", "url": f"http://x/{i}"} for i in range(60)
    )
    _jsonl(Path("rights.jsonl"), rights)
    save_feats(Path("feats2.npy"), first=60)
    _run("build-index", "feats2.npy", "-m", "matcher", "-o", "vg2.faiss", "--device", "cpu", "-q")
    from PIL import Image

    Path("bank").mkdir()
    for i in range(60):
        Image.new("RGB", (9, 6), (4 * i, 0, 0)).save(f"bank/image{i:03}.png")
    _jsonl(
        Path("bank.jsonl"),
        ({"image": f"image{i:03}", "path": f"bank/image{i:03}.png"} for i in range(60)),
    )


def _retriever() -> None:
    """Write feature maps, word vectors of skip-thoughts, a retriever's run and its index."""
    from tests.tiny.retriever import save_captions, save_grid, save_retriever, save_skip_thoughts

    save_grid(Path("grid.npy"))
    save_skip_thoughts(Path("skip"))
    save_captions(Path("shown.jsonl"))
    save_retriever(Path("retriever"), Path("encoder"))
    _run("build-index", "grid.npy", "-m", "retriever", "-o", "maps.faiss", "--device", "cpu", "-q")


def _located() -> None:
    """Write feature maps of whole pictures, queries of them, masks, heat."""
    from tests.tiny import save_grids
    from tests.tiny.located import save_instances, save_queries

    save_grids(Path("cells.npy"))
    save_queries(Path("queries.jsonl"))
    save_instances(Path("instances.json"))
    flags = ("--matcher", "retriever", "--feats", "cells.npy", "--device", "cpu", "-q")
    _run("locate", "queries.jsonl", *flags, "-o", "heat.jsonl")


def _pieces() -> None:
    """Write word vectors, judgements and norms of words that the language model's tokenizer has."""
    from tests.tiny.grounding import save_vectors

    texts = Path("plain.txt").read_text().split()
    words = [word for word in dict.fromkeys(texts) if len(word) == 3][:12]
    save_vectors(Path("pieces.npy"), {word: (n, n * n) for n, word in enumerate(words)})
    judged = (f"{a}\t{b}\t{n % 7}\n" for n, (a, b) in enumerate(pairwise(words)))
    Path("judged.pieces.tsv").write_text("".join(judged))
    rows = ({"word": word, "value": n % 5} for n, word in enumerate(words))
    _jsonl(Path("pieces.norms.jsonl"), rows)


def _words() -> None:
    """Write word vectors in both forms, captions and nouns of pictures, and pictures of nouns."""
    from tests.tiny.grounding import VECTORS, save_vectors

    numbers = "".join(f"{word} {x} {y}\n" for word, (x, y) in VECTORS.items())
    Path("words.vec").write_text(f"{len(VECTORS)} 2\n{numbers}")
    save_vectors(Path("words.npy"))
    _run("prepare", "vectors", "words.vec", "-q", "-o", "words2.npy")
    names = list(VECTORS)
    pairs = list(pairwise(names))
    judged = (f"{a}\t{b}\t{n % 7}\n" for n, (a, b) in enumerate(pairs))
    Path("judged.tsv").write_text("".join(judged))
    seen = [
        " ".join(names[(i * step + step) % len(names)] for step in (1, 5, 7)) for i in range(60)
    ]
    _jsonl(Path("looks.jsonl"), [{"image": f"image{i:03}", "text": t} for i, t in enumerate(seen)])
    texts = (f"{a} {b}\t{b}\t{n % 5}\n" for n, (a, b) in enumerate(pairs))
    Path("rated.tsv").write_text("sentence1\tsentence2\tscore\n" + "".join(texts))
    for number in ("", "2"):
        how = f"--on rated.tsv --samples 100 -q -o rated{number}.jsonl"
        _run("measure", f"words{number}.npy", *how.split())
    blimp = {"linguistics_term": "order", "UID": "order_1"}
    _jsonl(
        Path("blimp.jsonl"),
        (
            blimp | {"sentence_good": f"the {a} {b}", "sentence_bad": f"{a} the {b}"}
            for a, b in pairs
        ),
    )
    _jsonl(Path("templates.jsonl"), ({"template": text} for text in ("[X] < [Y]", "[Y] > [X]")))
    _jsonl(Path("sizes.jsonl"), ({"sub": a, "obj": b, "alt": "the"} for a, b in pairs))
    values = "".join(f'"{name}",{n % 5 / 4}\n' for n, name in enumerate(names))
    Path("norms.csv").write_text(f"word,mean\n{values}")
    senses = (f"{name}%1:05:00:: {n:08d} 1 {n}\n" for n, name in enumerate(names))
    Path("index.sense").write_text("".join(senses))
    _jsonl(Path("norms.jsonl"), ({"word": name, "value": n % 5} for n, name in enumerate(names)))
    texts = [f"the {a} and {b}" for a, b in pairs]
    _jsonl(
        Path("scenes.jsonl"),
        ({"image": f"{n % 8}.jpg", "text": text} for n, text in enumerate(texts)),
    )
    _parses(Path("scenes.conllu"), texts)
    _jsonl(
        Path("nouns.jsonl"),
        (
            {"image": f"{n}.jpg", "nouns": [a, f"{b} {a}"], "text": f"a large {b}"}
            for n, (a, b) in enumerate(pairs)
        ),
    )
    from PIL import Image

    for wnid in ("n01440764", "n01484850"):
        Path("sets/net", wnid).mkdir(parents=True)
        for n in range(3):
            Image.new("RGB", (6, 4), (n, 0, 0)).save(f"sets/net/{wnid}/{n}.jpg")
    glosses = "n01440764\tred dog, hound\ta dog\nn01484850\tcat\ta cat\n"
    Path("sets/glosses.tsv").write_text(glosses)


def _language() -> None:
    """Write what a masked language model is pretrained on."""
    from tests.tiny import lm as tiny_lm

    tiny_lm.save_shape(Path("shape.json"))
    tiny_lm.save_tokenizer(Path("tokenizer"))
    texts = tiny_lm.sentences(40)
    tiny_lm.save_rows(Path("rows.jsonl"), tiny_lm.voken_rows(texts, 11))
    tiny_lm.save_rows(Path("valid.jsonl"), tiny_lm.voken_rows(tiny_lm.sentences(12, seed=9), 11))
    Path("plain.txt").write_text("".join(t + "\n" for t in texts))
    _run("revokenize", "rows.jsonl", "-t", "tokenizer", "-q", "-o", "packed.npy")
    _run("revokenize", "v.jsonl", "-t", "tokenizer", "-q", "-o", "counted.npy")
    folder = Path("published")
    folder.mkdir()
    (folder / "ids").write_text("".join(f"vg/{n}\n" for n in range(11)))
    flags = ("--ids", folder / "ids", "--tokens", folder / "c.t.hdf5", "-q")
    _run("prepare", "hdf5", "packed.npy", *flags, "-o", folder / "c.vg.hdf5")
    other = ("--ids", "vg.ids", "--tokens", folder / "other.t.hdf5", "-q")
    _run("prepare", "hdf5", "counted.npy", *other, "-o", folder / "other.vg.hdf5")
    _run("prepare", "hdf5", "feats.npy", "-q", "-o", folder / "vg.hdf5")
    _run(
        "pretrain",
        "plain.txt",
        "--shape",
        "shape.json",
        "-t",
        "tokenizer",
        "--steps",
        2,
        "--block",
        16,
        "--batch-size",
        4,
        "--device",
        "cpu",
        "-q",
        "-o",
        "lm",
    )


def _visual() -> None:
    """Write captions, regions and models of VisualBERT and of the probes."""
    from PIL import Image

    from tests.tiny import lm as tiny_lm
    from tests.tiny import probe as tiny_probe
    from tests.tiny import visual as tiny_visual
    from vgtools.models.encoder import save_pretrained

    save_pretrained(Path("joint"), tiny_visual.encoder_of(hidden_dropout_prob=0.1))
    texts = [t or "a b" for t in tiny_lm.sentences(24, longest=8)]
    rows = [(f"image{i % 6}", text) for i, text in enumerate(texts)]
    tiny_visual.save_captions(Path("pairs.jsonl"), rows)
    tiny_visual.save_regions(Path("regions.npy"))

    sets = tiny_probe.region_sets(6)
    tiny_probe.save_regions(Path("scenes.npy"), sets)
    phrases = tiny_probe.caption_rows(sets, 12)
    _jsonl(Path("entities.jsonl"), phrases)
    Path("entities.conllu").write_text(tiny_probe.conllu([r["text"] for r in phrases]))
    tiny_probe.save_visualbert(Path("vb"))
    Path("scenes").mkdir()
    _jsonl(
        Path("scenes.images.jsonl"),
        ({"image": image, "path": f"scenes/{image}"} for image in sets),
    )
    for image in sets:
        Image.new("RGB", (tiny_probe.SIDE, tiny_probe.SIDE), "#4a7").save(f"scenes/{image}")


def _grounded() -> None:
    """Write texts, captions, images and their index, and a run of grounded pretraining."""
    from tests.tiny import grounded as tiny_grounded

    own = {i: f"image{i:03}" for i in range(8)}
    tiny_grounded.save_texts(Path("mixed.jsonl"), tiny_grounded.sentences(16), own)
    tiny_grounded.save_images(Path("photos.npy"))
    tiny_grounded.save_scene(Path("places.faiss"))
    for name, args in (
        ("grounded", "mixed.jsonl --strategy i2t --feats photos.npy"),
        ("grounded-regions", "pairs.jsonl --strategy i2t --regions regions.npy"),
        ("grounded-scene", "mixed.jsonl --strategy scene --feats photos.npy --index places.faiss"),
    ):
        how = "-e joint --steps 2 --batch-size 8 --block 24 --device cpu -q -o"
        _run("pretrain", "grounding", *args.split(), *how.split(), name)


def _sentences(split: str) -> list[str]:
    """Return the sentences of a file of SST-2, whose test file has them second."""
    lines = Path("sst-2", f"{split}.tsv").read_text().splitlines()[1:]
    return [line.split("\t")[split == "test"] for line in lines]


def _clip(folder: Path) -> None:
    """Write a text tower, its shape, captions and features of their photos."""
    from tests.tiny import clip as tiny_clip
    from tests.tiny import save_feats

    folder.mkdir()
    tiny_clip.save_tower(folder / "tower")
    tiny_clip.save_shape(folder / "shape.json")
    rows = [(f"image{i % 10:03}", f"the {'abcdef'[i % 6]}") for i in range(24)]
    tiny_clip.save_captions(folder / "train.jsonl", rows)
    tiny_clip.save_captions(folder / "dev.jsonl", [(f"image{i:03}", "the") for i in range(10, 14)])
    save_feats(folder / "feats.npy")
    args = ["pretrain", "xdbert", "plain.txt", "-e", "joint", "--teacher", folder / "tower"]
    args += ["--steps", "2", "--batch-size", "4", "--block", "16", "--device", "cpu", "-q"]
    _run(*args, "-o", "xdbert")


def _tasks() -> None:
    """Write official files of tasks, runs to compare, and predictions to score."""
    from tests.tiny import finetune as tiny_finetune
    from tests.tiny import grounded_runs as tiny_grounded
    from tests.tiny import tasks as tiny_tasks
    from tests.tiny import translation as tiny_translation
    from tests.tiny import vtasks as tiny_vtasks
    from vgtools.tasks.dispatch import read_examples
    from vgtools.tasks.examples import hash_of

    tiny_tasks.save_sst2(Path("sst-2"), test=3)
    tiny_tasks.save_stsb(Path("sts-b"))
    tiny_tasks.save_read(Path("read"), 24)
    tiny_tasks.save_mnli(Path("mnli"))
    tiny_tasks.save_codah(Path("codah"))
    tiny_tasks.save_tags(Path("vuan"))
    tiny_tasks.save_own(Path())
    tiny_translation.save_pairs(Path("pairs"))
    tiny_translation.save_tokenizer(Path("bpe"))
    tiny_translation.save_model(Path("translator"))
    tiny_grounded.save_grounded(Path("associated"), "scene")
    words = {text for split in ("train", "dev", "test") for text in _sentences(split)}
    rows = [{"text": text, "images": [len(text) % 8, 8][: len(text) % 3]} for text in sorted(words)]
    _jsonl(Path("sst-2.images.jsonl"), rows)
    _jsonl(Path("sst-2.jsonl"), ({"text": text} for text in sorted(words)))
    flags = ("--index", "vg.faiss", "-k", 2, "--device", "cpu", "-q")
    _run("retrieve", "sst-2.jsonl", *flags, "-o", "sst.found.jsonl")
    tiny_tasks.save_squad(Path("squad-1.1"))
    tiny_tasks.save_squad(Path("squad-2.0"), "2.0")
    pictures = tiny_vtasks.save_vqa(Path("vqa"), 6)
    tiny_vtasks.save_pictures(Path("vqa.npy"), pictures)
    pictures = tiny_vtasks.save_nlvr2(Path("nlvr2"), 8)
    tiny_vtasks.save_pictures(Path("nlvr2.npy"), pictures)
    pictures = tiny_vtasks.save_grounding(Path("grounding"), 6)
    tiny_vtasks.save_pictures(Path("grounding.npy"), pictures)
    tiny_vtasks.save_visualbert(Path("visualbert"), Path("vqa.npy"))
    tiny_vtasks.save_visualbert(Path("seeing"), Path("scenes.npy"), width=12)

    gold = [0, 1, 1, 0, 1, 0, 1, 1, 0, 0]
    texts = {
        "sst-2": "sentence\tlabel\na dog ran\t1\nno\t0\n",
        "cola": "x\t1\t*\tthe dog\n",
        "rte": "index\tsentence1\tsentence2\tlabel\n0\tdog\tb\t0\n",
    }
    Path("tables").mkdir()
    for task, text in texts.items():
        Path(f"tables/{task}.tsv").write_text(text)
        for name, wrong in (("mlm", 5), ("vokens", 1)):
            said = {s: [1 - x if k < wrong else x for k, x in enumerate(gold)] for s in ("1", "2")}
            data = {"train": {"file": f"in/tables/{task}.tsv"}, "dev": {"sha256": "1" * 64}}
            tiny_finetune.save_finetuned(Path("compare", name, task), task, gold, said, data=data)
    _jsonl(Path("grounded.jsonl"), [{"image": "i", "text": "dog dog"}])
    tiny_finetune.save_rte(Path("tables/answers.tsv"))
    for name, right in (("bert", (0, 1, 1, 1)), ("xdbert", (1, 0, 0, 1))):
        examples = list(read_examples("rte", "tables/answers.tsv"))
        data = {"dev": {"file": "in/tables/answers.tsv", "sha256": hash_of(examples)}}
        data["dev"]["examples"] = len(examples)
        tiny_finetune.save_answers(Path("answers", name), [right], data=data)

    pictures = tiny_vtasks.save_vcr(Path("vcr"), 2)
    labels = {name: ["person", "person", "dog", "grid"] for name in pictures}
    tiny_vtasks.save_pictures(Path("vcr.npy"), pictures, labels=labels)
    for task in ("vcr-qa", "vcr-qar"):
        _run(
            "finetune",
            task,
            "vcr",
            "-e",
            "visualbert",
            "--regions",
            "vcr.npy",
            "--epochs",
            1,
            "--max-length",
            40,
            "--batch-size",
            8,
            "--device",
            "cpu",
            "-q",
            "-o",
            task,
        )


def _fused() -> None:
    """Write a classifier and a translator with fused images, and rows that these look at."""
    texts = ("pairs/train.jsonl", "pairs/dev.jsonl")
    for text, name in ((texts, "pairs.found.jsonl"), (texts[1:], "pairs.dev.found.jsonl")):
        flags = ("--index", "vg.faiss", "-k", 2, "--device", "cpu", "-q")
        _run("retrieve", *text, *flags, "-o", name)
    learn = ["--feats", "feats.npy", "--epochs", 1, "--batch-size", 60, "--max-length", 40]
    learn += ["--device", "cpu", "-q", "--retrieved"]
    _run("finetune", "sst-2", "sst-2", "-e", "encoder", *learn, "sst.found.jsonl", "-o", "fused")
    args = ["translation", "pairs", "-e", "translator", *learn, "pairs.found.jsonl"]
    _run("finetune", *args, "-o", "fused-translator")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
