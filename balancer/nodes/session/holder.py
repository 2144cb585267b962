"""Idle connections to nodes, kept across calls: for polls, checks and marks, which come back every few seconds.

The connections of one migration: opened when first used, by the node's stable id, and all closed after an error.

An address is looked up each time a connection is asked for, so a failover between two steps costs one retry. Steps
ask for connections here and keep none of their own.

A copy asks for a session for long statements a dozen times, and a new one costs a server as much as a small tablet's
rows do. So within a state, sessions that were left in order are reused (`kept`): reset to how a new one begins, with
the question whose schema it is in the same message. The runner releases them with the state.
"""

import select
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from weakref import WeakKeyDictionary

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from balancer.nodes.session import own_schema
from balancer.nodes.session.connection import (
    DEFAULT_TIMEOUTS,
    Address,
    Connection,
    Target,
    Timeouts,
    connect,
    pin_output,
    translated,
)


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


Addresses = Callable[[str], Address]
"""Node id → where it is now."""

# Idle in a transaction, a session holds the leader's row on the node: a successor must not wait long for one that
# hangs.
_STEP_TIMEOUTS = Timeouts(statement=60.0, lock=2.0, idle_in_transaction=5.0)


class NodeSessions:
    """Belongs to one thread; `data` and `replication` may be called from threads that work for it."""

    def __init__(self, addresses: Addresses, migration: str, kept: int = 0) -> None:
        """`kept`: how many idle connections of `data` wait for their next use, on each node."""
        self._addresses = addresses
        self._purpose = f"migration {migration}"
        self._control: dict[str, Connection] = {}
        self._kept = kept
        self._idle: dict[Address, list[Connection]] = {}
        self._lock = threading.Lock()
        self._deadlock: WeakKeyDictionary[Connection, float] = WeakKeyDictionary()

    def address(self, node: str) -> Address:
        """Where a node is now."""
        return self._addresses(node)

    def control(self, node: str) -> Connection:
        """The connection for short steps; definitions read over it have full names."""
        found = self._control.get(node)
        if found is None or found.closed or found.broken:
            address = self._addresses(node)
            found = connect(address, purpose=self._purpose, timeouts=_STEP_TIMEOUTS)
            found.prepare_threshold = (
                None  # the driver would throw away what `migration/guards.plan_definitions` has planned
            )
            self._control[node] = found
            with translated(node):
                found.execute("SELECT set_config('search_path', 'pg_catalog', false)")
        return found

    def deadlock_timeout(self, node: str) -> float:
        """Seconds after which the server looks whether sessions wait for each other."""
        connection = self.control(node)
        found = self._deadlock.get(connection)
        if found is None:
            with translated(node):
                row = connection.execute(
                    "SELECT setting::float8 / 1000 FROM pg_settings WHERE name = 'deadlock_timeout'"
                ).fetchone()
            found = self._deadlock[connection] = float(row[0]) if row else 1.0
        return found

    @contextmanager
    def data(self, node: str) -> Iterator[Connection]:
        """A connection of its own for long statements, with pinned output and the settings of a new one. Any
        transaction still open at the end is rolled back; after an error the connection is closed."""
        address = self._addresses(node)
        used = self._take(address)
        connection = used or connect(address, purpose=self._purpose, timeouts=_STEP_TIMEOUTS)
        in_order = False
        try:
            with translated(node):
                # Chunks are too short for JIT to be worth it.
                first = _AS_NEW if used else ()
                pin_output(
                    connection, *first, statement_timeout="0", jit="off", idle_in_transaction_session_timeout="600s"
                )
                yield connection
            in_order = True
        finally:
            if not (in_order and self._give_back(address, connection)):
                connection.close()

    @contextmanager
    def replication(self, node: str) -> Iterator[Connection]:
        """A connection for making a slot; closed afterwards, and with it the slot's snapshot."""
        connection = connect(self._addresses(node), purpose=self._purpose, timeouts=_STEP_TIMEOUTS, replication=True)
        try:
            with translated(node):
                yield connection
        finally:
            connection.close()

    def evict(self, node: str, leader_epoch: int) -> None:
        """Ends the sessions that another leader left on a node for this migration: a copy that hangs holds locks.

        Not in one of our transactions, which would wait for them; so it checks separately that nobody else has led
        since.
        """
        self.rest()  # ours have the same name
        with translated(node):
            self.control(node).execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity, balancer.node WHERE leader_epoch <= %s"
                " AND application_name = %s AND datname = current_database() AND pid <> pg_backend_pid()",
                (leader_epoch, f"tablet-balancer {self._purpose}"),
            )

    def rest(self) -> None:
        """Closes what is kept for the next use. Idempotent."""
        with self._lock:
            idle = [connection for connections in self._idle.values() for connection in connections]
            self._idle.clear()
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Closes everything; the next use opens it again. Idempotent."""
        self.rest()
        for connection in self._control.values():
            connection.close()
        self._control.clear()

    def _take(self, address: Address) -> Connection | None:
        while True:
            with self._lock:
                idle = self._idle.get(address)
                if not idle:
                    return None
                connection = idle.pop()
            if looks_alive(connection):
                return connection
            connection.close()

    def _give_back(self, address: Address, connection: Connection) -> bool:
        with self._lock:
            if len(self._idle.get(address, ())) >= self._kept:
                return False
        with suppress(psycopg.Error):  # the work is done all the same
            connection.rollback()
        if connection.info.transaction_status != TransactionStatus.IDLE:
            return False
        with self._lock:
            self._idle.setdefault(address, []).append(connection)
        return True


# The settings that the connection began with, no session-level lock, and the schema is still ours.
_AS_NEW = tuple(map(sql.SQL, (own_schema.REQUIRED, "RESET ALL", "SELECT pg_catalog.pg_advisory_unlock_all()")))
