"""`vg pretrain grounding`: what images cost, as ratios within one run.

- step: forward, backward and AdamW of `none` against a masked language model of the same encoder on
  the same tokens (64 per text); of K = 16 against K = 1;
- slots: the cross-modal encoder alone, 1 to 576 slots: time, and memory added; without dropout, as
  on a CPU torch's fused attention has none (with it, each layer holds its (T + S)² weights there);
- retrieval: masks, words, search and features of a step of captions (16 tokens, K = 16) against
  that step, by scene, by object and by keyword, in a bank of 6,000 and of 100,000 images.

    python tests/benchmarks/grounding.py [--rounds 3] [--texts 8]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import bench
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.tiny.grounding import tagger
from vgtools.io.arrays import Array
from vgtools.io.artifact import Features
from vgtools.models.encoder import load_masked_lm
from vgtools.models.masked_lm import linear_cross_entropy, mlm_hidden
from vgtools.retrieval.build import make_index
from vgtools.retrieval.index import Index
from vgtools.systems.grounding.association import Associator, Keywords, Objects, Scene
from vgtools.systems.grounding.inputs import GroundedExamples, GroundedMasking, WordBank
from vgtools.systems.grounding.model import GroundedBatch, GroundedMaskedLM, GroundingConfig
from vgtools.systems.grounding.pictures import WholePictures
from vgtools.systems.grounding.texts import read_texts
from vgtools.text.word_vectors import WordVectors
from vgtools.training.loop import TrainConfig, make_optimizer

D, E, SETTINGS = 1280, 300, TrainConfig(1, 1)


def batch_of(texts: int, slots: int, tokens: int = 64) -> GroundedBatch:
    """Return random texts that all have `slots` slots, 15 % of the tokens masked."""
    torch.manual_seed(0)
    masked = torch.arange(0, texts * tokens, 7)
    return GroundedBatch(
        ids=torch.randint(1000, 30000, (texts, tokens)),
        text_mask=torch.ones(texts, tokens, dtype=torch.bool),
        slots=torch.randn(texts, slots, D),
        slot_mask=torch.ones(texts, slots, dtype=torch.bool),
        masked=masked,
        tokens=torch.randint(1000, 30000, (len(masked),)),
        regions=torch.zeros(0, 2, dtype=torch.int64),
        targets=torch.zeros(0, D),
        token_count=len(masked),
        region_count=1.0,
    )


def model_of(images: int) -> GroundedMaskedLM:
    strategy = "scene" if images else "none"
    shape = GroundingConfig(strategy, images, int(images > 0), D if images else 0, 6)
    return GroundedMaskedLM(load_masked_lm("builtin:minilm").model, shape).train()


def stepper(model: torch.nn.Module, loss: Callable[[], torch.Tensor]) -> Callable[[], None]:
    """Return one optimiser step."""
    optimizer = make_optimizer(model, SETTINGS)

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def steps(texts: int, rounds: int, facts: dict[str, Any]) -> float:
    """Report the ratios of steps; return the seconds of one of short texts with K = 16."""
    lm = load_masked_lm("builtin:minilm").model.train()
    plain = batch_of(texts, 0)

    def mlm() -> torch.Tensor:
        mask = plain.text_mask.long()
        states = lm.base_model(input_ids=plain.ids, attention_mask=mask).last_hidden_state
        rows = mlm_hidden(lm)(states.flatten(0, 1)[plain.masked])
        decoder = lm.get_output_embeddings()
        loss = linear_cross_entropy(rows, decoder.weight, decoder.bias, plain.tokens)
        return loss / plain.token_count

    ways = {"mlm": stepper(lm, mlm)}
    shapes = {"0": (0, 64), "1": (1, 64), "16": (16, 64), "1 short": (1, 16), "16 short": (16, 16)}
    for name, (images, tokens) in shapes.items():
        model = model_of(images)
        batch = batch_of(texts * 64 // tokens, images, tokens)
        ways[name] = stepper(model, lambda m=model, b=batch: m(b)["jmlm"])  # type: ignore[misc]
    found = bench.in_turns(ways, rounds)
    report = bench.report
    report("step", "none to a masked LM", found["0"] / found["mlm"], "<= 1.45", **facts)
    report("step", "K = 16 to 1, T = 64", found["16"] / found["1"], "<= 1.25", **facts)
    short = found["16 short"] / found["1 short"]
    report("step", "K = 16 to 1, T = 16", short, "<= 1.6", **facts)
    return found["16 short"]


def slots(count: int) -> None:
    """Print seconds and the MiB added by the layers alone, 8 texts of 64 tokens."""
    torch.manual_seed(0)
    layers = model_of(1).cross.layers.eval()
    states = torch.randn(8, 64 + count, 384, requires_grad=True)
    mask = torch.ones(8, 64 + count, dtype=torch.bool)
    layers(states[:1, :4], mask[:1, :4]).sum().backward()
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    base = peak_kib()
    start = bench.clock()
    layers(states, mask).sum().backward()
    seconds = bench.clock() - start
    print(json.dumps({"seconds": seconds, "mib": (peak_kib() - base) / 1024}))


def peak_kib() -> int:
    """Return the most memory that this process has held."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def all_slots(facts: dict[str, Any]) -> None:
    found = {}
    for count in (1, 16, 36, 128, 576):
        done = subprocess.run(
            [sys.executable, __file__, "--slots", str(count)],
            capture_output=True,
            text=True,
            check=True,
        )
        found[count] = json.loads(done.stdout)
    one = found[1]
    for count, record in found.items():
        grown = (64 + count) / 65
        for name, target in (("seconds", "<= 1.35"), ("mib", "<= 1.35")):
            value = record[name] / one[name] / grown
            what = f"{count} slots to 1, {name}, per T + S"
            bench.report("slots", what, value, target, **record, **facts)


