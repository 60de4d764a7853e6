"""`vg train-matcher` as a process: results, resume, kills, bad input."""

from __future__ import annotations

import hashlib
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
import torch

from tests.conftest import Runner, vg_command
from tests.precision import rounding
from tests.tiny import IMAGE, save_encoder, save_feats
from tests.tiny.lm import exchange_words
from tests.tiny.retriever import save_grid
from vgtools.cli import run
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import dumps, write_manifest
from vgtools.io.process import Lock
from vgtools.systems.vokenization import matcher_training

WORDS = [
    "dog",
    "cat",
    "man",
    "woman",
    "red",
    "ball",
    "runs",
    "sits",
    "blue",
    "house",
    "tree",
    "car",
]
FAST = (
    "--epochs",
    "2",
    "--batch-size",
    "8",
    "--hidden",
    "8",
    "--dim",
    "4",
    "--layers",
    "2",
    "--device",
    "cpu",
    "-q",
)


def save_captions(path: Path, images: int = 12, each: int = 2, split: bool = False) -> Path:
    rng = np.random.default_rng(1)
    rows = [
        {"image": f"image{i:03}", "text": "a " + " ".join(rng.choice(WORDS, 2))}
        | ({"split": "dev" if i < 4 else "train"} if split else {})
        for i in range(images)
        for _ in range(each)
    ]
    path.write_bytes(b"".join(map(dumps, rows)))
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("matcher")
    save_encoder(folder / "encoder")
    save_feats(folder / "feats.npy")
    save_captions(folder / "captions.jsonl")
    save_captions(folder / "split.jsonl", split=True)
    return folder


@pytest.fixture
def main(
    place: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., tuple[int, list[dict[str, Any]], str]]:
    """Run the command in this process; return exit code, records, stderr."""

    def call(
        *args: str | Path, captions: str | Path = "captions.jsonl", feats: str | Path = "feats.npy"
    ) -> Any:
        code = run(
            [
                "train-matcher",
                str(place / captions),
                str(place / feats),
                "-e",
                str(place / "encoder"),
                *FAST,
                *map(str, args),
            ]
        )
        out, err = capfdbinary.readouterr()
        return code, [json.loads(line) for line in out.splitlines()], err.decode()

    return call


def weights(run: Path) -> str:
    return hashlib.sha256((run / "matcher.safetensors").read_bytes()).hexdigest()


# ------------------------------------------------------------------------------------------ results


@pytest.mark.parametrize("system", [[], ["visual-awareness"]])
def test_a_split_to_validate_on_that_no_row_has_is_refused(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], system: list[str]
) -> None:
    feats = save_grid(place / "grid.npy") if system else place / "feats.npy"
    for captions, split in (("captions.jsonl", "dev"), ("split.jsonl", "val")):
        args = [place / captions, feats, "--valid-split", split]
        given = ["train-matcher", *system, *args, "-o", tmp_path / "run", "--device", "cpu"]
        given += ["--regions", "3"] if system else []
        assert run(list(map(str, given))) == Exit.DATA
        error = capfd.readouterr().err
        assert f"{captions}: no row has the \"split\" '{split}' that --valid-split names" in error


def test_a_record_an_epoch_with_recall_and_chance_beside_it(main: Any, tmp_path: Path) -> None:
    code, records, err = main("--hold-out", "5", "-o", tmp_path / "run")
    assert (code, err) == (0, "")
    assert [r["epoch"] for r in records] == [1, 2]
    assert records[-1]["step"] == 4  # 14 captions, 2 batches
    valid = records[0]["valid"]
    assert valid["images"] == 5
    assert valid["chance"] == {"r1": 20.0, "r5": 100.0, "r10": 100.0}
    assert sorted(valid) == ["caption", "chance", "concept", "content", "images", "word"]
    assert [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ] == records
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert info["matcher"]["image_width"] == IMAGE
    assert info["backbone"]["ref"] == "tiny"
    assert info["config"]["seed"] == 0
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "encoder",
        "matcher.safetensors",
        "metrics.jsonl",
        "run.json",
    ]
    assert not (tmp_path / "run.lock").exists()


