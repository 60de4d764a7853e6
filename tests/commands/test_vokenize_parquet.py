"""Rows that commands write as Parquet are those that they write as JSON lines, and read alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from tests.tiny import save_encoder, save_grids, text
from tests.tiny.located import save_queries
from tests.tiny.retriever import save_retriever
from vgtools.cli import run
from vgtools.io.artifact import read_made

Rows = list[dict[str, Any]]


def rows_of(path: Path | str) -> Rows:
    """Return rows without nulls: in Parquet a null is a key that is not there."""
    rows = (row for _, row in read_made(path))
    return [{key: value for key, value in row.items() if value is not None} for row in rows]


def vg(*args: object) -> int:
    return run([*map(str, args)])


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "t.jsonl"
    rows = [{"text": line, "id": i} for i, line in enumerate(["", *text(60, seed=1)])]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.parametrize("k", [1, 2])
def test_vokens(tiny: Path, texts: Path, tmp_path: Path, k: int) -> None:
    index = ("--index", tiny / "vg.faiss", "--device", "cpu", "-q")
    search = (*index, "-k", k, "--window", 16)
    for out in ("v.jsonl", "p.parquet", "s.parquet/"):
        sizes = ("--shard-size", 900) if out.endswith("/") else ()
        assert vg("vokenize", texts, *search, *sizes, "-o", f"{tmp_path}/{out}") == 0
    expected = rows_of(tmp_path / "v.jsonl")
    assert len(expected) == 61
    assert rows_of(tmp_path / "p.parquet") == rows_of(f"{tmp_path}/s.parquet/") == expected
    # A shard is a file for any reader, with the facts about it, but none about who made it.
    shards = sorted((tmp_path / "s.parquet").glob("0*.parquet"))
    assert len(shards) > 1
    assert sum(parquet.read_metadata(shard).num_rows for shard in shards) == 61
    within = json.loads(parquet.read_metadata(shards[0]).metadata[b"vg"])
    assert (within["kind"], within["config"]["k"]) == ("vokens", k)
    assert "argv" not in within

    def again(source: str, out: str) -> Rows:
        carried = ("-t", tiny / "encoder", "-q", "-o", f"{tmp_path}/{out}")
        assert vg("revokenize", f"{tmp_path}/{source}", *carried) == 0
        return rows_of(f"{tmp_path}/{out}")

    assert again("v.jsonl", "r.jsonl") == again("p.parquet", "rp.parquet") == expected
    assert again("s.parquet/", "rs.parquet/") == expected


def test_readers_of_vokens(
    tiny: Path, texts: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    index = ("--index", tiny / "vg.faiss", "--device", "cpu", "-q")
    for out in ("v.jsonl", "p.parquet", "s.parquet/"):
        assert vg("vokenize", texts, *index, "-o", f"{tmp_path}/{out}") == 0
    seen = []
    capfd.readouterr()
    for source in ("v.jsonl", "p.parquet", "s.parquet/"):
        ids = ("--ids", tiny / "vg.ids")
        assert vg("show", f"{tmp_path}/{source}", *ids) == 0
        assert vg("stats", f"{tmp_path}/{source}", "--tokenizer", tiny / "encoder") == 0
        packed = ("-t", tiny / "encoder", "-q", "-o", f"{tmp_path}/{len(seen)}.npy")
        assert vg("revokenize", f"{tmp_path}/{source}", *packed) == 0
        read = capfd.readouterr().out.replace(source.rstrip("/"), "FILE")
        seen.append((read, (tmp_path / f"{len(seen)}.npy").read_bytes()))
    assert seen[0] == seen[1]
    assert seen[0][1] == seen[2][1]


def test_a_damaged_shard_is_refused(
    tiny: Path, texts: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = f"{tmp_path}/s.parquet/"
    index = ("--index", tiny / "vg.faiss", "--device", "cpu", "-q")
    assert vg("vokenize", texts, *index, "-o", out) == 0
    (shard,) = (tmp_path / "s.parquet").glob("0*.parquet")
    data = bytearray(shard.read_bytes())
    data[10] ^= 1
    shard.write_bytes(data)
    assert vg("revokenize", out, "-t", tiny / "encoder", "-o", tmp_path / "r.jsonl") == 65
    assert f"{shard}: is damaged: its sha256 is" in capfd.readouterr().err
    assert vg("vokenize", texts, *index, "-o", out) == 0  # makes it again
    assert len(rows_of(out)) == 61


def test_retrieved_rows(tiny: Path, texts: Path, tmp_path: Path) -> None:
    index = ("--index", tiny / "vg.faiss", "--device", "cpu", "-q", "-k", 3)
    for out in ("r.jsonl", "r2.parquet", "s.parquet/"):
        assert vg("retrieve", texts, *index, "-o", f"{tmp_path}/{out}") == 0
    expected = rows_of(tmp_path / "r.jsonl")
    assert rows_of(tmp_path / "r2.parquet") == rows_of(f"{tmp_path}/s.parquet/") == expected
    assert expected[5]["id"] == 5
    schema = parquet.read_schema(tmp_path / "r2.parquet")
    assert str(schema.field("images").type) == "list<element: int64>"


def test_heat(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    save_retriever(tmp_path / "run", save_encoder(tmp_path / "encoder"))
    save_grids(tmp_path / "grid.npy")
    save_queries(tmp_path / "q.jsonl")
    flags = ("--matcher", tmp_path / "run", "--feats", tmp_path / "grid.npy", "-q")
    for out in ("h.jsonl", "p.parquet"):
        located = ("--device", "cpu", "-o", tmp_path / out)
        assert vg("locate", tmp_path / "q.jsonl", *flags, *located) == 0
    assert rows_of(tmp_path / "p.parquet") == rows_of(tmp_path / "h.jsonl")
    shown = []
    for name in ("h.jsonl", "p.parquet"):
        capfd.readouterr()
        assert vg("show", tmp_path / name) == 0
        shown.append(capfd.readouterr().out)
    assert shown[0] == shown[1] != ""
    # One record of scores is no row.
    scored = ("--score", "--device", "cpu", "-o", tmp_path / "s.parquet")
    assert vg("locate", tmp_path / "q.jsonl", *flags, *scored) == 2
