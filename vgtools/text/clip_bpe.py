"""CLIP's tokenizer: byte-level BPE of lower-cased text, each text between its own two marks.

Source: Radford et al. 2021 (CLIP), section 2.4, and its released code.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from vgtools.io.errors import DataError, file_errors

if TYPE_CHECKING:
    from tokenizers import Tokenizer

START = "<|startoftext|>"
END = "<|endoftext|>"

_SHA256 = "924691ac288e54409236115652ad4aa250f48203de50a9e4722a6ecd48d6804a"
_MERGES = 48_894  # merges that CLIP uses; the file has 262,144, after a line of comment
_LAST = "</w>"  # ends a token that ends a word

_WORD = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"


def open_merges(file: Path) -> Tokenizer:
    """Return the tokenizer of the merges that OpenAI published, `bpe_simple_vocab_16e6.txt.gz`.

    Raises:
        DataError: the file is missing (66), or is another file (65; both sha256 are printed).
    """
    with file_errors(file, reading=True):
        data = file.read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    if sha256 != _SHA256:
        why = f"is not CLIP's list of merges: sha256 {sha256}, expected {_SHA256}"
        raise DataError(f"{why}; install open-clip-torch==3.3.0 again", file)
    lines = gzip.decompress(data).decode().split("\n")[1 : 1 + _MERGES]
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
    letters = _byte_letters()
    entries = [*letters, *(letter + _LAST for letter in letters), *map("".join, merges)]
    return byte_pairs({entry: i for i, entry in enumerate([*entries, START, END])}, merges)


def _byte_letters() -> list[str]:
    """Return the letter of each byte; first come the bytes that are printed as themselves."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = len(set(range(256)).difference(printed))
    return [chr(byte) for byte in printed] + [chr(256 + i) for i in range(others)]


def byte_pairs(vocabulary: dict[str, int], merges: Iterable[tuple[str, str]]) -> Tokenizer:
    """Return a tokenizer of CLIP's form.

    Args:
        vocabulary: entry -> id; both marks are among them.
        merges: the most important first.

    Raises:
        DataError: as `frame_texts`.

    Source: the released code of CLIP, `simple_tokenizer.py`.
    Deviation: it first resolves HTML entities and mends broken encodings (ftfy); here such text is
        read as it is.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    model = models.BPE(
        vocab=vocabulary, merges=list(merges), end_of_word_suffix=_LAST, unk_token=END
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORD), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([START, END])
    return frame_texts(tokenizer)


def frame_texts(tokenizer: Tokenizer, file: str | Path | None = None) -> Tokenizer:
    """Put each text of a pair between its own two marks, and return the tokenizer.

    Its own form of a pair is START a END END b END, which no text of CLIP's training has.

    Args:
        tokenizer: the tokenizer of a CLIP; it is changed.
        file: named in errors.

    Raises:
        DataError: it has no such marks (65).
    """
    from tokenizers.processors import TemplateProcessing

    marks = [(mark, tokenizer.token_to_id(mark)) for mark in (START, END)]
    for mark, number in marks:
        if number is None:
            why = f"the tokenizer has no {mark}, so it does not belong to a CLIP"
            raise DataError(why, file)
    tokenizer.post_processor = TemplateProcessing(
        single=f"{START} $A {END}",
        pair=f"{START} $A {END} {START} $B {END}",
        special_tokens=marks,
    )
    return tokenizer
