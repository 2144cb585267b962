"""Reads from a node's standbys: `transaction(…, read_only=True, replica=True, max_lag=1.0, token=…)`.

A node's address with several hosts names its primary and its standbys. A reader goes to a standby, which must show
three things: that it had the tablet with the known epoch (`balancer.hold` in the reader's own transaction, by what it
has replayed), that it had replayed, before that transaction's snapshot, what the primary had written at some moment
within `max_lag`, and what the caller has seen (`token`). If it cannot show all of these, the owner answers.

Neither a standby's clock nor its last transaction says how old it is: a quiet primary and a lost stream look alike. So
the primary is asked for its position, at most twice within `max_lag`, and a standby is recent enough if it has replayed
a position that the primary had within `max_lag`. A move needs no position: the new owner's standby has the tablet's
epoch only once it has replayed the rows that came before it.
"""

import re
import threading
from collections import deque
from typing import NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row
from psycopg_pool import ConnectionPool

from balancer.client.messages import RoutedConnection
from balancer.client.observing import Attachments
from balancer.client.transaction.block import TransactionBlock
from balancer.client.transaction.drivers import borrow, give_back
from balancer.client.transaction.pools import PoolCache, prepare
from balancer.client.transaction.steps import LONGEST_BORROW, Held
from balancer.client.transaction.wire import command
from balancer.directory.locate import Location
from balancer.errors import Unavailable, UserError
from balancer.untrusted import quoted

ReplicaPool = ConnectionPool[RoutedConnection]
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s|m)")
KEPT = 64
"""Positions of a primary that are remembered."""
_SHOWN = "SELECT pg_is_in_recovery(), (pg_last_wal_replay_lsn() - '0/0')::bigint"
_POSITION = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint"


class Position(NamedTuple):
    """Where a primary's WAL ended at a moment (monotonic seconds)."""

    at: float
    end: int


def several_hosts(dsn: str) -> bool:
    return "," in str(conninfo_to_dict(dsn).get("host") or "")


def seconds_of(text: float | str) -> float:
    """Seconds, as a number or as a bundle's file writes them."""
    if isinstance(text, str):
        found = _DURATION.fullmatch(text.strip())
        if found is None:
            raise UserError(f"max_lag {quoted(text)} is not a duration: write 0.5, '500ms', '1s' or '2m'")
        return float(found[1]) * _UNITS[found[2]]
    return text


def parse_token(token: str) -> dict[str, int]:
    """Of `Router.token`: positions by node."""
    try:
        parts = [part.rpartition("=") for part in token.split("&") if part]
        return {node: int(end, 16) for node, _, end in parts}
    except ValueError:
        raise UserError("this is not a token: give what router.token() returned") from None


class ReplicaReads:
    """The standbys of all nodes. Kept with its router; may be used from several threads."""

    def __init__(self, kept: Attachments) -> None:
        self._routes = kept.routes
        arguments = kept.settings.arguments
        self._pools: PoolCache[ReplicaPool] = PoolCache(
            kept.routes,
            lambda node, dsn: ConnectionPool(
                make_conninfo(dsn, target_session_attrs="prefer-standby"),
                connection_class=RoutedConnection,
                configure=prepare,
                **arguments(f"{node}, standbys"),
            ),
        )
        self._lock = threading.Lock()
        self._positions: dict[str, deque[Position]] = {}

    def pool(self, node: str) -> ReplicaPool:
        found, retired = self._pools.find(node)
        if retired is not None:
            retired.close(timeout=0)
        if found.closed:
            found.open()
        return found

    def learn(self, node: str, end: int, at: float) -> None:
        """A position that a primary had at a moment or later."""
        with self._lock:
            self._positions.setdefault(node, deque(maxlen=KEPT)).append(Position(at, end))

    def needed(self, node: str, now: float, max_lag: float) -> int | None:
        """The least position that a standby must have replayed; None: nothing recent enough is known."""
        with self._lock:
            known = [one for one in self._positions.get(node, ()) if now - one.at <= max_lag]
        return min((one.end for one in known), default=None)

    def fresh(self, node: str, now: float, max_lag: float) -> bool:
        """Whether it is too early to ask the primary again."""
        with self._lock:
            known = self._positions.get(node)
            return bool(known) and now - known[-1].at <= max_lag / 2 if known else False

    def written(self) -> list[str]:
        return []

    def close(self) -> None:
        for pool in self._pools.clear():
            pool.close()


class ReplicaBlock(TransactionBlock):
    """A block that reads from a standby if one can be trusted, otherwise from the owner."""

    __slots__ = ("_max_lag", "_reads", "_seen")

    def read_from(self, reads: ReplicaReads, max_lag: float, seen: dict[str, int]) -> None:
        self._reads = reads
        self._max_lag = max_lag
        self._seen = seen

    def _quickly(self) -> Held | None:
        location = self._parts.routes.locate(self._table, self._key)
        if several_hosts(self._parts.routes.node(location.node).dsn):
            needed = self._needed(location)
            if needed is not None:
                found = self._standby(location, max(needed, self._seen.get(location.node, 0)))
                if found is not None:
                    return found
        return super()._quickly()

    def _needed(self, location: Location) -> int | None:
        clock, node = self._parts.routes.clock, location.node
        now = clock.monotonic()
        if not self._reads.fresh(node, now, self._max_lag):
            try:
                self._reads.learn(node, position_of(self._hands._pool(node)), now)
            except psycopg.Error:
                return None  # the ordinary way says what is wrong
        return self._reads.needed(node, clock.monotonic(), self._max_lag)

    def _standby(self, location: Location, needed: int) -> Held | None:
        pool = self._reads.pool(location.node)
        try:
            loan = borrow(pool, LONGEST_BORROW)
        except psycopg.Error:
            return None
        connection, good = loan.connection, False
        try:
            # Before the transaction: its snapshot must not be older than what is shown.
            standby, replayed = connection.cursor(row_factory=tuple_row).execute(_SHOWN).fetchone() or (False, None)
            with connection.lock:
                connection.wait(command(connection, self._wish.opening(location)))
            good = bool(standby) and replayed is not None and replayed >= needed
            if not standby:  # promoted meanwhile, or there is no standby: the ordinary way finds the primary
                connection.close()
        except psycopg.Error:
            good = False
        finally:
            if not good:
                self._put_away(loan)
        return Held(location, loan) if good else None


def position_of(pool: ReplicaPool) -> int:
    """Where a primary's WAL ends now."""
    loan = borrow(pool, LONGEST_BORROW)
    try:
        row = loan.connection.cursor(row_factory=tuple_row).execute(_POSITION).fetchone()
        assert row is not None
        return int(row[0])
    finally:
        give_back(loan)


def token_of(pools: dict[str, ReplicaPool]) -> str:
    """See `Router.token`."""
    parts = []
    for node, pool in sorted(pools.items()):
        try:
            parts.append(f"{node}={position_of(pool):x}")
        except psycopg.Error as error:
            raise Unavailable(f"node {node} cannot be asked for its position: {error}") from error
    return "&".join(parts)
