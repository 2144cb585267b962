"""The stream of a replicated move: publication and slot on the source, subscription on the target, markers through it.

Called by migrations. Every object carries the migration's id (`object_names.stream_name`), so each call may be repeated
and touches nobody else's. Slots and subscriptions are created and dropped outside transactions: callers use
`node_command`."""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql
from psycopg.conninfo import make_conninfo

from balancer.errors import Refused, Unavailable
from balancer.naming import Name
from balancer.nodes.session.connection import Connection, Cursor, Statement, keep_out_of_logs
from balancer.nodes.tablets.object_names import stream_name, switch_name


@dataclass(frozen=True, slots=True)
class MadeSlot:
    """A slot that was just made: rows at `snapshot` plus everything streamed from `lsn` on are the whole."""

    snapshot: str
    lsn: str


@dataclass(frozen=True, slots=True)
class StreamState:
    """How far a stream is behind, in bytes of write-ahead log, and how much the source must keep for it."""

    lag: int
    retained: int
    lost: bool


def create_publication(cursor: Cursor, migration: str, partitions: Sequence[Name]) -> None:
    """Publishes the rows of these partitions and this migration's markers. TRUNCATE is left out: it would be applied
    to a target that may have been filled since."""
    tables: list[sql.Composable] = [sql.SQL("ONLY {}").format(partition.identifier) for partition in partitions]
    tables.append(sql.SQL("balancer.marker WHERE (migration = {})").format(sql.Literal(migration)))
    cursor.execute(
        sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish = 'insert, update, delete')").format(
            sql.Identifier(stream_name(migration)), sql.SQL(", ").join(tables)
        )
    )


def publication_exists(cursor: Cursor, migration: str) -> bool:
    """Whether this database has the migration's publication."""
    found = cursor.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (stream_name(migration),))
    return found.fetchone() is not None


def drop_publication(cursor: Cursor, migration: str) -> None:
    """Idempotent; `Unavailable` while writers are in the way.

    A writer that has just read that its table is published, and then does not find the publication, fails with an
    internal error of the server: so none may be at work meanwhile. Only we ourselves write markers.
    """
    cursor.execute(
        "SELECT prrelid::regclass::text FROM pg_publication_rel r JOIN pg_publication p ON p.oid = prpubid"
        " WHERE pubname = %s AND prrelid <> 'balancer.marker'::regclass ORDER BY prrelid",
        (stream_name(migration),),
    )
    if published := [str(row[0]) for row in cursor.fetchall()]:
        cursor.execute("SET LOCAL lock_timeout TO '200ms'")
        cursor.execute(f"LOCK TABLE ONLY {', ONLY '.join(published)} IN SHARE ROW EXCLUSIVE MODE".encode())
    cursor.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(stream_name(migration))))


def create_slot(replication: Connection, migration: str) -> MadeSlot:
    """Makes the slot on a replication connection; the snapshot lives until that connection's next command.

    It waits for every open write transaction of the server, within the connection's lock timeout.
    """
    name = sql.Identifier(stream_name(migration))
    statement = sql.SQL("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput (SNAPSHOT 'export')").format(name)
    row = replication.execute(statement.as_string(replication)).fetchone()
    if row is None or row[2] is None:
        raise Refused(f"the server made the slot {stream_name(migration)} without a snapshot")
    return MadeSlot(str(row[2]), str(row[1]))


def drop_slot(connection: Cursor, migration: str) -> None:
    """Ends its reader, if it has one, and drops it. Idempotent; `Unavailable` while a reader still holds it.

    Never one of another database: the server shows them all, and another cluster's may have the same name.
    """
    name = stream_name(migration)
    mine = "SELECT {} FROM pg_replication_slots WHERE slot_name = %s AND database = current_database() {}"
    asked, dropped = (
        sql.SQL(mine).format(*map(sql.SQL, words))
        for words in (("active_pid, active", ""), ("pg_drop_replication_slot(slot_name)", "AND NOT active"))
    )
    row = connection.execute(asked, (name,)).fetchone()
    if row is None:
        return
    if row[0] is not None:
        connection.execute("SELECT pg_terminate_backend(%s, 2000)", (row[0],))
    if (row := connection.execute(asked, (name,)).fetchone()) and row[1]:
        raise Unavailable(f"the replication slot {name} is still in use")
    connection.execute(dropped, (name,))


def create_subscription(cursor: Cursor, migration: str, source: str) -> None:
    """Starts applying what the slot has kept; the rows themselves have been copied."""
    name = stream_name(migration)
    source = make_conninfo(source, application_name=name)
    keep_out_of_logs(cursor)
    cursor.execute(
        sql.SQL(
            "CREATE SUBSCRIPTION {} CONNECTION {} PUBLICATION {} WITH"
            " (copy_data = false, create_slot = false, enabled = true, slot_name = {}, streaming = off)"
        ).format(sql.Identifier(name), sql.Literal(source), sql.Identifier(name), sql.Literal(name))
    )


def subscription_exists(connection: Connection | Cursor, migration: str) -> bool:
    """Whether this database has the migration's subscription."""
    return connection.execute(_SUBSCRIPTION, (stream_name(migration),)).fetchone() is not None


