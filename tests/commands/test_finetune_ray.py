"""The seeds of `vg finetune --ray` on a real cluster: the run of one process, whatever happens."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import save_encoder
from tests.tiny import tasks as tiny_tasks
from tests.tiny.cluster import Cluster, until
from vgtools import cli
from vgtools.io.errors import Exit

SEEDS = ("9595", "9596", "9597")
FEW = ["--seeds", 3, "--epochs", 12, "--lr", 3e-3, "--batch-size", 8, "--max-length", 40]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    pytest.importorskip("ray", reason="the extra vgtools[ray] is not installed")
    running = Cluster()
    try:
        yield running
    finally:
        running.end()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    save_encoder(folder / "encoder", positions=64)
    tiny_tasks.save_sst2(folder / "sst-2", train=200, test=3)
    return folder


def start(nodes: Cluster, data: Path, run: Path, *flags: object) -> subprocess.Popen[str]:
    task = ["finetune", "sst-2", data / "sst-2", "-e", data / "encoder", *FEW, "--device", "cpu"]
    return nodes.driver("vgtools", *task, "-o", run, *flags, OMP_NUM_THREADS="1")


def end(started: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    """Return the output and the messages of a command, once it has ended with a code."""
    out, messages = started.communicate(timeout=400)
    assert started.returncode == code, messages
    return out, messages


@pytest.fixture(scope="module")
def whole(nodes: Cluster, data: Path) -> tuple[dict[str, Any], str]:
    """What one process leaves, and what it prints."""
    out, _ = end(start(nodes, data, data / "whole"))
    return left(data / "whole"), out


def left(run: Path) -> dict[str, Any]:
    """Return all that is in a run: the bytes of its files, and run.json without what may differ."""
    found: dict[str, Any] = {
        str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()
    }
    info = json.loads(found["run.json"])
    for name in ("argv", "versions", "sha256"):
        del info[name]
    found["run.json"] = json.dumps(info)  # order counts
    return found


def learner(run: Path, seed: str) -> int:
    """Return the process that learns a seed, and has a checkpoint of it; 0 if there is none."""
    lock = run / f"seed-{seed}.lock"
    if not lock.exists() or not (run / f"seed-{seed}" / "checkpoint.safetensors").exists():
        return 0
    found = re.match(r"process (\d+)", lock.read_text())
    return int(found[1]) if found else 0


def epochs(run: Path, seed: str) -> int:
    """Return the epochs of an unfinished seed that a checkpoint has."""
    metrics = run / f"seed-{seed}" / "metrics.jsonl"
    return len(metrics.read_bytes().splitlines()) if metrics.exists() else 0


@pytest.mark.slow
def test_seeds_of_a_cluster_are_those_of_one_process_though_a_worker_is_killed(
    nodes: Cluster, data: Path, tmp_path: Path, whole: tuple[dict[str, Any], str]
) -> None:
    run = tmp_path / "run"
    driver = start(nodes, data, run, "--ray", nodes.address)
    lost = until(lambda: epochs(run, SEEDS[0]) >= 2 and learner(run, SEEDS[0]))
    os.kill(lost, signal.SIGKILL)
    out, messages = end(driver)
    assert f"vg: a worker was lost with seed {SEEDS[0]}; 1 seed will be done again" in messages
    assert left(run) == whole[0]
    assert out == whole[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"], "no lock stays"
    again, messages = end(start(nodes, data, run, "--ray", nodes.address))
    assert again == out
    assert "lost" not in messages
    end(start(nodes, data, run, "--ray", nodes.address, "--lr", 0.1), Exit.CONFIG)


@pytest.mark.slow
def test_a_stopped_run_resumes_without_the_cluster_and_no_seed_is_learned_twice(
    nodes: Cluster, data: Path, tmp_path: Path, whole: tuple[dict[str, Any], str]
) -> None:
    run = tmp_path / "run"
    driver = start(nodes, data, run, "--ray", nodes.address, "--workers", 1)
    until(lambda: epochs(run, SEEDS[1]) >= 2)
    workers = learner(run, SEEDS[1])
    driver.send_signal(signal.SIGTERM)
    out, messages = end(driver, Exit.STOPPED)
    assert "run the same command again to resume" in messages
    until(lambda: not learner(run, SEEDS[1]) or not running(workers))
    model = run / f"seed-{SEEDS[0]}" / "model" / "model.safetensors"
    stamp = model.stat().st_mtime_ns
    begun = epochs(run, SEEDS[1])
    assert 2 <= begun < 12
    before = [json.loads(line) for line in out.splitlines()]
    assert [(r["seed"], r["epoch"]) for r in before] == [(9595, n) for n in range(1, 13)]
    out, _ = end(start(nodes, data, run))
    assert out == whole[1]
    assert model.stat().st_mtime_ns == stamp
    assert left(run) == whole[0]


def running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_a_run_that_one_process_began_resumes_on_a_cluster(
    nodes: Cluster, data: Path, tmp_path: Path, whole: tuple[dict[str, Any], str]
) -> None:
    run = tmp_path / "run"
    alone = start(nodes, data, run)
    assert alone.stdout is not None
    for _ in range(14):  # two epochs of the second seed
        alone.stdout.readline()
    alone.send_signal(signal.SIGTERM)
    end(alone, Exit.STOPPED)
    driver = start(nodes, data, run, "--ray", nodes.address)
    first = until(lambda: epochs(run, SEEDS[1]))
    assert first >= 2, "the seed resumes from its own checkpoint"
    out, _ = end(driver)
    assert out == whole[1]
    assert left(run) == whole[0]


@pytest.mark.slow
def test_bad_data_of_a_worker_keeps_its_code(nodes: Cluster, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    _, messages = end(
        start(nodes, data, run, "--ray", nodes.address, "--lr", 1e18), Exit.CANNOT_CONTINUE
    )
    assert "no longer a number" in messages
    assert "Traceback" not in messages


WRONG: dict[str, tuple[list[str], dict[str, str]]] = {
    "belongs to --ray": (["--workers", "2"], {}),
    "workers cannot read a pipe": (["--ray", "local", "--train", "-"], {}),
    "leave out torchrun": (["--ray", "local"], {"WORLD_SIZE": "2", "RANK": "0"}),
}


@pytest.mark.parametrize("why", WRONG)
def test_flags_that_do_not_go_together(
    why: str,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags, environment = WRONG[why]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    task = ["finetune", "sst-2", data / "sst-2", "-e", data / "encoder", "-o", tmp_path / "run"]
    assert cli.run([*map(str, task), *flags]) == Exit.USAGE
    assert why in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()
