"""The papers' hyper-parameters as literals, beside what `vg` makes of the examples at SCALE=paper.

Each value is written again here, with the section or table that it is from; "code" is the paper's
released code, where the paper says nothing. Compared is what the real parser makes of the calls
that make would run, defaults included: neither a default nor a Makefile changes unnoticed.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from tests.tiny import official
from tests.tiny.lm import save_shape, save_tokenizer
from tests.tiny.translation import tokenizer
from vgtools import cli
from vgtools.commands.finetune.flags import ANSWERED
from vgtools.commands.train_matcher.visual_awareness import BackboneFlags, RetrieverRecipe
from vgtools.commands.train_matcher.vokenization import MatcherRecipe
from vgtools.models import masked_lm, seq2seq
from vgtools.systems.visual_awareness import recipe as retriever
from vgtools.tasks.kinds import translate
from vgtools.tasks.table import TASKS, find_task, settings_of
from vgtools.text.ngrams import VOCABULARY_ABOVE

EXAMPLES = Path(__file__).parents[1] / "examples"


@functools.cache
def application() -> Any:
    return typer.main.get_command(cli.make_app())


def context_of(call: str) -> Any:
    """Return what the parser makes of a call: `params` are the values of all flags."""
    context = None
    name, command, words = "vg", application(), shlex.split(call)
    while True:
        context = command.make_context(name, list(words), parent=context)
        if not hasattr(command, "commands"):
            return context
        words = [*context._protected_args, *context.args]
        name, command, words = command.resolve_command(context, words)


Calls = Mapping[str, str]  # of `vg`, without the word, by the name of the output
Make = Callable[..., Calls]
Recipes = Callable[..., list[str]]  # the parts of shell lines


@pytest.fixture
def recipes(tmp_path: Path) -> Recipes:
    """Return a function from an example, its targets and variables to what make would run.

    @ in a variable is a file that exists.
    """
    (tmp_path / "x").touch()

    def parts(example: str, *targets: str, **given: str) -> list[str]:
        command = ["make", "-n", "-f", str(EXAMPLES / example / "Makefile"), "VG=vg", *targets]
        file = str(tmp_path / "x")
        command += [f"{name}={value.replace('@', file)}" for name, value in given.items()]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.replace("\\\n", " ").splitlines()
        return [part.strip() for line in lines for part in re.split(r"[|;>]|&&|\bdo\b", line)]

    return parts


@pytest.fixture
def make(recipes: Recipes) -> Make:
    """Return a function from an example, its targets and variables to the calls of make."""

    def calls(example: str, *targets: str, **given: str) -> Calls:
        parts = recipes(example, *targets, **given)
        found = [re.match(r"vg (.* (?:-o|--noise) (\S+).*)", part) for part in parts]
        return {call[2]: call[1] for call in found if call}

    return calls


def only(parts: list[str], start: str) -> str:
    """Return the one part that starts with a word."""
    (found,) = {part for part in parts if part.startswith(start)}
    return found


def check(call: str, **expected: Any) -> None:
    """Compare values of a call with literals, by name."""
    params = context_of(call).params
    found = {name: params[name] for name in expected}
    lists = {name: tuple(value) for name, value in found.items() if isinstance(value, list)}
    assert found | lists == expected, call


def tuned(call: str) -> dict[str, Any]:
    """Return the settings that `vg finetune` makes of a call and of its task."""
    params = context_of(call).params
    task = find_task(params["name"])
    named = ("epochs", "steps", "lr", "batch_size", "warmup", "max_length", "keep", "patience")
    given = {name: params[name] for name in (*named, "seed", "seeds")}
    return settings_of(task, given)


# ------------------------------------------------------------------------------------ vokenization

VOKENIZATION = {"COCO": "c", "VG_DATA": "v", "WIKI": "@", "WIKI103": "@", "T": "t"}


def test_the_matcher_of_vokenization(make: Make) -> None:
    calls = make(
        "vokenization", "paper/matcher/run.json", "paper/sentence/run.json", **VOKENIZATION
    )
    for level in ("token", "sentence"):
        call = calls["paper/matcher" if level == "token" else "paper/sentence"]
        context = context_of(call)
        names = [field.name for field in dataclasses.fields(MatcherRecipe)]
        recipe = MatcherRecipe(**{name: context.params[name] for name in names})
        assert recipe.settings(context, context.params["preset"]) == {
            "hidden": 256,  # section 4.2: 256-dimensional intermediate outputs
            "dim": 64,  # section 4.2: 64-dimensional final outputs
            "dropout": 0.3,  # code
            "sentence": False,  # section 3.2 knows no such term,
            "root": False,  # nor a root of features,
            "stop_share": 1.0,  # nor tokens that do not count,
            "word_loss": 0.0,  # nor a second loss,
            "rarity": 0.0,  # nor weights of tokens
            "loss": "hinge",  # section 3.2
            "margin": 0.5,  # section 4.2
            "epochs": 20,  # section 4.2
            "batch_size": 256,  # code
            "lr": 1e-3,  # code
            "schedule": "constant",  # code
            "warmup": 0.0,  # code
            "keep": "best",  # code
        }
        assert context.params["level"] == level  # appendix A.4 for sentences
        assert context.params["layers"] == 4  # section 4.2: the last 4 layers
        assert context.params["seed"] == 9595  # code
        assert context.params["encoder"] == "google-bert/bert-base-uncased"  # section 4.2
    images = calls["paper/coco.npy"]
    check(images, backbone="resnext101_32x8d.tv_in1k")  # section 4.2: ResNeXt-101-32x8d


def test_the_vokens_and_their_controls(make: Make) -> None:
    targets = [
        f"t/lm/bert12-{row}/run.json"
        for row in (
            "random", "shuffle", "reverse", "tokens", "only", "sentence", "propagated", "frequency"
        )
    ]  # fmt: skip
    calls = make("vokenization", *targets, **VOKENIZATION)
    check(calls["paper/bank.npy"], limit=50000)  # section 4.2: a voken size of 50000
    check(calls["t/token.faiss"], limit=50000)
    frequency = calls["t/wiki.frequency.jsonl.zst"]
    check(frequency, control="term-frequency", gamma=0.01)  # appendix A.5
    for control in ("random", "shuffle", "reverse", "tokens"):  # table 6; reverse: code
        check(calls[f"t/lm/bert12-{control}"], control=control, label="all", weight=())
    check(calls["t/lm/bert12-only"], control=None, weight=("mlm=0", "voken_cls=1"))  # table 6
    check(calls["t/lm/bert12-sentence"], control=None, label="first")  # table 5
    check(calls["t/lm/bert12-propagated"], control=None, label="all")  # table 5
    noise = make("vokenization", "t/lm/bert-noise/run.json", **VOKENIZATION)
    check(noise["t/lm/bert-noise"], magnitude=6.5e-3)  # table 3


@pytest.mark.parametrize(
    ("row", "shape", "epochs", "steps", "warmup"),
    [
        # Section 4.2: 40 epochs of Wiki103, 200K steps of Wikipedia; appendix A.1: around 10 %
        # more without vokens. Warm-up: code.
        ("bert6-vokens", "bert-small", 40, None, 10000),
        ("bert6-mlm", "bert-small", 44, None, 10000),
        ("bert12-vokens", "bert-base", 40, 200000, 5000),
        ("bert12-mlm", "bert-base", 40, 220000, 5000),
        ("roberta6-vokens", "roberta-small", 40, None, 10000),
        ("roberta6-mlm", "roberta-small", 44, None, 10000),
        ("roberta12-vokens", "roberta-base", 40, 200000, 5000),
        ("roberta12-mlm", "roberta-base", 40, 220000, 5000),
    ],
)
def test_a_language_model_of_vokenization(
    make: Make, row: str, shape: str, epochs: int, steps: int | None, warmup: int
) -> None:
    call = make("vokenization", f"t/lm/{row}/run.json", **VOKENIZATION)[f"t/lm/{row}"]
    check(
        call,
        shape=shape,
        epochs=epochs,  # not used where there are steps
        steps=steps,
        warmup=warmup,
        batch_size=256,  # section 4.2
        lr=2e-4,  # section 4.2
        block=128,  # section 4.2
        mask_rate=0.15,  # section 2.1
        weight=(),  # lambda = 1, section 4.2
        weight_decay=0.01,  # code
        clip=1.0,  # code
        schedule="linear",  # code
        seed=95,  # code
        voken_tokens="all",  # section 2.2
    )


def test_texts_of_table_4_are_learned_for_equally_long(make: Make) -> None:
    rows = ("captions", "reduced")
    calls = make("vokenization", *(f"t/lm/bert6-{row}/run.json" for row in rows), **VOKENIZATION)
    for row in rows:
        # As Wiki103 in section 4.2; the paper names no other length.
        check(calls[f"t/lm/bert6-{row}"], shape="bert-small", epochs=40, steps=None)


def test_the_lines_of_wikipedia_that_are_held_out(recipes: Recipes) -> None:
    parts = recipes("vokenization", "wiki", WIKI_DUMP="@")
    assert " -v held=5000 " in only(parts, "awk")  # code: each of validation and test


def test_what_counts_as_grounded(recipes: Recipes) -> None:
    """Section 2.2: more than 100 occurrences in MS COCO; XDBERT's figure 4 follows it."""
    parts = recipes("vokenization", "table1", "gain", **VOKENIZATION)
    check(only(parts, "vg stats").removeprefix("vg "), grounded_above=100, stop_words=None)
    check(only(parts, "vg compare t/ft/bert6-mlm ").removeprefix("vg "), grounded_above=100)
    assert VOCABULARY_ABOVE == 5  # footnote 4
    given = {"SCALE": "paper", "OUT": "o", "TEXT": "@", "GLUE": "g", "CAPTIONS": "@"}
    parts = recipes("xdbert", "appendix-d", **given)
    call = only(parts, "vg compare examples").removeprefix("vg ")
    check(call, grounded_above=100, examples=3)  # appendix D: three of each type


