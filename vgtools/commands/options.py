"""Flags that more than one command has, one name and one meaning each, and how they are grouped.

A single flag is an `Annotated` alias. Flags that travel together are a frozen dataclass of settings
(`vgtools/io/settings.py`), which `signature.py` spreads out for typer. Those that few users need
have a topic (`topics.py`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vgtools.commands.topics import FIRST, Topic, page
from vgtools.io.errors import DataError, Exit, file_error, storable
from vgtools.io.own import make_folder
from vgtools.io.process import command_line, stay_quiet
from vgtools.io.remote import stay_offline
from vgtools.io.settings import count, file, names_and_help, value
from vgtools.training.trackers import log_to

if TYPE_CHECKING:
    from vgtools.io.errors import Tally
    from vgtools.text.ngrams import Vocabulary

Flag = typer.Option


def Argument(metavar: str, text: str = "", **more: Any) -> Any:
    """Return an argument of a command, with its help unless that is in the docstring."""
    return typer.Argument(metavar=metavar, help=text, **more)


def Value(metavar: str, *texts: str, **more: Any) -> Any:
    """Return a flag with a value; for the texts see `vgtools.io.settings.value`."""
    names, text = names_and_help(texts)
    return Flag(*names, metavar=metavar, help=text, **more)


def Count(text: str = "", least: int = 1, **more: Any) -> Any:
    """Return the flag of a whole number from `least` on."""
    return Value("N", text, min=least, **more)


def File(*texts: str, **more: Any) -> Any:
    """Return the flag of a file."""
    return Value("FILE", *texts, **more)


# Where shards are written; the flags are named as in `TextTarget`.
SHARDS = Topic("shards", page("shards"))

TEXT = Argument("TEXT", '.txt, .jsonl with "text", TABLE#COLUMN, .gz, .zst, or - for stdin.')
Captions = Annotated[
    str, Argument("CAPTIONS", 'Rows {"image": ID, "text": …}: .jsonl, TABLE#COLUMN, .gz, .zst, -.')
]
ArrayFile = Annotated[str, Value("X.npy", "File to write; the same command resumes it.")]
NProbe = Annotated[
    int | None,
    Count("Lists of an IVF index to look into; by default those that vg build-index measured."),
]
Dtype = Annotated[
    Literal["float32", "bfloat16", "float16"],
    Flag(help="Precision; float32 is slow on GPUs."),
]
BatchSize = Annotated[int, Count("Items per batch; affects rounding only.")]
Seed = Annotated[int, Count("Seed of every random choice; recorded.", 0, max=2**32 - 1)]
Language = Annotated[str, Value("XX", "Language of stop words and stems: de, fr …")]
Limit = Annotated[int | None, Count("Stop after N rows (images, lines) of the input.")]
# The callbacks of these two set them for the process: no function has to hand them on.
Quiet = Annotated[bool, Flag("--quiet", "-q", callback=stay_quiet, help="Print errors only.")]
Offline = Annotated[
    bool,
    Flag(
        "--offline",
        callback=stay_offline,
        help="Never connect; a missing model is exit 69.",
    ),
]
LogTo = Annotated[
    Literal["tensorboard", "wandb", "trackio"] | None,
    Flag(
        "--log-to",
        callback=log_to,
        help="Also log records there; tensorboard: in tensorboard/ next to the run.",
    ),
]
Restart = Annotated[bool, Flag("--restart", help="Discard the unfinished run and start over.")]
Table = Annotated[bool, Flag("--table", help="Print markdown, also into a pipe.")]
Samples = Annotated[int, Count("Bootstrap samples of the p-values and intervals.", 100)]
AsSplit = Annotated[str | None, Value("NAME", 'Write NAME as the "split" of every row.')]


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """Where a command computes and how much it prints; nothing that decides its output.

    Attributes:
        device: cpu, cuda, cuda:1, mps; auto takes a GPU if any.
    """

    device: str = value("auto", metavar="NAME")
    offline: Offline = False
    quiet: Quiet = False


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where a command writes.

    Attributes:
        output: File to write; the same command resumes it. - is stdout.
    """

    output: str = file("-")
    restart: Restart = False


@dataclass(frozen=True, kw_only=True)
class ShardTarget(Target):
    """Where a command writes that can write shards: a file, or a folder if the name ends in /.

    Attributes:
        output: File to write; the same command resumes it. - is stdout. X/ with the suffix of a
            file is a folder of shards, for many processes.
        shard: With -o X/: only every N-th shard from number I on, 0 to N-1.
        shard_size: Bytes of input per shard.
        ray: Make the shards on a Ray cluster: auto, local or HOST:PORT.
        dry_run: Write nothing; print the shards, time and bytes that it would take, by a sample.
    """

    output: str = file("-", topic=FIRST)
    restart: Annotated[Restart, FIRST] = False
    shard: str | None = value(None, metavar="I/N")
    shard_size: int | None = count(None, show_default="some minutes of work")
    ray: str | None = value(None, metavar="ADDRESS")
    dry_run: bool = value(False)


