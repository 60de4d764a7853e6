"""`vg retrieve`: the search for k images per text, and all of its work, to what cannot be avoided.

- search: `exact_search` of k = 16 to the bare float32 product of the same queries and bank;
- retrieve: texts to rows of jsonl, by a matcher, to the bare encoder's pass over the same tokens
  and the bare product;
- captions, keywords: the command on 20,000 captions, to the twenty lines of Python that find the
  same images of an index in memory; both with their start.

    python tests/benchmarks/retrieve.py [--texts 2048] [--images 50000] [--dim 256] [--rounds 3]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import bench
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # the tiny networks of the tests

from search import unit

from vgtools.io.files import dumps
from vgtools.io.streams import Window, read_lines
from vgtools.models.encoder import load_encoder
from vgtools.retrieval.exact import exact_search
from vgtools.retrieval.index import Index, open_index
from vgtools.retrieval.texts import retrieve
from vgtools.systems.vokenization.matcher import MatcherConfig, TokenImageMatcher
from vgtools.systems.vokenization.retrieve import SentenceRetriever
from vgtools.systems.vokenization.vokenize import Matcher, Vokenizer
from vgtools.text.retrieved import input_rows, output_row

K = 16
GLOVE = "builtin:glove-50d"


def search_ratio(images: int, dim: int, rounds: int) -> None:
    """Report the search of a few queries, as in a training step, and of many."""
    bank = unit(images, dim, 1)
    norm = float(np.linalg.norm(bank, axis=1).max())
    for count in (32, 2048):
        queries = unit(count, dim, 0)
        scores = np.empty((min(count, 512), images), np.float32)
        seconds = bench.in_turns(
            {
                "ours": lambda q=queries: exact_search(q, bank, K, norm=norm),
                "product": lambda q=queries, out=scores: [
                    np.matmul(q[i : i + 512], bank.T, out=out) for i in range(0, len(q), 512)
                ],
            },
            rounds,
        )
        bench.report(
            "retrieve",
            f"search of {count} queries, k {K}, to the bare product",
            seconds["ours"] / seconds["product"],
            "<= 1.7",
            images=images,
            dim=dim,
            **bench.machine(),
        )


def stream_ratio(texts: list[str], images: int, dim: int, rounds: int) -> None:
    """Report texts to rows, with a random matcher over the embedded encoder."""
    encoder = load_encoder("builtin:minilm", device="cpu")
    config = MatcherConfig(text_width=4 * encoder.width, image_width=8, dim=dim)
    network = TokenImageMatcher(config).eval().requires_grad_(False)
    matcher = Matcher(network, encoder, {}, "random", "random")
    bank = unit(images, dim, 1)
    index = Index("", [str(i) for i in range(images)], {"dim": dim}, None, bank)
    worker = Vokenizer(matcher, index)
    tokens = worker.tokenize(texts)
    size = 512

    def ours() -> int:
        lines = [Window("t", i + 1, texts[i : i + size], "") for i in range(0, len(texts), size)]
        found = retrieve(
            lines,
            input_rows,
            SentenceRetriever(matcher, index),
            lambda rows: np.full(len(rows), -1, np.int32),
            K,
        )
        written = 0
        for _, (rows, (best, scores)) in found:
            parts = zip(rows, best, scores, strict=True)
            written += len(b"".join(dumps(output_row(*part)) for part in parts))
        return written

    @torch.inference_mode()
    def bare() -> None:
        queries = torch.cat([part.vectors for part in worker.embed(tokens)])
        means = queries[: len(texts)].numpy()
        for i in range(0, len(means), size):
            means[i : i + size] @ bank.T

    seconds = bench.in_turns({"ours": ours, "bare": bare}, rounds)
    facts = {"texts": len(texts), "images": images, **bench.machine()}
    bench.report("retrieve", "texts/s by a matcher", len(texts) / seconds["ours"], **facts)
    ratio = seconds["ours"] / seconds["bare"]
    what = "texts to rows, to the bare encoder and product"
    bench.report("retrieve", what, ratio, "<= 1.2", **facts)


# What a user would write, with the words that vg counts: no stop words, known ones alone.
_WORDS = """
import json, re, sys
from collections import Counter
import numpy as np
stop = set(open(sys.argv[1]).read().split())
def words(line):
    return [word for word in re.findall(r"\\w+", line.lower()) if word not in stop]
def write(out, text, images, scores):
    row = {"text": text, "images": images, "scores": [round(score, 4) for score in scores]}
    out.write(json.dumps(row) + "\\n")
texts = open(sys.argv[2]).read().splitlines()
out = open(sys.argv[3], "w")
"""
PLAIN = {
    "captions": f"""{_WORDS}
