"""What every test shares: no hub, no network, and `vg` as a real process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
# One thread per process, unless asked for more: tests are many and tiny, and run side by side.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ["OMP_NUM_THREADS"])

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
