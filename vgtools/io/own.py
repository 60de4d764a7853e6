"""The one place that replaces and removes files: vg touches only files that it wrote itself.

A caller shows by its `Proof` that vg wrote a file. Without one the file stays and the command ends
(73), whatever its flags; only an empty file needs none. Proofs are

- its size and sha256 in a manifest or in a sealed journal (`Known`);
- its contents: a manifest, a journal, a lock, or a page or picture with a seal (`is_sealed`);
- a lock or a journal next to it that names it, for files that still grow;
- the folder that it is in, which its command has found to be its own (`claim`);
- a name that nothing but vg gives (`is_temporary`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import stat
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import IO, Any, BinaryIO

from vgtools.io.errors import DataError, Exit, file_error, file_errors
from vgtools.io.names import is_stream
from vgtools.io.trust import file_hash

Proof = Callable[[Path], bool]

# A file that somebody planted is opened without following a link, and without waiting for the other
# end of a pipe.
NO_LINK = os.O_NOFOLLOW | os.O_NONBLOCK
_HEAD = 1 << 12  # bytes that identify a small file
_PATIENCE = 20.0  # seconds that a writer waits for another writer of the same small file


# ------------------------------------------------------------------------------------------ proofs


def is_temporary(path: Path) -> bool:
    """Return whether a name is one that nothing but vg gives."""
    return re.fullmatch(r"\..+\.vg\.(tmp|old)", path.name) is not None


def temporary(path: Path) -> Path:
    """Return where a file or folder is written before it gets its name."""
    return path.with_name(f".{path.name}.vg.tmp")


class Known:
    """Proof by manifests and journals: the sizes and hashes that they state of files, by name.

    Args:
        files: each name -> {"bytes", "sha256"}.
    """

    def __init__(self, *files: Mapping[str, Any]) -> None:
        self._files = files

    def __call__(self, path: Path) -> bool:
        """Return whether one of them states the size and hash of the file."""
        size = os.path.getsize(path)
        known = [facts for files in self._files if isinstance(facts := files.get(path.name), dict)]
        hashes = [facts.get("sha256") for facts in known if facts.get("bytes") == size]
        return bool(hashes) and file_hash(path) in hashes


def begins(*heads: bytes) -> Proof:
    """Return the proof by the first bytes of a file."""

    def proof(path: Path) -> bool:
        with open(path, "rb") as stream:
            return stream.read(_HEAD).startswith(heads)

    return proof


_claimed = set[str]()


def claim(folder: str | Path) -> None:
    """Declare that this command has found a folder to be its own, and is the one that writes it."""
    _claimed.add(os.path.realpath(folder))


def is_claimed(path: Path) -> bool:
    """Return whether a file is in a folder that this command has found to be its own."""
    real = os.path.realpath(path.parent)
    return any(real == folder or real.startswith(f"{folder}{os.sep}") for folder in _claimed)


_SEAL = re.compile(rb"(?:<!--|%) vg ([0-9a-f]{64})(?: -->)?\n\Z")
_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
_IMAGE = b"vg-image"  # key of the seal of a picture that commands read


def sealed(data: bytes, key: bytes = b"vg") -> bytes:
    """Return a page or picture with a seal, by which vg knows it again; other data as they are.

    It is a comment at the end of HTML, SVG and PDF, and a text chunk of a PNG, by its key: the
    sha256 of the rest.
    """
    digest = hashlib.sha256(data).hexdigest().encode()
    if data.startswith((b"<!DOCTYPE html", b"<svg")):
        return data + b"<!-- vg " + digest + b" -->\n"
    if data.startswith(b"%PDF-"):
        return data + b"% vg " + digest + b"\n"
    if data.endswith(_PNG_END):
        return data.removesuffix(_PNG_END) + _chunk(key, digest) + _PNG_END
    return data


def _chunk(key: bytes, digest: bytes) -> bytes:
    body = b"tEXt" + key + b"\0" + digest
    size = len(body) - 4
    return size.to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")


def is_sealed(path: Path, key: bytes = b"vg") -> bool:
    """Return whether a page or picture has the seal of its content, in a PNG under this key."""
    data = path.read_bytes()
    if data.endswith(_PNG_END):
        # The hex digits of a sha256 are always 64, so that the chunk has a fixed length and is cut
        # out without parsing the picture.
        size = len(_chunk(key, bytes(64))) + len(_PNG_END)
        rest = data[:-size] + _PNG_END
        return data == sealed(rest, key)
    found = _SEAL.search(data)
    return found is not None and data == sealed(data[: found.start()])


# --------------------------------------------------------------------------- replacing and removing


def not_ours(path: str | Path) -> DataError:
    """Return the error of a file that vg did not write, where one of its own goes."""
    why = "exists, and vg does not know it for its own, which is all that it replaces or removes;"
    return DataError(f"{why} remove it, or choose another -o", path, code=Exit.CANNOT_CREATE)


def planted(path: Path) -> DataError:
    """Return the error of a lock or part that cannot be one of vg's."""
    why = "is a link or another kind of file where vg keeps its own; remove it"
    return DataError(why, path, code=Exit.CANNOT_CREATE)


