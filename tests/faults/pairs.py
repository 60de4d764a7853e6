"""Pairs of artefacts that a command reads together, one of them in another order or of others.

`man/pairs.tsv` lists the pairs and the rule that joins each; `vg` (1) prints it. A trial is `pairs
NAME SEED`, NAME the row of that table without blanks; the seed decides the order. By the rule the
command has to refuse and show both sides, or write what it writes without the change: byte by byte,
or, where the order also decides random draws, in the figures that no draw changes.
"""

from __future__ import annotations

import io
import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults.case import Case
from tests.faults.cases import BY_NAME as CALLS
from tests.faults.mutations import reseal, reseal_run
from tests.faults.trials import Outcome, Workspace, data_of, difference, fault_of
from tests.serving.client import Server
from vgtools.io.errors import Exit

TABLE = Path(__file__).parents[2] / "man" / "pairs.tsv"

# Changes files below a folder, and yields their names.
Change = Callable[[Path, random.Random], Iterator[str]]

HASHES = r"\b([0-9a-f]{64})\b.*\b(?!\1)[0-9a-f]{64}\b"  # two, which differ
COUNTS = r"\b(\d+)\b.*\b(?!\1)\d+\b"
SAME = ""


# ---------------------------------------------------------------------------------------- changes


def _order(count: int, rng: random.Random) -> list[int]:
    """Return another order of `count` things."""
    order = list(range(count))
    while order == sorted(order):
        rng.shuffle(order)
    return order


def _write(folder: Path, name: str, data: bytes, fit: bool = True) -> Iterator[str]:
    """Write a file; the manifest beside it fits, if it is to."""
    file = folder / name
    file.write_bytes(data)
    yield name
    manifest = file.with_name(f"{file.name.split('.')[0]}.json")
    if fit and manifest.is_file():
        manifest.write_bytes(reseal(file.name, data, manifest.read_bytes()))
        yield str(manifest.relative_to(folder))


def _array(folder: Path, name: str, array: np.ndarray[Any, Any], fit: bool = True) -> Iterator[str]:
    stream = io.BytesIO()
    np.save(stream, array)
    yield from _write(folder, name, stream.getvalue(), fit)


def lines(name: str, end: bytes = b"\n", fit: bool = True, head: int = 0) -> Change:
    """Shuffle the lines of a file after its head, or its paragraphs."""

    def change(folder: Path, rng: random.Random) -> Iterator[str]:
        parts = (folder / name).read_bytes().removesuffix(end).split(end)
        order = [i + head for i in _order(len(parts) - head, rng)]
        data = b"".join(parts[i] + end for i in [*range(head), *order])
        yield from _write(folder, name, data, fit)

    return change


def shorter(name: str) -> Change:
    """Drop the last line of a file."""

    def change(folder: Path, rng: random.Random) -> Iterator[str]:
        rows = (folder / name).read_bytes().splitlines(keepends=True)
        yield from _write(folder, name, b"".join(rows[:-1]))

    return change


def rows(name: str) -> Change:
    """Shuffle the rows of an array alone; its manifest is that of the old order."""

    def change(folder: Path, rng: random.Random) -> Iterator[str]:
        array = np.load(folder / name)
        yield from _array(folder, name, array[_order(len(array), rng)], fit=False)

    return change


def features(stem: str) -> Change:
    """Shuffle the images of features or regions, the rows with the names: a good artefact."""

    def change(folder: Path, rng: random.Random) -> Iterator[str]:
        array = np.load(folder / f"{stem}.npy")
        name = f"{stem}.regions.jsonl"
        if (folder / name).exists():
            found = [json.loads(line) for line in (folder / name).read_text().splitlines()]
            parts = [array[r["start"] : r["start"] + len(r["boxes"])] for r in found]
            order = _order(len(found), rng)
            start = 0
            for i in order:
                found[i]["start"] = start
                start += len(parts[i])
            table = [json.dumps(found[i]) for i in order]
        else:
            name = f"{stem}.ids"
            names = (folder / name).read_text().splitlines()
            parts = [array[i : i + 1] for i in range(len(array))]
            order = _order(len(names), rng)
            table = [names[i] for i in order]
        yield from _write(folder, name, "".join(f"{line}\n" for line in table).encode())
        yield from _array(folder, f"{stem}.npy", np.concatenate([parts[i] for i in order]))

    return change


