"""How an artifact was made, back to the files that no command made, and changes since."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol

from vgtools import __version__
from vgtools.io.errors import DataError, Exit, json_bytes, plain
from vgtools.io.files import sha256_file
from vgtools.io.folders import LIST, Shards
from vgtools.io.names import file_of, is_shards, is_unnamed, is_url
from vgtools.io.records import Record, mark_of, record_of

_MOST_STEPS = 200
# Runs of which commands note a hash that is of more than the run, as they do of a network with a
# head: times must do.
_DERIVED = ("retriever", "visualbert")
_OF_ITSELF = ("fingerprint", "sha256")  # hashes in a run.json of the run itself


class Line(Protocol):
    """A command line that was taken apart."""

    @property
    def written(self) -> list[str]:
        """The names of the outputs."""

    def read(self) -> Iterator[tuple[str, bool]]:
        """Yield the names of the inputs, and whether each may be of a hub or a package."""

    def words(self, change: Callable[[str], str] = ...) -> list[str]:
        """Return the words after `vg`, with other names of files."""


@dataclass(frozen=True)
class Change:
    """A file, or the version of vg, that is another today."""

    name: str
    change: Literal["missing", "made again", "sha256", "version"]
    was: str | None = None
    now: str | None = None

    def __str__(self) -> str:
        """Return a sentence."""
        if self.change == "version":
            return f"{self.name} was {self.was}, is now {self.now}"
        if self.change == "sha256":
            return f"{self.name} has changed: sha256 was {self.was:.12}, is now {self.now:.12}"
        return f"{self.name} {'is missing' if self.change == 'missing' else 'has been made again'}"


@dataclass
class Node:
    """A file or folder of a lineage.

    Attributes:
        changes: changes since it was written or read.
        record: the record of its command; None if no command made it, as far as is known.
        sha256: the hash of a file without a record, when it was read.
        maker: the artifact with the record of the command that wrote this file as well.
        line: the words of the command; None if a program called vgtools, or another version of vg.
        fault: why there is no line.
        folder: where the command was run, so that its names are right.
        read: the files and folders that it read, in their order.
    """

    changes: list[Change] = field(default_factory=list)
    record: Record | None = None
    sha256: str | None = None
    maker: Path | None = None
    line: Line | None = None
    fault: str = ""
    folder: str = ""
    read: list[Path] = field(default_factory=list)


class Lineage:
    """The commands and files that an artifact was made by and from.

    Args:
        path: any file or folder that a command of vg wrote.
        parse: takes the words after `vg` apart.

    Attributes:
        made: its main file or folder.
        nodes: every file and folder that took part, after those that it was made from.

    Raises:
        DataError: nothing states how it was made (65).
    """

    def __init__(self, path: str, parse: Callable[[list[str]], Line]) -> None:
        record = record_of(path)
        if record is None:
            if not os.path.exists(path):
                raise DataError("does not exist", path, code=Exit.NO_INPUT)
            why = "has no manifest or run.json, so that nothing states how it was made"
            raise DataError(f"{why}; name a file or run that vg wrote with -o", path)
        self._parse = parse
        self._open = set[Path]()
        self.made = record.made
        self.nodes = dict[Path, Node]()
        self._add(record)
        # Captions that came with images, for example, have no manifest.
        for made, node in [*self.nodes.items()]:
            for name in node.line.written if node.line else ():
                also = self.nodes.get(_place(node.folder, name))
                if also is not None and also.record is None:
                    also.maker = made

    def _add(self, record: Record, depth: int = 0) -> None:
        """Add the artifact of a record, after all that it was made from."""
        if depth > _MOST_STEPS:
            why = f"was made in more than {_MOST_STEPS} steps, one after another"
            raise DataError(f"{why}; vg lineage {shown(record.made)} shows the first", self.made)
        self._open.add(record.made)  # a record that was edited may name its own output
        node = Node(record=record)
        try:
            node.line = self._parse(record.words())
        except DataError as error:
            node.fault = error.why
        node.folder = record.folder(node.line.written if node.line else [])
        if record.version != __version__:
            node.changes.append(Change("vg", "version", record.version, __version__))
        for path, facts in record.files.items():
            node.changes += _changes(path, facts.get("sha256"))
        hashes = {
            _place(node.folder, one["path"]): one.get("sha256")
            for one in record.body.get("inputs", ())
            if not is_url(one["path"])
        }
        named = chain(node.line.read() if node.line else (), ((str(p), False) for p in hashes))
        for name, is_model in named:
            for path in _places(node.folder, name):
                if path not in record.files and path != record.made:
                    self._read(node, path, hashes, is_model, depth)
        self.nodes[record.made] = node

    def _read(
        self,
        node: Node,
        path: Path,
        hashes: dict[Path, str | None],
        is_model: bool,
        depth: int,
    ) -> None:
        """Add a file or folder that a command read."""
        assert node.record is not None  # a command read it
        source = record_of(path)
        if source is not None and source.body["argv"] == node.record.body["argv"]:
            return  # another file that the same command wrote
        if source is not None:
            if source.made not in self._open:
                self._add(source, depth + 1)
            if _is_other(source, path, node.record):
                node.changes.append(Change(shown(path), "made again"))
            path = source.made
        elif path in _runs(node.record):
            gone = not path.exists()
            self.nodes[path] = Node([Change(shown(path), "missing" if gone else "made again")])
        elif is_model and not os.path.exists(path):  # it is in a hub or a package
            return
        elif path not in self.nodes:
            sha256 = hashes.get(path) or _noted(node.record.body, path.name)
            self.nodes[path] = Node(_changes(path, sha256), sha256=sha256)
        if path not in node.read:
            node.read.append(path)

    def changes(self) -> list[Change]:
        """Return all that has changed since."""
        return [change for node in self.nodes.values() for change in node.changes]

    def text(self) -> Iterator[str]:
        """Yield lines: an artifact with its command and changes, and below it all that it read."""
        printed = set[Path]()

        def below(path: Path, depth: int) -> Iterator[str]:
            node = self.nodes[path]
            indent = "  " * depth
            if path in printed and node.record is not None:
                yield f"{indent}{shown(path)}: see above"
                return
            printed.add(path)
            yield _line(f"{indent}{shown(path)}: {_command(node)}")
            for change in node.changes:
                yield _line(f"{indent}  ! {change}")
            for source in node.read:
                yield from below(source, depth + 1)

        yield from below(self.made, 0)

    def facts(self) -> dict[str, Any]:
        """Return the same as an object of JSON: commands in the order in which they were run."""
        parts = [(_facts(path, node), node) for path, node in self.nodes.items()]
        return {
            "made": shown(self.made),
            "steps": [facts for facts, node in parts if node.record],
            "given": [facts for facts, node in parts if not node.record and not node.maker],
        }


def _facts(path: Path, node: Node) -> dict[str, Any]:
    known = {"path": shown(path), "changes": [asdict(change) for change in node.changes]}
    if node.record is None:
        return known | {"sha256": node.sha256}
    return known | {
        "kind": node.record.body.get("kind"),
        "vg": node.record.version,
        "folder": node.folder,
        "argv": node.record.body["argv"],
        "read": [shown(source) for source in node.read],
        "files": {shown(file): facts.get("sha256") for file, facts in node.record.files.items()},
    }


def _line(text: str) -> str:
    return plain(text).replace("\n", "\\n")


def _command(node: Node) -> str:
    if node.maker is not None:
        return f"written with {shown(node.maker)}"
    if node.record is None:
        return "given, no sha256" if not node.sha256 else f"given, sha256 {node.sha256:.12}"
    if node.line is None:
        return f"{shlex.join(node.record.body['argv'])} ({node.fault})"
    return shlex.join(["vg", *node.record.words()])


def shown(path: Path) -> str:
    """Return the name of a file as seen from the working directory, if it is below it."""
    name = os.path.relpath(path)
    return str(path) if name.startswith("..") else name


def _place(folder: str, name: str) -> Path:
    return Path(os.path.abspath(os.path.join(folder, file_of(name))))


def _noted(body: Any, name: str) -> str | None:
    """Return the hash of a file in the settings of a record, {name: {"sha256"}}, if it is there."""
    if not isinstance(body, dict):
        return None
    facts = body.get(name)
    if isinstance(facts, dict) and isinstance(facts.get("sha256"), str):
        return str(facts["sha256"])
    inner = (_noted(value, name) for key, value in body.items() if key != "files")
    return next(filter(None, inner), None)


def _runs(record: Record) -> dict[Path, object]:
    """Return the folders of the runs that a record names, seen from its own, with fingerprints."""
    named = [one for one in record.body.values() if isinstance(one, dict)]
    folder = str(record.file.parent)
    return {
        _place(folder, one["run"]): one.get("fingerprint")
        for one in named
        if isinstance(one.get("run"), str)
    }


def _places(folder: str, name: str) -> list[Path]:
    """Return the files that a name on a command line stands for: one, or all of a pattern."""
    if is_url(name) or name == "-":
        return []
    path = _place(folder, name)
    found = [] if path.exists() else sorted(glob.glob(str(path)))
    return [*map(Path, found)] or [path]


def _changes(path: Path, sha256: str | None) -> list[Change]:
    """Return how a file or folder differs from when it was written or read."""
    if not path.exists():
        return [Change(shown(path), "missing")]
    if sha256 is None or not (path.is_file() or is_shards(path)):
        return []
    now = sha256_file(path)
    return [] if now == sha256 else [Change(shown(path), "sha256", sha256, now)]


def _is_other(source: Record, path: Path, reader: Record) -> bool:
    """Return whether a file, folder or run is not the one that a command read, as it noted it."""
    mark = mark_of(source.body)
    runs = {} if "clusters" in reader.body else _runs(reader)
    if mark is not None and source.made in runs:
        return runs[source.made] != mark
    named = source.files.get(path) or source.files.get(source.made) or {}
    networks = [source.body, *(source.body.get(name) for name in ("encoder", "teacher"))]
    marks = {one.get("fingerprint") for one in networks if isinstance(one, dict)}
    complete = path / "complete"  # of one of several networks in a run
    marks |= {complete.read_text(errors="replace")} if complete.is_file() else set()
    # A run without weights of its own has the hash of nothing.
    marks -= {hashlib.sha256().hexdigest()}
    read = {key: value for key, value in reader.body.items() if key not in _OF_ITSELF}
    noted = {mark.decode() for mark in re.findall(rb"[0-9a-f]{64}", json_bytes(read))}
    if noted & {*marks, named.get("sha256")}:
        # The names of the rows may be others, and the rows not.
        beside = ((file.name, facts.get("sha256")) for file, facts in source.files.items())
        return any((_noted(reader.body, name) or now) != now for name, now in beside)
    if source.body.get("kind") in _DERIVED or complete.is_file():
        return os.path.getmtime(source.file) > os.path.getmtime(reader.file)
    return True


def _data_files(record: Record) -> Iterator[tuple[Path, str | None]]:
    """Yield the files of a command, with hashes; for a folder of shards the shards' files."""
    for file, facts in record.files.items():
        if not is_shards(file):
            yield file, facts.get("sha256")
            continue
        # The list of shards also names the packages that were loaded.
        for shard in Shards(file).records():
            yield from ((file / name, one["sha256"]) for name, one in shard["files"].items())


