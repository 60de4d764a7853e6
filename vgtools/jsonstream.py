"""Read one large JSON document item by item: annotation files run to gigabytes, a machine's memory does not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from vgtools.io import BROKEN_STREAM, DataError, open_read


class _Json:
    """A reader of one large JSON document that holds no more than one item of its arrays."""

    def __init__(self, path: str | Path, chunk: int) -> None:
        self.path, self.text, self.at, self.chunk = path, "", 0, chunk
        self.stream = TextIOWrapper(open_read(path), "utf-8-sig", newline="")
        self.decoder = json.JSONDecoder()

    def more(self) -> bool:
        try:
            new = self.stream.read(max(self.chunk, len(self.text) - self.at))  # doubling keeps a long item linear
        except (*BROKEN_STREAM, UnicodeDecodeError) as error:
            raise DataError(f"compressed data is cut off or the text is not UTF-8: {error}", self.path) from None
        self.text, self.at = self.text[self.at :] + new, 0
        return bool(new)

    def peek(self) -> str:
        """Return the next character that is not white space, '' at the end."""
        while True:
            while self.at < len(self.text):
                if self.text[self.at] not in " \t\r\n":
                    return self.text[self.at]
                self.at += 1
            if not self.more():
                return ""

    def take(self, wanted: str, where: str) -> str:
        found = self.peek()
        if not found or found not in wanted:
            what = repr(found) if found else "the end of the file"
            raise DataError(f"{where}: found {what}, wanted {' or '.join(wanted)}; is the file cut off?", self.path)
        self.at += 1
        return found

    def value(self, where: str) -> Any:
        self.peek()
        while True:
            start = self.at
            try:
                found, end = self.decoder.raw_decode(self.text, start)
                if end + 3 > len(self.text) and self.more():
                    continue  # a number that ends where we stopped reading could go on, with `.5` or `e-9`
                self.at += end - start  # `more` may have moved the text
                return found
            except RecursionError:
                raise DataError(f"{where}: nested too deeply", self.path) from None
            except json.JSONDecodeError as error:
                # Far from the end of what was read, the fault is in the file, not in where we stopped reading.
                torn = error.pos > len(self.text) - 64 or error.msg.startswith("Unterminated")
                if not torn or not self.more():
                    raise DataError(f"{where}: not valid JSON ({error.msg}); is the file cut off?", self.path) from None
            except ValueError:  # Python reads no integer of more than 4,300 digits
                raise DataError(f"{where}: holds a number of more digits than any can have", self.path) from None


def json_items(path: str | Path, chunk: int = 1 << 20) -> Iterator[tuple[str, int, Any]]:
    """Yield `(key, index, item)` of a JSON array, or of each array of a JSON object, holding one item at a time.

    Values of an object that are no arrays are passed over; the key is "" for a plain array.

    Raises:
        DataError: not JSON, cut off, or trailing data; key and index say where.
    """
    source = _Json(path, chunk)

    def items(key: str) -> Iterator[tuple[str, int, Any]]:
        index = 0
        source.take("[", key or "the file")
        while source.peek() != "]":
            yield key, index, source.value(f"{key}[{index}]")
            index += 1
            if source.take(",]", f"after {key}[{index - 1}]") == "]":
                return
        source.at += 1

    with source.stream:
        if source.peek() == "{":
            source.at += 1
            while source.peek() != "}":
                key = source.value("a key")
                source.take(":", f"after the key {key!r:.40}")
                if source.peek() == "[":
                    yield from items(str(key))
                else:
                    source.value(str(key))
                if source.take(",}", f"after {key!r:.40}") == "}":
                    break
            else:
                source.at += 1
        else:
            yield from items("")
        if source.peek():
            raise DataError("goes on after its end; was it appended to?", path)
