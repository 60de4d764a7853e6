"""Nothing hidden is given away: to swap it changes no byte that is retrieved, chosen or fed.

One property for every system that hides words or images: replace a word under its mask by any
other, an image under its mask by any other, or the words that a word-blind control must not see;
only the targets differ. Of the words to be predicted one in ten stays as it is (BERT's recipe), and
is read by design; these are not swapped. Images that are found: `grounding/test_inputs.py`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.tiny import WORDS, grounded, probe, save_feats
from tests.tiny.clip import clip_tokenizer, new_tower
from tests.tiny.lm import make_tokenizer
from tests.tiny.visual import REGION, encoder_of, open_tiny, save_captions
from vgtools.cli import run
from vgtools.images.maps import Located, Query
from vgtools.images.regions import Regions, open_regions
from vgtools.io.arrays import Array
from vgtools.io.artifact import open_features
from vgtools.models.attention import open_encoder
from vgtools.models.encoder import as_encoder, save_pretrained
from vgtools.systems.attention_probes.region_heads import GroundingProbe, read_caption
from vgtools.systems.attention_probes.scores import BLIND, ENTITY
from vgtools.systems.grounding.inputs import mask_regions
from vgtools.systems.grounding.model import GroundedMaskedLM
from vgtools.systems.grounding.pictures import WholePictures
from vgtools.systems.visual_awareness.localisation import point_at, segment_as
from vgtools.systems.visualbert import pretraining as visualbert
from vgtools.systems.visualbert.captions import VisualBertCaptions, read_captions
from vgtools.systems.visualbert.model import VisualBertBatch
from vgtools.systems.vokenization import voken_lm
from vgtools.systems.xdbert import pairs as xdbert
from vgtools.systems.xdbert.model import XDBertBatch
from vgtools.text.blocks import Corpus, Packed
from vgtools.text.masking import mask_tokens

TOKENIZER = make_tokenizer()
FIRST, MASK = (TOKENIZER.get_vocab()[name] for name in (WORDS[0], "[MASK]"))
DRAWS = {
    "seed": st.integers(0, 2**31),
    "epoch": st.one_of(st.none(), st.integers(0, 5)),
    "rate": st.sampled_from([0.15, 0.5]),
}
FEW = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def others(words: Array, hidden: Array, seed: int) -> Array:
    """Return ids with another word at every hidden place."""
    step = np.random.default_rng(seed).integers(1, 100, len(words))
    swapped = FIRST + (words - FIRST + step) % 100
    return np.where(hidden, swapped, words).astype(words.dtype)


def different(one: Any, other: Any) -> set[str]:
    """Return the fields of two batches whose bytes differ."""

    def bytes_of(value: Any) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        return value.shape, value.dtype, value.contiguous().numpy().tobytes()

    return {
        name
        for name, mine, yours in zip(one._fields, one, other, strict=True)
        if bytes_of(mine) != bytes_of(yours)
    }


# ------------------------------------------------------------------------------ masked words


@settings(max_examples=100, deadline=None)
@given(seed=DRAWS["seed"], rate=DRAWS["rate"], size=st.integers(0, 40))
def test_what_replaces_a_masked_word_does_not_depend_on_it(
    seed: int, rate: float, size: int
) -> None:
    words = FIRST + np.random.default_rng(seed).integers(0, 100, size)
    read, chosen = mask_tokens(words, np.random.default_rng(seed), MASK, 105, rate)
    swapped = others(words, read != words, seed)
    again = mask_tokens(swapped, np.random.default_rng(seed), MASK, 105, rate)
    assert np.array_equal(again[0], read)
    assert np.array_equal(again[1], chosen)


def corpus_of(words: Array, vokens: Array, size: int = 12) -> Corpus:
    pairs = np.column_stack([words, vokens])
    return Corpus([Packed("file", pairs, np.array([len(words)]))], size)


@FEW
@given(**DRAWS, on=st.sampled_from(["all", "masked", "unmasked"]))
def test_a_language_model_with_vokens_reads_no_masked_word(
    seed: int, epoch: int | None, rate: float, on: str
) -> None:
    rng = np.random.default_rng(seed)
    words, vokens = FIRST + rng.integers(0, 100, 60), rng.integers(-1, 9, 60)
    recipe = voken_lm.VokenMasking.of(TOKENIZER, vokens=9, block=14, rate=rate, seed=seed, on=on)

    def batch(own: Array) -> voken_lm.VokenBatch:
        (made,) = voken_lm.collate(corpus_of(own, vokens), np.arange(5), recipe, epoch)
        return made

    before = batch(words)
    hidden = before.ids[:, 1:13].numpy().reshape(-1) != words
    assume(hidden.any())
    assert different(before, batch(others(words, hidden, seed))) == {"tokens"}


CLIP = as_encoder(new_tower(), clip_tokenizer(), "tiny")


@FEW
@given(**DRAWS)
def test_the_student_beside_a_clip_reads_no_masked_word(
    seed: int, epoch: int | None, rate: float
) -> None:
    """The teacher reads the text without masks (section 2.3): there the own words are by design."""
    words = FIRST + np.random.default_rng(seed).integers(0, 100, 60)
    nothing = np.full(60, -1)
    recipe = xdbert.PairMasking.of(TOKENIZER, rate=rate, seed=seed)
    texts = xdbert.TeacherText.of(encoder_of(), CLIP, 16)

    def batch(own: Array, number: int, other: int) -> XDBertBatch:
        given = np.array([number]), np.array([other])
        (made,) = xdbert.collate(corpus_of(own, nothing), *given, recipe, texts, epoch)
        return made

    before = batch(words, 2, 2)
    hidden = np.zeros(60, bool)
    hidden[24:36] = before.ids[0, 1:13].numpy() != words[24:36]
    assume(hidden.any())
    swapped = others(words, hidden, seed)
    beside = {"tokens", "blocks", "lengths", "chosen", "clip_count"}  # the teacher's, and targets
    assert {"tokens", "blocks"} <= different(before, batch(swapped, 2, 2)) <= beside
    assert different(batch(words, 2, 0), batch(swapped, 2, 0)) == {"tokens"}


# --------------------------------------------------------------------------------- VisualBERT


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[VisualBertCaptions, Regions]:
    """Twelve captions of four images, no two alike, and the regions of these."""
    folder = tmp_path_factory.mktemp("shown")
    rng = np.random.default_rng(0)
    rows = [(f"image{i % 4}", " ".join(rng.choice(WORDS[:100], 5 + i % 4))) for i in range(12)]
    regions = open_tiny(folder / "r.npy")
    file = save_captions(folder / "c.jsonl", rows)
    return read_captions([str(file)], TOKENIZER, regions), regions


def paired(
    captions: VisualBertCaptions, regions: Regions, number: int, epoch: int | None, **how: Any
) -> VisualBertBatch:
    recipe = visualbert.recipe_for(encoder_of(), longest=64, **how)
    (batch,) = visualbert.collate(captions, regions, REGION, np.array([number]), recipe, epoch)
    return batch


@FEW
@given(**DRAWS, number=st.integers(0, 11), pairs=st.booleans())
def test_visualbert_reads_no_masked_word_of_either_caption(
    shown: tuple[VisualBertCaptions, Regions],
    seed: int,
    epoch: int | None,
    rate: float,
    number: int,
    pairs: bool,
) -> None:
    captions, regions = shown
    how = {"pairs": pairs, "seed": seed, "rate": rate}
    before = paired(captions, regions, number, epoch, **how)
    read = before.ids[0].numpy()
    whole = read.copy()
    whole[before.masked.numpy()] = before.tokens.numpy()
    ids = captions.ids.copy()
    place = 1
    known = {tuple(captions.of(c).tolist()): c for c in range(len(captions))}
    for end in np.flatnonzero(whole == whole[-1]).tolist():  # [SEP]
        own = known[tuple(whole[place:end].tolist())]
        part = slice(captions.starts[own], captions.starts[own + 1])
        ids[part] = others(whole[place:end], read[place:end] != whole[place:end], seed)
        place = end + 1
    assume((ids != captions.ids).any())
    after = paired(dataclasses.replace(captions, ids=ids), regions, number, epoch, **how)
    assert different(before, after) == {"tokens"}


@FEW
@given(**DRAWS, number=st.integers(0, 11), other=st.integers(0, 11))
def test_nothing_but_the_label_tells_whether_a_caption_is_of_the_image(
    shown: tuple[VisualBertCaptions, Regions],
    seed: int,
    epoch: int | None,
    rate: float,
    number: int,
    other: int,
) -> None:
    batches = []
    for right in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(visualbert, "partner", lambda *_, answer=right: (other, answer))
            batches.append(paired(*shown, number, epoch, pairs=True, seed=seed, rate=rate))
    assert different(*batches) == {"match"}


# ----------------------------------------------------------------------------- masked images


class _Regions(WholePictures):
    """Pictures that claim to be regions."""

    regions = 4


@FEW
@given(seed=DRAWS["seed"], size=st.integers(1, 8), regions=st.sampled_from([1, 4]))
def test_a_masked_region_is_read_as_nothing_or_as_another(
    tmp_path: Path, seed: int, size: int, regions: int
) -> None:
    file = str(grounded.save_images(tmp_path / "f.npy"))
    kind = WholePictures if regions == 1 else _Regions
    pictures = kind(file, open_features(file))
    size = 1 if regions == 1 else size
    features = np.random.default_rng(seed).standard_normal((size, grounded.D)).astype(np.float32)

    def read(own: Array) -> tuple[Array, Array, Array]:
        shown = own.copy()
        places, true = mask_regions(shown, np.ones(size, bool), rng(), pictures)
        return shown, places, true

    def rng() -> np.random.Generator:
        return np.random.default_rng(seed)

    before, places, true = read(features)
    hidden = (before != features).any(1)
    assume(hidden.any())
    after, again, others = read(np.where(hidden[:, None], features + 1, features))
    assert before.tobytes() == after.tobytes()
    assert np.array_equal(places, again)
    assert not np.array_equal(true, others)


@FEW
@given(seed=DRAWS["seed"], epoch=DRAWS["epoch"])
def test_a_caption_that_is_to_draw_its_image_does_not_show_it(
    tmp_path: Path, seed: int, epoch: int | None
) -> None:
    own = {i: f"image{i:03}" for i in range(8)}
    texts = grounded.sentences(8, seed)

    def batch(images: int) -> Any:
        file = grounded.save_images(tmp_path / "f.npy", seed=images)
        pictures = WholePictures(str(file), open_features(file))
        examples = grounded.examples_of(tmp_path, texts, "t2i", own, pictures, seed=seed)
        (made,) = examples.collate(np.arange(8), epoch)
        return made

    assert different(batch(0), batch(1)) == {"targets"}


# ------------------------------------------------------------------------------- perplexity


STRATEGIES = ["scene", "keyword", "object"]


def vg(*args: object) -> int:
    return run([*map(str, args)])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index and a run of each strategy that finds images by words."""
    folder = tmp_path_factory.mktemp("models")
    save_pretrained(folder / "joint", encoder_of())
    grounded.save_images(folder / "photos.npy")
    grounded.save_scene(folder / "scene.faiss")
    rows = [row for _, row in grounded.captions()]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    nouns = [{**row, "nouns": str(row["text"]).split()[:2]} for row in rows]
    (folder / "nouns.jsonl").write_text("".join(json.dumps(row) + "\n" for row in nouns))
    index = ["build-index", folder / "rows.jsonl", "--keywords", 3, "-q"]
    assert vg(*index, "-o", folder / "keyword.jsonl") == 0
    vectors = ["--vectors", folder / "vectors.npy", "-q", "-o", folder / "object.faiss"]
    assert vg("build-index", folder / "nouns.jsonl", *vectors) == 0
    for strategy in STRATEGIES:
        how = ["--strategy", strategy, "--index", index_of(folder, strategy), "-k", 3]
        how += ["--feats", folder / "photos.npy", "-e", folder / "joint", "--steps", 1]
        how += ["--batch-size", 4, "--block", 24, "--device", "cpu", "-q"]
        out = ["-o", folder / f"run.{strategy}"]
        assert vg("pretrain", "grounding", folder / "rows.jsonl", *how, *out) == 0
    return folder


