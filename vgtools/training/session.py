"""Everything around the training loop: the run folder, its lock, signals, processes, checkpoints.

    with Session("pretrain", folder, device, quiet=quiet) as session:
        run = session.open("voken_lm", config, restart)
        for record in session.fit(model, batches, train_config, weights={"mlm": 1.0}):
            session.print(record)
        session.finish(lambda: (facts, encoder, weights))

Evaluating, and which epoch is the best, stay with the caller.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from vgtools.io import own
from vgtools.io.errors import DataError, Exit, amount
from vgtools.io.files import config_difference, dumps, sha256_file
from vgtools.io.forms import fault_in
from vgtools.io.inputs import Inputs
from vgtools.io.output import files_of
from vgtools.io.own import atomic_write
from vgtools.io.process import Lock, Progress, Stop, remove_left
from vgtools.io.written import check_file
from vgtools.models.encoder import Encoder, check_network, save_pretrained
from vgtools.models.references import pick_device
from vgtools.models.runs import NETWORKS, save_run
from vgtools.models.sealed import (
    KEPT,
    RUN_FILE,
    check_files,
    check_written,
    digests,
    is_checkpoint,
    is_own_file,
    is_run_json,
    kind_of,
    own_files_below,
    read_run,
)
from vgtools.training import processes
from vgtools.training.loop import Batches, Halve, TrainConfig, TrainState, own_tensors, train
from vgtools.training.steps import StepPlan, train_config
from vgtools.training.trackers import tracked

_CHECKPOINT = "checkpoint.safetensors"
_BEST = "best.safetensors"
_METRICS = "metrics.jsonl"
_TABLE = ("table.npy", "table.ids")  # a run's word vectors
SAVE_SECONDS = 600.0  # between checkpoints
# A checkpoint at the end of an epoch comes at the earliest so long after the one before, if the
# network is large, because writing it takes time.
EPOCH_SECONDS = 20.0
LARGE = 16 << 20  # bytes of weights from which on a network is large


def process_device(name: str) -> torch.device:
    """Return the device of this process, current where it is a GPU with a number.

    Raises:
        DataError: as `pick_device`.
    """
    device = pick_device(processes.device_name(name))
    # "cuda" alone is the current GPU already; torch refuses to set a device without a number.
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    return device


class Session:
    """One training command: the only writer of its run folder, stoppable, on one or more processes.

    Processes other than the first are always quiet. A checkpoint is written every
    `save_seconds` (`SAVE_SECONDS` if None), and every `save_steps` steps as well.
    """

    run: TrainingRun  # once opened

    def __init__(
        self,
        command: str,
        folder: Path,
        device: torch.device,
        *,
        quiet: bool = False,
        save_seconds: float | None = None,
        save_steps: int | None = None,
    ) -> None:
        self.command = command
        self.folder = folder
        self.device = device
        self.first = processes.rank() == 0  # writes and prints
        self.quiet = quiet or not self.first
        self.save_seconds = SAVE_SECONDS if save_seconds is None else save_seconds
        self.save_steps = save_steps
        self.stop = Stop()
        # Ray replaces sys.stdout, and its threads print there: records go to the original stream.
        self._out = sys.stdout
        self._stack = ExitStack()
        self._lock: Lock | None = None  # held by the first process alone
        self._bar: Progress | None = None
        self._log: Callable[[Mapping[str, Any]], None] | None = None  # the first process's

    def __enter__(self) -> Session:
        """Join the other processes and lock the folder.

        Raises:
            DataError: another command writes the folder (75).
        """
        with ExitStack() as stack:
            self._join(stack)
            processes.on_first(lambda: self._take(stack))
            # Taken over only now: an error above releases whatever was entered before it.
            self._stack = stack.pop_all()
        return self

    def _join(self, stack: ExitStack) -> None:
        stack.enter_context(self.stop)
        stack.enter_context(processes.joined(self.device.type == "cuda"))

    def _take(self, stack: ExitStack) -> None:
        self._lock = stack.enter_context(Lock(self.folder))

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def open(
        self,
        kind: str,
        config: Mapping[str, Any],
        restart: bool = False,
        parts: tuple[str, ...] = (),
        inputs: Inputs | None = None,
    ) -> TrainingRun:
        """Open the run folder in each process; see `TrainingRun` for arguments and errors."""
        with processes.after_first():
            # A folder that a killed owner had started may be continued, and so may the folder that
            # the first process has just opened.
            begun = self._lock is None or _is_signed(self.folder)
            self.run = TrainingRun(self.folder, kind, config, restart, parts, inputs, begun)
        if self._lock is not None and not self.run.complete:
            self._mark()
        if self.first:
            self._track()
        if self.run.others is not None:
            now = amount(processes.world(), "process", "processes")
            self.note(f"resumes with {now}, {self.run.others} before: dropout is drawn differently")
        return self.run

    def _mark(self) -> None:
        """Keep a sign in the folder while it is written: a kill leaves it to the next owner."""
        sign = _sign(self.folder)
        with suppress(OSError):  # one is there, or the disk is full
            own.create(sign).close()
            self._stack.callback(self._remove_mark)

    def _remove_mark(self) -> None:
        """Remove the sign, unless nothing else shows whose the files in the folder are."""
        others = {file.name for file in self.folder.glob("*")} - {_sign(self.folder).name}
        if not others or others & {"run.json", _CHECKPOINT, _BEST}:
            own.remove(_sign(self.folder))

    def _track(self) -> None:
        self._log = self._stack.enter_context(tracked(self.folder, self.run.config))

    def part(self, name: str, before: int, total: int) -> PartSession:
        """Return the session of a training in a folder of this one's.

        Args:
            name: the folder's name.
            before: steps of the trainings before it.
            total: steps of all trainings, for the progress.
        """
        return PartSession(self, name, before, total)

    def print(self, *records: Mapping[str, Any]) -> None:
        """Print records on the standard output of the first process: JSON unless people read it."""
        if self.first:
            terminal = self._out.isatty()
            # The progress may be in the line where the row is printed.
            clear = "\r\x1b[2K" if os.environ.get("TERM") != "dumb" else ""
            for record in records:
                line = f"{clear}{record_line(record)}\n".encode() if terminal else dumps(record)
                self._out.buffer.write(line)
                if self._log is not None:
                    self._log(record)
            self._out.buffer.flush()

    def note(self, message: str) -> None:
        """Print a message on stderr, unless the command is quiet."""
        if not self.quiet:
            print(f"vg {self.command}: {message}", file=sys.stderr)

    def fit(
        self,
        model: nn.Module,
        batches: Batches,
        config: TrainConfig,
        *,
        weights: Mapping[str, float],
        halve: Halve | None = None,
        total: int | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Train from the state of the run, and yield the records of `train`.

        After each record it writes a checkpoint if one is due, and stops if a signal asked any
        process to: all processes stop at the same step.

        Arguments are as for `train`; `total` counts the steps, for the progress, if not all are
        taken.

        Raises:
            DataError: stopped by a signal (75, 130; a checkpoint is written), or as `train`.
        """
        run = self.run
        run.discard_former()
        run.start_clock()
        total = total or config.steps
        self.progress(run.state.step, total)
        splits = run.oom_splits
        for record in train(model, batches, config, weights=weights, state=run.state, halve=halve):
            self.progress(record["step"], total)
            if splits != run.oom_splits:
                splits = run.oom_splits
                message = f"step {record['step']}: out of memory: batches are now split into"
                print(f"vg {self.command}: {message} {splits}", file=sys.stderr)
            yield record
            self._checkpoint()

    def progress(self, done: int, total: int) -> None:
        """Show how many steps are done."""
        if self._bar is None:
            bar = Progress(self.command, "steps", total, quiet=self.quiet)
            self._bar = self._stack.enter_context(bar)
        self._bar.advance(done - self._bar.done)

    def _checkpoint(self) -> None:
        """Write a checkpoint if one is due; stop if a signal asked any process to."""
        run = self.run
        due = (
            time.monotonic() - run.saved_at > self.save_seconds
            or run.state.step - run.saved_step == self.save_steps
        )
        # Clocks differ between processes, and a signal may reach one alone; all must decide alike.
        due, stopped = processes.anywhere(due, self.stop.signal is not None)
        if due or stopped:
            run.save()
        self._stop_if(stopped)

    def check(self) -> None:
        """Stop if a signal asked any process to; call it where everything done is saved.

        Raises:
            DataError: stopped by a signal (75, 130).
        """
        self._stop_if(*processes.anywhere(self.stop.signal is not None))

    def _stop_if(self, stopped: bool) -> None:
        # A signal may reach one process alone; all of them stop, as if each had got it.
        if stopped:
            self.stop.signal = self.stop.signal or signal.SIGTERM
            self.stop.check()

    def finish(self, result: Callable[[], tuple[Any, ...]]) -> None:
        """Write the finished run.

        The result, called in the first process alone, returns the arguments of
        `TrainingRun.finish`.
        """
        processes.on_first(lambda: self.run.finish(*result()))


