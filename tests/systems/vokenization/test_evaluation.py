"""Evaluation of matchers: every figure against loops over tokens and photos; intervals by photo."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from tests.tiny import save_feats, save_run_of
from vgtools.io.artifact import open_features
from vgtools.io.errors import DataError
from vgtools.io.files import dumps
from vgtools.systems.vokenization.evaluation import (
    POS,
    Bootstrap,
    Evaluation,
    _without_the_word,
    untrained,
)
from vgtools.systems.vokenization.vokenize import Matcher, open_matcher
from vgtools.text.parses import Parse
from vgtools.text.tokens import stem_key

# Of a word: its tag and lemma. Captions name what their photo shows; `bam` is in half of them.
TAGS = {
    "bam": ("NOUN", "bam"),
    "ban": ("NOUN", "bam"),
    "dor": ("NOUN", "dor"),
    "fut": ("VERB", "f"),
}
HELD_OUT = [
    (row, f"{noun} fut {noun}")
    for row, noun in enumerate(["bam", "ban", "dor", "bam", "dor", "lis", "ban", "gem"])
] + [(2, "bam dor"), (5, "fut")]
BANK = [(20, "ban"), (21, "dors fut"), (22, "nothing"), (23, "dor")]
TEXT = ["dor fut ban", "ban fut"]


def parser(texts: Any) -> Any:
    """Parse words between blanks by the table; the others are adverbs."""
    for text in texts:
        words = text.split()
        starts = np.cumsum([0, *(len(word) + 1 for word in words)])
        known = [TAGS.get(word, ("ADV", word)) for word in words]
        yield Parse(
            [(int(at), int(at) + len(word)) for at, word in zip(starts, words, strict=False)],
            [-1] * len(words),
            ["dep"] * len(words),
            [tag for tag, _ in known],
            [lemma.upper() for _, lemma in known],
        )


def phrases(path: Path, *more: dict[str, Any]) -> str:
    """Write two annotated captions of photo 1, of which the first counts, and one of photo 2."""

    def row(image: str, text: str, *spans: tuple[int, int, str]) -> dict[str, Any]:
        keys = ("start", "end", "type")
        named = [dict(zip(keys, span, strict=True)) for span in spans]
        return {"image": image, "text": text, "phrases": named}

    rows = [
        row("image001", "ban fut dor", (0, 3, "animals"), (8, 11, "['notvisual']")),
        row("image001", "dor", (0, 3, "animals")),
        row("image002", "dor bam fut", (0, 11, "scene")),
        row("image050", "dor", (0, 3, "animals")),
        *more,
    ]
    path.write_bytes(b"".join(map(dumps, rows)))
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Path:
    folder = tmp_path_factory.mktemp("evaluation")
    save_feats(folder / "feats.npy")
    save_run_of(folder / "token", tiny / "encoder", sentence=True, root=False)
    save_run_of(folder / "sentence", tiny / "encoder", level="sentence")
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Matcher:
    return open_matcher(folder / "token")


def scores(run: Matcher, text: str, photos: list[int], feats: Any) -> tuple[Any, Any]:
    """Return the scores of a text's tokens (T, photos), and where the tokens begin."""
    from vgtools.models.packed import PackedEncoder
    from vgtools.systems.vokenization.matcher_training import HiddenStates, tokenize_captions

    captions, _ = tokenize_captions([text], [0], run.encoder.tokenizer, run.encoder.max_tokens)
    packed = PackedEncoder(run.encoder, run.matcher.config.layers)
    part = HiddenStates(packed, captions.tokens, 1 << 30).take(np.array([0]))
    with torch.inference_mode():
        images = run.matcher.embed_images(torch.from_numpy(np.array(feats[photos])))
        zeros = torch.zeros(len(part.hidden), dtype=torch.int64)
        tokens = run.matcher.project_tokens(part.hidden, part.means, zeros)
    return (tokens.double() @ images.double().T).numpy(), captions.tokens.spans[:, 0].tolist()


def percent(values: list[Any]) -> float:
    return round(100 * float(np.mean(values)), 2)


