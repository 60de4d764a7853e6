"""How right attention heads are, how sure that is, and which head is the best: the numbers behind `vg probe-attention`.

Answers of all heads are counted as they come, together with those of S resamplings of the photos, so that memory does not
grow with the photos. `records` says what was found.

Axes: L layers, H heads, Q queries, S bootstrap samples.

Source: Li et al. 2020 (What Does BERT with Vision Look At?), section 3.1. The significance is ours: the paper has none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vgtools.parses import stanford

Array = np.ndarray[Any, Any]

ACTIVE = 0.2  # a head that gives regions more than this share of its attention is active (section 3.1)
ENTITY = ("entity", "")
Key = tuple[str, str]  # ("entity", ""), or (relation, "dependent" or "head": what the entity is in it)

# ----------------------------------------------------------------------------------------------------------------- scores


@dataclass
class Cell:
    """How all heads did on one kind of query; with the same for S resamplings of the photos."""

    right: Array  # (L × H,) int64
    mass: Array  # (L × H,) float64, summed attention to regions
    drawn: Array  # (S, L × H) float32, `right` of each resampling
    base: float = 0.0  # right answers of the most confident region
    bound: int = 0  # queries that any region is right for
    total: int = 0
    drawn_base: Array = field(default_factory=lambda: np.zeros(0))  # (S,)
    drawn_total: Array = field(default_factory=lambda: np.zeros(0))  # (S,)

    @classmethod
    def empty(cls, heads: int, samples: int) -> Cell:
        """Return a cell of no query."""
        drawn = np.zeros((samples, heads), np.float32)
        return cls(np.zeros(heads, np.int64), np.zeros(heads), drawn, 0.0, 0, 0, np.zeros(samples), np.zeros(samples))

    def __add__(self, other: Cell) -> Cell:
        return Cell(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    @property
    def accuracy(self) -> Array:
        """(L × H,) share of right answers."""
        return np.asarray(self.right / max(self.total, 1))

    @property
    def attention(self) -> Array:
        """(L × H,) mean share of a source's attention that goes to regions."""
        return np.asarray(self.mass / max(self.total, 1))

    def against(self, heads: int, column: int) -> Cell:
        """Return the cell of the first `heads` columns, with the answers of another column as the baseline."""
        drawn = self.drawn[:, column].astype(np.float64)
        return Cell(
            self.right[:heads], self.mass[:heads], self.drawn[:, :heads],
            float(self.right[column]), 0, self.total, drawn, self.drawn_total,
        )  # fmt: skip

    def best(self) -> int | None:
        """Return the active head with the highest accuracy (the first of equals), or None where no head is active."""
        active = self.attention > ACTIVE
        return int(np.argmax(np.where(active, self.accuracy, -1.0))) if active.any() and self.total else None

    def by_layer(self, heads: int, layers: int = 6) -> tuple[list[int], list[int]]:
        """Return the best head of each layer (an active one where there is one), and the `layers` layers with the best.

        Args:
            heads: H.
            layers: how many to choose; they come in order.

        Source: section 3.2, "the best heads of 6 layers that achieve the highest entity grounding accuracy".
        """
        value = np.where(self.attention > ACTIVE, self.accuracy + 1, self.accuracy).reshape(-1, heads)
        best, top = value.argmax(1), value.max(1)
        return best.tolist(), np.sort(np.argsort(-top, kind="stable")[:layers]).tolist()

    def resampled(self) -> tuple[Array, Array]:
        """Return accuracies (S, L × H) and baselines (S,) of the resamplings that hold a query."""
        some = self.drawn_total > 0
        return self.drawn[some] / self.drawn_total[some, None], self.drawn_base[some] / self.drawn_total[some]