def test_the_optimiser_of_pretraining(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Mapping[str, Any]] = []
    adam = torch.optim.AdamW

    def spy(groups: Any, **settings: Any) -> torch.optim.AdamW:
        given.append(settings)
        return adam(groups, **settings)

    monkeypatch.setattr(torch.optim, "AdamW", spy)
    shape, words = save_shape(tmp_path / "s.json"), save_tokenizer(tmp_path / "words")
    (tmp_path / "t.txt").write_text("bam den kon\n" * 20)
    call = ["pretrain", tmp_path / "t.txt", "--shape", shape, "-t", words, "-o", tmp_path / "run"]
    call += ["--steps", 1, "--batch-size", 2, "--block", 8, "--device", "cpu", "-q"]
    assert cli.run([str(word) for word in call]) == 0
    # Code of vokenization; BERT's, LXMERT's and VisualBERT's have the same.
    assert [(settings["eps"], settings["betas"]) for settings in given] == [(1e-6, (0.9, 0.999))]


@pytest.mark.parametrize(
    ("shape", "layers", "width", "heads", "inner"),
    [
        # Section 4.2: 12 layers of 768 (BERT base), and 6 layers; their 512, 8 and 2048: code.
        ("bert-base", 12, 768, 12, 3072),
        ("bert-small", 6, 512, 8, 2048),
        ("roberta-base", 12, 768, 12, 3072),
        ("roberta-small", 6, 512, 8, 2048),
    ],
)
def test_a_shape_of_vokenization(
    shape: str, layers: int, width: int, heads: int, inner: int
) -> None:
    from transformers import AutoConfig

    values = dict(masked_lm.SHAPES[shape])
    found = AutoConfig.for_model(values.pop("model_type"), **values)
    assert (found.num_hidden_layers, found.hidden_size) == (layers, width)
    assert (found.num_attention_heads, found.intermediate_size) == (heads, inner)


