"""Fences: what makes an owner refuse writes to a tablet. Called by migrations, inside their `node_transaction`.

Writers wait while these run, so statements that need no answer in between travel together.

A fence is a row trigger (and one for TRUNCATE) on each partition of the tablet, made under EXCLUSIVE: it waits for
writers in flight, and for SELECT … FOR UPDATE, and lets readers through. It is lifted by disabling it; dropping a
trigger would wait for every reader, so that comes later (`drop_fence`). Locks are taken in the order of the partitions
given: callers give them in the order of the table's roots. Before that it waits for clients that have proven their
ownership (`nodes/schema/proof`), and each fence is also written into `balancer.tablet.until`, where they look. Callers
that know the partitions' `tablets` pass them: looking them up by name costs writers half a millisecond per switch and
node."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import LiteralString

from psycopg import sql
from psycopg.rows import TupleRow

from balancer.errors import Refused
from balancer.naming import Name
from balancer.nodes.schema.proof import tablets_of, writers_statement
from balancer.nodes.session import connection
from balancer.nodes.session.connection import Cursor, Statement, last_rows, run_together
from balancer.nodes.tablets.object_names import CLOSED, FENCE_TRIGGER, FENCE_TRUNCATE_TRIGGER

_NAMES = (FENCE_TRIGGER, FENCE_TRUNCATE_TRIGGER)
SEALED = "sealed"
MOVED = "moved"


class Expired(Refused):
    """The fence ran out: nothing may rely on it any more, but another may be raised."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The arguments of a fence's triggers."""

    migration: str
    leader_epoch: int
    until: str  # seconds since 1970 by the node's clock, SEALED or MOVED
    breaches: int
    tablet: int
    node: str = ""  # where the tablet went, if it has moved
    epoch: int = 0
    raised_by: frozenset[str] = field(default=frozenset(), compare=False)
    """The transactions that may have written its triggers: one that any other wrote was switched off meanwhile."""

    @property
    def sealed(self) -> bool:
        return self.until == SEALED

    def arguments(self) -> tuple[str, ...]:
        """As the trigger keeps them."""
        return (
            self.migration,
            str(self.leader_epoch),
            self.until,
            str(self.breaches),
            str(self.tablet),
            self.node,
            str(self.epoch),
        )


def deadline_statement(seconds: float) -> Statement:
    """The first part of raising, which `announced` reads. Before the lock, so that nobody waits for it: a write that an
    ended fence lets through from here on counts too."""
    return sql.SQL(
        "SELECT (extract(epoch FROM clock_timestamp()) + {})::text, last_value + is_called::int,"
        " pg_current_xact_id()::xid::text FROM balancer.breaches"
    ).format(sql.Literal(seconds))


def announced(row: TupleRow, fence: Fence) -> Fence:
    """The second part: the fence as it will be, from the first part's row."""
    until, breaches, transaction = row
    return replace(fence, until=until, breaches=breaches, raised_by=fence.raised_by | {transaction})


def raise_statements(
    partitions: Sequence[Name], fence: Fence, lock_timeout: float, tablets: Sequence[int] = ()
) -> tuple[list[Statement], list[Statement]]:
    """The third part: the lock, which waits for writers in flight, and the triggers. Checks that must happen under the
    lock go between the two, in the same message, by callers that roll back if a check fails."""
    return _lock(partitions, lock_timeout, tablets, _ROW_LOCKERS), trigger_statements(partitions, fence, tablets)


def renew_fence(cursor: Cursor, partitions: Sequence[Name], fence: Fence, seconds: float, lock_timeout: float) -> Fence:
    """Moves the deadline of a fence that still stands. Raises `Refused` if it does not."""
    check_standing(cursor, partitions, fence, lock_timeout)
    run_together(cursor, [deadline_statement(seconds)])
    renewed = replace(announced(last_rows(cursor)[0], fence), breaches=fence.breaches)
    run_together(cursor, trigger_statements(partitions, renewed))
    return renewed


def seal_statements(partitions: Sequence[Name], fence: Fence, tablets: Sequence[int] = ()) -> list[Statement]:
    """Make permanent a fence that stands. They may be sent after `look_statements`, in the same message, by callers
    that roll back if `check_looked` then says that it does not stand."""
    return trigger_statements(partitions, replace(fence, until=SEALED), tablets)


def sealed_by(fence: Fence, transaction: str) -> Fence:
    """The fence after that, in the transaction that `check_looked` named."""
    return replace(fence, until=SEALED, raised_by=frozenset({transaction}))


def mark_moved(cursor: Cursor, partitions: Sequence[Name], fence: Fence, lock_timeout: float) -> None:
    """Makes the fence of a former owner say where the tablet went."""
    run_together(cursor, moved_statements(partitions, fence, lock_timeout))


