"""What the planners of sizes share: one table's rows, which of them are taken, and what has been said so far.

The size range for a table's tablets: the table's settings, then the bundle's, then the defaults, as in YT.

`sizes` asks for the bounds before it looks at tablets; the command line shows them with their source.

How hot a tablet may be, and when tablets are cool enough to be merged.

`heat` asks for the threshold when it looks for hot tablets, `sizes` and `heat` before they propose a merge: if the two
disagreed, one would split what the other has merged.
"""

from dataclasses import dataclass, field
from functools import cached_property
from math import log2
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from balancer.policies.options import BalancerOptions, BundleOptions, HeatOptions, InMemoryMode, Placement, TableOptions
from balancer.policies.reasons import bytes_text, rate_text
from balancer.policies.view import (
    Action,
    ActionKind,
    BundleView,
    Floats,
    NodeCondition,
    NodeView,
    Part,
    Rejection,
    TableView,
)

MAX_TABLETS = 10000
"""Per table: neither the user's settings nor the table's growth leads beyond it."""

_FACTOR = (19, 10)  # 1.9: two tablets that are merged at min, or one that is split at max, end up well inside


@dataclass(frozen=True, slots=True)
class SizeBounds:
    """Bytes; a tablet is left alone while `min <= size <= max`."""

    min: int
    desired: int
    max: int
    source: str
    """Which options they come from, for people."""
    min_count: int = 0
    """The table is not merged down below this."""

    def good(self, size: int) -> bool:
        """Whether a range of this size yields tablets inside the bounds."""
        return self.min <= size // self.count(size) <= self.max

    def count(self, size: int) -> int:
        """Into how many tablets a range of this size is cut."""
        return max(1, min(round_half_up(size, self.desired), MAX_TABLETS))


