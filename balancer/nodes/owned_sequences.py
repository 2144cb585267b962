"""Sequences that belong to columns of a table, carried to another table that takes its name.

A serial column's sequence stays and gets another owner column. The sequence of an identity column belongs to the
column for good: a new one of the same name is made and continues where the old one stood; nobody draws from either in
between, because the old one is renamed first, which keeps everybody out until the end of the transaction. Only reads;
the statements run in one transaction.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psycopg import sql

from balancer.nodes.connection import Cursor, Statement
from balancer.nodes.names import Name, partition_name
from balancer.nodes.number_lanes import in_lane
from balancer.nodes.table_parts import grantee

_SERIAL = """
SELECT n.nspname, s.relname, a.attname
FROM pg_depend d JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S' JOIN pg_namespace n ON n.oid = s.relnamespace
JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = %s AND d.deptype = 'a'
ORDER BY 1, 2
"""

_IDENTITY = """
SELECT n.nspname, c.relname, a.attname, a.attidentity::text, s.seqstart, s.seqincrement, s.seqmin, s.seqmax, s.seqcache,
       s.seqcycle, obj_description(c.oid, 'pg_class'),
       ARRAY(SELECT CASE g.grantee WHEN 0 THEN '' ELSE pg_get_userbyid(g.grantee) END FROM aclexplode(c.relacl) g
             WHERE g.grantee <> c.relowner ORDER BY g.grantee, g.privilege_type),
       ARRAY(SELECT g.privilege_type || CASE WHEN g.is_grantable THEN '*' ELSE '' END FROM aclexplode(c.relacl) g
             WHERE g.grantee <> c.relowner ORDER BY g.grantee, g.privilege_type)
FROM pg_depend d JOIN pg_class c ON c.oid = d.objid AND c.relkind = 'S' JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_sequence s ON s.seqrelid = c.oid
JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid AND a.attidentity <> ''
WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = %s AND d.deptype = 'i'
ORDER BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class OwnedSequences:
    """What carries the sequences of one table."""

    aside: tuple[Statement, ...]
    """While the table has its name: renames the sequences of identity columns."""
    give: tuple[Statement, ...]
    """When the other table has the name: the columns there draw from where the old ones stood."""
    end: tuple[Statement, ...]
    """Ends identities of the old table, under its new name."""


def carry_sequences(cursor: Cursor, oid: int, name: Name, old: Name) -> OwnedSequences:
    """Of the table with this oid and name; `old` is what it will be called."""
    aside: list[Statement] = []
    give: list[Statement] = []
    end: list[Statement] = []
    for schema, sequence, column in cursor.execute(_SERIAL, (oid,)).fetchall():
        owned = sql.SQL("ALTER SEQUENCE {} OWNED BY {}")
        give.append(owned.format(sql.Identifier(schema, sequence), sql.Identifier(*name, column)))
    for row in cursor.execute(_IDENTITY, (oid,)).fetchall():
        schema, sequence, column, always = row[:4]
        made, former = Name(schema, sequence), partition_name(Name(schema, sequence), 0)
        rename = sql.SQL("ALTER SEQUENCE {} RENAME TO {}")
        aside.append(rename.format(made.identifier, sql.Identifier(former.name)))
        give.append(_add_identity(name, column, always == "a", made, row[4:10]))
        go_on = sql.SQL("SELECT setval({}::regclass, last_value, is_called) FROM {}")
        give.append(go_on.format(sql.Literal(str(made)), former.identifier))
        comment, roles, privileges = row[10:]
        if comment is not None:
            give.append(sql.SQL("COMMENT ON SEQUENCE {} IS {}").format(made.identifier, sql.Literal(comment)))
        give += _grant_sequence(made, roles, privileges)
        drop = sql.SQL("ALTER TABLE {} ALTER COLUMN {} DROP IDENTITY")
        end.append(drop.format(old.identifier, sql.Identifier(column)))
    return OwnedSequences(tuple(aside), tuple(give), tuple(end))


