"""Encoders, tokenizers and a hub that cannot be used are refused in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer

from tests.models.test_backbone import change_json, change_weights, refusal
from tests.models.test_encoder import save_tiny_bert
from vgtools.io.errors import DataError, Exit
from vgtools.models import references
from vgtools.models.encoder import load_encoder, load_masked_lm
from vgtools.models.references import fingerprint, load_tokenizer, read_weights

Tensors = dict[str, Tensor]
PT = {"format": "pt"}


def test_a_vocabulary_is_read_with_the_settings_next_to_it(tmp_path: Path) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "schön", "schon", "東京"]
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    config = tmp_path / "tokenizer_config.json"
    kept = {"do_lower_case": True, "strip_accents": False, "tokenize_chinese_chars": False}
    for settings, expected in (({}, ["schon", "[UNK]", "[UNK]"]), (kept, ["schön", "東京"])):
        config.write_text(json.dumps(settings))
        assert load_tokenizer(str(tmp_path)).encode("Schön 東京").tokens[1:-1] == expected
    (tmp_path / "added_tokens.json").write_text('{"schon": 6}')
    load_tokenizer(str(tmp_path))
    for name, body in (
        ("tokenizer_config.json", {"word_tokenizer_type": "mecab"}),
        ("tokenizer_config.json", {"do_basic_tokenize": False}),
        ("added_tokens.json", {"[ENT]": 8}),
    ):
        (tmp_path / name).write_text(json.dumps(body))
        with pytest.raises(DataError, match=f"{name} has more; save one with AutoTokenizer"):
            load_tokenizer(str(tmp_path))
        config.write_text("{}")


def test_a_vocabulary_with_ends_of_words_is_not_read_as_bytes(tmp_path: Path) -> None:
    pieces = {piece: n for n, piece in enumerate(["<s>", "</s>", "k", "o", "t</w>", "ko"])}
    (tmp_path / "vocab.json").write_text(json.dumps(pieces))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nk o\n")
    with pytest.raises(DataError, match="marks ends of words; save one with AutoTokenizer"):
        load_tokenizer(str(tmp_path))


def test_merges_are_never_dropped(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    pieces = {piece: number for number, piece in enumerate(["a", "b", "ab", "abab"])}
    merges = [("a", "b"), ("ab", "ab")]
    for rate in (None, 0.9):
        model = models.BPE(pieces, merges, dropout=rate)
        Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
        found = load_tokenizer(str(tmp_path))
        assert {tuple(found.encode("abab").tokens) for _ in range(20)} == {("abab",)}
        assert json.loads(found.to_str())["model"]["dropout"] is None


@pytest.mark.parametrize("kind", ["BertTokenizer", "TokenizersBackend"])
def test_settings_next_to_a_tokenizer_win_as_in_transformers(tmp_path: Path, kind: str) -> None:
    save_tiny_bert(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    for settings in ({"do_lower_case": False}, {"strip_accents": False}, {"do_lower_case": True}):
        file.write_text(json.dumps(settings | {"tokenizer_class": kind}))
        theirs = AutoTokenizer.from_pretrained(str(tmp_path)).backend_tokenizer
        ours = load_tokenizer(str(tmp_path))
        assert ours.normalizer.normalize_str("Ünï 東京") == theirs.normalizer.normalize_str(
            "Ünï 東京"
        )
    file.write_text('{"do_lower_case": null}')
    assert load_tokenizer(str(tmp_path)).normalizer.normalize_str("Ünï") == "uni"
    file.write_text('{"added_tokens_decoder": {"21": {"content": "<extra>"}}}')
    message = refusal(lambda: load_tokenizer(str(tmp_path)))
    assert "tokenizer.json: lacks '<extra>', the token 21 of tokenizer_config.json" in message


# ------------------------------------------------------------------------------------ encoders


def save_masked_lm(folder: Path) -> Path:
    """Write a tiny BERT with the head of a masked language model."""
    from transformers import AutoConfig, AutoModelForMaskedLM

    save_tiny_bert(folder)
    AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", ["vocab.txt", "tokenizer.json", "model.safetensors.index.json"])
def test_a_model_whose_vocabulary_or_settings_are_not_small_files_is_refused(
    tmp_path: Path, name: str
) -> None:
    folder = save_tiny_bert(tmp_path / "bert")
    (folder / name).unlink(missing_ok=True)
    with open(folder / name, "wb") as file:
        file.truncate((256 << 20) + 1)  # sparse: it takes no room on the disk
    assert f"{name}: has more than 256 MB" in refusal(lambda: load_encoder(str(folder)), Exit.DATA)
    assert f"{name}: has more than 256 MB" in refusal(
        lambda: load_tokenizer(str(folder)), Exit.DATA
    )
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert f"{name}: is a pipe" in refusal(lambda: load_tokenizer(str(folder)), Exit.DATA)


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


def test_of_a_sharded_model_the_files_of_its_index_are_read(tmp_path: Path) -> None:
    folder = save_tiny_bert(tmp_path)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    table = dict.fromkeys(names[::2], "a.safetensors") | dict.fromkeys(names[1::2], "b.safetensors")
    for file in ("a.safetensors", "b.safetensors"):
        save_file({n: weights[n] for n in names if table[n] == file}, folder / file, PT)
    save_file({name: weights[name] + 1 for name in names}, folder / "other.safetensors", PT)
    assert "has embeddings" in refusal(lambda: read_weights(str(folder)), Exit.DATA)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": table}))
    read = read_weights(str(folder))[1]
    assert fingerprint(read) == fingerprint(weights)
    for states in (False, True):
        assert load_encoder(str(folder), states=states).fingerprint == fingerprint(weights)
    (folder / "b.safetensors").unlink()
    message = refusal(lambda: read_weights(str(folder)), Exit.NO_INPUT)
    assert "b.safetensors: is missing, and model.safetensors.index.json names it" in message
    index.write_text('{"weight_map": {"a": "../a.safetensors"}}')
    assert '"weight_map": expected a file name' in refusal(lambda: read_weights(str(folder)))


def test_a_model_with_an_adapter_is_refused(tmp_path: Path) -> None:
    folder = save_tiny_bert(tmp_path)
    (folder / "adapter_config.json").write_text("{}")
    save_file({"lora_A.weight": torch.ones(2)}, folder / "adapter_model.safetensors")
    for load in (load_encoder, load_masked_lm, read_weights):
        message = refusal(partial(load, str(folder)))
        assert "adapter_config.json: is an adapter's" in message


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


@pytest.mark.slow
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
    requests = "import vgtools.io.hub as h\nh.SECONDS = 1\n"
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


@pytest.mark.parametrize(
    ("error", "code", "why"),
    [
        (MemoryError(), Exit.CANNOT_CONTINUE, "out of memory while it is loaded (MemoryError: )"),
        (RuntimeError("can't start new thread"), Exit.CANNOT_CONTINUE, "out of memory"),
        (RuntimeError("shapes\nand more"), Exit.DATA, "net: is not a usable CLIP: RuntimeError: s"),
    ],
)
def test_a_lack_of_memory_is_no_fault_of_the_model(error: Exception, code: Exit, why: str) -> None:
    found = references.unusable("CLIP", error, "net")
    assert found.code == code
    assert why in str(found)
    assert "and more" not in str(found)
