"""Text-side probes against loops over texts, heads and words."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from tests.tiny import WORDS, save_encoder
from tests.tiny import probe as t
from vgtools.analysis.bootstrap import difference_ends, share_ends
from vgtools.io.errors import DataError
from vgtools.models.attention import open_encoder
from vgtools.systems.attention_probes import text as probes
from vgtools.systems.attention_probes.scores import group_of
from vgtools.systems.attention_probes.text import (
    ProbeText,
    ProbeTexts,
    TextProbe,
    classical_mds,
    divergences,
    surface,
    word_heads,
)
from vgtools.text.parses import CoNLLU

TEXTS = [
    "bam dis , fom .",
    "bamxx bam bam",
    "kas",
    "lim nut ! bas",
    "",
    "gat gat gat gat gat gat gat ?",
]


def softmaxed(seed: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape) * 2).softmax(-1)


def test_surface_patterns_equal_brute_force() -> None:
    rows, heads, size, lengths = 3, 4, 6, [6, 3, 5]
    mask = torch.arange(size) < torch.tensor(lengths)[:, None]
    layer = softmaxed(0, rows, heads, size, size) * mask[:, None, None]
    layer = layer / layer.sum(-1, keepdim=True)
    targets = (
        torch.from_numpy(np.random.default_rng(1).random((rows, 3, size)) < 0.4) & mask[:, None]
    )
    patterns, entropy, first = surface(layer, mask, targets)
    for head in range(heads):
        wanted, bits, one = np.zeros(6), 0.0, 0.0
        for row, n in enumerate(lengths):
            a = layer[row, head, :n, :n].numpy()
            for kind in range(3):
                wanted[kind] += (
                    sum(a[i, j] for i in range(n) for j in range(n) if targets[row, kind, j]) / n
                )
            wanted[3] += sum(a[i, i - 1] for i in range(1, n)) / n
            wanted[4] += sum(a[i, i + 1] for i in range(n - 1)) / n
            wanted[5] += sum(a[i, i] for i in range(n)) / n
            bits += -sum(a[i, j] * np.log(a[i, j]) for i in range(n) for j in range(n)) / n
            one += -sum(a[0, j] * np.log(a[0, j]) for j in range(n))
        np.testing.assert_allclose(patterns[:, head], wanted)
        assert entropy[head].item() == pytest.approx(bits)
        assert first[head].item() == pytest.approx(one)


def test_words_gather_their_sub_words() -> None:
    size, heads = 6, 3
    layer = softmaxed(2, 1, heads, size, size)
    words = torch.zeros(1, 4, size, dtype=torch.bool)  # the fourth word has no token
    words[0, 0, 1:3] = words[0, 1, 3] = words[0, 2, 4] = True
    forth, back = word_heads(layer, words)
    members = [[1, 2], [3], [4]]
    for head in range(heads):
        a = layer[0, head].numpy()
        whole = np.array(
            [[np.mean([sum(a[q, k] for k in v) for q in w]) for v in members] for w in members]
        )
        np.fill_diagonal(whole, -1)
        assert forth[0, head, :3].tolist() == whole.argmax(1).tolist()
        assert back[0, head, :3].tolist() == whole.argmax(0).tolist()


def test_divergences_equal_brute_force(monkeypatch: pytest.MonkeyPatch) -> None:
    heads, rows, size, lengths = 5, 2, 4, [4, 2]
    mask = torch.arange(size) < torch.tensor(lengths)[:, None]
    layers = softmaxed(3, heads, rows, size, size) * mask[None, :, None]
    layers = layers / layers.sum(-1, keepdim=True)
    wanted = np.zeros((heads, heads))
    for i in range(heads):
        for j in range(heads):
            for row, n in enumerate(lengths):
                for q in range(n):
                    p, r = layers[i, row, q, :n].numpy(), layers[j, row, q, :n].numpy()
                    m = (p + r) / 2
                    wanted[i, j] += (np.sum(p * np.log(p / m)) + np.sum(r * np.log(r / m))) / 2 / n
    np.testing.assert_allclose(divergences(layers, mask), wanted, atol=1e-12)
    monkeypatch.setattr(probes, "_MIXED", 1)  # one head at a time
    np.testing.assert_allclose(divergences(layers, mask), wanted, atol=1e-12)


def test_scaling_gives_points_of_the_plane_back() -> None:
    points = np.random.default_rng(0).standard_normal((7, 2)) * [5, 1]
    squared = ((points[:, None] - points[None]) ** 2).sum(-1)
    found = classical_mds(squared)
    np.testing.assert_allclose(((found[:, None] - found[None]) ** 2).sum(-1), squared, atol=1e-9)
    np.testing.assert_allclose(found, classical_mds(squared))
    assert classical_mds(np.zeros((1, 1))).tolist() == [[0, 0]]


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "visualbert"])
def test_the_probe_equals_brute_force_for_any_encoder(tmp_path: Path, kind: str) -> None:
    from transformers import AutoModel

    path = (
        t.save_visualbert(tmp_path / "e")
        if kind == "visualbert"
        else save_encoder(tmp_path / "e", kind)
    )
    conllu = tmp_path / "p.conllu"
    conllu.write_text(t.conllu([x for x in TEXTS if x]))
    probe = TextProbe(open_encoder(str(path)), CoNLLU(str(conllu)), batch_size=2, distances=4)
    probe.run(map(ProbeText, TEXTS))
    found = list(probe.records(None))
    model = AutoModel.from_pretrained(path, attn_implementation="eager").eval()
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    sums, entropy, right, total, offsets, attention = (
        defaultdict(float),
        0.0,
        Counter(),
        Counter(),
        defaultdict(Counter),
        [],
    )
    kept = [x for x in TEXTS if x]
    for text, parse in zip(kept, CoNLLU(str(conllu))(kept), strict=True):
        encoded = tokenizer.encode(text)
        with torch.no_grad():
            given = {
                "input_ids": torch.tensor([encoded.ids]),
                "attention_mask": torch.ones(1, len(encoded.ids)).long(),
            }
            a = torch.stack(
                [x[0] for x in model(**given, output_attentions=True).attentions]
            ).numpy()
        attention.append(a)
        n = a.shape[-1]
        points = [i for i, (s, e) in enumerate(encoded.offsets) if e > s and text[s:e] in ",.!?"]
        sums["cls"] += a[..., 0].mean(-1)
        sums["sep"] += a[..., n - 1].mean(-1)
        sums["punctuation"] += a[..., points].sum(-1).mean(-1)
        sums["next"] += np.trace(a, 1, 2, 3) / n
        sums["previous"] += np.trace(a, -1, 2, 3) / n
        sums["self"] += np.trace(a, 0, 2, 3) / n
        entropy += -(a * np.log(a)).sum(-1).mean(-1)
        tokens = [
            [i for i, (s, e) in enumerate(encoded.offsets) if s < d and e > c and e > s]
            for c, d in parse.spans
        ]
        whole = np.array(
            [[a[..., v][..., w, :].sum(-1).mean(-1) for v in tokens] for w in tokens]
        ).transpose(2, 3, 0, 1)
        whole[..., range(len(tokens)), range(len(tokens))] = -1
        for word, (head, relation) in enumerate(zip(parse.heads, parse.relations, strict=True)):
            if head >= 0:
                for key in (relation, "all"):
                    right[key, 0] += whole[..., word, :].argmax(-1) == head
                    right[key, 1] += whole[..., :, word].argmax(-1) == head
                    total[key] += 1
                    offsets[key][head - word] += 1
    heads = [r for r in found if r["kind"] == "text-head"]
    for key, value in sums.items():
        np.testing.assert_allclose(
            [r[key] for r in heads], 100 * value.ravel() / len(kept), atol=1e-3
        )
    np.testing.assert_allclose(
        [r["entropy"] for r in heads], entropy.ravel() / len(kept), atol=1e-4
    )
    words = [r for r in found if r["kind"] == "dependency"]
    assert {(r["relation"], r["direction"]) for r in words} == {
        (k, d) for k in total for d in probes.DIRECTIONS
    }
    for r in words:
        wanted = (
            100
            * right[r["relation"], probes.DIRECTIONS.index(r["direction"])]
            / total[r["relation"]]
        )
        np.testing.assert_allclose(r["accuracies"], wanted, atol=1e-3)
        assert r["accuracy"] == pytest.approx(wanted.max(), abs=1e-3)
        assert r["words"] == total[r["relation"]]
        assert offsets[r["relation"]][r["offset"]] == max(offsets[r["relation"]].values())
        assert r["baseline"] == pytest.approx(
            100 * max(offsets[r["relation"]].values()) / r["words"], abs=1e-3
        )
    summary = found[-1]
    assert (summary["texts"], summary["compared_texts"], summary["skipped"]) == (
        5,
        4,
        {"text without a token": 1},
    )
    divergence = probe._divergence / probe._compared
    p, q = ([a.reshape(-1, *a.shape[2:])[k] for a in attention[:4]] for k in (0, -1))
    pairs = [
        (x * np.log(2 * x / (x + y)) + y * np.log(2 * y / (x + y))).sum(-1).mean() / 2
        for x, y in zip(p, q, strict=True)
    ]
    assert divergence[0, -1] == pytest.approx(np.mean(pairs), rel=1e-4)


def test_intervals_and_choices_equal_brute_force(tmp_path: Path) -> None:
    encoder = open_encoder(str(save_encoder(tmp_path / "e")))
    rng = np.random.default_rng(9)
    texts = [" ".join(rng.choice(WORDS, int(rng.integers(4, 9)), replace=False)) for _ in range(90)]
    texts[3] = texts[2]  # equal sentences come and go together
    sides = ["report" if n % 3 else "select" for n in range(90)]
    file = tmp_path / "p.conllu"
    file.write_text(t.conllu(texts))
    parses = list(CoNLLU(str(file))(texts))

    def answers(numbers: list[int]) -> dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]:
        """Return (relation, direction) -> the sentence of each word, and which heads are right."""
        found = defaultdict(list)
        for n in numbers:
            encoded = encoder.tokenizer.encode(texts[n])
            with torch.no_grad():
                given = {
                    "input_ids": torch.tensor([encoded.ids]),
                    "attention_mask": torch.ones(1, len(encoded.ids)).long(),
                }
                a = torch.stack(
                    [
                        x[0]
                        for x in encoder.encoder.model(**given, output_attentions=True).attentions
                    ]
                ).flatten(0, 1)
            tokens = [
                [i for i, (s, e) in enumerate(encoded.offsets) if s < d and e > c and e > s]
                for c, d in parses[n].spans
            ]
            whole = torch.stack(
                [torch.stack([a[:, w][:, :, v].sum(-1).mean(-1) for v in tokens]) for w in tokens]
            )  # W, W, K
            whole[range(len(tokens)), range(len(tokens))] = -1
            for word, (head, relation) in enumerate(
                zip(parses[n].heads, parses[n].relations, strict=True)
            ):
                if head >= 0:
                    both = [whole[word].argmax(0) == head, whole[:, word].argmax(0) == head]
                    offsets = [head - word == o for o in range(-8, 9)]
                    for direction, right in zip(probes.DIRECTIONS, both, strict=True):
                        for key in (relation, "all"):
                            found[key, direction].append((n, [*right.tolist(), *offsets]))
        return {
            k: (np.array([n for n, _ in v]), np.array([x for _, x in v])) for k, v in found.items()
        }

    report, select = (
        answers([n for n in range(90) if sides[n] == side]) for side in ("report", "select")
    )
    probe = TextProbe(encoder, CoNLLU(str(file)), distances=0, samples=60, seed=4)
    probe.run(map(ProbeText, texts, sides))
    count = 6
    found = {
        (r["relation"], r["direction"]): r
        for r in probe.records(None, choose=True)
        if r["kind"] == "dependency"
    }
    own = {
        (r["relation"], r["direction"]): r for r in probe.records(None) if r["kind"] == "dependency"
    }
    assert found.keys() == report.keys()
    for key, record in found.items():
        row, right = report[key]
        groups, place = np.unique([group_of(texts[n]) for n in row], return_inverse=True)
        chance = np.full(len(groups), 1 / len(groups))
        draws = np.random.default_rng(4).multinomial(len(groups), chance, 60)
        total = np.bincount(place)
        sums = np.array([right[place == group].sum(0) for group in range(len(groups))])
        head, offset = (
            int(part.sum(0).argmax())
            for part in (select[key][1][:, :count], select[key][1][:, count:])
        )
        assert record["head"] == f"{head // 2 + 1}-{head % 2 + 1}"
        assert (
            select[key][1][:, count + record["offset"] + 8].sum()
            == select[key][1][:, count + offset].sum()
        )
        base = count + record["offset"] + 8
        for name, column in (("", head), ("baseline", base)):
            low, high = share_ends(sums[:, column], total, draws)
            edge = f"{name}_" if name else ""
            assert record[name or "accuracy"] == pytest.approx(
                100 * right[:, column].mean(), abs=1e-3
            )
            assert (record[f"{edge}low"], record[f"{edge}high"]) == pytest.approx(
                (100 * low, 100 * high), abs=1e-3
            )
        gain = sums[:, head] - sums[:, base]
        value = gain.sum() / total.sum()
        without = (gain.sum() - gain) / (total.sum() - total)
        size = len(groups)
        squares = ((gain - value * total) ** 2).sum()
        error = np.sqrt(size / (size - 1) * squares) / total.sum()
        samples = draws @ gain / (draws @ total)
        low, high = difference_ends(value, samples, without, size, error)
        assert (record["difference_low"], record["difference_high"]) == pytest.approx(
            (100 * low, 100 * high), abs=1e-3
        )
        assert record["accuracy_where_chosen"] == pytest.approx(
            100 * select[key][1][:, head].mean(), abs=1e-3
        )
        assert own[key]["accuracy"] == pytest.approx(100 * right[:, :count].mean(0).max(), abs=1e-3)
        assert own[key]["accuracies"] == record["accuracies"]
    # Chosen among six heads on what is reported, a head's p-value is that of the best of six.
    same = [
        k
        for k in own
        if own[k]["head"] == found[k]["head"] and own[k]["offset"] == found[k]["offset"]
        if found[k]["p"] is not None  # of 30 sentences or more
    ]
    assert same
    assert all(own[k]["p"] >= found[k]["p"] for k in same)
    assert any(own[k]["p"] > found[k]["p"] for k in same)


def test_a_text_of_two_splits_counts_for_the_first(tmp_path: Path) -> None:
    rows = [("bam", "a"), ("bam", "b"), ("dis", "b"), ("dis", "a"), ("bam", "a"), ("lor", "a")]
    file = t.save_rows(tmp_path / "x.jsonl", [{"text": a, "split": b} for a, b in rows])
    texts = ProbeTexts(str(file), {"a": "report", "b": "select"})
    assert [x.side for x in texts] == ["report", "shared", "select", "shared", "report", "report"]
    assert [x.text for x in texts.of("report")] == ["bam", "bam", "lor"]
    only = t.save_rows(tmp_path / "y.jsonl", [{"text": "bam", "split": s} for s in "ab"])
    with pytest.raises(DataError, match='of the split "b", but all are texts of another split'):
        ProbeTexts(str(only), {"a": "report", "b": "select"}).check()


def test_texts_are_separated_by_split_or_by_hash(tmp_path: Path) -> None:
    rows = [{"text": f"bam {n}", "split": "abc"[n % 3]} for n in range(9)]
    file = t.save_rows(tmp_path / "x.jsonl", rows)
    texts = ProbeTexts(str(file), {"a": "report", "c": "train"}, limit=5)
    assert [x.text for x in texts] == ["bam 0", "bam 2", "bam 3", "bam 5", "bam 6"]
    assert [x.text for x in texts.of("train")] == ["bam 2", "bam 5"]
    assert texts.check() == {"report": 3, "train": 2}
    with pytest.raises(DataError, match='has no text of the split "d"'):
        ProbeTexts(str(file), {"a": "report", "d": "train"}).check()
    plain = tmp_path / "x.txt"
    plain.write_text("".join(f"bam {n % 200}\n" for n in range(400)))
    first, other = (list(ProbeTexts(str(plain), seed=seed)) for seed in (0, 1))
    assert [x.side for x in first[:200]] == [x.side for x in first[200:]], (
        "equal texts are on one side"
    )
    assert [x.side for x in first] != [x.side for x in other]
    assert 20 < sum(x.side == "report" for x in first[:200]) < 60
    assert {x.side for x in ProbeTexts(str(plain))} == {"report"}
    with pytest.raises(DataError, match=r"x.jsonl:1: the key .*split.* is missing"):
        ProbeTexts(str(t.save_rows(file, [{"text": "bam"}])), {"a": "report"}).check()


def test_long_texts_are_counted_and_no_text_is_still_a_result(tmp_path: Path) -> None:
    probe = TextProbe(open_encoder(str(save_encoder(tmp_path / "e", positions=16))), distances=0)
    probe.run(map(ProbeText, ["bam " * 20, " "]))
    assert list(probe.records()) == [
        {
            "kind": "text-summary", "texts": 0, "tokens": 0, "layers": 3, "heads": 2,
            "compared_texts": 0, "level": 0.95,
            "skipped": {"text longer than the encoder": 1, "text without a token": 1},
        }
    ]  # fmt: skip