@dataclass(frozen=True, slots=True)
class NewSequences:
    """What makes the sequences of a table's columns for the same table on another node, not used yet."""

    before: tuple[Statement, ...] = ()
    """Before the table is there."""
    after: tuple[Statement, ...] = ()
    columns: frozenset[str] = frozenset()
    """The columns that draw from them."""


_SHAPE = """
SELECT format_type(seqtypid, NULL), pg_sequence_last_value(seqrelid), seqstart, seqincrement, seqmin, seqmax, seqcache,
       seqcycle
FROM pg_sequence WHERE seqrelid = %s::regclass
"""
_GRANTS = """
SELECT CASE g.grantee WHEN 0 THEN '' ELSE pg_get_userbyid(g.grantee) END,
       g.privilege_type || CASE WHEN g.is_grantable THEN '*' ELSE '' END
FROM pg_class c, aclexplode(c.relacl) g WHERE c.oid = %s::regclass AND g.grantee <> c.relowner ORDER BY 1, 2
"""


def new_sequences(cursor: Cursor, oid: int, name: Name, lane: int | None = None) -> NewSequences:
    """For a table of which one node at a time has rows: a move raises the sequence of the new owner to the old one's.

    Where several nodes have rows at once, two sequences would hand out the same numbers, unless each node has a lane of
    its own (see `number_lanes`).
    """
    before: list[Statement] = []
    after: list[Statement] = []
    columns = set()
    for schema, sequence, column in cursor.execute(_SERIAL, (oid,)).fetchall():
        made = Name(schema, sequence)
        kind, last, *shape = cursor.execute(_SHAPE, (str(made),)).fetchall()[0]
        shape = shape if lane is None else in_lane(shape, last, lane)
        create = sql.SQL("CREATE SEQUENCE {} AS {} {}")
        before.append(create.format(made.identifier, sql.SQL(kind), _sequence_options(shape)))
        owned = sql.SQL("ALTER SEQUENCE {} OWNED BY {}")
        after.append(owned.format(made.identifier, sql.Identifier(*name, column)))
        rights = cursor.execute(_GRANTS, (str(made),)).fetchall()
        after += _grant_sequence(made, [role for role, _ in rights], [privilege for _, privilege in rights])
        columns.add(column)
    for row in cursor.execute(_IDENTITY, (oid,)).fetchall():
        schema, sequence, column, always = row[:4]
        made = Name(schema, sequence)
        _, last, *shape = cursor.execute(_SHAPE, (str(made),)).fetchall()[0]
        shape = shape if lane is None else in_lane(shape, last, lane)
        after.append(_add_identity(name, column, always == "a", made, shape))
        after += _grant_sequence(made, *row[11:])
        columns.add(column)
    return NewSequences(tuple(before), tuple(after), frozenset(columns))


def _grant_sequence(sequence: Name, roles: Sequence[str], privileges: Sequence[str]) -> Iterator[Statement]:
    for role, privilege in zip(roles, privileges, strict=True):
        option = " WITH GRANT OPTION" if privilege.endswith("*") else ""
        grant = sql.SQL("GRANT " + privilege.rstrip("*") + " ON SEQUENCE {} TO {}" + option)
        yield grant.format(sequence.identifier, grantee(role or None))


def _sequence_options(shape: Sequence[object]) -> sql.Composed:
    start, increment, least, most, cache, cycle = shape
    return sql.SQL("START WITH {} INCREMENT BY {} MINVALUE {} MAXVALUE {} CACHE {} {} CYCLE").format(
        *(sql.Literal(value) for value in (start, increment, least, most, cache)), sql.SQL("" if cycle else "NO")
    )


def _add_identity(table: Name, column: str, always: bool, sequence: Name, shape: Sequence[object]) -> Statement:
    options = sql.SQL("SEQUENCE NAME {} {}").format(sequence.identifier, _sequence_options(shape))
    kind = sql.SQL("ALWAYS" if always else "BY DEFAULT")
    add = sql.SQL("ALTER TABLE {} ALTER COLUMN {} ADD GENERATED {} AS IDENTITY ({})")
    return add.format(table.identifier, sql.Identifier(column), kind, options)
