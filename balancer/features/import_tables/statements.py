"""Statements of an import: plain tables of one name on several nodes become tablets of one table. Reads and makes.

The new root stands next to the old table under a name of its own until the switch; partitions have their last names
from the start. Called by `features.import_tables.run`, whatever changes a node inside its `node_transaction`.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from psycopg import sql

from balancer.errors import Refused
from balancer.features.convert.plain_table import read_plain
from balancer.naming import MAX_BYTES, Name
from balancer.nodes.catalog.bounds import Part, check_expression
from balancer.nodes.catalog.owners_code import check_readable
from balancer.nodes.catalog.roots import HASH, Root
from balancer.nodes.catalog.sequences import read_drawn
from balancer.nodes.catalog.shapes import keys_of_other_types, read_shape
from balancer.nodes.definitions.dependents import read_dependents
from balancer.nodes.definitions.name_transfer import far_keys, read_carried
from balancer.nodes.definitions.root import new_sequences
from balancer.nodes.definitions.table_parts import grantee, read_columns, roles_with_rights
from balancer.nodes.session.connection import Connection, Cursor, run_single, translated
from balancer.nodes.tablets.capture import SEQ
from balancer.nodes.tablets.checksum import Compared, Digest, row_hash, summed
from balancer.nodes.tablets.object_names import CAPTURE_TRIGGER, CAPTURE_TRUNCATE_TRIGGER

KEYS = sql.Identifier("balancer_import_keys")
LISTED = 20
"""Keys that a sentence names."""


@dataclass(frozen=True, slots=True)
class RowKey:
    """The columns by which rows are told apart, and those of them that are compared as text: an extension's types."""

    columns: tuple[str, ...]
    as_text: frozenset[str] = frozenset()


_PUBLISHED = """
SELECT p.pubname FROM pg_publication p
WHERE p.puballtables OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = %(oid)s)
   OR EXISTS (SELECT FROM pg_publication_namespace n JOIN pg_class c ON c.relnamespace = n.pnnspid
              WHERE n.pnpubid = p.oid AND c.oid = %(oid)s)
ORDER BY 1
"""


def beside(table: Name, word: str) -> Name:
    """A name derived from a table's, cut where it would be too long."""
    suffix = f"_{word}"
    return Name(table.schema, table.name.encode()[: MAX_BYTES - len(suffix)].decode(errors="ignore") + suffix)


def obstacles(
    cursor: Cursor, table: Name, together: Sequence[Name], layout: str, key: Sequence[str], *, spreads: bool
) -> list[str]:
    """Why the plain table of this name, which exists, cannot be imported; with what would help.

    `spreads`: each node hands out numbers of its own. The caller has set full names.
    """
    plain = read_plain(cursor, table, layout, key, "")
    if plain.refusals:
        return list(plain.refusals)
    again = "drop it, and make it again afterwards"
    found = [
        f"foreign key {name} of {table} points to {other}, which is not imported with it: name both as roots of one"
        f" table, or {again}"
        for name, other in far_keys(cursor, plain.oid, together)
    ]
    found += [
        f"publication {name} has {table} in it, and would publish the copies as well: take the table out meanwhile"
        for (name,) in cursor.execute(_PUBLISHED, {"oid": plain.oid}).fetchall()
    ]
    carried = read_carried(cursor, plain.oid, table, beside(table, "before_import"), together, near_to=table)
    found += carried.refusals
    views = read_dependents(cursor, plain.oid, table).materialised
    found += [f"the materialised view {view} reads {table}, which an import does not carry: {again}" for view in views]
    found += _unfit_numbers(cursor, plain.oid, table, spreads=spreads)
    found += [f'column "{name}" of {table}, part of the key, may be NULL: SET NOT NULL' for name in plain.nullable]
    primary = [index for index in plain.unique if index.constraint == "p"]
    if not primary:
        found.append(f"{table} has no primary key, by which its changes could be followed: add one with the key in it")
    for index in plain.unique:
        if not set(key) <= set(index.columns):
            found.append(
                f"unique index {index.name} of {table} does not contain the key ({', '.join(key)}), and could not be"
                " kept over several nodes: widen or drop it"
            )
        elif index.constraint == "p" and index.deferrable:
            found.append(f"the primary key of {table} is deferrable: make it one that is not")
    return found


