"""Tasks with retrieved images: what the head reads, learning, resuming, files, and faults."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.tiny import BACKBONE, save_encoder, save_feats
from tests.tiny.runs import refused
from tests.tiny.tasks import learner_of, save_sst2, save_stsb, save_tags
from vgtools import cli
from vgtools.io.errors import DataError, Exit
from vgtools.models.references import fingerprint
from vgtools.models.runs import read_run
from vgtools.systems.visual_awareness import tasks as v
from vgtools.systems.visual_awareness.fusion import fusion_of, open_fusion, save_fusion
from vgtools.systems.visual_awareness.slots import open_images
from vgtools.tasks import finetune as tuning
from vgtools.tasks.dispatch import text_rows
from vgtools.tasks.examples import Example
from vgtools.tasks.finetune import Learner, TaskBatch, collate
from vgtools.tasks.table import find_splits, find_task
from vgtools.training import session

WIDTH = 5
FAST = ["--epochs", 2, "--max-length", 20, "--batch-size", 8, "--device", "cpu", "-q"]


def save_rows(folder: Path, task: str, data: Path) -> list[Path]:
    """Write two images for each text, in one file per split."""
    files = []
    rows = list(text_rows(find_task(task), find_splits(find_task(task), str(data))))
    for split in ("train", "dev"):
        path = folder / f"{task}.{split}.jsonl"
        kept = [row for row in rows if row["split"] == split]
        path.write_text(
            "".join(
                json.dumps({"text": text, "images": [hash_of(text), 7]}) + "\n"
                for text in dict.fromkeys(row["text"] for row in kept)
            )
        )
        files.append(path)
    return files


def hash_of(text: str) -> int:
    return sum(map(ord, text)) % 7


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `encoder`, `feats.npy`, and for three tasks their data and rows."""
    folder = tmp_path_factory.mktemp("awareness")
    save_encoder(folder / "encoder", positions=64)
    save_feats(folder / "feats.npy", np.random.default_rng(0).standard_normal((8, WIDTH)), BACKBONE)
    for task, save in (("sst-2", save_sst2), ("sts-b", save_stsb), ("vuan", save_tags)):
        save_rows(folder, task, save(folder / task))  # type: ignore[operator]
    return folder


def flags_of(world: Path, task: str = "sst-2") -> list[object]:
    rows = [("--retrieved", world / f"{task}.{split}.jsonl") for split in ("train", "dev")]
    images = ["--feats", world / "feats.npy", "--index", world / "feats.npy"]
    return [*(word for pair in rows for word in pair), *images]


def tune(world: Path, output: Path, *flags: object, task: str = "sst-2", **more: Any) -> int:
    encoder = more.get("encoder", world / "encoder")
    words = ["finetune", task, world / task, "-e", encoder, "-o", output, *FAST, *flags]
    return cli.run(list(map(str, words)))


def files_of(run: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in run.rglob("*")
        if path.suffix in (".safetensors", ".jsonl", ".json") and path.name != "run.json"
    }


