"""Counters become rates: exponential averages over 10 and 60 minutes, per tablet. Columns, because there are many.

k = exp(−Δt / (window / 2)), rate = new · (1 − k) + old · k, divided by the part of the window that has been seen: while
a tablet is younger than a window, its rate is the average over its life, and no first interval (a pause of the
application, or a burst) outweighs those that follow. A counter that went down was reset, and what it shows now was
counted since. A tablet whose partition is a different one than before (it moved) starts a new baseline and keeps its
rates: they are the best guess there is. For a tablet that a split or a merge has made, so are its parents' rates, until
it has been measured itself. Time is given; nothing here reads a clock.

The answers of all nodes as one sample: what each tablet holds and has done, in columns. Only the owner's partitions
count: a copy in the making does not.

Which counters our own work has touched, so that the poller does not take it for load. Pure.

A copy, a checksum or a split reads every row, and PostgreSQL counts that like anybody's reads. The poller makes a
tablet's number from here part of where its counters come from: when it changes, the tablet's rates begin a new interval
instead of showing what we did.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from balancer.directory.model import Migration
from balancer.directory.snapshot import Snapshot
from balancer.policies.view import Floats, Ints
from balancer.polling.node_poll import FIGURES, NodePoll
from balancer.polling.tablet_index import NOBODY, TabletIndex, nothing_on

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


_SIZES = [FIGURES.index(name) for name in ("heap_bytes", "toast_bytes", "index_bytes")]
_ROWS = FIGURES.index("rows")
_COUNTERS = [FIGURES.index(name) for name in COUNTERS]
_OID = FIGURES.index("oid")
_NO_IDS = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """Where the partitions of all nodes, one node after the other, belong among the tablets."""

    owners: tuple[Ints, ...]
    """Of each node's partitions; what this was made from."""
    order: Ints
    """Places of the partitions of tablets, in the order of the tablets' ids."""
    starts: Ints
    """Where each tablet's partitions begin in that order."""
    ids: Ints

    def summed(self, figures: Ints) -> Ints:
        """Figures of partitions, in columns, summed for each tablet."""
        ordered = figures[..., self.order]
        if len(self.starts) == len(self.order):
            return ordered
        return np.asarray(np.add.reduceat(ordered, self.starts, axis=-1)) if len(self.starts) else ordered


class CounterSampler:
    """Keeps the layout, which changes only when a partition comes or goes, and the last sample. For one poller."""

    def __init__(self) -> None:
        self._layout = _Layout((), _NO_IDS, _NO_IDS, _NO_IDS)
        self._made_of: tuple[list[Ints], Ints] = [], _NO_IDS
        self._last = empty_sample()

    def sample(
        self, answers: Mapping[str, NodePoll], index: TabletIndex, at: float, touched: Mapping[int, int]
    ) -> CounterSample:
        """Sums the partitions of each tablet; `touched`: see `rates`. Reuses the columns of the last sample if no
        node has anything new to say."""
        owners = tuple(
            (index.by_node.get(node) or nothing_on(node)).owners(answer.partitions.named)
            for node, answer in answers.items()
        )
        layout, before = self._kept(owners), self._layout
        self._layout = layout
        polls, servers = [answer.partitions.numbers for answer in answers.values()], _servers(answers)
        last, known = self._last, self._made_of
        if layout is not before or not _same_objects(known[0], polls) or not np.array_equal(known[1], servers):
            last = self._last = self._summed(layout, polls, servers)
            self._made_of = polls, servers
        return CounterSample(
            last.ids,
            _changed(last.ids, last.sources, touched),
            np.full(len(last.ids), at),
            last.counters,
            last.sizes,
            last.rows,
        )

    def _summed(self, layout: _Layout, polls: Sequence[Ints], servers: Ints) -> CounterSample:
        """One figure after the other: all of them at once would be in memory several times over."""

        def figure(place: int) -> Ints:
            return np.concatenate([_NO_IDS, *(numbers[place] for numbers in polls)])

        def summed(places: Sequence[int]) -> Floats:
            return layout.summed(np.sum([figure(place) for place in places], axis=0)).astype(np.float64)

        counters = np.empty((len(COUNTERS), len(layout.ids)))
        for row, place in enumerate(_COUNTERS):
            counters[row] = summed([place])
        per_partition = np.repeat(servers, [numbers.shape[1] for numbers in polls])
        sources = layout.summed(_mixed(figure(_OID) + per_partition))
        return CounterSample(layout.ids, sources, np.zeros(0), counters, summed(_SIZES), summed([_ROWS]))

    def _kept(self, owners: tuple[Ints, ...]) -> _Layout:
        known = self._layout.owners
        if _same_objects(known, owners):
            return self._layout
        every = np.concatenate([_NO_IDS, *owners])
        order = np.argsort(every, kind="stable")
        order = order[np.searchsorted(every[order], NOBODY, side="right") :]
        ids, starts = np.unique(every[order], return_index=True)
        return _Layout(owners, order, starts, ids)