class PartSession(Session):
    """One training of several of a command, in a folder of its own in the command's.

    It stops, prints and shows progress as the command's session does.
    """

    def __init__(self, whole: Session, name: str, before: int, total: int) -> None:
        super().__init__(
            whole.command,
            whole.folder / name,
            whole.device,
            quiet=True,
            save_seconds=whole.save_seconds,
            save_steps=whole.save_steps,
        )
        self.stop = whole.stop
        self._whole = whole
        self._before = before
        self._total = total

    def _join(self, stack: ExitStack) -> None:
        """Do nothing: the command's session has joined the processes."""

    def _mark(self) -> None:
        """Do nothing: the folder that this one is in has the sign."""

    def _track(self) -> None:
        """Do nothing: the records go through the command's session."""

    def print(self, *records: Mapping[str, Any]) -> None:
        """Print records as the command's session does."""
        self._whole.print(*records)

    def progress(self, done: int, total: int) -> None:
        """Show how many steps are done, of all trainings of the command."""
        self._whole.progress(self._before + done, self._total)


# ------------------------------------------------------------------------------------- run folders


def _noted_parts(checkpoint: Path) -> dict[str, str]:
    """Return the files that a checkpoint notes, name in the run -> sha256; {} if it is damaged."""
    try:
        notes = TrainState.load(checkpoint).notes
    except DataError:
        return {}
    return notes.get("parts", {}) if not fault_in(notes, {"parts?": {str: str}}) else {}


