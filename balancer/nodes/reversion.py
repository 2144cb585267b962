"""Makes a root with one leaf a plain table again: the swap of a conversion, in reverse.

The leaf is detached and gets the root's name; what the root carried is made on it from the texts that the catalog
printed, and its indexes get the names of the root's. The empty root stays under its first name until materialised views
that read it are replaced; then it is dropped. Foreign keys between tables that go back together are validated after the
swap, alongside the writers. Called by `tables.unconvert`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from psycopg import sql

from balancer.errors import Refused
from balancer.nodes import table_parts
from balancer.nodes.carried import read_carried
from balancer.nodes.catalog import read_partitions, read_root
from balancer.nodes.connection import Cursor, Statement
from balancer.nodes.conversion import in_phases, stub_name
from balancer.nodes.dependents import read_dependents
from balancer.nodes.materialised import pending_shells, shell_name
from balancer.nodes.names import Name
from balancer.nodes.near_keys import read_near_keys
from balancer.nodes.partition import index_name
from balancer.nodes.preparation import mark_stub


@dataclass(frozen=True, slots=True)
class Reversion:
    """One root of those that go back together."""

    root: Name
    leaf: Name
    locks: tuple[Statement, ...]
    phases: tuple[tuple[Statement, ...], ...]
    refusals: tuple[str, ...]


def lock_reversions(reversions: Sequence[Reversion]) -> list[Statement]:
    """What keeps everybody out: roots before leaves, tables before views, as in a conversion."""
    lock = sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE")  # the leaf with it
    roots = [lock.format(reversion.root.identifier) for reversion in reversions]
    return [*roots, *chain.from_iterable(reversion.locks for reversion in reversions)]


def revert_statements(reversions: Sequence[Reversion]) -> list[Statement]:
    """Of all roots together, in order."""
    return in_phases([reversion.phases for reversion in reversions])


_INDEXES = """
SELECT p.relname, c.relname FROM pg_index i JOIN pg_class p ON p.oid = i.indexrelid
JOIN pg_inherits h ON h.inhparent = p.oid JOIN pg_class c ON c.oid = h.inhrelid
JOIN pg_index x ON x.indexrelid = c.oid AND x.indrelid = %s
WHERE i.indrelid = %s ORDER BY 1
"""
_STATISTICS = "SELECT stxnamespace::regnamespace::text, stxname FROM pg_statistic_ext WHERE stxrelid = %s ORDER BY 2"


def read_reversions(cursor: Cursor, roots: Sequence[Name], *, whole: bool = False) -> list[Reversion]:
    """What makes these roots plain tables together; the caller has set full names."""
    return [_read(cursor, name, roots, whole) for name in roots]


def _read(cursor: Cursor, name: Name, together: Sequence[Name], whole: bool) -> Reversion:
    root = read_root(cursor, name, whole=whole)
    partitions = read_partitions(cursor, root)
    if len(partitions) != 1:
        raise Refused(f"{name} has {len(partitions)} partitions: only a table with one can become a plain one again")
    leaf, stub = partitions[0], stub_name(name)
    # From an unfinished conversion: views that still read the leaf, and its foreign keys.
    shells = [shell_name(view) for view in pending_shells(cursor, [leaf.name])]
    waiting = read_near_keys(cursor, [leaf.name], together)
    carried = read_carried(cursor, root.oid, name, stub, together, near_to=name, other=leaf.oid, going=shells)
    forwarded = [text for text in read_dependents(cursor, leaf.oid, leaf.name).refusals if "forward --off" in text]
    drop = sql.SQL("DROP MATERIALIZED VIEW {}")
    detach = sql.SQL("ALTER TABLE {} DETACH PARTITION {}").format(name.identifier, leaf.name.identifier)
    return Reversion(
        name,
        leaf.name,
        carried.locks,
        (
            (
                *carried.before,
                *(key.drop() for key in waiting),
                *(drop.format(shell.identifier) for shell in shells),
                *carried.sequences.aside,
            ),
            (detach, *_renames(cursor, root.oid, leaf.oid, name, leaf.name)),
            (*carried.owner, *carried.sequences.give),
            carried.after,
            (*carried.near_keys, *(statement for key in waiting for statement in key.give(name, valid=False))),
            (*carried.last, mark_stub(name)),
        ),
        (*carried.refusals, *forwarded),
    )


def _renames(cursor: Cursor, root: int, leaf: int, name: Name, leaf_name: Name) -> Iterator[Statement]:
    """First the root's names are moved aside, then the leaf's take them."""
    stub = stub_name(name)
    rename = sql.SQL("ALTER {} {} RENAME TO {}")
    index, statistics, table = sql.SQL("INDEX"), sql.SQL("STATISTICS"), sql.SQL("TABLE")
    for mine, theirs in cursor.execute(_INDEXES, (leaf, root)).fetchall():
        aside = sql.Identifier(index_name(mine, name, stub))
        yield rename.format(index, sql.Identifier(name.schema, mine), aside)
        yield rename.format(index, sql.Identifier(name.schema, theirs), sql.Identifier(mine))
    kept = cursor.execute(_STATISTICS, (leaf,)).fetchall()
    missing = []
    for schema, mine in cursor.execute(_STATISTICS, (root,)).fetchall():
        theirs = index_name(mine, name, leaf_name)
        yield rename.format(statistics, sql.Identifier(schema, mine), sql.Identifier(index_name(mine, name, stub)))
        if (schema, theirs) in kept:
            yield rename.format(statistics, sql.Identifier(schema, theirs), sql.Identifier(mine))
        else:
            missing.append(mine)
    yield rename.format(table, name.identifier, sql.Identifier(stub.name))
    yield rename.format(table, leaf_name.identifier, sql.Identifier(name.name))
    if missing:
        yield from table_parts.read_statistics(cursor, root, missing)
