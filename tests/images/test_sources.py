"""Where images come from: order, ids, counts, and archives that mean harm."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import json
import os
import sys
import tarfile
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from vgtools.images import sources
from vgtools.images.sources import (
    ImageError,
    Images,
    expand_folder,
    natural_key,
    open_source,
    read_image,
)
from vgtools.io import remote
from vgtools.io.errors import DataError, Exit
from vgtools.io.names import id_fault
from vgtools.io.streams import Piece, zstd
from vgtools.reports import page


def loaded(source: sources.ImageSource) -> dict[str, bytes | str]:
    """Return id -> bytes, or the reason why it has none."""
    found: dict[str, bytes | str] = {}
    for item in source.items:
        try:
            found[item.id] = item.load()
        except ImageError as error:
            found[item.id] = str(error)
    return found


def make_tar(path: Path, members: list[tuple[tarfile.TarInfo, bytes]], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def member(
    name: str, data: bytes = b"x", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info, data if kind == tarfile.REGTYPE else b""


# ---------------------------------------------------------------------------------------- directory


def test_a_directory_is_walked_in_natural_order_and_other_files_are_counted(tmp_path: Path) -> None:
    for name in (
        "img10.jpg",
        "img2.jpg",
        "IMG3.JPG",
        "b/1.png",
        "b/01.png",
        "a b/ü 'x'.webp",
        "notes.txt",
        "b/more.txt",
        "raw",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    source = open_source(str(tmp_path))
    assert source.total == 6
    assert dict(source.left_out) == {".txt": 2, "": 1}
    assert loaded(source) == {
        name: name.encode()
        for name in ("IMG3.JPG", "a b/ü 'x'.webp", "b/01.png", "b/1.png", "img2.jpg", "img10.jpg")
    }
    assert [item.id for item in open_source(str(tmp_path), limit=2).items] == [
        "IMG3.JPG",
        "a b/ü 'x'.webp",
    ]
    assert sources.counted(source.left_out) == "2 .txt, 1 without suffix"


def test_hidden_files_and_folders_are_left_out_and_counted(tmp_path: Path) -> None:
    root = tmp_path / ".photos"  # how the folder itself is named does not count
    for name in (
        "a.jpg",
        "b.c/..d/e.jpg",
        ".h.png",
        "._a.png",
        ".DS_Store",
        ".ipynb_checkpoints/a-checkpoint.jpg",
        "sub/.git/x/y.png",
        "sub/b.jpg",
        "sub/n.txt",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    for place in (str(root), f"{root}/"):
        source = open_source(place)
        assert [item.id for item in source.items] == ["a.jpg", "sub/b.jpg"]
        assert dict(source.left_out) == {sources.HIDDEN: 6, ".txt": 1}
    with pytest.raises(DataError, match=r"holds no image: 1 \(hidden\)"):
        open_source(str(root / "b.c"))


def test_numbers_sort_by_value_however_long() -> None:
    names = ["w", "v10", "v" + "1" * 5000, "v9", "v010"]
    assert sorted(names, key=natural_key) == ["v9", "v010", "v10", "v" + "1" * 5000, "w"]


def test_linked_folders_are_followed_and_a_loop_ends(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/a.jpg").write_bytes(b"a")
    root = tmp_path / "root"
    root.mkdir()
    (root / "photos").symlink_to(tmp_path / "real")
    (tmp_path / "real/up").symlink_to(tmp_path / "real")
    source = open_source(str(root))
    assert [item.id for item in source.items] == ["photos/a.jpg"]
    assert source.left_out == {"(link to a folder above)": 1}


def test_a_column_of_paths_may_have_a_slash_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"a")
    parquet.write_table(pa.table({"i": ["a"], "file/path": ["a.jpg"]}), tmp_path / "x.parquet")
    named = f"{tmp_path}/x.parquet#image=i,path=file/path"
    assert [(item.id, item.load()) for item in open_source(named).items] == [("a", b"a")]
    assert page.locate(named, ["a"])["a"].path == tmp_path / "a.jpg"


@pytest.mark.parametrize("slash", ["", "/"])
def test_links_to_one_another_end(tmp_path: Path, slash: str) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.jpg").write_bytes(b"x")
        (tmp_path / name / "other").symlink_to(tmp_path / other)
    source = open_source(f"{tmp_path}{slash}")
    assert [item.id for item in source.items] == [
        "a/a.jpg",
        "a/other/b.jpg",
        "b/b.jpg",
        "b/other/a.jpg",
    ]
    assert source.left_out == {"(link to a folder above)": 2}


def test_a_directory_without_images_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    with pytest.raises(DataError, match=r"holds no image: 1 \.txt; expected a directory") as caught:
        open_source(str(tmp_path))
    assert caught.value.code == Exit.DATA
    (tmp_path / "a.parquet").touch()
    with pytest.raises(DataError, match=rf"1 \.txt; name its tables: '{tmp_path}/\*\.parquet'"):
        open_source(str(tmp_path))
    with pytest.raises(DataError, match="cannot be read") as caught:
        open_source(str(tmp_path / "missing"))
    assert caught.value.code == Exit.NO_INPUT


def test_the_listing_changes_with_names_sizes_and_times(tmp_path: Path) -> None:
    image = tmp_path / "a.jpg"
    image.write_bytes(b"1")
    os.utime(image, ns=(1, 1))
    first = open_source(str(tmp_path)).listing
    assert open_source(str(tmp_path)).listing == first
    image.write_bytes(b"22")
    os.utime(image, ns=(1, 1))
    larger = open_source(str(tmp_path)).listing
    os.utime(image, ns=(1, 2))
    later = open_source(str(tmp_path)).listing
    image.rename(tmp_path / "b.jpg")
    assert len({first, larger, later, open_source(str(tmp_path)).listing}) == 4


# -------------------------------------------------------------------------------------------- lists


def test_paths_are_relative_to_the_list(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a.dat").write_bytes(b"a")
    (tmp_path / "b.png").write_bytes(b"b")
    (tmp_path / "list.txt").write_bytes(
        f"sub/a.dat\r\n{tmp_path}/b.png\nmissing.jpg\nsub\n".encode()
    )
    found = loaded(open_source(str(tmp_path / "list.txt")))
    assert found == {
        "sub/a.dat": b"a",
        f"{tmp_path}/b.png": b"b",
        "missing.jpg": f"cannot be read: No such file or directory ({tmp_path}/missing.jpg)",
        "sub": "not a regular file",
    }
    rows = [{"image": "one", "path": "sub/a.dat", "extra": 1}, {"image": "two", "path": "b\0.png"}]
    (tmp_path / "images.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert loaded(open_source(str(tmp_path / "images.jsonl"))) == {
        "one": b"a",
        "two": "cannot be read: embedded null byte",
    }


def test_standard_input_is_a_list_or_jsonl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.png").write_bytes(b"a")
    for text in (b"a.png\n", b'{"image": "a.png", "path": "a.png"}\n'):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        assert loaded(open_source("-")) == {"a.png": b"a"}


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("x.txt", b"a.jpg\n\nb.jpg\n", "x.txt:2: empty line"),
        ("x.txt", b"a.jpg\nb.jpg\na.jpg\n", "x.txt:3: duplicate id 'a.jpg' (first on line 1)"),
        ("x.txt", b"", "x.txt: holds no image"),
        (
            "x.jsonl",
            b'{"image": "a", "path": "a"}\n{"image": "a", "path": "b"}\n',
            "x.jsonl:2: duplicate id 'a' (first on line 1)",
        ),
        ("x.jsonl", b'{"image": "a"}\n', 'x.jsonl:1: the key "path" is missing'),
        ("x.jsonl", b'{"image": 3, "path": "a"}\n', 'x.jsonl:1: "image" must be a string'),
        ("x.jsonl", b'{"image": "a", "pa', "x.jsonl:1: not valid JSON"),
        ("x.json", b'[{"image": "a", "path": "a.png"}]', "x.json:1: starts like a list of JSON"),
        ("x.json", b'[\n  {"image": "a"}\n]\n', "FILE}; jq -c '.[]' makes them, in a file X.jsonl"),
        ("x.jpg", b"\xff\xd8\xff\xe0 and so on", "x.jpg: is a single binary file"),
        ("x.npy", b"\x93NUMPY\x01\x00", "x.npy: is a single binary file"),
    ],
)
def test_a_bad_list_names_its_line(tmp_path: Path, name: str, content: bytes, why: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        open_source(str(tmp_path / name))
    assert why in str(caught.value)
    assert caught.value.code == Exit.DATA


def test_what_is_too_large_or_no_file_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")  # opening it would wait forever
    with pytest.raises(ImageError, match="not a regular file"):
        read_image(str(tmp_path / "pipe.jpg"))
    monkeypatch.setattr(sources, "MAX_BYTES", 3)
    (tmp_path / "a.jpg").write_bytes(b"1234")
    with pytest.raises(ImageError, match="4 bytes; the limit is 3"):
        read_image(str(tmp_path / "a.jpg"))


@pytest.mark.parametrize(
    ("image", "bad"),
    [("a\nb", 1), ("a\rb", 1), ("", 1), ("\ufeffa", 1), ("\udcff", 1), ("ü \t.jpg", 0)],
)
def test_ids_must_fit_on_a_line(image: str, bad: bool) -> None:
    assert (id_fault(image) is not None) == bad
    assert ("byte-order mark" in str(id_fault(image))) == image.startswith("\ufeff")


# ---------------------------------------------------------------------------------------------- tar


@pytest.mark.parametrize(
    "suffix", [".tar", ".tar.gz", ".tar.xz", ".tar.bz2", ".tar.zst", ".anything"]
)
def test_a_tar_is_streamed_in_its_own_order(tmp_path: Path, suffix: str) -> None:
    members = [
        member("./b.jpg", b"bb"),
        member("d", kind=tarfile.DIRTYPE),
        member("d/a.png", b"a"),
        member("d/a.txt", b"t"),
    ]
    path = make_tar(
        tmp_path / f"x{suffix}",
        members,
        "w:" + (suffix[5:] if suffix[5:] in ("gz", "xz", "bz2") else ""),
    )
    if suffix == ".tar.zst":
        from vgtools.io.files import compress

        path.write_bytes(compress(path.read_bytes(), path))
    source = open_source(str(path))
    assert (source.total, source.listing) == (None, None)
    assert loaded(source) == {"b.jpg": b"bb", "d/a.png": b"a"}
    assert source.left_out == {".txt": 1}
    assert [item.id for item in open_source(str(path), limit=1).items] == ["b.jpg"]


def test_an_evil_tar_writes_nothing_and_reads_nothing_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    secret = tmp_path / "secret.jpg"
    secret.write_bytes(b"secret")
    path = make_tar(
        work / "evil.tar",
        [
            member("../out.jpg", b"1"),
            member(f"{tmp_path}/absolute.jpg", b"2"),
            member("a/../../out.jpg", b"3"),
            member("soft.jpg", kind=tarfile.SYMTYPE, link=str(secret)),
            member("hard.jpg", kind=tarfile.LNKTYPE, link="../secret.jpg"),
            member("device.jpg", kind=tarfile.CHRTYPE),
            member("pipe.jpg", kind=tarfile.FIFOTYPE),
            member("large.jpg", b"12345"),
            member("good.jpg", b"good"),
        ],
    )
    monkeypatch.setattr(sources, "MAX_BYTES", 4)
    found = loaded(open_source(str(path)))
    assert found.pop("good.jpg") == b"good"
    assert found.pop("large.jpg") == "5 bytes; the limit is 4"
    assert found == {
        "../out.jpg": "its name leads out of the archive",
        f"{tmp_path}/absolute.jpg": "its name leads out of the archive",
        "a/../../out.jpg": "its name leads out of the archive",
        **dict.fromkeys(
            ["soft.jpg", "hard.jpg", "device.jpg", "pipe.jpg"],
            "a link or device inside a tar; only regular files are read",
        ),
    }
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["evil.tar", "secret.jpg", "work"]


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
def test_every_cut_of_a_tar_is_a_named_error(tmp_path: Path, suffix: str) -> None:
    path = make_tar(
        tmp_path / f"x{suffix}",
        [member("a.jpg", b"a" * 700), member("b.jpg", bytes(1024))],
        f"w:{suffix[5:]}",
    )
    whole = path.read_bytes()
    # Up to the end mark: header, 700 bytes in two blocks, header, two blocks of zeros that look
    # like an end mark.
    last = 6 * 512 if suffix == ".tar" else len(whole) - 1
    cuts = (
        {*range(0, last, 97), 511, 512, 513, 1536, 2048, 2560, 3071, last}
        if suffix == ".tar"
        else range(0, last, 7)
    )
    for cut in sorted(cuts):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError) as caught:
            list(open_source(str(path)).items)
        assert caught.value.code == Exit.DATA
        assert str(path) in str(caught.value)
    path.write_bytes(whole)
    assert list(loaded(open_source(str(path)))) == ["a.jpg", "b.jpg"]


def test_a_damaged_header_inside_a_tar_does_not_end_it_quietly(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", [member("a.jpg", b"a"), member("b.jpg", b"b")])
    data = bytearray(path.read_bytes())
    data[1024 + 10] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"truncated or damaged after 'a\.jpg'"):
        list(open_source(str(path)).items)


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
def test_joined_tars_are_refused_not_read_half(tmp_path: Path, suffix: str) -> None:
    parts = [make_tar(tmp_path / f"{x}.tar", [member(f"{x}.jpg", b"a")]) for x in "ab"]
    both = b"".join(part.read_bytes() for part in parts)
    path = tmp_path / f"both{suffix}"
    path.write_bytes(gzip.compress(both) if suffix.endswith(".gz") else both)
    with pytest.raises(DataError, match=r"has bytes after its end mark.*name each tar"):
        list(open_source(str(path)).items)


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
def test_places_that_share_an_id_are_refused_before_any_image_is_read(
    tmp_path: Path, suffix: str
) -> None:
    mode = f"w:{suffix.removeprefix('.tar').removeprefix('.')}"
    a = make_tar(tmp_path / f"a{suffix}", [member("x.jpg", b"a"), member("y.jpg", b"b")], mode)
    b = make_tar(tmp_path / f"b{suffix}", [member("z.jpg", b"c"), member("./y.jpg", b"d")], mode)
    c = make_tar(tmp_path / f"c{suffix}", [member("y.txt", b"c"), member("w.jpg", b"d")], mode)
    sources.Images([str(a), str(c)]).check_unique()
    with pytest.raises(
        DataError, match=rf"b{suffix}: duplicate id 'y\.jpg', also in .*/a"
    ) as caught:
        sources.Images([str(a), str(c), str(b)]).check_unique()
    assert caught.value.code == Exit.DATA
    (tmp_path / "list.txt").write_text("w.jpg\n")
    with pytest.raises(DataError, match=r"duplicate id 'w\.jpg', also in"):
        sources.Images([str(tmp_path / "list.txt"), str(c)]).check_unique()


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".tar.zst", ".tar.bz2"])
@pytest.mark.parametrize("size", [2**50, 2**40, 10**6])
@pytest.mark.parametrize("name", ["a.jpg", "a.txt"])
def test_a_tar_that_declares_more_bytes_than_it_has_ends_at_once(
    tmp_path: Path, suffix: str, size: int, name: str
) -> None:
    header = tarfile.TarInfo(name)
    header.size = size
    data = header.tobuf(tarfile.GNU_FORMAT) + b"x" * 1536
    pack = {".gz": gzip.compress, ".zst": zstd.compress, ".bz2": bz2.compress}
    path = tmp_path / f"x{suffix}"
    path.write_bytes(pack.get(path.suffix, bytes)(data))
    start = time.monotonic()
    with pytest.raises(DataError, match="is truncated, damaged or not a tar") as caught:
        for item in open_source(str(path)).items:
            with contextlib.suppress(ImageError):
                item.load()
    assert caught.value.code == Exit.DATA
    assert time.monotonic() - start < 2


def test_a_folder_of_tars_is_its_tars_and_one_with_images_is_itself(tmp_path: Path) -> None:
    for name in ("10.tar", "2.tar", "00.tar.gz", "2.parquet"):
        (tmp_path / name).touch()
    tars = [str(tmp_path / name) for name in ("00.tar.gz", "2.tar", "10.tar")]
    assert expand_folder(str(tmp_path)) == tars
    (tmp_path / "d").mkdir()
    (tmp_path / "d/a.jpg").touch()
    assert expand_folder(str(tmp_path)) == [str(tmp_path)]
    for place in ("-", str(tmp_path / "2.tar"), str(tmp_path / "nothing")):
        assert expand_folder(place) == [place]


def test_a_tar_names_each_image_once_and_holds_one(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", [member("a.jpg", b"a"), member("./a.jpg", b"b")])
    with pytest.raises(DataError, match=r"duplicate image 'a\.jpg'"):
        list(open_source(str(path)).items)
    make_tar(path, [member("a.txt", b"a")])
    with pytest.raises(DataError, match=r"holds no image: 1 \.txt"):
        list(open_source(str(path)).items)
    path.write_bytes(b"")
    with pytest.raises(DataError, match="not a tar: empty file"):
        list(open_source(str(path)).items)


def test_hidden_files_are_left_out_of_a_tar_and_a_folder_alike(tmp_path: Path) -> None:
    names = ("._a.jpg", "./a.jpg", "d/._b.jpg", "d/b.jpg", "./.git/c.jpg", "../e.jpg", "n.txt")
    source = open_source(str(make_tar(tmp_path / "x.tar", [member(n, b"a") for n in names])))
    assert [item.id for item in source.items] == ["a.jpg", "d/b.jpg", "../e.jpg"]
    assert dict(source.left_out) == {sources.HIDDEN: 3, ".txt": 1}
    placed = [name for name, _, _ in sources.placed_members(str(tmp_path / "x.tar"))]
    assert (
        placed == [*sources._tar_names(str(tmp_path / "x.tar"))] == ["a.jpg", "d/b.jpg", "../e.jpg"]
    )
    for name in ("._a.jpg", "a.jpg"):
        (tmp_path / "f" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "f" / name).touch()
    assert [item.id for item in open_source(str(tmp_path / "f")).items] == ["a.jpg"]


def test_a_tar_of_a_hidden_folder_names_the_way_out(tmp_path: Path) -> None:
    tar = make_tar(tmp_path / "x.tar", [member("home/.cache/a.jpg")])
    with pytest.raises(DataError, match=r"holds hidden files alone \(1\); tar -C FOLDER -cf"):
        list(open_source(str(tar)).items)


def test_a_tar_member_with_a_torn_map_of_holes_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in (("a.png", b"x" * 600), ("b.png", b"picture")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            if name == "a.png":
                member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
            tar.addfile(member, io.BytesIO(data))
    found = loaded(open_source(str(path)))
    assert found["b.png"] == b"picture"
    assert str(found["a.png"]).startswith("its map of holes cannot be read")


def test_an_expired_key_is_not_taken_for_a_broken_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else --on-error skip would end with 0 and not one image."""

    class Expired:
        def info(self, path: str) -> dict[str, object]:
            raise PermissionError("ExpiredToken")

    monkeypatch.setattr(remote, "_system", lambda url: (Expired(), url))
    with pytest.raises(DataError, match="ExpiredToken") as caught:
        remote.facts_of(["s3://bucket/a.jpg"])
    assert caught.value.code == Exit.UNAVAILABLE
    with pytest.raises(DataError, match="ExpiredToken"):
        sources._read_url("s3://bucket/a.jpg", "a.jpg")


