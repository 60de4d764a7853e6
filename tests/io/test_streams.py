"""Streams, arrays and manifests: what is cut off, damaged or from another run is refused."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgtools.io import streams
from vgtools.io.artifact import open_features, read_ids, read_manifest
from vgtools.io.errors import DataError, Exit, TextStats
from vgtools.io.files import compress, open_npy, versions, write_manifest
from vgtools.io.output import Output
from vgtools.io.streams import (
    Window,
    read_jsonl,
    read_lines,
    read_so_far,
    read_text_rows,
    read_texts,
    read_windows,
)
from vgtools.io.written import manifest_beside

# ------------------------------------------------------------------------------------------ reading


@given(
    st.lists(st.binary(max_size=12).filter(lambda b: not {0, 10} & {*b}), max_size=8), st.booleans()
)
def test_n_lines_in_are_n_strings_out(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], last: bool
) -> None:
    path = tmp_path_factory.mktemp("lines") / "x.txt"
    path.write_bytes(b"\n".join(lines) + (b"\n" if last and lines else b""))
    expected = len(lines) if last or not lines or lines[-1] else len(lines) - 1
    assert len(list(read_lines(path))) == expected


@pytest.mark.parametrize("read", [read_lines, read_texts, lambda path: read_windows(path, 9)])
def test_a_nul_in_the_first_block_of_a_text_is_refused(tmp_path: Path, read: Any) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"a\n\xff\x00b\n")
    with pytest.raises(DataError, match=r"x\.txt: is not text: byte 0 in line 2; expected") as bad:
        list(read(path))
    assert bad.value.code == Exit.DATA
    text = b"a" * (1 << 13) + b"\x00\n\x00"
    path.write_bytes(text)
    assert len(list(read_lines(path))) == 2, "one far below is a bad character of a text"


@pytest.mark.parametrize("blank", [b"\n", b" \r\n\n", b"\xef\xbb\xbf\n"])
@pytest.mark.parametrize("read", [read_text_rows, lambda path: read_windows(path, 9)])
def test_rows_after_blank_lines_of_a_pipe_are_not_taken_for_text(
    tmp_path: Path, read: Any, blank: bytes
) -> None:
    pipe, path = os.pipe(), tmp_path / "x.txt"
    rows = b'{"text": "a dog"}\n'
    line = blank.count(b"\n") + 1
    os.write(pipe[1], blank + rows)
    os.close(pipe[1])
    with pytest.raises(DataError, match=rf":1: is blank, and rows of JSON start on line {line}"):
        list(read(f"/dev/fd/{pipe[0]}"))
    os.close(pipe[0])
    path.write_bytes(blank + rows)
    assert list(read(path)), "the name says that it is a text"


def test_line_ends_marks_and_bad_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\rc\n\xff\xfe d\n\xe2\x80\xa8e\n\x01\n\nlast")
    stats = TextStats()
    assert list(read_lines(path, stats)) == ["a", "b\rc", "�� d", "\u2028e", "\x01", "", "last"]
    assert (stats.lines, stats.replaced) == (7, 1)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_every_cut_of_an_archive_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.txt{suffix}"
    whole = compress(b"".join(b"line %d\n" % i for i in range(50)), path)
    path.write_bytes(whole)
    assert len(list(read_lines(path))) == 50
    for cut in range(1, len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError) as caught:
            list(read_lines(path))
        assert caught.value.code == Exit.DATA
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_flipped_bit_in_an_archive_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.txt{suffix}"
    text = b"".join(b"line %d\n" % i for i in range(50))
    whole = compress(text, path)
    start = 10 if suffix == ".gz" else 6  # a gzip header has a name and a time that nobody reads
    for position in range(start, len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        try:
            read = [x.encode() + b"\n" for x in read_lines(path)]
        except DataError:
            continue
        assert read == text.splitlines(keepends=True), "only a flip that changes nothing may pass"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"a": 1', "not valid JSON"),
        (b"[1]", "expected a JSON object, got list"),
        (b'{"a": NaN}', "not valid JSON"),
        (b'{"b": 1}', '"a" is missing'),
        (b'{"a": "x"}', "must be an integer, got 'x'"),
        (b'{"a": true}', "must be an integer, got True"),
        (b"", "input data is empty"),
        (b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
    ],
)
def test_a_bad_jsonl_line_is_named(tmp_path: Path, line: bytes, why: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line + b"\n")
    with pytest.raises(DataError) as caught:
        list(read_jsonl(path, {"a": int}))
    assert f"{path}:2:" in str(caught.value)
    assert why in str(caught.value)


def test_missing_and_unreadable_inputs_are_exit_66(tmp_path: Path) -> None:
    for path in (tmp_path / "none.txt", tmp_path, tmp_path / "none.gz"):
        with pytest.raises(DataError) as caught:
            list(read_lines(path))
        assert caught.value.code == Exit.NO_INPUT


def test_windows_resume_after_a_committed_one(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("".join(f"{i}\n" for i in range(10)))
    whole = list(read_windows(path, 3))
    assert [w.lines for w in whole] == [["0", "1", "2"], ["3", "4", "5"], ["6", "7", "8"], ["9"]]
    assert [w.first for w in whole] == [1, 4, 7, 10]
    assert whole[-1].digest == hashlib.sha256(path.read_bytes()).hexdigest()
    rest = list(read_windows(path, 3, {"rows": 3, "digest": whole[0].digest}))
    assert rest == whole[1:]
    assert [w.lines for w in read_windows(path, 3, limit=4)] == [["0", "1", "2"], ["3"]]


@pytest.mark.parametrize("ending", [".txt", ".txt.gz", ".txt.zst"])
def test_how_far_files_are_read_is_known_from_their_bytes(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x{ending}"
    numbers = np.random.default_rng(0).integers(0, 1 << 60, 400_000).tolist()
    text = "".join(f"{number}\n" for number in numbers).encode()
    path.write_bytes(text if ending == ".txt" else compress(text, path))
    other = tmp_path / f"y{ending}"
    other.write_bytes(path.read_bytes())
    files = [str(path), str(other)]
    assert read_so_far(files) == (0, 0)
    for window in read_windows(path, 40_000):
        found = read_so_far(files)
        assert found is not None
        assert found[1] == window.first + len(window.lines) - 1
        # Half of the bytes are those of the other file. The file is read in blocks.
        assert found[0] == pytest.approx(found[1] / 800_000, abs=0.05)
    assert read_so_far(files) == (0.5, 400_000)
    assert read_so_far([*files, str(tmp_path / "none")]) is None


def test_a_changed_beginning_refuses_to_resume(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"\xff\nb\n\xfe\xff\n")
    assert [w.replaced for w in read_windows(path, 2)] == [1, 1]
    path.write_text("a\nb\nc\n")
    state = {"rows": 2, "digest": next(iter(read_windows(path, 2))).digest}
    for text in ("a\nX\nc\n", "a\n"):
        path.write_text(text)
        with pytest.raises(DataError, match="changed since") as caught:
            list(read_windows(path, 2, state))
        assert caught.value.code == Exit.CONFIG


# ------------------------------------------------------------------------------------------- arrays


def test_npy_cut_grown_or_pickled_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(6, dtype=np.float32).reshape(3, 2))
    whole = path.read_bytes()
    assert open_npy(path, 2).tolist() == [[0, 1], [2, 3], [4, 5]]
    for data in [whole[:cut] for cut in range(len(whole))] + [whole + b"x"]:
        path.write_bytes(data)
        with pytest.raises(DataError) as caught:
            open_npy(path)
        assert caught.value.code == Exit.DATA
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="could run code"):
        open_npy(path)
    np.save(path, np.zeros(3))
    with pytest.raises(DataError, match="expected 2 dimensions"):
        open_npy(path, 2)


def test_ids_must_match_and_be_unique(tmp_path: Path) -> None:
    path = tmp_path / "x.ids"
    path.write_text("a\nb\n")
    assert read_ids(path, 2) == ["a", "b"]
    with pytest.raises(DataError, match="2 ids for 3 rows"):
        read_ids(path, 3)
    path.write_text("a\nb\na\n")
    with pytest.raises(DataError, match=":3: duplicate image id 'a' \\(first on line 1\\)"):
        read_ids(path)
    path.write_text("a\n\n")
    with pytest.raises(DataError, match=":2: an empty image id"):
        read_ids(path)
    path.write_bytes(b"a\np\xff3.png\n")
    with pytest.raises(DataError, match=r":2: is not UTF-8: 'p\ufffd3\.png'; expected a name"):
        read_ids(path)


def write_features(folder: Path, array: np.ndarray[Any, Any]) -> Path:
    path = folder / "feats.npy"
    kind = "image-features" if array.ndim == 2 else "image-grid"
    with Output([path, folder / "feats.ids"], {}, npy={0: (array.dtype, array.shape[1:])}) as out:
        out.write(array.tobytes())
        out.write("".join(f"img{i}\n" for i in range(len(array))).encode(), 1)
        out.finish(kind=kind, rows=len(array))
    return path


def test_features_round_trip_and_refuse_bad_rows(tmp_path: Path) -> None:
    array = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
    found = open_features(write_features(tmp_path, array))
    assert found.array.tolist() == array.tolist()
    assert found.ids == ["img0", "img1", "img2"]
    assert np.load(tmp_path / "feats.npy").tolist() == array.tolist(), (
        "numpy itself must read the file"
    )
    for value in (np.nan, np.inf, 0):
        bad = array.copy()
        bad[1] = value
        folder = tmp_path / str(value)
        folder.mkdir()
        path = write_features(folder, bad)
        with pytest.raises(DataError, match=r"row 1 \(img1\)"):
            open_features(path)


def test_feature_maps_and_pooled_features_are_not_taken_for_one_another(tmp_path: Path) -> None:
    grid = np.arange(1, 25, dtype=np.float16).reshape(2, 4, 3)
    (tmp_path / "grid").mkdir()
    path = write_features(tmp_path / "grid", grid)
    assert open_features(path, positions=4).array.tolist() == grid.tolist()
    why = r"expected pooled features \(N, D\), got feature maps \(2, 4, 3\); .*--pooling mean -o"
    with pytest.raises(DataError, match=why):
        open_features(path)
    with pytest.raises(DataError, match=r"P >= 5 positions, got \(2, 4, 3\): --picture N"):
        open_features(path, positions=5)
    pooled = write_features(tmp_path, np.ones((2, 3), np.float32))
    why = r"expected feature maps \(N, P, D\), got pooled features \(2, 3\); .*--pooling none -o"
    with pytest.raises(DataError, match=why):
        open_features(pooled, positions=1)


def test_any_flip_in_an_artifact_or_its_manifest_is_refused(tmp_path: Path) -> None:
    path = write_features(tmp_path, np.ones((2, 2), np.float32))
    for name in ("feats.npy", "feats.ids"):
        file = tmp_path / name
        whole = file.read_bytes()
        for position in range(len(whole)):
            file.write_bytes(
                whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :]
            )
            with pytest.raises(DataError, match="sha256"):
                open_features(path)
        file.write_bytes(whole)
    open_features(path)
    manifest = tmp_path / "feats.json"
    whole = manifest.read_bytes()
    for cut in range(len(whole) - 1):
        manifest.write_bytes(whole[:cut])
        with pytest.raises(DataError):
            open_features(path)


def test_an_edited_manifest_is_named_not_an_internal_error(tmp_path: Path) -> None:
    path = write_features(tmp_path, np.ones((2, 2), np.float32))
    manifest = tmp_path / "feats.json"
    body = json.loads(manifest.read_text())
    for edit in ({"files": {"feats.npy": 3}}, {"files": 3}, {"files": None}):
        manifest.write_text(json.dumps(body | edit))
        with pytest.raises(DataError) as caught:
            open_features(path)
        assert caught.value.code == Exit.DATA
        assert "feats" in str(caught.value)


def test_a_manifest_of_a_newer_format_is_refused_and_one_without_a_format_is_read(
    tmp_path: Path,
) -> None:
    path = write_features(tmp_path, np.ones((2, 2), np.float32))
    manifest = tmp_path / "feats.json"
    body = json.loads(manifest.read_text())
    assert next(iter(body)) == "format"
    assert body.pop("format") == 1
    manifest.write_text(json.dumps(body))  # as files written before the key
    assert open_features(path).manifest == manifest_beside(path) == body
    manifest.write_text(json.dumps(body | {"format": 2, "vg": "3.1", "files": []}))
    why = (
        f"{manifest}: format 2 was written by vg 3.1; "
        f"this vg ({versions()['vgtools']}) reads format 1; upgrade vgtools"
    )
    for read in (open_features, manifest_beside):
        with pytest.raises(DataError) as caught:
            read(path)
        assert str(caught.value) == why
        assert caught.value.code == Exit.DATA


@pytest.mark.parametrize(
    ("name", "code"),
    [("-", Exit.USAGE), ("", Exit.NO_INPUT), (".", Exit.NO_INPUT), ("..", Exit.NO_INPUT)],
)
def test_what_has_no_files_beside_it_is_refused(
    name: str, code: Exit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as caught:
        read_manifest(name)
    assert caught.value.code == code


@pytest.mark.parametrize("name", ["../up", "/etc/passwd", "", "..", "a/b"])
def test_a_manifest_that_names_files_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    path = write_features(tmp_path, np.ones((2, 2), np.float32))
    body = json.loads((tmp_path / "feats.json").read_text())
    (tmp_path / "feats.json").write_text(
        json.dumps(body | {"files": {name: {"bytes": 1, "sha256": "0"}}})
    )
    with pytest.raises(DataError, match=r'feats\.json: "files key": expected the name of a'):
        open_features(path)
    with (
        pytest.raises(DataError),
        Output([path], {}),
    ):  # nor is it an internal error to write there again
        raise DataError("enough")


def test_a_gzip_file_of_no_bytes_is_not_an_empty_text(tmp_path: Path) -> None:
    (tmp_path / "x.gz").touch()
    with pytest.raises(DataError, match="without even a gzip header") as caught:
        list(read_lines(tmp_path / "x.gz"))
    assert caught.value.code == Exit.DATA


def test_the_manifest_beside_a_stream_is_its_own_or_none(tmp_path: Path) -> None:
    path = tmp_path / "v.jsonl"
    path.write_text("{}\n")
    for strange in (
        "[1]",
        '{"mine": 1}',
        '{"vg": "0"}',
        '{"vg": "0", "files": {"other": {"bytes": 1}}}',
    ):
        (tmp_path / "v.json").write_text(strange)
        assert manifest_beside(path) == {}
    write_manifest(path, [path], kind="vokens")
    assert manifest_beside(path)["kind"] == "vokens"
    assert manifest_beside("-") == manifest_beside(tmp_path / "none.jsonl") == {}
    path.write_text("{}\n{}\n")
    with pytest.raises(DataError, match="has 6 bytes, its manifest states 3"):
        manifest_beside(path)


def test_texts_and_jsonl_are_read_alike(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\n\ntwo")
    assert list(read_text_rows(tmp_path / "a.txt")) == [
        {"text": "one"},
        {"text": ""},
        {"text": "two"},
    ]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text":"one","id":1}\n{"id":2}\n'))
    rows = read_text_rows(tmp_path / "a.jsonl.gz")
    assert next(rows) == {"text": "one", "id": 1}
    with pytest.raises(DataError, match=r'a\.jsonl\.gz:2: the key "text" is missing'):
        next(rows)


@pytest.mark.parametrize("name", ["x.ndjson", "X.JSONL", "x.json", "x", "x.jl.gz"])
def test_rows_under_another_name_are_not_read_as_text(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    data = b'\xef\xbb\xbf {"text": "a dog", "split": "test"}\n'
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    for read in (read_text_rows, lambda path: read_windows(path, 10)):
        with pytest.raises(DataError, match=r"name rows \.jsonl, and a text \.txt") as error:
            list(read(path))
        assert (error.value.code, error.value.line) == (Exit.DATA, 1)
    # A text may have braces, and JSON of another form; as .txt it may be anything.
    for number, text in enumerate(('{"text": "a"}', '{"a": 1}', "{text}", '["text"]')):
        file = tmp_path / ("y" if number else "y.txt")
        file.write_text(f"{text}\n")
        assert [row["text"] for row in read_text_rows(file)] == [text]


def test_reading_texts_names_the_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n{"image": 1}\n')
    with pytest.raises(DataError, match=r"x.jsonl:2: the key \"text\" is missing"):
        list(read_texts(str(tmp_path / "x.jsonl")))
    with pytest.raises(DataError, match="is not text"):
        read_texts("packed.npy")
    (tmp_path / "bad.txt").write_bytes(b"a\xff b\nc\r\n")
    met = TextStats()
    assert list(read_texts(str(tmp_path / "bad.txt"), met)) == ["a\ufffd b", "c"]
    assert (met.lines, met.replaced) == (2, 1)


def test_a_window_gives_its_sentences() -> None:
    assert Window("a.txt", 1, ["one", "two"], "").texts() == ["one", "two"]
    rows = ['{"text": "one"}', '{"text": ""}']
    assert Window("a.jsonl.zst", 5, rows, "").texts() == ["one", ""]
    with pytest.raises(DataError, match=r'a\.jsonl:6: the key "text" is missing'):
        Window("a.jsonl", 5, [rows[0], "{}"], "").texts()


def test_a_text_that_is_too_long_to_be_tokenised_is_refused() -> None:
    most = "x " * 500_000
    assert Window("a.txt", 5, [most], "").texts() == [most]
    why = r": has a text of 1,000,001 characters, expected at most 1,000,000; vg prepare sentences"
    for window in (
        Window("a.txt", 5, ["", most + "x"], ""),
        Window("a.jsonl", 6, [json.dumps({"text": most + "x"})], ""),
    ):
        with pytest.raises(DataError, match=f"^{window.path}:6{why}") as caught:
            window.rows()
        assert caught.value.code == Exit.DATA


def test_a_window_of_long_lines_ends_early_and_resumes_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vgtools.io import streams

    monkeypatch.setattr(streams, "WINDOW_CHARS", 10)
    path = tmp_path / "x.txt"
    lines = ["aaaa", "bbbbbb", "c", "dddddddddddd", "e", "f", "g", "h"]
    path.write_text("".join(line + "\n" for line in lines))
    whole = list(read_windows(path, 3))
    assert [w.lines for w in whole] == [lines[:2], lines[2:4], lines[4:7], lines[7:]]
    for number, window in enumerate(whole, 1):
        rows = sum(len(w.lines) for w in whole[:number])
        rest = read_windows(path, 3, {"rows": rows, "digest": window.digest})
        assert [w.lines for w in rest] == [w.lines for w in whole[number:]]


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<U3', 'fortran_order': False, 'shape': (2,), }",
        "{'descr': '|V4', 'fortran_order': False, 'shape': (2,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -2), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }",
    ],
)
def test_arrays_that_are_no_numbers_are_refused(tmp_path: Path, header: str) -> None:
    text = header.encode().ljust(117) + b"\n"
    path = tmp_path / "x.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(8))
    with pytest.raises(DataError, match=r"x\.npy") as caught:
        open_npy(path)
    assert caught.value.code == Exit.DATA


def test_files_that_are_read_whole_leave_nothing_in_memory(tmp_path: Path) -> None:
    before = len(streams._READ)
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text("a caption\n")
        with streams.open_read(tmp_path / f"{number}.txt") as stream:
            assert stream.read() == b"a caption\n"
        del stream
    assert len(streams._READ) == before
