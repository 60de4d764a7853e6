"""A file and a folder of shards are read alike, and each file is compared with its hash."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vgtools.io.artifact import Artifact, open_features, read_manifest
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import write_manifest
from vgtools.io.trust import file_hash, stamp
from vgtools.io.written import check_file, seal, unseal

ROWS = np.arange(15, dtype=np.float32).reshape(5, 3)
IDS = [f"{i}.jpg" for i in range(5)]
CUTS = ((0, 2), (2, 2), (2, 5))  # rows of each shard, the second one without any


def facts(file: Path) -> dict[str, Any]:
    return {"bytes": file.stat().st_size, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}


def write(stem: Path, start: int, stop: int) -> list[Path]:
    files = [stem.with_name(f"{stem.name}{ending}") for ending in (".npy", ".ids")]
    np.save(files[0], ROWS[start:stop])
    files[1].write_text("".join(f"{name}\n" for name in IDS[start:stop]))
    return files


def plain(folder: Path) -> Path:
    files = write(folder / "f.v2", 0, 5)
    write_manifest(files[0], files, kind="image-features", rows=5)
    return files[0]


def shards(folder: Path) -> Path:
    path = folder / "f.v2.npy"
    path.mkdir()
    (path / "plan.json").write_text("{}")
    records = []
    for number, (start, stop) in enumerate(CUTS):
        named = {f.name: facts(f) for f in write(path / f"{number:06}-0000000a", start, stop)}
        record = {"shard": number, "files": named, "counts": {"rows": stop - start}}
        records.append(record | {"versions": {}, "device": None})
    listed = path / "shards.jsonl"
    listed.write_text("".join(json.dumps(record) + "\n" for record in records))
    body = {"format": 1, "vg": "0", "kind": "image-features", "rows": 5, "bytes": 1}
    (folder / "f.v2.json").write_text(json.dumps(body | {"files": {path.name: facts(listed)}}))
    return path


@pytest.mark.parametrize("form", [plain, shards])
def test_a_file_and_a_folder_of_shards_are_read_alike(tmp_path: Path, form: Any) -> None:
    made = Artifact(form(tmp_path), "image-features")
    assert made.manifest["rows"] == 5
    assert np.asarray(made.array(2)).tolist() == ROWS.tolist()
    assert np.concatenate(made.arrays(2)).tolist() == ROWS.tolist()
    assert list(made.lines(".ids")) == IDS
    named = {plain: tmp_path / "f.v2.ids", shards: tmp_path / "f.v2.npy"}
    assert made.name(".ids") == str(named[form])
    with pytest.raises(DataError, match="expected 1 dimensions"):
        made.arrays(1)


@pytest.mark.parametrize("ending", [".npy", ".ids"])
def test_a_damaged_file_is_refused_when_it_is_opened_or_a_shard_when_it_is_read(
    tmp_path: Path, ending: str
) -> None:
    (tmp_path / "whole").mkdir()
    file = plain(tmp_path / "whole").with_suffix(ending)
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(DataError, match=rf"{ending}: is damaged or from another run: sha256"):
        Artifact(file.with_suffix(".npy"))
    path = shards(tmp_path)
    victim = path / f"000002-0000000a{ending}"
    victim.write_bytes(victim.read_bytes()[:-1] + b"?")
    made = Artifact(path)
    with pytest.raises(DataError, match=r"000002-0000000a\.\w+: is damaged: its sha256") as caught:
        made.arrays(2) if ending == ".npy" else list(made.lines(".ids"))
    assert caught.value.code == Exit.DATA
    victim.unlink()
    with pytest.raises(DataError, match=r"is missing; shards\.jsonl names it") as caught:
        made.arrays(2) if ending == ".npy" else list(made.lines(".ids"))
    assert caught.value.code == Exit.NO_INPUT


@pytest.mark.parametrize("form", [plain, shards])
def test_a_manifest_is_of_the_kind_that_is_asked_for(tmp_path: Path, form: Any) -> None:
    path = form(tmp_path)
    assert read_manifest(path, verify="sizes") == read_manifest(path) == Artifact(path).manifest
    with pytest.raises(DataError, match="expected the manifest of 'index', got 'image-features'"):
        read_manifest(path, "index")


@pytest.mark.parametrize("form", [plain, shards])
def test_pooled_features_in_place_of_maps_are_named_also_in_shards(
    tmp_path: Path, form: Any
) -> None:
    with pytest.raises(DataError, match=r"got pooled features.*; make the right ones") as caught:
        open_features(form(tmp_path), positions=1)
    assert caught.value.file == str(tmp_path / "f.v2.npy")


def test_a_copy_under_another_name_is_not_compared_with_the_original(tmp_path: Path) -> None:
    path = plain(tmp_path)
    for ending in (".npy", ".ids", ".json"):
        (tmp_path / f"copy{ending}").write_bytes(path.with_suffix(ending).read_bytes())
    (tmp_path / "copy.ids").write_text("".join(f"{name}\n" for name in IDS[::-1]))
    named = "belongs to f.v2.ids, f.v2.npy, expected a manifest of copy.npy; rename"
    with pytest.raises(DataError, match=named):
        read_manifest(tmp_path / "copy.npy", "image-features")


@pytest.mark.parametrize(
    ("kind", "extra"),
    [("image-features", "f.errors.jsonl"), ("index", "f.errors.jsonl"), ("index", "emb.npy")],
)
def test_a_copy_may_lack_a_file_that_no_reader_opens(tmp_path: Path, kind: str, extra: str) -> None:
    main = tmp_path / ("f.faiss" if kind == "index" else "f.npy")
    files = [main, tmp_path / "f.ids", tmp_path / extra]
    for file in files:
        file.write_bytes(b"1")
    write_manifest(main, files, kind=kind)
    files[2].write_bytes(b"2")
    with pytest.raises(DataError, match="its manifest states"):
        read_manifest(main, kind)
    files[2].unlink()
    assert read_manifest(main, kind)["kind"] == kind
    files[1].unlink()
    with pytest.raises(DataError, match=r"f\.ids: is missing; its manifest names it"):
        read_manifest(main, kind)


def test_a_bank_of_clusters_needs_its_table(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("c.faiss", "c.ids", "c.states.npy")]
    for file in files:
        file.write_bytes(b"1")
    write_manifest(files[0], files, kind="index", clusters={})
    files[2].unlink()
    with pytest.raises(DataError, match=r"c\.states\.npy: is missing; its manifest names it"):
        read_manifest(files[0], "index")


def test_sizes_alone_do_not_show_another_content(tmp_path: Path) -> None:
    path = plain(tmp_path)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    read_manifest(path, verify="sizes")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"f\.v2\.npy: has 187 bytes, its manifest .* 188"):
        read_manifest(path, verify="sizes")


def test_a_file_is_compared_with_what_is_known_of_it(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"abc")
    check_file(file, {}, "its run", "make it again")
    check_file(file, {"bytes": 3, "sha256": file_hash(file)}, "its run", "make it again")
    with pytest.raises(DataError, match=r"x: has 3 bytes, its run \w+ 4; make it again"):
        check_file(file, {"bytes": 4, "sha256": ""}, "its run", "make it again")
    with pytest.raises(DataError, match=rf"sha256 {file_hash(file)}, its run \w+ 00; make it"):
        check_file(file, {"sha256": "00"}, "its run", "make it again")
    with pytest.raises(DataError, match="is missing; its run names it; make it again"):
        check_file(tmp_path / "y", {}, "its run", "make it again")


def test_a_seal_is_of_all_that_a_file_says(tmp_path: Path) -> None:
    body: dict[str, Any] = {"a": 1, "b": [2]}
    stored = body | {"sha256": seal(body)}
    unseal(stored, tmp_path, "write it again")
    assert stored == body
    for other in (body, {"a": 2, "b": [2], "sha256": seal(body)}):
        with pytest.raises(DataError, match=r"edited or damaged: its sha256 .*; write it again"):
            unseal(dict(other), tmp_path, "write it again")
    assert seal(body, b"\n") == hashlib.sha256(b'{"a":1,"b":[2]}\n').hexdigest()


def test_a_stamp_changes_with_the_file_and_also_where_size_and_time_do_not(tmp_path: Path) -> None:
    import os

    file = tmp_path / "x"
    file.write_bytes(b"abc")
    before = stamp(file)
    assert stamp(file) == before
    facts = os.stat(file)
    other = tmp_path / "y"
    other.write_bytes(b"abd")
    os.utime(other, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    other.replace(file)
    assert (os.stat(file).st_size, os.stat(file).st_mtime_ns) == (3, facts.st_mtime_ns)
    assert stamp(file) != before
    assert stamp(tmp_path / "z") is None
