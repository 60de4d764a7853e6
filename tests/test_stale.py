"""What decides a result, and is in no file that the result names, is noticed when it changes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from tests.tiny import save_feats
from tests.tiny.lm import save_packed, save_shape, save_tokenizer
from vgtools.cli import run
from vgtools.io.errors import Exit
from vgtools.retrieval.index import open_index
from vgtools.systems.vokenization.vokenize import SearchWork, Vokenizer, open_matcher
from vgtools.text.parses import tagger_facts

CPU = ["--device", "cpu"]


def current(capsys: pytest.CaptureFixture[str], *args: object) -> bool:
    """Run a command; return whether it took its output for up to date."""
    capsys.readouterr()
    assert run([*map(str, args)]) == 0
    return "up to date" in capsys.readouterr().err


def test_vokens_of_another_calibration_are_others(tiny: Path) -> None:
    matcher = open_matcher(tiny / "run")
    bank = open_index(str(tiny / "vg.faiss"))

    def config(**stored: object) -> dict[str, object]:
        used = replace(matcher, info={**matcher.info, **stored})
        return SearchWork(Vokenizer(used, bank), ["vg.faiss"], 9, None, "float32").config

    first, second = (
        {"relevance": 6.0, "captions": 0.5, "bias": bias, "stems": {"bam": 3}}
        for bias in (1.0, 2.0)
    )
    found = [config(), config(calibration=first), config(calibration=second)]
    assert "calibration" not in found[0]
    assert len({str(each) for each in found}) == 3


def test_an_index_finds_its_matcher_where_it_was_moved(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tiny / "run", tmp_path / "one")
    build = ["build-index", tiny / "feats.npy", *CPU, "-o", tmp_path / "vg.faiss", "--matcher"]
    assert not current(capsys, *build, tmp_path / "one")
    assert current(capsys, *build, tmp_path / "one")
    (tmp_path / "one").rename(tmp_path / "two")
    assert not current(capsys, *build, tmp_path / "two")
    text = tmp_path / "t.txt"
    text.write_text("bam\n")
    assert run(["vokenize", str(text), "--index", str(tmp_path / "vg.faiss"), *CPU]) == 0


def test_clusters_name_the_encoder_where_it_was_moved(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tiny / "encoder", tmp_path / "one")
    text = tmp_path / "t.txt"
    text.write_text("bam dis\nlor bam\n" * 9)
    made = ["prepare", "clusters", text, "-k", 2, "--layers", 1, "--tokens", 20, *CPU]
    made += ["-o", tmp_path / "c.faiss", "-e"]
    assert not current(capsys, *made, tmp_path / "one")
    assert current(capsys, *made, tmp_path / "one")
    (tmp_path / "one").rename(tmp_path / "two")
    assert not current(capsys, *made, tmp_path / "two")
    assert run(["vokenize", str(text), "--index", str(tmp_path / "c.faiss"), *CPU]) == 0


def test_published_features_have_the_names_of_their_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write = ["prepare", "hdf5", save_feats(tmp_path / "feats.npy"), "-o", tmp_path / "set.hdf5"]
    assert not current(capsys, *write)
    assert current(capsys, *write)
    before = (tmp_path / "feats.npy").read_bytes()
    save_feats(tmp_path / "feats.npy", first=100)
    assert (tmp_path / "feats.npy").read_bytes() == before
    assert not current(capsys, *write)
    assert (tmp_path / "set.ids").read_text() == (tmp_path / "feats.ids").read_text()


def test_rows_of_packed_vokens_are_an_input_of_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_shape(Path("shape.json"))
    save_tokenizer(Path("tokenizer"))
    train = ["pretrain", "v.npy", "--shape", "shape.json", "-t", "tokenizer", "--block", "8"]
    train += ["--steps", "1", "--weight", "mlm=1", "--pack", "row", *CPU, "-q", "-o", "run"]
    tokens = [(token, -1) for token in range(6, 14)]
    packed = list[bytes]()
    for rows, code in (([tokens[:4], tokens[4:]] * 4, 0), ([tokens] * 4, Exit.CONFIG)):
        save_packed(Path("v.npy"), rows)
        packed.append(Path("v.npy").read_bytes())
        assert run(train) == code
    assert packed[0] == packed[1], "the rows alone differ"


def test_a_list_of_images_follows_the_folder_that_was_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one").mkdir()
    Image.new("RGB", (8, 6)).save("one/1_x.jpg")
    Path("tokens.txt").write_text("1_x.jpg#0\ta dog .\n")
    Path("Flickr_8k.trainImages.txt").write_text("1_x.jpg\n")
    write = ["prepare", "flickr8k", "tokens.txt", "--splits", ".", "--images-out", "i.jsonl"]
    write += ["-o", "c.jsonl", "--images"]
    assert run([*write, "one"]) == run([*write, "one"]) == 0
    Path("one").rename("two")
    assert run([*write, "two"]) == 0
    assert json.loads(Path("i.jsonl").read_text())["path"] == str(tmp_path / "two" / "1_x.jpg")


def test_a_tagger_in_a_folder_is_known_by_its_files(tmp_path: Path) -> None:
    assert tagger_facts("builtin:spacy-sm") == {}
    folder = tmp_path / "tagger"
    (folder / "tagger").mkdir(parents=True)
    (folder / "tagger" / "cfg").write_text("NN VBD")
    first = tagger_facts(str(folder))
    assert tagger_facts(str(folder)) == first
    (folder / "tagger" / "cfg").write_text("VBD NN")
    second = tagger_facts(str(folder))
    assert second != first
    (folder / "tagger").rename(tmp_path / "store")
    (folder / "tagger").symlink_to("../store")
    assert tagger_facts(str(folder)) == second
    (tmp_path / "store" / "cfg").write_text("NN NN")
    assert tagger_facts(str(folder)) != second