def size_bounds(
    options: BalancerOptions, table_options: TableOptions, table_bytes: int, node_count: int, *, hashed: bool = False
) -> SizeBounds:
    """The bounds of one table of this size on this many nodes; of a hash table, whose tablets only double and halve."""
    count = wished_count(table_options, hashed=hashed)
    low, desired, high, source = _wished(options, table_options, table_bytes, count)
    if count is None:
        cap = max(1, min(int(node_count * options.tablet_to_cell_ratio), MAX_TABLETS))
        limit = ceil_div(table_bytes, cap)
        if desired < limit:
            desired, high = limit, _above(limit)
            low = _below(limit) if cap == MAX_TABLETS else low
            source += f", raised because the table may have {cap} tablets"
    minimum = table_options.min_tablet_count
    if minimum is not None and desired > table_bytes // minimum:
        desired = max(2, table_bytes // minimum)
        low = min(low, desired - 1)
        source += f", lowered because min_tablet_count is {minimum}"
    floor = options.min_desired_tablet_size
    if desired < floor:
        low, desired, high = min(floor // 2, low), floor, max(2 * floor, high)
        source += ", raised to min_desired_tablet_size"
    return SizeBounds(low, max(1, desired), high, source, minimum or 0)


def wished_count(options: TableOptions, *, hashed: bool) -> int | None:
    """How many tablets `desired_tablet_count` asks for; None: it does not.

    A hash table has the nearest power of two by ratio: 10 becomes 8 and 12 becomes 16. Otherwise the number that it
    came from would decide, because both are within the bounds around 10. Not fewer than `min_tablet_count`.
    """
    if options.desired_tablet_count is None:
        return None
    count = max(1, min(options.desired_tablet_count, MAX_TABLETS))
    if not hashed:
        return count
    power: int = 1 << round(log2(count))
    return power if power >= (options.min_tablet_count or 1) else 2 * power


def round_half_up(size: int, desired: int) -> int:
    """The quotient, and one more if the remainder is at least half of the divisor."""
    whole, rest = divmod(size, desired)
    return whole + (rest >= (desired + 1) // 2)


def ceil_div(size: int, count: int) -> int:
    """The quotient rounded up."""
    return -(-size // count)


def _wished(
    options: BalancerOptions, table: TableOptions, table_bytes: int, count: int | None
) -> tuple[int, int, int, str]:
    """Min, desired and max before caps and floors."""
    if count is not None:
        desired, asked = ceil_div(table_bytes, count), min(table.desired_tablet_count or 1, MAX_TABLETS)
        powers = "" if count == max(1, asked) else f", for a hash table {count}"
        return _below(desired), desired, _above(desired), f"desired_tablet_count = {table.desired_tablet_count}{powers}"
    own = _own_sizes(table)
    if own is not None:
        return *own, "the table's sizes"
    if table.in_memory_mode is not InMemoryMode.NONE:
        sizes = (options.min_in_memory_tablet_size, options.desired_in_memory_tablet_size)
        return *sizes, options.max_in_memory_tablet_size, "the bundle's in-memory sizes"
    return options.min_tablet_size, options.desired_tablet_size, options.max_tablet_size, "the bundle's sizes"


def _own_sizes(table: TableOptions) -> tuple[int, int, int] | None:
    """The table's three sizes, which count only when all are given and strictly increasing."""
    low, desired, high = table.min_tablet_size, table.desired_tablet_size, table.max_tablet_size
    if low is None or desired is None or high is None or not low < desired < high:
        return None
    return low, desired, high


def _above(desired: int) -> int:
    return desired * _FACTOR[0] // _FACTOR[1]


def _below(desired: int) -> int:
    return desired * _FACTOR[1] // _FACTOR[0]


JOINT = 0.75
"""The part of the threshold that tablets may carry together when they are merged: the rest keeps them from being split
again when the load wanders."""


@dataclass(frozen=True)
class Cooling:
    """The loads of one bundle and the thresholds over them."""

    view: BundleView
    options: HeatOptions

    @cached_property
    def rates(self) -> Floats:
        """Rows read and written per second, per tablet."""
        return self.view.tablets.write_rate + self.view.tablets.read_rate

    @cached_property
    def node_loads(self) -> Floats:
        """Rows per second, per node."""
        loads = np.bincount(self.view.tablets.node, weights=self.rates, minlength=len(self.view.nodes))
        return loads.astype(np.float64, copy=False)

    @cached_property
    def thresholds(self) -> Floats:
        """Rows per second from which a tablet is hot, per tablet.

        A node that does less than the average counts as an average one: the only tablet of a newly added node is all of
        its load, and splitting it would gain nothing.
        """
        loads = np.maximum(self.node_loads, self.node_loads.mean() if len(self.node_loads) else 0.0)
        relative = np.maximum(self.options.min_rows_per_second, self.options.max_node_share * loads)
        if self.options.max_rows_per_second is not None:
            relative = np.minimum(relative, self.options.max_rows_per_second)
        return np.asarray(relative[self.view.tablets.node], np.float64)

    @property
    def even_threshold(self) -> float:
        """Rows per second from which a tablet would be hot if all nodes did the same."""
        mean = float(self.node_loads.mean()) if len(self.node_loads) else 0.0
        limit = self.options.max_rows_per_second
        relative = max(self.options.min_rows_per_second, self.options.max_node_share * mean)
        return relative if limit is None else min(relative, limit)

    @cached_property
    def hot_now(self) -> npt.NDArray[np.bool_]:
        """Which tablets are over their threshold; equal shares that add up to it are not, whatever rounding says."""
        return np.asarray(self.rates > self.thresholds * (1 + 1e-9), np.bool_)

    @cached_property
    def scanned_now(self) -> npt.NDArray[np.bool_]:
        """Which tablets would be hot if the rows of long scans counted."""
        scans = self.view.tablets.scan_rate
        if scans is None:
            return np.zeros(len(self.rates), np.bool_)
        return np.asarray(scans > self.thresholds, np.bool_)

    @cached_property
    def warm_now(self) -> npt.NDArray[np.bool_]:
        """Which tablets are not below half of their threshold at this moment."""
        return np.asarray(self.rates >= self.thresholds / 2, np.bool_)

    def recent_maximum(self, row: int) -> float:
        """The highest rate of the last five minutes; the current one if nothing is remembered."""
        history = self.view.history.get(int(self.view.tablets.ids[row]))
        remembered = None if history is None else history.max_rate_5m
        return max(remembered or 0.0, float(self.rates[row]))

    def too_warm(self, rows: range, count: int = 1) -> str | None:
        """Why these tablets may not become this many others yet; None: they may."""
        watched = self.options.enable and bool(self.warm_now[rows.start : rows.stop].any())
        if not watched and not self.view.history:
            return None
        found = next((reason for row in rows if (reason := self._warm_text(row)) is not None), None)
        return found or self._joint_text(rows, count)

    def _joint_text(self, rows: range, count: int) -> str | None:
        """Why the result would be hot again, or nearly, on a node that does no more than others.

        Half a threshold each is not enough: their node may do more than the others, and what is cool there is hot as
        soon as it is balanced.
        """
        if not self.options.enable:
            return None
        total, limit = sum(map(self.recent_maximum, rows)) / count, JOINT * self.even_threshold
        if total < limit:
            return None
        return f"together they had {rate_text(total)} in the last five minutes, not below {rate_text(limit)}"

    def _warm_text(self, row: int) -> str | None:
        tablet = int(self.view.tablets.ids[row])
        history = self.view.history.get(tablet)
        split_at = None if history is None else history.split_for_heat_at
        if split_at is None and not self.options.enable:
            return None  # but what heat has split is protected even while its schedule is closed
        if split_at is not None and self.view.now - split_at < self.options.min_split_age:
            age, rest = (self.view.now - split_at) / 60, self.options.min_split_age / 60
            return f"tablet {tablet} was split for heat {age:.0f} minutes ago and rests for {rest:.0f}"
        recent, limit = self.recent_maximum(row), float(self.thresholds[row]) / 2
        if recent < limit:
            return None
        return f"tablet {tablet} had {rate_text(recent)} in the last five minutes, not below {rate_text(limit)}"


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
