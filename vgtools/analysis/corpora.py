"""The make-up of corpora, how visually grounded they are, and how diverse vokens are.

Source: Tan & Bansal 2020 (Vokenization), section 2.3, Table 1, appendix A.2 and A.7.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import islice
from typing import Any

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, TextStats
from vgtools.io.process import Progress
from vgtools.io.streams import read_texts, read_windows
from vgtools.io.written import manifest_beside
from vgtools.text.blocks import open_packed
from vgtools.text.ngrams import Counts, NewIds, PairCounts, Vocabulary, count, jsd, jsd_pairs
from vgtools.text.tokens import load_stop_words
from vgtools.text.vokens import is_packed, parse_rows

GROUNDED_ABOVE = 100  # a grounded type occurs more often than this in the captions (section 2.3)

# ---------------------------------------------------------------------------------------- grounding


def content_types(
    names: Sequence[str], stop_words: frozenset[str] | None = None, punctuation: bool = False
) -> Array:
    """Return which types have a letter or digit and are not stop words: (V,) bool.

    A piece is compared without the mark of a word's start or end (`Ġthe`, CLIP's `the</w>`), not
    without its `##`: the paper counts `##k` and `##l` as types.

    Args:
        names: the type of each id.
        stop_words: lower-case words; our own list if None.
        punctuation: types without letter or digit are also content.

    Source: Tan & Bansal 2020 (Vokenization), section 2.3, "after removing all stop words", which
    leaves open whether punctuation marks remain. XDBERT's appendix D puts them among the stop
    words.
    """
    stop = load_stop_words() if stop_words is None else stop_words
    bare = (name.lstrip("Ġ▁").removesuffix("</w>") for name in names)
    plain = (name.lower().replace("’", "'") for name in bare)
    content = ((punctuation or any(map(str.isalnum, name))) and name not in stop for name in plain)
    return np.fromiter(content, bool, len(names))


@dataclass(frozen=True)
class GroundedTypes:
    """The visually grounded types, estimated from captions.

    Source: Tan & Bansal 2020 (Vokenization), section 2.3: more than 100 occurrences in MS COCO,
    stop words removed.
    """

    counts: Array  # (V,) how often each type occurs in the captions
    above: int = GROUNDED_ABOVE

    def types(self, content: Array) -> Array:
        """Return the ids of grounded types, the most frequent first.

        Args:
            content: (>= V,) the result of `content_types` for all ids.
        """
        ids = np.flatnonzero((self.counts > self.above) & content[: len(self.counts)])
        return ids[np.argsort(-self.counts[ids], kind="stable")]

    def ratio(self, unigrams: Array, content: Array, content_only: bool = False) -> float | None:
        """Return the share of a text's tokens whose type is grounded; None where it has no token.

        Args:
            unigrams: (W,) counts of the text by id.
            content: (>= W,) the result of `content_types` for all ids.
            content_only: count only tokens that are neither stop words nor punctuation, as in
                XDBERT's appendix D.

        Source: section 2.3 (all tokens); XDBERT (Hsu et al. 2022), appendix D (without stop words).
        """
        # Types that were first met after this text was counted have no place in its counts.
        ids = self.types(content)
        hits = int(unigrams[ids[ids < len(unigrams)]].sum())
        counted = unigrams[content[: len(unigrams)]] if content_only else unigrams
        total = int(counted.sum())
        return hits / total if total else None


# ------------------------------------------------------------------------------------------ corpora


@dataclass
class CorpusStats:
    """Records of corpora against one reference and captions, each of which is counted once.

    Raises:
        DataError: a text cannot be read or holds no token, or captions ground nothing.
    """

    types: Vocabulary  # the definition of a token
    stop_words: frozenset[str] | None = None  # lower-case words; our own list if None
    reference: str | None = None  # corpus to measure the divergence from
    captions: str | None = None  # text that decides which types are grounded
    _: KW_ONLY
    base: str = "2"  # base of the divergence's logarithm: 2, e or 10
    above: int = GROUNDED_ABOVE  # a grounded type occurs more often than this in the captions
    content_only: bool = False  # ratio among the content tokens, not all tokens
    punctuation: bool = False  # punctuation marks also count as content
    memory: int = 1 << 30  # bytes for the 2-gram counts of one corpus
    limit: int | None = None  # most lines read of each text
    keep: Sequence[str] = ()  # corpora that will be asked for
    stats: TextStats | None = None  # counts lines and replaced bytes
    progress: Progress | None = None  # advances by tokens

    def __post_init__(self) -> None:
        self._content = np.zeros(0, bool)
        self._kept = dict[str, Counts]()
        reference = self.reference
        captions = self.captions
        # Only the divergence needs 2-grams; captions alone are counted without them to save memory.
        paired = () if reference is None else (reference, *self.keep)
        for name in dict.fromkeys(n for n in (captions, reference) if n is not None):
            counts = self._kept[name] = self._count(name, pairs=name in paired)
            if not counts.tokens:
                raise DataError("holds no tokens", name)
        self.grounding: GroundedTypes | None = None
        if captions is not None:
            self.grounding = GroundedTypes(self._kept[captions].unigrams, self.above)
            if not len(self.grounding.types(self.content)):
                why = f"no word but stop words occurs more than {self.above} times, so nothing"
                why += " would be grounded; name more captions or lower --grounded-above"
                raise DataError(why, captions)

    @property
    def content(self) -> Array:
        """Which of the types met so far are content: (V,) bool."""
        names = self.types.names()
        if len(self._content) < len(names):
            unknown = names[len(self._content) :]
            content = content_types(unknown, self.stop_words, self.punctuation)
            self._content = np.concatenate([self._content, content])
        return self._content

    def _count(self, name: str, pairs: bool) -> Counts:
        sentences = islice(read_texts(name, self.stats), self.limit)
        counter = PairCounts(self.memory) if pairs else None
        return count(sentences, self.types, counter, self.progress)

    def _counts(self, name: str, pairs: bool) -> Counts:
        return self._kept.get(name) or self._count(name, pairs)

    def record(self, name: str) -> dict[str, Any]:
        """Return the row of Table 1 of one corpus; a measure that is undefined for it is None."""
        counts = self._counts(name, pairs=self.reference is not None)
        return {
            "corpus": name,
            "tokenizer": self.types.name,
            "tokens": counts.tokens,
            "sentences": counts.sentences,
            "empty_lines": counts.empty,
            "types": counts.types,
            "vocabulary": counts.vocabulary,
            "tokens_per_sentence": counts.tokens / counts.sentences if counts.sentences else None,
            **self._divergence(counts),
            **self._grounding(counts),
        }

    def _divergence(self, counts: Counts) -> dict[str, Any]:
        if self.reference is None:
            return {}
        other = self._kept[self.reference]
        assert counts.pairs is not None
        assert other.pairs is not None
        paired = counts.pairs.total and other.pairs.total
        return {
            "reference": self.reference,
            "jsd_base": self.base if self.base == "e" else int(self.base),
            "jsd_1": jsd(counts.unigrams, other.unigrams, self.base) if counts.tokens else None,
            "jsd_2": jsd_pairs(counts.pairs, other.pairs, self.base) if paired else None,
        }

    def _grounding(self, counts: Counts) -> dict[str, Any]:
        if self.grounding is None:
            return {}
        ratio = self.grounding.ratio(counts.unigrams, self.content, self.content_only)
        return {
            "captions": self.captions,
            "grounded_above": self.grounding.above,
            "grounded_types": len(self.grounding.types(self.content)),
            "grounded_punctuation": self.punctuation,
            "grounding_of": "content tokens" if self.content_only else "all tokens",
            "grounding_ratio": ratio,
        }

    def grounded_types(self, corpora: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Return each grounded type with its counts in the captions and in each of the corpora.

        The most frequent in the captions comes first.
        """
        assert self.grounding is not None, "needs captions"
        counts = {name: self._counts(name, pairs=False).unigrams for name in corpora}
        names = self.types.names()
        rows = list[dict[str, Any]]()
        for number in self.grounding.types(self.content).tolist():
            row: dict[str, Any] = {
                "type": names[number],
                "count": int(self.grounding.counts[number]),
            }
            if corpora:
                # A corpus that was counted before the others has no place for their types.
                row["in"] = {name: int(c[number : number + 1].sum()) for name, c in counts.items()}
            rows.append(row)
        return rows


