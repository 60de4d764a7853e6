"""Weights, configurations and tokenizers that do not fit are refused, never filled in."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.models.test_encoder import save_tiny_bert
from tests.tiny.images import save_backbone
from vgtools.io import DataError, Exit
from vgtools.models import references
from vgtools.models.backbone import load_backbone
from vgtools.models.encoder import load_encoder, load_masked_lm, load_with_head
from vgtools.models.references import fingerprint, load_tokenizer, read_weights

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
        lambda ref, name, stored, offline: (asked.append((name, stored)), file)[1],
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


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_no_numbers_are_named(tmp_path: Path, value: float) -> None:
    def spoil(name: str) -> Callable[[Tensors], object]:
        return lambda tensors: tensors[name].view(-1)[-1:].fill_(value)

    net = change_weights(save_backbone(tmp_path / "net"), spoil("layer1.0.conv1.weight"))
    message = refusal(lambda: load_backbone(str(net)))
    assert message == (
        f"{net}/model.safetensors: has NaN or infinite numbers in 1 weight, the first "
        "layer1.0.conv1.weight; restore the file or train the model again"
    )
    bert = change_weights(save_tiny_bert(tmp_path / "bert"), spoil("embeddings.LayerNorm.bias"))
    loaders: list[Callable[[str], object]] = [load_encoder, load_masked_lm, read_weights]
    for load in (*loaders, lambda ref: load_with_head(ref, "SequenceClassification", 0, {})):
        message = refusal(lambda load=load: load(str(bert)))  # type: ignore[misc]
        assert message.startswith(f"{bert}: has NaN or infinite numbers in 1 weight, the first ")
        assert "embeddings.LayerNorm.bias" in message


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


# ------------------------------------------------------------------------------------ encoders


def save_masked_lm(folder: Path) -> Path:
    """Write a tiny BERT with the head of a masked language model."""
    from transformers import AutoConfig, AutoModelForMaskedLM

    save_tiny_bert(folder)
    AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    return folder


def test_a_head_is_whole_or_new_but_never_a_part(tmp_path: Path) -> None:
    folder = save_masked_lm(tmp_path / "lm")
    load_masked_lm(str(folder))

    def without(text: str) -> Callable[[Tensors], object]:
        return lambda tensors: [tensors.pop(name) for name in list(tensors) if text in name]

    change_weights(folder, without("cls.predictions.transform.dense"))
    message = refusal(lambda: load_masked_lm(str(folder)))
    assert "lacks 2 weights of its architecture, the first cls.predictions.transform.dense" in (
        message
    )
    load_encoder(str(folder))  # which has no head
    change_weights(folder, without("cls."))
    load_masked_lm(str(folder))


def test_only_the_weights_of_the_model_are_read(tmp_path: Path) -> None:
    folder = save_tiny_bert(tmp_path)
    names = read_weights(str(folder))[1].keys()
    save_file({"encoder.decoy": torch.ones(2)}, folder / "other.safetensors")
    torch.save({"encoder.decoy": torch.ones(2)}, folder / "pytorch_model.bin")
    assert read_weights(str(folder))[1].keys() == names
    assert "encoder.decoy" not in load_encoder(str(folder)).model.state_dict()


@pytest.mark.parametrize("value", [-5, 10**6])
def test_a_padding_id_beyond_the_table_is_refused(tmp_path: Path, value: int) -> None:
    folder = save_tiny_bert(tmp_path)
    change_json(folder / "config.json", pad_token_id=value)
    message = refusal(lambda: load_encoder(str(folder)))
    assert str(folder) in message
    assert "pad" in message


def test_no_position_for_a_token_is_refused(tmp_path: Path) -> None:
    folder = save_tiny_bert(tmp_path)
    change_weights(
        folder,
        lambda tensors: tensors.update(
            {
                name: tensor[:2].clone()
                for name, tensor in tensors.items()
                if "position_embeddings" in name
            }
        ),
    )
    change_json(folder / "config.json", max_position_embeddings=2)
    assert '"max_position_embeddings": no token fits' in refusal(lambda: load_encoder(str(folder)))


# ---------------------------------------------------------------------------------- tokenizers


def unknown_merge(body: dict[str, Any]) -> None:
    body["model"] = {
        "type": "BPE",
        "vocab": {"a": 0, "b": 1, "ab": 2, "abab": 3},
        "merges": [["a", "b"], ["ab", "abab"]],
    }


def no_unknown(body: dict[str, Any]) -> None:
    del body["model"]["vocab"]["[UNK]"]


def unigram(body: dict[str, Any]) -> None:
    body["model"] = {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0], ["b", -2.0]]}


def unknown_special(body: dict[str, Any]) -> None:
    body["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "[XYZ]", "type_id": 0}}],
        "pair": [],
        "special_tokens": {},
    }


def precompiled(body: dict[str, Any]) -> None:
    body["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "/////w=="}


@pytest.mark.parametrize(
    "change", [unknown_merge, no_unknown, unigram, unknown_special, precompiled]
)
def test_a_tokenizer_that_cannot_encode_is_refused_in_one_line(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], capfd: pytest.CaptureFixture[str]
) -> None:
    file = save_tiny_bert(tmp_path) / "tokenizer.json"
    body = json.loads(file.read_text())
    change(body)
    file.write_text(json.dumps(body))
    message = refusal(lambda: load_tokenizer(str(tmp_path)))
    assert message.startswith(f"{file}: is not a usable tokenizer: ")
    assert capfd.readouterr().err == "", "Rust says where it panicked"
    print("here", file=sys.stderr)
    assert capfd.readouterr().err == "here\n"


def test_special_ids_beyond_the_embeddings_are_refused(tmp_path: Path) -> None:
    file = save_tiny_bert(tmp_path) / "tokenizer.json"
    body = json.loads(file.read_text())
    body["post_processor"] |= {"sep": ["[SEP]", 4000]}
    file.write_text(json.dumps(body))
    assert "the tokenizer has the id 4000, the embedding table 21 rows" in refusal(
        lambda: load_encoder(str(tmp_path))
    )
    body["post_processor"] |= {"sep": ["[SEP]", 3]}
    body["model"]["vocab"]["##h"] = 77
    file.write_text(json.dumps(body))
    assert "the tokenizer has the id 77, the embedding table 21 rows" in refusal(
        lambda: load_encoder(str(tmp_path))
    )


# ---------------------------------------------------------------------------------- the hub


@pytest.mark.parametrize("ref", ["somebody/some-model", "resnet10t.c3_in1k"])
@pytest.mark.parametrize("fault", ["resolver", "blackhole"])
def test_a_hub_that_does_not_answer_is_one_line_within_ten_seconds(
    tmp_path: Path, ref: str, fault: str
) -> None:
    image = tmp_path / "photos"
    image.mkdir()
    save = "from PIL import Image; Image.new('RGB', (9, 9)).save('photos/a.png')"
    subprocess.run([sys.executable, "-c", save], cwd=tmp_path, check=True)
    ways = {  # no test may connect, and none waits: what hangs is cut off by the clock of the code
        "resolver": "import socket, threading\n"
        "socket.getaddrinfo = lambda *a, **k: threading.Event().wait()\n",
        "blackhole": "import os, socket\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "os.environ['HTTPS_PROXY'] = f'http://127.0.0.1:{server.getsockname()[1]}'\n",
    }
    requests = "import vgtools.models.references as r\nr._HUB_SECONDS = 1\n"
    command = ["extract-image-feats", "photos", "-b", ref, "-o", "f.npy"]
    if "/" in ref:
        command = ["revokenize", "x.jsonl", "-t", ref, "-o", "y.jsonl"]
        (tmp_path / "x.jsonl").write_text("")
    code = f"{ways[fault]}{requests}from vgtools.cli import run\nraise SystemExit(run({command}))"
    environment = references.os.environ | {"HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "hf")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == Exit.UNAVAILABLE, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert ref in done.stderr
    assert ".bin" not in done.stderr
