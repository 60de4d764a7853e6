"""Subword vocabularies learned from texts, for networks that are trained from scratch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit
from vgtools.io.splits import refuse_held_out
from vgtools.io.streams import read_text_rows
from vgtools.text.tokens import special_ids

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

PAD = "<pad>"
START = "<s>"
END = "</s>"
UNKNOWN = "<unk>"
SPECIAL = (PAD, START, END, UNKNOWN)  # ids 0 to 3
MASK = "<mask>"  # id 4, for masked language models
_AT_ONCE = 4096  # texts that are tokenised at a time


def both_sides(files: Iterable[str]) -> Iterator[str]:
    """Yield the texts of files to learn from, each before its translation if it has one.

    Raises:
        DataError: as `read_text_rows`, or a row is of a split to evaluate on (65).
    """
    for file in files:
        for number, row in enumerate(read_text_rows(file), 1):
            refuse_held_out(row, file, number)
            yield row["text"]
            if isinstance(row.get("target"), str):
                yield row["target"]


def train_bpe(
    texts: Iterable[str], vocabulary: int, file: str | None = None, mask: bool = False
) -> Tokenizer:
    """Return a tokenizer by byte-pair encoding that puts `</s>` after a text.

    Unicode is composed (NFC); a blank is part of the word after it (`▁`); each punctuation mark is
    a piece. Decoding gives the text back, but for a leading blank, characters that are not in the
    vocabulary (half of it at most are single characters, the most frequent ones), and a `▁` of the
    text itself.

    Args:
        texts: texts of all languages that share the vocabulary.
        vocabulary: most entries, `SPECIAL` included; fewer if the texts have no more pairs.
        file: named in errors.
        mask: add `<mask>`, and put `<s>` before a text, as masked language models need.

    Raises:
        DataError: the texts are empty.

    Source: Sennrich et al. 2016, section 3.2; joint over both languages, section 3.2.
    """
    from tokenizers import (
        AddedToken,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
    )
    from tokenizers.trainers import BpeTrainer

    special: list[str | AddedToken] = [*SPECIAL]
    if mask:
        # The blank before it belongs to it, as to the words that it hides.
        special.append(AddedToken(MASK, lstrip=True, special=True))
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation("isolated")]
    )
    tokenizer.decoder = decoders.Metaspace()
    # Without a limit, rare characters of one language could take the entries of frequent pairs.
    trainer = BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=special,
        limit_alphabet=vocabulary // 2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() == len(special):
        raise DataError("has no characters to learn a vocabulary from", file)
    before = f"{START} " if mask else ""
    around = (START, END) if mask else (END,)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{before}$A {END}",
        pair=f"{before}$A {END} $B {END}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in around],
    )
    return tokenizer


def encode_all(tokenizer: Tokenizer, texts: Sequence[str], most: int) -> tuple[list[Array], int]:
    """Return the tokens of texts with the special ones around them, and how many texts were cut.

    Special tokens that a text spells out (`</s>`) are its characters.

    Args:
        tokenizer: padding and truncation off.
        texts: N texts.
        most: tokens of a text, special ones included; the end of a longer text is cut off.

    Raises:
        DataError: no token of a text fits next to the special ones (78).
    """
    before, after = special_ids(tokenizer)
    room = most - len(before) - len(after)
    if room < 1:
        why = f"--max-length {most}: {most - room} tokens are special tokens, no text fits"
        raise DataError(why, code=Exit.CONFIG)
    # A text that spells out `</s>` must not end its own translation.
    tokenizer.encode_special_tokens = True
    found = list[Array]()
    cut = 0
    for start in range(0, len(texts), _AT_ONCE):
        part = list(texts[start : start + _AT_ONCE])
        for encoded in tokenizer.encode_batch_fast(part, add_special_tokens=False):
            ids = encoded.ids
            cut += len(ids) > room
            found.append(np.array([*before, *ids[:room], *after], np.int32))
    return found, cut
