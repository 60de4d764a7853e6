"""Tables of norms and WordNet's index of senses."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgtools.datasets.norms import norms, wordnet
from vgtools.io.errors import DataError, Tally

TAB = "Word\tBigram\tConc.M\nroad\t0\t4.5\nIdea\t0\t1.5\nidea\t0\t2\nnone\t0\t\n"
COMMA = 'n,"Word","Kind, short"\n1,"road","noun"\n2,"red","adj, colour"\n3,"7","7"\n'


def test_columns_between_tabs(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text(TAB)
    tally = Tally()
    found = list(norms(str(tmp_path / "x.txt"), None, "Conc.M", tally))
    assert found == [{"word": "road", "value": 4.5}, {"word": "idea", "value": 1.5}]
    assert tally.left_out == {"duplicate word": 1, "row without a word or a value": 1}


def test_quoted_columns_between_commas_and_classes(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(COMMA)
    found = list(norms(str(tmp_path / "x.csv"), "Word", "Kind, short", Tally()))
    assert [row["word"] for row in found] == ["road", "red", "7"]
    assert [row["value"] for row in found] == ["noun", "adj, colour", "7"]


@pytest.mark.parametrize(
    ("text", "value", "why"),
    [
        (TAB, "Conc", r"x\.txt:1: the header has no column 'Conc': Word"),
        ("", "Conc", r"x\.txt: is empty; expected a table with a header"),
        ("\nWord,Conc\na,1\n", "Conc", r"x\.txt:1: is blank; expected a table with a header"),
        (
            ",word,conc\n0,dog,1\n",
            "conc",
            r"x\.txt:1: the first column has no name: ,word,conc; --word names the column of",
        ),
        (TAB + "a\t0\n", "Conc.M", r"x\.txt:6: expected 3 columns, got 2"),
        (TAB + "a\t0\tx\n", "Conc.M", r"x\.txt:6: 'x' in \"Conc\.M\"; expected a finite number"),
        (TAB + "a\t0\tnan\n", "Conc.M", r"x\.txt:6: 'nan' in"),
        (TAB + "a\t0\t1_000\n", "Conc.M", r"x\.txt:6: '1_000' in"),
        (
            "Word\tV\na\t4,85\n",
            "V",
            r"x\.txt:2: '4,85' in \"V\" is in another notation; write numbers as 1234\.5",
        ),
        (
            "Word\tV\nx\tNA\na\t1\nb\t2\n",
            "V",
            "\"V\": most values are numbers, but the first is 'NA'",
        ),
        ("Word\tV\nx\tNA\na\t1%\nb\t2%\n", "V", '"V": most values are numbers'),
        ('Word,V\n"a,1\n', "V", r"x\.txt:2: not valid quoted text"),
        ("Word\tV\n", "V", r"x\.txt: holds no rows after its header"),
        ("Word\tV\tV\na\t1\t2\n", "V", r"x\.txt:1: the header has two columns 'V'"),
    ],
)
def test_refusals(tmp_path: Path, text: str, value: str, why: str) -> None:
    (tmp_path / "x.txt").write_text(text)
    with pytest.raises(DataError, match=why):
        list(norms(str(tmp_path / "x.txt"), None, value, Tally()))


@pytest.mark.parametrize(
    "number",
    [
        *("4,85", "50%", "50 %", "1_000", "0x10", "\u0661\u0662", "\uff11", "\u22121.5", "1,000"),
        *("1 234", "12\u00a0345,5", "1\u202f234", "1'234.5", "1\u2019234\u2019567"),
        *("-1 234", "\u22121 234,5", "12 345%", "1.234.567", "+1.234.567,8 %"),
    ],
)
@pytest.mark.parametrize("before", ["", "dog\t1\n"])
def test_numbers_in_another_notation_are_no_classes(
    tmp_path: Path, number: str, before: str
) -> None:
    (tmp_path / "x.txt").write_text(f"Word\tV\n{before}a\t{number}\n")
    with pytest.raises(DataError, match=r"in another notation; write numbers as 1234\.5") as caught:
        list(norms(str(tmp_path / "x.txt"), None, "V", Tally()))
    assert caught.value.line == 2 + bool(before)


def test_classes_may_hold_figures(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("Word\tV\na\t1_1\nb\t50%\nc\t0xyz\nd\t%\n")
    found = list(norms(str(tmp_path / "x.txt"), None, "V", Tally()))
    assert [row["value"] for row in found] == ["1_1", "50%", "0xyz", "%"]


@pytest.mark.parametrize("separator", ["\t", ","])
def test_cells_are_unquoted(tmp_path: Path, separator: str) -> None:
    """Excel quotes cells with a comma or a quotation mark, between tabs as well."""
    lines = ['"The, word"|Value', '"ice, cream"|2', '"say ""hi"""|3', 'dog|"1"', 'a "b"|4']
    (tmp_path / "x.tsv").write_text("\n".join(lines).replace("|", separator) + "\n")
    found = list(norms(str(tmp_path / "x.tsv"), None, "Value", Tally()))
    assert [row["word"] for row in found] == ["ice, cream", 'say "hi"', "dog", 'a "b"']
    assert [row["value"] for row in found] == [2, 3, 1, 4]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (['"hello|1', "foo|2", 'bar"|3', "z|4"], ['"hello', "foo", 'bar"', "z"]),
        (['"|1', "a|2"], ['"', "a"]),
        (['""|1', '"so called" x|2'], ['""', '"so called" x']),
    ],
)
def test_between_tabs_a_quotation_mark_may_be_of_a_word(
    tmp_path: Path, lines: list[str], words: list[str]
) -> None:
    """No row may go into a cell of another."""
    text = "\n".join(["word|V", *lines]).replace("|", "\t")
    (tmp_path / "x.tsv").write_text(f"{text}\n")
    found = list(norms(str(tmp_path / "x.tsv"), None, "V", Tally()))
    assert [row["word"] for row in found] == words
    assert len({row["value"] for row in found}) == len(words)


