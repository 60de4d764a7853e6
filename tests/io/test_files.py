"""Small files under two writers, planted links and kills."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vgtools.io.artifact import open_features, read_made, read_manifest
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import dumps, final_path, read_json, write_manifest
from vgtools.io.names import is_unnamed
from vgtools.io.own import atomic_write
from vgtools.io.written import manifest_beside

LOOP = """
import sys
from vgtools.io.own import atomic_write
for turn in range(150):
    atomic_write(sys.argv[1], (sys.argv[2] * 40000).encode(), lambda path: True)
"""


def test_two_writers_of_one_small_file_never_fail_nor_tear_it(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    writers = [
        subprocess.Popen([sys.executable, "-c", LOOP, str(path), letter], stderr=subprocess.PIPE)
        for letter in "abc"
    ]
    whole = {letter * 40000 for letter in "abc"}
    reads = 0
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            assert path.read_text() in whole
            reads += 1
    assert reads > 10
    assert [writer.communicate()[1] for writer in writers] == [b"", b"", b""]
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.parametrize("plant", ["link", "dangling", "hard", "killed", "pipe"])
def test_what_has_the_name_of_the_temporary_file_is_replaced_not_written(
    tmp_path: Path, plant: str
) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("mine\n")
    path = tmp_path / "x.json"
    temporary = tmp_path / ".x.json.vg.tmp"
    if plant == "link":
        temporary.symlink_to(outside)
    elif plant == "dangling":
        temporary.symlink_to(tmp_path / "nowhere")
    elif plant == "hard":
        os.link(outside, temporary)
    elif plant == "pipe":
        os.mkfifo(temporary)
    else:
        temporary.write_text("half of a fi")
    atomic_write(path, b"new\n")
    assert path.read_text() == "new\n"
    assert stat.S_ISREG(path.lstat().st_mode)
    assert outside.read_text() == "mine\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["outside.txt", "x.json"]


def test_small_files_have_the_permissions_of_the_umask(tmp_path: Path) -> None:
    for mask, mode in ((0o022, 0o644), (0o027, 0o640), (0o002, 0o664)):
        before = os.umask(mask)
        try:
            atomic_write(tmp_path / "x", b"")
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == mode


def test_a_stop_in_the_write_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    path.write_text("old")

    def stopped(*_: object) -> None:
        raise SystemExit(Exit.TERMINATED)

    monkeypatch.setattr(os, "fsync", stopped)
    with pytest.raises(SystemExit):
        atomic_write(path, b"new", lambda path: True)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("x", "old")]


def test_another_writer_that_never_ends_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    monkeypatch.setattr("vgtools.io.own._PATIENCE", 0.05)
    with open(tmp_path / ".x.vg.tmp", "wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="x: is being written by another process") as caught:
            atomic_write(tmp_path / "x", b"new")
    assert caught.value.code == Exit.STOPPED
    assert not (tmp_path / "x").exists()


def test_a_folder_that_is_gone_is_not_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=os.strerror(errno.ENOENT)) as caught:
        atomic_write(tmp_path / "none" / "x", b"")
    assert "free some space" not in str(caught.value)
    assert caught.value.code == Exit.CANNOT_CREATE


@pytest.mark.parametrize("name", ["", "x.jsonl/", ".", "/", "folder/"])
def test_a_name_without_a_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match=r"a file name") as caught:
        final_path(name, [])
    assert caught.value.code == (Exit.CANNOT_CREATE if name else Exit.USAGE)


def test_a_loop_of_links_and_a_column_are_no_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(DataError, match="one: is a link in a loop of links"):
        final_path("one", [])
    with pytest.raises(DataError, match="# starts the columns of a table that is read") as caught:
        final_path("q.parquet#text", [])
    assert caught.value.code == Exit.USAGE


def test_a_pipe_among_files_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.json")  # opening it would wait for a writer
    with pytest.raises(DataError, match=r"run\.json: is a pipe or a device; expected a manifest"):
        read_json(tmp_path / "run.json", "a manifest")


def test_another_file_than_the_expected_is_named_with_the_command_that_writes_it(
    tmp_path: Path,
) -> None:
    with pytest.raises(DataError, match=r"no\.faiss: does not exist; expected X\.faiss of vg"):
        read_manifest(tmp_path / "no.faiss", "index")
    (tmp_path / "c.jsonl").touch()
    with pytest.raises(DataError, match=r"X\.npy of vg extract-image-feats, got .*c\.jsonl"):
        read_manifest(tmp_path / "c.jsonl", "image-features")
    write_manifest(tmp_path / "c.jsonl", [tmp_path / "c.jsonl"], kind="captions")
    with pytest.raises(DataError, match=r"got 'captions'; name X\.faiss of vg build-index"):
        read_manifest(tmp_path / "c.jsonl", "index")


def test_a_pipe_or_device_is_written_to_not_replaced(tmp_path: Path) -> None:
    import threading

    os.mkfifo(tmp_path / "pipe.svg")
    got = list[bytes]()
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe.svg").read_bytes()))
    reader.start()
    atomic_write(tmp_path / "pipe.svg", b"<svg/>")
    reader.join(10)
    assert got == [b"<svg/>"]
    assert (tmp_path / "pipe.svg").is_fifo()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_name_that_is_not_utf8_is_written_out() -> None:
    row = {"file": os.fsdecode(b"caf\xe9"), "numbers": np.arange(2)}
    assert dumps(row) == b'{"file":"caf\\\\udce9","numbers":[0,1]}\n'


def test_rows_are_compared_with_the_manifest_beside_them(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(b'{"a": 1}\n{"a": 2}\n')
    write_manifest(rows, [rows], kind="rows")
    assert list(read_made(rows)) == [(1, {"a": 1}), (2, {"a": 2})]
    rows.write_bytes(b'{"a": 1}\n{"a": 3}\n')  # of the same size
    read = read_made(rows)
    assert next(read) == (1, {"a": 1})
    with pytest.raises(DataError, match=r"rows\.jsonl: is damaged or was rewritten"):
        list(read)
    rows.write_bytes(b'{"a": 1}\n')
    with pytest.raises(DataError, match="has 9 bytes, its manifest states 18"):
        read_made(rows)


@pytest.mark.parametrize("made", [1, {"ref": "net", "preprocessing": "none"}])
def test_a_manifest_names_its_backbone_as_an_object(tmp_path: Path, made: object) -> None:
    write_manifest(tmp_path / "c.jsonl", [], kind="captions", backbone=made)
    key = "backbone" if made == 1 else "preprocessing"
    with pytest.raises(DataError, match=f'c.json: "{key}" must be an object'):
        read_manifest(tmp_path / "c.jsonl")


@pytest.mark.parametrize("kind", [["image-features"], {"a": 1}, 5, True])
def test_a_kind_of_another_type_is_one_line(tmp_path: Path, kind: object) -> None:
    import json

    import numpy as np

    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    (tmp_path / "x.ids").write_text("a\nb\n")
    write_manifest(tmp_path / "x.npy", [tmp_path / "x.npy"], kind="image-features")
    body = json.loads((tmp_path / "x.json").read_text())
    (tmp_path / "x.json").write_text(json.dumps(body | {"kind": kind}))
    reads = (open_features, read_manifest, manifest_beside)
    for read in reads:
        with pytest.raises(DataError, match=r'x\.json: "kind": expected a string') as caught:
            read(tmp_path / "x.npy")
        assert caught.value.code == Exit.DATA


@pytest.mark.parametrize("shape", [(2, 0), (0, 3)])
def test_features_without_numbers_are_refused(tmp_path: Path, shape: tuple[int, int]) -> None:
    import numpy as np

    np.save(tmp_path / "x.npy", np.ones(shape, np.float32))
    (tmp_path / "x.ids").write_text("a\nb\n"[: 2 * shape[0]])
    files = [tmp_path / "x.npy", tmp_path / "x.ids"]
    write_manifest(files[0], files, kind="image-features")
    with pytest.raises(DataError, match="expected numbers, got none") as caught:
        open_features(tmp_path / "x.npy")
    assert caught.value.code == Exit.DATA


def test_a_name_in_the_memory_of_the_machine_is_a_file() -> None:
    assert not is_unnamed("/dev/shm/text.jsonl")
    assert is_unnamed("/dev/fd/3")
    assert is_unnamed("/proc/self/fd/3")
