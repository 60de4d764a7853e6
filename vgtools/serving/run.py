"""Listen, and stop when asked to, with the requests that are running finished."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import signal
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from vgtools.io.errors import DataError, Exit

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_CONNECTIONS = 256  # at a time; more are closed at once
_IDLE = 15  # seconds between requests, and for the head of one
_LAST = 60  # seconds that running requests have after SIGTERM


class _Protocol(H11Protocol):
    """HTTP that closes connections which ask for nothing: h11 waits for a head for ever."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > _CONNECTIONS:
            transport.abort()
            return
        self._seen: Any = None
        self._watch = self.loop.call_later(_IDLE, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if hasattr(self, "_watch"):
            self._watch.cancel()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is not HTTP; an answer to HEAD has no place for the reason."""
        with contextlib.suppress(h11.LocalProtocolError):
            super().send_400_response(msg)
        self.transport.close()

    def _look(self) -> None:
        """Close a connection that waited for the same request at the last look.

        Where the answer is sent, nobody reads the rest of a body, which may come for ever.
        """
        waits = h11.IDLE is self.conn.their_state or h11.DONE is self.conn.our_state
        if waits and (self._seen == (self.cycle,)):
            self.transport.close()
            return
        self._seen = (self.cycle,) if waits else None
        self._watch = self.loop.call_later(_IDLE, self._look)


class _Server(uvicorn.Server):
    """A server for which a signal is a request to end, and no more than that."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGTERM and SIGINT; a second SIGINT does not wait for requests."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)  # it is ending already


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address, but does not listen yet.

    Raises:
        DataError: an address of another machine (usage), or a port that is taken (69).
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, number, _, address = found[0]
    except (OSError, UnicodeError) as error:
        why = f"is not an address of this machine ({error}); expected one such as 127.0.0.1"
        raise DataError(why, host, code=Exit.USAGE) from None
    made = socket.socket(family, kind, number)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        made.close()
        taken = error.errno == errno.EADDRINUSE
        way_out = "choose another --port" if taken else "choose another --host or --port"
        why = f"cannot be listened on: {os.strerror(error.errno or 0)}; {way_out}"
        raise DataError(why, f"{host}:{port}", code=Exit.UNAVAILABLE) from None
    return made


def is_local(bound: socket.socket) -> bool:
    """Return whether only this machine reaches a socket."""
    return ipaddress.ip_address(bound.getsockname()[0]).is_loopback


def url_of(bound: socket.socket) -> str:
    """Return the address of a socket's page."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def serve(app: ASGIApp, bound: socket.socket, ready: Callable[[], None]) -> None:
    """Answer requests until SIGTERM or SIGINT.

    Args:
        app: the application.
        bound: its socket.
        ready: called when requests are answered.
    """
    config = uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        log_config=None,
        log_level="critical",  # the application prints its own errors
        access_log=False,
        server_header=False,
        timeout_keep_alive=_IDLE,
        timeout_graceful_shutdown=_LAST,
    )

    class Announced(_Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

    asyncio.run(Announced(config).serve([bound]))
