"""The downstream tasks: one row per task with its official files, metrics and hyper-parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vgtools.io.errors import DataError, Exit
from vgtools.io.names import is_stream

# Metrics of which less is better; they are errors in the unit of the labels, not shares.
LOWER_IS_BETTER = frozenset({"rmse"})


@dataclass(frozen=True)
class Hyper:
    """Fine-tuning hyper-parameters, and where they come from."""

    epochs: int
    learning_rate: float
    batch_size: int
    source: str
    warmup: float = 0.1  # share of the steps, or from 1 on their number
    max_length: int = 126  # tokens, special ones included
    stride: int | None = None  # span: tokens from one window of a long context to the next
    seed: int = 9595
    clip: float = 1.0  # largest norm of the gradient; 0 does not clip
    schedule: str = "linear"  # see `vgtools.training.loop.TrainConfig`
    betas: tuple[float, float] = (0.9, 0.999)  # Adam's
    eps: float = 1e-8  # Adam's
    steps: int | None = None  # in total, instead of `epochs`
    keep: str = "last"  # epoch whose weights are kept; or `best`
    weight_decay: float = 0.0  # for matrices alone


@dataclass(frozen=True)
class Form:
    """One way in which a task's rows are written: the columns (or keys of a jsonl row) of texts …

    With a header, columns are found by name, in any order, unless `columns` is the exact header.
    """

    texts: tuple[str, ...]
    label: str = "label"
    id: str | None = None
    columns: tuple[str, ...] = ()  # in exact order; required of a form without a header
    word: str = ""  # column with the number of the word of the first text that is the second text
    header: bool = True
    quoted: bool = False
    separator: str = "\t"
    extra: int = 0  # without a header: columns that may follow
    image: str = ""  # column with the caption that a text is, as IMAGE#NUMBER


@dataclass(frozen=True)
class Task:
    """One downstream data set."""

    name: str
    title: str  # as the papers write it
    kind: str  # key of `vgtools.tasks.kinds.KINDS`
    files: Mapping[str, str]  # split -> official file name
    metrics: tuple[str, ...]
    hyper: Hyper
    forms: tuple[Form, ...] = ()
    labels: tuple[str, ...] = ()  # class i is written labels[i] or i
    choices: int = 0  # texts to choose from, in each example
    low: float = 0.0  # regress: range of the scores
    high: float = 0.0
    no_gold: tuple[str, ...] = ()  # labels of rows whose annotators disagree, which are left out
    unanswerable: bool = False  # span: some questions have no answer
    skip_broken: bool = False  # rows with a wrong column count are counted, not refused
    note: str = ""
    images: int = 0  # pictures per example
    official: str = ""  # contents of the official file, where it is not a table
    targets: str = ""  # the predictions, where they are not labels, choices or scores

    @property
    def classes(self) -> int:
        """Return how many outputs a head for this task has."""
        return len(self.labels) or self.choices or 1

    @property
    def lower_is_better(self) -> bool:
        """Return whether the score is an error, in the unit of the labels."""
        return not LOWER_IS_BETTER.isdisjoint(self.metrics)

    @property
    def scale(self) -> float:
        """Return the factor of printed scores: 100 for percent, 1 for errors."""
        return 1.0 if self.lower_is_better else 100.0


_A1 = "Vokenization, appendix A.1; warm-up, length and seed: its released code"
_GLUE = Hyper(3, 1e-4, 32, _A1)
_BERT = "Vokenization, appendix A.1; warm-up, length and stride: BERT's released code"
_SWAG = Hyper(
    3, 2e-5, 16, "Vokenization, appendix A.1; warm-up and seed as for GLUE", max_length=128
)  # fmt: skip
_VISUAL = "VisualBERT (Li et al. 2020), appendix B (warm-up, length) and"
_CODE = "rate, epochs, batch and eps: its released code"
_PAIR = ("sentence1", "sentence2")
# GLUE as data hubs export it.
_EXPORT = Form(_PAIR, id="index", columns=("index", "label", *_PAIR), quoted=True)
_ENTAILMENT = ("entailment", "not_entailment")
_STRATEGIES = Hyper(
    4, 1e-4, 32, "Grounding strategies (Sileo 2021), section 3.3; warm-up: LXMERT's released code",
    max_length=64,
)  # fmt: skip
_TRANSFORMER = Hyper(
    0, (512 * 8000) ** -0.5, 16384,
    "Visual awareness (Zhang et al. 2019), section 4.2; rate, betas and eps: Vaswani et al. 2017; "
    "steps and length: not in the paper",
    warmup=8000, max_length=256, clip=0.0, schedule="inverse-sqrt", betas=(0.9, 0.98), eps=1e-9,
    steps=100_000, keep="best",
)  # fmt: skip
_AWARENESS = Hyper(
    3, 2e-5, 32, "Visual awareness (Zhang et al. 2019), section 4.2: within the grid it searched; "
    "eps: BERT's released code",
    max_length=128, weight_decay=0.01, eps=1e-6,
)  # fmt: skip
_JOCI = ("CONTEXT", "HYPOTHESIS")
# The text and the columns after it in both files of READ; a test file ends with the text.
_EXCERPT = ("license", "excerpt", "target", "standard_error")
_VCR = {"train": "train.jsonl", "dev": "val.jsonl", "test": "test.jsonl"}
_TSV = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}
_JSONL = {"train": "train.jsonl", "dev": "dev.jsonl", "test": "test.jsonl"}


def _read(*columns: str) -> Form:
    """Return a form of READ: the whole header decides, and texts have line ends."""
    return Form(("excerpt",), "target", id="id", columns=columns, quoted=True, separator=",")


TASKS: tuple[Task, ...] = (
    Task(
        "cola", "CoLA", "classify", _TSV, ("matthews",), _GLUE,
        (
            Form(("sentence",), columns=("source", "label", "star", "sentence"), header=False),
            Form(("sentence",), id="index"),
        ),
        ("unacceptable", "acceptable"),
        note="train and dev have no header; as in_domain_train.tsv, in_domain_dev.tsv, "
        "out_of_domain_dev.tsv",
    ),
    Task(
        "sst-2", "SST-2", "classify", _TSV, ("accuracy",), _GLUE,
        (Form(("sentence",), id="index"),), ("negative", "positive"),
    ),
    Task(
        "mrpc", "MRPC", "classify",
        {"train": "msr_paraphrase_train.txt", "dev": "dev.tsv", "test": "msr_paraphrase_test.txt"},
        ("f1", "accuracy"), _GLUE,
        (Form(("#1 String", "#2 String"), "Quality"), Form(_PAIR, id="index"), _EXPORT),
        ("not_equivalent", "equivalent"),
        note="quotes are text, not quoting; hub exports (index, label, sentence1, sentence2) are "
        "quoted and read so",
    ),
    Task(
        "sts-b", "STS-B", "regress", _TSV, ("pearson", "spearman"), _GLUE,
        (
            Form(_PAIR, "score", id="index"),
            Form(_PAIR),
            Form(
                _PAIR, "score", columns=("genre", "file", "year", "old_index", "score", *_PAIR),
                header=False, extra=2,
            ),
        ),
        high=5.0,
        note="sts-train.csv and sts-dev.csv of the STS benchmark have no header, and licence "
        "columns at the end of some rows",
    ),
    Task(
        "qqp", "QQP", "classify", _TSV, ("f1", "accuracy"), _GLUE,
        (
            Form(("question1", "question2"), "is_duplicate", id="id"),
            Form(("question1", "question2")),
            Form(
                ("question1", "question2"), "is_duplicate", "id",
                ("id", "qid1", "qid2", "question1", "question2", "is_duplicate"), header=False,
            ),
        ),
        ("not_duplicate", "duplicate"),
        skip_broken=True,
        note="rows torn by a line break inside a question are counted and left out",
    ),
    Task(
        "mnli", "MNLI", "classify",
        {
            "train": "train.tsv", "dev": "dev_matched.tsv", "dev_mismatched": "dev_mismatched.tsv",
            "test": "test_matched.tsv", "test_mismatched": "test_mismatched.tsv",
        },
        ("accuracy",), _GLUE,
        (
            Form(_PAIR, "gold_label", id="index"),
            Form(("premise", "hypothesis")),
            Form(_PAIR, id="index"),
        ),
        ("entailment", "neutral", "contradiction"),
        no_gold=("-",),
        note="rows without agreement (gold label -) are counted and left out",
    ),
    Task(
        "qnli", "QNLI", "classify", _TSV, ("accuracy",), _GLUE,
        (Form(("question", "sentence"), id="index"),), _ENTAILMENT,
    ),
    Task(
        "rte", "RTE", "classify", _TSV, ("accuracy",), _GLUE,
        (Form(_PAIR, id="index"), _EXPORT), _ENTAILMENT,
    ),
    Task(
        "wnli", "WNLI", "classify", _TSV, ("accuracy",), _GLUE,
        (Form(_PAIR, id="index"), _EXPORT), ("not_entailment", "entailment"),
        note="0 is not_entailment, the other way round than in RTE and QNLI",
    ),
    Task(
        "squad-1.1", "SQuAD v1.1", "span",
        {"train": "train-v1.1.json", "dev": "dev-v1.1.json"}, ("exact", "f1"),
        Hyper(3, 5e-5, 32, _BERT, max_length=384, stride=128),
        official="official JSON: context, question, answers", targets="answer spans",
    ),
    Task(
        "squad-2.0", "SQuAD v2.0", "span",
        {"train": "train-v2.0.json", "dev": "dev-v2.0.json"}, ("exact", "f1"),
        Hyper(2, 5e-5, 48, _BERT, max_length=384, stride=128),
        unanswerable=True, official="official JSON: context, question, answers, is_impossible",
        targets="answer spans",
    ),
    Task(
        "swag", "SWAG", "choice",
        {"train": "train.csv", "dev": "val.csv", "test": "test.csv"}, ("accuracy",), _SWAG,
        (
            Form(
                ("sent1", "sent2", "ending0", "ending1", "ending2", "ending3"),
                columns=(
                    "", "video-id", "fold-ind", "startphrase", "sent1", "sent2", "gold-source",
                    "ending0", "ending1", "ending2", "ending3", "label",
                ),
                quoted=True, separator=",",
            ),
        ),
        choices=4,
        note="every ending follows the second sentence's beginning",
    ),
    Task(
        "codah", "CODAH", "choice", _TSV | {"all": "full_data.tsv"}, ("accuracy",),
        Hyper(3, 2e-5, 16, "not in the paper; as SWAG, which has the same form", max_length=128),
        (
            Form(
                ("prompt", "ending0", "ending1", "ending2", "ending3"),
                columns=("category", "prompt", "ending0", "ending1", "ending2", "ending3", "label"),
                header=False,
            ),
        ),
        choices=4,
    ),
    Task(
        "nlvr2", "NLVR2", "classify",
        {"train": "train.json", "dev": "dev.json", "test": "test1.json"}, ("accuracy",),
        Hyper(10, 2e-5, 64, f"{_VISUAL} B.3; {_CODE}", max_length=128, eps=1e-6),
        labels=("False", "True"), images=2,
        official="jsonl: identifier, sentence, label",
        note="consistency: share of sentences that are right of all their pairs of pictures; "
        "144 regions per picture",
    ),
    Task(
        "vqa", "VQA 2.0", "answer",
        {
            "train": "v2_OpenEnded_mscoco_train2014_questions.json",
            "dev": "v2_OpenEnded_mscoco_val2014_questions.json",
            "test": "v2_OpenEnded_mscoco_test2015_questions.json",
        },
        ("accuracy",),
        Hyper(
            10, 2e-5, 64, f"{_VISUAL} B.1; rate, epochs, batch, clipping, eps: its released code",
            max_length=128, clip=0.25, eps=1e-6,
        ),
        images=1, targets="answers of the training set",
        official="JSON of questions (image_id, question, question_id), annotations (answers) "
        "next to them",
        note="annotations: v2_mscoco_train2014_annotations.json; each answer is judged by the "
        "other nine, as officially",
    ),
    Task(
        "vcr-qa", "VCR Q→A", "choice", _VCR, ("accuracy",),
        Hyper(8, 2e-5, 32, f"{_VISUAL} B.2; {_CODE}", max_length=128, eps=1e-6),
        choices=4, images=1,
        official="jsonl: annot_id, img_fn, objects, question, answer_choices, answer_label",
        note="the first regions are the objects of vg prepare vcr, which the words that name them "
        "are aligned with",
    ),
    Task(
        "vcr-qar", "VCR QA→R", "choice", _VCR, ("accuracy",),
        Hyper(12, 2e-5, 32, f"{_VISUAL} B.2; {_CODE}", max_length=128, eps=1e-6),
        choices=4, images=1,
        official="jsonl as of vcr-qa: rationale_choices, rationale_label, and the right answer",
        note="Q→AR, both right: vg score vcr-qar with --joint the predictions of vcr-qa",
    ),
    Task(
        "flickr30k-grounding", "Flickr30k Entities", "ground",
        {"train": "train.jsonl", "dev": "val.jsonl", "test": "test.jsonl"}, ("recall_1",),
        Hyper(5, 2e-5, 32, f"{_VISUAL} B.4; {_CODE}", max_length=128, eps=1e-6),
        images=1, targets="boxes",
        official="jsonl of vg prepare flickr30k-entities --split: image, text, phrases (start, "
        "end, boxes)",
        note="recall_5 and recall_10: among the best 5 and 10; upper_bound: phrases that some "
        "region covers with IoU 0.5",
    ),
    Task(
        "joci", "JOCI", "regress",
        {"train": "A.train.csv", "dev": "A.dev.csv", "test": "A.test.csv"}, ("spearman",),
        _STRATEGIES, (Form(_JOCI, "LABEL", quoted=True, separator=","),),
        high=5.0,
        note="A.zip of the corpus, the rows that joci.csv names as SNLI; 0: makes no sense",
    ),
    Task(
        "pdtb", "PDTB", "classify", _JSONL, ("accuracy",), _STRATEGIES,
        (Form(_PAIR),),
        (
            "Temporal.Asynchronous", "Temporal.Synchrony", "Contingency.Cause",
            "Contingency.Pragmatic cause", "Contingency.Condition",
            "Contingency.Pragmatic condition", "Comparison.Contrast",
            "Comparison.Pragmatic contrast", "Comparison.Concession",
            "Comparison.Pragmatic concession", "Expansion.Conjunction", "Expansion.Instantiation",
            "Expansion.Restatement", "Expansion.Alternative", "Expansion.Exception",
            "Expansion.List",
        ),
        official="jsonl of vg prepare pdtb --split: sentence1, sentence2, label",
        note="implicit relations of PDTB 2, second level of the first sense",
    ),
    Task(
        "sick", "SICK", "classify",
        {
            "train": "SICK_train.txt", "dev": "SICK_trial.txt",
            "test": "SICK_test_annotated.txt",
        },
        ("accuracy",), _STRATEGIES,
        (Form(("sentence_A", "sentence_B"), "entailment_judgment", id="pair_ID"),),
        ("ENTAILMENT", "NEUTRAL", "CONTRADICTION"),
    ),
    Task(
        "vua", "VUA", "classify",
        {
            "train": "VUA_formatted_train.csv", "dev": "VUA_formatted_val.csv",
            "test": "VUA_formatted_test.csv",
        },
        ("accuracy",), _STRATEGIES,
        (Form(("sentence",), quoted=True, separator=",", word="verb_idx"),),
        ("literal", "metaphor"),
        note="the second text is word verb_idx of the sentence, not the lemma in verb",
    ),
    Task(
        "vuan", "VUAN", "tag", _JSONL, ("accuracy",), _STRATEGIES,
        labels=("literal", "metaphor"),
        official="jsonl of vg prepare vua: text, tags",
        note="a label per noun of a sentence",
    ),
    Task(
        "snli", "SNLI", "classify",
        {
            "train": "snli_1.0_train.jsonl", "dev": "snli_1.0_dev.jsonl",
            "test": "snli_1.0_test.jsonl",
        },
        ("accuracy",), _AWARENESS,
        (
            Form(_PAIR, "gold_label", id="pairID", image="captionID"),
            Form(("premise", "hypothesis")),
        ),
        ("entailment", "neutral", "contradiction"),
        no_gold=("-", "-1"),
        note="rows without agreement (gold label -, or -1 in hub exports) are counted and left out",
    ),
    Task(
        "conll-2003", "CoNLL-2003", "tag",
        {"train": "eng.train", "dev": "eng.testa", "test": "eng.testb"}, ("f1",),
        _AWARENESS,
        labels=(
            "O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC",
        ),
        official="CoNLL columns (word first, tag last), IOB1 or IOB2; or jsonl: text, tags",
        note="F1 of entities, as conlleval",
    ),
    Task(
        "translation", "Translation", "translate", _JSONL, ("bleu",), _TRANSFORMER,
        official="jsonl of vg prepare pairs: text, target", targets="translations",
        note="a batch is a number of source tokens; BLEU and chrF by sacrebleu",
    ),
    Task(
        "commonlit", "READ", "regress",
        {"train": "train.csv", "dev": "dev.csv", "test": "test.csv"}, ("rmse",),
        Hyper(
            3, 2e-5, 32, "XDBERT (Hsu et al. 2022), appendix C.2; length: not in the paper",
            max_length=384,
        ),
        (
            _read("id", "url_legal", *_EXCERPT),
            _read("id", "url_legal", *_EXCERPT[:2]),
            _read("id", "title", "author", "year", "category", *_EXCERPT),
        ),
        low=-5.0, high=3.0,
        note="CommonLit Readability Prize (train.csv of Kaggle), or the CLEAR corpus; neither has "
        "a dev file: --hold-out 0.1; RMSE, lower is better, is not part of an average",
    ),
)  # fmt: skip

_ALIASES = {
    "squad": "squad-1.1",
    "squad1": "squad-1.1",
    "squadv1": "squad-1.1",
    "squad2": "squad-2.0",
    "squadv2": "squad-2.0",
}
# Columns of Vokenization's Table 2.
TABLE_2 = ("sst-2", "qnli", "qqp", "mnli", "squad-1.1", "squad-2.0", "swag")


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def find_task(name: str) -> Task:
    """Return the task of a name, however it is spelled: SST-2, sst2, SQuAD v1.1, squad-1.1, squad.

    Raises:
        DataError: no such task; the error lists all names (usage).
    """
    for task in TASKS:
        if _key(_ALIASES.get(_key(name), name)) in (_key(task.name), _key(task.title)):
            return task
    names = ", ".join(task.name for task in TASKS)
    raise DataError(f"unknown task {name!r}; expected one of {names}", code=Exit.USAGE)


def find_files(
    task: Task,
    data: str | None,
    given: Mapping[str, str | None],
    test: bool = True,
    hold_out: float | None = None,
) -> dict[str, str]:
    """Return the file of every split of a task; there is one to train on and one to evaluate on.

    Args:
        task: names the official files.
        given: files to read instead, by split.
        test: whether the test files of the folder are among them.
        hold_out: share of the training file that is the dev set, instead of a dev file.

    Raises:
        DataError: a file or the folder is missing, or there is a dev file too many.
    """
    files = {split: file for split, file in given.items() if file is not None}
    folder = None if data is None else Path(data)
    if folder is not None and not folder.is_dir():
        why = "is not a directory, expected the folder of the task's files"
        raise DataError(why, folder, code=Exit.NO_INPUT)
    for split, file in task.files.items():
        skipped = split == "all" or (not test and split.startswith("test"))
        if folder is None or split in files or skipped:
            continue
        if (folder / file).exists():
            files[split] = str(folder / file)
    if hold_out is not None:
        _check_hold_out(hold_out, files)
        if "train" in files:
            files["dev"] = files["train"]
    ways = {"train": "train on: --train FILE", "dev": "measure on: --dev FILE, --hold-out SHARE"}
    for split, way in ways.items():
        if split not in files:
            missing = "" if folder is None else f"{folder} has no {task.files[split]}; "
            raise DataError(f"{missing}name the file to {way}, or DATA", code=Exit.NO_INPUT)
    return files


def find_splits(
    task: Task,
    data: str | None,
    train: str | None = None,
    dev: str | None = None,
    test: str | None = None,
    no_test: bool = False,
    hold_out: float | None = None,
) -> dict[str, str]:
    """Return the file of every split of a task, as flags name it; see `find_files`."""
    given = {"train": train, "dev": dev, "test": test}
    return find_files(task, data, given, test=not no_test, hold_out=hold_out)


def settings_of(task: Task, given: Mapping[str, Any], shape: str | None = None) -> dict[str, Any]:
    """Return the settings that decide the weights, for `run.json`: given ones, else the paper's.

    Args:
        task: the task, with the settings of its paper.
        given: settings by name, None where the paper's holds; `seeds` is their number.
        shape: shape of a network that is trained from scratch.
    """
    paper = asdict(task.hyper) | {"lr": task.hyper.learning_rate}
    values = dict(given)
    values |= {name: paper.get(name) for name, value in given.items() if value is None}
    first = values.pop("seed")
    values["steps"] = None if given["epochs"] else values["steps"]
    values["epochs"] = None if values["steps"] else values["epochs"]
    values["seeds"] = list(range(first, first + given["seeds"]))
    values["keep"] = given["keep"] or ("best" if given["patience"] else task.hyper.keep)
    return {"task": task.name, **values, **({"shape": shape} if shape else {})}


def start_of(task: Task, encoder: str | None, shape: str | None, tokenizer: str | None) -> str:
    """Return the reference that training starts from: a model, or with a shape a tokenizer.

    Raises:
        DataError: flags that need or exclude one another, or that are for translation (usage).
    """
    why = ""
    if task.kind != "translate" and (shape or tokenizer):
        why = f"--shape: is for translation; {task.name} needs --encoder"
    elif task.kind == "translate" and bool(shape) == bool(encoder):
        why = "exactly one of --shape (from scratch) and --encoder (continue) is required"
    elif bool(shape) != bool(tokenizer):
        why = "--tokenizer: belongs to --shape; with --encoder it is the model's own"
    start = encoder or tokenizer
    if why or start is None:
        raise DataError(why or "--encoder: is required", code=Exit.USAGE)
    return start


def _check_hold_out(share: float, files: Mapping[str, str]) -> None:
    """Refuse a share that leaves nothing, one with a dev file, and one of a pipe, read once."""
    why = ""
    if not 0 < share < 1:
        why = f"--hold-out must be between 0 and 1, got {share:g}"
    elif "dev" in files:
        why = f"--hold-out makes a dev set of the training file, but there is {files['dev']}"
        why += "; drop one of them, or name --train FILE alone"
    elif "train" in files and is_stream(files["train"]):
        why = "--hold-out reads the training file twice; give a file, not a pipe"
    if why:
        raise DataError(why, code=Exit.USAGE)


def describe_columns(form: Form, unlabelled: bool = False) -> str:
    """Return the columns that a file of this form has, for messages and `vg finetune --list`."""
    label = () if unlabelled else (form.label,)
    word = (form.word,) if form.word else ()
    names = form.columns or (*form.texts, *word, *label)
    return ", ".join(name or "(row)" for name in names) + ("" if form.header else " (no header)")


def table() -> list[dict[str, Any]]:
    """Return one row per task for `vg finetune --list`: columns, labels, hyper-parameters, …"""
    return [
        {
            "task": task.name,
            "title": task.title,
            "kind": task.kind,
            "files": dict(task.files),
            "columns": task.official or describe_columns(task.forms[0]),
            "labels": _describe_labels(task),
            "metrics": list(task.metrics),
            **asdict(task.hyper),
            "betas": list(task.hyper.betas),
            "note": task.note,
        }
        for task in TASKS
    ]


def _describe_labels(task: Task) -> str:
    if task.labels:
        return ", ".join(task.labels)
    if task.choices:
        return f"0 to {task.choices - 1}"
    return task.targets or f"{task.low:g} to {task.high:g}"
