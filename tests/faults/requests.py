"""Requests at a running `vg serve`: broken, huge, hostile, cut off.

A trial is `requests serve SEED`: a server, 60 requests that the seed draws, then SIGTERM. No answer
has the status 500, and every other one than 200 comes with JSON that gives the reason. The server
then answers a good request, ends with 0 and without a word, and leaves no file.
"""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.faults.case import Case
from tests.faults.trials import Outcome, Workspace
from tests.serving.client import Server

CASES = {
    "serve": Case(
        "serve",
        "--index in/vg.faiss --images in/bank.jsonl --feats in/cells.npy --regions in/scenes.npy"
        " --encoder in/vb --captions in/entities.jsonl --timeout 20 --offline",
    )
}
_REQUESTS = 60
_SECONDS = 90
_PATHS = (
    *("/", "/docs", "/openapi.json", "/api/index", "/api/images/1", "/api/regions"),
    *("/api/regions/1", "/api/vokenize", "/api/retrieve", "/api/locate", "/api/attention"),
    *("/api/neighbours", "/api/none", "/api/images/../../in/vg.json", "//etc/passwd", "/%00"),
)
_SETTINGS = ("k", "min_score", "context", "not_own", "row", "side", "find", "first", "image", "x")
_TYPES = ("application/json", "application/x-ndjson", "text/plain", "image/png", "", "a/b; c=\xe9")
_TEXTS = (
    *("", " ", "a dog", "<script>alert(1)</script>", "\u202e\x00\x1b]8;;x\x07", "\ud7ff👩‍🚒" * 9),
    *("a" * 66_000, "a " * 3_000, "ﷺ" * 500, "'\"`{{7*7}}${x}"),
)


def plan(space: Workspace, case: Case, count: int, seed: int) -> list[str]:
    """Return ids."""
    return [f"requests {case.name} {seed + n}" for n in range(count)]


def _value(rng: random.Random) -> Any:
    """Return a JSON value, often one that is wrong where it is put."""
    kinds = (
        lambda: rng.choice(_TEXTS),
        lambda: rng.choice((None, True, -1, 0, 1e308, 2**63, [], {}, [[[1]]], [0, 1], [5, 2])),
        lambda: rng.choice(("image003", "photo1.jpg", "../in/vg.json", "?")),
    )
    return rng.choice(kinds)()


def _row(rng: random.Random) -> dict[str, Any]:
    row = {"text": rng.choice(_TEXTS), "image": rng.choice(("image003", "photo1.jpg"))}
    for name in rng.sample(("text", "image", "span", "boxes", "width", "phrases", "id"), 2):
        row[name] = _value(rng)
    return row


def _body(rng: random.Random) -> bytes:
    """Return the body of a request: rows, some of them broken."""
    rows: list[Any] = [_row(rng) for _ in range(rng.choice((1, 1, 2, 40)))]
    lines = [json.dumps(row, ensure_ascii=rng.random() < 0.5) for row in rows]
    forms = ("\n".join(lines), f"[{','.join(lines)}]", lines[0], rng.choice(_TEXTS))
    data = bytearray(rng.choice(forms).encode("utf-8", "surrogatepass"))
    change = rng.choice(("", "", "cut", "bytes", "deep", "many", "number"))
    if change == "cut":
        del data[rng.randrange(len(data) + 1) :]
    elif change == "bytes":
        for _ in range(min(4, len(data))):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif change == "deep":
        data[:] = b"[" * 50_000
    elif change == "many":
        data[:] = rng.choice((b"\n", b"{},", b'{"text":""}\n')) * 100_000
    elif change == "number":
        data[:] = b'{"text": ' + b"9" * 5_000 + b"}"
    return bytes(data)


def _request(rng: random.Random, port: int) -> Iterator[bytes]:
    """Yield the bytes of one request, in parts."""
    path = rng.choice(_PATHS)
    if rng.random() < 0.4:
        value = rng.choice(("1", "0", "-1", "1000", "1e9", "nan", "9" * 400, "\x00", "é<>"))
        path += f"?{rng.choice(_SETTINGS)}={quote(value)}"
    body = _body(rng) if rng.random() < 0.8 else b""
    method = rng.choice(("GET", "POST", "POST", "POST", "PUT", "HEAD", "X" * 99))
    length = len(body) if rng.random() < 0.9 else rng.choice((0, 5, len(body) + 9, 10**12))
    heads = {
        "Host": rng.choice((f"127.0.0.1:{port}", f"localhost:{port}", "localhost", "evil.example")),
        "Content-Type": rng.choice(_TYPES),
        "Content-Length": str(length),
        "Connection": "close",
    }
    if rng.random() < 0.1:
        heads["Origin"] = rng.choice(("null", "http://evil.example", f"http://127.0.0.1:{port}"))
    if rng.random() < 0.1:
        heads[rng.choice(("Cookie", "Range", "X", "Transfer-Encoding"))] = rng.choice(_TEXTS[:4])
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in heads.items())]
    yield ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
    yield body


# The answer of the HTTP library, whole or in chunks.
_INVALID = (
    b"Invalid HTTP request received.",
    b"1e\r\nInvalid HTTP request received.\r\n0\r\n\r\n",
)


def _fault(said: bytes, method: bytes) -> tuple[str, str]:
    """Judge an answer; it may be missing where a request is not HTTP, or lacks its end."""
    head, _, body = said.partition(b"\r\n\r\n")
    status = head.split(b" ")[1] if head.startswith(b"HTTP/1.1 ") else b""
    if not said or (status == b"400" and body in _INVALID):
        return "", ""
    if not status or status == b"500":
        return "internal", said[:300].decode("latin-1")
    if status != b"200" and method != b"HEAD":
        try:
            assert json.loads(body)["error"]
        except (ValueError, TypeError, KeyError, AssertionError):
            return "message", said[:300].decode("latin-1")
    return "", ""


def _ask(port: int, rng: random.Random) -> tuple[str, str]:
    """Send a request; return the verdict on its answer."""
    parts = list(_request(rng, port))
    answer = bytearray()
    with closing(socket.create_connection(("127.0.0.1", port), timeout=_SECONDS)) as wire:
        try:
            for part in parts:
                wire.sendall(part)
            if rng.random() < 0.1:
                return "", ""  # it does not wait for the answer
            wire.shutdown(socket.SHUT_WR)
            while part := wire.recv(1 << 16):
                answer += part
        except TimeoutError:
            return "hang", parts[0][:200].decode("latin-1")
        except OSError:  # closed while the body was on its way: what was said may be lost
            pass
    return _fault(bytes(answer), parts[0].split(b" ")[0])


def attempt(space: Workspace, case: Case, detail: str) -> Outcome:
    """Run one trial."""
    trial = f"requests {case.name} {detail}"
    space.clear()
    words = [str(space.folder / word) if word.startswith("in/") else word for word in case.words]
    before = _files(space.folder)
    server = Server(*words)
    rng = random.Random(f"requests {detail}")
    found = ("", "")
    try:
        for _ in range(_REQUESTS):
            found = found if found[0] else _ask(server.port, rng)
        good = server.ask("/api/vokenize", {"text": "a"})
        if not found[0] and good.status != 200:
            found = ("stuck", f"a good request gets {good.status}: {good.body[:200]!r}")
    finally:
        code, said = server.stop()
    if not found[0] and (code, said) != (0, b""):
        found = ("internal", f"exit {code}: {said[-300:].decode(errors='replace')}")
    left = _files(space.folder) - before
    if not found[0] and left:
        found = ("leftover", ", ".join(sorted(left)))
    return Outcome(trial, *found)


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
