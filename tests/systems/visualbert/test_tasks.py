"""Heads and batches of VisualBERT's downstream tasks, against transformers' own.

Runs of `vg finetune`.
"""

from __future__ import annotations

import copy
import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.precision import assert_as_exact_as, rounding
from tests.tiny.lm import make_tokenizer
from tests.tiny.tasks import learner_of
from tests.tiny.vtasks import (
    OBJECTS,
    save_grounding,
    save_nlvr2,
    save_pictures,
    save_vcr,
    save_visualbert,
    save_vqa,
)
from vgtools import cli
from vgtools.io.errors import Exit
from vgtools.models.runs import read_run
from vgtools.systems.visualbert import tasks
from vgtools.tasks import finetune as finetuning
from vgtools.tasks.finetune import LOSS, Split
from vgtools.tasks.table import find_task
from vgtools.training.loop import halves

FAST = [
    "--epochs",
    30,
    "--lr",
    1e-2,
    "--batch-size",
    6,
    "--max-length",
    40,
    "--device",
    "cpu",
    "-q",
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a folder for each task, its regions TASK.npy, and `encoder`."""
    folder = tmp_path_factory.mktemp("data")
    save_pictures(folder / "nlvr2.npy", save_nlvr2(folder / "nlvr2"))
    save_pictures(
        folder / "flickr30k-grounding.npy", save_grounding(folder / "flickr30k-grounding")
    )
    save_pictures(folder / "vqa.npy", save_vqa(folder / "vqa"))
    for task in ("vcr-qa", "vcr-qar"):
        scenes = save_vcr(folder / task)
        save_pictures(
            folder / f"{task}.npy", scenes, labels={name: [*OBJECTS, "grid"] for name in scenes}
        )
    save_visualbert(folder / "encoder", folder / "nlvr2.npy")
    save_visualbert(
        folder / "scenes", folder / "vcr-qa.npy", spread=0.3
    )  # learns faster, and minds positions
    return folder


def encoder_of(data: Path, task: str) -> Path:
    return data / ("scenes" if task.startswith("vcr") else "encoder")


def finetune(data: Path, task: str, run: Path, *flags: object) -> int:
    """Run `vg finetune` in this process and return its exit code."""
    words = [
        "finetune",
        task,
        data / task,
        "-e",
        encoder_of(data, task),
        "--regions",
        data / f"{task}.npy",
        "-o",
        run,
    ]
    words += ["--answers", 2] if task == "vqa" else []
    return cli.run([str(a) for a in [*words, *FAST, *flags]])


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def hashes(run: Path) -> dict[str, str]:
    files = sorted(p for p in run.rglob("*") if p.is_file() and p.name != "run.json")
    return {str(p.relative_to(run)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def setup(
    data: Path, task: str, max_length: int = 40, **more: Any
) -> tuple[tasks.VisualTuner, Split, tasks.RegionInput]:
    """Return a network, the dev set and what is seen."""
    more |= {"answers": ("blue", "red", "2 dogs")} if task == "vqa" else {}
    region_input = tasks.open_regions_of(
        str(encoder_of(data, task)), str(data / f"{task}.npy"), **more
    )
    found = find_task(task)
    learner = learner_of(
        tasks.VisualLearner, found, encoder_of(data, task), region_input, max_length=max_length
    )
    tuner, encoder = learner.new(1)
    part = learner.read("dev", str(data / task / found.files["dev"]), tuner, encoder)
    return tuner.eval(), part, region_input


def batch_of(
    tuner: tasks.VisualTuner,
    part: Split,
    region_input: tasks.RegionInput,
    units: list[int] | None = None,
    number: int = 0,
    parts: int = 1,
) -> tasks.RegionTaskBatch:
    learner = learner_of(tasks.VisualLearner, tuner.task, "", region_input)
    chosen = np.arange(len(part.inputs)) if units is None else np.array(units)
    return learner.collate(tuner, part.inputs, chosen, number, parts)


def outputs(
    tuner: tasks.VisualTuner, part: Split, region_input: tasks.RegionInput, size: int
) -> dict[int, Any]:
    """Return the outputs of every unit."""
    build = partial(batch_of, tuner, part, region_input)
    found = finetuning.outputs_of(tuner, part.inputs.lengths, build, size)
    return {int(u): row for units, rows in found for u, row in zip(units, rows, strict=True)}


def in_float64(tuner: tasks.VisualTuner) -> tasks.VisualTuner:
    exact = copy.deepcopy(tuner).double()
    exact.model.project.register_forward_pre_hook(lambda _, regions: regions[0].double())
    return exact


TASKS = ["nlvr2", "vqa", "vcr-qar", "flickr30k-grounding"]


@pytest.mark.parametrize("task", TASKS)
def test_padding_and_halves_change_nothing(data: Path, task: str) -> None:
    tuner, part, region_input = setup(data, task)
    one, many = (outputs(tuner, part, region_input, size) for size in (1, 5))
    assert sorted(one) == list(range(len(part.inputs)))
    batch = batch_of(tuner, part, region_input)
    exact = in_float64(tuner)
    same = outputs(exact, part, region_input, 5)
    for u in one:
        assert_as_exact_as(one[u], many[u], same[u])
    sides = []
    for model in (tuner, exact):
        model(batch)[LOSS].backward()
        sides.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    tuner.zero_grad()
    parts = [q for h in halves(batch) for q in halves(h)]
    total = torch.stack([tuner(q)[LOSS] for q in parts]).sum()
    total.backward()
    assert len(parts) == 4
    assert total.item() == pytest.approx(tuner(batch)[LOSS].item(), rel=1e-5)
    found = [p.grad for p in tuner.parameters() if p.grad is not None]
    for gradients in zip(found, *sides, strict=True):
        if gradients[0].shape == (1,):
            # The bias that all choices share cancels in their softmax. What is found is the
            # rounding of probabilities that sum to 1.
            assert max(abs(g.item()) for g in gradients) <= rounding(torch.float32, 4 * len(one))
            continue
        assert_as_exact_as(*gradients)
    alone = batch_of(tuner, part, region_input, [0])
    assert halves(alone) == (alone,)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_learnt_resumed_and_scored(
    data: Path, tmp_path: Path, task: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run, epochs = tmp_path / "run", 20 if task == "vcr-qar" else 60
    assert finetune(data, task, run, "--epochs", epochs) == 0
    printed = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    info = read_run(run, "finetune")
    scores = info["seeds"]["9595"]
    assert (
        scores["headline"] == printed[-1]["headline"] > 95
    )  # also where the sides of the pictures decide
    assert info["summary"]["headline"]["mean"] == scores["headline"]
    assert finetune(data, task, run, "--epochs", epochs) == 0  # a finished run says what it said
    assert [json.loads(line) for line in capfd.readouterr().out.splitlines()] == printed
    found = find_task(task)
    for gold in ([], ["--gold", str(data / task / found.files["dev"])]):
        saved = str(run / "seed-9595" / "predictions.jsonl")
        assert cli.run(["score", task, saved, *gold]) == 0
        assert json.loads(capfd.readouterr().out) == {"task": task} | scores


@pytest.mark.parametrize("task", TASKS)
def test_a_stopped_run_goes_on_to_the_same_bytes(
    data: Path,
    tmp_path: Path,
    task: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    flags = ["--epochs", 2, "--seeds", 2]
    assert finetune(data, task, tmp_path / "whole", *flags) == 0
    real, asked = tasks.VisualLearner.predict, []

    def ask(learner: Any, tuner: Any, split: Any) -> Any:
        asked.append(split)
        if len(asked) == 3:  # the second seed, after its first epoch
            raise KeyboardInterrupt
        return real(learner, tuner, split)

    monkeypatch.setattr(tasks.VisualLearner, "predict", ask)
    assert finetune(data, task, tmp_path / "run", *flags) != 0
    monkeypatch.undo()
    assert finetune(data, task, tmp_path / "run", *flags) == 0
    assert hashes(tmp_path / "run") == hashes(tmp_path / "whole")


# -------------------------------------------------------------------------------------------- NLVR2


def test_two_pictures_have_two_segments(data: Path) -> None:
    tuner, part, region_input = setup(data, "nlvr2")
    batch = batch_of(tuner, part, region_input, [0, 2])
    assert batch.segments.tolist() == [[0, 0, 1], [0, 0, 1]]
    assert batch.regions.argmax(-1).tolist() == [[1, 0, 2], [2, 0, 1]]  # left, left, right
    few = tasks.open_regions_of(str(data / "encoder"), str(data / "nlvr2.npy"), 1)
    assert batch_of(tuner, part, few, [0, 2]).regions.argmax(-1).tolist() == [
        [1, 2],
        [2, 1],
    ]  # the more confident one


def test_transformers_opens_nlvr2_and_says_the_same(data: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer, VisualBertForVisualReasoning

    assert finetune(data, "nlvr2", tmp_path / "run", "--epochs", 2) == 0
    model = tmp_path / "run" / "seed-9595" / "model"
    theirs, tokenizer = (
        VisualBertForVisualReasoning.from_pretrained(model).eval(),
        AutoTokenizer.from_pretrained(model),
    )
    assert theirs.config.id2label == {0: "False", 1: "True"}
    tuner, part, region_input = setup(data, "nlvr2")
    batch = batch_of(tuner, part, region_input)
    text = tokenizer([e.text for e in part.examples], return_tensors="pt")
    with torch.no_grad():
        logits = theirs(
            **text,
            visual_embeds=batch.regions,
            visual_attention_mask=batch.region_mask.long(),
            visual_token_type_ids=batch.segments,
        ).logits
    said = rows(tmp_path / "run" / "seed-9595" / "predictions.jsonl")
    assert np.abs(logits.numpy() - np.array([row["logits"] for row in said])).max() < 1e-5


# ---------------------------------------------------------------------------------------------- VCR


def test_words_stand_at_the_regions_that_they_name(data: Path) -> None:
    tuner, part, region_input = setup(data, "vcr-qa")
    batch = batch_of(tuner, part, region_input, [1, 2])
    assert batch.alignment is not None
    assert batch.ids.shape == (2, 4, 8)  # [CLS] bam Jessie ? [SEP] dun word [SEP]
    assert batch.types[0, 0].tolist() == [0] * 5 + [1] * 3
    # Rationales name the other person, so that both are seen, the dog is not, and the whole picture
    # is.
    assert batch.regions.argmax(-1).tolist() == [[2, 3, 0], [2, 3, 1]]
    assert batch.segments.tolist() == [[1, 1, 1], [1, 1, 1]]
    assert batch.alignment.tolist() == [[[[-1], [2], [-1]]] * 4, [[[2], [-1], [-1]]] * 4]
    tuner, part, region_input = setup(data, "vcr-qar")
    batch = batch_of(
        tuner, part, region_input, [1]
    )  # [CLS] bam Casey ? dun word [SEP] kin Riley word [SEP]
    assert batch.alignment is not None
    assert batch.alignment.tolist() == [[[[8], [2], [-1]]] * 4]


def test_words_that_are_cut_off_name_nothing(data: Path) -> None:
    tuner, part, region_input = setup(
        data, "vcr-qar", max_length=8
    )  # of 4 + 3 tokens each, 5 fit: bam Casey SEP kin Riley
    batch = batch_of(tuner, part, region_input, [1])
    assert batch.alignment is not None
    assert batch.ids.shape == (1, 4, 8)
    assert batch.alignment.tolist() == [[[[6], [2], [-1]]] * 4]
    tuner, part, region_input = setup(data, "vcr-qar", max_length=5)
    batch = batch_of(tuner, part, region_input, [1])  # bam SEP kin
    assert batch.alignment is not None
    assert (batch.alignment == -1).all()


def test_choices_are_scored_as_transformers_does_it(data: Path, tmp_path: Path) -> None:
    from transformers import VisualBertForMultipleChoice

    tuner, part, region_input = setup(data, "vcr-qar")
    batch = batch_of(tuner, part, region_input)
    assert batch.alignment is not None
    torch.nn.init.normal_(tuner.head.weight)
    tasks.to_task_network(tuner).save_pretrained(tmp_path)
    theirs = VisualBertForMultipleChoice.from_pretrained(tmp_path).eval()

    def wanted(alignment: torch.Tensor) -> Any:
        return theirs(
            input_ids=batch.ids,
            attention_mask=batch.mask.long(),
            token_type_ids=batch.types,
            visual_embeds=batch.regions[:, None].expand(-1, 4, -1, -1).contiguous(),
            visual_attention_mask=batch.region_mask[:, None].expand(-1, 4, -1).contiguous().long(),
            visual_token_type_ids=batch.segments[:, None].expand(-1, 4, -1).contiguous(),
            image_text_alignment=alignment.flatten(0, 1),
            labels=batch.labels,
        )

    found = wanted(batch.alignment)  # no region has two words: their mean is our sum
    exact = in_float64(tuner).outputs(batch)
    assert_as_exact_as(tuner.outputs(batch), found.logits, exact)
    assert tuner(batch)[LOSS].item() == pytest.approx(found.loss.item(), rel=1e-5)
    other = wanted(batch.alignment.flip(2))
    assert (other.logits - found.logits).abs().max() > 1e-3


def test_answer_and_rationale_are_both_right(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for task in ("vcr-qa", "vcr-qar"):
        assert finetune(data, task, tmp_path / task, "--epochs", 1) == 0
    qa, qar = (tmp_path / task / "seed-9595" for task in ("vcr-qa", "vcr-qar"))
    capfd.readouterr()
    names = [
        [r["id"] for r in rows(folder / "predictions.jsonl") if r["prediction"] == r["label"]]
        for folder in (qa, qar)
    ]
    score = [
        "score",
        "vcr-qar",
        str(qar / "predictions.jsonl"),
        "--joint",
        str(qa / "predictions.jsonl"),
    ]
    for gold in ([], ["--gold", str(data / "vcr-qa")]):
        assert cli.run([*score, *gold]) == 0
        found = json.loads(capfd.readouterr().out)
        assert found["q2ar_accuracy"] == 100 * len(set(names[0]) & set(names[1])) / 8
        assert (found["qa_accuracy"], found["accuracy"]) == tuple(
            100 * len(right) / 8 for right in names
        )

    swapped = ["score", "vcr-qar", score[-1], "--joint", score[2]]
    for ending in ([], ["--submission", str(tmp_path / "x.csv")]):
        assert cli.run([*swapped, *ending]) == Exit.DATA
        assert "expected predictions of vcr-qar, got vcr-qa" in capfd.readouterr().err

    tests = [str(folder / "predictions.test.jsonl") for folder in (qar, qa)]
    submission = ["--submission", str(tmp_path / "s.csv")]
    assert cli.run(["score", "vcr-qar", tests[0], "--joint", tests[1], *submission]) == 0
    first, *lines = (tmp_path / "s.csv").read_text().splitlines()
    assert first.split(",")[:6] == [
        "annot_id",
        *(f"answer_{i}" for i in range(4)),
        "rationale_conditioned_on_a0_0",
    ]
    assert first.split(",")[-1] == "rationale_conditioned_on_a3_3"
    assert [line.split(",")[0] for line in lines] == [f"test-{i}" for i in range(8)]
    logits = {
        row["id"]: torch.tensor(row["logits"]).softmax(0).tolist()
        for test in tests
        for row in rows(Path(test))
    }
    wanted = [*logits["test-3"], *(x for i in range(4) for x in logits[f"test-3-a{i}"])]
    assert [float(x) for x in lines[3].split(",")[1:]] == pytest.approx(wanted, rel=1e-4)

    fewer = tmp_path / "fewer.jsonl"
    fewer.write_text("".join((qa / "predictions.jsonl").read_text().splitlines(True)[1:]))
    assert cli.run([*score[:-1], str(fewer)]) == 65
    assert (
        "1 questions are only in one of vcr-qa's and vcr-qar's predictions, the first 'val-0'"
        in capfd.readouterr().err
    )
    assert cli.run([*score[:-1], tests[1], "--submission", str(tmp_path / "t.csv")]) == 65
    assert not (tmp_path / "t.csv").exists()
    assert "40 questions are only in one" in capfd.readouterr().err
    assert cli.run(["score", "vcr-qa", *score[2:]]) == 2
    assert "--joint" in capfd.readouterr().err


def test_regions_that_are_not_the_objects_are_refused(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pictures = save_vcr(tmp_path / "vcr-qa")

    def said(labels: dict[str, list[str]] | None, *flags: object) -> str:
        save_pictures(tmp_path / "x.npy", pictures, labels=labels)
        assert (
            finetune(data, "vcr-qa", tmp_path / "run", "--regions", tmp_path / "x.npy", *flags) != 0
        )
        for file in tmp_path.glob("x.*"):
            file.unlink()
        return capfd.readouterr().err

    text = said({name: ["person", "dog", "grid", "grid"] for name in pictures})
    assert "x.npy start with person, dog, grid, its objects are person, person, dog" in text
    assert "train.jsonl:1" in text
    assert "start with none with a name" in said(None)
    assert "sees the regions that its texts name" in said(None, "--boxes", 3)
    pictures.pop("lsmdc_3015_TINY/val-2@0.jpg")
    text = said({name: [*OBJECTS, "grid"] for name in pictures})
    assert "val.jsonl:3" in text
    assert "no regions of it" in text


# ---------------------------------------------------------------------------------------------- VQA


def test_vqa_is_learnt_as_transformers_learns_it(data: Path) -> None:
    tuner, part, region_input = setup(data, "vqa")
    batch = batch_of(tuner, part, region_input)
    assert batch.labels is not None
    # Nine of ten say it, one says red, which also counts a third.
    assert batch.labels[:2].tolist() == [[0, 1, 0], [0, pytest.approx(1 / 3), 1]]
    assert batch.ids[0].tolist() == [2, tuner_word("bam"), 4, 3]  # [CLS] bam [MASK] [SEP]
    theirs = tasks.to_task_network(tuner)
    assert theirs.config.id2label == {0: "blue", 1: "red", 2: "2 dogs"}
    found = theirs(
        input_ids=batch.ids,
        attention_mask=batch.mask.long(),
        visual_embeds=batch.regions,
        visual_attention_mask=batch.region_mask.long(),
        visual_token_type_ids=batch.segments,
        labels=batch.labels,
    )
    assert tuner(batch)[LOSS].item() == pytest.approx(found.loss.item(), rel=1e-5)
    assert torch.allclose(tuner.outputs(batch).log_softmax(-1), found.logits, atol=1e-5)


def tuner_word(word: str) -> int:
    found = make_tokenizer().token_to_id(word)
    assert found is not None
    return int(found)


def test_the_answers_of_a_file_are_predicted(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "answers.txt").write_text("2 dogs\nred\nyes\n")
    assert (
        finetune(
            data, "vqa", tmp_path / "run", "--epochs", 1, "--answers", tmp_path / "answers.txt"
        )
        == 0
    )
    config = json.loads((tmp_path / "run" / "seed-9595" / "model" / "config.json").read_text())
    assert config["id2label"] == {"0": "2 dogs", "1": "red", "2": "yes"}
    capfd.readouterr()
    assert (
        finetune(data, "vqa", tmp_path / "run", "--epochs", 1) == 78
    )  # other answers: another run
    assert finetune(data, "vqa", tmp_path / "none", "--answers", 99) == 65
    assert "no answer belongs to 99 questions" in capfd.readouterr().err


# --------------------------------------------------------------------------------- phrase grounding


def test_the_attention_is_the_average_of_heads() -> None:
    torch.manual_seed(0)
    block = tasks.PhraseAttention(6, 2)
    text, regions = torch.randn(2, 3, 6), torch.randn(2, 4, 6)
    places, mask = (
        torch.tensor([[1, 2], [0, -1]]),
        torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool(),
    )
    found = block(text, regions, places, mask).exp()
    for row, phrase in ((0, 0), (0, 1), (1, 0)):
        query, key = block.query(text[row, places[row, phrase]]), block.key(regions[row, mask[row]])
        heads = [
            (key[:, part] @ query[part] / 3**0.5).softmax(0) for part in (slice(0, 3), slice(3, 6))
        ]
        assert torch.allclose(found[row, phrase, mask[row]], (heads[0] + heads[1]) / 2, atol=1e-6)
    assert found[1, 0, 2:].sum() == 0


def test_phrases_stand_at_their_last_token_and_share_covering_regions(data: Path) -> None:
    tuner, part, region_input = setup(data, "flickr30k-grounding")
    batch = batch_of(tuner, part, region_input, [0, 3])
    assert batch.places is not None
    assert batch.labels is not None
    assert batch.places.tolist() == [[2, 4], [2, 4]]  # [CLS] w0 w5 w0 w3
    assert batch.labels[0].tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
    assert (len(part.examples), part.stats.unboxed, batch.whole) == (24, 12, 4)
    boxes = np.array([[0.0, 0, 10, 10], [0, 0, 10, 8], [20, 20, 30, 30], [50, 50, 60, 60]])
    assert tasks.gold_shares(
        boxes, np.array([[0.0, 0, 10, 9], [20, 20, 30, 31]])
    ).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
    assert tasks.gold_shares(boxes, np.array([[0.0, 0, 1, 1]])).tolist() == [0, 0, 0, 0]


def test_grounding_leaves_a_visualbert_and_the_block(data: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file
    from transformers import VisualBertModel

    assert finetune(data, "flickr30k-grounding", tmp_path / "run", "--epochs", 1) == 0
    model = tmp_path / "run" / "seed-9595" / "model"
    assert VisualBertModel.from_pretrained(model).config.visual_embedding_dim == 6
    assert sorted(load_file(model / "phrase_attention.safetensors")) == [
        "key.bias",
        "key.weight",
        "query.bias",
        "query.weight",
    ]


# ---------------------------------------------------------------------------------------- bad input


def test_regions_that_do_not_fit_are_refused(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pictures = save_nlvr2(tmp_path / "nlvr2")

    def said(*more: Any, **facts: Any) -> str:
        save_pictures(tmp_path / "x.npy", pictures, **facts)
        words = ("--regions", tmp_path / "x.npy", *more)
        assert finetune(data, "nlvr2", tmp_path / "run", *words) != 0
        for file in tmp_path.glob("x.*"):
            file.unlink()
        assert not (tmp_path / "run").exists()
        return capfd.readouterr().err

    other = {"ref": "other", "fingerprint": "c" * 64, "preprocessing": {"fingerprint": "p" * 64}}
    assert "region features of the backbone other" in said(backbone=other)
    # The encoder of a run is known for its.
    inside = ("-e", Path(encoder_of(data, "nlvr2")) / "encoder")
    assert "region features of the backbone other" in said(*inside, backbone=other)
    assert "regions_width 6, 5 was asked for" in said(width=5)
    pictures.pop("dev/dev-1-0-img1.png")
    text = said()
    assert "dev.json:5" in text
    assert "'dev-1-0-img1'" in text
    assert "no regions of it" in text
    pictures |= {"a/dev-1-0-img1.png": [0], "b/dev-1-0-img1.png": [0]}
    assert "2 images of that name: a/dev-1-0-img1.png, b/dev-1-0-img1.png" in said()


def test_flags_of_pictures(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = [
        "finetune",
        "nlvr2",
        str(data / "nlvr2"),
        "-e",
        str(data / "encoder"),
        "-o",
        str(tmp_path / "run"),
    ]
    assert cli.run(words) == 2
    assert "--regions" in capfd.readouterr().err
    assert cli.run([*words[:1], "sst-2", *words[2:], "--boxes", "3"]) == 2
    assert "sst-2 has none" in capfd.readouterr().err


@pytest.mark.parametrize("task", TASKS)
def test_parts_of_a_step_have_its_loss_and_gradient_as_their_mean(data: Path, task: str) -> None:
    tuner, part, region_input = setup(data, task)
    tuner.eval()
    whole = tuner(batch_of(tuner, part, region_input))[LOSS]
    whole.backward()
    wanted = [p.grad.clone() for p in tuner.parameters() if p.grad is not None]
    tuner.zero_grad()
    losses = [
        tuner(batch_of(tuner, part, region_input, None, number, 3))[LOSS] for number in range(3)
    ]
    mean = torch.stack(losses).mean()
    mean.backward()
    found = [p.grad for p in tuner.parameters() if p.grad is not None]
    torch.testing.assert_close(mean, whole)
    # A gradient is a sum over tokens, each of which is rounded once more or less.
    terms = int(part.inputs.lengths.sum())
    rounding = torch.finfo(torch.float32).eps * terms * max(float(g.abs().max()) for g in wanted)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=rounding)
