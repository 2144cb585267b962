"""Foreign keys between tables that were converted together, or went back together: validated after the swap.

The swap leaves them on the leaves (or on the tables that are plain again), enforced and not validated. A scan alongside
the writers validates each; then the root gets it too, in an instant, because PostgreSQL merges it with the leaf's equal
one. They are found from the catalog alone, so a crash in between loses nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from balancer.nodes.connection import Cursor, Statement, printed
from balancer.nodes.names import Name

_KEYS = """
SELECT k.conname, pg_get_constraintdef(k.oid), k.convalidated, n.nspname, c.relname,
       obj_description(k.oid, 'pg_constraint')
FROM pg_constraint k JOIN pg_class c ON c.oid = k.confrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE k.conrelid = to_regclass(%s) AND k.contype = 'f' AND k.conparentid = 0
  AND k.confrelid = ANY(SELECT to_regclass(name)::oid FROM unnest(%s::text[]) AS name)
ORDER BY k.conname
"""


@dataclass(frozen=True, slots=True)
class NearKey:
    """A foreign key that is still to be validated."""

    table: Name
    name: str
    definition: str
    validated: bool
    referenced: Name
    comment: str | None

    def validate(self) -> Statement:
        """Scans every row, alongside the writers."""
        alter = sql.SQL("ALTER TABLE {} VALIDATE CONSTRAINT {}")
        return alter.format(self.table.identifier, sql.Identifier(self.name))

    def locks(self, roots: Sequence[Name], root: Name) -> list[Statement]:
        """What `give` locks, in the order of the roots: writers mostly begin with the referenced one."""
        lock = sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE")
        return [lock.format(name.identifier) for name in roots if name in (root, self.referenced)]

    def drop(self) -> Statement:
        """Takes it from where it waits."""
        alter = sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}")
        return alter.format(self.table.identifier, sql.Identifier(self.name))

    def give(self, root: Name, *, valid: bool = True) -> list[Statement]:
        """The root gets it, when it is validated; another table may get it before."""
        add = sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} {}{}")
        text = printed(self.definition.removesuffix(" NOT VALID"))
        rest = sql.SQL("" if valid else " NOT VALID")
        statements: list[Statement] = [add.format(root.identifier, sql.Identifier(self.name), text, rest)]
        if self.comment is not None:
            said = sql.SQL("COMMENT ON CONSTRAINT {} ON {} IS {}")
            statements.append(said.format(sql.Identifier(self.name), root.identifier, sql.Literal(self.comment)))
        return statements


def read_near_keys(cursor: Cursor, tables: Sequence[Name], to: Sequence[Name]) -> list[NearKey]:
    """These tables' own foreign keys that point to one of `to`; the caller has set full names."""
    return [
        NearKey(table, name, text, validated, Name(schema, relation), comment)
        for table in tables
        for name, text, validated, schema, relation, comment in cursor.execute(
            _KEYS, (str(table), [str(other) for other in to])
        ).fetchall()
    ]
