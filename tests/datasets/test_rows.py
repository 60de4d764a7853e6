"""Rows of any data set: their splits, their photos, and how they are saved."""

from __future__ import annotations

import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.tiny.datasets import lists
from vgtools.datasets.rows import Folder, read_splits, save, with_photos, with_split
from vgtools.io.errors import DataError, Exit, Tally

Row = dict[str, Any]


def photo(path: Path, width: int, height: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height), (200, 30, 30)).save(path)


# -------------------------------------------------------------------------------- splits and photos


def test_splits_are_read_and_given(tmp_path: Path) -> None:
    splits = read_splits(lists(tmp_path, train="a.jpg b.jpg", dev="c.jpg"))
    assert splits == {"a.jpg": "train", "b.jpg": "train", "c.jpg": "dev"}
    rows = [{"image": f"{n}.jpg", "text": n} for n in "abcd"]
    tally = Tally()
    assert [r.get("split") for r in with_split(rows, splits, None, tally)] == [
        "train",
        "train",
        "dev",
        None,
    ]
    assert list(with_split(rows, splits, "dev", tally)) == [
        {"image": "c.jpg", "text": "c", "split": "dev"}
    ]
    assert tally.left_out == {"not in dev": 3}


def test_lists_of_stems_name_photos_too(tmp_path: Path) -> None:
    (tmp_path / "val.txt").write_text("1000\n")
    assert read_splits(tmp_path) == {"1000": "val"}
    assert (
        next(with_split([{"image": "1000.jpg"}], {"1000": "val"}, None, Tally()))["split"] == "val"
    )


