"""Tablets of a node that has gone back in time: closed to writes, given away, opened again. Statements only.

Called by the leader's guard, inside a `node_transaction`. A closed tablet is `fenced`, with the word `CLOSED` in place
of a migration's id, and its triggers say why it refuses. Rows are read `FOR UPDATE` first: what a claim said a moment
ago may have changed.

Partitions whose keys have expired: closed by a trigger that refuses writes in one sentence; counted; inspected.

The trigger looks nothing up, so no old snapshot is blind to it; it stops every path to the partition, as a fence does.
The empty partition that replaced the dropped ones has it for good, and a move carries it along. Called by migrations
inside their `node_transaction`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from psycopg import sql

from balancer.naming import Name
from balancer.nodes.catalog.bounds import Part, check_expression, parse_bound
from balancer.nodes.schema.install import OwnedTablet, OwnState, read_tablets, write_tablets
from balancer.nodes.session.connection import Connection, Cursor, Statement, lock_timeout, run_together
from balancer.nodes.tablets.fence import (
    MOVED,
    SEALED,
    Fence,
    has_trigger,
    lift_fence,
    lock_partitions,
    moved_statements,
)
from balancer.nodes.tablets.leftovers import note_open, switched_off, was_open
from balancer.nodes.tablets.object_names import CLOSED, FENCE_TRIGGER, FENCE_TRUNCATE_TRIGGER
from balancer.nodes.tablets.partition import Place, attachments
from balancer.policies.keyspace.keys import KeyType

MARK = "the mark"
"""In place of a migration's id, which it cannot be."""
MARK_EVERY = 60.0
"""Seconds between two marks on a node: the update of one row."""


def write_mark(cursor: Cursor, now: float, seen: int) -> None:
    """Tells the node the time; it never goes back, whatever the clock does.

    Only replaces the mark that was `seen` (0: none): a node with another one may have gone back in time since it was
    asked, and its old mark is the evidence. Not in `balancer.node`, whose row every transaction of the leader holds: a
    long one would be in the way.
    """
    mark = {"name": MARK, "now": int(now), "seen": seen}
    if seen:
        cursor.execute(
            "UPDATE balancer.marker SET number = greatest(number + 1, %(now)s)"
            " WHERE migration = %(name)s AND number = %(seen)s",
            mark,
            prepare=False,  # once a minute
        )
    else:
        cursor.execute(
            "INSERT INTO balancer.marker (migration, number) SELECT %(name)s, %(now)s"
            " WHERE NOT EXISTS (SELECT FROM balancer.marker WHERE migration = %(name)s)",
            mark,
            prepare=False,
        )


def locked_rows(cursor: Cursor, tablets: Iterable[int]) -> list[OwnedTablet]:
    """What the node says about these tablets, locked until the transaction ends."""
    wanted = sorted(tablets)
    cursor.execute("SELECT FROM balancer.tablet WHERE id = ANY(%s) ORDER BY id FOR UPDATE", (wanted,))
    return [row for row in read_tablets(cursor) if row.id in wanted]


def closed_statement(tablets: Iterable[int]) -> Statement:
    """Asks which of these are closed. Under their partitions' locks the answer holds until the transaction ends."""
    return sql.SQL("SELECT id FROM balancer.tablet WHERE id = ANY({}::bigint[]) AND migration = {}").format(
        sql.Literal(sorted(tablets)), sql.Literal(CLOSED)
    )


def close_tablet(cursor: Cursor, row: OwnedTablet, node: str, leader_epoch: int, lock_timeout: float) -> None:
    """Refuses every write to it, and every proof, until `open_tablet`."""
    there = _there(cursor, row.partitions)
    fence = Fence(CLOSED, leader_epoch, SEALED, 0, row.id, node, row.epoch)
    if there:
        lock_partitions(cursor, there, lock_timeout)
        run_together(cursor, [one for partition in there for one in _triggers(partition, fence)])
    write_tablets(cursor, [OwnedTablet(row.id, row.epoch, OwnState.FENCED, row.partitions, migration=CLOSED)])
    _say_until(cursor, row.id, SEALED)


def give_away(
    cursor: Cursor, row: OwnedTablet, owner: str, epoch: int, *, leader_epoch: int, lock_timeout: float
) -> None:
    """Makes a former owner say where the tablet is; its rows stay, behind the fence. If it was open until now, they may
    have been written, and are not dropped later."""
    there = _there(cursor, row.partitions)
    fence = Fence(CLOSED, leader_epoch, MOVED, 0, row.id, owner, epoch)
    if there:
        lock_partitions(cursor, there, lock_timeout)
    opened = row.state is not OwnState.MOVED and was_open(cursor, [row.id])
    if there:
        run_together(cursor, moved_statements(there, fence, lock_timeout))
    write_tablets(cursor, [OwnedTablet(row.id, epoch, OwnState.MOVED, row.partitions, moved_to=owner)])
    _say_until(cursor, row.id, MOVED)
    if opened:
        note_open(cursor, [row.id])


