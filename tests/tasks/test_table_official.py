"""Official tables of JOCI, PDTB, SICK and VUA, rows written by hand in their forms."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny.examples import fails, read
from vgtools.tasks.dispatch import read_examples
from vgtools.tasks.examples import ReadStats
from vgtools.tasks.table import find_task

JOCI = (
    "CONTEXT,HYPOTHESIS,LABEL,CONTEXT_FROM,HYPOTHESIS_FROM,SUBSET\n"
    '"A man, alone, sits .",A person sits .,5,SNLI-train,SNLI-ENTAILMENT,SNLI\n'
    "A dog runs .,The run is a lacquer .,0,SNLI-train,AGCI-WK,AGCI\n"
)
SICK = (
    "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    "4\tA boy sits\tNo boy sits\t3.6\tCONTRADICTION\n"
    "24\tA man runs\tA man moves\t4.2\tENTAILMENT\n"
)
VUA = (
    "text_idx,sentence_idx,verb,sentence,verb_idx,label\r\n"
    'a1-fragment01,1,go,"He went away , and went on .",5,1\r\n'
    "a1-fragment01,2,be,He is \udcff\udca3 old,1,0\r\n"
)


def test_joci_has_scores_of_0_to_5(tmp_path: Path) -> None:
    found, _ = read("joci", tmp_path, JOCI, name="A.train.csv")
    assert [(e.text, e.pair, e.label) for e in found] == [
        ("A man, alone, sits .", "A person sits .", 5.0),
        ("A dog runs .", "The run is a lacquer .", 0.0),
    ]
    fails("joci", tmp_path, JOCI.replace(",0,", ",6,"), "'6' in \"LABEL\"", "0 to 5", line=3)
    fewer = "LABEL,HYPOTHESIS,CONTEXT\n3,Yes .,No .\n"
    assert read("joci", tmp_path, fewer)[0][0].text == "No ."


def test_sick_is_entailment(tmp_path: Path) -> None:
    found, stats = read("sick", tmp_path, SICK, name="SICK_train.txt")
    assert [(e.id, e.text, e.pair, e.label) for e in found] == [
        ("4", "A boy sits", "No boy sits", 2),
        ("24", "A man runs", "A man moves", 0),
    ]
    assert stats.labels == {"CONTRADICTION": 1, "ENTAILMENT": 1}


def test_vua_is_a_sentence_and_the_word_as_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "VUA_formatted_val.csv"
    path.write_bytes(VUA.encode("utf-8", "surrogateescape"))

    stats = ReadStats()
    found = list(read_examples("vua", path, stats=stats))
    assert [(e.text, e.pair, e.label) for e in found] == [
        ("He went away , and went on .", "went", 1),
        ("He is \ufffd\ufffd old", "is", 0),
    ]
    assert "1 lines are not UTF-8; bad bytes were replaced" in list(stats.report())


@pytest.mark.parametrize("number", ["8", "-1", "x", ""])
def test_a_verb_that_the_sentence_does_not_have(tmp_path: Path, number: str) -> None:
    bad = VUA.split("\r\n")[:2]
    bad[1] = bad[1].replace(",5,1", f",{number},1")
    why = "expected the number of a word, 0 to 7"
    fails("vua", tmp_path, "\r\n".join(bad), f'{number!r} in "verb_idx"', why, line=2)


def test_pdtb_has_the_16_types_of_level_2(tmp_path: Path) -> None:
    assert len(find_task("pdtb").labels) == 16
    row = '{"sentence1": "a", "sentence2": "b", "label": "Expansion.List", "split": "dev"}\n'
    found, _ = read("pdtb", tmp_path, row, name="dev.jsonl")
    assert (found[0].text, found[0].pair, found[0].label) == ("a", "b", 15)
    fails("pdtb", tmp_path, row.replace(".List", ""), "'Expansion' in \"label\"", line=1)


SNLI = (
    '{"annotator_labels":["neutral"],"captionID":"37.jpg#4","gold_label":"neutral",'
    '"pairID":"37.jpg#4r1n","sentence1":"A person on a horse .","sentence2":"He trains it ."}\n'
    '{"annotator_labels":["neutral","entailment"],"captionID":"26.jpg#2","gold_label":"-",'
    '"pairID":"26.jpg#2r1e","sentence1":"A child .","sentence2":"A boy ."}\n'
    '{"annotator_labels":["contradiction"],"captionID":"26.jpg#2",'
    '"gold_label":"contradiction","pairID":"26.jpg#2r1c","sentence1":"A child .","sentence2":""}\n'
)


@pytest.mark.parametrize("unlabelled", [False, True])
def test_snli_leaves_out_pairs_without_agreement_also_of_the_test_set(
    tmp_path: Path, unlabelled: bool
) -> None:
    found, stats = read("snli", tmp_path, SNLI, name="snli.jsonl", unlabelled=unlabelled)
    assert [(e.id, e.text, e.pair, e.label, e.image) for e in found] == [
        ("37.jpg#4r1n", "A person on a horse .", "He trains it .", 1, "37.jpg"),
        ("26.jpg#2r1c", "A child .", "", 2, "26.jpg"),
    ]
    assert (stats.no_gold, stats.labels) == (1, {"neutral": 1, "contradiction": 1})
    assert found[1].whole_text == "A child . "


def test_snli_as_data_hubs_export_it(tmp_path: Path) -> None:
    rows = "premise\thypothesis\tlabel\nA child .\tA boy .\t-1\nA man .\tA person .\t0\n"
    found, stats = read("snli", tmp_path, rows, name="snli.tsv")
    assert [(e.text, e.label) for e in found] == [("A man .", 0)]
    assert stats.no_gold == 1
    row = '{"premise": "A", "hypothesis": "B", "label": -1}\n'
    row += '{"premise": "C", "hypothesis": "D", "label": "entailment"}\n'
    found, stats = read("snli", tmp_path, row, name="snli.jsonl")
    assert [(e.text, e.label, e.image) for e in found] == [("C", 0, None)]
    assert stats.no_gold == 1
    bad = rows.replace("\t0\n", "\t3\n")
    fails("snli", tmp_path, bad, "'3' in \"label\"", "entailment (0), neutral (1)", line=3)


KAGGLE = (
    "id,url_legal,license,excerpt,target,standard_error\n"
    'c12129e31,,,"He said ""No"",\nand went.",-0.340259125,0.464009046\n'
    "85aa80a4c,http://x.org,CC,One line.,1.5,0.48\n"
)
CLEAR = (
    "id,title,author,year,category,license,excerpt,target,standard_error\r\n"
    '400,"A Suitor, or Two",C. Wells,1914,Lit,,"He said ""No"",\r\nand went.",-0.34,0.46\r\n'
)


def test_read_has_the_headers_of_kaggle_and_of_clear(tmp_path: Path) -> None:
    text = 'He said "No",\nand went.'
    found, stats = read("commonlit", tmp_path, KAGGLE, name="train.csv")
    assert [(e.id, e.text, e.pair, e.label) for e in found] == [
        ("c12129e31", text, None, -0.340259125),
        ("85aa80a4c", "One line.", None, 1.5),
    ]
    assert (stats.rows, stats.labels) == (2, {})
    found, _ = read("read", tmp_path, CLEAR, name="clear.csv")
    assert [(e.id, e.text, e.label) for e in found] == [("400", text, -0.34)]
    test = "id,url_legal,license,excerpt\nc0f722661,,,Alone.\n"
    found, _ = read("commonlit", tmp_path, test, unlabelled=True)
    assert [(e.id, e.text, e.label) for e in found] == [("c0f722661", "Alone.", None)]
    fails("commonlit", tmp_path, test, 'the header has no column "target"', line=1)


@pytest.mark.parametrize("target", ["-5.1", "3.01", "nan", "inf", "", "easy"])
def test_a_target_that_read_does_not_have(tmp_path: Path, target: str) -> None:
    bad = KAGGLE.replace("1.5,", f"{target},")
    fails("commonlit", tmp_path, bad, f'{target!r} in "target"', "from -5 to 3", line=4)


def test_broken_tables_of_read(tmp_path: Path) -> None:
    fails("commonlit", tmp_path, KAGGLE[:-30], "expected 6 columns", line=4)
    fails("commonlit", tmp_path, KAGGLE[:80], "is the file cut off?", line=2)
    other = KAGGLE.replace("excerpt", "text", 1)
    fails("commonlit", tmp_path, other, "not a header of this task", "excerpt, target", line=1)
