"""What a device computes, against float64 on the CPU, within the error of the CPU's own float32.

`tests/faults/test_devices.py` runs every command that has `--device`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.precision import allowed_error, assert_as_exact_as
from tests.tiny import save_encoder, text
from tests.tiny.devices import GPU, ON_GPU, gpu_memory, on_devices
from tests.tiny.images import save_backbone
from tests.tiny.lm import SHAPE, make_tokenizer
from vgtools.cli import run
from vgtools.images.featurizer import Featurizer
from vgtools.models.backbone import load_backbone
from vgtools.models.encoder import Encoder, load_encoder
from vgtools.models.masked_lm import new_lm
from vgtools.models.packed import PackedEncoder
from vgtools.models.references import pick_device
from vgtools.retrieval.index import open_index
from vgtools.systems.vokenization.voken_lm import (
    VisuallySupervisedLM,
    VokenBatch,
    VokenLMConfig,
    VokenMasking,
    collate,
    halve,
)
from vgtools.systems.vokenization.vokenize import Vokenizer, load_for
from vgtools.tasks.finetune import FineTuner, predict
from vgtools.tasks.sequences import TaskInputs
from vgtools.text.blocks import Corpus, Packed
from vgtools.text.tokens import tokenize
from vgtools.training.loop import TrainConfig, TrainState, own_tensors, train

BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def states(encoder: Encoder, tokens: Any, pack: int = 200, constant: bool = False) -> Tensor:
    packed = PackedEncoder(encoder, 2, pack)
    packed._constant = packed._constant or constant
    lengths = np.diff(tokens.starts)
    parts = list(packed(tokens.ids, tokens.starts[:-1], lengths))
    order = np.argsort(np.concatenate([part.segments for part in parts]), kind="stable")
    rows = [x for part in parts for x in part.tokens.split(lengths[part.segments].tolist())]
    return torch.cat([rows[i] for i in order])


def moved(encoder: Encoder, device: str, dtype: torch.dtype) -> Encoder:
    return replace(encoder, model=copy.deepcopy(encoder.model).to(device, dtype))


# ------------------------------------------------------------------------------------ vokenization


@on_devices
@BOTH
@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_hidden_states(tmp_path: Path, device: str, dtype: torch.dtype, kind: str) -> None:
    encoder = load_encoder(str(save_encoder(tmp_path, kind, positions=64, still=False)))
    tokens = tokenize(encoder.tokenizer, text(40, longest=30))
    exact = states(moved(encoder, "cpu", torch.float64), tokens)
    usual = states(moved(encoder, "cpu", dtype), tokens)
    # As on a GPU, every pack has the same number of rows.
    found = states(moved(encoder, device, dtype), tokens, constant=True)
    assert found.device.type == device
    assert_as_exact_as(found, usual, exact, dtype)


@on_devices
@pytest.mark.parametrize("k", [1, 4])
def test_vokens(tiny: Path, device: str, k: int) -> None:
    index = open_index(str(tiny / "vg.faiss"))
    texts = text(60)
    usual = Vokenizer(load_for(index, str(tiny / "run")), index, k=k)
    tokens = usual.tokenize(texts)
    (queries,) = usual.embed(tokens)
    plain = queries.vectors[np.argsort(queries.places)]
    hidden = states(moved(usual.matcher.encoder, "cpu", torch.float64), tokens)
    exact = F.normalize(copy.deepcopy(usual.matcher.matcher.text).double()(hidden), dim=1)
    assert index.bank is not None
    bank = torch.from_numpy(np.array(index.bank)).double().T
    scores = (exact @ bank).numpy()
    error = allowed_error(plain.double() @ bank, scores)
    matcher = load_for(index, str(tiny / "run"), device=device)
    found = Vokenizer(matcher, open_index(str(tiny / "vg.faiss")), k=k)(texts)
    # Whatever was chosen is as relevant as the best, but for the error of either score.
    best = -np.sort(-scores, axis=1)[:, :k]
    chosen = np.take_along_axis(scores, found.vokens.astype(int), axis=1)
    assert (chosen >= best - 2 * error).all()
    np.testing.assert_allclose(found.scores, chosen, rtol=0, atol=error + 5e-5)  # four decimals


@pytest.mark.parametrize("device", [GPU])
def test_memory_of_a_gpu_that_runs_out_halves_the_packs(tmp_path: Path, device: str) -> None:
    encoder = load_encoder(str(save_encoder(tmp_path)), device=device)
    tokens = tokenize(encoder.tokenizer, text(8000))
    expected = states(encoder, tokens, 1 << 12)
    packed = PackedEncoder(encoder, 2, pack=1 << 20)
    with gpu_memory(96):  # of which cuBLAS takes 32 on some GPUs
        parts = packed(tokens.ids, tokens.starts[:-1], np.diff(tokens.starts))
        count = sum(len(part.tokens) for part in parts)
    assert packed.halved
    assert packed.pack < 1 << 20
    assert count == len(expected)


# ---------------------------------------------------------------------------------------- training


def corpus() -> Corpus:
    numbers = np.arange(600)
    ids = 5 + numbers % (make_tokenizer().get_vocab_size() - 5)
    return Corpus([Packed("file", np.column_stack([ids, numbers % 9]), np.array([600]))], 14)


def model_of(dtype: torch.dtype) -> VisuallySupervisedLM:
    torch.manual_seed(0)
    plain = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    lm = new_lm(SHAPE | plain | {"initializer_range": 0.3}, make_tokenizer())
    return VisuallySupervisedLM(lm, VokenLMConfig(("mlm", "voken_cls"), 9), None, dtype)


def batch_of(device: str = "cpu", count: int = 8) -> VokenBatch:
    vocabulary = make_tokenizer().get_vocab_size()
    recipe = VokenMasking((2,), (3,), 4, 0, vocabulary, 9, block=16)
    numbers = np.arange(count) % len(corpus())
    (batch,) = collate(corpus(), numbers, recipe, 0, device=device)
    return batch


def learned(model: VisuallySupervisedLM, batch: VokenBatch) -> tuple[Tensor, Tensor]:
    """Return the losses, and all gradients."""
    losses = torch.stack([*model(batch).values()])
    losses.sum().backward()
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return losses, torch.cat(gradients)


@on_devices
@BOTH
def test_losses_and_gradients(device: str, dtype: torch.dtype) -> None:
    exact = learned(model_of(torch.float64).double(), batch_of())
    usual = learned(model_of(dtype), batch_of())
    found = learned(model_of(dtype).to(device), batch_of(device))
    for mine, theirs, oracle in zip(found, usual, exact, strict=True):
        assert mine.device.type == device
        assert_as_exact_as(mine, theirs, oracle, dtype)


CONFIG = TrainConfig(epochs=1, steps=9, lr=1e-3, log_every=1, clip=1.0)
WEIGHTS = {"mlm": 1.0, "voken_cls": 0.5}


def batches(device: str) -> Callable[[int, int], Iterator[VokenBatch]]:
    return lambda epoch, first: (batch_of(device) for _ in range(first, 9))


@on_devices
def test_a_training_goes_from_a_cpu_to_a_device_and_back(tmp_path: Path, device: str) -> None:
    file = tmp_path / "state"
    tensors = list[dict[str, Tensor]]()
    for places in (["cpu"], ["cpu", device, "cpu"]):
        state = TrainState()
        for number, place in enumerate(places, 1):
            # In float64 the devices differ by so little that every digit of the state counts.
            model = model_of(torch.float64).double().to(place)
            records = train(model, batches(place), CONFIG, weights=WEIGHTS, state=state)
            for record in records:
                if len(places) > 1 and number < 3 and record["step"] == 3 * number:
                    break
            assert {p.device.type for p in model.parameters()} == {place}
            state.save(file)
            records.close()
            state = TrainState.load(file)
        assert state.step == 9
        tensors.append(own_tensors(model))
    for name, tensor in tensors[0].items():
        torch.testing.assert_close(tensors[1][name], tensor, rtol=0, atol=1e-9)


@pytest.mark.parametrize("device", [GPU])
def test_memory_of_a_gpu_that_runs_out_halves_the_batches(device: str) -> None:
    losses = list[float]()
    for mib in (4096, 96):
        model = model_of(torch.float32).to(device)
        state = TrainState()
        batch = batch_of(device, 8192)
        source = lambda epoch, first, batch=batch: iter([batch])  # noqa: E731
        with gpu_memory(mib):
            (record,) = train(
                model, source, replace(CONFIG, steps=1, log_every=2), weights=WEIGHTS, state=state,
                halve=halve,
            )  # fmt: skip
        losses.append(record["loss"])
        assert (state.notes.get("pieces", 1) > 1) == (mib < 4096)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)  # sums of 130,000 in another order


@on_devices
def test_answers_of_a_finetuned_network(tmp_path: Path, device: str) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 20, 30)
    ids = rng.integers(5, 100, int(lengths.sum())).astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    inputs = TaskInputs(ids, starts, lengths, 1, np.arange(30), None)
    sizes = {k: v for k, v in SHAPE.items() if k != "model_type"}
    torch.manual_seed(0)
    net = BertForSequenceClassification(BertConfig(**sizes, vocab_size=100)).eval()
    found = []
    for place, dtype in ((device, torch.float32), ("cpu", torch.float32), ("cpu", torch.float64)):
        tuner = FineTuner(copy.deepcopy(net), "classify").to(place, dtype)
        found.append(predict(tuner, inputs, 7, place))
    assert_as_exact_as(*found)


# ------------------------------------------------------------------------------------------ images


@on_devices
@pytest.mark.parametrize("pooling", ["mean", "max", "none"])
def test_image_features(tmp_path: Path, device: str, pooling: str) -> None:
    folder = str(save_backbone(tmp_path / "net"))
    pixels = np.random.default_rng(0).integers(0, 255, (5, 3, 224, 224), np.uint8)
    found = []
    for place, dtype in ((device, torch.float32), ("cpu", torch.float32), ("cpu", torch.float64)):
        net = load_backbone(folder, device=place)
        maker = Featurizer(net.model.to(dtype), net.preprocessing, pooling=pooling, batch_size=2)
        size = maker.input_shape[1:]
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            found.append(maker.features(np.ascontiguousarray(pixels[:, :, : size[0], : size[1]])))
    assert_as_exact_as(*found)


# ---------------------------------------------------------------------------------------- --device


@pytest.mark.gpu
@ON_GPU[1]
def test_each_gpu_can_be_named(tiny: Path, tmp_path: Path) -> None:
    source = tmp_path / "text.txt"
    source.write_text("".join(f"{line}\n" for line in text(30)))
    contents = set()
    for name in ("cuda", *(f"cuda:{n}" for n in range(torch.cuda.device_count()))):
        assert pick_device(name).type == "cuda"
        out = tmp_path / f"{name.replace(':', '')}.jsonl"
        args = ["vokenize", source, "--index", tiny / "vg.faiss", "-o", out, "--device", name, "-q"]
        assert run([*map(str, args)]) == 0
        contents.add(out.read_bytes())
    assert len(contents) == 1


@on_devices
def test_what_is_named_is_where_the_numbers_are(tiny: Path, device: str) -> None:
    named = device if device == "cpu" else f"cuda:{torch.cuda.device_count() - 1}"
    index = open_index(str(tiny / "vg.faiss"))
    worker = Vokenizer(load_for(index, str(tiny / "run"), device=named), index)
    (queries,) = worker.embed(worker.tokenize(["bam den"]))
    assert str(queries.vectors.device) == named
