"""Outputs that resume: files that grow by committed steps and appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import orjson

from vgtools import __version__
from vgtools.io import own
from vgtools.io.artifact import read_manifest
from vgtools.io.errors import DataError, Exit, file_errors, storable
from vgtools.io.files import (
    config_difference,
    embedded,
    file_facts,
    final_path,
    is_manifest,
    made_by,
    plain_json,
    read_json,
    refuse_inputs,
    refuse_same,
    write_manifest,
)
from vgtools.io.forms import FILES, SIZE, check_form, is_name
from vgtools.io.inputs import Inputs, as_inputs
from vgtools.io.names import ending_of, is_parquet, is_stream, is_table, manifest_path
from vgtools.io.own import open_stream, sync_dir
from vgtools.io.parquet import Columns
from vgtools.io.parts import Part, Rows, damaged, new_part, old_part, part_path
from vgtools.io.process import Lock, Stop
from vgtools.io.written import seal, unseal

_IS_JOURNAL = own.begins(b'{"vg":')
# Keys that commands commit; each has some of them.
_DONE = ("errors", "images", "items", "line", "rows")  # from which it resumes
_STATE: dict[str, Any] = {
    **dict.fromkeys([f"{key}?" for key in (*_DONE, "size", "tokens")], SIZE),
    "counts?": {str: SIZE},
    "digest?": (str, type(None)),
    "reason?": str,
    "sha256?": str,
}
_JOURNAL = {
    "config": dict,
    "inputs": {"files": [{"path": str, "sha256?": str}], "facts": dict},
    "files": FILES,
    "state": _STATE,
    "manifest?": dict,
}


class _State(dict[str, Any]):
    """The state of a journal; keys may be missing, because anybody can seal one."""

    def __init__(self, state: Mapping[str, Any], journal: Path, resumes: bool) -> None:
        super().__init__(state)
        self._journal = journal
        self._resumes = resumes

    def get(self, key: str, default: Any = None) -> Any:
        # A command always commits the same keys; by a default, a resumed run would start again.
        return self[key] if self._resumes and key in _DONE else super().get(key, default)

    def __missing__(self, key: str) -> NoReturn:
        raise damaged(self._journal, f'is damaged: "state.{key}" is missing')


class Output:
    """Files that grow by committed steps, survive a kill, and appear whole or not at all.

    Bytes go to `X.part`; `commit` makes them safe and records in `X.journal` the length and hash
    of every part and the state of the work; the same command, run again, cuts off the bytes after
    the last commit and resumes. `finish` renames the parts and writes the manifest. An output that
    was damaged meanwhile, or started with other inputs, is refused. `-` (and a pipe or device)
    streams instead: nothing is kept, nothing resumes.

    Args:
        paths: the files; the user named the first, and journal, lock and manifest follow its name.
        config: the settings that decide the bytes; a journal with others is refused (exit 78),
            `restart` discards it.
        npy: for each `.npy` among the files, its index -> (dtype, row width or shape; None for a
            1-D array).
        columns: the types of rows of JSON, which may then be written as `.parquet`.
        inputs: files read; writing over one of them is refused, and the manifest names them with
            their hashes. `Inputs` if they are read before the output is opened.
        restart: start over.
        disposable: discard an unfinished run that cannot be resumed, where others are refused.
        former: matches names of files that are not named after the first and that an earlier run
            of the command may have written; those that this run lacks are removed.

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
        npy: Mapping[int, Rows] | None = None,
        columns: Columns | None = None,
        inputs: Inputs | Sequence[str | Path] = (),
        restart: bool = False,
        disposable: bool = False,
        former: re.Pattern[str] | None = None,
    ) -> None:
        self.config = storable(config)
        self._inputs = inputs
        self.state: dict[str, Any] = {}
        self.complete = False  # an earlier run finished this output: nothing to do
        self._npy = dict(npy or {})
        self._columns = columns
        self._stop = Stop(patience=5)
        self._parts = list[Part]()
        self._lock: Lock | None = None
        self._left = set[str]()  # whose parts a journal shows to be vg's
        self._paths = [str(p) for p in paths]
        self._restart = restart
        self._disposable = disposable
        self._former = former
        streams = [path for path in self._paths if is_stream(path)]
        self.resumable = not streams
        packed = [path for path in self._paths if path.endswith((".xz", ".bz2"))]
        if packed:
            why = "would not be compressed, despite its name; expected .gz or .zst"
            raise DataError(why, packed[0], code=Exit.USAGE)
        tables = [path for path in self._paths if is_table(path)]
        if any(columns is None or not is_parquet(path) for path in tables):
            expected = ".jsonl" if columns is None else ".jsonl or .parquet"
            why = f"is the name of a table that this command cannot write; expected {expected}"
            raise DataError(why, tables[0], code=Exit.USAGE)
        if streams and (len(paths) > 1 or self._npy or tables):
            why = "several files, .npy or .parquet cannot go into a pipe; give a file name"
            raise DataError(why, streams[0], code=Exit.USAGE)

    def __enter__(self) -> Output:
        if not self.resumable:
            self._parts = [Part(Path(self._paths[0]), open_stream(self._paths[0]))]
            return self
        inputs = self._inputs
        paths = inputs.paths if isinstance(inputs, Inputs) else [str(path) for path in inputs]
        finals = [final_path(p, paths) for p in self._paths]
        for final in finals:
            if final.parent != finals[0].parent:
                why = f"is in another folder than {finals[0]}, whose manifest names both"
                way_out = f"expected a name in {finals[0].parent}"
                raise DataError(f"{why}; {way_out}", final, code=Exit.USAGE)
        self._journal = finals[0].with_name(finals[0].name + ".journal")
        manifest = manifest_path(finals[0])
        beside = (manifest, self._journal, finals[0].with_name(f"{finals[0].name}.lock"))
        parts = [*map(part_path, finals)]
        # Publishing removes files that an earlier output of the name had.
        former = (name for name in known_of(manifest) if self._is_former(name, finals[0]))
        refuse_inputs((*beside, *parts, *map(manifest.with_name, former)), paths)
        refuse_same((*finals, *beside[1:], *parts))  # the manifest's place is checked below
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
        check_manifest(manifest, finals)
        self._inputs = as_inputs(self._inputs)
        own.check(self._journal, _IS_JOURNAL)
        try:
            journal = self._read_journal(finals)
        except DataError as error:
            if error.code == Exit.DATA:
                # Files that only the journal knew are not known any more, and no restart would
                # replace them: the user must learn of them now.
                _check_finals(finals, own.Known(known_of(manifest)))
            raise
        if "manifest" in journal and not self._restart and self._inputs.can_be_compared:
            self._publish(finals, journal, verify=True)
            self.complete = True
            return
        if not journal and not self._restart and self._is_current(finals, manifest):
            self._discard_parts(finals)
            self.complete = True
            return
        if "manifest" in journal:
            # The former run was killed while it published. Its output is now made again, for a
            # restart or because an input is a pipe, which cannot be compared. Once the rest is
            # published, the manifest shows that these files are vg's.
            former = [manifest.with_name(name) for name in journal["files"]]
            try:
                self._publish(former, journal, verify=True)
            except DataError as error:
                # On a full disk the files must stay known, and only the journal knows them.
                if error.code not in (Exit.DATA, Exit.CANNOT_CREATE):
                    raise
        _check_finals(finals, own.Known(known_of(manifest), journal.get("files", {})))
        if "manifest" in journal:
            journal = {}
        growing = [*map(part_path, finals)]
        for path in growing:
            own.check(path, self._is_own_part)
        assert self._lock is not None
        self._lock.note(*(path.name for path in growing))
        if not journal:
            # A part that this run lacks goes before the journal that shows whose it is.
            for name in self._left:
                if (left := part_path(finals[0].with_name(name))) not in growing:
                    own.remove(left, self._is_own_part)
            own.remove(self._journal, _IS_JOURNAL)
            journal = {"state": {}}
        self.state = _State(journal["state"], self._journal, resumes="files" in journal)
        while self._parts:
            self._parts.pop().close(failed=True)
        for index, final in enumerate(finals):
            rows = self._npy.get(index)
            if "files" in journal:
                part = old_part(final, rows, journal["files"][final.name], self._columns)
            else:
                part = new_part(final, rows, self._is_own_part, self._columns)
            self._parts.append(part)

    def _discard_parts(self, finals: Sequence[Path]) -> None:
        """Remove the parts of a killed restart, before the lock that shows whose they are."""
        own.remove(own.temporary(self._journal))
        for final in finals:
            if self._is_own_part(part_path(final)):
                own.remove(part_path(final), self._is_own_part)

    def _is_own_part(self, path: Path) -> bool:
        """Return whether a lock or journal shows that a killed or stopped run left a part."""
        assert self._lock is not None
        return path.name in self._lock.names or path.name.removesuffix(".part") in self._left

    def _read_journal(self, finals: list[Path]) -> dict[str, Any]:
        """Return the journal of an unfinished run with the same settings and inputs, or {}.

        With a restart, only the journal of a run that was half published is returned.

        Raises:
            DataError: it is damaged (65), or from a run with other settings, inputs or files (78).
        """
        path = self._journal
        if not os.path.lexists(path):
            return {}
        try:
            journal = read_sealed(path, _JOURNAL, "the journal of an unfinished run")
            if not journal["files"]:
                raise DataError("names no file of an unfinished run; --restart starts over", path)
        except DataError:
            if self._restart:
                # A damaged journal cannot show more than its name does.
                self._left = {final.name for final in finals if _is_beside(final.name, finals[0])}
                return {}
            raise
        self._left = {*journal["files"]}
        if self._restart:
            return journal if "manifest" in journal else {}
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
            "vg": __version__,
            "config": self.config,
            "inputs": as_inputs(self._inputs).record(),
            "files": files,
            "state": self.state,
            **more,
        }
        body = plain_json(body)
        data = orjson.dumps(body | {"sha256": seal(body)})
        own.atomic_write(self._journal, data, _IS_JOURNAL)

    def _is_current(self, finals: list[Path], manifest: Path) -> bool:
        """Return whether an earlier run finished these files from these inputs and settings."""
        inputs = as_inputs(self._inputs)
        if not inputs.can_be_compared or not manifest.exists() or not is_manifest(manifest):
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
        self._parts[file].write(data)

    def commit(self, state: Mapping[str, Any]) -> None:
        """Make all writes so far safe, record the state to resume from, and stop if asked to."""
        # The bytes are on the disk before the journal that promises them.
        self._flush()
        self.state = dict(state)
        if self.resumable:
            self._write_journal(
                {
                    part.final.name: {"bytes": part.committed, "sha256": part.seal.hexdigest()}
                    for part in self._parts
                }
            )
            self._stop.check()

    def _flush(self) -> None:
        for part in self._parts:
            part.flush(sync=self.resumable)

    def finish(self, **facts: Any) -> None:
        """Publish the files with a manifest that holds the facts: kind, rows, fingerprints …"""
        self._flush()
        if not self.resumable:
            return
        as_inputs(self._inputs).check_unchanged()
        manifest = {"config": self.config, **facts}
        about = embedded(as_inputs(self._inputs).entries, **manifest)
        files = {part.final.name: part.finish(about) for part in self._parts}
        # After a kill another process publishes, but this one made the files.
        manifest |= made_by()
        # The journal has the manifest before the first rename, so that a kill in between leaves
        # all that is needed to publish the rest.
        self._write_journal(files, manifest=manifest)
        journal = {"files": files, "manifest": manifest, "inputs": as_inputs(self._inputs).record()}
        self._publish([part.final for part in self._parts], journal)

    def _publish(
        self, finals: list[Path], journal: Mapping[str, Any], verify: bool = False
    ) -> None:
        """Rename the parts, main file last, and write the manifest; repeatable after a kill.

        Files that only the former manifest names are removed: they belong to another output. A
        manifest has no seal, so that those are left whose names the command does not give; the
        next command that writes them knows them by "former".

        Args:
            finals: where they go.
            journal: their sizes and hashes, by name, the manifest's other facts, and the inputs.
            verify: the files are a former run's: refuse other hashes.
        """
        files = journal["files"]
        for final in finals if verify else ():
            path = part_path(final) if os.path.lexists(part_path(final)) else final
            if not path.is_file() or path.is_symlink() or file_facts(path) != files[final.name]:
                own.check(final, own.Known(known_of(manifest_path(finals[0])), files))
                raise damaged(path, "has changed since the unfinished run wrote it")
        manifest = manifest_path(finals[0])
        before = known_of(manifest)
        known = own.Known(before, files)
        with file_errors(finals[0], reading=False):
            for final in reversed(finals):
                # A part that is not there has its final name already, from before a kill.
                if part_path(final).exists():
                    own.replace(part_path(final), final, known)
            left: dict[str, Any] = {}
            for name in sorted(before.keys() - files.keys()):
                if not self._is_former(name, finals[0]):
                    if os.path.lexists(manifest.with_name(name)):
                        left[name] = before[name]
                    continue
                with contextlib.suppress(DataError):  # the user may have replaced it by now
                    own.remove(manifest.with_name(name), known)
            # The renames must survive a power cut that the manifest survives.
            sync_dir(finals[0].parent)
        entries = [entry for entry in journal["inputs"]["files"] if entry["path"] != "-"]
        former = {"former": left} if left else {}
        write_manifest(finals[0], files, entries, **journal["manifest"], **former)
        # The journal goes last: as long as it is there, a kill is repaired by publishing again.
        own.remove(self._journal, _IS_JOURNAL)

    def _is_former(self, name: str, main: Path) -> bool:
        """Return whether an earlier run may have given a file its name, and not the user."""
        named = self._former is not None and self._former.fullmatch(name) is not None
        return named or _is_beside(name, main)

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
            # Without a journal nothing was committed, and nothing can resume from the parts. Those
            # that a killed run left, and this one has not reached, are among them.
            if failed and self._parts and self._lock and not self._journal.exists():
                for path in map(self._lock.path.with_name, self._lock.names):
                    if path.suffix == ".part":
                        own.remove(path, self._is_own_part)
        finally:
            if self._lock is not None:
                # Before any part is opened, a killed run's parts are there, and only its lock shows
                # whose they are.
                if failed and not self._parts and self._lock.was_left and self._lock.names:
                    self._lock.leave()
                else:
                    self._lock.release()
            self._stop.__exit__()


