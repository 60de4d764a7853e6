"""`vg compare` as a process: records, markdown, drawings, weights, exit codes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import save_encoder
from tests.tiny.finetune import save_finetuned
from vgtools.cli import run
from vgtools.io.errors import Exit

from ..conftest import vg_command

Runner = Callable[..., "subprocess.CompletedProcess[bytes]"]
GOLD = [0, 1, 1, 0, 1, 0, 1, 1, 0, 0]
TEXTS = {
    "sst-2": "sentence\tlabel\na dog ran\t1\nno\t0\n",
    "cola": "x\t1\t*\tthe dog\n",
    "rte": None,
}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Two models on three tasks, with the tasks' texts and captions that ground `dog`."""
    rte = "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t0\n"
    for task, text in (TEXTS | {"rte": rte}).items():
        (tmp_path / f"{task}.tsv").write_text(str(text))
    for i, (name, wrong) in enumerate((("mlm", 5), ("vokens", 1))):
        for j, task in enumerate(TEXTS):
            said = {
                s: [1 - x if k < wrong - j * i else x for k, x in enumerate(GOLD)]
                for s in ("1", "2")
            }
            data = {"train": {"file": str(tmp_path / f"{task}.tsv")}}
            save_finetuned(tmp_path / name / task, task, GOLD, said, data=data)
    (tmp_path / "captions.jsonl").write_text(json.dumps({"image": "i", "text": "dog dog"}) + "\n")
    return tmp_path


