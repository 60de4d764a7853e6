"""A bank in parts: what `vg vokenize` and `vg retrieve` find in several indexes is that of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny import BACKBONE, save_feats, text
from vgtools.cli import run
from vgtools.io.artifact import open_features
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import dumps, write_manifest
from vgtools.text.retrieved import open_retrieved


@pytest.fixture(scope="module")
def parts(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Write the indexes of the first 23 images of the tiny bank, and of the others."""
    feats = np.load(tiny / "feats.npy")
    indexes = []
    for first, end in ((0, 23), (23, 60)):
        folder = tmp_path_factory.mktemp("part")
        path = save_feats(folder / "feats.npy", feats[first:end], first=first)
        indexes.append(folder / "vg.faiss")
        args = ["build-index", path, "-m", tiny / "run", "-o", indexes[-1], "--device", "cpu", "-q"]
        assert run([*map(str, args)]) == 0
    return indexes


def found(command: str, out: Path, source: Path, indexes: list[Path], *flags: object) -> Any:
    """Return what a command writes with a bank, and the manifest."""
    banks = [word for index in indexes for word in ("--index", index)]
    args = [command, source, *banks, "-o", out, "--device", "cpu", "-q", *flags]
    assert run([*map(str, args)]) == 0
    return out.read_bytes(), json.loads(out.with_suffix(".json").read_text())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "t.jsonl"
    rows = [{"text": line, "image": f"image{i % 60:03}"} for i, line in enumerate(text(90, 4))]
    path.write_bytes(b"".join(map(dumps, rows)))
    return path


@pytest.mark.parametrize(
    ("command", "flags"),
    [("vokenize", ["-k", 3]), ("retrieve", ["-k", 5, "--not-own"]), ("retrieve", ["--score"])],
)
def test_two_indexes_are_one_bank(
    tiny: Path, parts: list[Path], source: Path, tmp_path: Path, command: str, flags: list[Any]
) -> None:
    one, _ = found(command, tmp_path / "one.jsonl", source, [tiny / "vg.faiss"], *flags)
    two, manifest = found(command, tmp_path / "two.jsonl", source, parts, *flags)
    if "--score" in flags:
        rows = [json.loads(data) for data in (one, two)]
        assert {**rows[0], "index": ""} == {**rows[1], "index": ""}
    else:
        assert one == two
        assert manifest["count"] == 60
        assert [Path(name).name for name in manifest["index"]] == ["vg.faiss"] * 2
        assert found(command, tmp_path / "two.jsonl", source, parts, *flags)[0] == two
    turned = ["--index", parts[1], "--index", parts[0], "-o", tmp_path / "two.jsonl", "-q"]
    assert run([command, str(source), *map(str, turned), "--device", "cpu"]) == 0
    assert (tmp_path / "two.jsonl").read_bytes() != two or "--score" in flags


def test_images_of_a_bank_in_parts_find_their_features(
    tiny: Path, parts: list[Path], source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "r.jsonl"
    found("retrieve", out, source, parts, "-k", 2)
    feats = tiny / "feats.npy"
    opened = open_retrieved(str(out), open_features(feats), str(feats))
    images = [json.loads(line)["images"] or [-1, -1] for line in out.read_bytes().splitlines()]
    assert opened.rows.tolist() == images
    feats = parts[0].with_name("feats.npy")
    with pytest.raises(DataError, match="has no features"):
        open_retrieved(str(out), open_features(feats), str(feats))
    file = save_feats(tmp_path / "turned.npy", np.load(tiny / "feats.npy")[::-1])
    ids = file.with_suffix(".ids")
    ids.write_text("".join(f"image{i:03}\n" for i in range(59, -1, -1)))
    write_manifest(file, [file, ids], kind="image-features", backbone=BACKBONE)
    turned = open_features(file)
    opened = open_retrieved(str(out), turned, "turned.npy")
    assert opened.rows.tolist() == [[-1 if i < 0 else 59 - i for i in row] for row in images]
    parts[1].with_suffix(".ids").rename(tmp_path / "moved")
    try:
        with pytest.raises(DataError, match=r"whose ids .* do not exist"):
            open_retrieved(str(out), turned, "turned.npy")
    finally:
        (tmp_path / "moved").rename(parts[1].with_suffix(".ids"))


@pytest.mark.parametrize("command", ["vokenize", "retrieve"])
def test_an_image_in_two_parts_ends_the_command_before_it_writes(
    tiny: Path,
    parts: list[Path],
    source: Path,
    tmp_path: Path,
    command: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = save_feats(tmp_path / "f.npy", np.load(tiny / "feats.npy")[20:30], first=20)
    again = tmp_path / "again.faiss"
    args = ["build-index", file, "-m", tiny / "run", "-o", again, "--device", "cpu", "-q"]
    assert run([*map(str, args)]) == 0
    out = tmp_path / "rows.jsonl"
    banks = ["--index", parts[0], "--index", again]
    args = [command, source, *banks, "-o", out, "--device", "cpu", "-q"]
    assert run([*map(str, args)]) == Exit.DATA
    why = f"{again}: duplicate image 'image020', also in {parts[0]}; the parts of a bank share none"
    assert why in capsys.readouterr().err
    assert not [*tmp_path.glob("rows*")]


def test_an_index_of_captions_has_no_parts(
    tiny: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = source.with_name("c.jsonl")
    rows.write_text('{"image": "a", "text": "a dog"}\n')
    keys = source.with_name("k.jsonl")
    assert run(["build-index", str(rows), "--keywords", "2", "-o", str(keys), "-q"]) == 0
    args = ["retrieve", str(source), "--index", str(keys), "--index", str(tiny / "vg.faiss")]
    assert run(args) == 2
    assert "several are the parts of a bank of a matcher" in capsys.readouterr().err
