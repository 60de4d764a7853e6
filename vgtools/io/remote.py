"""Files at URLs (`s3://`, `gs://`, `hf://`, `https://` …), by fsspec and the packages it names.

An object store has no renames and no locks, and an object that is opened for writing is published
even if the writer fails. So a file is written here and goes up whole, in one `put`; `create` is the
one operation of which only the first try succeeds. fsspec's packages retry temporary errors.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BufferedReader, RawIOBase
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import orjson

from vgtools.io import own
from vgtools.io.errors import DataError, Exit, file_errors
from vgtools.io.forms import LARGEST, is_name
from vgtools.io.names import file_of, is_extra, is_url, manifest_of, split_table

_AHEAD = 1 << 22  # bytes fetched beyond those that are read
_ASKED = 16  # objects that a store is asked about at a time
# Facts by which a change of an object shows, by the names that stores have for them.
_VERSIONS = (
    "ETag", "etag", "Content-MD5", "Digest", "md5Hash", "blob_id",
    "Last-Modified", "LastModified", "last_modified", "modified", "modify", "mtime", "created",
    "sha", "modificationTime", "md5Checksum", "modifiedTime",
)  # fmt: skip
_GONE = (404, 410)  # status of a web server
_HIDDEN = (401, 403)
# huggingface_hub's errors, also about a repository that is private.
_MISSING = ("RepositoryNotFoundError", "RevisionNotFoundError", "RemoteEntryNotFoundError")
_BRACED = 1_000_000  # files of one pattern


class Facts(NamedTuple):
    """The facts of an object that are known without reading it."""

    bytes: int
    version: str  # changes with the content; empty if the store has nothing of the kind


class UnsizedError(DataError):
    """An object whose server does not state its size (69)."""

    def __init__(self, url: str) -> None:
        why = "has no size at its server, which vg asks for; download it, and name the file"
        super().__init__(why, url, code=Exit.UNAVAILABLE)


def is_missing(error: BaseException | None) -> bool:
    """Return whether a web server or a model hub answers that there is nothing of a name."""
    return getattr(error, "status", None) in _GONE or type(error).__name__ in _MISSING


@contextlib.contextmanager
def _about(url: str) -> Iterator[None]:
    """Raise any error of a store as an error with an exit code.

    Raises:
        DataError: nothing is there, or the URL is wrong (66); a package is missing (69); or the
            store refuses it, also after it was asked again (69): an expired key is not a fault
            of the object that it would open.
    """
    try:
        yield
    except ImportError as error:
        extra = f"{error}"
        if url.startswith(("s3:", "s3a:")):
            extra = "pip install 'vgtools[s3]'"
        elif url.startswith(("http:", "https:")):
            extra = "pip install aiohttp requests"
        why = f"needs a package that is not installed: {extra}"
        raise DataError(why, url, code=Exit.UNAVAILABLE) from None
    except DataError:
        raise
    except Exception as error:  # each store has its own; none of them is vg's
        if isinstance(error, FileNotFoundError):
            # So fsspec calls whatever ends the first question to a web server.
            known = isinstance(error.__cause__, FileNotFoundError | None)
            if known or is_missing(error.__cause__):
                what = "its bucket does not exist" if "bucket" in str(error) else "does not exist"
                raise DataError(what, url, code=Exit.NO_INPUT) from None
            error = cast(Exception, error.__cause__)
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        missing = isinstance(error, ValueError)
        why = f"the storage refuses it: {reason}; run the same command again to resume"
        raise DataError(why, url, code=Exit.NO_INPUT if missing else Exit.UNAVAILABLE) from None


_LOCAL = ("file://", "local://", "memory://")  # URLs for which nothing connects
_offline = False


def stay_offline(offline: bool) -> bool:
    """Refuse to connect from now on, or allow it (`--offline`); return which."""
    global _offline
    _offline = offline
    return offline


def is_offline() -> bool:
    """Return whether `--offline` forbids to connect."""
    return _offline


def _system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it; whatever connects asks for it.

    Raises:
        DataError: it would connect, and --offline forbids that (69).
    """
    if _offline and not url.startswith(_LOCAL):
        why = "is at a URL, and --offline never connects; copy it here, or leave --offline out"
        raise DataError(why, url, code=Exit.UNAVAILABLE)
    from fsspec.core import url_to_fs

    # Other processes write there as well, so that a listing may be out of date.
    return url_to_fs(url, use_listings_cache=False)  # type: ignore[no-any-return]


