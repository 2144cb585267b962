"""One request per node and poll: what each partition holds and does, how the node is, and what it says it owns.

Called by `balancer.polling` only. Counters are read by object id (`pg_stat_get_*`), which costs a tenth of the views.
Sizes are of the main forks: heap, toast and indexes. A partition that somebody holds with ACCESS EXCLUSIVE is not asked
for its size, because the query would wait for the lock: the catalog's page count is used instead.

Whatever exists once per tablet comes as packed numbers, and not at all where it equals what the previous poll saw: the
request carries digests of that, and the answer has new ones. A node on which nothing happens costs the leader the same
whether it has ten tablets or ten thousand.

A node's partitions and claims as a poll brings them: columns of numbers, shared with the previous poll where they
are the same.

An object for each would cost more than the answer. Digests are the node's own, of what it would have sent; equal ones
mean that it says the same as before.
"""

import re
from binascii import a2b_base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, LiteralString, NamedTuple

import numpy as np
import psycopg
from psycopg import sql

from balancer.errors import Refused
from balancer.naming import Name
from balancer.nodes.schema import decisions
from balancer.nodes.schema.install import NodeIdentity, OwnState
from balancer.nodes.session import own_schema
from balancer.nodes.session.connection import Connection
from balancer.nodes.tablets.leftovers import CONNECTED_STANDBYS
from balancer.policies.view import Floats, Ints
from balancer.polling.rewind import Footing, Forks, parse_history

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
    inserted: int
    updated: int
    deleted: int
    sequential_reads: int
    """Rows read by sequential scans."""
    index_reads: int
    """Rows fetched through indexes."""
    sequential_scans: int

    @property
    def bytes(self) -> int:
        return self.heap_bytes + self.toast_bytes + self.index_bytes


FIGURES: Final = PartitionStats._fields[3:]
"""The numbers, in the order in which they are packed."""
_BYTES = [FIGURES.index(field) for field in ("heap_bytes", "toast_bytes", "index_bytes")]


