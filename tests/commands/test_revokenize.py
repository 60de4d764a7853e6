"""`vg revokenize` as a process: right vokens, streams, kills, and input that is no voken row."""

from __future__ import annotations

import gzip
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from tests.conftest import vg_command
from vgtools.cli import run
from vgtools.io.artifact import read_manifest
from vgtools.io.errors import DataError
from vgtools.io.files import compress, dumps, open_npy
from vgtools.io.output import Output
from vgtools.systems.vokenization.revokenize import revokenize
from vgtools.text.tokens import tokenize
from vgtools.text.vokens import VokenWriter, check_rows

Runner = Callable[..., "subprocess.CompletedProcess[bytes]"]
SENTENCES = [
    "The cats sit on the mat, don't they?",
    "",
    "A man 👨🏽‍🚀 in a café — naïve cafe\u0301s",
    "日本語のテキスト and שָׁלוֹם",
    "   ",
    "नमस्ते  the\u00a0world 🇨🇭",
]


@pytest.fixture(scope="module")
def source() -> Tokenizer:
    t = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    t.normalizer, t.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=100, special_tokens=["[UNK]"], show_progress=False
    )
    t.train_from_iterator(SENTENCES * 3, trainer)
    return t


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tokenizer]:
    """A byte-level tokenizer as users have it: a folder, with [CLS]-like tokens, padding and
    truncation in the file.
    """
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    t.train_from_iterator(["the cats sit on the mat"] * 5, trainer)
    t.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), trim_offsets=False)
    folder = tmp_path_factory.mktemp("target")
    t.enable_padding(length=128)
    t.enable_truncation(6)
    t.save(str(folder / "tokenizer.json"))
    t.no_padding()
    t.no_truncation()
    return folder, t


def rows_of(tokenizer: Tokenizer, sentences: list[str]) -> list[dict[str, Any]]:
    tokens = tokenize(tokenizer, sentences)
    random = np.random.default_rng(0)
    rows = []
    for i, sentence in enumerate(sentences):
        spans = tokens.row(i)[1].tolist()
        vokens = random.integers(0, 50_000, len(spans)).tolist()
        scores = [round(x, 4) for x in random.random(len(spans)).tolist()]
        rows.append({"text": sentence, "spans": spans, "vokens": vokens, "scores": scores})
    return rows


def jsonl(rows: list[Any]) -> bytes:
    return b"".join(map(dumps, rows))


def parse(data: bytes) -> list[dict[str, Any]]:
    assert data.endswith(b"\n") or not data
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def brute_force(row: dict[str, Any], spans: list[list[int]]) -> list[int]:
    """Section 3.3 to the letter: the voken of the source token with the largest IoU, ties to the
    first, -1 if none.
    """
    vokens = []
    for c, d in spans:
        best, voken = Fraction(0), -1
        for (a, b), candidate in zip(row["spans"], row["vokens"], strict=True):
            overlap = max(0, min(b, d) - max(a, c))
            if overlap and (iou := Fraction(overlap, (b - a) + (d - c) - overlap)) > best:
                best, voken = iou, candidate
        vokens.append(voken)
    return vokens


# ------------------------------------------------------------------------------------- right vokens


def test_one_row_by_hand(vg: Runner, target: tuple[Path, Tokenizer]) -> None:
    # The target's tokens: the, Ġcats, Ġ, Ġ, and the four bytes of one character.
    row = {
        "id": 7,
        "text": "the cats  🤗",
        "spans": [[0, 3], [4, 6], [6, 8], [10, 11]],
        "vokens": [3, 5, 6, 9],
        "scores": [0.5, 1, 0.25, -0.125],
        "more": {"kept": [None]},
    }
    done = vg("revokenize", "-q", "-t", target[0], input=jsonl([row]), check=True)
    assert parse(done.stdout) == [
        {
            "id": 7,
            "text": "the cats  🤗",
            "spans": [[0, 3], [4, 8], [9, 9], [10, 10], [10, 11], [10, 11], [10, 11], [10, 11]],
            "vokens": [
                3,
                5,
                -1,
                -1,
                9,
                9,
                9,
                9,
            ],  # "cats" overlaps "ca" and "ts" by a half each: the first
            "scores": [0.5, 1, 0.0, 0.0, -0.125, -0.125, -0.125, -0.125],
            "more": {"kept": [None]},
        }
    ]
    assert done.stderr == b""