# ---------------------------------------------------------------------------------- voken diversity


def diversity(
    path: str, progress: Progress | None = None, memory: int = 1 << 30, limit: int | None = None
) -> dict[str, Any]:
    """Return how many different images the tokens of voken rows got, in all and per token type.

    A type is the lower-case text of a token's span, or its id in the packed form. If a token has k
    vokens, the first counts.

    Args:
        path: voken rows (`.jsonl`, `-`, compressed) or packed `.npy`.

    Returns:
        tokens, with_voken; images_covered; images_effective, e to the entropy of the images'
        shares; types; and max, mean and (population) standard deviation of the number of images
        per type.

    Raises:
        DataError: a row is not a voken row, or the file is damaged.
    """
    pairs = PairCounts(memory)
    images = _Tally()
    tokens = 0
    for types, vokens in _packed(path, limit) if is_packed(path) else _rows(path, limit):
        tokens += len(vokens)
        kept = vokens >= 0
        pairs.add(types[kept], vokens[kept])
        images.add(vokens[kept])
        if progress is not None:
            progress.advance(len(vokens))
    types_met = _Tally()
    for first, _, _ in pairs.blocks():
        types_met.add(first.astype(np.int64))
    per_type = types_met.counts
    shares = images.counts / max(1, pairs.total)
    entropy = -(shares * np.log(shares)).sum()
    return {
        "vokens": path,
        "tokens": tokens,
        "with_voken": pairs.total,
        "images_covered": len(shares),
        "images_effective": float(np.exp(entropy)) if len(shares) else 0.0,
        "types": len(per_type),
        "images_per_type": {
            "max": int(per_type.max(initial=0)),
            "mean": float(per_type.mean()) if len(per_type) else 0.0,
            "std": float(per_type.std()) if len(per_type) else 0.0,
        },
    }


