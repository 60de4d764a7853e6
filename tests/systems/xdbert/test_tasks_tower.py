"""Tasks on a CLIP text tower alone: what is read, saved, opened again and refused."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.models.test_clip import plain_tower
from tests.tiny.clip import new_tower, save_tower
from tests.tiny.runs import hashes, refused
from tests.tiny.tasks import learner_of, save_mnli, save_sst2
from vgtools import cli
from vgtools.io.errors import Exit
from vgtools.models.clip import load_teacher
from vgtools.models.encoder import Encoder
from vgtools.systems.xdbert.tasks import HEAD, TowerLearner, TowerTuner
from vgtools.tasks import finetune
from vgtools.tasks.dispatch import encode
from vgtools.tasks.examples import Example
from vgtools.tasks.finetune import TaskBatch
from vgtools.tasks.kinds.tag import TaggedExample
from vgtools.tasks.table import find_task
from vgtools.training import session

START, END = 514, 515
PAIRS = [
    Example("0", "the a", "b", 1),
    Example("1", "the", "the the c d", 0),
    Example("2", "a", "z", 1),
]


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tower(tmp_path_factory.mktemp("tower") / "tower")


def opened(tower: Path, task: str) -> tuple[TowerTuner, Encoder]:
    encoder = load_teacher(str(tower))
    torch.manual_seed(3)
    return TowerTuner(encoder, find_task(task)), encoder


def batch_of(tuner: TowerTuner, encoder: Encoder, task: str, examples: list[Any]) -> TaskBatch:
    inputs = encode(
        find_task(task), examples, encoder.tokenizer, max_length=77, segments=tuner.segments
    )
    return finetune.collate(inputs, np.arange(len(examples)), tuner.pad, tuner.segments)


def head_of(tuner: TowerTuner, states: Tensor) -> Tensor:
    return states @ tuner.head.weight.T.double() + tuner.head.bias.double()


def test_a_pair_is_one_sequence_and_its_last_end_is_read(tower: Path) -> None:
    tuner, encoder = opened(tower, "rte")
    batch = batch_of(tuner, encoder, "rte", PAIRS)
    the, z = (encoder.tokenizer.token_to_id(f"{word}</w>") for word in ("the", "z"))
    sequence = [START, the, END, START, the, the]
    assert batch.ids[1, :6].tolist() == sequence
    assert batch.segments is None
    logits = tuner.outputs(batch)
    for row, mask, found in zip(batch.ids, batch.mask, logits, strict=True):
        ids = row[mask.bool()].tolist()
        assert ids.count(END) == ids.count(START) == 2
        assert ids[-1] == END
        expected = head_of(tuner, plain_tower(new_tower(), ids)[-1])
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    last = [END, START, z, END]
    assert batch.ids[2][batch.mask[2].bool()].tolist()[-4:] == last
    # transformers' own sentence vector is that of the first END: blind to the second text.
    changed = batch.ids.clone()
    changed[:, 4] = torch.tensor([7, 8, 9])
    blind = [tuner.tower(input_ids=ids).text_embeds for ids in (batch.ids[1:], changed[1:])]
    assert torch.equal(blind[0][0], blind[1][0])
    assert not torch.allclose(tuner.outputs(batch._replace(ids=changed)), logits)


def test_choices_have_a_score_each(tower: Path) -> None:
    tuner, encoder = opened(tower, "codah")
    examples = [Example("0", "the a", None, 2, ("b", "the", "c d", "e f g"))]
    batch = batch_of(tuner, encoder, "codah", examples)
    scores = tuner.outputs(batch)
    assert scores.shape == (1, 4)
    for choice in range(4):
        ids = batch.ids[0, choice][batch.mask[0, choice].bool()].tolist()
        expected = head_of(tuner, plain_tower(new_tower(), ids)[-1])
        torch.testing.assert_close(
            scores[0, choice].double(), expected[0].detach(), rtol=1e-5, atol=1e-5
        )


def test_tags_are_read_from_each_token(tower: Path) -> None:
    tuner, encoder = opened(tower, "vuan")
    examples = [TaggedExample("0", "the a b", tags=(-1, 1, 0))]
    batch = batch_of(tuner, encoder, "vuan", examples)
    logits = tuner.outputs(batch)
    expected = head_of(tuner, plain_tower(new_tower(), batch.ids[0].tolist()))
    torch.testing.assert_close(logits[0].double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.isfinite(tuner(batch)["task"])


def test_all_of_the_tower_learns(tower: Path) -> None:
    tuner, encoder = opened(tower, "rte")
    tuner(batch_of(tuner, encoder, "rte", PAIRS))["task"].backward()
    silent = {n for n, p in tuner.named_parameters() if p.grad is None or not p.grad.any()}
    # The bias of a key is the same for all keys: softmax does not see it.
    assert {name for name in silent if not name.endswith("k_proj.bias")} == set()


def test_a_saved_network_gives_the_same_outputs(tower: Path, tmp_path: Path) -> None:
    from transformers import CLIPTextModelWithProjection

    tuner, encoder = opened(tower, "rte")
    batch = batch_of(tuner, encoder, "rte", PAIRS)
    learner_of(TowerLearner, "rte", tower).save(tuner, encoder, tmp_path / "model")
    other = load_teacher(str(tmp_path / "model"))
    again = TowerTuner(other, find_task("rte"))
    again.head.load_state_dict(load_file(tmp_path / "model" / HEAD))
    with torch.no_grad():
        assert torch.equal(again.outputs(batch), tuner.outputs(batch))
    assert other.tokenizer.to_str() == encoder.tokenizer.to_str()
    plain = CLIPTextModelWithProjection.from_pretrained(tmp_path / "model")
    assert torch.equal(plain.text_projection.weight, tuner.tower.text_projection.weight)


FLAGS = ["--epochs", 2, "--batch-size", 8, "--device", "cpu", "-q"]


def tune(tower: Path, data: Path, output: Path, *flags: object, task: str = "sst-2") -> int:
    words = ["finetune", task, data, "-e", tower, "-o", output, *FLAGS, *flags]
    return cli.run(list(map(str, words)))


def test_finetune_takes_a_tower(
    tower: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = save_mnli(tmp_path / "data")
    run = tmp_path / "run"
    assert tune(tower, data, run, "--max-length", 77, task="mnli") == 0
    out = capfd.readouterr()
    assert [r["epoch"] for r in map(json.loads, out.out.splitlines())] == [1, 2]
    assert out.err == ""
    info = json.loads((run / "run.json").read_text())
    assert info["encoder"]["ref"] == str(tower)
    model = run / "seed-9595" / "model"
    files = {"model.safetensors", "config.json", "tokenizer.json", HEAD, "complete"}
    assert {path.name for path in model.iterdir()} >= files
    rows = (run / "seed-9595" / "predictions.jsonl").read_text().splitlines()
    assert len(rows) == 9
    assert load_file(model / HEAD)["weight"].shape == (3, load_teacher(str(model)).width)


def test_more_than_77_tokens_are_refused(
    tower: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = save_sst2(tmp_path / "data")
    assert tune(tower, data, tmp_path / "run", "--max-length", 78) == Exit.CONFIG
    refused(capfd, "at most 77 tokens", "lower --max-length (78) to 77")


def test_the_end_of_a_text_is_the_tokenizers(
    tower: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Configurations of older versions of transformers have another id, or none."""
    shutil.copytree(tower, tmp_path / "tower")
    file = tmp_path / "tower" / "config.json"
    config = json.loads(file.read_text())
    del config["eos_token_id"]
    file.write_text(json.dumps(config))
    results = []
    for folder in (tower, tmp_path / "tower"):
        tuner, encoder = opened(folder, "rte")
        results.append(tuner.outputs(batch_of(tuner, encoder, "rte", PAIRS)))
    assert torch.equal(*results)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("way", ["signal", "kill"])
def test_resumed_equals_unbroken(
    tower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    data = save_sst2(tmp_path / "data")
    flags = ["--max-length", 40]
    assert tune(tower, data, tmp_path / "whole", *flags) == 0
    real = TowerTuner.forward
    calls = 0

    def interrupted(self: Any, batch: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 5:  # of 2 epochs of 3 steps
            if way == "kill":
                raise KeyboardInterrupt
            signal.raise_signal(signal.SIGTERM)
        return real(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(TowerTuner, "forward", interrupted)
        patch.setattr(session, "SAVE_SECONDS", 600 if way == "signal" else -1)
        code = tune(tower, data, tmp_path / "cut", *flags)
        assert code == (130 if way == "kill" else 75)
    assert tune(tower, data, tmp_path / "cut", *flags) == 0
    assert hashes(tmp_path / "cut") == hashes(tmp_path / "whole")
