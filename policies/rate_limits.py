"""Capacities for reads and writes as columns: what each tablet counts for, and what each node has left.

`placement_loads` asks when it builds a problem. If a plan is made for the day, a capacity holds in every part of it as
well as now: a node that can bear its tablets at three in the morning must also bear them at noon.
"""

from dataclasses import dataclass

import numpy as np

from balancer.policies.bundle_view import BundleView, Floats, Ints, NodeView
from balancer.policies.day_loads import NAMES, day_rates, plans_by_profile
from balancer.policies.day_parts import DaySpan, span_text
from balancer.policies.options import BundleOptions

_CAPACITIES = {"write_rate": "write_capacity", "read_rate": "read_capacity"}


@dataclass(frozen=True, slots=True)
class RateLimit:
    """One capacity: of reads or writes, now or in a part of the day."""

    rate: str
    span: DaySpan | None = None

    @property
    def text(self) -> str:
        """As sentences name it: `writes`, `reads from 18 to 21 h`."""
        return NAMES[self.rate] + (f" {span_text(self.span)}" if self.span else "")

    def capacity(self, node: NodeView) -> float:
        """What a node may do of it per second; infinite if nothing is said."""
        found: float | None = getattr(node, _CAPACITIES[self.rate])
        return np.inf if found is None else found


def rate_limits(
    view: BundleView, options: BundleOptions, nodes: tuple[NodeView, ...], rows: Ints, home: Ints
) -> tuple[tuple[RateLimit, ...], Floats, Floats]:
    """The limits (K), what each tablet counts for (T×K), and what each node has left (N×K), in the problem's order."""
    limits: list[RateLimit] = []
    loads: list[Floats] = []
    for rate, name in _CAPACITIES.items():
        if all(getattr(node, name) is None for node in nodes):
            continue
        now = view.tablets.write_rate if rate == "write_rate" else view.tablets.read_rate
        limits.append(RateLimit(rate))
        loads.append(now[rows])
        if plans_by_profile(view, options) and view.profile is not None:
            limits += [RateLimit(rate, span) for span in view.profile.spans]
            loads += [day_rates(view, rate, at)[rows] for at in range(len(view.profile.spans))]
    if not limits:
        return (), np.zeros((len(rows), 0)), np.zeros((len(nodes), 0))
    held = np.stack([np.bincount(home, weights=load, minlength=len(nodes)) for load in loads], axis=1)
    capacity = np.array([[limit.capacity(node) for limit in limits] for node in nodes])
    return tuple(limits), np.stack(loads, axis=1), capacity - held
