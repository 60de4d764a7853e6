"""`vg vokenize`: tokens per second, share of the GEMM rate.

All ways give the vokens of the same sentences to the same bank, tokenising and writing included, in
turns in one run:

- fixed: batches of 32 sentences padded to 128 tokens, the model as transformers loads it, one faiss
  search per batch, json.dumps;
- longest: the same, padded to the longest of the batch;
- ours: what the command does; with bfloat16 where the processor has it.

The share of the GEMM rate is of the fastest library's that the machine has, used or not. `gpu.py`
measures a GPU.

    python tests/benchmarks/vokenize.py [--text FILE] [--sentences 1000] [--images 50000] \\
        [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import bench
import numpy as np
import torch
from transformers import AutoModel

sys.path.insert(0, str(Path(__file__).parents[2]))  # the tiny networks of the tests

from vgtools.io.files import dumps
from vgtools.io.streams import Window
from vgtools.models.encoder import Encoder, load_encoder
from vgtools.models.products import Linear
from vgtools.models.references import builtin_path
from vgtools.retrieval.index import Index
from vgtools.systems.vokenization import vokenize as system
from vgtools.systems.vokenization.matcher import MatcherConfig, TokenImageMatcher
from vgtools.text.tokens import tokenize

Array = np.ndarray[Any, Any]


def matcher_of(encoder: Encoder, device: torch.device) -> system.Matcher:
    """Return a random matcher of the paper's shape: last 4 layers, 256, 64."""
    torch.manual_seed(0)
    config = MatcherConfig(
        text_width=4 * encoder.width, image_width=64, hidden=256, dim=64, sentence=False, root=False
    )
    matcher = TokenImageMatcher(config).eval().requires_grad_(False).to(device)
    return system.Matcher(matcher, encoder, {}, "random", "random")


def bank_of(matcher: system.Matcher, count: int) -> Array:
    feats = np.random.default_rng(0).standard_normal((count, 64)).astype(np.float32)
    return system.embed_bank(matcher, feats, [str(i) for i in range(count)])(np.arange(count))


@torch.inference_mode()
def padded(
    matcher: system.Matcher, flat: Any, texts: Sequence[str], width: int | None
) -> list[list[int]]:
    """Vokenize in padded batches of 32 in corpus order: what a plain program does."""
    encoder = matcher.encoder
    found = list[list[int]]()
    out = list[str]()
    device = encoder.model.get_input_embeddings().weight.device
    for start in range(0, len(texts), 32):
        batch = encoder.tokenizer.encode_batch(texts[start : start + 32])
        ids = [e.ids for e in batch]  # none is longer than 128
        longest = width or max(map(len, ids))
        block = torch.tensor([row + [0] * (longest - len(row)) for row in ids], device=device)
        mask = torch.tensor(
            [[1] * len(row) + [0] * (longest - len(row)) for row in ids], device=device
        )
        states = encoder.model(
            input_ids=block, attention_mask=mask, output_hidden_states=True
        ).hidden_states
        inner = mask.bool()
        for i, row in enumerate(ids):
            inner[i, 0] = inner[i, len(row) - 1] = False
        lengths = torch.tensor([len(row) - 2 for row in ids], device=device)
        emb = matcher.matcher.embed_tokens(torch.cat(states[-4:], -1)[inner].float(), lengths)
        scores, rows = flat.search(emb.cpu().numpy(), 1)
        at = 0
        for i, row in enumerate(ids):
            part = slice(at, at + len(row) - 2)
            found.append(rows[part, 0].tolist())
            spans = [list(s) for s in batch[i].offsets[1 : len(row) - 1]]
            line = {
                "text": texts[start + i],
                "spans": spans,
                "vokens": found[-1],
                "scores": scores[part, 0].tolist(),
            }
            out.append(json.dumps(line))
            at = part.stop
    return found


def ours(worker: system.Vokenizer, texts: Sequence[str], packed: bool = False) -> list[list[int]]:
    windows = [
        Window("t", i + 1, list(texts[i : i + 4096]), "") for i in range(0, len(texts), 4096)
    ]
    fresh = (
        system.Vokenizer(worker.matcher, worker.index, pack=worker.encoder.pack)
        if not packed
        else worker
    )
    found = list[list[int]]()
    for _, vokens in system.vokenize(windows, fresh):
        if packed:
            np.column_stack([vokens.tokens.ids, vokens.vokens[:, 0]]).tobytes()
        else:
            rows = vokens.rows()
            b"".join(map(dumps, rows))
            found += [row["vokens"].tolist() for row in rows]
    return found


