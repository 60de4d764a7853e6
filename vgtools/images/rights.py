"""Licences of pictures: "license" and "url" of the rows of an image list, of captions or a table.

They go from there into the manifest of an index, how many pictures are under each licence, and into
`X.rights.jsonl` next to it, a row per picture in the order of the bank; a page shows them under the
picture.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vgtools.io.streams import read_jsonl, require

RIGHTS = ("license", "url")
UNKNOWN = "unknown"
Rights = dict[str, str]


def rights_of(row: Mapping[str, Any]) -> Rights:
    """Return the licence and the address of the picture of a row, as far as it has them."""
    # LAION writes LICENSE, and a question mark where it has none.
    found = {"license": row.get("license", row.get("LICENSE")), "url": row.get("url")}
    return {name: one for name, one in found.items() if isinstance(one, str) and one not in "?"}


def read_rights(paths: Iterable[str]) -> dict[str, Rights]:
    """Return the rights of the images of some rows, by id; the first row of an image counts.

    Raises:
        DataError: a row without the id of an image (65).
    """
    found = dict[str, Rights]()
    for path in paths:
        for number, row in read_jsonl(path):
            key = "image_path" if "image_path" in row and "image" not in row else "image"
            require(row, {key: str}, path, number)
            rights = rights_of(row)
            if rights:
                found.setdefault(row[key], rights)
    return found


def count_licenses(rights: Mapping[str, Rights], ids: Iterable[str]) -> dict[str, int]:
    """Return how many of some images are under each licence, the most frequent first."""
    counts = Counter(rights.get(image, {}).get("license", UNKNOWN) for image in ids)
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def rights_file(index: str | Path) -> Path:
    """Return the file with the rights of the images of an index."""
    return Path(index).with_suffix(".rights.jsonl")


def open_rights(index: str | Path, manifest: Mapping[str, Any]) -> dict[str, Rights]:
    """Return the rights of the images of an index, by id; none if it was built without."""
    file = rights_file(index)
    if file.name not in manifest["files"]:
        return {}
    return {row["image"]: rights_of(row) for _, row in read_jsonl(file, {"image": str})}


def in_words(rights: Rights) -> str:
    """Return rights as the caption of a picture has them: `CC BY 4.0, https://…`."""
    return ", ".join(rights[name] for name in RIGHTS if name in rights)
