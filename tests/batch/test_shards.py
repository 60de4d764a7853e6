"""Shards against one process: the same bytes for any text and any cut, once, whatever happens."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import multiprocessing
import os
import random
import socket
import tracemalloc
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from vgtools.batch import places, shards
from vgtools.batch import run as batch
from vgtools.batch.plan import ShardPlan, text_source
from vgtools.batch.shards import OpenOutput, ShardedOutput
from vgtools.io.artifact import read_manifest
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import dumps
from vgtools.io.folders import Shards
from vgtools.io.inputs import Inputs
from vgtools.io.names import manifest_path
from vgtools.io.output import Output
from vgtools.io.streams import Piece, read_jsonl, read_lines, read_texts, read_windows
from vgtools.io.written import manifest_beside, seal


class Lengths:
    """Writes the length of every line; a line "bad" is an error."""

    def __init__(self, **config: Any) -> None:
        self.config = {"command": "lengths", "device": "cpu", **config}
        self.made = 0

    def open(self, path: str, output: OpenOutput) -> AbstractContextManager[Any]:
        names = [path]
        npy = {}
        if path.endswith(".npy"):
            names.append(path.removesuffix("npy") + "rows.npy")
            npy = {0: ("<i4", None), 1: ("<i8", None)}
        return output(names, self.config, npy=npy)  # type: ignore[no-any-return]

    def steps(self, pieces: Sequence[Piece], out: Any) -> Generator[int, None, None]:
        self.made += 1
        rows = 0
        packed = len(out._parts) > 1
        for window in read_windows(pieces, 3):
            for number, line in enumerate(window.lines, window.first):
                if line == "bad":
                    raise DataError("is bad", window.path, number)
                rows += 1
                if packed:
                    out.write(np.int32([len(line)]).tobytes())
                    out.write(np.int64([rows]).tobytes(), 1)
                else:
                    out.write(dumps({"text": line, "length": len(line)}))
            out.commit({"rows": rows, "digest": window.digest, "counts": {"rows": rows}})
            yield len(window.lines)
        out.finish(kind="lengths", rows=rows, form="rows")


def complete(
    out: ShardedOutput, task: Lengths, part: tuple[int, int] = (0, 1)
) -> dict[str, Any] | None:
    """Do what is missing of a part; return the manifest of a complete folder."""
    batch.run(out, task, part, name="lengths")
    return read_manifest(out.folder) if out.is_complete() else None


def run(
    folder: Path,
    *texts: Path,
    size: int | None = None,
    part: tuple[int, int] = (0, 1),
    task: Lengths | None = None,
    restart: bool = False,
) -> dict[str, Any] | None:
    task = task or Lengths()
    sources = [text_source(str(text)) for text in texts]
    out = shards.open_folder(f"{folder}/", task.config, sources, size, 64, restart)
    return complete(out, task, part)


def plan_of(size: int, *texts: Path) -> ShardPlan:
    return ShardPlan({}, [text_source(str(text)) for text in texts], size)


def lines_of(data: bytes) -> list[bytes]:
    """Split on \\n only, as a loop over bytes."""
    lines = []
    line = bytearray()
    for byte in data:
        line.append(byte)
        if byte == 10:
            lines.append(bytes(line))
            line.clear()
    return [*lines, bytes(line)] if line else lines


def random_text(dice: random.Random) -> bytes:
    parts = [b"\n", b"\r\n", b"\r", b"\n\n", b"\xef\xbb\xbf", b"\xff", b"\xc3", "é\u2028".encode()]
    parts += [b"a", b"bc ", b"a long line of many words " * 3]
    return b"".join(dice.choice(parts) for _ in range(dice.randrange(0, 60)))


def test_pieces_hold_every_line_once_for_any_text_and_cut(tmp_path: Path) -> None:
    dice = random.Random(3)
    for _ in range(150):
        texts = []
        expected = []
        for number in range(dice.randrange(1, 4)):
            texts.append(tmp_path / f"{number}.txt")
            data = random_text(dice)
            texts[-1].write_bytes(data)
            for i, raw in enumerate(lines_of(data)):
                raw = raw.removeprefix(b"\xef\xbb\xbf") if i == 0 else raw
                raw = raw.removesuffix(b"\n").removesuffix(b"\r")
                expected.append((number, i + 1, raw.decode("utf-8", "replace")))
        plan = plan_of(dice.randrange(1, 50), *texts)
        found = []
        for shard in range(len(plan)):
            for piece in plan.pieces(shard):
                before = piece.lines_before()
                for window in read_windows([piece], 2):
                    for at, line in enumerate(window.lines, window.first + before):
                        found.append((texts.index(Path(piece.path)), at, line))
        assert found == expected


def test_cuts_are_at_equal_parts_of_all_texts(tmp_path: Path) -> None:
    for name, size in (("a", 100), ("b", 0), ("c", 50)):
        (tmp_path / name).write_bytes(b"x" * size)
    a, b, c = (str(tmp_path / name) for name in "abc")
    plan = plan_of(40, *map(Path, (a, b, c)))
    assert len(plan) == 4  # 150 bytes: cut at 37, 75, 112
    assert [plan.pieces(i) for i in range(4)] == [
        [Piece(a, 0, 37)],
        [Piece(a, 37, 75)],
        [Piece(a, 75, 100), Piece(c, 0, 12)],
        [Piece(c, 12, 50)],
    ]


def test_compressed_texts_are_shards_of_their_own_and_nothing_is_one_empty_shard(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.txt").write_bytes(b"a\nb\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"c\n" * 100))
    (tmp_path / "c.txt").write_bytes(b"d\n")
    (tmp_path / "none").write_bytes(b"")
    plan = plan_of(2, *(tmp_path / name for name in ("a.txt", "b.txt.gz", "c.txt", "none")))
    assert [[(Path(p.path).name, p.start, p.stop) for p in plan.pieces(i)] for i in range(4)] == [
        [("a.txt", 0, 2)],
        [("a.txt", 2, 4)],
        [("b.txt.gz", 0, None)],
        [("c.txt", 0, 2)],
    ]
    assert len(plan) == 4
    empty = plan_of(2, tmp_path / "none")
    assert (len(empty), empty.pieces(0)) == (1, [])
    assert run(tmp_path / "o.jsonl", tmp_path / "none")["shards"] == 1  # type: ignore[index]
    assert list(read_lines(tmp_path / "o.jsonl")) == []


TEXT = "".join(f"line {n}\n" for n in range(50)).encode()


def whole(tmp_path: Path, *texts: Path, name: str = "whole.jsonl") -> bytes:
    """Return the file that one process writes."""
    task = Lengths()
    with Output([tmp_path / name], task.config, inputs=texts, restart=True) as out:
        for _ in task.steps([Piece(str(text)) for text in texts], out):
            pass
    return (tmp_path / name).read_bytes()


def joined(folder: Path, ending: str | None = None) -> bytes:
    return b"".join(Path(file.path).read_bytes() for file in Shards(folder).files(ending))


@pytest.mark.parametrize("size", [1, 17, 64, 10_000])
def test_shards_joined_are_the_bytes_of_one_process(tmp_path: Path, size: int) -> None:
    a, b = tmp_path / "a.txt", tmp_path / "b.txt"
    a.write_bytes(TEXT)
    b.write_bytes(b"\xef\xbb\xbfmore\r\nof it")
    done = run(tmp_path / "o.jsonl", a, b, size=size)
    assert done is not None
    assert joined(tmp_path / "o.jsonl") == whole(tmp_path, a, b)
    assert (done["rows"], done["kind"]) == (52, "lengths")
    assert done["config"] == {"command": "lengths"}
    names = sorted(os.listdir(tmp_path / "o.jsonl"))
    assert len(names) == 2 * done["shards"] + 2, "no file is left over"
    plain = b"".join((tmp_path / "o.jsonl" / n).read_bytes() for n in names if "-" in n)
    assert plain == joined(tmp_path / "o.jsonl"), "the names sort"


def test_packed_and_compressed_shards(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(TEXT)
    run(tmp_path / "o.npy", tmp_path / "a.txt")
    expected = whole(tmp_path, tmp_path / "a.txt")
    for name in ("gzip.jsonl.gz", "zstd.jsonl.zst"):
        run(tmp_path / name, tmp_path / "a.txt")
        lines = list(read_lines(tmp_path / name))
        assert "".join(f"{line}\n" for line in lines).encode() == expected
    arrays = [np.load(file.path) for file in Shards(tmp_path / "o.npy").files()]
    ends = [np.load(file.path) for file in Shards(tmp_path / "o.npy").files(".rows.npy")]
    assert np.concatenate(arrays).tolist() == [len(x) for x in TEXT.decode().split("\n")[:-1]]
    assert [len(x) for x in arrays] == [int(x[-1]) for x in ends]


def test_a_folder_is_read_as_its_file(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_bytes(TEXT)
    run(tmp_path / "o.jsonl", text)
    folder, file = tmp_path / "o.jsonl", tmp_path / "whole.jsonl"
    whole(tmp_path, text)
    (tmp_path / "whole.json").unlink()
    assert list(read_jsonl(folder)) == list(read_jsonl(file))
    assert list(read_lines(folder)) == list(read_lines(file))
    assert list(read_texts(f"{folder}/")) == list(read_texts(file))
    # What a resumed run compares: of a file its lines, of a folder the list of all hashes.
    windows = list(read_windows(folder, 7))
    listed = hashlib.sha256(Shards(folder).sha256.encode()).hexdigest()
    assert {window.digest for window in windows} == {listed}
    state = {"rows": 14, "digest": listed}
    rest = [x for w in read_windows(folder, 7, state) for x in w.lines]
    assert rest == list(read_lines(file))[14:]
    with pytest.raises(DataError, match="its first 14 lines had sha256 0") as caught:
        next(read_windows(folder, 7, state | {"digest": "0" * 64}))
    assert caught.value.code == Exit.CONFIG
    assert Inputs([folder]).sha256(folder) == Shards(folder).sha256
    # Shards of shards: one each at most, whole, and errors count the joined lines.
    plan = plan_of(1, folder)
    assert len(plan) == len(Shards(folder)) > 3
    assert [p.start for i in range(len(plan)) for p in plan.pieces(i)] == list(range(len(plan)))
    lines = [x for i in range(len(plan)) for w in read_windows(plan.pieces(i), 9) for x in w.lines]
    assert lines == list(read_lines(file))
    before = [plan.pieces(i)[0].lines_before() for i in range(len(plan))]
    rows = [file.rows for file in Shards(folder).files()]
    assert before == [sum(rows[:i]) for i in range(len(rows))]


def test_a_link_to_a_folder_is_the_folder(tmp_path: Path) -> None:
    text, folder, link = tmp_path / "a.txt", tmp_path / "there/o.jsonl", tmp_path / "link.jsonl"
    text.write_bytes(TEXT)
    folder.parent.mkdir()
    made = run(folder, text)
    link.symlink_to(folder)
    assert list(read_lines(link)) == list(read_lines(folder))
    assert manifest_path(link) == tmp_path / "there/o.json"
    for read in (read_manifest, manifest_beside):
        assert read(link) == read(folder)
    task = Lengths()
    assert run(link, text, task=task) == made
    assert made is not None
    assert task.made == 0


def test_of_a_complete_folder_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, folder = tmp_path / "a.txt", tmp_path / "o.jsonl"
    text.write_bytes(TEXT)
    made = run(folder, text)

    def refuse(path: object) -> None:
        raise DataError("read-only", str(path), code=Exit.CANNOT_CREATE)

    monkeypatch.setattr("vgtools.batch.shards.Lock", refuse)
    assert run(folder, text) == made
    second = b"of a second try"
    stray = folder / f"000000-{hashlib.sha256(second).hexdigest()[:8]}.jsonl"
    stray.write_bytes(second)
    with pytest.raises(DataError, match="read-only"):
        run(folder, text)
    monkeypatch.undo()
    assert run(folder, text) == made
    assert not stray.exists()


def test_a_finished_shard_is_never_made_again(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_bytes(TEXT)
    first, second, third = Lengths(), Lengths(), Lengths()
    assert run(tmp_path / "o.jsonl", text, task=first, part=(1, 3)) is None
    stamps = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "o.jsonl").iterdir()}
    done = run(tmp_path / "o.jsonl", text, task=second)
    assert done is not None
    total = done["shards"]
    assert (first.made, second.made) == (len(range(1, total, 3)), total - len(range(1, total, 3)))
    for name, stamp in stamps.items():
        assert (tmp_path / "o.jsonl" / name).stat().st_mtime_ns == stamp
    manifest = (tmp_path / "o.json").read_bytes()
    run(tmp_path / "o.jsonl", text, task=third)
    assert third.made == 0
    assert (tmp_path / "o.json").read_bytes() == manifest, "up to date"


def test_commits_are_read_once_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, folder = tmp_path / "a.txt", tmp_path / "o.jsonl"
    text.write_bytes(TEXT)
    run(folder, text, part=(0, 2))
    (folder / "000002.json").write_text('{"shard":2}')
    read = Counter[str]()
    plain = places.read

    def counting(path: str) -> bytes | None:
        read[Path(path).name] += 1
        return plain(path)

    monkeypatch.setattr(places, "read", counting)
    out = output_of(folder, text)
    read.clear()
    assert out.finish() == 4, "of 7: three of the other part, one damaged"
    assert read == {f"{n:06d}.json": 1 for n in (0, 2, 4, 6)}
    assert not (folder / "shards.jsonl").exists()
    assert not list(folder.glob(".*"))
    for number in (1, 2, 3, 5):
        out.worker(Lengths())(number)
    read.clear()
    assert out.finish() == 0
    assert read == {f"{n:06d}.json": 1 for n in range(7)}
    assert joined(folder) == whole(tmp_path, text)
    read.clear()
    assert out.finish() == 0
    assert not read


def test_parts_in_any_order_complete_the_folder(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_bytes(TEXT)
    assert run(tmp_path / "o.jsonl", text, part=(2, 3)) is None
    with pytest.raises(DataError, match="not complete") as error:
        list(read_lines(tmp_path / "o.jsonl"))
    assert error.value.code == Exit.NO_INPUT
    assert run(tmp_path / "o.jsonl", text, part=(0, 3)) is None
    assert run(tmp_path / "o.jsonl", text, part=(1, 3)) is not None
    assert joined(tmp_path / "o.jsonl") == whole(tmp_path, text)


def test_an_error_names_the_line_of_the_whole_input(tmp_path: Path) -> None:
    a, b = tmp_path / "a.txt", tmp_path / "b.txt"
    a.write_bytes(TEXT)
    b.write_bytes(TEXT.replace(b"line 41\n", b"bad\n"))
    with pytest.raises(DataError) as error:
        run(tmp_path / "o.jsonl", a, b)
    assert (error.value.file, error.value.line, error.value.code) == (str(b), 42, Exit.DATA)
    made = [name for name in os.listdir(tmp_path / "o.jsonl") if "-" in name]
    assert len(made) > 8, "shards before it are kept"
    assert not any(name.startswith(".") for name in os.listdir(tmp_path / "o.jsonl"))


def test_a_file_that_is_given_twice_is_cut_twice(tmp_path: Path) -> None:
    a, b = tmp_path / "a.txt", tmp_path / "b.txt"
    a.write_bytes(b"1\n2\n3\n4\n")
    b.write_bytes(b"5\nbad\n")
    plan = plan_of(100, a, b, a, b)
    assert [[Path(piece.path).name for piece in plan.pieces(n)] for n in range(len(plan))] == [
        ["a.txt", "b.txt"],
        ["a.txt", "b.txt"],
    ]
    with pytest.raises(DataError) as error:
        run(tmp_path / "o.jsonl", a, b, a, b, size=5)
    assert (error.value.file, error.value.line) == (str(b), 2)
    # In one cut of 5 + 6 + 5 + 6 bytes a shard would begin in the first b and end in the second.
    b.write_bytes(b"bad\n6\n")
    a.write_bytes(b"x\n")
    plan = plan_of(6, b, a, b)
    for number in range(len(plan)):
        names = [piece.path for piece in plan.pieces(number)]
        assert len(names) == len(set(names))
    b.write_bytes(b"6\nbad\n")
    with pytest.raises(DataError) as error:
        run(tmp_path / "p.jsonl", b, a, b, size=7)
    assert (error.value.file, error.value.line) == (str(b), 2)
    b.write_bytes(b"6\n7\n")
    assert run(tmp_path / "q.jsonl", b, a, b, a, size=3) is not None
    assert [row["text"] for row in map(json.loads, read_lines(tmp_path / "q.jsonl"))] == [*"67x67x"]


def test_another_plan_is_refused_with_both_sides(tmp_path: Path) -> None:
    a, b = tmp_path / "a.txt", tmp_path / "b.txt"
    a.write_bytes(TEXT)
    b.write_bytes(TEXT)
    folder = tmp_path / "o.jsonl"
    run(folder, a, size=50, part=(0, 2))
    run(folder, a, part=(0, 2))  # the shard size is that of the plan

    def refused(match: str, *texts: Path, **how: Any) -> None:
        with pytest.raises(DataError, match=match) as error:
            run(folder, *texts, **how)
        assert error.value.code == Exit.CONFIG

    refused("shard_size was 50, is now 60", a, size=60)
    refused("k was null, is now 2", a, task=Lengths(k=2))
    refused("it had 1 input, has now 2", a, b)
    refused(r"b\.txt changed: path was", b)
    a.write_bytes(TEXT + b"more\n")
    refused(r"a\.txt changed: bytes was 390, is now 395", a)
    assert run(folder, a, size=60, restart=True) is not None
    assert len(list(read_lines(folder))) == 51


def test_another_column_of_a_table_is_another_input(tmp_path: Path) -> None:
    table = tmp_path / "t.parquet"
    columns = {"en/text": ["a dog", "a cat"], "de/text": ["ein Hund", "eine Katze"]}
    parquet.write_table(pa.table(columns), table)
    for column, found in columns.items():
        folder = tmp_path / f"{column[:2]}.jsonl"
        run(folder, Path(f"{table}#{column}"))
        rows = [row["text"]["text"] for row in map(json.loads, read_lines(folder))]
        assert rows == found
    why = r'path was "t\.parquet#en/text", is now "t\.parquet#de/text"'
    with pytest.raises(DataError, match=why) as caught:
        run(tmp_path / "en.jsonl", Path(f"{table}#de/text"))
    assert caught.value.code == Exit.CONFIG
    (tmp_path / "moved").mkdir()
    table = table.rename(tmp_path / "moved/t.parquet")
    before = [path.read_bytes() for path in sorted((tmp_path / "de.jsonl").iterdir())]
    run(tmp_path / "de.jsonl", Path(f"{table}#de/text"))
    assert [path.read_bytes() for path in sorted((tmp_path / "de.jsonl").iterdir())] == before


def test_a_plan_without_a_shard_is_replaced(tmp_path: Path) -> None:
    text, folder = tmp_path / "a.txt", tmp_path / "o.jsonl"
    text.write_bytes(b"bad\n" + TEXT)
    with pytest.raises(DataError, match="is bad"):
        run(folder, text, size=9)
    assert os.listdir(folder) == ["plan.json"]
    text.write_bytes(TEXT)
    done = run(folder, text, task=Lengths(k=2))
    assert done is not None
    assert done["config"] == {"command": "lengths", "k": 2}
    assert (done["rows"], done["shards"]) == (50, 7), "390 bytes in shards of 64, not of 9"
    with pytest.raises(DataError, match="k was 2, is now null") as error:
        run(folder, text)
    assert error.value.code == Exit.CONFIG
    assert not list(folder.glob("*.lock"))


def test_a_plan_that_is_worked_on_is_not_replaced(tmp_path: Path) -> None:
    text, folder = tmp_path / "a.txt", tmp_path / "o.jsonl"
    text.write_bytes(TEXT)
    out = output_of(folder, text)

    def private(host: str, pid: int) -> Path:
        file = folder / f".000003.{host}.{pid}.0123abcd.jsonl.part"
        file.write_bytes(b"")
        return file

    here = socket.gethostname()
    for file in (private(here, os.getpid()), private(f"not-{here}", 1)):
        with pytest.raises(DataError, match="k was null, is now 2") as error:
            run(folder, text, task=Lengths(k=2))
        assert error.value.code == Exit.CONFIG
        file.unlink()
    gone = multiprocessing.get_context("fork").Process(target=int)
    gone.start()
    gone.join()
    private(here, gone.pid or 0)
    # Who has not begun a shard yet, its models being loaded, learns of it when it has made one.
    done = run(folder, text, task=Lengths(k=2))
    assert done is not None
    assert not list(folder.glob(".0*"))
    (folder / "000003.json").unlink()
    with pytest.raises(DataError, match="k was 2, is now null") as error:
        out.worker(Lengths())(3)
    assert error.value.code == Exit.CONFIG
    assert not (folder / "000003.json").exists()
    assert not list(folder.glob(".0*"))


def test_a_device_is_recorded_and_not_compared(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_bytes(TEXT)
    run(tmp_path / "o.jsonl", text, part=(0, 2))
    done = run(tmp_path / "o.jsonl", text, task=Lengths(device="cuda"))
    assert done is not None
    assert {maker["device"]: maker["shards"] for maker in done["made_by"]} == {"cpu": 4, "cuda": 3}


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[5] ^= 1
    file.write_bytes(data)


def test_of_a_shard_that_is_made_again_a_kill_leaves_nothing(tmp_path: Path) -> None:
    text, folder = tmp_path / "a.txt", tmp_path / "o.jsonl"
    text.write_bytes(TEXT)
    run(folder, text)
    victim = damages(folder)["data"]
    names = {*os.listdir(folder), f"{victim.name}.damaged"}
    flip(victim)
    (folder / ".000002.other.1.0123abcd.jsonl.part").write_bytes(b"{")
    task = Lengths()
    run(folder, text, task=task)
    assert task.made == 1
    assert set(os.listdir(folder)) == names


@pytest.mark.parametrize("url", ["file://{0}/o.npy/", "local://{0}/o.npy/", "memory://o.npy/"])
def test_a_url_of_this_machine_is_no_place_for_shards(tmp_path: Path, url: str) -> None:
    text = tmp_path / "a.txt"
    text.write_bytes(TEXT)
    with pytest.raises(DataError, match="expected a folder without file:") as error:
        shards.open_folder(url.format(tmp_path), {}, [text_source(str(text))], None, 64)
    assert error.value.code == Exit.USAGE
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_the_manifest_at_a_url_replaces_only_a_manifest_of_the_folder(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/o.jsonl"
    manifest = tmp_path / "o.json"
    shards._check_manifest_at(url)
    manifest.write_text('{"vg": "1", "files": {"o.jsonl": {}}}')
    shards._check_manifest_at(url)
    for text in ('{"my": "notes"}', "notes", '{"vg": "1", "files": {"o.npy": {}}}'):
        manifest.write_text(text)
        with pytest.raises(DataError, match=r"o\.json: is where the manifest goes") as error:
            shards._check_manifest_at(url)
        assert error.value.code == Exit.CANNOT_CREATE


def damages(folder: Path) -> dict[str, Path]:
    data = sorted(path for path in folder.iterdir() if "-" in path.name)[2]
    return {"data": data, "commit": data.with_name(f"{data.name[:6]}.json")}


@pytest.mark.parametrize("what", ["data", "commit"])
@pytest.mark.parametrize("how", ["remove", "cut", "flip", "rot"])
@pytest.mark.parametrize("complete", [False, True])
def test_a_damaged_shard_is_made_again_or_refused_where_it_is_read(
    tmp_path: Path, what: str, how: str, complete: bool
) -> None:
    text, folder = tmp_path / "a.txt", tmp_path / "o.jsonl"
    text.write_bytes(TEXT)
    run(folder, text, part=(0, 1) if complete else (0, 2))
    expected = whole(tmp_path, text)
    victim = damages(folder)[what] if complete else sorted(folder.glob("*-*"))[1]
    if what == "commit":
        victim = victim.with_name(f"{victim.name[:6]}.json")
    data = victim.read_bytes()
    if how == "remove":
        victim.unlink()
    else:
        middle = len(data) // 2
        flipped = bytes([data[middle] ^ 1])
        tail = b"" if how == "cut" else flipped + data[middle + 1 :]
        written = victim.stat().st_mtime_ns
        victim.write_bytes(data[:middle] + tail)
        if how == "rot":
            os.utime(victim, ns=(written, written - 10**9))
    task = Lengths()
    done = run(folder, text, task=task)
    assert done is not None
    rest = 0 if complete else len(range(1, done["shards"], 2))
    if what == "commit" and complete:
        assert task.made == 0, "readers take the list"
    else:
        # Size and time look right: a run that does other shards does not read it.
        unseen = how == "rot" and what == "data" and not complete
        assert task.made == rest + (not unseen)
    if what == "data" and how == "rot" and not complete:
        with pytest.raises(DataError, match="is damaged: its sha256 is") as error:
            list(read_lines(folder))
        assert (error.value.code, error.value.file) == (Exit.DATA, str(victim))
        run(folder, text, part=(1, 2))
        assert victim.read_bytes() != data, "of the other part"
        again = Lengths()
        run(folder, text, task=again)
        assert again.made == 1
    assert "".join(f"{x}\n" for x in read_lines(folder)).encode() == expected


@pytest.mark.parametrize("hashed", ["../x", "0" * 64])
def test_a_commit_that_states_another_hash_is_none(tmp_path: Path, hashed: str) -> None:
    text = tmp_path / "a.txt"
    folder = tmp_path / "o.jsonl"
    text.write_bytes(TEXT)
    run(folder, text, part=(0, 2))
    commit = folder / "000000.json"
    body = json.loads(commit.read_text())
    (facts,) = body["files"].values()
    facts["sha256"] = hashed
    del body["sha256"]
    commit.write_bytes(dumps(body | {"sha256": seal(body)}))
    task = Lengths()
    done = run(folder, text, task=task)
    assert done is not None
    assert task.made == 1 + len(range(1, done["shards"], 2))
    assert "".join(f"{x}\n" for x in read_lines(folder)).encode() == whole(tmp_path, text)


def test_a_damaged_list_or_plan_is_refused_or_made_again(tmp_path: Path) -> None:
    text, folder = tmp_path / "a.txt", tmp_path / "o.jsonl"
    text.write_bytes(TEXT)
    run(folder, text)
    expected = whole(tmp_path, text)
    listed = (folder / "shards.jsonl").read_bytes()
    for damaged in (listed[:-5], listed.replace(b'"shard":1', b'"shard":7', 1)):
        (folder / "shards.jsonl").write_bytes(damaged)
        with pytest.raises(DataError, match="sha256") as error:
            list(read_lines(folder))
        assert error.value.code == Exit.DATA
        task = Lengths()
        run(folder, text, task=task)
        assert task.made == 0
        assert joined(folder) == expected
    plan = json.loads((folder / "plan.json").read_bytes())
    (folder / "plan.json").write_text(json.dumps(plan | {"shard_size": 5}))
    with pytest.raises(DataError, match="edited or damaged: its sha256"):
        run(folder, text)


def output_of(folder: Path, *texts: Path) -> ShardedOutput:
    sources = [text_source(str(text)) for text in texts]
    return shards.open_folder(f"{folder}/", Lengths().config, sources, None, 64)


def test_a_late_second_try_leaves_what_readers_take(tmp_path: Path) -> None:
    text, folder = tmp_path / "a.txt", tmp_path / "o.jsonl"
    text.write_bytes(TEXT)

    class Other(Lengths):
        """Another kind of device: other bytes."""

        def steps(self, pieces: Sequence[Piece], out: Any) -> Generator[int, None, None]:
            out.write(b'{"text":"other"}\n')
            out.commit({"counts": {"rows": 1}})
            yield 1
            out.finish(kind="lengths")

    run(folder, text)
    expected = joined(folder)
    output_of(folder, text).worker(Other())(3)
    assert len(list(folder.glob("000003-*"))) == 2
    assert joined(folder) == expected
    assert run(folder, text)["rows"] == 50  # type: ignore[index]
    assert joined(folder) == expected


@pytest.mark.parametrize("name", ["o.jsonl", "o.npy"])
def test_who_finds_its_files_swept_looks_for_the_commit(tmp_path: Path, name: str) -> None:
    text, folder = tmp_path / "a.txt", tmp_path / name
    text.write_bytes(TEXT)

    class Slow(Lengths):
        """Another process completes the folder meanwhile."""

        def steps(self, pieces: Sequence[Piece], out: Any) -> Generator[int, None, None]:
            yield from super().steps(pieces[:0], Ignored(out))
            if not self.made > 1:
                run(folder, text)
            assert not list(folder.glob(".0*")), "private files were swept"
            out.finish(kind="lengths")

    class Ignored:
        def __init__(self, out: Any) -> None:
            self._parts = out._parts

        def finish(self, **facts: Any) -> None:
            pass

    complete(output_of(folder, text), Slow())
    assert Shards(folder).files()
    assert read_manifest(folder)["rows"] == 50


def test_places_that_are_not_folders_of_shards_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_bytes(TEXT)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("precious")
    (tmp_path / "file.jsonl").write_text("precious")
    whole(tmp_path, text, name="taken.npy.jsonl")
    for place, why in (
        (tmp_path / "mine", "holds files but no plan.json"),
        (tmp_path / "file.jsonl", "is a file"),
        (tmp_path / "no" / "o.jsonl", "does not exist"),
        (text, "is an input"),
    ):
        with pytest.raises(DataError, match=why) as error:
            run(place, text)
        assert error.value.code == Exit.CANNOT_CREATE
    with pytest.raises(DataError, match="pipe") as error:
        text_source("-")
    assert error.value.code == Exit.USAGE
    assert (tmp_path / "mine" / "notes").read_text() == "precious"


@pytest.mark.parametrize("name", ["o.jsonl", "o.npy"])
def test_several_processes_on_one_folder_all_end_well(tmp_path: Path, name: str) -> None:
    text, folder = tmp_path / "a.txt", tmp_path / name
    text.write_bytes(TEXT)
    fork = multiprocessing.get_context("fork")
    for attempt in range(3):
        processes = [
            fork.Process(target=run, args=(folder, text), kwargs={"size": 10}) for _ in range(3)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0, 0, 0]
        assert read_manifest(folder)["rows"] == 50
        files = {path.name for path in folder.iterdir()}
        each = 2 if name == "o.jsonl" else 3
        assert len(files) == each * len(Shards(folder)) + 2, sorted(files)
        if attempt < 2:  # all of it is missing again, or half
            for path in sorted(folder.iterdir())[: (2 - attempt) * len(files) // 2]:
                path.unlink()


@pytest.mark.slow
def test_memory_is_flat_in_the_number_of_shards(tmp_path: Path) -> None:
    """What a driver holds of a shard is its place in an array."""
    (tmp_path / "a.txt").write_bytes(b"x\n" * 240)
    peaks: dict[int, list[int]] = {16: [], 2: []}  # 30 and 240 shards
    for take, size in itertools.product((1, 2), peaks):
        out = shards.open_folder(
            f"{tmp_path}/o{size}.{take}.jsonl/",
            Lengths().config,
            [text_source(str(tmp_path / "a.txt"))],
            size,
            64,
        )
        make = out.worker(Lengths())
        for number in out.missing():
            make(number)
        tracemalloc.start()
        assert next(out.missing(), None) is None
        out.finish()
        assert out.is_complete()
        peaks[size].append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(Shards(out.folder)) == 480 // size
    # The smaller of two: once in a while Python's table of interned strings doubles, by megabytes.
    # 8 bytes in an array, and of two files the names and sizes; a commit is over 1,000 bytes.
    assert min(peaks[2]) - min(peaks[16]) < 500 * (240 - 30)


def test_a_further_input_is_not_in_the_folder_that_is_made(tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text("a\nb\n")
    made = tmp_path / "o.jsonl"
    task = Lengths()
    sources = [text_source(str(text))]
    run(made, text)
    before = {file: file.read_bytes() for file in made.iterdir()}
    shard = min(file for file in made.iterdir() if file.name.startswith("000000-"))
    for read in (f"{made}/", str(made), str(shard), str(manifest_path(made))):
        with pytest.raises(DataError, match="is an input of this command") as error:
            shards.open_folder(f"{made}/", task.config, sources, None, 64, True, [read])
        assert error.value.code == Exit.CANNOT_CREATE
    assert {file: file.read_bytes() for file in made.iterdir()} == before
