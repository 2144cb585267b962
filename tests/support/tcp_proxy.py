"""A TCP proxy for faults: it passes bytes on until it is told to stall, and then keeps the connection open."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit


class StallingProxy:
    """Listens on loopback in front of a server. While stalled it accepts and reads, and never answers."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._open = threading.Event()
        self._open.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self.port = self._listener.getsockname()[1]

    def stall(self) -> None:
        self._open.clear()

    def resume(self) -> None:
        self._open.set()

    def dsn(self, dsn: str) -> str:
        """The same DSN, through this proxy."""
        parts = urlsplit(dsn)
        return dsn.replace(f"@{parts.hostname}:{parts.port}/", f"@127.0.0.1:{self.port}/")

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *error: object) -> None:
        self._open.set()
        for opened in self._sockets:
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()
        for thread in self._threads:
            thread.join(5)

    def _start(self, work: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._upstream)
            self._sockets += [client, server]
            self._start(self._pass, client, server)
            self._start(self._pass, server, client)

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                self._open.wait()
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
