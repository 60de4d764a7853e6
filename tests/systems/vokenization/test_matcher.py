"""The matcher: losses worked out by hand, batches, hidden states, true recall.

It learns eight rows by heart.
"""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch

from tests.precision import rounding
from tests.tiny import IMAGE, WIDTH, save_encoder
from vgtools.io.errors import DataError, Exit
from vgtools.models.encoder import Encoder, load_encoder
from vgtools.models.packed import PackedEncoder
from vgtools.models.runs import as_config
from vgtools.systems.vokenization import matcher_training
from vgtools.systems.vokenization.calibration import fit_calibration
from vgtools.systems.vokenization.matcher import (
    MatcherBatch,
    MatcherConfig,
    TokenImageMatcher,
    at_context,
    hinge_loss,
    info_nce,
    load_matcher,
)
from vgtools.systems.vokenization.matcher_training import HiddenStates, MatcherCaptions
from vgtools.systems.vokenization.recipe import MatcherSettings
from vgtools.training.loop import TrainConfig, train
from vgtools.training.steps import plan_for

LAYERS = 2
# Libraries sum in different orders, some for different numbers of rows: two sums, over the input
# and the hidden layer.
ORDER = {"rtol": 0, "atol": 4 * rounding(torch.float32, LAYERS * WIDTH + 16)}
TEXTS = [
    "A dog runs",
    "two dogs sleep",
    "the cat",
    "Cats and a dog!",
    "it is",
    "red car",
    "a red ball .",
    "trees",
]
IMAGES = [3, 3, 0, 5, 0, 7, 5, 9]

LOSSES = get_args(get_type_hints(MatcherSettings)["loss"])


def config(**changes: Any) -> MatcherConfig:
    plain: dict[str, Any] = {
        "text_width": LAYERS * WIDTH,
        "image_width": IMAGE,
        "layers": LAYERS,
        "hidden": 16,
        "dim": 8,
    }
    return MatcherConfig(**(plain | changes))


def matcher_of(seed: int = 0, **changes: Any) -> TokenImageMatcher:
    torch.manual_seed(seed)
    return TokenImageMatcher(config(**changes)).eval()


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return load_encoder(str(save_encoder(tmp_path_factory.mktemp("encoder"))))


@pytest.fixture(scope="module")
def captions(encoder: Encoder) -> MatcherCaptions:
    return matcher_training.tokenize_captions(TEXTS, IMAGES, encoder.tokenizer, encoder.max_tokens)[
        0
    ]


@pytest.fixture(scope="module")
def states(encoder: Encoder, captions: MatcherCaptions) -> HiddenStates:
    return HiddenStates(PackedEncoder(encoder, LAYERS), captions.tokens, 1 << 30)


@pytest.fixture(scope="module")
def feats() -> Any:
    return np.random.default_rng(0).standard_normal((10, IMAGE)).astype(np.float32)


# ------------------------------------------------------------------------------------------- losses


def test_hinge_loss_is_the_mean_of_what_is_missing_to_the_margin() -> None:
    tokens = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], requires_grad=True)
    images = torch.tensor([[0.6, 0.8], [0.0, 1.0], [1.0, 0.0]], requires_grad=True)
    negatives = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]], requires_grad=True)
    loss = hinge_loss(tokens, images, negatives, 0.5)
    # 0.5 - 0.6 + 1.0 = 0.9;  0.5 - 1.0 + 0.8 = 0.3;  0.5 - 1.0 + 0.0 < 0
    assert loss.item() == pytest.approx((0.9 + 0.3 + 0.0) / 3)
    loss.backward()
    assert tokens.grad is not None
    assert torch.allclose(tokens.grad[0], torch.tensor([0.4, -0.8]) / 3)  # negative - image
    assert images.grad is not None
    assert torch.allclose(images.grad, -tokens.detach() * torch.tensor([[1.0], [1.0], [0.0]]) / 3)
    assert negatives.grad is not None
    assert not negatives.grad[2].any()  # beyond the margin nothing pulls


def test_hinge_loss_names_the_shapes_it_was_given() -> None:
    with pytest.raises(ValueError, match=r"\(3, 2\), \(1, 2\), \(3, 2\)"):
        hinge_loss(torch.zeros(3, 2), torch.zeros(1, 2), torch.zeros(3, 2))


