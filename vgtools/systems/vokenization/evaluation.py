"""Evaluation of finished matchers on photos that none was trained on (section 3.2).

The paper has no figures of the matcher itself. Recall asks for the caption's own photo among all of
a split. Concept hit asks for any photo that shows the noun, which is the purpose of vokens.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from vgtools.analysis.bootstrap import draws, share_ends
from vgtools.analysis.recall import KS
from vgtools.images.phrases import image_finder
from vgtools.io.arrays import Array
from vgtools.io.artifact import Features
from vgtools.io.errors import DataError, amount
from vgtools.io.process import note
from vgtools.io.streams import read_jsonl
from vgtools.models.encoder import Encoder
from vgtools.models.packed import PackedEncoder
from vgtools.systems.vokenization.calibration import Probability, reliability
from vgtools.systems.vokenization.matcher import TokenImageMatcher
from vgtools.systems.vokenization.matcher_training import (
    HiddenStates,
    MatcherCaptions,
    Ranked,
    chance,
    concept_hits,
    rank_all,
    recall,
    recalls,
    tokenize_captions,
)
from vgtools.systems.vokenization.vokenize import Matcher
from vgtools.text.parses import Parse, Parser
from vgtools.text.tokens import load_stop_words, stem_key
from vgtools.training.splits import Rows

POS = ("NOUN", "PROPN", "VERB", "ADJ", "NUM", "ADV", "ADP", "DET", "PRON", "AUX", "CCONJ", "PUNCT")
SAMPLES = 1000  # bootstrap samples of the intervals
LEAST_HITS = 10  # with fewer, intervals of 95 % hold the true value in about 90 % of samples
_BUDGET = 4 << 30  # bytes of hidden states that may be held
Spans = list[tuple[int, int]]


@dataclass
class EvaluatedTexts:
    """N texts, before an encoder reads them."""

    images: list[int]  # N, feature row of each text's photo
    texts: list[str]  # N
    parses: list[Parse]  # N, none without a parser
    phrases: list[Spans]  # N, spans of phrases that show something; none without annotations

    @classmethod
    def of(cls, rows: Rows, parser: Parser | None, phrases: Sequence[Spans] = ()) -> EvaluatedTexts:
        """Parse captions.

        Raises:
            DataError: the parser gives no parts of speech or no lemmas, or as it does.
        """
        texts = [text for _, text in rows]
        parses = [] if parser is None else list(parser(texts))
        for what, known in (
            ("parts of speech", any(set(parse.tags) - {"_", ""} for parse in parses)),
            ("lemmas", any(any(parse.lemmas) for parse in parses)),
        ):
            if parses and not known:
                raise DataError(f"the parser gives no {what}; expected them with the relations")
        return cls([image for image, _ in rows], texts, parses, list(phrases))


class Encoded(NamedTuple):
    """Texts as an encoder reads them: T tokens."""

    captions: MatcherCaptions
    states: HiddenStates
    tags: Array  # (T,) part of speech of the word that each token starts in, or empty
    lemmas: list[str]  # T, lower case
    nouns: Array  # the first token of each noun inside a phrase


class Bootstrap:
    """Intervals of shares over samples of photos: the words of one photo are not independent.

    The bank that is searched stays the same.

    Args:
        images: feature rows of the photos; lines, for a text without photos.
        samples: how many samples are drawn.
        seed: decides which samples are drawn.

    Attributes:
        fewest: hits of the rarest share so far.
    """

    def __init__(self, images: Array, samples: int = SAMPLES, seed: int = 0) -> None:
        self._images = np.unique(images)
        size = len(self._images)
        self.fewest: float = np.inf
        self._drawn = draws(size, samples, seed).astype(np.float64) if size else np.zeros((1, 0))

    def interval(self, hits: Array, images: Array) -> list[float]:
        """Return the 95 % interval of a share in percent, from each item's hit and photo."""
        if not len(hits):
            return [0.0, 0.0]
        self.fewest = min(self.fewest, int(hits.sum()))
        place = np.searchsorted(self._images, images)
        size = len(self._images)
        right = np.bincount(place, hits, minlength=size)
        found = share_ends(right, np.bincount(place, minlength=size), self._drawn)
        return [round(100 * end, 2) for end in found]


