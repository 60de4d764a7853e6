"""Scores side by side: values by hand, the paper's own table, what is chance, and gains against
grounding ratio.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny.finetune import GOLD, POOR, RIGHT, save_finetuned, save_two
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import dumps, sha256_file
from vgtools.models.runs import save_run
from vgtools.reports.figures import gain_figure
from vgtools.reports.tables import gain_table, score_table
from vgtools.tasks import compare as c
from vgtools.tasks import metrics
from vgtools.tasks.by_example import read_answers
from vgtools.tasks.dispatch import score_predictions
from vgtools.tasks.table import find_task
from vgtools.text.ngrams import WordTypes


@pytest.fixture
def two(tmp_path: Path) -> list[str]:
    return save_two(tmp_path)


def records(paths: list[str], **more: Any) -> list[dict[str, Any]]:
    return list(c.compare(c.read_rows(paths), samples=300, **more))


def test_scores_with_their_spread_by_hand(two: list[str]) -> None:
    mlm, vokens = records(two)
    assert (mlm["run"], vokens["run"], mlm["baseline"], vokens["baseline"]) == (
        "mlm",
        "vokens",
        True,
        False,
    )
    sst = vokens["tasks"]["sst-2"]
    assert {k: sst[k] for k in ("seeds", "mean", "median", "min", "max")} == {
        "seeds": 2, "mean": 93.75, "median": 93.75, "min": 87.5, "max": 100,
    }  # fmt: skip
    assert sst["std"] == pytest.approx(12.5 / np.sqrt(2))
    # Of 8 pairs, 5 duplicates: the second seed says 6 of them, 5 rightly; F1 10/11.
    qqp = (100 + (87.5 + 1000 / 11) / 2) / 2
    assert vokens["tasks"]["qqp"]["mean"] == pytest.approx(qqp)
    squad = vokens["tasks"]["squad-1.1"]
    assert squad["metrics"]["exact"]["mean"] == 50
    assert squad["metrics"]["f1"]["mean"] == pytest.approx(100 * (1 + 2 / 3) / 2)
    assert squad["std"] is None
    assert "difference" not in squad
    # SQuAD is not shared: it is left out of both averages.
    assert vokens["average_of"] == ["sst-2", "qqp"]
    assert vokens["average"] == pytest.approx((93.75 + qqp) / 2)


def test_differences_are_those_of_the_bootstrap_over_seeds_and_examples(two: list[str]) -> None:
    found = records(two, seed=5)[1]["tasks"]["sst-2"]["difference"]
    a, b = (np.array([said["1"], said["2"]]) for said in (POOR, RIGHT))
    wanted = metrics.paired_bootstrap(metrics.accuracy, np.array(GOLD), a, b, samples=300, seed=5)
    assert found["value"] == pytest.approx(93.75 - 37.5)
    assert (found["low"], found["p"]) == (pytest.approx(100 * wanted.low), wanted.p)
    assert found["significant"] is (wanted.p < 0.05)
    assert "difference" not in records(two)[0]["tasks"]["sst-2"]


def name_groups(paths: list[str], groups: list[str]) -> None:
    """Write groups into the predictions of a task, and reverse them."""
    for place in paths:
        for file in Path(place).glob("a/seed-*/predictions.jsonl"):
            rows = [json.loads(line) for line in file.read_text().splitlines()]
            named = [row | {"group": g} for row, g in zip(rows, groups, strict=True)]
            file.write_bytes(b"".join(map(dumps, reversed(named))))


def test_one_group_shows_no_spread_and_is_not_called_one_seed(two: list[str]) -> None:
    name_groups(two, ["a"] * 8)
    found = records(two)
    change = found[1]["tasks"]["sst-2"]["difference"]
    assert (change["low"], change["p"], change["significant"]) == (None, None, False)
    _, shown, remarks, _ = score_table(found)
    assert "+56.2 (one group of examples)" in shown[2]
    assert not any(remark.startswith("One seed") for remark in remarks)


def test_examples_of_one_group_are_drawn_together(two: list[str]) -> None:
    groups = ["a", "b", "a", "b", "a", "b", "c", "c"]
    name_groups(two, groups)
    found = records(two, seed=5)[1]["tasks"]["sst-2"]["difference"]
    a, b = (np.array([said["1"], said["2"]])[:, ::-1] for said in (POOR, RIGHT))
    numbers = np.unique(groups[::-1], return_inverse=True)[1]
    gold = np.array(GOLD)[::-1]
    how: dict[str, Any] = {"samples": 300, "seed": 5}
    wanted = metrics.paired_bootstrap(metrics.accuracy, gold, a, b, groups=numbers, **how)
    assert (found["low"], found["p"]) == (pytest.approx(100 * wanted.low), wanted.p)
    assert wanted.p != metrics.paired_bootstrap(metrics.accuracy, gold, a, b, **how).p


def test_a_single_seed_has_no_p_value_and_no_mark(two: list[str], tmp_path: Path) -> None:
    lone = str(save_finetuned(tmp_path / "lone", "sst-2", GOLD, {"1": GOLD}))
    rows = c.read_rows([two[0], lone])
    found = list(c.compare(rows, samples=300, seed=5))
    change = found[1]["tasks"]["sst-2"]["difference"]
    a = np.array([POOR["1"], POOR["2"]])
    wanted = metrics.paired_bootstrap(
        metrics.accuracy, np.array(GOLD), a, np.array(GOLD), samples=300, seed=5
    )
    assert (change["p"], change["significant"]) == (None, False)
    assert (change["p_examples"], change["high"]) == (wanted.p, pytest.approx(100 * wanted.high))
    assert wanted.p < 0.05, "of other examples alone"
    c.correct(found)
    assert "p_holm" not in change
    _, shown, remarks, _ = score_table(found)
    assert (shown[1][1], shown[2][1]) == ("100.0", "+62.5 (one seed)")
    assert remarks[-1].startswith("One seed: the score of another seed is unknown")


def test_the_baseline_is_the_one_named(two: list[str]) -> None:
    rows = c.read_rows(two, two[1] + "/")
    assert [row.name for row in rows] == ["vokens", "mlm"]
    mlm = list(c.compare(rows, samples=100))[1]
    assert mlm["tasks"]["sst-2"]["difference"]["value"] == pytest.approx(37.5 - 93.75)
    with pytest.raises(DataError, match="--baseline must be one of") as error:
        c.read_rows(two, "elsewhere")
    assert error.value.code == Exit.USAGE


def test_predictions_are_joined_by_id(two: list[str]) -> None:
    file = Path(two[1]) / "a" / "seed-1" / "predictions.jsonl"
    before = records(two)
    file.write_bytes(b"".join(reversed(file.read_bytes().splitlines(keepends=True))))
    assert records(two) == before


def test_predictions_of_other_examples_are_refused(two: list[str], tmp_path: Path) -> None:
    other = save_finetuned(tmp_path / "other", "sst-2", GOLD[:7], {"1": GOLD[:7]})
    with pytest.raises(DataError, match="1 ids are not in both"):
        records([two[0], str(other)])
    flipped = save_finetuned(tmp_path / "flipped", "sst-2", [1, *GOLD[1:]], {"1": GOLD})
    with pytest.raises(
        DataError,
        match="1 of 8 ids have another label than in the run compared with, the first '0'",
    ):
        records([two[0], str(flipped)])


def test_runs_of_other_texts_with_the_same_ids_and_labels_are_refused(tmp_path: Path) -> None:
    paths = [
        str(save_finetuned(tmp_path / name, "sst-2", GOLD, RIGHT, data={"dev": {"sha256": sha256}}))
        for name, sha256 in (("one", "a" * 64), ("same", "a" * 64), ("other", "b" * 64))
    ]
    found = records(paths[:2])[1]["tasks"]["sst-2"]["difference"]
    assert "examples" not in found
    with pytest.raises(DataError) as caught:
        records([paths[0], paths[2]])
    assert caught.value.code == Exit.DATA
    assert f"{paths[2]}/run.json: its dev examples have sha256 {'b' * 64}" in str(caught.value)
    assert f"the examples of {paths[0]} {'a' * 64}" in str(caught.value)
    rows = c.read_rows([paths[0], paths[2]])
    with pytest.raises(DataError, match="its dev examples have sha256 b"):
        list(read_answers(*rows, None, {}))


def test_answers_of_another_dev_file_are_refused(tmp_path: Path) -> None:
    one, other = (
        save_finetuned(tmp_path / name, "squad-1.1", gold, {"1": ["Bo", "Ann"]})
        for name, gold in (("one", ["Bo", "Ann Lee"]), ("other", ["Bo", "Ann"]))
    )
    with pytest.raises(
        DataError,
        match="1 of 2 ids have another label than in the run compared with, the first '1'",
    ):
        records([str(one), str(other)])


def test_tasks_with_pictures_are_compared(tmp_path: Path) -> None:
    near, far = [[0.0, 0, 10, 9]], [[50.0, 50, 60, 60], [0, 0, 10, 10]]
    boxes = [(0.0, 0, 10, 10)] * 4
    for name, good in (("plain", 1), ("seen", 3)):
        for task in ("nlvr2", "vcr-qa", "vcr-qar"):
            save_finetuned(
                tmp_path / name / task, task, [1] * 4, {"1": [1] * good + [0] * (4 - good)}
            )
        save_finetuned(
            tmp_path / name / "vqa",
            "vqa",
            ["red"] * 4,
            {"1": ["red"] * good + ["blue"] * (4 - good)},
        )
        save_finetuned(
            tmp_path / name / "g",
            "flickr30k-grounding",
            boxes,
            {"1": [near] * good + [far] * (4 - good)},
        )
    plain, seen = records([str(tmp_path / "plain"), str(tmp_path / "seen")])
    tasks = ["nlvr2", "vqa", "vcr-qa", "vcr-qar", "flickr30k-grounding"]
    assert sorted(seen["tasks"]) == sorted(tasks)
    for task in tasks:
        assert (plain["tasks"][task]["mean"], seen["tasks"][task]["mean"]) == (25, 75), task
    assert seen["tasks"]["nlvr2"]["metrics"]["consistency"]["mean"] == 75
    assert seen["tasks"]["flickr30k-grounding"]["metrics"]["recall_5"]["mean"] == 100
    assert seen["tasks"]["vcr-qar"]["difference"]["value"] == pytest.approx(50)
    headings, rows, remarks, _ = score_table([plain, seen])
    assert remarks[0] == "Percent, mean ± standard deviation over seeds. Flickr30k Entities: R@1."
    assert sorted(headings[1:6]) == sorted(find_task(task).title for task in tasks)
    assert list(headings[6:-1]) == ["NLVR2 consistency", "VCR Q→AR", "R@5", "R@10"]
    assert rows[1][6:-1] == ["75.0", "75.0", "100.0", "100.0"]
    assert seen["tasks"]["vcr-qar"]["metrics"]["q2ar_accuracy"]["mean"] == 75
    assert [row[0] for row in rows] == ["plain", "seen", "  less plain"]


def test_predictions_that_run_json_does_not_score_so_are_refused(two: list[str]) -> None:
    file = Path(two[1]) / "a" / "seed-2" / "predictions.jsonl"
    file.write_bytes((Path(two[1]) / "a" / "seed-1" / "predictions.jsonl").read_bytes())
    with pytest.raises(DataError, match=r"scores 100\.000, but run\.json states 87\.500"):
        records(two)


def test_predictions_of_another_sha256_are_refused(tmp_path: Path) -> None:
    digests = {"seed-1/predictions.jsonl": "0" * 64}
    paths = [
        str(save_finetuned(tmp_path / name, "sst-2", GOLD, {"1": GOLD}, predictions=digests))
        for name in "ab"
    ]
    with pytest.raises(DataError, match="sha256 differs"):
        records(paths)


def test_metrics_beside_the_headline_are_kept(tmp_path: Path) -> None:
    folder = save_finetuned(tmp_path / "a", "sst-2", GOLD, {"1": GOLD})
    run = c.read_row(folder).tasks["sst-2"]
    run.scores["1"].update({"accuracy_mismatched": 50.0, "total_mismatched": 9})
    assert c.summary(run)["metrics"] == {
        "accuracy": {"mean": 100, "median": 100}, "accuracy_mismatched": {"mean": 50, "median": 50},
    }  # fmt: skip


def test_folders_that_are_no_runs_are_told_or_refused(two: list[str], tmp_path: Path) -> None:
    (Path(two[0]) / "unfinished").mkdir()
    assert [p.name for p in c.read_row(two[0]).left_out] == ["unfinished"]
    with pytest.raises(DataError, match="does not exist"):
        c.read_row(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no finished run"):
        c.read_row(tmp_path / "empty")
    save_finetuned(Path(two[0]) / "again", "SST-2", GOLD, POOR)
    with pytest.raises(DataError, match="is a run of sst-2, and so is"):
        c.read_row(two[0])
    body = json.loads((Path(two[1]) / "a" / "run.json").read_text())
    (Path(two[1]) / "a" / "run.json").write_text(json.dumps(body | {"task": "rte"}))
    with pytest.raises(DataError, match="was edited"):
        c.read_row(Path(two[1]) / "a")


def test_rows_of_one_name_are_called_by_their_paths(two: list[str]) -> None:
    paths = [f"{two[0]}/a", f"{two[1]}/a"]
    assert [row.name for row in c.read_rows(paths)] == paths


def test_grounding_ratio_from_captions_or_their_list(tmp_path: Path) -> None:
    captions, listed = tmp_path / "captions.jsonl", tmp_path / "types.jsonl"
    captions.write_text(
        "".join(
            json.dumps({"image": "i", "text": t}) + "\n"
            for t in ("a dog and a cat", "the dog", "cats")
        )
    )
    listed.write_text('{"type": "dog", "count": 2}\n')
    text = ["The dog saw a dog .", "no animal"]
    for source in (captions, listed):
        types = WordTypes()
        assert (
            c.grounding_ratio(text, types, c.grounded_types(str(source), types, above=1)) == 2 / 8
        )
    assert c.grounding_ratio([""], WordTypes(), frozenset({"dog"})) is None
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(DataError, match=r"pipe\.jsonl: is read twice"):
        c.grounded_types(str(tmp_path / "pipe.jsonl"), WordTypes(), above=1)


def test_texts_of_a_task_count_a_context_once(tmp_path: Path) -> None:
    question = {"answers": [{"text": "x", "answer_start": 0}]}
    paragraphs = [
        {
            "context": "x y",
            "qas": [
                question | {"id": "1", "question": "q1"},
                question | {"id": "2", "question": "q2"},
            ],
        }
    ]
    (tmp_path / "squad.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    assert list(c.texts_of(find_task("squad"), tmp_path / "squad.json")) == ["q1", "x y", "q2"]
    (tmp_path / "rte.tsv").write_text(
        "index\tsentence1\tsentence2\tlabel\n0\ta b\tc\t0\n1\ta b\tc\t1\n"
    )
    assert list(c.texts_of(find_task("rte"), tmp_path / "rte.tsv")) == ["a b", "c", "a b", "c"]


def test_the_data_of_a_run_is_found_or_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "glue" / "train.tsv"
    file.parent.mkdir()
    file.write_text("sentence\tlabel\nx\t1\n")
    data = {"train": {"file": str(file), "examples": 1}}
    run = c.read_row(save_finetuned(tmp_path / "run", "sst-2", GOLD, RIGHT, data=data)).tasks[
        "sst-2"
    ]
    assert c.data_of(run) == file
    named = f"{file}#text=sentence"  # a table with its columns is unchanged, or not
    read = [{"path": named, "sha256": sha256_file(file)}]
    own = {"train": {"file": named, "examples": 1}}
    columns = replace(run, info={"data": own, "inputs": read})
    assert str(c.data_of(columns)) == named
    file.write_text("sentence\tlabel\ny\t1\n")
    with pytest.raises(DataError, match="is damaged or from another run: sha256"):
        c.data_of(columns)
    file.unlink()
    with pytest.raises(DataError, match=r"--text sst-2=FILE names it") as error:
        c.data_of(run)
    assert error.value.code == Exit.NO_INPUT


def test_correlation_by_hand() -> None:
    found = c.correlation([1, 2, 3, 4], [1, 3, 2, 4])
    assert (found["pearson"]["value"], found["spearman"]["value"]) == (
        pytest.approx(0.8),
        pytest.approx(0.8),
    )
    # atanh(0.8) = 1.0986; with n - 3 = 1 the half width is 1.96.
    assert found["pearson"]["low"] == pytest.approx(np.tanh(1.0986123 - 1.959964))
    assert found["spearman"]["low"] < found["pearson"]["low"]
    for values in ([0.1, 0.2, 0.3, 0.7], [-0.1, -0.2, -0.3, -0.7]):
        for found in map(c.correlation([0.1, 0.2, 0.3, 0.7], values).get, ("pearson", "spearman")):
            assert found["low"] <= found["value"] <= found["high"], "a correlation of 1 is inside"
    assert c.correlation([1, 2, 3], [3, 2, 1])["pearson"] == {"value": pytest.approx(-1.0)}
    assert c.correlation([1, 2], [1, 2]) == {"n": 2}


def test_gains_and_their_drawing(two: list[str]) -> None:
    (found,) = c.gains(records(two), {"sst-2": 0.2, "qqp": 0.3, "squad-1.1": 0.4})
    assert [(p["task"], p["grounding_ratio"]) for p in found["points"]] == [
        ("sst-2", 0.2),
        ("qqp", 0.3),
    ]
    assert found["points"][0]["gain"] == pytest.approx(56.25)
    assert "pearson" not in found
    rows = gain_table([found]).rows
    assert rows[0] == ["SST-2", "20.0%", "+56.2"]
    assert rows[2] == ["Pearson", "", "- (fewer than 3 tasks)"]
    svg = gain_figure([found | {"gain_of": "a<b"}], "mlm").svg().decode()
    assert "a&lt;b" in svg
    assert svg.count("<circle") == 3
    assert "SST-2: +56.25" in svg


def test_a_test_split_beside_dev(tmp_path: Path) -> None:
    test = ([0, 1, 1, 1], {"1": [0, 1, 1, 0], "2": [1, 1, 1, 1]})
    data = {"train": {"balance": [["positive", 9, 0.9], ["negative", 1, 0.1]]}}
    one = save_finetuned(tmp_path / "one", "sst-2", GOLD, RIGHT, test, data=data)
    other = save_finetuned(
        tmp_path / "other", "sst-2", GOLD, POOR, (test[0], {"1": [0] * 4, "2": [1] * 4})
    )
    rows = c.read_rows([str(one), str(other)], split="test")
    first, second = c.compare(rows, samples=300)
    assert (first["tasks"]["sst-2"]["mean"], second["tasks"]["sst-2"]["mean"]) == (75, 50)
    assert second["tasks"]["sst-2"]["difference"]["value"] == pytest.approx(-25)
    common = c.majority_row(rows, first)
    assert (common["run"], common["tasks"]["sst-2"]["mean"]) == ("Most frequent label", 75)
    assert (common["average"], common["average_of"]) == (75, ["sst-2"])
    assert records([str(one)])[0]["tasks"]["sst-2"]["mean"] == 93.75
    without = save_finetuned(tmp_path / "without", "sst-2", GOLD, RIGHT)
    with pytest.raises(
        DataError, match="no scores of the split 'test'; fine-tune with a test file"
    ):
        c.read_rows([str(one), str(without)], split="test")


def test_the_most_frequent_label_of_dev_is_that_of_run_json(tmp_path: Path) -> None:
    scores = {"accuracy": 62.5, "headline": 62.5, "total": 8}
    one = save_finetuned(tmp_path / "m" / "a", "sst-2", GOLD, RIGHT, majority=scores)
    save_finetuned(tmp_path / "m" / "b", "sts-b", [1.0, 2.0], {"1": [1.0, 2.0]}, majority=None)
    rows = c.read_rows([str(one.parent)])
    (first,) = c.compare(rows)
    found = c.majority_row(rows, first)
    assert found["tasks"] == {
        "sst-2": {
            "mean": 62.5,
            "median": 62.5,
            "metrics": {"accuracy": {"mean": 62.5, "median": 62.5}},
        }
    }
    assert found["average"] is None  # STS-B has no classes
    headings, shown, *_ = score_table([first, found], "median")
    assert (headings[1], shown[1]) == ("SST-2", ["Most frequent label", "62.5", "-", "-"])


def test_the_mean_label_is_beside_the_most_frequent_one(tmp_path: Path) -> None:
    scores = {"rmse": 1.25, "headline": 1.25, "total": 2}
    save_finetuned(tmp_path / "m" / "a", "commonlit", [1.0, 2.0], {"1": [1, 2]}, majority=scores)
    rows = c.read_rows([str(tmp_path / "m")])
    (first,) = c.compare(rows)
    found = c.majority_row(rows, first)
    assert found["run"] == "Most frequent label (READ: the mean)"
    assert score_table([first, found])[1][1] == [found["run"], "1.250", "-"]


def test_holm_s_method_by_hand() -> None:
    """p .01 .04 .03 .005: times 4, 3, 2, 1 in rising order, never falling."""
    cells = [{"difference": {"p": p, "significant": p < 0.05}} for p in (0.01, 0.04, 0.03, 0.005)]
    found: list[dict[str, Any]] = [
        {"tasks": {"a": {"mean": 1.0}}},
        {"tasks": {"a": cells[0], "b": cells[1]}},
        {"tasks": {"a": cells[2], "b": cells[3]}},
    ]
    c.correct(found)
    assert [cell["difference"]["p_holm"] for cell in cells] == pytest.approx(
        [0.03, 0.06, 0.06, 0.02]
    )
    assert [cell["difference"]["significant"] for cell in cells] == [True, False, False, True]


def test_tags_are_compared_by_sentence(tmp_path: Path) -> None:
    gold = [["literal", None, "metaphor"], ["literal"], ["metaphor"]]
    said = {"1": [["literal", None, "literal"], ["literal"], ["literal"]]}
    right = {"1": gold}
    for name, predicted in (("a", said), ("b", right)):
        folder = tmp_path / name
        rows = [
            {"id": str(i), "prediction": p, "label": g}
            for i, (p, g) in enumerate(zip(predicted["1"], gold, strict=True))
        ]
        (folder / "seed-1").mkdir(parents=True)
        (folder / "seed-1" / "predictions.jsonl").write_bytes(b"".join(map(dumps, rows)))
        seeds = {"1": score_predictions("vuan", rows)}
        save_run(folder, "finetune", {}, {"task": "vuan", "seeds": seeds})
    _, found = records([str(tmp_path / "a"), str(tmp_path / "b")])
    assert found["tasks"]["vuan"]["difference"]["value"] == pytest.approx(50)


def test_the_lower_error_is_better_and_in_no_average(tmp_path: Path) -> None:
    gold = [0.1 * i - 2 for i in range(40)]
    for name, off in (("far", 0.5), ("near", 0.1)):
        said = {seed: [x + (off if i % 2 else -off) for i, x in enumerate(gold)] for seed in "12"}
        save_finetuned(tmp_path / name / "read", "commonlit", gold, said)
        save_finetuned(tmp_path / name / "sst", "sst-2", GOLD, RIGHT)
    rows = c.read_rows([str(tmp_path / name) for name in ("far", "near")])
    far, near = c.compare(rows, samples=300)
    assert far["tasks"]["commonlit"]["mean"] == pytest.approx(0.5)
    change = near["tasks"]["commonlit"]["difference"]
    assert (change["value"], change["significant"]) == (pytest.approx(-0.4), True)
    assert (near["average_of"], near["average"]) == (["sst-2"], 93.75)
    assert list(c.gains([far, near], {"commonlit": 0.3})) == []
    headings, shown, remarks, _ = score_table([far, near])
    assert headings == ["Run", "SST-2", "READ ↓", "Avg."]
    assert [row[2] for row in shown] == ["0.500 ± 0.000", "0.100 ± 0.000 *", "-0.400 (p 0.003)"]
    assert remarks[0].endswith("READ: RMSE, not percent, lower is better, not in Avg.")
    assert ".." not in remarks[0]
    assert score_table([near, *c.compare(rows[::-1], samples=300)][1:])[1][1][2].endswith("†")


def test_a_single_example_has_a_difference_alone() -> None:
    one = np.ones((2, 1), int)
    found = c.difference(
        metrics.accuracy, np.ones(1, int), 0 * one, one, scale=100, samples=9, seed=0
    )
    assert found == {"value": 100, "low": None, "high": None, "p": None, "significant": False}
    rows = [{"baseline": False, "run": "a", "tasks": {"sst2": {"difference": found}}}]
    assert not list(c.gains(rows, {"sst2": 0.5}))