def _unfit_numbers(cursor: Cursor, oid: int, table: Name, *, spreads: bool) -> Iterator[str]:
    own = new_sequences(cursor, oid, table).columns
    for column in read_columns(cursor, oid):
        if (column.identity or column.draws) and not (spreads and column.name in own):
            help_ = "let the application give the ids" if spreads else "say spread_sequences = true for the table"
            yield (
                f'column "{column.name}" of {table} draws from a sequence, and nodes would hand out the same numbers:'
                f" {help_}"
            )
    if spreads:
        yield from (one.unfit for one in read_drawn(cursor, [table]) if one.unfit)


def row_key(cursor: Cursor, table: Name, layout: str, key: Sequence[str]) -> tuple[str, ...]:
    """The columns by which its rows are told apart: those of the primary key."""
    return next(i.columns for i in read_plain(cursor, table, layout, key, "").unique if i.constraint == "p")


def compared_key(cursor: Cursor, table: Name, key: Sequence[str]) -> RowKey:
    """The key of a plain table, as used to find rows."""
    return RowKey(tuple(key), frozenset(keys_of_other_types(cursor, table, key)))


def make_root(cursor: Cursor, table: Name, root: Name, layout: str, key: Sequence[str]) -> None:
    """An empty partitioned twin of a plain table: columns, defaults, checks, indexes, statistics, comments.

    It is ours until it has the table's name: its owner, or anyone who may add triggers, could add code that our copy
    runs.
    """
    columns = sql.SQL(", ").join(map(sql.Identifier, key))
    how = "HASH" if layout == HASH else "RANGE"
    create = sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL EXCLUDING IDENTITY) PARTITION BY " + how + " ({})")
    run_single(cursor, create.format(root.identifier, table.identifier, columns))
    cursor.execute("SELECT obj_description(to_regclass(%s), 'pg_class')", (str(table),))
    text = cursor.fetchone()
    if text is not None and text[0] is not None:
        run_single(cursor, sql.SQL("COMMENT ON TABLE {} IS {}").format(root.identifier, sql.Literal(text[0])))
    keep_to_us(cursor, root)


def keep_to_us(cursor: Cursor, root: Name) -> None:
    """Nobody else owns a new root or has any right on it, for example by default privileges."""
    run_single(cursor, sql.SQL("ALTER TABLE {} OWNER TO CURRENT_USER").format(root.identifier))
    for role in roles_with_rights(cursor, root):
        run_single(cursor, sql.SQL("REVOKE ALL ON {} FROM {} CASCADE").format(root.identifier, grantee(role)))
    run_single(cursor, sql.SQL("GRANT ALL ON {} TO CURRENT_USER").format(root.identifier))


def compared_columns(cursor: Cursor, table: Name) -> tuple[tuple[Compared, ...], tuple[str, ...]]:
    """The columns as they are compared, and the names of those that are copied: not the generated ones."""
    shape = read_shape(cursor, table)
    return (
        tuple(
            Compared(c.name, not c.hashable or c.type.startswith(("text", "character varying")), c.type, not c.not_null)
            for c in shape.columns
        ),
        tuple(column.name for column in shape.columns if not column.generated),
    )


_CAPTURES = """
SELECT count(*) = 2 AND bool_and(t.tgenabled = 'A' AND t.xmin::text = p.xmin::text)
FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
WHERE t.tgrelid = to_regclass(%s) AND t.tgname = ANY (%s) AND p.proname = %s
"""


def check_unchanged(cursor: Cursor, table: Name, root: Name, migration: str, index: int) -> None:
    """Under the lock of a fence: raises `Refused` if the old table is not what was copied, or was not watched since.

    The triggers that capture changes are as old as their function, unless somebody has switched them off and on.
    """
    if compared_columns(cursor, table) != compared_columns(cursor, root):
        raise Refused(f"the columns of {table} have changed since the import began: say --cancel, and begin again")
    names = [CAPTURE_TRIGGER, CAPTURE_TRUNCATE_TRIGGER]
    row = cursor.execute(_CAPTURES, (str(table), names, f"capture_{migration}_{index}")).fetchone()
    if row != (True,):
        raise Refused(f"somebody has switched off what captures the changes of {table}: say --cancel, and begin again")


