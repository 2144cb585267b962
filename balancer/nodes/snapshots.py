"""Sessions whose snapshot is older than a transaction: they do not see what it, or others before it, wrote. Only reads.

A transaction in REPEATABLE READ or SERIALIZABLE, and so pg_dump, reads by one snapshot to its end, but finds the
partitions of a root by the newest catalog. Where new partitions have replaced old ones since, or one was detached, its
rows silently disappear. So a swap and a detach wait for such sessions, and name them to anyone who asks why. Nobody is
held back meanwhile.
"""

from datetime import datetime

from balancer.nodes.blockers import Blocker
from balancer.nodes.connection import Connection, Cursor

# A snapshot that does not see a transaction was taken with an xmin that is no newer. That is shown of every backend, of
# every role, and also where `track_activities` is off; when its transaction began, and what it is, may not be. One
# without a role is of an autovacuum worker; it, VACUUM, and CREATE INDEX CONCURRENTLY read by no root, and are in no
# transaction that could do so later. Migrations read partitions by their own names.
_OLDER = """
    SELECT a.pid, a.xact_start, a.backend_xmin::text,
           coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0)::float8,
           coalesce(nullif(a.application_name, ''), 'a client'),
           extract(epoch FROM clock_timestamp() - CASE WHEN a.state = 'active' THEN a.query_start END)::float8
    FROM pg_stat_activity a
    WHERE a.datid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND a.pid <> pg_backend_pid()
      AND a.backend_xmin IS NOT NULL AND age(a.backend_xmin) >= age(%(transaction)s::xid8::xid)
      AND a.usesysid IS NOT NULL AND a.backend_type IS DISTINCT FROM 'autovacuum worker'
      AND NOT (a.usename = current_user AND starts_with(coalesce(a.application_name, ''), 'tablet-balancer migration '))
      AND NOT (%(but_dumps)s AND a.application_name IS NOT DISTINCT FROM 'pg_dump')
      AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
      AND NOT EXISTS (SELECT FROM pg_stat_progress_create_index i
                      WHERE i.pid = a.pid AND i.command LIKE '%% CONCURRENTLY')
    ORDER BY a.xact_start NULLS LAST
"""


class OlderSnapshots:
    """Sessions that may have a snapshot older than a transaction that has committed: listed once, at the first look.

    One that begins later sees it, unless it imports the snapshot of another session: such a snapshot's xmin is of a
    transaction that had ended already. A session leaves the list for good when it is seen in another transaction,
    without a snapshot, or with one that is newer; no clocks are compared. `but_dumps`: pg_dump reads partitions by
    their own names, those that it found when it began.
    """

    def __init__(self, transaction: str, *, but_dumps: bool = False) -> None:
        self.transaction = transaction
        self._given = {"transaction": transaction, "but_dumps": but_dumps}
        self._listed: dict[int, datetime | None] | None = None
        self._running: frozenset[str] = frozenset()

    def left(self, connection: Connection | Cursor) -> list[Blocker]:
        """Those that are left, oldest first."""
        if self._listed is None:
            running = connection.execute("SELECT x::xid::text FROM pg_snapshot_xip(pg_current_snapshot()) AS x")
            self._running = frozenset(str(number) for (number,) in running.fetchall())
        rows = connection.execute(_OLDER, self._given).fetchall()
        known = {int(pid): since for pid, since, *_ in rows} if self._listed is None else self._listed
        self._listed = {
            int(pid): since
            for pid, since, xmin, *_ in rows
            if (pid in known and known[pid] == since) or xmin not in self._running
        }
        return [
            Blocker(pid, age, f"{what}, with an older snapshot", query)
            for pid, _, _, age, what, query in rows
            if pid in self._listed
        ]


def this_transaction(cursor: Cursor) -> str:
    """The cursor's own, which gets a number by that: whoever does not see it may not see what was before it either."""
    row = cursor.execute("SELECT pg_current_xact_id()::text").fetchone()
    assert row is not None
    return str(row[0])