def moved_statements(
    partitions: Sequence[Name], fence: Fence, lock_timeout: float, tablets: Sequence[int] = ()
) -> list[Statement]:
    """What `mark_moved` sends."""
    moved = trigger_statements(partitions, replace(fence, until=MOVED), tablets)
    return [*_lock(partitions, lock_timeout, tablets), *moved]


def check_standing(cursor: Cursor, partitions: Sequence[Name], fence: Fence, lock_timeout: float) -> str:
    """Raises `Refused` unless this very fence has let nothing through; holds its lock until the transaction ends."""
    run_together(cursor, look_statements(partitions, lock_timeout))
    return check_looked(last_rows(cursor), fence)


def look_statements(partitions: Sequence[Name], lock_timeout: float, tablets: Sequence[int] = ()) -> list[Statement]:
    """The lock, and under it everything there is to know about the fences."""
    look = sql.SQL(
        "SELECT name, array_agg(tgargs), bool_and(tgenabled = 'A'), array_agg(t.xmin::text),"
        " extract(epoch FROM clock_timestamp())::float8, min(last_value + is_called::int),"
        " pg_current_xact_id()::xid::text"
        " FROM balancer.breaches, unnest({}::text[]) AS name"
        " LEFT JOIN pg_trigger t ON t.tgrelid = to_regclass(name) AND t.tgname IN ({}, {}) GROUP BY name"
    ).format(
        sql.Literal([str(partition) for partition in partitions]),
        sql.Literal(FENCE_TRIGGER),
        sql.Literal(FENCE_TRUNCATE_TRIGGER),
    )
    return [*_lock(partitions, lock_timeout, tablets, _ROW_LOCKERS), look]


def check_looked(rows: Sequence[TupleRow], fence: Fence) -> str:
    """Raises `Refused` unless this very fence stands and has let nothing through, by the last of `look_statements`.

    Returns the transaction that looked.
    """
    if not rows:
        raise Refused("nothing was found out about the fence")
    mine = ""
    for name, arguments, always, transactions, now, breaches, mine in rows:  # noqa: B007 - the same in all
        for words in arguments if len(arguments) == 2 else (None,):
            found = None if words is None else _parse(words)
            if found is None or replace(found, until="") != replace(fence, until=""):
                raise Refused(f"the fence of {name} is not the one that this migration raised")
            if found.until not in (SEALED, MOVED) and (now >= float(found.until) or breaches != fence.breaches):
                raise Expired(f"the fence of {name} has expired: writes may have come through")
        if not always or not fence.raised_by.issuperset(transactions):
            raise Expired(f"somebody has switched the fence of {name} off: writes may have come through")
    return mine


def lift_statements(partitions: Sequence[Name], lock_timeout: float, tablets: Sequence[int] = ()) -> list[Statement]:
    """Let writers through; for partitions that certainly have a fence. They wait for no reader."""
    disable = [sql.SQL("DISABLE TRIGGER {}").format(sql.Identifier(name)) for name in _NAMES]
    return [
        *_lock(partitions, lock_timeout, tablets),
        _word_for_clients(partitions, tablets, None),
        *(sql.SQL("ALTER TABLE {} ").format(name.identifier) + sql.SQL(", ").join(disable) for name in partitions),
    ]


def lift_fence(cursor: Cursor, partitions: Sequence[Name], lock_timeout: float, *, closed: bool = False) -> bool:
    """Lets writers through again, waiting for no reader. Skips partitions that are gone or have no fence.

    What the leader's guard has closed stays closed, and the result is False, unless `closed` is set.
    """
    lifted = True
    for partition in partitions:
        if read_fence(cursor, partition) is None:
            continue
        lock_partitions(cursor, [partition], lock_timeout)
        standing = read_fence(cursor, partition)
        if standing is not None and standing.migration == CLOSED and not closed:
            lifted = False
        elif standing is not None:
            run_together(cursor, lift_statements([partition], lock_timeout))
    return lifted


def drop_fence(cursor: Cursor, partitions: Sequence[Name], lock_timeout: float) -> None:
    """Removes the triggers. Waits for readers, so it comes after `lift_fence` and may be retried.

    Those of a tablet that the leader's guard has closed stay: only the guard opens it.
    """
    run_together(cursor, [connection.lock_timeout(lock_timeout)])
    for partition in partitions:
        there = [trigger for trigger in _NAMES if has_trigger(cursor, partition, trigger)]
        if not there:
            continue
        cursor.execute(sql.SQL("LOCK TABLE ONLY {} IN ACCESS EXCLUSIVE MODE").format(partition.identifier))
        standing = read_fence(cursor, partition)
        for trigger in there if standing is None or standing.migration != CLOSED else ():
            cursor.execute(sql.SQL("DROP TRIGGER {} ON {}").format(sql.Identifier(trigger), partition.identifier))


