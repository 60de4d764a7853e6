"""Tables are read as the JSON lines that hold the same rows, or refused with the row."""

from __future__ import annotations

import contextlib
import csv
import datetime
import gzip
import json
import os
import random
import sys
from array import array
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from vgtools.cli import run
from vgtools.io import remote
from vgtools.io.artifact import read_made
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import sha256_file
from vgtools.io.inputs import Inputs
from vgtools.io.names import file_of, is_table, split_table
from vgtools.io.streams import read_jsonl, read_text_rows, read_texts, read_windows
from vgtools.io.tables import holds_pictures, paths_without_bytes, pictures, table_rows

Rows = list[dict[str, Any]]


def sample(count: int, seed: int = 0) -> Rows:
    """Return rows of every type that JSON has, nulls among them, and some that it lacks."""
    rng = random.Random(seed)

    def maybe(value: object) -> object:
        return value if rng.random() < 0.8 else None

    return [
        {
            "text": "".join(rng.choices('ab c"\\\n\té漢𝄞\u2028', k=rng.randrange(30))),
            "image": f"{rng.randrange(1 << 30)}.jpg",
            "id": maybe(rng.randrange(-(1 << 62), 1 << 62)),
            "score": maybe(rng.choice([0.1, 1e300, float("nan"), -0.0, 3.0])),
            "yes": maybe(rng.random() < 0.5),
            "split": rng.choice(["train", "dev"]),
            "boxes": maybe([[rng.random() for _ in range(4)] for _ in range(rng.randrange(3))]),
            "phrase": maybe({"start": rng.randrange(9), "words": ["a", "ü"]}),
            "at": maybe(datetime.datetime(2024, 2, 29, 12, 30, rng.randrange(60))),
        }
        for _ in range(count)
    ]


def table_of(rows: Rows) -> pa.Table:
    table = pa.Table.from_pylist(rows)
    names = table.column("split").dictionary_encode()
    return table.set_column(table.schema.get_field_index("split"), "split", names)


def _parquet(table: pa.Table, path: Path, rows: int) -> None:
    parquet.write_table(table, path, row_group_size=rows)


def _arrow_file(table: pa.Table, path: Path, rows: int) -> None:
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table.unify_dictionaries(), rows)


def _arrow_stream(table: pa.Table, path: Path, rows: int) -> None:
    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table, rows)


def _feather(table: pa.Table, path: Path, rows: int) -> None:
    feather.write_feather(table, path, chunksize=rows, compression="zstd")


FORMS: dict[str, tuple[str, Callable[[pa.Table, Path, int], None]]] = {
    "parquet": ("x.parquet", _parquet),
    "arrow file": ("x.arrow", _arrow_file),
    "arrow stream": ("x.arrow", _arrow_stream),
    "feather": ("x.feather", _feather),
}


@pytest.fixture(params=FORMS)
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Path]:
    """Write a table in one of the forms, in batches of some rows."""
    name, writer = FORMS[request.param]

    def call(table: pa.Table, rows: int = 1000) -> Path:
        writer(table, tmp_path / name, rows)
        return tmp_path / name

    return call


def jsonl(rows: Rows, path: Path) -> Path:
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def caught(path: str | Path, keys: dict[str, type] | None = None) -> str:
    with pytest.raises(DataError) as error:
        [*read_jsonl(path, keys)]
    assert error.value.code == Exit.DATA
    return str(error.value)


@pytest.mark.parametrize(("count", "size"), [(0, 9), (1, 1), (7, 2), (3000, 1300), (5000, 999)])
def test_rows_are_those_of_json_lines(
    write: Callable[..., Path], tmp_path: Path, count: int, size: int
) -> None:
    rows = sample(count, seed=size)
    table = table_of(rows) if rows else table_of(sample(3)).slice(0, 0)
    path = write(table, size)
    expected = [*read_jsonl(jsonl(rows, tmp_path / "x.jsonl"))]
    assert [*read_jsonl(path)] == expected
    # Also the types are the same: an integer is not a float.
    assert repr([*read_text_rows(path)]) == repr([row for _, row in expected])


