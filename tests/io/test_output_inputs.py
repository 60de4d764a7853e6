"""An output never takes the place of an input, nor does what an earlier output had beside it."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from PIL import Image

from vgtools.io.errors import DataError, Exit
from vgtools.io.files import page_path
from vgtools.io.output import Output
from vgtools.io.own import write_image, write_page


def write(paths: list[str], inputs: list[str], data: bytes = b"x\n", restart: bool = False) -> None:
    with Output(paths, {"command": "x"}, inputs=inputs, restart=restart) as out:
        for number in range(len(paths) if not out.complete else 0):
            out.write(data, number)
        if not out.complete:
            out.finish(kind="x")


@pytest.mark.parametrize("name", ["x.jsonl.xz", "x.jsonl.bz2"])
def test_a_name_of_another_compression_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"expected \.gz or \.zst") as caught:
        write([str(tmp_path / name)], [])
    assert caught.value.code == Exit.USAGE
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("link", ["", "hard", "soft"])
@pytest.mark.parametrize("restart", [False, True])
def test_a_file_of_the_former_output_that_is_read_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: str, restart: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("given.txt").write_text("a\n")
    write(["w.npy", "w.ids"], ["given.txt"])
    read = "w.ids"
    if link:
        read = "link.txt"
        (os.link if link == "hard" else os.symlink)("w.ids", read)
    with pytest.raises(DataError, match=r"w\.ids: is an input of this command") as caught:
        write(["w.npy"], [read], restart=restart)
    assert caught.value.code == Exit.CANNOT_CREATE
    assert sorted(os.listdir()) == sorted({"given.txt", "w.ids", "w.json", "w.npy", read})
    # Who reads something else replaces the output, and what belonged to it goes.
    write(["w.npy"], ["given.txt"], restart=True)
    assert {*os.listdir()} - {"link.txt"} == {"given.txt", "w.json", "w.npy"}


def test_a_picture_of_a_bank_is_no_contact_sheet(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4)).save(buffer, "PNG")
    data = buffer.getvalue()
    emoji, sheet = tmp_path / "e.png", tmp_path / "s.png"
    write_image(emoji, data)
    write_page(sheet, data)
    before = emoji.read_bytes()
    with pytest.raises(DataError, match="vg does not know it for its own") as caught:
        page_path(str(emoji), [])
    assert caught.value.code == Exit.CANNOT_CREATE
    with pytest.raises(DataError, match="vg does not know it for its own"):
        write_page(emoji, data[:-1])
    assert emoji.read_bytes() == before
    assert page_path(str(sheet), []) == sheet
    write_image(emoji, data)  # it is replaced by its like alone
    Image.open(emoji).load()
