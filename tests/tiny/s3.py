"""A real S3 server (moto's) on this machine, which can be made busy.

python -m tests.tiny.s3
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any

BUSY = b"""<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"""
KEYS = {
    "AWS_ACCESS_KEY_ID": "nobody",
    "AWS_SECRET_ACCESS_KEY": "nothing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Server:
    """The server in a process of its own.

    Attributes:
        environment: with which a command finds it.
    """

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.tiny.s3"], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.endpoint = f"http://127.0.0.1:{int(self.process.stdout.readline())}"
        self.environment = {**KEYS, "AWS_ENDPOINT_URL": self.endpoint}

    def busy(self, every: int, method: str = "") -> list[str]:
        """Answer 503 to every N-th request, or to every N-th of one method; 0 ends it.

        Returns:
            The requests that were answered so since the last call.
        """
        body = json.dumps({"every": every, "method": method}).encode()
        with urllib.request.urlopen(f"{self.endpoint}/-busy", body) as answer:
            refused: list[str] = json.load(answer)
        return refused

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class Busy:
    """moto's application, and who is let in."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self.application = application
        self.every = 0
        self.method = ""
        self.count = 0
        self.refused: list[str] = []

    def __call__(self, request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method, path = request["REQUEST_METHOD"], request["PATH_INFO"]
        if path == "/-busy":
            told = json.loads(request["wsgi.input"].read(int(request["CONTENT_LENGTH"])))
            refused, self.refused = self.refused, []
            self.every, self.method, self.count = told["every"], told["method"], 0
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(refused).encode()]
        if self.every and method.startswith(self.method):
            self.count += 1
            if self.count % self.every == 0:
                self.refused.append(f"{method} {path}")
                start("503 Slow Down", [("Content-Type", "application/xml")])
                return [BUSY]
        return self.application(request, start)


def main() -> None:
    from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    class Quiet(MotoRequestHandler):
        def log_request(self, *_: object) -> None:
            pass

    application = Busy(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    os.write(1, f"{server.server_port}\n".encode())
    server.serve_forever()


if __name__ == "__main__":
    main()
