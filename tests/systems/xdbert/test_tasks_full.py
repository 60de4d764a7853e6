"""The full model on tasks: texts in blocks of their own, its batches, a run of `vg finetune`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, CLIPTextModelWithProjection

from tests.tiny import tasks as tiny_tasks
from tests.tiny.runs import refused
from tests.tiny.xdbert import save_xdbert
from vgtools import cli
from vgtools.io.errors import DataError, Exit
from vgtools.models.clip import block_states, load_teacher
from vgtools.models.references import fingerprint
from vgtools.models.runs import read_run
from vgtools.systems.xdbert.model import open_xdbert
from vgtools.systems.xdbert.tasks import FullLearner, FullTuner, texts_of, with_blocks
from vgtools.tasks.dispatch import encode, read_examples, read_predictions
from vgtools.tasks.examples import Example
from vgtools.tasks.table import find_task

FAST = ["--batch-size", "8", "--max-length", "40", "--device", "cpu", "-q"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_xdbert(tmp_path_factory.mktemp("full"))


LEARNER = tiny_tasks.learner_of(FullLearner, "rte", "")

PAIRS = [
    Example("0", "bam den", "fur the", 0),
    Example("1", "kit", "gem lis bam", 1),
    Example("2", "den den den " * 12, "bam", 1),
]


def test_the_texts_of_a_pair_share_no_block(run: Path) -> None:
    """36 words of three letters are 108 tokens of the tiny tower: cut at 75, and counted."""
    teacher = load_teacher(str(run / "teacher"))
    tokenizer = open_xdbert(str(run)).student.tokenizer
    text = encode(find_task("rte"), PAIRS, tokenizer, max_length=40, segments=True)
    inputs = with_blocks(text, PAIRS, teacher, 40)
    encode_one = teacher.tokenizer.encode
    assert [block.tolist() for block in inputs.blocks(1)] == [
        encode_one("kit").ids,
        encode_one("gem lis bam").ids,
    ]
    assert [len(block) for block in inputs.blocks(2)] == [77, 5]
    assert list(inputs.report(40)) == ["the teacher reads 75 tokens of a text: 1 are cut"]
    wide = with_blocks(text, PAIRS, teacher, 128)
    assert [len(block) for block in wide.blocks(2)] == [77, 35, 5]
    assert list(wide.report(40)) == []


def test_texts_of_an_example() -> None:
    assert texts_of(Example("0", "a")) == [("a",)]
    assert texts_of(Example("0", "a", "b")) == [("a", "b")]
    assert texts_of(Example("0", "a", choices=("x", "y"))) == [("a", "x"), ("a", "y")]


def test_outputs_are_those_of_each_unit_alone(run: Path) -> None:
    opened = open_xdbert(str(run))
    teacher = load_teacher(str(run / "teacher"))
    task = find_task("rte")
    text = encode(task, PAIRS, opened.student.tokenizer, max_length=40, segments=True)
    inputs = with_blocks(text, PAIRS, teacher, 40)
    torch.manual_seed(0)
    tuner = FullTuner(opened, task).double().eval()
    with torch.no_grad():
        whole = tuner.outputs(LEARNER.collate(tuner, inputs, np.arange(3)))
        for unit in range(3):
            ids = torch.from_numpy(text.ids[text.starts[unit] : text.starts[unit + 1]])[None].long()
            after = torch.arange(ids.shape[1]) >= text.second[unit]
            states = tuner.student(ids, token_type_ids=after.long()[None]).last_hidden_state
            parts = [torch.from_numpy(b)[None, None] for b in inputs.blocks(unit)]
            seen = torch.cat(
                [block_states(tuner.teacher, b, torch.tensor([[b.shape[2]]]))[0] for b in parts], 1
            )
            mask = torch.ones(ids.shape, dtype=torch.bool)
            ones = torch.ones(seen.shape[:2], dtype=torch.bool)
            out, _ = tuner.cross(states, mask, seen, ones)
            alone = tuner.head(torch.tanh(tuner.cross.pooler(out[:, 0])))
            assert whole[unit].tolist() == pytest.approx(alone[0].tolist(), abs=1e-6)


def test_choices_are_read_one_by_one(run: Path) -> None:
    opened = open_xdbert(str(run))
    teacher = load_teacher(str(run / "teacher"))
    task = find_task("codah")
    words = ("bam", "den fur", "kit", "gem gem gem")
    examples = [Example("0", "lis", None, 2, words), Example("1", "fur", None, 0, words[::-1])]
    text = encode(task, examples, opened.student.tokenizer, max_length=40, segments=True)
    inputs = with_blocks(text, examples, teacher, 40)
    tuner = FullTuner(opened, task).eval()
    batch = LEARNER.collate(tuner, inputs, np.arange(2))
    assert batch.ids.shape[:2] == batch.blocks.shape[:2] == batch.lengths.shape[:2] == (2, 4)
    with torch.no_grad():
        both = tuner.outputs(batch)
        second = tuner.outputs(LEARNER.collate(tuner, inputs, np.array([1])))
    assert both.shape == (2, 4)
    assert both[1].tolist() == pytest.approx(second[0].tolist(), abs=1e-5)


def test_tasks_with_an_answer_per_token_are_refused(run: Path) -> None:
    opened = open_xdbert(str(run))
    for name in ("squad-1.1", "vuan"):
        with pytest.raises(DataError, match="learns classes, scores and choices") as error:
            FullTuner(opened, find_task(name))
        assert error.value.code == Exit.CONFIG


@pytest.mark.parametrize(
    ("task", "save"),
    [("sst-2", tiny_tasks.save_sst2), ("sts-b", tiny_tasks.save_stsb), ("codah", None)],
)
def test_finetune_full(run: Path, tmp_path: Path, task: str, save: object) -> None:
    (save or tiny_tasks.save_codah)(tmp_path / task)  # type: ignore[operator]
    args = ["finetune", task, tmp_path / task, "-e", run, "--full", *FAST, "--lr", "1e-3"]
    assert cli.run([str(a) for a in [*args, "--epochs", 2, "-o", tmp_path / "out"]]) == 0
    info = read_run(tmp_path / "out", "finetune")
    assert info["config"]["full"] is True
    assert info["encoder"]["fingerprint"] == read_run(run)["fingerprint"]
    (seed,) = info["seeds"]
    model = tmp_path / "out" / f"seed-{seed}" / "model"
    names = ["encoder", "run.json", "teacher", "xdbert.safetensors"]
    assert sorted(p.name for p in model.iterdir()) == names
    start = open_xdbert(str(run))
    for folder, before in (("encoder", start.student.model), ("teacher", start.teacher.model)):
        kind = AutoModel if folder == "encoder" else CLIPTextModelWithProjection
        after = kind.from_pretrained(model / folder).state_dict()
        assert any(not torch.equal(after[n], w) for n, w in before.state_dict().items()), folder
    cross = load_file(model / "xdbert.safetensors")
    assert not torch.equal(cross["cross.pooler.weight"], start.cross.pooler.weight)


def test_a_full_model_is_opened_like_its_run(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its saved weights give its predictions; it is an encoder, is probed, and learns on."""
    data = tiny_tasks.save_sst2(tmp_path / "sst-2")
    args = ["finetune", "sst-2", data, *FAST, "--epochs", 1, "--lr", "1e-3"]

    def tune(*flags: object) -> int:
        return cli.run([str(a) for a in [*args, *flags]])

    assert tune("-e", run, "--full", "-o", tmp_path / "one") == 0
    model = tmp_path / "one" / "seed-9595" / "model"
    info = read_run(model, "xdbert")
    assert (info["task"], info["xdbert"]) == ("sst-2", {"cross_layers": 2})
    capfd.readouterr()

    opened = open_xdbert(str(model))
    task = find_task("sst-2")
    tuner = FullTuner(opened, task).eval()
    tuner.head.load_state_dict({n: opened.run.weights[f"head.{n}"] for n in ("weight", "bias")})
    examples = list(read_examples("sst-2", str(data / "dev.tsv")))
    text = encode(task, examples, opened.student.tokenizer, max_length=40, segments=True)
    inputs = with_blocks(text, examples, opened.teacher, 40)
    with torch.no_grad():
        logits = tuner.outputs(LEARNER.collate(tuner, inputs, np.arange(len(examples))))
    rows = read_predictions(task, str(tmp_path / "one" / "seed-9595" / "predictions.jsonl"))
    saved = [row["logits"] for row in rows]
    np.testing.assert_allclose(logits.numpy(), saved, rtol=1e-4, atol=1e-5)

    assert tune("-e", model, "--full", "-o", tmp_path / "two") == 0
    assert tune("-e", model, "-o", tmp_path / "student") == 0
    started = read_run(tmp_path / "two")["encoder"]["fingerprint"]
    assert started == info["fingerprint"] != read_run(run)["fingerprint"]
    bare = fingerprint(AutoModel.from_pretrained(model / "encoder"))
    assert read_run(tmp_path / "student")["encoder"]["fingerprint"] == bare
    probe = ["probe-attention", "cross", str(tmp_path / "t.txt"), "-q", "-e", str(model)]
    (tmp_path / "t.txt").write_text("bam den\nfur kit lis\n")
    capfd.readouterr()
    assert cli.run(probe) == 0
    assert len(capfd.readouterr().out.splitlines()) > 0

    (model / "teacher" / "model.safetensors").write_bytes(b"damaged")
    assert tune("-e", model, "--full", "-o", tmp_path / "three") == Exit.DATA
    refused(capfd, "teacher/model.safetensors", "is damaged or from another run")


def test_full_is_for_runs_of_xdbert(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tiny_tasks.save_sst2(tmp_path / "sst-2")
    args = ["finetune", "sst-2", str(tmp_path / "sst-2"), "--full", *FAST, "-o"]
    args += [str(tmp_path / "out"), "-e"]
    assert cli.run([*args, str(run / "encoder")]) == Exit.USAGE
    refused(capfd, "--full", "is not a run of vg pretrain xdbert")
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "teacher")
    assert cli.run([*args, str(tmp_path / "run")]) == Exit.NO_INPUT
    refused(capfd, "teacher/", "is missing")
    file = tmp_path / "run" / "run.json"
    body = json.loads(file.read_text())
    file.write_text(json.dumps(body | {"kind": "grounding"}))
    assert cli.run([*args, str(tmp_path / "run")]) == Exit.DATA
    refused(capfd, "was edited or damaged")
