"""Streams, manifests and the output that survives a kill."""

from __future__ import annotations

import errno
import gzip
import hashlib
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

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgtools import io
from vgtools.io import DataError, Exit

# --------------------------------------------------------------------------------------------------------------- reading


@given(st.lists(st.binary(max_size=12).filter(lambda b: b"\n" not in b), max_size=8), st.booleans())
def test_n_lines_in_are_n_strings_out(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], last: bool) -> None:
    path = tmp_path_factory.mktemp("lines") / "x.txt"
    path.write_bytes(b"\n".join(lines) + (b"\n" if last and lines else b""))
    expected = len(lines) if last or not lines or lines[-1] else len(lines) - 1
    assert len(list(io.read_lines(path))) == expected


def test_line_ends_marks_and_bad_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\rc\n\xff\xfe d\n\xe2\x80\xa8e\n\x00\n\nlast")
    stats = io.TextStats()
    assert list(io.read_lines(path, stats)) == ["a", "b\rc", "�� d", "\u2028e", "\x00", "", "last"]
    assert (stats.lines, stats.replaced) == (7, 1)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_every_cut_of_an_archive_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.txt{suffix}"
    whole = io.compress(b"".join(b"line %d\n" % i for i in range(50)), path)
    path.write_bytes(whole)
    assert len(list(io.read_lines(path))) == 50
    for cut in range(1, len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError) as caught:
            list(io.read_lines(path))
        assert caught.value.code == Exit.DATA
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_flipped_bit_in_an_archive_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.txt{suffix}"
    text = b"".join(b"line %d\n" % i for i in range(50))
    whole = io.compress(text, path)
    start = 10 if suffix == ".gz" else 6  # the gzip header holds a name and a time that nobody reads
    for position in range(start, len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        try:
            read = [x.encode() + b"\n" for x in io.read_lines(path)]
        except DataError:
            continue
        assert read == text.splitlines(keepends=True), "only a flip that changes nothing may pass"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"a": 1', "not valid JSON"),
        (b"[1]", "found list"),
        (b'{"a": NaN}', "not valid JSON"),
        (b'{"b": 1}', '"a" is missing'),
        (b'{"a": "x"}', "must be an integer, found 'x'"),
        (b'{"a": true}', "must be an integer, found True"),
        (b"", "input data is empty"),
        (b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
    ],
)
def test_a_bad_jsonl_line_is_named(tmp_path: Path, line: bytes, why: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line + b"\n")
    with pytest.raises(DataError) as caught:
        list(io.read_jsonl(path, {"a": int}))
    assert f"{path}:2:" in str(caught.value)
    assert why in str(caught.value)


def test_missing_and_unreadable_inputs_are_exit_66(tmp_path: Path) -> None:
    for path in (tmp_path / "none.txt", tmp_path, tmp_path / "none.gz"):
        with pytest.raises(DataError) as caught:
            list(io.read_lines(path))
        assert caught.value.code == Exit.NO_INPUT


def test_windows_go_on_behind_a_committed_one(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("".join(f"{i}\n" for i in range(10)))
    whole = list(io.read_windows(path, 3))
    assert [w.lines for w in whole] == [["0", "1", "2"], ["3", "4", "5"], ["6", "7", "8"], ["9"]]
    assert [w.first for w in whole] == [1, 4, 7, 10]
    assert whole[-1].digest == hashlib.sha256(path.read_bytes()).hexdigest()
    rest = list(io.read_windows(path, 3, {"rows": 3, "digest": whole[0].digest}))
    assert rest == whole[1:]
    assert [w.lines for w in io.read_windows(path, 3, limit=4)] == [["0", "1", "2"], ["3"]]


def test_a_changed_beginning_refuses_to_resume(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"\xff\nb\n\xfe\xff\n")
    assert [w.replaced for w in io.read_windows(path, 2)] == [1, 1]
    path.write_text("a\nb\nc\n")
    state = {"rows": 2, "digest": next(iter(io.read_windows(path, 2))).digest}
    for text in ("a\nX\nc\n", "a\n"):
        path.write_text(text)
        with pytest.raises(DataError, match="changed since") as caught:
            list(io.read_windows(path, 2, state))
        assert caught.value.code == Exit.CONFIG


# ---------------------------------------------------------------------------------------------------------------- arrays


def test_npy_cut_grown_or_pickled_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(6, dtype=np.float32).reshape(3, 2))
    whole = path.read_bytes()
    assert io.open_npy(path, 2).tolist() == [[0, 1], [2, 3], [4, 5]]
    for data in [whole[:cut] for cut in range(len(whole))] + [whole + b"x"]:
        path.write_bytes(data)
        with pytest.raises(DataError) as caught:
            io.open_npy(path)
        assert caught.value.code == Exit.DATA
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="could run code"):
        io.open_npy(path)
    np.save(path, np.zeros(3))
    with pytest.raises(DataError, match="2 dimensions"):
        io.open_npy(path, 2)


