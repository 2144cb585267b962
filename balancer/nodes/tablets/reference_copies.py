"""Reference tables on a node: what keeps a copy from being written to, its stream, and how it is filled. Only SQL.

Every node of the bundle has the tables, as plain ones. One is their home; the others follow it by logical replication:
each copy has a publication and a slot at the home and a subscription of its own, all of one name (`stream_of`). The
name contains everything that makes a copy a different one: the home's epoch and both nodes' generations. So whatever
does not have the right name belongs to an old copy, and a copy that has its subscription was filled: both are one
transaction.

On a copy a trigger refuses writes; it is an ordinary one, which replication does not fire. On the home another refuses
what would not reach the copies or would leave foreign keys of other nodes without their row: TRUNCATE, and, where
foreign keys point to the table, DELETE and changes of the columns that they point to.

Rows of a copy that others refer to must not disappear when the copy is filled again.

A copy is filled with triggers off, so PostgreSQL does not look at the foreign keys that point to it. Usually nothing
disappears. But a home that went back in time, and was accepted that way, has forgotten rows that its copies have, and
tablets on the copies' nodes may refer to them. Then filling such a copy is refused: nothing is changed, and a person
decides.

The caller holds the copy's lock against writers. A row that is inserted meanwhile holds the row that it refers to,
which our DELETE waits for, so it is counted; or it waits for us, and then finds that row gone. Everything is inside the
caller's transaction. Called by `features.reference.keeper`.
"""

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import LiteralString

from psycopg import sql

from balancer.errors import Refused
from balancer.naming import Name
from balancer.nodes.catalog.owners_code import check_readable
from balancer.nodes.schema.install import forget_tablets
from balancer.nodes.session.connection import Connection, Cursor
from balancer.nodes.tablets import fence, references, replication
from balancer.nodes.tablets.object_names import PREFIX, stream_name

COPY_TRIGGER, COPY_TRUNCATE_TRIGGER = "!balancer_copy", "!balancer_copy_truncate"
HOME_TRIGGER, HOME_TRUNCATE_TRIGGER = "!balancer_home", "!balancer_home_truncate"
GUARDS = (COPY_TRIGGER, COPY_TRUNCATE_TRIGGER, HOME_TRIGGER, HOME_TRUNCATE_TRIGGER)
_STREAM = re.compile(rf"{PREFIX}(r(\d+)e\d+h\d+g\d+x[0-9a-f]{{8}})")


@dataclass(frozen=True, slots=True)
class Side:
    """What about a node makes a copy a different one."""

    node: str
    generation: int


@dataclass(frozen=True, slots=True)
class Streams:
    """The names (`stream_of`) that a node has of each kind, of all reference tables."""

    subscriptions: Mapping[str, bool]
    """With whether each is enabled."""
    slots: Mapping[str, bool]
    """With whether each is usable: not one that was lost because the copy was away for too long."""
    publications: frozenset[str]

    def of(self, tablet: int) -> frozenset[str]:
        """Those of one table."""
        return frozenset(name for name in self.all() if tablet_of(name) == tablet)

    def all(self) -> frozenset[str]:
        return frozenset(self.subscriptions) | frozenset(self.slots) | self.publications


def stream_of(tablet: int, epoch: int, home: Side, copy: Side, directory: str = "") -> str:
    """What stands for a migration's id in the names of a copy's publication, slot, subscription and markers.

    Slots have one name for all databases of a server, and nodes of two directories may be called alike: so it depends
    on the directory's identity too, if that has one.
    """
    whose = f"{directory} {copy.node}".lstrip()
    return f"r{tablet}e{epoch}h{home.generation}g{copy.generation}x{zlib.crc32(whose.encode()):08x}"


def tablet_of(stream: str) -> int:
    """Whose it is."""
    found = _STREAM.fullmatch(stream_name(stream))
    assert found is not None, stream
    return int(found[2])


def read_streams(connection: Connection | Cursor) -> Streams:
    """What is there, no matter who made it."""
    subscriptions = connection.execute(
        "SELECT subname, subenabled FROM pg_subscription"
        " WHERE subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())"
    ).fetchall()
    slots = connection.execute(
        "SELECT slot_name, coalesce(wal_status <> 'lost', true) FROM pg_replication_slots"
        " WHERE database = current_database()"
    ).fetchall()
    publications = connection.execute("SELECT pubname, true FROM pg_publication").fetchall()
    return Streams(dict(_ours(subscriptions)), dict(_ours(slots)), frozenset(name for name, _ in _ours(publications)))


