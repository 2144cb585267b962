"""One step of a schema change on one node: a statement with its owner's rights, or an index leaf by leaf.

A statement runs inside a function that the table's owner has defined for this transaction: what it calls (a default, a
check) then runs with the owner's rights, and cannot take ours back as it could after SET ROLE. An index is built
concurrently, which PostgreSQL itself does with the rights of the table's owner.
"""

from collections.abc import Iterable, Mapping
from uuid import uuid4

from psycopg import sql

from balancer.errors import Refused, UserError
from balancer.naming import MAX_BYTES, Name
from balancer.nodes.catalog.other_roles import leave_others_code
from balancer.nodes.session.connection import Connection, Cursor, printed, run_single, translated
from balancer.nodes.tablets.partition import hash_text

_LEAVES = """
    SELECT n.nspname, c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE i.inhparent = to_regclass(%s) AND NOT i.inhdetachpending ORDER BY 1, 2
"""
_INDEX_OF_LEAF = """
    SELECT n.nspname, c.relname, x.indisvalid, i.inhparent IS NOT NULL
    FROM pg_index x JOIN pg_class c ON c.oid = x.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_inherits i ON i.inhrelid = x.indexrelid AND i.inhparent = to_regclass(%(index)s)
    WHERE x.indrelid = to_regclass(%(leaf)s) AND (i.inhparent IS NOT NULL OR c.relname = %(name)s)
    ORDER BY i.inhparent IS NULL
"""
_STANDING = """
    SELECT 'table ' || root, format('%%s %%s', c.oid, (
        SELECT string_agg(format('%%s %%s %%s', a.attname, a.atttypid, a.attcollation), ',' ORDER BY k.place)
        FROM pg_partitioned_table t, unnest(t.partattrs) WITH ORDINALITY k (number, place), pg_attribute a
        WHERE t.partrelid = c.oid AND a.attrelid = c.oid AND a.attnum = k.number))
    FROM unnest(%(roots)s::text[]) root JOIN pg_class c ON c.oid = to_regclass(root)
    UNION ALL
    SELECT format('tablet %%s.%%s', n.nspname, c.relname), format('%%s %%s', c.oid, i.inhparent)
    FROM unnest(%(roots)s::text[]) root JOIN pg_inherits i ON i.inhparent = to_regclass(root)
    JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE NOT i.inhdetachpending
"""
_RUN = """
    CREATE FUNCTION pg_temp.{}(statement text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = public, pg_temp AS $run$ BEGIN EXECUTE statement; END $run$
"""


def run_as_owner(cursor: Cursor, role: str, statement: str, *, trusted: bool) -> None:
    """Carries a statement out with the rights of a role, and of nobody else, inside the caller's durable transaction.

    The function has a new name each time: what the role's code left in this session is never called instead of it. The
    session must be closed after the transaction, however that ends: what the role's code has prepared stays in it.
    `trusted`: whether the role's deferred triggers may run with our rights at the commit.
    """
    assert cursor.connection.prepare_threshold is None, "a prepared statement may be replaced by the role's"
    name = sql.Identifier(f"balancer_ddl_{uuid4().hex}")
    cursor.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(role)))
    cursor.execute(sql.SQL(_RUN).format(name))
    cursor.execute("RESET ROLE")
    cursor.execute(sql.SQL("SELECT pg_temp.{}(%s::text)").format(name), (statement,))
    leave_others_code(cursor, trusted=trusted)
    cursor.execute(sql.SQL("DROP FUNCTION pg_temp.{}(text)").format(name))


_NOT_NULL = """
    SELECT n.nspname, c.relname, a.attnotnull, c.oid = to_regclass(%(root)s)
    FROM pg_partition_tree(to_regclass(%(root)s)) t JOIN pg_class c ON c.oid = t.relid
    JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = %(column)s
    WHERE NOT a.attisdropped ORDER BY t.level DESC, 1, 2
"""


def undo_not_null(cursor: Cursor, root: Name, column: str) -> list[str]:
    """What makes a column of a root nullable again after SET NOT NULL, where it is nullable now. DROP NOT NULL reaches
    the leaves; those that had it themselves get it back first to last."""
    rows = cursor.execute(_NOT_NULL, {"root": str(root), "column": column}).fetchall()
    if all(there for _, _, there, of_root in rows if of_root):
        return []
    name = sql.Identifier(column)
    drop = sql.SQL("ALTER TABLE {} ALTER COLUMN {} DROP NOT NULL").format(root.identifier, name)
    again = [
        sql.SQL("ALTER TABLE {} ALTER COLUMN {} SET NOT NULL").format(Name(schema, leaf).identifier, name)
        for schema, leaf, there, of_root in rows
        if there and not of_root
    ]
    return [one.as_string(cursor) for one in (drop, *again)]


