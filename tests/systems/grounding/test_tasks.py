"""Tasks on a grounded encoder: what it reads, which images it sees, what is learnt and saved."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.tiny import BACKBONE, save_encoder
from tests.tiny import grounding as tiny
from tests.tiny.grounded_runs import CAPTIONS, WIDTH, save_bank, save_grounded
from tests.tiny.runs import hashes, refused
from tests.tiny.tasks import learner_of, save_sst2
from vgtools import cli
from vgtools.io.errors import DataError, Exit
from vgtools.models.encoder import load_masked_lm
from vgtools.systems.grounding import keys
from vgtools.systems.grounding import tasks as g
from vgtools.systems.grounding.model import (
    CrossModal,
    GroundedEncoder,
    GroundingConfig,
)
from vgtools.tasks.dispatch import encode
from vgtools.tasks.examples import Example
from vgtools.tasks.image_controls import Choice
from vgtools.tasks.kinds.tag import TaggedExample
from vgtools.tasks.sequences import InputsWithRows
from vgtools.tasks.table import find_task
from vgtools.training import session


def opened(folder: Path, choice: Choice = "found") -> g.GroundedTextImages:
    return g.open_images(
        str(folder / "run"), str(folder / "feats.npy"), str(folder / "scene.faiss"), choice
    )


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scene")
    save_grounded(folder, "scene")
    return folder


def test_albert_base_has_the_parameters_of_the_design() -> None:
    """f 11,092,992 + g 7,087,872 + placeholder 768 + two classes 1,538; 16 images add W, LN, e."""
    from transformers import AlbertConfig, AlbertForMaskedLM

    config = AlbertConfig(
        hidden_size=768, num_attention_heads=12, intermediate_size=3072, embedding_size=128,
        vocab_size=30000,
    )  # fmt: skip
    counts = []
    with torch.device("meta"):  # shapes without numbers
        text = AlbertForMaskedLM(config).base_model
        for shape in (
            GroundingConfig("none", 0, 0, 0, 12),
            GroundingConfig("scene", 16, 1, 1280, 12),
        ):
            encoder = GroundedEncoder(text, CrossModal(text, shape))
            tuner = g.GroundedTuner(encoder, find_task("rte"))
            counts.append(sum(p.numel() for p in tuner.parameters() if p.requires_grad))
    assert counts == [18_183_170, 18_183_170 + 1280 * 768 + 768 + 2 * 768 + 16 * 768]


EXAMPLES = [
    Example("0", "the dog chases", "bam", 1),
    Example("1", "bam den", "a truck", 0),
    Example("2", "bam", "den", 1),
]


def batch_of(folder: Path, shown: g.GroundedTextImages, task: str = "rte", **more: Any) -> Any:
    learner = learner_of(g.GroundedLearner, task, folder / "run", shown)
    tuner, encoder = learner.new(3)
    text = encode(find_task(task), EXAMPLES, encoder.tokenizer, max_length=20)
    inputs = InputsWithRows(text, shown.rows_for(EXAMPLES, "dev"))
    return tuner, learner.collate(tuner, inputs, np.arange(3), **more)


def test_images_are_found_by_both_texts_once(scene: Path) -> None:
    """By brute force over captions: mean vectors of content words, cosine, ties to the lower."""
    shown = opened(scene)
    rows = shown.rows_for(EXAMPLES, "train")

    def mean(text: str) -> Any:
        known = [tiny.VECTORS[w] for w in text.split() if w in tiny.VECTORS and w not in tiny.STOP]
        return np.mean(known, 0) if known else np.zeros(2)

    captions = np.array([mean(text) for text in CAPTIONS])
    norms = np.linalg.norm(captions, axis=1)
    has_key = np.flatnonzero(norms)
    features = [7, 5, 3, 1, 6, 4, 2, 0]
    for example, found in zip(EXAMPLES, rows.tolist(), strict=True):
        query = mean(f"{example.text} {example.pair}")
        if not query.any():
            assert found == [-1, -1, -1]
            continue
        scores = captions[has_key] @ query / norms[has_key]
        best = has_key[np.lexsort((has_key, -scores.round(9)))][:3]
        assert found == [features.index(i) for i in best.tolist()]
    assert (rows[2] == -1).all()  # no known word: the placeholder


def test_controls_keep_what_is_not_the_image(scene: Path) -> None:
    examples = [Example(str(i), text) for i, text in enumerate(("dog", "truck", "cat", "car"))]
    found = opened(scene).rows_for(examples, "dev")
    shuffled = opened(scene, "shuffle").rows_for(examples, "dev")
    assert sorted(map(tuple, found)) == sorted(map(tuple, shuffled))
    assert not (found == shuffled).all(1).any()
    drawn = opened(scene, "random")
    many = [Example(str(i), f"dog {i}") for i in range(400)]
    rows = drawn.rows_for(many, "dev")
    assert set(rows.ravel().tolist()) == set(opened(scene).bank.rows.tolist())  # type: ignore[union-attr]
    assert (rows == drawn.rows_for(many, "dev")).all()
    assert (rows != drawn.rows_for(many, "train")).any()
    assert (drawn.rows_for([Example("0", "unknown")], "dev") == -1).all()
    twice = [*examples, *examples]
    again = opened(scene, "shuffle").rows_for(twice, "dev")
    assert again.tolist() == [*shuffled.tolist(), *shuffled.tolist()]
    assert opened(scene, "none").rows_for(examples, "dev").shape == (4, 0)


def test_the_linear_layer_reads_cls(scene: Path) -> None:
    tuner, batch = batch_of(scene, opened(scene))
    tuner.eval()
    assert batch.slots.shape == (3, 3, WIDTH)
    assert batch.slot_mask.tolist() == [[True] * 3, [True] * 3, [False] * 3]
    with torch.no_grad():
        given = (batch.ids, batch.mask.bool(), batch.slots, batch.slot_mask, batch.segments)
        states = tuner.encoder(*given)
        wanted = states[:, 0] @ tuner.head.weight.T + tuner.head.bias
        assert torch.equal(tuner.outputs(batch), tuner.head(states[:, 0]))
        torch.testing.assert_close(tuner.outputs(batch), wanted)
        shape = batch._replace(segments=torch.zeros_like(batch.segments))
        assert not torch.allclose(tuner.outputs(shape), wanted)
        alone = batch._replace(slots=batch.slots[:2, :, :] * 0 + 1, ids=batch.ids[:2],
                               mask=batch.mask[:2], segments=batch.segments[:2],
                               slot_mask=batch.slot_mask[:2])  # fmt: skip
        assert not torch.allclose(tuner.outputs(alone), wanted[:2])


def test_everything_learns(scene: Path) -> None:
    tuner, batch = batch_of(scene, opened(scene))
    loss = tuner(batch)["task"]
    logits = tuner.eval().outputs(batch).detach()
    tuner.train()
    loss.backward()
    silent = [name for name, p in tuner.named_parameters() if p.grad is None or not p.grad.any()]
    # The query of a key's bias is the same for all: softmax does not see it.
    assert all(name.endswith(("key.bias", "token_type_embeddings.weight")) or "position" in name
               for name in silent), silent  # fmt: skip
    assert logits.shape == (3, 2)


def test_without_images_what_images_need_gets_no_gradient(scene: Path) -> None:
    tuner, batch = batch_of(scene, opened(scene, "none"))
    assert batch.slots.shape == (3, 0, 0)
    tuner(batch)["task"].backward()
    cross = tuner.encoder.cross
    assert cross.placeholder.grad.any()
    for weight in (cross.project.weight, cross.norm.weight, cross.ranks):
        assert not weight.grad.any()  # a gradient, but 0: as other processes may have one


def test_a_batch_of_one_shows_the_same_images(scene: Path) -> None:
    tuner, batch = batch_of(scene, opened(scene))
    inputs = InputsWithRows(
        encode(find_task("rte"), EXAMPLES, load_masked_lm(str(scene / "encoder")).tokenizer,
               max_length=20),
        opened(scene).rows_for(EXAMPLES, "dev"),
    )  # fmt: skip
    learner = learner_of(g.GroundedLearner, "rte", scene / "run", opened(scene))
    for number in range(3):
        one = learner.collate(tuner, inputs, np.array([number]))
        assert torch.equal(one.slots[0], batch.slots[number])
    half = learner.collate(tuner, inputs, np.arange(3), part=1, parts=2)
    assert torch.equal(half.slots[0], batch.slots[1])
    assert half.whole == 1.5


def test_words_are_read_by_their_first_token(scene: Path) -> None:
    task = find_task("vuan")
    learner = learner_of(g.GroundedLearner, task, scene / "run", opened(scene))
    tuner, encoder = learner.new(3)
    examples = [TaggedExample("0", "the dog bam", tags=(-1, 1, 0))]
    text = encode(task, examples, encoder.tokenizer, max_length=20)
    inputs = InputsWithRows(text, opened(scene).rows_for(examples, "dev"))
    batch = learner.collate(tuner, inputs, np.arange(1))
    tuner.eval()
    with torch.no_grad():
        logits = tuner.outputs(batch)
        assert logits.shape == (1, batch.ids.shape[1], 2)
        first = [i for i, word in enumerate(text.words.tolist()) if word >= 1]  # type: ignore[attr-defined]
        double = logits[0, first].double().log_softmax(-1)
        wanted = -(double[0, 1] + double[1, 0]) / 2
        assert float(tuner(batch)["task"]) == pytest.approx(float(wanted), rel=1e-5)


def test_choices_are_each_beside_the_images_of_their_beginning(scene: Path) -> None:
    task = find_task("codah")
    learner = learner_of(g.GroundedLearner, task, scene / "run", opened(scene))
    tuner, encoder = learner.new(3)
    examples = [Example("0", "the dog", None, 2, ("bam", "den", "dun", "a b"))]
    text = encode(task, examples, encoder.tokenizer, max_length=20)
    inputs = InputsWithRows(text, learner.shown.rows_for(examples, "dev"))
    batch = learner.collate(tuner.eval(), inputs, np.arange(1))
    with torch.no_grad():
        logits = tuner.outputs(batch)
        assert logits.shape == (1, 4)
        for i in range(4):
            row = (batch.ids[:, i], batch.mask[:, i].bool(), batch.slots, batch.slot_mask)
            states = tuner.encoder(*row, batch.segments[:, i])
            torch.testing.assert_close(tuner.head(states[:, 0])[:, 0], logits[:, i])


def test_a_saved_model_gives_the_same_outputs(scene: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModel

    tuner, batch = batch_of(scene, opened(scene))
    learner = learner_of(g.GroundedLearner, "rte", scene / "run", opened(scene))
    _, encoder = learner.new(3)
    learner.save(tuner, encoder, tmp_path / "model")
    text = AutoModel.from_pretrained(tmp_path / "model", add_pooling_layer=False)
    shape = GroundingConfig(
        **json.loads((tmp_path / "model/grounding.json").read_text())["grounding"]
    )
    other = g.GroundedTuner(GroundedEncoder(text, CrossModal(text, shape)), find_task("rte"))
    weights = load_file(tmp_path / "model/grounding.safetensors")
    named = {
        f"encoder.{name}" if name.startswith("cross.") else name: tensor
        for name, tensor in weights.items()
    }
    missing, unexpected = other.load_state_dict(named, strict=False)
    assert unexpected == []
    assert all(name.startswith("encoder.text.") for name in missing)
    with torch.no_grad():
        assert torch.equal(other.eval().outputs(batch), tuner.eval().outputs(batch))


def test_a_strategy_that_shows_no_image_takes_no_index(tmp_path: Path) -> None:
    run = save_grounded(tmp_path, "i2t")
    with pytest.raises(DataError, match=r"'i2t', which shows no image .* leave out --feats") as e:
        g.open_images(str(run), "x.npy", "x.faiss", "found")
    assert e.value.code == Exit.USAGE
    shown = g.open_images(str(run), None, None, "found")
    assert shown.config() == {}
    assert shown.rows_for(EXAMPLES, "dev").shape == (3, 0)


def test_other_features_or_words_are_refused(scene: Path, tmp_path: Path) -> None:
    run = str(scene / "run")
    with pytest.raises(DataError, match="'scene': expected --index FILE and --feats") as error:
        g.open_images(run, str(scene / "feats.npy"), None, "found")
    assert error.value.code == Exit.USAGE
    index, feats = save_bank(tmp_path, BACKBONE | {"fingerprint": "c" * 64})
    with pytest.raises(
        DataError, match=r"with the backbone .*\(c{64}.*expected .*\(b{64}"
    ) as error:
        g.open_images(run, feats, index, "found")
    assert error.value.code == Exit.DATA
    other = {**tiny.VECTORS, "dog": (0, 1)}
    words = tiny.save_vectors(tmp_path / "other.npy", other)
    bank = keys.caption_keys(
        [(1, {"image": "image000", "text": "a dog"})], tiny.vectors(other), tiny.STOP
    )
    index = str(tiny.save_index(tmp_path / "another.faiss", bank, "captions", words))
    with pytest.raises(DataError, match=r"with the words .*the run has .*\(fingerprint\)") as error:
        g.open_images(run, str(scene / "feats.npy"), index, "found")
    assert error.value.code == Exit.DATA


FLAGS = ["--epochs", 2, "--max-length", 20, "--batch-size", 8, "--device", "cpu", "-q"]


def tune(folder: Path, data: Path, output: Path, *flags: object, task: str = "sst-2") -> int:
    words = ["finetune", task, data, "-e", folder / "run", "-o", output, *FLAGS, *flags]
    return cli.run(list(map(str, words)))


def test_finetune_with_images(
    scene: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = save_sst2(tmp_path / "data")
    images = ["--index", scene / "scene.faiss", "--feats", scene / "feats.npy"]
    whole = tmp_path / "whole"
    assert tune(scene, data, whole, *images, "--seeds", 2) == 0
    out = capfd.readouterr()
    assert [(r["seed"], r["epoch"]) for r in map(json.loads, out.out.splitlines())] == [
        (9595, 1), (9595, 2), (9596, 1), (9596, 2),
    ]  # fmt: skip
    assert out.err == ""
    info = json.loads((whole / "run.json").read_text())
    assert info["config"]["images"] == "found"
    model = whole / "seed-9596" / "model"
    assert {p.name for p in model.iterdir()} >= {
        "model.safetensors", "config.json", "tokenizer.json", "grounding.safetensors",
        "grounding.json", "complete",
    }  # fmt: skip
    assert tune(scene, data, whole, *images, "--seeds", 2, "--images", "random") == Exit.CONFIG
    refused(capfd, "images", "found", "random")


@pytest.mark.parametrize("way", ["signal", "kill"])
def test_resumed_equals_unbroken(
    scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    data = save_sst2(tmp_path / "data")
    images = ["--index", scene / "scene.faiss", "--feats", scene / "feats.npy", "--seeds", 2]
    assert tune(scene, data, tmp_path / "whole", *images) == 0
    real = g.GroundedTuner.forward
    calls = 0

    def interrupted(self: Any, batch: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 8:  # of 2 seeds with 2 epochs of 3 steps
            if way == "kill":
                raise KeyboardInterrupt
            signal.raise_signal(signal.SIGTERM)
        return real(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(g.GroundedTuner, "forward", interrupted)
        patch.setattr(session, "SAVE_SECONDS", 600 if way == "signal" else -1)
        code = tune(scene, data, tmp_path / "cut", *images)
        assert code == (130 if way == "kill" else 75)
    assert (tmp_path / "cut" / "checkpoint.safetensors").exists()
    assert tune(scene, data, tmp_path / "cut", *images) == 0
    assert hashes(tmp_path / "cut") == hashes(tmp_path / "whole")


def test_finetune_with_the_placeholder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    save_grounded(tmp_path, "both")
    data = save_sst2(tmp_path / "data")
    assert tune(tmp_path, data, tmp_path / "out") == 0
    assert "images" not in json.loads((tmp_path / "out" / "run.json").read_text())["config"]
    assert tune(tmp_path, data, tmp_path / "x", "--index", "x.faiss", "--feats", "x.npy") == 2
    refused(capfd, "shows no image")


def test_a_plain_encoder_takes_no_index(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    save_encoder(tmp_path / "run", positions=64)
    data = save_sst2(tmp_path / "data")
    assert tune(tmp_path, data, tmp_path / "x", "--index", "x.faiss", "--feats", "x.npy") == 2
    refused(capfd, "--index", "is for runs of vg pretrain grounding")
    assert tune(tmp_path, data, tmp_path / "x", "--images", "none") == 2
    refused(capfd, "--images", "chooses among images")


def test_it_learns_eight_rows_by_their_images(scene: Path) -> None:
    """The texts are all the same to the encoder; only their images tell the label."""
    task = find_task("sst-2")
    learner = learner_of(g.GroundedLearner, task, scene / "run", opened(scene))
    tuner, encoder = learner.new(3)
    examples = [Example(str(i), "bam", label=i % 2) for i in range(8)]
    text = encode(task, examples, encoder.tokenizer, max_length=20)
    images = np.array([[0, 1, 2], [3, 4, 5]] * 4)
    batch = learner.collate(tuner, InputsWithRows(text, images), np.arange(8))
    optimizer = torch.optim.Adam(tuner.parameters(), 1e-3)
    for _ in range(100):
        optimizer.zero_grad()
        loss = tuner(batch)["task"]
        loss.backward()
        optimizer.step()
    assert tuner.eval().outputs(batch).argmax(1).tolist() == [0, 1] * 4
    assert float(loss.detach()) < 0.1