def test_every_token_has_the_brute_force_voken(
    vg: Runner, source: Tokenizer, target: tuple[Path, Tokenizer]
) -> None:
    rows = rows_of(source, SENTENCES)
    done = vg("revokenize", "-", "--tokenizer", target[0], input=jsonl(rows), check=True)
    got = parse(done.stdout)
    assert [r["text"] for r in got] == SENTENCES
    for before, after in zip(rows, got, strict=True):
        assert after["spans"] == tokenize(target[1], [before["text"]]).spans.tolist()
        assert after["vokens"] == brute_force(before, after["spans"])
        score = dict(zip(before["vokens"], before["scores"], strict=True)) | {-1: 0.0}
        assert after["scores"] == [score[v] for v in after["vokens"]]
    tokens, none = (sum(f(r["vokens"]) for r in got) for f in (len, lambda v: v.count(-1)))
    assert none > 0
    assert f"6 rows, {tokens} tokens, {none} of them overlap no token" in done.stderr.decode()


def test_its_own_tokenizer_changes_nothing(vg: Runner, target: tuple[Path, Tokenizer]) -> None:
    rows = rows_of(
        target[1], SENTENCES
    )  # each byte of a character, each lone space has a voken of its own
    done = vg("revokenize", "-t", target[0], input=jsonl(rows), check=True)
    assert parse(done.stdout) == rows
    assert b" 0 of them overlap no token" in done.stderr


