"""Measure each term of the cost of vokens here, and print hours, GPUs and bytes of a corpus.

    python cost.py --tokens 2.9e9 --images 1e6 --workers 64 --hours 24 [--text FILE]

Here the terms are measured on a few thousand lines and pictures, on one core in seconds of
processor time, or on a GPU if there is one. Those of a GPU are computed from operations per token
at a rate that `--tflops` names: the product of matrices that the GPU keeps up, not its data sheet.

    hours = max(device, host, storage) / workers + load + tail
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vgtools.images.featurizer import Featurizer
from vgtools.io.files import compress, dumps
from vgtools.models.backbone import load_backbone
from vgtools.models.encoder import load_encoder
from vgtools.models.references import pick_device
from vgtools.retrieval.device import DeviceBank
from vgtools.retrieval.exact import exact_search
from vgtools.retrieval.index import Index
from vgtools.systems.vokenization import vokenize as system
from vgtools.systems.vokenization.matcher import MatcherConfig, TokenImageMatcher
from vgtools.text.tokens import Tokens, tokenize

DIM = 64  # width of the space that tokens and images share
BERT = 191e6  # operations per token of BERT-base and its matcher, without the search
HOUR = 3600.0


def seconds(device: torch.device, way: Callable[[], object], rounds: int = 2) -> float:
    """Return the least seconds of some rounds, in processor time or on a GPU."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    taken = list[float]()
    for _ in range(rounds):
        start = clock()
        way()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(clock() - start)
    return min(taken)


def worker_of(device: torch.device) -> system.Vokenizer:
    """Return an encoder with a random matcher of the paper's shape and a bank of one image."""
    encoder = load_encoder("builtin:minilm", device=str(device))
    config = MatcherConfig(
        text_width=4 * encoder.width,
        image_width=DIM,
        hidden=256,
        dim=DIM,
        sentence=False,
        root=False,
    )
    model = TokenImageMatcher(config).eval().requires_grad_(False).to(device)
    matcher = system.Matcher(model, encoder, {}, "random", "random")
    return system.Vokenizer(matcher, Index("vg.faiss", [], {"dim": DIM}, None, unit(1)))


def unit(count: int) -> np.ndarray[Any, Any]:
    """Return random directions, (count, DIM) float32."""
    vectors = np.random.default_rng(count).standard_normal((count, DIM), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def of_text(device: torch.device, texts: Sequence[str]) -> dict[str, float]:
    """Measure what a token costs, without its search."""
    worker = worker_of(device)
    tokenizer = worker.matcher.encoder.tokenizer
    tokens: Tokens = tokenize(tokenizer, texts)
    count = len(tokens.ids)
    rows = b"".join(map(dumps, worker(texts, tokens).rows()))
    host = torch.device("cpu")
    return {
        "text": sum(len(text.encode()) + 1 for text in texts) / count,
        "jsonl": len(rows) / count,
        "zst": len(compress(rows, "x.zst")) / count,
        "packed": 8.0 + 8.0 * len(texts) / count,
        "tokenise": count / seconds(host, lambda: tokenize(tokenizer, texts)),
        "encode": count / seconds(device, lambda: worker(texts, tokens)),
    }


def of_search(device: torch.device, queries: int = 1024, images: int = 50_000) -> dict[str, float]:
    """Measure exact search: seconds of one query in one image, and its share of a bare product."""
    asked = unit(queries)
    bank = unit(images)
    if device.type == "cpu":
        taken = seconds(device, lambda: exact_search(asked, bank))
    else:
        placed = DeviceBank(bank, device)
        there = torch.from_numpy(asked).to(device)
        taken = seconds(device, lambda: placed.search(there, 1))
    side = 1024
    square = torch.randn(side, side, device=device)
    rate = 2 * side**3 / seconds(device, lambda: square @ square, 4)
    each = taken / queries / images
    return {"search": each, "share": 2 * DIM / each / rate, "gflops": rate / 1e9}


def of_photos(device: torch.device, count: int = 16) -> dict[str, float]:
    """Measure decoding and the backbone on photos of 500 x 375 with edges and grain."""
    dice = np.random.default_rng(0)
    files = list[BytesIO]()
    for _ in range(count):
        patches = Image.fromarray(dice.integers(0, 255, (12, 16, 3), np.uint8))
        grain = dice.normal(0, 11, (375, 500, 3))
        photo = np.asarray(patches.resize((500, 375)), np.float32) + grain
        files.append(BytesIO())
        Image.fromarray(photo.clip(0, 255).astype(np.uint8)).save(files[-1], "JPEG", quality=90)
    net = load_backbone("builtin:efficientnet-lite0", device=str(device))
    maker = Featurizer(net.model, net.preprocessing, batch_size=8)

    def decode() -> torch.Tensor:
        pictures = [maker.pixels(Image.open(file).convert("RGB")) for file in files]
        return torch.from_numpy(np.stack(pictures))

    loaded = [maker.normalise(part) for part in decode().split(8)]

    def forward() -> None:
        with torch.inference_mode():
            for part in loaded:
                net.model.forward_features(part)

    return {
        "photo": sum(file.tell() for file in files) / count,
        "decode": count / seconds(torch.device("cpu"), decode),
        "backbone": count / seconds(device, forward),
        "feature": 2.0 * net.model.num_features,
    }


def size(count: float) -> str:
    """Return bytes for people."""
    for name in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or name == "TB":
            break
        count /= 1000
    return f"{count:,.3g} {name}"


def table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows as Markdown, the first as headings."""
    for number, row in enumerate(rows):
        print("|", " | ".join(row), "|")
        if not number:
            print("|---" * len(row) + "|")


def main() -> None:
    """Measure the terms and print the cost of a corpus and a bank from them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=float, required=True, help="tokens of the corpus")
    parser.add_argument("--images", type=float, required=True, help="images of the bank")
    parser.add_argument("--workers", type=int, default=1, help="cores, or GPUs if there is one")
    parser.add_argument("--hours", type=float, default=24, help="within which it is to be done")
    parser.add_argument("--text", help="a sample of the corpus; by default vg's own pages")
    parser.add_argument("--lines", type=int, default=200, help="lines of the sample")
    parser.add_argument("--tflops", type=float, default=400, help="peak of a GPU, in bfloat16")
    parser.add_argument("--share", type=float, default=0.25, help="share that an encoder gets")
    given = parser.parse_args()
    device = pick_device("auto")
    pages = Path(__file__).parents[2]
    files = [Path(given.text)] if given.text else sorted(pages.glob("*.md"))
    lines = [line for file in files for line in file.read_text("utf-8").split("\n") if line]
    found = of_text(device, lines[: given.lines]) | of_search(device) | of_photos(device)
    print_terms(found, device)
    print_costs(found, device, given)