def check_place(path: str, inputs: Sequence[str]) -> None:
    """Refuse a place where an output cannot go, before the work for another output.

    The files of an unfinished run are compared with its journal when the output is opened.

    Raises:
        DataError: it cannot be written, or is a file or has a manifest that is not vg's (73).
    """
    final = final_path(path, inputs)
    manifest = manifest_path(final)
    check_manifest(manifest, [final])
    if not os.path.lexists(final.with_name(f"{final.name}.journal")):
        own.check(final, own.Known(known_of(manifest)))


def _check_finals(finals: Sequence[Path], known: own.Known) -> None:
    for final in finals:
        own.check(final, known)


def write_files(
    folder: Path,
    files: Mapping[str, bytes],
    kind: str,
    config: Mapping[str, Any],
    inputs: Inputs,
    former: re.Pattern[str],
) -> None:
    """Write small files that belong together into a folder, with a manifest: all, or none.

    The manifest is named after the first. Files of an earlier run that this run lacks are removed;
    `former` matches their names.

    Raises:
        DataError: an input changed while it was read (78), another command writes there (75), or a
            file is there that vg did not write (73).
    """
    paths = [folder / name for name in files]
    with Output(paths, config, inputs=inputs, restart=True, former=former) as out:
        for index, data in enumerate(files.values()):
            out.write(data, index)
        out.finish(kind=kind)