def test_ids_must_match_and_be_unique(tmp_path: Path) -> None:
    path = tmp_path / "x.ids"
    path.write_text("a\nb\n")
    assert io.read_ids(path, 2) == ["a", "b"]
    with pytest.raises(DataError, match="2 ids for 3 rows"):
        io.read_ids(path, 3)
    path.write_text("a\nb\na\n")
    with pytest.raises(DataError, match=":3: the id 'a' stands on line 1"):
        io.read_ids(path)
    path.write_text("a\n\n")
    with pytest.raises(DataError, match=":2: an empty image id"):
        io.read_ids(path)


def write_features(folder: Path, array: np.ndarray[Any, Any]) -> Path:
    path = folder / "feats.npy"
    with io.Output([path, folder / "feats.ids"], {}, npy={0: (array.dtype, array.shape[1])}) as out:
        out.write(array.tobytes())
        out.write("".join(f"img{i}\n" for i in range(len(array))).encode(), 1)
        out.finish(kind="image-features", rows=len(array))
    return path


def test_features_round_trip_and_refuse_bad_rows(tmp_path: Path) -> None:
    array = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
    found = io.open_features(write_features(tmp_path, array))
    assert found.array.tolist() == array.tolist()
    assert found.ids == ["img0", "img1", "img2"]
    assert np.load(tmp_path / "feats.npy").tolist() == array.tolist(), "numpy itself must read the file"
    for value in (np.nan, np.inf, 0):
        bad = array.copy()
        bad[1] = value
        folder = tmp_path / str(value)
        folder.mkdir()
        path = write_features(folder, bad)
        with pytest.raises(DataError, match=r"row 1 \(img1\)"):
            io.open_features(path)


def test_any_flip_in_an_artifact_or_its_manifest_is_refused(tmp_path: Path) -> None:
    path = write_features(tmp_path, np.ones((2, 2), np.float32))
    for name in ("feats.npy", "feats.ids"):
        file = tmp_path / name
        whole = file.read_bytes()
        for position in range(len(whole)):
            file.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
            with pytest.raises(DataError, match="sha256"):
                io.open_features(path)
        file.write_bytes(whole)
    io.open_features(path)
    manifest = tmp_path / "feats.json"
    whole = manifest.read_bytes()
    for cut in range(len(whole) - 1):
        manifest.write_bytes(whole[:cut])
        with pytest.raises(DataError):
            io.open_features(path)


def test_an_edited_manifest_is_named_not_an_internal_error(tmp_path: Path) -> None:
    path = write_features(tmp_path, np.ones((2, 2), np.float32))
    manifest = tmp_path / "feats.json"
    body = json.loads(manifest.read_text())
    for edit in ({"files": {"feats.npy": 3}}, {"files": 3}, {"files": None}):
        manifest.write_text(json.dumps(body | edit))
        with pytest.raises(DataError) as caught:
            io.open_features(path)
        assert caught.value.code == Exit.DATA
        assert "feats" in str(caught.value)


# --------------------------------------------------------------------------------------------------------------- writing


def numbered(path: Path, rows: int, config: dict[str, Any] | None = None, stop_after: int | None = None) -> None:
    """Write rows 0 … rows-1, ten a commit, as a resumable output; or give up after some commits."""
    with io.Output([path], config or {}) as out:
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
    assert list(io.read_lines(cut)) == [str(i) for i in range(45)]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([whole.name, cut.name, "whole.json", "cut.json"])


