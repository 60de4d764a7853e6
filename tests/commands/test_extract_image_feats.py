"""`vg extract-image-feats` as a user runs it: files, exit codes, kills."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import timm
import torch
from PIL import Image
from pyarrow import parquet
from safetensors.torch import save_file
from torchvision.models import get_model

from tests.tiny.images import save_backbone, save_photo
from vgtools.cli import run
from vgtools.commands.extract_image_feats import extraction
from vgtools.images import decoding, featurizer
from vgtools.images.boxes import grid
from vgtools.images.extract import FeatureBatch, FeatureOutput
from vgtools.images.region_features import pool_regions, region_featurizer, whole_picture
from vgtools.images.regions import backbone_of, open_regions, regions_path
from vgtools.io.artifact import open_features, read_manifest
from vgtools.io.errors import Exit
from vgtools.io.files import open_npy

FILES = ("f.npy", "f.ids", "f.errors.jsonl")
REGION_FILES = (Path("f.npy"), regions_path("f.npy"), Path("f.errors.jsonl"))


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_backbone(tmp_path_factory.mktemp("backbone"))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in range(21):
        save_photo(tmp_path / f"photos/p{number}.png", number)
    return tmp_path / "photos"


def extract(
    source: Path | str, backbone: Path, *more: str | Path, output: str | Path = "f.npy"
) -> int:
    given = [source, "-b", backbone, "-o", output, "--device", "cpu", "--batch-size", 4, *more]
    return run(["extract-image-feats", *map(str, given)])


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def hashes() -> list[str]:
    return [hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in FILES]


def left() -> list[str]:
    """Return what lies around that should not."""
    return [p.name for p in Path().iterdir() if p.suffix in (".part", ".journal", ".lock", ".tmp")]


def test_a_directory_becomes_features_ids_and_a_manifest(
    photos: Path, backbone: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (photos / "notes.txt").touch()
    assert extract(photos, backbone) == Exit.OK
    out, err = capfd.readouterr()
    assert out == ""
    assert "f.npy: 21 x 96 float32 on cpu" in err
    assert "left out, not images by suffix: 1 .txt" in err
    features = open_features("f.npy")
    assert features.ids == [f"p{n}.png" for n in range(21)]
    assert features.array.shape == (21, 96)
    assert features.array.dtype == np.float32
    network = timm.create_model(f"local-dir:{backbone}", pretrained=True, num_classes=0).eval()
    preprocessing = timm.data.resolve_data_config({}, model=network)
    transform = timm.data.create_transform(**preprocessing)
    with torch.inference_mode():
        expected = network(
            torch.stack([transform(Image.open(photos / name)) for name in features.ids])
        )
    np.testing.assert_allclose(features.array, expected.numpy(), rtol=1e-3, atol=1e-5)
    manifest = features.manifest
    assert (manifest["kind"], manifest["rows"], manifest["dim"], manifest["pooling"]) == (
        "image-features",
        21,
        96,
        "mean",
    )
    assert manifest["backbone"]["ref"] == str(backbone)
    assert re.fullmatch("[0-9a-f]{64}", manifest["backbone"]["fingerprint"])
    assert manifest["backbone"]["preprocessing"]["input_size"] == [3, 64, 64]
    assert manifest["source"]["left_out"] == {".txt": 1}
    assert (manifest["errors"], Path("f.errors.jsonl").read_bytes(), left()) == (0, b"", [])


def test_hidden_files_of_a_directory_are_counted(
    photos: Path, backbone: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in (".ipynb_checkpoints/p1-checkpoint.png", "._p1.png"):
        (photos / name).parent.mkdir(exist_ok=True)
        (photos / name).write_bytes((photos / "p1.png").read_bytes())
    assert extract(photos, backbone) == Exit.OK
    err = capfd.readouterr().err
    assert "f.npy: 21 x 96 float32" in err
    assert "left out: 2 hidden files" in err
    assert "not images by suffix" not in err


def test_every_source_gives_the_same_bytes(
    photos: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert extract(photos, backbone, "-q") == Exit.OK
    expected = hashes()
    names = Path("f.ids").read_text().splitlines()
    (photos / "list.txt").write_text("".join(f"{n}\n" for n in names))
    rows = "".join(json.dumps({"image": n, "path": f"photos/{n}"}) + "\n" for n in names)
    Path("images.jsonl").write_text(rows)
    with tarfile.open("photos.tar.gz", "w:gz") as tar:
        for name in names:
            tar.add(photos / name, name)
    for source in (photos / "list.txt", "images.jsonl", "photos.tar.gz", "-"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(rows.encode())))
        assert extract(source, backbone, "-q", "--restart", "--workers", "3") == Exit.OK
        assert hashes() == expected, source


def test_float16_grid_and_limit(photos: Path, backbone: Path) -> None:
    assert extract(photos, backbone, "-q", "--limit", "6", "--dtype", "float16") == Exit.OK
    half = open_features("f.npy").array
    assert (half.shape, half.dtype) == ((6, 96), np.float16)
    assert (
        extract(photos, backbone, "-q", "--limit", "6", "--pooling", "none", output="g.npy")
        == Exit.OK
    )
    manifest = read_manifest("g.npy", "image-grid")
    grid = open_npy("g.npy")
    assert grid.shape == (6, manifest["grid"][0] * manifest["grid"][1], 96)
    np.testing.assert_allclose(
        np.asarray(grid).mean(1), half.astype(np.float32), rtol=2e-3, atol=1e-3
    )


def test_a_grid_of_the_whole_picture(photos: Path, backbone: Path) -> None:
    more = ("-q", "--limit", "2", "--pooling", "none", "--picture", "96")
    assert extract(photos, backbone, *more, output="g.npy") == Exit.OK
    found = open_features("g.npy", positions=1)
    seen = found.manifest["backbone"]["preprocessing"]
    assert (seen["crop_mode"], seen["crop_pct"], seen["input_size"]) == ("squash", 1.0, [3, 96, 96])
    network = timm.create_model(f"local-dir:{backbone}", pretrained=True, num_classes=0).eval()
    picture = decoding.decode((photos / "p1.png").read_bytes())
    filter_ = Image.Resampling[seen["interpolation"].upper()]
    pixels = np.asarray(picture.resize((96, 96), filter_), np.float32) / 255
    normal = (pixels - np.float32(seen["mean"])) / np.float32(seen["std"])
    with torch.inference_mode():
        expected = network.forward_features(torch.from_numpy(normal).permute(2, 0, 1)[None])
    expected = expected.flatten(2).transpose(1, 2)[0].numpy()
    np.testing.assert_allclose(found.array[1], expected, rtol=2e-4, atol=2e-5)


def test_what_is_done_is_not_done_again_but_changed_images_are(
    photos: Path, backbone: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert extract(photos, backbone) == Exit.OK
    before = Path("f.npy").stat().st_mtime_ns
    capfd.readouterr()
    assert extract(photos, backbone) == Exit.OK
    assert "up to date" in capfd.readouterr().err
    assert Path("f.npy").stat().st_mtime_ns == before
    first = hashes()
    save_photo(photos / "p3.png", 99)
    assert extract(photos, backbone, "-q") == Exit.OK
    second = hashes()
    assert (first[0] != second[0], first[1:]) == (True, second[1:])


BAD = {"0.jpg": b"", "p7.png": b"<html>gone</html>", "half.jpg": b"\xff\xd8\xff\xe0"}


def test_broken_images_stop_the_command_or_become_error_rows(
    photos: Path, backbone: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, data in BAD.items():
        (photos / name).write_bytes(data)
    assert extract(photos, backbone) == Exit.DATA
    assert (
        "vg: 0.jpg: 0 bytes; fix or remove it, or note and skip such images with --on-error skip"
        in capfd.readouterr().err
    )
    assert list(Path().glob("f.*")) == []  # nothing was done yet
    assert extract(photos, backbone, "--on-error", "skip", "--max-errors", "2") == Exit.DATA
    assert (
        "3 images could not be used, more than --max-errors 2; the last: p7.png: an HTML page"
        in capfd.readouterr().err
    )
    assert not Path("f.npy").exists()
    assert (
        extract(photos, backbone, "--on-error", "skip", "--max-errors", "3") == Exit.OK
    )  # goes on where it gave up
    assert "3 images could not be used; f.errors.jsonl gives reasons" in capfd.readouterr().err
    assert extract(photos, backbone, "--on-error", "skip", "--max-errors", "3") == Exit.OK
    capfd.readouterr()
    for flags, way_out in (
        (["--on-error", "skip", "--max-errors", "2"], "--max-errors 3"),
        (["--on-error", "fail"], "--on-error skip"),
    ):
        assert extract(photos, backbone, *flags) == Exit.DATA, (
            "what is finished is held to the flags, too"
        )
        err = capfd.readouterr().err
        assert "is finished, but 3 images could not be used" in err
        assert err.endswith(f"fix them, or allow them with {way_out}\n")
    rows = [json.loads(line) for line in Path("f.errors.jsonl").read_text().splitlines()]
    assert [row["image"] for row in rows] == ["0.jpg", "half.jpg", "p7.png"]
    assert rows[0]["reason"] == "0 bytes"
    features = open_features("f.npy")
    assert features.ids == [f"p{n}.png" for n in range(21) if n != 7]
    assert (features.manifest["errors"], left()) == (3, [])
    skipped = np.asarray(features.array)
    for name in BAD:
        (photos / name).unlink()
    assert extract(photos, backbone, "-q", "--batch-size", "4", output="again.npy") == Exit.OK
    np.testing.assert_array_equal(open_npy("again.npy"), skipped)


def test_nothing_usable_is_an_error_with_its_cause(
    tmp_path: Path, backbone: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert extract(empty, backbone) == Exit.DATA
    assert "empty: holds no image; expected a directory" in capfd.readouterr().err
    assert extract("missing", backbone) == Exit.NO_INPUT
    (empty / "a.jpg").write_bytes(b"no")
    assert extract(empty, backbone, "--on-error", "skip") == Exit.DATA
    assert (
        "not one image of 1 could be used; the last: a.jpg: not an image of a known format"
        in capfd.readouterr().err
    )
    assert (list(Path().glob("f.*")), left()) == ([], [])


@pytest.mark.parametrize(
    ("more", "code", "why"),
    [
        (["-o", "f.bin"], Exit.USAGE, "must end in .npy"),
        (["-o", "no/f.npy"], Exit.CANNOT_CREATE, "no does not exist"),
        (["--pooling", "median"], Exit.USAGE, "'median' is not one of 'mean', 'max', 'none'"),
        (["--dtype", "int8"], Exit.USAGE, "'int8' is not one of 'float32', 'float16'"),
        (["-b", "builtin:none"], Exit.USAGE, "no builtin is called 'none'"),
        (["-b", "no_such_network"], Exit.USAGE, "timm knows no backbone 'no_such_network'"),
        (["-b", "resnet18.a1_in1k", "--offline"], Exit.UNAVAILABLE, "resnet18.a1_in1k"),
        (["--captions", "./f.errors.jsonl"], Exit.USAGE, "is one of the files of -o f.npy"),
        (["--captions", "f.npy.journal"], Exit.USAGE, "must end in .jsonl"),
        (["--captions", "c.parquet"], Exit.USAGE, "must end in .jsonl, got 'c.parquet'"),
        (["--captions", "c.jsonl"], Exit.OK, ""),
    ],
)
def test_wrong_flags_leave_with_their_code(
    photos: Path, backbone: Path, more: list[str], code: Exit, why: str,
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("HF_HUB_CACHE", "nowhere")
    (photos / "p5.txt").write_text("A red door.\nDoors.\n")
    assert extract(photos, backbone, "--limit", "6", *more) == code
    assert why in capfd.readouterr().err
    if code == Exit.OK:
        rows = [json.loads(line) for line in Path("c.jsonl").read_text().splitlines()]
        assert rows == [
            {"image": "p5.png", "text": "A red door."},
            {"image": "p5.png", "text": "Doors."},
        ]


def test_captions_may_go_to_standard_output(
    photos: Path, backbone: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (photos / "p5.txt").write_text("A red door.\n")
    assert extract(photos, backbone, "--captions", "-") == Exit.OK
    assert capfdbinary.readouterr().out == b'{"image":"p5.png","text":"A red door."}\n'


def test_a_cut_tar_leaves_no_output(
    photos: Path, backbone: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with tarfile.open("photos.tar", "w") as tar:
        tar.add(photos, "photos")
    data = Path("photos.tar").read_bytes()
    Path("photos.tar").write_bytes(data[: len(data) // 2])
    assert extract("photos.tar", backbone) == Exit.DATA
    assert re.search(
        r"photos\.tar: is truncated, damaged or not a tar after 'photos/p\d+\.png'",
        capfd.readouterr().err,
    )
    assert not Path("f.npy").exists()


def start(code: str, *args: str | Path) -> subprocess.Popen[bytes]:
    """Start the command in a process of its own, with some code run before it."""
    given = [
        "extract-image-feats",
        *map(str, args),
        "-o",
        "f.npy",
        "--device",
        "cpu",
        "--batch-size",
        "4",
    ]
    body = (
        f"import os, signal, sys, time\nfrom vgtools import cli\n"
        f"{textwrap.dedent(code)}\ncli.main({given!r})"
    )
    return subprocess.Popen(
        [sys.executable, "-c", body],
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": ":".join(sys.path)},
    )


EAGER = (
    "from vgtools.commands.extract_image_feats import extraction\nextraction._COMMIT_SECONDS = 0\n"
)
KILL = """
from vgtools.images import extract as images
write, count = images.FeatureOutput.write, [0]
def killing(self, batch):
    write(self, batch)
    count[0] += 1
    if count[0] == {at}:
        os.kill(os.getpid(), signal.{name})
