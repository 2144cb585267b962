"""What a table takes along when its name goes to another: a plain table's to its root, or a root's to its table.

Both directions are alike: the old table's parts, and everything that names it, are printed while it has the name, and
run again when the other table has it. `conversion` and `reversion` put their own steps in between. The caller reads
with full names (`full_names`), and runs everything in one transaction. Only reads.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psycopg import sql

from balancer.nodes import table_parts
from balancer.nodes.connection import Cursor, Statement, printed
from balancer.nodes.dependents import read_dependents
from balancer.nodes.materialised import shell_refusals, shell_statements
from balancer.nodes.names import Name
from balancer.nodes.owned_sequences import OwnedSequences, carry_sequences
from balancer.nodes.published import carry_publications


@dataclass(frozen=True, slots=True)
class Carried:
    """In the order of a swap."""

    locks: tuple[Statement, ...]
    """On everything else that the swap changes, after the tables themselves: reading a view also locks its tables."""
    before: tuple[Statement, ...]
    """While the old table has the name."""
    owner: tuple[Statement, ...]
    """First of all when the other table has the name: with the grants, because triggers and keys need rights."""
    sequences: OwnedSequences
    far_keys: tuple[Statement, ...]
    """Foreign keys to tables that keep their names."""
    after: tuple[Statement, ...]
    """When the other table has the name, and all its columns, keys and indexes."""
    near_keys: tuple[Statement, ...]
    """Foreign keys to tables whose names go with this one's: not validated yet."""
    last: tuple[Statement, ...]
    """When all of that is done, for all tables: what named the old table now names the other one."""
    refusals: tuple[str, ...]
    names: tuple[str, ...]


_TABLE = """
SELECT pg_get_userbyid(relowner), relrowsecurity, relforcerowsecurity, relreplident::text,
       (SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
        WHERE i.indrelid = t.oid AND i.indisreplident)
FROM pg_class t WHERE t.oid = %s
"""
_RULES = """
SELECT rulename, pg_get_ruledef(oid), ev_enabled::text, obj_description(oid, 'pg_rewrite')
FROM pg_rewrite WHERE ev_class = %s ORDER BY 1
"""
_REFERENCES = """
SELECT k.conname, pg_get_constraintdef(k.oid), n.nspname, c.relname, obj_description(k.oid, 'pg_constraint')
FROM pg_constraint k JOIN pg_class c ON c.oid = k.confrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE k.conrelid = %s AND k.contype = 'f' AND k.conparentid = 0 ORDER BY k.conname
"""
_GRANTEES = """
SELECT DISTINCT CASE g.grantee WHEN 0 THEN NULL ELSE pg_get_userbyid(g.grantee) END
FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) g WHERE c.oid = %s ORDER BY 1
"""


