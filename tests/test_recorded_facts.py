"""A fact that only a manifest or run.json has decides what is made of it: another is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.tiny import BACKBONE, save_encoder, save_feats, save_grids, save_run_of
from tests.tiny.dual import save_dual
from tests.tiny.images import save_photo
from tests.tiny.lm import save_rows, save_tokenizer
from tests.tiny.located import save_queries
from vgtools.cli import run
from vgtools.io.errors import Exit
from vgtools.io.files import write_manifest

CPU = ["--device", "cpu"]


def vg(*args: object) -> None:
    assert run([*map(str, args)]) == 0


class Output:
    """The output of a command that is called again: is it made again?"""

    def __init__(self, capfd: pytest.CaptureFixture[str], file: Path, *call: object) -> None:
        self._capfd = capfd
        self._file = file
        self._call = (*call, "-o", file)

    def make(self) -> tuple[bool, bytes]:
        """Call the command; return whether its output was up to date, and its bytes."""
        self._capfd.readouterr()
        vg(*self._call)
        return "up to date" in self._capfd.readouterr().err, self._file.read_bytes()

    def check_stays(self) -> bytes:
        """Make it, and find it up to date."""
        _, first = self.make()
        assert self.make() == (True, first)
        return first

    def check_changed(self, before: bytes) -> None:
        """Find it made again, and other bytes."""
        kept, now = self.make()
        assert not kept
        assert now != before


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    file = tmp_path / "t.txt"
    file.write_text("bam dis fan\nbet dis gis kur\n")
    return file


@pytest.mark.parametrize("command", ["retrieve", "vokenize"])
def test_the_weight_of_the_sentence_that_an_index_has(
    texts: Path, tmp_path: Path, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    save_run_of(tmp_path / "run", save_encoder(tmp_path / "encoder"), sentence=True)
    index = tmp_path / "vg.faiss"
    build = ["build-index", save_feats(tmp_path / "f.npy"), "-m", tmp_path / "run", "-o", index]
    vg(*build, "--context", 1, *CPU)
    vectors = index.read_bytes()
    out = Output(capfd, tmp_path / "r.jsonl", command, texts, "--index", index, "-k", 5, *CPU)
    before = out.check_stays()
    vg(*build, "--context", 0, *CPU)
    assert index.read_bytes() == vectors
    out.check_changed(before)


def test_the_weight_of_the_sentence_that_a_run_has(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Runs that differ in it alone have the same weights."""
    encoder = save_encoder(tmp_path / "encoder")
    grid = save_grids(tmp_path / "grid.npy")
    save_queries(tmp_path / "q.jsonl")
    how = ("--matcher", tmp_path / "run", "--feats", grid)
    out = Output(capfd, tmp_path / "h.jsonl", "locate", tmp_path / "q.jsonl", *how, *CPU)
    save_run_of(tmp_path / "run", encoder, sentence=True, context_weight=1.0)
    before = out.check_stays()
    save_run_of(tmp_path / "run", encoder, sentence=True, context_weight=0.0)
    out.check_changed(before)


