"""`vg build-index`: the index is the features' embeddings; what does not belong together is
refused.
"""

from __future__ import annotations

import json
from pathlib import Path

import faiss
import numpy as np
import pytest
import torch

from tests.tiny import BACKBONE, IMAGE, save_feats, save_run_of
from tests.tiny.grounding import save_vectors
from vgtools.cli import run
from vgtools.systems.grounding.association import open_associator
from vgtools.systems.vokenization.vokenize import open_matcher
from vgtools.text.tokens import load_stop_words
from vgtools.text.word_vectors import open_word_vectors, stop_words_fingerprint


def build(*args: str | Path) -> int:
    return run(["build-index", *map(str, args), "--device", "cpu"])


def test_the_index_holds_the_embeddings_and_names_its_matcher(tiny: Path) -> None:
    index = faiss.read_index(str(tiny / "vg.faiss"))
    assert isinstance(index, faiss.IndexFlat)
    matcher = open_matcher(tiny / "run")
    with torch.no_grad():
        wanted = matcher.matcher.embed_images(torch.from_numpy(np.load(tiny / "feats.npy"))).numpy()
    np.testing.assert_allclose(index.reconstruct_n(0, 60), wanted, atol=1e-6)
    manifest = json.loads((tiny / "vg.json").read_text())
    assert manifest["matcher"] == {"run": "run", "fingerprint": matcher.fingerprint}
    assert (manifest["count"], manifest["dim"], manifest["metric"]) == (60, 8, "inner_product")
    assert manifest["backbone"] == BACKBONE
    assert (tiny / "vg.ids").read_text() == (tiny / "feats.ids").read_text()