def peak_gemm(device: torch.device, dtype: torch.dtype) -> float:
    """Return the best FLOP/s of a large matrix product here and now."""
    shapes = (2048, 1536, 1536), (2048, 384, 1536), (4096, 1024, 1024)
    return max(bench.best_product(shapes, device, dtype).values())


def flops_a_token(encoder: Encoder, images: int, length: float) -> float:
    h, f = encoder.width, encoder.model.config.intermediate_size
    layer = 2 * (4 * h * h + 2 * h * f) + 4 * (length + 2) * h
    return (
        encoder.layers * layer * (length + 2) / length
        + 2 * (4 * h * 256 + 256 * 64)
        + 2 * 64 * images
    )


def on_cpu(given: argparse.Namespace, device: torch.device) -> None:
    import faiss

    matcher = matcher_of(load_encoder("builtin:minilm"), device)
    encoder = matcher.encoder
    texts = bench.sentences(given.text, given.sentences)
    # Every way has all tokens to do: no sentence is longer than the fixed width.
    tokens = tokenize(encoder.tokenizer, texts)
    texts = [t for t, n in zip(texts, np.diff(tokens.starts), strict=True) if 0 < n <= 126]
    count = len(tokenize(encoder.tokenizer, texts).ids)
    bank = bank_of(matcher, given.images)
    flat = faiss.IndexFlatIP(64)
    flat.add(bank)
    index = Index("vg.faiss", [], {"dim": 64}, None, bank)
    worker = system.Vokenizer(matcher, index)
    # As transformers loads it: nothing of ours may speed up what ours is compared to.
    model = AutoModel.from_pretrained(builtin_path("builtin:minilm")).eval()
    usual = replace(matcher, encoder=replace(encoder, model=model))
    assert not any(isinstance(layer, Linear) for layer in model.modules())
    ways: dict[str, Any] = {
        "fixed 128": lambda: padded(usual, flat, texts, 128),
        "longest in batch": lambda: padded(usual, flat, texts, None),
        "ours, float32": lambda: ours(worker, texts),
    }
    if torch.ops.mkldnn._is_mkldnn_bf16_supported() and torch.cpu._is_avx512_bf16_supported():
        low = load_encoder("builtin:minilm", dtype="bfloat16")
        ways["ours, bfloat16"] = lambda: ours(
            system.Vokenizer(replace(matcher, encoder=low), index), texts
        )
    peak = peak_gemm(device, torch.float32)
    seconds = bench.in_turns(ways, given.rounds)
    peak = max(peak, peak_gemm(device, torch.float32))
    facts = {"sentences": len(texts), "tokens": count, "images": given.images, **bench.machine()}
    for name, time_of in seconds.items():
        bench.report("vokenize", f"{name}, tokens/s", count / time_of, **facts)
    fast = seconds["ours, float32"]
    bench.report(
        "vokenize", "speed, to padding to 128", seconds["fixed 128"] / fast, ">= 6.5", **facts
    )
    bench.report(
        "vokenize",
        "speed, to padding to the longest",
        seconds["longest in batch"] / fast,
        ">= 2.7",
        **facts,
    )
    share = count / fast * flops_a_token(encoder, given.images, count / len(texts)) / peak
    bench.report(
        "vokenize",
        "share of the GEMM rate",
        share,
        ">= 0.7",
        gemm_gflops=round(peak / 1e9),
        **facts,
    )
    if "ours, bfloat16" in seconds:
        ratio = seconds["fixed 128"] / seconds["ours, bfloat16"]
        bench.report("vokenize", "bfloat16: speed, to padding to 128", ratio, ">= 10", **facts)
    else:
        print(
            json.dumps(
                {
                    "benchmark": "vokenize",
                    "what": "bfloat16: speed, to padding to 128",
                    "note": "not measured: this CPU has no bfloat16 instructions",
                }
            ),
            flush=True,
        )
    one, other = ways["ours, float32"](), ways["longest in batch"]()
    same = np.mean(
        [a == b for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True)]
    )
    bench.report(
        "vokenize", "vokens equal to those of padded batches", float(same), ">= 0.9999", **facts
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    on_cpu(given, torch.device("cpu"))


if __name__ == "__main__":
    main()
