"""Licences and addresses of pictures, from the rows of an image list."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from vgtools.images.rights import count_licenses, in_words, open_rights, read_rights, rights_of
from vgtools.io.errors import DataError


def test_rights_are_strings_that_say_something() -> None:
    assert rights_of({"license": "CC0", "url": "http://x", "text": "a"}) == {
        "license": "CC0",
        "url": "http://x",
    }
    for nothing in (None, "", "?", 3, ["CC0"]):
        assert rights_of({"license": nothing, "url": nothing}) == {}
    assert rights_of({"LICENSE": "CC BY"}) == {"license": "CC BY"}
    assert in_words({"url": "http://x", "license": "CC0"}) == "CC0, http://x"
    assert in_words({}) == ""


def test_the_first_row_of_an_image_counts(tmp_path: Path) -> None:
    listed = tmp_path / "c.jsonl"
    listed.write_text(
        '{"image":"a","text":"x"}\n'
        '{"image":"a","license":"CC0"}\n'
        '{"image":"a","license":"CC BY"}\n'
        '{"image":"b","url":"http://b"}\n'
    )
    table = pa.table({"image_path": ["c", "a"], "license": ["CC0", "MIT"]})
    parquet.write_table(table, tmp_path / "m.parquet")
    found = read_rights([str(listed), str(tmp_path / "m.parquet")])
    assert found == {"a": {"license": "CC0"}, "b": {"url": "http://b"}, "c": {"license": "CC0"}}
    assert [*count_licenses(found, ["d", "c", "b", "a", "e", "f"]).items()] == [
        ("unknown", 4),
        ("CC0", 2),
    ]
    listed.write_text('{"license":"CC0"}\n')
    with pytest.raises(DataError, match=r'c\.jsonl:1: the key "image" is missing'):
        read_rights([str(listed)])


def test_an_index_without_rights_has_none(tmp_path: Path) -> None:
    assert open_rights(tmp_path / "vg.faiss", {"files": {"vg.faiss": {}}}) == {}
