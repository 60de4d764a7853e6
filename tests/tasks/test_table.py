"""The table of tasks: names, and the papers' values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vgtools.io.errors import DataError, Exit
from vgtools.tasks.table import find_splits, find_task, table


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("SST-2", "sst-2"),
        ("stsb", "sts-b"),
        ("SQuAD v1.1", "squad-1.1"),
        ("squad", "squad-1.1"),
        ("squad2", "squad-2.0"),
    ],
)
def test_find_task(name: str, wanted: str) -> None:
    assert find_task(name).name == wanted


def test_unknown_task_lists_all() -> None:
    with pytest.raises(
        DataError, match="cola, sst-2, mrpc, sts-b, qqp, mnli, qnli, rte, wnli, squad-1"
    ) as caught:
        find_task("glue")
    assert caught.value.code == Exit.USAGE


def test_table_has_the_paper_s_values() -> None:
    rows = {row["task"]: row for row in table()}
    values = {name: (r["epochs"], r["learning_rate"], r["batch_size"]) for name, r in rows.items()}
    glue = dict.fromkeys(
        ["cola", "sst-2", "mrpc", "sts-b", "qqp", "mnli", "qnli", "rte", "wnli"], (3, 1e-4, 32)
    )
    swag = (3, 2e-5, 16)
    seen = {"nlvr2": (10, 2e-5, 64), "vqa": (10, 2e-5, 64), "flickr30k-grounding": (5, 2e-5, 32)}
    seen |= {"vcr-qa": (8, 2e-5, 32), "vcr-qar": (12, 2e-5, 32)}
    strategies = dict.fromkeys(["joci", "pdtb", "sick", "vua", "vuan"], (4, 1e-4, 32))
    assert values == glue | seen | strategies | {
        "conll-2003": (3, 2e-5, 32),
        "snli": (3, 2e-5, 32),
        "commonlit": (3, 2e-5, 32),
        "squad-1.1": (3, 5e-5, 32),
        "squad-2.0": (2, 5e-5, 48),
        "swag": swag,
        "codah": swag,
        "translation": (0, pytest.approx(4.9410588e-4, rel=1e-7), 16384),
    }
    assert rows["cola"]["columns"] == "source, label, star, sentence (no header)"
    assert rows["rte"]["labels"] == "entailment, not_entailment"
    assert (rows["qqp"]["metrics"], rows["sts-b"]["labels"]) == (["f1", "accuracy"], "0 to 5")
    assert (rows["rte"]["max_length"], rows["rte"]["seed"], rows["rte"]["warmup"]) == (
        126,
        9595,
        0.1,
    )
    appendix = [*glue, "squad-1.1", "squad-2.0", "swag"]
    assert all("A.1" in rows[name]["source"] for name in appendix)
    assert all("section 3.3" in rows[name]["source"] for name in strategies)
    assert {rows[name]["max_length"] for name in strategies} == {64}
    awareness = [rows[name] for name in ("snli", "conll-2003")]
    assert {row["max_length"] for row in awareness} == {128}
    assert {row["weight_decay"] for row in awareness} == {0.01}
    assert all("section 4.2" in row["source"] for row in awareness)
    assert {row["weight_decay"] for row in rows.values() if row not in awareness} == {0.0}
    assert (rows["commonlit"]["max_length"], rows["commonlit"]["warmup"]) == (384, 0.1)
    assert [find_task(name).scale for name in ("commonlit", "sts-b")] == [1, 100]
    assert rows["vua"]["columns"] == "sentence, verb_idx, label"
    assert [rows[name]["source"].split(";")[0][-3:] for name in seen] == [
        "B.3",
        "B.1",
        "B.4",
        "B.2",
        "B.2",
    ]
    assert json.loads(json.dumps(rows)) == rows
    assert [find_task(name).classes for name in ("mnli", "rte", "sts-b", "swag")] == [3, 2, 1, 4]


def test_a_dev_set_of_the_training_file_needs_no_dev_file_and_allows_none(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("")
    task = find_task("READ")
    train = str(tmp_path / "train.csv")
    assert find_splits(task, str(tmp_path), hold_out=0.1) == {"train": train, "dev": train}
    assert find_splits(task, None, "x", hold_out=0.1) == {"train": "x", "dev": "x"}
    with pytest.raises(DataError, match="measure on: --dev FILE, --hold-out SHARE, or DATA"):
        find_splits(task, None, "x")
    (tmp_path / "dev.csv").write_text("")
    with pytest.raises(DataError, match=r"but there is .*dev\.csv; drop one of them") as caught:
        find_splits(task, str(tmp_path), hold_out=0.1)
    assert caught.value.code == Exit.USAGE
    assert find_splits(task, None, train, hold_out=0.1)["dev"] == train
