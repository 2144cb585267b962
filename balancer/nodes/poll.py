"""One request per node and poll: what each partition holds and does, how the node is, and what it says it owns.

Called by `balancer.polling` only. Counters are read by object id (`pg_stat_get_*`), which costs a tenth of the views.
Sizes are of the main forks: heap, toast and indexes. A partition that somebody holds with ACCESS EXCLUSIVE is not asked
for its size, because the question would wait for the lock: the catalog's page count is taken for it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import itemgetter
from typing import Any, LiteralString, NamedTuple

import numpy as np
import psycopg
from psycopg import sql

from balancer.nodes import decisions, own_schema
from balancer.nodes.connection import Connection
from balancer.nodes.footing import Footing, Forks, parse_history
from balancer.nodes.names import Name
from balancer.nodes.schema import NodeIdentity, OwnState
from balancer.policies.bundle_view import Floats

_STATES = {str(state): state for state in OwnState}


class PartitionStats(NamedTuple):
    """One attached partition. Counters are since the last reset; a poll shows them up to a second late."""

    root: int
    """Index of its root among those asked for."""
    schema: str
    name: str
    oid: int
    heap_bytes: int
    toast_bytes: int
    index_bytes: int
    rows: int
    dead_rows: int
    inserted: int
    updated: int
    deleted: int
    sequential_reads: int
    """Rows read by sequential scans."""
    index_reads: int
    """Rows fetched through indexes."""
    blocks_read: int
    blocks_hit: int
    sequential_scans: int
    last_vacuum: datetime | None

    @property
    def bytes(self) -> int:
        return self.heap_bytes + self.toast_bytes + self.index_bytes


@dataclass(frozen=True, slots=True)
class Partitions:
    """The attached partitions of a node, as the answer's rows: an object for each would cost more than the answer."""

    rows: Sequence[tuple[Any, ...]]
    """With the fields of `PartitionStats`."""

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[PartitionStats]:
        return map(PartitionStats._make, self.rows)

    def bytes(self) -> int:
        """Of all of them together."""
        return sum(sum(_BYTES(row)) for row in self.rows)

    def names(self) -> Iterator[tuple[str, str]]:
        """Schema and name of each; equal to a `Name`."""
        return map(_NAME, self.rows)

    def figures(self, *fields: str) -> Floats:
        """Numbers by the names of their fields: one row per field, one column per partition."""
        places = [PartitionStats._fields.index(field) for field in fields]
        columns = list(zip(*self.rows, strict=True)) or [()] * len(PartitionStats._fields)
        return np.array([columns[place] for place in places], np.float64)


_BYTES = itemgetter(*map(PartitionStats._fields.index, ("heap_bytes", "toast_bytes", "index_bytes")))
_NAME = itemgetter(PartitionStats._fields.index("schema"), PartitionStats._fields.index("name"))


