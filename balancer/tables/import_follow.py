"""What has changed in the old tables since an import has copied them, by the keys in their logs, follows in the new.

Each batch of keys is read from every old table, each in one snapshot; on every node of the new table the keys are taken
out and put in as they are, in one transaction, and compared there; then the log forgets them. A key that stands on two
nodes is left out, and its entries stay in the log, so that the last round finds it again. Called by `importing`.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from psycopg import sql

from balancer.errors import Refused
from balancer.nodes import capture
from balancer.nodes.catalog import Root, read_root
from balancer.nodes.checksum import Compared
from balancer.nodes.connection import Connection, translated
from balancer.nodes.copy import copy_rows
from balancer.nodes.import_statements import (
    among_keys,
    belongs,
    compared_columns,
    copy_keys,
    copy_pair,
    delete_keys,
    entries_without,
    forget_keys,
    keys_table,
    rows_of_keys,
    take_batch,
)
from balancer.tables.import_plan import ImportPlan
from balancer.tables.import_sessions import ImportSessions

BATCH: Final = 5000
"""Entries that follow at once."""


class Truncated(Refused):
    """An old table was truncated: what was copied is worth nothing. It is copied again when the import is run again."""


@dataclass(frozen=True, slots=True)
class ImportFacts:
    """What the tables are, read before writers are refused; whether they still are is looked at under the seals."""

    copied: tuple[str, ...]
    compared: tuple[Compared, ...]
    roots: Mapping[str, Root]
    """The new root on each node with an old table."""


def read_facts(places: ImportSessions, plan: ImportPlan) -> ImportFacts:
    """The same on all nodes, or the import would not have begun."""
    roots = {}
    for node in plan.sources:
        with translated(node), places.readers[node].cursor() as cursor:
            roots[node] = read_root(cursor, plan.root)
            compared, copied = compared_columns(cursor, plan.table)
    return ImportFacts(copied, compared, roots)


def follow_changes(
    places: ImportSessions, facts: ImportFacts, migration: str, plan: ImportPlan
) -> tuple[int, list[str]]:
    """One round over all logs: how many entries were followed, and the keys that stand on two nodes."""
    total = 0
    twice: set[str] = set()
    for source in plan.sources:
        count = BATCH
        while count >= BATCH:
            count, found = _follow_batch(places, facts, migration, plan, source)
            total += count
            twice |= {*found}
    return total, sorted(twice)


def _follow_batch(
    places: ImportSessions, facts: ImportFacts, migration: str, plan: ImportPlan, source: str
) -> tuple[int, list[str]]:
    with ExitStack() as stack:
        entries = _read_batch(stack, places, migration, plan, source)
        if not entries:
            return 0, []
        twice = _twice({node: _of_keys(places.readers[node], facts, plan) for node in plan.sources})
        for node in plan.sources:
            forget_keys(places.readers[node], plan.row_key, list(twice))
        for node in places.nodes:
            if plan.mine(node):
                _write_batch(places, facts, plan, source, node)
        done = entries_without(places.readers[source], migration, plan.row_key, entries, list(twice))
    with places.transaction(source) as cursor:
        capture.forget(cursor, migration, 0, done)
    return len(done), [f"{text} on {' and '.join(nodes)}" for text, nodes in twice.items()]


def _read_batch(stack: ExitStack, places: ImportSessions, migration: str, plan: ImportPlan, source: str) -> list[int]:
    """The keys of a batch into a temporary table of each reader, which sees one snapshot until the stack is closed."""
    reader = places.readers[source]
    stack.enter_context(_one_snapshot(source, reader))
    entries = take_batch(reader, migration, plan.row_key, BATCH)
    if entries is None:
        raise Truncated(f"{plan.table} on node {source} was truncated: run the import again, it copies all rows again")
    for node in plan.sources if entries else ():
        if node != source:
            other = places.readers[node]
            stack.enter_context(_one_snapshot(node, other))
            other.execute(keys_table(plan.table, plan.row_key))
            copy_rows(reader, other, *copy_keys(plan.row_key), _ignore, source_node=source)
    return entries


@contextmanager
def _one_snapshot(node: str, reader: Connection) -> Iterator[None]:
    with translated(node):
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        try:
            yield
        finally:
            if not reader.closed:
                reader.rollback()


def _of_keys(reader: Connection, facts: ImportFacts, plan: ImportPlan) -> dict[str, int]:
    return rows_of_keys(reader, plan.table, plan.row_key, facts.compared, sql.SQL("true"))


def _twice(held: Mapping[str, Mapping[str, int]]) -> dict[str, list[str]]:
    """Keys that more than one node has, and those nodes."""
    found: dict[str, list[str]] = {}
    for node, rows in held.items():
        for text in rows:
            found.setdefault(text, []).append(node)
    return {text: nodes for text, nodes in found.items() if len(nodes) > 1}


def _write_batch(places: ImportSessions, facts: ImportFacts, plan: ImportPlan, source: str, node: str) -> None:
    """Makes one node's part of the new table, for the keys of a batch, what the old tables are; and compares it."""
    key, mine = plan.row_key, plan.mine(node)
    wanted: dict[str, int] = {}
    with places.transaction(node) as cursor:
        cursor.execute(keys_table(plan.root, key))
        copy_rows(places.readers[source], places.nodes[node], *copy_keys(key), _ignore, source_node=source)
        delete_keys(cursor, plan.root, key)
        for holder in plan.sources:
            here = belongs(facts.roots[holder], mine)
            found = rows_of_keys(places.readers[holder], plan.table, key, facts.compared, here)
            if found:
                wanted |= found
                where = sql.SQL("{} AND ({})").format(among_keys(key), here)
                pair = copy_pair(plan.table, plan.root, facts.copied, where)
                copy_rows(places.readers[holder], places.nodes[node], *pair, _ignore, source_node=holder)
        if rows_of_keys(cursor, plan.root, key, facts.compared, sql.SQL("true")) != wanted:
            raise Refused(f"rows of {plan.root} on node {node} are not what the old tables have: nothing was switched")


def _ignore(_: int) -> None:
    """Nobody is told of single blocks."""
