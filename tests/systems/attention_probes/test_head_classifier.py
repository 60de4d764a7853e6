"""Probing classifiers against loops over words and heads, and on models of known attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor

from tests.tiny import probe as t
from tests.tiny import save_encoder
from vgtools.io.errors import DataError
from vgtools.models.attention import open_encoder
from vgtools.systems.attention_probes import head_classifier as probes
from vgtools.systems.attention_probes.head_classifier import (
    UAS,
    ClassifierProbe,
    HeadClassifier,
    Sentences,
    open_vectors,
    own_vectors,
)
from vgtools.systems.attention_probes.text import ALL
from vgtools.text.parses import CoNLLU, Parse

WORDS = ["a", "b", "c", "d", "e", "f", "g", "h", "!"]


@pytest.mark.parametrize("width", [0, 3])
def test_likelihood_and_gradient_equal_brute_force(width: int) -> None:
    rng, rows, heads, words = np.random.default_rng(0), 2, 4, 5
    a = rng.random((rows, heads, words, words))
    v = rng.standard_normal((rows, words, width))
    gold = np.array([[1, 3, -1, 0, 2], [2, 0, 1, -1, -1]])
    there = np.array([[1] * 5, [1, 1, 1, 0, 0]], bool)
    model = HeadClassifier(heads, width).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(rng.standard_normal(parameter.shape)))
    w = model.constant.detach().numpy()
    u = np.zeros((2, 2, heads, 0)) if model.by_word is None else model.by_word.detach().numpy()
    loss, by_constant, by_word, asked = 0.0, np.zeros_like(w), np.zeros_like(u), 7
    for b in range(rows):
        for i in range(words):
            if gold[b, i] < 0:
                continue
            others = [j for j in range(words) if j != i and there[b, j]]
            scores = []
            for j in others:
                total = 0.0
                for k in range(heads):
                    for way, seen in enumerate((a[b, k, i, j], a[b, k, j, i])):
                        total += seen * (
                            w[way, k] + u[way, 0, k] @ v[b, i] + u[way, 1, k] @ v[b, j]
                        )
                scores.append(total)
            p = np.exp(scores) / np.exp(scores).sum()
            loss -= np.log(p[others.index(gold[b, i])]) / asked
            for j, share in zip(others, p, strict=True):
                off = (share - (j == gold[b, i])) / asked
                for k in range(heads):
                    for way, seen in enumerate((a[b, k, i, j], a[b, k, j, i])):
                        by_constant[way, k] += off * seen
                        by_word[way, 0, k] += off * seen * v[b, i]
                        by_word[way, 1, k] += off * seen * v[b, j]
    barred = np.eye(words, dtype=bool) | ~there[:, None] | ~there[:, :, None]
    batch = Sentences(*map(torch.from_numpy, (a, barred, v, gold)), asked)
    found = model(batch)["head"]
    found.backward()
    assert found.item() == pytest.approx(loss)
    np.testing.assert_allclose(model.constant.grad, by_constant, atol=1e-12)
    if model.by_word is not None:
        np.testing.assert_allclose(model.by_word.grad, by_word, atol=1e-12)


@lru_cache
def heads_of(words: tuple[str, ...]) -> list[int]:
    """Return a random tree's heads, always the same for a sentence.

    Neither order nor words reveal them.
    """
    rng = np.random.default_rng([WORDS.index(w) for w in words])
    root = int(rng.integers(len(words)))
    return [
        -1 if i == root else int(rng.choice([j for j in range(len(words)) if j != i]))
        for i in range(len(words))
    ]


def parse(texts: Sequence[str]) -> Iterator[Parse]:
    for text in texts:
        words = text.split()
        starts = np.cumsum([0, *(len(w) + 1 for w in words)]).tolist()
        spans = [(s, s + len(w)) for s, w in zip(starts, words, strict=False)]
        yield Parse(
            spans,
            heads_of(tuple(words)),
            ["punct" if w == "!" else "det" if w == "a" else "obj" for w in words],
        )


@dataclass
class Known:
    """An encoder whose second head of the first layer attends to the syntactic head.

    If not planted, it attends to anything.
    """

    planted: bool
    layers: int = 2
    heads: int = 3
    max_tokens: int = 30
    region_width: int = 0
    room: int = 99  # rows that it takes at once

    def __post_init__(self) -> None:
        names = ["[PAD]", "[CLS]", "[SEP]", *WORDS]
        self.tokenizer = Tokenizer(
            models.WordLevel({w: i for i, w in enumerate(names)}, unk_token="[PAD]")
        )
        self.tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        self.tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))

    def attentions(
        self, ids: Tensor, text_mask: Tensor, regions: Tensor, region_mask: Tensor
    ) -> Iterator[Tensor]:
        if len(ids) > self.room:
            raise MemoryError
        for layer in range(self.layers):
            found = torch.zeros(len(ids), self.heads, *[ids.shape[1]] * 2)
            for row, (own, there) in enumerate(zip(ids.tolist(), text_mask.tolist(), strict=True)):
                n = sum(there)
                noise = np.random.default_rng([*own[:n], layer]).standard_normal((self.heads, n, n))
                found[row, :, :n, :n] = torch.from_numpy(noise).softmax(-1)
                if self.planted and layer == 0:
                    for word, head in enumerate(
                        heads_of(tuple(WORDS[i - 3] for i in own[1 : n - 1]))
                    ):
                        if head >= 0:
                            found[row, 1, word + 1] *= 0.5
                            found[row, 1, word + 1, head + 1] += 0.5
            yield found


def sentences(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, int(rng.integers(4, 9)))) for _ in range(count)]


def learn(encoder: Any, train: list[str], report: list[str], **more: Any) -> list[dict[str, Any]]:
    settings: dict[str, Any] = {"samples": 50, "count": len(train), "epochs": 3} | more
    probe = ClassifierProbe(
        encoder, lambda side: iter(train if side == "train" else report), lambda: parse, **settings
    )
    probe.run()
    return list(probe.records(None))


@pytest.mark.parametrize("kind", ["attention", "words"])
def test_a_planted_head_is_learnt(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(probes._RATES, "words", 0.1)  # a few dozen steps have to be enough here
    table = np.random.default_rng(3).standard_normal((len(WORDS), 2)).astype(np.float32)
    vectors = (lambda word: table[WORDS.index(word)], 2) if kind == "words" else None
    train, report = sentences(300, 0), sentences(60, 1)
    found = {
        r["relation"]: r
        for r in learn(Known(True), train, report, kind=kind, vectors=vectors, epochs=4)
    }
    assert found[ALL]["accuracy"] > 98
    assert found[ALL]["baseline"] < 35, "nothing but attention identifies heads"
    assert found[ALL]["low"] <= found[ALL]["accuracy"] <= found[ALL]["high"]
    assert found[ALL]["difference"] == pytest.approx(
        found[ALL]["accuracy"] - found[ALL]["baseline"], abs=1e-3
    )
    assert found[ALL]["difference_low"] > 50
    asked = [
        (relation, h)
        for p in parse(report)
        for relation, h in zip(p.relations, p.heads, strict=True)
        if h >= 0
    ]
    for name in ("det", "obj", "punct"):
        assert found[name]["words"] == sum(relation == name for relation, _ in asked)
    assert found[ALL]["words"] == len(asked)
    assert found[UAS]["words"] == len(asked) - found["punct"]["words"]
    assert found[ALL]["trained_on"] == 300


def test_attention_that_knows_nothing_is_right_by_chance() -> None:
    report = sentences(150, 1)
    found = {r["relation"]: r for r in learn(Known(False), sentences(120, 0), report, epochs=1)}
    chance = np.mean([100 / (len(p.heads) - 1) for p in parse(report) for h in p.heads if h >= 0])
    assert found[ALL]["low"] - 1 < chance < found[ALL]["high"] + 1
    assert found[ALL]["accuracy"] < chance + 5


def test_the_offset_is_the_best_one_of_the_sentences_learned_from() -> None:
    train, report = sentences(60, 0), sentences(40, 1)
    found = {r["relation"]: r for r in learn(Known(False), train, report)}

    def seen(texts: list[str], name: str) -> list[int]:
        return [
            head - word
            for p in parse(texts)
            for word, (head, relation) in enumerate(zip(p.heads, p.relations, strict=True))
            if head >= 0
            and (name == ALL or relation == name or (name == UAS and relation != "punct"))
        ]

    for name in (ALL, UAS, "det", "punct"):
        best = max(seen(train, name).count(o) for o in range(-9, 10))
        assert seen(train, name).count(found[name]["offset"]) == best
        right = seen(report, name).count(found[name]["offset"])
        assert found[name]["baseline"] == pytest.approx(
            100 * right / len(seen(report, name)), abs=1e-3
        )


def test_runs_are_alike_whatever_the_batch_and_the_memory() -> None:
    train, report = sentences(50, 0), sentences(20, 1)
    first = learn(Known(True), train, report)
    assert learn(Known(True), train, report) == first
    for other in (
        learn(Known(True), train, report, batch_size=3),
        learn(Known(True, room=2), train, report),
    ):
        assert [r["accuracy"] for r in other] == [r["accuracy"] for r in first]
        np.testing.assert_allclose(
            [r["losses"] for r in other], [r["losses"] for r in first], rtol=1e-4
        )
    other = learn(Known(True), train, report, seed=1)
    drawn = ("low", "high", "baseline_low", "baseline_high", "difference_low", "difference_high")
    assert [[r[key] for key in drawn] for r in other] != [[r[key] for key in drawn] for r in first]


def test_words_between_sub_words_and_long_sentences_of_a_real_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = open_encoder(str(save_encoder(tmp_path / "e", positions=16)))
    texts = ["bamxx bam dis .", "kas lim", "bam " * 20, "gat ! bas dis nut", "fom"]
    (tmp_path / "p.conllu").write_text(t.conllu([x.strip() for x in texts]))
    vectors = own_vectors(encoder, encoder.encoder.model.get_input_embeddings().weight)
    probe = ClassifierProbe(
        encoder,
        lambda _: iter(texts),
        lambda: CoNLLU(str(tmp_path / "p.conllu")),
        "words",
        vectors,
        count=5,
        samples=20,
    )
    steps = list(probe._steps("train"))
    assert [len(batch.heads) for batch, _, _ in steps] == [4]
    batch, own, links = steps[0]
    assert own == [x for x in texts if "bam bam" not in x]
    assert batch.asked == len(links) == 3 + 1 + 4
    tokenizer = encoder.tokenizer
    ids = tokenizer.encode("bamxx", add_special_tokens=False).ids
    assert len(ids) > 1
    table = encoder.encoder.model.get_input_embeddings().weight.detach().double()
    wanted = table[ids].mean(0) / table.square().mean().sqrt()
    torch.testing.assert_close(batch.vectors[0, 0].double(), wanted, rtol=1e-4, atol=1e-5)
    assert batch.attention.shape == (4, 6, 5, 5)
    monkeypatch.setattr(
        probes, "_WINDOW", 2
    )  # windows are not steps: a window's last step is shorter
    assert [len(batch.heads) for batch, _, _ in probe._steps("train")] == [2, 1]


def test_word_vectors_are_read_and_what_is_wrong_is_named(tmp_path: Path) -> None:
    file = tmp_path / "v.txt"
    file.write_text("3 2\ncat 1 2\nNew York -1 .5\nDog 3 4\n")
    of, width = open_vectors(str(file))
    assert width == 2
    assert [of(w).tolist() for w in ("cat", "Cat", "New York", "Dog", "dog", "cow")] == [
        [1, 2], [1, 2], [-1, 0.5], [3, 4], [0, 0], [0, 0],
    ]  # fmt: skip
    for body, line in (
        ("cat 1 2\ndog 1\n", 2),
        ("cat 1 2\ndog 1 x\n", 2),
        ("cat 1 nan\n", 1),
        ("cat\n", 1),
    ):
        file.write_text(body)
        with pytest.raises(DataError, match=f"v.txt:{line}: expected a word and"):
            open_vectors(str(file))
    file.write_text("")
    with pytest.raises(DataError, match="holds no word vector"):
        open_vectors(str(file))
