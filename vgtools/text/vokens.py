"""Voken rows on disk: the writer of `vokenize` and `revokenize`, and the reader that checks them.

Rows, one per line: `{"text": …, "spans": [[s, e], …], "vokens": [row, …], "scores": [relevance,
…]}`, further keys kept, such as "split". Spans are code points of the raw sentence. A voken of -1
means none, its score is 0. With k > 1 the entries of `vokens` and `scores` are lists of k.

Packed, `-o X.npy`: `X.npy` holds an int32 (tokens, 2) array of [token id, voken], one row after the
other; `X.rows.npy` holds an int64 (rows,) array of where each row ends in it: row i is `X[ends[i -
1] : ends[i]]`, row 0 starts at 0. One voken per token.
"""

from __future__ import annotations

import gc
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import dumps
from vgtools.io.names import is_shards
from vgtools.io.output import Output
from vgtools.io.parts import damaged
from vgtools.io.streams import TEXT_CHARS, Line, Window, check_length, parse_json, require
from vgtools.io.written import manifest_beside

_MAX = 2**31 - 1  # the largest voken: both forms hold 32-bit integers
_flat = chain.from_iterable


@contextmanager
def no_collection() -> Iterator[None]:
    """Switch off Python's search for reference cycles within a block.

    Voken rows are millions of small lists without cycles; walking them again and again takes more
    time than parsing them.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def has_rows(path: str | Path) -> bool:
    """Return whether an input is a packed file, whose rows are in a file next to it."""
    return is_packed(path) and not is_shards(path)


def rows_of(path: str | Path) -> str:
    """Return the file of the rows of a packed file, `X.rows.npy` of `X.npy`."""
    return str(Path(path).with_suffix(".rows.npy"))


def is_packed(path: str | Path) -> bool:
    """Return whether a name, of a file or a folder, belongs to the packed form."""
    return str(path).rstrip("/").endswith(".npy")


def refuse_packed(path: str | Path) -> None:
    """Refuse the packed form where the words of rows are asked for.

    Raises:
        DataError: the name belongs to the packed form (usage).
    """
    if is_packed(path):
        why = "has token ids, not words; give the voken rows (.jsonl) that it was made from"
        raise DataError(why, path, code=Exit.USAGE)


def bank_of(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the files of the index of vokens, name -> sha256, as their manifest has them."""
    config = manifest.get("config")
    return hashes_of(config.get("index_sha256") if isinstance(config, dict) else None)


def hashes_of(files: Any) -> dict[str, str]:
    """Return name -> sha256 of the files that a manifest names."""
    # An edited manifest may contain anything here; whatever has no hash is not compared.
    if not isinstance(files, dict):
        return {}
    return {
        name: str(facts["sha256"])
        for name, facts in files.items()
        if isinstance(facts, dict) and "sha256" in facts
    }


def ids_hashes(manifest: Mapping[str, Any]) -> list[str]:
    """Return the sha256 of the ids of the index that rows count; several of a bank in parts."""
    return [sha for name, sha in bank_of(manifest).items() if name.endswith(".ids")]


def are_ids_of(hashes: Sequence[str], ids: Iterable[str]) -> bool:
    """Return whether ids are the contents of files with these sha256, one file after the other."""
    # Where one file ends and the next starts is not known: the hash so far is compared after each
    # id, and starts over where it is the next file's.
    left = list(hashes)
    digest = hashlib.sha256()
    for name in ids:
        digest.update(f"{name}\n".encode())
        if left and digest.hexdigest() == left[0]:
            del left[0]
            digest = hashlib.sha256()
    return not left and digest.digest() == hashlib.sha256().digest()


def hash_of(ids: Iterable[str]) -> str:
    """Return the sha256 of a file of ids, one per line."""
    digest = hashlib.sha256()
    for name in ids:
        digest.update(f"{name}\n".encode())
    return digest.hexdigest()


