"""`vg status`: what is said of a folder of shards that is begun, damaged, complete."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.batch.test_run_progress import Count, Target
from vgtools.batch import run
from vgtools.cli import run as vg
from vgtools.io.errors import Exit
from vgtools.io.files import dumps
from vgtools.io.written import seal


class Sized(Count):
    """As `Count`, on a device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.config = {"limit": None, "device": device}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of five shards, the second part of which another device has made."""
    (tmp_path / "x.txt").write_text("a line of words\n" * 100)
    for part, device in (("0/2", "cpu"), ("1/2", "cuda")):
        task = Sized(device)
        target = Target(str(tmp_path / "y.jsonl") + "/", shard=part, shard_size=320)
        run.write(
            task, [str(tmp_path / "x.txt")], target, name="t", unit="lines", inputs=[],
            make=lambda made=task: made,
        )  # fmt: skip
    return tmp_path / "y.jsonl"


def status(capfdbinary: pytest.CaptureFixture[bytes], *folders: Path) -> Sequence[dict[str, Any]]:
    capfdbinary.readouterr()
    assert vg(["status", *(f"{folder}/" for folder in folders)]) == 0
    return [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]


def test_a_complete_folder(folder: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    for number in range(5):
        os.utime(folder / f"{number:06d}.json", (0, 1000 + 60 * number))
    assert status(capfdbinary, folder, folder)[1] == {
        "folder": f"{folder}/",
        "shards": 5,
        "done": 5,
        "missing": 0,
        "damaged": [],
        "complete": True,
        "shards_per_hour": 60.0,
        "seconds_left": 0,
        "made_by": {f"{socket.gethostname()} cpu": 3, f"{socket.gethostname()} cuda": 2},
        "at_work": [],
    }


def test_missing_damaged_and_held_shards(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for number in range(5):
        os.utime(folder / f"{number:06d}.json", (0, 1000 + 60 * number))
    (folder / "000001.json").unlink()
    (folder / "000003.json").write_text("{")
    next(folder.glob("000004-*.jsonl")).write_text("short")
    (folder / f".000001.{socket.gethostname()}.{os.getpid()}.0123abcd.jsonl").touch()
    (folder / ".000003.elsewhere.12.0123abcd.jsonl").touch()
    (found,) = status(capfdbinary, folder)
    assert (found["done"], found["missing"], found["damaged"]) == (2, 1, [3, 4])
    assert found["complete"] is False
    assert (found["shards_per_hour"], found["seconds_left"]) == (30.0, 360)
    assert found["at_work"] == [
        {"shard": 1, "host": socket.gethostname(), "process": os.getpid()},
        {"shard": 3, "host": "elsewhere", "process": 12},
    ]


@pytest.mark.parametrize(
    ("changes", "shards"),
    [
        ({"units": 10**12, "bytes": 10**12, "shard_size": 1}, 10**12),
        ({"units": 2**53 - 1, "bytes": 2**53 - 1, "shard_size": 1}, 2**53 - 1),
        ({"units": 2**53, "bytes": 2**53}, None),
        ({"units": 2**63}, None),
        ({"shard_size": 0}, None),
        ({"sha256": None}, None),
        ({"more": 1}, 5),
    ],
)
def test_a_plan_that_was_edited_and_sealed_again(
    folder: Path,
    changes: dict[str, Any],
    shards: int | None,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    body = json.loads((folder / "plan.json").read_text())
    del body["sha256"]
    body["shard_size"] = changes.pop("shard_size", body["shard_size"])
    body["inputs"][0] |= changes
    (folder / "plan.json").write_bytes(dumps(body | {"sha256": seal(body)}))
    if shards is None:
        assert vg(["status", f"{folder}/"]) == Exit.DATA
        return
    (found,) = status(capfdbinary, folder)
    assert found["shards"] == shards
    assert found["done"] + found["missing"] + len(found["damaged"]) == shards


def test_what_is_no_folder_of_shards(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert vg(["status", f"{tmp_path}/"]) == Exit.NO_INPUT
    assert "expected a folder of shards" in capfd.readouterr().err
    (tmp_path / "rows.jsonl").write_text("{}\n")
    assert vg(["status", str(tmp_path / "rows.jsonl")]) == Exit.NO_INPUT
    assert "expected a folder of shards" in capfd.readouterr().err
    (tmp_path / "plan.json").write_text('{"config": {}')
    assert vg(["status", f"{tmp_path}/"]) == Exit.DATA
