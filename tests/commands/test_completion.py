"""What a shell is told: tasks, models of packages, runs; the colon at which bash breaks words."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vgtools.cli import run
from vgtools.commands import completion
from vgtools.models.references import BUILTIN
from vgtools.systems.vokenization.emoji import NAME
from vgtools.tasks.table import TASKS
from vgtools.text import parses, word_vectors


@pytest.fixture
def complete(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., list[str]]:
    """Return what bash is told for words, of which the last is completed."""
    for name, finished in (("a", True), ("b", True), ("c", False)):
        (tmp_path / "runs" / name).mkdir(parents=True)
        if finished:
            (tmp_path / "runs" / name / "run.json").touch()
    monkeypatch.chdir(tmp_path)

    def ask(line: str, at: int | None = None) -> list[str]:
        words = line.split()
        monkeypatch.setenv(completion.SHELL, "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1 if at is None else at))
        with pytest.raises(SystemExit) as end:
            run([])
        assert end.value.code == 0
        return capfd.readouterr().out.split()

    return ask


def test_tasks_runs_and_models_are_completed(complete: Callable[..., list[str]]) -> None:
    tasks = [task.name for task in TASKS if task.name.startswith("s")]
    assert len(tasks) > 4
    assert complete("vg finetune s") == sorted(tasks)
    assert complete("vg score st") == ["sts-b"]
    assert complete("vg finetune sst-2 data -e runs/") == ["runs/a", "runs/b"]
    assert complete("vg compare runs/a runs/b") == ["runs/b"]
    assert complete("vg compare r", 2) == ["runs"], "a sub-command; folders are the shell's"
    assert complete("vg pretrain l") == ["lm"]
    assert complete("vg pretrain --ste") == ["--steps"]
    assert complete("vg pretrain lm --ste") == ["--steps"]
    assert complete("vg vok") == ["vokenize"]
    assert complete("vg vokenize t --index b") == ["builtin:emoji"]
    assert complete("vg vokenize t --index ", 4) == [], "files of the user come first"


def test_words_that_bash_broke_at_a_colon_are_joined(complete: Callable[..., list[str]]) -> None:
    lites = [f"efficientnet-lite{i}" for i in range(3)]
    assert complete("vg extract-image-feats d -b builtin : eff") == lites
    assert complete("vg vokenize t --index builtin :") == ["emoji"]
    assert complete("vg vokenize t --index builtin : emoji --matcher builtin : em") == ["emoji"]
    assert complete("vg vokenize t --index builtin : emoji --lev", 7) == ["--level"]


def test_every_model_of_a_package_is_known() -> None:
    known = {f"builtin:{name}" for name in BUILTIN} | {NAME}
    assert {*completion._BUILTINS} == known | {*parses.BUILTIN} | {*word_vectors.BUILTIN}


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.slow
def test_an_interactive_bash_completes(tmp_path: Path) -> None:
    script = tmp_path / "bin" / "vg"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m vgtools "$@"\n')
    script.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{script.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "TERM": "dumb",
        "PS1": "$ ",
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    show = [str(script), "--show-completion", "bash"]
    shown = subprocess.run(show, env=environment, capture_output=True, text=True, check=True)
    (tmp_path / "completion.sh").write_text(shown.stdout)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment)
    said = ""

    def until(expected: str) -> None:
        nonlocal said
        end = time.monotonic() + 60
        while expected not in said:
            assert time.monotonic() < end, said
            if select.select([terminal], [], [], 1)[0]:
                said += os.read(terminal, 4096).decode()
        said = said.partition(expected)[2]

    try:
        until("$ ")
        os.write(terminal, b"source completion.sh; echo re''ady\n")
        until("ready")
        os.write(terminal, b"vg vokenize t --index builtin:e\t")
        until("builtin:emoji ")
        os.write(terminal, b"--matcher b\t")
        until("--matcher builtin:emoji ")
        os.write(terminal, b"\x15vg finetune sst\t")
        until("sst-2 ")
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