def write_page_to(target: str | Path, data: bytes) -> None:
    """Write a page or picture into a file, a `Path` of `files.page_path`, or a stream.

    Raises:
        DataError: as `own.write_page`.
    """
    if isinstance(target, Path):
        own.write_page(target, data)
        return
    with Output([target], {}) as out:
        out.write(own.sealed(data))
        out.finish()


def read_sealed(path: str | Path, form: Any, what: str) -> dict[str, Any]:
    """Return a JSON object that vg sealed, without its seal.

    Args:
        path: the file.
        form: its form, for `check_form`.
        what: its name in messages.

    Raises:
        DataError: it is damaged, or of another form (65).
    """
    body = read_json(path, f"{what}; --restart discards it")
    unseal(body, path, "--restart starts over")
    check_form(body, form, path, "--restart starts over")
    return body


def _is_beside(name: str, main: Path) -> bool:
    """Return whether a name has the stem of the main file: `X.ids`, `X.rows.npy` of `X.npy`."""
    return name.startswith(main.name.removesuffix(ending_of(main)) + ".")


def files_of(manifest: Path, *others: str) -> dict[str, Any]:
    """Return the files that a manifest of vg's names in its folder, with their sizes and hashes.

    Those under `others`, keys of the manifest, are added.
    """
    if not manifest.is_file() or not is_manifest(manifest):
        return {}
    body = orjson.loads(manifest.read_bytes())
    named = [files for key in (*others, "files") if isinstance(files := body.get(key), dict)]
    return {name: facts for files in named for name, facts in files.items() if is_name(name)}