# -------------------------------------------------------------------------------------- visualbert


VISUALBERT_FILES = dict.fromkeys(
    ("COCO_REGIONS", "KARPATHY", "FLICKR30K_REGIONS", "ENTITIES", "VQA", "VQA_REGIONS", "VCR",
     "VCR_REGIONS", "NLVR2", "NLVR2_REGIONS"), "@"
)  # fmt: skip


def test_pretraining_of_visualbert(make: Make) -> None:
    calls = make("visualbert", "paper", "table7", **VISUALBERT_FILES)
    table7 = "paper/regions-36"
    models = ("visualbert", "without-early-fusion", "without-grounded", "without-bert",
              "without-objective-2")  # fmt: skip
    runs = ["paper/coco/visualbert", "paper/before/visualbert/flickr"]
    runs += [f"{table7}/coco/{model}" for model in models]
    runs += [f"{table7}/before/{model}/nlvr2" for model in (*models, "without-coco")]
    assert f"{table7}/coco/without-coco" not in calls  # table 7
    for run in runs:
        before = "/before/" in run
        check(
            calls[run],
            epochs=10,  # code
            batch_size=128,  # appendix B: "chosen to meet hardware constraints"; code: 32 to 128
            lr=5e-5,  # code
            warmup=0.1,  # appendix B: 10 % of the steps
            block=128,  # appendix B: longer texts are capped
            mask_rate=0.15,  # appendix A.1, as BERT
            # Section A.3: masked words alone before a task; table 7.
            weight=("mlm=1",) if before or "objective" in run else (),
            text_only=run == f"{table7}/coco/without-grounded",  # table 7
            late_fusion="without-early-fusion" in run,  # table 7
            shape="bert-base" if run == f"{table7}/coco/without-bert" else None,  # table 7
            region_start="drawn",  # code
            boxes=36 if table7 in run else 100 if before else None,  # appendices C, B.4
        )


