"""Everything around the loop: the run folder, checkpoints, signals, records."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from torch import Tensor, nn

from vgtools.io import own
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import sha256_file
from vgtools.io.inputs import Inputs
from vgtools.io.process import Lock
from vgtools.models.runs import open_run
from vgtools.training import session as training_session
from vgtools.training.loop import TrainConfig, train
from vgtools.training.session import Session, TrainingRun, epoch_means, mean_losses, mean_record


class Line(nn.Module):
    """y = w x with two losses; `w` starts at 1."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([[1.0]]))

    def forward(self, batch: float) -> dict[str, Tensor]:
        return {"up": self.w.sum() * batch, "square": (self.w**2).sum()}


def numbers(*values: float) -> Callable[[int, int], Iterator[float]]:
    return lambda epoch, first: iter(values[first:])


def config(**changes: Any) -> TrainConfig:
    return TrainConfig(
        **({"epochs": 1, "steps": 10, "lr": 0.5, "clip": 0.0, "log_every": 1} | changes)
    )


BOTH = {"up": 1.0, "square": 0.5}


# ---------------------------------------------------------------------------------------- sessions


def session(folder: Path, **options: Any) -> Session:
    folder.mkdir(exist_ok=True)
    return Session("toy", folder, torch.device("cpu"), **options)


@pytest.mark.parametrize(("name", "current"), [("cuda", []), ("cuda:1", ["cuda:1"])])
def test_a_gpu_without_a_number_is_the_current_one(
    monkeypatch: pytest.MonkeyPatch, name: str, current: list[str]
) -> None:
    told = list[str]()
    monkeypatch.setattr(training_session, "pick_device", torch.device)
    # As torch has it: a device without a number cannot be made the current one.
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: told.append(str(device)))
    assert training_session.process_device(name) == torch.device(name)
    assert told == current