def edit(name: str, pattern: str, new: str) -> Change:
    """Replace a pattern in a file; the seal of a run fits."""

    def change(folder: Path, rng: random.Random) -> Iterator[str]:
        text, count = re.subn(pattern, new, (folder / name).read_text())
        assert count, f"{name} has no {pattern}"
        data = text.encode()
        yield from _write(folder, name, (name.endswith("run.json") and reseal_run(data)) or data)

    return change


def made_with(name: str, key: str) -> Change:
    """Say in a manifest that another model or tokenizer made the artefact."""
    return edit(name, rf'("{key}": {{[^{{}}]*?"(fingerprint|sha256)": ")\w+', r"\g<1>" + "0" * 64)


def items(name: str, key: str | None = None) -> Change:
    """Shuffle the list that a JSON file is, or the one under a key of it."""

    def change(folder: Path, rng: random.Random) -> Iterator[str]:
        found = json.loads((folder / name).read_text())
        mixed = found if key is None else found[key]
        mixed[:] = [mixed[i] for i in _order(len(mixed), rng)]
        yield from _write(folder, name, json.dumps(found).encode(), fit=False)

    return change


def refiled(name: str) -> Change:
    """Make the files of a folder anew, in another order."""

    def change(folder: Path, rng: random.Random) -> Iterator[str]:
        files = sorted((folder / name).iterdir())
        for i in _order(len(files), rng):
            new = shutil.copy2(files[i], files[i].with_suffix(".new"))
            Path(new).rename(files[i])
            yield str(files[i].relative_to(folder))

    return change


def other(name: str, source: str) -> Change:
    """Put another artefact in the place of one."""

    def change(folder: Path, rng: random.Random) -> Iterator[str]:
        yield from _write(folder, name, (folder / source).read_bytes(), fit=False)

    return change


def both(*changes: Change) -> Change:
    """Make several changes."""

    def change(folder: Path, rng: random.Random) -> Iterator[str]:
        for one in changes:
            yield from one(folder, rng)

    return change


# ---------------------------------------------------------------- comparing without random draws

# Reads the standard output of a command.
Reading = Callable[[bytes], object]

# Numbers of records that random draws change: steps and samples follow the order of images.
_DRAWN = re.compile("loss|gradient|info_nce|interval|.*_(low|high)")


def recalls(out: bytes) -> list[object]:
    """Return the records of a training whose weights do not move, without random numbers."""
    return [_settled(json.loads(line)) for line in out.splitlines()]


def _settled(record: object) -> object:
    if isinstance(record, dict):
        return {name: _settled(v) for name, v in record.items() if not _DRAWN.fullmatch(name)}
    return record


def bag(out: bytes) -> list[bytes]:
    """Return the lines in one order."""
    return sorted(out.splitlines())


# -------------------------------------------------------------------------------------- the pairs


@dataclass(frozen=True)
class Pair:
    """A row of the table and how it is tried.

    Args:
        row: "command: one × other", as the table has them.
        call: a row of `cases.py`, or a command line.
        change: puts one of them in another order, or makes it one of others.
        says: what a refusal shows, a regular expression; or SAME, as the output has to be.
        code: how the refusal ends.
        reading: with SAME: compare this of standard output alone; None compares all files, too.
    """

    row: str
    call: str
    change: Change
    says: str = HASHES
    reading: Reading | None = None
    code: Exit = Exit.DATA

    @property
    def case(self) -> Case:
        """The command, under the name of the pair."""
        name = self.row.replace(" ", "_")
        return Case(name, CALLS[self.call].argv if self.call in CALLS else self.call)


