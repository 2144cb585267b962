"""Sequences that belong to columns of a table, carried to another table that takes its name.

A serial column's sequence stays and gets another owner column. The sequence of an identity column belongs to the
column for good: a new one of the same name is made, goes on where the old one stood, and nobody draws from either in
between, because the old one is renamed first, which keeps everybody out to the end of the transaction. Reading only;
the statements run in one transaction.
"""

from dataclasses import dataclass

from psycopg import sql

from balancer.nodes.connection import Cursor, Statement
from balancer.nodes.names import Name, partition_name
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
        for role, privilege in zip(roles, privileges, strict=True):
            option = " WITH GRANT OPTION" if privilege.endswith("*") else ""
            grant = sql.SQL("GRANT " + privilege.rstrip("*") + " ON SEQUENCE {} TO {}" + option)
            give.append(grant.format(made.identifier, grantee(role or None)))
        drop = sql.SQL("ALTER TABLE {} ALTER COLUMN {} DROP IDENTITY")
        end.append(drop.format(old.identifier, sql.Identifier(column)))
    return OwnedSequences(tuple(aside), tuple(give), tuple(end))


def _add_identity(table: Name, column: str, always: bool, sequence: Name, shape: tuple[object, ...]) -> Statement:
    start, increment, least, most, cache, cycle = shape
    options = sql.SQL(
        "SEQUENCE NAME {} START WITH {} INCREMENT BY {} MINVALUE {} MAXVALUE {} CACHE {} {} CYCLE"
    ).format(
        sequence.identifier,
        *(sql.Literal(value) for value in (start, increment, least, most, cache)),
        sql.SQL("" if cycle else "NO"),
    )
    kind = sql.SQL("ALWAYS" if always else "BY DEFAULT")
    add = sql.SQL("ALTER TABLE {} ALTER COLUMN {} ADD GENERATED {} AS IDENTITY ({})")
    return add.format(table.identifier, sql.Identifier(column), kind, options)