def check(path: str | Path, ours: Proof = is_claimed) -> None:
    """Refuse to replace or remove a file that vg did not write.

    Raises:
        DataError: it is not vg's, or not a regular file (73), or it cannot be looked at.
    """
    path = Path(path)
    # Another process may remove its file at any time.
    with file_errors(path, reading=False), contextlib.suppress(FileNotFoundError):
        # Not `stat`, which follows a link: a link is refused whatever it leads to.
        facts = os.lstat(path)
        if not stat.S_ISREG(facts.st_mode):
            raise planted(path)
        # An empty file needs no proof, because nothing of it can be lost.
        if not facts.st_size or is_temporary(path) or ours(path):
            return
        raise not_ours(path)


def remove(path: str | Path, ours: Proof = is_claimed) -> None:
    """Remove a file that may be gone.

    Raises:
        DataError: as `check`.
    """
    check(path, ours)
    with file_errors(path, reading=False), contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def replace(new: Path, path: Path, ours: Proof = is_claimed) -> None:
    """Give a file of vg's, closed and safe on disk, a name that may be taken by one of vg's.

    Raises:
        DataError: as `check`; the new file keeps its name.
    """
    check(path, ours)
    os.replace(new, path)


def set_aside(path: str | Path) -> None:
    """Rename a file that should be vg's, but has other contents: perhaps somebody edited it.

    It is called `NAME.damaged`, or `NAME.damaged.2` and so on where that is taken.
    """
    path = Path(path)
    ends = ("" if number == 1 else f".{number}" for number in count(1))
    names = (path.with_name(f"{path.name}.damaged{end}") for end in ends)
    aside = next(name for name in names if not os.path.lexists(name))
    with file_errors(path, reading=False):
        os.rename(path, aside)


def create(path: Path) -> BinaryIO:
    """Open a new file for reading and writing bytes; a file that has its name stays.

    Raises:
        FileExistsError: there is something.
    """
    return open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), "w+b")


def link(file: Path, path: str) -> None:
    """Give a file a second name, which must be free."""
    os.link(file, path)


def reopen(path: Path, create: bool = False) -> int:
    """Return the descriptor of a file that vg keeps for itself, never of a link's target.

    Raises:
        OSError: it cannot be opened.
        DataError: it is a link or another kind of file (73).
    """
    try:
        fd = os.open(path, os.O_RDWR | NO_LINK | (os.O_CREAT if create else 0), 0o666)
    except OSError:
        if os.path.islink(path) or os.path.isdir(path):
            raise planted(path) from None
        raise
    # A file with two hard links may be somebody's own under a planted second name; writing to it
    # would damage it under both.
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode) or facts.st_nlink > 1:
        os.close(fd)
        raise planted(path)
    return fd


