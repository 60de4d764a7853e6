"""`vg pretrain` in 8 processes against one: what each pays for its batches, what their start costs.

- step: processor time of the batches of a step of 256 blocks of 128 tokens, in one of 8 processes
  to that of a process that is alone (the all-reduce of two counts left out);
- start: the longest path of processor time from the start to the end of a run of one step on a
  large corpus, 8 processes to one. The first process hashes and checks the corpus, then all others
  open it at once: each adds what a run on the large corpus takes longer than on a small one. With
  a core for each that is the time that a user waits, which fewer cores cannot show.

    python tests/benchmarks/ranks.py [--rounds 3] [--mb 256] [--ranks 8]
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import bench
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.tiny.lm import make_tokenizer, save_shape, save_tokenizer
from vgtools.systems.vokenization import voken_lm as system
from vgtools.text.blocks import Corpus, Packed
from vgtools.text.tokens import tokenizer_fingerprint
from vgtools.text.vokens import VokenWriter
from vgtools.training import processes
from vgtools.training.steps import plan

VOCABULARY, VOKENS, BLOCKS, STEPS = 30_522, 50_000, 256, 8


def batches(corpus: Corpus, ranks: int) -> Callable[[], None]:
    """Return what builds the batches of some steps in the first of several processes."""
    recipe = system.VokenMasking((101,), (102,), 103, 0, VOCABULARY, VOKENS)

    def build() -> None:
        alone = {"WORLD_SIZE": str(ranks), "RANK": "0"}
        with mock.patch.dict(os.environ, alone), mock.patch.object(processes, "total", list):
            cut = plan(len(corpus), BLOCKS, BLOCKS // ranks, epochs=1, processes=ranks)
            made = list(system.make_batches(corpus, recipe, cut)(0, 0))
        assert len(made) == STEPS
        assert made[0].ids.shape[0] == BLOCKS // ranks

    return build


def step(ranks: int, rounds: int, facts: Mapping[str, Any]) -> None:
    size = 126 * BLOCKS * STEPS
    rng = np.random.default_rng(0)
    pairs = np.column_stack([rng.integers(1000, VOCABULARY, size), rng.integers(0, VOKENS, size)])
    corpus = Corpus([Packed("drawn", pairs, np.array([len(pairs)]))], 126)
    ways = {"one": batches(corpus, 1), "many": batches(corpus, ranks)}
    seconds = bench.in_turns(ways, rounds)
    what = f"batches of a step: a process of {ranks} to one alone"
    milliseconds = {f"{name}_ms": 1000 * took / STEPS for name, took in seconds.items()}
    ratio = seconds["many"] / seconds["one"]
    bench.report("ranks", what, ratio, "<= 0.2", **facts, **milliseconds)


def save_corpus(path: Path, tokens: int) -> Path:
    """Write packed rows of 100 tokens of the tiny language, drawn."""
    rng = np.random.default_rng(0)
    rows = [{"vokens": rng.integers(0, 10, 100).tolist()} for _ in range(1000)]
    ids = rng.integers(5, 20, 100_000).astype(np.int32)
    with VokenWriter(str(path), {}, restart=True) as out:
        for _ in range(max(1, tokens // 100_000)):
            out.write(rows, ids)
        out.commit("x")
        out.finish(tokenizer={"sha256": tokenizer_fingerprint(make_tokenizer())})
    return path


def start(folder: Path, corpus: Path, ranks: int) -> float:
    """Return the processor time, in seconds, of a run of one step in some processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    run = folder / f"run.{corpus.stem}.{ranks}"
    arguments = f"-m vgtools pretrain lm {corpus} --shape {folder / 'shape.json'} -t {folder / 't'}"
    arguments += f" --weight mlm=1 --steps 1 --block 32 --batch-size 64 --device cpu -q -o {run}"
    started = [
        subprocess.Popen(
            [sys.executable, *arguments.split(), "--restart"],
            env=os.environ | common | {"WORLD_SIZE": str(ranks), "RANK": str(i)},
            stdout=subprocess.DEVNULL,
        )
        for i in range(ranks)
    ]
    took = 0.0
    for _ in started:
        _, status, used = os.wait3(0)
        assert status == 0
        took += used.ru_utime + used.ru_stime
    return took


def starts(ranks: int, rounds: int, megabytes: int, facts: Mapping[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        save_shape(folder / "shape.json")
        save_tokenizer(folder / "t")
        small = save_corpus(folder / "small.npy", 100_000)
        large = save_corpus(folder / "large.npy", megabytes * 1_000_000 // 8)
        more: dict[int, list[float]] = {1: [], ranks: []}
        whole = list[float]()  # of one process
        for _ in range(rounds):
            for count in more:
                took = start(folder, large, count)
                whole += [took] if count == 1 else []
                more[count].append(took - start(folder, small, count))
    one, many = (statistics.median(more[count]) for count in (1, ranks))
    other = (many - one) / (ranks - 1)
    alone = statistics.median(whole)
    seconds = {"one_s": alone, "of_corpus_s": one, "of_corpus_another_s": other}
    ratio = (alone + other) / alone
    what = f"start, longest path: {ranks} processes to one"
    bench.report("ranks", what, ratio, "<= 1.3", **facts, mb=megabytes, **seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mb", type=int, default=256, help="size of the large corpus")
    parser.add_argument("--ranks", type=int, default=8)
    given = parser.parse_args()
    facts = bench.machine()
    step(given.ranks, given.rounds, facts)
    starts(given.ranks, given.rounds, given.mb, facts)


if __name__ == "__main__":
    main()
