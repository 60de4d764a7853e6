"""`vg finetune classify`, `regress`, `tag`, `choice`, `answer`: a table of your own is learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from vgtools.commands.finetune.flags import AnswerTaskFlags, Given, PictureTaskFlags, SpanLearning
from vgtools.commands.finetune.learn import learn
from vgtools.commands.finetune.topics import OWN_PICTURES, TABLE, TRAINING
from vgtools.commands.options import Argument, refuse_if
from vgtools.commands.signature import flags
from vgtools.io.settings import file, value
from vgtools.tasks.table import Columns, find_splits, start_of

if TYPE_CHECKING:
    from vgtools.tasks.table import Task

Data = Annotated[str, Argument("DATA", "Rows to learn from: .csv, .tsv, .jsonl, .parquet, .arrow.")]
_TWO = "COLUMN[,COLUMN]"
# How many texts a kind has, at least and at most.
_TEXTS = {"classify": (1, 2), "regress": (1, 2), "choice": (1, 2), "span": (2, 2)}


@dataclass(frozen=True, kw_only=True)
class OwnFiles:
    """The files of a task of your own besides DATA.

    Attributes:
        dev: Evaluate on FILE.
        hold_out: Evaluate on this share of DATA instead, chosen by the hash of the id.
        test: Also predict FILE, labelled or not.
        name: Name of the task; runs of one name are compared.
        id: Column of unique ids.
    """

    dev: str | None = file(None)
    hold_out: float | None = value(None, metavar="SHARE", min=0, max=1)
    test: str | None = file(None, topic=TABLE)
    name: str | None = value(None, metavar="NAME", show_default="DATA's", topic=TABLE)
    id: str | None = value(None, metavar="COLUMN", show_default="rows from 0", topic=TABLE)


@dataclass(frozen=True, kw_only=True)
class TextColumns:
    """The columns of texts and their labels.

    Attributes:
        text: The text, or two of them.
        label: The label to learn.
    """

    text: str = value("text", metavar=_TWO)
    label: str = value("label", metavar="COLUMN")

    def define(self, kind: str, data: str, files: OwnFiles) -> Task:
        """Return the task; its labels are found in the training file unless they are given."""
        from vgtools.tasks.own import define

        given = vars(self)
        lists = {key: tuple(_names(given.get(key))) for key in ("text", "choices", "image")}
        columns = Columns(lists["text"], self.label, lists["choices"], lists["image"], files.id)
        least, most = _TEXTS.get(kind, (1, 1))
        many = f"{least} or {most}" if least < most else f"{least}"
        why = f"expected {many} column{'s' * (most > 1)}, got {self.text!r}"
        refuse_if(not least <= len(columns.texts) <= most, "--text", why)
        more = kind != "classify" and len(columns.images) > 1
        refuse_if(more, "--image", f"expected one column, got {given.get('image')!r}")
        none = kind == "answer" and given.get("unanswerable")
        why = "is for questions with a context: one about a picture gets an answer of those in DATA"
        refuse_if(none, "--unanswerable", why)
        used = [*columns.texts, *columns.choices, *columns.images, self.label, files.id]
        twice = next((name for name in used if name and used.count(name) > 1), None)
        refuse_if(twice, None, f"the column {twice!r} is named twice; a column has one use")
        chosen = {key: given[key] for key in ("labels", "metric", "unanswerable") if key in given}
        return define(kind, data, columns, name=files.name, **chosen)


def _names(given: str | None) -> list[str]:
    return [name.strip() for name in (given or "").split(",") if name.strip()]


@dataclass(frozen=True, kw_only=True)
class ClassColumns(TextColumns):
    """The columns of texts with classes.

    Attributes:
        labels: Labels in their order, also those that DATA lacks; numbers in DATA count from 0.
        metric: Score to compare; f1 is of the second of two labels.
        image: The pictures that a text is about; needs --regions.
    """

    labels: str | None = value(None, metavar="NAME,NAME…", show_default="found in DATA")
    metric: Literal["accuracy", "macro-f1", "f1", "matthews"] = value("accuracy")
    image: str | None = value(None, metavar=_TWO, topic=OWN_PICTURES)


@dataclass(frozen=True, kw_only=True)
class NumberColumns(TextColumns):
    """The columns of texts with numbers.

    Attributes:
        metric: Score to compare.
    """

    metric: Literal["pearson", "spearman", "rmse"] = value("pearson")


@dataclass(frozen=True, kw_only=True)
class TagColumns(TextColumns):
    """The columns of words and their tags.

    Attributes:
        text: Words: a list, or a text with blanks between them; CoNLL: number of the column.
        label: A tag for each word, likewise; CoNLL: the last column.
        labels: Tags in their order, also those that DATA lacks; numbers in DATA count from 0.
        metric: Score to compare: f1 of entities, or accuracy of words.
    """

    text: str = value("text", metavar="COLUMN")
    label: str = value("tags", metavar="COLUMN")
    labels: str | None = value(None, metavar="NAME,NAME…", show_default="found in DATA")
    metric: Literal["f1", "accuracy"] | None = value(None, show_default="f1 of O, B-X, I-X")


@dataclass(frozen=True, kw_only=True)
class ChoiceColumns(TextColumns):
    """The columns of texts with choices.

    Attributes:
        text: The text before the choices; a second text starts each of them.
        choices: A column for each choice, or one with lists of them.
        label: The right choice, a number from 0.
        labels: Names of the choices in DATA, if not numbers from 0: A,B,C,D.
        image: The picture that a text is about; needs --regions.
    """

    choices: str = value("choices", metavar="COLUMN[,COLUMN…]")
    labels: str | None = value(None, metavar="NAME,NAME…", show_default="0,1,…")
    image: str | None = value(None, metavar="COLUMN", topic=OWN_PICTURES)


@dataclass(frozen=True, kw_only=True)
class AnswerColumns(TextColumns):
    """The columns of questions and answers.

    Attributes:
        text: The question and the context; with --image the question.
        label: The answer, a list of answers, or SQuAD's text and answer_start.
        unanswerable: Questions without an answer have none in their context.
        image: The picture that a question is about, instead of a context; needs --regions.
    """

    text: str = value("question,context", metavar=_TWO)
    label: str = value("answers", metavar="COLUMN")
    unanswerable: bool = value(False)
    image: str | None = value(None, metavar="COLUMN", topic=OWN_PICTURES)


@dataclass(frozen=True, kw_only=True)
class PictureGiven(Given):
    """The flags of tasks that may have pictures."""

    pictures: Annotated[PictureTaskFlags, OWN_PICTURES]


@dataclass(frozen=True, kw_only=True)
class AnswerGiven(Given):
    """The flags of answers, in a context or about a picture."""

    learning: Annotated[SpanLearning, TRAINING]
    pictures: Annotated[AnswerTaskFlags, OWN_PICTURES]


@flags
def classify(
    data: Data,
    columns: ClassColumns,
    files: OwnFiles,
    *,
    given: PictureGiven,
) -> None:
    r"""Learn labels of texts, or of pairs of texts, from a table of your own.

    Labels are found in DATA, and are listed with their shares before anything is learned. Settings
    are as for SST-2 unless given. The run is one of vg finetune: with predictions, the score of
    the most frequent label, and vg score and vg compare.

    Examples:

        vg finetune classify reviews.csv --text review --label stars --hold-out 0.1 --list

        vg finetune classify reviews.csv --text review --label stars --hold-out 0.1 \
          -e run.vokens --seeds 5 --metric macro-f1 -o reviews.vokens

        vg finetune classify pairs.parquet --text premise,hypothesis --dev dev.jsonl \
          --labels entailment,neutral,contradiction -e builtin:minilm -o pairs
    """
    _learn("classify", data, columns, files, given)


@flags
def regress(
    data: Data,
    columns: NumberColumns,
    files: OwnFiles,
    *,
    given: Given,
) -> None:
    r"""Learn numbers for texts, or for pairs of texts, from a table of your own.

    Numbers are learned as they are, by their squared error: divide them where they are far from 0.
    Settings are as for STS-B unless given. The run is one of vg finetune, for vg score and vg
    compare.

    Examples:

        vg finetune regress ratings.tsv --label rating --hold-out 0.1 -e builtin:minilm -o ratings

        vg finetune regress pairs.csv --text sentence1,sentence2 --label score --dev dev.csv \
          --metric rmse -e run.vokens --seeds 5 -o pairs.vokens
    """
    _learn("regress", data, columns, files, given)


@flags
def tag(
    data: Data,
    columns: TagColumns,
    files: OwnFiles,
    *,
    given: Given,
) -> None:
    r"""Learn a tag for each word, from CoNLL columns or lists of your own.

    A table, or rows, has words and tags as lists or between blanks; any other file has a word with
    its tag per line and an empty line after a sentence. In CoNLL-U (--text 2) comments, ranges and
    empty nodes are left out. Tags O, B-X and I-X are entities, in IOB1 or IOB2, scored as conlleval
    does; others are scored word by word. Settings are as for CoNLL-2003 unless given. The run is
    one of vg finetune, for vg score and vg compare.

    Examples:

        vg finetune tag train.conll --dev dev.conll -e run.vokens --seeds 5 -o entities

        vg finetune tag ner.parquet --text tokens --label ner_tags --hold-out 0.1 \
          --labels O,B-PER,I-PER,B-ORG,I-ORG,B-LOC,I-LOC -e builtin:minilm -o ner

        vg finetune tag ud.txt --text 2 --label 4 --hold-out 0.1 -e builtin:minilm -o pos
    """
    _learn("tag", data, columns, files, given)


@flags
def choice(
    data: Data,
    columns: ChoiceColumns,
    files: OwnFiles,
    *,
    given: PictureGiven,
) -> None:
    r"""Learn which of some texts is right, from a table of your own.

    All rows have equally many choices. Settings are as for SWAG unless given. The run is one of
    vg finetune, for vg score and vg compare.

    Examples:

        vg finetune choice quiz.csv --text question --choices a,b,c,d --label answer \
          --labels A,B,C,D --hold-out 0.1 -e builtin:minilm -o quiz

        vg finetune choice stories.jsonl --text start --choices endings --dev dev.jsonl \
          -e run.vokens --seeds 5 -o stories.vokens
    """
    _learn("choice", data, columns, files, given)


@flags
def answer(
    data: Data,
    columns: AnswerColumns,
    files: OwnFiles,
    *,
    given: AnswerGiven,
) -> None:
    r"""Learn answers to questions, from a table of your own.

    An answer is a part of the context, scored as SQuAD's are; answers that do not occur in it are
    counted, scored, and not learned from. With --image it is one of the answers frequent in DATA.
    Settings are as for SQuAD 1.1, or for VQA, unless given. The run is one of vg finetune, for vg
    score and vg compare.

    Examples:

        vg finetune answer manual.csv --text question,page --label answer --hold-out 0.1 \
          -e run.vokens --seeds 5 -o manual.vokens

        vg finetune answer squad.parquet --unanswerable --dev dev.parquet -e builtin:minilm -o qa

        vg finetune answer scenes.jsonl --text question --image photo --regions photos.npy \
          --dev dev.jsonl -e run.visualbert -o scenes
    """
    _learn("answer" if columns.image else "span", data, columns, files, given)


def _learn(kind: str, data: str, columns: TextColumns, files: OwnFiles, given: Given) -> None:
    """List the files of a task, or learn it."""
    start = given.start
    if not start.listed:
        refuse_if(start.encoder is None, "--encoder", "is required")
        refuse_if(start.output is None, "--output", "is required")
    task = columns.define(kind, data, files)
    named = (data, files.dev, files.test)
    found = find_splits(task, None, *named, hold_out=files.hold_out)
    if start.listed:
        from vgtools.reports.tables import print_splits
        from vgtools.tasks.dispatch import count_splits

        print_splits(count_splits(task, found, files.hold_out))
        return
    given.check(task, *named)
    learn(task, found, files.hold_out, start_of(task, start.encoder, None, None), given)
