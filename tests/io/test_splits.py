"""Nothing learns from rows that are marked to validate or to test on."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import save_encoder, save_feats
from tests.tiny.clip import clip_tokenizer, save_captions, save_tower
from tests.tiny.clip import save_shape as save_clip_shape
from tests.tiny.lm import save_shape, save_tokenizer
from tests.tiny.runs import refused
from tests.tiny.visual import open_tiny
from vgtools import cli
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import write_manifest
from vgtools.io.output import Output
from vgtools.io.splits import held_out_in, refuse_held_out
from vgtools.io.written import manifest_beside
from vgtools.models.references import load_tokenizer
from vgtools.tasks.dispatch import read_split
from vgtools.tasks.table import find_task
from vgtools.text.blocks import pack


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("splits")
    save_feats(folder / "f.npy")
    save_tokenizer(folder / "t")
    save_shape(folder / "s.json")
    open_tiny(folder / "r.npy")
    (folder / "c").mkdir()
    clip_tokenizer().save(str(folder / "c" / "tokenizer.json"))
    save_clip_shape(folder / "clip.json")
    save_tower(folder / "tower")
    return folder


SYSTEMS = {
    "clip": "--feats f.npy --shape clip.json -t c",
    "": "--shape s.json -t t",
    "grounding": "--strategy none --encoder builtin:minilm",
    "visualbert": "--text-only --weight mlm=1 --regions r.npy --shape s.json -t t",
    "xdbert": "--encoder builtin:minilm --teacher tower",
}


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("split", ["test", "dev", "val2014", " Test", "minival", "held-out"])
def test_rows_to_evaluate_on_are_not_learned_from(
    folder: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    system: str,
    split: str,
) -> None:
    monkeypatch.chdir(folder)
    rows = [(f"image{i:03}", "bam bet bis") for i in range(4)]
    save_captions(folder / "rows.jsonl", rows)
    lines = (folder / "rows.jsonl").read_text().splitlines()
    for number, name in ((0, "train"), (2, split)):
        lines[number] = f'{{"split": "{name}", {lines[number][1:]}'
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    args = ["pretrain", *([system] if system else []), "rows.jsonl", *SYSTEMS[system].split()]
    args += ["--steps", "1", "--device", "cpu", "-q", "-o", str(tmp_path / "run")]
    assert cli.run(args) == Exit.DATA
    refused(capfd, f"rows.jsonl:3: \"split\" is '{split}'", 'select(.split == "train")')


@pytest.mark.parametrize("form", ["jsonl", "parquet", "npy"])
def test_vokens_from_a_pipe_keep_the_split_of_their_text(
    tiny: Path, tmp_path: Path, form: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """On stdout there is no manifest to count the rows to refuse."""
    texts = tmp_path / "texts.jsonl"
    splits = ("train", "test", None, "val")
    rows = [{"text": "bam bet"} | ({"split": name} if name else {}) for name in splits]
    texts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    encoder = str(tiny / "encoder")
    args = ["--index", str(tiny / "vg.faiss"), "--device", "cpu", "-q"]
    assert cli.run(["vokenize", str(texts), *args]) == 0
    printed = capfdbinary.readouterr().out
    assert [json.loads(line).get("split") for line in printed.splitlines()] == [*splits]
    piped = tmp_path / "piped.jsonl"
    piped.write_bytes(printed)
    carried = tmp_path / f"carried.{form}"
    assert cli.run(["revokenize", str(piped), "-q", "-t", encoder, "-o", str(carried)]) == 0
    assert json.loads(carried.with_suffix(".json").read_text())["held_out"] == 2
    assert cli.run(["revokenize", str(piped), "-q", "-t", encoder]) == 0
    (tmp_path / "printed.jsonl").write_bytes(capfdbinary.readouterr().out)
    for path, why in (
        (piped, "piped.jsonl:2: \"split\" is 'test'"),
        (tmp_path / "printed.jsonl", "printed.jsonl:2: \"split\" is 'test'"),
        (carried, "was made of 2 rows of splits to evaluate on"),
    ):
        with pytest.raises(DataError, match=re.escape(why)):
            pack(str(path), tmp_path / "packed", load_tokenizer(encoder), train=True)


@pytest.mark.parametrize("names", [("dev", "train"), ("train", "dev"), ("dev", "dev")])
def test_a_conversion_of_a_text_to_evaluate_on_is_not_learned_from(
    tiny: Path, tmp_path: Path, names: tuple[str, str]
) -> None:
    """A cache, or what a killed run left, may hold it."""
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(f'{{"text": "bam bet", "split": "{name}"}}\n' for name in names))
    tokenizer = load_tokenizer(str(tiny / "encoder"))
    assert len(pack(str(texts), tmp_path / "packed", tokenizer)) == 1
    line = names.index("dev") + 1
    for _ in range(2):
        with pytest.raises(DataError, match=rf"texts\.jsonl:{line}: \"split\" is 'dev'"):
            pack(str(texts), tmp_path / "packed", tokenizer, train=True)


def test_no_vocabulary_or_cluster_is_learned_from_rows_to_evaluate_on(
    tiny: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "texts.jsonl"
    rows = [{"text": "bam bet", "split": split} for split in ("train", "dev")]
    texts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    encoder = str(tiny / "encoder")
    for words in (
        ["tokenizer", str(texts), "--vocabulary", "30", "-o", str(tmp_path / "bpe")],
        ["clusters", str(texts), "-e", encoder, "-k", "2", "-o", str(tmp_path / "c.faiss")],
    ):
        assert cli.run(["prepare", *words]) == Exit.DATA
        refused(capfd, "texts.jsonl:2: \"split\" is 'dev'")


@pytest.mark.parametrize("control", ["frequent", "term-frequency", "centroid"])
def test_no_control_is_learned_from_rows_to_evaluate_on(
    tiny: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], control: str
) -> None:
    captions = tmp_path / "c.jsonl"
    index = str(tiny / "vg.faiss")
    image = (tiny / "vg.ids").read_text().split()[0]
    rows = [{"image": image, "text": "bam bet", "split": split} for split in ("train", "dev")]
    captions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "t.txt").write_text("bam\n")
    args = ["vokenize", str(tmp_path / "t.txt"), "--index", index, "--captions", str(captions)]
    if control == "centroid":
        args += ["--feats", str(tiny / "feats.npy")]
    assert cli.run([*args, "--control", control]) == Exit.DATA
    refused(capfd, "c.jsonl:2: \"split\" is 'dev'")


@pytest.mark.parametrize(
    "split",
    [
        "trial", "holdout", "held_out", "public_test", "x-val", "mini.val", "unseen_validation",
        "newstest2014", "tst2014", "ted.tst2013", "ood_testA", "unseen_eval", "2014-dev", "x/test",
        "my held-out rows", "wmt14/newstest2014", "newsdev2016", "en-de.newsdiscussdev2015",
    ],
)  # fmt: skip
def test_splits_of_many_names_are_not_learned_from(split: str) -> None:
    with pytest.raises(DataError, match=re.escape(f'"split" is {split!r}')):
        refuse_held_out({"split": split}, "x.jsonl", 1)


@pytest.mark.parametrize("split", [["test"], {"test": 1}, 0.5])
def test_a_split_that_is_no_name_is_refused(split: Any) -> None:
    with pytest.raises(DataError, match=r'x\.jsonl:1: "split": expected a name'):
        refuse_held_out({"split": split}, "x.jsonl", 1)


def test_other_splits_and_none_are_learned_from() -> None:
    others = ("train", "restval", "unlabelled", "latest", "trainval", "train+val", "contest2")
    for split in (*others, "", None, 3):
        refuse_held_out({"split": split}, "x.jsonl", 1)
    refuse_held_out({}, "x.jsonl", 1)


SHAPED = ["--shape", "s.json", "-t", "t", "--device", "cpu"]


def test_sentences_of_rows_to_evaluate_on_are_not_learned_from(
    folder: Path,
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    texts = tmp_path / "texts.jsonl"
    splits = ("train", "dev", "test")
    texts.write_text("".join(f'{{"text": "Bam. Bet.", "split": "{name}"}}\n' for name in splits))
    lines = str(tmp_path / "lines.txt")
    assert cli.run(["prepare", "sentences", str(texts), "-o", lines, "-q"]) == 0
    encoder = str(tiny / "encoder")
    # A second step has lines alone to read.
    again = str(tmp_path / "again.txt")
    assert cli.run(["prepare", "sentences", lines, "-o", again, "-q"]) == 0
    vokens = str(tmp_path / "v.npy")
    how = ["--index", str(tiny / "vg.faiss"), "--device", "cpu", "-q", "-o", vokens]
    assert cli.run(["vokenize", again, *how]) == 0
    for made in (again, vokens):
        assert json.loads(Path(made).with_suffix(".json").read_text())["held_out"] == 4
    why = "lines.txt: was made of 4 rows of splits to evaluate on"
    for words in (
        ["prepare", "tokenizer", lines, "--vocabulary", "30", "-o", str(tmp_path / "bpe")],
        ["prepare", "clusters", lines, "-e", encoder, "-k", "2", "-o", str(tmp_path / "c.faiss")],
        ["pretrain", lines, *SHAPED, "--steps", "1", "-o", str(tmp_path / "lm"), "-q"],
        [
            "vokenize", lines, "--index", str(tiny / "vg.faiss"), "--control", "frequent",
            "--captions", lines,
        ],
    ):  # fmt: skip
        assert cli.run(words) == Exit.DATA
        refused(capfd, why)


@pytest.mark.parametrize("form", ["rows.jsonl", "rows.parquet", "rows.jsonl/"])
@pytest.mark.parametrize("command", ["retrieve", "vokenize"])
def test_rows_made_of_lines_to_evaluate_on_are_not_learned_from(
    tiny: Path, tmp_path: Path, command: str, form: str
) -> None:
    """The lines have no splits; their manifest counts them, and the rows' own, once."""
    texts = tmp_path / "texts.jsonl"
    splits = ("train", "dev", "test", "train")
    texts.write_text("".join(f'{{"text": "Bam. Bet.", "split": "{name}"}}\n' for name in splits))
    lines = str(tmp_path / "lines.txt")
    assert cli.run(["prepare", "sentences", str(texts), "-o", lines, "-q"]) == 0
    held_out = json.loads((tmp_path / "lines.json").read_text())["held_out"]
    assert held_out == 4
    rows = f"{tmp_path}/{form}"
    how = ["--index", str(tiny / "vg.faiss"), "--device", "cpu", "-q", "-o", rows]
    assert cli.run([command, lines, *how, *(["--shard-size", "9"] * form.endswith("/"))]) == 0
    assert json.loads((tmp_path / "rows.json").read_text())["held_out"] == held_out
    if form.endswith("/"):
        assert len(list((tmp_path / "rows.jsonl").glob("*.json"))) > 2  # its shards
    tokenizer = load_tokenizer(str(tiny / "encoder"))
    with pytest.raises(DataError, match="made of 4 rows of splits to evaluate on"):
        pack(rows, tmp_path / "packed", tokenizer, train=True)
    assert len(pack(rows, tmp_path / "packed", tokenizer)) >= 1  # to evaluate on


