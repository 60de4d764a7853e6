"""Text towers of CLIP: what is loaded and refused, states, blocks, no padding."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import CLIPConfig, CLIPModel, CLIPTextModel, CLIPTextModelWithProjection

from tests.tiny.clip import TOWER, clip_tokenizer, new_tower, save_tower
from tests.tiny.lm import make_tokenizer
from vgtools.io.errors import DataError, Exit
from vgtools.models import runs
from vgtools.models.clip import (
    block_states,
    clip_blocks,
    is_tower,
    lay_out,
    load_teacher,
    most_blocks,
    stack_blocks,
    token_states,
)
from vgtools.models.encoder import load_encoder, save_pretrained
from vgtools.models.references import fingerprint

ENDS = (514, 515)


# ----------------------------------------------------------------------------------------- loading


def test_a_tower_is_loaded_with_its_projection(tmp_path: Path) -> None:
    save_tower(tmp_path)
    tower = load_teacher(str(tmp_path))
    assert isinstance(tower.model, CLIPTextModelWithProjection)
    assert (tower.width, tower.layers, tower.max_tokens) == (6, 2, 75)
    assert (*tower.prefix, *tower.suffix) == ENDS
    assert tower.fingerprint == fingerprint(new_tower())
    assert all(parameter.requires_grad for parameter in tower.model.parameters())
    assert not tower.model.training
    assert is_tower(str(tmp_path))


def test_a_tower_computes_as_this_machine_can_not_as_its_file_says(tmp_path: Path) -> None:
    save_tower(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for key, named in itertools.product(
        ("attn_implementation", "_attn_implementation"),
        ("eager", "flash_attention_2"),  # the second is not installed
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | {key: named}))
        assert load_teacher(str(tmp_path)).model.config._attn_implementation == "sdpa"


def save_whole(folder: Path, **text: Any) -> CLIPModel:
    """Write a whole CLIP with a projection of 6."""
    vision = {
        "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
        "image_size": 8, "patch_size": 4,
    }  # fmt: skip
    config = CLIPConfig(
        text_config={**TOWER, **text},
        vision_config=vision,
        projection_dim=6,
    )
    torch.manual_seed(1)
    model = CLIPModel(config)
    model.save_pretrained(folder)
    clip_tokenizer().save(str(folder / "tokenizer.json"))
    return model


@pytest.mark.parametrize("width", [6, 512])
def test_of_a_whole_clip_the_text_tower_is_loaded(tmp_path: Path, width: int) -> None:
    """LAION's ViT-H has 1024 as its projection and 512 in its text part."""
    model = save_whole(tmp_path, projection_dim=width)
    tower = load_teacher(str(tmp_path))
    assert tower.width == 6
    assert torch.equal(tower.model.text_projection.weight, model.text_projection.weight)
    found = tower.model.text_model.state_dict()
    expected = model.text_model.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_a_whole_clip_is_compared_with_its_run(tmp_path: Path) -> None:
    """The part that is loaded has another class than config.json says."""
    folder = tmp_path / "encoder"
    save_whole(folder)
    mark = load_teacher(str(folder)).fingerprint
    runs.save_run(tmp_path, "toy", {}, {"encoder": {"fingerprint": mark}})
    assert load_teacher(str(folder)).fingerprint == mark
    runs.save_run(tmp_path, "toy", {}, {"encoder": {"fingerprint": "0" * 64}})
    with pytest.raises(DataError, match=f"{mark}, run.json states 0000"):
        load_teacher(str(folder))


def test_a_saved_tower_opens_again_here_and_with_transformers(tmp_path: Path) -> None:
    tower = load_teacher(str(save_tower(tmp_path / "a")))
    save_pretrained(tmp_path / "b", tower)
    again = load_teacher(str(tmp_path / "b"))
    assert again.fingerprint == tower.fingerprint
    assert again.tokenizer.to_str() == tower.tokenizer.to_str()
    plain = CLIPTextModelWithProjection.from_pretrained(tmp_path / "b")
    assert fingerprint(plain) == tower.fingerprint


def test_a_pair_is_read_with_the_marks_of_each_text(tmp_path: Path) -> None:
    save_tower(tmp_path)
    file = tmp_path / "tokenizer.json"
    stored = json.loads(file.read_text())
    marks = (["<|endoftext|>", 515], ["<|startoftext|>", 514])
    stored["post_processor"] = {
        "type": "RobertaProcessing", "sep": marks[0], "cls": marks[1], "trim_offsets": False,
        "add_prefix_space": False,
    }  # fmt: skip
    file.write_text(json.dumps(stored))
    ids = load_teacher(str(tmp_path)).tokenizer.encode("the", "the").ids
    assert ids == [514, 513, 515, 514, 513, 515]


def test_other_models_are_refused(tmp_path: Path) -> None:
    from tests.models.test_encoder import save_tiny_bert

    save_tiny_bert(tmp_path)
    assert not is_tower(str(tmp_path))
    with pytest.raises(DataError, match="is a bert, expected a CLIP") as error:
        load_teacher(str(tmp_path))
    assert error.value.code == Exit.DATA


