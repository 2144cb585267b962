"""How many connections the API accepts, and how long each may be silent. `server` uses it.

A connection costs a descriptor, and the daemon needs them for nodes, the directory and its files: connections over the
cap are closed at once, before anything is read, even if the TLS handshake is still to come.
"""

import asyncio
import resource
import socket
import weakref
from dataclasses import dataclass
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS: Final = 8192
MOST_DESCRIPTORS: Final = 65536
_RESERVED: Final = 1024
"""Descriptors for the daemon itself: a few per node and migration. Half of all if there are few."""
HEADER_SECONDS: Final = 10.0
_HANDSHAKE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class SocketLimits:
    """What one server allows."""

    connections: int = MOST_CONNECTIONS
    header_seconds: float = HEADER_SECONDS
    """From the beginning of a connection, or the end of an answer, to the end of the next request's headers."""


def raise_descriptor_limit() -> int:
    """Takes as many descriptors as this process may have, up to `MOST_DESCRIPTORS`; returns how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, OSError):  # a system call filter forbids it: then the limit is the supervisor's business
        return soft
    return wanted


def connections_for(descriptors: int) -> int:
    """The cap on connections if a process may have this many descriptors."""
    return max(1, min(MOST_CONNECTIONS, descriptors - min(_RESERVED, descriptors // 2)))


class CappedListener(socket.socket):
    """A listening socket whose `accept` closes new connections while `most` are open."""

    def __init__(self, listening: socket.socket, most: int) -> None:
        family, kind, protocol = listening.family, listening.type, listening.proto
        super().__init__(family, kind, protocol, fileno=listening.detach())
        self._most = most
        self._accepted: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def accept(self) -> tuple[socket.socket, Any]:
        """asyncio calls this until it raises `BlockingIOError`."""
        accepted, address = super().accept()
        if len(self._accepted) >= self._most:
            self._accepted = weakref.WeakSet(one for one in self._accepted if one.fileno() >= 0)
        if len(self._accepted) >= self._most:
            accepted.close()
            raise BlockingIOError
        self._accepted.add(accepted)
        return accepted, address


class TimedProtocol(H11Protocol):
    """Closes a connection that does not finish the headers of a request in time, however slowly it sends them."""

    header_seconds = HEADER_SECONDS

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._expect_nothing()  # the request is being answered; the guard sees to its body

    def on_response_complete(self) -> None:
        self._expect_headers()  # before: a request that was sent ahead begins in there
        super().on_response_complete()

    def _expect_headers(self) -> None:
        self._expect_nothing()
        self._header_timer = self.loop.call_later(self.header_seconds, self._give_up)

    def _expect_nothing(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _give_up(self) -> None:
        if self.conn.our_state is not h11.ERROR:
            self.transport.abort()


class HandshakeLoop(asyncio.SelectorEventLoop):
    """asyncio's loop, except that a TLS handshake has ten seconds instead of a minute."""

    async def create_server(self, *arguments: Any, **options: Any) -> asyncio.Server:
        """With `ssl`, a handshake has a time limit too."""
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = _HANDSHAKE_SECONDS
        return await super().create_server(*arguments, **options)
