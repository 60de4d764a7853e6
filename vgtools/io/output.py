"""Outputs that resume: files that grow by committed steps and appear whole or not at all."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

import orjson

from vgtools.io.errors import DataError, Exit, file_error, storable
from vgtools.io.files import (
    atomic_write,
    compress,
    config_difference,
    file_facts,
    final_path,
    is_stream,
    manifest_path,
    open_stream,
    read_json,
    read_manifest,
    sync_dir,
    write_manifest,
)
from vgtools.io.inputs import Inputs, as_inputs
from vgtools.io.process import NO_LINK, Lock, Stop, is_own_file, not_ours

if TYPE_CHECKING:
    import numpy as np  # at run time inside the functions that need it, as in `vgtools.io`


@dataclass
class _Part:
    """One file of an Output while it grows."""

    final: Path
    stream: IO[bytes]
    header: int = 0  # bytes of a .npy before its rows, which are known at the end
    committed: int = 0
    # Of all bytes after the header: a resumed run and the manifest need not trust the disk.
    seal: Any = field(default_factory=hashlib.sha256)
    # Compressed files: the bytes since the last commit.
    buffer: list[bytes] = field(default_factory=list)

    @property
    def compressed(self) -> bool:
        """Whether it is a .gz or .zst, written as one piece per commit."""
        return self.final.suffix in (".gz", ".zst")

    def append(self, data: bytes | memoryview) -> None:
        """Write bytes, which the seal includes."""
        self.stream.write(data)
        self.seal.update(data)

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


def _part_path(final: Path) -> Path:
    return final.with_name(final.name + ".part")


def _new_part(final: Path, header: int) -> _Part:
    """Start a part; whatever has its name goes, and a link leads nowhere."""
    path = _part_path(final)
    try:
        path.unlink(missing_ok=True)
        new = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        stream = open(new, "w+b")  # noqa: SIM115 - closed by __exit__
    except OSError as error:
        raise file_error(error, final, reading=False) from None
    part = _Part(final, stream, header)
    try:
        stream.write(bytes(header))
    except OSError as error:
        raise part.fault(error) from None
    return part


def _old_part(final: Path, header: int, facts: Mapping[str, Any]) -> _Part:
    """Open the part of an unfinished run after its last commit.

    Raises:
        DataError: it is not what was committed (65), or a link or another kind of file (73).
    """
    path = _part_path(final)
    size = int(facts["bytes"])
    try:
        old = os.open(path, os.O_RDWR | NO_LINK)
        stream = open(old, "r+b")  # noqa: SIM115 - closed by __exit__
    except FileNotFoundError:
        raise _damaged(path, "is missing") from None
    except OSError as error:
        if os.path.islink(path) or os.path.isdir(path):
            raise not_ours(path) from None
        raise file_error(error, path, reading=False) from None
    part = _Part(final, stream, header, size)
    try:
        if not is_own_file(stream.fileno()):
            raise not_ours(path)
        if os.fstat(stream.fileno()).st_size < size:
            raise _damaged(path, f"is shorter than its journal says ({size} bytes)")
        stream.seek(header)
        while stream.tell() < size:
            part.seal.update(stream.read(min(_CHUNK, size - stream.tell())))
        if part.seal.hexdigest() != facts["sha256"]:
            raise _damaged(path, "does not hold what was written to it")
        stream.truncate(size)
        stream.seek(size)
    except OSError as error:
        stream.close()
        raise file_error(error, path, reading=False) from None
    except DataError:
        stream.close()
        raise
    return part


def _damaged(path: Path, why: str) -> DataError:
    return DataError(f"{why}; --restart starts over", path)


_CHUNK = 1 << 20
# Bytes for the header of any array of up to four dimensions, written when the row count is known.
_NPY_HEADER = 128


def _npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    import numpy as np

    descr = np.lib.format.dtype_to_descr(dtype)
    body = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    magic = b"\x93NUMPY\x01\x00" + (_NPY_HEADER - 10).to_bytes(2, "little")
    return magic + body.ljust(_NPY_HEADER - 11).encode() + b"\n"


class Output:
    """Files that grow by committed steps, survive a kill, and appear whole or not at all.

    Bytes go to `X.part`; `commit` makes them safe and records in `X.journal` the length and hash
    of every part and the state of the work; the same command, run again, cuts off what came after
    the last commit and resumes. `finish` renames the parts and writes the manifest. What was
    damaged meanwhile, or begun with other inputs, is refused. `-` (and a pipe or device) streams
    instead: nothing is kept, nothing resumes.

    Args:
        paths: the files; the first is the one the user named, and names journal, lock and manifest.
        config: what decides the bytes; a journal with another one is refused (exit 78), `restart`
            discards it.
        npy: for each `.npy` among the files, its index -> (dtype, row width or shape; None for a
            1-D array).
        inputs: files read; writing over one of them is refused, and the manifest names them with
            their hashes. `Inputs` of those that are read before the output is opened.
        restart: start over.
        disposable: discard an unfinished run that cannot be resumed, where others are refused.

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
        inputs: Inputs | Sequence[str | Path] = (),
        restart: bool = False,
        disposable: bool = False,
    ) -> None:
        self.config = storable(config)
        self._inputs = inputs
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
        self._disposable = disposable
        self.resumable = not is_stream(self._paths[0])
        if not self.resumable and (len(paths) > 1 or self._npy):
            why = "several files or a .npy cannot go into a pipe; give -o a file name"
            raise DataError(why, paths[0], code=Exit.USAGE)

    def __enter__(self) -> Output:
        if not self.resumable:
            self._parts = [_Part(Path(self._paths[0]), open_stream(self._paths[0]))]
            return self
        inputs = self._inputs
        paths = inputs.paths if isinstance(inputs, Inputs) else [str(path) for path in inputs]
        finals = [final_path(p, paths) for p in self._paths]
        self._journal = finals[0].with_name(finals[0].name + ".journal")
        self._stop.__enter__()  # before the lock, so that a signal does not leave one
        try:
            self._lock = Lock(finals[0])
            try:
                self._open_parts(finals)
            except DataError as error:
                if not self._disposable or error.code not in (Exit.DATA, Exit.CONFIG):
                    raise
                self._restart = True
                self._open_parts(finals)
            if not self.complete:
                self._stop.check()
        except BaseException:
            self._close(failed=True)
            raise
        return self

    def _open_parts(self, finals: list[Path]) -> None:
        manifest = manifest_path(finals[0])
        _check_manifest(manifest, finals, self._restart)
        self._inputs = as_inputs(self._inputs)
        journal = {} if self._restart else self._read_journal(finals)
        if "manifest" in journal and self._inputs.can_be_compared:
            self._publish(finals, journal["files"], journal["manifest"], verify=True)
            self.complete = True
            return
        if not journal and not self._restart and self._is_current(finals, manifest):
            self.complete = True
            return
        if "manifest" in journal or not journal:
            # What came through a pipe cannot be compared with what comes now: start over.
            self._journal.unlink(missing_ok=True)
            journal = {"state": {}}
        self.state = journal["state"]
        while self._parts:
            self._parts.pop().close(failed=True)
        for index, final in enumerate(finals):
            header = _NPY_HEADER if index in self._npy else 0
            if "files" in journal:
                part = _old_part(final, header, journal["files"][final.name])
            else:
                part = _new_part(final, header)
            self._parts.append(part)

    def _read_journal(self, finals: list[Path]) -> dict[str, Any]:
        """Return the journal of an unfinished run with the same settings and inputs, or {}.

        Raises:
            DataError: it is damaged (65), or of a run with other settings, inputs or files (78).
        """
        path = self._journal
        if not os.path.lexists(path):
            return {}
        journal = read_json(path, "the journal of an unfinished run; --restart discards it")
        seal = journal.pop("sha256", None)
        if seal is None and {"config", "sizes", "state"} <= journal.keys():
            why = "is the journal of a run of an older vg; --restart starts over"
            raise DataError(why, path, code=Exit.CONFIG)
        if seal != _seal(journal):
            raise _damaged(path, "is damaged: its sha256 is that of other contents")
        difference = config_difference(journal["config"], self.config)
        if not difference and list(journal["files"]) != [final.name for final in finals]:
            difference = f"its files were {', '.join(journal['files'])}"
        if difference:
            raise DataError(
                f"an unfinished run used different settings: {difference}. "
                "Use the same settings to resume, or --restart to start over",
                finals[0],
                code=Exit.CONFIG,
            )
        as_inputs(self._inputs).check_same(journal["inputs"])
        return journal

    def _write_journal(self, files: Mapping[str, Any], **more: Any) -> None:
        body = {
            "config": self.config,
            "inputs": as_inputs(self._inputs).record(),
            "files": files,
            "state": self.state,
            **more,
        }
        body = orjson.loads(orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY))
        atomic_write(self._journal, orjson.dumps(body | {"sha256": _seal(body)}))

    def _is_current(self, finals: list[Path], manifest: Path) -> bool:
        """Return whether an earlier run finished these files from these inputs and settings."""
        inputs = as_inputs(self._inputs)
        if not inputs.can_be_compared or not manifest.exists():
            return False
        if not all(final.exists() for final in finals):
            return False
        body = read_json(manifest)
        config = body.get("config")
        if not isinstance(config, dict) or config_difference(config, self.config):
            return False
        try:
            read_manifest(finals[0])
        except DataError:
            return False
        return bool(body.get("inputs") == inputs.entries)

    def write(self, data: bytes | memoryview, file: int = 0) -> None:
        """Append bytes to one of the files; they count once `commit` returns."""
        part = self._parts[file]
        if part.compressed:
            part.buffer.append(bytes(data))
            return
        try:
            part.append(data)
        except OSError as error:
            raise part.fault(error) from None

    def commit(self, state: Mapping[str, Any]) -> None:
        """Make all writes so far safe, record the state to resume from, and stop if asked to."""
        self._flush()
        if self.resumable:
            self.state = dict(state)
            self._write_journal(
                {
                    part.final.name: {"bytes": part.committed, "sha256": part.seal.hexdigest()}
                    for part in self._parts
                }
            )
            self._stop.check()

    def _flush(self) -> None:
        for part in self._parts:
            try:
                if part.buffer:
                    # One gzip member or zstd frame per commit: what a kill cuts off never spoils
                    # what came before it.
                    part.append(compress(b"".join(part.buffer), part.final))
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
        as_inputs(self._inputs).check_unchanged()
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
                if part.compressed and not part.committed:
                    part.append(compress(b"", part.final))
                part.stream.flush()
                os.fsync(part.stream.fileno())
                part.stream.close()
            except OSError as error:
                raise part.fault(error) from None
        files = {part.final.name: _facts(part) for part in self._parts}
        manifest = {"config": self.config, **facts}
        self._write_journal(files, manifest=manifest)
        self._publish([part.final for part in self._parts], files, manifest)

    def _publish(
        self,
        finals: list[Path],
        files: Mapping[str, Any],
        manifest: dict[str, Any],
        verify: bool = False,
    ) -> None:
        """Rename the parts, main file last, and write the manifest; repeatable after a kill.

        Args:
            finals: where they go.
            files: their sizes and hashes, by name.
            manifest: what else it says.
            verify: of a former run: refuse files with other hashes.
        """
        for final in finals if verify else ():
            path = _part_path(final) if os.path.lexists(_part_path(final)) else final
            if not path.is_file() or path.is_symlink() or file_facts(path) != files[final.name]:
                raise _damaged(path, "is not what the unfinished run wrote")
        try:
            for final in reversed(finals):
                if _part_path(final).exists():
                    os.replace(_part_path(final), final)
            sync_dir(finals[0].parent)
        except OSError as error:
            raise file_error(error, finals[0], reading=False) from None
        write_manifest(finals[0], files, as_inputs(self._inputs).entries, **manifest)
        self._journal.unlink(missing_ok=True)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self.resumable:
            self._close(failed=kind is not None)
        elif str(self._parts[0].final) != "-":
            self._parts[0].close(failed=kind is not None)

    def _close(self, failed: bool) -> None:
        """Close the parts, remove them if nothing was committed, and let other writers in."""
        try:
            for part in self._parts:
                part.close(failed=True)
                if failed and not self._journal.exists():
                    _part_path(part.final).unlink(missing_ok=True)
        finally:
            if self._lock is not None:
                self._lock.release()
            self._stop.__exit__()