def test_a_language_decides_stems_wherever_the_run_is_used(
    main: Any, tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any
) -> None:
    from vgtools.systems.vokenization import vokenize

    (tmp_path / "stop.txt").write_text("a\n")
    stems = {"es": {"runs", "sits", "blu", "tre"}, "en": {"run", "sit", "blue", "tree"}}
    for language, other in (("es", "en"), ("en", "es")):
        words = ("--stop-words", tmp_path / "stop.txt", "--language", language)
        code, *_ = main(
            "--valid-split", "dev", *words, "-o", tmp_path / language, captions="split.jsonl"
        )
        assert code == 0
        info = json.loads((tmp_path / language / "run.json").read_bytes())
        assert stems[language] & info["calibration"]["stems"].keys()
        assert not stems[other] & info["calibration"]["stems"].keys()
        assert info["config"].get("language") == (language if language == "es" else None)
    assert main("--language", "xx", "-o", tmp_path / "xx")[0] == Exit.USAGE

    files = [str(place / "split.jsonl"), str(place / "feats.npy")]
    both = [str(tmp_path / "es"), str(tmp_path / "en")]
    assert run(["evaluate-matcher", *files, *both]) == Exit.USAGE
    assert "learned words of different languages: en, es" in capfdbinary.readouterr().err.decode()
    listed = "a dog cat man woman red ball runs"
    monkeypatch.setattr(
        "stop_words.get_stop_words", lambda name: listed.split() * (name == "spanish")
    )
    found = []
    for name in both:
        call = ["evaluate-matcher", *files, name, "--split", "train", "--device", "cpu", "-q"]
        assert run(call) == 0
        found.append(json.loads(capfdbinary.readouterr().out))
    content = [record["interval"]["content"] for record in found]
    assert content[0] != content[1], "others are content words"

    asked = []
    real = vokenize.word_stems
    monkeypatch.setattr(vokenize, "word_stems", lambda *args: asked.append(args[2]) or real(*args))
    matcher = [
        "--matcher",
        str(tmp_path / "es"),
        "-o",
        str(tmp_path / "vg.faiss"),
        "--device",
        "cpu",
    ]
    assert run(["build-index", files[1], *matcher, "-q"]) == 0
    (tmp_path / "t.txt").write_text("dog sits\n")
    index = ["--index", str(tmp_path / "vg.faiss"), "--device", "cpu", "-q"]
    assert run(["vokenize", str(tmp_path / "t.txt"), *index]) == 0
    assert asked == ["es"]


def test_permuted_images_leave_a_record_of_their_own_pairs(main: Any, tmp_path: Path) -> None:
    flags = ("--hold-out", "5", "--epochs", "3", "--permute-images", "2")
    code, records, _ = main(*flags, "-o", tmp_path / "run")
    assert code == 0
    assert {record["learned"]["images"] for record in records} == {7}
    assert {record["learned"]["captions"] for record in records} == {14}
    assert all(1 <= record["valid"]["used"] <= 5 for record in records)
    info = json.loads((tmp_path / "run/run.json").read_text())
    assert info["config"]["permute_images"] == 2
    assert main(*flags[2:], "-o", tmp_path / "other")[0] == 0
    plain = main("--epochs", "3", "-o", tmp_path / "plain")
    assert "learned" not in plain[1][0]
    assert weights(tmp_path / "plain") != weights(tmp_path / "other")


def test_each_epoch_has_its_mean_losses_wherever_its_last_step_falls(
    main: Any, tmp_path: Path
) -> None:
    flags = ("--epochs", "5", "--batch-size", "2", "-o", tmp_path / "run")
    code, records, _ = main(*flags)
    assert code == 0
    assert [record["step"] for record in records] == [12, 24, 36, 48, 60]
    assert all(record["info_nce"] > 0 for record in records)


def test_the_same_command_again_prints_the_same_and_does_nothing(main: Any, tmp_path: Path) -> None:
    first = main("-o", tmp_path / "run")
    before = (tmp_path / "run" / "run.json").stat().st_mtime_ns
    assert main("-o", tmp_path / "run") == first
    assert (tmp_path / "run" / "run.json").stat().st_mtime_ns == before


def test_same_seed_same_bytes_other_seed_other_bytes(main: Any, tmp_path: Path) -> None:
    for name, more in {"a": (), "b": (), "c": ("--seed", "1")}.items():
        assert main(*more, "-o", tmp_path / name)[0] == 0
    assert weights(tmp_path / "a") == weights(tmp_path / "b") != weights(tmp_path / "c")