def _ours(rows: Sequence[tuple[object, ...]]) -> Iterator[tuple[str, bool]]:
    for name, good in rows:
        if found := _STREAM.fullmatch(str(name)):
            yield found[1], bool(good)


def read_lags(connection: Connection | Cursor) -> dict[str, float]:
    """For each copy, according to its home: how many bytes of WAL it has not confirmed."""
    rows = connection.execute(
        "SELECT slot_name, greatest(0, pg_wal_lsn_diff(pg_current_wal_insert_lsn(), confirmed_flush_lsn))::float8"
        " FROM pg_replication_slots WHERE database = current_database() AND confirmed_flush_lsn IS NOT NULL"
    ).fetchall()
    return {found[1]: float(lag) for name, lag in rows if (found := _STREAM.fullmatch(str(name)))}


def wal_position(connection: Connection | Cursor) -> str:
    """Where the home's WAL ends now."""
    row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return str(row[0])


def confirmed(connection: Connection | Cursor, stream: str, position: str) -> bool:
    """Whether a copy has confirmed everything up to there, according to its home."""
    row = connection.execute(
        "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s",
        (position, stream_name(stream)),
    ).fetchone()
    return bool(row and row[0])


def guard_copy(cursor: Cursor, tables: Sequence[Name], tablet: int, home: str, epoch: int) -> None:
    """Refuses writes to a copy, and says where its home is."""
    for table in tables:
        _disable(cursor, table, HOME_TRIGGER, HOME_TRUNCATE_TRIGGER)
        parts: tuple[tuple[str, LiteralString], ...] = (
            (COPY_TRIGGER, "BEFORE INSERT OR UPDATE OR DELETE ON {} FOR EACH ROW"),
            (COPY_TRUNCATE_TRIGGER, "BEFORE TRUNCATE ON {} FOR EACH STATEMENT"),
        )
        for name, when in parts:
            _create(cursor, table, name, when, function="refuse_copy_write", arguments=(str(tablet), home, str(epoch)))


def guard_home(cursor: Cursor, tables: Sequence[Name], tablet: int) -> None:
    """Refuses what would not reach the copies, or would break foreign keys of other nodes; lets all else through."""
    for table in tables:
        _disable(cursor, table, COPY_TRIGGER, COPY_TRUNCATE_TRIGGER)
        when: LiteralString = "BEFORE TRUNCATE ON {} FOR EACH STATEMENT"
        _create(cursor, table, HOME_TRUNCATE_TRIGGER, when, function="refuse_home_write", arguments=(str(tablet),))
        columns = _referenced_columns(cursor, table)
        if columns:
            each: LiteralString = "BEFORE DELETE OR UPDATE ON {} FOR EACH ROW"
            _create(cursor, table, HOME_TRIGGER, each, function="refuse_home_write", arguments=columns)
        else:
            _disable(cursor, table, HOME_TRIGGER)


_GUARDS = """
SELECT tgname, tgargs FROM pg_trigger WHERE tgrelid = to_regclass(%s) AND tgname = ANY(%s) AND tgenabled = 'O'
"""
_POINTED_TO = """
SELECT DISTINCT a.attname::text FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
CROSS JOIN unnest(k.confkey) AS u (attnum) JOIN pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = u.attnum
WHERE k.confrelid = to_regclass(%s) AND k.contype = 'f' AND k.conparentid = 0 AND c.relkind = 'p' ORDER BY 1
"""


def _referenced_columns(cursor: Connection | Cursor, table: Name) -> tuple[str, ...]:
    """Columns that foreign keys of partitioned tables point to: the referring rows may be on other nodes."""
    return tuple(str(name) for (name,) in cursor.execute(_POINTED_TO, (str(table),)).fetchall())


def copy_guarded(connection: Connection | Cursor, tables: Sequence[Name], tablet: int, home: str, epoch: int) -> bool:
    """Whether `guard_copy` would change nothing."""
    wanted = "\0".join((str(tablet), home, str(epoch), "")).encode()
    both = {(COPY_TRIGGER, wanted), (COPY_TRUNCATE_TRIGGER, wanted)}
    return all(_guards(connection, table) == both for table in tables)


