"""A dual encoder (CLIP, SigLIP and their kin) in the place of a matcher, without training.

Such a model embeds whole texts. A token's embedding is read in one of two ways: from its own last
state in the sentence, through the norm and the projection of the text's (`state`), or from its word
alone, in a template (`word`). The embedding of the sentence is added with a weight.

Axes: T tokens, S segments, E width of the space.

Deviation: not in Tan & Bansal 2020, whose matcher (section 3.2) is trained.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vgtools.io.arrays import Array
from vgtools.io.artifact import Features, origin_of
from vgtools.io.errors import DataError
from vgtools.models.devices import to_device
from vgtools.models.dual import DualEncoder
from vgtools.models.encoder import Encoder
from vgtools.models.packed import Hidden, PackedEncoder
from vgtools.models.references import check_same
from vgtools.systems.vokenization.matcher import TokenImageMatcher
from vgtools.systems.vokenization.recipe import MatcherConfig
from vgtools.text.tokens import tokenizer_fingerprint

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Reading = Literal["state", "word"]
# Measured with a small CLIP on Flickr8k, for want of published weights: the word in its template
# finds a fitting photo for 44 percent of nouns, the token's own state for 38 at its best weight
# (examples/vokenization/NOTES.md).
READING: Reading = "word"
CONTEXT = 0.5
_TEMPLATE = "a photo of a"  # Radford et al. 2021 (CLIP), section 3.1.4
_WORDS = 1 << 17  # distinct words whose embeddings are kept
_SPACES = ("▁", "Ġ")  # at the start of an entry: a space comes before it
_PARTS = 2  # a token's state holds its own embedding and its sentence's


class DualEmbedding(TokenImageMatcher):
    """The text and image embeddings of a dual encoder with the face of a trained matcher.

    Args:
        dual: as `load_dual` returns it.

    Source: Radford et al. 2021 (CLIP), section 2.3: cosines of projected states.
    """

    def __init__(self, dual: DualEncoder) -> None:
        nn.Module.__init__(self)  # It has none of a matcher's layers.
        width = dual.texts.width
        self.config = MatcherConfig(
            text_width=_PARTS * width,
            image_width=dual.image_width,
            dim=width,
            layers=_PARTS,
            context_weight=CONTEXT,
        )
        self.photos = nn.Identity() if dual.photos is None else dual.photos
        self.context = nn.Sequential()  # It has a sentence term, which `DualStates` computes.
        # Whoever asks a matcher for its device looks at its parameters.
        here = torch.zeros(0, device=dual.texts.model.device)
        self.here = nn.Parameter(here, requires_grad=False)

    def embed_tokens(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Return (T, E) unit vectors of the states of `DualStates`, (T, 2 E)."""
        own, sentence = hidden.float().tensor_split(_PARTS, dim=1)
        return F.normalize(own + self.config.context_weight * sentence, dim=1)

    def project_tokens(self, hidden: Tensor, means: Tensor, rows: Tensor) -> Tensor:
        """Return (T, E) unit vectors; each row of `hidden` holds its sentence's embedding."""
        return self.embed_tokens(hidden, rows)

    def embed_sentences(self, first: Tensor) -> Tensor:
        """Return (S, E) unit vectors of the states before each segment, (S, 2 E)."""
        return F.normalize(first.float().tensor_split(_PARTS, dim=1)[1], dim=1)

    def embed_images(self, feats: Tensor) -> Tensor:
        """Return (N, E) unit vectors of image features (N, D)."""
        return F.normalize(self.photos(feats.float()).float(), dim=1)


def check_own(
    matcher: TokenImageMatcher, features: Features, backbone: Mapping[str, Any] | None, file: str
) -> None:
    """Refuse image features of another backbone than a matcher's, or not in a dual encoder's space.

    Raises:
        DataError: they are another model's, or pooled in another way (65).
    """
    check_same("backbone", features.made_by, backbone, file)
    if "pooling" in (backbone or {}):
        check_same("backbone", features.backbone, origin_of(backbone or {}), file)
    pooling = features.manifest.get("pooling")
    in_space = isinstance(matcher, DualEmbedding) and isinstance(matcher.photos, nn.Identity)
    if in_space and pooling not in ("own", "none"):
        why = f"is pooled by the {pooling}, expected the model's own embeddings"
        raise DataError(f"{why}; extract it with --pooling own", file)


