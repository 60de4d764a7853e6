"""Connections of a server with two pages of its own: who keeps one, and how it ends."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from starlette.testclient import TestClient

from vgtools.serving import app
from vgtools.serving.answers import ImageAnswer, Opened
from vgtools.serving.gallery import Gallery

_TOKEN = "0123456789abcdef"
_SERVER = f"""if True:
    import asyncio
    from starlette.applications import Starlette
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route
    from vgtools.serving import run
    from vgtools.serving.guard import Guard

    async def whole(request):
        return Response("hi")

    async def endless(request):
        async def parts():
            while True:
                yield b"x"
                await asyncio.sleep(.1)
        return StreamingResponse(parts())

    run._IDLE = 1
    app = Starlette(routes=[Route("/", whole), Route("/endless", endless)])
    bound = run.bind("127.0.0.1", 0)
    ready = lambda: print(bound.getsockname()[1], flush=True)
    run.serve(Guard(app, None, "{_TOKEN}", 64, 1), bound, ready)
"""


@pytest.fixture
def port() -> Iterator[int]:
    """Yield the port of a server, which must say nothing on stderr until it is stopped."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    yield int(process.stdout.readline())
    process.terminate()
    assert process.communicate(timeout=30)[1] == b""
    assert process.returncode == 0


def test_a_body_that_nobody_reads_does_not_keep_a_connection(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as wire:
        wire.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        assert wire.recv(100).startswith(b"HTTP/1.1 401 ")
        deadline = time.monotonic() + 20
        with pytest.raises(ConnectionError):
            while time.monotonic() < deadline:
                wire.sendall(b"x")
                time.sleep(0.1)


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_more_body_than_a_request_declares_leaves_no_trace_on_stderr(
    port: int, method: str
) -> None:
    head = f"{method} /endless HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {_TOKEN}\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=20) as wire:
        wire.sendall(f"{head}Connection: close\r\nContent-Length: 0\r\n\r\n".encode())
        assert wire.recv(100).startswith(b"HTTP/1.1 200 ")  # the answer is under way
        wire.sendall(b"more than nothing")
        while wire.recv(1 << 16):
            pass  # until the server closes the connection


def test_rows_without_text_and_rows_with_many_images_fill_parts_as_others_do() -> None:
    empty = [{"text": ""}] * 1000
    images = ImageAnswer(None, [], [])  # type: ignore[arg-type]
    assert [len(part) for part, _ in app._cut(images, (1, 0), empty)] == [256, 256, 256, 232]
    assert {len(part) for part, _ in app._cut(images, (1000, 0), empty)} == {17, 14}


def test_an_answer_that_is_sent_at_once_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Long(ImageAnswer):
        def compute(self, items: Sequence[Any], settings: tuple[Any, ...]) -> list[bytes]:
            return [b"x" * 100] * len(items)

    monkeypatch.setattr(app, "MOST_ANSWER", 1000)
    facts = {"keys": "matcher", "sentence": False}
    opened = Opened(["a"], {}, {"retrieve": Long(None, [], [])}, facts)  # type: ignore[arg-type]
    service = app.Service(opened, Gallery(["a"], None), None, "x", "", None)
    guard = {"hosts": None, "most": 1, "seconds": 60}
    for count, status in ((9, 200), (11, 413)):
        with TestClient(service.app(guard)) as client:
            found = client.post("/api/retrieve", json=[{"text": "a"}] * count)
        assert found.status_code == status


def test_an_answer_that_takes_too_long_ends_unfinished(port: int) -> None:
    head = f"GET /endless HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {_TOKEN}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=20) as wire:
        wire.sendall(head.encode())
        found = b"".join(iter(lambda: wire.recv(1 << 16), b""))
    assert found.startswith(b"HTTP/1.1 200 ")
    assert not found.endswith(b"0\r\n\r\n")  # the mark of a whole answer
