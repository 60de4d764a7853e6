"""Official files of every task, written here in their forms, read value by value; and bad ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import feather, parquet

from tests.tiny.examples import SWAG, fails, qa, read, squad, write
from vgtools.io.errors import DataError, Exit
from vgtools.tasks.dispatch import read_examples
from vgtools.tasks.examples import Example, ReadStats
from vgtools.tasks.table import TASKS

COLA = (
    "aa01\t1\t\tThe cat slept.\naa01\t0\t*\tCat the slept.\naa02\t1\t\tWho left?\n"
    "aa02\t1\t\tShe said \"no.\naa03\t0\t??\tHe put.\naa03\t1\t\tIt rained.\n"
)  # fmt: skip

SST = (
    'sentence\tlabel\na warm film \t1\ndull \t0\nnever boring \t1\nnot "fun" \t0\n'
    "bright \t1\nflat \t0\n"
)

MRPC = (
    "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
    '1\t11\t12\tHe said "yes.\tHe agreed.\r\n0\t13\t14\t"A" won.\tB lost.\r\n'
    "1\t15\t16\tRain fell.\tIt rained.\r\n"
    "1\t17\t18\tC rose.\tC went up.\r\n0\t19\t20\tD\tE\r\n1\t21\t22\tF\tF\r\n"
)

STS = (
    "captions\tmine\t2001\t0001\t5.000\tA dog runs.\tA dog is running.\n"
    "captions\tmine\t2001\t0002\t0.250\tA dog runs.\tA cup broke.\tlicence one\tlicence two\n"
    "captions\tmine\t2001\t0003\t0\tRed.\tTwelve.\n"
)

QQP_HEAD = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"

QQP = "7\t1\t2\tHow so?\tWhy?\t1\n8\t3\t4\tbroken\n by a line\t0\n9\t5\t6\tWho?\tWhere?\t0\n"

MNLI = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse"
    "\tsentence1\tsentence2\tlabel1\tgold_label\n"
    "0\t31\t31n\tfiction\t( a )\t( b )\t(A)\t(B)\tIt is late.\tIt is "
    "early.\tneutral\tcontradiction\n"
    "1\t32\t32n\tfiction\t( a )\t( b )\t(A)\t(B)\tSome ran.\tOne ran.\tneutral\tneutral\n"
    "2\t33\t33n\tfiction\t( a )\t( b )\t(A)\t(B)\tAll ran.\tOne ran.\tneutral\tentailment\n"
    "3\t34\t34n\tfiction\t( a )\t( b )\t(A)\t(B)\tNo one.\tNobody.\tneutral\t-\n"
)

RTE = (
    'index\tsentence1\tsentence2\tlabel\n0\tIt "rains.\tIt is wet.\tentailment\n1\tHe '
    "sat.\tHe stood.\tnot_entailment\n"
)

EXPORT = (
    'index\tlabel\tsentence1\tsentence2\n4\t1\t"He said ""no""."\tHe agreed.\n9\t0\tIt '
    'rains.\t"two\nlines"\n12\t1\tA\tB\n'
)

QNLI = (
    "index\tquestion\tsentence\tlabel\n0\tWho?\tAnn did.\tentailment\n1\tWhen?\tIt was "
    "cold.\tnot_entailment\n"
)

WNLI = (
    "index\tsentence1\tsentence2\tlabel\n0\tThe cup fell; it broke.\tThe cup broke.\t1\n"
    "1\tHe fed it.\tHe ate.\t0\n"
)


def test_cola_has_no_header_and_no_quoting(tmp_path: Path) -> None:
    found, stats = read("cola", tmp_path, COLA)
    assert [(e.id, e.label) for e in found] == [
        ("0", 1),
        ("1", 0),
        ("2", 1),
        ("3", 1),
        ("4", 0),
        ("5", 1),
    ]
    assert (found[1].text, found[3].text, found[1].pair) == (
        "Cat the slept.",
        'She said "no.',
        None,
    )
    assert stats.balance() == [("acceptable", 4, 4 / 6), ("unacceptable", 2, 2 / 6)]


def test_cola_test_file_has_a_header_and_no_labels(tmp_path: Path) -> None:
    found, _ = read("CoLA", tmp_path, "index\tsentence\n5\tBo ran.\n", unlabelled=True)
    assert found == [Example("5", "Bo ran.")]


def test_sst2(tmp_path: Path) -> None:
    found, stats = read("sst2", tmp_path, SST)
    assert [e.label for e in found] == [1, 0, 1, 0, 1, 0]
    assert [e.text for e in found[2:4]] == ["never boring ", 'not "fun" ']
    assert next(stats.report()) == "6 examples, positive 3 (50.0%), negative 3 (50.0%)"


def test_mrpc_official_file_has_quotes_as_text_a_mark_and_crlf(tmp_path: Path) -> None:
    found, _ = read("mrpc", tmp_path, MRPC)
    assert [e.label for e in found] == [1, 0, 1, 1, 0, 1]
    assert (found[0].text, found[0].pair) == ('He said "yes.', "He agreed.")
    assert found[1].text == '"A" won.'


@pytest.mark.parametrize("task", ["mrpc", "rte", "wnli"])
def test_hub_exports_are_quoted_even_across_lines(tmp_path: Path, task: str) -> None:
    found, stats = read(task, tmp_path, EXPORT)
    assert [(e.id, e.text, e.pair, e.label) for e in found] == [
        ("4", 'He said "no".', "He agreed.", 1),
        ("9", "It rains.", "two\nlines", 0),
        ("12", "A", "B", 1),
    ]
    assert (
        stats.labels.most_common(1)[0][0]
        == {"mrpc": "equivalent", "rte": "not_entailment", "wnli": "entailment"}[task]
    )


def test_stsb_scores_and_licence_columns(tmp_path: Path) -> None:
    found, stats = read("sts-b", tmp_path, STS)
    assert [e.label for e in found] == [5.0, 0.25, 0.0]
    assert (found[1].text, found[1].pair) == ("A dog runs.", "A cup broke.")
    assert list(stats.report()) == ["3 examples, from 0 to 5, on average 1.75"]
    glue = (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
    )
    glue += "3\tg\tf\t1\t2\ts\tt\tA\tB\t2.5\n"
    assert read("STS-B", tmp_path, glue)[0] == [Example("3", "A", "B", 2.5)]


@pytest.mark.parametrize("head", [QQP_HEAD, ""])
def test_qqp_counts_broken_rows(tmp_path: Path, head: str) -> None:
    found, stats = read("qqp", tmp_path, head + QQP)
    assert found == [Example("7", "How so?", "Why?", 1), Example("9", "Who?", "Where?", 0)]
    assert (stats.rows, stats.broken, stats.first_broken) == (2, 2, 3 if head else 2)
    assert list(stats.report())[1].startswith(
        "2 rows with a wrong column count were left out, the first on line"
    )


def test_mnli_finds_columns_by_name_and_leaves_out_rows_without_agreement(tmp_path: Path) -> None:
    found, stats = read("mnli", tmp_path, MNLI)
    assert [(e.id, e.text, e.pair, e.label) for e in found] == [
        ("0", "It is late.", "It is early.", 2),
        ("1", "Some ran.", "One ran.", 1),
        ("2", "All ran.", "One ran.", 0),
    ]
    assert stats.no_gold == 1
    assert [e.label for e in read("mnli", tmp_path, MNLI, unlabelled=True)[0]] == [2, 1, 0]


def test_jsonl_has_the_same_names(tmp_path: Path) -> None:
    rows = (
        '{"premise": "A", "hypothesis": "B", "label": "neutral"}\n{"premise": "C", '
        '"hypothesis": "D", "label": 2}\n'
    )
    assert read("mnli", tmp_path, rows, "data.jsonl")[0] == [
        Example("0", "A", "B", 1),
        Example("1", "C", "D", 2),
    ]
    other = '{"sentence1": "A", "sentence2": "B", "gold_label": "entailment", "pairID": "x"}\n'
    assert read("mnli", tmp_path, other, "data.jsonl")[0] == [Example("0", "A", "B", 0)]
    hub = '{"sentence": "A", "label": -1, "idx": 0}\n'
    assert read("cola", tmp_path, hub, "data.jsonl", unlabelled=True)[0] == [Example("0", "A")]
    assert (
        read(
            "stsb", tmp_path, '{"sentence1": "A", "sentence2": "B", "label": 3.5}\n', "data.jsonl"
        )[0][0].label
        == 3.5
    )


@pytest.mark.parametrize(("task", "text"), [("rte", RTE), ("qnli", QNLI)])
def test_entailment_as_words_and_as_numbers(tmp_path: Path, task: str, text: str) -> None:
    assert [e.label for e in read(task, tmp_path, text)[0]] == [0, 1]
    numbers = text.replace("\tnot_entailment", "\t1").replace("\tentailment", "\t0")
    assert read(task, tmp_path, numbers)[0] == read(task, tmp_path, text)[0]


def test_rte_official_file_is_not_quoted(tmp_path: Path) -> None:
    assert read("rte", tmp_path, RTE)[0][0] == Example("0", 'It "rains.', "It is wet.", 0)


def test_wnli_counts_the_other_way_round(tmp_path: Path) -> None:
    found, stats = read("wnli", tmp_path, WNLI)
    assert [e.label for e in found] == [1, 0]
    assert stats.labels == {"entailment": 1, "not_entailment": 1}


def test_compressed_files_stream(tmp_path: Path) -> None:
    path = tmp_path / "data.tsv.gz"
    path.write_bytes(gzip.compress(SST.encode()))
    assert len(list(read_examples("sst-2", path))) == 6
    first = next(
        iter(read_examples("sst-2", write(tmp_path, SST + "torn")))
    )  # the end has not been read yet
    assert first.text == "a warm film "


@pytest.mark.parametrize("task", [t.name for t in TASKS])
def test_empty_file(tmp_path: Path, task: str) -> None:
    with pytest.raises(DataError, match="data") as caught:
        read(task, tmp_path, "")
    assert caught.value.code == Exit.DATA


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        next(read_examples("rte", tmp_path / "no.tsv"))
    assert caught.value.code == Exit.NO_INPUT


def test_header_only_and_all_rows_broken(tmp_path: Path) -> None:
    fails("sst-2", tmp_path, "sentence\tlabel\n", "holds no examples", "sentence, label")
    fails(
        "qqp",
        tmp_path,
        "a,b,c\nd,e,f\n",
        "all 2 rows have a wrong column count",
        "question1, question2, is_duplicate",
    )


def test_missing_header(tmp_path: Path) -> None:
    body = SST.split("\n", 1)[1]
    fails("sst-2", tmp_path, body, "not a header", "a warm film", "sentence, label", line=1)
    fails("swag", tmp_path, SWAG.split("\n", 1)[1], "not a header", "ending0", line=1)


def test_missing_label_column(tmp_path: Path) -> None:
    text = "index\tquestion\tsentence\n0\tWho?\tAnn.\n"
    fails("qnli", tmp_path, text, 'no column "label"', "index, question, sentence", line=1)


def test_a_column_named_twice(tmp_path: Path) -> None:
    fails("sst-2", tmp_path, "sentence\tlabel\tlabel\nx\t1\t0\n", "twice", line=1)


def test_wrong_column_count(tmp_path: Path) -> None:
    fails(
        "cola",
        tmp_path,
        COLA + "aa\t1\tno star\n",
        "expected 4 columns (source, label, star, sentence), got 3",
        line=7,
    )
    fails("sst-2", tmp_path, SST + "\n", "expected 2 columns (sentence, label), got 1", line=8)
    fails(
        "sts-b",
        tmp_path,
        STS.replace("licence two", "two\tthree"),
        "expected 7 columns",
        "got 10",
        line=2,
    )


@pytest.mark.parametrize("label", ["2", "-1", "", "yes", "1.0", "٣", "0001"])
def test_unknown_class(tmp_path: Path, label: str) -> None:
    text = SST + f"odd\t{label}\n"
    fails("sst-2", tmp_path, text, f'{label!r} in "label"', "negative (0), positive (1)", line=8)


@pytest.mark.parametrize("score", ["nan", "inf", "5.001", "-0.1", "high", ""])
def test_bad_score(tmp_path: Path, score: str) -> None:
    text = STS.replace("0.250", score)
    fails("sts-b", tmp_path, text, f'{score!r} in "score"', "a number from 0 to 5", line=2)


def test_bad_jsonl(tmp_path: Path) -> None:
    good = '{"sentence": "A", "label": 1}\n'
    fails("sst-2", tmp_path, good + '{"sentence": "B", "la', "not valid JSON", line=2)
    fails("sst-2", tmp_path, good + '{"sentence": "B"}\n', 'the key "label" is missing', line=2)
    fails(
        "sst-2",
        tmp_path,
        good + '{"sentence": 3, "label": 1}\n',
        '"sentence" must be a string, got 3',
        line=2,
    )
    fails("sst-2", tmp_path, good + '{"sentence": "B", "label": true}\n', "True", "a label", line=2)
    fails(
        "sst-2",
        tmp_path,
        '{"text": "B", "label": 1}\n',
        "the keys text, label",
        "sentence, label",
        line=1,
    )


def test_torn_quotes(tmp_path: Path) -> None:
    fails(
        "rte",
        tmp_path,
        EXPORT + '13\t0\t"never closed\tB\n',
        "not valid quoted text",
        "cut off",
        line=6,
    )


def test_repeated_id(tmp_path: Path) -> None:
    fails("qnli", tmp_path, QNLI + "0\tWhy?\tSo.\tentailment\n", "duplicate id '0'", line=4)
    fails("squad", tmp_path, squad(qa("q", ("Bo", 8)), qa("q", ("Bo", 8))), "duplicate id 'q'")


def test_bad_bytes_are_replaced_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "data.tsv"
    path.write_bytes(b"sentence\tlabel\ncaf\xe9\t1\n")
    stats = ReadStats()
    assert [e.text for e in read_examples("sst-2", path, stats=stats)] == ["caf\ufffd"]
    assert list(stats.report())[1].startswith("1 lines are not UTF-8")


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_characters="\0\t\n\r", exclude_categories=["Cs"])),
            st.booleans(),
        ),
        min_size=1,
    )
)
def test_any_text_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    lines = "".join(f"{text}\t{int(label)}\n" for text, label in rows)
    assert [
        (e.text, e.label) for e in read("sst-2", folder, "sentence\tlabel\n" + lines)[0]
    ] == rows


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
@pytest.mark.parametrize("task", ["rte", "sst-2", "conll-2003"])
def test_a_table_has_the_examples_of_its_rows(tmp_path: Path, task: str, name: str) -> None:
    rows: list[dict[str, Any]] = {
        "rte": [{"idx": i, "sentence1": "a", "sentence2": "b", "label": i % 2} for i in range(9)],
        "sst-2": [{"sentence": f"so {i}", "label": i % 2} for i in range(9)],
        "conll-2003": [{"text": "Ada ran", "tags": ["B-PER", "O"]} for i in range(9)],
    }[task]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = pa.Table.from_pylist(rows)
    if name.endswith("arrow"):
        feather.write_feather(table, tmp_path / name)
    else:
        parquet.write_table(table, tmp_path / name, row_group_size=4)
    expected = [*read_examples(task, tmp_path / "x.jsonl")]
    assert [*read_examples(task, tmp_path / name)] == expected
    assert len(expected) == 9
    damaged = pa.Table.from_pylist([*rows, dict.fromkeys(rows[0])])
    parquet.write_table(damaged, tmp_path / "bad.parquet")
    with pytest.raises(DataError, match=r"bad.parquet:10: "):
        [*read_examples(task, tmp_path / "bad.parquet")]
