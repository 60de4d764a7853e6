"""Backbones: weights and configurations that do not fit are refused, never filled in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.models.test_encoder import save_tiny_bert
from tests.tiny.images import save_backbone
from vgtools.io.errors import DataError, Exit
from vgtools.models.backbone import load_backbone
from vgtools.models.encoder import load_encoder, load_masked_lm, load_with_head
from vgtools.models.references import fingerprint, read_weights

Tensors = dict[str, Tensor]


def change_weights(folder: Path, change: Callable[[Tensors], object]) -> Path:
    """Rewrite `model.safetensors` after a change of its tensors in place."""
    file = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def change_json(file: Path, **values: Any) -> None:
    """Set keys of a JSON file; a name with a dot is of an inner object."""
    body = json.loads(file.read_text())
    for key, value in values.items():
        (body["pretrained_cfg"] if key in body.get("pretrained_cfg", {}) else body)[key] = value
    file.write_text(json.dumps(body))


def refusal(call: Callable[[], object], code: Exit = Exit.DATA) -> str:
    """Return the message of the error that a call ends in."""
    with pytest.raises(DataError) as caught:
        call()
    assert caught.value.code == code
    assert "\n" not in str(caught.value)
    return str(caught.value)


def nothing_fits(tensors: Tensors) -> None:
    tensors.clear()
    tensors["nothing"] = torch.zeros(2)


# ----------------------------------------------------------------------------------- backbones


def test_a_backbone_is_what_its_file_holds_without_the_classifier(tmp_path: Path) -> None:
    folder = save_backbone(tmp_path / "net")
    stored = load_file(folder / "model.safetensors")
    loaded = load_backbone(str(folder)).model.state_dict()
    assert stored.keys() - loaded.keys() == {"fc.weight", "fc.bias"}
    assert all(torch.equal(stored[name], tensor) for name, tensor in loaded.items())


@pytest.mark.parametrize(
    ("change", "count"),
    [
        (nothing_fits, 40),
        (lambda tensors: tensors.pop("layer2.0.bn1.weight"), 1),
        (lambda tensors: [tensors.pop(name) for name in list(tensors) if "layer1" in name], 5),
    ],
)
def test_a_backbone_with_missing_weights_is_refused(
    tmp_path: Path, change: Callable[[Tensors], object], count: int
) -> None:
    folder = change_weights(save_backbone(tmp_path / "net"), change)
    message = refusal(lambda: load_backbone(str(folder)))
    assert f"{folder}/model.safetensors: lacks" in message
    assert int(message.split("lacks ")[1].split()[0].replace(",", "")) >= count
    assert "they would be random" in message


def test_a_backbone_with_weights_of_another_shape_or_too_many_is_refused(tmp_path: Path) -> None:
    folder = save_backbone(tmp_path / "net")
    change_weights(folder, lambda tensors: tensors.update({"layer9.weight": torch.ones(2)}))
    assert "has 1 weight that its architecture lacks, the first layer9.weight" in refusal(
        lambda: load_backbone(str(folder))
    )
    folder = save_backbone(tmp_path / "other")
    change_weights(folder, lambda tensors: tensors.update({"conv1.0.weight": torch.ones(2)}))
    assert "has 1 weight of another shape, the first: size mismatch for conv1.0.weight" in refusal(
        lambda: load_backbone(str(folder))
    )


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.pth", "model.pth"])
def test_a_pickle_beside_the_weights_is_never_read(tmp_path: Path, name: str) -> None:
    folder = save_backbone(tmp_path / "net")
    before = load_backbone(str(folder)).fingerprint
    other = {key: tensor + 1 for key, tensor in load_file(folder / "model.safetensors").items()}
    torch.save(other, folder / name)
    assert load_backbone(str(folder)).fingerprint == before
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    assert load_backbone(str(folder)).fingerprint == before


@pytest.mark.parametrize("kind", ["dangling", "folder"])
def test_weights_that_are_no_file_are_missing(tmp_path: Path, kind: str) -> None:
    folder = save_backbone(tmp_path / "net")
    file = folder / "model.safetensors"
    file.unlink()
    if kind == "folder":
        file.mkdir()
    else:
        file.symlink_to(tmp_path / "nowhere")
    assert "holds no *.safetensors weights" in refusal(
        lambda: load_backbone(str(folder)), Exit.NO_INPUT
    )


def test_a_hub_name_is_checked_as_a_directory_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import timm

    asked = []
    file = tmp_path / "model.safetensors"
    network = timm.create_model("resnet10t")
    monkeypatch.setattr(
        "vgtools.models.backbone.hub_file",
        lambda ref, name, stored: (asked.append((name, stored)), file)[1],
    )
    save_file(network.state_dict(), file)
    found = load_backbone("resnet10t.c3_in1k")
    assert asked == [("timm/resnet10t.c3_in1k", "model.safetensors")]
    network.reset_classifier(0)
    assert found.fingerprint == fingerprint(network)
    tensors = network.state_dict()
    tensors.pop("conv1.0.weight")
    save_file(tensors, file)
    assert "lacks 1 weight of its architecture, the first conv1.0.weight" in refusal(
        lambda: load_backbone("resnet10t.c3_in1k")
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e38])
def test_weights_that_are_no_numbers_are_named(tmp_path: Path, value: float) -> None:
    def spoil(name: str) -> Callable[[Tensors], object]:
        return lambda tensors: tensors[name].view(-1)[-1:].fill_(value)

    net = change_weights(save_backbone(tmp_path / "net"), spoil("layer1.0.conv1.weight"))
    message = refusal(lambda: load_backbone(str(net)))
    assert message == (
        f"{net}/model.safetensors: has NaN, infinite or too large numbers in 1 weight, the first "
        "layer1.0.conv1.weight; restore the file or train the model again"
    )
    bert = change_weights(save_tiny_bert(tmp_path / "bert"), spoil("embeddings.LayerNorm.bias"))
    loaders: list[Callable[[str], object]] = [load_encoder, load_masked_lm, read_weights]
    for load in (*loaders, lambda ref: load_with_head(ref, "SequenceClassification", 0, {})):
        message = refusal(lambda load=load: load(str(bert)))  # type: ignore[misc]
        assert message.startswith(
            f"{bert}: has NaN, infinite or too large numbers in 1 weight, the first "
        )
        assert "embeddings.LayerNorm.bias" in message


def test_the_same_weights_under_another_config_are_another_backbone(tmp_path: Path) -> None:
    folder = save_backbone(tmp_path / "net")
    before = load_backbone(str(folder)).fingerprint
    assert load_backbone(str(folder), dtype="bfloat16").fingerprint == before
    change_json(folder / "config.json", mean=[0.1, 0.2, 0.3])
    assert load_backbone(str(folder)).fingerprint != before


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("interpolation", "fourier"),
        ("interpolation", 3),
        ("crop_pct", -1),
        ("crop_pct", "wide"),
        ("crop_mode", "round"),
        ("input_size", [3, 100000, 100000]),
        ("input_size", [3, 0, 64]),
        ("mean", [0.5]),
        ("std", [0.5, 0.0, 0.5]),
    ],
)
def test_preprocessing_that_cannot_be_is_refused(tmp_path: Path, key: str, value: Any) -> None:
    folder = save_backbone(tmp_path / "net")
    change_json(folder / "config.json", **{key: value})
    message = refusal(lambda: load_backbone(str(folder)))
    assert message.startswith(f'{folder}/config.json: "{key}": expected ')


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", ["large", [3], 5])
def test_an_input_size_that_is_none_is_refused_without_a_warning(
    tmp_path: Path, size: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = save_backbone(tmp_path / "net")
    change_json(folder / "config.json", input_size=size)
    refusal(lambda: load_backbone(str(folder)))
    change_json(folder / "config.json", input_size=[3, 64, 64], model_args={"in_chans": 0})
    refusal(lambda: load_backbone(str(folder)))
    assert capfd.readouterr().err == ""


def test_a_network_of_another_use_is_refused(tmp_path: Path) -> None:
    folder = save_backbone(tmp_path / "net")
    change_json(folder / "config.json", model_args={"features_only": True})
    assert refusal(lambda: load_backbone(str(folder))).startswith(f"{folder}: is not a usable")
