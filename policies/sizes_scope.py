"""What the planners of sizes share: one table's rows, which of them are taken, and what has been said so far."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from balancer.policies.bundle_view import (
    Action,
    ActionKind,
    BundleView,
    NodeCondition,
    NodeView,
    Part,
    Rejection,
    TableView,
)
from balancer.policies.cooling import Cooling
from balancer.policies.figures import bytes_text
from balancer.policies.options import BundleOptions, Placement, TableOptions
from balancer.policies.sizes_bounds import MAX_TABLETS

IN_FLIGHT = "in-flight"
"""The code of what has to wait for a migration."""

MOST_AT_ONCE = 16
"""Tablets that one migration merges: writers wait a few milliseconds per tablet for its swap."""


class Proposals(NamedTuple):
    """What a policy proposes, and what it considered and left."""

    actions: tuple[Action, ...]
    rejections: tuple[Rejection, ...]


def blocked_tablets(view: BundleView) -> dict[int, tuple[str, str]]:
    """Tablet → code and reason, for those that no split or merge may touch now."""
    found = dict.fromkeys(view.pinned, ("pinned", "it is pinned: the pin names this very tablet"))
    found |= dict.fromkeys(view.quarantined, ("quarantined", "it is quarantined until an operator has looked at it"))
    for flight in view.in_flight:
        found |= dict.fromkeys(flight.tablets, (IN_FLIGHT, f"migration {flight.migration} has it"))
    return found


@dataclass
class Scope:
    """One table while it is planned. Rows are those of the bundle's columns."""

    view: BundleView
    options: BundleOptions
    table: TableView
    blocked: dict[int, tuple[str, str]]
    cooling: Cooling
    ordered: bool = False
    """Whether an operator asked for it: then neither heat nor the switches of the balancer hold it back."""
    used: set[int] = field(default_factory=set)
    added: int = 0
    """By how many tablets the actions so far make the table longer."""
    actions: list[Action] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)

    @cached_property
    def table_options(self) -> TableOptions:
        return self.options.table(self.table.name)

    @property
    def count(self) -> int:
        """Tablets of the table before the plan."""
        return self.table.last - self.table.first

    # Single figures are read often once a table has outliers: plain lists are several times faster than arrays.

    @cached_property
    def _sizes(self) -> list[int]:
        return list(self.view.tablets.sizes[self.table.first : self.table.last].astype(np.int64).tolist())

    @cached_property
    def _ids(self) -> list[int]:
        return list(self.view.tablets.ids[self.table.first : self.table.last].tolist())

    @cached_property
    def _nodes(self) -> list[int]:
        return list(self.view.tablets.node[self.table.first : self.table.last].tolist())

    def size(self, row: int) -> int:
        return self._sizes[row - self.table.first]

    def id(self, row: int) -> int:
        return self._ids[row - self.table.first]

    def node(self, row: int) -> NodeView:
        return self.view.nodes[self._nodes[row - self.table.first]]

    def total(self, rows: range) -> int:
        return sum(self._sizes[rows.start - self.table.first : rows.stop - self.table.first])

    def ids(self, rows: range) -> tuple[int, ...]:
        return tuple(self._ids[rows.start - self.table.first : rows.stop - self.table.first])

    def node_indexes(self, rows: range) -> list[int]:
        return self._nodes[rows.start - self.table.first : rows.stop - self.table.first]

    def obstacle(self, row: int) -> tuple[str, str] | None:
        """Code and reason why this tablet cannot be touched at all."""
        found = self.blocked.get(self.id(row)) if self.blocked else None
        if found is None and self.node(row).condition is NodeCondition.DOWN:
            return "source-down", f"its node {self.node(row).id} is down"
        return found

    def switch(self) -> tuple[str, str] | None:
        """Code and name of the switch that keeps the table's tablets from being split and merged automatically."""
        if not self.table_options.enable_auto_reshard:
            return "table-off", f"enable_auto_reshard of {self.table.name}"
        group, name = self.options.group(self.table.name), self.options.group_name(self.table.name)
        return None if group.enable_reshard else ("group-off", f"enable_reshard of group {name}")

    def inside(self, row: int) -> bool:
        """Whether there is such a row in the table."""
        return self.table.first <= row < self.table.last

    def free(self, row: int) -> bool:
        """Whether a neighbour may be drawn into a range."""
        return self.inside(row) and row not in self.used and self.obstacle(row) is None

    def in_flight(self, row: int) -> bool:
        """Whether an unfinished migration has it."""
        return self.blocked.get(self.id(row), ("", ""))[0] == IN_FLIGHT

    def reject(self, rows: range, kind: ActionKind, code: str, reason: str) -> None:
        """Leaves these tablets as they are, and says why. A range judged as a whole is not judged again."""
        if len(rows) > 1:
            self.used.update(rows)
        self.rejections.append(Rejection(kind, self.ids(rows), code, reason))

    def reshard(self, rows: range, count: int, code: str, why: str, parts: tuple[Part, ...] = ()) -> None:
        """Proposes that these tablets become this many others, unless something forbids it."""
        kind = kind_of(len(rows), count)
        if self.count + self.added + count - len(rows) >= MAX_TABLETS and count > len(rows):
            self.reject(rows, kind, "tablet-limit", f"{why}, but the table would reach {MAX_TABLETS} tablets")
            return
        warm = self.cooling.too_warm(rows, count) if len(rows) > 1 and not self.ordered else None
        if warm is not None:
            self.reject(rows, kind, "too-warm", f"{why}, but {warm}")
            return
        self.used.update(rows)
        together = self._together(rows) if count == 1 else [rows]
        if len(together) > 1 or len(self._nodes_of(rows)) > 1:
            self._gather(rows, together, kind, code, why)
        else:
            self._replace(rows, count, code, why, parts)

    def _replace(self, rows: range, count: int, code: str, why: str, parts: tuple[Part, ...] = ()) -> None:
        self.added += count - len(rows)
        kind = kind_of(len(rows), count)
        node = self.node(rows.start).id
        size = float(self.total(rows))
        self.actions.append(Action(kind, self.table.name, self.ids(rows), why, code, node, node, parts, count, size))

    def _together(self, rows: range) -> list[range]:
        """The range in pieces that are each on one node and not too many for one migration."""
        pieces = [range(rows.start, rows.start + 1)]
        for row in rows[1:]:
            last = pieces[-1]
            if len(last) < MOST_AT_ONCE and self.node(row) is self.node(last.start):
                pieces[-1] = range(last.start, row + 1)
            else:
                pieces.append(range(row, row + 1))
        return pieces

    def _gather(self, rows: range, together: list[range], kind: ActionKind, code: str, why: str) -> None:
        """Tablets are merged on one node, so those on others are first moved to where most of the bytes are.

        Neighbours elsewhere that lie together become one before that: then one has to be moved instead of many. So do
        those that are too many for one migration. All others are rewritten once, when everything is there.
        """
        target = self._gathering_node(rows)
        many = len(rows) > MOST_AT_ONCE
        merges = [
            piece for piece in together if 1 < len(piece) < len(rows) and (many or self._nodes_of(piece) != {target})
        ]
        if target is None and not merges:
            self.reject(rows, kind, "apart", f"{why}, but they are on different nodes and may not be moved together")
            return
        first = "neighbours on one node become one" if merges else f"they are moved together on {self._name(target)}"
        self.reject(rows, kind, "gathering", f"{why}; first {first}")
        for piece in merges:
            text = f"{why}; for that these {len(piece)}, {bytes_text(self.total(piece))}, become one"
            self._replace(piece, 1, code, text)
        merged = {row for piece in merges for row in piece}
        for row, node in zip(rows, self.node_indexes(rows), strict=True):
            if target is not None and node != target and row not in merged:
                self._move(row, target, why)

    def _nodes_of(self, rows: range) -> set[int]:
        return set(self.node_indexes(rows))

    def _name(self, node: int | None) -> str:
        return "no node" if node is None else self.view.nodes[node].id

    def _gathering_node(self, rows: range) -> int | None:
        """The active node with most of the range's bytes, or None if the table's tablets are not moved."""
        if not self.moves_freely and not self.ordered:
            return None
        held: dict[int, int] = {}
        for row, node in zip(rows, self.node_indexes(rows), strict=True):
            held[node] = held.get(node, 0) + self.size(row)
        able = [node for node in held if self.may_receive(self.view.nodes[node])]
        return min(able, key=lambda node: (-held[node], node), default=None)

    @property
    def moves_freely(self) -> bool:
        """Whether a policy may choose the nodes of the table's tablets."""
        return self.table_options.enable_auto_tablet_move and self.table_options.placement is Placement.BALANCED

    def may_receive(self, node: NodeView) -> bool:
        """Whether tablets of this table may be brought to a node."""
        zones = self.table_options.zones
        return node.condition is NodeCondition.ACTIVE and (not zones or node.zone in zones)

    def _move(self, row: int, target: int, why: str) -> None:
        source, size = self.node(row).id, self.size(row)
        reason = f"{why}; for that this one, {bytes_text(size)}, is moved to {self.view.nodes[target].id}"
        there = self.view.nodes[target].id
        self.actions.append(
            Action(ActionKind.MOVE, self.table.name, (self.id(row),), reason, "gather", source, there, size=float(size))
        )


def kind_of(before: int, after: int) -> ActionKind:
    """One becomes many, many become one, or many become many."""
    if before == 1:
        return ActionKind.SPLIT
    return ActionKind.MERGE if after == 1 else ActionKind.RESHARD
