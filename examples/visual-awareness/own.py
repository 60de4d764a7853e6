"""Print rows of vg retrieve whose one image is the photo that a row names.

python own.py ROWS IDS
"""

from __future__ import annotations

import json
import sys

with open(sys.argv[1]) as rows, open(sys.argv[2]) as ids:
    row_of = {name.rstrip("\n"): row for row, name in enumerate(ids)}
    for row in map(json.loads, rows):
        print(json.dumps({"text": row["text"], "images": [row_of[row["image"]]], "scores": [1.0]}))
