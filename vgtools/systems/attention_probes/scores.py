"""How right attention heads are, how certain that is, and which head is best.

These are the numbers of `vg probe-attention`. Answers of all heads are counted as they come, by
group of photos, so that memory does not grow with the photos. `records` reports the result.

Axes: L layers, H heads, Q queries, G groups of photos, S bootstrap samples.

Source: Li et al. 2020 (What Does BERT with Vision Look At?), section 3.1. The significance is
ours: the paper has none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from vgtools.analysis.bootstrap import (
    difference_ends,
    draws,
    item_error,
    mean_share_ends,
    ratio,
    share_ends,
)
from vgtools.io.arrays import Array
from vgtools.systems.attention_probes.controls import RULES
from vgtools.text.parses import stanford

GROUPS = 1000  # G
ACTIVE = 0.2  # a head that gives regions more than this share of its attention (section 3.1)
ENTITY = ("entity", "")
# Controls of entities: cells whose first columns are the heads, followed by the control's columns.
BLIND = ("word-blind", "")  # `controls.RULES`, then whether a gold box itself is a region
OTHER_ENTITY = ("another entity of the caption", "")  # asks: a column per head
OTHER_CAPTION = ("a caption of another photo", "")  # asks: a column per head

Key = tuple[str, str]  # ENTITY, or (relation, "dependent" or "head": the entity's role in it)
# Names of relations (the parser's or Stanford's), how many of the most frequent relations, or None:
# all.
Relations = Sequence[str] | int | None


@dataclass
class Cell:
    """How all heads did on one kind of query, in all and in each group of photos."""

    right: Array  # (L × H,) float64, shares where several answers count
    mass: Array  # (L × H,) float64, summed attention to regions
    hits: Array  # (G, L × H) float32, `right` of each group
    base_hits: Array  # (G,) float64, `base` of each group
    totals: Array  # (G,) float64, `total` of each group
    samples: int  # S
    seed: int  # decides the samples
    base: float = 0.0  # right answers of the most confident region
    bound: int = 0  # queries that any region is right for
    total: int = 0

    @classmethod
    def empty(cls, heads: int, samples: int, seed: int = 0) -> Cell:
        """Return a cell of no query."""
        return cls(
            right=np.zeros(heads),
            mass=np.zeros(heads),
            hits=np.zeros((GROUPS, heads), np.float32),
            base_hits=np.zeros(GROUPS),
            totals=np.zeros(GROUPS),
            samples=samples,
            seed=seed,
        )

    def __add__(self, other: Cell) -> Cell:
        counts = {key: value for key, value in vars(self).items() if key not in _SETTINGS}
        return replace(self, **{key: n + getattr(other, key) for key, n in counts.items()})

    @property
    def accuracy(self) -> Array:
        """(L × H,) share of right answers."""
        return np.asarray(self.right / max(self.total, 1))

    @property
    def attention(self) -> Array:
        """(L × H,) mean share of a source's attention that goes to regions."""
        return np.asarray(self.mass / max(self.total, 1))

    def against(self, heads: int, column: int) -> Cell:
        """Return the cell of the first `heads` columns, with another column as the baseline."""
        return replace(
            self,
            right=self.right[:heads],
            mass=self.mass[:heads],
            hits=self.hits[:, :heads],
            base_hits=self.hits[:, column].astype(np.float64),
            base=float(self.right[column]),
            bound=0,
        )

    def best(self) -> int | None:
        """Return the active head with the highest accuracy, the first of equals.

        It is None where no head is active.
        """
        active = self.attention > ACTIVE
        if not active.any() or not self.total:
            return None
        return int(np.argmax(np.where(active, self.accuracy, -1.0)))

    def by_layer(self, heads: int, layers: int = 6) -> tuple[list[int], list[int]]:
        """Return the best head of each layer (active if one is), and the `layers` best layers.

        Args:
            layers: how many to choose; they come in order.

        Source: section 3.2, "the best heads of 6 layers that achieve the highest entity grounding
            accuracy".
        """
        # Any active head ranks above all others.
        value = np.where(self.attention > ACTIVE, self.accuracy + 1, self.accuracy)
        value = value.reshape(-1, heads)
        top_layers = np.argsort(-value.max(1), kind="stable")[:layers]
        return value.argmax(1).tolist(), np.sort(top_layers).tolist()

    def groups(self) -> tuple[Array, Array, Array]:
        """Return right answers (g, L × H), baselines (g,) and queries (g,) of groups with any."""
        some = self.totals > 0
        return self.hits[some].astype(np.float64), self.base_hits[some], self.totals[some]


