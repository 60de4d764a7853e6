"""Print rows of vg retrieve whose one image is the photo that a row names: python own.py ROWS IDS."""

from __future__ import annotations

import json
import sys

row_of = {name.rstrip("\n"): row for row, name in enumerate(open(sys.argv[2]))}
for line in open(sys.argv[1]):
    row = json.loads(line)
    print(json.dumps({"text": row["text"], "images": [row_of[row["image"]]], "scores": [1.0]}))
