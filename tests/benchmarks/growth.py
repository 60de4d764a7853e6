"""Time and memory of every command that streams, at ten times the rows and ten times those.

Networks are tiny and random, so that what is left is the program's own: reading, writing, what it
holds. One row per command and number of rows: seconds of the processor with the start of Python,
and the most memory of the process. A table follows on stderr. The last two sizes are compared: ten
times the rows may take eleven times as long, beyond the start, and 5 % more memory.

    python tests/benchmarks/growth.py [COMMAND …] [--rows 1000 10000 100000]

`make growth` runs it up to 10,000 rows, ROWS="1000 10000 100000 1000000" further.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import bench
import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.tiny import save_encoder, save_feats, save_run_of
from tests.tiny.images import save_backbone
from vgtools.cli import run
from vgtools.io.files import dumps

# Not `ru_maxrss`, which a process inherits from the one that started it.
CODE = """
import re, resource, sys
from pathlib import Path
from vgtools.cli import run
code = run(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
held = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())
print(used.ru_utime + used.ru_stime, int(held[1]) / 1024, file=sys.stderr)
sys.exit(code)
"""
IMAGES = 60


class Growing(NamedTuple):
    """A command; {n} is the number of rows, and `inputs` makes the files of so many."""

    argv: str
    inputs: Callable[[int], None]
    most: int = 10**6  # rows beyond which its inputs would take minutes to make


def texts(count: int) -> None:
    if not Path(f"text.{count}.txt").exists():
        lines = bench.sentences(None, count)
        Path(f"text.{count}.txt").write_text("".join(f"{line}\n" for line in lines))


def captions(count: int) -> None:
    with Path(f"captions.{count}.jsonl").open("wb") as file:
        for number, line in enumerate(bench.sentences(None, count)):
            file.write(dumps({"image": f"image{number % IMAGES:03}", "text": line}))


def voken_rows(count: int) -> None:
    """Write a token per word, as `vg vokenize` does."""
    path = Path(f"vokens.{count}.jsonl")
    if path.exists():
        return
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        for text in bench.sentences(None, count):
            ends = np.cumsum([len(word) + 1 for word in text.split(" ")]) - 1
            starts = np.concatenate([[0], ends[:-1] + 1])
            row = {"text": text, "spans": np.column_stack([starts, ends])}
            row["vokens"] = rng.integers(0, IMAGES, len(ends))
            row["scores"] = np.round(rng.random(len(ends), np.float32), 4)
            file.write(dumps(row))


def found_rows(count: int) -> None:
    """Write texts with images, as `vg retrieve` does."""
    with Path(f"found.{count}.jsonl").open("wb") as file:
        for number, text in enumerate(bench.sentences(None, count)):
            images = [(number + step) % IMAGES for step in range(4)]
            file.write(dumps({"text": text, "images": images, "scores": [0.4, 0.3, 0.2, 0.1]}))


def feats(count: int) -> None:
    rows = np.random.default_rng(0).standard_normal((count, 12))
    path = Path(f"feats.{count}.npy")
    save_feats(path, rows)
    # More than a thousand names would have three digits or four.
    path.with_suffix(".ids").write_text("".join(f"image{n:07}\n" for n in range(count)))
    facts = json.loads(path.with_suffix(".json").read_text())
    from vgtools.io.files import write_manifest

    kept = {key: facts[key] for key in ("kind", "backbone")}
    write_manifest(path, [path, path.with_suffix(".ids")], **kept)


def photos(count: int) -> None:
    folder = Path(f"photos.{count}")
    folder.mkdir(exist_ok=True)
    for number in range(count):
        color = (number % 251, number // 251 % 251, 90)
        Image.new("RGB", (16, 12), color).save(folder / f"{number:07}.jpg")


COMMANDS = {
    "vokenize": Growing(
        "vokenize text.{n}.txt --index vg.faiss --device cpu -o {n}.v.jsonl", texts
    ),
    "vokenize, packed": Growing(
        "vokenize text.{n}.txt --index vg.faiss --device cpu -o {n}.packed.npy", texts
    ),
    "vokenize, parquet": Growing(
        "vokenize text.{n}.txt --index vg.faiss --device cpu -o {n}.table.parquet", texts
    ),
    "revokenize": Growing("revokenize vokens.{n}.jsonl -t encoder -o {n}.r.jsonl", voken_rows),
    "retrieve": Growing(
        "retrieve text.{n}.txt --index vg.faiss -k 4 --device cpu -o {n}.f.jsonl", texts
    ),
    "retrieve, keywords": Growing(
        "retrieve text.{n}.txt --index words.jsonl -k 4 -o {n}.k.jsonl", texts
    ),
    "stats": Growing("stats text.{n}.txt -r text.{n}.txt --memory 64", texts),
    "show": Growing("show vokens.{n}.jsonl --ids vg.ids", voken_rows),
    "show, page": Growing(
        "show vokens.{n}.jsonl --ids shown.ids --images pictures --limit {n} -o {n}.html",
        voken_rows,
    ),
    "show, page of images": Growing(
        "show found.{n}.jsonl --ids shown.ids --images pictures --limit {n} -o {n}.f.html",
        found_rows,
    ),
    "build-index": Growing("build-index feats.{n}.npy -m run --device cpu -o {n}.faiss", feats),
    "extract-image-feats": Growing(
        "extract-image-feats photos.{n} -b net --device cpu --workers 1 -o {n}.p.npy", photos, 1000
    ),
    "prepare sentences": Growing("prepare sentences text.{n}.txt -o {n}.s.txt", texts),
}  # fmt: skip


def artefacts() -> None:
    """Write what commands need besides their rows into the working directory."""
    folder = Path()
    save_run_of(folder / "run", save_encoder(folder / "encoder"))
    bank = save_feats(folder / "feats.npy")
    for args in (
        ["build-index", str(bank), "-m", "run", "-o", "vg.faiss", "--device", "cpu", "-q"],
        ["build-index", "captions.100.jsonl", "--keywords", "3", "-o", "words.jsonl", "-q"],
    ):
        captions(100)
        if run(args):
            sys.exit(f"vg {' '.join(args)} failed")
    save_backbone(folder / "net")
    names = [f"image{number:03}.jpg" for number in range(IMAGES)]
    (folder / "shown.ids").write_text("".join(f"{name}\n" for name in names))
    (folder / "pictures").mkdir()
    for number, name in enumerate(names):
        Image.new("RGB", (32, 24), (number, 0, 90)).save(folder / "pictures" / name)


def measure(name: str, count: int) -> tuple[float, float] | None:
    """Return the seconds and MiB of a command on some rows; None if it takes no more rows."""
    growing = COMMANDS[name]
    if count > growing.most:
        return None
    growing.inputs(count)
    words = growing.argv.format(n=count).split()
    if words[0] != "stats":
        words.append("-q")
    with open(os.devnull, "wb") as nowhere:
        command = [sys.executable, "-c", CODE, *words]
        done = subprocess.run(command, stdout=nowhere, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"vg {' '.join(words)}: {done.stderr.strip()}")
    seconds, held = done.stderr.split()[-2:]
    return float(seconds), float(held)


def table(found: dict[str, list[tuple[float, float] | None]], rows: list[int]) -> None:
    """Print seconds and MiB of each size, and what the last step in size costs."""
    heads = ("command", *(f"{n:,} rows" for n in rows), "time", "memory", "")
    lines = [heads]
    for name, sizes in found.items():
        cells = ["" if size is None else f"{size[0]:.1f} s {size[1]:.0f} MiB" for size in sizes]
        known = [size for size in sizes if size is not None]
        ratios = ["", "", ""]
        if len(known) > 2:
            (start, _), (small, less), (large, more) = known[-3:]
            # Where the start takes nearly all of it, the ratio says nothing.
            time = f"{(large - small) / (small - start):.1f} x" if small > 1.2 * start else ""
            ratios = [time, f"{more / less:.2f} x", "flat" if more <= 1.05 * less else "GROWS"]
        lines.append((name, *cells, *ratios))
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    for line in lines:
        text = "  ".join(x.ljust(width) for x, width in zip(line, widths, strict=True))
        print(text.rstrip(), file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commands", nargs="*", help=f"some of {', '.join(COMMANDS)}; none is all")
    parser.add_argument("--rows", nargs="+", type=int, default=[100, 1000, 10_000])
    given = parser.parse_args()
    found = dict[str, list[tuple[float, float] | None]]()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        artefacts()
        for name in given.commands or COMMANDS:
            found[name] = []
            for count in given.rows:
                size = measure(name, count)
                found[name].append(size)
                if size is not None:
                    what = f"{name}, {count:,} rows"
                    bench.report("growth", f"{what}: seconds", size[0], rows=count)
                    bench.report("growth", f"{what}: MiB", size[1], rows=count)
    table(found, given.rows)


if __name__ == "__main__":
    main()