def read_carried(
    cursor: Cursor,
    oid: int,
    name: Name,
    old: Name,
    together: Sequence[Name],
    *,
    near_to: Name,
    other: int | None = None,
    going: Sequence[Name] = (),
    kept: Sequence[str] = (),
) -> Carried:
    """Of the table with this oid and name, which will be called `old`.

    `together`: all names that go to other tables in this swap. `near_to`: which table gets the foreign keys between
    those, by its name after the swap. `other`: the table that gets the name, if it exists and has grants of its own.
    `going`: materialised views that are dropped in the swap. `kept`: unique indexes that stay on the old table alone.
    """
    row = cursor.execute(_TABLE, (oid,)).fetchone()
    assert row is not None, name
    owner, secured, forced, replica_identity, identity_index = row
    dependents = read_dependents(cursor, oid, name)
    published = carry_publications(cursor, oid, name)
    references = cursor.execute(_REFERENCES, (oid,)).fetchall()
    near = [row for row in references if Name(row[2], row[3]) in together]
    far = [row for row in references if Name(row[2], row[3]) not in together]
    _, policies, _ = table_parts.read_policies(cursor, oid, name)
    given = [role for (role,) in cursor.execute(_GRANTEES, (other,))] if other is not None else []
    version = cursor.connection.info.server_version
    table = name.identifier
    after = [
        *table_parts.make_triggers(table_parts.read_triggers(cursor, oid), name),
        *policies,
        *table_parts.row_security(name, secured=secured, forced=forced),
        *_replica_identity(name, replica_identity, identity_index),
        *_rules(cursor, oid, name),
        *table_parts.read_comments(cursor, oid, name, but=[*(row[0] for row in near), *kept]),
    ]
    drop = sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}")
    views = [view for view in dependents.materialised if view not in going]
    shells = [text for view in views for text in shell_statements(cursor, view)]
    unfit = [text for view in views for text in shell_refusals(cursor, view, name)]
    return Carried(
        (
            *(_referenced(row) for row in far),
            *(lock for named, lock in dependents.locks if named not in together),
        ),
        (*dependents.before, *published.before, *(drop.format(table, sql.Identifier(row[0])) for row in near)),
        (
            sql.SQL("ALTER TABLE {} OWNER TO {}").format(table, sql.Identifier(owner)),
            *table_parts.set_grants(name, given, table_parts.read_grants(cursor, oid), version),
        ),
        carry_sequences(cursor, oid, name, old),
        tuple(_reference(name, row) for row in far),
        tuple(after),
        tuple(text for row in near for text in _near_key(near_to, row)),
        (*dependents.after, *shells, *published.after),
        (*dependents.refusals, *published.refusals, *unfit),
        (*dependents.names, *published.names),
    )


def near_keys(cursor: Cursor, oid: int, together: Sequence[Name]) -> dict[str, Statement]:
    """By name: what the foreign keys say that the table with this oid has to one of `together`."""
    rows = cursor.execute(_REFERENCES, (oid,)).fetchall()
    return {row[0]: printed(row[1]) for row in rows if Name(row[2], row[3]) in together}


def far_keys(cursor: Cursor, oid: int, together: Sequence[Name]) -> list[tuple[str, Name]]:
    """Its foreign keys to tables outside `together`, with the tables that they point to."""
    rows = cursor.execute(_REFERENCES, (oid,)).fetchall()
    return [(row[0], Name(row[2], row[3])) for row in rows if Name(row[2], row[3]) not in together]


def _reference(table: Name, row: tuple[str, ...]) -> Statement:
    add = sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} {}")
    return add.format(table.identifier, sql.Identifier(row[0]), printed(row[1]))


def _near_key(table: Name, row: tuple[str, ...]) -> Iterator[Statement]:
    yield _reference(table, row) + sql.SQL(" NOT VALID")
    if row[4] is not None:
        comment = sql.SQL("COMMENT ON CONSTRAINT {} ON {} IS {}")
        yield comment.format(sql.Identifier(row[0]), table.identifier, sql.Literal(row[4]))


def _referenced(row: tuple[str, ...]) -> Statement:
    """Adding a foreign key locks the table it points to."""
    return sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(sql.Identifier(row[2], row[3]))


def _replica_identity(name: Name, kind: str, index: str | None) -> Iterator[Statement]:
    alter = sql.SQL("ALTER TABLE {} REPLICA IDENTITY ").format(name.identifier)
    if kind in ("f", "n"):
        yield alter + sql.SQL("FULL" if kind == "f" else "NOTHING")
    elif kind == "i" and index is not None:
        yield alter + sql.SQL("USING INDEX {}").format(sql.Identifier(index))


def _rules(cursor: Cursor, oid: int, name: Name) -> Iterator[Statement]:
    words = {"D": "DISABLE", "R": "ENABLE REPLICA", "A": "ENABLE ALWAYS"}
    for rule, text, enabled, comment in cursor.execute(_RULES, (oid,)).fetchall():
        yield printed(text.rstrip(";"))
        if enabled in words:
            alter = sql.SQL("ALTER TABLE {} " + words[enabled] + " RULE {}")
            yield alter.format(name.identifier, sql.Identifier(rule))
        if comment is not None:
            said = sql.SQL("COMMENT ON RULE {} ON {} IS {}")
            yield said.format(sql.Identifier(rule), name.identifier, sql.Literal(comment))