def test_a_tower_without_projection_is_refused(tmp_path: Path) -> None:
    save_tower(tmp_path)
    CLIPTextModel(new_tower().config).save_pretrained(tmp_path)
    with pytest.raises(DataError, match=r"text_projection\.weight") as error:
        load_teacher(str(tmp_path))
    assert error.value.code == Exit.DATA


def test_every_weight_must_be_there(tmp_path: Path) -> None:
    file = save_tower(tmp_path) / "model.safetensors"
    weights = load_file(file)
    name = "text_model.final_layer_norm.bias"
    save_file({k: v for k, v in weights.items() if k != name}, file, {"format": "pt"})
    with pytest.raises(DataError, match=f"lacks 1 weight .*{name}"):
        load_teacher(str(tmp_path))
    save_file({**weights, name: weights[name] * math.nan}, file, {"format": "pt"})
    with pytest.raises(DataError, match="NaN, infinite or too large"):
        load_teacher(str(tmp_path))
    save_file({**weights, name: torch.zeros(9)}, file, {"format": "pt"})
    with pytest.raises(DataError, match=f"lacks 1 weight .*{name}"):
        load_teacher(str(tmp_path))


@pytest.mark.parametrize("pickled", [True, False])
def test_pickled_weights_are_refused_with_the_line_that_converts_them(
    tmp_path: Path, pickled: bool
) -> None:
    save_tower(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    if pickled:
        (tmp_path / "pytorch_model.bin").write_bytes(b"\x80")
    convert = r"CLIPModel\.from_pretrained\(.*\)\.save_pretrained\(DIR\)"
    with pytest.raises(DataError, match=convert) as error:
        load_teacher(str(tmp_path))
    assert error.value.code == (Exit.DATA if pickled else Exit.NO_INPUT)


def test_a_tokenizer_must_be_that_of_the_tower(tmp_path: Path) -> None:
    save_tower(tmp_path / "less", vocab_size=515)
    with pytest.raises(DataError, match="516 entries, the embedding table 515"):
        load_teacher(str(tmp_path / "less"))
    save_tower(tmp_path / "other")
    make_tokenizer().save(str(tmp_path / "other" / "tokenizer.json"))
    with pytest.raises(DataError, match=r"has no <\|startoftext\|>"):
        load_teacher(str(tmp_path / "other"))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([], "not a usable CLIP"),
        ({"hidden_size": "wide"}, "not a usable CLIP"),
        ({**TOWER, "eos_token_id": "END"}, "not a usable CLIP"),  # read only with a text
    ],
)
def test_a_damaged_configuration_is_refused(tmp_path: Path, value: Any, why: str) -> None:
    save_whole(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"text_config": value}))
    with pytest.raises(DataError, match=why):
        load_teacher(str(tmp_path))


def test_the_tokenizer_s_builtin_has_no_network() -> None:
    for load in (load_teacher, load_encoder):
        with pytest.raises(DataError, match="is a tokenizer without a network") as error:
            load("builtin:clip-bpe")
        assert error.value.code == Exit.USAGE


def test_the_paper_s_tower_has_63_428_096_parameters() -> None:
    from transformers import CLIPTextConfig

    with torch.device("meta"):
        tower = CLIPTextModelWithProjection(CLIPTextConfig())
    assert sum(parameter.numel() for parameter in tower.parameters()) == 63_428_096


# ------------------------------------------------------------------------------------------ blocks


def test_tokens_of_a_text_fill_blocks_of_75() -> None:
    for tokens, sizes in [
        (0, [2]),
        (1, [3]),
        (75, [77]),
        (76, [77, 3]),
        (150, [77, 77]),
        (151, [77, 77, 3]),
        (675, [77] * 9),
        (676, [77] * 9),  # cut
    ]:
        blocks = clip_blocks(range(tokens), 9, ENDS)
        assert [len(block) for block in blocks] == sizes
        assert all((block[0], block[-1]) == ENDS for block in blocks)
        inner = np.concatenate([block[1:-1] for block in blocks])
        assert inner.tolist() == list(range(min(tokens, 675)))


def test_the_paper_s_lengths_give_the_paper_s_blocks() -> None:
    assert [most_blocks(length) for length in (512, 128, 384, 1)] == [9, 2, 7, 1]


def test_blocks_are_stacked_with_their_lengths() -> None:
    rows = [clip_blocks([7, 8, 9], 2, ENDS, room=2), clip_blocks([], 2, ENDS, room=2)]
    blocks, lengths = stack_blocks(rows)
    assert blocks.tolist() == [
        [[514, 7, 8, 515], [514, 9, 515, 0]],
        [[514, 515, 0, 0], [0, 0, 0, 0]],
    ]
    assert lengths.tolist() == [[4, 3], [2, 0]]
    laid, mask = lay_out(torch.from_numpy(blocks), torch.from_numpy(lengths), fill=-1)
    assert laid.tolist() == [[514, 7, 8, 515, 514, 9, 515], [514, 515, -1, -1, -1, -1, -1]]
    assert mask.sum(1).tolist() == [7, 2]


# ------------------------------------------------------------------------------------------ states


