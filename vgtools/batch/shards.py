"""Shards: an output in a folder of pieces, each made by any process, in any order, more than once.

`X.jsonl/` stands for the file `X.jsonl` (`vgtools.io.folders` reads it):

    plan.json             settings, inputs, shard size; the first counts once a shard is started
    000012-01e787e8.jsonl data; the name has 8 hex digits of its sha256
    000012.json           commit of a shard: its files with size and sha256, counts, who made it
    shards.jsonl          the list of all commits, in order: written when none is missing

A shard is a pure function of plan and number, so processes need not talk to one another: each takes
numbers that have no commit yet. Two tries that differ (two kinds of GPU, a machine taken for dead)
leave one commit, and it names its own data.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import time
from array import array
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import orjson

from vgtools.batch import places
from vgtools.batch.plan import PlannedInput, ShardPlan
from vgtools.io import own
from vgtools.io.errors import DataError, Exit, file_error, file_errors, storable
from vgtools.io.files import (
    dumps,
    embedded,
    is_manifest,
    manifest_bytes,
    plain_json,
    refuse_inputs,
    versions,
)
from vgtools.io.folders import COMMIT, LIST, Shards, fault_in_record
from vgtools.io.forms import FILES, SIZE, fault_in
from vgtools.io.names import PLAN, base_of, ending_of, is_url, manifest_of, manifest_path
from vgtools.io.output import check_manifest, read_sealed
from vgtools.io.parquet import Columns
from vgtools.io.parts import Rows, new_part, part_path
from vgtools.io.process import Lock, is_lock, when_free
from vgtools.io.remote import file_size
from vgtools.io.streams import Piece
from vgtools.io.trust import file_hash
from vgtools.io.written import manifest_beside, seal

Record = dict[str, Any]  # a worker's report of a shard: "shard", "items", "seconds"

# Endings of the shards of arrays, the array itself first.
_BESIDE = (".npy", ".ids", ".rows.npy", ".regions.jsonl", ".errors.jsonl")
_IS_COMMIT = own.begins(b'{"shard":')  # or the list of all
_PLAN = {
    "config": dict,
    "inputs": [
        {
            "path": str,
            "bytes": SIZE,
            "sha256": str,
            "unit": str,
            "units": SIZE,
            "held_out?": SIZE,
            "named?": str,
        }
    ],
    "shard_size": SIZE,
}
OpenOutput = Callable[..., Any]  # `Output`, or a function with its parameters


class ShardTask(Protocol):
    """A command's computation, with its models loaded: one in each process."""

    @property
    def config(self) -> dict[str, Any]:
        """The settings that decide the bytes, and the "device"."""

    def open(self, path: str, output: OpenOutput) -> AbstractContextManager[Any]:
        """Return the writer of an output that `output` opens."""

    def steps(self, pieces: Sequence[Piece], writer: Any) -> Generator[int, None, None]:
        """Write the results of the pieces and finish; yield how many items each step did."""


