"""The page of `vg measure`: order of rows, places, marks; nothing that a name could break."""

from __future__ import annotations

import re
from typing import Any

from vgtools.reports.measured import forest_page


def record(encoder: str, value: float, **more: Any) -> dict[str, Any]:
    facts = {"evaluation": "men.txt", "statistic": "spearman", "items": 1234, "encoder": encoder}
    return facts | {"value": value, "low": value - 0.1, "high": value + 0.1} | more


def gain(value: float, significant: bool) -> dict[str, Any]:
    return {"value": value, "low": value - 0.1, "high": value + 0.1, "significant": significant}


def test_rows_are_sorted_around_the_line_of_the_baseline() -> None:
    page = forest_page(
        [
            record("first", 0.5),
            record("worse", 0.2, difference=gain(-0.3, True)),
            record("better", 0.6, difference=gain(0.1, False)),
        ],
        "runs",
    ).decode()
    assert re.findall(r'<li( class="sure")?>\s*<span class="name">(\w+)', page) == [
        ("", "better"), ("", "first"), (' class="sure"', "worse"),
    ]  # fmt: skip
    places = {name: at for at, name in zip(re.findall(r'cx="([\d.]+)%"', page), "bfw", strict=True)}
    assert set(re.findall(r'class="base" x1="([\d.]+)%"', page)) == {places["f"]}
    # From .1 to .7 with 6 % of room at either end.
    assert float(places["w"]) == round(100 * (0.1 + 0.036) / (0.6 + 0.072), 2)
    assert "Spearman, 1,234 items" in page
    assert "+0.100 <small>+0.000 to +0.200</small></span>" in page
    assert "-0.300 <small>-0.400 to -0.200</small> *</span>" in page


def test_groups_have_plots_of_their_own_and_names_are_text() -> None:
    name = "<script>alert(1)</script>"
    both = [record(name, 0.5, group="all"), record(name, 0.4, group="island <b>")]
    page = forest_page(both, "a\u202eb").decode()
    assert page.count("<section>") == 2
    assert "island &lt;b&gt;" in page
    assert "<script>alert" not in page
    assert "\u202e" not in page


def test_values_without_any_spread() -> None:
    page = forest_page([record("a", 0.0, low=0.0, high=0.0)], "a").decode()
    assert 'cx="50.0%"' in page
