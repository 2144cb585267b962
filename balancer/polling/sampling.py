"""The answers of all nodes as one sample: what each tablet holds and has done, in columns. Only the owner's partitions
count: a copy in the making does not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_

import numpy as np

from balancer.nodes.poll import NodePoll
from balancer.nodes.poll_columns import FIGURES
from balancer.policies.bundle_view import Floats, Ints
from balancer.polling.index import NOBODY, TabletIndex, nothing_on
from balancer.polling.rates import COUNTERS, CounterSample, empty_sample

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
        """Sums the partitions of each tablet; `touched`: see `own_work`. Reuses the columns of the last sample if no
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