class Attempt:
    """One try at a shard, written to as an `Output`: private files until all of them are whole."""

    def __init__(
        self,
        shards: ShardedOutput,
        number: int,
        paths: Sequence[str | Path],
        config: Mapping[str, Any],
        *,
        npy: Mapping[int, Rows] | None = None,
        columns: Columns | None = None,
        **_: Any,
    ) -> None:
        self.state: dict[str, Any] = {}
        self.complete = False
        self._shards = shards
        self._number = number
        self._device = config.get("device")
        first = Path(paths[0]).name
        stem = first.removesuffix(ending_of(first))
        self._endings = [Path(path).name.removeprefix(stem) for path in paths]
        new = places.private(os.path.join(shards.folder, shards.stem(number)))
        self._parts = [
            new_part(
                new.with_name(new.name + ending), (npy or {}).get(index), places.is_ours, columns
            )
            for index, ending in enumerate(self._endings)
        ]

    def __enter__(self) -> Attempt:
        return self

    def write(self, data: bytes | memoryview, file: int = 0) -> None:
        """Append bytes to one of the files."""
        self._parts[file].write(data)

    def commit(self, state: Mapping[str, Any]) -> None:
        """Note the state, whose "counts" the commit of the shard will have."""
        # A try is never resumed, so that its bytes need not be safe before it is finished.
        for part in self._parts:
            part.flush(sync=False)
        self.state = dict(state)

    def finish(self, **facts: Any) -> None:
        """Publish the files under the names of their hashes, then their commit."""
        shards = self._shards
        number = self._number
        shards.plan.check_unchanged(shards.plan.pieces(number))
        try:
            # A restart elsewhere may have replaced the plan while this shard was made.
            shards.check_planned()
            plan = shards.plan.record()
            about = embedded(plan["inputs"], config=plan["config"], **facts)
            made = [part.finish(about) for part in self._parts]
            name = f"{shards.stem(number)}-{_short_hash([facts['sha256'] for facts in made])}"
            names = [f"{name}{ending}" for ending in self._endings]
            files = dict(zip(names, made, strict=True))
            for part, final in zip(self._parts, names, strict=True):
                shards.adopt(part_path(part.final), final, own.Known(files))
            counts = self.state.get("counts", {})
            # Counts are added up over the shards; other facts are taken from the first shard.
            facts = {key: value for key, value in facts.items() if key not in counts}
            # The commit comes last, so that it names only files that are there and whole.
            maker = {"host": socket.gethostname(), "device": self._device}
            shards.write_commit(number, {"files": files, "counts": counts, "facts": facts, **maker})
        except (OSError, DataError) as error:
            # Another process may have completed the folder and removed files that no commit names,
            # these among them; its commit of the shard is as good.
            if shards.commit(number) is not None:
                return
            if isinstance(error, OSError):
                raise file_error(error, shards.folder, reading=False) from None
            raise

    def __exit__(self, *error: object) -> None:
        for part in self._parts:
            part.close(failed=True)
            own.remove(part_path(part.final), places.is_ours)


def _by_name(pieces: list[list[Any]]) -> list[list[Any]]:
    """Return pieces of inputs by the names of these: they may have moved to another folder."""
    return [[base_of(path), *lines] for path, *lines in filter(None, pieces)]


def _short_hash(hashes: Sequence[str]) -> str:
    """Return 8 hex digits of the sha256 of a shard's file, or of the hashes of its files."""
    one = hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()
    return one[:8]


def _has_names(files: Mapping[str, Any]) -> bool:
    """Return whether the files of a commit have the names of the hashes that it states."""
    short = _short_hash([facts["sha256"] for facts in files.values()])
    return all(name.partition(".")[0].endswith(f"-{short}") for name in files)


@dataclass
class _Total:
    """The sums of the commits of all shards."""

    file: Path  # private: their list
    listed: dict[str, Any] = field(default_factory=dict)  # size and sha256 of the list
    missing: int = 0  # shards without a commit
    size: int = 0  # bytes of all files
    facts: dict[str, Any] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    made_by: Counter[bytes] = field(default_factory=Counter)  # versions and device -> shards

    def add(self, record: dict[str, Any]) -> None:
        """Count a commit, and take from it the entries that the list does not have."""
        # A text that not every shard is made of may have a mark that others lack.
        self.facts = {**record["facts"], **self.facts}
        self.counts.update(record["counts"])
        self.made_by[orjson.dumps([record["versions"], record["device"]])] += 1
        self.size += sum(file["bytes"] for file in record["files"].values())
        # Names of machines are left to the commits: a list may be published.
        record.pop("host", None)
        del record["facts"], record["plan"]

    def makers(self) -> list[dict[str, Any]]:
        """Return the versions and devices that the shards were made by."""
        pairs = [(*orjson.loads(maker), shards) for maker, shards in self.made_by.items()]
        return [{"versions": v, "device": device, "shards": shards} for v, device, shards in pairs]


