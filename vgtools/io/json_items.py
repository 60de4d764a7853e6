"""Read one large JSON document item by item: annotation files run to gigabytes, memory does not.

The standard library's scanner does the parsing. ijson takes 2 to 5 times as long, refuses integers
beyond 64 bits unless all numbers become decimals, and its errors name neither key nor index.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from io import TextIOWrapper
from itertools import count
from pathlib import Path
from typing import Any

from vgtools.io.errors import DataError
from vgtools.io.streams import BROKEN_STREAM, open_read

_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")  # escape of a surrogate, alone or in a pair
_NOT_SPACE = re.compile(r"[^ \t\r\n]")


class _ItemReader:
    """Parse one JSON document, holding no more than one item of its arrays."""

    def __init__(self, path: str | Path, chunk: int, surrogates: bool) -> None:
        self.path = path
        self.surrogates = surrogates
        self.chunk = chunk
        self.stream = TextIOWrapper(open_read(path), "utf-8-sig", newline="")
        self.text = ""  # the characters that were read and not yet dropped
        self.at = 0  # where in it the next token starts
        self.last = ""  # the value parsed last, for messages
        self.decoder = json.JSONDecoder()

    def more(self) -> bool:
        # Reading as much again as is held keeps the time for one long item linear in its length.
        size = max(self.chunk, len(self.text) - self.at)
        try:
            new = self.stream.read(size)
        except (*BROKEN_STREAM, UnicodeDecodeError) as error:
            why = f"compressed data is cut off or the text is not UTF-8: {error}"
            raise DataError(why, self.path) from None
        self.text = self.text[self.at :] + new
        self.at = 0
        return bool(new)

    def peek(self) -> str:
        """Return the next character that is not white space; "" at the end of the file."""
        while True:
            match = _NOT_SPACE.search(self.text, self.at)
            if match:
                self.at = match.start()
                return match[0]
            self.at = len(self.text)
            if not self.more():
                return ""

    def take(self, expected: str, location: str) -> str:
        character = self.peek()
        if not character or character not in expected:
            got = repr(character) if character else "the end of the file"
            why = f"{location}: expected {' or '.join(expected)}, got {got}; is the file cut off?"
            raise DataError(why, self.path)
        self.at += 1
        return character

    def members(self, opening: str, closing: str, name: str) -> Iterator[int]:
        """Yield 0, 1, … where each member of an array or object starts."""
        self.take(opening, name)
        if self.peek() == closing:
            self.at += 1
            return
        for index in count():
            yield index
            if self.take(f",{closing}", f"after {self.last}") == closing:
                return

    def value(self, location: str) -> Any:
        self.peek()
        self.last = location
        while True:
            start = self.at
            try:
                value, end = self.decoder.raw_decode(self.text, start)
                # A number that ends where reading stopped may continue, with a fraction or `e-9`.
                if end + 3 > len(self.text) and self.more():
                    continue
                size = end - start  # `more` may have moved the text
                if not self.surrogates and _ESCAPE.search(self.text, self.at, self.at + size):
                    self.check(value, location)
                self.at += size
                return value
            except RecursionError:
                raise DataError(f"{location}: nested too deeply", self.path) from None
            except json.JSONDecodeError as error:
                # An error far from the end of the text so far is the file's, and not due to the
                # place where reading stopped.
                torn = error.pos > len(self.text) - 64 or error.msg.startswith("Unterminated")
                if not torn or not self.more():
                    why = f"{location}: not valid JSON ({error.msg}); is the file cut off?"
                    raise DataError(why, self.path) from None
            except ValueError:  # Python reads no integer of more than 4,300 digits
                why = f"{location}: contains a number with too many digits"
                raise DataError(why, self.path) from None

    def check(self, value: Any, location: str) -> None:
        """Refuse strings that no file and no tokenizer takes."""
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            why = f"{location}: holds half a character (a lone surrogate)"
            raise DataError(why, self.path) from None


def json_items(
    path: str | Path,
    chunk: int = 1 << 20,
    surrogates: bool = False,
    others: dict[str, Any] | None = None,
) -> Iterator[tuple[str, int, Any]]:
    """Yield `(key, index, item)` of a JSON array, or of each array of a JSON object.

    One item is held at a time. Values of an object that are not arrays are skipped; the key of a
    plain array is "".

    Args:
        path: a file, `.gz`, `.zst`, or `-`.
        chunk: characters per read.
        surrogates: let items with lone surrogates pass; the caller checks each string.
        others: takes the values that are not arrays, as far as the file has been read.

    Raises:
        DataError: not JSON, a lone surrogate, cut off, or trailing data; key and index are named.
    """
    reader = _ItemReader(path, chunk, surrogates)

    def items(key: str) -> Iterator[tuple[str, int, Any]]:
        for index in reader.members("[", "]", key or "the file"):
            yield key, index, reader.value(f"{key}[{index}]")

    with reader.stream:
        if reader.peek() == "{":
            for _ in reader.members("{", "}", "the file"):
                key = reader.value("a key")
                reader.take(":", f"after the key {key!r:.40}")
                if reader.peek() == "[":
                    yield from items(str(key))
                else:
                    value = reader.value(str(key))
                    if others is not None:
                        others[str(key)] = value
                reader.last = f"{key!r:.40}"
        else:
            yield from items("")
        if reader.peek():
            raise DataError("has data after the end of its JSON; was it appended to?", path)
