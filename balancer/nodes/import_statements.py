"""Statements of an import: plain tables of one name on several nodes become tablets of one table. Reading and making.

The new root stands beside the old table under a name of its own until the switch; partitions have their last names from
the start. Called by `tables.importing`, whatever changes a node inside its `node_transaction`.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

from psycopg import sql

from balancer.errors import Refused
from balancer.nodes.bounds import Part, check_expression
from balancer.nodes.capture import SEQ
from balancer.nodes.catalog import HASH, Root
from balancer.nodes.checksum import Compared, Digest, row_hash, summed
from balancer.nodes.connection import Connection, Cursor, run_single
from balancer.nodes.names import MAX_BYTES, Name
from balancer.nodes.objects import CAPTURE_TRIGGER, CAPTURE_TRUNCATE_TRIGGER, log_name
from balancer.nodes.plain_table import read_plain
from balancer.nodes.shape import read_shape
from balancer.nodes.table_parts import read_columns, read_grants, set_grants

KEYS = sql.Identifier("balancer_import_keys")
LISTED = 20
"""Keys that a sentence names."""

_IN_THE_WAY = """
SELECT format('the trigger %%I', tgname) FROM pg_trigger
    WHERE tgrelid = %(oid)s AND NOT tgisinternal AND tgname !~ '^[!~]balancer_'
UNION ALL SELECT format('the policy %%I', polname) FROM pg_policy WHERE polrelid = %(oid)s
UNION ALL SELECT 'row level security' FROM pg_class WHERE oid = %(oid)s AND (relrowsecurity OR relforcerowsecurity)
UNION ALL SELECT format('the foreign key %%I of %%s', conname, conrelid::regclass) FROM pg_constraint
    WHERE contype = 'f' AND %(oid)s IN (conrelid, confrelid)
UNION ALL SELECT format('the publication %%I', p.pubname) FROM pg_publication_rel r JOIN pg_publication p
    ON p.oid = r.prpubid WHERE r.prrelid = %(oid)s
UNION ALL SELECT DISTINCT pg_describe_object(classid, objid, 0) FROM pg_depend
    WHERE refclassid = 'pg_class'::regclass AND refobjid = %(oid)s AND deptype = 'n'
      AND classid IN ('pg_rewrite'::regclass, 'pg_proc'::regclass, 'pg_policy'::regclass)
UNION ALL SELECT DISTINCT pg_describe_object(d.classid, d.objid, 0) FROM pg_depend d JOIN pg_class c ON c.oid = %(oid)s
    WHERE d.refclassid = 'pg_type'::regclass AND d.refobjid = c.reltype AND d.deptype = 'n'
ORDER BY 1
"""


def beside(table: Name, word: str) -> Name:
    """A name beside a table's, cut where it would be too long."""
    suffix = f"_{word}"
    return Name(table.schema, table.name.encode()[: MAX_BYTES - len(suffix)].decode(errors="ignore") + suffix)


def obstacles(cursor: Cursor, table: Name, layout: str, key: Sequence[str]) -> list[str]:
    """Why the plain table of this name, which is there, cannot be imported; with what would help."""
    plain = read_plain(cursor, table, layout, key, "")
    if plain.refusals:
        return list(plain.refusals)
    found = [
        f"{table} has {thing}, which an import does not carry: drop it, and make it again afterwards"
        for (thing,) in cursor.execute(_IN_THE_WAY, {"oid": plain.oid}).fetchall()
    ]
    found += [
        f'column "{column.name}" of {table} draws from a sequence, and nodes would hand out the same numbers: let the'
        " application give the ids, then ALTER COLUMN … DROP DEFAULT or DROP IDENTITY"
        for column in read_columns(cursor, plain.oid)
        if column.identity or column.draws
    ]
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


def row_key(cursor: Cursor, table: Name, layout: str, key: Sequence[str]) -> tuple[str, ...]:
    """The columns by which its rows are told apart: those of the primary key."""
    return next(i.columns for i in read_plain(cursor, table, layout, key, "").unique if i.constraint == "p")


