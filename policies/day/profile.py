"""What each tablet reads and writes in every hour of the day: a decaying mean over days, bounded and in columns.

Two bytes for each of 2 loads × 48 hours (24 of a working day, 24 of the weekend), and the tablet's id: 200 bytes a
tablet, 200 MB for a million; 12 more while an hour is gathered. Rates are kept as levels, that is by their logarithm,
so that two bytes cover a range from one row per minute to a hundred million per second, accurate to 0.03 %. The
directory keeps one byte of them, 96 bytes a tablet, accurate to 4 % at worst. Plans see means over a few parts of the
day (see `dimensions`).

While an hour lasts, rates are gathered; then `fold` adds them to the mean of the days before. It is a mean over the
time that was seen: an hour that was half seen counts half, whether the daemon was down or the clocks were changed. With
each day the past counts for `KEEP` of what it did. `align` follows splits and merges: a split gives each part its
share, a merge adds. Time is given; nothing here reads a clock.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from balancer.policies.view import HOURS, SLOT_SECONDS, SLOTS, Floats, Ints, days_a_week

LOADS: Final = ("write_rate", "read_rate")
KEEP: Final = 0.75
"""A day counts for this much of the day after it: four fifths of the mean come from the last five days of its kind."""
KNOWN: Final = 0.5
"""How much of an hour must have been seen for its mean to be trusted."""
WHOLE_DAY: Final = 22
"""Hours that must be known for the day to be known: a daemon that sleeps for an hour each night still knows its day."""
UNKNOWN: Final = 0xFFFF
COARSE_UNKNOWN: Final = 0xFF

Singles = npt.NDArray[np.float32]
Levels = npt.NDArray[np.uint16]  # LOADS × tablets: one hour
Parents = Mapping[int, tuple[tuple[int, ...], int]]
"""Tablets that splits and merges have made: the tablets that each was made from, and how many were made from them."""

_REPEATED = 0.25  # of an hour's mean: a tablet that does less on the day after has not repeated it
_LEAST = 0.1  # rows per second: a lower rate is next to none
_OCTAVE = 2167.0  # levels between a rate and its double
_HIGHEST = 0xFDFF  # so that the coarse level of no rate is COARSE_UNKNOWN
_RATES: Singles = (_LEAST * np.expm1(np.arange(0x10000) * (np.log(2.0) / _OCTAVE))).astype(np.float32)
_RATES[UNKNOWN] = np.nan
_Value = TypeVar("_Value")
_GENERATIONS = 4  # that lie between the notes of two hours, at most: a day's
_DEPTH = 64  # generations of splits and merges that are traced back


@dataclass(frozen=True, slots=True, eq=False)
class DayProfile:
    """All tablets of a bundle, sorted by id. A value; folding and aligning make the next one."""

    ids: Ints
    hours: tuple[Levels | None, ...] = (None,) * SLOTS  # None: never seen
    seen: tuple[float, ...] = (0.0,) * SLOTS  # how much of each hour was seen, in hours; older ones count less
    days: tuple[int, ...] = (0,) * SLOTS  # the local day (its ordinal) on which each was seen last; 0: never

    def __len__(self) -> int:
        return len(self.ids)

    def rates(self, slot: int) -> Singles:
        """LOADS × tablets: rows per second in an hour; NaN where nothing is known."""
        levels = self.hours[slot]
        if levels is None:
            return np.full((len(LOADS), len(self.ids)), np.nan, np.float32)
        found: Singles = _RATES[levels]
        return found

    def known_hours(self) -> list[int]:
        """The hours that can be planned for: of working days, and of weekends once a whole day of them is known."""
        kinds = (range(HOURS), range(HOURS, SLOTS))
        known = [[slot for slot in kind if self.seen[slot] >= KNOWN] for kind in kinds]
        if len(known[0]) < WHOLE_DAY:
            return []
        return known[0] + (known[1] if len(known[1]) >= WHOLE_DAY else [])


@dataclass(slots=True, eq=False)
class Gathered:
    """What has been measured in the current hour."""

    slot: int
    day: int
    ids: Ints
    span: float = 0.0  # seconds
    seconds: Singles = field(init=False)  # T: how long each tablet was measured
    rows: Singles = field(init=False)  # LOADS × T

    def __post_init__(self) -> None:
        self.seconds = np.zeros(len(self.ids), np.float32)
        self.rows = np.zeros((len(LOADS), len(self.ids)), np.float32)

    def add(self, rates: tuple[Floats, Floats], measured: npt.NDArray[np.bool_], seconds: float) -> None:
        """Adds this many seconds in which tablets had these rates, by load; those not measured are left out."""
        held = np.where(measured, np.float32(seconds), np.float32(0.0))
        self.seconds += held
        for load, rate in enumerate(rates):
            self.rows[load] += (rate * held).astype(np.float32)
        self.span += seconds

    def follow(self, ids: Ints) -> "Gathered":
        """The same for other tablets: what was gathered for those that still exist stays."""
        if ids is self.ids or np.array_equal(ids, self.ids):
            return self
        made = Gathered(self.slot, self.day, ids, self.span)
        _, old, new = np.intersect1d(self.ids, ids, assume_unique=True, return_indices=True)
        made.seconds[new], made.rows[:, new] = self.seconds[old], self.rows[:, old]
        return made


def no_profile() -> DayProfile:
    """Nothing known."""
    return DayProfile(np.zeros(0, np.int64))


def levels_of(rates: npt.NDArray[np.floating]) -> Levels:
    """Rows per second as levels; NaN is unknown."""
    logs = np.log1p(np.maximum(np.nan_to_num(rates), 0.0) / _LEAST) * (_OCTAVE / np.log(2.0))
    levels = np.minimum(np.rint(logs), _HIGHEST).astype(np.uint16)
    return np.where(np.isnan(rates), np.uint16(UNKNOWN), levels)


def coarse(levels: Levels) -> npt.NDArray[np.uint8]:
    """The levels in one byte."""
    rounded = np.minimum(levels.astype(np.uint32) + 0x80, 0xFFFF) >> 8
    return rounded.astype(np.uint8)


def fine(levels: npt.NDArray[np.uint8]) -> Levels:
    """Levels of one byte in two."""
    wide = levels.astype(np.uint16) << 8
    return np.where(levels == COARSE_UNKNOWN, UNKNOWN, wide).astype(np.uint16)


def align(profile: DayProfile, ids: Ints, parents: Parents) -> DayProfile:
    """The profile of exactly these tablets (sorted). Those made from others get their share of the others' loads.

    Hour by hour: notes of different age know different tablets.
    """
    if ids is profile.ids or np.array_equal(ids, profile.ids):
        return profile
    _, old, new = np.intersect1d(profile.ids, ids, assume_unique=True, return_indices=True)
    legacy = _legacy(profile.ids, ids, parents)
    hours: list[Levels | None] = []
    for levels in profile.hours:
        if levels is None:
            hours.append(None)
            continue
        made = np.full((len(LOADS), len(ids)), UNKNOWN, np.uint16)
        made[:, new] = levels[:, old]
        if legacy is not None:
            _inherit(made, levels, legacy)
        hours.append(made)
    return replace(profile, ids=ids, hours=tuple(hours))


def completed(profile: DayProfile, parents: Parents) -> DayProfile:
    """The profile in which tablets have their ancestors' hours where they have none of their own: notes of different
    age know different generations."""
    legacy = _legacy(profile.ids, profile.ids, parents)
    if legacy is None:
        return profile
    hours = [None if levels is None else levels.copy() for levels in profile.hours]
    for levels in [one for one in hours if one is not None]:
        for _ in range(_GENERATIONS):
            _inherit(levels, levels, legacy)
    return replace(profile, hours=tuple(hours))


def fold(profile: DayProfile, gathered: Gathered) -> DayProfile:
    """The profile with what was gathered; it must be aligned to the same tablets."""
    slot, share = gathered.slot, gathered.span / SLOT_SECONDS
    if not share:
        return profile
    before = profile.seen[slot] * KEEP ** _days_between(profile, gathered)
    old = profile.rates(slot)
    weight = gathered.seconds / np.float32(SLOT_SECONDS)
    with np.errstate(invalid="ignore", divide="ignore"):
        measured = gathered.rows / gathered.seconds
        mean = old + (measured - old) * (weight / (np.float32(before) + weight))
        # A peak that the day after did not repeat was none of the day: it is forgotten at once, not learned away.
        passed = (measured < _REPEATED * old) & (weight >= KNOWN)
    mean = np.where(np.isnan(old) | passed, measured, mean)
    levels = levels_of(np.where(gathered.seconds > 0, mean, old))
    return replace(
        profile,
        hours=_put(profile.hours, slot, levels),
        seen=_put(profile.seen, slot, before + share),
        days=_put(profile.days, slot, max(profile.days[slot], gathered.day)),
    )


def newest(mine: DayProfile, other: DayProfile) -> DayProfile:
    """The newer of two profiles, hour by hour. They must be aligned to the same tablets."""
    hours, seen, days = list(mine.hours), list(mine.seen), list(mine.days)
    for slot in range(SLOTS):
        ours, theirs = mine.hours[slot], other.hours[slot]
        if theirs is None or (other.days[slot], other.seen[slot]) <= (days[slot], seen[slot]):
            continue
        hours[slot] = theirs if ours is None else np.where(theirs != UNKNOWN, theirs, ours)
        seen[slot], days[slot] = other.seen[slot], other.days[slot]
    return DayProfile(mine.ids, tuple(hours), tuple(seen), tuple(days))


def _put(values: tuple[_Value, ...], at: int, value: _Value) -> tuple[_Value, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _days_between(profile: DayProfile, gathered: Gathered) -> float:
    """How many days of its kind have passed since the hour was last seen; a clock set back: none."""
    last = profile.days[gathered.slot]
    if not last or gathered.day <= last:
        return 0.0
    return max(1.0, (gathered.day - last) * days_a_week(gathered.slot) / 7.0)


@dataclass(frozen=True, slots=True)
class _Legacy:
    """Who may inherit from whom: rows of the new tablets, rows of known ancestors, and the share of each."""

    heirs: Ints
    givers: Ints
    shares: Floats


def _legacy(known: Ints, ids: Ints, parents: Parents) -> _Legacy | None:
    """For tablets that splits and merges have made: all ancestors of each that the profile knows."""
    made = [tablet for tablet in parents if _at(ids, tablet) is not None]
    found = [
        (_at(ids, tablet), giver, share) for tablet in sorted(made) for giver, share in _givers(tablet, known, parents)
    ]
    if not found:
        return None
    heirs, givers, shares = zip(*found, strict=True)
    return _Legacy(np.array(heirs, np.int64), np.array(givers, np.int64), np.array(shares, np.float64))


def _givers(tablet: int, known: Ints, parents: Parents, depth: int = 0) -> Iterator[tuple[int, float]]:
    """The nearest ancestors that the profile knows; they may be gone, and theirs too, if nobody looked for a while.

    The depth limit ends a cycle of descent, which only a broken directory has.
    """
    names, siblings = parents.get(tablet, ((), 1))
    for name in names if depth < _DEPTH else ():
        at = _at(known, name)
        if at is not None:
            yield at, 1.0 / max(siblings, 1)
        else:
            for row, share in _givers(name, known, parents, depth + 1):
                yield row, share / max(siblings, 1)


def _at(ids: Ints, tablet: int) -> int | None:
    at = int(np.searchsorted(ids, tablet))
    return at if at < len(ids) and ids[at] == tablet else None


def _inherit(made: Levels, before: Levels, legacy: _Legacy) -> None:
    """Fills in what is unknown about tablets that were made from others, in one hour."""
    heirs, places = np.unique(legacy.heirs, return_inverse=True)
    for load in range(len(LOADS)):
        given = _RATES[before[load, legacy.givers]] * legacy.shares
        known = ~np.isnan(given)
        total = np.bincount(places, weights=np.where(known, given, 0.0), minlength=len(heirs))
        some = np.bincount(places, weights=known, minlength=len(heirs)) > 0
        own = made[load, heirs]
        made[load, heirs] = np.where((own == UNKNOWN) & some, levels_of(total.astype(np.float64)), own)
