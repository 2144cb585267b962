"""Keeps a bundle's profile in the directory: notes, so that a restart or a new leader knows what the day is like.

Notes, and not a table on the nodes: a profile is about all nodes, must be there when one of them is down, and has no
part in the truth. Only the leader writes, once an hour and when a part of the day ends, and only the part that changed:
one note of some 28 kB for 16,384 tablets, 62 of them for a million.
"""

from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

from balancer.directory.contract import Directory
from balancer.directory.profile_note import part_of_name, profile_notes, read_profile, topic_of
from balancer.policies.bundle_view import BundleView, ProfileColumns
from balancer.policies.day_book import DayBook
from balancer.policies.day_profile import Parents
from balancer.polling.rates import Rates


class ProfileKeeper:
    """One bundle's; belongs to its ticks."""

    def __init__(self, bundle: str) -> None:
        self._topic = topic_of(bundle)
        self._book = DayBook()
        self._read = False
        self._leading: object | None = None

    def read(self, directory: Directory, leading: object | None) -> None:
        """Takes what is noted and newer: at the first tick, and at the first of each leadership."""
        if not self._read or (leading is not None and leading is not self._leading):
            self._book.take(read_profile(directory.published(self._topic)), {})
            self._read = True
        self._leading = leading

    def note(self, view: BundleView, now: datetime, timezone: str, rates: Rates, parents: Parents) -> ProfileColumns:
        """One more view; what plans see of the profile."""
        return self._book.note(view, now.astimezone(ZoneInfo(timezone)), parents, _measured(view, rates))

    def write(self, directory: Directory) -> None:
        """Leaves notes of what has changed; what fails is tried again at the next tick."""
        if not self._book.changed:
            return
        known = [name for name in directory.published(self._topic) if part_of_name(name) is not None]
        for part in sorted(self._book.changed):
            written = dict(profile_notes(self._book.profile, part))
            for name, note in written.items():
                directory.publish(self._topic, name, note)
            for name in known:
                if part_of_name(name) == part and name not in written:
                    directory.unpublish(self._topic, name)
            self._book.changed.discard(part)


def _measured(view: BundleView, rates: Rates) -> npt.NDArray[np.bool_]:
    """Which of the view's tablets have rates."""
    if not len(rates.ids):
        return np.zeros(len(view.tablets), dtype=np.bool_)
    places = np.minimum(np.searchsorted(rates.ids, view.tablets.ids), len(rates.ids) - 1)
    found: npt.NDArray[np.bool_] = (rates.ids[places] == view.tablets.ids) & rates.measured[places]
    return found
