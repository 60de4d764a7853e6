"""The rows of texts with the images that were retrieved for them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from vgtools.commands.retrieve.retrievers import ImageSearchFlags, OpenedRetriever
from vgtools.io.names import seen_from

if TYPE_CHECKING:
    from vgtools.io.arrays import Array
    from vgtools.io.streams import Piece

_WINDOW = 4096  # lines per step


class RetrieveTask:
    """How texts get their images: all texts, or a shard's.

    Args:
        opened: finds the images.
        search: how.
        index: the bank, or its parts, as the user named them.
        limit: stop after this many lines.
    """

    def __init__(
        self,
        opened: OpenedRetriever,
        search: ImageSearchFlags,
        index: Sequence[str],
        limit: int | None,
    ) -> None:
        self.config = {
            **opened.config,
            "k": search.k,
            "not_own": search.not_own,
            "limit": limit,
            **({} if search.emb is None else {"emb": True}),
        }
        self._opened = opened
        self._search = search
        self._index = index
        self._limit = limit
        self._row_of: dict[str, int] = {}
        if search.not_own:
            from vgtools.retrieval.duplicates import rows_by_name

            self._row_of = rows_by_name(opened.ids, opened.indexes)

    def open(self, path: str, output: Callable[..., Any]) -> Any:
        """Return the output for rows, and for embeddings if asked for."""
        from vgtools.text.retrieved import COLUMNS

        places = [seen_from(path, part) for part in self._index]
        self._place = places[0] if len(places) == 1 else places
        emb = self._search.emb
        if emb is None:
            return output([path], self.config, columns=COLUMNS)
        npy = {1: ("float32", self._opened.dim)}
        return output([path, emb], self.config, npy=npy, columns=COLUMNS)

    def steps(self, pieces: Sequence[Piece], out: Any) -> Generator[int, None, None]:
        """Write the rows of pieces of the input and finish; yield the texts of each step."""
        import numpy as np

        from vgtools.io.files import dumps
        from vgtools.io.splits import inherited
        from vgtools.io.streams import read_windows
        from vgtools.io.windows import growing_windows
        from vgtools.retrieval.texts import retrieve
        from vgtools.text.retrieved import input_rows, output_row

        opened = self._opened
        kept = deque[Any]()
        if self._search.emb is not None:
            opened.keep(kept)
        counts = Counter[str](out.state.get("counts", {}))
        held_out = inherited({piece.path for piece in pieces})
        lines = read_windows(pieces, 64, out.state, self._limit)
        windows = growing_windows(lines, _WINDOW)
        k = self._search.k
        found = retrieve(windows, input_rows, opened.retriever, self._own, k)
        with closing(found) as steps:  # its threads end here, whatever happens
            for window, (rows, (images, scores)) in steps:
                parts = zip(rows, images, np.round(scores, 4), strict=True)
                out.write(b"".join(dumps(output_row(*part)) for part in parts))
                if self._search.emb is not None:
                    out.write(kept.popleft().data, 1)
                counts.update(
                    rows=len(rows),
                    without=int((images[:, 0] < 0).sum()),
                    own_left_out=int((self._own(rows) >= 0).sum()),
                    own_unknown=self._count_unknown(rows),
                    replaced=window.replaced,
                )
                out.commit({"rows": counts["rows"], "digest": window.digest, "counts": counts})
                yield len(rows)
        facts = {"index": self._place, "count": len(opened.ids), "k": k, **held_out}
        out.finish(kind="retrieved", **facts, **counts)

    def _count_unknown(self, rows: Sequence[Mapping[str, Any]]) -> int:
        """Return how many rows name an image of their own that the bank does not have."""
        given = [row["image"] for row in rows if row.get("image")] if self._search.not_own else []
        return sum(name not in self._row_of for name in given)

    def _own(self, rows: Sequence[Mapping[str, Any]]) -> Array:
        """Return (B,) int32, the image that each row names as its own, -1 without one."""
        import numpy as np

        return np.array([self._row_of.get(row.get("image", ""), -1) for row in rows], np.int32)