def test_records_go_to_stdout_progress_and_lock_go_away(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with session(tmp_path / "run", quiet=True) as own:
        assert own.first
        run = own.open("toy", {"a": 1})
        with pytest.raises(DataError, match="is being written by") as error:
            Lock(tmp_path / "run")
        assert error.value.code == Exit.STOPPED
        for record in own.fit(Line(), numbers(1.0, 1.0), config(), weights=BOTH):
            own.print({"step": record["step"], "end": record["end"]})
        own.finish(lambda: ({"toy": 1}, None, {"w": torch.zeros(1)}))
    assert run.complete
    out, err = capfd.readouterr()
    assert [json.loads(line) for line in out.splitlines()] == [
        {"step": 1, "end": False},
        {"step": 2, "end": False},
        {"step": 2, "end": True},
    ]
    assert err == ""
    assert not (tmp_path / "run.lock").exists()
    assert open_run(tmp_path / "run", "toy").info["toy"] == 1


def test_the_clock_counts_steps_from_the_last_checkpoint_whoever_wrote_it(tmp_path: Path) -> None:
    saved = []
    with session(tmp_path / "run", quiet=True, save_steps=3) as own:
        run = own.open("toy", {})
        for record in own.fit(Line(), numbers(*[1.0] * 8), config(), weights=BOTH):
            saved.append(run.saved_step)
            if record["step"] == 4:
                run.save()
    # Seen before each record's own checkpoint: after step 3 by the clock, after 4 by hand, after 7.
    assert saved == [0, 0, 0, 3, 4, 4, 4, 7, 7]


def test_seconds_are_a_clock_too(tmp_path: Path) -> None:
    with session(tmp_path / "run", quiet=True, save_seconds=-1) as own:
        run = own.open("toy", {})
        steps = [
            (record["step"], run.saved_step)
            for record in own.fit(Line(), numbers(1.0, 1.0), config(), weights=BOTH)
        ]
    assert steps == [(1, 0), (2, 1), (2, 2)]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_stops_after_a_checkpoint(tmp_path: Path, number: int, code: int) -> None:
    with (
        pytest.raises(DataError, match="run the same command again") as error,
        session(tmp_path / "run", quiet=True) as own,
    ):
        run = own.open("toy", {})
        for record in own.fit(Line(), numbers(1.0, 1.0, 1.0), config(), weights=BOTH):
            run.note({"step": record["step"]})
            if record["step"] == 2:
                signal.raise_signal(number)
    assert error.value.code == code
    assert not (tmp_path / "run.lock").exists()
    again = TrainingRun(tmp_path / "run", "toy", {})
    assert (again.state.step, again.records) == (2, [{"step": 1}, {"step": 2}])


def test_a_lack_of_memory_is_reported_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    class Rows(Line):
        def forward(self, batch: Any) -> dict[str, Tensor]:
            if len(batch[0]) > 2:
                raise torch.OutOfMemoryError("out of memory")
            return {"up": self.w.sum() * batch[0].sum()}

    def halve(batch: Any) -> Any:
        (rows,) = batch
        middle = len(rows) // 2
        return ((rows[:middle],), (rows[middle:],)) if middle else (batch,)

    batches = [(torch.ones(8),), (torch.ones(8),)]
    with session(tmp_path / "run", quiet=True) as own:
        run = own.open("toy", {})
        weights = {"up": 1.0}
        for _ in own.fit(Rows(), lambda *_: batches, config(), weights=weights, halve=halve):
            pass
        assert run.oom_splits == 4
    said = capfd.readouterr().err
    assert said == "vg toy: step 1: out of memory: batches are now split into 4\n"


def test_a_restart_discards_the_folders_of_parts(tmp_path: Path) -> None:
    with session(tmp_path / "run") as own:
        own.open("toy", {"a": 1}, parts=(r"seed-\d+",))
        own.finish(lambda: ({}, None, {"w": torch.zeros(1)}))
    (tmp_path / "run" / "seed-7").mkdir()
    with session(tmp_path / "run") as own:
        run = own.open("toy", {"a": 2}, restart=True, parts=(r"seed-\d+",))
        assert not run.complete
        run.save()
    assert not (tmp_path / "run" / "seed-7").exists()


# ------------------------------------------------------------------------------------- run folders


def fit(path: Path, scores: list[float], settings: dict[str, Any], **options: Any) -> TrainingRun:
    run = TrainingRun(path, "toy", settings, **options)
    model = Line()
    plan = config(epochs=len(scores), lr=0.25)
    if not run.complete:
        for record in train(
            model, numbers(1.0), plan, weights={"up": 1.0, "square": 0.0}, state=run.state
        ):
            if record["end"]:
                run.end_epoch(model, {"epoch": record["epoch"]}, scores[record["epoch"] - 1])
        run.finish({"toy": 1})
    return run


def test_the_best_epoch_is_kept_and_of_equals_the_later(tmp_path: Path) -> None:
    run = fit(tmp_path / "run", [1.0, 3.0, 3.0, 2.0], {"a": 1})
    assert [r["best"] for r in run.records] == [True, True, True, False]
    opened = open_run(tmp_path / "run", "toy")
    assert opened.weights["w"].item() == pytest.approx(0.25)  # three steps of 0.25 from 1
    assert opened.info["best"] == {"epoch": 3, "best": True}
    assert opened.info["config"] == {"a": 1}
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "metrics.jsonl",
        "run.json",
        "toy.safetensors",
    ]


def test_short_epochs_of_a_large_network_share_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vgtools.training.session.LARGE", 0)
    run = TrainingRun(tmp_path / "run", "toy", {})
    model = Line()
    plan = config(epochs=3, lr=0.25)
    losses = {"up": 1.0, "square": 0.0}
    saved = list[bool]()
    for record in train(model, numbers(1.0), plan, weights=losses, state=run.state):
        if record["end"]:
            run.end_epoch(model, {"epoch": record["epoch"]}, [1.0, 3.0, 2.0][len(saved)])
            saved.append((tmp_path / "run" / "checkpoint.safetensors").exists())
    assert saved == [False, False, False]
    assert run.best_weights()["w"].item() == pytest.approx(0.5)  # two steps of 0.25 from 1
    run.save()  # of a signal or a clock: with the weights that are best
    resumed = TrainingRun(tmp_path / "run", "toy", {})
    assert [record["epoch"] for record in resumed.records] == [1, 2, 3]
    assert resumed.best_weights()["w"].item() == pytest.approx(0.5)


