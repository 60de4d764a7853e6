"""`vg prepare pdtb`, `vua`, `task`, `minimal-pairs`, `prompts`: official files, and their texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from vgtools.commands.options import (
    Argument,
    Count,
    File,
    Flag,
    Quiet,
    Target,
    TaskFiles,
    Value,
    refuse_if,
)
from vgtools.commands.signature import flags
from vgtools.io.errors import Tally

if TYPE_CHECKING:
    from vgtools.text.parses import Tagger


@flags
def pdtb(
    table: Annotated[str, Argument("FILE")],
    target: Target,
    split: Annotated[Literal["train", "dev", "test"] | None, Flag()] = None,
    quiet: Quiet = False,
) -> None:
    """Write the implicit relations of PDTB 2.

    Rows are {"sentence1", "sentence2", "label", "split"}, as vg finetune pdtb reads them. Relations
    without a sense of level 2 are left out and counted.

    Examples:

        vg prepare pdtb pdtb2.csv --split train -o pdtb/train.jsonl

        vg prepare pdtb pdtb2.csv | jq -r .label | sort | uniq -c

    Args:
        table: pdtb2.csv
        split: Keep sections 2-20, 0-1 or 21-22; all of them if not given.
    """
    from vgtools.datasets import task_files
    from vgtools.datasets.rows import save

    tally = Tally()
    rows = task_files.pdtb(table, tally, split)
    config = {"command": "pdtb", "split": split}
    save(rows, target.output, tally, "relations", config, [table], target.restart)


@flags
def vua(
    table: Annotated[str, Argument("FILE")],
    target: Target,
    tagger: Annotated[str, Value("NAME")] = "builtin:spacy-sm",
    quiet: Quiet = False,
) -> None:
    """Write sentences of VUA, metaphors among nouns tagged.

    Rows are {"text", "tags"}, a tag per word between blanks, null for other words, as vg finetune
    vuan reads them. Sentences without a noun are left out and counted. Nouns are found by the
    file's own parts of speech, or by the tagger.

    Examples:

        vg prepare vua VUA_seq_formatted_train.csv -o vuan/train.jsonl

        vg prepare vua vuamc_corpus_train.csv | jq -r '.tags[] | strings' | sort | uniq -c

    Args:
        table: VUA_seq_formatted_train.csv, or vuamc_corpus_train.csv …
        tagger: Finds nouns in vuamc_corpus: a spaCy model or builtin:spacy-sm.
    """
    from vgtools.datasets import task_files
    from vgtools.datasets.rows import save
    from vgtools.text.parses import tagger_facts

    tally = Tally()
    rows = task_files.metaphors(table, tally, lambda texts: _nouns(tagger, texts))
    config = {"command": "vua", "tagger": tagger, **tagger_facts(tagger)}
    save(rows, target.output, tally, "tagged sentences", config, [table], target.restart)


@flags
def task(
    name: Annotated[str, Argument("TASK")],
    data: Annotated[str | None, Argument("DATA")] = None,
    *,
    files: TaskFiles,
    hold_out: Annotated[float | None, Value("SHARE")] = None,
    split: Annotated[str | None, Value("NAME")] = None,
    target: Target,
    quiet: Quiet = False,
) -> None:
    """Write the text of every example of a task.

    Rows are {"id", "split", "text"}, to retrieve images for, of every split that vg finetune would
    read from the same arguments. A pair of texts is joined by a blank: images belong to the
    encoder's whole input. SNLI's rows also name the photo that the premise describes, for vg
    retrieve --not-own.

    Rows of a task with pictures name them, "image" or two "images", for vg pretrain visualbert
    --weight mlm=1. VQA's questions end in the answer that most annotators gave; each choice of VCR
    is a row, after the question or, for vcr-qar, after question and answer.

    Examples:

        vg prepare task snli snli_1.0 | vg retrieve - --index coco.faiss -o snli.images.jsonl

        vg prepare task sick SICK --no-test -o sick.jsonl

        vg prepare task vqa vqa/ --split train -o vqa.jsonl

        vg prepare task reviews.run | vg retrieve - --index coco.faiss -o reviews.images.jsonl

    Args:
        name: snli, sick, conll-2003 …; or a run of vg finetune, whose task and files they are.
        data: Folder with the task's official files.
        hold_out: Share of the training file that is the dev set, as in vg finetune.
        split: Keep only this split.
    """
    from vgtools.datasets.rows import save
    from vgtools.tasks.dispatch import text_rows
    from vgtools.tasks.kinds.answer import with_annotations
    from vgtools.tasks.own import definition, files_of, named_task
    from vgtools.tasks.table import built_in, find_splits

    found = named_task(name)
    is_run = built_in(name) is None
    piped = list(vars(files).values()).count("-") > 1
    refuse_if(piped, "-", "only one file can come from a pipe")
    refuse_if(is_run and data, "DATA", "a run names the files of its task")
    given = data or not is_run or any(vars(files).values())
    refuse_if(not given and hold_out is not None, "--hold-out", "a run has a share of its own")
    if given:
        splits = find_splits(found, data, **vars(files), hold_out=hold_out)
    else:
        splits, hold_out = files_of(name)
    if split is not None:
        why = f"expected one of {', '.join(splits)}, got {split!r}"
        refuse_if(split not in splits, "--split", why)
        splits = {split: splits[split]}
    inputs = with_annotations(found, splits.values())
    # One file may be several splits, and an input only once.
    roles = {split: inputs.index(file) for split, file in splits.items()}
    config: dict[str, Any] = {"command": "task", "task": found.name, "splits": roles}
    config |= {"own": definition(found)} if found.own else {}
    config |= {} if hold_out is None else {"hold_out": hold_out}
    rows = text_rows(found, splits, hold_out)
    save(rows, target.output, Tally(), "texts", config, inputs, target.restart)


@flags
def minimal_pairs(
    files: Annotated[list[str], Argument("FILE")],
    target: Target,
    most: Annotated[int | None, Count()] = None,
    quiet: Quiet = False,
) -> None:
    """Write pairs of an acceptable sentence and another.

    Rows are {"good", "bad", "phenomenon", "paradigm"}, for vg measure --on. All 67,000 pairs of
    BLiMP take a base-sized encoder hours on a CPU.

    Examples:

        vg prepare minimal-pairs blimp/data/*.jsonl --most 100 -o blimp.jsonl

        vg prepare minimal-pairs blimp/data/*.jsonl | jq -r .phenomenon | sort | uniq -c

    Args:
        files: BLiMP's jsonl, one file per paradigm.
        most: Keep the first N pairs of each paradigm.
    """
    from vgtools.datasets import minimal_pairs as source
    from vgtools.datasets.rows import save

    tally = Tally()
    rows = source.minimal_pairs(files, tally, most)
    config = {"command": "minimal-pairs", "most": most}
    save(rows, target.output, tally, "pairs", config, files, target.restart)


@flags
def prompts(
    path: Annotated[str, Argument("FILE", "CoDa's rows, or a file of ViComTe's.")],
    target: Target,
    templates: Annotated[str | None, File("ViComTe's templates, with [X] and [Y].")] = None,
    words: Annotated[str | None, File("ViComTe's words, for distributions.")] = None,
    subjects: Annotated[str | None, File("Keep the subjects of these rows of ViComTe.")] = None,
    quiet: Quiet = False,
) -> None:
    """Write prompts about colours, shapes, materials and sizes.

    Rows are {"item", "prompts", "answers", "values"}, for vg measure --on. CoDa (Apache 2.0): its
    rows on the hub as jsonl or Parquet. ViComTe (no licence stated): distributions of counts, in
    the alphabetical order of the classes of --words; or rows {"sub", "obj", "alt"}, of which obj
    is right, as in its files of sizes.

    Examples:

        vg prepare prompts coda.test.jsonl -o coda.jsonl

        vg prepare prompts color-dist.jsonl --templates color.jsonl --words words.txt -o c.jsonl

        vg prepare prompts size_smaller/test.jsonl --templates size_smaller.jsonl -o size.jsonl
    """
    from vgtools.datasets import prompts as source
    from vgtools.datasets.rows import save
    from vgtools.io.names import refuse_stream

    refuse_stream(path)
    tally = Tally()
    rows = source.prompts(path, tally, templates, words, subjects)
    config = {"command": "prompts"}
    inputs = [file for file in (path, templates, words, subjects) if file is not None]
    save(rows, target.output, tally, "items", config, inputs, target.restart)


@cache
def _tagger(name: str) -> Tagger:
    from vgtools.text.parses import open_tagger

    return open_tagger(name)


def _nouns(name: str, texts: Sequence[str]) -> Iterator[list[tuple[int, int]]]:
    """Yield the characters under the common nouns of each text; the tagger is opened once."""
    for found in _tagger(name)(texts):
        pairs = zip(found.spans, found.tags, strict=True)
        yield [span for span, tag in pairs if tag in ("NN", "NNS")]