@dataclass(frozen=True, kw_only=True)
class TextTarget(ShardTarget):
    """Where a command writes the output that it makes of texts.

    Attributes:
        workers: With --ray: the most workers.
    """

    workers: int | None = count(None, show_default="one per GPU or core")


@dataclass(frozen=True, kw_only=True)
class RunFolder(Target):
    """Where a command writes a run.

    Attributes:
        output: Run folder; the same command resumes it.
    """

    output: str = value(..., metavar="DIR")
    log_to: LogTo = None


@dataclass(frozen=True, kw_only=True)
class Errors:
    """How a command treats items that it cannot use.

    Attributes:
        on_error: Stop at the first bad item, or note it in X.errors.jsonl and continue.
        max_errors: With skip: give up after more than N bad items.
    """

    on_error: Literal["fail", "skip"] = value("fail")
    max_errors: int | None = count(None, least=0)

    def tally(self) -> Tally:
        """Return a new count of the items that are left out."""
        from vgtools.io.errors import Tally

        return Tally(self.on_error == "skip", self.max_errors)


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """How a model learns; a system's subclass holds its paper's values.

    The fields are the entries of `run.json`, in its order.

    Attributes:
        epochs: Passes over the input.
        steps: Steps in total, instead of --epochs.
        batch_size: Items per step, over all processes.
        micro_batch: Items per forward pass and process; a step accumulates several.
        lr: Highest learning rate of AdamW.
        warmup: Steps of warm-up; below 1, their share of all steps.
        schedule: Learning rate after the warm-up.
        weight_decay: On matrices; not on biases and norms.
        clip: Clip gradients to this norm; 0 disables clipping.
        dtype: bfloat16: matrix products only, weights stay float32. A GPU's float32 has no TF32 and
            is its slowest.
        gradients: Precision in which processes send gradients to one another; bfloat16 halves the
            bytes. One process sends none.
    """

    epochs: int | None = count(None, topic=FIRST)
    steps: int | None = count(None)
    batch_size: int = count(..., topic=FIRST)
    micro_batch: int | None = count(None, show_default="--batch-size")
    lr: float = value(..., metavar="RATE", min=0, topic=FIRST)
    warmup: float = value(..., metavar="N", min=0)
    schedule: Literal["linear", "cosine", "constant"] = value("linear")
    weight_decay: float = value(0.01, metavar="RATE", min=0)
    clip: float = value(1.0, metavar="NORM", min=0)
    dtype: Literal["float32", "bfloat16"] = value("float32")
    gradients: Literal["float32", "bfloat16"] = value("float32")


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """How often training reports, evaluates and saves.

    Attributes:
        log_every: Steps between records.
        eval_every: Steps between evaluations.
        checkpoint_steps: Steps between checkpoints, in addition to --checkpoint-minutes.
        checkpoint_minutes: Minutes between checkpoints.
    """

    log_every: int = count(50)
    eval_every: int | None = count(None, show_default="an epoch")
    checkpoint_steps: int | None = count(None)
    checkpoint_minutes: float = value(10.0, metavar="N", min=0)


@dataclass(frozen=True, kw_only=True)
class TaskFiles:
    """The files of a downstream task, where they are not in its folder under their names.

    The fields are arguments of `vgtools.tasks.table.find_splits`.

    Attributes:
        train: Train on FILE instead of DATA's.
        dev: Evaluate on FILE instead of DATA's.
        test: Also predict FILE, labelled or not.
        no_test: Ignore DATA's test files.
    """

    train: str | None = file(None)
    dev: str | None = file(None)
    test: str | None = file(None)
    no_test: bool = value(False)


@dataclass(frozen=True, kw_only=True)
class GroundingFlags:
    """Words that are visually grounded.

    Attributes:
        grounding: Captions, or a list of vg stats --grounded-types: decide which words are
            grounded.
        tokenizer: With --grounding: definition of a token, as in vg stats.
        grounded_above: A type is grounded if captions contain it more than N times.
    """

    grounding: str | None = file(None)
    tokenizer: str = value("words", metavar="REF")
    grounded_above: int = count(100, least=0)

    def types(self) -> tuple[Vocabulary, frozenset[str]] | None:
        """Return the vocabulary and its grounded types; None without --grounding."""
        if self.grounding is None:
            return None
        from vgtools.tasks.compare import grounded_types

        types = open_vocabulary(self.tokenizer)
        return types, grounded_types(self.grounding, types, self.grounded_above)


def help_at_terminal(context: typer.Context, *inputs: str) -> None:
    """Print the help and exit if an input is `-` and standard input is a terminal.

    Raises:
        typer.Exit: with the code of a usage error; a command that waits for typed text looks hung.
    """
    if "-" in inputs and sys.stdin is not None and sys.stdin.isatty():
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(Exit.USAGE)


