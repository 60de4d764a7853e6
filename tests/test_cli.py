"""How `vg` behaves as a process: exit codes, streams, environments."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vgtools import __version__, cli
from vgtools.io.errors import DataError, Exit

from .conftest import Runner, vg_command


def test_version_and_help(vg: Runner) -> None:
    assert vg("--version").stdout == f"vg {__version__}\n".encode()
    done = vg("--help")
    assert done.returncode == 0
    assert done.stderr == b""
    for name in cli.COMMANDS:
        assert name.encode() in done.stdout
    assert b"..." not in done.stdout.replace(b"[ARGS]...", b""), "a summary is cut"


def test_usage_errors_are_exit_2(vg: Runner) -> None:
    for args in (["vokenise"], ["env", "--no-such-flag"], []):
        done = vg(*args)
        assert done.returncode == 2, args
    assert b"vg: " in vg("env", "--no-such-flag").stderr
    assert vg().stderr.startswith(b"Usage: vg ")
    assert vg("prepare").stderr.startswith(b"Usage: vg prepare ")


def test_env_is_text_or_json(vg: Runner) -> None:
    import json

    facts = json.loads(vg("env", "--json").stdout)
    assert facts["vg"] == __version__
    assert "cpu" in facts["devices"]
    assert facts["packages"]["torch"] in vg("env").stdout.decode()


def test_the_commands_are_listed_in_the_order_of_the_pipeline(vg: Runner) -> None:
    listed = re.findall(
        r"^  ([a-z][a-z-]+)  ", vg("--help").stdout.decode().partition("Commands:")[2], re.MULTILINE
    )
    assert listed == list(cli.COMMANDS)


@pytest.mark.slow
def test_a_closed_pipe_is_141_and_silent() -> None:
    command = " ".join(vg_command("env")) + " | true; echo ${PIPESTATUS[0]}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout in ("141\n", "0\n"), "0 where the pipe's reader outlived the few lines"
    with subprocess.Popen(
        vg_command("env"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as unread:
        assert unread.stdout is not None
        unread.stdout.close()
        assert unread.stderr is not None
        assert unread.stderr.read() == b""
    assert unread.returncode == Exit.PIPE


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (DataError("bad row", "x.jsonl", 3), 65, "vg: x.jsonl:3: bad row\n"),
        (DataError("no \x1b[31mred\x1b[0m", "x"), 65, "vg: x: no \\x1b[31mred\\x1b[0m\n"),
        (MemoryError(), 70, "vg: out of memory"),
        (KeyboardInterrupt(), 130, ""),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
            70,
            "vg: out of memory",
        ),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA"), 70, "vg: out of memory"),
        (RuntimeError("boom"), 1, "vg: internal error: RuntimeError: boom"),
        (OSError(5, "Input/output error", "f"), 74, "vg: f: Input/output error\n"),
    ],
)
def test_what_goes_wrong_is_one_line_and_a_code(
    error: BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(cli, "make_app", lambda _: failing)
    assert cli.run(["env"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(said)
    assert err.count("\n") <= 1


@pytest.mark.slow
def test_bare_environments(tmp_path: Path) -> None:
    """Locale C, no HOME, closed standard streams: the same answer."""
    bare = {"PATH": os.environ["PATH"], "LC_ALL": "C", "LANG": "C"}
    done = subprocess.run(vg_command("--version"), env=bare, capture_output=True, cwd=tmp_path)
    assert done.stdout == f"vg {__version__}\n".encode()
    closed = subprocess.run(
        ["bash", "-c", " ".join(vg_command("env", "--json")) + " <&-"],
        env=bare,
        capture_output=True,
    )
    assert closed.returncode == 0, closed.stderr


@pytest.mark.slow
@pytest.mark.parametrize("args", [["env"], ["--help"], ["--version"], ["env", "--help"]])
def test_data_for_a_closed_or_full_stream_is_not_lost_without_a_word(args: list[str]) -> None:
    for stdout, why in ((">&-", "it is closed"), (">/dev/full", "No space left on device")):
        done = subprocess.run(
            ["bash", "-c", " ".join(vg_command(*args)) + " " + stdout],
            capture_output=True,
            text=True,
        )
        assert done.returncode == Exit.IO
        assert done.stderr.startswith(f"vg: standard output: cannot be written: {why}")
        assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_messages_that_a_full_disk_does_not_take_stop_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A dog. A cat.\n")
    for args, code in ((["prepare", "sentences", "a.txt"], 0), (["stats", "b.txt"], 66)):
        done = subprocess.run(
            ["bash", "-c", " ".join(vg_command(*args)) + " 2> /dev/full"],
            stdout=subprocess.PIPE,
            cwd=tmp_path,
        )
        assert (done.returncode, bool(done.stdout)) == (code, not code)


def test_a_signal_at_the_end_breaks_into_nothing() -> None:
    code = (
        "import atexit, os, signal\nfrom vgtools import cli\n"
        "for number in (signal.SIGTERM, signal.SIGINT):\n"
        "    atexit.register(os.kill, os.getpid(), number)\ncli.main(['--version'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_signal_in_code_whose_errors_python_drops_comes_again() -> None:
    code = (
        "import os, signal, sys, time\nfrom vgtools import cli\n"
        "class Odd:\n    def __del__(self):\n        os.kill(os.getpid(), signal.SIGTERM)\n"
        "def run(argv):\n    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        "    Odd()\n    time.sleep(9)\ncli.run = run\ncli.main([])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (143, "")


def test_warnings_of_libraries_are_for_developers(tmp_path: Path) -> None:
    code = (
        "import sys, warnings\nfrom vgtools import cli\n"
        "cli.run = lambda argv: warnings.warn('odd', RuntimeWarning)\ncli.main([])"
    )
    quiet = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert quiet.stderr == ""
    loud = subprocess.run(
        [sys.executable, "-W", "always", "-c", code], capture_output=True, text=True
    )
    assert "RuntimeWarning: odd" in loud.stderr


def test_a_nul_is_refused_wherever_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["stats", "a\0b.txt"]) == Exit.USAGE
    assert capsys.readouterr().err == "vg: a\\x00b.txt: has a NUL in it, which no name has\n"


def test_a_name_that_no_file_can_have_is_no_fault_of_the_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["finetune", "--list", "sst-2", "x" * 300]) == Exit.USAGE
    assert "File name too long" in capsys.readouterr().err
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    for name in ("x" * 300, str(tmp_path / "loop.txt")):
        assert cli.run(["prepare", "wikitext", name]) == Exit.NO_INPUT
        assert "cannot be read" in capsys.readouterr().err


def test_vg_ends_without_taking_python_apart_but_runs_what_was_registered() -> None:
    """With torch in it that takes seconds, also after a signal; nothing is left to save."""
    code = (
        "import atexit, sys\nfrom vgtools import cli\n"
        "class Heavy:\n    def __del__(self): print('taken apart')\n"
        "heavy = Heavy()\n"
        "atexit.register(print, 'registered')\n"
        "cli.run = lambda argv: print('done') or {result}\ncli.main([])"
    )
    for result, expected in (("75", 75), ("0", 0), ("sys.exit(143)", 143)):
        command = [sys.executable, "-c", code.replace("{result}", result)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (expected, "")
        assert done.stdout == "done\nregistered\n"


def test_a_stop_before_the_command_has_begun_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stopped(argv: list[str]) -> int:
        raise KeyboardInterrupt

    def end(code: int) -> None:
        raise SystemExit(code)

    for name in ("stderr", "unraisablehook"):  # `main` sets them for its process
        monkeypatch.setattr(sys, name, getattr(sys, name))
    monkeypatch.setattr(cli, "run", stopped)
    monkeypatch.setattr(cli, "_end", end)
    with pytest.raises(SystemExit) as stop:
        cli.main(["stats"])
    assert stop.value.code == Exit.INTERRUPTED
