"""`vg build-index --emb`: a bank that was embedded elsewhere is searched like one of vg's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.tiny.dual import save_dual
from tests.tiny.images import save_photo
from tests.tiny.retriever import save_retriever
from vgtools.cli import run
from vgtools.io.arrays import Array
from vgtools.io.files import sha256_file

CPU = ["--device", "cpu"]
TEXT = "a red dog\n\ndogs of a cat\ncat\n"


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dual encoder, its embeddings of 12 photos, and vg's own index of them."""
    folder = tmp_path_factory.mktemp("foreign")
    save_dual(folder / "model", "clip")
    for number in range(12):
        save_photo(folder / "photos" / f"{number:02}.png", number)
    how = ["-b", str(folder / "model"), *CPU, "-q", "-o", str(folder / "feats.npy")]
    assert run(["extract-image-feats", str(folder / "photos"), *how]) == 0
    assert run(["build-index", str(folder / "feats.npy"), *model(folder), "-q"]) == 0
    (folder / "t.txt").write_text(TEXT)
    return folder


def model(folder: Path, out: str = "own.faiss") -> list[str]:
    return ["-m", str(folder / "model"), "-o", str(folder / out), *CPU]


def build(bank: Path, out: Path, emb: Path, *more: object) -> int:
    how = ["--emb", emb, *more, "-m", bank / "model", "-o", out, *CPU]
    return run(["build-index", *map(str, how)])


def save(folder: Path, array: Array, ids: list[str] | None = None) -> list[Path]:
    """Write embeddings and their ids; return the arguments that name them."""
    np.save(folder / "x.npy", array)
    names = [f"{number:02}.png" for number in range(len(array))] if ids is None else ids
    (folder / "x.txt").write_text("".join(f"{name}\n" for name in names))
    return [folder / "x.npy", Path("--ids"), folder / "x.txt"]


def rows(bank: Path, command: str, index: Path) -> str:
    out = index.with_name(f"{command}.jsonl")
    flags = ["--index", str(index), *CPU, "-q", "-o", str(out), "--restart"]
    assert run([command, str(bank / "t.txt"), *flags]) == 0
    return out.read_text()


def manifest(index: Path) -> dict[str, Any]:
    return json.loads(index.with_suffix(".json").read_text())  # type: ignore[no-any-return]


