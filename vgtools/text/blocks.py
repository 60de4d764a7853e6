"""Blocks of tokens to pretrain on: packed files, memory-mapped, cut so that no token is lost.

Every input becomes the packed form of `vokens.py` (token id and voken; -1 means none): a `.npy` is
opened as it is, a text or voken rows are converted once. A `Corpus` joins the files and cuts them
into blocks. The tokens of a block, and those masked in it, are pure functions of numbers, so that a
resumed run sees the same blocks as an uninterrupted run.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from vgtools.io import own
from vgtools.io.arrays import Array, stacked
from vgtools.io.artifact import Artifact, read_manifest
from vgtools.io.errors import DataError, Exit, amount, file_errors, plain
from vgtools.io.files import is_manifest, sha256_file
from vgtools.io.forms import SIZE, check_form
from vgtools.io.names import is_stream, is_url, manifest_path, refuse_stream
from vgtools.io.output import files_of
from vgtools.io.process import Progress
from vgtools.io.splits import refuse_held_out, refuse_made_of_held_out
from vgtools.io.streams import Window, read_text_rows, read_windows
from vgtools.io.trust import trusted
from vgtools.io.written import manifest_beside
from vgtools.text.tokens import row_starts, tokenize, tokenizer_fingerprint
from vgtools.text.vokens import VokenWriter, check_rows, is_packed, no_collection

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_WINDOW = 2048  # lines per step of the conversion
_MOST = 2**31 - 1  # images of a bank: vokens are 32-bit integers
_SCAN = 1 << 20  # tokens per step of a check


class Packed(NamedTuple):
    """One packed file."""

    name: str  # the user's name for it, for messages
    tokens: Array  # (T, 2) integers: token id, voken
    ends: Array  # (R,) int64, where each row ends
    vokens: int | None = None  # images in the bank, if the manifest has their number
    replaced: int = 0  # lines converted here that had bytes which are not UTF-8
    before: int = 0  # rows of the same input in the shards before

    def line_of(self, token: int) -> int:
        """Return the row of a token, counted from 1."""
        return self.before + int(np.searchsorted(self.ends, token, "right")) + 1


def open_packed(
    path: str | Path, tokenizer: str | None = None, name: str | None = None
) -> list[Packed]:
    """Open a packed file, or each shard of a folder; manifest, counts and row ends are checked.

    It must have tokens of the `tokenizer` with this fingerprint; messages call it `name`.

    Raises:
        DataError: missing, damaged, not aligned, or tokens of another tokenizer (both fingerprints
            are printed).
    """
    name = str(name or path)
    opened = Artifact(path, "vokens")
    again = "create the file again with vg revokenize"
    source = opened.manifest.get("tokenizer")
    count = opened.manifest.get("count")
    counted = count is None or (type(count) is int and 1 <= count <= _MOST)
    if not isinstance(source, dict | None) or not counted:
        why = f'has "tokenizer" {source!r:.40} and "count" {count!r:.40}; {again}'
        raise DataError(why, manifest_path(path))
    made = (source or {}).get("sha256")
    if tokenizer is not None and made != tokenizer:
        why = f"has tokens of the tokenizer {made or 'that its manifest does not name'}, expected"
        way_out = "convert the vokens with vg revokenize --tokenizer"
        raise DataError(f"{why} tokens of {tokenizer}; {way_out}", name)
    parts = list[Packed]()
    before = 0
    for tokens, ends in zip(opened.arrays(2), opened.arrays(1, ".rows.npy"), strict=True):
        parts.append(Packed(name, tokens, ends, count, before=before))
        _check(parts[-1])
        before += len(ends)
    return parts


def _check(packed: Packed) -> None:
    """Refuse arrays that are not packed rows."""
    name, tokens, ends = packed[:3]
    again = "create the file again with vg revokenize"
    if tokens.shape[1] != 2 or tokens.dtype.kind != "i" or ends.dtype.kind != "i":
        why = f"expected (tokens, 2) integers, got shape {tokens.shape} of {tokens.dtype}"
        raise DataError(why, name)
    last = int(ends[-1]) if len(ends) else 0
    if last != len(tokens):
        raise DataError(f"its rows end at token {last}, it has {len(tokens)}; {again}", name)
    for start in () if trusted() else range(0, len(ends), _SCAN):
        before = ends[start - 1 : start] if start else [0]
        falls = np.flatnonzero(np.diff(ends[start : start + _SCAN], prepend=before) < 0)
        if len(falls):
            row = packed.before + start + int(falls[0]) + 1
            raise DataError(f"ends before it starts; {again}", name, row)


def check_range(packed: Packed, vocabulary: int, vokens: int | None = None) -> int:
    """Check every token id and voken of a file, and return its largest voken (-1: it has none).

    Raises:
        DataError: an id that the vocabulary does not have, or a voken beyond the image bank; file
            and line are named.
    """
    largest = -1
    images = f"there are {vokens} images" if vokens else "-1 means none"
    checks = (
        (0, "token id", 0, vocabulary, f"the vocabulary has {vocabulary}"),
        (1, "voken", -1, vokens or np.iinfo(np.int32).max, images),
    )
    for start in range(0, len(packed.tokens), _SCAN):
        part = packed.tokens[start : start + _SCAN]
        for column, name, low, high, known in checks:
            values = part[:, column]
            bad = np.flatnonzero((values < low) | (values >= high))
            if len(bad):
                why = f"expected a {name} from {low} to {high - 1} ({known}), got {values[bad[0]]}"
                raise DataError(why, packed.name, packed.line_of(start + int(bad[0])))
        largest = max(largest, int(part[:, 1].max()))
    return largest


class _WithLabels:
    """Packed tokens with the labels of another file as a third column; read by slices.

    Args:
        tokens: (T, 2) token id, voken.
        labels: (all, 2) of the other file, of which row `first` belongs to the first token.
        first: rows before.
    """

    def __init__(self, tokens: Array, labels: Array, first: int) -> None:
        self._tokens = tokens
        self._labels = labels
        self._first = first
        self.shape = (len(tokens), 3)

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, key: slice) -> Array:
        start, stop, _ = key.indices(len(self))
        labels = self._labels[self._first + start : self._first + stop, 1]
        return np.column_stack([self._tokens[start:stop], labels])


def with_labels(files: Sequence[Packed], others: Sequence[Packed]) -> list[Packed]:
    """Return packed files whose tokens also have the labels of other files of the same tokens.

    Raises:
        DataError: the others have other tokens or other rows; the first row that differs is named.
    """
    labels = stacked([file.tokens for file in others])
    edges = row_starts(len(file.tokens) for file in files)
    if not trusted():
        _check_same_tokens(files, others, labels, edges)
    joined = (_WithLabels(f.tokens, labels, a) for f, a in zip(files, edges.tolist(), strict=False))
    return [
        file._replace(tokens=cast(Array, tokens))
        for file, tokens in zip(files, joined, strict=True)
    ]


def _check_same_tokens(
    files: Sequence[Packed], others: Sequence[Packed], labels: Array, edges: Array
) -> None:
    """Refuse labels of other tokens, or of the same tokens in other rows."""
    name = others[0].name
    expected = f"expected the tokens of {', '.join(dict.fromkeys(file.name for file in files))}"
    way_out = "make both of the same text, and revokenize both alike"
    if len(labels) != edges[-1]:
        why = f"has {len(labels)} tokens, {expected}, which are {edges[-1]}; {way_out}"
        raise DataError(why, name)
    for file, base in zip(files, edges.tolist(), strict=False):
        for start in range(0, len(file.tokens), _SCAN):
            mine = file.tokens[start : start + _SCAN, 0]
            place = base + start
            odd = np.flatnonzero(labels[place : place + len(mine), 0] != mine)
            if len(odd):
                why = f"has another token than line {file.line_of(start + int(odd[0]))} of it"
                raise DataError(f"{expected}; {why}; {way_out}", name)
    if not np.array_equal(_ends(files), _ends(others)):
        raise DataError(f"{expected}; its rows end elsewhere; {way_out}", name)


def _ends(files: Sequence[Packed]) -> Array:
    """Return where the rows of files end, counted over all of them."""
    bases = row_starts(len(file.tokens) for file in files)
    ends = [file.ends + base for file, base in zip(files, bases.tolist(), strict=False)]
    return np.concatenate(ends)


def has_vokens(path: str) -> bool:
    """Return whether an input holds vokens: packed, or rows of which the first has them.

    Raises:
        DataError: the input can be read only once (usage), or its first row is not one.
    """
    if is_packed(path):
        return True
    refuse_stream(path)
    return "vokens" in next(read_text_rows(path), {})


def pack(
    path: str,
    folder: Path,
    tokenizer: Tokenizer,
    *,
    train: bool = False,
    progress: Progress | None = None,
) -> list[Packed]:
    """Return the packed form of an input, converted into a folder unless it is there already.

    For a folder of shards it is the packed form of each.

    Args:
        path: `.npy` (opened as it is), `.jsonl` (voken rows, or rows with "text"), or a text, one
            sentence per line; the latter two also as `.gz`, `.zst`, and `-`.
        folder: where conversions are kept; created if needed. A killed conversion resumes there.
        tokenizer: the encoder's tokenizer.
        train: the input is learned from.
        progress: counts tokens.

    Raises:
        DataError: rows whose spans are not this tokenizer's tokens, or to learn from and of a split
            to evaluate on, with file and line; or an unreadable input.
    """
    fingerprint = tokenizer_fingerprint(tokenizer)
    if train:
        refuse_made_of_held_out(path)
    if is_packed(path):
        return open_packed(path, fingerprint)
    with file_errors(folder, reading=False):
        own.make_folder(folder, parents=True)
    # The name follows from input and tokenizer, so that a resumed run finds its conversion, and a
    # run with another tokenizer does not take it; nor one that would learn from a text of which
    # splits to evaluate on were not refused.
    place = os.fsencode(Path(path).resolve())
    use = f" {fingerprint}{' train' if train else ''}"
    key = hashlib.sha256(place + use.encode()).hexdigest()[:16]
    target = folder / f"{key}.npy"
    # Only one process of a run checks the files; it has made the conversion before the others ask.
    if not trusted() and _convert(path, target, tokenizer, fingerprint, train, progress):
        try:
            return _converted(target, fingerprint, path)
        except DataError as error:
            if error.code != Exit.DATA:
                raise
        # Somebody edited the manifest that a killed run left: the input is converted once more.
        _convert(path, target, tokenizer, fingerprint, train, progress, restart=True)
    return _converted(target, fingerprint, path)


def _convert(
    path: str,
    target: Path,
    tokenizer: Tokenizer,
    fingerprint: str,
    train: bool,
    progress: Progress | None,
    restart: bool = False,
) -> bool:
    """Write the packed form of an input; return whether an earlier run had done so."""
    how: dict[str, Any] = {"inputs": [path], "disposable": True, "restart": restart}
    with VokenWriter(str(target), {"tokenizer": fingerprint}, **how) as out, no_collection():
        for window in () if out.complete else read_windows(path, _WINDOW, out.state):
            texts, rows = _rows(path, window, train)
            tokens = tokenize(tokenizer, texts)
            if rows is None:
                none = np.full(len(tokens.ids), -1, np.int32)
                rows = [{"vokens": none[a:b]} for a, b in pairwise(tokens.starts)]
            else:
                _check_aligned(path, window.first, rows, tokens.spans, tokens.starts)
            out.write(rows, tokens.ids, window, replaced=window.replaced)
            out.commit(window.digest)
            if progress is not None:
                progress.advance(len(tokens.ids))
        out.finish(tokenizer={"sha256": fingerprint}, count=_bank_size(path))
    return out.complete


def _converted(target: Path, fingerprint: str, path: str) -> list[Packed]:
    """Return the packed form of an input that was converted."""
    (packed,) = open_packed(target, fingerprint, name=path)
    facts = read_manifest(target, verify=False)
    check_form(facts, {"replaced?": SIZE}, manifest_path(target), "create the file again")
    return [packed._replace(replaced=facts.get("replaced", 0), vokens=_bank_size(path))]


def _bank_size(path: str) -> int | None:
    """Return the number of images in the bank of a voken file, if its manifest has it."""
    body = manifest_beside(path)
    return body.get("count") if body.get("kind") == "vokens" else None


def _rows(path: str, window: Window, train: bool) -> tuple[list[str], list[dict[str, Any]] | None]:
    """Return the sentences of a window, and its voken rows if it has any."""
    rows = window.rows()
    texts = [row["text"] for row in rows]
    for number, row in enumerate(rows if train else (), window.first):
        refuse_held_out(row, path, number)
    if not any("vokens" in row for row in rows):
        return texts, None
    check_rows(rows, path, window.first)
    for number, row in enumerate(rows, window.first):
        if len(row["vokens"]) and np.ndim(row["vokens"][0]):
            why = "expected one voken per token, got several (vg vokenize -k)"
            raise DataError(why, path, number)
    return texts, rows


def _check_aligned(
    path: str, first: int, rows: Sequence[dict[str, Any]], spans: Array, starts: Array
) -> None:
    """Refuse rows whose spans are not the tokens that this tokenizer makes of their text."""
    for number, (row, (a, b)) in enumerate(
        zip(rows, pairwise(starts.tolist()), strict=True), first
    ):
        size = len(row["spans"])
        if size != b - a:
            why = f"has {size} tokens, the encoder's tokenizer makes {b - a} of this text"
        elif size and not np.array_equal(row["spans"], spans[a:b]):
            why = "has spans of other tokens than the encoder's tokenizer makes of this text"
        else:
            continue
        raise DataError(f"{why}; convert the vokens with vg revokenize --tokenizer", path, number)


@dataclass
class PackedInputs:
    """The packed inputs of a run, each made when it is first asked for."""

    tokenizer: Tokenizer
    folder: Path  # where they are
    quiet: bool  # no progress
    say: Callable[[str], None]  # prints a message
    train: Sequence[str] = ()  # inputs that are learned from
    _piped: dict[str, list[Packed]] = field(default_factory=dict)  # inputs that can be read once

    def open(self, path: str) -> list[Packed]:
        """Return an input in the packed form, each of its shards if it has several."""
        if path in self._piped:
            return self._piped[path]
        with Progress("pretrain: packing", "tokens", quiet=self.quiet) as bar:
            train = path in self.train
            packed = pack(path, self.folder, self.tokenizer, train=train, progress=bar)
        if packed and packed[0].replaced:
            lines = amount(packed[0].replaced, "line")
            self.say(f"{plain(path)}: {lines} had bytes that are not UTF-8, replaced")
        return packed

    def digest(self, path: str) -> str:
        """Return the sha256 of an input; an input from a pipe is packed for that."""
        if is_url(path):
            why = "is at a URL, and a training reads its texts in every epoch; copy it here first"
            raise DataError(why, path, code=Exit.USAGE)
        if not is_stream(path):
            return sha256_file(path)
        self._piped[path] = self.open(path)
        return hashlib.sha256(self._piped[path][0].tokens.data).hexdigest()

    def has_vokens(self, path: str) -> bool:
        """Return whether an input has vokens."""
        if path not in self._piped:
            return has_vokens(path)
        return bool((self._piped[path][0].tokens[:, 1] >= 0).any())

    def remove(self) -> None:
        """Remove the packed inputs, and their folder if nothing else is in it."""
        for manifest in self.folder.glob("[0-9a-f]" * 16 + ".json"):
            files = files_of(manifest)
            for name in files:
                own.remove(manifest.with_name(name), own.Known(files))
            own.remove(manifest, is_manifest)
        own.remove_folder(self.folder)


class Corpus:
    """Packed files, joined and cut into blocks; every token is in exactly one block.

    Args:
        files: the packed files, in order.
        size: maximum tokens per block, special tokens not counted.
        pack: the ends that no block crosses. `stream`: none, so that only the very last block is
            short; `document`: the end of a document, which is an empty row or the end of a file;
            `row`: the end of a row; `best-fit`: as `document`, but pieces that are shorter than a
            block share one (`best_fit`).

    Source: Tan & Bansal 2020 (Vokenization), section 4.2: "fixed sequence length of 128".
        `best-fit`: ModernBERT (Warner et al. 2024).
    Deviation: documents that share a block attend to one another, as in `stream`; ModernBERT hides
        them.
    """

    def __init__(self, files: Sequence[Packed], size: int, pack: str = "stream") -> None:
        self.files = list(files)
        self.size = size
        self._edges = row_starts(len(f.tokens) for f in files)  # (F + 1,) first token of each file
        # The shards of one input follow one another without a gap.
        begins = [file.before == 0 for file in files]
        sections = self._edges[[0, -1]]
        if pack != "stream":
            gaps = [
                file.ends[(np.diff(file.ends, prepend=0) == 0) | (pack == "row")] + base
                for file, base in zip(files, self._edges, strict=False)
            ]
            sections = np.concatenate([self._edges[:-1][begins], self._edges[-1:], *gaps])
        self._sections = np.unique(sections)  # first token of each run of tokens without a gap
        pieces = -(-np.diff(self._sections) // size)
        self._first = row_starts(pieces.tolist())  # first piece of each section
        self._shared: tuple[Array, Array] | None = None  # pieces by block, first of each block
        if pack == "best-fit":
            lengths = np.full(int(self._first[-1]), size)
            # Only the last piece of a section is shorter than a block.
            lengths[self._first[1:] - 1] = (np.diff(self._sections) - 1) % size + 1
            block = best_fit(lengths, size)
            self._shared = np.argsort(block, kind="stable"), row_starts(np.bincount(block))

    def __len__(self) -> int:
        return int(self._first[-1]) if self._shared is None else len(self._shared[1]) - 1

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return int(self._edges[-1])

    def block(self, number: int) -> tuple[Array, Array]:
        """Return a block: (n, 2) [token id, voken], and (n,) bool: which start a sentence."""
        if self._shared is None:
            return self._piece(number)
        order, first = self._shared
        numbers = order[first[number] : first[number + 1]].tolist()
        tokens, heads = zip(*map(self._piece, numbers), strict=True)
        return np.concatenate(tokens), np.concatenate(heads)

    def _span(self, piece: int) -> tuple[int, int]:
        """Return the tokens of a piece as [start, end), counted over all files."""
        section = int(np.searchsorted(self._first, piece, "right")) - 1
        start = int(self._sections[section]) + (piece - int(self._first[section])) * self.size
        return start, min(start + self.size, int(self._sections[section + 1]))

    def _piece(self, number: int) -> tuple[Array, Array]:
        start, end = self._span(number)
        parts = list[Array]()
        heads = np.zeros(end - start, bool)
        i = int(np.searchsorted(self._edges, start, "right")) - 1
        at = start
        while at < end:
            base = int(self._edges[i])
            file = self.files[i]
            stop = min(end, int(self._edges[i + 1]))
            parts.append(np.asarray(file.tokens[at - base : stop - base]))
            low, high = np.searchsorted(file.ends, [at - base, stop - base])
            heads[file.ends[low:high] + (base - start)] = True
            # An end of a row is the start of the next row; no end comes before a file's first row.
            if at == base and stop > at:
                heads[at - start] = True
            at = stop
            i += 1
        return np.concatenate(parts), heads


def best_fit(lengths: Array, size: int) -> Array:
    """Return the block of each piece, so that few blocks are needed.

    The longest piece comes first, and each goes where it leaves the least room.

    Args:
        lengths: (P,) tokens of pieces, from 1 to `size`.
        size: tokens of a block.

    Returns:
        (P,) int64 blocks, numbered by the first piece in them.
    """
    blocks = np.empty(len(lengths), np.int64)
    by_room: list[list[int]] = [[] for _ in range(size)]
    # Bit r is set if a block has room for r more tokens: the lowest set bit from a length on is the
    # tightest fit, found without a search over the blocks.
    rooms = 0
    count = 0
    sizes = lengths.tolist()
    for piece in np.argsort(-lengths, kind="stable").tolist():
        length = sizes[piece]
        fitting = rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            block = by_room[room].pop()
            if not by_room[room]:
                rooms ^= 1 << room
        else:
            room, block = size, count
            count += 1
        left = room - length
        if left:
            by_room[left].append(block)
            rooms |= 1 << left
        blocks[piece] = block
    # Blocks are numbered by their first piece in the order of the text, because the packing has
    # filled them in the order of length.
    _, first, inverse = np.unique(blocks, return_index=True, return_inverse=True)
    number = np.empty(count, np.int64)
    number[np.argsort(first)] = np.arange(count)
    return number[inverse]


def open_corpus(
    files: Sequence[Packed], block: int, special: int, most: int, pack: str = "stream"
) -> Corpus:
    """Return the corpus of some files; without files it is empty.

    Args:
        files: the packed files.
        block: tokens of a block, special ones counted.
        special: special tokens of a block.
        most: tokens that the encoder takes in addition to them.
        pack: as `Corpus`.

    Raises:
        DataError: the block does not fit the encoder (78), or the files hold no token (65).
    """
    size = block - special
    if not 1 <= size <= most:
        why = f"--block {block}: the encoder takes {most + special} tokens"
        raise DataError(why, code=Exit.CONFIG)
    corpus = Corpus(files, size, pack)
    if files and not len(corpus):
        raise DataError("holds no token", files[0].name)
    return corpus
