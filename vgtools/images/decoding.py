"""From the bytes of an image file to pixels, without torch.

An image has one meaning here, whatever its file claims: the content decides the format, EXIF
orientation is applied, 16-bit grey is scaled, transparency is put on white, an animation is its
first frame, and colour profiles are ignored (as in the backbones' own training). A file without
such a meaning is an `ImageError` with a reason, never a guess.
"""

from __future__ import annotations

import io
import re
import zlib

import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.TiffImagePlugin import BITSPERSAMPLE, PHOTOMETRIC_INTERPRETATION, TiffImageFile

from vgtools.images.sources import ImageError

# Pillow's limit for a decompression bomb; also the largest picture between two of our own steps.
MAX_PIXELS = 178_956_970

# Part of the preprocessing fingerprint: increase it when `decode` returns different pixels.
DECODER = 1

Image.init()  # loads every plugin once, here: doing so from several threads is a race

# Recognised by content, never by name. Left out: formats that call other programs (EPS) or
# describe drawings (WMF).
_KNOWN = (
    "JPEG", "MPO", "PNG", "GIF", "BMP", "DIB", "WEBP", "TIFF", "PPM", "JPEG2000", "AVIF", "ICO",
)  # fmt: skip

_FORMATS = tuple(name for name in _KNOWN if name in Image.OPEN)

# EXIF orientation -> the turn that makes the picture upright
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ON_ITS_SIDE = (5, 6, 7, 8)  # width and height change places


def size_of(path: str) -> tuple[int, int]:
    """Return the width and height of an upright picture, in pixels, from the start of its file.

    Raises:
        ImageError: not an image of a known format, or damaged.
    """
    try:
        with Image.open(path, formats=_FORMATS) as image:
            turned = _orientation(image) in _ON_ITS_SIDE
            return image.size[::-1] if turned else image.size
    except Exception as error:  # the format plugins raise nearly everything on damaged bytes
        raise ImageError(str(error)) from None


def decode(data: bytes, side: int | None = None) -> Image.Image:
    """Decode one image to upright 8-bit RGB.

    EXIF orientation is applied (if unreadable, it counts as upright). 16-bit grey keeps its high
    byte, as Pillow does with 16-bit colour. Alpha, palette transparency and colour keys are
    composited on white. The first frame of an animation is taken. CMYK is converted without a
    profile.

    A `side` is the longer side of a thumbnail, in pixels.

    Raises:
        ImageError: not an image, truncated, larger than MAX_PIXELS, or in a mode that has no
            defined white.
    """
    if not data:
        raise ImageError("0 bytes")
    try:
        image: Image.Image = Image.open(io.BytesIO(data), formats=_FORMATS)
        if image.width * image.height > MAX_PIXELS:
            raise ImageError(f"{image.width}x{image.height} pixels; the limit is {MAX_PIXELS:,}")
        if side is not None:
            image.draft("RGB", (side, side))  # a JPEG is decoded at a fraction of its size
        image.load()
        if image.format == "PNG":
            _check_png(data)
        elif image.format in ("JPEG", "MPO"):
            _check_jpeg(data)
    except (ImageError, MemoryError):
        raise
    except UnidentifiedImageError:
        raise ImageError(_describe_non_image(data)) from None
    except Image.DecompressionBombError as error:
        raise ImageError(str(error)) from None
    except Exception as error:  # the format plugins raise nearly everything on damaged bytes
        raise ImageError(f"cannot be decoded: {error}") from None
    # The orientation is read before the conversion, which drops it, and applied last, when the
    # picture may already be a small thumbnail.
    orientation = _orientation(image)
    try:
        image = _to_rgb(image)
    except (ValueError, OSError) as error:
        raise ImageError(f"mode {image.mode} cannot be converted to RGB: {error}") from None
    if side is not None:
        image.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
    turn = _UPRIGHT.get(orientation)
    return image if turn is None else image.transpose(turn)


def _orientation(image: Image.Image) -> int:
    """Return the orientation of EXIF, 1 to 8; an unreadable orientation counts as 1, upright."""
    try:
        found = image.getexif().get(0x0112, 1)
    except Exception:  # the format plugins raise nearly everything on damaged bytes
        return 1
    return found if isinstance(found, int) else 1


def _check_png(data: bytes) -> None:
    """Refuse a PNG whose pixels do not have their checksums, which Pillow does not compare.

    Zeros where a download stopped would be decoded as colours.
    """
    view = memoryview(data)
    at = 8  # after the signature
    kind = b""
    while kind != b"IEND" and at + 8 <= len(data):
        end = at + 8 + int.from_bytes(view[at : at + 4])
        kind = bytes(view[at + 4 : at + 8])
        found = int.from_bytes(view[end : end + 4])
        if kind == b"IDAT" and zlib.crc32(view[at + 4 : end]) != found:
            raise ImageError("is damaged: its pixels do not have the checksum that the PNG states")
        at = end + 4


_MARK = re.compile(rb"\xff+([^\xff\0])")
_SCAN = b"\xda"
_BARE = (b"\x01", *(bytes([kind]) for kind in range(0xD0, 0xDA)))  # marks without a segment


def _check_jpeg(data: bytes) -> None:
    """Refuse a JPEG that ends in zeros, and whose first scan no end mark follows.

    Zeros where a download stopped would be decoded as grey. A camera may fill up after the end
    mark, and a thumbnail in the header has an end mark of its own.
    """
    if not data.endswith(b"\0"):
        return
    at = 0
    kind = b""
    while kind != _SCAN and (mark := _MARK.search(data, at)):
        kind = mark[1]
        at = mark.end()
        if kind not in _BARE:
            at += int.from_bytes(data[at : at + 2])
    if data.find(b"\xff\xd9", at) < 0:
        raise ImageError("is damaged: the JPEG ends in zeros, without its end mark")


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode that Pillow knows to RGB, with the meaning that `decode` states."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        values = np.asarray(image).astype(np.int64)
        tags = image.tag_v2 if isinstance(image, TiffImageFile) else {}
        if tags.get(BITSPERSAMPLE, (16,)) != (16,) or tags.get(PHOTOMETRIC_INTERPRETATION) == 0:
            why = "grey of a TIFF that is not 16-bit with black as zero"
            raise ImageError(f"{why}, as Pillow reads it; save it with 8 bits")
        grey = values >> 8
        colour_key = image.info.get("transparency")
        if isinstance(colour_key, int):
            grey = np.where(values == colour_key, 255, grey)
        return Image.fromarray(grey.clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise ImageError(
            f"32-bit pixels (mode {image.mode}) have no defined white; save it with 8 or 16 bits"
        )
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, image).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _describe_non_image(data: bytes) -> str:
    """Return a guess of the kind of bytes that are not an image, where that helps a user."""
    head = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if head.startswith((b"<!doctype html", b"<html")):
        return "an HTML page, not an image; the download probably failed"
    if b"<svg" in head:
        return "an SVG drawing; rasterise it first (vg prepare openmoji does so for its bank)"
    return f"not an image of a known format ({', '.join(_FORMATS)})"