def test_blanks_around_the_names_of_a_list_are_no_part_of_them(tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_text(" a.jpg \n\t\nb.jpg\t\n")
    assert read_splits(tmp_path) == {"a.jpg": "test", "b.jpg": "test"}


def test_bad_splits(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match="--split test: unknown split; known are dev, train"
    ) as caught:
        list(with_split([], {"a": "train", "b": "dev"}, "test", Tally()))
    assert caught.value.code == Exit.USAGE
    with pytest.raises(DataError, match="none: --splits names the folder"):
        list(with_split([], {}, "test", Tally()))
    with pytest.raises(DataError, match="holds no split list"):
        read_splits(tmp_path)
    with pytest.raises(DataError, match="is not a folder"):
        read_splits(tmp_path / "nowhere")
    with pytest.raises(
        DataError, match=r"trainImages.txt:2: duplicate image 'a.jpg' \(already in the dev list\)"
    ):
        read_splits(lists(tmp_path, train="b.jpg a.jpg", dev="a.jpg"))
    with pytest.raises(
        DataError, match=r"trainImages.txt:2: duplicate image 'a.jpg' \(already in the dev list\)"
    ):
        read_splits(lists(tmp_path, train="b.jpg a.jpg", dev="a"))


def test_photos_are_found_by_path_name_stem_and_flickr_number(tmp_path: Path) -> None:
    for name in (
        "one/7.jpg",
        "two/8.png",
        "200_left.jpg",
        "100_693b08cb0e.jpg",
        "one/x.jpg",
        "two/x.jpg",
    ):
        photo(tmp_path / name, 4, 4)
    for name in ("100_693b08cb0e.json", "one/x.json"):  # other files beside a photo do not count
        (tmp_path / name).touch()
    photos = Folder(tmp_path)
    assert (
        photos.find("one/7.jpg")
        == photos.find("vg/7")
        == photos.find("7.jpg")
        == str(tmp_path / "one/7.jpg")
    )
    assert photos.find("8.jpg") == str(tmp_path / "two/8.png")
    assert (
        photos.find("100.jpg")
        == photos.find("100_693b08cb0e.jpg")
        == str(tmp_path / "100_693b08cb0e.jpg")
    )
    assert photos.find("one/x.jpg") == str(tmp_path / "one/x.jpg")
    assert photos.find("100_693b08cb0e.json") == str(tmp_path / "100_693b08cb0e.json")
    with pytest.raises(DataError, match=r"holds no photo '200\.jpg'"):
        photos.find("200.jpg")
    with pytest.raises(
        DataError, match=r"'x.jpg' is ambiguous: one/x.jpg and two/x.jpg both match"
    ):
        photos.find("x.jpg")
    with pytest.raises(DataError, match=r"holds no photo '9.jpg'") as caught:
        photos.find("9.jpg")
    assert caught.value.code == Exit.NO_INPUT
    with pytest.raises(DataError, match="does not exist"):
        Folder(tmp_path / "nowhere")


def test_a_file_with_another_suffix_is_no_photo(tmp_path: Path) -> None:
    # img2dataset writes them next to each photo, and for those that it did not get.
    for name in ("6.txt", "6.json", "8.txt", "8", "9.json", "7.jpg_large", "7.TXT"):
        (tmp_path / name).touch()
    photos = Folder(tmp_path)
    for image in ("cc/6", "6", "6.jpg"):
        with pytest.raises(DataError, match=f"holds no photo {image!r}"):
            photos.find(image)
    assert photos.find("cc/8") == photos.find("8.jpg") == str(tmp_path / "8")
    assert photos.find("7.jpg") == str(tmp_path / "7.jpg_large"), "as a downloader named it"
    assert photos.find("9.json") == str(tmp_path / "9.json"), "its whole name is asked for"


def test_hidden_files_are_not_of_a_folder(tmp_path: Path) -> None:
    for name in (".cache/a.jpg", ".a.jpg", "a.jpg"):
        photo(tmp_path / ".photos" / name, 4, 4)
    folder = Folder(tmp_path / ".photos")
    assert folder.files == ["a.jpg"]
    assert folder.find("a.jpg") == str(tmp_path / ".photos/a.jpg")


def test_a_link_to_nothing_and_a_name_that_is_not_utf8_cost_only_their_own_rows(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.jpg").touch()
    (tmp_path / "b.jpg").symlink_to("nowhere")
    (tmp_path / os.fsdecode(b"\xff")).mkdir()
    (tmp_path / os.fsdecode(b"\xff/c.jpg")).touch()
    folder = Folder(tmp_path)
    assert len(folder.digest()) == 64
    assert folder.find("a.jpg") == str(tmp_path / "a.jpg")
    with pytest.raises(DataError, match="not UTF-8"):
        folder.find("c.jpg")


def test_a_folder_s_digest_changes_with_its_files(tmp_path: Path) -> None:
    photo(tmp_path / "a.jpg", 4, 4)
    before = Folder(tmp_path).digest()
    assert before == Folder(tmp_path).digest()
    photo(tmp_path / "a.jpg", 40, 4)
    assert Folder(tmp_path).digest() != before


def test_a_link_changes_with_the_file_that_is_read_through_it(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "1.xml").write_text("one")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "1.xml").symlink_to("../store/1.xml")
    before = Folder(tmp_path / "folder").digest()
    (tmp_path / "store" / "1.xml").write_text("another")
    changed = Folder(tmp_path / "folder").digest()
    assert changed != before
    (tmp_path / "store" / "1.xml").unlink()
    assert Folder(tmp_path / "folder").digest() != changed, "it leads nowhere"


def test_files_behind_links_to_folders_are_found(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    photo(tmp_path / "store" / "a.jpg", 4, 4)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "train").symlink_to("../store")
    (tmp_path / "store" / "up").symlink_to(tmp_path / "store")
    found = Folder(tmp_path / "folder")
    assert found.files == ["train/a.jpg"]
    before = found.digest()
    photo(tmp_path / "store" / "a.jpg", 40, 4)
    assert Folder(tmp_path / "folder").digest() != before


@pytest.mark.parametrize("images", [("a/1.jpg", "b/1.jpg"), ("9.jpg", "9_693b08cb0e.jpg")])
def test_a_photo_is_not_taken_for_two_images(tmp_path: Path, images: tuple[str, str]) -> None:
    (tmp_path / "a").mkdir()
    for name in ("a/1.jpg", "9_693b08cb0e.jpg"):
        photo(tmp_path / name, 4, 4)
    rows: list[Row] = [{"image": name} for name in (images[0], *images)]
    for tally in (Tally(), Tally(skip=True)):
        with pytest.raises(DataError, match=f"would be the photo of both {images[0]!r}") as caught:
            list(with_photos(rows, Folder(tmp_path), tally))
        assert caught.value.code == 65


def test_boxes_follow_the_photo_s_size(tmp_path: Path) -> None:
    photo(tmp_path / "a.jpg", 224, 149)
    photo(tmp_path / "b.jpg", 500, 333)
    phrases = [
        {"start": 0, "end": 1, "boxes": [[1, 2, 500, 333]]},
        {"start": 2, "end": 3, "boxes": []},
    ]
    rows: list[Row] = [
        {"image": n, "width": 500, "height": 333, "phrases": phrases, "boxes": [[0, 0, 250, 100]]}
        for n in ("a.jpg", "b.jpg")
    ]
    small, same = with_photos(rows, Folder(tmp_path), Tally())
    assert (small["width"], small["height"]) == (224, 149)
    assert small["boxes"] == [[0, 0, 112, 44.74]]
    assert [p["boxes"] for p in small["phrases"]] == [[[0.45, 0.89, 224, 149]], []]
    assert same is rows[1]


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    """Return a PNG of some chunks."""
    parts = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize(
    "data",
    [
        b"P6\n2 x\n255\n",  # where Pillow raises a ValueError
        b"",
        png(
            (b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)),
            (b"zTXt", b"k\0\0" + zlib.compress(bytes(128 << 20))),  # a text that is a bomb
        ),
    ],
)
def test_a_damaged_photo_is_refused_by_its_name(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.png").write_bytes(data)
    row = {"image": "a.png", "width": 4, "height": 4}
    with pytest.raises(DataError, match=r"a\.png: cannot be read as a picture") as caught:
        list(with_photos([row], Folder(tmp_path), Tally()))
    assert caught.value.code == Exit.DATA


@pytest.mark.parametrize("size", [(168, 224), (224, 150), (500, 300)])
def test_a_photo_of_another_shape_is_refused(tmp_path: Path, size: tuple[int, int]) -> None:
    photo(tmp_path / "a.jpg", *size)
    with pytest.raises(
        DataError, match="its annotation is for 500×375: another picture, or cropped"
    ):
        list(
            with_photos(
                [{"image": "a.jpg", "width": 500, "height": 375}], Folder(tmp_path), Tally()
            )
        )


def test_rows_of_a_missing_photo_are_one_error_and_counted(tmp_path: Path) -> None:
    photo(tmp_path / "a.jpg", 4, 4)
    (tmp_path / "html.jpg").write_text("<html>")
    rows: list[Row] = [
        {"image": "a.jpg"},
        {"image": "no.jpg"},
        {"image": "no.jpg"},
        {"image": "html.jpg", "width": 4, "height": 4},
    ]
    tally, photos = Tally(skip=True), Folder(tmp_path)
    assert list(with_photos(rows, photos, tally)) == [{"image": "a.jpg"}]
    assert tally.errors[0].why == "holds no photo 'no.jpg'", "no way out that was taken"
    assert tally.errors[1].why.startswith("cannot be read as a picture")
    assert tally.left_out == {"bad item": 2, "row of a bad photo": 1}
    assert photos.used == {"a.jpg": str(tmp_path / "a.jpg")}
    way_out = "'no.jpg'; mend it, or leave its rows out with --on-error skip$"
    with pytest.raises(DataError, match=way_out) as caught:
        list(with_photos(rows, photos, Tally()))
    assert (caught.value.file, caught.value.code) == (photos.path, Exit.NO_INPUT)


def test_the_lists_of_two_data_sets_in_one_folder_are_not_mixed(tmp_path: Path) -> None:
    lists(tmp_path, train="a.jpg", dev="b.jpg")
    (tmp_path / "train.txt").write_text("1\n")
    (tmp_path / "test.txt").write_text("2\n")
    with pytest.raises(DataError, match="of Flickr8k and of Flickr30k"):
        read_splits(tmp_path)
    assert read_splits(tmp_path, flickr8k=True) == {"a.jpg": "train", "b.jpg": "dev"}
    assert read_splits(tmp_path, flickr8k=False) == {"1": "train", "2": "test"}


def test_lists_that_name_none_of_the_images_are_refused() -> None:
    # Flickr8k's names are not the stems that Flickr30k's lists have: all would lose their split.
    rows = [{"image": "10_ab.jpg", "text": "a"}, {"image": "11_cd.jpg", "text": "b"}]
    splits = {"10": "train", "11": "test"}
    for only in (None, "train"):
        with pytest.raises(DataError, match=r"no list names an image .* such as '11_cd.jpg'"):
            list(with_split(rows, splits, only, Tally()))
    assert list(with_split([], splits, None, Tally())) == []


# --------------------------------------------------------------------------------------------- save


def rows(count: int, change: int = -1) -> list[Row]:
    return [
        {"image": f"{n}.jpg", "text": f"caption {n}" + "!" * (n == change)} for n in range(count)
    ]


def test_the_suffix_chooses_the_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.jsonl", "b.txt", "c.jsonl.gz"):
        save(rows(2), str(tmp_path / name), Tally(), "captions", {}, [])
    assert (
        (tmp_path / "a.jsonl").read_bytes()
        == b'{"image":"0.jpg","text":"caption 0"}\n{"image":"1.jpg","text":"caption 1"}\n'
    )
    assert (tmp_path / "b.txt").read_bytes() == b"caption 0\ncaption 1\n"
    assert (tmp_path / "c.jsonl.gz").read_bytes()[:2] == b"\x1f\x8b"
    save(rows(1), str(tmp_path / "d.tokens"), Tally(), "lines", {}, [])
    assert (tmp_path / "d.tokens").read_bytes() == b"caption 0\n"
    assert (
        capsys.readouterr().err.splitlines()[0]
        == f"vg prepare: 2 captions in {tmp_path / 'a.jsonl'}"
    )


def test_a_text_with_line_breaks_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # As some captions of COCO have them: the rows after it keep their numbers.
    texts = ["A dog\nruns.", "A cat. \n\n", "\n", "\u2028 a\r"]
    rows = [{"image": f"{n}.jpg", "text": text} for n, text in enumerate(texts)]
    save(rows, str(tmp_path / "c.txt"), Tally(), "captions", {}, [])
    assert (tmp_path / "c.txt").read_bytes().decode() == "A dog runs.\nA cat.\n\n\u2028 a\r\n"
    assert "4 captions in" in (said := capsys.readouterr().err)
    assert "; 3 texts with line breaks, which became blanks" in said
    save(rows, str(tmp_path / "r.jsonl"), Tally(), "captions", {}, [])
    found = [
        json.loads(line)["text"]
        for line in (tmp_path / "r.jsonl").read_text("utf8").split("\n")[:-1]
    ]
    assert found == texts
    assert "blanks" not in capsys.readouterr().err


def test_rows_without_a_text_are_not_written_as_one(tmp_path: Path) -> None:
    images = [{"image": "0.jpg", "path": "p/0.jpg"}]
    for name in ("a.txt", "a.txt.gz"):
        with pytest.raises(DataError, match=r"images have no text; name them \.jsonl") as caught:
            save(images, str(tmp_path / name), Tally(), "images", {}, [])
        assert caught.value.code == Exit.USAGE
    assert not [*tmp_path.iterdir()]


def test_an_interrupted_run_resumes_where_it_was(tmp_path: Path) -> None:
    def cut() -> Any:
        yield from rows(7)
        raise KeyboardInterrupt

    for name in ("x.jsonl", "y.jsonl.gz"):
        path, whole = tmp_path / name, tmp_path / f"whole-{name}"
        with pytest.raises(KeyboardInterrupt):
            save(cut(), str(path), Tally(), "captions", {}, [], step=3)
        assert not path.exists()
        assert (tmp_path / f"{name}.part").exists()
        with pytest.raises(DataError, match="the input changed") as caught:
            save(rows(10, change=2), str(path), Tally(), "captions", {}, [], step=3)
        assert caught.value.code == Exit.CONFIG
        with pytest.raises(DataError, match="the input changed"):
            save(rows(4), str(path), Tally(), "captions", {}, [], step=3)
        assert save(rows(10), str(path), Tally(), "captions", {}, [], step=3) == 10
        save(rows(10), str(whole), Tally(), "captions", {}, [], step=3)
        assert path.read_bytes() == whole.read_bytes()
        assert (
            not list(tmp_path.glob("*.part"))
            + list(tmp_path.glob("*.journal"))
            + list(tmp_path.glob("*.lock"))
        )


def test_errors_are_listed_beside_the_output(tmp_path: Path) -> None:
    tally = Tally(skip=True)
    tally.bad(DataError("torn", "in.txt", 3))
    save(rows(1), str(tmp_path / "x.jsonl.gz"), tally, "captions", {}, [])
    assert json.loads((tmp_path / "x.errors.jsonl").read_text()) == {
        "file": "in.txt",
        "line": 3,
        "error": "torn",
    }
    manifest = json.loads((tmp_path / "x.json").read_text())
    assert (manifest["kind"], manifest["rows"], manifest["left_out"]) == (
        "captions",
        1,
        {"bad item": 1},
    )


def test_max_errors_gives_up() -> None:
    tally = Tally(skip=True, most=1)
    tally.bad(DataError("one"))
    with pytest.raises(DataError, match=r"two \(bad item 2, --max-errors allows 1\)"):
        tally.bad(DataError("two"))
