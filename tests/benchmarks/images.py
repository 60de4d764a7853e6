"""Image features: the command against the bare network, and against decoding, then computing.

All rates are taken in one run, in turns, on photos that the benchmark draws; each line is one JSON
object.

    python tests/benchmarks/images.py [--images 96] [--rounds 3] [--device cpu] \\
        [--backbone builtin:efficientnet-lite0]
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from timm.data import create_transform

from vgtools.images.extract import FeatureOutput, extract
from vgtools.images.featurizer import Featurizer, describe, emulates_bfloat16
from vgtools.images.sources import open_source
from vgtools.io.errors import DataError
from vgtools.models.backbone import load_backbone
from vgtools.models.references import pick_device


def draw_photos(folder: Path, count: int) -> float:
    """Write JPEG files of 500x375 pixels with edges, gradients and grain.

    Return their mean size in bytes.
    """
    rng = np.random.default_rng(0)
    total = 0
    for number in range(count):
        patches = Image.fromarray(rng.integers(0, 255, (12, 16, 3), np.uint8)).resize(
            (500, 375), Image.Resampling.NEAREST
        )
        clouds = Image.fromarray(rng.integers(0, 255, (40, 50, 3), np.uint8)).resize(
            (500, 375), Image.Resampling.BICUBIC
        )
        grain = rng.normal(0, 11, (375, 500, 3))
        picture = (
            0.4 * np.asarray(patches, np.float32) + 0.6 * np.asarray(clouds, np.float32) + grain
        )
        stream = io.BytesIO()
        Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(stream, "JPEG", quality=90)
        (folder / f"{number}.jpg").write_bytes(stream.getvalue())
        total += stream.tell()
    return total / count


def rates(ways: dict[str, Callable[[], None]], count: int, rounds: int) -> dict[str, float]:
    """Return the median images/s of each way.

    They take turns, so that a drifting machine treats all alike.
    """
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if turn:  # the first turn warms up
                found[name].append(count / (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--backbone", default="builtin:efficientnet-lite0")
    given = parser.parse_args()
    device = pick_device(given.device)
    batch = 8 if device.type == "cpu" else 64
    try:
        (
            own,
            nets,
        ) = (  # the command's networks, which it lays out and folds for speed, and the bare ones
            {
                name: load_backbone(given.backbone, device=str(device), dtype=name)
                for name in ("float32", "bfloat16")
            }
            for _ in range(2)
        )
        for net in nets.values():
            net.model.to(memory_format=torch.channels_last)
        plain = load_backbone(given.backbone, device=str(device))
    except DataError as error:
        sys.exit(f"tests/benchmarks/images.py: {error}")
    with tempfile.TemporaryDirectory() as folder:
        measure(given, Path(folder), device, batch, own, nets, plain)


def measure(
    given: argparse.Namespace,
    folder: Path,
    device: torch.device,
    batch: int,
    own: dict[str, Any],
    nets: dict[str, Any],
    plain: Any,
) -> None:
    photos = folder / "photos"
    photos.mkdir()
    size = draw_photos(photos, given.images)
    makers = {
        name: Featurizer(net.model, net.preprocessing, batch_size=batch)
        for name, net in own.items()
    }
    files = sorted(photos.iterdir())
    uint8 = torch.from_numpy(
        np.stack([makers["float32"].pixels(Image.open(f).convert("RGB")) for f in files])
    )
    loaded = {
        name: [maker.normalise(part) for part in uint8.split(batch)]
        for name, maker in makers.items()
    }
    large = [makers["float32"].normalise(part) for part in uint8.split(32)]
    cores, threads = len(os.sched_getaffinity(0)), torch.get_num_threads()
    transform = create_transform(**plain.preprocessing, is_training=False)

    def settle() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    def bare(model: Any, parts: list[torch.Tensor]) -> None:
        with torch.inference_mode():
            for part in parts:
                model.forward_features(part).mean((2, 3))
        settle()

    def bare_threads(name: str) -> None:
        def one(part: torch.Tensor) -> None:
            with torch.inference_mode():
                nets[name].model.forward_features(part).mean((2, 3))

        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(one, loaded[name]))
        torch.set_num_threads(threads)

    def command(name: str) -> None:
        source = open_source(str(photos))
        with FeatureOutput(
            str(folder / "f.npy"), {"name": name}, makers[name], source, [str(photos)], restart=True
        ) as out:
            for rows in extract(source, makers[name]):
                out.write(rows)
            out.finish({"preprocessing": describe(nets[name].preprocessing)})

    def one_after_the_other() -> None:
        with torch.inference_mode():
            for start in range(0, len(files), 32):
                pictures = [
                    transform(Image.open(file).convert("RGB")) for file in files[start : start + 32]
                ]
                plain.model.forward_features(torch.stack(pictures).to(device)).mean((2, 3)).cpu()

    def decode_only() -> None:
        for file in files:
            makers["float32"].pixels(Image.open(file).convert("RGB"))

    ways: dict[str, Callable[[], None]] = {
        "bare forward, float32, batch 32": lambda: bare(nets["float32"].model, large),
        f"bare forward, float32, batch {batch}": lambda: bare(
            nets["float32"].model, loaded["float32"]
        ),
        f"bare forward, bfloat16, batch {batch}": lambda: bare(
            nets["bfloat16"].model, loaded["bfloat16"]
        ),
        "decoding and resizing, one thread": decode_only,
        "command, float32": lambda: command("float32"),
        "command, bfloat16": lambda: command("bfloat16"),
        "Pillow, then float32": one_after_the_other,
    }
    if device.type == "cpu":
        ways["bare forward, float32, one thread per core"] = lambda: bare_threads("float32")
    if emulates_bfloat16(device):  # ten times slower: its ratio would say nothing about the program
        ways = {name: way for name, way in ways.items() if "bfloat16" not in name}
    found = rates(ways, given.images, given.rounds)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    machine = {
        "machine": platform.processor() or platform.machine(),
        "cores": cores,
        "device": str(device),
    }
    if device.type == "cuda":
        machine["device"] = torch.cuda.get_device_name(device)
    common = {
        "benchmark": "images",
        "backbone": given.backbone,
        "commit": commit,
        **machine,
        "load": os.getloadavg()[0],
    }
    print(json.dumps({**common, "photos": given.images, "bytes": round(size)}))
    for name, rate in found.items():
        print(json.dumps({"benchmark": "images", "what": name, "images_per_s": round(rate, 1)}))
    bare_best = max(
        found["bare forward, float32, batch 32"], found[f"bare forward, float32, batch {batch}"]
    )
    targets = [("command to bare forward, float32", found["command, float32"] / bare_best, 0.9)]
    if "command, bfloat16" in found:
        ratio = found["command, bfloat16"] / found["Pillow, then float32"]
        targets.append(("bfloat16 command to Pillow, then float32", ratio, 1.9))
    else:
        why = "not measured: this CPU has no bfloat16 instructions"
        print(
            json.dumps(
                {
                    "benchmark": "images",
                    "what": "bfloat16 command to Pillow, then float32",
                    "note": why,
                }
            )
        )
        ratio = found["command, float32"] / found["Pillow, then float32"]
        print(
            json.dumps(
                {
                    "benchmark": "images",
                    "what": "float32 command to Pillow, then float32",
                    "ratio": round(ratio, 3),
                }
            )
        )
    for name, ratio, target in targets:
        row = {"what": name, "ratio": round(ratio, 3), "target": target, "met": ratio >= target}
        print(json.dumps({"benchmark": "images", **row}))
    if device.type == "cpu":
        strict = found["command, float32"] / found["bare forward, float32, one thread per core"]
        row = {"what": "command to bare forward of one thread per core", "ratio": round(strict, 3)}
        print(json.dumps({"benchmark": "images", **row}))


if __name__ == "__main__":
    main()
