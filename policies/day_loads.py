"""The parts of the day as dimensions of a plan: what each tablet does in each of them, and how much each counts.

`placement_loads` asks here for reads and writes. A node has the same processors at noon and at night, so a quiet part
of the day counts less than the busiest, and one that does next to nothing does not count.
"""

from dataclasses import dataclass

import numpy as np

from balancer.policies.bundle_view import BundleView, Floats
from balancer.policies.day_parts import base_of, named, span_of, span_text
from balancer.policies.day_profile import LOADS
from balancer.policies.options import BundleOptions, PlannedLoad

ALIKE = 0.05
"""Of a node's share: loads that differ by less on nodes with randomly placed tablets are one."""
_QUIET = 1 / 16  # of the busiest part's load: less does not count
NAMES = {
    "bytes": "bytes",
    "memory": "memory",
    "write_rate": "writes",
    "read_rate": "reads",
    "tablets": "tablets",
}


@dataclass(frozen=True, slots=True)
class DimensionColumn:
    """One dimension: each tablet's load, and how the dimension counts next to the others."""

    name: str
    load: Floats  # one entry per tablet of the view
    weight: float = 1.0
    """How much an excess counts, as a part of what it would count for now."""
    portion: float = 1.0
    """How much it adds to sums over dimensions: the many parts of a day must not outvote the bytes."""
    floor: float = 1.0
    """How much its load adds to the least gain of a move."""


def plans_by_profile(view: BundleView, options: BundleOptions) -> bool:
    """Whether a plan is made for the day: wanted, and a day is known."""
    return options.placement.load is PlannedLoad.PROFILE and view.profile is not None


def day_columns(view: BundleView, rate: str) -> list[DimensionColumn]:
    """Reads or writes by part of the day."""
    profile = view.profile
    assert profile is not None
    loads = [day_rates(view, rate, at) for at in range(len(profile.spans))]
    totals = np.array([load.sum() for load in loads])
    busiest = float(totals.max(initial=0.0))
    kept = np.flatnonzero(totals > busiest * _QUIET).tolist()
    return [
        DimensionColumn(
            named(rate, profile.spans[at]),
            loads[at],
            weight=float(np.sqrt(totals[at] / busiest)),
            portion=len(kept) ** -0.5,
            floor=len(kept) ** -1.5,
        )
        for at in kept
    ]


def without_doubles(columns: list[DimensionColumn], nodes: int) -> list[DimensionColumn]:
    """Without reads of a part of the day that lie like its writes, or vice versa: what counts more stays."""
    kept: list[DimensionColumn] = []
    for column in columns:
        span = span_of(column.name)
        rival = next((one for one in kept if span is not None and span_of(one.name) == span), None)
        if rival is None or nodes * float(((rival.load - column.load) ** 2).sum()) > ALIKE**2:
            kept.append(column)
        elif column.weight > rival.weight:
            kept = [column if one is rival else one for one in kept]
    return kept


def dimension_text(name: str) -> str:
    """A dimension as sentences name it: `writes`, or `writes from 18 to 21 h`."""
    span = span_of(name)
    text = NAMES[base_of(name)]
    return text if span is None else f"{text} {span_text(span)}"


def tablet_rate(view: BundleView, row: int, name: str) -> float:
    """What a tablet reads or writes per second in the part of the day that a dimension is about, or now."""
    base, span = base_of(name), span_of(name)
    now = (view.tablets.write_rate if base == "write_rate" else view.tablets.read_rate)[row]
    if span is None or view.profile is None:
        return float(now)
    rate = float(view.profile.rates[LOADS.index(base), row, view.profile.spans.index(span)])
    return float(now) if np.isnan(rate) else rate


def day_rates(view: BundleView, rate: str, at: int) -> Floats:
    """T: one load in one part of the day. A tablet that was not seen in it counts with what it does now."""
    assert view.profile is not None
    found = view.profile.rates[LOADS.index(rate), :, at]
    now = view.tablets.write_rate if rate == "write_rate" else view.tablets.read_rate
    return np.where(np.isnan(found), now, found)
