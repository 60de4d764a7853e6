"""`vg show` as a process: what it writes where, what it says, and how it fails."""

from __future__ import annotations

import gzip
import hashlib
import os
import pty
import re
import signal
import subprocess
import termios
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.conftest import Runner, vg_command
from vgtools import cli
from vgtools.io.errors import Exit
from vgtools.io.files import dumps, write_manifest

TEXTS = ["A dog runs", "the red ball", ""]


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    """Return a folder with three pictures, their rows, ids, and three sentences of vokens."""
    (tmp_path / "photos").mkdir()
    with open(tmp_path / "images.jsonl", "wb") as out:
        for number, colour in enumerate(("red", "green", "blue")):
            Image.new("RGB", (90, 60), colour).save(tmp_path / "photos" / f"{number}.png")
            out.write(dumps({"image": f"{number}.png", "path": f"photos/{number}.png"}))
    (tmp_path / "vg.ids").write_text("0.png\n1.png\n2.png\n")
    write(tmp_path / "v.jsonl", [voken_row(t, n) for n, t in enumerate(TEXTS)])
    return tmp_path


def voken_row(text: str, first: int = 0) -> dict[str, Any]:
    spans = [list(m.span()) for m in re.finditer(r"\S+", text)]
    vokens = [-1 if text[s:e] == "the" else (first + i) % 3 for i, (s, e) in enumerate(spans)]
    return {
        "text": text,
        "spans": spans,
        "vokens": vokens,
        "scores": [0.0 if v < 0 else 0.25 * (v + 1) for v in vokens],
    }


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_bytes(b"".join(map(dumps, rows)))
    return path


@pytest.fixture
def call(capfdbinary: pytest.CaptureFixture[bytes]) -> Runner:
    """Run `vg` in this process: what only asks for a message and an exit code needs no new one."""

    def run(*args: str | Path) -> subprocess.CompletedProcess[bytes]:
        handler = signal.getsignal(signal.SIGTERM)
        code = cli.run([*map(str, args)])
        signal.signal(signal.SIGTERM, handler)
        return subprocess.CompletedProcess(args, code, *capfdbinary.readouterr())

    return run


def failed(done: subprocess.CompletedProcess[bytes], code: Exit, said: str) -> None:
    assert (done.returncode, done.stdout) == (code, b"")
    text = done.stderr.decode()
    assert said in text
    assert text.count("\n") == 1, text


LINES = (
    "1\tA\t0\t1\t1\t0\t0.png\t0.2500\n1\tdog\t2\t5\t1\t1\t1.png\t0.5000\n1\truns\t6\t10\t1\t2\t2.png\t0.7500\n"
    "2\tthe\t0\t3\t1\t-1\t-\t-\n2\tred\t4\t7\t1\t2\t2.png\t0.7500\n2\tball\t8\t12\t1\t0\t0.png\t0.2500\n"
)


def test_into_a_pipe_go_tab_separated_lines(vg: Runner, call: Runner, bank: Path) -> None:
    done = vg("show", bank / "v.jsonl", "--ids", bank / "vg.ids")
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, LINES, b"")
    bare = vg(
        "show",
        input=(bank / "v.jsonl").read_bytes(),
        env=os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0"},
    )
    assert bare.stdout.decode() == re.sub(r"\d\.png", "-", LINES)
    (bank / "v.jsonl.gz").write_bytes(gzip.compress((bank / "v.jsonl").read_bytes()))
    one = call("show", bank / "v.jsonl.gz", "--limit", "1")
    assert one.stdout.count(b"\n") == 3


def test_a_closed_pipe_is_no_error(bank: Path) -> None:
    many = write(bank / "many.jsonl", [voken_row(TEXTS[0])] * 20_000)
    shell = f"set -o pipefail; {' '.join(vg_command('show', many))} | head -1"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (141, b"")
    assert done.stdout == b"1\tA\t0\t1\t1\t0\t-\t0.2500\n"


