"""The numbers that the paper prints, to compare ours with."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]

# Tables of scores: the task and the metric of each column, the task's first where none is named.
# Table 1 repeats the tests of Tables 3 to 6; VQA's are of test-dev. Its caption says Test-P for
# NLVR2, but the numbers are Table 5's of Test-U.
_COLUMNS: dict[int, tuple[tuple[str, str], ...]] = {
    1: (
        ("vqa", "accuracy"),
        ("vcr-qar", "q2ar_accuracy"),
        ("nlvr2", "accuracy"),
        ("flickr30k-grounding", "recall_1"),
    ),
    3: (("vqa", "accuracy"),),
    4: (("vcr-qa", "accuracy"), ("vcr-qar", "accuracy"), ("vcr-qar", "q2ar_accuracy")),
    5: (("nlvr2", "accuracy"), ("nlvr2", "consistency")),
    6: tuple(
        ("flickr30k-grounding", metric)
        for metric in ("recall_1", "recall_5", "recall_10", "upper_bound")
    ),
    7: (("nlvr2", "accuracy"),),
}
_MAIN = ("accuracy", "recall_1")

_OURS = "VisualBERT"
_NO_FUSION = "VisualBERT w/o Early Fusion"
_NO_COCO = "VisualBERT w/o COCO Pre-training"

# Model and split -> a value per column, as far as the paper prints one. The rows of numbers of
# regions are footnote 4, the row of a fixed ResNet-50 is footnote 3.
# fmt: off
_SCORES: dict[int, dict[tuple[str, str], tuple[float | None, ...]]] = {
    1: {
        ("Baseline", "test"): (68.71, 44.0, 53.5, 69.69),
        (_OURS, "test"): (70.80, 52.4, 67.3, 71.33),
    },
    3: {
        ("Pythia v0.1 (Jiang et al., 2018)", "test-dev"): (68.49,),
        ("Pythia v0.3 (Singh et al., 2019)", "test-dev"): (68.71,),
        (_NO_FUSION, "test-dev"): (68.18,),
        (_NO_COCO, "test-dev"): (70.18,),
        (_OURS, "test-dev"): (70.80,),
        (_OURS, "test-std"): (71.00,),
        ("Pythia v0.1 + VG + Other Data Augmentation", "test-dev"): (70.01,),
        ("Pythia v0.1 + VG + Other Data Augmentation", "test-std"): (70.24,),
        ("MCAN + VG", "test-dev"): (70.63,),
        ("MCAN + VG", "test-std"): (70.90,),
        ("MCAN + VG + Multiple Detectors", "test-dev"): (72.55,),
        ("MCAN + VG + Multiple Detectors + BERT", "test-dev"): (72.80,),
        ("MCAN + VG + Multiple Detectors + BERT + Ensemble", "test-dev"): (75.00,),
        ("MCAN + VG + Multiple Detectors + BERT + Ensemble", "test-std"): (75.23,),
    },
    4: {
        ("R2C (Zellers et al., 2019)", "dev"): (63.8, 67.2, 43.1),
        ("R2C (Zellers et al., 2019)", "test"): (65.1, 67.3, 44.0),
        ("VL-BERT (Su et al., 2019)", "dev"): (73.7, 74.5, 55.0),
        ("VL-BERT (Su et al., 2019)", "test"): (74.0, 74.8, 55.5),
        (_NO_FUSION, "dev"): (70.1, 71.9, 50.6),
        (_NO_COCO, "dev"): (67.9, 69.5, 47.9),
        (f"{_OURS} with a fixed ResNet50", "dev"): (None, None, 51.4),
        (_OURS, "dev"): (70.8, 73.2, 52.2),
        (_OURS, "test"): (71.6, 73.2, 52.4),
    },
    5: {
        ("MaxEnt (Suhr et al., 2019)", "dev"): (54.1,),
        ("MaxEnt (Suhr et al., 2019)", "Test-P"): (54.8,),
        ("MaxEnt (Suhr et al., 2019)", "Test-U"): (53.5, 12.0),
        ("LXMERT (Tan and Bansal, 2019)", "dev"): (75.0,),
        ("LXMERT (Tan and Bansal, 2019)", "Test-P"): (74.5,),
        ("LXMERT (Tan and Bansal, 2019)", "Test-U"): (76.2, 42.1),
        (_NO_FUSION, "dev"): (64.6,),
        (_NO_COCO, "dev"): (63.5,),
        (f"{_OURS}, 9 regions", "dev"): (64.8,),
        (f"{_OURS}, 18 regions", "dev"): (65.5,),
        (f"{_OURS}, 36 regions", "dev"): (66.7,),
        (f"{_OURS}, 72 regions", "dev"): (67.1,),
        (_OURS, "dev"): (67.4,),
        (_OURS, "Test-P"): (67.0,),
        (_OURS, "Test-U"): (67.3, 26.9),
    },
    6: {
        ("BAN (Kim et al., 2018)", "dev"): (None, None, None, 86.97),
        ("BAN (Kim et al., 2018)", "test"): (69.69, 84.22, 86.35, 87.45),
        (_NO_FUSION, "dev"): (70.33, 84.53, 86.39, 86.97),
        (_NO_COCO, "dev"): (68.07, 83.98, 86.24, 86.97),
        (_OURS, "dev"): (70.40, 84.49, 86.31, 86.97),
        (_OURS, "test"): (71.33, 84.98, 86.51, 87.45),
    },
    7: {
        (_OURS, "dev"): (66.7,),
        ("VisualBERT w/o Grounded Pre-training", "dev"): (63.9,),
        (_NO_COCO, "dev"): (62.9,),
        (_NO_FUSION, "dev"): (61.4,),
        ("VisualBERT w/o BERT Initialization", "dev"): (64.7,),
        ("VisualBERT w/o Objective 2", "dev"): (64.9,),
    },
}

# Table 2: the best active head of each relation; section 3.1, next to Figure 3: the best head of
# entities, which the paper does not name.
_HEADS: dict[str, tuple[float, float, str | None]] = {
    "det": (19.59, 54.01, "10-1"),
    "pobj": (17.34, 32.82, "11-11"),
    "amod": (18.67, 45.96, "10-9"),
    "nsubj": (23.19, 44.64, "5-1"),
    "prep": (20.61, 49.27, "9-11"),
    "dobj": (9.82, 30.24, "11-11"),
    "punct": (23.32, 48.80, "3-6"),
    "partmod": (21.41, 38.15, "4-9"),
    "nn": (16.33, 34.06, "10-9"),
    "num": (23.15, 67.44, "9-11"),
}
# fmt: on
_ENTITIES = (17.33, 50.77)

# Numbers of tables by their contents, the name of a function here that returns the rows; each with
# the command that compares with them.
TABLES = {
    "scores": dict.fromkeys(_SCORES, "vg compare RUN"),
    "heads": {2: "vg probe-attention PHRASES --reported, or make paper"},
}


def scores(table: int) -> list[Record]:
    """Return the rows of Table 1 or 3 to 7 as records of models, marked as reported.

    A row is a model on a split, which its name ends in.
    """
    records = list[Record]()
    for (name, split), values in _SCORES[table].items():
        tasks = dict[str, Record]()
        for (task, metric), value in zip(_COLUMNS[table], values, strict=False):
            if value is None:
                continue
            cell = tasks.setdefault(task, {"metrics": {}})
            cell["metrics"][metric] = {"mean": value}
            if metric in _MAIN:
                cell["mean"] = value
        run = f"{name}, {split}"
        records.append({"run": run, "source": _source(f"Table {table}"), "tasks": tasks})
    return records


def heads(table: int = 2) -> list[Record]:
    """Return the accuracy of heads in the form of `vg probe-attention`, in percent, marked as
    reported.

    Returns:
        The best head of entities, then the relations of Table 2: `baseline` is the most confident
        region.
    """
    baseline, best = _ENTITIES
    entities = {"of": "entities", "baseline": baseline, "accuracy": best, "head": None}
    records: list[Record] = [{**entities, "source": _source("section 3.1 and Figure 3")}]
    for relation, (baseline, best, head) in _HEADS.items():
        row = {"of": relation, "baseline": baseline, "accuracy": best, "head": head}
        records.append({**row, "source": _source(f"Table {table}")})
    return [{"kind": "reported", **record} for record in records]


def _source(place: str) -> str:
    return f"reported in Li et al. 2020, {place}"
