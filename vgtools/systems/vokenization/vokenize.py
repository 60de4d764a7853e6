"""Vokenization (Tan & Bansal 2020), section 3.1: every token gets the most relevant image.

    v(w_i; s) = argmax_x r(w_i, x; s)

The matcher is in `matcher.py`, section 3.3 in `revokenize.py`; here is the stream from text to
vokens. The vokens of a sentence do not depend on its neighbours, the window or the batch, up to
rounding: the encoder runs each segment at its own length and products over whole tiles of rows
(`TILE` in `vgtools.models.packed` describes where even the rounding is the same), and the search is
exact (`vgtools.retrieval`).
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit
from vgtools.io.names import public
from vgtools.io.output import Output
from vgtools.io.process import cores
from vgtools.io.splits import inherited, is_held_out, split_of
from vgtools.io.streams import Piece, Window, read_windows
from vgtools.io.windows import growing_windows as growing_windows
from vgtools.io.windows import pipelined
from vgtools.models.devices import to_device
from vgtools.models.dual import Logits, is_dual, load_dual
from vgtools.models.encoder import Encoder, load_encoder
from vgtools.models.packed import Hidden, PackedEncoder
from vgtools.models.references import check_same
from vgtools.retrieval.index import Index, bare_index, check_embeddings, matcher_path
from vgtools.systems.vokenization.calibration import Calibration, PairProbability, Probability
from vgtools.systems.vokenization.dual import (
    READING,
    DualEmbedding,
    DualStates,
    Reading,
    fingerprint_of,
)
from vgtools.systems.vokenization.matcher import TokenImageMatcher, at_context, load_matcher
from vgtools.systems.vokenization.states import StateEmbedding, open_states
from vgtools.text.tokens import (
    Tokens,
    WindowTokenizer,
    check_language,
    row_starts,
    split_window,
    tokenize,
    tokenizer_fingerprint,
    word_stems,
)
from vgtools.text.vokens import VokenWriter

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_TOKENIZING = 4  # helpers: more than search and the encoder of one GPU can keep up with
_SEARCH = 16384  # queries per call: a call costs little, and a stop is noticed between calls
_HELD = 1 << 28  # bytes of queries held at a time: more than a usual window's
_SAMPLE = 128  # sentences on which the agreement of a low-precision encoder is measured


@dataclass(frozen=True)
class Matcher:
    """A trained matcher with the text encoder that it reads, or a dual encoder."""

    matcher: TokenImageMatcher  # eval mode, float32
    encoder: Encoder
    info: dict[str, Any]  # run.json; a dual encoder has "backbone" alone
    ref: str
    fingerprint: str  # hash of the matcher's weights, the encoder's and the tokenizer
    reading: Reading | None = None  # how a dual encoder reads tokens
    logits: Logits | None = None  # a dual encoder has them

    @property
    def language(self) -> str:
        """The language of its captions, as their stems are; English for a dual encoder.

        Raises:
            DataError: the run names one that is not known (65).
        """
        return language_of(self.info, Path(self.ref) / "run.json")

    def calibration(self) -> Probability | None:
        """Return how a relevance becomes a probability, if the matcher has learned it.

        A CLIP has not: its softmax compares pictures, so that the probability of one would fall
        with every picture of the same thing that a bank has.

        Raises:
            DataError: it is damaged in the run (65).
        """
        if self.logits is not None and self.logits.bias is not None:
            return PairProbability(self.logits.scale, self.logits.bias)
        return Calibration.of(self.info, Path(self.ref) / "run.json")

    def packed(self, pack: int | None = None, *, sentence: bool = True) -> PackedEncoder:
        """Return the encoder for states of tokens; `sentence`: whether its term is needed."""
        if self.reading is None:
            return PackedEncoder(self.encoder, self.matcher.config.layers, pack)
        return DualStates(self.encoder, self.reading, sentence, pack)


def language_of(info: Mapping[str, Any], file: str | Path) -> str:
    """Return the language of a matcher's captions; "en" for a dual encoder, which names none.

    Raises:
        DataError: it is not one of `LANGUAGES` (65).
    """
    return check_language(info.get("config", {}).get("language", "en"), file)


def open_matcher(
    path: str | Path, *, device: str = "cpu", dtype: str = "float32", reading: Reading | None = None
) -> Matcher:
    """Load a run of `vg train-matcher` with its encoder, or a dual encoder.

    `dtype` is the encoder's; the matcher itself keeps float32.

    Raises:
        DataError: not there or not finished (66); damaged, or the encoder in it is not the one it
            was trained with (65); a reading, which a trained matcher learns (78); or `load_dual`'s.
    """
    if is_dual(str(path)):
        dual = load_dual(str(path), device=device, dtype=dtype)
        info = {"backbone": dict(dual.backbone)}
        embedding = DualEmbedding(dual).eval()
        sha256 = fingerprint_of(dual)
        how = reading or READING
        return Matcher(embedding, dual.texts, info, str(path), sha256, how, dual.logits)
    if reading is not None:
        why = f"was trained to read tokens; --reading {reading} belongs to a CLIP and its kin"
        raise DataError(why, path, code=Exit.CONFIG)
    matcher, run = load_matcher(path, device=device)
    encoder = load_encoder(str(path), device=device, dtype=dtype, states=True)
    file = run.path / "run.json"
    trained = run.info.get("encoder", {})
    # A folder can be edited by hand, and another encoder would give wrong vokens without any error.
    check_same("encoder", {"ref": str(path), "fingerprint": encoder.fingerprint}, trained, file)
    config = matcher.config
    if config.text_width != config.layers * encoder.width or config.layers > encoder.layers:
        why = f'"matcher": expected text_width {config.layers * encoder.width} of its encoder'
        why += f" ({encoder.layers} layers of width {encoder.width}), got {config.text_width}"
        raise DataError(why, file)
    given = {"ref": "tokenizer.json", "fingerprint": tokenizer_fingerprint(encoder.tokenizer)}
    expected = {"ref": trained.get("ref"), "fingerprint": trained.get("tokenizer")}
    check_same("tokenizer", given, expected, file)
    return Matcher(matcher, encoder, run.info, str(path), run.fingerprint)


def with_context(matcher: Matcher, weight: float | None) -> Matcher:
    """Return the matcher with a weight of the sentence term; None keeps the run's weight.

    Raises:
        DataError: it has no sentence term (78).
    """
    if weight is None:
        return matcher
    try:
        return dataclasses.replace(matcher, matcher=at_context(matcher.matcher, weight))
    except ValueError as error:
        way_out = "train one with vg train-matcher --sentence"
        if isinstance(matcher.matcher, StateEmbedding):
            way_out = "the clusters decide it: vg prepare clusters --context"
        why = f"{error} (--context {weight:g}); {way_out}"
        raise DataError(why, matcher.ref, code=Exit.CONFIG) from None


def at_level(matcher: Matcher, level: str) -> Matcher:
    """Return a dual encoder that searches with tokens, or with sentences."""
    other = copy.copy(matcher.matcher)
    other.config = dataclasses.replace(other.config, level=level)
    return dataclasses.replace(matcher, matcher=other)


class Segments(NamedTuple):
    """Pieces of sentences that fit the encoder; the tokens from `keep` to `keep_end` count."""

    starts: Array  # (S,) int64, first token of the segment in the flat ids
    lengths: Array  # (S,) int64
    keep: Array  # (S,) int64, counted from the segment's first token
    keep_end: Array  # (S,) int64


class VokenQueries(NamedTuple):
    """The queries of some tokens."""

    vectors: torch.Tensor  # (Q, E) unit vectors on the encoder's device
    owner: Array  # (T,) int64: the query that each token searches with
    places: Array  # (T,) int64: where in the flat ids each token is


def _joined(parts: Sequence[VokenQueries]) -> VokenQueries:
    # Owners count the queries of their own part, so they are shifted by the queries of the parts
    # before.
    bases = row_starts(len(part.vectors) for part in parts)
    return VokenQueries(
        torch.cat([part.vectors for part in parts]),
        np.concatenate([part.owner + base for part, base in zip(parts, bases, strict=False)]),
        np.concatenate([part.places for part in parts]),
    )


class Vokens(NamedTuple):
    """The vokens of a window of sentences."""

    texts: Sequence[str]
    tokens: Tokens
    vokens: Array  # (T, k) int32, -1 without
    scores: Array  # (T, k) float32 relevance or probability, four decimals

    def rows(self, given: Sequence[Mapping[str, Any]] | None = None) -> list[dict[str, Any]]:
        """Return one row per sentence, in order; with k > 1 the entries are lists of k.

        Args:
            given: the rows of the input, whose "split" is kept.
        """
        vokens = self.vokens
        scores = self.scores
        if vokens.shape[1] == 1:
            vokens = vokens[:, 0].copy()
            scores = scores[:, 0].copy()
        edges = self.tokens.starts.tolist()
        splits = repeat({}, len(self.texts)) if given is None else map(split_of, given)
        return [
            {
                "text": text,
                "spans": self.tokens.spans[a:b],
                "vokens": vokens[a:b],
                "scores": scores[a:b],
                **split,
            }
            for text, (a, b), split in zip(self.texts, pairwise(edges), splits, strict=True)
        ]


def segment(starts: Array, max_tokens: int) -> Segments:
    """Cut sentences that are too long for the encoder into overlapping segments.

    Every token is kept exactly once.

    Args:
        starts: (R + 1,) row starts of R sentences; an empty sentence has no segment.
        max_tokens: most tokens of a segment, special tokens not counted.
    """
    lengths = np.diff(starts)
    long = lengths > max_tokens
    # Nearly all sentences fit, so they are taken together and only the long ones cut in Python.
    first = starts[:-1][(lengths > 0) & ~long]
    size = lengths[(lengths > 0) & ~long]
    pieces = [
        (start + a, b - a, keep - a, keep_end - a)
        for start, length in zip(starts[:-1][long].tolist(), lengths[long].tolist(), strict=True)
        for a, b, keep, keep_end in split_window(length, max_tokens)
    ]
    extra = np.array(pieces, np.int64).reshape(-1, 4).T
    plain = np.stack([first, size, np.zeros_like(size), size])
    return Segments(*np.concatenate([plain, extra], axis=1))


class Vokenizer:
    """Gives the tokens of sentences their vokens.

    Args:
        matcher: as `open_matcher` returns it.
        index: the image bank, embedded by this very matcher.
        k: images per token.
        min_score: score below which a token has no voken (-1): a probability where the matcher is
            calibrated, else a relevance.
        pack: tokens per step of the encoder; halved when memory runs out.
        context_weight: weight of the sentence term; None takes the index's weight, else the run's.

    Raises:
        DataError: the index was not embedded by this matcher; both sides are printed. Or the
            matcher has no sentence term to weigh.
    """

    def __init__(
        self,
        matcher: Matcher,
        index: Index,
        *,
        k: int = 1,
        min_score: float | None = None,
        pack: int | None = None,
        context_weight: float | None = None,
    ) -> None:
        dim = matcher.matcher.config.dim
        if index.manifest["dim"] != dim:
            raise DataError(
                f"has dimension {index.manifest['dim']}, the matcher {matcher.ref} has {dim}",
                index.path,
            )
        if context_weight is None:
            # The weight chosen when the index was built holds wherever the index is used.
            context_weight = index.manifest.get("matcher", {}).get("context_weight")
        self.context_weight = context_weight
        self.matcher = with_context(matcher, context_weight)
        self.index = index
        self.k = k
        self.min_score = min_score
        self.calibration = matcher.calibration()
        self.language = matcher.language
        config = self.matcher.matcher.config
        needed = config.level == "sentence" or config.context_weight > 0
        self.encoder = matcher.packed(pack, sentence=needed)
        self.index.to(self.encoder.device)
        self._cancelled = threading.Event()

    def at(self, k: int, min_score: float | None, context_weight: float | None) -> Vokenizer:
        """Return the same networks with other settings; a weight of None stays.

        Raises:
            DataError: the matcher has no sentence term to weigh.
        """
        other = copy.copy(self)
        other.k = k
        other.min_score = min_score
        if context_weight is not None:
            other.matcher = with_context(self.matcher, context_weight)
            other.context_weight = context_weight
            if self.matcher.reading is not None:  # the weight decides its states
                other.encoder = other.matcher.packed(self.encoder.pack, sentence=context_weight > 0)
        return other

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the matcher's encoder."""
        return self.matcher.encoder.tokenizer

    @property
    def helpers(self) -> int:
        """Processes that tokenise: a GPU reads more tokens than one of them gives."""
        return min(_TOKENIZING, cores() - 1) if self.encoder.device.type == "cuda" else 0

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Return the tokens of sentences, special tokens left out."""
        return tokenize(self.tokenizer, texts)

    def embed(self, tokens: Tokens) -> Iterator[VokenQueries]:
        """Yield the query embeddings of sentences, some packs of the encoder at a time.

        This way memory does not grow with the sentences, of which long ones have millions of
        tokens. For a matcher of level `token` each token is a query; for level `sentence` each
        segment is, and its tokens share it (appendix A.4).
        """
        matcher = self.matcher.matcher
        pieces = segment(tokens.starts, self.matcher.encoder.max_tokens)
        by_token = matcher.config.level == "token"
        most = _HELD // (4 * matcher.config.dim)
        held = list[VokenQueries]()
        for hidden in self.encoder(tokens.ids, pieces.starts, pieces.lengths):
            self._check()
            places, kept = self._places(pieces, hidden)
            lengths = pieces.lengths[hidden.segments]
            if by_token:
                sizes = to_device(lengths, self.encoder.device)
                # All tokens of a segment are embedded, because the sentence term is their mean; the
                # overlap is dropped only afterwards.
                embedded = matcher.embed_tokens(hidden.tokens, sizes)
                vectors = embedded[to_device(kept, self.encoder.device)]
                owner = np.arange(len(kept))
            else:
                vectors = matcher.embed_sentences(hidden.first)
                owner = np.repeat(np.arange(len(lengths)), lengths)[kept]
            held.append(VokenQueries(vectors, owner, places[kept]))
            if sum(len(part.places) for part in held) >= most:
                yield _joined(held)
                held = []
        if held:
            yield _joined(held)

    @staticmethod
    def _places(pieces: Segments, hidden: Hidden) -> tuple[Array, Array]:
        """Return for each hidden row its place in the flat ids, and the rows that count."""
        lengths = pieces.lengths[hidden.segments]
        position = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        keep, end, start = (
            np.repeat(a[hidden.segments], lengths)
            for a in (pieces.keep, pieces.keep_end, pieces.starts)
        )
        return start + position, np.flatnonzero((position >= keep) & (position < end))

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str], tokens: Tokens | None = None) -> Vokens:
        """Return the vokens of sentences; special tokens are neither searched nor in the result."""
        tokens = self.tokenize(texts) if tokens is None else tokens
        # No entry stays unset, because every token is kept by exactly one segment.
        rows = np.empty((len(tokens.ids), self.k), np.int32)
        scores = np.empty((len(tokens.ids), self.k), np.float32)
        for vectors, owner, places in self.embed(tokens):
            found, relevance = self._search(vectors)
            rows[places] = found[owner]
            scores[places] = relevance[owner]
        if self.calibration is not None:
            stems = word_stems(texts, tokens, self.language)
            # A list that ends early has no image at its end, which is not probable at all.
            scores = np.where(rows < 0, 0, self.calibration.probability(scores, stems))
        if self.min_score is not None:
            below = scores < self.min_score
            rows[below] = -1
            scores[below] = 0
        # Rounded last: `min_score` is compared with the scores as they were computed.
        return Vokens(texts, tokens, rows, np.round(scores, 4, out=scores))

    def _search(self, queries: torch.Tensor) -> tuple[Array, Array]:
        """Return rows and relevance, (Q, k), of (Q, E) queries."""
        parts = list[tuple[Array, Array]]()
        for start in range(0, len(queries), _SEARCH):
            self._check()
            parts.append(self.index.search(queries[start : start + _SEARCH], self.k))
        rows, scores = zip(*parts, strict=True)
        return np.concatenate(rows), np.concatenate(scores)

    def cancel(self) -> None:
        """Make work in another thread end soon."""
        self._cancelled.set()

    def _check(self) -> None:
        if self._cancelled.is_set():
            raise InterruptedError


def vokenize(
    windows: Iterable[Window],
    vokenizer: Vokenizer | Any,
) -> Generator[tuple[Window, Vokens], None, None]:
    """Return each window with its vokens, in order.

    The next windows are read, tokenised and computed meanwhile.

    Args:
        windows: windows of input lines.
        vokenizer: does the work, a `Vokenizer` or a `TermFrequency`.

    Source: Tan & Bansal 2020 (Vokenization), section 3.1.
    """

    def compute(prepared: tuple[Sequence[str], Tokens]) -> Vokens:
        return vokenizer(*prepared)  # type: ignore[no-any-return]

    prepare = WindowTokenizer(vokenizer.tokenizer)
    return pipelined(windows, prepare, compute, vokenizer.cancel, vokenizer.helpers)


def load_for(
    index: Index,
    run: str | None = None,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    level: str | None = None,
    reading: Reading | None = None,
) -> Matcher:
    """Load the matcher that embedded an index, from the path in the index's manifest or from `run`.

    Args:
        index: its manifest names the run, as a path from the index's own folder, and the
            fingerprint.
        run: a run directory, if it has moved.
        device: as `--device`.
        dtype: as `--dtype`.
        level: the level to insist on, if any; a dual encoder has both.
        reading: how a dual encoder reads tokens.

    Raises:
        DataError: the run is not there (66), it is not the run that the index was built with (65;
            both fingerprints are printed), or trained for another level (78).
    """
    path = matcher_path(index, run)
    named = index.manifest["matcher"]
    if "clusters" in index.manifest:
        if reading is not None:
            why = f"holds clusters of states; --reading {reading} belongs to a CLIP and its kin"
            raise DataError(why, index.path, code=Exit.CONFIG)
        encoder = load_encoder(path, device=device, dtype=dtype, states=True)
        embedding, fingerprint = open_states(index, encoder)
        matcher = Matcher(embedding, encoder, {}, path, fingerprint)
    else:
        matcher = open_matcher(path, device=device, dtype=dtype, reading=reading)
    check_same("matcher", named, {"run": path, "fingerprint": matcher.fingerprint}, index.path)
    if matcher.reading is not None:
        return at_level(matcher, level or "token")
    trained = matcher.matcher.config.level
    if level not in (None, trained):
        raise DataError(
            f"was trained with --level {trained}, expected --level {level}; train one with vg "
            f"train-matcher --level {level}",
            path,
            code=Exit.CONFIG,
        )
    return matcher


class VokenizeTask:
    """How texts get their vokens: the work of a command, on a whole text or on a shard of it."""

    config: dict[str, Any]  # the settings that decide the vokens
    inputs: Sequence[str] = ()  # files that are read in addition to the index and the text
    worker: Any  # the `Vokenizer`, or the worker used instead
    searched = True  # False: vokens are drawn
    agreed: float | None = None  # agreement with the float32 encoder, on a sample

    def windows(self, pieces: Sequence[Piece], state: Mapping[str, Any]) -> Iterator[Window]:
        """Return the windows of pieces of the input, after the state of the rows written."""
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        """Return facts about a worker that is done, for the manifest."""
        raise NotImplementedError

    def open(self, path: str, output: Callable[..., Any] = Output) -> VokenWriter:
        """Return the writer of vokens; `output` opens its files."""
        return VokenWriter(path, self.config, output)

    def steps(self, pieces: Sequence[Piece], out: VokenWriter) -> Generator[int, None, None]:
        """Write the vokens of pieces of the input and finish; yield the tokens of each step."""
        # Once per process, because it takes a second encoder: only the first shard has it.
        measured = self.searched and self.config["dtype"] != "float32" and self.agreed is None
        windows = self.windows(pieces, out.state)
        made_of = inherited({piece.path for piece in pieces})
        with closing(vokenize(windows, self.worker)) as steps:  # Closing ends its threads.
            for step, done in steps:
                if measured and self.agreed is None and len(done.tokens.ids):
                    some = np.flatnonzero(np.diff(done.tokens.starts))[:_SAMPLE].tolist()
                    self.agreed = agreement(self.worker, [done.texts[row] for row in some])
                counts = {"replaced": step.replaced} if self.searched else {}
                # The packed form has no "split": its manifest counts the rows to refuse.
                given = step.rows()
                if held_out := sum(map(is_held_out, given)):
                    counts["held_out"] = held_out
                out.write(done.rows(given), done.tokens.ids, step, **counts)
                out.commit(step.digest)
                yield len(done.tokens.ids)
        facts = self.facts()
        if self.searched:
            facts["agreement_with_float32"] = self.agreed if measured else None
        out.finish(**made_of, **facts)


class SearchWork(VokenizeTask):
    """The search for vokens.

    Args:
        worker: does it.
        index: the files of the bank, as the manifest calls them.
        window: lines per step; fewer where each token gets several images.
        limit: stop after this many lines.
        dtype: type of the encoder.
    """

    def __init__(
        self, worker: Vokenizer, index: Sequence[str], window: int, limit: int | None, dtype: str
    ) -> None:
        bank = worker.index
        self.worker = worker
        self.config = {
            "command": "vokenize",
            "index_sha256": bank.manifest["files"],
            "matcher": worker.matcher.fingerprint,
            "context_weight": worker.matcher.matcher.config.context_weight,
            "level": worker.matcher.matcher.config.level,
            "k": worker.k,
            "min_score": worker.min_score,
            "dtype": dtype,
            "device": worker.encoder.device.type,
            "limit": limit,
            **({"search": bank.approximate} if bank.approximate else {}),
            **_reading_of(worker.matcher),
        }
        # Where the run has it, scores are probabilities; the weights are without it.
        if calibration := worker.matcher.info.get("calibration"):
            stored = json.dumps(calibration, sort_keys=True)
            self.config["calibration"] = hashlib.sha256(stored.encode()).hexdigest()
        self._index = index
        self._window = window

    def windows(self, pieces: Sequence[Piece], state: Mapping[str, Any]) -> Iterator[Window]:
        """Return growing windows: the first ones are small, so that the first vokens come soon."""
        lines = read_windows(pieces, min(64, self._window), state, self.config["limit"])
        return growing_windows(lines, max(1, self._window // self.worker.k))

    def facts(self) -> dict[str, Any]:
        """Return facts about the search."""
        matcher = self.worker.matcher
        bank = self.worker.index
        sha256 = tokenizer_fingerprint(matcher.encoder.tokenizer)
        index = [*map(public, self._index)]
        return {
            "index": index[0] if len(index) == 1 else index,
            "matcher": bank.manifest["matcher"],
            "count": bank.count,
            "level": matcher.matcher.config.level,
            "k": self.worker.k,
            **_reading_of(matcher),
            "pack": self.worker.encoder.pack,
            **({} if self.worker.calibration is None else {"score": "probability"}),
            "tokenizer": {"ref": public(matcher.ref), "sha256": sha256},
        }


def _reading_of(matcher: Matcher) -> dict[str, Any]:
    """Return how a dual encoder reads tokens, and the scale and bias of its logits."""
    if matcher.logits is None:
        return {}
    known = {name: value for name, value in matcher.logits._asdict().items() if value is not None}
    return {"reading": matcher.reading, "logits": known}


def agreement(vokenizer: Vokenizer, texts: Sequence[str]) -> float:
    """Return the share of the tokens with the same vokens as with the float32 encoder.

    That encoder is loaded for this. The texts must have a token.
    """
    index = vokenizer.index
    used = vokenizer.matcher
    device = str(vokenizer.encoder.device)
    level = used.matcher.config.level
    loaded = load_for(index, used.ref, device=device, reading=used.reading, level=level)
    tokens = vokenizer.tokenize(texts)
    weight = vokenizer.context_weight
    exact = Vokenizer(loaded, index, min_score=vokenizer.min_score, context_weight=weight)
    vokens, expected = (v(texts, tokens).vokens[:, 0] for v in (vokenizer, exact))
    return float((vokens == expected).mean())


def embed_bank(
    matcher: Matcher, feats: Array, ids: Sequence[str], file: str | None = None
) -> Callable[[Array], Array]:
    """Return a function that embeds rows of (N, D) image features: (n,) rows -> (n, E) float32.

    Equal features get equal embeddings.

    Raises:
        DataError: another feature width than the matcher's; and later an embedding that is NaN,
            infinite or zero; both are named.
    """
    config = matcher.matcher.config
    device = next(matcher.matcher.parameters()).device
    if feats.ndim != 2 or feats.shape[1] != config.image_width:
        raise DataError(
            f"features have shape {feats.shape}, the matcher {matcher.ref} takes (images, "
            f"{config.image_width})",
            file,
        )

    @torch.inference_mode()
    def embed(rows: Array) -> Array:
        block = torch.from_numpy(np.array(feats[rows], np.float32)).to(device)
        emb: Array = matcher.matcher.embed_images(block).cpu().numpy()
        check_embeddings(emb, ids, rows, file)
        return emb

    return embed


def vocabulary_queries(matcher: Matcher, count: int = 2048) -> Array:
    """Return (Q, E) embeddings of words of the tokenizer's own vocabulary, each as a sentence.

    This text is always at hand.
    """
    vocabulary = matcher.encoder.tokenizer.get_vocab()
    words = sorted(word for word in vocabulary if word.isalpha() and len(word) > 2)
    # Every n-th word of the sorted list is taken: a sample over the whole alphabet, the same each
    # time.
    texts = words[:: max(1, len(words) // count)][:count]
    dim = matcher.matcher.config.dim
    worker = Vokenizer(matcher, bare_index(dim))
    with torch.inference_mode():
        parts = [
            part.vectors.float().cpu().numpy() for part in worker.embed(worker.tokenize(texts))
        ]
    return np.concatenate([np.zeros((0, dim), np.float32), *parts])