def test_numbers_that_json_lacks_are_written_out(tmp_path: Path) -> None:
    row = {"d": Decimal("1.50"), "s": datetime.timedelta(hours=1), "l": [b"x", b"\xff\0", None]}
    parquet.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    found = {"d": "1.50", "s": "1:00:00", "l": ["x", None, None]}
    assert [*read_jsonl(tmp_path / "a.parquet")] == [(1, found)]


def test_columns_get_the_keys_that_a_name_gives_them(write: Callable[..., Path]) -> None:
    rows = [{"text": "old", "id": 7, "say": {"en": f"one {i}", "de": None}} for i in range(3)]
    path = write(pa.Table.from_pylist(rows))
    found = [*read_jsonl(f"{path}#say.en,image=id,target=say.de")]
    expected = {"text": "one 1", "image": "7", "target": None, "say": {"en": "one 1", "de": None}}
    assert found[1] == (2, expected)
    assert [*read_texts(f"{path}#text=say.en")] == ["one 0", "one 1", "one 2"]
    message = caught(f"{path}#caption")
    assert "has no column 'caption'; its columns are text, id, say, say.en, say.de" in message
    assert "two columns are named for 'text'" in caught(f"{path}#say.en,text=id")
    assert f'{path}:1: the key "target" is missing' in caught(path, {"target": str})
    assert f"{path}#target=COLUMN names its column" in caught(path, {"target": str})
    # A column that is named already stays in the advice.
    message = caught(f"{path}#target=say.en", {"text": str, "path": str})
    assert f'{path}#target=say.en:1: the key "path" is missing' in message
    assert message.endswith(f"; {path}#target=say.en,path=COLUMN names its column")
    message = caught(f"{path}#text=say", {"text": str})
    assert f"{path}#text=COLUMN.FIELD names a field of it" in message


def test_nulls_and_mixed_types_are_refused_with_the_row(write: Callable[..., Path]) -> None:
    path = write(pa.table({"text": ["a", *["b"] * 2047, None], "n": range(2049)}), 700)
    assert f'{path}:2049: "text" must be a string, got None' in caught(path, {"text": str})
    path = write(pa.table({"text": [1, 2]}))
    assert f'{path}:1: "text" must be a string, got 1' in caught(path, {"text": str})


def test_a_list_of_captions_is_as_many_rows(write: Callable[..., Path], tmp_path: Path) -> None:
    keys = {"image": str, "text": str}
    rows: Rows = [{"file": "a.jpg", "say": ["one", "two"]}, {"file": "b.jpg", "say": []}]
    rows.append({"file": "c.jpg", "say": ["three"]})
    named = f"{write(pa.Table.from_pylist(rows))}#image=file,text=say"
    captions = [(1, "a.jpg", "one"), (1, "a.jpg", "two"), (3, "c.jpg", "three")]
    assert [(n, row["image"], row["text"]) for n, row in read_jsonl(named, keys)] == captions
    path = jsonl([{"image": row["file"], "text": row["say"]} for row in rows], tmp_path / "c.jsonl")
    assert [(n, row["image"], row["text"]) for n, row in read_jsonl(path, keys)] == captions
    assert f'{named}:1: "text" must be a string, got [' in caught(named, {"text": str})
    jsonl([{"image": "a.jpg", "text": ["one", None]}], path)
    assert f'{path}:1: "text" must be a string, got None' in caught(path, keys)


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_a_pipe_is_refused_before_it_is_opened(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(
        DataError, match="a pipe can be read only once; write it to a file"
    ) as error:
        [*read_jsonl(tmp_path / name)]
    assert error.value.code == Exit.USAGE


def test_names_of_tables() -> None:
    assert split_table("a/X.parquet#b.csv") == ("a/X.parquet", "b.csv")
    assert split_table("s3://b/x.csv.gz#t=a,b") == ("s3://b/x.csv.gz", "t=a,b")
    assert split_table("x#y.jsonl") == ("x#y.jsonl", "")
    for name in ("x.parquet.gz", "x.csv/", "x.csvs", "-"):
        assert not is_table(name)
        assert file_of(name) == name


def test_two_columns_of_one_name_are_refused(write: Callable[..., Path]) -> None:
    array = pa.array(["a"])
    message = caught(write(pa.Table.from_arrays([array, array], ["text", "text"])))
    assert "has two columns of one name: its columns are text, text" in message


def test_a_file_that_is_cut_off_never_passes_as_a_shorter_one(write: Callable[..., Path]) -> None:
    path = write(table_of(sample(300)), 50)
    whole = path.read_bytes()
    rng = random.Random(0)
    cuts = {0, 1, 4, 6, 8, 11, 12, len(whole) - 1, len(whole) - 8, *range(0, len(whole), 4096)}
    with pa.OSFile(str(path)) as file:  # ends of batches of a stream
        if whole[:4] == b"\xff\xff\xff\xff":
            reader = pa.ipc.open_stream(file)
            for _ in reader:
                cuts.add(file.tell())
    for cut in [*cuts - {len(whole)}, *rng.choices(range(len(whole)), k=20)]:
        path.write_bytes(whole[:cut])
        message = caught(path)
        assert f"{path}:" in message
        assert "create it again" in message


def test_a_damaged_file_is_read_or_refused(write: Callable[..., Path]) -> None:
    path = write(table_of(sample(200)), 50)
    whole = path.read_bytes()
    rng = random.Random(1)
    refused = 0
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
        with contextlib.suppress(DataError):  # anything else is a fault of ours
            [*read_jsonl(path)]
            continue
        refused += 1
    assert refused > 10


def test_a_flip_in_a_page_with_a_checksum_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"text": [f"word number {i}" for i in range(1000)]})
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False}
    parquet.write_table(table, path, write_page_checksum=True, **options)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"word number 500", b"word number 5x0", 1))
    assert "checksum" in caught(path)