class Scores:
    """Cells by kind of query, filled window by window; their size does not depend on the number of photos.

    The photos are resampled while they pass by: in each of S resamplings a photo counts as often as a draw from a Poisson
    distribution of mean 1 says, which depends on nothing but the seed and the photo's id. So all captions of a photo, and all
    entities in them, come and go together. Where there are no photos, the sentences are resampled, and a sentence is its id.

    Source: Chamandy et al. 2012 (Estimating uncertainty for massive data streams): the Poisson bootstrap.
    """

    def __init__(self, heads: int, samples: int = 1000, seed: int = 0) -> None:
        self.cells: dict[Key, Cell] = {}
        self.heads, self.samples, self.seed = heads, samples, seed
        self.captions = 0
        self._photos = set[bytes]()

    @property
    def photos(self) -> int:
        """Photos that have been counted."""
        return len(self._photos)

    def count_photos(self, images: Iterable[str]) -> None:
        """Note photos, each once however often it comes."""
        self._photos.update(hashlib.blake2b(name.encode(), digest_size=8).digest() for name in images)

    def draws(self, image: str) -> Array:
        """Return how often a photo counts in each resampling: (S,) float32."""
        seed = hashlib.blake2b(image.encode(), digest_size=16, salt=self.seed.to_bytes(8, "little")).digest()
        return np.random.default_rng(int.from_bytes(seed, "little")).poisson(1.0, self.samples).astype(np.float32)

    def add(
        self,
        keys: Sequence[Key],
        images: Sequence[str],
        image: Array,
        key: Array,
        right: Array,
        mass: Array,
        base: Array,
        bound: Array,
    ) -> None:
        """Count answers.

        Args:
            keys: what the numbers in `key` mean.
            images: photos of the window.
            image: (Q,) which of them.
            key: (Q,).
            right: (Q, L × H) bool.
            mass: (Q, L × H).
            base: (Q,) share of the most confident regions that are right.
            bound: (Q,) bool, some region is right.
        """
        draws = np.stack([self.draws(name) for name in images], 1)  # (S, photos)
        for number in np.unique(key).tolist():
            cell = self.cells.setdefault(keys[number], Cell.empty(self.heads, self.samples))
            some = np.flatnonzero(key == number)
            some = some[np.argsort(image[some], kind="stable")]
            here, begin = np.unique(image[some], return_index=True)
            # Summed by photo first: a photo's answers come and go together, and the product is one row a photo, not a query.
            weights, hits = draws[:, here], np.add.reduceat(right[some], begin, axis=0, dtype=np.float32)
            cell.right += right[some].sum(0)
            cell.mass += mass[some].sum(0, dtype=np.float64)
            cell.drawn += weights @ hits
            cell.base += float(base[some].sum())
            cell.drawn_base += weights @ np.add.reduceat(base[some], begin)
            cell.drawn_total += weights @ np.diff(begin, append=len(some))
            cell.bound, cell.total = cell.bound + int(bound[some].sum()), cell.total + len(some)


# ---------------------------------------------------------------------------------------------------------------- records


def head_name(number: int, heads: int) -> str:
    """Return `<layer>-<head>`, both from 1, as in Table 2."""
    return f"{number // heads + 1}-{number % heads + 1}"


def percent(value: Any) -> Any:
    """Return shares as percentages, numbers or nested lists of them."""
    return np.round(100 * np.asarray(value, np.float64), 4).tolist()


@dataclass(frozen=True)
class Significance:
    """How sure one can be of the accuracy of each head; all (L × H,), shares.

    `low` and `high` hold for one head chosen beforehand. `low_all` and `high_all` hold for all heads at once: they are the
    bootstrap's max-t band, as wide as the largest deviation of any head, in its own standard errors, is in `level` of the
    resamplings. `p` is the two-sided p-value of the difference to the baseline, `p_corrected` the same against the largest of
    all heads' deviations, which keeps the family-wise error.

    Source: Romano & Wolf 2005 (Exact and approximate stepdown methods), single step.
    """

    low: Array
    high: Array
    low_all: Array
    high_all: Array
    p: Array
    p_corrected: Array