def standing(cursor: Cursor, roots: Iterable[Name]) -> dict[str, str]:
    """The bundle's tables and tablets that are here, each by its name, with what identifies it as the known one."""
    rows = cursor.execute(_STANDING, {"roots": [str(root) for root in roots]}).fetchall()
    return {str(name): str(what) for name, what in rows}


def check_standing(before: Mapping[str, str], after: Mapping[str, str], statement: str) -> None:
    """Raises `UserError` if a statement removed one of these, or added one: their names, their keys and who has which
    tablet are the directory's. The text alone does not reveal every statement that does (a list of tables, CASCADE, a
    schema)."""
    for name in sorted({**before, **after}):
        if before.get(name) != after.get(name):
            raise UserError(
                f"{statement}: it would drop, rename, detach or add {name}, or change its key: that is the directory's"
            )


def is_leaf(cursor: Connection | Cursor, table: Name) -> bool:
    """Whether it is a partition of another table."""
    row = cursor.execute("SELECT relispartition FROM pg_class WHERE oid = to_regclass(%s)", (str(table),)).fetchone()
    return bool(row and row[0])


def leaves_of(cursor: Connection | Cursor, root: Name) -> list[Name]:
    """The partitions that a root has on this node."""
    return [Name(schema, name) for schema, name in cursor.execute(_LEAVES, (str(root),)).fetchall()]


def build_leaves(connection: Connection, node: str, index: Name, root: Name, *, unique: bool, tail: str) -> None:
    """Builds a root's index on each leaf and makes it part of the root's. Outside of transactions; may be repeated:
    whatever an interrupted build has left is dropped first."""
    word = "UNIQUE INDEX" if unique else "INDEX"
    with translated(node), connection.cursor() as cursor:
        for leaf in leaves_of(cursor, root):
            name = leaf_index(index.name, leaf)
            where = {"index": str(index), "leaf": str(leaf), "name": name.name}
            found = cursor.execute(_INDEX_OF_LEAF, where).fetchone()
            if found is not None and found[3]:
                continue
            if found is not None and not found[2]:
                cursor.execute(sql.SQL("DROP INDEX CONCURRENTLY {}").format(name.identifier))
                found = None
            if found is None:
                create = sql.SQL("CREATE " + word + " CONCURRENTLY {} ON {} ")
                run_single(cursor, create.format(sql.Identifier(name.name), leaf.identifier) + printed(tail))
            attach = sql.SQL("ALTER INDEX {} ATTACH PARTITION {}")
            cursor.execute(attach.format(index.identifier, name.identifier))


def drop_leaf_indexes(cursor: Cursor, index: Name, root: Name) -> None:
    """What an index that is not finished has left on the leaves."""
    for leaf in leaves_of(cursor, root):
        cursor.execute(sql.SQL("DROP INDEX IF EXISTS {}").format(leaf_index(index.name, leaf).identifier))


def check_index(cursor: Connection | Cursor, index: Name) -> None:
    """Raises `Refused` unless the root's index is complete."""
    if not is_complete(cursor, index):
        raise Refused(f"the index {index} is not complete: a leaf lacks it")


def is_complete(cursor: Connection | Cursor, index: Name) -> bool:
    """Whether it is there, on every leaf."""
    row = cursor.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", (str(index),)).fetchone()
    return bool(row and row[0])


def index_is_there(cursor: Connection | Cursor, index: Name, root: Name) -> bool:
    """Whether the root has an index of this name already. Raises `Refused` if something else has the name."""
    row = cursor.execute(
        "SELECT x.indrelid = to_regclass(%s) FROM pg_class c LEFT JOIN pg_index x ON x.indexrelid = c.oid"
        " WHERE c.oid = to_regclass(%s)",
        (str(root), str(index)),
    ).fetchone()
    if row is None:
        return False
    if not row[0]:
        raise Refused(f"{index} already exists and is not an index of {root}")
    return True


def leaf_index(index: str, leaf: Name) -> Name:
    """The name of a leaf's part of a root's index, always the same, and one that nobody else would choose: an index of
    this name that is not attached was left by an interrupted build. PostgreSQL itself calls a leaf's part of an index
    p0_n_idx."""
    end = f"_{hash_text(f'{leaf} {index}'):x}"
    start = f"{leaf.name}_{index}".encode()[: MAX_BYTES - len(end)].decode(errors="ignore")
    return Name(leaf.schema, start + end)
