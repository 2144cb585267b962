"""What people see of a profile: each node's hours, and the tablets with the busiest ones. Pure.

`hot --profile` and the page show it; plans do not look at it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from balancer.policies.bundle_view import BundleView, Floats, NodeCondition
from balancer.policies.day_parts import SLOTS
from balancer.policies.day_profile import DayProfile

MOST_PEAKS = 20


class PeakHour(NamedTuple):
    """A tablet and the hour in which it reads and writes most."""

    tablet: int
    table: str
    node: str
    slot: int
    write_rate: float
    read_rate: float
    size: float


@dataclass(frozen=True, slots=True, eq=False)
class DayReport:
    """One bundle's day, as its tablets lie now."""

    relative: Floats  # SLOTS × nodes of the view: rows read and written over an equal share of all; NaN: not known
    peaks: tuple[PeakHour, ...]  # the busiest first


def day_report(profile: DayProfile, view: BundleView) -> DayReport | None:
    """The report; None: nothing is known yet, or only about other tablets."""
    order = np.argsort(view.tablets.ids, kind="stable")
    if not any(levels is not None for levels in profile.hours) or not np.array_equal(
        view.tablets.ids[order], profile.ids
    ):
        return None
    relative = np.full((SLOTS, len(view.nodes)), np.nan)
    most, at = np.zeros(len(profile), np.float32), np.zeros(len(profile), np.int64)
    for slot, levels in enumerate(profile.hours):
        if levels is not None:
            rates = np.nan_to_num(profile.rates(slot)).sum(axis=0)
            held = np.bincount(view.tablets.node[order], rates, len(view.nodes)).astype(np.float64)
            relative[slot] = _relative(view, held)
            at[rates > most] = slot
            most = np.maximum(most, rates)
    rows = np.argsort(-most, kind="stable")[:MOST_PEAKS]
    return DayReport(relative, tuple(_peak(profile, view, int(order[row]), row, int(at[row])) for row in rows.tolist()))


def _relative(view: BundleView, held: Floats) -> Floats:
    """Nodes: what each does over its share by weight; a node that is down has none."""
    weights = np.array([node.weight * (node.condition is not NodeCondition.DOWN) for node in view.nodes])
    share = held.sum() * weights / max(float(weights.sum()), 1e-300)
    relative: Floats = np.divide(held, share, out=np.zeros_like(held), where=share > 0)
    return relative


def _peak(profile: DayProfile, view: BundleView, place: int, row: int, slot: int) -> PeakHour:
    written, read = np.nan_to_num(profile.rates(slot)[:, row]).tolist()
    return PeakHour(
        tablet=int(view.tablets.ids[place]),
        table=next(table.name for table in view.tables if table.first <= place < table.last),
        node=view.nodes[int(view.tablets.node[place])].id,
        slot=slot,
        write_rate=written,
        read_rate=read,
        size=float(view.tablets.sizes[place]),
    )
