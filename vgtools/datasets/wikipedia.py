"""Wikipedia's dump as running text: pages out of XML, paragraphs out of their markup, page views.

A page is held in memory at a time, and with page views the titles that have enough of them.
"""

from __future__ import annotations

import bz2
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn
from xml.parsers import expat

from vgtools.datasets.rows import Row
from vgtools.io.errors import DataError, Exit, Tally, file_errors
from vgtools.io.streams import BROKEN_STREAM, open_read

_CHUNK = 1 << 20
_UNCLOSED = 200  # marks of a page that nothing closes; each may make its parser read to the end
_LIST = "\0"  # stands for the mark of a list's item; no XML can contain it
# The content of these elements is not running text.
_NOT_TEXT = frozenset(
    (
        "ref", "references", "table", "gallery", "math", "chem", "score", "timeline", "imagemap",
        "graph", "mapframe", "maplink", "syntaxhighlight", "source", "templatestyles", "hiero",
        "inputbox", "categorytree", "section", "indicator",
    )
)  # fmt: skip
# Elements of a page, by the one that they are in.
_FIELDS = frozenset((("page", "title"), ("page", "ns"), ("page", "id"), ("revision", "text")))


class WikiPage(NamedTuple):
    """One page of a dump."""

    number: int
    title: str
    space: str  # number of its name space: 0 are articles
    redirect: bool
    markup: str


def open_dump(path: str) -> BinaryIO:
    """Open a file of Wikimedia's: .bz2, or as `open_read`."""
    if not path.endswith(".bz2"):
        return open_read(path)
    with file_errors(path, reading=True):
        return bz2.open(path)  # type: ignore[return-value]


class _PageReader:
    """Collects pages from the events of an XML parser."""

    def __init__(self) -> None:
        self.pages: list[WikiPage] = []
        self.hidden = {"file", "image", "category"}  # names of spaces whose links show no text
        self._path: list[str] = []
        self._text: list[str] = []
        self._page: dict[str, str] = {}
        self._space = ""
        self.parser = expat.ParserCreate()
        # expat would otherwise deliver the text in many small pieces.
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text.append
        self.parser.StartDoctypeDeclHandler = self._doctype

    def _doctype(self, *_: Any) -> NoReturn:
        raise ValueError("has a DOCTYPE, which dumps do not have; refused: it can declare entities")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._path.append(name)
        self._text.clear()
        if name == "page":
            self._page = {}
        elif name == "redirect":
            self._page["redirect"] = ""
        elif name == "namespace":
            self._space = attributes.get("key", "")

    def _end(self, name: str) -> None:
        self._path.pop()
        text = "".join(self._text)
        self._text.clear()
        parent = self._path[-1] if self._path else ""
        if name == "namespace" and self._space in ("6", "14"):  # files and categories
            self.hidden.add(text.lower())
        elif (parent, name) in _FIELDS:
            self._page[name] = text
        elif name == "page":
            page = self._page
            number = page.get("id", "-1").strip()
            if not re.fullmatch(r"-1|[0-9]{1,18}", number):
                raise ValueError(f"expected the number of a page as its id, got {number!r:.40}")
            markup = page.get("text", "")
            space = page.get("ns", "0")
            found = (int(number), page.get("title", ""), space, "redirect" in page, markup)
            self.pages.append(WikiPage(*found))


def pages(path: str, reader: _PageReader) -> Iterator[WikiPage]:
    """Yield the pages of a dump, `pages-articles.xml` or one of its parts, as they are read.

    Raises:
        DataError: not whole XML, a DOCTYPE, no page, or compressed data that is cut off.
    """
    found = False
    stream = open_dump(path)
    with file_errors(path, reading=True), stream:
        try:
            while chunk := stream.read(_CHUNK):
                reader.parser.Parse(chunk, False)
                found = found or bool(reader.pages)
                yield from reader.pages
                # Pages are released after each chunk: a dump has 20 million of them.
                reader.pages.clear()
            reader.parser.Parse(b"", True)
        except expat.ExpatError as error:
            raise DataError(f"is not whole XML: {error}", path, error.lineno) from None
        except ValueError as error:
            raise DataError(str(error), path, reader.parser.CurrentLineNumber) from None
        except (*BROKEN_STREAM, OSError) as error:
            # An OSError with a number comes from the disk and keeps its own exit code; without a
            # number it is bz2's error for damaged data.
            if getattr(error, "errno", None) is not None:
                raise
            raise DataError(f"compressed data is cut off or damaged: {error}", path) from None
    if not found:
        raise DataError("has no pages; expected a dump such as enwiki-…-pages-articles.xml", path)


