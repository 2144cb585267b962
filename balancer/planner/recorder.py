"""The last hour in memory: each bundle's score, and each table's load along its key space. For eyes only.

The tick records, the API reads. A table's tablets are put, in key order, into at most `BINS` bins; a bin keeps the
figures of its greatest tablet, because one hot tablet among a hundred cool ones must not drown in a mean. Time is cut
into slots, and a slot keeps the greatest of its ticks. So memory is bounded, whatever the cluster's size, the number
of its tables or the length of a tick. Bins are kept with the keys at which they begin: when tablets were split or
merged since, `HeatMap` lays the past over the present bins by key.
"""

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from balancer.planner.state import BundleState
from balancer.policies.bundle_view import BundleView, Ints, TableView

BINS: Final = 512
TOTAL_CELLS: Final = 8192 * 360
"""Bins × slots of all tables together: some 40 MB."""
MIN_BINS: Final = 16
LAYERS: Final = ("writes", "reads", "bytes")

Cells = npt.NDArray[np.float32]
Owners = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Bins:
    """Where the bins of a table begin, as keys that compare in key order."""

    starts: tuple[bytes, ...]


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
    """One layer of a table: time over present bins."""

    times: tuple[float, ...]  # start of each row's slot, seconds since 1970
    values: Cells  # times × bins
    owners: Owners  # times × bins
    nodes: tuple[str, ...]
    present: Present


class Recorder:
    """Keeps the last hour in slots. Safe to use from several threads.

    `slot_seconds` is best a tick: from 2 to 10 seconds. Shorter slots leave each table fewer bins.
    """

    def __init__(self, slot_seconds: float = 10.0, span_seconds: float = 3600.0) -> None:
        self.slot_seconds: Final = min(10.0, max(2.0, slot_seconds))
        self._slots: Final = int(span_seconds / self.slot_seconds)
        self._frames: dict[tuple[str, str], deque[Frame]] = {}
        self._present: dict[tuple[str, str], Present] = {}
        self._scores: dict[str, deque[tuple[float, float]]] = {}
        self._nodes: dict[str, int] = {}
        self._lock = threading.Lock()

    def record(self, state: BundleState) -> None:
        """Takes one bundle's figures after a tick."""
        at = state.at.timestamp()
        with self._lock:
            if state.plan is not None:
                self._add_score(state.bundle, at, state.plan.score_before)
            if state.view is not None:
                self._add_view(state.view, int(at / self.slot_seconds))

    def scores(self, bundle: str) -> Sequence[tuple[float, float]]:
        """Times and scores, oldest first; the last of each slot."""
        with self._lock:
            return tuple(self._scores.get(bundle, ()))

    def tables(self) -> Sequence[tuple[str, str]]:
        """The bundles and tables of which there is anything to show."""
        with self._lock:
            return sorted(self._present)

    def heat_map(self, bundle: str, table: str, layer: str) -> HeatMap | None:
        """One layer of a table over the last hour; None where nothing was recorded."""
        with self._lock:
            frames = tuple(self._frames.get((bundle, table), ()))
            present = self._present.get((bundle, table))
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
        times = tuple(frame.slot * self.slot_seconds for frame in frames)
        return HeatMap(times, values, owners, nodes, present)

    def forget(self, bundle: str) -> None:
        """The bundle is no longer configured."""
        with self._lock:
            self._scores.pop(bundle, None)
            for key in [key for key in self._present if key[0] == bundle]:
                del self._present[key], self._frames[key]

    def _add_score(self, bundle: str, at: float, score: float) -> None:
        scores = self._scores.setdefault(bundle, deque(maxlen=self._slots))
        if scores and int(scores[-1][0] / self.slot_seconds) == int(at / self.slot_seconds):
            scores.pop()
        scores.append((at, score))

    def _add_view(self, view: BundleView, slot: int) -> None:
        numbers = np.array([self._nodes.setdefault(node.id, len(self._nodes)) for node in view.nodes], dtype=np.int32)
        known = {(view.bundle, table.name) for table in view.tables}
        for key in [key for key in self._present if key[0] == view.bundle and key not in known]:
            del self._present[key], self._frames[key]
        tables = max(1, len(self._present.keys() | known))
        most = max(MIN_BINS, min(BINS, TOTAL_CELLS // self._slots // tables))
        for table in view.tables:
            if table.last > table.first:
                self._add_table(view, table, numbers, slot, most)

    def _add_table(self, view: BundleView, table: TableView, numbers: Owners, slot: int, most: int) -> None:
        key = view.bundle, table.name
        frames = self._frames.setdefault(key, deque(maxlen=self._slots))
        firsts = _firsts(table, most)
        starts = tuple(_start(view, table, row) for row in firsts.tolist())
        # One object for equal bins: the overlay of the past is computed once for each.
        bins = frames[-1].bins if frames and frames[-1].bins.starts == starts else Bins(starts)
        busiest = _busiest(view, table, firsts)
        owners: Owners = numbers[view.tablets.node[busiest]]
        cells = np.stack([_greatest(column, table, firsts) for column in _layers(view)])
        frame = Frame(slot, bins, cells, owners)
        if frames and frames[-1].slot == slot:
            frame = _joined(frames.pop(), frame)
        frames.append(frame)
        self._present[key] = Present(view, table, firsts, busiest)


class _Overlay:
    """How the values of past bins lie over the present ones: each present bin takes the greatest that it meets."""

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
    """First rows of the bins: tablets dealt out evenly."""
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
