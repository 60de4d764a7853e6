"""A real Chromium, driven over a pipe with nothing but the standard library."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

BINARY = next(
    filter(
        None,
        map(
            shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
        ),
    ),
    None,
)

_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
# The browser reads commands on descriptor 3 and answers on 4: put our pipe ends there, then become
# the browser.
_LAUNCH = (
    "import fcntl, os, sys; r, w = (fcntl.fcntl(int(f), fcntl.F_DUPFD, 10) for f in "
    "sys.argv[1:3]); "
    "os.dup2(r, 3); os.dup2(w, 4); os.execvp(sys.argv[3], sys.argv[3:])"
)


class Browser:
    """One headless browser with one tab; what goes wrong or out of it is collected.

    Attributes:
        errors: exceptions, console errors, and what the browser itself logged (blocked loads among
        it). requests: addresses that pages asked for, the page itself not counted.
    """

    def __init__(self) -> None:
        assert BINARY is not None
        self._home = tempfile.TemporaryDirectory(prefix="vg-browser-", ignore_cleanup_errors=True)
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        command = [BINARY, *_FLAGS, f"--user-data-dir={self._home.name}/profile", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, str(theirs_in), str(theirs_out), *command],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"HOME": self._home.name, "LANG": "C.UTF-8"},
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer, self._number, self._session = b"", 0, ""
        self._loaded: set[str] = set()
        self.errors: list[str] = []
        self.requests: list[str] = []

    def __enter__(self) -> Browser:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._home.cleanup()

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("the browser did not answer")
            chunk = os.read(self._in, 1 << 20)
            if not chunk:
                raise ConnectionError("the browser went away")
            self._buffer += chunk
        raw, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(raw)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Page.lifecycleEvent" and params["name"] == "load":
            self._loaded.add(params["loaderId"])
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in (
            "error",
            "warning",
            "assert",
        ):
            self.errors.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded":
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(
            "data:"
        ):
            self.requests.append(params["request"]["url"])

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and return its result."""
        self._number += 1
        body = {"id": self._number, "method": method, "params": params} | (
            {"sessionId": self._session} if self._session else {}
        )
        raw = json.dumps(body).encode() + b"\0"
        while raw:
            raw = raw[os.write(self._out, raw) :]
        deadline = time.monotonic() + 60
        while True:
            message = self._message(deadline)
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a file and wait until it is there; errors and requests start anew."""
        self.visit(path.absolute().as_uri(), width, height, dark)

    def visit(self, url: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load an address, as `open` does a file."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        # Another fragment alone would not load the page again.
        for place in ("about:blank", url):
            self.errors.clear()
            self.requests.clear()
            loader = self.call("Page.navigate", url=place)["loaderId"]
            deadline = time.monotonic() + 60
            while loader not in self._loaded:
                self._message(deadline)
        self.requests.remove(url.partition("#")[0])

    def js(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(json.dumps(found["exceptionDetails"]))
        return found["result"].get("value")

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Press a named key: Tab, Enter, Escape, ArrowRight …"""
        code = {
            "Tab": 9,
            "Enter": 13,
            "Escape": 27,
            "ArrowLeft": 37,
            "ArrowUp": 38,
            "ArrowRight": 39,
            "ArrowDown": 40,
            "Delete": 46,
            "End": 35,
            "Home": 36,
        }[key]
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code
            )

    def _centre(self, selector: str) -> tuple[float, float]:
        x, y = self.js(
            f"(e => {{ e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect();"
            f"return [b.x + b.width / 2, b.y + b.height / 2] "
            f"}})(document.querySelector({json.dumps(selector)}))"
        )
        return x, y

    def hover(self, selector: str) -> None:
        """Move the mouse over the first element of a selector."""
        x, y = self._centre(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        """Click the first element of a selector."""
        x, y = self._centre(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: Path) -> None:
        """Save what the window shows as a PNG."""
        path.write_bytes(
            base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        )
