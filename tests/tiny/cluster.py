"""A Ray cluster on this machine, whose nodes can be killed and frozen; a driver with toy shards.

    python -m tests.tiny.cluster ADDRESS FOLDER SHARDS SECONDS

does what is missing of a number of shards by two workers, each in SECONDS, and prints a record per
shard. Shard 1000 ends its worker, shard 1001 is bad data.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil

from vgtools.batch import cluster
from vgtools.io.errors import DataError

# A node that does not answer is lost after 15 s, not after a minute.
QUICK = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "3",
}
SETTINGS = {
    "RAY_AUTH_MODE": "disabled",  # it would write ~/.ray/auth_token
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # whoever fills the machine, not our workers
    **QUICK,
}


def until(true: Callable[[], Any], seconds: float = 200) -> Any:
    """Return what is true as soon as it is."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := true():
            return value
        time.sleep(0.1)
    raise AssertionError(f"not true after {seconds} s")


class Node:
    """One `ray start --block`, with everything below it."""

    def __init__(self, environment: dict[str, str], *args: str) -> None:
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1"]
        common = ["--node-ip-address=127.0.0.1", "--object-store-memory=80000000"]
        self.process = subprocess.Popen(
            [*ray, *common, "--disable-usage-stats", *args],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def processes(self) -> list[psutil.Process]:
        """Return the processes of the node, `ray start` last."""
        root = psutil.Process(self.process.pid)
        return [*root.children(recursive=True), root]

    @property
    def raylet(self) -> psutil.Process:
        return next(p for p in self.processes() if p.name() == "raylet")

    def signal(self, number: int) -> None:
        """Send every process of the node a signal: that is what the node's power does."""
        for process in self.processes():
            if process.is_running():
                process.send_signal(number)

    def end(self) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
            self.process.wait()


class Cluster:
    """A head and another node of one core each.

    Attributes:
        address: of the cluster.
        environment: of its nodes and its drivers.
        head: the node that the drivers are on.
        other: the node that is killed, or frozen.
    """

    def __init__(self, **environment: str) -> None:
        self.folder = tempfile.mkdtemp(prefix="vg", dir="/tmp")  # sockets need short names
        self.environment = {**os.environ, **SETTINGS, "RAY_TMPDIR": self.folder, **environment}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        port = self.address.partition(":")[2]
        # Without a dashboard a node still has an agent; it takes half the time of the start.
        self.head = Node(self.environment, "--head", f"--port={port}", "--include-dashboard=false")
        until(self._answers)
        self.add()

    def _answers(self) -> bool:
        host, _, port = self.address.partition(":")
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0

    def add(self) -> None:
        self.other = Node(self.environment, f"--address={self.address}")

    def driver(self, *args: object, **environment: str) -> subprocess.Popen[str]:
        """Start a Python module that uses the cluster."""
        return subprocess.Popen(
            [sys.executable, "-m", *map(str, args)],
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> None:
        self.other.end()
        self.head.end()
        shutil.rmtree(self.folder, ignore_errors=True)


class Toy:
    """A shard is a file with its number; who begins one notes its process."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder = folder
        self.seconds = seconds

    def __call__(self, shard: int) -> dict[str, Any]:
        me = os.getpid()
        (self.folder / f"begun-{shard}-{me}").touch()
        if shard == 1000:
            os.kill(me, signal.SIGKILL)
        if shard == 1001:
            raise DataError("is not a number", "text.txt", 7)
        time.sleep(self.seconds)
        private = self.folder / f".{shard}.{me}"
        private.write_text(f"{shard}\n" * 1000)
        private.replace(self.folder / f"{shard:06d}.txt")
        names = ("OMP_NUM_THREADS", "XDG_CACHE_HOME")
        return {
            "shard": shard,
            "process": me,
            "folder": os.getcwd(),
            **{n: os.environ.get(n) for n in names},
        }


class Work:
    """Makes a toy."""

    def __init__(self, folder: str, seconds: float) -> None:
        self.folder = Path(folder)
        self.seconds = seconds

    def __call__(self) -> Toy:
        return Toy(self.folder, self.seconds)


def main() -> None:
    address, folder, shards, seconds = sys.argv[1:]
    todo = list(range(int(shards))) if shards.isdigit() else json.loads(shards)
    todo = [n for n in todo if not Path(folder, f"{n:06d}.txt").exists()]
    work = Work(folder, float(seconds))
    try:
        with closing(cluster.run(work, todo, address, 2)) as records:
            for record in records:
                os.write(1, json.dumps(record).encode() + b"\n")
    except DataError as error:
        print(error, file=sys.stderr)
        sys.exit(error.code)


if __name__ == "__main__":
    main()