def test_a_page_and_a_sheet(call: Runner, bank: Path) -> None:
    source = ["--images", bank / "images.jsonl", "--ids", bank / "vg.ids"]
    done = call(
        "show", bank / "v.jsonl", *source, "-o", bank / "page.html", "--png", bank / "sheet.png"
    )
    assert (done.returncode, done.stdout) == (0, b"")
    page = (bank / "page.html").read_text()
    assert page.count("data:image/webp") == 3
    assert "<title>v.jsonl · vokens</title>" in page
    assert "3 sentences, 6 tokens, 3 pictures, 1 token without." in page
    sheet = Image.open(BytesIO((bank / "sheet.png").read_bytes()))
    assert sheet.width == 1600
    assert done.stderr.decode().startswith(f"vg show: {bank}/page.html: 3 sentences, 0.0 MB\n")
    assert sorted(p.name for p in bank.iterdir() if p.name.startswith(("page", "sheet"))) == [
        "page.html",
        "sheet.png",
    ]
    folder = call(
        "show",
        bank / "v.jsonl",
        "--images",
        bank / "photos",
        "--ids",
        bank / "vg.ids",
        "-o",
        "-",
        "-q",
    )
    assert (folder.stdout.decode(), folder.stderr) == (page, b"")
    drawn = call("show", bank / "v.jsonl", *source, "--png", "-", "-q")
    assert Image.open(BytesIO(drawn.stdout)).tobytes() == sheet.tobytes()


def test_a_page_is_limited_and_says_so(call: Runner, bank: Path) -> None:
    rows = [voken_row("A dog")] * 230
    many = bank / "many.jsonl"
    many.write_bytes(b"".join(map(dumps, rows)) + b"{torn")
    source = ["--images", bank / "photos", "--ids", bank / "vg.ids"]
    done = call("show", many, *source, "-o", bank / "p.html", "--png", bank / "s.png")
    assert done.returncode == 0
    assert (bank / "p.html").read_text().count("<article") == 200
    assert (
        "p.html: 200 sentences, 0.1 MB; the file continues, --limit shows more"
        in done.stderr.decode()
    )
    assert "s.png: 24 sentences; the file continues" in done.stderr.decode()
    done = call("show", many, *source, "-o", bank / "p.html", "--limit", "5")
    assert (bank / "p.html").read_text().count("<article") == 5
    failed(
        call("show", many, *source, "-o", bank / "p.html", "--limit", "300"),
        Exit.DATA,
        "many.jsonl:231: not valid JSON",
    )
    assert (bank / "p.html").read_text().count("<article") == 5, (
        "a failed run left the old page alone"
    )


def test_the_manifest_says_whether_scores_are_probabilities(call: Runner, bank: Path) -> None:
    source = ["--images", bank / "photos", "--ids", bank / "vg.ids", "-o", bank / "p.html"]
    for facts, name in (
        ({"score": "probability"}, "Probability of being right"),
        ({}, "Relevance, not calibrated"),
    ):
        write_manifest(bank / "v.jsonl", [bank / "v.jsonl"], kind="vokens", **facts)
        assert call("show", bank / "v.jsonl", *source).returncode == 0
        assert f"<dt>{name}; the line under a picture</dt>" in (bank / "p.html").read_text()


