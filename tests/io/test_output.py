"""What a kill, a full disk, a signal or a second writer leaves of an output: all or nothing."""

from __future__ import annotations

import errno
import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from vgtools.io import output
from vgtools.io.artifact import read_manifest
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import write_manifest
from vgtools.io.inputs import Inputs
from vgtools.io.output import Output, write_files
from vgtools.io.streams import read_lines
from vgtools.io.written import seal
from vgtools.reports.figures import FILES


def numbered(
    path: Path, rows: int, config: dict[str, Any] | None = None, stop_after: int | None = None
) -> None:
    """Write rows 0 … rows-1, ten per commit, as a resumable output; or stop after some commits."""
    with Output([path], config or {}) as out:
        done = out.state.get("rows", 0)
        while not out.complete and done < rows:
            out.write(b"".join(b"%d\n" % i for i in range(done, min(rows, done + 10))))
            done = min(rows, done + 10)
            out.commit({"rows": done})
            if stop_after is not None and done >= stop_after:
                raise KeyboardInterrupt
        if not out.complete:
            out.finish(kind="numbers", rows=rows)


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_resumed_output_is_byte_identical(tmp_path: Path, suffix: str) -> None:
    whole, cut = tmp_path / f"whole.jsonl{suffix}", tmp_path / f"cut.jsonl{suffix}"
    numbered(whole, 45)
    with pytest.raises(KeyboardInterrupt):
        numbered(cut, 45, stop_after=20)
    assert not cut.exists()
    part = cut.with_name(cut.name + ".part")
    part.write_bytes(part.read_bytes() + b"torn")  # written, never committed
    numbered(cut, 45)
    assert cut.read_bytes() == whole.read_bytes()
    assert list(read_lines(cut)) == [str(i) for i in range(45)]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        [whole.name, cut.name, "whole.json", "cut.json"]
    )