def test_recall_by_part_of_speech_is_that_of_loops(folder: Path, run: Matcher) -> None:
    bank = open_features(folder / "feats.npy")
    found = Evaluation(bank, HELD_OUT, parser).measure(run)
    photos = list(range(8))
    ranks: dict[str, list[int]] = {}
    got: list[int] = []
    holders: list[set[int]] = []
    for image, text in HELD_OUT:
        table, starts = scores(run, text, photos, bank.array)
        (parse,) = parser([text])
        for row, start in zip(table, starts, strict=True):
            rank = int((row > row[image]).sum())
            word = next(n for n, (a, b) in enumerate(parse.spans) if a <= start < b)
            ranks.setdefault("word", []).append(rank)
            ranks.setdefault(parse.tags[word], []).append(rank)
            form = text.split()[word]
            got.append(int(row.argmax()))
            holders.append({photo for photo, other in HELD_OUT if form in other.split()})
    assert (found["images"], found["chance"]) == (8, {"r1": 12.5, "r5": 62.5, "r10": 100.0})
    assert found["word"] == {f"r{k}": percent([r < k for r in ranks["word"]]) for k in (1, 5, 10)}
    assert found["word"]["r1"] not in (0, 100)
    assert found["concept"] == percent([v in held for v, held in zip(got, holders, strict=True)])
    assert found["blind"] == {
        "best_voken": max(percent([v in held for held in holders]) for v in photos),
        "permuted": percent([v in held for held in holders for v in got]),
    }
    assert list(found["pos"]) == list(POS)
    assert [found["pos"][tag] for tag in ("NOUN", "ADJ")] == [100.0, 0.0]
    assert "phrases" not in found
    assert "text" not in found


def test_concept_hit_of_annotated_nouns_is_that_of_loops(
    folder: Path, run: Matcher, tmp_path: Path
) -> None:
    bank = open_features(folder / "feats.npy")
    evaluation = Evaluation(bank, HELD_OUT, parser)
    evaluation.add_phrases(phrases(tmp_path / "phrases.jsonl"))
    found = evaluation.measure(run)["phrases"]
    held = {"bam": {0, 1, 2, 3, 6}, "dor": {2, 4}}
    nouns = [
        (1, "ban fut dor", 0, "bam"),
        (2, "dor bam fut", 0, "dor"),
        (2, "dor bam fut", 4, "bam"),
    ]
    hits: dict[str, list[bool]] = {"concept": [], "others": []}
    got: list[int] = []
    for image, text, start, lemma in nouns:
        table, starts = scores(run, text, list(range(8)), bank.array)
        row = table[starts.index(start)]
        got.append(int(row.argmax()))
        hits["concept"].append(int(row.argmax()) in held[lemma])
        row[image] = -np.inf
        hits["others"].append(int(row.argmax()) in held[lemma])
    assert found["nouns"] == 3
    assert found["chance"] == percent([5 / 8, 2 / 8, 5 / 8])
    assert found["others_chance"] == percent([4 / 7, 1 / 7, 4 / 7])
    assert found["best_voken"] == 100, "photo 2 has both lemmas"
    assert found["permuted"] == percent([photo in held[n[3]] for photo in got for n in nouns])
    assert {name: found[name] for name in hits} == {n: percent(hit) for n, hit in hits.items()}
    for name in hits:
        low, high = found["interval"][name]
        assert low <= found[name] <= high

    def partly(texts: Any) -> Any:
        for parse in parser(texts):
            lemmas = ["" if lemma == "BAM" else lemma for lemma in parse.lemmas]
            yield dataclasses.replace(parse, lemmas=lemmas)

    evaluation = Evaluation(bank, HELD_OUT, partly)
    evaluation.add_phrases(phrases(tmp_path / "phrases.jsonl"))
    found = evaluation.measure(run)["phrases"]
    assert (found["nouns"], found["chance"]) == (1, 25.0), "two words without a lemma are not alike"


def test_the_photos_of_a_text_are_those_of_loops(folder: Path, run: Matcher) -> None:
    bank = open_features(folder / "feats.npy")
    evaluation = Evaluation(bank, HELD_OUT, parser)
    evaluation.add_text(TEXT, BANK)
    found = evaluation.measure(run)["text"]
    top: list[int] = []
    hits: list[bool] = []
    shares: list[float] = []
    holders: list[set[int]] = []
    got: list[int] = []
    best_scores: list[float] = []
    for text in TEXT:
        table, starts = scores(run, text, [20, 21, 22, 23], bank.array)
        best = (20 + table.argmax(1)).tolist()
        top += best
        for word in ("dor", "ban"):
            if word in text:
                stem = stem_key(word)
                held = {row for row, words in BANK if stem in map(stem_key, words.split())}
                hits.append(best[starts.index(text.index(word))] in held)
                best_scores.append(table[starts.index(text.index(word))].max())
                shares.append(len(held) / 4)
                holders.append(held)
                got.append(best[starts.index(text.index(word))])
    share = np.unique(top, return_counts=True)[1] / len(top)
    low, high = found.pop("interval")["noun_hit"]
    assert low <= percent(hits) <= high
    assert found == {
        "tokens": 5,
        "images": 4,
        "distinct": len(set(top)),
        "effective": round(float(np.exp(-(share * np.log(share)).sum()))),
        "nouns": 3,
        "noun_hit": percent(hits),
        "best_half": percent([hits[i] for i in np.argsort(best_scores)[1:]]),
        "best_quarter": percent([hits[np.argmax(best_scores)]]),
        "worst_quarter": percent([hits[np.argmin(best_scores)]]),
        "chance": percent(shares),
        "best_voken": max(percent([v in held for held in holders]) for v in range(20, 24)),
        "permuted": percent([v in held for held in holders for v in got]),
    }


