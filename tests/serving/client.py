"""`vg serve` as a real process, asked over HTTP with the standard library."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.conftest import vg_command


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        why: str = json.loads(self.body)["error"]
        return why


class Server:
    """A server on a free port; it is asked once its address is printed."""

    def __init__(self, *args: str | Path) -> None:
        command = vg_command("serve", "--port", "0", *args, "--device", "cpu", "-q")
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().decode().strip()
        assert self.url, (self.process.stderr and self.process.stderr.read()) or b""
        self.port = int(urlsplit(self.url).port or 0)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(self, path: str, body: Any = None, kind: str = "", **headers: str) -> Answer:
        """GET without a body, POST with one: bytes of a kind, or a value that is sent as JSON."""
        if body is not None:
            headers["Content-Type"] = kind or "application/json"
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = self.connect()
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request("GET" if body is None else "POST", path, body, named)
            found = connection.getresponse()
            heads = {name.lower(): value for name, value in found.getheaders()}
            return Answer(found.status, heads, found.read())
        finally:
            connection.close()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, bytes]:
        """Return the exit code after a signal, and what was printed on stderr."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said
