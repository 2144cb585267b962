"""Which physical standbys have not replayed a position yet. Statements only; the caller decides what to wait for.

A failover to a standby that lags takes a node back in time. So before dropping anything that such a node would need
again, the connected standbys must have replayed the change. Standbys of standbys, and those that are not connected at
this moment, are not seen from here.
"""

from dataclasses import dataclass

from balancer.nodes.connection import Connection, Cursor


@dataclass(frozen=True, slots=True)
class Standby:
    """A connected physical standby that is behind."""

    name: str
    """Its application name, as the standby chose it."""
    address: str
    """Empty: it is connected through a local socket, or we may not know."""
    lag_bytes: int | None
    """None: it has not said yet how far it is, or we may not know."""

    def __str__(self) -> str:
        where = f" at {self.address}" if self.address else ""
        lag = "an unknown amount of WAL" if self.lag_bytes is None else f"{self.lag_bytes} bytes of WAL"
        return f"standby {self.name!r}{where} is behind by {lag}"


# The insert position is past the header of a page that has no record yet. No standby replays a bare header, so on an
# idle server the end of the last record has to be reached: the page's start.
_POSITION = """
SELECT ('0/0'::pg_lsn
        + CASE WHEN mod(at, segment) = 40 THEN at - 40 WHEN mod(at, block) = 24 THEN at - 24 ELSE at END)::text
FROM (SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn AS at, current_setting('wal_block_size')::numeric AS block,
             (SELECT setting::numeric FROM pg_settings WHERE name = 'wal_segment_size') AS segment) AS here
"""

# Logical decoding needs a slot, so the type of the slot that a walsender holds says what it does. A base backup streams
# files, not WAL. A receiver of WAL (pg_receivewal) answers but replays nothing: it can never take over.
_BEHIND = """
SELECT r.application_name, host(r.client_addr), pg_wal_lsn_diff(%(position)s::pg_lsn, r.replay_lsn)::bigint
FROM pg_stat_replication r
WHERE NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical')
  AND r.state IS DISTINCT FROM 'backup'
  AND (r.replay_lsn < %(position)s::pg_lsn OR r.replay_lsn IS NULL AND r.reply_time IS NULL)
ORDER BY r.application_name, r.pid
"""


def position(cursor: Cursor) -> str:
    """Where the server's WAL ends now. Everything committed before is below it."""
    cursor.execute(_POSITION)
    row = cursor.fetchone()
    assert row is not None
    return str(row[0])


def not_replayed(connection: Connection, position: str) -> list[Standby]:
    """The connected standbys that have not replayed up to this position.

    A role without pg_monitor may not see how far a standby is: such a standby counts as behind.
    """
    rows = connection.execute(_BEHIND, {"position": position}).fetchall()
    return [Standby(name or "", address or "", lag) for name, address, lag in rows]
