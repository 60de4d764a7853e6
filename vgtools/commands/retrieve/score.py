"""How well rows find their own images, and images their rows: `vg retrieve --score`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from vgtools.commands.options import Target
from vgtools.commands.retrieve.retrievers import OpenedRetriever
from vgtools.io.errors import DataError
from vgtools.io.process import note

if TYPE_CHECKING:
    from vgtools.io.arrays import Array
    from vgtools.retrieval.texts import Ranking

_WINDOW = 4096  # lines per step


def score(
    opened: OpenedRetriever, text: str, limit: int | None, index: str, folds: int, target: Target
) -> None:
    """Write one record of how well rows find their own images, and the reverse."""
    import numpy as np

    from vgtools.analysis.recall import both_ways, mean_of_folds
    from vgtools.io.errors import Exit
    from vgtools.io.files import dumps
    from vgtools.io.output import Output
    from vgtools.io.streams import read_windows
    from vgtools.retrieval.texts import rank
    from vgtools.text.retrieved import input_rows

    row_of = {name: row for row, name in enumerate(opened.ids)}
    config = {**opened.config, "score": True, "limit": limit}
    config |= {"folds": folds} if folds > 1 else {}
    with Output([target.output], config, inputs=[text], restart=target.restart) as out:
        if out.complete:
            note("retrieve", f"{target.output} is up to date")
            return
        windows = read_windows(text, _WINDOW, limit=limit)
        rows = [row for window in windows for row in input_rows(window)]
        used = [row for row in rows if row.get("image") in row_of]
        # Among equal scores the first text ranks first, whatever the order of the file.
        used.sort(key=lambda row: (row["text"], row["image"]))
        if not used:
            size = len(opened.ids)
            why = f'has no row with an "image" of the {size} in {index}; nothing to score'
            raise DataError(why, text)
        images, own = np.unique([row_of[row["image"]] for row in used], return_inverse=True)
        if folds > len(images):
            why = f"--folds {folds}: expected at most {len(images)}, one image in each"
            raise DataError(why, text, code=Exit.USAGE)
        texts = [row["text"] for row in used]
        record = {
            "index": index,
            "texts": len(used),
            "images": len(images),
            "left_out": len(rows) - len(used),
            **both_ways(_counted(rank(texts, images, opened.retriever), len(used)), own),
        }
        if folds > 1:

            def ranked(texts_of: Array, fold: Array) -> Iterator[Ranking]:
                return rank([texts[i] for i in texts_of], images[fold], opened.retriever)

            record["folds"] = mean_of_folds(own, folds, ranked)
        out.write(dumps(record))
        out.finish(kind="retrieval-score")


def _counted(blocks: Iterable[Ranking], total: int) -> Iterator[Ranking]:
    """Yield blocks of texts, and show how many of all are done."""
    from vgtools.io.process import Progress

    with Progress("retrieve", "texts", total) as bar:
        for block in blocks:
            yield block
            bar.advance(len(block.order))