def belongs(root: Root, parts: Sequence[Part]) -> sql.Composable:
    """The condition for rows of these parts, on the node of this root."""
    if not parts:
        return sql.SQL("false")
    return sql.SQL(" OR ").join(
        sql.SQL("({})").format(check_expression(root.columns, part, root.oid)) for part in parts
    )


def copy_pair(
    table: Name, root: Name, columns: Sequence[str], where: sql.Composable
) -> tuple[sql.Composed, sql.Composed]:
    """COPY out of a plain table and into a root."""
    names = _list(columns)
    read = sql.SQL("COPY (SELECT {} FROM ONLY {} AS t WHERE {}) TO STDOUT").format(names, table.identifier, where)
    return read, sql.SQL("COPY {} ({}) FROM STDIN").format(root.identifier, names)


def digest_of(connection: Connection | Cursor, columns: Sequence[Compared], table: Name) -> Digest:
    """Rows and checksum of a table, in buckets."""
    rows = connection.execute(summed(columns, table, sql.SQL("true")))
    return {bucket: (count, int(total)) for bucket, count, total in rows}


def duplicates(readers: Mapping[str, Connection], table: Name, key: Sequence[str], *, trusted: bool) -> list[str]:
    """Some keys that exist on more than one node, with the nodes; reads every key, in order, and keeps none."""
    found: list[str] = []
    with ExitStack() as stack:
        streams = [stack.enter_context(_KeyStream(node, one, table, key, trusted)) for node, one in readers.items()]
        last, nodes = "", [""]
        for text, node in heapq.merge(*streams):
            if text == last:
                nodes.append(node)
                continue
            if len(nodes) > 1:
                found.append(f"{last} on {' and '.join(nodes)}")
            if len(found) >= LISTED:
                return found
            last, nodes = text, [node]
        if len(nodes) > 1:
            found.append(f"{last} on {' and '.join(nodes)}")
    return found


class _KeyStream:
    """The keys of one node as text, sorted by their bytes."""

    def __init__(self, node: str, connection: Connection, table: Name, key: Sequence[str], trusted: bool) -> None:
        self._node, self._connection = node, connection
        self._table, self._trusted = table, trusted
        self._query = sql.SQL('SELECT {} COLLATE "C" AS k FROM ONLY {} AS t ORDER BY k').format(
            key_text(key), table.identifier
        )

    def __enter__(self) -> Iterator[tuple[str, str]]:
        with translated(self._node), self._connection.cursor() as cursor:
            cursor.execute("BEGIN")
            try:
                check_readable(cursor, [self._table], trusted=self._trusted)
            except BaseException:
                self.__exit__()
                raise
        return self._rows()

    def __exit__(self, *error: object) -> None:
        if not self._connection.closed:
            self._connection.rollback()

    def _rows(self) -> Iterator[tuple[str, str]]:
        with self._connection.cursor(name="balancer_import") as cursor:
            cursor.itersize = 10_000
            for (text,) in cursor.execute(self._query):
                yield str(text), self._node


def take_batch(connection: Connection, log: sql.Composable, key: Sequence[str], limit: int) -> list[int] | None:
    """Reads some entries of a log, their keys into a temporary table; both as one snapshot sees them.

    A key may be there several times. DISTINCT would merge two that only their type considers equal (`citext`).

    Returns the entries; None: one says that the table was truncated.
    """
    seq = sql.Identifier(SEQ)
    rows = connection.execute(
        sql.SQL("SELECT {}, {} IS NULL FROM {} ORDER BY {} LIMIT {}").format(
            seq, sql.Identifier(key[0]), log, seq, sql.Literal(limit)
        )
    ).fetchall()
    if any(truncated for _, truncated in rows):
        return None
    entries = [int(number) for number, _ in rows]
    connection.execute(
        sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WHERE {} = ANY({})").format(
            KEYS, _list(key), log, seq, sql.Literal(entries)
        )
    )
    return entries


def keys_table(table: Name, key: Sequence[str]) -> sql.Composed:
    """What makes room for another node's keys."""
    make = sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {} FROM ONLY {} WITH NO DATA")
    return make.format(KEYS, _list(key), table.identifier)