class Evaluation:
    """Measures matchers on the same captions of held-out photos.

    Results that depend on the encoder alone are kept from one matcher to the next.

    Args:
        bank: features of all photos.
        rows: captions to evaluate on.
        parser: with it recall is also given by part of speech.
        watch: called with the number of tokens that an encoder has read.
        language: the language for stop words and stems; one of `LANGUAGES`.
        file: the file of the captions, for messages.

    Attributes:
        fewest: hits of the rarest share with an interval, of the last matcher measured.

    Raises:
        DataError: no captions, or the parser's.
    """

    def __init__(
        self,
        bank: Features,
        rows: Rows,
        parser: Parser | None = None,
        watch: Any = None,
        language: str = "en",
        file: str | None = None,
    ) -> None:
        if not rows:
            why = "there are no captions to evaluate on; --split names their split"
            raise DataError(why, file)
        self._feats = bank.array
        self._ids = bank.ids
        self._parser = parser
        self._watch = watch
        self._language = language
        self._parts = {"captions": EvaluatedTexts.of(rows, parser)}
        self.photos = np.unique([image for image, _ in rows])
        self._bootstrap = Bootstrap(self.photos)
        self._holders = _holders(rows, [parse.lemmas for parse in self._parts["captions"].parses])
        self._text_photos = np.empty(0, np.int64)
        self._stems: dict[str, set[int]] = {}
        self._encoder = ("", 0)
        self._encoded: dict[str, Encoded] = {}
        self.fewest: float = np.inf

    def add_phrases(self, path: str) -> None:
        """Also measure concept hit on the nouns in the annotated phrases of first captions.

        Args:
            path: file of rows {"image", "text", "phrases": [{"start", "end", "type"}]}; rows of
                other photos are skipped.

        Raises:
            DataError: a row is not of this form, or none is of a held-out photo.
        """
        find = image_finder({self._ids[row]: row for row in self.photos.tolist()})
        rows: dict[int, str] = {}
        spans = list[Spans]()
        for line, row in read_jsonl(path, {"image": str, "text": str, "phrases": list}):
            image = find(row["image"])
            if image is not None and image not in rows:
                rows[image] = row["text"]
                spans.append(_visual_spans(row["phrases"], path, line))
        if not rows:
            why = f"holds none of the {len(self.photos)} photos to evaluate on"
            raise DataError(f"{why}, such as {self._ids[self.photos[0]]!r:.80}", path)
        self._parts["phrases"] = EvaluatedTexts.of(list(rows.items()), self._parser, spans)

    def add_text(self, lines: Sequence[str], rows: Rows) -> None:
        """Also measure the photos that the words of a running text get from a bank.

        Args:
            lines: lines of the text.
            rows: captions of the bank's photos.

        Raises:
            DataError: either is empty.
        """
        if not lines or not rows:
            what = "the text" if rows else "the bank for the text: --bank-split names its split"
            raise DataError(f"there is nothing in {what}")
        self._text_photos = np.unique([image for image, _ in rows])
        words = [
            [stem_key(word, self._language) for word in re.findall(r"[^\W_]+", text)]
            for _, text in rows
        ]
        self._stems = _holders(rows, words)
        some = int(self._text_photos[0])  # The text has no photo; its rank is not used.
        self._parts["text"] = EvaluatedTexts.of([(some, line) for line in lines], self._parser)

    def measure(self, run: Matcher) -> dict[str, Any]:
        """Return the figures of a matcher, in percent, as `vg evaluate-matcher` documents them.

        The figures of the same network untrained are added as a control.
        """
        key = (run.encoder.identity, run.matcher.config.layers)
        if key != self._encoder:
            self._encoder = key
            self._encoded = {}  # The hidden states of two encoders might not fit into memory.
            packed = run.packed()
            for name, texts in self._parts.items():
                self._encoded[name] = _encode(
                    texts, run.encoder, packed, self._watch, self._language
                )
        size = len(self.photos)
        self._bootstrap.fewest = np.inf
        record = {"images": size, "chance": chance(size), **self._figures(run.matcher)}
        self.fewest = self._bootstrap.fewest
        calibration = run.calibration()
        if calibration is not None:
            record["reliability"] = self._reliability(run.matcher, calibration)
        # A matcher of sentences has no images of words.
        if "text" in self._encoded and run.matcher.config.level == "token":
            record["text"] = self._text(run.matcher, calibration)
        record["untrained"] = self._figures(untrained(run.matcher))
        return record

    def _rank(self, matcher: TokenImageMatcher, part: str, photos: Array) -> Ranked:
        """Rank the photos for one part of the texts."""
        encoded = self._encoded[part]
        return rank_all(matcher, encoded.captions, encoded.states, self._feats, photos)

    def _figures(self, matcher: TokenImageMatcher) -> dict[str, Any]:
        """Return recall, and concept hit where there are phrases, with their intervals."""
        captions, _, tags, *_ = self._encoded["captions"]
        ranked = self._rank(matcher, "captions", self.photos)
        found = recalls(captions, ranked)
        interval = self._intervals(captions, ranked)
        if len(ranked.ranks):
            held = _stem_holders(captions)
            keys = captions.keys[captions.content].tolist()
            found["blind"] = _without_the_word(
                ranked.top[captions.content], [held[key] for key in keys]
            )
        if len(tags) and len(ranked.ranks):
            found["pos"] = {tag: recall(ranked.ranks[tags == tag])["r10"] for tag in POS}
        if "phrases" in self._encoded and len(ranked.ranks):
            found["phrases"] = self._concepts(matcher)
        return {**found, "interval": interval}

    def _intervals(self, captions: MatcherCaptions, ranked: Ranked) -> dict[str, Any]:
        """Return the 95 % intervals of `recalls`."""
        interval = self._bootstrap.interval
        found: dict[str, Any] = {}
        if len(ranked.ranks):
            photo = np.repeat(captions.images, np.diff(captions.tokens.starts))
            content = captions.content
            found["word"] = self._recall(ranked.ranks, photo)
            found["content"] = self._recall(ranked.ranks[content], photo[content])
            found["concept"] = interval(concept_hits(captions, ranked), photo[content])
        found["caption"] = self._recall(ranked.caption_ranks, captions.images)
        return found

    def _recall(self, ranks: Array, photos: Array) -> dict[str, list[float]]:
        """Return the intervals of R@1, R@5 and R@10."""
        return {f"r{k}": self._bootstrap.interval(ranks < k, photos) for k in KS}

    def _concepts(self, matcher: TokenImageMatcher) -> dict[str, Any]:
        """Return how often the photo of an annotated noun has a caption with its lemma."""
        captions, _, _, lemmas, nouns = self._encoded["phrases"]
        ranked = self._rank(matcher, "phrases", self.photos)
        photo = np.repeat(captions.images, np.diff(captions.tokens.starts))[nouns]
        held = [self._holders.get(lemmas[noun], set()) for noun in nouns]
        size = len(self.photos)
        shares = [len(photos) / size for photos in held]
        without = [
            len(photos - {own}) / max(1, size - 1)
            for photos, own in zip(held, photo.tolist(), strict=True)
        ]
        hits = {
            name: np.array([best in photos for best, photos in zip(top[nouns], held, strict=True)])
            for name, top in (("concept", ranked.top), ("others", ranked.others))
        }
        return {
            "nouns": len(nouns),
            "chance": _percent(shares),
            "others_chance": _percent(without),
            **{name: _percent(hit) for name, hit in hits.items()},
            **_without_the_word(ranked.top[nouns], held),
            "interval": {name: self._bootstrap.interval(hit, photo) for name, hit in hits.items()},
        }

    def _reliability(
        self, matcher: TokenImageMatcher, calibration: Probability
    ) -> list[dict[str, float]]:
        """Return the reliability curve of the content words of the captions."""
        captions, *_ = self._encoded["captions"]
        ranked = self._rank(matcher, "captions", self.photos)
        stems = captions.stems[captions.keys[captions.content]].tolist()
        scores = calibration.probability(ranked.scores[captions.content][:, None], stems)[:, 0]
        return reliability(scores, concept_hits(captions, ranked))

    def _text(self, matcher: TokenImageMatcher, calibration: Probability | None) -> dict[str, Any]:
        """Return how many photos the words of the text get, and how often a noun's fits."""
        captions, *_ = self._encoded["text"]
        ranked = self._rank(matcher, "text", self._text_photos)
        top = ranked.top
        texts = self._parts["text"]
        share = np.unique(top, return_counts=True)[1] / max(1, len(top))
        hits = list[bool]()
        places = list[int]()
        stems = list[str]()
        lines = list[int]()
        holders = list[set[int]]()
        for sentence, row in enumerate(captions.rows.tolist() if len(top) else []):
            first = int(captions.tokens.starts[sentence])
            spans = captions.tokens.row(sentence)[1]
            place = {start: first + j for j, start in enumerate(spans[:, 0].tolist())}
            parse = texts.parses[row]
            for (start, end), tag in zip(parse.spans, parse.tags, strict=True):
                if tag == "NOUN" and start in place:
                    stems.append(stem_key(texts.texts[row][start:end], self._language))
                    held = self._stems.get(stems[-1], set())
                    hits.append(int(top[place[start]]) in held)
                    places.append(place[start])
                    lines.append(row)
                    holders.append(held)
        # The lines of a running text have no photos, so they are resampled themselves.
        over = Bootstrap(np.array(lines, np.int64))
        at = np.array(places, np.int64)
        scores = ranked.scores[at]
        more: dict[str, Any] = {}
        if calibration is not None:
            scores = calibration.probability(scores[:, None], stems)[:, 0]
            more = {"reliability": reliability(scores, np.array(hits, bool))}
        return {
            "tokens": len(top),
            "images": len(self._text_photos),
            "distinct": len(share),
            # e to the entropy: as many photos would be as diverse if they were used evenly.
            "effective": round(float(np.exp(-(share * np.log(share)).sum()))),
            "nouns": len(hits),
            "noun_hit": _percent(hits),
            **_by_score(hits, scores),
            "chance": _percent([len(held) / len(self._text_photos) for held in holders]),
            **_without_the_word(top[at], holders),
            "interval": {"noun_hit": over.interval(np.array(hits, bool), np.array(lines))},
            **more,
        }


