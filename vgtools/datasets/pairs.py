"""Two files whose lines translate one another become rows of pairs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest

from vgtools.datasets.rows import Row
from vgtools.io.errors import DataError, Tally, TextStats, amount
from vgtools.io.names import bare, file_of, is_table
from vgtools.io.streams import holds_rows, read_lines

# The first line of WMT's, IWSLT's and other sets of XML, which may have any name. In a text, <url>
# may stand for an address.
_XML = re.compile(
    r"(?i)<(?:\?xml|!doctype|srcset|refset|tstset|mteval|tmx|xliff)\b"
    r"|<(?:doc|dataset|file)\s+\w+\s*=|<doc>\s*$"
    r"|<(url|talkid|keywords)>.*</\1>"
)
_XML_NAMES = (".xml", ".sgm", ".sgml", ".tmx", ".xlf", ".xliff")


def pairs(
    source: str,
    target: str,
    tally: Tally,
    *,
    ratio: float | None = None,
    longest: int | None = None,
) -> Iterator[Row]:
    """Yield `{"text", "target"}` of two files, line by line.

    Lines end at a line feed only: U+2028, NEL or a carriage return inside a sentence would shift
    all pairs after it.

    Args:
        source: file of the sentences.
        target: file of their translations, one per line.
        tally: counts the pairs that are left out: those with an empty side, and those below.
        ratio: leave out pairs whose longer side has more than `ratio` times as many words as the
            other.
        longest: leave out pairs with a side of more words.

    Raises:
        DataError: the files have unequal numbers of lines (65, both numbers), or one holds rows, is
            a table, or is XML.
    """
    count = 0
    both = zip_longest(_sentences(source, tally.text), _sentences(target, tally.text))
    for count, (text, translation) in enumerate(both, 1):
        if text is None or translation is None:
            # The longer file is read to its end, so that the message can give both numbers of
            # lines.
            rest = 1 + sum(1 for _ in both)
            fewer, more = (source, target) if text is None else (target, source)
            why = f"has {amount(count - 1, 'line')}, expected {count - 1 + rest:,} as in {more}"
            raise DataError(f"{why}; line N of one must translate line N of the other", fewer)
        words = (len(text.split()), len(translation.split()))
        if not min(words):
            tally.left_out["pair with an empty side"] += 1
        elif longest is not None and max(words) > longest:
            tally.left_out[f"pair with a side of more than {longest} words"] += 1
        elif ratio is not None and max(words) > ratio * min(words):
            tally.left_out[f"pair with one side over {ratio:g} times the other"] += 1
        else:
            yield {"text": text, "target": translation}
    if not count:
        raise DataError("is empty; expected one sentence per line", source)


def _sentences(path: str, stats: TextStats) -> Iterator[str]:
    """Yield the lines of a text.

    Rows and tables would become sentences of JSON or of cells, and the splits that they name would
    be lost.
    """
    if is_table(path):
        table = path if path != file_of(path) else f"{path}#COLUMN"
        way = f"vg prepare wikitext '{table}' -o SENTENCES.txt"
        why = "is a table, expected one sentence per line; write the column of the sentences"
        raise DataError(f"{why}: {way}", path)
    is_first = True
    for number, line in enumerate(read_lines(path, stats), 1):
        if is_first and holds_rows(path, line):
            split = """select((.split // "train") == "train")"""
            way = f"""jq -r '{split}.text | gsub("\\n"; " ")' {path}"""
            why = "holds rows, expected one sentence per line; write those to learn from"
            raise DataError(f"{why}: {way}", path, number)
        if is_first and (bare(path).lower().endswith(_XML_NAMES) or _XML.match(line.lstrip())):
            way = "sacrebleu -t wmt14 -l en-de --echo src writes one side of a set of WMT's"
            why = "is XML, expected one sentence per line; write its segments to a text"
            raise DataError(f"{why}: {way}", path)
        is_first = is_first and not line.strip()
        yield line
