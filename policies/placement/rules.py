"""Tablets by kind: those of one kind belong to one table and are named by the same rules. Which nodes each may use.

`problem` asks when it builds a problem; `rules` asks which tablets lie across the bounds of a rule. Bounds are
found by bisection, so rules cost next to nothing; without any, a kind is a table.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from balancer.policies.keyspace.keys import HIGHEST, KeyMismatch, encode_key, parse_value
from balancer.policies.options import Apart, BundleOptions, PlacementRule
from balancer.policies.view import BundleView, Floats, Ints, NodeCondition, NodeView, TableView

Bools = npt.NDArray[np.bool_]
MOST_RULES = 40
"""Of one bundle."""


class TabletPlaces(NamedTuple):
    """Where tablets are, in the order of a problem: rows of the view, tables, owners with what is in flight, bytes."""

    rows: Ints
    tables: Ints
    home: Ints
    sizes: Floats


class Named(NamedTuple):
    """The tablets of one table that a rule names: rows of the view, and the rows that lie across one of its bounds."""

    first: int
    last: int
    straddling: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class TabletKinds:
    """What `Problem` has of it."""

    of: Ints  # T
    allowed: Bools  # kinds×N
    rivals: Bools | None  # kinds×kinds


def tablet_kinds(
    view: BundleView, options: BundleOptions, nodes: tuple[NodeView, ...], lie: TabletPlaces
) -> TabletKinds:
    """The kinds of a bundle's tablets."""
    zoned = _zones(view, options, nodes)
    if not options.rules:
        return TabletKinds(lie.tables, zoned, None)
    masks = np.zeros(len(view.tablets), dtype=np.int64)
    for bit, rule in enumerate(options.rules):
        for part in named_by(view, rule):
            masks[part.first : part.last] |= 1 << bit
    codes, of = np.unique(lie.tables << MOST_RULES | masks[lie.rows], return_inverse=True)
    mine = [[rule for bit, rule in enumerate(options.rules) if int(code) >> bit & 1] for code in codes]
    tables = (codes >> MOST_RULES).astype(np.int64)
    allowed = np.array(
        [zoned[table] & _permitted(rules, nodes) for table, rules in zip(tables, mine, strict=True)], dtype=np.bool_
    ).reshape(len(codes), len(nodes))
    for rule in options.rules:
        if rule.together:
            _anchor(allowed, np.array([rule in rules for rules in mine], dtype=np.bool_), of, lie, nodes)
    return TabletKinds(of.astype(np.int64), allowed, _rivals(tables, mine))


def named_by(view: BundleView, rule: PlacementRule) -> Iterator[Named]:
    """The tablets that a rule names, table by table; none of a table whose keys have other types."""
    for table in view.tables:
        if table.name in rule.tables:
            if not rule.has_keys:
                yield Named(table.first, table.last, ())
            elif not table.hash:
                try:
                    lower, upper = rule_bounds(rule, table)
                except KeyMismatch:
                    continue
                if lower < upper:
                    yield _between(view, table, lower, upper)


def rule_bounds(rule: PlacementRule, table: TableView) -> tuple[bytes, bytes]:
    """The first key of a table that a rule is about, and the first that it is not; `KeyMismatch`: not of its types."""
    if rule.key:
        if len(rule.key) >= len(table.key_types):
            raise KeyMismatch(
                f"it has {len(rule.key)} values: fewer than the {len(table.key_types)} columns of the key"
            )
        first = _encoded(rule.key, table)
        return first, first + HIGHEST
    return (
        _encoded(rule.keys_from, table) if rule.keys_from else b"",
        _encoded(rule.keys_to, table) if rule.keys_to else HIGHEST,
    )


def _encoded(values: tuple[str | int, ...], table: TableView) -> bytes:
    if len(values) > len(table.key_types):
        raise KeyMismatch(f"it has {len(values)} values and the key {len(table.key_types)} columns")
    parsed = [parse_value(kind, str(value)) for kind, value in zip(table.key_types, values, strict=False)]
    return encode_key(table.key_types, parsed, prefix=True)


def _between(view: BundleView, table: TableView, lower: bytes, upper: bytes) -> Named:
    """The tablets within two bounds, and those that lie across one of them."""
    lowers = view.tablets.lowers[table.first : table.last]
    first, last = bisect_left(lowers, lower), bisect_left(lowers, upper)
    across: list[tuple[int, bytes]] = []
    if first > 0 and (first == len(lowers) or lowers[first] != lower):
        across.append((table.first + first - 1, lower))
    end = lowers[last] if last < len(lowers) else HIGHEST
    if last > 0 and lowers[last - 1] < upper < end:
        across.append((table.first + last - 1, upper))
        last -= 1 if last > first else 0
    return Named(table.first + first, table.first + max(first, last), tuple(across))


def _zones(view: BundleView, options: BundleOptions, nodes: tuple[NodeView, ...]) -> Bools:
    """Tables×N: the tables' own zones."""
    out = np.ones((len(view.tables), len(nodes)), dtype=np.bool_)
    for at, table in enumerate(view.tables):
        zones = options.table(table.name).zones
        if zones:
            out[at] = [node.zone in zones for node in nodes]
    return out


def permits(rule: PlacementRule, node: NodeView) -> bool:
    """Whether a rule lets its tablets live on a node."""
    if rule.zones and node.zone not in rule.zones:
        return False
    if rule.nodes and node.id not in rule.nodes:
        return False
    return node.zone not in rule.not_zones and node.id not in rule.not_nodes


def _permitted(rules: list[PlacementRule], nodes: tuple[NodeView, ...]) -> Bools:
    return np.array([all(permits(rule, node) for rule in rules) for node in nodes], dtype=np.bool_)


def _anchor(allowed: Bools, mine: Bools, of: Ints, lie: TabletPlaces, nodes: tuple[NodeView, ...]) -> None:
    """Leaves one node to kinds that must be together: the one that has most of their bytes and may take the rest."""
    rows = np.flatnonzero(mine[of])
    if not len(rows):
        return
    held = np.bincount(lie.home[rows], weights=lie.sizes[rows] + 1.0, minlength=len(nodes))
    able: Bools = np.all(allowed[mine], axis=0)
    if int((held > 0).sum()) > 1:
        able = able & np.array([node.condition is NodeCondition.ACTIVE for node in nodes])
    else:
        able = able & np.array([node.condition is not NodeCondition.DRAINING for node in nodes])
    if able.any():
        only = np.zeros(len(nodes), dtype=np.bool_)
        only[int(np.where(able, held, -1.0).argmax())] = True
        allowed[mine] &= only


def _rivals(tables: Ints, mine: list[list[PlacementRule]]) -> Bools | None:
    """Kinds×kinds: which must not share a node; None if no rule says so."""
    found = np.zeros((len(mine), len(mine)), dtype=np.bool_)
    for one, rules in enumerate(mine):
        for rule in rules:
            for other, theirs in enumerate(mine):
                if rule.spread is not None and rule in theirs:
                    found[one, other] |= rule.spread is Apart.TABLETS or tables[one] != tables[other]
    return found if found.any() else None
