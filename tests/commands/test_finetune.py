"""`vg finetune` as its users run it: scores, predictions and models of every kind, resumed to the
bit, bad input by line.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import Runner
from tests.tiny import save_encoder
from tests.tiny import tasks as tiny_tasks
from vgtools import cli
from vgtools.batch import cluster
from vgtools.io.process import Lock
from vgtools.models.runs import open_run, read_run
from vgtools.tasks.dispatch import read_examples
from vgtools.tasks.finetune import FineTuner, FineTuning, fingerprint, save_pretrained
from vgtools.tasks.table import TASKS, find_task
from vgtools.training import session

FAST = ["--epochs", 2, "--lr", 3e-3, "--batch-size", 8, "--max-length", 40, "--device", "cpu", "-q"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `encoder` and one folder for each of some tasks."""
    folder = tmp_path_factory.mktemp("data")
    save_encoder(folder / "encoder", positions=64)
    tiny_tasks.save_sst2(folder / "sst-2", test=3)
    tiny_tasks.save_stsb(folder / "sts-b")
    tiny_tasks.save_mnli(folder / "mnli")
    tiny_tasks.save_codah(folder / "codah")
    tiny_tasks.save_squad(folder / "squad-1.1", longest=60)
    tiny_tasks.save_squad(folder / "squad-2.0", "2.0")
    return folder


