"""The one loading layer: a model reference becomes a tokenizer, an encoder, a backbone or a run.

A reference is a hub name, a directory, a vg run, or `builtin:NAME` (weights that an installed
package carries). Weights are safetensors, never pickle; only the packages of `builtin:` may carry a
`.pth`, read with `weights_only=True`. Tokenizers load without torch, so that `vg revokenize` starts
at once.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vgtools.io import (
    DataError,
    Exit,
    atomic_write,
    read_json,
)
from vgtools.models.references import (
    BUILTIN,
    ENCODER_FILES,
    SAFE_LOADING,
    fingerprint,
    first_line,
    load_tokenizer,
    pick_device,
    pick_dtype,
    quiet_transformers,
    require_safetensors,
    resolve,
)
from vgtools.text.tokens import special_ids

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class Encoder:
    """A frozen text encoder with its tokenizer."""

    model: Any  # a transformers PreTrainedModel in eval mode
    tokenizer: Tokenizer
    ref: str
    fingerprint: str
    width: int  # H
    layers: int  # L, without the embedding layer
    max_tokens: int  # maximum tokens of a sentence, special tokens not counted
    prefix: list[int]  # special ids before a sentence
    suffix: list[int]  # special ids after it


def load_encoder(
    ref: str,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    offline: bool = False,
    attention: str = "sdpa",
) -> Encoder:
    """Load a text encoder with its tokenizer, frozen and in eval mode.

    Args:
        ref: hub name, directory, vg run or `builtin:NAME`.
        device: as `--device`.
        dtype: as `--dtype`.
        offline: never connect.
        attention: transformers' implementation (`eager` returns attention weights).

    Raises:
        DataError: missing (66, 69), damaged, pickled, remote code or incomplete weights (65).
    """
    chosen_device = pick_device(device)
    chosen_dtype = pick_dtype(dtype)
    from transformers import AutoModel

    model, tokenizer, folder = _pretrained(
        AutoModel,
        "text encoder",
        ref,
        offline,
        dtype=chosen_dtype,
        attn_implementation=attention,
    )
    if chosen_dtype == pick_dtype("float32"):
        sha256 = fingerprint(model)
    else:  # of the weights as float32, whatever dtype they are loaded as
        with quiet_transformers():
            sha256 = fingerprint(AutoModel.from_pretrained(folder, dtype="float32", **SAFE_LOADING))
    model = model.eval().requires_grad_(False).to(chosen_device)
    return as_encoder(model, tokenizer, ref, sha256, folder)


def read_config(ref: str, *, offline: bool = False) -> dict[str, Any]:
    """Return the transformers configuration of a text encoder's reference.

    Args:
        ref: hub name, directory, vg run or `builtin:NAME`.
        offline: never connect.

    Raises:
        DataError: missing (66, 69), or not a JSON object (65).
    """
    folder = resolve(ref, ENCODER_FILES, offline)
    return read_json(folder / "config.json", "a transformers configuration")


def max_positions(config: Any) -> int:
    """Return the maximum tokens of an encoder's input, special tokens counted."""
    reserved = 0
    if config.model_type in ("roberta", "xlm-roberta", "camembert"):
        reserved = config.pad_token_id + 1  # positions are counted from after the padding id
    return int(config.max_position_embeddings) - reserved


def load_masked_lm(ref: str, *, offline: bool = False) -> Encoder:
    """Load a masked language model and its tokenizer for further training, on the CPU, in float32.

    A checkpoint without the masked language model's head gets a new one, drawn from torch's random
    state.

    Args:
        ref: hub name, directory, vg run or `builtin:NAME`.
        offline: never connect.

    Returns:
        An `Encoder` whose model is the transformers model with its head; `fingerprint` is that of
        the encoder in it.

    Raises:
        DataError: missing (66, 69), damaged, pickled, remote code or incomplete weights (65).
    """
    from transformers import AutoModelForMaskedLM

    model, tokenizer, _ = _pretrained(
        AutoModelForMaskedLM, "masked language model", ref, offline, dtype="float32"
    )
    return as_encoder(model, tokenizer, ref)