def test_an_unknown_loss_is_not_replaced_by_another() -> None:
    model = TokenImageMatcher(config(level="sentence", loss="triplet"))
    batch: Any = SimpleNamespace(hidden=torch.ones(2, LAYERS * WIDTH), feats=torch.ones(2, IMAGE))
    with pytest.raises(KeyError, match="triplet"):
        model(batch)


def test_info_nce_by_hand() -> None:
    tokens, images, scale = torch.tensor([[1.0, 0.0]]), torch.eye(2), torch.tensor(math.log(3.0))
    none, half = torch.zeros(0, 2), torch.tensor([[0.5, 0.5]])
    own, key, no_key = torch.tensor([0]), torch.tensor([0]), torch.tensor([-1])
    # logits are ln 3 and 0, their log-sum is ln 4
    plain = info_nce(tokens, own, images, scale, no_key, none, 0.5)
    assert plain.item() == pytest.approx(math.log(4 / 3))
    shared = info_nce(tokens, own, images, scale, key, half, 0.5)
    assert shared.item() == pytest.approx(math.log(4) - 0.75 * math.log(3))
    assert info_nce(tokens, own, images, scale, key, half, 0.0).item() == pytest.approx(
        math.log(4 / 3)
    )
    assert info_nce(tokens, own, images, scale, no_key, half, 0.5).item() == pytest.approx(
        math.log(4 / 3)
    )


def test_info_nce_is_the_cross_entropy_with_the_full_target() -> None:
    generator = torch.Generator().manual_seed(0)
    tokens, images = (
        torch.nn.functional.normalize(torch.randn(n, 8, generator=generator), dim=1) for n in (6, 4)
    )
    own, keys = torch.tensor([0, 1, 2, 3, 0, 1]), torch.tensor([0, -1, 1, 1, -1, 0])
    holders = torch.tensor([[0.5, 0.0, 0.5, 0.0], [0.0, 0.25, 0.25, 0.5]])
    target = torch.nn.functional.one_hot(own, 4).float()
    kept = keys >= 0
    target[kept] = 0.3 * target[kept] + 0.7 * holders[keys[kept]]
    wanted = torch.nn.functional.cross_entropy(5.0 * tokens @ images.T, target)
    found = info_nce(tokens, own, images, torch.tensor(5.0), keys, holders, 0.7)
    # Logits are five times sums of eight; the softmax sums four, the mean six.
    assert found.item() == pytest.approx(
        wanted.item(), rel=rounding(torch.float32, 5 * 8 + 4 + 6 + 8)
    )


def test_info_nce_refuses_shapes_that_do_not_belong_together() -> None:
    with pytest.raises(ValueError, match="holders"):
        info_nce(
            torch.zeros(2, 3),
            torch.zeros(2, dtype=torch.int64),
            torch.zeros(4, 3),
            torch.tensor(1.0),
            torch.zeros(2, dtype=torch.int64),
            torch.zeros(1, 5),
        )


def test_tokens_count_by_their_weights() -> None:
    tokens, images = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.eye(2)
    own, no_key = torch.tensor([0, 0]), torch.tensor([-1, -1])
    scale = torch.tensor(math.log(3.0))
    # The losses of the two are ln 4 - ln 3 and ln 4.
    weighted = info_nce(
        *(tokens, own, images, scale, no_key, torch.zeros(0, 2)), 0.5, torch.tensor([3.0, 1.0])
    )
    assert weighted.item() == pytest.approx(math.log(4) - 0.75 * math.log(3))


def test_rare_stems_weigh_more(captions: MatcherCaptions, states: HiddenStates, feats: Any) -> None:
    sentences = np.arange(len(captions.images))
    rng = np.random.default_rng(0)
    batch = matcher_training.collate(captions, states, feats, config(rarity=2.0), sentences, rng)
    counts = dict(zip(captions.stems, matcher_training.stem_counts(captions), strict=True))
    assert {stem: counts[stem] for stem in ("dog", "cat", "red", "tree")} == {
        "dog": 3, "cat": 2, "red": 2, "tree": 1,
    }  # fmt: skip
    assert batch.weights is not None
    numbers = np.flatnonzero(counts["dog"] == np.array(list(counts.values())))
    assert len(numbers) == 1
    found = {round(w, 4) for w in batch.weights.tolist()}
    # Of 8 captions 3, 2 and 1 hold a stem; words that show nothing count as 2.5 nats.
    nats = [math.log(8 / 3), math.log(4), math.log(8)]
    assert {round(n**2, 4) for n in nats} <= found <= {round(n**2, 4) for n in [*nats, 2.5]}


