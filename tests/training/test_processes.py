"""Two processes train as one does: the same curve, one checkpoint, which any number resumes."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import Runner, vg_command
from tests.tiny import save_encoder
from tests.tiny import tasks as tiny_tasks
from tests.tiny.lm import save_rows, save_shape, save_tokenizer, sentences, voken_rows
from vgtools.io.errors import DataError, Exit
from vgtools.training import processes

CPU = ["--device", "cpu", "-q"]
SHORT: list[Any] = [*CPU, "--block", 16, "--batch-size", 8, "--log-every", 1]
TUNED: list[Any] = [*CPU, "--max-length", 40]


def test_one_process_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    tensor = torch.tensor([1.0, 2.0])
    with processes.joined(), processes.after_first():
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
    threads = os.environ | {"OMP_NUM_THREADS": "1"}
    alone = vg(*flags, "-o", folder / "one", env=threads, timeout=300)
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
    again = vg(*flags, "-o", tmp_path / "two", timeout=300)
    assert again.returncode == 0, "another number of processes is the same run"
    assert again.stdout == (tmp_path / "two" / "metrics.jsonl").read_bytes()


@pytest.mark.slow
def test_a_signal_to_one_process_stops_both_and_the_resumed_run_is_the_unbroken_one(
    tmp_path: Path,
) -> None:
    shape, words = save_shape(tmp_path / "shape.json"), save_tokenizer(tmp_path / "t")
    rows = save_rows(tmp_path / "rows.jsonl", voken_rows(sentences(60), 11))
    flags = ["pretrain", rows, "--shape", shape, "--tokenizer", words, *SHORT, "--epochs", 20]
    stopped(flags, tmp_path, 0, {"step": 1})
    assert (tmp_path / "cut" / "checkpoint.safetensors").exists()
    ended(start(*flags, "-o", tmp_path / "cut"))
    for name in ("encoder/model.safetensors", "voken_lm.safetensors", "metrics.jsonl"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), (
            name
        )


@pytest.mark.slow
def test_fine_tuning_in_two_processes_agrees_with_one(tmp_path: Path, vg: Runner) -> None:
    from safetensors.torch import load

    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    encoder = save_encoder(tmp_path / "encoder", positions=64)
    shape = json.loads((encoder / "config.json").read_text())
    (encoder / "config.json").write_text(json.dumps(shape | still))
    data = tiny_tasks.save_squad(tmp_path / "data")
    steps, lr = 6, 1e-3
    flags = ["finetune", "squad-1.1", data, "-e", encoder, *TUNED]
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
    again = vg(*flags, "-o", tmp_path / "two", timeout=300)
    assert (again.returncode, records(again.stdout)) == (0, sides[1])
    ended(start(*flags, "--lr", 0.5, "-o", tmp_path / "one"), 78)  # neither waits for the other


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


def pretraining(folder: Path, epochs: int, every: int) -> list[Any]:
    """Return the flags of a training without dropout that writes a checkpoint every few steps."""
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    shape = save_shape(folder / "shape.json", **still)
    words = save_tokenizer(folder / "t")
    rows = save_rows(folder / "rows.jsonl", voken_rows(sentences(60), 11))
    flags = ["pretrain", rows, "--shape", shape, "--tokenizer", words, *SHORT, "--lr", 0.01]
    return [*flags, "--micro-batch", 2, "--epochs", epochs, "--checkpoint-steps", every]


def curve(run: Path) -> list[dict[str, Any]]:
    return records((run / "metrics.jsonl").read_bytes())


@pytest.mark.slow
def test_a_run_goes_on_with_one_process_after_the_first_is_lost(tmp_path: Path, vg: Runner) -> None:
    flags = pretraining(tmp_path, 4, 3)
    threads = os.environ | {"OMP_NUM_THREADS": "1"}
    assert vg(*flags, "-o", tmp_path / "one", env=threads, timeout=300).returncode == 0
    cut = start(*flags, "-o", tmp_path / "cut")
    assert cut[0].stdout is not None
    for _ in range(5):  # beyond the first checkpoint
        cut[0].stdout.readline()
    cut[0].kill()
    _, said = cut[1].communicate(timeout=300)
    cut[0].communicate()
    assert cut[1].returncode == 75
    assert b"another process was lost" in said
    assert b"any number of processes resumes it" in said
    loud = [flag for flag in flags if flag != "-q"]
    alone = vg(*loud, "-o", tmp_path / "cut", env=threads, timeout=300)
    assert alone.returncode == 0, alone.stderr.decode()
    assert b"resumes with 1 process, 2 before" in alone.stderr
    found, expected = (curve(tmp_path / name) for name in ("cut", "one"))
    assert len(found) == len(expected) == 16
    for mine, other in zip(found, expected, strict=True):
        assert mine == pytest.approx(other, rel=1e-3)
    assert json.loads((tmp_path / "cut" / "run.json").read_text())["processes"] == [2, 1]


def lose(agent: subprocess.Popen[bytes]) -> None:
    """Kill a process of torchrun and those that it started."""
    found = subprocess.run(["pgrep", "-P", str(agent.pid)], capture_output=True, check=False)
    for lost in map(int, found.stdout.split()):
        os.kill(lost, signal.SIGKILL)
    agent.kill()
    agent.communicate()


@pytest.mark.slow
def test_torchrun_goes_on_with_one_node_after_the_other_is_lost(tmp_path: Path, vg: Runner) -> None:
    flags = pretraining(tmp_path, 15, 4)
    port = free_port()

    def node(host: int) -> subprocess.Popen[bytes]:
        conf = f"is_host={host},last_call_timeout=20,join_timeout=300"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2"]
        torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
        torchrun += ["--rdzv-conf", conf, "--rdzv-id", "vg", "--max-restarts", "3"]
        return subprocess.Popen(
            [*torchrun, "-m", "vgtools", *map(str, flags), "-o", str(tmp_path / "run")],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    nodes = [node(1), node(0)]
    metrics = tmp_path / "run" / "metrics.jsonl"
    end = time.monotonic() + 600
    try:
        while not metrics.exists():
            ended_early = [one.communicate() for one in nodes if one.poll() is not None]
            assert not ended_early
            assert time.monotonic() < end
            time.sleep(0.05)
        lose(nodes[1])
        said = nodes[0].communicate(timeout=600)[1].decode()
    finally:
        for one in nodes:
            lose(one)
    assert nodes[0].returncode == 0, said
    assert "another process was lost" in said
    assert json.loads((tmp_path / "run" / "run.json").read_text())["processes"] == [2, 1]
    alone = vg(*flags, "-o", tmp_path / "one", timeout=300)
    assert alone.returncode == 0
    sides = [[record["loss"] for record in curve(tmp_path / name)] for name in ("run", "one")]
    assert len(sides[0]) == len(sides[1]) == 60
    assert sides[0][:30] == pytest.approx(sides[1][:30], rel=1e-3)


GROUP = """
import hashlib, sys, time
from datetime import timedelta
from pathlib import Path
import torch
from vgtools.io.errors import DataError
from vgtools.io.files import sha256_file
from vgtools.training import processes

