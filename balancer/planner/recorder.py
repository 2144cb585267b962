"""The last hour in memory, and coarser the last day: bundles' moments, and loads along key spaces. For eyes only.

The tick records, the API reads. A table's tablets are put, in key order, into at most `BINS` bins; a bin keeps the
figures of its greatest tablet, because one hot tablet among a hundred cool ones must not drown in an average. Time is
cut into slots, and a slot keeps the greatest of its ticks. So memory is bounded, whatever the cluster's size, the
number of its tables or the length of a tick. Bins are kept with the keys at which they begin: if tablets were split or
merged since, `HeatMap` lays the past over the current bins by key.

What each bundle was like in the last hour and the last day: its word, its score and what its nodes carried.

The recorder keeps them; the page draws its charts and its past from them. An hour is kept in slots of a tick, a day in
slots of four minutes; a slot keeps the newest of its ticks. So memory is bounded: 720 moments of a bundle, each with
four figures for each node.
"""

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from balancer.planner.bundle_state import BundleState, StateWord, node_loads
from balancer.policies.view import BundleView, Ints, TableView

DAY_SLOT: Final = 240.0
DAY_SLOTS: Final = 360
CARRIED: Final = ("bytes", "write_rate", "read_rate", "tablets")


@dataclass(frozen=True, slots=True)
class PastMoment:
    """A bundle at one moment."""

    at: float
    word: StateWord
    sentence: str
    score: float | None
    loads: Mapping[str, tuple[float, ...]]  # node → its figures, in the order of CARRIED
    counted: frozenset[str]  # nodes that count in averages: neither down nor draining


def moment_of(state: BundleState) -> PastMoment:
    """What is kept of a state."""
    reports = {report.id: report for report in state.nodes}
    loads: dict[str, tuple[float, ...]] = {}
    if state.view is not None:
        columns = node_loads(state.view)
        for at, node in enumerate(state.view.nodes):
            loads[node.id] = tuple(float(columns[name][at]) for name in CARRIED)
    counted = frozenset(
        name for name in loads if name in reports and _counts(reports[name].state, reports[name].reachable)
    )
    score = None if state.plan is None else state.plan.score_before
    return PastMoment(state.at.timestamp(), state.word, state.sentence, score, loads, counted)


def _counts(condition: str, reachable: bool) -> bool:
    return reachable and condition in ("active", "closed")


class Moments:
    """Of one bundle. Not thread-safe: the recorder's lock protects it."""

    def __init__(self, slot_seconds: float, slots: int) -> None:
        self._tiers = ((slot_seconds, deque[PastMoment](maxlen=slots)), (DAY_SLOT, deque[PastMoment](maxlen=DAY_SLOTS)))
        self.begun: float | None = None
        """Since when there is something to do; None: there is nothing."""

    def add(self, state: BundleState) -> None:
        """Takes what a tick found."""
        moment = moment_of(state)
        for seconds, kept in self._tiers:
            if kept and int(kept[-1].at / seconds) == int(moment.at / seconds):
                kept.pop()
            kept.append(moment)
        if moment.word is StateWord.BALANCED:
            self.begun = None
        elif self.begun is None:
            self.begun = moment.at

    def hour(self) -> Sequence[PastMoment]:
        """Oldest first."""
        return tuple(self._tiers[0][1])

    def day(self) -> Sequence[PastMoment]:
        """Oldest first: coarse, then the last hour as it is kept."""
        hour = self.hour()
        first = hour[0].at if hour else float("inf")
        return (*(moment for moment in self._tiers[1][1] if moment.at < first), *hour)


BINS: Final = 512
TOTAL_BINS: Final = (8192, 4096)
"""Of all tables together, in the hour and in the day: with 360 slots some 40 MB and 20 MB."""
MIN_BINS: Final = 16
LAYERS: Final = ("writes", "reads", "bytes")

Cells = npt.NDArray[np.float32]
Owners = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Bins:
    """Where the bins of a table begin, as keys that compare in key order."""

    starts: tuple[bytes, ...]
    ids: tuple[int, ...] = ()  # of each bin's first tablet
    counts: tuple[int, ...] = ()  # of tablets


@dataclass(frozen=True, slots=True)
class Frame:
    """One table in one slot of time."""

    slot: int
    bins: Bins
    cells: Cells  # layers × bins
    owners: Owners  # the node of the bin's busiest tablet, as a number of `HeatMap.nodes`


@dataclass(frozen=True, slots=True)
class Present:
    """What the bins of a table's newest frame hold: rows of the view that was recorded last."""

    view: BundleView
    table: TableView
    firsts: Ints  # first row of each bin
    busiest: Ints  # row of each bin's busiest tablet


@dataclass(frozen=True, slots=True)
class HeatMap:
    """One layer of a table: time over the current bins."""

    times: tuple[float, ...]  # start of each row's slot, seconds since 1970
    values: Cells  # times × bins
    owners: Owners  # times × bins
    nodes: tuple[str, ...]
    present: Present


