"""Shards joined are the file of one process, whatever stopped the join before."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.batch.test_shards import Lengths, run
from vgtools.batch import run as batch
from vgtools.batch.join import join, shards_beside
from vgtools.commands.options import ShardTarget
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import read_manifest
from vgtools.io.output import Output
from vgtools.io.streams import Piece, open_read

LINES = b"".join(b"%s %d\r\n" % (b"x" * (n % 17), n) for n in range(90))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_bytes(LINES)
    return path


def one(source: Path, output: Path) -> None:
    task = Lengths()
    with task.open(str(output), Output) as out:
        list(task.steps([Piece(str(source))], out))


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
    manifest = read_manifest(output)
    assert (manifest["kind"], manifest["rows"], "plan" in manifest) == ("lengths", 90, False)


def test_compressed_shards_hold_the_same_rows(source: Path, tmp_path: Path) -> None:
    one(source, tmp_path / "one.jsonl")
    run(tmp_path / "many.jsonl.zst", source, size=80)
    joined(tmp_path / "many.jsonl.zst", tmp_path / "x.jsonl.zst")
    with open_read(tmp_path / "x.jsonl.zst") as stream:
        assert stream.read() == (tmp_path / "one.jsonl").read_bytes()


def test_an_unfinished_run_of_one_process_is_refused(source: Path, tmp_path: Path) -> None:
    run(tmp_path / "many.jsonl", source, size=80)
    task = Lengths()
    with (
        pytest.raises(KeyboardInterrupt),
        task.open(str(tmp_path / "x.jsonl"), Output) as out,
    ):
        for _ in task.steps([Piece(str(source))], out):
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


def by_ray(source: Path, output: Path, **flags: Any) -> object:
    """Write a file by way of shards; `in_place` of a cluster makes them here."""
    target = ShardTarget(output=str(output), ray="local", shard_size=80, **flags)
    texts = [str(source)]
    how = {"name": "lengths", "unit": "lines", "inputs": texts, "quiet": True}
    return batch.write(Lengths(), texts, target, make=Lengths, **how)  # type: ignore[arg-type]


def in_place(most: int = 1000) -> Any:
    """Return what does shards as a cluster would; after `most` of them it is killed."""

    def run_here(make: Any, shards: list[int], *where: object) -> Generator[Any, None, None]:
        work = make()
        for number in shards[:most]:
            yield work(number)
        if len(shards) > most:
            raise KeyboardInterrupt

    return run_here


def test_a_folder_of_its_own_is_neither_joined_nor_removed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch.cluster, "run", in_place())
    folder = tmp_path / "x.shards.jsonl"
    run(folder, source, size=80)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for flags in ({}, {"restart": True}):
        with pytest.raises(DataError, match=r"is an output of its own; --ray would join") as caught:
            by_ray(source, tmp_path / "x.jsonl", **flags)
        assert caught.value.code == Exit.CANNOT_CREATE
    folder.rename(tmp_path / "away")
    assert by_ray(source, tmp_path / "x.jsonl") == {"rows": 90}
    (tmp_path / "away").rename(folder)
    assert by_ray(source, tmp_path / "x.jsonl") is None, "up to date"
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_shards_of_an_unfinished_file_are_taken_by_its_command_alone(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one(source, tmp_path / "one.jsonl")
    folder = tmp_path / "x.shards.jsonl"
    monkeypatch.setattr(batch.cluster, "run", in_place(3))
    with pytest.raises(KeyboardInterrupt):
        by_ray(source, tmp_path / "x.jsonl")
    for restart in (False, True):
        with pytest.raises(
            DataError, match=r"the shards of an unfinished x\.jsonl of --ray"
        ) as got:
            run(folder, source, size=80, restart=restart)
        assert got.value.code == Exit.CANNOT_CREATE
    assert len(list(folder.glob("*-*"))) == 3
    monkeypatch.setattr(batch.cluster, "run", in_place())
    assert by_ray(source, tmp_path / "x.jsonl") == {"rows": 90}
    assert (tmp_path / "x.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    assert not folder.exists()
    assert not (tmp_path / "x.shards.json").exists()


def test_where_shards_of_a_file_are() -> None:
    assert shards_beside("out/x.jsonl") == "out/x.shards.jsonl/"
    assert shards_beside("x.y.jsonl.gz") == "x.y.shards.jsonl.gz/"
    assert shards_beside("x.npy") == "x.shards.npy/"
