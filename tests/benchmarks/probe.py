"""`vg probe-attention`: time to the bare forward pass, and memory over ten times the photos.

A random VisualBERT of MiniLM's shape (6 layers, 12 heads, width 384), 36 regions per photo,
captions of about 15 words with three entities and invented parses. The bare pass takes the very
batches that the probe makes, ready-made. Memory is what the process allocates (RssAnon): the pages
of the region file are the kernel's to drop. There the model has a quarter of the width: as many
heads are counted, in less time, and less is there for a growth to hide.

    python tests/benchmarks/probe.py [--captions 512] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import bench
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from tokenizers import Tokenizer, models, pre_tokenizers, processors

from vgtools.images.regions import RegionSet, open_regions, write_regions
from vgtools.models import attention
from vgtools.models.encoder import as_encoder
from vgtools.systems.attention_probes import region_heads
from vgtools.text.parses import Parse

WIDTH, REGIONS, SIDE = 256, 36, 200
RELATIONS = "det pobj amod nsubj prep dobj punct partmod nn num".split()  # noqa: SIM905


def encoder(width: int = 384) -> attention.TransformersEncoder:
    from transformers import VisualBertConfig, VisualBertModel

    torch.manual_seed(0)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *dict.fromkeys(bench.COMMON)]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    config = VisualBertConfig(
        vocab_size=len(words),
        hidden_size=width,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=4 * width,
        visual_embedding_dim=WIDTH,
        attn_implementation="eager",
    )
    model = VisualBertModel(config).eval().requires_grad_(False)
    return attention.TransformersEncoder(as_encoder(model, tokenizer, "random"))


def world(folder: Path, photos: int) -> Any:
    rng = np.random.default_rng(0)

    def items() -> Iterator[tuple[str, RegionSet]]:
        for number in range(photos):
            corner = rng.integers(0, SIDE - 80, (REGIONS, 2))
            boxes = np.concatenate([corner, corner + rng.integers(20, 80, (REGIONS, 2))], 1).astype(
                np.float64
            )
            features = rng.standard_normal((REGIONS, WIDTH)).astype(np.float32)
            yield (
                f"{number}.jpg",
                RegionSet(
                    features, boxes, rng.random(REGIONS).astype(np.float32), None, SIDE, SIDE
                ),
            )

    write_regions(folder / "r.npy", items(), {}, WIDTH)
    return open_regions(folder / "r.npy")


def captions(regions: Any, count: int) -> Iterator[region_heads.Caption]:
    rng, words = np.random.default_rng(1), bench.COMMON
    for number in range(count):
        chosen = rng.choice(words, int(rng.integers(10, 21))).tolist()
        starts = np.cumsum([0, *(len(w) + 1 for w in chosen)]).tolist()
        image = regions.images[number % len(regions)]
        at = (0, 4, 7)
        spans = [(starts[i], starts[i + 2] - 1) for i in at]
        yield region_heads.Caption(
            number,
            image,
            " ".join(chosen),
            "report",
            spans,
            [regions.of(image).boxes[i : i + 1] for i in at],
        )


def parse(texts: Sequence[str]) -> Iterator[Parse]:
    for text in texts:
        words = text.split()
        starts = np.cumsum([0, *(len(w) + 1 for w in words)]).tolist()
        spans = [(s, s + len(w)) for s, w in zip(starts, words, strict=False)]
        yield Parse(
            spans,
            [-1, *range(len(words) - 1)],
            [RELATIONS[i % len(RELATIONS)] for i in range(len(words))],
        )


class Recorder(region_heads.GroundingProbe):
    """Keeps the batches that a probe asks its model about."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.batches: list[region_heads.ProbeBatch] = []

    def _step(
        self, batch: region_heads.ProbeBatch, row: Any, first: Any, last: Any, hits: Any
    ) -> tuple[Any, Any]:
        self.batches.append(batch)
        shape = (len(row), self.encoder.layers * self.encoder.heads)
        return np.zeros(shape, bool), np.zeros(shape, np.float32)


def speed(count: int, rounds: int) -> None:
    model = encoder()
    with tempfile.TemporaryDirectory() as folder:
        regions = world(Path(folder), count // 2)
        given = list(captions(regions, count))
        recorder = Recorder(model, regions, parse)
        recorder.run(iter(given))

        def bare() -> None:
            with torch.inference_mode():
                for b in recorder.batches:
                    for _ in model.attentions(b.ids, b.text_mask, b.regions, b.region_mask):
                        pass

        ways = {
            "bare": bare,
            "entities": lambda: region_heads.GroundingProbe(model, regions).run(iter(given)),
            "relations": lambda: region_heads.GroundingProbe(model, regions, parse).run(
                iter(given)
            ),
        }
        seconds = bench.in_turns(ways, rounds)
    facts = bench.machine() | {"captions_per_second": round(count / seconds["relations"], 1)}
    for way in ("entities", "relations"):
        bench.report(
            "probe",
            f"{way}: time to the bare forward pass",
            seconds[way] / seconds["bare"],
            "<= 1.5",
            **facts,
        )


def memory(photos: int) -> None:
    """Print the most MiB that this process allocated while it probed photos of two captions."""
    peak, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.05):
            lines = Path("/proc/self/status").read_text().splitlines()
            peak[0] = max(
                peak[0], int(next(x for x in lines if x.startswith("RssAnon")).split()[1])
            )

    with tempfile.TemporaryDirectory() as folder:
        regions, model = world(Path(folder), photos), encoder(96)
        thread = threading.Thread(target=watch)
        thread.start()
        region_heads.GroundingProbe(model, regions, parse).run(captions(regions, 2 * photos))
        stop.set()
        thread.join()
    print(json.dumps(peak[0] / 1024))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--captions", type=int, default=512)
    parser.add_argument(
        "--photos",
        type=int,
        default=256,
        help="of the small run; the large one has ten times as many",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=["speed", "memory"])
    given = parser.parse_args()
    if given.memory:
        memory(given.memory)
        return
    if given.only != "memory":
        speed(given.captions, given.rounds)
    if given.only == "speed":
        return
    if Path("/proc/self/status").exists():
        sizes = (given.photos, 10 * given.photos)
        small, large = (
            json.loads(
                subprocess.run(
                    [sys.executable, __file__, "--memory", str(n)],
                    stdout=subprocess.PIPE,
                    check=True,
                ).stdout
            )
            for n in sizes
        )
        sums = {
            f"mib_at_{n}_photos": round(mib) for n, mib in zip(sizes, (small, large), strict=True)
        }
        bench.report(
            "probe",
            "memory of ten times the photos",
            large / small,
            "<= 1.1",
            **sums,
            **bench.machine(),
        )


if __name__ == "__main__":
    main()