class SlotUse(NamedTuple):
    """A replication slot and the WAL it keeps from being removed."""

    name: str
    logical: bool
    active: bool
    retained_bytes: int
    wal_status: str  # reserved, extended, unreserved, lost


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The server behind a node."""

    version: int  # 180004
    in_recovery: bool
    started: datetime
    now: datetime
    stats_reset: datetime | None
    database_bytes: int
    connections: int
    max_connections: int
    slots: tuple[SlotUse, ...] = ()
    system: str = ""
    timeline: int = 0
    position: int = 0
    """The flushed end of its log, in bytes; 0 on a standby, as is the timeline."""


class Claim(NamedTuple):
    """What the node says of a tablet."""

    tablet: int
    epoch: int
    state: OwnState
    moved_to: str | None
    migration: str | None = None


@dataclass(frozen=True, slots=True)
class NodePoll:
    """Everything that one poll of one node saw."""

    facts: NodeFacts
    partitions: Partitions
    identity: NodeIdentity | None
    """None: our schema is not installed."""
    claims: tuple[Claim, ...]
    seconds: float = 0.0
    """How long the answer took."""
    defaults: tuple[tuple[Name, Name], ...] = ()
    """Roots that have a DEFAULT partition, with its name."""
    secured: tuple[Name, ...] = ()
    """Roots that have row level security, which forwarding would go round."""
    prepared: tuple[decisions.PreparedPart, ...] = ()
    """Parts of transactions over several nodes that wait for their end."""
    forks: Forks | None = None
    """Where its timeline left the ones before; read only where the timeline is a new one."""

    @property
    def prepared_seconds(self) -> float:
        """The age of the oldest of them."""
        return max(((self.facts.now - part.since).total_seconds() for part in self.prepared), default=0.0)

    @property
    def footing(self) -> Footing:
        facts, known = self.facts, self.identity
        seen = (known.leader_epoch, known.mark) if known else (0, 0)
        return Footing(facts.system, facts.timeline, facts.position, *seen)


_FACTS = """
SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), pg_postmaster_start_time(), clock_timestamp(),
       d.stats_reset, {size},
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
       current_setting('max_connections')::int,
       (SELECT system_identifier::text FROM pg_control_system()),
       CASE WHEN pg_is_in_recovery() THEN 0
            ELSE ('x' || left(pg_walfile_name(pg_current_wal_flush_lsn()), 8))::bit(32)::int END,
       CASE WHEN pg_is_in_recovery() THEN 0 ELSE (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint END
FROM pg_stat_database d WHERE d.datname = current_database();
"""

_SLOTS = """
SELECT slot_name, slot_type = 'logical', active, greatest(0, coalesce(pg_wal_lsn_diff(
           CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, restart_lsn
       ), 0))::bigint, coalesce(wal_status, 'lost')
FROM pg_replication_slots;
"""

_PARTITIONS = """
WITH locked AS MATERIALIZED (
    SELECT DISTINCT relation FROM pg_locks
    WHERE locktype = 'relation' AND mode = 'AccessExclusiveLock'
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
), leaf AS MATERIALIZED (
    SELECT r.number - 1 AS root, rn.nspname, c.relname, c.oid, c.reltoastrelid, c.relpages, c.reltuples,
           c.oid NOT IN (SELECT relation FROM locked) AS free
    FROM unnest({schemas}::text[], {names}::text[]) WITH ORDINALITY AS r (schema, name, number)
    JOIN pg_namespace rn ON rn.nspname = r.schema
    JOIN pg_class rc ON rc.relnamespace = rn.oid AND rc.relname = r.name
    JOIN pg_inherits i ON i.inhparent = rc.oid
    JOIN pg_class c ON c.oid = i.inhrelid AND c.relnamespace = rc.relnamespace
)
SELECT l.root, l.nspname, l.relname, l.oid::bigint,
       coalesce(CASE WHEN l.free THEN pg_relation_size(l.oid) END, l.relpages * 8192::bigint),
       CASE WHEN l.reltoastrelid <> 0 AND l.free THEN coalesce(pg_relation_size(l.reltoastrelid), 0) ELSE 0 END,
       coalesce(x.size, 0),
       coalesce(nullif(pg_stat_get_live_tuples(l.oid), 0), greatest(l.reltuples, 0)::bigint),
       pg_stat_get_dead_tuples(l.oid),
       pg_stat_get_tuples_inserted(l.oid), pg_stat_get_tuples_updated(l.oid), pg_stat_get_tuples_deleted(l.oid),
       pg_stat_get_tuples_returned(l.oid), pg_stat_get_tuples_fetched(l.oid) + coalesce(x.fetched, 0),
       pg_stat_get_blocks_fetched(l.oid) + coalesce(x.blocks, 0)
           - pg_stat_get_blocks_hit(l.oid) - coalesce(x.hits, 0),
       pg_stat_get_blocks_hit(l.oid) + coalesce(x.hits, 0),
       pg_stat_get_numscans(l.oid),
       greatest(pg_stat_get_last_vacuum_time(l.oid), pg_stat_get_last_autovacuum_time(l.oid))
FROM leaf l
-- Per leaf, through the index of pg_index: a join of two sets whose sizes the planner cannot know goes quadratic.
CROSS JOIN LATERAL (
    SELECT sum(CASE WHEN l.free THEN pg_relation_size(i.indexrelid)
                    ELSE (SELECT c.relpages * 8192::bigint FROM pg_class c WHERE c.oid = i.indexrelid)
               END)::bigint AS size,
           sum(pg_stat_get_tuples_fetched(i.indexrelid))::bigint AS fetched,
           sum(pg_stat_get_blocks_fetched(i.indexrelid))::bigint AS blocks,
           sum(pg_stat_get_blocks_hit(i.indexrelid))::bigint AS hits
    FROM pg_index i
    WHERE i.indrelid = l.oid
) x;
"""

_DEFAULTS = """
SELECT rn.nspname, rc.relname, dn.nspname, d.relname
FROM unnest({schemas}::text[], {names}::text[]) AS r (schema, name)
JOIN pg_namespace rn ON rn.nspname = r.schema
JOIN pg_class rc ON rc.relnamespace = rn.oid AND rc.relname = r.name
JOIN pg_partitioned_table p ON p.partrelid = rc.oid
JOIN pg_class d ON d.oid = p.partdefid JOIN pg_namespace dn ON dn.oid = d.relnamespace;
"""

_SECURED = """
SELECT rn.nspname, rc.relname
FROM unnest({schemas}::text[], {names}::text[]) AS r (schema, name)
JOIN pg_namespace rn ON rn.nspname = r.schema
JOIN pg_class rc ON rc.relnamespace = rn.oid AND rc.relname = r.name
WHERE rc.relrowsecurity OR EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = rc.oid);
"""

_OWNERSHIP = """
SELECT cluster, node, leader_epoch, schema_version,
       coalesce((SELECT max(number) FROM balancer.marker WHERE migration = 'the mark'), 0) FROM balancer.node;
