"""Differences of weights by hand; noise of a stated size that transformers opens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BartConfig,
    BartModel,
)

from tests.tiny import save_encoder, save_run_of
from vgtools.io.errors import DataError, Exit
from vgtools.models import weights
from vgtools.models.encoder import load_encoder
from vgtools.models.references import read_weights
from vgtools.models.runs import read_run
from vgtools.models.weights import (
    add_noise,
    compare_encoders,
    difference,
    encoder_weights,
    save_noisy,
)


def test_difference_by_hand_whatever_the_prefix_of_the_names() -> None:
    a = {
        "bert.embeddings.word": torch.tensor([1.0, 2.0]),
        "bert.encoder.0.LayerNorm.gamma": torch.tensor([0.0]),
        "bert.embeddings.position_ids": torch.arange(3),
        "bert.pooler.dense": torch.ones(2),
        "cls.predictions.bias": torch.ones(1),
    }
    b = {
        "embeddings.word": torch.tensor([1.5, 0.5]),
        "encoder.0.LayerNorm.weight": torch.tensor([-1.0]),
        "embeddings.position_ids": torch.arange(3) + 1,
        "pooler.dense": torch.ones(3),
        "cls.predictions.bias": torch.zeros(1),
    }
    found = difference(a, b)
    assert found.by_name == {"embeddings.word": 1.0, "encoder.0.LayerNorm.weight": 1.0}
    assert (found.total, found.numbers, found.alone) == (1.0, 3, ["pooler.dense"])
    b["embeddings.word"] = torch.tensor([1.0, 2.0])
    assert difference(a, b).total == pytest.approx(
        1 / 3
    )  # of all numbers, not the mean of the means
    with pytest.raises(DataError, match="share no parameter"):
        difference(a, {"cls.predictions.bias": torch.zeros(1)})


@pytest.mark.parametrize(
    ("family", "head"),
    [
        ("bert", AutoModelForMaskedLM),
        ("modernbert", AutoModelForMaskedLM),
        ("gpt2", AutoModelForCausalLM),
        ("electra", AutoModelForMaskedLM),
        ("distilbert", AutoModelForMaskedLM),
        ("albert", AutoModelForMaskedLM),
        ("xlm", AutoModelForMaskedLM),
    ],
)
def test_all_weights_of_an_encoder_are_compared_and_changed(family: str, head: Any) -> None:
    """Whatever names its layers have, with a head or without."""
    shape = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    shape |= {"intermediate_size": 16, "hidden_dim": 16, "embedding_size": 4}
    if family == "modernbert":
        shape |= {f"{name}_token_id": 1 for name in ("pad", "bos", "eos", "cls", "sep")}
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **shape)
    headed = head.from_config(config)
    bare = AutoModel.from_config(config)
    base = {name: x for name, x in bare.state_dict().items() if "pooler" not in name}
    with torch.no_grad():
        bare.load_state_dict(headed.base_model.state_dict(), strict=False)
    size = sum(tensor.numel() for tensor in base.values() if tensor.is_floating_point())
    found = difference(headed.state_dict(), base)
    assert (found.numbers, found.total, found.alone) == (size, 0, [])
    noisy = add_noise(base, 0.1, 0)
    assert difference(headed.state_dict(), noisy).total == pytest.approx(0.1, rel=0.2)


def test_of_an_encoder_with_a_decoder_the_encoder_is_compared() -> None:
    shape = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 2, "vocab_size": 30}
    shape |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    net = BartModel(BartConfig(**shape, encoder_ffn_dim=16, decoder_ffn_dim=16))
    for prefix in ("", "model."):
        names = encoder_weights({prefix + name: x for name, x in net.state_dict().items()})
        inner = {f"encoder.{name}" for name in net.encoder.state_dict()}
        assert names.keys() == inner


def test_of_a_dual_encoder_s_own_roberta_the_text_side_is_compared() -> None:
    names = ["text_model.roberta.encoder.layer.0.w", "vision_model.encoder.layers.0.w"]
    found = encoder_weights({name: torch.ones(1) for name in names})
    assert found.keys() == {"encoder.layer.0.w"}


def test_layers_under_unknown_names_are_refused() -> None:
    layers = {"net.blocks.0.mlp": torch.ones(2), "embeddings.word": torch.ones(2)}
    with pytest.raises(
        DataError, match=r"the first net\.blocks\.0\.mlp; their weights would be left"
    ):
        encoder_weights(layers)


def test_of_two_encoders_in_a_checkpoint_the_text_s_is_compared_or_both() -> None:
    a = {
        "text_model.encoder.layers.0.w": torch.zeros(2),
        "vision_model.encoder.layers.0.w": torch.zeros(2),
        "vision_model.encoder.layers.0.b": torch.zeros(7),
    }
    b = a | {"text_model.encoder.layers.0.w": torch.ones(2)}
    assert difference(a, b).by_name == {"encoder.layers.0.w": 1.0}
    assert difference(a, {"encoder.layers.0.w": torch.ones(2)}).total == 1
    changed = add_noise(a, 0.1, 0)
    assert [name for name in a if not torch.equal(changed[name], a[name])] == [
        "text_model.encoder.layers.0.w"
    ]
    # Of others nobody knows which is meant.
    a = {f"{side}.encoder.w": torch.zeros(2) for side in ("question", "context")}
    b = a | {"question.encoder.w": torch.ones(2)}
    assert difference(a, b).by_name == {"context.encoder.w": 0.0, "question.encoder.w": 1.0}
    changed = add_noise(a, 0.1, 0)
    assert not any(torch.equal(changed[name], a[name]) for name in a)


def test_noise_has_the_measured_size_is_seeded_and_leaves_heads_alone() -> None:
    tensors = {
        "bert.encoder.w": torch.ones(400, 500),
        "cls.predictions.w": torch.ones(3),
        "bert.embeddings.ids": torch.arange(4),
    }
    noisy = add_noise(tensors, 6.5e-3, seed=1)
    assert difference(tensors, noisy).total == pytest.approx(6.5e-3, rel=0.01)
    noise = noisy["bert.encoder.w"] - 1
    assert float(noise.std()) == pytest.approx(6.5e-3 * 1.2533, rel=0.01)
    assert abs(float(noise.mean())) < 1e-4
    assert float((noise.abs() < 6.5e-3 * 1.2533).float().mean()) == pytest.approx(
        0.6827, abs=0.005
    )  # a normal distribution's
    assert torch.equal(noisy["cls.predictions.w"], tensors["cls.predictions.w"])
    assert torch.equal(noisy["bert.embeddings.ids"], tensors["bert.embeddings.ids"])
    assert torch.equal(
        add_noise(tensors, 6.5e-3, seed=1)["bert.encoder.w"], noisy["bert.encoder.w"]
    )
    assert not torch.equal(
        add_noise(tensors, 6.5e-3, seed=2)["bert.encoder.w"], noisy["bert.encoder.w"]
    )
    half = {"encoder.w": torch.ones(9, dtype=torch.bfloat16)}
    assert add_noise(half, 0.1, 0)["encoder.w"].dtype == torch.bfloat16


def test_what_is_written_opens_and_is_as_far_away_as_it_says(tmp_path: Path) -> None:
    source, out = save_encoder(tmp_path / "encoder"), tmp_path / "noisy"
    out.mkdir()  # an empty folder is as good as none
    facts = save_noisy(str(source), out, 0.05, seed=3)
    before, after = load_encoder(str(source)), load_encoder(str(out))
    assert after.tokenizer.to_str() == before.tokenizer.to_str()
    assert difference(
        read_weights(str(source))[1], read_weights(str(out))[1]
    ).total == pytest.approx(0.05, rel=0.03)
    assert difference(before.model.state_dict(), after.model.state_dict()).total == pytest.approx(
        0.05, rel=0.03
    )
    info = read_run(out, "noise")
    assert info["noise"]["magnitude"] == 0.05
    assert info["encoder"]["fingerprint"] == facts["fingerprint"] == after.fingerprint
    from transformers import AutoModel

    theirs = AutoModel.from_pretrained(out / "encoder").state_dict()
    ours = encoder_weights(read_weights(str(out))[1])
    assert torch.equal(
        theirs["encoder.layer.0.output.dense.weight"], ours["encoder.layer.0.output.dense.weight"]
    )
    again = save_noisy(str(source), tmp_path / "again", 0.05, seed=3)
    assert again["fingerprint"] == facts["fingerprint"]


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    source = save_encoder(tmp_path / "encoder")
    with pytest.raises(DataError, match="exists and is not a run of vg") as error:
        save_noisy(str(source), source, 0.1, seed=0)
    assert error.value.code == Exit.CANNOT_CREATE
    save_noisy(str(source), tmp_path / "noisy", 0.1, seed=0)
    with pytest.raises(DataError, match="is the encoder itself"):
        save_noisy(str(tmp_path / "noisy"), tmp_path / "noisy", 0.1, seed=0)


def test_a_run_of_another_kind_is_not_overwritten(tmp_path: Path) -> None:
    source = save_encoder(tmp_path / "encoder")
    other = save_run_of(tmp_path / "matcher", source)
    before = {p: p.read_bytes() for p in other.rglob("*") if p.is_file()}
    with pytest.raises(DataError, match="has a run of another kind") as error:
        save_noisy(str(source), other, 0.1, seed=0)
    assert error.value.code == Exit.CANNOT_CREATE
    assert {p: p.read_bytes() for p in other.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("killed", ["save_run", "sync_dir", "rename"])
def test_what_a_kill_left_is_no_obstacle(
    tmp_path: Path, killed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = save_encoder(tmp_path / "encoder")
    whole = save_noisy(str(source), tmp_path / "whole", 0.1, seed=0)["fingerprint"]
    out = tmp_path / "noisy"
    save_noisy(str(source), out, 0.2, seed=1)

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        target = os if killed == "rename" else weights
        patch.setattr(target, killed, stop)
        with pytest.raises(KeyboardInterrupt):
            save_noisy(str(source), out, 0.1, seed=0)
    assert save_noisy(str(source), out, 0.1, seed=0)["fingerprint"] == whole
    assert load_encoder(str(out)).fingerprint == whole
    assert sorted(p.name for p in tmp_path.iterdir()) == ["encoder", "noisy", "whole"]


@pytest.mark.parametrize("name", ["noisy/notes.txt", "noisy/encoder/mine.txt", "noisy.old/x.txt"])
def test_files_of_the_user_in_and_beside_a_noisy_run_stay(tmp_path: Path, name: str) -> None:
    source = save_encoder(tmp_path / "encoder")
    out = tmp_path / "noisy"
    save_noisy(str(source), out, 0.2, seed=1)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    if name.startswith("noisy/"):
        with pytest.raises(
            DataError, match="not of the run, or has changed; choose another"
        ) as caught:
            save_noisy(str(source), out, 0.1, seed=0)
        assert caught.value.code == Exit.CANNOT_CREATE
    else:
        save_noisy(str(source), out, 0.1, seed=0)
    assert (tmp_path / name).read_text() == "mine"


def stamp(path: Path) -> tuple[int, int, int]:
    """Return the facts of a file that reading it leaves alone."""
    found = path.lstat()
    return found.st_ino, found.st_mode, found.st_mtime_ns


@pytest.mark.parametrize("name", ["photos", "encoder/photos", "encoder/config.json", "encoder"])
@pytest.mark.parametrize("kind", ["link", "broken", "folder", "pipe"])
def test_links_and_empty_folders_of_the_user_in_a_noisy_run_stay(
    tmp_path: Path, name: str, kind: str
) -> None:
    source = save_encoder(tmp_path / "encoder")
    out = tmp_path / "noisy"
    save_noisy(str(source), out, 0.2, seed=1)
    mine = out / name
    if mine.exists():
        mine.rename(tmp_path / "moved")
    target = tmp_path / ("moved" if kind == "link" else "gone")
    if kind == "link" and not target.exists():
        target.mkdir()
    if kind == "folder":
        mine.mkdir()
    elif kind == "pipe":
        os.mkfifo(mine)
    else:
        mine.symlink_to(target)
    if name == "encoder" and kind == "folder":
        (mine / "mine").mkdir()
    before = stamp(mine)
    with pytest.raises(DataError, match="not of the run, or has changed; choose") as caught:
        save_noisy(str(source), out, 0.1, seed=0)
    assert caught.value.code == Exit.CANNOT_CREATE
    assert stamp(mine) == before


def test_a_run_json_of_the_user_in_place_of_a_noisy_run_stays(tmp_path: Path) -> None:
    source = save_encoder(tmp_path / "encoder")
    out = tmp_path / "noisy"
    out.mkdir()
    (out / "run.json").write_text("mine")
    with pytest.raises(DataError, match=r"run\.json: exists, and vg does not know it") as caught:
        save_noisy(str(source), out, 0.1, seed=0)
    assert caught.value.code == Exit.CANNOT_CREATE
    assert (out / "run.json").read_text() == "mine"


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_a_bad_file_of_the_source_is_named_not_the_output(tmp_path: Path, name: str) -> None:
    source = save_encoder(tmp_path / "encoder")
    (source / name).unlink(missing_ok=True)
    (source / name).mkdir()
    with pytest.raises(DataError, match=f"encoder/{name}: ") as error:
        save_noisy(str(source), tmp_path / "noisy", 0.1, seed=0)
    assert error.value.code == Exit.NO_INPUT
    assert not (tmp_path / "noisy").exists()


def test_the_second_encoder_is_not_overwritten(tmp_path: Path) -> None:
    source = str(save_encoder(tmp_path / "encoder"))
    other = tmp_path / "noisy"
    save_noisy(source, other, 0.1, seed=0)
    before = (other / "encoder/model.safetensors").read_bytes()
    (tmp_path / "link").symlink_to(other)
    for ref in (other, other / "encoder", tmp_path / "link"):
        with pytest.raises(DataError, match="an encoder that this command reads") as error:
            compare_encoders([source, str(ref)], str(other), 0.5, 0)
        assert error.value.code == Exit.CANNOT_CREATE
    assert (other / "encoder/model.safetensors").read_bytes() == before
