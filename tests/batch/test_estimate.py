"""`--dry-run`: what an output would take, by a sample of which nothing is left."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import text
from tests.tiny.images import save_backbone, save_photo
from vgtools.batch import estimate
from vgtools.batch.plan import PlannedInput, ShardPlan, text_source
from vgtools.cli import run
from vgtools.io.errors import DataError, Exit
from vgtools.io.streams import read_windows

LINES = 4000
LINE = "a line of thirty-two characters\n"


class Doubled:
    """Writes each line twice; a step of some lines takes a second of `clock`."""

    def __init__(self, clock: list[float], lines: int = 50) -> None:
        self.config = {"command": "double", "device": "cpu"}
        self.steps_done = 0
        self._lines = lines
        self._clock = clock

    def open(self, path: str, output: Any) -> Any:
        return output([path], self.config)

    def steps(self, pieces: Any, out: Any) -> Generator[int, None, None]:
        for window in read_windows(pieces, self._lines, out.state):
            for line in window.texts():
                out.write(f"{line}\n{line}\n".encode())
            self._clock[0] += len(window.texts()) / self._lines
            rows = out.state.get("rows", 0) + len(window.texts())
            out.commit({"rows": rows, "digest": window.digest, "counts": {"rows": rows}})
            self.steps_done += 1
            yield len(window.texts())
        out.finish()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("vgtools.batch.estimate.time.monotonic", lambda: now[0])
    return now


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files alone."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_text(LINE * LINES)
    return path


def plan_of(*paths: Path, size: int = 10_000) -> ShardPlan:
    return ShardPlan({"command": "double"}, [text_source(str(path)) for path in paths], size)


def test_an_estimate_is_that_of_the_whole_and_of_a_part(
    source: Path, clock: list[float], temporary: Path
) -> None:
    task = Doubled(clock)
    found = estimate.estimate(task, plan_of(source, size=32_000), "x.jsonl/", (0, 1))
    assert found["shards"] == 4
    assert found["seconds"] == pytest.approx(LINES / 50, rel=0.01)
    assert found["bytes"] == pytest.approx(2 * len(LINE) * LINES, rel=0.01)
    assert found["sample"]["items"] == pytest.approx(found["sample"]["share"] * LINES, abs=2)
    assert found["sample"]["seconds"] >= 2.5
    part = estimate.estimate(task, plan_of(source, size=32_000), "x.jsonl/", (3, 4))
    assert part["shards"] == 1
    assert part["seconds"] == pytest.approx(LINES / 50 / 4, rel=0.01)
    file = estimate.estimate(task, plan_of(source), "-", (0, 1))
    assert (file["shards"], file["bytes"]) == (None, pytest.approx(2 * len(LINE) * LINES, rel=0.01))
    assert [*temporary.iterdir()] == []


def test_a_sample_is_of_the_middle_and_grows_only_as_far_as_needed(
    source: Path, tmp_path: Path, clock: list[float]
) -> None:
    # Lines are four times as long in the middle of the input, which the sample is from.
    (tmp_path / "long.txt").write_text((4 * LINE[:-1] + "\n") * 2 * LINES)
    task = Doubled(clock)
    plan = plan_of(source, tmp_path / "long.txt", source, size=10**9)
    found = estimate.estimate(task, plan, "x.jsonl/", (0, 1))
    assert found["sample"]["bytes"] / found["sample"]["items"] == pytest.approx(250, rel=0.01)
    assert found["sample"]["share"] < 0.1
    assert found["sample"]["seconds"] < 20


def test_a_file_that_cannot_be_cut_is_left_after_some_seconds(
    tmp_path: Path, clock: list[float], temporary: Path
) -> None:
    path = tmp_path / "a.txt.gz"
    lines = text(LINES * 50, seed=3)
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    task = Doubled(clock, 2000)
    found = estimate.estimate(task, plan_of(path), "x.jsonl", (0, 1))
    assert task.steps_done < 20  # of 100
    assert found["sample"]["share"] < 0.2
    assert found["sample"]["items"] == 2000 * task.steps_done
    # Blocks are decompressed ahead, so that the place in the file is known by that much.
    assert found["seconds"] == pytest.approx(100, rel=0.2)
    assert [*temporary.iterdir()] == []


def test_inputs_of_no_bytes_are_not_measured(
    source: Path, tmp_path: Path, clock: list[float]
) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    with pytest.raises(DataError, match="is empty, and nothing can be measured"):
        estimate.estimate(Doubled(clock), plan_of(empty), "x.jsonl", (0, 1))
    found = estimate.estimate(Doubled(clock), plan_of(empty, source, empty), "x.jsonl", (0, 1))
    assert found["bytes"] == pytest.approx(2 * len(LINE) * LINES, rel=0.01)


def test_an_error_names_its_line_and_leaves_nothing(
    source: Path, clock: list[float], temporary: Path
) -> None:
    class Bad(Doubled):
        def steps(self, pieces: Any, out: Any) -> Generator[int, None, None]:
            yield 1
            raise DataError("is bad", str(source), 3)

    with pytest.raises(DataError) as caught:
        estimate.estimate(Bad(clock), plan_of(source), "x.jsonl/", (0, 1))
    assert caught.value.line is not None
    assert caught.value.line > 1000  # of the whole input
    assert [*temporary.iterdir()] == []


def test_images_are_cut_by_number(clock: list[float]) -> None:
    class Rows(Doubled):
        def steps(self, pieces: Any, out: Any) -> Generator[int, None, None]:
            (piece,) = pieces
            for _ in range(piece.start, piece.stop):
                out.write(b"12345678")
                clock[0] += 0.5
                yield 1
            out.commit({"counts": {}})
            out.finish()

    sources = [PlannedInput("photos", 10**9, "stamp", "image", 5000)]
    plan = ShardPlan({"command": "double"}, sources, 10**8)
    found = estimate.estimate(Rows(clock), plan, "f.npy/", (0, 1))
    assert (found["shards"], found["seconds"], found["bytes"]) == (10, 2500.0, 40_000)


# ------------------------------------------------------------------------------------- commands


@pytest.fixture
def at_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr("sys.stdout.isatty", lambda: True)


def files_below(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_commands_print_an_estimate_and_write_nothing(
    tiny: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "a.txt").write_text("".join(f"{line}\n" for line in text(300, seed=5)))
    index = ("--index", str(tiny / "vg.faiss"), "--device", "cpu")
    rows = tmp_path / "v.jsonl"
    assert run(["vokenize", str(tmp_path / "a.txt"), *index, "-o", str(rows), "-q"]) == 0
    before = files_below(tmp_path)
    capfdbinary.readouterr()
    commands = {
        "vokenize": [str(tmp_path / "a.txt"), *index, "-o", f"{tmp_path}/new.npy/"],
        "retrieve": [str(tmp_path / "a.txt"), *index, "-o", f"{tmp_path}/new.jsonl"],
        "revokenize": [str(rows), "-t", str(tiny / "run"), "-o", f"{tmp_path}/new.jsonl/"],
    }
    found = {}
    for command, args in commands.items():
        assert run([command, *args, "--dry-run", "-q"]) == 0
        found[command] = json.loads(capfdbinary.readouterr().out)
    assert files_below(tmp_path) == before
    assert found["vokenize"]["shards"] == found["revokenize"]["shards"] == 1
    assert found["retrieve"]["shards"] is None
    assert all(each["seconds"] > 0 and each["bytes"] > 0 for each in found.values())
    # All of the text is less than a shard, so that all of it was the sample.
    args = ["vokenize", str(tmp_path / "a.txt"), *index, "-q"]
    assert run([*args, "-o", f"{tmp_path}/new.npy/"]) == 0
    made = sum(path.stat().st_size for path in (tmp_path / "new.npy").glob("*-*"))
    assert found["vokenize"]["bytes"] == pytest.approx(made, rel=0.2)


def test_features_of_images_are_measured(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    save_backbone(tmp_path / "net")
    (tmp_path / "photos").mkdir()
    for number in range(9):
        save_photo(tmp_path / "photos" / f"{number}.png", number)
    before = files_below(tmp_path)
    args = ["extract-image-feats", f"{tmp_path}/photos", "-b", f"{tmp_path}/net", "--device", "cpu"]
    args += ["-o", f"{tmp_path}/f.npy", "--dry-run", "-q"]
    assert run(args) == 0
    found = json.loads(capfdbinary.readouterr().out)
    assert found["seconds"] > 0
    assert found["sample"]["items"] == 9
    assert run([*args, "--captions", f"{tmp_path}/c.jsonl"]) == Exit.USAGE
    assert b"--captions does not go with --dry-run" in capfdbinary.readouterr().err
    assert files_below(tmp_path) == before


def test_a_terminal_gets_lines(
    source: Path, clock: list[float], capsys: pytest.CaptureFixture[str], at_terminal: Any
) -> None:
    found = estimate.estimate(Doubled(clock), plan_of(source), "x.jsonl/", (0, 1))
    at_terminal()
    estimate.show(found, "lines")
    said = capsys.readouterr().out
    assert said.startswith("x.jsonl/ would take\n  shards     13\n")
    assert "  time       80 s in one process on cpu\n  size       256.0 kB\n" in said
    assert said.endswith("500 lines, 12 percent of the input, in 10.0 s\n")


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["-", "--dry-run"], "cannot be cut into a sample"),
        (["a.txt", "-o", "x.jsonl/", "--ray", "auto", "--dry-run"], "leave --ray out"),
        (["a.txt", "-o", "x.jsonl", "--emb", "e.npy", "--dry-run"], "--emb does not go with"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    why: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("a dog\n")
    assert run(["retrieve", *args, "--index", "vg.faiss"]) == Exit.USAGE
    assert why in capsys.readouterr().err
