"""Maps between the streams: which token is of which kind, and measures worked by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.tiny.xdbert import save_xdbert
from vgtools.io.arrays import Array
from vgtools.models.encoder import Encoder
from vgtools.systems.xdbert.maps import (
    MEASURES,
    CrossProbe,
    _intervals,
    measure,
    read_sequences,
    read_student,
    read_teacher,
    same_characters,
)
from vgtools.systems.xdbert.model import XDBertRun, open_xdbert


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> XDBertRun:
    return open_xdbert(str(save_xdbert(tmp_path_factory.mktemp("maps"))))


def words(encoder: Encoder, ids: Array) -> list[str]:
    return [str(encoder.tokenizer.id_to_token(i)) for i in ids.tolist()]


def test_what_both_streams_read(run: XDBertRun) -> None:
    texts = ("Bam the, den", "fur.")
    student, teacher = read_student(texts, run.student), read_teacher(texts, run.teacher)
    read = words(run.student, student.ids)
    assert read == ["[CLS]", "bam", "t", "##h", "##e", ",", "den", "[SEP]", "fur", ".", "[SEP]"]
    assert student.second == 8
    assert student.part.tolist() == [-1, 0, 0, 0, 0, 0, 0, -1, 1, 1, -1]
    seen = words(run.teacher, teacher.ids)
    assert seen[:6] == ["<|startoftext|>", "b", "a", "m</w>", "the</w>", ",</w>"]
    assert [len(block) for block in teacher.blocks] == [10, 6]
    assert seen[9:11] == ["<|endoftext|>", "<|startoftext|>"]
    kinds = {name: np.flatnonzero(found).tolist() for name, found in student.kinds.items()}
    assert kinds == {"marks": [0, 7, 10], "punctuation": [5, 9], "stop_words": [2, 3, 4]}
    kinds = {name: np.flatnonzero(found).tolist() for name, found in teacher.kinds.items()}
    assert kinds == {"marks": [0, 9, 10, 15], "punctuation": [5, 14], "stop_words": [4]}
    same = same_characters(student, teacher)
    assert np.flatnonzero(same[1]).tolist() == [1, 2, 3], "bam is b, a, m"
    assert np.flatnonzero(same[3]).tolist() == [4], "##h is a part of the"
    assert np.flatnonzero(same[8]).tolist() == [11, 12, 13], "of the second text"
    assert not same[[0, 7, 10]].any()


def test_long_texts_are_cut(run: XDBertRun) -> None:
    student = read_student(("bam " * 90, "den " * 90), run.student)
    assert len(student.ids) == 64, "what the encoder takes"
    assert np.bincount(student.part[student.part >= 0]).tolist() == [31, 30]
    teacher = read_teacher(("bam " * 90,), run.teacher)
    assert [len(block) for block in teacher.blocks] == [77, 77]
    assert teacher.spans[77].tolist() == [0, 0], "the second START"
    assert teacher.spans[78].tolist() == [100, 101], "the 76th letter: b of the 26th word"
    alone = read_student(("bam den",), run.student)
    assert words(run.student, alone.ids) == ["[CLS]", "bam", "den", "[SEP]"]
    assert alone.second == 4


def test_measures_worked_by_hand() -> None:
    """Head 1 has two unlike rows, head 2 twice the same one."""
    p = np.array([[[1, 0, 0, 0], [0, 0.5, 0.5, 0]], [[0.25, 0.25, 0.5, 0]] * 2])
    shares = {
        "marks": np.array([True, False, False, False]),
        "same": np.array([[False, False, False, False], [False, True, True, True]]),
        "none": np.zeros((2, 4), bool),
    }
    found = measure(p, shares)
    log2 = math.log(2)
    assert found["entropy"] == pytest.approx([log2 / 2, 1.5 * log2])
    # The mean row of head 1 is (.5, .25, .25, 0) with an entropy of 1.5 ln 2.
    assert found["diversity"] == pytest.approx([log2, 0])
    assert found["marks"] == pytest.approx([0.5, 0.25])
    assert found["same"] == pytest.approx([1, 0.75]), "of the second row alone"
    assert np.isnan(found["none"]).all()


def test_maps_of_a_batch_are_those_of_each_text(run: XDBertRun) -> None:
    texts = [("bam den", "fur the kit"), ("kit",), ("lis gem the bam",)]
    students = [read_student(t, run.student) for t in texts]
    teachers = [read_teacher(t, run.teacher) for t in texts]
    probe = CrossProbe(run)
    together = list(probe.maps(students, teachers))
    assert len(together) == 2
    for i, (student, teacher) in enumerate(zip(students, teachers, strict=True)):
        size = len(student.ids), len(teacher.ids)
        for layer, alone in enumerate(probe.maps([student], [teacher])):
            for both, one, cut in zip(together[layer], alone, (size, size[::-1]), strict=True):
                part = both[i][:, : cut[0], : cut[1]]
                assert part == pytest.approx(one[0], abs=1e-5)
                assert part.sum(-1) == pytest.approx(np.ones(part.shape[:2]), abs=1e-5)


def test_records_have_intervals_over_texts(run: XDBertRun) -> None:
    rng = np.random.default_rng(0)
    names = ["bam", "den", "fur", "the", "kit", ","]
    texts = [(" ".join(rng.choice(names, rng.integers(1, 9))),) for _ in range(30)]
    probe = CrossProbe(run, samples=200, batch_size=7)
    probe.run_on(texts, examples=2)
    *rows, summary = probe.records()
    assert summary == {"kind": "cross-summary", "texts": 30, "layers": 2}
    assert [r["kind"] for r in rows].count("cross-head") == 2 * (2 + 2)
    for row in rows:
        for name in MEASURES:
            assert row[f"{name}_low"] <= row[name] <= row[f"{name}_high"]
    heads = [r for r in rows if r["kind"] == "cross-head" and r["direction"] == "teacher"]
    layers = [r for r in rows if r["kind"] == "cross-layer" and r["direction"] == "teacher"]
    first = [r["diversity"] for r in heads if r["layer"] == 1]
    assert layers[0]["diversity"] == pytest.approx(np.mean(first))
    assert layers[0]["diversity"] > 1e-4
    even = layers[0]["even"]
    sizes = [len(read_student(t, run.student).ids) for t in texts]
    assert even["marks"] == pytest.approx(np.mean([2 / size for size in sizes]))
    shown = probe.examples
    assert [e.texts for e in shown] == texts[:2]
    assert shown[0].maps[1].shape == (2, len(shown[0].rows), len(shown[0].columns))
    again = CrossProbe(run, samples=200, batch_size=30)
    again.run_on(texts)
    for one, other in zip(rows, again.records(), strict=False):
        assert one["diversity"] == pytest.approx(other["diversity"], rel=1e-4)


def test_sequences_of_tasks_and_files(tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\ta b\tc\tentailment\n")
    assert list(read_sequences(f"rte={tmp_path / 'dev.tsv'}")) == [("a b", "c")]
    (tmp_path / "a.txt").write_text("one\n\ntwo three\n")
    assert list(read_sequences(str(tmp_path / "a.txt"))) == [("one",), ("two three",)]


def test_a_sample_without_a_text_that_has_the_measure_is_left_out() -> None:
    table = np.full((40, len(MEASURES)), np.nan)
    table[3] = 0.25
    drawn = np.random.default_rng(0).multinomial(40, np.full(40, 1 / 40), 200)
    assert (drawn[:, 3] == 0).any()
    found = _intervals(table, drawn)
    assert {*found.values()} == {0.25}
    assert {*_intervals(table[4:], drawn[:, 4:]).values()} == {0.0}