_SUBSCRIPTION = (
    "SELECT subenabled FROM pg_subscription WHERE subname = %s"
    " AND subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


def disable_statement(migration: str) -> Statement:
    """Ends applying, inside a transaction; for a subscription that exists."""
    return sql.SQL("ALTER SUBSCRIPTION {} DISABLE").format(sql.Identifier(stream_name(migration)))


def enable_subscription(cursor: Cursor, migration: str) -> None:
    """Resumes applying from where it was. Idempotent; does nothing if there is no subscription."""
    row = cursor.execute(_SUBSCRIPTION, (stream_name(migration),)).fetchone()
    if row == (False,):
        name = sql.Identifier(stream_name(migration))
        cursor.execute(sql.SQL("ALTER SUBSCRIPTION {} ENABLE").format(name))


def drop_subscription(connection: Cursor, migration: str) -> None:
    """Drops it without contacting the source, which may be down; the slot is dropped there. Idempotent."""
    if not subscription_exists(connection, migration):
        return
    name = sql.Identifier(stream_name(migration))
    connection.execute(sql.SQL("ALTER SUBSCRIPTION {} DISABLE").format(name))
    connection.execute(sql.SQL("ALTER SUBSCRIPTION {} SET (slot_name = NONE)").format(name))
    connection.execute(sql.SQL("DROP SUBSCRIPTION {}").format(name))


def marker_statements(migration: str) -> list[Statement]:
    """Send a row that arrives on the target after everything committed before it; the last returns its number.

    One at a time: several moves may send through the stream of a reference table at once, and each needs its number.
    """
    name = sql.Literal(migration)
    return [
        sql.SQL("SELECT pg_advisory_xact_lock(hashtextextended({}, 7461))").format(name),
        _marker_statement(migration),
    ]


def _marker_statement(migration: str) -> Statement:
    return sql.SQL(
        "INSERT INTO balancer.marker (migration, number)"
        " SELECT {0}, coalesce(max(number), 0) + 1 FROM balancer.marker WHERE migration = {0} RETURNING number"
    ).format(sql.Literal(migration))


def number_statement(migration: str, number: int) -> Statement:
    """Writes a marker with this number that goes through no stream: what it stands for is on both sides."""
    return sql.SQL("INSERT INTO balancer.marker (migration, number) VALUES ({}, {})").format(
        sql.Literal(migration), sql.Literal(number)
    )


def newest_marker(connection: Connection | Cursor, migration: str) -> int:
    """The newest marker here; 0 if there is none."""
    row = connection.execute(
        "SELECT coalesce(max(number), 0) FROM balancer.marker WHERE migration = %s", (migration,)
    ).fetchone()
    return int(row[0]) if row else 0


def arrived_markers(connection: Connection | Cursor, migration: str) -> tuple[int, int]:
    """The newest marker here, and how many of those up to it are missing: none, unless this server went back in
    time."""
    row = connection.execute(arrived_statement(migration)).fetchone()
    return (int(row[0]), int(row[1])) if row else (0, 0)


def arrived_statement(migration: str) -> sql.Composed:
    """Asks what `arrived_markers` returns, for those who send more with it."""
    return sql.SQL(
        "SELECT coalesce(max(number), 0), coalesce(max(number), 0) - count(*) FROM balancer.marker WHERE migration = {}"
    ).format(sql.Literal(migration))


def missing_markers(connection: Connection | Cursor, migration: str) -> int:
    """How many of the markers up to the newest are missing here."""
    return arrived_markers(connection, migration)[1]


def switch_statements(migration: str, number: int) -> list[Statement]:
    """Write on the target which switch has made it ready, in the transaction that does.

    The number is drawn for each switch. A server that has it has everything that was there when that transaction began;
    a standby that was promoted without it, or with an earlier switch's, does not.
    """
    name = sql.Literal(switch_name(migration))
    return [
        sql.SQL("DELETE FROM balancer.marker WHERE migration = {}").format(name),
        sql.SQL("INSERT INTO balancer.marker (migration, number) VALUES ({}, {})").format(name, sql.Literal(number)),
    ]


def switch_here_statement(migration: str) -> sql.Composed:
    """Asks for that number; 0: no switch has made this server ready."""
    return sql.SQL("SELECT coalesce(max(number), 0) FROM balancer.marker WHERE migration = {}").format(
        sql.Literal(switch_name(migration))
    )


def switch_here(cursor: Cursor, migration: str) -> int:
    """What it answers."""
    row = cursor.execute(switch_here_statement(migration)).fetchone()
    return int(row[0]) if row else 0


def forget_switch(cursor: Cursor, migration: str) -> None:
    """Once the migration has ended. Idempotent."""
    cursor.execute("DELETE FROM balancer.marker WHERE migration = %s", (switch_name(migration),))


def delete_markers(cursor: Cursor, migration: str) -> None:
    """Idempotent."""
    cursor.execute("DELETE FROM balancer.marker WHERE migration = %s", (migration,))


def delete_markers_before(cursor: Cursor, migration: str, number: int) -> None:
    """For a long-lived stream: its numbers continue from the last."""
    cursor.execute("DELETE FROM balancer.marker WHERE migration = %s AND number < %s", (migration, number))


def stream_state(connection: Connection, migration: str) -> StreamState:
    """The slot as the source sees it. Raises `Refused` if it is gone: the migration cannot be saved."""
    row = connection.execute(
        "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), confirmed_flush_lsn)::bigint,"
        " pg_wal_lsn_diff(pg_current_wal_insert_lsn(), restart_lsn)::bigint, wal_status"
        " FROM pg_replication_slots WHERE slot_name = %s",
        (stream_name(migration),),
    ).fetchone()
    if row is None:
        raise Refused(f"the replication slot {stream_name(migration)} is gone")
    return StreamState(int(row[0] or 0), int(row[1] or 0), row[2] == "lost")


def apply_error(connection: Connection, migration: str) -> int:
    """How many times applying has failed on the target."""
    row = connection.execute(
        "SELECT apply_error_count FROM pg_stat_subscription_stats WHERE subname = %s", (stream_name(migration),)
    ).fetchone()
    return int(row[0]) if row else 0