class TrainingRun:
    """The folder of one training: resumes the same configuration, refuses another.

    While it trains it holds `checkpoint.safetensors` and `best.safetensors`; when it is finished,
    the files of `save_run` and `metrics.jsonl`, one record per line. The number of processes is not
    part of the configuration: any number resumes it, and `run.json` lists the numbers that trained
    it, in order.

    A restart discards the old run, and vg's files in its folders whose names match an expression of
    `parts`. It does so before the first step or checkpoint of the new run: a command that is
    refused until then leaves the old run. The folder must be empty or show that vg wrote it, by its
    run.json or checkpoint; or it is `begun`: a killed owner left it.

    Raises:
        DataError: a run with another configuration is in the folder, or an input has changed since
            it was read (78, both sides printed), the folder is something else (73), or its contents
            are damaged (65).
    """

    def __init__(
        self,
        path: str | Path,
        kind: str,
        config: Mapping[str, Any],
        restart: bool = False,
        parts: tuple[str, ...] = (),
        inputs: Inputs | None = None,
        begun: bool = False,
    ) -> None:
        self.inputs = inputs or Inputs([])
        self.path = Path(path)
        self.kind = kind
        self.config = dict(config)
        self.complete = False  # a former run with this configuration finished: nothing to do
        self.others: int | None = None  # processes that trained before, if they were not as many
        self.state = TrainState()  # where `train` starts
        self._checkpoint = self.path / _CHECKPOINT
        self._best = self.path / _BEST
        self._unwritten: bytes | None = None  # the best weights, until `save` writes them
        self._check_folder(begun)
        if restart:
            self._check_restart(parts)
        own.make_folder(self.path)
        own.claim(self.path)
        self._former = parts if restart else None  # where an old run is still to be discarded
        if not restart and (self.path / "run.json").exists():
            self._open_finished()
        elif not restart and self._checkpoint.exists():
            self.state = TrainState.load(self._checkpoint)
            self.inputs.check_named(self.state.notes["inputs"])
            self._same(self.state.notes["config"], "an unfinished run")
            for name, sha256 in self._parts.items():
                check_written(self.path / name, sha256)
        else:
            self.state.notes = {"config": self.config, "records": [], "score": None}
            self.state.notes["inputs"] = self.inputs.entries
        if not self.complete:
            self._count_processes()
        self.start_clock()

    def _count_processes(self) -> None:
        """Note how many processes train from here on: the number may differ from before."""
        counts: list[int] = self.state.notes.setdefault("processes", [])
        if counts[-1:] != [processes.world()]:
            self.others = counts[-1] if counts else None
            counts.append(processes.world())

    def _open_finished(self) -> None:
        info = read_run(self.path, self.kind)
        self.inputs.check_named(info.get("inputs", []))
        self._same(info.get("config", {}), "a finished run")
        check_files(self.path, info)
        self.complete = True
        self._clear()
        lines = (self.path / _METRICS).read_bytes().splitlines()
        self.state.notes = {"records": list(map(json.loads, lines))}

    def _check_folder(self, begun: bool) -> None:
        proofs = {"run.json": is_run_json, _CHECKPOINT: is_checkpoint, _BEST: is_checkpoint}
        ours = [name for name in proofs if (self.path / name).exists()]
        # A run in a folder of another run is that run's.
        for name in [] if own.is_claimed(self.path) else ours:
            own.check(self.path / name, proofs[name])
        if not (ours or own.is_claimed(self.path) or self._has_only_parts(begun)):
            why = "is neither empty nor a run of vg; choose another -o"
            raise DataError(why, self.path, code=Exit.CANNOT_CREATE)
        if "run.json" in ours and kind_of(self.path / "run.json") != self.kind:
            why = f"holds a run of another kind than {self.kind}; choose another -o"
            raise DataError(why, self.path, code=Exit.CANNOT_CREATE)

    def _has_only_parts(self, begun: bool) -> bool:
        """Return whether the folder has temporary files alone, or a killed owner started it.

        Before its first checkpoint a run has only folders and their locks: a file with the name of
        a run's, or a link with the name of such a folder, is the user's.
        """

        def is_in_the_way(entry: Path) -> bool:
            if entry.is_symlink():
                return RUN_FILE.fullmatch(f"{entry.name}/config.json") is not None
            weights = entry.name == f"{self.kind}.safetensors"
            return entry.is_file() and (weights or RUN_FILE.fullmatch(entry.name) is not None)

        entries = [*self.path.glob("*")]
        if begun:
            return not any(map(is_in_the_way, entries))
        return all(map(own.is_temporary, entries))

    def _check_restart(self, parts: tuple[str, ...]) -> None:
        """Refuse to discard a finished run among whose files are some that vg did not write.

        Raises:
            DataError: a file that the run does not name has the name of one of vg's, or one that it
                names has changed, or a link, pipe or folder has the name of one (73).
        """
        for folder in self.path.glob("*/"):
            named = folder.name in NETWORKS or any(re.fullmatch(x, folder.name) for x in parts)
            if named and folder.is_symlink():
                raise own.planted(folder)
            if named:
                own.check_tree(folder, is_own_file)
        weights = self.path / f"{self.kind}.safetensors"
        own.check(weights, lambda _: True)
        own.check_tree(self.path, is_own_file)
        try:
            info = read_run(self.path)
        except DataError:  # unfinished or damaged
            for name in NETWORKS:
                check_network(self.path / name)
            # A seed of a run has a checkpoint of its own.
            for checkpoint in self.path.rglob(_CHECKPOINT):
                for name, sha256 in _noted_parts(checkpoint).items():
                    file = checkpoint.parent / name
                    if file.exists() and sha256_file(file) != sha256:
                        raise own.not_ours(file) from None
            for table in own_files_below(self.path):
                manifest = table.with_name("table.json")
                journal = table.with_name("table.npy.journal")
                # The journal of a copy that is half published stands for the manifest.
                if table.name in _TABLE and (manifest.exists() or not journal.exists()):
                    own.check(table, own.Known(files_of(manifest)))
            return
        for file in [*own_files_below(self.path), *filter(Path.is_file, [weights])]:
            name = file.relative_to(self.path).as_posix()
            left = file.name in (_BEST, _CHECKPOINT) and is_checkpoint(file)  # by a kill
            if name not in {"run.json", *info["files"]} and not left:
                raise own.not_ours(file)
        for name, facts in info["files"].items():
            file = self.path / name
            if file.is_symlink() or (file.exists() and sha256_file(file) != facts["sha256"]):
                raise own.not_ours(file)

    def discard_former(self) -> None:
        """Remove the run that a restart replaces, if that was not done before.

        Raises:
            DataError: another command writes one of its parts (75).
        """
        parts, self._former = self._former, None
        if parts is None or processes.rank():
            return
        # The files that make the folder a run go last: after a kill in between, it can still be
        # restarted.
        for folder in [*self.path.glob("*/")]:
            if any(re.fullmatch(part, folder.name) for part in parts):
                with Lock(folder):  # refused while a process trains there
                    own.remove_tree(folder, is_own_file)
        for name in NETWORKS:
            own.remove_tree(self.path / name, is_own_file)
        weights = f"{self.kind}.safetensors"
        for name in (_METRICS, weights, _BEST, _CHECKPOINT, "run.json"):
            own.remove(self.path / name)

    def _same(self, before: Mapping[str, Any], what: str) -> None:
        difference = config_difference(before, self.config)
        if difference:
            way_out = "Use the same settings to resume, another -o, or --restart"
            why = f"{what} used different settings: {difference}. {way_out}"
            raise DataError(why, self.path, code=Exit.CONFIG)

    def start_clock(self) -> None:
        """Count the time and steps to the next checkpoint from now."""
        self.saved_at = time.monotonic()
        self.saved_step = self.state.step

    @property
    def oom_splits(self) -> int:
        """How many parts each batch is split into since memory ran out."""
        return int(self.state.notes.get("pieces", 1))

    @property
    def records(self) -> list[dict[str, Any]]:
        """The records so far."""
        return list(self.state.notes["records"])

    def note(self, record: Mapping[str, Any]) -> None:
        """Add a record, which the next `save` keeps."""
        self.state.notes["records"].append(dict(record))

    @property
    def _parts(self) -> dict[str, str]:
        """The files that `keep` noted, name in the folder -> sha256."""
        parts: dict[str, str] = self.state.notes.get("parts", {})
        return parts

    def keep(self, part: str = "") -> None:
        """Note the files of a folder in the run, which the finished run will name.

        Args:
            part: the folder's name, or "" for all of the run but this class's own files; the files
                are whole and must not change any more. The user's are left out.
        """
        folder = self.path / part
        files = digests(self.path, {*own_files_below(folder)}.difference(_own_files(folder)))
        found = {name: facts["sha256"] for name, facts in files.items()}
        self.state.notes["parts"] = self._parts | found

    def take_in(self, other: TrainingRun) -> None:
        """Make the records and kept files of a run in a folder of this one its own.

        The next `save` keeps them; then `forget` removes the other run's own files.
        """
        part = other.path.name
        self.state.notes["records"].extend(other.records)
        parts = {f"{part}/{name}": sha256 for name, sha256 in other._parts.items()}
        self.state.notes["parts"] = self._parts | parts

    def begun(self, part: str) -> list[dict[str, Any]]:
        """Return the records so far of a run in a folder of this one."""
        try:
            lines = (self.path / part / _METRICS).read_bytes().splitlines()
        except FileNotFoundError:
            return []
        return list(map(json.loads, lines))

    def forget(self, part: str) -> None:
        """Remove the files of a run in a folder of this one, apart from the files that it kept."""
        for path in _own_files(self.path / part):
            own.remove(path)
        remove_left(self.path / part)  # by a kill after its last step

    def save(self) -> None:
        """Write a checkpoint and the records so far; every process calls it, the first writes."""
        self.discard_former()
        # The best weights come first: no checkpoint may name weights that are not on the disk.
        if self._unwritten is not None:
            atomic_write(self._best, self._unwritten)
            self._unwritten = None
        self.state.save(self._checkpoint)
        self._write_records()
        self.start_clock()

    def _write_records(self) -> None:
        if processes.rank() == 0:
            atomic_write(self.path / _METRICS, b"".join(map(dumps, self.records)))

    def end_epoch(
        self, model: nn.Module, record: Mapping[str, Any], score: float
    ) -> dict[str, Any]:
        """Note an epoch, keep its weights unless one scored higher, and write a checkpoint.

        For a large network, the end of a short epoch is left to the next checkpoint.

        Every process calls it with the same score and gets the record with `best`; the first
        writes.
        """
        from safetensors.torch import save

        before = self.state.notes["score"]
        # The later of two epochs with equal scores is kept, because it has seen more.
        best = before is None or score >= before
        if best:
            self.state.notes["score"] = score
        tensors = own_tensors(model)
        if best and processes.rank() == 0:
            weights = {k: t.cpu().contiguous() for k, t in tensors.items()}
            self._unwritten = save(weights, {"vg": _BEST})  # the mark shows that vg wrote the file
            self.state.notes["best"] = hashlib.sha256(self._unwritten).hexdigest()
        noted = {**record, "best": best}
        self.note(noted)
        small = sum(tensor.nbytes for tensor in tensors.values()) < LARGE
        # Decided together, because clocks differ between processes and every process has to call
        # `save`.
        (due,) = processes.anywhere(small or time.monotonic() - self.saved_at > EPOCH_SECONDS)
        if due:
            self.save()
        return noted

    def best_record(self) -> dict[str, Any]:
        """Return the record of the epoch whose weights `end_epoch` kept last."""
        return [record for record in self.records if record["best"]][-1]

    def best_weights(self) -> dict[str, Tensor]:
        """Return the weights that `end_epoch` kept last."""
        from safetensors.torch import load

        if self._unwritten is not None:
            unwritten: dict[str, Tensor] = load(self._unwritten)
            return unwritten
        facts = {"sha256": self.state.notes["best"]}
        check_file(self._best, facts, "the checkpoint", "--restart starts over")
        weights: dict[str, Tensor] = load(self._best.read_bytes())
        return weights

    def let_go(self) -> None:
        """Keep no more than the notes: the trained weights are stored elsewhere."""
        state = TrainState()
        state.saved = self.state.saved
        state.notes = self.state.notes
        self.state = state
        self._unwritten = None

    def finish(
        self,
        info: Mapping[str, Any],
        encoder: Encoder | None = None,
        weights: Mapping[str, Tensor] | None = None,
        more: Mapping[str, Encoder] = MappingProxyType({}),
    ) -> None:
        """Write the run, with the weights of the best epoch or those given; remove checkpoints.

        `more` are further networks, by folder.

        Raises:
            DataError: an input changed while it was read (78, both hashes).
        """
        self.inputs.check_unchanged()
        if self._unwritten is not None or not self._checkpoint.exists():
            self.save()  # until run.json is there, the checkpoint makes this a run
        self._write_records()
        metrics = {"sha256": sha256_file(self.path / _METRICS)}
        facts = {"config": self.config, **info, "metrics": metrics}
        facts["inputs"] = self.inputs.entries
        facts["processes"] = self.state.notes["processes"]
        if weights is None:
            facts["best"] = self.best_record()
            weights = self.best_weights()
        for name, sha256 in self._parts.items():
            check_written(self.path / name, sha256)
        save_run(self.path, self.kind, weights, facts, encoder, self._parts, more)
        self.complete = True
        self._clear()

    def _clear(self) -> None:
        for path in (_sign(self.path), *_own_files(self.path, _BEST, _CHECKPOINT)):
            own.remove(path)