def test_a_file_of_another_form_is_refused(tmp_path: Path) -> None:
    for name in ("a.parquet", "a.arrow"):
        (tmp_path / name).write_text("text\nof several\nlines, longer than a magic\n")
        assert f"{tmp_path / name}: is damaged, cut off" in caught(tmp_path / name)
    with pytest.raises(DataError, match="No such file") as error:
        [*read_jsonl(tmp_path / "none.parquet")]
    assert error.value.code == Exit.NO_INPUT


def test_bytes_that_are_not_utf8_are_refused_with_the_row(write: Callable[..., Path]) -> None:
    offsets = pa.array(range(2001), pa.int32()).buffers()[1]
    data = b"a" * 1500 + b"\xff" + b"a" * 499
    strings = pa.Array.from_buffers(pa.string(), 2000, [None, offsets, pa.py_buffer(data)])
    path = write(pa.table({"text": strings}), 800)
    assert f"{path}:1501: " in caught(path)
    assert "UTF8" in caught(path)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_a_column_of_bytes_is_a_text_or_the_images(tmp_path: Path, kind: pa.DataType) -> None:
    path = tmp_path / "x.parquet"
    photos = [b"\x891", b"\x892"]

    def save(**columns: pa.Array) -> None:
        parquet.write_table(pa.table(columns), path)

    texts = pa.array(["é".encode(), "漢".encode()], kind)
    save(text=texts, photo=pa.array(photos, kind))
    assert [*read_texts(path)] == ["é", "漢"]
    assert [(row["text"], row["image"]) for row in table_rows(path)] == [
        ("é", "x:1"),
        ("漢", "x:2"),
    ]
    assert [picture.data for picture in pictures(path)] == photos
    save(say=texts)
    assert [*read_texts(f"{path}#say")] == ["é", "漢"]
    # A split that is not read would be learned from.
    splits = pa.array([b"test", b"train"], kind)
    save(text=texts, split=splits, photo=pa.array(photos, kind))
    assert [row["split"] for row in table_rows(path)] == ["test", "train"]
    assert [picture.data for picture in pictures(path)] == photos
    raw = pa.array([b"\xff\x00", b"\xfe\x01"], kind)
    save(text=pa.array(["a", "b"]), id=raw, md5=pa.array([b"\xff" * 16] * 2, pa.binary(16)))
    assert [row["text"] for row in table_rows(f"{path}#bytes=id")] == ["a", "b"]
    save(text=pa.array(["a", "b"]), md5=pa.array([b"\xff" * 16] * 2, pa.binary(16)))
    assert not holds_pictures(path), "a hash is no picture"
    assert [*table_rows(path)] == [{"text": text, "md5": None} for text in "ab"]
    save(text=texts, id=splits, fold=splits)
    rows = [*table_rows(f"{path}#split=fold,text=text")]
    assert [(row["split"], row["id"]) for row in rows] == [("test", "test"), ("train", "train")]
    save(text=pa.array([b"a", b"\xff"], kind))
    assert f"{path}:2: is damaged" in caught(path)
    save(a=pa.array(photos, kind), b=pa.array(photos, kind))
    with pytest.raises(DataError, match=r"has 2 columns of bytes: a, b; .*#bytes=COLUMN names"):
        holds_pictures(path)
    assert holds_pictures(f"{path}#bytes=b")