def significance(cell: Cell, level: float = 0.95) -> Significance:
    """Return the intervals of all heads and their p-values against the baseline, corrected over all heads."""
    drawn, base = cell.resampled()
    value = cell.accuracy
    if not len(drawn):
        none = np.full_like(value, np.nan)
        return Significance(none, none, none, none, none, none)
    ends = [(1 - level) / 2, (1 + level) / 2]
    low, high = np.quantile(drawn, ends, axis=0)
    error = drawn.std(0)
    off = np.abs(drawn - value) / np.where(error > 0, error, np.inf)
    reach = np.quantile(off.max(1), level) * error
    gain = value - cell.base / max(cell.total, 1)
    moved = drawn - base[:, None]
    spread = moved.std(0)
    scale = np.where(spread > 0, spread, np.inf)
    far, seen = np.abs(moved - gain) / scale, np.abs(gain) / scale
    # A difference that never varies is certain, unless it is none.
    seen = np.where((spread == 0) & (np.abs(gain) > 1e-9), np.inf, seen)
    p = (1 + (far >= seen - 1e-9).sum(0)) / (1 + len(drawn))
    corrected = (1 + (far.max(1)[:, None] >= seen - 1e-9).sum(0)) / (1 + len(drawn))
    return Significance(low, high, np.maximum(value - reach, 0), np.minimum(value + reach, 1), p, corrected)


def chosen(cell: Cell, choose: Cell | None, number: int | None, level: float, corrected: bool) -> dict[str, Any]:
    """Return how a chosen head does against the baseline, in percent, with intervals.

    Args:
        cell: what is reported.
        choose: what the head was chosen by; the same cell, or that of another split; None where there was no choice.
        number: the head; None where none could be chosen.
        level: of the intervals.
        corrected: the head was chosen on what is reported: the p-value is the one corrected over all heads.
    """
    facts: dict[str, Any] = {"accuracy": None}
    drawn, base = cell.resampled()
    ends = [(1 - level) / 2, (1 + level) / 2]
    if len(base):
        facts |= dict(zip(("baseline_low", "baseline_high"), percent(np.quantile(base, ends)), strict=True))
    if number is not None and len(base):
        sure = significance(cell, level)
        facts |= {
            "accuracy": percent(cell.accuracy[number]),
            "low": percent(sure.low[number]),
            "high": percent(sure.high[number]),
            "difference": percent(cell.accuracy[number] - cell.base / cell.total),
            "p": round(float((sure.p_corrected if corrected else sure.p)[number]), 6),
        }
        low, high = np.quantile(drawn[:, number] - base, ends)
        facts |= {"difference_low": percent(low), "difference_high": percent(high)}
        if choose is not None:
            facts["accuracy_where_chosen"] = percent(choose.accuracy[number])
    return facts


def _best(scores: Scores, chooser: Scores, cell: Cell, choose: Cell | None, level: float, heads: int) -> dict[str, Any]:
    """Return what to say of the best active head: chosen on one side, measured on the other."""
    number = choose.best() if choose is not None else None
    facts = chosen(cell, choose, number, level, scores is chooser)
    if "difference" in facts:
        facts["attention"] = percent(cell.attention[number])
    return facts | {"head": None if number is None else head_name(number, heads)}


