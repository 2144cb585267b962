"""Keeps a bundle's profile up to date from tick to tick. In memory only: the caller keeps it elsewhere too.

The tick and the simulator show it each view; in return they get what a plan sees of the profile. What is measured is
gathered and folded in when the hour ends.

What people see of a profile: each node's hours, and the tablets with the busiest ones. Pure.

`hot --profile` and the page show it; plans do not look at it.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from balancer.policies.day.dimensions import profile_columns
from balancer.policies.day.profile import DayProfile, Gathered, Parents, align, completed, fold, newest, no_profile
from balancer.policies.view import SLOTS, BundleView, Floats, Ints, NodeCondition, ProfileColumns, hour_slot

LONGEST_STEP: Final = 1800.0
"""Seconds for which one view may count: a process that slept for longer has not seen what happened meanwhile."""
_REWRITTEN: Final = 4  # hours whose notes know other tablets by now, written with each hour that ends


@dataclass(slots=True, eq=False)
class DayProfileCache:
    """One bundle's."""

    profile: DayProfile = field(default_factory=no_profile)
    changed: set[int] = field(default_factory=set)
    """Hours that must be saved; the caller removes them once it has saved them."""
    stale: list[int] = field(default_factory=list)
    """Hours that were saved for tablets that have been split or merged since: a few at the end of each hour."""
    _gathered: Gathered | None = None
    _last: float | None = None
    _seen: tuple[DayProfile, Ints, int, ProfileColumns | None] | None = None

    def note(
        self, view: BundleView, local: datetime, parents: Parents, measured: npt.NDArray[np.bool_] | None = None
    ) -> ProfileColumns | None:
        """One more view, at this local time. `measured`: which of its tablets have rates; None: all."""
        ids = view.tablets.ids
        # They are nearly always in the order in which they were made; then nothing is copied.
        increasing = bool((ids[1:] > ids[:-1]).all())
        order: Ints | slice = slice(None) if increasing else np.argsort(ids, kind="stable")
        self._align(ids[order], parents)
        known = np.ones(len(ids), dtype=np.bool_) if measured is None else measured[order]
        up = np.array([node.condition is not NodeCondition.DOWN for node in view.nodes], dtype=np.bool_)
        known = known & up[view.tablets.node[order]]
        gathered = self._present(local)
        if self._last is not None and view.now > self._last:
            rates = view.tablets.write_rate[order], view.tablets.read_rate[order]
            gathered.add(rates, known, min(view.now - self._last, LONGEST_STEP))
        self._last = view.now
        return self._columns(view)

    def take(self, other: DayProfile, parents: Parents) -> None:
        """Takes over what another instance has kept, if that is newer than what this one knows."""
        other = completed(other, parents)
        if not len(self.profile):
            self.profile = other
        elif len(other):
            self.profile = newest(self.profile, align(other, self.profile.ids, parents))

    def _align(self, ids: Ints, parents: Parents) -> None:
        before = self.profile
        self.profile = align(before, ids, parents)
        if self.profile is not before and len(before):
            self.stale = [slot for slot, levels in enumerate(self.profile.hours) if levels is not None]
        if self._gathered is not None:
            self._gathered = self._gathered.follow(ids)

    def _present(self, local: datetime) -> Gathered:
        """What is being gathered; what belongs to another hour is folded in first."""
        slot, day = hour_slot(local), local.toordinal()
        gathered = self._gathered
        if gathered is not None and (gathered.slot, gathered.day) != (slot, day):
            self._fold(gathered)
            gathered = None
        if gathered is None:
            gathered = self._gathered = Gathered(slot, day, self.profile.ids)
        return gathered

    def _fold(self, gathered: Gathered) -> None:
        if gathered.span > 0:
            self.profile = fold(self.profile, gathered)
            self.changed |= {gathered.slot, *self.stale[:_REWRITTEN]}
            self.stale = self.stale[_REWRITTEN:]

    def _columns(self, view: BundleView) -> ProfileColumns | None:
        """What a plan sees, in the view's order; made again only when an hour or the tablets have changed."""
        last, nodes = self._seen, len(view.nodes)
        if last is not None and last[0] is self.profile and last[2] == nodes and np.array_equal(last[1], _ids(view)):
            return last[3]
        found = profile_columns(self.profile, nodes)
        if found is not None:
            found = replace(found, rates=found.rates[:, np.searchsorted(self.profile.ids, _ids(view))])
        self._seen = self.profile, _ids(view), nodes, found
        return found


def _ids(view: BundleView) -> Ints:
    return view.tablets.ids


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
