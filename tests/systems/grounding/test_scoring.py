"""Losses of masked words are counted where they belong: for all words and for content words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.tiny.grounded import examples_of
from tests.tiny.visual import encoder_of
from vgtools.systems.grounding.model import GroundingConfig
from vgtools.systems.grounding.scoring import Model, score


@pytest.mark.parametrize("batch_size", [1, 3, 20])
def test_content_words_are_those_at_the_masked_places(tmp_path: Path, batch_size: int) -> None:
    # One letter is a stop word only if it is an article: "a" is, "bam" and "den" are not.
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(["a", "bam", "den"], 1 + n % 7)) for n in range(20)]
    examples = examples_of(tmp_path, texts, rate=0.6)
    known = encoder_of()
    article = known.tokenizer.token_to_id("a")
    # A word costs its number, so that a sum says which words it is of.
    model = Model("x", known, GroundingConfig("none", 0, 0, 0, 0), {}, lambda b: b.tokens.float())
    every, content = score(model, examples, np.zeros((20, 0), np.int64), batch_size, "cpu")
    masked = [examples.example(n, None).hidden.tolist() for n in range(20)]
    assert sum(article in hidden for hidden in masked) > 5
    assert every.tokens.tolist() == [len(hidden) for hidden in masked]
    assert every.nll.tolist() == [sum(hidden) for hidden in masked]
    kept = [[token for token in hidden if token != article] for hidden in masked]
    assert content.tokens.tolist() == [len(hidden) for hidden in kept]
    assert content.nll.tolist() == [sum(hidden) for hidden in kept]
