"""Shards on a real Ray cluster of two nodes, with what happens to clusters."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.tiny import text
from tests.tiny.cluster import SETTINGS, Cluster, Work, until
from vgtools import cli
from vgtools.batch import cluster
from vgtools.io.errors import DataError, Exit
from vgtools.io.folders import Shards

TOY = "tests.tiny.cluster"


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    pytest.importorskip("ray", reason="the extra vgtools[ray] is not installed")
    running = Cluster(XDG_CACHE_HOME="/nodes")
    try:
        yield running
    finally:
        running.end()


def begun(folder: Path, first: int = 0) -> list[tuple[int, int]]:
    """Return (shard, process) of the shards that were begun."""
    found = (path.name.split("-") for path in folder.glob("begun-*"))
    return [(int(shard), int(process)) for _, shard, process in found if int(shard) >= first]


def workers(folder: Path) -> set[int]:
    return {process for _, process in begun(folder)}


def check(folder: Path, shards: int) -> None:
    """Check that every shard is there, and whole."""
    files = sorted(folder.glob("0*.txt"))
    assert [path.name for path in files] == [f"{n:06d}.txt" for n in range(shards)]
    for n, path in enumerate(files):
        assert path.read_text() == f"{n}\n" * 1000


def end(driver: subprocess.Popen[str], seconds: float = 300) -> tuple[int, list[Any], str]:
    """Return the exit code of a driver, its records, and its messages."""
    out, messages = driver.communicate(timeout=seconds)
    return driver.returncode, [json.loads(line) for line in out.splitlines()], messages


def gone(process: int) -> bool:
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def loss(messages: str) -> list[str]:
    return re.findall(r"^vg: a worker was lost with shard \d+; (\d) shards? will", messages, re.M)


@pytest.mark.slow
def test_a_killed_workers_shards_are_done_by_another_one(nodes: Cluster, tmp_path: Path) -> None:
    driver = nodes.driver(TOY, nodes.address, tmp_path, 12, 0.5, XDG_CACHE_HOME="/driver")
    until(lambda: len(workers(tmp_path)) == 2)
    os.kill(min(workers(tmp_path)), signal.SIGKILL)
    code, records, messages = end(driver)
    assert code == 0, messages
    check(tmp_path, 12)
    assert sorted(record["shard"] for record in records) == [*range(12)]
    assert loss(messages) == ["2"], "the shard that it did, and the next one"
    assert len(workers(tmp_path)) == 3
    facts = {(r["OMP_NUM_THREADS"], r["XDG_CACHE_HOME"], r["folder"]) for r in records}
    assert facts == {(os.environ["OMP_NUM_THREADS"], "/driver", os.getcwd())}


@pytest.mark.slow
def test_a_lost_nodes_shards_are_done_by_the_node_that_is_left(
    nodes: Cluster, tmp_path: Path
) -> None:
    driver = nodes.driver(TOY, nodes.address, tmp_path, 12, 1)
    until(lambda: len(workers(tmp_path)) == 2)
    nodes.other.raylet.kill()
    code, records, messages = end(driver)
    nodes.other.end()
    nodes.add()
    assert code == 0, messages
    check(tmp_path, 12)
    assert sorted(record["shard"] for record in records) == [*range(12)]
    assert len(loss(messages)) == 1


@pytest.mark.slow
def test_a_frozen_node_that_comes_back_does_no_harm(nodes: Cluster, tmp_path: Path) -> None:
    driver = nodes.driver(TOY, nodes.address, tmp_path, 12, 1)
    until(lambda: len(workers(tmp_path)) == 2)
    ours = {process.pid for process in nodes.other.processes()}
    (frozen,) = workers(tmp_path) & ours
    nodes.other.signal(signal.SIGSTOP)
    code, records, messages = end(driver)
    assert code == 0, messages
    assert len(loss(messages)) == 1
    assert sorted(record["shard"] for record in records) == [*range(12)]
    held = [shard for shard, process in begun(tmp_path) if process == frozen]
    nodes.other.signal(signal.SIGCONT)
    until(lambda: gone(frozen))
    nodes.other.end()
    nodes.add()
    assert held, "it had begun a shard"
    check(tmp_path, 12)


@pytest.mark.slow
def test_workers_leave_with_their_driver_and_the_same_command_does_what_is_missing(
    nodes: Cluster, tmp_path: Path
) -> None:
    args = (TOY, nodes.address, tmp_path, 16, 0.5)
    first = nodes.driver(*args)
    until(lambda: len([*tmp_path.glob("0*.txt")]) >= 2)
    first.kill()
    first.communicate()
    before = workers(tmp_path)
    until(lambda: all(map(gone, before)))

    second = nodes.driver(*args)
    until(lambda: workers(tmp_path) - before)
    second.send_signal(signal.SIGTERM)
    code, records, messages = end(second)
    assert code == Exit.STOPPED, messages
    assert "run the same command again to resume" in messages
    until(lambda: all(map(gone, workers(tmp_path))))

    done = len([*tmp_path.glob("0*.txt")])
    code, records, messages = end(nodes.driver(*args))
    assert code == 0, messages
    assert len(records) == 16 - done
    check(tmp_path, 16)


@pytest.mark.slow
def test_bad_data_and_a_shard_that_kills_its_workers_end_the_run(
    nodes: Cluster, tmp_path: Path
) -> None:
    bad = nodes.driver(TOY, nodes.address, tmp_path, [0, 1001], 0)
    code, _, messages = end(bad)
    assert code == Exit.DATA
    assert "text.txt:7: is not a number" in messages
    deadly = nodes.driver(TOY, nodes.address, tmp_path, [1000, 1, 2], 0)
    code, _, messages = end(deadly)
    assert code == Exit.CANNOT_CONTINUE
    assert "4 workers were lost with shard 1000: " in messages
    assert len(loss(messages)) == 3, "the fourth ends the run"


HELPERS = {"RuntimeEnvAgent": "ray::RuntimeEnvAgent", "raylet": "raylet"}


@pytest.mark.slow
@pytest.mark.parametrize("helper", HELPERS)
@pytest.mark.parametrize("when", ["before a worker is there", "in the middle"])
def test_a_helper_of_ray_that_dies_ends_a_local_run_within_a_minute(
    when: str, helper: str, nodes: Cluster, tmp_path: Path
) -> None:
    # _place is called between the connection and the first worker.
    code = f"""if True:
        import os, sys, time
        from vgtools.batch import cluster
        from tests.tiny.cluster import main
        placed = cluster._place
        def place(gpu):
            open({str(tmp_path / "connected")!r}, "w").close()
            while {when != "in the middle"} and not os.path.exists({str(tmp_path / "killed")!r}):
                time.sleep(0.05)
            return placed(gpu)
        cluster._place = place
        main()
    """
    driver = subprocess.Popen(
        [sys.executable, "-c", code, "local", str(tmp_path), "500", "0.5"],
        env=nodes.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if when == "in the middle":
        until(lambda: len(workers(tmp_path)) == 2)
    until((tmp_path / "connected").exists)
    below = psutil.Process(driver.pid).children(recursive=True)
    (victim,) = (process for process in below if process.name() == HELPERS[helper])
    victim.kill()
    (tmp_path / "killed").touch()
    start = time.monotonic()
    code_, _, messages = end(driver)
    print(f"{helper}, {when}: {time.monotonic() - start:.1f} s")
    assert code_ == Exit.UNAVAILABLE, messages
    assert re.search(r"^--ray local: Ray ended on this machine; .* resumes$", messages, re.M)
    assert time.monotonic() - start < 60


BUSY = {"CPU": 0.0}
IDLE = {"CPU": 4.0}


@pytest.mark.parametrize(
    ("address", "seconds", "nodes_left", "free", "why"),
    [
        ("head:1", 10, {"me": 4, "other": 4}, IDLE, ""),  # a process takes its time to start
        ("head:1", 3600, {"me": 0, "other": 4}, BUSY, ""),  # others have the places
        ("head:1", 3600, {"me": 0, "other": 4}, {"CPU": 1.0}, ""),  # in parts, perhaps
        ("head:1", 41, {"me": 0, "other": 4}, IDLE, "Ray started no worker in 41 s"),
        ("head:1", 41, {"me": 1}, BUSY, "no node is left that has a place"),
        ("local", 41, {"me": 4}, BUSY, "Ray started no worker in 41 s"),
        ("local", 10, {"me": 4}, BUSY, ""),
        ("head:1", 1, {"other": 4}, IDLE, "Ray ended on this machine"),
    ],
)
def test_workers_wait_for_a_place_but_not_for_ever(
    address: str,
    seconds: float,
    nodes_left: dict[str, int],
    free: dict[str, float],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dead = {"NodeID": "dead", "Alive": False, "Resources": {"CPU": 8}}
    alive = [
        {"NodeID": name, "Alive": True, "Resources": {"CPU": cores}}
        for name, cores in nodes_left.items()
    ]
    ray = SimpleNamespace(
        get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: "me"),
        nodes=lambda: [dead, *alive],
        cluster_resources=lambda: {"CPU": 4.0},
        available_resources=lambda: free,
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    place = {"num_cpus": 2, "num_gpus": 0}
    queue = cluster._Queue(print, deque(), address, place, True, "shard", 2, print)
    with pytest.raises(DataError, match=why) if why else contextlib.nullcontext() as caught:
        queue._check_cluster(seconds)
    assert caught is None or caught.value.code == Exit.UNAVAILABLE


@pytest.mark.slow
def test_a_worker_may_take_longer_to_load_than_to_start(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra vgtools[ray] is not installed")
    code = f"""if True:
        import time
        from vgtools.batch import cluster
        from tests.tiny.cluster import Work
        cluster._PATIENCE = 5
        class Slow(Work):
            def __call__(self):
                time.sleep(12)
                return super().__call__()
        print(sum(1 for _ in cluster.run(Slow({str(tmp_path)!r}, 0), [0, 1], "local", 1)))
    """
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | SETTINGS, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


@pytest.fixture(scope="module")
def long_text(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> tuple[Path, bytes]:
    """A text, and the vokens that one process gives it."""
    folder = tmp_path_factory.mktemp("long")
    (folder / "a.txt").write_text("".join(f"{line}\n" for line in text(700, seed=5)))
    assert cli.run([*map(str, vokenize(folder / "a.txt", tiny, folder / "one.jsonl"))]) == 0
    return folder / "a.txt", (folder / "one.jsonl").read_bytes()


def vokenize(source: Path, tiny: Path, output: object, *more: object) -> list[object]:
    index = ("--index", tiny / "vg.faiss", "--device", "cpu")
    return ["vokenize", source, *index, "-o", output, *more]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*")) if folder.exists() else []


@pytest.mark.slow
def test_vokens_with_a_node_killed_are_those_of_one_process(
    nodes: Cluster, tmp_path: Path, tiny: Path, long_text: tuple[Path, bytes]
) -> None:
    source, expected = long_text
    ray = ("--ray", nodes.address, "--shard-size", 400)
    args = vokenize(source, tiny, f"{tmp_path}/x.jsonl/", *ray)
    driver = nodes.driver("vgtools", *args)
    until(lambda: len(names_in(tmp_path / "x.jsonl")) > 20)
    nodes.other.signal(signal.SIGKILL)
    out, messages = driver.communicate(timeout=400)
    nodes.other.end()
    nodes.add()
    assert driver.returncode == 0, messages
    assert out == "", "Ray prints to stderr"
    assert len(loss(messages)) <= 1, "a fast machine is done before the loss is noticed"
    shards = Shards(tmp_path / "x.jsonl")
    assert b"".join(Path(file.path).read_bytes() for file in shards.files()) == expected
    again = nodes.driver("vgtools", *args)
    assert "is up to date" in again.communicate(timeout=400)[1]


@pytest.mark.slow
def test_two_drivers_on_one_folder_both_end_well(
    nodes: Cluster, tmp_path: Path, tiny: Path, long_text: tuple[Path, bytes]
) -> None:
    source, expected = long_text
    ray = ("--ray", nodes.address, "--shard-size", 3000, "--workers", 1, "-q")
    args = vokenize(source, tiny, f"{tmp_path}/x.jsonl/", *ray)
    drivers = [nodes.driver("vgtools", *args) for _ in range(2)]
    for driver in drivers:
        messages = driver.communicate(timeout=400)[1]
        assert driver.returncode == 0, messages
    shards = Shards(tmp_path / "x.jsonl")
    assert b"".join(Path(file.path).read_bytes() for file in shards.files()) == expected
    data = [name for name in names_in(tmp_path / "x.jsonl") if "-" in name]
    assert len(data) == len(shards), "what was made twice has one name"


WRONG: dict[str, list[str]] = {
    "standard input": ["-", "-o", "x.jsonl/", "--ray", "auto"],
    "--ray writes a folder of shards: -o X.jsonl/, got -o -": ["a.txt", "--ray", "auto"],
    "-o X.jsonl/, got -o x.jsonl": ["a.txt", "-o", "x.jsonl", "--ray", "auto"],
    "--workers belongs to --ray": ["a.txt", "-o", "x.jsonl/", "--workers", "2"],
    "two ways": ["a.txt", "-o", "x.jsonl/", "--ray", "auto", "--shard", "0/2"],
    "--limit does not go with": ["a.txt", "-o", "x.jsonl/", "--ray", "auto", "--limit", "2"],
}


@pytest.mark.parametrize("why", WRONG)
@pytest.mark.parametrize("command", ["vokenize", "retrieve", "revokenize"])
def test_flags_that_do_not_go_together(
    command: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["-t", "bert"] if command == "revokenize" else ["--index", "vg.faiss"]
    assert cli.run([command, *WRONG[why], *more]) == Exit.USAGE
    assert why in capsys.readouterr().err


MISFITS = {
    "ray.__version__ = '0.1'": ("Ray: 0.1", Exit.UNAVAILABLE),
    "os.environ['RAY_ADDRESS'] = 'ray://127.0.0.1:1'": ("ray job submit", Exit.USAGE),
    "gpu = True": ("has no GPU; --device cpu", Exit.UNAVAILABLE),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", MISFITS)
def test_a_cluster_that_does_not_fit_is_refused(nodes: Cluster, change: str) -> None:
    message, expected = MISFITS[change]
    code = f"""if True:
        import os, ray, sys
        from vgtools.batch import cluster
        from vgtools.io import DataError
        gpu = False
        os.environ["RAY_ADDRESS"] = "{nodes.address}"
        {change}
        try:
            next(cluster.run(print, [0], "auto", gpu=gpu))
        except DataError as error:
            print(error)
            sys.exit(error.code)
    """
    done = subprocess.run(
        [sys.executable, "-c", code], env=nodes.environment, capture_output=True, text=True
    )
    assert done.returncode == expected, done.stderr
    assert message in done.stdout


@pytest.mark.slow
def test_no_cluster_is_69(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra vgtools[ray] is not installed")
    with pytest.raises(DataError, match=r"--ray 127.0.0.1:1: .*--ray local one") as caught:
        next(cluster.run(Work(str(tmp_path), 0), [0], "127.0.0.1:1"))
    assert caught.value.code == Exit.UNAVAILABLE


@pytest.mark.slow
@pytest.mark.parametrize("address", ["127.0.0.1", "lokal", ":6379", "head:port", "a:b:1"])
def test_an_address_of_another_form_is_refused(address: str, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra vgtools[ray] is not installed")
    with pytest.raises(DataError, match=f"--ray {address}: expected auto, local or HOST:PORT") as e:
        next(cluster.run(Work(str(tmp_path), 0), [0], address))
    assert e.value.code == Exit.USAGE


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install 'vgtools\[ray\]'") as caught:
        next(cluster.run(Work(str(tmp_path), 0), [0], "local"))
    assert caught.value.code == Exit.UNAVAILABLE