def test_an_index_gives_ids_and_facts(call: Runner, bank: Path) -> None:
    (bank / "vg.faiss").write_bytes(b"index")
    facts = {
        "kind": "index",
        "count": 3,
        "dim": 64,
        "matcher": {"run": "runs/m", "fingerprint": "f" * 64},
    }
    write_manifest(bank / "vg.faiss", [bank / "vg.faiss", bank / "vg.ids"], **facts)
    args = [
        "show",
        bank / "v.jsonl",
        "--images",
        bank / "photos",
        "--index",
        bank / "vg.faiss",
        "-o",
        bank / "p.html",
    ]
    assert call(*args).returncode == 0
    assert "<dt>Matcher</dt><dd>runs/m (ffffffffffff)</dd>" in (bank / "p.html").read_text()
    # Vokens whose manifest names another index are refused: their rows are other images.
    other, true = (hashlib.sha256(data).hexdigest() for data in (b"other", b"index"))
    ids = hashlib.sha256((bank / "vg.ids").read_bytes()).hexdigest()
    by_ids = [*args[:4], "--ids", bank / "vg.ids", *args[6:]]
    for faiss, listed, codes in (
        (true, ids, (0, 0)),
        (other, ids, (Exit.DATA, 0)),
        (true, other, (Exit.DATA, Exit.DATA)),
    ):
        made = {"a.faiss": {"sha256": faiss}, "a.ids": {"sha256": listed}}
        write_manifest(
            bank / "v.jsonl", [bank / "v.jsonl"], kind="vokens", config={"index_sha256": made}
        )
        done = [call(*args), call(*by_ids)]
        assert tuple(d.returncode for d in done) == codes
        for refused in (d for d in done if d.returncode):
            text = refused.stderr.decode()
            assert text.startswith(f"vg: {bank}/v.jsonl: was made with a.")
            assert other in text
            assert (true in text) or (ids in text)
    # Rows of two indexes are shown with their ids in one file.
    parts = (bank / "vg.ids").read_bytes().splitlines(keepends=True)
    hashes = [hashlib.sha256(part).hexdigest() for part in (parts[0], b"".join(parts[1:]))]
    made = {f"{name}.ids": {"sha256": sha} for name, sha in zip("ab", hashes, strict=True)}
    write_manifest(
        bank / "v.jsonl", [bank / "v.jsonl"], kind="vokens", config={"index_sha256": made}
    )
    assert call(*by_ids).returncode == 0
    why = "rows of several indexes take one --ids, their .ids joined in order"
    failed(call(*args, "--index", bank / "vg.faiss"), Exit.USAGE, why)
    (bank / "v.json").unlink()
    (bank / "vg.ids").write_text("0.png\n1.png\n3.png\n")
    failed(call(*args), Exit.DATA, "vg.ids: is damaged or from another run")


def test_missing_pictures_are_placeholders_and_are_told(call: Runner, bank: Path) -> None:
    (bank / "photos" / "1.png").write_bytes(b"")
    (bank / "photos" / "2.png").unlink()
    done = call(
        "show",
        bank / "v.jsonl",
        "--images",
        bank / "images.jsonl",
        "--ids",
        bank / "vg.ids",
        "-o",
        bank / "p.html",
    )
    assert done.returncode == 0
    assert "2 of 3 pictures cannot be shown and have a placeholder: 1.png: " in done.stderr.decode()
    assert (bank / "p.html").read_text().count('<i class="pic gone">') == 3 + 2
    (bank / "empty").mkdir()
    done = call(
        "show",
        bank / "v.jsonl",
        "--images",
        bank / "empty",
        "--ids",
        bank / "vg.ids",
        "-o",
        bank / "q.html",
    )
    failed(done, Exit.NO_INPUT, "empty: has none of the 3 images that the vokens name")
    assert not (bank / "q.html").exists()


