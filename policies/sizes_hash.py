"""Splits and merges of a hash table's vbuckets: a leaf becomes its descendants, two sibling leaves become their parent.

A vbucket that is too large is split by as many levels as bring its parts closest to the desired size; one that is too
small is merged with its sibling. Doubling and halving a whole table are the same two operations over all of its leaves.
"""

from math import log2

from balancer.policies.bundle_view import ActionKind, Part, Rejection
from balancer.policies.figures import bytes_text
from balancer.policies.hash_leaves import MAX_MODULUS, Leaf, descendants
from balancer.policies.sizes_bounds import SizeBounds
from balancer.policies.sizes_range import UNLIMITED, may_reshard, merge_shares, outlier_text
from balancer.policies.sizes_scope import Scope

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
