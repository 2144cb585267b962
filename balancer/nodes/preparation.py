"""What a conversion builds before its swap, found again by name after a crash, or removed.

The root and the CHECK that names its oid come and go in one transaction. The root is marked by its comment, so that
somebody else's table of this name is neither used nor dropped. Indexes are built alongside the writers; one left
half-built is dropped and rebuilt. Called by `tables.convert` and `tables.unconvert`.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

from psycopg import sql

from balancer.errors import Refused
from balancer.nodes.catalog import HASH, WHOLE, find_root
from balancer.nodes.connection import Connection, Cursor, Statement, run_single
from balancer.nodes.conversion import Conversion, stub_name
from balancer.nodes.names import Name
from balancer.nodes.partition import root_oid
from balancer.nodes.plain_table import BOUND
from balancer.nodes.table_parts import ColumnPart, grantee, read_columns
from balancer.nodes.wider_keys import NewKey


class Built(StrEnum):
    """How far something is."""

    ABSENT = "absent"
    BEGUN = "begun"
    DONE = "done"


_STUB = """
SELECT c.oid::bigint, c.relkind = 'p' AND obj_description(c.oid, 'pg_class') IS NOT DISTINCT FROM %s,
       EXISTS (SELECT FROM pg_inherits WHERE inhparent = c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s
"""
_BOUND = "SELECT convalidated FROM pg_constraint WHERE conrelid = to_regclass(%s) AND conname = %s"
_INDEX = """
SELECT i.indisvalid AND i.indisunique AND i.indpred IS NULL AND ARRAY(
           SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS u (attnum, place)
           JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = u.attnum
           WHERE u.place <= i.indnkeyatts ORDER BY u.place) = %s::text[], i.indrelid = to_regclass(%s)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""
_GRANTEES = """
SELECT DISTINCT CASE g.grantee WHEN 0 THEN NULL ELSE pg_get_userbyid(g.grantee) END
FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) g WHERE c.oid = to_regclass(%s)
"""


def _mark(root: Name) -> str:
    return f"tablet-balancer: becomes {root}"


def find_stub(cursor: Cursor, root: Name) -> int | None:
    """The oid of our root under its first name. Raises `Refused` if somebody else's table has that name."""
    stub = stub_name(root)
    row = cursor.execute(_STUB, (_mark(root), *stub)).fetchone()
    if row is None:
        return None
    if not row[1] or row[2]:
        raise Refused(f"the name {stub}, which the conversion of {root} needs, is taken: rename it")
    return int(row[0])


def mark_stub(root: Name) -> Statement:
    """What makes it ours."""
    return sql.SQL("COMMENT ON TABLE {} IS {}").format(stub_name(root).identifier, sql.Literal(_mark(root)))


def stub_state(cursor: Cursor, conversion: Conversion) -> Built:
    """Whether the root matches the table as it is now, and its CHECK is on the table."""
    stub = find_stub(cursor, conversion.plain.name)
    if stub is None:
        return Built.ABSENT
    root = find_root(cursor, conversion.stub, whole=conversion.layout == WHOLE)
    assert root is not None, conversion.stub
    fits = _alike(read_columns(cursor, stub), conversion.columns) and root.columns == conversion.plain.key
    fits = fits and root.layout == (HASH if conversion.layout == WHOLE else conversion.layout)
    bound = bound_state(cursor, conversion.plain.name)
    return Built.DONE if fits and (bound is not Built.ABSENT or not conversion.needs_bound) else Built.BEGUN


def _alike(there: Sequence[ColumnPart], wanted: Sequence[ColumnPart]) -> bool:
    """Where no name was asked for a NOT NULL, PostgreSQL has chosen one."""
    if len(there) != len(wanted):
        return False
    chosen = [mine.not_null_name if other.not_null_name else None for mine, other in zip(there, wanted, strict=True)]
    return [replace(mine, not_null_name=name) for mine, name in zip(there, chosen, strict=True)] == [*wanted]


def bound_state(cursor: Cursor, table: Name) -> Built:
    """Whether the CHECK is there, and validated."""
    row = cursor.execute(_BOUND, (str(table), BOUND)).fetchone()
    if row is None:
        return Built.ABSENT
    return Built.DONE if row[0] else Built.BEGUN


def make_stub(cursor: Cursor, conversion: Conversion) -> None:
    """Makes the root, ours alone until the swap, and the CHECK for rows that come from now on."""
    run_single(cursor, conversion.create_stub())
    run_single(cursor, mark_stub(conversion.plain.name))
    revoke = sql.SQL("REVOKE ALL ON {} FROM {} CASCADE")
    for (role,) in cursor.execute(_GRANTEES, (str(conversion.stub),)).fetchall():
        cursor.execute(revoke.format(conversion.stub.identifier, grantee(role)))
    if conversion.needs_bound:
        add = sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} CHECK ({}) NOT VALID")
        bound = conversion.bound(root_oid(cursor, conversion.stub))
        table = conversion.plain.name.identifier
        run_single(cursor, add.format(table, sql.Identifier(BOUND), bound))


def validate_bound(table: Name) -> Statement:
    """Scans every row, alongside the writers."""
    return sql.SQL("ALTER TABLE {} VALIDATE CONSTRAINT {}").format(table.identifier, sql.Identifier(BOUND))


def index_state(cursor: Cursor, table: Name, new: NewKey) -> Built:
    """Whether it is there and usable. Raises `Refused` if something else has its name."""
    row = cursor.execute(_INDEX, (list(new.columns), str(table), table.schema, new.name)).fetchone()
    if row is None:
        return Built.ABSENT
    if not row[1]:
        raise Refused(f"the name {new.name}, which the conversion of {table} needs, is taken: rename it")
    return Built.DONE if row[0] else Built.BEGUN


def drop_index(connection: Connection, table: Name, name: str) -> None:
    """Builds it alongside the writers."""
    connection.execute(sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS {}").format(sql.Identifier(table.schema, name)))


def drop_stubs(roots: Sequence[Name], cursor: Cursor) -> None:
    """Removes the roots and their CHECKs, if they exist; all at once, because they may refer to each other."""
    there = [root for root in roots if find_stub(cursor, root) is not None]
    for root in roots:
        if bound_state(cursor, root) is not Built.ABSENT:
            drop = sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}")
            cursor.execute(drop.format(root.identifier, sql.Identifier(BOUND)))
    if there:
        names = sql.SQL(", ").join(stub_name(root).identifier for root in there)
        cursor.execute(sql.SQL("DROP TABLE {}").format(names))


def unused_indexes(cursor: Cursor, conversions: Sequence[Conversion]) -> list[tuple[Name, str]]:
    """Table and name of each index that was built, or begun, for a swap that is no longer wanted."""
    wanted = [(conversion.plain.name, new) for conversion in conversions for new in conversion.new_keys]
    return [(table, new.name) for table, new in wanted if index_state(cursor, table, new) is not Built.ABSENT]