_SETTINGS = ("samples", "seed")


class HeadScores:
    """Cells by kind of query, filled window by window; their size is independent of the photos.

    A photo falls into one of G groups, by its id alone, and groups are resampled: all captions of a
    photo, and all entities in them, come and go together. Without photos the sentences are grouped,
    and a sentence is its id.

    Source: Field & Welsh 2007 (Bootstrapping clustered data), the cluster bootstrap; photos of one
        group are one cluster, which is unbiased as the id has nothing to do with the answers.
    """

    def __init__(self, heads: int, samples: int = 1000, seed: int = 0) -> None:
        self.cells: dict[Key, Cell] = {}
        self.heads = heads
        self.samples = samples
        self.seed = seed
        self.captions = 0
        self._photos = set[bytes]()

    @property
    def photos(self) -> int:
        """Photos that have been counted."""
        return len(self._photos)

    def count_photos(self, images: Iterable[str]) -> None:
        """Note photos, each once however often it comes."""
        for image in images:
            self._photos.add(hashlib.blake2b(image.encode(), digest_size=8).digest())

    def add(
        self,
        keys: Sequence[Key],
        images: Sequence[str],
        image: Array,
        key: Array,
        right: Array,
        mass: Array | None = None,
        base: Array | None = None,
        bound: Array | None = None,
    ) -> None:
        """Count answers.

        Args:
            keys: the key of each number in `key`.
            images: photos of the window.
            image: (Q,) number of the photo in `images`.
            key: (Q,).
            right: (Q, X) bool or shares; X is L × H, or with the columns of a control.
            mass: (Q, L × H) attention to regions; without it all heads are active.
            base: (Q,) share of the most confident regions that are right.
            bound: (Q,) bool, some region is right.
        """
        none = np.zeros(len(key))
        columns = right.shape[1]
        mass = np.ones(right.shape) if mass is None else mass
        base = none if base is None else base
        bound = none if bound is None else bound
        group = np.array([group_of(name) for name in images])[image]
        for number in np.unique(key).tolist():
            empty = Cell.empty(columns, self.samples, self.seed)
            cell = self.cells.setdefault(keys[number], empty)
            some = np.flatnonzero(key == number)
            some = some[np.argsort(group[some], kind="stable")]
            groups, begin = np.unique(group[some], return_index=True)
            # Sorted by group, the answers of each group are neighbours, and `reduceat` sums each
            # run in one pass.
            cell.hits[groups] += np.add.reduceat(right[some], begin, axis=0, dtype=np.float32)
            cell.base_hits[groups] += np.add.reduceat(base[some], begin)
            cell.totals[groups] += np.diff(begin, append=len(some))
            cell.right += right[some].sum(0)
            # In float64, because the shares of all queries are added: float32 would lose the last
            # of millions.
            cell.mass += mass[some].sum(0, dtype=np.float64)
            cell.base += float(base[some].sum())
            cell.bound += int(bound[some].sum())
            cell.total += len(some)


def group_of(image: str) -> int:
    """Return the group of a photo."""
    digest = hashlib.blake2b(image.encode(), digest_size=8).digest()
    # Python's own hash of a string differs from process to process.
    return int.from_bytes(digest, "little") % GROUPS


def head_name(number: int, heads: int) -> str:
    """Return `<layer>-<head>`, both from 1, as in Table 2."""
    return f"{number // heads + 1}-{number % heads + 1}"


def percent(value: Any) -> Any:
    """Return shares as percentages, numbers or nested lists of them."""
    return np.round(100 * np.asarray(value, np.float64), 4).tolist()


@dataclass(frozen=True)
class Significance:
    """How certain the accuracy of each head is; all (L × H,), shares.

    `low` and `high` hold for one head chosen beforehand: see `share_ends`.
    `low_all` and `high_all` hold for all heads at once: they are its max-t band, as wide as the
    largest deviation of any head, in its standard errors, is in 95 % of the resamplings. `p` is
    the two-sided p-value of the difference to the baseline, `p_corrected` the same against the
    largest of all heads' deviations, which keeps the family-wise error. Below 30 groups with a
    query, all four are NaN: with 6 to 10 photos p was below 0.05 in 12 % of draws under no
    difference.

    A deviation is in the standard errors of its own resampling (bootstrap-t). With the errors of
    the whole sample, the best of 144 heads had p < 0.05 in 7 to 11 % of 600 draws of 100 photos
    under no difference, and the band covered 88 %: the error of a low accuracy is too small.
    `tests/benchmarks/null.py` measures the present rates.

    Source: Romano & Wolf 2005 (Exact and approximate stepdown methods), single step; Hall 1988
        (Theoretical comparison of bootstrap confidence intervals), bootstrap-t.
    """

    low: Array
    high: Array
    low_all: Array
    high_all: Array
    p: Array
    p_corrected: Array


