"""The numbers that the paper prints, to compare ours with."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]

_TASKS = ("joci", "pdtb", "rte", "sick", "vua", "vuan")

# Table 1: regions per image, their features, perplexity of COCO captions.
_REGIONS = (
    (0, None, 8.4),
    (1, "EfficientNet-1280", 4.6),
    (8, "ResNet-2048", 4.6),
    (16, "ResNet-2048", 4.0),
    (36, "ResNet-2048", 4.2),
)

# Table 2: images per text, perplexity of Wiki-BC and of COCO captions.
_PERPLEXITIES = {
    "No Grounding": ("0", 8.7, 7.6),
    "Transferred i2t": ("0/1", 30.0, 4.6),
    "Transferred t2i": ("0/1", 41.6, None),
    "Transferred t2i+i2t": ("0/1", 25.3, None),
    "Associative (Zhang et al., 2020)": ("16", 8.9, 8.6),
    "Associative (scene-based), K 16": ("16", 8.5, 4.6),
    "Associative (scene-based), K 1": ("1", 9.1, 7.3),
    "Associative (object-based), K 1": ("1", 9.0, 35.6),
    "Associative (object-based), K 16": ("16", 8.6, 4.7),
}

# Table 3: one value per task in the order of `_TASKS`; AVG as printed.
_SCORES = {
    "Albert-base": (6.7, 49.6, 68.0, 88.2, 82.7, 85.0, 63.4),
    "No-Grounding": (8.7, 46.0, 56.8, 87.4, 82.2, 83.8, 60.8),
    "Transferred i2t": (-0.4, 31.1, 60.2, 85.7, 82.1, 84.5, 57.2),
    "Transferred t2i": (8.3, 19.3, 65.6, 87.4, 82.9, 84.6, 58.0),
    "Transferred t2i+i2t": (11.1, 52.0, 61.1, 88.0, 82.7, 85.2, 63.4),
    "Associative (Zhang et al., 2020)": (2.4, 48.4, 54.3, 87.6, 79.6, 81.9, 59.0),
    "Associative (scene-based)": (1.2, 49.3, 54.5, 86.1, 83.0, 84.0, 59.7),
    "Associative (object-based)": (8.6, 50.8, 67.6, 87.1, 83.1, 84.0, 63.5),
}

# Table 4: examples of train, dev and test, as printed, and labels.
_SIZES = {
    "joci": ("2.4k", "299", "298", None),
    "rte": ("2.2k", "249", "277", 2),
    "sick": ("4.5k", "500", "4.9k", 3),
    "pdtb": ("12.9k", "1.2k", "1.1k", 16),
    "vuan": ("5.0k", "1.3k", "2.2k", 2),
    "vua": ("16k", "1.7k", "5.9k", 2),
}

# Numbers of tables by their contents, the name of a function here that returns the rows; each with
# the command that compares with them.
TABLES = {
    "scores": {3: "vg compare RUN"},
    "perplexities": {
        n: f"vg perplexity TEXT --reported grounding:{n}, or make table{n}" for n in (1, 2)
    },
    "task_sizes": {4: "vg finetune TASK DATA --list, or make table4"},
}


def perplexities(table: int) -> list[Record]:
    """Return the rows of Table 1 (by regions per image) or 2 (by strategy), marked as reported.

    Returns:
        `run`, `images` or `regions`, `source`, and `reported`: a perplexity per corpus.
    """
    if table == 1:
        return [
            {
                "run": f"{count} × {features}" if features else "no image",
                "regions": count,
                "reported": {"COCO": value},
                "source": _source(1),
            }
            for count, features, value in _REGIONS
        ]
    return [
        {
            "run": name,
            "images": images,
            "reported": {"Wiki-BC": wiki} | ({} if coco is None else {"COCO": coco}),
            "source": _source(2),
        }
        for name, (images, wiki, coco) in _PERPLEXITIES.items()
    ]


def scores(table: int) -> list[Record]:
    """Return the rows of Table 3 as records of models, medians of 8 runs, marked as reported."""
    return [
        {
            "run": name,
            "source": _source(table),
            "tasks": {task: {"mean": value} for task, value in zip(_TASKS, values, strict=False)},
            "average": values[len(_TASKS)],
        }
        for name, values in _SCORES.items()
    ]


def task_sizes(table: int = 4) -> list[Record]:
    """Return the rows of Table 4: examples and labels of each task, as the paper prints them."""
    return [
        {
            "task": task,
            "train": train,
            "dev": dev,
            "test": test,
            "labels": labels,
            "source": _source(table),
        }
        for task, (train, dev, test, labels) in _SIZES.items()
    ]


def _source(table: int) -> str:
    return f"reported in Sileo 2021, Table {table}"