@dataclass(frozen=True)
class ShardedOutput:
    """A folder of shards with its plan; picklable, so that any process can make shards of it."""

    folder: str  # absolute, or a URL
    plan: ShardPlan

    def stem(self, number: int) -> str:
        """Return the start of the names of a shard's files, by which they sort."""
        return f"{number:0{max(6, len(str(len(self.plan) - 1)))}d}"

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def check_planned(self) -> None:
        """Refuse to work on a folder whose plan another command has replaced.

        Raises:
            DataError: it was replaced (78, both sides).
        """
        now = read_plan(self._path(PLAN))
        if now is not None:
            self.plan.check_same(now, self.folder)

    # ------------------------------------------------------------------------------ one shard

    def worker(
        self, task: ShardTask, check: Callable[[], None] = lambda: None
    ) -> Callable[[int], Record]:
        """Return a function from a number to its shard; `check` is called between its steps."""
        return partial(self._make, task, check)

    def _make(self, task: ShardTask, check: Callable[[], None], number: int) -> Record:
        pieces = self.plan.pieces(number)
        items = 0
        start = time.monotonic()
        with (
            in_whole_input(pieces),
            task.open(self.folder, partial(Attempt, self, number)) as out,
            contextlib.closing(task.steps(pieces, out)) as steps,
        ):
            for count in steps:
                items += count
                check()
        return {"shard": number, "items": items, "seconds": round(time.monotonic() - start, 3)}

    def _input(self, number: int) -> list[list[Any]]:
        """Return the pieces of a shard as its commit lists them."""
        return [list(asdict(piece).values()) for piece in self.plan.pieces(number)]

    def write_commit(self, number: int, body: Mapping[str, Any]) -> None:
        """Write the commit of a shard whose files are in place."""
        body = {"shard": number, "plan": self.plan.name, "input": self._input(number), **body}
        body = plain_json({**body, "versions": versions()})
        data = dumps(body | {"sha256": seal(body)})
        places.write(self._path(f"{self.stem(number)}.json"), data, _IS_COMMIT)

    def adopt(self, file: Path, name: str, ours: own.Proof) -> None:
        """Give a private file of data its name; another with this name is set aside."""
        if not is_url(self.folder):
            self._set_aside(name, ours)
        places.adopt(file, self._path(name), ours)

    def _set_aside(self, name: str, ours: own.Proof) -> bool:
        """Rename a file of data that vg did not write as it is; return whether it was there."""
        path = self._path(name)
        if not _is_other(path, ours):
            return False
        with _turn(self._path(LIST)):
            # Another process may have renamed it by now, and made it again.
            if _is_other(path, ours):
                own.set_aside(path)
        return True

    def commit(self, number: int) -> dict[str, Any] | None:
        """Return the commit of a shard; None if it has none, or one whose files are not there."""
        return self.checked(number, self._size)

    def _size(self, name: str) -> int | None:
        return file_size(self._path(name))

    def checked(self, number: int, size: Callable[[str], int | None]) -> dict[str, Any] | None:
        """Return the commit of a shard as `commit` does; `size` returns the bytes of a file."""
        name = f"{self.stem(number)}.json"
        if size(name) is None:
            return None
        try:
            body = orjson.loads(places.read(self._path(name)) or b"")
            whole = isinstance(body, dict) and body.pop("sha256", None) == seal(body)
        except (OSError, orjson.JSONDecodeError):
            return None
        # A commit that was copied to another number, or edited and sealed again, is not one.
        whole = (
            whole
            and not fault_in_record(body, number, COMMIT)
            and _has_names(body["files"])
            and body["plan"] == self.plan.name
            and _by_name(body["input"]) == _by_name(storable(self._input(number)))
        )
        return body if whole and _has_files(body, size) and not self._is_edited(body) else None

    def _is_edited(self, record: Mapping[str, Any]) -> bool:
        """Return whether data of a shard was written to after its commit, and has another hash.

        Only files that are not older than the commit are read, and all after a copy that did not
        keep times. A store at a URL is trusted.
        """
        if is_url(self.folder):
            return False
        try:
            committed = os.stat(self._path(f"{self.stem(record['shard'])}.json")).st_mtime_ns
            return any(
                os.stat(path := self._path(name)).st_mtime_ns >= committed
                and file_hash(path) != facts["sha256"]
                for name, facts in record["files"].items()
            )
        except OSError:  # another process has renamed or removed it by now
            return True

    # ------------------------------------------------------------------------------ all shards

    def _sizes(self) -> Callable[[str], int | None]:
        """Return a function from a file to its bytes; a URL is listed once, now."""
        return places.sizes(self.folder).get if is_url(self.folder) else self._size

    def missing(self, part: tuple[int, int] = (0, 1)) -> Iterator[int]:
        """Yield the numbers of shards that are not there, each looked for when it is asked for.

        Args:
            part: (i, n): only every n-th shard from the i-th on.
        """
        size = self._sizes()
        for number in range(part[0], len(self.plan), part[1]):
            if self.checked(number, size) is None:
                yield number

    def is_complete(self) -> bool:
        """Return whether the folder is finished and its shards are there, with their sizes."""
        try:
            shards = Shards(self.folder)
        except DataError:
            return False
        size = self._sizes()
        whole = len(shards) == len(self.plan) and shards.manifest.get("plan") == self.plan.name
        return whole and all(_has_files(record, size) for record in shards.records())

    def set_damaged_aside(self, part: tuple[int, int] = (0, 1)) -> int:
        """Rename the files of a complete folder that have another hash; return how many shards.

        All of them are read, once. A store at a URL is trusted: it compares hashes itself.

        Args:
            part: (i, n): only of every n-th shard from the i-th on.
        """
        if is_url(self.folder):
            return 0
        damaged = set[int]()
        for number, record in enumerate(Shards(self.folder).records()):
            if number % part[1] != part[0]:
                continue
            ours = own.Known(record["files"])
            for name in record["files"]:
                if self._set_aside(name, ours):
                    damaged.add(number)
        return len(damaged)

    def finish(self) -> int:
        """Complete the folder, unless shards are missing; return how many are.

        The list and the manifest are written, and files that no commit names removed.
        Several processes may do it: each reads all commits, and they take turns to publish.
        """
        total = None if self.is_complete() else self._total()
        try:
            if total is not None and total.missing:
                return total.missing
            unlocked = self._size(f"{LIST}.lock") is None
            if total is None and unlocked and not self._strays():
                return 0  # nothing is to be written: the folder may be read-only
            # Taking the lock also removes the lock file of a process that was killed.
            with _turn(self._path(LIST)):
                if total is not None and not self.is_complete():
                    self._publish(total)
                for name in self._strays():
                    places.remove(self._path(name))
            return 0
        finally:
            if total is not None:
                own.remove(total.file, places.is_ours)

    def _total(self) -> _Total:
        """Read all commits, and list them in a private file."""
        total = _Total(places.private(self._path("shards")))
        digest = hashlib.sha256()
        size_of = self._sizes()
        with file_errors(total.file, reading=False), own.create(total.file) as stream:
            for number in range(len(self.plan)):
                record = self.checked(number, size_of)
                if record is None:
                    total.missing += 1
                    continue
                total.add(record)
                line = dumps(record)
                digest.update(line)
                stream.write(line)
            stream.flush()
            os.fsync(stream.fileno())
            total.listed = {"bytes": stream.tell(), "sha256": digest.hexdigest()}
        return total

    def _publish(self, total: _Total) -> None:
        # A restart elsewhere removes private files, so that the list may be gone by now.
        with file_errors(self.folder, reading=False):
            places.adopt(total.file, self._path(LIST), _IS_COMMIT)
        about = {"plan": self.plan.name, "shards": len(self.plan), "bytes": total.size}
        inputs = [{"path": s.path, "bytes": s.bytes, "sha256": s.sha256} for s in self.plan.sources]
        files = {os.path.basename(self.folder): total.listed}
        config = storable(dict(self.plan.config))
        facts = {**total.facts, **total.counts, **about, "made_by": total.makers()}
        if "held_out" in facts:
            marked = sum(source.held_out for source in self.plan.sources)
            facts["held_out"] = max(facts["held_out"], marked)
        body = manifest_bytes(files, inputs, config=config, **facts)
        places.write_beside(manifest_of(self.folder), body)

    def _strays(self) -> list[str]:
        """Return files that the list does not name: rests of killed tries, data of second tries.

        In memory are 8 bytes per shard.
        """
        hash_at = len(self.stem(0)) + 1
        records = Shards(self.folder).records()
        names = (next(iter(record["files"])) for record in records)
        kept = array("Q", (int(name[hash_at:][:8], 16) for name in names))
        strays = list[str]()
        for name in places.sizes(self.folder):
            data = re.fullmatch(places.DATA, name)
            listed = data and int(data[1]) < len(kept) and kept[int(data[1])] == int(data[2], 16)
            if not listed and (data or re.fullmatch(places.PRIVATE, name)):
                strays.append(name)
        return [name for name in strays if _is_ours(self.folder, name)]


