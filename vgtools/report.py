"""Show voken rows: one self-contained HTML page, a contact sheet, lines for a terminal or a pipe.

Rows stream in through `read_sentences`; a `Bank` says which image a voken is, `locate` where that image lies. `page` writes
HTML that loads nothing and runs no script but its own (a policy in the page forbids the rest); `sheet` draws the form of the
paper's figure.

Source: Tan & Bansal 2020 (Vokenization), figure 4.
"""

from __future__ import annotations

import base64
import bisect
import contextlib
import hashlib
import itertools
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from markupsafe import Markup

from vgtools import __version__, io
from vgtools.errors import amount
from vgtools.io import DataError, Exit, plain
from vgtools.sources import read_image
from vgtools.vokens import bank_of, check_rows

_T = TypeVar("_T")

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont
    from rich.console import Console

# ------------------------------------------------------------------------------------------------------------------ rows


@dataclass(frozen=True)
class Token:
    """One token of a sentence: its span in code points, its vokens, best first, and their relevance."""

    start: int
    end: int
    vokens: tuple[int, ...]
    scores: tuple[float | None, ...]

    @property
    def voken(self) -> int:
        """The best voken, -1 for none."""
        return self.vokens[0] if self.vokens else -1

    @property
    def score(self) -> float | None:
        """Relevance of the best voken; None where there is none."""
        return self.scores[0] if self.voken >= 0 else None


@dataclass(frozen=True)
class Sentence:
    """One voken row, and the line of the file that it stands on."""

    line: int
    text: str
    tokens: tuple[Token, ...]


def read_sentences(path: str | Path, bank: int | None = None) -> Iterator[Sentence]:
    """Yield the voken rows of a stream, checked.

    Args:
        path: voken rows as `vokenize` writes them; `.gz`, `.zst` or `-`.
        bank: size of the image bank; None when it is not known.

    Raises:
        DataError: a torn row, a span outside the text, lists of unequal length, a voken that the bank does not have; with file
            and line.
    """
    if str(path).endswith(".npy"):
        raise DataError("packed vokens hold no text; name the .jsonl form of them", path, code=Exit.USAGE)
    for line, row in io.read_jsonl(path):
        check_rows([row], str(path), line)
        tokens = []
        scores = row.get("scores", [None] * len(row["vokens"]))
        for number, ((start, end), voken, score) in enumerate(zip(row["spans"], row["vokens"], scores, strict=True)):
            ranks, values = (voken, score) if isinstance(voken, list) else ([voken], [score])
            if bank is not None and max(ranks, default=-1) >= bank:
                raise DataError(
                    f"the voken of token {number} is {max(ranks)}, the image bank has {bank} rows; these vokens "
                    "belong to another bank: name the index or ids that they were made with",
                    path,
                    line,
                )
            tokens.append(Token(start, end, tuple(ranks), tuple(values or [None] * len(ranks))))
        yield Sentence(line, row["text"], tuple(tokens))


def take(rows: Iterator[Sentence], limit: int | None) -> tuple[list[Sentence], bool]:
    """Return the first rows, and whether any are left behind them."""
    taken = list(itertools.islice(rows, limit))
    try:
        return taken, limit is not None and next(rows, None) is not None
    except DataError:
        return taken, True  # a bad row there is not among those asked for


# -------------------------------------------------------------------------------------------------------- bank, pictures


@dataclass(frozen=True)
class Bank:
    """The image bank that vokens point into: row i is the image ids[i]."""

    ids: list[str]
    manifest: Mapping[str, Any] = field(default_factory=dict)

    def facts(self) -> list[tuple[str, str]]:
        """Return what the manifest says that a reader of vokens wants to know, in words."""
        found = [("Image bank", amount(len(self.ids), "image"))]
        for key in ("matcher", "backbone"):
            entry = self.manifest.get(key)
            if isinstance(entry, Mapping):
                name = entry.get("run") or entry.get("ref")
                mark = str(entry.get("fingerprint") or "")[:12]
                found.append((key.capitalize(), " ".join(filter(None, (str(name or ""), f"({mark})" if mark else "")))))
        if isinstance(self.manifest.get("dim"), int):
            found.append(("Shared space", f"{self.manifest['dim']} dimensions"))
        return found