_EVALUATE = "evaluate-matcher in/captions.jsonl in/feats.npy in/matcher --device cpu -q"
_MATCH = (
    "train-matcher in/captions.jsonl in/feats.npy --valid in/captions.dev.jsonl -e in/encoder"
    " --epochs 1 --lr 0 --batch-size 8 --hidden 8 --dim 4 --layers 2 --device cpu -q -o run"
)
_AWARE = (
    "train-matcher visual-awareness in/shown.jsonl in/grid.npy --words in/skip --epochs 1 --lr 0"
    " --batch-size 6 --dim 6 --layers 1 --regions 3 --valid-split dev --device cpu -q -o run"
)
_PIXELS = (
    "train-matcher visual-awareness in/photographed.train.jsonl in/images.jsonl"
    " --valid in/photographed.dev.jsonl -b in/net --words in/skip --epochs 1 --backbone-from 0"
    " --lr 0 --batch-size 4 --dim 6 --layers 1 --regions 2 --crop 64 --picture 64 --device cpu -q"
    " -o run"
)
_CLIP = (
    "pretrain clip in/clip/train.jsonl --feats in/clip/feats.npy --valid in/clip/dev.jsonl"
    " --shape in/clip/shape.json -t in/clip/tower --batch-size 8 --steps 2 --lr 0 --device cpu -q"
    " -o run"
)
_PARSED = f"{_EVALUATE} --parser in/captions.conllu"
_NOUNS = f"{_EVALUATE} --phrases in/captions.phrases.jsonl --parser builtin:spacy-sm"
_RANK = "retrieve in/captions.jsonl --index in/vg.faiss --device cpu --score -q -o s.jsonl"
_OWN = "retrieve in/captions.jsonl --index in/vg.faiss --device cpu -k 2 --not-own -q"
_BANK = "retrieve in/text.txt --index in/vg.faiss --index in/vg2.faiss --device cpu -o r.jsonl"
_TRANSLATE = (
    "translate in/fused-translator/seed-9595/model in/pairs.dev.found.jsonl --feats in/feats.npy"
    " --longer 2 --beams 2 --device cpu -q -o t.txt"
)
_ADAPT = (
    "pretrain xdbert in/packed.npy -e in/lm --teacher in/clip/tower --batch-size 4 --block 16"
    " --steps 2 --device cpu -q -o run"
)
_ON = (
    "pretrain visualbert in/pairs.jsonl --regions in/regions.npy --encoder in/visualbert"
    " --batch-size 4 --block 24 --steps 2 --device cpu -q -o run"
)
_REGIONS = (
    "pretrain grounding in/pairs.jsonl --strategy i2t --regions in/regions.npy -e in/joint"
    " --batch-size 8 --block 24 --steps 2 --device cpu -q -o run"
)
_FIND = (
    "perplexity in/mixed.jsonl -e in/grounded-scene --index in/places.faiss --feats in/photos.npy"
    " --block 24 --samples 20 --device cpu -q -o nll.jsonl"
)
_GENOME = CALLS["prepare-genome"].argv.replace("--images-out i.jsonl ", "")
_LIST = "prepare regions in/sets/lxmert.tsv --labels in/sets/names.txt -o r.npy"
_LOOKS = "measure in/words.npy --on in/looks.jsonl --feats in/feats.npy --samples 100 --offline"
_LIKE = "measure in/words.npy in/words2.npy --on in/judged.tsv --samples 100 --offline"
_LEARN = (
    "probe-attention text in/scenes.jsonl -e in/encoder --parser in/scenes.conllu --samples 20"
    " --classifier words --vectors in/words.vec --epochs 1 --distances 4 --device cpu -o probe"
)
_SIGHT = CALLS["probe"].argv.replace("in/vb", "in/seeing")
_PAGE = CALLS["probe"].argv.replace("in/scenes ", "in/scenes.images.jsonl ")
_SEEN = (
    "perplexity in/pairs.jsonl -e in/grounded-regions --regions in/regions.npy --block 24"
    " --samples 20 --device cpu -q -o nll.jsonl"
)
_ALIKE = "compare words in/words.npy in/words2.npy --offline"
_TUNE = " --epochs 1 --batch-size 8 --max-length 40 --device cpu -q -o run"
_FOUND = "finetune sst-2 in/sst-2 -e in/encoder --retrieved in/sst.found.jsonl --feats in/feats.npy"
_PUSH = "push in/vg.faiss me/bank --dry-run"
_SCORE = "score rte in/answers/bert/seed-1/predictions.jsonl --gold in/tables/answers.tsv"
_JOINT = (
    "score vcr-qar in/vcr-qar/seed-9595/predictions.jsonl"
    " --joint in/vcr-qa/seed-9595/predictions.jsonl"
)
_REGRESS = (
    "pretrain in/v.jsonl --valid in/counted.npy --shape in/shape.json -t in/tokenizer"
    " --weight mlm=1 --weight voken_reg=1 --feats in/feats.npy --block 16 --batch-size 8 --steps 3"
    " --device cpu -q -o run"
)
_VALID = _REGRESS.replace(" --weight voken_reg=1 --feats in/feats.npy", "")
_READ = "vokenize in/v.jsonl --index in/vg.faiss --device cpu -o w.jsonl"
_EMBEDDED = "build-index --emb in/own.npy --ids in/own.ids -m in/dual --device cpu -o b.faiss"
_PARTS = "vokenize in/text.txt --index in/vg.faiss --index in/vg2.faiss --device cpu -o w.jsonl"
_SCENE = "retrieve in/text.txt --index in/associated/scene.faiss -o r.jsonl"
_TWO = "show in/found.jsonl in/found2.jsonl --index in/vg.faiss --images in/bank.jsonl -o p.html"
_HDF5 = "prepare hdf5 in/counted.npy --ids in/vg.ids --tokens c.t.hdf5 -o c.vg.hdf5"
_SERVE = "serve --index in/vg.faiss --images in/bank.jsonl --device cpu -q --port 0"
_SCENES = _SCENE.replace("retrieve in/text.txt", "serve").replace("-o r.jsonl", "-q --port 0")
_UNION = f"{_SERVE} --index in/vg2.faiss"
_WHERE = f"{_SERVE} --feats in/cells.npy"
_HEADS = (
    f"{_SERVE} --regions in/scenes.npy --encoder in/seeing --captions in/entities.jsonl --offline"
)
# Questions to a running server whose answers have to be the same: path and body.
_QUESTIONS = (
    ("/api/images/1", None),
    ("/api/images/5", None),
    ("/api/locate", {"text": "a dog", "image": "image003"}),
    ("/api/attention", {"text": "a dog", "image": "photo1.jpg"}),
    ("/api/regions?image=photo1.jpg", None),
)

