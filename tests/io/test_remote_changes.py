"""Objects that change while they are read in parts."""

from __future__ import annotations

from typing import Any

import fsspec
import pytest
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from vgtools.io.errors import DataError, Exit
from vgtools.io.remote import open_url

SIZE = 12 << 20


class Store(AbstractFileSystem):  # type: ignore[misc]
    """A store of one object, which is another one after some requests for a part of it."""

    protocol = "changing"
    left = 0  # requests before the change

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "type": "file", "size": SIZE, "ETag": str(Store.left > 0)}

    def _open(self, path: str, mode: str = "rb", **how: Any) -> Any:
        return Part(self, path, mode, how["block_size"], cache_type="readahead")


class Part(AbstractBufferedFile):  # type: ignore[misc]
    def _fetch_range(self, start: int, end: int) -> bytes:
        Store.left -= 1
        line = b"old line\n" if Store.left >= 0 else b"new line\n"
        return (line * (SIZE // len(line) + 1))[start:end]


@pytest.fixture(autouse=True)
def store() -> None:
    fsspec.register_implementation("changing", Store, clobber=True)
    Store.left = 1


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
