"""Attacks on the server: what is not for everybody is refused, and it stays alive."""

from __future__ import annotations

import json
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import Runner
from tests.serving.client import Server


def alive(server: Server) -> bool:
    return server.ask("/api/vokenize", {"text": ""}).status == 200


def raw(server: Server, data: bytes, seconds: float = 20) -> bytes:
    """Return what the server says to some bytes before it closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as wire:
        wire.sendall(data)
        parts = []
        while part := wire.recv(1 << 16):
            parts.append(part)
        return b"".join(parts)


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/secret.txt",
        "/api/images/../../secret.txt",
        "/api/images/..%2f..%2fsecret.txt",
        "/api/images/%2e%2e/secret.txt",
        "/api/images/-1",
        "/api/images/1.png",
        "/api/images/image001",
        "/api/images/99999999999999999999999999999999",
        "/api/images/" + "9" * 5000,
        "/api/images/0?side=640/../../x",
        "/static/../../../../etc/passwd",
        "//etc/passwd",
    ],
)
def test_pictures_are_served_by_row_alone(server: Server, path: str) -> None:
    found = server.ask(path)
    assert found.status in (400, 404)
    assert b"root:" not in found.body
    assert b"secret\n" not in found.body
    assert json.loads(found.body)["error"]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "localhost.evil.example",
        "127.0.0.1.evil",
        "127.0.0.1:80@evil.example",
        "0",
        "",
    ],
)
def test_other_names_are_refused(server: Server, host: str) -> None:
    for path in ("/", "/api/index", "/api/images/1"):
        assert server.ask(path, Host=host).status == 403
    assert server.ask("/", Host="LOCALHOST:99").status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "file://"])
def test_other_pages_are_refused(server: Server, origin: str) -> None:
    found = server.ask("/api/vokenize", {"text": "a"}, Origin=origin)
    assert found.status == 403
    assert "access-control-allow-origin" not in found.headers
    own = server.url.rstrip("/")
    assert server.ask("/api/vokenize", {"text": "a"}, Origin=own).status == 200


def test_answers_say_what_browsers_must_not_do_with_them(server: Server) -> None:
    for path in ("/", "/docs", "/api/index", "/api/images/1", "/nothing"):
        headers = server.ask(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
    page = server.ask("/").body.decode()
    assert "default-src 'none'; img-src data: blob: 'self'; connect-src 'self'; style-src" in page
    assert "unsafe-inline" not in page


@pytest.mark.slow
def test_huge_bodies_are_refused_before_they_are_read(server: Server) -> None:
    head = b"POST /api/vokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
    said = raw(server, head + b"Content-Length: 99999999999\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 413 ")
    assert b'{"error":"the body has over 4,194,304 bytes;' in said
    # chunked, without a length
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as wire:
        wire.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"100000\r\n" + b"a" * (1 << 20) + b"\r\n"
        try:
            for _ in range(6):
                wire.sendall(chunk)
        except OSError:  # closed by the server
            pass
        else:
            assert wire.recv(100).startswith(b"HTTP/1.1 413 ")
    assert alive(server)


@pytest.mark.parametrize(
    ("body", "kind", "path", "why"),
    [
        (b"\n" * 200_000, "text/plain", "vokenize", "has over 65,536 rows"),
        ([{"text": ""}] * 70_000, "", "retrieve", "has over 65,536 rows"),
        ({"text": "a " * 400_000}, "", "vokenize?k=1000", "too long for this many images of each"),
        ({"text": "a" * 65_537}, "", "vokenize", "a text has over 65,536 characters"),
        (b"a\n" + b"a" * 1_000_000, "text/plain", "retrieve", "a text has over 65,536 characters"),
    ],
)
def test_short_bodies_with_huge_answers_are_refused(
    server: Server, body: object, kind: str, path: str, why: str
) -> None:
    found = server.ask(f"/api/{path}", body, kind)
    assert found.status == 413
    assert why in found.error


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 100 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # no Host
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"POST /api/vokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /api/vokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
    ],
)
def test_broken_requests_do_no_harm(server: Server, data: bytes) -> None:
    said = raw(server, data.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
    assert not said or said.split(b" ")[1] in (b"200", b"400", b"403", b"404", b"413", b"431")
    assert alive(server)


@pytest.mark.slow
def test_a_thousand_idle_connections_do_not_shut_others_out(server: Server) -> None:
    idle = []
    try:
        for _ in range(1000):
            wire = socket.create_connection(("127.0.0.1", server.port), timeout=20)
            wire.sendall(b"GET / HTTP/1.1\r\nHost: local")
            idle.append(wire)
        deadline = time.monotonic() + 60
        while True:
            try:
                assert alive(server)
                break
            except (OSError, json.JSONDecodeError):  # closed at once while the others wait
                assert time.monotonic() < deadline
                time.sleep(1)
    finally:
        for wire in idle:
            wire.close()


def test_clients_that_leave_cost_nothing(server: Server) -> None:
    body = b"a dog runs\n" * 5_000
    head = b"POST /api/vokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
    for _ in range(8):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as wire:
            wire.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            wire.recv(10)
    assert alive(server)


def test_hostile_texts_come_back_as_they_are(server: Server) -> None:
    evil = "</script><img src=x onerror=alert(1)>\u202e\u2028 \x00 \ud7ff 👩‍👩‍👧"
    found = server.ask("/api/vokenize", {"text": evil})
    assert found.headers["content-type"] == "application/json"
    assert json.loads(found.body)["text"] == evil


@pytest.mark.slow
def test_another_host_needs_a_token(vg: Runner, tiny: Path, tmp_path: Path) -> None:
    args = ("serve", "--index", tiny / "vg.faiss", "--host", "0.0.0.0", "--port", "0")
    done = vg(*args)
    assert done.returncode == 2
    assert b"--token FILE with a secret is needed" in done.stderr
    short = tmp_path / "token"
    short.write_text("abc\n")
    done = vg(*args, "--token", short)
    assert done.returncode == 65
    assert done.stderr.startswith(f"vg: {short}: expected one line of 16 letters".encode())
    assert vg(*args, "--token", tmp_path / "none").returncode == 66


@pytest.mark.slow
def test_a_token_opens_the_page_and_the_api(tiny: Path, tmp_path: Path) -> None:
    secret = "0123456789abcdef"
    (tmp_path / "token").write_text(secret + "\n")
    server = Server(
        "--index", tiny / "vg.faiss", "--token", tmp_path / "token", "--host", "0.0.0.0"
    )
    try:
        paths = ("/", "/api/index", "/docs", "/openapi.json")
        for path in (*paths, "/?token=", "/?token=wrong", "/?xtoken=1", "/?a=token=", "/?Token=1"):
            assert server.ask(path).status == 401, path
        assert server.ask("/api/index?token=" + secret).status == 401  # only the page's address
        assert server.ask("/api/index", Authorization="Bearer wrong").status == 401
        assert server.ask("/api/index", Authorization=f"Bearer {secret}").status == 200
        assert server.ask("/api/index", Host="any.name", Cookie="vg-token=x").status == 401
        opened = server.ask(f"/?token={secret}")
        assert (opened.status, opened.headers["location"]) == (303, "/")
        assert "HttpOnly" in opened.headers["set-cookie"]
        assert "SameSite=strict" in opened.headers["set-cookie"]
        cookie = opened.headers["set-cookie"].partition(";")[0]
        assert server.ask("/api/index", Host="any.name", Cookie=cookie).status == 200
    finally:
        assert server.stop() == (0, b"")


@pytest.mark.slow
def test_a_signal_ends_it_after_its_requests_and_the_port_is_free_again(
    vg: Runner, tiny: Path
) -> None:
    server = Server("--index", tiny / "vg.faiss", "--requests", "1")
    taken = vg("serve", "--index", tiny / "vg.faiss", "--port", str(server.port))
    assert taken.returncode == 69
    assert b"Address already in use; choose another --port" in taken.stderr
    body = b"a dog runs\n" * 1_000
    with closing(server.connect()) as connection:
        connection.request("POST", "/api/vokenize?k=60", body, {"Content-Type": "text/plain"})
        answer = connection.getresponse()
        first = answer.read(100)
        refused = server.ask("/api/index")
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        server.process.send_signal(signal.SIGTERM)
        whole = first + answer.read()
    assert whole.count(b"\n") == 1_000
    assert server.process.wait(60) == 0
    assert server.stop() == (0, b"")
    again = Server("--index", tiny / "vg.faiss", "--port", str(server.port))
    assert again.stop(signal.SIGINT) == (0, b"")


@pytest.mark.slow
def test_a_request_that_takes_too_long_is_given_up(tiny: Path) -> None:
    server = Server("--index", tiny / "vg.faiss", "--timeout", "1")
    try:
        with ThreadPoolExecutor(6) as pool:
            rows = [{"text": "a dog runs " * 20}] * 4_000
            found = [*pool.map(lambda _: server.ask("/api/vokenize?k=60", rows), range(6))]
        assert {one.status for one in found} <= {200, 503}
        assert found[0].status == 503 or found[-1].status == 503
        late = next(one for one in found if one.status == 503)
        assert late.error.startswith("took over 1 seconds; ask for less at a time")
        while not alive(server):  # until the last part that was begun is done
            time.sleep(0.5)
    finally:
        assert server.stop() == (0, b"")