def _is_closed(markup: str) -> bool:
    """Return whether markup closes nearly all that it opens: only then is parsing linear."""
    opened = len(re.findall(r"<(?!br\b|hr\b|li\b|d[td]\b|/)[a-z][^<>]*(?<!/)>", markup, re.I))
    left = (
        opened - markup.count("</"),
        markup.count("<") - markup.count(">"),
        markup.count("{{") - markup.count("}}"),
        markup.count("[") - markup.count("]"),
    )
    return max(left) <= _UNCLOSED


def paragraphs(markup: str, hidden: Iterable[str] = ("file", "image", "category")) -> list[str]:
    """Return the paragraphs of a page, each a line of plain text.

    Templates, tables, lists, headings, notes, formulas, pictures and categories are left out; a
    link is replaced by its text.

    Args:
        markup: the markup of the page.
        hidden: small names of the spaces whose links show no text.

    Raises:
        DataError: mwparserfromhell is not installed (69).
    """
    try:
        import mwparserfromhell
    except ImportError:
        why = "Wikipedia's markup needs mwparserfromhell: pip install 'vgtools[wikipedia]'"
        raise DataError(why, code=Exit.UNAVAILABLE) from None
    # A comment without end hides the rest of a page; the parser would look for each end again.
    markup = re.sub(r"<!--.*?(?:-->|\Z)", "", markup, flags=re.S)
    # Items of lists are left out, however deep they are.
    markup = re.sub(r"^([*#:;]{8})[*#:;]+", r"\1", markup, flags=re.M)
    lines = "".join(_plain(mwparserfromhell.parse(markup).nodes, frozenset(hidden))).split("\n")
    found = (_tidy(line) for line in lines if _LIST not in line)
    return [line for line in found if line]


def _paragraphs_of(page: WikiPage, hidden: Iterable[str]) -> list[str] | None:
    """Return the paragraphs of a page, or None if it is nested too deeply to be parsed."""
    try:
        return paragraphs(page.markup, hidden)
    except RecursionError:
        return None


def _tidy(line: str) -> str:
    """Return a line without the brackets and blanks around a template that was dropped."""
    line = re.sub(r"\(\s*[,;]*\s*\)", "", line)
    line = re.sub(r"\(\s*[,;]\s*", "(", line)
    line = " ".join(line.split())
    line = re.sub(r" ([,.;)])(?!\d)", r"\1", line)
    return line if any(map(str.isalnum, line)) else ""


def _plain(nodes: Iterable[Any], hidden: frozenset[str]) -> Iterator[str]:
    """Yield the text that nodes of mwparserfromhell show."""
    for node in nodes:
        kind = type(node).__name__
        if kind == "Text":
            yield str(node)
        elif kind == "HTMLEntity":
            # &#xD800; is half a character, which no text can hold.
            yield node.normalize().encode("utf-8", "replace").decode()
        elif kind == "Heading":
            yield "\n"
        elif kind == "Wikilink":
            space = str(node.title).partition(":")[0].strip().lower()
            if ":" not in node.title or space not in hidden:
                yield from _plain((node.text or node.title).nodes, hidden)
        elif kind == "ExternalLink" and node.title is not None:
            yield from _plain(node.title.nodes, hidden)
        elif kind == "Tag":
            name = str(node.tag).strip().lower()
            if name in ("li", "dd", "dt") and node.wiki_markup:
                yield _LIST
            elif name == "br":
                yield " "
            elif name not in _NOT_TEXT and node.contents is not None:
                yield from _plain(node.contents.nodes, hidden)


