"""Who would block a lock: sessions and prepared transactions that hold a conflicting one, on a table or (clients that
have not read or written yet) on its tablet. Reads, and ends a session where the operator allows it."""

from collections.abc import Sequence
from dataclasses import dataclass

from balancer.naming import Name
from balancer.nodes.schema.texts import LEADER_LOCK, READERS, WRITERS
from balancer.nodes.session.connection import Connection, Cursor
from balancer.untrusted import one_line


@dataclass(frozen=True, slots=True)
class WantedLock:
    """A lock that we want: the modes it has to wait for, and whether it also waits for clients with a proof."""

    modes: tuple[str, ...]
    proofs: tuple[int, ...]


_SELF = ("ShareUpdateExclusiveLock", "ShareLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock")
ATTACH = WantedLock(_SELF, ())
"""SHARE UPDATE EXCLUSIVE on a root: readers and writers continue."""
FENCE = WantedLock((*_SELF, "RowExclusiveLock", "RowShareLock"), (WRITERS,))
"""EXCLUSIVE on partitions: waits for writers, and SELECT … FOR UPDATE."""
SWAP = WantedLock((*_SELF, "RowExclusiveLock", "RowShareLock", "AccessShareLock"), (WRITERS, READERS))
"""ACCESS EXCLUSIVE on roots and partitions: waits for everybody."""


@dataclass(frozen=True, slots=True)
class Blocker:
    """A transaction in the way."""

    pid: int | None  # None: a prepared transaction
    age: float  # seconds since its transaction began
    what: str
    query: float | None = None
    """Seconds since its present statement began; None: it runs none, or that is not known."""

    @property
    def told(self) -> str:
        """For a wait that lasts: also how to end it."""
        if self.pid is None:
            return f"{self}; ROLLBACK PREPARED or COMMIT PREPARED ends it"
        running = "" if self.query is None else f", its statement for {self.query:.0f} s"
        words = f"{str(self)[:-1]}{running})"
        return f"{words}; SELECT pg_terminate_backend({self.pid}) ends it"

    def __str__(self) -> str:
        who = f"session {self.pid}" if self.pid is not None else "a prepared transaction"
        return f"{who} ({self.what}, open for {self.age:.1f} s)"


_HOLDERS = """
    SELECT l.pid, coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0)::float8,
           CASE WHEN a.backend_type = 'client backend' THEN coalesce(nullif(a.application_name, ''), 'a client')
                ELSE coalesce(a.backend_type, 'unknown') END,
           extract(epoch FROM clock_timestamp() - CASE WHEN a.state = 'active' THEN a.query_start END)::float8
    FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'relation' AND l.granted AND l.relation = ANY(%s::regclass[])
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.mode = ANY(%s) AND l.pid IS DISTINCT FROM pg_backend_pid()
"""

# Only clients' transactions and we ourselves take these locks legitimately. But their numbers are public: another role
# may hold one outside a transaction, or exclusively, for as long as its session lasts, so the session's age is used.
_HELD = """
    SELECT l.pid, coalesce(extract(epoch FROM clock_timestamp() - CASE WHEN strange THEN a.backend_start
                                                                       ELSE a.xact_start END), 0)::float8,
           coalesce(nullif(a.application_name, ''), 'a client')
               || CASE WHEN strange THEN format(' of role %%I, holds an advisory lock', a.usename) ELSE '' END,
           extract(epoch FROM clock_timestamp() - CASE WHEN a.state = 'active' THEN a.query_start END)::float8
    FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
    CROSS JOIN LATERAL (SELECT a.usename <> current_user AND (l.mode = 'ExclusiveLock' OR a.xact_start IS NULL)) AS s
        (strange)
    JOIN unnest(%s::bigint[]) AS proof ON true
    -- On this side of the equation nothing overflows, whatever numbers an application locks.
    JOIN balancer.tablet t ON t.id + proof = (l.classid::bigint << 32) + l.objid::bigint
    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND l.pid <> pg_backend_pid()
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND EXISTS (SELECT FROM unnest(t.schemas, t.partitions) AS p (schema, name)
                  WHERE to_regclass(format('%%I.%%I', p.schema, p.name)) = ANY(%s::regclass[]))
"""

