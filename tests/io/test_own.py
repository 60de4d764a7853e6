"""What shows that a file is vg's own."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from PIL import Image

from vgtools.io import own
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import page_path
from vgtools.io.output import Output, files_of
from vgtools.io.own import write_page


def png(colour: str) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (3, 2), colour).save(stream, "PNG")
    return stream.getvalue()


PAGES = {
    "page.html": (b"<!DOCTYPE html><p>a</p>", b"<!DOCTYPE html><p>b</p>\n"),
    "plot.svg": (b"<svg></svg>\n", b"<svg><g/></svg>"),
    "sheet.png": (png("red"), png("blue")),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_or_picture_replaces_one_with_a_seal_and_nothing_else(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    first, second = PAGES[name]
    write_page(path, first)
    assert own.is_sealed(path)
    page_path(str(path), [])
    write_page(path, second)
    assert path.read_bytes() == own.sealed(second)
    if name.endswith(".png"):
        with Image.open(path) as picture:
            assert picture.convert("RGB").getpixel((0, 0)) == (0, 0, 255)
            assert len(picture.info["vg"]) == 64  # type: ignore[arg-type]
    whole = path.read_bytes()
    for bad in (first, whole + b"\n", whole[:-1], whole.replace(b"vg", b"xx"), b"mine " + whole):
        path.write_bytes(bad)
        for use in (lambda: page_path(str(path), []), lambda: write_page(path, first + b" ")):
            with pytest.raises(DataError, match="vg does not know it") as caught:
                use()
            assert caught.value.code == Exit.CANNOT_CREATE
        assert path.read_bytes() == bad


def test_what_has_no_place_for_a_seal_replaces_nothing_but_itself(tmp_path: Path) -> None:
    path = tmp_path / "answers.csv"
    write_page(path, b"a,b\n")
    assert path.read_bytes() == b"a,b\n"
    write_page(path, b"a,b\n")
    with pytest.raises(DataError, match="vg does not know it"):
        write_page(path, b"b,a\n")
    assert path.read_bytes() == b"a,b\n"
    path.write_bytes(b"")  # nothing is lost
    write_page(path, b"b,a\n")
    assert path.read_bytes() == b"b,a\n"


def test_a_folder_is_claimed_with_what_is_in_it_and_nothing_beside_it(tmp_path: Path) -> None:
    for name in ("run/a", "run/seed-1/a", "run.txt", "runs/a"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    own.claim(tmp_path / "run")
    claimed = [p for p in sorted(tmp_path.rglob("*")) if p.is_file() and own.is_claimed(p)]
    assert claimed == [tmp_path / "run/a", tmp_path / "run/seed-1/a"]
    own.remove(tmp_path / "run/a")
    with pytest.raises(DataError, match="vg does not know it"):
        own.remove(tmp_path / "run.txt")
    with pytest.raises(DataError, match="vg does not know it"):
        own.remove_tree(tmp_path / "runs")
    assert (tmp_path / "runs/a").exists()


def test_of_a_tree_only_the_named_files_go(tmp_path: Path) -> None:
    own.claim(tmp_path)
    names = (
        "model/model.safetensors",
        "model/model/model.safetensors",
        "model/notes.txt",
        "model/mine/model.safetensors",
        "model/more-model.safetensors",
        "old/model.safetensors",
    )
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    ours = re.compile(r"(model/)?model\.safetensors|link\.safetensors")
    link = tmp_path / "model/link.safetensors"
    link.symlink_to(tmp_path / "old")
    with pytest.raises(DataError, match=r"link\.safetensors: is a link or another kind of file"):
        own.remove_tree(tmp_path / "model", own.placed(ours))
    assert all((tmp_path / name).exists() for name in names)
    link.unlink()
    for folder in ("model", "old"):
        own.remove_tree(tmp_path / folder, own.placed(ours))
    assert [p.relative_to(tmp_path).as_posix() for p in sorted(tmp_path.rglob("*"))] == [
        "model",
        "model/mine",
        "model/mine/model.safetensors",
        "model/more-model.safetensors",
        "model/notes.txt",
    ]


@pytest.mark.parametrize("restart", [False, True])
def test_a_file_at_another_name_stays_known_where_an_output_is_made_without_it(
    tmp_path: Path, restart: bool
) -> None:
    """It is not of the output's stem, so that nothing removes it: its user may still want it."""
    rows, emb, other = (tmp_path / name for name in ("o.jsonl", "e.npy", "f.npy"))

    def make(*files: Path, mark: bytes) -> None:
        with Output(files, {"mark": mark.decode()}, restart=restart) as out:
            for number in range(len(files)):
                out.write(mark * (number + 1), number)
            out.finish(kind="rows")

    for mark, files in ((b"a", [rows, emb]), (b"b", [rows]), (b"c", [rows, other]), (b"d", [rows])):
        make(*files, mark=mark)
    assert (emb.read_bytes(), other.read_bytes()) == (b"aa", b"cc")
    assert files_of(tmp_path / "o.json").keys() == {"o.jsonl"}
    make(rows, emb, mark=b"e")
    assert emb.read_bytes() == b"ee"
    # The user's own is not.
    other.write_bytes(b"mine")
    with pytest.raises(DataError, match=r"f\.npy: exists, and vg does not know it") as caught:
        make(rows, other, mark=b"f")
    assert caught.value.code == Exit.CANNOT_CREATE
    assert other.read_bytes() == b"mine"
    other.unlink()
    make(rows, mark=b"g")
    assert "f.npy" not in (tmp_path / "o.json").read_text()


def test_files_that_should_be_vg_s_are_all_kept_however_often_they_are_damaged(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.npy"
    for mark in b"123":
        file.write_bytes(bytes([mark]))
        own.set_aside(file)
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert kept == {"a.npy.damaged": b"1", "a.npy.damaged.2": b"2", "a.npy.damaged.3": b"3"}


def test_files_of_one_output_lie_in_one_folder(tmp_path: Path) -> None:
    """Its manifest, and everybody who reads it, looks for them next to the first."""
    (tmp_path / "sub").mkdir()
    with pytest.raises(DataError, match=r"e\.npy: is in another folder than") as caught:
        Output([tmp_path / "o.jsonl", tmp_path / "sub" / "e.npy"], {}).__enter__()
    assert caught.value.code == Exit.USAGE
    assert [path.name for path in tmp_path.iterdir()] == ["sub"]