def _is_other(path: str, ours: own.Proof) -> bool:
    """Return whether a file is there that is not ours."""
    with file_errors(path, reading=True):
        try:
            return not ours(Path(path))
        except FileNotFoundError:
            return False


def _is_ours(folder: str, name: str) -> bool:
    """Return whether a file with the name of a shard's data or record has its contents.

    The name of data has a hash of all files of the shard. Where there are several, a kill may have
    left some, which the commit of the shard names or nobody. At a URL the name alone counts.
    """
    data = re.fullmatch(places.DATA, name)
    if is_url(folder) or not (data or re.fullmatch(r"\d+\.json", name)):
        return True
    path = Path(folder, name)
    if data is None:
        with file_errors(path, reading=True):
            return _IS_COMMIT(path)
    # A copy under another ending is the user's, even with the same bytes.
    ending = ending_of(folder)
    endings = _BESIDE if ending == ".npy" else (ending,)
    names = [f"{data[1]}-{data[2]}{ending}" for ending in endings]
    try:
        hashes = [file_hash(file) for file in map(path.with_name, names) if file.is_file()]
        fits = name in names and _short_hash(hashes) == data[2]
        return fits or own.Known(_committed(path.with_name(f"{data[1]}.json")))(path)
    except FileNotFoundError:  # another process has removed it
        return False


