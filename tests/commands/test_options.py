"""Groups of flags, default sub-commands, and what commands say."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from vgtools import cli
from vgtools.commands.options import (
    Argument,
    Count,
    Errors,
    Optimizer,
    RunFolder,
    Runtime,
    Target,
    help_at_terminal,
    run_folder,
)
from vgtools.commands.signature import flags
from vgtools.commands.topics import DefaultGroup
from vgtools.io.errors import DataError, Exit
from vgtools.io.process import note

seen: list[Any] = []


@dataclass(frozen=True, kw_only=True)
class Slow(Optimizer):
    """An optimizer with values of its own."""

    batch_size: int = 64
    lr: float = 1e-5
    warmup: float = 0.1
    schedule: Literal["linear", "constant"] = "constant"


@pytest.fixture(autouse=True)
def _forget() -> None:
    seen.clear()


def call(app: typer.Typer, *args: str) -> Any:
    return CliRunner().invoke(app, args, env={"COLUMNS": "100", "TERM": "dumb"})


def one_command() -> typer.Typer:
    app = typer.Typer(rich_markup_mode=None, add_completion=False)

    @app.command()
    @flags
    def train(
        file: str,
        optimizer: Slow,
        target: RunFolder,
        runtime: Runtime,
        extra: Annotated[list[str] | None, typer.Option("--extra")] = None,
    ) -> None:
        """Train.

        More.
        """
        seen.extend((file, optimizer, target, runtime, extra))

    return app


def test_fields_of_a_dataclass_are_flags_and_the_dataclass_is_handed_over() -> None:
    args = ("a.txt", "-o", "run", "--lr", "1", "--steps", "5", "--extra", "x", "--extra", "y", "-q")
    done = call(one_command(), *args)
    assert done.exit_code == 0, done.output
    assert seen == [
        "a.txt",
        Slow(lr=1.0, steps=5),
        RunFolder(output="run"),
        Runtime(quiet=True),
        ["x", "y"],
    ]


def test_a_subclass_has_its_own_defaults_and_the_options_of_its_base() -> None:
    text = call(one_command(), "--help").output
    words = " ".join(text.split())
    assert "Highest learning rate of AdamW. [default: 1e-05; x>=0]" in words
    assert "linear|constant" in words
    assert "Learning rate after the warm-up. [default: constant]" in words
    names = [line.split()[0] for line in text.splitlines() if line.startswith("  --")]
    fields = [f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(Slow)]
    assert names[: len(fields)] == fields, "flags keep the order of the fields"
    assert "Train." in text


def test_a_wrong_choice_lists_the_right_ones() -> None:
    done = call(one_command(), "a", "-o", "run", "--schedule", "cosine")
    assert done.exit_code == Exit.USAGE
    assert "'cosine' is not one of 'linear', 'constant'" in done.output
    assert not seen


def test_a_field_without_default_is_a_required_flag() -> None:
    done = call(one_command(), "a")
    assert done.exit_code == Exit.USAGE
    assert "Missing option '--output' / '-o'" in done.output


def test_a_decorated_command_can_be_called_with_its_fields() -> None:
    @flags
    def save(*, target: Target, errors: Errors, runtime: Runtime) -> tuple[Any, ...]:
        return target, errors, runtime

    values = {"output": "x", "restart": True, "on_error": "skip", "max_errors": 3}
    assert save(**values, device="cpu", offline=False, quiet=True) == (
        Target(output="x", restart=True),
        Errors(on_error="skip", max_errors=3),
        Runtime(device="cpu", quiet=True),
    )


def test_the_help_of_a_parameter_is_in_the_docstring() -> None:
    @flags
    def save(
        name: Annotated[str, Argument("NAME")],
        bare: Annotated[bool, typer.Option("--bare")] = False,
        own: Annotated[int, Count("Its own.", 2)] = 3,
    ) -> None:
        """Save.

        Examples:

            vg save x --bare

        Args:
            name: Name of the file: it is short, so that this line ends here, and is continued on
                another.
            bare: Nothing else.
            own: No help.
        """

    assert save.__doc__ == "Save.\n\nExamples:\n\n    vg save x --bare"
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command()(save)
    text = " ".join(call(app, "--help").stdout.split())
    wrapped = "it is short, so that this line ends here, and is continued on another."
    assert f"Name of the file: {wrapped}" in text
    assert "--bare Nothing else." in text
    assert "--own N Its own. [default: 3; x>=2]" in text
    assert "No help" not in text


def group(*, summary: str = "Learn words.") -> typer.Typer:
    app = typer.Typer(cls=DefaultGroup, rich_markup_mode=None, add_completion=False)

    @app.command("lm", help=f"{summary}\n\nLong text.")
    def _lm(
        files: list[str],
        flag: Annotated[bool, typer.Option("--flag")] = False,
        more: Annotated[bool, typer.Option("--more")] = False,
    ) -> None:
        seen.append(("lm", files, flag))

    @app.command("visualbert", help="Learn pictures.")
    def _visualbert(
        files: list[str], flag: Annotated[bool, typer.Option("--flag")] = False
    ) -> None:
        seen.append(("visualbert", files, flag))

    return app


@pytest.mark.parametrize(
    ("args", "name", "files"),
    [
        (["wiki.txt", "--flag"], "lm", ["wiki.txt"]),
        (["--flag", "wiki.txt", "b"], "lm", ["wiki.txt", "b"]),
        (["lm", "wiki.txt", "--flag"], "lm", ["wiki.txt"]),
        (["visualbert", "a", "--flag"], "visualbert", ["a"]),
        (["--flag", "--", "--more", "visualbert"], "lm", ["--more", "visualbert"]),
        (["./visualbert", "--flag"], "lm", ["./visualbert"]),
    ],
)
def test_the_first_sub_command_is_meant_where_none_is_named(
    args: list[str], name: str, files: list[str]
) -> None:
    done = call(group(), *args)
    assert done.exit_code == 0, done.output
    assert seen == [(name, files, True)]


def test_a_misspelled_sub_command_is_suggested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call(group(), "visualbet", "c.jsonl")
    assert done.exit_code == Exit.USAGE
    said = " ".join(done.output.split())
    assert "No such command 'visualbet'. Did you mean 'visualbert'? Commands: lm, vis" in said
    assert not seen
    (tmp_path / "visualbet").touch()
    assert call(group(), "visualbet").exit_code == 0
    assert seen == [("lm", ["visualbet"], False)]


def test_help_of_a_group_is_that_of_its_first_and_a_list_of_all() -> None:
    text = call(group(), "--help").output
    assert text.startswith("Usage: root [OPTIONS] ")
    for part in ("Learn words.", "Long text.", "--more", "Commands:", "Learn pictures."):
        assert part in text, part
    own = call(group(), "visualbert", "--help").output
    assert "Learn pictures." in own
    assert "--flag" in own
    assert "--more" not in own, "a sub-command shows its own flags only"
    assert "--more" in call(group(), "wiki.txt", "--help").output


def test_a_list_of_commands_shows_the_summary_of_the_first() -> None:
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.add_typer(group(), name="pretrain")
    app.command("other")(lambda: None)
    assert "pretrain  Learn words." in call(app, "--help").output


def test_no_command_waits_for_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer(rich_markup_mode=None, add_completion=False)

    @app.command()
    def read(context: typer.Context, file: str = "-") -> None:
        with monkeypatch.context() as patch:
            patch.setattr("sys.stdin.isatty", lambda: True)
            help_at_terminal(context, file)
        seen.append(file)

    done = call(app)
    assert done.exit_code == Exit.USAGE
    assert done.stderr.startswith("Usage: ")
    assert not seen
    assert call(app, "--file", "x").exit_code == 0
    assert seen == ["x"]


def test_notes_are_plain_and_can_be_turned_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    note("stats", "1 line of \x1b[31mx\x1b[0m")
    monkeypatch.setattr("vgtools.io.process._quiet", True)
    note("stats", "another")
    assert capsys.readouterr().err == "vg stats: 1 line of \\x1b[31mx\\x1b[0m\n"


def test_a_run_folder_is_made_or_refused(tmp_path: Path) -> None:
    assert run_folder(str(tmp_path / "run")).is_dir()
    (tmp_path / "file").touch()
    for place, why in (
        ("file", "is a file, expected a run folder"),
        ("no/run", "cannot be created: .*/no does not exist; create it first$"),
        (os.fsdecode(b"caf\xe9"), "has bytes in its name that are not UTF-8"),
    ):
        with pytest.raises(DataError, match=why) as fault:
            run_folder(str(tmp_path / place))
        assert fault.value.code == Exit.CANNOT_CREATE


def test_a_restart_removes_none_of_the_models_to_start_from(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "backbone").mkdir(parents=True)
    assert run_folder(str(run), True, None, "builtin:minilm", str(tmp_path)) == run
    assert run_folder(str(run), False, None, str(run / "backbone")) == run
    with pytest.raises(
        typer.BadParameter, match=r"would remove .*backbone, which this command reads"
    ):
        run_folder(str(run), True, None, str(run / "backbone"))


def test_a_run_folder_has_a_name_whatever_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "link").symlink_to("new")
    (tmp_path / "dangling").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path / "new")
    for name in (".", "./", "../new", "../new/", "../link", "../link/"):
        assert run_folder(name).name == "new"
        assert run_folder(name).samefile(tmp_path / "new")
    assert run_folder("..") == tmp_path
    for name in ("/", "../dangling"):
        with pytest.raises(DataError, match="expected a folder for a run") as fault:
            run_folder(name)
        assert fault.value.code == Exit.CANNOT_CREATE
    with pytest.raises(typer.BadParameter, match="is empty"):
        run_folder("")


@pytest.mark.parametrize(
    "args",
    [
        ["stats", "x.txt", "--limit", "99999999999999999999"],
        ["revokenize", "x.jsonl", "-t", "x", "--limit", "99999999999999999999"],
        ["finetune", "cola", "x", "-e", "x", "-o", "r", "--patience", "99999999999999999999"],
    ],
)
def test_a_number_that_no_counter_holds_is_refused(
    args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(args) == 2
    assert "below 2**63" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["inf", "-inf", "nan"])
@pytest.mark.parametrize(
    ("args", "flag"),
    [
        (["pretrain", "x.txt", "--shape", "bert-tiny", "-t", "x", "-o", "r"], "--warmup"),
        (["train-matcher", "x.jsonl", "x.npy", "-o", "r"], "--margin"),
        (["finetune", "cola", "x", "-e", "x", "-o", "r"], "--lr"),
        (["evaluate-matcher", "x.jsonl", "x.npy", "x"], "--context"),
        (["score", "squad-2.0", "x.jsonl"], "--null-threshold"),
        (["vokenize", "x.txt", "--index", "x.faiss"], "--min-score"),
        (["prepare", "pairs", "a", "b"], "--ratio"),
    ],
)
def test_infinity_and_nan_are_usage_errors(
    args: list[str], flag: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([*args, flag, number]) == 2
    message = capsys.readouterr().err
    assert flag in message
    assert f"must be finite, below 2**63, got {number}" in message or "Input should be" in message


@pytest.mark.parametrize("word", ["predictions.jsonl", "pl.jsonl", "run/seed-1/predictions.jsonl"])
def test_a_restart_never_removes_a_file_that_a_bare_name_leads_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    run = tmp_path / "run"
    (run / "seed-1").mkdir(parents=True)
    (run / "seed-1/predictions.jsonl").touch()
    (tmp_path / "pl.jsonl").symlink_to("run/seed-1/predictions.jsonl")
    monkeypatch.chdir(run / "seed-1" if word == "predictions.jsonl" else tmp_path)
    line = ["vg", "finetune", "classify", word, "-o", "run", "--restart"]
    monkeypatch.setattr("vgtools.commands.options.command_line", lambda: line)
    with pytest.raises(typer.BadParameter, match=f"would remove {word}, which this command reads"):
        run_folder(str(run), True)
    # A task or command may have the name of the run.
    monkeypatch.chdir(tmp_path)
    line[2:4] = ["run", "x.jsonl"]
    assert run_folder("run", True) == Path("run")


@pytest.mark.parametrize(
    ("name", "text", "goes"),
    [
        ("config.json", "{}", True),
        ("tokenizer_config.json", '{"tokenizer_class":"PreTrainedTokenizerFast"}', True),
        # The user's own, which stays.
        ("tokenizer_config.json", '{\n  "do_lower_case": true\n}', False),
        ("notes.txt", "mine", False),
    ],
)
def test_a_restart_never_removes_a_text_that_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, goes: bool
) -> None:
    (tmp_path / "run" / "encoder").mkdir(parents=True)
    file = tmp_path / "run" / "encoder" / name
    file.write_text(text)
    line = ["vg", "pretrain", "lm", str(file), "-o", "run", "--restart"]
    monkeypatch.setattr("vgtools.commands.options.command_line", lambda: line)
    monkeypatch.chdir(tmp_path)
    if goes:
        with pytest.raises(typer.BadParameter, match=r"would remove .*, which this command reads"):
            run_folder("run", True)
    else:
        assert run_folder("run", True) == Path("run")
    assert file.read_text() == text


@pytest.mark.parametrize("source", ["run", "run/encoder", "link", "run/seed-1/model", "run/."])
def test_a_restart_never_removes_the_model_it_starts_from(tmp_path: Path, source: str) -> None:
    (tmp_path / "run" / "seed-1" / "model").mkdir(parents=True)
    (tmp_path / "run" / "encoder").mkdir()
    (tmp_path / "link").symlink_to("run")
    itself = (tmp_path / source).samefile(tmp_path / "run")
    why = "is .*" if itself else "would remove .*"
    with pytest.raises(typer.BadParameter, match=why + ", which this command reads"):
        run_folder(str(tmp_path / "run"), True, str(tmp_path / source))
    if itself:
        with pytest.raises(typer.BadParameter, match=why + ", which this command reads"):
            run_folder(str(tmp_path / "run"), False, str(tmp_path / source))
    else:
        assert run_folder(str(tmp_path / "run"), False, str(tmp_path / source)).is_dir()
    (tmp_path / "other").mkdir()
    assert run_folder(str(tmp_path / "run"), True, str(tmp_path / "other")).is_dir()
    assert run_folder(str(tmp_path / "run"), True, "builtin:minilm").is_dir()


@pytest.mark.parametrize(
    ("args", "flag", "why"),
    [
        (["coco", "c.json"], "--images-out", "is empty; give a value, or leave the flag out"),
        (["visual-genome", "i.json"], "--regions", "is empty"),
        (["wikipedia", "d.xml"], "--page-views", "is empty"),
        (["coco", "c.json"], "--as-split", "has bytes that are not UTF-8"),
        (["regions", "x.tsv"], "--suffix", "has bytes that are not UTF-8"),
        (["regions", "x.tsv"], "--backbone", "has bytes that are not UTF-8"),
        (["wikipedia", "d.xml", "--page-views", "v"], "--project", "has bytes that are not UTF-8"),
    ],
)
def test_texts_that_no_command_takes_are_usage_errors(
    args: list[str], flag: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    value = "" if "empty" in why else "\udcff"  # as Python reads the byte 0xff of a command line
    assert cli.run(["prepare", *args, flag, value]) == 2
    assert f"Invalid value for {flag}: {why}" in capsys.readouterr().err
