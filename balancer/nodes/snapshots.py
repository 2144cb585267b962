"""Sessions whose snapshot is older than a moment: they would miss rows that were copied since. Only reads.

A transaction in REPEATABLE READ or SERIALIZABLE, and so pg_dump, reads by one snapshot to its end, but finds the
partitions of a root by the newest catalog. Where new partitions have replaced old ones since, or one was detached, its
rows silently disappear. So a swap and a detach wait for such sessions, and name them to anyone who asks why.
"""

from datetime import datetime

from balancer.nodes.blockers import Blocker
from balancer.nodes.connection import Connection, Cursor

# A transaction begins before its snapshot is taken, so one that began later has a later snapshot. Between statements a
# transaction in READ COMMITTED has none. Migrations read partitions by their own names. A session that waits for a lock
# that we hold is left out on request (see `steps_swap`); so is one that waits in postgres_fdw, because the session at
# its other end may wait for that lock: under steady forwarded load there would always be one.
_OLDER = """
    SELECT pid, extract(epoch FROM clock_timestamp() - xact_start)::float8,
           coalesce(nullif(application_name, ''), 'a client')
    FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND backend_xmin IS NOT NULL
      AND xact_start <= %(moment)s AND pid <> pg_backend_pid()
      AND NOT starts_with(application_name, 'tablet-balancer migration ')
      AND NOT (%(holder)s::int IS NOT NULL
               AND (%(holder)s = ANY(pg_blocking_pids(pid)) OR wait_event_type IS NOT DISTINCT FROM 'Extension'))
    ORDER BY xact_start
"""


def moment_of(connection: Connection | Cursor) -> datetime:
    """Now, by the server's own clock."""
    row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    found = row[0]
    assert isinstance(found, datetime)
    return found


def older_snapshots(
    connection: Connection | Cursor, moment: datetime, *, not_behind: int | None = None
) -> list[Blocker]:
    """Sessions with a snapshot that may be older than this moment, oldest first; not those that wait for that pid."""
    rows = connection.execute(_OLDER, {"moment": moment, "holder": not_behind}).fetchall()
    return [Blocker(pid, age, f"{what}, with an older snapshot") for pid, age, what in rows]
