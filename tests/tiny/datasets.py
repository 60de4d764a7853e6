"""Files of official data sets that tests write, and what every reader does about a bad item."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vgtools.io.errors import DataError, Tally


def stops_at(tmp_path: Path, parse: Any, text: str, why: str, name: str = "x.txt") -> None:
    """Assert that a parser names the bad item it stops at, and with skip counts it."""
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        list(parse(file, Tally()))
    assert why in str(caught.value)
    assert str(file) in str(caught.value)
    tally = Tally(skip=True)
    list(parse(file, tally))
    assert [str(e) for e in tally.errors] == [str(caught.value)]
    assert tally.left_out["bad item"] == 1


def lists(folder: Path, **splits: str) -> Path:
    """Write the official lists of Flickr8k, a split each."""
    for split, names in splits.items():
        (folder / f"Flickr_8k.{split}Images.txt").write_text(
            "".join(f"{n}\n" for n in names.split())
        )
    return folder
