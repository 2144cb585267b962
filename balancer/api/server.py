"""Runs the API in a thread alongside the daemon: a clean start, the real port, a clean stop."""

import asyncio
import contextlib
import os
import socket
import ssl
import threading
from typing import Final, Self

import uvicorn

from balancer.api.access import check_http, split_address
from balancer.api.app import Api
from balancer.api.sockets import (
    CappedListener,
    SocketLimits,
    TimedProtocol,
    connections_for,
    raise_descriptor_limit,
)
from balancer.errors import Unavailable, UserError
from balancer.settings.files import HttpSettings

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
            loop="balancer.api.sockets:HandshakeLoop",
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
