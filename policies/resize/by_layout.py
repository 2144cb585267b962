"""Splits and merges of a hash table's vbuckets: a leaf becomes its descendants, two sibling leaves become their parent.

A vbucket that is too large is split by as many levels as bring its parts closest to the desired size; one that is too
small is merged with its sibling. Doubling and halving a whole table are the same two operations over all of its leaves.

Splits and merges of a range table by size: any contiguous tablets may become any number of others.

A tablet outside the bounds draws in its neighbours, left ones first, until the whole range can be cut into tablets
inside the bounds. The keys of the cuts are not chosen here: the node knows where a size is halved.

One thing differs from YT, where a reshard rewrites nothing and a plan is carried out at once: a tablet that is too
small draws in others that are too small before those of a good size. Here a plan is carried out bit by bit; in YT's
order the next small tablet would join the result of the last merge, and all its bytes would be rewritten, again and
again.

Splits and merges of a table by load: its tablets should carry equal parts of a metric, and so of the bytes.

For tables with `desired_tablet_metric`, and for those with `desired_tablet_count` whose group reshards by its metric.
One becomes many or many become one, never many to many.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from balancer.policies.keyspace.hash_leaves import MAX_MODULUS, Leaf, descendants
from balancer.policies.reasons import bytes_text
from balancer.policies.resize.scope import IN_FLIGHT, Scope, SizeBounds, kind_of, wished_count
from balancer.policies.view import Action, ActionKind, Floats, Part, Rejection

UNLIMITED = 1 << 60


def plan_range(scope: Scope, bounds: SizeBounds, outliers: list[int]) -> None:
    """Looks at the tablets outside the bounds in key order."""
    shares = merge_shares([row for row in outliers if scope.size(row) < bounds.min], scope.count, bounds.min_count)
    for row in outliers:
        if row not in scope.used:
            _plan_row(scope, bounds, row, shares)


def merge_shares(undersized: list[int], count: int, min_count: int) -> dict[int, int] | None:
    """Row → merges it may pay for, if `min_tablet_count` makes merges scarce; None: unlimited.

    The allowed merges are spread evenly over the undersized tablets. They lie to the right within their spans: a tablet
    asks its left neighbours first, so a share on the right is found from the left.
    """
    if not min_count:
        return None
    budget = min(max(0, count - min_count), len(undersized))
    return {undersized[len(undersized) - 1 - len(undersized) * turn // budget]: 1 for turn in range(budget)}


def _plan_row(scope: Scope, bounds: SizeBounds, row: int, shares: dict[int, int] | None) -> None:
    if not may_reshard(scope, bounds, row):
        return
    grown = _grow(scope, bounds, row, shares)
    rows, count = range(grown.first, grown.last), bounds.count(grown.size)
    kind, why = kind_of(len(rows), count), outlier_text(scope, bounds, row)
    if grown.waits_for is not None:
        text = f"tablet {grown.waits_for} beside it, which is too small as well, is being migrated: they may become one"
        scope.reject(rows, ActionKind.MERGE, IN_FLIGHT, f"{why}, but {text}")
        return
    if count == len(rows) and (count == 1 or not bounds.good(grown.size)):
        code, text = _stuck(scope, bounds, row, rows)
        scope.reject(rows, kind, code, f"{why}, but {text}")
        return
    part = bytes_text(grown.size // count)
    scope.reshard(rows, count, f"{kind}-size", f"{why}: {len(rows)} become {count} of about {part}")


def _stuck(scope: Scope, bounds: SizeBounds, row: int, rows: range) -> tuple[str, str]:
    """Why nothing comes of a range that was grown."""
    if bounds.min_count and len(rows) == 1 and scope.size(row) < bounds.min:
        return "min-tablet-count", f"min_tablet_count = {bounds.min_count} allows merges elsewhere only"
    return "no-good-count", "no number of tablets brings it inside the bounds"


def may_reshard(scope: Scope, bounds: SizeBounds, row: int) -> bool:
    """Whether anything may be done about this outlier; says so if not."""
    small = scope.size(row) < bounds.min
    if small and (scope.count == 1 or scope.table_options.every is not None):
        return False  # a period has its own tablet, however small
    found = scope.obstacle(row)
    if found is None and small and scope.count <= bounds.min_count:
        found = "min-tablet-count", f"min_tablet_count is {bounds.min_count}"
    if found is not None:
        kind = ActionKind.MERGE if small else ActionKind.SPLIT
        scope.reject(range(row, row + 1), kind, found[0], f"{outlier_text(scope, bounds, row)}, but {found[1]}")
    return found is None


def outlier_text(scope: Scope, bounds: SizeBounds, row: int) -> str:
    """What is wrong with this tablet's size."""
    size = scope.size(row)
    limit = f"under {bytes_text(bounds.min)}" if size < bounds.min else f"over {bytes_text(bounds.max)}"
    return f"tablet {scope.id(row)} has {bytes_text(size)}, {limit} ({bounds.source})"


