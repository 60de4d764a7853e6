"""The official metrics of the downstream tasks, offline, and how sure one can be of a difference.

Metrics are fractions as the official scripts' formulas define them; `tasks.score_predictions` prints them in percent. Every
metric takes `weights`, how often each item counts: a bootstrap sample is a row of weights, so one matrix product scores
thousands of samples.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Statistic = Callable[[Array, Array, "Array | None"], Array]  # (N,) gold, (N,) predicted, (..., N) weights or None -> (...)

# -------------------------------------------------------------------------------------------------- labels and scores


def _weights(gold: Array, predicted: Array, weights: Array | None) -> Array:
    if len(gold) != len(predicted) or not len(gold):
        raise ValueError(f"{len(gold)} gold items and {len(predicted)} predictions; as many of both, one or more, are wanted")
    return np.ones(len(gold)) if weights is None else np.asarray(weights, np.float64)


def _ratio(above: Array, below: Array) -> Array:
    """Divide, with 0 where the metric is undefined (0 / 0)."""
    return np.asarray(np.divide(above, below, out=np.zeros_like(np.asarray(below, np.float64)), where=below > 0))


def accuracy(gold: Array, predicted: Array, weights: Array | None = None) -> Array:
    """Return the share of items whose label is right.

    Args:
        gold: (N,) labels.
        predicted: (N,) labels.
        weights: (..., N) how often each item counts; None counts each once.

    Returns:
        (...) in [0, 1].

    Raises:
        ValueError: no items, or not as many of both.
    """
    w = _weights(gold, predicted, weights)
    return np.asarray(w @ (gold == predicted) / w.sum(-1))


def f1(gold: Array, predicted: Array, weights: Array | None = None) -> Array:
    """Return F1 of the class 1, as GLUE scores MRPC and QQP; 0 where nothing is or was said to be 1.

    Args and errors as `accuracy`.
    """
    w = _weights(gold, predicted, weights)
    hits = w @ ((gold == 1) & (predicted == 1))
    return _ratio(2 * hits, w @ (gold == 1) + w @ (predicted == 1))


def matthews(gold: Array, predicted: Array, weights: Array | None = None) -> Array:
    """Return Matthews' correlation in [-1, 1], as GLUE scores CoLA; 0 where one side has one class only.

    Args and errors as `accuracy`; more than two classes give the R_K of Gorodkin (2004), which is the same for two.
    """
    w = _weights(gold, predicted, weights)
    total, right = w.sum(-1), w @ (gold == predicted)
    classes = np.union1d(gold, predicted)
    real = np.stack([w @ (gold == c) for c in classes])
    said = np.stack([w @ (predicted == c) for c in classes])
    spread = (total**2 - (real**2).sum(0)) * (total**2 - (said**2).sum(0))
    above = right * total - (real * said).sum(0)
    return np.asarray(np.clip(_ratio(above, np.sqrt(np.maximum(spread, 0))), -1, 1))


def pearson(gold: Array, predicted: Array, weights: Array | None = None) -> Array:
    """Return Pearson's correlation in [-1, 1]; 0 where one side is constant.

    Args and errors as `accuracy`, with numbers for labels.

    Deviation: the usual libraries give NaN for a constant side. A collapsed model is worth 0 in a table of runs.
    """
    w = _weights(gold, predicted, weights)
    return _correlation(np.asarray(gold, np.float64), np.asarray(predicted, np.float64), w)


def _correlation(x: Array, y: Array, w: Array) -> Array:
    """Return the weighted correlation of x and y: (N,), or (..., N) with values of their own for every sample."""

    def total(values: Array) -> Array:
        return np.asarray(w @ values if values.ndim == 1 else (w * values).sum(-1))

    x, y, count = x - x.mean(), y - y.mean(), w.sum(-1)  # near the samples' means already: the squares below stay exact
    sx, sy, xx, yy = total(x), total(y), total(x * x), total(y * y)
    vx, vy = xx - sx * sx / count, yy - sy * sy / count
    # Rounding leaves a constant side with a variance that is not quite 0.
    varied = (vx > 1e-12 * xx) & (vy > 1e-12 * yy)
    below = np.sqrt(np.where(varied, vx, 0)) * np.sqrt(np.where(varied, vy, 0))
    return np.asarray(np.clip(_ratio(total(x * y) - sx * sy / count, below), -1, 1))


def ranks(values: Array, weights: Array | None = None) -> Array:
    """Return ranks from 1, ties sharing the mean of the ranks they cover.

    Args:
        values: (N,) numbers.
        weights: (..., N) how often each item counts.

    Returns:
        (..., N) ranks in the sample that the weights describe.
    """
    w = np.ones(len(values)) if weights is None else np.asarray(weights, np.float64)
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(np.asarray(values)[order]) != 0])
    group = np.empty(len(values), np.intp)
    group[order] = np.repeat(np.arange(len(starts)), np.diff(np.r_[starts, len(values)]))
    ties = np.add.reduceat(w[..., order], starts, axis=-1)  # (..., distinct values)
    return np.asarray((np.cumsum(ties, -1) - (ties - 1) / 2)[..., group])


def spearman(gold: Array, predicted: Array, weights: Array | None = None) -> Array:
    """Return Spearman's rank correlation in [-1, 1], ties by average rank; 0 where one side is constant.

    Args and errors as `pearson`.
    """
    w = _weights(gold, predicted, weights)
    return _correlation(ranks(gold, w), ranks(predicted, w), w)


def mean(gold: Array, predicted: Array, weights: Array | None = None) -> Array:
    """Return the mean of `predicted`, for metrics that score each item by itself (SQuAD); `gold` is not looked at."""
    w = _weights(gold, predicted, weights)
    return np.asarray(w @ predicted / w.sum(-1))


METRICS: dict[str, Statistic] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}


def mean_of(names: Sequence[str]) -> Statistic:
    """Return the statistic that is the mean of metrics by name: what a task's one number is (QQP: F1 and accuracy)."""

    def statistic(gold: Array, predicted: Array, weights: Array | None = None) -> Array:
        return np.asarray(sum(METRICS[name](gold, predicted, weights) for name in names) / len(names))

    return statistic


