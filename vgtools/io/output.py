"""Outputs that resume: files that growing_windows by committed steps and appear whole or not at all."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, NoReturn

import orjson

from vgtools.io.errors import DataError, Exit, file_error, storable
from vgtools.io.files import (
    atomic_write,
    compress,
    config_difference,
    final_path,
    identity,
    is_stream,
    manifest_path,
    open_stream,
    read_json,
    read_manifest,
    sync_dir,
    write_manifest,
)
from vgtools.io.process import Lock, Stop
from vgtools.io.streams import arrives_once

if TYPE_CHECKING:
    import numpy as np  # at run time inside the functions that need it, as in `vgtools.io`


@dataclass
class _Part:
    """One file of an Output while it grows."""

    final: Path
    stream: IO[bytes]
    committed: int = 0
    buffer: list[bytes] = field(
        default_factory=list
    )  # compressed files: the bytes since the last commit
    packed: bool = False  # .gz or .zst

    def fault(self, error: OSError) -> Exception:
        """Return the system's error with the file's name.

        A pipe whose reader has left is not an error of the file.
        """
        if isinstance(error, BrokenPipeError):
            return error
        return file_error(error, self.final, reading=False)

    def close(self, failed: bool) -> None:
        """Close the file, which writes its buffer: after a failed write, that fails once more."""
        try:
            self.stream.close()
        except OSError as error:
            if not failed:
                raise self.fault(error) from None


# Bytes for the header of any array of up to four dimensions, written when the row count is known.
_NPY_HEADER = 128


def _npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    import numpy as np

    descr = np.lib.format.dtype_to_descr(dtype)
    body = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    magic = b"\x93NUMPY\x01\x00" + (_NPY_HEADER - 10).to_bytes(2, "little")
    return magic + body.ljust(_NPY_HEADER - 11).encode() + b"\n"


class Output:
    """Files that growing_windows by committed steps, survive a kill, and appear whole or not at all.

    Bytes go to `X.part`; `commit` makes them safe and records in `X.journal` the length of every
    part and the state of the work; the same command, run again, cuts off what came after the last
    commit and resumes. `finish` renames the parts and writes the manifest. `-` (and a pipe or
    device) streams instead: nothing is kept, nothing resumes.

    Args:
        paths: the files; the first is the one the user named, and names journal, lock and manifest.
        config: what decides the bytes; a journal with another one is refused (exit 78), `restart`
            discards it.
        npy: for each `.npy` among the files, its index -> (dtype, row width or shape; None for a
            1-D array).
        inputs: files read; writing over one of them is refused, and the manifest names and hashes
            them.
        restart: start over.

    Example:
        with Output(["out.jsonl"], config) as out:
            for window in read_windows(path, 4096, out.state):
                out.write(b"…")
                out.commit({"rows": …, "digest": window.digest})
            out.finish(kind="vokens", rows=…)
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        config: Mapping[str, Any],
        *,
        npy: Mapping[int, tuple[Any, int | tuple[int, ...] | None]] | None = None,
        inputs: Sequence[str | Path] = (),
        restart: bool = False,
    ) -> None:
        self.config = storable(config)
        self.inputs = [str(i) for i in inputs]
        self.state: dict[str, Any] = {}
        self.complete = False  # an earlier run finished this output: nothing to do
        self._npy: dict[int, tuple[np.dtype[Any], Any]] = {}
        if npy:
            import numpy

            self._npy = {i: (numpy.dtype(d), w) for i, (d, w) in npy.items()}
        self._stop = Stop(patience=5)
        self._parts = list[_Part]()
        self._lock: Lock | None = None
        self._paths = [str(p) for p in paths]
        self._restart = restart
        self.resumable = not is_stream(self._paths[0])
        if not self.resumable and (len(paths) > 1 or self._npy):
            why = "several files or a .npy cannot go into a pipe; give -o a file name"
            raise DataError(why, paths[0], code=Exit.USAGE)

    def __enter__(self) -> Output:
        if not self.resumable:
            self._parts = [_Part(Path(self._paths[0]), open_stream(self._paths[0]))]
            return self
        finals = [final_path(p, self.inputs) for p in self._paths]
        self._journal = finals[0].with_name(finals[0].name + ".journal")
        self._lock = Lock(finals[0])
        try:
            self._open_parts(finals)
        except BaseException:
            self._lock.release()
            raise
        self._stop.__enter__()
        return self

    def _open_parts(self, finals: list[Path]) -> None:
        manifest = manifest_path(finals[0])
        _check_manifest(manifest, finals)
        journal: dict[str, Any] = {}
        if self._restart:
            self._journal.unlink(missing_ok=True)
        elif self._journal.exists():
            journal = read_json(
                self._journal, "the journal of an unfinished run (--restart discards it)"
            )
            difference = config_difference(journal.get("config", {}), self.config)
            if difference:
                raise DataError(
                    f"an unfinished run used different settings: {difference}. "
                    "Use the same settings to resume, or --restart to start over",
                    finals[0],
                    code=Exit.CONFIG,
                )
            if "manifest" in journal:
                self._publish(finals, journal["manifest"])
                self.complete = True
                return
        elif self._is_current(finals, manifest):
            self.complete = True
            return
        sizes = journal.get("sizes") or [0] * len(finals)
        self.state = journal.get("state", {})
        for index, (final, size) in enumerate(zip(finals, sizes, strict=True)):
            part = final.with_name(final.name + ".part")
            try:
                stream = open(part, "r+b" if size and part.exists() else "w+b")  # noqa: SIM115 - closed by __exit__
                if os.fstat(stream.fileno()).st_size < size:
                    why = f"is shorter than its journal says ({size} bytes); --restart starts over"
                    raise DataError(why, part)
                stream.truncate(size)
                stream.seek(size)
                if size == 0 and index in self._npy:
                    stream.write(bytes(_NPY_HEADER))
            except OSError as error:
                raise file_error(error, final, reading=False) from None
            self._parts.append(_Part(final, stream, size, packed=final.suffix in (".gz", ".zst")))

    def _is_current(self, finals: list[Path], manifest: Path) -> bool:
        """Return whether an earlier run finished these files from these inputs and settings."""
        if (
            any(map(arrives_once, self.inputs))
            or not manifest.exists()
            or not all(f.exists() for f in finals)
        ):
            return False
        body = read_json(manifest)
        if body.get("config") is None or config_difference(body["config"], self.config):
            return False
        try:
            read_manifest(finals[0])
            return bool(body.get("inputs") == [identity(i, sha256=True) for i in self.inputs])
        except DataError:
            return False

    def write(self, data: bytes | memoryview, file: int = 0) -> None:
        """Append bytes to one of the files; they count once `commit` returns."""
        part = self._parts[file]
        if part.packed:
            part.buffer.append(bytes(data))
            return
        try:
            part.stream.write(data)
        except OSError as error:
            raise part.fault(error) from None

    def commit(self, state: Mapping[str, Any]) -> None:
        """Make all writes so far safe, record the state to resume from, and stop if asked to."""
        self._flush()
        if self.resumable:
            self.state = dict(state)
            body = {
                "config": self.config,
                "sizes": [p.committed for p in self._parts],
                "state": self.state,
            }
            atomic_write(self._journal, orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY))
            self._stop.check()

    def _flush(self) -> None:
        for part in self._parts:
            try:
                if part.buffer:
                    # One gzip member or zstd frame per commit: what a kill cuts off never spoils
                    # what came before it.
                    part.stream.write(compress(b"".join(part.buffer), part.final))
                    part.buffer.clear()
                part.stream.flush()
                if self.resumable:
                    os.fsync(part.stream.fileno())
                    part.committed = part.stream.tell()
            except OSError as error:
                raise part.fault(error) from None

    def finish(self, **facts: Any) -> None:
        """Publish the files with a manifest that holds the facts: kind, rows, fingerprints …"""
        self._flush()
        if not self.resumable:
            return
        for index, (dtype, width) in self._npy.items():
            part = self._parts[index]
            row_shape = (width,) if isinstance(width, int) else width or ()
            row_bytes = max(1, dtype.itemsize * math.prod(row_shape))
            rows, rest = divmod(part.committed - _NPY_HEADER, row_bytes)
            assert rest == 0, f"{part.final}: {rest} bytes beyond whole rows"
            part.stream.seek(0)
            part.stream.write(_npy_header(dtype, (rows, *row_shape)))
        for part in self._parts:
            try:
                if part.packed and not part.committed:
                    part.stream.write(compress(b"", part.final))
                part.stream.flush()
                os.fsync(part.stream.fileno())
                part.stream.close()
            except OSError as error:
                raise part.fault(error) from None
        manifest = {"config": self.config, **facts}
        body = {"config": self.config, "sizes": [], "state": self.state, "manifest": manifest}
        atomic_write(self._journal, orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY))
        self._publish([p.final for p in self._parts], manifest)

    def _publish(self, finals: list[Path], manifest: dict[str, Any]) -> None:
        """Rename the parts, main file last, and write the manifest; repeatable after a kill."""
        try:
            for final in reversed(finals):
                part = final.with_name(final.name + ".part")
                if part.exists():
                    os.replace(part, final)
            sync_dir(finals[0].parent)
        except OSError as error:
            raise file_error(error, finals[0], reading=False) from None
        write_manifest(finals[0], finals, [i for i in self.inputs if i != "-"], **manifest)
        self._journal.unlink(missing_ok=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.__exit__()
        if not self.resumable:
            if str(self._parts[0].final) != "-":
                self._parts[0].close(failed=kind is not None)
            return
        for part in self._parts:
            part.close(failed=True)
            if kind is not None and not self._journal.exists():
                part.final.with_name(part.final.name + ".part").unlink(
                    missing_ok=True
                )  # nothing was committed
        if self._lock is not None:
            self._lock.release()


def _check_manifest(manifest: Path, finals: Sequence[Path]) -> None:
    """Refuse to overwrite what is not the manifest of these files.

    The name may belong to the output itself, to a file that vg did not write, or to the manifest of
    another artifact.
    """

    def refuse(why: str) -> NoReturn:
        raise DataError(why, manifest, code=Exit.CANNOT_CREATE)

    if manifest in finals:
        refuse("is where the manifest goes; choose another suffix, for example .jsonl")
    if not manifest.exists():
        return
    body = read_json(manifest)
    files = body.get("files")
    if "vg" not in body or not isinstance(files, dict):
        refuse("is not a manifest of vg and would be overwritten; choose another -o")
    if finals[0].name in files:
        return
    for name in files:
        if name != manifest.name and (manifest.parent / name).exists():
            refuse(
                f"already holds the manifest of {name}; "
                f"choose a different name before the suffix of {finals[0].name}"
            )
