"""A finished run is what its run.json says, wherever it is read."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.test_encoder import save_tiny_bert
from vgtools.io import trust
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import dumps, sha256_file
from vgtools.io.written import END, seal
from vgtools.models import runs, sealed
from vgtools.models.backbone import load_backbone
from vgtools.models.encoder import load_encoder, load_masked_lm, load_with_head
from vgtools.models.references import fingerprint, load_tokenizer, read_weights, resolve
from vgtools.systems.vokenization.matcher import load_matcher

READERS: dict[str, Callable[[str], object]] = {
    "vokenize": load_encoder,
    "pretrain": load_masked_lm,
    "finetune": lambda ref: load_with_head(ref, "SequenceClassification", 0, {}),
    "compare": read_weights,
    "revokenize": load_tokenizer,
}


def save_run(folder: Path, **info: Any) -> Path:
    """Write a run with an encoder, metrics and weights of its own."""
    encoder = load_encoder(str(save_tiny_bert(folder / "bert")))
    run = folder / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"step":1}\n')
    runs.save_run(run, "matcher", {"w": torch.ones(2)}, info, encoder)
    return run


def test_names_that_are_not_utf8_are_written_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = os.fsdecode(b"caf\xe9.jsonl")
    monkeypatch.setattr(sys, "argv", ["vg", name])
    info = sealed.read_run(save_run(tmp_path, inputs=[{"path": name}]))
    assert info["argv"][1] == info["inputs"][0]["path"] == "caf\\udce9.jsonl"


def flip(file: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def reseal(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a run.json and seal it again, as someone who knows how can."""
    body = json.loads((run / "run.json").read_text())
    del body["sha256"]
    change(body)
    (run / "run.json").write_bytes(dumps(body | {"sha256": seal(body, END)}))


def test_run_json_names_every_file_of_the_run(tmp_path: Path) -> None:
    run = save_run(tmp_path)
    written = {p.relative_to(run).as_posix() for p in run.rglob("*") if p.is_file()}
    info = sealed.read_run(run)
    assert info["files"].keys() == written - {"run.json"}
    assert {
        "encoder/model.safetensors",
        "encoder/tokenizer.json",
        "encoder/config.json",
        "matcher.safetensors",
        "metrics.jsonl",
    } < info["files"].keys()
    sealed.check_files(run, info)


def test_an_edited_backbone_of_a_run_is_refused(tmp_path: Path) -> None:
    run = save_run(tmp_path)
    shutil.copytree(run / "encoder", run / "backbone")
    name = "backbone/model.safetensors"
    facts = {"sha256": sha256_file(run / name)}
    reseal(run, lambda body: body["files"].update({name: facts}))
    assert resolve(str(run / "backbone"), ["*"]) == run / "backbone"
    flip(run / name)
    for read in (lambda ref: resolve(ref, ["*"]), load_backbone):
        with pytest.raises(DataError, match=rf"{name}: is damaged or from another run"):
            read(str(run / "backbone"))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("place", ["", "encoder"])
@pytest.mark.parametrize("kept", [True, False])
def test_a_run_of_a_newer_format_is_refused_by_every_reader(
    tmp_path: Path, reader: str, place: str, kept: bool
) -> None:
    run = save_run(tmp_path)
    body = json.loads((run / "run.json").read_text()) if kept else {}
    (run / "run.json").write_bytes(dumps(body | {"format": 9}))
    with pytest.raises(DataError, match="format 9 was written by vg") as caught:
        READERS[reader](str(run / place))
    assert caught.value.code == Exit.DATA


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
@pytest.mark.parametrize("place", ["", "encoder"])
def test_a_damaged_file_of_a_run_is_refused_by_every_reader(
    tmp_path: Path, reader: str, name: str, place: str
) -> None:
    run = save_run(tmp_path)
    before = sha256_file(run / "encoder" / name)
    READERS[reader](str(run / place))
    file = run / "encoder" / name
    flip(file)
    os.utime(file, ns=(0, 0))
    with pytest.raises(DataError) as caught:
        READERS[reader](str(run / place))
    after = sha256_file(file)
    assert str(caught.value).startswith(
        f"{file}: is damaged or from another run: sha256 {after}, the run states {before}"
    )
    assert "--restart" in str(caught.value)
    assert caught.value.code == Exit.DATA
    file.unlink()
    with pytest.raises(DataError, match=f"{name}: is missing") as caught:
        READERS[reader](str(run / place))
    assert caught.value.code == Exit.NO_INPUT


def test_predictions_of_a_run_are_those_it_wrote(tmp_path: Path) -> None:
    file = tmp_path / "seed-1" / "predictions.jsonl"
    file.parent.mkdir()
    file.write_text('{"id":"1"}\n')
    sealed.check_predictions(file)  # of no run
    runs.save_run(tmp_path, "toy", {}, {}, files={"seed-1/predictions.jsonl": sha256_file(file)})
    sealed.check_predictions(file)
    sealed.check_predictions("-")
    file.write_text('{"id":"2"}\nmore')
    with pytest.raises(DataError, match="is damaged or from another run: sha256"):
        sealed.check_predictions(file)