def test_a_finished_run_is_not_done_again_and_another_configuration_is_refused(
    tmp_path: Path,
) -> None:
    first = fit(tmp_path / "run", [1.0, 2.0], {"a": 1, "b": [2]})
    again = fit(tmp_path / "run", [1.0, 2.0], {"a": 1, "b": [2]})
    assert again.complete
    assert again.records == first.records
    with pytest.raises(DataError, match=r"b was \[2\], is now \[3\].*--restart") as error:
        TrainingRun(tmp_path / "run", "toy", {"a": 1, "b": [3]})
    assert error.value.code == Exit.CONFIG
    assert not TrainingRun(tmp_path / "run", "toy", {"a": 1, "b": [3]}, restart=True).complete


def test_an_unfinished_run_of_another_configuration_is_refused(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path / "run", "toy", {"a": 1})
    for _ in train(Line(), numbers(1.0), config(), weights=BOTH, state=run.state):
        run.save()
    assert TrainingRun(tmp_path / "run", "toy", {"a": 1}).state.epoch == 1
    with pytest.raises(DataError, match="a was 1, is now 2"):
        TrainingRun(tmp_path / "run", "toy", {"a": 2})


def test_a_directory_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(DataError, match="neither empty nor a run of vg") as error:
        TrainingRun(tmp_path, "toy", {}, restart=True)
    assert error.value.code == Exit.CANNOT_CREATE
    fit(tmp_path / "run", [1.0], {})
    with pytest.raises(DataError, match="another kind than matcher"):
        TrainingRun(tmp_path / "run", "matcher", {}, restart=True)


@pytest.mark.parametrize("restart", [False, True])
def test_a_run_whose_checkpoint_is_lost_starts_over_if_a_lock_says_that_it_is_one(
    tmp_path: Path, restart: bool
) -> None:
    run = TrainingRun(tmp_path, "toy", {}, parts=(r"seed-\d+",))
    for _ in train(Line(), numbers(1.0), config(), weights=BOTH, state=run.state):
        run.note({"step": 1})
        run.save()
    (tmp_path / "seed-0").mkdir()
    (tmp_path / "checkpoint.safetensors").unlink()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["metrics.jsonl", "seed-0"]
    with pytest.raises(DataError, match="neither empty nor a run of vg"):
        TrainingRun(tmp_path, "toy", {}, restart, parts=(r"seed-\d+",), begun=True)
    (tmp_path / "metrics.jsonl").unlink()  # which no run has before its checkpoint
    with pytest.raises(DataError, match="neither empty nor a run of vg"):
        TrainingRun(tmp_path, "toy", {}, restart, parts=(r"seed-\d+",))
    again = TrainingRun(tmp_path, "toy", {}, restart, parts=(r"seed-\d+",), begun=True)
    assert (again.state.step, again.records) == (0, [])


def test_a_lock_that_a_kill_left_does_not_make_another_folder_a_run(tmp_path: Path) -> None:
    """The sign of an unfinished run is in the folder, where nobody puts another in its place."""
    folder = tmp_path / "run"
    (folder / "encoder").mkdir(parents=True)
    (folder / "encoder" / "model.safetensors").write_text("mine")
    left = Lock(folder)
    left.note("run")
    left.leave()
    with (
        pytest.raises(DataError, match="neither empty nor a run of vg"),
        session(folder, quiet=True) as own,
    ):
        own.open("toy", {"a": 1}, True)
    assert (folder / "encoder" / "model.safetensors").read_text() == "mine"
    (folder / ".run.json.vg.tmp").touch()  # which a killed run has had from its start
    with (
        pytest.raises(DataError, match=r"encoder/model\.safetensors: exists, and vg does not know"),
        session(folder, quiet=True) as own,
    ):
        own.open("toy", {"a": 1}, True)
    assert (folder / "encoder" / "model.safetensors").read_text() == "mine"
    (folder / "encoder" / "model.safetensors").unlink()
    with session(folder, quiet=True) as own:
        assert not own.open("toy", {"a": 1}, True).complete
    assert (folder / ".run.json.vg.tmp").exists(), "what the killed run began is still there"
    with session(tmp_path / "other", quiet=True) as own:
        assert not own.open("toy", {"a": 1}, True).complete
        assert (tmp_path / "other" / ".run.json.vg.tmp").exists()
    assert not (tmp_path / "other" / ".run.json.vg.tmp").exists()


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("checkpoint.safetensors", save({"w": torch.ones(2)})),
        ("checkpoint.safetensors", save({"w": torch.ones(2)}, {"format": "pt"})),
        ("best.safetensors", save({"w": torch.ones(2)})),
        ("metrics.jsonl", b'{"loss": 1}\n'),
        ("run.json", b'{"kind": "toy", "experiment": 5}'),
        ("run.json", b"{"),
        ("encoder/model.safetensors", save({"w": torch.ones(2)})),
        ("seed-1/predictions.jsonl", b"{}\n"),
    ],
)
def test_a_folder_of_another_tool_is_left_alone(
    tmp_path: Path, name: str, data: bytes, restart: bool
) -> None:
    file = tmp_path / "run" / name
    file.parent.mkdir(parents=True)
    file.write_bytes(data)
    with pytest.raises(DataError, match=r"nor a run|vg does not know it") as caught:
        TrainingRun(tmp_path / "run", "toy", {}, restart, parts=(r"seed-\d+",))
    assert caught.value.code == Exit.CANNOT_CREATE
    assert file.read_bytes() == data


