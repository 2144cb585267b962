"""Which nodes should be closed to new data, and which of those the daemon closed may be opened again.

Two thresholds each, so that a node does not flap: it closes at the upper one and opens below the lower one. What an
operator has closed stays closed. A node is closed for its load only if that lasts: a burst is over before the first
tablet has gone elsewhere.
"""

from collections.abc import Mapping

import numpy as np

from balancer.policies.bundle_view import BundleView, Floats, NodeChange, NodeCondition, NodeView
from balancer.policies.figures import share_text
from balancer.policies.options import BundleOptions
from balancer.policies.placement_loads import Bools, Problem, node_shares, sums


def node_changes(problem: Problem, options: BundleOptions) -> tuple[NodeChange, ...]:
    """What should change, by node id."""
    rates = _relative_rates(problem, options)
    changes = []
    for at, node in enumerate(problem.nodes):
        full, hot = disk_share(problem, at), float(rates[at])
        if node.condition is NodeCondition.ACTIVE:
            change = _closing(node.id, full, hot if _lasts(problem.view, node.id, options) else 0.0, options)
        elif node.condition is NodeCondition.CLOSED and node.closed_by_daemon:
            change = _reopening(node.id, full, hot, options)
        else:
            change = None
        if change is not None:
            changes.append(change)
    return tuple(changes)


def overloaded_since(view: BundleView, options: BundleOptions, before: Mapping[str, float]) -> dict[str, float]:
    """Node → since when it is overloaded, at this poll; `before` is what the previous poll said.

    From the view alone, because every poll asks: a plan that starts nothing is not made again each time.
    """
    rates = view.tablets.write_rate + view.tablets.read_rate
    held = np.bincount(view.tablets.node, weights=rates, minlength=len(view.nodes)).astype(np.float64, copy=False)
    counted = np.array([node.condition not in _ABSENT for node in view.nodes], dtype=np.bool_)
    relative = _relative(held, counted, view.nodes, options)
    over = np.flatnonzero(relative >= options.placement.close_at_load).tolist()
    return {view.nodes[at].id: before.get(view.nodes[at].id, view.now) for at in over}


def _lasts(view: BundleView, node: str, options: BundleOptions) -> bool:
    since = view.overloaded_since.get(node)
    return since is not None and view.now - since >= options.placement.close_after


def disk_share(problem: Problem, at: int) -> float | None:
    """The part of a node's disk that is in use, with what is in flight; None: its size is unknown."""
    capacity = problem.nodes[at].disk_capacity
    if not capacity:
        return None
    return float(problem.disk_used[at]) / capacity


def _closing(node: str, full: float | None, hot: float, options: BundleOptions) -> NodeChange | None:
    settings = options.placement
    if full is not None and full >= settings.close_at_disk_share:
        limit = share_text(settings.close_at_disk_share)
        reason = f"its disk is {share_text(full)} full: at {limit} a node gets no new data"
        return NodeChange(node, NodeCondition.CLOSED, "disk-full", reason)
    if hot >= settings.close_at_load:
        reason = (
            f"it does {hot:.1f} times its share of reads and writes: at {settings.close_at_load:.1f} it gets no more"
        )
        return NodeChange(node, NodeCondition.CLOSED, "too-hot", reason)
    return None


def _reopening(node: str, full: float | None, hot: float, options: BundleOptions) -> NodeChange | None:
    settings = options.placement
    if (full is None or full < settings.reopen_at_disk_share) and hot < settings.reopen_at_load:
        disk = "" if full is None else f"its disk is {share_text(full)} full and "
        reason = f"{disk}it does {hot:.1f} times its share of reads and writes: it can take new data again"
        return NodeChange(node, NodeCondition.ACTIVE, "reopened", reason)
    return None


def _relative_rates(problem: Problem, options: BundleOptions) -> Floats:
    """N: each node's reads and writes relative to its share; 0 if there is too little load to speak of heat."""
    columns = problem.view.tablets
    rates = (columns.write_rate + columns.read_rate)[problem.rows]
    held = sums(problem.home, rates[:, None], len(problem.nodes))[:, 0]
    return _relative(held, ~problem.conditions(*_ABSENT), problem.nodes, options)


_ABSENT = (NodeCondition.DOWN, NodeCondition.DRAINING)


def _relative(held: Floats, counted: Bools, nodes: tuple[NodeView, ...], options: BundleOptions) -> Floats:
    shares = node_shares(nodes, "write_rate") * counted
    due = held[counted].sum() * shares / max(float(shares.sum()), 1e-300)
    relative = np.divide(held, due, out=np.zeros_like(held), where=due > 0)
    return np.where(held >= options.heat.min_rows_per_second, relative, 0.0)