def open_bank(ids: str | None, index: str | None, vokens: str = "-") -> Bank:
    """Open the ids of an image bank, from `X.ids` or from the index that they stand beside.

    Args:
        ids: path of a list of ids.
        index: path of a `.faiss` file with its manifest.
        vokens: voken rows; where their manifest says which bank they were made with, it has to be this one.

    Raises:
        DataError: missing files (66); ids or vokens of another index (65), both sides printed.
    """
    if index is None:
        assert ids is not None
        found = io.read_ids(ids)
        if os.path.isfile(ids):
            _check_origin(vokens, ids, io.sha256_file(ids))
        return Bank(found, io.manifest_beside(ids))
    manifest = io.read_manifest(index, "index")
    _check_origin(vokens, index, manifest["files"][Path(index).name]["sha256"])
    return Bank(io.read_ids(Path(index).with_suffix(".ids"), manifest.get("count")), manifest)


def _check_origin(vokens: str, file: str, sha256: str) -> None:
    """Refuse vokens whose manifest names another bank than this file (an index, or ids) belongs to."""
    for name, made in bank_of(io.manifest_beside(vokens)).items():
        if name.endswith(Path(file).suffix) and made != sha256:
            raise DataError(
                f"was made with {name} of sha256 {made}; {file} has sha256 {sha256}, its rows are other images: "
                "name the one that made it",
                vokens,
            )


@dataclass(frozen=True)
class Place:
    """Where the picture of an image id lies: a file, and a drawing (SVG) that is shown instead where there is one."""

    path: Path
    svg: Path | None = None
    name: str = ""  # what the picture shows, in words


def locate(source: str | Path, wanted: Collection[str]) -> dict[str, Place]:
    """Find the pictures of some image ids.

    Args:
        source: image rows `{"image", "path", "svg"?, "names"?}` with paths relative to that file, or a directory (an id is then
            the path in it).
        wanted: image ids.

    Returns:
        Places of the ids that the source has; none of them has been opened.

    Raises:
        DataError: a bad row, or an id given twice.
    """
    if os.path.isdir(source):
        root = os.path.abspath(source)
        inside = {i: os.path.normpath(os.path.join(root, i)) for i in wanted}
        return {i: Place(Path(p)) for i, p in inside.items() if p.startswith(root + os.sep) and os.path.isfile(p)}
    base, found, lines = Path(source).parent, dict[str, Place](), dict[str, int]()
    asked = frozenset(wanted)
    for line, row in io.read_jsonl(source, {"image": str, "path": str}):
        name = row["image"]
        if name not in asked:
            continue
        if name in found:
            raise DataError(f"the image {name!r:.80} stands on line {lines[name]} already", source, line)
        svg, names = row.get("svg"), row.get("names", [])
        if not isinstance(svg, str | None) or not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise DataError('"svg" must be a path and "names" a list of strings', source, line)
        found[name] = Place(base / row["path"], base / svg if svg else None, ", ".join(names[:4]))
        lines[name] = line
    return found


def credit(source: str | Path) -> str:
    """Return whose the pictures are, from the manifest beside their image rows (`"credit"`); nothing where it says nothing."""
    told = None if os.path.isdir(source) else io.manifest_beside(source).get("credit")
    return readable(told) if isinstance(told, str) else ""


_SVG_MOST = 100_000  # bytes; a drawing beyond that is shown as a thumbnail of its raster form


def thumbnail(data: bytes, side: int) -> Image:
    """Decode a picture to upright RGB, neither side over `side` px.

    Raises:
        ImageError: as `decoding.decode`.
    """
    from vgtools.decoding import decode

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a picture's odd metadata or size; what cannot be shown raises
        return decode(data, side)


@dataclass
class Pictures:
    """Pictures of some rows of a bank, opened one at a time; what cannot be shown is counted, with the reason.

    Args:
        bank: the image bank.
        places: where the images are, from `locate`.
        missing: filled with row: reason.
    """

    bank: Bank
    places: Mapping[str, Place]
    missing: dict[int, str] = field(default_factory=dict)

    def _open(self, row: int, use: Callable[[Place], _T]) -> _T | None:
        place = self.places.get(self.bank.ids[row])
        if place is None:
            self.missing[row] = "not among the images"
            return None
        try:
            return use(place)
        except Exception as error:  # decoders raise whatever a broken picture makes of them
            self.missing[row] = re.sub(r"<_io.BytesIO[^>]*>", "it", plain(error))[:160]
        return None

    def uri(self, row: int, side: int) -> str | None:
        """Return a picture as a data URI: its drawing as it is, else a thumbnail of `side` px at most; None: there is none."""
        return self._open(row, lambda place: _uri(place, side))

    def image(self, row: int, side: int) -> Image | None:
        """Return a picture as RGB pixels, no side over `side` px; None if there is none."""
        return self._open(row, lambda place: thumbnail(read_image(str(place.path)), side))

    def name(self, row: int) -> str:
        """Return in words what a picture shows, as far as its source says."""
        place = self.places.get(self.bank.ids[row])
        return place.name if place else ""

    def complaint(self, asked: int) -> str | None:
        """Return what to tell about missing pictures of `asked`, or None."""
        if not self.missing:
            return None
        some = "; ".join(f"{self.bank.ids[row]}: {why}" for row, why in list(self.missing.items())[:3])
        rest = f"; and {len(self.missing) - 3} more" if len(self.missing) > 3 else ""
        return f"{len(self.missing)} of {asked} pictures cannot be shown and have a placeholder: {some}{rest}"