def test_lists_of_k_are_carried_as_they_are(vg: Runner, target: tuple[Path, Tokenizer]) -> None:
    row = {
        "text": "the cats  ",
        "spans": [[0, 3], [4, 8]],
        "vokens": [[3, 1], [5, -1]],
        "scores": [[0.5, 0.25], [1.0, 0.0]],
    }
    (got,) = parse(vg("revokenize", "-t", target[0], input=jsonl([row]), check=True).stdout)
    assert got["vokens"] == [[3, 1], [5, -1], [-1, -1], [-1, -1]]
    assert got["scores"] == [[0.5, 0.25], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    blank = {**NONE, "text": " "}
    done = vg("revokenize", "-t", target[0], input=jsonl([blank, row, blank]), check=True)
    for between in (parse(done.stdout)[0], parse(done.stdout)[2]):
        assert (between["vokens"], between["scores"]) == ([[-1, -1]], [[0.0, 0.0]])


def test_one_of_k_is_drawn_by_its_score(vg: Runner, target: tuple[Path, Tokenizer]) -> None:
    rows = [
        {
            "text": f"the {n}",
            "spans": [[0, 3], [4, 4 + len(str(n))]],
            "vokens": [[7, 8, 9], [5, -1, -1]],
            "scores": [[0.6, 0.3, -0.1], [0.0, 0.0, 0.0]],
        }
        for n in range(600)
    ]
    call = ("revokenize", "-t", target[0], "--draw", 3)
    done = parse(vg(*call, input=jsonl([*rows, {**NONE, "text": " "}]), check=True).stdout)
    drawn = [(row["vokens"][0], row["scores"][0]) for row in done[:600]]
    assert set(drawn) == {(7, 0.6), (8, 0.3)}
    assert abs(drawn.count((7, 0.6)) / 600 - 2 / 3) < 0.08  # four standard errors
    assert all(5 in row["vokens"] for row in done[:600]), "without any score the first is taken"
    assert done[600]["vokens"] == [-1]
    again = parse(vg(*call, input=jsonl(rows[5:6]), check=True).stdout)
    assert again == done[5:6], "a row depends on nothing but its text"
    huge = [{**rows[0], "scores": [[1e308, 1e308, 1e308]] * 2}]
    assert vg(*call, input=jsonl(huge)).returncode == 0, "their sum is infinite"
    one = vg(*call, input=jsonl([{**rows[0], "vokens": [3, 4], "scores": [1, 1]}]))
    assert one.returncode == 65
    assert b"--draw: needs lists" in one.stderr


NONE = {"text": "", "spans": [], "vokens": [], "scores": []}


def test_rows_without_scores_stay_without(vg: Runner, target: tuple[Path, Tokenizer]) -> None:
    row = {"text": "the mats", "spans": [[0, 3], [4, 8]], "vokens": [2, 3]}
    (got,) = parse(vg("revokenize", "-t", target[0], input=jsonl([row]), check=True).stdout)
    assert got == {"text": "the mats", "spans": [[0, 3], [4, 7], [7, 8]], "vokens": [2, 3, 3]}


def test_rows_do_not_depend_on_the_batch(source: Tokenizer, target: tuple[Path, Tokenizer]) -> None:
    rows = rows_of(source, SENTENCES * 4)
    whole = revokenize(check_rows(rows), target[1]).rows
    parts = [rows[i : i + 5] for i in range(0, len(rows), 5)]
    cut = [row for part in parts for row in revokenize(check_rows(part), target[1]).rows]
    assert jsonl(cut) == jsonl(whole)
    bad = [rows[5], {**rows[0], "vokens": []}]
    with pytest.raises(DataError, match='rows:7: "vokens" has 0 entries'):
        check_rows(bad, first=6)


# -------------------------------------------------------------------------------------------- files


def test_as_many_rows_come_out_as_go_in(vg: Runner, target: tuple[Path, Tokenizer]) -> None:
    row = b'{"text": "a\xff\\u2028b\\u0000", "spans": [], "vokens": []}'
    data = b"\xef\xbb\xbf" + row + b"\r\n" + row + b"\n" + row
    done = vg("revokenize", "-t", target[0], input=data, check=True)
    got = parse(done.stdout)
    assert [r["text"] for r in got] == ["a\ufffd\u2028b\0"] * 3
    assert all(v == -1 for r in got for v in r["vokens"])
    assert b"3 lines had bytes that are not UTF-8" in done.stderr
    assert vg("revokenize", "-q", "-t", target[0], input=b"", check=True).stdout == b""
    assert (
        len(parse(vg("revokenize", "-t", target[0], "--limit", "2", input=data, check=True).stdout))
        == 2
    )


def test_packed_and_compressed_files_hold_the_same(
    vg: Runner, source: Tokenizer, target: tuple[Path, Tokenizer], tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl.zst").write_bytes(compress(jsonl(rows_of(source, SENTENCES)), "x.zst"))
    rows = parse(vg("revokenize", tmp_path / "in.jsonl.zst", "-t", target[0], check=True).stdout)
    vg(
        "revokenize",
        tmp_path / "in.jsonl.zst",
        "-t",
        target[0],
        "-o",
        tmp_path / "out.jsonl.gz",
        check=True,
    )
    assert parse(gzip.decompress((tmp_path / "out.jsonl.gz").read_bytes())) == rows
    vg(
        "revokenize",
        tmp_path / "in.jsonl.zst",
        "-t",
        target[0],
        "-o",
        tmp_path / "packed.npy",
        check=True,
    )
    packed, ends = open_npy(tmp_path / "packed.npy"), open_npy(tmp_path / "packed.rows.npy")
    assert (packed.dtype, ends.dtype) == (np.int32, np.int64)
    assert packed[:, 1].tolist() == [v for r in rows for v in r["vokens"]]
    assert packed[:, 0].tolist() == tokenize(target[1], SENTENCES).ids.tolist()
    assert ends.tolist() == np.cumsum([len(r["vokens"]) for r in rows]).tolist()
    manifest = read_manifest(tmp_path / "packed.npy", "vokens")
    assert (manifest["rows"], manifest["tokens"], manifest["form"]) == (6, len(packed), "packed")
    assert manifest["tokenizer"]["ref"] == str(target[0])
    assert [Path(i["path"]).name for i in manifest["inputs"]] == ["in.jsonl.zst"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "in.jsonl.zst",
        "out.json",
        "out.jsonl.gz",
        "packed.json",
        "packed.npy",
        "packed.rows.npy",
    ]


def test_nothing_in_is_an_empty_packed_file(
    vg: Runner, target: tuple[Path, Tokenizer], tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"")
    vg("revokenize", tmp_path / "in.jsonl", "-t", target[0], "-o", tmp_path / "x.npy", check=True)
    assert open_npy(tmp_path / "x.npy").shape == (0, 2)
    assert open_npy(tmp_path / "x.rows.npy").shape == (0,)


def test_the_packed_form_takes_one_voken_a_token(
    vg: Runner, target: tuple[Path, Tokenizer], tmp_path: Path
) -> None:
    row = {"text": "the", "spans": [[0, 3]], "vokens": [[3, 1]]}
    done = vg("revokenize", "-t", target[0], "-o", tmp_path / "x.npy", input=jsonl([row]))
    assert done.returncode == 2
    assert b"one voken per token; write .jsonl" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["vg.faiss", "vg.ids", "vg.json"])
def test_rows_never_go_where_an_index_lies(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot name voken rows") as caught:
        VokenWriter(str(tmp_path / name), {})
    assert caught.value.code == 2


def test_a_finished_output_is_left_alone(
    vg: Runner, source: Tokenizer, target: tuple[Path, Tokenizer], tmp_path: Path
) -> None:
    command = ("revokenize", tmp_path / "in.jsonl", "-t", target[0], "-o", tmp_path / "out.jsonl")
    (tmp_path / "in.jsonl").write_bytes(jsonl(rows_of(source, SENTENCES)))
    vg(*command, check=True)
    before = (tmp_path / "out.jsonl").stat()
    assert b"is up to date" in vg(*command, check=True).stderr
    assert (tmp_path / "out.jsonl").stat().st_mtime_ns == before.st_mtime_ns
    (tmp_path / "in.jsonl").write_bytes(jsonl(rows_of(source, SENTENCES[:2])))
    vg(*command, check=True)
    assert len(parse((tmp_path / "out.jsonl").read_bytes())) == 2


def test_the_writer_adds_up_counts_over_runs(tmp_path: Path) -> None:
    row = {
        "text": "x",
        "spans": [[0, 1]],
        "vokens": np.array([4]),
        "scores": np.array([0.5], np.float32),
    }
    for stop in (True, False):
        with VokenWriter(str(tmp_path / "x.jsonl"), {"a": 1}) as out:
            out.write([row], np.array([1]), seen=2)
            out.commit("digest")
            assert out.state["rows"] == out.counts["rows"]
            if not stop:
                out.finish()
    assert (
        tmp_path / "x.jsonl"
    ).read_bytes() == b'{"text":"x","spans":[[0,1]],"vokens":[4],"scores":[0.5]}\n' * 2
    manifest = read_manifest(tmp_path / "x.jsonl", "vokens")
    assert (manifest["rows"], manifest["tokens"], manifest["seen"]) == (2, 2, 4)


def test_packed_rows_end_where_they_end_over_several_writes(tmp_path: Path) -> None:
    rows = [{"vokens": [4, 5]}, {"vokens": []}, {"vokens": np.array([6])}]
    with VokenWriter(str(tmp_path / "x.npy"), {}) as out:
        for _ in range(2):
            out.write(rows, np.array([1, 2, 3]))
        out.finish()
    assert open_npy(tmp_path / "x.npy").tolist() == [[1, 4], [2, 5], [3, 6]] * 2
    assert open_npy(tmp_path / "x.rows.npy").tolist() == [2, 2, 3, 5, 5, 6]


# ---------------------------------------------------------------------------------------- bad input

InProcess = Callable[..., tuple[int, str]]


@pytest.fixture
def in_process(capsys: pytest.CaptureFixture[str]) -> Iterator[InProcess]:
    """Run `vg` without a new process, for the many short cases: returns the exit code and what
    stderr got.
    """
    before = signal.getsignal(signal.SIGTERM)

    def call(*args: object) -> tuple[int, str]:
        code = run([*map(str, args)])
        captured = capsys.readouterr()
        assert captured.out == ""
        return code, captured.err

    yield call
    signal.signal(signal.SIGTERM, before)


GOOD = b'{"text": "ab", "spans": [[0, 1], [1, 2]], "vokens": [1, 2], "scores": [0.5, 0.5]}\n'


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"", "not valid JSON"),
        (GOOD[:40], "not valid JSON"),
        (b"[1]", "expected a JSON object"),
        (b"null", "expected a JSON object"),
        (b'{"spans": [], "vokens": []}', '"text" is missing'),
        (b'{"text": "ab", "vokens": []}', '"spans" is missing'),
        (b'{"text": "ab", "spans": []}', '"vokens" is missing'),
        (b'{"text": 3, "spans": [], "vokens": []}', '"text" must be a string'),
        (b'{"text": "ab", "spans": "ab", "vokens": []}', '"spans" must be a list'),
        (b'{"text": "ab", "spans": {"0": 1}, "vokens": [1]}', '"spans" must be a list'),
        (b'{"text": "ab", "spans": [], "vokens": null}', '"vokens" must be a list'),
        (b'{"text": "ab", "spans": [], "vokens": [], "scores": 1}', '"scores" must be a list'),
        (b'{"text": "ab", "spans": [], "vokens": [], "scores": null}', '"scores" must be a list'),
        (
            GOOD.replace(b'"vokens": [1, 2]', b'"vokens": [1]'),
            '"vokens" has 1 entries, "spans" has 2',
        ),
        (GOOD.replace(b"[0.5, 0.5]", b"[0.5]"), '"scores" has 1 entries, "spans" has 2'),
        (
            GOOD.replace(b"[1, 2]]", b"[1, 3]]"),
            '"spans" entry 1 is [1, 3], not inside the text of 2 code points',
        ),
        (GOOD.replace(b"[0, 1]", b"[-1, 1]"), '"spans" entry 0 is [-1, 1]'),
        (GOOD.replace(b"[0, 1]", b"[1, 0]"), '"spans" entry 0 is [1, 0]'),
        (GOOD.replace(b"[0, 1]", b"[0, 99999999999999999999]"), '"spans" entry 0'),
        (
            GOOD.replace(b"[0, 1]", b"[0, 9999999999999999999]"),
            '"spans" entry 0 is [0, 9999999999999999999]',
        ),
        (
            GOOD.replace(b"[0, 1]", b"[0, 1.0]"),
            '"spans" entry 0 must be [start, end], two integers',
        ),
        (GOOD.replace(b"[0, 1]", b"[0, true]"), '"spans" entry 0 must be'),
        (GOOD.replace(b"[0, 1]", b"[0]"), '"spans" entry 0 must be'),
        (GOOD.replace(b"[0, 1]", b"[0, 1, 2]"), '"spans" entry 0 must be'),
        (GOOD.replace(b"[0, 1], [1, 2]]", b"[0], [1, 1, 2]]"), '"spans" entry 0 must be'),
        (GOOD.replace(b"[0, 1]", b'"ab"'), '"spans" entry 0 must be'),
        (GOOD.replace(b"[0, 1]", b"0"), '"spans" entry 0 must be'),
        (GOOD.replace(b"[1, 2],", b"[1, -2],"), '"vokens" entry 1 must be a row of the image bank'),
        (GOOD.replace(b"[1, 2],", b"[1, 2147483648],"), '"vokens" entry 1'),
        (GOOD.replace(b"[1, 2],", b"[1, 2.5],"), '"vokens" entry 1'),
        (GOOD.replace(b"[1, 2],", b"[true, 2],"), '"vokens" entry 0'),
        (GOOD.replace(b"[1, 2],", b"[1, [2]],"), '"vokens" has entries of several lengths'),
        (GOOD.replace(b"[1, 2],", b"[[1], [2, 3]],"), '"vokens" has entries of several lengths'),
        (GOOD.replace(b"[1, 2],", b"[[1], [null]],"), '"vokens" entry 1 must be a list of 1'),
        (GOOD.replace(b"[1, 2],", b"[[], []],"), '"vokens" entry 0'),
        (
            GOOD.replace(b"[1, 2],", b"[[1], [2]],"),
            '"scores" entry 0 must be a list of 1: a number',
        ),
        (GOOD.replace(b"0.5]", b"NaN]"), "not valid JSON"),
        (GOOD.replace(b"0.5]", b"1e999]"), ""),
        (GOOD.replace(b"0.5]", b'"1"]'), '"scores" entry 1 must be a number'),
        (GOOD.replace(b"0.5]", b"null]"), '"scores" entry 1 must be a number'),
        (GOOD.replace(b'"ab"', b'"\\ud800b"'), "not valid JSON"),
        (b'{"text": "ab", "spans": ' + b"[" * 5000 + b"]" * 5000 + b', "vokens": []}', ""),
    ],
)
def test_what_is_no_voken_row_is_named(
    line: bytes, why: str, tmp_path: Path, target: tuple[Path, Tokenizer], in_process: InProcess
) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(GOOD + line.removesuffix(b"\n") + b"\n" + GOOD)
    code, printed = in_process("revokenize", file, "-t", target[0], "-o", tmp_path / "out.jsonl")
    assert code == 65
    assert printed.startswith(f"vg: {file}:2: ")
    assert why in printed
    assert printed.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["in.jsonl"]


