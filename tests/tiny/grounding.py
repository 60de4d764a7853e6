"""Word vectors and banks of images that are small enough to work by hand."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from vgtools.io.files import write_manifest
from vgtools.retrieval.build import make_index, serialize
from vgtools.retrieval.index import METRIC, Index
from vgtools.systems.grounding import association, keys
from vgtools.systems.grounding.keys import InvertedFile, KeyedImages
from vgtools.text.parses import Tagger, Tags
from vgtools.text.tokens import word_runs
from vgtools.text.word_vectors import KIND, WordVectors, stop_words_fingerprint

STOP = frozenset({"the", "a", "on", "two", "with", "in"})
VECTORS = {
    "dog": (1, 0),
    "puppy": (0.8, 0.6),
    "cat": (0.6, 0.8),
    "car": (0, 1),
    "truck": (-0.6, 0.8),
    "red": (-1, 0),
    "chases": (0.28, 0.96),
    "great": (0, 1),
    "white": (0.6, 0.8),
    "shark": (1, 0),
    "large": (0, 1),
    "fish": (0.8, 0.6),
}


def vectors(table: Mapping[str, Sequence[float]] = VECTORS) -> WordVectors:
    array = np.array(list(table.values()), np.float32)
    return WordVectors("x.npy", array, "f", {word: row for row, word in enumerate(table)})


def rows(*captions: str) -> list[tuple[int, dict[str, object]]]:
    """Return numbered rows of images 0, 1, … with one caption each."""
    return [(i + 1, {"image": str(i), "text": text}) for i, text in enumerate(captions)]


def index(bank: KeyedImages) -> Index:
    return Index("x.faiss", bank.ids, {}, make_index(bank.keys), bank.keys)


def scene(captions: Sequence[str], stop: frozenset[str] = STOP) -> association.Scene:
    words = vectors()
    return association.Scene(index(keys.caption_keys(rows(*captions), words, stop)), words, stop)


def tagger(nouns: frozenset[str]) -> Tagger:
    """Return a tagger that knows some nouns and takes all other words for verbs."""

    def tag(texts: Sequence[str]) -> list[Tags]:
        spans, starts = word_runs(texts)
        found = []
        for i, text in enumerate(texts):
            part = [(int(a), int(b)) for a, b in spans[starts[i] : starts[i + 1]]]
            found.append(Tags(part, ["NN" if text[a:b] in nouns else "VB" for a, b in part]))
        return found

    return tag  # type: ignore[return-value]


def context_tagger(texts: Sequence[str]) -> Iterator[Tags]:
    """Tag by context: every word of a text decides which of its words are nouns."""
    for text in texts:
        spans, _ = word_runs([text])
        seed = zlib.crc32(text.encode())
        yield Tags(
            [(int(a), int(b)) for a, b in spans],
            ["NN" if zlib.crc32(text[a:b].encode(), seed) % 3 else "VB" for a, b in spans],
        )


def keyword_finder(file: InvertedFile, stop: frozenset[str] = STOP) -> association.Keywords:
    numbers = {word: i for i, word in enumerate(file.words)}
    return association.Keywords(file.ids, numbers, file.rows, file.starts, stop)


def save_vectors(path: Path, table: Mapping[str, Sequence[float]] = VECTORS) -> Path:
    """Write `X.npy`, `X.ids` and `X.json` as `vg prepare vectors` does."""
    np.save(path, np.array(list(table.values()), np.float32))
    ids = path.with_suffix(".ids")
    ids.write_text("".join(f"{word}\n" for word in table))
    write_manifest(path, [path, ids], kind=KIND, rows=len(table))
    return path


def save_index(
    path: Path, bank: KeyedImages, kind: str, words: Path, stop: frozenset[str] = STOP
) -> Path:
    """Write an index of captions or nouns as `vg build-index --vectors` does."""
    from vgtools.text.word_vectors import open_word_vectors

    path.write_bytes(bytes(serialize(make_index(bank.keys))))
    ids = path.with_suffix(".ids")
    ids.write_text("".join(f"{name}\n" for name in bank.ids))
    write_manifest(
        path,
        [path, ids],
        kind="index",
        keys=kind,
        count=len(bank.ids),
        dim=bank.keys.shape[1],
        metric=METRIC,
        words={
            "vectors": words.name,
            "fingerprint": open_word_vectors(str(words)).fingerprint,
            "stop_words": stop_words_fingerprint(stop),
            "stop_list": sorted(stop),
        },
    )
    return path