def test_the_rate_of_coco_with_the_detector_of_vcr(make: Make) -> None:
    calls = make("visualbert", "paper", COCO_LR="1e-4", **VISUALBERT_FILES)
    check(calls["paper/coco/visualbert"], lr=1e-4)  # code
    check(calls["paper/before/visualbert/flickr"], lr=5e-5)  # code


def test_pretraining_of_visualbert_on_the_texts_of_tasks(make: Make) -> None:
    """Settings of the released code; boxes as `VISUALBERT_TASKS`."""
    calls = make("visualbert", "table1", **VISUALBERT_FILES)
    for name, (epochs, batch, warmup, boxes) in {
        "vqa": (10, 64, 0.1, 100),
        "vcr": (1, 32, 0.1879, None),
        "nlvr2": (10, 128, 0.1, 144),
    }.items():
        call = calls[f"paper/before/visualbert/{name}"]
        check(call, epochs=epochs, batch_size=batch, warmup=warmup, boxes=boxes, lr=5e-5)
        check(call, block=128, weight=("mlm=1",), encoder="paper/coco/visualbert")


VISUALBERT_TASKS = {
    # Epochs, batch and rate: code. Boxes: appendices B.1 to B.4, table 7. Length: appendix B.
    "tasks/visualbert/vqa": (10, 64, 2e-5, 128, 100),
    "tasks/visualbert/vcr-qa": (8, 32, 2e-5, 128, None),
    "tasks/visualbert/vcr-qar": (12, 32, 2e-5, 128, None),
    "tasks/visualbert/nlvr2": (10, 64, 2e-5, 128, 144),
    "tasks/visualbert/flickr30k-grounding": (5, 32, 2e-5, 128, 100),
    "regions-36/tasks/without-coco/nlvr2": (10, 64, 2e-5, 128, 36),
}


def test_tasks_of_visualbert(make: Make) -> None:
    targets = ("vqa", "vcr", "nlvr2", "grounding", "table7")
    calls = make("visualbert", *targets, **VISUALBERT_FILES)
    for name, (epochs, batch, lr, length, boxes) in VISUALBERT_TASKS.items():
        call = calls[f"paper/{name}"]
        found = tuned(call)
        assert (found["epochs"], found["batch_size"]) == (epochs, batch), call
        assert (found["lr"], found["max_length"]) == (lr, length), call
        assert found["warmup"] == 0.1, call  # appendix B
        check(call, boxes=boxes)


def test_the_probe_of_visualbert(make: Make) -> None:
    call = make("visualbert", "paper", **VISUALBERT_FILES)["paper/probe"]
    check(call, relations="10", split="val")  # table 2; section 3.1: of the validation set


def test_the_answers_of_vqa(make: Make) -> None:
    call = make("visualbert", "vqa", **VISUALBERT_FILES)["paper/tasks/visualbert/vqa"]
    # Appendix B.1: the 3,129 most frequent; code: those are the answers of 9 questions or more.
    check(call, answers=None)
    assert ANSWERED == 9


def test_numbers_of_regions_of_footnote_4(make: Make) -> None:
    calls = make("visualbert", "boxes", **VISUALBERT_FILES)
    for count in (9, 18, 36, 72, 144):
        for run in ("coco/visualbert", "before/visualbert/nlvr2", "tasks/visualbert/nlvr2"):
            check(calls[f"paper/regions-{count}/{run}"], boxes=count)


# --------------------------------------------------------------------------------------- grounding

SPLITS = ("train", "dev", "test")
BANKS = ("COCO", "CC", "SBU", "WIKI_BC", "IMAGENET", "FASTTEXT", "LXMERT")
STRATEGIES = {
    # Table 2: strategy, K, clusters, regions. Section 3.3: K = 16, 8 clusters.
    "none": ("none", None, None, None),
    "i2t": ("i2t", None, None, None),
    "t2i": ("t2i", None, None, None),
    "both": ("both", None, None, None),
    "keyword": ("keyword", 16, None, None),
    "scene": ("scene", 16, None, None),
    "scene1": ("scene", 1, None, None),
    "object1": ("object", 1, 1, None),
    "object": ("object", 16, 8, None),
}


