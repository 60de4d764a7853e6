"""Packed inputs and blocks: no token lost, misaligned rows refused by line, masks reproducible."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny.lm import make_tokenizer, save_packed, save_rows, sentences, voken_rows
from vgtools.io.errors import DataError
from vgtools.io.files import write_manifest
from vgtools.text.blocks import (
    Corpus,
    Packed,
    best_fit,
    check_range,
    has_vokens,
    open_packed,
    pack,
    with_labels,
)
from vgtools.text.masking import mask_tokens
from vgtools.text.tokens import tokenize


def packed(lengths: list[int], first: int = 0) -> Packed:
    """Return rows of these lengths; tokens count up from `first`, vokens are their negatives."""
    ids = np.arange(first, first + sum(lengths))
    return Packed("file", np.column_stack([ids, -ids]), np.cumsum(lengths, dtype=np.int64))


def test_stream_cuts_everything_into_full_blocks() -> None:
    corpus = Corpus([packed([2, 0, 3]), packed([4], first=5)], 4)
    blocks = [corpus.block(i) for i in range(len(corpus))]
    assert [tokens[:, 0].tolist() for tokens, _ in blocks] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    assert [heads.tolist() for _, heads in blocks] == [
        [True, False, True, False],
        [False, True, False, False],
        [False],
    ]
    assert (blocks[1][0][:, 1].tolist(), corpus.tokens) == ([-4, -5, -6, -7], 9)


def test_labels_of_other_files_are_a_third_column() -> None:
    files = [packed([2, 0, 3]), packed([4, 1], first=5)]
    numbers = np.arange(10)
    pairs = np.column_stack([numbers, 100 + numbers])
    # The other file is in shards, which end elsewhere.
    parts = [
        Packed("also", pairs[:2], np.array([2, 2])),
        Packed("also", pairs[2:], np.array([3, 7, 8]), before=2),
    ]
    for others in (parts, [Packed("also", pairs, np.array([2, 2, 5, 9, 10]))]):
        for size in (3, 4):
            corpus = Corpus(with_labels(files, others), size)
            plain = Corpus(files, size)
            for i in range(len(corpus)):
                tokens, heads = corpus.block(i)
                assert tokens[:, :2].tolist() == plain.block(i)[0].tolist()
                assert (tokens[:, 2] == 100 + tokens[:, 0]).all()
                assert (heads == plain.block(i)[1]).all()
    for wrong, why in (
        (Packed("also", pairs[:9], np.array([9])), "has 9 tokens, expected the tokens of file"),
        (Packed("also", pairs[::-1], np.array([2, 2, 5, 9, 10])), "another token than line 1"),
        (Packed("also", pairs, np.array([2, 5, 9, 10])), "its rows end elsewhere"),
    ):
        with pytest.raises(DataError, match=why):
            with_labels(files, [wrong])


def test_document_blocks_cross_no_empty_row_and_no_file() -> None:
    corpus = Corpus([packed([2, 3, 0, 0, 1, 5]), packed([4], first=11)], 4, "document")
    found = [corpus.block(i)[0][:, 0].tolist() for i in range(len(corpus))]
    assert found == [[0, 1, 2, 3], [4], [5, 6, 7, 8], [9, 10], [11, 12, 13, 14]]


def test_row_blocks_cross_no_row() -> None:
    corpus = Corpus([packed([2, 0, 5]), packed([1], first=7)], 4, "row")
    found = [corpus.block(i)[0][:, 0].tolist() for i in range(len(corpus))]
    assert found == [[0, 1], [2, 3, 4, 5], [6], [7]]


def test_short_ends_of_documents_share_blocks() -> None:
    # Documents of 9, 3, 2, 1 and 3 tokens in blocks of 4. Of 9 two blocks are full and one token is
    # left; it joins one of the threes and the document of 1 the other, the 2 stays alone.
    corpus = Corpus([packed([9, 0, 3, 0, 2, 0, 1, 0]), packed([3], first=15)], 4, "best-fit")
    blocks = [corpus.block(i) for i in range(len(corpus))]
    assert [tokens[:, 0].tolist() for tokens, _ in blocks] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 15, 16, 17],
        [9, 10, 11, 14],
        [12, 13],
    ]
    assert blocks[2][1].tolist() == [False, True, False, False]
    assert blocks[3][1].tolist() == [True, False, False, True]
    assert corpus.tokens == 18


def fit_by_search(lengths: list[int], size: int) -> list[list[int]]:
    """Return the pieces of each block, the place of each found among all blocks."""
    blocks = list[list[int]]()
    for piece in sorted(range(len(lengths)), key=lambda piece: -lengths[piece]):
        rooms = [size - sum(lengths[other] for other in block) for block in blocks]
        fitting = [room for room in rooms if room >= lengths[piece]]
        if not fitting:
            blocks.append([piece])
            continue
        last = max(i for i, room in enumerate(rooms) if room == min(fitting))
        blocks[last].append(piece)
    return blocks


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12).flatmap(lambda n: st.tuples(
    st.just(n), st.lists(st.integers(1, n), max_size=30))))  # fmt: skip
def test_each_piece_goes_where_it_leaves_the_least_room(case: tuple[int, list[int]]) -> None:
    size, lengths = case
    found = best_fit(np.array(lengths, np.int64), size)
    room = [sum(lengths[p] for p in np.flatnonzero(found == b)) for b in range(len(set(found)))]
    expected = fit_by_search(lengths, size)
    # Which of several blocks with the same room is taken, does not matter.
    assert sorted(room) == sorted(sum(lengths[p] for p in block) for block in expected)
    firsts = [int(np.flatnonzero(found == b)[0]) for b in range(len(room))]
    assert firsts == sorted(firsts)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 9), max_size=8), min_size=1, max_size=4),
    st.integers(1, 12),
    st.sampled_from(("stream", "document", "row", "best-fit")),
)
def test_every_token_is_in_exactly_one_block(files: list[list[int]], size: int, pack: str) -> None:
    parts, first = [], 0
    for lengths in files:
        parts.append(packed(lengths, first))
        first += sum(lengths)
    corpus = Corpus(parts, size, pack)
    blocks = [corpus.block(i) for i in range(len(corpus))]
    order = [t for tokens, _ in blocks for t in tokens[:, 0].tolist()]
    assert (sorted(order) if pack == "best-fit" else order) == list(range(first))
    assert all(0 < len(tokens) <= size for tokens, _ in blocks)
    heads = [int(t) for tokens, head in blocks for t in tokens[head, 0]]
    starts = {int(e) - n + int(p.tokens[0, 0]) for p in parts if len(p.tokens) for e, n in
              zip(p.ends, np.diff(p.ends, prepend=0), strict=True) if n}  # fmt: skip
    assert sorted(heads) == sorted(starts)
    if pack == "stream":
        assert all(len(tokens) == size for tokens, _ in blocks[:-1])


def test_text_rows_and_packed_give_the_same_tokens(tmp_path: Path) -> None:
    texts, tokenizer = sentences(30), make_tokenizer()
    expected = tokenize(tokenizer, texts)
    text = tmp_path / "a.txt"
    text.write_text("".join(t + "\n" for t in texts))
    plain = save_rows(tmp_path / "b.jsonl", [{"text": t} for t in texts])
    rows = save_rows(tmp_path / "c.jsonl", voken_rows(texts, 50))
    zipped = tmp_path / "d.jsonl.gz"
    zipped.write_bytes(gzip.compress(rows.read_bytes()))
    assert [has_vokens(str(p)) for p in (text, plain, rows, zipped)] == [False, False, True, True]
    for path in (text, plain, rows, zipped):
        (found,) = pack(str(path), tmp_path / "cache", tokenizer)
        assert found.tokens[:, 0].tolist() == expected.ids.tolist()
        assert found.ends.tolist() == expected.starts[1:].tolist()
        vokens = [-1] * len(expected.ids)
        if path in (rows, zipped):
            vokens = (expected.ids.astype(int) * 7 % 50).tolist()
        assert found.tokens[:, 1].tolist() == vokens
        assert found.name == str(path)
    # A second time the conversion is only opened.
    stamp = {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").iterdir()}
    pack(str(rows), tmp_path / "cache", tokenizer)
    assert stamp == {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").iterdir()}


@pytest.mark.parametrize(
    ("change", "line", "why"),
    [
        (
            {"spans": [], "vokens": [], "scores": []},
            2,
            "has 0 tokens, the encoder's tokenizer makes",
        ),
        ({"spans": "first one short"}, 2, "has spans of other tokens"),
        ({"vokens": "lists"}, 2, "expected one voken per token"),
        ({"vokens": None}, 2, '"vokens" must be a list'),
        ({"text": 3}, 2, '"text" must be a string'),
    ],
)
def test_rows_that_are_not_of_this_tokenizer_are_refused(
    tmp_path: Path, change: dict[str, object], line: int, why: str
) -> None:
    rows = voken_rows(["bam den", "fis gor kan", "lat"], 9)
    broken = dict(change)
    if change.get("spans") == "first one short":
        broken["spans"] = [[0, 2], *rows[1]["spans"][1:]]
    if change.get("vokens") == "lists":
        broken["vokens"], broken["scores"] = [[1, 2]] * 3, [[0.5, 0.4]] * 3
    rows[1] |= broken
    path = save_rows(tmp_path / "rows.jsonl", rows)
    with pytest.raises(DataError) as error:
        pack(str(path), tmp_path / "cache", make_tokenizer())
    assert (error.value.file, error.value.line) == (str(path), line)
    assert why in error.value.why


def test_a_text_whose_name_is_not_utf8_is_packed(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.txt")
    path.write_text("bam dor\n")
    (found,) = pack(str(path), tmp_path / "cache", make_tokenizer())
    assert len(found.ends) == 1


def test_packed_of_another_tokenizer_is_refused_with_both_fingerprints(tmp_path: Path) -> None:
    path = save_packed(tmp_path / "x.npy", [[(5, 1)]], tokenizer={"sha256": "e" * 64})
    with pytest.raises(DataError, match=r"e{64}.*vg revokenize"):
        pack(str(path), tmp_path, make_tokenizer())
    path = save_packed(tmp_path / "y.npy", [[(5, 1)]], tokenizer=None)
    with pytest.raises(DataError, match="its manifest does not name"):
        pack(str(path), tmp_path, make_tokenizer())


@pytest.mark.parametrize(
    ("ends", "why"),
    [([2, 4], "rows end at token 4, it has 3"), ([2, 1, 3], ":2: ends before it starts")],
)
def test_row_ends_that_do_not_fit_are_refused(tmp_path: Path, ends: list[int], why: str) -> None:
    path = save_packed(tmp_path / "x.npy", [[(5, 1), (6, 1)], [(7, 1)]])
    np.save(tmp_path / "x.rows.npy", np.array(ends))
    write_manifest(path, [path, tmp_path / "x.rows.npy"], kind="vokens")
    with pytest.raises(DataError, match=why):
        open_packed(path)


@pytest.mark.parametrize(
    ("rows", "vokens", "line", "why"),
    [
        (
            [[(5, 1)], [], [(6, 2), (7, 10)]],
            10,
            3,
            "expected a voken from -1 to 9 (there are 10 images), got 10",
        ),
        ([[(5, 1), (6, -2)]], 10, 1, "(there are 10 images), got -2"),
        (
            [[(5, 1)], [(20, 0)]],
            10,
            2,
            "expected a token id from 0 to 19 (the vocabulary has 20), got 20",
        ),
        (
            [[(5, 1)], [(-1, 0)]],
            None,
            2,
            "expected a token id from 0 to 19 (the vocabulary has 20), got -1",
        ),
    ],
)
def test_ids_out_of_range_are_refused_by_line(
    tmp_path: Path, rows: list[list[tuple[int, int]]], vokens: int | None, line: int, why: str
) -> None:
    (file,) = open_packed(save_packed(tmp_path / "x.npy", rows))
    with pytest.raises(DataError) as error:
        check_range(file, 20, vokens)
    assert error.value.line == line
    assert why in error.value.why


def test_largest_voken_is_found_and_none_is_minus_one(tmp_path: Path) -> None:
    assert (
        check_range(
            open_packed(save_packed(tmp_path / "x.npy", [[(5, 3), (6, 8)], [(7, -1)]]))[0], 20, 9
        )
        == 8
    )
    assert check_range(open_packed(save_packed(tmp_path / "y.npy", [[(5, -1)]]))[0], 20) == -1


def test_masks_are_80_10_10_and_only_of_chosen_tokens() -> None:
    ids = np.full(100_000, 7)
    read, chosen = mask_tokens(ids, np.random.default_rng(0), 3, 1000)
    assert (read[~chosen] == 7).all()
    assert chosen.mean() == pytest.approx(0.15, abs=0.005)
    kinds = [(read[chosen] == value).mean() for value in (3, 7)]
    assert kinds == pytest.approx([0.8, 0.1], abs=0.01)
    other = read[chosen & (read != 3) & (read != 7)]
    assert 0 <= other.min() < 20
    assert 980 < other.max() < 1000


@pytest.mark.parametrize("facts", [{"tokenizer": 5}, {"tokenizer": {}, "count": "5"}, {"count": 0}])
def test_a_manifest_with_facts_of_other_types_is_refused(
    tmp_path: Path, facts: dict[str, Any]
) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((2, 2), np.int32))
    np.save(tmp_path / "x.rows.npy", np.array([2]))
    write_manifest(path, [path, tmp_path / "x.rows.npy"], kind="vokens", **facts)
    with pytest.raises(DataError, match=r"x\.json: has .tokenizer."):
        open_packed(path)


@pytest.mark.parametrize(
    "facts",
    [
        {"kind": "index"},
        {"tokenizer": 5},
        {"count": -1},
        {"replaced": "x"},
        {"config": []},
        {"format": 2},
        {"inputs": None},
    ],
)
def test_a_conversion_whose_manifest_was_edited_is_made_again(
    tmp_path: Path, facts: dict[str, Any]
) -> None:
    text = tmp_path / "t.txt"
    text.write_text("".join(f"{line}\n" for line in sentences(20)))
    (wanted,) = pack(str(text), tmp_path / "cache", make_tokenizer())
    (manifest,) = (tmp_path / "cache").glob("*.json")
    whole = json.loads(manifest.read_bytes())
    manifest.write_text(json.dumps(whole | facts))
    (found,) = pack(str(text), tmp_path / "cache", make_tokenizer())
    assert np.array_equal(found.tokens, wanted.tokens)
    assert found._replace(tokens=0, ends=0) == wanted._replace(tokens=0, ends=0)
    assert json.loads(manifest.read_bytes()) == whole
