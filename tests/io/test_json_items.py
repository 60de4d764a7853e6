"""Large JSON read item by item is what `json.loads` reads at once."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vgtools.io.errors import DataError
from vgtools.io.json_items import json_items

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def expected(document: Any) -> list[tuple[str, int, Any]]:
    arrays = document if isinstance(document, dict) else {"": document}
    return [
        (k, i, x)
        for k, items in arrays.items()
        if isinstance(items, list)
        for i, x in enumerate(items)
    ]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(VALUES, max_size=5) | st.dictionaries(st.text(), VALUES, max_size=4),
    st.integers(1, 40),
    st.sampled_from([None, 1]),
)
def test_items_are_those_of_json_at_any_chunk_size(
    tmp_path: Path, document: Any, chunk: int, indent: int | None
) -> None:
    file = tmp_path / "x.json"
    file.write_text(json.dumps(document, indent=indent), encoding="utf-8")
    assert list(json_items(file, chunk)) == expected(document)


def test_a_number_cut_by_the_chunk_stays_whole(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[1234567, 1e-5, 2.5, -3E+7]")
    for chunk in range(1, 12):
        assert [item for _, _, item in json_items(tmp_path / "x.json", chunk)] == [
            1234567,
            1e-5,
            2.5,
            -3e7,
        ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the file: expected [, got the end of the file"),
        ('{"a": [1, 2', "after a[1]: expected , or ], got the end of the file"),
        ('{"a": [{"b": 1}, {"b": ', "a[1]: not valid JSON"),
        ('{"a": [1 2]}', "after a[0]: expected , or ], got '2'"),
        ('{"a": [1] 2}', "after 'a': expected , or }, got '2'"),
        ('{"a": 1 2}', "after 'a': expected , or }, got '2'"),
        ('{"a" [1]}', "after the key 'a': expected :, got '['"),
        ("[1] [2]", "has data after the end of its JSON"),
        ('"text"', "expected ["),
        ("[tru]", "[0]: not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[" + "9" * 5000 + "]", "number with too many digits"),
    ],
)
def test_what_is_not_json_is_named(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(DataError) as caught:
        list(json_items(file, 16))
    assert why in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_fault_far_from_the_end_is_found_without_reading_on(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text("[{]" + " " * 200 + "[" * 1_000_000)
    with pytest.raises(DataError, match=r"\[0\]: not valid JSON"):
        list(json_items(file, 256))


def test_damaged_bytes_are_data_errors(tmp_path: Path) -> None:
    whole = gzip.compress(json.dumps(list(range(5000))).encode())
    (tmp_path / "cut.json.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "latin.json").write_bytes(b'["caf\xe9"]')
    for name in ("cut.json.gz", "latin.json"):
        with pytest.raises(DataError, match="cut off or the text is not UTF-8"):
            list(json_items(tmp_path / name))
