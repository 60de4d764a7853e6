"""A file of rows and the manifest at its place: of that file, of a neighbour, or renamed."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from vgtools.io.artifact import read_manifest
from vgtools.io.errors import DataError, Exit, json_bytes
from vgtools.io.files import is_manifest, read_json, sha256_file, write_manifest
from vgtools.io.splits import held_out_in
from vgtools.io.streams import read_texts
from vgtools.io.written import check_made, is_made, manifest_beside

ROWS = b'{"text": "a"}\n{"text": "b"}\n'


def made(folder: Path, name: str = "v.jsonl", *more: str) -> Path:
    """Write rows and further files with one manifest, as a command does."""
    files = [folder / name, *(folder / other for other in more)]
    for number, file in enumerate(files):
        rows = ROWS if file.suffix != ".gz" else gzip.compress(ROWS)
        file.write_bytes(rows if not number else b"%d\n" % number)
    write_manifest(files[0], files, kind="vokens", held_out=1)
    return files[0]


def refused(file: Path, names: str) -> None:
    for read in (manifest_beside, check_made, lambda path: list(read_texts(path))):
        with pytest.raises(DataError, match="rename the files back") as caught:
            read(file)
        assert caught.value.code == Exit.DATA
        assert f"belongs to {names}, expected a manifest of {file.name}" in str(caught.value)


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".txt", ".parquet"])
def test_rows_that_were_renamed_with_their_manifest_are_refused(
    tmp_path: Path, ending: str, edited: bool
) -> None:
    rows = made(tmp_path, f"v{ending}").rename(tmp_path / f"r{ending}")
    (tmp_path / "v.json").rename(tmp_path / "r.json")
    if edited:
        rows.write_bytes(rows.read_bytes()[::-1])
    refused(rows, f"v{ending}")
    made(tmp_path, f"v{ending}")  # as it is with a copy of both, too
    refused(rows, f"v{ending}")


def test_rows_that_got_another_ending_are_refused(tmp_path: Path) -> None:
    rows = made(tmp_path).rename(tmp_path / "v.txt")
    refused(rows, "v.jsonl")
    rows = rows.rename(tmp_path / "r.txt")
    (tmp_path / "v.json").rename(tmp_path / "r.json")
    refused(rows, "v.jsonl")


def test_the_ids_of_an_index_that_got_another_ending_are_refused(tmp_path: Path) -> None:
    made(tmp_path, "x.faiss", "x.ids")
    ids = (tmp_path / "x.ids").rename(tmp_path / "x.txt")
    refused(ids, "x.faiss, x.ids")


def test_a_file_next_to_the_manifest_of_another_is_read(tmp_path: Path) -> None:
    made(tmp_path, "x.npy", "x.ids", "x.errors.jsonl")
    made(tmp_path, "o.jsonl", "emb.npy")
    made(tmp_path).rename(tmp_path / "elsewhere.jsonl")
    (tmp_path / "v.json").rename(tmp_path / "w.json")
    copy = (tmp_path / "x.txt", (tmp_path / "x.ids").read_bytes())  # its own is still there
    edited = ("x.txt", "x.jsonl", "x.errors.jsonl", "o.npy", "o.txt", "emb.jsonl", "w.csv")
    for file, data in (copy, *((tmp_path / name, b"mine\n") for name in edited)):
        file.write_bytes(data)
        assert manifest_beside(file) == {}, file
        check_made(file)


def test_a_link_has_the_manifest_of_its_file(tmp_path: Path) -> None:
    rows = made(tmp_path)
    places = tmp_path / "links"
    places.mkdir()
    link = places / "other.jsonl"
    link.symlink_to(rows)
    again = places / "again.jsonl"
    again.symlink_to(link)
    (places / "other.json").write_text('{"mine": 1}')  # as a hub's copies have a manifest of vg
    for name in (link, again):
        assert is_made(name)
        assert manifest_beside(name)["kind"] == "vokens"
        check_made(name)
    rows.write_bytes(ROWS[::-1])
    for name in (link, again):
        with pytest.raises(DataError, match="is damaged or was rewritten"):
            check_made(name)
    blob = tmp_path / "blob"
    blob.write_bytes(ROWS)
    write_manifest(rows, [rows], kind="texts")
    link = tmp_path / "snapshot/v.jsonl"
    link.parent.mkdir()
    link.symlink_to(blob)
    rows.with_suffix(".json").rename(link.with_suffix(".json"))
    (tmp_path / "mine").mkdir()
    further = tmp_path / "mine/x.jsonl"
    further.symlink_to("../snapshot/v.jsonl")
    for name in (link, further):
        with pytest.raises(DataError, match="is damaged or was rewritten"):
            check_made(name)
    blob.write_bytes(ROWS[::-1])
    for name in (link, further):
        check_made(name)
        assert manifest_beside(name)["kind"] == "texts"
    around = tmp_path / "around.jsonl"
    around.symlink_to(around.name)
    assert manifest_beside(around) == {}


def test_a_file_of_a_web_server_has_its_manifest_whatever_its_url_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path, "my rows.jsonl")
    made(tmp_path, "v?x.jsonl")

    def local(url: str) -> Path:
        assert "?" not in url or not url.startswith("https:"), "the manifest has no such part"
        return tmp_path / url.rpartition("/")[2].replace("%20", " ")

    def size(url: str) -> int:
        return local(url.partition("?")[0] if url.startswith("https:") else url).stat().st_size

    monkeypatch.setattr(
        "vgtools.io.written.read_if_there", lambda url, most: local(url).read_bytes()
    )
    monkeypatch.setattr("vgtools.io.written.file_size", size)
    for name in ("my%20rows.jsonl", "my rows.jsonl?download=true", "my%20rows.jsonl?v=1.2"):
        assert held_out_in(f"https://x.org/d/{name}") == 1
    assert held_out_in("s3://b/v?x.jsonl") == 1
    (tmp_path / "my rows.jsonl").write_bytes(b"")
    with pytest.raises(DataError, match=r"has 0 bytes, its manifest states"):
        manifest_beside("https://x.org/d/my%20rows.jsonl?v=2")


def test_rows_of_json_in_the_place_of_a_manifest_are_the_user_s(tmp_path: Path) -> None:
    (tmp_path / "emb.npy").write_bytes(b"mine")
    place = tmp_path / "emb.json"
    place.write_text('{"image": "a"}\n{"image": "b"}\n')
    assert manifest_beside(tmp_path / "emb.npy") == {}
    rows = made(tmp_path)
    damaged = rows.with_suffix(".json").read_text()
    for data in (damaged + "{}", damaged[:-9], "", '"x"\n{}\n', "[\n"):
        rows.with_suffix(".json").write_text(data)
        with pytest.raises(DataError, match=r"v\.json: not valid JSON"):
            manifest_beside(rows)


def test_what_is_too_large_for_a_manifest_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = made(tmp_path)
    size = rows.with_suffix(".json").stat().st_size
    for module in ("forms", "written", "files"):
        monkeypatch.setattr(f"vgtools.io.{module}.LARGEST", size)
    assert manifest_beside(rows)["kind"] == "vokens"
    with open(rows.with_suffix(".json"), "ab") as stream:
        stream.write(b" ")
    for read in (manifest_beside, read_manifest, check_made):
        with pytest.raises(DataError, match=r"v\.json: has more than 0 MB, expected a small file"):
            read(rows)
    assert not is_manifest(rows.with_suffix(".json"))
    rows.with_suffix(".json").write_text(f'{{"annotations": "{"x" * size}"}}')  # the user's
    assert manifest_beside(rows) == {}


def test_a_file_without_an_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shape.json").symlink_to("/dev/zero")
    with pytest.raises(DataError, match="is a pipe or a device") as caught:
        read_json(tmp_path / "shape.json")
    assert caught.value.code == Exit.DATA


@pytest.mark.parametrize("name", ["../m/a.txt", "/a.txt", "sub/a.txt"])
def test_a_manifest_that_names_files_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / "a.txt"
    file.write_text("a\n")
    facts = {"bytes": 2, "sha256": sha256_file(file)}
    body = {"format": 1, "vg": "0.1.0", "files": {"a.jsonl": {}, name: facts}}
    (tmp_path / "a.json").write_bytes(json_bytes(body))
    with pytest.raises(DataError, match="rename the files back"):
        manifest_beside(file)
