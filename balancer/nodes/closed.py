"""Tablets of a node that has gone back in time: closed to writes, given away, opened again. Statements only.

Called by the leader's guard, inside a `node_transaction`. A closed tablet is `fenced`, with the word `CLOSED` in place
of a migration's id, and its triggers say why it refuses. Rows are read `FOR UPDATE` first: what a claim said a moment
ago may have changed.
"""

from collections.abc import Iterable, Sequence

from psycopg import sql

from balancer.nodes.connection import Cursor, Statement, run_together
from balancer.nodes.fence import MOVED, SEALED, Fence, lift_fence, lock_partitions, moved_statements
from balancer.nodes.names import Name
from balancer.nodes.objects import CLOSED, FENCE_TRIGGER, FENCE_TRUNCATE_TRIGGER
from balancer.nodes.partition import attachments
from balancer.nodes.schema import OwnedTablet, OwnState, read_tablets, write_tablets
from balancer.nodes.set_aside import note_open, switched_off, was_open

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
    """What `balancer.hold` reads, and what `set_aside` relies on."""
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
