"""Translation with images: what the decoder reads, training, and streams of retrieved rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.tiny import BACKBONE, save_feats
from tests.tiny.runs import refused
from tests.tiny.translation import network, pairs, save_pairs, save_tokenizer, tokenizer
from vgtools.cli import run
from vgtools.io.artifact import open_features, read_ids
from vgtools.io.errors import Exit
from vgtools.io.files import write_manifest
from vgtools.io.names import manifest_path
from vgtools.models.encoder import as_encoder, save_pretrained
from vgtools.models.seq2seq import GREEDY, SHAPES, new_seq2seq, shift_right, translate
from vgtools.reports.tables import reported
from vgtools.systems.visual_awareness.fusion import (
    Fusion,
    FusionConfig,
    config_for,
    fusion_of,
    save_fusion,
)
from vgtools.systems.visual_awareness.translation import FusedTranslator
from vgtools.tasks.finetune import collate, with_images

WIDTH = 12


@pytest.mark.parametrize(
    ("shape", "features", "added", "whole"),
    [("transformer-base", 2048, 2_363_392, 66_981_888), ("transformer-small", 1280, 246_784, None)],
)
def test_the_parameters_that_images_add(
    shape: str, features: int, added: int, whole: int | None
) -> None:
    bpe = tokenizer()
    with torch.device("meta"):
        net = new_seq2seq(shape, bpe)
        fusion = Fusion(config_for(net, features))
    assert sum(p.numel() for p in fusion.parameters()) == added
    if whole is not None:
        learnt = sum(p.numel() for p in net.parameters() if p.requires_grad)
        missing = (40_000 - bpe.get_vocab_size()) * SHAPES[shape]["width"]
        assert learnt + missing + added == whole


def fused(seed: int = 0) -> FusedTranslator:
    encoder = as_encoder(network(seed), tokenizer(), "tiny")
    fusion = Fusion(FusionConfig(WIDTH, 128, 4))
    fusion.reset(std=0.3)
    return FusedTranslator(encoder, "translate", fusion).eval()


def test_loss_and_search_read_the_images() -> None:
    from vgtools.tasks.dispatch import encode
    from vgtools.tasks.kinds.translate import PairExample
    from vgtools.tasks.table import find_task

    tuner = fused()
    rows = enumerate(pairs(5))
    examples = [PairExample(str(i), a, target=b) for i, (a, b) in rows]
    inputs = encode(find_task("translation"), examples, tuner.tokenizer, max_length=40)
    text = collate(inputs, np.arange(5), tuner.pad, False)
    slots = torch.randn(5, 3, WIDTH, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0], [1, 1, 1]]).bool()
    with torch.no_grad():
        losses = [
            float(tuner(with_images(text, shown, mask))["task"]) for shown in (slots, -slots, slots)
        ]
        # The same by hand: the states of a network without images, fused, handed to its decoder.
        plain = network()
        states = plain.model.encoder(input_ids=text.ids, attention_mask=text.mask)[0]
        logits = plain(
            encoder_outputs=(tuner.fusion(states, slots, mask),),
            attention_mask=text.mask,
            decoder_input_ids=shift_right(text.labels, plain.config),
        ).logits
        found = tuner.outputs(with_images(text, slots, mask))
    assert torch.equal(found, logits)
    assert losses[0] == losses[2] != losses[1]
    sources = np.split(inputs.ids, inputs.starts[1:-1])
    said = {}
    for name, shown in (("plus", slots), ("minus", -slots)):
        said[name] = translate(
            tuner.net,
            sources,
            GREEDY,
            2,
            shown=lambda units, shown=shown: tuner.fusion.show(shown[units], mask[units]),
        )
    assert said["plus"] != said["minus"]
    assert said["plus"][2] == said["minus"][2]  # that sentence has no image
    alone = translate(
        tuner.net,
        sources[4:],
        GREEDY,
        1,
        shown=lambda units: tuner.fusion.show(slots[4:], mask[4:]),
    )
    assert alone == said["plus"][4:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write pairs, a tokenizer, features, and rows of images for all sources."""
    folder = tmp_path_factory.mktemp("fused")
    save_pairs(folder / "pairs", 40, 8)
    save_tokenizer(folder / "bpe")
    save_feats(folder / "feats.npy", np.random.default_rng(0).standard_normal((9, WIDTH)), BACKBONE)
    rng = np.random.default_rng(1)
    seen = dict[str, list[int]]()
    for source, _ in [*pairs(40), *pairs(8, 1)]:
        seen.setdefault(source, rng.choice(9, rng.integers(0, 4), replace=False).tolist())
    rows = (json.dumps({"text": text, "images": images}) + "\n" for text, images in seen.items())
    (folder / "rows.jsonl").write_text("".join(rows))
    return folder


