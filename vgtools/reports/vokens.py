"""Voken rows as one HTML page, a contact sheet, or lines for a terminal or a pipe.

Rows stream in through `read_sentences`; a `ShownBank` maps vokens to images, `page.locate` images
to files. `sheet` draws the form of the paper's figure.

Source: Tan & Bansal 2020 (Vokenization), figure 4.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import orjson

from vgtools.images.rights import Rights, in_words, open_rights
from vgtools.io.artifact import read_ids, read_made, read_manifest
from vgtools.io.errors import DataError, Exit, amount, json_bytes, plain
from vgtools.io.files import sha256_file
from vgtools.io.written import manifest_beside
from vgtools.reports.drawing import GREY, INK, first_fit
from vgtools.reports.page import (
    ImageFile,
    image_uri,
    opening,
    photo_side,
    picture,
    readable,
    render,
)
from vgtools.reports.sheets import CAPTION, EDGE, WIDTH, Sheet, Tile
from vgtools.reports.terminal import CELL_PIXELS, Captioned, Draw, strip
from vgtools.text.tokens import WORD
from vgtools.text.vokens import are_ids_of, bank_of, check_rows, hashes_of, ids_hashes, is_packed

_T = TypeVar("_T")

if TYPE_CHECKING:
    from PIL.Image import Image
    from rich.console import Console

# --------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True, slots=True)
class Token:
    """A token: its span in code points, its vokens, best first, and their relevance."""

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
    """One voken row, and its line in the file."""

    line: int
    text: str
    tokens: Sequence[Token]


class _StoredTokens(Sequence[Token]):
    """The tokens of a row as JSON, a tenth of their memory; they are made each time they are read.

    Args:
        row: a checked voken row.
    """

    def __init__(self, row: Mapping[str, Any]) -> None:
        parts = [row["spans"], row["vokens"], row.get("scores")]
        self._count = len(parts[0])
        self._json = orjson.dumps(parts).decode()  # bytes of orjson hold ten times their length

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> Token: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Token]: ...

    def __getitem__(self, place: int | slice) -> Token | Sequence[Token]:
        return list(self)[place]

    def __iter__(self) -> Iterator[Token]:
        spans, vokens, scores = orjson.loads(self._json)
        for (start, end), voken, score in zip(spans, vokens, scores or repeat(None), strict=False):
            if isinstance(voken, list):
                yield Token(start, end, tuple(voken), tuple(score or [None] * len(voken)))
            else:
                yield Token(start, end, (voken,), (score,))


def refuse_packed(path: str | Path) -> None:
    """Refuse the packed form of vokens.

    Raises:
        DataError: the path is a `.npy` (usage).
    """
    if is_packed(path):
        why = "packed vokens hold no text; name the .jsonl form of them"
        raise DataError(why, path, code=Exit.USAGE)


def read_sentences(
    path: str | Path,
    bank: int | None = None,
    rows: Iterable[tuple[int, dict[str, Any]]] | None = None,
) -> Iterator[Sentence]:
    """Yield the voken rows of a stream, checked.

    Args:
        path: voken rows as `vokenize` writes them; `.gz`, `.zst` or `-`.
        bank: size of the image bank; None when it is not known.
        rows: numbered, of that file where it is open already.

    Raises:
        DataError: a torn row, a span outside the text, lists of unequal length, a voken that the
            bank does not have; with file and line.
    """
    refuse_packed(path)
    for line, row in read_made(path) if rows is None else rows:
        check_rows([row], str(path), line)
        for number, voken in enumerate(row["vokens"]):
            top = max(voken, default=-1) if isinstance(voken, list) else voken
            if bank is not None and top >= bank:
                why = f"the voken of token {number} is {top}, the image bank has {bank}"
                why += " rows; these vokens belong to another bank"
                why += ": name the index or ids that they were made with"
                raise DataError(why, path, line)
        yield Sentence(line, row["text"], _StoredTokens(row))


def take(rows: Iterator[Sentence], limit: int | None) -> tuple[list[Sentence], bool]:
    """Return the first rows, and whether any are left after them."""
    taken = list(itertools.islice(rows, limit))
    try:
        return taken, limit is not None and next(rows, None) is not None
    except DataError:
        return taken, True  # A bad row after the limit was not asked for.


# ----------------------------------------------------------------------------------- bank, pictures


@dataclass(frozen=True)
class ShownBank:
    """The image bank that vokens point into: row i is the image ids[i]."""

    ids: Sequence[str]
    manifest: Mapping[str, Any] = field(default_factory=dict)
    rights: Mapping[str, Rights] = field(default_factory=dict)  # by id, as far as they are known

    def facts(self) -> list[tuple[str, str]]:
        """Return the facts of the manifest that interest a reader of vokens, in words."""
        facts = [("Image bank", amount(len(self.ids), "image"))]
        for key in ("matcher", "backbone"):
            entry = self.manifest.get(key)
            if isinstance(entry, Mapping):
                name = str(entry.get("run") or entry.get("ref") or "")
                fingerprint = str(entry.get("fingerprint") or "")[:12]
                named = (name, f"({fingerprint})" if fingerprint else "")
                facts.append((key.capitalize(), " ".join(filter(None, named))))
        if isinstance(self.manifest.get("dim"), int):
            facts.append(("Shared space", f"{self.manifest['dim']} dimensions"))
        return facts


# Files of an index that do not decide its rows: licences, and images that were left out.
_LISTS = (".rights.jsonl", ".duplicates.jsonl")


def open_bank(ids: str | None, index: str | None, vokens: str = "-") -> ShownBank:
    """Open the ids of an image bank, from `X.ids` or from the index next to them.

    Args:
        vokens: voken rows; where their manifest names the bank that they were made with, it has to
            be this bank.

    Raises:
        DataError: missing files (66); ids or vokens of another index (65), both sides printed.
    """
    if index is None:
        assert ids is not None
        found = read_ids(ids)
        if not found:
            raise DataError("holds no image id", ids)
        # A bank in parts has the ids of its indexes one file after the other.
        if os.path.isfile(ids) and not are_ids_of(ids_hashes(manifest_beside(vokens)), found):
            _check_origin(vokens, ids, sha256_file(ids))
        return ShownBank(found, manifest_beside(ids))
    manifest = read_manifest(index, "index")
    for name, sha256 in hashes_of(manifest["files"]).items():
        _check_origin(vokens, str(Path(index).with_name(name)), sha256)
    ids_of = read_ids(Path(index).with_suffix(".ids"), manifest.get("count"))
    return ShownBank(ids_of, manifest, open_rights(index, manifest))


def _check_origin(vokens: str, file: str, sha256: str) -> None:
    """Refuse vokens whose manifest names another bank than the one of this index or ids file."""
    if file.endswith(_LISTS):
        return
    for name, made in bank_of(manifest_beside(vokens)).items():
        if name.endswith(Path(file).suffix) and not name.endswith(_LISTS) and made != sha256:
            why = f"was made with {name} of sha256 {made}; {file} has sha256 {sha256}"
            way = "its rows may be other images: name the one that made it"
            raise DataError(f"{why}, {way}", vokens)


@dataclass
class BankPictures:
    """Pictures of some rows of a bank, opened one at a time; pictures that cannot be shown are
    counted.
    """

    bank: ShownBank
    files: Mapping[str, ImageFile]  # files of `page.locate`
    missing: dict[int, str] = field(default_factory=dict)  # filled with row: reason

    def _open(self, row: int, use: Callable[[ImageFile], _T]) -> _T | None:
        file = self.files.get(self.bank.ids[row])
        if file is None:
            self.missing[row] = "not among the images"
            return None
        try:
            return use(file)
        except Exception as error:  # decoders raise whatever a broken picture makes of them
            # Pillow names its buffer by an address, which differs in every run.
            self.missing[row] = re.sub(r"<_io.BytesIO[^>]*>", "it", plain(error))[:160]
        return None

    def uri(self, row: int, side: int) -> str | None:
        """Return a picture as `page.image_uri` does; None if there is no picture."""
        return self._open(row, lambda file: image_uri(file, side))

    def image(self, row: int, side: int) -> Image | None:
        """Return a picture as RGB pixels, no side over `side` px; None if there is none."""
        return self._open(row, lambda file: picture(file, side))

    def name(self, row: int) -> str:
        """Return the content of a picture in words, and its licence, as far as they are known."""
        image = self.bank.ids[row]
        file = self.files.get(image)
        name, rights = (file.name, file.rights) if file else ("", "")
        return " · ".join(filter(None, (name, rights or in_words(self.bank.rights.get(image, {})))))

    def complaint(self, asked: int) -> str | None:
        """Return a message about missing pictures of `asked`, or None."""
        if not self.missing:
            return None
        reasons = [f"{self.bank.ids[row]}: {why}" for row, why in self.missing.items()]
        rest = [f"and {len(reasons) - 3} more"] if len(reasons) > 3 else []
        shown = "; ".join(reasons[:3] + rest)
        return f"{len(reasons)} of {asked} pictures cannot be shown and have a placeholder: {shown}"


class Thumbnails:
    """The pictures of a page as classes of a style sheet; equal pictures share one image.

    Args:
        side: most pixels of a side.
    """

    def __init__(self, side: int) -> None:
        self._side = side
        self._names = dict[str, list[str]]()  # picture -> its classes

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: str, pictures: BankPictures, row: int) -> dict[str, str]:
        """Add a picture under the class `name`; return its facts, `look` the classes of tiles."""
        uri = pictures.uri(row, self._side)
        facts = {"id": readable(pictures.bank.ids[row]), "name": readable(pictures.name(row))}
        if uri is None:
            return facts | {"look": "gone", "gone": readable(pictures.missing[row])}
        self._names.setdefault(uri, []).append(name)
        return facts | {"look": f"{name} art" if uri.startswith("data:image/svg") else name}

    def split(self, first: Collection[str]) -> tuple[str, list[list[str]]]:
        """Return a style sheet of the pictures of some classes, and the others with theirs."""
        wanted = frozenset(first)
        css = ""
        late = list[list[str]]()
        for uri, names in self._names.items():
            if wanted.isdisjoint(names):
                late.append([f"url({uri})", *names])
            else:
                selectors = ",".join(f".{name}" for name in names)
                css += f"{selectors}{{background-image:url({uri})}}\n"
        return css, late


def used_rows(sentences: Iterable[Sentence], ranks: int | None = None) -> Counter[int]:
    """Count the bank rows that sentences use; `ranks=1` counts best vokens only."""
    return Counter(v for s in sentences for t in s.tokens for v in t.vokens[:ranks] if v >= 0)


# --------------------------------------------------------------------------------------------- page


def page(
    sentences: Sequence[Sentence],
    pictures: BankPictures,
    title: str,
    *,
    probable: bool | None = None,
    more: bool = False,
    credit: str = "",
) -> bytes:
    """Return one HTML page of sentences whose tokens carry their pictures, each picture once.

    Args:
        probable: scores are probabilities that a picture is right; None where it is not known.
            Pictures that are more probably wrong than right are then dimmed.
        pictures: pictures of every voken in them; a missing picture is shown as a placeholder.

    Returns:
        UTF-8. Large pages hold smaller thumbnails (256 to 40 px), so that thousands of pictures
        stay some megabytes; their script draws the rows that are seen.

    Source: Tan & Bansal 2020 (Vokenization), figure 4.
    """
    bank = pictures.bank
    used = Counter[int]()
    best = Counter[int]()
    scores = list[float]()  # the lowest and the highest so far
    bare = 0
    rows = list[Any]()
    # A single pass: the tokens of a sentence are made each time they are read.
    first = opening(len(sentence.tokens) for sentence in sentences)
    for sentence in sentences:
        tokens = list(sentence.tokens)
        used.update(v for token in tokens for v in token.vokens if v >= 0)
        best.update(token.voken for token in tokens if token.voken >= 0)
        bare += sum(token.voken < 0 for token in tokens)
        # Rounded as the tokens show them, so that the slider ends at the best token's score.
        scores += [_number(token.score) for token in tokens if token.score is not None]
        scores = [min(scores), max(scores)] if scores else []
        row = {"line": sentence.line, "parts": _packed(parts_of(replace(sentence, tokens=tokens)))}
        # Only the first are read again; JSON takes a tenth of the memory.
        rows.append(row if len(rows) < first else orjson.Fragment(json_bytes(row).decode()))
    thumbnails = Thumbnails(photo_side(len(used), 256))
    shown = {str(row): thumbnails.add(f"p{row}", pictures, row) for row in sorted(used)}
    facts = bank.facts()
    low, high = scores or (0.0, 0.0)
    if scores:
        name = f"{_SCORES[probable]}; the line under a picture"
        facts.append((name, f"{low:.2f} to {high:.2f}"))
    if probable:
        low = 0.0
        high = 1.0
    counts = [
        amount(len(sentences), "sentence"),
        amount(sum(len(sentence.tokens) for sentence in sentences), "token"),
        amount(len(best), "picture"),
        *([f"{amount(bare, 'token')} without"] if bare else []),
    ]
    top = best.most_common(24) if len(best) > 1 else []
    css, late = thumbnails.split(
        [f"p{row}" for row in used_rows(sentences[:first]) + Counter(dict(top))]
    )
    return render(
        "show",
        title,
        {
            "pictures": shown,
            "late": late,
            "low": low,
            "high": high,
            "least": LIKELY if probable else low,
            "means": "probability" if probable else "relevance",
            "digits": 2 if high - low >= 0.2 else 3,
            "rows": rows,
        },
        shared=["rows", "gallery"],
        styles=[css],
        credit=credit,
        more=more,
        counts=", ".join(counts),
        facts=facts,
        top=[(shown[str(row)], count) for row, count in top],
        first=rows[:first],
        total=len(rows),
        pictures=shown,
        low=low,
        span=high - low,
        odds=_odds(sentences) if probable else None,
        least=LIKELY if probable else low,
    )


# The score by whether it is a probability.
_SCORES = {
    True: "Probability of being right",
    False: "Relevance, not calibrated",
    None: "Relevance, not known to be calibrated",
}
LIKELY = 0.5  # from here on a picture is right more often than wrong


def _odds(sentences: Sequence[Sentence]) -> tuple[int, int, int]:
    """Return how many pictures are likely, how many there are, and likely ones expected right."""
    scores = [t.score for s in sentences for t in s.tokens if t.score is not None]
    likely = [score for score in scores if score >= LIKELY]
    return len(likely), len(scores), round(sum(likely))


def _number(score: float) -> float:
    return float(f"{score:.3g}")


def parts_of(sentence: Sentence) -> list[Any]:
    """Lay a sentence out: gaps between tokens as they are, tokens as lists.

    A token is its text; its voken and relevance, or None; then, if they differ, the word that it
    is part of, or None, and all its vokens with their relevance, if it has several.
    """
    text = sentence.text
    parts = list[Any]()
    done = 0
    words = [match.span() for match in WORD.finditer(text)] or [(0, 0)]
    word = 0
    for token in sentence.tokens:
        if token.start > done:
            parts.append(readable(text[done : token.start]))
        done = max(done, token.end)
        # Tokens and words both rise, so a single pass finds the word of each token.
        while word + 1 < len(words) and words[word][1] <= token.start:
            word += 1
        start, end = words[word]
        shown = readable(text[token.start : token.end])
        whole = readable(text[start:end]) if start <= token.start < end else shown
        ranks = [
            [voken, None if score is None else _number(score)]
            for voken, score in zip(token.vokens, token.scores, strict=True)
            if voken >= 0
        ]
        part = [
            shown if shown.strip() else "␣" if shown else "·",
            *(ranks[0] if token.voken >= 0 else [None, None]),
            whole if whole != shown else None,
            ranks if len(ranks) > 1 else None,
        ]
        while len(part) > 3 and part[-1] is None:
            part.pop()
        parts.append(part)
    if done < len(text):
        parts.append(readable(text[done:]))
    return parts


def _packed(parts: Sequence[Any]) -> list[Any]:
    """Leave out the spaces between tokens, most of all gaps; "" is between tokens that touch."""
    packed = list[Any]()
    for part in parts:
        if packed and not isinstance(part, str) and not isinstance(packed[-1], str):
            packed.append("")
        packed.append(part)
    last = len(packed) - 1
    return [part for at, part in enumerate(packed) if part != " " or at in (0, last)]


# -------------------------------------------------------------------------------------------- sheet

_TILE = 120  # px


def _lay(sentences: Sequence[Sentence], probable: bool | None) -> Sheet:
    layout = Sheet()
    for sentence in sentences:
        y = layout.heading(sentence.line, sentence.text)
        layout.height = _lay_tokens(layout, sentence, y + 16, probable) + EDGE * 0.6
    if probable:
        likely, all_, right = _odds(sentences)
        told = f"{likely:,} of {all_:,} pictures are right more often than wrong; "
        told += f"about {right:,} of them are expected to be right. The others are dimmed."
        layout.write(EDGE, layout.height, told, layout.captions[0], GREY)
        layout.height += CAPTION + EDGE * 0.6
    return layout


def _lay_tokens(layout: Sheet, sentence: Sentence, y: float, probable: bool | None) -> float:
    """Lay the tokens of a sentence out in rows from y down, and return where they end."""
    x = float(EDGE)
    end = 0
    for number, token in enumerate(sentence.tokens):
        text = sentence.text[token.start : min(token.end, token.start + 60)]
        shown = readable(text).strip() or "·"
        font = first_fit(shown, layout.captions)
        while len(shown) > 2 and font.getlength(shown) > WIDTH / 3:
            shown = shown[:-2] + "…"
        width = max(_TILE if token.voken >= 0 else 0, font.getlength(shown) + 10)
        if number:
            x += 4 if token.start <= end else 14
        end = token.end
        if x + width > WIDTH - EDGE:
            x = float(EDGE)
            y += _TILE + CAPTION + 34
        if token.voken >= 0:
            dim = bool(probable) and token.score is not None and token.score < LIKELY
            layout.tiles.append(Tile(x, y, width, _TILE, token.voken, dimmed=dim))
        colour = INK if token.voken >= 0 else GREY
        layout.write(x + width / 2, y + _TILE + 8, shown, font, colour, "ma")
        x += width
    return y + (_TILE + CAPTION + 20 if sentence.tokens else 0)


def sheet(
    sentences: Sequence[Sentence], pictures: BankPictures, probable: bool | None = None
) -> tuple[bytes, list[str]]:
    """Draw a contact sheet: each sentence, then its tokens in rows, the picture above the token.

    Args:
        sentences: voken rows; about two dozen make a readable sheet.
        pictures: pictures of every best voken in them.
        probable: as for `page`.

    Returns:
        A PNG, 1600 px wide, and the characters that no installed font has a glyph for: they are
        drawn as boxes.

    Raises:
        DataError: the sheet would be over 40,000 px high (usage, exit 2).

    Source: Tan & Bansal 2020 (Vokenization), figure 4.
    """
    layout = _lay(sentences, probable)
    return layout.png(pictures.image), sorted(layout.lacking)


# -------------------------------------------------------------------------------- terminal and pipe


def _captioned(
    sentence: Sentence, token: Token, place: BankPictures, probable: bool | None
) -> Captioned:
    """Return the best picture of a token, with the token, its content and its score below."""
    from rich.text import Text

    text = cell(sentence.text[token.start : token.end])
    if token.voken < 0:
        return Captioned(None, [Text(text)])
    image = place.image(token.voken, CELL_PIXELS)
    low = bool(probable) and token.score is not None and token.score < LIKELY
    if low and image is not None:
        image = image.convert("L").convert("RGB")
    name = place.name(token.voken) or place.bank.ids[token.voken]
    lines = [Text(text, "dim" if low else "bold"), Text(cell(name), "dim")]
    if token.score is not None:
        lines.append(Text(f"{token.score:.3f}", "dim"))
    return Captioned(image, lines)


def cell(text: str) -> str:
    """Return text that stays in its cell: tabs and line ends escaped as other controls are."""
    return plain(text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n"))


def tsv(sentence: Sentence, ids: Sequence[str] | None) -> str:
    """Return a sentence as tab-separated lines.

    The columns are line, token, start, end, rank, voken, image id, score; `-` for none.
    """
    lines = []
    for token in sentence.tokens:
        shown = cell(sentence.text[token.start : token.end])
        ranks = zip(token.vokens, token.scores, strict=True)
        for rank, (voken, score) in enumerate(ranks, 1):
            image = cell(ids[voken]) if ids is not None and voken >= 0 else "-"
            value = "-" if score is None or voken < 0 else f"{score:.4f}"
            cells = (sentence.line, shown, token.start, token.end, rank, voken, image, value)
            lines.append("\t".join(map(str, cells)) + "\n")
    return "".join(lines)


def table(
    sentence: Sentence,
    ids: Sequence[str] | None,
    console: Console,
    pictures: Sequence[BankPictures] = (),
    draw: Draw | None = None,
    probable: bool | None = None,
) -> None:
    """Print a sentence as a table: token, voken, image id, content, relevance.

    A token's further vokens are below its first. With `draw` the best pictures are drawn instead,
    in grey where they are more probably wrong than right.

    Args:
        pictures: pictures of the bank, as a list of one; without them the ids alone are printed.
        draw: draws an image, as `terminal.painter` returns it.
        probable: as for `page`.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    title = Text(cell(sentence.text) or "(an empty line)", "bold")
    console.print(Text(f"{sentence.line}  ", "dim") + title)
    if sentence.tokens and pictures and draw:
        strips = [_captioned(sentence, token, pictures[0], probable) for token in sentence.tokens]
        console.print(strip(strips, draw))
    elif sentence.tokens:
        place = pictures[0] if pictures else None
        used = {voken for token in sentence.tokens for voken in token.vokens if voken >= 0}
        named = place is not None and any(map(place.name, used))
        grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
        grid.add_column("token", overflow="fold", min_width=5)
        grid.add_column("voken", justify="right", no_wrap=True)
        if ids is not None:
            grid.add_column("image", overflow="fold", min_width=8)
        if named:
            grid.add_column("shows", overflow="fold", min_width=8)
        grid.add_column("score", justify="right", no_wrap=True)
        for token in sentence.tokens:
            shown = cell(sentence.text[token.start : token.end])
            ranks = zip(token.vokens, token.scores, strict=True)
            for rank, (voken, score) in enumerate(ranks):
                none = voken < 0
                cells = [Text("" if rank else shown)]
                cells.append(Text("-", "dim") if none else Text(str(voken), "cyan"))
                if ids is not None:
                    cells.append(Text("" if none else cell(ids[voken])))
                if named and place is not None:
                    cells.append(Text("" if none else cell(place.name(voken))))
                grid.add_row(*cells, Text("" if none or score is None else f"{score:.3f}"))
        console.print(grid)
    console.print()