def test_the_word_loss_matches_words_without_their_sentence() -> None:
    model = matcher_of(word_loss=0.25, dropout=0.0)
    assert model.losses == {"info_nce": 1.0, "word": 0.25}
    torch.manual_seed(1)
    hidden, feats = torch.randn(3, LAYERS * WIDTH), torch.randn(2, IMAGE)
    holders = torch.tensor([[0.25, 0.75]])
    zero = torch.zeros(3, dtype=torch.int64)
    keys = torch.tensor([0, -1, 0])
    batch = MatcherBatch(hidden, zero, hidden[:1], feats, zero, zero, keys, holders)
    with torch.no_grad():
        model.log_word_scale.fill_(math.log(2.0))
        found = model(batch)["word"].item()
        words = torch.nn.functional.normalize(model.text(hidden), dim=1).double()
        images = model.embed_images(feats).double()
    expected = []
    for token in (0, 2):  # the second has no stem
        logits = 2 * words[token] @ images.T
        expected.append(logits.logsumexp(0) - 0.25 * logits[0] - 0.75 * logits[1])
    assert found == pytest.approx(float(sum(expected)) / 2, rel=1e-5)
    moved = batch._replace(means=hidden[1:2] + 5)
    with torch.no_grad():
        assert model(moved)["word"].item() == pytest.approx(found)
        assert model(moved)["info_nce"].item() != pytest.approx(model(batch)["info_nce"].item())
        none = model(batch._replace(keys=torch.full((3,), -1), holders=torch.zeros(0, 2)))
    assert none["word"].item() == 0
    assert matcher_of(word_loss=0.25, loss="hinge").losses == {"hinge": 1.0}
    assert matcher_of().losses == {"info_nce": 1.0}


def test_the_calibration_is_of_held_out_words_and_photos_of_training(
    captions: MatcherCaptions, encoder: Encoder, states: HiddenStates, feats: Any
) -> None:
    texts = ["a dog", "dogs and cats", "the zebra", "red trees", "it", "a blue car ."] * 3
    held_out, _ = matcher_training.tokenize_captions(
        texts, [1, 2, 4, 6, 8, 8] * 3, encoder.tokenizer, encoder.max_tokens
    )
    packed = PackedEncoder(encoder, LAYERS)
    held_states = HiddenStates(packed, held_out.tokens, 1 << 30)
    matcher = matcher_of()
    model = matcher_training.calibrate(matcher, (captions, states), (held_out, held_states), feats)
    assert model.stems == {
        "dog": 3, "run": 1, "two": 1, "sleep": 1, "cat": 2, "red": 2, "car": 1, "ball": 1,
        "tree": 1,
    }  # fmt: skip
    shows = {3: "dog run two sleep", 0: "cat", 5: "cat dog", 7: "red car", 9: "tree"}
    holders = {image: set(stems.split()) for image, stems in shows.items()}
    holders[5] |= {"red", "ball"}
    bank = sorted(holders)
    with torch.no_grad():
        images = matcher.embed_images(torch.from_numpy(feats[bank])).double()
        relevance, right, stems = list[float](), list[bool](), list[str]()
        for sentence, text in enumerate(held_out.rows.tolist()):
            part = held_states.take(np.array([sentence]))
            rows = torch.zeros(len(part.hidden), dtype=torch.int64)
            tokens = matcher.project_tokens(part.hidden, part.means, rows).double()
            first = int(held_out.tokens.starts[sentence])
            for n, row in enumerate(tokens @ images.T):
                if held_out.content[first + n]:
                    stem = str(held_out.stems[held_out.keys[first + n]])
                    relevance.append(float(row.max()))
                    right.append(stem in holders[bank[int(row.argmax())]])
                    stems.append(stem)
            assert texts[text]
    expected = fit_calibration(np.array(relevance), stems, np.array(right), model.stems)
    assert 0 < np.mean(right) < 1
    shown = np.array([[0.1, 0.8]] * 2)
    np.testing.assert_allclose(
        model.probability(shown, ["dog", "zebra"]),
        expected.probability(shown, ["dog", "zebra"]),
        atol=1e-3,
    )


