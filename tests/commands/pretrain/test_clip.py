"""`vg pretrain clip` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tiny import save_feats
from tests.tiny.clip import clip_tokenizer, save_captions, save_shape, save_tower
from tests.tiny.runs import hashes, records, refused, stop_and_resume
from vgtools import cli
from vgtools.io.errors import DataError, Exit
from vgtools.models.clip import load_teacher
from vgtools.models.encoder import load_encoder
from vgtools.models.runs import open_run, read_run
from vgtools.systems.clip.training import ClipPretraining
from vgtools.training import processes
from vgtools.training.session import Session

FAST = ["--batch-size", 8, "--log-every", 2, "--device", "cpu", "-q"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with captions to learn from and to evaluate on, features, a tokenizer, a shape."""
    folder = tmp_path_factory.mktemp("clip")
    rng = np.random.default_rng(0)
    rows = [(f"image{i % 10:03}", " ".join(rng.choice(list("abcdef"), 3))) for i in range(30)]
    save_captions(folder / "train.jsonl", rows)
    save_captions(folder / "dev.jsonl", [(f"image{10 + i % 4:03}", "the a") for i in range(8)])
    save_feats(folder / "f.npy")
    (folder / "tokenizer").mkdir()
    clip_tokenizer().save(str(folder / "tokenizer" / "tokenizer.json"))
    save_shape(folder / "shape.json")
    return folder


def pretrain(data: Path, output: Path, *flags: object, start: bool = True) -> int:
    args = ["pretrain", "clip", data / "train.jsonl", "--feats", data / "f.npy", "-o", output]
    if start:
        args += ["--shape", data / "shape.json", "-t", data / "tokenizer"]
    return cli.run([str(a) for a in [*args, *FAST, *flags]])


def test_a_run_is_a_teacher(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from transformers import CLIPTextModelWithProjection

    run = tmp_path / "run"
    assert pretrain(data, run, "--epochs", 2, "--valid", data / "dev.jsonl") == 0
    out = capfd.readouterr()
    printed = [json.loads(line) for line in out.out.splitlines()]
    assert (printed, out.err) == (records(run), "")
    assert printed[-1]["step"] == 8
    valid = printed[-1]["valid"]
    assert (valid["photos"], valid["text_to_image"]["chance"]["r1"]) == (4, 25)
    assert valid["text_to_image"]["r5"] == 100
    files = ["clip.safetensors", "encoder", "metrics.jsonl", "run.json"]
    assert sorted(path.name for path in run.iterdir()) == files
    info = read_run(run, "clip")
    assert (info["captions"], info["photos"], info["steps"]) == (30, 10, 8)
    settings = {key: info["config"][key] for key in ("lr", "schedule", "weight_decay", "warmup")}
    assert settings == {"lr": 2e-3, "schedule": "cosine", "weight_decay": 0.1, "warmup": 0.1}
    (start,) = info["start"]
    assert start["fingerprint"] not in ("", info["encoder"]["fingerprint"])
    teacher = load_teacher(str(run))
    assert (teacher.width, teacher.max_tokens) == (6, 75)
    assert teacher.fingerprint == info["encoder"]["fingerprint"]
    CLIPTextModelWithProjection.from_pretrained(run / "encoder")
    # As an encoder it is a part of what was trained: the tower without the projection.
    assert not hasattr(load_encoder(str(run)).model, "text_projection")
    weights = open_run(run, "clip").weights
    assert set(weights) == {
        "log_scale", "photo.0.weight", "photo.0.bias", "photo.3.weight", "photo.3.bias",
    }  # fmt: skip


@pytest.mark.parametrize("way", ["signal", "kill"])
def test_resumed_equals_unbroken(data: Path, tmp_path: Path, way: str) -> None:
    flags = ["--epochs", 2, "--valid", data / "dev.jsonl", "--checkpoint-steps", 2]
    cut, whole = stop_and_resume(lambda run: pretrain(data, run, *flags), tmp_path, way, 5)
    assert hashes(cut) == hashes(whole)


def test_a_tower_is_trained_further(data: Path, tmp_path: Path) -> None:
    tower = save_tower(tmp_path / "tower")
    flags = ["--encoder", tower, "--steps", 1]
    assert pretrain(data, tmp_path / "run", *flags, "--lr", 0, start=False) == 0
    found = load_teacher(str(tmp_path / "run"))
    assert found.fingerprint == load_teacher(str(tower)).fingerprint, "at a rate of 0"
    assert pretrain(data, tmp_path / "other", *flags, start=False) == 0
    assert load_teacher(str(tmp_path / "other")).fingerprint != found.fingerprint


def test_other_settings_and_files_are_refused(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert pretrain(data, run, "--steps", 2) == 0
    before = hashes(run)
    assert pretrain(data, run, "--steps", 2) == 0
    assert hashes(run) == before
    assert pretrain(data, run, "--steps", 2, "--valid", data / "dev.jsonl") == Exit.CONFIG
    refused(capfd, "valid")
    other = save_feats(tmp_path / "g.npy", np.random.default_rng(1).standard_normal((60, 12)))
    assert pretrain(data, run, "--steps", 2, "--feats", other) == Exit.CONFIG
    refused(capfd, "features")


@pytest.mark.parametrize(
    ("flags", "code", "why"),
    [
        (["--micro-batch", 4], Exit.USAGE, "one another's negatives"),
        (["--shape", "clip-vision"], Exit.USAGE, "neither one of clip-text, clip-text-small"),
        (["--encoder", "x"], Exit.USAGE, "exactly one of --shape"),
        (["-t", "builtin:minilm"], Exit.DATA, "has no <|startoftext|>"),
        (["--valid", "train.jsonl"], Exit.DATA, "10 photos of it are also to learn from"),
        (["--feats", "none.npy"], Exit.NO_INPUT, "none"),
    ],
)
def test_refusals(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    code: int,
    why: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(data)
    assert pretrain(data, tmp_path / "run", *flags) == code
    refused(capfd, why)


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ({"model_type": "bert"}, "'bert', expected clip_text_model"),
        ({"hidden_size": 10**9}, "hidden_size"),
        ({"hidden_size": 9, "num_attention_heads": 2}, "is not a usable shape"),
    ],
)
def test_bad_shapes_are_refused(
    data: Path, tmp_path: Path, shape: object, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "shape.json"
    file.write_text(json.dumps(shape))
    assert pretrain(data, tmp_path / "run", "--shape", file) == Exit.DATA
    refused(capfd, why)


def test_several_processes_are_refused(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "world", lambda: 2)
    tower = load_teacher(str(save_tower(tmp_path / "tower")))
    session = Session("pretrain", tmp_path, torch.device("cpu"))
    with pytest.raises(DataError, match="single-process") as error:
        ClipPretraining(
            tower,
            str(data / "f.npy"),
            session=session,
            inputs=[str(data / "train.jsonl")],
            valid=[],
            weights={},
            dtype="float32",
            gradient_checkpointing=False,
        )
    assert error.value.code == Exit.USAGE
