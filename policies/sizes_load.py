"""Splits and merges of a table by load: its tablets should carry equal parts of a metric, and so of the bytes.

For tables with `desired_tablet_metric`, and for those with `desired_tablet_count` whose group reshards by its metric.
One becomes many or many become one, never many to many.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from balancer.policies.bundle_view import Action, ActionKind, Floats
from balancer.policies.figures import bytes_text
from balancer.policies.sizes_bounds import MAX_TABLETS, SizeBounds
from balancer.policies.sizes_hash import merge_leaf, sibling_row, split_leaf
from balancer.policies.sizes_scope import Scope

FACTOR = 1.9


@dataclass(frozen=True, slots=True)
class LoadBounds:
    """What a tablet should carry; the bounds are `desired` divided and multiplied by 1.9.

    Bytes are bounded by the table's sizes as well: a table that is idle for a while must not become one huge tablet.
    """

    size: float
    metric: float
    min_count: int
    min_size: float
    max_size: float

    def too_large(self, size: float, metric: float) -> bool:
        return size > self.max_size or metric > self.metric * FACTOR

    def too_small(self, size: float, metric: float) -> bool:
        return not self.too_large(size, metric) and (size < self.min_size or metric < self.metric / FACTOR)

    def needs_more(self, size: float, metric: float) -> bool:
        """Whether a merged tablet would still want to grow."""
        return self.too_small(size, metric) or (size < self.size and metric < self.metric)

    def ratios(self, size: float, metric: float) -> tuple[float, float]:
        return size / self.size, metric / self.metric if self.metric else 0.0


def load_bounds(scope: Scope, sizes: SizeBounds, metrics: Floats) -> LoadBounds | None:
    """The bounds of a table; None if it carries nothing, so that no size corresponds to the desired metric. With a
    desired number of tablets only bytes are divided then.

    `sizes` are its bounds by bytes alone, which come from `desired_tablet_count` where that is set.
    """
    size = float(scope.view.tablets.sizes[scope.table.first : scope.table.last].sum())
    metric, count = float(metrics.sum()), scope.table_options.desired_tablet_count
    least = scope.table_options.min_tablet_count or 1
    desired = (
        metric / min(max(count, 1), MAX_TABLETS) if count is not None else scope.table_options.desired_tablet_metric
    )
    if size and not metric and count is not None:
        return LoadBounds(sizes.desired, 0.0, least, sizes.min, sizes.max)
    if not size or not metric or desired is None or desired <= 0:
        return None
    wanted = desired * size / metric
    if count is None and wanted <= sizes.desired:
        return LoadBounds(wanted, desired, least, wanted / FACTOR, wanted * FACTOR)
    return LoadBounds(sizes.desired, desired, least, sizes.min, sizes.max)


def load_outliers(scope: Scope, bounds: LoadBounds, metrics: Floats) -> list[int]:
    """The rows of the tablets outside the bounds."""
    sizes = scope.view.tablets.sizes[scope.table.first : scope.table.last]
    outside = (sizes > bounds.max_size) | (metrics > bounds.metric * FACTOR)
    outside |= (sizes < bounds.min_size) | (metrics < bounds.metric / FACTOR)
    return [scope.table.first + place for place in np.flatnonzero(outside).tolist()]


def plan_load(scope: Scope, bounds: LoadBounds, metrics: Floats, outliers: list[int]) -> None:
    """Looks at the tablets outside the bounds in key order, then puts what is most useful first."""
    planner = _Planner(scope, bounds, metrics)
    for row in outliers:
        planner.plan(row)
    scope.actions.sort(key=planner.usefulness)


@dataclass
class _Growing:
    """A range that draws in neighbours, with its sums."""

    first: int
    last: int
    size: float
    metric: float


class _Planner:
    """One table by load. Gathering moves stay ahead of everything: the merges wait for them."""

    def __init__(self, scope: Scope, bounds: LoadBounds, metrics: Floats) -> None:
        self.scope, self.bounds, self.metrics = scope, bounds, metrics
        self.deviations: dict[tuple[int, ...], float] = {}

    def plan(self, row: int) -> None:
        scope, alone = self.scope, range(row, row + 1)
        large = self.bounds.too_large(scope.size(row), self.metric(alone))
        obstacle = scope.obstacle(row)
        if row in scope.used or (not large and scope.count == 1):
            return
        if obstacle is not None:
            kind = ActionKind.SPLIT if large else ActionKind.MERGE
            scope.reject(alone, kind, obstacle[0], f"{self._text(row)}, but {obstacle[1]}")
        elif large:
            self._split(row)
        elif scope.table.hash:
            self._merge_sibling(row)
        else:
            self._merge(row)

    def metric(self, rows: range) -> float:
        first = self.scope.table.first
        return float(self.metrics[rows.start - first : rows.stop - first].sum())

    def usefulness(self, action: Action) -> tuple[int, int, float]:
        """Merges first, more tablets first, then smaller deviation; then splits, more first, then larger deviation."""
        deviation = self.deviations.get(action.tablets, 0.0)
        if action.kind is ActionKind.MOVE:
            return 0, 0, 0.0
        if action.kind is ActionKind.MERGE:
            return 1, -len(action.tablets), deviation
        return 2, -action.count, -deviation

    def _split(self, row: int) -> None:
        alone, size = range(row, row + 1), self.scope.size(row)
        if not size:
            text = f"{self._text(row)}, but it is empty: there is no key to split it at"
            self.scope.reject(alone, ActionKind.SPLIT, "empty", text)
            return
        ratios = self.bounds.ratios(size, self.metric(alone))
        self.deviations[self.scope.ids(alone)] = max(ratios)
        count = max(*(ceil(ratio) for ratio in ratios), 2)
        if self.scope.table.hash:
            count = 1 << max(1, round(log2(max(ratios))))
            split_leaf(self.scope, row, count, "split-load", f"{self._text(row)}: 1 becomes {count}")
        else:
            self.scope.reshard(alone, count, "split-load", f"{self._text(row)}: 1 becomes {count}")

    def _merge(self, row: int) -> None:
        """Draws in neighbours, left first, while the sum stays within both bounds."""
        grown = _Growing(row, row + 1, self.scope.size(row), self.metric(range(row, row + 1)))
        while self._add(grown, grown.first - 1):
            grown.first -= 1
        while self._add(grown, grown.last):
            grown.last += 1
        self._propose(range(grown.first, grown.last), row, self._merge_range)

    def _merge_sibling(self, row: int) -> None:
        other = sibling_row(self.scope, row)
        grown = _Growing(row, row + 1, self.scope.size(row), self.metric(range(row, row + 1)))
        rows = range(row, row + 1)
        if other is not None and self._add(grown, other):
            rows = range(min(row, other), max(row, other) + 1)
        self._propose(rows, row, lambda _, why: merge_leaf(self.scope, row, "merge-load", why))

    def _merge_range(self, rows: range, why: str) -> None:
        self.scope.reshard(rows, 1, "merge-load", f"{why}: {len(rows)} become 1")

    def _propose(self, rows: range, row: int, merge: Callable[[range, str], None]) -> None:
        text = self._text(row)
        if len(rows) == 1:
            text = f"{text}, but no neighbour can be joined within both bounds"
            self.scope.reject(rows, ActionKind.MERGE, "no-neighbour", text)
            return
        pairs = [self.bounds.ratios(self.scope.size(at), self.metric(range(at, at + 1))) for at in rows]
        self.deviations[self.scope.ids(rows)] = min(min(pair) for pair in pairs)
        merge(rows, text)

    def _add(self, grown: _Growing, neighbour: int) -> bool:
        """Draws one neighbour in, if the range wants more and the sum stays within both bounds."""
        scope, bounds = self.scope, self.bounds
        left_over = scope.count + scope.added - (grown.last - grown.first)
        if not scope.free(neighbour) or left_over < bounds.min_count or not bounds.needs_more(grown.size, grown.metric):
            return False
        size = grown.size + scope.size(neighbour)
        metric = grown.metric + self.metric(range(neighbour, neighbour + 1))
        if bounds.too_large(size, metric):
            return False
        grown.size, grown.metric = size, metric
        return True

    def _text(self, row: int) -> str:
        alone, desired = range(row, row + 1), self.bounds
        tablet, size = self.scope.id(row), self.scope.size(row)
        carried = f"has {bytes_text(size)} and a load of {self.metric(alone):,.4g}"
        return f"tablet {tablet} {carried}, desired are {bytes_text(desired.size)} and {desired.metric:,.4g}"