def test_pretraining_of_grounding(make: Make) -> None:
    calls = make("grounding", "table1", "table2", **dict.fromkeys(BANKS, "@"))
    runs = {name: call for name, call in calls.items() if call.startswith("pretrain grounding")}
    expected = {f"paper/s0/run.{name}": row for name, row in STRATEGIES.items()}
    expected |= {
        f"paper/coco/run.{name}": row
        for name, row in STRATEGIES.items()
        if name not in ("t2i", "both")  # table 2 has them on Wiki-BC alone
    }
    for boxes in (8, 16, 36):  # table 1
        expected[f"paper/coco/run.n{boxes}"] = ("i2t", None, None, boxes)
    assert set(runs) == set(expected)
    for name, (strategy, images, clusters, regions) in expected.items():
        check(
            runs[name],
            strategy=strategy,
            images=images,
            clusters=clusters,
            boxes=regions,
            encoder="albert/albert-base-v2",  # section 3.3
            cross_layers=None,  # section 3.3: a whole second ALBERT
            block=64,  # section 3.3: clipped to 64
            mask_rate=0.15,  # section 3.3
            query="masked",  # section 2.4, footnote 3
            drop_images=0.0,  # not in the paper
            epochs=10,  # section 3.3 refers to LXMERT: its code
            batch_size=256,  # LXMERT's code
            lr=1e-4,  # LXMERT's code
            warmup=0.05,  # LXMERT's code
        )
    images = calls["paper/bank.npy"]
    check(images, backbone="tf_efficientnet_b1.ns_jft_in1k", pooling="max")  # section 3.3
    # Section 3.2: synsets with at least 10 images, drawn where there are more.
    check(calls["paper/synsets.jsonl"], least=10, most=10)
    check(calls["paper/keyword.jsonl"], keywords=8)  # Zhang et al. 2020, code


def test_the_texts_of_grounding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    official.wikipedia(tmp_path / "dump.xml.bz2")
    official.page_views(tmp_path / "views")
    call = [
        "prepare",
        "wikipedia",
        "dump.xml.bz2",
        "--pages",
        "--page-views",
        "views",
        "-o",
        "p.txt",
    ]
    assert cli.run(call) == 0
    made = json.loads((tmp_path / "p.json").read_text())
    assert made["config"]["least_views"] == 20  # section 3.1
    (tmp_path / "texts.txt").write_text("".join(f"{number}\n" for number in range(100)))
    command = ["make", "-s", "-f", str(EXAMPLES / "grounding" / "Makefile"), "VG=false"]
    subprocess.run([*command, "paper/wiki.train.txt", "WIKI_BC=texts.txt"], check=True)
    sizes = {name: len(Path(f"paper/wiki.{name}.txt").read_text().split()) for name in SPLITS}
    assert sizes == {"train": 90, "dev": 5, "test": 5}  # section 3.1, in percent


def test_figure_4_of_grounding(make: Make) -> None:
    calls = make("grounding", "fig4", **dict.fromkeys(BANKS, "@"))
    check(calls["paper/fig4.scene.jsonl"], k=4)  # caption of figure 4
    check(calls["paper/fig4.object.jsonl"], k=4, clusters=2)


def test_numbers_of_images_that_grounding_tries(make: Make) -> None:
    calls = make("grounding", "paper/search-k.jsonl", **dict.fromkeys(BANKS, "@"))
    tried = {
        (params["strategy"], params["images"], params["clusters"])
        for call in calls.values()
        if call.startswith("pretrain grounding")
        for params in [context_of(call).params]
    }
    # Section 3.3, footnote 7: K; at most 8 clusters.
    assert tried == {("scene", k, None) for k in (1, 4, 8, 16, 24)} | {
        ("object", k, min(k, 8)) for k in (1, 4, 8, 16, 24)
    }


