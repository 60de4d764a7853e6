"""Tiny masked language models, voken rows and packed files that tests build."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from tests.tiny import WORDS
from vgtools.text.tokens import tokenize, tokenizer_fingerprint
from vgtools.text.vokens import VokenWriter

SHAPE: dict[str, Any] = {
    "model_type": "bert", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}  # fmt: skip


def make_tokenizer(
    marks: Sequence[str] = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
) -> Tokenizer:
    """Return a word tokenizer of the tiny language.

    Its special tokens are padding, unknown, first, last, mask.
    """
    vocabulary = [*marks, *WORDS]
    tokenizer = Tokenizer(
        models.WordPiece({w: i for i, w in enumerate(vocabulary)}, unk_token=marks[1])
    )
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(list(marks))
    tokenizer.post_processor = processors.BertProcessing((marks[3], 3), (marks[2], 2))
    return tokenizer


def exchange_words(folder: Path, one: str, other: str) -> None:
    """Exchange the ids of two words in a folder's tokenizer.json, whose size stays."""
    file = folder / "tokenizer.json"
    body = json.loads(file.read_text())
    ids = body["model"]["vocab"]
    ids[one], ids[other] = ids[other], ids[one]
    file.write_text(json.dumps(body))


def save_tokenizer(folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    make_tokenizer(**changes).save(str(folder / "tokenizer.json"))
    return folder


def save_shape(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps(SHAPE | changes))
    return path


def sentences(count: int, seed: int = 0, longest: int = 12) -> list[str]:
    """Return random sentences; every seventh is empty."""
    rng = np.random.default_rng(seed)
    return [
        " ".join(rng.choice(WORDS, rng.integers(1, longest))) if i % 7 else ""
        for i in range(1, count + 1)
    ]


def voken_rows(texts: Sequence[str], vokens: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return the rows of sentences; a word's voken depends on the word, so it can be learnt."""
    found = tokenize(make_tokenizer(), texts)
    rows = []
    for i, text in enumerate(texts):
        ids, spans = found.row(i)
        own = ((ids.astype(int) * 7 + seed) % vokens).tolist()
        rows.append(
            {"text": text, "spans": spans.tolist(), "vokens": own, "scores": [0.5] * len(own)}
        )
    return rows


def save_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def save_packed(path: Path, lists: Sequence[Sequence[tuple[int, int]]], **facts: Any) -> Path:
    """Write a packed file whose rows hold these (token id, voken)."""
    facts = {"tokenizer": {"sha256": tokenizer_fingerprint(make_tokenizer())}} | facts
    with VokenWriter(str(path), {"rows": len(lists)}, restart=True) as out:
        out.write(
            [{"vokens": [v for _, v in row]} for row in lists],
            np.array([t for row in lists for t, _ in row], np.int32),
        )
        out.commit("x")
        out.finish(**facts)
    return path
