"""The backbone that learns with the retriever: what learns, what a step sees, what a run holds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from tests.tiny import save_encoder
from tests.tiny.images import drawing, save_backbone, save_photo
from tests.tiny.runs import hashes
from vgtools.cli import run
from vgtools.images.featurizer import Featurizer
from vgtools.images.region_features import whole_picture
from vgtools.images.sources import open_source
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import dumps
from vgtools.io.settings import configured
from vgtools.models.backbone import load_backbone
from vgtools.systems.visual_awareness import training
from vgtools.systems.visual_awareness.pixels import (
    BackboneSettings,
    PixelRetriever,
    RetrieverPixels,
    learned_names,
    random_crop,
)
from vgtools.systems.visual_awareness.recipe import PAPER, RetrieverConfig
from vgtools.systems.visual_awareness.retrieve import open_retriever
from vgtools.systems.visual_awareness.retriever import Retriever, RetrieverBatch

PHOTOS = 9


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pixels")
    save_encoder(folder / "encoder")
    save_backbone(folder / "net")
    rows = []
    for number in range(PHOTOS):
        name = save_photo(folder / "photos" / f"p{number}.png", number).name
        part = "dev" if number < 3 else "train"
        rows += [{"image": name, "text": text, "split": part} for text in ("a dog", "the cat")]
    (folder / "captions.jsonl").write_bytes(b"".join(map(dumps, rows)))
    return folder


def pixels_of(place: Path, **changes: int) -> RetrieverPixels:
    values = {"backbone_from": 1, "crop": 64, "picture": 64, **changes}
    items = list(open_source(str(place / "photos")).items)
    return RetrieverPixels(items, load_backbone(str(place / "net")), BackboneSettings(**values), 2)


def network_of(place: Path) -> PixelRetriever:
    torch.manual_seed(3)
    pixels = pixels_of(place)
    config = RetrieverConfig(text_width=5, image_width=pixels.width, dim=6, layers=1, regions=2)
    return pixels.network(Retriever(config))


def batch_of(pixels: RetrieverPixels, epoch: int) -> RetrieverBatch:
    rng = np.random.default_rng(4)
    photos = pixels.drawn(0, epoch, 0)[np.arange(4)]
    words = torch.from_numpy(rng.standard_normal((2, 4, 5)).astype(np.float32))
    lengths = torch.tensor([2, 1, 2, 2])
    seen = torch.from_numpy(photos.astype(np.float32))
    return RetrieverBatch(words, lengths, seen, torch.arange(4), epoch)


# -------------------------------------------------------------------------------------- what learns


def test_parameter_counts_of_the_paper() -> None:
    with torch.device("meta"):
        backbone = timm.create_model("resnet152", num_classes=0)
        retriever = Retriever(configured(RetrieverConfig, PAPER, text_width=620, image_width=2048))
    sizes = {name: weight.numel() for name, weight in backbone.named_parameters()}
    assert sum(sizes.values()) == 58_143_808
    assert sum(sizes[name] for name in learned_names(backbone)) == 55_578_624
    kept = {name.split(".")[0] for name in sizes.keys() - set(learned_names(backbone))}
    assert kept == {"conv1", "bn1", "layer1", "layer2"}
    whole = sum(sizes.values()) + sum(weight.numel() for weight in retriever.parameters())
    assert whole == 126_635_008


@pytest.mark.parametrize(
    ("name", "first"),
    [("vit_tiny_patch16_224", "cls_token"), ("tf_efficientnet_lite0", "blocks.3.0.conv_pw.weight")],
)
def test_other_networks_learn_after_their_stages_of_stride_8(name: str, first: str) -> None:
    with torch.device("meta"):
        network = timm.create_model(name, num_classes=0)
    assert learned_names(network)[0] == first


def test_the_late_stages_learn_from_an_epoch_on_and_statistics_never(place: Path) -> None:
    network = network_of(place).train()
    before = {name: value.clone() for name, value in network.backbone.state_dict().items()}
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    changed, asked = [], []
    for epoch in (0, 1):
        optimiser.zero_grad()
        network(batch_of(pixels_of(place), epoch))["info_nce"].backward()
        optimiser.step()
        after = network.backbone.state_dict()
        changed.append({name for name in before if not torch.equal(before[name], after[name])})
        weights = network.backbone.named_parameters()
        asked.append([name for name, weight in weights if weight.grad is not None])
    assert (changed[0], asked[0]) == (set(), [])
    assert asked[1] == learned_names(network.backbone)
    assert {name.split(".")[0] for name in asked[1]} == {"layer3", "layer4"}
    assert changed[1]
    assert changed[1] <= set(asked[1]), "and no statistics of norms"


def test_the_loss_is_that_of_the_retriever_on_the_maps(place: Path) -> None:
    network = network_of(place).eval()
    batch = batch_of(pixels_of(place), 0)
    mean, std = (
        torch.tensor(load_backbone(str(place / "net")).preprocessing[k]) for k in ("mean", "std")
    )
    seen = (batch.feats / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    with torch.no_grad():
        maps = network.backbone.forward_features(seen).flatten(2).transpose(1, 2)  # type: ignore[operator]
        expected = network.retriever(batch._replace(feats=maps))["info_nce"]
        found = network(batch)["info_nce"]
    assert found == pytest.approx(float(expected), rel=1e-4)


# ------------------------------------------------------------------------------------ what is seen


def test_the_whole_picture_is_that_of_extraction(place: Path) -> None:
    net = load_backbone(str(place / "net"))
    featurizer = Featurizer(net.model, whole_picture(net.preprocessing, 64), "none")
    with Image.open(place / "photos" / "p2.png") as photo:
        expected = featurizer.pixels(photo.convert("RGB"))
    assert np.array_equal(pixels_of(place).whole[np.array([2])][0], expected)


def test_a_crop_depends_on_seed_epoch_and_step_alone(place: Path) -> None:
    pixels = pixels_of(place)
    rows = np.array([4, 1])
    first = pixels.drawn(0, 2, 5)[rows]
    assert first.shape == (2, 3, 64, 64)
    assert np.array_equal(first, pixels.drawn(0, 2, 5)[rows])
    assert np.array_equal(first[:1], pixels.drawn(0, 2, 5)[np.array([4])])
    for other in ((1, 2, 5), (0, 3, 5), (0, 2, 6)):
        assert not np.array_equal(first, pixels.drawn(*other)[rows])


def test_crops_cover_what_the_recipe_says() -> None:
    """The red of a pixel is its column, its green its row: a crop shows where it was cut."""
    y, x = np.mgrid[:100, :200]
    photo = Image.fromarray(np.stack([x, 2 * y, 0 * x], -1).astype(np.uint8))
    shares, ratios, mirrored = [], [], 0
    for number in range(400):
        seen = random_crop(photo, 64, np.random.default_rng(number), Image.Resampling.NEAREST)
        left, right = sorted((int(seen[0, 0, 0]), int(seen[0, 0, -1])))
        mirrored += seen[0, 0, 0] > seen[0, 0, -1]
        width, height = right - left, (int(seen[1, -1, 0]) - int(seen[1, 0, 0])) / 2
        shares.append(width * height / 20_000)
        ratios.append(width / height)
    assert 0.05 < min(shares) < 0.12, "8 % of the area, less a pixel on either side"
    assert max(shares) > 0.5
    assert 0.7 < min(ratios) < 0.8
    assert 1.25 < max(ratios) < 1.45
    assert 150 < mirrored < 250, "half of 400; five standard deviations are 50"


def test_of_a_thin_photo_the_largest_part_is_seen() -> None:
    photo = Image.fromarray(drawing(3, 400))
    seen = random_crop(photo, 16, np.random.default_rng(0))
    assert seen.shape == (3, 16, 16)


def test_a_photo_that_cannot_be_read_is_named(place: Path, tmp_path: Path) -> None:
    save_photo(tmp_path / "good.png", 1)
    (tmp_path / "torn.png").write_bytes((tmp_path / "good.png").read_bytes()[:90])
    items = list(open_source(str(tmp_path)).items)
    pixels = RetrieverPixels(
        items, load_backbone(str(place / "net")), BackboneSettings(0, 64, 64), 2
    )
    with pytest.raises(DataError, match=r"torn.png: cannot be decoded.*remove it and its captions"):
        pixels.whole[:2]


# ----------------------------------------------------------------------------------------- the run


def arguments(place: Path, output: Path, *more: str) -> list[str]:
    files = [place / "captions.jsonl", place / "photos", "-b", place / "net", "-o", output]
    sizes = ["--dim", "6", "--layers", "1", "--regions", "2", "--batch-size", "4", "--crop", "64"]
    how = ["--words", place / "encoder", "--picture", "64", "--epochs", "2", "--backbone-from", "1"]
    fixed = [*sizes, *how, "--valid-split", "dev", "--device", "cpu", "-q", *more]
    return ["train-matcher", "visual-awareness", *map(str, [*files, *fixed])]


def test_a_run_s_backbone_makes_the_maps_of_its_index(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments(place, tmp_path / "run")) == 0
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert info["config"]["picture"] == 64
    assert info["best"]["valid"]["images"] == 3
    tuned = load_backbone(str(tmp_path / "run" / "backbone"))
    assert tuned.fingerprint == info["backbone"]["fingerprint"] != info["config"]["backbone"]
    grid = tmp_path / "grid.npy"
    extract = ["extract-image-feats", place / "photos", "-b", tmp_path / "run" / "backbone"]
    how = ["--pooling", "none", "--picture", "64", "--device", "cpu", "-q", "-o", grid]
    assert run([str(arg) for arg in [*extract, *how]]) == 0
    # The same photo through the tuned network by hand, and by way of the files.
    opened = open_retriever(tmp_path / "run").retriever
    network = PixelRetriever(opened, tuned, 0).eval()
    whole = pixels_of(place).whole[:]
    with torch.inference_mode():
        expected = network.embed_images(torch.from_numpy(whole)).numpy()
        found = opened.embed_images(torch.from_numpy(np.load(grid).astype(np.float32))).numpy()
    assert np.allclose(found, expected, atol=1e-3)
    index = ["build-index", grid, "--matcher", tmp_path / "run", "-q", "-o", tmp_path / "i.faiss"]
    assert run([str(arg) for arg in index]) == 0
    # Maps of the backbone that it started from are another network's.
    extract[3] = place / "net"
    how[-1] = tmp_path / "old.npy"
    assert run([str(arg) for arg in [*extract, *how]]) == 0
    index[1] = tmp_path / "old.npy"
    capfd.readouterr()
    assert run([str(arg) for arg in index]) == Exit.DATA
    assert "was made with the backbone" in capfd.readouterr().err


def test_another_preprocessing_of_the_backbone_is_another_training(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(place / "net", tmp_path / "net")
    given = arguments(place, tmp_path / "run")
    given[given.index(str(place / "net"))] = str(tmp_path / "net")
    assert run(given) == run(given) == 0
    config = tmp_path / "net" / "config.json"
    body = json.loads(config.read_text())
    body["pretrained_cfg"]["mean"] = [0.1, 0.2, 0.3]
    config.write_text(json.dumps(body))
    assert run(given) == Exit.CONFIG
    assert "backbone" in capfd.readouterr().err


def test_stopped_in_the_middle_it_ends_the_same(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(arguments(place, tmp_path / "whole")) == 0
    collate, calls = training.collate, [0]

    def stopped(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == 5:  # in the epoch in which the backbone learns
            raise KeyboardInterrupt
        return collate(*args)

    monkeypatch.setattr(training, "collate", stopped)
    assert run(arguments(place, tmp_path / "cut")) != 0
    assert run(arguments(place, tmp_path / "cut")) == 0
    cut, whole = hashes(tmp_path / "cut"), hashes(tmp_path / "whole")
    assert cut == whole


def test_the_backbone_learns_from_half_of_the_epochs_on(place: Path, tmp_path: Path) -> None:
    given = arguments(place, tmp_path / "run", "--epochs", "3")
    at = given.index("--backbone-from")
    assert run(given[:at] + given[at + 2 :]) == 0
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert info["config"]["backbone_from"] == 1


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--preset", "paper", "--epochs", "8", "--backbone-from", "8"], "in 8 epochs"),
        (["--backbone-from", "2"], "the backbone would never learn in 2 epochs"),
        (["--crop", "20"], "--crop"),
        (["--crop", "32"], "gives 1 positions of a map, expected --regions 2"),
    ],
)
def test_settings_without_effect_are_usage_errors(
    place: Path, tmp_path: Path, more: list[str], why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments(place, tmp_path / "run", *more)) == Exit.USAGE
    assert why in capfd.readouterr().err


def test_a_tar_is_refused(place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import tarfile

    with tarfile.open(tmp_path / "photos.tar", "w") as archive:
        archive.add(place / "photos" / "p1.png", "p1.png")
    given = arguments(place, tmp_path / "run")
    given[3] = str(tmp_path / "photos.tar")
    assert run(given) == Exit.USAGE
    assert "unpack it" in capfd.readouterr().err
