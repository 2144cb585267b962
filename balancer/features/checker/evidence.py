"""What a look is based on: the directory, the nodes' connections, and the proof that what was seen was not in motion.

Why a move gives no false alarm
===============================

*Rows of a tablet* are read on a node that proves within the same transaction, by `balancer.hold`, that it owns the
tablet with the epoch of the map (`on_owner`). If the tablet is moving or has moved, the node refuses, and the tablet is
looked up again.

*What nodes say about themselves* (claims, attached partitions) has no such proof. It is read between two readings of
the map. A difference counts only if the tablet was in no migration in either, its record is the same in both, and no
migration of it came and went in between, which a finished migration's record shows (`MapBeforeAfter`). Whatever a
migration does to a node, it does after its record was written and before the record is finished. So anything then seen
on a node that is not as the map says was not made by a migration.

*And everything is looked at twice* before it is reported (`policies.checking.confirmed`): an operator's DDL, a claim
that the leader is just closing and a restarting server are beyond what we can prove.

Reading a tablet's rows on the node that has proven to own it, as clients do (`balancer.hold`).

For the consistency checker. After the proof no statement of the transaction meets a former owner's rows or an absent
partition, so a tablet that moves meanwhile causes no false alarm. In READ COMMITTED the owner does not change before
the end, so such transactions are short; with one snapshot a switch does not wait, and the rows are those of that
moment.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import LiteralString

import psycopg
from psycopg import sql

from balancer.clock import Clock
from balancer.directory.contract import Directory
from balancer.directory.model import Migration, Table, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Unavailable
from balancer.migration.context import partitions_of
from balancer.naming import Name
from balancer.nodes.catalog.owners_code import check_owners_code, check_readable
from balancer.nodes.session.connection import Connection, Cursor, run_together, translated
from balancer.nodes.session.holder import ConnectionHolder, NodeSessions
from balancer.policies.checking import CheckResult
from balancer.polling.poller import Poller
from balancer.settings import BundleSettings

ATTEMPTS = 50
PAUSE = 0.1
"""Seconds: a switch takes some tens of milliseconds."""


@dataclass(frozen=True, slots=True)
class CheckScope:
    """One bundle, as the checker reaches it. Belongs to one thread."""

    bundle: BundleSettings
    directory: Directory
    links: NodeSessions
    poller: Poller
    readers: ConnectionHolder
    """For the application's own statements."""
    clock: Clock
    tables: frozenset[str] | None = None
    """None: all of the bundle; otherwise only these."""
    tablets: frozenset[int] | None = None
    sums: Mapping[str, str] = field(default_factory=dict)
    """The application's, as they were at their first look."""

    def snapshot(self) -> Snapshot:
        """The newest map."""
        return self.directory.snapshot()

    def wanted(self, table: Table) -> bool:
        """Whether to check a table."""
        return table.bundle == self.bundle.name and (self.tables is None or table.name in self.tables)

    def concerns(self, tablet: int) -> bool:
        """Whether to check a tablet."""
        return self.tablets is None or tablet in self.tablets

    def trusts(self, node: str) -> bool:
        """Whether code of tables' owners may run there with our rights."""
        return self.links.address(node).trusts_owners


@dataclass(frozen=True, slots=True)
class MapBeforeAfter:
    """Two readings of the map, around what was seen on the nodes."""

    before: Snapshot
    after: Snapshot
    moved: frozenset[str] = field(init=False)
    """Migrations that were at work at some moment between the two."""

    def __post_init__(self) -> None:
        earlier = self.before.migrations
        ids = {
            record.id
            for record in (*earlier.values(), *self.after.migrations.values())
            if not record.finished or record.id not in earlier
        }
        object.__setattr__(self, "moved", frozenset(ids))

    def still(self, tablet: int) -> bool:
        """Whether nothing was done to a tablet between the two."""
        same = self.before.find_tablet(tablet) == self.after.find_tablet(tablet)
        return same and not any(tablet in _tablets_of(record) for record in self._records())

    def in_motion(self) -> frozenset[Name]:
        """The partitions that migrations may have made, attached or removed between the two."""
        return frozenset(
            name
            for record in self._records()
            for snapshot in (self.before, self.after)
            if (table := snapshot.tables.get(record.table)) is not None
            for tablet in _before_and_after(snapshot, record)
            for name in partitions_of(table, tablet)
        )

    def _records(self) -> Iterator[Migration]:
        for number in self.moved:
            record = self.after.migrations.get(number) or self.before.migrations.get(number)
            assert record is not None, "it was in one of the two"
            yield record