rank = processes.rank()
hashed = []
real = hashlib.file_digest
hashlib.file_digest = lambda stream, name: hashed.append(stream.name) or real(stream, name)
processes._STEP = timedelta(seconds=10)
Path(f"{sys.argv[1]}.{rank}").touch()
while not Path(f"{sys.argv[1]}.{1 - rank}").exists():  # a busy machine starts one much later
    time.sleep(0.01)
with processes.joined():
    with processes.after_first():
        print(sha256_file(sys.argv[1]), len(hashed))
    print(processes.on_first(lambda: time.sleep(12) or "evaluated"), processes.total([rank, 5]))
    try:
        with processes.after_first():
            raise DataError("not here") if rank == 0 else AssertionError("never begins")
    except DataError as error:
        print(error)
    try:
        with processes.after_first():
            if rank == 1:
                raise DataError("not there")
    except DataError as error:
        print(error)
    sys.stdout.flush()
    if rank == 1:
        time.sleep(600)  # frozen in the middle of a step
    began = time.monotonic()
    try:
        processes.average([torch.ones(3)])
    except DataError as error:
        print(error.code, time.monotonic() - began < 120)
"""


@pytest.mark.slow
def test_one_process_hashes_and_a_frozen_one_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b"text")
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", GROUP, file],
            env=os.environ | common | {"RANK": str(rank), "PYTHONPATH": ":".join(sys.path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = started[0].communicate(timeout=300)[0].splitlines()
    started[1].kill()
    other = started[1].communicate()[0].splitlines()
    sha256 = hashlib.sha256(b"text").hexdigest()
    assert said[:2] == [f"{sha256} 1", "evaluated [1.0, 10.0]"]
    assert other[:2] == [f"{sha256} 0", "evaluated [1.0, 10.0]"], "the second one hashes nothing"
    assert said[2:] == ["not here", "another process failed: see its message", "75 True"]
    assert other[2:] == ["not here", "not there"]


MEANS = """
import torch
from torch import nn
from vgtools.training import processes
from vgtools.training.gradients import Gradients

torch.manual_seed(processes.rank())
inputs = torch.randn(5, 64)
def layer():
    torch.manual_seed(9)
    return nn.Linear(64, 64)
with processes.joined():
    plain = layer()
    plain(inputs).square().sum().backward()
    both = torch.stack(processes.gather(plain.weight.grad)).double()
    for dtype in (torch.float32, torch.bfloat16):
        model = layer()
        shared = Gradients(model, dtype=dtype)
        with shared.sending():
            model(inputs).square().sum().backward()
        shared.average(torch.zeros(1))
        # Both halves are rounded, then their sum.
        unit = torch.finfo(dtype).eps / 2
        bound = both.abs().mean(0) * (2 * unit + unit * unit)
        error = (model.weight.grad.double() - both.mean(0)).abs()
        print(dtype, bool((error <= bound).all()), bool((error > 0).any()))
"""


@pytest.mark.slow
def test_gradients_of_two_processes_are_averaged_to_the_precision_of_their_numbers() -> None:
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", MEANS],
            env=os.environ | common | {"RANK": str(rank), "PYTHONPATH": ":".join(sys.path)},
            stdout=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    expected = ["torch.float32 True True", "torch.bfloat16 True True"]
    for process in ended(started):
        assert process.stdout.decode().splitlines() == expected


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


_PLACE = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"WORLD_SIZE": "2"}, "RANK is not set"),
        ({"WORLD_SIZE": "abc"}, "WORLD_SIZE must be an integer"),
        ({"WORLD_SIZE": "2", "RANK": "-1"} | _PLACE, "RANK must be an integer"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "MASTER_ADDR is not set"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "x"}, "MASTER_PORT is not set"),
    ],
)
def test_left_over_variables_of_a_launcher_are_named(
    environment: dict[str, str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", *_PLACE):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def join() -> None:
        processes.rank()
        with processes.joined():
            pass

    with pytest.raises(DataError, match=why) as caught:
        join()
    assert caught.value.code == Exit.USAGE