class _Tally:
    """How often each number was met; memory grows with different numbers, not with large ones."""

    def __init__(self) -> None:
        self.numbers = np.zeros(0, np.int64)  # sorted
        self.counts = np.zeros(0, np.int64)

    def add(self, numbers: Array) -> None:
        """Count (N,) int64."""
        new, times = np.unique(numbers, return_counts=True)
        self.numbers, place = np.unique(np.concatenate([self.numbers, new]), return_inverse=True)
        counts = np.zeros(len(self.numbers), np.int64)
        np.add.at(counts, place, np.concatenate([self.counts, times]))
        self.counts = counts


def _packed(path: str, limit: int | None) -> Iterator[tuple[Array, Array]]:
    """Yield token ids and vokens of a packed file, both int64."""
    for part in open_packed(path):
        array = part.tokens
        if limit is not None:
            array = array[: int(part.ends[:limit].max(initial=0))]
            limit = max(0, limit - len(part.ends))
        for start in range(0, len(array), 1 << 20):
            block = np.asarray(array[start : start + (1 << 20)], np.int64)
            if block[:, 0].min() < 0:
                at = start + int(block[:, 0].argmin())
                raise DataError(f"has the token id {array[at, 0]} at token {at}", path)
            yield block[:, 0], block[:, 1]


def _rows(path: str, limit: int | None) -> Iterator[tuple[Array, Array]]:
    """Yield ids of lower-case token texts and vokens of voken rows, both int64."""
    ids = NewIds()
    manifest_beside(path)
    for window in read_windows(path, 2048, limit=limit):
        rows = parse_rows(window.lines, path, window.first).rows
        types = [ids[row["text"][start:end].lower()] for row in rows for start, end in row["spans"]]
        vokens = [v[0] if isinstance(v, list) else v for row in rows for v in row["vokens"]]
        yield np.array(types, np.int64), np.array(vokens, np.int64)
