"""The two jobs for Slurm do what they say: each part once, the commands that a cluster needs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.examples import calls, make
from vgtools import cli
from vgtools.io.errors import Exit

HERE = make.ROOT / "examples" / "cluster"
# Slurm's and Ray's own programs, as far as the job looks at what they do. `srun` leaves out its
# options, and becomes the program, as it hands on signals to it.
PROGRAMS = {
    "scontrol": "printf 'node1\\nnode2\\nnode3\\n'",
    "getent": "echo '10.0.0.1  STREAM node1'",
    "openssl": "echo secret",
    # Until as many nodes are up as the job has waited for.
    "sleep": "echo >> $SAID.waits; touch $SAID.ray; "
    "until [ $(wc -l < $SAID.ray) -ge $(wc -l < $SAID.waits) ]; do command -p sleep 0.02; done",
    "srun": 'while [ "${1#-}" != "$1" ]; do [ "$1" != -w ] || shift; shift; done; exec "$@"',
    "ray": 'echo "$RAY_AUTH_MODE $(cat "$RAY_AUTH_TOKEN_PATH") $*" >> "$SAID.ray"',
    "vg": 'echo "$*" >> "$SAID.vg"',
}


def programs(folder: Path, **more: str) -> dict[str, str]:
    """Return an environment with stand-ins for programs; they write what they are asked for."""
    folder.mkdir()
    for name, body in (PROGRAMS | more).items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return make.environment() | {"PATH": path, "SAID": str(folder / "said"), "HOME": str(folder)}


def options(job: str) -> dict[str, str]:
    """Return the options that a job gives to sbatch."""
    lines = (HERE / job).read_text().splitlines()
    found = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH ")]
    return {name: value for name, _, value in (option.partition("=") for option in found)}


def test_tasks_of_the_array_make_its_parts(tmp_path: Path) -> None:
    env = programs(tmp_path / "bin")
    for task in (0, 63):
        command = ["bash", str(HERE / "array.sbatch"), "wiki.txt", "vg.faiss", "vokens.npy/"]
        done = subprocess.run(
            command, env=env | {"SLURM_ARRAY_TASK_ID": str(task)}, capture_output=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    said = (tmp_path / "bin" / "said.vg").read_text().splitlines()
    assert [calls.parse(line.split()).outputs for line in said] == [("vokens.npy",)] * 2
    assert [line.split("--shard ")[1] for line in said] == ["0/64", "63/64"]
    assert options("array.sbatch")["array"] == "0-63"


def test_the_time_limit_is_told_to_the_process_that_can_commit() -> None:
    """Without B: Slurm signals the steps of srun alone, and a batch script has none of its own."""
    assert options("array.sbatch")["signal"] == options("ray.sbatch")["signal"] == "B:TERM@60"


@pytest.mark.slow
def test_two_tasks_complete_the_folder_that_one_process_makes(tmp_path: Path) -> None:
    places = make.Places(tmp_path / "files")
    text, index = places["text"], places["voken_bank"]
    env = programs(tmp_path / "bin", vg=f'exec {sys.executable} -m vgtools "$@" --shard-size 400')
    for task in (1, 0):
        subprocess.run(
            ["bash", str(HERE / "array.sbatch"), text, index, "vokens.jsonl/"],
            cwd=tmp_path,
            env=env | {"SLURM_ARRAY_TASK_ID": str(task), "TASKS": "2"},
            check=True,
        )
    whole = tmp_path / "whole.jsonl"
    assert cli.run(["vokenize", text, "--index", index, "-o", str(whole), "-q"]) == 0
    shards = sorted((tmp_path / "vokens.jsonl").glob("[0-9]*.jsonl"))
    assert len(shards) > 2
    assert b"".join(shard.read_bytes() for shard in shards) == whole.read_bytes()


RAY = ["bash", str(HERE / "ray.sbatch"), "wiki.txt", "vg.faiss", "vokens.npy/"]
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-3]", "SLURM_NNODES": "3"}


def test_the_job_with_ray_starts_a_cluster_and_asks_it(tmp_path: Path) -> None:
    env = programs(tmp_path / "bin")
    done = subprocess.run(RAY, env=env | JOB, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    said = sorted((tmp_path / "bin" / "said.ray").read_text().splitlines())
    assert said == [
        "token secret start --address=10.0.0.1:6379 --block",
        "token secret start --head --port=6379 --disable-usage-stats --block",
    ]
    (line,) = (tmp_path / "bin" / "said.vg").read_text().splitlines()
    assert calls.parse(line.split()).outputs == ("vokens.npy",)
    assert "--ray 10.0.0.1:6379 " in line
    assert not list((tmp_path / "bin" / ".ray").iterdir()), "the token is removed"


@pytest.mark.parametrize("code", [0, Exit.STOPPED, Exit.DATA])
def test_the_job_with_ray_ends_as_vg_does(tmp_path: Path, code: int) -> None:
    env = programs(tmp_path / "bin", vg=f"exit {int(code)}")
    assert subprocess.run(RAY, env=env | JOB, check=False).returncode == code


def test_the_job_with_ray_lets_vg_commit_before_it_ends(tmp_path: Path) -> None:
    waits = "for _ in {1..600}; do command -p sleep 0.1; done"
    commits = f'trap "echo committed > $SAID.vg; exit 75" TERM; touch $SAID.up; {waits}'
    env = programs(tmp_path / "bin", vg=commits)
    process = subprocess.Popen(RAY, env=env | JOB)
    while not (tmp_path / "bin" / "said.up").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 75
    assert (tmp_path / "bin" / "said.vg").read_text() == "committed\n"
    assert not list((tmp_path / "bin" / ".ray").iterdir()), "the token is removed"