# ----------------------------------------------------------------------------------------------------------------- VQA

_DIGITS = {"none": "0", "zero": "0", "one": "1", "two": "2", "three": "3", "four": "4", "five": "5", "six": "6"}
_DIGITS |= {"seven": "7", "eight": "8", "nine": "9", "ten": "10"}
_WORDS = """
ain't aren't can't could've couldn't didn't doesn't don't hadn't hasn't haven't he'd he's how'd how'll how's isn't it'd it'll
ma'am might've mightn't must've mustn't needn't not've o'clock oughtn't shan't should've shouldn't somebody'll somebody's
someone'd someone'll someone's something'd something'll that's there'd there're there's they'd they'll they're they've 'twas
wasn't we've weren't what'll what're what's what've when's where'd where's where've who'd who'll who's who've why'll why're
why's won't would've wouldn't y'all you'd you'll you're you've
"""
_SHORT = {word.replace("'", ""): word for word in _WORDS.split()}
_STOP, _NUMBER_COMMA = re.compile(r"\.(?!\d)"), re.compile(r"\d,\d")


def normalise_vqa(text: str) -> str:
    """Return an answer as VQA compares it.

    Without punctuation and articles, in lower case, with digits for the numbers up to ten and `don't` for `dont`. A mark inside
    a word becomes a space, any other nothing.

    Source: Antol et al. 2015 (VQA) and the evaluation code released with it.
    """
    plain = " ".join(text.split())
    found, number = plain, _NUMBER_COMMA.search(plain) is not None
    for mark in ";:/'[]\"()=+\\_><@`,?":
        beside = number or f"{mark} " in plain or f" {mark}" in plain
        found = found.replace(mark, "" if beside else " ")
    words = [_DIGITS.get(word, word) for word in _STOP.sub("", found).lower().split()]
    return " ".join(_SHORT.get(word, word) for word in words if word not in ("a", "an", "the"))


def vqa_item(answer: str, golds: Sequence[str]) -> float:
    """Return VQA's accuracy of one answer: the mean over the annotators of min(1, agreeing others / 3).

    Args:
        answer: the model's.
        golds: one of each annotator, ten in the official files.

    Source: as `normalise_vqa`; where all annotators wrote the same, answers are compared as they stand.
    """
    if len(set(golds)) > 1:
        answer, golds = normalise_vqa(answer), [normalise_vqa(gold) for gold in golds]
    same = sum(gold == answer for gold in golds)
    alone, beside = min(1.0, (same - 1) / 3), min(1.0, same / 3)  # who is left out agrees, or does not
    return (same * alone + (len(golds) - same) * beside) / len(golds)


