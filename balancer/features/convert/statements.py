"""Makes a plain table the only leaf of a partitioned root of its name: what is built beforehand, and the swap.

Before, without keeping anybody out for long: the root under another name (the CHECK of a hash leaf names its oid), a
CHECK that spares ATTACH the scan, and unique indexes that contain the key. Then one transaction: the table gets the
leaf's name and the root the table's; what belongs to the table is made on the root from the texts that the catalog
printed, and removed from the leaf where it would count twice; the leaf is attached; what named the table now names the
root.

Foreign keys between tables that are converted together point to rows which the new root has only when its leaf is
attached. They go to the leaf unvalidated, are enforced at once, and reach the root when a scan alongside the writers
has validated them (`finishing`). The statements are read from the catalog twice, before and under the lock, and must be
the same. Called by `features.convert.run`.

Unique indexes that lack the key of a partitioned table, and the ones with it that replace them.

PostgreSQL keeps a unique index of a partitioned table only if the partition key is in it. A wider index is built
alongside the writers, under the name that the leaf's index will have; the swap of a conversion exchanges the two. It
promises less than the narrow one did, so an operator has to ask for it. Only reads.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from psycopg import sql

from balancer.features.convert.plain_table import BOUND, LEAF, PlainTable, UniqueIndex, read_plain
from balancer.naming import MAX_BYTES, Name, partition_name
from balancer.nodes.catalog.bounds import KeyRange, Part, check_expression, for_values
from balancer.nodes.catalog.owners_code import code_named
from balancer.nodes.catalog.roots import HASH, RANGE, WHOLE
from balancer.nodes.definitions import table_parts
from balancer.nodes.definitions.name_transfer import read_carried
from balancer.nodes.definitions.root import new_sequences
from balancer.nodes.definitions.table_parts import ColumnPart
from balancer.nodes.session.connection import Cursor, Statement
from balancer.nodes.tablets.partition import index_name
from balancer.policies.keyspace.hash_leaves import Leaf


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


_NAMED_NOT_NULL = 180000  # the version in which NOT NULL has a name


@dataclass(frozen=True, slots=True)
class Conversion:
    """One table of those that are converted together."""

    plain: PlainTable
    leaf: Name
    stub: Name
    """The root, as long as the table has its name."""
    part: Part
    columns: tuple[ColumnPart, ...]
    """Of the root."""
    drawing: tuple[ColumnPart, ...]
    """Columns of the table that draw from a sequence, where several nodes would draw."""
    rules: tuple[str, ...]
    layout: str
    new_keys: tuple[NewKey, ...]
    locks: tuple[Statement, ...]
    phases: tuple[tuple[Statement, ...], ...]
    """The phases of the swap, each for all tables before the next begins."""
    elsewhere: tuple[Statement, ...]
    """Make the same root, empty, on a node that lacks it; without foreign keys between tables of this conversion."""
    code: tuple[tuple[str, str], ...]
    """Functions, operators and domains that it uses."""
    refusals: tuple[str, ...]
    carried: tuple[str, ...]
    """Everything outside of the table that will name the root, for people."""
    own_sequences: frozenset[str] = frozenset()
    """Columns that draw from sequences of their own."""

    @property
    def needs_bound(self) -> bool:
        """Whether ATTACH, or NOT NULL, would have to scan every row."""
        return isinstance(self.part, Leaf) or bool(self.plain.nullable)

    def bound(self, stub: int) -> sql.Composable:
        """The CHECK that spares it; `stub` is the root's oid."""
        given: list[sql.Composable] = [
            sql.SQL("({} IS NOT NULL)").format(sql.Identifier(column.name))
            for column in self.plain.key
            if self.layout != WHOLE
        ]
        if isinstance(self.part, Leaf):
            given.append(check_expression(self.plain.key, self.part, stub))
        return sql.SQL(" AND ").join(given)

    def null_key(self) -> sql.Composed:
        """A row if there is one with NULL in the key."""
        missing = [sql.SQL("{} IS NULL").format(sql.Identifier(column)) for column in self.plain.nullable]
        where = sql.SQL(" OR ").join(missing)
        return sql.SQL("SELECT 1 FROM ONLY {} WHERE {} LIMIT 1").format(self.plain.name.identifier, where)

    def create_stub(self) -> Statement:
        """Makes the root under its first name."""
        return _create(self.stub, self.columns, self.layout, self.plain)


def read_conversions(
    cursor: Cursor, tables: Sequence[Name], layout: str, key: Sequence[str], *, widen: bool
) -> list[Conversion]:
    """What converts these plain tables together; the caller has set full names."""
    return [_read(cursor, name, tables, layout, key, widen=widen) for name in tables]