# -------------------------------------------------------------------------------------------- model


def test_a_token_sees_its_own_sentence_and_no_other() -> None:
    matcher = matcher_of()
    hidden = torch.randn(70, LAYERS * WIDTH)
    together = matcher.embed_tokens(hidden, torch.tensor([3, 0, 66, 1]))
    assert torch.allclose(together.norm(dim=1), torch.ones(70))
    for start, length in ((0, 3), (3, 66), (69, 1)):
        alone = matcher.embed_tokens(hidden[start : start + length], torch.tensor([length]))
        assert torch.allclose(alone, together[start : start + length], **ORDER)
    changed = hidden.clone()
    changed[0] += 1
    after = matcher.embed_tokens(changed, torch.tensor([3, 0, 66, 1]))
    assert not torch.isclose(
        after[1], together[1]
    ).all()  # another word of the sentence changed: the context did
    assert torch.allclose(after[3:], together[3:], **ORDER)


def test_the_sentence_term_is_the_projected_mean() -> None:
    matcher = matcher_of()
    hidden = torch.randn(5, LAYERS * WIDTH)
    assert matcher.context is not None
    with torch.no_grad():
        raw = matcher.text(hidden) + matcher.context(hidden.mean(0, keepdim=True))
        found = matcher.embed_tokens(hidden, torch.tensor([5]))
        assert torch.allclose(found, torch.nn.functional.normalize(raw, dim=1), **ORDER)


def test_the_sentence_term_has_a_weight() -> None:
    matcher = matcher_of()
    hidden = torch.randn(5, LAYERS * WIDTH)
    assert matcher.context is not None
    with torch.no_grad():
        word, term = matcher.text(hidden), matcher.context(hidden.mean(0, keepdim=True))
        for weight in (0.0, 0.25, 1.0):
            found = at_context(matcher, weight).embed_tokens(hidden, torch.tensor([5]))
            expected = torch.nn.functional.normalize(word + weight * term, dim=1)
            assert torch.allclose(found, expected, **ORDER)
    assert at_context(matcher, 0.25).text is matcher.text, "the networks are shared"
    assert matcher.config.context_weight == 1.0, "the given one keeps its weight"
    still = at_context(matcher_of(dropout=0.0), 0.25).train()
    trained = still.embed_tokens(hidden, torch.tensor([5]))
    expected = torch.nn.functional.normalize(word + term, dim=1)
    assert torch.allclose(trained, expected, **ORDER), "training takes 1, whatever is matched with"
    with pytest.raises(ValueError, match="has no sentence term"):
        at_context(matcher_of(sentence=False), 0.5)


def test_without_the_term_and_the_root_it_is_the_paper_s_model() -> None:
    matcher = matcher_of(sentence=False, root=False, loss="hinge")
    assert sorted({name.split(".")[0] for name, _ in matcher.named_parameters()}) == [
        "image",
        "text",
    ]
    hidden, images = torch.randn(4, LAYERS * WIDTH), torch.randn(4, IMAGE)
    with torch.no_grad():
        assert torch.allclose(
            matcher.embed_tokens(hidden, torch.tensor([1, 3])),
            torch.nn.functional.normalize(matcher.text(hidden), dim=1),
            **ORDER,
        )
        assert torch.allclose(
            matcher.embed_images(images),
            torch.nn.functional.normalize(matcher.image(images), dim=1),
            **ORDER,
        )


def test_image_features_are_rooted_with_their_sign() -> None:
    matcher, plain = matcher_of(root=True), matcher_of(root=False)
    with torch.no_grad():
        found = matcher.embed_images(torch.tensor([[4.0, -9.0] + [0.0] * (IMAGE - 2)]))
        assert torch.allclose(
            found, plain.embed_images(torch.tensor([[2.0, -3.0] + [0.0] * (IMAGE - 2)])), **ORDER
        )


def test_no_tokens_are_no_embeddings() -> None:
    assert matcher_of().embed_tokens(
        torch.zeros(0, LAYERS * WIDTH), torch.tensor([0, 0])
    ).shape == (0, 8)


