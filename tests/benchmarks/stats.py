"""`vg stats`: tokens per second of one core against plain Counters, and memory as text grows.

Both ways run in turns on the same text; each line is one JSON object.

    python tests/benchmarks/stats.py [--text FILE] [--sentences 100000] [--rounds 3] \\
        [--tokenizer builtin:minilm]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np

os.environ["TOKENIZERS_PARALLELISM"] = "false"

from vgtools.io.streams import read_texts
from vgtools.models.references import load_tokenizer
from vgtools.text.ngrams import PairCounts, Pieces, WordTypes, count


def write_text(path: Path, sentences: int) -> None:
    """Write sentences of about 25 words by Zipf's law, one word in 200 with an accent."""
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    words = np.array(["".join(rng.choice(letters, n)) for n in rng.integers(2, 11, 200_000)])
    words[::200] = np.char.add(words[::200], "é")
    ends = rng.choice([".", " .", "?", ", and so on."], sentences)
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, sentences, 10_000):
            rows = min(10_000, sentences - start)
            lengths = rng.integers(10, 40, rows)
            drawn = words[np.minimum(rng.zipf(1.2, lengths.sum()) - 1, len(words) - 1)]
            for i, row in enumerate(np.split(drawn, np.cumsum(lengths)[:-1])):
                file.write(" ".join(row.tolist()).capitalize() + ends[start + i] + "\n")


def plainly(text: Path) -> int:
    """Count 1-grams and 2-grams as one would without this package."""
    token = re.compile(r"\w+|[^\w\s]")
    unigrams, bigrams = Counter[str](), Counter[tuple[str, str]]()
    with text.open(encoding="utf-8") as lines:
        for line in lines:
            words = token.findall(line.lower())
            unigrams.update(words)
            bigrams.update(pairwise(words))
    return unigrams.total()


def streaming(text: Path, tokenizer: str | None, pairs: bool) -> int:
    types = WordTypes() if tokenizer is None else Pieces(load_tokenizer(tokenizer), tokenizer)
    counter = PairCounts() if pairs else None
    found = count(read_texts(text), types, counter)
    if counter is not None:
        counter.runs()
    return found.tokens


def peak(text: Path, memory: int) -> int:
    """Return the most MiB that `vg stats` with a reference holds."""
    code = (
        "import resource, sys; from vgtools.cli import run; run(sys.argv[1:]); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, file=sys.stderr)"
    )
    args = ["stats", str(text), "-r", str(text), "-q", "--memory", str(memory)]
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, check=True
    )
    return int(done.stderr.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", type=Path)
    parser.add_argument("--sentences", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokenizer", default="builtin:minilm")
    options = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    machine = {
        "commit": commit,
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
    }
    with tempfile.TemporaryDirectory() as folder:
        text = options.text or Path(folder, "text.txt")
        if options.text is None:
            write_text(text, options.sentences)
        ways: dict[str, Callable[[], int]] = {
            "Counter of words and of pairs": lambda: plainly(text),
            "words, 1-grams": lambda: streaming(text, None, False),
            "words, 1-grams and 2-grams": lambda: streaming(text, None, True),
            "word-pieces, 1-grams and 2-grams": lambda: streaming(text, options.tokenizer, True),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, way in ways.items():
                start = time.process_time()
                tokens = way()
                rates[name].append(tokens / (time.process_time() - start))
        base = statistics.median(rates["Counter of words and of pairs"])
        for name, values in rates.items():
            middle = statistics.median(values)
            print(
                json.dumps(
                    {
                        "way": name,
                        "tokens_per_cpu_second": round(middle),
                        "ratio": round(middle / base, 2),
                        "reach": 1_000_000,
                        **machine,
                    }
                ),
                flush=True,
            )
        if options.text is None:
            for factor in (1, 4):
                write_text(text, factor * options.sentences)
                for memory in (1024, 16):
                    print(
                        json.dumps(
                            {
                                "sentences": factor * options.sentences,
                                "--memory": memory,
                                "peak_mib": peak(text, memory),
                                **machine,
                            }
                        ),
                        flush=True,
                    )


if __name__ == "__main__":
    main()