def records(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_one_record_a_run_and_no_torch(here: Path) -> None:
    code = (
        "import sys; from vgtools.cli import run; print(run(sys.argv[1:]), 'torch' in "
        "sys.modules, file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, "compare", "mlm", "vokens", "--samples", "200", "-q"]
    done = subprocess.run(command, capture_output=True, cwd=here, timeout=60)
    assert done.stderr == b"0 False\n"
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert (first["run"], first["average_of"], second["tasks"]["sst-2"]["mean"]) == (
        "mlm",
        ["sst-2", "cola", "rte"],
        90,
    )
    change = second["tasks"]["sst-2"]["difference"]
    assert change["value"] == pytest.approx(40)
    assert 0 < change["p"] < 0.2


def test_only_the_tasks_that_are_named(vg: Runner, here: Path) -> None:
    some = ("compare", "mlm", "vokens", "--samples", "200", "-q", "--task")
    first, second = records(vg(*some, "SST-2", "--task", "rte", cwd=here))
    assert [*first["tasks"], *second["average_of"]] == ["sst-2", "rte", "sst-2", "rte"]
    done = vg(*some, "wnli", cwd=here)
    assert done.returncode == Exit.NO_INPUT
    assert b"mlm: holds no finished run of vg finetune on wnli" in done.stderr
    done = vg(*some, "mine", cwd=here)  # it could be a task of one's own
    assert done.returncode == Exit.NO_INPUT
    assert b"mlm: holds no finished run of vg finetune on mine" in done.stderr
    done = vg("compare", "mlm/sst-2", "--task", "rte", cwd=here)
    assert done.returncode == Exit.USAGE
    assert b"--task: no run is of 'rte'; they are of sst-2" in done.stderr


def test_markdown_beside_the_paper_s_table(vg: Runner, here: Path) -> None:
    done = vg(
        "compare", "mlm", "vokens", "--table", "--reported", "4", "--samples", "200", cwd=here
    )
    lines = done.stdout.decode().splitlines()
    assert lines[0] == "| Run | SST-2 | QNLI | QQP | MNLI | CoLA | RTE | Avg. |"
    assert any(line.startswith("| less mlm | +40.0 (p ") for line in lines)
    assert "| MS COCO (reported) | 83.7 | 60.6 | 82.1 | 69.3 | - | - | - |" in lines


def test_a_terminal_gets_the_table(here: Path) -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        vg_command("compare", "mlm", "vokens", "--samples", "200", "--median", "-q"),
        stdout=follower, cwd=here, env=os.environ | {"COLUMNS": "120"},
    )  # fmt: skip
    os.close(follower)
    text = b""
    try:
        while part := os.read(leader, 4096):
            text += part
    except OSError:  # how Linux says that the other end is closed
        pass
    assert process.wait(60) == 0
    assert b"less mlm" in text
    assert b"median \xc2\xb1 standard deviation" in text
    assert b"{" not in text


def test_gain_against_grounding_ratio(vg: Runner, here: Path) -> None:
    args = [
        "compare",
        "mlm",
        "vokens",
        "--grounding",
        "captions.jsonl",
        "--grounded-above",
        "1",
        "--samples",
        "200",
    ]
    *_, gain = records(vg(*args, "--plot", "gain.svg", cwd=here))
    ratios = {p["task"]: p["grounding_ratio"] for p in gain["points"]}
    assert ratios == {"sst-2": 1 / 4, "cola": 1 / 2, "rte": 0}
    assert gain["pearson"].keys() == {"value"}
    assert (here / "gain.svg").read_text().count("<circle") == 4
    (here / "other.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\tdog\tb\t0\n")
    *_, gain = records(vg(*args, "--text", "RTE=other.tsv", cwd=here))
    assert next(p for p in gain["points"] if p["task"] == "rte")["grounding_ratio"] == 1 / 2


def test_png(vg: Runner, here: Path) -> None:
    args = [
        "--grounding",
        "captions.jsonl",
        "--grounded-above",
        "1",
        "--samples",
        "100",
        "--plot",
        "gain.png",
    ]
    done = vg("compare", "mlm", "vokens", *args, cwd=here)
    assert done.returncode == 0, done.stderr
    from PIL import Image

    with Image.open(here / "gain.png") as image:
        assert image.width > 1000
        assert len(image.convert("RGB").getcolors(1 << 20)) > 20


def test_weights_and_noise(
    vg: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any
) -> None:
    save_encoder(tmp_path / "a")
    save_encoder(tmp_path / "b", seed=1)
    far, noise = records(
        vg(
            "compare",
            "weights",
            "a",
            "b",
            "--noise",
            "noisy",
            "--seed",
            "4",
            "--offline",
            cwd=tmp_path,
        )
    )
    assert far["difference"] > 0.1
    assert far["not_shared"] == []
    assert noise["magnitude"] == far["difference"]
    monkeypatch.chdir(tmp_path)  # in this process, which has torch already
    assert run(["compare", "weights", "a", "./noisy"]) == 0
    assert json.loads(capfdbinary.readouterr().out)["difference"] == pytest.approx(
        far["difference"], rel=0.05
    )
    assert run(["compare", "weights", "a", "--noise", "small", "--magnitude", "6.5e-3"]) == 0
    only = json.loads(capfdbinary.readouterr().out)
    assert (only["magnitude"], only["std"]) == (6.5e-3, pytest.approx(8.146e-3, rel=1e-3))


@pytest.mark.parametrize(
    ("args", "code", "why"),
    [
        (["mlm", "nothing"], Exit.NO_INPUT, "nothing: does not exist"),
        (
            ["mlm", "vokens", "--baseline", "x"],
            Exit.USAGE,
            "--baseline must be one of mlm, vokens, got x",
        ),
        (["mlm", "--plot", "x.svg"], Exit.USAGE, "belongs to --grounding"),
        (
            ["mlm", "vokens", "--grounding", "captions.jsonl", "--plot", "x.gif"],
            Exit.USAGE,
            "must end in .svg or .png",
        ),
        (
            ["mlm", "vokens", "--grounding", "captions.jsonl"],
            Exit.DATA,
            "no word but stop words occurs more than 100",
        ),
        (["mlm", "--noise", "x"], Exit.USAGE, "No such option: --noise"),
        (["weights", "mlm"], Exit.USAGE, "needs a second encoder, or --noise DIR with --magnitude"),
        (["weights", "mlm", "x", "--magnitude", "1"], Exit.USAGE, "belongs to --noise"),
        (["weigths", "mlm", "x"], Exit.USAGE, "Did you mean 'weights'?"),
        (
            ["mlm", "--reported", "7"],
            Exit.USAGE,
            "no table '7' of scores; known are vokenization:2, 3, 4, 5, 6",
        ),
    ],
)
def test_mistakes_are_named(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, args: list[str], code: int, why: str
) -> None:
    monkeypatch.chdir(here)
    assert run(["compare", *args]) == code
    assert why in capsys.readouterr().err


def test_a_record_names_what_it_leaves_out(here: Path) -> None:
    (here / "mlm" / "rte" / "run.json").unlink()
    words = vg_command("compare", "mlm", "vokens", "--samples", "200", "-q")
    done = subprocess.run(words, cwd=here, capture_output=True)
    first, second = records(done)
    assert first["left_out"] == [str(Path("mlm") / "rte")]
    assert "left_out" not in second
