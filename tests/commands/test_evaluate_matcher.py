"""`vg evaluate-matcher`: records and tables of finished runs; what does not belong is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny import BACKBONE, save_feats, save_run_of
from tests.tiny.lm import exchange_words
from vgtools.cli import run
from vgtools.io.errors import Exit
from vgtools.io.files import dumps
from vgtools.systems.vokenization import vokenize

WORDS = ["bam", "dor", "lis", "gem"]
CONLLU = "1\t{0}\t{0}\tNOUN\t_\t_\t0\troot\t_\t_\n\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Path:
    folder = tmp_path_factory.mktemp("evaluate")
    save_feats(folder / "feats.npy")
    for seed in (0, 1):
        save_run_of(folder / f"run.s{seed}", tiny / "encoder", seed)
    save_run_of(folder / "both", tiny / "encoder", sentence=True)
    rows = [
        {"image": f"image{i:03}", "text": WORDS[i % 4], "split": "train" if i > 7 else "dev"}
        for i in range(12)
    ]
    (folder / "captions.jsonl").write_bytes(b"".join(map(dumps, rows)))
    phrase = {"phrases": [{"start": 0, "end": 3, "type": "scene"}]}
    (folder / "phrases.jsonl").write_bytes(b"".join(dumps(row | phrase) for row in rows))
    (folder / "text.txt").write_text("dor\n\ngem\nlis\n")
    # The captions of the split, then those with phrases, then the text.
    words = [row["text"] for row in rows[:8]] * 2 + ["dor", "gem", "lis"]
    (folder / "parses.conllu").write_text("".join(map(CONLLU.format, words)))
    return folder


@pytest.fixture
def evaluate(place: Path, capfd: pytest.CaptureFixture[str]) -> Any:
    """Run the command on the folder's files; return exit code, stdout and stderr."""

    def call(*args: str | Path, captions: str = "captions.jsonl", runs: Any = ("run.s0",)) -> Any:
        files = [str(place / captions), str(place / "feats.npy"), *(str(place / r) for r in runs)]
        code = run(["evaluate-matcher", *files, "--device", "cpu", *map(str, args)])
        return code, *capfd.readouterr()

    return call


def everything(place: Path) -> list[str]:
    files = {"--parser": "parses.conllu", "--phrases": "phrases.jsonl", "--text": "text.txt"}
    return [part for flag, name in files.items() for part in (flag, str(place / name))]


def test_a_record_per_run(evaluate: Any, place: Path) -> None:
    code, out, err = evaluate("-q", runs=("run.s0", "run.s1"))
    assert (code, err) == (0, "")
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["run"] for record in records] == [str(place / f"run.s{s}") for s in (0, 1)]
    assert [record["images"] for record in records] == [8, 8], "the dev split is the default"
    parts = ["word", "content", "concept", "caption"]
    assert list(records[0]) == [
        *("run", "best_epoch", "images", "chance"), *parts, "blind", "interval", "untrained",
    ]  # fmt: skip
    assert list(records[0]["interval"]) == parts
    assert list(records[0]["untrained"]) == [*parts, "blind", "interval"]
    assert records[0]["interval"] != records[1]["interval"]
    code, out, err = evaluate("--split", "train")
    assert (code, json.loads(out)["images"]) == (0, 4)
    why = "hits; with fewer than 10 it is too narrow: take more photos"
    assert f"{place}/run.s0: an interval is of " in err
    assert why.removeprefix("hits") in err


@pytest.mark.parametrize(("split", "known"), [("train", 2), ("dev", None)])
def test_photos_that_a_run_learned_from_are_noted(
    evaluate: Any, place: Path, tiny: Path, capfd: Any, tmp_path: Path, split: str, known: Any
) -> None:
    run_of = str(tmp_path / "run")
    files = [str(place / "captions.jsonl"), str(place / "feats.npy")]
    args = ["--hold-out", "2", "--epochs", "1", "-e", str(tiny / "encoder"), "--layers", "2"]
    assert run(["train-matcher", *files, *args, "-o", run_of, "--device", "cpu"]) == 0
    capfd.readouterr()
    # The rows are the same in another order, with another key.
    rows = [json.loads(line) for line in (place / "captions.jsonl").read_text().splitlines()]
    (place / "again.jsonl").write_bytes(b"".join(dumps(row | {"id": 1}) for row in rows[::-1]))
    for name in ("captions.jsonl", "again.jsonl"):
        code, out, err = evaluate("--split", split, captions=name, runs=[run_of])
        assert (code, json.loads(out).get("learned_from")) == (0, known)
        assert ("learned from 2 of these 4 photos, so looks better" in err) is (known is not None)


