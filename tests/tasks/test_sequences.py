"""Examples become token ids, lengths become batches: each against a plain way to do it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiny.examples import token_rows, tokenizer
from vgtools.io.errors import DataError
from vgtools.tasks import sequences as e
from vgtools.tasks.dispatch import encode
from vgtools.tasks.examples import Example
from vgtools.tasks.table import find_task


def bert_truncation(first: int, second: int, room: int) -> tuple[int, int]:
    while first + second > room:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 30))
def test_the_longer_text_loses_tokens_first(first: int, second: int, room: int) -> None:
    assert e.longest_first(first, second, room) == bert_truncation(first, second, room)


@pytest.mark.parametrize("roberta", [False, True])
def test_pairs_are_what_the_tokenizer_makes_of_them(roberta: bool) -> None:
    own = tokenizer(roberta)
    texts = [("bam den", "dun"), ("fis", "gar gor kus"), ("bam", "")]
    examples = [Example(str(i), a, b, i % 2) for i, (a, b) in enumerate(texts)]
    found = encode(find_task("rte"), examples, own, max_length=20, segments=not roberta)
    wanted = [own.encode(a, b) for a, b in texts]
    assert token_rows(found) == [w.ids for w in wanted]
    kinds = [
        [int(i >= s) for i in range(n)] for s, n in zip(found.second, found.lengths, strict=True)
    ]
    assert kinds == [w.type_ids for w in wanted]
    assert found.labels is not None
    assert found.labels.tolist() == [0, 1, 0]
    assert (found.cut, found.examples.tolist()) == (0, [0, 1, 2])


def test_single_sentences_and_scores() -> None:
    own = tokenizer()
    found = encode(
        find_task("sst-2"),
        [Example("0", "bam den", None, 1), Example("1", "", None, 0)],
        own,
        max_length=9,
    )
    assert token_rows(found) == [own.encode("bam den").ids, own.encode("").ids]
    assert found.second.tolist() == [4, 2]  # nothing is a second text
    scored = encode(find_task("sts-b"), [Example("0", "bam", "den", 2.5)], own, max_length=9)
    assert scored.labels is not None
    assert (scored.labels.dtype, scored.labels.tolist()) == (np.float32, [2.5])
    asked = encode(find_task("sst-2"), [Example("0", "bam", None, None)], own, max_length=9)
    assert asked.labels is None


def test_long_pairs_are_cut_and_counted() -> None:
    own = tokenizer()
    examples = [
        Example("0", "bam " * 9, "den " * 2),
        Example("1", "bam " * 2, "den " * 9),
        Example("2", "bam", "den"),
    ]
    found = encode(find_task("rte"), examples, own, max_length=10)  # 3 of them special
    bam, den = own.encode("bam", "den").ids[1], own.encode("bam", "den").ids[3]
    assert token_rows(found)[:2] == [
        [2, *[bam] * 5, 3, *[den] * 2, 3],
        [2, *[bam] * 2, 3, *[den] * 5, 3],
    ]
    assert found.cut == 2
    assert list(found.report(10)) == ["2 examples are longer than 10 tokens and are cut"]


def test_choices_stand_behind_one_another() -> None:
    own = tokenizer()
    endings = ("den", "dun fis", "gar", "gor")
    found = encode(
        find_task("codah"), [Example("0", "bam", None, 2, endings)] * 2, own, max_length=12
    )
    assert (found.each, len(found), found.lengths.tolist()) == (4, 2, [6, 6])
    assert token_rows(found)[:4] == [own.encode("bam", ending).ids for ending in endings]


def test_a_length_in_which_nothing_fits_is_refused() -> None:
    with pytest.raises(
        DataError, match="--max-length 4: 3 tokens are special tokens, no text fits"
    ):
        encode(find_task("rte"), [Example("0", "bam", "den", 0)], tokenizer(), max_length=4)