def test_a_run_names_no_file_that_the_user_put_into_its_folders(tmp_path: Path) -> None:
    finished(tmp_path, "notes.txt", ".env", ".tmpAbCd")
    named = json.loads((tmp_path / "run.json").read_bytes())["files"]
    assert [name for name in named if name.startswith("part-1")] == ["part-1/model.safetensors"]


def test_a_restart_keeps_what_the_user_added_to_a_run(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    (folder / "encoder").mkdir()
    names = (
        "notes.txt",
        "part-1/notes.txt",
        "part-1/mine/config.json",
        "part-1.keep/model.safetensors",  # a copy of an older part
        "encoder/notes.txt",
        "encoder/extra.safetensors",
        "encoder/tokenizer_config.json",
    )
    mine = [folder / name for name in names]
    for file in mine:
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    run = TrainingRun(folder, "toy", {"a": 1}, restart=True, parts=(r"part-\d+",))
    # The old run is there until the new one begins: a command may still be refused.
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    run.discard_former()
    assert sorted(path for path in folder.rglob("*") if path.is_file()) == sorted(mine)


def test_a_restart_of_an_unfinished_run_keeps_a_network_that_is_not_known_for_its_own(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    run = TrainingRun(folder, "toy", {"a": 1})
    for _ in train(Line(), numbers(1.0), config(), weights=BOTH, state=run.state):
        run.save()
    (folder / "encoder").mkdir()
    for name in ("complete", "config.json", "tokenizer.json"):
        (folder / "encoder" / name).write_text("x")
    again = TrainingRun(folder, "toy", {"a": 1}, restart=True, parts=(r"part-\d+",))
    assert not again.complete
    (folder / "encoder/complete").unlink()
    with pytest.raises(
        DataError, match=r"encoder/\w+\.json: exists, and vg does not know"
    ) as error:
        TrainingRun(folder, "toy", {"a": 1}, restart=True, parts=(r"part-\d+",))
    assert error.value.code == Exit.CANNOT_CREATE
    assert (folder / "encoder/config.json").read_text() == "x"


# ----------------------------------------------------------------------------------------- records


def finished(folder: Path, *others: str) -> Path:
    """Train a toy to its end, in a run with a part, into whose folder the user puts other files."""
    run = TrainingRun(folder, "toy", {"a": 1})
    for record in train(Line(), numbers(1.0), config(), weights=BOTH, state=run.state):
        if record["end"]:
            run.end_epoch(Line(), {"epoch": 0}, 1.0)
    (folder / "part-1").mkdir()
    for name in ("model.safetensors", *others):
        (folder / "part-1" / name).write_text("part")
    run.keep("part-1")
    run.save()
    run.finish({})
    return folder


@pytest.mark.parametrize("name", ["metrics.jsonl", "toy.safetensors", "part-1/model.safetensors"])
def test_a_changed_file_of_a_finished_run_is_refused_and_without_it_a_restart_starts_over(
    tmp_path: Path, name: str
) -> None:
    folder = finished(tmp_path / "run")
    assert TrainingRun(folder, "toy", {"a": 1}).complete
    file = folder / name
    data = file.read_bytes()
    file.write_bytes(bytes([data[0] ^ 1]) + data[1:] + b"x")
    with pytest.raises(
        DataError, match=f"{name}: is damaged .* remove it and .* --restart"
    ) as error:
        TrainingRun(folder, "toy", {"a": 1})
    assert error.value.code == Exit.DATA
    with pytest.raises(DataError, match=f"{name}: exists, and vg does not know it") as error:
        TrainingRun(folder, "toy", {"a": 1}, restart=True, parts=(r"part-\d+",))
    assert error.value.code == Exit.CANNOT_CREATE
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_bytes(data)
    with pytest.raises(DataError, match=f"{name}: is a link or another kind of file"):
        TrainingRun(folder, "toy", {"a": 1}, restart=True, parts=(r"part-\d+",))
    file.unlink()
    with pytest.raises(DataError, match=f"{name}: is missing; .* --restart") as error:
        TrainingRun(folder, "toy", {"a": 1})
    assert error.value.code == Exit.NO_INPUT
    run = TrainingRun(folder, "toy", {"a": 1}, restart=True, parts=(r"part-\d+",))
    assert not run.complete
    run.discard_former()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["encoder/model.safetensors", "config.json", "seed-1/head.safetensors"]
)
def test_a_restart_refuses_a_file_that_the_finished_run_does_not_name(
    tmp_path: Path, name: str
) -> None:
    """Somebody put it there under one of vg's names: it is theirs, and stays."""
    folder = finished(tmp_path / "run")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("mine")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(DataError, match=f"{name}: exists, and vg does not know it") as error:
        TrainingRun(folder, "toy", {"a": 1}, restart=True, parts=(r"part-\d+",))
    assert error.value.code == Exit.CANNOT_CREATE
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    (folder / name).rename(tmp_path / "mine")
    TrainingRun(folder, "toy", {"a": 1}, restart=True, parts=(r"part-\d+",)).discard_former()


def test_a_sign_that_a_killed_restart_left_goes_with_the_next_look(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    sign = folder / ".run.json.vg.tmp"
    sign.touch()
    assert TrainingRun(folder, "toy", {"a": 1}).complete
    assert not sign.exists()


def test_a_killed_run_may_have_notes_of_the_user_next_to_it(tmp_path: Path) -> None:
    (tmp_path / ".run.json.vg.tmp").touch()  # which a killed run has had from its start
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "seed-1").mkdir()
    for restart in (False, True):
        with session(tmp_path, quiet=True) as killed:
            assert not killed.open("toy", {"a": 1}, restart).complete
    assert (tmp_path / ".run.json.vg.tmp").exists(), "nothing else shows that it is a run"
    for name in ("toy.safetensors", "metrics.jsonl", "config.json"):
        (tmp_path / name).write_text("mine")
        with pytest.raises(DataError, match="neither empty nor a run of vg"):
            TrainingRun(tmp_path, "toy", {"a": 1}, begun=True)
        (tmp_path / name).unlink()


def test_a_kill_while_a_run_is_published_leaves_one_that_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a large network, whose best weights were in memory alone."""

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(training_session, "LARGE", 0)
    run = TrainingRun(tmp_path, "toy", {})
    run.start_clock()
    for record in train(Line(), numbers(1.0), config(), weights=BOTH, state=run.state):
        if record["end"]:
            run.end_epoch(Line(), {"epoch": 0}, 1.0)
    assert not [*tmp_path.iterdir()], "no checkpoint was due"
    with monkeypatch.context() as patch:
        patch.setattr(training_session, "save_run", killed)
        with pytest.raises(KeyboardInterrupt):
            run.finish({})
    again = TrainingRun(tmp_path, "toy", {})
    assert again.records == run.records
    assert again.best_weights().keys() == dict(Line().named_parameters()).keys()


def test_a_part_that_a_killed_worker_left_keeps_no_sign(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, "toy", {})
    (tmp_path / "seed-1").mkdir()
    (tmp_path / "seed-1" / ".run.json.vg.tmp").touch()
    run.forget("seed-1")
    assert not [*(tmp_path / "seed-1").iterdir()]


def test_a_restart_keeps_a_network_of_a_step_that_the_run_does_not_name(tmp_path: Path) -> None:
    """The user may have copied it, with its mark, and changed it; after a kill it may be vg's."""
    folder = finished(tmp_path / "run")
    (folder / "step-7").mkdir()
    (folder / "step-7" / "model.safetensors").write_text("weights")
    (folder / "step-7" / "complete").write_text("f" * 64)
    parts = (r"step-\d+", r"part-\d+")
    with pytest.raises(DataError, match=r"step-7/\w.*: exists, and vg does not know it") as error:
        TrainingRun(folder, "toy", {"a": 1}, restart=True, parts=parts)
    assert error.value.code == Exit.CANNOT_CREATE
    assert (folder / "step-7" / "model.safetensors").read_text() == "weights"
    shutil.rmtree(folder / "step-7")
    TrainingRun(folder, "toy", {"a": 1}, restart=True, parts=parts).discard_former()
    assert not (folder / "run.json").exists()


@pytest.mark.parametrize("how", ["folder", "link", "dead link", "link to a folder", "pipe"])
@pytest.mark.parametrize(
    "name", ["toy.safetensors", "part-1/config.json", "encoder/fusion.json", "step-7/complete"]
)
@pytest.mark.parametrize("whole", [True, False])
def test_a_restart_removes_nothing_where_something_else_has_the_name_of_a_file(
    tmp_path: Path, how: str, name: str, whole: bool
) -> None:
    folder = finished(tmp_path / "run")
    if not whole:
        (folder / "run.json").write_text('{"format":1,"kind":"toy","a')
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes").write_text("mine")
    place = folder / name
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    targets = {"link": mine / "notes", "dead link": mine / "none", "link to a folder": mine}
    if how == "folder":
        place.mkdir()
    elif how == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(targets[how])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError, match=f"{name}: is a link or another kind of file") as error:
        parts = (r"part-\d+", r"step-\d+")
        TrainingRun(folder, "toy", {"a": 1}, restart=True, parts=parts)
    assert error.value.code == Exit.CANNOT_CREATE
    assert sorted(tmp_path.rglob("*")) == before


