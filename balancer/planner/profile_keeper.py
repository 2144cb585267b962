"""Keeps a bundle's profile in the directory: notes, so that a restart or a new leader knows what the day is like.

Notes, not a table on the nodes: a profile is about all nodes, must be available when one of them is down, and is not
part of the truth. Only the leader writes, when an hour ends: that hour, and a few of those whose notes still name
tablets that have been split or merged since. An hour is one note of some 28 kB for 16,384 tablets, 62 of them for a
million.
"""

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

from balancer.directory.contract import Directory
from balancer.directory.profile_note import profile_notes, read_profile, slot_of_name, topic_of
from balancer.policies.bundle_view import BundleView, Ints, ProfileColumns
from balancer.policies.day_book import DayBook
from balancer.policies.day_profile import DayProfile, Parents
from balancer.policies.day_report import DayReport, day_report
from balancer.polling.rates import Rates

MANY = 100_000
"""Number of tablets from which a report takes a second, and is not made again for every move …"""
KEPT_SECONDS = 600.0
"""… but after this many seconds."""


class ProfileKeeper:
    """For one bundle; belongs to its ticks."""

    def __init__(self, bundle: str) -> None:
        self._topic = topic_of(bundle)
        self.book = DayBook()
        self._read = False
        self._leading: object | None = None
        self._reported: _Reported | None = None

    def read(self, directory: Directory, leading: object | None, parents: Parents) -> None:
        """Takes over notes that are newer: at the first tick, and at the first of each leadership."""
        if not self._read or (leading is not None and leading is not self._leading):
            self.book.take(read_profile(directory.published(self._topic)), parents)
            self._read = True
        self._leading = leading

    def note(
        self, view: BundleView, now: datetime, timezone: str, rates: Rates, parents: Parents
    ) -> ProfileColumns | None:
        """Adds one more view; returns what plans see of the profile."""
        return self.book.note(view, now.astimezone(ZoneInfo(timezone)), parents, _measured(view, rates))

    def report(self, view: BundleView) -> DayReport | None:
        """What people are shown; made again when an hour has ended or a tablet has moved."""
        last, profile = self._reported, self.book.profile
        if last is None or last.profile is not profile or not last.stands(view):
            last = self._reported = _Reported(profile, view.now, view.tablets.node, day_report(profile, view))
        return last.report

    def write(self, directory: Directory) -> None:
        """Leaves notes of what has changed; what fails is retried at the next tick."""
        if not self.book.changed:
            return
        known = list(directory.published(self._topic))
        for slot in sorted(self.book.changed):
            written = dict(profile_notes(self.book.profile, slot))
            for name, note in written.items():
                directory.publish(self._topic, name, note)
            for name in known:
                if slot_of_name(name) == slot and name not in written:
                    directory.unpublish(self._topic, name)
            self.book.changed.discard(slot)


@dataclass(frozen=True, slots=True, eq=False)
class _Reported:
    """A report, and what it was made of."""

    profile: DayProfile
    at: float
    nodes: Ints
    report: DayReport | None

    def stands(self, view: BundleView) -> bool:
        """Whether it is still true; with very many tablets, some of which move all the time, nearly true is enough."""
        if len(self.nodes) == len(view.tablets) > MANY and 0.0 <= view.now - self.at < KEPT_SECONDS:
            return True
        return np.array_equal(self.nodes, view.tablets.node)


def _measured(view: BundleView, rates: Rates) -> npt.NDArray[np.bool_]:
    """Which of the view's tablets have rates."""
    if not len(rates.ids):
        return np.zeros(len(view.tablets), dtype=np.bool_)
    places = np.minimum(np.searchsorted(rates.ids, view.tablets.ids), len(rates.ids) - 1)
    found: npt.NDArray[np.bool_] = (rates.ids[places] == view.tablets.ids) & rates.measured[places]
    return found