images.FeatureOutput.write = killing
"""


@pytest.mark.slow
@pytest.mark.parametrize("commit", [0, 100])
def test_kill_9_and_the_same_command_again_ends_byte_identical(
    photos: Path, backbone: Path, commit: int
) -> None:
    (photos / "p4.png").write_bytes(b"")
    assert extract(photos, backbone, "-q", "--on-error", "skip") == Exit.OK
    expected = hashes()
    for name in (*FILES, "f.json"):
        Path(name).unlink()
    code = EAGER.replace("= 0", f"= {commit}") + KILL.format(at=3, name="SIGKILL")
    killed = start(code, photos, "-b", backbone, "--on-error", "skip")
    killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert not Path("f.npy").exists()
    assert Path("f.npy.journal").exists() == (commit == 0)
    if commit == 0:
        assert json.loads(Path("f.npy.journal").read_bytes())["state"]["items"] == 12
    assert extract(photos, backbone, "-q", "--on-error", "skip") == Exit.OK
    assert (hashes(), left()) == (expected, [])


def test_sigterm_stops_at_a_checkpoint_and_changed_images_or_settings_are_refused(
    photos: Path, backbone: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(extraction, "_COMMIT_SECONDS", 0)
        write = FeatureOutput.write

        def stopping(self: FeatureOutput, batch: FeatureBatch) -> None:
            if batch.items == 8:
                os.kill(os.getpid(), signal.SIGTERM)
            write(self, batch)

        patch.setattr(FeatureOutput, "write", stopping)
        assert extract(photos, backbone) == Exit.STOPPED
    assert "stopped; run the same command again to resume" in capfd.readouterr().err
    assert json.loads(Path("f.npy.journal").read_bytes())["state"]["rows"] == 8
    assert extract(photos, backbone, "--pooling", "max") == Exit.CONFIG
    assert 'pooling was "mean", is now "max"' in capfd.readouterr().err
    times = (photos / "p0.png").stat()
    os.utime(photos / "p0.png")
    assert extract(photos, backbone) == Exit.CONFIG
    assert "changed since the run that is being resumed" in capfd.readouterr().err
    os.utime(photos / "p0.png", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert extract(photos, backbone, "-q") == Exit.OK
    resumed = hashes()
    assert extract(photos, backbone, "-q", "--restart") == Exit.OK
    assert hashes() == resumed


def test_a_second_writer_leaves_at_once(
    photos: Path, backbone: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from vgtools.io.process import Lock

    lock = Lock("f.npy")
    try:
        assert extract(photos, backbone) == Exit.STOPPED
    finally:
        lock.release()
    assert f"is being written by process {os.getpid()}" in capfd.readouterr().err


def test_out_of_memory_is_recorded_and_resumed_small(
    photos: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, calls = featurizer.Featurizer._rows, []

    def greedy(self: featurizer.Featurizer, pixels: torch.Tensor) -> Any:
        calls.append(len(pixels))
        if len(pixels) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return rows(self, pixels)

    monkeypatch.setattr(featurizer.Featurizer, "_rows", greedy)
    assert extract(photos, backbone, "-q", "--workers", "1") == Exit.OK
    assert set(calls) == {4, 2}
    assert open_features("f.npy").manifest["batch"] == {"asked": 4, "used": 2}
    assert open_features("f.npy").ids == [f"p{n}.png" for n in range(21)]


def test_the_command_does_not_hang_on_a_pipe_in_the_directory(photos: Path, backbone: Path) -> None:
    os.mkfifo(photos / "p99.png")
    began = time.monotonic()
    assert extract(photos, backbone, "-q", "--on-error", "skip") == Exit.OK
    assert time.monotonic() - began < 60
    assert json.loads(Path("f.errors.jsonl").read_text()) == {
        "image": "p99.png",
        "reason": "not a regular file",
    }


@pytest.fixture
def scenes(tmp_path: Path) -> None:
    for number in range(9):
        save_photo(tmp_path / f"photos/p{number}.png", number, (90, 60))


def extract_regions(backbone: Path, *more: str | Path, output: str = "f.npy") -> int:
    given = [
        "photos",
        "-b",
        backbone,
        "-o",
        output,
        "--device",
        "cpu",
        "--batch-size",
        2,
        "-q",
        *more,
    ]
    return run(["extract-image-feats", *map(str, given)])


def save_boxes(path: str, **changes: list[list[float]]) -> str:
    """Write phrase rows of photos of twice the size; changes replace the boxes of a photo."""
    rows = []
    for number in range(9):
        boxes = changes.get(f"p{number}", [[0, 0, 60, 60], [20, 10, 180, 100 + number]])
        phrases = [{"start": 0, "end": 1, "type": "people", "boxes": boxes}]
        rows.append(
            {
                "image": f"p{number}.png",
                "text": "x",
                "width": 180,
                "height": 120,
                "phrases": phrases,
            }
        )
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.usefixtures("scenes")
def test_boxes_in_a_folder_of_shards_are_not_removed_from_it(
    backbone: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    grid = ("--regions", "grid", "--grid-scales", "1", "--picture")
    assert extract_regions(backbone, *grid, "64", output="g.npy/") == Exit.OK
    boxes = next(Path("g.npy").glob("*.regions.jsonl"))
    before = boxes.read_bytes()
    again = ("--regions", boxes, "--picture", "96", "--restart")
    assert extract_regions(backbone, *again, output="g.npy/") == Exit.CANNOT_CREATE
    assert "is an input of this command" in capfd.readouterr().err
    assert boxes.read_bytes() == before


@pytest.mark.usefixtures("scenes")
def test_gold_boxes_and_a_grid(backbone: Path) -> None:
    assert (
        extract_regions(
            backbone, "--regions", save_boxes("p.jsonl"), "--regions", "grid", "--picture", "96"
        )
        == Exit.OK
    )
    found = open_regions("f.npy")
    assert found.images == [f"p{n}.png" for n in range(9)]
    assert found.counts.tolist() == [2 + 35] * 9
    manifest = found.manifest
    assert (manifest["kind"], manifest["images"], manifest["rows"]) == (
        "region-features",
        9,
        9 * 37,
    )
    seen = manifest["backbone"]["preprocessing"]
    assert (seen["crop_mode"], seen["crop_pct"], seen["input_size"]) == ("squash", 1.0, [3, 96, 96])
    assert [Path(x["path"]).name for x in manifest["inputs"]] == ["photos", "p.jsonl"]

    network = timm.create_model(f"local-dir:{backbone}", pretrained=True, num_classes=0).eval()
    featurizer = region_featurizer(
        network, whole_picture(timm.data.resolve_data_config({}, model=network), 96), "float32", 1
    )
    for number in (0, 8):
        own = found.of(f"p{number}.png")
        picture = decoding.decode(Path(f"photos/p{number}.png").read_bytes())
        boxes = np.array(
            [[0, 0, 30, 30], [10, 5, 90, 50 + number / 2], *grid("", picture).boxes.tolist()]
        )
        np.testing.assert_allclose(own.boxes, boxes)
        shares = boxes / [90, 60, 90, 60]
        rows = pool_regions(
            featurizer.features(featurizer.pixels(picture)[None]), featurizer.grid, [shares]
        )[0]
        np.testing.assert_allclose(own.features, rows, rtol=1e-3, atol=1e-5)
        assert own.labels == ["people"] * 2 + ["grid"] * 35
        assert own.confidence[2] == 1.0, "the whole picture"


@pytest.mark.usefixtures("scenes")
def test_boxes_cut_out_are_pictures_by_themselves(backbone: Path) -> None:
    assert (
        extract_regions(backbone, "--regions", save_boxes("p.jsonl"), "--cut", "--picture", "48")
        == Exit.OK
    )
    found = open_regions("f.npy")
    assert found.counts.tolist() == [2] * 9
    assert (found.manifest["pooling"], found.manifest["rows"]) == ("cut", 18)
    made = backbone_of(found)
    assert made["fingerprint"].endswith(" cut"), "a run that learned from others is refused"
    assert made["ref"] == f"{backbone}, boxes cut out at 48×48 px", "the refusal says what differs"
    found.manifest["backbone"] = {"fingerprint": "x"}
    assert backbone_of(found)["ref"] is None, "features of others need not name their network"

    network = timm.create_model(f"local-dir:{backbone}", pretrained=True, num_classes=0).eval()
    mean, std = (np.array(network.pretrained_cfg[key], np.float32) for key in ("mean", "std"))
    filter_ = Image.Resampling[network.pretrained_cfg["interpolation"].upper()]
    for number in (0, 8):
        own = found.of(f"p{number}.png")
        picture = decoding.decode(Path(f"photos/p{number}.png").read_bytes())
        for row, edges in zip(
            own.features, [(0, 0, 30, 30), (10, 5, 90, 50 + number // 2)], strict=True
        ):
            part = np.asarray(picture.crop(edges).resize((48, 48), filter_), np.float32) / 255
            with torch.inference_mode():
                seen = torch.from_numpy((part - mean) / std).permute(2, 0, 1)
                expected = network.forward_features(seen[None]).mean((2, 3))[0]
            np.testing.assert_allclose(row, expected, rtol=1e-3, atol=1e-5)
    assert extract_regions(backbone, "--cut", output="g.npy") == Exit.USAGE, "nothing to cut"


@pytest.mark.usefixtures("scenes")
def test_a_thin_box_is_cut_out_whole(backbone: Path) -> None:
    boxes = [[19.9, 0, 20.1, 120], [179, 119, 180, 120]]
    assert (
        extract_regions(
            backbone, "--regions", save_boxes("p.jsonl", p0=boxes), "--cut", "--limit", "1"
        )
        == Exit.OK
    )
    found = open_regions("f.npy").of("p0.png")
    np.testing.assert_allclose(found.boxes, np.array(boxes) / 2)
    assert np.isfinite(found.features).all()
    assert found.features.any(1).all()


@pytest.mark.usefixtures("scenes")
@pytest.mark.parametrize("cut", [False, True])
def test_a_stopped_run_goes_on_to_the_same_bytes(
    backbone: Path, monkeypatch: pytest.MonkeyPatch, cut: bool
) -> None:
    way = ["--cut"] if cut else []
    assert extract_regions(backbone, "--regions", save_boxes("p.jsonl"), *way) == Exit.OK
    whole = [file.read_bytes() for file in REGION_FILES]
    for file in (*REGION_FILES, Path("f.json")):
        file.unlink()
    monkeypatch.setattr(extraction, "_COMMIT_SECONDS", 0.0)
    real, calls = FeatureOutput._commit, list[int]()

    def stop(self: Any) -> None:
        real(self)
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(FeatureOutput, "_commit", stop)
    assert extract_regions(backbone, "--regions", "p.jsonl", *way) == Exit.INTERRUPTED
    assert not REGION_FILES[0].exists()
    assert json.loads(Path("f.npy.journal").read_text())["state"]["items"] == 4
    assert extract_regions(backbone, "--regions", "p.jsonl", *way) == Exit.OK
    assert [file.read_bytes() for file in REGION_FILES] == whole
    assert extract_regions(backbone, "--regions", "p.jsonl", *way) == Exit.OK, "up to date"
    save_boxes("p.jsonl", p1=[[0, 0, 10, 10]])
    assert extract_regions(backbone, "--regions", "p.jsonl", *way, "-q") == Exit.OK
    assert open_regions("f.npy").counts.tolist() == [2, 1, *[2] * 7], "other boxes, other features"


@pytest.mark.usefixtures("scenes")
def test_bad_boxes_stop_the_command_or_are_left_out(
    backbone: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    save_boxes("p.jsonl", p3=[[0, 0, 60, 60], [0, 0, 200, 60]], p5=[[5, 5, 5, 9]])
    (Path("photos") / "z.png").write_bytes(Path("photos/p0.png").read_bytes())
    assert extract_regions(backbone, "--regions", "p.jsonl") == Exit.DATA
    err = capfd.readouterr().err
    assert (
        "p3.png: p.jsonl: box 2, [0.0, 0.0, 100.0, 30.0], leaves its picture of 90×60; fix" in err
    )
    assert extract_regions(backbone, "--regions", "p.jsonl", "--on-error", "skip") == Exit.OK
    assert open_regions("f.npy").counts.tolist() == [2, 2, 2, 1, 2, 0, 2, 2, 2]
    rows = [json.loads(line) for line in REGION_FILES[2].read_text().splitlines()]
    assert [row["image"] for row in rows] == ["p3.png", "p5.png", "z.png"]
    assert rows[2]["reason"] == "p.jsonl names no boxes of it; its ids must match the images' ids"
    assert (
        extract_regions(
            backbone,
            "--regions",
            "p.jsonl",
            "--on-error",
            "skip",
            "--max-errors",
            "2",
            output="g.npy",
        )
        == Exit.DATA
    )
    assert "3 images or boxes could not be used, more than --max-errors 2" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("scenes")
def test_a_detector_as_source(backbone: Path) -> None:
    torch.manual_seed(0)
    network = get_model(
        "fasterrcnn_mobilenet_v3_large_fpn", weights=None, weights_backbone=None, num_classes=3
    )
    save_file(network.state_dict(), "d.safetensors")
    assert (
        extract_regions(
            backbone,
            "--detector",
            "d.safetensors",
            "--regions",
            "grid",
            "--limit",
            "1",
            "--max-regions",
            "8",
        )
        == Exit.OK
    )
    found = open_regions("f.npy")
    assert found.counts.tolist() == [8]
    assert (
        found.manifest["config"]["regions"]["detector"]["name"]
        == "fasterrcnn_mobilenet_v3_large_fpn"
    )
    assert found.manifest["config"]["regions"]["most"] == 8
    assert (
        extract_regions(
            backbone, "--regions", "grid", "--limit", "1", "--grid-scales", "2", output="g.npy"
        )
        == Exit.OK
    )
    assert open_regions("g.npy").counts.tolist() == [10]


@pytest.mark.usefixtures("scenes")
@pytest.mark.parametrize(
    ("more", "code", "why"),
    [
        (["--regions", "grid", "--pooling", "max"], Exit.USAGE, "regions are pooled by the mean"),
        (["--picture", "96"], Exit.USAGE, "belongs to --regions, --detector or --pooling none"),
        (["--regions", "no.jsonl"], Exit.NO_INPUT, "no.jsonl"),
        (["--detector", "no.safetensors"], Exit.NO_INPUT, "no.safetensors: does not exist"),
        (["--regions", "grid", "--captions", "c.jsonl"], Exit.USAGE, "and no regions"),
    ],
)
def test_bad_flags(
    backbone: Path, more: list[str], code: int, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert extract_regions(backbone, *more) == code
    assert why in capfd.readouterr().err
    assert not list(Path().glob("f.*"))


def test_a_table_gives_the_features_of_its_files_and_its_bad_rows_are_listed(
    photos: Path, backbone: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (photos / "p3.png").write_bytes(b"no picture")
    names = [f"p{number}.png" for number in range(21)]
    rows = [{"image": {"bytes": (photos / name).read_bytes(), "path": name}} for name in names]
    rows[5]["image"]["bytes"] = None
    rows[5]["image"]["path"] = None
    parquet.write_table(pa.Table.from_pylist(rows), "x.parquet", row_group_size=6)
    (photos / "p5.png").unlink()
    skip = ("--on-error", "skip")
    assert extract("x.parquet", backbone, *skip) == Exit.OK
    errors = [json.loads(line) for line in Path("f.errors.jsonl").read_text().splitlines()]
    assert [error["image"] for error in errors] == ["p3.png", "x:6"]
    assert errors[0]["reason"].startswith("x.parquet:4: ")
    assert errors[1]["reason"] == "x.parquet:6: has neither bytes nor a path"
    assert extract(photos, backbone, *skip, output="g.npy") == Exit.OK
    assert Path("f.npy").read_bytes() == Path("g.npy").read_bytes()
    assert Path("f.ids").read_text() == Path("g.ids").read_text()
    assert read_manifest("f.npy")["inputs"][0]["path"] == "x.parquet"
    capfd.readouterr()
    assert extract("x.parquet", backbone, output="h.npy") == Exit.DATA
    assert "p3.png" in (said := capfd.readouterr().err)
    assert "x.parquet:4: " in said
    assert extract("x.parquet", backbone, *skip, output="s.npy/") == Exit.OK


def test_shards_of_a_table_have_the_files_that_it_names(photos: Path, backbone: Path) -> None:
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    rows = [{"bytes": None, "path": f"photos/p{number}.png"} for number in range(6)]
    parquet.write_table(pa.table({"image": pa.array(rows, kind)}), "x.parquet")
    assert extract("x.parquet", backbone) == Exit.OK
    assert extract("x.parquet", backbone, output="s.npy/") == Exit.OK
    shard = next(Path("s.npy").glob("*.npy"))
    assert shard.read_bytes() == Path("f.npy").read_bytes()
    assert extract("x.parquet", backbone, output="s.npy/") == Exit.OK
    save_photo(photos / "p5.png", 99)
    assert extract("x.parquet", backbone, output="s.npy/") == Exit.CONFIG
