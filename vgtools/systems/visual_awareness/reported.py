"""The numbers that the paper prints, to compare ours with."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]

SCORES = (2, 3)  # numbers of the tables of scores

# Tables 2 and 3: test accuracy and F1 in percent; the public systems as the paper quotes them.
_SCORES = {
    2: {
        "GPT (Radford et al., 2018)": 89.9,
        "DRCN (Kim et al., 2018)": 90.1,
        "MT-DNN (Liu et al., 2019)": 91.6,
        "SemBERT (Zhang et al., 2019a)": 91.6,
        "BERT (Base) (Liu et al., 2019)": 90.8,
        "BERT (Base)": 90.7,
        "+ VA": 91.2,
    },
    3: {
        "LSTM-CRF (Lample et al., 2016)": 90.94,
        "BERT (Base) (Pires et al., 2019)": 91.07,
        "BERT (Base)": 91.21,
        "+ VA": 91.46,
    },
}
_TASKS = {2: "snli", 3: "conll-2003"}


def scores(table: int) -> list[Record]:
    """Return the rows of Table 2 (SNLI) or 3 (CoNLL-2003) as records of models, as reported."""
    return [
        {
            "run": name,
            "source": f"reported in Zhang et al. 2020, Table {table}",
            "tasks": {_TASKS[table]: {"mean": value}},
            "average": None,
        }
        for name, value in _SCORES[table].items()
    ]
