"""Pictures of ImageNet with the nouns and the definition of their synset.

The names of synsets are in a file of the timm package: no WordNet is needed.
"""

from __future__ import annotations

import importlib.util
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from vgtools.datasets.rows import Folder, Row
from vgtools.images.sources import is_picture
from vgtools.io.errors import DataError, Exit, Tally, amount
from vgtools.io.streams import read_lines

_WNID = re.compile(r"(?<![a-z0-9])(n\d{8})(?!\d)")
_TABLES = "data/_info/imagenet_synset_to_{}.txt"


class Synset(NamedTuple):
    """The entry of a synset in WordNet."""

    nouns: list[str]
    definition: str


def read_synsets(glosses: str | None = None) -> dict[str, Synset]:
    """Return synsets by their wnid: 21,844 from timm, and the synsets of a file, which take
    precedence.

    Args:
        glosses: lines of wnid, nouns between commas, and definition, between tabs.

    Raises:
        DataError: timm has no such tables (69), or a line is not of that form or has
            the synset of another (65).
    """
    spec = importlib.util.find_spec("timm")
    if spec is None or spec.origin is None:
        raise DataError("needs the package timm: pip install timm", code=Exit.UNAVAILABLE)
    folder = Path(spec.origin).parent
    nouns = _table(folder / _TABLES.format("lemma"))
    definitions = _table(folder / _TABLES.format("definition"))
    synsets = {
        wnid: Synset(names.split(", "), definitions.get(wnid, "")) for wnid, names in nouns.items()
    }
    lines: dict[str, int] = {}
    for number, line in enumerate(read_lines(glosses) if glosses else (), 1):
        cells = line.split("\t")
        if len(cells) != 3 or not _WNID.fullmatch(cells[0]) or not cells[1].strip():
            why = f"expected wnid, nouns and definition between tabs, got {line!r:.60}"
            raise DataError(why, glosses, number)
        first = lines.setdefault(cells[0], number)
        if first != number:
            why = f"duplicate synset {cells[0]} (first on line {first})"
            raise DataError(why, glosses, number)
        names = [name.strip() for name in cells[1].split(",")]
        synsets[cells[0]] = Synset([name for name in names if name], cells[2].strip())
    return synsets


def _table(path: Path) -> dict[str, str]:
    if not path.exists():
        why = "is missing: this timm has no names of synsets; pip install -U timm"
        raise DataError(why, path, code=Exit.UNAVAILABLE)
    return dict(line.split("\t", 1) for line in read_lines(path) if "\t" in line)


def wnid_of(file: str) -> str | None:
    """Return the synset of a picture, from the nearest folder named by one, else its own name."""
    path = Path(file)
    for part in reversed(path.parts[:-1]):
        if _WNID.fullmatch(part):
            return part
    match = _WNID.match(path.name)
    return match[1] if match else None


def imagenet(
    folder: Folder,
    synsets: Mapping[str, Synset],
    tally: Tally,
    *,
    least: int = 1,
    most: int | None = None,
    seed: int = 0,
) -> Iterator[Row]:
    """Yield {"image", "synset", "nouns", "text"}, the pictures of a synset after one another.

    Args:
        folder: pictures in folders named by a wnid, or files whose names start with one.
        synsets: their nouns and definitions.
        tally: counts the pictures left out; a synset that is not known is a bad item.
        least: leave out synsets with fewer pictures.
        most: pictures drawn of each synset, whatever the others are.
        seed: decides which pictures are drawn.

    Source: Sileo 2021 (Grounding strategies), section 3.1 (synsets with at least 10 images).
    """
    files: dict[str, list[str]] = {}
    for file in filter(is_picture, folder.files):
        wnid = wnid_of(file)
        if wnid is None:
            tally.left_out["picture without a synset in its name"] += 1
        else:
            files.setdefault(wnid, []).append(file)
    for wnid, own in sorted(files.items()):
        if wnid not in synsets:
            why = f"has {amount(len(own), 'picture')} of {wnid}, a synset that timm does not know"
            tally.bad(DataError(f"{why}; name it in --glosses", folder.path / own[0]))
            continue
        if len(own) < least:
            tally.left_out[f"picture of a synset with fewer than {least}"] += len(own)
            continue
        if most is not None and len(own) > most:
            tally.left_out[f"picture beyond {most} of its synset"] += len(own) - most
            # Each synset has a generator of its own, so that its draw does not depend on which
            # other synsets are there.
            own = sorted(random.Random(f"{seed} {wnid}").sample(own, most))
        synset = synsets[wnid]
        for file in own:
            yield {"image": file, "synset": wnid, "nouns": synset.nouns, "text": synset.definition}
