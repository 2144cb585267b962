"""Makes a plain table the only leaf of a partitioned root of its name: what is built beforehand, and the swap.

Before, without keeping anybody out for long: the root under another name (the CHECK of a hash leaf names its oid), a
CHECK that spares ATTACH the scan, and unique indexes that contain the key. Then one transaction: the table gets the
leaf's name and the root the table's; what belongs to the table is made on the root from the texts that the catalog
printed, and removed from the leaf where it would count twice; the leaf is attached; what named the table now names the
root.

Foreign keys between tables that are converted together point to rows which the new root has only when its leaf is
attached. They go to the leaf unvalidated, are enforced at once, and reach the root when a scan alongside the writers
has validated them (`finishing`). The statements are read from the catalog twice, before and under the lock, and must be
the same. Called by `tables.convert`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from psycopg import sql

from balancer.nodes import table_parts
from balancer.nodes.bounds import KeyRange, Part, check_expression, for_values
from balancer.nodes.carried import read_carried
from balancer.nodes.catalog import HASH, RANGE, WHOLE
from balancer.nodes.connection import Cursor, Statement
from balancer.nodes.names import MAX_BYTES, Name, partition_name
from balancer.nodes.owned_sequences import new_sequences
from balancer.nodes.owners_code import code_named
from balancer.nodes.partition import index_name
from balancer.nodes.plain_table import BOUND, LEAF, PlainTable, read_plain
from balancer.nodes.table_parts import ColumnPart
from balancer.nodes.wider_keys import NewKey, kept_keys, kept_refusals, leaf_keys, narrow_keys, new_keys_of
from balancer.policies.hash_leaves import Leaf

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
