"""Curves of trainings: the numbers that are drawn, where, and in which colour."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from vgtools.io.errors import DataError
from vgtools.io.files import dumps
from vgtools.reports import curves
from vgtools.reports.drawing import ACCENT, COLOURS, ticks


def save(folder: Path, records: Sequence[Mapping[str, Any]]) -> str:
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_bytes(b"".join(map(dumps, records)))
    return str(folder)


def record(step: int, loss: float, **more: Any) -> dict[str, Any]:
    return {"epoch": 1, "step": step, "lr": 1e-4 / step, "gradient": 1.5, "loss": loss, **more}


def shapes(svg: bytes, kind: str) -> list[ElementTree.Element]:
    return [each for each in ElementTree.fromstring(svg).iter() if each.tag.endswith(kind)]


def texts(svg: bytes) -> list[str]:
    return ["".join(each.itertext()) for each in shapes(svg, "}text")]


def test_losses_come_first_then_measures_and_what_never_changes_is_left_out(tmp_path: Path) -> None:
    rows = [
        record(
            n,
            9.0 - n,
            mlm=9.0 - n,
            aim=float(n),
            valid={"images": 4, "word": {"r1": 2.0 * n}},
            best=n > 1,
        )
        for n in (1, 2, 3)
    ]
    (found,) = curves.read_curves([save(tmp_path / "a", rows)])
    across, shown = curves.panels([found])
    assert across == "step"
    assert [panel.title for panel in shown] == ["loss, mlm", "aim", "valid.word.r1", "lr"]
    assert found.points("step", "valid.word.r1") == [(1, 2.0), (2, 4.0), (3, 6.0)]


def test_one_record_shows_all_that_it_has(tmp_path: Path) -> None:
    found = curves.read_curves([save(tmp_path / "a", [record(1, 2.0)])])
    assert [panel.name for panel in curves.panels(found)[1]] == ["loss", "lr", "gradient"]
    assert len(shapes(curves.figure(found).svg(), "circle")) == 3 + 1  # and the legend's


def test_a_curve_goes_through_its_points_and_axes_have_their_numbers(tmp_path: Path) -> None:
    rows = [{"step": n, "loss": float(n)} for n in (0, 50, 100)]
    svg = curves.figure(curves.read_curves([save(tmp_path / "a", rows)])).svg()
    (line,) = shapes(svg, "polyline")
    places = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert places[1] == pytest.approx(((places[0][0] + places[2][0]) / 2, 115), abs=0.1)
    assert places[0][1] > places[2][1]
    marks = [f"{tick:g}" for tick in ticks(0, 100)]
    assert texts(svg) == ["loss", *marks, *marks, "step", "a"]
    hints = [each.text for each in shapes(svg, "title")]
    assert "a: loss 50, step 50" in hints


def test_lines_of_many_records_show_means(tmp_path: Path) -> None:
    rows = [{"step": n, "loss": n % 3 + 1.0 * (n > 600)} for n in range(1, 1201)]
    svg = curves.figure(curves.read_curves([save(tmp_path / "a", rows)])).svg()
    (line,) = shapes(svg, "polyline")
    heights = [float(point.split(",")[1]) for point in line.attrib["points"].split()]
    # Three records in turn have the same mean, 1, and after step 600 it is 2.
    assert len(heights) == 400
    assert [{*heights[:200]}, {*heights[200:]}] == [{heights[0]}, {heights[-1]}]
    assert heights[0] > heights[-1]


def test_runs_have_colours_and_the_names_in_which_they_differ(tmp_path: Path) -> None:
    a = save(tmp_path / "x" / "run", [record(1, 3.0), record(2, 2.0)])
    b = save(tmp_path / "y" / "run", [record(1, 4.0, aim=2.0), record(2, 3.0, aim=1.0)])
    found = curves.read_curves([a, b])
    assert curves.colours(found) == {"x": ACCENT, "y": COLOURS[0]}
    html = curves.page(found, "<t>").decode()
    assert html.count("<polyline") == 2 * 2 + 1  # losses and rates; the other number of one alone
    assert "2 trainings, 4 records" in html
    assert "<t>" not in html


def test_seeds_of_one_run_are_told_apart_and_of_several_have_its_colour(tmp_path: Path) -> None:
    rows = [{"seed": s, "epoch": n, "loss": s + n / 10} for s in (3, 4) for n in (1, 2)]
    a, b = save(tmp_path / "a", rows), save(tmp_path / "b", rows)
    assert [curve.name for curve in curves.read_curves([a])] == ["seed 3", "seed 4"]
    both = curves.read_curves([a, b])
    assert [curve.name for curve in both] == ["a", "a", "b", "b"]
    assert curves.panels(both)[0] == "epoch"


def test_a_seed_that_still_trains_has_its_own_file(tmp_path: Path) -> None:
    rows = [{"seed": s, "epoch": n, "loss": s + n / 10} for s in (3, 4) for n in (1, 2)]
    run = save(tmp_path / "a", rows[:2])
    save(tmp_path / "a" / "seed-4", rows[2:3])
    assert [(c.name, len(c.records)) for c in curves.read_curves([run])] == [
        ("seed 3", 2),
        ("seed 4", 1),
    ]


def test_wide_measures_have_a_log_scale_with_round_numbers(tmp_path: Path) -> None:
    rows = [{"step": n, "perplexity": 30000 / 10**n} for n in range(4)]
    svg = curves.figure(curves.read_curves([save(tmp_path / "a", rows)])).svg()
    assert texts(svg)[1:-6] == ["100", "1000", "10k"]
    assert "step; log scale" in texts(svg)
    assert curves._decades(3, 60) == [5, 10, 20, 50]
    shown = [curves._short(value) for value in (0.00125, 999, 12000, 2.5e6, 1e9)]
    assert shown == ["0.00125", "999", "12k", "2.5M", "1G"]


def test_names_of_many_runs_go_on_in_another_line(tmp_path: Path) -> None:
    rows = [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 2.0}]
    runs = [save(tmp_path / f"run-{'long-' * 4}{n}", rows) for n in range(6)]
    svg = curves.figure(curves.read_curves(runs)).svg()
    legend = [each for each in shapes(svg, "}text") if "long" in "".join(each.itertext())]
    places = {(float(each.attrib["x"]), float(each.attrib["y"])) for each in legend}
    assert len(places) == 6
    assert len({y for _, y in places}) == 6  # one name is as wide as the only panel allows
    assert max(y for _, y in places) < float(ElementTree.fromstring(svg).attrib["height"])


def test_a_run_without_records_is_refused(tmp_path: Path) -> None:
    rows: list[list[dict[str, Any]]] = [[], [{"step": 1}], [{"step": 1, "note": "x", "seed": 2}]]
    for number, records in enumerate(rows):
        with pytest.raises(DataError, match="has no record yet with a number"):
            curves.read_curves([save(tmp_path / f"{number}", records)])
    save(tmp_path / "a", [])
    with pytest.raises(DataError, match=r"metrics\.jsonl:1: "):
        (tmp_path / "a" / "metrics.jsonl").write_text("[1]\n")
        curves.read_curves([str(tmp_path / "a")])


@pytest.mark.parametrize(
    "losses",
    [(1e308, -1e308), (5e-324, 0), (1e300, 1e-300), (1, 1 + 2**-52), (2**64 - 1, 0), (1e99, -1e99)],
)
@pytest.mark.parametrize("across", ["loss", "step"])
def test_numbers_of_any_size_are_drawn(
    tmp_path: Path, losses: tuple[float, float], across: str
) -> None:
    rows = [{"step": n, "loss": n, "mlm": 1.0 / n} | {across: losses[n - 1]} for n in (1, 2)]
    found = curves.read_curves([save(tmp_path / "a", rows)])
    svg = curves.figure(found).svg()
    assert not {"nan", "inf"} & set(texts(svg))
    assert "nan" not in svg.decode()
    assert curves.page(found, "a")


def test_a_figure_that_no_file_holds_is_refused(tmp_path: Path) -> None:
    rows = [{"step": n, **{f"k{each}": n * each for each in range(1, 400)}} for n in (1, 2)]
    found = curves.read_curves([save(tmp_path / "a", rows)])
    with pytest.raises(DataError, match=r"399 numbers .* too many for one figure; -o X\.html"):
        curves.figure(found)
    assert curves.page(found, "a").count(b"<title>a: k") == 2 * 399