def unfinished_with_part(folder: Path) -> Path:
    """Leave an unfinished run with a part that its checkpoint notes; return a file of the part."""
    run = TrainingRun(folder, "toy", {"a": 1})
    part = folder / "part-1" / "model.safetensors"
    part.parent.mkdir()
    part.write_text("part")
    run.keep("part-1")
    run.save()
    return part


def test_a_restart_keeps_a_part_of_an_unfinished_run_that_has_changed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    part = unfinished_with_part(folder)
    parts = (r"part-\d+",)
    TrainingRun(folder, "toy", {"a": 1}, restart=True, parts=parts)
    part.write_text("mine")
    with pytest.raises(DataError, match="remove it and make the run again with --restart"):
        TrainingRun(folder, "toy", {"a": 1}, parts=parts)
    with pytest.raises(DataError, match="vg does not know it for its own") as error:
        TrainingRun(folder, "toy", {"a": 1}, restart=True, parts=parts)
    assert (error.value.code, error.value.file) == (Exit.CANNOT_CREATE, part)
    part.unlink()
    TrainingRun(folder, "toy", {"a": 1}, restart=True, parts=parts).discard_former()
    assert not folder.exists() or not any(folder.iterdir())


def test_a_restart_keeps_weights_that_the_run_does_not_name(tmp_path: Path) -> None:
    """A run whose system has no weights of its own writes no such file."""
    folder = finished(tmp_path / "run")
    (folder / "toy.safetensors").write_text("mine")
    with pytest.raises(DataError, match=r"toy\.safetensors: exists, and vg does not") as error:
        TrainingRun(folder, "toy", {"a": 1}, restart=True)
    assert error.value.code == Exit.CANNOT_CREATE
    assert (folder / "toy.safetensors").read_text() == "mine"