def check_banks(paths: Sequence[str], ids: Sequence[str] | None, file: str | None) -> list[str]:
    """Refuse voken files that count other images than one another or than the rows of features.

    Args:
        paths: files of vokens, or of texts without any.
        ids: ids of the images of features, one per row; None where no features are read.
        file: the features' file, for messages.

    Returns:
        The paths whose manifest names no images, of which nothing is checked.

    Raises:
        DataError: other images, or another order (65, both hashes).
    """
    made = {path: ids_hashes(manifest_beside(path)) for path in paths}
    known = [path for path in paths if made[path]]
    for path in known:
        why = f"its vokens count images with ids of sha256 {', '.join(made[path])}"
        if made[path] != made[known[0]]:
            why += f", {known[0]} with {', '.join(made[known[0]])}; use one image bank"
            raise DataError(why, path)
        if ids is not None and not are_ids_of(made[path], ids):
            why += f"; {file} has {hash_of(ids)}, other images or another order"
            raise DataError(f"{why}: give the images of these vokens", path)
    return [path for path in paths if not made[path]]


class VokenRows(NamedTuple):
    """Checked voken rows, their spans also as flat arrays."""

    rows: list[dict[str, Any]]  # R, as they were read
    spans: np.ndarray[Any, Any]  # (T, 2) int64
    starts: np.ndarray[Any, Any]  # (R + 1,) int64: row i owns spans[starts[i] : starts[i + 1]]


def parse_rows(lines: Sequence[Line], path: str, first: int = 1) -> VokenRows:
    """Parse R lines of a voken file; messages name `path`, and lines from `first` on.

    Raises:
        DataError: a line is not a voken row; file, line and key are named.
    """
    rows = [parse_json(line, path, number) for number, line in enumerate(lines, first)]
    return check_rows(rows, path, first)


def check_rows(rows: list[dict[str, Any]], path: str = "rows", first: int = 1) -> VokenRows:
    """Check voken rows: keys, types, equal lengths, spans inside the text.

    Rows have `text`, `spans`, `vokens`, and optionally `scores`; `path` and `first` are as for
    `parse_rows`.

    Raises:
        DataError: a row is wrong; its number and the key are named.
    """
    try:
        spans = [row["spans"] for row in rows]
        counts = np.fromiter(map(len, spans), np.int64, len(rows))
        pairs = list(_flat(spans))
        ends = np.fromiter((len(row["text"]) for row in rows), np.int64, len(rows))
        vokens = list(_flat(row["vokens"] for row in rows))
        # All rows are checked at once, by the sets of types that occur: that is fast, but cannot
        # name a row. The slow way, which names row and key, runs only where this fails.
        valid = (
            {type(row[key]) for row in rows for key in ("spans", "vokens")} <= {list}
            and {type(row["text"]) for row in rows} <= {str}
            and ends.max(initial=0) <= TEXT_CHARS
            and set(map(type, pairs)) <= {list}
            and set(map(len, pairs)) <= {2}
            and set(map(type, _flat(pairs))) <= {int}
            and set(map(type, vokens)) <= {int}
            and (not vokens or -1 <= min(vokens) <= max(vokens) <= _MAX)
            and all(len(row["vokens"]) == n for row, n in zip(rows, counts.tolist(), strict=True))
            and all(_valid_scores(row) for row in rows)
        )
        flat = np.fromiter(_flat(pairs), np.int64, 2 * len(pairs)).reshape(-1, 2)
        first_ok = (flat[:, 0] >= 0) & (flat[:, 0] <= flat[:, 1])
        last_ok = flat[:, 1] <= np.repeat(ends, counts)
        valid = valid and bool((first_ok & last_ok).all())
    except (KeyError, TypeError, ValueError, OverflowError):
        valid = False
    if not valid:
        for number, row in enumerate(rows, first):
            _check_row(row, path, number)
    return VokenRows(rows, flat, np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]))


def _valid_scores(row: Mapping[str, Any]) -> bool:
    if "scores" not in row:
        return True
    scores = row["scores"]
    return (
        type(scores) is list
        and len(scores) == len(row["vokens"])
        and set(map(type, scores)) <= {float, int}
    )


