"""Objects that change while they are read in parts."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from vgtools.io import remote
from vgtools.io.errors import DataError, Exit
from vgtools.io.remote import fetch, open_url

SIZE = 9 << 20


class Store(AbstractFileSystem):  # type: ignore[misc]
    """A store of one object, which is another one after some requests for a part of it."""

    protocol = "changing"
    left = 0  # requests before the change
    ranges = True

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        version = {"ETag": str(Store.left > 0)} if Store.ranges else {}
        return {"name": path, "type": "file", "size": SIZE} | version

    def _open(self, path: str, mode: str = "rb", **how: Any) -> Any:
        if how["block_size"] == 0:
            return Answer(b"old line\n" * (SIZE // 9))
        return Part(self, path, mode, how["block_size"], cache_type="readahead")


class Answer(io.BytesIO):
    """Bytes as they come from a web server: no way back, and not all at once."""

    def seek(self, *_: int) -> int:
        raise ValueError("Cannot seek streaming HTTP file")

    def read(self, size: int | None = -1) -> bytes:
        return super().read(min(size, 70_001) if size and size > 0 else size)

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class Part(AbstractBufferedFile):  # type: ignore[misc]
    def _fetch_range(self, start: int, end: int) -> bytes:
        if start and not Store.ranges:
            raise ValueError("The HTTP server doesn't appear to support range requests.")
        Store.left -= 1
        line = b"old line\n" if Store.left >= 0 else b"new line\n"
        return (line * (SIZE // len(line) + 1))[start:end]


@pytest.fixture(autouse=True)
def store() -> None:
    fsspec.register_implementation("changing", Store, clobber=True)
    Store.left = 1
    Store.ranges = True


def test_a_large_object_that_changes_is_no_mixture() -> None:
    with (
        open_url("changing://bucket/a.txt") as stream,
        pytest.raises(DataError, match="changed while it was read") as caught,
    ):
        stream.read()
    assert caught.value.code == Exit.CONFIG
    Store.left = 100
    with open_url("changing://bucket/a.txt") as stream:
        assert len(stream.read()) == SIZE


def test_a_server_that_sends_no_parts_is_read_from_the_start() -> None:
    Store.ranges = False
    whole = b"old line\n" * (SIZE // 9)
    with open_url("changing://bucket/a.txt") as stream:
        assert stream.read() == whole
        for offset in (7_000_000, 5, 4_000_000):
            assert stream.seek(offset) == offset
            assert stream.read(100) == whole[offset : offset + 100]
        assert stream.seek(-9, 2) == SIZE - 9
        assert stream.read() == b"old line\n"


def test_an_artifact_whose_changes_would_not_show_is_not_kept() -> None:
    Store.ranges = False
    with pytest.raises(DataError, match="neither a date nor an ETag") as caught:
        fetch("changing://bucket/a.npy")
    assert caught.value.code == Exit.NO_INPUT


def test_a_change_shows_whatever_was_read_first_and_last() -> None:
    with (
        pytest.raises(DataError, match="changed while it was read"),
        open_url("changing://bucket/a.txt") as stream,
    ):
        stream.seek(-9, 2)
        stream.read()
        stream.seek(5)
        stream.read(10)


def test_an_object_that_ends_early_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    Store.left = 100
    fetch_range = Part._fetch_range
    short = 6 << 20
    monkeypatch.setattr(
        Part, "_fetch_range", lambda self, start, end: fetch_range(self, start, min(end, short))
    )
    with (
        pytest.raises(DataError, match="changed while it was read"),
        open_url("changing://bucket/a.txt") as stream,
    ):
        stream.read()


def test_files_of_a_list_without_dates_are_asked_for_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A web server's page of a folder gives names alone."""
    content = [b"old"]

    class Pages:
        def isdir(self, path: str) -> bool:
            return True

        def find(self, path: str, detail: bool) -> dict[str, dict[str, Any]]:
            return {f"{path}/a.txt": {"size": None}}

        def info(self, path: str) -> dict[str, Any]:
            return {"size": 3, "ETag": content[0].decode()}

        def get_file(self, name: str, file: str) -> None:
            Path(file).write_bytes(content[0])

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(remote, "_system", lambda url: (Pages(), "host/run"))
    assert (fetch("http://host/run") / "a.txt").read_bytes() == b"old"
    content[0] = b"new"
    assert (fetch("http://host/run") / "a.txt").read_bytes() == b"new"
