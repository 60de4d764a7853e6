"""Sizes of configurations: the paper's counts, exactly, without weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import save_encoder
from tests.tiny.dual import save_dual
from vgtools.io.errors import DataError, Exit
from vgtools.models.describe import describe

CONFIGS = Path(__file__).parents[2] / "examples" / "xdbert" / "configs"


@pytest.mark.parametrize(
    ("name", "sizes", "parameters"),
    [
        ("bert-base", (768, 512, 12, 12, 3072), 109_482_240),
        ("bert-large", (1024, 512, 24, 16, 4096), 335_141_888),
        ("electra-base", (768, 512, 12, 12, 3072), 108_891_648),
        ("electra-large", (1024, 512, 24, 16, 4096), 334_092_288),
        ("clip-vit-b32", (512, 77, 12, 8, 2048), 63_428_096),
    ],
)
def test_the_configurations_of_the_paper(
    name: str, sizes: tuple[int, ...], parameters: int
) -> None:
    found = describe(str(CONFIGS / f"{name}.json"))
    keys = ("width", "max_length", "layers", "heads", "inner")
    assert tuple(found[key] for key in keys) == sizes
    assert found["parameters"] == parameters
    assert found.get("projection") == (512 if name.startswith("clip") else None)


def test_an_encoder_in_a_folder_is_counted_as_its_network(tmp_path: Path) -> None:
    from transformers import BertModel

    folder = save_encoder(tmp_path / "encoder")
    model = BertModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    found = describe(str(folder))
    assert found["parameters"] == sum(each.numel() for each in model.parameters())
    assert (found["type"], found["width"], found["layers"], found["heads"]) == ("bert", 16, 3, 2)


def test_a_tower_is_projected_as_the_whole_clip_says(tmp_path: Path) -> None:
    text = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
    text |= {"num_attention_heads": 2, "vocab_size": 30, "max_position_embeddings": 10}
    whole = tmp_path / "clip.json"
    whole.write_text(json.dumps({"model_type": "clip", "projection_dim": 6, "text_config": text}))
    tower = tmp_path / "tower.json"
    tower.write_text(json.dumps({"model_type": "clip_text_model", "projection_dim": 6, **text}))
    found = [describe(str(file)) for file in (whole, tower)]
    # embeddings, four projections, two layers, two norms of the layer, the last norm, 8 to 6
    layer = 4 * (8 * 8 + 8) + (8 * 16 + 16) + (16 * 8 + 8) + 2 * 16
    assert [each["parameters"] for each in found] == [40 * 8 + layer + 16 + 8 * 6] * 2
    assert [each["projection"] for each in found] == [6, 6]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, '"model_type": None is not a usable text encoder'),
        ({"model_type": "nothing"}, "'nothing' is not a usable text encoder"),
        ({"model_type": "bert", "hidden_size": 7}, "is not a usable text encoder"),
        ({"model_type": "vit"}, "'vit' is not a usable text encoder"),
    ],
)
def test_what_is_not_a_text_encoder(tmp_path: Path, values: dict[str, Any], said: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(json.dumps(values))
    with pytest.raises(DataError, match="usable") as caught:
        describe(str(file))
    assert said in str(caught.value)
    assert caught.value.code == Exit.DATA


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a model directory") as caught:
        describe(str(tmp_path / "no.json"))
    assert caught.value.code == Exit.NO_INPUT
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"config\.json") as caught:
        describe(str(tmp_path / "empty"))
    assert caught.value.code == Exit.NO_INPUT


@pytest.mark.parametrize("family", ["siglip", "chinese_clip", "metaclip_2", "altclip"])
def test_the_text_side_of_a_dual_encoder_is_described(tmp_path: Path, family: str) -> None:
    from transformers import AutoModel

    folder = save_dual(tmp_path / "dual", family)
    found = describe(str(folder))
    side = AutoModel.from_pretrained(folder).text_model
    counted = sum(each.numel() for each in side.parameters())
    pooler = sum(each.numel() for name, each in side.named_parameters() if "pooler" in name)
    assert found["parameters"] in (counted, counted - pooler)
    assert found["layers"] == side.config.num_hidden_layers


@pytest.mark.parametrize("family", ["distilbert", "xlm", "gpt2"])
def test_encoders_with_other_names_of_sizes_are_described(tmp_path: Path, family: str) -> None:
    file = tmp_path / "config.json"
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 30}
    file.write_text(json.dumps({"model_type": family, **sizes, "hidden_dim": 32}))
    found = describe(str(file))
    assert (found["width"], found["layers"], found["inner"]) == (8, 2, 32)
    file.write_text(json.dumps({"model_type": family, **sizes, "num_hidden_layers": 10**9}))
    with pytest.raises(DataError, match='"num_hidden_layers": expected a whole number from 1'):
        describe(str(file))