def _check_row(row: dict[str, Any], path: str, line: int) -> None:
    """Refuse a row with a fault, naming it; k vokens per token are allowed."""
    keys = {"text": str, "spans": list, "vokens": list}
    if "scores" in row:
        keys["scores"] = list
    require(row, keys, path, line)
    check_length(row["text"], path, line)

    def refuse(why: str) -> NoReturn:
        raise DataError(why, path, line)

    length = len(row["text"])
    count = len(row["spans"])
    for key in ("vokens", "scores"):
        if key in row and len(row[key]) != count:
            refuse(
                f'"{key}" has {len(row[key])} entries, "spans" has {count}; expected one per token'
            )
    for i, span in enumerate(row["spans"]):
        if type(span) is not list or len(span) != 2 or {*map(type, span)} != {int}:
            refuse(f'"spans" entry {i} must be [start, end], two integers, got {span!r:.60}')
        if not 0 <= span[0] <= span[1] <= length:
            refuse(
                f'"spans" entry {i} is {span}, not inside the text of {length} code points; '
                "the text was changed after vokenizing, or spans count bytes"
            )
    sizes = {len(v) if type(v) is list else 0 for v in row["vokens"]}
    if len(sizes) > 1:
        refuse('"vokens" has entries of several lengths; expected all integers or all lists of k')
    k = max(sizes, default=0)  # 0: integers, not lists
    of_k = f"a list of {k}: " if k else ""
    for key, types, expected in (
        ("vokens", {int}, f"a row of the image bank, -1 to {_MAX}"),
        ("scores", {int, float}, "a number"),
    ):
        for i, entry in enumerate(row.get(key, ())):
            values = entry if k and type(entry) is list else [entry]
            shaped = not k or (values is entry and len(entry) == k)
            valid = shaped and {*map(type, values)} <= types
            if key == "vokens":
                valid = valid and all(-1 <= v <= _MAX for v in values)
            if not valid:
                refuse(f'"{key}" entry {i} must be {of_k}{expected}, got {entry!r:.60}')


def _line(row: Mapping[str, Any], window: Window | None, number: int) -> bytes:
    try:
        return dumps(row)
    except TypeError as error:  # orjson reads 1,024 levels and writes 254
        if "Recursion" not in str(error):
            raise
        why = "is nested too deeply to be written; expected fewer than 254 levels"
        where = (window.path, window.first + number) if window else ()
        raise DataError(why, *where) from None


class EncodedRows(NamedTuple):
    """Rows as the bytes of an output."""

    data: bytes
    lengths: Array  # (R,) int64, tokens of each row


def encode(
    rows: Sequence[Mapping[str, Any]], ids: Array, path: str, window: Window | None = None
) -> EncodedRows:
    """Return rows as they are stored.

    Args:
        rows: with `text`, `spans`, `vokens`, `scores`; each a list or a contiguous array.
        ids: (tokens,) token ids of all rows, one row after the other; only the packed form keeps
            them.
        path: the output, whose suffix chooses the form.
        window: the input lines of the rows, for messages.

    Raises:
        DataError: more than one voken per token in the packed form (usage, exit 2).
    """
    lengths = np.fromiter((len(row["vokens"]) for row in rows), np.int64, len(rows))
    if not is_packed(path):
        return EncodedRows(b"".join(_line(row, window, i) for i, row in enumerate(rows)), lengths)
    assert lengths.sum() == len(ids), f"{lengths.sum()} vokens for {len(ids)} tokens"
    block = np.empty((len(ids), 2), "<i4")
    block[:, 0] = ids
    try:
        block[:, 1] = np.fromiter(_flat(row["vokens"] for row in rows), "<i4", len(ids))
    except (TypeError, ValueError):
        why = "the packed form holds one voken per token; write .jsonl for more (-k)"
        raise DataError(why, path, code=Exit.USAGE) from None
    return EncodedRows(block.tobytes(), lengths)


