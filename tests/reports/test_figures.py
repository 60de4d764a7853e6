"""Figures: every value at its place, every name legible."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.tiny.report import RECORDS, TEXT_RECORDS, example, named, svg
from vgtools.reports import figures
from vgtools.reports.figures import corpora_figure, gain_figure
from vgtools.reports.tables import reported
from vgtools.tasks.table import find_task


def test_figure_3_has_a_dot_a_head_and_the_baseline() -> None:
    root = svg(figures.entity_figure(RECORDS))
    dots = [d for d in named(root, "circle") if len(d)]
    assert sorted(d[0].text or "" for d in dots) == [
        "1-1: 10.0 %, not active",
        "1-2: 20.0 %, active",
        "2-1: 40.0 %, active",
        "2-2: 5.0 %, not active",
    ]
    by_name = {(d[0].text or "")[:3]: d for d in dots}
    assert float(by_name["2-1"].get("r", 0)) > float(by_name["2-2"].get("r", 0)), (
        "active heads are large"
    )
    heights = [float(by_name[n].get("cy", 0)) for n in ("2-2", "1-1", "1-2", "2-1")]
    assert heights == sorted(heights, reverse=True)
    assert heights[0] - heights[1] == pytest.approx((heights[1] - heights[2]) / 2, abs=0.05)
    grey = [
        line
        for line in named(root, "line")
        if line.get("stroke") == "#8a8378" and float(line.get("x2", 0)) > 500
    ]
    assert len(grey) == 1
    share = (heights[0] - float(grey[0].get("y1", 0))) / (heights[0] - heights[3])
    assert share == pytest.approx((17.33 - 5) / 35, abs=0.01)
    assert figures.entity_figure([]) is None


def test_figure_4_has_a_panel_a_relation_under_both_names() -> None:
    root = svg(figures.relation_figure(RECORDS))
    words = [t.text for t in named(root, "text")]
    assert "acl (partmod)" in words
    assert "1,234 pairs" in words
    dots = [d for d in named(root, "circle") if len(d)]
    assert sum(float(d.get("r", 0)) == 4 for d in dots) == 2, (
        "two heads give more than 20 % to regions"
    )
    assert figures.relation_figure([]) is None


def test_names_of_heads_cover_nothing() -> None:
    root = svg(figures.head_map(TEXT_RECORDS))  # twelve places, each with two heads
    names = [
        (float(e.get("x", 0)), float(e.get("y", 0)), e.text or "")
        for e in named(root, "text")
        if e.get("font-size") == "8"
    ]
    assert 12 <= len(names) <= 24
    for n, (x, y, name) in enumerate(names):
        assert all(
            abs(y - b) >= 8 or abs(x - a) >= 2.5 * len(name + other) for a, b, other in names[:n]
        )


def test_an_example_becomes_a_figure_even_without_its_photo() -> None:
    root = svg(figures.example_figure(example()))
    words = [t.text for t in named(root, "text")]
    assert words.count("Layer 1, head 1-1") == words.count("Layer 3, head 3-1") == 1
    assert "70" in words, "dog on the two regions of the dog"
    assert len(named(root, "image")) == 1
    without = replace(example(), picture=None)
    assert "the photo cannot be shown" in [
        t.text for t in named(svg(figures.example_figure(without)), "text")
    ]
    alone = replace(example(), groups=[])
    assert svg(figures.example_figure(alone)) is not None


def test_the_plot_draws_each_value_and_escapes_names() -> None:
    measured = {
        "corpus": "<b>&.txt",
        "tokenizer": "words",
        "tokens": 1200,
        "sentences": 100,
        "vocabulary": 50,
        "tokens_per_sentence": 12.0,
        "reference": "r.txt",
        "jsd_base": 2,
        "jsd_1": 0.25,
        "jsd_2": None,
    }
    tree = svg(corpora_figure([measured, *reported("vokenization:1", "corpora")]))
    texts = ["".join(t.itertext()) for t in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert "<b>&.txt" in texts
    assert {"1,200", "12.0", "0.250", "–", "54.8%"} <= set(texts)
    assert texts.count("reported in the paper") == 6
    assert any("base 2: 0 to 1 bit" in t for t in texts)
    bars = {b[0].text: b.get("width") for b in named(tree, "rect") if len(b)}
    assert bars["<b>&.txt: 0.250"] == "32.5", "a divergence is drawn against 1"


def test_the_plot_leaves_out_what_nobody_measured() -> None:
    measured = {
        "corpus": "a.txt",
        "tokenizer": "words",
        "tokens": 1,
        "sentences": 1,
        "vocabulary": 0,
        "tokens_per_sentence": 1.0,
    }
    text = corpora_figure([measured]).svg().decode()
    assert "JSD" not in text
    assert "Vocabulary" in text


def test_no_number_of_an_axis_repeats() -> None:
    points = [
        {"task": k, "grounding_ratio": v, "gain": 1.0, "low": 0.5, "high": 2.0, "p": 0.1}
        for k, v in (("sst2", 0.011), ("qnli", 0.026))
    ]
    root = svg(gain_figure([{"gain_of": "a", "points": points}], "mlm"))
    numbers = [e.text for e in named(root, "text") if (e.text or "").endswith(" %")]
    assert numbers[:3] == ["0.5 %", "1 %", "1.5 %"]
    assert len(numbers) == len(set(numbers))


def test_names_in_the_plot_touch_neither_one_another_nor_a_line() -> None:
    ratios = {"sst2": 0.26, "qnli": 0.268, "qqp": 0.27, "mnli": 0.30, "squad": 0.28, "swag": 0.45}
    points = [
        {"task": k, "grounding_ratio": v, "gain": 1.0, "low": 0.5, "high": 2.0, "p": 0.1}
        for k, v in ratios.items()
    ]
    root = svg(gain_figure([{"gain_of": "a", "points": points}], "mlm"))
    titles = {find_task(name).title for name in ratios}
    names = [e for e in named(root, "text") if e.text in titles]
    assert len(names) == 6
    places = [(float(e.get("x", 0)), float(e.get("y", 0)), 3 * len(e.text or "")) for e in names]
    for n, (x, y, half) in enumerate(places):
        assert all(
            y != other_y or abs(x - other_x) >= half + other
            for other_x, other_y, other in places[:n]
        )
    grid = [float(e.get("y1", 0)) for e in named(root, "line") if e.get("y1") == e.get("y2")]
    assert len(grid) >= 4
    assert max(y for _, y, _ in places) < min(grid)
