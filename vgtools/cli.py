"""Assemble the commands into `vg`; turn signals and errors into exit codes."""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import importlib
import io
import os
import sys
import textwrap
import threading
import warnings
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from vgtools import __version__
from vgtools.commands.completion import SHELL, completing
from vgtools.commands.config import place_of
from vgtools.commands.topics import Command, marked
from vgtools.io.errors import DataError, Exit, file_error, is_out_of_memory, plain
from vgtools.io.process import note_command_line, remove_empty, stay_quiet
from vgtools.io.remote import stay_offline
from vgtools.io.streams import PIPES

# Order of `vg --help`. The module `vgtools.commands.<name>` holds a function, or a typer
# application, of the same name, dashes as underscores.
COMMANDS = (
    "demo",
    "prepare",
    "extract-image-feats",
    "train-matcher",
    "evaluate-matcher",
    "build-index",
    "vokenize",
    "revokenize",
    "retrieve",
    "locate",
    "pretrain",
    "perplexity",
    "measure",
    "finetune",
    "translate",
    "score",
    "show",
    "serve",
    "stats",
    "probe-attention",
    "compare",
    "status",
    "lineage",
    "push",
    "man",
    "env",
)


class _InOrder(TyperGroup):
    """The commands in the order of the pipeline; typer lists those with sub-commands last."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name in COMMANDS if name in self.commands]


def _version(value: bool) -> None:
    if value:
        print(f"vg {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Composable tools for visually grounded language learning.

    Data goes to stdout, messages to stderr; `-` is a stream.

    Every command takes --config FILE. In a .toml, .yaml or .json it has flags by name, and
    arguments by their name in small letters: batch_size = 64, text = ["a.txt", "b.txt"]. A run, its
    run.json, or an output or its manifest X.json repeats the command that made it, with the files
    that this one read where it ran, apart from --restart and --shard: give another -o. The command
    line wins over the file, and manifests name the flags, not the file.
    """


def make_app(names: tuple[str, ...] = COMMANDS) -> typer.Typer:
    """Return `vg` with some of its commands; their modules import nothing heavy."""
    app = typer.Typer(
        name="vg",
        cls=_InOrder,
        callback=_options,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in names:
        module = importlib.import_module(f"vgtools.commands.{name.replace('-', '_')}")
        entry = getattr(module, name.replace("-", "_"))
        if isinstance(entry, typer.Typer):
            for inner in entry.registered_commands:
                vars(inner).update(_help_of(inner.callback))
            app.add_typer(entry, name=name)
        else:
            app.command(name, **_help_of(entry))(entry)
    return app


@functools.cache
def _tree(name: str) -> Any:
    """Return the tree with a command, for one that reads the lines of others."""
    return typer.main.get_command(_app_for([name]))


def _help_of(command: Any) -> dict[str, Any]:
    """Return a docstring as help; a list of commands would cut a summary that is not given."""
    text = marked(command.__doc__ or "")
    return {"cls": Command, "help": text, "short_help": text.partition("\n")[0]}


def main(argv: list[str] | None = None) -> None:
    """Run `vg` and exit with the code that `vgtools.io.errors.Exit` documents."""
    if not sys.warnoptions:  # warnings of libraries are for developers; -W shows them
        warnings.simplefilter("ignore")
    if sys.stderr is not None:
        was = sys.stderr
        raw = _Messages(was.fileno(), "wb", closefd=False)
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(raw), encoding=was.encoding, errors=was.errors, line_buffering=True
        )
    sys.unraisablehook = _signal_again
    try:
        code: Any = run(sys.argv[1:] if argv is None else argv)
    except SystemExit as stop:
        if isinstance(stop.code, str):
            raise
        code = stop.code
    except KeyboardInterrupt:  # before `run` answers to it
        code = Exit.INTERRUPTED
    _end(int(code or 0))