@dataclass
class _Growing:
    """A range that draws in neighbours, and the merges it may still pay for."""

    first: int
    last: int
    size: int
    purse: int
    waits_for: int | None = None
    """A tablet that it would have drawn in, had it not been in a migration."""


def _grow(scope: Scope, bounds: SizeBounds, row: int, shares: dict[int, int] | None) -> _Growing:
    """The range around a row, left first, until it is good or nothing more may be drawn in."""
    size = scope.size(row)
    free_of_charge = shares is None or size > bounds.max
    grown = _Growing(row, row + 1, size, UNLIMITED if free_of_charge else _take(shares, row))
    limits = (bounds.min, UNLIMITED) if size < bounds.min else (UNLIMITED,)
    for below in limits:
        while not bounds.good(grown.size) and _absorb(scope, grown, grown.first - 1, shares, below):
            grown.first -= 1
        while not bounds.good(grown.size) and _absorb(scope, grown, grown.last, shares, below):
            grown.last += 1
        if bounds.good(grown.size) or grown.waits_for is not None:
            break
    return grown


def _absorb(scope: Scope, grown: _Growing, neighbour: int, shares: dict[int, int] | None, below: int) -> bool:
    """Draws one neighbour in, if it is there, smaller than that, and one of the two can pay."""
    if not scope.inside(neighbour) or scope.size(neighbour) >= below or scope.table_options.every is not None:
        return False
    if not scope.free(neighbour):
        if below is not UNLIMITED and scope.in_flight(neighbour):
            grown.waits_for = scope.id(neighbour)
        return False
    grown.purse += _take(shares, neighbour)
    if not grown.purse:
        return False
    grown.purse -= 1
    grown.size += scope.size(neighbour)
    return True


def _take(shares: dict[int, int] | None, row: int) -> int:
    return 0 if shares is None else shares.pop(row, 0)


KEPT = 0.95
"""The share of a tablet's bytes that a part of it must keep for the split to have been in vain."""
TINY, TINY_LEVELS = 1 / 64, 3
"""What vbuckets beside a large one may have of its bytes, and on how many levels, to be what splits in vain leave."""


def plan_hash(scope: Scope, bounds: SizeBounds, outliers: list[int]) -> None:
    """Looks at the vbuckets outside the bounds in the order of their positions."""
    shares = merge_shares([row for row in outliers if scope.size(row) < bounds.min], scope.count, bounds.min_count)
    for row in outliers:
        if row in scope.used or not may_reshard(scope, bounds, row):
            continue
        if scope.size(row) > bounds.max:
            _plan_split(scope, bounds, row)
        else:
            _plan_merge(scope, bounds, row, shares)


def split_leaf(scope: Scope, row: int, count: int, code: str, why: str) -> None:
    """Proposes that a vbucket becomes `count` descendants, a power of two."""
    leaf = scope.view.tablets.leaf(row)
    alone = range(row, row + 1)
    if leaf.modulus * count > MAX_MODULUS:
        scope.reject(alone, ActionKind.SPLIT, "modulus-limit", f"{why}, but no modulus is above {MAX_MODULUS}")
        return
    parts = tuple(Part(leaf=part) for part in descendants(leaf, count))
    scope.reshard(alone, count, code, why, parts)


def merge_leaf(scope: Scope, row: int, code: str, why: str, largest: int = UNLIMITED) -> None:
    """Proposes that a vbucket and its sibling become their parent."""
    leaf, other = scope.view.tablets.leaf(row), sibling_row(scope, row)
    alone = range(row, row + 1)
    parent = leaf.parent()
    if parent is None or other is None:
        scope.reject(alone, ActionKind.MERGE, "no-sibling", f"{why}, but {_sibling_text(leaf)}")
        return
    if not scope.free(other):
        state = scope.obstacle(other) or ("taken", "this plan changes it already")
        scope.reject(alone, ActionKind.MERGE, state[0], f"{why}, but of its sibling {scope.id(other)}: {state[1]}")
        return
    rows = range(min(row, other), max(row, other) + 1)
    size = scope.total(rows)
    if size > largest:
        text = f"{why}, but with its sibling it would have {bytes_text(size)}, over {bytes_text(largest)}"
        # Not `reject`: the sibling is judged on its own, and may be so large that it must be split.
        scope.rejections.append(Rejection(ActionKind.MERGE, scope.ids(rows), "merged-too-large", text))
        return
    scope.reshard(rows, 1, code, f"{why}: 2 become 1 of {bytes_text(size)}", (Part(leaf=parent),))


