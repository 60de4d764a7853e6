"""The loading layer: references, what is refused unread, runs."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from tests.tiny import save_encoder
from tests.tiny.clip import save_tower
from tests.tiny.dual import FAMILIES, save_dual
from tests.tiny.probe import save_visualbert
from vgtools import __version__
from vgtools.io import own
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import dumps
from vgtools.models import backbone, references, runs, sealed
from vgtools.models.clip import load_teacher
from vgtools.models.dual import load_dual
from vgtools.models.encoder import (
    load_encoder,
    load_masked_lm,
    load_with_head,
    save_pretrained,
)
from vgtools.models.layers import LayerStack
from vgtools.text import tokens


def save_tiny_bert(folder: Path, seed: int = 0) -> Path:
    """Write a random two-layer BERT; its tokenizer pads and truncates, as some published ones."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(seed)
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *"abcdefgh",
        *("##" + c for c in "abcdefgh"),
    ]
    tokenizer = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_a_tokenizer_never_pads_or_cuts(tmp_path: Path) -> None:
    tokenizer = references.load_tokenizer(str(save_tiny_bert(tmp_path)))
    assert tokenizer.encode("a b").tokens == ["[CLS]", "a", "b", "[SEP]"]
    assert len(tokenizer.encode("a " * 50).ids) == 52
    assert tokens.special_ids(tokenizer) == ([2], [3])


def test_a_tokenizer_loads_without_torch(tmp_path: Path) -> None:
    save_tiny_bert(tmp_path)
    code = (
        "import sys; from vgtools.models.references import load_tokenizer; "
        "load_tokenizer(sys.argv[1]); print('torch' in sys.modules)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True
        ).stdout
        == "False\n"
    )


def test_word_piece_and_byte_level_files_load(tmp_path: Path) -> None:
    (tmp_path / "wp").mkdir()
    (tmp_path / "wp" / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n")
    assert references.load_tokenizer(str(tmp_path / "wp")).encode("AB").tokens == [
        "[CLS]",
        "a",
        "##b",
        "[SEP]",
    ]
    (tmp_path / "bpe").mkdir()
    (tmp_path / "bpe" / "vocab.json").write_text(
        json.dumps({"<s>": 0, "</s>": 1, "a": 2, "b": 3, "ab": 4, "Ġ": 5, "Ġa": 6})
    )
    (tmp_path / "bpe" / "merges.txt").write_text("#version: 0.2\na b\nĠ a\n")
    assert references.load_tokenizer(str(tmp_path / "bpe")).encode("ab a").tokens == [
        "<s>",
        "ab",
        "Ġa",
        "</s>",
    ]


def test_encoder_facts_and_fingerprint(tmp_path: Path) -> None:
    one = load_encoder(str(save_tiny_bert(tmp_path / "one")))
    two = load_encoder(str(save_tiny_bert(tmp_path / "two", seed=1)))
    assert (one.width, one.layers, one.max_tokens, one.prefix, one.suffix) == (8, 2, 14, [2], [3])
    assert not any(p.requires_grad for p in one.model.parameters())
    assert one.fingerprint != two.fingerprint
    again = load_encoder(str(tmp_path / "one"), dtype="bfloat16")
    assert again.fingerprint == one.fingerprint, "the same weights, whatever they are computed with"


def test_every_truncation_of_the_weights_is_refused(tmp_path: Path) -> None:
    file = save_tiny_bert(tmp_path) / "model.safetensors"
    whole = file.read_bytes()
    for cut in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:cut])
        with pytest.raises(DataError, match="not a usable text encoder") as caught:
            load_encoder(str(tmp_path))
        assert caught.value.code == Exit.DATA


