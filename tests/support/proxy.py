"""A proxy between a ZooKeeper client and its server that knows the protocol's frames, and can lose some of them.

Three faults hit multi requests, at random but from a printed seed: the request is lost, its reply is lost, or the
request arrives late; each time the client's connection breaks, as it would on a real network. `cut` breaks all
connections once; `down` refuses new ones until `up`; `ignore_next` accepts one and never answers.
"""

import contextlib
import random
import socket
import struct
import threading
import time
from collections import Counter
from enum import StrEnum

_MULTI = 14


class Fault(StrEnum):
    """What happens to a multi."""

    NONE = "none"
    LOSE_REQUEST = "lose request"
    LOSE_REPLY = "lose reply"
    DELAY_REQUEST = "delay request"


class Proxy:
    """Listens on a port of its own; a context manager."""

    def __init__(self, target: str, seed: int = 0, share: float = 0.0) -> None:
        host, port = target.split(":")
        self._target = (host, int(port))
        self._rng = random.Random(seed)
        self._share = share
        self.faults: Counter[Fault] = Counter()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._down = False
        self._ignored = 0
        self._unanswered: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> "Proxy":
        self._spawn(self._accept)
        return self

    def __exit__(self, *error: object) -> None:
        self._down = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(5)
        for connection in self._unanswered:
            connection.close()

    def cut(self) -> None:
        """Breaks every connection."""
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            _close(connection)

    def down(self) -> None:
        """Breaks every connection and refuses new ones."""
        self._down = True
        self.cut()

    def up(self) -> None:
        """Accepts connections again."""
        self._down = False

    def ignore_next(self) -> None:
        """Breaks every connection; accepts the next one and never answers it, as a starting server may."""
        self._ignored = 1
        self.cut()

    def _spawn(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._down:
                client.close()
                continue
            if self._ignored:
                self._ignored -= 1
                self._unanswered.append(client)
                continue
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            _Link(self, client, server)

    def adopt(self, *connections: socket.socket) -> None:
        with self._lock:
            self._open.update(connections)

    def forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)
        _close(connection)
        connection.close()

    def spawn(self, target: object, *arguments: object) -> None:
        self._spawn(target, *arguments)

    def choose(self) -> Fault:
        """The fate of one multi."""
        with self._lock:
            fault = Fault.NONE
            if self._rng.random() < self._share:
                fault = self._rng.choice([Fault.LOSE_REQUEST, Fault.LOSE_REPLY, Fault.DELAY_REQUEST])
            self.faults[fault] += 1
            return fault

    def delay(self) -> float:
        with self._lock:
            return self._rng.uniform(0.0, 0.2)


class _Link:
    """One client's connection and the server's end of it."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._swallow: set[int] = set()
        proxy.adopt(client, server)
        proxy.spawn(self._requests)
        proxy.spawn(self._replies)

    def _requests(self) -> None:
        first = True
        try:
            while frame := _read_frame(self._client):
                if first or struct.unpack_from(">i", frame, 8)[0] != _MULTI:
                    self._server.sendall(frame)
                    first = False
                elif not self._befall(frame):
                    return
        except OSError:
            return
        finally:
            _close(self._client)
            self._proxy.forget(self._server)

    def _befall(self, frame: bytes) -> bool:
        """Whether the connection lives on."""
        fault = self._proxy.choose()
        if fault is Fault.LOSE_REQUEST:
            return False
        if fault is Fault.LOSE_REPLY:
            self._swallow.add(struct.unpack_from(">i", frame, 4)[0])
        if fault is Fault.DELAY_REQUEST:
            _close(self._client)
            time.sleep(self._proxy.delay())
            self._server.sendall(frame)
            time.sleep(0.05)
            return False
        self._server.sendall(frame)
        return True

    def _replies(self) -> None:
        try:
            while frame := _read_frame(self._server):
                if len(frame) >= 8 and struct.unpack_from(">i", frame, 4)[0] in self._swallow:
                    return
                self._client.sendall(frame)
        except OSError:
            return
        finally:
            _close(self._server)
            self._proxy.forget(self._client)


def _read_frame(connection: socket.socket) -> bytes:
    """A length and that many bytes; empty at the end."""
    head = _read(connection, 4)
    return head + _read(connection, struct.unpack(">i", head)[0]) if head else b""


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            return b""
        data += part
    return data


def _close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
