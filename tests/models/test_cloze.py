"""Losses of hidden tokens against the model's own forward, one text and one token at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.tiny import save_encoder
from tests.tiny.hub import masked_lm
from vgtools.io.errors import DataError, Exit
from vgtools.models.cloze import ClozeModel, one_by_one, open_cloze, spaced
from vgtools.models.encoder import load_masked_lm
from vgtools.text.tokens import tokenize, word_spans

TEXTS = ["a dog runs", "", "two cats, a dog", "zyx dog wug"]  # letters of unknown words are tokens


def by_forward(model: ClozeModel, ids: list[int], hidden: set[int], asked: int) -> float:
    """Return the loss of one token by the transformers model itself."""
    text = model.text
    mask = text.tokenizer.token_to_id("[MASK]") or text.tokenizer.token_to_id("<mask>")
    shown = [mask if i in hidden else token for i, token in enumerate(ids)]
    with torch.no_grad():
        row = torch.tensor([[*text.prefix, *shown, *text.suffix]])
        logits = text.model(input_ids=row).logits[0, len(text.prefix) + asked]
    return -float(torch.log_softmax(logits.double(), 0)[ids[asked]])


@pytest.fixture(scope="module", params=["bert", "roberta", "albert", "electra"])
def model(request: Any, tmp_path_factory: Any) -> ClozeModel:
    folder = tmp_path_factory.mktemp(request.param)
    masked_lm(folder, request.param)
    if request.param == "electra":
        from transformers import ElectraForMaskedLM

        torch.manual_seed(0)
        ElectraForMaskedLM.from_pretrained(folder).save_pretrained(folder)
    return open_cloze(str(folder))


def words_of(model: ClozeModel) -> tuple[Any, list[list[tuple[int, int]]]]:
    """Return the tokens of the texts and, for each text, the words of its tokens."""
    tokens = tokenize(model.text.tokenizer, TEXTS)
    spans = [tuple(span) for span in word_spans(TEXTS, tokens.spans, tokens.starts).tolist()]
    return tokens, [spans[a:b] for a, b in zip(tokens.starts, tokens.starts[1:], strict=False)]


def test_a_token_at_a_time(model: ClozeModel) -> None:
    tokens, _ = words_of(model)
    found = model.losses(tokens.ids, one_by_one(tokens.starts))
    expected = [
        by_forward(model, ids, {i}, i)
        for ids in (tokens.row(r)[0].tolist() for r in range(len(TEXTS)))
        for i in range(len(ids))
    ]
    assert found == pytest.approx(expected, abs=1e-4)
    assert np.ptp(found) > 0.1


def test_the_rest_of_a_word_is_hidden_with_a_token(model: ClozeModel) -> None:
    tokens, words = words_of(model)
    ends, expected = [], []
    for row, spans in enumerate(words):
        ids = tokens.row(row)[0].tolist()
        for i, span in enumerate(spans):
            piece = span[1] > span[0]
            same = [j for j in range(i, len(ids)) if j == i or (piece and spans[j] == span)]
            ends.append(int(tokens.starts[row]) + same[-1] + 1)
            expected.append(by_forward(model, ids, set(same), i))
    found = model.losses(tokens.ids, one_by_one(tokens.starts, np.array(ends)))
    assert found == pytest.approx(expected, abs=1e-4)
    alone = model.losses(tokens.ids, one_by_one(tokens.starts))
    assert np.abs(found - alone).max() > 0.01, "no word has several tokens"


@pytest.mark.parametrize("every", [1, 2, 7])
def test_every_word_once(model: ClozeModel, every: int) -> None:
    tokens, words = words_of(model)
    numbers, expected = [], []
    for row, spans in enumerate(words):
        ids = tokens.row(row)[0].tolist()
        order = sorted({span for span in spans if span[1] > span[0]})
        own = [order.index(span) if span in order else -1 for span in spans]
        numbers += own
        for i, number in enumerate(own):
            hidden = {j for j, n in enumerate(own) if n >= 0 and n % every == number % every}
            expected.append(np.nan if number < 0 else by_forward(model, ids, hidden, i))
    cloze = spaced(tokens.starts, np.array(numbers), every)
    found = model.losses(tokens.ids, cloze)
    assert found == pytest.approx(expected, abs=1e-4, nan_ok=True)
    assert np.isnan(found).sum() == 1, "the comma alone is no word"
    counts = [len({(start, end) for start, end in spans if end > start}) for spans in words]
    assert len(cloze.starts) - 1 == sum(min(every, count) for count in counts)


def test_a_model_without_the_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="choose a model that was trained with one") as refused:
        load_masked_lm(str(save_encoder(tmp_path)), new_head=False)
    assert refused.value.code == Exit.CONFIG