def test_the_level_of_vokens_of_a_clip(
    texts: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    save_dual(tmp_path / "clip", "clip")
    for number in range(12):
        save_photo(tmp_path / "photos" / f"{number:02}.png", number)
    feats, index, file = tmp_path / "f.npy", tmp_path / "vg.faiss", tmp_path / "v.jsonl"
    vg("extract-image-feats", tmp_path / "photos", "-b", tmp_path / "clip", "-o", feats, *CPU)
    vg("build-index", feats, "-m", tmp_path / "clip", "-o", index, *CPU)
    call = ("vokenize", texts, "--index", index, *CPU)
    before = Output(capfd, file, *call, "--level", "token").check_stays()
    Output(capfd, file, *call, "--level", "sentence").check_changed(before)


def test_the_ids_of_the_features_of_a_control(
    tiny: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["bam", "dis", "fan", "bet", "gis"]
    rows = [{"image": f"image{i:03}", "text": words[i % 5]} for i in range(60)]
    captions = save_rows(tmp_path / "captions.jsonl", rows)
    text = tmp_path / "t.txt"
    text.write_text("bam den\n\nfis bam\n")
    feats = save_feats(tmp_path / "f.npy")
    array = feats.read_bytes()
    how = ("--control", "centroid", "--captions", captions, "--feats", feats)
    file = tmp_path / "v.jsonl"
    out = Output(capfd, file, "vokenize", text, "--index", tiny / "vg.faiss", *how, *CPU)
    before = out.check_stays()
    ids = feats.with_suffix(".ids")
    ids.write_text("".join(f"{name}\n" for name in ids.read_text().split()[::-1]))
    write_manifest(feats, [feats, ids], kind="image-features", backbone=BACKBONE)
    assert feats.read_bytes() == array
    out.check_changed(before)


def test_the_columns_of_a_task_of_one_s_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    encoder = save_encoder(tmp_path / "encoder", positions=64)
    data = tmp_path / "d.jsonl"
    rows = [{"a": f"bam {n}", "b": "dis", "label": "xy"[n % 2]} for n in range(8)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    fast = ("--epochs", 1, "--batch-size", 8, "--max-length", 40, *CPU, "--seeds", 1)
    for name, columns in (("one", "a"), ("two", "a,b")):
        call = ("finetune", "classify", data, "--dev", data, "--text", columns, "-e", encoder)
        vg(*call, *fast, "-o", tmp_path / name)
    file = tmp_path / "t.jsonl"
    before = Output(capfd, file, "prepare", "task", tmp_path / "one").check_stays()
    Output(capfd, file, "prepare", "task", tmp_path / "two").check_changed(before)


def test_the_tokenizer_and_level_of_published_vokens(
    tiny: Path, texts: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Written by vg, they are read with another tokenizer or as the other level by no flag."""
    packed, tokens, vokens = (tmp_path / name for name in ("v.npy", "c.t.hdf5", "c.vg.hdf5"))
    vg("vokenize", texts, "--index", tiny / "vg.faiss", *CPU, "-q", "-o", packed)
    ids = ("--ids", tiny / "vg.ids", "--tokens", tokens)
    vg("prepare", "hdf5", packed, *ids, "-o", vokens)
    save_tokenizer(tmp_path / "other")
    same = ("-t", tiny / "encoder", "-o", tmp_path / "w.npy")
    other = ("-t", tmp_path / "other", "-o", tmp_path / "u.npy")
    capfd.readouterr()
    for given in ((tokens, vokens), (tokens,)):
        assert run([*map(str, ("prepare", "vokens", *given, *other))]) == Exit.DATA
        assert "has tokens of the tokenizer" in capfd.readouterr().err
        vg("prepare", "vokens", *given, *same)
    call = ("prepare", "vokens", tokens, vokens, *same, "--level", "sentence", "--restart")
    assert run([*map(str, call)]) == Exit.DATA
    assert "has vokens of the level 'token', got --level sentence" in capfd.readouterr().err
    sentences = tokens.with_suffix(".sent")
    sentences.write_text("0\n1\n" + sentences.read_text().split("\n", 2)[2])
    assert run([*map(str, ("prepare", "vokens", tokens, *same))]) == Exit.DATA
    assert "other tokens" in capfd.readouterr().err


def test_the_pooler_of_an_encoder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The fingerprint of an encoder leaves it out, and the head of a classifier reads it."""
    encoder = save_encoder(tmp_path / "encoder", positions=64)
    data = tmp_path / "d.jsonl"
    rows = [{"a": f"bam {n}", "label": "xy"[n % 2]} for n in range(8)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    call = ["finetune", "classify", data, "--dev", data, "--text", "a", "-e", encoder, *CPU]
    call += ["--epochs", 1, "--batch-size", 8, "--max-length", 40, "--seeds", 1]
    call += ["-o", tmp_path / "run"]
    vg(*call)
    vg(*call)
    weights = encoder / "model.safetensors"
    tensors = load_file(weights)
    assert any("pooler" in name for name in tensors)
    tensors = {name: -2 * part if "pooler" in name else part for name, part in tensors.items()}
    save_file(tensors, weights, metadata={"format": "pt"})
    capfd.readouterr()
    assert run([*map(str, call)]) == Exit.CONFIG
    assert "pooler was" in capfd.readouterr().err