def facts(url: str) -> Facts:
    """Return the size of an object and its version.

    Raises:
        DataError: as all functions of this module: it is missing (66), the store's package is
            not installed (69), or the store refuses it or does not answer (69).
    """
    with _about(url):
        system, path = _system(url)
        info = system.info(path)
        if info["type"] == "directory":
            raise DataError("is a folder, expected a file", url, code=Exit.NO_INPUT)
        if info["size"] is None:
            raise UnsizedError(url)
        return Facts(int(info["size"]), _version(info))


def _version(info: Mapping[str, Any]) -> str:
    return next((str(info[name]) for name in _VERSIONS if info.get(name)), "")


def facts_of(urls: Sequence[str]) -> list[Facts | None]:
    """Return the facts of many objects, `_ASKED` at a time; None if one is missing or has no size.

    Raises:
        DataError: as `facts`, of a store that does not answer.
    """

    def ask(url: str) -> Facts | None:
        try:
            return facts(url)
        except DataError as error:
            if error.code != Exit.NO_INPUT and not isinstance(error, UnsizedError):
                raise
            return None

    with ThreadPoolExecutor(_ASKED) as pool:
        return [*pool.map(ask, urls)]


def revision(url: str) -> dict[str, str]:
    """Return the commit that a URL of a model hub leads to now, for a manifest; else nothing.

    Raises:
        DataError: as `facts`.
    """
    if not url.startswith("hf://"):
        return {}
    with _about(url):
        system, path = _system(url)
        place = system.resolve_path(path)
        how = {"repo_type": place.repo_type, "revision": place.revision}
        return {"revision": system._api.repo_info(place.repo_id, **how).sha}


def all_of(names: Sequence[str] | None) -> list[str]:
    """Return the inputs of a command: `-` if none is named, all that a pattern means."""
    return [one for name in names or ["-"] for one in expand(name)]


def file_size(path: str) -> int | None:
    """Return the bytes of a file, here or at a URL; None if there is no such file."""
    if not is_url(path):
        # One call, because between two another process may take the file away.
        try:
            found = os.stat(path)
        except (OSError, ValueError):  # a NUL in the name is a ValueError
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None
    try:
        return facts(path).bytes
    except DataError as error:
        if error.code != Exit.NO_INPUT:
            raise
        return None