def _uri(place: Place, side: int) -> str:
    only = place.path.suffix.lower() == ".svg"
    drawing = place.path if only else place.svg
    if drawing is not None and (only or drawing.is_file()):
        svg = read_image(str(drawing))
        if b"<svg" not in svg[:4096]:
            raise ValueError("no SVG drawing in it")
        if only or len(svg) <= _SVG_MOST:
            return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()
    out = BytesIO()
    thumbnail(read_image(str(place.path)), side).save(out, "WEBP", quality=75, method=2)
    return "data:image/webp;base64," + base64.b64encode(out.getvalue()).decode()


def used_rows(sentences: Iterable[Sentence], ranks: int | None = None) -> Counter[int]:
    """Count the bank rows that sentences use; `ranks=1` looks at best vokens only."""
    return Counter(v for s in sentences for t in s.tokens for v in t.vokens[:ranks] if v >= 0)


# ------------------------------------------------------------------------------------------------------------------ page

# Characters that would steer the text around them or not show at all; joiners stay, emoji and many scripts need them.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]")


def readable(text: str) -> str:
    """Return text for a page or a picture: steering characters (controls, direction overrides) written out as `\\u202e`."""
    return _HIDDEN.sub(lambda m: m[0].encode("unicode_escape").decode(), text)