def _sign(folder: Path) -> Path:
    """Return the file that an unfinished run has from its start; run.json takes its place."""
    return own.temporary(folder / "run.json")


def _is_signed(folder: Path) -> bool:
    sign = _sign(folder)
    return sign.is_file() and not sign.is_symlink()


def _own_files(folder: Path, *names: str) -> list[Path]:
    """Return the possible files of an unfinished run; the file that resumes it comes last."""
    given = names or (_METRICS, _BEST, _CHECKPOINT)
    files = [file for name in given for file in (own.temporary(folder / name), folder / name)]
    return files if names else [_sign(folder), *files]


# ------------------------------------------------------------------------------------- pretraining


class Job(NamedTuple):
    """A training that a system hands over to `pretrain`."""

    model: nn.Module
    batches: Batches
    plan: StepPlan
    halve: Halve
    evaluate: Callable[[int], dict[str, Any]] | None  # batch size -> measures on held-out data
    finish: Callable[[], tuple[Any, ...]]  # arguments of `TrainingRun.finish`
    start: Callable[[], None] | None = None  # called before the first step


@dataclass(kw_only=True)
class Pretraining:
    """The job of `pretrain`; the class of a system adds its models and its settings."""

    kind: ClassVar[str]
    files: Inputs = field(init=False)  # all files that are read, hashed before

    session: Session
    inputs: Sequence[str]  # files to train on
    valid: Sequence[str]  # files to evaluate on
    weights: Mapping[str, float]  # weights of the losses
    dtype: str  # type of the matrix products
    gradient_checkpointing: bool  # use less memory and more time

    def config(self) -> dict[str, Any]:
        """Return the settings that decide the weights, without the flags that systems share."""
        raise NotImplementedError

    def job(self, config: Mapping[str, Any], device: torch.device) -> Job:
        """Return the model with its batches."""
        raise NotImplementedError

    def close(self) -> None:
        """Remove the files that only the training needed."""


