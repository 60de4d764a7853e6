"""Every kind of index answers with the bytes of its commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.client import Server
from tests.tiny import grounding, save_grids, save_run_of, text
from tests.tiny.dual import save_dual
from tests.tiny.images import save_backbone, save_photo
from tests.tiny.located import save_queries
from tests.tiny.retriever import save_retriever
from vgtools.cli import run
from vgtools.io.artifact import open_features
from vgtools.io.errors import DataError, Exit
from vgtools.io.streams import Window
from vgtools.serving.answers import Opened, ServedModels, open_answers
from vgtools.systems.grounding.keys import caption_keys

CPU = ["--device", "cpu", "-q"]
LINES = text(20, seed=5)


def vg(*args: Any) -> None:
    assert run([*map(str, args), *CPU]) == 0


def opened(index: Path, **more: Any) -> Opened:
    named = {key: str(one) for key, one in more.items()}
    return open_answers(ServedModels([str(index)], **named))


def asked(
    found: Opened, name: str, lines: list[str], jsonl: bool = False, **settings: Any
) -> bytes:
    answer = found.answers[name]
    items = answer.read(Window("request", 1, [*lines], "", jsonl=jsonl))
    values = tuple(settings.get(key, one.default) for key, one in answer.settings.items())
    return b"".join(answer.compute(items, values))


def written(folder: Path, name: str, *args: Any) -> bytes:
    vg(name, *args, "--restart", "-o", folder / "out.jsonl")
    return (folder / "out.jsonl").read_bytes()


def check_page(*args: str | Path) -> None:
    """Start a server, whose page has no weight of the sentence to set."""
    running = Server("--index", *args)
    try:
        page = running.ask("/")
        assert page.status == 200
        assert b'<textarea id="text"' in page.body
        assert b'id="context"' not in page.body
        found = running.ask("/api/retrieve", {"text": "a red puppy"})
        assert found.status == 200, found.body
    finally:
        assert running.stop() == (0, b"")


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    file = tmp_path / "t.txt"
    file.write_text("".join(f"{line}\n" for line in LINES))
    return file


def test_the_weight_of_the_sentence_is_that_of_the_command(
    tiny: Path, tmp_path: Path, lines: Path
) -> None:
    save_run_of(tmp_path / "run", tiny / "encoder", sentence=True)
    index = tmp_path / "vg.faiss"
    vg("build-index", tiny / "feats.npy", "-m", tmp_path / "run", "-o", index, "--context", "0.5")
    found = opened(index)
    assert (found.facts["context"], found.facts["sentence"]) == (0.5, True)
    both = set[bytes]()
    for weight in (None, 0.0, 0.25, 2.0):
        flags = [] if weight is None else ["--context", weight]
        expected = written(tmp_path, "vokenize", lines, "--index", index, "-k", 3, *flags)
        assert asked(found, "vokenize", LINES, k=3, context=weight) == expected
        both.add(expected)
    assert len(both) == 4
    expected = written(tmp_path, "retrieve", lines, "--index", index)
    assert asked(found, "retrieve", LINES) == expected


def test_a_dual_encoder_answers_at_every_weight(tmp_path: Path) -> None:
    save_dual(tmp_path / "model", "clip")
    for number in range(12):
        save_photo(tmp_path / "photos" / f"{number:02}.png", number)
    feats, index = tmp_path / "f.npy", tmp_path / "vg.faiss"
    vg("extract-image-feats", tmp_path / "photos", "-b", tmp_path / "model", "-o", feats)
    vg("build-index", feats, "-m", tmp_path / "model", "-o", index)
    file = tmp_path / "t.txt"
    file.write_text("a red dog\n\na cat\n")
    found = opened(index, backbone=tmp_path / "model")
    for weight in (None, 0.0, 1.5):
        flags = [] if weight is None else ["--context", weight]
        expected = written(tmp_path, "vokenize", file, "--index", index, *flags)
        assert asked(found, "vokenize", ["a red dog", "", "a cat"], context=weight) == expected
    expected = written(tmp_path, "retrieve", file, "--index", index)
    assert asked(found, "retrieve", ["a red dog", "", "a cat"]) == expected
    data = (tmp_path / "photos" / "07.png").read_bytes()
    near = json.loads(asked(found, "neighbours", [data], k=3))  # type: ignore[list-item]
    assert near["images"][0] == 7
    assert near["scores"][0] == pytest.approx(1, abs=1e-4)
    with pytest.raises(DataError, match=r"request: (not an image|cannot)"):
        asked(found, "neighbours", [b"x" * 99])  # type: ignore[list-item]


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_a_new_picture_is_pooled_as_the_bank_was(tiny: Path, tmp_path: Path, pooling: str) -> None:
    save_backbone(tmp_path / "net")
    for number in range(12):
        save_photo(tmp_path / "photos" / f"{number:02}.png", number)
    feats, index, run_of = (tmp_path / name for name in ("f.npy", "vg.faiss", "run"))
    how = ("-b", tmp_path / "net", "--pooling", pooling)
    vg("extract-image-feats", tmp_path / "photos", *how, "-o", feats)
    made = open_features(str(feats))
    assert made.made_by is not None
    save_run_of(run_of, tiny / "encoder", image_width=made.array.shape[1], backbone=made.made_by)
    vg("build-index", feats, "-m", run_of, "-o", index)
    found = opened(index, backbone=tmp_path / "net")
    for number in (3, 7):
        data = (tmp_path / "photos" / f"{number:02}.png").read_bytes()
        near = json.loads(asked(found, "neighbours", [data], k=1))  # type: ignore[list-item]
        assert near["images"] == [number]
        assert near["scores"] == [pytest.approx(1, abs=1e-4)]


def test_a_retriever_answers_with_pictures_and_heat(
    tiny: Path, tmp_path: Path, lines: Path
) -> None:
    save_retriever(tmp_path / "run", tiny / "encoder")
    grid = save_grids(tmp_path / "grid.npy")
    index = tmp_path / "vg.faiss"
    vg("build-index", grid, "-m", tmp_path / "run", "-o", index)
    found = opened(index, feats=grid)
    assert list(found.answers) == ["retrieve", "locate"]
    assert asked(found, "retrieve", LINES, k=5) == written(
        tmp_path, "retrieve", lines, "--index", index, "-k", 5
    )
    save_queries(tmp_path / "q.jsonl")
    queries = (tmp_path / "q.jsonl").read_text().splitlines()
    how = ("--matcher", tmp_path / "run", "--feats", grid)
    expected = written(tmp_path, "locate", tmp_path / "q.jsonl", *how)
    assert asked(found, "locate", queries, jsonl=True) == expected
    check_page(index, "--feats", grid)
    other = save_grids(tmp_path / "other.npy", ids=[f"photo{i}" for i in range(60)])
    with pytest.raises(DataError, match=r"has no picture of .*vg\.faiss") as refused:
        opened(index, feats=other)
    assert refused.value.code == Exit.DATA


def test_an_index_of_captions_finds_scenes(tmp_path: Path) -> None:
    words = grounding.save_vectors(tmp_path / "words.npy")
    texts = ["a dog chases a cat", "the red car", "two puppy fish", "a truck"]
    bank = caption_keys(grounding.rows(*texts), grounding.vectors(), grounding.STOP)
    index = grounding.save_index(tmp_path / "scene.faiss", bank, "captions", words)
    found = opened(index)
    assert list(found.answers) == ["retrieve"]
    rows = asked(found, "retrieve", ["a puppy", "the"], k=2).splitlines()
    assert [json.loads(row)["images"] for row in rows] == [[2, 0], []]
    check_page(index)
    with pytest.raises(DataError, match=r"--feats: .* has keys of kind captions") as refused:
        opened(index, feats="grid.npy")
    assert refused.value.code == Exit.USAGE


def test_files_of_other_networks_are_refused(tiny: Path, tmp_path: Path) -> None:
    index = tiny / "vg.faiss"
    other = save_grids(tmp_path / "o.npy", backbone={"ref": "other", "fingerprint": "c" * 64})
    with pytest.raises(DataError, match="was made with the backbone other"):
        opened(index, feats=other)
    wide = save_grids(tmp_path / "w.npy", array=np.zeros((60, 4, 5)) + 1)
    with pytest.raises(DataError, match="expected feature maps"):
        opened(index, feats=wide)
    save_dual(tmp_path / "model", "clip")
    with pytest.raises(DataError, match="was made with the backbone tiny"):
        opened(index, backbone=tmp_path / "model")
