"""Every kind of artifact, read as arrays, tables and rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vgtools as vg
from tests.tiny import save_feats, save_grids, text
from tests.tiny.grounding import VECTORS, save_vectors
from tests.tiny.images import save_photo
from tests.tiny.located import save_queries
from vgtools.cli import run
from vgtools.models.runs import save_run

LINES = text(12, seed=4)
CPU = ["--device", "cpu", "-q"]


def command(*args: Any) -> None:
    assert run([*map(str, args), *CPU]) == 0


@pytest.fixture(scope="module")
def folder(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with rows of every kind that is drawn, and the pictures."""
    made = tmp_path_factory.mktemp("made")
    (made / "t.txt").write_text("".join(f"{line}\n" for line in LINES))
    index = tiny / "vg.faiss"
    for name in ("v.jsonl", "packed.npy", "table.parquet", "many.npy/", "parts.jsonl/"):
        shards = ["--shard-size", 60] if name.endswith("/") else []
        command("vokenize", made / "t.txt", "--index", index, "-o", f"{made}/{name}", *shards)
    command("vokenize", made / "t.txt", "--index", index, "-k", 2, "-o", made / "v2.jsonl")
    command("retrieve", made / "t.txt", "--index", index, "-k", 3, "-o", made / "r.jsonl")
    save_queries(made / "q.jsonl", 8)
    grid = save_grids(made / "grid.npy")
    how = ("--matcher", tiny / "run", "--feats", grid)
    command("locate", made / "q.jsonl", *how, "-o", made / "h.jsonl")
    (made / "photos").mkdir()
    for number in range(60):
        photo = save_photo(made / "photos" / f"{number}.png", number)
        photo.rename(photo.with_name(f"image{number:03}"))
    return made


@pytest.mark.parametrize("name", ["v.jsonl", "table.parquet", "parts.jsonl/"])
def test_vokens_are_read_as_the_rows_that_were_written(tiny: Path, folder: Path, name: str) -> None:
    rows = vg.read(folder / name, index=tiny / "vg.faiss")
    assert isinstance(rows, vg.Rows)
    expected = [json.loads(line) for line in (folder / "v.jsonl").read_bytes().splitlines()]
    assert [row.to_dict() for row in rows] == expected
    assert [row.line for row in rows] == [*range(1, 13)], "a file is read again"
    assert rows.manifest["kind"] == "vokens"
    first = next(row for row in rows if row.tokens)
    assert first.images == [f"image{n:03}" for n in first.vokens]


@pytest.mark.parametrize("command_of", ["vokenize", "retrieve"])
def test_rows_of_a_bank_in_parts_are_read_with_that_bank(
    tiny: Path, folder: Path, tmp_path: Path, command_of: str
) -> None:
    places = []
    for part, first in (("b", 30), ("a", 0)):
        vectors = np.random.default_rng(first).standard_normal((30, 12))
        feats = save_feats(tmp_path / f"{part}.npy", vectors, first=first)
        places.append(str(tmp_path / f"bank-{part}.faiss"))
        command("build-index", feats, "-m", tiny / "run", "-o", places[-1])
    named = [word for place in places for word in ("--index", place)]
    command(command_of, folder / "t.txt", *named, "-k", 3, "-o", tmp_path / "v.jsonl")
    bank = vg.open_index(places, device="cpu")
    assert bank.ids[0] == "image030"
    rows = [row.to_dict() for row in vg.read(tmp_path / "v.jsonl", index=bank)]
    assert rows == [json.loads(line) for line in (tmp_path / "v.jsonl").read_bytes().splitlines()]
    for other in (vg.open_index(places[::-1], device="cpu"), vg.open_index(places[0])):
        with pytest.raises(vg.DataError, match="name the one that made it"):
            list(vg.read(tmp_path / "v.jsonl", index=other))


