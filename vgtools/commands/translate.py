"""`vg translate`: a stream of sentences in another language."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from vgtools.commands.options import (
    NOT_TEXT,
    TEXT,
    Argument,
    BatchSize,
    File,
    Flag,
    Limit,
    Runtime,
    Target,
    Value,
    help_at_terminal,
    refuse_if,
)
from vgtools.commands.signature import flags
from vgtools.io.errors import amount
from vgtools.io.process import note
from vgtools.io.settings import count, value

_WINDOW = 2048  # lines that are sorted by length together


@dataclass(frozen=True, kw_only=True)
class BeamSearchFlags:
    """How translations are searched.

    Attributes:
        beams: Beams of the search; 1 is greedy.
        length_penalty: Log probabilities are divided by the length to this power.
        longer: Tokens by which a translation may be longer than its source.
        dtype: Numbers of matrix products.
    """

    beams: int = count(4, max=256)
    length_penalty: float = value(0.6, metavar="NUMBER")
    longer: int = count(50, least=0)
    batch_size: BatchSize = 64
    dtype: Literal["float32", "bfloat16"] = value("float32")


@flags
def translate(
    context: typer.Context,
    model: Annotated[str, Argument("MODEL")],
    search: BeamSearchFlags,
    target: Target,
    runtime: Runtime,
    text: Annotated[str, TEXT] = "-",
    feats: Annotated[str | None, Value("X.npy")] = None,
    index: Annotated[str | None, File()] = None,
    json: Annotated[bool, Flag("--json")] = False,
    limit: Limit = None,
) -> None:
    """Translate sentences, one line per line of TEXT, in order, empty lines included.

    Lines are plain text; with --json rows that keep "id", "split", "image" and "target" of JSON
    rows. A model that was trained with --retrieved looks at images: TEXT is then rows of vg
    retrieve, and --feats has features of the same backbone as in training. Images are matched by
    name: the image of row N is line N of the index's ids. Rows on a pipe name no index; --index
        does.

    Beam search, 4 beams, divided by length^0.6, at most 50 tokens longer than the source. Sentences
    are translated in batches of neighbours in length. A translation depends only on its sentence,
    up to rounding. If memory runs out, batches are halved. With -o FILE the same command resumes
    after a kill and ends byte-identical.

    Examples:

        vg translate ende/seed-9595/model newstest.en -o newstest.de

        echo 'A dog runs.' | vg translate ende/seed-9595/model -

        vg retrieve news.en --index coco.faiss -k 8 | vg translate va/seed-9595/model - \\
          --feats feats.npy --index coco.faiss > news.de

    Args:
        model: RUN/seed-N/model of vg finetune translation, or a hub name.
        feats: Model that looks at images: features of those that rows name.
        index: With --feats: index of the images, if rows on a pipe, or by hand, name them.
        json: Write rows {"text", "translation"} instead of lines.
    """
    help_at_terminal(context, text)
    refuse_if(index and not feats, "--index", "needs --feats, features of the images")
    refuse_if(re.search(NOT_TEXT, target.output), "-o", "expected a text file, or .jsonl")
    from vgtools.io.files import dumps
    from vgtools.io.output import Output
    from vgtools.io.process import Progress
    from vgtools.io.splits import inherited, is_held_out
    from vgtools.io.streams import read_windows
    from vgtools.io.windows import growing_windows
    from vgtools.models.references import pick_device, pick_dtype
    from vgtools.models.seq2seq import Decoding
    from vgtools.systems.visual_awareness.translation import StreamTranslator, open_model
    from vgtools.text.retrieved import input_rows

    device = pick_device(runtime.device)
    how = Decoding(search.beams, search.length_penalty, search.longer)
    opened = open_model(model, feats, device)
    dtype = pick_dtype(search.dtype)
    worker = StreamTranslator(opened, text, how, search.batch_size, dtype, index)
    config = {
        "command": "translate",
        **worker.config(),
        **vars(how),
        "dtype": search.dtype,
        "device": device.type,
        "json": json,
        "limit": limit,
    }
    inputs = [text, *([feats] if feats else []), *([index] if index else [])]
    with (
        Output([target.output], config, inputs=inputs, restart=target.restart) as out,
        Progress("translate", "lines") as bar,
    ):
        if out.complete:
            note("translate", f"{target.output} is up to date")
            return
        counts = Counter[str](out.state.get("counts", {}))
        held_out = inherited([text])
        lines = read_windows(text, 64, out.state, limit)
        for window in growing_windows(lines, _WINDOW):
            found = worker(window)
            if json:
                rows = zip(input_rows(window), found, strict=True)
                out.write(b"".join(dumps(_row(row, said)) for row, said in rows))
            else:
                out.write("".join(f"{said}\n" for said in found).encode())
                # Lines have no splits: the manifest counts the rows that nothing may learn from.
                if own := sum(map(is_held_out, window.rows())):
                    counts["held_out"] += own
            counts.update(rows=len(found), replaced=window.replaced, cut=worker.take_cut())
            out.commit({"rows": counts["rows"], "digest": window.digest, "counts": counts})
            bar.advance(len(found))
        out.finish(kind="translations", **{**held_out, **counts})
    _summary(counts)


def _row(row: Mapping[str, Any], translation: str) -> dict[str, Any]:
    """Return a row with its translation after its text."""
    return {"text": row["text"], "translation": translation, **row}


def _summary(counts: Mapping[str, int]) -> None:
    """Print the number of lines that were written."""
    message = amount(counts["rows"], "line")
    if counts["cut"]:
        message += f", {counts['cut']:,} cut to the longest that the model reads"
    if counts["replaced"]:
        message += f"; {amount(counts['replaced'], 'line')} had bytes that are not UTF-8, replaced"
    note("translate", message)
