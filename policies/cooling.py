"""How hot a tablet may be, and when tablets are cool enough to be merged.

`heat` asks for the threshold when it looks for hot tablets, `sizes` and `heat` before they propose a merge: if the two
disagreed, one would split what the other has merged.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from balancer.policies.bundle_view import BundleView, Floats
from balancer.policies.figures import rate_text
from balancer.policies.options import HeatOptions

JOINT = 0.75
"""The part of the threshold that tablets may carry together when they are merged: the rest keeps them from being split
again when the load wanders."""


@dataclass(frozen=True)
class Cooling:
    """The loads of one bundle and the thresholds over them."""

    view: BundleView
    options: HeatOptions

    @cached_property
    def rates(self) -> Floats:
        """Rows read and written per second, per tablet."""
        return self.view.tablets.write_rate + self.view.tablets.read_rate

    @cached_property
    def node_loads(self) -> Floats:
        """Rows per second, per node."""
        loads = np.bincount(self.view.tablets.node, weights=self.rates, minlength=len(self.view.nodes))
        return loads.astype(np.float64, copy=False)

    @cached_property
    def thresholds(self) -> Floats:
        """Rows per second from which a tablet is hot, per tablet.

        A node that does less than the average counts as an average one: the only tablet of a newly added node is all of
        its load, and splitting it would gain nothing.
        """
        loads = np.maximum(self.node_loads, self.node_loads.mean() if len(self.node_loads) else 0.0)
        relative = np.maximum(self.options.min_rows_per_second, self.options.max_node_share * loads)
        if self.options.max_rows_per_second is not None:
            relative = np.minimum(relative, self.options.max_rows_per_second)
        return np.asarray(relative[self.view.tablets.node], np.float64)

    @property
    def even_threshold(self) -> float:
        """Rows per second from which a tablet would be hot if all nodes did the same."""
        mean = float(self.node_loads.mean()) if len(self.node_loads) else 0.0
        limit = self.options.max_rows_per_second
        relative = max(self.options.min_rows_per_second, self.options.max_node_share * mean)
        return relative if limit is None else min(relative, limit)

    @cached_property
    def hot_now(self) -> npt.NDArray[np.bool_]:
        """Which tablets are over their threshold; equal shares that add up to it are not, whatever rounding says."""
        return np.asarray(self.rates > self.thresholds * (1 + 1e-9), np.bool_)

    @cached_property
    def scanned_now(self) -> npt.NDArray[np.bool_]:
        """Which tablets would be hot if the rows of long scans counted."""
        scans = self.view.tablets.scan_rate
        if scans is None:
            return np.zeros(len(self.rates), np.bool_)
        return np.asarray(scans > self.thresholds, np.bool_)

    @cached_property
    def warm_now(self) -> npt.NDArray[np.bool_]:
        """Which tablets are not below half of their threshold at this moment."""
        return np.asarray(self.rates >= self.thresholds / 2, np.bool_)

    def recent_maximum(self, row: int) -> float:
        """The highest rate of the last five minutes; the current one if nothing is remembered."""
        history = self.view.history.get(int(self.view.tablets.ids[row]))
        remembered = None if history is None else history.max_rate_5m
        return max(remembered or 0.0, float(self.rates[row]))

    def too_warm(self, rows: range, count: int = 1) -> str | None:
        """Why these tablets may not become this many others yet; None: they may."""
        watched = self.options.enable and bool(self.warm_now[rows.start : rows.stop].any())
        if not watched and not self.view.history:
            return None
        found = next((reason for row in rows if (reason := self._warm_text(row)) is not None), None)
        return found or self._joint_text(rows, count)

    def _joint_text(self, rows: range, count: int) -> str | None:
        """Why the result would be hot again, or nearly, on a node that does no more than others.

        Half a threshold each is not enough: their node may do more than the others, and what is cool there is hot as
        soon as it is balanced.
        """
        if not self.options.enable:
            return None
        total, limit = sum(map(self.recent_maximum, rows)) / count, JOINT * self.even_threshold
        if total < limit:
            return None
        return f"together they had {rate_text(total)} in the last five minutes, not below {rate_text(limit)}"

    def _warm_text(self, row: int) -> str | None:
        tablet = int(self.view.tablets.ids[row])
        history = self.view.history.get(tablet)
        split_at = None if history is None else history.split_for_heat_at
        if split_at is None and not self.options.enable:
            return None  # but what heat has split is protected even while its schedule is closed
        if split_at is not None and self.view.now - split_at < self.options.min_split_age:
            age, rest = (self.view.now - split_at) / 60, self.options.min_split_age / 60
            return f"tablet {tablet} was split for heat {age:.0f} minutes ago and rests for {rest:.0f}"
        recent, limit = self.recent_maximum(row), float(self.thresholds[row]) / 2
        if recent < limit:
            return None
        return f"tablet {tablet} had {rate_text(recent)} in the last five minutes, not below {rate_text(limit)}"