@dataclass(frozen=True, slots=True)
class PastTable:
    """A table at one moment of the past."""

    name: str
    frame: Frame


class _Tier:
    """A length of time in slots of one length."""

    def __init__(self, slot_seconds: float, slots: int, total_bins: int) -> None:
        self.slot_seconds: Final = slot_seconds
        self.slots: Final = slots
        self.total_bins: Final = total_bins
        self.frames: dict[tuple[str, str], deque[Frame]] = {}
        self.present: dict[tuple[str, str], Present] = {}

    def forget(self, key: tuple[str, str]) -> None:
        del self.present[key], self.frames[key]

    def bins(self, tables: int) -> int:
        """How many bins each of this many tables may have."""
        return max(MIN_BINS, min(BINS, self.total_bins // max(1, tables)))

    def at(self, key: tuple[str, str], moment: float) -> Frame | None:
        """The newest frame that began by then; None: all are younger."""
        slot = int(moment / self.slot_seconds)
        return next((frame for frame in reversed(self.frames.get(key, ())) if frame.slot <= slot), None)


class Recorder:
    """Keeps the last hour in slots, and the last day in longer ones. Safe to use from several threads.

    `slot_seconds` is best set to a tick: 2 to 10 seconds. Shorter slots leave each table fewer bins.
    """

    def __init__(self, slot_seconds: float = 10.0, span_seconds: float = 3600.0) -> None:
        self.slot_seconds: Final = min(10.0, max(2.0, slot_seconds))
        self._slots: Final = int(span_seconds / self.slot_seconds)
        self._hour = _Tier(self.slot_seconds, self._slots, TOTAL_BINS[0] * 360 // self._slots)
        self._day = _Tier(DAY_SLOT, DAY_SLOTS, TOTAL_BINS[1])
        self._moments: dict[str, Moments] = {}
        self._nodes: dict[str, int] = {}
        self._lock = threading.Lock()

    def record(self, state: BundleState) -> None:
        """Takes one bundle's figures after a tick."""
        at = state.at.timestamp()
        with self._lock:
            self._moments.setdefault(state.bundle, Moments(self.slot_seconds, self._slots)).add(state)
            if state.view is not None:
                for tier in (self._hour, self._day):
                    self._add_view(tier, state.view, int(at / tier.slot_seconds))

    def moments(self, bundle: str, *, day: bool = False) -> Sequence[PastMoment]:
        """What the bundle was like, oldest first: in the last hour, or in the last day."""
        with self._lock:
            kept = self._moments.get(bundle)
            return () if kept is None else kept.day() if day else kept.hour()

    def begun(self, bundle: str) -> float | None:
        """Since when the bundle has had something to do; None: it has nothing to do."""
        with self._lock:
            kept = self._moments.get(bundle)
            return None if kept is None else kept.begun

    def tables(self) -> Sequence[tuple[str, str]]:
        """The bundles and tables for which there is anything to show."""
        with self._lock:
            return sorted(self._hour.present)

    def past(self, bundle: str, at: float) -> tuple[Sequence[PastTable], Sequence[str]]:
        """The bundle's tables at a moment, at the finest resolution kept, and the nodes that owners number."""
        with self._lock:
            keys = [key for key in self._hour.present if key[0] == bundle]
            found = [(key[1], self._hour.at(key, at) or self._day.at(key, at)) for key in keys]
            return tuple(PastTable(name, frame) for name, frame in found if frame is not None), tuple(self._nodes)

    def heat_map(self, bundle: str, table: str, layer: str, *, day: bool = False) -> HeatMap | None:
        """One layer of a table over the last hour, or the last day; None if nothing was recorded."""
        tier = self._day if day else self._hour
        with self._lock:
            frames = tuple(tier.frames.get((bundle, table), ()))
            present = tier.present.get((bundle, table))
            nodes = tuple(self._nodes)
        if not frames or present is None:
            return None
        number, bins = LAYERS.index(layer), frames[-1].bins
        laid: dict[Bins, _Overlay] = {}
        values = np.empty((len(frames), len(bins.starts)), dtype=np.float32)
        owners = np.empty(values.shape, dtype=np.int32)
        for at, frame in enumerate(frames):
            overlay = laid.get(frame.bins) or laid.setdefault(frame.bins, _Overlay(frame.bins, bins))
            values[at], owners[at] = overlay.lay(frame.cells[number], frame.owners)
        times = tuple(frame.slot * tier.slot_seconds for frame in frames)
        return HeatMap(times, values, owners, nodes, present)

    def forget(self, bundle: str) -> None:
        """The bundle is no longer configured."""
        with self._lock:
            self._moments.pop(bundle, None)
            for tier in (self._hour, self._day):
                for key in [key for key in tier.present if key[0] == bundle]:
                    tier.forget(key)

    def _add_view(self, tier: _Tier, view: BundleView, slot: int) -> None:
        numbers = np.array([self._nodes.setdefault(node.id, len(self._nodes)) for node in view.nodes], dtype=np.int32)
        known = {(view.bundle, table.name) for table in view.tables}
        for key in [key for key in tier.present if key[0] == view.bundle and key not in known]:
            tier.forget(key)
        most = tier.bins(len(tier.present.keys() | known))
        for table in view.tables:
            if table.last > table.first:
                _add_table(tier, view, table, numbers, slot=slot, most=most)


def _add_table(tier: _Tier, view: BundleView, table: TableView, numbers: Owners, *, slot: int, most: int) -> None:
    key = view.bundle, table.name
    frames = tier.frames.setdefault(key, deque(maxlen=tier.slots))
    firsts = _firsts(table, most)
    starts = tuple(_start(view, table, row) for row in firsts.tolist())
    # One object for equal bins: the overlay of the past is computed once for each.
    bins = frames[-1].bins if frames and frames[-1].bins.starts == starts else _bins(view, table, firsts, starts)
    busiest = _busiest(view, table, firsts)
    owners: Owners = numbers[view.tablets.node[busiest]]
    cells = np.stack([_greatest(column, table, firsts) for column in _layers(view)])
    frame = Frame(slot, bins, cells, owners)
    if frames and frames[-1].slot == slot:
        frame = _joined(frames.pop(), frame)
    frames.append(frame)
    tier.present[key] = Present(view, table, firsts, busiest)


def _bins(view: BundleView, table: TableView, firsts: Ints, starts: tuple[bytes, ...]) -> Bins:
    counts = np.diff(np.append(firsts, table.last))
    return Bins(starts, tuple(view.tablets.ids[firsts].tolist()), tuple(counts.tolist()))


class _Overlay:
    """How the values of past bins map to the current ones: each current bin takes the greatest that it meets."""

    def __init__(self, past: Bins, present: Bins) -> None:
        self.same = past is present
        if self.same:
            return
        ends = [*present.starts[1:], None]
        first = [bisect_right(past.starts, start) - 1 for start in present.starts]
        last = [len(past.starts) if end is None else _before(past.starts, end) for end in ends]
        self._first = np.maximum(np.array(first), 0)
        # Pairs of (first, end) for reduceat; an end equal to the length is left to the padding.
        self._pairs = np.stack([self._first, np.maximum(np.array(last), self._first + 1)], axis=1).reshape(-1)

    def lay(self, cells: Cells, owners: Owners) -> tuple[Cells, Owners]:
        if self.same:
            return cells, owners
        padded = np.append(cells, np.float32(0))
        greatest: Cells = np.maximum.reduceat(padded, self._pairs)[::2]
        return greatest, owners[self._first]


def _before(starts: tuple[bytes, ...], end: bytes) -> int:
    """How many past bins begin before this key."""
    at = bisect_right(starts, end)
    return at - 1 if at and starts[at - 1] == end else at


def _firsts(table: TableView, most: int) -> Ints:
    """First rows of the bins: tablets distributed evenly."""
    count = table.last - table.first
    bins = min(most, count)
    return table.first + np.arange(bins, dtype=np.int64) * count // bins


def _start(view: BundleView, table: TableView, row: int) -> bytes:
    if table.hash:
        return view.tablets.leaf(row).start().to_bytes(8, "big")
    return view.tablets.lowers[row]


def _layers(view: BundleView) -> tuple[npt.NDArray[np.float64], ...]:
    return view.tablets.write_rate, view.tablets.read_rate, view.tablets.sizes


def _greatest(column: npt.NDArray[np.float64], table: TableView, firsts: Ints) -> Cells:
    part = column[table.first : table.last].astype(np.float32)
    greatest: Cells = np.maximum.reduceat(part, firsts - table.first)
    return greatest


def _busiest(view: BundleView, table: TableView, firsts: Ints) -> Ints:
    """The row of the tablet with the greatest rate in each bin; the first of several."""
    count = table.last - table.first
    if len(firsts) == count:
        return firsts
    columns = view.tablets
    rates = (columns.write_rate + columns.read_rate)[table.first : table.last]
    lengths = np.diff(np.append(firsts, table.last))
    greatest = np.maximum.reduceat(rates, firsts - table.first)
    candidates = np.flatnonzero(rates == np.repeat(greatest, lengths)) + table.first
    busiest: Ints = candidates[np.searchsorted(candidates, firsts)]
    return busiest


def _joined(old: Frame, new: Frame) -> Frame:
    """Two ticks of one slot: the greater figures, laid over the newer bins."""
    overlay = _Overlay(old.bins, new.bins)
    cells = [np.maximum(overlay.lay(old.cells[at], old.owners)[0], new.cells[at]) for at in range(len(LAYERS))]
    return replace(new, cells=np.stack(cells))
