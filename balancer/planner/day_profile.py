"""Keeps a bundle's profile in the directory: notes, so that a restart or a new leader knows what the day is like.

Notes, not a table on the nodes: a profile is about all nodes, must be available when one of them is down, and is not
part of the truth. Only the leader writes, when an hour ends: that hour, and a few of those whose notes still name
tablets that have been split or merged since. An hour is one note of some 28 kB for 16,384 tablets, 62 of them for a
million.

The notes by which a bundle's profile outlives its leader: their format, their writer and their reader.

One topic per bundle, one note per hour and `CHUNK` tablets, named `HOUR.CHUNK`: {"day": the local day's ordinal,
"seen": how much was seen, "data": tablets' ids, as differences of 8 bytes, then a byte for writes and one for reads of
each}. Anybody may leave a note, so the reader takes nothing for granted: it skips what is not one.
"""

import base64
import binascii
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

from balancer.directory.contract import Directory
from balancer.directory.model import Json
from balancer.directory.store.codec import inflate
from balancer.policies.day.book import DayProfileCache, DayReport, day_report
from balancer.policies.day.profile import LOADS, UNKNOWN, DayProfile, Levels, Parents, coarse, fine, no_profile
from balancer.policies.view import SLOTS, BundleView, Ints, ProfileColumns
from balancer.polling.rates import Rates

MANY = 100_000
"""Number of tablets from which a report takes a second, and is not made again for every move …"""
KEPT_SECONDS = 600.0
"""… but after this many seconds."""


class ProfileKeeper:
    """For one bundle; belongs to its ticks."""

    def __init__(self, bundle: str) -> None:
        self._topic = topic_of(bundle)
        self.book = DayProfileCache()
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


CHUNK: Final = 16_384
"""Tablets per note: even if nothing could be compressed, it would be smaller than a note may be."""
_BYTES = 8 + len(LOADS)  # of a tablet
_LAST_DAY = 3_652_059  # of the calendar: 9999-12-31
_MOST_SEEN = 100.0
_NAME = re.compile(r"(\d{1,2})\.(\d{1,6})", re.ASCII)
_Found = tuple[int, float, Ints, Levels]  # day, how much was seen, tablets, their levels


def topic_of(bundle: str) -> str:
    """The topic of a bundle's notes."""
    return f"profile-{bundle}"


def profile_notes(profile: DayProfile, slot: int) -> Iterator[tuple[str, dict[str, Json]]]:
    """The notes of one hour, by name."""
    levels = profile.hours[slot]
    if levels is None:
        return
    narrow = coarse(levels)
    for number, first in enumerate(range(0, len(profile), CHUNK)):
        part = slice(first, first + CHUNK)
        raw = np.diff(profile.ids[part], prepend=0).astype("<i8").tobytes() + narrow[:, part].tobytes()
        data = base64.b64encode(zlib.compress(raw, 6)).decode()
        yield f"{slot}.{number}", {"day": profile.days[slot], "seen": profile.seen[slot], "data": data}


def slot_of_name(name: str) -> int | None:
    """The hour that a note is about; None: it is not a note of a profile."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match is not None and int(match[1]) < SLOTS else None


def read_profile(notes: Mapping[str, Json]) -> DayProfile:
    """The profile in the notes of a bundle."""
    found: dict[int, list[_Found]] = {}
    for name, note in sorted(notes.items()):
        slot = slot_of_name(name)
        if slot is not None:
            try:
                found.setdefault(slot, []).append(_read(note))
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError, binascii.Error, zlib.error):
                continue
    found = {slot: parts for slot, parts in found.items() if parts}
    if not found:
        return no_profile()
    ids = np.unique(np.concatenate([part[2] for parts in found.values() for part in parts]))
    hours: list[Levels | None] = [None] * SLOTS
    seen, days = [0.0] * SLOTS, [0] * SLOTS
    for slot, parts in found.items():
        hours[slot] = _joined(ids, parts)
        # For an hour that was half rewritten, the older day and the lower `seen` count.
        days[slot], seen[slot] = min(part[0] for part in parts), min(part[1] for part in parts)
    return DayProfile(ids, tuple(hours), tuple(seen), tuple(days))


def _joined(ids: Ints, parts: list[_Found]) -> Levels:
    levels = np.full((len(LOADS), len(ids)), UNKNOWN, np.uint16)
    for _, _, mine, own in parts:
        levels[:, np.searchsorted(ids, mine)] = own
    return levels


def _read(note: Json) -> _Found:
    day, seen = int(note["day"]), float(note["seen"])
    raw = inflate(base64.b64decode(note["data"], validate=True), CHUNK * _BYTES)
    count, rest = divmod(len(raw), _BYTES)
    if rest or not 0 < day <= _LAST_DAY or not 0.0 <= seen <= _MOST_SEEN:
        raise ValueError("it is no note of a profile")
    steps = np.frombuffer(raw[: 8 * count], dtype="<i8").astype(np.int64)
    ids = np.cumsum(steps)
    if (steps <= 0).any() or (ids <= 0).any():
        raise ValueError("its tablets are not in order")
    levels = np.frombuffer(raw[8 * count :], dtype=np.uint8).reshape(len(LOADS), count)
    return day, seen, ids, fine(levels)