PAIRS = (
    Pair(
        "train-matcher vokenization: captions × features",
        _MATCH,
        features("feats"),
        SAME,
        recalls,
    ),
    Pair(
        "train-matcher visual-awareness: captions × features",
        _AWARE,
        features("grid"),
        SAME,
        recalls,
    ),
    Pair(
        "train-matcher visual-awareness: captions × images",
        _PIXELS,
        lines("images.jsonl"),
        SAME,
        recalls,
    ),
    Pair("pretrain clip: captions × features", _CLIP, features("clip/feats"), SAME, recalls),
    Pair(
        "train-matcher: captions × validation captions",
        _MATCH,
        edit("captions.dev.jsonl", "image012", "image000"),
        "1 images are in both training and validation",
    ),
    Pair(
        "pretrain clip: captions × validation captions",
        _CLIP,
        edit("clip/dev.jsonl", "image010", "image000"),
        "1 photo of it are also to learn from",
    ),
    Pair(
        "pretrain: vokens × vokens",
        _VALID.replace("--valid ", ""),
        edit("counted.json", r'("vg.ids": {[^}]*"sha256": ")\w+', r"\g<1>" + "0" * 64),
    ),
    Pair(
        "perplexity: run × run",
        "perplexity",
        edit("joint/tokenizer.json", '"lowercase": ?true', '"lowercase":false'),
        code=Exit.CONFIG,
    ),
    Pair(
        "revokenize: vokens × vokens",
        "revokenize in/v.jsonl in/v2.jsonl -t in/tokenizer -o r.npy",
        edit("v2.json", r'("vg.faiss": {[^}]*"sha256": ")\w+', r"\g<1>" + "0" * 64),
    ),
    Pair(
        "measure: items × items",
        "measure in/rated.jsonl in/rated2.jsonl --samples 100",
        edit("rated2.json", r'("rated.tsv": ?")\w+', r"\g<1>" + "0" * 64),
    ),
    Pair("measure: captions × features", _LOOKS, features("feats"), SAME),
    Pair("measure: pairs × word vectors", _LIKE, features("words2"), SAME),
    Pair("probe-attention text: texts × word vectors", _LEARN, lines("words.vec", head=1), SAME),
    Pair("prepare: captions × photos", "prepare-flickr8k", refiled("sets/photos"), SAME),
    Pair(
        "prepare imagenet: pictures × glosses", "prepare-imagenet", lines("sets/glosses.tsv"), SAME
    ),
    Pair("prepare regions: objects × labels", _LIST, shorter("sets/names.txt"), r"\d"),
    Pair("evaluate-matcher: captions × features", _EVALUATE, features("feats"), SAME, recalls),
    Pair(
        "evaluate-matcher: captions × phrases",
        _NOUNS,
        lines("captions.phrases.jsonl"),
        SAME,
        recalls,
    ),
    Pair(
        "evaluate-matcher: captions × parses",
        _PARSED,
        lines("captions.conllu", b"\n\n"),
        "no sentence for the text",
    ),
    Pair("retrieve --score: captions × index", _RANK, lines("captions.jsonl"), SAME),
    Pair("retrieve --not-own: captions × index", _OWN, lines("captions.jsonl"), SAME, bag),
    Pair("retrieve: index × matcher", "retrieve", made_with("vg.json", "matcher")),
    Pair("retrieve: index × index", _BANK, made_with("vg2.json", "matcher")),
    Pair("serve: index × matcher", _SERVE, made_with("vg.json", "matcher")),
    Pair("serve: index × index", _UNION, made_with("vg2.json", "matcher")),
    Pair("serve: index × word vectors", _SCENES, features("associated/words")),
    Pair("serve: features × matcher", _WHERE, made_with("cells.json", "backbone")),
    Pair("serve: regions × run", _HEADS, made_with("scenes.json", "backbone")),
    Pair("serve: index × images", _SERVE, lines("bank.jsonl"), SAME),
    Pair("serve: index × features", _WHERE, features("cells"), SAME),
    Pair(
        "serve: captions × regions",
        _HEADS,
        both(lines("entities.jsonl"), features("scenes")),
        SAME,
    ),
    Pair("translate: retrieved rows × features", _TRANSLATE, features("feats"), SAME),
    Pair(
        "translate: retrieved rows × index",
        _TRANSLATE,
        both(features("feats"), lines("vg.ids")),
    ),
    Pair("translate: features × run", _TRANSLATE, made_with("feats.json", "backbone")),
    Pair("build-index: captions × word vectors", "build-index-scene", features("words"), SAME),
    Pair(
        "show: retrieved rows × ids",
        _TWO.replace("--index in/vg.faiss", "--ids in/vg.ids"),
        lines("vg.ids"),
    ),
    Pair("show: retrieved rows × images", "show-retrieved", lines("bank.jsonl"), SAME),
    Pair("perplexity: index × features", _FIND, features("photos"), SAME),
    Pair("perplexity: index × word vectors", _FIND, features("vectors")),
    Pair(
        "pretrain grounding: index × word vectors",
        "pretrain-grounding-scene",
        features("vectors"),
    ),
    Pair("perplexity: texts × regions", _SEEN, features("regions"), SAME),
    Pair("perplexity: regions × run", _SEEN, made_with("regions.json", "backbone")),
    Pair("perplexity: index × run", _FIND, made_with("places.json", "words")),
    Pair(
        "pretrain xdbert: packed vokens × tokenizer", _ADAPT, made_with("packed.json", "tokenizer")
    ),
    Pair("probe-attention: regions × run", _SIGHT, made_with("scenes.json", "backbone")),
    Pair("pretrain visualbert: regions × run", _ON, made_with("regions.json", "backbone")),
    Pair("pretrain grounding: texts × regions", _REGIONS, features("regions"), SAME),
    Pair(
        "finetune: features × run",
        _FOUND.replace("in/encoder", "in/fused/seed-9595/model") + _TUNE,
        made_with("feats.json", "backbone"),
    ),
    Pair(
        "finetune: questions × annotations",
        "finetune-vqa",
        items("vqa/v2_mscoco_train2014_annotations.json", "annotations"),
        SAME,
    ),
    Pair("probe-attention: captions × images", _PAGE, lines("scenes.images.jsonl"), SAME),
    Pair("compare words: word vectors × word vectors", _ALIKE, features("words2"), SAME),
    Pair(
        "prepare wikipedia: articles × page views",
        "prepare-wikipedia",
        lines("sets/views.txt"),
        SAME,
    ),
    Pair(
        "prepare flickr8k: captions × splits",
        "prepare-flickr8k",
        lines("sets/lists/Flickr_8k.devImages.txt"),
        SAME,
    ),
    Pair(
        "prepare visual-genome: images × regions",
        _GENOME,
        items("sets/image_data.json"),
        SAME,
    ),
    Pair("every command: X.npy × X.ids", "build-index", lines("feats.ids", fit=False)),
    Pair("every command: X.faiss × X.ids", "vokenize", lines("vg.ids", fit=False)),
    Pair(
        "every command: X.npy × X.regions.jsonl",
        "pretrain-visualbert",
        lines("regions.regions.jsonl", fit=False),
    ),
    Pair("every command: X.npy × X.rows.npy", "pretrain-further", rows("packed.rows.npy")),
    Pair("every command: X.jsonl × X.json", _READ, lines("v.jsonl", fit=False)),
    Pair("build-index: embeddings × ids", _EMBEDDED, lines("own.ids", fit=False)),
    Pair("build-index: features × matcher", "build-index", made_with("feats.json", "backbone")),
    Pair("build-index: features × images", "build-index-chosen", lines("rights.jsonl"), SAME),
    Pair("push: index × matcher", _PUSH, made_with("vg.json", "matcher")),
    Pair("vokenize: index × matcher", "vokenize", made_with("vg.json", "matcher")),
    Pair("vokenize: index × index", _PARTS, made_with("vg2.json", "matcher")),
    Pair("vokenize: captions × index", "vokenize-control", lines("captions.jsonl"), SAME),
    Pair("vokenize: features × index", "vokenize-centroid", features("feats"), SAME),
    Pair("retrieve: index × word vectors", _SCENE, features("associated/words")),
    Pair("show: vokens × index", "show-page", lines("vg.ids")),
    Pair("show: vokens × ids", "show-sheet", lines("vg.ids")),
    Pair("show: retrieved rows × index", "show-retrieved", lines("vg.ids")),
    Pair("show: retrieved rows × retrieved rows", _TWO, lines("found2.jsonl"), "another text"),
    Pair("show: vokens × images", "show-page", lines("bank.jsonl"), SAME),
    Pair("show: heat × images", "show-heat", lines("bank.jsonl"), SAME),
    Pair("locate: queries × features", "locate", features("cells"), SAME),
    Pair("locate: classes × features", "locate-classes", features("cells"), SAME),
    Pair("locate: features × matcher", "locate", made_with("cells.json", "backbone")),
    Pair("extract-image-feats: images × boxes", "extract-regions", lines("boxes.jsonl"), SAME),
    Pair("prepare hdf5: vokens × ids", _HDF5, lines("vg.ids")),
    Pair("prepare vokens: vokens × ids", "prepare-vokens", lines("published/c.vg.ids", fit=False)),
    Pair(
        "prepare vokens: tokens × vokens",
        "prepare-vokens",
        other("published/c.vg.hdf5", "published/other.vg.hdf5"),
        COUNTS,
    ),
    Pair(
        "prepare vokens: tokens × tokenizer",
        "prepare-vokens",
        made_with("published/c.vg.json", "tokenizer"),
    ),
    Pair("prepare vokens: tokens × sentences", "prepare-vokens", shorter("published/c.t.sent")),
    Pair(
        "prepare visual-genome-boxes: images × regions",
        "prepare-boxes",
        items("sets/image_data.json"),
        SAME,
    ),
    Pair("prepare keys: features × ids", "prepare-keys", lines("published/vg.ids", fit=False)),
    Pair("prepare sbu: URLs × texts", "prepare-sbu", shorter("sets/texts.txt"), r"\d"),
    Pair("prepare pairs: source × target", "prepare-pairs", shorter("sets/train.de"), r"\d"),
    Pair("prepare regions: array × boxes", "prepare-arrays", shorter("sets/others.jsonl"), r"\d"),
    Pair("evaluate-matcher: features × matcher", _EVALUATE, made_with("feats.json", "backbone")),
    Pair("score: predictions × gold", _SCORE, lines("tables/answers.tsv", head=1), SAME),
    Pair(
        "score: labels of predictions × gold",
        _SCORE,
        edit("tables/answers.tsv", "(?m)0$", "1"),
        "has the label",
    ),
    Pair(
        "score: vcr-qar × vcr-qa",
        _JOINT,
        lines("vcr-qa/seed-9595/predictions.jsonl", fit=False),
    ),
    Pair(
        "compare: run × run",
        "compare",
        edit("compare/vokens/rte/run.json", r'("dev":{"sha256":")\w+', r"\g<1>" + "0" * 64),
    ),
    Pair(
        "compare examples: run × examples",
        "compare-examples",
        edit("tables/answers.tsv", "red dog", "cat"),
    ),
    Pair("perplexity: texts × features", "perplexity", features("photos"), SAME),
    Pair("perplexity: features × run", "perplexity", made_with("photos.json", "backbone")),
    Pair("pretrain: vokens × features", _REGRESS, features("feats")),
    Pair(
        "pretrain: vokens × validation vokens",
        _VALID,
        edit("counted.json", r'("vg.ids": {[^}]*"sha256": ")\w+', r"\g<1>" + "0" * 64),
    ),
    Pair(
        "pretrain: packed vokens × tokenizer",
        "pretrain-further",
        made_with("packed.json", "tokenizer"),
    ),
    Pair(
        "pretrain visualbert: captions × regions", "pretrain-visualbert", features("regions"), SAME
    ),
    Pair("pretrain grounding: texts × features", "pretrain-grounding", features("photos"), SAME),
    Pair(
        "pretrain grounding: index × features", "pretrain-grounding-scene", features("photos"), SAME
    ),
    Pair(
        "train-matcher visual-awareness: words × table",
        "train-retriever",
        shorter("skip/dictionary.txt"),
        COUNTS,
    ),
    Pair("finetune: retrieved rows × features", _FOUND + _TUNE, features("feats"), SAME),
    Pair(
        "finetune: retrieved rows × index",
        _FOUND + _TUNE,
        both(features("feats"), lines("vg.ids")),
    ),
    Pair("finetune: texts × retrieved rows", "finetune-fused", lines("sst-2.images.jsonl"), SAME),
    Pair("finetune: index × run", "finetune-grounded", features("associated/words")),
    Pair("finetune: index × features", "finetune-grounded", features("associated/feats"), SAME),
    Pair("finetune: pictures × regions", "finetune-vqa", features("vqa"), SAME),
    Pair(
        "finetune: regions × run",
        "finetune-vqa",
        made_with("vqa.json", "backbone"),
    ),
    Pair(
        "finetune: objects × regions",
        "finetune-vcr",
        edit("vcr.regions.jsonl", r'"person", ?"dog"', '"dog", "person"'),
        "its objects are",
    ),
    Pair(
        "probe-attention: captions × parses",
        "probe",
        lines("entities.conllu", b"\n\n"),
        "no sentence for the text",
    ),
    Pair("probe-attention: captions × regions", "probe", features("scenes"), SAME),
)