def test_wrong_calls_and_inputs_fail_in_one_line(call: Runner, bank: Path) -> None:
    rows, ids, photos = bank / "v.jsonl", ["--ids", bank / "vg.ids"], ["--images", bank / "photos"]
    page = ["-o", bank / "p.html"]
    failed(call("show", rows, *ids, *page), Exit.USAGE, "--images")
    failed(call("show", rows, *photos, *page), Exit.USAGE, "--index or --ids")
    failed(call("show", rows, *ids, "--index", "x.faiss"), Exit.USAGE, "not both")
    failed(
        call("show", rows, *ids, *photos, "-o", "-", "--png", "-"),
        Exit.USAGE,
        "cannot share stdout",
    )
    same = ["-o", bank / "p.html", "--png", bank / "photos" / ".." / "p.html"]
    failed(call("show", rows, *ids, *photos, *same), Exit.CANNOT_CREATE, "two outputs")
    failed(call("show", bank / "none.jsonl"), Exit.NO_INPUT, "none.jsonl: cannot be read")
    failed(call("show", bank / "run", *page), Exit.NO_INPUT, "run: cannot be read")
    failed(
        call("show", rows, "--index", bank / "no.faiss"),
        Exit.NO_INPUT,
        "no.faiss: does not exist",
    )
    target = bank / "no" / "p.html"
    failed(
        call("show", rows, *ids, *photos, "-o", target),
        Exit.CANNOT_CREATE,
        "does not exist; create it first",
    )
    failed(
        call("show", rows, *ids, *photos, "-o", rows),
        Exit.CANNOT_CREATE,
        "is an input of this command",
    )
    (bank / "vg.ids").write_text("0.png\n1.png\n")
    done = call("show", rows, *ids, *photos, *page)
    failed(done, Exit.DATA, f"{rows}:1: the voken of token 2 is 2, the image bank has 2 rows")
    assert not (bank / "p.html").exists()


def on_terminal(
    command: list[str],
    width: int,
    stdin: bytes | None = None,
    size: tuple[int, int] | None = None,
    **env: str,
) -> tuple[int, str]:
    """Run a command whose output is a terminal (its input too, unless bytes are given) and return
    what it showed.
    """
    ours, theirs = pty.openpty()
    if size is not None:
        termios.tcsetwinsize(theirs, size)
    process = subprocess.Popen(
        command,
        stdin=theirs if stdin is None else subprocess.PIPE,
        stdout=theirs,
        stderr=theirs,
        env={"PATH": os.environ["PATH"], "COLUMNS": str(width), "TERM": "xterm-256color", **env},
    )
    os.close(theirs)
    if process.stdin is not None:
        process.stdin.write(stdin or b"")
        process.stdin.close()
    found = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # how Linux says that the other end is closed
            break
        if not chunk:
            break
        found += chunk
    os.close(ours)
    return process.wait(timeout=60), found.decode().replace("\r\n", "\n")


def test_a_terminal_gets_a_table(bank: Path) -> None:
    command = vg_command("show", bank / "v.jsonl", "--ids", bank / "vg.ids", "--limit", "2")
    code, text = on_terminal(command, 60, NO_COLOR="1")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert code == 0
    assert [line.rstrip() for line in plain.splitlines()[:7]] == [
        "1  A dog runs",
        "token   voken   image      score",
        "────────────────────────────────",
        "A           0   0.png      0.250",
        "dog         1   1.png      0.500",
        "runs        2   2.png      0.750",
        "",
    ]
    assert "the         -\n" in re.sub(" +\n", "\n", plain)
    assert "2 sentences; the file continues" in plain
    assert not re.search(r"\x1b\[[0-9;]*3\dm", text), "NO_COLOR"
    assert "\x1b[36m" in on_terminal(command, 60)[1]
    dumb = on_terminal(command, 24, TERM="dumb")[1]
    assert "\x1b" not in dumb
    assert (
        max(map(len, dumb.partition("2 sentences")[0].partition("vg show")[0].splitlines())) <= 24
    )


