"""Two processes train as one does: the same curve, one checkpoint, no other number of processes on
resume.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import Runner, vg_command
from tests.tiny import save_encoder
from tests.tiny import tasks as tiny_tasks
from tests.tiny.lm import save_rows, save_shape, save_tokenizer, sentences, voken_rows
from vgtools.io import DataError, Exit
from vgtools.training import processes

CPU = ["--device", "cpu", "-q"]
SHORT: list[Any] = [*CPU, "--block", 16, "--batch-size", 8, "--log-every", 1]
TUNED: list[Any] = [*CPU, "--max-length", 40]


def test_one_process_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    tensor = torch.tensor([1.0, 2.0])
    with processes.joined(), processes.in_turn():
        processes.average([tensor])
        assert processes.gather(tensor) == [tensor]
        assert processes.anywhere(True, False) == (True, False)
    assert (processes.world(), processes.rank(), processes.device_name("auto")) == (1, 0, "auto")
    assert tensor.tolist() == [1.0, 2.0]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(*args: object) -> list[subprocess.Popen[bytes]]:
    """Start one command in two processes that will join, as torchrun does."""
    common = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    return [
        subprocess.Popen(
            vg_command(*map(str, args)),
            env=os.environ | common | {"RANK": str(i), "LOCAL_RANK": str(i)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for i in range(2)
    ]


def ended(
    started: list[subprocess.Popen[bytes]], code: int = 0
) -> list[subprocess.CompletedProcess[bytes]]:
    """Return what two processes printed, once both have ended with a code."""
    found = [p.communicate(timeout=300) for p in started]
    assert [p.returncode for p in started] == [code, code], b"".join(e for _, e in found).decode()
    return [
        subprocess.CompletedProcess(p.args, p.returncode, *f)
        for p, f in zip(started, found, strict=True)
    ]


def one_and_two(vg: Runner, flags: list[Any], folder: Path) -> list[list[dict[str, Any]]]:
    """Return what a command prints in one process and in two; runs are `one` and `two`."""
    alone = vg(*flags, "-o", folder / "one", env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert alone.returncode == 0, alone.stderr.decode()
    both = ended(start(*flags, "-o", folder / "two"))
    assert both[1].stdout == b"", "only the first process prints"
    return [records(alone.stdout), records(both[0].stdout)]


def stopped(flags: list[Any], folder: Path, which: int, first: dict[str, int]) -> None:
    """Run a command whole into `whole`; into `cut` until a signal to one of its processes stops
    both after the first record.
    """
    ended(start(*flags, "-o", folder / "whole"))
    cut = start(*flags, "-o", folder / "cut")
    assert cut[0].stdout is not None
    assert first.items() <= json.loads(cut[0].stdout.readline()).items()
    cut[which].send_signal(signal.SIGTERM)
    ended(cut, 75)


def records(out: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.slow
def test_two_processes_agree_with_one(tmp_path: Path, vg: Runner) -> None:
    from safetensors.torch import load

    shape = save_shape(
        tmp_path / "shape.json", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    words = save_tokenizer(tmp_path / "t")
    rows = save_rows(tmp_path / "rows.jsonl", voken_rows(sentences(60), 11))
    flags = ["pretrain", rows, "--shape", shape, "--tokenizer", words, "--valid", rows, *SHORT]
    flags += ["--micro-batch", 2, "--epochs", 2, "--lr", 0.01]
    sides = one_and_two(vg, flags, tmp_path)
    assert len(sides[0]) > 4
    for mine, wanted in zip(sides[1], sides[0], strict=True):
        valid = [side.pop("valid", {}) for side in (mine, wanted)]
        assert mine == pytest.approx(wanted, rel=1e-3)
        assert valid[0] == pytest.approx(valid[1], rel=1e-3)
    states = [
        load((tmp_path / name / "encoder" / "model.safetensors").read_bytes())
        for name in ("one", "two")
    ]
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name], tensor, rtol=1e-2, atol=1e-3)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "one",
        "rows.jsonl",
        "shape.json",
        "t",
        "two",
    ]
    # Another number of processes would be another run.
    refused = vg(*flags, "-o", tmp_path / "two")
    assert refused.returncode == 78
    assert b"processes was 2, is now 1" in refused.stderr


@pytest.mark.slow
def test_a_signal_to_one_process_stops_both_and_the_resumed_run_is_the_unbroken_one(
    tmp_path: Path,
) -> None:
    shape, words = save_shape(tmp_path / "shape.json"), save_tokenizer(tmp_path / "t")
    rows = save_rows(tmp_path / "rows.jsonl", voken_rows(sentences(60), 11))
    flags = ["pretrain", rows, "--shape", shape, "--tokenizer", words, *SHORT, "--epochs", 40]
    stopped(flags, tmp_path, 0, {"step": 1})
    assert (tmp_path / "cut" / "checkpoint.safetensors").exists()
    ended(start(*flags, "-o", tmp_path / "cut"))
    for name in ("encoder/model.safetensors", "voken_lm.safetensors", "metrics.jsonl"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), (
            name
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "save"), [("sst-2", tiny_tasks.save_sst2), ("squad-1.1", tiny_tasks.save_squad)]
)
def test_fine_tuning_in_two_processes_agrees_with_one(
    tmp_path: Path, vg: Runner, task: str, save: Any
) -> None:
    from safetensors.torch import load

    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    encoder = save_encoder(tmp_path / "encoder", positions=64)
    shape = json.loads((encoder / "config.json").read_text())
    (encoder / "config.json").write_text(json.dumps(shape | still))
    data = save(tmp_path / "data")
    steps, lr = 6, 1e-3
    flags = ["finetune", task, data, "-e", encoder, *TUNED]
    flags += ["--steps", steps, "--lr", lr, "--batch-size", 7]
    sides = one_and_two(vg, flags, tmp_path)
    names = [
        sorted(str(p.relative_to(tmp_path / run)) for p in (tmp_path / run).rglob("*"))
        for run in ("one", "two")
    ]
    assert names[0] == names[1], "one set of outputs"
    weights = [
        load((tmp_path / run / "seed-9595" / "model" / "model.safetensors").read_bytes())
        for run in ("one", "two")
    ]
    # A gradient that is zero but for rounding moves a weight by up to lr per step, either way; it
    # moves the loss by that times the rounding of a sum over all weights.
    count = sum(t.numel() for t in weights[0].values())
    rounding = count * torch.finfo(torch.float32).eps * 2 * lr * steps
    assert len(sides[0]) == len(sides[1]) > 1
    for mine, wanted in zip(sides[1], sides[0], strict=True):
        assert list(mine) == list(wanted)
        assert mine["loss"] == pytest.approx(wanted["loss"], abs=rounding + 1e-6)
        assert mine["headline"] == pytest.approx(wanted["headline"])
    for name, tensor in weights[0].items():
        assert float((weights[1][name] - tensor).abs().max()) <= 2 * lr * steps, name
    rows = [
        records((tmp_path / run / "seed-9595" / "predictions.jsonl").read_bytes())
        for run in ("one", "two")
    ]
    assert [list(row) for row in rows[0]] == [list(row) for row in rows[1]]
    assert [row["prediction"] for row in rows[0]] == [row["prediction"] for row in rows[1]]
    # Dropout differs between processes: another number of them would be another run.
    refused = vg(*flags, "-o", tmp_path / "two")
    assert refused.returncode == 78
    assert b"processes was 2, is now null" in refused.stderr
    ended(start(*flags, "-o", tmp_path / "one"), 78)  # both, and neither waits for the other


@pytest.mark.slow
def test_a_signal_to_one_process_stops_fine_tuning_in_both_and_it_resumes_to_the_same_bytes(
    tmp_path: Path,
) -> None:
    encoder = save_encoder(tmp_path / "encoder", positions=64)
    data = tiny_tasks.save_sst2(tmp_path / "data", test=3)
    flags = ["finetune", "sst-2", data, "-e", encoder, *TUNED, "--seeds", 2]
    flags += ["--epochs", 4, "--lr", 3e-3, "--batch-size", 8]
    stopped(flags, tmp_path, 1, {"epoch": 1})
    ended(start(*flags, "-o", tmp_path / "cut"))
    files = sorted(p.relative_to(tmp_path / "whole") for p in (tmp_path / "whole").rglob("*"))
    assert files == sorted(p.relative_to(tmp_path / "cut") for p in (tmp_path / "cut").rglob("*"))
    for name in files:
        if (tmp_path / "whole" / name).is_file() and name.name != "run.json":
            assert (tmp_path / "cut" / name).read_bytes() == (
                tmp_path / "whole" / name
            ).read_bytes()


@pytest.mark.slow
def test_an_error_of_the_first_process_is_one_of_both(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("x")
    encoder = save_encoder(tmp_path / "encoder", positions=64)
    data = tiny_tasks.save_sst2(tmp_path / "data")
    said = ended(
        start("finetune", "sst-2", data, "-e", encoder, *TUNED, "-o", tmp_path / "run"), 73
    )
    assert all(b"is neither empty nor a run of vg" in p.stderr for p in said)


@pytest.mark.parametrize(
    "environment", [{"WORLD_SIZE": "2"}, {"WORLD_SIZE": "abc"}, {"WORLD_SIZE": "2", "RANK": "-1"}]
)
def test_left_over_variables_of_a_launcher_are_named(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DataError, match=r"WORLD_SIZE|RANK") as caught:
        processes.rank()
    assert caught.value.code == Exit.USAGE
