"""Tiny random dual encoders of every family, as transformers saves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from tests.tiny.clip import TOWER, clip_tokenizer
from tests.tiny.lm import make_tokenizer

FAMILIES = ("clip", "siglip", "altclip", "chinese_clip", "metaclip_2")
SIDE = 24  # pixels of a picture's side, in patches of 8
_WORDS = [
    "▁a",
    "▁photo",
    "▁of",
    "▁dog",
    "▁cat",
    "▁red",
    "dog",
    "s",
    "▁",
    *"abcdefghijklmnopqrstuvwxyz",
]
_LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
_VISION = {**_LAYERS, "hidden_size": 12, "image_size": SIDE, "patch_size": 8}
_CROP = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}


def sentencepiece() -> Tokenizer:
    """Return a tokenizer of SentencePiece's form that ends a text by </s>, which also pads."""
    vocabulary = {word: i for i, word in enumerate(["<unk>", "</s>", "<pad>", *_WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    tokenizer.add_special_tokens(["<unk>", "</s>", "<pad>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        "$A </s>", special_tokens=[("</s>", 1)]
    )
    return tokenizer


def tokenizer_of(kind: str) -> tuple[Tokenizer, dict[str, Any]]:
    """Return a family's tokenizer, and its tokenizer_config.json."""
    if kind == "clip":
        return clip_tokenizer(), {"tokenizer_class": "CLIPTokenizer"}
    if kind.startswith("siglip"):
        settings = {"tokenizer_class": "GemmaTokenizer", "pad_token": "<pad>"}
        return sentencepiece(), settings
    return make_tokenizer(), {"tokenizer_class": "PreTrainedTokenizerFast"}


def new_model(kind: str, size: int, seed: int = 0) -> Any:
    """Return a random dual encoder for `size` tokens, whose weights are large enough to matter."""
    torch.manual_seed(seed)
    text = {**_LAYERS, "hidden_size": 8, "vocab_size": size, "max_position_embeddings": 16}
    vision = dict(_VISION)
    more: dict[str, Any] = {"projection_dim": 10}
    if kind == "clip":
        text = {**TOWER, "max_position_embeddings": 16}
    elif kind.startswith("siglip"):
        text |= {"projection_size": vision["hidden_size"], "pad_token_id": 2}
        more = {}
    elif kind == "altclip":
        text |= {"project_dim": 6, "max_position_embeddings": 18, "type_vocab_size": 1}
    elif kind == "metaclip_2":
        text |= {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    name = {
        "clip": "CLIP",
        "siglip": "Siglip",
        "altclip": "AltCLIP",
        "chinese_clip": "ChineseCLIP",
        "metaclip_2": "MetaClip2",
    }[kind]
    config = getattr(transformers, f"{name}Config")(text_config=text, vision_config=vision, **more)
    model = getattr(transformers, f"{name}Model")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


def save_dual(folder: Path, kind: str = "clip", seed: int = 0, **processor: Any) -> Path:
    """Write a dual encoder with its tokenizer and its preprocessing, as a published one is."""
    tokenizer, settings = tokenizer_of(kind)
    size = max(tokenizer.get_vocab().values()) + 1
    new_model(kind, size, seed).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    square = {"size": {"height": SIDE, "width": SIDE}} if kind == "siglip" else _CROP
    made_by = {"siglip": "Siglip", "chinese_clip": "ChineseCLIP"}.get(kind, "CLIP")
    made = getattr(transformers, f"{made_by}ImageProcessorPil")(**{**square, **processor})
    made.save_pretrained(folder)
    return folder