# -------------------------------------------------------------------------------------------- make

_HEAD = """\
# Makes {made} again from the files that no command of vg made, in an empty folder:
#     make -f THIS FROM=FOLDER  # where those files are
# `make check` then compares the sha256 of all that was made.
VG ?= vg
TORCHRUN ?= torchrun
SHA256 ?= sha256sum
FROM ?= {base}
EQUALS := =
.PHONY: all check
all: {goal}
"""


class _Makefile:
    """The rules that make a lineage again, with names as seen from one folder."""

    def __init__(self, lineage: Lineage) -> None:
        self._nodes = lineage.nodes
        made = [node.record for node in self._nodes.values() if node.record]
        folders = [node.folder for node in self._nodes.values() if node.record]
        self._base = os.path.commonpath([*folders, *(record.made.parent for record in made)])
        self._targets = dict[tuple[str, ...], str]()  # command -> the first file that it makes
        goal = _escaped(self._target(lineage.made))
        if self._base.endswith("\\"):
            why = "has a \\ at its end, which would join two lines of a Makefile; rename the folder"
            raise DataError(why, self._base)
        base = _one_line(self._base).replace("'", "'\\''").replace("$", "$$").replace("#", "\\#")
        head = _HEAD.format(made=self._name(lineage.made), base=base, goal=goal)
        rules = [self._rule(path, node) for path, node in self._nodes.items()]
        # A list of images holds whole paths, so that its bytes depend on the folder.
        files = [_data_files(one) for one in made if one.body.get("kind") != "images"]
        checks = [self._check(file, sha256) for file, sha256 in chain(*files)]
        self.text = "\n".join((head, *filter(None, rules), _rule("check", ["all"], checks)))

    def _name(self, path: Path) -> str:
        """Return the name of a file from the base, or the whole path of one that is not below."""
        name = os.path.relpath(path, self._base)
        return str(path) if name.startswith("..") else name

    def _target(self, path: Path) -> str:
        """Return the file that shows that a file or folder is whole."""
        record = self._nodes[path].record
        if record is not None and record.file.name == "run.json":
            return self._name(record.file)
        return self._name(path / LIST if is_shards(path) else path)

    def _check(self, file: Path, sha256: str | None) -> str:
        line = f"{sha256}  {self._name(file)}"
        return f"@echo {_quoted(line)} | $(SHA256) -c -" if sha256 else ""

    def _rule(self, path: Path, node: Node) -> str:
        name = self._name(path)
        folder = os.path.dirname(name)
        first = [f"mkdir -p {_quoted(folder)}"] if folder else []
        if node.record is not None:
            return self._of_command(path, node, first)
        if node.maker is not None:
            return _rule(name, [self._target(node.maker)], [self._check(path, node.sha256)])
        if os.path.isabs(name) or self._nodes.keys() & {*path.parents}:
            return ""  # it is where it was, or comes with its folder
        link = f"ln -s '$(FROM)'/{_quoted(name)} {_quoted(name)}"
        return _rule(name, [], [*first, link, self._check(path, node.sha256)])

    def _of_command(self, path: Path, node: Node, first: list[str]) -> str:
        assert node.record is not None  # a command made it
        target = self._target(path)
        if node.line is None:
            raise DataError(node.fault, shown(path))
        words = node.line.words(lambda word: self._word(node.folder, word))
        if any(is_unnamed(name) for name, _ in node.line.read()):
            why = f"was made from a pipe, whose content nothing states: {_command(node)}"
            raise DataError(f"{why}; write the content to a file and name that", shown(path))
        done = self._targets.setdefault((node.folder, *words), target)
        if done != target:  # a command may write several files that have manifests
            return _rule(target, [done], [])
        processes = max([1, *node.record.body.get("processes", ())])
        start = f"$(TORCHRUN) --nproc-per-node {processes} -m vgtools" if processes > 1 else "$(VG)"
        call = f"{start} {' '.join(map(_quoted, words))}"
        within = os.path.relpath(node.folder, self._base)
        if within != ".":
            call = f"mkdir -p {_quoted(within)} && cd {_quoted(within)} && {call}"
        return _rule(target, [self._target(source) for source in node.read], [*first, call])

    def _word(self, folder: str, word: str) -> str:
        """Return a word of a command line; the name of a file as seen from its new folder."""
        place = _place(folder, word)
        if not self._nodes.keys() & {place, *place.parents}:
            return word
        name = self._name(place)
        name = name if os.path.isabs(name) else os.path.relpath(place, folder)
        # The / of a folder of shards and the columns of a table come after the name.
        return name + word[len(file_of(word).rstrip("/")) :]