def say_moved(cursor: Cursor, row: OwnedTablet, *, leader_epoch: int, lock_timeout: float) -> None:
    """Says what a migration would have said at its end; first records a fence that somebody had switched off."""
    assert row.moved_to is not None
    switched_off(cursor, [row.id], row.partitions)
    give_away(cursor, row, row.moved_to, row.epoch, leader_epoch=leader_epoch, lock_timeout=lock_timeout)


def open_tablet(cursor: Cursor, row: OwnedTablet, lock_timeout: float) -> None:
    """Lets writers through again; the triggers are disabled, and go with `fence.drop_fence`."""
    lift_fence(cursor, _there(cursor, row.partitions), lock_timeout, closed=True)
    write_tablets(cursor, [OwnedTablet(row.id, row.epoch, OwnState.OWNED, row.partitions)])
    _say_until(cursor, row.id, None)


def _there(cursor: Cursor, partitions: Sequence[Name]) -> list[Name]:
    """Those that exist and can be altered: one whose detach has begun cannot."""
    return [name for name, pending in attachments(cursor, partitions).items() if not pending]


def _say_until(cursor: Cursor, tablet: int, until: str | None) -> None:
    """What `balancer.hold` reads, and what `leftovers` relies on."""
    cursor.execute(
        "UPDATE balancer.tablet SET until = %(until)s,"
        " closed_by = CASE WHEN %(until)s::text IS NOT NULL THEN pg_current_xact_id()::xid::text END"
        " WHERE id = %(tablet)s",
        {"until": until, "tablet": tablet},
    )


def _triggers(partition: Name, fence: Fence) -> list[Statement]:
    """Replaces whatever fence was there: the names are the same."""
    arguments = sql.SQL(", ").join(map(sql.Literal, fence.arguments()))
    made: list[Statement] = []
    for name, when in (
        (FENCE_TRIGGER, "BEFORE INSERT OR UPDATE OR DELETE ON {} FOR EACH ROW"),
        (FENCE_TRUNCATE_TRIGGER, "BEFORE TRUNCATE ON {} FOR EACH STATEMENT"),
    ):
        trigger, table = sql.Identifier(name), partition.identifier
        made += [
            sql.SQL("CREATE OR REPLACE TRIGGER {} ").format(trigger)
            + sql.SQL(when).format(table)
            + sql.SQL(" EXECUTE FUNCTION balancer.refuse_closed({})").format(arguments),
            sql.SQL("ALTER TABLE {} ENABLE ALWAYS TRIGGER {}").format(table, trigger),
        ]
    return made


EXPIRED_TRIGGER = "balancer_expired"
EXPIRED_TRUNCATE_TRIGGER = "balancer_expired_truncate"
_NAMES = (EXPIRED_TRIGGER, EXPIRED_TRUNCATE_TRIGGER)


@dataclass(frozen=True, slots=True)
class LastCount:
    """What a partition contains."""

    rows: int
    outside: int
    """Rows whose key the bounds do not allow."""


def close_expired(cursor: Cursor, partitions: Sequence[Name], sentence: str, timeout: float) -> str:
    """Waits for writers in flight; from the commit on every write is refused. Returns the transaction."""
    lock_partitions(cursor, partitions, timeout)
    for partition in partitions:
        run_together(cursor, _expired_triggers(partition, sentence, truncate=True))
    row = cursor.execute("SELECT pg_current_xact_id()::xid::text").fetchone()
    assert row is not None
    return str(row[0])


def refuse_rows(cursor: Cursor, partition: Name, sentence: str) -> None:
    """For a partition that is empty and stays so. TRUNCATE of its root loses nothing, and is allowed."""
    run_together(cursor, _expired_triggers(partition, sentence, truncate=False))


def closed_by(cursor: Cursor, partitions: Sequence[Name]) -> str | None:
    """The transaction that closed all of these; None: one is open, or somebody has switched its trigger since."""
    rows = cursor.execute(
        "SELECT bool_or(t.tgname = %s), bool_and(t.tgenabled = 'A'), min(t.xmin::text), max(t.xmin::text)"
        " FROM unnest(%s::text[]) AS name LEFT JOIN pg_trigger t"
        " ON t.tgrelid = to_regclass(name) AND t.tgname = ANY (%s) GROUP BY name",
        (EXPIRED_TRIGGER, [str(partition) for partition in partitions], list(_NAMES)),
    ).fetchall()
    transactions = {by for closed, always, first, last in rows if closed and always for by in (first, last)}
    whole = len(transactions) == 1 and all(closed and always for closed, always, _, _ in rows)
    return str(transactions.pop()) if whole else None