def make_root(cursor: Cursor, table: Name, root: Name, layout: str, key: Sequence[str]) -> None:
    """An empty partitioned twin of a plain table: columns, defaults, checks, indexes, statistics, comments, rights."""
    row = cursor.execute(
        "SELECT oid::bigint, pg_get_userbyid(relowner) FROM pg_class WHERE oid = to_regclass(%s)", (str(table),)
    ).fetchone()
    assert row is not None, table
    oid, owner = row
    columns = sql.SQL(", ").join(map(sql.Identifier, key))
    how = "HASH" if layout == HASH else "RANGE"
    create = sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL) PARTITION BY " + how + " ({})")
    run_single(cursor, create.format(root.identifier, table.identifier, columns))
    run_single(cursor, sql.SQL("ALTER TABLE {} OWNER TO {}").format(root.identifier, sql.Identifier(owner)))
    cursor.execute("SELECT obj_description(%s, 'pg_class')", (oid,))
    text = cursor.fetchone()
    if text is not None and text[0] is not None:
        run_single(cursor, sql.SQL("COMMENT ON TABLE {} IS {}").format(root.identifier, sql.Literal(text[0])))
    grants = read_grants(cursor, oid)
    roles = [None, owner, *(grant.role for grant in grants)]
    for statement in set_grants(root, roles, grants, cursor.connection.info.server_version):
        run_single(cursor, statement)


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


def check_unchanged(cursor: Cursor, table: Name, root: Name, migration: str) -> None:
    """Under the lock of a fence: raises `Refused` if the old table is not what was copied, or was not watched since.

    The triggers that capture changes are as old as their function, unless somebody has switched them off and on.
    """
    if compared_columns(cursor, table) != compared_columns(cursor, root):
        raise Refused(f"the columns of {table} have changed since the import began: say --cancel, and begin again")
    names = [CAPTURE_TRIGGER, CAPTURE_TRUNCATE_TRIGGER]
    row = cursor.execute(_CAPTURES, (str(table), names, f"capture_{migration}_0")).fetchone()
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


def duplicates(readers: Mapping[str, Connection], table: Name, key: Sequence[str]) -> list[str]:
    """Some keys that stand on more than one node, with the nodes; reads every key, in order, and keeps none."""
    found: list[str] = []
    with ExitStack() as stack:
        streams = [stack.enter_context(_KeyStream(node, one, table, key)) for node, one in readers.items()]
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

    def __init__(self, node: str, connection: Connection, table: Name, key: Sequence[str]) -> None:
        self._node, self._connection = node, connection
        self._query = sql.SQL('SELECT {} COLLATE "C" AS k FROM ONLY {} AS t ORDER BY k').format(
            key_text(key), table.identifier
        )

    def __enter__(self) -> Iterator[tuple[str, str]]:
        self._connection.execute("BEGIN READ ONLY")
        return self._rows()

    def __exit__(self, *error: object) -> None:
        self._connection.rollback()

    def _rows(self) -> Iterator[tuple[str, str]]:
        with self._connection.cursor(name="balancer_import") as cursor:
            cursor.itersize = 10_000
            for (text,) in cursor.execute(self._query):
                yield str(text), self._node


def take_batch(connection: Connection, migration: str, key: Sequence[str], limit: int) -> list[int] | None:
    """Some entries of a log, their keys into a temporary table; both as one snapshot sees them.

    Returns the entries; None: one says that the table was truncated.
    """
    log, seq = log_name(migration, 0), sql.Identifier(SEQ)
    rows = connection.execute(
        sql.SQL("SELECT {}, {} IS NULL FROM {} ORDER BY {} LIMIT {}").format(
            seq, sql.Identifier(key[0]), log, seq, sql.Literal(limit)
        )
    ).fetchall()
    if any(truncated for _, truncated in rows):
        return None
    entries = [int(number) for number, _ in rows]
    connection.execute(
        sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT DISTINCT {} FROM {} WHERE {} = ANY({})").format(
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
    connection: Connection | Cursor, table: Name, key: Sequence[str], columns: Sequence[Compared], where: sql.Composable
) -> dict[str, int]:
    """By key as text: the hash of each row that a plain table or a root has of the keys in the temporary table."""
    query = sql.SQL("SELECT {}, {} FROM {} AS t WHERE {} AND ({})").format(
        key_text(key), row_hash(columns), table.identifier, among_keys(key), where
    )
    return {str(text): int(hashed) for text, hashed in connection.execute(query).fetchall()}


def among_keys(key: Sequence[str]) -> sql.Composable:
    """The condition for rows of `t` whose key is in the temporary table."""
    return sql.SQL("EXISTS (SELECT FROM pg_temp.{} AS k WHERE {})").format(KEYS, _same(key))


