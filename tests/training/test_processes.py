"""Two processes train as one does: the same curve, one checkpoint, no other number of processes on resume."""

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
from tests.tiny_lm import save_rows, save_shape, save_tokenizer, sentences, voken_rows
from vgtools.training import processes


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


def start(*args: str | Path) -> list[subprocess.Popen[bytes]]:
    """Start one command in two processes that will join, as torchrun does."""
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            vg_command(*args),
            env=os.environ | common | {"RANK": str(i), "LOCAL_RANK": str(i)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for i in range(2)
    ]


def launch(*args: str | Path) -> list[subprocess.CompletedProcess[bytes]]:
    """Run one command in two joined processes to their end."""
    started = start(*args)
    found = [p.communicate(timeout=300) for p in started]
    return [subprocess.CompletedProcess(p.args, p.returncode, *f) for p, f in zip(started, found, strict=True)]


@pytest.mark.slow
def test_two_processes_agree_with_one(tmp_path: Path, vg: Runner) -> None:
    from safetensors.torch import load

    shape = save_shape(tmp_path / "shape.json", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    words = save_tokenizer(tmp_path / "t")
    rows = save_rows(tmp_path / "rows.jsonl", voken_rows(sentences(60), 11))
    flags: list[Any] = [
        "pretrain", rows, "--shape", shape, "--tokenizer", words, "--valid", rows, "--block", 16, "--batch-size", 8,
        "--micro-batch", 2, "--epochs", 2, "--log-every", 1, "--device", "cpu", "-q", "--lr", 0.01,
    ]  # fmt: skip
    single = os.environ | {"OMP_NUM_THREADS": "1"}
    alone = vg(*flags, "-o", tmp_path / "one", env=single)
    assert alone.returncode == 0, alone.stderr.decode()
    both = launch(*flags, "-o", tmp_path / "two")
    assert [p.returncode for p in both] == [0, 0], both[0].stderr.decode() + both[1].stderr.decode()
    assert both[1].stdout == b""  # only the first process speaks
    sides = [[json.loads(line) for line in out.splitlines()] for out in (alone.stdout, both[0].stdout)]
    assert len(sides[0]) > 4
    for mine, wanted in zip(sides[1], sides[0], strict=True):
        valid = [side.pop("valid", {}) for side in (mine, wanted)]
        assert mine == pytest.approx(wanted, rel=1e-3)
        assert valid[0] == pytest.approx(valid[1], rel=1e-3)
    states = [load((tmp_path / name / "encoder" / "model.safetensors").read_bytes()) for name in ("one", "two")]
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name], tensor, rtol=1e-2, atol=1e-3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "rows.jsonl", "shape.json", "t", "two"]
    # Another number of processes would be another run.
    refused = vg(*flags, "-o", tmp_path / "two")
    assert refused.returncode == 78
    assert b"processes was 2, is now 1" in refused.stderr


@pytest.mark.slow
def test_a_signal_to_one_process_stops_both_and_the_resumed_run_is_the_unbroken_one(tmp_path: Path) -> None:
    shape, words = save_shape(tmp_path / "shape.json"), save_tokenizer(tmp_path / "t")
    rows = save_rows(tmp_path / "rows.jsonl", voken_rows(sentences(60), 11))
    flags: list[Any] = [
        "pretrain", rows, "--shape", shape, "--tokenizer", words, "--block", 16, "--batch-size", 8, "--epochs", 40,
        "--log-every", 1, "--device", "cpu", "-q",
    ]  # fmt: skip
    whole = launch(*flags, "-o", tmp_path / "whole")
    assert [p.returncode for p in whole] == [0, 0], whole[0].stderr.decode() + whole[1].stderr.decode()
    cut = start(*flags, "-o", tmp_path / "cut")
    assert cut[0].stdout is not None
    assert json.loads(cut[0].stdout.readline())["step"] == 1
    cut[0].send_signal(signal.SIGTERM)
    said = [p.communicate(timeout=300) for p in cut]
    assert [p.returncode for p in cut] == [75, 75], said[0][1].decode() + said[1][1].decode()
    assert (tmp_path / "cut" / "checkpoint.safetensors").exists()
    again = launch(*flags, "-o", tmp_path / "cut")
    assert [p.returncode for p in again] == [0, 0], again[0].stderr.decode() + again[1].stderr.decode()
    for name in ("encoder/model.safetensors", "voken_lm.safetensors", "metrics.jsonl"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