def wikipedia(
    path: str,
    tally: Tally,
    *,
    whole: bool = False,
    views: Counter[str] | None = None,
    least: int = 0,
) -> Iterator[Row]:
    """Yield the text of a dump's articles: {"text", "title"}.

    A row is a paragraph, and an empty row ends an article; or a row is all paragraphs of an
    article, joined.

    Args:
        path: the file of the dump.
        tally: counts pages that are left out.
        whole: a row per article.
        views: page views by title.
        least: the fewest views of an article that is taken.

    Source: Tan & Bansal 2020 (Vokenization), section 4.2 and the published code's corpus
        preparation; Sileo 2021 (Visual grounding strategies), section 3.1: "the body of pages from
        the Wikipedia pages with at least 20 views".
    Deviation: vokenization's code extracts with WikiExtractor, which expands templates; here they
        are dropped, and with them values such as the numbers in {{convert}}. It then separates
        words by Moses and removes accents, which BERT's uncased tokenizer does itself; neither is
        done here, so that one text serves every tokenizer.
    """
    reader = _PageReader()
    for page in pages(path, reader):
        if page.space.strip() != "0":
            tally.left_out["page that is not an article"] += 1
        elif page.redirect:
            tally.left_out["redirect"] += 1
        elif views is not None and views[page.title.replace(" ", "_")] < least:
            tally.left_out[f"article with fewer than {least} views"] += 1
        elif not _is_closed(page.markup):
            tally.left_out["article whose markup is not closed"] += 1
        elif (lines := _paragraphs_of(page, reader.hidden)) is None:
            tally.left_out["article whose markup is nested too deeply"] += 1
        elif not lines:
            tally.left_out["article without a paragraph"] += 1
        elif whole:
            yield {"text": " ".join(lines), "title": page.title}
        else:
            yield from ({"text": line, "title": page.title} for line in lines)
            yield {"text": ""}


def page_views(paths: Sequence[str], project: str) -> Counter[str]:
    """Return how often each title of a project was asked for, over all files.

    Files are Wikimedia's, one line per page: PROJECT TITLE VIEWS BYTES of an hour (`en`; `en.m` is
    its mobile site), or PROJECT TITLE ID ACCESS VIEWS HOURS of a day or a month (`en.wikipedia`).

    Args:
        paths: .gz, .bz2 or plain.
        project: its name without `.wikipedia` and `.m`.

    Raises:
        DataError: a line has another form, or no line is of the project.
    """
    names = {project.encode() + end for end in (b"", b".m", b".wikipedia")}
    found: Counter[str] = Counter()
    for path in paths:
        with file_errors(path, reading=True), open_dump(path) as stream:
            try:
                for number, line in enumerate(stream, 1):
                    # Most lines are of other projects, so they are compared as bytes and never
                    # decoded.
                    if line.partition(b" ")[0] in names:
                        _count(line.split(), found, path, number)
            except (*BROKEN_STREAM, OSError) as error:
                if getattr(error, "errno", None) is not None:
                    raise
                why = f"compressed data is cut off or damaged: {error}"
                raise DataError(why, path) from None
    if not found:
        raise DataError(f"has no views of the project {project!r}", Path(paths[0]))
    return found


def _count(fields: list[bytes], found: Counter[str], path: str, number: int) -> None:
    """Add the views of a line."""
    place = {4: 2, 5: 4, 6: 4}.get(len(fields), 0)
    if not place or not fields[place].isdigit() or len(fields[place]) > 18:
        expected = "PROJECT TITLE VIEWS BYTES, or PROJECT TITLE ID ACCESS VIEWS HOURS"
        line = b" ".join(fields).decode("utf-8", "replace")
        raise DataError(f"expected {expected}, got {line!r:.80}", path, number)
    found[fields[1].decode("utf-8", "replace")] += int(fields[place])
