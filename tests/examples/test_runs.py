"""A target per paper, and one more each day, run whole at toy size; `make examples` runs all."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples import make
from tests.examples.table import ROWS, Row

SHARE = (
    "grounding:any:table4",
    "visual-awareness:small:retrieval",
    "visualbert:any:paper-files,paper",
    "vokenization:any:paper-files,paper",
    "worth:small:files,all:ROWS='mlm,vokens'",
    "xdbert:small:teacher",
)
NO_PAPERS = {"cluster", "compare", "german"}
# Another one each day, of those that take seconds.
DAILY = (
    "compare:small:files",
    "german:any:all",
    "grounding:any:files",
    "visual-awareness:paper:retrieval",
    "visual-awareness:small:conll-counts",
    "visual-awareness:small:figure3,figure4",
    "visualbert:any:nlvr2",
    "visualbert:any:vqa",
    "xdbert:any:table4,table6,table7",
    "xdbert:small:adapt",
    "xdbert:small:table2",
)


def named(name: str) -> Row:
    return next(row for row in ROWS if row.name == name)


@pytest.fixture(scope="module")
def vg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with make.preloaded(tmp_path_factory.mktemp("server")) as command:
        yield command


def check(row: Row, folder: Path, vg: str) -> None:
    outcome = make.run(row, folder / "run", make.Places(folder / "files"), vg)
    assert not outcome.faults, "\n".join([row.name, *outcome.faults, outcome.out])
    assert outcome.code == 0
    assert outcome.files > 0 or row.shows


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_checks_more_than_the_exit_code(row: Row) -> None:
    assert row.shows or row.makes


def test_files_that_a_row_makes(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"kind": "run"}\nlast\n')
    (tmp_path / "empty.json").touch()
    for word in ("a.json", 'a.json:"kind":."run"', "a.js*:^last$"):
        assert not make.lacking(word, tmp_path)
    assert make.lacking("b.json", tmp_path) == ["makes no b.json, or an empty one"]
    assert make.lacking("*.json", tmp_path) == ["makes no *.json, or an empty one"]
    assert make.lacking("a.json:^kind", tmp_path) == ["a.json does not hold '^kind'"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARE)
def test_a_target_of_each_paper(name: str, tmp_path: Path, vg: str) -> None:
    check(named(name), tmp_path, vg)


@pytest.mark.slow
def test_the_target_of_the_day(tmp_path: Path, vg: str) -> None:
    number = datetime.datetime.now(datetime.UTC).toordinal() % len(DAILY)
    print(f"target of the day: {DAILY[number]}")
    check(named(DAILY[number]), tmp_path, vg)


def test_the_names_are_of_rows() -> None:
    assert {*SHARE, *DAILY} <= {row.name for row in ROWS}
    assert {named(name).example for name in SHARE} >= {*make.EXAMPLES} - NO_PAPERS