def test_hidden_states_kept_or_computed_again_give_the_same_losses(
    main: Any, tmp_path: Path
) -> None:
    kept, again = (main("--cache-gb", size, "-o", tmp_path / size)[1] for size in ("4", "0"))
    # Where a library sums in another order for another number of rows, the last bit of the float16
    # states differs.
    order = rounding(torch.float16, 2)
    assert [r["loss"] for r in again] == pytest.approx([r["loss"] for r in kept], rel=order)


def test_hidden_states_in_files_serve_every_matcher_of_the_same_captions(
    main: Any, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main("-o", tmp_path / "plain")[0] == 0
    cache = ("--cache", tmp_path / "cache")
    assert main(*cache, "-o", tmp_path / "first")[0] == 0
    made = sorted(tmp_path.glob("cache/*"))
    assert [path.name[16:] for path in made] == [".first.npy", ".json", ".means.npy", ".npy"]

    def computed(*_: object) -> None:
        raise AssertionError("a kept state is computed again")

    with monkeypatch.context() as patch:
        patch.setattr(matcher_training.HiddenStates, "_compute", computed)
        assert main(*cache, "-o", tmp_path / "second")[0] == 0
        assert main(*cache, "--seed", "1", "-o", tmp_path / "other")[0] == 0
    assert (
        weights(tmp_path / "plain") == weights(tmp_path / "first") == weights(tmp_path / "second")
    )
    assert weights(tmp_path / "other") != weights(tmp_path / "plain")
    assert main(*cache, "--layers", "1", "-o", tmp_path / "fewer")[0] == 0
    assert len(list(tmp_path.glob("cache/*"))) == 8
    config = place / "encoder" / "config.json"
    kept = config.read_text()
    try:
        config.write_text(json.dumps(json.loads(kept) | {"hidden_act": "relu"}))
        assert main(*cache, "-o", tmp_path / "settings")[0] == 0
    finally:
        config.write_text(kept)
    assert len(list(tmp_path.glob("cache/*"))) == 12, "another config.json has other states"
    body = bytearray(made[3].read_bytes())
    body[-1] ^= 1
    made[3].write_bytes(body)
    code, _, err = main(*cache, "-o", tmp_path / "damaged")
    assert (code, made[3].name in err) == (Exit.CANNOT_CREATE, True)


def test_a_training_notices_another_tokenizer(main: Any, place: Path, tmp_path: Path) -> None:
    assert main("-o", tmp_path / "run")[0] == 0
    file = place / "encoder" / "tokenizer.json"
    kept = file.read_bytes()
    try:
        exchange_words(place / "encoder", "bam", "den")
        code, _, err = main("-o", tmp_path / "run")
    finally:
        file.write_bytes(kept)
    assert (code, "encoder was" in err) == (Exit.CONFIG, True), err
    assert main("-o", tmp_path / "run")[0] == 0


def test_bfloat16_is_near_float32(main: Any, tmp_path: Path) -> None:
    exact, near = (
        main("--dtype", dtype, "-o", tmp_path / dtype)[1] for dtype in ("float32", "bfloat16")
    )
    losses = ([record["loss"] for record in records] for records in (near, exact))
    assert next(losses) == pytest.approx(next(losses), rel=2e-2)
    assert weights(tmp_path / "float32") != weights(tmp_path / "bfloat16")
    configs = [
        json.loads((tmp_path / x / "run.json").read_text())["config"]
        for x in ("float32", "bfloat16")
    ]
    assert ["dtype" in config for config in configs] == [False, True]


@pytest.mark.slow
@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="the promise is about MKL")
def test_hidden_states_kept_or_computed_again_give_the_same_bytes_with_reproducible_kernels(
    place: Path, tmp_path: Path, vg: Runner
) -> None:
    env = os.environ | {"MKL_CBWR": "AUTO,STRICT"}
    for size in ("4", "0"):
        args = [
            "train-matcher",
            place / "captions.jsonl",
            place / "feats.npy",
            "-e",
            place / "encoder",
            *FAST,
        ]
        vg(*args, "--cache-gb", size, "-o", tmp_path / size, env=env, check=True)
    assert weights(tmp_path / "4") == weights(tmp_path / "0")


