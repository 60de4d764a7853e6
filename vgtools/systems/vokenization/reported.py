"""The numbers that the paper prints, to compare ours with."""

from __future__ import annotations

from typing import Any

from vgtools.tasks.table import TABLE_2, find_task

Record = dict[str, Any]

# Table 1: tokens, sentences, vocabulary, tokens per sentence, 1-gram and 2-gram JSD to English
# Wikipedia, grounding ratio.
_CORPORA = {
    "MS COCO": (7.0e6, 0.6e6, 9e3, 11.8, 0.15, 0.27, 0.548),
    "Visual Genome": (29.2e6, 5.3e6, 13e3, 5.5, 0.16, 0.28, 0.576),
    "Conceptual Captions": (29.9e6, 2.8e6, 17e3, 10.7, 0.09, 0.20, 0.417),
    "Wiki103": (111e6, 4.2e6, 29e3, 26.5, 0.01, 0.05, 0.266),
    "English Wikipedia": (2889e6, 120e6, 29e3, 24.1, 0.00, 0.00, 0.277),
    "CNN/Daily Mail": (294e6, 10.9e6, 28e3, 26.9, 0.04, 0.10, 0.283),
}

_MEASURES = (
    "tokens",
    "sentences",
    "vocabulary",
    "tokens_per_sentence",
    "jsd_1",
    "jsd_2",
    "grounding_ratio",
)

# Tables 2 to 6: one value per task in the order of Table 2, (EM, F1) of SQuAD; Avg. as printed.
_BERT = (89.3, 87.9, 83.2, 79.4)

_BERT_VOKENS = (92.2, 88.6, 88.6, 82.6)

# fmt: off
_SCORES: dict[int, dict[str, tuple[Any, ...]]] = {
    2: {
        "BERT 6L/512H": (88.0, 85.2, 87.1, 77.9, (71.3, 80.2), (57.2, 60.8), 56.2, 75.6),
        "BERT 6L/512H + Voken-cls":
            (89.7, 85.0, 87.3, 78.6, (71.5, 80.2), (61.3, 64.6), 58.2, 76.8),
        "BERT 12L/768H": (*_BERT, (77.0, 85.3), (67.7, 71.1), 65.7, 79.4),
        "BERT 12L/768H + Voken-cls": (*_BERT_VOKENS, (78.8, 86.7), (68.1, 71.2), 70.6, 82.1),
        "RoBERTa 6L/512H": (87.8, 82.4, 85.2, 73.1, (50.9, 61.9), (49.6, 52.7), 55.1, 70.2),
        "RoBERTa 6L/512H + Voken-cls":
            (87.8, 85.1, 85.3, 76.5, (55.0, 66.4), (50.9, 54.1), 60.0, 72.6),
        "RoBERTa 12L/768H": (89.2, 87.5, 86.2, 79.0, (70.2, 79.9), (59.2, 63.1), 65.2, 77.6),
        "RoBERTa 12L/768H + Voken-cls":
            (90.5, 89.2, 87.8, 81.0, (73.0, 82.5), (65.9, 69.3), 70.4, 80.6),
    },
    3: {
        "ViLBERT (0.0e-3 from BERT)": (90.3, 89.6, 88.4, 82.4),
        "VL-BERT (6.4e-3)": (90.1, 89.5, 88.6, 82.9),
        "VisualBERT (6.5e-3)": (90.3, 88.9, 88.4, 82.4),
        "Oscar (41.6e-3)": (87.3, 50.5, 86.6, 77.3),
        "LXMERT (42.0e-3)": (82.4, 50.5, 79.8, 31.8),
        "BERT base": (90.3, 89.6, 88.4, 82.4),
        "BERT base + Weight Noise (6.5e-3)": (89.9, 89.9, 88.4, 82.3),
    },
    4: {
        "MS COCO": (83.7, 60.6, 82.1, 69.3),
        "Wiki103*": (85.8, 77.9, 84.8, 73.9),
        "No Pre-train": (77.1, 50.5, 31.6, 31.8),
    },
    5: {
        "SentLabel": (88.3, 86.1, 86.9, 78.0),
        "Propagated": (88.9, 87.9, 88.1, 80.2),
        "Term Frequency": (89.0, 86.9, 85.5, 79.8),
        "Vokens": _BERT_VOKENS,
    },
    6: {
        "Random": (89.1, 87.6, 86.6, 80.0),
        "Shuffle": (89.2, 87.3, 86.1, 80.2),
        "Tokens": (89.7, 88.8, 87.2, 80.8),
        "Voken Only": (89.8, 87.8, 86.2, 81.7),
        "No Voken": _BERT,
        "Voken": _BERT_VOKENS,
    },
}

# Numbers of tables by their contents, the name of a function here that returns the rows; each with
# the command that compares with them.
TABLES = {
    "scores": dict.fromkeys(_SCORES, "vg compare RUN"),
    "corpora": {1: "vg stats CORPUS --reported, or make table1"},
}


def corpora(_: int = 1) -> list[Record]:
    """Return the rows of Table 1 as records of corpora, marked as reported."""
    return [
        {
            "corpus": name,
            "source": "reported in the paper",
            **dict(zip(_MEASURES, values, strict=True)),
        }
        for name, values in _CORPORA.items()
    ]


def scores(table: int) -> list[Record]:
    """Return the rows of one of Tables 2 to 6 as records of models, marked as reported."""
    return [
        {
            "run": name,
            "source": f"reported in the paper, Table {table}",
            "tasks": dict(map(_cell, TABLE_2, values)),
            "average": values[len(TABLE_2)] if len(values) > len(TABLE_2) else None,
        }
        for name, values in _SCORES[table].items()
    ]


def _cell(task: str, value: float | tuple[float, float]) -> tuple[str, Record]:
    """Return a task with its number; for SQuAD it is the mean of exact match and F1."""
    if not isinstance(value, tuple):
        return task, {"mean": value}
    metrics = zip(find_task(task).metrics, value, strict=True)
    return task, {
        "mean": sum(value) / len(value),
        "metrics": {name: {"mean": number} for name, number in metrics},
    }
