"""Speed of `vg revokenize` against its floor (the target tokenizer alone) and against plain Python.

One jsonl line a figure.

python tests/benchmarks/revokenize.py [--text FILE] [--tokenizer REF] [--rounds 5]

Without --text the sentences are Python's own help texts; without --tokenizer a byte-level BPE is
trained on them. All ways run in turn within each round, so that a busy machine slows all of them;
figures are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import unicodedata
from collections.abc import Callable, Iterator
from pydoc_data import topics
from typing import Any

import bench
import numpy as np
from tokenizers import ByteLevelBPETokenizer, Tokenizer

from vgtools.io.files import dumps
from vgtools.io.helpers import spread
from vgtools.io.streams import Window, read_lines
from vgtools.models.references import load_tokenizer
from vgtools.systems.vokenization.revokenize import RevokenizeStep, revokenize
from vgtools.text.tokens import _piece_table, span_iou_align, tokenize
from vgtools.text.vokens import no_collection, parse_rows

WINDOW = 2048
_LONGER = 20  # a text that is worth starting processes for


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", help="sentences, one per line")
    parser.add_argument("--tokenizer", help="target tokenizer")
    parser.add_argument(
        "--source", default="builtin:minilm", help="tokenizer that the vokens were made with"
    )
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    sentences = list(read_lines(options.text)) if options.text else list(python_help())
    source = load_tokenizer(options.source)
    target = load_tokenizer(options.tokenizer) if options.tokenizer else train(sentences)
    lines = [line.decode() for line in voken_rows(source, sentences)]

    spans = [tokenize(t, sentences) for t in (source, target)]
    tokens = len(spans[1].ids)
    ways: dict[str, Callable[[], object]] = {
        "target tokenizer with offsets": lambda: tokenizer_only(target, sentences),
        "alignment": lambda: span_iou_align(
            spans[0].spans, spans[0].starts, spans[1].spans, spans[1].starts
        ),
        "rows to rows": lambda: ours(lines, target),
        "per-token Python, both tokenizers": lambda: plain(lines, source, target),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, way in ways.items():
            start = bench.clock()
            way()
            times[name].append(bench.clock() - start)
    median = {name: statistics.median(t) for name, t in times.items()}
    same = agreement(lines, source, target)
    facts = {"benchmark": "revokenize", "rows": len(lines), "tokens": tokens, **bench.machine()}
    for name, seconds in median.items():
        report({"what": f"{name}, tokens/s", "value": round(tokens / seconds), **facts})
    ratio = median["rows to rows"] / median["target tokenizer with offsets"]
    report(
        {
            "what": "time, rows to rows to target tokenizer with offsets",
            "value": round(ratio, 2),
            "target": "<= 1.3",
            **facts,
        }
    )
    ratio = median["per-token Python, both tokenizers"] / median["rows to rows"]
    report(
        {
            "what": "speed, rows to rows to per-token Python",
            "value": round(ratio, 2),
            "target": ">= 4",
            **facts,
        }
    )
    report({"what": "vokens equal to per-token Python's", "value": round(same, 5), **facts})
    facts["clock"] = "wall"
    count = len(os.sched_getaffinity(0))
    alone, together = (walls(lines, target, helpers) for helpers in (1, count))
    what = f"wall time on one core to {count}, {_LONGER} times the rows"
    report({"what": what, "value": round(alone / together, 2), "target": ">= 1.5", **facts})


def walls(lines: list[str], target: Tokenizer, helpers: int) -> float:
    """Return the seconds on the wall of a long text, with processes that carry its vokens over."""
    step = RevokenizeStep(target, None, "x.jsonl")
    windows = [Window("-", i + 1, lines[i : i + WINDOW], "") for i in range(0, len(lines), WINDOW)]
    start = time.perf_counter()
    for _ in spread(windows * _LONGER, step, helpers):
        pass
    return time.perf_counter() - start


def report(row: dict[str, Any]) -> None:
    print(json.dumps(row), flush=True)


def python_help() -> Iterator[str]:
    """English text that every Python carries."""
    for topic in topics.topics.values():
        yield from (" ".join(paragraph.split()) for paragraph in topic.split("\n\n"))


def train(sentences: list[str]) -> Tokenizer:
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(sentences, vocab_size=16_000, show_progress=False)
    return bpe._tokenizer


def voken_rows(source: Tokenizer, sentences: list[str]) -> Iterator[bytes]:
    random, tokens = np.random.default_rng(0), tokenize(source, sentences)
    for i, sentence in enumerate(sentences):
        spans = tokens.row(i)[1]
        vokens, scores = (
            random.integers(0, 50_000, len(spans)),
            random.random(len(spans), np.float32),
        )
        yield dumps({"text": sentence, "spans": spans, "vokens": vokens, "scores": scores})


def tokenizer_only(target: Tokenizer, sentences: list[str]) -> list[Any]:
    """The floor: what any way of doing this has to pay."""
    return [
        (e.ids, e.offsets)
        for start in range(0, len(sentences), WINDOW)
        for e in target.encode_batch(sentences[start : start + WINDOW], add_special_tokens=False)
    ]


def ours(lines: list[str], target: Tokenizer) -> list[bytes]:
    """What the command does between reading and writing, of a text whose words are all new."""
    _piece_table.cache_clear()
    with no_collection():
        return [
            b"".join(
                map(
                    dumps,
                    revokenize(parse_rows(lines[i : i + WINDOW], "-", i + 1), target).rows,
                )
            )
            for i in range(0, len(lines), WINDOW)
        ]


def plain(lines: list[str], source: Tokenizer, target: Tokenizer) -> list[str]:
    """The published way: one sentence at a time, both tokenizers, no offsets from either.

    Spans are found by walking the sentence along the tokens' letters, vokens by moving a pointer
    token by token.
    """
    out = []
    for line in lines:
        row = json.loads(line)
        theirs, spans = (walk(row["text"], t) for t in (source, target))
        vokens, scores, pointer = [], [], 0
        for start, end in spans:
            while pointer < len(theirs) and theirs[pointer][1] <= start:
                pointer += 1
            best, chosen, i = 0.0, -1, pointer
            while i < len(theirs) and theirs[i][0] < end:
                iou = overlap_of_union(theirs[i], (start, end))
                if iou > best:
                    best, chosen = iou, i
                i += 1
            vokens.append(row["vokens"][chosen] if chosen >= 0 else -1)
            scores.append(row["scores"][chosen] if chosen >= 0 else 0.0)
        out.append(json.dumps({**row, "spans": spans, "vokens": vokens, "scores": scores}))
    return out


LETTERS = {
    b: chr(b)
    for b in range(256)
    if chr(b).isprintable() and chr(b) != " " and not 127 <= b < 161 and b != 173
}
LETTERS |= {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in LETTERS)}


def walk(text: str, tokenizer: Tokenizer) -> list[tuple[int, int]]:
    """Find tokens in their sentence by letters: WordPiece without case and accents, or bytes."""
    tokens = tokenizer.encode(text, add_special_tokens=False).tokens
    octets = tokenizer.token_to_id("[UNK]") is None
    letters: list[tuple[str, int]] = []
    for i, character in enumerate(text):
        if octets:
            letters += [(LETTERS[byte], i) for byte in character.encode()]
        elif not character.isspace():
            letters += [
                (c, i)
                for c in unicodedata.normalize("NFD", character.lower())
                if unicodedata.category(c) != "Mn"
            ]
    spans, at = [], 0
    for token in tokens:
        start = letters[at][1] if at < len(letters) else len(text)
        if token == "[UNK]":
            end = start
            while at < len(letters) and letters[at][1] == end:
                at, end = at + 1, end + 1
            spans.append((start, end))
            continue
        for c in token.removeprefix("##"):
            if at < len(letters) and letters[at][0] == c:
                at += 1
        end = letters[at - 1][1] + 1 if at else 0
        while start < end and text[start].isspace():
            start += 1
        spans.append((start, end))
    return spans


def overlap_of_union(a: tuple[int, int], b: tuple[int, int]) -> float:
    overlap = max(0, min(a[1], b[1]) - max(a[0], b[0]))
    return overlap / ((a[1] - a[0]) + (b[1] - b[0]) - overlap) if overlap else 0.0


def agreement(lines: list[str], source: Tokenizer, target: Tokenizer) -> float:
    pairs = zip(
        plain(lines, source, target),
        b"".join(ours(lines, target)).decode().split("\n"),
        strict=False,
    )
    equal = [
        v == w
        for a, b in pairs
        for v, w in zip(json.loads(a)["vokens"], json.loads(b)["vokens"], strict=True)
    ]
    return sum(equal) / max(len(equal), 1)


if __name__ == "__main__":
    main()