def print_terms(found: dict[str, float], device: torch.device) -> None:
    """Print the measurements."""
    unit_name = "core, processor time" if device.type == "cpu" else "GPU"
    micro = found["search"] * 1e12
    table(
        [
            ("term", f"measured here, per {unit_name}"),
            ("text in", f"{found['text']:.1f} B per token"),
            (
                "packed / jsonl / jsonl.zst out",
                f"{found['packed']:.1f} / {found['jsonl']:.0f} / {found['zst']:.1f} B per token",
            ),
            ("tokenising, a core", f"{found['tokenise']:,.0f} tokens/s"),
            ("MiniLM, matcher and rows", f"{found['encode']:,.0f} tokens/s"),
            ("exact search", f"{micro:,.1f} µs per query and million images"),
            (
                "search, of the bare product",
                f"{found['share']:.2f} of {found['gflops']:,.0f} GFLOP/s",
            ),
            ("decoding, a core", f"{found['decode']:,.0f} photos/s of {size(found['photo'])}"),
            ("backbone (efficientnet-lite0)", f"{found['backbone']:,.0f} photos/s"),
        ]
    )
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    print(f"\ntorch {torch.__version__}, {torch.get_num_threads()} thread(s), load {load}.\n")


def print_costs(found: dict[str, float], device: torch.device, given: argparse.Namespace) -> None:
    """Print the cost of a corpus and a bank."""
    tokens = given.tokens
    images = given.images
    here = {
        "tokenising, cores": tokens / found["tokenise"],
        "encoder": tokens / found["encode"],
        "exact search": tokens * images * found["search"],
        "decoding, cores": images / found["decode"],
        "backbone": images / found["backbone"],
    }
    rate = given.tflops * 1e12
    gpu = {
        "encoder": tokens * BERT / rate / given.share,
        "exact search": tokens * 2 * DIM * images / rate,
    }
    kind = "core" if device.type == "cpu" else "GPU"
    rows = [("cost", f"{kind}-hours here", "GPU-hours, BERT-base, computed")]
    for name, taken in here.items():
        computed = f"{gpu[name] / HOUR:,.3g}" if name in gpu else ""
        rows.append((name, f"{taken / HOUR:,.3g}", computed))
    table(rows)
    work = sum(here[name] for name in ("tokenising, cores", "encoder", "exact search"))
    computed = sum(gpu.values())
    print(
        f"\n{tokens:,.3g} tokens, {images:,.3g} images: {work / HOUR / given.workers:,.3g} hours "
        f"on {given.workers} workers like this one; "
        f"{max(1, -(-computed // (given.hours * HOUR))):,.0f} GPUs of {given.tflops:g} TFLOP/s for "
        f"{given.hours:g} hours, each with {tokens_rate(found, tokens, computed):.1f} cores that "
        "tokenise."
    )
    print(
        f"Text {size(tokens * found['text'])}; vokens {size(tokens * found['packed'])} packed, "
        f"{size(tokens * found['jsonl'])} jsonl, {size(tokens * found['zst'])} jsonl.zst; photos "
        f"{size(images * found['photo'])}, features {size(images * found['feature'])} in float16, "
        f"index {size(images * DIM * 4)}."
    )


def tokens_rate(found: dict[str, float], tokens: float, computed: float) -> float:
    """Return the cores whose tokenising keeps up with a GPU."""
    return tokens / computed / found["tokenise"]


if __name__ == "__main__":
    main()
