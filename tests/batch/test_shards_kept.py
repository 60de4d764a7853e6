"""A folder of shards keeps what is the user's: edited data, notes, pipes, locks."""

from __future__ import annotations

import errno
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.batch.test_shards import TEXT, Lengths, damages, flip, run
from vgtools.batch import places, shards
from vgtools.io.errors import DataError, Exit

STRANGE = [
    "000000-deadbeef.npy",
    "000042-0badf00d.rows.npy",
    "000042-0badf00d.jsonl",
    "000001-deadbeef.ids",
    "900007.json",
]


@pytest.mark.parametrize("again", [False, True])
def test_a_damaged_shard_that_another_process_sets_aside_first_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    text, folder = tmp_path / "a.txt", tmp_path / "o.jsonl"
    text.write_bytes(TEXT)
    run(folder, text)
    victim = damages(folder)["data"]
    whole = victim.read_bytes()
    flip(victim)
    damaged = victim.read_bytes()
    turn = shards._turn

    def raced(target: str) -> AbstractContextManager[object]:
        if victim.exists() and victim.read_bytes() == damaged:
            victim.rename(f"{victim}.damaged")
            if again:
                victim.write_bytes(whole)
        return turn(target)

    monkeypatch.setattr("vgtools.batch.shards._turn", raced)
    run(folder, text)
    assert victim.read_bytes() == whole
    assert Path(f"{victim}.damaged").read_bytes() == damaged