def test_missing_weights_are_an_error_not_random_numbers(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = save_tiny_bert(tmp_path) / "model.safetensors"
    save_file(
        {k: v for k, v in load_file(file).items() if "layer.1.attention" not in k},
        file,
        metadata={"format": "pt"},
    )
    with pytest.raises(DataError, match="lacks 10 weights"):
        load_encoder(str(tmp_path))


class Payload:
    """A pickle that would touch a file when read."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.target,))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pkl"])
@pytest.mark.parametrize("load", [load_encoder, backbone.load_backbone])
def test_pickled_weights_are_refused_unread(tmp_path: Path, name: str, load: Any) -> None:
    (save_tiny_bert(tmp_path) / "model.safetensors").unlink()
    (tmp_path / name).write_bytes(pickle.dumps(Payload(tmp_path / "touched")))
    with pytest.raises(DataError, match="pickled") as caught:
        load(str(tmp_path))
    assert caught.value.code == Exit.DATA
    assert not (tmp_path / "touched").exists()


def test_remote_code_is_refused(tmp_path: Path) -> None:
    config = json.loads((save_tiny_bert(tmp_path) / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModel": "own.M"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'touched')!r}, 'w')\n")
    with pytest.raises(DataError, match="not a usable text encoder"):
        load_encoder(str(tmp_path))
    assert not (tmp_path / "touched").exists()


def test_offline_connects_nowhere_and_names_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: Any) -> None:
        raise AssertionError("a connection was attempted")

    monkeypatch.setattr(socket, "getaddrinfo", refused)
    monkeypatch.setattr("vgtools.io.remote._offline", True)
    for load in (load_encoder, references.load_tokenizer, backbone.load_backbone):
        ref = "resnet18.a1_in1k" if load is backbone.load_backbone else "somebody/some-model"
        with pytest.raises(DataError, match="neither on this machine") as caught:
            load(ref)
        assert caught.value.code == Exit.UNAVAILABLE
        assert ref in str(caught.value)
        assert "safetensors" in str(caught.value) or "tokenizer.json" in str(caught.value)


@pytest.mark.parametrize(
    ("load", "ref", "why", "code"),
    [
        (load_encoder, "builtin:nothing", "there are clip-bpe, efficientnet-lite0", Exit.USAGE),
        (load_encoder, "./nowhere", "is not a model directory", Exit.NO_INPUT),
        (backbone.load_backbone, "resnext101_32x8e", "similar: ", Exit.USAGE),
        (
            backbone.load_backbone,
            "builtin:minilm",
            "got the text encoder builtin:minilm",
            Exit.USAGE,
        ),
    ],
)
def test_a_wrong_reference_names_the_right_ones(load: Any, ref: str, why: str, code: Exit) -> None:
    with pytest.raises(DataError) as caught:
        load(ref)
    assert why in str(caught.value)
    assert caught.value.code == code


def test_a_builtin_that_is_not_installed_gives_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        references.BUILTIN, "ghost", ("ghost-package", "no_such_module", "model", None)
    )
    with pytest.raises(DataError, match="pip install ghost-package") as caught:
        load_encoder("builtin:ghost")
    assert caught.value.code == Exit.UNAVAILABLE


def test_devices_and_dtypes_by_name() -> None:
    assert references.pick_device("cpu").type == "cpu"
    assert references.pick_dtype("bfloat16") == torch.bfloat16
    for call in (lambda: references.pick_device("gpu"), lambda: references.pick_dtype("int8")):
        with pytest.raises(DataError) as caught:
            call()
        assert caught.value.code == Exit.USAGE
    if not torch.cuda.is_available():
        with pytest.raises(DataError) as caught:
            references.pick_device("cuda")
        assert caught.value.code == Exit.UNAVAILABLE


def test_a_run_moves_and_opens_with_plain_transformers(tmp_path: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    encoder = load_encoder(str(save_tiny_bert(tmp_path / "bert")))
    runs.save_run(
        tmp_path / "run", "matcher", {"w": torch.arange(3.0)}, {"config": {"dim": 3}}, encoder
    )
    (tmp_path / "run").rename(tmp_path / "moved")
    run = runs.open_run(tmp_path / "moved", "matcher")
    assert run.weights["w"].tolist() == [0, 1, 2]
    assert run.info["config"] == {"dim": 3}
    assert load_encoder(str(tmp_path / "moved")).fingerprint == encoder.fingerprint
    model = AutoModel.from_pretrained(tmp_path / "moved" / "encoder")
    assert references.fingerprint(model) == encoder.fingerprint
    assert AutoTokenizer.from_pretrained(tmp_path / "moved" / "encoder")("a b", padding=False)[
        "input_ids"
    ] == [2, 5, 6, 3]


def test_an_unfinished_or_damaged_run_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    runs.save_run(run, "matcher", {"w": torch.ones(2)}, {})
    with pytest.raises(DataError, match="expected a run of kind 'other', got 'matcher'"):
        runs.open_run(run, "other")
    file = run / "matcher.safetensors"
    whole = file.read_bytes()
    for position in range(0, len(whole), 7):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(DataError, match="sha256"):
            runs.open_run(run, "matcher")
    (run / "run.json").unlink()
    with pytest.raises(DataError, match="not a finished vg run") as caught:
        runs.open_run(run, "matcher")
    assert caught.value.code == Exit.NO_INPUT


def test_a_mismatch_prints_both_sides() -> None:
    same = {"ref": "a", "fingerprint": "1"}
    references.check_same("backbone", same, dict(same), "x")
    with pytest.raises(DataError, match=r"the backbone a \(1\), expected b \(2\)"):
        references.check_same("backbone", same, {"ref": "b", "fingerprint": "2"}, "x")


@pytest.mark.parametrize(
    "edit",
    [('"dim":3', '"dim":4'), ('"files":{', '"files":3,"f":{'), ('"config":{', '"config":3,"c":{')],
)
def test_an_edited_run_is_refused(tmp_path: Path, edit: tuple[str, str]) -> None:
    runs.save_run(tmp_path, "matcher", {"w": torch.ones(2)}, {"config": {"dim": 3}})
    runs.open_run(tmp_path, "matcher")
    file = tmp_path / "run.json"
    before = file.read_text()
    file.write_text(before.replace(*edit))
    assert file.read_text() != before
    with pytest.raises(DataError, match="was edited or damaged") as caught:
        runs.open_run(tmp_path, "matcher")
    assert caught.value.code == Exit.DATA


def test_a_run_of_a_newer_format_is_refused_and_one_without_a_format_opens(tmp_path: Path) -> None:
    runs.save_run(tmp_path, "matcher", {"w": torch.ones(2)}, {"config": {"dim": 3}})
    file = tmp_path / "run.json"
    body = json.loads(file.read_text())
    del body["sha256"]
    assert next(iter(body)) == "format"
    assert body.pop("format") == 1

    def write(body: dict[str, Any]) -> None:
        seal = hashlib.sha256(dumps(body)).hexdigest()
        file.write_bytes(dumps(body | {"sha256": seal}))

    write(body)  # as runs written before the key
    assert runs.open_run(tmp_path, "matcher").info == body
    write({"format": 2, "kind": "unheard of", "versions": {"vgtools": "3.1"}})
    with pytest.raises(DataError) as caught:
        runs.read_run(tmp_path, "matcher")
    assert str(caught.value) == (
        f"{file}: format 2 was written by vg 3.1; "
        f"this vg ({__version__}) reads format 1; upgrade vgtools"
    )
    assert caught.value.code == Exit.DATA


def test_the_format_of_a_run_is_sealed(tmp_path: Path) -> None:
    runs.save_run(tmp_path, "matcher", {}, {})
    file = tmp_path / "run.json"
    file.write_text(file.read_text().replace('"format":1,', ""))
    with pytest.raises(DataError, match="was edited or damaged"):
        runs.read_run(tmp_path, "matcher")


def test_a_negative_number_of_heads_is_refused(tmp_path: Path) -> None:
    folder = save_tiny_bert(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    for heads in (-1, -2):
        (folder / "config.json").write_text(json.dumps(config | {"num_attention_heads": heads}))
        with pytest.raises(DataError, match=f'"num_attention_heads": .* at least 1, got {heads}'):
            load_encoder(str(folder))


@pytest.mark.parametrize("spread", [1e308, 11, -0.1])
def test_new_weights_of_too_large_a_spread_are_refused(tmp_path: Path, spread: float) -> None:
    config = save_tiny_bert(tmp_path) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"initializer_range": spread}))
    for load in (load_encoder, load_masked_lm):
        with pytest.raises(DataError, match=r'config\.json: "initializer_range"') as error:
            load(str(tmp_path))
        assert error.value.code == Exit.DATA


def test_more_layers_than_any_encoder_has_are_refused_before_they_are_built(tmp_path: Path) -> None:
    for load, folder in ((load_encoder, save_tiny_bert(tmp_path)), (load_teacher, tmp_path / "c")):
        if load is load_teacher:
            save_tower(folder)
        config = json.loads((folder / "config.json").read_text())
        for layers in (1001, 2**64):
            (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))
            with pytest.raises(
                DataError, match=r'config\.json: "num_hidden_layers": expected at most'
            ):
                load(str(folder))


def test_the_wrong_type_of_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"expected a text encoder, .* got the image backbone builtin:efficientnet-lite0",
    ) as caught:
        load_encoder("builtin:efficientnet-lite0")
    assert caught.value.code == Exit.USAGE
    with pytest.raises(DataError, match="names no architecture"):
        backbone.load_backbone(str(save_tiny_bert(tmp_path)))


@pytest.mark.parametrize(
    ("error", "reason", "code"),
    [
        (OSError(errno.ENOENT, "x"), "No such file or directory", Exit.CANNOT_CREATE),
        (OSError(errno.ENOSPC, "x"), "No space left on device; free some space", Exit.IO),
        (
            SafetensorError("I/O error: Permission denied (os error 13)"),
            "Permission denied",
            Exit.CANNOT_CREATE,
        ),
        (
            SafetensorError("I/O error: No space left on device (os error 28)"),
            "No space left on device; free some space",
            Exit.IO,
        ),
        (SafetensorError("InvalidHeader"), "InvalidHeader", Exit.CANNOT_CREATE),
    ],
)
def test_only_a_full_disk_asks_for_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str, code: Exit
) -> None:
    encoder = load_encoder(str(save_tiny_bert(tmp_path / "bert")))

    def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(encoder.model, "save_pretrained", failing)
    with pytest.raises(DataError, match=f"cannot be written: {reason}") as caught:
        save_pretrained(tmp_path / "out", encoder)
    assert caught.value.code == code
    assert ("free some space" in str(caught.value)) == ("space" in reason)


def test_a_tokenizer_with_an_id_far_beyond_its_entries_is_refused(tmp_path: Path) -> None:
    folder = save_tiny_bert(tmp_path / "bert")
    body = json.loads((folder / "tokenizer.json").read_text())
    body["model"]["vocab"]["zzz"] = 2**31
    (folder / "tokenizer.json").write_text(json.dumps(body))
    with pytest.raises(DataError, match=r"tokenizer\.json: .* has the id 2147483648 and") as caught:
        references.load_tokenizer(str(folder))
    assert caught.value.code == Exit.DATA


@torch.no_grad()
def test_a_visualbert_without_regions_is_the_bert_in_it(tmp_path: Path) -> None:
    folder = save_visualbert(tmp_path / "visualbert")
    whole = load_encoder(str(folder), attention="eager", regions=True).model
    ids = torch.randint(10, 20, (2, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    # VisualBERT gives words the segment 0, as BERT does
    expected = whole(input_ids=ids, attention_mask=mask, token_type_ids=0 * ids).last_hidden_state
    bert = load_encoder(str(folder)).model
    assert (whole.config.model_type, bert.config.model_type) == ("visual_bert", "bert")
    found = bert(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    tuned = load_with_head(str(folder), "SequenceClassification", 0, {"num_labels": 3}).model
    assert tuned.config.num_labels == 3
    states = tuned.base_model(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(states, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("heads", [True, False])
@torch.no_grad()
def test_a_lxmert_is_its_layers_of_language(tmp_path: Path, heads: bool) -> None:
    from transformers import LxmertConfig, LxmertForPreTraining, LxmertModel

    encoder = save_tiny_bert(tmp_path / "text")
    rows = json.loads((encoder / "config.json").read_text())["vocab_size"]
    torch.manual_seed(0)
    config = LxmertConfig(
        vocab_size=rows, hidden_size=16, num_attention_heads=2, intermediate_size=32, l_layers=3,
        x_layers=2, r_layers=1, visual_feat_dim=4, initializer_range=0.4,
        max_position_embeddings=32,
    )  # fmt: skip
    made = LxmertForPreTraining(config) if heads else LxmertModel(config)
    folder = tmp_path / "lxmert"
    made.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((encoder / "tokenizer.json").read_bytes())
    whole = (made.lxmert if heads else made).eval()
    ids = torch.randint(5, rows, (2, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    seen = {"visual_feats": torch.randn(2, 3, 4), "visual_pos": torch.rand(2, 3, 4)}
    output = whole(input_ids=ids, attention_mask=mask, output_hidden_states=True, **seen)
    # After each layer of language, then after each that sees the regions.
    expected = output.language_hidden_states[2]
    bert = load_encoder(str(folder))
    assert (bert.layers, bert.model.config.model_type) == (3, "bert")
    found = bert.model(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    tuned = load_with_head(str(folder), "SequenceClassification", 0, {"num_labels": 3}).model
    states = tuned.base_model(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(states, expected, rtol=1e-5, atol=1e-5)
    # The pooler reads the layers that see the regions: here it is a new one.
    assert not torch.equal(tuned.base_model.pooler.dense.weight, whole.pooler.dense.weight)
    again = load_with_head(str(folder), "SequenceClassification", 0, {"num_labels": 3}).model
    assert torch.equal(tuned.base_model.pooler.dense.weight, again.base_model.pooler.dense.weight)
    with pytest.raises(DataError, match="is a LXMERT, whose masked") as caught:
        load_masked_lm(str(folder))
    assert caught.value.code == Exit.CONFIG


@torch.no_grad()
def test_an_oscar_is_a_bert_beside_its_embedding_of_regions(tmp_path: Path) -> None:
    folder = save_tiny_bert(tmp_path)
    ids = torch.randint(5, 20, (2, 7), generator=torch.Generator().manual_seed(0))
    expected = load_encoder(str(folder)).model(input_ids=ids).last_hidden_state
    tensors = load_file(folder / "model.safetensors")
    more = {"bert.img_embedding.weight": torch.ones(8, 4), "bert.img_embedding.bias": torch.ones(8)}
    named = {name if name.startswith("bert.") else f"bert.{name}": t for name, t in tensors.items()}
    save_file(named | more, folder / "model.safetensors", {"format": "pt"})
    found = load_encoder(str(folder)).model(input_ids=ids).last_hidden_state
    assert torch.equal(found, expected)


@pytest.mark.parametrize("named", ["eager", "sdpa", "flash_attention_2"])
@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
@torch.inference_mode()
def test_what_is_masked_changes_nothing_whatever_attention_the_checkpoint_names(
    tmp_path: Path, key: str, named: str
) -> None:
    folder = save_tiny_bert(tmp_path)
    body = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(body | {key: named}))
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 20, (2, 7), generator=generator)
    states = torch.randn(2, 7, 8, generator=generator)
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[1, 3:] = False
    others, other_states = ids.clone(), states.clone()
    others[~mask], other_states[~mask] = 4, 9.0
    networks = [
        load_encoder(str(folder)).model,
        load_masked_lm(str(folder)).model.base_model.eval(),
        load_with_head(str(folder), "SequenceClassification", 0, {}).model.base_model.eval(),
    ]
    for network in networks:
        for weight in network.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))
        seen, unseen = (
            network(input_ids=x, attention_mask=mask.long()).last_hidden_state
            for x in (ids, others)
        )
        torch.testing.assert_close(unseen[mask], seen[mask], rtol=0, atol=1e-6)
        layers = LayerStack(network).eval()
        copied, other = layers(states, mask), layers(other_states, mask)
        torch.testing.assert_close(other[mask], copied[mask], rtol=0, atol=1e-6)
        assert network.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    "says",
    [
        {"return_dict": False},
        {"output_attentions": True},
        {"output_hidden_states": True},
        {"chunk_size_feed_forward": 4},
    ],
)
def test_a_network_returns_what_is_asked_for_not_what_its_config_says(
    tmp_path: Path, says: dict[str, bool]
) -> None:
    folder = save_tiny_bert(tmp_path)
    body = json.loads((folder / "config.json").read_text())
    ids = torch.arange(5, 12)[None]
    expected = load_encoder(str(folder)).model(input_ids=ids).last_hidden_state
    (folder / "config.json").write_text(json.dumps(body | says))
    for network in (
        load_encoder(str(folder)).model,
        load_masked_lm(str(folder)).model.base_model.eval(),
        load_with_head(str(folder), "SequenceClassification", 0, {}).model.base_model.eval(),
    ):
        found = network(input_ids=ids)
        assert torch.equal(found.last_hidden_state, expected)
        assert found.attentions is None
        assert found.hidden_states is None


def test_an_architecture_without_fused_attention_is_loaded(tmp_path: Path) -> None:
    from transformers import MPNetConfig, MPNetModel

    folder = save_tiny_bert(tmp_path)
    shape = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    MPNetModel(MPNetConfig(vocab_size=21, hidden_size=8, **shape)).save_pretrained(folder)
    assert load_encoder(str(folder)).model.config._attn_implementation == "eager"


def test_files_of_the_user_next_to_a_network_are_not_touched_or_claimed(tmp_path: Path) -> None:
    encoder = load_encoder(str(save_tiny_bert(tmp_path / "bert")))
    mine = tmp_path / "run" / "encoder" / ".env"
    for number in range(2):
        runs.save_run(tmp_path / "run", "toy", {"w": torch.ones(1)}, {}, encoder)
        if not number:
            mine.write_text("secret")
            mine.chmod(0o600)
    assert mine.stat().st_mode & 0o777 == 0o600
    named = runs.read_run(tmp_path / "run")["files"]
    assert "encoder/.env" not in named
    assert {"encoder/model.safetensors", "encoder/config.json", "encoder/tokenizer.json"} <= {
        *named
    }
    mine.unlink()
    assert runs.open_run(tmp_path / "run", "toy").info["files"] == named


def test_what_a_killed_writer_of_weights_left_goes_with_the_next_write(tmp_path: Path) -> None:
    """safetensors writes under a name that only it knows."""
    encoder = load_encoder(str(save_tiny_bert(tmp_path / "bert")))
    folder = tmp_path / "run" / "encoder"
    own.claim(tmp_path / "run")
    work = folder / ".network.vg.tmp"
    work.mkdir(parents=True)
    (folder / ".complete.vg.tmp").touch()
    for name in (".tmpjzyZP4", "config.json"):
        (work / name).write_text("half")
    save_pretrained(folder, encoder)
    names = {file.name for file in folder.rglob("*")}
    named = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert names == named | {"complete"}


def test_a_model_of_the_user_in_a_folder_of_a_run_is_not_replaced(tmp_path: Path) -> None:
    """Without the sign of a killed writer, or its end, nothing shows that vg began it."""
    encoder = load_encoder("builtin:minilm")
    folder = tmp_path / "run" / "encoder"
    folder.mkdir(parents=True)
    own.claim(tmp_path / "run")
    (folder / "model.safetensors").write_text("mine")
    (folder / "notes.txt").write_text("mine, too")
    with pytest.raises(DataError, match=r"model\.safetensors: exists, and vg does not") as error:
        save_pretrained(folder, encoder)
    assert error.value.code == Exit.CANNOT_CREATE
    assert (folder / "model.safetensors").read_text() == "mine"
    (folder / ".complete.vg.tmp").touch()  # as a killed writer leaves it
    save_pretrained(folder, encoder)
    assert (folder / "complete").read_text() == encoder.fingerprint
    assert not (folder / ".complete.vg.tmp").exists()
    assert (folder / "notes.txt").read_text() == "mine, too"


def test_settings_of_a_tokenizer_that_the_user_put_next_to_a_network_stay(tmp_path: Path) -> None:
    encoder = load_encoder(str(save_tiny_bert(tmp_path / "bert")))
    folder = tmp_path / "run" / "encoder"
    own.claim(tmp_path / "run")
    save_pretrained(folder, encoder)
    settings = folder / "tokenizer_config.json"
    assert settings in sealed.own_files_below(folder)
    settings.write_text('{"mine": 1}')
    save_pretrained(folder, encoder)
    assert settings.read_text() == '{"mine": 1}'
    assert settings not in sealed.own_files_below(folder)
    settings.unlink()
    save_pretrained(folder, encoder)
    assert settings in sealed.own_files_below(folder)
    own.remove_tree(folder, sealed.is_own_file)
    assert not folder.exists()


def test_a_pooler_that_a_checkpoint_lacks_is_always_the_same(tmp_path: Path) -> None:
    """Runs save it, and write the same bytes again; the state of the caller's draws is kept."""
    folder = save_encoder(tmp_path / "bert")
    weights = load_file(folder / "model.safetensors")
    bare = {name: value for name, value in weights.items() if "pooler" not in name}
    assert len(bare) < len(weights)
    save_file(bare, folder / "model.safetensors", {"format": "pt"})
    drawn, poolers = [], []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found = load_encoder(str(folder), regions=False)
        poolers.append(found.model.pooler.dense.weight.tolist())
        drawn.append(torch.rand(1).item())
    torch.manual_seed(1)
    assert poolers[0] == poolers[1]
    assert drawn[0] == torch.rand(1).item() != drawn[1]


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_weights_of_more_layers_than_the_configuration_reads_are_refused(
    tmp_path: Path, kind: str
) -> None:
    folder = save_encoder(tmp_path / "encoder", kind)
    config = folder / "config.json"
    body = json.loads(config.read_text())
    name = "n_layers" if kind == "distilbert" else "num_hidden_layers"
    config.write_text(json.dumps(body | {name: body[name] - 1}))
    for load in (load_encoder, load_masked_lm):
        with pytest.raises(DataError, match=f"the weights have {body[name]} layers") as error:
            load(str(folder))
        assert error.value.code == Exit.DATA


@pytest.mark.parametrize("side", ["text", "vision"])
def test_both_sides_of_a_dual_encoder_read_all_layers(tmp_path: Path, side: str) -> None:
    for family in FAMILIES:
        folder = save_dual(tmp_path / family, family)
        config = folder / "config.json"
        body = json.loads(config.read_text())
        body[f"{side}_config"]["num_hidden_layers"] = 1
        config.write_text(json.dumps(body))
        with pytest.raises(DataError, match='"num_hidden_layers": is 1, and the weights have 2'):
            load_dual(str(folder))


def test_a_system_that_writes_in_parts_leaves_the_whole_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load_encoder(str(save_encoder(tmp_path / "from", "bert")))
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[: len(data) // 2 or 1]))
    save_pretrained(tmp_path / "to", encoder)
    assert (tmp_path / "to/complete").read_text() == encoder.fingerprint
