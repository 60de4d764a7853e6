"""One meaning for every image file: golden pixels for odd ones, a reason for non-images."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.tiny.images import drawing, encoded, save_photo
from vgtools.images import decoding
from vgtools.images.decoding import decode
from vgtools.images.sources import ImageError

Array = np.ndarray[Any, Any]


def pixels(data: bytes) -> Array:
    image = decode(data)
    assert image.mode == "RGB"
    return np.asarray(image)


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


def test_a_size_is_of_the_upright_picture(tmp_path: Path) -> None:
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        data = encoded(Image.new("RGB", (6, 4) if orientation < 5 else (4, 6)), "JPEG", exif=exif)
        (tmp_path / "x.jpg").write_bytes(data)
        assert decoding.size_of(str(tmp_path / "x.jpg")) == decode(data).size == (6, 4)


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


def raw_png(
    width: int, height: int, depth: int, colour: int, rows: bytes, extra: bytes = b""
) -> bytes:
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + header
        + extra
        + png_chunk(b"IDAT", zlib.compress(rows))
        + png_chunk(b"IEND", b"")
    )


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


@pytest.mark.parametrize("tags", [{258: 12}, {262: 0}])
def test_other_greys_of_a_tiff_are_refused(tags: dict[int, int]) -> None:
    data = bytearray(encoded(Image.fromarray(np.array([[0, 65535]], np.uint16)), "TIFF"))
    assert pixels(bytes(data))[0, :, 0].tolist() == [0, 255]
    count = struct.unpack_from("<H", data, at := struct.unpack_from("<I", data, 4)[0])[0]
    for entry in range(at + 2, at + 2 + 12 * count, 12):
        tag = struct.unpack_from("<H", data, entry)[0]
        if tag in tags:
            struct.pack_into("<H", data, entry + 8, tags[tag])
    with pytest.raises(ImageError, match="not 16-bit with black as zero"):
        decode(bytes(data))


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
    np.testing.assert_array_equal(
        pixels(encoded(palette, "GIF", transparency=1))[0], [[255, 0, 0], white]
    )
    key = raw_png(
        2,
        1,
        8,
        2,
        b"\0" + bytes([255, 0, 0, 0, 0, 255]),
        png_chunk(b"tRNS", struct.pack(">HHH", 255, 0, 0)),
    )
    np.testing.assert_array_equal(pixels(key)[0], [white, [0, 0, 255]])


def test_other_modes_become_rgb() -> None:
    grey = drawing()[..., 0]
    np.testing.assert_array_equal(pixels(encoded(grey)), np.repeat(grey[..., None], 3, 2))
    np.testing.assert_array_equal(
        pixels(encoded(Image.fromarray(grey > 127)))[..., 0], np.where(grey > 127, 255, 0)
    )
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
    np.testing.assert_array_equal(
        pixels(jpeg), np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"))
    )


def test_a_cut_file_is_refused_or_whole_never_half() -> None:
    for kind, spare in (("JPEG", 1), ("PNG", 30), ("WEBP", 1), ("GIF", 3)):
        whole = encoded(drawing(), kind)
        for cut in sorted({*range(0, len(whole), 23), *range(len(whole) - 40, len(whole))}):
            try:
                found = pixels(whole[:cut])
            except ImageError:
                continue
            assert cut >= len(whole) - spare, (
                kind,
                cut,
                len(whole),
            )  # only check sums and end marks are missing
            np.testing.assert_array_equal(found, pixels(whole))
    progressive = encoded(drawing(), "JPEG", progressive=True)
    with pytest.raises(ImageError, match="truncated"):
        decode(progressive[: len(progressive) // 2])


@pytest.mark.parametrize("size", [(60, 45), (224, 224)])
def test_a_png_whose_end_is_zeros_is_refused(tmp_path: Path, size: tuple[int, int]) -> None:
    """A copy that crashed leaves them, and a decoder may take them for colours."""
    whole = save_photo(tmp_path / "a.png", 13, size).read_bytes()
    last = whole.rindex(b"IEND") - 4
    decoded = 0
    for cut in {*range(60, last, max(1, last // 60)), last - 4}:
        data = whole[:cut] + bytes(len(whole) - cut)
        with contextlib.suppress(OSError, SyntaxError), Image.open(io.BytesIO(data)) as image:
            image.load()
            decoded += 1
        with pytest.raises(ImageError, match=r"checksum|cannot be decoded"):
            decode(data)
    assert decoded  # by Pillow, which compares no checksum
    assert pixels(whole).shape == (*size[::-1], 3)


def thumbnailed(data: bytes) -> bytes:
    """Return a JPEG with another one, whole, in a segment of its header."""
    body = b"Exif\0\0" + encoded(drawing(8, 8), "JPEG")
    return data[:2] + b"\xff\xe1" + (len(body) + 2).to_bytes(2) + body + data[2:]


# Pillow decodes zeros to grey where the picture needed more bytes than they do.
NOISE = np.random.default_rng(0).integers(0, 256, (2, 100, 160, 3), np.uint8)
JPEGS = {
    "plain": encoded(NOISE[0], "JPEG"),
    "progressive": encoded(NOISE[0], "JPEG", progressive=True),
    "restarts": encoded(NOISE[0], "JPEG", restart_marker_blocks=3),
    "thumbnail": thumbnailed(encoded(NOISE[0], "JPEG")),
    "MPO": encoded(NOISE[0], "MPO", save_all=True, append_images=[Image.fromarray(NOISE[1])]),
}


@pytest.mark.parametrize("kind", JPEGS)
def test_a_jpeg_whose_end_is_zeros_is_refused(kind: str) -> None:
    """A download that stopped in a file of the full size leaves them."""
    whole = JPEGS[kind]
    end = whole.index(b"\xff\xd9", len(whole) // 4)  # the end mark of its (first) picture
    decoded = 0
    for cut in (*range(end // 3, end, end // 40), end, end + 1):
        data = whole[:cut] + bytes(len(whole) - cut)
        with contextlib.suppress(OSError, SyntaxError), Image.open(io.BytesIO(data)) as image:
            image.load()
            decoded += 1
        for side in (None, 40):
            with pytest.raises(ImageError, match=r"ends in zeros|cannot be decoded"):
                decode(data, side)
    assert decoded or kind in ("progressive", "restarts")


def test_the_second_picture_of_an_mpo_may_be_damaged() -> None:
    whole = JPEGS["MPO"]
    cut = len(whole) * 3 // 4
    np.testing.assert_array_equal(pixels(whole[:cut] + bytes(len(whole) - cut)), pixels(whole))


@pytest.mark.parametrize("kind", JPEGS)
def test_a_whole_jpeg_may_have_bytes_after_its_end(kind: str) -> None:
    whole = JPEGS[kind]
    # Cameras pad to whole blocks, and phones append films.
    for rest in (b"\0", bytes(4096), b"SEFT", b"\0\0ftypmp4\xff\xda\1\2" + bytes(50)):
        np.testing.assert_array_equal(pixels(whole + rest), pixels(whole))
    filled = whole[:2] + b"\xff\xff\xff" + whole[2:]  # bytes that may stand before any mark
    if kind != "MPO":  # which states where its pictures are
        np.testing.assert_array_equal(pixels(filled + bytes(9)), pixels(whole))


def test_a_picture_without_a_file_header_is_read() -> None:
    np.testing.assert_array_equal(pixels(encoded(drawing(), "DIB")), drawing())


def test_a_png_without_its_end_mark_is_whole() -> None:
    whole = encoded(drawing())
    end = whole.rindex(b"IEND") - 4
    np.testing.assert_array_equal(pixels(whole[:end]), pixels(whole))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "0 bytes"),
        (b"\xef\xbb\xbf <!DOCTYPE html><html>404", "an HTML page, not an image"),
        (
            b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>',
            "an SVG drawing; rasterise it first",
        ),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image of a known format"),
        (b"\x80\x04cos\nsystem\n", "not an image of a known format"),
        (raw_png(20000, 20000, 8, 0, b"\0"), r"400000000 pixels|exceeds limit|20000x20000"),
        (raw_png(10000, 9500, 8, 0, b"\0"), "decompression bomb|truncated|cannot be decoded"),
    ],
)
def test_what_is_not_an_image_is_described(data: bytes, why: str) -> None:
    with pytest.raises(ImageError, match=why):
        decode(data)


def test_pixels_without_a_defined_white_are_refused() -> None:
    for values in (np.ones((2, 2), np.float32), np.full((2, 2), 70000, np.int32)):
        with pytest.raises(ImageError, match="no defined white"):
            decode(encoded(Image.fromarray(values), "TIFF"))


def test_a_bomb_is_refused_by_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MAX_PIXELS", 100)
    with pytest.raises(ImageError, match="11x10 pixels; the limit is 100"):
        decode(encoded(drawing(10, 11)))
    assert decode(encoded(drawing(10, 10))).size == (10, 10)


def test_a_thumbnail_is_upright_and_small_and_a_small_picture_keeps_its_size() -> None:
    tall = Image.fromarray(drawing(30, 120))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    for kind in ("PNG", "JPEG"):
        found = decode(encoded(tall, kind, exif=exif), side=40)
        assert (found.size, found.mode) == ((10, 40), "RGB")
        whole = decode(encoded(tall, kind, exif=exif)).resize((10, 40), Image.Resampling.BOX)
        assert np.abs(np.asarray(found, float) - np.asarray(whole, float)).mean() < 12
    assert decode(encoded(tall), side=200).size == (120, 30)
