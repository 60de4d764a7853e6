"""What tests ask of training commands: records, bytes, and a stop in the middle of a run."""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vgtools.training import session


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]


def hashes(run: Path) -> dict[str, str]:
    """Return the hash of each file of a run, less the command line in run.json and manifests."""
    files = sorted(p for p in run.rglob("*") if p.is_file() and p.name != "run.json")
    return {str(p.relative_to(run)): hashlib.sha256(_contents(p)).hexdigest() for p in files}


def _contents(file: Path) -> bytes:
    if file.suffix != ".json":
        return file.read_bytes()
    body = json.loads(file.read_bytes())
    body.pop("argv", None)
    return json.dumps(body).encode()


def refused(capfd: pytest.CaptureFixture[str], *parts: str) -> None:
    """Check that one line on stderr says all of this."""
    error = capfd.readouterr().err
    assert error.startswith("vg: ")
    assert error.count("\n") == 1
    assert all(part in error for part in parts), error


def stop_and_resume(
    pretrain: Callable[[Path], int], folder: Path, way: str, step: int
) -> tuple[Path, Path]:
    """Pretrain to the end, and once more stopped and started again.

    Args:
        pretrain: run -> exit code of the command.
        folder: of the runs.
        way: how it is stopped: `signal` (SIGTERM) or `kill` (at once).
        step: during which it is stopped.

    Returns:
        The run that was stopped, and the unbroken one.
    """
    cut, whole = folder / "cut", folder / "whole"
    assert pretrain(whole) == 0
    real = session.mean_record

    def interrupted(notes: dict[str, Any], record: dict[str, Any], due: bool) -> Any:
        if record["step"] == step:
            if way == "kill":
                raise KeyboardInterrupt
            signal.raise_signal(signal.SIGTERM)
        return real(notes, record, due)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "mean_record", interrupted)
        assert pretrain(cut) == (75 if way == "signal" else 130)
    assert (cut / "checkpoint.safetensors").exists()
    assert not (cut / "run.json").exists()
    assert pretrain(cut) == 0
    return cut, whole