def test_other_settings_refuse_to_resume_and_print_both(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with pytest.raises(KeyboardInterrupt):
        numbered(path, 45, {"k": 1, "same": 0}, stop_after=20)
    with pytest.raises(DataError, match="k was 1, is now 2") as caught:
        numbered(path, 45, {"k": 2, "same": 0})
    assert caught.value.code == Exit.CONFIG
    assert "same was" not in str(caught.value)
    with Output([path], {"k": 2}, restart=True) as out:
        assert out.state == {}
        out.finish(kind="numbers")
    assert path.read_bytes() == b""


def test_kill_at_every_step_of_publishing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop at each rename in turn: whatever is left, the same command ends with the same bytes."""
    numbered(tmp_path / "whole.jsonl", 30)
    expected = (tmp_path / "whole.jsonl").read_bytes()
    replace, steps = os.replace, 0
    while True:
        path, calls = tmp_path / f"x{steps}.jsonl", 0

        def dying(source: Any, target: Any, step: int = steps) -> None:
            nonlocal calls
            calls += 1
            if calls == step + 1:
                raise SystemExit("killed")
            replace(source, target)

        monkeypatch.setattr(os, "replace", dying)
        try:
            numbered(path, 30)
            finished = True
        except SystemExit:
            finished = False
        monkeypatch.setattr(os, "replace", replace)
        if path.exists() and not finished:
            assert path.read_bytes() == expected, "a published file is whole"
        numbered(path, 30)
        assert path.read_bytes() == expected
        read_manifest(path, "numbers")
        names = {p.name for p in tmp_path.iterdir() if p.name.startswith(f"x{steps}.")}
        assert names == {path.name, f"x{steps}.json"}
        if finished:
            break
        steps += 1
    assert steps >= 5


def test_a_finished_output_is_not_redone_unless_something_changed(tmp_path: Path) -> None:
    source, path = tmp_path / "in.txt", tmp_path / "x.jsonl"
    source.write_text("a\n")

    def run(config: dict[str, Any]) -> bool:
        with Output([path], config, inputs=[source]) as out:
            if not out.complete:
                out.write(source.read_bytes())
                out.finish(kind="copy")
                return True
            return False

    assert run({"k": 1})
    assert not run({"k": 1})
    assert run({"k": 2})
    source.write_text("b\n")
    assert run({"k": 2})
    assert path.read_text() == "b\n"
    path.write_text("edited by hand")
    with pytest.raises(DataError, match=r"x\.jsonl: exists, and vg does not know it") as caught:
        run({"k": 2})
    assert caught.value.code == Exit.CANNOT_CREATE
    assert path.read_text() == "edited by hand"


WRITER = """
import sys, time
from vgtools import cli
from vgtools.io.errors import DataError
from vgtools.io import output
from vgtools.io.output import Output
def work():
    with Output([sys.argv[1]], {}) as out:
        done = out.state.get("rows", 0)
        while done < 1000 and not out.complete:
            out.write(b"".join(b"%d\\n" % i for i in range(done, done + 10)))
            done += 10
            out.commit({"rows": done})
            time.sleep(0.0005)
        if not out.complete:
            out.finish(kind="numbers")
try:
    work()
except DataError as error:
    print(error, file=sys.stderr)
    sys.exit(int(error.code))
"""


def start_writer(path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stderr=subprocess.PIPE)


def wait_for(path: Path) -> None:
    end = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < end, f"{path} never appeared"
        time.sleep(0.005)


def test_kill_nine_at_random_times(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    random = np.random.default_rng(0)
    for _ in range(6):
        process = start_writer(path)
        wait_for(tmp_path / "x.jsonl.lock")
        time.sleep(random.uniform(0, 0.05))
        process.kill()
        process.communicate()
    process = start_writer(path)
    assert process.communicate()[1] == b""
    assert path.read_bytes() == b"".join(b"%d\n" % i for i in range(1000))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.json", "x.jsonl"]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, Exit.STOPPED), (signal.SIGINT, Exit.INTERRUPTED)]
)
def test_a_signal_stops_at_the_next_commit(tmp_path: Path, number: int, code: Exit) -> None:
    path = tmp_path / "x.jsonl"
    process = start_writer(path)
    wait_for(tmp_path / "x.jsonl.journal")
    process.send_signal(number)
    message = process.communicate()[1].decode()
    assert process.returncode == code, message
    assert "run the same command again to resume" in message
    assert not path.exists()
    journal = json.loads((tmp_path / "x.jsonl.journal").read_text())
    assert (tmp_path / "x.jsonl.part").read_bytes() == b"".join(
        b"%d\n" % i for i in range(journal["state"]["rows"])
    )


def killed_before_a_commit(path: Path) -> None:
    """Leave the part and the lock of a writer that is killed before its first commit."""
    path.with_name(f"{path.name}.part").write_bytes(b"0\n1\n")
    lock = f'process 1 on elsewhere\n["{path.name}.part"]\n'
    path.with_name(f"{path.name}.lock").write_text(lock)


def with_embeddings(folder: Path, emb: str, restart: bool = False) -> Output:
    return Output([folder / "o.jsonl", folder / "o.ids", folder / emb], {}, restart=restart)


def stopped_with_embeddings(folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt), with_embeddings(folder, "e.npy") as out:
        for file in range(3):
            out.write(b"one\n", file)
        out.commit({"rows": 1})
        raise KeyboardInterrupt


def test_a_restart_removes_the_parts_that_its_journal_names_and_no_other(tmp_path: Path) -> None:
    stopped_with_embeddings(tmp_path)
    mine = tmp_path / "mine.npy.part"
    mine.write_text("mine")
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(DataError, match=r"mine\.npy\.part: exists, and vg does not know") as caught:
        with_embeddings(tmp_path, "mine.npy", restart=True).__enter__()
    assert caught.value.code == Exit.CANNOT_CREATE
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
    with with_embeddings(tmp_path, "f.npy", restart=True) as out:
        out.finish(kind="numbers")
    names = ["f.npy", "mine.npy.part", "o.ids", "o.json", "o.jsonl"]
    assert sorted(file.name for file in tmp_path.iterdir()) == names


def test_a_damaged_journal_is_no_proof_for_a_part_of_another_name(tmp_path: Path) -> None:
    stopped_with_embeddings(tmp_path)
    journal = tmp_path / "o.jsonl.journal"
    journal.write_bytes(journal.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"e\.npy\.part: exists, and vg does not know"):
        with_embeddings(tmp_path, "e.npy", restart=True).__enter__()
    (tmp_path / "e.npy.part").unlink()
    with with_embeddings(tmp_path, "e.npy", restart=True) as out:
        out.finish(kind="numbers")
    names = ["e.npy", "o.ids", "o.json", "o.jsonl"]
    assert sorted(file.name for file in tmp_path.iterdir()) == names


def test_a_run_that_fails_leaves_the_parts_of_a_killed_one_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    killed_before_a_commit(path)
    path.write_text("of the user\n")
    with pytest.raises(DataError, match=r"x\.jsonl: exists, and vg does not know it"):
        numbered(path, 10)
    assert path.read_text() == "of the user\n"
    path.unlink()
    numbered(path, 10)
    assert sorted(os.listdir(tmp_path)) == ["x.json", "x.jsonl"]


def test_a_run_that_fails_while_it_opens_parts_leaves_none_of_a_killed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["e.npy.part", "o.ids.part", "o.jsonl.part"]
    for name in names:
        (tmp_path / name).write_bytes(b"0\n1\n")
    (tmp_path / "o.jsonl.lock").write_text(f"process 1 on elsewhere\n{json.dumps(names)}\n")
    new_part = output.new_part

    def full(final: Path, *more: Any) -> Any:
        if final.name == "o.ids":
            raise OSError(errno.ENOSPC, "No space left on device", str(final))
        return new_part(final, *more)

    with monkeypatch.context() as patch:
        patch.setattr(output, "new_part", full)
        with pytest.raises(OSError, match="No space left"):
            with_embeddings(tmp_path, "e.npy").__enter__()
    assert os.listdir(tmp_path) == []
    with with_embeddings(tmp_path, "e.npy") as out:
        out.finish(kind="numbers")
    assert sorted(os.listdir(tmp_path)) == ["e.npy", "o.ids", "o.json", "o.jsonl"]


def test_a_complete_output_keeps_no_part_of_a_restart_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    numbered(path, 10)
    killed_before_a_commit(path)
    (tmp_path / ".x.jsonl.journal.vg.tmp").write_bytes(b"{")
    numbered(path, 10)
    assert sorted(os.listdir(tmp_path)) == ["x.json", "x.jsonl"]


def test_the_second_writer_is_refused_and_a_dead_one_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    process = start_writer(path)
    wait_for(tmp_path / "x.jsonl.journal")
    with pytest.raises(DataError, match=f"process {process.pid} on ") as caught:
        numbered(path, 10)
    assert caught.value.code == Exit.STOPPED
    process.kill()
    process.communicate()
    assert (tmp_path / "x.jsonl.lock").exists(), "the dead writer left its lock"
    assert start_writer(path).communicate()[1] == b""
    assert not (tmp_path / "x.jsonl.lock").exists()


def test_disk_full_leaves_the_old_file_and_resumes(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with Output([path], {"old": True}) as out:
        out.write(b"the old file\n")
        out.finish(kind="numbers")
    code = textwrap.dedent(WRITER)
    limit = 2000  # bytes a file may have: the writer needs about 4,000

    def few_bytes() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        preexec_fn=few_bytes,
        timeout=60,
    )
    assert done.returncode == Exit.IO, done.stderr
    assert b"free some space" in done.stderr
    assert path.read_text() == "the old file\n"
    assert start_writer(path).communicate()[1] == b""
    assert path.read_bytes() == b"".join(b"%d\n" % i for i in range(1000))


@pytest.mark.parametrize(("size", "commits"), [(100_000, True), (10, True), (10, False)])
def test_a_full_device_is_exit_74(size: int, commits: bool) -> None:
    with pytest.raises(DataError) as caught, Output(["/dev/full"], {}) as out:
        out.write(b"x" * size)
        if commits:
            out.commit({})
    assert caught.value.code == Exit.IO
    assert os.strerror(errno.ENOSPC) in str(caught.value)
    assert "resume" not in str(caught.value), "nothing resumes on a device"


def test_outputs_that_cannot_be_written_are_refused_before_any_work(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("x\n")
    link = tmp_path / "link.jsonl"
    link.symlink_to(tmp_path / "nowhere" / "x.jsonl")
    same = tmp_path / "same.jsonl"
    same.symlink_to(source)
    foreign = tmp_path / "theirs.json"
    foreign.write_text('{"mine": 1}')
    for target in (
        source,
        same,
        link,
        tmp_path,
        tmp_path / "none" / "x.jsonl",
        tmp_path / "theirs.npy",
    ):
        with pytest.raises(DataError) as caught, Output([target], {}, inputs=[source]):
            pass
        assert caught.value.code == Exit.CANNOT_CREATE, target
    assert source.read_text() == "x\n"
    assert foreign.read_text() == '{"mine": 1}'
    assert not [p for p in tmp_path.iterdir() if p.suffix in (".lock", ".part")]


def test_a_manifest_of_another_artifact_is_never_written_over(tmp_path: Path) -> None:
    bank = tmp_path / "vg.faiss"
    with Output([bank, tmp_path / "vg.ids"], {}) as out:
        out.write(b"x")
        out.finish(kind="index")
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    for name, why in (
        ("vg.jsonl", "already holds the manifest of vg.faiss"),
        ("vg.ids", "already holds the manifest of vg.faiss"),
        ("new.json", "is where the manifest goes"),
    ):
        with pytest.raises(DataError, match=why) as caught, Output([tmp_path / name], {}):
            pass
        assert caught.value.code == Exit.CANNOT_CREATE
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    bank.unlink()  # its manifest may go now
    (tmp_path / "vg.ids").unlink()
    with Output([tmp_path / "vg.jsonl"], {}) as out:
        out.finish(kind="vokens")
    assert read_manifest(tmp_path / "vg.jsonl", "vokens")


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    for second in ("x", "sub/../x", "x.part", "x.journal", "x.lock"):
        files = [tmp_path / "x", tmp_path / second]
        with pytest.raises(DataError, match="two outputs") as caught, Output(files, {}):
            pass
        assert caught.value.code == Exit.CANNOT_CREATE
    assert not [*tmp_path.iterdir()]
    with pytest.raises(DataError, match="cannot go into a pipe") as caught:
        Output([tmp_path / "x", "-"], {})
    assert caught.value.code == Exit.USAGE


def test_a_read_only_file_system_is_exit_73() -> None:
    with pytest.raises(DataError) as caught, Output(["/proc/x.jsonl"], {}):
        pass
    assert caught.value.code == Exit.CANNOT_CREATE


def test_a_failure_before_the_first_commit_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), Output([tmp_path / "x.jsonl"], {}) as out:
        out.write(b"half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_an_empty_compressed_output_is_a_valid_archive(tmp_path: Path) -> None:
    with Output([tmp_path / "x.jsonl.gz"], {}) as out:
        out.finish(kind="nothing")
    assert gzip.decompress((tmp_path / "x.jsonl.gz").read_bytes()) == b""


def test_names_that_are_not_utf8_are_written_out_in_manifests_and_refused_as_outputs(
    tmp_path: Path,
) -> None:
    source = tmp_path / os.fsdecode(b"\xffin.txt")
    source.write_text("x\n")
    for again in (False, True):
        with Output([tmp_path / "out.jsonl"], {"folder": str(source)}, inputs=[source]) as out:
            assert out.complete == again
            if not again:
                out.write(b"{}\n")
                out.finish(kind="rows")
    assert read_manifest(tmp_path / "out.jsonl")["inputs"][0]["path"] == f"{tmp_path}/\\udcffin.txt"
    with (
        pytest.raises(DataError, match="not UTF-8") as caught,
        Output([str(source) + ".jsonl"], {}),
    ):
        pass
    assert caught.value.code == Exit.CANNOT_CREATE


def unfinished(path: Path, rows: int = 45, done: int = 20) -> Path:
    """Leave an unfinished output; return its journal."""
    with pytest.raises(KeyboardInterrupt):
        numbered(path, rows, stop_after=done)
    return path.with_name(path.name + ".journal")


def refused(path: Path, rows: int = 45) -> DataError:
    """Return why an output cannot be resumed; nothing is published, and --restart is a way out."""
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(DataError) as caught:
        numbered(path, rows)
    assert "--restart" in str(caught.value)
    assert not path.with_name(path.name + ".lock").exists()
    assert (path.read_bytes() if path.exists() else None) == before
    with Output([path], {}, restart=True) as out:
        assert not out.complete
        out.write(b"again\n")
        out.finish(kind="numbers")
    assert len(read_manifest(path)["files"]) == 1
    return caught.value


def changed_journal(key: str, value: Any) -> Any:
    def change(data: bytes) -> bytes:
        return json.dumps(json.loads(data) | {key: value}).encode()

    return change


@pytest.mark.parametrize(
    "change",
    [
        changed_journal("state", {}),
        changed_journal("state", {"rows": -1}),
        changed_journal("state", 5),
        changed_journal("files", {}),
        changed_journal("files", [0]),
        changed_journal("manifest", {"kind": "numbers"}),
        changed_journal("config", None),
        changed_journal("sha256", 7),
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b'"rows":20', b'"rows":10'),
        lambda data: b"",
    ],
)
def test_a_damaged_journal_is_refused(tmp_path: Path, change: Any) -> None:
    path = tmp_path / "x.jsonl"
    journal = unfinished(path)
    journal.write_bytes(change(journal.read_bytes()))
    assert refused(path).code == Exit.DATA


@pytest.mark.parametrize("data", [b"[]", b"\xff" * 40, b'{"mine": 1}', b"Dear diary\n"])
@pytest.mark.parametrize("restart", [False, True])
def test_a_file_of_the_user_that_has_the_name_of_a_journal_is_left_alone(
    tmp_path: Path, data: bytes, restart: bool
) -> None:
    journal = tmp_path / "x.jsonl.journal"
    journal.write_bytes(data)
    with pytest.raises(DataError, match=r"x\.jsonl\.journal: exists, and vg") as caught:
        Output([tmp_path / "x.jsonl"], {}, restart=restart).__enter__()
    assert caught.value.code == Exit.CANNOT_CREATE
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {journal.name: data}


def resealed(journal: Path, change: Any) -> None:
    body = json.loads(journal.read_bytes())
    del body["sha256"]
    change(body)
    body["sha256"] = seal(body)
    journal.write_bytes(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda b: b.update(state=5), '"state": expected an object, got 5'),
        (lambda b: b.update(config=None), '"config": expected an object, got None'),
        (lambda b: b.update(files=[0]), '"files": expected an object'),
        (lambda b: b["files"].update({"x.jsonl": 0}), '"files.x.jsonl": expected an object'),
        (lambda b: b["files"]["x.jsonl"].update(bytes="9"), "expected a number of bytes"),
        (lambda b: b["files"]["x.jsonl"].update(bytes=-9), "expected a number of bytes"),
        (lambda b: b["files"].update({"../y": {}}), "expected the name of a file of this folder"),
        (lambda b: b.update(files={}), "names no file of an unfinished run; --restart starts over"),
        (lambda b: b.update(files={}, manifest={}), "names no file of an unfinished run"),
        (lambda b: b.update(inputs=[]), '"inputs": expected an object'),
        (lambda b: b["inputs"].update(files=[5]), '"inputs.files[0]": expected an object'),
        (lambda b: b.update(manifest=[]), '"manifest": expected an object'),
        (lambda b: b.pop("state"), 'the key "state" is missing'),
        (lambda b: b["state"].update(rows={}), '"state.rows": expected a number of bytes or items'),
        (lambda b: b["state"].update(counts=[]), '"state.counts": expected an object'),
        (lambda b: b["state"].update(digest=5), '"state.digest": expected a string or null'),
    ],
)
def test_a_journal_of_other_types_is_refused_though_its_seal_fits(
    tmp_path: Path, change: Any, why: str
) -> None:
    path = tmp_path / "x.jsonl"
    resealed(unfinished(path), change)
    error = refused(path)
    assert error.code == Exit.DATA
    assert why in str(error)
    with Output([path], {}, restart=True) as out:
        assert not out.complete


def test_what_a_command_lacks_in_the_state_of_a_journal_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    resealed(unfinished(path), lambda b: b["state"].clear())
    why = r'x.jsonl.journal: is damaged: "state.rows" is missing'
    with pytest.raises(DataError, match=why), Output([path], {}) as out:
        out.state["rows"]
    with pytest.raises(DataError, match=why), Output([path], {}) as out:
        out.state.get("rows", 0)


def test_a_journal_with_fewer_inputs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    source = tmp_path / "source"
    source.write_bytes(b"x")
    with pytest.raises(KeyboardInterrupt), Output([path], {}, inputs=[source]) as out:
        out.write(b"x\n")
        out.commit({"rows": 1})
        raise KeyboardInterrupt
    resealed(path.with_name("x.jsonl.journal"), lambda b: b["inputs"].update(files=[]))
    why = "read 0 files, this one reads 1; --restart"
    with pytest.raises(DataError, match=why) as caught, Output([path], {}, inputs=[source]):
        pass
    assert caught.value.code == Exit.CONFIG


def flipped(data: bytes) -> bytes:
    return data[:9] + bytes([data[9] ^ 1]) + data[10:]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
@pytest.mark.parametrize(
    "change",
    [flipped, lambda data: data[:-1], lambda data: b"", None],
    ids=["flip", "cut", "empty", "gone"],
)
def test_a_damaged_part_is_refused(tmp_path: Path, suffix: str, change: Any) -> None:
    path = tmp_path / f"x{suffix}"
    unfinished(path)
    part = path.with_name(path.name + ".part")
    if change is None:
        part.unlink()
    else:
        part.write_bytes(change(part.read_bytes()))
    assert refused(path).code == Exit.DATA


def array(path: Path, stop_after: int | None = None) -> None:
    """Write the rows (i, i) of 0 … 9 with their ids, two per commit."""
    files = [path, path.with_suffix(".ids")]
    with Output(files, {}, npy={0: ("<i4", 2)}) as out:
        done = 0 if out.complete else out.state.get("rows", 0)
        while not out.complete and done < 10:
            out.write(np.array([[done, done], [done + 1, done + 1]], "<i4").data)
            out.write(b"%d\n%d\n" % (done, done + 1), 1)
            done += 2
            out.commit({"rows": done})
            if done == stop_after:
                raise KeyboardInterrupt
        if not out.complete:
            out.finish(kind="array")


def test_an_array_resumes_and_a_damaged_one_does_not(tmp_path: Path) -> None:
    array(tmp_path / "whole.npy")
    for number in range(2):
        path = tmp_path / f"cut{number}.npy"
        with pytest.raises(KeyboardInterrupt):
            array(path, stop_after=6)
        part = tmp_path / f"cut{number}.npy.part"
        if number:
            damaged = bytearray(part.read_bytes())
            damaged[130] ^= 4
            part.write_bytes(damaged)
            with pytest.raises(DataError, match="has changed since it was written"):
                array(path)
            assert not path.exists()
        else:
            array(path)
            assert path.read_bytes() == (tmp_path / "whole.npy").read_bytes()
            assert np.load(path).tolist() == [[i, i] for i in range(10)]
            assert read_manifest(path, "array")


@pytest.mark.parametrize("renamed", [False, True])
@pytest.mark.parametrize("name", ["x.npy", "x.ids"])
def test_a_finished_file_that_was_damaged_before_its_manifest_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, renamed: bool
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    step = "vgtools.io.output.write_manifest" if renamed else "vgtools.io.own.os.replace"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        replace = os.replace
        # The journal is renamed into place, the parts are not.
        keep = (
            killed if renamed else lambda a, b: replace(a, b) if str(b).endswith("l") else killed()
        )
        patch.setattr(step, keep)
        array(tmp_path / "x.npy")
    file = tmp_path / (name if renamed else f"{name}.part")
    whole = file.read_bytes()
    file.write_bytes(flipped(whole))
    why = (
        "vg does not know it"
        if renamed
        else "has changed since the unfinished run wrote it; --restart"
    )
    with pytest.raises(DataError, match=why) as caught:
        array(tmp_path / "x.npy")
    assert caught.value.code == (Exit.CANNOT_CREATE if renamed else Exit.DATA)
    assert not (tmp_path / "x.json").exists()
    file.write_bytes(whole)
    array(tmp_path / "x.npy")
    assert read_manifest(tmp_path / "x.npy", "array")


@pytest.mark.parametrize("plant", ["link", "hard", "pipe"])
def test_planted_links_to_temporary_files_are_replaced_by_a_new_run(
    tmp_path: Path, plant: str
) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("mine\n")
    path = tmp_path / "x.jsonl"
    planted = tmp_path / ".x.jsonl.journal.vg.tmp"
    if plant == "link":
        planted.symlink_to(outside)
    elif plant == "hard":
        os.link(outside, planted)
    else:
        os.mkfifo(planted)
    numbered(path, 30)
    assert outside.read_text() == "mine\n"
    assert path.read_bytes() == b"".join(b"%d\n" % i for i in range(30))
    assert not path.is_symlink()
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["outside.txt", "x.json", "x.jsonl"]


@pytest.mark.parametrize("plant", ["link", "hard", "folder"])
def test_planted_links_are_refused_by_a_resumed_run(tmp_path: Path, plant: str) -> None:
    path = tmp_path / "x.jsonl"
    unfinished(path)
    part = tmp_path / "x.jsonl.part"
    outside = tmp_path / "outside.txt"
    outside.write_bytes(part.read_bytes() + b"mine\n")
    part.unlink()
    if plant == "link":
        part.symlink_to(outside)
    elif plant == "hard":
        os.link(outside, part)
    else:
        part.mkdir()
    with pytest.raises(DataError, match=r"x\.jsonl\.part: is a link or another kind") as caught:
        numbered(path, 45)
    assert caught.value.code == Exit.CANNOT_CREATE
    assert outside.read_bytes().endswith(b"mine\n")
    assert not (tmp_path / "x.jsonl.lock").exists()


@pytest.mark.parametrize("plant", ["text", "link", "hard", "pipe"])
@pytest.mark.parametrize("restart", [False, True])
def test_what_has_the_name_of_a_part_is_refused_and_left_alone(
    tmp_path: Path, plant: str, restart: bool
) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("mine\n")
    part = tmp_path / "x.jsonl.part"
    if plant == "text":
        part.write_text("a download\n")
    elif plant == "link":
        part.symlink_to(outside)
    elif plant == "hard":
        os.link(outside, part)
    else:
        os.mkfifo(part)
    before = part.lstat()
    with pytest.raises(DataError, match=r"x\.jsonl\.part: ") as caught:
        Output([tmp_path / "x.jsonl"], {}, restart=restart).__enter__()
    assert caught.value.code == Exit.CANNOT_CREATE
    assert part.lstat() == before
    assert outside.read_text() == "mine\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["outside.txt", "x.jsonl.part"]


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("beside", ["", "x.jsonl"])
@pytest.mark.parametrize("name", ["x.jsonl", "x.ids", "x.json"])
def test_a_file_that_vg_did_not_write_is_never_replaced(
    tmp_path: Path, name: str, beside: str, restart: bool
) -> None:
    (tmp_path / name).write_text('{"mine": 1}\n')
    if beside and name == "x.json":
        (tmp_path / beside).write_text("mine as well\n")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(DataError, match=name) as caught:
        Output([tmp_path / "x.jsonl", tmp_path / "x.ids"], {}, restart=restart).__enter__()
    assert caught.value.code == Exit.CANNOT_CREATE
    assert "--restart" not in str(caught.value)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("way", ["name", "link", "hard"])
@pytest.mark.parametrize(
    "name", ["x.json", "x.jsonl", "x.ids", "x.jsonl.part", "x.jsonl.journal", "x.jsonl.lock"]
)
def test_no_name_that_an_output_uses_is_that_of_an_input(
    tmp_path: Path, name: str, way: str
) -> None:
    (tmp_path / name).write_text("one\n")
    source = tmp_path / (name if way == "name" else "source.txt")
    if way == "link":
        source.symlink_to(tmp_path / name)
    elif way == "hard":
        os.link(tmp_path / name, source)
    outputs = [tmp_path / "x.jsonl", tmp_path / "x.ids"]
    with pytest.raises(DataError, match=f"{name}: is an input of this command") as caught:
        Output(outputs, {}, inputs=[source], restart=True).__enter__()
    assert caught.value.code == Exit.CANNOT_CREATE
    assert source.read_text() == "one\n"


def test_a_restart_of_a_run_that_was_published_half_knows_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.jsonl"
    for _ in range(2):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("vgtools.io.output.write_manifest", stop)
            numbered(path, 20)
        path.with_suffix(".json").unlink(missing_ok=True)
        with Output([path], {"other": 1}, restart=True) as out:
            out.write(b"again\n")
            out.finish(kind="numbers")
        assert path.read_bytes() == b"again\n"


def test_what_another_process_publishes_names_the_process_that_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.jsonl"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("vgtools.io.output.write_manifest", stop)
        patch.setattr("vgtools.io.files.versions", lambda: {"python": "made"})
        numbered(path, 20)
    monkeypatch.setattr("vgtools.io.files.versions", lambda: {"python": "published"})
    numbered(path, 20)
    manifest = read_manifest(path, "numbers")
    assert manifest["versions"] == {"python": "made"}
    assert [*manifest][-4:] == ["argv", "versions", "files", "inputs"]


def test_a_restart_on_a_full_disk_does_not_forget_files_that_were_published_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.jsonl"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("vgtools.io.output.write_manifest", stop)
        numbered(path, 20)
    full = DataError("no space", path, code=Exit.IO)
    with monkeypatch.context() as patch, pytest.raises(DataError) as caught:
        patch.setattr("vgtools.io.output.write_manifest", Mock(side_effect=full))
        Output([path], {"other": 1}, restart=True).__enter__()
    assert caught.value is full
    with Output([path], {"other": 1}, restart=True) as out:
        out.write(b"again\n")
        out.finish(kind="numbers")
    assert path.read_bytes() == b"again\n"


def stop(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_a_file_that_the_next_run_does_not_have_goes_unless_it_was_changed(tmp_path: Path) -> None:
    for mine in (False, True):
        with Output([tmp_path / "x.jsonl", tmp_path / "x.errors.jsonl"], {}, restart=True) as out:
            out.write(b"one\n", 1)
            out.finish(kind="numbers")
        if mine:
            (tmp_path / "x.errors.jsonl").write_text("mine\n")
        with Output([tmp_path / "x.jsonl"], {}, restart=True) as out:
            out.finish(kind="numbers")
        assert (tmp_path / "x.errors.jsonl").exists() == mine


@pytest.mark.parametrize("restart", [False, True])
def test_a_manifest_that_names_files_of_the_user_removes_none(
    tmp_path: Path, restart: bool
) -> None:
    mine = [tmp_path / name for name in ("thesis.tex", "oo.ids", "emb.npy")]
    for file in mine:
        file.write_text("mine")
    (tmp_path / "o.ids").write_text("old")
    (tmp_path / "o.jsonl").write_text("")
    write_manifest(tmp_path / "o.jsonl", [tmp_path / "o.jsonl", tmp_path / "o.ids", *mine])
    with Output([tmp_path / "o.jsonl"], {}, restart=restart) as out:
        out.finish(kind="numbers")
    names = sorted(["o.json", "o.jsonl", *(file.name for file in mine)])
    assert sorted(file.name for file in tmp_path.iterdir()) == names


def test_a_folder_keeps_no_picture_of_an_earlier_run(tmp_path: Path) -> None:
    def write(*names: str) -> None:
        files = dict.fromkeys(["probe.jsonl", *names], b"x\n")
        write_files(tmp_path, files, "probe", {}, Inputs([]), FILES)

    write("entity.svg", "example-1.png", "example-2.layer-12.svg", "page.html", "photo.png")
    write("example-1.png")
    names = ["example-1.png", "photo.png", "probe.json", "probe.jsonl"]
    assert sorted(file.name for file in tmp_path.iterdir()) == names


@pytest.mark.parametrize(
    "damage",
    [b"{", b"{}", b"5", b'{"vg": "1"', b"\xff\xfe", b'{"vg": "1"}', b'{"files": {"x.jsonl": {}}}'],
)
@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("restart", [True, False])
def test_a_damaged_manifest_is_not_known_for_one_of_vg(
    tmp_path: Path, damage: bytes, finished: bool, restart: bool
) -> None:
    path = tmp_path / "x.jsonl"
    numbered(path, 20)
    if not finished:
        path.unlink()
        unfinished(path)
    (tmp_path / "x.json").write_bytes(damage)
    with pytest.raises(DataError, match="vg did not write or cannot read it; choose") as caught:
        Output([path], {}, restart=restart).__enter__()
    assert caught.value.code == Exit.CANNOT_CREATE
    assert caught.value.file == tmp_path / "x.json"
    assert (tmp_path / "x.json").read_bytes() == damage


@pytest.mark.parametrize("config", [5, [], None, "x"])
def test_a_manifest_with_another_config_is_that_of_an_older_output(
    tmp_path: Path, config: Any
) -> None:
    path = tmp_path / "x.jsonl"
    numbered(path, 20)
    manifest = json.loads((tmp_path / "x.json").read_text())
    (tmp_path / "x.json").write_text(json.dumps(manifest | {"config": config}))
    numbered(path, 30)
    assert read_manifest(path)["rows"] == 30


def test_parts_have_the_permissions_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        numbered(tmp_path / "x.jsonl", 20)
    finally:
        os.umask(before)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
        "x.json": 0o640,
        "x.jsonl": 0o640,
    }


def test_a_signal_before_the_work_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Signalled(output.Lock):
        def __init__(self, target: str | Path) -> None:
            super().__init__(target)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(output, "Lock", Signalled)
    with pytest.raises(DataError, match="stopped") as caught:
        numbered(tmp_path / "x.jsonl", 20)
    assert caught.value.code == Exit.STOPPED
    assert list(tmp_path.iterdir()) == []
