"""Two files become pairs, line by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgtools import cli
from vgtools.datasets.pairs import pairs
from vgtools.io.errors import DataError, Tally


def save(folder: Path, source: str | bytes, target: str | bytes) -> tuple[str, str]:
    names = (folder / "train.en", folder / "train.de")
    for name, text in zip(names, (source, target), strict=True):
        name.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(names[0]), str(names[1])


def test_lines_end_at_a_line_feed_only(tmp_path: Path) -> None:
    files = save(tmp_path, "a\u2028b\nc\x85d\ne\rf\ng\x0bh\n", "1\n2\r\n3\n4")
    assert list(pairs(*files, Tally())) == [
        {"text": "a\u2028b", "target": "1"},
        {"text": "c\x85d", "target": "2"},
        {"text": "e\rf", "target": "3"},
        {"text": "g\x0bh", "target": "4"},
    ]


@pytest.mark.parametrize(
    ("source", "target", "file", "counts"),
    [
        ("a\nb\nc\n", "1\n", "train.de", "has 1 line, expected 3 as in"),
        ("a\n", "1\n2\n\n", "train.en", "has 1 line, expected 3 as in"),
        ("", "1\n2", "train.en", "has 0 lines, expected 2 as in"),
    ],
)
def test_unequal_counts_are_refused_with_both(
    tmp_path: Path, source: str, target: str, file: str, counts: str
) -> None:
    with pytest.raises(DataError, match=counts) as caught:
        list(pairs(*save(tmp_path, source, target), Tally()))
    assert str(caught.value.file).endswith(file)
    assert caught.value.code == 65


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.ndjson", "rows.de"])
def test_rows_are_not_taken_for_sentences(tmp_path: Path, name: str) -> None:
    rows = tmp_path / name
    rows.write_text('{"text": "a", "split": "test"}\n')
    text = tmp_path / "a.txt"
    text.write_text("a\n")
    for files in ((rows, text), (text, rows)):
        with pytest.raises(DataError, match="holds rows") as caught:
            list(pairs(*map(str, files), Tally()))
        assert caught.value.code == 65
        assert caught.value.file == str(rows)
        # Sentences have no split: those to evaluate on must be left out here.
        advice = """jq -r 'select((.split // "train") == "train").text | gsub("\\n"; " ")'"""
        assert f"{advice} {rows}" in caught.value.why or not name.endswith(".jsonl")


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("s.csv", "s.csv#COLUMN"),
        ("s.tsv.gz", "s.tsv.gz#COLUMN"),
        ("s.tsv#en", "s.tsv#en"),
        ("s.parquet", "s.parquet#COLUMN"),
    ],
)
def test_lines_of_tables_are_not_taken_for_sentences(
    tmp_path: Path, name: str, column: str
) -> None:
    text = tmp_path / "a.txt"
    text.write_text("a\n")
    for files in ((tmp_path / name, text), (text, tmp_path / name)):
        with pytest.raises(DataError, match="is a table, expected one sentence per line") as caught:
            list(pairs(*map(str, files), Tally()))
        assert caught.value.code == 65
        assert f"vg prepare wikitext '{tmp_path / column}' -o" in caught.value.why


def test_the_way_out_for_tables_keeps_the_lines(tmp_path: Path) -> None:
    table = tmp_path / "s.csv"
    table.write_text('id,en,de\n1,"A dog, here.\nIt ran.",Ein Hund\n2,,leer\n3,b,B\n')
    for language in ("en", "de"):
        call = [
            "prepare",
            "wikitext",
            f"{table}#{language}",
            "-o",
            str(tmp_path / f"{language}.txt"),
        ]
        assert cli.run(call) == 0
    assert list(pairs(str(tmp_path / "en.txt"), str(tmp_path / "de.txt"), Tally())) == [
        {"text": "A dog, here. It ran.", "target": "Ein Hund"},
        {"text": "b", "target": "B"},
    ]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("newstest2014-src.en.sgm", '<srcset setid="newstest2014" srclang="any">'),
        ("a.tmx", '<tmx version="1.4">'),
        ("a.en", '<?xml version="1.0"?>'),
        ("train.tags.de-en.en", "<url>http://www.ted.com/talks/1</url>"),
        ("A.XML", "<p>"),
        ("a.de", ' <doc docid="1">'),
        ("b.de", '\n \n<srcset setid="x">'),
        ("c.de", '<dataset id="newstest2021">'),
        ("d.de", "<talkid>1</talkid>"),
        ("e.de", "<DOC>"),
    ],
)
def test_xml_is_not_taken_for_sentences(tmp_path: Path, name: str, line: str) -> None:
    (tmp_path / name).write_text(f'{line}\n<seg id="1">A dog.</seg>\n')
    with pytest.raises(DataError, match=r"is XML, .* sacrebleu .* --echo src") as caught:
        list(pairs(str(tmp_path / name), str(tmp_path / name), Tally()))
    assert caught.value.code == 65


@pytest.mark.parametrize("line", ["<url> look at this", "<doc>umented", "<unk> is a token", "<"])
def test_a_sentence_may_start_with_a_mark(tmp_path: Path, line: str) -> None:
    files = save(tmp_path, f"{line}\n", "b\n")
    assert list(pairs(*files, Tally(), ratio=9)) == [{"text": line, "target": "b"}]


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    files = save(tmp_path, "a b\n\na b c\n \na\nb\n", "1\n2\n3 4\n5\n6 7 8\n\t\n")
    tally = Tally()
    kept = [row["text"] for row in pairs(*files, tally)]
    assert kept == ["a b", "a b c", "a"]
    assert tally.left_out == {"pair with an empty side": 3}
    tally = Tally()
    # words: 2 to 1, 3 to 2, 1 to 3
    kept = [row["text"] for row in pairs(*files, tally, ratio=2)]
    assert kept == ["a b", "a b c"]
    assert tally.left_out["pair with one side over 2 times the other"] == 1
    tally = Tally()
    kept = [row["text"] for row in pairs(*files, tally, longest=2)]
    assert kept == ["a b"]
    assert tally.left_out["pair with a side of more than 2 words"] == 2


def test_bad_bytes_are_counted_and_nothing_is_refused(tmp_path: Path) -> None:
    tally = Tally()
    files = save(tmp_path, b"a\xff\nb\n", b"1\n2\n")
    assert [row["text"] for row in pairs(*files, tally)] == ["a\ufffd", "b"]
    assert tally.text.replaced == 1
    with pytest.raises(DataError, match="is empty"):
        list(pairs(*save(tmp_path, "", ""), Tally()))