def test_a_bank_of_another_tool_is_the_bank_of_vg(
    bank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = np.load(bank / "feats.npy")
    out = tmp_path / "vg.faiss"
    assert build(bank, out, *save(tmp_path, own)) == 0
    assert "12 images of 10 dimensions" in capsys.readouterr().err
    assert out.read_bytes() == (bank / "own.faiss").read_bytes()
    assert out.with_suffix(".ids").read_text() == (bank / "feats.ids").read_text()
    named, expected = manifest(out)["matcher"], manifest(bank / "own.faiss")["matcher"]
    assert named["fingerprint"] == expected["fingerprint"]
    for command in ("vokenize", "retrieve"):
        assert rows(bank, command, out) == rows(bank, command, bank / "own.faiss")
    assert build(bank, out, *save(tmp_path, own)) == 0
    assert "is up to date" in capsys.readouterr().err


def test_embeddings_that_vg_wrote_have_their_own_ids(
    bank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("feats.npy", "feats.ids", "feats.json", "feats.errors.jsonl"):
        (tmp_path / name).write_bytes((bank / name).read_bytes())
    feats, ids = tmp_path / "feats.npy", tmp_path / "feats.ids"
    assert build(bank, tmp_path / "a.faiss", feats, "--ids", ids) == 0
    other = tmp_path / "other.ids"
    other.write_text("".join(sorted(ids.read_text().splitlines(True), reverse=True)))
    capsys.readouterr()
    assert build(bank, tmp_path / "b.faiss", feats, "--ids", other) == 65
    assert f"its ids have sha256 {sha256_file(ids)}" in capsys.readouterr().err
    assert build(bank, tmp_path / "b.faiss", f"file://{feats}", "--ids", other) == 65
    assert f"its ids have sha256 {sha256_file(ids)}" in capsys.readouterr().err
    np.save(feats, np.load(feats)[::-1])
    assert build(bank, tmp_path / "b.faiss", feats, "--ids", ids) == 65
    assert "feats.npy" in capsys.readouterr().err
    assert not (tmp_path / "b.faiss").exists()


@pytest.mark.parametrize(("kind", "factor"), [("float16", 1.0), ("float32", 7.0)])
def test_embeddings_are_scaled_to_unit_length_and_it_is_said(
    bank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, factor: float
) -> None:
    unit = faiss.read_index(str(bank / "own.faiss")).reconstruct_n(0, 12)
    out = tmp_path / "vg.faiss"
    assert build(bank, out, *save(tmp_path, (unit * factor).astype(kind))) == 0
    found = faiss.read_index(str(out)).reconstruct_n(0, 12)
    np.testing.assert_allclose(found, unit, atol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    facts = manifest(out)["embeddings"]
    assert facts["dtype"] == kind
    np.testing.assert_allclose(facts["lengths"], factor, rtol=2e-3)
    said = capsys.readouterr().err
    assert ("of unit length" in said) == (factor == 1)
    assert (f"embeddings of {kind}, of lengths 7 to 7, scaled to 1" in said) == (factor == 7)


@pytest.mark.parametrize("nested", [True, False])
def test_the_folder_of_clip_retrieval_is_read_in_the_order_of_its_numbers(
    bank: Path, tmp_path: Path, nested: bool
) -> None:
    own = np.load(bank / "feats.npy")
    for part in (tmp_path / "img_emb", tmp_path / "metadata"):
        part.mkdir()
    # By name 10 comes before 2.
    for number, first, end in ((0, 0, 5), (2, 5, 6), (10, 6, 12)):
        place = ("img_emb/", "metadata/") if nested else ("", "")
        np.save(tmp_path / f"{place[0]}img_emb_{number}.npy", own[first:end].astype(np.float16))
        table = {
            "image_path": [f"{row:02}.png" for row in range(first, end)],
            "caption": ["a"] * (end - first),
        }
        parquet.write_table(pa.table(table), tmp_path / f"{place[1]}metadata_{number}.parquet")
    out = tmp_path / "vg.faiss"
    assert build(bank, out, tmp_path) == 0
    assert out.with_suffix(".ids").read_text() == (bank / "feats.ids").read_text()
    found = faiss.read_index(str(out)).reconstruct_n(0, 12)
    expected = faiss.read_index(str(bank / "own.faiss")).reconstruct_n(0, 12)
    np.testing.assert_allclose(found, expected, atol=1e-3)
    named = manifest(out)["inputs"]
    assert [Path(entry["path"]).name for entry in named][:3] == [
        "img_emb_0.npy",
        "img_emb_2.npy",
        "img_emb_10.npy",
    ]


def test_a_folder_without_a_part_is_refused(
    bank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(bank, tmp_path / "vg.faiss", tmp_path) == 66
    assert "holds no img_emb_0.npy" in capsys.readouterr().err
    for number in (0, 3):
        np.save(tmp_path / f"img_emb_{number}.npy", np.ones((2, 10), np.float32))
    table = pa.table({"image_path": ["a", "b"]})
    parquet.write_table(table, tmp_path / "metadata_0.parquet")
    np.save(tmp_path / "img_emb_03.npy", np.ones((2, 10), np.float32))
    assert build(bank, tmp_path / "vg.faiss", tmp_path) == 65
    assert "holds two files of one number among img_emb_0.npy, " in capsys.readouterr().err
    (tmp_path / "img_emb_03.npy").unlink()
    assert build(bank, tmp_path / "vg.faiss", tmp_path) == 66
    assert "lacks metadata_3.parquet" in capsys.readouterr().err
    parquet.write_table(table.slice(1), tmp_path / "metadata_3.parquet")
    assert build(bank, tmp_path / "vg.faiss", tmp_path) == 65
    said = capsys.readouterr().err
    assert "metadata_3.parquet:1: duplicate id 'b' (first in row 2 of " in said
    parquet.write_table(pa.table({"image_path": ["c"]}), tmp_path / "metadata_3.parquet")
    assert build(bank, tmp_path / "vg.faiss", tmp_path) == 65
    said = capsys.readouterr().err
    assert "1 id for 2 rows of " in said
    assert "row 2 is the first without the other" in said
    parquet.write_table(pa.table({"url": ["c", "d"]}), tmp_path / "metadata_3.parquet")
    assert build(bank, tmp_path / "vg.faiss", tmp_path) == 65
    assert 'metadata_3.parquet:1: the key "image" is missing' in capsys.readouterr().err


def vectors_of(bank: Path, count: int = 12) -> Array:
    return faiss.read_index(str(bank / "own.faiss")).reconstruct_n(0, count)  # type: ignore[no-any-return]


def test_the_names_of_one_faiss_file_come_in_several_files(
    bank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = faiss.IndexFlatIP(10)
    index.add(vectors_of(bank))
    faiss.write_index(index, str(tmp_path / "image.index"))
    names = (bank / "feats.ids").read_text().split()
    (tmp_path / "metadata").mkdir()
    for number, part in enumerate((names[:12], ["more.png"])):
        table = pa.table({"image_path": part})
        parquet.write_table(table, tmp_path / f"metadata/metadata_{number}.parquet")
    out = tmp_path / "vg.faiss"
    given = [tmp_path / "image.index", "--ids", tmp_path / "metadata"]
    assert build(bank, out, *given) == 65
    assert "metadata_1.parquet: 13 ids for 12 rows of " in capsys.readouterr().err
    for number, part in enumerate((names[:5], names[5:])):
        table = pa.table({"image_path": part})
        parquet.write_table(table, tmp_path / f"metadata/metadata_{number}.parquet")
    assert build(bank, out, *given) == 0
    assert out.with_suffix(".ids").read_text().split() == names


@pytest.mark.parametrize("kind", [faiss.IndexFlatIP, faiss.IndexFlatL2])
def test_exact_vectors_of_a_faiss_file_are_read(bank: Path, tmp_path: Path, kind: Any) -> None:
    save(tmp_path, vectors_of(bank))
    index = kind(10)
    index.add(3 * vectors_of(bank))
    faiss.write_index(index, str(tmp_path / "image.index"))
    out = tmp_path / "vg.faiss"
    assert build(bank, out, tmp_path / "image.index", "--ids", tmp_path / "x.txt") == 0
    found = faiss.read_index(str(out))
    assert found.metric_type == faiss.METRIC_INNER_PRODUCT
    np.testing.assert_allclose(found.reconstruct_n(0, 12), vectors_of(bank), atol=1e-6)
    assert rows(bank, "vokenize", out) == rows(bank, "vokenize", bank / "own.faiss")


@pytest.mark.parametrize("factory", ["IVF2,Flat", "IVF2,SQ8", "HNSW4"])
def test_another_faiss_index_is_taken_as_it_is(
    bank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], factory: str
) -> None:
    save(tmp_path, vectors_of(bank))
    index = faiss.index_factory(10, factory, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors_of(bank))
    index.add(vectors_of(bank))
    faiss.write_index(index, str(tmp_path / "x.faiss"))
    out = tmp_path / "vg.faiss"
    given = [tmp_path / "x.faiss", "--ids", tmp_path / "x.txt"]
    assert build(bank, out, *given) == 0
    assert "embeddings of faiss, of " in capsys.readouterr().err
    assert out.read_bytes() == (tmp_path / "x.faiss").read_bytes()
    assert manifest(out)["nprobe"] == (2 if "IVF" in factory else None)
    if factory != "IVF2,SQ8":  # all lists are searched: exact
        assert rows(bank, "vokenize", out) == rows(bank, "vokenize", bank / "own.faiss")
    assert build(bank, out, *given, "--factory", "IVF2,SQ8") == 2
    assert "holds no exact vectors to choose from" in capsys.readouterr().err


def test_faiss_files_that_would_give_wrong_images_are_refused(
    bank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unit = vectors_of(bank)
    save(tmp_path, unit)
    out = tmp_path / "vg.faiss"
    given = [tmp_path / "x.faiss", "--ids", tmp_path / "x.txt"]

    def saved(index: Any, factor: float = 1, ids: Array | None = None) -> int:
        index.train(unit)
        if ids is None:
            index.add(unit * np.float32(factor))
        else:
            index.add_with_ids(unit, ids)
        faiss.write_index(index, str(given[0]))
        return build(bank, out, *given)

    def made(factory: str, metric: int = faiss.METRIC_INNER_PRODUCT) -> Any:
        return faiss.index_factory(10, factory, metric)

    assert saved(made("IVF2,Flat", faiss.METRIC_L2)) == 65
    assert "is not an index of inner products" in capsys.readouterr().err
    assert saved(made("IVF2,Flat"), ids=np.arange(12) + 5) == 65
    assert "has numbers of its own" in capsys.readouterr().err
    assert saved(made("IDMap,Flat"), ids=np.arange(12)) == 65
    assert "has numbers of its own" in capsys.readouterr().err
    assert saved(made("HNSW4"), factor=7) == 65
    assert "holds vectors of length 7, expected 1" in capsys.readouterr().err
    if hasattr(faiss, "IndexFlatIPPanorama"):  # since 1.13
        assert saved(faiss.IndexFlatIPPanorama(10, 2)) == 65
        assert "keeps its vectors in an order of its own" in capsys.readouterr().err
    lists = made("IVF2,Flat")
    disk = faiss.OnDiskInvertedLists(2, lists.code_size, str(tmp_path / "x.lists"))
    lists.replace_invlists(disk)
    assert saved(lists) == 65
    assert f"its lists are in another file, {tmp_path / 'x.lists'}" in capsys.readouterr().err
    Path(given[0]).write_bytes(b"IxFI" + bytes(40))
    assert build(bank, out, *given) == 65
    capsys.readouterr()
    assert not out.exists()


def damaged(row: int, value: float) -> Array:
    array = np.ones((12, 10), np.float32)
    array[row] = value
    return array


@pytest.mark.parametrize(
    ("array", "ids", "code", "message"),
    [
        (damaged(7, np.nan), None, 65, "x.npy: row 7 (07.png) is NaN, infinite, all zero"),
        (damaged(3, 0), None, 65, "x.npy: row 3 (03.png) is NaN, infinite, all zero"),
        (damaged(3, 3e38), None, 65, "x.npy: row 3 (03.png) is NaN, infinite, all zero"),
        (np.full((2, 10), np.inf, np.float16), None, 65, "x.npy: row 0 (00.png) is NaN, infinite"),
        (np.ones((2, 11), np.float32), None, 65, "x.npy: has embeddings of width 11, --matcher"),
        (np.ones((2, 10), np.int8), None, 65, "expected float16 or float32, got int8"),
        (np.ones((2, 3, 10), np.float32), None, 65, "expected 2 dimensions"),
        (np.ones((0, 10), np.float32), None, 65, "holds no embedding"),
        (np.ones((3, 10), np.float32), ["a", "b", "a"], 65, "x.txt:3: duplicate id 'a' (first in"),
        (np.ones((3, 10), np.float32), ["a", "", "b"], 65, "x.txt:2: "),
        (np.ones((2, 10), np.float32), ["", "a", "b"], 65, "x.txt:1: "),
        (np.ones((2, 0), np.float32), None, 65, "expected numbers in its rows, got none"),
        (np.ones((3, 10), np.float32), ["a", "b"], 65, "2 ids for 3 rows of"),
        (np.ones((1, 10), np.float32), ["a", "b"], 65, "row 2 is the first without the other"),
    ],
)
def test_what_cannot_be_searched_is_refused_with_its_row(
    bank: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    array: Array,
    ids: list[str] | None,
    code: int,
    message: str,
) -> None:
    assert build(bank, tmp_path / "vg.faiss", *save(tmp_path, array, ids)) == code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "vg.faiss").exists()


def test_ids_come_from_rows_and_columns(
    bank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = save(tmp_path, np.load(bank / "feats.npy"))
    names = (bank / "feats.ids").read_text().split()
    parquet.write_table(pa.table({"file": names}), tmp_path / "x.parquet")
    (tmp_path / "x.jsonl").write_text("".join(f'{{"image":"{name}"}}\n' for name in names))
    for number, ids in enumerate(("x.jsonl", "x.parquet#image=file")):
        out = tmp_path / f"{number}.faiss"
        assert build(bank, out, given[0], "--ids", tmp_path / ids) == 0
        assert out.with_suffix(".ids").read_text().split() == names
    (tmp_path / "x.ndjson").write_text((tmp_path / "x.jsonl").read_text())
    assert build(bank, tmp_path / "n.faiss", given[0], "--ids", tmp_path / "x.ndjson") == 65
    assert "x.ndjson:1: holds rows of JSON" in capsys.readouterr().err


def test_flags_that_do_not_go_together(
    bank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = save(tmp_path, np.ones((2, 10), np.float32))
    for args, message in (
        ([], "FEATS"),
        (["--emb", given[0]], "needs --ids"),
        ([bank / "feats.npy", "--ids", given[2]], "without FEATS"),
    ):
        assert run(["build-index", *map(str, args), *model(bank, "no.faiss")]) == 2
        assert message in capsys.readouterr().err


def test_a_retriever_of_feature_maps_takes_embeddings(bank: Path, tmp_path: Path) -> None:
    from tests.tiny import save_encoder

    save_encoder(tmp_path / "encoder")
    save_retriever(tmp_path / "model", tmp_path / "encoder")
    info = json.loads((tmp_path / "model/run.json").read_text())
    width = info["retriever"]["dim"]
    array = np.random.default_rng(0).normal(size=(9, width)).astype(np.float32)
    assert build(tmp_path, tmp_path / "vg.faiss", *save(tmp_path, array)) == 0
    assert len(rows(bank, "retrieve", tmp_path / "vg.faiss").splitlines()) == 4


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty store in memory, and an empty cache of the copies of its objects."""
    import fsspec

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    return system


@pytest.mark.parametrize("place", ["memory://bank/", "file"])
def test_a_folder_of_clip_retrieval_at_a_url_is_the_folder(
    bank: Path, tmp_path: Path, store: Any, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own = np.load(bank / "feats.npy")
    folder = tmp_path / "bank"
    (folder / "img_emb").mkdir(parents=True)
    (folder / "metadata").mkdir()
    for number, first, end in ((2, 0, 5), (10, 5, 12)):
        np.save(folder / f"img_emb/img_emb_{number}.npy", own[first:end])
        names = [f"{row:02}.png" for row in range(first, end)]
        table = pa.table({"image_path": names})
        parquet.write_table(table, folder / f"metadata/metadata_{number}.parquet")
    url = f"{folder.as_uri()}/" if place == "file" else place
    if place != "file":
        store.put(f"{folder}/", "/bank/", recursive=True)
    out = tmp_path / "vg.faiss"

    def call(emb: str, *more: str) -> int:
        return run(["build-index", "--emb", emb, *more, *model(bank, str(out))])

    assert call(url) == 0
    assert out.read_bytes() == (bank / "own.faiss").read_bytes()
    assert out.with_suffix(".ids").read_text() == (bank / "feats.ids").read_text()
    assert manifest(out)["inputs"][0] == {"path": f"{url}img_emb/img_emb_2.npy"}
    # Each file may also be named by itself.
    (tmp_path / "x.txt").write_text((bank / "feats.ids").read_text())
    (folder / "x.npy").write_bytes((bank / "feats.npy").read_bytes())
    store.put(f"{folder}/x.npy", "/bank/x.npy")
    store.put(f"{tmp_path}/x.txt", "/bank/x.txt")
    assert call(f"{url}x.npy") == 2
    assert "needs --ids" in capsys.readouterr().err
    assert call(f"{url}x.npy", "--ids", "memory://bank/x.txt", "--restart") == 0
    assert out.read_bytes() == (bank / "own.faiss").read_bytes()
    # An object that has changed since is fetched again.
    store.pipe_file("/bank/x.txt", b"".join(b"other%d\n" % row for row in range(12)))
    assert call(f"{url}x.npy", "--ids", "memory://bank/x.txt") == 0
    assert out.with_suffix(".ids").read_text().startswith("other0\n")


def test_a_url_that_holds_no_bank_is_named_with_the_way_out(
    bank: Path, tmp_path: Path, store: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "vg.faiss"
    buffer = tmp_path / "x.npy"
    np.save(buffer, damaged(7, np.nan))
    store.put(str(buffer), "/bank/x.npy")
    store.pipe_file("/bank/cut.npy", buffer.read_bytes()[:300])
    store.pipe_file("/bank/page", b"<!DOCTYPE html>")
    store.pipe_file("/bank/image.index", b"IxFI" + bytes(40))
    store.pipe_file("/bank/x.txt", b"".join(b"%02d.png\n" % row for row in range(12)))
    store.pipe_file("/bank/twice.txt", b"a\na\n")
    names = ["--ids", "memory://bank/x.txt"]
    for emb, more, code, message in (
        ("x.npy", names, 65, "memory://bank/x.npy: row 7 (07.png) is NaN"),
        ("x.npy", ["--ids", "memory://bank/twice.txt"], 65, "memory://bank/twice.txt:2: duplicate"),
        ("cut.npy", names, 65, "memory://bank/cut.npy: "),
        ("page", names, 65, "memory://bank/page: is a page of a web server"),
        ("image.index", names, 65, "memory://bank/image.index: is not a readable faiss index"),
        ("missing.npy", names, 66, "memory://bank/missing.npy: does not exist"),
        ("", [], 66, "memory://bank/: holds no img_emb_0.npy"),
        ("none/", [], 66, "memory://bank/none/: holds no img_emb_0.npy"),
    ):
        given = ["build-index", "--emb", f"memory://bank/{emb}", *more]
        assert run([*given, *model(bank, str(out))]) == code, emb
        assert message in capsys.readouterr().err
    assert not out.exists()
