"""An epoch of `vg train-matcher`: the share of its time that is not the arithmetic of its steps.

python tests/benchmarks/matcher.py [--captions 12000] [--rounds 3]

Arithmetic are the passes, the clipping and the optimizer of steps whose batches are there. The
rest reads the states of tokens, draws and builds batches, and keeps records. States are random:
only their number and width, those of MiniLM with four layers, decide the time.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import bench
import numpy as np
import torch

from vgtools.io.settings import entries
from vgtools.models.encoder import load_encoder
from vgtools.models.packed import PackedEncoder
from vgtools.systems.vokenization.matcher import TokenImageMatcher
from vgtools.systems.vokenization.matcher_training import (
    HiddenStates,
    States,
    make_batches,
    tokenize_captions,
)
from vgtools.systems.vokenization.recipe import MatcherConfig, MatcherTraining
from vgtools.training.loop import train
from vgtools.training.steps import plan_for, train_config

LAYERS = 4
WIDTH = 2048  # of image features, ResNeXt's
PER_IMAGE = 5


def states_of(packed: PackedEncoder, tokens: object, rng: np.random.Generator) -> HiddenStates:
    """Return states of captions without computing them."""
    states = HiddenStates(packed, tokens, 0)  # type: ignore[arg-type] # computes none yet
    counts = (len(tokens.ids), *[len(tokens.starts) - 1] * 2)  # type: ignore[attr-defined]
    width = LAYERS * packed.encoder.width
    states._kept = States(
        *(torch.from_numpy(rng.standard_normal((n, width), np.float32)).half() for n in counts)
    )
    return states


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--captions", type=int, default=12_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    encoder = load_encoder("builtin:minilm", device="cpu", states=True)
    texts = bench.sentences(None, given.captions)
    images = [number // PER_IMAGE for number in range(given.captions)]
    captions, _ = tokenize_captions(texts, images, encoder.tokenizer, encoder.max_tokens)
    packed = PackedEncoder(encoder, LAYERS)
    states = states_of(packed, captions.tokens, rng)
    feats = rng.standard_normal((given.captions // PER_IMAGE + 1, WIDTH), np.float32)
    shape = MatcherConfig(text_width=LAYERS * encoder.width, image_width=WIDTH)
    config = {**entries(MatcherTraining()), "seed": 0, "epochs": 1}
    cpu = torch.device("cpu")
    batches = make_batches(captions, states, feats, shape, config["batch_size"], 0, cpu)
    made = list(batches(0, 0))
    plan = plan_for(len(captions.images), {**config, "steps": None})
    settings = train_config({**config, "weight_decay": 0.0, "clip": 5.0}, plan, log_every=10)

    def epoch() -> None:
        torch.manual_seed(0)
        matcher = TokenImageMatcher(shape)
        for _ in train(matcher, batches, settings, weights=matcher.losses):
            pass

    def arithmetic() -> None:
        torch.manual_seed(0)
        matcher = TokenImageMatcher(shape).train()
        optimizer = torch.optim.AdamW(matcher.parameters(), 1e-3, weight_decay=0.0, fused=True)
        for batch in made:
            losses = matcher(batch)
            sum(losses[name] * weight for name, weight in matcher.losses.items()).backward()
            torch.nn.utils.clip_grad_norm_(matcher.parameters(), 5.0)
            optimizer.step()
            optimizer.zero_grad()

    seconds = bench.in_turns({"epoch": epoch, "arithmetic": arithmetic}, given.rounds)
    facts = {"captions": given.captions, "tokens": len(captions.tokens.ids), **bench.machine()}
    name = Path(__file__).stem
    rate = len(captions.tokens.ids) / seconds["epoch"]
    bench.report(name, "train-matcher epoch, tokens/s", rate, **facts)
    share = 1 - seconds["arithmetic"] / seconds["epoch"]
    bench.report(name, "share of an epoch that is not arithmetic", share, "<= 0.08", **facts)


if __name__ == "__main__":
    main()
