"""Dual encoders against transformers' own features, for each family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F
from transformers import AutoImageProcessor, AutoModel, PreTrainedTokenizerFast

from tests.tiny.dual import FAMILIES, SIDE, save_dual
from tests.tiny.images import drawing
from vgtools.images.featurizer import Featurizer
from vgtools.io.errors import DataError, Exit
from vgtools.models.backbone import load_backbone
from vgtools.models.dual import is_dual, load_dual
from vgtools.models.encoder import load_encoder, save_pretrained

TEXTS = ["a red dog", "A photo of a cat", "dog", "cats of a dog"]


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_dual(tmp_path_factory.mktemp("dual") / request.param, request.param)


def theirs(folder: Path) -> Any:
    return AutoModel.from_pretrained(folder, dtype="float64").eval()


@torch.inference_mode()
def text_features(folder: Path) -> torch.Tensor:
    """Return transformers' own features of the texts, SigLIP's padded as in its training."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), pad_token="<pad>"
    )
    padding = "max_length" if folder.name == "siglip" else False
    model = theirs(folder)
    rows = []
    for text in TEXTS:
        how = {"padding": padding, "max_length": 16, "truncation": True}
        ids = tokenizer(text.lower(), return_tensors="pt", **how)["input_ids"]
        rows.append(model.get_text_features(input_ids=ids).pooler_output[0])
    return torch.stack(rows)


@torch.inference_mode()
def test_texts_have_the_features_of_transformers(folder: Path) -> None:
    dual = load_dual(str(folder))
    texts = dual.texts
    texts.model.double()
    expected = text_features(folder)
    for text, row in zip(TEXTS, expected, strict=True):
        ids = texts.tokenizer.encode(text, add_special_tokens=False).ids
        rows = torch.tensor([[*texts.prefix, *ids, *texts.suffix]])
        tokens, whole = texts.model(rows)
        # Computed in float64; float32 rounds three times by 6e-8: the vector, its norm, the ratio.
        assert torch.allclose(whole[0].double(), F.normalize(row, dim=0), rtol=0, atol=2e-7)
        assert tokens.shape == (1, rows.shape[1], texts.width)
        # Of a CLIP the text's state is that of its last token, of the others that of the first.
        place = {"clip": -1, "altclip": 0, "chinese_clip": 0}.get(folder.name)
        if place is not None:
            assert torch.equal(tokens[0, place], whole[0])


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["clip", "metaclip_2"])
@pytest.mark.parametrize("template", ["a photo of a ", ""])
def test_packed_texts_are_those_of_the_models_own_forward(
    tmp_path: Path, kind: str, template: str
) -> None:
    texts = load_dual(str(save_dual(tmp_path / kind, kind))).texts
    model = texts.model.double()
    shared = len(texts.tokenizer.encode(template, add_special_tokens=False).ids)
    words = ["e", "t", "the the", "th o", "the o the"]
    rows = [texts.tokenizer.encode(template + word).ids[: texts.max_tokens] for word in words]
    rows = sorted(rows, key=len)
    shared += len(texts.prefix) if template else 0
    sizes = [len(row) for row in rows]
    runs = [(sizes.count(size), size) for size in sorted(set(sizes))]
    flat = np.concatenate(rows)
    places = torch.from_numpy(np.concatenate([np.arange(size) for size in sizes]))
    ends = np.cumsum(sizes) - 1
    assert model.can_pack(flat, ends)
    given = (torch.from_numpy(flat), places, runs, shared)
    found = model.packed(*given)
    at = 0
    for row, last in zip(rows, model.packed(*given, whole=True), strict=True):
        tokens, whole = model(torch.tensor([row]))
        # Computed in float64 and then rounded: equal up to a unit of float32.
        assert torch.allclose(found[at : at + len(row) - shared], tokens[0, shared:], atol=2e-7)
        assert torch.allclose(last, whole[0], atol=2e-7)
        at += len(row) - shared
    assert at == len(found)
    # transformers reads a text from the first mark of its end, wherever that is.
    flat[1] = flat[ends[0]]
    assert not model.can_pack(flat, ends)


