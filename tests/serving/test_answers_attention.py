"""Attention of a VisualBERT: the rows of the command's examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.client import Server
from tests.serving.test_answers_kinds import asked, opened, vg
from tests.tiny import grounding, probe, visual
from vgtools.io.errors import DataError, Exit
from vgtools.systems.grounding.keys import caption_keys


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an index that has no matcher, captions, regions and a VisualBERT."""
    folder = tmp_path_factory.mktemp("probed")
    words = grounding.save_vectors(folder / "words.npy")
    bank = caption_keys(grounding.rows("a dog"), grounding.vectors(), grounding.STOP)
    grounding.save_index(folder / "scene.faiss", bank, "captions", words)
    sets = probe.region_sets(3)
    probe.save_regions(folder / "r.npy", sets)
    probe.save_rows(folder / "phrases.jsonl", probe.caption_rows(sets, 9))
    probe.save_visualbert(folder / "vb")
    return folder


def rows_of(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


def test_words_attend_as_the_examples_of_the_command_say(probed: Path, tmp_path: Path) -> None:
    given = ("--encoder", probed / "vb", "--regions", probed / "r.npy")
    of_split = [row | {"split": "val"} for row in rows_of((probed / "phrases.jsonl").read_bytes())]
    probe.save_rows(phrases := tmp_path / "phrases.jsonl", of_split)
    vg("probe-attention", phrases, *given, "--samples", 20, "-o", tmp_path / "out")
    expected = (tmp_path / "out" / "examples.jsonl").read_bytes()
    rows = rows_of(expected)
    texts = list(dict.fromkeys((row["text"], row["image"]) for row in rows))
    assert len({image for _, image in texts}) == 3
    found = opened(probed / "scene.faiss", regions=probed / "r.npy", encoder=probed / "vb")
    assert list(found.answers) == ["retrieve", "attention"]
    assert found.facts["attention"]["images"] == 3
    assert {row["split"] for row in rows} == {"val"}  # not to be learned from
    own = {"split": "val"}
    lines = [json.dumps({"text": text, "image": image, **own}) for text, image in texts]
    assert asked(found, "attention", lines, jsonl=True) == expected
    # in another order, and word by word
    keys = ("text", "image", "span", "split")
    lines = [json.dumps({key: row[key] for key in keys}) for row in rows]
    backwards = asked(found, "attention", lines[::-1], jsonl=True)
    assert b"".join(backwards.splitlines(keepends=True)[::-1]) == expected
    for row in rows:
        weights = np.array(row["attention"])
        assert weights.shape == (3, 2, len(row["boxes"]))
        assert 0 < weights.sum(-1).max() < 1  # the text has the rest


def test_phrases_ask_with_their_last_word(probed: Path) -> None:
    found = opened(probed / "scene.faiss", regions=probed / "r.npy", encoder=probed / "vb")
    row = {"text": "bam dis fan", "image": "photo1.jpg"}
    whole = rows_of(asked(found, "attention", [json.dumps(row)], jsonl=True))
    spans = [{"start": 0, "end": 7}, {"start": 8, "end": 11}]
    phrases = rows_of(asked(found, "attention", [json.dumps(row | {"phrases": spans})], jsonl=True))
    assert [one["span"] for one in phrases] == [[0, 7], [8, 11]]
    assert phrases[0]["attention"] == whole[1]["attention"]
    assert phrases[1] == whole[2]
    space = json.dumps(row | {"span": [3, 4]})
    assert rows_of(asked(found, "attention", [space], jsonl=True))[0]["attention"] is None
    for text in ("", "  "):
        assert asked(found, "attention", [json.dumps(row | {"text": text})], jsonl=True) == b""


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"text": "a", "image": "?"}, "holds no regions of the image '?'"),
        ({"text": "a"}, 'the key "image" is missing'),
        ({"text": "a", "image": "photo1.jpg", "span": [0, 2]}, "has the span 0 to 2, the text has"),
        ({"text": "a " * 63, "image": "photo1.jpg"}, "has 63 tokens, the model takes 62"),
    ],
)
def test_rows_that_cannot_be_asked_are_named(probed: Path, row: dict[str, Any], why: str) -> None:
    found = opened(probed / "scene.faiss", regions=probed / "r.npy", encoder=probed / "vb")
    lines = ['{"text": "a", "image": "photo0.jpg"}', json.dumps(row)]
    with pytest.raises(DataError, match=r"request:2: ") as refused:
        asked(found, "attention", lines, jsonl=True)
    assert why in str(refused.value)


def test_models_and_regions_that_do_not_go_together_are_refused(
    probed: Path, tmp_path: Path
) -> None:
    index = probed / "scene.faiss"
    for given, other in (("regions", "encoder"), ("encoder", "regions")):
        with pytest.raises(DataError, match=f"--{given}: give --{other} as well") as refused:
            opened(index, **{given: probed / "vb"})
        assert refused.value.code == Exit.USAGE
    narrow = visual.save_regions(tmp_path / "n.npy")
    with pytest.raises(DataError, match="has 6 channels per region, the model takes 12"):
        opened(index, regions=narrow, encoder=probed / "vb")
    (text,) = probed.glob("vb-text")
    with pytest.raises(DataError, match="the model takes no regions: it is a text encoder"):
        opened(index, regions=probed / "r.npy", encoder=text)


# --------------------------------------------------------------------------------------------- HTTP


def test_the_api_answers_with_a_row_per_word(server: Server) -> None:
    facts = json.loads(server.ask("/api/index").body)["attention"]
    assert (facts["layers"], facts["heads"], facts["images"]) == (3, 2, 6)
    row = {"text": "bam dis", "image": "image001"}
    both = json.loads(server.ask("/api/attention", row).body)
    assert [one["span"] for one in both] == [[0, 3], [4, 7]]
    one = json.loads(server.ask("/api/attention", row | {"span": [4, 7]}).body)
    assert one == both[1]
    lines = "".join(json.dumps(row) + "\n" for _ in range(3)).encode()
    streamed = server.ask("/api/attention", lines, "application/x-ndjson")
    assert rows_of(streamed.body) == both * 3
    described = json.loads(server.ask("/openapi.json").body)["paths"]
    assert "vg probe-attention" in described["/api/attention"]["post"]["summary"]
    content = described["/api/attention"]["post"]["requestBody"]["content"]
    assert set(content) == {"application/json", "application/x-ndjson"}  # text alone has no image
    item, _ = content["application/json"]["schema"]["oneOf"]
    assert item["required"] == ["text", "image"]
    parameters = described["/api/regions"]["get"]["parameters"]
    assert [one["name"] for one in parameters] == ["find", "first", "row", "image"]
    docs = server.ask("/docs").body.decode()
    assert "/api/regions/{row}" in docs
    assert docs.count('{"text": "a dog", "image": "ID"}') == 2


def test_many_words_of_one_request_are_refused(server: Server) -> None:
    row = {"text": "a " * 60, "image": "image001"}
    found = server.ask("/api/attention", [row] * 1100)
    assert found.status == 413
    assert "asks for over 65,536 rows" in found.error
