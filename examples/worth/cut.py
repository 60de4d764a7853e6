"""Cut a WordPiece vocabulary in lower case to the pieces of a text and all single characters.

    python cut.py TOKENIZER TEXT FOLDER

A small model spends most of its time on entries that its text never has. The text is cut into the
same pieces as before; only ids change.
"""

from __future__ import annotations

import sys
from itertools import islice

from transformers import BertTokenizerFast

from vgtools.io.streams import read_texts
from vgtools.models.references import load_tokenizer
from vgtools.text.tokens import tokenize

MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
name, text, folder = sys.argv[1:]
tokenizer = load_tokenizer(name)
used = set[int]()
lines = read_texts(text)
while part := list(islice(lines, 4096)):
    used.update(tokenize(tokenizer, part).ids.tolist())
kept = [
    piece
    for piece, row in sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    if row in used or len(piece.removeprefix("##")) == 1 or piece in MARKS
]
BertTokenizerFast(vocab={piece: row for row, piece in enumerate(kept)}).save_pretrained(folder)