def copy_keys(key: Sequence[str]) -> tuple[sql.Composed, sql.Composed]:
    """COPY of such keys, out and in."""
    names = _list(key)
    return (
        sql.SQL("COPY pg_temp.{} ({}) TO STDOUT").format(KEYS, names),
        sql.SQL("COPY pg_temp.{} ({}) FROM STDIN").format(KEYS, names),
    )


def rows_of_keys(
    connection: Connection | Cursor, table: Name, key: RowKey, columns: Sequence[Compared], where: sql.Composable
) -> dict[str, int]:
    """By key as text: the hash of each row that a plain table or a root has of the keys in the temporary table."""
    query = sql.SQL("SELECT {}, {} FROM {} AS t WHERE {} AND ({})").format(
        key_text(key.columns), row_hash(columns), table.identifier, among_keys(key), where
    )
    return {str(text): int(hashed) for text, hashed in connection.execute(query).fetchall()}


def among_keys(key: RowKey) -> sql.Composable:
    """The condition for rows of `t` whose key is in the temporary table."""
    return sql.SQL("EXISTS (SELECT FROM pg_temp.{} AS k WHERE {})").format(KEYS, _same(key))


def forget_keys(connection: Connection | Cursor, key: Sequence[str], texts: Sequence[str]) -> None:
    """Removes keys from the temporary table."""
    connection.execute(
        sql.SQL("DELETE FROM pg_temp.{} AS t WHERE {} = ANY({})").format(KEYS, key_text(key), sql.Literal(list(texts)))
    )


def delete_keys(cursor: Cursor, root: Name, key: RowKey) -> None:
    """The rows of those keys, wherever in the root they are."""
    cursor.execute(
        sql.SQL("DELETE FROM {} AS t USING pg_temp.{} AS k WHERE {}").format(root.identifier, KEYS, _same(key))
    )


def entries_without(
    connection: Connection, log: sql.Composable, key: Sequence[str], entries: Sequence[int], texts: Sequence[str]
) -> list[int]:
    """The entries whose key is not one of these."""
    query = sql.SQL("SELECT t.{} FROM {} AS t WHERE t.{} = ANY({}) AND {} <> ALL({})").format(
        sql.Identifier(SEQ), log, sql.Identifier(SEQ), sql.Literal(list(entries)), key_text(key),
        sql.Literal(list(texts)),
    )  # fmt: skip
    return [int(number) for (number,) in connection.execute(query).fetchall()]


def key_text(key: Sequence[str]) -> sql.Composable:
    """The key of `t` as text."""
    return sql.SQL("ROW({})::text").format(sql.SQL(", ").join(sql.SQL("t.{}").format(sql.Identifier(k)) for k in key))


def kind_of_table(cursor: Cursor, table: Name) -> str | None:
    """`r`, `p` or another kind of relation; None: there is none of this name."""
    row = cursor.execute("SELECT relkind::text FROM pg_class WHERE oid = to_regclass(%s)", (str(table),)).fetchone()
    return None if row is None else str(row[0])


def empty_root(cursor: Cursor, root: Name) -> None:
    """All rows of a root that nobody uses yet."""
    cursor.execute(sql.SQL("TRUNCATE {}").format(root.identifier))


def clear_log(cursor: Cursor, log: sql.Composable) -> None:
    """Forgets changes that are committed, before a snapshot is taken that has them."""
    cursor.execute(sql.SQL("DELETE FROM {}").format(log))


def drop_table(cursor: Cursor, table: Name) -> None:
    """With its partitions, if it has any. Idempotent."""
    cursor.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table.identifier))


def add_digest(total: dict[int, tuple[int, int]], part: Digest) -> None:
    """Adds up what several tables have."""
    for bucket, (count, hashed) in part.items():
        before = total.get(bucket, (0, 0))
        total[bucket] = (before[0] + count, before[1] + hashed)


def _list(names: Sequence[str]) -> sql.Composable:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _same(key: RowKey) -> sql.Composable:
    """As text, which no index supports, only where `=` by our search path is not the type's own."""
    return sql.SQL(" AND ").join(
        sql.SQL("t.{0}::text = k.{0}::text" if name in key.as_text else "t.{0} = k.{0}").format(sql.Identifier(name))
        for name in key.columns
    )
