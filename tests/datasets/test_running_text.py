"""WikiText filters and the sentence splitter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vgtools.datasets.running_text import is_heading, sentences, squad, wikitext
from vgtools.io.errors import DataError, Tally

LINES = [
    " ",
    " = Lighthouse = ",
    " ",
    " = = The tower = = ",
    " A <unk> tower stands on the rock . ",
    " It is white . ",
    " = 3 x + 2 ",
    "",
]


def run(**flags: object) -> tuple[list[str], dict[str, int]]:
    tally = Tally()
    rows = wikitext(({"text": line} for line in LINES), tally, **flags)  # type: ignore[arg-type]
    return [row["text"] for row in rows], dict(tally.left_out)


def test_without_flags_every_line_stays_as_it_is() -> None:
    assert run() == (LINES, {})


def test_each_filter_is_its_own_and_is_counted() -> None:
    assert run(drop_headings=True) == ([LINES[0], LINES[2], *LINES[4:]], {"heading": 2})
    assert run(drop_empty=True) == ([LINES[1], *LINES[3:7]], {"empty line": 3})
    assert run(trim=True)[0] == [line.strip() for line in LINES]
    kept, counts = run(drop_headings=True, drop_short=5, trim=True)
    assert kept == ["A <unk> tower stands on the rock .", "= 3 x + 2"]
    assert counts == {"empty line": 3, "heading": 2, "line of fewer than 5 words": 1}


def test_short_is_fewer_than_n_words() -> None:
    assert run(drop_short=4)[0] == [" = = The tower = = ", LINES[4], LINES[5], LINES[6]]
    assert run(drop_short=6)[0] == [" = = The tower = = ", LINES[4]]


@pytest.mark.parametrize(
    ("line", "heading"),
    [
        (" = A = ", True),
        ("= A =", True),
        (" = = A b = = ", True),
        (" = = A = ", False),
        (" = A = = ", False),
        (" = A ", False),
        ("A =", False),
        (" = ", False),
        (" = = ", False),
        ("", False),
        (" = a = b = ", True),
    ],
)
def test_headings_have_as_many_signs_after_as_before(line: str, heading: bool) -> None:
    assert is_heading(line) is heading


def test_a_language_brings_its_abbreviations() -> None:
    text = "Am 3. Mai kam z.B. Herr Dr. Meyer. Er ging."
    assert split(text, "de") == ["Am 3. Mai kam z.B. Herr Dr. Meyer.", "Er ging."]
    assert split(text, "en") == ["Am 3.", "Mai kam z.B. Herr Dr. Meyer.", "Er ging."]
    assert split("我很好。你呢？", "zh") == ["我很好。", "你呢？"]


def split(text: str, language: str = "en") -> list[str]:
    return [row["text"] for row in sentences([{"text": text}], language, Tally())]


def test_sentences_end_where_a_reader_ends_them() -> None:
    text = "Dr. Smith met J. R. Jones in the U.S. Senate on Jan. 5, 2020.  He paid $3.50 for it. "
    text += '"Why?" she asked. He left! So?'
    assert split(text) == [
        "Dr. Smith met J. R. Jones in the U.S. Senate on Jan. 5, 2020.",
        "He paid $3.50 for it.",
        '"Why?" she asked.',
        "He left!",
        "So?",
    ]
    assert split("It is 7 @.@ 2 kg . Or 8 . )") == ["It is 7 @.@ 2 kg .", "Or 8 . )"]
    assert split("Das ist z. B. gut. Ja.", "de") == ["Das ist z. B. gut.", "Ja."]
    assert split("你好。再见。", "zh") == ["你好。", "再见。"]


def test_order_other_keys_and_empty_lines_stay() -> None:
    rows = [{"text": "One. Two.", "id": 7}, {"text": " "}, {"text": "Three."}]
    tally = Tally()
    assert list(sentences(rows, "en", tally)) == [
        {"text": "One.", "id": 7},
        {"text": "Two.", "id": 7},
        {"text": " "},
        {"text": "Three."},
    ]
    assert tally.left_out == {}
    assert len(list(sentences(rows, "en", tally, drop_empty=True))) == 3
    assert tally.left_out == {"empty line": 1}


@settings(max_examples=200, deadline=None)
@given(
    st.text(
        alphabet=st.sampled_from(list('ab C.!?"“”()@,…。é\u0301🏳\ufe0f\u2028\u00a0\u3000\t\x00')),
        max_size=40,
    )
)
def test_no_character_but_white_space_is_lost(text: str) -> None:
    found = split(text)
    if text.strip():
        assert "".join("".join(found).split()) == "".join(text.split())
        assert all(s == s.strip() and s for s in found)


def test_wide_spaces_are_spaces() -> None:
    assert split("C\u2028.") == ["C\u2028."]  # the splitter itself panics on this one
    assert split("Yes.\u00a0Good.\u3000No.") == ["Yes.", "Good.", "No."]


def test_a_long_line_takes_linear_time() -> None:
    assert len(split("He ran to Mr. Jones. " * 50_000)) == 50_000


def test_paragraphs_of_squad_come_once_and_articles_end_with_an_empty_line(tmp_path: Path) -> None:
    articles = [["One.\nTwo. ", "Three."], ["Three."], ["Four."]]
    data = [
        {"title": "t", "paragraphs": [{"context": c, "qas": []} for c in contexts]}
        for contexts in articles
    ]
    (tmp_path / "train.json").write_text(json.dumps({"version": "1.1", "data": data}))
    tally = Tally()
    assert [row["text"] for row in squad(tmp_path / "train.json", tally)] == [
        "One. Two.",
        "Three.",
        "",
        "Four.",
        "",
    ]
    assert tally.left_out == {"paragraph that was there before": 1}
    for bad, why in (
        ({"data": []}, "has no articles"),
        ({"data": [{"paragraphs": 1}]}, r'data\[0\]: expected a list under "paragraphs", got 1'),
        (
            {"data": [{"paragraphs": [{}]}]},
            r'data\[0\]\.paragraphs\[0\]: expected a string under "context", got None',
        ),
    ):
        (tmp_path / "bad.json").write_text(json.dumps(bad))
        with pytest.raises(DataError, match=why):
            list(squad(tmp_path / "bad.json", Tally()))


def test_empty_paragraphs_do_not_end_an_article(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    contexts = [["a", "", " \n", "b"], [" "], ["c"]]
    data = [{"paragraphs": [{"context": c} for c in article]} for article in contexts]
    path.write_text(json.dumps({"data": data}))
    tally = Tally()
    assert [row["text"] for row in squad(path, tally)] == ["a", "b", "", "c", ""]
    assert tally.left_out == {"empty paragraph": 3}


def test_a_paragraph_that_no_text_can_hold_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    data = [{"paragraphs": [{"context": "a"}, {"context": "b\0c"}]}]
    path.write_text(json.dumps({"data": data}))
    why = r'train\.json: data\[0\]\.paragraphs\[1\]: "context" holds U\+0000'
    with pytest.raises(DataError, match=why) as caught:
        list(squad(path, Tally()))
    assert caught.value.code == 65


def test_half_a_character_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "train-v1.1.json"
    good = {"paragraphs": [{"context": "a \U0001f600"}]}
    path.write_text(json.dumps({"data": [good, {"paragraphs": [{"context": "a \ud83d b"}]}]}))
    with pytest.raises(DataError, match=r"train-v1\.1\.json: data\[1\]: .*lone surrogate"):
        list(squad(path, Tally()))
    path.write_text(json.dumps({"data": [good]}))
    assert next(squad(path, Tally())) == {"text": "a \U0001f600"}


def test_a_line_that_would_kill_the_splitter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vgtools.datasets.running_text._LONGEST", 9)
    rows = [{"text": "One. Two."}, {"text": "One. Two. "}]
    found = sentences(rows, "en", Tally(), path="x.txt")
    assert [next(found), next(found)] == [{"text": "One."}, {"text": "Two."}]
    with pytest.raises(
        DataError, match=r"x\.txt:2: has 10 characters, expected at most 9 per line"
    ):
        next(found)
