"""What folders of shards are written with, on this machine or at a URL."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import tempfile
from pathlib import Path
from uuid import uuid4

from vgtools import io
from vgtools.io import DataError, Exit, remote
from vgtools.io.errors import file_errors
from vgtools.io.remote import is_url

# Of file systems without hard links: buckets that are mounted, exFAT.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


def private(path: str) -> Path:
    """Return where a file can be written that `adopt` will name; no other process has it."""
    folder, name = os.path.split(path)
    own = f".{name}.{socket.gethostname()}.{os.getpid()}.{uuid4().hex[:8]}"
    return Path(tempfile.gettempdir() if is_url(path) else folder, own)


def is_held(name: str) -> bool:
    """Return whether a process may still write a private file; of another machine's, it may."""
    here = re.escape(socket.gethostname())
    found = re.search(rf"\.{here}\.(\d{{1,9}})\.[0-9a-f]{{8}}(\.|$)", name)
    if found is None:
        return True
    try:
        os.kill(int(found[1]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        pass
    return True


def adopt(file: Path, path: str) -> None:
    """Give a private file, closed and safe on disk, its name: all of it is there, or nothing."""
    if is_url(path):
        remote.put(file, path)
        file.unlink()
    else:
        os.replace(file, path)
        io.sync_dir(Path(path).parent)


def create(path: str, data: bytes) -> None:
    """Write a small file unless there is one: of several writers, the first one counts."""
    if is_url(path):
        remote.create(path, data)
        return
    own = private(path)
    with file_errors(path, reading=False):
        own.write_bytes(data)
        try:
            os.link(own, path)
        except (FileExistsError, FileNotFoundError):
            pass  # who was first may even have completed the folder, and removed the private file
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with contextlib.suppress(FileExistsError), open(path, "xb") as stream:
                stream.write(data)
        own.unlink(missing_ok=True)


def write(path: str, data: bytes) -> None:
    """Write a small file whole; of several writers, the last one counts."""
    if is_url(path):
        remote.write(path, data)
        return
    own = private(path)
    with file_errors(path, reading=False), open(own, "xb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    adopt(own, path)


def write_beside(path: str, data: bytes) -> None:
    """Write the manifest beside a folder, whole.

    It is written by one process at a time, so that its temporary file needs no private name, under
    which nobody would find what a kill leaves.
    """
    if is_url(path):
        remote.write(path, data)
    else:
        io.atomic_write(path, data)


def read(path: str) -> bytes | None:
    """Return a small file; None if it is not there."""
    try:
        return remote.read(path) if is_url(path) else Path(path).read_bytes()
    except FileNotFoundError:
        return None
    except DataError as error:
        if error.code != Exit.NO_INPUT:
            raise
        return None


def sizes(folder: str) -> dict[str, int]:
    """Return the files of a folder, name -> bytes; none if there is no such folder."""
    if is_url(folder):
        return remote.sizes(folder)
    names = os.listdir(folder) if os.path.isdir(folder) else ()
    found = {name: remote.file_size(os.path.join(folder, name)) for name in names}
    return {name: count for name, count in found.items() if count is not None}


def remove(path: str) -> None:
    """Remove a file that may be gone."""
    if is_url(path):
        remote.remove(path)
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