def stub_name(root: Name) -> Name:
    """What the root is called until the swap."""
    return partition_name(Name(root.schema, f"{root.name}_root"), LEAF)


def lock_statements(conversions: Sequence[Conversion]) -> list[Statement]:
    """What keeps everybody out: tables before views, because a session that has read a view holds both."""
    lock = sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE")
    tables = [lock.format(conversion.plain.name.identifier) for conversion in conversions]
    return [*tables, *chain.from_iterable(conversion.locks for conversion in conversions)]


def swap_statements(conversions: Sequence[Conversion]) -> list[Statement]:
    """Of all tables together, in order."""
    return in_phases([conversion.phases for conversion in conversions])


def in_phases(tables: Sequence[tuple[tuple[Statement, ...], ...]]) -> list[Statement]:
    """Each phase for all tables before the next; what names several of the tables comes once."""
    found = (statement for phase in zip(*tables, strict=True) for statement in chain(*phase))
    return list({statement.as_string(None): statement for statement in found}.values())


_NAMES = """
SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = %s ORDER BY 1
"""
_STATISTICS = "SELECT stxnamespace::regnamespace::text, stxname FROM pg_statistic_ext WHERE stxrelid = %s ORDER BY 2"
_TAKEN = """
SELECT format('%%I.%%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = ANY(%s) ORDER BY 1
"""


def _read(
    cursor: Cursor, name: Name, together: Sequence[Name], layout: str, key: Sequence[str], *, widen: bool
) -> Conversion:
    leaf, stub = partition_name(name, LEAF), stub_name(name)
    plain = read_plain(cursor, name, layout, key, leaf.name)
    part: Part = KeyRange() if layout == RANGE else Leaf(1, 0)
    if plain.refusals:
        return Conversion(plain, leaf, stub, part, (), (), (), layout, (), (), (), (), (), plain.refusals, ())
    new_keys = [] if layout == WHOLE else new_keys_of(plain, leaf)
    kept = kept_keys(plain) if layout == WHOLE else []
    refusals = list(kept_refusals(cursor, plain, kept, widen=widen) if layout == WHOLE else ())
    refusals += narrow_keys(plain, new_keys, widen=widen) if layout != WHOLE else ()
    carried = read_carried(cursor, plain.oid, name, leaf, together, near_to=leaf, kept=kept)
    built = {new.name for new in new_keys} | {*kept}
    indexes = [index for (index,) in cursor.execute(_NAMES, (plain.oid,)) if index not in built]
    wanted = {leaf.name, *(index_name(index, name, leaf) for index in indexes)} - built
    taken = cursor.execute(_TAKEN, (name.schema, list(wanted)))
    refusals += [f"the name {other}, which the conversion of {name} needs, is taken: rename it" for (other,) in taken]
    going = {new.old.name for new in new_keys}
    staying = [index for index in indexes if index not in going]
    columns = tuple(_root_columns(cursor, plain, layout))
    parts = (*carried.owner, *_root_parts(cursor, plain, new_keys, kept), *carried.far_keys)
    sequences = new_sequences(cursor, plain.oid, name)
    schema = sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(name.schema))
    return Conversion(
        plain,
        leaf,
        stub,
        part,
        columns,
        tuple(
            c
            for c in table_parts.read_columns(cursor, plain.oid)
            if _draws(c) and (layout != WHOLE or c.name not in sequences.columns)
        ),
        tuple(_rules(cursor, plain)),
        layout,
        tuple(new_keys),
        carried.locks,
        (
            (*carried.before, *carried.sequences.aside),
            (*leaf_keys(plain, new_keys), *_strip(cursor, plain), *_renames(cursor, plain, leaf, stub, staying)),
            parts,
            (*carried.sequences.give, *carried.sequences.end),
            tuple(_attach(plain, leaf, part)),
            (*carried.after, *_close_leaf(cursor, plain, leaf)),
            carried.near_keys,
            carried.last,
        ),
        (schema, *sequences.before, _create(name, columns, layout, plain), *sequences.after, *parts, *carried.after),
        code_named(cursor, plain.oid),
        (*refusals, *carried.refusals),
        carried.names,
        sequences.columns,
    )


def _create(name: Name, columns: Sequence[ColumnPart], layout: str, plain: PlainTable) -> Statement:
    return sql.SQL("CREATE TABLE {} ({}) PARTITION BY {} ({})").format(
        name.identifier,
        sql.SQL(", ").join(column.clause() for column in columns),
        sql.SQL((HASH if layout == WHOLE else layout).upper()),
        sql.SQL(", ").join(sql.Identifier(column.name) for column in plain.key),
    )


