"""Who may ask: requests of other sites, of strangers, and more than the server can take are
refused.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import Response

from vgtools.io.files import dumps

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "vg-token"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def failure(status: int, why: str, **more: object) -> Response:
    """Return an error as JSON."""
    headers = {"Retry-After": "1"} if status == 503 else {}
    body = dumps({"error": why, **more})
    return Response(body, status, headers, media_type="application/json")


def same(token: str, given: str) -> bool:
    """Return whether a token is the server's, in a time that does not depend on it."""
    return secrets.compare_digest(token.encode(), given.encode("utf-8", "surrogateescape"))


class Guard:
    """Lets a request pass to the application, or refuses it.

    A page of another site can make a browser send requests, also to a name of its own that leads
    here: the browser states both names, as Origin and Host.

    Args:
        app: the application.
        hosts: names by which a browser may reach it; None: any, where there is a token.
        token: a secret that a client has to know, in a header or a cookie; None: nothing.
        most: requests at a time.
        seconds: that one request may take.
    """

    def __init__(
        self, app: ASGIApp, hosts: frozenset[str] | None, token: str | None, most: int, seconds: int
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._token = token
        self._most = most
        self._seconds = seconds
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def sent(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                names = {name.lower() for name, _ in message["headers"]}
                for name, value in _HEADERS.items():
                    if name.lower().encode() not in names:
                        message["headers"].append((name.lower().encode(), value.encode()))
            await send(message)

        refused = self._refusal(scope)
        if refused is not None:
            await refused(scope, receive, sent)
            return
        self._running += 1
        try:
            async with asyncio.timeout(self._seconds):
                await self._app(scope, receive, sent)
        except TimeoutError:
            if started:
                return  # the connection ends: a client sees that the answer is not whole
            why = (
                f"took over {self._seconds} seconds; ask for less at a time, or vg serve --timeout"
            )
            await failure(503, why)(scope, receive, sent)
        finally:
            self._running -= 1

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer to a request that is refused, None for the others."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        name, colon, port = host.rpartition(":")
        if not (colon and port.isdecimal()):
            name = host
        if self._hosts is not None and name.lower() not in self._hosts:
            known = ", ".join(sorted(self._hosts))
            return failure(403, f"Host: expected one of {known}, got {host!r:.80}")
        origin = headers.get("origin")
        if origin not in (None, f"http://{host}", f"https://{host}"):
            return failure(403, f"Origin: pages of {origin!r:.80} may not ask this server")
        if self._token is not None and not self._knows(scope, headers):
            why = "needs its token: open /?token=TOKEN, or send Authorization: Bearer TOKEN"
            return failure(401, why)
        if self._running >= self._most:
            return failure(503, f"is answering {self._most} requests already; ask again soon")
        return None

    def _knows(self, scope: Scope, headers: Headers) -> bool:
        """Return whether a request has the token; `/` reads its own from its address."""
        assert self._token is not None
        if scope["path"] == "/" and "token" in QueryParams(scope["query_string"]):
            return True
        kind, _, given = headers.get("authorization", "").partition(" ")
        cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
        return same(self._token, given if kind.lower() == "bearer" else cookie)
