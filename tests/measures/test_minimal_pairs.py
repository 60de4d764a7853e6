"""Minimal pairs: their scores against the model's own forward, their groups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.tiny import save_encoder
from tests.tiny.clip import save_tower
from tests.tiny.hub import masked_lm
from vgtools.cli import run
from vgtools.io.errors import DataError, Exit
from vgtools.measures.minimal_pairs import MinimalPairs, read_minimal_pairs, sentence_losses
from vgtools.measures.subject import Reading, Subject

PAIRS = [("a dog runs", "a dog run"), ("two zyx", "two zy"), ("the cat", "cat the")]


@pytest.fixture(scope="module")
def subject(tmp_path_factory: Any) -> Subject:
    folder = tmp_path_factory.mktemp("bert")
    masked_lm(folder, "bert")
    return Subject(str(folder), Reading("alone"))


def test_a_sentence_is_the_sum_of_its_tokens(subject: Subject) -> None:
    assert subject.cloze is not None
    text = subject.cloze.text
    pieces = text.tokenizer.encode("a zyx", add_special_tokens=False).ids
    assert len(pieces) == 4, "one word whole, one in three letters"
    mask = text.tokenizer.token_to_id("[MASK]")
    expected = 0.0
    for i, hidden in enumerate(({0}, {1, 2, 3}, {2, 3}, {3})):
        row = [mask if j in hidden else token for j, token in enumerate(pieces)]
        with torch.no_grad():
            ids = torch.tensor([[*text.prefix, *row, *text.suffix]])
            logits = text.model(input_ids=ids).logits[0, len(text.prefix) + i]
        expected -= float(torch.log_softmax(logits.double(), 0)[pieces[i]])
    found = sentence_losses(subject, ["a dog", "a zyx", ""])
    assert found[1:] == pytest.approx([expected, 0], abs=1e-4)


def test_a_mark_that_the_tokenizer_removes_does_not_end_a_word(subject: Subject) -> None:
    plain, marked = sentence_losses(subject, ["a dogzy the", "a do\u00adgzy the"])
    assert marked == pytest.approx(plain, abs=1e-4)


def test_the_likelier_sentence_of_each_pair(subject: Subject) -> None:
    pairs = MinimalPairs("x", PAIRS, ["a", "a", "b"], ["p", "p", "q"])
    assert pairs.items.keys == ["p", "p (2)", "q"]
    answers = pairs.ask(subject)
    assert answers is not None
    good, bad = (sentence_losses(subject, [pair[side] for pair in PAIRS]) for side in (0, 1))
    assert answers == pytest.approx(bad - good)
    found = pairs.predict(np.array([0.1, -2, 0, np.nan]), np.ones(4, bool))
    assert found[:3].tolist() == [1, 0, 0]
    assert np.isnan(found[3])


def test_other_pairs_and_another_order_are_other_items() -> None:
    def content(pairs: list[tuple[str, str]]) -> str:
        return MinimalPairs("x", pairs, ["a"] * 3, ["p"] * 3).items.content

    assert content(PAIRS) == content([*PAIRS])
    assert len({content(PAIRS), content(PAIRS[::-1]), content([*PAIRS[:2], PAIRS[0]])}) == 3


def test_a_sentence_that_is_too_long_is_not_known(subject: Subject) -> None:
    assert np.isnan(sentence_losses(subject, ["a dog", "dog " * 600])).tolist() == [False, True]


def test_encoders_without_a_head_are_left_out_or_refused(
    subject: Subject, tmp_path: Path, capfd: Any
) -> None:
    bare = str(save_encoder(tmp_path / "bare"))
    pairs = write(tmp_path / "pairs.jsonl", 12)
    args = ["--on", pairs, "--samples", "100"]
    capfd.readouterr()
    assert run(["measure", bare, *args, "-q"]) == Exit.CONFIG
    assert "pairs.jsonl: needs a masked language model with its head" in capfd.readouterr().err
    tower = str(save_tower(tmp_path / "tower"))
    assert run(["measure", subject.ref, bare, tower, *args]) == 0
    out, err = capfd.readouterr()
    assert {json.loads(line)["encoder"] for line in out.splitlines()} == {subject.ref}
    assert f"pairs.jsonl was not asked of {bare}, {tower}" in err


def write(path: Path, count: int) -> str:
    rows = [
        {"good": good, "bad": bad, "phenomenon": f"f{n % 2}", "paradigm": f"p{n % 4}"}
        for n in range(count)
        for good, bad in [PAIRS[n % 3]]
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_too_few_pairs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x\.jsonl: has 2 pairs; 3 or more are needed"):
        read_minimal_pairs(write(tmp_path / "x.jsonl", 2))


def test_a_record_per_phenomenon_also_from_kept_items(
    subject: Subject, tmp_path: Path, capfd: Any
) -> None:
    path = write(tmp_path / "pairs.jsonl", 12)
    capfd.readouterr()

    def records(*args: str) -> list[dict[str, Any]]:
        assert run(["measure", *args, "--samples", "100", "-q"]) == 0
        return [json.loads(line) for line in capfd.readouterr().out.splitlines()]

    items = str(tmp_path / "items.jsonl")
    found = records(subject.ref, subject.ref, "--on", path, "-o", items)
    assert [(r["group"], r["items"]) for r in found[::2]] == [("all", 12), ("f0", 6), ("f1", 6)]
    assert all(r["statistic"] == "accuracy" for r in found)
    assert found[0]["value"] == pytest.approx((found[2]["value"] + found[4]["value"]) / 2)
    assert records(items) == found