def _changed(ids: Ints, sources: Ints, touched: Mapping[int, int]) -> Ints:
    """Where counters come from; changes where our own work has touched them."""
    if not touched:
        return sources
    found = sources.copy()
    busy, works = np.array(list(touched), np.int64), np.array(list(touched.values()), np.int64)
    measured_too = np.isin(busy, ids)
    found[np.searchsorted(ids, busy[measured_too])] ^= works[measured_too]
    return found


def _servers(answers: Mapping[str, NodePoll]) -> Ints:
    """For each node a number of its own and of when its statistics began."""
    return np.array([hash((node, answer.facts.stats_reset)) // 2 for node, answer in answers.items()], np.int64)


def _same_objects(before: Sequence[object], after: Sequence[object]) -> bool:
    return len(before) == len(after) and all(map(is_, before, after))


def _mixed(numbers: Ints) -> Ints:
    """Scatters them, so that sums of a few differ whenever one of them does."""
    mixed = numbers.astype(np.uint64)
    for shift in (30, 27):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(0xBF58476D1CE4E5B9)
    return mixed.astype(np.int64)


ATTACHING = ("swapping", "committing", "opening", "retiring", "done")
"""States of a migration from which partitions may have been attached or detached."""


def own_work(snapshot: Snapshot, poll: int) -> dict[int, int]:
    """Tablet → a number that changes with our own work on it; tablets that we have never touched are left out.

    While a migration is under way it changes with every poll, whose number is given: checksums and scans continue
    within one step, so the rates stand still until the end.
    """
    found = _neighbours(snapshot, poll)
    for record in snapshot.migrations.values():
        step = hash((record.id, record.state, 0 if record.finished else poll))
        for tablet in {*record.sources, *(target.id for target in record.targets)}:
            found[tablet] = found.get(tablet, 0) ^ step
    return found


def _neighbours(snapshot: Snapshot, poll: int) -> dict[int, int]:
    """The table's other tablets on the nodes where one comes or goes.

    Where a root of a table refers to another by a foreign key, PostgreSQL reads a whole root on that node: when a
    partition is attached, to see that its rows' targets are there, and when one is detached, that none points into it.
    """
    touched: dict[tuple[int, str], int] = defaultdict(int)
    for record in snapshot.migrations.values():
        if _reads_neighbours(snapshot, record):
            for node in {record.source_node, record.target_node}:
                touched[record.table, node] ^= hash((record.id, 0 if record.finished else poll))
    found: dict[int, int] = {}
    for (table, node), number in touched.items():
        found |= dict.fromkeys(_tablets_on(snapshot, table, node), number)
    return found


def _reads_neighbours(snapshot: Snapshot, record: Migration) -> bool:
    table = snapshot.tables.get(record.table)
    return table is not None and len(table.roots) > 1 and record.state in ATTACHING


def _tablets_on(snapshot: Snapshot, table: int, node: str) -> list[int]:
    columns = snapshot.columns(table)
    if node not in columns.nodes:
        return []
    mine = np.asarray(columns.node, np.int64) == list(columns.nodes).index(node)
    tablets: list[int] = np.asarray(columns.ids, np.int64)[mine].tolist()
    return tablets
