"""The preprocessing of timm bit for bit, pooling, and rows that depend on nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform

from tests.tiny.images import drawing, encoded
from vgtools.images.decoding import decode
from vgtools.images.extract import FeatureBatch, extract
from vgtools.images.featurizer import Featurizer, describe
from vgtools.images.sources import ImageError, ImageSource, Item
from vgtools.io.errors import DataError, Exit

Array = np.ndarray[Any, Any]


# ----------------------------------------------------------------------------------------- features


@pytest.fixture(scope="module")
def resnet() -> torch.nn.Module:
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=0).eval()


def small(**changes: Any) -> dict[str, Any]:
    """Return a preprocessing for 64-pixel pictures."""
    config = {
        "input_size": (3, 64, 64),
        "interpolation": "bicubic",
        "mean": (0.5, 0.4, 0.3),
        "std": (0.2, 0.3, 0.25),
    }
    return {**config, "crop_pct": 0.875, "crop_mode": "center", **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"interpolation": "bilinear", "crop_pct": 1.0},
        {"crop_mode": "squash"},
        {"crop_mode": "border", "crop_pct": 0.9},
        {"input_size": (3, 64, 96)},
    ],
)
def test_what_the_network_sees_is_timms_own_transform_bit_for_bit(
    resnet: torch.nn.Module, changes: dict[str, Any]
) -> None:
    config = small(**changes)
    featurizer = Featurizer(resnet, config)
    timms = create_transform(**config, is_training=False)
    for shape in ((40, 60), (150, 90), (64, 64), (33, 500)):
        image = Image.fromarray(drawing(*shape))
        ours = featurizer.normalise(torch.from_numpy(featurizer.pixels(image))[None])[0]
        assert torch.equal(ours, timms(image)), shape


def test_pooling_of_a_convolutional_network(resnet: torch.nn.Module) -> None:
    picture = np.stack(
        [Featurizer(resnet, small()).pixels(Image.fromarray(drawing(seed=s))) for s in range(3)]
    )
    made = {p: Featurizer(resnet, small(), p, batch_size=2) for p in ("mean", "max", "none")}
    rows = {p: f.features(picture) for p, f in made.items()}
    with torch.inference_mode():
        inputs = made["mean"].normalise(torch.from_numpy(picture))
        maps = resnet.forward_features(inputs).numpy()  # type: ignore[operator]
        pooled = resnet(inputs).numpy()
    assert maps.shape == (3, 96, *made["none"].grid)
    np.testing.assert_allclose(
        rows["mean"], pooled, rtol=1e-4, atol=1e-5
    )  # timm's own global pooling
    np.testing.assert_allclose(rows["max"], maps.max((2, 3)), rtol=1e-4, atol=1e-5)
    height, width = made["none"].grid
    for y in range(height):
        for x in range(width):
            np.testing.assert_allclose(
                rows["none"][:, y * width + x], maps[:, :, y, x], rtol=1e-4, atol=1e-5
            )
    assert [f.row_shape for f in made.values()] == [(96,), (96,), (height * width, 96)]


def test_a_transformers_class_token_has_no_position_in_the_map() -> None:
    torch.manual_seed(0)
    vit = timm.create_model("test_vit", num_classes=0, img_size=(64, 96)).eval()
    config = small(input_size=(3, 64, 96))
    featurizer = Featurizer(vit, config, "none")
    assert featurizer.grid == [4, 6]
    picture = featurizer.pixels(Image.fromarray(drawing()))[None]
    with torch.inference_mode():
        tokens = vit.forward_features(featurizer.normalise(torch.from_numpy(picture))).numpy()
    assert tokens.shape == (1, 25, 64)
    np.testing.assert_allclose(featurizer.features(picture), tokens[:, 1:], rtol=1e-4, atol=1e-5)
    mean = Featurizer(vit, config, "mean").features(picture)
    np.testing.assert_allclose(mean, tokens[:, 1:].mean(1), rtol=1e-4, atol=1e-5)


class Tokens(torch.nn.Conv2d):
    """A network that returns class tokens before its positions and does not say so."""

    num_features = 5

    def __init__(self, classes: int, positions: int = 16) -> None:
        super().__init__(3, 5, 16, 16)
        self.cls_tokens = torch.nn.Parameter(torch.full((1, classes, 5), 9.0))
        self.positions = positions

    def forward_features(self, x: torch.Tensor) -> torch.Tensor:
        places = self(x).flatten(2).transpose(1, 2)[:, : self.positions]
        return torch.cat([self.cls_tokens.expand(len(x), -1, -1), places], 1)


def test_a_class_token_that_the_network_does_not_state_is_left_out() -> None:
    featurizer = Featurizer(Tokens(1).eval().requires_grad_(False), small(), "none")
    picture = featurizer.pixels(Image.fromarray(drawing()))[None]
    assert featurizer.row_shape == (16, 5)
    assert not (featurizer.features(picture) == 9).any()
    for classes, positions in ((2, 16), (1, 0), (2, 0), (1, 12)):
        with pytest.raises(DataError, match="which are class tokens is not known; choose another"):
            Featurizer(Tokens(classes, positions).eval().requires_grad_(False), small(), "mean")


def test_a_network_of_several_maps_is_refused() -> None:
    class Several(torch.nn.Conv2d):
        num_features = 5

        def forward_features(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [self(x), self(x)]

    with pytest.raises(DataError, match="gives 2 maps of features, expected one"):
        Featurizer(Several(3, 5, 16, 16).eval().requires_grad_(False), small())


def test_a_map_with_channels_last_is_pooled_over_its_positions() -> None:
    class Swin(torch.nn.Conv2d):
        num_features = 5

        def forward_features(self, x: torch.Tensor) -> torch.Tensor:
            return self(x).permute(0, 2, 3, 1)

    torch.manual_seed(0)
    featurizer = Featurizer(Swin(3, 5, 16, 16).eval().requires_grad_(False), small(), "max")
    assert (featurizer.grid, featurizer.row_shape) == ([4, 4], (5,))
    picture = featurizer.pixels(Image.fromarray(drawing()))[None]
    expected = (
        featurizer.model(featurizer.normalise(torch.from_numpy(picture))).amax((2, 3)).numpy()
    )
    np.testing.assert_allclose(featurizer.features(picture), expected, rtol=1e-5)


def test_float16_halves_the_file_and_bfloat16_computes(resnet: torch.nn.Module) -> None:
    picture = Featurizer(resnet, small()).pixels(Image.fromarray(drawing()))[None]
    whole = Featurizer(resnet, small()).features(picture)
    half = Featurizer(resnet, small(), dtype="float16").features(picture)
    assert half.dtype == np.float16
    np.testing.assert_array_equal(half, whole.astype(np.float16))
    torch.manual_seed(0)
    brain = Featurizer(
        timm.create_model("test_resnet", num_classes=0).eval().bfloat16(), small()
    ).features(picture)
    assert brain.dtype == np.float32
    assert (brain * whole).sum() / np.linalg.norm(brain) / np.linalg.norm(whole) > 0.999
    assert not np.array_equal(brain, whole)


def test_a_row_does_not_depend_on_how_many_come_along(resnet: torch.nn.Module) -> None:
    featurizer = Featurizer(resnet, small(), batch_size=4)
    batch = np.stack([featurizer.pixels(Image.fromarray(drawing(seed=s))) for s in range(4)])
    whole = featurizer.features(batch)
    for count in (1, 2, 3):
        np.testing.assert_array_equal(featurizer.features(batch[:count]), whole[:count])


def test_preprocessing_has_a_fingerprint_of_its_values() -> None:
    assert (
        describe(small())["fingerprint"] == describe(dict(reversed(small().items())))["fingerprint"]
    )
    assert describe(small())["fingerprint"] != describe(small(crop_pct=0.9))["fingerprint"]
    assert describe(small())["mean"] == [0.5, 0.4, 0.3]


def test_a_too_thin_picture_is_refused_before_it_is_resized(resnet: torch.nn.Module) -> None:
    with pytest.raises(ImageError, match="1x60000 pixels are too thin"):
        Featurizer(resnet, small()).pixels(Image.new("RGB", (1, 60000)))
    with pytest.raises(DataError, match="takes 1 channels"):
        Featurizer(resnet, small(input_size=(1, 64, 64)))


# ----------------------------------------------------------------------------------------- pipeline


def source_of(pictures: list[bytes]) -> ImageSource:
    def items() -> Iterator[Item]:
        for number, data in enumerate(pictures):
            yield Item(f"{number}.png", str(len(data)), lambda data=data: data)  # type: ignore[misc]

    return ImageSource(items(), len(pictures), "listing")


def concat_sources(batches: list[FeatureBatch]) -> tuple[list[str], Array, list[tuple[str, str]]]:
    ids = [i for b in batches for i in b.ids]
    return (
        ids,
        np.concatenate([b.features for b in batches]),
        [e for b in batches for e in b.errors],
    )


PICTURES = [encoded(drawing(seed=s)) for s in range(11)]


def test_order_is_kept_and_broken_images_leave_the_others_untouched(
    resnet: torch.nn.Module,
) -> None:
    featurizer = Featurizer(resnet, small(), batch_size=4)
    ids, whole, errors = concat_sources(list(extract(source_of(PICTURES), featurizer)))
    assert (ids, errors) == ([f"{i}.png" for i in range(11)], [])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the workers: with more, some libraries sum in another order
    alone = [featurizer.features(featurizer.pixels(decode(p))[None])[0] for p in PICTURES]
    torch.set_num_threads(threads)
    np.testing.assert_array_equal(whole, alone)
    broken = [b"" if i in (0, 5) else p for i, p in enumerate(PICTURES)]
    ids, rest, errors = concat_sources(list(extract(source_of(broken), featurizer, workers=3)))
    assert ids == [f"{i}.png" for i in range(11) if i not in (0, 5)]
    assert errors == [("0.png", "0 bytes"), ("5.png", "0 bytes")]
    np.testing.assert_array_equal(rest, np.delete(whole, (0, 5), 0))


def test_a_run_resumes_after_any_batch_and_checks_what_is_done(resnet: torch.nn.Module) -> None:
    featurizer = Featurizer(resnet, small(), batch_size=3)
    batches = list(extract(source_of(PICTURES), featurizer))
    assert [b.items for b in batches] == [3, 6, 9, 11]
    for done, batch in enumerate(batches, 1):
        rest = list(
            extract(source_of(PICTURES), featurizer, items=batch.items, digest=batch.digest)
        )
        assert [b.digest for b in rest] == [b.digest for b in batches[done:]]
        for ours, theirs in zip(rest, batches[done:], strict=True):
            np.testing.assert_array_equal(ours.features, theirs.features)
    for changed in ([PICTURES[1] + b"x", *PICTURES[1:]], PICTURES[:2]):
        with pytest.raises(DataError, match="the images changed") as caught:
            list(extract(source_of(changed), featurizer, items=3, digest=batches[0].digest))
        assert caught.value.code == Exit.CONFIG


class Odd(torch.nn.Conv2d):
    """A network whose features of a picture are NaN, infinite, zero or large by its first pixel."""

    num_features = 3

    def forward_features(self, x: torch.Tensor) -> torch.Tensor:
        kind = x[:, :1, :1, :1]
        out = torch.where(kind == 1, float("nan"), x)
        out = torch.where(kind == 2, -float("inf"), out)
        return torch.where(kind == 3, 0, torch.where(kind == 4, 1e6, out))


@pytest.mark.parametrize(
    ("value", "dtype", "why"),
    [
        (1, "float32", "its features are NaN or infinite"),
        (2, "float32", "its features are NaN or infinite"),
        (3, "float32", "its features are all zero"),
        (4, "float16", "its features are infinite in float16; --dtype float32 may hold them"),
        (4, "float32", None),
    ],
)
def test_unusable_features_are_error_rows(value: int, dtype: str, why: str | None) -> None:
    config = small(mean=(0.0, 0.0, 0.0), std=(1 / 255, 1 / 255, 1 / 255), crop_pct=1.0)
    featurizer = Featurizer(Odd(3, 3, 1).eval(), config, dtype=dtype)
    flat = [encoded(np.full((64, 64, 3), v, np.uint8)) for v in (9, value, 9)]
    ids, rows, errors = concat_sources(list(extract(source_of(flat), featurizer)))
    assert errors == ([("1.png", why)] if why else [])
    assert ids == (["0.png", "2.png"] if why else ["0.png", "1.png", "2.png"])
    np.testing.assert_allclose(rows[[0, -1]].astype(np.float32), 9, rtol=1e-3)


class Greedy(torch.nn.Conv2d):
    """A network that runs out of memory when more than `most` pictures come at once."""

    num_features, most, sizes = 3, 2, list[int]()

    def forward_features(self, x: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(x))
        if len(x) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return x


def test_out_of_memory_halves_the_batch_and_keeps_the_order() -> None:
    network = Greedy(3, 3, 1)
    featurizer = Featurizer(network, small(), batch_size=8)
    network.sizes = []
    ids, rows, errors = concat_sources(list(extract(source_of(PICTURES), featurizer, workers=1)))
    assert network.sizes == [8, 4, 2, 2, 2, 2, 2, 2]
    assert featurizer.size == 2
    assert (ids, errors) == ([f"{i}.png" for i in range(11)], [])
    expected = [
        featurizer.normalise(torch.from_numpy(featurizer.pixels(decode(p)))[None]).mean((2, 3))[0]
        for p in PICTURES
    ]
    np.testing.assert_allclose(rows, torch.stack(expected), rtol=1e-4, atol=1e-5)


def test_out_of_memory_with_one_image_gives_up() -> None:
    network = Greedy(3, 3, 1)
    featurizer = Featurizer(network, small(), batch_size=4)
    network.most = 0
    with pytest.raises(DataError, match="out of memory with one image") as caught:
        list(extract(source_of(PICTURES), featurizer))
    assert caught.value.code == Exit.CANNOT_CONTINUE


def test_an_error_in_a_worker_is_raised_here_and_threads_are_given_back(
    resnet: torch.nn.Module,
) -> None:
    threads = torch.get_num_threads()

    def items() -> Iterator[Item]:
        yield Item("a.png", "", lambda: PICTURES[0])
        yield Item("b.png", "", lambda: 1 // 0)  # type: ignore[arg-type, return-value]

    with pytest.raises(ZeroDivisionError):
        list(extract(ImageSource(items(), 2, ""), Featurizer(resnet, small())))
    assert torch.get_num_threads() == threads


def test_an_image_whose_name_fits_no_line_is_an_error_row(resnet: torch.nn.Module) -> None:
    names = ["a\nb.png", "\udcffc.png", "ok.png"]
    items = iter([Item(n, "", lambda: PICTURES[0]) for n in names])
    ids, _, errors = concat_sources(
        list(extract(ImageSource(items, 3, ""), Featurizer(resnet, small())))
    )
    assert ids == ["ok.png"]
    assert errors == [
        ("a\nb.png", "its name holds a line break or NUL, which an id cannot"),
        ("\\udcffc.png", "its name is not valid UTF-8"),
    ]