def test_a_run_without_hashes_is_checked_by_its_fingerprint(tmp_path: Path) -> None:
    run = save_run(tmp_path)

    def old(body: dict[str, Any]) -> None:
        body["files"] = {"matcher.safetensors": body["files"]["matcher.safetensors"]}

    reseal(run, old)
    loaders = [READERS[name] for name in ("vokenize", "pretrain", "finetune")]
    for load in loaders:
        load(str(run))
    assert runs.open_run(run, "matcher").weights["w"].tolist() == [1, 1]
    flip(run / "encoder" / "model.safetensors")
    for load in loaders:
        with pytest.raises(DataError, match="its weights have the fingerprint") as caught:
            load(str(run))
        assert caught.value.code == Exit.DATA


def test_a_file_is_hashed_once_per_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = save_run(tmp_path)
    hashed: list[str] = []
    real: Any = hashlib.file_digest

    def noted(stream: Any, name: str) -> Any:
        hashed.append(stream.name)
        return real(stream, name)

    monkeypatch.setattr(hashlib, "file_digest", noted)
    monkeypatch.setattr(trust, "_AT_REST", 0)  # as if the run were two seconds old
    for _ in range(2):
        load_encoder(str(run))
    assert len(hashed) == len(set(hashed)) == len(list((run / "encoder").iterdir()))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("files", 5),
        ("files", None),
        ("files", {"../x": {"sha256": "0"}}),
        ("files", {"/etc/passwd": {"sha256": "0"}}),
        ("files", {"x": 5}),
        ("files", {"x": {"sha256": 5}}),
        ("fingerprint", 5),
        ("encoder", 5),
        ("config", []),
        ("kind", ["matcher"]),
        ("inputs", [{"path": 5}]),
        ("metrics", 5),
        ("task", 5),
        ("seeds", {"1": None}),
        ("seeds", {"1": {"accuracy": "high"}}),
        ("data", {"dev": 5}),
        ("data", {"dev": {"file": 5}}),
        ("predictions", {"seed-1/predictions.jsonl": 5}),
    ],
)
def test_values_of_other_types_are_refused_by_file_and_key(
    tmp_path: Path, key: str, value: Any
) -> None:
    run = save_run(tmp_path)
    reseal(run, lambda body: body.update({key: value}))
    with pytest.raises(DataError, match=f'run.json: "{key}[^"]*": ') as caught:
        sealed.read_run(run)
    assert caught.value.code == Exit.DATA


def test_a_pipe_for_a_run_json_is_refused_and_not_taken_for_none(tmp_path: Path) -> None:
    """Without it the weights of the folder would be read without a look at their seal."""
    run = save_run(tmp_path)
    (run / "run.json").unlink()
    os.mkfifo(run / "run.json")
    for read in (sealed.read_run, *READERS.values()):
        with pytest.raises(DataError, match=r"run.json: is a pipe or a device") as caught:
            read(str(run))
        assert caught.value.code == Exit.DATA


@pytest.mark.parametrize(
    "matcher",
    [
        {},
        5,
        None,
        {"text_width": 8, "image_width": 5, "dim": 4},
        {"text_width": "8", "image_width": 5},
        {"text_width": -8, "image_width": 5},
        {"text_width": True, "image_width": 5},
    ],
)
def test_a_matcher_of_other_settings_is_refused(tmp_path: Path, matcher: Any) -> None:
    run = save_run(tmp_path, matcher=matcher)
    with pytest.raises(DataError, match=r'run\.json: "matcher": ') as caught:
        load_matcher(run)
    assert caught.value.code == Exit.DATA


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_files_of_an_encoder_have_the_permissions_of_the_umask(
    tmp_path: Path, mask: int, mode: int
) -> None:
    before = os.umask(mask)
    try:
        run = save_run(tmp_path)
    finally:
        os.umask(before)
    files = [path for path in run.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {mode}


def test_everything_is_on_the_disk_before_a_run_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def noted(handle: int) -> None:
        real(handle)
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))

    monkeypatch.setattr(os, "fsync", noted)
    run = save_run(tmp_path)
    names = (Path(name).name.removesuffix(".vg.tmp").removeprefix(".") for name in synced)
    order = {name: at for at, name in enumerate(names)}
    for name in ("model.safetensors", "config.json", "tokenizer.json", "encoder"):
        assert order[name] < order["run.json"], name
    assert str(run) in synced


def test_a_second_network_is_part_of_the_run(tmp_path: Path) -> None:
    """Its files are named and checked, and the run's fingerprint covers it."""
    first = load_encoder(str(save_tiny_bert(tmp_path / "bert")))
    torch.manual_seed(7)
    other = load_encoder(str(tmp_path / "bert"))
    for parameter in other.model.parameters():
        parameter.add_(torch.randn_like(parameter))
    other = dataclasses.replace(other, fingerprint=fingerprint(other.model))
    found = {}
    for name, teacher in (("a", first), ("b", other)):
        runs.save_run(tmp_path / name, "x", {}, {}, first, more={"teacher": teacher})
        info = sealed.read_run(tmp_path / name)
        assert info["teacher"]["fingerprint"] == teacher.fingerprint
        assert "teacher/model.safetensors" in info["files"]
        found[name] = info["fingerprint"]
    runs.save_run(tmp_path / "c", "x", {}, {}, first)
    found["c"] = sealed.read_run(tmp_path / "c")["fingerprint"]
    assert len(set(found.values())) == 3
    assert sealed.run_of(tmp_path / "a" / "teacher") == (tmp_path / "a", "teacher/")
    flip(tmp_path / "a" / "teacher" / "model.safetensors")
    with pytest.raises(DataError, match="is damaged or from another run"):
        load_encoder(str(tmp_path / "a" / "teacher"))
    load_encoder(str(tmp_path / "a"))
