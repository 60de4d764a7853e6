"""Pack a matcher and its index into the file of `builtin:emoji`: builtin.py RUN X.faiss FILE."""

from __future__ import annotations

import sys
from pathlib import Path

from vgtools.systems.vokenization import emoji

run, index, file = sys.argv[1:]
Path(file).write_bytes(emoji.pack(run, index))