def untrained(matcher: TokenImageMatcher) -> TokenImageMatcher:
    """Return a network of the same shape with random weights, a control."""
    device = next(matcher.parameters()).device
    # The caller's random state stays as it was, and the control is the same in every call.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return TokenImageMatcher(matcher.config).to(device).eval()


def _percent(values: Sequence[float] | Array) -> float:
    """Return the mean in percent, 0 of nothing."""
    return round(100 * float(np.mean(values)), 2) if len(values) else 0.0


def _without_the_word(found: Array, holders: Sequence[set[int]]) -> dict[str, float]:
    """Return in percent how many of n words hit with photos that do not depend on the word.

    Args:
        found: (n,) the photo that each word gets.
        holders: for each word, the photos with it in a caption.

    Returns:
        "best_voken": one photo for all words, the photo that is right for most of these very words.
        "permuted": the words' photos in another order, the mean over all n! orders.
    """
    right = Counter(photo for held in holders for photo in held)
    size = max(1, len(holders))
    dealt = sum(right[photo] for photo in found.tolist())
    return {
        "best_voken": round(100 * max(right.values(), default=0) / size, 2),
        # Over all orders each photo meets each word equally often, so the mean is a product and
        # nothing need be drawn.
        "permuted": round(100 * dealt / size**2, 2),
    }