def test_a_nul_in_a_path_is_named() -> None:
    with pytest.raises(DataError, match="NUL in its name"):
        open_source("a\0b")


# ------------------------------------------------------------------------------------------- tables


def save_table(path: Path, rows: list[dict[str, object]]) -> Path:
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    parquet.write_table(pa.table({"image": pa.array(rows, kind)}), path, row_group_size=2)
    return path


def test_images_of_a_table_are_its_bytes_or_the_files_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "b.png").write_bytes(b"beside")
    rows: list[dict[str, object]] = [
        {"bytes": b"1", "path": "a.png"},
        {"bytes": None, "path": "b.png"},
        {"bytes": None, "path": "c.png"},
        {"bytes": b"4", "path": None},
        {"bytes": None, "path": None},
    ]
    path = save_table(tmp_path / "x.parquet", rows)
    source = open_source(str(path))
    assert source.total is None
    found = loaded(source)
    missing = f"cannot be read: No such file or directory ({tmp_path}/c.png)"
    nothing = "has neither bytes nor a path"
    assert found == {
        "a.png": b"1", "b.png": b"beside", "c.png": missing, "x:4": b"4", "x:5": nothing
    }  # fmt: skip
    # At a URL, files lie next to the table as well.
    distant = loaded(open_source(f"file://{path}"))
    assert distant.pop("c.png") == f"cannot be read: does not exist (file://{tmp_path}/c.png)"
    assert distant == {name: data for name, data in found.items() if name != "c.png"}
    places = [item.place for item in open_source(str(path), 2).items]
    assert places == [f"{path}:1: ", f"{path}:2: "]