def home_guarded(connection: Connection | Cursor, tables: Sequence[Name], tablet: int) -> bool:
    """Whether `guard_home` would change nothing."""
    for table in tables:
        columns = _referenced_columns(connection, table)
        wanted = {(HOME_TRUNCATE_TRIGGER, f"{tablet}\0".encode())}
        wanted |= {(HOME_TRIGGER, "".join(f"{column}\0" for column in columns).encode())} if columns else set()
        if _guards(connection, table) != wanted:
            return False
    return True


def _guards(connection: Connection | Cursor, table: Name) -> set[tuple[str, bytes]]:
    """Those that are on."""
    return {(str(name), bytes(words)) for name, words in connection.execute(_GUARDS, (str(table), list(GUARDS)))}


_REFERRED_TO = """
SELECT DISTINCT t.tgname, t.tgargs, k.confrelid::regclass::text
FROM pg_constraint k JOIN pg_trigger t ON t.tgrelid = k.confrelid AND t.tgname = ANY(%s) AND t.tgenabled = 'O'
WHERE k.contype = 'f' AND k.conparentid = 0 AND k.conrelid = ANY(%s::regclass[]) ORDER BY 3
"""


@dataclass(frozen=True, slots=True)
class ReferredTo:
    """A reference table that foreign keys point to."""

    table: str
    tablet: int
    home: str
    """Empty: this node."""


def referred_to(connection: Connection | Cursor, roots: Sequence[Name]) -> list[ReferredTo]:
    """Reference tables to which these roots have foreign keys, by the guards on them."""
    wanted = [COPY_TRUNCATE_TRIGGER, HOME_TRUNCATE_TRIGGER]
    found = []
    for name, words, table in connection.execute(_REFERRED_TO, (wanted, [str(root) for root in roots])).fetchall():
        tablet, *rest = bytes(words).decode().split("\0")
        found.append(ReferredTo(str(table), int(tablet), rest[0] if name == COPY_TRUNCATE_TRIGGER else ""))
    return found


def _create(
    cursor: Cursor, table: Name, name: str, when: LiteralString, *, function: str, arguments: Sequence[str]
) -> None:
    create = sql.SQL("CREATE OR REPLACE TRIGGER {} ").format(sql.Identifier(name))
    call = sql.SQL(" EXECUTE FUNCTION balancer.{}({})").format(
        sql.Identifier(function), sql.SQL(", ").join(map(sql.Literal, arguments))
    )
    cursor.execute(create + sql.SQL(when).format(table.identifier) + call)
    cursor.execute(sql.SQL("ALTER TABLE {} ENABLE TRIGGER {}").format(table.identifier, sql.Identifier(name)))


def _disable(cursor: Cursor, table: Name, *triggers: str) -> None:
    """Not dropped: that would wait for readers."""
    there = {name for name, _ in _guards(cursor, table)}
    for trigger in sorted(there.intersection(triggers)):
        cursor.execute(sql.SQL("ALTER TABLE {} DISABLE TRIGGER {}").format(table.identifier, sql.Identifier(trigger)))


def drop_stream(cursor: Cursor, stream: str) -> None:
    """Drops what this node has of it; a copy that no longer follows stays as it is. Idempotent."""
    replication.drop_subscription(cursor, stream)
    replication.drop_slot(cursor, stream)
    replication.drop_publication(cursor, stream)
    replication.delete_markers(cursor, stream)


_COLUMNS = """
SELECT a.attname::text, coalesce(a.attnum = ANY(i.indkey::int2[]), false), a.attidentity = 'a'
FROM pg_attribute a LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attnum
"""