def test_a_terminal_gets_small_pictures_and_a_pipe_never(bank: Path) -> None:
    command = vg_command(
        "show",
        bank / "v.jsonl",
        "--ids",
        bank / "vg.ids",
        "--images",
        bank / "photos",
        "--limit",
        "2",
    )
    code, text = on_terminal(command, 60, size=(24, 60), COLORTERM="truecolor")
    assert code == 0, text
    assert text.count("▀") == 12 * 6 * 5  # of five tokens with a picture
    assert "0.png" in text
    # Neither without colours, nor on a terminal that states no size, nor where rows are piped in.
    assert "▀" not in on_terminal(command, 60, size=(24, 60), NO_COLOR="1")[1]
    code, text = on_terminal(command, 60, COLORTERM="truecolor")
    assert (code, text.count("▀")) == (0, 0)
    piped = [*command[: command.index("show") + 1], "-", *command[command.index("show") + 2 :]]
    rows = (bank / "v.jsonl").read_bytes()
    code, text = on_terminal(piped, 60, rows, (24, 60), COLORTERM="truecolor")
    assert (code, text.count("▀")) == (0, 0)
    done = subprocess.run(command, capture_output=True, check=True, stdin=subprocess.DEVNULL)
    assert b"\x1b" not in done.stdout
    assert done.stdout.startswith(b"1\tA\t0\t1\t1\t0\t0.png\t0.2500\n")


def test_escape_sequences_do_not_reach_the_terminal(bank: Path) -> None:
    hostile = dumps(voken_row("\x1b]8;;http://x\x07 \x1b[2J [bold]x"))
    _, text = on_terminal(vg_command("show", "-"), 60, stdin=hostile, NO_COLOR="1")
    assert not re.search(r"\x1b(?!\[[0-9;]*m)", text)
    assert "\\x1b]8;;http://x\\x07" in text
    assert "[bold]x" in text


def test_a_terminal_with_nothing_to_read_gets_help() -> None:
    code, text = on_terminal(vg_command("show"), 80)
    assert code == Exit.USAGE
    assert text.startswith("Usage:")
    assert "vg show vokens.jsonl --index vg.faiss" in text


def test_runs_have_curves_by_the_ending(call: Runner, tiny: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        rows = [{"step": n, "loss": 1.0 / n, "lr": 0.1} for n in (1, 2)]
        write(tmp_path / name / "metrics.jsonl", rows)
    runs = (tmp_path / "a", tmp_path / "b")
    starts = {"html": b"<!DOCTYPE html", "svg": b"<svg", "png": b"\x89PNG", "pdf": b"%PDF-"}
    for form, start in starts.items():
        target = tmp_path / f"c.{form}"
        for _ in range(2):  # it is known again by its seal, and replaced
            done = call("show", *runs, "-o", target)
            assert done.returncode == 0, done.stderr
        assert target.read_bytes().startswith(start)
        assert done.stderr.decode() == f"vg show: {target}: 2 trainings\n"
        target.write_bytes(start + b" of somebody else")
        failed(call("show", *runs, "-o", target), Exit.CANNOT_CREATE, "vg does not know it")
    page = call("show", *runs, "-o", "-").stdout
    assert page.startswith(b"<!DOCTYPE html")
    failed(call("show", *runs), Exit.USAGE, "curves need a file: .html, .svg, .png or .pdf")
    failed(call("show", *runs, "-o", "x.txt"), Exit.USAGE, "expected .html, .svg, .png, .pdf")
    failed(call("show", *runs, "--limit", "3"), Exit.USAGE, "leave all but -o out")
    failed(call("show", *runs, tiny, "-o", "x.svg"), Exit.USAGE, f"{tiny}: expected a run")


def test_the_records_of_a_finished_run_are_checked(call: Runner, tmp_path: Path) -> None:
    import torch

    from vgtools.models.runs import save_run

    run, metrics = tmp_path / "run", b'{"step":1,"loss":2}\n'
    run.mkdir()
    (run / "metrics.jsonl").write_bytes(metrics)
    facts = {"metrics": {"sha256": hashlib.sha256(metrics).hexdigest()}}
    save_run(run, "matcher", {"x": torch.ones(1)}, {"config": {}, **facts})
    assert call("show", run, "-o", tmp_path / "c.svg").returncode == 0
    (run / "metrics.jsonl").write_bytes(b'{"step":1,"loss":1}\n')
    failed(call("show", run, "-o", tmp_path / "d.svg"), Exit.DATA, "metrics.jsonl")
    assert not (tmp_path / "d.svg").exists()
