"""One moment for all tablets of a table: a snapshot on each node, none of which sees half of what spans two of them.

There is no snapshot over several PostgreSQL servers. But there is a moment without half-done transactions: while every
partition of the table, on every node, is locked against writers. A lock waits for writers in flight, and for prepared
transactions, which keep their locks until they are ended on this node. So once all locks are held, whatever was
committed on one node is committed on all. At that moment each node's snapshot is taken; then the locks are released,
and the rows are read at leisure. Writers wait for milliseconds, as for a fence: within the bundle's `lock_timeout` per
node, and all locks are released at once if one is not granted.

Every owner has proven its tablets (`balancer.hold`) under both the lock and the snapshot, so the tablets are exactly
those of one version of the map.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

from psycopg import sql

from balancer.checks.ground import Ground
from balancer.directory.model import Table, Tablet
from balancer.errors import Unavailable
from balancer.migration.context import partitions_of
from balancer.nodes.connection import (
    Connection,
    Cursor,
    Statement,
    Timeouts,
    connect,
    lock_timeout,
    run_together,
    translated,
)
from balancer.nodes.held_reads import held_transaction

ATTEMPTS = 20
LOCKED = 2.0
"""Seconds after which a server lets writers continue if this process hangs."""
READ = 600.0
"""Seconds for which the last node's snapshot may wait for the others to be read."""
_LOCKING = sql.SQL("BEGIN ISOLATION LEVEL READ COMMITTED")
_READING = sql.SQL("BEGIN ISOLATION LEVEL REPEATABLE READ")


@dataclass(frozen=True, slots=True)
class TableCut:
    """The tablets, and a transaction on each of their nodes whose snapshot is of that one moment."""

    tablets: tuple[Tablet, ...]
    readers: Mapping[str, Cursor]


@contextmanager
def consistent_cut(ground: Ground, table: Table) -> Iterator[TableCut]:
    """Raises `Unavailable` if the table's writers do not pause for as long as it takes."""
    with ExitStack() as stack:
        yield _taken(ground, table, stack)


def _taken(ground: Ground, table: Table, stack: ExitStack) -> TableCut:
    pause = ground.bundle.migration.retry_back_off
    for _ in range(ATTEMPTS):
        mine = ExitStack()
        try:
            cut = _try(ground, table, mine)
        except Unavailable as error:
            mine.close()
            last = error
        else:
            stack.push(mine)
            return cut
        ground.clock.sleep(min(pause, ground.bundle.migration.retry_back_off_limit))
        pause *= 1.5
    raise Unavailable(f"no moment without writers was found in {ATTEMPTS} attempts: {last}") from last


def _try(ground: Ground, table: Table, stack: ExitStack) -> TableCut:
    tablets = tuple(ground.snapshot().tablets(table.id))
    by_node: dict[str, list[Tablet]] = {}
    for tablet in tablets:
        by_node.setdefault(tablet.node, []).append(tablet)
    with ExitStack() as locks:
        # Connections first: opening one takes longer than all the rest.
        lockers = {node: locks.enter_context(_connected(ground, node, LOCKED)) for node in by_node}
        readers = {node: stack.enter_context(_connected(ground, node, READ)) for node in by_node}
        for node, connection in lockers.items():
            cursor = locks.enter_context(_held(node, connection, by_node[node], _LOCKING))
            with translated(node):
                run_together(cursor, _locks(ground, table, by_node[node]))
        cursors = {
            node: stack.enter_context(_held(node, connection, by_node[node], _READING))
            for node, connection in readers.items()
        }
        return TableCut(tablets, cursors)


def _locks(ground: Ground, table: Table, tablets: Sequence[Tablet]) -> list[Statement]:
    lock = sql.SQL("LOCK TABLE ONLY {} IN SHARE MODE")
    leaves = [lock.format(leaf.identifier) for tablet in tablets for leaf in partitions_of(table, tablet)]
    return [lock_timeout(ground.bundle.migration.lock_timeout), *leaves]


def _held(
    node: str, connection: Connection, tablets: Sequence[Tablet], begin: sql.SQL
) -> AbstractContextManager[Cursor]:
    return _translated(node, held_transaction(connection, [(one.id, one.epoch) for one in tablets], begin))


@contextmanager
def _translated(node: str, inner: AbstractContextManager[Cursor]) -> Iterator[Cursor]:
    with translated(node), inner as cursor:
        yield cursor


@contextmanager
def _connected(ground: Ground, node: str, idle: float) -> Iterator[Connection]:
    patience = ground.bundle.checks.statement_timeout
    timeouts = Timeouts(statement=patience, network=patience + 10.0, idle_in_transaction=idle)
    with connect(ground.links.address(node), purpose="check", timeouts=timeouts) as connection:
        yield connection