from pyarrow import parquet
names = parquet.read_table(sys.argv[5]).column(0).to_pylist()
row = {{name: i for i, name in enumerate(names)}}
vectors = np.load(sys.argv[6], mmap_mode="r")
bank = np.load(sys.argv[4])
for start in range(0, len(texts), 1024):
    block = texts[start : start + 1024]
    known = [[row[word] for word in words(text) if word in row] for text in block]
    queries = np.array([vectors[w].mean(0) if w else np.zeros(50, "f") for w in known])
    queries /= np.maximum(np.linalg.norm(queries, axis=1, keepdims=True), 1e-9)
    scores = queries @ bank.T
    best = np.argpartition(-scores, {K}, axis=1)[:, :{K}]
    for text, images, all_scores, some in zip(block, best, scores, known):
        images = images[np.argsort(-all_scores[images])] if some else images[:0]
        write(out, text, images.tolist(), all_scores[images].tolist())
""",
    "keywords": f"""{_WORDS}
lines = map(json.loads, open(sys.argv[4]))
rows = {{line["word"]: line["rows"] for line in lines}}
for text in texts:
    met = Counter()
    for word in dict.fromkeys(words(text)):
        met.update(rows.get(word, ()))
    found = met.most_common({K})
    write(out, text, [image for image, _ in found], [float(count) for _, count in found])
""",
}


def words_ratio(texts: int, images: int, rounds: int) -> None:
    """Report `vg retrieve` by captions and by keywords, to plain Python."""
    import vgtools
    from vgtools.cli import run
    from vgtools.text import word_vectors

    _, module, array, names = word_vectors.BUILTIN[GLOVE]
    vectors = Path(str(importlib.util.find_spec(module).origin)).parent  # type: ignore[union-attr]
    known = word_vectors.open_word_vectors(GLOVE).rows
    rng = np.random.default_rng(0)
    encoder = load_encoder("builtin:minilm", device="cpu").tokenizer
    vocabulary = map(encoder.id_to_token, range(encoder.get_vocab_size()))  # by frequency
    words = [word for word in vocabulary if word.isalpha() and len(word) > 2 and word in known]
    shares = 1 / (30 + np.arange(5000))
    lines = [
        " ".join(line)
        for line in rng.choice(words[:5000], (5 * images + texts, 12), p=shares / shares.sum())
    ]
    stop = Path(vgtools.__file__).parent / "text/stop_words.txt"
    with tempfile.TemporaryDirectory() as folder:
        at = partial(os.path.join, folder)
        captions = ({"image": f"{i // 5:07}", "text": lines[i]} for i in range(5 * images))
        Path(at("captions.jsonl")).write_bytes(b"".join(map(dumps, captions)))
        Path(at("texts.txt")).write_text("".join(f"{line}\n" for line in lines[5 * images :]))
        for index, how in (
            ("captions.faiss", ("--vectors", GLOVE)),
            ("keywords.jsonl", ("--keywords", "8")),
        ):
            assert run(["build-index", at("captions.jsonl"), *how, "-o", at(index), "-q"]) == 0
        np.save(at("bank.npy"), open_index(at("captions.faiss")).bank)
        given = {
            "captions": ("captions.faiss", [at("bank.npy"), vectors / names, vectors / array]),
            "keywords": ("keywords.jsonl", [at("keywords.jsonl")]),
        }
        for keys, (index, files) in given.items():
            ours = [sys.executable, "-m", "vgtools", "retrieve", at("texts.txt")]
            ours += ["--index", at(index), "-o", at("ours.jsonl"), "--restart", "-q"]
            plain = [sys.executable, "-c", PLAIN[keys], stop, at("texts.txt"), at("plain.jsonl")]
            ways = {
                "ours": lambda argv=ours: _again(argv, at("ours.jsonl")),
                "plain": lambda argv=[*plain, *files]: subprocess.run(argv, check=True),
            }
            seconds = bench.in_turns(ways, rounds)
            found = [
                [json.loads(line)["images"] for line in read_lines(at(f"{way}.jsonl"))]
                for way in ways
            ]
            same = [a == b for a, b in zip(*found, strict=True)]
            bench.report(
                "retrieve",
                f"{texts:,} texts by {keys}, to plain Python",
                seconds["ours"] / seconds["plain"],
                "<= 1",
                same=sum(same) / len(same),
                images=images,
                **{f"{way}_s": round(value, 2) for way, value in seconds.items()},
                **bench.machine(),
            )


def _again(argv: list[str], path: str) -> None:
    """Run a command whose output is not there."""
    Path(path).unlink(missing_ok=True)
    subprocess.run(argv, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text")
    parser.add_argument("--texts", type=int, default=2048)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    search_ratio(given.images, given.dim, given.rounds)
    words_ratio(20_000, 7_000, given.rounds)
    texts = bench.sentences(given.text, given.texts)
    stream_ratio(texts, given.images, given.dim, given.rounds)


if __name__ == "__main__":
    main()
