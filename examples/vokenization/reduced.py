"""Print as many whole lines of a text as have the tokens of another: table 4's Wiki103*.

    python reduced.py TOKENIZER OTHER TEXT > reduced.txt

The last line is the one with which the number is reached.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice

from vgtools.io.streams import read_texts
from vgtools.models.references import load_tokenizer
from vgtools.text.tokens import tokenize

tokenizer = load_tokenizer(sys.argv[1])


def counted(path: str) -> Iterator[tuple[str, int]]:
    """Yield the lines of a text with their numbers of tokens."""
    lines = read_texts(path)
    while part := list(islice(lines, 4096)):
        starts = tokenize(tokenizer, part).starts
        yield from zip(part, (starts[1:] - starts[:-1]).tolist(), strict=True)


left = sum(count for _, count in counted(sys.argv[2]))
for line, count in counted(sys.argv[3]):
    if left <= 0:
        break
    print(line)
    left -= count
if left > 0:
    print(f"{sys.argv[3]} is whole: {left} tokens fewer than {sys.argv[2]}", file=sys.stderr)
