"""Give the captions of each photo to another photo; rows on stdin and stdout, {"image", …}."""

import json
import random
import sys

rows = [json.loads(line) for line in sys.stdin]
order = sorted({row["image"] for row in rows})
if len(order) < 2:
    sys.exit("shuffle.py: captions of two photos are needed")
random.Random(0).shuffle(order)
# Neighbours of a random circle: nobody keeps their own.
other = dict(zip(order, order[1:] + order[:1], strict=True))
for row in rows:
    print(json.dumps(row | {"image": other[row["image"]]}))