def test_a_manifest_of_other_types_is_named(
    in_process: InProcess, target: tuple[Path, Tokenizer], tmp_path: Path
) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(GOOD)
    facts = {"vg": "0", "files": {file.name: {"bytes": len(GOOD)}}, "held_out": "three"}
    file.with_suffix(".json").write_text(json.dumps(facts))
    code, printed = in_process("revokenize", file, "-t", target[0])
    assert (code, '"held_out": expected a number' in printed) == (65, True), printed


def test_other_things_that_cannot_work(
    in_process: InProcess, target: tuple[Path, Tokenizer], tmp_path: Path
) -> None:
    good = tmp_path / "in.jsonl"
    good.write_bytes(GOOD)
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(GOOD * 50)[:-9])
    cases: list[tuple[int, tuple[object, ...]]] = [
        (66, ("none.jsonl", "-t", target[0])),
        (65, (cut, "-t", target[0])),
        (66, (good, "-t", tmp_path)),
        (73, (good, "-t", target[0], "-o", good)),
        (2, (good,)),
        (69, (good, "-t", "nobody/has-this", "--offline")),
    ]
    for code, args in cases:
        found, printed = in_process("revokenize", *args)
        assert (found, printed.count("\n")) == (code, 1), printed
    assert good.read_bytes() == GOOD