def records(
    scores: Scores, chooser: Scores, layers: int, heads: int, *, relations: Sequence[str] | int | None = 10, level: float = 0.95
) -> Iterator[dict[str, Any]]:
    """Yield what was found: one record a head, a layer, a relation, and a summary; shares are in percent.

    Args:
        scores: of the side that is reported.
        chooser: of the side that heads are chosen on; the same object where there is one side, and then the p-value of the best
            head is the corrected one.
        layers: L.
        heads: H.
        relations: names (the parser's or Stanford's), how many of the most frequent ones, or None for all.
        level: of the intervals.
    """
    cell = scores.cells.get(ENTITY) or Cell.empty(layers * heads, 1)
    sure, accuracy, attention = significance(cell, level), percent(cell.accuracy), percent(cell.attention)
    active = cell.attention > ACTIVE
    columns = {k: percent(getattr(sure, k)) for k in ("low", "high", "low_all", "high_all")}
    for n in range(layers * heads) if cell.total else ():
        yield {
            "kind": "head", "name": head_name(n, heads), "layer": n // heads + 1, "head": n % heads + 1,
            "accuracy": accuracy[n], **{k: v[n] for k, v in columns.items()},
            "p": round(float(sure.p[n]), 6), "p_corrected": round(float(sure.p_corrected[n]), 6),
            "attention": attention[n], "active": bool(active[n]), "right": int(cell.right[n]), "total": cell.total,
        }  # fmt: skip
    choose = None if chooser is scores else chooser.cells.get(ENTITY)
    others = None if choose is None else choose.by_layer(heads)[0]
    for layer in range(layers) if cell.total else ():
        part = slice(layer * heads, (layer + 1) * heads)
        own, alive = cell.accuracy[part], active[part]
        # The best on the very photos that are reported is flattered; the head chosen on others is not.
        head = None if others is None else others[layer]
        fair = {} if head is None else {"chosen_head": f"{layer + 1}-{head + 1}", "chosen": percent(own[head])}
        yield {
            "kind": "layer", "layer": layer + 1, "best": percent(own.max()),
            "best_head": head_name(layer * heads + int(own.argmax()), heads),
            "best_active": percent(own[alive].max()) if alive.any() else None, **fair, "mean": percent(own.mean()),
            "active_heads": int(alive.sum()), "attention": percent(cell.attention[part].mean()),
        }  # fmt: skip
    for name, entity, pairs in _relations(scores, relations):
        yield {
            "kind": "relation", "relation": name, "stanford": stanford(name), "entity": entity, "pairs": pairs.total,
            "baseline": percent(pairs.base / pairs.total), "upper_bound": percent(pairs.bound / pairs.total),
            **_best(scores, chooser, pairs, _cell(chooser, name, entity), level, heads),
            "active_heads": int((pairs.attention > ACTIVE).sum()),
            "accuracies": percent(pairs.accuracy.reshape(layers, heads)),
            "attentions": percent(pairs.attention.reshape(layers, heads)),
        }  # fmt: skip
    if cell.total:
        yield {
            "kind": "summary", "entities": cell.total, "captions": scores.captions, "photos": scores.photos, "layers": layers,
            "heads": heads, "baseline": percent(cell.base / cell.total), "upper_bound": percent(cell.bound / cell.total),
            "without_a_right_region": cell.total - cell.bound, "active_heads": int(active.sum()),
            **_best(scores, chooser, cell, chooser.cells.get(ENTITY), level, heads), "level": level,
        }  # fmt: skip


def _cell(scores: Scores, name: str, entity: str) -> Cell | None:
    cells = [scores.cells.get((name, side)) for side in (("dependent", "head") if entity == "either" else (entity,))]
    some = [c for c in cells if c is not None]
    return some[0] + some[1] if len(some) == 2 else some[0] if some else None


def _relations(scores: Scores, wanted: Sequence[str] | int | None) -> Iterator[tuple[str, str, Cell]]:
    """Yield relations by falling number of pairs: both directions together as in Table 2, then each by itself."""
    names = list(dict.fromkeys(name for name, side in scores.cells if side))
    whole = [(name, cell) for name in names if (cell := _cell(scores, name, "either")) is not None]
    whole.sort(key=lambda pair: (-pair[1].total, pair[0]))
    if isinstance(wanted, int):
        whole = whole[:wanted]
    elif wanted is not None:
        whole = [(n, c) for n, c in whole if n in wanted or stanford(n) in wanted]
    for name, cell in whole:
        yield name, "either", cell
        for side in ("dependent", "head"):
            one = scores.cells.get((name, side))
            if one is not None:
                yield name, side, one