def test_the_paper_s_recipe_and_the_sentence_level(main: Any, tmp_path: Path) -> None:
    assert main("--preset", "paper", "-o", tmp_path / "paper")[0] == 0
    config = json.loads((tmp_path / "paper" / "run.json").read_text())["config"]
    wanted = {
        "loss": "hinge",
        "margin": 0.5,
        "sentence": False,
        "root": False,
        "stop_share": 1.0,
        "lr": 1e-3,
        "dropout": 0.3,
    }
    assert wanted.items() <= config.items()
    assert "share" not in config, "the hinge has none"
    assert (config["hidden"], config["dim"], config["epochs"]) == (8, 4, 2), (
        "flags override a preset"
    )
    code, records, _ = main("--level", "sentence", "--hold-out", "3", "-o", tmp_path / "sentence")
    assert code == 0
    assert sorted(records[0]["valid"]) == ["caption", "chance", "images"]


@pytest.mark.parametrize(("keep", "epoch"), [("best", 1), ("last", 3)])
def test_the_last_epoch_is_kept_where_asked_for(
    main: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: str, epoch: int
) -> None:
    falling = iter([3.0, 2.0, 1.0])
    module = "vgtools.systems.vokenization.matcher_training"
    monkeypatch.setattr(f"{module}.score", lambda measured: next(falling))
    flags = ("--hold-out", "4", "--epochs", "3", "--keep", keep)
    assert main(*flags, "-o", tmp_path / "run")[0] == 0
    assert json.loads((tmp_path / "run/run.json").read_text())["best"]["epoch"] == epoch


def test_the_recipe_for_running_text_is_calibrated_where_validated(
    main: Any, tmp_path: Path
) -> None:
    code, records, _ = main("--preset", "text", "--hold-out", "4", "-o", tmp_path / "run")
    assert code == 0
    assert {"info_nce", "word"} <= records[0].keys()
    info = json.loads((tmp_path / "run/run.json").read_text())
    wanted = {"share": 0.65, "word_loss": 0.5, "rarity": 1.5, "keep": "last", "epochs": 2}
    assert wanted.items() <= info["config"].items(), "flags override a preset, here 12 epochs"
    assert set(info["calibration"]) == {"relevance", "captions", "bias", "stems"}
    assert info["calibration"]["relevance"] >= 0
    assert set(info["calibration"]["stems"]) <= {
        *WORDS, "run", "sit", "hous", "on", "a", "b",
    }  # fmt: skip
    code, records, _ = main("-o", tmp_path / "whole")
    assert code == 0
    assert "word" not in records[0]
    assert "calibration" not in json.loads((tmp_path / "whole/run.json").read_text())


def test_the_default_recipe_is_that_of_the_matcher() -> None:
    from dataclasses import asdict

    from vgtools.commands.train_matcher.vokenization import MatcherRecipe
    from vgtools.io.settings import configured
    from vgtools.systems.vokenization.recipe import MatcherConfig

    values = asdict(MatcherRecipe())
    assert configured(MatcherConfig, values, text_width=8, image_width=4) == MatcherConfig(8, 4)


def test_several_processes_are_refused(place: Path, tmp_path: Path, vg: Runner) -> None:
    args = ["train-matcher", place / "captions.jsonl", place / "feats.npy", "-e", place / "encoder"]
    done = vg(*args, "-o", tmp_path / "run", env=os.environ | {"WORLD_SIZE": "2", "RANK": "0"})
    assert done.returncode == Exit.USAGE
    assert b"train-matcher is single-process" in done.stderr


def test_splits_and_a_file_choose_what_validates(main: Any, tmp_path: Path, place: Path) -> None:
    code, records, _ = main("--valid-split", "dev", "-o", tmp_path / "a", captions="split.jsonl")
    assert (code, records[0]["valid"]["images"], records[0]["step"]) == (0, 4, 2)  # 16 captions
    save_captions(place / "valid.jsonl", 15, 1)
    rows = (place / "valid.jsonl").read_text().splitlines(keepends=True)[12:]
    (place / "valid.jsonl").write_text("".join(rows))
    code, records, _ = main("--valid", place / "valid.jsonl", "-o", tmp_path / "b")
    assert (code, records[0]["valid"]["images"], records[0]["step"]) == (0, 3, 3)