def fingerprint_of(dual: DualEncoder) -> str:
    """Return the identity of a dual encoder as a matcher: networks, tokenizer, padding."""
    parts = dual.fingerprint + tokenizer_fingerprint(dual.texts.tokenizer)
    return hashlib.sha256(f"{parts} {dual.texts.model.padding}".encode()).hexdigest()


class DualStates(PackedEncoder):
    """The states of tokens: an embedding of its own, and its sentence's, (T, 2 E).

    Args:
        encoder: text side of a dual encoder.
        reading: how a token's own embedding is read.
        sentence: whether the sentence's is needed; else it may be 0.
        pack: as for `PackedEncoder`.
    """

    def __init__(
        self,
        encoder: Encoder,
        reading: Reading = READING,
        sentence: bool = True,
        pack: int | None = None,
    ) -> None:
        super().__init__(dataclasses.replace(encoder, layers=_PARTS), _PARTS, pack)
        self.packed = True
        self._runs_sentences = sentence or reading == "state"
        self._by_word = reading == "word"
        self._shared = 0  # tokens at the start of all texts that are computed once
        if self._by_word:
            self._vocabulary = _Vocabulary.of(encoder.tokenizer)
            # A Chinese model has not learned an English template.
            chinese = encoder.model.config.model_type.startswith("chinese")
            text = "" if chinese else _TEMPLATE
            self._template = encoder.tokenizer.encode(text, add_special_tokens=False).ids
            self._known: dict[bytes, int] = {}
            self._table = torch.zeros((0, encoder.width), device=self.device)

    def __call__(self, ids: Array, starts: Array, lengths: Array) -> Iterator[Hidden]:
        """Yield the states of segments; see `PackedEncoder.__call__`."""
        if not self._by_word:
            yield from super().__call__(ids, starts, lengths)
            return
        # Words are looked for in the segments, which may be a few out of many sentences.
        first, end = (int(starts.min()), int((starts + lengths).max())) if len(starts) else (0, 0)
        ids = ids[first:end]
        starts = starts - first
        rows = torch.from_numpy(self._word_rows(ids, starts, lengths)).to(self.device)
        for hidden in self._segments(ids, starts, lengths):
            sizes = lengths[hidden.segments]
            begins = np.cumsum(sizes) - sizes
            places = np.arange(sizes.sum()) + np.repeat(starts[hidden.segments] - begins, sizes)
            own = F.embedding(rows[torch.from_numpy(places).to(self.device)], self._table)
            sentence = hidden.tokens[:, self.encoder.width :]
            yield hidden._replace(tokens=torch.cat([own.to(sentence.dtype), sentence], dim=1))

    def _segments(self, ids: Array, starts: Array, lengths: Array) -> Iterator[Hidden]:
        """Yield the states of segments, of which the words' part is filled in later."""
        if self._runs_sentences:
            yield from super().__call__(ids, starts, lengths)
            return
        width = _PARTS * self.encoder.width
        ends = np.cumsum(lengths)
        cuts = np.searchsorted(ends, np.arange(self.pack, ends[-1] if len(ends) else 0, self.pack))
        for part in np.split(np.arange(len(lengths)), cuts):
            count = int(lengths[part].sum())
            sizes = ((count, width), (len(part), width))
            yield Hidden(part, *(torch.zeros(size, device=self.device) for size in sizes))

    def _fit(self, totals: Array) -> int:
        return super()._fit(totals - self._shared)

    def _forward(self, tokens: Array, position: Array, runs: list[tuple[int, int]]) -> list[Tensor]:
        model = self.encoder.model
        counts, sizes = np.array(runs).T
        lengths = np.repeat(sizes, counts)
        if not model.can_pack(tokens, lengths.cumsum() - 1):
            return self._model_forward(tokens, runs)
        both = to_device(np.stack([tokens, position]), self.device)
        # A word's own part is filled in later: whole texts are enough.
        found = model.packed(*both, runs, self._shared, self._by_word)
        tokens_of = torch.from_numpy(lengths).to(self.device)
        ends = tokens_of.cumsum(0) - 1
        whole = (found if self._by_word else found[ends]).repeat_interleave(tokens_of, 0)
        return [whole if self._by_word else found, whole]

    def _outputs(self, batch: Tensor) -> Sequence[Tensor]:
        own, whole = self.encoder.model(batch)
        return own, whole[:, None].expand_as(own)

    def _word_rows(self, ids: Array, starts: Array, lengths: Array) -> Array:
        """Return the row of `_table` with the embedding of each token's word, (T,) int64."""
        if len(self._known) > _WORDS:
            self._known = {}
            self._table = self._table[:0]
        words, sizes = self._vocabulary.words(ids, starts, lengths)
        new = [word for word in dict.fromkeys(words) if word not in self._known]
        self._known |= {word: len(self._known) + i for i, word in enumerate(new)}
        if new:
            self._table = torch.cat([self._table, self._embedded(new)])
        return np.repeat(np.array([self._known[word] for word in words], np.int64), sizes)

    def _embedded(self, words: Sequence[bytes]) -> Tensor:
        """Return the embeddings of words in the template, (W, E)."""
        room = self.encoder.max_tokens
        texts = [[*self._template, *np.frombuffer(word, np.int32)][:room] for word in words]
        lengths = np.array([len(text) for text in texts])
        flat = np.array([i for text in texts for i in text], np.int32)
        found = self._table.new_empty(len(words), self.encoder.width)
        if self.encoder.model.is_causal:
            self._shared = len(self.encoder.prefix) + min(len(self._template), room)
        try:
            for hidden in super().__call__(flat, np.cumsum(lengths) - lengths, lengths):
                rows = torch.from_numpy(hidden.segments).to(self.device)
                found[rows] = hidden.first[:, self.encoder.width :].to(found.dtype)
        finally:
            self._shared = 0
        return found


