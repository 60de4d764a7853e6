"""The operations that write folders of shards, on this machine or at a URL."""

from __future__ import annotations

import errno
import os
import re
import socket
import tempfile
from pathlib import Path
from uuid import uuid4

from vgtools.io import own, remote
from vgtools.io.errors import DataError, Exit, file_errors
from vgtools.io.files import is_manifest
from vgtools.io.names import PLAN, is_url, refuse_special
from vgtools.io.own import atomic_write, sync_dir

PRIVATE = r"\.(plan|shards|\d+)(\.json)?\.[^/]+\.\d+\.[0-9a-f]{8}(\..*)?"
DATA = r"(\d{6,})-([0-9a-f]{8})\..*"
OURS = rf"(plan|\d{{6,}})\.json|shards\.jsonl(\.lock)?|{DATA}|{PRIVATE}"
# Errors of file systems without hard links: mounted buckets, exFAT.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


def is_plan(data: bytes) -> bool:
    """Return whether data are a plan that vg wrote, whole or damaged."""
    return data.startswith(b'{"config":') and b'"shard_size":' in data


def is_ours(path: Path) -> bool:
    """Return whether a file belongs to a folder of shards, by its name and the plan next to it."""
    if re.fullmatch(PRIVATE, path.name):
        return True
    plan = path.with_name(PLAN)
    named = re.fullmatch(OURS, path.name) is not None
    return named and plan.is_file() and is_plan(plan.read_bytes())


def private(path: str) -> Path:
    """Return where a file can be written that `adopt` will name; no other process has it."""
    folder, name = os.path.split(path)
    own = f".{name}.{socket.gethostname()}.{os.getpid()}.{uuid4().hex[:8]}"
    return Path(tempfile.gettempdir() if is_url(path) else folder, own)


def is_held(name: str) -> bool:
    """Return whether a process may still write a private file; one of another machine may."""
    here = re.escape(socket.gethostname())
    found = re.search(rf"\.{here}\.(\d{{1,9}})\.[0-9a-f]{{8}}(\.|$)", name)
    if found is None:
        return True
    # Signal 0 does nothing but ask whether the process is there.
    try:
        os.kill(int(found[1]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # the process belongs to another user, and is alive
        pass
    return True


def adopt(file: Path, path: str, ours: own.Proof) -> None:
    """Give a private file, closed and safe on disk, its name: all of it is there, or nothing.

    Raises:
        DataError: the name is taken by a file that is not vg's (73).
    """
    if is_url(path):
        remote.put(file, path)
        own.remove(file, is_ours)
    else:
        own.replace(file, Path(path), ours)
        sync_dir(Path(path).parent)


def create(path: str, data: bytes) -> None:
    """Write a small file unless it is there: if several processes write it, the first counts."""
    if is_url(path):
        remote.create(path, data)
        return
    new = private(path)
    with file_errors(path, reading=False):
        _write_new(new, data)
        # A link gives the whole file its name at once, and fails where the name is taken.
        try:
            own.link(new, path)
        except (FileExistsError, FileNotFoundError):
            pass  # the first writer may even have completed the folder, and removed `new`
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # Without links no file gets a free name whole: a name that was free a moment ago is
            # taken by the last. Written in place, a kill would leave a part that is nobody's.
            if not os.path.lexists(path):
                own.replace(new, Path(path), is_ours)
        own.remove(new, is_ours)


def _write_new(path: Path, data: bytes) -> None:
    with own.create(path) as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def write(path: str, data: bytes, ours: own.Proof) -> None:
    """Write a small file whole; if several processes write it, the last counts.

    Raises:
        DataError: the name is taken by a file that is not vg's (73).
    """
    if is_url(path):
        remote.write(path, data)
        return
    new = private(path)
    with file_errors(path, reading=False):
        _write_new(new, data)
    try:
        adopt(new, path, ours)
    except DataError:
        own.remove(new, is_ours)
        raise


def write_beside(path: str, data: bytes) -> None:
    """Write the manifest next to a folder, whole.

    One process writes it at a time, so that its temporary file needs no private name, under which
    nobody would find the rest that a kill leaves.
    """
    if is_url(path):
        remote.write(path, data)
    else:
        atomic_write(path, data, is_manifest)


def read(path: str) -> bytes | None:
    """Return a small file; None if it is not there."""
    try:
        if is_url(path):
            return remote.read(path)
        refuse_special(path)
        return Path(path).read_bytes()
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


def remove(path: str, ours: own.Proof = is_ours) -> None:
    """Remove a file that may be gone.

    Raises:
        DataError: it is not vg's (73).
    """
    if is_url(path):
        remote.remove(path)
        return
    own.remove(path, ours)