def _draws(column: ColumnPart) -> bool:
    return bool(column.identity) or column.draws


def _root_columns(cursor: Cursor, plain: PlainTable, layout: str) -> Iterator[ColumnPart]:
    """The table's columns, with the key NOT NULL; an identity comes in the swap, with the sequence."""
    for column in table_parts.read_columns(cursor, plain.oid):
        named = column.not_null_name
        if column.name in plain.nullable and cursor.connection.info.server_version >= _NAMED_NOT_NULL:
            wanted = f"{plain.name.name}_{column.name}_not_null"
            named = wanted if len(wanted.encode()) <= MAX_BYTES else None
        key = layout != WHOLE and any(column.name == part.name for part in plain.key)
        yield replace(column, identity="", not_null=column.not_null or key, not_null_name=named)


def _strip(cursor: Cursor, plain: PlainTable) -> Iterator[Statement]:
    """Takes from the table what comes back with its root, or counts for the root alone."""
    table = plain.name.identifier
    for trigger in table_parts.read_triggers(cursor, plain.oid):
        yield sql.SQL("DROP TRIGGER {} ON {}").format(sql.Identifier(trigger.name), table)
    names, _, _ = table_parts.read_policies(cursor, plain.oid, plain.name)
    for name in names:
        yield sql.SQL("DROP POLICY {} ON {}").format(sql.Identifier(name), table)
    for rule in _rules(cursor, plain):
        yield sql.SQL("DROP RULE {} ON {}").format(sql.Identifier(rule), table)
    if plain.secured or plain.forced:
        yield sql.SQL("ALTER TABLE {} DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY").format(table)


def _rules(cursor: Cursor, plain: PlainTable) -> list[str]:
    rows = cursor.execute("SELECT rulename FROM pg_rewrite WHERE ev_class = %s ORDER BY 1", (plain.oid,))
    return [rule for (rule,) in rows]


def _renames(cursor: Cursor, plain: PlainTable, leaf: Name, stub: Name, indexes: Sequence[str]) -> Iterator[Statement]:
    name = plain.name
    for index in indexes:
        rename = sql.SQL("ALTER INDEX {} RENAME TO {}")
        yield rename.format(sql.Identifier(name.schema, index), sql.Identifier(index_name(index, name, leaf)))
    for schema, statistics in cursor.execute(_STATISTICS, (plain.oid,)).fetchall():
        rename = sql.SQL("ALTER STATISTICS {} RENAME TO {}")
        yield rename.format(sql.Identifier(schema, statistics), sql.Identifier(index_name(statistics, name, leaf)))
    yield sql.SQL("ALTER TABLE {} RENAME TO {}").format(name.identifier, sql.Identifier(leaf.name))
    yield sql.SQL("ALTER TABLE {} RENAME TO {}").format(stub.identifier, sql.Identifier(name.name))
    yield sql.SQL("COMMENT ON TABLE {} IS NULL").format(name.identifier)


def _root_parts(
    cursor: Cursor, plain: PlainTable, new_keys: Sequence[NewKey], kept: Sequence[str]
) -> Iterator[Statement]:
    name, oid = plain.name, plain.oid
    widened = {new.old.name for new in new_keys} | {*kept}
    built = {new.name for new in new_keys}
    yield from table_parts.read_storage(cursor, oid, name)
    for constraint, kind, statement in table_parts.read_constraints(cursor, oid, name):
        if kind != "f" and constraint != BOUND and constraint not in widened:
            yield statement
    for index, statement in table_parts.read_indexes(cursor, oid):
        if index not in widened and index not in built:
            yield statement
    for new in new_keys:
        yield new.on_root(name)
    yield from table_parts.read_statistics(cursor, oid)


def _attach(plain: PlainTable, leaf: Name, part: Part) -> Iterator[Statement]:
    attach = sql.SQL("ALTER TABLE {} ATTACH PARTITION {} ").format(plain.name.identifier, leaf.identifier)
    yield attach + for_values(plain.key, part)
    yield sql.SQL("ALTER TABLE {} DROP CONSTRAINT IF EXISTS {}").format(leaf.identifier, sql.Identifier(BOUND))


def _close_leaf(cursor: Cursor, plain: PlainTable, leaf: Name) -> Iterator[Statement]:
    """The root's grants and policies decide who sees rows; by the leaf's own name only its owner does."""
    roles = {grant.role for grant in table_parts.read_grants(cursor, plain.oid)} - {plain.owner}
    for role in sorted(roles, key=str):
        yield sql.SQL("REVOKE ALL ON {} FROM {} CASCADE").format(leaf.identifier, table_parts.grantee(role))
