"""The API over real HTTP: the bytes of the commands, batches, streams, errors."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.serving.client import Server
from tests.tiny import text
from vgtools.cli import run

LINES = text(70, seed=3)


def as_text(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def rows_of(texts: list[str]) -> bytes:
    return b"".join(json.dumps({"text": one}).encode() + b"\n" for one in texts)


def written(*args: str | Path) -> bytes:
    """Return the bytes that a command writes."""
    output = Path(args[1]).with_name("written.jsonl")
    assert run([*map(str, args), "-o", str(output), "--device", "cpu", "-q", "--restart"]) == 0
    return output.read_bytes()


@pytest.mark.parametrize(
    ("name", "query", "args"),
    [
        ("vokenize", "", []),
        ("vokenize", "?k=5&min_score=0.2", ["-k", "5", "--min-score", "0.2"]),
        ("retrieve", "?k=7", ["-k", "7"]),
        ("retrieve", "", []),
    ],
)
def test_lines_are_answered_with_the_bytes_of_the_command(
    tmp_path: Path, tiny: Path, server: Server, name: str, query: str, args: list[str]
) -> None:
    (tmp_path / "t.txt").write_bytes(as_text(LINES))
    expected = written(name, tmp_path / "t.txt", "--index", tiny / "vg.faiss", *args)
    found = server.ask(f"/api/{name}{query}", as_text(LINES), "text/plain")
    assert found.body == expected
    assert found.headers["content-type"] == "application/x-ndjson"
    rows = server.ask(f"/api/{name}{query}", rows_of(LINES), "application/x-ndjson")
    assert rows.body == expected
    # the same again, one at a time and as a list, at once with others
    listed = server.ask(f"/api/{name}{query}", [{"text": line} for line in LINES])
    assert json.loads(listed.body) == [json.loads(row) for row in expected.splitlines()]
    with ThreadPoolExecutor(8) as pool:
        alone = pool.map(lambda line: server.ask(f"/api/{name}{query}", {"text": line}), LINES)
        assert b"".join(one.body for one in alone) == expected


def test_a_row_keeps_its_keys_and_leaves_out_its_own_image(server: Server) -> None:
    row = {"text": LINES[1] or LINES[2], "image": "image003", "id": 5}
    found = json.loads(server.ask("/api/retrieve?k=60", row).body)
    assert (found["id"], found["image"], len(found["images"])) == (5, "image003", 60)
    without = json.loads(server.ask("/api/retrieve?k=60&not_own=1", row).body)
    assert sorted(without["images"]) == [n for n in range(60) if n != 3]


def test_heat_has_the_bytes_of_the_command(
    tmp_path: Path, tiny: Path, bank: Path, server: Server
) -> None:
    queries = b"".join(
        json.dumps({"text": line, "image": f"image{number:03}"}).encode() + b"\n"
        for number, line in enumerate(LINES[:20])
    )
    (tmp_path / "q.jsonl").write_bytes(queries)
    grid = bank / "grid.npy"
    expected = written("locate", tmp_path / "q.jsonl", "--matcher", tiny / "run", "--feats", grid)
    assert server.ask("/api/locate", queries, "application/x-ndjson").body == expected
    lost = server.ask(
        "/api/locate", [{"text": "a", "image": "image003"}, {"text": "a", "image": "?"}]
    )
    assert lost.status == 400
    assert lost.error.startswith("request:2: names '?', of which ")


def test_the_bank_is_described_and_its_pictures_are_served(server: Server) -> None:
    facts = json.loads(server.ask("/api/index").body)
    assert (facts["count"], facts["keys"], facts["calibrated"]) == (60, "matcher", False)
    assert facts["answers"] == ["vokenize", "retrieve", "locate", "attention"]
    named = json.loads(server.ask("/api/index?row=2&row=59").body)
    assert [(one["row"], one["image"]) for one in named] == [(2, "image002"), (59, "image059")]
    small = server.ask("/api/images/2")
    assert (small.status, small.headers["content-type"]) == (200, "image/webp")
    assert small.body[:4] == b"RIFF"
    described = json.loads(server.ask("/openapi.json").body)
    assert set(described["paths"]) == {
        "/api/vokenize",
        "/api/retrieve",
        "/api/locate",
        "/api/attention",
        "/api/index",
        "/api/images/{row}",
        "/api/regions",
        "/api/regions/{row}",
    }
    assert b"/api/locate" in server.ask("/docs").body


@pytest.mark.parametrize(
    ("path", "body", "kind", "status", "why"),
    [
        ("vokenize", b"{", "", 400, "request: not valid JSON: "),
        ("vokenize", b"[1]", "", 400, "request:1: expected a JSON object, got int"),
        (
            "vokenize",
            b'{"x": 1}',
            "",
            400,
            "request:1: the key \"text\" is missing; the row has 'x'",
        ),
        ("vokenize", b'{"text": 5}', "", 400, 'request:1: "text" must be a string, got 5'),
        (
            "vokenize",
            b'{"text": "a"}\n{"text": \n',
            "application/x-ndjson",
            400,
            "request:2: not valid JSON: ",
        ),
        ("vokenize", b"a", "image/png", 400, "request: Content-Type must be application/json, "),
        (
            "vokenize?k=0",
            b"{}",
            "",
            400,
            "request: \"k\" must be an integer from 1 to 1000, got '0'",
        ),
        ("vokenize?k=1e3", b"{}", "", 400, 'request: "k" must be an integer'),
        ("vokenize?min_score=nan", b"{}", "", 400, 'request: "min_score" must be a number, got'),
        ("vokenize?n=1", b"{}", "", 400, '/api/vokenize: has no setting "n"; it has k, min_score'),
        ("vokenize?context=1", b'{"text": "a"}', "", 400, "has no sentence term whose weight"),
        ("vokenize", b'{"text": "' + b"a" * 1_000_001 + b'"}', "", 400, "request:1: has a text of"),
        ("retrieve", b'{"text": "a", "id": 1.5}', "", 400, 'request:1: "id" must be a string or'),
        ("neighbours", b"a", "", 404, "/api/neighbours: needs vg serve --backbone"),
        ("other", b"a", "", 404, "Not Found"),
    ],
)
def test_errors_have_the_words_of_the_commands(
    server: Server, path: str, body: bytes, kind: str, status: int, why: str
) -> None:
    found = server.ask(f"/api/{path}", body, kind)
    assert found.status == status
    assert why in found.error
    assert found.headers["content-type"] == "application/json"


def test_other_errors_are_json_too(server: Server) -> None:
    assert server.ask("/api/images/60").error == (
        "request: \"row\" must be an integer from 0 to 59, got '60'"
    )
    assert server.ask("/api/images/60").status == 404
    assert server.ask("/api/vokenize").status == 405
    assert server.ask("/api/images/2?side=1").status == 400
    assert server.ask("/api/index?row=x").status == 404
    assert "image008: cannot be read" in server.ask("/api/images/8").error
    assert "image007: an SVG drawing with a script" in server.ask("/api/images/7").error
