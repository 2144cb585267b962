"""Keys in use in tablets that look hot: what clients have reported, otherwise what the node's own rows show.

Asked by the tick for hot tablets only. Clients leave a few samples per second in the directory; here they are gathered
over a few minutes, because one note holds too few to decide on. A note is never counted twice.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import structlog

from balancer.directory.contract import Directory
from balancer.directory.model import Json
from balancer.directory.sample_note import TOPIC, KeySample, read_samples
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError
from balancer.outside import one_line
from balancer.policies.bundle_view import BundleView, KeySamples, SampleSource, TableView
from balancer.policies.hash_leaves import POSITIONS
from balancer.policies.keys import HIGHEST

MEMORY_SECONDS = 180.0
MOST_SAMPLES = 5000  # per table: more would not improve a weighted median
MOST_REFUSED = 1000  # names of notes that are remembered as refused

log = structlog.get_logger()


class AskNode(Protocol):
    """The node that owns a tablet, asked about its keys."""

    def ask(self, tablet_id: int) -> KeySamples | None:
        """Keys written lately; None: it cannot tell."""

    def row_keys(self, tablet_id: int) -> tuple[bytes, ...]:
        """Where a range tablet's rows lie: keys evenly spaced by rank; empty: unknown."""


class Samples:
    """What clients have reported lately. One per bundle; belongs to its tick."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._seen: dict[str, float] = {}
        self._tables: dict[int, deque[KeySample]] = {}
        self._refused: set[str] = set()

    def gather(self, now: float) -> None:
        """Takes in the notes that are new, and forgets what is old."""
        try:
            notes = self._directory.published(TOPIC)
            tables = self._directory.snapshot().tables.keys() if notes else ()
        except BalancerError:
            return  # samples are not part of the truth: the next tick asks again
        for client, note in notes.items():
            try:
                if self._seen.get(client) != note["at"]:
                    self._seen[client] = note["at"]
                    self._take(note, now, tables)
                    self._refused.discard(client)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                self._refuse(client, error)  # any client may write one: an invalid one must not end a tick
        self._seen = {client: at for client, at in self._seen.items() if client in notes}
        for samples in self._tables.values():
            while samples and samples[0].at < now - MEMORY_SECONDS:
                samples.popleft()

    def _take(self, note: Mapping[str, Json], now: float, tables: Collection[int]) -> None:
        """All of a note or none of it; tables that do not exist would be kept forever."""
        for table, samples in [one for one in read_samples(note, now) if one[0] in tables]:
            self._tables.setdefault(table, deque(maxlen=MOST_SAMPLES)).extend(samples)

    def _refuse(self, client: str, error: Exception) -> None:
        """Reports it once per client, until it leaves one that can be read."""
        if client not in self._refused and len(self._refused) < MOST_REFUSED:
            self._refused.add(client)
            log.warning("a note of key samples is not used", note=one_line(client), error=one_line(str(error), 200))

    def of(
        self, view: BundleView, snapshot: Snapshot, tablets: Sequence[int], ask: AskNode, enough: int
    ) -> dict[int, KeySamples]:
        """Samples by tablet; asks the node if clients have reported less than `enough`.

        Reports from before a tablet's last migration do not count: they describe the tablet as it was.
        """
        found: dict[int, KeySamples] = {}
        rows = dict(zip(tablets, _rows(view, tablets), strict=True))
        hot = {row: next(table for table in view.tables if table.first <= row < table.last) for row in rows.values()}
        told_of = self._sorted(snapshot, view.bundle, {table.name for table in hot.values()})
        for tablet, row in rows.items():
            table = hot[row]
            lower, upper = bounds(view, table, row)
            samples, keys = told_of[table.name]
            inside = samples[bisect_left(keys, lower) : bisect_left(keys, upper)]
            told = _told([sample for sample in inside if sample.at > _migrated(view, tablet)])
            if len(told.keys) < enough:
                told = ask.ask(tablet) or told
            if told.keys:
                found[tablet] = told if table.hash else replace(told, row_keys=ask.row_keys(tablet))
        return found

    def _sorted(
        self, snapshot: Snapshot, bundle: str, tables: set[str]
    ) -> dict[str, tuple[list[KeySample], list[bytes]]]:
        """Per table what clients have reported, by key, and the keys."""
        ids = {table.name: table.id for table in snapshot.tables.values() if table.bundle == bundle}
        told = {name: sorted(self._tables.get(ids[name], ()), key=lambda sample: sample.key) for name in tables}
        return {name: (samples, [sample.key for sample in samples]) for name, samples in told.items()}


def bounds(view: BundleView, table: TableView, row: int) -> tuple[bytes, bytes]:
    """Where a tablet's keys lie, as samples write them: encoded keys, or positions of a hash table."""
    if not table.hash:
        return view.tablets.lowers[row], view.tablets.lowers[row + 1] if row + 1 < table.last else HIGHEST
    leaf = view.tablets.leaf(row)
    end = leaf.start() + leaf.width()
    return leaf.start().to_bytes(8, "big"), HIGHEST * 9 if end == POSITIONS else end.to_bytes(8, "big")


def _rows(view: BundleView, tablets: Sequence[int]) -> list[int]:
    places = {int(tablet): row for row, tablet in enumerate(view.tablets.ids.tolist())} if len(tablets) > 50 else None
    if places is not None:
        return [places[tablet] for tablet in tablets]
    return [int(np.flatnonzero(view.tablets.ids == tablet)[0]) for tablet in tablets]


def _migrated(view: BundleView, tablet: int) -> float:
    """When a tablet was last made or moved; minus infinity: nobody remembers."""
    history = view.history.get(tablet)
    return float("-inf") if history is None or history.last_migrated is None else history.last_migrated


def _told(samples: Sequence[KeySample]) -> KeySamples:
    return KeySamples(
        SampleSource.CLIENTS,
        tuple(sample.key for sample in samples),
        tuple(sample.weight for sample in samples),
        writes=tuple(sample.write for sample in samples),
    )
