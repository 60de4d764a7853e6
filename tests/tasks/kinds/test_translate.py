"""Translations: pairs as tokens, the loss of smoothed labels, BLEU from counts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sacrebleu.metrics import BLEU, CHRF

from tests.tiny.examples import fails, read
from tests.tiny.translation import tokenizer
from vgtools.io.errors import DataError
from vgtools.tasks import metrics
from vgtools.tasks.dispatch import encode, gather, majority, predictions, score_predictions
from vgtools.tasks.finetune import collate
from vgtools.tasks.kinds import translate
from vgtools.tasks.kinds.translate import PairExample, PairInputs
from vgtools.tasks.table import find_task

TASK = find_task("translation")
ROWS = '{"text": "a dog", "target": "ein Hund"}\n{"id": "x", "text": "", "target": "leer"}\n'


def test_rows_are_pairs(tmp_path: Path) -> None:
    found, stats = read("translation", tmp_path, ROWS, name="train.jsonl")
    assert [(e.id, e.text, translate.gold(TASK, e)) for e in found] == [
        ("0", "a dog", "ein Hund"),
        ("x", "", "leer"),
    ]
    assert list(stats.report()) == ["2 examples"]
    bare = '{"text": "a dog"}\n'
    assert (
        translate.gold(
            TASK, read("translation", tmp_path, bare, "data.jsonl", unlabelled=True)[0][0]
        )
        is None
    )
    fails(
        "translation",
        tmp_path,
        ROWS + bare,
        'the key "target" is missing',
        line=3,
        name="data.jsonl",
    )
    fails(
        "translation",
        tmp_path,
        '{"text": "a", "target": 3}\n',
        '"target" must be',
        line=1,
        name="data.jsonl",
    )
    fails(
        "translation",
        tmp_path,
        '{"target": "a"}\n',
        'the key "text" is missing',
        line=1,
        name="data.jsonl",
    )
    fails("translation", tmp_path, "", "holds no examples", "text, target", name="data.jsonl")


def pairs(*texts: tuple[str, str | None]) -> list[PairExample]:
    return [PairExample(str(i), text, target=target) for i, (text, target) in enumerate(texts)]


def tokenised(*texts: tuple[str, str | None], most: int = 20) -> PairInputs:
    found = encode(TASK, pairs(*texts), tokenizer(), max_length=most)
    assert isinstance(found, PairInputs)
    return found


def test_a_batch_holds_sources_and_translations() -> None:
    inputs = tokenised(("dog runs.", "läuft Hund."), ("cat", ""), ("red", "rot rot rot"))
    ids = tokenizer().encode
    batch = collate(inputs, np.array([2, 0]), 0, False)
    width = len(ids("dog runs.").ids)
    padded = [*ids("red").ids, *[0] * width][:width]
    assert batch.ids.tolist() == [padded, ids("dog runs.").ids]
    assert batch.mask.sum(1).tolist() == [len(ids("red").ids), width]
    said, real = ids("rot rot rot").ids, ids("läuft Hund.").ids
    longest = max(len(said), len(real))
    assert batch.labels is not None
    assert batch.labels.tolist() == [[*row, *[-100] * (longest - len(row))] for row in (said, real)]
    assert batch.whole == len(said) + len(real)
    assert collate(inputs, np.array([2, 0]), 0, False, part=1, parts=2).whole == batch.whole / 2
    assert inputs.targets(np.array([1])) is not None
    assert tokenised(("dog", None)).targets(np.array([0])) is None
    cut = tokenised(("dog cat red runs", "Hund"), ("dog", "Hund Katze rot"), most=4)
    assert cut.cut == 2
    assert list(cut.report(4)) == ["2 examples are longer than 4 tokens and are cut"]
    assert cut.lengths.max() == 4


def test_the_loss_of_smoothed_labels() -> None:
    """Worked by hand: 0.9 of the label and 0.025 of each of 4 entries, minus log probabilities."""
    logits = torch.tensor([[[2.0, 0, 0, -1], [9, 9, 9, 9]], [[2, 0, 0, -1], [0, 0, 0, 0]]])
    labels = torch.tensor([[0, -100], [0, 1]])
    one = translate.loss(logits[:1, :1], SimpleNamespace(labels=labels[:1, :1]))
    assert float(one) == pytest.approx(0.4529783696, abs=1e-6)
    both = translate.loss(logits, SimpleNamespace(labels=labels))
    assert float(both) == pytest.approx(2 * 0.4529783696 + np.log(4), abs=1e-5)


SAID = [
    "the cat sat on the mat .", "a dog runs", "", "red", "he said : \"no way\" , didn't he ?",
    "the the the the", "3,5 % of 1.000",
]  # fmt: skip
REAL = [
    "the cat is on the mat .", "a dog runs fast in the park", "a", "red", 'he said "no" .',
    "the cat", "3.5 % of 1,000 people",
]  # fmt: skip


@pytest.mark.parametrize("items", [range(7), [0], [1], [2], [3], [2, 3], [5, 1, 1]])
def test_bleu_is_that_of_sacrebleu(items: list[int]) -> None:
    said = [SAID[i] for i in items]
    real = [REAL[i] for i in items]
    expected = BLEU().corpus_score(said, [real]).score
    counts = translate.bleu_counts(said, real)
    assert 100 * float(translate.bleu(counts.sum(0))) == pytest.approx(expected, abs=1e-9)


def test_bleu_worked_by_hand() -> None:
    """6 of 7 words, 3 of 6 pairs, 1 of 5 triples, 0 of 4: exp smoothing counts half a hit."""
    counts = translate.bleu_counts(["a b c d e f g"], ["a b c x e f y g"])
    assert counts.tolist() == [[7, 8, 6, 3, 1, 0, 7, 6, 5, 4]]
    product = 6 / 7 * 3 / 6 * 1 / 5 * 0.5 / 4
    wanted = np.exp(1 - 8 / 7) * product**0.25
    assert float(translate.bleu(counts[0])) == pytest.approx(wanted, abs=1e-12)


def test_scores_of_rows() -> None:
    examples = pairs(*zip(["s"] * 7, REAL, strict=True))
    outputs = [(text, 2.0 * i, i + 1) for i, text in enumerate(SAID)]
    inputs = encode(TASK, examples, tokenizer(), max_length=40)
    rows = predictions(TASK, examples, inputs, outputs)
    assert rows[1] == {
        "id": "1", "prediction": SAID[1], "label": REAL[1], "nats": 2.0, "tokens": 2,
    }  # fmt: skip
    scores = score_predictions(TASK, rows)
    assert scores == {
        "bleu": pytest.approx(BLEU().corpus_score(SAID, [REAL]).score),
        "chrf": pytest.approx(CHRF().corpus_score(SAID, [REAL]).score),
        "perplexity": pytest.approx(np.exp(42 / 28)),
        "headline": pytest.approx(BLEU().corpus_score(SAID, [REAL]).score),
        "total": 7,
    }
    bare = [{key: row[key] for key in ("id", "prediction", "label")} for row in rows]
    assert "perplexity" not in score_predictions(TASK, bare)
    for key in ("nats", "tokens"):
        with pytest.raises(DataError, match=f"\"{key}\" of the id '1' must be 0 or more, got -1"):
            score_predictions(TASK, [rows[0], rows[1] | {key: -1}])
    unknown = predictions(TASK, pairs(("s", None)), inputs, [("x", 0.0, 0)])
    assert unknown == [{"id": "0", "prediction": "x"}]
    with pytest.raises(DataError, match='"prediction" must be a string'):
        score_predictions(TASK, [{"id": "0", "prediction": 3, "label": "a"}])
    assert majority(TASK, examples, examples) is None
    assert translate.signature().startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_the_bootstrap_draws_sentences_and_sums_their_counts() -> None:
    """Against sacrebleu on every drawn corpus."""
    items = gather(TASK, rows_of(SAID))
    others = gather(TASK, rows_of(SAID[::-1]))
    found = metrics.paired_bootstrap(
        items.statistic,
        items.gold,
        items.predicted[None],
        others.predicted[None],
        samples=20,
        seed=3,
    )
    drawn = np.random.default_rng(3).integers(7, size=(20, 7))
    differences = []
    for chosen in drawn:
        real = [REAL[i] for i in chosen]
        a, b = ([texts[i] for i in chosen] for texts in (SAID, SAID[::-1]))
        scores = [BLEU().corpus_score(said, [real]).score for said in (a, b)]
        differences.append((scores[1] - scores[0]) / 100)
    # Few sentences have wider deviations, each by a root of its own.
    wider = np.sqrt(7 / 6 * 7 / 3 / np.random.default_rng([3, 2]).chisquare(7 / 3, 20))
    apart = (np.array(differences) - found.value) * wider
    low, high = found.value + np.quantile(apart, [0.025, 0.975])
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def rows_of(said: list[str]) -> list[dict[str, str]]:
    texts = zip(said, REAL, strict=True)
    return [{"id": str(i), "prediction": a, "label": b} for i, (a, b) in enumerate(texts)]