def known_of(manifest: Path) -> dict[str, Any]:
    """Return the files of a manifest, and those that its output had at other names before."""
    return files_of(manifest, "former")


def check_manifest(manifest: Path, finals: Sequence[Path]) -> None:
    """Refuse to overwrite anything but a manifest of these files, or of files that are gone.

    The name may belong to the output itself, to a file that vg did not write, or to the manifest of
    another artifact.
    """

    def refuse(why: str) -> NoReturn:
        raise DataError(why, manifest, code=Exit.CANNOT_CREATE)

    other = f"choose a different name before the suffix of {finals[0].name}"
    if own.is_claimed(manifest):  # a file of a run, whose name nobody chose
        other = "--restart starts over"
    if manifest in finals:
        refuse("is where the manifest goes; choose another suffix, for example .jsonl")
    if not os.path.lexists(manifest) or (manifest.is_file() and not manifest.stat().st_size):
        return
    if not manifest.is_file() or manifest.is_symlink() or not is_manifest(manifest):
        refuse(f"is where the manifest goes, and vg did not write or cannot read it; {other}")
    names = list(files_of(manifest))
    ours = {final.name for final in finals}
    if finals[0].name in names and names[0] in ours:  # not the ids of an artifact, say, alone
        return
    for name in names:
        if name != manifest.name and (manifest.parent / name).exists():
            refuse(f"already holds the manifest of {name}; {other}")