def index_of(folder: Path, strategy: str) -> Path:
    return folder / f"{strategy}.{'jsonl' if strategy == 'keyword' else 'faiss'}"


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", [0, 1])
def test_perplexity_shows_the_same_images_whatever_is_masked(
    models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    strategy: str,
    seed: int,
) -> None:
    """No text equals another: an equal one would not be shown as the `other`."""
    texts = [text or "a" for text in grounded.sentences(24, seed)]
    own = {i: f"image{i % 20:03}" for i in range(0, 24, 2)}
    examples = grounded.examples_of(tmp_path, texts, images=own, rate=0.3)
    swapped = list[str]()
    for number, text in enumerate(texts):
        words = examples.texts.of(number)
        hidden = examples.example(number, None).read != words
        swapped.append(TOKENIZER.decode(others(words, hidden, seed).tolist()))
        assert len(swapped[-1].split()) == len(text.split())
    assert len({*texts}) == len({*swapped}) == 24

    def scored(name: str, lines: list[str]) -> tuple[list[Any], list[dict[str, Any]]]:
        fed = list[Any]()
        hidden = GroundedMaskedLM.hidden

        def spy(model: GroundedMaskedLM, batch: Any) -> torch.Tensor:
            fed.append(batch)
            return hidden(model, batch)

        file = grounded.save_texts(tmp_path / f"{name}.jsonl", lines, own)
        how = ["--index", index_of(models, strategy), "--feats", models / "photos.npy"]
        how += ["--mask-rate", 0.3, "--block", 32, "--samples", 10, "--batch-size", 7, "-q"]
        for kind in ("found", "own", "other", "random"):
            how += ["--pictures", kind]
        out = tmp_path / f"{name}.nll.jsonl"
        with monkeypatch.context() as patch:
            patch.setattr(GroundedMaskedLM, "hidden", spy)
            args = ["perplexity", file, "-e", models / f"run.{strategy}", *how]
            assert vg(*args, "--device", "cpu", "-o", out) == 0
        return fed, [json.loads(line) for line in out.read_text().splitlines()]

    before, losses = scored("a", texts)
    after, later = scored("b", swapped)
    capsys.readouterr()
    assert len(before) == len(after) == 16
    assert {name for pair in zip(before, after, strict=True) for name in different(*pair)} == {
        "tokens"
    }
    assert any(batch.slot_mask.any() for batch in before[:4]), "images are found"
    same = [one == other for one, other in zip(texts, swapped, strict=True)]
    assert [one == other for one, other in zip(losses, later, strict=True)] == same
    assert 0 < sum(same) < 24