def test_tasks_of_grounding(make: Make, tmp_path: Path) -> None:
    for name in ("JOCI", "PDTB", "RTE", "SICK", "VUA"):
        (tmp_path / name).mkdir()
    given = {name: str(tmp_path / name) for name in ("JOCI", "PDTB", "RTE", "SICK", "VUA")}
    more = {"ENCODER": "albert/albert-base-v2", "ROWS": "plain none", "OUT": "paper", "FLICKR": "f"}
    calls = make("grounding", "table3", **given, **more)
    tasks = {call.split()[1]: call for call in calls.values() if call.startswith("finetune")}
    assert set(tasks) == {"joci", "pdtb", "rte", "sick", "vua", "vuan"}  # table 3
    for call in tasks.values():
        found = tuned(call)
        assert (found["epochs"], found["batch_size"], found["lr"]) == (4, 32, 1e-4)  # section 3.3
        assert (found["max_length"], found["keep"]) == (64, "best")  # section 3.3
        assert len(found["seeds"]) == 8  # section 4.2: the median of 8 runs


# -------------------------------------------------------------------------------- visual awareness


def test_the_retriever_of_visual_awareness(make: Make) -> None:
    calls = make("visual-awareness", "retrieval", SCALE="paper", COCO="c", KARPATHY="@", WORDS="w")
    (call,) = (call for call in calls.values() if call.startswith("train-matcher"))
    context = context_of(call)
    names = [field.name for field in dataclasses.fields(RetrieverRecipe)]
    recipe = RetrieverRecipe(**{name: context.params[name] for name in names})
    assert recipe.settings(context, context.params["preset"]) == {
        "text": "sru",  # section 2.1
        "dim": 2400,  # code of Engilberge et al. 2018, as the rest
        "layers": 4,
        "regions": 15,
        "dropout": 0.5,
        "text_dropout": 0.25,
        "loss": "triplet",  # section 2.1, equation 1
        "margin": 0.2,
        "warm_epochs": 0,
        "text_from": 2,
        "epochs": 60,
        "batch_size": 160,
        "lr": 1e-3,
        "schedule": "halving",
        "warmup": 0.0,
        "clip": 0.0,
    }
    assert retriever.MILESTONES == (2, 3, 4, 5, 6)
    names = [field.name for field in dataclasses.fields(BackboneFlags)]
    pixels = BackboneFlags(**{name: context.params[name] for name in names})
    assert pixels.first_epoch(context, "paper", 60) == 8
    assert (pixels.crop, pixels.picture) == (256, 350)
    assert pixels.backbone == "resnet152.tv_in1k"  # section 2.1
    (grid,) = (call for name, call in calls.items() if name.endswith(".grid.npy"))
    check(grid, picture=400, pooling="none")
    (score,) = (call for call in calls.values() if call.startswith("retrieve"))
    check(score, folds=5)  # section 4.1, as Engilberge et al. 2018: 5 folds of 1,000 images


def test_tasks_of_visual_awareness(make: Make) -> None:
    given = dict.fromkeys(("SNLI", "CONLL", "BANK", "FEATS"), "@")
    calls = make("visual-awareness", "table2", "table3", SCALE="paper", **given)
    grids: dict[str, set[tuple[float, int, int]]] = {}
    for name, call in calls.items():
        if "/grid/" in name:
            found = tuned(call)
            task = context_of(call).params["name"]
            point = (found["lr"], found["batch_size"], found["epochs"])
            grids.setdefault(f"{task} {name.split('/')[-2]}", set()).add(point)
    every = {
        (lr, batch, epochs)
        for lr in (8e-6, 1e-5, 2e-5, 3e-5)  # section 4.2
        for batch in (16, 24, 32)  # section 4.2
        for epochs in (2, 3, 4, 5)  # section 4.2: the number of epochs is in [2, 5]
    }
    assert grids == {
        f"{task} {arm}": every for task in ("snli", "conll-2003") for arm in ("base", "va")
    }
    images = [call for call in calls.values() if call.startswith("retrieve")]
    assert len(images) == 2
    for call in images:
        check(call, k=8)  # section 4.1: m = 8


def test_translation_of_visual_awareness(make: Make) -> None:
    given = dict.fromkeys(("WMT_TRAIN", "WMT_DEV", "WMT_TEST", "BANK", "FEATS"), "@")
    calls = make("visual-awareness", "table1", SCALE="paper", **given)
    out = "paper/multi30k"
    check(calls[f"{out}/bpe"], vocabulary=40000)  # section 4.2
    check(calls[f"{out}/pairs/train.images.jsonl"], k=8)  # section 4.1
    for arm in ("base", "found"):
        call = calls[f"{out}/runs/{arm}"]
        check(call, shape="transformer-base")
        found = tuned(call)
        assert found["batch_size"] == 4096 * 4  # section 4.2, source tokens
        assert found["warmup"] == 8000  # section 4.2
        assert found["lr"] == pytest.approx(512**-0.5 * 8000**-0.5)  # Vaswani et al. 2017, eq 3
    size = seq2seq.SHAPES["transformer-base"]  # section 4.2
    assert (size["layers"], size["width"], size["inner"], size["heads"]) == (6, 512, 2048, 8)
    assert translate.SMOOTHING == 0.1  # section 4.2
    config = seq2seq.new_seq2seq("transformer-base", tokenizer()).config
    assert (config.dropout, config.attention_dropout) == (0.1, 0.1)  # section 4.2


