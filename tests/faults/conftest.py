"""What the tests of this folder share: artefacts, a server, a workspace."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.run import build_artefacts
from tests.faults.server import Server
from tests.faults.trials import Workspace


@pytest.fixture(scope="session")
def artefacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The good inputs, made once for all test processes."""
    base = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        base = base.parent
    with open(base / "artefacts.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (base / "artefacts.done").exists():
            build_artefacts(base / "artefacts")
            (base / "artefacts.done").touch()
    return base / "artefacts"


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture(scope="session")
def space(artefacts: Path, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("faults") / "w", artefacts, server)
