"""The sizes of a transformers configuration: width, layers, heads, parameters, without weights.

Source: XDBERT (Hsu et al. 2022), Tables 4 and 6.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vgtools.io.errors import DataError
from vgtools.io.files import read_json
from vgtools.models.encoder import TEXT_SIDES, max_positions
from vgtools.models.masked_lm import check_sizes
from vgtools.models.references import first_line, quiet_transformers, resolve

CLIP = ("clip", "clip_text_model")  # model types that have a text tower with its projection


def describe(ref: str) -> dict[str, Any]:
    """Return the sizes of a text encoder, or of the text side of a CLIP or its kin.

    Args:
        ref: hub name, directory, vg run or `builtin:NAME`; or a configuration (`X.json`).

    Returns:
        `model`, `type`, `width`, `max_length` (tokens, special ones included), `layers`, `heads`,
        `inner` (width of the feed-forward layers), `vocabulary`, `parameters`: the numbers in the
        bare encoder with its pooler, if it has one, or in a tower with its projection, each tensor
        once. `projection` is the width of a tower's projection.

    Raises:
        DataError: missing (66, 69), or not a configuration that transformers can build (65).
    """
    import torch
    from transformers import AutoConfig, AutoModel, CLIPTextModelWithProjection

    is_file = ref.endswith(".json") and Path(ref).is_file()
    file = Path(ref) if is_file else resolve(ref, ["config.json"]) / "config.json"
    values = read_json(file, "a transformers configuration")
    kind = values.pop("model_type", None)
    for part in (values, values.get("text_config")):
        check_sizes(part if isinstance(part, dict) else {}, str(file))
    try:
        # On the meta device a network has all its shapes, and takes no memory.
        with quiet_transformers(), torch.device("meta"):
            config = AutoConfig.for_model(kind, **values)
            if kind in CLIP:
                config = _tower(config)
                model = CLIPTextModelWithProjection(config)
            elif kind in TEXT_SIDES:
                model = AutoModel.from_config(config).text_model
                config = config.text_config
            else:
                model = AutoModel.from_config(config)
        names = ("intermediate_size", "hidden_dim", "ffn_dim", "n_inner")
        inner = [getattr(config, name, None) for name in names]
        sizes = {
            "width": int(config.hidden_size),
            "max_length": max_positions(config),
            "layers": int(config.num_hidden_layers),
            "heads": int(config.num_attention_heads),
            "inner": int(next((found for found in inner if found), 4 * config.hidden_size)),
            "vocabulary": int(config.vocab_size),
        }
    # Values that do not go together, or belong to another architecture, raise errors of any type.
    except Exception as error:
        why = f'"model_type": {kind!r:.40} is not a usable text encoder: {first_line(error)}'
        raise DataError(why, file) from None
    sizes["parameters"] = sum(each.numel() for each in model.parameters())
    if kind in CLIP:
        sizes["projection"] = int(config.projection_dim)
    return {"model": ref, "type": config.model_type, **sizes}


def _tower(config: Any) -> Any:
    """Return the configuration of a CLIP's text tower, with the projection of the whole CLIP."""
    text = getattr(config, "text_config", config)
    text.projection_dim = config.projection_dim
    return text