def test_a_table_of_vokens_has_the_columns_of_vg_show(
    tiny: Path, folder: Path, capfdbinary: Any
) -> None:
    for name in ("v.jsonl", "v2.jsonl", "r.jsonl", "h.jsonl"):
        heat = name == "h.jsonl"
        index = None if heat else tiny / "vg.faiss"
        columns = vg.read(folder / name, index=index)._columns()
        flags = [] if heat else ["--index", str(index)]
        assert run(["show", str(folder / name), *flags]) == 0
        shown = [line.split("\t") for line in capfdbinary.readouterr().out.decode().splitlines()]
        if heat:
            digits = [("-" if x is None else f"{x:.4f}") for x in columns["x"]]
            assert digits == [cells[2] for cells in shown]
            assert columns["image"] == [cells[1] for cells in shown]
            continue
        if name == "r.jsonl":
            shown = [cells for cells in shown if cells[2] != "-"]  # texts without images
            assert [*columns] == ["line", "rank", "row", "image", "score", "text"]
            named, at = ("line", "rank", "row", "image"), (0, 2, 3, 4)
        else:
            assert [*columns] == [
                "line",
                "token",
                "start",
                "end",
                "rank",
                "voken",
                "image",
                "score",
            ]
            named, at = ("line", "token", "start", "rank", "voken", "image"), (0, 1, 2, 4, 5, 6)
        found = [*zip(*(map(str, columns[key]) for key in named), strict=True)]
        assert found == [tuple(cells[place] for place in at) for cells in shown]
        assert len(found) > 20


@pytest.mark.parametrize("name", ["packed.npy", "many.npy/"])
def test_packed_vokens_are_arrays(folder: Path, name: str) -> None:
    found = vg.read(folder / name)
    assert isinstance(found, vg.Arrays)
    rows = [json.loads(line) for line in (folder / "v.jsonl").read_bytes().splitlines()]
    assert np.asarray(found["voken"]).tolist() == [v for row in rows for v in row["vokens"]]
    of = [number for number, row in enumerate(rows) for _ in row["vokens"]]
    assert np.asarray(found["row"]).tolist() == of
    assert np.array_equal(found["token"], np.load(folder / "packed.npy")[:, 0])


def test_features_maps_vectors_and_an_index_are_arrays(
    tiny: Path, folder: Path, tmp_path: Path
) -> None:
    cases: list[tuple[Path, str, str, Any, Any]] = [
        (tiny / "feats.npy", "image", "features", np.load(tiny / "feats.npy"), (60, 12)),
        (folder / "grid.npy", "image", "features", np.load(folder / "grid.npy"), None),
        (save_vectors(tmp_path / "w.npy"), "word", "vector", [*VECTORS.values()], None),
    ]
    for path, names, name, expected, shape in cases:
        found = vg.read(path)
        assert isinstance(found, vg.Arrays)
        assert [*found] == [names, name]
        assert np.array_equal(found[name], np.asarray(expected, np.float32))
        assert shape in (None, np.shape(found[name]))
        assert len(found[names]) == len(expected)
    index = vg.read(tiny / "vg.faiss")
    assert isinstance(index, vg.Arrays)
    assert np.linalg.norm(index["vector"], axis=1) == pytest.approx(np.ones(60), abs=1e-6)
    assert index["image"] == [f"image{n:03}" for n in range(60)]


def test_regions_are_rows_of_arrays(tmp_path: Path) -> None:
    from tests.tiny.visual import save_regions

    path = save_regions(tmp_path / "regions.npy")
    rows = [*vg.read(path)]
    array = np.load(path)
    assert np.array_equal(np.concatenate([row["features"] for row in rows]), array)
    listed = path.with_suffix(".regions.jsonl").read_bytes().splitlines()
    assert [row["image"] for row in rows] == [json.loads(line)["image"] for line in listed]
    assert [row["boxes"].tolist() for row in rows] == [json.loads(x)["boxes"] for x in listed]


