"""Whether a bundle is as it was when last planned: then planning again would find nothing again. Pure.

The tick asks before it plans: most bundles are idle most of the time, or wait for what is running, and planning
thousands of tablets is the most expensive thing a tick does. Only a plan that can start nothing is kept, and only for a
while, because time itself (a cool-down that ends, a failure that has aged) may change the answer.
"""

from dataclasses import replace

import numpy as np

from balancer.policies.bundle_view import BundleView, Floats, NodeView, PlanResult

KEPT_SECONDS = 60.0
RELATIVE = 0.01
BYTES = 1 << 20
ROWS_PER_SECOND = 0.5
"""Smaller differences are ignored: they are far below any threshold of the policies."""


def starts_nothing(plan: PlanResult) -> bool:
    """Whether a plan starts nothing at all: what it wants has to wait for what is running, or forever."""
    return not (plan.actions or plan.node_changes)


def much_the_same(before: BundleView, after: BundleView) -> bool:
    """Whether nothing that a plan could see has changed, except the time."""
    if not 0.0 <= after.now - before.now <= KEPT_SECONDS:
        return False
    if (
        before.profile is not after.profile
        or after.samples
        or _facts(before) != _facts(after)
        or _longer(before, after)
    ):
        return False
    nodes = zip(before.nodes, after.nodes, strict=True)
    return all(_same_node(*pair) for pair in nodes) and _same_tablets(before, after)


def _facts(view: BundleView) -> tuple[object, ...]:
    return (
        *(view.bundle, len(view.nodes), view.tables, view.pinned, view.quarantined, view.in_flight, view.samples),
        *(dict(view.history), view.bytes_moved_in_window, view.measured_bytes_per_second, view.balancing),
        view.overloaded_since,
    )


def _longer(before: BundleView, after: BundleView) -> bool:
    """Whether there is more time than there was: what did not fit may fit now."""
    then, now = before.window_seconds_left, after.window_seconds_left
    return then is not None and (now is None or now > then)


def _same_node(before: NodeView, after: NodeView) -> bool:
    if replace(before, disk_used=None) != replace(after, disk_used=None):
        return False
    used = before.disk_used, after.disk_used
    return used[0] == used[1] or (None not in used and _close(np.array(used[0]), np.array(used[1]), BYTES))


def _same_tablets(before: BundleView, after: BundleView) -> bool:
    old, new = before.tablets, after.tablets
    exact = all(
        np.array_equal(getattr(old, name), getattr(new, name)) for name in ("ids", "node", "moduli", "remainders")
    )
    if not exact or old.lowers != new.lowers:
        return False
    sizes = all(_close(getattr(old, name), getattr(new, name), BYTES) for name in ("sizes", "memory"))
    return sizes and all(_same_rate(getattr(old, name), getattr(new, name)) for name in _RATES)


_RATES = ("write_rate", "read_rate", "write_rate_1h", "read_rate_1h", "scan_rate")


def _same_rate(before: Floats | None, after: Floats | None) -> bool:
    if before is None or after is None:
        return before is after
    return _close(before, after, ROWS_PER_SECOND)


def _close(before: Floats, after: Floats, least: float) -> bool:
    return bool(np.allclose(after, before, rtol=RELATIVE, atol=least))
