"""Work in other processes: the order of the items, errors, and helpers or parents that die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest

from vgtools.io.errors import DataError, Exit
from vgtools.io.helpers import spread

FATAL = 7  # an item that a helper dies of


def square(number: int) -> int:
    # Later items are done sooner, so that an order of completion would be another one.
    time.sleep(0.02 if number % 2 else 0)
    return number * number


def place(number: int) -> int:
    return os.getpid()


def refuse(number: int) -> int:
    if number == FATAL:
        raise DataError("is wrong", "items.jsonl", number, code=Exit.USAGE)
    return number


def die(number: int) -> int:
    if number == FATAL:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def shout(number: int) -> int:
    print("a package prints")
    return number


@pytest.mark.parametrize("helpers", [0, 1, 2, 3])
def test_results_come_in_the_order_of_the_items(helpers: int) -> None:
    assert [*spread(range(40), square, helpers)] == [(n, n * n) for n in range(40)]


def test_the_first_items_are_done_here_and_the_rest_by_helpers() -> None:
    places = [done for _, done in spread(range(20), place, 2)]
    assert places[0] == os.getpid()
    assert os.getpid() not in places[-10:]
    assert {done for _, done in spread(range(3), place, 2)} == {os.getpid()}


def test_an_error_of_a_helper_keeps_its_file_line_and_code() -> None:
    with pytest.raises(DataError, match=r"items\.jsonl:7: is wrong") as caught:
        list(spread(range(20), refuse, 2))
    assert caught.value.code == Exit.USAGE


def test_a_helper_that_dies_ends_the_command() -> None:
    with pytest.raises(DataError, match="a helper process died") as caught:
        list(spread(range(20), die, 2))
    assert caught.value.code == Exit.CANNOT_CONTINUE


def test_what_is_printed_is_no_result() -> None:
    assert [done for _, done in spread(range(12), shout, 2)] == [*range(12)]


def test_items_are_read_only_a_little_ahead() -> None:
    items = count()
    found = spread(items, square, 2)
    for _ in range(10):
        next(found)
    found.close()
    assert next(items) <= 10 + 4


def test_helpers_end_with_a_parent_that_is_killed() -> None:
    code = (
        "import itertools, time; from vgtools.io.helpers import spread\n"
        "from tests.io.test_helpers import place\n"
        "for n, pid in spread(itertools.count(), place, 2):\n"
        "    n > 4 and print(pid, flush=True)\n"
        "    time.sleep(0.01)\n"
    )
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        helpers = {int(parent.stdout.readline()) for _ in range(20)}
        parent.kill()
    assert parent.pid not in helpers
    deadline = time.monotonic() + 20
    while any(map(_is_running, helpers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_is_running, helpers))


def _is_running(pid: int) -> bool:
    """Return whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_stop_of_the_whole_group_is_the_parent_s() -> None:
    code = (
        "import itertools, signal; from vgtools.io.helpers import spread\n"
        "from tests.io.test_helpers import place\n"
        "stopped = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))\n"
        "for n, pid in spread(itertools.count(), place, 2):\n"
        "    n > 4 and print(pid, flush=True)\n"
        "    if stopped and n % 50 == 0: raise SystemExit(75)\n"
    )
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stdout is not None
        for _ in range(20):
            parent.stdout.readline()
        os.killpg(parent.pid, signal.SIGTERM)
        parent.stdout.read()
    assert parent.returncode == 75