def pretrain(
    session: Session,
    system: Pretraining,
    config: Mapping[str, Any],
    restart: bool = False,
    keep_every: int | None = None,
) -> None:
    """Pretrain to the last step of a configuration, print the records, and write the run.

    The encoder of every step whose number is a multiple of `keep_every` stays in `RUN/step-N`.

    Raises:
        DataError: as `Session.open` and `Session.fit`, or the run is finished and lacks a step that
            `keep_every` asks for (78).
    """
    settings = system.config() | dict(config) | {"device": session.device.type}
    run = session.open(system.kind, settings, restart, (rf"{KEPT}\d+",), system.files)
    if keep_every is not None:
        _check_kept(session, keep_every)
    session.print(*run.records)
    if not run.complete:
        _train_job(session, system.job(run.config, session.device), keep_every)
    if session.first:
        system.close()


def _check_kept(session: Session, keep_every: int) -> None:
    """Refuse, or note of an unfinished run, steps that passed and were not kept."""
    run = session.run
    passed = run.records[-1]["step"] if run.complete else run.state.step
    steps = range(keep_every, passed + 1, keep_every)
    lost = [step for step in steps if not (run.path / f"{KEPT}{step}").is_dir()]
    if not lost:
        return
    why = f"did not keep step {lost[0]} (--keep-every {keep_every})"
    if run.complete:
        why = f"is a finished run that {why}; --restart trains it again"
        raise DataError(why, run.path, code=Exit.CONFIG)
    session.note(f"resumes a run that {why}, and is at step {passed} now")