def test_photos_that_ignore_the_noun_by_hand() -> None:
    # Photo 7 is right for three of four nouns. Dealt out again, 7 and 7 are right for 3 / 4, 8 for
    # 1 / 4, 9 for none: (3 + 3 + 1 + 0) / 16.
    holders = [{7}, {7, 8}, {7}, set[int]()]
    found = _without_the_word(np.array([7, 7, 8, 9]), holders)
    assert found == {"best_voken": 75, "permuted": 43.75}
    # One photo for every noun is as good as itself, whatever the order.
    assert _without_the_word(np.full(4, 7), holders) == {"best_voken": 75, "permuted": 75}
    assert _without_the_word(np.empty(0, np.int64), []) == {"best_voken": 0, "permuted": 0}


def test_nouns_are_sorted_by_the_probability_of_a_calibrated_run(
    folder: Path, run: Matcher
) -> None:
    stored = {"relevance": 1.0, "captions": 2.0, "bias": -3.0, "stems": {"ban": 9, "dor": 1}}
    used = dataclasses.replace(run, info=run.info | {"calibration": stored})
    evaluation = Evaluation(open_features(folder / "feats.npy"), HELD_OUT, parser)
    evaluation.add_text(TEXT, BANK)
    found = evaluation.measure(used)
    bank = open_features(folder / "feats.npy")
    nouns: list[tuple[float, bool]] = []
    for text in TEXT:
        table, starts = scores(run, text, [20, 21, 22, 23], bank.array)
        for word, known in (("dor", 1), ("ban", 9)):
            if word in text:
                row = table[starts.index(text.index(word))]
                odds = row.max() + 2 * np.log1p(known) - 3
                held = {"dor": {21, 23}, "ban": {20}}[word]
                nouns.append((1 / (1 + np.exp(-odds)), 20 + int(row.argmax()) in held))
    assert found["text"]["best_quarter"] == 100 * max(nouns)[1]
    assert found["text"]["worst_quarter"] == 100 * min(nouns)[1]
    curve = found["text"]["reliability"]
    assert sum(fifth["count"] for fifth in curve) == 3
    # Both that captions know well are in one fifth, above the other.
    high = [hit for p, hit in nouns if p > 0.8]
    assert (curve[-1]["count"], curve[-1]["right"]) == (2, percent(high))
    mean = 100 * np.mean([p for p, _ in nouns if p > 0.8])
    assert curve[-1]["score"] == pytest.approx(mean, abs=0.02)
    content = found["reliability"]
    assert sum(fifth["count"] for fifth in content) == 27
    right = sum(fifth["right"] * fifth["count"] for fifth in content) / 27
    assert right == pytest.approx(found["concept"], abs=0.02)


def test_the_control_is_the_same_network_untrained(folder: Path, run: Matcher) -> None:
    evaluation = Evaluation(open_features(folder / "feats.npy"), HELD_OUT, parser)
    found = evaluation.measure(run)
    state = torch.random.get_rng_state()
    fresh = untrained(run.matcher)
    assert torch.equal(torch.random.get_rng_state(), state), "no other random choice changes"
    assert fresh.config == run.matcher.config
    again = evaluation.measure(Matcher(fresh, run.encoder, run.info, "fresh", "f"))
    assert found["untrained"] == again["untrained"]
    assert found["untrained"] == {name: again[name] for name in found["untrained"]}
    assert found["untrained"] != {name: found[name] for name in found["untrained"]}


def test_runs_of_one_encoder_read_the_texts_once(folder: Path, run: Matcher) -> None:
    read: list[int] = []
    evaluation = Evaluation(open_features(folder / "feats.npy"), HELD_OUT, watch=read.append)
    first = evaluation.measure(run)
    assert sum(read) == 24 + 2 + 1  # words of HELD_OUT, each a token
    assert evaluation.measure(run) == first
    assert sum(read) == 27
    whole = evaluation.measure(open_matcher(folder / "sentence"))
    assert sum(read) == 27
    assert sorted(whole) == ["caption", "chance", "images", "interval", "untrained"]
    assert sorted(whole["interval"]) == ["caption"]


