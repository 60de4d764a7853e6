"""Faults that attacks found in what vg accepts, each as its finder ran it.

What kills, races, tampered folders and dead helpers do is tested where it belongs; see also `make
faults`.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny import save_feats
from tests.tiny.finetune import save_answers
from tests.tiny.images import save_backbone, save_photo
from tests.tiny.lm import save_tokenizer, sentences
from tests.tiny.retriever import save_captions, save_grid, save_skip_thoughts
from vgtools import cli
from vgtools.io.files import write_manifest

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Run `vg ARGS…` in this process and return its exit code and what it said."""

    def command(*args: object) -> tuple[int, str]:
        code = cli.run([*map(str, args)])
        return code, capfd.readouterr().err

    return command


# ------------------------------------------------------------------------------- files of the user


@pytest.mark.parametrize("restart", [(), ("--restart",)])
@pytest.mark.parametrize("output", ["t.jsonl", "t.npy", "t.jsonl/", "t.npy/"])
def test_a_text_with_the_name_of_a_manifest_survives(
    tiny: Path, tmp_path: Path, run: Run, output: str, restart: tuple[str, ...]
) -> None:
    text = tmp_path / "t.json"
    text.write_text('{"text": "a red dog"}\n')
    index = ["--index", tiny / "vg.faiss", "--device", "cpu", "-q"]
    more = ["--shards", "2"] if output.endswith("/") else []
    run("vokenize", text, *index, "-o", f"{tmp_path}/{output}", *more, *restart)
    assert text.read_text() == '{"text": "a red dog"}\n'


@pytest.mark.parametrize("restart", [(), ("--restart",)])
def test_an_official_list_beside_its_captions_survives(
    tmp_path: Path, run: Run, restart: tuple[str, ...]
) -> None:
    listed = tmp_path / "image_data.json"
    listed.write_text('[{"image_id": 1, "width": 10, "height": 10, "coco_id": null, "url": "u"}]')
    before = listed.read_bytes()
    regions = tmp_path / "region_descriptions.json"
    region = {"phrase": "a dog", "x": 1, "y": 1, "width": 5, "height": 5, "region_id": 1}
    regions.write_text(json.dumps([{"id": 1, "regions": [{**region, "image_id": 1}]}]))
    output = tmp_path / "image_data.jsonl"
    words = ["prepare", "visual-genome", listed, "--regions", regions]
    code, said = run(*words, "-o", output, *restart)
    assert (code, "image_data.json" in said, output.exists()) == (73, True, False)
    assert listed.read_bytes() == before


# ------------------------------------------------------------------------------------ wrong inputs


def test_two_archives_with_one_name_are_refused_before_the_work(tmp_path: Path, run: Run) -> None:
    photo = save_photo(tmp_path / "a.png", 1)
    for name in ("0.tar", "1.tar"):
        with tarfile.open(tmp_path / name, "w") as tar:
            tar.add(photo, "a.png")
    backbone = save_backbone(tmp_path / "backbone")
    output = f"{tmp_path}/f.npy/"
    tars = [tmp_path / "0.tar", tmp_path / "1.tar"]
    code, said = run("extract-image-feats", *tars, "--backbone", backbone, "-o", output, "-q")
    assert (code, "a.png" in said) == (65, True)
    assert not [*tmp_path.glob("f.npy/*.npy")]


def test_one_tag_is_not_the_tags_of_a_sentence(tmp_path: Path, run: Run) -> None:
    rows = tmp_path / "p.jsonl"
    row = {"id": "0", "label": ["literal", "metaphor", "literal"], "prediction": ["literal"]}
    rows.write_text(json.dumps(row) + "\n")
    code, said = run("score", "vuan", rows)
    assert (code, f"{rows}: the id '0' has 3 words" in said) == (65, True)


def test_validation_needs_captions_of_its_split(tmp_path: Path, run: Run) -> None:
    rows = save_captions(tmp_path / "captions.jsonl")
    rows.write_text(rows.read_text().replace('"split"', '"part"'))
    words = ["train-matcher", "visual-awareness", rows, save_grid(tmp_path / "grid.npy")]
    words += ["--words", save_skip_thoughts(tmp_path / "skip"), "--regions", 3]
    code, said = run(*words, "--valid-split", "dev", "--device", "cpu", "-o", tmp_path / "run")
    assert (code, "no row has the \"split\" 'dev'" in said) == (65, True)


