"""The numbers that the paper prints, to compare ours with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Record = dict[str, Any]

# Tables of scores: one value per task in this order, as far as the paper has one. READ is an RMSE.
# Table 7 repeats Table 3 of Vokenization in an order of its own.
_GLUE = ("rte", "mrpc", "sts-b", "cola", "sst-2", "qnli", "qqp", "mnli", "swag", "commonlit")
_TASKS: dict[int, Sequence[str]] = {
    1: _GLUE,
    3: _GLUE[:4],
    7: ("sst-2", "qnli", "qqp", "mnli"),
    8: _GLUE,
}

# fmt: off
_SCORES: dict[int, dict[str, tuple[float, ...]]] = {
    1: {
        "CLIP-T": (51.62, 76.20, 22.07, 25.41),
        "BERT-b": (66.43, 87.38, 88.64, 56.52, 92.46, 90.92, 89.51, 84.35, 81.0),
        "XDBERT-b": (69.31, 88.02, 89.32, 57.55, 92.78, 91.52, 89.57, 84.75, 81.35),
        "ELECTRA-b": (78.70, 89.49, 90.77, 66.09, 94.5, 92.69, 90.29, 88.23, 88.60),
        "XDELECTRA-b": (80.51, 90.55, 91.04, 66.76, 95.20, 93.03, 90.4, 88.75, 88.73),
        "ELECTRA-l": (86.64, 91.53, 91.88, 69.27, 96.90, 94.78, 91.34, 90.99, 92.46, 0.685),
        "XDELECTRA-l": (87.73, 92.12, 91.97, 70.98, 97.36, 94.93, 91.29, 91.02, 92.59, 0.635),
    },
    3: {
        "MLM+MATCH+CLIPTC (proposed)": (69.31, 88.02, 89.32, 56.27),
        "MLM+MATCH": (70.04, 86.93, 88.8, 54.62),
        "MLM": (68.23, 87.25, 89.29, 54.78),
        "1 cross attention layer": (66.79, 87.66, 89.32, 53.62),
        "2 epochs (2x)": (69.31, 88.04, 89.31, 55.91),
        "20 epochs (20x)": (57.4, 87.74),
        "wiki (14G), same steps": (65.3, 87.78, 89.1),
    },
    7: {
        "VL-BERT (6.4e-3)": (90.1, 89.5, 88.6, 82.9),
        "VisualBERT (6.5e-3)": (90.3, 88.9, 88.4, 82.4),
        "Oscar (41.6e-3)": (87.3, 50.5, 86.6, 77.3),
        "LXMERT (42.0e-3)": (82.4, 50.5, 79.8, 31.8),
        "BERT/ViLBERT": (90.3, 89.6, 88.4, 82.4),
    },
    8: {
        "XBERT-b": (69.31, 88.46, 89.59, 59.05, 92.89, 91.47, 89.37, 84.62, 81.34),
        "XELECTRA-b": (79.78, 91.06, 91.46, 66.8, 95.06, 93.04, 90.62, 88.97, 88.91),
        "XELECTRA-l": (88.45, 92.33, 92.04, 70.51, 97.36, 94.97, 91.4, 91.03, 92.83, 0.565),
    },
}
# fmt: on

# Table 2: PWCCA of word embeddings; the paper names neither the words nor their number.
_PWCCA = {
    ("BERT", "ELECTRA"): 0.5498,
    ("BERT", "CLIP"): 0.4980,
    ("ELECTRA", "CLIP"): 0.4645,
    ("BERT", "RANDOM"): 0.3569,
}

# Table 4: width, most tokens, layers. Table 6: parameters, BERT's for both of the base size.
_SIZES: dict[int, dict[str, Mapping[str, int]]] = {
    4: {
        "BERT-b": {"width": 768, "max_length": 512, "layers": 12},
        "BERT-l": {"width": 1024, "max_length": 512, "layers": 24},
        "CLIP": {"width": 512, "max_length": 77, "layers": 12},
    },
    6: {
        "BERT-b / ELECTRA-b": {"parameters": 109_482_240},
        "XBERT-b / XELECTRA-b": {"parameters": 202_059_009},
        "ELECTRA-l": {"parameters": 334_092_288},
        "XELECTRA-l": {"parameters": 442_671_617},
    },
}

# Section 4, next to Figure 4: right answers that XDBERT-b has more than BERT-b, in percent of all.
_EXAMPLES: dict[str, Record] = {
    "rte": {"seeds": [5, 5], "examples": 277, "accumulated": 38, "percent": 2.74},
    "mrpc": {"seeds": [5, 5], "percent": 0.3},
    "cola": {"seeds": [5, 5], "percent": 0.9},
}

# Numbers of tables by their contents, the name of a function here that returns the rows; each with
# the command that compares with them.
TABLES = {
    "scores": dict.fromkeys(_SCORES, "vg compare RUN"),
    "pwcca": {2: "vg compare words VECTORS --reported xdbert:2, or make table2"},
    "sizes": {
        n: f"vg compare sizes ENCODER --reported xdbert:{n}, or make table{n}" for n in _SIZES
    },
    "examples": {
        4: "vg compare examples BASELINE RUN --reported xdbert:4, or make figure4"
    },  # a figure
}


def scores(table: int) -> list[Record]:
    """Return the rows of Table 1, 3, 7 or 8 as records of models, medians, marked as reported."""
    return [
        {
            "run": name,
            "source": _source(f"Table {table}"),
            "tasks": {
                task: {"mean": value} for task, value in zip(_TASKS[table], values, strict=False)
            },
            "average": None,
        }
        for name, values in _SCORES[table].items()
    ]


def pwcca(table: int) -> list[Record]:
    """Return the rows of Table 2, marked as reported."""
    return [
        {"first": first, "second": second, "pwcca": value, "source": _source(f"Table {table}")}
        for (first, second), value in _PWCCA.items()
    ]


def sizes(table: int) -> list[Record]:
    """Return the rows of Table 4 or 6 as records of configurations, marked as reported."""
    return [
        {"model": name, **values, "source": _source(f"Table {table}")}
        for name, values in _SIZES[table].items()
    ]


def examples(figure: int) -> list[Record]:
    """Return the numbers of section 4 for the tasks of Figure 4, marked as reported."""
    models = ["BERT-b", "XDBERT-b"]
    source = _source(f"section 4 and Figure {figure}")
    return [
        {"task": task, "models": models, **values, "source": source}
        for task, values in _EXAMPLES.items()
    ]


def _source(place: str) -> str:
    return f"reported in Hsu et al. 2022, {place}"
