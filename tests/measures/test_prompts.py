"""Prompts: scores of answers against the model's own forward, correlations by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau

from tests.tiny.hub import masked_lm
from vgtools.cli import run
from vgtools.io.errors import DataError
from vgtools.measures.prompts import (
    ChosenAnswers,
    Prompts,
    RankedAnswers,
    first_pieces,
    read_prompts,
)
from vgtools.measures.subject import Reading, Subject
from vgtools.tasks.metrics import kendall

ITEMS = Prompts(
    "p.jsonl",
    ["dog", "bus"],
    [["a [MASK] dog", "the [MASK]"], ["[MASK] bus"]],
    [[["red"], ["cat", "zyx"]], [["a"], ["the"], ["dogs"]]],
    [np.array([1.0, 0]), np.array([3.0, 1, 2])],
)


@pytest.fixture(scope="module")
def subject(tmp_path_factory: Any) -> Subject:
    folder = tmp_path_factory.mktemp("bert")
    masked_lm(folder, "bert")
    return Subject(str(folder), Reading("alone"))


def test_scores_are_of_first_pieces_at_the_mask(subject: Subject) -> None:
    found = ITEMS.scores(subject)
    assert found is not None
    assert found.shape == (2, 2, 3)
    assert subject.cloze is not None
    model = subject.cloze.text
    for item, prompts in enumerate(ITEMS.prompts):
        for number, prompt in enumerate(prompts):
            ids = model.tokenizer.encode(prompt).ids
            at = ids.index(model.tokenizer.token_to_id("[MASK]"))
            with torch.no_grad():
                logits = model.model(input_ids=torch.tensor([ids])).logits[0, at].double()
            for answer, names in enumerate(ITEMS.answers[item]):
                first = [model.tokenizer.encode(n, add_special_tokens=False).ids[0] for n in names]
                expected = float(torch.logsumexp(logits[first], 0))
                assert found[item, number, answer] == pytest.approx(expected, abs=1e-4)
    assert not found[1, 1].any()
    assert not found[0, :, 2].any()


@pytest.mark.parametrize(
    ("text", "answer", "why"),
    [
        ("a [MASK] <mask>", "red", "the prompt 'a <mask> <mask>' has 2 masks for "),
        ("a [MASK]", "\u200b", "the answer '\\\\u200b' has no token"),
    ],
)
def test_what_a_tokenizer_takes_for_something_else_is_refused(
    tmp_path: Path, text: str, answer: str, why: str
) -> None:
    masked_lm(tmp_path, "roberta")
    odd = Prompts("p", ["x"], [[text]], [[[answer], ["a"]]], [np.array([1.0, 0])])
    with pytest.raises(DataError, match=why):
        odd.scores(Subject(str(tmp_path), Reading("alone")))


def test_a_piece_is_taken_as_it_is_inside_a_text() -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import ByteLevel

    vocabulary = {"red": 0, "\u0120red": 1, "\u0120": 2, "?": 3}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    assert first_pieces(tokenizer, ["red"]) == {"red": 1}


def test_best_prompt_and_all_prompts() -> None:
    prompts = Prompts(
        "p", ["x"], [["[MASK]"] * 2], [[["a"], ["b"], ["c"]]], [np.array([5.0, 1, 0])]
    )
    # The first prompt ranks as the values do; the mean of both has the reverse order.
    answers = np.array([[[3.0, 2, 1], [0, 4, 6]]])
    known = np.ones(1, bool)
    assert RankedAnswers(prompts, "Spearman", True).predict(answers, known) == pytest.approx([1])
    assert RankedAnswers(prompts, "Kendall", True).predict(answers, known) == pytest.approx([1])
    assert RankedAnswers(prompts, "Spearman", False).predict(answers, known) == pytest.approx([-1])
    assert np.isnan(RankedAnswers(prompts, "Kendall", True).predict(answers, ~known)).all()


def test_the_likelier_of_two() -> None:
    values = [np.array([1.0, 0]), np.array([0.0, 1]), np.array([1.0, 0])]
    chosen = ChosenAnswers(
        Prompts("p", list("xyz"), [["[MASK]"]] * 3, [[["a"], ["b"]]] * 3, values)
    )
    answers = np.array([[[2.0, 1]], [[2.0, 1]], [[1.0, 1]]])
    assert chosen.items.gold.tolist() == [0, 1, 0]
    assert chosen.predict(answers, np.ones(3, bool)).tolist() == [0, 0, 1]


def test_kendall_with_ties() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        x, y = rng.integers(0, 4, (2, 11)).astype(float)
        assert float(kendall(x, y)) == pytest.approx(kendalltau(x, y).statistic, abs=1e-12)
    assert float(kendall(np.ones(3), np.arange(3.0))) == 0


def row(n: int) -> dict[str, Any]:
    answers = [["a"], ["the"], ["dogs"]]
    return {
        "item": f"i{n}", "prompts": [f"{'a ' * n}[MASK] dog"], "answers": answers,
        "values": [n, 1, 2], "group": "Any" if n < 4 else "Single",
    }  # fmt: skip


def test_records_of_a_file(subject: Subject, tmp_path: Path, capfd: Any) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("".join(f"{json.dumps(row(n))}\n" for n in range(8)))
    capfd.readouterr()
    assert run(["measure", subject.ref, "--on", str(path), "--samples", "100", "-q"]) == 0
    records = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    names = [f"p.jsonl {s}" for s in ("Spearman, best prompt", "Kendall, best prompt")]
    found = [(r["evaluation"], r["group"], r["items"]) for r in records]
    groups = (("all", 8), ("Any", 4), ("Single", 4))
    names.append("p.jsonl Spearman, all prompts")
    assert found == [(name, *group) for name in names for group in groups]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"prompts": ["a dog"]}, r'p\.jsonl:2: "prompts" must be texts with one \[MASK\] each'),
        ({"values": [1, 2]}, r'p\.jsonl:2: "answers" must be two or more lists of words'),
        ({"answers": [["a"], [" "], ["b"]]}, r'p\.jsonl:2: "answers" must be two or more lists'),
    ],
)
def test_another_row_stops_with_its_line(tmp_path: Path, change: Any, why: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(f"{json.dumps(row(0))}\n{json.dumps(row(1) | change)}\n")
    with pytest.raises(DataError, match=why):
        read_prompts(str(path))


def test_two_answers_that_are_as_often_right_stop_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    rows = [{"item": f"i{n}", "prompts": ["a [MASK]"], "answers": [["dog"], ["cat"]],
             "values": [1, 1 if n == 2 else 0]} for n in range(4)]  # fmt: skip
    path.write_text("".join(f"{json.dumps(own)}\n" for own in rows))
    why = r'p\.jsonl:3: neither of two answers is right: "values" is \[1, 1\]'
    with pytest.raises(DataError, match=why):
        read_prompts(str(path))
    # Of three answers, two may be as often right: they are ranked.
    rows[0] |= {"answers": [["dog"], ["cat"], ["cow"]], "values": [1, 1, 0]}
    path.write_text("".join(f"{json.dumps(own)}\n" for own in rows))
    assert len(read_prompts(str(path))) == 3
