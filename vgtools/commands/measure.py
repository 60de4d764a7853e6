"""`vg measure`: knowledge in the words and sentences of encoders, without fine-tuning."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from vgtools.commands.options import (
    Argument,
    File,
    GroundingFlags,
    Runtime,
    Samples,
    Seed,
    Table,
    Value,
    refuse_if,
)
from vgtools.commands.signature import flags
from vgtools.commands.topics import Topic, page
from vgtools.io.process import Progress, note
from vgtools.io.settings import count, file, value

if TYPE_CHECKING:
    from vgtools.measures.compare import Record
    from vgtools.measures.evaluation import Measured


TASKS = Topic("tasks", page("measure.tasks"))


@dataclass(frozen=True, kw_only=True)
class WordFlags:
    """How the vector of a word is read."""

    vectors: Literal["alone", "contexts", "input"] | None = value(
        None,
        "Vector of a word: mean of its tokens' last states, by itself or in --contexts, or of its "
        "rows of the input table.",
        show_default="contexts with --contexts, else alone",
    )
    contexts: str | None = file(None, "Text with the words.")
    per_word: int = count(30, "Lines of --contexts per word, drawn at random.")


@dataclass(frozen=True, kw_only=True)
class MeasuredFiles:
    """The files that encoders are measured on.

    Attributes:
        on: File to measure on; repeatable.
        feats: Features of the photos that captions of --on are of.
        masked: Text whose words are hidden, one in seven at a time; repeatable.
        thirds: Norms of vg prepare norms: --masked also by thirds of their values.
        probe: Probe for a task with its official files, for example rte=glue/RTE; repeatable.
        limit: Training examples of a probe, the first ones.
    """

    on: list[str] | None = file(None, show_default=False)
    feats: str | None = value(None, metavar="X.npy")
    masked: list[str] | None = file(None, topic=TASKS)
    thirds: str | None = file(None, topic=TASKS)
    probe: list[str] | None = value(None, metavar="TASK=DATA", topic=TASKS)
    limit: int = count(10_000, topic=TASKS)

    @property
    def named(self) -> list[str]:
        """Their names."""
        alone = [path for path in (self.feats, self.thirds) if path is not None]
        return [*(self.on or []), *(self.masked or []), *alone]


@flags
def measure(
    *,
    refs: Annotated[
        list[str], Argument("ENCODER", "Encoders or word vectors; or items.jsonl of -o.")
    ],
    files: MeasuredFiles,
    words: WordFlags,
    ground: GroundingFlags,
    against: Annotated[
        str | None,
        Value("ENCODER", "Encoder that the others are compared with.", show_default="the first"),
    ] = None,
    samples: Samples = 10_000,
    seed: Seed = 0,
    output: Annotated[str | None, File("Also write each item's predictions (jsonl).")] = None,
    table: Table = False,
    page: Annotated[str | None, Value("OUT.html", "Also write a page of forest plots.")] = None,
    runtime: Runtime,
) -> None:
    """Measure the knowledge in words and sentences of encoders, without fine-tuning.

    The form of a file of --on decides how it is used; none is shipped, each has its own licence:

    Pairs of words with people's scores (MEN, SimLex-999, SimVerb-3500, WordSim-353, MTurk-771):
    Spearman's correlation with the cosines of their vectors.

    Rows {"word", "value"} of vg prepare norms: Pearson's correlation with the predictions of ridge
    regression, cross-validated in ten folds; for classes (vg prepare wordnet), accuracy.

    Pairs of sentences (STS-B, SICK): Spearman's correlation with the cosines of mean token states.

    Minimal pairs (BLiMP) and prompts (CoDa, ViComTe), of masked language models; and without --on
    hidden words of texts and probes for tasks: see --help tasks.

    Captions {"image", "text"} with --feats: looks, the cosines of the mean whitened features of the
    photos of a word (10 or more) with their ridge regression; the share of a photo's 10 neighbours
    that captions and features agree on; unbiased linear CKA, less the bias that a jackknife still
    finds; each next to permuted photos, and the difference: looks are mostly words that share
    photos, permuted or not.

    Encoders read a text between their special tokens, left out of means; vectors are centred,
    but not for neighbours.
    Prints one record per file and encoder: the statistic with its 95 % interval, and the difference
    from --against with interval and p: paired, by bootstrap over the items that all encoders know,
    p_holm corrected for all differences printed. Runs ROW/seed-0, ROW/seed-1, … are one row, which
    ROW names, worth their mean: with two or more per row other seeds count as chance, with one p is
    of these very models, and no difference counts as significant. --grounding divides items by
    their words.

    -o writes items that a later call compares with others', without the encoders.

    Examples:

        vg measure builtin:minilm run.vokens --on MEN.txt --on simlex.txt --contexts wiki.txt

        vg measure builtin:minilm builtin:glove-50d --on norms.jsonl --on sts-dev.tsv -o old.jsonl

        vg measure builtin:minilm run.vokens --on dev.jsonl --feats dev.npy --contexts captions.txt

        vg measure old.jsonl new.jsonl --table --page measured.html
    """
    are_items = any(ref.endswith(".jsonl") for ref in refs)
    both = are_items and not all(ref.endswith(".jsonl") for ref in refs)
    refuse_if(both, "ENCODER", "name encoders or items, X.jsonl of -o, not both")
    again = are_items and (
        files != MeasuredFiles() or output or words != WordFlags() or ground != GroundingFlags()
    )
    refuse_if(again, "ENCODER", "items were measured already; --on, -o and the like need encoders")
    measurable = are_items or files.on or files.masked or files.probe
    refuse_if(not measurable, "--on", "name a file to measure on")
    refuse_if(bool(files.thirds and not files.masked), "--thirds", "name a text with --masked")
    refuse_if(words.vectors == "contexts" and not words.contexts, "--contexts", "name a text")
    other = words.contexts and words.vectors not in (None, "contexts")
    refuse_if(other, "--contexts", f"is not read with --vectors {words.vectors}")
    from vgtools.io.files import page_path
    from vgtools.io.names import is_stream, manifest_path
    from vgtools.io.own import write_page
    from vgtools.measures import compare, saved
    from vgtools.measures.evaluation import runs_of
    from vgtools.reports.measured import forest_page
    from vgtools.reports.tables import measure_tables, short_names, show

    inputs = [path for path in (*refs, *files.named, words.contexts) if path is not None]
    target = page_path(page, inputs) if page is not None else None  # refused before any work
    refuse_if(output is not None and is_stream(output), "-o", "name a file, which has a manifest")
    if target is not None and output is not None:
        real = os.path.realpath(output)
        taken = str(target).startswith(f"{real}.") or target in (Path(real), manifest_path(real))
        refuse_if(taken, "--page", f"is a name that vg uses for -o {output}; choose another")
    found = None
    if are_items:
        found, names = saved.read_items(refs)
    else:
        names = [run for ref in refs for run in runs_of(ref)]
    rows = _rows(names, against)

    def judge(measured: Sequence[Measured]) -> list[Record]:
        for remark in compare.left_out(measured, names):
            note("measure", remark)
        return compare.compare(measured, rows, samples, seed)

    if found is not None:
        records = judge(found)
    else:
        records = _measure(names, files, words, ground, seed, output, runtime, judge)
    for remark in compare.out_of_reach(records, samples):
        note("measure", remark)
    if target is not None:
        write_page(target, forest_page(records, ", ".join(short_names(rows).values())))
    show(records, measure_tables(records), table)


def _rows(names: Sequence[str], against: str | None) -> dict[str, list[int]]:
    """Return the rows of encoders, see `rows_of`, the one that others are compared with first."""
    from vgtools.measures.evaluation import rows_of
    from vgtools.reports.tables import short_names

    rows = rows_of(names)
    if against is None:
        return rows
    short = short_names(rows)
    found = [row for row in rows if against.rstrip("/") in (row, short[row])]
    refuse_if(not found, "--against", f"expected one of {', '.join(short.values())}")
    return {found[0]: rows[found[0]]} | rows


def _measure(
    refs: Sequence[str],
    files: MeasuredFiles,
    words: WordFlags,
    ground: GroundingFlags,
    seed: int,
    output: str | None,
    runtime: Runtime,
    judge: Callable[[Sequence[Measured]], list[Record]],
) -> list[Record]:
    """Ask encoders and judge them; then write the items if they are to be kept."""
    from vgtools.io.files import dumps
    from vgtools.io.output import Output
    from vgtools.measures import contexts, run, saved
    from vgtools.measures.probes import probe_files, read_probe, title_of
    from vgtools.measures.subject import Reading
    from vgtools.models.references import pick_device

    vectors = words.vectors or ("contexts" if words.contexts else "alone")
    tasks = [probe_files(given) for given in files.probe or []]
    run.refuse_alike([(splits["dev"], title_of(task, splits)) for task, splits in tasks])
    own = [path for _, splits in tasks for path in splits.values()]
    read = (*filter(os.path.isfile, refs), *files.named, *own, words.contexts, ground.grounding)
    inputs = [path for path in read if path is not None]
    config = {"command": "measure", **asdict(words), **asdict(ground), "seed": seed}
    with contextlib.ExitStack() as stack:
        out = None
        if output is not None:  # refused now, if it cannot be written
            out = stack.enter_context(Output([output], config, inputs=inputs, restart=True))
        evaluations = run.open_evaluations(
            files.on or [], files.feats, seed, files.masked or [], files.thirds
        )
        evaluations += [read_probe(*own, files.limit) for own in tasks]
        known = ground.types()
        drawn = None
        if words.contexts is not None:
            every = run.words_of(evaluations)
            drawn = contexts.draw(words.contexts, every, words.per_word, seed)
        reading = Reading(vectors, drawn, str(pick_device(runtime.device)))
        with Progress("measure", "encoders", len(refs)) as bar:
            grounded = None if known is None else known[1]
            measured, prints = run.measure(evaluations, refs, reading, grounded, bar.advance)
        records = judge(measured)
        if out is not None:
            for row in saved.item_rows(measured):
                out.write(dumps(row))
            pairs = zip(refs, prints, strict=True)
            encoders = [{"encoder": ref, "fingerprint": print_} for ref, print_ in pairs]
            contents = saved.contents(measured)
            out.finish(kind=saved.KIND, encoders=encoders, vectors=vectors, contents=contents)
    return records
