"""Masked language models: shapes, heads, and a cross entropy that never holds all logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vgtools.io.errors import DataError, Exit
from vgtools.models.encoder import MOST_LAYERS
from vgtools.models.products import add_product, product
from vgtools.models.references import plain_settings, quiet_transformers, unusable
from vgtools.text.masking import special_id
from vgtools.text.tokens import PAD_TOKENS, special_ids

# Tan & Bansal 2020 (Vokenization), section 4.2 and Table 2; `vocab_size` and the padding id come
# from the tokenizer.
_SMALL = {
    "num_hidden_layers": 6,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "intermediate_size": 2048,
}

_ROBERTA = {"model_type": "roberta", "type_vocab_size": 1, "layer_norm_eps": 1e-5}

# Families whose head `mlm_hidden` knows, as examples for a message.
_FAMILIES = (
    "bert",
    "roberta",
    "electra",
    "xlm-roberta",
    "camembert",
    "deberta-v2",
    "longformer",
    "mpnet",
)

# Far beyond any encoder; more would only end in "out of memory" after a long time.
_MOST = {
    "num_hidden_layers": MOST_LAYERS,
    "hidden_size": 2**16,
    "num_attention_heads": 2**16,
    "intermediate_size": 2**18,
    "max_position_embeddings": 2**20,
}

SHAPES: dict[str, dict[str, Any]] = {
    "bert-base": {"model_type": "bert"},
    "bert-small": {"model_type": "bert", **_SMALL},
    "roberta-base": _ROBERTA,
    "roberta-small": _ROBERTA | _SMALL,
}


def new_lm(shape: Mapping[str, Any], tokenizer: Any, file: str | None = None) -> Any:
    """Return an untrained masked language model for a tokenizer, drawn from torch's random state.

    The shape, read from `file`, is a transformers configuration with its `model_type`; the values
    that follow from the tokenizer are set here.

    Raises:
        DataError: the tokenizer has no padding, or the shape is of no masked language model (65).
    """
    from transformers import AutoConfig, AutoModelForMaskedLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    values = dict(shape)
    if values["model_type"] not in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        why = f'"model_type": {values["model_type"]!r:.40} names no masked language model'
        raise DataError(f"{why}; vg trains {', '.join(_FAMILIES)} and others like them", file)
    check_sizes(values, file)
    if str(values.get("position_embedding_type")).startswith("relative"):
        why = '"position_embedding_type": transformers has given up relative positions'
        raise DataError(f'{why}; expected "absolute"', file)
    values |= plain_settings(values["model_type"])
    values["vocab_size"] = tokenizer.get_vocab_size()
    values["pad_token_id"] = special_id(tokenizer, PAD_TOKENS)
    if values["model_type"] == "roberta":
        # RoBERTa counts positions from after the padding id.
        values.setdefault("max_position_embeddings", 512 + values["pad_token_id"] + 1)
        ends = [ids[0] for ids in special_ids(tokenizer) if ids]
        if len(ends) == 2:
            values["bos_token_id"], values["eos_token_id"] = ends
    try:
        config = AutoConfig.for_model(values.pop("model_type"), **values)
        with quiet_transformers():
            lm = AutoModelForMaskedLM.from_config(config, attn_implementation=None)
    except Exception as error:  # values that do not go together raise errors of any type
        raise unusable("shape", error, file) from None
    for name, part in lm.named_modules():
        if isinstance(part, nn.Embedding) and not part.num_embeddings:
            raise DataError(f"{name} would have no rows; expected sizes of at least 1", file)
    try:
        mlm_hidden(lm)
    except DataError as error:
        raise DataError(f'"model_type": {error.why}', file) from None
    return lm


def check_sizes(shape: Mapping[str, Any], file: str | None = None) -> None:
    """Refuse sizes in a transformers configuration that no encoder has.

    Raises:
        DataError: one is not a whole number, or out of range (65).
    """
    for key, most in _MOST.items():
        if key in shape and not (type(shape[key]) is int and 1 <= shape[key] <= most):
            why = f'"{key}": expected a whole number from 1 to {most}, got {shape[key]!r:.40}'
            raise DataError(why, file)


def mlm_hidden(lm: Any) -> nn.Module:
    """Return a masked language model's head without its decoder, which can then run in chunks.

    Its weights are the model's own.

    Raises:
        DataError: the head is of an unknown shape.
    """
    bert = getattr(getattr(lm, "cls", None), "predictions", None)
    if hasattr(bert, "transform") and not hasattr(bert, "dense"):  # MobileBERT's decoder has parts
        return bert.transform  # type: ignore[union-attr,no-any-return]
    electra = getattr(lm, "generator_predictions", None)
    if electra is not None:
        return electra  # type: ignore[no-any-return]
    albert = getattr(lm, "predictions", None)
    if hasattr(albert, "dense") and hasattr(albert, "LayerNorm"):
        parts = (albert.dense, albert.activation, albert.LayerNorm)  # type: ignore[union-attr]
        return nn.Sequential(*parts)
    roberta = getattr(lm, "lm_head", None)
    # ESM adds a bias of its own after the decoder.
    has_bias = getattr(getattr(roberta, "decoder", None), "bias", None) is not None
    if has_bias and hasattr(roberta, "dense") and hasattr(roberta, "layer_norm"):
        head: Any = roberta
        return nn.Sequential(head.dense, nn.GELU(), head.layer_norm)
    raise DataError(
        "expected a masked language model with the head of BERT, RoBERTa, ELECTRA or ALBERT, "
        f"got {lm.config.model_type}",
        code=Exit.CONFIG,
    )


# Logits below the largest by more than this are raised before exp: no sum changes, but denormal
# numbers would take ten times as long.
_LEAST = -70.0


class _LinearCrossEntropy(torch.autograd.Function):
    """Sum of the cross entropies of a linear layer's outputs, a few rows at a time.

    The forward pass also computes the gradients, while a chunk's logits are in memory.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        dtype: torch.dtype,
        chunk: int,
        learn: bool,
    ) -> Tensor:
        learn = learn and any(ctx.needs_input_grad)
        table_learns = learn and ctx.needs_input_grad[1]  # False for a frozen teacher's table
        # Sums over a vocabulary and the softmax lose digits in a type below float32.
        wide = torch.promote_types(dtype, torch.float32)
        total = torch.zeros((), dtype=wide, device=rows.device)
        low_weight = weight.to(dtype)
        low_rows = rows.to(dtype)
        rows_grad = torch.zeros_like(low_rows) if learn else None
        # With rows it starts as the product of the first chunk: to fill a table with zeros, and to
        # add to it, takes a twentieth of a step.
        weight_grad = (
            torch.zeros_like(weight, dtype=wide) if table_learns and not len(rows) else None
        )
        bias_grad = None
        if learn and bias is not None:
            bias_grad = torch.zeros_like(bias, dtype=wide)
        # One factor of the table's product is copied to lie in rows. More rows than columns have
        # larger logits than the table is: then its gradient is (H, C) until the end.
        across = rows.shape[0] > rows.shape[1]
        # All chunks use this buffer in turn, so that so much memory is allocated only once.
        memory = low_rows.new_empty(min(chunk, len(rows)), len(weight))
        for start in range(0, len(rows), chunk):
            part = low_rows[start : start + chunk]
            labels = target[start : start + chunk, None]
            logits = product(part, low_weight.T, memory[: len(part)]).to(wide)  # (chunk, C)
            if bias is not None:
                logits += bias
            # Not `logsumexp`, which takes longer than a matrix product and as much memory again.
            answers = logits.gather(1, labels)
            top = logits.amax(1, keepdim=True)
            grad = logits.sub_(top).clamp_(min=_LEAST).exp_()  # in the memory of the logits
            norm = grad.sum(1, keepdim=True)
            total += (norm.log() + top - answers).sum()
            if rows_grad is not None:
                grad.div_(norm)  # softmax
                grad.scatter_add_(1, labels, grad.new_full((1, 1), -1.0).expand_as(labels))
                if bias_grad is not None:
                    bias_grad += grad.sum(0)
                grad = grad.to(dtype)
                add_product(rows_grad[start : start + chunk], grad, low_weight)
                factors = (part.T, grad) if across else (grad.T, part)
                if weight_grad is not None:
                    add_product(weight_grad, *factors)
                elif table_learns:
                    weight_grad = product(*factors).to(wide)
        if learn:
            if weight_grad is not None and across:
                weight_grad = weight_grad.T.contiguous()
            ctx.save_for_backward(rows_grad, weight_grad, bias_grad)
            ctx.dtypes = rows.dtype, weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        rows_grad, weight_grad, bias_grad = ctx.saved_tensors
        rows_dtype, weight_dtype = ctx.dtypes
        scale = grads[0]
        return (
            (rows_grad * scale).to(rows_dtype),
            None if weight_grad is None else (weight_grad * scale).to(weight_dtype),
            None if bias_grad is None else bias_grad * scale,
            *[None] * 4,  # target, dtype, chunk, learn
        )


