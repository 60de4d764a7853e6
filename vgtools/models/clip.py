"""Text towers of CLIP: loading, states of their tokens, long texts in blocks, without padding.

A tower reads at most 77 tokens, START and END included; a longer text becomes several blocks. The
blocks of a batch run together, sorted by length; the states of a row's real tokens then follow one
another without gaps.

Axes: B rows, S blocks of a row, t tokens of a block, U tokens of a row, N tokens of all blocks, E
width of the projection.

Source: Hsu et al. 2022 (XDBERT), appendix B.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.io.files import read_json
from vgtools.models.describe import CLIP
from vgtools.models.encoder import Encoder, as_encoder, check_layers
from vgtools.models.masked_lm import check_sizes
from vgtools.models.packed import TILE
from vgtools.models.products import quicken
from vgtools.models.references import (
    ENCODER_FILES,
    check_whole,
    fingerprint,
    load_network,
    load_tokenizer,
    quiet_transformers,
    resolve,
    safetensors_files,
    unusable,
)
from vgtools.models.towers import read_texts
from vgtools.text.clip_bpe import END, START, frame_texts

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Radford et al. 2021 (CLIP), section 2.4: the text tower of ViT-B/32, and one for a laptop; the
# vocabulary and its marks come from the tokenizer.
SHAPES: dict[str, dict[str, Any]] = {
    "clip-text": {},
    "clip-text-small": {
        "num_hidden_layers": 2,
        "hidden_size": 128,
        "num_attention_heads": 2,
        "intermediate_size": 512,
        "projection_dim": 128,
    },
}

ROOM = 75  # tokens of a block, between START and END
_TOGETHER = 32  # blocks that run as one batch, cut to their longest


# ----------------------------------------------------------------------------------------- loading


def is_tower(ref: str) -> bool:
    """Return whether a reference is a CLIP or its text tower, by its configuration.

    Raises:
        DataError: missing (66, 69), or its configuration is damaged (65).
    """
    folder = resolve(ref, ENCODER_FILES)
    file = folder / "config.json"
    return file.is_file() and read_json(file).get("model_type") in CLIP


def load_teacher(ref: str, *, states: bool = False) -> Encoder:
    """Load a text tower with its projection and tokenizer, on the CPU, in float32, all trainable.

    Only the text tower of a whole CLIP is loaded.

    Args:
        ref: hub name, directory or vg run.
        states: only states are asked for; transformers is then not imported where `read_texts` can
            read it.

    Returns:
        An `Encoder` whose model is transformers' CLIPTextModelWithProjection or in its face, in
        evaluation mode, and whose `width` is E. The tokenizer puts both texts of a pair between
        their own marks.

    Raises:
        DataError: missing (66, 69), damaged, pickled, weights are missing (such as the projection
            of a bare tower), no CLIP, or the tokenizer is not its own (65).
    """
    folder = resolve(ref, ENCODER_FILES)
    values = _values(folder)
    try:
        files = safetensors_files(folder)
    except DataError as error:
        line = f'python -c "from transformers import CLIPModel; CLIPModel.from_pretrained({ref!r})'
        why = f'{error.why}: {line}.save_pretrained(DIR)"'
        raise DataError(why, folder, code=error.code) from None
    tokenizer = frame_texts(load_tokenizer(str(folder)), folder)
    model: Any = read_texts(values, files) if states else None
    missing = unlike = list[str]()
    if model is None:
        from transformers import CLIPTextModelWithProjection as Network

        config = _config(folder, values)
        model, missing, unlike = load_network(Network, folder, "CLIP", config=config)
    if missing == ["text_projection.weight"]:
        why = "lacks text_projection.weight, so it is a bare tower; take the CLIP that it is from"
        raise DataError(why, folder)
    check_whole(model, missing + unlike, folder)
    encoder = _as_teacher(quicken(model), tokenizer, ref, folder)
    # Some settings of a configuration are read only when a text is; if they are damaged, this must
    # fail here, where the message can name the folder.
    try:
        with torch.no_grad():
            token_states(model, torch.tensor(ends_of(encoder)))
    except Exception as error:
        raise unusable("CLIP", error, folder) from None
    return encoder


def _as_teacher(model: Any, tokenizer: Tokenizer, ref: str, folder: Path | None = None) -> Encoder:
    encoder = as_encoder(model.eval(), tokenizer, ref, fingerprint(model), folder)
    return dataclasses.replace(encoder, width=int(model.config.projection_dim))


def new_teacher(
    shape: Mapping[str, Any], tokenizer: Tokenizer, ref: str, file: str | None = None
) -> Encoder:
    """Return an untrained text tower with projection, drawn from torch's random state.

    Args:
        shape: values of a transformers CLIPTextConfig; those that follow from the tokenizer are set
            here.
        tokenizer: the tokenizer of a CLIP.
        ref: the tokenizer's reference.
        file: the shape's file, named in errors.

    Raises:
        DataError: the tokenizer has no START or END, or the shape belongs to another model or is
            not usable (65).
    """
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    tokenizer = frame_texts(tokenizer, ref)
    values = {"model_type": "clip_text_model", **shape}
    if values.pop("model_type") != "clip_text_model":
        why = f'"model_type": {shape["model_type"]!r:.40}, expected clip_text_model'
        raise DataError(why, file)
    check_sizes(values, file)
    start, end = (tokenizer.token_to_id(mark) for mark in (START, END))
    marks = {"bos_token_id": start, "eos_token_id": end, "pad_token_id": end}
    try:
        size = max(tokenizer.get_vocab().values()) + 1
        config = CLIPTextConfig(**{**values, "vocab_size": size, **marks})
        with quiet_transformers():
            model = CLIPTextModelWithProjection(config)
    except Exception as error:  # values that do not go together raise errors of any type
        raise unusable("shape", error, file) from None
    return _as_teacher(model, tokenizer, ref)


def _values(folder: Path) -> dict[str, Any]:
    """Return the values of a CLIP's configuration.

    Raises:
        DataError: they belong to another model (65), or are missing (66).
    """
    values = read_json(folder / "config.json", "a transformers configuration")
    kind = values.get("model_type")
    if kind not in CLIP:
        why = f"is a {kind}, expected a CLIP with a text tower, for example"
        raise DataError(f"{why} openai/clip-vit-base-patch32", folder)
    check_layers(values, folder)
    return values


def _config(folder: Path, values: Mapping[str, Any]) -> Any:
    """Return the configuration of the text tower by these values.

    Raises:
        DataError: they are damaged (65).
    """
    from transformers import CLIPTextConfig

    # The configuration of a whole CLIP has the projection's width once more in the text's part,
    # where it may be transformers' default instead.
    text = values.get("text_config") if values["model_type"] == "clip" else values
    width = values.get("projection_dim")
    known = {} if width is None else {"projection_dim": width}
    try:
        with quiet_transformers():
            return CLIPTextConfig.from_dict({**({} if text is None else text), **known})
    except Exception as error:  # transformers checks types and ranges in its own ways
        raise unusable("CLIP", error, folder) from None


# ------------------------------------------------------------------------------------------- texts


def ends_of(encoder: Encoder) -> tuple[int, int]:
    """Return the ids of START and END of a tower."""
    return encoder.prefix[0], encoder.suffix[0]


def most_blocks(length: int) -> int:
    """Return the blocks that a text of the student has: 9 for 512 tokens, 2 for 128.

    Source: Hsu et al. 2022, appendix B.
    """
    return max(1, round(9 * length / 512))


def clip_blocks(
    ids: Sequence[int] | Array, most: int, ends: tuple[int, int], room: int = ROOM
) -> list[Array]:
    """Return the blocks of one text, START and END included; a text without tokens has one.

    Args:
        ids: (n,) tokens of the text, without marks; those beyond `most * room` are cut.
        most: blocks of a text at most.
        ends: ids of START and END, `ends_of(encoder)`.
        room: tokens of a block between them, `encoder.max_tokens`.

    Returns:
        Blocks of at most room + 2 ids, int64.

    Source: Hsu et al. 2022, appendix B.
    """
    start, end = ends
    tokens = np.asarray(ids, np.int64)[: most * room]
    cuts = range(0, max(1, len(tokens)), room)
    return [np.concatenate([[start], tokens[at : at + room], [end]]) for at in cuts]


def stack_blocks(rows: Sequence[Sequence[Array]]) -> tuple[Array, Array]:
    """Return blocks (B, S, t) int64 and their lengths (B, S) int64, 0 where a row has fewer blocks.

    Args:
        rows: the blocks of each row.
    """
    count = max(map(len, rows))
    longest = max(len(block) for row in rows for block in row)
    blocks = np.zeros((len(rows), count, longest), np.int64)
    lengths = np.zeros((len(rows), count), np.int64)
    for i, row in enumerate(rows):
        for j, block in enumerate(row):
            blocks[i, j, : len(block)] = block
            lengths[i, j] = len(block)
    return blocks, lengths


# ------------------------------------------------------------------------------------------ states


def token_states(model: Any, ids: Tensor) -> Tensor:
    """Return the projected state of each token, (…, t, E), for ids (…, t).

    Attention is causal: a token's state depends on nothing after it, so that no mask is needed for
    padding at the end.

    Source: Hsu et al. 2022, appendix B, as the published code computes it.
    """
    flat = ids.reshape(-1, ids.shape[-1])
    hidden = model.text_model(input_ids=flat).last_hidden_state
    states: Tensor = model.text_projection(hidden)
    return states.view(*ids.shape, -1)


def lay_out(values: Tensor, lengths: Tensor, fill: int = 0) -> tuple[Tensor, Tensor]:
    """Return the values of each row's real tokens, one after another.

    Args:
        values: (B, S, t).
        lengths: (B, S), 0 for no block.
        fill: value of places without a token.

    Returns:
        (B, U) values, and (B, U) bool, True at a token.
    """
    real = _real(lengths, values.shape[-1])
    mask = _real(lengths.sum(1), int(lengths.sum(1).max()))
    laid = torch.full_like(mask, fill, dtype=values.dtype)
    laid[mask] = values[real]  # both in the order of rows, blocks, tokens
    return laid, mask


def block_states(model: Any, blocks: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the states of all real tokens of each row, block after block, and their mask.

    Only blocks that exist are computed, in batches of neighbours in length, each cut to its longest
    block: a short text costs its own tokens, not 77.

    Args:
        model: CLIPTextModelWithProjection.
        blocks: (B, S, t) int64, START and END included; padding may hold any id.
        lengths: (B, S) int64, 0 for no block.

    Returns:
        (B, U, E) states, 0 where there is no token, and (B, U) bool, True at a token.

    Source: Hsu et al. 2022, appendix B.
    Deviation: the published code pads each block to 77 tokens and masks those with id 0, which is
        also a real token's.
    """
    real = _real(lengths, blocks.shape[-1]).flatten(0, 1)  # (B * S, t)
    # The blocks are computed in order of length: these numbers lead each of the N real tokens back
    # to its place.
    number = (real.flatten().cumsum(0) - 1).view_as(real)
    # The sizes decide shapes, which the processor needs; one copy avoids a wait per group.
    sizes = lengths.flatten().cpu()
    order = sizes.argsort(stable=True)[int((sizes == 0).sum()) :]
    parts = list[Tensor]()
    numbers = list[Tensor]()
    for group in order.split(_TOGETHER):
        longest = int(sizes[group[-1]])
        chosen = group.to(blocks.device)
        kept = real[chosen, :longest]
        parts.append(token_states(model, blocks.flatten(0, 1)[chosen, :longest])[kept])
        numbers.append(number[chosen, :longest][kept])
    states = torch.cat(parts)  # (N, E), by length
    mask = _real(lengths.sum(1), int(lengths.sum(1).max()))
    place = mask.flatten().nonzero().squeeze(1)[torch.cat(numbers)]  # among the B * U places
    laid = states.new_zeros(mask.numel(), states.shape[1]).index_copy(0, place, states)
    return laid.view(*mask.shape, -1), mask


