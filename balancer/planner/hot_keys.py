"""Keys in use in tablets that look hot: what clients have reported, otherwise what the node's own rows show.

Asked by the tick for hot tablets only. Clients leave a few samples per second in the directory; here they are gathered
over a few minutes, because one note holds too few to decide on. A note is never counted twice.

Asks the node that owns a tablet about its keys: which rows were written lately, and where to cut by size.

The tick asks for hot tablets whose clients report too little; a split by size asks for keys. Each question is bounded
in time by `balancer.nodes.tablets.key_samples`, and asked of the first root, which names a table's heat.
"""

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import structlog

from balancer.clock import Clock
from balancer.directory.contract import Directory
from balancer.directory.model import Json, Table, Tablet
from balancer.directory.notes import SAMPLES, KeySample, read_samples
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Refused
from balancer.naming import Name, parse_name, partition_name
from balancer.nodes.catalog.bounds import KeyColumn
from balancer.nodes.session.connection import Address, Connection, translated
from balancer.nodes.session.holder import ConnectionHolder
from balancer.nodes.tablets.key_samples import current_xid, row_age_samples, split_keys, statistics_samples
from balancer.policies.keyspace.hash_leaves import POSITIONS
from balancer.policies.keyspace.keys import HIGHEST
from balancer.policies.view import BundleView, KeySamples, SampleSource, TableView
from balancer.untrusted import one_line

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
            notes = self._directory.published(SAMPLES)
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


ROW_KEYS = 20  # twentieths of the rows: enough to tell what an edge is
ROW_KEYS_SECONDS = 60.0
BASELINE_SECONDS = 300.0
BASELINE_LIFE = 2 * BASELINE_SECONDS

Baseline = tuple[float, int]
"""When it was taken, and the newest transaction then."""


class NodeSampler:
    """Keeps a connection per node and, per tablet, the transaction from which rows count as new."""

    def __init__(self, addresses: Callable[[str], Address], snapshot: Callable[[], Snapshot], clock: Clock) -> None:
        self._addresses = addresses
        self._snapshot = snapshot
        self._holder = ConnectionHolder("samples")
        self._clock = clock
        self._lock = threading.Lock()  # of the memories below: every bundle's tick asks
        self._baselines: dict[tuple[int, int], tuple[Baseline | None, Baseline | None]] = {}
        self._refused: dict[int, str] = {}
        self._row_keys: dict[tuple[int, int], tuple[float, tuple[bytes, ...]]] = {}

    def ask(self, tablet_id: int) -> KeySamples | None:
        """Keys written lately in a tablet; None: the node cannot tell.

        The first call only takes the baseline: after a move all rows have one age, so it is per epoch.
        """
        snapshot = self._snapshot()
        tablet = snapshot.find_tablet(tablet_id)
        if tablet is None:
            return None
        table = snapshot.tables[tablet.table]
        try:
            return self._ask(table, tablet)
        except Refused as error:
            self._say_once(tablet, str(error))
            return None
        except BalancerError:
            return None  # the poll reports a node that does not answer; here it only means: nothing known

    def row_keys(self, tablet_id: int) -> tuple[bytes, ...]:
        """Where a range tablet's rows lie, as keys evenly spaced by rank; asked of the node once a minute at most."""
        tablet = self._snapshot().find_tablet(tablet_id)
        if tablet is None:
            return ()
        now = self._clock.monotonic()
        with self._lock:
            fresh = {key: known for key, known in self._row_keys.items() if now - known[0] <= ROW_KEYS_SECONDS}
            self._row_keys = fresh
            known = fresh.get((tablet.id, tablet.epoch))
        if known is not None:
            return known[1]
        try:
            keys = tuple(self.split_keys(self._snapshot(), [tablet], ROW_KEYS))
        except BalancerError:
            keys = ()
        with self._lock:
            self._row_keys[tablet.id, tablet.epoch] = now, keys
        return keys

    def split_keys(self, snapshot: Snapshot, tablets: Sequence[Tablet], parts: int) -> list[bytes]:
        """The keys at which to cut neighbouring range tablets on one node into parts of about the same size."""
        table, node = snapshot.tables[tablets[0].table], tablets[0].node
        partitions = [partition_of(table, tablet) for tablet in tablets]
        address = self._addresses(node)
        with self._holder.borrow(address) as connection, translated(node):
            found = split_keys(connection, partitions, columns_of(table), parts, trusted=address.trusts_owners)
            return list(found.keys)

    def _say_once(self, tablet: Tablet, why: str) -> None:
        """`node check` and `doctor` say this too: with every tick, it would fill the log."""
        with self._lock:
            known = self._refused.get(tablet.id) == why
            self._refused[tablet.id] = why
        if not known:
            log.warning("keys cannot be sampled", tablet=tablet.id, node=tablet.node, reason=why)

    def close(self) -> None:
        """Closes the connections. Idempotent."""
        self._holder.close()

    def _ask(self, table: Table, tablet: Tablet) -> KeySamples | None:
        partition, columns = partition_of(table, tablet), columns_of(table)
        address = self._addresses(tablet.node)
        with self._holder.borrow(address) as connection, translated(tablet.node):
            baseline = self._baseline(tablet, connection)
            if baseline is None:
                return None
            found = row_age_samples(
                connection,
                partition,
                columns,
                newer_than=baseline,
                hashed=table.hashed,
                trusted=address.trusts_owners,
            )
            if found.keys or table.hashed:
                return found
            return statistics_samples(connection, partition, columns[0])

    def _baseline(self, tablet: Tablet, connection: Connection) -> int | None:
        """The transaction after which rows count as new: some minutes old, so that "lately" stays lately."""
        key, now = (tablet.id, tablet.epoch), self._clock.monotonic()
        with self._lock:
            # One that nobody has renewed for this long would call an hour "lately".
            self._baselines = {
                one: pair for one, pair in self._baselines.items() if pair[1] and now - pair[1][0] <= BASELINE_LIFE
            }
            older, newer = self._baselines.get(key, (None, None))
        if newer is None or now - newer[0] > BASELINE_SECONDS:
            with connection.cursor() as cursor:
                taken = now, current_xid(cursor)
            with self._lock:
                self._baselines[key] = newer, taken
        chosen = older or newer
        return None if chosen is None else chosen[1]


def partition_of(table: Table, tablet: Tablet) -> Name:
    """The tablet's partition of the table's first root."""
    root = parse_name(table.roots[0])
    return Name(root.schema, tablet.partitions[0]) if tablet.partitions else partition_name(root, tablet.id)


def columns_of(table: Table) -> tuple[KeyColumn, ...]:
    """The key as the nodes' package knows it."""
    return tuple(KeyColumn(column.name, column.type) for column in table.columns)