# ----------------------------------------------------------------------------------------- captions


def test_captions_share_a_key_by_stem_and_stop_words_have_none(
    captions: MatcherCaptions, encoder: Encoder
) -> None:
    keys_of = [
        sorted(set(captions.keys[a:b].tolist()))
        for a, b in zip(captions.tokens.starts, captions.tokens.starts[1:], strict=False)
    ]
    dog, cat, red = (
        set(keys_of[0]) & set(keys_of[1]),
        set(keys_of[2]) & set(keys_of[3]),
        set(keys_of[5]) & set(keys_of[6]),
    )
    assert [len(s - {-1}) for s in (dog, cat, red)] == [1, 1, 1]
    assert (set(keys_of[0]) & set(keys_of[3])) - {-1} == dog - {-1}
    assert keys_of[4] == [-1]  # "it is"
    assert captions.images.tolist() == IMAGES


def test_captions_without_a_token_and_too_long_ones_are_counted(encoder: Encoder) -> None:
    texts = ["bam bet", "", "  ", "bam " * 9]
    found, left_out = matcher_training.tokenize_captions(texts, [1, 2, 3, 4], encoder.tokenizer, 5)
    assert left_out == {"empty": 2, "cut": 1}
    assert found.images.tolist() == [1, 4]
    assert np.diff(found.tokens.starts).tolist() == [2, 5]


def test_holders_weigh_images_by_their_captions(captions: MatcherCaptions) -> None:
    dog = int(captions.keys[captions.content][0])
    images = np.array([0, 3, 5, 9])
    assert matcher_training._holders(captions.holds, images, np.array([dog])).tolist() == [
        [0.0, pytest.approx(2 / 3), pytest.approx(1 / 3), 0.0]
    ]
    assert matcher_training._holders(
        captions.holds, np.array([0, 9]), np.array([dog])
    ).tolist() == [[0.0, 0.0]]
    assert matcher_training.holds_stem(
        captions.holds, np.array([3, 5, 0, 9, 3]), np.full(5, dog)
    ).tolist() == [
        True,
        True,
        False,
        False,
        True,
    ]


# ------------------------------------------------------------------------------------ hidden states


def test_hidden_states_are_the_same_kept_or_computed_anew(
    encoder: Encoder, captions: MatcherCaptions, states: HiddenStates
) -> None:
    anew = HiddenStates(PackedEncoder(encoder, LAYERS), captions.tokens, 0)
    assert anew.held == 0 < states.held
    for part in (np.array([0]), np.array([5, 2, 7]), np.arange(len(TEXTS))):
        for a, b in zip(states.take(part), anew.take(part), strict=True):
            # The last bit of float16 may differ where a library sums in another order for another
            # number of rows.
            assert torch.allclose(
                a.float(),
                b.float(),
                rtol=0,
                atol=float(b.abs().max()) * torch.finfo(torch.float16).eps,
            )
    one = captions.tokens.row(3)[0].tolist()
    with torch.inference_mode():
        whole = encoder.model(
            torch.tensor([[*encoder.prefix, *one, *encoder.suffix]]), output_hidden_states=True
        ).hidden_states
    wanted = torch.cat(whole[-LAYERS:], -1)[0]
    found = states.take(np.array([3]))
    kept = {
        "rtol": 0,
        "atol": 2 * rounding(torch.float16, 1) * float(wanted.abs().max()),
    }  # kept in float16
    assert torch.allclose(found.hidden.float(), wanted[1:-1], **kept)
    assert torch.allclose(found.means[0].float(), wanted[1:-1].mean(0), **kept)
    assert torch.allclose(found.first[0].float(), wanted[0], **kept)


