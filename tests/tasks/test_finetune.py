"""Heads, losses, batches and predictions of fine-tuning, against transformers' own."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.precision import assert_as_exact_as
from tests.tiny import save_encoder
from tests.tiny.lm import SHAPE, make_tokenizer
from tests.tiny.tasks import NO, YES, learner_of, sentences
from vgtools.io.errors import DataError
from vgtools.models.encoder import as_encoder, load_encoder
from vgtools.models.masked_lm import new_lm
from vgtools.models.runs import save_run
from vgtools.tasks import dispatch, finetune
from vgtools.tasks.dispatch import encode
from vgtools.tasks.examples import Answer, Example, ReadStats, VisualExample
from vgtools.tasks.finetune import Learner
from vgtools.tasks.sequences import TaskInputs
from vgtools.tasks.table import find_task
from vgtools.training.loop import TrainConfig, halves, train
from vgtools.training.steps import steps_by_length


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("encoder") / "bert", positions=64)


def examples(kind: str, count: int = 8) -> list[Example]:
    found = []
    for i, (text, label) in enumerate(sentences(count)):
        if kind == "choice":
            endings = [NO] * 4
            endings[i % 4] = YES
            found.append(Example(str(i), text, None, i % 4, tuple(endings)))
        elif kind == "span":
            context = text.replace(NO, YES) + " fen"
            start = context.index(YES) + len(YES) + 1
            found.append(
                Example(str(i), YES, context, answers=(Answer(context[start:].split()[0], start),))
            )
        elif kind == "regress":
            found.append(Example(str(i), text, NO, 5.0 * label))
        else:
            found.append(Example(str(i), text, None, label))
    return found


TASKS = {"classify": "sst-2", "regress": "sts-b", "span": "squad-1.1", "choice": "codah"}


def setup(
    encoder: Path, kind: str, count: int = 8, seed: int = 0
) -> tuple[finetune.FineTuner, TaskInputs]:
    task = find_task(TASKS[kind])
    tuner, loaded = learner_of(Learner, task, encoder).new(seed)
    return tuner, encode(
        task, examples(kind, count), loaded.tokenizer, max_length=40, stride=20, learn=True
    )


def batch_of(
    tuner: finetune.FineTuner, inputs: TaskInputs, units: Any = None
) -> finetune.TaskBatch:
    return finetune.collate(
        inputs,
        np.arange(len(inputs)) if units is None else np.array(units),
        tuner.pad,
        tuner.segments,
    )


@pytest.mark.parametrize("kind", TASKS)
def test_the_loss_is_transformers_own(encoder: Path, kind: str) -> None:
    tuner, inputs = setup(encoder, kind)
    tuner.eval()
    same = np.flatnonzero(
        inputs.lengths == inputs.lengths.max()
    )  # there a padded token can be the answer
    batch = batch_of(tuner, inputs, same if kind == "span" else None)
    assert batch.labels is not None
    ends = {"start_positions": batch.labels[..., 0], "end_positions": batch.labels[..., -1]}
    labels = ends if kind == "span" else {"labels": batch.labels}
    wanted = tuner.net(
        input_ids=batch.ids, attention_mask=batch.mask, token_type_ids=batch.segments, **labels
    )
    assert tuner(batch)[finetune.LOSS].item() == pytest.approx(wanted.loss.item(), rel=1e-5)


def test_a_batch_is_what_the_tokenizer_pads(encoder: Path) -> None:
    tuner, loaded = learner_of(Learner, "sts-b", encoder).new(0)
    found = examples("regress")
    inputs = encode(find_task("sts-b"), found, loaded.tokenizer, max_length=40)
    batch = finetune.collate(inputs, np.array([5, 0, 3]), tuner.pad, tuner.segments)
    loaded.tokenizer.enable_padding()
    wanted = loaded.tokenizer.encode_batch(
        [(found[i].text, found[i].pair or "") for i in (5, 0, 3)]
    )
    assert batch.segments is not None
    assert batch.labels is not None
    assert batch.ids.tolist() == [w.ids for w in wanted]
    assert batch.mask.tolist() == [w.attention_mask for w in wanted]
    assert batch.segments.tolist() == [w.type_ids for w in wanted]
    assert batch.labels.tolist() == [found[i].label for i in (5, 0, 3)]


@pytest.mark.parametrize("kind", TASKS)
def test_padding_and_halves_change_nothing(encoder: Path, kind: str) -> None:
    tuner, inputs = setup(encoder, kind)
    tuner.eval()
    exact = copy.deepcopy(tuner).double()
    assert_as_exact_as(
        finetune.predict(tuner, inputs, 1),
        finetune.predict(tuner, inputs, 8),
        finetune.predict(exact, inputs, 8),
    )
    batch = batch_of(tuner, inputs)
    sides = []
    for model in (tuner, exact):
        model(batch)[finetune.LOSS].backward()
        sides.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    tuner.zero_grad()
    pair = halves(batch)
    quarters = [q for half in pair for q in halves(half)]
    assert [len(q.ids) for q in quarters] == [2] * 4
    total = 0.0
    for part in quarters:
        loss = tuner(part)[finetune.LOSS]
        loss.backward()
        total += loss.item()
    assert total == pytest.approx(tuner(batch)[finetune.LOSS].item(), rel=1e-5)
    found = [p.grad for p in tuner.parameters() if p.grad is not None]
    for gradients in zip(found, *sides, strict=True):
        assert_as_exact_as(*gradients)
    one = finetune.collate(inputs, np.array([3]), tuner.pad, tuner.segments)
    assert halves(one) == (one,)


@pytest.mark.parametrize("kind", TASKS)
def test_parts_of_a_step_have_its_loss_and_gradient_as_their_mean(encoder: Path, kind: str) -> None:
    tuner, inputs = setup(encoder, kind)
    tuner.eval()
    units = np.arange(len(inputs))
    whole = tuner(finetune.collate(inputs, units, tuner.pad, tuner.segments))[finetune.LOSS]
    whole.backward()
    wanted = [p.grad.clone() for p in tuner.parameters() if p.grad is not None]
    tuner.zero_grad()
    parts = [
        finetune.collate(inputs, units, tuner.pad, tuner.segments, "cpu", i, 3) for i in range(3)
    ]
    assert sorted(len(part.ids) for part in parts) == [2, 3, 3]
    mean = torch.stack([tuner(part)[finetune.LOSS] for part in parts]).mean()
    mean.backward()
    found = [p.grad for p in tuner.parameters() if p.grad is not None]
    torch.testing.assert_close(mean, whole)
    # A gradient is a sum over tokens, each of which is rounded once more or less.
    terms = int(inputs.lengths.sum())
    rounding = torch.finfo(torch.float32).eps * terms * max(float(g.abs().max()) for g in wanted)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=rounding)


@pytest.mark.parametrize("kind", TASKS)
def test_eight_examples_are_learnt(encoder: Path, kind: str) -> None:
    tuner, inputs = setup(encoder, kind)
    config = TrainConfig(epochs=100, steps=100, lr=1e-2, schedule="linear", clip=1.0, log_every=100)
    batch = batch_of(tuner, inputs)
    for module in tuner.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # with it, one seed in three does not learn all eight
    tuner.eval()
    before = tuner(batch)[finetune.LOSS].item()
    list(train(tuner, lambda epoch, first: [batch][first:], config, weights={finetune.LOSS: 1.0}))
    tuner.eval()
    after = tuner(batch)[finetune.LOSS].item()
    assert before > 0.5
    assert after < 0.2
    rows = dispatch.predictions(
        find_task(TASKS[kind]), examples(kind), inputs, finetune.predict(tuner, inputs, 3)
    )
    scores = dispatch.score_predictions(TASKS[kind], rows)
    assert scores["headline"] > 90


def test_the_seed_draws_the_head_and_the_encoder_stays(encoder: Path, tmp_path: Path) -> None:
    task = find_task("rte")
    one, loaded = learner_of(Learner, task, encoder).new(1)
    again, two = (
        learner_of(Learner, task, encoder).new(1)[0],
        learner_of(Learner, task, encoder).new(2)[0],
    )
    assert torch.equal(one.net.classifier.weight, again.net.classifier.weight)
    assert not torch.allclose(one.net.classifier.weight, two.net.classifier.weight)
    assert loaded.fingerprint == load_encoder(str(encoder)).fingerprint
    assert one.net.config.id2label == {0: "entailment", 1: "not_entailment"}
    # A head that is there already is none of ours: drawn anew, whether it fits or not.
    with torch.no_grad():
        one.net.classifier.weight.fill_(9.0)
    one.net.save_pretrained(tmp_path / "tuned")
    loaded.tokenizer.save(str(tmp_path / "tuned" / "tokenizer.json"))
    for name in ("rte", "mnli", "squad-1.1"):
        fresh = [learner_of(Learner, name, tmp_path / "tuned").new(s)[0].net for s in (1, 1, 5)]
        heads = [
            net.qa_outputs.weight if name == "squad-1.1" else net.classifier.weight for net in fresh
        ]
        assert torch.equal(heads[0], heads[1])
        assert not torch.allclose(heads[0], heads[2])
        assert heads[0].abs().max() < 4 * one.net.config.initializer_range
        own, other = fresh[0].base_model.state_dict(), one.net.base_model.state_dict()
        assert all(torch.equal(t, other[n]) for n, t in own.items())


def test_a_pretrained_run_gives_its_encoder_and_no_voken_head(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    lm = as_encoder(new_lm(SHAPE, tokenizer), tokenizer, "new")
    save_run(
        tmp_path / "run", "voken_lm", {"heads.voken_cls.decoder.weight": torch.zeros(3, 16)}, {}, lm
    )
    tuner, loaded = learner_of(Learner, "mrpc", tmp_path / "run").new(0)
    assert loaded.fingerprint == lm.fingerprint
    assert not any("voken" in name or "predictions" in name for name in tuner.state_dict())
    wanted = lm.model.bert.state_dict()
    assert all(
        torch.equal(tuner.net.bert.state_dict()[name], tensor) for name, tensor in wanted.items()
    )


@pytest.mark.parametrize("kind", ["roberta", "distilbert"])
def test_other_architectures(tmp_path: Path, kind: str) -> None:
    save_encoder(tmp_path / "e", kind, positions=64)
    for name in TASKS:
        tuner, inputs = setup(tmp_path / "e", name)
        assert tuner.segments == (kind == "roberta")  # as its configuration says
        tuner(batch_of(tuner, inputs))[finetune.LOSS].backward()


def test_an_encoder_that_lacks_weights_is_refused(encoder: Path, tmp_path: Path) -> None:
    shutil.copytree(encoder, tmp_path / "e")
    config = json.loads((tmp_path / "e" / "config.json").read_text())
    (tmp_path / "e" / "config.json").write_text(json.dumps(config | {"intermediate_size": 48}))
    with pytest.raises(DataError, match="weights of its architecture"):
        learner_of(Learner, "rte", tmp_path / "e").new(0)


def test_predicting_halves_its_batch_when_memory_is_short(
    encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner, inputs = setup(encoder, "classify")
    wanted, real, sizes = (
        finetune.predict(tuner, inputs, 8),
        finetune.FineTuner.outputs,
        list[int](),
    )
    exact = finetune.predict(copy.deepcopy(tuner).double(), inputs, 8)

    def short(self: finetune.FineTuner, batch: finetune.TaskBatch) -> torch.Tensor:
        sizes.append(len(batch.ids))
        if len(batch.ids) > 3:
            raise MemoryError
        return real(self, batch)

    monkeypatch.setattr(finetune.FineTuner, "outputs", short)
    assert_as_exact_as(finetune.predict(tuner, inputs, 8), wanted, exact)
    assert sizes == [8, 4, 2, 2, 2, 2]
    monkeypatch.setattr(
        finetune.FineTuner, "outputs", lambda *_: (_ for _ in ()).throw(MemoryError())
    )
    with pytest.raises(DataError, match="out of memory with one sequence"):
        finetune.predict(tuner, inputs, 8)


def test_outputs_that_are_no_numbers_stop(encoder: Path) -> None:
    tuner, inputs = setup(encoder, "classify")
    with torch.no_grad():
        tuner.net.classifier.weight.fill_(float("nan"))
    with pytest.raises(DataError, match="no longer numbers") as error:
        finetune.predict(tuner, inputs, 8)
    assert error.value.code == 70


def test_bfloat16_computes_nearly_the_same_in_float32_weights(encoder: Path) -> None:
    task = find_task("sst-2")
    tuner, loaded = learner_of(Learner, task, encoder, dtype="bfloat16").new(0)
    inputs = encode(task, examples("classify"), loaded.tokenizer, max_length=40)
    low, full = (
        finetune.predict(tuner, inputs, 8),
        finetune.predict(finetune.FineTuner(tuner.net, "classify"), inputs, 8),
    )
    assert 0 < np.abs(low - full).max() < 0.1 * np.abs(full).max()
    assert next(tuner.parameters()).dtype == torch.float32


def test_batches_go_on_where_they_stopped_and_end_with_the_steps(encoder: Path) -> None:
    tuner, inputs = setup(encoder, "classify", count=10)
    learner = learner_of(Learner, "sst-2", encoder, batch_size=3, window=2)
    batches = finetune.make_batches(
        partial(learner.cut, inputs, 5),
        lambda units: finetune.collate(inputs, units, tuner.pad, tuner.segments),
        6,
    )
    ids = [[b.ids.tolist() for b in batches(epoch, 0)] for epoch in (0, 1, 2)]
    assert [len(found) for found in ids] == [4, 2, 0]  # 6 steps of 4 an epoch
    assert [b.ids.tolist() for b in batches(0, 3)] == ids[0][3:]
    units = steps_by_length(inputs.lengths, 3, 5, 0, 2)
    assert [b.shape[1] for b in map(np.array, ids[0])] == [inputs.lengths[u].max() for u in units]


def test_the_most_frequent_class_of_training_is_scored() -> None:
    learnt = [Example(str(i), "", label=label) for i, label in enumerate((1, 1, 0))]
    asked = [Example(str(i), "", label=label) for i, label in enumerate((1, 0, 0, 0))]
    assert dispatch.majority(find_task("sst-2"), learnt, asked) == {
        "accuracy": 25.0,
        "headline": 25.0,
        "total": 4,
    }
    assert dispatch.majority(find_task("sts-b"), learnt, asked) is None
    spans = [
        Example("0", "", "c", answers=(Answer("c", 0),)),
        Example("1", "", "c", is_impossible=True),
    ]
    found = dispatch.majority(find_task("squad-2.0"), spans, spans)
    assert found is not None
    assert (found["exact"], found["NoAns_f1"]) == (50.0, 100.0)


def test_the_mean_of_training_is_scored_where_errors_count() -> None:
    learnt = [Example(str(i), "", label=label) for i, label in enumerate((-1.0, 0.0, 2.5))]
    asked = [Example(str(i), "", label=label) for i, label in enumerate((0.5, 1.5))]
    found = dispatch.majority(find_task("commonlit"), learnt, asked)
    assert found == pytest.approx({"rmse": 0.5**0.5, "headline": 0.5**0.5, "total": 2})


def test_seeds_are_summed_up() -> None:
    found = finetune.summarise(
        {
            "1": {"a": 1.0, "total": 3, "total_test": 3},
            "2": {"a": 4.0, "total": 3},
            "3": {"a": 4.0, "total": 3},
        }
    )
    assert found == {
        "a": {"median": 4.0, "mean": 3.0, "std": pytest.approx(3**0.5), "min": 1.0, "max": 4.0}
    }
    assert finetune.summarise({"1": {"a": 1.0}})["a"]["std"] == 0.0


def test_a_split_s_hash_is_of_its_examples_in_any_order() -> None:
    class Nothing(list[int]):
        ids = ()
        cut = unlearnable = 0

    def sha256(*examples: Example) -> object:
        return finetune.Split("x", list(examples), ReadStats(), "", Nothing()).facts()["sha256"]

    one, two = Example("0", "a bam", label=1), VisualExample("1", "bet", images=("x",), line=2)
    assert sha256(one, two) == sha256(replace(two, line=1), one)
    others = (replace(one, text="a bet"), replace(one, label=0), replace(one, pair=""))
    assert len({sha256(one, two), *(sha256(other, two) for other in others)}) == 4
