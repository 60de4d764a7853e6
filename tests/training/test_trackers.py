"""Records in a tracker of Accelerate's: what it gets, once, with its step; refused without it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import save_encoder, save_feats
from vgtools.cli import run
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import dumps
from vgtools.training import trackers

tracking = pytest.importorskip("accelerate.tracking", reason="accelerate is not installed")


SIZES = "--epochs 2 --batch-size 8 --hidden 8 --dim 4 --layers 2 --hold-out 3"


class StubTracker(tracking.GeneralTracker):  # type: ignore[misc, name-defined]
    """A tracker of Accelerate's own interface that notes what it is told."""

    name = "tensorboard"
    requires_logging_directory = True
    told: list[Any] = []  # noqa: RUF012

    def __init__(self, run_name: str, **more: Any) -> None:
        super().__init__()
        self.told.append((run_name, more))

    @property
    def tracker(self) -> None:
        return None

    @tracking.on_main_process
    def start(self) -> None:
        tracking.logger.debug("starts")  # raises unless Accelerate knows the processes

    @tracking.on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.told.append(values)

    @tracking.on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **more: Any) -> None:
        self.told.append((step, values))

    def finish(self) -> None:
        self.told.append("finish")


class StubService(StubTracker):
    name = "trackio"
    requires_logging_directory = False


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    stubs = {"tensorboard": StubTracker, "trackio": StubService}
    monkeypatch.setattr(tracking, "LOGGER_TYPE_TO_CLASS", stubs)
    monkeypatch.setattr(trackers, "find_spec", lambda name: object())
    monkeypatch.setattr(StubTracker, "told", [])
    yield StubTracker.told
    trackers.log_to(None)


def train(folder: Path, *more: str) -> int:
    files = (folder / "captions.jsonl", folder / "feats.npy", "-e", folder / "encoder")
    out = ("--device", "cpu", "-q", "-o", folder / "run")
    return run([*map(str, ("train-matcher", *files, *SIZES.split(), *out)), *more])


def test_a_training_logs_its_records_and_changes_nothing(tmp_path: Path, told: list[Any]) -> None:
    save_encoder(tmp_path / "encoder")
    save_feats(tmp_path / "feats.npy")
    rows = [{"image": f"image{n:03}", "text": f"a dog runs {n}"} for n in range(12)]
    (tmp_path / "captions.jsonl").write_bytes(b"".join(map(dumps, rows)))
    assert train(tmp_path, "--log-to", "tensorboard") == 0
    lines = (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines()
    records = [json.loads(line) for line in lines]
    (name, more), *logged, last = told
    assert (name, more) == ("run", {"logging_dir": tmp_path / "tensorboard"})
    assert last == "finish"
    assert [step for step, _ in logged] == [record["step"] for record in records]
    for (_, values), record in zip(logged, records, strict=True):
        assert values["loss"] == record["loss"]
        assert values["valid.word.r1"] == record["valid"]["word"]["r1"]
        assert "best" not in values
    before = (tmp_path / "run" / "run.json").read_bytes()
    told.clear()
    assert train(tmp_path) == 0  # off by default, and no setting of the run
    assert told == []
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_seeds_are_told_apart(tmp_path: Path, told: list[Any]) -> None:
    record = {"seed": 3, "step": 7, "loss": 0.5}
    for name in ("tensorboard", "trackio"):
        trackers.log_to(name)
        with trackers.tracked(tmp_path / "x", {"lr": 1}) as log:
            log(record)
    values = {"seed-3/step": 7, "seed-3/loss": 0.5}
    first = [("x", {"logging_dir": tmp_path / "tensorboard"}), (7, values), "finish"]
    # It takes no step twice, as another seed would have it.
    second = [("vgtools", {"name": "x"}), {"lr": 1}, (None, values), "finish"]
    assert told == [*first, *second]


def test_a_tracker_that_is_missing_or_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: StubTracker) -> None:
        raise ValueError("no login")

    monkeypatch.setattr(StubTracker, "start", refuse)
    trackers.log_to("tensorboard")
    with (
        pytest.raises(DataError, match="--log-to tensorboard: no login") as caught,
        trackers.tracked(tmp_path, {}),
    ):
        pass
    assert caught.value.code == Exit.UNAVAILABLE
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    assert train(tmp_path, "--log-to", "wandb") == Exit.UNAVAILABLE
    assert "pip install 'vgtools[trackers]' wandb" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()
