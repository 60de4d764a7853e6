"""A dual encoder in the place of a matcher: from pictures to vokens, against transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from torch.nn import functional as F
from transformers import AutoModel

from tests.tiny import BACKBONE, save_encoder, save_feats, save_run_of
from tests.tiny.clip import save_captions, save_tower
from tests.tiny.dual import SIDE, save_dual
from tests.tiny.images import save_photo
from vgtools.cli import run
from vgtools.io.arrays import Array
from vgtools.models.dual import load_dual
from vgtools.retrieval.index import open_index
from vgtools.systems.vokenization.dual import CONTEXT, DualStates, _Vocabulary
from vgtools.systems.vokenization.vokenize import Vokenizer, load_for

TEXTS = ["a red dog", "", "dogs of a cat", "cat", "a dog of a red cat a dog of a red cat a red"]
CPU = ["--device", "cpu", "-q"]


@pytest.fixture(scope="module", params=["clip", "siglip"])
def bank(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dual encoder, its features, and the index of them."""
    folder = tmp_path_factory.mktemp("bank")
    save_dual(folder / "model", request.param)
    for number in range(12):
        save_photo(folder / "photos" / f"{number:02}.png", number)
    how = ["-b", str(folder / "model"), *CPU]
    assert (
        run(["extract-image-feats", str(folder / "photos"), *how, "-o", str(folder / "f.npy")]) == 0
    )
    assert build(folder, folder / "f.npy") == 0
    (folder / "t.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    return folder


def build(folder: Path, feats: Path, *more: str) -> int:
    how = ["-m", str(folder / "model"), "-o", str(folder / "vg.faiss"), *CPU, *more]
    return run(["build-index", str(feats), *how])


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def unit(rows: Array) -> Array:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@torch.inference_mode()
def whole(folder: Path, ids: list[int]) -> Array:
    """Return transformers' own unit feature of one text, special tokens left out."""
    texts = load_dual(str(folder / "model")).texts
    row = [*texts.prefix, *ids, *texts.suffix]
    model = AutoModel.from_pretrained(folder / "model", dtype="float64").eval()
    if model.config.model_type == "siglip":
        row += [2] * (16 - len(row))
    found = model.get_text_features(input_ids=torch.tensor([row])).pooler_output
    return F.normalize(found[0], dim=0).numpy()


def ids_of(folder: Path, text: str) -> list[int]:
    tokenizer = load_dual(str(folder / "model")).texts.tokenizer
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def test_the_model_of_a_tokenizer_decides_the_kind_of_its_vocabulary() -> None:
    names = ["▁dog", "dog", "s", "##", "##s", "s</w>"]
    unigram = Tokenizer(models.Unigram([(name, -1.0) for name in names]))
    found = _Vocabulary.of(unigram)
    assert found.opens.tolist() == [True, False, False, False, False, False]
    assert found.spaced.tolist() == [0, 0, 2, 3, 4, 5]
    assert not found.closes.any()
    vocabulary = {name: i for i, name in enumerate(names)}
    pieces = _Vocabulary.of(Tokenizer(models.WordPiece(vocabulary, unk_token="dog")))
    assert pieces.opens.tolist() == [True, True, True, False, False, True]
    assert pieces.spaced.tolist() == [*range(6)]
    merges = Tokenizer(models.BPE(vocabulary, [], end_of_word_suffix="</w>"))
    clip = _Vocabulary.of(merges)
    assert clip.closes.tolist() == [False] * 5 + [True]
    assert not clip.opens.any()
    merges = Tokenizer(models.BPE(vocabulary, [], continuing_subword_prefix="##"))
    assert _Vocabulary.of(merges).opens.tolist() == pieces.opens.tolist()


def test_the_index_holds_the_models_own_image_features(bank: Path) -> None:
    index = open_index(str(bank / "vg.faiss"))
    feats = np.load(bank / "f.npy")
    assert np.allclose(index.vectors(np.arange(12)), unit(feats), atol=1e-6)
    made = json.loads((bank / "f.json").read_text())
    assert (made["pooling"], made["dim"]) == ("own", feats.shape[1])
    dual = load_dual(str(bank / "model"))
    assert made["backbone"]["fingerprint"] == dual.fingerprint
    assert made["backbone"]["preprocessing"]["processor"]["size"]
    named = json.loads((bank / "vg.json").read_text())["matcher"]
    assert named["run"] == "model"


def test_images_of_texts_are_ranked_by_the_cosines_of_transformers(bank: Path) -> None:
    out = bank / "r.jsonl"
    args = [str(bank / "t.txt"), "--index", str(bank / "vg.faiss"), "-k", "12", "-o", str(out)]
    assert run(["retrieve", *args, *CPU, "--restart"]) == 0
    images = unit(np.load(bank / "f.npy").astype(np.float64))
    for text, row in zip(TEXTS[:4], read(out), strict=False):
        if not text:
            assert row["images"] == []
            continue
        cosines = images @ whole(bank, ids_of(bank, text))
        # Scores have four decimals.
        assert np.allclose(row["scores"], cosines[row["images"]], atol=6e-5)
        assert row["scores"] == sorted(row["scores"], reverse=True)
    # The last text is longer than the model reads: it is cut, and all its tokens count.
    assert len(read(out)[4]["images"]) == 12


@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_a_word_is_embedded_in_its_template(bank: Path, weight: float) -> None:
    index = open_index(str(bank / "vg.faiss"))
    matcher = load_for(index, reading="word")
    worker = Vokenizer(matcher, index, context_weight=weight)
    template = ids_of(bank, "a photo of a")
    room = matcher.encoder.max_tokens
    found = worker.tokenize(TEXTS[:4])
    with torch.inference_mode():
        (queries,) = worker.embed(found)
    rows = queries.vectors.numpy()[queries.owner]
    words = {"a": [0], "red": [1], "dog": [2]}
    pieces = dict(zip(words, _pieces(bank, ["a", "red", "dog"]), strict=True))
    at = 0
    places = np.argsort(queries.places)
    for piece in pieces.values():
        expected = whole(bank, [*template, *piece][:room])
        sentence = whole(bank, ids_of(bank, "a red dog"))
        expected = unit(expected + weight * sentence)
        for _ in piece:
            # Two embeddings rounded to float32, added and normalised again: below 5e-7.
            assert np.allclose(rows[places[at]], expected, atol=1e-6)
            at += 1


def _pieces(bank: Path, words: list[str]) -> list[list[int]]:
    """Return the tokens of words as they stand in a sentence."""
    before = len(ids_of(bank, "a"))
    return [ids_of(bank, f"a {word}")[before:] for word in words]


def test_each_word_is_embedded_once(bank: Path) -> None:
    dual = load_dual(str(bank / "model"))
    seen: list[int] = []
    layer = dual.texts.model.model.text_model.encoder.layers[0].layer_norm1
    handle = layer.register_forward_hook(lambda _, rows, out: seen.append(len(rows[0])))
    states = DualStates(dual.texts, "word", sentence=False)
    tokens = np.array(ids_of(bank, "dog cat dog dog"), np.int32)
    starts, lengths = np.array([0]), np.array([len(tokens)])
    first = list(states(tokens, starts, lengths))
    calls = len(seen)
    # Dog and cat, of one length or of two; a CLIP reads the template by itself.
    assert 1 <= calls <= 2
    again = list(states(tokens, starts, lengths))
    assert len(seen) == calls
    assert torch.equal(first[0].tokens, again[0].tokens)
    handle.remove()


def test_a_text_that_names_the_mark_of_its_end_is_read_as_transformers_does(bank: Path) -> None:
    matcher = load_for(open_index(str(bank / "vg.faiss")), reading="state")
    worker = Vokenizer(matcher, open_index(str(bank / "vg.faiss")), context_weight=0.0)
    mark = matcher.encoder.suffix[-1]
    tokens = worker.tokenize(["a red dog", "a cat"])
    tokens.ids[1] = mark
    width = matcher.encoder.width
    for hidden in worker.encoder(tokens.ids, tokens.starts[:-1], np.diff(tokens.starts)):
        for segment, first in zip(hidden.segments, hidden.first[:, width:], strict=True):
            ids = tokens.ids[tokens.starts[segment] : tokens.starts[segment + 1]].tolist()
            assert np.allclose(first, whole(bank, ids), atol=1e-6)


@pytest.mark.parametrize("chosen", [slice(2, None), [4, 1, 3], [1]])
def test_the_words_of_some_sentences_are_those_of_all(bank: Path, chosen: Any) -> None:
    matcher = load_for(open_index(str(bank / "vg.faiss")), reading="word")
    texts = [text for text in TEXTS if text] + ["", "a dogs"]
    tokens = Vokenizer(matcher, open_index(str(bank / "vg.faiss"))).tokenize(texts)
    lengths = np.minimum(np.diff(tokens.starts), matcher.encoder.max_tokens)

    def states(starts: Array, sizes: Array) -> dict[int, torch.Tensor]:
        found = {}
        for pack in DualStates(matcher.encoder)(tokens.ids, starts, sizes):
            parts = pack.tokens.split(sizes[pack.segments].tolist())
            found |= {int(starts[s]): part for s, part in zip(pack.segments, parts, strict=True)}
        return found

    every = states(tokens.starts[:-1], lengths)
    some = states(tokens.starts[:-1][chosen], lengths[chosen])
    assert len(some) == len(np.unique(tokens.starts[:-1][chosen]))
    for start, rows in some.items():
        assert torch.allclose(rows, every[start][: len(rows)], atol=1e-6)


@torch.inference_mode()
def test_a_state_is_the_tokens_own_through_the_texts_projection(bank: Path) -> None:
    index = open_index(str(bank / "vg.faiss"))
    matcher = load_for(index, reading="state")
    worker = Vokenizer(matcher, index, context_weight=0.0)
    (queries,) = worker.embed(worker.tokenize(["a red dog"]))
    texts = matcher.encoder
    ids = ids_of(bank, "a red dog")
    row = [*texts.prefix, *ids, *texts.suffix]
    first = len(texts.prefix)
    model = AutoModel.from_pretrained(bank / "model").eval()
    siglip = model.config.model_type == "siglip"
    if siglip:
        row += [2] * (16 - len(row))
    last = model.text_model(input_ids=torch.tensor([row])).last_hidden_state[0]
    project = model.text_model.head if siglip else model.text_projection
    expected = F.normalize(project(last[first : first + len(ids)]), dim=1)
    assert torch.allclose(queries.vectors[torch.from_numpy(queries.owner)], expected, atol=1e-5)


@pytest.mark.parametrize("reading", ["state", "word"])
def test_vokens_do_not_depend_on_the_lines_of_a_step(bank: Path, reading: str) -> None:
    found = []
    for window in ("1", "4096"):
        out = bank / f"v{window}.jsonl"
        how = ["--index", str(bank / "vg.faiss"), "--reading", reading, "--window", window]
        assert run(["vokenize", str(bank / "t.txt"), *how, "-o", str(out), *CPU, "--restart"]) == 0
        found.append(out.read_text())
        manifest = json.loads(out.with_suffix(".json").read_text())
        assert (manifest["reading"], manifest["config"]["context_weight"]) == (reading, CONTEXT)
    assert found[0] == found[1]
    rows = [json.loads(line) for line in found[0].splitlines()]
    assert [len(row["vokens"]) > 0 for row in rows] == [True, False, True, True, True]


def test_the_level_of_sentences_gives_all_tokens_the_image_of_their_text(bank: Path) -> None:
    out = bank / "s.jsonl"
    how = ["--index", str(bank / "vg.faiss"), "--level", "sentence", "-o", str(out), *CPU]
    assert run(["vokenize", str(bank / "t.txt"), *how, "--restart"]) == 0
    images = unit(np.load(bank / "f.npy").astype(np.float64))
    best = int((images @ whole(bank, ids_of(bank, "a red dog"))).argmax())
    assert set(read(out)[0]["vokens"]) == {best}


@torch.inference_mode()
def test_scores_are_what_the_model_says_of_a_pair(bank: Path) -> None:
    out = bank / "p.jsonl"
    how = ["--index", str(bank / "vg.faiss"), "--level", "sentence", "-o", str(out), *CPU]
    assert run(["vokenize", str(bank / "t.txt"), *how, "--restart"]) == 0
    model = AutoModel.from_pretrained(bank / "model", dtype="float64").eval()
    images = unit(np.load(bank / "f.npy").astype(np.float64))
    best = float((images @ whole(bank, ids_of(bank, "a red dog"))).max())
    made = json.loads(out.with_suffix(".json").read_text())
    scale = float(model.logit_scale.exp())
    assert made["logits"]["scale"] == pytest.approx(scale, rel=1e-6)
    siglip = model.config.model_type == "siglip"
    assert made.get("score") == ("probability" if siglip else None)
    if siglip:  # as in transformers' example: the sigmoid of logits_per_text
        assert made["logits"]["bias"] == pytest.approx(float(model.logit_bias), rel=1e-6)
        best = 1 / (1 + np.exp(-(scale * best + float(model.logit_bias))))
    else:
        assert "bias" not in made["logits"]
    assert read(out)[0]["scores"] == pytest.approx(
        [best] * len(ids_of(bank, "a red dog")), abs=6e-5
    )
    page = bank / "p.html"
    show = ["show", str(out), "--index", str(bank / "vg.faiss"), "-o", str(page), "-q"]
    assert run([*show, "--images", str(bank / "photos")]) == 0
    word = "probability" if siglip else "relevance"
    assert f", {word} {read(out)[0]['scores'][0]:.3g}" in page.read_text()


def test_an_index_is_pushed_only_with_a_matcher_that_others_can_get(
    bank: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["push", str(bank / "vg.faiss"), "me/bank", "--dry-run"]) == 65
    assert "build the index with that model's name on a hub" in capsys.readouterr().err


def test_features_of_another_model_or_pooling_are_refused(
    bank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = save_dual(tmp_path / "other", "clip", seed=1)
    assert (
        run(["build-index", str(bank / "f.npy"), "-m", str(other), "-o", str(tmp_path / "x.faiss")])
        == 65
    )
    error = capsys.readouterr().err
    assert load_dual(str(other)).fingerprint in error
    assert load_dual(str(bank / "model")).fingerprint in error
    how = ["-b", str(bank / "model"), "--pooling", "mean", "-o", str(tmp_path / "m.npy"), *CPU]
    assert run(["extract-image-feats", str(bank / "photos"), *how]) == 0
    assert build(bank, tmp_path / "m.npy", "--restart") == 65
    assert "--pooling own" in capsys.readouterr().err
    # Of another width: the manifest was written by another program.
    made = json.loads((bank / "f.json").read_text())
    wide = save_feats(tmp_path / "w.npy", np.ones((3, 7)), made["backbone"], pooling="own")
    assert build(bank, wide, "--restart") == 65
    assert f"takes (images, {made['dim']})" in capsys.readouterr().err


def test_the_same_weights_under_another_config_are_another_model(
    bank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "bank"
    shutil.copytree(bank, folder)
    config = folder / "model/config.json"
    how = ["-b", str(folder / "model"), *CPU, "-o", str(folder / "f.npy")]
    extract = ["extract-image-feats", str(folder / "photos"), *how]
    ask = ["vokenize", str(folder / "t.txt"), "--index", str(folder / "vg.faiss"), *CPU]
    ask += ["-o", str(folder / "v.jsonl")]
    rank = ["retrieve", *ask[1:-1], str(folder / "r.jsonl")]
    assert run(extract) == run(ask) == run(rank) == 0
    before = (folder / "v.jsonl").read_bytes()
    body = json.loads(config.read_text())
    # How the file was written changes nothing.
    config.write_text(json.dumps(body | {"architectures": ["Other"], "dtype": "bfloat16"}))
    capsys.readouterr()
    for command in (extract, ask, rank):
        assert run([flag for flag in command if flag != "-q"]) == 0
    assert capsys.readouterr().err.count("is up to date") == 3
    for side in ("text_config", "vision_config"):
        body[side]["hidden_act"] = "relu"
    config.write_text(json.dumps(body))
    for command in (ask, rank):
        assert run(command) == 65
        assert "was made with the matcher" in capsys.readouterr().err
    assert build(folder, folder / "f.npy") == 65
    assert "was made with the backbone" in capsys.readouterr().err
    assert (folder / "v.jsonl").read_bytes() == before
    feats = (folder / "f.npy").read_bytes()
    assert run(extract) == build(folder, folder / "f.npy") == run(ask) == 0
    assert (folder / "f.npy").read_bytes() != feats
    assert (folder / "v.jsonl").read_bytes() != before


def test_a_reading_belongs_to_a_dual_encoder(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.txt").write_text("bam den\n")
    how = ["--index", str(tiny / "vg.faiss"), "--reading", "state", *CPU]
    assert run(["vokenize", str(tmp_path / "t.txt"), *how]) == 78
    assert "--reading state" in capsys.readouterr().err


def test_another_matcher_than_the_index_names_is_refused(
    bank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = save_dual(tmp_path / "other", "clip", seed=1)
    how = ["--index", str(bank / "vg.faiss"), "--matcher", str(other), *CPU]
    assert run(["vokenize", str(bank / "t.txt"), *how]) == 65
    assert "was made with the matcher" in capsys.readouterr().err


def test_the_heat_of_a_text_is_its_cosine_with_each_patch(bank: Path) -> None:
    grid = bank / "grid.npy"
    how = ["-b", str(bank / "model"), "--pooling", "none", "-o", str(grid), *CPU]
    assert run(["extract-image-feats", str(bank / "photos"), *how, "--restart"]) == 0
    rows = bank / "q.jsonl"
    rows.write_text(
        json.dumps({"text": "a red dog", "image": "03.png", "width": SIDE, "height": SIDE})
    )
    out = bank / "heat.jsonl"
    args = [str(rows), "--matcher", str(bank / "model"), "--feats", str(grid), "-o", str(out)]
    assert run(["locate", *args, *CPU, "--restart"]) == 0
    cells = unit(np.load(grid)[3].astype(np.float64))
    expected = cells @ whole(bank, ids_of(bank, "a red dog"))
    assert np.allclose(read(out)[0]["heat"], expected, atol=6e-5)


def test_a_matcher_is_trained_on_both_towers(
    bank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = (bank / "f.ids").read_text().splitlines()
    rows = [(name, f"a {['red', 'dog', 'cat'][i % 3]} of a dog") for i, name in enumerate(names)]
    captions = str(save_captions(tmp_path / "c.jsonl", rows))
    how = ["-e", str(bank / "model"), "--layers", "2", "--epochs", "1", "--batch-size", "6"]
    how += ["--hold-out", "4", "--hidden", "8", "--dim", "4", *CPU]
    given = ["train-matcher", captions, str(bank / "f.npy"), *how, "-o", str(tmp_path / "run")]
    assert run(given) == 0
    made = json.loads((tmp_path / "run" / "run.json").read_text())
    assert made["backbone"]["ref"] == str(bank / "model")
    index = ["-m", str(tmp_path / "run"), "-o", str(tmp_path / "vg.faiss"), *CPU]
    assert run(["build-index", str(bank / "f.npy"), *index]) == 0
    out = tmp_path / "v.jsonl"
    text = [str(bank / "t.txt"), "--index", str(tmp_path / "vg.faiss"), "-o", str(out)]
    assert run(["vokenize", *text, *CPU]) == 0
    assert [len(row["vokens"]) for row in read(out)][:4] == [
        len(ids_of(bank, text)) for text in TEXTS[:4]
    ]
    measured = ["evaluate-matcher", captions, str(bank / "f.npy"), str(tmp_path / "run")]
    assert run([*measured, "--split", "none", *CPU]) == 0
    capsys.readouterr()
    given[-1] += ".sentence"
    assert run([*given, "--level", "sentence"]) == 2
    assert "no token before a text that reads it" in capsys.readouterr().err


@pytest.fixture(scope="module")
def clip_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of `vg pretrain clip`, its captions and its features."""
    folder = tmp_path_factory.mktemp("clip")
    rows = [(f"image{i % 10:03}", f"the {'abcdef'[i % 6]}") for i in range(24)]
    captions = save_captions(folder / "c.jsonl", rows)
    feats = save_feats(folder / "feats.npy")
    tower = save_tower(folder / "tower")
    how = ["--feats", str(feats), "-e", str(tower), "--steps", "2", "--batch-size", "8"]
    assert run(["pretrain", "clip", str(captions), *how, *CPU, "-o", str(folder / "model")]) == 0
    assert build(folder, feats) == 0
    return folder


@torch.inference_mode()
def test_a_run_of_vg_pretrain_clip_needs_no_matcher(clip_run: Path) -> None:
    from vgtools.models.clip import load_teacher

    weights = load_file(clip_run / "model" / "clip.safetensors")
    feats = torch.from_numpy(np.load(clip_run / "feats.npy"))
    rooted = feats.sign() * feats.abs().sqrt()
    hidden = F.relu(F.linear(rooted, weights["photo.0.weight"], weights["photo.0.bias"]))
    images = F.linear(hidden, weights["photo.3.weight"], weights["photo.3.bias"])
    images = F.normalize(images, dim=1).numpy()
    index = open_index(str(clip_run / "vg.faiss"))
    assert np.allclose(index.vectors(np.arange(60)), images, atol=1e-6)
    assert load_dual(str(clip_run / "model")).logits == (
        pytest.approx(float(weights["log_scale"].exp())),
        None,
    )
    tower = load_teacher(str(clip_run / "model"))
    ids = [*tower.prefix, *tower.tokenizer.encode("the a", add_special_tokens=False).ids]
    out = tower.model(input_ids=torch.tensor([[*ids, *tower.suffix]]))
    cosines = images @ F.normalize(out.text_embeds[0], dim=0).numpy()
    (clip_run / "t.txt").write_text("the a\n")
    found = clip_run / "r.jsonl"
    args = [str(clip_run / "t.txt"), "--index", str(clip_run / "vg.faiss"), "-o", str(found)]
    assert run(["retrieve", *args, "-k", "5", *CPU]) == 0
    (row,) = read(found)
    assert np.allclose(row["scores"], np.sort(cosines)[::-1][:5], atol=6e-5)


def test_it_is_evaluated_in_one_table_with_a_trained_matcher(
    clip_run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trained = save_run_of(clip_run / "matcher", save_encoder(clip_run / "encoder"))
    files = [clip_run / name for name in ("c.jsonl", "feats.npy", "matcher", "model")]
    args = [*map(str, files), "--split", "none", *CPU]
    assert trained.is_dir()
    assert run(["evaluate-matcher", *args]) == 0
    first, second = map(json.loads, capfd.readouterr().out.splitlines())
    assert first["images"] == second["images"] == 10
    assert 0 <= second["caption"]["r1"] <= second["caption"]["r10"] <= 100
    assert first.keys() == second.keys()
    found = []
    for reading in ("state", "word"):
        how = ["--reading", reading, "--context", "0", "--context", "2", "--table"]
        assert run(["evaluate-matcher", *args[:2], str(files[3]), *args[4:], *how]) == 0
        found.append(capfd.readouterr().out)
        assert found[-1].count("model, context") == 2
    assert found[0] != found[1]


def test_the_pictures_of_such_a_run_are_its_backbones(
    clip_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    how = ["-b", str(clip_run / "model"), "-o", str(tmp_path / "f.npy"), *CPU]
    save_photo(tmp_path / "photos" / "0.png", 0)
    assert run(["extract-image-feats", str(tmp_path / "photos"), *how]) == 65
    error = capsys.readouterr().err
    assert "--backbone net" in error.replace(BACKBONE["ref"], "net")
    assert "vg build-index --matcher" in error


def test_clusters_are_not_like_the_bank_of_a_dual_encoder(bank: Path, capfd: Any) -> None:
    text, like, output = (str(bank / name) for name in ("t.txt", "vg.faiss", "c.faiss"))
    assert run(["prepare", "clusters", text, "--like", like, "-o", output, *CPU]) == 65
    assert "not a run of vg train-matcher; give -e, -k" in capfd.readouterr().err