def script_json(value: object) -> Markup:
    """Return JSON that may stand in a script element: no `<` that could end it."""
    text = orjson.dumps(value).decode()
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def csp_hash(text: str) -> Markup:
    """Return what a content security policy calls a style or script of this very text."""
    return Markup(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'")


_WORD = re.compile(r"\w(?:[\w'’-]*\w)?|[^\w\s]")


def _number(score: float | None) -> str:
    return "" if score is None else f"{score:.4g}"


def _parts(sentence: Sentence, bank: Bank, looks: Mapping[int, str], low: float, high: float) -> list[dict[str, Any]]:
    """Lay a sentence out: the gaps between tokens as they are, each token with what its tile needs."""
    text, tokens, parts, done = sentence.text, sentence.tokens, list[dict[str, Any]](), 0
    words, word = [m.span() for m in _WORD.finditer(text)] or [(0, 0)], 0
    for number, token in enumerate(tokens):
        if token.start > done:
            parts.append({"gap": readable(text[done : token.start])})
        joined = number > 0 and token.start <= tokens[number - 1].end
        joins = number + 1 < len(tokens) and tokens[number + 1].start <= token.end
        done = max(done, token.end)
        while word + 1 < len(words) and words[word][1] <= token.start:
            word += 1
        whole = slice(*words[word] if words[word][0] <= token.start < words[word][1] else (token.start, token.end))
        shown = readable(text[token.start : token.end])
        face = shown if shown.strip() else "␣" if shown else "·"
        part: dict[str, Any] = {"text": face, "word": readable(text[whole]), "row": None, "flags": ""}
        if token.voken >= 0:
            score, image = token.score, readable(bank.ids[token.voken])
            share = "x" if score is None else round(10 * (score - low) / (high - low)) if high > low else 10
            others = [f"{v}:{_number(s)}" for v, s in zip(token.vokens, token.scores, strict=True) if v >= 0]
            part |= {
                "row": token.voken,
                "look": looks[token.voken],
                "bar": share,
                "score": _number(score),
                "others": " ".join(others) if len(others) > 1 else "",
                "title": f"{shown}: {image}" + ("" if score is None else f", relevance {_number(score)}"),
                "flags": (" joined" if joined and tokens[number - 1].voken >= 0 else "")
                + (" joins" if joins and tokens[number + 1].voken >= 0 else ""),
            }
        parts.append(part)
    if done < len(text):
        parts.append({"gap": readable(text[done:])})
    return parts


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def page(sentences: Sequence[Sentence], pictures: Pictures, title: str, *, more: bool = False, credit: str = "") -> bytes:
    """Return one HTML page of sentences whose tokens carry their pictures, each picture in it once.

    Args:
        sentences: voken rows.
        pictures: of every voken in them; what it cannot find is shown as a placeholder.
        title: what they are, for example the file's name.
        more: the file holds more sentences than these.
        credit: where the pictures come from and their licence.

    Returns:
        UTF-8. Large pages hold smaller thumbnails (256, 160 or 112 px), so that thousands of pictures stay some megabytes.

    Source: Tan & Bansal 2020 (Vokenization), figure 4.
    """
    import jinja2

    bank, used, best = pictures.bank, used_rows(sentences), used_rows(sentences, 1)
    side = 256 if len(used) <= 600 else 160 if len(used) <= 2000 else 112
    styles, looks, data = dict[str, list[str]](), dict[int, str](), dict[str, dict[str, str]]()
    for row in sorted(used):
        uri = pictures.uri(row, side)
        art = " art" if uri is not None and uri.startswith("data:image/svg") else ""
        looks[row] = "gone" if uri is None else f"p{row}{art}"
        data[str(row)] = {"id": readable(bank.ids[row]), "look": looks[row], "name": readable(pictures.name(row))}
        if uri is None:
            data[str(row)]["gone"] = readable(pictures.missing[row])
        else:
            styles.setdefault(uri, []).append(f".p{row}")
    # As the tokens show them, so that the slider's end is the best token's score and not a hair more.
    scores = [float(_number(t.score)) for s in sentences for t in s.tokens if t.score is not None]
    low, high = (min(scores), max(scores)) if scores else (0.0, 0.0)
    assets = jinja2.PackageLoader("vgtools", "assets")
    environment = jinja2.Environment(loader=assets, autoescape=True, undefined=jinja2.StrictUndefined)
    style, script = (assets.get_source(environment, name)[0] for name in ("show.css", "show.js"))
    thumbs = "".join(f"{','.join(names)}{{background-image:url({uri})}}\n" for uri, names in styles.items())
    tokens = sum(len(s.tokens) for s in sentences)
    tops = best.most_common(24) if len(best) > 1 else []
    none = sum(t.voken < 0 for s in sentences for t in s.tokens)
    return (
        environment.get_template("show.html")
        .render(
            title=readable(title),
            version=__version__,
            style=Markup(style),
            pictures=Markup(thumbs),
            script=Markup(script),
            style_hashes=csp_hash(style) + " " + csp_hash(thumbs),
            script_hash=csp_hash(script),
            more=more,
            credit=credit,
            counts={
                "sentences": _count(len(sentences), "sentence"),
                "tokens": _count(tokens, "token"),
                "pictures": _count(len(best), "picture") + (f", {_count(none, 'token')} without" if none else ""),
            },
            facts=[*bank.facts(), ("Relevance, the line under a picture", f"{low:.2f} to {high:.2f}")]
            if scores
            else bank.facts(),
            top=[{"image": readable(bank.ids[r]), "look": looks[r], "count": n} for r, n in tops],
            sentences=[{"line": s.line, "parts": _parts(s, bank, looks, low, high)} for s in sentences],
            data=script_json({"pictures": data, "low": low, "high": high, "digits": 2 if high - low >= 0.2 else 3}),
        )
        .encode()
    )


# ----------------------------------------------------------------------------------------------------------------- sheet

_WIDTH, _EDGE, _TILE, _CAPTION, _TITLE = 1600, 48, 120, 22, 30  # px
_PAPER, _INK, _SOFT, _LINE = "#ffffff", "#1d1b18", "#8a8378", "#e4dfd6"
_LONGEST = 2000  # characters of a sentence that its title shows
_SHEET_HIGHEST = 40_000  # px; 1600 px wide that is 192 MB of pixels


def _lines(text: str, font: FreeTypeFont, width: float) -> list[str]:
    """Break text into lines of at most `width` px, inside a word where it has to."""
    lines, line = list[str](), ""
    for piece in re.findall(r"\s+|\S+", text):
        if font.getlength(line + piece) <= width:
            line += piece
            continue
        if line.strip():
            lines.append(line.strip())
        line = piece.strip()
        while line and font.getlength(line) > width:
            whole = line
            keep = max(1, bisect.bisect_right(range(len(line)), width, key=lambda n: font.getlength(whole[:n])) - 1)
            lines.append(line[:keep])
            line = line[keep:]
    return [*lines, line.strip()] if line.strip() else lines


# Pillow's own font draws plain Latin, the same everywhere; these, where the system has one, what that font cannot.
_SYSTEM_FONTS = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "NotoSansCJK-Regular.ttc", "Arial Unicode.ttf", "Arial.ttf")


