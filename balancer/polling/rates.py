"""Counters become rates: exponential averages over 10 and 60 minutes, per tablet. Columns, because there are many.

k = exp(−Δt / (window / 2)), rate = new · (1 − k) + old · k, divided by the part of the window that has been seen: while
a tablet is younger than a window, its rate is the average over its life, and no first interval (a pause of the
application, or a burst) outweighs those that follow. A counter that went down was reset, and what it shows now was
counted since. A tablet whose partition is a different one than before (it moved) starts a new baseline and keeps its
rates: they are the best guess there is. For a tablet that a split or a merge has made, so are its parents' rates, until
it has been measured itself. Time is given; nothing here reads a clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from balancer.policies.bundle_view import Floats, Ints

COUNTERS = ("inserted", "updated", "deleted", "sequential_reads", "index_reads", "sequential_scans")
KINDS = ("writes", "sequential_reads", "index_reads", "sequential_scans")
"""What rates are kept for: rows that are written count together."""
WINDOWS = (600.0, 3600.0)
WRITES, SEQUENTIAL, INDEX, SCANS = range(len(KINDS))
_WRITTEN = 3  # the first this many counters
ROWS_OF_A_SCAN = 100.0
"""The most rows that a sequential scan counts for. Small tables are looked up by scanning them, again and again: those
rows are traffic. One scan of a large one is a dump, a new index or a report: it asks for no key, and splitting the
tablet would not make it cheaper. Larger: such scans look like heat. Smaller: lookups by scanning look like none."""

Rows = Ints | slice
"""Places in columns; a slice: all of them."""

GUESS = 1e-9  # the part of a window that a guess counts for: the first measurement outweighs it


class Heir(NamedTuple):
    """Where a tablet comes from: the tablets it was made from, and how many were made from them."""

    parents: tuple[int, ...]
    siblings: int


@dataclass(frozen=True, slots=True, eq=False)
class CounterSample:
    """Tablets as polls saw them, one row each, sorted by id."""

    ids: Ints
    sources: Ints
    """Which counters these are: changes when the partition or the server's statistics are different ones."""
    at: Floats
    """Seconds at which each row was measured, on any clock that does not jump."""
    counters: Floats  # (len(COUNTERS), tablets)
    sizes: Floats
    rows: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Rates:
    """What is known about every tablet after some samples, sorted by id. A value; `advance` makes the next one."""

    ids: Ints
    last: CounterSample
    rates: Floats  # (len(KINDS), len(WINDOWS), tablets), per second
    seen: Floats  # (len(WINDOWS), tablets): what part of each window the rates rest on, from 0 to 1

    @property
    def measured(self) -> npt.NDArray[np.bool_]:
        """Whether a tablet has any rate yet: it takes two samples."""
        return np.asarray(self.seen[0] > 0)

    def write_rate(self, window: int = 0) -> Floats:
        """Rows written per second; windows by their index in WINDOWS."""
        return np.asarray(self.rates[WRITES, window])

    def read_rate(self, window: int = 0) -> Floats:
        """Rows read per second, without those of long scans."""
        return np.asarray(self.rates[INDEX, window] + self._short_scans(window))

    def scan_rate(self, window: int = 0) -> Floats:
        """Rows read per second by long sequential scans."""
        return np.asarray(self.rates[SEQUENTIAL, window] - self._short_scans(window))

    def _short_scans(self, window: int) -> Floats:
        return np.asarray(np.minimum(self.rates[SEQUENTIAL, window], ROWS_OF_A_SCAN * self.rates[SCANS, window]))


def empty_sample() -> CounterSample:
    """No tablets."""
    none = np.zeros(0)
    return CounterSample(np.zeros(0, np.int64), np.zeros(0, np.int64), none, np.zeros((len(COUNTERS), 0)), none, none)


def first_rates() -> Rates:
    """Nothing known yet."""
    shape = (len(KINDS), len(WINDOWS), 0)
    return Rates(np.zeros(0, np.int64), empty_sample(), np.zeros(shape), np.zeros((len(WINDOWS), 0)))