class _Object(RawIOBase):
    """An object that is read; errors of the store name its URL.

    A large one is fetched in parts, perhaps of several versions: at its end, and when it is closed,
    the store is asked whether it changed meanwhile. A web server that sends no parts is read from
    the start.

    Raises:
        DataError: it changed, or ended early (78).
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._stream: Any = None
        self._system, self._path = _system(url)
        self._facts: Facts | None = None
        self._stream = self._system.open(self._path, "rb", block_size=_AHEAD)
        self._size = int(getattr(self._stream, "size", None) or 0)  # 0: it comes in one answer
        self._in_parts = self._size > 0
        self._is_checked = True  # nothing was fetched since the store was asked
        if self._size > _AHEAD:
            try:
                self._facts = facts(url)
            except BaseException:
                self._stream.close()
                raise

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        with _about(self._url):
            if self._in_parts:
                return int(self._stream.seek(offset, whence))
            offset += (0, self._stream.tell(), self._size)[whence]
            if offset < self._stream.tell():
                self._reopen()
            self._skip_to(offset)
            return offset

    def _reopen(self) -> None:
        """Open the object again, in one answer."""
        self._stream.close()
        self._stream = self._system.open(self._path, "rb", block_size=0)
        self._in_parts = False

    def _skip_to(self, offset: int) -> None:
        while (left := offset - self._stream.tell()) > 0 and self._stream.read(min(left, _AHEAD)):
            pass

    def readinto(self, buffer: Any) -> int:
        with _about(self._url):
            try:
                count = int(self._stream.readinto(buffer))
            except ValueError as error:
                if not self._in_parts or "support range requests" not in str(error):
                    raise
                place = self._stream.tell()
                self._reopen()
                self._skip_to(place)
                count = int(self._stream.readinto(buffer))
        self._is_checked &= not count
        end = self._stream.tell()
        if self._facts is not None and len(buffer) and not count and end < self._size:
            raise self._changed()
        if end >= self._size:
            self._check()
        return count

    def _check(self) -> None:
        if self._facts is not None and not self._is_checked:
            self._is_checked = True
            if facts(self._url) != self._facts or self._facts.bytes != self._size:
                raise self._changed()

    def _changed(self) -> DataError:
        why = "changed while it was read; run the command again, with --restart if it has it"
        return DataError(why, self._url, code=Exit.CONFIG)

    def close(self) -> None:
        if self.closed or self._stream is None:
            return
        self._stream.close()
        super().close()
        if sys.exc_info()[0] is None:  # an error on its way explains more
            self._check()


def open_url(url: str) -> BinaryIO:
    """Open an object for reading; `seek` costs nothing, and only the parts read are fetched."""
    with _about(url):
        return cast(BinaryIO, BufferedReader(_Object(url), 1 << 20))


def read(url: str) -> bytes:
    """Return a small object whole."""
    with _about(url):
        system, path = _system(url)
        return cast(bytes, system.cat_file(path))


def read_if_there(url: str, most: int) -> bytes | None:
    """Return an object of at most `most` bytes whole; None if it is larger, or not to be seen.

    A store that does not list its objects refuses to answer about missing ones.

    Raises:
        DataError: as `facts`, of a store that does not answer.
    """
    with _about(url):
        return _read_if_there(*_system(url), most)


def _read_if_there(system: Any, path: str, most: int) -> bytes | None:
    try:
        info = system.info(path)
        small = info["type"] == "file" and (info["size"] or 0) <= most
        return cast(bytes, system.cat_file(path)) if small else None
    except (FileNotFoundError, PermissionError) as error:
        if isinstance(error.__cause__, FileNotFoundError | PermissionError | None):
            return None
        if is_missing(error.__cause__) or getattr(error.__cause__, "status", 0) in _HIDDEN:
            return None
        raise


def expand(pattern: str) -> list[str]:
    """Return the names that match a pattern (`*`, `**`, `?`, `[…]`), here or at a URL, sorted.

    `{00000..00099}` and `{a,b}` mean each of these names, in order, as in a shell. A name that is
    not a pattern, or under which there is a file here, means itself.

    Raises:
        DataError: nothing is there (66), and as `facts`.
    """
    if not re.search(r"[*?\[{]", pattern) or os.path.lexists(file_of(pattern)):
        return [pattern]
    names = [*islice(_braced(pattern), _BRACED + 1)]
    if len(names) > _BRACED:
        raise _too_many(pattern)
    if names != [pattern]:
        return [one for name in names for one in expand(name)]
    if not re.search(r"[*?\[]", pattern):
        return [pattern]
    pattern, columns = split_table(pattern)
    if is_url(pattern):
        with _about(pattern):
            system, path = _system(pattern)
            found = sorted(system.unstrip_protocol(name) for name in system.glob(path))
    else:
        found = sorted(glob.glob(pattern, recursive=True))
    if not found:
        raise DataError("matches no file", pattern, code=Exit.NO_INPUT)
    return [f"{name}#{columns}" for name in found] if columns else found


def _too_many(pattern: str) -> DataError:
    return DataError(f"names more than {_BRACED:,} files", pattern, code=Exit.USAGE)


def _braced(pattern: str) -> Iterator[str]:
    """Yield the names that a pattern with braces means; without, itself."""
    found = re.search(r"\{(?:([0-9]+)\.\.([0-9]+)|([^{},]*(?:,[^{},]*)+))\}", pattern)
    if found is None:
        yield pattern
        return
    if found[3] is not None:
        parts = found[3].split(",")
    else:
        first = int(found[1])
        last = int(found[2])
        if abs(last - first) >= _BRACED:
            raise _too_many(pattern)
        step = 1 if first <= last else -1
        # As in a shell, all have the width of the longest if one starts with a zero.
        padded = any(len(end) > 1 and end.startswith("0") for end in found.groups()[:2] if end)
        width = max(len(found[1]), len(found[2])) if padded else 0
        parts = [f"{number:0{width}}" for number in range(first, last + step, step)]
    before = pattern[: found.start()]
    after = pattern[found.end() :]
    for part in parts:
        yield from _braced(f"{before}{part}{after}")


def sizes(folder: str) -> dict[str, int]:
    """Return the objects directly in a folder, name -> bytes; none if there is no such folder."""
    with _about(folder):
        system, path = _system(folder.rstrip("/"))
        try:
            found = system.ls(path, detail=True)
        except FileNotFoundError:
            return {}
        return {
            entry["name"].rpartition("/")[2]: int(entry["size"])
            for entry in found
            if entry["type"] == "file"
        }


def is_folder(path: str) -> bool:
    """Return whether there is a folder, here or at a URL; a web server has one where it ends in /.

    Raises:
        DataError: as `facts`.
    """
    if not is_url(path):
        return os.path.isdir(path)
    with _about(path):
        system, inner = _system(path)
        return path.endswith("/") or system.info(inner)["type"] == "directory"


def names_in(folder: str) -> list[str]:
    """Return the names directly in a folder, here or at a URL; none if it does not exist.

    Raises:
        DataError: as `facts`.
    """
    if not is_url(folder):
        with file_errors(folder, reading=True):
            return os.listdir(folder) if os.path.isdir(folder) else []
    with _about(folder):
        system, path = _system(f"{folder.rstrip('/')}/")
        try:
            return [name.rstrip("/").rpartition("/")[2] for name in system.ls(path, detail=False)]
        except NotADirectoryError:
            return []
        except FileNotFoundError as error:
            if not isinstance(error.__cause__, FileNotFoundError | None):
                raise
            return []


def create(url: str, data: bytes) -> bool:
    """Write a small object unless there is one of this name; return whether it was written."""
    with _about(url):
        system, path = _system(url)
        # The store itself decides which of several writers is first.
        try:
            system.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        return True


def write(url: str, data: bytes) -> None:
    """Write a small object, instead of an older object of this name."""
    with _about(url):
        system, path = _system(url)
        system.pipe_file(path, data)


def put(file: str | Path, url: str) -> None:
    """Copy a local file to a URL: all of it, or nothing is there."""
    with _about(url):
        system, path = _system(url)
        system.put_file(str(file), path)


def remove(url: str) -> None:
    """Remove an object; nothing happens if it is not there."""
    with _about(url), contextlib.suppress(FileNotFoundError):
        system, path = _system(url)
        system.rm_file(path)


def fetch(url: str) -> Path:
    """Return a copy of an artifact on this machine, which all processes of the machine share.

    With a file come the files that its manifest names, with a folder all that is in it, and the
    manifest next to a folder of shards. It is fetched again when a file of it has changed. Copies
    are in `$XDG_CACHE_HOME/vgtools`, by default in `~/.cache`; nothing removes them.
    """
    with _about(url):
        system, path = _system(url.rstrip("/"))
        # The facts of all files are part of the key: a changed artifact gets a folder of its own,
        # and a process that has mapped the old copy keeps it.
        found = _files(system, path)
        if not all(map(_version, found.values())):
            why = "has neither a date nor an ETag at its server, so that no change of it would show"
            raise DataError(f"{why}; download it, and name the file", url, code=Exit.NO_INPUT)
        versions = map(str, found.values())
        key = "\n".join([url, *found, *versions])
        place = cached(key, lambda part: _download(system, path, found, part))
        return place / os.path.basename(path)


def cached(key: str, fill: Callable[[Path], None]) -> Path:
    """Return a folder of this user's that all processes share, made by the first that needs it.

    Args:
        key: all that decides its contents.
        fill: writes them into a new folder.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    place = Path(home, "vgtools", hashlib.sha256(key.encode()).hexdigest())
    place.parent.mkdir(parents=True, exist_ok=True)
    own.claim(place.parent)
    with open(own.reopen(Path(f"{place}.lock"), create=True), "wb") as lock:
        # A second process waits here, and then finds the folder.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            part = own.temporary(place)
            own.remove_tree(part)  # a process that was killed may have left it
            part.mkdir()
            fill(part)
            own.swap(part, place)
    return place