def _fonts(size: int) -> list[FreeTypeFont]:
    from PIL import ImageFont

    own = ImageFont.load_default(size)
    if not isinstance(own, ImageFont.FreeTypeFont):
        raise DataError(
            "this Pillow was built without FreeType and cannot write text; the page (-o) needs none", code=Exit.UNAVAILABLE
        )
    found = [own]
    for name in _SYSTEM_FONTS:
        with contextlib.suppress(OSError):
            found.append(ImageFont.truetype(name, size))
    return found


def _lacks(text: str, font: FreeTypeFont) -> set[str]:
    """Return the characters that a font draws as an empty box."""
    box = bytes(font.getmask("\U0010ffff"))
    return {c for c in set(text) if not c.isspace() and bytes(font.getmask(c)) == box}


@lru_cache(maxsize=32)
def _kept_fonts(size: int) -> tuple[FreeTypeFont, ...]:
    return tuple(_fonts(size))


def font_for(text: str, size: int) -> FreeTypeFont:
    """Return a font of a size in px that has the glyphs of a text, as far as the system has one."""
    return _font_for(text, _kept_fonts(size))


def _font_for(text: str, fonts: Sequence[FreeTypeFont]) -> FreeTypeFont:
    """Return the first font that has every glyph of a text, or the one that lacks the fewest."""
    return next((f for f in fonts if not _lacks(text, f)), None) or min(fonts, key=lambda f: len(_lacks(text, f)))


@dataclass
class _Layout:
    """Where everything on a sheet goes, in px; known before a pixel is made."""

    height: float = float(_EDGE)
    tiles: list[tuple[float, float, float, int]] = field(default_factory=list)  # left, top, width, voken
    words: list[tuple[float, float, str, FreeTypeFont, str, str]] = field(default_factory=list)  # x, y, text, font, ink, anchor
    rules: list[float] = field(default_factory=list)
    lacking: set[str] = field(default_factory=set)

    def write(self, x: float, y: float, text: str, font: FreeTypeFont, ink: str, anchor: str = "la") -> None:
        self.words.append((x, y, text, font, ink, anchor))
        self.lacking |= _lacks(text, font)


def _lay(sentences: Sequence[Sentence]) -> _Layout:
    captions, headings, sheet = _fonts(_CAPTION), _fonts(_TITLE), _Layout()
    for sentence in sentences:
        y = sheet.height
        if sheet.words:
            sheet.rules.append(y)
            y += _EDGE * 0.75
        sheet.write(_EDGE, y + _TITLE - _CAPTION, str(sentence.line), captions[0], _SOFT)
        indent = _EDGE + captions[0].getlength(str(sentence.line)) + 18
        text = readable(sentence.text[:_LONGEST] + "…" * (len(sentence.text) > _LONGEST))
        heading = _font_for(text, headings)
        for line in _lines(text, heading, _WIDTH - _EDGE - indent) or ["(an empty line)"]:
            sheet.write(indent, y, line, heading, _INK if sentence.text.strip() else _SOFT)
            y += _TITLE * 1.35
        x, y = float(_EDGE), y + 16
        for number, token in enumerate(sentence.tokens):
            shown = readable(sentence.text[token.start : min(token.end, token.start + 60)]).strip() or "·"
            caption = _font_for(shown, captions)
            while len(shown) > 2 and caption.getlength(shown) > _WIDTH / 3:
                shown = shown[:-2] + "…"
            width = max(_TILE if token.voken >= 0 else 0, caption.getlength(shown) + 10)
            if number:
                x += 4 if token.start <= sentence.tokens[number - 1].end else 14
            if x + width > _WIDTH - _EDGE:
                x, y = float(_EDGE), y + _TILE + _CAPTION + 34
            if token.voken >= 0:
                sheet.tiles.append((x, y, width, token.voken))
            sheet.write(x + width / 2, y + _TILE + 8, shown, caption, _INK if token.voken >= 0 else _SOFT, "ma")
            x += width
        sheet.height = y + (_TILE + _CAPTION + 20 if sentence.tokens else 0) + _EDGE * 0.6
    return sheet