def test_a_mark_of_rows_to_evaluate_on_outlives_rows_with_splits_links_and_shards(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("held.jsonl").write_text('{"text": "Bam bet.", "split": "dev"}\n' * 2)
    Path("train.jsonl").write_text('{"text": "Bam bet.", "split": "train"}\n' * 2)
    assert cli.run(["prepare", "sentences", "held.jsonl", "-o", "held.txt", "-q"]) == 0
    how = ["--index", str(tiny / "vg.faiss"), "--device", "cpu", "-q"]
    # Rows to learn from come first; only the manifest has the others' mark.
    assert cli.run(["vokenize", "train.jsonl", "held.txt", *how, "-o", "both.jsonl"]) == 0
    assert cli.run(["retrieve", "both.jsonl", *how, "-o", "found.jsonl"]) == 0
    assert cli.run(["vokenize", "both.jsonl", *how, "-o", "again.npy"]) == 0
    assert cli.run(["vokenize", "held.txt", *how, "-o", "o.jsonl/", "--shard-size", "9"]) == 0
    assert cli.run(["vokenize", "held.txt", *how, "-o", "v.jsonl"]) == 0
    Path("link.txt").symlink_to("held.txt")
    Path("link.jsonl").symlink_to("v.jsonl")
    encoder = str(tiny / "encoder")
    assert cli.run(["revokenize", "link.jsonl", "-t", encoder, "-o", "carried.npy", "-q"]) == 0
    shard = min(map(str, Path("o.jsonl").glob("000000-*.jsonl")))
    assert "split" not in Path(shard).read_text()
    assert (
        held_out_in(f"file://{tmp_path}/{shard}") == held_out_in(f"file://{tmp_path}/o.jsonl/") == 2
    )
    tokenizer = load_tokenizer(encoder)
    for path in ("both.jsonl", "found.jsonl", "again.npy", "link.txt", "carried.npy", shard):
        with pytest.raises(DataError, match="made of 2 rows of splits to evaluate on"):
            pack(path, tmp_path / "packed", tokenizer, train=True)
        assert len(pack(path, tmp_path / "packed", tokenizer)) >= 1
    Path("train.txt").write_text("Bam bet.\n")
    assert len(pack("train.txt", tmp_path / "packed", tokenizer, train=True)) == 1


PHRASE = {"start": 2, "end": 5, "boxes": [[0, 0, 5, 5]]}
EXAMPLES: dict[str, dict[str, Any]] = {
    "sst-2": {"sentence": "a dog", "label": 1},
    "conll-2003": {"text": "a dog", "tags": ["O", "O"]},
    "translation": {"text": "a dog", "target": "ein Hund"},
    "flickr30k-grounding": {
        "image": "1", "text": "a dog", "phrases": [PHRASE], "width": 9, "height": 9,
    },
    "nlvr2": {"identifier": "a-1-0-1", "sentence": "a dog", "label": "True"},
    "vcr-qa": {
        "annot_id": "a-1", "img_fn": "1.jpg", "objects": ["person"], "question": ["who", "?"],
        "answer_choices": [["a"], ["b"], ["c"], [[0]]], "answer_label": 1,
        "rationale_choices": [["a"], ["b"], ["c"], ["d"]], "rationale_label": 0,
    },
}  # fmt: skip


@pytest.mark.parametrize("task", EXAMPLES)
def test_no_task_is_fine_tuned_on_examples_to_evaluate_on(tmp_path: Path, task: str) -> None:
    path = tmp_path / "x.jsonl"
    rows = [EXAMPLES[task] | {"split": split} for split in ("train", "test")]
    lines = [json.dumps(row).replace("a-1", f"a-{i}") for i, row in enumerate(rows)]
    path.write_text("\n".join(lines))
    for split in ("dev", "test"):
        assert len(list(read_split(find_task(task), split, path))) == 2
    with pytest.raises(DataError, match="\"split\" is 'test'") as caught:
        list(read_split(find_task(task), "train", path))
    assert (caught.value.line, caught.value.code) == (2, Exit.DATA)


@pytest.mark.parametrize(
    ("task", "header", "row"),
    [
        ("sst-2", "sentence\tlabel\tsplit", "a dog\t1\t{1}"),
        ("sick", "pair_ID\tsentence_A\tsentence_B\tentailment_judgment\tsplit",
         "{0}\ta dog\ta cat\tNEUTRAL\t{1}"),
        ("sick", "pair_ID\tsentence_A\tsentence_B\tentailment_judgment\tSemEval_set",
         "{0}\ta dog\ta cat\tNEUTRAL\t{1}"),
    ],
)  # fmt: skip
def test_no_column_of_splits_is_overlooked(
    tmp_path: Path, task: str, header: str, row: str
) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("\n".join([header, row.format(1, "TRAIN"), row.format(2, "TRIAL"), ""]))
    assert len(list(read_split(find_task(task), "dev", path))) == 2
    with pytest.raises(DataError, match="\"split\" is 'TRIAL'") as caught:
        list(read_split(find_task(task), "train", path))
    assert (caught.value.line, caught.value.code) == (3, Exit.DATA)


_MADE_OF_LINES = {
    "wikitext": "prepare wikitext lines.txt -o w.txt",
    "sentences": "prepare sentences lines.txt -o s.txt",
    "vokenize": "vokenize lines.txt --index {tiny}/vg.faiss --device cpu -o v.npy",
    "retrieve": "retrieve lines.txt --index {tiny}/vg.faiss --device cpu -o r.jsonl",
    "vokenize-shards": "vokenize lines.txt --index {tiny}/vg.faiss --device cpu -o v.npy/",
    "retrieve-shards": "retrieve lines.txt --index {tiny}/vg.faiss --device cpu -o r.jsonl/",
    "revokenize": "revokenize vokens.jsonl -t {tiny}/encoder -o w.npy",
    "published": "prepare vokens t.bert.hdf5 -t {tiny}/encoder -o p.npy",
}


def mark(path: Path, held_out: int) -> None:
    """Count rows to evaluate on in the manifest of a file, as when it is made with another flag."""
    write_manifest(path, [path], **({"held_out": held_out} if held_out else {}))


@pytest.mark.parametrize("command", _MADE_OF_LINES)
def test_a_text_that_is_marked_later_makes_its_outputs_again(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    command: str,
) -> None:
    """The bytes of the text are the same; whoever learns from the output must know of the mark."""
    monkeypatch.chdir(tmp_path)
    Path("lines.txt").write_text("Bam. Bet.\nbam bis\n")
    how = ["--index", str(tiny / "vg.faiss"), "--device", "cpu", "-q"]
    assert cli.run(["vokenize", "lines.txt", *how, "-o", "vokens.jsonl"]) == 0
    assert cli.run(["vokenize", "lines.txt", *how, "-o", "t.npy"]) == 0
    to_hdf5 = ["prepare", "hdf5", "t.npy", "--ids", str(tiny / "vg.ids"), "-q"]
    assert cli.run([*to_hdf5, "--tokens", "t.bert.hdf5", "-o", "t.vg.hdf5"]) == 0
    source = Path(
        {"revokenize": "vokens.jsonl", "published": "t.bert.hdf5"}.get(command, "lines.txt")
    )
    words = [*_MADE_OF_LINES[command].format(tiny=tiny).split(), "-q"]
    made = Path(words[words.index("-o") + 1].rstrip("/")).with_suffix(".json")
    for held_out in (0, 2, 3, 0):
        mark(source, held_out)
        if "shards" in command and held_out != 0:
            # Whoever completes a folder of many hours decides whether its shards are made again.
            assert cli.run(words) == Exit.CONFIG
            refused(capfd, "the input lines.txt changed: held_out was", f"is now {held_out}")
        restart = ["--restart"] * ("shards" in command)
        assert cli.run([*words, *restart]) == 0
        assert json.loads(made.read_text()).get("held_out", 0) == held_out
        time = made.stat().st_mtime_ns
        assert cli.run(words) == 0
        assert made.stat().st_mtime_ns == time  # up to date


def test_a_text_that_is_marked_later_stops_what_was_begun_with_it(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    lines = tmp_path / "lines.txt"
    lines.write_text("bam bet bis\n" * 40)
    mark(lines, 0)
    run = tmp_path / "run"
    args = ["pretrain", str(lines), *SYSTEMS[""].split(), "--steps", "1", "--device", "cpu", "-q"]
    args += ["--block", "16"]
    assert cli.run([*args, "-o", str(run)]) == 0
    mark(lines, 7)
    assert cli.run([*args, "-o", str(run)]) == Exit.CONFIG
    refused(capfd, "lines.txt: its manifest changed since the run read it", "counted 0", "now 7")
    # An output that was stopped after some rows.
    out = str(tmp_path / "out.jsonl")
    with Output([out], {}, inputs=[lines]) as begun:
        begun.write(b"x")
        begun.commit({"rows": 1})
    mark(lines, 8)
    with pytest.raises(DataError, match="that is being resumed: it counted 7 rows") as caught:
        Output([out], {}, inputs=[lines]).__enter__()
    assert caught.value.code == Exit.CONFIG


@pytest.mark.parametrize(
    ("command", "form"),
    [("retrieve", "rows.jsonl"), ("vokenize", "rows.jsonl"), ("vokenize", "rows.npy")],
)
def test_the_mark_of_one_text_among_several_is_kept_by_shards(
    tiny: Path, tmp_path: Path, command: str, form: str
) -> None:
    texts = [tmp_path / f"{name}.txt" for name in "abc"]
    for text, held_out in zip(texts, (0, 2, 3), strict=True):
        text.write_text("bam bet\nbis\n")
        mark(text, held_out)
    args = [command, *map(str, texts), "--index", str(tiny / "vg.faiss"), "--device", "cpu", "-q"]
    for number, ending in enumerate(("", "/")):
        out = f"{tmp_path}/{number}.{form}{ending}"
        assert cli.run([*args, "-o", out, *(["--shard-size", "9"] * bool(ending))]) == 0
        assert json.loads((tmp_path / f"{number}.rows.json").read_text())["held_out"] == 5
    assert len(list((tmp_path / f"1.{form}").glob("*.json"))) > 3  # of shards, and the plan


@pytest.mark.parametrize("form", ["jsonl", "npy"])
def test_vokens_of_texts_to_evaluate_on_are_not_learned_from(
    tiny: Path, tmp_path: Path, form: str
) -> None:
    """What the manifest of vokens says follows them to another tokenizer."""
    tokenizer = load_tokenizer(str(tiny / "encoder"))
    for name, held_out in (("test", 2), ("train", None)):
        texts = tmp_path / f"{name}.jsonl"
        rows = [{"text": "bam bet", "split": split} for split in ("train", name, name)]
        texts.write_text("".join(json.dumps(row) + "\n" for row in rows))
        first, second = (str(tmp_path / f"{name}-{end}") for end in ("v.jsonl", f"w.{form}"))
        args = ["vokenize", str(texts), "--index", str(tiny / "vg.faiss"), "--device", "cpu"]
        assert cli.run([*args, "-q", "-o", first]) == 0
        assert cli.run(["revokenize", first, "-q", "-t", str(tiny / "encoder"), "-o", second]) == 0
        for path in (first, second):
            manifest = json.loads(Path(path).with_suffix(".json").read_text())
            assert manifest.get("held_out") == held_out
            assert len(pack(path, tmp_path / "packed", tokenizer)) == 1
            if held_out is None:
                assert len(pack(path, tmp_path / "packed", tokenizer, train=True)) == 1
                continue
            with pytest.raises(DataError, match="made of 2 rows of splits to evaluate on"):
                pack(path, tmp_path / "packed", tokenizer, train=True)


def test_a_text_at_a_url_has_its_mark(tmp_path: Path) -> None:
    text = tmp_path / "val.txt"
    text.write_text("a\nb\n")
    mark(text, 2)
    url = f"file://{text}"
    assert held_out_in(url) == held_out_in(text) == 2
    assert manifest_beside(url) == manifest_beside(text)
    text.write_text("a\nb\nc\n")
    with pytest.raises(DataError, match="has 6 bytes, its manifest states 4"):
        held_out_in(url)
    notes = tmp_path / "val.json"
    for other in ("{", "[]", '{"mine": 1}', '{"vg": "1", "files": {"other.npy": {}}}'):
        notes.write_text(other)
        assert held_out_in(url) == 0
    notes.unlink()
    assert manifest_beside(url) == {}


def test_published_files_of_texts_to_evaluate_on_are_not_learned_from(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.jsonl").write_text('{"text": "bam bet", "split": "test"}\n')
    Path("vg.ids").write_bytes((tiny / "vg.ids").read_bytes())
    encoder = str(tiny / "encoder")
    how = ["--index", str(tiny / "vg.faiss"), "--device", "cpu", "-q"]
    assert cli.run(["vokenize", "t.jsonl", *how, "-o", "v.npy"]) == 0
    args = ["v.npy", "--ids", "vg.ids", "--tokens", "c.bert.hdf5", "-o", "c.vg.hdf5", "-q"]
    assert cli.run(["prepare", "hdf5", *args]) == 0
    # Another set of vokens, not of vg, for the same tokens.
    Path("c.other.hdf5").write_bytes(Path("c.vg.hdf5").read_bytes())
    Path("c.other.ids").write_bytes(Path("c.vg.ids").read_bytes())
    for given in (["c.vg.hdf5"], [], ["c.other.hdf5"]):
        args = ["c.bert.hdf5", *given, "-t", encoder, "-o", "w.npy", "-q"]
        assert cli.run(["prepare", "vokens", *args]) == 0
        with pytest.raises(DataError, match="made of 1 row of splits to evaluate on"):
            pack("w.npy", tmp_path / "packed", load_tokenizer(encoder), train=True)


def test_the_held_out_share_of_a_run_is_its_dev_set(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its texts are rows of "dev", which nothing learns from, with a run and with the same flag."""
    monkeypatch.chdir(tmp_path)
    encoder = save_encoder(tmp_path / "encoder", positions=64)
    rows = [{"a": f"bam {n}", "label": "xy"[n % 2]} for n in range(40)]
    Path("d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fast = ["--epochs", "1", "--batch-size", "8", "--max-length", "40", "--device", "cpu"]
    call = ["finetune", "classify", "d.jsonl", "--text", "a", "--hold-out", "0.4", *fast]
    assert cli.run([*call, "-e", str(encoder), "-q", "-o", "run"]) == 0
    predicted = read_rows("run/seed-9595/predictions.jsonl")
    dev = {row["id"] for row in predicted}
    assert 5 < len(dev) < 30
    assert cli.run(["prepare", "task", "run", "-o", "t.jsonl"]) == 0
    texts = read_rows("t.jsonl")
    assert {row["id"] for row in texts if row["split"] == "dev"} == dev
    assert sorted(int(row["id"]) for row in texts) == [*range(40)]
    for split in ("train", "dev"):
        call = ["prepare", "task", "run", "--split", split, "-o", f"{split}.jsonl"]
        assert cli.run(call) == 0
        assert read_rows(f"{split}.jsonl") == [row for row in texts if row["split"] == split]
    save_tokenizer(tmp_path / "t")
    save_shape(tmp_path / "s.json")
    learn = ["--shape", "s.json", "-t", "t", "--block", "16", "--steps", "1", "--device", "cpu"]
    assert cli.run(["pretrain", "t.jsonl", *learn, "-q", "-o", "lm"]) == Exit.DATA
    assert "\"split\" is 'dev'" in capfd.readouterr().err
    assert cli.run(["prepare", "task", "run", "--hold-out", "0.4", "-o", "u.jsonl"]) == Exit.USAGE


def test_the_held_out_share_of_a_built_in_task(tmp_path: Path) -> None:
    file = tmp_path / "commonlit.csv"
    lines = [f"{n},,,bam dis {n},-0.{n},0.5\n" for n in range(10, 40)]
    file.write_text("id,url_legal,license,excerpt,target,standard_error\n" + "".join(lines))
    out = tmp_path / "t.jsonl"
    call = ["prepare", "task", "commonlit", "--train", str(file), "-o", str(out)]
    assert cli.run([*call, "--hold-out", "0.4"]) == 0
    dev = {e.id for e in read_split(find_task("commonlit"), "dev", file, hold_out=0.4)}
    assert {row["id"] for row in read_rows(out) if row["split"] == "dev"} == dev