# --------------------------------------------------------------------------------------------------------------- SQuAD

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_answer(text: str) -> str:
    """Return an answer as SQuAD compares it: lower case, no ASCII punctuation, no articles, single spaces.

    Source: Rajpurkar et al. 2016, section 6.1, and the official scripts (versions 1.1 and 2.0 agree here).
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def _overlap(answer: str, gold: str) -> float:
    """Return F1 over the words of two normalised answers."""
    said, real = answer.split(), gold.split()
    common = sum((Counter(said) & Counter(real)).values())
    return 2 * common / (len(said) + len(real)) if common else 0.0


def squad_item(answer: str, golds: Sequence[str], unanswerable: bool = False) -> tuple[float, float]:
    """Return exact match and F1 of one answer: the best over the gold answers.

    Args:
        answer: the predicted text, "" for none.
        golds: gold texts; empty where the question cannot be answered.
        unanswerable: score as SQuAD 2.0: gold answers that normalise to nothing are dropped, with none left only an
            answer that normalises to nothing is right, and two empty answers have F1 1. In SQuAD 1.1 their F1 is 0.

    Returns:
        (exact match, F1), each in [0, 1].
    """
    said, real = normalise_answer(answer), [normalise_answer(g) for g in golds]
    if unanswerable:
        real = [g for g in real if g] or [""]
    exact = max((float(said == g) for g in real), default=0.0)
    overlap = max((float(said == g) if unanswerable and not (said and g) else _overlap(said, g) for g in real), default=0.0)
    return exact, overlap


def best_threshold(scores: Array, no_answer: Array, answerable: Array, answered: Array) -> tuple[float, float]:
    """Return the best mean score over all no-answer thresholds, and that threshold.

    The answers of items with `no_answer` above the threshold count as withheld. The search starts from withholding all,
    lets answers in by rising `no_answer`, and keeps the first best, as the official script does.

    Args:
        scores: (N,) exact match or F1 with every answer given.
        no_answer: (N,) how sure the model is that there is no answer.
        answerable: (N,) bool, the question has a gold answer.
        answered: (N,) bool, the predicted answer is not "".

    Returns:
        (best mean in [0, 1], threshold; 0.0 where withholding all is best).

    Source: Rajpurkar et al. 2018; official script of version 2.0. Like it, equal `no_answer` values are let in one by
    one in the order given, so the mean can be one that no threshold reaches where there are such ties.
    """
    gain = np.where(answerable, scores, np.where(answered, -1.0, 0.0))
    order = np.argsort(no_answer, kind="stable")
    totals = np.cumsum(np.r_[float(np.count_nonzero(~np.asarray(answerable, bool))), gain[order]])
    at = int(np.argmax(totals))
    return float(totals[at] / len(scores)), float(no_answer[order[at - 1]]) if at else 0.0


def squad2_breakdown(
    exact: Array, overlap: Array, answerable: Array, answered: Array, no_answer: Array | None, threshold: float | None
) -> dict[str, float]:
    """Return the numbers of the official SQuAD 2.0 script, as fractions: all, HasAns, NoAns, and the best thresholds.

    Args:
        exact: (N,) exact match with every answer given.
        overlap: (N,) F1 with every answer given.
        answerable: (N,) bool.
        answered: (N,) bool.
        no_answer: (N,) no-answer scores, or None.
        threshold: withhold answers with `no_answer` above it; None gives all.
    """
    found: dict[str, float] = {}
    for name, raw in (("exact", exact), ("f1", overlap)):
        scores = raw
        if no_answer is not None and threshold is not None:
            scores = np.where(no_answer > threshold, ~answerable, raw).astype(np.float64)
        found[name] = float(scores.mean())
        for part, mask in (("HasAns", answerable), ("NoAns", ~answerable)):
            if mask.any():
                found[f"{part}_{name}"] = float(scores[mask].mean())
        if no_answer is not None:
            best, at = best_threshold(raw, no_answer, answerable, answered)
            found |= {f"best_{name}": best, f"best_{name}_thresh": at}
    return found


# ----------------------------------------------------------------------------------------------------------- bootstrap


@dataclass(frozen=True)
class Interval:
    """A value with the interval its bootstrap samples leave."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """How much better b is than a, with its interval and its two-sided p-value."""

    value: float  # statistic(b) - statistic(a)
    low: float
    high: float
    p: float


_BLOCK = 1 << 21  # weights a block: 16 MB


def _samples(columns: Sequence[Array], statistics: Callable[..., Array], samples: int, seed: int) -> Array:
    """Return the statistic of bootstrap samples: (samples,).

    Items that agree in every column are one item with a count: a QQP dev set of 40,000 pairs is eight of them.
    """
    rows = np.stack([np.asarray(c, np.float64) for c in columns], 1)
    table, counts = np.unique(rows, axis=0, return_counts=True)
    n = len(rows)
    few = len(counts) * 8 < n  # few kinds: draw their counts at once; else draw items one by one, which is quicker there
    table = table if few else rows
    generator = np.random.default_rng(seed)
    block, found = max(1, _BLOCK // len(table)), []
    for start in range(0, samples, block):
        size = min(block, samples - start)
        if few:
            weights = generator.multinomial(n, counts / n, size=size)
        else:
            weights = np.stack([np.bincount(drawn, minlength=n) for drawn in generator.integers(n, size=(size, n))])
        found.append(np.asarray(statistics(*table.T, weights.astype(np.float64))))
    return np.concatenate(found)


def _check(samples: int, level: float, *columns: Array) -> None:
    if len({len(c) for c in columns}) != 1 or not len(columns[0]):
        raise ValueError(f"columns of {[len(c) for c in columns]} items; as many in each, one or more, are wanted")
    if samples < 1 or not 0 < level < 1:
        raise ValueError(f"samples {samples} and level {level}: wanted one or more, and between 0 and 1")


def bootstrap(
    statistic: Statistic, gold: Array, predicted: Array, *, samples: int = 10_000, level: float = 0.95, seed: int = 0
) -> Interval:
    """Return a statistic with its percentile bootstrap interval over the items of a test set.

    Args:
        statistic: a metric of this module, `mean_of(...)`, or any function of their form.
        gold: (N,) labels, class numbers or values.
        predicted: (N,) likewise.
        samples: bootstrap samples.
        level: share of samples inside the interval.
        seed: of the samples; the same seed gives the same interval.

    Raises:
        ValueError: no items, or not as many of both.
    """
    _check(samples, level, gold, predicted)
    drawn = _samples([gold, predicted], statistic, samples, seed)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(statistic(gold, predicted, None)), float(low), float(high))


def paired_bootstrap(
    statistic: Statistic,
    gold: Array,
    a: Array,
    b: Array,
    *,
    samples: int = 10_000,
    level: float = 0.95,
    seed: int = 0,
) -> Difference:
    """Return how much better b is than a on the same items, and how often chance alone would give as much.

    The p-value is two-sided: the share of samples whose difference lies as far from the observed one as the observed one
    lies from 0, counting the observed one itself, so it is never 0.

    Several runs of a system, one a seed, are worth the mean of their statistics. A sample then draws items, the same for all
    runs, and runs of each side by themselves: what another seed would have given counts as chance, too. With S runs the part
    of the seeds in the variance comes out (S - 1) / S as large as it is; one run leaves it out.

    Args:
        statistic: as in `bootstrap`.
        gold: (N,) labels.
        a: (N,) predictions of one system, or per-item scores with the statistic `mean`; (S, N) those of S runs.
        b: (N,) or (S, N) those of the other; S may differ.
        samples: bootstrap samples.
        level: share of samples inside the interval.
        seed: of the samples.

    Raises:
        ValueError: no items, or not as many of each.

    Source: Berg-Kirkpatrick, Burkett & Klein 2012, figure 1, two-sided; there one run of each.
    """
    sides = [np.atleast_2d(side) for side in (a, b)]
    runs = [run for side in sides for run in side]
    _check(samples, level, gold, *runs)

    def scores(g: Array, *rest: Any) -> Array:
        return np.stack([statistic(g, said, rest[-1]) for said in rest[:-1]], -1)

    generator, values, start = np.random.default_rng([seed, 1]), list[Array](), 0
    whole, drawn = scores(gold, *runs, None), _samples([gold, *runs], scores, samples, seed)  # (runs,), (samples, runs)
    for side in sides:
        count = len(side)
        here = slice(start, start + count)
        share = generator.multinomial(count, np.full(count, 1 / count), size=samples) / count
        values.append(np.r_[whole[here].mean(), (drawn[:, here] * share).sum(1)])
        start += count
    value, *_ = differences = values[1] - values[0]
    low, high = np.quantile(differences[1:], [(1 - level) / 2, (1 + level) / 2])
    # Equal differences must count as equal whatever the order of their sums.
    extreme = int(np.count_nonzero(np.abs(differences[1:] - value) >= abs(value) - 1e-12))
    return Difference(float(value), float(low), float(high), (extreme + 1) / (samples + 1))
