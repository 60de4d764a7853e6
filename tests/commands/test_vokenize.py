"""`vg vokenize` as its users run it: pipes, kills, full disks, text of every kind, indexes of
another matcher.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from tests.conftest import Runner, vg_command
from tests.tiny import save_encoder, save_run_of, text
from vgtools.cli import run

Vokenize = Callable[..., list[dict[str, Any]]]
Argv = Callable[..., list[str]]
Attempt = Callable[..., tuple[int, str]]


@pytest.fixture
def argv(tiny: Path) -> Argv:
    """Return the command line that vokenizes a file with the tiny index, quietly."""

    def call(path: Path, *flags: object) -> list[str]:
        args = ["vokenize", path, "--index", tiny / "vg.faiss", "--device", "cpu", "-q", *flags]
        return [*map(str, args)]

    return call


@pytest.fixture
def vokenize(argv: Argv, tmp_path: Path) -> Vokenize:
    """Vokenize a file in this process and return the rows; flags are passed on."""

    def call(path: Path, *flags: str | Path) -> list[dict[str, Any]]:
        out = tmp_path / "out.jsonl"
        assert run(argv(path, "-o", out, "--restart", *flags)) == 0
        return [json.loads(line) for line in out.read_bytes().splitlines()]

    return call


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("".join(line + "\n" for line in text(1500, seed=3)))
    return path


@pytest.fixture
def attempt(tiny: Path, capsys: pytest.CaptureFixture[str]) -> Attempt:
    """Vokenize a file in this process and return the exit code and the messages."""

    def call(path: Path, *flags: object, index: Path = tiny / "vg.faiss") -> tuple[int, str]:
        code = run([*map(str, ["vokenize", path, "--index", index, *flags, "--device", "cpu"])])
        return code, capsys.readouterr().err

    return call


@pytest.mark.slow
def test_a_line_through_a_pipe(tiny: Path, vg: Runner) -> None:
    done = vg("vokenize", "-", "--index", tiny / "vg.faiss", "-q", input=b"bam den\n\nfis")
    assert (done.returncode, done.stderr) == (0, b"")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(r["text"], r["spans"]) for r in rows] == [
        ("bam den", [[0, 3], [4, 7]]),
        ("", []),
        ("fis", [[0, 3]]),
    ]
    assert [len(r["vokens"]) for r in rows] == [2, 0, 1]
    assert done.stdout.splitlines()[1] == b'{"text":"","spans":[],"vokens":[],"scores":[]}'


@pytest.mark.slow
def test_head_closes_the_pipe_quietly_and_early(tiny: Path, corpus: Path, tmp_path: Path) -> None:
    errors = tmp_path / "err"
    command = " ".join(vg_command("vokenize", corpus, "--index", tiny / "vg.faiss", "-q"))
    done = subprocess.run(
        ["bash", "-c", f"{command} 2> {errors} | head -1; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        timeout=120,
    )
    first, code = done.stdout.splitlines()
    assert json.loads(first)["text"] == corpus.read_text().split("\n")[0]
    assert code == b"141"
    assert errors.read_bytes() == b""


def test_text_of_every_kind_gives_a_row_a_line(
    vokenize: Vokenize, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(
        b"\xef\xbb\xbfbam\r\n\n \xff\xfe den\nfis\x01gom\xe2\x80\xa8dat\rkon\n\xf0\x9f\x90\x88 bam"
    )
    rows = vokenize(path)
    assert [r["text"] for r in rows] == [
        "bam",
        "",
        " \ufffd\ufffd den",
        "fis\x01gom\u2028dat\rkon",
        "\U0001f408 bam",
    ]
    for row in rows:
        assert len(row["spans"]) == len(row["vokens"]) == len(row["scores"])
        assert all(0 <= s <= e <= len(row["text"]) for s, e in row["spans"])
        assert all(0 <= v < 60 for v in row["vokens"])
    assert rows[4]["spans"][-1] == [2, 5]
    assert rows[0]["vokens"] == vokenize_line(vokenize, tmp_path, "bam")
    run(["vokenize", str(path), "--index", str(tmp_path / "none.faiss")])
    assert "does not exist" in capsys.readouterr().err


def vokenize_line(vokenize: Vokenize, folder: Path, line: str) -> list[int]:
    path = folder / "line.txt"
    path.write_text(line + "\n")
    found: list[int] = vokenize(path)[0]["vokens"]
    return found


def test_bad_bytes_are_counted(tmp_path: Path, attempt: Attempt) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(b"bam\n\xff\nden \xfe\n")
    code, message = attempt(path, "-o", tmp_path / "o.jsonl")
    assert code == 0
    assert "3 rows, 2 tokens; 2 lines had bytes that are not UTF-8, replaced" in message


def test_jsonl_and_compressed_text_are_the_same_text(
    vokenize: Vokenize, corpus: Path, tmp_path: Path
) -> None:
    lines = corpus.read_text().split("\n")[:50]
    plain, packed, rows = tmp_path / "a.txt", tmp_path / "a.txt.gz", tmp_path / "a.jsonl"
    plain.write_text("".join(x + "\n" for x in lines))
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    rows.write_text("".join(json.dumps({"text": x, "n": 1}) + "\n" for x in lines))
    wanted = vokenize(plain)
    assert [r["text"] for r in wanted] == lines
    assert vokenize(packed) == wanted
    assert vokenize(rows) == wanted


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b'{"text": "a"}\n{"text": ', ":2:"),
        (b'{"text": 3}\n', '"text" must be a string'),
        (b'{"t": ""}\n', '"text" is missing'),
    ],
)
def test_torn_jsonl_names_file_and_line(
    tmp_path: Path, body: bytes, where: str, attempt: Attempt
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(body)
    code, message = attempt(path, "-o", tmp_path / "o.jsonl")
    assert code == 65
    assert str(path) in message
    assert where in message
    assert not (tmp_path / "o.jsonl").exists()


def test_a_line_that_is_too_long_is_refused_until_it_is_split(
    tmp_path: Path, attempt: Attempt
) -> None:
    path = tmp_path / "t.txt"
    path.write_text("bam\n" + "Dat den kon. " * 100_000 + "\n")
    code, message = attempt(path, "-o", tmp_path / "o.jsonl")
    assert code == 65
    assert f"{path}:2: has a text of 1,300,000 characters, expected at most 1,000,000" in message
    assert run(["prepare", "sentences", str(path), "-o", str(tmp_path / "split.txt"), "-q"]) == 0
    with open(tmp_path / "split.txt") as lines:
        assert [next(lines), next(lines)] == ["bam\n", "Dat den kon.\n"]
        assert sum(line == "Dat den kon.\n" for line in lines) == 99_999


def test_windows_and_batches_change_no_voken(corpus: Path, tmp_path: Path, argv: Argv) -> None:
    runs = []
    for window, batch in (("4096", "2048"), ("1", "512"), ("77", "64"), ("500", "100000")):
        out = tmp_path / f"o{window}.jsonl"
        sizes = ("--window", window, "--batch-size", batch)
        assert run(argv(corpus, "-o", out, "--limit", 150, *sizes, "-k", 2)) == 0
        runs.append([json.loads(line) for line in out.read_bytes().splitlines()])
    assert len(runs[0]) == 150
    vokens, scores = (
        [np.concatenate([r[key] for r in rows if r[key]]) for rows in runs]
        for key in ("vokens", "scores")
    )
    # As far as it holds for every library: a score moves by a unit of its last decimal at most.
    clear = scores[0][:, 0] - scores[0][:, 1] > 2.5e-4
    assert clear.mean() > 0.95
    for i in range(1, 4):
        assert [(r["text"], r["spans"]) for r in runs[i]] == [
            (r["text"], r["spans"]) for r in runs[0]
        ]
        assert (vokens[i][:, 0] == vokens[0][:, 0])[clear].all()
        np.testing.assert_allclose(scores[i], scores[0], rtol=0, atol=1.5e-4)


@pytest.mark.slow
@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="the promise is about MKL")
@pytest.mark.parametrize("threads", [1, 2])
def test_windows_and_batches_change_no_byte_with_reproducible_kernels(
    corpus: Path, tmp_path: Path, vg: Runner, threads: int, argv: Argv
) -> None:
    env = os.environ | {
        "MKL_CBWR": "AUTO,STRICT",
        "MKL_DYNAMIC": "FALSE",
        "OMP_NUM_THREADS": str(threads),
    }
    bytes_of = []
    for window, batch in (("4096", "2048"), ("77", "64")):
        args = argv(corpus, "--limit", 150, "--window", window, "--batch-size", batch)
        bytes_of.append(vg(*args, env=env, check=True).stdout)
    assert len(bytes_of[0].splitlines()) == 150
    assert bytes_of[0] == bytes_of[1]


def test_the_packed_form_holds_the_same_vokens(
    vokenize: Vokenize, corpus: Path, tmp_path: Path, argv: Argv
) -> None:
    rows = vokenize(corpus)
    out = tmp_path / "p.npy"
    assert run(argv(corpus, "-o", out)) == 0
    assert np.load(out)[:, 1].tolist() == [v for r in rows for v in r["vokens"]]
    assert (
        np.load(tmp_path / "p.rows.npy").tolist()
        == np.cumsum([len(r["vokens"]) for r in rows]).tolist()
    )


def test_lists_of_k_and_the_least_score(vokenize: Vokenize, corpus: Path) -> None:
    one, three = vokenize(corpus, "--limit", "40"), vokenize(corpus, "--limit", "40", "-k", "3")
    assert [[v[0] for v in r["vokens"]] for r in three] == [r["vokens"] for r in one]
    assert {len(v) for r in three for v in r["vokens"]} == {3}
    cut = vokenize(corpus, "--limit", "40", "--min-score", "0.8")
    for a, b in zip(one, cut, strict=True):
        wanted = [
            (v, s) if s >= 0.8 else (-1, 0) for v, s in zip(a["vokens"], a["scores"], strict=True)
        ]
        assert list(zip(b["vokens"], b["scores"], strict=True)) == wanted
    assert {v for r in cut for v in r["vokens"]} > {-1}


def test_bfloat16_says_how_far_it_agrees(corpus: Path, tmp_path: Path, attempt: Attempt) -> None:
    out = tmp_path / "o.jsonl"
    code, message = attempt(corpus, "-o", out, "--limit", 64, "--dtype", "bfloat16")
    assert code == 0
    agreed = json.loads((tmp_path / "o.json").read_text())["agreement_with_float32"]
    assert 0.7 < agreed <= 1
    assert f"{agreed:.1%} of a sample's vokens equal the vokens of --dtype float32" in message
    # The same share if empty lines come first, and one of 1 if no voken is kept in both.
    (tmp_path / "t.txt").write_text("\n" * 200 + corpus.read_text())
    for file, name, more, least in (
        (tmp_path / "t.txt", "e.jsonl", ("--limit", 264), agreed),
        (corpus, "n.jsonl", ("--limit", 64, "--min-score", 2), 1.0),
    ):
        assert attempt(file, "-o", tmp_path / name, *more, "--dtype", "bfloat16")[0] == 0
        made = json.loads((tmp_path / name).with_suffix(".json").read_text())
        assert made["agreement_with_float32"] == least
    shards = tmp_path / "s.jsonl"
    size = corpus.stat().st_size // 3
    assert attempt(corpus, "-o", f"{shards}/", "--shard-size", size, "--dtype", "bfloat16")[0] == 0
    found = [json.loads(p.read_text())["facts"] for p in sorted(shards.glob("0*.json"))]
    first, *others = (facts["agreement_with_float32"] for facts in found)
    assert 0.7 < first <= 1
    assert others
    assert others == [None] * len(others)
    assert json.loads((tmp_path / "s.json").read_text())["agreement_with_float32"] == first


def test_a_golden(vokenize: Vokenize, tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("kos let dim gar, bum 7\nlit fos den a b c\n")
    rows = vokenize(path, "-k", "2")
    for row in rows:
        assert all(a - b > 1e-3 for a, b in row["scores"]), "the fixture's own gap"
    assert [r["spans"][-2:] for r in rows] == [[[17, 20], [21, 22]], [[14, 15], [16, 17]]]
    assert [[v[0] for v in r["vokens"]] for r in rows] == GOLDEN


GOLDEN = [[54, 54, 19, 54, 54, 58, 58], [54, 54, 54, 19, 54, 54]]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.slow
def test_killed_at_any_time_it_ends_byte_identical(
    vokenize: Vokenize, corpus: Path, tmp_path: Path, argv: Argv
) -> None:
    vokenize(corpus, "--window", "64")  # another window may round differently
    out = tmp_path / "k" / "out.jsonl"
    out.parent.mkdir()
    command = vg_command(*argv(corpus, "-o", out, "--window", 64))
    rng, committed = random.Random(0), 0
    for _ in range(2):
        process = subprocess.Popen(command)
        journal = out.with_name("out.jsonl.journal")
        while process.poll() is None:
            rows = json.loads(journal.read_bytes())["state"]["rows"] if journal.exists() else 0
            if rows > committed:
                committed = rows
                break
            time.sleep(0.01)
        time.sleep(rng.random() * 0.2)
        process.kill()
        process.wait()
    assert committed > 0
    assert subprocess.run(command, timeout=600).returncode == 0
    assert digest(out) == digest(tmp_path / "out.jsonl")
    assert sorted(p.name for p in out.parent.iterdir()) == ["out.json", "out.jsonl"]


@pytest.mark.slow
def test_sigterm_stops_at_a_step_with_75(corpus: Path, tmp_path: Path, argv: Argv) -> None:
    out = tmp_path / "out.jsonl"
    process = subprocess.Popen(
        vg_command(*argv(corpus, "-o", out, "--window", 8)), stderr=subprocess.PIPE
    )
    journal = tmp_path / "out.jsonl.journal"
    while not journal.exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    assert b"run the same command again to resume" in errors
    assert journal.exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_is_74(corpus: Path, attempt: Attempt) -> None:
    code, message = attempt(corpus, "-o", "/dev/full", "--limit", "10")
    assert code == 74
    assert "No space left on device" in message


def test_places_that_cannot_be_written_are_73_before_any_work(
    corpus: Path, tmp_path: Path, attempt: Attempt
) -> None:
    same = tmp_path / "same.txt"
    shutil.copy(corpus, same)
    code, message = attempt(same, "-o", same)
    assert code == 73
    assert "is an input of this command" in message
    assert digest(same) == digest(corpus)
    assert attempt(same, "-o", tmp_path / "no" / "o.jsonl")[0] == 73
    assert attempt(same, "-o", tmp_path)[0] == 73


def test_an_index_of_another_matcher_is_refused(
    tiny: Path, corpus: Path, tmp_path: Path, attempt: Attempt
) -> None:
    other = save_run_of(tmp_path / "run", tiny / "encoder", seed=9)
    code, message = attempt(corpus, "--matcher", other)
    own, others = (
        json.loads((p / "run.json").read_text())["fingerprint"] for p in (tiny / "run", other)
    )
    assert code == 65
    assert own in message
    assert others in message
    code, message = attempt(corpus, "--level", "sentence")
    assert code == 78
    assert "was trained with --level token" in message


@pytest.mark.parametrize("what", ["encoder", "tokenizer", "weights", "config"])
def test_a_run_whose_parts_changed_is_refused(
    tiny: Path, corpus: Path, tmp_path: Path, what: str, attempt: Attempt
) -> None:
    broken = tmp_path / "run"
    shutil.copytree(tiny / "run", broken)
    if what == "encoder":
        tokenizer = (broken / "encoder" / "tokenizer.json").read_bytes()
        save_encoder(broken / "encoder", seed=5)
        (broken / "encoder" / "tokenizer.json").write_bytes(tokenizer)
    elif what == "tokenizer":
        file = broken / "encoder" / "tokenizer.json"
        body = json.loads(file.read_text())
        body["model"]["vocab"]["bam"], body["model"]["vocab"]["den"] = (
            body["model"]["vocab"][w] for w in ("den", "bam")
        )
        file.write_text(json.dumps(body))
    elif what == "weights":
        file = broken / "matcher.safetensors"
        body_bytes = bytearray(file.read_bytes())
        body_bytes[-3] ^= 4
        file.write_bytes(body_bytes)
    else:
        file = broken / "run.json"
        file.write_text(file.read_text().replace('"dim":8', '"dim":9'))
    code, message = attempt(
        corpus,
        "--matcher",
        broken,
        "-o",
        tmp_path / "o.jsonl",
    )
    assert code == 65, message
    assert str(broken) in message
    assert not (tmp_path / "o.jsonl").exists()


def test_an_index_that_moved_says_how_to_find_its_matcher(
    tiny: Path, corpus: Path, tmp_path: Path, attempt: Attempt
) -> None:
    for name in ("vg.faiss", "vg.ids", "vg.json"):
        shutil.copy(tiny / name, tmp_path / name)
    code, message = attempt(corpus, index=tmp_path / "vg.faiss")
    assert code == 66
    assert "--matcher" in message
    out = tmp_path / "o.jsonl"
    flags = ("--matcher", tiny / "run", "-o", out, "--limit", "3")
    assert attempt(corpus, *flags, index=tmp_path / "vg.faiss")[0] == 0
    assert len(out.read_text().splitlines()) == 3


def test_the_packed_form_takes_one_voken_a_token(corpus: Path, attempt: Attempt) -> None:
    code, message = attempt(corpus, "-k", "2", "-o", "x.npy")
    assert code == 2
    assert "one voken per token" in message


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("-k", "1001"), "1000"),
        (("-o", "x.npy.gz"), "x.npy.gz: cannot name voken rows"),
        (("-o", "x.json.zst"), "cannot name voken rows"),
    ],
)
def test_sizes_and_names_that_cannot_be_are_usage_errors(
    corpus: Path, flags: tuple[str, ...], said: str, attempt: Attempt
) -> None:
    code, message = attempt(corpus, *flags)
    assert code == 2
    assert said in message


@pytest.mark.slow
def test_locale_and_home_change_no_byte(tiny: Path, vg: Runner) -> None:
    line = "bam \u00e9\u4e2d\U0001f408 den\n".encode()
    args = ("vokenize", "-", "--index", tiny / "vg.faiss", "-q")
    bare = {
        k: v for k, v in os.environ.items() if k not in ("HOME", "LANG", "LC_ALL", "PYTHONUTF8")
    } | {"LC_ALL": "C"}
    done = vg(*args, input=line, env=bare)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["text"] == line.decode().rstrip("\n")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(tiny: Path, tmp_path: Path) -> None:
    """Peak memory of one process after 2,000 and after 12,000 more lines."""
    code = (
        "import resource, sys\n"
        "from vgtools.cli import run\n"
        "for count, path in zip(('2000', '12000'), sys.argv[2:]):\n"
        "    args = ['vokenize', path, '--index', sys.argv[1], '-o', path + '.npy', "
        "'-q', '--device', 'cpu',\n"
        "            '--limit', count, '--window', '512']\n"
        "    assert run(args) == 0\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path in paths:
        path.write_text("".join(line + "\n" for line in text(12000, longest=6)))
    done = subprocess.run(
        [sys.executable, "-c", code, tiny / "vg.faiss", *paths], capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    short, long = map(int, done.stdout.split())
    assert long < 1.05 * short


def test_flags_that_would_do_nothing_or_harm_are_refused(corpus: Path, attempt: Attempt) -> None:
    code, message = attempt(corpus, "--min-score", "nan")
    assert (code, "must be finite, below 2**63, got nan" in message) == (2, True)
    for weight in ("inf", "1e30", "nan", "-1"):  # of a large one the vectors overflow to 0
        code, message = attempt(corpus, "--context", weight)
        assert (code, "'--context': Input should be" in message) == (2, True)
    code, message = attempt(corpus, "--dtype", "float16")
    assert (code, "emulated on a CPU" in message) == (2, True)


def test_replaced_lines_are_counted_in_the_manifest(tmp_path: Path, attempt: Attempt) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"bam\xff\nden\n\xfe fis\n")
    code, message = attempt(text, "-o", tmp_path / "v.jsonl")
    assert code == 0
    assert "2 lines had bytes that are not UTF-8" in message
    assert json.loads((tmp_path / "v.json").read_text())["replaced"] == 2


@pytest.mark.parametrize("more", [(), ("-k", "2")])
def test_a_table_gives_the_bytes_of_its_json_lines(
    argv: Argv, tmp_path: Path, more: tuple[str, ...]
) -> None:
    lines = text(200, seed=5)
    rows = [{"say": line} for line in lines]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet", row_group_size=64)
    with open(tmp_path / "x.csv", "w", newline="") as out:
        csv.writer(out).writerows([["say", "id"], *([line, i] for i, line in enumerate(lines))])
    rows = [{"text": line} for line in lines]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = []
    for name in ("x.jsonl", "x.parquet#say", "x.csv#say"):
        out = tmp_path / f"{len(made)}.jsonl.gz"
        assert run(argv(tmp_path / name, "-o", out, "--window", 32, *more)) == 0
        made.append(out.read_bytes())
        entry = json.loads((tmp_path / f"{len(made) - 1}.json").read_text())["inputs"][0]
        file = (tmp_path / name.partition("#")[0]).read_bytes()
        assert entry["sha256"] == hashlib.sha256(file).hexdigest()
    assert made[0] == made[1] == made[2]
    shards = tmp_path / "s.jsonl/"
    assert run(argv(tmp_path / "x.parquet#say", "-o", f"{shards}/", *more)) == 0
    whole = b"".join(p.read_bytes() for p in sorted(shards.glob("0*-*.jsonl")))
    assert whole == gzip.decompress(made[0])
