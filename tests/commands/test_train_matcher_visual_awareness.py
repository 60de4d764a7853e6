"""`vg train-matcher visual-awareness` as its users run it: results, resume, bad input, uses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Runner, vg_command
from tests.tiny import BACKBONE, save_encoder, save_feats
from tests.tiny.retriever import save_captions, save_grid, save_skip_thoughts
from tests.tiny.runs import hashes, records
from vgtools.cli import run
from vgtools.io.errors import Exit
from vgtools.io.files import dumps, write_manifest
from vgtools.models.runs import save_run
from vgtools.systems.visual_awareness import training
from vgtools.systems.visual_awareness.retrieve import open_retriever
from vgtools.training import session

FAST = (
    *("--epochs", "2", "--batch-size", "6", "--dim", "6", "--layers", "2", "--regions", "3"),
    *("--device", "cpu", "-q"),
)
Train = Callable[..., int]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("retriever")
    save_encoder(folder / "encoder")
    save_grid(folder / "grid.npy")
    save_feats(folder / "feats.npy")
    save_captions(folder / "captions.jsonl")
    save_skip_thoughts(folder / "skip")
    return folder


@pytest.fixture
def train(place: Path) -> Train:
    def call(
        output: Path,
        *more: str | Path,
        words: str = "skip",
        captions: str = "captions.jsonl",
        feats: str = "grid.npy",
    ) -> int:
        files = [place / captions, place / feats, "--words", place / words, "-o", output]
        args = ["train-matcher", "visual-awareness", *files, *FAST, *more]
        return run([str(arg) for arg in args])

    return call


# ------------------------------------------------------------------------------------------ results


def test_a_record_an_epoch_with_recall_both_ways(
    train: Train, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path / "run", "--valid-split", "dev") == 0
    printed = capfd.readouterr()
    assert [json.loads(line) for line in printed.out.splitlines()] == records(tmp_path / "run")
    found = records(tmp_path / "run")
    assert [record["epoch"] for record in found] == [1, 2]
    assert found[-1]["step"] == 6, "16 captions in 3 batches"
    valid = found[0]["valid"]
    assert (valid["images"], valid["texts"]) == (4, 8)
    assert valid["text_to_image"]["r5"] == 100
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (info["kind"], info["retriever"]["text_width"]) == ("retriever", 5)
    assert info["best"]["best"]
    names = sorted(str(p.relative_to(tmp_path / "run")) for p in (tmp_path / "run").rglob("*.*"))
    assert names == [
        "metrics.jsonl",
        "retriever.safetensors",
        "run.json",
        "words/table.ids",
        "words/table.json",
        "words/table.npy",
    ]


@pytest.mark.parametrize("text", ["sru", "encoder"])
def test_an_encoder_gives_word_pieces_or_states(train: Train, tmp_path: Path, text: str) -> None:
    assert train(tmp_path / "run", "--text", text, words="encoder") == 0
    shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    opened = open_retriever(tmp_path / "elsewhere")
    assert opened.retriever.config.text == text
    assert opened.reader.width == (16 if text == "sru" else 32)


def test_the_paper_s_recipe(train: Train, tmp_path: Path) -> None:
    assert train(tmp_path / "run", "--preset", "paper", "--epochs", "3") == 0
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    expected = {
        "loss": "triplet",
        "margin": 0.2,
        "schedule": "halving",
        "lr": 1e-3,
        "clip": 0.0,
        "dropout": 0.5,
        "text_dropout": 0.25,
        "text_from": 2,
        "warm_epochs": 0,
    }
    assert expected.items() <= config.items()
    assert (config["dim"], config["epochs"], config["regions"]) == (6, 3, 3), "flags come first"
    assert [record["lr"] for record in records(tmp_path / "run")] == [1e-3, 1e-3, 5e-4]


def test_the_defaults_are_those_of_the_retriever() -> None:
    from dataclasses import asdict

    from vgtools.commands.train_matcher.visual_awareness import RetrieverRecipe
    from vgtools.io.settings import configured
    from vgtools.systems.visual_awareness.recipe import RetrieverConfig

    values = asdict(RetrieverRecipe())
    assert configured(RetrieverConfig, values, text_width=8, image_width=4) == RetrieverConfig(8, 4)


def test_the_same_command_again_does_nothing_and_another_seed_is_another_run(
    train: Train, tmp_path: Path
) -> None:
    assert train(tmp_path / "a") == train(tmp_path / "b") == 0
    assert hashes(tmp_path / "a") == hashes(tmp_path / "b")
    before = (tmp_path / "a" / "run.json").read_bytes()
    assert train(tmp_path / "a") == 0
    assert (tmp_path / "a" / "run.json").read_bytes() == before
    assert train(tmp_path / "a", "--seed", "1") == Exit.CONFIG
    assert train(tmp_path / "a", "--seed", "1", "--restart") == 0
    assert hashes(tmp_path / "a") != hashes(tmp_path / "b")


@pytest.mark.parametrize("name", ["table.npy", "table.ids", "table.json"])
def test_a_damaged_table_of_words_is_made_again_with_restart(
    train: Train, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    assert train(tmp_path / "run") == 0
    before = hashes(tmp_path / "run")
    file = tmp_path / "run" / "words" / name
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    capfd.readouterr()
    assert train(tmp_path / "run") == Exit.DATA
    assert "--restart" in capfd.readouterr().err
    assert train(tmp_path / "run", "--restart") == Exit.CANNOT_CREATE
    file.unlink()
    assert train(tmp_path / "run", "--restart") == 0
    assert hashes(tmp_path / "run") == before


@pytest.mark.parametrize("name", ["table.npy", "table.ids"])
def test_a_table_of_words_that_somebody_changed_in_an_unfinished_run_is_not_replaced(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert train(tmp_path / "whole") == 0

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(session, "save_run", interrupted)
        assert train(tmp_path / "run") == Exit.INTERRUPTED
    words = tmp_path / "run" / "words"
    manifest = (words / "table.json").read_bytes()
    file = words / name
    whole = file.read_bytes()
    changed = whole[:-1] + b"?"
    file.write_bytes(changed)
    for more in ([], ["--restart"]):
        assert train(tmp_path / "run", *more) == Exit.CANNOT_CREATE
        assert file.read_bytes() == changed
    file.write_bytes(whole)
    (words / "table.json").unlink()
    for more in ([], ["--restart"]):
        assert train(tmp_path / "run", *more) == Exit.CANNOT_CREATE
        assert file.read_bytes() == whole
    (words / "table.json").write_bytes(manifest)
    file.unlink()
    assert train(tmp_path / "run") == 0
    assert hashes(tmp_path / "run") == hashes(tmp_path / "whole")


# ------------------------------------------------------------------------------------- the way on


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_an_index_and_the_images_of_texts(train: Train, place: Path, tmp_path: Path) -> None:
    assert train(tmp_path / "run") == 0
    index = str(tmp_path / "g.faiss")
    build = ["build-index", place / "grid.npy", "--matcher", tmp_path / "run", "-o", index, "-q"]
    assert run([*map(str, build), "--emb", str(tmp_path / "images.npy")]) == 0
    text = place / "captions.jsonl"
    search = ["retrieve", text, "--index", index, "--device", "cpu", "-q"]
    rows = [*map(str, search), "-k", "3", "-o", str(tmp_path / "r.jsonl")]
    assert run([*rows, "--emb", str(tmp_path / "texts.npy")]) == 0
    images, texts = np.load(tmp_path / "images.npy"), np.load(tmp_path / "texts.npy")
    assert (images.shape, texts.shape) == ((12, 6), (24, 6))
    scores = texts.astype(np.float64) @ images.T
    for row, score in zip(rows_of(tmp_path / "r.jsonl"), scores, strict=True):
        order = np.argsort(-score, kind="stable")[:3]
        assert row["images"] == order.tolist()
        assert row["scores"] == pytest.approx(score[order].tolist(), abs=1e-4)
    more = [*map(str, search), "--score", "--folds", "3", "-o", str(tmp_path / "s.jsonl")]
    assert run(more) == 0
    (record,) = rows_of(tmp_path / "s.jsonl")
    own = np.repeat(np.arange(12), 2)
    assert record["text_to_image"]["r1"] == pytest.approx(
        100 * np.mean(scores.argmax(1) == own), abs=0.01
    )
    parts = []
    for fold in range(3):
        inside = slice(8 * fold, 8 * fold + 8), slice(4 * fold, 4 * fold + 4)
        parts.append(np.mean(scores[inside].argmax(1) == own[:8]))
    assert record["folds"]["text_to_image"]["r1"] == pytest.approx(100 * np.mean(parts), abs=0.01)
    assert (record["folds"]["count"], record["folds"]["images"]) == (3, 4)


def test_features_of_the_wrong_form_name_the_command_that_makes_the_right_ones(
    train: Train, place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path / "a", feats="feats.npy") == Exit.DATA
    assert "expected feature maps (N, P, D), got pooled features (60, 12)" in capfd.readouterr().err
    assert train(tmp_path / "b", "--regions", "10") == Exit.DATA
    assert "P >= 10 positions, got (12, 9, 12)" in capfd.readouterr().err
    args = ["train-matcher", place / "captions.jsonl", place / "grid.npy", "-o", tmp_path / "c"]
    assert run([str(arg) for arg in args]) == Exit.DATA
    assert "expected pooled features (N, D), got feature maps" in capfd.readouterr().err
    assert train(tmp_path / "run") == 0
    capfd.readouterr()
    index = ["build-index", place / "feats.npy", "-m", tmp_path / "run", "-o", tmp_path / "x.faiss"]
    assert run([str(arg) for arg in index]) == Exit.DATA
    assert "--pooling none -o X.npy" in capfd.readouterr().err


def test_a_run_of_another_command_embeds_nothing(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    save_run(tmp_path / "lm", "voken_lm", {}, {})
    args = ["build-index", place / "grid.npy", "-m", tmp_path / "lm", "-o", tmp_path / "x.faiss"]
    assert run([str(arg) for arg in args]) == Exit.DATA
    expected = "expected a run of vg train-matcher (matcher, retriever), got one of kind 'voken_lm'"
    assert expected in capfd.readouterr().err


def test_texts_have_their_own_embeddings_and_empty_ones_none(
    train: Train, place: Path, tmp_path: Path
) -> None:
    assert train(tmp_path / "run") == 0
    index = tmp_path / "g.faiss"
    build = ["build-index", place / "grid.npy", "-m", tmp_path / "run", "-o", index, "-q"]
    assert run([str(arg) for arg in build]) == 0
    (tmp_path / "t.txt").write_text("dog\n\nyeti\na red dog\n")
    more = ["-k", "2", "-o", tmp_path / "r.jsonl", "--emb", tmp_path / "e.npy", "-q"]
    search = ["retrieve", tmp_path / "t.txt", "--index", index, "--device", "cpu", *more]
    assert run([str(arg) for arg in search]) == 0
    rows = rows_of(tmp_path / "r.jsonl")
    assert [len(row["images"]) for row in rows] == [2, 0, 0, 2], "an unknown word asks for nothing"
    found = np.load(tmp_path / "e.npy")
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), [1, 0, 0, 1], rtol=1e-6)


# ---------------------------------------------------------------------------------------- bad input


def test_captions_without_a_known_word_are_left_out_and_counted(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(place / "captions.jsonl")
    rows += [{"image": "image001", "text": "yeti", "split": "train"}]
    rows += [{"image": "image002", "text": "dog yeti", "split": "train"}]
    (tmp_path / "c.jsonl").write_bytes(b"".join(map(dumps, rows)))
    files = [tmp_path / "c.jsonl", place / "grid.npy", "--words", place / "skip"]
    args = ["train-matcher", "visual-awareness", *files, "-o", tmp_path / "run", *FAST[:-1]]
    assert run([str(arg) for arg in args]) == 0
    assert "train: 2 words without a vector, 1 caption left out, 0 cut" in capfd.readouterr().err


def test_maps_with_nan_and_captions_of_one_photo_are_refused(
    train: Train, place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    maps = np.load(place / "grid.npy")
    maps[3, 4, 0] = np.nan
    grid = save_grid(tmp_path / "nan.npy")
    np.save(grid, maps)
    facts = {"backbone": BACKBONE, "grid": [3, 3], "pooling": "none"}
    write_manifest(grid, [grid, grid.with_suffix(".ids")], kind="image-grid", **facts)
    assert train(tmp_path / "a", feats=str(grid)) == Exit.DATA
    assert "row 3 (image003) is NaN, infinite or all zero" in capfd.readouterr().err
    one = tmp_path / "one.jsonl"
    one.write_text('{"image": "image000", "text": "dog"}\n{"image": "image000", "text": "cat"}\n')
    assert train(tmp_path / "b", captions=str(one)) == Exit.DATA
    assert "captions of 1 image " in capfd.readouterr().err


def test_words_of_another_language_are_refused(
    train: Train, place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [{"image": f"image{i:03}", "text": "ein Hund"} for i in range(3)]
    (place / "german.jsonl").write_bytes(b"".join(map(dumps, rows)))
    assert train(tmp_path / "run", captions="german.jsonl") == Exit.DATA
    assert "knows no word of the first 3 captions" in capfd.readouterr().err


def test_states_need_an_encoder(
    train: Train, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path / "run", "--text", "encoder") == Exit.USAGE
    assert "reads the states of an encoder" in capfd.readouterr().err


# ------------------------------------------------------------------------------------- kill, resume


def test_a_signal_makes_a_checkpoint_and_the_same_command_ends_the_same(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ["--preset", "paper", "--epochs", "4", "--valid-split", "dev"]
    assert train(tmp_path / "whole", *more) == 0
    collate, calls = training.collate, [0]

    def interrupted(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == 8:  # while the second batch of the third epoch is made
            os.kill(os.getpid(), signal.SIGTERM)
        return collate(*args)

    monkeypatch.setattr(training, "collate", interrupted)
    assert train(tmp_path / "cut", *more) == Exit.STOPPED
    assert train(tmp_path / "cut", *more) == 0
    assert hashes(tmp_path / "cut") == hashes(tmp_path / "whole")
    assert all("triplet" in record for record in records(tmp_path / "cut"))


@pytest.mark.slow
def test_killed_anywhere_the_same_command_ends_with_the_same_weights(
    train: Train, place: Path, tmp_path: Path, vg: Runner
) -> None:
    """kill -9 after a checkpoint in mid-training, then the same command."""
    more = ["--epochs", "12", "--lr", "0.01", "--valid-split", "dev"]
    assert train(tmp_path / "whole", *more) == 0
    files = [place / "captions.jsonl", place / "grid.npy", "--words", place / "skip"]
    args = ["train-matcher", "visual-awareness", *files, "-o", tmp_path / "cut", *FAST, *more]
    process = subprocess.Popen(vg_command(*args), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    checkpoint = tmp_path / "cut" / "checkpoint.safetensors"
    while not checkpoint.exists() and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = vg(*args)
    assert (done.returncode, done.stderr) == (0, b"")
    cut, whole = hashes(tmp_path / "cut"), hashes(tmp_path / "whole")
    manifest = "words/table.json"  # has the command line, here that of another process
    assert cut.pop(manifest) != whole.pop(manifest)
    assert cut == whole