def test_hidden_states_survive_a_full_memory(
    encoder: Encoder,
    captions: MatcherCaptions,
    states: HiddenStates,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = PackedEncoder(encoder, LAYERS)
    run = packed._run

    def narrow(ids: Any, starts: Any, lengths: Any, segments: Any) -> Any:
        if len(segments) > 1:
            raise torch.OutOfMemoryError("out of memory")
        return run(ids, starts, lengths, segments)

    monkeypatch.setattr(packed, "_run", narrow)
    found = HiddenStates(packed, captions.tokens, 0).take(np.arange(len(TEXTS)))
    wanted = states.take(np.arange(len(TEXTS))).hidden.float()
    assert torch.allclose(
        found.hidden.float(),
        wanted,
        rtol=0,
        atol=2 * rounding(torch.float16, 1) * float(wanted.abs().max()),
    )


# ------------------------------------------------------------------------------------------ batches


def batch(
    captions: MatcherCaptions,
    states: HiddenStates,
    feats: Any,
    rows: list[int],
    seed: int = 0,
    **changes: Any,
) -> MatcherBatch:
    return matcher_training.collate(
        captions, states, feats, config(**changes), np.array(rows), np.random.default_rng(seed)
    )


def test_a_batch_lists_each_image_once_and_every_token_points_at_its_own(
    captions: MatcherCaptions, states: HiddenStates, feats: Any
) -> None:
    found = batch(captions, states, feats, [0, 1, 3, 7], stop_share=1.0)
    assert torch.equal(found.feats, torch.from_numpy(feats[[3, 5, 9]]))
    lengths = np.diff(captions.tokens.starts)[[0, 1, 3, 7]]
    assert found.own.tolist() == np.repeat([0, 0, 1, 2], lengths).tolist()
    assert found.rows.tolist() == np.repeat([0, 1, 2, 3], lengths).tolist()
    where = np.concatenate(
        [np.arange(captions.tokens.starts[i], captions.tokens.starts[i + 1]) for i in (0, 1, 3, 7)]
    )
    for key, row in zip(captions.keys[where].tolist(), found.keys.tolist(), strict=True):
        assert (row == -1) == (key == -1)
    assert torch.allclose(found.holders.sum(1), torch.ones(len(found.holders)))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("level", ["token", "sentence"])
def test_every_loss_that_can_be_chosen_reaches_all_weights(
    captions: MatcherCaptions, states: HiddenStates, feats: Any, loss: str, level: str
) -> None:
    model = matcher_of(loss=loss, level=level, dropout=0.0).train()
    given = batch(captions, states, feats, [0, 2, 3, 7], loss=loss, level=level)
    losses = model(given)
    assert losses.keys() == model.losses.keys() == {loss}
    assert 0 < losses[loss].item() < math.inf
    losses[loss].backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
        assert weight.grad.any(), name


def test_content_words_alone_where_stop_words_are_left_out(
    captions: MatcherCaptions, states: HiddenStates, feats: Any
) -> None:
    found = batch(captions, states, feats, [0, 4, 5], stop_share=0.0)
    lengths = np.diff(captions.tokens.starts)
    assert found.rows.tolist() == [0] * int(captions.content[: lengths[0]].sum()) + [2] * int(
        lengths[5]
    )
    assert (found.keys >= 0).all()
    only = batch(
        captions, states, feats, [4], stop_share=0.0
    )  # nothing but stop words: all of them
    assert len(only.hidden) == lengths[4]
    assert only.keys.tolist() == [-1] * int(lengths[4])


def test_a_negative_is_any_image_but_the_own(
    captions: MatcherCaptions, states: HiddenStates, feats: Any
) -> None:
    seen: set[tuple[int, int]] = set()
    for seed in range(60):
        found = batch(captions, states, feats, [0, 2, 7], seed, loss="hinge")
        own, other = (found.feats[i][:, 0].tolist() for i in (found.own, found.other))
        row = {float(feats[i, 0]): i for i in range(len(feats))}
        pairs = {
            (row[float(np.float32(a))], row[float(np.float32(b))])
            for a, b in zip(own, other, strict=True)
        }
        assert all(a != b for a, b in pairs)
        seen |= pairs
    assert seen == {
        (a, b) for a in (3, 0, 9) for b in (0, 3, 5, 7, 9) if a != b
    }  # all images of the captions, no others


def test_a_sentence_batch_is_the_first_special_token(
    captions: MatcherCaptions, states: HiddenStates, feats: Any
) -> None:
    found = batch(captions, states, feats, [0, 7], level="sentence")
    assert torch.equal(found.hidden, states.take(np.array([0, 7])).first.float())
    assert (found.own.tolist(), found.keys.tolist(), found.holders.shape[0]) == (
        [0, 1],
        [-1, -1],
        0,
    )


def test_batches_are_a_function_of_seed_and_epoch(
    captions: MatcherCaptions, states: HiddenStates, feats: Any
) -> None:
    def sizes(seed: int, epoch: int, first: int = 0) -> list[MatcherBatch]:
        return list(
            matcher_training.make_batches(
                captions, states, feats, config(), 3, seed, torch.device("cpu")
            )(epoch, first)
        )

    whole = sizes(1, 0)
    assert (
        len(whole)
        == plan_for(len(captions.images), {"batch_size": 3, "epochs": 1, "steps": None}).per_epoch
        == 3
    )
    assert sorted(len(b.means) for b in whole) == [2, 3, 3]
    for late, early in zip(sizes(1, 0, first=1), whole[1:], strict=True):
        assert late.weights is None, "without --rarity all tokens count alike"
        assert all(torch.equal(a, b) for a, b in zip(late[:-1], early[:-1], strict=True))
    assert not all(
        torch.equal(a.feats[:1], b.feats[:1]) for a, b in zip(whole, sizes(1, 1), strict=True)
    ) or not all(
        torch.equal(a.feats[:1], b.feats[:1]) for a, b in zip(whole, sizes(2, 0), strict=True)
    )


# --------------------------------------------------------------------------------------- evaluation


def test_ranks_equal_sorting_every_score(
    captions: MatcherCaptions, states: HiddenStates, feats: Any
) -> None:
    matcher = matcher_of()
    blocks = list(matcher_training.rank_captions(matcher, captions, states, feats))
    ranks = np.concatenate([b.ranks for b in blocks])
    top = np.concatenate([b.top for b in blocks])
    others = np.concatenate([b.others for b in blocks])
    bank = np.unique(IMAGES)
    with torch.inference_mode():
        images = matcher.embed_images(torch.from_numpy(feats[bank])).double().numpy()
        token = 0
        for i in range(len(TEXTS)):
            part = states.take(np.array([i]))
            emb = matcher.project_tokens(
                part.hidden, part.means, torch.zeros(len(part.hidden), dtype=torch.int64)
            )
            scores = emb.double().numpy() @ images.T
            for row in scores:
                order = bank[np.argsort(-row, kind="stable")].tolist()
                assert ranks[token] == order.index(IMAGES[i])
                assert top[token] == order[0]
                assert others[token] == next(image for image in order if image != IMAGES[i])
                token += 1
            mean = emb.double().numpy().mean(0)
            wanted = bank[np.argsort(-(mean @ images.T), kind="stable")].tolist().index(IMAGES[i])
            assert blocks[0].caption_ranks[i] == wanted
    assert token == len(ranks)


def test_a_matcher_that_tells_nothing_apart_gets_no_credit(
    captions: MatcherCaptions, states: HiddenStates, feats: Any
) -> None:
    same = np.ones_like(feats)
    found = matcher_training.evaluate_matcher(matcher_of(), captions, states, same, np.arange(10))
    lengths = np.diff(captions.tokens.starts)
    first = 100 * lengths[[i for i, image in enumerate(IMAGES) if image == 0]].sum() / lengths.sum()
    assert found["word"]["r1"] == pytest.approx(
        first, abs=0.01
    )  # only image 0 stands first among equals
    assert found["chance"] == {"r1": 10.0, "r5": 50.0, "r10": 100.0}
    assert found["images"] == 10


def test_recall_by_hand() -> None:
    assert matcher_training.recall(np.array([0, 1, 4, 5, 9, 10])) == {
        "r1": 16.67,
        "r5": 50.0,
        "r10": 83.33,
    }
    assert matcher_training.recall(np.array([])) == {"r1": 0.0, "r5": 0.0, "r10": 0.0}


def test_evaluation_leaves_the_mode_alone(
    captions: MatcherCaptions, states: HiddenStates, feats: Any
) -> None:
    matcher = matcher_of().train()
    before = matcher_training.evaluate_matcher(matcher, captions, states, feats)
    assert matcher.training
    assert (
        matcher_training.evaluate_matcher(matcher.eval(), captions, states, feats) == before
    )  # no dropout either way


def test_learned_pairs_are_those_of_the_first_captions(
    captions: MatcherCaptions,
    states: HiddenStates,
    feats: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matcher = matcher_of()
    whole = matcher_training.evaluate_matcher(matcher, captions, states, feats, used=True)
    found = matcher_training.learned_pairs(matcher, captions, states, feats)
    assert found == {"captions": len(TEXTS), "tokens": len(captions.tokens.ids)} | whole
    monkeypatch.setattr(matcher_training, "_LEARNED", 3)
    first = matcher_training.learned_pairs(matcher, captions, states, feats)
    ranked = matcher_training.rank_all(matcher, captions, states, feats)
    end = captions.tokens.starts[3]
    assert first["word"] == matcher_training.recall(ranked.ranks[:end])
    assert first["caption"] == matcher_training.recall(ranked.caption_ranks[:3])
    assert (first["used"], first["images"]) == (len(set(ranked.top[:end])), whole["images"])


@pytest.mark.parametrize(
    ("r10", "used", "why"),
    [(50.0, 600, ""), (49.9, 600, "49.9 %"), (99.0, 99, "use 99 of 1000 images"), (99.0, 100, "")],
)
def test_a_matcher_that_learned_too_little_is_named(r10: float, used: int, why: str) -> None:
    learned = {
        "images": 1000,
        "tokens": 20_000,
        "used": used,
        "caption": {"r10": r10},
    }
    found = matcher_training.collapsed(learned)
    assert why in found
    assert bool(found) == bool(why)


def test_score_adds_what_both_aims_ask_for() -> None:
    assert matcher_training.score(None) == 0.0
    assert (
        matcher_training.score({"content": {"r10": 40.0}, "concept": 30.0, "caption": {"r10": 9.0}})
        == 70.0
    )
    assert matcher_training.score({"caption": {"r10": 9.0}}) == 9.0


# ----------------------------------------------------------------------------------------- learning


EIGHT = ["dog", "cat", "red car", "a tree", "two balls", "blue house", "the man", "water"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss": "hinge", "sentence": False, "root": False, "stop_share": 1.0},
        {"level": "sentence"},
    ],
    ids=["default", "paper", "sentence"],
)
def test_it_learns_eight_rows_in_a_hundred_steps(
    encoder: Encoder, feats: Any, changes: dict[str, Any]
) -> None:
    captions, _ = matcher_training.tokenize_captions(
        EIGHT, list(range(8)), encoder.tokenizer, encoder.max_tokens
    )
    states = HiddenStates(PackedEncoder(encoder, LAYERS), captions.tokens, 1 << 30)
    shape = config(hidden=64, dim=32, dropout=0.0, **changes)
    torch.manual_seed(1)
    matcher = TokenImageMatcher(shape)
    batches = matcher_training.make_batches(
        captions, states, feats, shape, 8, 0, torch.device("cpu")
    )
    plan = TrainConfig(epochs=100, steps=100, lr=3e-3)
    assert len(list(train(matcher, batches, plan, weights={shape.loss: 1.0}))) == 102
    assert (
        matcher_training.evaluate_matcher(matcher, captions, states, feats)["caption"]["r1"]
        == 100.0
    )


def test_a_run_of_a_later_version_is_refused(tmp_path: Path) -> None:
    from dataclasses import asdict

    from vgtools.models.runs import save_run

    matcher = matcher_of()
    save_run(
        tmp_path / "run",
        "matcher",
        matcher.state_dict(),
        {"matcher": asdict(matcher.config) | {"wings": 2}},
    )
    with pytest.raises(DataError, match="wings") as error:
        load_matcher(tmp_path / "run")
    assert error.value.code == Exit.CONFIG


def test_a_setting_that_is_a_word_is_one_of_those_known() -> None:
    known = {"text_width": 8, "image_width": 4}
    assert (
        as_config(MatcherConfig, known | {"loss": "hinge"}, "matcher", "run.json").loss == "hinge"
    )
    why = f"run.json: \"matcher\": expected loss {' or '.join(LOSSES)}, got 'triplet'"
    with pytest.raises(DataError, match=why):
        as_config(MatcherConfig, known | {"loss": "triplet"}, "matcher", "run.json")
    with pytest.raises(DataError, match="expected dim int, got '4'"):
        as_config(MatcherConfig, known | {"dim": "4"}, "matcher", "run.json")