def _columns(k: int) -> dict[str, Any]:
    """Return the columns of voken rows with k images per token."""
    each = {"vokens": int, "scores": float}
    lists = {key: [kind] if k == 1 else [[kind]] for key, kind in each.items()}
    return {"text": str, "spans": [[int]], **lists, "split": str}


class VokenWriter:
    """Write voken rows, resuming like `Output`; the suffix chooses the form.

    The form is jsonl (also `-`, `.gz`, `.zst`), `.parquet` or packed (`.npy`).

    Args:
        path: the output; for a shard the whole that it belongs to.
        config: the settings that decide the rows.
        output: opens the files; has the parameters of `Output`.
        **how: further arguments of `output`: inputs, restart …

    Raises:
        DataError: the path's suffix belongs to another kind of artifact (usage): an index would be
            overwritten.
    """

    def __init__(
        self,
        path: str,
        config: Mapping[str, Any],
        output: Callable[..., Any] = Output,
        **how: Any,
    ) -> None:
        if re.search(r"\.(faiss|ids|json|safetensors|(npy|faiss|ids|json)\.(gz|zst))$", path):
            why = "cannot name voken rows; expected .jsonl, .jsonl.gz, .jsonl.zst, .parquet or .npy"
            raise DataError(why, path, code=Exit.USAGE)
        self.packed = is_packed(path)
        self.path = path
        files = [path, re.sub(r"npy$", "rows.npy", path)] if self.packed else [path]
        forms = {0: ("<i4", 2), 1: ("<i8", None)} if self.packed else None
        self._out = output(files, config, npy=forms, columns=_columns(config.get("k", 1)), **how)
        self.counts: dict[str, int] = {"rows": 0, "tokens": 0}  # over all runs of this output

    def __enter__(self) -> VokenWriter:
        self._out.__enter__()
        found = self._out.state.get("counts", {})
        missing = min(self.counts.keys() - found.keys(), default=None) if found else None
        if missing:  # anybody can seal a journal; packed rows would end elsewhere
            error = damaged(Path(self.path), f'its journal is damaged: "{missing}" is missing')
            self._out.__exit__(type(error), error, None)
            raise error
        self.counts |= found
        return self

    @property
    def complete(self) -> bool:
        """Whether an earlier run finished this output."""
        return bool(self._out.complete)

    @property
    def state(self) -> dict[str, Any]:
        """The last commit, which `io.read_windows` needs; empty at the start of a run."""
        return self._out.state  # type: ignore[no-any-return]

    def write(
        self,
        rows: Sequence[Mapping[str, Any]],
        ids: Array,
        window: Window | None = None,
        **counts: int,
    ) -> None:
        """Append rows, as `encode` takes them; `counts` as for `append`.

        Raises:
            DataError: as `encode`.
        """
        self.append(encode(rows, ids, self.path, window), **counts)

    def append(self, rows: EncodedRows, **counts: int) -> None:
        """Append rows that are encoded; `counts` are more numbers to add up for the manifest."""
        self._out.write(rows.data)
        if self.packed:
            # Ends count from the start of the file, also in a resumed run, which has its counts
            # from the last commit.
            ends = self.counts["tokens"] + np.cumsum(rows.lengths, dtype="<i8")
            self._out.write(ends.data, file=1)
        tokens = int(rows.lengths.sum())
        for name, count in {"rows": len(rows.lengths), "tokens": tokens, **counts}.items():
            self.counts[name] = self.counts.get(name, 0) + int(count)

    def commit(self, digest: str) -> None:
        """Make the rows of the input up to this `Window.digest` safe; stop if asked to."""
        self._out.commit({"rows": self.counts["rows"], "digest": digest, "counts": self.counts})

    def finish(self, **facts: Any) -> None:
        """Publish the files and a manifest of kind `vokens` with the counts and these facts.

        A count of the rows themselves replaces a fact of its name, from the manifests of their
        texts.
        """
        if self.complete:
            return
        form = "packed" if self.packed else "rows"
        self._out.finish(kind="vokens", form=form, **(facts | self.counts))

    def __exit__(self, *error: Any) -> None:
        self._out.__exit__(*error)
