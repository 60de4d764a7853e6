"""A server of the tiny bank, whose pictures have hostile names and are not all there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.serving.client import Server
from tests.tiny import probe, save_grids, save_run_of
from tests.tiny.images import save_backbone, save_photo
from vgtools.cli import run
from vgtools.io.files import read_json

_CPU = ("--device", "cpu")

EVIL = "<img/src=x/onerror=window.pwned=1>"


@pytest.fixture(scope="session")
def bank(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with files of the tiny bank: 60 images, two of which have no picture; one is
    a drawing with a script. Six have regions, which a VisualBERT sees.
    """
    folder = tmp_path_factory.mktemp("bank")
    (folder / "secret.txt").write_text("secret")
    (folder / "evil.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'><script/></svg>")
    rows = []
    for number in range(60):
        name = f"{number}.png"
        if number == 7:
            name = "evil.svg"
        elif number != 8:
            save_photo(folder / name, number)
        rows.append({"image": f"image{number:03}", "path": name, "names": [f"{EVIL} {number}"]})
    (folder / "images.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    save_grids(folder / "grid.npy")
    sets = [*probe.region_sets(6).values()]
    probe.save_regions(
        folder / "regions.npy", {f"image{n:03}": each for n, each in enumerate(sets)}
    )
    captions = [
        {"image": f"image{number:03}", "text": text}
        for number in range(60)
        for text in (f"bam dis {number}", f"{EVIL} fan")
    ]
    probe.save_rows(folder / "captions.jsonl", captions)
    probe.save_visualbert(folder / "visualbert")
    return folder


@pytest.fixture(scope="session")
def server(tiny: Path, bank: Path) -> Iterator[Server]:
    running = Server(
        "--index",
        tiny / "vg.faiss",
        "--images",
        bank / "images.jsonl",
        "--feats",
        bank / "grid.npy",
        "--regions",
        bank / "regions.npy",
        "--encoder",
        bank / "visualbert",
        "--captions",
        bank / "captions.jsonl",
    )
    yield running
    code, said = running.stop()
    assert (code, said) == (0, b"")


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of twelve pictures."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(12):
        save_photo(folder / f"{number}.png", number)
    return folder


@pytest.fixture(scope="session")
def embedding(
    tiny: Path, photos: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Run a server of the twelve pictures that embeds new ones."""
    folder = tmp_path_factory.mktemp("embedding")
    net = save_backbone(folder / "net")
    feats, index = folder / "feats.npy", folder / "own.faiss"
    assert (
        run([*map(str, ("extract-image-feats", photos, "-b", net, "-o", feats, "-q", *_CPU))]) == 0
    )
    made = read_json(folder / "feats.json")["backbone"]
    width = np.load(feats).shape[1]
    save_run_of(folder / "run", tiny / "encoder", backbone=made, image_width=width)
    assert (
        run([*map(str, ("build-index", feats, "-m", folder / "run", "-o", index, "-q", *_CPU))])
        == 0
    )
    running = Server("--index", index, "--images", photos, "--backbone", net)
    yield running
    assert running.stop() == (0, b"")
