"""Splits and merges of a range table by size: any contiguous tablets may become any number of others.

A tablet outside the bounds draws in its neighbours, left ones first, until the whole range can be cut into tablets
inside the bounds. The keys of the cuts are not chosen here: the node knows where a size is halved.

One thing differs from YT, where a reshard rewrites nothing and a plan is carried out at once: a tablet that is too
small draws in others that are too small before those of a good size. Here a plan is carried out bit by bit; in YT's
order the next small tablet would join the result of the last merge, and all its bytes would be rewritten, again and
again.
"""

from dataclasses import dataclass

from balancer.policies.bundle_view import ActionKind
from balancer.policies.figures import bytes_text
from balancer.policies.sizes_bounds import SizeBounds
from balancer.policies.sizes_scope import IN_FLIGHT, Scope, kind_of

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
