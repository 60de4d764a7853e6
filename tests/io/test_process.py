"""Locks, and progress in a log; stopping is tested with `Output` and the commands."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vgtools.io.errors import DataError, Exit
from vgtools.io.own import make_folder
from vgtools.io.process import Lock, Progress, remove_empty


def test_a_lock_holds_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "os.pwrite", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full"))
    )
    lock = Lock(tmp_path / "x")
    with pytest.raises(DataError, match="x: is being written by another process"):
        Lock(tmp_path / "x")
    lock.release()
    Lock(tmp_path / "x").release()


def test_a_full_disk_that_takes_a_part_of_a_lock_leaves_one_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda fd, data, at: write(fd, data[:1], at))
        left = Lock(tmp_path / "x")
        left.leave()  # as by a kill
    assert (tmp_path / "x.lock").read_bytes() == b""
    Lock(tmp_path / "x").release()
    assert not (tmp_path / "x.lock").exists()


def test_a_stop_while_a_lock_is_released_removes_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = Lock(tmp_path / "x")
    unlink = os.unlink

    def stopped(path: Path) -> None:
        monkeypatch.setattr(os, "unlink", unlink)
        sys.exit(Exit.TERMINATED)

    monkeypatch.setattr(os, "unlink", stopped)
    with pytest.raises(SystemExit):
        lock.release()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("error", [MemoryError(), SystemExit(143), RuntimeError("no memory")])
@pytest.mark.parametrize("call", ["pread", "pwrite", "fstat"])
def test_a_lock_that_cannot_be_taken_leaves_no_file(
    call: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = getattr(os, call)

    def fails(*args: object) -> None:
        monkeypatch.setattr(os, call, works)
        raise error

    monkeypatch.setattr(os, call, fails)
    with pytest.raises(type(error)):
        Lock(tmp_path / "x")
    assert os.listdir(tmp_path) == []
    Lock(tmp_path / "x").release()


def test_memory_that_ends_while_a_lock_is_released_removes_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = Lock(tmp_path / "x")
    with monkeypatch.context() as patch:
        unlink = os.unlink

        def fails(path: Path) -> None:
            patch.setattr(os, "unlink", unlink)
            raise MemoryError

        patch.setattr(os, "unlink", fails)
        with pytest.raises(MemoryError):
            lock.release()
    assert os.listdir(tmp_path) == []


def test_a_lock_that_a_killed_owner_left_stays_with_what_it_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = b'process 1 on elsewhere\n["x.part"]\n'
    (tmp_path / "x.lock").write_bytes(left)
    works = os.pread

    def fails(*_: object) -> None:
        monkeypatch.setattr(os, "pread", works)
        raise MemoryError

    monkeypatch.setattr(os, "pread", fails)
    with pytest.raises(MemoryError):
        Lock(tmp_path / "x")
    assert (tmp_path / "x.lock").read_bytes() == left
    lock = Lock(tmp_path / "x")
    assert lock.was_left
    assert lock.names == {"x.part"}
    lock.release()


def test_progress_in_a_log_file_is_one_line_per_minute(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = [0.0]
    with Progress("vokenize", "tokens", total=400, clock=lambda: now[0]) as progress:
        for _ in range(8):
            now[0] += 20
            progress.advance(50)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "vg vokenize: 150 of 400 tokens, 2.5 tokens/s, 2 min left",
        "vg vokenize: 300 of 400 tokens, 2.5 tokens/s, 40 s left",
    ]


def test_an_unknown_total_is_estimated_from_what_is_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = [0.0]
    share = [0.0]
    with Progress(
        "stats",
        "tokens",
        growth=lambda: 1 / share[0] if share[0] else None,
        clock=lambda: now[0],
    ) as progress:
        for read in (0.0, 0.0301, 1.0):
            share[0] = read
            now[0] += 60
            progress.advance(1000)
    assert capsys.readouterr().err.splitlines() == [
        "vg stats: 1,000 tokens, 17 tokens/s",
        "vg stats: 2,000 of about 66,000 tokens, 17 tokens/s, 64 min left",
        "vg stats: 3,000 of about 3,000 tokens, 17 tokens/s, 0 s left",
    ]


def test_a_slow_rate_keeps_two_digits() -> None:
    now = [0.0]
    progress = Progress("pretrain", "steps", clock=lambda: now[0])
    rates = []
    for seconds, done in ((100, 36), (100, 999), (100, 123_456)):
        progress.done, now[0] = done, seconds
        rates.append(progress._rate(now[0]))
    assert rates == ["0.36 steps/s", "10 steps/s", "1,235 steps/s"]


def test_a_lock_is_the_same_through_every_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "link").symlink_to(run)
    monkeypatch.chdir(run)
    lock = Lock(run)
    for name in ("../link", ".", f"{run}/", "../run/../link"):
        with pytest.raises(DataError, match="is being written by process") as caught:
            Lock(name)
        assert caught.value.code == Exit.STOPPED
    lock.release()
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".lock")] == []


@pytest.mark.parametrize("plant", ["link", "dangling", "hard", "folder", "pipe"])
def test_a_lock_file_that_is_not_ours_is_refused_and_left_alone(tmp_path: Path, plant: str) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("mine\n")
    path = tmp_path / "x.lock"
    if plant == "link":
        path.symlink_to(outside)
    elif plant == "dangling":
        path.symlink_to(tmp_path / "nowhere")
    elif plant == "hard":
        os.link(outside, path)
    elif plant == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(DataError, match=r"x\.lock: is a link or another kind of file") as caught:
        Lock(tmp_path / "x")
    assert caught.value.code == Exit.CANNOT_CREATE
    assert outside.read_text() == "mine\n"
    assert not (tmp_path / "nowhere").exists()


def test_a_file_of_the_user_that_has_the_name_of_a_lock_is_refused_and_left_alone(
    tmp_path: Path,
) -> None:
    path = tmp_path / "poetry.lock"
    path.write_text('[[package]]\nname = "numpy"\n')
    with pytest.raises(DataError, match=r"poetry\.lock: exists, and vg does not know it") as caught:
        Lock(tmp_path / "poetry")
    assert caught.value.code == Exit.CANNOT_CREATE
    assert path.read_text() == '[[package]]\nname = "numpy"\n'


def test_a_lock_that_a_killed_owner_left_says_what_it_had_begun(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "x")
    lock.note("x.part", "y.part")
    left = lock.path.read_bytes()
    lock.release()
    (tmp_path / "x.lock").write_bytes(left)
    again = Lock(tmp_path / "x")
    assert again.was_left
    assert again.names == {"x.part", "y.part"}
    again.release()
    assert not Lock(tmp_path / "x").was_left


@pytest.mark.parametrize("call", ["pwrite", "truncate"])
def test_a_kill_while_a_lock_is_taken_leaves_the_names_of_its_former_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    left = b'process 123456789012 on a-host-with-a-longer-name\n["x.part","y.part"]\n'
    (tmp_path / "x.lock").write_bytes(left)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, call, killed)
        Lock(tmp_path / "x")
    again = Lock(tmp_path / "x")
    assert again.names == {"x.part", "y.part"}
    again.release()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_stop_that_meets_no_boundary_unwinds_by_itself(number: int, code: int) -> None:
    script = (
        "import os, sys, time\n"
        "from vgtools.io.process import Stop\n"
        "with Stop(patience=0.1):\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    try:\n"
        "        while True: time.sleep(0.01)\n"
        "    finally:\n"
        "        print('unwound')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (code, b"unwound\n")
    assert b"run the same command again to resume" in done.stderr


def test_an_empty_folder_stays_while_another_command_is_about_to_write_there(
    tmp_path: Path,
) -> None:
    for name in ("alone", "written", "shared"):
        make_folder(tmp_path / name)
    (tmp_path / "written/file").touch()
    with Lock(tmp_path / "shared"):
        remove_empty()
        assert sorted(os.listdir(tmp_path)) == ["shared", "shared.lock", "written"]