def test_a_run_has_its_records(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    records = [{"step": 50, "loss": 1.5}, {"step": 100, "loss": 1.25, "rate": 0.5}]
    lines = "".join(json.dumps(one) + "\n" for one in records)
    (tmp_path / "run" / "metrics.jsonl").write_text(lines)
    save_run(tmp_path / "run", "lm", {}, {"seed": 3})
    found = vg.read(tmp_path / "run")
    assert isinstance(found, vg.Rows)
    assert [*found] == records
    assert (found.manifest["kind"], found.manifest["seed"]) == ("lm", 3)
    assert found._columns() == {"step": [50, 100], "loss": [1.5, 1.25], "rate": [None, 0.5]}


def test_other_rows_and_texts_are_dictionaries(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"image": "a", "text": "b"}\n')
    (tmp_path / "c.csv").write_text('image,text\na,"b, c"\n')
    (tmp_path / "c.txt").write_text("one\ntwo\n")
    assert [*vg.read(tmp_path / "c.jsonl")] == [{"image": "a", "text": "b"}]
    assert [*vg.read(tmp_path / "c.csv")] == [{"image": "a", "text": "b, c"}]
    assert [*vg.read(tmp_path / "c.txt")] == [{"text": "one"}, {"text": "two"}]


def test_damage_and_other_banks_are_refused(tiny: Path, folder: Path, tmp_path: Path) -> None:
    for name, why in (
        ("no.jsonl", "cannot be read: No such file"),
        ("no.npy", "does not exist"),
        ("no.faiss", "does not exist"),
        ("-", "standard input: is read twice"),
    ):
        with pytest.raises(vg.DataError, match=why):
            vg.read(name)
    feats = save_feats(tmp_path / "f.npy")
    data = bytearray(feats.read_bytes())
    data[-1] ^= 1
    feats.write_bytes(data)
    with pytest.raises(vg.DataError, match="sha256"):
        vg.read(feats)
    rows = (folder / "v.jsonl").read_text().replace('"vokens":[', '"vokens":[5,', 1)
    (tmp_path / "v.jsonl").write_text(rows)
    with pytest.raises(vg.DataError, match=r'v\.jsonl:\d+: "vokens" has \d+ entries'):
        list(vg.read(tmp_path / "v.jsonl"))
    other = tmp_path / "o.npy"
    save_feats(other, np.random.default_rng(9).standard_normal((40, 12)), first=20)
    command("build-index", other, "-m", tiny / "run", "-o", tmp_path / "other.faiss")
    with pytest.raises(vg.DataError, match=r"was made with vg\.(ids|faiss) of sha256"):
        vg.read(folder / "v.jsonl", index=tmp_path / "other.faiss")


def test_rows_draw_themselves(tiny: Path, folder: Path) -> None:
    shown = {"index": tiny / "vg.faiss", "images": folder / "photos"}
    for name in ("v.jsonl", "v2.jsonl", "r.jsonl"):
        rows = vg.read(folder / name, **shown)
        drawn = rows._repr_html_()
        assert drawn.count("<p dir") >= 8
        assert "data:image/webp;base64," in drawn
        assert rows.head(1)[0]._repr_html_().count("<style>") == 1
    heat = vg.read(folder / "h.jsonl", images=folder / "photos")._repr_html_()
    assert heat.count("data:image/webp;base64,") == 8
    bare = vg.read(folder / "v.jsonl")._repr_html_()
    assert "data:" not in bare
    assert '<span class="vg-gone">' in bare, "without a bank a picture is its number"
    assert vg.read(folder / "q.jsonl")._repr_html_() is None


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_tables_of_other_libraries(tiny: Path, folder: Path, library: str) -> None:
    pytest.importorskip(library, reason="the extra vgtools[test-readers] is not installed")
    rows = vg.read(folder / "v.jsonl", index=tiny / "vg.faiss")
    frame = getattr(rows, f"to_{library}")()
    assert list(frame.columns) == [*rows._columns()]
    assert list(frame["voken"]) == rows._columns()["voken"]
    feats = getattr(vg.read(tiny / "feats.npy"), f"to_{library}")()
    assert list(feats["image"]) == [f"image{n:03}" for n in range(60)]
    stacked = np.stack([np.asarray(one) for one in feats["features"]])
    assert np.array_equal(stacked, np.load(tiny / "feats.npy"))


def test_a_library_that_is_missing_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pandas", "polars"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
        rows = vg.read(folder / "v.jsonl")
        with pytest.raises(vg.DataError, match=f"to_{name} needs {name}: pip install") as caught:
            getattr(rows, f"to_{name}")()
        assert caught.value.code == 69


@pytest.mark.parametrize("name", ["z.jsonl.gz", "z.jsonl.gz/", "z.jsonl.zst"])
def test_compressed_rows_at_a_url_are_read_with_their_manifest(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "t.txt").write_text("".join(f"{line}\n" for line in LINES))
    command(
        "vokenize", tmp_path / "t.txt", "--index", tiny / "vg.faiss", "-o", f"{tmp_path}/{name}"
    )
    here, there = vg.read(f"{tmp_path}/{name}"), vg.read(f"file://{tmp_path}/{name}")
    assert isinstance(there, vg.Rows)
    assert isinstance(here, vg.Rows)
    assert there.manifest == here.manifest
    assert there.manifest["kind"] == "vokens"
    assert [row.to_dict() for row in there] == [row.to_dict() for row in here]