def test_files_that_a_table_names_are_in_its_listing(tmp_path: Path) -> None:
    (tmp_path / "b.png").write_bytes(b"beside")
    rows: list[dict[str, object]] = [{"bytes": b"1", "path": "a.png"} for _ in range(2)]
    whole = save_table(tmp_path / "whole.parquet", rows[:1])
    assert open_source(str(whole)).listing is None
    path = save_table(tmp_path / "x.parquet", [*rows[:1], {"bytes": None, "path": "b.png"}])
    first = open_source(str(path)).listing
    assert first == open_source(str(path)).listing
    assert first is not None
    (tmp_path / "b.png").write_bytes(b"another")
    assert open_source(str(path)).listing != first


def test_a_folder_beside_a_tar_is_in_the_listing(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "b.png").write_bytes(b"one")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(tmp_path / "photos" / "b.png", "a.png")
    places = [str(tmp_path / "photos"), str(tmp_path / "a.tar")]

    def listing() -> str | None:
        return Images(places).open([*map(Piece, places)]).listing

    first = listing()
    (tmp_path / "photos" / "b.png").write_bytes(b"another")
    assert listing() != first
    assert Images(places[1:]).open([Piece(places[1])]).listing is None


def test_the_stamp_of_an_image_of_a_table_is_its_content(tmp_path: Path) -> None:
    stamps = set()
    for data in (b"12", b"21", b"1"):
        path = save_table(tmp_path / "x.parquet", [{"bytes": data, "path": "a.png"}])
        stamps |= {item.stamp for item in open_source(str(path)).items}
    assert len(stamps) == 3


