"""A leader's steps on a node: each first checks, and raises, the leader's epoch recorded there.

Everything that changes a node runs inside `node_transaction`, or, for commands that PostgreSQL does not allow
in a transaction, inside `node_command`. The node itself then refuses a predecessor that wakes up late. Reading needs
neither.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from balancer.errors import BalancerError, Fenced, OutcomeUnknown, Refused
from balancer.nodes.schema.blockers import leaders_holder
from balancer.nodes.schema.texts import LEADER_LOCK
from balancer.nodes.session import own_schema
from balancer.nodes.session.connection import (
    IDENTITIES,
    PLANNED,
    UNAWARE,
    Connection,
    Cursor,
    Statement,
    lost,
    run_together,
    translate,
)


@contextmanager
def node_transaction(
    connection: Connection,
    leader_epoch: int,
    node: str = "",
    *,
    durable: bool = False,
    first: Sequence[Statement] = (),
    together: Sequence[Statement] = (),
) -> Iterator[Cursor]:
    """A transaction under this leader's epoch. With `node`, the database must be that node. `first` is sent first.

    With `durable`, its commit waits for the disk whatever the server's own default is. The statements in `together`
    travel with the check and are rolled back if it fails; `last_rows` has the rows of the last of them.

    Raises `Fenced` if the node has seen a newer leader, `OutcomeUnknown` if the connection broke during COMMIT. Driver
    errors become ours; nothing is applied when it raises anything but `OutcomeUnknown`.
    """
    assert connection.autocommit, "the transaction would begin before the check"
    assert connection.info.transaction_status == TransactionStatus.IDLE, "it would be part of another transaction"
    label = node or connection.info.dbname
    committing = False
    try:
        with connection.cursor() as cursor:
            ours = _OURS_PLANNED if connection in PLANNED else _OURS
            start = [sql.SQL("BEGIN"), *first, *([_SYNCHRONOUS] if durable else []), ours]
            _begin(cursor, leader_epoch, node, start, together)
            yield cursor
            committing = True
            connection.commit()
    except psycopg.Error as error:
        if committing and lost(error):
            raise OutcomeUnknown(f"the connection to node {label} broke during a commit") from error
        raise _said(connection, label, error) from error
    finally:
        # After a commit there is nothing left to roll back, and nothing is sent.
        with suppress(psycopg.Error):
            connection.rollback()


def commit_and_begin(cursor: Cursor, leader_epoch: int, node: str, together: Sequence[Statement]) -> None:
    """Ends the transaction of a `node_transaction`, durably, and begins the next one as that does, in one message.

    Raises `OutcomeUnknown` if the connection broke. Any other error may concern the next transaction while the first
    has been committed: what was done in it must be checked again, in `together` or later.
    """
    connection = cursor.connection
    ours = _OURS_PLANNED if connection in PLANNED else _OURS
    try:
        _begin(cursor, leader_epoch, node, [sql.SQL("COMMIT"), sql.SQL("BEGIN"), _SYNCHRONOUS, ours], together)
    except psycopg.Error as error:
        if lost(error):
            raise OutcomeUnknown(f"the connection to node {node} broke during a commit") from error
        raise _said(connection, node, error) from error


@contextmanager
def node_command(connection: Connection, leader_epoch: int, node: str = "") -> Iterator[Connection]:
    """For commands outside transactions: the check comes right before, under a lock that a new leader waits for.

    The commands inside may only touch objects named after the caller's own migration.
    """
    # The epoch is raised first, without the shared lock: two sessions that both held it and both wanted to raise it
    # would wait for each other.
    with node_transaction(connection, leader_epoch, node):
        pass
    try:
        connection.execute("SELECT pg_advisory_lock_shared(%s, 0)", (LEADER_LOCK,))
        try:
            _look_again(connection, leader_epoch)
            yield connection
        finally:
            if not connection.closed:
                connection.execute("SELECT pg_advisory_unlock_shared(%s, 0)", (LEADER_LOCK,))
    except psycopg.Error as error:
        raise _said(connection, node or connection.info.dbname, error) from error


def _said(connection: Connection, node: str, error: psycopg.Error) -> BalancerError:
    """Our error; if the leaders' lock was not granted in time, it names the session that holds it."""
    meant = translate(node, error)
    if not isinstance(error, psycopg.errors.LockNotAvailable):
        return meant
    try:
        connection.rollback()
        holder = leaders_holder(connection)
    except psycopg.Error:
        return meant
    return type(meant)(f"{meant}; {holder}") if holder else meant


_OURS = sql.SQL(own_schema.REQUIRED)
_OURS_PLANNED = sql.SQL(own_schema.EXECUTE)
_SYNCHRONOUS = sql.SQL("SET LOCAL synchronous_commit TO on")


def _begin(
    cursor: Cursor, leader_epoch: int, node: str, start: Sequence[Statement], together: Sequence[Statement]
) -> None:
    """One message: a writer may be waiting for what follows."""
    directory = None if cursor.connection in UNAWARE else IDENTITIES.get(cursor.connection)
    words = [leader_epoch, node] if directory is None else [leader_epoch, node, directory]
    enter = sql.SQL("SELECT balancer.enter({})").format(sql.SQL(", ").join(map(sql.Literal, words)))
    message = [*start, enter, *together]
    try:
        try:
            run_together(cursor, message)
        except psycopg.errors.InvalidSqlStatementName:
            # After a rollback the driver may have had the server forget all that was prepared.
            cursor.connection.rollback()
            with suppress(psycopg.errors.DuplicatePreparedStatement):
                cursor.execute(own_schema.PREPARE)
            run_together(cursor, message)
    except psycopg.errors.InvalidTextRepresentation:
        # Perhaps about our schema; then nothing after the check was run, and this says what is wrong.
        cursor.connection.rollback()
        cursor.execute(_OURS)
        raise
    for _ in start:
        cursor.nextset()
    row = cursor.fetchone()
    if row is None or row[0] is None:
        raise Refused(f"our schema on node {node} is damaged: balancer.node is empty")
    if row[0] != leader_epoch:
        raise _fenced(row[0], leader_epoch)


_AGAIN = """
SELECT n.leader_epoch, d.j ->> 'identity', coalesce((d.j ->> 'changed_hands')::boolean, false), n.node, n.cluster
FROM balancer.node n, LATERAL (SELECT to_jsonb(n) AS j) d
"""  # a former version's table has no such columns


def _look_again(connection: Connection, leader_epoch: int) -> None:
    """What `balancer.enter` has read, under the lock that a newer leader and a change of hands wait for."""
    row = connection.execute(_AGAIN).fetchone() or (0, None, False, "", "")
    mine = None if connection in UNAWARE else IDENTITIES.get(connection)
    if row[2] if mine is None else row[1] not in (None, mine):
        raise Refused(f"node {row[3]} belongs to another directory: cluster {row[4]}, identity {row[1]}")
    if row[0] != leader_epoch:
        raise _fenced(int(row[0]), leader_epoch)


def _fenced(seen: int, mine: int) -> Fenced:
    return Fenced(f"the node has seen a leader with epoch {seen}; this one has {mine}")
