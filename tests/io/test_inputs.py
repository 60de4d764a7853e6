"""An output never names an input that was not read."""

from __future__ import annotations

import hashlib
import io as streams
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from vgtools.io import remote
from vgtools.io.artifact import read_manifest
from vgtools.io.errors import DataError, Exit
from vgtools.io.inputs import Inputs
from vgtools.io.output import Output
from vgtools.io.streams import PIPES, read_lines, read_windows


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def copy(source: Path, target: Path, after: Any = None) -> bool:
    """Copy a text line by line as a resumable output; return whether there was work."""
    with Output([target], {}, inputs=[source]) as out:
        if out.complete:
            return False
        for window in read_windows(source, 1, out.state):
            out.write("".join(f"{line}\n" for line in window.lines).encode())
            out.commit({"rows": window.first, "digest": window.digest})
            if after is not None:
                after(window.first)
        out.finish(kind="copy")
        return True


@pytest.mark.parametrize("change", ["append", "replace", "remove"])
def test_an_input_that_changes_while_it_is_read_is_refused(tmp_path: Path, change: str) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a\nb\n")

    def edit(line: int) -> None:
        if line == 2 and change == "append":
            with source.open("a") as stream:
                stream.write("c\n")
        elif line == 2 and change == "replace":
            (tmp_path / "new").write_text("a\nB\n")
            (tmp_path / "new").replace(source)
        elif line == 2:
            source.unlink()

    with pytest.raises(
        DataError, match=f"its sha256 was {sha256('a' + chr(10) + 'b' + chr(10))}"
    ) as caught:
        copy(source, target, edit)
    assert caught.value.code == Exit.CONFIG
    if change == "append":
        assert sha256("a\nb\nc\n") in str(caught.value)
    assert not target.exists()
    assert not (tmp_path / "out.json").exists()


def test_an_input_that_was_only_touched_is_the_same(tmp_path: Path) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a\nb\n")
    assert copy(source, target, lambda _: os.utime(source, (1, 1)))
    entry = {"path": str(source), "bytes": 4, "sha256": sha256("a\nb\n")}
    assert read_manifest(target)["inputs"] == [entry]