LEVEL = 0.95  # share of intervals that hold the true share
_FEWEST = 30  # groups that show p-values and bands


@lru_cache(maxsize=4)
def _weights(groups: int, samples: int, seed: int) -> Array:
    """Return how often each group counts in each resampling: (S, groups) float64."""
    drawn = draws(groups, samples, seed)
    return np.asarray(drawn, np.float64)


class _Resampled(NamedTuple):
    """Shares of n heads, in the sample and in the resamplings."""

    value: Array  # (n,)
    error: Array  # (n,) standard errors
    drawn: Array  # (S, n) shares of the resamplings
    deviation: Array  # (S, n) their deviations from `value`, in standard errors of their own


def _resample(hits: Array, total: Array, weights: Array) -> _Resampled:
    """Return shares with the errors of ratios of sums over groups.

    The square of one answer is added to the sum of squared residuals: a head that is never right,
    in the sample or in a resampling, is not certain never to be.

    Args:
        hits: (g, n) right answers, or differences of them.
        total: (g,) queries.
        weights: (S, g) how often each group counts.
    """
    value = hits.sum(0) / total.sum()
    rest = hits - value * total[:, None]
    drawn_total = (weights @ total)[:, None]
    # Shares that equal the sample's are to be equal in the last bit as well.
    drawn = weights @ hits / drawn_total
    shift = drawn - value
    # The squared residuals of every resampling expand into sums over groups that matrix products
    # give; no (S, g, n) array is made.
    squares = weights @ rest**2 - 2 * shift * (weights @ (rest * total[:, None]))
    squares += shift**2 * (weights @ total**2)[:, None]
    errors = np.sqrt(np.maximum(squares, 0) + 1) / drawn_total
    error = np.sqrt((rest**2).sum(0) + 1) / total.sum()
    return _Resampled(value, error, drawn, shift / errors)


def _share_ends(hits: Array, total: Array, shares: Array) -> Array:
    """Return the ends of the intervals of n shares, (n, 2).

    Args:
        hits: (g, n) right answers.
        total: (g,) queries.
        shares: (S, n) the same of each resampling.
    """
    value, without, error = ratio(hits, total)
    error = np.maximum(error, item_error(value, total.sum()))
    columns = zip(value.tolist(), shares.T, without.T, error.tolist(), strict=True)
    found = [mean_share_ends(v, s, w, len(total), e) for v, s, w, e in columns]
    return np.array(found)


def _gain_ends(gain: Array, total: Array, weights: Array) -> list[float]:
    """Return the ends of the interval of a difference of shares.

    Args:
        gain: (g,) right answers more than the baseline's.
        total: (g,) queries.
        weights: (S, g) how often each group counts.
    """
    value, without, error = ratio(gain, total)
    samples = weights @ gain / (weights @ total)
    return difference_ends(float(value), samples, without, len(total), float(error))


def significance(cell: Cell) -> Significance:
    """Return the intervals of all heads and their p-values against the baseline.

    Both are also corrected over all heads.
    """
    hits, base, total = cell.groups()
    unknown = np.full_like(cell.accuracy, np.nan)
    if not len(total):
        return Significance(*[unknown] * 6)
    weights = _weights(len(total), cell.samples, cell.seed)
    heads = _resample(hits, total, weights)
    low, high = _share_ends(hits, total, heads.drawn).T
    if len(total) < _FEWEST:
        return Significance(low, high, *[unknown] * 4)
    # The largest deviation over heads makes the band hold for all heads at once.
    reach = np.quantile(np.abs(heads.deviation).max(1), LEVEL) * heads.error
    gain = _resample(hits - base[:, None], total, weights)
    deviation = np.abs(gain.deviation)
    # Without the tolerance, a resampling that equals the sample could fall below it by rounding.
    observed = np.abs(gain.value) / gain.error - 1e-9
    # The sample itself counts as a resampling: no finite number of them shows a p-value of 0.
    p, p_corrected = (
        (1 + (drawn >= observed).sum(0)) / (1 + len(weights))
        for drawn in (deviation, deviation.max(1)[:, None])
    )
    return Significance(
        low,
        high,
        np.maximum(heads.value - reach, 0),
        np.minimum(heads.value + reach, 1),
        p,
        p_corrected,
    )


