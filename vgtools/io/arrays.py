"""The array type of every signature; not in `vgtools.io`, which must not import numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def padded(rows: Sequence[Any], fill: Any, dtype: Any, *width: int) -> Array:
    """Return rows of unlike length as one array, filled up at their ends: (rows, longest, *width).

    Args:
        width: of what a row holds; none for numbers.
    """
    array = np.full((len(rows), max(map(len, rows), default=0), *width), fill, dtype)
    for place, row in zip(array, rows, strict=True):
        place[: len(row)] = row
    return array
