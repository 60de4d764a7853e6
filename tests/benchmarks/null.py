"""Whether p-values and intervals hold where nothing differs: simulated data, the tree's statistics.

`level` is the share of draws with p < .05 (at most 7 %), `cover` that of intervals with the
true value (at least 93 %). Nothing of a network is run.

- compare: two systems of the same expected accuracy, 300 examples of unequal difficulty, 1, 2, 3
  and 5 seeds per side whose accuracies spread by 0, 2 and 4 points (`0/4`: one side alone). With a
  single seed there must be no p-value; its interval is that of these two models. Also phrases of
  30 to 200 photos, of which each system knows some better than the other.
- perplexity: texts of several per image, two models that are equally good in the mean; and 2, 3,
  5, 10 and 20 texts, whose differences are normal or skewed.
- evaluate-matcher: shares of hits, several per photo, rare and frequent ones.
- probe-attention: 144 heads no better than the baseline: a head named beforehand, and the best;
  the baseline is one more head, or `steady`, the share that is right by chance.
- measure: Spearman's correlation of two models with 500 judgements, 1, 2, 3 and 5 runs whose
  correlations spread by about 2 points. A single run is of this very model. Also a single run with
  3, 5, 10 and 20 judgements (2 are refused), and the means of as many values, normal or skewed.
  Two encoders that know as much in other directions: norms and classes by cross-validated
  regression, shared neighbours of photos.
- locate: phrases, several per photo, with rare and frequent hits, and the difference of two maps.
- retrieve: R@1, R@10 and median rank of texts, several per image.

    python tests/benchmarks/null.py [--draws 1000] [--only WORD]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import bench
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from vgtools.analysis import recall
from vgtools.io.arrays import Array
from vgtools.measures.compare import compare as compare_measured
from vgtools.measures.evaluation import GoldItems, Measure, Measured
from vgtools.measures.norms import Norms
from vgtools.measures.photos import Alignment, CaptionedPhotos
from vgtools.systems.attention_probes.scores import HeadScores, significance
from vgtools.systems.visual_awareness import localisation
from vgtools.systems.vokenization.evaluation import Bootstrap
from vgtools.tasks import metrics, perplexity
from vgtools.tasks.compare import difference

SAMPLES = 1000
Rng = np.random.Generator
Drawn = Iterator[tuple[str, float]]  # (what, 1 or 0): `level` rejected, `cover` covered


def compare(runs: int, spreads: tuple[float, float]) -> Callable[[Rng], Drawn]:
    def draw(rng: Rng) -> Drawn:
        right = 1 / (1 + np.exp(-rng.normal(1, 1.5, 300)))  # of each example
        shifts = [rng.normal(0, spread / 100, (runs, 1)) for spread in spreads]
        chances = [np.clip(right + shift, 0, 1) for shift in shifts]
        sides = [(rng.random(chance.shape) < chance).astype(int) for chance in chances]
        seed = int(rng.integers(2**31))
        how = {"scale": 100.0, "samples": SAMPLES, "seed": seed}
        found = difference(metrics.accuracy, np.ones(300, int), *sides, **how)
        true = 0.0
        if runs == 1:  # of these two models on all examples there are
            others = 1 / (1 + np.exp(-rng.normal(1, 1.5, 100_000)))
            means = [100 * float(np.clip(others + shift, 0, 1).mean()) for shift in shifts]
            true = means[1] - means[0]
        yield "level", found["significant"]
        yield "cover", found["low"] <= true <= found["high"]

    return draw


def compare_photos(photos: int, items: int, runs: int) -> Callable[[Rng], Drawn]:
    def draw(rng: Rng) -> Drawn:
        groups = np.repeat(np.arange(photos), items)
        apart = rng.normal(0, 0.25, photos)[groups]  # one model knows a photo, the other another
        shared = rng.normal(0, 0.3, photos)[groups] + rng.normal(0, 0.5, len(groups))
        noise = rng.normal(0, 1, (2, runs, len(groups)))
        sides = shared + np.array([-1, 1])[:, None, None] * apart + noise > 0
        seed = int(rng.integers(2**31))
        how = {"scale": 100.0, "samples": SAMPLES, "seed": seed, "groups": groups}
        gold = np.ones(len(groups), int)
        found = difference(metrics.accuracy, gold, *sides.astype(int), **how)
        yield "level", found["significant"]
        yield "cover", found["low"] <= 0 <= found["high"]

    return draw


def of_perplexity(rng: Rng) -> Drawn:
    images = np.repeat(np.arange(100), 3)
    tokens = rng.integers(1, 6, len(images))
    shared = rng.normal(3, 1, 100)[images] * tokens  # of the image
    models = [
        shared + tokens * rng.normal(0, 0.3, 100)[images] + rng.normal(0, np.sqrt(tokens))
        for _ in range(2)
    ]
    groups = perplexity.groups_of(images)
    both = [perplexity.TextScores(tokens, nll) for nll in models]
    seed = int(rng.integers(2**31))
    found = perplexity.summary(both[1], both[0], groups, samples=SAMPLES, seed=seed)
    yield "level", found["difference"]["p"] < 0.05
    yield "cover", found["difference"]["low"] <= 0 <= found["difference"]["high"]
    yield "cover of perplexity", found["low"] <= np.exp(3) <= found["high"]


def apart(rng: Rng, count: int, skewed: bool) -> Array:
    """Return differences of few texts or items, 0 in the mean."""
    return rng.exponential(1, count) - 1 if skewed else rng.normal(0, 1, count)


def of_few_texts(texts: int, skewed: bool) -> Callable[[Rng], Drawn]:
    def draw(rng: Rng) -> Drawn:
        tokens = np.full(texts, 10)
        nll = 40 + 2 * rng.normal(0, 1, texts)
        both = [nll + 2 * apart(rng, texts, skewed), nll]
        models = [perplexity.TextScores(tokens, own) for own in both]
        seed = int(rng.integers(2**31))
        found = perplexity.summary(*models, np.arange(texts), samples=SAMPLES, seed=seed)
        yield "level", found["difference"]["p"] < 0.05
        yield "cover", found["difference"]["low"] <= 0 <= found["difference"]["high"]
        yield "cover of perplexity", found["low"] <= np.exp(4) <= found["high"]

    return draw


def matcher(share: float, photos: int) -> Callable[[Rng], Drawn]:
    def draw(rng: Rng) -> Drawn:
        items = rng.integers(1, 8, photos)
        chance = rng.beta(2 * share, 2 * (1 - share), photos)  # hits of a photo are alike
        place = np.repeat(np.arange(photos), items)
        hits = rng.random(len(place)) < chance[place]
        low, high = Bootstrap(place, SAMPLES, int(rng.integers(2**31))).interval(hits, place)
        yield "cover", low <= 100 * share <= high

    return draw


def probes(steady: bool, photos: int = 100) -> Callable[[Rng], Drawn]:
    def draw(rng: Rng) -> Drawn:
        heads = 144
        scores = HeadScores(heads, SAMPLES, int(rng.integers(2**31)))
        names = [str(i) for i in range(photos)]
        image = np.repeat(np.arange(photos), rng.integers(1, 6, photos))
        chance = rng.beta(1, 3, photos)[image]
        right = rng.random((len(image), heads)) < chance[:, None]
        base = (rng.random(len(image)) < chance).astype(float)
        if steady:
            base = np.full(len(image), 0.25)
        scores.add([("a", "")], names, image, np.zeros(len(image), int), right, base=base)
        found = significance(scores.cells["a", ""])
        yield "cover of a head", found.low[0] <= 0.25 <= found.high[0]
        if photos < 30:
            return  # There are no p-values and no bands: they would be too small.
        yield "level of a head", found.p[0] < 0.05
        yield "level of the best of 144", (found.p_corrected < 0.05).any()
        yield "cover of all heads", ((found.low_all <= 0.25) & (found.high_all >= 0.25)).all()

    return draw


def located(photos: int, share: float) -> Callable[[Rng], Drawn]:
    def draw(rng: Rng) -> Drawn:
        image = np.repeat(np.arange(photos), rng.integers(1, 4, photos))
        chance = rng.beta(2 * share, 2 * (1 - share), photos)[image]
        hits = (rng.random((2, len(image))) < chance).astype(float)
        values = np.stack([hits[0], hits[0] - hits[1]], 1)
        seed = int(rng.integers(2**31))
        how = {"seed": seed, "signed": ["above"]}
        found = localisation.intervals(values, [*map(str, image)], ["hit", "above"], **how)
        yield "cover", found["hit_low"] <= 100 * share <= found["hit_high"]
        yield "cover of a difference", found["above_low"] <= 0 <= found["above_high"]

    return draw


def measure(runs: int) -> Callable[[Rng], Drawn]:
    def draw(rng: Rng) -> Drawn:
        gold = rng.normal(0, 1, 500)
        noise = 1 if runs == 1 else rng.normal(1, 0.04, (2, runs, 1))  # of each run
        shared = rng.normal(0, 1, 500)  # what all models make of a pair
        said = gold + 0.7 * shared + noise * rng.normal(0, 1, (2, runs, 500))
        items = GoldItems(name="pairs", kind="word pairs", statistic="spearman", keys=(), gold=gold)
        measured = Measured(items, list(said.reshape(-1, 500)))
        rows = {"a": range(runs), "b": range(runs, 2 * runs)}
        seed = int(rng.integers(2**31))
        records = compare_measured([measured], rows, SAMPLES, seed)
        found = records[1]["difference"]
        yield "level", found["p"] < 0.05
        yield "cover", found["low"] <= 0 <= found["high"]

    return draw


def of_norms(words: int, classes: bool) -> Callable[[Rng], Drawn]:
    def draw(rng: Rng) -> Drawn:
        z = rng.normal(size=(words, 8))
        gold = z[:, 0] + rng.normal(0, 0.5, words)
        labels = ("low", "middle", "high") if classes else ()
        gold = np.digitize(gold, (-0.7, 0.7)).astype(float) if classes else gold
        norms = Norms("norms", [f"w{n}" for n in range(words)], gold, labels)
        yield from compared(rng, norms, [seen(rng, z) for _ in range(2)])

    return draw


def of_neighbours(photos: int) -> Callable[[Rng], Drawn]:
    def draw(rng: Rng) -> Drawn:
        z = rng.normal(size=(photos, 8))
        features = z @ rng.normal(size=(8, 64)) + rng.normal(size=(photos, 64))
        captions = {f"photo{n}": ["x"] for n in range(photos)}
        known = CaptionedPhotos("photos", captions, features)
        measured = Alignment(known, features, "neighbours", "photos", neighbours=True)
        yield from compared(rng, measured, [seen(rng, z, 1.0) for _ in range(2)])

    return draw


def seen(rng: Rng, z: Array, noise: float = 0.5) -> Array:
    """Return what one of many equal encoders knows of (N, 8) latent values: (N, 32)."""
    directions = np.linalg.qr(rng.normal(size=(32, 32)))[0][:8]
    return z @ directions + noise * rng.normal(size=(len(z), 32))


def compared(rng: Rng, measured: Measure, answers: Sequence[Array]) -> Drawn:
    known = np.ones(len(answers[0]), bool)
    own = Measured(measured.items, [measured.predict(one, known) for one in answers])
    seed = int(rng.integers(2**31))
    found = compare_measured([own], {"a": [0], "b": [1]}, SAMPLES, seed)[1]["difference"]
    yield "level", found["p"] < 0.05
    yield "cover", found["low"] <= 0 <= found["high"]


def of_few_items(count: int, statistic: str, skewed: bool) -> Callable[[Rng], Drawn]:
    def draw(rng: Rng) -> Drawn:
        gold, shared = rng.normal(0, 1, (2, count))
        said = gold + 0.7 * shared + rng.normal(0, 1, (2, count))
        if statistic == "mean":
            said = np.stack([shared, shared + apart(rng, count, skewed)])
        items = GoldItems(name="few", kind="items", statistic=statistic, keys=(), gold=gold)
        seed = int(rng.integers(2**31))
        rows = {"a": [0], "b": [1]}
        found = compare_measured([Measured(items, list(said))], rows, SAMPLES, seed)
        change = found[1]["difference"]
        yield "level", change["p"] < 0.05
        yield "cover", change["low"] <= 0 <= change["high"]

    return draw


def retrieve(rng: Rng) -> Drawn:
    photos, bank = 100, 1000
    image = np.repeat(np.arange(photos), 5)
    near = rng.gamma(1, 20, photos)[image]  # texts of an image are alike
    ranks = np.minimum(1 + rng.poisson(near * rng.gamma(1, 1, len(image))), bank)
    drawn = rng.multinomial(photos, np.full(photos, 1 / photos), SAMPLES)
    found = recall._measured(ranks, image, drawn)
    for name, true in TRUE_RANKS.items():
        yield f"cover of {name}", found[f"{name}_low"] <= true <= found[f"{name}_high"]


def true_ranks() -> dict[str, float]:
    rng = np.random.default_rng(0)
    near = rng.gamma(1, 20, 2_000_000) * rng.gamma(1, 1, 2_000_000)
    ranks = 1 + rng.poisson(near)
    found = {f"r{k}": 100 * float((ranks <= k).mean()) for k in (1, 10)}
    return found | {"median_rank": float(np.median(ranks))}


TRUE_RANKS = true_ranks()


def conditions() -> Iterator[tuple[str, Callable[[Rng], Drawn]]]:
    for runs in (1, 2, 3, 5):
        for spread in (0, 2, 4):
            yield f"compare, seeds {runs}, spread {spread}", compare(runs, (spread, spread))
        if runs > 1:
            yield f"compare, seeds {runs}, spread 0/4", compare(runs, (0, 4))
    for photos, items, runs in ((100, 15, 5), (200, 5, 3), (30, 5, 2), (100, 15, 1)):
        name = f"compare, {photos} photos of {items} phrases, seeds {runs}"
        yield name, compare_photos(photos, items, runs)
    yield "perplexity", of_perplexity
    for texts in (2, 3, 5, 10, 20):
        for skewed in (False, True):
            name = f"perplexity, {texts} texts" + ", skewed" * skewed
            yield name, of_few_texts(texts, skewed)
    for share, photos in ((0.02, 500), (0.2, 100), (0.5, 500)):
        yield f"evaluate-matcher, {share:.0%} of {photos} photos", matcher(share, photos)
    for steady in (False, True):
        yield "probe-attention" + ", steady baseline" * steady, probes(steady)
    for photos in (6, 10, 30):
        yield f"probe-attention, {photos} photos", probes(steady=True, photos=photos)
    for photos, share in ((10, 0.04), (10, 0.4), (50, 0.04), (50, 0.4)):
        yield f"locate, {photos} photos, {share}", located(photos, share)
    for runs in (1, 2, 3, 5):
        yield f"measure, runs {runs}", measure(runs)
    for words in (40, 100):
        for classes in (False, True):
            name = f"measure, {words} " + ("classes" if classes else "norms")
            yield name, of_norms(words, classes)
    for photos in (50, 200):
        yield f"measure, neighbours of {photos} photos", of_neighbours(photos)
    for count in (3, 5, 10, 20):
        yield f"measure, {count} judgements", of_few_items(count, "spearman", False)
        for skewed in (False, True):
            name = f"measure, {count} values" + ", skewed" * skewed
            yield name, of_few_items(count, "mean", skewed)
    yield "retrieve", retrieve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--only", default="", help="conditions that start with this word")
    given = parser.parse_args()
    draws = given.draws
    facts = bench.machine()
    for name, draw in conditions():
        if not name.startswith(given.only):
            continue
        rng = np.random.default_rng(1)
        counts = dict[str, int]()
        for _ in range(draws):
            for what, hit in draw(rng):
                counts[what] = counts.get(what, 0) + bool(hit)
        for what, count in counts.items():
            target = "<= 0.07" if what.startswith("level") else ">= 0.93"
            bench.report(name, what, count / draws, target, draws=draws, **facts)


if __name__ == "__main__":
    main()
