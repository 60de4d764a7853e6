"""The probes against brute force: one caption at a time, one head at a time, one word at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from tests.tiny import probe as t
from tests.tiny import save_encoder
from vgtools.images.boxes import iou
from vgtools.images.regions import open_regions
from vgtools.io.errors import DataError
from vgtools.models.attention import open_encoder
from vgtools.systems.attention_probes import region_heads
from vgtools.systems.attention_probes.region_heads import (
    Caption,
    GroundingProbe,
    ProbeBatch,
    answers,
    read_caption,
)
from vgtools.systems.attention_probes.scores import (
    BLIND,
    ENTITY,
    GROUPS,
    OTHER_CAPTION,
    OTHER_ENTITY,
    group_of,
)
from vgtools.text.parses import CoNLLU, Parse
from vgtools.text.tokens import Tokens, tokenize


def softmaxed(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape) * 2).softmax(-1).float()


@pytest.mark.parametrize("reduce", ["last", "mean"])
def test_answers_equal_brute_force_on_random_tensors(reduce: str) -> None:
    rng = np.random.default_rng(0)
    batch, tokens, regions, layers, heads, queries = 4, 7, 5, 3, 4, 40
    attention = [
        softmaxed(rng, batch, heads, tokens + regions, tokens + regions) for _ in range(layers)
    ]
    sizes = torch.tensor([5, 1, 4, 2])
    mask = torch.arange(regions) < sizes[:, None]
    given = ProbeBatch(
        torch.zeros(batch, tokens).long(),
        torch.ones(batch, tokens).bool(),
        torch.zeros(batch, regions, 1),
        mask,
    )
    row = torch.from_numpy(rng.integers(0, batch, queries))
    first = torch.from_numpy(rng.integers(0, tokens, queries))
    last = torch.minimum(
        first + torch.from_numpy(rng.integers(0, 3, queries)), torch.tensor(tokens - 1)
    )
    order = torch.from_numpy(np.stack([rng.permutation(regions) for _ in range(batch)]))
    top, mass = answers(iter(attention), given, row, first, last, order, reduce)
    for q in range(queries):
        for layer in range(layers):
            for head in range(heads):
                places = (
                    [int(last[q])] if reduce == "last" else range(int(first[q]), int(last[q]) + 1)
                )
                weights = [
                    float(
                        np.mean(
                            [attention[layer][row[q], head, p, tokens + r].item() for p in places]
                        )
                    )
                    for r in range(int(sizes[row[q]]))
                ]
                assert top[q, layer, head].item() == np.argmax(weights)
                assert mass[q, layer, head].item() == pytest.approx(sum(weights), abs=1e-6)


def test_of_equal_regions_the_first_of_the_drawn_order_is_the_answer() -> None:
    batch = ProbeBatch(
        torch.zeros(1, 1).long(),
        torch.ones(1, 1).bool(),
        torch.zeros(1, 4, 1),
        torch.tensor([[True, True, True, False]]),
    )
    same, one = torch.full((1, 1, 5, 5), 0.2), torch.zeros(1).long()
    for order in ([0, 1, 2, 3], [2, 0, 1, 3], [1, 2, 0, 3], [3, 2, 1, 0]):
        top, mass = answers([same], batch, one, one, one, torch.tensor([order]))
        assert top.item() == next(region for region in order if region < 3), "3 is not there"
        assert mass.item() == pytest.approx(0.6)


def test_ties_are_broken_by_seed_and_image_and_by_no_order() -> None:
    orders = [region_heads.random_order(f"{n}.jpg", 3, 5, 0) for n in range(300)]
    assert {tuple(order[3:].tolist()) for order in orders} == {(3, 4)}
    first = np.bincount([order[0] for order in orders], minlength=3)
    # Each of the three comes first in a third of 300 images: 100, with a deviation of 8.
    assert (np.abs(first - 100) < 40).all()
    again = region_heads.random_order("7.jpg", 3, 9, 0)
    assert again[:3].tolist() == orders[7][:3].tolist(), "neighbours in the batch change nothing"
    assert [region_heads.random_order(f"{n}.jpg", 3, 5, 1).tolist() for n in range(300)] != [
        order.tolist() for order in orders
    ]


def test_covering_takes_the_tokens_that_share_a_character() -> None:
    tokens = Tokens(
        np.zeros(6, np.int32),
        np.array([[0, 2], [2, 4], [4, 4], [5, 9], [0, 3], [3, 5]], np.int32),  # the third is empty
        np.array([0, 4, 6]),
    )
    spans = np.array([[0, 4], [1, 2], [4, 5], [3, 6], [5, 6], [2, 4], [0, 0]])
    rows = np.array([0, 0, 0, 0, 1, 1, 1])
    first, last = region_heads.covering(tokens, spans, rows)
    found = [(a, b) if b >= a else None for a, b in zip(first.tolist(), last.tolist(), strict=True)]
    assert found == [(0, 1), (0, 0), None, (1, 3), None, (0, 1), None]


# ------------------------------------------------------------------------------- relations of words


def brute_pairs(
    caption: Caption, parse: Parse, words: str
) -> list[tuple[tuple[str, str], int, int]]:
    """Return (key, phrase, source word) of every pair, by loops."""
    found = []
    for number, (start, end) in enumerate(caption.spans):
        inside = [w for w, (a, b) in enumerate(parse.spans) if a < end and b > start]
        entity = (
            [w for w in inside if parse.heads[w] not in inside][:1] if words == "head" else inside
        )
        for w1 in entity:
            for w2 in range(len(parse.spans)):
                if parse.heads[w1] == w2:
                    found.append(((parse.relations[w1], "dependent"), number, w2))
                if parse.heads[w2] == w1:
                    found.append(((parse.relations[w2], "head"), number, w2))
    return sorted(found)


@pytest.mark.parametrize("words", ["head", "any"])
def test_pairs_of_words_equal_brute_force(tmp_path: Path, words: str) -> None:
    sets = t.region_sets(4)
    rows = t.caption_rows(sets, 12)
    regions = open_regions(t.save_regions(tmp_path / "r.npy", sets))
    captions = [c for i, r in enumerate(rows) if (c := read_caption(r, "all", regions, "x", i))]
    captions.insert(3, Caption(99, "photo0.jpg", "", "all", [], []))
    (tmp_path / "p.conllu").write_text(t.conllu([c.text for c in captions if c.text]))
    parser = CoNLLU(str(tmp_path / "p.conllu"))
    parses = [next(parser([c.text])) for c in captions]
    tokenizer = Tokenizer.from_file(str(save_encoder(tmp_path / "e") / "tokenizer.json"))
    tokens = tokenize(tokenizer, [c.text for c in captions])
    keys: dict[Any, int] = {ENTITY: 0}
    queries = region_heads.syntactic_queries(tokens, captions, parses, keys, words)
    names = list(keys)
    base = np.cumsum([0, *(len(c.spans) for c in captions)])
    for number, (caption, parse) in enumerate(zip(captions, parses, strict=True)):
        mine = []
        for q in np.flatnonzero(queries.row == number).tolist():
            spans = tokens.row(number)[1]
            word = next(
                w for w, (a, b) in enumerate(parse.spans) if a <= spans[queries.first[q]][0] < b
            )
            assert spans[queries.first[q]][0] == parse.spans[word][0]
            assert spans[queries.last[q]][1] == parse.spans[word][1]
            mine.append((names[queries.key[q]], int(queries.phrase[q] - base[number]), word))
        assert sorted(mine) == brute_pairs(caption, parse, words)
    assert len(queries.row) > 30


def test_det_of_a_dog_by_hand() -> None:
    text = "a brown dog runs"
    parse = Parse(
        [(0, 1), (2, 7), (8, 11), (12, 16)], [2, 2, 3, -1], ["det", "amod", "nsubj", "ROOT"]
    )
    caption = Caption(1, "x", text, "all", [(0, 11)], [np.zeros((1, 4))])
    spans = np.array(parse.spans, np.int32)
    tokens = Tokens(np.zeros(4, np.int32), spans, np.array([0, 4]))
    keys: dict[Any, int] = {ENTITY: 0}
    queries = region_heads.syntactic_queries(tokens, [caption], [parse], keys)
    found = {
        (list(keys)[k], int(w))
        for k, w in zip(queries.key.tolist(), queries.last.tolist(), strict=True)
    }
    assert found == {(("nsubj", "dependent"), 3), (("det", "head"), 0), (("amod", "head"), 1)}
    assert set(queries.phrase.tolist()) == {0}


# --------------------------------------------------------------------------------------- end to end


def attention_of(model: Any, encoded: Any, regions: Any) -> Any:
    """Return the (L, H, T + R, T + R) attention of the bare model to one caption and photo."""
    with torch.no_grad():
        layers = model(
            input_ids=torch.tensor([encoded.ids]),
            attention_mask=torch.ones(1, len(encoded.ids)).long(),
            visual_embeds=torch.from_numpy(regions.features)[None],
            visual_attention_mask=torch.ones(1, len(regions)).long(), output_attentions=True,
        ).attentions  # fmt: skip
    return torch.stack([x[0] for x in layers]).numpy()


def brute_force(
    path: Path, captions: list[Caption], parses: list[Parse], sets: Any, reduce: str
) -> dict[Any, Any]:
    """Return key -> [(image, right (L, H), mass (L, H), base, bound)] from the bare model.

    One caption at a time.
    """
    from transformers import AutoModel

    model = AutoModel.from_pretrained(path, attn_implementation="eager").eval()
    tokenizer, found = Tokenizer.from_file(str(path / "tokenizer.json")), defaultdict(list)
    for caption, parse in zip(captions, parses, strict=True):
        regions = sets[caption.image]
        encoded = tokenizer.encode(caption.text)
        attention = attention_of(model, encoded, regions)
        asked = [(ENTITY, n, s) for n, s in enumerate(caption.spans)]
        asked += [(key, n, parse.spans[w]) for key, n, w in brute_pairs(caption, parse, "head")]
        for key, phrase, (start, end) in asked:
            places = [
                i for i, (a, b) in enumerate(encoded.offsets) if a < end and b > start and b > a
            ]
            places = places[-1:] if reduce == "last" else places
            weights = attention[:, :, places, len(encoded.ids) :].mean(2)
            hit = []
            for x1, y1, x2, y2 in regions.boxes.tolist():
                best = 0.0
                for a1, b1, a2, b2 in caption.boxes[phrase].tolist():
                    shared = max(0, min(x2, a2) - max(x1, a1)) * max(0, min(y2, b2) - max(y1, b1))
                    best = max(
                        best, shared / ((x2 - x1) * (y2 - y1) + (a2 - a1) * (b2 - b1) - shared)
                    )
                hit.append(best >= 0.5)
            right = np.array(hit)[weights.argmax(-1)]
            base = hit[int(np.argmax(regions.confidence))]
            found[key].append((caption.image, right, weights.sum(-1), base, any(hit)))
            if key == ENTITY:
                wrong = [
                    np.array(hit)[asked_by(attention, encoded, span, reduce)]
                    for span, gold in zip(caption.spans, caption.boxes, strict=True)
                    if not np.array_equal(gold, caption.boxes[phrase])
                ]
                if wrong:
                    columns = np.concatenate([right.ravel(), np.mean(wrong, axis=0).ravel()])
                    found[OTHER_ENTITY].append((caption.image, columns))
    return found


def asked_by(attention: Any, encoded: Any, span: tuple[int, int], reduce: str) -> Any:
    """Return the region that each head answers a span with: (L, H)."""
    places = [
        i for i, (a, b) in enumerate(encoded.offsets) if a < span[1] and b > span[0] and b > a
    ]
    places = places[-1:] if reduce == "last" else places
    return attention[:, :, places, len(encoded.ids) :].mean(2).argmax(-1)


@pytest.mark.parametrize("reduce", ["last", "mean"])
def test_the_probe_equals_brute_force(tmp_path: Path, reduce: str) -> None:
    sets = t.region_sets(6)
    regions = open_regions(t.save_regions(tmp_path / "r.npy", sets))
    rows = t.caption_rows(sets, 30)
    captions = [
        c for i, r in enumerate(rows) if (c := read_caption(r, "ab"[i % 3 == 0], regions, "x", i))
    ]
    (tmp_path / "p.conllu").write_text(t.conllu([c.text for c in captions]))
    parses = list(CoNLLU(str(tmp_path / "p.conllu"))([c.text for c in captions]))
    path = t.save_visualbert(tmp_path / "vb")
    parser = CoNLLU(str(tmp_path / "p.conllu"))
    probe = GroundingProbe(
        open_encoder(str(path)), regions, parser, reduce, samples=50, batch_size=7
    )
    probe.run(iter(captions))
    for side in "ab":
        own = [i for i, c in enumerate(captions) if c.side == side]
        wanted = brute_force(
            path, [captions[i] for i in own], [parses[i] for i in own], sets, reduce
        )
        scores = probe.scores[side]
        controls = wanted.pop(OTHER_ENTITY)
        assert set(scores.cells) == {*wanted, OTHER_ENTITY, OTHER_CAPTION, BLIND}
        cell = scores.cells[OTHER_ENTITY]
        assert 0 < cell.total == len(controls)
        np.testing.assert_allclose(cell.right, sum(columns for _, columns in controls))
        np.testing.assert_allclose(cell.hits, by_group(controls), rtol=1e-5)
        assert scores.photos == len({captions[i].image for i in own})
        assert scores.captions == len(own)
        for key, items in wanted.items():
            cell = scores.cells[key]
            assert cell.total == len(items)
            np.testing.assert_array_equal(
                cell.right, sum(r.astype(int) for _, r, *_ in items).ravel()
            )
            np.testing.assert_allclose(
                cell.mass, sum(m for _, _, m, *_ in items).ravel(), rtol=1e-4
            )
            assert (cell.base, cell.bound) == (
                sum(b for *_, b, _ in items),
                sum(b for *_, b in items),
            )
            hits = by_group([(image, right.ravel()) for image, right, *_ in items])
            np.testing.assert_allclose(cell.hits, hits)
            base = by_group([(i, np.array([b, 1])) for i, _, _, b, _ in items])
            np.testing.assert_allclose(cell.base_hits, base[:, 0])
            np.testing.assert_allclose(cell.totals, base[:, 1])


def by_group(items: Sequence[tuple[str, Any]]) -> Any:
    """Return the sums of (photo, (columns,)) over each group of photos."""
    sums = np.zeros((GROUPS, len(items[0][1])))
    for image, columns in items:
        sums[group_of(image)] += columns
    return sums


def test_results_do_not_depend_on_batches_or_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = t.region_sets(5)
    regions = open_regions(t.save_regions(tmp_path / "r.npy", sets))
    captions = [
        c
        for i, r in enumerate(t.caption_rows(sets, 25))
        if (c := read_caption(r, "all", regions, "x", i))
    ]
    encoder, found = open_encoder(str(t.save_visualbert(tmp_path / "vb"))), []
    for size, window in ((1, 512), (8, 512), (8, 3)):
        monkeypatch.setattr(region_heads, "_WINDOW", window)
        probe = GroundingProbe(encoder, regions, batch_size=size, samples=20)
        probe.run(iter(captions))
        found.append(probe.scores["all"].cells)
    for other in found[1:]:
        np.testing.assert_array_equal(found[0][ENTITY].right, other[ENTITY].right)
        np.testing.assert_allclose(found[0][ENTITY].mass, other[ENTITY].mass, rtol=1e-5)
        for key in (ENTITY, BLIND, OTHER_ENTITY, OTHER_CAPTION):
            np.testing.assert_allclose(found[0][key].right, other[key].right, rtol=1e-9)
            np.testing.assert_allclose(found[0][key].hits, other[key].hits, rtol=1e-5)


def test_a_caption_of_another_photo_asks_about_the_regions_of_this_one(tmp_path: Path) -> None:
    from transformers import AutoModel

    sets = t.region_sets(4, most=3)
    regions = open_regions(t.save_regions(tmp_path / "r.npy", sets))
    rows = t.caption_rows(sets, 6, seed=3)
    for row, image in zip(rows, ("0", "0", "1", "1", "2", "0"), strict=True):
        row["image"] = f"photo{image}.jpg"
    read = [c for i, r in enumerate(rows) if (c := read_caption(r, "all", regions, "x", i))]
    captions = []
    for caption in read:  # a region each: some answers are right
        own = sets[caption.image].boxes
        golds = [own[n % len(own)][None] for n, _ in enumerate(caption.spans)]
        captions.append(replace(caption, boxes=golds))
    path = t.save_visualbert(tmp_path / "vb")
    probe = GroundingProbe(open_encoder(str(path)), regions, samples=5)
    probe.run(iter(captions))
    model = AutoModel.from_pretrained(path, attn_implementation="eager").eval()
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    expected = np.zeros(12)
    asked = 0
    for here, before in ((2, 1), (3, 1), (4, 3), (5, 4)):  # the last one of another photo
        asked_about, partner = captions[here], captions[before]
        region_set = sets[asked_about.image]
        encoded = tokenizer.encode(partner.text)
        attention = attention_of(model, encoded, region_set)
        for gold in asked_about.boxes:
            hit = iou(gold, region_set.boxes).max(0) >= 0.5
            tops = [asked_by(attention, encoded, span, "last") for span in partner.spans]
            expected[6:] += np.mean([hit[top].ravel() for top in tops], axis=0)
            asked += 1
    cell = probe.scores["all"].cells[OTHER_CAPTION]
    assert cell.total == asked
    np.testing.assert_allclose(cell.right[6:], expected[6:], rtol=1e-9)
    assert expected[6:].any()


# ---------------------------------------------------------------------------------------- bad input


def test_long_captions_and_photos_without_regions_are_counted(tmp_path: Path) -> None:
    sets = t.region_sets(3)
    regions = open_regions(t.save_regions(tmp_path / "r.npy", sets))
    rows = t.caption_rows(sets, 6)
    rows[2]["text"] += " bam" * 70
    captions = [c for i, r in enumerate(rows) if (c := read_caption(r, "all", regions, "x", i))]
    probe = GroundingProbe(
        open_encoder(str(t.save_visualbert(tmp_path / "vb"))), regions, samples=5
    )
    probe.run(iter(captions))
    assert probe.skipped["caption longer than the encoder"] == 1
    assert probe.scores["all"].captions == 5
    wanted = sum(len(r["phrases"]) for i, r in enumerate(rows) if i != 2)
    assert probe.scores["all"].cells[ENTITY].total == wanted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": 4, "end": 999}, "phrase 1 has the span 4 to 999, the text has"),
        ({"start": 3, "end": 3}, "phrase 1 has the span 3 to 3"),
        ({"start": -2}, "phrase 1 has the span -2 to"),
        ({"start": "0"}, "phrase 1 has the span '0' to"),
        ({"boxes": [[0, 0, 300, 10]]}, "phrase 1: box 1, .* leaves its picture of 100×100"),
        ({"boxes": [[5, 5, 5, 10]]}, "phrase 1: box 1, .* has no area"),
        ({"boxes": [[1, 2, 3]]}, 'phrase 1 has "boxes"'),
        ({"boxes": "none"}, 'phrase 1 has "boxes"'),
        ({"boxes": [[1, 2, 3, "x"]]}, 'phrase 1 has "boxes"'),
    ],
)
def test_a_bad_phrase_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    sets = t.region_sets(1)
    regions = open_regions(t.save_regions(tmp_path / "r.npy", sets))
    row = t.caption_rows(sets, 1)[0]
    row["phrases"][0] |= change
    with pytest.raises(DataError, match=f"phrases.jsonl:7: {message}"):
        read_caption(row, "all", regions, "phrases.jsonl", 7)


def test_gold_boxes_follow_the_size_of_the_picture(tmp_path: Path) -> None:
    sets = t.region_sets(1)
    regions = open_regions(t.save_regions(tmp_path / "r.npy", sets))
    row = {"image": "photo0.jpg", "text": "bam", "width": 400, "height": 400}
    row["phrases"] = [
        {"start": 0, "end": 3, "boxes": [[40, 40, 400, 200]]},
        {"start": 0, "end": 1, "boxes": []},
    ]
    caption = read_caption(row, "all", regions, "x", 1)
    assert caption is not None
    assert [b.tolist() for b in caption.boxes] == [[[10, 10, 100, 50]]]
    with pytest.raises(DataError, match=r"no regions of the image 'lost\.jpg'"):
        read_caption(row | {"image": "lost.jpg"}, "all", regions, "x", 1)
    why = r"r\.npy has a picture 'photo0\.jpg' that is 100×100, but its annotation is for 800×400"
    with pytest.raises(DataError, match=why):
        read_caption(row | {"width": 800}, "all", regions, "x", 1)


def test_models_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    late = t.save_visualbert(tmp_path / "late", bypass_transformer=True)
    with pytest.raises(DataError, match="without early fusion"):
        open_encoder(str(late))
    sets = t.region_sets(1)
    regions = open_regions(t.save_regions(tmp_path / "r.npy", sets))
    with pytest.raises(
        DataError, match="12 channels per region, the model takes no regions: it is a text encoder"
    ):
        GroundingProbe(open_encoder(str(save_encoder(tmp_path / "bert"))), regions)
    encoder = open_encoder(str(t.save_visualbert(tmp_path / "vb")))
    assert (encoder.layers, encoder.heads, encoder.region_width, encoder.max_tokens) == (
        3,
        2,
        12,
        62,
    )
    assert encoder.encoder.model.config._attn_implementation == "eager"
    encoder.encoder.model.forward = lambda **_: object()
    one = torch.ones(1, 2).long()
    with pytest.raises(DataError, match="the attention of visual_bert cannot be read"):
        next(encoder.attentions(one, one.bool(), torch.zeros(1, 0, 12), torch.zeros(1, 0).bool()))


def test_words_attend_as_the_layers_say(tmp_path: Path) -> None:
    sets = t.region_sets(1)
    encoder = open_encoder(str(t.save_visualbert(tmp_path / "vb")))
    caption = Caption(1, "photo0.jpg", "bamxx dis", "all", [], [])
    whole = region_heads.region_attention(encoder, caption.text, sets["photo0.jpg"])
    found = region_heads.word_attention(whole, [(0, 5), (5, 6), (6, 9)])
    ids = torch.tensor([encoder.tokenizer.encode(caption.text).ids])
    features = torch.from_numpy(sets["photo0.jpg"].features)[None]

    def layers() -> Iterator[Tensor]:
        with torch.no_grad():
            yield from encoder.attentions(
                ids, torch.ones_like(ids).bool(), features, torch.ones(1, features.shape[1]).bool()
            )

    for layer, weights in enumerate(layers()):
        np.testing.assert_allclose(
            found[layer, :, 0], weights[0, :, ids.shape[1] - 3, ids.shape[1] :], rtol=1e-5
        )
        np.testing.assert_allclose(
            found[layer, :, 2], weights[0, :, ids.shape[1] - 2, ids.shape[1] :], rtol=1e-5
        )
    assert not found[:, :, 1].any()