def sheet(sentences: Sequence[Sentence], pictures: Pictures) -> tuple[bytes, list[str]]:
    """Draw a contact sheet: each sentence, then its tokens in rows, the picture above, the token below.

    Args:
        sentences: voken rows; about two dozen make a readable sheet.
        pictures: of every best voken in them.

    Returns:
        A PNG, 1600 px wide, and the characters that no font at hand has a glyph for: they are drawn as boxes.

    Raises:
        DataError: so many sentences that the sheet would be over 40,000 px high (usage, exit 2).

    Source: Tan & Bansal 2020 (Vokenization), figure 4.
    """
    from PIL import Image, ImageDraw, ImageOps

    lay = _lay(sentences)
    height = max(round(lay.height), 2 * _EDGE)
    if height > _SHEET_HIGHEST:
        raise DataError(
            f"the sheet would be {height:,} px high, {_SHEET_HIGHEST:,} is the most; a lower --limit makes it fit",
            code=Exit.USAGE,
        )
    canvas = Image.new("RGB", (_WIDTH, height), _PAPER)
    draw, opened = ImageDraw.Draw(canvas), dict[int, Image.Image | None]()
    for y in lay.rules:
        draw.line((_EDGE, y, _WIDTH - _EDGE, y), _LINE, 2)
    for left, top, width, voken in lay.tiles:
        if voken not in opened:
            opened[voken] = pictures.image(voken, 2 * _TILE)
        picture = opened[voken]
        if picture is None:
            draw.rectangle((left, top, left + width, top + _TILE), None, _LINE, 2)
            draw.line((left, top, left + width, top + _TILE), _LINE, 2)
        else:
            tile = ImageOps.fit(picture, (round(width), _TILE), Image.Resampling.LANCZOS)
            canvas.paste(tile, (round(left), round(top)))
    for x, y, text, font, ink, anchor in lay.words:
        draw.text((x, y), text, ink, font, anchor=anchor)
    out = BytesIO()
    canvas.save(out, "PNG")
    return out.getvalue(), sorted(lay.lacking)


# ----------------------------------------------------------------------------------------------------- terminal and pipe


def _cell(text: str) -> str:
    """Return text that stays in its cell: tabs and line ends written out with the other control characters."""
    return plain(text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n"))


def tsv(sentence: Sentence, ids: Sequence[str] | None) -> str:
    """Return a sentence as tab-separated lines: line, token, start, end, rank, voken, image id, score (`-` for none)."""
    rows = []
    for token in sentence.tokens:
        shown = _cell(sentence.text[token.start : token.end])
        for rank, (voken, score) in enumerate(zip(token.vokens, token.scores, strict=True), 1):
            image = _cell(ids[voken]) if ids is not None and voken >= 0 else "-"
            value = "-" if score is None or voken < 0 else f"{score:.4f}"
            rows.append(f"{sentence.line}\t{shown}\t{token.start}\t{token.end}\t{rank}\t{voken}\t{image}\t{value}\n")
    return "".join(rows)


def table(sentence: Sentence, ids: Sequence[str] | None, console: Console) -> None:
    """Print a sentence as a table: token, voken, image id, relevance; a token's further vokens stand below its first."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console.print(Text(f"{sentence.line}  ", "dim") + Text(_cell(sentence.text) or "(an empty line)", "bold"))
    if not sentence.tokens:
        console.print()
        return
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    grid.add_column("token", overflow="fold", min_width=5)
    grid.add_column("voken", justify="right", no_wrap=True)
    if ids is not None:
        grid.add_column("image", overflow="fold", min_width=8)
    grid.add_column("score", justify="right", no_wrap=True)
    for token in sentence.tokens:
        shown = _cell(sentence.text[token.start : token.end])
        for rank, (voken, score) in enumerate(zip(token.vokens, token.scores, strict=True)):
            none = voken < 0
            cells = [Text("" if rank else shown), Text("-" if none else str(voken), "dim" if none else "cyan")]
            if ids is not None:
                cells.append(Text("" if none else _cell(ids[voken])))
            grid.add_row(*cells, Text("" if none or score is None else f"{score:.3f}"))
    console.print(grid)
    console.print()
