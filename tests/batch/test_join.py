"""Shards joined are the file of one process, whatever stopped the join before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.batch.test_shards import Lengths, run
from vgtools import io
from vgtools.batch.join import join, shards_beside
from vgtools.io import DataError, Exit
from vgtools.io.output import Output

LINES = b"".join(b"%s %d\r\n" % (b"x" * (n % 17), n) for n in range(90))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_bytes(LINES)
    return path


def one(source: Path, output: Path) -> None:
    task = Lengths()
    with task.open(str(output), Output) as out:
        list(task.steps([io.Piece(str(source))], out))


def joined(folder: Path, output: Path, stop_after: int | None = None) -> None:
    """Join a folder; stop after some commits as a kill would."""

    class Stopping(Output):
        commits = 0

        def commit(self, state: object) -> None:
            super().commit(state)  # type: ignore[arg-type]
            self.commits += 1
            if self.commits == stop_after:
                raise KeyboardInterrupt

    names = list[str]()

    def opened(paths: list[str], *args: object, **forms: object) -> Output:
        names.extend(paths)
        return Stopping(paths, *args, **forms)  # type: ignore[arg-type]

    with Lengths().open(str(output), opened) as out:
        join(str(folder), out, names)


@pytest.mark.parametrize("stop_after", [None, 1, 7])
@pytest.mark.parametrize("ending", [".jsonl", ".npy"])
def test_joined_shards_are_the_file(
    source: Path, tmp_path: Path, ending: str, stop_after: int | None
) -> None:
    one(source, tmp_path / f"one{ending}")
    run(tmp_path / f"many{ending}", source, size=80)
    output = tmp_path / f"x{ending}"
    if stop_after:
        with pytest.raises(KeyboardInterrupt):
            joined(tmp_path / f"many{ending}", output, stop_after)
        assert not output.exists()
    joined(tmp_path / f"many{ending}", output)
    assert output.read_bytes() == (tmp_path / f"one{ending}").read_bytes()
    if ending == ".npy":
        ends = np.load(tmp_path / "x.rows.npy")
        assert (ends == np.load(tmp_path / "one.rows.npy")).all()
    manifest = io.read_manifest(output)
    assert (manifest["kind"], manifest["rows"], "plan" in manifest) == ("lengths", 90, False)


def test_compressed_shards_hold_the_same_rows(source: Path, tmp_path: Path) -> None:
    one(source, tmp_path / "one.jsonl")
    run(tmp_path / "many.jsonl.zst", source, size=80)
    joined(tmp_path / "many.jsonl.zst", tmp_path / "x.jsonl.zst")
    with io.open_read(tmp_path / "x.jsonl.zst") as stream:
        assert stream.read() == (tmp_path / "one.jsonl").read_bytes()


def test_an_unfinished_run_of_one_process_is_refused(source: Path, tmp_path: Path) -> None:
    run(tmp_path / "many.jsonl", source, size=80)
    task = Lengths()
    with (
        pytest.raises(KeyboardInterrupt),
        task.open(str(tmp_path / "x.jsonl"), Output) as out,
    ):
        for _ in task.steps([io.Piece(str(source))], out):
            raise KeyboardInterrupt
    with pytest.raises(DataError, match="without --ray it resumes") as caught:
        joined(tmp_path / "many.jsonl", tmp_path / "x.jsonl")
    assert caught.value.code == Exit.CONFIG


@pytest.mark.parametrize("ending", [".jsonl", ".npy"])
def test_a_damaged_shard_is_not_joined(source: Path, tmp_path: Path, ending: str) -> None:
    folder = tmp_path / f"many{ending}"
    run(folder, source, size=80)
    victim = next(path for path in sorted(folder.glob(f"000003-*{ending}")))
    data = bytearray(victim.read_bytes())
    data[-2] ^= 1
    victim.write_bytes(data)
    with pytest.raises(DataError, match="is damaged: its sha256") as caught:
        joined(folder, tmp_path / f"x{ending}")
    assert caught.value.code == Exit.DATA
    assert not (tmp_path / f"x{ending}").exists()


def test_where_shards_of_a_file_are() -> None:
    assert shards_beside("out/x.jsonl") == "out/x.shards.jsonl/"
    assert shards_beside("x.y.jsonl.gz") == "x.y.shards.jsonl.gz/"
    assert shards_beside("x.npy") == "x.shards.npy/"