# ------------------------------------------------------------------------------------------ xdbert

GLUE = ("rte", "mrpc", "sts-b", "cola", "sst-2", "qnli", "qqp", "mnli")


def test_adaptation_of_xdbert(make: Make) -> None:
    given = {"SCALE": "paper", "OUT": "o", "TEXT": "@", "WIKI": "@", "GLUE": "g"}
    calls = make("xdbert", "adapt", "table3", **given)
    both = ("mlm=1", "match=1", "clip_token=1")  # section 2.3: the sum of the three
    rows = {
        # Table 3: losses, layers (section 2.1: 2), epochs that are trained.
        "xdbert": (both, 2, 1),
        "no-clip-token": (("mlm=1", "match=1"), 2, 1),
        "mlm": (("mlm=1",), 2, 1),
        "one-layer": (both, 1, 1),
        "two-epochs": (both, 2, 2),
        "twenty-epochs": (both, 2, 20),
    }
    shared = {
        "lr": 1e-4,  # appendix C.1
        "epochs": 40,  # appendix C.1: max_epoch
        "warmup": 0.05,  # appendix C.1
        "block": 512,  # appendix B
        "mask_rate": 0.15,  # section 2.3.1
        "batch_size": 256,  # 16k steps are 20 epochs of wiki103 (C.1) in blocks of 512
        "encoder": "google-bert/bert-base-uncased",  # table 1
    }
    for name, (weight, layers, stop) in rows.items():
        call = calls[f"o/run.{name}"]
        teacher = "openai/clip-vit-base-patch32"  # table 4: ViT-B/32
        own = {"weight": weight, "cross_layers": layers, "stop_epoch": stop, "teacher": teacher}
        check(call, **own, **shared, freeze_teacher=False)
    check(calls["o/run.bert"], **shared, stop_epoch=1)  # section 3: one more epoch of wiki103
    # Table 3, "wiki(14G), same steps": the 16k steps of 20 epochs.
    check(calls["o/run.wiki"], steps=16000, lr=1e-4, batch_size=256, block=512)
    for task in ("rte", "mrpc", "sts-b", "cola"):
        found = tuned(calls[f"o/ft3/xdbert/{task}"])
        assert (found["lr"], found["epochs"], found["warmup"]) == (1e-4, 3, 0.1)  # table 3; C.2
        assert len(found["seeds"]) == 5  # table 3


@pytest.mark.parametrize(("size", "short", "others"), [("base", 1e-4, 2e-5), ("large", 5e-5, 1e-5)])
def test_tasks_of_xdbert(make: Make, size: str, short: float, others: float) -> None:
    given = {"SCALE": "paper", "OUT": "o", "TEXT": "@", "GLUE": "g", "SWAG": "s", "READ": "@"}
    calls = make("xdbert", "table1", "table8", **given)
    # The files of tasks are looked for, and none is there.
    calls = {name: re.sub(r"--(train|dev) (?=--)", "", call) for name, call in calls.items()}
    base = (
        "ft/bert",
        "ft/xdbert",
        "ft/electra-b",
        "ft/xdelectra-b",
        "ft8/xdbert",
        "ft8/xdelectra-b",
    )
    large = ("ft/electra-l", "ft/xdelectra-l", "ft8/xdelectra-l")
    for row in base if size == "base" else large:  # tables 1 and 8
        for task in (*GLUE, "swag", "commonlit"):
            found = tuned(calls[f"o/{row}/{task}"])
            lr = short if task in ("rte", "mrpc", "sts-b") else others  # table 5
            assert (found["lr"], found["epochs"]) == (lr, 3), task  # appendix C.2
            assert (found["batch_size"], found["warmup"]) == (32 if task != "swag" else 16, 0.1)
            assert len(found["seeds"]) == (9 if task == "rte" else 5), task  # appendix C.2
            if task != "commonlit":
                assert found["max_length"] == 128, task  # appendix B
    for task in GLUE[:4]:  # table 1 has CLIP-T on these
        assert tuned(calls[f"o/ft/clip-t/{task}"])["max_length"] == 77  # appendix B