def rewrite(fd: int, data: bytes) -> None:
    """Replace the contents of an open file of vg's; a kill leaves old or new bytes, never none.

    After a kill in between, the end of longer old contents follows the new ones. A full disk that
    takes a part of the first contents keeps none: an empty file needs no proof.
    """
    before = os.fstat(fd).st_size
    written = os.pwrite(fd, data, 0)
    os.truncate(fd, 0 if written < len(data) and not before else len(data))


def copy(file: Path, target: Path) -> None:
    """Copy a file over one in a folder that this command has found to be its own."""
    check(target)
    shutil.copyfile(file, target)


def remove_folder(folder: str | Path) -> None:
    """Remove a folder if it is empty."""
    with contextlib.suppress(OSError):
        os.rmdir(folder)


_made = list[Path]()


def make_folder(folder: Path, parents: bool = False) -> None:
    """Make a folder that may be there; it goes when the command ends and has left it empty.

    Args:
        folder: the folder.
        parents: make the folders that it is in as well.

    Raises:
        OSError: it cannot be made, or is a file.
    """
    for place in (*(reversed(folder.parents) if parents else ()), folder):
        try:
            place.mkdir()
        except FileExistsError:
            if not place.is_dir():
                raise
        else:
            _made.append(place)


def take_made() -> Path | None:
    """Return the last folder that `make_folder` made and that was not yet taken."""
    return _made.pop() if _made else None


Part = Callable[[Path, Path], bool]  # whether a file is vg's, by the folder that it is below


def placed(ours: re.Pattern[str]) -> Part:
    """Return the test of a file by its place in the folder."""
    return lambda file, folder: ours.fullmatch(file.relative_to(folder).as_posix()) is not None


def check_tree(folder: Path, ours: Part) -> None:
    """Refuse links, pipes and folders at the places in a folder where vg writes files.

    Raises:
        DataError: there is one (73).
    """
    for path in folder.rglob("*"):
        if ours(path, folder):
            check(path, lambda _: True)


def remove_tree(folder: str | Path, ours: Part | None = None) -> None:
    """Remove a folder that is vg's, by its name or by the folder that it is in.

    Args:
        folder: may be gone.
        ours: the files that vg writes there; others stay, with their folders. By default all go.

    Raises:
        DataError: it is not vg's, or a link, or as `check_tree` (73); nothing is removed.
    """
    folder = Path(folder)
    if folder.is_symlink():  # the next file there would be in a folder of the user's
        raise planted(folder)
    if not folder.is_dir():
        return
    if not is_temporary(folder) and not is_claimed(folder / "x"):
        raise not_ours(folder)
    if ours:
        check_tree(folder, ours)
    # In reverse order the contents of a folder come before the folder, which is empty by then.
    for file in sorted(folder.rglob("*"), reverse=True):
        if file.is_dir() and not file.is_symlink():
            remove_folder(file)
            continue
        place = file.relative_to(folder)
        passing = any(is_temporary(Path(part)) for part in place.parts)
        if not ours or passing or ours(file, folder):
            os.unlink(file)
    remove_folder(folder)


def swap(new: Path, folder: Path) -> None:
    """Give a folder its name, which is free or taken by one that `claim` declared to be vg's."""
    old = folder.with_name(f".{folder.name}.vg.old")
    # No rename replaces a folder that has contents: the old folder moves away first, and a kill in
    # between leaves it under a name that the next call removes.
    remove_tree(old)
    if folder.exists():
        if not is_claimed(folder / "x"):
            raise not_ours(folder)
        os.rename(folder, old)
    os.rename(new, folder)
    remove_tree(old)


# ------------------------------------------------------------------------------- small, whole files


