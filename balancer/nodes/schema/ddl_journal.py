"""Which steps of which schema change a node has carried out: each is noted in the transaction that carries it out.

So an interrupted change continues from where each node stands, and nothing is done twice. The note also has what undoes
the step on this node: what was there before the change is not taken away with it. Written by `features.ddl.apply`, by
one process at a time (`take_turn`)."""

from collections.abc import Sequence

from balancer.errors import Refused, Unavailable
from balancer.nodes.schema.texts import LEADER_LOCK
from balancer.nodes.session.connection import Connection, Cursor

_TURN = (LEADER_LOCK, 2)
"""An advisory lock, like those of leaders and of our schema's installation."""


def take_turn(connection: Connection, node: str) -> bool:
    """Keeps other processes from schema changes while this session lives. Idempotent; False: it held the lock already.

    A process that takes a change back while another carries it out would leave half of it, and both would call it
    ended.
    """
    held = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND (classid, objid) = (%s, %s)"
    if connection.execute(held, _TURN).rowcount:
        return False
    if connection.execute("SELECT pg_try_advisory_lock(%s, %s)", _TURN).fetchone() != (True,):
        raise Unavailable(f"another process is at work on a schema change, by a session on node {node}")
    return True


def steps_done(cursor: Connection | Cursor, change: str) -> dict[int, str]:
    """By number: the digest of each step of a change that this node has carried out."""
    rows = cursor.execute(
        "SELECT number, digest FROM balancer.ddl_step WHERE change = %s AND number > 0", (change,)
    ).fetchall()
    return {int(number): str(digest) for number, digest in rows}


def is_begun(cursor: Cursor, change: str, number: int) -> bool:
    """Whether this change has begun a step here that takes more than one transaction (`note_begun`)."""
    found = cursor.execute("SELECT FROM balancer.ddl_step WHERE change = %s AND number = %s", (change, -number))
    return found.rowcount > 0


def note_begun(cursor: Cursor, change: str, number: int, digest: str) -> None:
    """In the transaction that begins such a step: without this note, what is there was there before."""
    note_step(cursor, change, -number, digest)


def undo_here(cursor: Cursor, change: str, number: int) -> tuple[str, ...] | None:
    """What undoes a step on this node; None: it was noted without."""
    row = cursor.execute(
        "SELECT undo FROM balancer.ddl_step WHERE change = %s AND number = %s", (change, number)
    ).fetchone()
    return None if row is None or row[0] is None else tuple(row[0])


def note_step(cursor: Cursor, change: str, number: int, digest: str, undo: Sequence[str] | None = None) -> bool:
    """Notes a step in the transaction that carries it out; False: it has been carried out before.

    Waits for another session that is about to do the same.
    """
    cursor.execute(
        "INSERT INTO balancer.ddl_step (change, number, digest, undo) VALUES (%s, %s, %s, %s)"
        " ON CONFLICT (change, number) DO NOTHING RETURNING number",
        (change, number, digest, None if undo is None else list(undo)),
    )
    if cursor.fetchone() is not None:
        return True
    known = steps_done(cursor, change).get(number)
    if known != digest:
        raise Refused(f"step {number} of change {change} differs on this node: the file is not the same")
    return False


def forget_step(cursor: Cursor, change: str, number: int) -> None:
    """In the transaction that takes it back."""
    cursor.execute("DELETE FROM balancer.ddl_step WHERE change = %s AND abs(number) = %s", (change, number))
