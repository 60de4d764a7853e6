"""Voken rows on disk: the one writer behind `vokenize` and `revokenize`, and the reader that checks them.

Rows, one a line: `{"text": …, "spans": [[s, e], …], "vokens": [row, …], "scores": [relevance, …]}`, further keys kept.
Spans are code points of the raw sentence. A voken of -1 means none, its score is 0. With k > 1 the entries of `vokens`
and `scores` are lists of k.

Packed, `-o X.npy`: `X.npy` holds an int32 (tokens, 2) array of [token id, voken], all rows after one another;
`X.rows.npy` holds an int64 (rows,) array of where each row ends in it: row i is `X[ends[i - 1] : ends[i]]`, row 0 starts
at 0. One voken a token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from vgtools import io
from vgtools.io import DataError, Exit

NONE = -1  # the voken of a token that has no image
_MAX = 2**31 - 1


class VokenWriter:
    """Write voken rows as jsonl (`-`, `.gz`, `.zst` too) or packed (`.npy`), by the suffix; resumes like `io.Output`.

    Args:
        path: what `-o` says.
        config: what decides the bytes; a half-done run with another one is refused.
        inputs: files read.
        restart: throw a half-done run away.

    Attributes:
        state: what `io.read_windows` needs to go on: rows done and their digest.
        complete: a former run finished this very output; there is nothing to do.
        counts: rows, tokens and whatever else `write` was told to count, over all runs of this output.

    Example:
        with VokenWriter(path, config, inputs=[text]) as out:
            for window in () if out.complete else read_windows(text, 4096, out.state):
                out.write(rows, ids)
                out.commit(window.digest)
            out.finish(tokenizer=…)
    """

    def __init__(self, path: str, config: Mapping[str, Any], *, inputs: Sequence[str | Path] = (),
                 restart: bool = False) -> None:
        self.packed = path.endswith(".npy")
        self.path = path
        files = [path, re.sub(r"npy$", "rows.npy", path)] if self.packed else [path]
        forms = {0: ("<i4", 2), 1: ("<i8", None)} if self.packed else None
        self._out = io.Output(files, config, npy=forms, inputs=inputs, restart=restart)
        self.counts: dict[str, int] = {"rows": 0, "tokens": 0}

    def __enter__(self) -> VokenWriter:
        self._out.__enter__()
        self.counts |= self._out.state.get("counts", {})
        return self

    @property
    def complete(self) -> bool:
        """Whether this output was finished before."""
        return self._out.complete

    @property
    def state(self) -> dict[str, Any]:
        """What was last committed; empty at the start of a run."""
        return self._out.state

    def write(self, rows: Sequence[Mapping[str, Any]], ids: np.ndarray[Any, Any], **counts: int) -> None:
        """Append rows.

        Args:
            rows: with `text`, `spans`, `vokens`, `scores`; each a list or a contiguous array.
            ids: (tokens,) token ids of all rows after one another; only the packed form keeps them.
            **counts: whatever else to add up for the manifest.

        Raises:
            DataError: more than one voken a token for the packed form (usage, exit 2).
        """
        if self.packed:
            lengths = [len(row["vokens"]) for row in rows]
            assert sum(lengths) == len(ids), f"{sum(lengths)} vokens for {len(ids)} tokens"
            block = np.empty((len(ids), 2), "<i4")
            block[:, 0] = ids
            try:
                block[:, 1] = np.fromiter(chain.from_iterable(row["vokens"] for row in rows), "<i4", len(ids))
            except (TypeError, ValueError):
                raise DataError("the packed form holds one voken a token; write .jsonl for more (-k)", self.path,
                                code=Exit.USAGE) from None
            self._out.write(block.data)
            self._out.write((self.counts["tokens"] + np.cumsum(lengths, dtype="<i8")).data, file=1)
        else:
            self._out.write(b"".join(map(io.dumps, rows)))
        for name, count in {"rows": len(rows), "tokens": len(ids), **counts}.items():
            self.counts[name] = self.counts.get(name, 0) + int(count)

    def commit(self, digest: str) -> None:
        """Make safe what was written, of the input up to this `Window.digest`; a stop that was asked for happens here."""
        self._out.commit({"rows": self.counts["rows"], "digest": digest, "counts": self.counts})

    def finish(self, **facts: Any) -> None:
        """Publish the files and a manifest of kind `vokens` with the counts and these facts."""
        self._out.finish(kind="vokens", form="packed" if self.packed else "rows", **self.counts, **facts)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._out.__exit__(kind, error, trace)