def _tablets_of(record: Migration) -> set[int]:
    return {*record.sources, *(tablet.id for tablet in record.targets)}


def _before_and_after(snapshot: Snapshot, record: Migration) -> Iterator[Tablet]:
    yield from record.targets
    for number in record.sources:
        if (tablet := snapshot.find_tablet(number)) is not None:
            yield tablet


@dataclass(frozen=True, slots=True)
class HeldTablet:
    """A tablet whose owner has proven it, and the transaction in which it has."""

    table: Table
    tablet: Tablet
    cursor: Cursor

    def check_readable(self, ground: CheckScope, *partitions: Name, root: Name | None = None) -> None:
        """Raises `Refused` if reading would run code of the tables' owners with our rights."""
        trusted = ground.trusts(self.tablet.node)
        check_readable(self.cursor, partitions, trusted=trusted)
        if root is not None and not trusted:
            check_owners_code(self.cursor, [root])


Work = Callable[[HeldTablet], CheckResult]


def on_owner(ground: CheckScope, tablet: int, work: Work) -> CheckResult:
    """Does it on the node that owns the tablet, wherever that is by now. There is nothing to check for one that is
    gone: what replaced it comes later in the round."""
    for _ in range(ATTEMPTS):
        snapshot = ground.snapshot()
        found = snapshot.find_tablet(tablet)
        if found is None:
            return CheckResult()
        try:
            with holding(ground, found) as cursor:
                return work(HeldTablet(snapshot.tables[found.table], found, cursor))
        except NotHeld:
            ground.clock.sleep(PAUSE)
        except BalancerError as error:
            return CheckResult(unchecked=f"tablet {tablet}: {error}")
    return CheckResult(unchecked=f"tablet {tablet}: it was moving each time it was checked")


@contextmanager
def holding(ground: CheckScope, tablet: Tablet) -> Iterator[Cursor]:
    """A short transaction on the tablet's owner, with its proof."""
    connection: Connection = ground.links.control(tablet.node)
    with translated(tablet.node), held_read(connection, tablet.id, tablet.epoch) as cursor:
        yield cursor


_HOLD: LiteralString = "CALL balancer.hold({}, {}, false)"


class NotHeld(Unavailable):
    """The tablet is not here with this epoch, or is moving right now: look at the map again."""


@contextmanager
def held_read(connection: Connection, tablet: int, epoch: int, *, one_snapshot: bool = False) -> Iterator[Cursor]:
    """A read-only transaction on the owner, always rolled back. Raises `NotHeld`."""
    level = "REPEATABLE READ" if one_snapshot else "READ COMMITTED"
    with held_transaction(connection, [(tablet, epoch)], sql.SQL("BEGIN ISOLATION LEVEL " + level)) as cursor:
        cursor.execute("SET TRANSACTION READ ONLY")
        yield cursor


@contextmanager
def held_transaction(connection: Connection, tablets: list[tuple[int, int]], begin: sql.Composable) -> Iterator[Cursor]:
    """The same for several tablets of one node, each with its epoch; it may write what does not outlive it."""
    holds = [sql.SQL(_HOLD).format(sql.Literal(tablet), sql.Literal(epoch)) for tablet, epoch in tablets]
    try:
        with connection.cursor() as cursor:
            try:
                run_together(cursor, [begin, *holds])
            except psycopg.errors.SerializationFailure as error:
                raise NotHeld(str(error.diag.message_primary)) from error
            yield cursor
    finally:
        with suppress(psycopg.Error):
            connection.rollback()
