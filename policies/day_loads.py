"""The parts of the day as dimensions of a plan: what each tablet does in each of them, and how much each counts.

`placement_loads` asks here for reads and writes. A node has the same processors at noon and at night, so a quiet part
of the day counts less than the busiest, and one that does next to nothing does not count. Large bundles are planned by
longer parts: the time of a plan must not grow with the length of the day.
"""

from dataclasses import dataclass

import numpy as np

from balancer.policies.bundle_view import BundleView, Floats
from balancer.policies.day_parts import PARTS, base_of, named, part_text, parts_of
from balancer.policies.day_profile import LOADS, coarse_rates, is_known, known_parts
from balancer.policies.options import BundleOptions, PlannedLoad

_CELLS = 8_000_000  # tablets × dimensions of a plan, at most
_TOGETHER = (1, 2, 3, PARTS)  # parts in one dimension; all of these divide a day
_ALIKE = 0.05  # of a node's share: parts of the day that differ by less on nodes are one dimension
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
    """One dimension: each tablet's load, and how the dimension counts beside the others."""

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
    wanted = options.placement.load is PlannedLoad.PROFILE
    return wanted and view.profile is not None and is_known(view.profile.seen)


def day_columns(view: BundleView, rate: str) -> list[DimensionColumn]:
    """Reads or writes by part of the day. A tablet that was not seen in a part counts with what it does now."""
    profile = view.profile
    assert profile is not None
    now = view.tablets.write_rate if rate == "write_rate" else view.tablets.read_rate
    levels = profile.levels[:, LOADS.index(rate)]
    spans = _spans(known_parts(profile.seen), len(view.tablets))
    loads = [
        sum((coarse_rates(levels[:, part], now) for part in parts), np.zeros(len(now))) / len(parts) for parts in spans
    ]
    totals = np.array([load.sum() for load in loads])
    busiest = float(totals.max(initial=0.0))
    kept = _different(loads, totals, len(view.nodes))
    count = max(len(kept), 1)
    return [
        DimensionColumn(
            named(rate, spans[at][0], spans[at][-1]),
            loads[at],
            weight=float(np.sqrt(totals[at] / busiest)),
            portion=count**-0.5,
            floor=count**-1.5,
        )
        for at in kept
    ]


def dimension_text(name: str) -> str:
    """A dimension as sentences name it: `writes`, or `writes from 18 to 21 h`."""
    parts = parts_of(name)
    text = NAMES[base_of(name)]
    return text if parts is None else f"{text} {part_text(*parts)}"


def tablet_rate(view: BundleView, row: int, name: str) -> float:
    """What a tablet reads or writes per second in the part of the day that a dimension is about, or now."""
    base, parts = base_of(name), parts_of(name)
    now = (view.tablets.write_rate if base == "write_rate" else view.tablets.read_rate)[row]
    if parts is None or view.profile is None:
        return float(now)
    levels = view.profile.levels[row, LOADS.index(base), parts[0] : parts[1] + 1]
    return float(coarse_rates(levels, np.full(len(levels), now)).mean())


def _different(loads: list[Floats], totals: Floats, nodes: int) -> list[int]:
    """The parts of the day that count, of those that are alike the busiest: to even out one is to even out all."""
    kept: list[int] = []
    for at in np.argsort(-totals, kind="stable").tolist():
        if totals[at] <= totals.max() * _QUIET:
            break
        if not any(_alike(loads[at] / totals[at], loads[other] / totals[other], nodes) for other in kept):
            kept.append(at)
    return sorted(kept)


def _alike(one: Floats, other: Floats, nodes: int) -> bool:
    """Whether nodes have about as much of one as of the other: how far they differ where tablets lie at random."""
    return float(np.sqrt(nodes * ((one - other) ** 2).sum())) <= _ALIKE


def _spans(parts: list[int], tablets: int) -> list[list[int]]:
    """The parts of the day, taken together so that the plan stays small: by ones, twos, threes, or whole days."""
    cells = tablets * len(LOADS) * len(parts)
    together = next((number for number in _TOGETHER if cells <= _CELLS * number), PARTS)
    return [parts[at : at + together] for at in range(0, len(parts), together)]
