"""What an import finds on the nodes, and everything that is in its way, before anything is touched.

The dry run is this and no more; an import begins with it. Only reads, except that the new roots are made and rolled
back at once, because only PostgreSQL can tell what they need.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from balancer.errors import Refused
from balancer.features.convert.plain_table import read_plain
from balancer.features.import_tables.names import (
    Elsewhere,
    Taking,
    read_definitions,
    read_elsewhere,
    take_names,
    take_names_elsewhere,
)
from balancer.features.import_tables.statements import (
    LISTED,
    duplicates,
    keep_to_us,
    kind_of_table,
    make_root,
    obstacles,
    row_key,
)
from balancer.features.tables.adopt import TableRequest
from balancer.features.tables.create import hash_parts, range_parts, spread
from balancer.naming import Name
from balancer.nodes.catalog.bounds import Part
from balancer.nodes.catalog.foreign_keys import outside_keys
from balancer.nodes.catalog.owners_code import owners_code, owners_code_words
from balancer.nodes.catalog.roots import HASH, Facts, Root, differences, facts_on, full_names, read_root
from balancer.nodes.catalog.sequences import read_drawn
from balancer.nodes.definitions.root import Definition, make_roots
from balancer.nodes.session.connection import Connection, Cursor, translated


@dataclass(frozen=True, slots=True)
class ImportedTable:
    """One of the tables that are imported together."""

    name: Name
    index: int
    """Its place among them, and the number of its log."""
    row_key: tuple[str, ...]

    @property
    def root(self) -> Name:
        """The new root until the switch."""
        return Taking(self.name).root

    @property
    def before(self) -> Name:
        """The old table after it."""
        return Taking(self.name).before


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """What an import would do."""

    tables: tuple[ImportedTable, ...]
    sources: tuple[str, ...]
    """Nodes that have the plain tables."""
    without: tuple[str, ...]
    parts: tuple[Part, ...]
    owners: tuple[str, ...]
    """The node of each part."""
    numbered: bool = False
    """Whether columns draw from sequences."""
    trusts_owners: bool = False
    """Whether the tables' owners may have code run with our rights."""

    @property
    def names(self) -> list[Name]:
        """Of the tables."""
        return [table.name for table in self.tables]

    @property
    def words(self) -> str:
        """The tables, for people."""
        return ", ".join(map(str, self.names))

    def mine(self, node: str) -> list[Part]:
        """The parts that a node will own."""
        return [part for part, owner in zip(self.parts, self.owners, strict=True) if owner == node]


def plan_import(
    request: TableRequest,
    nodes: Mapping[str, Connection],
    weights: Mapping[str, float],
    *,
    tablets: int,
    splits: Sequence[Any] = (),
) -> ImportPlan:
    """What would be done; raises `Refused` naming everything that is in the way. Changes nothing.

    The end is rehearsed on every node and rolled back: writers wait briefly for that.
    """
    sources, without = _whereabouts(request, nodes)
    refusals = [text for node in sources for text in _obstacles(request, nodes[node], node)]
    if refusals:
        raise Refused(f"table {request.name} cannot be imported: {'; '.join(dict.fromkeys(refusals))}")
    root = _rehearsed(request, nodes, sources, without)
    parts = hash_parts(tablets) if root.layout == HASH else range_parts(root.key_types, splits)
    owners = spread(parts, weights)
    with nodes[sources[0]].cursor() as cursor:
        tables = _tables(cursor, request, request.roots)
        numbered = bool(read_drawn(cursor, request.roots))
    return ImportPlan(
        tables, tuple(sources), tuple(without), tuple(parts), tuple(owners), numbered, request.trusts_owners
    )


def _tables(cursor: Cursor, request: TableRequest, present: Sequence[Name]) -> tuple[ImportedTable, ...]:
    """`present`: what the plain tables are called at the moment."""
    return tuple(
        ImportedTable(name, index, row_key(cursor, now, request.layout, request.key))
        for index, (name, now) in enumerate(zip(request.roots, present, strict=True))
    )


def check_duplicates(plan: ImportPlan, readers: Mapping[str, Connection]) -> None:
    """Raises `Refused` with keys that exist on two nodes."""
    for table in plan.tables:
        sources = {node: readers[node] for node in plan.sources}
        found = duplicates(sources, table.name, table.row_key, trusted=plan.trusts_owners)
        if found:
            raise Refused(duplicate_words(table.name, found))


def duplicate_words(table: Name, found: Sequence[str]) -> str:
    """What an operator reads about keys that exist on two nodes."""
    more = ", and perhaps more" if len(found) >= LISTED else ""
    return (
        f"rows of {table} are on two nodes with the same key: {'; '.join(found[:LISTED])}{more}; only you can say"
        " which of them counts: delete the others, and run it again"
    )


