"""One client's connections. A transaction is one message, so a client is as fast as the server.

The price: if the connection breaks before the answer, nobody knows whether the transaction committed.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

import psycopg
from psycopg.pq import TransactionStatus

from balancer.directory.contract import Follower
from balancer.directory.model import Layout, Table, Tablet
from balancer.migration.context import places
from balancer.policies.keyspace.hash_leaves import position
from balancer.policies.keyspace.hashing import partition_hash
from balancer.policies.keyspace.keys import KeyType, encode_key
from tests.support.workloads.approach import Approach, Way, breaks_promise, is_retried, is_unknown

OPTIONS = "-c statement_timeout=10s"
Relation = Callable[[int, int], str]
"""The name under which a row is reached: id, number of the root."""
Build = Callable[[Relation], str]


class Reply(NamedTuple):
    """What became of a transaction."""

    outcome: str  # done, refused (for good, nothing happened), unknown, or stopped (the test ended first)
    began: float  # of the attempt that was answered
    ended: float
    rows: Sequence[tuple[Any, ...]] = ()
    changed: int = 0
    error: psycopg.Error | None = None


class Caller:
    """Finds the owner in the directory, asks it, and retries if that is the answer."""

    def __init__(
        self, table: Table, dsns: Mapping[str, str], follower: Follower, approach: Approach, chance: Random
    ) -> None:
        self.stop = threading.Event()
        self.surprises: list[str] = []
        self.retries = 0
        self._table = table
        self._dsns = dsns
        self._follower = follower
        self._approach = approach
        self._chance = chance
        self._connections: dict[str, psycopg.Connection[tuple[Any, ...]]] = {}

    def write(self, keys: Sequence[int], build: Build) -> Reply:
        """A transaction that changes rows of these ids, all on one node."""
        return self._until_answered(keys, build, writing=True)

    def read(self, keys: Sequence[int], build: Build) -> Reply:
        """One that reads them."""
        return self._until_answered(keys, build, writing=False)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def _until_answered(self, keys: Sequence[int], build: Build, *, writing: bool) -> Reply:
        while not self.stop.is_set():
            began = time.monotonic()
            reply = self._attempt(keys, build, writing, began)
            if reply is not None:
                return reply
            self.retries += 1
            self._pause(0.003)
        return Reply("stopped", 0.0, 0.0)

    def _attempt(self, keys: Sequence[int], build: Build, writing: bool, began: float) -> Reply | None:
        """None: nothing happened, retry."""
        tablets = {key: self._locate(key) for key in keys}
        nodes = {tablet.node for tablet in tablets.values()}
        if len(nodes) > 1:
            return None  # they are on their way to the same node
        forwarded = self._approach.way is Way.FORWARDED
        node = self._chance.choice(sorted(self._dsns)) if forwarded else nodes.pop()
        connection = self._connection(node)
        if connection is None:
            return None
        message = self._message(build, tablets, writing)
        try:
            rows, changed = _answers(connection.execute(message.encode()))
        except psycopg.Error as error:
            return self._failed(error, node, connection, writing, began)
        return Reply("done", began, time.monotonic(), rows, changed)

    def _failed(
        self, error: psycopg.Error, node: str, connection: psycopg.Connection[Any], writing: bool, began: float
    ) -> Reply | None:
        if breaks_promise(error, self._approach):
            self.surprises.append(f"refused by node {node}, which held the tablet: {error}")
        lost = connection.closed or error.sqlstate is None
        if lost:
            self._connections.pop(node).close()
        elif connection.info.transaction_status != TransactionStatus.IDLE:
            with suppress(psycopg.OperationalError):
                connection.execute("ROLLBACK")
        if not lost and is_retried(error, self._approach.way):
            return None
        if lost or is_unknown(error, self._approach.way):
            return Reply("unknown", began, time.monotonic(), error=error) if writing else None
        return Reply("refused", began, time.monotonic(), error=error)

    def _message(self, build: Build, tablets: Mapping[int, Tablet], writing: bool) -> str:
        approach = self._approach
        body = build(lambda key, root: self._relation(tablets[key], root, writing))
        if not approach.proven:
            return body
        held = sorted({(tablet.id, tablet.epoch) for tablet in tablets.values()})
        calls = [f"CALL balancer.hold({tablet}, {epoch}, {writing})" for tablet, epoch in held]
        access = "READ WRITE" if writing else "READ ONLY"
        begin = f"BEGIN ISOLATION LEVEL {approach.proof.isolation} {access}"
        return "; ".join([begin, *calls, body, "COMMIT"])

    def _relation(self, tablet: Tablet, root: int, writing: bool) -> str:
        name = self._table.roots[root]
        if self._approach.way is Way.FORWARDED:
            return "balancer_all." + name.removeprefix("public.")
        if self._approach.way is Way.LEAF and writing:
            return str(places(self._table, tablet)[root].partition)
        return name

    def _locate(self, key: int) -> Tablet:
        snapshot = self._follower.snapshot
        if self._table.layout is Layout.HASH:
            return snapshot.locate(self._table.id, position(partition_hash((KeyType.BIGINT,), (key,))))
        return snapshot.locate(self._table.id, encode_key((KeyType.BIGINT,), (key,)))

    def _connection(self, node: str) -> psycopg.Connection[tuple[Any, ...]] | None:
        found = self._connections.get(node)
        if found is None or found.closed:
            try:
                found = psycopg.connect(self._dsns[node], autocommit=True, connect_timeout=2, options=OPTIONS)
            except psycopg.OperationalError:
                self._pause(0.05)
                return None
            self._connections[node] = found
        return found

    def _pause(self, seconds: float) -> None:
        self.stop.wait(seconds * self._chance.uniform(0.5, 1.5))


def _answers(cursor: psycopg.Cursor[tuple[Any, ...]]) -> tuple[list[tuple[Any, ...]], int]:
    """All rows of a message's statements, and how many rows they changed in all."""
    rows: list[tuple[Any, ...]] = []
    changed = 0
    while True:
        if cursor.description is not None:
            rows += cursor.fetchall()
        if (cursor.statusmessage or "").startswith(("INSERT", "UPDATE", "DELETE")):
            changed += cursor.rowcount
        if not cursor.nextset():
            return rows, changed
