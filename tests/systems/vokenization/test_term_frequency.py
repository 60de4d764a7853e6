"""Vokens by term frequency: the distribution by hand, draws that follow it, the command."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.tiny.lm import make_tokenizer, save_rows
from vgtools.cli import run
from vgtools.io.errors import DataError
from vgtools.systems.vokenization.term_frequency import TermFrequency

CAPTIONS = [
    {"image": "b", "text": "bam bam den"},  # b: bam 2/4, den 1/4, fis 1/4
    {"image": "b", "text": "fis"},
    {"image": "d", "text": "bam"},  # d: bam 1
    {"image": "elsewhere", "text": "den den"},
]
IDS = ["a", "b", "c", "d"]
ID = make_tokenizer().token_to_id


@pytest.fixture
def captions(tmp_path: Path) -> str:
    return str(save_rows(tmp_path / "captions.jsonl", CAPTIONS))


def test_distribution_worked_out_by_hand(captions: str) -> None:
    worker = TermFrequency(make_tokenizer(), IDS, [captions], gamma=0.5)
    # exp(tf / 0.5): b e^1, d e^2, a and c e^0.
    total = np.e + np.e**2 + 2
    assert worker.draw(ID("bam"), 0.0) == (1, pytest.approx(np.e / total))
    assert worker.draw(ID("bam"), np.e / total) == (3, pytest.approx(np.e**2 / total))
    assert worker.draw(ID("bam"), (np.e + np.e**2) / total + 1e-9) == (0, pytest.approx(1 / total))
    assert worker.draw(ID("lat"), 0.0) == (0, 0.25)
    assert (worker.captions, worker.images) == (3, 2)


def test_draws_follow_the_distribution_and_reach_every_image(captions: str) -> None:
    worker = TermFrequency(make_tokenizer(), IDS, [captions], gamma=0.5)
    numbers = (np.arange(4000) + 0.5) / 4000
    drawn = [worker.draw(ID("bam"), u) for u in numbers]
    total = np.e + np.e**2 + 2
    wanted = {1: np.e / total, 3: np.e**2 / total, 0: 1 / total, 2: 1 / total}
    counts = Counter(image for image, _ in drawn)
    assert {image: count / 4000 for image, count in counts.items()} == pytest.approx(
        wanted, abs=1e-3
    )
    assert all(p == pytest.approx(wanted[image]) for image, p in drawn)
    unknown = Counter(worker.draw(ID("lat"), u)[0] for u in numbers)
    assert unknown == {0: 1000, 1: 1000, 2: 1000, 3: 1000}


def test_images_without_the_token_share_what_is_left(tmp_path: Path) -> None:
    rows = [{"image": name, "text": "bam"} for name in ("a", "b", "e")]
    worker = TermFrequency(
        make_tokenizer(), list("abcdef"), [str(save_rows(tmp_path / "c.jsonl", rows))], gamma=0.5
    )
    total = 3 * np.e**2 + 3
    counts = Counter(worker.draw(ID("bam"), (u + 0.5) / 4000)[0] for u in range(4000))
    wanted = dict.fromkeys((0, 1, 4), np.e**2 / total) | dict.fromkeys((2, 3, 5), 1 / total)
    assert {image: count / 4000 for image, count in counts.items()} == pytest.approx(
        wanted, abs=1e-3
    )


def test_the_papers_temperature_takes_the_image_of_the_highest_frequency(captions: str) -> None:
    worker = TermFrequency(make_tokenizer(), IDS, [captions])
    assert {worker.draw(ID("bam"), u)[0] for u in (1e-9, 0.3, 0.6, 0.999)} == {3}
    assert {worker.draw(ID("den"), u)[0] for u in (1e-9, 0.3, 0.6, 0.999)} == {1}


def test_a_sentence_gets_the_same_whatever_stands_around_it(captions: str) -> None:
    worker = TermFrequency(make_tokenizer(), IDS, [captions], gamma=0.5)
    texts = ["bam den fis lat kan", "", "gor lat", "bam den fis lat kan"]
    found = worker(texts)
    assert found.tokens.starts.tolist() == [0, 5, 5, 7, 12]
    assert (
        found.vokens[:5].tolist() == found.vokens[7:].tolist() == worker(texts[:1]).vokens.tolist()
    )
    other = TermFrequency(make_tokenizer(), IDS, [captions], gamma=0.5, seed=1)
    many = [f"lat {a} {b}" for a in ("bam", "den", "kan") for b in ("fis", "gor", "bam")]
    assert worker(many).vokens.tolist() != other(many).vokens.tolist()


def test_captions_of_other_images_only_are_refused(captions: str) -> None:
    with pytest.raises(DataError, match="no caption is of one of the 1 images of the bank"):
        TermFrequency(make_tokenizer(), ["x"], [captions])


def test_the_command_writes_rows_and_packed(
    tiny: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [{"image": f"image{i:03}", "text": "bam den" if i % 2 else "fis"} for i in range(60)]
    captions, text = save_rows(tmp_path / "captions.jsonl", rows), tmp_path / "text.txt"
    text.write_text("bam den\n\nfis bam\n")
    args = [
        "vokenize",
        text,
        "--index",
        tiny / "vg.faiss",
        "--control",
        "term-frequency",
        "--captions",
        captions,
        "-q",
    ]
    assert run([str(a) for a in args]) == 0
    found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(r["text"], r["spans"]) for r in found] == [
        ("bam den", [[0, 3], [4, 7]]),
        ("", []),
        ("fis bam", [[0, 3], [4, 7]]),
    ]
    assert [v % 2 for r in found for v in r["vokens"]] == [1, 1, 0, 1]
    assert run([str(a) for a in [*args, "-o", tmp_path / "x.npy"]]) == 0
    assert np.load(tmp_path / "x.npy")[:, 1].tolist() == [v for r in found for v in r["vokens"]]
    assert json.loads((tmp_path / "x.json").read_text())["count"] == 60
    assert run([str(a) for a in [*args[:4], "--control", "term-frequency"]]) == 2
    assert "--captions" in capfd.readouterr().err