def _real(lengths: Tensor, longest: int) -> Tensor:
    """Return (…, longest) bool, True at the first places of each row, (…,) lengths of them."""
    return torch.arange(longest, device=lengths.device) < lengths[..., None]


# ------------------------------------------------------------------------------------------ packed


def packed_states(
    tower: Any,
    ids: Tensor,
    positions: Tensor,
    runs: Sequence[tuple[int, int]],
    shared: int = 0,
    last: bool = False,
) -> Tensor:
    """Return the states of texts without padding, after the last norm: (T, H), or (B, H).

    A token does not see those after it. So tokens that all texts share at their start are computed
    once, and where the last token of each text is enough, the last layer computes no other.

    Args:
        tower: the text tower of a CLIP or a MetaCLIP, as transformers has it.
        ids: (T,) tokens of the texts, one after another, special tokens included.
        positions: (T,) of each token in its text.
        runs: how many texts follow one another with the same number of tokens, and this number.
        shared: tokens at the start of all texts that are the same, fewer than any text has. Their
            states are not returned.
        last: return the state of the last token of each text alone.
    """
    table = tower.embeddings
    x = table.token_embedding(ids) + table.position_embedding(positions)
    start = x[:shared]
    x = x[positions >= shared]
    runs = [(count, length - shared) for count, length in runs]
    lengths = torch.tensor([length for count, length in runs for _ in range(count)])
    layers = tower.encoder.layers
    for layer in layers:
        before = None
        if shared:
            start, before = _layer(layer, start, [(1, shared)])
        chosen = (lengths.cumsum(0) - 1).to(x.device) if last and layer is layers[-1] else None
        x, _ = _layer(layer, x, runs, before, chosen)
    states: Tensor = tower.final_layer_norm(x)
    return states


