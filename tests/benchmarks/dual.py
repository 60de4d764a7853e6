"""A dual encoder in the place of a matcher, against a trained matcher whose encoder has its size.

Both give the same sentences vokens from a bank of the same size, tokenising and writing rows
included, with one encoder's layers (MiniLM's) and random weights: the trained one with the shape of
BERT, the untrained one with that of CLIP. A ratio is of tokens per second, the median of rounds of
which each runs all ways. A word in its template is embedded when it first occurs: `word` knows the
words, as it does nearly all of a long text; `word, all new` knows none (give a --text: the invented
one has a hundred words).

    python tests/benchmarks/dual.py \\
        [--text FILE] [--sentences 1000] [--images 6000] [--rounds 5]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import bench
import torch
from transformers import CLIPTextConfig, CLIPTextModelWithProjection
from vokenize import bank_of, matcher_of, ours

from vgtools.io.files import dumps
from vgtools.io.streams import Window
from vgtools.models.dual import DualEncoder, DualTexts, Logits
from vgtools.models.encoder import as_encoder, load_encoder
from vgtools.models.products import quicken
from vgtools.models.references import load_tokenizer
from vgtools.retrieval.index import Index
from vgtools.systems.vokenization import vokenize as system
from vgtools.systems.vokenization.dual import READING, DualEmbedding, Reading
from vgtools.text.clip_bpe import frame_texts
from vgtools.text.tokens import tokenize

_DIM = 64  # of both spaces


def dual_like(config: Any) -> system.Matcher:
    """Return a random CLIP, whose text tower has the layers of an encoder's configuration."""
    torch.manual_seed(0)
    tokenizer = frame_texts(load_tokenizer("builtin:clip-bpe"), "builtin:clip-bpe")
    size = max(tokenizer.get_vocab().values()) + 1
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    shape = {name: getattr(config, name) for name in names}
    text = CLIPTextConfig(**shape, vocab_size=size, projection_dim=_DIM)
    tower = quicken(CLIPTextModelWithProjection(text)).eval().requires_grad_(False)
    encoder = as_encoder(DualTexts(tower), tokenizer, "random", "random")
    dual = DualEncoder(replace(encoder, width=_DIM), None, {}, _DIM, "random", Logits(100.0, None))
    return system.Matcher(
        DualEmbedding(dual).eval(), dual.texts, {}, "random", "random", READING, dual.logits
    )


def again(worker: system.Vokenizer, texts: Sequence[str]) -> None:
    """Give sentences vokens and make their rows, with the words that the worker knows."""
    windows = [
        Window("t", i + 1, list(texts[i : i + 4096]), "") for i in range(0, len(texts), 4096)
    ]
    for _, vokens in system.vokenize(windows, worker):
        b"".join(map(dumps, vokens.rows()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    texts: Sequence[str] = bench.sentences(given.text, given.sentences)
    trained = matcher_of(load_encoder("builtin:minilm"), torch.device("cpu"))
    bank = bank_of(trained, given.images)
    untrained = dual_like(trained.encoder.model.config)

    def worker(matcher: system.Matcher) -> system.Vokenizer:
        return system.Vokenizer(matcher, Index("vg.faiss", [], {"dim": _DIM}, None, bank))

    readings: tuple[Reading, ...] = get_args(Reading)
    workers = {reading: worker(replace(untrained, reading=reading)) for reading in readings}
    ways: dict[str, Any] = {"trained": partial(again, worker(trained), texts)}
    ways |= {name: partial(again, one, texts) for name, one in workers.items()}
    ways["word, all new"] = partial(ours, workers["word"], texts)
    seconds = bench.in_turns(ways, given.rounds)
    ours_count, theirs = (
        len(tokenize(each.encoder.tokenizer, texts).ids) for each in (untrained, trained)
    )
    facts = {"sentences": len(texts), "images": given.images, **bench.machine()}
    fast = theirs / seconds.pop("trained")
    bench.report("dual", "trained, tokens/s", fast, **facts)
    for name, took in seconds.items():
        bench.report("dual", f"{name}, tokens/s", ours_count / took, **facts)
        ratio = ours_count / took / fast
        bench.report("dual", f"speed of {name}, to a trained matcher", ratio, ">= 0.8", **facts)


if __name__ == "__main__":
    main()
