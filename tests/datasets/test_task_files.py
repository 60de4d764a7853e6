"""PDTB 2 and VUA from files in their official forms, written by hand."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from vgtools.datasets import task_files
from vgtools.io.errors import DataError, Exit, Tally

PDTB = ("Relation", "Section", "FileNumber", "ConnHeadSemClass1", "Arg1_RawText", "Arg2_RawText")
RELATIONS = (
    ("Implicit", "2", "0", "Contingency.Cause.Reason", "It rained,\n  hard.", "We stayed in."),
    ("Explicit", "2", "0", "Comparison.Contrast", "a", "b"),
    ("Implicit", "0", "1", "Expansion.List", "One.", 'He said "two".'),
    ("Implicit", "21", "2", "Expansion", "a", "b"),
    ("EntRel", "21", "3", "", "a", "b"),
    ("Implicit", "22", "4", "Comparison.Pragmatic contrast", "Yes.", "No."),
    ("Implicit", "23", "5", "Expansion.List", "a", "b"),
)


def table(path: Path, header: Sequence[str], *rows: Sequence[object]) -> Path:
    out = io.StringIO()
    csv.writer(out).writerows([header, *rows])
    path.write_bytes(out.getvalue().encode("utf-8", "surrogateescape"))
    return path


def test_implicit_relations_with_their_split(tmp_path: Path) -> None:
    file = table(tmp_path / "pdtb2.csv", PDTB, *RELATIONS)
    tally = Tally()
    assert list(task_files.pdtb(file, tally)) == [
        {
            "sentence1": "It rained, hard.",
            "sentence2": "We stayed in.",
            "label": "Contingency.Cause",
            "split": "train",
        },
        {
            "sentence1": "One.",
            "sentence2": 'He said "two".',
            "label": "Expansion.List",
            "split": "dev",
        },
        {
            "sentence1": "Yes.",
            "sentence2": "No.",
            "label": "Comparison.Pragmatic contrast",
            "split": "test",
        },
    ]
    assert tally.left_out == {
        "relation that is not implicit": 2,
        "relation without a sense of level 2": 1,
        "relation of another section": 1,
    }
    assert [row["split"] for row in task_files.pdtb(file, Tally(), "dev")] == ["dev"]


@pytest.mark.parametrize(
    ("header", "rows", "why", "line"),
    [
        (PDTB[:-1], [], "expected Relation, Section, ConnHeadSemClass1", 1),
        (PDTB, [RELATIONS[0][:-1]], "expected 6 columns, got 5", 2),
        (PDTB, [("Implicit", "two", "0", "a.b", "x", "y")], "'two' in \"Section\"", 2),
        (PDTB, [], "holds no rows", None),
    ],
)
def test_bad_files_of_pdtb(
    tmp_path: Path, header: Any, rows: list[Any], why: str, line: int | None
) -> None:
    with pytest.raises(DataError, match=why) as caught:
        list(task_files.pdtb(table(tmp_path / "x.csv", header, *rows), Tally()))
    assert (caught.value.line, caught.value.code) == (line, Exit.DATA)


SEQUENCE = ("txt_id", "sen_ix", "sentence", "label_seq", "pos_seq", "labeled_sentence", "genre")


def sequence(sentence: str, labels: object, parts: object) -> tuple[object, ...]:
    return "a1-fragment01", 1, sentence, labels, parts, sentence, "news"


def no_tagger(texts: Sequence[str]) -> Iterator[list[tuple[int, int]]]:
    raise AssertionError("the file has parts of speech")


def test_nouns_of_the_sequence_file(tmp_path: Path) -> None:
    file = table(
        tmp_path / "x.csv",
        SEQUENCE,
        sequence(
            "Its roots , it said", "[0, 1, 0, 0, 1]", "['PRON', 'NOUN', 'PUNCT', 'X', 'VERB']"
        ),
        sequence("go", "[1]", "['VERB']"),
        sequence("a dog", "[0, 0]", "['DET', 'NOUN']"),
    )
    tally = Tally()
    assert list(task_files.metaphors(file, tally, no_tagger)) == [
        {"text": "Its roots , it said", "tags": [None, "metaphor", None, None, None]},
        {"text": "a dog", "tags": [None, "literal"]},
    ]
    assert tally.left_out == {"sentence without a noun": 1}


@pytest.mark.parametrize(
    ("labels", "parts", "why"),
    [
        ("[0]", "['DET', 'NOUN']", '"label_seq" has 1 items, but the sentence has 2 words'),
        ("[0, 1]", "['DET']", '"pos_seq" has 1 items, but the sentence has 2 words'),
        ("[0, 2]", "['DET', 'NOUN']", "expected a list of 0 and 1"),
        ("[0, 1", "['DET', 'NOUN']", "expected a list of 0 and 1"),
        ("[{[]: 1}]", "['DET', 'NOUN']", "expected a list of 0 and 1"),
        ("[0, 1]", "__import__('os')", "expected a list of parts of speech"),
    ],
)
def test_lists_that_do_not_fit(tmp_path: Path, labels: str, parts: str, why: str) -> None:
    file = table(tmp_path / "x.csv", SEQUENCE, sequence("a dog", labels, parts))
    with pytest.raises(DataError, match=why) as caught:
        list(task_files.metaphors(file, Tally(), no_tagger))
    assert (caught.value.line, caught.value.code) == (2, Exit.DATA)


def test_nouns_of_the_corpus_file_are_those_of_a_tagger(tmp_path: Path) -> None:
    """The tagger splits at hyphens; a word is a noun if its last part is one."""
    header = ("txt_id", "sentence_id", "sentence_txt")
    texts = ["A high-M_density M_M_disk", "M_go !", "the \udcff\udca3 cold"]
    file = table(tmp_path / "x.csv", header, *(("a", i, text) for i, text in enumerate(texts)))
    seen = list[str]()

    def find(given: Sequence[str]) -> Iterator[list[tuple[int, int]]]:
        seen.extend(given)
        for text in given:
            yield [(place, place + 4) for word in ("sity", "disk", "cold")
                   if (place := text.find(word)) >= 0]  # fmt: skip

    tally = Tally()
    assert list(task_files.metaphors(file, tally, find)) == [
        {"text": "A high-density disk", "tags": [None, "metaphor", "metaphor"]},
        {"text": "the \ufffd\ufffd cold", "tags": [None, None, "literal"]},
    ]
    assert seen == ["A high-density disk", "go !", "the \ufffd\ufffd cold"]
    assert tally.text.replaced == 1


def test_neither_file_of_vua(tmp_path: Path) -> None:
    file = table(tmp_path / "x.csv", ("a", "b"), (1, 2))
    with pytest.raises(DataError, match="expected sentence, label_seq, pos_seq; or sentence_txt"):
        list(task_files.metaphors(file, Tally(), no_tagger))