def _train_job(session: Session, job: Job, keep_every: int | None) -> None:
    """Train a job to its last step.

    Source: Tan & Bansal 2020 (Vokenization), section 4.2; eps is from the published code.
    """
    run = session.run
    config = run.config
    plan = job.plan
    if job.start is not None and not run.state.step:
        job.start()
    settings = train_config(config, plan, eps=1e-6)
    for record in session.fit(
        job.model,
        job.batches,
        settings,
        weights=config["weights"],
        halve=job.halve,
        total=plan.stop,
    ):
        if record.pop("end"):
            continue
        step = record["step"]
        last = step == plan.stop
        epoch_ends = last or step % plan.per_epoch == 0
        every = config["eval_every"]
        judged = epoch_ends if every is None else last or step % every == 0
        judged = judged and job.evaluate is not None
        due = epoch_ends or judged or step % config["log_every"] == 0
        mean = mean_record(run.state.notes, record, due)
        if mean is not None:
            if judged and job.evaluate is not None:
                size = min(config["batch_size"], config["micro_batch"]) // run.oom_splits
                mean["valid"] = processes.on_first(partial(job.evaluate, max(1, size)))
            run.note(mean)
            session.print(mean)
        kept = keep_every is not None and step % keep_every == 0
        if kept:
            processes.on_first(partial(_keep, run, f"{KEPT}{step}", job))
        if last or kept:
            run.save()

    def result() -> tuple[Any, ...]:
        facts, *rest = job.finish()
        facts |= {"steps": plan.stop, "pieces": run.oom_splits}
        early = {"scheduled": plan.steps} if plan.stop < plan.steps else {}
        return facts | early, *rest

    session.finish(result)