def makefile(lineage: Lineage) -> str:
    """Return a Makefile that makes an artifact again.

    Raises:
        DataError: a part of it was made by a program, or from a pipe (65).
    """
    return _Makefile(lineage).text


def _rule(target: str, sources: list[str], lines: list[str]) -> str:
    recipe = "".join(f"\t{line}\n" for line in lines if line)
    # A % has a meaning in a target only: elsewhere, a backslash before it is a part of the name.
    name = _escaped(target).replace("%", "\\%")
    return f"{name}: {' '.join(map(_escaped, sources))}".rstrip() + f"\n{recipe}"


def _quoted(word: str) -> str:
    """Return a word for the shell in a recipe."""
    return shlex.quote(_one_line(word)).replace("$", "$$")


def _escaped(name: str) -> str:
    """Return the name of a target or prerequisite.

    Raises:
        DataError: make would take it for more than a name (65): after a `;` for a shell's command.
    """
    if re.search(r"[;|*?\[]|^[-~]|\\$", name):
        why = "has one of ; | * ? [ in it, - or ~ at its start, or \\ at its end, which a name in a"
        raise DataError(f"{why} Makefile cannot have", name)
    name = re.sub(r"([\s#:])", r"\\\1", _one_line(name)).replace("$", "$$")
    return name.replace("=", "$(EQUALS)")  # a line with a = would set a variable


def _one_line(name: str) -> str:
    if _line(name) != name:
        raise DataError("has a control character, which a name in a Makefile cannot have", name)
    return name