def test_other_settings_refuse_to_resume_and_print_both(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with pytest.raises(KeyboardInterrupt):
        numbered(path, 45, {"k": 1, "same": 0}, stop_after=20)
    with pytest.raises(DataError, match="k was 1, is now 2") as caught:
        numbered(path, 45, {"k": 2, "same": 0})
    assert caught.value.code == Exit.CONFIG
    assert "same was" not in str(caught.value)
    with io.Output([path], {"k": 2}, restart=True) as out:
        assert out.state == {}
        out.finish(kind="numbers")
    assert path.read_bytes() == b""


def test_kill_at_every_step_of_publishing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the process at each rename in turn: whatever is left, the same command ends with the same bytes."""
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
        io.read_manifest(path, "numbers")
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
        with io.Output([path], config, inputs=[source]) as out:
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
    path.write_text("damaged")
    assert run({"k": 2})


WRITER = """
import sys, time
from vgtools import cli, io
def work():
    with io.Output([sys.argv[1]], {}) as out:
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
except io.DataError as error:
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


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, Exit.STOPPED), (signal.SIGINT, Exit.INTERRUPTED)])
def test_a_signal_stops_at_the_next_commit(tmp_path: Path, number: int, code: Exit) -> None:
    path = tmp_path / "x.jsonl"
    process = start_writer(path)
    wait_for(tmp_path / "x.jsonl.journal")
    process.send_signal(number)
    talk = process.communicate()[1].decode()
    assert process.returncode == code, talk
    assert "run the same command again" in talk
    assert not path.exists()
    journal = json.loads((tmp_path / "x.jsonl.journal").read_text())
    assert (tmp_path / "x.jsonl.part").read_bytes() == b"".join(b"%d\n" % i for i in range(journal["state"]["rows"]))


def test_the_second_writer_is_turned_away_and_a_dead_one_is_not_waited_for(tmp_path: Path) -> None:
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
    path.write_text("the old file\n")
    code = textwrap.dedent(WRITER)
    limit = 2000  # bytes a file may have: the writer needs about 4,000

    def few_bytes() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, preexec_fn=few_bytes, timeout=60)
    assert done.returncode == Exit.IO, done.stderr
    assert b"free some space" in done.stderr
    assert path.read_text() == "the old file\n"
    assert start_writer(path).communicate()[1] == b""
    assert path.read_bytes() == b"".join(b"%d\n" % i for i in range(1000))


@pytest.mark.parametrize(("size", "commits"), [(100_000, True), (10, True), (10, False)])
def test_a_full_device_is_exit_74(size: int, commits: bool) -> None:
    with pytest.raises(DataError) as caught, io.Output(["/dev/full"], {}) as out:
        out.write(b"x" * size)
        if commits:
            out.commit({})
    assert caught.value.code == Exit.IO
    assert os.strerror(errno.ENOSPC) in str(caught.value)
    assert "goes on" not in str(caught.value), "nothing resumes on a device"


def test_places_that_cannot_be_written_are_refused_before_any_work(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("x\n")
    link = tmp_path / "link.jsonl"
    link.symlink_to(tmp_path / "nowhere" / "x.jsonl")
    same = tmp_path / "same.jsonl"
    same.symlink_to(source)
    foreign = tmp_path / "theirs.json"
    foreign.write_text('{"mine": 1}')
    for target in (source, same, link, tmp_path, tmp_path / "none" / "x.jsonl", tmp_path / "theirs.npy"):
        with pytest.raises(DataError) as caught, io.Output([target], {}, inputs=[source]):
            pass
        assert caught.value.code == Exit.CANNOT_CREATE, target
    assert source.read_text() == "x\n"
    assert foreign.read_text() == '{"mine": 1}'
    assert not [p for p in tmp_path.iterdir() if p.suffix in (".lock", ".part")]


def test_a_manifest_of_another_artifact_is_never_written_over(tmp_path: Path) -> None:
    bank = tmp_path / "vg.faiss"
    with io.Output([bank], {}) as out:
        out.write(b"x")
        out.finish(kind="index")
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    for name, why in (("vg.jsonl", "is the manifest of vg.faiss"), ("new.json", "is where the manifest goes")):
        with pytest.raises(DataError, match=why) as caught, io.Output([tmp_path / name], {}):
            pass
        assert caught.value.code == Exit.CANNOT_CREATE
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    bank.unlink()  # nobody needs it any more
    with io.Output([tmp_path / "vg.jsonl"], {}) as out:
        out.finish(kind="vokens")
    assert io.read_manifest(tmp_path / "vg.jsonl", "vokens")


def test_a_read_only_file_system_is_exit_73() -> None:
    with pytest.raises(DataError) as caught, io.Output(["/proc/x.jsonl"], {}):
        pass
    assert caught.value.code == Exit.CANNOT_CREATE


def test_a_failure_before_the_first_commit_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), io.Output([tmp_path / "x.jsonl"], {}) as out:
        out.write(b"half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_an_empty_compressed_output_is_a_valid_archive(tmp_path: Path) -> None:
    with io.Output([tmp_path / "x.jsonl.gz"], {}) as out:
        out.finish(kind="nothing")
    assert gzip.decompress((tmp_path / "x.jsonl.gz").read_bytes()) == b""


# -------------------------------------------------------------------------------------------------------------- progress


def test_progress_in_a_log_file_is_one_line_in_thirty_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    with io.Progress("vokenize", "tokens", total=400, clock=lambda: now[0]) as progress:
        for _ in range(4):
            now[0] += 20
            progress.advance(100)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "vg vokenize: 200 of 400 tokens, 5 tokens/s",
        "vg vokenize: 400 of 400 tokens, 5 tokens/s",
    ]