def _layer(
    layer: Any,
    x: Tensor,
    runs: Sequence[tuple[int, int]],
    before: Sequence[Tensor] | None = None,
    chosen: Tensor | None = None,
) -> tuple[Tensor, Sequence[Tensor]]:
    """Return the states of packed texts after a layer, and the keys and values of the first run.

    Args:
        layer: a layer of transformers' CLIP.
        x: (T, H) states before it.
        runs: as for `packed_states`.
        before: keys and values of tokens before each text, (1, heads, s, d).
        chosen: (B,) the last token of each text, which alone is computed; None: all of them.
    """
    attention = layer.self_attn
    inner = layer.layer_norm1(x)
    seen = [in_tiles(project, inner) for project in (attention.k_proj, attention.v_proj)]
    if chosen is not None:
        x = x[chosen]
        inner = inner[chosen]
    queries = in_tiles(attention.q_proj, inner)
    context = torch.empty_like(x)
    first: list[Tensor] = []
    at = row = 0
    for count, length in runs:
        own = [_heads(layer, part[at : at + count * length], count) for part in seen]
        first = first or own
        if before is not None:
            pairs = zip(before, own, strict=True)
            own = [torch.cat([old.expand(count, -1, -1, -1), new], 2) for old, new in pairs]
        end = row + (count * length if chosen is None else count)
        asked = _heads(layer, queries[row:end], count)
        keys, values = own
        size = (asked.shape[2], keys.shape[2])
        mask = torch.ones(size, dtype=torch.bool, device=x.device).tril(size[1] - size[0])
        mixed = F.scaled_dot_product_attention(asked, keys, values, mask)
        context[row:end] = mixed.transpose(1, 2).reshape(end - row, -1)
        at += count * length
        row = end
    x = x + in_tiles(attention.out_proj, context)
    return x + in_tiles(layer.mlp, layer.layer_norm2(x)), first


def _heads(layer: Any, rows: Tensor, count: int) -> Tensor:
    """Return (count, heads, t, d) of the rows of `count` texts, (count * t, H)."""
    return rows.view(count, -1, layer.self_attn.num_heads, layer.self_attn.head_dim).transpose(1, 2)


def in_tiles(function: Any, rows: Tensor) -> Tensor:
    """Return a function of (n, H) rows, computed over whole tiles of them; see `TILE`."""
    found: Tensor = function(F.pad(rows, (0, 0, 0, -len(rows) % TILE)))[: len(rows)]
    return found