def test_captions_without_a_split_are_left_out_where_others_have_one(
    place: Path, tmp_path: Path, capfd: Any
) -> None:
    text = (place / "split.jsonl").read_text() + '{"image": "image020", "text": "dog"}\n'
    (tmp_path / "c.jsonl").write_text(text)
    flags = [f for f in FAST if f != "-q"]
    files = [
        str(tmp_path / "c.jsonl"),
        str(place / "feats.npy"),
        "-e",
        str(place / "encoder"),
        "-o",
        str(tmp_path / "run"),
    ]
    code = run(["train-matcher", *files, *flags])
    out, err = capfd.readouterr()
    assert code == 0
    assert "1 caption without a split left out" in err
    assert json.loads(out.splitlines()[-1])["step"] == 4


def test_the_run_opens_as_a_matcher(main: Any, tmp_path: Path) -> None:
    from vgtools.systems.vokenization.vokenize import open_matcher

    assert main("-o", tmp_path / "run")[0] == 0
    shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    assert open_matcher(tmp_path / "elsewhere").matcher.config.dim == 4


# ------------------------------------------------------------------------------------- kill, resume


@pytest.mark.slow
def test_killed_anywhere_the_same_command_ends_with_the_same_weights(
    place: Path, tmp_path: Path, vg: Runner, main: Any
) -> None:
    """kill -9 behind a checkpoint in mid-training, then the same command."""
    more = ["--hold-out", "3", "--epochs", "12", "--lr", "0.01"]
    assert main(*more, "-o", tmp_path / "whole")[0] == 0
    args = [
        "train-matcher",
        place / "captions.jsonl",
        place / "feats.npy",
        "-e",
        place / "encoder",
        *FAST,
        *more,
    ]
    process = subprocess.Popen(
        vg_command(*args, "-o", tmp_path / "run"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    while not checkpoint.exists() and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = vg(*args, "-o", tmp_path / "run")
    assert (done.returncode, done.stderr) == (0, b"")
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (
        tmp_path / "whole" / "metrics.jsonl"
    ).read_bytes()
    names = sorted(p.name for p in (tmp_path / "run").iterdir())
    assert names == ["encoder", "matcher.safetensors", "metrics.jsonl", "run.json"]


def test_a_signal_makes_a_checkpoint_and_exits_75(
    place: Path, tmp_path: Path, main: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ["--epochs", "8", "--lr", "0.01"]
    assert main(*more, "-o", tmp_path / "whole")[0] == 0
    from vgtools.systems.vokenization import matcher_training

    collate, calls = matcher_training.collate, [0]

    def interrupted(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == 8:  # in the middle of the third epoch
            os.kill(os.getpid(), signal.SIGTERM)
        return collate(*args)

    monkeypatch.setattr(matcher_training, "collate", interrupted)
    code, records, err = main(*more, "-o", tmp_path / "run")
    assert (code, records) == (Exit.STOPPED, [])
    assert "run the same command again" in err
    assert main(*more, "-o", tmp_path / "run")[0] == 0
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


def test_other_settings_are_refused_with_both_sides_and_restart_takes_over(
    main: Any, tmp_path: Path
) -> None:
    assert main("-o", tmp_path / "run")[0] == 0
    code, records, err = main("-o", tmp_path / "run", "--lr", "0.5")
    assert (code, records) == (Exit.CONFIG, [])
    assert "lr was 0.0015, is now 0.5" in err
    assert main("-o", tmp_path / "run", "--lr", "0.5", "--restart")[0] == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["config"]["lr"] == 0.5


def test_two_writers_on_one_run(main: Any, tmp_path: Path) -> None:
    lock = Lock(tmp_path / "run")
    try:
        code, _, err = main("-o", tmp_path / "run")
    finally:
        lock.release()
    assert code == Exit.STOPPED
    assert f"process {os.getpid()}" in err


# ---------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ('{"image": "image001", "te', "captions.jsonl:2: not valid JSON"),
        ("", "captions.jsonl:2: not valid JSON"),
        ("[1]", "captions.jsonl:2: expected a JSON object"),
        ('{"image": "image001"}', 'captions.jsonl:2: the key "text" is missing'),
        ('{"image": 7, "text": "dog"}', 'captions.jsonl:2: "image" must be a string'),
        ('{"image": "image001", "text": null}', 'captions.jsonl:2: "text" must be a string'),
        (
            '{"image": "image001", "text": "dog", "split": 3}',
            'captions.jsonl:2: "split" must be a string',
        ),
        (
            '{"image": "image999", "text": "dog"}',
            "captions.jsonl:2: the image 'image999' is not among the 60 given images",
        ),
    ],
)
def test_bad_captions_name_file_and_line(main: Any, tmp_path: Path, row: str, wanted: str) -> None:
    path = tmp_path / "captions.jsonl"
    path.write_text(
        '{"image": "image000", "text": "a dog"}\n'
        + row
        + "\n"
        + '{"image": "image002", "text": "cat"}\n'
    )
    code, records, err = main("-o", tmp_path / "run", captions=path)
    assert (code, records) == (Exit.DATA, [])
    assert wanted in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("rows", "more", "wanted"),
    [
        ([], (), "captions of 0 images"),
        ([("image000", "dog"), ("image000", "cat")], (), "captions of 1 image "),
        (
            [("image000", "dog"), ("image001", "cat"), ("image002", "cat")],
            ("--hold-out", "2"),
            "less 2 held out",
        ),
        (
            [("image000", ""), ("image001", "  "), ("image002", "cat")],
            (),
            "fewer than 2 images hold a token",
        ),
    ],
)
def test_too_few_images(
    main: Any, tmp_path: Path, rows: list[tuple[str, str]], more: tuple[str, ...], wanted: str
) -> None:
    path = tmp_path / "captions.jsonl"
    path.write_bytes(b"".join(dumps({"image": i, "text": t}) for i, t in rows))
    code, _, err = main("-o", tmp_path / "run", *more, captions=path)
    assert code == Exit.DATA
    assert wanted in err


def test_a_training_that_fails_before_its_first_file_leaves_no_folder(
    main: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise DataError("no encoder")

    monkeypatch.setattr("vgtools.models.encoder.load_encoder", fail)
    (tmp_path / "mine").mkdir()
    for name in ("run", "mine"):
        assert main("-o", tmp_path / name)[0] == Exit.DATA
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_images_that_train_and_validate_are_refused(main: Any, tmp_path: Path, place: Path) -> None:
    code, _, err = main("-o", tmp_path / "run", "--valid", place / "captions.jsonl")
    assert code == Exit.DATA
    assert "12 images are in both training and validation" in err


@pytest.mark.parametrize(("value", "row"), [(np.nan, 3), (np.inf, 0), (0.0, 59)])
def test_features_that_are_no_numbers_are_refused(
    main: Any, tmp_path: Path, value: float, row: int
) -> None:
    feats = np.random.default_rng(0).standard_normal((60, IMAGE))
    feats[row] = value
    code, _, err = main("-o", tmp_path / "run", feats=save_feats(tmp_path / "feats.npy", feats))
    assert code == Exit.DATA
    assert f"feats.npy: row {row} (image{row:03})" in err


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("feats.npy", lambda b: b[:-8]),
        ("feats.npy", lambda b: b[:200] + b"\x00\x01" + b[202:]),
        ("feats.ids", lambda b: b[:-3]),
        ("feats.json", lambda b: b[:30]),
        ("feats.npy", lambda b: b + b"x"),
    ],
)
def test_damaged_features_are_refused(
    main: Any, tmp_path: Path, name: str, damage: Callable[[bytes], bytes]
) -> None:
    save_feats(tmp_path / "feats.npy")
    (tmp_path / name).write_bytes(damage((tmp_path / name).read_bytes()))
    code, _, err = main("-o", tmp_path / "run", feats=tmp_path / "feats.npy")
    assert code == Exit.DATA
    assert str(tmp_path / name) in err