def test_captions_without_a_token_keep_words_and_captions_together(
    folder: Path, run: Matcher
) -> None:
    bank = open_features(folder / "feats.npy")
    some = Evaluation(bank, [(0, ""), *HELD_OUT, (3, " ")], parser).measure(run)
    assert some == Evaluation(bank, HELD_OUT, parser).measure(run)


def test_intervals_are_over_photos_not_words() -> None:
    rng = np.random.default_rng(1)
    hits = rng.random(400) < 0.5
    images = np.arange(400)
    draws = Bootstrap(images)
    low, high = draws.interval(hits, images)
    # A binomial share of 400: the normal interval, to a tenth of its width.
    half = 196 * np.sqrt(hits.mean() * (1 - hits.mean()) / 400)
    assert (high - low) / 2 == pytest.approx(half, rel=0.1)
    assert low < 100 * hits.mean() < high
    # Ten words of each photo that all hit or all miss say no more than one.
    assert draws.interval(np.repeat(hits, 10), np.repeat(images, 10)) == [low, high]
    exact = 100 * binomtest(400, 400).proportion_ci(method="exact").low
    assert draws.interval(np.ones(400, bool), images) == [pytest.approx(exact, abs=0.005), 100.0]
    assert draws.interval(np.ones(0, bool), images[:0]) == [0.0, 0.0]
    assert draws.fewest == hits.sum()
    draws.interval(images < 3, images)
    assert draws.fewest == 3


def test_flickr_s_two_names_of_a_photo_are_one(tmp_path: Path, tiny: Path) -> None:
    path = save_feats(tmp_path / "feats.npy")
    ids = [f"{i + 10}_693b08cb{i:02}.jpg" for i in range(60)]
    bank = open_features(path)
    bank.ids[:] = ids
    evaluation = Evaluation(bank, HELD_OUT, parser)
    row = {"text": "dor", "phrases": [{"start": 0, "end": 3, "type": "scene"}]}
    named = tmp_path / "phrases.jsonl"
    named.write_bytes(
        dumps({"image": "12.jpg"} | row) + dumps({"image": "14_693b08cb04.jpg"} | row)
    )
    evaluation.add_phrases(str(named))
    assert evaluation.measure(open_matcher(tiny / "run"))["phrases"]["nouns"] == 2


@pytest.mark.parametrize(
    ("phrase", "message"),
    [
        ("x", r"5: phrase 1: expected \"start\" and \"end\" in characters, got 'x'"),
        ({"start": 0}, r"5: phrase 1: expected \"start\" and \"end\""),
        ({"start": 0, "end": 1.5}, r"5: phrase 1: expected"),
    ],
)
def test_a_bad_phrase_is_named(folder: Path, tmp_path: Path, phrase: Any, message: str) -> None:
    evaluation = Evaluation(open_features(folder / "feats.npy"), HELD_OUT, parser)
    row = {"image": "image003", "text": "dor", "phrases": [phrase]}
    with pytest.raises(DataError, match=message):
        evaluation.add_phrases(phrases(tmp_path / "p.jsonl", row))


def test_nothing_to_measure_is_refused(folder: Path, tmp_path: Path) -> None:
    bank = open_features(folder / "feats.npy")
    with pytest.raises(DataError, match="no captions to evaluate on; --split names"):
        Evaluation(bank, [])
    evaluation = Evaluation(bank, [(30, "dor")], parser)
    with pytest.raises(DataError, match="none of the 1 photos to evaluate on, such as 'image030'"):
        evaluation.add_phrases(phrases(tmp_path / "p.jsonl"))
    with pytest.raises(DataError, match="nothing in the text"):
        evaluation.add_text([], BANK)
    with pytest.raises(DataError, match="the bank for the text: --bank-split names its split"):
        evaluation.add_text(TEXT, [])


@pytest.mark.parametrize(
    ("tag", "lemma", "missing"), [("_", "dor", "parts of speech"), ("NOUN", "", "lemmas")]
)
def test_a_parser_without_what_is_asked_of_it_is_refused(
    folder: Path, tag: str, lemma: str, missing: str
) -> None:
    def poor(texts: Any) -> Any:
        return [Parse([(0, 3)], [-1], ["root"], [tag], [lemma]) for _ in texts]

    with pytest.raises(DataError, match=f"the parser gives no {missing}"):
        Evaluation(open_features(folder / "feats.npy"), [(0, "dor")], poor)
