"""What learns to translate: its loss, its batches, what it predicts each epoch and at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.tiny.translation import network, pairs, save_pairs, save_tokenizer, tokenizer
from vgtools.models.encoder import as_encoder
from vgtools.models.seq2seq import GREEDY, Decoding, translate
from vgtools.tasks import translation
from vgtools.tasks.dispatch import encode
from vgtools.tasks.examples import ReadStats
from vgtools.tasks.finetune import Split, collate
from vgtools.tasks.kinds.translate import PairExample
from vgtools.tasks.table import find_task
from vgtools.tasks.translation import TranslationStart, Translator
from vgtools.training.loop import halves

TASK = find_task("translation")
SETTINGS: dict[str, Any] = {
    "dtype": "float32", "max_length": 40, "stride": None, "limit": None, "batch_size": 30,
}  # fmt: skip


def setup(count: int = 7) -> tuple[Translator, Any]:
    tuner = Translator(as_encoder(network(), tokenizer(), "tiny"), "translate").eval()
    rows = enumerate(pairs(count))
    examples = [PairExample(str(i), text, target=target) for i, (text, target) in rows]
    return tuner, encode(TASK, examples, tuner.tokenizer, max_length=40)


@torch.no_grad()
def nats(tuner: Translator, source: list[int], target: list[int], smoothing: float) -> float:
    """Return the loss of one pair in float64, from logits without padding."""
    read = torch.tensor([[1, *target[:-1]]])
    logits = tuner.net(input_ids=torch.tensor([source]), decoder_input_ids=read).logits[0].double()
    each = logits.log_softmax(-1)
    label = -each[torch.arange(len(target)), target].sum()
    return float((1 - smoothing) * label - smoothing * each.mean(-1).sum())


def pair(inputs: Any, unit: int) -> tuple[list[int], list[int]]:
    source = inputs.ids[inputs.starts[unit] : inputs.starts[unit + 1]]
    target = inputs.target_ids[inputs.target_starts[unit] : inputs.target_starts[unit + 1]]
    return source.tolist(), target.tolist()


def test_the_loss_is_a_mean_over_target_tokens() -> None:
    tuner, inputs = setup()
    units = np.array([4, 0, 2])
    batch = collate(inputs, units, tuner.pad, False)
    with torch.no_grad():
        (found,) = tuner(batch).values()
        parts = [tuner(half)["task"] for half in halves(batch)]
    each = [nats(tuner, *pair(inputs, unit), 0.1) for unit in units]
    count = sum(len(pair(inputs, unit)[1]) for unit in units)
    assert float(found) == pytest.approx(sum(each) / count, rel=1e-4)
    assert float(sum(parts)) == pytest.approx(float(found), rel=1e-5)


def test_a_split_is_translated_and_its_nats_are_plain() -> None:
    tuner, inputs = setup()
    rows = enumerate(pairs(7))
    examples: list[Any] = [PairExample(str(i), a, target=b) for i, (a, b) in rows]
    split = Split("", examples, ReadStats(), "", inputs)
    tuner.train()
    for how in (GREEDY, Decoding()):
        found = learner_of("").translate(tuner, split, how)
        sources = [pair(inputs, unit)[0] for unit in range(7)]
        texts = tuner.tokenizer.decode_batch(translate(tuner.net, sources, how, 7))
        assert [row["prediction"] for row in found] == texts
        tuner.eval()
        for unit, row in enumerate(found):
            source, target = pair(inputs, unit)
            assert row["nats"] == pytest.approx(nats(tuner, source, target, 0), rel=1e-4)
            assert (row["tokens"], row["label"]) == (len(target), pairs(7)[unit][1])


def test_steps_are_cut_once_and_drawn_each_epoch() -> None:
    _, inputs = setup(40)
    first, second = (learner_of("").cut(inputs, 3, epoch) for epoch in (0, 1))
    assert {tuple(step) for step in first} == {tuple(step) for step in second}
    assert [tuple(step) for step in first] != [tuple(step) for step in second]
    assert all(inputs.lengths[step].sum() <= 30 for step in first)


def learner_of(bpe: str) -> translation.TranslationLearner:
    settings = SETTINGS | {"shape": "transformer-small"}
    return translation.TranslationLearner(TASK, bpe, settings, torch.device("cpu"))


def test_a_model_begins_from_a_shape_by_its_seed_or_from_another(tmp_path: Path) -> None:
    bpe = str(save_tokenizer(tmp_path / "bpe"))
    start = TranslationStart(bpe, "transformer-small")
    tables = [start.open(seed).model.model.shared.weight for seed in (1, 1, 2)]
    assert torch.equal(tables[0], tables[1])
    assert not torch.equal(tables[0], tables[2])
    learner = learner_of(bpe)
    tuner, encoder = learner.new(1)
    learner.save(tuner, encoder, tmp_path / "model")
    again = TranslationStart(str(tmp_path / "model")).open(2)
    assert torch.equal(again.model.model.shared.weight, tables[0])
    assert again.tokenizer.to_str() == encoder.tokenizer.to_str()


def test_a_test_file_may_lack_translations(tmp_path: Path) -> None:
    save_pairs(tmp_path, 3, 2)
    (tmp_path / "test.jsonl").write_text('{"text": "dog"}\n{"text": "cat", "target": "Katze"}\n')
    learner = learner_of(str(save_tokenizer(tmp_path / "bpe")))
    tuner, encoder = learner.new(0)
    split = learner.read("test", str(tmp_path / "test.jsonl"), tuner, encoder)
    rows = learner.predict(tuner, split)
    assert [sorted(row) for row in rows] == [["id", "prediction"], ["id", "label", "prediction"]]
    dev = learner.read("dev", str(tmp_path / "dev.jsonl"), tuner, encoder)
    assert dev.inputs.lengths.max() < 40
    assert learner.searches
    assert [row["label"] for row in learner.predict_kept(tuner, dev)] == [b for _, b in pairs(2, 1)]