def _facts(part: _Part) -> dict[str, Any]:
    """Return size and hash of a finished part; the seal of a .npy lacks its header."""
    path = _part_path(part.final)
    if part.header:
        return file_facts(path)
    return {"bytes": os.path.getsize(path), "sha256": part.seal.hexdigest()}


def _seal(journal: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(journal)).hexdigest()


def _check_manifest(manifest: Path, finals: Sequence[Path], restart: bool) -> None:
    """Refuse to overwrite what is not the manifest of these files.

    The name may belong to the output itself, to a file that vg did not write, or to the manifest of
    another artifact. One that cannot be read is discarded by a restart.
    """

    def refuse(why: str) -> NoReturn:
        raise DataError(why, manifest, code=Exit.CANNOT_CREATE)

    if manifest in finals:
        refuse("is where the manifest goes; choose another suffix, for example .jsonl")
    if not manifest.exists():
        return
    fault = ""
    body: dict[str, Any] = {}
    try:
        body = read_json(manifest, "the manifest of a former run")
    except DataError as error:
        if error.code != Exit.DATA:
            raise
        fault = error.why
    files = body.get("files")
    names = list(files) if isinstance(files, dict) else []
    ours = finals[0].name in names
    if not fault and "vg" not in body and not ours:
        refuse("is not a manifest of vg and would be overwritten; remove it or choose another -o")
    if not fault and ("vg" not in body or not isinstance(files, dict)):
        fault = "is damaged: a manifest of vg has its version and its files"
    if fault and not restart:
        raise DataError(f"{fault}; remove it, or --restart replaces it", manifest)
    if fault or ours:
        return
    for name in names:
        if name != manifest.name and (manifest.parent / name).exists():
            refuse(
                f"already holds the manifest of {name}; "
                f"choose a different name before the suffix of {finals[0].name}"
            )