def test_finetune_with_images(
    world: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = [*flags_of(world), "--image-dropout", 0.5, "--seeds", 2]
    assert tune(world, tmp_path / "va", *flags) == 0
    out = capfd.readouterr()
    assert [(r["seed"], r["epoch"]) for r in map(json.loads, out.out.splitlines())] == [
        (9595, 1),
        (9595, 2),
        (9596, 1),
        (9596, 2),
    ]
    info = read_run(tmp_path / "va")
    config = info["config"]
    assert config["images"] == "found"
    assert config["fusion"] == "paper"
    assert config["image_dropout"] == 0.5
    assert {f"seed-9596/model/fusion.{suffix}" for suffix in ("json", "safetensors")} <= set(
        info["files"]
    )
    for key, value in (("--images", "random"), ("--fusion", "gate"), ("--image-dropout", 0.25)):
        assert tune(world, tmp_path / "va", *flags, key, value) == Exit.CONFIG
        refused(capfd, key.strip("-").replace("-", "_"), str(value))


def test_fusions_of_the_sibling_code(
    world: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = [*flags_of(world), "--epochs", 1]
    assert tune(world, tmp_path / "both", *flags, "--fusion", "bi-attention") == 0
    assert open_fusion(str(tmp_path / "both/seed-9595/model"))[0].config.kind == "bi-attention"
    assert tune(world, tmp_path / "sum", *flags, "--fusion", "sum", "--image-weight", 0.5) == 0
    assert read_run(tmp_path / "sum")["config"]["image_weight"] == 0.5
    model = tmp_path / "sum/seed-9595/model"
    assert open_fusion(str(model))[0].config.weight == 0.5
    assert tune(world, tmp_path / "on", *flags, encoder=model) == 0
    assert open_fusion(str(tmp_path / "on/seed-9595/model"))[0].config.weight == 0.5
    capfd.readouterr()
    more = ["--fusion", "sum", "--image-weight", 0.25]
    assert tune(world, tmp_path / "x", *flags, *more, encoder=model) == Exit.CONFIG
    refused(capfd, "has a fusion of weight 0.5, --image-weight is 0.25")


def test_the_model_opens_as_a_plain_network_and_again_with_its_fusion(
    world: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForSequenceClassification

    assert tune(world, tmp_path / "va", *flags_of(world), "--fusion", "gate") == 0
    model = tmp_path / "va" / "seed-9595" / "model"
    plain = AutoModelForSequenceClassification.from_pretrained(model, local_files_only=True)
    task = find_task("sst-2")
    rows = [str(world / "sst-2.train.jsonl"), str(world / "sst-2.dev.jsonl")]
    images = open_images(rows, str(world / "feats.npy"), index=str(world / "feats.npy"))
    learner = learner_of(
        v.FusedLearner, task, model, images, v.Fusing(), null_threshold=0.0, max_length=20
    )
    tuner, encoder = learner.new(1)
    assert tuner.fusion.config.kind == "gate"
    saved, backbone = open_fusion(str(model))
    assert backbone == images.features.backbone
    for name, tensor in saved.state_dict().items():
        assert torch.equal(tuner.fusion.state_dict()[name], tensor)
    # With the head of before, it says what the run said.
    tuner.net.load_state_dict(plain.state_dict())
    split = learner.read("dev", str(world / "sst-2" / "dev.tsv"), tuner, encoder)
    said = (tmp_path / "va" / "seed-9595" / "predictions.jsonl").read_text().splitlines()
    for ours, row in zip(learner.predict(tuner, split), map(json.loads, said), strict=True):
        assert ours["id"] == row["id"]
        assert ours["logits"] == pytest.approx(row["logits"], abs=1e-5)
    # Learning on with it, its kind is that of the model.
    capfd.readouterr()
    assert tune(world, tmp_path / "on", *flags_of(world), encoder=model) == 0
    assert read_run(tmp_path / "on")["config"]["fusion"] == "gate"
    capfd.readouterr()
    assert tune(world, tmp_path / "x", *flags_of(world), "--fusion", "sum", encoder=model) == 78
    refused(capfd, "has a fusion of kind 'gate', --fusion is 'sum'")
    other = tmp_path / "other.npy"
    save_feats(other, np.ones((8, WIDTH)), BACKBONE | {"fingerprint": "c" * 64})
    flags = [*flags_of(world)[:-3], other, *flags_of(world)[-2:]]
    assert tune(world, tmp_path / "x", *flags, encoder=model) == Exit.DATA
    refused(capfd, "other.npy: was made with the backbone", "c" * 64)


def test_a_model_on_a_hub_learns_on_with_its_fusion_which_is_a_setting_of_the_run(
    world: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    flags = flags_of(world)
    model = tmp_path / "gate/seed-9595/model"
    assert tune(world, tmp_path / "gate", *flags, "--fusion", "gate") == 0
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download",
        lambda name, **how: str(model),
    )
    start = fusion_of(str(model))
    assert start is not None
    assert v.Fusing().config("me/gate") == v.Fusing().config(str(model))
    assert v.Fusing().config("me/gate")["fusion_fingerprint"] == start
    assert tune(world, tmp_path / "on", *flags, encoder="me/gate") == 0
    assert tune(world, tmp_path / "same", *flags, encoder=model) == 0
    made = [open_fusion(str(tmp_path / name / "seed-9595/model"))[0] for name in ("on", "same")]
    assert fingerprint(made[0]) == fingerprint(made[1])
    capfd.readouterr()
    # The encoder of two models may be one, and their fusions not.
    twin = tmp_path / "twin"
    shutil.copytree(model, twin, ignore=shutil.ignore_patterns("fusion.*"))
    fusion, features = open_fusion(str(model))
    fusion.reset("drawn", 0.5)
    save_fusion(twin, fusion, features)
    assert tune(world, tmp_path / "on", *flags, encoder=twin) == Exit.CONFIG
    assert "fusion_fingerprint" in capfd.readouterr().err
    words = ["finetune", "sst-2", world / "sst-2", "-e", "me/gate", "-o", tmp_path / "off"]
    assert cli.run([*map(str, words), *map(str, FAST[:-1])]) == 0
    assert "learns on without its fusion" in capfd.readouterr().err


@pytest.mark.parametrize("way", ["signal", "kill"])
def test_resumed_equals_unbroken(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    flags = [*flags_of(world), "--image-dropout", 0.5, "--seeds", 2]
    assert tune(world, tmp_path / "whole", *flags) == 0
    real = v.FusedTuner.outputs
    calls = 0

    def interrupted(self: Any, batch: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 9:  # of 2 seeds with 2 epochs of 3 steps, and the dev set after each
            if way == "kill":
                raise KeyboardInterrupt
            signal.raise_signal(signal.SIGTERM)
        return real(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(v.FusedTuner, "outputs", interrupted)
        patch.setattr(session, "SAVE_SECONDS", 600 if way == "signal" else -1)
        code = tune(world, tmp_path / "cut", *flags)
        assert code == (130 if way == "kill" else 75)
    assert (tmp_path / "cut" / "checkpoint.safetensors").exists()
    assert tune(world, tmp_path / "cut", *flags) == 0
    assert files_of(tmp_path / "cut") == files_of(tmp_path / "whole")


@pytest.mark.parametrize("task", ["sts-b", "vuan"])
def test_other_kinds_learn_with_images(world: Path, tmp_path: Path, task: str) -> None:
    assert tune(world, tmp_path / "va", *flags_of(world, task), task=task) == 0
    assert read_run(tmp_path / "va")["seeds"]["9595"]["total"] == 16


def tuner_of(world: Path, task: str = "sst-2", **how: Any) -> tuple[Any, Any, Any]:
    rows = [str(world / f"{task}.{split}.jsonl") for split in ("train", "dev")]
    images = open_images(rows, str(world / "feats.npy"), index=str(world / "feats.npy"))
    learner = learner_of(v.FusedLearner, task, world / "encoder", images, v.Fusing(**how))
    tuner, encoder = learner.new(3)
    return tuner, encoder, images


def test_head_and_encoder_are_the_baseline_s_and_the_fusion_is_drawn_by_the_seed(
    world: Path,
) -> None:
    tuner, _, _ = tuner_of(world)
    again, _, _ = tuner_of(world, start="drawn")
    plain, _ = learner_of(Learner, "sst-2", world / "encoder").new(3)
    assert fingerprint(tuner.net) == fingerprint(plain.net)
    assert fingerprint(tuner) == fingerprint(again)
    std = float(tuner.fusion.image.weight.detach().std())
    expected = plain.net.config.initializer_range
    assert 0.5 * expected < std < 1.5 * expected
    assert tuner.fusion.config.heads == plain.net.config.num_attention_heads
    assert tuner.fusion.config.dropout == plain.net.config.hidden_dropout_prob


def test_a_batch_has_the_images_of_its_texts(world: Path) -> None:
    tuner, encoder, images = tuner_of(world)
    path = str(world / "sst-2" / "train.tsv")
    fusing = v.Fusing()
    learner = learner_of(v.FusedLearner, "sst-2", world / "encoder", images, fusing, max_length=20)
    split = learner.read("train", path, tuner, encoder)
    units = np.array([3, 0, 5, 9, 1])
    batch = learner.collate(tuner, split.inputs, units, 1, 2)
    texts = [split.examples[i].text for i in (0, 9)]
    feats = np.load(world / "feats.npy").astype(np.float32)
    expected = np.stack([feats[[hash_of(text), 7]] for text in texts])
    assert batch.slots.numpy().tolist() == expected.tolist()
    assert batch.slot_mask.tolist() == [[True, True]] * 2
    assert batch.whole == 5 / 2
    text = collate(split.inputs.text, units, tuner.pad, tuner.segments, "cpu", 1, 2)
    assert torch.equal(batch.ids, text.ids)
    assert torch.equal(batch.labels, text.labels)
    assert list(split.inputs.report(20)) == []


def test_it_learns_eight_rows_by_their_images_alone(world: Path) -> None:
    """All texts are the same to the encoder: only their images say what the label is."""
    tuner, encoder, _ = tuner_of(world)
    task = find_task("sst-2")
    examples = [Example(str(i), "bam", None, i % 2) for i in range(8)]
    from vgtools.tasks.dispatch import encode

    text = encode(task, examples, encoder.tokenizer, max_length=10)
    plain: TaskBatch = collate(text, np.arange(8), tuner.pad, tuner.segments)
    torch.manual_seed(0)
    slots = torch.zeros(8, 2, WIDTH)
    slots[1::2] = 1.0
    batch = tuning.with_images(plain, slots, torch.ones(8, 2, dtype=torch.bool))
    optimizer = torch.optim.AdamW(tuner.parameters(), lr=3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        tuner(batch)["task"].backward()
        optimizer.step()
    tuner.eval()
    with torch.no_grad():
        right = tuner.outputs(batch).argmax(1) == batch.labels
        without = tuner.outputs(batch._replace(slot_mask=batch.slot_mask & False))
    assert bool(right.all())
    assert torch.equal(without, without[:1].expand(8, -1))


def test_every_weight_has_a_gradient_even_without_images(world: Path) -> None:
    """Several processes add up gradients, of weights that one of them may not have used."""
    tuner, encoder, _ = tuner_of(world)
    from vgtools.tasks.dispatch import encode

    examples = [Example("0", "bam den", None, 1), Example("1", "dun", None, 0)]
    text = encode(find_task("sst-2"), examples, encoder.tokenizer, max_length=10)
    plain = collate(text, np.arange(2), tuner.pad, tuner.segments)
    none = torch.zeros(2, 2, dtype=torch.bool)
    tuner(tuning.with_images(plain, torch.zeros(2, 2, WIDTH), none))["task"].backward()
    unused = [name for name, p in tuner.fusion.named_parameters() if p.grad is None]
    assert unused == []
    assert not tuner.fusion.image.weight.grad.any()
    assert tuner.fusion.joint.weight.grad.any()


def test_products_in_bfloat16_agree_with_float32(world: Path) -> None:
    tuner, encoder, _ = tuner_of(world)
    from vgtools.tasks.dispatch import encode

    examples = [Example("0", "bam den", None, 1), Example("1", "dun", None, 0)]
    text = encode(find_task("sst-2"), examples, encoder.tokenizer, max_length=10)
    plain = collate(text, np.arange(2), tuner.pad, tuner.segments)
    mask = torch.tensor([[True, True], [False, False]])
    batch = tuning.with_images(plain, torch.ones(2, 2, WIDTH), mask)
    tuner.eval()
    with torch.no_grad():
        expected = tuner.outputs(batch)
        tuner.dtype = torch.bfloat16
        found = tuner.outputs(batch)
    assert found.dtype == torch.float32
    scale = float(expected.abs().max())
    torch.testing.assert_close(found, expected, atol=0.1 * scale, rtol=0)


# ------------------------------------------------------------------------------------------- faults


def test_texts_without_rows_are_counted_with_the_way_out(
    world: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = ["--retrieved", world / "sst-2.train.jsonl", "--feats", world / "feats.npy"]
    flags += ["--index", world / "feats.npy"]
    assert tune(world, tmp_path / "va", *flags) == Exit.DATA
    rows = (world / "sst-2" / "dev.tsv").read_text().splitlines()
    refused(
        capfd,
        "sst-2.train.jsonl: has no images for 11 of 11 texts, the first",
        rows[1].split("\t")[0],
        f"vg prepare task sst-2 {world / 'sst-2'} | vg retrieve - --index X.faiss",
    )
    renamed = tmp_path / "other.tsv"
    renamed.write_text((world / "sst-2" / "dev.tsv").read_text())
    assert tune(world, tmp_path / "va", *flags, "--dev", renamed) == Exit.DATA
    refused(capfd, "vg prepare task sst-2 DATA | vg retrieve")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"text": "x", "images": [8]}, "entry 0 is 8, the image bank has 8 rows"),
        ({"text": "x", "images": [-1]}, "must be a row of the image bank, from 0, got -1"),
        ({"text": "x", "images": [1], "scores": []}, '"scores" has 0 entries, "images" has 1'),
        ({"text": 3, "images": [1]}, '"text" must be a string'),
        ('{"text": "x", "ima', "not valid JSON"),
    ],
)
def test_bad_rows_are_named_by_file_and_line(
    world: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], bad: Any, said: str
) -> None:
    path = tmp_path / "rows.jsonl"
    line = bad if isinstance(bad, str) else json.dumps(bad)
    path.write_text('{"text": "y", "images": []}\n' + line + "\n")
    flags = ["--retrieved", path, *flags_of(world)[-4:]]
    assert tune(world, tmp_path / "va", *flags) == Exit.DATA
    refused(capfd, f"{path}:2: ", said)


@pytest.mark.parametrize(
    ("flags", "task", "said"),
    [
        (["--retrieved", "r.jsonl"], "sst-2", "needs --feats"),
        (["--feats", "x.npy"], "sst-2", "or with --retrieved"),
        (["--fusion", "gate"], "sst-2", "needs --retrieved"),
        (["--image-dropout", "0.5"], "sst-2", "needs --retrieved"),
        (["--images", "shuffle"], "sst-2", "chooses among images"),
        (
            ["--retrieved", "r.jsonl", "--feats", "x.npy"],
            "codah",
            "fuses images for tasks of kind classify, regress, tag, translate; codah is choice",
        ),
        (["--retrieved", "-", "--train", "-"], "sst-2", "--feats"),
        (
            ["--retrieved", "r.jsonl", "--feats", "x.npy", "--regions", "x.npy"],
            "nlvr2",
            "--retrieved: nlvr2 has its own pictures",
        ),
        (["--image-dropout", "1.5"], "sst-2", "less than or equal to 1"),
        (["--image-weight", "0.5"], "sst-2", "belongs to --fusion sum"),
        (
            [
                *("--retrieved", "r.jsonl", "--feats", "x.npy"),
                *("--fusion", "attention", "--fusion-start", "identity"),
            ],
            "sst-2",
            "--fusion attention shows the head vectors read from images",
        ),
    ],
)
def test_flags_that_need_others_are_refused(
    world: Path, capfd: pytest.CaptureFixture[str], flags: list[str], task: str, said: str
) -> None:
    words = [
        "finetune",
        task,
        str(world / "sst-2"),
        "-e",
        str(world / "encoder"),
        "-o",
        "x",
        *flags,
    ]
    assert cli.run(words) == Exit.USAGE
    assert said in " ".join(capfd.readouterr().err.split())


def test_a_grounded_encoder_finds_images_by_its_own_index(
    world: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from tests.tiny.grounded_runs import save_grounded

    run = save_grounded(tmp_path)
    assert tune(world, tmp_path / "x", *flags_of(world), encoder=run) == Exit.USAGE
    refused(capfd, "--retrieved", "a grounded encoder finds images by --index")


def test_an_encoder_without_an_encoder_s_states_is_refused(world: Path) -> None:
    tuner, _, images = tuner_of(world)
    config = tuner.net.config
    config.num_attention_heads = 5
    with pytest.raises(DataError, match="5 heads do not divide"):
        v.Fusing().fusion_for(tuner.net, images, str(world / "encoder"))