def test_the_weight_of_the_sentence_is_kept_with_the_index(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = save_run_of(tmp_path / "both", tiny / "encoder", sentence=True)
    out = tmp_path / "vg.faiss"
    assert build(tiny / "feats.npy", "-m", both, "--context", "0.5", "-o", out) == 0
    manifest = json.loads(out.with_suffix(".json").read_text())
    assert (manifest["matcher"]["context_weight"], manifest["config"]["context_weight"]) == (
        0.5,
        0.5,
    )
    (tmp_path / "t.txt").write_text("bam den fis\n")
    found = []
    for flags in ([], ["--context", "0.5"], ["--context", "0"]):
        args = [str(tmp_path / "t.txt"), "--index", str(out), *flags, "--device", "cpu", "-q"]
        assert run(["vokenize", *args, "-o", str(tmp_path / "v.jsonl"), "--restart"]) == 0
        manifest = json.loads((tmp_path / "v.json").read_text())
        found.append((manifest["config"]["context_weight"], (tmp_path / "v.jsonl").read_text()))
    assert [weight for weight, _ in found] == [0.5, 0.5, 0.0]
    assert found[0] == found[1]
    assert found[1][1] != found[2][1]
    capsys.readouterr()
    assert build(tiny / "feats.npy", "-m", tiny / "run", "--context", "1", "-o", out) == 2
    assert "has no sentence term" in capsys.readouterr().err


def test_limit_takes_the_first_images(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "vg.faiss"
    assert build(tiny / "feats.npy", "-m", tiny / "run", "-o", out, "--limit", "7") == 0
    assert faiss.read_index(str(out)).ntotal == 7
    assert out.with_suffix(".ids").read_text().splitlines()[-1] == "image006"
    assert build(tiny / "feats.npy", "-m", tiny / "run", "-o", out, "--limit", "7") == 0
    assert "up to date" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["vg.faiss", "vg.ids", "vg.json"]


def test_lists_say_recall_and_loss_and_vokens_name_them(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "vg.faiss"
    flags = ["-m", tiny / "run", "-o", out, "--emb", tmp_path / "e.npy", "-q"]
    assert build(tiny / "feats.npy", *flags, "--factory", "IVF6,SQ8", "--nprobe", "2") == 0
    manifest = json.loads(out.with_suffix(".json").read_text())
    facts = {key: manifest[key] for key in ("factory", "nprobe", "recall_at_1", "relevance_lost")}
    assert (facts["factory"], facts["nprobe"]) == ("IVF6,SQ8", 2)
    assert 0.3 < facts["recall_at_1"] < 1
    assert 0 < facts["relevance_lost"] < 0.5
    assert (
        f"IVF6,SQ8 with --nprobe 2 finds the right image for {facts['recall_at_1']:.1%} of the "
        f"vocabulary's words; its images are {facts['relevance_lost']:.4f} less relevant"
    ) in capsys.readouterr().err
    exact = faiss.read_index(str(tiny / "vg.faiss")).reconstruct_n(0, 60)
    np.testing.assert_allclose(np.load(tmp_path / "e.npy"), exact, atol=1e-6)
    (tmp_path / "t.txt").write_text("bam dor\n")
    for given, expected in (
        ([], facts),
        (["--nprobe", "6"], facts | {"nprobe": 6, "recall_at_1": None, "relevance_lost": None}),
    ):
        for command in ("vokenize", "retrieve"):
            rows = tmp_path / f"{command}{len(given)}.jsonl"
            args = [command, tmp_path / "t.txt", "--index", out, "-o", rows, "-q", *given]
            assert run([*map(str, args)]) == 0
            config = json.loads(rows.with_suffix(".json").read_text())["config"]
            assert config["search"] == expected
    assert run(["vokenize", "-", "--index", str(tiny / "vg.faiss"), "--nprobe", "3"]) == 2
    assert "has no lists: --nprobe belongs to" in capsys.readouterr().err


def test_another_factory_says_its_recall(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "vg.faiss"
    assert build(tiny / "feats.npy", "-m", tiny / "run", "-o", out, "--factory", "HNSW8", "-q") == 0
    recall = json.loads(out.with_suffix(".json").read_text())["recall_at_1"]
    assert 0.5 < recall <= 1
    assert f"HNSW8 finds the right image for {recall:.1%}" in capsys.readouterr().err


def test_features_of_another_backbone_are_refused(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    feats = save_feats(tmp_path / "feats.npy", backbone={"ref": "other", "fingerprint": "c" * 64})
    assert build(feats, "-m", tiny / "run", "-o", tmp_path / "vg.faiss") == 65
    message = capsys.readouterr().err
    assert "b" * 64 in message
    assert "c" * 64 in message
    assert not (tmp_path / "vg.faiss").exists()


def test_features_of_another_width_are_refused(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    feats = save_feats(tmp_path / "feats.npy", np.ones((3, IMAGE + 1)))
    assert build(feats, "-m", tiny / "run", "-o", tmp_path / "vg.faiss") == 65
    assert "(3, 13)" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["feats.ids", "feats.json", "feats.npy"]


def test_a_run_with_another_encoder_is_refused(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.tiny import save_encoder

    broken = save_run_of(tmp_path / "run", tiny / "encoder")
    save_encoder(broken / "encoder", seed=5)
    assert build(tiny / "feats.npy", "-m", broken, "-o", tmp_path / "vg.faiss") == 65
    error = capsys.readouterr().err
    assert "run/encoder/" in error
    assert "is damaged or from another run: sha256" in error


@pytest.mark.parametrize(("output", "code"), [("vg.index", 2), ("nowhere/vg.faiss", 73)])
def test_outputs_that_cannot_be(tiny: Path, tmp_path: Path, output: str, code: int) -> None:
    assert build(tiny / "feats.npy", "-m", tiny / "run", "-o", tmp_path / output) == code


# -------------------------------------------------------------------------------- vectors, keywords

CAPTIONS = [
    {"image": "b.jpg", "text": "a red car"},
    {"image": "a.jpg", "text": "the dog"},
    {"image": "none.jpg", "text": "the zebra"},
    {"image": "a.jpg", "text": "a puppy"},
]
NOUNS = [
    {"image": "1.jpg", "nouns": ["great white shark", "white shark"], "text": "large fish"},
    {"image": "2.jpg", "nouns": ["zebra"], "text": "a large dog"},
]


def save_rows(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_captions_are_keys_of_their_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = save_rows(tmp_path / "c.jsonl", CAPTIONS)
    (tmp_path / "words").mkdir()
    vectors = save_vectors(tmp_path / "words/v.npy")
    out = tmp_path / "scene.faiss"
    assert build(rows, "--vectors", vectors, "-o", out) == 0
    assert capsys.readouterr().err.splitlines() == [
        f"vg build-index: 2 images by captions in {out}",
        "vg build-index: left out: 1 image without a known word, first 'none.jpg'",
    ]
    # The mean of red and car, and that of dog and puppy.
    expected = np.array([(-(0.5**0.5), 0.5**0.5), (1.8 / 3.6**0.5, 0.6 / 3.6**0.5)])
    index = faiss.read_index(str(out))
    np.testing.assert_allclose(index.reconstruct_n(0, 2), expected, atol=1e-6)
    assert out.with_suffix(".ids").read_text() == "b.jpg\na.jpg\n"
    manifest = json.loads(out.with_suffix(".json").read_text())
    assert (manifest["keys"], manifest["left_out"], manifest["count"]) == ("captions", 1, 2)
    assert manifest["words"] == {
        "stop_words": stop_words_fingerprint(load_stop_words()),
        "vectors": "words/v.npy",
        "fingerprint": open_word_vectors(str(vectors)).fingerprint,
    }
    assert build(rows, "--vectors", vectors, "-o", out) == 0
    assert "up to date" in capsys.readouterr().err
    finder = open_associator(str(out))
    assert finder.search(finder.words(["puppies and a puppy"]), 3).rows.tolist() == [[1, 0, -1]]


def test_nouns_and_definitions_are_keys_of_their_images(tmp_path: Path) -> None:
    rows = save_rows(tmp_path / "n.jsonl", NOUNS)
    vectors = save_vectors(tmp_path / "v.npy")
    out = tmp_path / "object.faiss"
    assert build(rows, "--vectors", vectors, "-o", out, "-q") == 0
    keys = faiss.read_index(str(out)).reconstruct_n(0, 2)
    np.testing.assert_allclose(keys[0], (0.634317, 0.773073), atol=1e-6)
    np.testing.assert_allclose(keys[1], (0.5**0.5, 0.5**0.5), atol=1e-6)
    assert json.loads(out.with_suffix(".json").read_text())["keys"] == "nouns"


def test_keywords_are_an_inverted_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = save_rows(tmp_path / "c.jsonl", [*CAPTIONS, {"image": "b.jpg", "text": "It's the a"}])
    out = tmp_path / "keyword.jsonl"
    assert build(rows, "--keywords", "1", "-o", out) == 0
    assert out.read_text().splitlines() == [
        '{"word":"car","rows":[0]}',
        '{"word":"dog","rows":[1]}',
        '{"word":"puppy","rows":[1]}',
        '{"word":"zebra","rows":[2]}',
    ]
    assert out.with_suffix(".ids").read_text() == "b.jpg\na.jpg\nnone.jpg\n"
    manifest = json.loads(out.with_suffix(".json").read_text())
    assert (manifest["keys"], manifest["per_caption"]) == ("keywords", 1)
    assert "3 images by keywords" in capsys.readouterr().err
    finder = open_associator(str(out))
    assert finder.search(finder.words(["zebras, a Zebra's dog"]), 3).rows.tolist() == [[2, 1, -1]]


def test_stop_words_of_a_file_are_those_of_the_index(tmp_path: Path) -> None:
    rows = save_rows(tmp_path / "c.jsonl", CAPTIONS)
    (tmp_path / "stop.txt").write_text("Dog\nzebra\nthe\n")
    out = tmp_path / "keyword.jsonl"
    assert build(rows, "--keywords", "8", "--stop-words", tmp_path / "stop.txt", "-o", out) == 0
    assert json.loads(out.with_suffix(".json").read_text())["words"]["stop_list"] == [
        "dog",
        "the",
        "zebra",
    ]
    (tmp_path / "stop.txt").unlink()
    finder = open_associator(str(out))
    assert finder.search(finder.words(["dog"]), 1).rows.tolist() == [[-1]]
    assert out.with_suffix(".ids").read_text() == "b.jpg\na.jpg\n"


@pytest.mark.parametrize("stop_words", ["keyword.ids", "keyword.jsonl"])
def test_an_index_is_not_written_over_its_stop_words(tmp_path: Path, stop_words: str) -> None:
    rows = save_rows(tmp_path / "c.jsonl", CAPTIONS)
    out = tmp_path / "keyword.jsonl"
    assert build(rows, "--keywords", "3", "-o", out) == 0
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    args = (rows, "--keywords", "3", "--stop-words", tmp_path / stop_words, "-o", out)
    for more in ((), ("--restart",)):
        assert build(*args, *more) == 73
        assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_stop_words_of_a_language_are_those_of_the_index(tmp_path: Path) -> None:
    captions = [{"image": "a.jpg", "text": "Ein Hund und eine Katze"}]
    rows = save_rows(tmp_path / "c.jsonl", captions)
    out = tmp_path / "keyword.jsonl"
    assert build(rows, "--keywords", "8", "--language", "de", "-o", out) == 0
    words = {json.loads(line)["word"] for line in out.read_text().splitlines()}
    assert words == {"hund", "katze"}
    finder = open_associator(str(out))
    found = finder.search(finder.words(["Und ein", "der Hund"]), 1)
    assert found.rows.tolist() == [[-1], [0]]


@pytest.mark.parametrize(
    ("rows", "line", "message"),
    [
        ([{"image": "1", "text": 3}], 1, '"text" must be a string'),
        ([*NOUNS, {"image": "3", "text": "dog"}], 3, 'the key "nouns" is missing'),
        ([*NOUNS, NOUNS[0]], 3, "duplicate image '1.jpg' (first on line 1)"),
        ([{"image": "1", "text": "dog", "nouns": [2]}], 1, '"nouns" must be strings'),
        ([NOUNS[0], NOUNS[1] | {"image": ""}], 2, '"image" must be the name of an image'),
        ([NOUNS[0], NOUNS[1] | {"image": "a\nb"}], 2, "holds a line break or NUL"),
    ],
)
def test_rows_that_cannot_be_indexed_are_named(
    tmp_path: Path,
    rows: list[dict[str, object]],
    line: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = save_rows(tmp_path / "c.jsonl", rows)
    vectors = save_vectors(tmp_path / "v.npy")
    assert build(file, "--vectors", vectors, "-o", tmp_path / "s.faiss") == 65
    error = capsys.readouterr().err
    assert f"c.jsonl:{line}: " in error
    assert message in error
    assert not (tmp_path / "s.faiss").exists()


def test_a_bank_without_a_known_word_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = save_rows(tmp_path / "c.jsonl", [{"image": "1", "text": "the"}])
    for flags in (("--vectors", save_vectors(tmp_path / "v.npy")), ("--keywords", "8")):
        suffix = "faiss" if flags[0] == "--vectors" else "jsonl"
        assert build(file, *flags, "-o", tmp_path / f"s.{suffix}") == 65
        assert "has no image with a known word" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("-o x.faiss", "exactly one of --matcher, --vectors and --keywords"),
        ("-m run --keywords 8 -o x.faiss", "exactly one of --matcher, --vectors and --keywords"),
        ("--keywords 8 -o x.faiss", "must end in .jsonl"),
        ("--vectors v.npy -o x.jsonl", "must end in .faiss"),
        ("-m run --stop-words s.txt -o x.faiss", "belongs to --vectors and --keywords"),
        ("-m run --language de -o x.faiss", "belongs to --vectors and --keywords"),
        ("--keywords 2 --language xx -o x.jsonl", "the language 'xx' is not one of ar, da, de"),
        ("--vectors v.npy --factory HNSW8 -o x.faiss", "belongs to --matcher"),
        ("-m run --nprobe 8 -o x.faiss", "belongs to --factory IVF"),
        ("-m run --factory flat -o x.faiss", "'flat': could not parse"),
        ("-m run --factory IVF8,SQ9 -o x.faiss", "could not parse code description SQ9"),
        ("-m run --factory IVF0,Flat -o x.faiss", "there must be a list"),
        ("-m run --factory IVF99999999999,Flat -o x.faiss", "expected Flat, IVF4096,SQ8 or"),
        ("-m run --factory IMI2x8,PQ8 -o x.faiss", "MultiIndex not implemented for inner prod"),
    ],
)
def test_flags_that_do_not_go_together(
    flags: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build("c.jsonl", *flags.split()) == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_an_index_of_captions_gives_no_vokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = save_rows(tmp_path / "c.jsonl", CAPTIONS)
    out = tmp_path / "s.faiss"
    assert build(rows, "--vectors", save_vectors(tmp_path / "v.npy"), "-o", out) == 0
    (tmp_path / "t.txt").write_text("a dog\n")
    assert run(["vokenize", str(tmp_path / "t.txt"), "--index", str(out)]) == 65
    why = "has keys of kind captions, which vg retrieve takes; expected the index of a matcher"
    assert why in capsys.readouterr().err