def read_fence(cursor: Cursor, partition: Name) -> Fence | None:
    """The enabled fence of a partition, expired or not; None if there is none."""
    cursor.execute(
        "SELECT t.tgargs FROM pg_trigger t WHERE t.tgrelid = to_regclass(%s) AND t.tgname = %s AND t.tgenabled <> 'D'",
        (str(partition), FENCE_TRIGGER),
    )
    row = cursor.fetchone()
    if row is None:
        return None
    return _parse(row[0])


def _parse(arguments: bytes) -> Fence:
    words = bytes(arguments).decode().split("\0")
    return Fence(words[0], int(words[1]), words[2], int(words[3]), int(words[4]), words[5], int(words[6]))


def has_trigger(cursor: Cursor, partition: Name, trigger: str) -> bool:
    """Whether the partition exists and has a trigger of this name."""
    cursor.execute(
        "SELECT 1 FROM pg_trigger WHERE tgrelid = to_regclass(%s) AND tgname = %s", (str(partition), trigger)
    )
    return cursor.fetchone() is not None


def deadline_of(fence: Fence) -> datetime | None:
    """When the fence ends by itself; None if it does not."""
    return None if fence.until in (SEALED, MOVED) else datetime.fromtimestamp(float(fence.until), UTC)


def lock_partitions(cursor: Cursor, partitions: Sequence[Name], lock_timeout: float) -> None:
    """Waits for writers in flight and keeps others out until the transaction ends; readers are not affected."""
    run_together(cursor, _lock(partitions, lock_timeout))


def guard_incoming(cursor: Cursor, partition: Name, fence: Fence) -> None:
    """Refuses writes to a partition that is being filled, by its own name; replication's apply is let through."""
    run_together(cursor, _triggers(partition, replace(fence, until=SEALED), "ENABLE"))


def let_through(cursor: Cursor, partition: Name) -> bool:
    """Switches the guard of `guard_incoming` off until it is restored, in the same transaction.

    For a role that may not write past triggers. It locks the partition, so nobody else gets through. False: there is no
    guard.
    """
    if read_fence(cursor, partition) is None:
        return False
    disable = [sql.SQL("DISABLE TRIGGER {}").format(sql.Identifier(name)) for name in _NAMES]
    cursor.execute(sql.SQL("ALTER TABLE {} ").format(partition.identifier) + sql.SQL(", ").join(disable))
    return True


def trigger_statements(partitions: Sequence[Name], fence: Fence, tablets: Sequence[int] = ()) -> list[Statement]:
    """The triggers of a fence on partitions that are locked. They replace those of the previous fence."""
    # ALWAYS: replication's apply and sessions with session_replication_role = replica are refused as well.
    triggers = [statement for partition in partitions for statement in _triggers(partition, fence, "ENABLE ALWAYS")]
    return [_word_for_clients(partitions, tablets, fence.until), *triggers]


def _word_for_clients(partitions: Sequence[Name], tablets: Sequence[int], until: str | None) -> Statement:
    """What `balancer.hold` reads instead of the triggers, and which transaction wrote them."""
    update = sql.SQL("UPDATE balancer.tablet SET until = {}, closed_by = {} WHERE id IN (SELECT {})")
    by = sql.SQL("NULL") if until is None else sql.SQL("pg_current_xact_id()::xid::text")
    return update.format(sql.Literal(until), by, tablets_of(partitions, tablets))


_WRITERS: LiteralString = "SHARE ROW EXCLUSIVE"
_ROW_LOCKERS: LiteralString = "EXCLUSIVE"
"""Waits for SELECT … FOR UPDATE as well: a session that holds a row must not find it taken on the new owner."""


def _lock(
    partitions: Sequence[Name], lock_timeout: float, tablets: Sequence[int] = (), mode: LiteralString = _WRITERS
) -> list[Statement]:
    lock = sql.SQL("LOCK TABLE ONLY {} IN " + mode + " MODE")
    tables = [lock.format(partition.identifier) for partition in partitions]
    return [connection.lock_timeout(lock_timeout), writers_statement(partitions, tablets), *tables]


def _triggers(partition: Name, fence: Fence, enable: str) -> list[Statement]:
    arguments = sql.SQL(", ").join(map(sql.Literal, fence.arguments()))
    parts = (
        (FENCE_TRIGGER, "BEFORE INSERT OR UPDATE OR DELETE", "FOR EACH ROW"),
        (FENCE_TRUNCATE_TRIGGER, "BEFORE TRUNCATE", "FOR EACH STATEMENT"),
    )
    made: list[Statement] = [
        sql.SQL(
            "CREATE OR REPLACE TRIGGER {} " + events + " ON {} " + each + " EXECUTE FUNCTION balancer.refuse_write({})"
        ).format(sql.Identifier(name), partition.identifier, arguments)
        for name, events, each in parts
    ]
    enabled = [sql.SQL(enable + " TRIGGER {}").format(sql.Identifier(name)) for name, _, _ in parts]
    return [*made, sql.SQL("ALTER TABLE {} ").format(partition.identifier) + sql.SQL(", ").join(enabled)]
