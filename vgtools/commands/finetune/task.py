"""`vg finetune TASK`: a built-in task, learned from its official files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from vgtools.commands.finetune.flags import AnswerTaskFlags, Files, Given, Scratch, SpanLearning
from vgtools.commands.finetune.learn import learn
from vgtools.commands.finetune.topics import FILES, PICTURES, TRAINING, TRANSLATION
from vgtools.commands.options import Argument, refuse_if
from vgtools.commands.signature import flags
from vgtools.tasks.table import start_of


@dataclass(frozen=True, kw_only=True)
class AllGiven(Given):
    """The flags of all built-in tasks."""

    learning: Annotated[SpanLearning, TRAINING]
    pictures: Annotated[AnswerTaskFlags, PICTURES]


@flags
def task(
    name: Annotated[str | None, Argument("TASK")] = None,
    data: Annotated[str | None, Argument("DATA")] = None,
    *,
    given: AllGiven,
    files: Annotated[Files, FILES],
    scratch: Annotated[Scratch, TRANSLATION],
) -> None:
    """Fine-tune an encoder on a downstream task with the papers' settings, and score it.

    DATA holds the task's official files (see --list). Prints one record per seed and epoch: losses
    and the official metrics on the dev set, in percent; "headline" is their mean, "best" marks the
    weights that are kept so far. The median, mean and spread over the seeds and the score of the
    most frequent class go to stderr.

    The run directory holds run.json, metrics.jsonl, and for each seed model/, which transformers
    opens, predictions.jsonl, and for MNLI's second dev set and test files predictions.SPLIT.jsonl.
    --no-models leaves out model/, the large part: many small runs are compared by predictions. vg
    score scores saved predictions again, without the model.

    More options: tasks with pictures, images found for texts, translation, CLIPs, clusters.

    Examples:

        vg finetune --list

        vg finetune sick SICK --list | jq '{split, examples}'

        vg finetune sst-2 glue/SST-2 --encoder run.vokens --seeds 5 -o sst-2.vokens

        vg finetune squad-2.0 squad -e google-bert/bert-base-uncased --dtype bfloat16 -o squad.bert

    Args:
        name: sst-2, rte, squad-1.1 …; --list shows them.
        data: Folder with the task's official files.
    """
    from vgtools.tasks.table import find_splits, find_task, table

    if given.start.listed:
        from vgtools.reports.tables import print_splits, print_tasks
        from vgtools.tasks.dispatch import count_splits

        if name is None:
            print_tasks(table())
            return
        chosen = find_task(name)
        found = find_splits(chosen, data, **vars(files))
        print_splits(count_splits(chosen, found, files.hold_out))
        return
    refuse_if(name is None, "TASK", "name a task, for example sst-2; --list shows them")
    chosen = find_task(str(name))
    ref = start_of(chosen, given.start.encoder, scratch.shape, scratch.tokenizer)
    given.check(chosen, files.train, files.dev, files.test)
    found = find_splits(chosen, data, **vars(files))
    learn(chosen, found, files.hold_out, ref, given, scratch.shape)
