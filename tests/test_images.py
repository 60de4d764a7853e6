"""Pixels with one meaning, timm's own preprocessing bit for bit, pooling, and rows that depend on nothing else."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform

from vgtools import images
from vgtools.images import Featurizer, decode, describe, extract
from vgtools.io import DataError, Exit
from vgtools.sources import ImageError, Item, Source

Array = np.ndarray[Any, Any]


def drawing(height: int = 40, width: int = 60, seed: int = 0) -> Array:
    """Return a picture in which no two corners, rows or colours are alike."""
    y, x = np.mgrid[:height, :width]
    waves = [127 + 100 * np.sin(x / (3 + seed) + c) * np.cos(y / (5 + c) + seed) for c in range(3)]
    return np.stack(waves, -1).round().astype(np.uint8)


def encoded(image: Image.Image | Array, kind: str = "PNG", **how: Any) -> bytes:
    stream = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(stream, kind, **how)
    return stream.getvalue()


def pixels(data: bytes) -> Array:
    image = decode(data)
    assert image.mode == "RGB"
    return np.asarray(image)


# ---------------------------------------------------------------------------------------------------------------- pixels

UPRIGHT = drawing(4, 6)
STORED = {
    1: UPRIGHT,
    2: UPRIGHT[:, ::-1],
    3: UPRIGHT[::-1, ::-1],
    4: UPRIGHT[::-1],
    5: UPRIGHT.transpose(1, 0, 2),
    6: np.rot90(UPRIGHT, 1),  # the camera says: turn clockwise to see it upright
    7: np.rot90(UPRIGHT, 2).transpose(1, 0, 2),
    8: np.rot90(UPRIGHT, -1),
}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_exif_orientation_is_applied(orientation: int, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    how = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    data = encoded(np.ascontiguousarray(STORED[orientation]), kind, exif=exif, **how)
    np.testing.assert_array_equal(pixels(data), UPRIGHT)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")  # `extract` ignores it too
def test_exif_of_a_jpeg_is_applied_and_a_senseless_one_ignored() -> None:
    block = np.zeros((16, 32, 3), np.uint8)
    block[:, 16:] = 255  # right half white
    for orientation, white in (
        (1, np.s_[:, 20:]),
        (6, np.s_[20:, :]),
        (3, np.s_[:, :12]),
        (8, np.s_[:12, :]),
        (99, np.s_[:, 20:]),
    ):
        exif = Image.Exif()
        exif[0x0112] = orientation
        found = pixels(encoded(block, "JPEG", exif=exif))
        assert found.mean() == pytest.approx(127.5, abs=2)
        assert found[white].min() > 250, orientation
    broken = encoded(block, "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert pixels(broken)[:, 20:].min() > 250


def png_chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def raw_png(width: int, height: int, depth: int, colour: int, rows: bytes, extra: bytes = b"") -> bytes:
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + extra + png_chunk(b"IDAT", zlib.compress(rows)) + png_chunk(b"IEND", b"")


def test_sixteen_bits_keep_their_high_byte() -> None:
    grey = np.array([[0, 255, 256, 0x80FF, 65535]], ">u2")
    expected = [0, 0, 1, 0x80, 255]
    data = raw_png(5, 1, 16, 0, b"\0" + grey.tobytes())
    np.testing.assert_array_equal(pixels(data)[0], np.repeat(np.array(expected)[:, None], 3, 1))
    colour = raw_png(5, 1, 16, 2, b"\0" + np.repeat(grey, 3, 0).T.tobytes())
    np.testing.assert_array_equal(pixels(colour)[0, :, 1], expected)
    tiff = encoded(Image.fromarray(grey.astype("<u2")), "TIFF")
    np.testing.assert_array_equal(pixels(tiff)[0, :, 2], expected)
    pgm = b"P5 5 1 65535\n" + grey.tobytes()
    np.testing.assert_array_equal(pixels(pgm)[0, :, 0], expected)
    clear = raw_png(5, 1, 16, 0, b"\0" + grey.tobytes(), png_chunk(b"tRNS", struct.pack(">H", 256)))
    np.testing.assert_array_equal(pixels(clear)[0, :, 0], [0, 0, 255, 0x80, 255])


def test_transparency_lies_on_white() -> None:
    white, half = [255, 255, 255], [255, 127, 127]
    rgba = np.array([[[255, 0, 0, 0], [255, 0, 0, 128], [255, 0, 0, 255]]], np.uint8)
    np.testing.assert_array_equal(pixels(encoded(rgba))[0], [white, half, [255, 0, 0]])
    la = np.array([[[0, 0], [0, 255]]], np.uint8)
    np.testing.assert_array_equal(pixels(encoded(Image.fromarray(la)))[0], [white, [0, 0, 0]])
    palette = Image.new("P", (2, 1))
    palette.putpalette([255, 0, 0, 0, 0, 255])
    palette.putpixel((1, 0), 1)
    np.testing.assert_array_equal(pixels(encoded(palette, transparency=0))[0], [white, [0, 0, 255]])
    np.testing.assert_array_equal(pixels(encoded(palette, "GIF", transparency=1))[0], [[255, 0, 0], white])
    key = raw_png(2, 1, 8, 2, b"\0" + bytes([255, 0, 0, 0, 0, 255]), png_chunk(b"tRNS", struct.pack(">HHH", 255, 0, 0)))
    np.testing.assert_array_equal(pixels(key)[0], [white, [0, 0, 255]])


def test_other_modes_become_rgb() -> None:
    grey = drawing()[..., 0]
    np.testing.assert_array_equal(pixels(encoded(grey)), np.repeat(grey[..., None], 3, 2))
    np.testing.assert_array_equal(pixels(encoded(Image.fromarray(grey > 127)))[..., 0], np.where(grey > 127, 255, 0))
    cmyk = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    np.testing.assert_allclose(pixels(encoded(cmyk, "JPEG", quality=95))[8, 8], [255, 0, 0], atol=3)


def test_an_animation_is_its_first_frame() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ((255, 0, 0), (0, 255, 0))]
    for kind, how in (("GIF", {}), ("PNG", {}), ("WEBP", {"lossless": True}), ("TIFF", {})):
        data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **how)
        np.testing.assert_array_equal(pixels(data)[4, 4], [255, 0, 0], err_msg=kind)


def test_a_plain_picture_comes_through_unchanged_whatever_its_kind() -> None:
    for kind in ("PNG", "BMP", "TIFF", "PPM"):
        np.testing.assert_array_equal(pixels(encoded(drawing(), kind)), drawing())
    jpeg = encoded(drawing(), "JPEG", quality=90)
    np.testing.assert_array_equal(pixels(jpeg), np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB")))


def test_a_cut_file_is_refused_or_whole_never_half() -> None:
    for kind, spare in (("JPEG", 1), ("PNG", 30), ("WEBP", 1), ("GIF", 3)):
        whole = encoded(drawing(), kind)
        for cut in sorted({*range(0, len(whole), 23), *range(len(whole) - 40, len(whole))}):
            try:
                found = pixels(whole[:cut])
            except ImageError:
                continue
            assert cut >= len(whole) - spare, (kind, cut, len(whole))  # only check sums and end marks are missing
            np.testing.assert_array_equal(found, pixels(whole))
    progressive = encoded(drawing(), "JPEG", progressive=True)
    with pytest.raises(ImageError, match="truncated"):
        decode(progressive[: len(progressive) // 2])


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "0 bytes"),
        (b"\xef\xbb\xbf <!DOCTYPE html><html>404", "an HTML page, not an image"),
        (b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>', "an SVG drawing; rasterise it first"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no image of a known kind"),
        (b"\x80\x04cos\nsystem\n", "no image of a known kind"),
        (raw_png(20000, 20000, 8, 0, b"\0"), r"400000000 pixels|exceeds limit|20000x20000"),
        (raw_png(10000, 9500, 8, 0, b"\0"), "decompression bomb|truncated|cannot be decoded"),
    ],
)
def test_what_is_no_image_says_so(data: bytes, why: str) -> None:
    with pytest.raises(ImageError, match=why):
        decode(data)


def test_pixels_without_a_defined_white_are_refused() -> None:
    for values in (np.ones((2, 2), np.float32), np.full((2, 2), 70000, np.int32)):
        with pytest.raises(ImageError, match="no defined white"):
            decode(encoded(Image.fromarray(values), "TIFF"))


def test_a_bomb_is_refused_by_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_PIXELS", 100)
    with pytest.raises(ImageError, match="11x10 pixels; more than 100 are not decoded"):
        decode(encoded(drawing(10, 11)))
    assert decode(encoded(drawing(10, 10))).size == (10, 10)


# -------------------------------------------------------------------------------------------------------------- features


@pytest.fixture(scope="module")
def resnet() -> torch.nn.Module:
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=0).eval()


def small(**changes: Any) -> dict[str, Any]:
    """Return a preprocessing for 64-pixel pictures."""
    config = {"input_size": (3, 64, 64), "interpolation": "bicubic", "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.25)}
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
def test_what_the_network_sees_is_timms_own_transform_bit_for_bit(resnet: torch.nn.Module, changes: dict[str, Any]) -> None:
    config = small(**changes)
    featurizer = Featurizer(resnet, config)
    timms = create_transform(**config, is_training=False)
    for shape in ((40, 60), (150, 90), (64, 64), (33, 500)):
        image = Image.fromarray(drawing(*shape))
        ours = featurizer.normalise(torch.from_numpy(featurizer.pixels(image))[None])[0]
        assert torch.equal(ours, timms(image)), shape


def test_pooling_of_a_convolutional_network(resnet: torch.nn.Module) -> None:
    picture = np.stack([Featurizer(resnet, small()).pixels(Image.fromarray(drawing(seed=s))) for s in range(3)])
    made = {p: Featurizer(resnet, small(), p, batch_size=2) for p in ("mean", "max", "none")}
    rows = {p: f.features(picture) for p, f in made.items()}
    with torch.inference_mode():
        inputs = made["mean"].normalise(torch.from_numpy(picture))
        maps = resnet.forward_features(inputs).numpy()  # type: ignore[operator]
        pooled = resnet(inputs).numpy()
    assert maps.shape == (3, 96, *made["none"].grid)
    np.testing.assert_allclose(rows["mean"], pooled, rtol=1e-4, atol=1e-5)  # timm's own global pooling
    np.testing.assert_allclose(rows["max"], maps.max((2, 3)), rtol=1e-4, atol=1e-5)
    height, width = made["none"].grid
    for y in range(height):
        for x in range(width):
            np.testing.assert_allclose(rows["none"][:, y * width + x], maps[:, :, y, x], rtol=1e-4, atol=1e-5)
    assert [f.row_shape for f in made.values()] == [(96,), (96,), (height * width, 96)]


def test_a_transformers_class_token_has_no_place_in_the_map() -> None:
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


def test_a_map_with_channels_last_is_pooled_over_its_positions() -> None:
    class Swin(torch.nn.Conv2d):
        num_features = 5

        def forward_features(self, x: torch.Tensor) -> torch.Tensor:
            return self(x).permute(0, 2, 3, 1)

    torch.manual_seed(0)
    featurizer = Featurizer(Swin(3, 5, 16, 16).eval().requires_grad_(False), small(), "max")
    assert (featurizer.grid, featurizer.row_shape) == ([4, 4], (5,))
    picture = featurizer.pixels(Image.fromarray(drawing()))[None]
    expected = featurizer.model(featurizer.normalise(torch.from_numpy(picture))).amax((2, 3)).numpy()
    np.testing.assert_allclose(featurizer.features(picture), expected, rtol=1e-5)


def test_float16_halves_the_file_and_bfloat16_computes(resnet: torch.nn.Module) -> None:
    picture = Featurizer(resnet, small()).pixels(Image.fromarray(drawing()))[None]
    whole = Featurizer(resnet, small()).features(picture)
    half = Featurizer(resnet, small(), dtype="float16").features(picture)
    assert half.dtype == np.float16
    np.testing.assert_array_equal(half, whole.astype(np.float16))
    torch.manual_seed(0)
    brain = Featurizer(timm.create_model("test_resnet", num_classes=0).eval().bfloat16(), small()).features(picture)
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
    assert describe(small())["fingerprint"] == describe(dict(reversed(small().items())))["fingerprint"]
    assert describe(small())["fingerprint"] != describe(small(crop_pct=0.9))["fingerprint"]
    assert describe(small())["mean"] == [0.5, 0.4, 0.3]


def test_a_too_thin_picture_is_refused_before_it_is_resized(resnet: torch.nn.Module) -> None:
    with pytest.raises(ImageError, match="1x60000 pixels are too thin"):
        Featurizer(resnet, small()).pixels(Image.new("RGB", (1, 60000)))
    with pytest.raises(DataError, match="takes 1 channels"):
        Featurizer(resnet, small(input_size=(1, 64, 64)))


# -------------------------------------------------------------------------------------------------------------- pipeline


def source_of(pictures: list[bytes]) -> Source:
    def items() -> Iterator[Item]:
        for number, data in enumerate(pictures):
            yield Item(f"{number}.png", str(len(data)), lambda data=data: data)  # type: ignore[misc]

    return Source(items(), len(pictures), "listing")


def together(batches: list[images.Batch]) -> tuple[list[str], Array, list[tuple[str, str]]]:
    ids = [i for b in batches for i in b.ids]
    return ids, np.concatenate([b.features for b in batches]), [e for b in batches for e in b.errors]


PICTURES = [encoded(drawing(seed=s)) for s in range(11)]


def test_order_is_kept_and_broken_images_leave_the_others_untouched(resnet: torch.nn.Module) -> None:
    featurizer = Featurizer(resnet, small(), batch_size=4)
    ids, whole, errors = together(list(extract(source_of(PICTURES), featurizer)))
    assert (ids, errors) == ([f"{i}.png" for i in range(11)], [])
    alone = [featurizer.features(featurizer.pixels(decode(p))[None])[0] for p in PICTURES]
    np.testing.assert_array_equal(whole, alone)
    broken = [b"" if i in (0, 5) else p for i, p in enumerate(PICTURES)]
    ids, rest, errors = together(list(extract(source_of(broken), featurizer, workers=3)))
    assert ids == [f"{i}.png" for i in range(11) if i not in (0, 5)]
    assert errors == [("0.png", "0 bytes"), ("5.png", "0 bytes")]
    np.testing.assert_array_equal(rest, np.delete(whole, (0, 5), 0))


def test_a_run_goes_on_behind_any_batch_and_checks_what_is_done(resnet: torch.nn.Module) -> None:
    featurizer = Featurizer(resnet, small(), batch_size=3)
    batches = list(extract(source_of(PICTURES), featurizer))
    assert [b.items for b in batches] == [3, 6, 9, 11]
    for done, batch in enumerate(batches, 1):
        rest = list(extract(source_of(PICTURES), featurizer, items=batch.items, digest=batch.digest))
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
def test_features_that_are_none_are_error_rows(value: int, dtype: str, why: str | None) -> None:
    config = small(mean=(0.0, 0.0, 0.0), std=(1 / 255, 1 / 255, 1 / 255), crop_pct=1.0)
    featurizer = Featurizer(Odd(3, 3, 1).eval(), config, dtype=dtype)
    flat = [encoded(np.full((64, 64, 3), v, np.uint8)) for v in (9, value, 9)]
    ids, rows, errors = together(list(extract(source_of(flat), featurizer)))
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
    ids, rows, errors = together(list(extract(source_of(PICTURES), featurizer, workers=1)))
    assert network.sizes == [8, 4, 2, 2, 2, 2, 2, 2]
    assert featurizer.size == 2
    assert (ids, errors) == ([f"{i}.png" for i in range(11)], [])
    expected = [featurizer.normalise(torch.from_numpy(featurizer.pixels(decode(p)))[None]).mean((2, 3))[0] for p in PICTURES]
    np.testing.assert_allclose(rows, torch.stack(expected), rtol=1e-4, atol=1e-5)


def test_out_of_memory_with_one_image_gives_up_and_other_errors_are_not_taken_for_it() -> None:
    network = Greedy(3, 3, 1)
    featurizer = Featurizer(network, small(), batch_size=4)
    network.most = 0
    with pytest.raises(DataError, match="out of memory with one image") as caught:
        list(extract(source_of(PICTURES), featurizer))
    assert caught.value.code == Exit.CANNOT_GO_ON
    assert images._out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"))
    assert not images._out_of_memory(RuntimeError("shapes do not match"))


def test_an_error_in_a_worker_is_raised_here_and_threads_are_given_back(resnet: torch.nn.Module) -> None:
    threads = torch.get_num_threads()

    def items() -> Iterator[Item]:
        yield Item("a.png", "", lambda: PICTURES[0])
        yield Item("b.png", "", lambda: 1 // 0)  # type: ignore[arg-type, return-value]

    with pytest.raises(ZeroDivisionError):
        list(extract(Source(items(), 2, ""), Featurizer(resnet, small())))
    assert torch.get_num_threads() == threads


def test_an_image_whose_name_fits_no_line_is_an_error_row(resnet: torch.nn.Module) -> None:
    names = ["a\nb.png", "\udcffc.png", "ok.png"]
    items = iter([Item(n, "", lambda: PICTURES[0]) for n in names])
    ids, _, errors = together(list(extract(Source(items, 3, ""), Featurizer(resnet, small()))))
    assert ids == ["ok.png"]
    assert errors == [
        ("a\nb.png", "its name holds a line break or NUL, which an id cannot"),
        ("\\udcffc.png", "its name is not valid UTF-8"),
    ]