@pytest.mark.parametrize("name", ["encoder", "part-1"])
def test_a_folder_of_a_run_that_is_a_link_is_refused(tmp_path: Path, name: str) -> None:
    folder = finished(tmp_path / "run")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "model.safetensors").write_text("mine")
    shutil.rmtree(folder / name, ignore_errors=True)
    (folder / name).symlink_to(mine)
    with pytest.raises(DataError, match=f"{name}: is a link") as error:
        TrainingRun(folder, "toy", {"a": 1}, restart=True, parts=(r"part-\d+",))
    assert error.value.code == Exit.CANNOT_CREATE
    assert (folder / "run.json").exists()
    with pytest.raises(DataError, match=f"{name}: is a link"):
        own.remove_tree(folder / name)
    assert [path.read_text() for path in mine.iterdir()] == ["mine"]


def test_an_unreadable_run_json_names_the_way_out_which_works(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    (folder / "run.json").write_text("{")
    for restart in (False, True):  # too little is left to know it for a run of vg
        with pytest.raises(DataError, match=r"run\.json: exists, and vg does not") as error:
            TrainingRun(folder, "toy", {"a": 1}, restart=restart)
        assert error.value.code == Exit.CANNOT_CREATE
    (folder / "run.json").write_text('{"format":1,"kind":"toy","a')
    with pytest.raises(DataError, match=r"run\.json: not valid JSON") as error:
        TrainingRun(folder, "toy", {"a": 1})
    assert error.value.code == Exit.DATA
    assert not TrainingRun(folder, "toy", {"a": 1}, restart=True).complete


@pytest.mark.parametrize("when", ["at the end", "at the next start"])
@pytest.mark.parametrize("name", ["part-1/model.safetensors", "best.safetensors"])
def test_a_damaged_file_of_an_unfinished_run_is_never_published(
    tmp_path: Path, name: str, when: str
) -> None:
    run = TrainingRun(tmp_path, "toy", {"a": 1})
    for record in train(Line(), numbers(1.0), config(), weights=BOTH, state=run.state):
        if record["end"]:
            run.end_epoch(Line(), {"epoch": 0}, 1.0)
            (tmp_path / "part-1").mkdir()
            (tmp_path / "part-1" / "model.safetensors").write_text("part")
            run.keep("part-1")
            run.save()
    data = bytearray((tmp_path / name).read_bytes())
    data[-1] ^= 1
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=f"{name}: is damaged") as error:
        if when == "at the end":
            run.finish({})
        else:
            TrainingRun(tmp_path, "toy", {"a": 1}).finish({})
    assert error.value.code == Exit.DATA
    assert not (tmp_path / "run.json").exists()
    # The way out works: weights can be learned again, and a part is removed first.
    if name == "best.safetensors":
        assert str(error.value).endswith("; --restart starts over")
    else:
        assert "or remove it and make the run again with --restart" in str(error.value)
        (tmp_path / name).unlink()
    assert not TrainingRun(tmp_path, "toy", {"a": 1}, True, (r"part-\d+",)).complete