@pytest.mark.parametrize(
    "marked",
    [
        lambda values: pa.array(values, pa.binary(5)),
        lambda values: pa.array(values, pa.binary()).dictionary_encode(),
        lambda values: pa.array(values, pa.string()).dictionary_encode(),
    ],
)
def test_a_split_is_read_whatever_form_its_strings_have(
    tmp_path: Path, marked: Callable[[list[bytes]], pa.Array]
) -> None:
    texts = pa.array(["a", "b"])
    splits = marked([b"test1", b"train"])
    parquet.write_table(pa.table({"text": texts, "split": splits}), tmp_path / "x.parquet")
    rows = [*table_rows(tmp_path / "x.parquet")]
    assert rows == [{"text": "a", "split": "test1"}, {"text": "b", "split": "train"}]


@pytest.mark.parametrize("form", ["parquet", "file", "stream"])
def test_a_file_that_marks_no_string_has_names_in_its_bytes(tmp_path: Path, form: str) -> None:
    columns = {
        "image": [b"1.png", b"1.png"],
        "text": ["é\n".encode(), b"b"],
        "license": [b"", b"CC0"],
        "label": [1, 2],
    }

    def save() -> str:
        table = pa.table(
            {
                name: pa.array(values, pa.binary() if name != "label" else None)
                for name, values in columns.items()
            }
        )
        if form == "parquet":
            parquet.write_table(table, tmp_path / "x.parquet")
            return str(tmp_path / "x.parquet")
        open_writer = pa.ipc.new_file if form == "file" else pa.ipc.new_stream
        with open_writer(str(tmp_path / "x.arrow"), table.schema) as writer:
            writer.write_table(table)
        return str(tmp_path / "x.arrow")

    path = save()
    assert [*table_rows(path)] == [
        {"image": "1.png", "text": "é\n", "license": "", "label": 1},
        {"image": "1.png", "text": "b", "license": "CC0", "label": 2},
    ]
    assert not holds_pictures(path)
    columns["image"] = [b"\x89PNG\r\n\x1a\n", b"GIF89a\1\0"]
    path = save()
    assert [picture.data for picture in pictures(path)] == columns["image"]
    assert [row["image"] for row in table_rows(path)] == ["x:1", "x:2"]


def test_damaged_bytes_of_a_file_without_strings_are_an_error(tmp_path: Path) -> None:
    offsets = pa.py_buffer(array("i", [0, 9, 3, 12]).tobytes())
    data = pa.py_buffer(b"\x89PNG\x89PNG\x89PNG")
    column = pa.Array.from_buffers(pa.binary(), 3, [None, offsets, data])
    table = pa.record_batch([column], ["photo"])
    path = tmp_path / "x.arrow"
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_batch(table)
    with pytest.raises(DataError, match=r"x\.arrow:2: is damaged") as error:
        list(pictures(path))
    assert error.value.code == Exit.DATA


def test_without_pyarrow_the_command_that_installs_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"pip install 'vgtools\[tables\]'") as error:
        [*read_jsonl(tmp_path / "a.parquet")]
    assert error.value.code == Exit.UNAVAILABLE


# ----------------------------------------------------------------------------- text with separators


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz"])
def test_rows_of_a_separated_text_have_strings(tmp_path: Path, name: str) -> None:
    rng = random.Random(name)
    cells = [["text", "image", "n"]]
    for i in range(500):
        text = "".join(rng.choices('ab ,;"\n\té漢', k=rng.randrange(20)))
        cells.append([text, f"{i}.jpg", str(i)])
    path = tmp_path / name
    plain = tmp_path / "plain"
    with open(plain, "w", newline="", encoding="utf-8-sig") as out:
        csv.writer(out, delimiter="\t" if "tsv" in name else ",").writerows(cells)
    data = plain.read_bytes()
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    rows = [dict(zip(cells[0], row, strict=True)) for row in cells[1:]]
    assert [*read_jsonl(path)] == [*enumerate(rows, 1)]
    assert [*read_texts(f"{path}#image")] == [row["image"] for row in rows]