def _committed(commit: Path) -> dict[str, Any]:
    """Return the files that a commit names, with their facts; none if it is damaged."""
    try:
        body = orjson.loads(commit.read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        return {}
    return {} if fault_in(body, {"files": FILES}) else dict(body["files"])


def _has_files(record: Mapping[str, Any], size: Callable[[str], int | None]) -> bool:
    """Return whether the files of a shard are there; `size` returns the bytes of a file."""
    return all(size(name) == facts["bytes"] for name, facts in record["files"].items())


@contextmanager
def in_whole_input(pieces: Sequence[Piece]) -> Iterator[None]:
    """Give errors about a line of a piece the number that it has in the whole input."""
    try:
        yield
    except DataError as error:
        first = next((piece for piece in pieces if piece.path == str(error.file)), None)
        if first is None or error.line is None:
            raise
        line = error.line + first.lines_before()
        raise DataError(error.why, error.file, line, error.code) from None


def _turn(target: str) -> AbstractContextManager[object]:
    """Wait until no other process has the lock of a file, and hold it; a URL has none."""
    return nullcontext() if is_url(target) else when_free(partial(Lock, target), 0.05)


def open_folder(
    path: str,
    config: Mapping[str, Any],
    sources: Sequence[PlannedInput],
    shard_size: int | None,
    default_size: int,
    restart: bool = False,
    read: Sequence[str] = (),
) -> ShardedOutput:
    """Return the folder of an output, made if needed, with the plan that it has or now gets.

    A plan without any started shard binds nobody: the command's plan takes its place.

    Args:
        path: `X.jsonl/`, `X.npy/` …
        config: the settings that decide the bytes; a "device" is left to the commits.
        sources: the inputs.
        shard_size: bytes of input per shard; None takes the size of an unfinished run.
        default_size: bytes per shard where there is none.
        restart: remove the shards that are there.
        read: further inputs, which must not be in the folder.

    Raises:
        DataError: the name is taken (73), or the shards have another plan (78, both sides).
    """
    folder = _folder_of(path)
    _check_folder(path, folder, [*(source.path for source in sources), *read])
    if is_url(path):
        _check_manifest_at(folder)
    else:
        check_manifest(manifest_path(folder), [Path(folder)])
    planned = _plan_for(config, sources)
    if restart:
        fresh = planned(shard_size or default_size)
        remove_shards(folder, len(fresh))
        # The plan is replaced, not removed: after a kill a folder without it would be nobody's.
        if places.read(os.path.join(folder, PLAN)) is not None:
            places.write(os.path.join(folder, PLAN), _sealed(fresh), places.is_ours)
    if not is_url(path):
        with file_errors(folder, reading=False):
            os.makedirs(folder, exist_ok=True)
    plan, before = _planned(folder, planned, shard_size, default_size)
    plan.check_same(before, path)
    return ShardedOutput(folder, plan)


def _check_manifest_at(folder: str) -> None:
    """Refuse to overwrite anything but the manifest of a folder at a URL.

    Raises:
        DataError: an object that vg did not write for the folder has its name (73).
    """
    place = manifest_of(folder)
    if file_size(place) and not manifest_beside(f"{folder}/"):
        why = "is where the manifest goes, and vg did not write it for this folder"
        way = f"choose a different name before the suffix of {os.path.basename(folder)}"
        raise DataError(f"{why}; {way}", place, code=Exit.CANNOT_CREATE)


def plan_without_writing(
    path: str,
    config: Mapping[str, Any],
    sources: Sequence[PlannedInput],
    shard_size: int | None,
    default_size: int,
) -> ShardPlan:
    """Return the plan of a folder that `open_folder` would make or resume; nothing is written."""
    before = read_plan(os.path.join(_folder_of(path), PLAN)) if path.endswith("/") else None
    size = shard_size or (before or {}).get("shard_size", default_size)
    return _plan_for(config, sources)(size)


def _folder_of(path: str) -> str:
    if re.match("(file|local|memory):", path):
        raise DataError("expected a folder without file:, or a store", path, code=Exit.USAGE)
    return path.rstrip("/") if is_url(path) else os.path.realpath(path)


def _plan_for(
    config: Mapping[str, Any], sources: Sequence[PlannedInput]
) -> Callable[[int], ShardPlan]:
    """Return a function from bytes per shard to a plan; a device is left to the commits."""
    config = {key: value for key, value in config.items() if key != "device"}
    return partial(ShardPlan, storable(config), tuple(sources))


def _planned(
    folder: str, plan_for: Callable[[int], ShardPlan], shard_size: int | None, default_size: int
) -> tuple[ShardPlan, dict[str, Any]]:
    """Return the plan of a command, and the record of the plan that the folder has now."""
    file = os.path.join(folder, PLAN)
    before = read_plan(file)
    plan = plan_for(shard_size or (before or {}).get("shard_size", default_size))
    if before is None:
        places.create(file, _sealed(plan))
    elif before != plan.record() and not _is_begun(folder):
        with _turn(os.path.join(folder, LIST)):
            # Another process may have replaced the plan, and even started a shard, meanwhile.
            if read_plan(file) == before:
                places.write(file, _sealed(plan_for(shard_size or default_size)), places.is_ours)
    else:
        return plan, before
    now = read_plan(file) or {}  # another process's plan, if that process was first
    return plan_for(shard_size or now.get("shard_size", default_size)), now


def _sealed(plan: ShardPlan) -> bytes:
    body = plan.record()
    return dumps(body | {"sha256": seal(body)})


def _is_begun(folder: str) -> bool:
    """Return whether a shard of a folder is there, or a process may be making one."""
    names = filter(partial(re.fullmatch, places.OURS), places.sizes(folder))
    begun = (name for name in names if name not in (PLAN, f"{LIST}.lock"))
    return any(not re.fullmatch(places.PRIVATE, name) or places.is_held(name) for name in begun)


def _check_folder(path: str, folder: str, read: Sequence[str]) -> None:
    """Refuse a place where a folder of shards cannot be; `read` are the inputs."""
    local = not is_url(folder)
    names = places.sizes(folder)
    lock = Path(folder, f"{LIST}.lock")
    inputs = [name.rstrip("/") for name in read]
    if local:
        ours = (Path(folder), manifest_path(folder), *(Path(folder, name) for name in names))
        refuse_inputs((*ours, lock), inputs)
    if folder in inputs:
        why = "is an input of this command and would be overwritten; name another output"
    elif local and not os.path.isdir(os.path.dirname(folder)):
        why = f"the folder {os.path.dirname(folder)} does not exist; create it first"
    elif local and os.path.lexists(folder) and not os.path.isdir(folder):
        why = "is a file, expected a folder of shards; remove it or choose another -o"
    elif PLAN not in names and not all(re.fullmatch(places.PRIVATE, name) for name in names):
        why = f"holds files but no {PLAN}: it is not a folder of shards; choose another -o"
    elif PLAN in names and not places.is_plan(places.read(os.path.join(folder, PLAN)) or b""):
        why = f"has a {PLAN} that vg did not write or cannot read; choose another -o"
    elif storable(folder) != folder:
        why = "has bytes in its name that are not UTF-8, which a manifest cannot hold"
    else:
        if local:
            own.check(lock, is_lock)  # before any work, which ends with taking it
        return
    raise DataError(why, path, code=Exit.CANNOT_CREATE)


def read_plan(file: str) -> dict[str, Any] | None:
    """Return the plan of a folder, or None if it has none.

    Raises:
        DataError: it is damaged (65).
    """
    if places.read(file) is None:
        return None
    plan = read_sealed(file, _PLAN, "the plan of a folder of shards")
    if not plan["shard_size"]:
        raise DataError('"shard_size": expected 1 or more, got 0; --restart starts over', file)
    return plan


def remove_shards(folder: str, count: int = 0) -> None:
    """Remove a folder's shards and manifest; the plan stays, the proof that vg wrote the folder.

    Args:
        folder: the folder, or its URL.
        count: number of shards that are to be made in it.

    Raises:
        DataError: a link or pipe has the name of one, or a file of the user's the name of a commit
            (73); nothing is removed.
    """
    if not is_url(folder):
        own.check_tree(Path(folder), own.placed(re.compile(places.OURS)))
        for name in places.sizes(folder):
            commit = re.fullmatch(r"(\d{6,})\.json", name)
            if name == LIST or (commit and int(commit[1]) < count):
                own.check(os.path.join(folder, name), _IS_COMMIT)
    places.remove(manifest_of(folder), is_manifest)
    named = filter(partial(re.fullmatch, places.OURS), places.sizes(folder))
    # A shard's files prove one another, so that all are looked at before one is removed. After a
    # kill the commit proves those that are left; as "-" sorts before ".", it goes after them.
    for name in sorted(name for name in named if name != PLAN and _is_ours(folder, name)):
        places.remove(os.path.join(folder, name))
