"""Connections to nodes, pooled per node, opened when a node is first needed, for blocking and asyncio applications.

A node's address is looked up in the directory each time a connection is borrowed: when it has changed, the old pool is
closed and its connections end as they are returned. Passwords are the application's: `connection` holds psycopg's own
arguments, and libpq finds in its usual places what is not given there.
"""

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from balancer.client.keys.routes import Routes
from balancer.errors import UserError

Pool = TypeVar("Pool")


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """How connections are made and kept. The defaults suit a service with a few dozen threads."""

    size: int = 10
    """Maximum number of connections to one node. Each costs the server a process: keep it low."""
    max_idle: float = 300.0
    """Seconds after which an unused connection is closed."""
    connection: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Arguments of `psycopg.connect` for every node: user, password, application_name, prepare_threshold, …"""

    def arguments(self, node: str) -> dict[str, Any]:
        """Of either kind of pool."""
        return {
            "kwargs": {"application_name": "balancer client", **self.connection, "autocommit": True},
            "min_size": 0,
            "max_size": self.size,
            "max_idle": self.max_idle,
            "num_workers": 2,
            "name": f"node {node}",
            "open": False,
        }


# A statement whose client is gone continues to its end and keeps its locks; with this the server checks every second
# whether there is still somebody to answer. Not in the connection's options: PgBouncer accepts few of those. Servers on
# some systems cannot check, and refuse the value.
LOOK_FOR_US = "SET client_connection_check_interval TO '1s'"


def prepare(connection: psycopg.Connection[Any]) -> None:
    """Of a blocking pool: `configure`."""
    with contextlib.suppress(psycopg.errors.InvalidParameterValue):
        connection.execute(LOOK_FOR_US)


async def prepare_async(connection: psycopg.AsyncConnection[Any]) -> None:
    """Of an asynchronous pool: `configure`."""
    with contextlib.suppress(psycopg.errors.InvalidParameterValue):
        await connection.execute(LOOK_FOR_US)


def primary_of(dsn: str) -> str:
    """An address with several hosts is that of a primary and its standbys: it means whichever takes writes, even after
    a failover. One that says itself what it wants is left as it is."""
    parts = conninfo_to_dict(dsn)
    if "," not in str(parts.get("host") or "") or "target_session_attrs" in parts:
        return dsn
    return make_conninfo(dsn, target_session_attrs="read-write")


class Loan(NamedTuple):
    """A borrowed connection, and where it goes back to; both blocking or both asynchronous."""

    pool: Any
    connection: Any


class PoolCache(Generic[Pool]):
    """Which pool serves which node. It opens and closes nothing itself: the two routers do that, each in its way."""

    def __init__(self, routes: Routes, make: Callable[[str, str], Pool]) -> None:
        self._routes = routes
        self._make = make
        self._lock = threading.Lock()
        self._pools: dict[str, tuple[str, Pool]] = {}
        self._closed = False

    def find(self, node: str) -> tuple[Pool, Pool | None]:
        """The pool of a node at its current address, perhaps not opened yet, and the one it replaces, to be closed."""
        dsn = self._routes.node(node).dsn
        with self._lock:
            if self._closed:
                raise UserError("the router has been closed")
            known = self._pools.get(node)
            if known is not None and known[0] == dsn:
                return known[1], None
            fresh = self._make(node, dsn)
            self._pools[node] = (dsn, fresh)
        return fresh, known[1] if known else None

    def names(self) -> list[str]:
        """The nodes that have one."""
        with self._lock:
            return list(self._pools)

    def clear(self) -> list[Pool]:
        """All pools, to be closed; none is handed out afterwards."""
        with self._lock:
            self._closed = True
            pools, self._pools = self._pools, {}
        return [pool for _, pool in pools.values()]
