"""What the nodes of a bundle hold of one table: read from all of them, compared, and combined into one finding.

Only reads. Every refusal names the node and the object that is in the way.

Whether what was found on all nodes covers a table's key space exactly once. Pure; a refusal names partitions.

Adoption and creation ask it before the directory does, because only here are the partitions' names known.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise

from balancer.errors import Refused
from balancer.naming import Name
from balancer.nodes.catalog.bounds import KeyColumn, KeyRange, Part, show_part
from balancer.nodes.catalog.findings import column_warnings
from balancer.nodes.catalog.foreign_keys import check_outside_keys
from balancer.nodes.catalog.owners_code import owners_findings
from balancer.nodes.catalog.roots import Facts, Partition, Root, differences, find_root, read_facts, read_partitions
from balancer.nodes.session.connection import Connection, Cursor
from balancer.policies.keyspace.hash_leaves import POSITIONS, Leaf
from balancer.policies.keyspace.keys import HIGHEST, LOWEST


@dataclass(frozen=True, slots=True)
class FoundTablet:
    """A part of the key space on a node, with one partition per root."""

    node: str
    part: Part
    partitions: tuple[Name, ...]

    def __str__(self) -> str:
        return f"{self.partitions[0]} on node {self.node}"


def in_key_order(tablets: Sequence[FoundTablet]) -> list[FoundTablet]:
    """Ranges by their lower bound, leaves by their position."""
    return sorted(tablets, key=lambda tablet: _interval(tablet.part)[0])


def check_coverage(table: str, columns: Sequence[KeyColumn], tablets: Sequence[FoundTablet]) -> None:
    """Raises `Refused` for the first gap or overlap in key order."""
    if not tablets:
        raise Refused(f"table {table} has no partitions on any node: make them with `balancer table create`")
    ordered = in_key_order(tablets)
    hashed = isinstance(ordered[0].part, Leaf)
    at: bytes | int = 0 if hashed else LOWEST
    before: FoundTablet | None = None
    for tablet in ordered:
        start, end = _interval(tablet.part)
        if before is not None and start < at:  # type: ignore[operator]  # both are positions, or both are keys
            raise Refused(f"table {table}: {before} and {tablet} overlap; every key needs exactly one owner")
        if start != at:
            raise Refused(f"table {table} leaves a gap {_gap(before, tablet)}; {_remedy(columns, at, start)}")
        at, before = end, tablet
    last: bytes | int = POSITIONS if hashed else HIGHEST
    if at != last:
        raise Refused(f"table {table} leaves a gap {_gap(before, None)}; {_remedy(columns, at, last)}")


def overlap(first: Part, second: Part) -> bool:
    """Whether two parts of one key space have a key in common."""
    (start, end), (other_start, other_end) = _interval(first), _interval(second)
    return start < other_end and other_start < end  # type: ignore[operator]  # both are positions, or both are keys


def _interval(part: Part) -> tuple[bytes | int, bytes | int]:
    if isinstance(part, Leaf):
        return part.start(), part.start() + part.width()
    return part.lower, part.upper


def _gap(before: FoundTablet | None, after: FoundTablet | None) -> str:
    if before is not None and after is not None:
        return f"between {before} and {after}"
    return f"before {after}" if after is not None else f"after {before}"


def _remedy(columns: Sequence[KeyColumn], start: bytes | int, end: bytes | int) -> str:
    if isinstance(start, bytes) and isinstance(end, bytes):
        return f"make a partition {show_part(columns, KeyRange(start, end))} on one of the nodes"
    return "every remainder of the modulus needs a partition on one of the nodes"


@dataclass(frozen=True, slots=True)
class Found:
    """A table as the nodes have it: its roots (as the first node has them), its tablets, nodes without the roots."""

    table: str
    roots: tuple[Root, ...]
    tablets: tuple[FoundTablet, ...]
    home: str
    """A node that has the roots."""
    without: tuple[str, ...] = ()
    """Nodes that do not have them yet."""
    notes: tuple[str, ...] = ()
    whole: bool = False


@dataclass(frozen=True, slots=True)
class _Holding:
    node: str
    roots: tuple[Root, ...]
    tablets: tuple[FoundTablet, ...]
    notes: tuple[str, ...]
    facts: Mapping[Name, Facts]


def survey(
    table: str,
    roots: Sequence[Name],
    nodes: Mapping[str, Connection],
    others: Set[Name] = frozenset(),
    *,
    trusts_owners: bool = False,
    whole: bool = False,
) -> Found:
    """Reads the table on every node. Raises `Refused` for what cannot be balanced. `others`: roots of other tables.

    If it uses code of its owners, who are not trusted, that is only a note: its tablets can be owned, but not moved.
    """
    holdings = []
    without = []
    for node, connection in nodes.items():
        with connection.transaction(), connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            holding = _read_node(cursor, table, node, roots, others, whole=whole)
            if holding is not None and not trusts_owners:
                code = tuple(f"node {node}: {text}" for _, text in owners_findings(cursor, roots))
                holding = replace(holding, notes=(*holding.notes, *code))
        if holding is None:
            without.append(node)
        else:
            holdings.append(holding)
    if not holdings:
        names = ", ".join(map(str, roots))
        raise Refused(
            f"table {table}: no node of the bundle has {names}; `table create --definition FILE` makes a new table"
        )
    first = holdings[0]
    for other in holdings[1:]:
        _check_alike(table, first, other)
    return Found(
        table,
        first.roots,
        tuple(tablet for holding in holdings for tablet in holding.tablets),
        first.node,
        tuple(without),
        tuple(note for holding in holdings for note in holding.notes),
        whole,
    )


def _read_node(
    cursor: Cursor, table: str, node: str, names: Sequence[Name], others: Set[Name], *, whole: bool
) -> _Holding | None:
    try:
        roots = read_roots(cursor, names, whole=whole)
        if not roots:
            return None
        partitions = [read_partitions(cursor, root) for root in roots]
        tablets = tuple(_join(node, roots, partitions))
        check_outside_keys(cursor, names, () if whole else [column.name for column in roots[0].columns], others)
    except Refused as error:
        raise Refused(f"table {table} on node {node}: {error}") from error
    unlogged = [str(partition.name) for group in partitions for partition in group if partition.unlogged]
    notes = [f"node {node}: {', '.join(unlogged)} is unlogged: it cannot be moved"] if unlogged else []
    notes += [f"node {node}: {text}" for text in column_warnings(cursor, names)]
    return _Holding(node, roots, tablets, tuple(notes), {root.name: read_facts(cursor, root.name) for root in roots})


def read_roots(cursor: Cursor, names: Sequence[Name], *, whole: bool = False) -> tuple[Root, ...]:
    """All of the roots or none of them, with one key; each of a whole table is partitioned by one column of its own."""
    found = {name: find_root(cursor, name, whole=whole) for name in names}
    roots = tuple(root for root in found.values() if root is not None)
    for name, root in found.items():
        if root is None and roots:
            raise Refused(f"{roots[0].name} is there, but {name} is not; colocated roots live together")
    for root in roots if whole else ():
        if len(root.columns) != 1:
            raise Refused(f"{root.name} is {_show(root)}; a root of a whole table is partitioned by one column")
    if not whole:
        _check_same_key(roots)
    return roots


def _check_same_key(roots: Sequence[Root]) -> None:
    for first, root in pairwise(roots):
        if _key(root) != _key(first):
            raise Refused(
                f"{root.name} is {_show(root)}, but {first.name} is {_show(first)}: colocated roots share a key"
            )


def _join(node: str, roots: Sequence[Root], partitions: Sequence[Sequence[Partition]]) -> list[FoundTablet]:
    """One tablet per part; each root must have a partition for each."""
    by_part = [{partition.part: partition for partition in group} for group in partitions]
    for root, mine in zip(roots, by_part, strict=True):
        for part, partition in mine.items():
            if partition.name.schema != root.name.schema:
                raise Refused(f"partition {partition.name} is not in the schema of its root {root.name}")
            for other, theirs in zip(roots, by_part, strict=True):
                if part not in theirs:
                    raise Refused(f"partition {partition.name} has no counterpart with the same bound in {other.name}")
    return [FoundTablet(node, part, tuple(mine[part].name for mine in by_part)) for part in by_part[0]]


def _check_alike(table: str, first: _Holding, other: _Holding) -> None:
    for mine, theirs in zip(first.roots, other.roots, strict=True):
        if _key(mine) != _key(theirs):
            raise Refused(
                f"table {table}: {mine.name} is {_show(mine)} on node {first.node}, but {_show(theirs)} on {other.node}"
            )
        found = differences(first.facts[mine.name], other.facts[mine.name], f"node {first.node}", other.node)
        if found:
            raise Refused(f"table {table}: {mine.name} differs between the nodes: {'; '.join(found)}")


def _key(root: Root) -> tuple[object, ...]:
    return root.layout, *((column.name, column.type) for column in root.columns)


def _show(root: Root) -> str:
    return f"{root.layout} by ({', '.join(f'{column.name} {column.type}' for column in root.columns)})"
