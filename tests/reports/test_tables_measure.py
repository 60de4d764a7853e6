"""The tables of `vg measure`: encoders by evaluations, groups apart, short names."""

from __future__ import annotations

from typing import Any

from vgtools.reports.tables import measure_tables, short_names


def record(encoder: str, evaluation: str, group: str, **more: Any) -> dict[str, Any]:
    facts = {"encoder": encoder, "evaluation": evaluation, "group": group, "statistic": "accuracy"}
    return {**facts, "items": 1200, "left_out": 0, "value": 0.5, "low": 0.4, "high": 0.65, **more}


def test_groups_have_a_table_of_their_own() -> None:
    gain = {"value": 0.1, "low": 0.02, "high": 0.2, "significant": True}
    records = [
        record("run/mlm", "a.jsonl", "all"),
        record("run/vokens", "a.jsonl", "all", value=0.6, difference=gain),
        record("run/mlm", "a.jsonl", "island", items=30),
        record("run/vokens", "b.tsv", "all", left_out=3, majority=0.5254),
    ]
    first, groups = measure_tables(records)
    blind = "b.tsv: accuracy, 1,200, majority 0.525"
    assert first.headings == ["Encoder", "a.jsonl: accuracy, 1,200", blind]
    assert first.rows == [
        ["mlm", "0.500 ± 0.125", "–"],
        ["vokens", "0.600, +0.100 ± 0.090 *", "0.500 ± 0.125"],
    ]
    assert first.remarks[-1] == "Left out, items that not all of them know: b.tsv 3."
    assert groups.headings == ["a.jsonl", "island: accuracy, 30"]
    assert groups.rows[1] == ["vokens", "–"]


def test_names_are_as_short_as_they_can_be() -> None:
    assert short_names(["out/run/mlm", "builtin:minilm"]) == {
        "out/run/mlm": "mlm", "builtin:minilm": "builtin:minilm",
    }  # fmt: skip
    curve = [f"run/{row}/seed-0/step-200" for row in ("mlm", "vokens")]
    assert [*short_names(curve).values()] == ["mlm", "vokens"]
    assert [*short_names(["a/run", "b/c/run"]).values()] == ["a", "b/c"]
    assert short_names(["one/two/"]) == {"one/two/": "two"}
    # What one of them ends with may be all of another.
    assert [*short_names(["x/run", "run"]).values()] == ["x", "run"]
