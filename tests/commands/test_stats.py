"""`vg stats` as a process: records, tables, streams, exit codes."""

from __future__ import annotations

import gzip
import json
import os
import pty
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from vgtools import cli

from ..conftest import vg_command

Runner = Callable[..., "subprocess.CompletedProcess[bytes]"]
WIKI = "The dog is a mammal .\n\nCats and dogs , cat and dog .\n"
CAPTIONS = "".join(
    json.dumps({"image": "i", "text": t}) + "\n" for t in ("A dog sees a cat.", "the dog , the cat")
)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "wiki.txt").write_text(WIKI)
    (tmp_path / "captions.jsonl").write_text(CAPTIONS)
    return tmp_path


def records(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, object]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_golden(vg: Runner, here: Path) -> None:
    done = vg(
        "stats",
        "wiki.txt",
        "-",
        "-r",
        "wiki.txt",
        "-c",
        "captions.jsonl",
        "--grounded-above",
        "1",
        cwd=here,
        input=b"A dog\n",
    )
    first, second = records(done)
    assert {
        k: first[k]
        for k in ("corpus", "tokens", "sentences", "empty_lines", "types", "jsd_1", "jsd_2")
    } == {
        "corpus": "wiki.txt",
        "tokens": 14,
        "sentences": 2,
        "empty_lines": 1,
        "types": 11,
        "jsd_1": 0,
        "jsd_2": 0,
    }
    assert (first["grounded_types"], first["grounding_ratio"]) == (2, 3 / 14)
    # a 1/2, dog 1/2 against a 1/14, dog 2/14: (log2(7/4) + log2(14/9)) / 4 + (11 - 2 + 2 log2(4/9))
    # / 28; no 2-gram in common.
    assert second["jsd_1"] == pytest.approx(0.599059, abs=1e-6)
    assert (second["corpus"], second["tokens"], second["jsd_base"], second["jsd_2"]) == (
        "-",
        2,
        2,
        1.0,
    )
    assert second["grounding_ratio"] == 0.5
    assert b"vg:" not in done.stderr


def test_base_memory_and_compression_change_no_count(vg: Runner, here: Path) -> None:
    (here / "wiki.txt.gz").write_bytes(gzip.compress(WIKI.encode()))
    names = ["captions.jsonl", "wiki.txt.gz"]
    plain = records(vg("stats", *names, "-r", "wiki.txt", cwd=here))
    nats = records(vg("stats", *names, "-r", "wiki.txt", "--base", "e", "--memory", "1", cwd=here))
    assert nats[0]["jsd_base"] == "e"
    assert nats[0]["jsd_2"] == pytest.approx(plain[0]["jsd_2"] * 0.6931471805599453)
    assert plain[1]["jsd_2"] == 0


def test_grounded_types_are_listed(vg: Runner, here: Path) -> None:
    done = vg(
        "stats",
        "--captions",
        "captions.jsonl",
        "--grounded-above",
        "1",
        "--grounded-types",
        cwd=here,
    )
    assert records(done) == [{"type": "dog", "count": 2}, {"type": "cat", "count": 2}]


def test_word_pieces_of_a_tokenizer(vg: Runner, here: Path) -> None:
    tokenizer = Tokenizer(
        models.WordPiece({"[UNK]": 0, "dog": 1, "##s": 2, "cat": 3}, unk_token="[UNK]")
    )
    tokenizer.normalizer, tokenizer.pre_tokenizer = (
        normalizers.Lowercase(),
        pre_tokenizers.Whitespace(),
    )
    (here / "own").mkdir()
    tokenizer.save(str(here / "own" / "tokenizer.json"))
    (record,) = records(vg("stats", "wiki.txt", "-t", "./own", cwd=here))
    # The second line is cat ##s [UNK] dog ##s [UNK] cat [UNK] dog [UNK].
    assert (record["tokenizer"], record["tokens"], record["types"]) == ("./own", 16, 4)


def test_grounded_types_lack_the_stop_words_of_the_language(vg: Runner, here: Path) -> None:
    (here / "de.txt").write_text("der Hund und der Hund\n" * 3)
    flags = ("-c", "de.txt", "--grounded-above", "2", "--grounded-types")
    done = vg("stats", *flags, "--language", "de", cwd=here)
    assert [record["type"] for record in records(done)] == ["hund"]
    done = vg("stats", *flags, cwd=here)
    assert {record["type"] for record in records(done)} == {"der", "hund", "und"}


def test_vokens_from_a_pipe(vg: Runner) -> None:
    rows = [
        {"text": "a b", "spans": [[0, 1], [2, 3]], "vokens": v, "scores": [1.0, 1.0]}
        for v in ([5, 5], [6, -1])
    ]
    done = vg("stats", "--vokens", "-", input="".join(json.dumps(r) + "\n" for r in rows).encode())
    assert records(done) == [{
        "vokens": "-", "tokens": 4, "with_voken": 3, "images_covered": 2,
        "images_effective": pytest.approx(1.8898815748), "types": 2,
        "images_per_type": {"max": 2, "mean": 1.5, "std": 0.5},
    }]  # fmt: skip


