"""Idle connections to nodes, kept across calls: for polls, checks and marks, which come back every few seconds."""

import select
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from psycopg.pq import TransactionStatus

from balancer.nodes.connection import DEFAULT_TIMEOUTS, Address, Connection, Target, Timeouts, connect, translated


class ConnectionHolder:
    """Keeps idle connections per node, so that a poll or a step does not begin with a handshake.

    Safe to share between threads: a connection is lent to one of them at a time.
    """

    def __init__(self, purpose: str, timeouts: Timeouts = DEFAULT_TIMEOUTS, idle_per_node: int = 1) -> None:
        self._purpose = purpose
        self._timeouts = timeouts
        self._idle_per_node = idle_per_node
        self._idle: dict[tuple[Address, Target], list[Connection]] = defaultdict(list)
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def borrow(self, address: Address, target: Target = Target.PRIMARY) -> Iterator[Connection]:
        """Lends a connection; after an error it is closed, otherwise kept. Driver errors become ours."""
        connection = self._take(address, target) or connect(
            address, purpose=self._purpose, timeouts=self._timeouts, target=target
        )
        kept = False
        try:
            with translated(address.node):
                yield connection
            kept = self._give_back(address, target, connection)
        finally:
            if not kept:
                connection.close()

    def forget(self, node: str) -> None:
        """Closes the idle connections of a node: its server has changed."""
        with self._lock:
            connections = [c for (address, _), idle in self._idle.items() if address.node == node for c in idle]
            for key in [key for key in self._idle if key[0].node == node]:
                del self._idle[key]
        for connection in connections:
            connection.close()

    def close(self) -> None:
        """Closes every idle connection; those that are lent are closed when they come back. Idempotent."""
        with self._lock:
            self._closed = True
            connections = [connection for idle in self._idle.values() for connection in idle]
            self._idle.clear()
        for connection in connections:
            connection.close()

    def _take(self, address: Address, target: Target) -> Connection | None:
        while True:
            with self._lock:
                idle = self._idle.get((address, target))
                if not idle:
                    return None
                connection = idle.pop()
            if looks_alive(connection):
                return connection
            connection.close()

    def _give_back(self, address: Address, target: Target, connection: Connection) -> bool:
        if connection.closed or connection.info.transaction_status != TransactionStatus.IDLE:
            return False
        with self._lock:
            idle = self._idle[address, target]
            if self._closed or len(idle) >= self._idle_per_node:
                return False
            idle.append(connection)
            return True


def looks_alive(connection: Connection) -> bool:
    """Whether an idle connection may be reused, as far as we can tell without asking the server."""
    # An idle connection has nothing to read except its end: the server is gone, or says that it is shutting down.
    if connection.closed:
        return False
    poller = select.poll()
    poller.register(connection.fileno(), select.POLLIN)
    return not poller.poll(0)