def stays_empty(cursor: Cursor, partitions: Sequence[Name]) -> bool:
    """Whether these replace dropped partitions (`refuse_rows`): those that are only closed until they are dropped
    refuse TRUNCATE as well."""
    row = cursor.execute(
        "SELECT bool_and(EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = to_regclass(name) AND t.tgname = %s)"
        " AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = to_regclass(name) AND t.tgname = %s))"
        " FROM unnest(%s::text[]) AS name",
        (EXPIRED_TRIGGER, EXPIRED_TRUNCATE_TRIGGER, [str(partition) for partition in partitions]),
    ).fetchone()
    return bool(row and row[0])


def triggers_until_gone(cursor: Cursor) -> list[tuple[Name, str]]:
    """The triggers on attached partitions that are closed until they are dropped, by partition and name."""
    rows = cursor.execute(
        "SELECT n.nspname, c.relname, t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relispartition AND t.tgname = ANY (%s) AND EXISTS"
        " (SELECT FROM pg_trigger b WHERE b.tgrelid = c.oid AND b.tgname = %s) ORDER BY 1, 2, 3",
        (list(_NAMES), EXPIRED_TRUNCATE_TRIGGER),
    ).fetchall()
    return [(Name(schema, table), str(trigger)) for schema, table, trigger in rows]


def open_expired(cursor: Cursor, partitions: Sequence[Name], timeout: float) -> None:
    """Lets writers through again; waits for no reader. Idempotent."""
    for partition in partitions:
        for trigger in _NAMES:
            if has_trigger(cursor, partition, trigger):
                lock_partitions(cursor, [partition], timeout)
                disable = sql.SQL("ALTER TABLE {} DISABLE TRIGGER {}")
                cursor.execute(disable.format(partition.identifier, sql.Identifier(trigger)))


def drop_expired_triggers(cursor: Cursor, partition: Name, timeout: float) -> None:
    """After `open_expired`: removes the triggers, which waits for readers. Idempotent."""
    run_together(cursor, [lock_timeout(timeout)])
    for trigger in _NAMES:
        if has_trigger(cursor, partition, trigger):
            cursor.execute(sql.SQL("DROP TRIGGER {} ON {}").format(sql.Identifier(trigger), partition.identifier))


def count_expired(connection: Connection, place: Place) -> LastCount:
    """Reads all of a closed partition."""
    expression = check_expression(place.columns, place.part, 0)
    query = sql.SQL("SELECT count(*), count(*) FILTER (WHERE ({}) IS NOT TRUE) FROM ONLY {}")
    row = connection.execute(query.format(expression, place.partition.identifier)).fetchone()
    assert row is not None
    return LastCount(int(row[0]), int(row[1]))


def bound_of(cursor: Cursor, partition: Name, types: Sequence[KeyType]) -> Part | None:
    """What the catalog says that an attached partition holds; None: it is not attached."""
    row = cursor.execute(
        "SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid = to_regclass(%s) AND relispartition",
        (str(partition),),
    ).fetchone()
    return None if row is None or row[0] is None else parse_bound(types, str(row[0]))


def clock_of(cursor: Cursor) -> float:
    """The node's own time, in seconds since 1970."""
    row = cursor.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
    assert row is not None
    return float(row[0])


def suspect(cursor: Cursor, tablets: Sequence[int]) -> None:
    """Records that somebody may have written to these since they were closed: they will be set aside, not dropped."""
    cursor.execute(
        "UPDATE balancer.tablet SET breached_since = coalesce(breached_since, closed_by,"
        " pg_current_xact_id()::xid::text) WHERE id = ANY (%s)",
        (list(tablets),),
    )


def _expired_triggers(partition: Name, sentence: str, *, truncate: bool) -> list[Statement]:
    parts = [(EXPIRED_TRIGGER, "BEFORE INSERT OR UPDATE OR DELETE", "FOR EACH ROW")]
    if truncate:
        parts.append((EXPIRED_TRUNCATE_TRIGGER, "BEFORE TRUNCATE", "FOR EACH STATEMENT"))
    made: list[Statement] = [
        sql.SQL(
            "CREATE OR REPLACE TRIGGER {} "
            + events
            + " ON {} "
            + each
            + " EXECUTE FUNCTION balancer.refuse_expired({})"
        ).format(sql.Identifier(name), partition.identifier, sql.Literal(sentence))
        for name, events, each in parts
    ]
    enabled = [sql.SQL("ENABLE ALWAYS TRIGGER {}").format(sql.Identifier(name)) for name, _, _ in parts]
    return [*made, sql.SQL("ALTER TABLE {} ").format(partition.identifier) + sql.SQL(", ").join(enabled)]