def vg(*args: object) -> int:
    return run([str(arg) for arg in args])


def test_a_model_with_images_learns_and_translates_as_it_was_scored(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fast = ["--epochs", 1, "--lr", 3e-3, "--warmup", 5, "--batch-size", 60, "--max-length", 40]
    see = ["--retrieved", folder / "rows.jsonl", "--feats", folder / "feats.npy"]
    see += ["--index", folder / "feats.npy"]
    base, on = tmp_path / "base", tmp_path / "on"
    args = ["finetune", "translation", folder / "pairs", *fast, "--device", "cpu", "-q"]
    assert vg(*args, "--shape", "transformer-small", "-t", folder / "bpe", "-o", base) == 0
    model = base / "seed-9595/model"
    start = ["-e", model, *see, "--fusion-start", "identity", "--image-dropout", 0.5]
    assert vg(*args, *start, "-o", on) == 0
    assert fusion_of(str(on / "seed-9595/model"))
    capfd.readouterr()
    dev = [source for source, _ in pairs(8, 1)]
    images = {row["text"]: row["images"] for row in read(folder / "rows.jsonl")}
    given = "".join(json.dumps({"text": t, "images": images[t]}) + "\n" for t in dev)
    (tmp_path / "dev.jsonl").write_text(given)
    feats = ["--feats", folder / "feats.npy", "--index", folder / "feats.npy"]
    feats += ["--device", "cpu", "-q"]
    out = tmp_path / "dev.txt"
    fused_model = on / "seed-9595/model"
    assert vg("translate", fused_model, tmp_path / "dev.jsonl", *feats, "-o", out) == 0
    said = [row["prediction"] for row in read(on / "seed-9595/predictions.jsonl")]
    # Such a young model repeats itself; where it ends is decided by rounding.
    assert list(map(beginning, out.read_text().splitlines())) == list(map(beginning, said))
    # Without the images it is another model, and says so.
    assert vg("translate", fused_model, tmp_path / "dev.jsonl", "--device", "cpu") == 2
    assert "looks at images: expected --feats X.npy" in " ".join(capfd.readouterr().err.split())


def beginning(line: str) -> list[str]:
    return line.split()[:10]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture(scope="module")
def model(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a random model with a fusion."""
    tuner = fused()
    path = tmp_path_factory.mktemp("model") / "model"
    save_pretrained(path, as_encoder(tuner.net, tuner.tokenizer, "tiny"))
    save_fusion(path, tuner.fusion, open_features(folder / "feats.npy").backbone)
    return path


def lines(tmp_path: Path, model: Path, rows: Path, feats: Path, *flags: object) -> list[str]:
    out = tmp_path / "out.txt"
    args = ["--feats", feats, "--longer", 3, "--device", "cpu", "--restart", "-o", out]
    if not manifest_path(rows).exists() and "--index" not in flags:
        args += ["--index", feats]
    assert vg("translate", model, rows, *args, *flags) == 0
    return out.read_text().split("\n")[:-1]


def test_images_are_matched_by_name(
    folder: Path, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The index has the images in another order than the features."""
    rows = read(folder / "rows.jsonl")[:9]
    plain = tmp_path / "plain.jsonl"
    plain.write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = lines(tmp_path, model, plain, folder / "feats.npy")
    assert len(expected) == 9
    names = read_ids(folder / "feats.ids")
    order = np.random.default_rng(2).permutation(9)
    place = np.argsort(order)
    (tmp_path / "bank.ids").write_text("".join(names[i] + "\n" for i in order))
    moved = tmp_path / "moved.jsonl"
    moved.write_text(
        "".join(
            json.dumps(row | {"images": place[row["images"]].tolist() if row["images"] else []})
            + "\n"
            for row in rows
        )
    )
    from vgtools.io.files import sha256_file

    files = {"bank.ids": {"sha256": sha256_file(tmp_path / "bank.ids")}}
    write_manifest(
        moved, [moved], kind="retrieved", index="bank.faiss", k=3, config={"index_sha256": files}
    )
    assert manifest_path(moved).exists()
    assert lines(tmp_path, model, moved, folder / "feats.npy") == expected
    # Without a manifest --index must name them.
    manifest_path(moved).unlink()
    (tmp_path / "bank.faiss").write_bytes(b"")
    index = ["--index", tmp_path / "bank.faiss"]
    assert lines(tmp_path, model, moved, folder / "feats.npy", *index) == expected
    # Another order of the index is another translation, which is not up to date.
    again: list[object] = ["translate", model, moved, "--feats", folder / "feats.npy", *index]
    again += ["--longer", 3, "--device", "cpu", "-o", tmp_path / "again.txt"]
    for other in (order, order[::-1]):
        (tmp_path / "bank.ids").write_text("".join(names[i] + "\n" for i in other))
        for kept in (False, True):
            capfd.readouterr()
            assert run([str(arg) for arg in again]) == 0
            assert ("is up to date" in capfd.readouterr().err) == kept
    (tmp_path / "again.txt").unlink()
    capfd.readouterr()
    args: list[object] = [
        "translate",
        model,
        moved,
        "--feats",
        folder / "feats.npy",
        "--device",
        "cpu",
    ]
    assert run([str(arg) for arg in args]) == Exit.USAGE
    refused(capfd, "moved.jsonl: has no manifest", "name it: --index")


def test_rows_that_lack_images_are_refused(
    folder: Path, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(text: str, *feats: object) -> str:
        (tmp_path / "in.jsonl").write_text(text)
        seen = (feats or [folder / "feats.npy"])[0]
        args = ["--feats", seen, "--index", seen, "--device", "cpu", "-q"]
        assert vg("translate", model, tmp_path / "in.jsonl", *args) == 65
        return capfd.readouterr().err

    good = '{"text": "dog", "images": [3]}\n'
    assert 'in.jsonl:2: the key "images" is missing' in fails(good + '{"text": "cat"}\n')
    assert 'in.jsonl:1: "images" entry 0 is 9' in fails('{"text": "dog", "images": [9]}\n')
    assert "in.jsonl:3:" in fails(good * 2 + '{"text": "dog", "images": [-1]}\n')
    other = tmp_path / "other.npy"
    save_feats(other, np.ones((9, WIDTH)), BACKBONE | {"fingerprint": "c" * 64})
    assert "was made with the backbone" in fails(good, other)


def test_the_paper_s_numbers() -> None:
    """Source: Zhang et al. 2019, tables 1 to 3."""
    found = {table: reported(f"visual-awareness:{table}") for table in (1, 2, 3)}
    rows = {row["run"]: row["tasks"] for row in found[1]}
    assert rows["Transformer +VA, en-ro"] == {"translation": {"mean": 34.63}}
    assert rows["Transformer +VA, en-de"] == {"translation": {"mean": 27.83}}
    gains = {table: found[table][-1]["tasks"] for table in (2, 3)}
    assert gains == {2: {"snli": {"mean": 91.2}}, 3: {"conll-2003": {"mean": 91.46}}}
    assert all("Zhang et al. 2019, Table 3" in row["source"] for row in found[3])
