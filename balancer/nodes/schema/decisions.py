"""How atomic transactions over several nodes end: the table of decisions, and what a leader does with leftover parts.

The client library commits over several nodes by PostgreSQL's own two-phase commit: every participant but the first is
prepared; the first, the *home*, then commits its own changes together with a row here, and that commit is the decision.

The argument
============

 1. *The decision is one row, unique by transaction, written by the home's own transaction.* It is there if and only if
    the home has committed. So the home needs no prepare of its own.
 2. *Nobody guesses.* A recovering process (the leader, or a client whose answer was lost) first writes "abort" for the
    transaction, in a transaction of its own. If the home is half-way, the unique index makes it wait until the home has
    committed or rolled back. If the home has committed, its row stays, and is read. If not, "abort" stands, and a home
    that comes later meets it and fails, and none of it is committed. Only then is a part ended, as the row says.
 3. *An abort stays as long as its home may still come.* A home that began more than an hour before no longer writes its
    row (by its server's own clock, `balancer.decide`); rows are kept for a day.
 4. *A commit stays until every part is ended*: the client forgets it when all parts have answered, the leader after a
    day and only if a look at every node of the cluster, begun afterwards, finds no part of it.
 5. *A prepared part keeps its locks, `hold`'s advisory lock too*: a tablet cannot be switched under it. A mover waits
    for it as for a writer, and names it.
 6. *Only a transaction's own client decides for it.* Every role can see the ids of prepared transactions; but the id in
    them is a digest, and only those who know what it is a digest of can write rows (`balancer.decide` takes the
    secret). If anybody else prepares something under such an id, it is ended, and that is all.

PostgreSQL allows `COMMIT PREPARED` to the role that prepared and to superusers. A leader that is neither runs it as
that role, which it must be a member of.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from psycopg import sql

from balancer.naming import PREFIX
from balancer.nodes.session.connection import Connection, Cursor

KEPT = "1 day"
"""How long the leader keeps decisions: far longer than a home may take."""


class PreparedPart(NamedTuple):
    """A prepared transaction of this database under an id that begins as ours do."""

    gid: str
    role: str
    since: datetime
    xid: str


PREPARED = sql.SQL(
    "SELECT gid, owner, prepared, transaction::text FROM pg_catalog.pg_prepared_xacts"
    " WHERE database = current_database() AND gid LIKE {}"
).format(sql.Literal(PREFIX + "%"))
"""Every role may run this, and it reads nothing from disk."""


def prepared_parts(connection: Connection | Cursor) -> list[PreparedPart]:
    """What is prepared here under ids of the client library."""
    return [PreparedPart(*row) for row in connection.execute(PREPARED).fetchall()]


def decision_of(cursor: Cursor, transaction: str, reason: str, *, commits: bool = False) -> bool:
    """On the home: whether the transaction commits. If nothing was decided, this decides: by default, abort.

    Waits for a home that is half-way, at most for the session's lock_timeout. In the caller's `node_transaction`: the
    answer holds once that has committed.
    """
    cursor.execute(
        "INSERT INTO balancer.decision (id, commits, reason) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
        (transaction, commits, reason[:1000]),
    )
    row = cursor.execute("SELECT commits FROM balancer.decision WHERE id = %s", (transaction,)).fetchone()
    assert row is not None, "it was there, or is now"
    return bool(row[0])


def decided(connection: Connection | Cursor, transaction: str) -> bool | None:
    """What the home says so far, without deciding anything; None: nothing."""
    row = connection.execute("SELECT commits FROM balancer.decision WHERE id = %s", (transaction,)).fetchone()
    return None if row is None else bool(row[0])


class LockedRelation(NamedTuple):
    """A table that a prepared part has locked."""

    relation: str
    mode: str


def locked_by(connection: Connection | Cursor, xid: str) -> list[LockedRelation]:
    """What a prepared transaction keeps locked: others may wait for it."""
    rows = connection.execute(
        "SELECT l.relation::regclass::text, l.mode FROM pg_locks l JOIN pg_locks t USING (virtualtransaction)"
        " JOIN pg_class c ON c.oid = l.relation AND c.relkind IN ('r', 'p')"
        " WHERE t.locktype = 'transactionid' AND t.transactionid::text = %s AND t.pid IS NULL"
        "   AND l.locktype = 'relation' AND l.mode <> 'AccessShareLock'"
        "   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " ORDER BY 1, 2",
        (xid,),
    ).fetchall()
    return [LockedRelation(*row) for row in rows]


def end_part(connection: Connection, gid: str, role: str, *, commits: bool) -> bool:
    """Ends a prepared part as decided; inside a `node_command`. False: somebody else has ended it meanwhile."""
    still = connection.execute(
        "SELECT owner <> current_user AND NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)"
        " FROM pg_prepared_xacts WHERE database = current_database() AND gid = %s AND owner = %s",
        (gid, role),
    ).fetchone()
    if still is None:
        return False
    if still[0]:
        connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
    try:
        word = sql.SQL("COMMIT PREPARED {}" if commits else "ROLLBACK PREPARED {}")
        connection.execute(word.format(sql.Literal(gid)))
    finally:
        if still[0] and not connection.closed:
            connection.execute("RESET ROLE")
    return True


def old_decisions(connection: Connection | Cursor) -> list[str]:
    """Transactions whose decisions have been kept long enough."""
    rows = connection.execute(
        "SELECT id FROM balancer.decision WHERE at < clock_timestamp() - %s::interval ORDER BY at LIMIT 10000", (KEPT,)
    ).fetchall()
    return [str(row[0]) for row in rows]


def forget_decisions(cursor: Cursor, transactions: Sequence[str]) -> None:
    """In the caller's `node_transaction`, after no part of any of them was found anywhere."""
    cursor.execute(
        "DELETE FROM balancer.decision WHERE id = ANY(%s) AND at < clock_timestamp() - %s::interval",
        (list(transactions), KEPT),
    )