@dataclass(frozen=True, slots=True)
class CopiedColumns:
    """For a table: what is copied, and what identifies rows."""

    table: Name
    columns: tuple[str, ...]
    key: tuple[str, ...]
    fixed: tuple[str, ...] = ()
    """GENERATED ALWAYS AS IDENTITY: such a column cannot be updated."""

    def read(self) -> sql.Composed:
        """At the home."""
        return sql.SQL("COPY {} ({}) TO STDOUT").format(self.table.identifier, _listed(self.columns))

    def write(self) -> sql.Composed:
        """On the copy, into the temporary table."""
        return sql.SQL("COPY pg_temp.{} ({}) FROM STDIN").format(self._beside(), _listed(self.columns))

    def begin(self, cursor: Cursor) -> None:
        """Makes that table."""
        make = sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA")
        cursor.execute(make.format(self._beside(), _listed(self.columns), self.table.identifier))

    def merge(self, cursor: Cursor) -> None:
        """Equal rows are left alone: foreign keys look at them meanwhile."""
        lasting = (*self.key, *self.fixed)
        same = sql.SQL(" AND ").join(sql.SQL("n.{0} = t.{0}").format(sql.Identifier(name)) for name in lasting)
        names = {"table": self.table.identifier, "new": self._beside(), "columns": _listed(self.columns)}
        cursor.execute(
            sql.SQL("DELETE FROM {table} AS t WHERE NOT EXISTS (SELECT FROM pg_temp.{new} AS n WHERE {same})").format(
                **names, same=same
            )
        )
        rest = [name for name in self.columns if name not in lasting]
        action: sql.Composable = sql.SQL("NOTHING")
        if rest:
            action = sql.SQL("UPDATE SET {} WHERE ({}) IS DISTINCT FROM ({})").format(
                sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in rest),
                sql.SQL(", ").join(sql.Identifier("t", name) for name in rest),
                sql.SQL(", ").join(sql.Identifier("excluded", name) for name in rest),
            )
        cursor.execute(
            sql.SQL(
                "INSERT INTO {table} AS t ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM pg_temp.{new}"
                " ON CONFLICT ({key}) DO {action}"
            ).format(**names, key=_listed(self.key), action=action)
        )

    def _beside(self) -> sql.Identifier:
        return sql.Identifier(f"tb_new_{zlib.crc32(str(self.table).encode()):08x}")


def copied_columns(connection: Connection | Cursor, table: Name) -> CopiedColumns:
    """As the home has them."""
    rows = connection.execute(_COLUMNS, (str(table),)).fetchall()
    return CopiedColumns(
        table,
        tuple(str(name) for name, _, _ in rows),
        tuple(str(name) for name, key, _ in rows if key),
        tuple(str(name) for name, key, fixed in rows if fixed and not key),
    )


def _listed(names: Sequence[str]) -> sql.Composable:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def check_copy(cursor: Cursor, tables: Sequence[Name], tablet: int) -> None:
    """Locks a copy against writers and DDL; raises `Refused` if it has become the home since the last look."""
    state, _ = _claim(cursor, tables, tablet)
    if state == "moved":  # a former home that had gone back in time
        fence.lift_fence(cursor, tables, 1.0, closed=True)
        forget_tablets(cursor, [tablet])
    elif state:
        raise Refused(f"this node is the home of {tables[0]} and no copy: it calls tablet {tablet} {state}")


def check_home(cursor: Cursor, tables: Sequence[Name], tablet: int, epoch: int) -> None:
    """The same for the home: raises `Refused` if it no longer is one, because its guard lets writers through."""
    state, known = _claim(cursor, tables, tablet)
    if state not in ("owned", "fenced") or known != epoch:
        raise Refused(f"this node is not the home of {tables[0]} any more")


def _claim(cursor: Cursor, tables: Sequence[Name], tablet: int) -> tuple[str, int]:
    """What the node says, under the tables' locks, which any change of it holds. Locking its row would slow clients."""
    for table in tables:
        cursor.execute(sql.SQL("LOCK TABLE ONLY {} IN SHARE ROW EXCLUSIVE MODE").format(table.identifier))
    row = cursor.execute("SELECT state, epoch FROM balancer.tablet WHERE id = %s", (tablet,)).fetchone()
    return (str(row[0]), int(row[1])) if row else ("", 0)


def open_copy(cursor: Cursor, tables: Sequence[Name]) -> None:
    """For a locked copy: until the transaction ends only we write to it."""
    references.without_triggers(cursor)
    if not references.may_prepare(cursor):
        for table in tables:
            _disable(cursor, table, COPY_TRIGGER, COPY_TRUNCATE_TRIGGER)


def content(connection: Connection | Cursor, columns: CopiedColumns) -> tuple[int, int]:
    """How many rows there are, and a number that differs where they do."""
    row = connection.execute(
        sql.SQL(
            "SELECT count(*), coalesce(sum(hashtextextended(r::text, 0)::numeric), 0) FROM (SELECT {} FROM {}) r"
        ).format(_listed(columns.columns), columns.table.identifier)
    ).fetchone()
    assert row is not None, "an aggregate has one row"
    return int(row[0]), int(row[1])


