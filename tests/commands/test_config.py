"""`--config`: flags from a file, a run that is repeated from its record, files that are refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer

from tests.examples.calls import application
from tests.tiny.lm import save_rows, save_shape, save_tokenizer, sentences, voken_rows
from tests.tiny.runs import hashes, refused
from vgtools import __version__, cli
from vgtools.commands.config import _keys
from vgtools.commands.lines import take_apart
from vgtools.commands.options import Argument, Count, Flag, Value, is_given
from vgtools.commands.signature import flags
from vgtools.commands.topics import Command
from vgtools.io.errors import DataError, Exit
from vgtools.io.process import command_line
from vgtools.io.settings import count, value
from vgtools.io.written import END, seal

seen: list[Any] = []


@dataclass(frozen=True, kw_only=True)
class Rate:
    """How fast.

    Attributes:
        lr: A number.
        batch_size: Another number.
    """

    lr: float = value(1.0)
    batch_size: int = count(8)


@flags
def learn(
    context: typer.Context,
    text: Annotated[list[str], Argument("TEXT", "Texts.")],
    rate: Rate,
    index: Annotated[list[str] | None, Value("FILE", "Repeatable.")] = None,
    k: Annotated[int, Count("How many.")] = 1,
    level: Annotated[Literal["token", "sentence"], Flag(help="A choice.")] = "token",
    sentence: Annotated[bool, Flag("--sentence/--no-sentence", help="On or off.")] = True,
    quiet: Annotated[bool, Flag("--quiet", "-q", help="A switch.")] = False,
) -> None:
    """Learn a thing."""
    given = [name for name in ("lr", "k", "level") if is_given(context, name)]
    seen.extend((text, rate, index, k, level, sentence, quiet, given, command_line()))


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let `vg learn` be this command, in an empty folder."""
    made = typer.Typer(rich_markup_mode=None, add_completion=False)
    made.callback()(lambda: None)
    made.command("learn", cls=Command)(learn)
    monkeypatch.setattr(cli, "make_app", lambda _=None: made)
    monkeypatch.chdir(tmp_path)
    seen.clear()


