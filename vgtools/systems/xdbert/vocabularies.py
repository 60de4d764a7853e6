"""Vocabularies side by side: how alike the input vectors of the same words are.

Source: XDBERT (Hsu et al. 2022), section 4, Table 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from vgtools.analysis.cca import Space, compare_spaces
from vgtools.io.errors import DataError
from vgtools.models.embeddings import WordTable, open_words, read_word_list

RANDOM = "RANDOM"


def compare_words(refs: Sequence[str], words: str | None, seed: int) -> Iterator[dict[str, Any]]:
    """Yield a record per pair of vocabularies, and a record of the first with random vectors.

    The words of a pair are those that both have. Random vectors are uniform in [0, 1), as wide as
    the first's, for the words of the first pair; for all of its own, if it is alone.

    Args:
        refs: as `open_words` takes them.
        words: a list of words to restrict the comparison to, one per line.
        seed: decides the shuffles and the random vectors.

    Raises:
        DataError: as `open_words` and `compare_spaces`, or the list of words is empty.

    Source: section 4, Table 2.
    Deviation: the paper states neither which words it compared, nor the width of its random
    vectors; chance alone gives its BERT/RANDOM for about 4,500 words.
    """
    chosen = None if words is None else read_word_list(words)
    tables = [open_words(ref) for ref in refs]
    for first, second in combinations(tables, 2):
        yield _compare(first, second, chosen, seed)
    first = tables[0]
    common = [word for word in first.rows if word in tables[min(1, len(tables) - 1)].rows]
    drawn = np.random.default_rng(seed).random((len(common), first.array.shape[1]))
    rows = {word: row for row, word in enumerate(common)}
    yield _compare(first, WordTable(RANDOM, rows, drawn), chosen, seed)


def _compare(
    first: WordTable, second: WordTable, chosen: Sequence[str] | None, seed: int
) -> dict[str, Any]:
    """Return the record of two vocabularies."""
    # The order is fixed, because the shuffles of the control depend on it.
    asked = sorted(first.rows) if chosen is None else chosen
    common = [word for word in asked if word in first.rows and word in second.rows]
    pair = f"{first.ref} and {second.ref}"
    if not common:
        raise DataError(f"{pair} have no word in common; expected words of the letters a to z")
    try:
        spaces = [Space(each.vectors(common)) for each in (first, second)]
        found = compare_spaces(spaces[0], spaces[1], seed)
    except DataError as error:
        raise DataError(f"{pair}: {error.why}") from None
    left_out = {} if chosen is None else {"not_common": len(chosen) - len(common)}
    return {"first": first.ref, "second": second.ref, **found, **left_out}
