"""Region features of others: TSV and npy."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vgtools import cli
from vgtools.images.boxes import placeholder_confidence
from vgtools.images.regions import open_regions
from vgtools.io.artifact import read_manifest
from vgtools.io.errors import Exit
from vgtools.io.files import sha256_file


def b64(values: Any, dtype: str) -> str:
    return base64.b64encode(np.asarray(values).astype(dtype).tobytes()).decode()


def lxmert(image: str, features: Any, regions: Any, **changes: str) -> str:
    count = len(regions)
    row = {
        "img_id": image, "img_h": "50", "img_w": "100", "objects_id": b64(range(count), "<i8"),
        "objects_conf": b64([0.5] * count, "<f4"), "attrs_id": b64([0] * count, "<i8"),
        "attrs_conf": b64([0] * count, "<f4"),
        "num_boxes": str(count), "boxes": b64(regions, "<f4"), "features": b64(features, "<f4"),
    }  # fmt: skip
    return "\t".join((row | changes).values()) + "\n"


BOXES = [[0, 0, 50, 25], [10, 5, 100, 50]]
FEATURES = np.arange(8).reshape(2, 4) / 2


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def regions(*args: str) -> int:
    return cli.run(["prepare", "regions", *args, "-o", "r.npy"])


def test_a_tsv_of_lxmert(capfd: pytest.CaptureFixture[str]) -> None:
    Path("a.tsv").write_text(
        lxmert("COCO_1", FEATURES, BOXES) + lxmert("COCO_2", FEATURES + 1, BOXES)
    )
    Path("names.txt").write_text("dog\ncat\n")
    assert regions("a.tsv", "--labels", "names.txt", "--suffix", ".jpg") == Exit.OK
    assert "regions of 2 images, 4 numbers each, in r.npy\n" in capfd.readouterr().err
    found = open_regions("r.npy")
    assert found.images == ["COCO_1.jpg", "COCO_2.jpg"]
    own = found.of("COCO_2.jpg")
    assert (own.features.tolist(), own.boxes.tolist()) == ((FEATURES + 1).tolist(), BOXES)
    assert (own.confidence.tolist(), own.labels, own.width, own.height) == (
        [0.5, 0.5],
        ["dog", "cat"],
        100,
        50,
    )
    assert found.manifest["backbone"]["ref"] == "bottom-up-attention"
    fingerprint = found.manifest["backbone"]["fingerprint"]
    assert regions("a.tsv", "--backbone", "other", "--restart", "-q") == Exit.OK
    assert open_regions("r.npy").manifest["backbone"]["fingerprint"] != fingerprint
    assert open_regions("r.npy").of("COCO_1").labels is None


def test_a_tsv_of_bottom_up_attention() -> None:
    Path("a.tsv").write_text(
        "\t".join(["7", "100", "50", "2", b64(BOXES, "<f4"), b64(FEATURES, "<f4")]) + "\n"
    )
    assert regions("a.tsv", "--dtype", "float16", "-q") == Exit.OK
    own = open_regions("r.npy").of("7")
    assert (own.features.tolist(), own.boxes.tolist(), own.width) == (FEATURES.tolist(), BOXES, 100)
    np.testing.assert_allclose(
        own.confidence, placeholder_confidence(own.boxes, 100, 50), atol=1e-6
    )


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("a\tb\n", "a.tsv:2: has 2 columns, expected 10 (LXMERT) or 6 (bottom-up attention)"),
        (lxmert("b", FEATURES, BOXES, boxes="!!"), '"boxes" is not base64'),
        (
            lxmert("b", FEATURES, BOXES, boxes="AAAA"),
            '"boxes" holds 3 bytes, expected 8 numbers of 4 bytes',
        ),
        (lxmert("b", FEATURES[:, :3].ravel()[:5], BOXES), '"features" holds 5 numbers for 2 boxes'),
        (lxmert("b", FEATURES[:, :3], BOXES), "its features have 3 channels, those before 4"),
        (lxmert("b", FEATURES * np.nan, BOXES), '"features" contains NaN or infinity'),
        (lxmert("b", FEATURES, [[0, 0, 500, 5], [0, 0, 5, 5]]), "leaves its picture of 100×50"),
        (lxmert("b", FEATURES, BOXES, img_h="x"), "invalid literal"),
        (lxmert("b", FEATURES, BOXES, img_h="9" * 30), f"a picture of 100×{'9' * 30} with 2"),
        (lxmert("a", FEATURES, BOXES), "duplicate image 'a' (first on line 1)"),
    ],
)
def test_bad_lines_are_named_or_noted(
    line: str, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("a.tsv").write_text(lxmert("a", FEATURES, BOXES) + line)
    assert regions("a.tsv") == Exit.DATA
    assert why in capfd.readouterr().err
    assert not Path("r.npy").exists()
    assert regions("a.tsv", "--on-error", "skip") == Exit.OK
    assert "left out: 1" in capfd.readouterr().err
    assert open_regions("r.npy").images == ["a"]
    (row,) = (json.loads(text) for text in Path("r.errors.jsonl").read_text().splitlines())
    assert (row["line"], why.removeprefix("a.tsv:2: ") in row["error"]) == (2, True)


_GAUSS = np.random.default_rng(0).standard_normal((2, 8192))
_UNIFORM = np.random.default_rng(1).uniform(0.5, 4, (2, 8192))
_FEATURES = {
    "normal": _GAUSS,
    "rectified": np.maximum(_GAUSS, 0),
    "few are not 0": np.maximum(_GAUSS - 1, 0),
    "from 0.5 to 4": _UNIFORM,
    "two decimals": _UNIFORM.round(2),
    "of unit length": _GAUSS / 45,
    "probabilities": np.exp(4 * _GAUSS) / np.exp(4 * _GAUSS).sum(1, keepdims=True),
    "large": 100 * _GAUSS,
}


def _bytes(values: Any, dtype: str) -> bytes:
    if dtype == "bfloat16":  # the upper half of a float32
        return np.asarray(values, "<f4").reshape(-1, 1).view("<u2")[:, 1].tobytes()
    return np.asarray(values).astype(dtype).tobytes()


def _holding(features: bytes) -> str:
    encoded = base64.b64encode(features).decode()
    return lxmert("a", FEATURES, BOXES).replace(b64(FEATURES, "<f4"), encoded)


@pytest.mark.parametrize("dtype", ["<f2", "bfloat16", "<f8"])
@pytest.mark.parametrize("values", _FEATURES.values(), ids=_FEATURES)
def test_features_of_another_type_are_refused(
    values: Any, dtype: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """They would be read as others of another width."""
    for before in ("<f8", "<f4", "<f2"):
        Path("a.tsv").write_text(_holding(_bytes(values.astype(before), dtype)))
        assert regions("a.tsv") == Exit.DATA
        assert "expected base64 of float32" in capfd.readouterr().err


@pytest.mark.parametrize("values", _FEATURES.values(), ids=_FEATURES)
def test_float32_is_taken_whatever_it_was_before(
    values: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    for before in ("<f8", "<f4", "bfloat16", "<f2"):
        if before == "bfloat16":
            given = (values.astype("<f4").view("<u4") & np.uint32(0xFFFF0000)).view("<f4")
        else:
            given = values.astype(before).astype("<f4")
        Path("a.tsv").write_text(lxmert("a", given, BOXES))
        assert regions("a.tsv", "--restart") == Exit.OK
        assert "regions of 1 image, 8,192 numbers each, in r.npy\n" in capfd.readouterr().err
        np.testing.assert_array_equal(open_regions("r.npy").of("a").features, given)


def test_float32_of_few_different_values_is_taken() -> None:
    one = np.eye(2048)[[1, 3]]
    for values in (one, np.full((2, 2048), 0.1), np.zeros((2, 2048)), np.ones((2, 2048))):
        Path("a.tsv").write_text(lxmert("a", values, BOXES))
        assert regions("a.tsv", "--restart", "-q") == Exit.OK


def test_whole_numbers_of_64_bits_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    whole = np.random.default_rng(0).integers(0, 5, (2, 2048))
    Path("a.tsv").write_text(_holding(_bytes(whole, "<f8")))
    assert regions("a.tsv") == Exit.DATA
    assert 'a.tsv:1: "features" holds numbers of 64 bits' in capfd.readouterr().err


def test_arrays_and_their_boxes(capfd: pytest.CaptureFixture[str]) -> None:
    array = np.random.default_rng(0).standard_normal((3, 2, 4)).astype(np.float32)
    rows = [
        {"image": f"i{n}", "width": 100, "height": 50, "boxes": BOXES, "confidence": [0.1, 0.9]}
        for n in range(3)
    ]
    Path("b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for given in (array, array.reshape(6, 4).astype(np.float64)):
        np.save("f.npy", given)
        assert regions("f.npy", "b.jsonl", "-q", "--restart") == Exit.OK
        found = open_regions("r.npy")
        np.testing.assert_array_equal(found.of("i2").features, array[2])
        assert found.of("i1").confidence.tolist() == pytest.approx([0.1, 0.9])
    np.save("f.npy", array[:2])
    assert regions("f.npy", "b.jsonl", "--restart") == Exit.DATA
    assert (
        "b.jsonl:3: has 2 boxes, which does not match f.npy of shape (2, 2, 4)"
        in capfd.readouterr().err
    )
    np.save("f.npy", np.concatenate([array, array]))
    assert regions("f.npy", "b.jsonl", "--restart") == Exit.DATA
    assert "f.npy: has 12 regions, b.jsonl has boxes for 6" in capfd.readouterr().err
    np.save("f.npy", np.array([{"boxes": 1}], object), allow_pickle=True)
    assert regions("f.npy", "b.jsonl", "--restart") == Exit.DATA
    assert "Python objects, which could run code" in capfd.readouterr().err
    assert regions("f.npy") == Exit.USAGE
    assert regions("a.tsv", "b.jsonl") == Exit.USAGE


def test_arrays_of_vg_have_names_that_boxes_could_contradict(
    capfd: pytest.CaptureFixture[str],
) -> None:
    row = {"image": "b", "width": 100, "height": 50, "boxes": [BOXES[0]]}
    Path("b.jsonl").write_text(json.dumps(row) + "\n")
    Path("own.tsv").write_text(lxmert("a", FEATURES[:1], BOXES[:1]))
    assert cli.run(["prepare", "regions", "own.tsv", "-o", "own.npy"]) == Exit.OK
    assert regions("own.npy", "b.jsonl") == Exit.DATA
    assert "own.npy: was written by vg" in capfd.readouterr().err
    Path("own.json").unlink()
    assert regions("own.npy", "b.jsonl") == Exit.OK


def test_other_names_of_the_objects_are_other_settings() -> None:
    Path("a.tsv").write_text(lxmert("COCO_1", FEATURES, BOXES))
    Path("names.txt").write_text("dog\ncat\n")
    assert regions("a.tsv", "--labels", "names.txt") == Exit.OK
    digest = read_manifest("r.npy")["config"]["labels"]
    assert digest == sha256_file("names.txt")


@pytest.mark.parametrize(
    ("features", "why"),
    [
        (b64(np.full(8, 0x3FD3333360000000).view("<f8"), "<f8"), "not of float64"),
        (b64(np.full((2, 4), np.nan), "<f4"), '"features" contains NaN or inf'),
    ],
)
def test_a_file_without_a_good_line_names_the_first_fault(
    features: str, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    line = lxmert("COCO_1", FEATURES, BOXES)
    Path("a.tsv").write_text(line.replace(b64(FEATURES, "<f4"), features))
    assert regions("a.tsv") == Exit.DATA
    error = capfd.readouterr().err
    assert "a.tsv:1: " in error
    assert why in error