# ------------------------------------------------------------------------------ the table of tasks

PLAIN = {
    "warmup": 0.1, "stride": None, "seed": 9595, "clip": 1.0, "schedule": "linear",
    "betas": (0.9, 0.999), "eps": 1e-8, "steps": None, "keep": "last", "weight_decay": 0.0,
}  # fmt: skip
# Vokenization, appendix A.1; length, warm-up, seed and eps: code.
A1 = PLAIN | {"epochs": 3, "learning_rate": 1e-4, "batch_size": 32, "max_length": 126}
SQUAD = A1 | {"learning_rate": 5e-5, "max_length": 384, "stride": 128}  # windows: BERT's code
SWAG = A1 | {"learning_rate": 2e-5, "batch_size": 16, "max_length": 128}
# VisualBERT, appendix B; epochs, rate, batch and eps: code.
VISUAL = PLAIN | {
    "epochs": 10, "learning_rate": 2e-5, "batch_size": 64, "max_length": 128, "eps": 1e-6,
}  # fmt: skip
# Grounding strategies, section 3.3; warm-up: LXMERT's code.
SILEO = PLAIN | {"epochs": 4, "learning_rate": 1e-4, "batch_size": 32, "max_length": 64}
# Visual awareness, section 4.2: in the grid, its warm-up, decay and length; "the same fine-tuning
# procedure as BERT", hence the eps of BERT's code.
GRID = PLAIN | {
    "epochs": 3, "learning_rate": 2e-5, "batch_size": 32, "max_length": 128, "weight_decay": 0.01,
    "eps": 1e-6,
}  # fmt: skip
HYPER: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("cola", "sst-2", "mrpc", "sts-b", "qqp", "mnli", "qnli", "rte", "wnli"), A1),
    "squad-1.1": SQUAD,
    "squad-2.0": SQUAD | {"epochs": 2, "batch_size": 48},
    "swag": SWAG,
    "codah": SWAG,  # of no paper
    "nlvr2": VISUAL,
    "vqa": VISUAL | {"clip": 0.25},
    "vcr-qa": VISUAL | {"epochs": 8, "batch_size": 32},
    "vcr-qar": VISUAL | {"epochs": 12, "batch_size": 32},
    "flickr30k-grounding": VISUAL | {"epochs": 5, "batch_size": 32},
    **dict.fromkeys(("joci", "pdtb", "sick", "vua", "vuan"), SILEO),
    "snli": GRID,
    "conll-2003": GRID,
    # Visual awareness, section 4.2; betas and eps: Vaswani et al. 2017, section 5.3.
    "translation": PLAIN
    | {
        "epochs": 0, "steps": 100_000, "learning_rate": (512 * 8000) ** -0.5, "warmup": 8000,
        "batch_size": 16384, "max_length": 256, "clip": 0.0, "schedule": "inverse-sqrt",
        "betas": (0.9, 0.98), "eps": 1e-9, "keep": "best",
    },
    # XDBERT, appendix C.2, table 5.
    "commonlit": PLAIN
    | {"epochs": 3, "learning_rate": 2e-5, "batch_size": 32, "max_length": 384},
}  # fmt: skip


def test_the_hyper_parameters_of_every_task() -> None:
    found = {task.name: dataclasses.asdict(task.hyper) for task in TASKS}
    for values in found.values():
        assert values.pop("source")
    assert found == HYPER


@pytest.mark.parametrize("task", ["sst-2", "qnli", "qqp", "mnli", "squad-1.1", "squad-2.0", "swag"])
def test_tasks_of_vokenization_are_tuned_as_the_table_says(make: Make, task: str) -> None:
    target = f"t/ft/bert12-vokens/{task}"
    more = {"GLUE": "g", "SQUAD": "s", "SWAG": "w"}
    call = make("vokenization", f"{target}/run.json", **VOKENIZATION, **more)[target]
    found = tuned(call)
    names = {"learning_rate": "lr"}
    for name in ("epochs", "learning_rate", "batch_size", "warmup", "max_length"):
        assert found[names.get(name, name)] == HYPER[task][name], name
    assert found["seeds"] == [9595, 9596, 9597, 9598, 9599]