def advance(before: Rates, sample: CounterSample, known: Ints, heirs: Mapping[int, Heir] | None = None) -> Rates:
    """The rates after one more sample.

    `known` are the tablets that exist, sorted. Those that the sample lacks (their node did not answer) keep what was
    last seen of them; those that no longer exist are forgotten. `heirs` are tablets that were made from others.
    """
    merged = _merge(before.last, sample, known)
    old_rows, new_rows = _common(before.ids, merged.ids)
    if isinstance(new_rows, slice):
        rates, seen = before.rates.copy(), before.seen.copy()
    else:
        rates = np.zeros((len(KINDS), len(WINDOWS), len(merged.ids)))
        seen = np.zeros((len(WINDOWS), len(merged.ids)))
        rates[..., new_rows] = before.rates[..., old_rows]
        seen[:, new_rows] = before.seen[:, old_rows]
        _inherit(before, merged.ids, heirs or {}, rates, seen)
    then, now = before.last, merged
    elapsed = now.at[new_rows] - then.at[old_rows]
    usable = (elapsed > 0) & (now.sources[new_rows] == then.sources[old_rows])
    if not usable.all():
        old_rows, new_rows, elapsed = _some(old_rows, usable), _some(new_rows, usable), elapsed[usable]
    if len(elapsed) and elapsed.min() == elapsed.max():
        elapsed = elapsed[:1]  # asked at the same moment, as nearly always: what depends on the time is one number
    if now.counters is then.counters and isinstance(new_rows, slice):
        current = np.zeros((len(KINDS), 1))  # nobody has done anything
    else:
        current = _increase(then.counters[:, old_rows], now.counters[:, new_rows])
        current /= elapsed
    for place, window in enumerate(WINDOWS):
        keep = np.exp(-elapsed / (window / 2))
        old, new = seen[place, new_rows] * keep, 1 - keep
        share = new / (old + new)
        for kind in range(len(KINDS)):
            rates[kind, place, new_rows] += (current[kind] - rates[kind, place, new_rows]) * share
        seen[place, new_rows] = old + new
    return Rates(merged.ids, merged, rates, seen)


def _inherit(before: Rates, ids: Ints, heirs: Mapping[int, Heir], rates: Floats, seen: Floats) -> None:
    """New tablets made from ones with rates get their share of those, which counts for next to nothing."""
    for tablet, heir in heirs.items():
        row = _row(ids, tablet)
        if row is None or seen[:, row].any():
            continue
        parents = [place for parent in heir.parents if (place := _row(before.ids, parent)) is not None]
        parents = [place for place in parents if before.seen[0, place] > 0]
        if parents:
            rates[..., row] = before.rates[..., parents].sum(axis=-1) / heir.siblings
            seen[:, row] = GUESS


def _row(ids: Ints, tablet: int) -> int | None:
    row = int(np.searchsorted(ids, tablet))
    return row if row < len(ids) and ids[row] == tablet else None


def _increase(then: Floats, now: Floats) -> Floats:
    """By how much counters have grown, as `KINDS`: what is written is one of them. One after the other: all together
    would be in memory several times over."""
    grown = np.zeros((len(KINDS), now.shape[1]))
    for counter, (before, after) in enumerate(zip(then, now, strict=True)):
        more = after - before
        reset = more < 0
        if reset.any():
            more[reset] = after[reset]
        grown[max(0, counter - _WRITTEN + 1)] += more
    return grown


def _common(left: Ints, right: Ints) -> tuple[Rows, Rows]:
    """The places of the ids that both have; if they are equal, all, without a copy."""
    if left is right or np.array_equal(left, right):
        return slice(None), slice(None)
    _, here, there = np.intersect1d(left, right, assume_unique=True, return_indices=True)
    return here, there


def _some(rows: Rows, chosen: npt.NDArray[np.bool_]) -> Rows:
    return np.flatnonzero(chosen) if isinstance(rows, slice) else rows[chosen]


def _merge(old: CounterSample, new: CounterSample, known: Ints) -> CounterSample:
    """The new rows, and the old ones of known tablets that are not among them."""
    if new.ids is known or np.array_equal(new.ids, known):
        return new
    keep, fresh = _within(old.ids, known) & ~_within(old.ids, new.ids), _within(new.ids, known)
    ids = np.concatenate([old.ids[keep], new.ids[fresh]])
    order = np.argsort(ids, kind="stable")

    def join(mine: Floats, theirs: Floats) -> Floats:
        return np.concatenate([mine[..., keep], theirs[..., fresh]], axis=-1)[..., order]

    ids = ids[order]
    return CounterSample(
        old.ids if np.array_equal(old.ids, ids) else ids,
        np.concatenate([old.sources[keep], new.sources[fresh]])[order],
        join(old.at, new.at),
        join(old.counters, new.counters),
        join(old.sizes, new.sizes),
        join(old.rows, new.rows),
    )


def _within(ids: Ints, others: Ints) -> npt.NDArray[np.bool_]:
    """Which of them are among the others; both increasing."""
    if not len(others):
        return np.zeros(len(ids), np.bool_)
    return np.asarray(others[np.minimum(np.searchsorted(others, ids), len(others) - 1)] == ids)