def sibling_row(scope: Scope, row: int) -> int | None:
    """The place of the leaf that this one may be merged with; None if there is no such leaf."""
    leaf = scope.view.tablets.leaf(row)
    sibling = leaf.sibling()
    if sibling is None:
        return None
    other = row + 1 if leaf.remainder < sibling.remainder else row - 1
    inside = scope.table.first <= other < scope.table.last
    return other if inside and scope.view.tablets.leaf(other) == sibling else None


def _plan_split(scope: Scope, bounds: SizeBounds, row: int) -> None:
    size = scope.size(row)
    levels = max(1, round(log2(size / bounds.desired)))
    while size >> levels > bounds.max:
        levels += 1
    count = 1 << levels
    why = outlier_text(scope, bounds, row)
    vain = _in_vain(scope, row)
    if vain and scope.view.tablets.leaf(row).modulus * count <= MAX_MODULUS:
        text = f"{why}, but {vain}: nearly all of it has one key, which no split divides"
        scope.reject(range(row, row + 1), ActionKind.SPLIT, "one-key", text)
        return
    if size // count < bounds.min:
        text = f"{why}, but {count} parts of {bytes_text(size // count)} would be merged again"
        scope.reject(range(row, row + 1), ActionKind.SPLIT, "no-good-count", text)
        return
    split_leaf(scope, row, count, "split-size", f"{why}: 1 becomes {count} of about {bytes_text(size // count)}")


def _in_vain(scope: Scope, row: int) -> str:
    """How it is known that a split would leave one part with everything; empty: it is not.

    By what became of the split that made the tablet, as long as there is next to nothing beside it: a tablet that has
    grown since has siblings that have grown. The split is forgotten one day; then several such siblings tell.
    """
    history, size = scope.view.history.get(scope.id(row)), scope.size(row)
    before = history.split_of if history is not None else None
    if before is not None and size >= KEPT * before and _deserted(scope, row, 1):
        return f"the split that made it left it {bytes_text(size)} of {bytes_text(before)}"
    return f"{TINY_LEVELS} splits in a row have left next to nothing beside it" if _deserted(scope, row) else ""


def _deserted(scope: Scope, row: int, levels: int = TINY_LEVELS) -> bool:
    """Whether next to nothing lies beside a vbucket, on so many levels."""
    leaf, size, low, high = scope.view.tablets.leaf(row), scope.size(row), row, row + 1
    for _ in range(levels):
        sibling = leaf.sibling()
        if sibling is None:
            return False
        start, end = sibling.start(), sibling.start() + sibling.width()
        first, last = low, high
        while scope.inside(low - 1) and scope.view.tablets.leaf(low - 1).start() >= start:
            low -= 1
        while scope.inside(high) and scope.view.tablets.leaf(high).start() < end:
            high += 1
        if scope.total(range(low, first)) + scope.total(range(last, high)) > TINY * size:
            return False
        leaf = Leaf(leaf.modulus // 2, leaf.remainder % (leaf.modulus // 2))
    return True


def _plan_merge(scope: Scope, bounds: SizeBounds, row: int, shares: dict[int, int] | None) -> None:
    why, other = outlier_text(scope, bounds, row), sibling_row(scope, row)
    if shares is not None and not shares.get(row) and not (other is not None and shares.get(other)):
        text = f"{why}, but min_tablet_count = {bounds.min_count} allows merges elsewhere only"
        scope.reject(range(row, row + 1), ActionKind.MERGE, "min-tablet-count", text)
        return
    merge_leaf(scope, row, "merge-size", why, bounds.max)


def _sibling_text(leaf: Leaf) -> str:
    sibling = leaf.sibling()
    return "it is the only vbucket" if sibling is None else f"its sibling {tuple(sibling)} is split further"


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
    metric, count = float(metrics.sum()), wished_count(scope.table_options, hashed=scope.table.hash)
    least = scope.table_options.min_tablet_count or 1
    desired = metric / count if count is not None else scope.table_options.desired_tablet_metric
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
class _GrowingLoad:
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
        grown = _GrowingLoad(row, row + 1, self.scope.size(row), self.metric(range(row, row + 1)))
        while self._add(grown, grown.first - 1):
            grown.first -= 1
        while self._add(grown, grown.last):
            grown.last += 1
        self._propose(range(grown.first, grown.last), row, self._merge_range)

    def _merge_sibling(self, row: int) -> None:
        other = sibling_row(self.scope, row)
        grown = _GrowingLoad(row, row + 1, self.scope.size(row), self.metric(range(row, row + 1)))
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

    def _add(self, grown: _GrowingLoad, neighbour: int) -> bool:
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