class _Messages(io.FileIO):
    """Standard error: a message that a full disk does not take is lost, the work is not."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError:
            return len(data)


def _signal_again(dropped: Any) -> None:
    """Send a signal again that broke into code whose errors Python drops, such as `__del__`."""
    import signal

    number = {SystemExit: signal.SIGTERM, KeyboardInterrupt: signal.SIGINT}.get(dropped.exc_type)
    if number is None:
        sys.__unraisablehook__(dropped)
    else:  # a moment later, when that code has ended
        threading.Timer(0.05, os.kill, (os.getpid(), number)).start()


def _end(code: int) -> NoReturn:
    """End the process without taking Python apart, which takes torch seconds and saves nothing."""
    import signal

    # Its work is done: a signal would only break into an exit function, with a traceback.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # an error was already reported by `run`
            stream.flush()
    os._exit(code)


def run(argv: list[str]) -> int:
    """Run one command line and return its exit code; an error is one line on stderr."""
    import signal

    _reserve_standard_streams()
    PIPES.clear()
    # Before the line is parsed, because --config reads its file, perhaps at a URL, meanwhile.
    stay_offline("--offline" in argv)
    stay_quiet(False)
    note_command_line(["vg", *argv])
    # Read by torch: large arrays in large pages. Each micro-batch has a fresh gradient of the word
    # table, for whose small pages the kernel takes a fifth of a training step of MiniLM.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    for word in argv:
        if "\0" in word:  # only from Python: no shell can pass it
            return _say(f"{word}: has a NUL in it, which no name has", Exit.USAGE)
    # Exits by unwinding, so that locks and parts are cleared.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(Exit.TERMINATED))
    # Help wraps at spaces only: a line that ends in "--log-" cannot be searched or copied.
    textwrap.TextWrapper.wordsep_re = textwrap.TextWrapper.wordsep_simple_re
    try:
        if SHELL in os.environ:
            with completing(os.environ) as words:
                _app_for(words[1:])([], prog_name="vg", standalone_mode=False)
        result: Any = _app_for(argv)(argv, prog_name="vg", standalone_mode=False, obj=_tree)
        _flush()
        return int(result or 0)
    except BrokenPipeError:
        return _closed_pipe()
    except SystemExit as stop:
        # typer exits with 1 where a pipe is closed
        if isinstance(stop.__context__, BrokenPipeError):
            return _closed_pipe()
        raise
    except DataError as error:
        with contextlib.suppress(DataError):  # the error that counts is known
            _flush()
        # An id may hold a line break; a message is one line.
        return _say(str(error).replace("\n", "\\n"), error.code)
    except (KeyboardInterrupt, typer.Abort):
        return Exit.INTERRUPTED
    except typer.Exit as stop:
        return int(stop.exit_code)
    except OSError as error:
        if error.filename is None:  # files are named: it was the standard output
            _discard_output()
            return _say(str(file_error(error, "-", reading=False)), Exit.IO)
        # It may be an input or an output: some flag or argument holds the name.
        code = Exit.USAGE if error.errno == errno.ENAMETOOLONG else Exit.IO
        return _say(f"{error.filename}: {error.strerror or error}", code)
    except Exception as error:
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            return _usage_error(error)
        if os.environ.get("VG_TRACEBACK"):
            raise
        if is_out_of_memory(error):
            why = f"out of memory ({_first_line(error)}); a smaller --batch-size, a larger machine"
            return _say(f"{why} or a higher limit (ulimit -v) is needed", Exit.CANNOT_CONTINUE)
        why = f"internal error: {type(error).__name__}: {error} (VG_TRACEBACK=1 prints where)"
        return _say(why, Exit.INTERNAL)
    finally:
        note_command_line(None)
        remove_empty()


def _app_for(words: list[str]) -> typer.Typer:
    """Return `vg` with the command that is named alone: start-up stays quick as they get more."""
    return make_app(tuple(name for name in COMMANDS if name in words[:1]) or COMMANDS)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _usage_error(error: Any) -> int:
    """Report an error of typer's parser, whose classes typer does not export."""
    message = error.format_message().replace(
        ": Value error, ", ": "
    )  # pydantic's, of a wrong choice
    context = getattr(error, "ctx", None)
    if context is None:
        return _say(message, Exit.USAGE)
    if not context.args and message == context.get_help():  # `vg` alone
        print(message, file=sys.stderr)
        return int(Exit.USAGE)
    place = place_of(context, getattr(getattr(error, "param", None), "name", ""))
    message = f"{place}: {message}" if place else message
    return _say(f"{message} (see: {context.command_path} --help)", Exit.USAGE)


def _reserve_standard_streams() -> None:
    """Keep data and messages apart where a caller closed a standard stream (`2>&-`).

    A file opened later would take the closed stream's number, and print(file=None) would write a
    message to stdout.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    if sys.stdout is None:  # data for it is an error, not silently lost
        os.dup2(os.open(os.devnull, os.O_RDONLY), 1)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115


def _flush() -> None:
    """Write out all that is still buffered: only now is a full disk or a closed stream an error."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _discard_output()
        raise file_error(error, "-", reading=False) from None


def _closed_pipe() -> int:
    _discard_output()
    return int(Exit.PIPE)


def _discard_output() -> None:
    """Redirect standard output to nowhere: Python flushes it once more at exit."""
    with contextlib.suppress(OSError):  # a stream without a number needs nothing
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(message: str, code: int) -> int:
    print(f"vg: {plain(message)}", file=sys.stderr)
    return int(code)
