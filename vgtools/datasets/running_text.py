"""Running text, line by line: the paragraphs of SQuAD, filters for WikiText, sentence splitting."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from vgtools.datasets.rows import Row
from vgtools.io.errors import DataError, Tally
from vgtools.io.json_items import json_items


def squad(path: str | Path, tally: Tally) -> Iterator[Row]:
    """Yield the paragraphs of a SQuAD file, each once, and an empty line after each article.

    They are running text of Wikipedia. Line ends inside a paragraph become spaces.

    The file is the official JSON of version 1.1 or 2.0; the tally counts duplicate paragraphs, and
    empty ones.

    Raises:
        DataError: not JSON, not of SQuAD's form, or a paragraph with U+0000.
    """
    seen = set[str]()
    for key, index, article in json_items(path):
        if key != "data":
            continue
        paragraphs = article.get("paragraphs") if isinstance(article, dict) else None
        if not isinstance(paragraphs, list):
            expected = f'expected a list under "paragraphs", got {paragraphs!r:.40}'
            raise DataError(f"data[{index}]: {expected}", path)
        new = False
        for number, paragraph in enumerate(paragraphs):
            context = paragraph.get("context") if isinstance(paragraph, dict) else None
            if not isinstance(context, str):
                expected = f'expected a string under "context", got {context!r:.40}'
                raise DataError(f"data[{index}].paragraphs[{number}]: {expected}", path)
            if "\0" in context:
                why = f'data[{index}].paragraphs[{number}]: "context" holds U+0000'
                raise DataError(f"{why}, which a text cannot; remove it", path)
            if not context.strip():
                tally.left_out["empty paragraph"] += 1
                continue
            if context in seen:
                tally.left_out["paragraph that was there before"] += 1
                continue
            seen.add(context)
            new = True
            yield {"text": " ".join(context.split())}
        if new:
            yield {"text": ""}
    if not seen:
        raise DataError('has no articles under "data"; expected an official SQuAD file', path)


def is_heading(line: str) -> bool:
    """Return whether a line of WikiText is a heading: ` = Title = `, ` = = Section = = `.

    It has as many `=` after the title as before it.

    Deviation: the paper's code drops every line that starts with ` = `, also text that happens to.
    """
    words = line.split()
    level = next((n for n, word in enumerate(words) if word != "="), 0)
    if not 0 < level < len(words) - level:
        return False
    return words[-level:] == ["="] * level and words[-level - 1] != "="


def wikitext(
    rows: Iterable[Row],
    tally: Tally,
    *,
    drop_headings: bool = False,
    drop_empty: bool = False,
    drop_short: int = 0,
    trim: bool = False,
) -> Iterator[Row]:
    """Yield the lines of WikiText that no filter drops; `<unk>` stays.

    A line of white space is empty, and so is one without words where short ones are dropped (the
    paper drops lines of fewer than 5). `trim` removes the space at both ends of a line. The tally
    counts the dropped lines.

    Source: Tan & Bansal 2020 (Vokenization), the published code's corpus preparation.
    """
    for row in rows:
        text = row["text"]
        if not text.strip() and (drop_empty or drop_short):
            tally.left_out["empty line"] += 1
        elif drop_headings and is_heading(text):
            tally.left_out["heading"] += 1
        elif len(text.split()) < drop_short:
            tally.left_out[f"line of fewer than {drop_short} words"] += 1
        else:
            yield row | {"text": text.strip()} if trim else row


_LONGEST = 1 << 25  # characters of a line; 200 million kill sentencex 1.0 by a signal

# The languages whose abbreviations sentencex 1.0 knows (Chinese has none). Others are refused,
# because it would take the English abbreviations without a warning.
LANGUAGES = (
    "am", "ar", "bg", "bn", "ca", "da", "de", "el", "en", "es", "fi", "fr", "gu", "hi", "hy", "it",
    "ja", "kk", "kn", "ml", "mr", "my", "nl", "pa", "pl", "pt", "ru", "sk", "ta", "te", "uk", "zh",
)  # fmt: skip


def sentences(
    rows: Iterable[Row], language: str, tally: Tally, drop_empty: bool = False, path: str = "-"
) -> Iterator[Row]:
    """Yield a row per sentence of each row, in order, with the row's other keys.

    The splitter is Wikimedia's rule-based `sentencex`: it needs no data, keeps every character,
    takes time linear in the line, and knows abbreviations of many languages. White space around a
    sentence is removed. An empty line stays as the mark between paragraphs unless `drop_empty`.
    WikiText's `@.@` does not end a sentence.

    The language is one of `LANGUAGES`; the tally counts empty lines that are dropped; the path of
    the rows is for messages.

    Raises:
        DataError: a text of more than `_LONGEST` characters, on which the splitter crashes (65).
    """
    import sentencex  # type: ignore[import-untyped]

    for number, row in enumerate(rows, 1):
        text = row["text"]
        if len(text) > _LONGEST:
            why = f"has {len(text):,} characters, expected at most {_LONGEST:,} per line"
            raise DataError(f"{why}; break it into lines, for example with fold -s", path, number)
        if not text.strip():
            if drop_empty:
                tally.left_out["empty line"] += 1
            else:
                yield row
            continue
        # Each replacement has the length of the original, so that positions hold in both. A wide
        # space makes sentencex 1.0.32 cut inside a character (and panic).
        safe = re.sub(r"[^\S\x00-\x7f]", " ", text).replace("@.@", "@,@")
        start = end = 0
        for piece in sentencex.segment(language, safe):
            # A piece without a word, such as the `)` after `( He left . )`, belongs to the
            # sentence before it.
            if any(map(str.isalnum, piece)) and any(map(str.isalnum, text[start:end])):
                yield row | {"text": text[start:end].strip()}
                start = end
            end += len(piece)
        yield row | {"text": text[start:].strip()}