SETTINGS = {
    "s.toml": 'text = ["a", "b"]\nlr = 1e-4\nbatch-size = 4\nindex = "x"\n'
    "sentence = false\nquiet = true\n",
    "s.yaml": "text: [a, b]\nlr: 1e-4\nbatch_size: 4\nindex: [x]\nsentence: false\nq: true\n",
    "s.json": '{"text": ["a", "b"], "lr": 0.0001, "batch_size": "4", "index": ["x"],'
    ' "sentence": false, "quiet": true}',
}  # fmt: skip


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["", "byte order mark"])
@pytest.mark.parametrize("name", list(SETTINGS))
def test_flags_come_from_a_file_and_the_command_line_wins(name: str, mark: str) -> None:
    Path(name).write_text(mark + SETTINGS[name])
    assert cli.run(["learn", "--config", name]) == 0
    *found, line = seen
    rate = Rate(lr=1e-4, batch_size=4)
    assert found == [["a", "b"], rate, ["x"], 1, "token", False, True, ["lr"]]
    words = "vg learn a b --lr 0.0001 --batch-size 4 --index x --no-sentence --quiet"
    assert line == words.replace("0.0001", "1e-4" if name == "s.yaml" else "0.0001").split()
    seen.clear()
    more = ["c", "--index", "y", "--lr", "2", "--sentence", f"--config={name}", "--level", "token"]
    assert cli.run(["learn", *more]) == 0
    *found, line = seen
    rate = Rate(lr=2.0, batch_size=4)
    assert found == [["c"], rate, ["y"], 1, "token", True, True, ["lr", "level"]]
    words = "vg learn c --lr 2 --batch-size 4 --index y --level token --sentence --quiet"
    assert line == words.split(), "as if the settings had been typed"
    assert command_line() != line, "it is of that command alone"


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    ("name", "text", "code", "said"),
    [
        ("s.toml", "k = 1\nbatchsize = 4\n", 2, ["s.toml:2:", 'nearest is "batch_size"']),
        ("s.yaml", "k: 1\n\nlr: fast\n", 2, ["s.yaml:3: Invalid value for '--lr'"]),
        ("s.json", '{"k": 1,\n "level": "word"}', 2, ["s.json:2: ", "'--level'", "'sentence'"]),
        ("s.toml", "k = 0\n", 2, ["s.toml:1: Invalid value for '--k'"]),
        ("s.toml", "k = 1.5\n", 2, ["s.toml:1: Invalid value for '--k'"]),
        ("s.toml", "k = true\n", 2, ["s.toml:1:", "expected text or a number, got true"]),
        ("s.toml", "k = [1, 2]\n", 2, ["s.toml:1:", "expected one value, got a list"]),
        ("s.toml", "[rate]\nlr = 1\n", 2, ['"rate" is not a flag']),
        ("s.yaml", "lr:\n  rate: 1\n", 2, ["s.yaml:1:", 'got {"rate": 1}']),
        ("s.yaml", "lr:\n", 2, ["s.yaml:1:", "got null"]),
        ("s.yaml", "quiet: 'yes'\n", 2, ["s.yaml:1:", 'expected true or false, got "yes"']),
        ("s.yaml", "lr: .nan\n", 2, ["--lr", "must be finite"]),
        ("s.yaml", "q: true\nquiet: true\n", 2, ["s.yaml:2:", '"quiet" and "q" are one flag']),
        ("s.yaml", "config: s.yaml\n", 2, ['"config" is not a flag']),
        ("s.yaml", "a: 1\nb: c: d\n", 65, ["s.yaml:2: mapping values are not allowed here"]),
        ("s.yaml", "- k\n", 65, ["expected names of flags"]),
        ("s.yaml", "3: k\n", 65, ["expected names of flags"]),
        ("s.toml", "k = \n", 65, ["s.toml: cannot be read", "line 1"]),
        ("s.json", '{"k": 1', 65, ["s.json: cannot be read", "line 1"]),
        ("s.json", "\udcff", 65, ["s.json: cannot be read"]),
        ("s.yaml", "#" * (1 << 26) + "\nk: 1\n", 65, ["s.yaml: has more than 64 MB"]),
        ("s.yaml", "k: " + 100_000 * "[", 65, ["s.yaml: is nested too deeply"]),
        ("s.yaml", 100_000 * "- ", 65, ["s.yaml: is nested too deeply"]),
        ("s.yaml", "x" * 999 + ": 1\n", 2, ["s.yaml:1:", f'"{"x" * 80}" is not a flag']),
        ("s.ini", "k = 1\n", 2, ["s.ini: expected a file of settings (.toml, "]),
        ("s.toml", "", 66, ["s.toml: cannot be read", "No such file"]),
        ("s.json", '{"k": 1, "k": 2}', 65, ["s.json: cannot be read: duplicate name 'k'"]),
        ("s.yaml", "k: 1\nk: 2\n", 65, ["s.yaml: cannot be read: duplicate name 'k'"]),
        ("s.yaml", "k: &a 1\nlr: *a\n", 65, ["s.yaml:2: has an alias (*); write its value"]),
        ("s.yaml", 'k: !!timestamp "99999-99-99"\n', 65, ["s.yaml: cannot be read: not valid"]),
        ("s.json", '{"text": "a\\u0000b"}', 2, ["s.json:1: ", "no name or text can have"]),
        ("s.json", '{"text": "\\ud800"}', 2, ["s.json:1: ", "no name or text can have"]),
        ("s.json", '{"format": 1, "argv": ["vg"], "files": {"s.json": {}}}', 65, ["no command"]),
        ("folder/", "", 2, ["folder/: expected a file of settings"]),
        ("s", "", 66, ["does not exist"]),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_by_name_and_line(
    name: str, text: str, code: int, said: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    if name.endswith("/"):
        Path(name).mkdir()
    elif text:
        Path(name).write_bytes(text.encode("utf-8", "surrogateescape"))
    assert cli.run(["learn", "a", "--config", name]) == code
    refused(capfd, *said)
    assert not seen


@pytest.mark.usefixtures("app")
def test_a_value_of_the_command_line_is_not_said_to_be_of_the_file(
    capfd: pytest.CaptureFixture[str],
) -> None:
    Path("s.toml").write_text("lr = 1\n")
    assert cli.run(["learn", "a", "--config", "s.toml", "--k", "x"]) == Exit.USAGE
    assert capfd.readouterr().err.startswith("vg: Invalid value for '--k'")
    assert cli.run(["learn", "--config", "s.toml"]) == Exit.USAGE
    refused(capfd, "vg: Missing argument 'TEXT'")


@pytest.mark.usefixtures("app")
def test_a_record_of_another_command_or_version_is_said_to_be_that(
    capfd: pytest.CaptureFixture[str],
) -> None:
    body: dict[str, Any] = {"format": 1, "vg": "0.0.1", "files": {"o": {}}}
    for argv, code, said in (
        (["vg", "learn", "a", "--k", "3"], 0, "vg learn: m.json is of vg 0.0.1, this is vg "),
        (["vg", "forget", "a"], 2, "was made by vg forget, not by vg learn"),
        (
            ["vg", "learn", "a", "--old-flag"],
            2,
            f"m.json: vg {__version__} cannot read vg learn a --old-flag: No such",
        ),
        (["my.py", "a"], 65, "was made by the program my.py, which alone makes it again"),
    ):
        Path("m.json").write_bytes(json.dumps(body | {"argv": argv}).encode())
        assert cli.run(["learn", "--config", "m.json"]) == code, argv
        assert said in capfd.readouterr().err
    assert seen[3] == 3
    Path("m.json").write_bytes(json.dumps(body | {"argv": ["vg", 3]}).encode())
    assert cli.run(["learn", "--config", "m.json"]) == Exit.DATA
    refused(capfd, 'm.json: "argv[1]"')


def test_a_manifest_repeats_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.txt").write_text("A dog runs. Two cats sleep.\nA bird.\n")
    call = ["prepare", "sentences"]
    assert cli.run([*call, "t.txt", "-o", "s.jsonl"]) == 0
    made = json.loads(Path("s.json").read_bytes())
    assert made["argv"] == ["vg", *call, "t.txt", "-o", "s.jsonl"]
    assert cli.run([*call, "--config", "s.json"]) == 0
    assert "up to date" in capfd.readouterr().err, "the same output"
    assert cli.run([*call, "--config", "s.json", "-o", "again.jsonl"]) == 0
    assert Path("again.jsonl").read_bytes() == Path("s.jsonl").read_bytes()
    again = json.loads(Path("again.json").read_bytes())
    assert again["argv"] == ["vg", *call, "t.txt", "--output", "again.jsonl"]
    # From another folder, and by the name of the file itself: names of files are seen from there.
    Path("inner").mkdir()
    monkeypatch.chdir("inner")
    assert cli.run([*call, "--config", "../s.jsonl", "-o", "third.jsonl"]) == 0
    assert Path("third.jsonl").read_bytes() == Path("../s.jsonl").read_bytes()
    third = json.loads(Path("third.json").read_bytes())
    assert third["argv"] == ["vg", *call, "../t.txt", "--output", "third.jsonl"]


def test_a_run_json_repeats_its_run_to_the_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_shape(Path("shape.json"))
    save_tokenizer(Path("t"))
    save_rows(Path("rows.jsonl"), voken_rows(sentences(20), 11))
    call = "pretrain rows.jsonl --shape shape.json --tokenizer t --vokens 13 --steps 3 --lr 0.002"
    fast = "--block 16 --batch-size 4 --log-every 1 --seed 5 --device cpu -q --restart -o run"
    assert cli.run([*call.split(), *fast.split()]) == 0
    assert cli.run(["pretrain", "--config", "run/run.json", "-o", "again"]) == 0
    assert hashes(Path("again")) == hashes(Path("run"))
    argv = json.loads(Path("again/run.json").read_bytes())["argv"]
    assert argv[:3] == ["vg", "pretrain", "lm"]
    assert not {"--config", "--restart"} & {*argv}
    assert argv[argv.index("--output") + 1] == "again"


def test_a_record_chooses_the_sub_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    argv = ["/usr/bin/vg", "pretrain", "xdbert", "none.txt", "--encoder", "e", "-o", "r"]
    body = {"format": 1, "files": {"a": {}}, "argv": argv, "versions": {"vgtools": "0"}}
    Path("run.json").write_bytes(json.dumps(body | {"sha256": seal(body, END)}).encode())
    assert cli.run(["pretrain", "--config", "run.json"]) == Exit.USAGE
    assert "vg pretrain xdbert --help" in capfd.readouterr().err, "--teacher is missing"
    assert cli.run(["pretrain", "clip", "--config", "run.json"]) == Exit.USAGE
    assert "was made by vg pretrain xdbert, not by vg pretrain clip" in capfd.readouterr().err


def leaves() -> list[tuple[str, Any]]:
    def of(command: Any, words: str) -> list[tuple[str, Any]]:
        inner = getattr(command, "commands", None)
        if inner is None:
            return [(words, command)]
        return [leaf for name, one in inner.items() for leaf in of(one, f"{words} {name}".strip())]

    return of(application(), "")


def test_every_parameter_of_every_command_has_a_name_in_a_file() -> None:
    for words, command in leaves():
        named = {one.name for one in _keys(command).values()}
        silent = {one.name for one in command.params} - named - {"config"}
        assert silent == ({"text"} if words == "demo" else set()), "demo has --text and TEXT"
        assert [one.name for one in command.params][-1] == "config", words


def test_command_lines_are_read_and_written() -> None:
    tree = application()
    for line, expected in (
        ("vokenize a.txt --index v -k 2 -q", "vokenize a.txt --index v -k 2 --quiet"),
        ("pretrain a -o r --lr=1", "pretrain lm a --output r --lr 1"),
        ("train-matcher c f -o r --no-root", "train-matcher vokenization c f --output r --no-root"),
        ("prepare squad -o x -- -a", "prepare squad --output x -- -a"),
    ):
        assert " ".join(take_apart(tree, line.split()).words()) == expected
    moved = take_apart(tree, ["vokenize", "a.txt", "--index", "builtin:emoji"]).moved("sub")
    assert (moved["text"], moved["index"]) == (["sub/a.txt"], ["builtin:emoji"])
    made = take_apart(tree, ["stats", "--vokens", "v.jsonl", "--vectors", "w.npy"])
    assert made.written == ["w.npy"]
    assert [name for name, _ in made.read()] == ["v.jsonl"]
    photos = take_apart(tree, ["extract-image-feats", "a", "-o", "f.npy", "--captions", "c.jsonl"])
    assert photos.written == ["f.npy", "c.jsonl"]
    emoji = take_apart(
        tree, ["prepare", "openmoji", "e", "-o", "c.jsonl", "--images-out", "i.jsonl"]
    )
    assert emoji.written == ["c.jsonl", "i.jsonl", "e"]
    given = take_apart(tree, ["build-index", "w.npy", "-o", "x.faiss", "--vectors", "w.npy"])
    assert given.written == ["x.faiss"]
    for line in ("forget a", "prepare", "vokenize --no-such"):
        with pytest.raises(DataError, match=r"vg .* (has no command|cannot read)"):
            take_apart(tree, line.split())
