"""`vg compare`: fine-tuned models side by side, with what is chance; examples; encoders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vgtools.commands.compare.encoders import (
    compare_similarity,
    compare_weights,
    compare_words,
    describe,
)
from vgtools.commands.compare.examples import compare_examples
from vgtools.commands.compare.flags import Encoders, Examples, Grounding, Scores, check
from vgtools.commands.options import (
    Count,
    Flag,
    Offline,
    Quiet,
    Seed,
    Value,
    flags,
    note,
    open_vocabulary,
)
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import page_path
from vgtools.io.own import write_page
from vgtools.io.process import Progress

if TYPE_CHECKING:
    from vgtools.tasks.compare import Row


@flags
def compare(
    ground: Grounding,
    single: Examples,
    encoders: Encoders,
    scores: Scores,
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="Run of vg finetune, or a folder of them, one per task; or an encoder.",
            show_default=False,
        ),
    ] = None,
    split: Annotated[
        str, Flag(metavar="NAME", help="Compare scores of this split; test needs labels.")
    ] = "dev",
    table: Annotated[bool, Flag("--table", help="Print markdown, also into a pipe.")] = False,
    reported: Annotated[
        str | None,
        Value(
            "[PAPER:]N",
            "Add the rows of a paper's table N, marked as reported: grounding:3, xdbert:1, or 2 "
            "for vokenization:2; without a RUN they are alone.",
        ),
    ] = None,
    samples: Annotated[int, Count("Bootstrap samples of the p-values.", 100)] = 10_000,
    seed: Seed = 0,
    offline: Offline = False,
    quiet: Quiet = False,
) -> None:
    """Compare fine-tuned models: scores, their spread over seeds, which differences exceed chance.

    One JSON record per RUN goes into a pipe, the layout of the Vokenization paper's Table 2 to a
    terminal: QQP as the mean of F1 and accuracy, SQuAD as exact match/F1, Avg. over the tasks that
    all rows have. NLVR2's consistency, R@5 and R@10 of phrases, and Q→AR of a folder with vcr-qa
    and vcr-qar are columns of their own. p-values are two-sided, from a paired bootstrap of the
    saved predictions: what other examples, the same for both models, and other seeds of each would
    give is chance. A model with a single seed has no p-value: what another seed would give is
    unknown. --holm corrects them for all differences of the table together.

    With --grounding the gain on each task is shown beside the share of its tokens that are visually
    grounded, with their correlation (appendix A.7).

    With --by-example the examples of each task with classes are divided into those that more seeds
    of the second RUN answer right than of the first (improved), fewer (worsened), and the others;
    the difference is accumulated over seeds. With --grounding, the share of grounded tokens among
    all but stop words and punctuation is compared between improved and worsened examples:
    quartiles, median, mean, and a p-value of the difference by permutation. --plot draws XDBERT's
    figure 4; --examples prints single examples as its appendix D, **grounded** and (stop) words.

    With --weights the RUNs are encoders (any reference): mean |difference| over the parameters that
    both have, in total and by name. --noise writes the first with noise of that size, the control
    of Table 3.

    With --pwcca: how alike the input vectors of the words are that two vocabularies share, by
    projection-weighted canonical correlations (XDBERT, Table 2). Chance alone gives far more than
    0, and more for fewer words: the same with shuffled rows, and random vectors, are beside it.
    With --similarity: Spearman's correlation of the cosines of words with what people said of the
    pairs (WordSim-353, SimLex-999 and files like them), its interval, and the gain over the first
    RUN (of these very models: other training seeds are not counted); with --grounding, pairs of
    grounded words apart from all others. With --describe: widths, layers and parameters of
    configurations; no weights are read.

    Examples:

        vg compare glue/mlm glue/vokens --reported 2

        vg compare glue/mlm glue/vokens --grounding captions.jsonl --plot gain.svg --table > gain.md

        vg compare table3/* --split test --median --majority --holm --reported grounding:3

        vg compare bert xdbert --by-example --grounding captions.jsonl --plot fig4.svg --examples 3

        vg compare --weights google-bert/bert-base-uncased run.vokens | jq .difference

        vg compare --weights google-bert/bert-base-uncased --noise bert.noise --magnitude 6.5e-3

        vg compare --pwcca builtin:minilm builtin:glove-50d --table

        vg compare --similarity simlex.txt builtin:minilm run.vokens --grounding captions.jsonl

        vg compare paper/tasks/visualbert --reported visualbert:1

        vg compare --describe bert-base.json clip.json --cross-layers 2 --reported xdbert:6
    """
    runs = runs or []
    check(len(runs), scores, ground, single, encoders, split, reported)
    if encoders.weights:
        compare_weights(runs, encoders, seed, offline, table)
    elif encoders.pwcca:
        compare_words(runs, encoders.words, reported, seed, offline, table)
    elif encoders.similarity is not None:
        file = encoders.similarity
        compare_similarity(runs, file, ground, samples, seed, offline, table)
    elif encoders.describe:
        describe(runs, encoders.cross_layers, reported, offline, table)
    elif single.by_example:
        compare_examples(
            runs, single, ground, split, reported, samples, seed, offline, quiet, table
        )
    else:
        _compare_scores(runs, scores, ground, split, reported, samples, seed, offline, quiet, table)


def _compare_scores(
    runs: Sequence[str],
    scores: Scores,
    ground: Grounding,
    split: str,
    reported: str | None,
    samples: int,
    seed: int,
    offline: bool,
    quiet: bool,
    markdown: bool,
) -> None:
    """Print a record per model, and gains against grounding ratios."""
    from vgtools.reports import tables
    from vgtools.tasks import compare as c

    rows = c.read_rows(runs, scores.baseline, split) if runs else []
    for row in rows:
        for folder in row.left_out:
            note("compare", f"{folder} has no finished run, skipped", quiet)
    inputs = [*runs, ground.grounding or ""]
    target = None if ground.plot is None else page_path(ground.plot, inputs)
    ratios = {} if ground.grounding is None else _ratios(rows, ground.grounding, ground, offline)
    records: list[dict[str, Any]] = []
    with Progress("compare", "models", len(rows), quiet) as bar:
        for record in c.compare(rows, samples=samples, seed=seed) if rows else ():
            records.append(record)
            bar.advance(1)
    if scores.holm:
        c.correct(records)
    gains = list(c.gains(records, ratios))
    if scores.majority:
        records.append(c.majority_row(rows, records[0]))
    if reported:
        records += tables.reported(reported)
    median = "median" if scores.median else "mean"
    shown = [tables.score_table(records, median, bold=markdown)]
    if gains:
        shown.append(tables.gain_table(gains))
    tables.show([*records, *gains], shown, markdown)
    if ground.grounding is not None and not gains:
        why = "no gain to draw: expected two RUNs with a task in common"
        raise DataError(why, code=Exit.USAGE)
    if target is not None:
        from vgtools.reports.figures import gain_figure

        write_page(target, gain_figure(gains, rows[0].name).render(target.suffix))


def _ratios(
    rows: Sequence[Row], captions: str, ground: Grounding, offline: bool
) -> dict[str, float]:
    """Return the grounding ratio of each task that the baseline and another row have."""
    from vgtools.tasks import compare as c

    files = ground.files()
    types = open_vocabulary(ground.tokenizer, offline)
    grounded = c.grounded_types(captions, types, ground.grounded_above)
    shared = [name for name in rows[0].tasks if any(name in row.tasks for row in rows[1:])]
    ratios: dict[str, float | None] = {}
    for name in shared:
        run = rows[0].tasks[name]
        texts = c.texts_of(run.task, files.get(name) or c.data_of(run))
        ratios[name] = c.grounding_ratio(texts, types, grounded)
    return {name: ratio for name, ratio in ratios.items() if ratio is not None}
