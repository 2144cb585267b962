"""Which tablets to split and merge because of their sizes. The planner calls `plan_sizes` once per plan and bundle.

Only tablets outside their table's bounds are examined one by one; the rest is compared in columns. `by_layout`,
`by_layout` and, for tables with a desired metric, `by_layout` say what may be done with an outlier.
"""

from collections.abc import Mapping

import numpy as np

from balancer.policies.options import BundleOptions
from balancer.policies.resize.by_layout import (
    LoadBounds,
    load_bounds,
    load_outliers,
    merge_leaf,
    plan_hash,
    plan_load,
    plan_range,
    split_leaf,
)
from balancer.policies.resize.scope import (
    MAX_TABLETS,
    Cooling,
    Proposals,
    Scope,
    SizeBounds,
    blocked_tablets,
    size_bounds,
)
from balancer.policies.view import ActionKind, BundleView, Floats, Rejection, TableView

__all__ = ["Proposals", "SizeBounds", "double", "halve", "plan_sizes", "size_bounds", "table_bounds"]

MOST_OUTLIERS, FEWEST_OUTLIERS = 4096, 64  # examined in one plan: of all tables together, and of each at least
EXAMPLES = 10  # tablets named in a sentence about a whole table


def plan_sizes(view: BundleView, options: BundleOptions, metrics: Mapping[str, Floats] | None = None) -> Proposals:
    """Splits and merges of a whole bundle.

    `metrics` has, by table name, the group's metric of each tablet of a table that is split and merged by it. A table
    with `desired_tablet_metric` that is not in it is measured by the rows it reads and writes per second.
    """
    blocked, cooling = blocked_tablets(view), Cooling(view, options.heat)
    scopes = [Scope(view, options, table, blocked, cooling) for table in view.tables if not table.whole]
    outside = [(scope, found) for scope in scopes if (found := _outside(scope, metrics or {})) is not None]
    most = max(FEWEST_OUTLIERS, MOST_OUTLIERS // max(1, len(outside)))
    for scope, (bounds, values, outliers) in outside:
        if not _switched_on(scope, outliers):
            continue
        if isinstance(bounds, LoadBounds):
            plan_load(scope, bounds, values, outliers)
        else:
            looked_at = _furthest(scope, bounds, outliers, most)
            (plan_hash if scope.table.hash else plan_range)(scope, bounds, looked_at)
    return _proposals(scopes)


def table_bounds(view: BundleView, options: BundleOptions, table: TableView) -> SizeBounds:
    """The size bounds of one table as it is now."""
    total = int(view.tablets.sizes[table.first : table.last].sum())
    return size_bounds(options.balancer, options.table(table.name), total, len(view.nodes), hashed=table.hash)


def double(view: BundleView, options: BundleOptions, table: TableView, only: frozenset[int] | None = None) -> Proposals:
    """Every vbucket of a hash table becomes two, whatever its size; all of them, or none for lack of numbers.

    `only` names the tablets that are left of an order that has begun: then the others are ignored.
    """
    scope = _ordered_scope(view, options, table)
    if only is not None or _whole_table(scope, ActionKind.SPLIT):
        for row in _rows_of(scope, only):
            _double_leaf(scope, row)
    return _proposals([scope])


def halve(view: BundleView, options: BundleOptions, table: TableView, only: frozenset[int] | None = None) -> Proposals:
    """Every two sibling vbuckets of a hash table become one, whatever their sizes; `only` as in `double`."""
    scope = _ordered_scope(view, options, table)
    if only is not None or _whole_table(scope, ActionKind.MERGE):
        for row in _rows_of(scope, only):
            _halve_leaf(scope, row)
    return _proposals([scope])


def _ordered_scope(view: BundleView, options: BundleOptions, table: TableView) -> Scope:
    return Scope(view, options, table, blocked_tablets(view), Cooling(view, options.heat), ordered=True)


def _rows_of(scope: Scope, only: frozenset[int] | None) -> list[int]:
    rows = range(scope.table.first, scope.table.last)
    return [row for row in rows if only is None or scope.id(row) in only]


def _outside(scope: Scope, metrics: Mapping[str, Floats]) -> tuple[SizeBounds | LoadBounds, Floats, list[int]] | None:
    """A table's bounds, what is measured by them, and the rows outside them; None if there are none."""
    table, wished = scope.table, scope.table_options
    part = slice(table.first, table.last)
    bounds = table_bounds(scope.view, scope.options, table)
    by_rows = wished.desired_tablet_metric is not None and wished.desired_tablet_count is None
    if table.name in metrics or by_rows:
        values = metrics[table.name] if table.name in metrics else scope.cooling.rates[part]
        loads = load_bounds(scope, bounds, values)
        if loads is not None:
            rows = load_outliers(scope, loads, values)
            return (loads, values, rows) if rows else None
    sizes = scope.view.tablets.sizes[part]
    rows = (np.flatnonzero((sizes < bounds.min) | (sizes > bounds.max)) + table.first).tolist()
    return (bounds, sizes, rows) if rows else None


def _furthest(scope: Scope, bounds: SizeBounds, outliers: list[int], most: int) -> list[int]:
    """The outliers that this plan looks at: the largest, and of those that are too small different ones each minute.

    Each costs time, and only a few are begun at once: a plan's time must not grow with what is wrong with a bundle.
    """
    if len(outliers) <= most:
        return outliers
    rows = np.array(outliers, dtype=np.int64)
    sizes = scope.view.tablets.sizes[rows]
    large, small = rows[sizes > bounds.max], rows[sizes < bounds.min]
    large = large[np.argsort(-scope.view.tablets.sizes[large], kind="stable")][: most // 2]
    room = most - len(large)
    turn = int(scope.view.now // 60) * room % max(len(small), 1)
    small = np.roll(small, -turn)[:room]
    left = len(outliers) - len(large) - len(small)
    text = f"{left} more tablets of {scope.table.name} are outside their bounds: later plans look at them"
    ids = tuple(scope.id(row) for row in outliers[:EXAMPLES])
    scope.rejections.append(Rejection(ActionKind.RESHARD, ids, "later", text))
    return list(np.sort(np.concatenate([large, small])).tolist())


def _switched_on(scope: Scope, outliers: list[int]) -> bool:
    """Whether the table's tablets may be split and merged automatically; says so once if they may not."""
    off = scope.switch()
    if not scope.options.balancer.enable_tablet_size_balancer:
        off = "size-balancer-off", "enable_tablet_size_balancer"
    if off is not None and outliers:
        ids = tuple(scope.id(row) for row in outliers[:EXAMPLES])
        text = f"{len(outliers)} tablets of {scope.table.name} are outside their bounds, but {off[1]} is false"
        scope.rejections.append(Rejection(ActionKind.RESHARD, ids, off[0], text))
    return off is None


def _whole_table(scope: Scope, kind: ActionKind) -> bool:
    """Whether all vbuckets of this table can be doubled or halved."""
    if scope.table.whole:
        reason = f"{scope.table.name} is a whole table: it is neither split nor merged"
        scope.rejections.append(Rejection(kind, (), "whole-table", reason))
    elif not scope.table.hash:
        reason = f"{scope.table.name} is a range table: only the vbuckets of a hash table are doubled and halved"
        scope.rejections.append(Rejection(kind, (), "range-table", reason))
    elif kind is ActionKind.SPLIT and 2 * scope.count >= MAX_TABLETS:
        reason = f"{scope.table.name} has {scope.count} vbuckets and would reach {MAX_TABLETS} tablets"
        scope.rejections.append(Rejection(kind, (), "tablet-limit", reason))
    return not scope.rejections


def _double_leaf(scope: Scope, row: int) -> None:
    why = f"the vbuckets of {scope.table.name} are doubled"
    obstacle = scope.obstacle(row)
    if obstacle is not None:
        scope.reject(range(row, row + 1), ActionKind.SPLIT, obstacle[0], f"{why}, but {obstacle[1]}")
        return
    split_leaf(scope, row, 2, "double", why)


def _halve_leaf(scope: Scope, row: int) -> None:
    if row in scope.used:
        return
    why = f"the vbuckets of {scope.table.name} are halved"
    obstacle = scope.obstacle(row)
    if obstacle is not None:
        scope.reject(range(row, row + 1), ActionKind.MERGE, obstacle[0], f"{why}, but {obstacle[1]}")
        return
    merge_leaf(scope, row, "halve", why)


def _proposals(scopes: list[Scope]) -> Proposals:
    actions = tuple(action for scope in scopes for action in scope.actions)
    return Proposals(actions, tuple(rejection for scope in scopes for rejection in scope.rejections))