PAIR = {pair.case.name: pair for pair in PAIRS}
CASES = {name: pair.case for name, pair in PAIR.items()}


def plan(space: Workspace, case: Case, count: int, seed: int) -> list[str]:
    """Return ids of other orders."""
    return [f"pairs {case.name} {seed + number}" for number in range(count)]


@contextmanager
def _changed(space: Workspace, case: Case, detail: str) -> Iterator[None]:
    """Make the change of a trial, and take it back."""
    changed: list[str] = []
    try:
        rng = random.Random(f"{case.name} {detail}")
        changed += PAIR[case.name].change(space.folder / "in", rng)
        yield
    finally:
        for name in changed:
            space.restore(name)


def _answers(space: Workspace, case: Case) -> list[list[bytes]]:
    """Return the answers of a running server, without rows of images and the order of texts."""
    words = [str(space.folder / word) if word.startswith("in/") else word for word in case.words]
    server = Server(*words[1:])
    try:
        bodies = [server.ask(*question).body for question in _QUESTIONS]
    finally:
        server.stop()
    return [sorted(re.sub(rb'"row":\d+', b"", body).split(b'"')) for body in bodies]


def attempt(space: Workspace, case: Case, detail: str) -> Outcome:
    """Run one trial."""
    trial = f"pairs {case.name} {detail}"
    pair = PAIR[case.name]
    serves = case.words[0] == "serve"  # it ends by itself only where it refuses
    if serves and pair.says == SAME:
        known = _answers(space, case)
        with _changed(space, case, detail):
            found = _answers(space, case)
        return Outcome(trial, "" if found == known else "different", f"{found!r:.300}")
    if not serves:
        expected = space.reference(case)
    space.clear()
    with _changed(space, case, detail):
        done = space.run(case, limit=True)
        tree = space.tree(data_only=True)
    if pair.says != SAME:
        verdict, said = fault_of(done, (pair.code,))
        if not verdict and not re.search(pair.says, done.err):
            return Outcome(trial, "message", f"expected {pair.says}: {done.err[-300:]}")
        return Outcome(trial, verdict, said)
    verdict, said = fault_of(done, (Exit.OK,))
    if verdict:
        return Outcome(trial, verdict, said)
    if pair.reading is not None:
        seen, before = pair.reading(done.out), pair.reading(expected.out)
        return Outcome(trial, "" if before and seen == before else "different", f"{seen!r:.300}")
    changes = difference(tree, data_of(expected.tree))
    if not changes and done.out != expected.out:
        changes = f"stdout {done.out[:150]!r}"
    return Outcome(trial, "different" if changes else "", changes)