# --------------------------------------------------------------------------- pipes, signals, places


def test_no_network_library_is_imported(target: tuple[Path, Tokenizer]) -> None:
    command = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        "vgtools",
        "revokenize",
        "-t",
        str(target[0]),
    ]
    done = subprocess.run(command, input=GOOD, capture_output=True, check=True)
    imported = {line.split(b"|")[-1].strip() for line in done.stderr.split(b"\n")}
    assert b"tokenizers" in imported
    assert not imported & {b"torch", b"transformers", b"timm", b"faiss", b"nltk"}


def test_a_closed_pipe_ends_quietly(target: tuple[Path, Tokenizer], tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(GOOD * 20_000)
    vg = f"'{sys.executable}' -m vgtools revokenize '{tmp_path}/in.jsonl' -t '{target[0]}'"
    script = f"{vg} 2>'{tmp_path}/err' | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    assert done.stdout.split(b"\n")[1] == b"141"
    assert json.loads(done.stdout.split(b"\n")[0])["vokens"] == [1, 2]
    assert (tmp_path / "err").read_bytes() == b""


@pytest.fixture(scope="module")
def large(
    source: Tokenizer, target: tuple[Path, Tokenizer], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Input of many windows."""
    file = tmp_path_factory.mktemp("large") / "in.jsonl"
    file.write_bytes(jsonl(rows_of(source, SENTENCES)) * 1400)
    return file


def started(command: list[str], out: Path) -> subprocess.Popen[bytes]:
    """Start a command and return once it has committed something."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    while not out.with_name(out.name + ".journal").exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.001)
    return process


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "npy"])
def test_a_killed_run_goes_on_and_ends_the_same(
    vg: Runner, large: Path, target: tuple[Path, Tokenizer], tmp_path: Path, suffix: str
) -> None:
    def bytes_of(name: str) -> list[bytes]:
        return [p.read_bytes() for p in sorted(tmp_path.glob(f"{name}.*")) if p.suffix != ".json"]

    whole, out = tmp_path / f"whole.{suffix}", tmp_path / f"out.{suffix}"
    vg("revokenize", large, "-t", target[0], "-o", whole, check=True)
    command = vg_command("revokenize", large, "-t", target[0], "-o", out)
    killed = started(command, out)
    killed.kill()
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert not out.exists()
    assert subprocess.run(command, capture_output=True, check=True).returncode == 0
    assert bytes_of("out") == bytes_of("whole")
    assert len(bytes_of("out")) == (2 if suffix == "npy" else 1)  # no part, journal or lock is left
    assert read_manifest(out)["rows"] == read_manifest(whole)["rows"] == 8_400