# ----------------------------------------------------------------------- the own image, left out


@pytest.fixture(scope="module")
def banks(models: Path, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """The indexes of each kind, and of one bank in two parts."""
    folder = tmp_path_factory.mktemp("banks")
    parts = []
    for first, end in ((0, 7), (7, 20)):
        feats = np.load(tiny / "feats.npy")[first:end]
        file = save_feats(folder / f"{first}.npy", feats, first=first)
        parts.append(folder / f"part{first}.faiss")
        args = ["build-index", file, "-m", tiny / "run", "--device", "cpu", "-q"]
        assert vg(*args, "-o", parts[-1]) == 0
    return {
        "matcher": [tiny / "vg.faiss"],
        "parts": parts,
        **{strategy: [index_of(models, strategy)] for strategy in STRATEGIES},
    }


@pytest.mark.parametrize("kind", ["matcher", "parts", *STRATEGIES])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_own_image_is_never_found(
    banks: Mapping[str, Any], tmp_path: Path, kind: str, seed: int
) -> None:
    """The image that a text finds first is named as its own."""
    texts = [text or "a" for text in grounded.sentences(30, seed)]
    index = [word for path in banks[kind] for word in ("--index", path)]
    names = [name for path in banks[kind] for name in path.with_suffix(".ids").read_text().split()]
    assert len({*names}) == len(names)

    def found(own: Mapping[int, str], k: int, *more: str) -> list[list[str]]:
        file = grounded.save_texts(tmp_path / "t.jsonl", texts, own)
        out = tmp_path / "r.jsonl"
        how = [*index, "-k", k, *more, "--device", "cpu", "-q", "--restart", "-o", out]
        assert vg("retrieve", file, *how) == 0
        rows = [json.loads(line)["images"] for line in out.read_text().splitlines()]
        return [[names[number] for number in row] for row in rows]

    for k in (1, 8):
        own = {number: images[0] for number, images in enumerate(found({}, k)) if images}
        assert len(own) > 10
        left_out = found(own, k, "--not-own")
        assert not [name for number, name in own.items() if name in left_out[number]]


# --------------------------------------------------------------------------- word-blind controls


def other_words(text: str, seed: int) -> str:
    """Return a text of other words, each as long as the one in its place."""
    rng = np.random.default_rng(seed)
    return " ".join(
        str(rng.choice([w for w in WORDS if len(w) == len(word)])) for word in text.split(" ")
    )


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[dict[str, Any]]], Any]:
    """What a probe of a VisualBERT counts."""
    folder = tmp_path_factory.mktemp("probed")
    regions = open_regions(probe.save_regions(folder / "r.npy", probe.region_sets(6)))
    encoder = open_encoder(str(probe.save_visualbert(folder / "vb")))

    def count(rows: list[dict[str, Any]]) -> Any:
        found = GroundingProbe(encoder, regions, samples=20)
        captions = (read_caption(row, "report", regions, "x", i) for i, row in enumerate(rows))
        found.run(caption for caption in captions if caption is not None)
        return found.scores["report"].cells

    return count


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=DRAWS["seed"])
def test_word_blind_rules_of_probes_see_no_word(
    probed: Callable[[list[dict[str, Any]]], Any], seed: int
) -> None:
    rows = probe.caption_rows(probe.region_sets(6), 18)
    others = [row | {"text": other_words(row["text"], seed + i)} for i, row in enumerate(rows)]
    before, after = probed(rows), probed(others)
    heads = len(before[ENTITY].right)
    for name in ("right", "hits"):
        one, other = (getattr(cells[BLIND], name)[..., heads:] for cells in (before, after))
        assert one.size
        assert one.tobytes() == other.tobytes()
    assert (before[ENTITY].base, before[ENTITY].bound) == (after[ENTITY].base, after[ENTITY].bound)
    assert before[ENTITY].mass.tobytes() != after[ENTITY].mass.tobytes(), "heads see the words"


@settings(max_examples=40, deadline=None)
@given(seed=DRAWS["seed"], height=st.integers(2, 5), width=st.integers(2, 5))
def test_controls_of_maps_see_no_text(seed: int, height: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    gold = rng.random((20, 30)) < 0.3

    def located(text: str) -> Located:
        query = Query(text, "x.jpg", 1, boxes=((3.0, 2.0, 17.0, 11.0),), size=(30.0, 20.0))
        heat = rng.standard_normal(height * width)
        return Located(query, heat, (height, width), (0.0, 0.0, 1.0, 1.0))

    both = [located(text) for text in ("a dog", "two cats")]
    points = [point_at(one)[1:].tobytes() for one in both]
    masks = [segment_as(one, gold)[1:].tobytes() for one in both]
    assert len({*points}) == len({*masks}) == 1
