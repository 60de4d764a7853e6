"""`vg pretrain visualbert` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.tiny.lm import save_shape, save_tokenizer, sentences
from tests.tiny.runs import hashes, records, refused, stop_and_resume
from tests.tiny.visual import REGION, encoder_of, save_captions, save_regions
from tests.tiny.vtasks import save_nlvr2, save_pictures
from vgtools import cli
from vgtools.images.regions import open_regions
from vgtools.io.errors import Exit
from vgtools.models.encoder import load_encoder, save_pretrained
from vgtools.models.runs import read_run
from vgtools.systems.visualbert.model import VisualBertConfig, load_visualbert, open_attention

FAST = ["--batch-size", 8, "--block", 24, "--lr", "1e-3", "--log-every", 2, "--device", "cpu", "-q"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `encoder`, `c.jsonl` (24 captions of 6 images), `valid.jsonl` and `r.npy`."""
    folder = tmp_path_factory.mktemp("visual")
    save_pretrained(folder / "encoder", encoder_of(hidden_dropout_prob=0.1))
    texts = [text or "a b" for text in sentences(40, longest=8)]
    save_captions(
        folder / "c.jsonl", [(f"image{i % 6}", text) for i, text in enumerate(texts[:24])]
    )
    save_captions(
        folder / "valid.jsonl", [(f"image{6 + i % 3}", text) for i, text in enumerate(texts[24:])]
    )
    save_regions(folder / "r.npy", images=9)
    return folder


def pretrain(
    data: Path, output: Path, *flags: object, encoder: object = "encoder", regions: str = "r.npy"
) -> int:
    begin = [
        "pretrain",
        "visualbert",
        data / "c.jsonl",
        "--regions",
        data / regions,
        "-o",
        output,
    ]
    start = ["--encoder", data / str(encoder)] if encoder else []
    return cli.run([str(a) for a in [*begin, *start, *FAST, *flags]])