SELECT id, epoch, state, moved_to, migration FROM balancer.tablet;
"""


def poll_node(connection: Connection, roots: Sequence[Name], others: int | None = None) -> NodePoll:
    """Measures the node and the partitions of these roots; roots that it does not have are left out.

    The size of the whole database takes a look at every file, a third of all that a poll costs the server. With
    `others`, the bytes beside these partitions as an earlier poll found them, it is summed up instead.
    """
    try:
        return _poll(connection, roots, others, with_ownership=True)
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return _poll(connection, roots, others, with_ownership=False)  # our schema is not installed yet


def read_forks(replication: Connection, timeline: int) -> dict[int, int]:
    """Where this timeline left the ones before it; over a connection for replication."""
    row = replication.execute(f"TIMELINE_HISTORY {timeline:d}".encode()).fetchone()
    assert row is not None
    content = row[1]
    return parse_history(content if isinstance(content, str) else bytes(content).decode(errors="replace"))


def statement(roots: Sequence[Name]) -> sql.Composed:
    """The part of the request that measures partitions."""
    return _of_roots(_PARTITIONS, roots)


def _of_roots(question: LiteralString, roots: Sequence[Name]) -> sql.Composed:
    return sql.SQL(question).format(
        schemas=sql.Literal([root.schema for root in roots]), names=sql.Literal([root.name for root in roots])
    )


def _poll(connection: Connection, roots: Sequence[Name], others: int | None, *, with_ownership: bool) -> NodePoll:
    size = sql.SQL("pg_database_size(d.datid)") if others is None else sql.Literal(others)
    request = sql.SQL(_FACTS).format(size=size) + sql.SQL(_SLOTS) + statement(roots) + _of_roots(_DEFAULTS, roots)
    request += _of_roots(_SECURED, roots) + decisions.PREPARED + sql.SQL(";")
    if with_ownership:
        request += sql.SQL(own_schema.REQUIRED + ";" + _OWNERSHIP)
    # Without parameters the whole request travels as one message and takes one round trip.
    with psycopg.ClientCursor(connection) as cursor:
        results = _results(cursor.execute(request))
        facts, slots, partitions, defaults, secured, prepared = (next(results) for _ in range(6))
        identity, claims = (next(results), next(results)) if with_ownership else ([], [])
    *measures, system, timeline, end = facts[0]
    known = replace(NodeFacts(*measures), system=system, timeline=timeline, position=end)
    measured = Partitions(partitions)
    if others is not None:
        known = replace(known, database_bytes=others + measured.bytes())
    return NodePoll(
        replace(known, slots=tuple(map(SlotUse._make, slots))),
        measured,
        NodeIdentity(*identity[0]) if identity else None,
        tuple(Claim(tablet, epoch, _STATES[state], *rest) for tablet, epoch, state, *rest in claims),
        defaults=tuple((Name(*row[:2]), Name(*row[2:])) for row in defaults),
        secured=tuple(Name(*row) for row in secured),
        prepared=tuple(map(decisions.PreparedPart._make, prepared)),
    )


def _results(cursor: psycopg.Cursor[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """Those that have rows: the look at our schema has none."""
    yield cursor.fetchall()
    while cursor.nextset():
        if cursor.description is not None:
            yield cursor.fetchall()