def test_the_plot_is_written_whole_and_never_over_an_input(vg: Runner, here: Path) -> None:
    done = vg("stats", "wiki.txt", "--reported", "--plot", "t.svg", cwd=here)
    assert [r["corpus"] for r in records(done)][:2] == ["wiki.txt", "MS COCO"]
    svg = (here / "t.svg").read_text()
    assert svg.startswith("<svg ")
    assert re.search(r"</svg>\s*<!-- vg [0-9a-f]{64} -->\n$", svg)
    assert "wiki.txt" in svg
    assert "var(" not in svg  # only browsers know variables: elsewhere everything would be black
    (here / "c.svg").write_text(WIKI)
    done = vg("stats", "c.svg", "--plot", "c.svg", cwd=here)
    assert done.returncode == 73
    assert (here / "c.svg").read_text() == WIKI


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["missing.txt"], 66, "missing.txt: cannot be read"),
        (["torn.jsonl"], 65, "torn.jsonl:2: not valid JSON"),
        (["textless.jsonl"], 65, 'textless.jsonl:1: the key "text" is missing'),
        (["cut.gz"], 65, "compressed data is cut off"),
        (["x.npy"], 65, "x.npy: is not text"),
        (["wiki.txt", "-r", "empty.txt"], 65, "empty.txt: holds no token"),
        (["wiki.txt", "-c", "wiki.txt"], 65, "--grounded-above"),
        (["wiki.txt", "-t", "./nothing"], 66, "nothing"),
        (["wiki.txt", "--base", "3"], 2, "'3' is not one of '2', 'e', '10'"),
        (["wiki.txt", "--plot", "t.png"], 2, ".svg"),
        (["wiki.txt", "--plot", "no/t.svg"], 73, "does not exist"),
        (["--grounded-types"], 2, "--captions"),
        (["wiki.txt", "--without-stop-words"], 2, "--captions"),
        (["-", "-"], 2, "only once"),
        (["--vokens", "wiki.txt"], 65, "wiki.txt:1: not valid JSON"),
        (["--vokens", "loose.npy"], 66, "loose.npy"),
    ],
)
def test_bad_input(args: list[str], code: int, said: str, vg: Runner, here: Path) -> None:
    (here / "torn.jsonl").write_text('{"text": "a"}\n{"text": "b')
    (here / "textless.jsonl").write_text('{"texts": "a"}\n')
    (here / "cut.gz").write_bytes(gzip.compress(os.urandom(9000).hex().encode())[:4000])
    (here / "empty.txt").write_text("\n")
    done = vg("stats", *args, cwd=here)
    assert done.returncode == code, done.stderr
    assert said in done.stderr.decode()
    assert done.stdout == b""
    assert b"internal" not in done.stderr


def test_bad_bytes_are_counted_on_stderr(vg: Runner) -> None:
    done = vg("stats", input=b"a \xff b\nc\n")
    assert records(done)[0]["tokens"] == 3
    assert b"1 line had bytes that are not UTF-8" in done.stderr
    assert vg("stats", "-q", input=b"a \xff b\nc\n").stderr == b""


def test_a_closed_pipe_is_141_and_silent(here: Path) -> None:
    with subprocess.Popen(
        vg_command("stats", "wiki.txt", "-q"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=here,
    ) as done:
        assert done.stdout is not None
        assert done.stderr is not None
        done.stdout.close()
        assert done.stderr.read() == b""
    assert done.returncode == 141


def test_a_terminal_gets_a_table_and_help(here: Path) -> None:
    master, slave = pty.openpty()
    environment = {**os.environ, "COLUMNS": "130", "NO_COLOR": "1", "TERM": "dumb"}
    command = vg_command("stats", "wiki.txt", "-r", "wiki.txt", "--vokens", os.devnull)
    done = subprocess.run(
        command,
        stdout=slave,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        cwd=here,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    shown = os.read(master, 1 << 16).decode()
    assert '{"' not in shown
    for word in (
        "Corpus",
        "1-gram JSD",
        "wiki.txt",
        "14",
        "7.0",
        "base 2: 0 to 1 bit",
        "Effective",
    ):
        assert word in shown
    done = subprocess.run(vg_command("stats"), stdin=slave, capture_output=True, cwd=here)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"Usage:" in done.stderr
    os.close(master)
    os.close(slave)


def test_it_needs_no_torch(here: Path) -> None:
    code = (
        "import sys; from vgtools.cli import run; "
        "run(['stats', 'wiki.txt', '-r', 'wiki.txt', '-q']); print(sorted({'torch', "
        "'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([*vg_command()[:1], "-c", code], capture_output=True, text=True, cwd=here)
    assert done.stdout.splitlines()[-1] == "[]"


def test_markdown_beside_the_paper_s_rows(vg: Runner, here: Path) -> None:
    done = vg("stats", "wiki.txt", "--table", "--reported", cwd=here)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().splitlines()
    assert lines[0].startswith("| Corpus | Tokens | Sentences |")
    assert lines[2].startswith("| wiki.txt | 14 | 2 |")
    assert lines[3].startswith("| MS COCO (reported in the paper) | 7,000,000 |")
    assert vg("stats", "--vokens", "-", "--table", cwd=here).returncode == 2


def test_vectors_are_not_written_over_what_is_counted(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.txt").write_text("Bam bet.\nKos bam.\n")
    index = ["--index", str(tiny / "vg.faiss"), "--device", "cpu", "-q"]
    assert cli.run(["vokenize", "t.txt", *index, "-o", "v.jsonl"]) == 0
    assert cli.run(["stats", "--vokens", "v.jsonl", "--vectors", "w.npy", "-q"]) == 0
    before = Path("w.ids").read_bytes()
    Path("link.txt").symlink_to("w.ids")
    for flags in (["w.ids"], ["link.txt"], ["t.txt", "--reference", "w.ids"]):
        capfd.readouterr()
        assert cli.run(["stats", *flags, "--vokens", "v.jsonl", "--vectors", "w.npy"]) == 73
        assert "w.ids: is an input of this command" in capfd.readouterr().err
    assert Path("w.ids").read_bytes() == before