def test_sigterm_stops_at_a_checkpoint(
    vg: Runner, large: Path, target: tuple[Path, Tokenizer], source: Tokenizer, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    command = vg_command("revokenize", large, "-t", target[0], "-o", out)
    stopped = started(command, out)
    stopped.send_signal(signal.SIGTERM)
    message = stopped.communicate()[1]
    assert stopped.returncode == 75, message
    assert b"run the same command again to resume" in message
    (tmp_path / "other").mkdir()
    source.save(str(tmp_path / "other" / "tokenizer.json"))
    other = vg("revokenize", large, "-t", tmp_path / "other", "-o", out)
    assert other.returncode == 78
    assert b"tokenizer_sha256 was" in other.stderr
    vg("revokenize", large, "-t", target[0], "-o", out, check=True)
    assert out.read_bytes() == vg("revokenize", large, "-t", target[0], check=True).stdout


def test_bare_surroundings_give_the_same_bytes(
    vg: Runner, source: Tokenizer, target: tuple[Path, Tokenizer], tmp_path: Path
) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(jsonl(rows_of(source, SENTENCES)))
    wanted = vg("revokenize", file, "-t", target[0], check=True).stdout
    bare = {"LC_ALL": "C", "PATH": os.defpath, "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    assert vg("revokenize", file, "-t", target[0], env=bare, check=True).stdout == wanted
    command = f"'{sys.executable}' -m vgtools revokenize -t '{target[0]}'"

    def bash(streams: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["bash", "-c", f"{command} {streams}"], capture_output=True)

    for closed in ("<&-", "2>&-"):
        done = bash(f"'{file}' {closed}")
        assert (done.returncode, done.stdout) == (0, wanted)
    done = bash("<&-")
    assert (done.returncode, done.stdout) == (66, b"")
    assert bash(f"'{file}' >&-").returncode == 74


@pytest.fixture
def terminal() -> Iterator[int]:
    ours, theirs = pty.openpty()
    yield theirs
    os.close(ours)
    os.close(theirs)


def test_a_terminal_and_no_file_prints_the_help(
    vg: Runner, target: tuple[Path, Tokenizer], terminal: int
) -> None:
    done = vg("revokenize", "-t", target[0], stdin=terminal)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"revokenize [OPTIONS] [FILE]" in done.stderr


def test_the_bank_is_not_lost_on_the_way(
    vg: Runner, source: Tokenizer, target: tuple[Path, Tokenizer], tmp_path: Path
) -> None:
    rows = jsonl(rows_of(source, ["abc"]))
    with Output([tmp_path / "in.jsonl"], {"index_sha256": {"vg.faiss": {"sha256": "0"}}}) as out:
        out.write(rows)
        out.finish(kind="vokens", count=77)
    assert (
        vg(
            "revokenize", tmp_path / "in.jsonl", "-t", target[0], "-o", tmp_path / "out.jsonl"
        ).returncode
        == 0
    )
    manifest = read_manifest(tmp_path / "out.jsonl", "vokens")
    assert manifest["config"]["index_sha256"] == {"vg.faiss": {"sha256": "0"}}
    assert manifest["count"] == 77


def test_the_level_of_vokens_is_kept_and_two_are_not_mixed(
    vg: Runner, source: Tokenizer, target: tuple[Path, Tokenizer], tmp_path: Path
) -> None:
    rows = jsonl(rows_of(source, ["abc"]))
    for level in ("sentence", "token"):
        with Output([tmp_path / f"{level}.jsonl"], {"index_sha256": {}}) as out:
            out.write(rows)
            out.finish(kind="vokens", count=77, level=level)
    call = ("revokenize", "-t", target[0], "-o", tmp_path / "out.npy")
    assert vg(*call, tmp_path / "sentence.jsonl").returncode == 0
    assert read_manifest(tmp_path / "out.npy", "vokens")["level"] == "sentence"
    call = ("revokenize", "-t", target[0], "-o", tmp_path / "two.npy")
    done = vg(*call, tmp_path / "sentence.jsonl", tmp_path / "token.jsonl")
    assert done.returncode == 65
    assert b"token.jsonl: has vokens of each token, " in done.stderr