def local(path: str) -> str:
    """Return the path of an artifact that is mapped into memory: at a URL, of a copy of it."""
    return str(fetch(path)) if is_url(path) else path


@contextlib.contextmanager
def fetched(name: str) -> Iterator[str]:
    """Yield where a file is on this machine, with the columns of a table: at a URL, of a copy.

    Raises:
        DataError: the block's error, about the URL in the place of the copy; or as `facts`.
    """
    file, columns = split_table(name)
    place = local(file) + (f"#{columns}" if columns else "")
    try:
        yield place
    except DataError as error:
        if error.file is None or str(error.file) not in (place, local(file)):
            raise
        raise DataError(error.why, name, error.line, error.code) from None


def _files(system: Any, path: str) -> dict[str, Any]:
    """Return the store's facts about the files of an artifact, by their paths."""
    manifest = manifest_of(path)
    if system.isdir(path):
        found = dict(sorted(system.find(path, detail=True).items()))
        # The lists of web servers have names alone.
        found = {
            name: info if _version(info) else system.info(name) for name, info in found.items()
        }
        if f"{path}/plan.json" in found:
            with contextlib.suppress(FileNotFoundError):  # a folder that is not complete has none
                found[manifest] = system.info(manifest)
        return found
    found = {path: system.info(path)}
    try:
        body = orjson.loads(_read_if_there(system, manifest, LARGEST) or b"null")
    except orjson.JSONDecodeError:
        return found
    named = body.get("files") if isinstance(body, dict) and "vg" in body else None
    if not isinstance(named, dict):  # a file of somebody else's
        return found
    folder = os.path.dirname(path)
    beside = {f"{folder}/{name}" for name in named if is_name(name)}
    for name in sorted({manifest, *beside} - {path}):
        try:
            found[name] = system.info(name)
        except FileNotFoundError:
            if is_extra(name, body):
                continue
            why = "is missing; the manifest next to it names it; create it again"
            raise DataError(why, name, code=Exit.NO_INPUT) from None
    return found


def _download(system: Any, path: str, found: dict[str, Any], place: Path) -> None:
    base = os.path.dirname(path)
    for name, facts in found.items():
        inner = name.removeprefix(f"{base.rstrip('/')}/")
        # To a store `..` is a name like any; here it would lead to other files of the user's.
        if not all(map(is_name, inner.split("/"))):
            raise DataError("is a name that leads out of its folder", name)
        file = place / inner
        file.parent.mkdir(parents=True, exist_ok=True)
        system.get_file(name, str(file))
        size = facts["size"]  # unknown to some web servers
        if size is not None and os.path.getsize(file) != int(size):
            raise OSError(f"{name} is {size} bytes, {os.path.getsize(file)} arrived")
