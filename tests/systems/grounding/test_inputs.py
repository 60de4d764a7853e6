"""Texts and images become batches: clipping, masks, slots, and images that give nothing away."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.tiny import WORDS
from tests.tiny import grounding as t
from tests.tiny.grounded import (
    D,
    bank_of,
    examples_of,
    pictures_of,
    rows_of,
    sentences,
)
from tests.tiny.lm import make_tokenizer
from tests.tiny.visual import open_tiny
from vgtools.io.errors import DataError, Exit
from vgtools.models.references import load_tokenizer
from vgtools.systems.grounding.association import Scene
from vgtools.systems.grounding.inputs import WordBank, mask_regions, open_sources
from vgtools.systems.grounding.keys import caption_keys
from vgtools.systems.grounding.pictures import RegionPictures, open_pictures
from vgtools.systems.grounding.recipe import Sources
from vgtools.systems.grounding.texts import GrowingArray, read_texts
from vgtools.text.word_vectors import WordVectors

TOKENIZER = make_tokenizer()
CLS, SEP, MASK, PAD = (TOKENIZER.token_to_id(f"[{name}]") for name in ("CLS", "SEP", "MASK", "PAD"))
LETTERS = "abcdefghij"


# ------------------------------------------------------------------------------------------ reading


def test_texts_are_clipped_and_know_their_images(tmp_path: Path) -> None:
    plain = tmp_path / "a.txt"
    plain.write_text("a b c d\n\ne f\n")
    rows = tmp_path / "b.jsonl"
    rows.write_text('{"text": "g"}\n{"image": "x", "text": "h i j"}\n{"image": "x", "text": "a"}\n')
    texts = read_texts([str(plain), str(rows)], TOKENIZER, 3)
    assert [TOKENIZER.decode(texts.of(n).tolist()) for n in range(len(texts))] == [
        "a b c", "e f", "g", "h i j", "a",
    ]  # fmt: skip
    assert texts.image.tolist() == [-1, -1, -1, 0, 0]
    assert (texts.images, texts.empty) == (["x"], 1)
    every = read_texts([str(plain)], TOKENIZER, 3, keep_empty=True)
    assert np.diff(every.starts).tolist() == [3, 0, 2]
    assert every.content.tolist() == [False, True, True, True, True], "a is a stop word"
    assert texts.digest != every.digest


def test_bad_rows_are_named(tmp_path: Path) -> None:
    pictures = pictures_of(tmp_path)

    def refusal(*rows: object) -> str:
        path = tmp_path / "x.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        with pytest.raises(DataError) as caught:
            read_texts([str(path)], TOKENIZER, 9, pictures=pictures)
        assert caught.value.code == Exit.DATA
        return str(caught.value)

    good = {"image": "image003", "text": "a"}
    assert 'x.jsonl:2: the key "text" is missing' in refusal(good, {"image": "image003"})
    assert 'x.jsonl:2: "image" must be a string' in refusal(good, {"image": 3, "text": "a"})
    found = refusal(good, good, {"image": "image999", "text": "a"})
    assert "x.jsonl:3: " in found
    assert "f.npy holds no features of the image 'image999'; extract them" in found
    assert "holds no text" in refusal({"text": ""})


def test_a_column_keeps_its_numbers_in_a_file_without_a_name(tmp_path: Path) -> None:
    assert GrowingArray(np.int32, tmp_path).array().tolist() == []
    column = GrowingArray(np.int32, tmp_path)
    column.extend(np.arange(5))
    column.extend(np.arange(2))
    assert column.array().tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert list(tmp_path.iterdir()) == []


def spelt_by(tmp_path: Path, text: str, hidden: Sequence[int], longest: int = 30) -> str:
    path = tmp_path / "t.txt"
    path.write_text(f"other\n{text}\n")
    texts = read_texts(
        [str(path)], load_tokenizer("builtin:minilm"), longest, raw=True, keep_empty=True
    )
    flags = np.isin(np.arange(len(texts.of(1))), hidden)
    return texts.shown(1, flags)


def test_what_visible_tokens_spell_worked_by_hand(tmp_path: Path) -> None:
    text = "The  Woodpeckers, woodpeckers!"  # the wood ##pe ##cker ##s , wood ##pe ##cker ##s !
    assert spelt_by(tmp_path, text, []) == text
    assert spelt_by(tmp_path, text, [0]) == "_ Woodpeckers, woodpeckers!"
    assert spelt_by(tmp_path, text, [4, 5]) == "The  Woodpecker _ _ woodpeckers!"
    assert spelt_by(tmp_path, text, [1, 8, 10]) == "The _ peckers, woodpe _ s _"
    assert spelt_by(tmp_path, text, [], 4) == "The  Woodpecker", "clipped"
    assert spelt_by(tmp_path, "", []) == ""


def test_characters_that_a_hidden_byte_has_a_part_in_are_hidden(tmp_path: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({sign: i for i, sign in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    (tmp_path / "t.txt").write_text("aéb\n")  # a, the two bytes of é, b
    texts = read_texts([str(tmp_path / "t.txt")], tokenizer, 30, raw=True)
    assert len(texts.of(0)) == 4
    found = [texts.shown(0, np.arange(4) == hidden) for hidden in range(4)]
    assert found == ["_ éb", "a _ b", "a _ b", "aé _"]


PIECES = ("the", "dog", "##s", "house", "##cat", "a", "##er")


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_is_shown_does_not_tell_whether_a_hidden_token_continues_a_word(
    tmp_path: Path, data: st.DataObject
) -> None:
    vocabulary = {name: i for i, name in enumerate(("[UNK]", *PIECES))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pieces = data.draw(st.lists(st.sampled_from(PIECES), min_size=1, max_size=8))
    size = len(pieces)
    flags = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)), bool)
    others = data.draw(st.lists(st.sampled_from(PIECES), min_size=size, max_size=size))
    swapped = np.where(flags, others, pieces).tolist()
    found = list[str]()
    for own in (pieces, swapped):
        path = tmp_path / "t.txt"
        path.write_text(" ".join(own).replace(" ##", "") + "\n")
        texts = read_texts([str(path)], tokenizer, 30, raw=True)
        assume([tokenizer.id_to_token(i) for i in texts.of(0)] == own)
        found.append(texts.shown(0, flags))
    assert found[0] == found[1]


# ------------------------------------------------------------------------------------------ batches


def test_a_batch_holds_texts_masks_and_images_in_place(tmp_path: Path) -> None:
    texts = sentences(8)
    own = {i: f"image{10 + i:03}" for i in (0, 3, 7)}
    examples = examples_of(tmp_path, texts, "i2t", own, pictures_of(tmp_path))
    (batch,) = examples.collate(np.arange(8), 0)
    whole = batch.ids.clone().flatten()
    whole[batch.masked] = batch.tokens
    for i, line in enumerate(whole.view(batch.ids.shape).tolist()):
        here = [t for t, there in zip(line, batch.text_mask[i].tolist(), strict=True) if there]
        assert here == [CLS, *examples.texts.of(i).tolist(), SEP]
        assert set(line[len(here) :]) <= {PAD}
    assert (batch.ids.flatten() == MASK).sum() > 0
    assert batch.token_count == len(batch.tokens) > 5
    assert batch.slots.shape == (8, 1, D)
    assert batch.slot_mask.flatten().tolist() == [i in own for i in range(8)]
    assert batch.slots[3, 0, 0] == 14, "image013 is the fourteenth"
    assert not batch.slots[1].any()
    assert batch.regions.shape == (0, 2)


def test_every_step_is_the_sum_of_its_parts(tmp_path: Path) -> None:
    own = {i: f"image{i:03}" for i in range(0, 12, 2)}
    pictures = pictures_of(tmp_path)
    examples = examples_of(tmp_path, sentences(12), "both", own, pictures)
    (whole,) = examples.collate(np.arange(12), 3)
    parts = examples.collate(np.arange(12), 3, parts=3)
    assert [len(p.ids) for p in parts] == [4, 4, 4]
    assert sum(len(p.tokens) for p in parts) == len(whole.tokens) == 3 * parts[0].token_count
    assert sum(len(p.regions) for p in parts) == len(whole.regions) == 3 * parts[0].region_count
    assert sorted(torch.cat([p.tokens for p in parts])) == sorted(whole.tokens)


def test_strategies_choose_what_a_caption_learns(tmp_path: Path) -> None:
    own = {i: f"image{i % 20:03}" for i in range(200)}
    pictures = pictures_of(tmp_path)
    texts = sentences(240)
    shares = {}
    for strategy in ("i2t", "t2i", "both"):
        examples = examples_of(tmp_path, texts, strategy, own, pictures)
        drawn = [examples.example(n, 0) for n in range(240)]
        assert not any(e.regions for e in drawn[200:]), "a text without an image learns words"
        assert all(e.chosen.any() != e.regions or not e.regions for e in drawn)
        shares[strategy] = sum(e.regions for e in drawn) / 200
        again = [examples.example(n, 1).regions for n in range(200)]
        assert (again != [e.regions for e in drawn[:200]]) == (strategy == "both")
    assert (shares["i2t"], shares["t2i"]) == (0, 1)
    assert shares["both"] == pytest.approx(0.5, abs=0.12)
    (batch,) = examples_of(tmp_path, texts, "t2i", own, pictures).collate(np.arange(4), 0)
    assert not len(batch.tokens), "the text of a masked image is whole"
    assert batch.regions.tolist() == [[0, 0], [1, 0], [2, 0], [3, 0]]
    assert batch.targets[:, 0].tolist() == [1, 2, 3, 4]
    assert not batch.slots.any(), "a masked image is zeros"
    assert batch.slot_mask.all(), "and not the placeholder"


def test_dropped_images_leave_the_placeholder_in_training_only(tmp_path: Path) -> None:
    own = dict.fromkeys(range(300), "image001")
    pictures = pictures_of(tmp_path)
    examples = examples_of(tmp_path, sentences(300), "i2t", own, pictures, drop_images=0.3)
    (batch,) = examples.collate(np.arange(300), 0)
    shown = int(batch.slot_mask.sum())
    assert shown / 300 == pytest.approx(0.7, abs=0.1)
    (fixed,) = examples.collate(np.arange(300), None)
    assert fixed.slot_mask.all()
    (none,) = examples_of(tmp_path, sentences(5), "i2t", own, pictures, drop_images=1.0).collate(
        np.arange(5), 0
    )
    assert none.slots.shape[1] == 0


def test_masks_change_with_epoch_and_seed_but_not_those_of_evaluation(tmp_path: Path) -> None:
    def read(epoch: int | None, seed: int) -> list[list[int]]:
        examples = examples_of(tmp_path, sentences(20), seed=seed)
        found: list[list[int]] = examples.collate(np.arange(20), epoch)[0].ids.tolist()
        return found

    assert read(0, 0) == read(0, 0)
    assert read(None, 0) == read(None, 1)
    assert len({str(read(*at)) for at in ((0, 0), (1, 0), (0, 1), (None, 0))}) == 4


# ------------------------------------------------------------------------------------------- images


def test_the_regions_of_an_image_are_the_most_confident(tmp_path: Path) -> None:
    regions = open_tiny(tmp_path / "r.npy")
    pictures = RegionPictures("r.npy", regions, 3)
    rows = np.array([[3, 0], [-1, 2]])  # images of 4, 1, 0 and 3 regions
    features, mask = pictures.gather(rows)
    assert features.shape == (2, 6, regions.width)
    assert mask.tolist() == [[True] * 3 + [True, False, False], [False] * 3 + [True] * 3]
    own = regions.of("image3")
    best = np.argsort(-own.confidence)[:3]
    assert np.array_equal(features[0, :3], own.features[best])
    assert not features[~mask].any()
    assert pictures.row("image3") == 3
    assert pictures.row("nothing") == -1


def test_masked_regions_keep_their_share_and_their_truth(tmp_path: Path) -> None:
    pictures = RegionPictures("r.npy", open_tiny(tmp_path / "r.npy"), 4)
    rng = np.random.default_rng(0)
    counts = np.zeros(4)
    zeros = kept = 0
    for _ in range(3000):
        features, mask = pictures.gather(np.array([[3]]))
        before = features[0].copy()
        places, true = mask_regions(features[0], mask[0], rng, pictures)
        assert np.array_equal(true, before[places])
        others = np.setdiff1d(np.arange(4), places)
        assert np.array_equal(features[0, others], before[others])
        counts[len(places) - 1] += 1
        zeros += int((features[0, places] == 0).all(1).sum())
        kept += int((features[0, places] == true).all(1).sum())
    total = (counts * np.arange(1, 5)).sum()
    assert counts[0] / 3000 == pytest.approx(0.85**4 + 4 * 0.15 * 0.85**3, abs=0.03)
    assert zeros / total == pytest.approx(0.8, abs=0.03)
    assert kept / total == pytest.approx(0.1 + 0.1 * 4 / 34, abs=0.03), "or drawn by chance"


def test_features_of_another_file_than_asked_for_are_refused(tmp_path: Path) -> None:
    assert open_pictures(None, None, 1) is None
    pictures = pictures_of(tmp_path)
    assert pictures.backbone["fingerprint"].startswith("b" * 64)
    with pytest.raises(DataError) as caught:
        open_pictures(None, pictures.path, 4)
    assert caught.value.code == Exit.DATA


# ------------------------------------------------------------------------------------------ no leak

ASSOCIATIVE = ["scene", "object", "keyword"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("leak")


@pytest.mark.parametrize("strategy", ASSOCIATIVE)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**31), epoch=st.integers(0, 5), rate=st.sampled_from([0.15, 0.5]))
def test_a_masked_word_cannot_change_the_images(
    folder: Path, strategy: str, seed: int, epoch: int, rate: float
) -> None:
    """Replace every word that is to be predicted by any other: the same images are found."""
    pictures = pictures_of(folder)
    bank = bank_of(strategy)
    texts = sentences(12, seed)
    numbers = np.arange(len(texts))

    def shown(own: list[str]) -> np.ndarray[int, np.dtype[np.int64]]:
        examples = examples_of(folder, own, strategy, None, pictures, bank, seed=seed, rate=rate)
        found: np.ndarray[int, np.dtype[np.int64]] = rows_of(examples, numbers, epoch)
        return found

    before = shown(texts)
    examples = examples_of(folder, texts, strategy, None, pictures, bank, seed=seed, rate=rate)
    rng = np.random.default_rng(seed)
    others = list[str]()
    for number, text in enumerate(texts):
        chosen = examples.example(number, epoch).chosen
        words = text.split()
        assert len(words) == len(chosen), "a word is a token"
        others.append(
            " ".join(
                str(rng.choice(WORDS[:100])) if hidden else word
                for word, hidden in zip(words, chosen.tolist(), strict=True)
            )
        )
    assert np.array_equal(shown(others), before)


@pytest.mark.parametrize(("piece", "found"), [(1, ["dog"]), (2, ["wood", "dog"]), (4, ["dog"])])
def test_a_word_of_which_any_piece_is_predicted_finds_no_image(
    tmp_path: Path, piece: int, found: list[str]
) -> None:
    names = ["woodpeckers", "wood", "dog"]
    vectors = WordVectors(
        "x.npy", np.eye(3, dtype=np.float32), "f", {name: row for row, name in enumerate(names)}
    )
    finder = Scene(t.index(caption_keys(t.rows(*names), vectors, t.STOP)), vectors, t.STOP)
    path = tmp_path / "t.txt"
    path.write_text("the woodpeckers, dog\n")  # the wood ##pe ##cker ##s , dog
    texts = read_texts([str(path)], load_tokenizer("builtin:minilm"), 30, raw=True)
    hidden = [np.isin(np.arange(7), [piece, 5])]
    numbers = np.array([0])

    def words(whole: bool) -> list[str]:
        bank = WordBank(finder, np.arange(3), 1, whole, {})
        return [names[row] for row in bank.words(texts, numbers, hidden).rows]

    assert words(whole=False) == found
    assert words(whole=True) == ["woodpeckers", "dog"]


@pytest.mark.parametrize("strategy", ASSOCIATIVE)
def test_the_whole_text_as_query_tells_what_is_masked(tmp_path: Path, strategy: str) -> None:
    pictures = pictures_of(tmp_path)
    texts = sentences(40)
    found = [
        rows_of(
            examples_of(tmp_path, texts, strategy, None, pictures, bank_of(strategy, whole=whole)),
            np.arange(40),
            epoch,
        )
        for whole, epoch in ((True, 0), (True, 1), (False, 0), (False, 1))
    ]
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[2], found[3])


@pytest.mark.parametrize("strategy", ASSOCIATIVE)
def test_images_are_those_of_the_text_not_of_the_batch(tmp_path: Path, strategy: str) -> None:
    own = {i: f"image{i % 20:03}" for i in range(64)}
    pictures = pictures_of(tmp_path)
    bank = bank_of(strategy, images=6)
    examples = examples_of(tmp_path, sentences(64), strategy, own, pictures, bank)
    together = rows_of(examples, np.arange(64), 2)
    alone = np.concatenate([rows_of(examples, np.array([n]), 2) for n in range(64)])
    assert np.array_equal(together, alone)
    assert (together >= 0).sum() > 64
    mine = np.array([i % 20 for i in range(64)])
    assert not (together == mine[:, None]).any(), "a text's own image is never found for it"


def test_a_text_without_a_query_has_the_placeholder(tmp_path: Path) -> None:
    pictures = pictures_of(tmp_path)
    bank = bank_of("scene")
    examples = examples_of(tmp_path, ["zzz yyy", "bam"], "scene", None, pictures, bank, rate=0.01)
    (batch,) = examples.collate(np.arange(2), None)
    assert batch.slot_mask.any(1).tolist() == [False, True]


def test_an_index_must_fit_the_strategy_and_the_features(tmp_path: Path) -> None:
    from tests.tiny.grounded import IMAGES, captions, save_images

    words = t.save_vectors(tmp_path / "v.npy", {"bam": (1, 0), "bet": (0, 1)})
    rows = [(1, {"image": "image003", "text": "bam"}), (2, {"image": "image999", "text": "bet"})]
    bank = caption_keys(rows, t.vectors({"bam": (1, 0), "bet": (0, 1)}), t.STOP)
    index = t.save_index(tmp_path / "s.faiss", bank, "captions", words)
    feats = str(save_images(tmp_path / "f.npy"))
    assert len(captions()) == IMAGES

    def refusal(strategy: str) -> DataError:
        with pytest.raises(DataError) as caught:
            open_sources(Sources(strategy, feats, index=str(index), images=2))
        return caught.value

    wrong = refusal("keyword")
    assert (wrong.code, "found by captions; keyword needs keywords" in str(wrong)) == (
        Exit.USAGE,
        True,
    )
    missing = refusal("scene")
    assert missing.code == Exit.DATA
    assert "f.npy holds no features of its image 'image999' (1 are missing)" in str(missing)