def test_faults_of_a_separated_text_name_row_and_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'text,n\n"a\nb",1\nc\n')
    why = "line 4 of the file: expected 2 cells as in the header, got 1"
    assert caught(path) == f"{path}:2: {why}; cells with a separator are quoted"
    path.write_bytes(b"text,n\na,1\n\xff,2\n")
    assert f"{path}:2: line 3 of the file: not UTF-8" in caught(path)
    path.write_bytes(b'text,n\na,1\n"b,2\n')
    assert f"{path}:2: line 3 of the file: not valid quoted text" in caught(path)
    path.write_bytes(b'"text,n\n')
    assert f"{path}: line 1 of the file: not valid quoted text" in caught(path)
    path.write_bytes(b"text,n\na,1\n")
    assert "has no column 'caption'; its columns are text, n" in caught(f"{path}#caption")
    path.write_text("text,n\n" + "a" * 200_000 + ",1\n")
    assert [*map(len, read_texts(path))] == [200_000]


def test_no_damaged_head_of_a_page_hides_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = [{"text": f"a dog {number}"} for number in range(50)]
    parquet.write_table(pa.Table.from_pylist(rows), path, write_page_checksum=True)
    data = path.read_bytes()
    hidden = 0
    for place in range(4, 30):
        for bit in range(8):
            flipped = data[place] ^ 1 << bit
            path.write_bytes(data[:place] + bytes([flipped]) + data[place + 1 :])
            try:
                assert [*table_rows(path)] == rows
            except DataError as error:
                hidden += "rows, its end states 50; create it again" in str(error)
    assert hidden


# ------------------------------------------------------------------------ windows, inputs, commands


def test_windows_resume_where_those_of_json_lines_do(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    rows = sample(500)
    path = str(write(table_of(rows), 120))
    lines = str(jsonl(rows, tmp_path / "x.jsonl"))

    def seen(path: str, state: dict[str, Any] | None = None, limit: int | None = None) -> list[Any]:
        windows = read_windows(path, 64, state, limit)
        return [(window.first, window.rows(), window.digest) for window in windows]

    for limit in (None, 100):
        found = [window[:2] for window in seen(path, limit=limit)]
        assert found == [window[:2] for window in seen(lines, limit=limit)]
    windows = seen(path)
    state = {"rows": 128, "digest": windows[1][2]}
    assert seen(path, state) == windows[2:]
    write(table_of(sample(500, seed=1)), 120)
    with pytest.raises(DataError, match="changed since the run") as error:
        seen(path, state)
    assert error.value.code == Exit.CONFIG


def test_inputs_are_hashed_whatever_columns_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"caption": ["a"]}), path)
    named, plain = Inputs([f"{path}#caption"]), Inputs([path])
    assert named.can_be_compared
    assert named.entries == [plain.entries[0] | {"path": f"{path}#caption"}]
    parquet.write_table(pa.table({"caption": ["another"]}), path)
    with pytest.raises(DataError, match="changed while it was read"):
        named.check_unchanged()


def test_patterns_and_urls_carry_their_columns(tmp_path: Path) -> None:
    for name in "ba":
        parquet.write_table(pa.table({"caption": [name]}), tmp_path / f"{name}.parquet")
    names = remote.expand(f"{tmp_path}/*.parquet#caption")
    assert names == [f"{tmp_path}/{name}.parquet#caption" for name in "ab"]
    assert [text for name in names for text in read_texts(name)] == ["a", "b"]
    url = f"file://{tmp_path}/a.parquet#caption"
    assert [*read_texts(url)] == ["a"]
    (window,) = read_windows(url, 9)
    assert window.texts() == ["a"]
    with pytest.raises(DataError, match="does not exist") as error:
        [*read_texts(f"file://{tmp_path}/none.parquet")]
    assert error.value.code == Exit.NO_INPUT


