"""Answers in Python: the numbers and the errors of the commands, as a stream."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

import vgtools as vg
from tests.tiny import grounding, save_grids, save_run_of, text
from tests.tiny.located import save_queries
from tests.tiny.retriever import save_retriever
from vgtools.cli import run
from vgtools.systems.grounding.keys import caption_keys

LINES = text(150, seed=3)
CPU = ["--device", "cpu", "-q"]


def written(folder: Path, *args: Any) -> bytes:
    """Return the bytes that a command writes."""
    output = folder / "written.jsonl"
    assert run([*map(str, args), "-o", str(output), "--restart", *CPU]) == 0
    return output.read_bytes()


def as_bytes(rows: Any) -> bytes:
    return b"".join(orjson.dumps(row.to_dict()) + b"\n" for row in rows)


@pytest.fixture(scope="module")
def bank(tiny: Path) -> vg.ImageBank:
    return vg.open_index(tiny / "vg.faiss", device="cpu")


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    file = tmp_path / "t.txt"
    file.write_text("".join(f"{line}\n" for line in LINES))
    return file


@pytest.mark.parametrize(
    ("settings", "flags"),
    [({}, []), ({"k": 5, "min_score": 0.2}, ["-k", 5, "--min-score", 0.2])],
)
def test_vokens_are_those_of_the_command_bit_for_bit(
    tiny: Path, tmp_path: Path, bank: vg.ImageBank, lines: Path, settings: Any, flags: Any
) -> None:
    expected = written(tmp_path, "vokenize", lines, "--index", tiny / "vg.faiss", *flags)
    rows = vg.vokenize(LINES, bank, **settings)
    assert as_bytes(rows) == expected
    assert as_bytes(rows) == expected, "a list is read again"
    assert as_bytes(vg.vokenize(iter(LINES), bank, **settings)) == expected
    with lines.open(newline="") as file:
        assert as_bytes(vg.vokenize(file, bank, **settings)) == expected
    first = json.loads(expected.splitlines()[0])
    row = next(iter(rows))
    assert (row.text, row.line) == (LINES[0], 1)
    assert row.vokens.tolist() == first["vokens"]
    assert row.scores.tolist() == first["scores"]
    assert row.spans.tolist() == first["spans"]
    assert row.tokens == [LINES[0][a:b] for a, b in first["spans"]]
    k = settings.get("k", 1)
    assert row.vokens.shape == ((len(row.tokens),) if k == 1 else (len(row.tokens), k))
    named = row.images if k == 1 else row.images[0]
    numbers = first["vokens"] if k == 1 else first["vokens"][0]
    assert named == [None if n < 0 else f"image{n:03}" for n in numbers]


def test_the_weight_of_the_sentence_is_that_of_the_command(
    tiny: Path, tmp_path: Path, lines: Path
) -> None:
    save_run_of(tmp_path / "run", tiny / "encoder", sentence=True)
    index = tmp_path / "vg.faiss"
    args = ["build-index", tiny / "feats.npy", "-m", tmp_path / "run", "-o", index]
    assert run([*map(str, args), *CPU]) == 0
    expected = written(tmp_path, "vokenize", lines, "--index", index, "--context", 0.25)
    assert expected != written(tmp_path, "vokenize", lines, "--index", index)
    found = vg.vokenize(LINES, vg.open_index(index, device="cpu"), context=0.25)
    assert as_bytes(found) == expected


def test_images_of_texts_are_those_of_the_command(
    tiny: Path, tmp_path: Path, bank: vg.ImageBank, lines: Path
) -> None:
    index = tiny / "vg.faiss"
    assert as_bytes(vg.retrieve(LINES, bank)) == written(
        tmp_path, "retrieve", lines, "--index", index
    )
    rows = [{"text": line, "image": f"image{i % 60:03}", "id": i} for i, line in enumerate(LINES)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = written(tmp_path, "retrieve", file, "--index", index, "-k", 7, "--not-own")
    assert as_bytes(vg.retrieve(rows, bank, k=7, not_own=True)) == expected
    (row,) = vg.retrieve(LINES[0], bank, k=3)
    assert row.images == [f"image{n:03}" for n in row.rows]
    assert row.scores.shape == (3,)


def test_an_index_of_captions_answers_texts_alone(tmp_path: Path, lines: Path) -> None:
    words = grounding.save_vectors(tmp_path / "words.npy")
    texts = ["a dog chases a cat", "the red car", "two puppy fish", "a truck"]
    keys = caption_keys(grounding.rows(*texts), grounding.vectors(), grounding.STOP)
    index = grounding.save_index(tmp_path / "scene.faiss", keys, "captions", words)
    lines.write_text("a puppy\nthe\n")
    found = vg.open_index(index, device="cpu")
    rows = vg.retrieve(["a puppy", "the"], found, k=2)
    assert as_bytes(rows) == written(tmp_path, "retrieve", lines, "--index", index, "-k", 2)
    assert [row.rows.tolist() for row in rows] == [[2, 0], []]
    with pytest.raises(vg.DataError, match=r"which vg\.vokenize cannot use; it answers retrieve"):
        vg.vokenize(LINES, found)


def test_heat_is_that_of_the_command(tiny: Path, tmp_path: Path) -> None:
    grid = save_grids(tmp_path / "grid.npy")
    queries = save_queries(tmp_path / "q.jsonl")
    run_of = {"matcher": tiny / "run", "retriever": tmp_path / "retriever"}
    save_retriever(run_of["retriever"], tiny / "encoder")
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("matcher", {}),
        ("retriever", {}),
        ("retriever", {"heat": "relevance"}),
        ("retriever", {"dims": 3}),
    ]
    for kind, how in kinds:
        opened = vg.open_grid(grid, run_of[kind], device="cpu", **how)
        flags = [part for key, one in how.items() for part in (f"--{key}", one)]
        expected = written(
            *(tmp_path, "locate", tmp_path / "q.jsonl", "--feats", grid),
            *("--matcher", run_of[kind], *flags),
        )
        assert as_bytes(vg.locate(queries, opened)) == expected
    row = next(row for row in vg.locate(queries, opened) if row.point is not None)
    assert row.heat.shape == tuple(row.data["grid"])
    y, x = np.unravel_index(row.heat.argmax(), row.heat.shape)
    rows, columns = row.heat.shape
    assert row.point == pytest.approx(((x + 0.5) / columns, (y + 0.5) / rows), abs=1e-4)


def test_a_loop_over_a_generator_streams(bank: vg.ImageBank, monkeypatch: Any) -> None:
    monkeypatch.setattr("vgtools.api.banks._WINDOW", 64)
    taken = 0

    def texts() -> Iterator[str]:
        nonlocal taken
        for number in range(1000):
            taken += 1
            yield LINES[number % len(LINES)]

    rows = vg.vokenize(texts(), bank)
    assert taken == 0, "nothing is read before a row is asked for"
    alive = weakref.WeakSet[Any]()
    most = 0
    for number, row in enumerate(rows, 1):
        assert taken <= number + 64
        alive.add(row)
        most = max(most, len(alive))
        if number == 500:
            break
    assert most <= 2, "rows that the loop has seen are given back"
    rest = [row.line for row in rows]
    assert rest == [*range(501, 1001)], "a second loop goes on after the first"
    assert list(rows) == []


def test_the_first_rows_of_a_stream_are_not_lost(bank: vg.ImageBank) -> None:
    rows = vg.vokenize((line for line in LINES), bank)
    assert [row.line for row in rows.head(3)] == [1, 2, 3]
    assert rows._repr_html_().count("<p dir") == 8
    assert [row.text for row in rows] == LINES


def test_errors_are_those_of_the_command(
    tiny: Path, tmp_path: Path, lines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_run_of(tmp_path / "other", tiny / "encoder", seed=1)
    cases: list[tuple[list[Any], dict[str, Any]]] = [
        ([tmp_path / "no.faiss"], {}),
        ([tiny / "vg.faiss"], {"matcher": tmp_path / "other"}),
        ([tiny / "vg.faiss"], {"nprobe": 3}),
        ([tiny / "vg.faiss"], {"level": "sentence"}),
        ([tiny / "vg.faiss"], {"reading": "state"}),
    ]
    for (index,), how in cases:
        flags = [part for key, one in how.items() for part in (f"--{key}", str(one))]
        code = run(["vokenize", str(lines), "--index", str(index), *flags, *CPU])
        said = capsys.readouterr().err
        with pytest.raises(vg.DataError) as caught:
            vg.open_index(index, device="cpu", **how)
        assert (f"vg: {caught.value}\n", caught.value.code) == (said, code)


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["a", None], 'texts:2: "text" must be a string, got None'),
        (["a", b"b"], "texts:2: \"text\" must be a string, got b'b'"),
        (b"a", "texts:1: \"text\" must be a string, got b'a'"),
        (["a", "b\ud800"], "texts:2: has half of a pair of surrogates"),
        ([{"text": "\udfff"}], "texts:1: has half of a pair of surrogates"),
        ([{"txt": "a"}], "texts:1: the key \"text\" is missing; the row has 'txt'"),
        ([{"text": "a" * 1_000_001}], "texts:1: has a text of 1,000,001 characters"),
    ],
)
def test_a_bad_text_is_named_by_its_number(bank: vg.ImageBank, texts: Any, why: str) -> None:
    with pytest.raises(vg.DataError) as caught:
        list(vg.vokenize(texts, bank))
    assert str(caught.value).startswith(why)
    assert caught.value.code == 65


def test_a_wrong_setting_is_refused_at_once(bank: vg.ImageBank) -> None:
    for how, why in (
        ({"k": 0}, "\"k\" must be an integer from 1 to 1000, got '0'"),
        ({"k": 2.5}, "\"k\" must be an integer from 1 to 1000, got '2.5'"),
        ({"min_score": "high"}, "\"min_score\" must be a number, got 'high'"),
    ):
        with pytest.raises(vg.DataError) as caught:
            vg.vokenize(["a"], bank, **how)  # type: ignore[arg-type]
        assert (str(caught.value), caught.value.code) == (why, 2)


@pytest.mark.parametrize("ask", [vg.vokenize, vg.retrieve])
def test_the_name_of_an_index_has_to_be_opened_first(ask: Any) -> None:
    with pytest.raises(TypeError, match=r"that vg\.open_index opened, got 'bank\.faiss'"):
        ask("A dog.", "bank.faiss")


def test_an_encoder_is_the_one_of_the_reference(tiny: Path) -> None:
    found = vg.load_encoder(tiny / "encoder", device="cpu")
    assert (found.width, found.layers) == (16, 3)
    assert len(repr(found)) < 400, "it is printed at the end of a cell"
    assert found.tokenizer.encode("bam").tokens == ["[CLS]", "bam", "[SEP]"]
    with pytest.raises(vg.DataError, match="nothing"):
        vg.load_encoder("builtin:nothing")