@pytest.mark.parametrize("kind", [[], ["image-features"], {}, 1, None, True])
def test_a_manifest_of_a_wrong_type_is_refused(
    tiny: Path, tmp_path: Path, run: Run, kind: Any
) -> None:
    feats = save_feats(tmp_path / "f.npy")
    facts = json.loads((tmp_path / "f.json").read_text())
    del facts["kind"], facts["files"], facts["format"]
    write_manifest(feats, [feats, tmp_path / "f.ids"], kind=kind, **facts)
    matcher = ["--matcher", tiny / "run", "--device", "cpu"]
    code, said = run("build-index", feats, *matcher, "-o", tmp_path / "x.faiss")
    assert (code, str(tmp_path / "f.json") in said) == (65, True)
    assert not (tmp_path / "x.faiss").exists()


def test_features_without_a_column_are_refused(tiny: Path, tmp_path: Path, run: Run) -> None:
    feats = save_feats(tmp_path / "f.npy", np.zeros((3, 0)))
    matcher = ["--matcher", tiny / "run", "--device", "cpu"]
    code, said = run("build-index", feats, *matcher, "-o", tmp_path / "x.faiss")
    assert (code, str(feats) in said) == (65, True)


@pytest.mark.parametrize("warmup", ["inf", "nan", "-1"])
def test_a_warmup_that_is_no_number_of_steps_is_a_usage_error(
    tmp_path: Path, run: Run, warmup: str
) -> None:
    text = tmp_path / "t.txt"
    text.write_text("a red dog\n")
    code, said = run("pretrain", "lm", text, "-e", "x", "--warmup", warmup, "-o", tmp_path / "run")
    assert (code, "--warmup" in said) == (2, True)


def test_a_shape_of_a_translation_model_is_refused(tmp_path: Path, run: Run) -> None:
    (tmp_path / "t.txt").write_text("\n".join(sentences(20)))
    (tmp_path / "shape.json").write_text('{"model_type": "bart", "encoder_layers": 1}')
    shape = ["--shape", tmp_path / "shape.json", "--tokenizer", save_tokenizer(tmp_path / "t")]
    code, said = run("pretrain", "lm", tmp_path / "t.txt", *shape, "-o", tmp_path / "run", "-q")
    assert (code, "shape.json" in said, "bart" in said) == (65, True, True)


@pytest.mark.parametrize("seeds", [None, [], 3, "x", {"accuracy": None}])
def test_a_run_with_seeds_of_a_wrong_type_is_refused(tmp_path: Path, run: Run, seeds: Any) -> None:
    folders = [save_answers(tmp_path / name, [[0, 1, 1, 0]]) for name in "ab"]
    file = folders[0] / "run.json"
    info = json.loads(file.read_text())
    file.write_text(json.dumps({**info, "seeds": {"1": seeds}}))
    code, said = run("compare", *folders)
    assert (code, str(file) in said) == (65, True)


def test_a_word_vector_that_is_no_number_is_refused(tmp_path: Path, run: Run) -> None:
    vectors = tmp_path / "words.vec"
    vectors.write_text("red 1 2\ndog nan 1\n")
    code, said = run("prepare", "vectors", vectors, "-o", tmp_path / "x.npy")
    assert (code, f"{vectors}:2: " in said) == (65, True)


@pytest.mark.parametrize("score", ["nan", "inf"])
def test_the_first_pair_s_score_is_a_number(tmp_path: Path, run: Run, score: str) -> None:
    pairs = tmp_path / "pairs.txt"
    pairs.write_text(f"cat dog {score}\ncar bus 3\nsun moon 4\n")
    vectors = tmp_path / "words.vec"
    words = ["cat", "dog", "car", "bus", "sun", "moon"]
    vectors.write_text("".join(f"{word} {n} {n * n}\n" for n, word in enumerate(words)))
    code, said = run("measure", vectors, "--on", pairs)
    assert (code, f"{pairs}:1: " in said) == (65, True)