def _whereabouts(request: TableRequest, nodes: Mapping[str, Connection]) -> tuple[list[str], list[str]]:
    sources: list[str] = []
    without: list[str] = []
    for node, connection in nodes.items():
        with translated(node), connection.cursor() as cursor:
            kinds = {table: kind_of_table(cursor, table) for table in request.roots}
            needed = [name for table in request.roots for name in (Taking(table).root, Taking(table).before)]
            taken = [str(name) for name in needed if kind_of_table(cursor, name) is not None]
        if taken:
            raise Refused(f"node {node} has {taken[0]} already, a name that an import needs: rename or drop it")
        for table, kind in kinds.items():
            if kind == "p":
                raise Refused(f"{table} is partitioned on node {node}: take it over with `balancer table adopt`")
        there = [table for table, kind in kinds.items() if kind is not None]
        absent = [table for table, kind in kinds.items() if kind is None]
        if there and absent:
            raise Refused(f"node {node} has {there[0]} and not {absent[0]}: make it there, empty, or leave it out")
        (sources if there else without).append(node)
    if not sources:
        raise Refused(f"table {request.name}: no node of the bundle has {request.roots[0]}")
    return sources, without


def _obstacles(request: TableRequest, connection: Connection, node: str) -> list[str]:
    found: list[str] = []
    with translated(node), connection.transaction(), connection.cursor() as cursor, full_names(cursor):
        for table in request.roots:
            found += obstacles(
                cursor, table, request.roots, request.layout, request.key, spreads=request.spreads_sequences
            )
        if not found:
            found += outside_keys(cursor, request.roots, request.key, request.others)
        code = [] if found or request.trusts_owners else owners_code(cursor, request.roots)
        found += [owners_code_words(request.roots[0], code)] if code else []
    return [f"on node {node} {text}" for text in found]


def _rehearsed(
    request: TableRequest, nodes: Mapping[str, Connection], sources: Sequence[str], without: Sequence[str]
) -> Root:
    """Goes through it with empty roots on each node and rolls back; raises `Refused` if the roots would differ.

    Only PostgreSQL can tell what roots, triggers, policies and views need; after the commit it would be too late.
    """
    together = [Taking(table) for table in request.roots]
    facts: dict[str, dict[Name, Facts]] = {}
    definitions: list[Definition] = []
    given: Elsewhere | None = None
    first: Root | None = None
    for node in sources:
        with _undone(nodes[node], node) as cursor:
            for one in together:
                make_root(cursor, one.table, one.root, request.layout, request.key)
            if first is None:
                first = read_root(cursor, together[0].root)
                definitions = read_definitions(cursor, together) if without else []
                with full_names(cursor):
                    given = read_elsewhere(cursor, together)
            with full_names(cursor):
                take_names(cursor, together, lambda: None)
            facts[node] = facts_on(nodes[node], request.roots)
    for node in without:
        assert given is not None, "a source came before"
        with _undone(nodes[node], node) as cursor:
            make_roots(cursor, definitions, trusted=request.trusts_owners)
            for one in together:
                keep_to_us(cursor, one.root)
            with full_names(cursor):
                take_names_elsewhere(cursor, together, given)
            facts[node] = facts_on(nodes[node], request.roots)
    home, *others = facts
    for node in others:
        for table in request.roots:
            if wrong := differences(facts[home][table], facts[node][table], home, node):
                raise Refused(f"{table} is not the same on all nodes: {wrong[0]}")
    assert first is not None, "a source came before"
    return first


@contextmanager
def _undone(connection: Connection, node: str) -> Iterator[Cursor]:
    with translated(node), connection.transaction(force_rollback=True), connection.cursor() as cursor:
        yield cursor


def resumed_plan(
    cursor: Cursor, request: TableRequest, sources: Sequence[str], owners: Sequence[str], splits: Sequence[Any]
) -> ImportPlan:
    """The plan of a begun import, from what its first node has: the old tables, under either of their names."""
    switched = kind_of_table(cursor, request.roots[0]) != "r"
    present = [Taking(table).before if switched else table for table in request.roots]
    types = [column.type for column in read_plain(cursor, present[0], request.layout, request.key, "").key]
    parts = hash_parts(len(owners)) if request.layout == HASH else range_parts(types, splits)
    if len(parts) != len(owners):
        raise Refused(
            f"the import of {request.name} began with {len(owners)} tablets, and the bundle's file now asks for"
            f" {len(parts)}: write it as it was, or say --cancel"
        )
    tables = _tables(cursor, request, present)
    numbered = bool(read_drawn(cursor, request.roots))
    return ImportPlan(tables, tuple(sources), (), tuple(parts), tuple(owners), numbered, request.trusts_owners)
