"""Runs the API in a thread alongside the daemon: a clean start, the real port, a clean stop.

How many connections the API accepts, and how long each may be silent. `server` uses it.

A connection costs a descriptor, and the daemon needs them for nodes, the directory and its files: connections over the
cap are closed at once, before anything is read, even if the TLS handshake is still to come.
"""

import asyncio
import contextlib
import os
import resource
import socket
import ssl
import threading
import weakref
from dataclasses import dataclass
from typing import Any, Final, Self

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from balancer.api.access import check_http, split_address
from balancer.api.app import Api
from balancer.errors import Unavailable, UserError
from balancer.settings.files import HttpSettings

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


_START_SECONDS: Final = 10.0
_STOP_SECONDS: Final = 3


class _PatientServer(uvicorn.Server):
    """Wakes up once a second, for the date in its answers, where uvicorn checks ten times whether it should end."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    async def main_loop(self) -> None:
        """Until it should end. `on_tick(0)` is uvicorn's tick that renews the date."""
        self._ending = asyncio.get_running_loop(), asyncio.Event()
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending[1].wait(), 1.0)

    def end(self) -> None:
        """From any thread."""
        self.should_exit = True
        if self._ending is not None:
            loop, event = self._ending
            with contextlib.suppress(RuntimeError):  # the loop has ended already
                loop.call_soon_threadsafe(event.set)


class ApiServer:
    """Listens from `start` to `stop`. Port 0 takes any free one; `address` and `url` say which."""

    def __init__(self, api: Api, http: HttpSettings, limits: SocketLimits | None = None) -> None:
        check_http(http)
        self._limits = limits or SocketLimits(connections_for(raise_descriptor_limit()))
        self._api = api
        self._http = http
        self._server: _PatientServer | None = None
        self._thread: threading.Thread | None = None
        self._bound: tuple[str, int] = split_address(http.listen)

    @property
    def url(self) -> str:
        """Where people find the page."""
        host, port = self._bound
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - nothing is bound here
        scheme = "https" if self._http.tls_certificate else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def start(self) -> None:
        """Returns when requests are answered; raises if that is not possible."""
        config = self._config()
        listener = self._listen()
        self._bound = listener.getsockname()[:2]
        self._server = _PatientServer(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, name="api", daemon=True
        )
        self._thread.start()
        waited = threading.Event()
        for _ in range(int(_START_SECONDS / 0.01)):
            if self._server.started or not self._thread.is_alive():
                break
            waited.wait(0.01)
        if not self._server.started:
            self.stop()
            raise Unavailable(f"the API did not start on {self._http.listen}; the log says why")

    def stop(self) -> None:
        """Lets requests finish for a moment, then ends. Idempotent."""
        if self._server is None or self._thread is None:
            return
        self._api.watch.close()  # requests that wait for a change would keep the server waiting
        self._server.end()
        self._thread.join(_STOP_SECONDS * 3)
        self._server = self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _listen(self) -> socket.socket:
        host, port = split_address(self._http.listen)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listening = socket.create_server((host, port), family=family, backlog=128)
        except socket.gaierror as error:
            raise UserError(f"cannot listen on {self._http.listen}: {error.strerror}") from None
        except OSError as error:  # its own text says the address once more
            raise UserError(f"cannot listen on {self._http.listen}: {os.strerror(error.errno or 0)}") from None
        return CappedListener(listening, self._limits.connections)

    def _config(self) -> uvicorn.Config:
        http = self._http
        config = uvicorn.Config(
            self._api.asgi,
            # Nothing that a client says decides whether a connection counts as secure.
            proxy_headers=False,
            server_header=False,
            access_log=False,
            log_config=None,
            lifespan="on",
            loop="balancer.api.server:HandshakeLoop",
            http=type("Protocol", (TimedProtocol,), {"header_seconds": self._limits.header_seconds}),
            ws="none",
            ssl_certfile=http.tls_certificate,
            ssl_keyfile=http.tls_key,
            timeout_graceful_shutdown=_STOP_SECONDS,
        )
        try:
            config.load()
        except (ssl.SSLError, OSError) as error:
            raise UserError(f"[http] the certificate or its key cannot be used: {error}") from None
        if config.ssl is not None:
            config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
        return config
