"""What each tablet reads and writes in every part of the day: a mean over days that forgets, bounded and in columns.

Two bytes for each of 2 loads × 12 parts of the day, and the tablet's id: 56 bytes a tablet, 56 MB for a million; 12
more while they are gathered. Rates are kept as levels, that is by their logarithm, so that two bytes reach from a row
in a minute to a hundred million in a second, each to 0.03 %. Plans see, and the directory keeps, one byte of them: 24
bytes a tablet, each to 4 % at worst, 0.4 % over the hundred tablets of a node. That is coarse enough that a plan does
not change with every breath of the load.

While a part of the day lasts, rates are gathered; then `fold` adds them to the mean of the days before. A mean over the
time that was seen: a day that was half seen counts half, whether the daemon was down or the clocks were changed. With
each day the past counts for `KEEP` of what it did. `align` follows splits and merges: a split gives each part its
share, a merge adds. Time is given; nothing here reads a clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from balancer.policies.bundle_view import Floats, Ints, ProfileColumns
from balancer.policies.day_parts import DAY_PARTS, PART_SECONDS, PARTS, WORKING, days_a_week

LOADS: Final = ("write_rate", "read_rate")
KEEP: Final = 0.75
"""A day counts for so much of the day after it: four fifths of the mean come from the last five days of its kind."""
KNOWN: Final = 0.5
"""How much of a part of the day must have been seen for its mean to be believed."""
UNKNOWN: Final = 0xFFFF
COARSE_UNKNOWN: Final = 0xFF

Singles = npt.NDArray[np.float32]
Levels = npt.NDArray[np.uint16]
Parents = Mapping[int, tuple[tuple[int, ...], int]]
"""Tablets that splits and merges have made: the tablets that each was made of, and how many were made of them."""

_LEAST = 0.1  # rows per second: below it a rate is next to none
_OCTAVE = 2167.0  # levels between a rate and its double
_HIGHEST = 0xFDFF  # so that the coarse level of no rate is COARSE_UNKNOWN
_RATES = _LEAST * np.expm1(np.arange(0x10000) * (np.log(2.0) / _OCTAVE))
_COARSE_RATES = _RATES[(np.arange(0x100) << 8)].copy()


@dataclass(frozen=True, slots=True, eq=False)
class DayProfile:
    """All tablets of a bundle, sorted by id. A value; folding and aligning make the next one."""

    ids: Ints
    levels: Levels  # (tablets, len(LOADS), DAY_PARTS)
    seen: Floats  # DAY_PARTS: how much of each was seen, in whole parts; older ones count less
    days: Ints  # DAY_PARTS: the local day (its ordinal) on which each was seen last; 0: never

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(slots=True, eq=False)
class Gathered:
    """What has been measured in the present part of the day since it was last folded."""

    part: int
    day: int
    ids: Ints
    span: float = 0.0  # seconds
    seconds: Singles = field(init=False)  # T: how long each tablet was measured
    rows: Singles = field(init=False)  # T × LOADS

    def __post_init__(self) -> None:
        self.seconds = np.zeros(len(self.ids), np.float32)
        self.rows = np.zeros((len(self.ids), len(LOADS)), np.float32)

    def add(self, rates: Floats, measured: npt.NDArray[np.bool_], seconds: float) -> None:
        """So many seconds in which tablets had these rates (T × LOADS); those not measured are left out."""
        held = np.where(measured, np.float32(seconds), np.float32(0.0))
        self.seconds += held
        self.rows += (rates * held[:, None]).astype(np.float32)
        self.span += seconds

    def follow(self, ids: Ints) -> "Gathered":
        """The same for other tablets: what those that are still there have gathered stays."""
        if ids is self.ids or np.array_equal(ids, self.ids):
            return self
        made = Gathered(self.part, self.day, ids, self.span)
        _, old, new = np.intersect1d(self.ids, ids, assume_unique=True, return_indices=True)
        made.seconds[new], made.rows[new] = self.seconds[old], self.rows[old]
        return made


def no_profile() -> DayProfile:
    """Nothing known."""
    shape = (0, len(LOADS), DAY_PARTS)
    nothing = np.zeros(DAY_PARTS, dtype=np.int64)
    return DayProfile(np.zeros(0, np.int64), np.zeros(shape, np.uint16), np.zeros(DAY_PARTS), nothing)


def levels_of(rates: Floats) -> Levels:
    """Rows per second as levels."""
    logs = np.log1p(np.maximum(rates, 0.0) / _LEAST) * (_OCTAVE / np.log(2.0))
    levels: Levels = np.minimum(np.rint(logs), _HIGHEST).astype(np.uint16)
    return levels


def rates_of(levels: Levels) -> Floats:
    """Levels as rows per second; what is unknown counts as none."""
    return np.where(levels == UNKNOWN, 0.0, _RATES[levels])


def coarse(levels: Levels) -> npt.NDArray[np.uint8]:
    """The levels in one byte."""
    rounded = np.minimum(levels.astype(np.uint32) + 0x80, 0xFFFF) >> 8
    return rounded.astype(np.uint8)


def fine(levels: npt.NDArray[np.uint8]) -> Levels:
    """Levels of one byte in two."""
    wide = levels.astype(np.uint16) << 8
    return np.where(levels == COARSE_UNKNOWN, UNKNOWN, wide).astype(np.uint16)


def coarse_rates(levels: npt.NDArray[np.uint8], unknown: Floats) -> Floats:
    """Levels of one byte as rows per second; `unknown` is what stands in for those that are not known."""
    return np.where(levels == COARSE_UNKNOWN, unknown, _COARSE_RATES[levels])


def align(profile: DayProfile, ids: Ints, parents: Parents) -> DayProfile:
    """The profile of exactly these tablets (sorted). What was made of others has its share of theirs."""
    if len(ids) == len(profile) and np.array_equal(ids, profile.ids):
        return profile
    levels = np.full((len(ids), len(LOADS), DAY_PARTS), UNKNOWN, dtype=np.uint16)
    _, old, new = np.intersect1d(profile.ids, ids, assume_unique=True, return_indices=True)
    levels[new] = profile.levels[old]
    missing = np.setdiff1d(ids, profile.ids, assume_unique=True)
    if len(missing) and len(profile):
        known = _Family(profile, parents)
        for tablet in missing.tolist():
            found = known.of(tablet)
            if found is not None:
                levels[np.searchsorted(ids, tablet)] = found
    return replace(profile, ids=ids, levels=levels)


def fold(profile: DayProfile, gathered: Gathered) -> DayProfile:
    """The profile with what was gathered; it must be aligned to the same tablets."""
    part, share = gathered.part, gathered.span / PART_SECONDS
    if not share:
        return profile
    before = float(profile.seen[part]) * KEEP ** _days_between(profile, gathered)
    levels, seen, days = profile.levels.copy(), profile.seen.copy(), profile.days.copy()
    rows = np.flatnonzero(gathered.seconds > 0)
    measured = gathered.rows[rows] / gathered.seconds[rows, None]
    weight = (gathered.seconds[rows] / PART_SECONDS)[:, None]
    old = levels[rows, :, part]
    means = rates_of(old)
    means += (measured - means) * weight / (before + weight)
    levels[rows, :, part] = levels_of(np.where(old == UNKNOWN, measured, means))
    seen[part], days[part] = before + share, max(int(days[part]), gathered.day)
    return DayProfile(profile.ids, levels, seen, days)


def newest(mine: DayProfile, other: DayProfile) -> DayProfile:
    """Of two profiles the newer one, part of the day by part of the day. They must be aligned to the same tablets."""
    later = (other.days > mine.days) | ((other.days == mine.days) & (other.seen > mine.seen))
    if not later.any():
        return mine
    levels = np.where(later & (other.levels != UNKNOWN), other.levels, mine.levels)
    return DayProfile(mine.ids, levels, np.where(later, other.seen, mine.seen), np.where(later, other.days, mine.days))


def columns(profile: DayProfile, ids: Ints) -> ProfileColumns:
    """What a plan sees: the rows of these tablets, all of which the profile has."""
    rows = np.searchsorted(profile.ids, ids)
    return ProfileColumns(coarse(profile.levels[rows]), profile.seen.copy())


def is_known(seen: Floats) -> bool:
    """Whether a whole working day has been seen: then it can be planned for."""
    return bool((seen[WORKING] >= KNOWN).all())


def known_parts(seen: Floats) -> list[int]:
    """The parts of the day that can be planned for: of working days, and of weekends once a whole one was seen."""
    kinds = (range(PARTS), range(PARTS, DAY_PARTS))
    return [part for kind in kinds if (seen[list(kind)] >= KNOWN).all() for part in kind]


def _days_between(profile: DayProfile, gathered: Gathered) -> float:
    """How many days of its kind have passed since the part of the day was last seen; a clock set back: none."""
    last = int(profile.days[gathered.part])
    if not last or gathered.day <= last:
        return 0.0
    return max(1.0, (gathered.day - last) * days_a_week(gathered.part) / 7.0)


class _Family:
    """Looks up levels by descent: parents may be gone, and theirs too, where nobody looked for a while."""

    def __init__(self, profile: DayProfile, parents: Parents) -> None:
        self._profile, self._parents = profile, parents
        self._found: dict[int, Levels | None] = {}

    def of(self, tablet: int) -> Levels | None:
        """A tablet's levels (LOADS × DAY_PARTS), its own or its share of its parents'; None: nothing is known."""
        if tablet in self._found:
            return self._found[tablet]
        self._found[tablet] = None  # a circle of descent, which only a broken directory has, ends here
        self._found[tablet] = self._own(tablet)
        if self._found[tablet] is None:
            self._found[tablet] = self._inherited(tablet)
        return self._found[tablet]

    def _own(self, tablet: int) -> Levels | None:
        at = int(np.searchsorted(self._profile.ids, tablet))
        if at < len(self._profile) and self._profile.ids[at] == tablet:
            own: Levels = self._profile.levels[at]
            return own
        return None

    def _inherited(self, tablet: int) -> Levels | None:
        parents, siblings = self._parents.get(tablet, ((), 1))
        found = [levels for levels in map(self.of, parents) if levels is not None]
        if not found:
            return None
        stacked = np.stack(found)
        total = levels_of(rates_of(stacked).sum(axis=0) / max(siblings, 1))
        unknown = np.asarray((stacked == UNKNOWN).all(axis=0))
        return np.where(unknown, np.uint16(UNKNOWN), total).astype(np.uint16)