def load_with_head(
    ref: str, network: str, seed: int, settings: Mapping[str, Any], *, offline: bool = False
) -> Encoder:
    """Load a text encoder under a new head for a task, to fine-tune it, on the CPU, in float32.

    The head is always drawn from the seed, even where the checkpoint has one; so is a pooler that the checkpoint lacks.

    Args:
        ref: hub name, directory, vg run or `builtin:NAME`.
        network: transformers' class after `AutoModelFor`, for example `SequenceClassification`.
        seed: draws the head.
        settings: of the head, kept in the configuration.
        offline: never connect.

    Returns:
        An `Encoder` whose model is the transformers model with its head; `fingerprint` is that of the encoder in it.

    Raises:
        DataError: missing (66, 69), damaged, pickled, remote code or incomplete weights (65).
    """
    import torch
    import transformers

    torch.manual_seed(seed)
    model, tokenizer, _ = _pretrained(
        getattr(transformers, f"AutoModelFor{network}"), "text encoder", ref, offline, dtype="float32",
        ignore_mismatched_sizes=True, **settings,
    )  # fmt: skip

    def draw(module: Any) -> None:
        for parameter in module.parameters(recurse=False):
            parameter._is_hf_initialized = False  # transformers leaves alone what it has loaded
        model._init_weights(module)

    with torch.no_grad():
        for module in model.children():
            if module is not model.base_model:
                module.apply(draw)
    return as_encoder(model, tokenizer, ref)


def save_pretrained(folder: str | Path, encoder: Encoder) -> None:
    """Write a network and its tokenizer as transformers does, unless they are there already."""
    from safetensors import SafetensorError

    folder = Path(folder)
    complete = folder / "complete"  # its fingerprint, written last
    if complete.exists() and complete.read_text() == encoder.fingerprint:
        return
    shutil.rmtree(folder, ignore_errors=True)
    with quiet_transformers():
        try:
            encoder.model.save_pretrained(folder)
        except (OSError, SafetensorError) as error:
            why = f"cannot be written: {error}; free some space and run the same command again"
            raise DataError(why, folder, code=Exit.IO) from None
    atomic_write(folder / "tokenizer.json", encoder.tokenizer.to_str(pretty=True).encode())
    atomic_write(complete, encoder.fingerprint.encode())


def _pretrained(
    network: Any, name: str, ref: str, offline: bool, **settings: Any
) -> tuple[Any, Tokenizer, Path]:
    """Return the transformers model of a reference, its tokenizer and its folder.

    Args:
        network: transformers' Auto class.
        name: what the model is, for messages.
        ref: hub name, directory, vg run or `builtin:NAME`.
        offline: never connect.
        **settings: for `from_pretrained`.

    Raises:
        DataError: missing (66, 69), damaged, pickled, remote code, or weights of the encoder are
            missing (65).
    """
    builtin = BUILTIN.get(ref.removeprefix("builtin:")) if ref.startswith("builtin:") else None
    if builtin is not None and builtin[3] is not None:
        why = f"expected a text encoder, for example builtin:minilm, got the image backbone {ref}"
        raise DataError(why, code=Exit.USAGE)
    folder = resolve(ref, ENCODER_FILES, offline)
    require_safetensors(folder)
    tokenizer = load_tokenizer(str(folder), offline=True)
    with quiet_transformers():
        try:
            model, report = network.from_pretrained(
                folder, output_loading_info=True, **settings, **SAFE_LOADING
            )
        except Exception as error:  # of the configuration, safetensors or torch
            raise DataError(f"is not a usable {name}: {first_line(error)}", folder) from None
    # A bare encoder's names have no prefix; of a model with a head, the head may be new. No system
    # here uses the pooler.
    prefix = "" if model is model.base_model else f"{model.base_model_prefix}."
    missing = [
        key
        for key in report["missing_keys"]
        if key.startswith(prefix) and not key.removeprefix(prefix).startswith("pooler.")
    ]
    missing += [str(key) for key, *_ in report["mismatched_keys"] if str(key).startswith(prefix)]
    if missing:
        why = f"lacks {len(missing)} weights of its architecture, the first {missing[0]}"
        raise DataError(f"{why}; they would be random", folder)
    return model, tokenizer, folder


def as_encoder(
    model: Any,
    tokenizer: Tokenizer,
    ref: str,
    sha256: str | None = None,
    folder: str | Path | None = None,
) -> Encoder:
    """Return a model and its tokenizer as an `Encoder`; a model in training stays in training.

    Args:
        model: a transformers encoder, or a masked language model with one in it.
        tokenizer: of the model.
        ref: the user's name for it.
        sha256: its fingerprint if known; computed here otherwise.
        folder: named in errors instead of `ref`.

    Raises:
        DataError: the tokenizer has more entries than the model has embeddings (65).
    """
    rows = model.get_input_embeddings().num_embeddings
    if tokenizer.get_vocab_size() > rows:
        why = f"the tokenizer has {tokenizer.get_vocab_size()} entries, the embedding table {rows}"
        raise DataError(f"{why}: they do not belong together", folder or ref)
    prefix, suffix = special_ids(tokenizer)
    return Encoder(
        model=model,
        tokenizer=tokenizer,
        ref=ref,
        fingerprint=sha256 or fingerprint(model.base_model),
        width=int(model.config.hidden_size),
        layers=int(model.config.num_hidden_layers),
        max_tokens=max_positions(model.config) - len(prefix) - len(suffix),
        prefix=prefix,
        suffix=suffix,
    )
