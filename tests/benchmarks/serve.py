"""`vg serve`: tokens per second of many clients, cost of one short sentence, memory over requests.

Seconds are of the server's processor, read from /proc, so that a busy machine changes little.

- 8 clients: they send lines of text at the same time; to `vg vokenize` of the same lines, without
  its start;
- one short sentence: one client, request after request; to the bare forward pass of transformers'
  own model, of the same sentences;
- memory: after a tenth, a half and all of 10,000 requests of all kinds.

    OMP_NUM_THREADS=1 python tests/benchmarks/serve.py [--sentences 1600] [--images 10000] \\
        [--requests 10000]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import bench
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # the tiny networks of the tests

from tests.serving.client import Server
from tests.tiny import save_feats, save_run_of
from vgtools.cli import run
from vgtools.models.encoder import load_encoder
from vgtools.text.tokens import tokenize

CLIENTS = 8


def save_bank(folder: Path, images: int) -> Path:
    """Write an index of a random matcher of the paper's shape over the embedded encoder."""
    shape = {"layers": 4, "hidden": 256, "dim": 64, "image_width": 64}
    save_run_of(folder / "run", Path("builtin:minilm"), **shape)
    feats = np.random.default_rng(0).standard_normal((images, 64))
    save_feats(folder / "feats.npy", feats)
    index = folder / "vg.faiss"
    given = ("build-index", folder / "feats.npy", "-m", folder / "run", "-o", index, "-q")
    assert run([*map(str, given)]) == 0
    return index


def seconds_of(server: Server) -> float:
    """Return the processor seconds of a server so far, of all its threads."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def anonymous(server: Server) -> float:
    """Return the MiB of a server that are not of mapped files."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024


def ask(connection: HTTPConnection, path: str, body: bytes, kind: str = "text/plain") -> bytes:
    connection.request("POST" if body else "GET", path, body, {"Content-Type": kind})
    answer = connection.getresponse()
    data = answer.read()
    assert answer.status == 200, data
    return data


def send(server: Server, bodies: list[bytes]) -> int:
    """Send bodies one after another; return the rows of the answers."""
    connection = server.connect()
    rows = sum(ask(connection, "/api/vokenize", body).count(b"\n") for body in bodies)
    connection.close()
    return rows


def vokenize_seconds(index: Path, texts: list[str], folder: Path) -> float:
    """Return the seconds of `vg vokenize`, less those that one line takes."""
    found = []
    for lines in (texts[:1], texts[:1], texts):  # the first call also imports
        (folder / "t.txt").write_text("".join(f"{line}\n" for line in lines))
        given = ("vokenize", folder / "t.txt", "--index", index, "-o", folder / "v.jsonl")
        start = time.process_time()
        assert run([*map(str, given), "--restart", "--device", "cpu", "-q"]) == 0
        found.append(time.process_time() - start)
    return found[2] - found[1]


def clients(server: Server, index: Path, texts: list[str], folder: Path) -> None:
    """Report the speed of clients that ask at the same time, to that of the command."""
    encoder = load_encoder("builtin:minilm")
    count = len(tokenize(encoder.tokenizer, texts).ids)
    command = vokenize_seconds(index, texts, folder)
    facts = {"tokens": count, **bench.machine()}
    bench.report("serve", "vg vokenize, tokens/s", count / command, **facts)
    for lines, target in ((32, ">= 0.8"), (1, None)):
        parts = ["\n".join(texts[i : i + lines]).encode() for i in range(0, len(texts), lines)]
        start = seconds_of(server)
        with ThreadPoolExecutor(CLIENTS) as pool:
            rows = sum(pool.map(lambda n: send(server, parts[n::CLIENTS]), range(CLIENTS)))  # noqa: B023
        assert rows == len(texts)
        speed = command / (seconds_of(server) - start)
        each = "32 sentences" if lines > 1 else "a sentence"
        what = f"{CLIENTS} clients, {each} per request, to vg vokenize"
        bench.report("serve", what, speed, target, **facts)


@torch.inference_mode()
def short(server: Server, texts: list[str], rounds: int) -> None:
    """Report what one short sentence costs, to the bare forward pass."""
    encoder = load_encoder("builtin:minilm")
    inputs = [torch.tensor([encoder.tokenizer.encode(text).ids]) for text in texts]
    bare, asked = [], []
    for turn in range(rounds + 1):
        start = time.process_time()
        for ids in inputs:
            encoder.model(input_ids=ids, attention_mask=torch.ones_like(ids))
        middle = time.process_time()
        before = seconds_of(server)
        send(server, [text.encode() for text in texts])
        if turn:
            bare.append(middle - start)
            asked.append(seconds_of(server) - before)
    facts = {"ms": round(1000 * min(asked) / len(texts), 2), **bench.machine()}
    ratio = float(np.median(asked) / np.median(bare))
    bench.report("serve", "one short sentence, to the bare pass", ratio, "<= 2", **facts)


def memory(server: Server, texts: list[str], requests: int) -> None:
    """Report the memory of a server over requests of all kinds."""

    def client(number: int, count: int) -> None:
        rng = np.random.default_rng(number)
        connection = server.connect()
        for turn in range(count):
            text = " ".join(rng.choice(texts).split()[: rng.integers(1, 9)])
            row = json.dumps({"text": f"{text} {number} {turn}"}).encode()
            name = ("vokenize", "vokenize?k=5", "retrieve", "index")[turn % 4]
            ask(connection, f"/api/{name}", b"" if name == "index" else row, "application/json")
        connection.close()

    found = list[float]()
    for part in (10, 40, 50):  # percent
        each = requests * part // (100 * CLIENTS)
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(lambda n: client(n, each), range(CLIENTS)))  # noqa: B023
        found.append(anonymous(server))
    facts = {"mib": [round(one) for one in found], "requests": requests, **bench.machine()}
    ratio = found[-1] / found[0]
    what = "memory after all requests, to after a tenth"
    bench.report("serve", what, ratio, "<= 1.05", **facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text")
    parser.add_argument("--sentences", type=int, default=1600)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=10_000)
    given = parser.parse_args()
    texts = bench.sentences(given.text, given.sentences)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        index = save_bank(folder, given.images)
        server = Server("--index", index)
        try:
            send(server, [text.encode() for text in texts[:50]])
            clients(server, index, texts, folder)
            short(server, [" ".join(text.split()[:8]) for text in texts[:200]], given.rounds)
            memory(server, texts, given.requests)
        finally:
            assert server.stop() == (0, b"")


if __name__ == "__main__":
    main()