def forget_keys(connection: Connection | Cursor, key: Sequence[str], texts: Sequence[str]) -> None:
    """Takes keys out of the temporary table."""
    connection.execute(
        sql.SQL("DELETE FROM pg_temp.{} AS t WHERE {} = ANY({})").format(KEYS, key_text(key), sql.Literal(list(texts)))
    )


def delete_keys(cursor: Cursor, root: Name, key: Sequence[str]) -> None:
    """The rows of those keys, wherever in the root they are."""
    cursor.execute(
        sql.SQL("DELETE FROM {} AS t USING pg_temp.{} AS k WHERE {}").format(root.identifier, KEYS, _same(key))
    )


def entries_without(
    connection: Connection, migration: str, key: Sequence[str], entries: Sequence[int], texts: Sequence[str]
) -> list[int]:
    """Those of the entries whose key is none of these."""
    query = sql.SQL("SELECT t.{} FROM {} AS t WHERE t.{} = ANY({}) AND {} <> ALL({})").format(
        sql.Identifier(SEQ), log_name(migration, 0), sql.Identifier(SEQ), sql.Literal(list(entries)), key_text(key),
        sql.Literal(list(texts)),
    )  # fmt: skip
    return [int(number) for (number,) in connection.execute(query).fetchall()]


def key_text(key: Sequence[str]) -> sql.Composable:
    """The key of `t` as text."""
    return sql.SQL("ROW({})::text").format(sql.SQL(", ").join(sql.SQL("t.{}").format(sql.Identifier(k)) for k in key))


def rename(cursor: Cursor, table: Name, new: Name) -> None:
    """Of a table, within its schema."""
    rename = sql.SQL("ALTER TABLE {} RENAME TO {}")
    cursor.execute(rename.format(table.identifier, sql.Identifier(new.name)))


_INDEXES = """
SELECT c.relname, row_number() OVER (PARTITION BY d.tail ORDER BY c.relname), d.tail
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
CROSS JOIN LATERAL (SELECT regexp_replace(pg_get_indexdef(i.indexrelid), '^.*? USING ', '') || i.indisunique
                           || i.indisprimary AS tail) AS d
WHERE i.indrelid = to_regclass(%s) ORDER BY c.relname
"""


def index_names(cursor: Cursor, table: Name, root: Name) -> dict[str, str]:
    """By name of an index of the new root: what the same one of the old table is called."""
    mine, theirs = (cursor.execute(_INDEXES, (str(name),)).fetchall() for name in (table, root))
    known = {(number, tail): str(name) for name, number, tail in mine}
    return {str(name): known[number, tail] for name, number, tail in theirs if (number, tail) in known}


def rename_indexes(cursor: Cursor, schema: str, names: Mapping[str, str], *, old: bool) -> None:
    """Gives the new root's indexes, and the constraints behind them, the old names; the old ones make room first."""
    change = sql.SQL("ALTER INDEX {} RENAME TO {}")
    for new, name in names.items():
        if old:
            away = beside(Name(schema, name), "before_import")
            cursor.execute(change.format(sql.Identifier(schema, name), sql.Identifier(away.name)))
        cursor.execute(change.format(sql.Identifier(schema, new), sql.Identifier(name)))


def kind_of_table(cursor: Cursor, table: Name) -> str | None:
    """`r`, `p` or another kind of relation; None: there is none of this name."""
    row = cursor.execute("SELECT relkind::text FROM pg_class WHERE oid = to_regclass(%s)", (str(table),)).fetchone()
    return None if row is None else str(row[0])


def empty_root(cursor: Cursor, root: Name) -> None:
    """All rows of a root that nobody uses yet."""
    cursor.execute(sql.SQL("TRUNCATE {}").format(root.identifier))


def clear_log(cursor: Cursor, migration: str) -> None:
    """Forgets changes that are committed, before a snapshot is taken that has them."""
    cursor.execute(sql.SQL("DELETE FROM {}").format(log_name(migration, 0)))


def drop_table(cursor: Cursor, table: Name) -> None:
    """With its partitions, if it has any. Idempotent."""
    cursor.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table.identifier))


def add_digest(total: dict[int, tuple[int, int]], part: Digest) -> None:
    """Sums up what several tables have."""
    for bucket, (count, hashed) in part.items():
        before = total.get(bucket, (0, 0))
        total[bucket] = (before[0] + count, before[1] + hashed)


def _list(names: Sequence[str]) -> sql.Composable:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _same(key: Sequence[str]) -> sql.Composable:
    return sql.SQL(" AND ").join(sql.SQL("t.{0} = k.{0}").format(sql.Identifier(name)) for name in key)
