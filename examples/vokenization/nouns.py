"""Count the nouns of a text whose vokens show the thing: nouns.py NOUNS IMAGES IDS VOKENS...

NOUNS has lines of a word, a tab and the ids of the pictures that show it, commonest words first;
IMAGES is the image list with the pictures' names, IDS is X.ids of the index, and each VOKENS holds
the rows of vg vokenize by one matcher. Prints markdown: a row per noun that is wrong somewhere,
with the share of its tokens that have a right picture and the names of the wrong ones; then how
many nouns are right, next to three controls:

- a random picture of the bank, expected;
- the voken that is most frequent in VOKENS, for every noun;
- the vokens of another noun in the same file, expected.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from vgtools.reports.tables import Table, markdown

COMMONEST = 40

Rows = list[dict[str, Any]]


def read_rows(file: str) -> Rows:
    """Return the rows of a jsonl file."""
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


def vokens_of(noun: str, rows: Rows) -> list[int]:
    """Return the vokens of a word's tokens, wherever a text holds it, in capitals or not."""
    found = []
    for row in rows:
        for word in re.finditer(rf"\b{re.escape(noun)}\b", row["text"], re.IGNORECASE):
            first, last = word.span()
            spans = zip(row["spans"], row["vokens"], strict=True)
            found += [voken for (start, end), voken in spans if start < last and end > first]
    if not found:
        sys.exit(f"nouns.py: no text holds the word {noun!r}")
    return found


def share(vokens: list[int], right: set[int]) -> float:
    """Return the share of the vokens that are right."""
    return sum(voken in right for voken in vokens) / len(vokens)


def total(shares: list[float]) -> str:
    """Return a sum of shares as a table shows it."""
    return f"{sum(shares):.1f}".removesuffix(".0")


def totals(rows: Rows, vokens: list[list[int]], rights: list[set[int]], size: int) -> list[str]:
    """Return how many nouns are right, of the commonest and of all, and of all in the controls."""
    shares = list(map(share, vokens, rights))
    most = Counter(voken for row in rows for voken in row["vokens"]).most_common(1)[0][0]
    others = [
        sum(share(given, right) for given in vokens) - share(own, right)
        for own, right in zip(vokens, rights, strict=True)
    ]
    return [
        total(shares[:COMMONEST]),
        total(shares),
        total([len(right) / size for right in rights]),
        total([most in right for right in rights]),
        total([sum(others) / (len(rights) - 1)]),
    ]


def main(nouns: str, images: str, ids: str, *files: str) -> None:
    """Print the nouns that are wrong somewhere, and the totals."""
    lines = [line.split("\t") for line in Path(nouns).read_text().splitlines()]
    bank = Path(ids).read_text().split()
    names = {row["image"]: row["names"][0] for row in read_rows(images)}
    place = {name: number for number, name in enumerate(bank)}
    rights = [{place[name] for name in pictures.split()} for _, pictures in lines]
    runs = [read_rows(file) for file in files]
    found = [[vokens_of(noun, rows) for noun, _ in lines] for rows in runs]
    table = []
    for (noun, _), right, *vokens in zip(lines, rights, *found, strict=True):
        wrong = {names[bank[voken]] for given in vokens for voken in given if voken not in right}
        if wrong:
            shares = [f"{share(given, right):.2g}" for given in vokens]
            table.append([noun, *shares, ", ".join(sorted(wrong))])
    print(markdown(Table(["noun", *files, "wrong pictures"], table)))
    headings = [f"right of {min(COMMONEST, len(lines))} commonest", f"right of all {len(lines)}"]
    controls = ["random picture", "most frequent picture", "another noun's"]
    counts = [
        [file, *totals(rows, vokens, rights, len(bank))]
        for file, rows, vokens in zip(files, runs, found, strict=True)
    ]
    print(markdown(Table(["vokens", *headings, *controls], counts)), end="")


if __name__ == "__main__":
    main(*sys.argv[1:])
