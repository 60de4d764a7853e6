"""The numbers that the paper prints, to compare ours with."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]

# Table 1: BLEU; two pairs of languages are two rows. Tables 2 and 3: accuracy and F1.
_TABLES: dict[int, tuple[str, dict[str, float]]] = {
    1: (
        "translation",
        {
            "Transformer (Lee et al., 2018), en-ro": 32.40,
            "Transformer, en-ro": 32.66,
            "Transformer +VA, en-ro": 34.63,
            "Transformer (Vaswani et al., 2017), en-de": 27.3,
            "Transformer, en-de": 27.31,
            "Transformer +VA, en-de": 27.83,
        },
    ),
    2: (
        "snli",
        {
            "GPT (Radford et al., 2018)": 89.9,
            "DRCN (Kim et al., 2018)": 90.1,
            "MT-DNN (Liu et al., 2019)": 91.6,
            "SemBERT (Zhang et al., 2019)": 91.6,
            "BERT base (Liu et al., 2019)": 90.8,
            "BERT base": 90.7,
            "BERT base +VA": 91.2,
        },
    ),
    3: (
        "conll-2003",
        {
            "LSTM-CRF (Lample et al., 2016)": 90.94,
            "BERT base (Pires et al., 2019)": 91.07,
            "BERT base": 91.21,
            "BERT base +VA": 91.46,
        },
    ),
}

# Numbers of tables by their contents, the name of a function here that returns the rows; each with
# the command that compares with them.
TABLES = {"scores": dict.fromkeys(_TABLES, "vg compare RUN")}


def scores(table: int) -> list[Record]:
    """Return the rows of a table of section 4.3 as records of models, marked as reported."""
    task, values = _TABLES[table]
    return [
        {
            "run": name,
            "source": f"reported in Zhang et al. 2019, Table {table}",
            "tasks": {task: {"mean": value}},
        }
        for name, value in values.items()
    ]


def retrieval() -> Record:
    """Return the retriever's recall as `vg retrieve --score` would give it, marked as reported.

    Source: Zhang et al. 2019, section 4.1: "94.0 % R@10 rate on the MS-COCO" with the settings of
        Engilberge et al. 2018, whose evaluation is the mean of 5 folds of 1,000 test photos. The
        paper does not state the direction; it is taken to be text to image, the direction that it
        uses.
    """
    return {
        "source": "reported in the paper, section 4.1",
        "folds": {"count": 5, "images": 1000, "text_to_image": {"r10": 94.0}},
    }