def finetune(data: Path, task: str, run: Path, *flags: object) -> int:
    """Run `vg finetune` in this process and return its exit code."""
    return cli.run(
        [
            str(a)
            for a in [
                "finetune",
                task,
                data / task,
                "-e",
                data / "encoder",
                "-o",
                run,
                *FAST,
                *flags,
            ]
        ]
    )


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def hashes(run: Path) -> dict[str, str]:
    """Return the hashes of everything that a run leaves, but for run.json, which names the command
    line.
    """
    files = sorted(p for p in run.rglob("*") if p.is_file() and p.name != "run.json")
    return {str(p.relative_to(run)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_a_run_of_two_seeds(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert finetune(data, "sst-2", run, "--seeds", 2) == 0
    out = capfd.readouterr()
    printed = [json.loads(line) for line in out.out.splitlines()]
    assert (printed, out.err) == (rows(run / "metrics.jsonl"), "")
    assert [(r["seed"], r["epoch"], r["step"]) for r in printed] == [
        (s, e, 3 * e) for s in (9595, 9596) for e in (1, 2)
    ]
    assert list(printed[0]) == [
        "seed",
        "epoch",
        "step",
        "lr",
        "loss",
        "accuracy",
        "headline",
        "total",
        "best",
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run"]  # no lock stays
    files = ["metrics.jsonl", "run.json", "seed-9595", "seed-9596"]
    assert sorted(p.name for p in run.iterdir()) == files

    info = read_run(run, "finetune")
    assert open_run(run, "finetune").weights == {}
    assert (info["task"], list(info["seeds"])) == ("sst-2", ["9595", "9596"])
    for seed, last in (("9595", printed[1]), ("9596", printed[3])):
        own = rows(run / f"seed-{seed}" / "predictions.jsonl")
        right = 100 * float(np.mean([r["prediction"] == r["label"] for r in own]))
        scores = info["seeds"][seed]
        assert scores == {
            "accuracy": pytest.approx(right),
            "headline": pytest.approx(right),
            "total": 11,
        }
        assert scores["accuracy"] == last["accuracy"]  # the last epoch is kept, as in the paper
        assert len(rows(run / f"seed-{seed}" / "predictions.test.jsonl")) == 3
        assert "label" not in rows(run / f"seed-{seed}" / "predictions.test.jsonl")[0]
    both = [info["seeds"][s]["accuracy"] for s in ("9595", "9596")]
    assert info["summary"]["accuracy"]["mean"] == pytest.approx(np.mean(both))
    assert "best" not in info, "each seed has its own"
    assert info["majority"]["accuracy"] == pytest.approx(100 * 6 / 11)
    assert info["data"]["train"]["balance"] == [["negative", 12, 0.5], ["positive", 12, 0.5]]
    assert (
        hashes(run)["seed-9595/model/model.safetensors"]
        != hashes(run)["seed-9596/model/model.safetensors"]
    )


def test_a_folder_that_cannot_be_made_ends_it_before_anything_is_loaded(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lost = tmp_path / "no encoder"  # would end in 66
    assert finetune(data, "sst-2", tmp_path / "runs" / "sst-2", "-e", lost) == 73
    assert f"{tmp_path / 'runs'} does not exist; create it first" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("task", ["sst-2", "sts-b", "mnli", "codah", "squad-1.1", "squad-2.0"])
def test_transformers_opens_the_model_and_says_the_same(
    data: Path, tmp_path: Path, task: str
) -> None:
    from transformers import (
        AutoModelForMultipleChoice,
        AutoModelForQuestionAnswering,
        AutoModelForSequenceClassification,
        AutoTokenizer,
    )

    run = tmp_path / "run"
    assert finetune(data, task, run) == 0
    own = find_task(task)
    heads = {"span": AutoModelForQuestionAnswering, "choice": AutoModelForMultipleChoice}
    model = (
        heads.get(own.kind, AutoModelForSequenceClassification)
        .from_pretrained(run / "seed-9595" / "model")
        .eval()
    )
    tokenizer = AutoTokenizer.from_pretrained(run / "seed-9595" / "model")
    if own.kind == "classify":
        assert list(model.config.id2label.values()) == list(own.labels)
    said = {row["id"]: row for row in rows(run / "seed-9595" / "predictions.jsonl")}
    for example in list(read_examples(own, data / task / own.files["dev"]))[:5]:
        first = [example.text] * own.choices if own.kind == "choice" else example.text
        second = list(example.choices) if own.kind == "choice" else example.pair
        given = tokenizer(first, second, return_tensors="pt", padding=own.kind == "choice")
        if given["input_ids"].shape[-1] > 40:
            continue  # in windows
        given = {k: v[None] for k, v in given.items()} if own.kind == "choice" else given
        with torch.no_grad():
            found, row = model(**given), said[example.id]
        if own.kind == "span":
            text = row.get("answer", row["prediction"])
            best = max(
                (float(found.start_logits[0, i] + found.end_logits[0, j]), i, j)
                for i in range(3, given["input_ids"].shape[1] - 1)
                for j in range(i, given["input_ids"].shape[1] - 1)
            )
            assert tokenizer.decode(given["input_ids"][0, best[1] : best[2] + 1]) == text
            if task == "squad-2.0":
                none = float(found.start_logits[0, 0] + found.end_logits[0, 0])
                assert row["no_answer"] == pytest.approx(none - best[0], abs=1e-3)
        elif own.kind == "regress":
            assert row["prediction"] == pytest.approx(float(found.logits[0, 0]), abs=1e-4)
        else:
            assert row["logits"] == pytest.approx(found.logits[0].tolist(), abs=1e-4)


def test_mnli_is_scored_on_both_dev_sets(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert finetune(data, "mnli", run) == 0
    scores = read_run(run, "finetune")["seeds"]["9595"]
    own = rows(run / "seed-9595" / "predictions.dev_mismatched.jsonl")
    assert scores["accuracy_mismatched"] == pytest.approx(
        100 * np.mean([r["prediction"] == r["label"] for r in own])
    )
    assert len(own) == scores["total_mismatched"] == 9


@pytest.mark.parametrize("cut", ["finished", "begun"])
def test_seeds_learned_elsewhere_in_any_order_make_the_run_of_one_process(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    """Workers are this process; the driver is killed after the last seed, or in the middle."""

    def learned(make: Any, left: Any, *args: Any, **more: Any) -> Any:
        work = make()
        for seed in reversed(left):
            taken.append(seed)
            yield work(seed)
            if cut == "finished" and killed:
                killed.pop()
                raise KeyboardInterrupt

    def counted(self: Any, batch: Any) -> Any:
        steps.append(1)
        if cut == "begun" and killed and len(steps) == 5 * 3:
            killed.pop()
            raise KeyboardInterrupt
        return real(self, batch)

    taken, steps, killed = list[int](), list[int](), [True]
    real = FineTuner.forward
    flags = ["--seeds", 3, "--epochs", 3, "--keep", "best"]
    assert finetune(data, "sst-2", tmp_path / "whole", *flags) == 0
    monkeypatch.setattr(cluster, "run", learned)
    monkeypatch.setattr(FineTuner, "forward", counted)
    run = tmp_path / "run"
    assert finetune(data, "sst-2", run, *flags, "--ray", "local") == 130
    assert taken == ([9597] if cut == "finished" else [9597, 9596])
    left = {"finished": (), "begun": ("--ray", "local")}[cut]
    assert finetune(data, "sst-2", run, *flags, *left) == 0
    again = 3 if cut == "begun" else 0  # steps of the epoch that was cut
    assert len(steps) == 3 * 3 * 3 + again
    assert hashes(run) == hashes(tmp_path / "whole")
    infos = [read_run(folder, "finetune") for folder in (run, tmp_path / "whole")]
    for info in infos:
        del info["argv"]
    assert infos[0] == infos[1]
    assert list(infos[0]["seeds"]) == list(infos[1]["seeds"])


@pytest.mark.parametrize("steps", [0, 4, 8])
def test_what_one_process_began_is_handed_over(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    steps: int,
) -> None:
    def learned(make: Any, left: Any, *args: Any, **more: Any) -> Any:
        for seed in left:
            with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):  # that of a worker
                made = make()(seed)
            yield made

    real = FineTuner.forward
    calls = [0]

    def interrupted(self: Any, batch: Any) -> Any:
        calls[0] += self.training
        if calls[0] == steps + 1:
            raise KeyboardInterrupt
        return real(self, batch)

    flags = ["--seeds", 2]
    assert finetune(data, "sst-2", tmp_path / "whole", *flags) == 0
    monkeypatch.setattr(cluster, "run", learned)
    monkeypatch.setattr(FineTuner, "forward", interrupted)
    run = tmp_path / "run"
    printed = capfd.readouterr().out
    assert finetune(data, "sst-2", run, *flags) == 130
    capfd.readouterr()
    calls[0] += 1
    before = calls[0]
    assert finetune(data, "sst-2", run, *flags, "--ray", "local") == 0
    assert calls[0] - before == 12 - steps // 3 * 3
    assert capfd.readouterr().out == printed, "each record once"
    assert hashes(run) == hashes(tmp_path / "whole")


@pytest.mark.parametrize("way", ["signal", "kill", "finish", "between"])
def test_resumed_equals_unbroken(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    flags = ["--seeds", 2, "--epochs", 2]
    assert finetune(data, "sst-2", tmp_path / "whole", *flags) == 0
    real, calls, save = FineTuner.forward, [0], save_pretrained

    def interrupted(self: Any, batch: Any) -> Any:
        calls[0] += 1
        if (
            calls[0] == 8
            # the second step of the first seed's second epoch is the fifth; of the second seed the
            # eighth
        ):
            if way == "kill":
                raise KeyboardInterrupt
            signal.raise_signal(signal.SIGTERM)
        return real(self, batch)

    def cut(folder: Path, encoder: Any) -> None:
        if way == "finish":
            raise KeyboardInterrupt
        save(folder, encoder)
        signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        if way in ("signal", "kill"):
            patch.setattr(FineTuner, "forward", interrupted)
            patch.setattr(session, "SAVE_SECONDS", 600 if way == "signal" else -1)
        else:
            patch.setattr("vgtools.tasks.finetune.save_pretrained", cut)
        assert finetune(data, "sst-2", tmp_path / "cut", *flags) == (
            130 if way in ("kill", "finish") else 75
        )
    assert (tmp_path / "cut" / "checkpoint.safetensors").exists()
    assert not (tmp_path / "cut" / "run.json").exists()
    calls[0] = 0
    monkeypatch.setattr(
        FineTuner, "forward", lambda *a: (calls.__setitem__(0, calls[0] + 1), real(*a))[1]
    )
    assert finetune(data, "sst-2", tmp_path / "cut", *flags) == 0
    # what was done is not done again
    assert calls[0] == {"signal": 12 - 8, "kill": 12 - 7, "finish": 6, "between": 6}[way]
    assert hashes(tmp_path / "cut") == hashes(tmp_path / "whole")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cut", "whole"]


def test_a_finished_run_is_left_alone_and_other_settings_are_refused(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert finetune(data, "sst-2", run) == 0
    first, before = capfd.readouterr().out, hashes(run)
    assert finetune(data, "sst-2", run) == 0
    assert (capfd.readouterr().out, hashes(run)) == (first, before)
    assert finetune(data, "sst-2", run, "--warmup", 0.5) == 78
    assert "warmup was 0.1, is now 0.5" in capfd.readouterr().err
    shutil.rmtree(run / "seed-9595" / "model")  # as a kill at the end of a seed leaves it
    assert finetune(data, "sst-2", run, "--seed", 3, "--restart") == 0
    assert sorted(p.name for p in run.iterdir()) == ["metrics.jsonl", "run.json", "seed-3"]


def test_the_best_epoch_is_kept_and_patience_ends_a_seed(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, given = FineTuning._score, iter([1.0, 5.0, 4.0, 3.0, 9.0])
    monkeypatch.setattr(
        FineTuning, "_score", lambda self, split, rows: {"headline": next(given), "total": 1}
    )
    with monkeypatch.context() as patch:
        patch.setattr(
            "vgtools.tasks.finetune.save_pretrained",
            lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()),
        )
        assert (
            finetune(data, "sst-2", tmp_path / "a", "--epochs", 8, "--patience", 2, "--no-test")
            == 130
        )  # at the very end
    found = [(r["epoch"], r["best"]) for r in rows(tmp_path / "a" / "seed-9595" / "metrics.jsonl")]
    assert found == [(1, True), (2, True), (3, False), (4, False)]
    monkeypatch.setattr(FineTuning, "_score", real)
    # Going on takes no further epoch, and the second is what is kept: that of a training which has
    # its schedule.
    assert finetune(data, "sst-2", tmp_path / "a", "--epochs", 8, "--patience", 2, "--no-test") == 0
    assert [r["epoch"] for r in rows(tmp_path / "a" / "metrics.jsonl")] == [1, 2, 3, 4]
    kept: dict[int, str] = {}
    save = session.TrainingRun.end_epoch

    def note(self: Any, model: Any, record: Any, score: float) -> Any:
        kept[record["epoch"]] = fingerprint(model.net)
        return save(self, model, record, score)

    monkeypatch.setattr(session.TrainingRun, "end_epoch", note)
    assert finetune(data, "sst-2", tmp_path / "b", "--epochs", 8, "--no-test") == 0
    assert (tmp_path / "a" / "seed-9595" / "model" / "complete").read_text() == kept[2]
    assert (tmp_path / "b" / "seed-9595" / "model" / "complete").read_text() == kept[8]


def test_each_seed_is_judged_by_itself(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = iter([9.0, 8.0, 9.0, 2.0, 1.0, 2.0])  # two epochs and the end of each seed
    monkeypatch.setattr(
        FineTuning, "_score", lambda self, split, rows: {"headline": next(given), "total": 1}
    )
    assert (
        finetune(data, "sst-2", tmp_path / "run", "--seeds", 2, "--keep", "best", "--no-test") == 0
    )
    assert [r["best"] for r in rows(tmp_path / "run" / "metrics.jsonl")] == [
        True,
        False,
        True,
        False,
    ]


def test_memory_that_runs_out_halves_batches(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    real = FineTuner.forward

    def most(count: int) -> Any:
        def forward(self: Any, batch: Any) -> Any:
            if len(batch.ids) > count:
                raise torch.OutOfMemoryError("out of memory")
            return real(self, batch)

        return forward

    monkeypatch.setattr(FineTuner, "forward", most(4))
    flags = ["finetune", "sst-2", data / "sst-2", "-e", data / "encoder", "--no-test"]
    flags += ["--steps", 4, "--device", "cpu", "--max-length", 40]
    capfd.readouterr()
    assert cli.run([str(a) for a in [*flags, "-o", tmp_path / "run", "--batch-size", 8]]) == 0
    assert read_run(tmp_path / "run", "finetune")["pieces"] == 2
    assert "out of memory: batches are now split into 2" in capfd.readouterr().err
    monkeypatch.setattr(FineTuner, "forward", most(0))
    assert cli.run([str(a) for a in [*flags, "-o", tmp_path / "none", "-q"]]) == 70
    assert "out of memory in step 1" in capfd.readouterr().err


def test_a_loss_that_is_no_number_stops(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert finetune(data, "sts-b", tmp_path / "run", "--lr", 1e18, "--warmup", 0) == 70
    assert "a lower --lr usually helps" in capfd.readouterr().err
    assert not (tmp_path / "run" / "run.json").exists()


# ------------------------------------------------------------------------------------ other ways in


def test_the_tasks_are_listed(vg: Runner) -> None:
    done = vg("finetune", "--list")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["task"] for row in found] == [task.name for task in TASKS]
    sst = next(row for row in found if row["task"] == "sst-2")
    assert (sst["epochs"], sst["learning_rate"], sst["batch_size"], sst["seed"]) == (
        3,
        1e-4,
        32,
        9595,
    )
    assert done.stderr == b""


def test_saved_predictions_are_scored_without_torch(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert finetune(data, "squad-2.0", tmp_path / "run", "--null-threshold", -1) == 0
    file, info = (
        tmp_path / "run" / "seed-9595" / "predictions.jsonl",
        read_run(tmp_path / "run", "finetune"),
    )
    capfd.readouterr()
    for more in ([], ["--gold", str(data / "squad-2.0" / "dev-v2.0.json")]):
        assert cli.run(["score", "squad-2.0", str(file), "--null-threshold", "-1", *more]) == 0
        assert json.loads(capfd.readouterr().out) == {"task": "squad-2.0"} | info["seeds"]["9595"]
    # Every threshold can be tried on the same file.
    assert cli.run(["score", "squad-2.0", str(file), "--null-threshold", "-1000"]) == 0
    assert json.loads(capfd.readouterr().out)["NoAns_exact"] == 100.0
    code = (
        f"import sys; from vgtools.cli import run; run(['score', 'squad-2.0', "
        f"{str(file)!r}]); "
        "print(sorted({'torch', 'transformers', 'tokenizers'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


def test_a_limit_and_other_files(data: Path, tmp_path: Path) -> None:
    own = data / "sst-2"
    flags = [
        "finetune",
        "sst-2",
        "--train",
        own / "dev.tsv",
        "--dev",
        own / "train.tsv",
        "--test",
        own / "dev.tsv",
    ]
    flags += ["-e", data / "encoder", "-o", tmp_path / "run", "--limit", 7, *FAST]
    assert cli.run([str(a) for a in flags]) == 0
    info = read_run(tmp_path / "run", "finetune")
    assert [info["data"][s]["examples"] for s in ("train", "dev", "test")] == [7, 7, 7]
    assert info["config"]["limit"] == 7
    test = rows(
        tmp_path / "run" / "seed-9595" / "predictions.test.jsonl"
    )  # with labels, so it is scored
    assert info["seeds"]["9595"]["accuracy_test"] == pytest.approx(
        100 * np.mean([r["prediction"] == r["label"] for r in test])
    )


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (
            "sentence\tlabel\na\t1\nb\t2\n",
            65,
            r"train\.tsv:3: '2' in \"label\"; expected one of negative",
        ),
        (
            "sentence\tlabel\na\t1\nb\n",
            65,
            r"train\.tsv:3: expected 2 columns \(sentence, label\), got 1",
        ),
        ("text\tlabel\na\t1\n", 65, r"train\.tsv:1: .*expected SST-2 with columns"),
        ("", 65, r"train\.tsv: is empty"),
        (None, 66, r"has no train\.tsv; name the file to train on: --train FILE, or DATA"),
    ],
)
def test_bad_rows_are_named(
    data: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    change: str | None,
    code: int,
    said: str,
) -> None:
    folder = tiny_tasks.save_sst2(tmp_path / "sst-2")
    (folder / "train.tsv").unlink()
    if change is not None:
        (folder / "train.tsv").write_text(change)
    flags = ["finetune", "sst-2", folder, "-e", data / "encoder", "-o", tmp_path / "run", *FAST]
    assert cli.run([str(a) for a in flags]) == code
    out = capfd.readouterr()
    assert out.out == ""
    assert re.search(said, out.err), out.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["sst3", "D"], 2, "unknown task 'sst3'; expected one of cola"),
        ([], 2, "name a task"),
        (["sst-2", "sst-2"], 2, "--encoder"),
        (["sst-2", "sst-2", "-e", "encoder"], 2, "--output"),
        (["sst-2", "sst-2", "-e", "encoder", "-o", "r", "--stride", "3"], 2, "is for SQuAD"),
        (
            ["sst-2", "sst-2", "-e", "encoder", "-o", "r", "--null-threshold", "3"],
            2,
            "is for squad-2.0",
        ),
        (
            ["sst-2", "sst-2", "-e", "encoder", "-o", "r", "--patience", "3", "--keep", "last"],
            2,
            "implies --keep best",
        ),
        (
            ["sst-2", "sst-2", "-e", "encoder", "-o", "r", "--epochs", "3", "--steps", "3"],
            2,
            "cannot be combined",
        ),
        (["sst-2", "nowhere", "-e", "encoder", "-o", "r"], 66, "nowhere: is not a directory"),
        (["sst-2", "sst-2", "-e", "./nowhere", "-o", "r"], 66, "is not a model directory"),
        (
            ["sst-2", "sst-2", "-e", "encoder", "-o", "r"],
            78,
            "at most 64 tokens; lower --max-length (126) to 64",
        ),
    ],
)
def test_wrong_flags_are_refused(
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    flags: list[str],
    code: int,
    said: str,
) -> None:
    monkeypatch.chdir(data)
    assert cli.run(["finetune", *flags]) == code
    assert said in capfd.readouterr().err
    assert not (data / "r").exists()


def test_a_second_writer_and_a_strange_folder_are_refused(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    lock = Lock(tmp_path / "run")
    assert finetune(data, "sst-2", tmp_path / "run") == 75
    assert "is being written by process" in capfd.readouterr().err
    lock.release()
    (tmp_path / "run" / "mine.txt").write_text("kept")
    assert finetune(data, "sst-2", tmp_path / "run", "--restart") == 73
    assert (tmp_path / "run" / "mine.txt").read_text() == "kept"


def test_questions_with_a_lost_answer_are_left_out_and_counted(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_tasks.save_squad(tmp_path / "squad")
    file = folder / "train-v1.1.json"
    body = json.loads(file.read_text())
    body["data"][0]["paragraphs"][0]["qas"][0]["answers"] = [{"text": "nowhere", "answer_start": 0}]
    file.write_text(json.dumps(body))
    args = ["finetune", "squad", folder, "-e", data / "encoder", *(a for a in FAST if a != "-q")]
    assert cli.run([*map(str, [*args, "-o", tmp_path / "r"])]) == 0
    out = capfd.readouterr().err
    assert "1 questions are left out: their answer does not occur in the context" in out
    summary = out[out.index("SQuAD v1.1") :].splitlines()
    assert [re.split(r"  +", line)[0] for line in summary] == [
        "SQuAD v1.1, 1 seed",
        "exact",
        "f1",
        "headline",
    ]
    assert summary[0].split()[-1] == "score"
    assert len(summary[1].split()) == 2  # a single seed has no spread
    assert read_run(tmp_path / "r", "finetune")["data"]["train"]["unlearnable"] == 1
    for article in body["data"]:
        for paragraph in article["paragraphs"]:
            paragraph["qas"] = [
                qa | {"answers": [{"text": "nowhere", "answer_start": 0}]}
                for qa in paragraph["qas"]
            ]
    file.write_text(json.dumps(body))
    assert cli.run([*map(str, [*args, "-o", tmp_path / "s"])]) == 65
    why = "nothing can be learned from it: no answer occurs in its context"
    assert f"{file}: {why}" in capfd.readouterr().err


def test_the_lowest_error_is_kept_of_a_part_that_is_held_out(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tiny_tasks.save_read(tmp_path)
    flags = ["finetune", "commonlit", tmp_path, "-e", data / "encoder", "--hold-out", 0.3, *FAST]
    flags += ["--keep", "best", "--epochs", 3, "-o", tmp_path / "run"]
    errors = iter([0.7, 0.4, 0.6])
    scored = FineTuning._score

    def score(self: Any, split: str, rows: Any) -> Any:
        real = scored(self, split, rows)
        return real | {"headline": next(errors, real["headline"])}

    monkeypatch.setattr(FineTuning, "_score", score)
    assert cli.run([str(a) for a in flags]) == 0
    assert [r["best"] for r in rows(tmp_path / "run" / "metrics.jsonl")] == [True, True, False]
    info = read_run(tmp_path / "run", "finetune")
    own = rows(tmp_path / "run" / "seed-9595" / "predictions.jsonl")
    counts = [info["data"][name]["examples"] for name in ("train", "dev")]
    assert counts == [40 - len(own), len(own)]
    error = np.sqrt(np.mean([(r["prediction"] - r["label"]) ** 2 for r in own]))
    assert info["seeds"]["9595"]["rmse"] == pytest.approx(error)
    held = {r["id"] for r in own}
    targets = [label - 0.5 for _, label in tiny_tasks.sentences(40)]
    learnt = np.array([x for i, x in enumerate(targets) if str(i) not in held])
    mean = np.sqrt(np.mean([(r["label"] - learnt.mean()) ** 2 for r in own]))
    assert info["majority"]["rmse"] == pytest.approx(mean)
    assert info["config"]["hold_out"] == 0.3
    capfd.readouterr()
    flags[-1] = tmp_path / "other"
    assert cli.run([str(a) for a in [*flags, "--dev", tmp_path / "train.csv"]]) == 2
    assert "--hold-out makes a dev set of the training file" in capfd.readouterr().err
    assert cli.run([str(a) for a in [*flags, "--hold-out", 1]]) == 2
    assert "must be between 0 and 1, got 1" in capfd.readouterr().err
    piped = [a if a != tmp_path else "--train=-" for a in flags]
    assert cli.run([str(a) for a in piped]) == 2
    assert "reads the training file twice" in capfd.readouterr().err


def test_without_models_scores_and_predictions_are_the_same(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert finetune(data, "sst-2", tmp_path / "with") == 0
    assert finetune(data, "sst-2", tmp_path / "without", "--no-models") == 0
    kept = {name.removeprefix("seed-9595/") for name in hashes(tmp_path / "without")}
    assert not [name for name in kept if name.startswith("model/")]
    seed = "seed-9595/predictions.jsonl"
    assert hashes(tmp_path / "with")[seed] == hashes(tmp_path / "without")[seed]
    capfd.readouterr()
    assert finetune(data, "sst-2", tmp_path / "without") == 78  # its models are not there
    assert "no_models was true, is now false" in capfd.readouterr().err
