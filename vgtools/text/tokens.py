"""Text as spans: tokenise, align two tokenisations by span IoU, cut long sentences, find words.

A span is (start, end) in code points of the raw sentence, end exclusive. Many sentences travel
together as flat arrays: `spans` (T, 2) for all tokens of all rows, and `starts` (R + 1,) where row
i owns `spans[starts[i] : starts[i + 1]]`.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit
from vgtools.io.streams import Window, read_lines
from vgtools.text.pieces import PieceTable, piece_table

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def tokenizer_fingerprint(tokenizer: Tokenizer) -> str:
    """Return the sha256 of the tokenizer's full serialised form."""
    return hashlib.sha256(tokenizer.to_str().encode()).hexdigest()


def special_ids(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the ids that the tokenizer puts before and after a sentence: `([CLS], [SEP])`."""
    encoded = tokenizer.encode("a")
    inner = [i for i, special in enumerate(encoded.special_tokens_mask) if not special]
    if not inner:
        return encoded.ids, []
    return encoded.ids[: inner[0]], encoded.ids[inner[-1] + 1 :]


PAD_TOKENS = ("[PAD]", "<pad>")
MASK_TOKENS = ("[MASK]", "<mask>")
# By each role, the tokens that have it in the families of encoders, the usual ones first.
_ROLES = {
    "pad": (*PAD_TOKENS, "<|endoftext|>"),
    "bos": ("<s>", "<bos>", "<|startoftext|>"),
    "eos": ("</s>", "<eos>", "<|endoftext|>"),
    "unk": ("[UNK]", "<unk>", "<|endoftext|>"),
    "mask": MASK_TOKENS,
}


def token_of(tokenizer: Tokenizer, names: Sequence[str]) -> str | None:
    """Return the first token of several names; special ones come before all others.

    MPNet's vocabulary still has the `[MASK]` of BERT, whose vocabulary it was, but its own `<mask>`
    alone is special.
    """
    special = _special_tokens(tokenizer).values()
    found = [name for name in names if tokenizer.token_to_id(name) is not None]
    return next((name for name in found if name in special), found[0] if found else None)


def _special_tokens(tokenizer: Tokenizer) -> dict[int, str]:
    """Return the tokens that a tokenizer marks as special, by id."""
    added = tokenizer.get_added_tokens_decoder()
    return {number: one.content for number, one in added.items() if one.special}


def settings_for_transformers(
    tokenizer: Tokenizer,
    longest: int | None = None,
    padding: int | None = None,
    segments: bool = False,
) -> dict[str, Any]:
    """Return the settings with which transformers takes a tokenizer as its file has it.

    Without them, it builds another tokenizer, by the type of the model next to it.

    Args:
        tokenizer: the one in `tokenizer.json`.
        longest: most tokens of a text that the model reads, special ones included.
        padding: the model's id of padding, which counts where it is of a special token.
        segments: whether the model reads the segments of two texts.
    """
    names = {f"{role}_token": token_of(tokenizer, names) for role, names in _ROLES.items()}
    special = _special_tokens(tokenizer)
    before, after = special_ids(tokenizer)
    marks = {*special.values(), *map(tokenizer.id_to_token, (*before, *after))}
    for name in ("bos_token", "eos_token"):  # a word of BERT's may be spelt like them
        if names[name] not in marks:
            names[name] = None
    # transformers' own default, 0, may be the token that starts a text.
    if padding in special and padding not in before:
        names["pad_token"] = special[padding]
    if before and after:
        names["cls_token"] = tokenizer.id_to_token(before[0])
        names["sep_token"] = tokenizer.id_to_token(after[0])
    read = ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"]
    # transformers 4 takes it for false where it is not stated.
    blank = getattr(tokenizer.pre_tokenizer, "add_prefix_space", False)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name: token for name, token in names.items() if token is not None},
        "model_input_names": read,
        **({"add_prefix_space": True} if blank else {}),
        **({} if longest is None else {"model_max_length": longest}),
    }


_flat = chain.from_iterable


class Tokens(NamedTuple):
    """The tokens of R sentences, special tokens left out."""

    ids: Array  # (T,) int32
    spans: Array  # (T, 2) int32, code points of each token's own raw sentence
    starts: Array  # (R + 1,) int64

    def row(self, i: int) -> tuple[Array, Array]:
        """Return ids and spans of row i."""
        part = slice(self.starts[i], self.starts[i + 1])
        return self.ids[part], self.spans[part]


# By code point; the last entry is for all code points above those listed.
_SPACES = np.array([chr(c).isspace() for c in range(0x3001)] + [False])


def tokenize(tokenizer: Tokenizer, texts: Sequence[str]) -> Tokens:
    """Tokenise sentences without special tokens; spans mean the same for every tokenizer.

    Spans refer to the raw text whatever the normaliser did (accents, case, NFKC), corrected in
    three ways: white space at either end is not part of a token (`Ġthe`, `▁the`), so a lone space
    is an empty span; a `▁` that was added before the sentence is also empty; the bytes of an
    unknown character each have that character as their span.

    Args:
        tokenizer: any fast tokenizer, padding and truncation off.
        texts: R raw sentences; the library takes 200 bytes per code point.

    Raises:
        ValueError: the tokenizer pads or truncates.

    Source: Tan & Bansal 2020 (Vokenization), section 3.3, "their ranges in the raw sentence".
    Deviation: the published code counts the space before a byte-level BPE token as part of it.
    """
    if tokenizer.padding is not None or tokenizer.truncation is not None:
        way_out = "call no_padding() and no_truncation() on it first"
        raise ValueError(f"the tokenizer pads or truncates; {way_out}")
    words = _piece_table(tokenizer, tokenizer.get_vocab_size())
    return _encoded(tokenizer, texts) if words is None or not texts else Tokens(*words(texts))


@dataclass(frozen=True)
class WindowTokenizer:
    """Gives the texts of windows and their tokens; it can be pickled."""

    tokenizer: Tokenizer

    def __call__(self, window: Window) -> tuple[Sequence[str], Tokens]:
        """Return R texts and their tokens.

        Raises:
            DataError: as `Window.texts`.
        """
        texts = window.texts()
        return texts, tokenize(self.tokenizer, texts)


@lru_cache(maxsize=8)
def _piece_table(tokenizer: Tokenizer, size: int) -> PieceTable | None:
    """Return the table of the tokenizer's words, if it can have one.

    The size of the vocabulary is part of the cache's key because tokens can be added.
    """
    return piece_table(tokenizer, partial(_encoded, tokenizer))


def _encoded(tokenizer: Tokenizer, texts: Sequence[str]) -> Tokens:
    """Return the tokens of texts by the library."""
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    starts = row_starts(map(len, encodings))
    total = int(starts[-1])
    ids = np.fromiter(_flat(e.ids for e in encodings), np.int32, total)
    offsets = _flat(_flat(e.offsets for e in encodings))
    spans = np.fromiter(offsets, np.int32, 2 * total).reshape(-1, 2)
    _correct(tokenizer, texts, ids, spans, starts)
    return Tokens(ids, spans, starts)


def row_starts(counts: Iterable[int]) -> Array:
    """Return (R + 1,) int64 row starts from the R rows' token counts."""
    sizes = np.fromiter(counts, np.int64)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def _codes(texts: Sequence[str]) -> tuple[Array, Array]:
    """Return the code points of all texts, a line end after each, and where each text starts."""
    # With a line end after each text, an empty span at its end has a code point to look at as well.
    codes = np.frombuffer(("\n".join(texts) + "\n").encode("utf-32-le"), "<u4")
    return codes, row_starts(len(t) + 1 for t in texts)[:-1]


def _correct(
    tokenizer: Tokenizer, texts: Sequence[str], ids: Array, spans: Array, starts: Array
) -> None:
    """Correct the library's offsets in place, so that they mean the same for every tokenizer."""
    if not len(ids):
        return
    codes, bases = _codes(texts)
    base = np.repeat(bases, np.diff(starts))
    first, last = spans[:, 0], spans[:, 1]
    is_marker, byte = _vocabulary_types(tokenizer, tokenizer.get_vocab_size())
    entries = np.minimum(ids, len(is_marker) - 1)
    # SentencePiece puts its mark for a space also before a sentence without one: there, the library
    # gives the mark the span of the letter after it.
    for i in np.flatnonzero(is_marker[entries] & (last > first)):
        if not {0x2581, 0x120}.intersection(codes[base[i] + first[i] : base[i] + last[i]].tolist()):
            last[i] = first[i] = last[i] if _is_space(codes[base[i] + first[i]]) else first[i]
    fallback = np.flatnonzero((byte[entries] >= 0) & (last - first > 1))
    if len(fallback):
        rows = np.searchsorted(starts, fallback, "right")
        _split_bytes(codes, base, byte[entries], spans, fallback, rows)
    head = np.flatnonzero((last > first) & _is_space(codes[base + first]))
    tail = np.flatnonzero((last > first) & _is_space(codes[base + last - 1]))
    if len(head) or len(tail):
        solid = np.concatenate([[-1], np.flatnonzero(~_is_space(codes)), [len(codes)]])
        after = solid[np.searchsorted(solid, base[head] + first[head])] - base[head]
        first[head] = np.minimum(after, last[head])
        before = solid[np.searchsorted(solid, base[tail] + last[tail]) - 1] + 1 - base[tail]
        last[tail] = np.maximum(before, first[tail])


def _is_space(codes: Array) -> Array:
    return _SPACES[np.minimum(codes, len(_SPACES) - 1)]


@lru_cache(maxsize=8)
def _vocabulary_types(tokenizer: Tokenizer, size: int) -> tuple[Array, Array]:
    """Return for each id whether it is only space marks, and the byte it encodes (`<0xE2>`) or -1.

    The size of the vocabulary is part of the cache's key because tokens can be added.
    """
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    count = max(vocabulary.values(), default=0) + 2  # one more entry, for unknown ids
    is_marker = np.zeros(count, bool)
    byte = np.full(count, -1, np.int16)
    for token, number in vocabulary.items():
        if token and not token.strip("▁Ġ"):
            is_marker[number] = True
        elif len(token) == 6 and re.fullmatch("<0x[0-9A-F]{2}>", token):
            byte[number] = int(token[3:5], 16)
    return is_marker, byte


def _split_bytes(
    codes: Array, base: Array, byte: Array, spans: Array, tokens: Array, rows: Array
) -> None:
    """Give each byte token of an unknown run the span of its own character, in place.

    The library gives all of them the span of the whole run.
    """
    key = np.column_stack([rows, spans[tokens]])
    cuts = np.flatnonzero((np.diff(tokens) != 1) | (np.diff(key, axis=0) != 0).any(1)) + 1
    for run in np.split(tokens, cuts):
        start, end = spans[run[0]].tolist()
        offset = base[run[0]]
        raw = codes[offset + start : offset + end].astype("<u4").tobytes().decode("utf-32-le")
        # Where a normaliser changed the run, the bytes are not the raw text's, and the span of the
        # whole run is all that is known.
        if raw.encode() == bytes(byte[run].tolist()):
            character = np.repeat(np.arange(start, end), [len(c.encode()) for c in raw])
            spans[run] = np.column_stack([character, character + 1])


_PAIRS = 1 << 18  # pairs of spans compared at a time: bounds the memory


def span_iou_align(
    source: Array, source_starts: Array, target: Array, target_starts: Array
) -> Array:
    """Return for each target token the source token of its row with the largest span IoU.

    Source spans may be unsorted, nested, repeated or empty. The result is exact (equal to the
    arg-max in fractions) for sentences below 2**26 code points.

    Args:
        source: (S, 2) spans.
        source_starts: (R + 1,) row starts of the source.
        target: (T, 2) spans.
        target_starts: (R + 1,) row starts of the target, for the same R rows.

    Returns:
        (T,) int64, counted from the row's first source token; ties go to the first; -1 where
        nothing overlaps.

    Source: Tan & Bansal 2020 (Vokenization), section 3.3: ind(j) = argmax_i IoU(w_i, u_j).
    """
    best = np.full(len(target), -1, np.int64)
    if not len(source) or not len(target):
        return best
    # Rows are laid one after the other on one line, so that one search serves all of them.
    width = 1 + max(int(source[:, 1].max()), int(target[:, 1].max()))
    s_row = np.repeat(np.arange(len(source_starts) - 1), np.diff(source_starts))
    t_row = np.repeat(np.arange(len(target_starts) - 1), np.diff(target_starts))
    s = source + s_row[:, None] * width
    t = target + t_row[:, None] * width
    order = np.flatnonzero(s[:, 1] > s[:, 0])  # empty spans overlap nothing
    if not len(order):
        return best
    if (np.diff(s[order, 0]) < 0).any():
        order = order[np.argsort(s[order, 0], kind="stable")]
    start, end = s[order].T
    # Sources before `low` end before the target starts, `low` itself does not; those from `high` on
    # start after its end. Ends of nested spans are in no order; their running maximum is in order.
    low = np.searchsorted(np.maximum.accumulate(end), t[:, 0], "right")
    high = np.where(t[:, 1] > t[:, 0], np.searchsorted(start, t[:, 1], "left"), low)
    one = high - low == 1
    best[one] = order[low[one]]
    many = np.flatnonzero(high - low > 1)
    pairs = np.cumsum((high - low)[many])
    total = int(pairs[-1]) if len(many) else 0
    cuts = np.searchsorted(pairs, np.arange(_PAIRS, total, _PAIRS))
    for part in np.split(many, cuts):
        if len(part):
            best[part] = _best_of_many(start, end, order, t[part], low[part], high[part])
    return np.where(best >= 0, best - source_starts[t_row], -1)


def _best_of_many(
    start: Array, end: Array, order: Array, t: Array, low: Array, high: Array
) -> Array:
    """Return each target's best source among candidates low…high - 1, ties to the lowest."""
    count = high - low
    heads = np.cumsum(count) - count
    candidate = np.arange(int(count.sum())) + np.repeat(low - heads, count)
    t_start, t_end = np.repeat(t, count, axis=0).T
    s_start = start[candidate]
    s_end = end[candidate]
    overlap = np.maximum(np.minimum(s_end, t_end) - np.maximum(s_start, t_start), 0)
    # Two different fractions of lengths below 2**26 differ by more than 2**-52: their quotients
    # differ, equal ones do not.
    iou = overlap / (t_end - t_start + s_end - s_start - overlap)
    top = np.maximum.reduceat(iou, heads)
    index = np.where(iou == np.repeat(top, count), order[candidate], np.iinfo(np.int64).max)
    return np.asarray(np.minimum.reduceat(index, heads))


def split_window(n_tokens: int, max_tokens: int) -> list[tuple[int, int, int, int]]:
    """Cut a long sentence into windows with context, so that each token is kept exactly once.

    Args:
        n_tokens: length of the sentence, special tokens not counted.
        max_tokens: maximum length of a window, special tokens not counted.

    Returns:
        (start, end, keep_start, keep_end) of each window, all positions in the sentence. The kept
        tokens have a quarter of `max_tokens` of context on either side, except at the ends of the
        sentence. Without tokens there are no windows.

    Source: Tan & Bansal 2020 (Vokenization), section 3.1.
    Deviation: the published code cuts into equal pieces without context, so tokens at a cut lose
    half of theirs.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
    windows = list[tuple[int, int, int, int]]()
    margin = max_tokens // 4
    # Two margins are at most half of a window: each window keeps a token, and the loop ends.
    keep = 0
    while keep < n_tokens:
        start = max(0, min(keep - margin, n_tokens - max_tokens))
        end = min(start + max_tokens, n_tokens)
        keep_end = n_tokens if end == n_tokens else end - margin
        windows.append((start, end, keep, keep_end))
        keep = keep_end
    return windows


WORD = re.compile(r"\w(?:[\w'’-]*\w)?|[^\w\s]")  # a word of a sentence, or a mark by itself


NLTK = "nltk"  # instead of a file of stop words: the list of NLTK, which its package lacks


# The languages with stop words and stems, by the names that NLTK and stop-words have for them.
LANGUAGES = {
    "ar": "arabic",
    "da": "danish",
    "de": "german",
    "en": "english",
    "es": "spanish",
    "fi": "finnish",
    "fr": "french",
    "hu": "hungarian",
    "it": "italian",
    "nl": "dutch",
    "no": "norwegian",
    "pt": "portuguese",
    "ro": "romanian",
    "ru": "russian",
    "sv": "swedish",
}


def check_language(language: object, file: str | Path | None = None) -> str:
    """Return a language that is one of `LANGUAGES`.

    Raises:
        DataError: it is not (usage; 65 if a file names it).
    """
    if isinstance(language, str) and language in LANGUAGES:
        return language
    why = f"the language {language!r:.40} is not one of {', '.join(LANGUAGES)}"
    raise DataError(why, file, code=Exit.USAGE if file is None else Exit.DATA)


def load_stop_words(path: str | Path | None = None, language: str = "en") -> frozenset[str]:
    """Return the words of a file in lower case.

    The file has one word per line; by default it is our short list of English words that cannot be
    shown, with contractions whole and, for text like WikiText ("did n't"), in parts; for another
    language the list of the package `stop-words`. `nltk` is the list of NLTK, read from where its
    downloader put it.

    Source: Sileo 2021, footnote 6, names NLTK's list.
    Deviation: ours is the default, as NLTK does not install its own.

    Raises:
        DataError: the file cannot be read, or NLTK's list is not on this machine (66) or not UTF-8.
    """
    name = LANGUAGES[check_language(language)]
    lines: Iterable[str]
    if path == NLTK:
        lines = _nltk_list(name)
    elif path is None and language != "en":
        from stop_words import get_stop_words

        lines = get_stop_words(name)
    else:
        lines = read_lines(path or _OWN)
    words = (line.strip().lower().replace("’", "'") for line in lines)
    return frozenset(filter(None, words))


_OWN = Path(__file__).with_name("stop_words.txt")


def _nltk_list(name: str) -> list[str]:
    from nltk.data import find

    try:
        file = find(f"corpora/stopwords/{name}")
    except LookupError:
        why = "NLTK's stop words are not on this machine; python -m nltk.downloader stopwords gets"
        way_out = "them once, NLTK_DATA names their folder, and a file of words does as well"
        raise DataError(f"{why} {way_out}", code=Exit.NO_INPUT) from None
    with file.open() as opened:
        data: bytes = opened.read()
    try:
        return data.decode().splitlines()
    except UnicodeDecodeError:
        why = "is not UTF-8: expected a word per line; python -m nltk.downloader stopwords gets it"
        raise DataError(why, str(file)) from None


@cache
def _default_stop_words() -> frozenset[str]:
    return load_stop_words()


def word_spans(texts: Sequence[str], spans: Array, starts: Array) -> Array:
    """Return the span of the whole word that each token is part of.

    A word is a longest run of letters, digits, combining marks, underscores, and apostrophes
    between them.

    Args:
        texts: R raw sentences.
        spans: (T, 2) token spans.
        starts: (R + 1,) row starts.

    Returns:
        (T, 2) int32; an empty span where the token has no part of a word.
    """
    if not len(spans):
        return np.zeros((0, 2), np.int32)
    codes, bases = _codes(texts)
    base = np.repeat(bases, np.diff(starts))
    word = _in_words(codes)
    position = np.arange(len(codes))
    # From each position on: the next word character, and the next other one (each text ends with a
    # line end).
    next_word = np.minimum.accumulate(np.where(word, position, len(codes) - 1)[::-1])[::-1]
    next_gap = np.minimum.accumulate(np.where(word, len(codes), position)[::-1])[::-1]
    last_gap = np.maximum.accumulate(np.where(word, -1, position))
    at = next_word[base + spans[:, 0]]
    inside = at < base + spans[:, 1]
    begin = last_gap[at] + 1 - base
    end = next_gap[at] - base
    return np.where(inside[:, None], np.column_stack([begin, end]), spans[:, :1]).astype(np.int32)


def _in_words(codes: Array) -> Array:
    """Return which code points are part of a word in the sense of `word_spans`."""
    common = _common_in_words()
    word = common[np.minimum(codes, len(common) - 1)]
    rare = np.flatnonzero(codes >= len(common))
    distinct, inverse = np.unique(codes[rare], return_inverse=True)
    word[rare] = np.array([_in_word(c) for c in distinct.tolist()], bool)[inverse]
    apostrophe = (codes == 0x27) | (codes == 0x2019)
    word[1:-1] |= apostrophe[1:-1] & word[:-2] & word[2:]
    return word


def _in_word(code: int) -> bool:
    return code == 0x5F or unicodedata.category(chr(code))[0] in "LNM"


@cache
def _common_in_words() -> Array:
    """Return for the code points of Latin, Greek and Cyrillic whether they are part of a word."""
    return np.array([_in_word(code) for code in range(0x500)])


def word_runs(texts: Sequence[str]) -> tuple[Array, Array]:
    """Return the words of texts, each as in `word_spans`.

    Returns:
        (W, 2) int32 spans of all words, and (R + 1,) int64 row starts.
    """
    if not texts:
        return np.zeros((0, 2), np.int32), np.zeros(1, np.int64)
    codes, bases = _codes(texts)
    word = np.zeros(len(codes) + 2, bool)
    word[1:-1] = _in_words(codes)
    edges = np.flatnonzero(word[1:] != word[:-1]).reshape(-1, 2)
    starts = np.append(np.searchsorted(edges[:, 0], bases), len(edges))
    spans = edges - np.repeat(bases, np.diff(starts))[:, None]
    return spans.astype(np.int32), starts


def hidden_words(texts: Sequence[str], spans: Array, starts: Array) -> tuple[Array, Array]:
    """Return the word of each token, and the number of the words that are hidden with it.

    Words that share a token are hidden together, because it shows letters of each of them. Such are
    words with a soft hyphen between them, which a normaliser removes.

    Args:
        texts: R raw sentences.
        spans: (T, 2) token spans.
        starts: (R + 1,) row starts.

    Returns:
        (T,) int64 place in `word_runs` of the first word that the token has a part of; and (T,)
        int64 numbers, in each sentence from 0 on; both -1 where it has a part of none.
    """
    runs, edges = word_runs(texts)
    row = np.repeat(np.arange(len(texts)), np.diff(starts))
    # One line of characters for all sentences, with a gap after each.
    bases = row_starts(len(text) + 1 for text in texts)
    begin, end = (runs + np.repeat(bases[:-1], np.diff(edges))[:, None]).T
    first = np.searchsorted(end, bases[row] + spans[:, 0], "right")
    after = np.searchsorted(begin, bases[row] + spans[:, 1], "left")
    inside = (after > first) & (spans[:, 1] > spans[:, 0])
    # How many tokens go over from the word before into each word.
    over = np.zeros(len(runs) + 1, np.int64)
    np.add.at(over, first[inside] + 1, 1)
    np.add.at(over, after[inside], -1)
    number = np.cumsum(np.cumsum(over) == 0)
    own = number[np.where(inside, first, 0)] - number[edges[row]]
    return np.where(inside, first, -1), np.where(inside, own, -1)


def written_words(texts: Sequence[str], words: Array, starts: Array) -> tuple[list[str], Array]:
    """Return the words that tokens are part of, each once for the tokens next to one another.

    A word may have as many tokens as characters, and a copy for each would fill the memory.

    Args:
        texts: R raw sentences.
        words: (T, 2) spans of the tokens' words, by `word_spans`.
        starts: (R + 1,) row starts.

    Returns:
        W words, and (T,) int64 number of each token's word among them.
    """
    first = np.ones(len(words), bool)
    first[1:] = (words[1:] != words[:-1]).any(1)
    first[starts[:-1][starts[:-1] < len(words)]] = True
    rows = np.repeat(np.arange(len(texts)), np.diff(starts))[first].tolist()
    spans = words[first].tolist()
    written = [texts[row][start:end] for row, (start, end) in zip(rows, spans, strict=True)]
    return written, np.cumsum(first) - 1


def content_mask(
    texts: Sequence[str], spans: Array, starts: Array, stop_words: frozenset[str] | None = None
) -> Array:
    """Return which tokens are part of a content word.

    That is a whole word with a letter or digit that is not a stop word. Stop words are lower-case,
    by default the words of `load_stop_words`; the other arguments are as for `word_spans`.

    Returns:
        (T,) bool; False at punctuation, symbols and empty tokens.
    """
    stop_words = _default_stop_words() if stop_words is None else stop_words
    words, number = written_words(texts, word_spans(texts, spans, starts), starts)
    return np.array([_is_content(word, stop_words) for word in words], bool)[number]


def _is_content(word: str, stop_words: frozenset[str]) -> bool:
    return any(map(str.isalnum, word)) and word.lower().replace("’", "'") not in stop_words


@lru_cache(maxsize=1 << 16)
def stem_key(word: str, language: str = "en") -> str:
    """Return the lower-case Snowball stem, which the inflected forms of a word share."""
    return str(_stemmer(LANGUAGES[language]).stem(word.lower()))


def word_stems(texts: Sequence[str], tokens: Tokens, language: str = "en") -> list[str]:
    """Return the stem of the whole word that each token is part of; empty outside words.

    Args:
        texts: R raw sentences.
        tokens: the tokens of these sentences.
        language: one of `LANGUAGES`.
    """
    spans = word_spans(texts, tokens.spans, tokens.starts)
    words, number = written_words(texts, spans, tokens.starts)
    stems = [stem_key(word, language) if word else "" for word in words]
    return [stems[word] for word in number.tolist()]


@cache
def _stemmer(name: str) -> Any:
    from nltk.stem.snowball import SnowballStemmer  # needs no downloaded data

    return SnowballStemmer(name)
