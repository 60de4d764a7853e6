"""Tables of scores and corpora, and the tables of papers beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.calls import application
from tests.examples.make import phony
from tests.tiny.finetune import save_two
from vgtools import systems
from vgtools.io.errors import DataError, Exit
from vgtools.reports.tables import (
    _COMPARED_BY,
    _PAPERS,
    Table,
    corpora_table,
    corpus_name,
    markdown,
    matcher_tables,
    print_seeds,
    reported,
    score_table,
)
from vgtools.tasks import compare
from vgtools.tasks.table import find_task


@pytest.fixture
def two(tmp_path: Path) -> list[str]:
    return save_two(tmp_path)


def test_layout(two: list[str]) -> None:
    rows_of = compare.read_rows(two)
    found = [*compare.compare(rows_of, samples=300), reported("2")[0]]
    found[1]["tasks"]["sst-2"]["difference"] |= {"p": 0.0004, "significant": True}
    found[1]["tasks"]["qqp"]["difference"] |= {"p": 0.25, "significant": False}
    headings, rows, remarks, _ = score_table(found)
    assert headings == [
        "Run",
        "SST-2",
        "QNLI",
        "QQP",
        "MNLI",
        "SQuAD v1.1 EM/F1",
        "SQuAD v2.0 EM/F1",
        "SWAG",
        "Avg.",
    ]
    assert rows[1][:3] == ["vokens", "93.8 ± 8.8 *", "-"]
    assert rows[1][5] == "50.0/83.3"
    assert rows[2][:2] == ["  less mlm", "+56.2 (p < 0.001)"]
    assert rows[2][3].endswith("(p 0.250)")
    assert rows[3] == [
        "BERT 6L/512H (reported)",
        "88.0",
        "85.2",
        "87.1",
        "77.9",
        "71.3/80.2",
        "57.2/60.8",
        "56.2",
        "75.6",
    ]
    assert remarks[0].endswith("over seeds. QQP: mean of F1 and accuracy.")
    assert "the tasks that all rows have (SST-2, QQP)" in remarks[1]
    assert score_table(found, bold=True)[1][1][1] == "**93.8** ± 8.8"
    found[1]["tasks"]["sst-2"]["difference"]["value"] = -1.0
    assert score_table(found)[1][1][1] == "93.8 ± 8.8 †"


def test_tables_of_papers_have_names() -> None:
    assert reported("vokenization:2") == reported("2")
    assert reported("6")[0]["run"] == "Random"
    first = reported("grounding:3")[0]
    assert (first["run"], first["tasks"]["joci"], first["average"]) == (
        "Albert-base",
        {"mean": 6.7},
        63.4,
    )
    for name in ("7", "1", "visualbert:2", "vokenization:", "vokenization:x", ":"):
        with pytest.raises(DataError, match="known are vokenization:2, 3, 4, 5, 6") as caught:
            reported(name)
        assert caught.value.code == Exit.USAGE


def test_a_table_of_reported_rows_alone_says_nothing_of_seeds() -> None:
    remarks = score_table(reported("xdbert:7"))[2]
    assert remarks[0] == "Percent. QQP: mean of F1 and accuracy."


def test_reported_corpora_are_marked() -> None:
    measured = {
        "corpus": "a|b.txt",
        "tokenizer": "words",
        "tokens": 1200,
        "sentences": 100,
        "vocabulary": 0,
        "tokens_per_sentence": 12.0,
    }
    assert (
        corpus_name(reported("vokenization:1", "corpora")[0]) == "MS COCO (reported in the paper)"
    )
    lines = markdown(corpora_table([measured, *reported("vokenization:1", "corpora")])).splitlines()
    assert lines[2] == "| a\\|b.txt | 1,200 | 100 | 0 | 12.0 | – | – | – |"
    assert lines[3].startswith("| MS COCO (reported in the paper) | 7,000,000 |")
    only = markdown(corpora_table([measured]))
    assert "JSD" not in only
    assert "Reported" not in only


def test_markdown_keeps_bars_inside_their_cell() -> None:
    table = Table(["Run", "A"], [["x|y", "1"]], ["Note."])
    assert markdown(table) == "| Run | A |\n|---|--:|\n| x\\|y | 1 |\n\nNote.\n"


def test_seeds_of_a_matcher_share_a_row() -> None:
    def record(run: str, r10: float, **more: object) -> dict[str, object]:
        recall = {"r1": 1.0, "r5": 2.0, "r10": r10}
        chance = {"r1": 0.1, "r5": 0.5, "r10": 1.0}
        return {
            "run": run,
            "images": 1000,
            "chance": chance,
            "caption": recall,
            "interval": {"caption": {"r10": [r10 - 2, r10 + 1]}},
            **{name: recall for name in ("word", "content") if more},
            **more,
        }

    def words(concept: float, distinct: int) -> dict[str, object]:
        return {
            "pos": {"NOUN": concept, "VERB": 1.0},
            "phrases": {"nouns": 4398, "chance": 8.4, "concept": concept, "others": 3.0}
            | {"best_voken": 21.5}
            | {"others_chance": 7.25, "interval": {"others": [2.0, 3.5]}},
            "text": {
                "tokens": 80664,
                "images": 6000,
                "nouns": 11277,
                "chance": 0.8,
                "distinct": distinct,
                "effective": 912,
                "noun_hit": 4.0,
                "best_voken": 3.6,
                "permuted": 0.9,
                "best_half": 6.0,
                "best_quarter": 7.0,
                "worst_quarter": 1.0,
                "interval": {"noun_hit": [3.0, 5.5]},
            },
        }

    seeds = [record(f"a/paper.s{n}", 30.0 + n, **words(36.0 + n, 1000 + 5000 * n)) for n in (0, 1)]
    main, pos, text = matcher_tables([*seeds, record("sentence", 9.0)])
    assert main.rows == [
        [
            "a/paper (2)",
            *["1.0 / 2.0 / 30.5 ± 0.5"] * 2,
            "1.0 / 2.0 / 30.5 ± 0.5 (28.5 to 31.5)",
            "36.5 ± 0.5",
            "3.0 ± 0.0 (2.0 to 3.5)",
        ],
        ["sentence (1)", "-", "-", "1.0 / 2.0 / 9.0 (7.0 to 10.0)", "-", "-"],
    ]
    chance = "concept hit 8.4 (one photo for all nouns 21.5)"
    chance += ", without the own photo 7.25 (4,398 annotated nouns)."
    assert main.remarks[1] == f"1,000 photos; chance: R@10 1.0, {chance}"
    assert pos.headings == ["Recipe (seeds)", "NOUN", "VERB"]
    assert pos.rows == [["a/paper (2)", "36.5 ± 0.5", "1.0 ± 0.0"], ["sentence (1)", "-", "-"]]
    assert text.rows[0] == [
        *["a/paper (2)", "3,500.0 ± 2,500.0", "912.0 ± 0.0", "4.0 ± 0.0 (3.0 to 5.5)"],
        *["0.9 ± 0.0", "6.0 ± 0.0", "7.0 ± 0.0", "1.0 ± 0.0"],
    ]
    bank = "80,664 tokens of text, bank of 6,000 photos"
    assert text.remarks == (
        f"{bank}; 11,277 nouns, chance 0.8, best single voken for all of them 3.6.",
    )
    (alone,) = matcher_tables([record("sentence", 9.0)])
    assert alone.remarks[1] == "1,000 photos; chance: R@10 1.0."


def test_a_reliability_curve_counts_each_word_of_each_seed() -> None:
    def record(seed: int, *bins: tuple[float, float, float, int]) -> dict[str, object]:
        curve = [{"from": a, "score": s, "right": r, "count": n} for a, s, r, n in bins]
        return {
            "run": f"text.s{seed}",
            "images": 10,
            "chance": {"r10": 1.0},
            "caption": {"r1": 1.0, "r5": 2.0, "r10": 3.0},
            "interval": {},
            "reliability": curve,
        }

    # a mean that is rounded to the edge of its fifth stays in it
    first = record(0, (0.0, 20.0, 20.0, 1), (80.0, 100.0, 50.0, 2))
    records = [first, record(1, (0.0, 20.0, 0.0, 3))]
    *_, curve = matcher_tables(records)
    # (1 · 20 + 3 · 0) / 4 is 5, not the mean of 20 and 0
    assert curve.rows == [
        ["text", "captions", "20 → 5 (of 4)", "-", "-", "-", "100 → 50 (of 2)"],
    ]


def test_an_error_is_printed_with_its_decimals(capsys: pytest.CaptureFixture[str]) -> None:
    values = {"rmse": 0.61234, "headline": 0.61234}
    run = {
        "seeds": {"1": values},
        "summary": {name: {"mean": value} for name, value in values.items()},
        "majority": {"rmse": 1.02, "headline": 1.02},
    }
    print_seeds(find_task("commonlit"), run)
    assert capsys.readouterr().err.splitlines() == [
        "READ, 1 seed   score  the mean",
        "rmse           0.612     1.020",
    ]


@pytest.mark.parametrize("paper", sorted(_PAPERS))
def test_a_table_of_another_kind_names_what_prints_ours(paper: str) -> None:
    """It names a command that there is, with its flags, and a target of the paper's example."""
    targets = phony(paper, "paper")
    tables = Path(systems.__file__).parent / paper.replace("-", "_") / "reported"
    scored = {file.name.split(".")[1] for file in tables.glob("scores.*.jsonl")}
    assert scored
    for file in sorted(tables.iterdir()):
        what, number, _ = file.name.split(".")
        name = f"{paper}:{number}"
        ours = _COMPARED_BY[what].format(name=name, number=number)
        assert reported(name, what)
        if what == "scores":
            continue
        call, _, target = ours.partition(", or make ")
        assert target in targets
        command, words = application(), call.split()[1:]
        while inner := getattr(command, "commands", {}):  # the first is meant for none
            command = inner[words.pop(0) if words[0] in inner else next(iter(inner))]
        flags = {flag for parameter in command.params for flag in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= flags
        if number not in scored:
            with pytest.raises(DataError, match="known are vokenization:2") as caught:
                reported(name)
            assert f"{name} holds {what.replace('_', ' ')}: " in str(caught.value)
            assert f"compare with it by {ours}; " in str(caught.value)
