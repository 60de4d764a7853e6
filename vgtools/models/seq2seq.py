"""Translation models: shapes, and decoding of many sentences by beam search.

Axes: B sentences of a batch, T source tokens, N sentences, V entries of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit
from vgtools.models.encoder import max_positions
from vgtools.models.memory import in_batches
from vgtools.models.precision import autocast
from vgtools.models.references import quiet_transformers
from vgtools.text.subwords import END, PAD, START

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SHAPES: dict[str, dict[str, int]] = {
    "transformer-base": {"layers": 6, "width": 512, "heads": 8, "inner": 2048, "positions": 1024},
    "transformer-small": {"layers": 2, "width": 128, "heads": 4, "inner": 256, "positions": 256},
}


def new_seq2seq(shape: str, tokenizer: Tokenizer, ref: str | None = None) -> Any:
    """Return an untrained Transformer, drawn from torch's random state.

    One table embeds source and target and is the output layer; positions are sinusoids, which do
    not learn; a layer is normalised after each part.

    Args:
        shape: a key of `SHAPES`.
        tokenizer: with `<pad>`, `<s>` and `</s>`.
        ref: the tokenizer's reference, named in errors.

    Raises:
        DataError: the tokenizer lacks one of them, or does not end a text with `</s>` (78).

    Source: Zhang et al. 2019, section 4.2; Vaswani et al. 2017, table 3 (base).
    """
    from transformers import MarianConfig, MarianMTModel

    special = {name: tokenizer.token_to_id(name) for name in (PAD, START, END)}
    lacking = [name for name, number in special.items() if number is None]
    if not lacking and tokenizer.encode("a").ids[-1] != special[END]:
        lacking = [f"{END} after a text"]
    if lacking:
        why = f"the tokenizer has no {' and no '.join(lacking)}"
        why += "; vg prepare tokenizer makes one that has"
        raise DataError(why, ref, code=Exit.CONFIG)
    size = SHAPES[shape]
    sides = {
        f"{side}_{key}": size[name]
        for side in ("encoder", "decoder")
        for key, name in (("layers", "layers"), ("attention_heads", "heads"), ("ffn_dim", "inner"))
    }
    config = MarianConfig(
        vocab_size=tokenizer.get_vocab_size(),
        d_model=size["width"],
        max_position_embeddings=size["positions"],
        dropout=0.1,
        attention_dropout=0.1,
        activation_function="relu",
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        pad_token_id=special[PAD],
        bos_token_id=special[START],
        eos_token_id=special[END],
        decoder_start_token_id=special[START],
        forced_eos_token_id=None,
        **sides,
    )
    with quiet_transformers():
        return MarianMTModel(config)


def shift_right(labels: Tensor, config: Any) -> Tensor:
    """Return the (B, T) tokens that the decoder reads to predict (B, T) labels; -100 is padding."""
    start = labels.new_full((len(labels), 1), config.decoder_start_token_id)
    read = torch.cat([start, labels[:, :-1]], 1)
    return read.masked_fill(read < 0, config.pad_token_id)


@dataclass(frozen=True)
class Decoding:
    """How translations are searched; one beam is greedy.

    Source: Vaswani et al. 2017, section 6.1 (beams, penalty, length).
    """

    beams: int = 4
    length_penalty: float = 0.6  # the log probability is divided by length ** penalty
    extra: int = 50  # tokens by which a translation may be longer than its source


GREEDY = Decoding(beams=1)


class _Longest:
    """Ends each translation at a length of its own, so that it does not depend on its batch."""

    def __init__(self, most: Tensor, end: int) -> None:
        self.most = most  # (B,) tokens, the end included
        self.end = end

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return (B * beams, V) scores that leave only the end where a translation is long."""
        most = self.most.repeat_interleave(len(scores) // len(self.most))
        over = most <= input_ids.shape[1]  # the start token is among them
        only_end = torch.full_like(scores, -torch.inf)
        only_end[:, self.end] = scores[:, self.end]
        return torch.where(over[:, None], only_end, scores)


@torch.inference_mode()
def generate(net: Any, ids: Tensor, mask: Tensor, how: Decoding) -> list[list[int]]:
    """Return the tokens of the translations of a batch, special ones left out.

    Args:
        net: a transformers encoder-decoder in eval mode.
        ids: (B, T) int64 source tokens.
        mask: likewise, 0 at padding.
        how: the search.
    """
    config = net.config
    end = config.eos_token_id
    # The batch may run until its longest translation must end; `_Longest` ends the others before.
    most = (mask.sum(1) + how.extra).clamp(max=max_positions(config) - 1)
    with quiet_transformers():
        found = net.generate(
            input_ids=ids,
            attention_mask=mask,
            num_beams=how.beams,
            do_sample=False,
            early_stopping=False,
            length_penalty=how.length_penalty,
            max_new_tokens=int(most.max()),
            logits_processor=[_Longest(most, end)],
            forced_eos_token_id=None,
        )
    special = {end, config.pad_token_id, config.decoder_start_token_id}
    return [[token for token in row if token not in special] for row in found.tolist()]


def translate(
    net: Any,
    sources: Sequence[Sequence[int] | Array],
    how: Decoding,
    batch_size: int,
    *,
    shown: Callable[[Array], AbstractContextManager[Any]] = lambda numbers: nullcontext(),
    dtype: torch.dtype = torch.float32,
) -> list[list[int]]:
    """Return the tokens of the translations of N sentences, in their order.

    Batches hold neighbours in length; they are halved when memory runs out.

    Args:
        net: a transformers encoder-decoder.
        sources: N lists of tokens, special ones included; an empty list has an empty translation.
        how: the search.
        batch_size: sentences per batch.
        shown: a context with the inputs that the encoder sees in addition to the tokens of (B,)
            sentences.
        dtype: type of matrix products.

    Raises:
        DataError: memory ran out with a single sentence (exit 70).
    """
    found: list[list[int]] = [[] for _ in sources]
    lengths = np.array([len(source) for source in sources], np.int64)
    order = np.argsort(-lengths, kind="stable")
    device = net.get_input_embeddings().weight.device
    pad = net.config.pad_token_id
    was_training = net.training
    net.eval()

    def work(numbers: Array) -> list[list[int]]:
        ids = np.full((len(numbers), lengths[numbers[0]]), pad, np.int64)
        for row, number in zip(ids, numbers, strict=True):
            row[: lengths[number]] = sources[number]
        mask = (np.arange(ids.shape[1]) < lengths[numbers][:, None]).astype(np.int64)
        tokens, known = (torch.from_numpy(array).to(device) for array in (ids, mask))
        with shown(numbers), autocast(device, dtype):
            return generate(net, tokens, known, how)

    def hint(number: int) -> str:
        why = f"one sentence of {lengths[number]} tokens and {how.beams} beams"
        return f"{why}; fewer --beams need less"

    for numbers, tokens in in_batches(order[lengths[order] > 0], batch_size, work, hint):
        for number, row in zip(numbers, tokens, strict=True):
            found[number] = row
    net.train(was_training)
    return found
