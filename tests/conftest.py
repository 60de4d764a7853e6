"""What every test shares: no hub, no network, and `vg` as a real process."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.tiny.s3 import Server

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
# One thread per process, unless asked for more: tests are many and tiny, and run side by side.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ["OMP_NUM_THREADS"])

# A machine that does other work is slow; no test rests on the time of one example.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

Runner = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any connection other than one on this machine fails the test that makes it."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and str(address[0]) not in (
            "127.0.0.1",
            "::1",
            "localhost",
        ):
            raise AssertionError(f"a test tried to connect to {address}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture(autouse=True)
def _fresh_pipes() -> None:
    """A pipe is read once per command; tests are commands of their own, and names come again."""
    from vgtools.io.streams import PIPES

    PIPES.clear()


@pytest.fixture(autouse=True)
def _fresh_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--offline` and `--quiet` of a command do not outlive the test that gave them."""
    monkeypatch.setattr("vgtools.io.remote._offline", False)
    monkeypatch.setattr("vgtools.io.process._quiet", False)


def vg_command(*args: str | Path) -> list[str]:
    """Return the command line of `vg` with this interpreter."""
    return [sys.executable, "-m", "vgtools", *map(str, args)]


@pytest.fixture(scope="session")
def vg() -> Runner:
    """Run `vg ARGS…` as a process and return what it did; keywords go to subprocess.run."""

    def run(*args: str | Path, **keywords: Any) -> subprocess.CompletedProcess[bytes]:
        keywords = {
            "capture_output": True,
            "timeout": 120,
            **({} if "stdin" in keywords else {"input": b""}),
            **keywords,
        }
        return subprocess.run(vg_command(*args), **keywords)

    return run


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `encoder`, `run`, `feats.npy` and `vg.faiss`, tiny and random, built as a user
    builds them.
    """
    from tests.tiny import save_encoder, save_feats, save_run_of
    from vgtools.cli import run

    folder = tmp_path_factory.mktemp("tiny")
    save_run_of(folder / "run", save_encoder(folder / "encoder"))
    feats = save_feats(folder / "feats.npy")
    args = [
        "build-index",
        feats,
        "--matcher",
        folder / "run",
        "-o",
        folder / "vg.faiss",
        "--device",
        "cpu",
        "-q",
    ]
    assert run([*map(str, args)]) == 0
    return folder


@pytest.fixture(scope="module")
def s3() -> Iterator[Server]:
    """An S3 server on this machine."""
    pytest.importorskip("s3fs", reason="the extra vgtools[s3] is not installed")
    pytest.importorskip("moto", reason="moto[server] is not installed; make test-cluster")
    from tests.tiny.s3 import Server

    running = Server()
    try:
        yield running
    finally:
        running.end()


@pytest.fixture
def bucket(s3: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty bucket on a server that is not busy."""
    from s3fs import S3FileSystem

    for name, value in {**s3.environment, "XDG_CACHE_HOME": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    S3FileSystem.clear_instance_cache()
    name = f"b{os.getpid()}-{next(_numbers)}"
    S3FileSystem().mkdir(name)
    yield f"s3://{name}"
    s3.busy(0)


_numbers = itertools.count()
