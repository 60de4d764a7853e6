"""Folders of shards that somebody edited and sealed again, and folders of other tools."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.batch.test_shards import TEXT, joined, output_of, run, whole
from vgtools.io.errors import DataError, Exit
from vgtools.io.folders import Shards
from vgtools.io.written import seal

Change = Callable[[Any], object]


def made(tmp_path: Path) -> tuple[Path, Path]:
    text = tmp_path / "a.txt"
    text.write_bytes(TEXT)
    run(tmp_path / "o.jsonl", text)
    return text, tmp_path / "o.jsonl"


def reseal(file: Path, change: Change) -> None:
    body = json.loads(file.read_bytes())
    del body["sha256"]
    change(body)
    body["sha256"] = seal(body)
    file.write_text(json.dumps(body))


def relist(folder: Path, change: Change) -> None:
    """Change the second line of a list, and the manifest with it, as who made both would."""
    lines = [json.loads(line) for line in (folder / "shards.jsonl").read_bytes().splitlines()]
    change(lines[1])
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    (folder / "shards.jsonl").write_bytes(data)
    manifest = json.loads((folder.parent / "o.json").read_bytes())
    facts = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest["files"]["o.jsonl"] = facts
    (folder.parent / "o.json").write_text(json.dumps(manifest))


def rename_to(name: str) -> Change:
    def change(record: Any) -> None:
        (facts,) = record["files"].values()
        record["files"] = {name: facts}

    return change


LISTS: dict[str, Change] = {
    "beside": rename_to("../victim.jsonl"),
    "below": rename_to("x/000001-00000000.jsonl"),
    "no dots": rename_to(".."),
    "other shard": rename_to("000000-00000000.jsonl"),
    "no shard": rename_to("victim.jsonl"),
    "number": lambda r: r.update(shard=7),
    "number type": lambda r: r.update(shard="1"),
    "files type": lambda r: r.update(files=[]),
    "facts type": lambda r: r.update(files=dict.fromkeys(r["files"])),
    "size type": lambda r: next(iter(r["files"].values())).update(bytes="9"),
    "size below": lambda r: next(iter(r["files"].values())).update(bytes=-9),
    "hash type": lambda r: next(iter(r["files"].values())).update(sha256=None),
    "no counts": lambda r: r.pop("counts"),
    "counts type": lambda r: r.update(counts=[1]),
    "rows type": lambda r: r["counts"].update(rows="x"),
}


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("victim", ["victim.jsonl", "absolute"])
def test_a_list_names_files_of_its_shard_alone(tmp_path: Path, name: str, victim: str) -> None:
    text, folder = made(tmp_path)
    other = tmp_path / "victim.jsonl"
    other.write_text("mine\n")
    absolute = name == "beside" and victim == "absolute"
    relist(folder, rename_to(str(other)) if absolute else LISTS[name])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for use in (lambda: joined(folder), lambda: run(folder, text)):
        with pytest.raises(DataError, match=r"shards\.jsonl:2: ") as caught:
            use()
        assert caught.value.code == Exit.DATA
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before
    run(folder, text, restart=True)
    assert joined(folder) == whole(tmp_path, text)
    assert other.read_text() == "mine\n"


COMMITS: dict[str, Change] = LISTS | {
    "plan type": lambda r: r.update(plan=None),
    "facts": lambda r: r.update(facts=5),
    "versions": lambda r: r.update(versions=[]),
    "device": lambda r: r.update(device=[5]),
}


@pytest.mark.parametrize("name", COMMITS)
def test_a_commit_that_was_sealed_again_is_not_believed(tmp_path: Path, name: str) -> None:
    text, folder = made(tmp_path)
    (tmp_path / "victim.jsonl").write_text("mine\n")
    (folder / "shards.jsonl").unlink()
    reseal(folder / "000001.json", COMMITS[name])
    assert output_of(folder, text).commit(1) is None
    run(folder, text)
    assert joined(folder) == whole(tmp_path, text)
    assert (tmp_path / "victim.jsonl").read_text() == "mine\n"


def test_a_commit_of_another_number_is_not_believed(tmp_path: Path) -> None:
    text, folder = made(tmp_path)
    (folder / "shards.jsonl").unlink()
    (folder / "000002.json").write_bytes((folder / "000001.json").read_bytes())
    run(folder, text)
    assert joined(folder) == whole(tmp_path, text)


PLANS: dict[str, Change] = {
    "config": lambda b: b.update(config=[]),
    "inputs": lambda b: b.update(inputs={}),
    "input": lambda b: b.update(inputs=[5]),
    "no path": lambda b: b["inputs"][0].pop("path"),
    "bytes": lambda b: b["inputs"][0].update(bytes="x"),
    "units": lambda b: b["inputs"][0].update(units=None),
    "size": lambda b: b.update(shard_size="64"),
    "no size": lambda b: b.pop("shard_size"),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_that_was_sealed_again_is_refused_and_a_restart_starts_over(
    tmp_path: Path, name: str
) -> None:
    text, folder = made(tmp_path)
    reseal(folder / "plan.json", PLANS[name])
    with pytest.raises(DataError, match=r"plan\.json") as caught:
        run(folder, text)
    # Without its size it is not known for a plan of vg at all.
    assert caught.value.code == (Exit.CANNOT_CREATE if name == "no size" else Exit.DATA)
    if name != "no size":
        run(folder, text, restart=True)
        assert joined(folder) == whole(tmp_path, text)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(
    "files",
    [
        {"plan.json": b'{"mine": 1}'},
        {"plan.json": b"# Plan\n", "000001.json": b"{}"},
        {"000001.json": b"{}", "000002.json": b"{}"},
        {"shards.jsonl": b"{}\n"},
        {"000001-01e787e8.jsonl": b"{}\n"},
        {".plan.txt.swp": b"vim"},
    ],
)
def test_a_folder_of_another_tool_is_left_alone(
    tmp_path: Path, files: dict[str, bytes], restart: bool
) -> None:
    text, folder = tmp_path / "a.txt", tmp_path / "o.jsonl"
    text.write_bytes(TEXT)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    with pytest.raises(DataError, match="choose another -o") as caught:
        run(folder, text, restart=restart)
    assert caught.value.code == Exit.CANNOT_CREATE
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("name", ["o.json", "o.jsonl/plan.json"])
def test_the_names_of_a_folder_are_not_those_of_an_input(
    tmp_path: Path, name: str, restart: bool
) -> None:
    source = tmp_path / name
    source.parent.mkdir(exist_ok=True)
    source.write_bytes(TEXT)
    with pytest.raises(DataError, match="is an input of this command") as caught:
        run(tmp_path / "o.jsonl", source, restart=restart)
    assert caught.value.code == Exit.CANNOT_CREATE
    assert source.read_bytes() == TEXT


def test_an_input_is_known_by_its_content_not_by_its_time(tmp_path: Path) -> None:
    text, folder = tmp_path / "a.txt", tmp_path / "o.jsonl"
    text.write_bytes(TEXT)
    first = run(folder, text)
    os.utime(text, (1, 1))  # the same text, copied or touched
    assert run(folder, text) == first
    (folder / "shards.jsonl").unlink()
    (folder / "000001.json").unlink()
    other = TEXT.replace(b"line 4", b"LINE 4")
    text.write_bytes(other)
    os.utime(text, (1, 1))
    with pytest.raises(DataError, match=r"the input .*a\.txt changed: sha256 was") as caught:
        run(folder, text)
    assert caught.value.code == Exit.CONFIG
    assert not (folder / "000001.json").exists()


def test_the_manifest_of_a_folder_names_the_hashes_of_its_inputs(tmp_path: Path) -> None:
    _, folder = made(tmp_path)
    (entry,) = Shards(folder).manifest["inputs"]
    assert entry["sha256"] == hashlib.sha256(TEXT).hexdigest()
