"""Keeps a bundle's profile up to date from tick to tick. In memory only: who calls it keeps it elsewhere, too.

The tick and the simulator show it each view; in return they get what a plan sees of the profile. What is measured is
gathered and folded in once an hour, and when a part of the day ends.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import numpy as np
import numpy.typing as npt

from balancer.policies.bundle_view import BundleView, NodeCondition, ProfileColumns
from balancer.policies.day_parts import day_part
from balancer.policies.day_profile import (
    DayProfile,
    Gathered,
    Parents,
    align,
    columns,
    fold,
    newest,
    no_profile,
)

FOLD_SECONDS: Final = 3600.0
LONGEST_STEP: Final = 1800.0
"""Seconds for which one view may stand: a process that slept for longer has not seen what happened meanwhile."""


@dataclass(slots=True, eq=False)
class DayBook:
    """One bundle's."""

    profile: DayProfile = field(default_factory=no_profile)
    changed: set[int] = field(default_factory=set)
    """Parts of the day that were folded since somebody last cleared this."""
    _gathered: Gathered | None = None
    _last: float | None = None

    def note(
        self, view: BundleView, local: datetime, parents: Parents, measured: npt.NDArray[np.bool_] | None = None
    ) -> ProfileColumns:
        """One more view, at this local time. `measured`: which of its tablets have rates; None: all."""
        order = np.argsort(view.tablets.ids, kind="stable")
        ids = view.tablets.ids[order]
        self.profile = align(self.profile, ids, parents)
        known = np.ones(len(ids), dtype=np.bool_) if measured is None else measured[order]
        up = np.array([node.condition is not NodeCondition.DOWN for node in view.nodes], dtype=np.bool_)
        known &= up[view.tablets.node[order]]
        rates = np.stack([view.tablets.write_rate[order], view.tablets.read_rate[order]], axis=1)
        gathered = self._present(local, ids)
        if self._last is not None and view.now > self._last:
            gathered.add(rates, known, min(view.now - self._last, LONGEST_STEP))
        self._last = view.now
        if gathered.span >= FOLD_SECONDS:
            self._fold()
        return columns(self.profile, view.tablets.ids)

    def take(self, other: DayProfile, parents: Parents) -> None:
        """What another instance has kept, where that is newer than what this one knows."""
        if not len(self.profile):
            self.profile = other
        elif len(other):
            self.profile = newest(self.profile, align(other, self.profile.ids, parents))

    def _present(self, local: datetime, ids: npt.NDArray[np.int64]) -> Gathered:
        """What is being gathered; what belongs to another part of the day is folded in first."""
        part, day = day_part(local), local.toordinal()
        gathered = self._gathered
        if gathered is not None:
            gathered = self._gathered = gathered.follow(ids)
            if (gathered.part, gathered.day) != (part, day):
                self._fold()
        if self._gathered is None:
            self._gathered = Gathered(part, day, ids)
        return self._gathered

    def _fold(self) -> None:
        if self._gathered is not None and self._gathered.span > 0:
            self.profile = fold(self.profile, self._gathered)
            self.changed.add(self._gathered.part)
        self._gathered = None