def test_a_slow_rate_keeps_two_digits() -> None:
    now = [0.0]
    progress = io.Progress("pretrain", "steps", clock=lambda: now[0])
    rates = []
    for seconds, done in ((100, 36), (100, 999), (100, 123_456)):
        progress.done, now[0] = done, seconds
        rates.append(progress._rate(now[0]))
    assert rates == ["0.36 steps/s", "10 steps/s", "1,235 steps/s"]


def test_terminal_escapes_in_messages_are_written_out() -> None:
    assert io.plain("a\x1b]8;;x\x07b\u202ec é") == "a\\x1b]8;;x\\x07b\\u202ec é"


def test_names_that_are_not_utf8_are_written_out_in_manifests_and_refused_as_outputs(tmp_path: Path) -> None:
    source = tmp_path / os.fsdecode(b"\xffin.txt")
    source.write_text("x\n")
    for again in (False, True):
        with io.Output([tmp_path / "out.jsonl"], {"folder": str(source)}, inputs=[source]) as out:
            assert out.complete == again
            if not again:
                out.write(b"{}\n")
                out.finish(kind="rows")
    assert io.read_manifest(tmp_path / "out.jsonl")["inputs"][0]["path"] == f"{tmp_path}/\\udcffin.txt"
    with pytest.raises(DataError, match="not UTF-8") as caught, io.Output([str(source) + ".jsonl"], {}):
        pass
    assert caught.value.code == Exit.CANNOT_CREATE


@pytest.mark.parametrize("name", [".", "..", "", "-"])
def test_what_has_no_files_beside_it_is_a_usage_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as caught:
        io.read_manifest(name)
    assert caught.value.code == (Exit.USAGE if name else Exit.NO_INPUT)


@pytest.mark.parametrize("name", ["../up", "/etc/passwd", "", "..", "a/b"])
def test_a_manifest_that_names_files_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    path = write_features(tmp_path, np.ones((2, 2), np.float32))
    body = json.loads((tmp_path / "feats.json").read_text())
    (tmp_path / "feats.json").write_text(json.dumps(body | {"files": {name: {"bytes": 1, "sha256": "0"}}}))
    with pytest.raises(DataError, match=r"feats\.json: says"):
        io.open_features(path)
    with pytest.raises(DataError), io.Output([path], {}):  # nor is it an internal error to write there again
        raise DataError("enough")


def test_a_gzip_file_of_no_bytes_is_no_empty_text(tmp_path: Path) -> None:
    (tmp_path / "x.gz").touch()
    with pytest.raises(DataError, match="not even a gzip header") as caught:
        list(io.read_lines(tmp_path / "x.gz"))
    assert caught.value.code == Exit.DATA


def test_the_manifest_beside_a_stream_is_its_own_or_none(tmp_path: Path) -> None:
    path = tmp_path / "v.jsonl"
    path.write_text("{}\n")
    for strange in ("[1]", '{"mine": 1}', '{"vg": "0"}', '{"vg": "0", "files": {"other": {"bytes": 1}}}'):
        (tmp_path / "v.json").write_text(strange)
        assert io.manifest_beside(path) == {}
    io.write_manifest(path, [path], kind="vokens")
    assert io.manifest_beside(path)["kind"] == "vokens"
    assert io.manifest_beside("-") == io.manifest_beside(tmp_path / "none.jsonl") == {}
    path.write_text("{}\n{}\n")
    with pytest.raises(DataError, match="has 6 bytes, its manifest says 3"):
        io.manifest_beside(path)