def _keep(run: TrainingRun, part: str, job: Job) -> None:
    """Write the encoder of this step into a folder of the run."""
    save_pretrained(run.path / part, job.finish()[1])
    run.keep(part)


def record_line(record: Mapping[str, Any]) -> str:
    """Return a record as words to read: numbers with four digits, flags by their names."""
    parts = list[str]()
    for name, value in record.items():
        if isinstance(value, Mapping):
            parts.append(f"{name} ({record_line(value)})")
        elif isinstance(value, float):
            parts.append(f"{name} {value:.4g}")
        elif value is True:
            parts.append(name)
        elif value is not None and value is not False:
            parts.append(f"{name} {value}")
    return ", ".join(parts)


def mean_record(
    notes: dict[str, Any], record: Mapping[str, Any], due: bool
) -> dict[str, Any] | None:
    """Add a step's losses to the losses since the last record; return their means if one is due.

    The notes of the training's state keep them: a resumed run ends with the same records.
    """
    window = notes.setdefault("window", {"steps": 0, "sums": {}})
    position = {key: record[key] for key in ("epoch", "step", "lr", "gradient")}
    window["steps"] += 1
    for name in record.keys() - position.keys():
        window["sums"][name] = window["sums"].get(name, 0.0) + record[name]
    if not due:
        return None
    del notes["window"]
    sums = window["sums"]
    return position | {name: sums[name] / window["steps"] for name in sorted(sums)}