def chosen(cell: Cell, choose: Cell | None, number: int | None, corrected: bool) -> dict[str, Any]:
    """Return how a chosen head does against the baseline, in percent, with intervals.

    Args:
        cell: the reported cell.
        choose: the cell that the head was chosen by, the same or another split's; None where there
            was no choice.
        number: the head; None where none could be chosen.
        corrected: the head was chosen on the reported cell, so its p-value is corrected over all
            heads.
    """
    facts: dict[str, Any] = {"accuracy": None}
    hits, base, total = cell.groups()
    if not len(total):
        return facts
    weights = _weights(len(total), cell.samples, cell.seed)
    low, high = percent(np.array(share_ends(base, total, weights)))
    facts |= {"baseline_low": low, "baseline_high": high}
    if number is None:
        return facts
    heads = significance(cell)
    p = heads.p_corrected if corrected else heads.p
    low, high = _gain_ends(hits[:, number] - base, total, weights)
    facts |= {
        "accuracy": percent(cell.accuracy[number]),
        "low": percent(heads.low[number]),
        "high": percent(heads.high[number]),
        "difference": percent(cell.accuracy[number] - cell.base / cell.total),
        "p": _p(p[number]),
        "difference_low": percent(low),
        "difference_high": percent(high),
    }
    if choose is not None:
        facts["accuracy_where_chosen"] = percent(choose.accuracy[number])
    return facts


def _best(
    scores: HeadScores,
    chooser: HeadScores,
    cell: Cell,
    choose: Cell | None,
    heads: int,
) -> dict[str, Any]:
    """Return the facts of the best active head, chosen on one side and measured on the other."""
    number = None if choose is None else choose.best()
    facts = chosen(cell, choose, number, scores is chooser)
    if number is not None and "difference" in facts:
        facts["attention"] = percent(cell.attention[number])
    return facts | {"head": None if number is None else head_name(number, heads)}


def records(
    scores: HeadScores,
    chooser: HeadScores,
    layers: int,
    heads: int,
    *,
    relations: Relations = 10,
) -> Iterator[dict[str, Any]]:
    """Yield the results: one record per head, layer and relation, and a summary; in percent.

    Args:
        scores: scores of the side that is reported.
        chooser: scores of the side that heads are chosen on; the same object where there is one
            side, and then the p-value of the best head is corrected.
    """
    cell = scores.cells.get(ENTITY)
    if cell is not None:
        choose = None if chooser is scores else chooser.cells.get(ENTITY)
        yield from _head_records(cell, heads)
        yield from _layer_records(cell, choose, layers, heads)
    for name, entity, pairs in _relations(scores, relations):
        yield {
            "kind": "relation",
            "relation": name,
            "stanford": stanford(name),
            "entity": entity,
            "pairs": pairs.total,
            "baseline": percent(pairs.base / pairs.total),
            "upper_bound": percent(pairs.bound / pairs.total),
            **_best(scores, chooser, pairs, _cell(chooser, name, entity), heads),
            "active_heads": int((pairs.attention > ACTIVE).sum()),
            "accuracies": percent(pairs.accuracy.reshape(layers, heads)),
            "attentions": percent(pairs.attention.reshape(layers, heads)),
        }
    if cell is not None:
        controls = list(_control_records(scores, chooser))
        yield from controls
        yield {
            "kind": "summary",
            "entities": cell.total,
            "captions": scores.captions,
            "photos": scores.photos,
            "layers": layers,
            "heads": heads,
            "baseline": percent(cell.base / cell.total),
            "upper_bound": percent(cell.bound / cell.total),
            "without_a_right_region": cell.total - cell.bound,
            "active_heads": int((cell.attention > ACTIVE).sum()),
            **_best(scores, chooser, cell, chooser.cells.get(ENTITY), heads),
            **_word_specific(controls),
            "annotated_regions": _annotated(scores),
            "level": LEVEL,
        }


def _control_records(scores: HeadScores, chooser: HeadScores) -> Iterator[dict[str, Any]]:
    """Yield the rates of the best active head and of each control, on the entities that have it.

    "difference" is between the head asked with the right word and the control, paired over photos.
    """
    choose = chooser.cells.get(ENTITY)
    number = None if choose is None else choose.best()
    heads = scores.heads
    for key, names in (
        (OTHER_CAPTION, [f"asked by {OTHER_CAPTION[0]}"]),
        (OTHER_ENTITY, [f"asked by {OTHER_ENTITY[0]}"]),
        (BLIND, RULES),
    ):
        cell = scores.cells.get(key)
        if cell is None:
            continue
        for place, name in enumerate(names):
            # A wrong word has a column for each head, of which the chosen head's column counts.
            column = heads + (place if key == BLIND else number or 0)
            against = cell.against(heads, column)
            same_head = key != BLIND
            known = number is not None or not same_head
            yield {
                "kind": "control",
                "control": name,
                "same_head": same_head,
                "entities": against.total,
                "baseline": percent(against.base / against.total) if known else None,
                **chosen(against, None, number, scores is chooser),
            }