def linear_cross_entropy(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    dtype: torch.dtype = torch.float32,
    chunk: int | None = None,
) -> Tensor:
    """Return the summed cross entropy of `rows @ weight.T + bias`, never all in memory at once.

    Args:
        rows: (N, H).
        weight: (C, H).
        bias: (C,) or None.
        target: (N,) int64 below C.
        dtype: type of the products; sums and the softmax are at least float32.
        chunk: rows at a time; by default as many as fit in 64 MB of logits (512 MB on a GPU), or
            in the memory of `weight`.

    Returns:
        Scalar, the sum over N; 0 for N = 0.
    """
    if chunk is None:
        chunk = _chunk(rows, weight)
    # Autocast would choose the types inside as well; here `dtype` decides.
    with torch.autocast(rows.device.type, enabled=False):
        loss: Tensor = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
            rows, weight, bias, target, dtype, chunk, torch.is_grad_enabled()
        )
        return loss


@torch.no_grad()
def token_losses(
    rows: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, chunk: int | None = None
) -> Tensor:
    """Return the cross entropy of each row of `rows @ weight.T + bias`, without gradients.

    Args:
        rows: (N, H).
        weight: (C, H).
        bias: (C,) or None.
        target: (N,) int64 below C.
        chunk: rows at a time; by default as in `linear_cross_entropy`.

    Returns:
        (N,) float32.
    """
    chunk = chunk or _chunk(rows, weight)
    parts = [rows.new_zeros(0, dtype=torch.float32)]
    for start in range(0, len(rows), chunk):
        logits = F.linear(rows[start : start + chunk], weight, bias).float()
        parts.append(F.cross_entropy(logits, target[start : start + chunk], reduction="none"))
    return torch.cat(parts)


def _chunk(rows: Tensor, weight: Tensor) -> int:
    """Return how many rows of logits fit in 64 MB, 512 MB on a GPU, or the memory of `weight`.

    The gradient of `weight` takes that much in any case, and each chunk reads and writes all of it.
    """
    numbers = max(1 << (27 if rows.is_cuda else 24), weight.numel())
    return max(1, numbers // len(weight))
