"""How visually grounded a text is relative to its content words, and whether two groups differ.

Axes: N texts or groups of texts, V types.

Source: XDBERT (Hsu et al. 2022), section 4, Figure 4, appendix D.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vgtools.analysis.corpora import content_types
from vgtools.io.arrays import Array
from vgtools.text.ngrams import Vocabulary

_BLOCK = 1 << 22  # numbers that are shuffled at a time: 32 MB


@dataclass
class GroundedWords:
    """Which tokens of a text are visually grounded, which are other content, which are neither.

    Args:
        types: the definition of a token.
        grounded: names of the grounded types.
        stop_words: lower-case words; our own list if None. They and punctuation are neither.
    """

    types: Vocabulary
    grounded: frozenset[str]
    stop_words: frozenset[str] | None = None

    def counts(self, texts: Sequence[Sequence[str]]) -> Array:
        """Return how many tokens are grounded, and how many are content: (N, 2).

        Every occurrence counts.

        Args:
            texts: N groups of texts; the texts of a group count together.
        """
        flat = [text for group in texts for text in group]
        ids = self._encode(flat)
        content, grounded = self._kinds()
        # The 0 that ends a text belongs to that text: the running count without itself is its
        # number.
        text_of = np.cumsum(ids == 0) - (ids == 0)
        group_of = np.repeat(np.arange(len(texts)), [len(group) for group in texts])[text_of]
        kinds = (grounded[ids], content[ids])
        columns = [np.bincount(group_of, hits, minlength=len(texts)) for hits in kinds]
        return np.stack(columns, 1).astype(np.int64)

    def marked(self, text: str) -> str:
        """Return a text as its tokens: **grounded**, other content, (neither).

        Source: appendix D, which prints grounded word-pieces bold.
        """
        ids = self._encode([text])[:-1]
        content, grounded = self._kinds()
        names = self.types.names()
        shown = []
        for number in ids.tolist():
            name = names[number].strip("Ġ▁").removesuffix("</w>")
            if not content[number]:
                name = f"({name})"
            shown.append(f"**{name}**" if grounded[number] else name)
        return " ".join(shown)

    def _encode(self, texts: Sequence[str]) -> Array:
        """Return the ids of texts, each ended by 0."""
        return self.types.encode([text.replace("\n", " ") for text in texts])

    def _kinds(self) -> tuple[Array, Array]:
        """Return which of the types met so far are content, and which grounded: (V,) bool each."""
        names = self.types.names()
        content = content_types(names, self.stop_words)
        known = np.fromiter((name in self.grounded for name in names), bool, len(names))
        return content, content & known


def spread(values: Array) -> dict[str, Any]:
    """Return n, quartiles, median and mean of a group's ratios; None where the group is empty.

    Quartiles lie between neighbours in proportion (numpy's default).
    """
    if not len(values):
        return {"n": 0, "q1": None, "median": None, "q3": None, "mean": None}
    q1, median, q3 = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return {
        "n": len(values),
        "q1": q1,
        "median": median,
        "q3": q3,
        "mean": float(values.mean()),
    }


def permutation_p(a: Array, b: Array, samples: int = 10_000, seed: int = 0) -> float | None:
    """Return how often chance parts two groups as far as their means are apart.

    The p-value is two-sided: the share of random divisions of all values into groups of these sizes
    whose means differ at least as much, the observed division counted, so that it is never 0. None
    where a group is empty.

    Deviation: XDBERT's Figure 4 has no test.
    """
    if not len(a) or not len(b):
        return None
    values = np.concatenate([a, b]).astype(np.float64)
    # Close to 0, so that sums stay exact; divisions that are equally far apart must count as such.
    values -= values.mean()
    observed = abs(a.mean() - b.mean())
    generator = np.random.default_rng(seed)
    extreme = 0
    step = max(1, _BLOCK // len(values))
    for start in range(0, samples, step):
        block = np.tile(values, (min(step, samples - start), 1))
        sums = generator.permuted(block, axis=1)[:, : len(a)].sum(1)
        apart = np.abs(sums / len(a) + sums / len(b))  # the other group has minus the sum
        # Sums of the same numbers in another order differ in the last bits; with the tolerance,
        # divisions that are exactly as far apart count whichever way they round.
        extreme += int(np.count_nonzero(apart >= observed - 1e-12))
    return (extreme + 1) / (samples + 1)