def test_a_kill_leaves_no_part_of_a_plan_where_files_have_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*names: object) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    class Kill(BaseException):
        pass

    def kill(*names: object) -> None:
        raise Kill

    plan = tmp_path / places.PLAN
    monkeypatch.setattr("vgtools.io.own.link", refuse)
    for step in ("vgtools.io.own.replace", "os.fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(step, kill)
            with pytest.raises(Kill):
                places.create(str(plan), b"first")
        assert not plan.exists()
    places.create(str(plan), b"first")
    places.create(str(plan), b"second")
    assert plan.read_bytes() == b"first"


@pytest.mark.parametrize("longer", [False, True])
@pytest.mark.parametrize("edited", [b"mine\n", b"x"])
@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("name", ["o.jsonl", "o.npy"])
def test_a_shard_that_the_user_edited_is_kept_when_it_is_made_again(
    tmp_path: Path, edited: bytes, longer: bool, complete: bool, restart: bool, name: str
) -> None:
    text, folder = tmp_path / "a.txt", tmp_path / name
    text.write_bytes(TEXT)
    run(folder, text, part=(0, 1) if complete else (0, 2))
    victims = sorted(folder.glob("000002-*"))
    made = [victim.read_bytes() for victim in victims]
    for victim, whole in zip(victims, made, strict=True):
        victim.write_bytes(edited + whole[len(edited) :])
    if longer:
        victims[0].write_bytes(victims[0].read_bytes() + b"y")
    changed = [victim.read_bytes() for victim in victims]
    assert run(folder, text, restart=restart) is not None
    assert [victim.read_bytes() for victim in victims] == made
    kept = [Path(f"{victim}.damaged").read_bytes() for victim in victims]
    assert kept == changed
    assert run(folder, text) == run(folder, text), "nothing else is made again"


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("what", ["data", "commit", "shards.jsonl", "plan.json"])
def test_a_pipe_in_a_folder_of_shards_is_never_waited_for(
    tmp_path: Path, what: str, restart: bool
) -> None:
    text, folder = tmp_path / "a.txt", tmp_path / "o.npy"
    text.write_bytes(TEXT)
    run(folder, text)
    place = {**damages(folder)}.get(what, folder / what)
    place.unlink()
    os.mkfifo(place)
    before = sorted(folder.iterdir())
    if what == "data" and not restart:
        run(folder, text)
        assert place.is_file()
        assert Path(f"{place}.damaged").is_fifo()
    elif what == "commit" and not restart:
        assert run(folder, text) is not None, "of a complete folder the list counts"
    else:
        why = "no plan.json" if what == "plan.json" else "is a pipe|is a link or another kind"
        with pytest.raises(DataError, match=why) as error:
            run(folder, text, restart=restart)
        assert error.value.code in (Exit.DATA, Exit.CANNOT_CREATE)
        assert sorted(folder.iterdir()) == before


def test_a_file_of_the_user_in_the_place_of_a_record_is_not_replaced(tmp_path: Path) -> None:
    text, folder = tmp_path / "a.txt", tmp_path / "o.jsonl"
    text.write_bytes(TEXT)
    run(folder, text, part=(0, 2))
    (folder / "000001.json").write_text("mine")
    with pytest.raises(DataError, match="vg does not know it for its own") as error:
        run(folder, text)
    assert error.value.code == Exit.CANNOT_CREATE
    before = sorted(folder.iterdir())
    with pytest.raises(DataError, match=r"000001\.json: exists, and vg does not know it"):
        run(folder, text, restart=True)
    assert sorted(folder.iterdir()) == before
    assert (folder / "000001.json").read_text() == "mine"
    (folder / "000001.json").unlink()
    run(folder, text, part=(1, 2))
    (folder / "shards.jsonl").write_text("mine")
    with pytest.raises(DataError, match="vg does not know it for its own"):
        run(folder, text)
    assert (folder / "shards.jsonl").read_text() == "mine"


@pytest.mark.parametrize("name", ["o.jsonl", "o.npy"])
@pytest.mark.parametrize("restart", [False, True])
def test_files_of_the_user_with_the_names_of_shards_stay(
    tmp_path: Path, name: str, restart: bool
) -> None:
    text, folder = tmp_path / "a.txt", tmp_path / name
    text.write_bytes(TEXT)
    run(folder, text)
    expected = set(os.listdir(folder))
    other = tmp_path / "b.txt"
    other.write_bytes(TEXT[::-1])
    run(tmp_path / f"other{name}", other)
    late = [file for file in sorted((tmp_path / f"other{name}").iterdir()) if "-" in file.name]
    for file in late:  # second tries are vg's: the names of a group fit their contents
        (folder / file.name).write_bytes(file.read_bytes())
    # A file next to a group has another ending, or is one that the hash does not know.
    first = late[0].name.partition(".")[0]
    mine = [*STRANGE, f"{first}.bak"]
    for strange in mine:
        (folder / strange).write_text("mine")
    shard = sorted(folder.glob("000000-*"))[0]
    copies = [f"{shard.name}.bak", f"{shard.name[:15]}.copy{shard.suffix}"]
    for copied in copies:
        (folder / copied).write_bytes(shard.read_bytes())
    run(folder, text, restart=restart)
    assert set(os.listdir(folder)) == expected | {*mine, *copies}
    assert {(folder / strange).read_text() for strange in mine} == {"mine"}


def test_a_restart_that_was_killed_leaves_shards_that_the_next_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, folder = tmp_path / "a.txt", tmp_path / "o.npy"
    text.write_bytes(TEXT)
    run(folder, text)
    calls = list[str]()
    remove = places.remove

    def killed(path: str, *ours: Any) -> None:
        calls.append(path)
        if len(calls) == 3:
            raise KeyboardInterrupt
        remove(path, *ours)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(places, "remove", killed)
        shards.remove_shards(str(folder))
    shards.remove_shards(str(folder))
    assert os.listdir(folder) == ["plan.json"]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("k", [None, 2])
def test_after_a_restart_that_was_killed_a_note_of_the_user_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, k: int | None, again: bool
) -> None:
    text, folder = tmp_path / "a.txt", tmp_path / "o.npy"
    text.write_bytes(TEXT)
    run(folder, text)
    (folder / "notes").write_text("mine")

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(places, "write", killed)
        run(folder, text, task=Lengths(k=k), restart=True)
    assert sorted(os.listdir(folder)) == ["notes", "plan.json"]
    done = run(folder, text, task=Lengths(k=k), restart=again)
    assert done is not None
    assert done["config"].get("k") == k
    assert (folder / "notes").read_text() == "mine"


@pytest.mark.parametrize("restart", [False, True])
def test_a_lock_of_the_user_is_refused_before_any_work(tmp_path: Path, restart: bool) -> None:
    text, folder = tmp_path / "a.txt", tmp_path / "o.jsonl"
    text.write_bytes(TEXT)
    run(folder, text, part=(0, 2))
    lock = folder / "shards.jsonl.lock"
    lock.write_text("mine")
    before = {file: file.read_bytes() for file in folder.iterdir()}
    task = Lengths()
    with pytest.raises(DataError, match=r"shards\.jsonl\.lock: exists, and vg") as error:
        run(folder, text, task=task, restart=restart)
    assert (error.value.code, task.made) == (Exit.CANNOT_CREATE, 0)
    assert {file: file.read_bytes() for file in folder.iterdir()} == before
    lock.write_text("process 1 on elsewhere\n[]\n")
    assert run(folder, text, restart=restart) is not None
    assert not lock.exists()