def test_an_object_array_is_refused_unread(main: Any, tmp_path: Path) -> None:
    save_feats(tmp_path / "feats.npy")
    np.save(tmp_path / "feats.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    write_manifest(
        tmp_path / "feats.npy",
        [tmp_path / "feats.npy", tmp_path / "feats.ids"],
        kind="image-features",
    )
    code, _, err = main("-o", tmp_path / "run", feats=tmp_path / "feats.npy")
    assert code == Exit.DATA
    assert "Python objects" in err


def test_missing_input_and_models(main: Any, tmp_path: Path) -> None:
    assert main("-o", tmp_path / "run", captions="no.jsonl")[0] == Exit.NO_INPUT
    assert main("-o", tmp_path / "run", feats="no.npy")[0] == Exit.NO_INPUT
    code, _, err = main("-o", tmp_path / "run", "-e", "nobody/nothing", "--offline")
    assert code == Exit.UNAVAILABLE
    assert "nobody/nothing" in err


def test_places_that_cannot_be_a_run(main: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    code, _, err = main("-o", tmp_path / "file")
    assert (code, "is a file" in err) == (Exit.CANNOT_CREATE, True)
    assert main("-o", tmp_path / "no" / "folder")[0] == Exit.CANNOT_CREATE
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    code, _, err = main("-o", tmp_path / "full", "--restart")
    assert (code, "neither empty nor a run of vg" in err) == (Exit.CANNOT_CREATE, True)
    assert (tmp_path / "full" / "letter.txt").read_text() == "dear"


@pytest.mark.parametrize(
    "flags",
    [
        ("--loss", "l2"),
        ("--schedule", "up"),
        ("--level", "word"),
        ("--preset", "best"),
        ("--batch-size", "1"),
        ("--share", "2"),
        ("--device", "tpu"),
        ("--valid", "-"),
    ],
)
def test_flags_out_of_range(main: Any, tmp_path: Path, flags: tuple[str, str]) -> None:
    captions = "-" if flags == ("--valid", "-") else "captions.jsonl"
    code = (
        run(["train-matcher", captions, "feats.npy", *flags, "-o", str(tmp_path / "run")])
        if captions == "-"
        else main(*flags, "-o", tmp_path / "run")[0]
    )
    assert code == Exit.USAGE


def test_a_diverging_run_stops_with_70_and_names_the_checkpoint(main: Any, tmp_path: Path) -> None:
    code, _, err = main(
        "-o", tmp_path / "run", "--lr", "1e18", "--schedule", "constant", "--epochs", "9"
    )
    assert code == Exit.CANNOT_CONTINUE
    assert "no longer a number" in err
    assert "--lr" in err


def test_damaged_checkpoint_and_run_are_refused(main: Any, tmp_path: Path) -> None:
    assert main("-o", tmp_path / "run")[0] == 0
    file = tmp_path / "run" / "matcher.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x55")
    code, _, err = main("-o", tmp_path / "run")
    assert (code, "damaged" in err) == (Exit.DATA, True)
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").mkdir()
    file = tmp_path / "run" / "checkpoint.safetensors"
    file.write_bytes(b"\x50" + bytes(7) + b'{"__metadata__":{"vg":')
    code, _, err = main("-o", tmp_path / "run")
    assert (code, "not a readable checkpoint" in err) == (Exit.DATA, True)
    file.write_bytes(b"\x08" + bytes(7) + b"{}      ")
    for flags in ((), ("--restart",)):  # of another tool
        code, _, err = main("-o", tmp_path / "run", *flags)
        assert (code, "vg does not know it" in err) == (Exit.CANNOT_CREATE, True)
    assert file.exists()


def test_a_read_only_folder_is_said_before_any_work(main: Any, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root writes anywhere")
    tmp_path.chmod(0o500)
    assert main("-o", tmp_path / "run")[0] == Exit.CANNOT_CREATE


@pytest.mark.slow
def test_locale_and_home_do_not_matter(place: Path, tmp_path: Path, vg: Runner, main: Any) -> None:
    assert main("-o", tmp_path / "a")[0] == 0
    # Threads and kernels stay as they are: others add in another order, which is not what is tested
    # here.
    threads = str(torch.get_num_threads())
    own = {k: v for k, v in os.environ.items() if k not in ("HOME", "LANG", "LC_ALL", "PYTHONUTF8")}
    env = own | {"LC_ALL": "C", "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    args = [
        "train-matcher",
        place / "captions.jsonl",
        place / "feats.npy",
        "-e",
        place / "encoder",
        *FAST,
        "-o",
        tmp_path / "b",
    ]
    done = vg(*args, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