def test_a_run_that_does_not_name_its_photos_is_noted(
    evaluate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = vokenize.open_matcher

    def opened(*args: Any, **kwargs: Any) -> Any:
        made = found(*args, **kwargs)
        return replace(made, info={k: v for k, v in made.info.items() if k != "learned_photos"})

    monkeypatch.setattr(vokenize, "open_matcher", opened)
    code, out, err = evaluate()
    assert (code, "learned_from" in json.loads(out)) == (0, False)
    assert "run.s0: lacks the photos that it learned from" in err


def test_nouns_and_a_text_with_a_parser(evaluate: Any, place: Path) -> None:
    code, out, _ = evaluate(*everything(place), "--lines", "2")
    assert code == 0
    record = json.loads(out)
    assert record["pos"]["NOUN"] == record["word"]["r10"] == 100.0
    assert (record["phrases"]["nouns"], record["phrases"]["chance"]) == (8, 25.0)
    text = record["text"]
    assert (text["tokens"], text["images"], text["nouns"], text["chance"]) == (2, 4, 2, 25.0)


def test_the_table_has_a_row_for_the_seeds_of_a_recipe(evaluate: Any, place: Path) -> None:
    code, out, _ = evaluate("--table", *everything(place), runs=("run.s0", "run.s1"))
    assert code == 0
    tables = out.split("| Recipe (seeds) |")
    assert len(tables) == 4
    assert tables[1].startswith(" Words R@1/5/10 | Content words | Caption | Concept hit |")
    strict = "without the own photo 14.29 (8 annotated nouns).\n"
    chance = "8 photos; chance: R@10 100.0, concept hit 25.0 (one photo for all nouns 25.0)"
    assert f"\n{chance}, {strict}" in tables[1]
    assert "3 nouns, chance 25.0, best single voken for all of them 33.33.\n" in tables[3]
    _, out, _ = evaluate(*everything(place), runs=("run.s0", "run.s1"))
    found = [json.loads(line)["phrases"] for line in out.splitlines()]
    low, high = np.mean([record["interval"]["others"] for record in found], axis=0)
    assert f" ({low:.1f} to {high:.1f}) |\n" in tables[1]
    assert all(f"| {place / 'run'} (2) | " in table for table in tables[1:])


def test_a_record_per_weight_of_the_sentence(evaluate: Any, place: Path) -> None:
    weights = ("--context", "1", "--context", "0")
    code, out, _ = evaluate(*weights, *everything(place), runs=("both",))
    assert code == 0
    one, none = (json.loads(line) for line in out.splitlines())
    assert (one.pop("context_weight"), none["context_weight"]) == (1.0, 0.0)
    _, out, _ = evaluate(*everything(place), runs=("both",))
    assert json.loads(out) == one, "1 is the run's own weight"
    assert none["interval"] != one["interval"]
    _, out, _ = evaluate(*weights, "--table", runs=("both",))
    assert [f"| {place / 'both'}, context {w} (1) |" in out for w in (1, 0)] == [True, True]
    code, _, err = evaluate("--context", "0.5")
    assert (code, "run.s0: has no sentence term" in err) == (Exit.CONFIG, True)


def test_a_matcher_of_sentences_has_no_figures_of_words_in_a_text(
    evaluate: Any, place: Path, tiny: Path
) -> None:
    save_run_of(place / "whole", tiny / "encoder", level="sentence")
    code, out, _ = evaluate(*everything(place), runs=("whole",))
    assert code == 0
    assert {"text", "word", "phrases"}.isdisjoint(json.loads(out))
    code, out, _ = evaluate(*everything(place), "--table", runs=("run.s0", "whole"))
    assert code == 0
    assert f"| {place / 'whole'} (1) |" in out


def test_a_matcher_is_measured_with_its_own_tokenizer(
    evaluate: Any, place: Path, tiny: Path
) -> None:
    shutil.copytree(tiny / "encoder", place / "encoder")
    exchange_words(place / "encoder", "bam", "dor")
    save_run_of(place / "other", place / "encoder")
    alone, together = (
        json.loads(evaluate(*everything(place), runs=runs)[1].splitlines()[-1])
        for runs in (("other",), ("run.s0", "other"))
    )
    first = json.loads(evaluate(*everything(place))[1].splitlines()[-1])
    assert alone == together
    assert {**alone, "run": ""} != {**first, "run": ""}


def test_captions_without_a_split(evaluate: Any, place: Path) -> None:
    rows = (place / "captions.jsonl").read_text().splitlines()
    bare = "".join(json.dumps({**json.loads(row), "split": None}) + "\n" for row in rows)
    (place / "bare.jsonl").write_text(bare)
    code, out, _ = evaluate(captions="bare.jsonl")
    assert (code, json.loads(out)["images"]) == (0, 12), "a file without splits counts whole"
    (place / "mixed.jsonl").write_text("\n".join(rows + bare.splitlines()[-1:]))
    code, out, err = evaluate(captions="mixed.jsonl")
    assert (code, json.loads(out)["images"]) == (0, 8)
    assert "evaluate-matcher: 1 caption without a split left out, others have one" in err


def test_captions_that_are_cut_or_left_out_are_counted(evaluate: Any, place: Path) -> None:
    rows = [json.loads(line) for line in (place / "captions.jsonl").read_text().splitlines()]
    rows[0]["text"] = " "
    rows[1]["text"] = "dor " * 999
    (place / "long.jsonl").write_bytes(b"".join(map(dumps, rows)))
    code, _, err = evaluate(captions="long.jsonl")
    assert code == 0
    assert "evaluate-matcher: 1 caption without a token left out, 1 cut to " in err
    assert "cut to" not in evaluate()[2]


def test_what_does_not_belong_together_is_refused(
    evaluate: Any, place: Path, tmp_path: Path, tiny: Path
) -> None:
    code, _, err = evaluate("--phrases", "p.jsonl")
    assert code == Exit.USAGE
    assert "--phrases and --text need one, which finds the nouns" in err
    code, _, err = evaluate("--parser", "-", "--phrases", "-")
    assert (code, "can come from a pipe" in err) == (Exit.USAGE, True)
    code, _, err = evaluate("--split", "test")
    assert code == Exit.DATA
    said = "there are no captions to evaluate on; --split names their split"
    assert f"{place / 'captions.jsonl'}: {said}" in err
    other = save_feats(tmp_path / "other.npy", backbone=BACKBONE | {"fingerprint": "c" * 64})
    args = [place / "captions.jsonl", other, tiny / "run", "--device", "cpu"]
    assert run(["evaluate-matcher", *map(str, args)]) == Exit.DATA
