"""Blocks of tokens to pretrain on: packed files, memory-mapped, cut so that no token is lost.

Every input becomes the packed form of `vokens.py` (token id and voken; -1 is none): a `.npy` is opened as it is, a text or
voken rows are converted once. A `Corpus` lays the files behind one another and cuts them into blocks. Which block holds what,
and what is masked in it, are pure functions of numbers, so that a resumed run sees what the unbroken one saw.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vgtools import io
from vgtools.checkpoint import tokenizer_fingerprint
from vgtools.errors import file_error
from vgtools.io import DataError
from vgtools.text import row_starts, tokenize
from vgtools.vokens import VokenWriter, check_rows, no_collection

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Array = np.ndarray[Any, Any]

_WINDOW = 2048  # lines a step of the conversion
_SCAN = 1 << 20  # tokens a step of a check


class Packed(NamedTuple):
    """One packed file."""

    name: str  # what the user gave, for messages
    tokens: Array  # (T, 2) integers: token id, voken
    ends: Array  # (R,) int64, where each row ends
    vokens: int | None = None  # images of the bank, if the manifest says so

    def line_of(self, token: int) -> int:
        """Return the row of a token, counted from 1."""
        return int(np.searchsorted(self.ends, token, "right")) + 1


def rows_path(path: str | Path) -> Path:
    """Return where the row ends of a packed file stand: `X.rows.npy` beside `X.npy`."""
    return Path(re.sub(r"npy$", "rows.npy", str(path)))


def open_packed(path: str | Path, tokenizer: str | None = None, name: str | None = None) -> Packed:
    """Open a packed file, its manifest, counts and row ends checked.

    Args:
        path: `X.npy`, with `X.rows.npy` and `X.json`.
        tokenizer: fingerprint of the tokenizer that has to have made it.
        name: how to call it in messages.

    Raises:
        DataError: missing, damaged, not aligned, or tokens of another tokenizer (both fingerprints are printed).
    """
    name = str(name or path)
    manifest = io.read_manifest(path, "vokens")
    tokens, ends = io.open_npy(path, ndim=2), io.open_npy(rows_path(path), ndim=1)
    if tokens.shape[1] != 2 or tokens.dtype.kind != "i" or ends.dtype.kind != "i":
        raise DataError(f"has shape {tokens.shape} of {tokens.dtype}; (tokens, 2) integers were wanted", name)
    last = int(ends[-1]) if len(ends) else 0
    if last != len(tokens):
        raise DataError(f"its rows end at token {last}, it has {len(tokens)}; make it anew with vg revokenize", name)
    for start in range(0, len(ends), _SCAN):
        part = np.concatenate([ends[start - 1 : start] if start else [0], ends[start : start + _SCAN]])
        falls = np.flatnonzero(np.diff(part) < 0)
        if len(falls):
            raise DataError("ends before it starts; make the file anew with vg revokenize", name, start + int(falls[0]) + 1)
    made = (manifest.get("tokenizer") or {}).get("sha256")
    if tokenizer is not None and made != tokenizer:
        raise DataError(
            f"holds tokens of the tokenizer {made or 'that its manifest does not name'}, the encoder has {tokenizer}; "
            "carry the vokens over with vg revokenize --tokenizer",
            name,
        )
    return Packed(name, tokens, ends, manifest.get("count"))


def check_range(packed: Packed, vocabulary: int, vokens: int | None = None) -> int:
    """Check every token id and voken of a file, and return its largest voken (-1: it has none).

    Raises:
        DataError: an id that the vocabulary does not have, or a voken beyond the image bank; file and line are named.
    """
    top = -1
    for start in range(0, len(packed.tokens), _SCAN):
        part = packed.tokens[start : start + _SCAN]
        for column, least, most, what in (
            (0, 0, vocabulary, f"token id {{}}, the vocabulary has {vocabulary}"),
            (1, -1, vokens or np.iinfo(np.int32).max, f"voken {{}}, there are {vokens} images: 0 to {(vokens or 0) - 1}"),
        ):
            bad = np.flatnonzero((part[:, column] < least) | (part[:, column] >= most))
            if len(bad):
                where = start + int(bad[0])
                raise DataError(f"found the {what.format(part[bad[0], column])}", packed.name, packed.line_of(where))
        top = max(top, int(part[:, 1].max()))
    return top


# -------------------------------------------------------------------------------------------------------------- converting


def has_vokens(path: str) -> bool:
    """Say whether an input holds vokens: packed, or jsonl whose first row has them. `-` is not looked into."""
    if path.endswith(".npy"):
        return True
    if path == "-" or not _is_jsonl(path):
        return False
    for _, row in io.read_jsonl(path):
        return "vokens" in row
    return False


def _is_jsonl(path: str) -> bool:
    return path.removesuffix(".gz").removesuffix(".zst").endswith(".jsonl")


def pack(path: str, folder: Path, tokenizer: Tokenizer, *, progress: io.Progress | None = None) -> Packed:
    """Return the packed form of an input, converted into a folder unless it stands there already.

    Args:
        path: `.npy` (opened as it is), `.jsonl` (voken rows, or rows with "text"), anything else is a text, one sentence a
            line; `.gz`, `.zst`, and `-`, which may be either.
        folder: where conversions are kept; made if needed. A killed conversion goes on from there.
        tokenizer: of the encoder.
        progress: counts tokens.

    Raises:
        DataError: rows whose spans are not this tokenizer's tokens, with file and line; or anything unreadable.
    """
    mark = tokenizer_fingerprint(tokenizer)
    if path.endswith(".npy"):
        return open_packed(path, mark)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise file_error(error, folder, reading=False) from None
    target = folder / f"{hashlib.sha256(f'{Path(path).resolve()} {mark}'.encode()).hexdigest()[:16]}.npy"
    with VokenWriter(str(target), {"tokenizer": mark}, inputs=[path]) as out, no_collection():
        for window in () if out.complete else io.read_windows(path, _WINDOW, out.state):
            texts, rows = _rows(path, window)
            found = tokenize(tokenizer, texts)
            if rows is None:
                none = np.full(len(found.ids), -1, np.int32)
                rows = [{"vokens": none[a:b]} for a, b in zip(found.starts[:-1], found.starts[1:], strict=True)]
            else:
                _check_aligned(path, window.first, rows, found.spans, found.starts)
            out.write(rows, found.ids)
            out.commit(window.digest)
            if progress is not None:
                progress.advance(len(found.ids))
        out.finish(tokenizer={"sha256": mark}, count=_bank_of(path))
    return open_packed(target, mark, name=path)


def _bank_of(path: str) -> int | None:
    """Return how many images the bank of a voken file has, if it has a manifest that says so."""
    body = io.manifest_beside(path)
    return body.get("count") if body.get("kind") == "vokens" else None


def _rows(path: str, window: io.Window) -> tuple[list[str], list[dict[str, Any]] | None]:
    """Return the sentences of a window, and its voken rows if it has any."""
    if not _is_jsonl(path) and not (path == "-" and window.lines[0].startswith("{")):
        return window.lines, None
    rows = [io.parse_json(line, path, number) for number, line in enumerate(window.lines, window.first)]
    if not any("vokens" in row for row in rows):
        for number, row in enumerate(rows, window.first):
            io.require(row, {"text": str}, path, number)
        return [row["text"] for row in rows], None
    check_rows(rows, path, window.first)
    for number, row in enumerate(rows, window.first):
        if row["vokens"] and isinstance(row["vokens"][0], list):
            raise DataError("has several vokens a token (-k); one was wanted", path, number)
    return [row["text"] for row in rows], rows


def _check_aligned(path: str, first: int, rows: Sequence[dict[str, Any]], spans: Array, starts: Array) -> None:
    """Refuse rows whose spans are not the tokens that this tokenizer makes of their text."""
    for number, (row, a, b) in enumerate(zip(rows, starts[:-1].tolist(), starts[1:].tolist(), strict=True), first):
        own, count = row["spans"], b - a
        if len(own) != count or (own and not np.array_equal(own, spans[a:b])):
            how = f"{len(own)} tokens, the encoder's tokenizer makes {count}" if len(own) != count else "spans of other tokens"
            raise DataError(f"has {how} of this text; carry the vokens over with vg revokenize --tokenizer", path, number)


# ------------------------------------------------------------------------------------------------------------------ blocks


class Corpus:
    """Packed files behind one another, cut into blocks of at most `size` tokens; every token is in exactly one block.

    Args:
        files: the packed files, in order.
        size: tokens a block, special tokens not counted.
        by_document: no block crosses the end of a document, which is an empty row or the end of a file; else sentences,
            documents and files are packed behind one another, and only the last block of all is short.

    Source: Tan & Bansal 2020 (Vokenization), section 4.2: "fixed sequence length of 128".
    """

    def __init__(self, files: Sequence[Packed], size: int, by_document: bool = False) -> None:
        self.files, self.size = list(files), size
        self._edges = row_starts(len(f.tokens) for f in files)
        sections = self._edges[[0, -1]]
        if by_document:
            gaps = [f.ends[np.diff(f.ends, prepend=0) == 0] + base for f, base in zip(files, self._edges, strict=False)]
            sections = np.concatenate([self._edges, *gaps])
        self._sections = np.unique(sections)
        self._first = row_starts((-(-np.diff(self._sections) // size)).tolist())  # first block of each section

    def __len__(self) -> int:
        return int(self._first[-1])

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return int(self._edges[-1])

    def span(self, block: int) -> tuple[int, int]:
        """Return the tokens of a block as [start, end), counted over all files."""
        section = int(np.searchsorted(self._first, block, "right")) - 1
        start = int(self._sections[section]) + (block - int(self._first[section])) * self.size
        return start, min(start + self.size, int(self._sections[section + 1]))

    def block(self, number: int) -> tuple[Array, Array]:
        """Return a block's tokens, (n, 2) [token id, voken], and (n,) bool: which of them begin a sentence."""
        start, end = self.span(number)
        parts, heads = list[Array](), np.zeros(end - start, bool)
        i, at = int(np.searchsorted(self._edges, start, "right")) - 1, start
        while at < end:
            base, file = int(self._edges[i]), self.files[i]
            stop = min(end, int(self._edges[i + 1]))
            parts.append(np.asarray(file.tokens[at - base : stop - base]))
            low, high = np.searchsorted(file.ends, [at - base, stop - base])
            heads[file.ends[low:high] + (base - start)] = True
            if at == base and stop > at:
                heads[at - start] = True
            at, i = stop, i + 1
        return np.concatenate(parts), heads


# ----------------------------------------------------------------------------------------------------------------- masking


def mask_tokens(ids: Array, rng: np.random.Generator, mask: int, vocabulary: int, share: float = 0.15) -> tuple[Array, Array]:
    """Mask tokens as BERT does: of those chosen 80 % become [MASK], 10 % a random token, 10 % stay.

    Args:
        ids: (n,) token ids, no special tokens.
        rng: decides; three numbers a token are drawn.
        mask: id of [MASK].
        vocabulary: random tokens are drawn below it.
        share: of tokens that are chosen, each on its own.

    Returns:
        (n,) ids to read, and (n,) bool: the tokens chosen, to be predicted.

    Source: Devlin et al. 2019 (BERT), section 3.1, as Tan & Bansal 2020 use it (section 2.2).
    """
    chosen, kind, other = rng.random((3, len(ids)))
    picked = chosen < share
    read = np.where(kind < 0.8, mask, np.where(kind < 0.9, (other * vocabulary).astype(ids.dtype), ids))
    return np.where(picked, read, ids), picked
