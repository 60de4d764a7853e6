"""`vg prepare vectors`, `imagenet`: word vectors, and pictures of nouns."""

from __future__ import annotations

from typing import Annotated

import typer

from vgtools.commands.options import Flag, Limit, Quiet, Restart, flags, note, refuse_if
from vgtools.io.errors import amount


@flags
def vectors(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="crawl-300d-2M.vec, glove.6B.300d.txt or the like"),
    ],
    output: Annotated[
        str,
        Flag("--output", "-o", metavar="X.npy", help="File to write; the same command resumes it."),
    ],
    limit: Limit = None,
    restart: Restart = False,
    quiet: Quiet = False,
) -> None:
    """Convert word vectors from their text form.

    Lines are a word and its numbers, as fastText, GloVe and word2vec have them, with or without a
    first line of their counts; .gz and .zst are read as they are. X.npy has a row per word, X.ids
    the words. Of a duplicate word the first counts. Binary forms are refused.

    Examples:

        vg prepare vectors crawl-300d-2M.vec -o crawl.npy

        unzip -p crawl-300d-2M.vec.zip | vg prepare vectors - --limit 200000 -o common.npy
    """
    refuse_if(not output.endswith(".npy"), "--output", f"must end in .npy, got {output!r}")
    from vgtools.text.vector_files import pack_vectors

    count, left_out, complete = pack_vectors(file, output, limit=limit, restart=restart)
    if complete:
        note("prepare", f"{output} is up to date", quiet)
        return
    left = [f"{reason}: {number:,}" for reason, number in left_out.items()]
    report = f"vectors of {amount(count, 'word')} in {output}"
    note("prepare", f"{report}; left out: {', '.join(left)}" if left else report, quiet)
