"""What masked words cost, for all words and for content words, and what texts are shown with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.tiny.grounded import bank_of, examples_of, pictures_of
from tests.tiny.visual import encoder_of
from vgtools.io.errors import DataError
from vgtools.systems.grounding.model import GroundingConfig
from vgtools.systems.grounding.scoring import ScoredLM, score, shown


@pytest.mark.parametrize("batch_size", [1, 3, 20])
def test_content_words_are_those_at_the_masked_places(tmp_path: Path, batch_size: int) -> None:
    # One letter is a stop word only if it is an article: "a" is, "bam" and "den" are not.
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(["a", "bam", "den"], 1 + n % 7)) for n in range(20)]
    examples = examples_of(tmp_path, texts, rate=0.6)
    known = encoder_of()
    article = known.tokenizer.token_to_id("a")
    # A word costs its number, so that a sum says which words it is of.
    model = ScoredLM(
        "x", known, GroundingConfig("none", 0, 0, 0, 0), {}, lambda b: b.tokens.float()
    )
    every, content = score(model, examples, np.zeros((20, 0), np.int64), batch_size, "cpu")
    masked = [examples.example(n, None).hidden.tolist() for n in range(20)]
    assert sum(article in hidden for hidden in masked) > 5
    assert every.tokens.tolist() == [len(hidden) for hidden in masked]
    assert every.nll.tolist() == [sum(hidden) for hidden in masked]
    kept = [[token for token in hidden if token != article] for hidden in masked]
    assert content.tokens.tolist() == [len(hidden) for hidden in kept]
    assert content.nll.tolist() == [sum(hidden) for hidden in kept]


# "a" is a stop word: a text of it alone finds no image.
TEXTS = ["bam bet bin", "a", "den dut", "bam bet bin", "fam fan far", "den dut", "a", "bum bun"]


def test_found_images_are_exchanged_between_different_texts(tmp_path: Path) -> None:
    known = bank_of("scene", images=2)
    bank = replace(known, associator=replace(known.associator, stop_words=frozenset({"a"})))
    examples = examples_of(tmp_path, TEXTS, pictures=pictures_of(tmp_path), bank=bank, rate=0.01)
    found, other, random = (shown(examples, kind) for kind in ("found", "other", "random"))
    none = np.array([text == "a" for text in TEXTS])
    assert ((found < 0).all(1) == none).all()
    assert ((random < 0) == (found < 0)).all(), "what finds no image has none of a random draw"
    assert random[~none].min() >= 0
    seen = {text: other[number].tolist() for number, text in enumerate(TEXTS)}
    assert other.tolist() == [seen[text] for text in TEXTS], "equal texts have equal images"
    given = {tuple(row): text for row, text in zip(found.tolist(), TEXTS, strict=True)}
    assert all(given[tuple(row)] != text for row, text in zip(other.tolist(), TEXTS, strict=True))


def test_words_that_make_texts_equal_change_no_random_image(tmp_path: Path) -> None:
    names = dict(enumerate(["image000", "image001", "image000", "image002", "image003"]))
    texts = ["bam bet", "den dut", "fam fan", "dim", "bum bun"]
    equal = ["bam bet", "den dut", "fam fan", "bam bet", "bum bun"]
    drawn = [
        shown(examples_of(tmp_path, own, images=names, pictures=pictures_of(tmp_path)), "random")
        for own in (texts, equal)
    ]
    assert np.array_equal(*drawn)


def test_own_images_are_exchanged_between_other_texts_of_other_images(tmp_path: Path) -> None:
    # The first two captions are of one image, and the second is another image's, too.
    texts = ["bam bet", "den dut", "den dut", "fam fan", "dim", "dim"]
    names = {0: "image000", 1: "image000", 2: "image001", 3: "image002", 5: "image003"}
    examples = examples_of(tmp_path, texts, images=names, pictures=pictures_of(tmp_path))
    other, random = shown(examples, "other")[:, 0], shown(examples, "random")[:, 0]
    assert len(set(other[:3].tolist())) == len(set(other[4:].tolist())) == 1
    assert other[0] not in (0, 1)
    assert other[3] not in (2, -1)
    assert other[4] != 3
    assert random[4] == -1, "a text that names no image has none of a random draw"
    unnamed = examples_of(tmp_path, texts, pictures=pictures_of(tmp_path))
    for kind in ("own", "other", "random"):
        with pytest.raises(DataError, match="no row names an image"):
            shown(unnamed, kind)
    equal = examples_of(
        tmp_path, ["bam", "bam"], images={0: "image000", 1: "image001"}, pictures=examples.pictures
    )
    with pytest.raises(DataError, match="no other text of another image"):
        shown(equal, "other")