def epoch_means(
    records: Iterable[dict[str, Any]], notes: dict[str, Any], per_epoch: int
) -> Iterator[dict[str, Any]]:
    """Yield a record per epoch, with the mean losses of its steps.

    Args:
        records: one per step, and one after each epoch.
        notes: the notes of the training's state, which are saved with the weights: a resumed epoch
            keeps the losses of its first part.
        per_epoch: steps of an epoch.
    """
    for record in records:
        if record.pop("end"):
            yield notes.pop("mean")
        elif mean := mean_record(notes, record, record["step"] % per_epoch == 0):
            notes["mean"] = mean


def mean_losses(
    model: nn.Module, batches: Iterable[Any], items: Callable[[Any, str], int]
) -> dict[str, float]:
    """Return the mean losses of a model over batches, in evaluation mode; perplexity is exp(mlm).

    `model(batch)` returns named means, `items(batch, name)` the number of items of a mean. A loss
    of no items is left out: a text may have no vokens.
    """
    was_training = model.training
    model.eval()
    sums = dict[str, float]()
    counts = dict[str, float]()
    with torch.no_grad():
        for batch in batches:
            for name, value in model(batch).items():
                count = items(batch, name)
                sums[name] = sums.get(name, 0.0) + float(value) * count
                counts[name] = counts.get(name, 0.0) + count
    model.train(was_training)
    means = {name: total / counts[name] for name, total in sums.items() if counts[name]}
    if "mlm" in means:
        means["perplexity"] = math.exp(min(700.0, means["mlm"]))
    return means
