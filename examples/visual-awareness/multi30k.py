"""Write the pairs of Multi30k whose photo is in Flickr8k, split by photo as Flickr8k is.

Rows are {"text", "target", "image", "split"}. `--mask` hides the colours or the nouns of the source
(`[v]`), which a picture could show: Caglayan et al. 2019, "Probing the need for visual context in
multimodal machine translation". The first of pairs with equal sources is kept: images are found by
the text.

    python multi30k.py MULTI30K FLICKR8K OUT [--mask colours|nouns]
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

COLOURS = {
    "black", "blonde", "blue", "brown", "dark", "gold", "golden", "gray", "green", "grey", "light",
    "orange", "pink", "purple", "red", "silver", "tan", "violet", "white", "yellow",
}  # fmt: skip
NOUNS = ("NN", "NNS", "NNP", "NNPS")
HIDDEN = "[v]"


def sentences(path: Path) -> list[str]:
    """Return the lines of a compressed text."""
    return gzip.decompress(path.read_bytes()).decode().split("\n")


def pairs(multi30k: Path, of_photo: dict[str, tuple[str, str]]) -> Iterator[dict[str, str]]:
    """Yield the rows of all splits of Multi30k that have photos in Flickr8k."""
    raw = multi30k / "task1/raw"
    for name in ("train", "val", "test_2016_flickr"):
        photos = (multi30k / f"task1/image_splits/{name}.txt").read_text().split("\n")
        sides = [sentences(raw / f"{name}.{side}.gz") for side in ("en", "de")]
        for photo, text, target in zip(photos, *sides, strict=True):
            image, split = of_photo.get(photo.split(".")[0], ("", ""))
            if image and text.strip() and target.strip():
                yield {
                    "text": text.strip(),
                    "target": target.strip(),
                    "image": image,
                    "split": split,
                }


def hide_colours(text: str) -> str:
    """Return a text without its colours."""
    return re.sub(r"\w+", lambda word: HIDDEN if word[0].lower() in COLOURS else word[0], text)


def hide_nouns(texts: list[str]) -> list[str]:
    """Return texts without their nouns."""
    from vgtools.text.parses import open_tagger

    hidden = []
    for text, found in zip(texts, open_tagger("builtin:spacy-sm")(texts), strict=True):
        for (start, end), tag in reversed(list(zip(found.spans, found.tags, strict=True))):
            if tag in NOUNS:
                text = text[:start] + HIDDEN + text[end:]
        hidden.append(text)
    return hidden


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("multi30k", type=Path)
    parser.add_argument("flickr8k", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--mask", choices=("colours", "nouns"))
    given = parser.parse_args()
    of_photo = {}
    for split in ("train", "dev"):
        names = (given.flickr8k / f"Flickr_8k.{split}Images.txt").read_text().split()
        of_photo |= {name.split("_")[0]: (name, split) for name in names}
    rows = list(pairs(given.multi30k, of_photo))
    texts = [row["text"] for row in rows]
    if given.mask:
        texts = hide_nouns(texts) if given.mask == "nouns" else list(map(hide_colours, texts))
    given.out.mkdir(parents=True, exist_ok=True)
    seen = set[str]()
    for split in ("train", "dev"):
        with open(given.out / f"{split}.jsonl", "w") as file:
            for row, text in zip(rows, texts, strict=True):
                if row["split"] == split and text not in seen:
                    seen.add(text)
                    file.write(json.dumps(row | {"text": text}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