def banks(size: int, words: list[str], shares: Array) -> dict[str, Associator]:
    """Return what finds images by scene, object and keyword; an image has 40 keywords."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((len(words), E)).astype(np.float32)
    table = WordVectors("words.npy", vectors, "f", {word: i for i, word in enumerate(words)})
    keys = rng.standard_normal((size, E)).astype(np.float32)
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    index = Index("x.faiss", [str(i) for i in range(size)], {}, make_index(keys), keys)
    stop = frozenset[str]()
    drawn = rng.choice(len(words), 40 * size, p=shares)
    number, image = np.divmod(np.unique(drawn * size + np.arange(len(drawn)) % size), size)
    starts = np.searchsorted(number, np.arange(len(words) + 1))
    return {
        "scene": Scene(index, table, stop),
        "object": Objects(index, table, stop, tagger(frozenset(words[::2]))),
        "keyword": Keywords(index.ids, table.rows, image.astype(np.int32), starts, stop),
    }


def retrieval(texts: int, rounds: int, step: float, facts: dict[str, Any]) -> None:
    """Report the share of a step of captions that finding their images takes."""
    text = load_masked_lm("builtin:minilm")
    vocabulary = [text.tokenizer.id_to_token(i) for i in range(text.tokenizer.get_vocab_size())]
    words = [word for word in vocabulary if word.isalpha() and len(word) > 2][:10_000]
    shares = 1 / (30 + np.arange(len(words)))  # the vocabulary is in the order of frequency
    shares /= shares.sum()
    drawn = np.random.default_rng(1).choice(words, (texts, 12), p=shares)
    numbers = np.arange(texts)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.txt")
        path.write_text("\n".join(map(" ".join, drawn)))
        for size in (6_000, 100_000):
            for strategy, finder in banks(size, words, shares).items():
                features = Features(np.zeros((size, D), np.float16), finder.ids, {})
                pictures = WholePictures("f.npy", features)
                read = read_texts([str(path)], text.tokenizer, 14, raw=True)
                recipe = GroundedMasking.of(text.tokenizer, strategy=strategy)
                bank = WordBank(finder, np.arange(size), 16, False, {})
                examples = GroundedExamples(read, recipe, pictures, bank)
                plain = GroundedExamples(read, GroundedMasking.of(text.tokenizer))
                ways = {
                    "with": partial(examples.collate, numbers, 0),
                    "without": partial(plain.collate, numbers, 0),
                }
                found = bench.in_turns(ways, 3 * rounds)
                share = (found["with"] - found["without"]) / step
                what = f"{strategy}, bank of {size:,}: share of a step"
                target = "<= 0.02" if size == 6_000 else "<= 0.1"
                bench.report("retrieval", what, share, target, seconds=found["with"], **facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--slots", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.slots:
        slots(given.slots)
        return
    facts = bench.machine()
    step = steps(given.texts, given.rounds, facts)
    retrieval(given.texts * 4, given.rounds, step, facts)
    all_slots(facts)


if __name__ == "__main__":
    main()
