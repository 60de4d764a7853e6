"""Make a noun-indexed bank (object strategy) from a captioned bank, where no ImageNet is at hand.

    python nouns.py captions.jsonl > nouns.jsonl

prints {"image", "nouns", "text"} per image: the common nouns that at least LEAST of its captions
have, in the order of their number, and its first caption. An image without one is left out.

Deviation: Sileo 2021, section 2.4.2, indexes the images of ImageNet by the names of their synsets.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from vgtools.io.files import dumps
from vgtools.io.streams import read_jsonl
from vgtools.text.parses import open_tagger


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("captions")
    parser.add_argument("--tagger", default="builtin:spacy-sm")
    parser.add_argument("--least", type=int, default=2, help="captions that have a noun")
    args = parser.parse_args()
    texts: dict[str, list[str]] = {}
    for _, row in read_jsonl(args.captions, {"image": str, "text": str}):
        texts.setdefault(row["image"], []).append(row["text"])
    tagger = open_tagger(args.tagger)
    tags = tagger([text for captions in texts.values() for text in captions])
    for image, captions in texts.items():
        counts = Counter[str]()
        for caption in captions:
            found = next(tags)
            named = zip(found.spans, found.tags, strict=True)
            counts.update({caption[a:b].lower() for (a, b), tag in named if tag in ("NN", "NNS")})
        nouns = [noun for noun, count in counts.most_common() if count >= args.least]
        if nouns:
            row = {"image": image, "nouns": nouns, "text": captions[0]}
            sys.stdout.buffer.write(dumps(row))


if __name__ == "__main__":
    main()