def _by_score(hits: Sequence[bool], scores: Array) -> dict[str, float]:
    """Return in percent how many of the nouns with the best and the worst scores hit.

    A meaningful score makes the best nouns better than all nouns, so that --min-score keeps them.
    Among equal scores the first in the text come first.
    """
    order = np.argsort(-scores, kind="stable")
    sorted_hits = np.array(hits, bool)[order]
    size = len(hits)
    return {
        "best_half": _percent(sorted_hits[: -(-size // 2)]),
        "best_quarter": _percent(sorted_hits[: -(-size // 4)]),
        "worst_quarter": _percent(sorted_hits[size - -(-size // 4) :]),
    }


def _holders(rows: Rows, words: Sequence[Sequence[str]]) -> dict[str, set[int]]:
    """Return the photos whose captions hold each word, in lower case."""
    holders: dict[str, set[int]] = {}
    for (image, _), held in zip(rows, words, strict=False):  # Without a parser there are no words.
        for word in held:
            holders.setdefault(word.lower(), set()).add(image)
    return holders


def _stem_holders(captions: MatcherCaptions) -> list[set[int]]:
    """Return the photos whose captions hold each stem."""
    first, keys, _ = captions.holds
    holders = [set[int]() for _ in captions.stems]
    for photo, (start, end) in enumerate(pairwise(first.tolist())):
        for key in keys[start:end].tolist():
            holders[key].add(photo)
    return holders


def _visual_spans(phrases: Sequence[Any], path: str, line: int) -> Spans:
    """Return the spans of phrases that show something."""
    spans = Spans()
    for number, phrase in enumerate(phrases, 1):
        match phrase:
            case {"start": int(start), "end": int(end)}:
                if "notvisual" not in str(phrase.get("type")):
                    spans.append((start, end))
            case _:
                expected = 'expected "start" and "end" in characters'
                why = f"phrase {number}: {expected}, got {phrase!r:.60}"
                raise DataError(why, path, line)
    return spans


def _encode(
    texts: EvaluatedTexts, encoder: Encoder, packed: PackedEncoder, watch: Any, language: str
) -> Encoded:
    """Read texts with an encoder, and find the word of each token."""
    captions, left_out = tokenize_captions(
        texts.texts,
        texts.images,
        encoder.tokenizer,
        encoder.max_tokens,
        load_stop_words(language=language),
        language,
    )
    if not len(captions.images):
        raise DataError("no text holds a token; there is nothing to evaluate")
    if any(left_out.values()):
        empty = amount(left_out["empty"], "caption")
        why = f"{empty} without a token left out, {left_out['cut']} cut to {encoder.max_tokens}"
        note("evaluate-matcher", f"{why} tokens")
    states = HiddenStates(packed, captions.tokens, _BUDGET, watch)
    tags = list[str]()
    lemmas = list[str]()
    nouns = list[int]()
    for sentence, row in enumerate(captions.rows.tolist() if texts.parses else []):
        parse = texts.parses[row]
        spans = captions.tokens.row(sentence)[1].tolist()
        words = _words(parse, spans)
        if texts.phrases:
            nouns += [len(tags) + j for j in _nouns(parse, words, spans, texts.phrases[row])]
        tags += [parse.tags[word] if word >= 0 else "" for word in words]
        lemmas += [parse.lemmas[word].lower() if word >= 0 else "" for word in words]
    return Encoded(captions, states, np.array(tags), lemmas, np.array(nouns, np.int64))


def _words(parse: Parse, spans: Spans) -> list[int]:
    """Return the word that each token starts in, -1 outside words."""
    owner = {at: word for word, (start, end) in enumerate(parse.spans) for at in range(start, end)}
    return [owner.get(start, -1) for start, _ in spans]


def _nouns(parse: Parse, words: list[int], spans: Spans, phrases: Spans) -> Iterator[int]:
    """Yield the first token of each noun inside a phrase that has a lemma."""
    before = -1
    for token, (word, (start, end)) in enumerate(zip(words, spans, strict=True)):
        # A noun of several tokens counts once, at its first token.
        noun = word not in (before, -1) and parse.tags[word] in ("NOUN", "PROPN")
        if noun and parse.lemmas[word] and any(a <= start and end <= b for a, b in phrases):
            yield token
        before = word