def stop_at_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill what follows between the final journal and the manifest."""

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vgtools.io.output.write_manifest", killed)


def test_what_was_finished_is_not_published_for_another_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("old\n")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_at_manifest(patch)
        copy(source, target)
    source.write_text("new\n")
    both = f"sha256 was {sha256('old' + chr(10))}, is now {sha256('new' + chr(10))}"
    for _ in range(2):
        with pytest.raises(DataError, match=both) as caught:
            copy(source, target)
        assert caught.value.code == Exit.CONFIG
        assert not (tmp_path / "out.json").exists()
        assert not (tmp_path / "out.txt.lock").exists()
    source.write_text("old\n")
    assert not copy(source, target), "published without work"
    assert read_manifest(target)["inputs"][0]["sha256"] == sha256("old\n")


def test_what_was_finished_from_a_pipe_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out.txt"

    def pipe(text: str) -> bool:
        stdin = streams.TextIOWrapper(streams.BytesIO(text.encode()))
        monkeypatch.setattr(sys, "stdin", stdin)
        return copy(Path("-"), target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_at_manifest(patch)
        pipe("old\n")
    assert pipe("new\n")
    assert target.read_text() == "new\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.json", "out.txt"]


def test_a_pipe_with_the_name_of_a_former_one_is_read(tmp_path: Path) -> None:
    """`<(cat a)` and `<(cat b)` are both /dev/fd/63."""
    pipe, target = tmp_path / "63", tmp_path / "out.txt"
    for text in ("a\n", "b\n"):
        os.mkfifo(pipe)
        if os.fork() == 0:
            pipe.write_text(text)
            os._exit(0)
        assert copy(pipe, target)
        os.wait()
        assert target.read_text() == text
        pipe.unlink()
        PIPES.clear()  # the next one is read by another run


def test_the_standard_input_is_read_once_whatever_it_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"a\n")
    os.close(writing)
    with open(reading) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert list(read_lines("-")) == ["a"]
        for name in ("-", f"/dev/fd/{reading}"):
            with pytest.raises(DataError, match="read before") as caught:
                next(read_lines(name))
            assert caught.value.code == Exit.USAGE


def test_an_input_that_grew_between_two_runs_is_refused_with_both_hashes(tmp_path: Path) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a\nb\n")

    def stop(line: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy(source, target, stop)
    source.write_text("a\nb\nc\n")
    with pytest.raises(DataError, match=sha256("a\nb\nc\n")) as caught:
        copy(source, target)
    assert sha256("a\nb\n") in str(caught.value)
    assert "--restart" in str(caught.value)
    assert caught.value.code == Exit.CONFIG


@pytest.mark.parametrize("columns", ["#text=b", ""])
def test_a_table_is_resumed_with_the_same_columns(tmp_path: Path, columns: str) -> None:
    table = tmp_path / "in.csv"
    table.write_text("a,b,text\n1,2,3\n1,2,3\n")

    def run(source: str, stop: bool = False) -> None:
        with Output([tmp_path / "out.txt"], {}, inputs=[source]) as out:
            for window in read_windows(source, 1, out.state):
                out.write("".join(window.texts()).encode())
                out.commit({"rows": window.first, "digest": window.digest})
                if stop:
                    raise KeyboardInterrupt
            out.finish(kind="copy")

    with pytest.raises(KeyboardInterrupt):
        run(f"{table}#text=a", stop=True)
    with pytest.raises(DataError, match="read the columns text=a; --restart") as caught:
        run(f"{table}{columns}")
    assert caught.value.code == Exit.CONFIG
    run(f"{table}#text=a")
    assert (tmp_path / "out.txt").read_text() == "11"


def test_inputs_read_before_the_output_is_opened_are_compared_from_then_on(tmp_path: Path) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a\n")
    inputs = Inputs([source])
    text = source.read_bytes()
    source.write_text("b\n")
    with (
        pytest.raises(DataError, match="changed while it was read"),
        Output([target], {}, inputs=inputs) as out,
    ):
        out.write(text)
        out.finish(kind="copy")
    assert not target.exists()


def test_other_facts_are_compared_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(listing: str) -> None:
        inputs = Inputs([tmp_path], listing=listing)
        with Output([tmp_path / "x.txt"], {}, inputs=inputs) as out:
            if not out.complete:
                out.finish(kind="x")

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_at_manifest(patch)
        run("one")
    with pytest.raises(DataError, match='listing was "one", is now "two"'):
        run("two")
    run("one")
    assert read_manifest(tmp_path / "x.txt")["inputs"] == [{"path": str(tmp_path)}]


def test_a_pattern_is_what_it_means_and_a_file_of_its_name_is_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("t/b.txt", "t/a.txt", "t/deep/c.txt", "t/.hidden.txt", "t/d.md", "x[1].txt"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(name)
    assert remote.all_of(["t/*.txt"]) == ["t/a.txt", "t/b.txt"]
    assert remote.all_of(["t/d.md", "t/**/*.txt"]) == [
        "t/d.md",
        "t/a.txt",
        "t/b.txt",
        "t/deep/c.txt",
    ]
    assert remote.all_of(["t/?.[mt]*"]) == ["t/a.txt", "t/b.txt", "t/d.md"]
    assert remote.all_of(["x[1].txt", "none.txt", "-"]) == ["x[1].txt", "none.txt", "-"]
    assert remote.all_of(None) == ["-"]
    with pytest.raises(DataError, match=r"^t/\*.jsonl: matches no file$") as error:
        remote.all_of(["t/*.jsonl"])
    assert error.value.code == Exit.NO_INPUT