def test_a_run_that_transformers_and_the_probes_open(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForPreTraining, AutoTokenizer

    run = tmp_path / "run"
    assert pretrain(data, run, "--epochs", 2, "--valid", data / "valid.jsonl") == 0
    out = capfd.readouterr()
    printed = [json.loads(line) for line in out.out.splitlines()]
    assert (printed, out.err) == (records(run), "")
    assert [r["epoch"] for r in printed if "valid" in r] == [1, 2]
    last = printed[-1]
    assert last["loss"] == pytest.approx(last["mlm"] + last["sip"], rel=1e-5)
    assert set(last["valid"]) == {"mlm", "sip", "perplexity"}
    assert sorted(p.name for p in run.iterdir()) == ["encoder", "metrics.jsonl", "run.json"]
    info = read_run(run, "visualbert")
    assert (info["captions"], info["images"], info["steps"]) == (24, 6, 6)
    assert info["visualbert"] == {"regions_width": REGION, "late_fusion": False, "alignment": "sum"}
    (start,) = info["start"]
    assert start["fingerprint"] == load_encoder(str(data / "encoder")).fingerprint
    assert info["config"]["lr"] == 1e-3
    assert info["config"]["warmup"] == 0.1, "the paper's"

    network = AutoModelForPreTraining.from_pretrained(run / "encoder").eval()
    words = AutoTokenizer.from_pretrained(run / "encoder", use_fast=True)("a b c")["input_ids"]
    own = open_regions(data / "r.npy").of("image3").features
    ids, regions = torch.tensor([words]), torch.from_numpy(own)[None]
    with torch.inference_mode():
        wanted = network.visual_bert(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            visual_embeds=regions,
            output_attentions=True,
        )
    joint = open_attention(str(run))
    here = [torch.ones(x.shape[:2], dtype=torch.bool) for x in (ids, regions)]
    for mine, theirs in zip(
        joint.attentions(ids, here[0], regions, here[1]), wanted.attentions, strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", ["signal", "kill"])
def test_resumed_equals_unbroken(data: Path, tmp_path: Path, way: str) -> None:
    flags = [
        "--epochs",
        2,
        "--valid",
        data / "valid.jsonl",
        "--eval-every",
        3,
        "--checkpoint-steps",
        2,
        "--micro-batch",
        3,
    ]
    cut, whole = stop_and_resume(lambda run: pretrain(data, run, *flags), tmp_path, way, 4)
    assert hashes(cut) == hashes(whole)


def test_regions_that_start_near_their_words(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = ["--region-start", "words", "--steps", 4, "--mask-rate", 0.4]
    cut, whole = stop_and_resume(
        lambda run: pretrain(data, run, *flags, "--checkpoint-steps", 2), tmp_path, "kill", 4
    )
    assert hashes(cut) == hashes(whole), "a resumed run does not start anew"
    assert read_run(whole, "visualbert")["config"]["region_start"] == "words"
    assert pretrain(data, tmp_path / "drawn", *flags[2:]) == 0
    assert hashes(whole) != hashes(tmp_path / "drawn")
    capfd.readouterr()
    assert pretrain(data, tmp_path / "x", *flags, "--text-only") == Exit.USAGE
    assert "no region is shown" in capfd.readouterr().err
    assert pretrain(data, tmp_path / "x", *flags, encoder=whole) == Exit.USAGE
    assert "the VisualBERT of --encoder has learned its own" in capfd.readouterr().err
    assert pretrain(data, tmp_path / "x", "--region-start", "near") == Exit.USAGE


def test_task_specific_pretraining_goes_on_from_a_run(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert pretrain(data, tmp_path / "a", "--steps", 2) == 0
    flags = ["--steps", 1, "--lr", 0, "--weight", "mlm=1"]
    assert pretrain(data, tmp_path / "b", *flags, encoder=tmp_path / "a") == 0
    models = [
        load_visualbert(str(tmp_path / name), VisualBertConfig(REGION))[0].state_dict()
        for name in "ab"
    ]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0]), (
        "learning rate 0: nothing changed"
    )
    assert "sip" not in records(tmp_path / "b")[-1]

    other = {"ref": "other", "fingerprint": "c" * 64, "preprocessing": {"fingerprint": "p" * 64}}
    save_regions(tmp_path / "other.npy", backbone=other)
    save_regions(tmp_path / "wide.npy", width=9)
    capfd.readouterr()
    assert (
        pretrain(data, tmp_path / "c", encoder=tmp_path / "a", regions=str(tmp_path / "other.npy"))
        == Exit.DATA
    )
    refused(
        capfd,
        "other.npy: was made with the region features of the backbone other",
        "b" * 64,
        "c" * 64,
    )
    assert (
        pretrain(data, tmp_path / "d", encoder=tmp_path / "a", regions=str(tmp_path / "wide.npy"))
        == Exit.CONFIG
    )
    refused(capfd, "is a VisualBERT with regions_width 6, 9 was asked for")
    assert pretrain(data, tmp_path / "e", "--late-fusion", encoder=tmp_path / "a") == Exit.CONFIG
    refused(capfd, "late_fusion False, True was asked for")


def test_nlvr2_pretrains_on_its_pairs_before_the_task(data: Path, tmp_path: Path) -> None:
    """Appendices A.3 and B.3 whole: the run, the sentences with two images, the task."""
    folder = tmp_path / "nlvr2"
    save_pictures(tmp_path / "p.npy", save_nlvr2(folder), width=REGION)
    rows = str(tmp_path / "nlvr2.jsonl")
    assert cli.run(["prepare", "task", "nlvr2", str(folder), "--split", "train", "-o", rows]) == 0
    assert pretrain(data, tmp_path / "a", "--steps", 1) == 0
    begin = ["pretrain", "visualbert", rows, "--regions", tmp_path / "p.npy", "--boxes", 1]
    flags = ["--encoder", tmp_path / "a", "--weight", "mlm=1", "--steps", 2]
    done = cli.run([str(a) for a in [*begin, *flags, *FAST, "-o", tmp_path / "b"]])
    assert done == 0
    config = read_run(tmp_path / "b", "visualbert")["config"]
    assert (config["boxes"], read_run(tmp_path / "a")["config"]["boxes"]) == (1, None)
    task = ["finetune", "nlvr2", folder, "-e", tmp_path / "b", "--regions", tmp_path / "p.npy"]
    more = [
        "--boxes",
        1,
        "--epochs",
        1,
        "--max-length",
        20,
        "--device",
        "cpu",
        "-q",
        "-o",
        tmp_path / "c",
    ]
    assert cli.run([str(a) for a in [*task, *more]]) == 0


def test_the_ablations_of_table_7(data: Path, tmp_path: Path) -> None:
    shape = [
        "--shape",
        save_shape(tmp_path / "shape.json"),
        "--tokenizer",
        save_tokenizer(tmp_path / "t"),
    ]
    runs: dict[str, tuple[list[object], object]] = {
        "full": ([], "encoder"),
        "ungrounded": (["--text-only"], "encoder"),
        "late": (["--late-fusion"], "encoder"),
        "random": (shape, None),
        "no objective 2": (["--weight", "mlm=1"], "encoder"),
    }
    last = {}
    for name, (flags, encoder) in runs.items():
        assert pretrain(data, tmp_path / name, "--steps", 3, *flags, encoder=encoder) == 0, name
        last[name] = records(tmp_path / name)[-1]
    assert [name for name, record in last.items() if "sip" not in record] == ["no objective 2"]
    assert len({record["mlm"] for record in last.values()}) == len(runs), (
        "each trains something else"
    )
    assert (
        open_attention(str(tmp_path / "late")).layers
        == open_attention(str(tmp_path / "full")).layers + 1
    )
    assert last["random"]["mlm"] == pytest.approx(5.3, abs=0.5), (
        "ln of the vocabulary: it knows nothing"
    )
    # Without grounding no region is looked up: images need none.
    save_captions(tmp_path / "c.jsonl", [(f"x{i % 2}", "a b") for i in range(6)])
    args = [
        "pretrain",
        "visualbert",
        tmp_path / "c.jsonl",
        "--regions",
        data / "r.npy",
        "--text-only",
    ]
    args += ["--encoder", data / "encoder", "-o", tmp_path / "x", "--steps", 1, *FAST]
    assert cli.run([str(a) for a in args]) == 0


def test_a_finished_run_is_left_alone_and_other_settings_are_refused(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert pretrain(data, tmp_path / "a", "--steps", 2) == 0
    before = hashes(tmp_path / "a")
    first = capfd.readouterr().out
    assert pretrain(data, tmp_path / "a", "--steps", 2) == 0
    assert capfd.readouterr().out == first
    assert hashes(tmp_path / "a") == before
    assert pretrain(data, tmp_path / "a", "--steps", 2, "--text-only") == Exit.CONFIG
    refused(capfd, "text_only was false, is now true")
    save_captions(
        tmp_path / "more.jsonl",
        [("image6", "a"), ("image7", "b"), ("image6", "c"), ("image7", "d")],
    )
    assert (
        pretrain(data, tmp_path / "a", "--steps", 2, "--valid", tmp_path / "more.jsonl")
        == Exit.CONFIG
    )
    refused(capfd, "valid was")


def test_photos_to_train_and_to_validate_on_are_refused(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [("image6", "a"), ("image2", "b"), ("image6", "c"), ("image2", "d")]
    save_captions(tmp_path / "both.jsonl", rows)
    assert pretrain(data, tmp_path / "a", "--valid", tmp_path / "both.jsonl") == Exit.DATA
    refused(capfd, "both.jsonl: 1 images are in both training and validation; split by image")


@pytest.mark.parametrize(
    ("flags", "code", "why"),
    [
        (["--pack", "document"], Exit.USAGE, "No such option: --pack"),
        (["--control", "shuffle"], Exit.USAGE, "No such option: --control"),
        (["--weight", "voken_cls=1"], Exit.USAGE, "'voken_cls' is not one of mlm, sip"),
        (["--weight", "sip=1"], Exit.USAGE, "always learns mlm"),
        (["--block", "999"], Exit.CONFIG, "--block 999: the encoder takes 64 tokens"),
    ],
)
def test_refusals(
    data: Path,
    tmp_path: Path,
    flags: list[str],
    code: int,
    why: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert pretrain(data, tmp_path / "a", *flags) == code
    refused(capfd, why)


def test_regions_must_be_named_and_be_regions(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    args = [
        "pretrain",
        "visualbert",
        data / "c.jsonl",
        "--encoder",
        data / "encoder",
        "-o",
        tmp_path / "a",
        *FAST,
    ]
    assert cli.run([str(a) for a in args]) == Exit.USAGE
    refused(capfd, "Missing option '--regions'")
    assert pretrain(data, tmp_path / "a", regions="no.npy") == Exit.NO_INPUT
    refused(capfd, "no.npy: does not exist")


def test_each_system_shows_its_own_flags_and_defaults(capfd: pytest.CaptureFixture[str]) -> None:
    helps = {}
    for system in ("lm", "visualbert"):
        assert cli.run(["pretrain", system, "--help"]) == 0
        helps[system] = " ".join(capfd.readouterr().out.split())
    assert "--regions X.npy" not in helps["lm"]
    assert "--vokens N" not in helps["visualbert"]
    assert "--epochs N Passes over the input. [default: 40; x>=1]" in helps["lm"]
    assert "--epochs N Passes over the input. [default: 10; x>=1]" in helps["visualbert"]
    assert cli.run(["pretrain", "--help"]) == 0
    both = " ".join(capfd.readouterr().out.split())
    assert "Pretrain a masked language model" in both, "the first system is the default"
    assert "visualbert Pretrain a VisualBERT" in both


def test_the_content_of_a_shape_file_is_one_of_the_settings(data: Path, tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path / "t")
    flags = ["--shape", tmp_path / "shape.json", "--tokenizer", tokenizer, "--steps", 1]
    save_shape(tmp_path / "shape.json")
    assert pretrain(data, tmp_path / "run", *flags, encoder=None) == 0
    save_shape(tmp_path / "shape.json", intermediate_size=24)
    assert pretrain(data, tmp_path / "run", *flags, encoder=None) == Exit.CONFIG