@pytest.mark.parametrize("separator", ["\t", ","])
def test_two_quotation_marks_are_an_empty_cell_where_the_header_is_quoted(
    tmp_path: Path, separator: str
) -> None:
    """R's `write.table(col.names=NA)` writes such tables."""
    table = tmp_path / "x.tsv"
    table.write_text('""|"Word"|"POS"\n"1"|"dog"|"N"\n"2"|"idea"|""\n'.replace("|", separator))
    with pytest.raises(DataError, match=r"the first column has no name: .* --word names"):
        list(norms(str(table), None, "POS", Tally()))
    tally = Tally()
    assert list(norms(str(table), "Word", "POS", tally)) == [{"word": "dog", "value": "N"}]
    assert dict(tally.left_out) == {"row without a word or a value": 1}


def test_an_index_without_a_name_is_passed_over_by_naming_the_words(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(",word,conc\n0,dog,1\n")
    found = list(norms(str(tmp_path / "x.csv"), "word", "conc", Tally()))
    assert found == [{"word": "dog", "value": 1}]


def test_words_of_another_encoding_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes("Word\tV\nthe\t1\ncaf\xe9\t1\n".encode("latin1"))
    with pytest.raises(DataError, match=r"x\.txt:3: not UTF-8; convert the file"):
        list(norms(str(tmp_path / "x.txt"), None, "V", Tally()))


SENSES = """\
aback%4:02:00:: 00073303 1 4
ice_cream%1:13:00:: 07614500 1 9
dog%1:05:00:: 02084071 1 8
dog%1:18:00:: 10114209 2 1
dog%2:38:00:: 02001858 1 1
light%1:19:00:: 11473954 1 5
light%3:00:00:: 00269989 1 5
rare%1:05:00:: 00000001 1 1
"""


def test_classes_of_wordnet(tmp_path: Path) -> None:
    (tmp_path / "index.sense").write_text(SENSES)
    path = str(tmp_path / "index.sense")
    tally = Tally()
    found = list(wordnet(path, "supersense", 4, 0.8, tally))
    assert found == [{"word": "dog", "value": "noun.animal"}]
    assert tally.left_out == {
        "word with other characters than a to z": 1,
        "word with uses of several classes": 1,
        "word with fewer than 4 uses": 1,
        "adjective or adverb": 1,
    }
    found = list(wordnet(path, "pos", 4, 0.9, Tally()))
    assert found == [{"word": "aback", "value": "adv"}, {"word": "dog", "value": "noun"}]


def test_other_files_are_refused(tmp_path: Path) -> None:
    for text, why in (
        (SENSES + "x\n", "index.sense:9: expected a line of"),
        ("a%1:03:00:: 00000001 1 " + "9" * 5000, "index.sense:1: expected a line of"),
        ("a%1:03:00:" + ":" * 10**6, "index.sense:1: expected a line of"),
        ("", "is empty"),
    ):
        (tmp_path / "index.sense").write_text(text)
        with pytest.raises(DataError, match=why):
            list(wordnet(str(tmp_path / "index.sense"), "pos", 1, 0.5, Tally()))
