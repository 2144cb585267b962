"""Unique indexes that lack the key of a partitioned table, and the ones with it that replace them.

PostgreSQL keeps a unique index of a partitioned table only if the partition key is in it. A wider index is built
alongside the writers, under the name that the leaf's index will have; the swap of a conversion exchanges the two. It
promises less than the narrow one did, so an operator has to ask for it. Only reads.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psycopg import sql

from balancer.nodes.connection import Cursor, Statement
from balancer.nodes.names import Name
from balancer.nodes.partition import index_name
from balancer.nodes.plain_table import PlainTable, UniqueIndex


@dataclass(frozen=True, slots=True)
class NewKey:
    """A unique index with the key in it, which replaces one without."""

    old: UniqueIndex
    name: str
    columns: tuple[str, ...]
    tail: Statement
    """What comes after the table's name, or after the word for the constraint."""

    def build(self, table: Name) -> Statement:
        """Builds it alongside the writers."""
        create = sql.SQL("CREATE UNIQUE INDEX CONCURRENTLY {} ON {} ")
        return create.format(sql.Identifier(self.name), table.identifier) + self.tail

    def on_root(self, root: Name) -> Statement:
        """Makes its equivalent on the root, under the old one's name."""
        name = sql.Identifier(self.old.name)
        if self.old.constraint is None:
            return sql.SQL("CREATE UNIQUE INDEX {} ON {} ").format(name, root.identifier) + self.tail
        add = sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} {} ").format(root.identifier, name, _word(self.old))
        return add + self.tail + sql.SQL(self.old.deferrable)


def new_keys_of(plain: PlainTable, leaf: Name) -> list[NewKey]:
    """One for each unique index that lacks the key and can be written by its columns alone."""
    key = [column.name for column in plain.key]
    found = []
    for old in plain.unique:
        name = index_name(old.name, plain.name, leaf)
        if old.plain and not set(key) <= set(old.columns):
            columns = (*old.columns, *(column for column in key if column not in old.columns))
            found.append(NewKey(old, name, columns, _tail(old, columns)))
    return found


def _tail(old: UniqueIndex, columns: Sequence[str]) -> Statement:
    def listed(names: Sequence[str]) -> sql.Composable:
        return sql.SQL(", ").join(map(sql.Identifier, names))

    tail = sql.SQL("({})").format(listed(columns))
    included = [column for column in old.included if column not in columns]
    if included:
        tail += sql.SQL(" INCLUDE ({})").format(listed(included))
    return tail


def narrow_keys(plain: PlainTable, new_keys: Sequence[NewKey], *, widen: bool) -> Iterator[str]:
    """Why unique indexes without the key are in the way, in words; with `widen`, only those that are not widened."""
    key = [column.name for column in plain.key]
    widened = {new.old.name: new for new in new_keys}
    for old in plain.unique:
        what = {"p": "primary key", "u": "unique constraint"}.get(old.constraint or "", "unique index")
        where = f"{what} {old.name} of {plain.name}"
        without = f"does not contain the key ({', '.join(key)})"
        if old.name in widened and not widen:
            columns = ", ".join(widened[old.name].columns)
            yield f"{where} {without}: --widen-keys makes it ({columns}), where the application allows that, or drop it"
        elif old.name in widened and not old.nulls_distinct:
            yield f"{where} {without} and says NULLS NOT DISTINCT, so it is not widened: drop it"
        elif old.name not in widened and not set(key) <= set(old.columns):
            yield f"{where} {without} and has expressions or options of its own, so it is not widened: drop it"


_POINTING = """
SELECT k.conname, k.conrelid::regclass::text, c.relname FROM pg_constraint k JOIN pg_class c ON c.oid = k.conindid
WHERE k.confrelid = %s AND k.contype = 'f' AND k.conparentid = 0 AND c.relname = ANY(%s) ORDER BY 1
"""


def kept_keys(plain: PlainTable) -> list[str]:
    """Unique indexes of a whole table that lack its column: they stay on its leaf, which has all rows there are."""
    key = {column.name for column in plain.key}
    return [unique.name for unique in plain.unique if not key <= set(unique.columns)]


def kept_refusals(cursor: Cursor, plain: PlainTable, kept: Sequence[str], *, widen: bool) -> Iterator[str]:
    """Why those are in the way, in words; with `widen`, only those that cannot stay on the leaf."""
    column = ", ".join(column.name for column in plain.key)
    for unique in plain.unique:
        if unique.name in kept and not widen:
            what = {"p": "primary key", "u": "unique constraint"}.get(unique.constraint or "", "unique index")
            listed = ", ".join(unique.columns) or "…"
            yield (
                f"{what} {unique.name} of {plain.name} does not contain {column}, by which PostgreSQL partitions it:"
                f" --widen-keys keeps it on the partition, where it holds for all rows, but INSERT … ON CONFLICT"
                f" ({listed}) does not find it any more; or drop it"
            )
    for name, table, unique_name in cursor.execute(_POINTING, (plain.oid, list(kept))).fetchall():
        yield (
            f"foreign key {name} of {table} points to {plain.name} by {unique_name}, which cannot be a key of the"
            " partitioned table: drop it"
        )


def leaf_keys(plain: PlainTable, new_keys: Sequence[NewKey]) -> Iterator[Statement]:
    """The table gets the new ones instead of the old, and NOT NULL on its key: instant, because everything is built."""
    alter = sql.SQL("ALTER TABLE {} ").format(plain.name.identifier)
    for column in plain.nullable:
        yield alter + sql.SQL("ALTER COLUMN {} SET NOT NULL").format(sql.Identifier(column))
    for new in new_keys:
        name = sql.Identifier(new.name)
        if new.old.constraint is None:
            yield sql.SQL("DROP INDEX {}").format(sql.Identifier(plain.name.schema, new.old.name))
        else:
            yield alter + sql.SQL("DROP CONSTRAINT {}").format(sql.Identifier(new.old.name))
            yield alter + sql.SQL("ADD CONSTRAINT {0} {1} USING INDEX {0}{2}").format(
                name, _word(new.old), sql.SQL(new.old.deferrable)
            )
        if new.old.identity:
            yield alter + sql.SQL("REPLICA IDENTITY USING INDEX {}").format(name)


def _word(index: UniqueIndex) -> sql.SQL:
    return sql.SQL("PRIMARY KEY" if index.constraint == "p" else "UNIQUE")