def _word_specific(controls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the headline: the best head minus itself, asked by a caption of another photo.

    Another entity of the same caption inflates the difference: a head that follows words is drawn
    to that entity's region, and falls below a random region.
    """
    found = next((r for r in controls if r["control"].endswith(OTHER_CAPTION[0])), {})
    ends = {"": "difference", "_low": "difference_low", "_high": "difference_high", "_p": "p"}
    return {f"word_specific{end}": found.get(key) for end, key in ends.items()}


def _annotated(scores: HeadScores) -> float | None:
    """Return for how many entities a gold box itself is among the regions, in percent."""
    cell = scores.cells.get(BLIND)
    return None if cell is None else percent(cell.right[-1] / cell.total)


_BANDS = ("low", "high", "low_all", "high_all")


def _p(value: float) -> float | None:
    """Return a p-value as it is written; None where photos are too few for one."""
    return None if np.isnan(value) else round(float(value), 6)


def _end(share: float) -> float | None:
    """Return the end of an interval in percent; None where photos are too few for one."""
    return None if np.isnan(share) else percent(share)


def _head_records(cell: Cell, heads: int) -> Iterator[dict[str, Any]]:
    sure = significance(cell)
    for n in range(len(cell.right)):
        yield {
            "kind": "head",
            "name": head_name(n, heads),
            "layer": n // heads + 1,
            "head": n % heads + 1,
            "accuracy": percent(cell.accuracy[n]),
            **{end: _end(getattr(sure, end)[n]) for end in _BANDS},
            "p": _p(sure.p[n]),
            "p_corrected": _p(sure.p_corrected[n]),
            "attention": percent(cell.attention[n]),
            "active": bool(cell.attention[n] > ACTIVE),
            "right": int(cell.right[n]),
            "total": cell.total,
        }


def _layer_records(
    cell: Cell, choose: Cell | None, layers: int, heads: int
) -> Iterator[dict[str, Any]]:
    """Yield a record per layer.

    The best head on the very photos that are reported is flattered; "chosen" is a head that was
    chosen on others.
    """
    chosen_heads = None if choose is None else choose.by_layer(heads)[0]
    for layer in range(layers):
        part = slice(layer * heads, (layer + 1) * heads)
        accuracy = cell.accuracy[part]
        active = cell.attention[part] > ACTIVE
        record = {
            "kind": "layer",
            "layer": layer + 1,
            "best": percent(accuracy.max()),
            "best_head": head_name(layer * heads + int(accuracy.argmax()), heads),
            "best_active": percent(accuracy[active].max()) if active.any() else None,
        }
        if chosen_heads is not None:
            head = chosen_heads[layer]
            record["chosen_head"] = head_name(layer * heads + head, heads)
            record["chosen"] = percent(accuracy[head])
        yield record | {
            "mean": percent(accuracy.mean()),
            "active_heads": int(active.sum()),
            "attention": percent(cell.attention[part].mean()),
        }


def _cell(scores: HeadScores, name: str, entity: str) -> Cell | None:
    """Return the cell of a relation, or None; both directions are summed if `entity` is
    "either".
    """
    sides = ("dependent", "head") if entity == "either" else (entity,)
    cells = [scores.cells[name, side] for side in sides if (name, side) in scores.cells]
    if len(cells) == 2:
        return cells[0] + cells[1]
    return cells[0] if cells else None


def select_relations(totals: Mapping[str, int], relations: Relations) -> list[str]:
    """Return the names of the relations asked for, by falling count."""
    names = sorted(totals, key=lambda name: (-totals[name], name))
    if relations is None:
        return names
    if isinstance(relations, int):
        return names[:relations]
    return [name for name in names if name in relations or stanford(name) in relations]


def _relations(scores: HeadScores, relations: Relations) -> Iterator[tuple[str, str, Cell]]:
    """Yield (relation, direction, cell): both directions together as in Table 2, then each."""
    totals: dict[str, int] = {}
    for (name, side), cell in scores.cells.items():
        if side:
            totals[name] = totals.get(name, 0) + cell.total
    for name in select_relations(totals, relations):
        for direction in ("either", "dependent", "head"):
            pairs = _cell(scores, name, direction)
            if pairs is not None:
                yield name, direction, pairs