class _Vocabulary(NamedTuple):
    """Which entries of a vocabulary start or end a word, each by id."""

    opens: Array  # bool: it starts a word
    closes: Array  # bool: it ends one
    spaced: Array  # int32: the same entry after a space

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> _Vocabulary:
        vocabulary = tokenizer.get_vocab()
        size = max(vocabulary.values(), default=0) + 1
        found = cls(np.zeros(size, bool), np.zeros(size, bool), np.arange(size, dtype=np.int32))
        # Any vocabulary may have an entry that looks like one of another kind's.
        model: Any = tokenizer.model
        end = getattr(model, "end_of_word_suffix", None)  # CLIP: </w>
        middle = getattr(model, "continuing_subword_prefix", None)  # BERT: ##
        for token, i in vocabulary.items():
            if end:
                found.closes[i] = token.endswith(end)
            elif middle:
                found.opens[i] = not token.startswith(middle)
            else:
                found.opens[i] = token.startswith(_SPACES)
                found.spaced[i] = vocabulary.get(_SPACES[0] + token, i)
        return found

    def words(self, ids: Array, starts: Array, lengths: Array) -> tuple[list[bytes], Array]:
        """Return the words of flat ids, as bytes of their own ids, and the tokens of each."""
        begins = self.opens[ids]
        begins[:1] = True
        begins[1:] |= self.closes[ids[:-1]]
        # The segments of a long sentence overlap; a sentence starts, and ends, outside all others.
        inside = np.zeros(len(ids) + 1, np.int64)
        some = lengths > 0
        np.add.at(inside, starts[some] + 1, 1)
        np.add.at(inside, starts[some] + lengths[some], -1)
        crossed = inside.cumsum()
        first = starts[some][crossed[starts[some]] == 0]
        ends = (starts + lengths)[some]
        begins[first] = True
        begins[ends[(crossed[ends] == 0) & (ends < len(ids))]] = True
        edges = np.flatnonzero(begins)
        flat = ids.astype(np.int32)
        flat[first] = self.spaced[flat[first]]
        sizes = np.diff(np.append(edges, len(ids)))
        raw = flat.tobytes()
        spans = zip(edges, edges + sizes, strict=True)
        return [raw[4 * a : 4 * b] for a, b in spans], sizes
