"""`vg translate`, and what makes its models: pairs, a tokenizer, a fine-tuning run."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import Runner
from tests.tiny.lm import exchange_words
from tests.tiny.translation import pairs, save_model, save_pairs, save_tokenizer
from vgtools.cli import run
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import write_manifest
from vgtools.io.splits import refuse_held_out
from vgtools.models import seq2seq
from vgtools.models.runs import read_run
from vgtools.systems.visual_awareness import translation
from vgtools.tasks import translation as tasks_translation

FAST = ["--lr", 3e-3, "--warmup", 5, "--batch-size", 60, "--max-length", 40, "--device", "cpu"]


def vg(*args: object) -> int:
    return run([str(arg) for arg in args])


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Write 80 lines, some of them empty, one with separators that do not end lines."""
    lines = [source for source, _ in pairs(78, seed=4)]
    lines[3], lines[67] = "", " \t"
    path = tmp_path / "in.txt"
    path.write_text("\n".join([*lines, "dog\u2028cat\x85red\rruns", "no end"]), newline="")
    return path


def test_n_lines_in_are_n_lines_out(model: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    short = ["--longer", 4, "--device", "cpu", "-q"]
    assert vg("translate", model, text, "-o", out, *short) == 0
    found = out.read_text().split("\n")
    assert len(found) == 81
    assert (found[3], found[67], found[80]) == ("", "", "")
    assert sum(map(bool, found)) > 50
    # One by one, and as rows.
    source = text.read_text().split("\n")[5]
    alone = tmp_path / "alone.jsonl"
    alone.write_text(json.dumps({"id": 7, "text": source, "target": "t", "other": 1}) + "\n")
    args = ["translate", model, alone, "--json", "-o", tmp_path / "rows.jsonl", *short]
    assert vg(*args) == 0
    assert rows(tmp_path / "rows.jsonl") == [
        {"text": source, "translation": found[5], "id": 7, "target": "t"}
    ]
    manifest = json.loads((tmp_path / "out.json").read_text())
    assert (manifest["kind"], manifest["rows"], manifest["cut"]) == ("translations", 80, 0)


def test_translations_of_rows_to_evaluate_on_are_not_learned_from(
    model: Path, text: Path, tmp_path: Path
) -> None:
    sources = [line for line in text.read_text().split("\n")[:6] if line.strip()]
    splits = ["train", "dev", "test", "train", "dev"]
    pairs_of = zip(sources, splits, strict=True)
    jsonl = tmp_path / "in.jsonl"
    jsonl.write_text("".join(json.dumps({"text": t, "split": s}) + "\n" for t, s in pairs_of))
    lines = tmp_path / "lines.txt"
    assert vg("prepare", "sentences", jsonl, "-o", lines, "-q") == 0
    short = ["--longer", 4, "--device", "cpu", "-q"]
    # Rows keep their splits; lines have none, and are counted.
    for source, name, held_out in (
        (jsonl, "a.txt", 3), (jsonl, "b.jsonl", None), (lines, "c.txt", 3), (lines, "d.jsonl", 3),
    ):  # fmt: skip
        json_rows = ["--json"] if name.endswith(".jsonl") else []
        assert vg("translate", model, source, *json_rows, "-o", tmp_path / name, *short) == 0
        made = json.loads((tmp_path / name).with_suffix(".json").read_text())
        assert made.get("held_out") == held_out, name
    assert [row["split"] for row in rows(tmp_path / "b.jsonl")] == splits
    for name in ("a.txt", "c.txt", "d.jsonl"):
        with pytest.raises(DataError, match="made of 3 rows of splits to evaluate on"):
            refuse_held_out({}, tmp_path / name, 1)
    # The manifest of the lines changes, and not a byte of them.
    write_manifest(lines, [lines], held_out=2)
    assert vg("translate", model, lines, "-o", tmp_path / "c.txt", *short) == 0
    assert json.loads((tmp_path / "c.json").read_text())["held_out"] == 2


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json"])
def test_an_edited_model_is_another_model(
    model: Path, text: Path, tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(model, tmp_path / "model")
    args = ["translate", tmp_path / "model", text, "-o", tmp_path / "out.txt", "--device", "cpu"]
    assert vg(*args) == vg(*args) == 0
    assert capfd.readouterr().err.count("is up to date") == 1
    file = tmp_path / "model" / name
    if name == "tokenizer.json":
        exchange_words(tmp_path / "model", *[*json.loads(file.read_text())["model"]["vocab"]][-2:])
    else:
        body = json.loads(file.read_text())
        edit = {"scale_embedding": not body.get("scale_embedding")}
        file.write_text(json.dumps(body | ({"no_repeat_ngram_size": 2} if "gen" in name else edit)))
    assert vg(*args) == 0
    assert "is up to date" not in capfd.readouterr().err


def test_flags_reach_the_search(model: Path, text: Path, tmp_path: Path) -> None:
    def lines(*flags: object) -> list[str]:
        out = tmp_path / "out.txt"
        args = ["translate", model, text, "-o", out, "--device", "cpu", "-q", "--restart"]
        assert vg(*args, "--limit", 12, "--longer", 8, *flags) == 0
        return out.read_text().split("\n")[:-1]

    greedy = lines("--beams", 1)
    assert len(greedy) == 12
    assert greedy == lines("--beams", 1, "--batch-size", 3)
    assert greedy != lines()
    short = lines("--beams", 1, "--longer", 0)
    assert max(map(len, short)) < max(map(len, greedy))
    assert lines("--length-penalty", 3) != lines("--length-penalty", 0)


def test_a_stopped_run_resumes_to_the_same_bytes(
    model: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ["translate", model, text, "--device", "cpu", "-q", "--json", "--longer", 2, "-o"]
    whole, cut = tmp_path / "whole.jsonl.gz", tmp_path / "cut.jsonl.gz"
    assert vg(*args, whole) == 0
    plain = translation.StreamTranslator.__call__
    calls = []

    def dies(self: Any, window: Any) -> list[str]:
        calls.append(window.first)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return plain(self, window)

    monkeypatch.setattr(translation.StreamTranslator, "__call__", dies)
    assert vg(*args, cut) == 130
    assert not cut.exists()
    assert vg(*args, cut) == 0
    assert calls == [1, 65, 65]
    assert cut.read_bytes() == whole.read_bytes()
    assert len(gzip.decompress(whole.read_bytes()).splitlines()) == 80
    assert vg(*args, cut) == 0  # up to date
    assert len(calls) == 3
    assert vg(*args, cut, "--beams", 2) == 0  # other settings begin again
    assert calls[3:] == [1, 65]


def test_memory_that_runs_out_halves_batches_and_changes_no_line(
    model: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ["translate", model, text, "--limit", 12, "--longer", 3, "--device", "cpu", "-q", "-o"]
    assert vg(*args, tmp_path / "whole.txt") == 0
    plain = seq2seq.generate

    def generate(net: Any, ids: torch.Tensor, *rest: Any) -> list[list[int]]:
        if len(ids) > 4:
            raise torch.OutOfMemoryError("out of memory")
        return plain(net, ids, *rest)

    monkeypatch.setattr(seq2seq, "generate", generate)
    assert vg(*args, tmp_path / "halved.txt") == 0
    assert (tmp_path / "halved.txt").read_bytes() == (tmp_path / "whole.txt").read_bytes()


def test_what_is_too_long_is_cut_and_counted(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text("dog " * 300 + "\ncat\n")
    args = ["translate", model, tmp_path / "in.txt", "-o", tmp_path / "out.txt", "--beams", 1]
    assert vg(*args, "--longer", 3, "--device", "cpu") == 0
    assert "2 lines, 1 cut to the longest that the model reads" in capfd.readouterr().err
    assert len((tmp_path / "out.txt").read_text().splitlines()) == 2


def test_a_line_end_in_a_translation_stays_out_of_the_lines(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenizers import Tokenizer

    (tmp_path / "in.txt").write_text("dog\ncat\n")
    monkeypatch.setattr(
        translation, "translate", lambda net, sources, *rest, **more: [[4]] * len(sources)
    )
    opened = translation.open_model(str(model), None, torch.device("cpu"))
    bare = Tokenizer.from_str(opened.encoder.tokenizer.to_str())
    assert bare.decode([4])
    window = next(iter(_windows(tmp_path / "in.txt")))
    worker = translation.StreamTranslator(opened, "in.txt", seq2seq.GREEDY, 2, torch.float32)
    object.__setattr__(opened.encoder, "tokenizer", _LineEnds(opened.encoder.tokenizer))
    assert worker(window) == ["a b", "a b"]


class _LineEnds:
    """A tokenizer whose every text has a line end in it."""

    def __init__(self, tokenizer: Any) -> None:
        object.__setattr__(self, "_tokenizer", tokenizer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def decode_batch(self, rows: list[list[int]]) -> list[str]:
        return ["a\nb"] * len(rows)


def _windows(path: Path) -> Any:
    from vgtools.io.streams import read_windows

    return read_windows(str(path), 64)


@pytest.mark.slow  # a real process
def test_a_pipe_gives_lines_as_they_come(vg: Runner, model: Path) -> None:
    """Also those with a carriage return, too long for the model, or without an end."""
    lines = b"dog runs.\n\r\n\n" + b"dog " * 400 + b"\ncat"
    args = ["--longer", "2", "--beams", "1", "--device", "cpu", "-q"]
    done = vg("translate", model, "-", *args, input=lines)
    assert (done.returncode, done.stderr) == (0, b"")
    found = done.stdout.split(b"\n")
    assert len(found) == 6
    assert [bool(line) for line in found] == [True, False, False, True, True, False]


def test_bad_input_is_named(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def fails(code: int, *args: object) -> str:
        assert vg("translate", *args, "-q", "--device", "cpu") == code
        return capfd.readouterr().err

    (tmp_path / "in.jsonl").write_text('{"text": "dog"}\n{"texts": "cat"}\n')
    assert 'in.jsonl:2: the key "text" is missing' in fails(65, model, tmp_path / "in.jsonl")
    assert "expected a text file" in fails(2, model, tmp_path / "in.jsonl", "-o", "x.npy")
    assert "looks at no images; leave out --feats" in fails(
        2, model, tmp_path / "in.jsonl", "--feats", "x.npy"
    )
    assert "cannot be read" in fails(66, model, tmp_path / "none.txt")
    assert "is not a model" in fails(66, tmp_path / "none", tmp_path / "in.jsonl")


# ---------------------------------------------------------------------------------------- training


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pairs and a tokenizer, as `vg prepare` writes them."""
    folder = tmp_path_factory.mktemp("data")
    save_pairs(folder / "raw", 60, 12)
    for name in ("train", "dev"):
        sides = rows(folder / "raw" / f"{name}.jsonl")
        for side, key in (("en", "text"), ("de", "target")):
            (folder / f"{name}.{side}").write_text("".join(row[key] + "\n" for row in sides))
        args = [folder / f"{name}.{side}" for side in ("en", "de")]
        (folder / "pairs").mkdir(exist_ok=True)
        assert vg("prepare", "pairs", *args, "-o", folder / "pairs" / f"{name}.jsonl", "-q") == 0
        assert rows(folder / "pairs" / f"{name}.jsonl") == sides
    args = [folder / "pairs/train.jsonl", "--vocabulary", 60, "-o", folder / "bpe", "-q"]
    assert vg("prepare", "tokenizer", *args) == 0
    return folder


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            "prepare tokenizer t.txt --vocabulary 100000000000 -o v",
            "less than or equal to 16777216",
        ),
        ("translate m t.txt --beams 100000", "less than or equal to 256"),
    ],
)
def test_sizes_that_no_machine_has_room_for_are_refused(
    words: str, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(words.split()) == Exit.USAGE
    assert why in capfd.readouterr().err


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "run.json"])
def test_a_tokenizer_is_not_written_over_its_texts(
    data: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    before = {file: file.read_bytes() for file in (data / "bpe").iterdir()}
    args = [data / "bpe" / name, "--vocabulary", 100, "-o", data / "bpe"]
    assert vg("prepare", "tokenizer", *args) == 73
    assert "is an input of this command" in capfd.readouterr().err
    assert {file: file.read_bytes() for file in (data / "bpe").iterdir()} == before


def test_a_damaged_run_json_of_a_tokenizer_is_refused_until_it_is_removed(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "bpe"
    args = ["prepare", "tokenizer", data / "pairs/train.jsonl", "--vocabulary", 60, "-o", folder]
    assert vg(*args) == 0
    expected = {file: file.read_bytes() for file in folder.iterdir()}
    (folder / "run.json").write_bytes(expected[folder / "run.json"][:300])
    before = {file: file.read_bytes() for file in folder.iterdir()}
    assert vg(*args) == Exit.CANNOT_CREATE
    error = capfd.readouterr().err
    assert "or remove it and make the run again" in error
    assert "--restart" not in error
    assert {file: file.read_bytes() for file in folder.iterdir()} == before
    (folder / "run.json").unlink()
    assert vg(*args) == 0
    assert {file: file.read_bytes() for file in folder.iterdir()} == expected


def test_a_tokenizer_opens_in_transformers(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoTokenizer

    there = AutoTokenizer.from_pretrained(data / "bpe")
    tokens = (there.pad_token_id, there.bos_token_id, there.eos_token_id, there.unk_token_id)
    assert tokens == (0, 1, 2, 3)
    assert there.decode(there("dog runs.").input_ids, skip_special_tokens=True) == "dog runs."
    again = [data / "pairs/train.jsonl", "--vocabulary", 60, "-o", tmp_path / "bpe"]
    assert vg("prepare", "tokenizer", *again) == 0
    assert capfd.readouterr().err == f"vg prepare: 60 entries in {tmp_path / 'bpe'}\n"
    files = [folder / "tokenizer.json" for folder in (tmp_path / "bpe", data / "bpe")]
    assert files[0].read_bytes() == files[1].read_bytes()
    few = [data / "pairs/train.jsonl", "--vocabulary", 9000, "-o", tmp_path / "few"]
    assert vg("prepare", "tokenizer", *few) == 0
    assert "the texts have no more than that, below 9,000" in capfd.readouterr().err
    (tmp_path / "empty.txt").write_text("")
    assert vg("prepare", "tokenizer", tmp_path / "empty.txt", "--vocabulary", 9, "-o", "x") == 65
    masked = [data / "pairs/train.jsonl", "--vocabulary", 60, "--mask", "-o", tmp_path / "masked"]
    assert vg("prepare", "tokenizer", *masked) == 0
    there = AutoTokenizer.from_pretrained(tmp_path / "masked")
    assert (there.mask_token_id, there.cls_token_id, there.sep_token_id) == (4, 1, 2)
    again = [data / "pairs/train.jsonl", "--vocabulary", 50, "-o", tmp_path / "masked"]
    assert vg("prepare", "tokenizer", *again) == 0, "it replaces its own files"
    assert vg("lineage", tmp_path / "masked") == 0
    assert "train.jsonl: vg prepare pairs" in capfd.readouterr().out
    (tmp_path / "lm").mkdir()
    (tmp_path / "lm/run.json").write_text('{"format":1,"kind":"matcher"}')
    again[-1] = tmp_path / "lm"
    assert vg("prepare", "tokenizer", *again) == 73
    assert [path.name for path in (tmp_path / "lm").iterdir()] == ["run.json"]


def test_a_model_learns_and_another_continues(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first = tmp_path / "first"
    scratch = ["--shape", "transformer-small", "-t", data / "bpe", "--epochs", 3]
    args = ["finetune", "translation", data / "pairs", *FAST, "-q"]
    assert vg(*args, *scratch, "-o", first) == 0
    printed = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    perplexities = [record["perplexity"] for record in printed]
    assert perplexities == sorted(perplexities, reverse=True)
    assert list(printed[0]) == [
        "seed", "epoch", "step", "lr", "loss", "bleu", "chrf", "perplexity", "headline", "total",
        "best",
    ]  # fmt: skip
    assert len({record["step"] / record["epoch"] for record in printed}) == 1
    info = read_run(first, "finetune")
    assert info["config"]["sacrebleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp")
    assert (info["config"]["shape"], info["config"]["keep"]) == ("transformer-small", "best")
    said = rows(first / "seed-9595/predictions.jsonl")
    assert [row["label"] for row in said] == [b for _, b in pairs(12, 1)]
    # The kept epoch is translated as `vg translate` does.
    (tmp_path / "dev.txt").write_text("".join(a + "\n" for a, _ in pairs(12, 1)))
    model = first / "seed-9595/model"
    out = tmp_path / "dev.out"
    assert vg("translate", model, tmp_path / "dev.txt", "-o", out, "--device", "cpu", "-q") == 0
    assert out.read_text().splitlines() == [row["prediction"] for row in said]
    assert vg("score", "translation", first / "seed-9595/predictions.jsonl") == 0
    scores = json.loads(capfd.readouterr().out)
    assert scores["bleu"] == pytest.approx(info["seeds"]["9595"]["bleu"])
    second = tmp_path / "second"
    assert vg(*args, "-e", model, "--epochs", 1, "-o", second) == 0
    (record,) = (json.loads(line) for line in capfd.readouterr().out.splitlines())
    assert record["perplexity"] < perplexities[-1]
    assert "shape" not in read_run(second, "finetune")["config"]
    compared = ["compare", first, second, "--samples", 100]
    assert vg(*compared) == 0
    found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    difference = found[1]["tasks"]["translation"]["difference"]
    assert difference["p"] is None  # one seed
    assert difference["p_examples"] > 0


@pytest.mark.slow
def test_a_killed_training_ends_as_the_unbroken_one(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = ["--shape", "transformer-small", "-t", data / "bpe", "--epochs", 2, "--limit", 20]
    args = ["finetune", "translation", data / "pairs", *FAST, *shape, "-q", "-o"]
    assert vg(*args, tmp_path / "whole") == 0
    plain = tasks_translation.TranslationLearner.predict
    calls = []

    def dies(*given: Any, **more: Any) -> list[dict[str, Any]]:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return plain(*given, **more)

    monkeypatch.setattr(tasks_translation.TranslationLearner, "predict", dies)
    assert vg(*args, tmp_path / "cut") == 130
    assert vg(*args, tmp_path / "cut") == 0
    for name in ("predictions.jsonl", "model/model.safetensors", "model/tokenizer.json"):
        ends = [tmp_path / run / "seed-9595" / name for run in ("whole", "cut")]
        assert ends[0].read_bytes() == ends[1].read_bytes()
    assert rows(tmp_path / "cut/metrics.jsonl") == rows(tmp_path / "whole/metrics.jsonl")


def test_numbers_of_half_the_bits_translate_too(model: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    args = ["--dtype", "bfloat16", "--limit", 5, "--longer", 2, "--device", "cpu", "-q"]
    assert vg("translate", model, text, "-o", out, *args) == 0
    assert out.read_text().count("\n") == 5


def test_flags_that_do_not_go_together(
    data: Path, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(code: int, task: str, *args: object) -> str:
        where = ["-o", tmp_path / "x", "--device", "cpu", "-q"]
        assert vg("finetune", task, data / "pairs", *args, *where) == code
        return " ".join(capfd.readouterr().err.split())

    bpe = data / "bpe"
    shape = ["--shape", "transformer-small"]
    assert "exactly one of --shape" in fails(2, "translation")
    assert "exactly one of --shape" in fails(2, "translation", "-e", model, *shape, "-t", bpe)
    assert "it is the model's own" in fails(2, "translation", "-e", model, "-t", bpe)
    assert "belongs to --shape" in fails(2, "translation", *shape)
    assert "is for translation" in fails(2, "rte", "-e", model, *shape, "-t", bpe)
    assert "lower --max-length (300) to 256" in fails(
        78, "translation", *shape, "-t", bpe, "--max-length", 300
    )
    save_tokenizer(tmp_path / "bpe")
    text = (tmp_path / "bpe/tokenizer.json").read_text()
    (tmp_path / "bpe/tokenizer.json").write_text(text.replace("<pad>", "<pas>"))
    assert "the tokenizer has no <pad>" in fails(78, "translation", *shape, "-t", tmp_path / "bpe")
    assert "is not a usable translation model" in fails(65, "translation", "-e", "builtin:minilm")


def test_unequal_files_name_both_counts(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = [data / "train.en", data / "dev.de"]
    assert vg("prepare", "pairs", *files) == 65
    assert "has 12 lines, expected 60" in capfd.readouterr().err
    assert vg("prepare", "pairs", "-", "-") == 2
