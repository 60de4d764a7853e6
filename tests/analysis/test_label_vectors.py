"""Words as vectors of labels: PPMI by hand and by loops, and the command that writes them."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.tiny.lm import save_rows
from vgtools.analysis import label_vectors
from vgtools.cli import run
from vgtools.text.word_vectors import open_word_vectors


def row(text: str, labels: list[int], cut: bool = False) -> dict[str, object]:
    """Return a voken row with a token per word; `cut` cuts the first word in two."""
    spans, at = [], 0
    for word in text.split(" "):
        spans.append([at, at + len(word)])
        at += len(word) + 1
    if cut:
        start, end = spans[0]
        spans[:1] = [[start, start + 1], [start + 1, end]]
    return {"text": text, "spans": spans, "vokens": labels}


def test_ppmi_by_hand(tmp_path: Path) -> None:
    rows = [
        row("Dog cat .", [0, 1, 1]),
        row("dog runs", [0, 0, 2], cut=True),
        row("cat dog", [-1, 1]),
    ]
    path = save_rows(tmp_path / "v.jsonl", rows)
    assert label_vectors.write_label_vectors(str(path), str(tmp_path / "w.npy")) == (3, 3)
    found = open_word_vectors(str(tmp_path / "w.npy"))
    assert list(found.rows) == ["dog", "cat", "runs"]
    # dog: 0 three times, 1 once; cat: 1 once; runs: 2 once. Of 6 labels three are 0, two are 1.
    expected = np.zeros((3, 3))
    expected[0, 0] = math.log(3 * 6 / (4 * 3))
    expected[1, 1] = math.log(1 * 6 / (1 * 2))
    expected[2, 2] = math.log(1 * 6 / (1 * 1))
    assert np.asarray(found.array) == pytest.approx(expected, rel=1e-6)


def test_vectors_are_those_of_loops_whatever_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(30)]
    rows = [row(" ".join(rng.choice(words, 6)), rng.integers(-1, 9, 6).tolist()) for _ in range(40)]
    path = save_rows(tmp_path / "v.jsonl", rows)
    monkeypatch.setattr(label_vectors, "_BLOCK", 40)
    flags = ["--vokens", str(path), "--vectors", str(tmp_path / "w.npy"), "--least", "7"]
    assert run(["stats", *flags, "-q"]) == 0
    found = open_word_vectors(str(tmp_path / "w.npy"))
    pairs = Counter(
        (word, label)
        for line in rows
        for word, label in zip(str(line["text"]).split(), line["vokens"], strict=True)
        if label >= 0
    )
    total = sum(pairs.values())
    of_word, of_label = Counter[str](), Counter[int]()
    for (word, label), count in pairs.items():
        of_word[word] += count
        of_label[label] += count
    assert set(found.rows) == {word for word in words if of_word[word] >= 7} != set(words)
    for word, place in found.rows.items():
        for label in range(9):
            times = pairs[word, label]
            value = math.log(times * total / of_word[word] / of_label[label]) if times else 0
            assert found.array[place, label] == pytest.approx(max(0, value), abs=1e-6)
    manifest = json.loads((tmp_path / "w.json").read_text())
    assert (manifest["rows"], manifest["dim"]) == found.array.shape


def test_what_a_kill_left_and_somebody_removed_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vg stats has no --restart, which a message could advise."""

    def kill(new: Path, path: Path, *known: object) -> None:
        if path.suffix != ".journal":
            raise KeyboardInterrupt
        os.replace(new, path)

    path = save_rows(tmp_path / "v.jsonl", [row("dog cat .", [0, 1, 1]), row("dog runs", [0, 2])])
    output = tmp_path / "w.npy"
    label_vectors.write_label_vectors(str(path), str(output))
    whole = {end: output.with_suffix(end).read_bytes() for end in (".npy", ".ids")}
    for end in (*whole, ".json"):
        output.with_suffix(end).unlink()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("vgtools.io.own.replace", kill)
        label_vectors.write_label_vectors(str(path), str(output))
    (tmp_path / "w.ids.part").unlink()
    label_vectors.write_label_vectors(str(path), str(output))
    assert {end: output.with_suffix(end).read_bytes() for end in whole} == whole
    assert {each.name for each in tmp_path.iterdir()} == {"v.jsonl", "w.npy", "w.ids", "w.json"}


def test_the_command_names_its_mistakes_and_feeds_compare(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [row("dog cat sun moon", [0, 0, 1, 2]), row("dog moon cat sun", [0, 2, 1, 1])]
    path = str(save_rows(tmp_path / "v.jsonl", rows))
    out = str(tmp_path / "w.npy")
    for flags, why in (
        (["--vectors", out], "needs one --vokens"),
        (["--vokens", path, "--vectors", "w.txt"], "must end in .npy"),
        (["--vokens", path, "--least", "3"], "belongs to --vectors"),
        (["--vokens", "-", "--vectors", out], "is read twice"),
    ):
        assert run(["stats", *flags]) == 2
        assert why in " ".join(capfd.readouterr().err.split())
    assert run(["stats", "--vokens", path, "--vectors", out, "--least", "9"]) == 65
    assert run(["stats", "--vokens", path, "--vectors", out]) == 0
    assert "4 words" in capfd.readouterr().err
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("dog cat 9\ndog sun 1\nsun cat 5\nmoon dog 0\n")
    assert run(["measure", out, "--on", str(pairs)]) == 0
    record = json.loads(capfd.readouterr().out.splitlines()[0])
    assert (record["items"], record["statistic"]) == (4, "spearman")
    assert 0 < record["value"] <= 1
