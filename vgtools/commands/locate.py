"""`vg locate`: where in a picture a text is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vgtools.commands.options import (
    NOT_TEXT,
    Argument,
    File,
    Limit,
    Runtime,
    Target,
    Value,
    help_at_terminal,
    refuse_if,
)
from vgtools.commands.signature import flags
from vgtools.io.errors import DataError, amount
from vgtools.io.process import note
from vgtools.io.settings import count, value

if TYPE_CHECKING:
    from vgtools.images.maps import Grids, Located, Locator, Query, Step
    from vgtools.systems.visual_awareness.localisation import Verdict


@dataclass(frozen=True, kw_only=True)
class MapFlags:
    """How maps are made, and whether they are drawn or scored.

    Attributes:
        heat: Concept activation map of a retriever, the plain relevance of each position, or
            GradCAM.
        dims: Concepts: the N largest dimensions of the text count; more than there are take all.
        score: Print how well boxes or masks are found, with controls.
    """

    heat: Literal["concepts", "relevance", "gradient"] | None = value(
        None, show_default="as the run allows"
    )
    dims: int | None = count(None, show_default="180; 10 of COCO's classes")
    score: bool = value(False)


@flags
def locate(
    context: typer.Context,
    matcher: Annotated[str, Value("REF")],
    feats: Annotated[str, File()],
    maps: MapFlags,
    target: Target,
    runtime: Runtime,
    queries: Annotated[str, Argument("QUERIES")] = "-",
    limit: Limit = None,
) -> None:
    """Show where in a picture a text is: a map of heat for every text and its picture.

    One row per query, in order: {"text", "image", "grid": [h, w], "heat": [h * w numbers], "point":
    [x, y]}, the point being the centre of the hottest cell, from 0 to 1 of the picture. A query is
    a row with "text" and "image" ("span": only these characters of it), or each of the "phrases" of
    a row of vg prepare flickr30k-entities. Where "boxes" are known, "hit" is whether the point is
    in one of them. In a file of COCO, each class of each picture is a query ("cat cats"), and "iou"
    compares the pixels above 45 % of the map's range with the class's mask. A text without a known
    word has no heat. With -o FILE the same command resumes after a kill and ends byte-identical;
    -o X.parquet writes a table.

    A retriever (vg train-matcher visual-awareness) makes concept activation maps; a matcher of
    vokens, or a CLIP, embeds each position, and the heat is its relevance. Extract the grid with
    --picture: the backbone then sees the whole picture, and not its centre alone.

    --score prints one record instead of rows. Boxes: how often the point hits, next to the centre
    of the picture, a random cell and the area of the boxes. Masks: the share of pictures with a
    class whose IoU exceeds 0.3, 0.4, 0.5, next to a map that falls with the distance from the
    centre, and the whole picture. All with 95 % intervals of a bootstrap over pictures.

    Examples:

        vg locate phrases.jsonl --matcher retriever --feats grid.npy --score

        vg locate instances_val2017.json --matcher retriever --feats grid.npy --score

        vg locate queries.jsonl --matcher retriever --feats grid.npy -o heat.jsonl

        vg show heat.jsonl --images images.jsonl -o heat.html

    Args:
        matcher: Run of vg train-matcher, or a CLIP and its kin.
        feats: Grid of the pictures: X.npy of vg extract-image-feats --pooling none.
        queries: .jsonl with "text" and "image", .gz, .zst, or - for stdin; or an instances_*.json
            of MS COCO.
    """
    help_at_terminal(context, queries)
    refused = re.search(NOT_TEXT, target.output)
    refuse_if(refused, "-o", "expected .jsonl, .jsonl.gz, .jsonl.zst or .parquet")
    from vgtools.systems import open_maps

    opened, grids = open_maps(
        matcher,
        feats,
        heat=maps.heat,
        dims=maps.dims,
        usual_dims=10 if _is_coco(queries) else 180,
        device=runtime.device,
    )
    config = {"command": "locate", "feats": grids.manifest["files"], **opened.config}
    config["backbone"] = grids.manifest.get("backbone")  # cells are placed by its crop
    config["limit"] = limit
    work = LocateTask(queries, limit, opened.locator, grids, config, target)
    if maps.score:
        _score(work, {"matcher": matcher, "feats": feats})
    else:
        _write(work)


@dataclass(frozen=True)
class LocateTask:
    """The input, and the output to write."""

    queries: str
    limit: int | None
    locator: Locator
    grids: Grids
    config: dict[str, Any]
    target: Target

    def found(
        self, state: Mapping[str, Any]
    ) -> Iterator[tuple[Step, list[Located], list[Verdict | None]]]:
        """Yield each step with its maps, and the verdict on each where the answer is known."""
        from vgtools.images.maps import known_steps, line_steps, locate
        from vgtools.systems.visual_awareness.localisation import judge

        if _is_coco(self.queries):
            steps = known_steps(_classes(self.queries), state, self.limit)
        else:
            steps = line_steps(self.queries, state, self.limit)
        for step, maps in locate(steps, self.locator, self.grids, self.queries):
            yield step, maps, list(map(judge, maps))


def _write(work: LocateTask) -> None:
    """Write a row per query."""
    from vgtools.images.maps import COLUMNS
    from vgtools.io.files import dumps
    from vgtools.io.output import Output
    from vgtools.io.process import Progress
    from vgtools.io.splits import inherited

    target = work.target
    how: dict[str, Any] = {"inputs": [work.queries], "restart": target.restart}
    with (
        Output([target.output], work.config, columns=COLUMNS, **how) as out,
        Progress("locate", "queries") as bar,
    ):
        if out.complete:
            note("locate", f"{target.output} is up to date")
            return
        counts = Counter[str](out.state.get("counts", {}))
        held_out = inherited([work.queries])
        for step, maps, verdicts in work.found(out.state):
            for each, verdict in zip(maps, verdicts, strict=True):
                marks: dict[str, Any] = {} if verdict is None else verdict.marks
                out.write(dumps(each.row(**marks)))
                counts.update(
                    queries=1,
                    without=not len(each.heat),
                    boxed="hit" in marks,
                    hits=marks.get("hit", False),
                )
            out.commit(step.state | {"counts": counts})
            bar.advance(len(maps))
        out.finish(kind="heat", grid=work.grids.shape, **held_out, **counts)
    message = amount(counts["queries"], "query", "queries")
    if counts["without"]:
        message += f", {counts['without']:,} without a known word"
    if counts["boxed"]:
        message += f"; the point hits {counts['hits']:,} of {counts['boxed']:,} with boxes"
    note("locate", message)


def _score(work: LocateTask, names: Mapping[str, str]) -> None:
    """Write one record of how well queries are found."""
    from vgtools.io.files import dumps
    from vgtools.io.output import Output
    from vgtools.io.process import Progress
    from vgtools.systems.visual_awareness.localisation import score

    target = work.target
    config = {**work.config, "score": True}
    with (
        Output([target.output], config, inputs=[work.queries], restart=target.restart) as out,
        Progress("locate", "queries") as bar,
    ):
        if out.complete:
            note("locate", f"{target.output} is up to date")
            return
        judged: list[Verdict] = []
        total = 0
        for _, maps, verdicts in work.found({}):
            judged += [verdict for verdict in verdicts if verdict is not None]
            total += len(maps)
            bar.advance(len(maps))
        if not judged:
            why = 'has no query with "boxes" or masks; nothing to score'
            raise DataError(why, work.queries)
        record: dict[str, Any] = {
            **names,
            "heat": work.config["heat"],
            "dims": work.config.get("dims"),
            "grid": work.grids.shape,
            "left_out": total - len(judged),
            **score(judged),
        }
        out.write(dumps(record))
        out.finish(kind="heat-score")


# ----------------------------------------------------------------------------------------- queries


def _is_coco(queries: str) -> bool:
    """Return whether queries are a file of MS COCO, by its name as elsewhere."""
    return bool(re.search(r"\.json(\.gz|\.zst)?$", queries))


def _classes(path: str) -> Iterator[Query]:
    """Yield the classes of the pictures of a file of COCO."""
    from vgtools.datasets.annotations import coco_masks
    from vgtools.images.maps import Query
    from vgtools.io.names import refuse_stream

    refuse_stream(path)
    for each in coco_masks(path):
        text = f"{each.name} {each.name}s"
        size = (each.width, each.height)
        yield Query(text, each.image, None, size=size, outlines=each.outlines)