_KEYS = """
SELECT k.oid::bigint, f.nspname, fc.relname, r.nspname, rc.relname,
       array_agg(fa.attname::text ORDER BY u.place), array_agg(ra.attname::text ORDER BY u.place)
FROM pg_constraint k
JOIN pg_class fc ON fc.oid = k.conrelid JOIN pg_namespace f ON f.oid = fc.relnamespace
JOIN pg_class rc ON rc.oid = k.confrelid JOIN pg_namespace r ON r.oid = rc.relnamespace
CROSS JOIN LATERAL unnest(k.conkey, k.confkey) WITH ORDINALITY AS u (mine, theirs, place)
JOIN pg_attribute fa ON fa.attrelid = k.conrelid AND fa.attnum = u.mine
JOIN pg_attribute ra ON ra.attrelid = k.confrelid AND ra.attnum = u.theirs
WHERE k.contype = 'f' AND k.conparentid = 0 AND k.confrelid = ANY(%(tables)s::regclass[])
  AND NOT k.conrelid = ANY(%(tables)s::regclass[])
GROUP BY k.oid, 2, 3, 4, 5 ORDER BY k.oid
"""
_LEAVES = """
SELECT n.nspname, c.relname FROM pg_partition_tree(%s::regclass) t JOIN pg_class c ON c.oid = t.relid
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE t.isleaf
UNION SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = %s::regclass AND c.relkind = 'r'
"""


@dataclass(frozen=True, slots=True)
class IncomingKey:
    """A foreign key that points to a copy, and what the copy had of its columns before it was filled."""

    table: Name
    columns: tuple[str, ...]
    copy: Name
    copy_columns: tuple[str, ...]
    before: sql.Identifier
    """A temporary table with those values."""

    def matches(self, one: str, columns: Sequence[str], other: str) -> sql.Composable:
        """That the values of one equal those of the other, by alias; the second side has the copy's columns."""
        pairs = zip(columns, self.copy_columns, strict=True)
        same = [sql.SQL("{} = {}").format(sql.Identifier(one, a), sql.Identifier(other, b)) for a, b in pairs]
        return sql.SQL(" AND ").join(same)


def remember_references(cursor: Cursor, copies: Sequence[Name]) -> list[IncomingKey]:
    """Before the copies are filled."""
    found = []
    for oid, schema, table, to_schema, to, mine, theirs in cursor.execute(
        _KEYS, {"tables": [str(name) for name in copies]}
    ).fetchall():
        before = sql.Identifier(f"tb_before_{oid}")
        key = IncomingKey(Name(schema, table), tuple(mine), Name(to_schema, to), tuple(theirs), before)
        cursor.execute(
            sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT DISTINCT {} FROM {}").format(
                before, sql.SQL(", ").join(map(sql.Identifier, theirs)), key.copy.identifier
            )
        )
        found.append(key)
    return found


def check_references_kept(cursor: Cursor, keys: Sequence[IncomingKey], home: str, *, trusted: bool) -> None:
    """After they were filled: raises `Refused` if rows that others refer to are gone."""
    for key in keys:
        cursor.execute(
            sql.SQL("DELETE FROM pg_temp.{} AS b WHERE EXISTS (SELECT FROM {} AS c WHERE {})").format(
                key.before, key.copy.identifier, key.matches("b", key.copy_columns, "c")
            )
        )
        gone = cursor.execute(sql.SQL("SELECT count(*) FROM pg_temp.{}").format(key.before)).fetchone()
        if gone and gone[0]:
            _check_unreferred(cursor, key, home, trusted=trusted)


def _check_unreferred(cursor: Cursor, key: IncomingKey, home: str, *, trusted: bool) -> None:
    leaves = cursor.execute(_LEAVES, (str(key.table), str(key.table))).fetchall()
    check_readable(cursor, [Name(schema, name) for schema, name in leaves], trusted=trusted)
    row = cursor.execute(
        sql.SQL("SELECT count(*), count(DISTINCT b) FROM {} AS f JOIN pg_temp.{} AS b ON {}").format(
            key.table.identifier, key.before, key.matches("f", key.columns, "b")
        )
    ).fetchone()
    if row is not None and row[0]:
        raise Refused(
            f"{row[0]} rows of {key.table} refer to {row[1]} rows of {key.copy} that its home {home} does not have any"
            " more; they are still in this copy, which stays as it is and does not follow: put them back at the home,"
            " or delete what refers to them"
        )
