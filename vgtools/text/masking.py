"""The choice of masked tokens and of their replacements: the recipe of masked language models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit
from vgtools.text.tokens import MASK_TOKENS, PAD_TOKENS, special_ids, token_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def mask_tokens(
    ids: Array, rng: np.random.Generator, mask: int, vocabulary: int, share: float = 0.15
) -> tuple[Array, Array]:
    """Mask tokens as BERT does: 80 % of the chosen ones become [MASK], 10 % random, 10 % stay.

    Args:
        ids: (n,) token ids, no special tokens.
        rng: three numbers per token are drawn from it.
        mask: id of [MASK].
        vocabulary: random tokens are drawn below it.
        share: probability that a token is chosen, each independently.

    Returns:
        (n,) ids to read, and (n,) bool: the tokens chosen, which are to be predicted.

    Source: Devlin et al. 2019 (BERT), section 3.1, as Tan & Bansal 2020 use it (section 2.2).
    """
    # Numbers are drawn for all tokens, not only for chosen ones: a token's fate does not depend on
    # how many before it were chosen.
    choice, change, token = rng.random((3, len(ids)))
    chosen = choice < share
    random = (token * vocabulary).astype(ids.dtype)
    read = np.where(change < 0.8, mask, np.where(change < 0.9, random, ids))
    return np.where(chosen, read, ids), chosen


def special_id(tokenizer: Any, names: Sequence[str]) -> int:
    """Return the id of a special token that has one of several names.

    Raises:
        DataError: the tokenizer has none of them.
    """
    name = token_of(tokenizer, names)
    if name is not None:
        return int(tokenizer.token_to_id(name))
    why = f"the tokenizer has no {' or '.join(names)}, which masked language models need"
    raise DataError(f"{why}; choose another --tokenizer", code=Exit.CONFIG)


@dataclass(frozen=True)
class Masking:
    """Special-token ids needed for masked inputs; a system's recipe adds its own settings."""

    prefix: tuple[int, ...]  # special ids before a text
    suffix: tuple[int, ...]  # special ids after it
    mask: int  # id of [MASK]
    pad: int  # id of the padding
    vocabulary: int  # number of token ids

    @classmethod
    def of(cls, tokenizer: Tokenizer, **settings: Any) -> Self:
        """Return the ids of a tokenizer, with a system's settings.

        Raises:
            DataError: the tokenizer has no mask or no padding.
        """
        prefix, suffix = special_ids(tokenizer)
        return cls(
            prefix=tuple(prefix),
            suffix=tuple(suffix),
            mask=special_id(tokenizer, MASK_TOKENS),
            pad=special_id(tokenizer, PAD_TOKENS),
            vocabulary=tokenizer.get_vocab_size(),
            **settings,
        )