def test_an_id_that_occurs_twice_in_a_table_is_refused_with_both_rows(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"bytes": b"1", "path": name} for name in ("a", "b", "a")]
    path = save_table(tmp_path / "x.parquet", rows)
    with pytest.raises(DataError, match=r"x.parquet:3: duplicate id 'a' \(first in row 1\)"):
        loaded(open_source(str(path)))
    images = sources.Images([f"{path}", f"{save_table(tmp_path / 'y.parquet', rows[:1])}"])
    with pytest.raises(DataError, match="duplicate id 'a', also in"):
        images.check_unique()


def test_a_table_of_paths_is_a_list(tmp_path: Path) -> None:
    (tmp_path / "b.png").write_bytes(b"beside")
    table = pa.table({"image": ["b"], "file": ["b.png"]})
    parquet.write_table(table, tmp_path / "x.parquet")
    (tmp_path / "x.csv").write_text("image,file\nb,b.png\n")
    for name in ("x.parquet", "x.csv"):
        source = open_source(f"{tmp_path / name}#path=file")
        assert source.total == 1
        assert loaded(source) == {"b": b"beside"}
        with pytest.raises(DataError, match=f'{name}:1: the key "path" is missing'):
            open_source(str(tmp_path / name))


def test_images_of_a_plain_tar_are_read_at_their_places(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:
        for name, data in (("a.txt", b"text"), ("./b.png", b"one"), ("d/c.jpg", b"two")):
            header = tarfile.TarInfo(name)
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))
    placed = {name: (start, size) for name, start, size in sources.placed_members(str(path))}
    read = {name: sources.read_member(str(path), *place) for name, place in placed.items()}
    assert read == {"b.png": b"one", "d/c.jpg": b"two"}
    data = path.read_bytes()
    start, size = placed["d/c.jpg"]
    path.write_bytes(data[: start + 1])
    with pytest.raises(ImageError, match="is cut off"):
        sources.read_member(str(path), start, size)
    path.write_bytes(gzip.compress(data))
    with pytest.raises(DataError, match="expected a tar that is not compressed") as caught:
        [*sources.placed_members(str(path))]
    assert caught.value.code == Exit.DATA
    path.unlink()
    with pytest.raises(DataError, match="cannot be read") as caught:
        [*sources.placed_members(str(path))]
    assert caught.value.code == Exit.NO_INPUT


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_that_declares_more_than_a_header_has_is_not_read(
    tmp_path: Path, kind: bytes
) -> None:
    """tarfile would read it whole, which a few kilobytes can make gigabytes."""
    info = tarfile.TarInfo("x")
    info.type = kind
    info.size = 3 << 30
    (tmp_path / "x.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(10_240))
    with pytest.raises(DataError, match="a header declares 3,221,225,472 bytes"):
        list(open_source(str(tmp_path / "x.tar")).items)