def plain_tower(tower: Any, ids: list[int]) -> Tensor:
    """Return (t, E) states of one sequence, as OpenAI's code has it, in loops."""
    state = {name: tensor.double() for name, tensor in tower.state_dict().items()}

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    def norm(name: str, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
        return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]

    tables = "text_model.embeddings"
    x = state[f"{tables}.token_embedding.weight"][ids]
    x = x + state[f"{tables}.position_embedding.weight"][: len(ids)]
    heads, size = 2, 4
    for number in range(2):
        layer = f"text_model.encoder.layers.{number}"
        read = norm(f"{layer}.layer_norm1", x)
        q, k, v = (linear(f"{layer}.self_attn.{part}_proj", read) for part in "qkv")
        mixed = torch.zeros_like(x)
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            for at in range(len(ids)):
                scores = k[: at + 1, part] @ q[at, part] / math.sqrt(size)
                mixed[at, part] = scores.softmax(0) @ v[: at + 1, part]
        x = x + linear(f"{layer}.self_attn.out_proj", mixed)
        up = linear(f"{layer}.mlp.fc1", norm(f"{layer}.layer_norm2", x))
        x = x + linear(f"{layer}.mlp.fc2", up * torch.sigmoid(1.702 * up))
    return norm("text_model.final_layer_norm", x) @ state["text_projection.weight"].T


def random_rows(counts: list[list[int]], seed: int = 0) -> list[list[np.ndarray]]:
    """Return rows of blocks with so many tokens between the marks, id 0 among them."""
    rng = np.random.default_rng(seed)
    ids = [[rng.integers(0, 514, count) * (rng.random(count) < 0.8) for count in r] for r in counts]
    return [[np.array([514, *block, 515]) for block in row] for row in ids]


@pytest.mark.parametrize("together", [1, 2, 32])
def test_states_of_blocks_are_those_of_each_block_alone(
    monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr("vgtools.models.clip._TOGETHER", together)
    tower = new_tower().double()
    rows = random_rows([[5, 0, 9], [1], [75, 3]])
    blocks, lengths = map(torch.from_numpy, stack_blocks(rows))
    states, mask = block_states(tower, blocks, lengths)
    assert states.shape == (3, 82, 6)
    assert mask.sum(1).tolist() == [20, 3, 82]
    for row, found, real in zip(rows, states, mask, strict=True):
        expected = torch.cat([plain_tower(tower, block.tolist()) for block in row])
        torch.testing.assert_close(found[real], expected, rtol=0, atol=1e-12)
        assert not found[~real].any()


def test_padding_its_id_and_a_mask_change_nothing() -> None:
    tower = new_tower().double()
    ids = torch.tensor([[514, 0, 7, 0, 515]])
    expected = plain_tower(tower, ids[0].tolist())
    for pad in (0, 7, 515):
        for length in (5, 9, 77):
            padded = torch.full((1, length), pad)
            padded[:, :5] = ids
            found = token_states(tower, padded)[0, :5]
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
            mask = (torch.arange(length) < 5)[None].long()
            hidden = tower.text_model(input_ids=padded, attention_mask=mask).last_hidden_state
            masked = tower.text_projection(hidden)[0, :5]
            torch.testing.assert_close(masked, expected, rtol=0, atol=1e-12)


def test_attention_over_states_is_that_over_padded_blocks_with_a_mask() -> None:
    """What the published code does: blocks of 77, -10,000 added at padding."""
    tower = new_tower().double()
    rows = random_rows([[4, 75, 0], [2, 6]])
    blocks, lengths = map(torch.from_numpy, stack_blocks(rows))
    states, mask = block_states(tower, blocks, lengths)
    whole = torch.zeros(2, 3, 77, dtype=torch.int64)
    whole[:, :, : blocks.shape[2]] = blocks
    padded = token_states(tower, whole).flatten(1, 2)  # (B, 3 * 77, E)
    absent = (torch.arange(77) >= lengths[..., None]).flatten(1)
    query = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scores = torch.einsum("be,bue->bu", query, padded) - 1e4 * absent
    expected = torch.einsum("bu,bue->be", scores.softmax(1), padded)
    compact = torch.einsum("be,bue->bu", query, states).masked_fill(~mask, -math.inf)
    found = torch.einsum("bu,bue->be", compact.softmax(1), states)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_the_tower_learns_through_the_states_of_blocks() -> None:
    rows = random_rows([[5, 0], [3]])
    blocks, lengths = map(torch.from_numpy, stack_blocks(rows))
    weight = torch.randn(2, 9, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradients = []
    for compact in (True, False):
        tower = new_tower().double()
        if compact:
            states, _ = block_states(tower, blocks, lengths)
            (states * weight).sum().backward()
        else:
            for row, part in zip(rows, weight, strict=True):
                alone = [token_states(tower, torch.from_numpy(block)) for block in row]
                laid = torch.cat(alone)
                (laid * part[: len(laid)]).sum().backward()
        gradients.append({name: p.grad for name, p in tower.named_parameters()})
    for name, found in gradients[0].items():
        torch.testing.assert_close(found, gradients[1][name], rtol=0, atol=1e-11)
