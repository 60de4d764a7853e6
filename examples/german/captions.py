"""Write Multi30k's captions in one language, five per photo, of the photos that are in Flickr8k.

Rows are {"image", "text", "split"}, split by photo as Flickr8k is. The captions of task 2 were
written for the photos, not translated: Elliott et al. 2016, "Multi30K".

    python captions.py MULTI30K FLICKR8K de > captions.jsonl
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

multi30k, flickr8k = map(Path, sys.argv[1:3])
language = sys.argv[3]
photos = dict[str, tuple[str, str]]()  # by number, which is all that Multi30k has of a name
for split in ("train", "dev"):
    for name in (flickr8k / f"Flickr_8k.{split}Images.txt").read_text().split():
        photos[name.split("_")[0]] = (name, split)
for part in ("train", "val"):
    numbers = (multi30k / f"task2/image_splits/{part}_images.txt").read_text().split()
    for k in range(1, 6):
        path = multi30k / f"task2/raw/{part}.{k}.{language}.gz"
        texts = gzip.decompress(path.read_bytes()).decode().split("\n")
        for number, text in zip(numbers, texts, strict=False):  # after the last line end: nothing
            image, split = photos.get(number.removesuffix(".jpg"), ("", ""))
            if image and text.strip():
                row = {"image": image, "text": text.strip(), "split": split}
                print(json.dumps(row, ensure_ascii=False))