def test_rows_that_vg_wrote_are_compared_with_their_manifest(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": ["a"]}), path)
    facts = {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
    body = {"vg": "0", "files": {"a.parquet": facts}}
    (tmp_path / "a.json").write_text(json.dumps(body))
    assert [*read_made(path)] == [(1, {"text": "a"})]
    facts["sha256"] = "0" * 64
    (tmp_path / "a.json").write_text(json.dumps(body))
    with pytest.raises(DataError, match="was rewritten"):
        list(read_made(path))
    facts["bytes"] += 1
    (tmp_path / "a.json").write_text(json.dumps(body))
    with pytest.raises(DataError, match="cut off"):
        read_made(path)


def test_statistics_of_a_table_are_those_of_its_lines(
    write: Callable[..., Path], tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    rows = [{"caption": row["text"].replace("\n", " ")} for row in sample(400)]
    path = write(pa.Table.from_pylist(rows))
    lines = jsonl([{"text": row["caption"]} for row in rows], tmp_path / "x.jsonl")
    assert run(["stats", str(lines), "-q"]) == 0
    expected = capfdbinary.readouterr().out.replace(str(lines).encode(), b"X")
    assert run(["stats", f"{path}#caption", "-q"]) == 0
    assert capfdbinary.readouterr().out.replace(f"{path}#caption".encode(), b"X") == expected
    assert run(["stats", str(path), "-q"]) == Exit.DATA
    assert b"#text=COLUMN names its column" in capfdbinary.readouterr().err


# ------------------------------------------------------------------------------------------- images


def test_images_of_a_column_have_ids_and_bytes(write: Callable[..., Path]) -> None:
    stored: list[dict[str, Any] | None] = [
        {"bytes": b"1", "path": "a.jpg"},
        {"bytes": b"2", "path": None},
        {"bytes": None, "path": "b.jpg"},
        None,
    ]
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    path = write(pa.table({"image": pa.array(stored, kind), "text": [*"abcd"], "id": range(4)}), 2)
    found = [tuple(picture) for picture in pictures(path)]
    assert found == [
        (1, "a.jpg", b"1", "a.jpg"),
        (2, "x:2", b"2", None),
        (3, "b.jpg", None, "b.jpg"),
        (4, "x:4", None, None),
    ]
    # Captions of the same table name the images alike.
    images = [row["image"] for _, row in read_jsonl(path)]
    assert images == [picture.image for picture in pictures(path)]
    named = f"{path}#image=id,bytes=image"
    assert [picture.image for picture in pictures(named)] == [*"0123"]
    assert next(row for _, row in read_jsonl(named)) == {"image": "0", "text": "a"}


def test_images_without_bytes_are_named_by_their_paths(write: Callable[..., Path]) -> None:
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    stored: list[dict[str, Any] | None] = [
        {"bytes": b"0", "path": "0.png"},
        None,
        {"bytes": None, "path": "2.png"},
        {"bytes": None, "path": None},
        {"bytes": None, "path": "4.png"},
    ]
    file = write(pa.table({"image": pa.array(stored, kind)}), 2)
    assert [*paths_without_bytes(file)] == ["2.png", "4.png"]
    full = write(pa.table({"image": pa.array(stored[:1], kind)}), rows=2)
    assert [*paths_without_bytes(full)] == []


def test_a_column_with_points_in_its_name_is_one(write: Callable[..., Path]) -> None:
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string(), "a.b": pa.struct({"c": "int64"})})
    stored = [{"bytes": b"1", "path": "1.png", "a.b": {"c": 4}}, {"bytes": None, "path": "2.png"}]
    path = write(pa.table({"left": [1, 2], "left.png": pa.array(stored, kind), "n.a": [*"xy"]}), 1)
    assert [picture[1:] for picture in map(tuple, pictures(path))] == [
        ("1.png", b"1", "1.png"),
        ("2.png", None, "2.png"),
    ]
    assert [*paths_without_bytes(path)] == ["2.png"]
    named = [row for _, row in read_jsonl(f"{path}#text=n.a,deep=left.png.a.b.c")]
    assert [(row["text"], row["deep"], row["left"]) for row in named] == [
        ("x", 4, 1),
        ("y", None, 2),
    ]
