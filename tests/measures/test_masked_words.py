"""Masked words: their losses against the model's own forward, their means, their thirds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.tiny.hub import masked_lm
from vgtools.cli import run
from vgtools.io.errors import DataError
from vgtools.measures.masked_words import MaskedWords, read_masked_words, word_losses
from vgtools.measures.subject import Reading, Subject


@pytest.fixture(scope="module")
def subject(tmp_path_factory: Any) -> Subject:
    folder = tmp_path_factory.mktemp("bert")
    masked_lm(folder, "bert")
    return Subject(str(folder), Reading("alone"))


def by_forward(subject: Subject, text: str, words: list[list[int]], asked: list[int]) -> float:
    """Return the summed loss of the pieces of a word, with the pieces of words hidden."""
    assert subject.cloze is not None
    model = subject.cloze.text
    pieces = model.tokenizer.encode(text, add_special_tokens=False).ids
    mask = model.tokenizer.token_to_id("[MASK]")
    hidden = {piece for word in words for piece in word}
    row = [mask if place in hidden else token for place, token in enumerate(pieces)]
    with torch.no_grad():
        ids = torch.tensor([[*model.prefix, *row, *model.suffix]])
        logits = torch.log_softmax(model.model(input_ids=ids).logits[0].double(), -1)
    return -sum(float(logits[len(model.prefix) + place, pieces[place]]) for place in asked)


def test_a_word_is_the_sum_of_its_hidden_pieces(subject: Subject) -> None:
    eight = "a dog zyx the dog a cat the"  # the first and the eighth are hidden together
    found = word_losses(subject, [eight, "", "the, cat", "dog " * 600])
    zyx = by_forward(subject, eight, [[2, 3, 4]], [2, 3, 4])
    first = by_forward(subject, eight, [[0], [9]], [0])
    assert found[[0, 2]] == pytest.approx([first, zyx], abs=1e-4)
    assert found[8:10] == pytest.approx(
        [by_forward(subject, "the, cat", [[place]], [place]) for place in (0, 2)], abs=1e-4
    )
    assert np.isfinite(found[:10]).all()
    assert np.isnan(found[10:]).all(), "the text is longer than the encoder takes"


def test_a_piece_of_two_words_is_hidden_with_both(subject: Subject) -> None:
    found = word_losses(subject, ["a do\u00adgzy the"])  # the pieces are a, dog, z, y, the
    asked = [[0], [1], [2, 3], [4]]
    hidden = [[0], [1, 2, 3], [1, 2, 3], [4]]
    pairs = zip(hidden, asked, strict=True)
    expected = [by_forward(subject, "a dogzy the", [every], own) for every, own in pairs]
    assert found == pytest.approx(expected, abs=1e-4)


def test_a_word_is_the_mean_of_its_known_occurrences() -> None:
    words = MaskedWords("x", ["A dog a", "dog cat"], {})
    assert (words.items.keys, words.items.groups) == (["a", "dog", "cat"], ())
    found = words.predict(np.array([1.0, 2, 3, 6, 9]), np.array([1, 1, 1, 1, 0], bool))
    assert found[:2].tolist() == [2, 4]
    assert np.isnan(found[2])


def test_thirds_are_of_the_words_of_the_text() -> None:
    values = {"b": 1.0, "c": 2.0, "d": 3.0, "e": 4.0, "f": 5.0, "g": 6.0, "far": 99.0}
    words = MaskedWords("x", ["a b c d e f g"], values, "n")
    assert words.items.groups == ["", *["n low"] * 2, *["n middle"] * 2, *["n high"] * 2]


def test_records_by_thirds(subject: Subject, tmp_path: Path, capfd: Any) -> None:
    (tmp_path / "t.txt").write_text("a dog runs\nthe cat sees two dogs\nred bus\n")
    names = ["a", "dog", "runs", "the", "cat", "sees", "two", "dogs", "red", "x", "y", "z"]
    rows = [{"word": word, "value": number} for number, word in enumerate(names)]
    (tmp_path / "n.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    capfd.readouterr()
    args = ["--masked", f"{tmp_path}/t.txt", "--thirds", f"{tmp_path}/n.jsonl", "-q"]
    assert run(["measure", subject.ref, *args, "--samples", "100"]) == 0
    records = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(r["group"], r["items"]) for r in records] == [
        ("all", 10), ("n low", 3), ("n middle", 3), ("n high", 3),
    ]  # fmt: skip
    texts = read_masked_words(f"{tmp_path}/t.txt")
    losses = texts.ask(subject)
    assert losses is not None
    assert records[0]["value"] == pytest.approx(losses.mean(), abs=1e-6)
    assert records[0]["statistic"] == "loss"


def test_refusals(tmp_path: Path, capfd: Any) -> None:
    (tmp_path / "t.txt").write_text("a dog\n")
    with pytest.raises(DataError, match=r"t\.txt: has 2 words; 3 are needed"):
        read_masked_words(f"{tmp_path}/t.txt")
    rows = [json.dumps({"word": f"w{n}", "value": "noun"}) for n in range(10)]
    (tmp_path / "n.jsonl").write_text("\n".join(rows) + "\n")
    with pytest.raises(DataError, match="has classes of words; thirds need numbers"):
        read_masked_words(f"{tmp_path}/t.txt", f"{tmp_path}/n.jsonl")
    assert run(["measure", "x", "--on", "y", "--thirds", "z"]) == 2
    assert "--thirds: name a text with --masked" in capfd.readouterr().err
