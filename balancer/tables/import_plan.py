"""What an import finds on the nodes, and everything that is in its way, before anything is touched.

The dry run is this and no more; an import begins with it. Only reads, except that the new roots are made and undone at
once, because only PostgreSQL can tell what they need.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from balancer.errors import Refused
from balancer.nodes.bounds import Part
from balancer.nodes.catalog import HASH, Root, read_root
from balancer.nodes.connection import Connection, Cursor, translated
from balancer.nodes.definition import make_roots, read_definition
from balancer.nodes.import_statements import LISTED, beside, duplicates, kind_of_table, make_root, obstacles, row_key
from balancer.nodes.names import Name
from balancer.nodes.owners_code import owners_code, owners_code_words
from balancer.nodes.plain_table import read_plain
from balancer.nodes.root_facts import differences, facts_on, full_names
from balancer.tables.adopt import TableRequest
from balancer.tables.layout import hash_parts, range_parts, spread


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """What an import would do."""

    table: Name
    sources: tuple[str, ...]
    """Nodes that have the plain table."""
    without: tuple[str, ...]
    parts: tuple[Part, ...]
    owners: tuple[str, ...]
    """The node of each part."""
    row_key: tuple[str, ...]

    @property
    def root(self) -> Name:
        """The new root until the switch."""
        return beside(self.table, "import")

    @property
    def before(self) -> Name:
        """The old table after it."""
        return beside(self.table, "before_import")

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
    """What would be done; raises `Refused` naming everything that is in the way. Changes nothing."""
    if len(request.roots) != 1:
        raise Refused(f"table {request.name} has {len(request.roots)} roots; an import takes one table at a time")
    table = request.roots[0]
    sources, without = _whereabouts(request, table, nodes)
    refusals = [text for node in sources for text in _obstacles(request, table, nodes[node], node)]
    if refusals:
        raise Refused(f"table {request.name} cannot be imported: {'; '.join(refusals)}")
    root = _tried(request, table, nodes, sources, without)
    parts = hash_parts(tablets) if root.layout == HASH else range_parts(root.key_types, splits)
    owners = spread(parts, weights)
    with nodes[sources[0]].cursor() as cursor:
        key = row_key(cursor, table, request.layout, request.key)
    return ImportPlan(table, tuple(sources), tuple(without), tuple(parts), tuple(owners), key)


def check_duplicates(plan: ImportPlan, readers: Mapping[str, Connection]) -> None:
    """Raises `Refused` with keys that stand on two nodes."""
    found = duplicates({node: readers[node] for node in plan.sources}, plan.table, plan.row_key)
    if found:
        raise Refused(duplicate_words(plan.table, found))


def duplicate_words(table: Name, found: Sequence[str]) -> str:
    """What an operator reads of keys that stand on two nodes."""
    more = ", and perhaps more" if len(found) >= LISTED else ""
    return (
        f"rows of {table} stand on two nodes with the same key: {'; '.join(found[:LISTED])}{more}; which of them counts"
        " only you can say: delete the others, and say it again"
    )


def _whereabouts(request: TableRequest, table: Name, nodes: Mapping[str, Connection]) -> tuple[list[str], list[str]]:
    sources: list[str] = []
    without: list[str] = []
    for node, connection in nodes.items():
        with translated(node), connection.cursor() as cursor:
            kind = kind_of_table(cursor, table)
            taken = [str(name) for name in (beside(table, "import"), beside(table, "before_import"))
                     if kind_of_table(cursor, name) is not None]  # fmt: skip
        if taken:
            raise Refused(f"node {node} has {taken[0]} already, a name that an import needs: rename or drop it")
        if kind == "p":
            raise Refused(f"{table} is partitioned on node {node}: take it over with `balancer table adopt`")
        (without if kind is None else sources).append(node)
    if not sources:
        raise Refused(f"table {request.name}: no node of the bundle has {table}")
    return sources, without


def _obstacles(request: TableRequest, table: Name, connection: Connection, node: str) -> list[str]:
    with translated(node), connection.transaction(), connection.cursor() as cursor, full_names(cursor):
        found = obstacles(cursor, table, request.layout, request.key)
        code = [] if found or request.trusts_owners else owners_code(cursor, [table])
        found += [owners_code_words(table, code)] if code else []
    return [f"on node {node} {text}" for text in found]


def _tried(
    request: TableRequest, table: Name, nodes: Mapping[str, Connection], sources: Sequence[str], without: Sequence[str]
) -> Root:
    """Makes the roots everywhere and undoes it; raises `Refused` where they would differ."""
    name = beside(table, "import")
    with ExitStack() as stack:
        facts = {}
        for node in sources:
            stack.enter_context(translated(node))
            stack.enter_context(nodes[node].transaction(force_rollback=True))
            with nodes[node].cursor() as cursor:
                make_root(cursor, table, name, request.layout, request.key)
            facts[node] = facts_on(nodes[node], [name])[name]
        home = sources[0]
        for node in sources[1:]:
            if wrong := list(differences(facts[home], facts[node], home, node)):
                raise Refused(f"{table} is not the same on all nodes: {wrong[0]}")
        with nodes[home].cursor() as cursor:
            root = read_root(cursor, name)
            definition = read_definition(cursor, root) if without else None
        for node in without:
            assert definition is not None, "read above"
            with (
                translated(node),
                nodes[node].transaction(force_rollback=True),
                nodes[node].cursor() as cursor,
            ):
                make_roots(cursor, [definition], trusted=request.trusts_owners)
    return root


def resumed_plan(
    cursor: Cursor, request: TableRequest, sources: Sequence[str], owners: Sequence[str], splits: Sequence[Any]
) -> ImportPlan:
    """The plan of an import that has begun, by what its first node has: the old table, under either of its names."""
    table = request.roots[0]
    old = table if kind_of_table(cursor, table) == "r" else beside(table, "before_import")
    types = [column.type for column in read_plain(cursor, old, request.layout, request.key, "").key]
    parts = hash_parts(len(owners)) if request.layout == HASH else range_parts(types, splits)
    if len(parts) != len(owners):
        raise Refused(
            f"the import of {request.name} began with {len(owners)} tablets, and the bundle's file now asks for"
            f" {len(parts)}: write it as it was, or say --cancel"
        )
    key = row_key(cursor, old, request.layout, request.key)
    return ImportPlan(table, tuple(sources), (), tuple(parts), tuple(owners), key)