# Only our role takes the lock under which a node learns of a new leader.
_LEADERS = """
    SELECT l.pid, extract(epoch FROM clock_timestamp() - a.backend_start)::float8,
           format('%%s of role %%I, holds the leaders'' advisory lock',
                  coalesce(nullif(a.application_name, ''), 'a client'), a.usename), NULL
    FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.classid = %s AND l.granted AND a.usename <> current_user
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""

# Of any role: a new leader also waits for a command of its predecessor's.
_LEADERS_HOLDER = """
    SELECT l.pid, format('%%s of role %%I from %%s', coalesce(nullif(a.application_name, ''), 'a client'), a.usename,
                         coalesce(host(a.client_addr), 'this server''s own host'))
    FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.classid = %s AND l.objid = 0 AND l.granted
      AND l.pid <> pg_backend_pid()
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    ORDER BY a.backend_start LIMIT 1
"""

_PREPARED = """
    SELECT extract(epoch FROM clock_timestamp() - p.prepared)::float8, p.gid
    FROM pg_prepared_xacts p JOIN pg_locks l ON l.locktype = 'transactionid' AND l.transactionid = p.transaction
    JOIN pg_locks r ON r.virtualtransaction = l.virtualtransaction AND r.pid IS NULL AND r.locktype = 'relation'
    WHERE l.pid IS NULL AND r.relation = ANY(%s::regclass[]) AND r.mode = ANY(%s)
"""


@dataclass(frozen=True, slots=True)
class Holder:
    """A transaction that holds a conflicting lock, and which one of its session's it is."""

    blocker: Blocker
    since: str

    @property
    def pid(self) -> int | None:
        return self.blocker.pid

    @property
    def age(self) -> float:
        return self.blocker.age


_SINCE = "SELECT pid, coalesce(xact_start, backend_start)::text FROM pg_stat_activity WHERE pid = ANY(%s)"


def find_holders(connection: Connection | Cursor, tables: Sequence[Name], wanted: WantedLock) -> list[Holder]:
    """As `find_blockers`, with the beginnings of their transactions."""
    found = find_blockers(connection, tables, wanted)
    if not found:
        return []
    rows = connection.execute(_SINCE, ([one.pid for one in found if one.pid is not None],)).fetchall()
    begun = {int(pid): str(since) for pid, since in rows}
    return [Holder(one, begun.get(one.pid or 0, "")) for one in found]


def find_blockers(connection: Connection | Cursor, tables: Sequence[Name], wanted: WantedLock = FENCE) -> list[Blocker]:
    """Oldest first. Prepared transactions are named by their global id."""
    names, modes = [str(table) for table in tables], list(wanted.modes)
    holders = connection.execute(_HOLDERS, (names, modes)).fetchall()
    holders += connection.execute(_HELD, (list(wanted.proofs), names)).fetchall()
    holders += connection.execute(_LEADERS, (LEADER_LOCK,)).fetchall()
    found = {(pid, what): Blocker(pid, age, what, query) for pid, age, what, query in holders if pid}
    for age, gid in connection.execute(_PREPARED, (names, modes)).fetchall():
        found[None, gid] = Blocker(None, age, f"'{gid}'")
    return sorted(found.values(), key=lambda blocker: -blocker.age)


def leaders_holder(connection: Connection | Cursor) -> str:
    """Who holds the lock that a new leader waits for, as part of a sentence; empty: nobody now."""
    found = connection.execute(_LEADERS_HOLDER, (LEADER_LOCK,)).fetchone()
    return f"session {found[0]} ({one_line(found[1], 300)}) holds the leaders' advisory lock" if found else ""


def terminate(connection: Connection | Cursor, blocker: Blocker) -> None:
    """Ends a session; its transaction is rolled back. A prepared transaction is left to its coordinator."""
    if blocker.pid is not None:
        connection.execute("SELECT pg_terminate_backend(%s)", (blocker.pid,))


def cancel(connection: Connection | Cursor, blocker: Blocker) -> None:
    """Cancels what a session is doing; autovacuum gives way like this anyway, but only after a second."""
    connection.execute("SELECT pg_cancel_backend(%s)", (blocker.pid,))