def test_records_are_means_over_the_steps_since_the_last_and_live_in_the_notes() -> None:
    notes: dict[str, Any] = {}
    step = {"epoch": 1, "step": 1, "lr": 0.1, "gradient": 2.0, "loss": 3.0, "mlm": 1.0}
    assert mean_record(notes, step, False) is None
    found = mean_record(notes, step | {"step": 2, "loss": 5.0, "mlm": 2.0}, True)
    assert found == {"epoch": 1, "step": 2, "lr": 0.1, "gradient": 2.0, "loss": 4.0, "mlm": 1.5}
    assert notes == {}


# ------------------------------------------------------------------------------------------ inputs


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_run_names_its_inputs_and_is_not_repeated_for_others(tmp_path: Path) -> None:
    file = tmp_path / "train.tsv"
    file.write_bytes(b"a")
    fit(tmp_path / "run", [1.0], {}, inputs=Inputs([file, "-"]))
    named = open_run(tmp_path / "run", "toy").info["inputs"]
    assert named == [{"path": str(file), "bytes": 1, "sha256": sha256(b"a")}]
    assert TrainingRun(tmp_path / "run", "toy", {}, inputs=Inputs([file])).complete
    file.write_bytes(b"b")
    why = rf"train\.tsv: changed since .*{sha256(b'a')}, is now {sha256(b'b')}.*--restart"
    with pytest.raises(DataError, match=why) as caught:
        TrainingRun(tmp_path / "run", "toy", {}, inputs=Inputs([file]))
    assert caught.value.code == Exit.CONFIG