def test_only_causal_models_are_packed(folder: Path) -> None:
    texts = load_dual(str(folder)).texts
    ids = np.array([*texts.prefix, 5, *texts.suffix])
    packs = texts.model.can_pack(ids, np.array([len(ids) - 1]))
    assert packs == (folder.name in ("clip", "metaclip_2"))


@torch.inference_mode()
def test_pictures_have_the_features_of_transformers(folder: Path) -> None:
    picture = Image.fromarray(drawing(40, 61))
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    pixels = torch.from_numpy(np.stack(processor(picture)["pixel_values"])).double()
    model = theirs(folder)
    out = model.get_image_features(pixel_values=pixels)
    net = load_backbone(str(folder))
    seen = Featurizer(net.model.double(), net.preprocessing, "own", batch_size=2)
    prepared = seen.pixels(picture)[None]
    assert prepared.dtype == np.uint8
    # Rows are float32: their rounding is 6e-8 of the largest number; pixels differ by as much.
    scale = out.pooler_output.abs().max().item()
    assert np.allclose(seen.features(prepared)[0], out.pooler_output[0], atol=1e-5 * scale)
    grid = Featurizer(net.model, net.preprocessing, "none", batch_size=2)
    assert grid.grid == [3, 3]
    tower = model.vision_model
    last = out.last_hidden_state
    if folder.name == "siglip":
        cells = torch.cat([tower.head(last[:, place : place + 1]) for place in range(9)])
    else:
        cells = model.visual_projection(tower.post_layernorm(last[0, 1:]))
    scale = cells.abs().max().item()
    assert np.allclose(grid.features(prepared)[0], cells, atol=1e-5 * scale)


def test_a_picture_is_what_the_models_own_processor_makes_of_it(folder: Path) -> None:
    prepare = load_backbone(str(folder)).model.prepare
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    mean, std = (np.array(x)[:, None, None] for x in (processor.image_mean, processor.image_std))
    # Odd differences to the crop are where timm and transformers round in different directions.
    for size in ((40, 61), (61, 40), (24, 27), (10, 90)):
        picture = Image.fromarray(drawing(*size))
        (expected,) = processor(picture)["pixel_values"]
        found = (prepare(picture) / 255 - mean) / std
        assert np.abs(found - expected).max() < 1e-5


def test_both_sides_have_one_fingerprint_whatever_the_type(folder: Path) -> None:
    whole = load_dual(str(folder))
    assert load_backbone(str(folder), dtype="bfloat16").fingerprint == whole.fingerprint
    assert load_dual(str(folder), dtype="bfloat16").fingerprint == whole.fingerprint
    other = save_dual(folder.parent / "other", folder.name, seed=1)
    assert load_dual(str(other)).fingerprint != whole.fingerprint


def test_a_larger_picture_has_a_larger_grid(tmp_path: Path) -> None:
    net = load_backbone(str(save_dual(tmp_path / "clip")))
    pixels = torch.randn(1, 3, 2 * SIDE, SIDE)
    assert net.model.forward_features(pixels).shape == (1, 6, 3, net.width)


def test_siglip_reads_lower_case_and_the_first_also_without_punctuation(tmp_path: Path) -> None:
    folder = save_dual(tmp_path / "siglip", "siglip")
    ids = load_dual(str(folder)).texts.tokenizer.encode("A Red, dog!").ids
    assert 0 in ids  # The comma is unknown.
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps(settings | {"tokenizer_class": "SiglipTokenizer"}))
    tokenizer = load_dual(str(folder)).texts.tokenizer
    assert tokenizer.encode("A  Red, dog!").ids == tokenizer.encode("a red dog").ids


@torch.inference_mode()
def test_siglip_pads_on_the_side_that_its_tokenizer_names(tmp_path: Path) -> None:
    folder = save_dual(tmp_path / "siglip", "siglip")
    right = load_dual(str(folder)).texts
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"padding_side": "left"}))
    left = load_dual(str(folder)).texts
    ids = torch.tensor([[5, 6, 1]])
    model = right.model.model
    for texts, row in ((right, [5, 6, 1] + [2] * 13), (left, [2] * 13 + [5, 6, 1])):
        found = model.get_text_features(input_ids=torch.tensor([row])).pooler_output
        assert torch.allclose(texts.model(ids)[1], F.normalize(found), atol=1e-6)


