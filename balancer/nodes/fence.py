"""Fences: what makes an owner refuse writes to a tablet. Called by migrations, inside their `node_transaction`.

A fence is a row trigger (and one for TRUNCATE) on each partition of the tablet, made under SHARE ROW EXCLUSIVE: it
waits for writers in flight and lets readers through. It is lifted by disabling it, which needs the same lock; dropping
a trigger would wait for every reader, so that comes later (`drop_fence`). The order of locks is that of the
partitions given: callers give them in the order of the table's roots. Clients that have proven their ownership are
waited for before that (`locks`), and each fence is written into `balancer.tablet.until` too, where they look.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from psycopg import sql

from balancer.errors import Refused
from balancer.nodes.connection import Cursor
from balancer.nodes.locks import keep_writers_out
from balancer.nodes.names import Name
from balancer.nodes.objects import FENCE_TRIGGER, FENCE_TRUNCATE_TRIGGER

SEALED = "sealed"
MOVED = "moved"


class Expired(Refused):
    """The fence ran out: what it stood for must not be built upon, but another may be raised."""


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


def raise_fence(cursor: Cursor, partitions: Sequence[Name], fence: Fence, seconds: float, lock_timeout: float) -> Fence:
    """Fences these partitions for so many seconds; returns the fence with its deadline. `fence.until` is ignored."""
    tablets = lock_partitions(cursor, partitions, lock_timeout)
    cursor.execute(
        "SELECT (extract(epoch FROM clock_timestamp()) + %s)::text, last_value + is_called::int FROM balancer.breaches",
        (seconds,),
    )
    row = cursor.fetchone()
    assert row is not None
    return _stand(cursor, tablets, partitions, replace(fence, until=row[0], breaches=row[1]))


def renew_fence(cursor: Cursor, partitions: Sequence[Name], fence: Fence, seconds: float, lock_timeout: float) -> Fence:
    """Moves the deadline of a fence that still stands. Raises `Refused` if it does not."""
    tablets = lock_partitions(cursor, partitions, lock_timeout)
    _check_standing(cursor, partitions, fence)
    cursor.execute("SELECT (extract(epoch FROM clock_timestamp()) + %s)::text", (seconds,))
    row = cursor.fetchone()
    assert row is not None
    return _stand(cursor, tablets, partitions, replace(fence, until=row[0]))


def seal_fence(cursor: Cursor, partitions: Sequence[Name], fence: Fence, lock_timeout: float) -> Fence:
    """Makes a fence permanent, if it is this very one and still stands. Raises `Refused` if not."""
    tablets = lock_partitions(cursor, partitions, lock_timeout)
    _check_standing(cursor, partitions, fence)
    return _stand(cursor, tablets, partitions, replace(fence, until=SEALED))


def mark_moved(cursor: Cursor, partitions: Sequence[Name], fence: Fence, lock_timeout: float) -> None:
    """Makes the fence of a former owner say where the tablet went."""
    tablets = lock_partitions(cursor, partitions, lock_timeout)
    _stand(cursor, tablets, partitions, replace(fence, until=MOVED))


def check_standing(cursor: Cursor, partitions: Sequence[Name], fence: Fence, lock_timeout: float) -> None:
    """Raises `Refused` unless this very fence has let nothing through; holds its lock until the transaction ends."""
    lock_partitions(cursor, partitions, lock_timeout)
    _check_standing(cursor, partitions, fence)


def lift_fence(cursor: Cursor, partitions: Sequence[Name], lock_timeout: float) -> None:
    """Lets writers through again, waiting for no reader. Partitions that are gone or have no fence are passed over."""
    for partition in partitions:
        if read_fence(cursor, partition) is not None:
            tablets = lock_partitions(cursor, [partition], lock_timeout)
            _tell_clients(cursor, tablets, None)
            for trigger in (FENCE_TRIGGER, FENCE_TRUNCATE_TRIGGER):
                cursor.execute(
                    sql.SQL("ALTER TABLE {} DISABLE TRIGGER {}").format(partition.identifier, sql.Identifier(trigger))
                )


def drop_fence(cursor: Cursor, partitions: Sequence[Name], lock_timeout: float) -> None:
    """Takes the triggers away. Waits for readers, so it comes after `lift_fence` and may be tried again."""
    _set_lock_timeout(cursor, lock_timeout)
    for partition in partitions:
        for trigger in (FENCE_TRIGGER, FENCE_TRUNCATE_TRIGGER):
            if has_trigger(cursor, partition, trigger):
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
    words = bytes(row[0]).decode().split("\0")
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


def lock_partitions(cursor: Cursor, partitions: Sequence[Name], lock_timeout: float) -> list[int]:
    """Waits for writers in flight and keeps others out until the transaction ends; readers are not concerned.

    Returns the tablets that the partitions belong to.
    """
    _set_lock_timeout(cursor, lock_timeout)
    tablets = keep_writers_out(cursor, partitions)
    for partition in partitions:
        cursor.execute(sql.SQL("LOCK TABLE ONLY {} IN SHARE ROW EXCLUSIVE MODE").format(partition.identifier))
    return tablets


def _stand(cursor: Cursor, tablets: Sequence[int], partitions: Sequence[Name], fence: Fence) -> Fence:
    _tell_clients(cursor, tablets, fence.until)
    for partition in partitions:
        _write(cursor, partition, fence)
    return fence


def _tell_clients(cursor: Cursor, tablets: Sequence[int], until: str | None) -> None:
    cursor.execute("UPDATE balancer.tablet SET until = %s WHERE id = ANY(%s)", (until, tablets))


def _check_standing(cursor: Cursor, partitions: Sequence[Name], fence: Fence) -> None:
    for partition in partitions:
        found = read_fence(cursor, partition)
        if found is None or replace(found, until="") != replace(fence, until=""):
            raise Refused(f"the fence of {partition} is not the one that this migration raised")
        if found.until in (SEALED, MOVED):
            continue
        cursor.execute(
            "SELECT extract(epoch FROM clock_timestamp()) < %s::float8 AND last_value + is_called::int = %s"
            " FROM balancer.breaches",
            (found.until, fence.breaches),
        )
        row = cursor.fetchone()
        if row is None or not row[0]:
            raise Expired(f"the fence of {partition} has expired: writes may have come through")


def guard_incoming(cursor: Cursor, partition: Name, fence: Fence) -> None:
    """Refuses writes to a partition that is being filled, by its own name; replication's apply is let through."""
    _write(cursor, partition, replace(fence, until=SEALED), always=False)