@dataclass(frozen=True, slots=True, eq=False)
class PartitionNames:
    """What the partitions are called; the same object for as long as the names are the same."""

    roots: tuple[Name, ...]
    """Those that were asked for."""
    places: bytes | tuple[int, ...]
    """For each partition, the place of its root among them."""
    text: str
    """The names without schemas, with NUL between them: as objects they would take five times as much."""

    @classmethod
    def of(cls, roots: Sequence[Name], places: Sequence[int], names: Sequence[str]) -> "PartitionNames":
        """The n-th name is that of a partition of the n-th place."""
        if len(places) != len(names) or any("\0" in name for name in names):
            raise ValueError("the names of partitions do not fit together")
        packed = bytes(places) if len(roots) < 256 else tuple(places)
        return cls(tuple(roots), packed, "\0".join(names))

    def __len__(self) -> int:
        return len(self.places)

    def all(self) -> list[Name]:
        """Schema and name of each."""
        names = self.text.split("\0") if self.places else []
        schemas = [root.schema for root in self.roots]
        return [Name(schemas[place], name) for place, name in zip(self.places, names, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class Partitions:
    """The attached partitions of a node."""

    named: PartitionNames
    numbers: Ints
    """One row for each of `FIGURES`, one column for each partition."""
    names_digest: str = ""
    numbers_digest: str = ""

    @classmethod
    def of(cls, rows: Sequence[PartitionStats]) -> "Partitions":
        """From single partitions."""
        schema_of = {row.root: row.schema for row in rows}
        schemas = [Name(schema_of.get(root, ""), "") for root in range(max(schema_of, default=-1) + 1)]
        named = PartitionNames.of(schemas, [row.root for row in rows], [row.name for row in rows])
        return cls(named, np.array([row[3:] for row in rows], np.int64).reshape(len(rows), len(FIGURES)).T)

    def __len__(self) -> int:
        return len(self.named)

    def __iter__(self) -> Iterator[PartitionStats]:
        for root, name, numbers in zip(self.named.places, self.named.all(), self.numbers.T.tolist(), strict=True):
            yield PartitionStats(root, name.schema, name.name, *numbers)

    def bytes(self) -> int:
        """The total over all of them."""
        return int(self.numbers[_BYTES].sum())

    def names(self) -> list[Name]:
        """Schema and name of each."""
        return self.named.all()

    def figures(self, *fields: str) -> Floats:
        """Numbers by the names of their fields: one row per field, one column per partition."""
        return self.numbers[[FIGURES.index(field) for field in fields]].astype(np.float64)


class Claim(NamedTuple):
    """What the node says about a tablet."""

    tablet: int
    epoch: int
    state: OwnState
    moved_to: str | None
    migration: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Claims:
    """What the node says about all its tablets. Nearly all are simply owned: for these there are only numbers."""

    ids: Ints
    """Ids of tablets that are owned, with nothing else to say about them; increasing."""
    epochs: Ints
    others: tuple[Claim, ...] = ()
    digest: str = ""

    @classmethod
    def of(cls, claims: Sequence[Claim]) -> "Claims":
        """From single claims."""
        plain = sorted(claim for claim in claims if _plain(claim))
        ids, epochs = (np.array([claim[at] for claim in plain], np.int64) for at in (0, 1))
        return cls(ids, epochs, tuple(claim for claim in claims if not _plain(claim)))

    def __len__(self) -> int:
        return len(self.ids) + len(self.others)

    def __iter__(self) -> Iterator[Claim]:
        for tablet, epoch in zip(self.ids.tolist(), self.epochs.tolist(), strict=True):
            yield Claim(tablet, epoch, OwnState.OWNED, None)
        yield from self.others


NO_CLAIMS: Final = Claims(np.zeros(0, np.int64), np.zeros(0, np.int64))


def _plain(claim: Claim) -> bool:
    return claim.state is OwnState.OWNED and claim.moved_to is None and claim.migration is None


def read_partitions(roots: Sequence[Name], row: tuple[Any, ...], before: Partitions | None) -> Partitions:
    """From the answer's only row. Where a digest is the known one, that part was not sent."""
    names_digest, numbers_digest, places, names, packed = row
    if before is not None and names_digest == before.names_digest:
        named = before.named
        if numbers_digest == before.numbers_digest:
            return before
    else:
        named = PartitionNames.of(roots, places or (), names or ())
    if before is not None and numbers_digest == before.numbers_digest:
        numbers = before.numbers
    else:
        numbers = _unpacked(packed, len(FIGURES))
    if numbers.shape[1] != len(named):
        raise ValueError(f"{len(named)} partitions have names, and {numbers.shape[1]} have numbers")
    return Partitions(named, numbers, names_digest, numbers_digest)


def read_claims(rows: Sequence[tuple[Any, ...]], before: Claims | None) -> Claims:
    """From the answer: one row with the packed numbers, one for each of the others, or one with only the digest."""
    digest = rows[0][0]
    if before is not None and digest == before.digest:
        return before
    numbers = _unpacked(next(row[-1] for row in rows if row[-1] is not None), 2)
    others = tuple(
        Claim(tablet, epoch, _STATES[state], moved_to, migration)
        for _, tablet, epoch, state, moved_to, migration, packed in rows
        if packed is None
    )
    return Claims(numbers[0], numbers[1], others, digest)


def _unpacked(packed: str, width: int) -> Ints:
    """Numbers of eight bytes each, sent row by row, as columns."""
    numbers = np.frombuffer(a2b_base64(packed), ">i8").reshape(-1, width)
    return np.ascontiguousarray(numbers.T, dtype=np.int64)


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
    standbys: tuple[str, ...] = ()
    """The names of the physical standbys that are connected."""


@dataclass(frozen=True, slots=True)
class NodePoll:
    """Everything that one poll of one node saw."""

    facts: NodeFacts
    partitions: Partitions
    identity: NodeIdentity | None
    """None: our schema is not installed."""
    claims: Claims
    seconds: float = 0.0
    """How long the answer took."""
    defaults: tuple[tuple[Name, Name], ...] = ()
    """Roots that have a DEFAULT partition, with its name."""
    secured: tuple[Name, ...] = ()
    """Roots that have row level security, which forwarding would bypass."""
    prepared: tuple[decisions.PreparedPart, ...] = ()
    """Parts of transactions over several nodes that have not ended yet."""
    forks: Forks | None = None
    """Where its timeline left the ones before; read only where the timeline is new."""

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
       CASE WHEN pg_is_in_recovery() THEN 0 ELSE (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint END,
       ({standbys})
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
    SELECT r.number - 1 AS root, c.relname, c.oid, c.reltoastrelid, c.relpages, c.reltuples,
           c.oid NOT IN (SELECT relation FROM locked) AS free
    FROM unnest({schemas}::text[], {names}::text[]) WITH ORDINALITY AS r (schema, name, number)
    JOIN pg_namespace rn ON rn.nspname = r.schema
    JOIN pg_class rc ON rc.relnamespace = rn.oid AND rc.relname = r.name
    JOIN pg_inherits i ON i.inhparent = rc.oid
    JOIN pg_class c ON c.oid = i.inhrelid AND c.relnamespace = rc.relnamespace
    ORDER BY c.oid
), measured AS MATERIALIZED (
    SELECT l.root, l.relname, l.oid::bigint AS oid,
           coalesce(CASE WHEN l.free THEN pg_relation_size(l.oid) END, l.relpages * 8192::bigint) AS heap_bytes,
           CASE WHEN l.reltoastrelid <> 0 AND l.free THEN coalesce(pg_relation_size(l.reltoastrelid), 0) ELSE 0 END
               AS toast_bytes,
           coalesce(x.size, 0) AS index_bytes,
           coalesce(nullif(pg_stat_get_live_tuples(l.oid), 0), greatest(l.reltuples, 0)::bigint) AS rows,
           pg_stat_get_tuples_inserted(l.oid) AS inserted, pg_stat_get_tuples_updated(l.oid) AS updated,
           pg_stat_get_tuples_deleted(l.oid) AS deleted, pg_stat_get_tuples_returned(l.oid) AS sequential_reads,
           pg_stat_get_tuples_fetched(l.oid) + coalesce(x.fetched, 0) AS index_reads,
           pg_stat_get_numscans(l.oid) AS sequential_scans
    FROM leaf l
    -- Per leaf, through the index of pg_index: a join of two sets whose sizes the planner cannot know goes quadratic.
    CROSS JOIN LATERAL (
        SELECT sum(CASE WHEN l.free THEN pg_relation_size(i.indexrelid)
                        ELSE (SELECT c.relpages * 8192::bigint FROM pg_class c WHERE c.oid = i.indexrelid)
                   END)::bigint AS size,
               sum(pg_stat_get_tuples_fetched(i.indexrelid))::bigint AS fetched
        FROM pg_index i
        WHERE i.indrelid = l.oid
    ) x
), packed AS MATERIALIZED (
    -- Both in the order of one scan: the numbers of the n-th name are the n-th.
    SELECT coalesce(array_agg(root)::text, '') AS roots, coalesce(array_agg(relname)::text, '') AS names,
           coalesce(string_agg({numbers}, ''), '') AS numbers
    FROM measured
), digests AS MATERIALIZED (
    SELECT encode(sha256(convert_to(roots || ' ' || names, 'UTF8')), 'hex') AS of_names,
           encode(sha256(numbers), 'hex') AS of_numbers
    FROM packed
)
SELECT of_names, of_numbers, CASE WHEN of_names <> {known_names} THEN nullif(roots, '')::bigint[] END,
       CASE WHEN of_names <> {known_names} THEN nullif(names, '')::text[] END,
       CASE WHEN of_numbers <> {known_numbers} THEN encode(numbers, 'base64') END
FROM packed, digests;
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
       coalesce((SELECT max(number) FROM balancer.marker WHERE migration = 'the mark'), 0) AS mark,
       coalesce(to_jsonb(n) ->> 'identity', '') AS identity FROM balancer.node n;
WITH own AS MATERIALIZED (
    SELECT id, epoch, state, moved_to, migration, state = 'owned' AND moved_to IS NULL AND migration IS NULL AS plain
    FROM balancer.tablet ORDER BY id
), said AS MATERIALIZED (
    SELECT encode(sha256(convert_to(coalesce(array_agg(own)::text, ''), 'UTF8')), 'hex') AS digest FROM own
)
SELECT digest, CASE WHEN plain THEN NULL ELSE id END AS id, epoch, state, moved_to, migration, numbers
FROM said LEFT JOIN (
    SELECT plain, id, epoch, state, moved_to, migration, NULL AS numbers FROM own WHERE NOT plain
    UNION ALL
    SELECT true, NULL, NULL, NULL, NULL, NULL,
           encode(coalesce(string_agg(int8send(id) || int8send(epoch), ''), ''), 'base64') FROM own WHERE plain
) rest ON digest <> {known};
"""


def poll_node(
    connection: Connection, roots: Sequence[Name], others: int | None = None, before: NodePoll | None = None
) -> NodePoll:
    """Measures the node and the partitions of these roots; skips roots that it does not have.

    The size of the whole database takes a look at every file, a third of all that a poll costs the server. With
    `others`, the bytes outside these partitions as an earlier poll found them, it is added up instead. What the node
    said in the poll `before`, about the same roots, is not sent again.
    """
    try:
        try:
            return _poll(connection, tuple(roots), others, before, with_ownership=True)
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            # Our schema is not installed yet.
            return _poll(connection, tuple(roots), others, before, with_ownership=False)
    except (TypeError, ValueError, LookupError) as error:
        raise Refused(f"the answer to a poll cannot be read: {error}") from error


def read_forks(replication: Connection, timeline: int) -> dict[int, int]:
    """Where this timeline left the ones before it; over a connection for replication."""
    row = replication.execute(f"TIMELINE_HISTORY {timeline:d}".encode()).fetchone()
    assert row is not None
    content = row[1]
    return parse_history(content if isinstance(content, str) else bytes(content).decode(errors="replace"))


def statement(roots: Sequence[Name]) -> sql.Composed:
    """The part of the request that measures partitions, of which nothing is known."""
    return _measuring(roots, sql.SQL("''"), sql.SQL("''"))


def _measuring(roots: Sequence[Name], known_names: sql.Composable, known_numbers: sql.Composable) -> sql.Composed:
    return _of_roots(_PARTITIONS, roots, numbers=_NUMBERS, known_names=known_names, known_numbers=known_numbers)


_NUMBERS = sql.SQL(" || ").join(sql.SQL("int8send({})").format(sql.Identifier(field)) for field in FIGURES)


def _of_roots(question: LiteralString, roots: Sequence[Name], **parts: sql.Composable) -> sql.Composed:
    return sql.SQL(question).format(
        schemas=sql.Literal([root.schema for root in roots]), names=sql.Literal([root.name for root in roots]), **parts
    )


@lru_cache(maxsize=1024)
def _request(roots: tuple[Name, ...], *, with_ownership: bool) -> tuple[str, ...]:
    """The whole request; every second part is the name of what a poll puts there. Assembling it for each poll would
    cost more than sending it. Parts are separated by something that no statement can contain."""
    size, names, numbers, claims = (sql.SQL(f"\0{name}\0") for name in ("size", "names", "numbers", "claims"))
    request = (
        sql.SQL(_FACTS).format(size=size, standbys=sql.SQL(CONNECTED_STANDBYS))
        + sql.SQL(_SLOTS)
        + _measuring(roots, names, numbers)
    )
    request += _of_roots(_DEFAULTS, roots) + _of_roots(_SECURED, roots) + decisions.PREPARED + sql.SQL(";")
    if with_ownership:
        request += sql.SQL(own_schema.REQUIRED + ";") + sql.SQL(_OWNERSHIP).format(known=claims)
    return tuple(request.as_string(None).split("\0"))


def _quoted(digest: str) -> str:
    """As a literal; an answer that is not a digest counts as none."""
    return f"'{digest}'" if _DIGEST.fullmatch(digest) else "''"


_DIGEST = re.compile("[0-9a-f]{64}")


def _poll(
    connection: Connection,
    roots: tuple[Name, ...],
    others: int | None,
    before: NodePoll | None,
    *,
    with_ownership: bool,
) -> NodePoll:
    known = None if before is None else before.partitions
    values = {
        "size": "pg_database_size(d.datid)" if others is None else str(int(others)),
        "names": _quoted("" if known is None else known.names_digest),
        "numbers": _quoted("" if known is None else known.numbers_digest),
        "claims": _quoted("" if before is None else before.claims.digest),
    }
    parts = _request(roots, with_ownership=with_ownership)
    request = "".join(values[part] if place % 2 else part for place, part in enumerate(parts)).encode()
    # Without parameters the whole request travels as one message and takes one round trip.
    with psycopg.ClientCursor(connection) as cursor:
        results = _results(cursor.execute(request))
        facts, slots, partitions, defaults, secured, prepared = (next(results) for _ in range(6))
        identity, claims = (next(results), next(results)) if with_ownership else ([], [])
    *measures, system, timeline, end, standbys = facts[0]
    server = replace(
        NodeFacts(*measures), system=system, timeline=timeline, position=end, standbys=tuple(standbys or ())
    )
    measured = read_partitions(roots, partitions[0], known)
    if others is not None:
        server = replace(server, database_bytes=others + measured.bytes())
    return NodePoll(
        replace(server, slots=tuple(map(SlotUse._make, slots))),
        measured,
        NodeIdentity(*identity[0]) if identity else None,
        read_claims(claims, None if before is None else before.claims) if with_ownership else NO_CLAIMS,
        defaults=tuple((Name(*row[:2]), Name(*row[2:])) for row in defaults),
        secured=tuple(Name(*row) for row in secured),
        prepared=tuple(map(decisions.PreparedPart._make, prepared)),
    )


def _results(cursor: psycopg.Cursor[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """Those that have rows: the check of our schema has none."""
    yield cursor.fetchall()
    while cursor.nextset():
        if cursor.description is not None:
            yield cursor.fetchall()