def refuse_if(wrong: object, flag: str | None, why: str) -> None:
    """Raise a usage error about a flag where something is wrong.

    Raises:
        typer.BadParameter: it is.
    """
    if wrong:
        raise typer.BadParameter(why, param_hint=flag)


def is_given(context: typer.Context, name: str) -> bool:
    """Return whether a parameter is on the command line or in a --config, not its default."""
    source = getattr(context.get_parameter_source(name), "name", None)
    return source in ("COMMANDLINE", "DEFAULT_MAP")


# Suffixes of files that hold neither text nor rows.
NOT_TEXT = r"\.(npy|npz|faiss|ids|json|safetensors)(\.(gz|zst))?$"


def open_vocabulary(tokenizer: str) -> Vocabulary:
    """Return the definition of a token: the words of a text (`words`), or the pieces of a
    tokenizer.
    """
    from vgtools.text import ngrams

    if tokenizer == "words":
        return ngrams.WordTypes()
    from vgtools.models.references import load_tokenizer

    return ngrams.Pieces(load_tokenizer(tokenizer), tokenizer)


def check_streams(inputs: Sequence[str | None], output: str) -> None:
    """Refuse inputs and outputs that training cannot use: two pipes, a shared pipe, a run on
    stdout.
    """
    from vgtools.io.names import is_stream
    from vgtools.training import processes

    piped = [*inputs, output].count("-") > 1 or output == "-"
    refuse_if(piped, "-", "only one input can come from a pipe, and a run is a directory")
    several = processes.world() > 1 and any(is_stream(name) for name in inputs if name)
    refuse_if(several, "-", "several processes cannot read one pipe; write a file first")


def _named() -> list[tuple[str, bool]]:
    """Return the words of the command line that may name its inputs, and whether each does.

    A word without a flag before it and a folder in it may be another: `lm` of `vg pretrain lm … -o
    lm` is a command.
    """
    words = list[tuple[str, bool]]()
    before = ""
    for word in command_line()[1:]:
        flag, equals, value = word.partition("=")
        if word.startswith("-") and equals:
            before, word = flag, value
        if before.startswith("-"):
            words += [] if before in ("-o", "--output") else [(word, True)]
        else:
            words.append((word, os.sep in word.rstrip(os.sep)))
        before = "" if equals else word
    return words


def _goes(run: Path, file: Path) -> bool:
    """Return whether a restart removes this part of the run, or something in it."""
    from vgtools.models.sealed import is_own_file

    return file == run or is_own_file(file, run) or is_own_file(file / "config.json", run)


def run_folder(output: str, restart: bool = False, *sources: str | None) -> Path:
    """Return the run folder, made if needed, before any work is done; empty, it does not stay.

    Args:
        output: as the user named it.
        restart: the content of the folder is removed.
        *sources: models to start from, or folders of pictures, which must not be the folder; at a
            restart nothing that the command line names may be in it.

    Raises:
        typer.BadParameter: the name is empty or a source's, or a restart would remove a source.
        DataError: it is a file, or cannot be created.
    """
    refuse_if(not output, "--output", "is empty; give a folder")
    place = Path(os.path.realpath(output))
    for source in sources:
        same = source is not None and os.path.exists(source) and Path(source).resolve() == place
        refuse_if(same, "--output", f"is {source}, which this command reads; choose another")
    given = [*((source, True) for source in sources if source), *_named()]
    for source, is_input in given if restart else ():
        found = Path(os.path.realpath(source))
        inside = place in found.parents or (is_input and found == place)
        inside &= os.path.exists(source)
        why = f"would remove {source}, which this command reads; choose another -o"
        refuse_if(inside and (source in sources or _goes(place, found)), "--restart", why)
    path = Path(output)
    if path.is_symlink() or path.name in ("", ".."):
        # Files go next to the folder: it needs its real name.
        path = Path(os.path.realpath(output))
        if not path.name or not path.exists():
            why = f"is {path}, expected a folder for a run; choose another -o"
            raise DataError(why, output, code=Exit.CANNOT_CREATE)
    if storable(path.name) != path.name:
        why = "has bytes in its name that are not UTF-8, which a manifest cannot hold"
        raise DataError(why, path, code=Exit.CANNOT_CREATE)
    if path.exists() and not path.is_dir():
        raise DataError("is a file, expected a run folder", path, code=Exit.CANNOT_CREATE)
    try:
        make_folder(path)
    except OSError as error:
        why = f"cannot be created: {error.strerror}"
        if isinstance(error, FileNotFoundError):
            why = f"cannot be created: {path.parent} does not exist; create it first"
        code = file_error(error, path, reading=False).code
        raise DataError(why, path, code=code) from None
    return path