def _set_lock_timeout(cursor: Cursor, seconds: float) -> None:
    cursor.execute("SELECT set_config('lock_timeout', %s, true)", (f"{max(1, round(seconds * 1000))}ms",))


def _write(cursor: Cursor, partition: Name, fence: Fence, always: bool = True) -> None:
    arguments = sql.SQL(", ").join(map(sql.Literal, fence.arguments()))
    parts = (
        (FENCE_TRIGGER, "BEFORE INSERT OR UPDATE OR DELETE", "FOR EACH ROW"),
        (FENCE_TRUNCATE_TRIGGER, "BEFORE TRUNCATE", "FOR EACH STATEMENT"),
    )
    for name, events, each in parts:
        cursor.execute(
            sql.SQL(
                "CREATE OR REPLACE TRIGGER {} "
                + events
                + " ON {} "
                + each
                + " EXECUTE FUNCTION balancer.refuse_write({})"
            ).format(sql.Identifier(name), partition.identifier, arguments)
        )
        # ALWAYS: replication's apply and sessions with session_replication_role = replica are refused as well.
        word = "ENABLE ALWAYS" if always else "ENABLE"
        cursor.execute(
            sql.SQL("ALTER TABLE {} " + word + " TRIGGER {}").format(partition.identifier, sql.Identifier(name))
        )