def refused(folder: Path, code: Exit, *parts: str) -> None:
    with pytest.raises(DataError) as error:
        load_dual(str(folder))
    assert error.value.code == code
    for part in parts:
        assert part in str(error.value)


def edited(folder: Path, **changes: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder


def test_models_of_another_kind_are_refused(tmp_path: Path) -> None:
    folder = save_dual(tmp_path / "clip")
    refused(edited(folder, model_type="clip_text_model"), Exit.DATA, "one side of a model alone")
    refused(edited(folder, model_type="clip_vision_model"), Exit.DATA, "openai/clip-vit")
    refused(edited(folder, model_type="bert"), Exit.DATA, "no model of texts and pictures")
    refused(edited(folder, model_type="nothing"), Exit.DATA, "'nothing'", "config.json")


def test_a_model_without_tokenizer_preprocessing_or_weights_is_refused(tmp_path: Path) -> None:
    folder = save_dual(tmp_path / "clip")
    (folder / "tokenizer.json").unlink()
    refused(folder, Exit.NO_INPUT, "tokenizer.json", "save_pretrained")
    assert load_backbone(str(folder)).width == 10  # Pictures need no tokenizer.
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(DataError, match="AutoImageProcessor") as error:
        load_backbone(str(folder))
    assert error.value.code == Exit.NO_INPUT
    (folder / "model.safetensors").unlink()
    refused(folder, Exit.NO_INPUT, "safetensors")


def test_a_model_that_lacks_its_image_tower_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = save_dual(tmp_path / "clip")
    file = folder / "model.safetensors"
    weights = load_file(file)
    save_file({k: v for k, v in weights.items() if "vision" not in k}, file, {"format": "pt"})
    refused(folder, Exit.DATA, "lacks", "vision_model", "would be random")


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"do_center_crop": False}, "differ in shape"),
        ({"do_rescale": False}, "do_rescale"),
        ({"crop_size": {"height": 1, "width": 1}}, "not a usable preprocessing: "),
        ({"image_mean": 1e300}, "not a usable preprocessing: "),
        ({"resample": 10**30}, "not a usable preprocessing: "),
        ({"do_convert_rgb": 10**30}, "exceeds 64-bit range"),
    ],
)
def test_preprocessing_that_no_batch_can_have_is_refused(
    tmp_path: Path, changes: dict[str, Any], part: str
) -> None:
    folder = save_dual(tmp_path / "clip", **changes)
    with pytest.raises(DataError, match=part) as error:
        load_backbone(str(folder))
    assert error.value.code == Exit.DATA


def test_a_reference_is_a_dual_encoder_a_hub_name_or_a_run(tmp_path: Path) -> None:
    assert is_dual(str(save_dual(tmp_path / "clip")))
    assert is_dual("openai/clip-vit-base-patch32")
    assert is_dual("laion/CLIP-ViT-B-32@main")
    with pytest.raises(DataError, match="does not exist") as error:
        is_dual(str(tmp_path / "none"))
    assert error.value.code == Exit.NO_INPUT


@torch.inference_mode()
def test_its_text_side_is_an_encoder_here_and_in_a_run(folder: Path, tmp_path: Path) -> None:
    encoder = load_encoder(str(folder))
    model = AutoModel.from_pretrained(folder).eval().text_model
    ids = torch.tensor([[*encoder.prefix, *encoder.tokenizer.encode("a dog").ids]])
    found = [each(ids, output_hidden_states=True).hidden_states for each in (encoder.model, model)]
    assert len(found[0]) == encoder.layers + 1
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
    assert encoder.width == model.config.hidden_size
    save_pretrained(tmp_path / "kept", encoder)
    again = load_encoder(str(tmp_path / "kept"))
    assert again.fingerprint == encoder.fingerprint
    assert again.tokenizer.to_str() == encoder.tokenizer.to_str()
    low = load_encoder(str(folder), dtype="bfloat16")
    assert (low.fingerprint, low.model.dtype) == (encoder.fingerprint, torch.bfloat16)
