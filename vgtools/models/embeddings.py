"""The words of an encoder's vocabulary and their input vectors, read without building a network.

Source: XDBERT (Hsu et al. 2022), section 4, Table 2.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.io.streams import read_lines
from vgtools.models.references import ENCODER_FILES, load_tokenizer, resolve, safetensors_files
from vgtools.text import word_vectors

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# How architectures call the table: BERT, RoBERTa, ELECTRA; CLIP; GPT-2; T5; Llama. T5 has its own
# once more as `embed_tokens`, so the order decides.
_TABLES = ("word_embeddings", "token_embedding", "wte", "shared", "embed_tokens")


@dataclass(frozen=True)
class WordTable:
    """Whole words of a vocabulary, each with a row of an array."""

    ref: str
    rows: dict[str, int] = field(repr=False)
    array: Array = field(repr=False)  # (V, D) of any float type

    def vectors(self, words: Sequence[str]) -> Array:
        """Return the vectors of known words: (N, D) float64."""
        return np.asarray(self.array[[self.rows[word] for word in words]], np.float64)


def whole_words(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the id of each entry that is a whole word of lower-case letters a to z.

    An entry is whole as its tokenizer marks it: without `##`, with `</w>` at its end (CLIP), or
    with the space before it (`Ġ`, `▁`).
    """
    model: Any = tokenizer.model
    ending = getattr(model, "end_of_word_suffix", None) or ""
    start = "" if ending or type(model).__name__ in ("WordPiece", "WordLevel") else "[Ġ▁]"
    word = re.compile(f"{start}([a-z]+){re.escape(ending)}")
    matches = ((word.fullmatch(name), row) for name, row in tokenizer.get_vocab().items())
    return {match[1]: row for match, row in matches if match}


def open_words(ref: str) -> WordTable:
    """Open the input embeddings of an encoder or of a CLIP, or word vectors.

    Args:
        ref: an encoder; or vectors of `vg prepare vectors` (X.npy), or `builtin:glove-50d`.

    Raises:
        DataError: missing (66, 69); damaged, no table of token embeddings, a table that does not
            fit the tokenizer, or no whole words (65).
    """
    if word_vectors.are_word_vectors(ref):
        found = word_vectors.open_word_vectors(ref)
        rows = {word: row for word, row in found.rows.items() if re.fullmatch("[a-z]+", word)}
        return WordTable(ref, rows, found.array)
    folder = resolve(ref, ENCODER_FILES)
    array = input_embeddings(folder)
    rows = whole_words(load_tokenizer(str(folder)))
    if not rows:
        raise DataError("its tokenizer has no whole words of the letters a to z", folder)
    greatest = max(rows.values())
    if greatest >= len(array):
        why = f"the tokenizer has the id {greatest}, the embedding table {len(array)} rows"
        raise DataError(f"{why}: they do not belong together", folder)
    return WordTable(ref, rows, array)


def input_embeddings(folder: Path) -> Array:
    """Return the table of token embeddings in a folder's weights, found by its name: (V, D).

    Raises:
        DataError: there is none, or it holds NaN or infinity (65); no weights (66).
    """
    from safetensors import SafetensorError, safe_open

    for file in safetensors_files(folder):
        try:
            with safe_open(file, framework="pt") as weights:
                # Where several tables have the same name, the shortest key counts: it comes last
                # and so stays in the dictionary.
                keys = sorted(weights.keys(), key=len, reverse=True)
                by_part = {key.split(".")[-2]: key for key in keys if "." in key}
                name = next((by_part[part] for part in _TABLES if part in by_part), None)
                if name is None:
                    continue
                array: Array = weights.get_tensor(name).float().numpy()
        except (SafetensorError, OSError) as error:
            raise DataError(f"is not a readable safetensors file: {error}", file) from None
        if array.ndim != 2 or not np.isfinite(array).all():
            why = f"{name}: expected rows of finite numbers, got {array.shape}"
            raise DataError(f"{why} with NaN or infinity" if array.ndim == 2 else why, file)
        return array
    raise DataError("has no table of token embeddings (word_embeddings, token_embedding)", folder)


def read_word_list(path: str) -> list[str]:
    """Return the words of a file, one per line, each once, in lower case.

    Raises:
        DataError: it cannot be read, or holds none.
    """
    words = list(dict.fromkeys(filter(None, (line.strip().lower() for line in read_lines(path)))))
    if not words:
        raise DataError("holds no words; expected one per line", path)
    return words