def test_an_unfinished_run_does_not_resume_on_another_input(tmp_path: Path) -> None:
    file = tmp_path / "train.tsv"
    file.write_bytes(b"a")
    run = TrainingRun(tmp_path / "run", "toy", {}, inputs=Inputs([file]))
    for _ in train(Line(), numbers(1.0), config(), weights=BOTH, state=run.state):
        run.save()
    file.write_bytes(b"b")
    with pytest.raises(DataError, match=r"train\.tsv: changed since") as caught:
        TrainingRun(tmp_path / "run", "toy", {}, inputs=Inputs([file]))
    assert caught.value.code == Exit.CONFIG
    other = tmp_path / "other.tsv"
    other.write_bytes(b"b")
    assert TrainingRun(tmp_path / "run", "toy", {}, inputs=Inputs([other])).state.epoch == 1


def test_a_run_whose_input_changed_while_it_trained_is_not_finished(tmp_path: Path) -> None:
    file = tmp_path / "train.tsv"
    file.write_bytes(b"a")
    inputs = Inputs([file])
    file.write_bytes(b"b")
    with pytest.raises(DataError, match=r"train\.tsv: changed while it was read") as caught:
        fit(tmp_path / "run", [1.0], {}, inputs=inputs)
    assert caught.value.code == Exit.CONFIG
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_terminal_gets_a_line_per_record_and_a_pipe_gets_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    valid = {"images": 400, "word": {"r1": 16.84, "r5": 44.61}, "concept": None}
    record = {"epoch": 2, "lr": 2.1566e-07, "loss": 0.0, "valid": valid, "best": True, "x": False}
    printed = {}
    for terminal in (True, False):
        out = io.TextIOWrapper(io.BytesIO())
        monkeypatch.setattr(out, "isatty", partial(bool, terminal))
        monkeypatch.setattr(sys, "stdout", out)
        Session("train-matcher", tmp_path, torch.device("cpu")).print(record)
        assert isinstance(out.buffer, io.BytesIO)
        printed[terminal] = out.buffer.getvalue().decode()
    assert json.loads(printed[False]) == record
    expected = "epoch 2, lr 2.157e-07, loss 0, valid (images 400, word (r1 16.84, r5 44.61)), best"
    # The row takes the line of the progress, which is drawn again below it.
    assert printed[True] == f"\r\x1b[2K{expected}\n"


def test_a_loss_of_no_items_is_not_zero_but_left_out() -> None:
    class Losses(nn.Module):
        def forward(self, batch: dict[str, int]) -> dict[str, Tensor]:
            return {name: torch.tensor(2.0 if count else 0.0) for name, count in batch.items()}

    batches = [{"mlm": 0, "voken_cls": 0}, {"mlm": 3, "voken_cls": 0}]
    found = mean_losses(Losses(), batches, lambda batch, name: batch[name])
    assert found == {"mlm": 2.0, "perplexity": pytest.approx(math.exp(2))}
    assert mean_losses(Losses(), batches[:1], lambda batch, name: batch[name]) == {}


def test_an_epoch_s_record_has_the_mean_of_all_its_steps() -> None:
    def steps() -> Iterator[dict[str, Any]]:
        for step in range(1, 9):
            facts = {"epoch": -(-step // 4), "step": step, "lr": 0.1, "gradient": 1.0}
            yield {**facts, "loss": float(step), "end": False}
            if step % 4 == 0:
                yield {**facts, "end": True}

    notes: dict[str, Any] = {}
    records = steps()
    found = [next(epoch_means(records, notes, 4))]
    for _ in range(3):
        mean_record(notes, {k: v for k, v in next(records).items() if k != "end"}, due=False)
    # Killed after three steps, and resumed with the notes of then.
    found += epoch_means(records, json.loads(json.dumps(notes)), 4)
    assert [(record["step"], record["loss"]) for record in found] == [(4, 2.5), (8, 6.5)]


def test_a_damaged_checkpoint_says_nothing_of_the_parts_of_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    part = unfinished_with_part(folder)
    checkpoint = folder / "checkpoint.safetensors"
    noted = sha256_file(part).encode()
    flipped = bytes([noted[0] ^ 1]) + noted[1:]
    assert noted in checkpoint.read_bytes()
    checkpoint.write_bytes(checkpoint.read_bytes().replace(noted, flipped))
    parts = (r"part-\d+",)
    with pytest.raises(DataError, match=r"is not a readable checkpoint .* --restart starts over"):
        TrainingRun(folder, "toy", {"a": 1}, parts=parts)
    TrainingRun(folder, "toy", {"a": 1}, restart=True, parts=parts).discard_former()
    assert not folder.exists() or not any(folder.iterdir())