def sync_dir(path: Path) -> None:
    """Make a rename survive a power cut, on file systems that can sync a directory."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def atomic_write(
    path: str | Path, data: bytes, ours: Proof = is_claimed, sync: bool = True
) -> None:
    """Write a small file so that, whatever happens, its contents are the old or the new, whole.

    Two writers take turns; the last counts. A file that already holds the data stays.

    Args:
        path: a file, or a stream, which is written to.
        data: all of it.
        ours: shows that a file that is there is vg's.
        sync: it survives a power cut as well.

    Raises:
        DataError: the old file is not vg's (73), it cannot be written (73, 74), or another process
            has been writing it for `_PATIENCE` seconds (75).
    """
    if is_stream(str(path)):  # a device or a pipe is written to, not replaced by a file
        with _errors_of(path):
            stream = open_stream(str(path))
            stream.write(data)
            stream.flush()
            if str(path) != "-":  # the command may still print to standard output
                stream.close()
        return
    path = Path(path)
    if _holds(path, data):
        return
    new = temporary(path)
    with file_errors(path, reading=False):
        fd = _take(new, path)
        try:
            if _holds(path, data):  # another writer may have written the same meanwhile
                remove(new)
                return
            check(path, ours)
            # The descriptor stays open until the rename, because closing it releases the lock.
            with open(fd, "wb", closefd=False) as stream:
                stream.write(data)
                stream.flush()
                if sync:
                    os.fsync(fd)
            replace(new, path, ours)
        except BaseException:
            with contextlib.suppress(OSError):
                remove(new)
            raise
        finally:
            os.close(fd)
    if sync:
        sync_dir(path.parent)


def write_page(path: str | Path, data: bytes) -> None:
    """Write a page or picture with a seal, over one with a seal or where nothing is.

    Data without a place for a seal replace nothing but the same data.

    Raises:
        DataError: as `atomic_write`.
    """
    atomic_write(path, sealed(data), is_sealed)


def write_image(path: str | Path, data: bytes) -> None:
    """Write a PNG that commands read; no page or contact sheet takes its place.

    Raises:
        DataError: as `atomic_write`.
    """
    # Earlier versions gave images the seal of a sheet.
    atomic_write(path, sealed(data, _IMAGE), lambda p: is_sealed(p, _IMAGE) or is_sealed(p), False)


def _holds(path: Path, data: bytes) -> bool:
    """Return whether a file holds just these data."""
    try:
        facts = os.lstat(path)
        same = stat.S_ISREG(facts.st_mode) and facts.st_size == len(data) and bool(data)
        return same and path.read_bytes() == data
    except OSError:
        return False


@contextlib.contextmanager
def _errors_of(path: str | Path) -> Any:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise file_error(error, path, reading=False) from None


def open_stream(path: str) -> IO[bytes]:
    """Open `-`, a pipe or a device for writing bytes."""
    if path == "-":
        return sys.stdout.buffer
    with file_errors(path, reading=False):
        return open(os.open(path, os.O_WRONLY), "wb")


def _take(new: Path, path: Path) -> int:
    """Create and lock a temporary file.

    Its name is fixed, so that the next writer removes the file of a killed writer. It is always
    created, never opened for writing: a planted file, a link for example, leads nowhere.
    """
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        with contextlib.suppress(FileExistsError):
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            if _is_locked(fd, new):
                return fd
            os.close(fd)  # another writer has removed it, as if a killed writer had left it
            continue
        if not _clear(new):
            time.sleep(0.005)
    why = f"is being written by another process, which has held {new} for long; stop it"
    raise DataError(why, path, code=Exit.STOPPED)


def _clear(new: Path) -> bool:
    """Remove a temporary file that nobody writes; return False if somebody does."""
    try:
        fd = os.open(new, os.O_RDONLY | NO_LINK)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)  # a link
        return True
    try:
        alone = _is_locked(fd, new)
        if alone:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new)
        return alone
    finally:
        os.close(fd)


def _is_locked(fd: int, path: Path) -> bool:
    """Lock an open file; return whether that is done and its name still leads to it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Between opening and locking, another process may have replaced the file; the lock of the
        # removed file would keep nobody out.
        return os.fstat(fd).st_ino == os.stat(path, follow_symlinks=False).st_ino
    except (BlockingIOError, FileNotFoundError):
        return False
