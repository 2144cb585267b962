"""Applies to the new tables what has changed in the old ones since an import copied them, by the keys in their logs.

Each batch of keys is read from every old table, each in one snapshot; on every node of the new table the keys are taken
out and put in as they are, in one transaction, and compared there; then the log forgets them. A key that exists on two
nodes is left out, and its entries stay in the log, so that the last round finds it again. Called by `run`.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from psycopg import sql

from balancer.errors import Refused
from balancer.features.import_tables.plan import ImportedTable, ImportPlan
from balancer.features.import_tables.record import ImportSessions
from balancer.features.import_tables.statements import (
    RowKey,
    among_keys,
    belongs,
    compared_columns,
    compared_key,
    copy_keys,
    copy_pair,
    delete_keys,
    entries_without,
    forget_keys,
    keys_table,
    rows_of_keys,
    take_batch,
)
from balancer.naming import Name
from balancer.nodes.catalog.roots import Root, read_root
from balancer.nodes.session.connection import Connection, translated
from balancer.nodes.tablets import capture
from balancer.nodes.tablets.checksum import Compared
from balancer.nodes.tablets.copy import copy_rows
from balancer.nodes.tablets.object_names import log_name

BATCH: Final = 5000
"""Entries that are followed together."""


class Truncated(Refused):
    """An old table was truncated: the copy is worthless. It is copied again when the import is run again."""


@dataclass(frozen=True, slots=True)
class ImportFacts:
    """What one of the tables is, read before writers are refused; the seals check that it has not changed."""

    migration: str
    table: ImportedTable
    copied: tuple[str, ...]
    compared: tuple[Compared, ...]
    key: RowKey
    roots: Mapping[str, Root]
    """The new root on each node with an old table."""

    @property
    def log(self) -> sql.Composable:
        """Where its changes are."""
        return log_name(self.migration, self.table.index)


def read_facts(places: ImportSessions, migration: str, plan: ImportPlan) -> list[ImportFacts]:
    """Of all tables; the same on all nodes, or the import would not have begun."""
    return [_facts_of(places, migration, plan, table) for table in plan.tables]


def _facts_of(places: ImportSessions, migration: str, plan: ImportPlan, table: ImportedTable) -> ImportFacts:
    roots = {}
    for node in plan.sources:
        with translated(node), places.readers[node].cursor() as cursor:
            roots[node] = read_root(cursor, table.root)
            compared, copied = compared_columns(cursor, table.name)
            key = compared_key(cursor, table.name, table.row_key)
    return ImportFacts(migration, table, copied, compared, key, roots)


def follow_changes(
    places: ImportSessions, facts: Sequence[ImportFacts], plan: ImportPlan
) -> tuple[int, dict[Name, list[str]]]:
    """One round over all logs: how many entries were followed, and by table the keys that exist on two nodes."""
    total = 0
    twice: dict[Name, set[str]] = {}
    for one in facts:
        for source in plan.sources:
            count = BATCH
            while count >= BATCH:
                count, found = _follow_batch(places, one, plan, source)
                total += count
                if found:
                    twice.setdefault(one.table.name, set()).update(found)
    return total, {table: sorted(keys) for table, keys in twice.items()}


def _follow_batch(places: ImportSessions, facts: ImportFacts, plan: ImportPlan, source: str) -> tuple[int, list[str]]:
    table = facts.table
    with ExitStack() as stack:
        entries = _read_batch(stack, places, facts, plan, source)
        if not entries:
            return 0, []
        twice = _twice({node: _of_keys(places.readers[node], facts) for node in plan.sources})
        for node in plan.sources:
            forget_keys(places.readers[node], table.row_key, list(twice))
        for node in places.nodes:
            if plan.mine(node):
                _write_batch(places, facts, plan, source, node)
        done = entries_without(places.readers[source], facts.log, table.row_key, entries, list(twice))
    with places.transaction(source) as cursor:
        capture.forget(cursor, facts.migration, table.index, done)
    return len(done), [f"{text} on {' and '.join(nodes)}" for text, nodes in twice.items()]


def _read_batch(
    stack: ExitStack, places: ImportSessions, facts: ImportFacts, plan: ImportPlan, source: str
) -> list[int]:
    """Puts a batch's keys into a temporary table of each reader, which sees one snapshot until the stack is closed."""
    reader, table = places.readers[source], facts.table
    stack.enter_context(places.reading(source, [table.name], trusted=plan.trusts_owners))
    entries = take_batch(reader, facts.log, table.row_key, BATCH)
    if entries is None:
        raise Truncated(f"{table.name} on node {source} was truncated: run the import again, it copies all rows again")
    for node in plan.sources if entries else ():
        if node != source:
            other = stack.enter_context(places.reading(node, [table.name], trusted=plan.trusts_owners))
            other.execute(keys_table(table.name, table.row_key))
            copy_rows(reader, other, *copy_keys(table.row_key), _ignore, source_node=source)
    return entries


def _of_keys(reader: Connection, facts: ImportFacts) -> dict[str, int]:
    return rows_of_keys(reader, facts.table.name, facts.key, facts.compared, sql.SQL("true"))


def _twice(held: Mapping[str, Mapping[str, int]]) -> dict[str, list[str]]:
    """Keys that more than one node has, and those nodes."""
    found: dict[str, list[str]] = {}
    for node, rows in held.items():
        for text in rows:
            found.setdefault(text, []).append(node)
    return {text: nodes for text, nodes in found.items() if len(nodes) > 1}


def _write_batch(places: ImportSessions, facts: ImportFacts, plan: ImportPlan, source: str, node: str) -> None:
    """Makes one node's part of the new table equal the old tables for the keys of a batch, and compares it."""
    table, mine = facts.table, plan.mine(node)
    key = facts.key
    wanted: dict[str, int] = {}
    with places.transaction(node) as cursor:
        cursor.execute(keys_table(table.root, key.columns))
        copy_rows(places.readers[source], places.nodes[node], *copy_keys(key.columns), _ignore, source_node=source)
        delete_keys(cursor, table.root, key)
        for holder in plan.sources:
            here = belongs(facts.roots[holder], mine)
            found = rows_of_keys(places.readers[holder], table.name, key, facts.compared, here)
            if found:
                wanted |= found
                where = sql.SQL("{} AND ({})").format(among_keys(key), here)
                pair = copy_pair(table.name, table.root, facts.copied, where)
                copy_rows(places.readers[holder], places.nodes[node], *pair, _ignore, source_node=holder)
        if rows_of_keys(cursor, table.root, key, facts.compared, sql.SQL("true")) != wanted:
            raise Refused(f"rows of {table.root} on node {node} are not what the old tables have: nothing was switched")


def _ignore(_: int) -> None:
    """Nobody is told about single blocks."""
