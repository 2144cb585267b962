"""One bundle as the policies see it: the directory's map and the last poll, joined into columns. Pure.

What a poll has not seen yet counts as nothing: no bytes, no rows, no rates. An untrusted node counts as down.

Reference tables by the directory: where their home is, which streams their copies have, which nodes lack a copy.

Pure. A copy is ready while its slot at the home has a reader: the subscription is made in the transaction that fills
the copy. A node without all copies of its bundle gets no tablets: their foreign keys would find nothing there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from balancer.directory.identity import identity_of
from balancer.directory.model import CLOSED_BY_DAEMON, EXPIRY, Migration, Node, NodeState, Table, Tablet, TabletState
from balancer.directory.snapshot import Snapshot
from balancer.directory.store.pages import STATES
from balancer.naming import Name, parse_name
from balancer.nodes.tablets.object_names import stream_name
from balancer.nodes.tablets.reference_copies import Side, stream_of
from balancer.policies.options import BundleOptions, InMemoryMode
from balancer.policies.view import (
    BundleView,
    Floats,
    InFlight,
    Ints,
    KeySamples,
    NodeCondition,
    NodeView,
    TabletColumns,
    TabletHistory,
    TableView,
)
from balancer.polling.poller import ClusterPoll, Health, NodeAnswer
from balancer.polling.tablet_index import ColumnCache, MapColumns

_CONDITIONS = {
    NodeState.ACTIVE: NodeCondition.ACTIVE,
    NodeState.DRAINING: NodeCondition.DRAINING,
    NodeState.CLOSED: NodeCondition.CLOSED,
    NodeState.DOWN: NodeCondition.DOWN,
    NodeState.LOST: NodeCondition.DOWN,
}
RATE_WINDOW = 0  # ten minutes: long enough not to chase bursts, short enough to see a change within the hour
LONG_WINDOW = 1  # an hour, for metrics that ask for it


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the bundle's file says about a node that PostgreSQL cannot know. Bytes, rows per second; None: not said."""

    disk: int | None = None
    memory: int | None = None
    write_rate: float | None = None
    read_rate: float | None = None


@dataclass(frozen=True, slots=True)
class Remembered:
    """What the caller keeps across ticks."""

    history: Mapping[int, TabletHistory] = field(default_factory=dict)
    samples: Mapping[int, KeySamples] = field(default_factory=dict)
    window_seconds_left: float | None = None
    bytes_moved_in_window: float = 0.0
    measured_bytes_per_second: float | None = None


def build_view(
    snapshot: Snapshot,
    bundle: str,
    poll: ClusterPoll,
    *,
    options: BundleOptions,
    capacities: Mapping[str, Capacity],
    remembered: Remembered,
    kept: "KeptColumns | None" = None,
) -> BundleView:
    """The view from which a plan is made. `kept`: what stays the same from one to the next."""
    nodes = [node for node in snapshot.nodes.values() if node.bundle == bundle]
    tables = [table for table in snapshot.tables.values() if table.bundle == bundle and not table.everywhere]
    placed = (kept or KeptColumns(ColumnCache())).placed(snapshot, tables, nodes)
    waiting = without_copies(snapshot, bundle, poll)
    return BundleView(
        bundle=bundle,
        now=poll.at,
        nodes=tuple(
            _node(node, poll.nodes.get(node.id), capacities.get(node.id, Capacity()), waits=node.id in waiting)
            for node in nodes
        ),
        tables=placed.tables,
        tablets=_tablets(placed, tables, poll, options),
        in_flight=_in_flight(snapshot, bundle),
        pinned=frozenset(pin.tablet for pin in snapshot.pins.values() if pin.until is None or pin.until > poll.at),
        quarantined=placed.quarantined,
        expired=placed.expired,
        expiry_held=f"{bundle} {EXPIRY}" in snapshot.pauses,
        history=remembered.history,
        samples=remembered.samples,
        window_seconds_left=remembered.window_seconds_left,
        bytes_moved_in_window=remembered.bytes_moved_in_window,
        measured_bytes_per_second=remembered.measured_bytes_per_second,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Placed:
    """All tablets of a bundle as the directory has them: table by table, in key order."""

    made_of: tuple[tuple[Table, ...], tuple[str, ...], tuple[MapColumns, ...]]
    tables: tuple[TableView, ...]
    ids: Ints
    node: Ints
    lowers: list[bytes]
    moduli: Ints
    remainders: Ints
    quarantined: frozenset[int]
    expired: frozenset[int]

    def same(self, tables: tuple[Table, ...], nodes: tuple[str, ...], columns: tuple[MapColumns, ...]) -> bool:
        """Whether it is made from the same."""
        known = self.made_of
        return known[:2] == (tables, nodes) and [*map(id, known[2])] == [*map(id, columns)]


class KeptColumns:
    """Keeps, from view to view of one bundle, what only a commit can change. For one thread at a time."""

    def __init__(self, book: ColumnCache) -> None:
        self._book = book
        self._last: _Placed | None = None

    def placed(self, snapshot: Snapshot, tables: Sequence[Table], nodes: Sequence[Node]) -> _Placed:
        """The bundle's tablets; the same object as long as none has changed."""
        columns = tuple(self._book.of(snapshot, table.id) for table in tables)
        names = tuple(node.id for node in nodes)
        if self._last is None or not self._last.same(tuple(tables), names, columns):
            self._last = _placed(tuple(tables), names, columns, self._book.nodes)
        return self._last


def _placed(
    tables: tuple[Table, ...], nodes: tuple[str, ...], columns: tuple[MapColumns, ...], numbered: Sequence[str]
) -> _Placed:
    places = {name: place for place, name in enumerate(nodes)}
    numbers = np.array([places.get(name, -1) for name in numbered], np.int64)
    ids, owners, states, moduli, remainders = (
        _joined([getattr(one, name) for one in columns]) for name in ("ids", "owners", "states", "moduli", "remainders")
    )
    left_alone, gone = (STATES.index(state) for state in (TabletState.QUARANTINED, TabletState.EXPIRED))
    return _Placed(
        made_of=(tables, nodes, columns),
        tables=tuple(_tables(tables, columns)),
        ids=ids,
        node=numbers[owners],
        lowers=columns[0].lowers if len(columns) == 1 else [lower for one in columns for lower in one.lowers],
        moduli=moduli,
        remainders=remainders,
        quarantined=frozenset(ids[states == left_alone].tolist()),
        expired=frozenset(ids[states == gone].tolist()),
    )


def _node(node: Node, report: NodeAnswer | None, capacity: Capacity, *, waits: bool) -> NodeView:
    """`waits`: for its copy of a reference table, before which it gets no tablets."""
    good = report is not None and report.health is Health.GOOD
    condition = _CONDITIONS[node.state] if good else NodeCondition.DOWN
    used = report.poll.facts.database_bytes if report is not None and report.poll is not None else None
    return NodeView(
        id=node.id,
        condition=NodeCondition.CLOSED if waits and condition is NodeCondition.ACTIVE else condition,
        zone=node.zone,
        weight=node.weight,
        disk_capacity=capacity.disk,
        disk_used=used,
        memory=capacity.memory,
        write_capacity=capacity.write_rate,
        read_capacity=capacity.read_rate,
        closed_by_daemon=node.reason.startswith(CLOSED_BY_DAEMON),
    )


def _joined(parts: Sequence[Ints]) -> Ints:
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int64), *parts])


def _tablets(placed: _Placed, tables: Sequence[Table], poll: ClusterPoll, options: BundleOptions) -> TabletColumns:
    measured = _measured(placed.ids, poll)
    memory = np.zeros(len(placed.ids))
    for table, shown in zip(tables, placed.tables, strict=True):
        if options.table(table.name).in_memory_mode is not InMemoryMode.NONE:
            memory[shown.first : shown.last] = measured["sizes"][shown.first : shown.last]
    return TabletColumns(
        ids=placed.ids,
        node=placed.node,
        memory=memory,
        lowers=placed.lowers,
        moduli=placed.moduli,
        remainders=placed.remainders,
        **measured,
    )


def _measured(ids: Ints, poll: ClusterPoll) -> dict[str, Floats]:
    """The measured columns of tablets, by name; 0 for what no poll has seen."""
    rates = poll.rates
    pick = _picker(rates.ids, ids)
    last = rates.last
    return {
        "sizes": pick(last.sizes),
        "rows": pick(last.rows),
        "write_rate": pick(rates.write_rate(RATE_WINDOW)),
        "read_rate": pick(rates.read_rate(RATE_WINDOW)),
        "write_rate_1h": pick(rates.write_rate(LONG_WINDOW)),
        "read_rate_1h": pick(rates.read_rate(LONG_WINDOW)),
        "scan_rate": pick(rates.scan_rate(RATE_WINDOW)),
    }


def _picker(known: Ints, ids: Ints) -> Callable[[Floats], Floats]:
    """Maps a column of known tablets, by increasing id, to these; 0 for unknown ones."""
    if np.array_equal(known, ids):
        return lambda column: column
    if not len(known):
        return lambda _: np.zeros(len(ids))
    places = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    found = known[places] == ids
    return lambda column: np.where(found, column[places], 0.0)


def _tables(tables: Sequence[Table], columns: Sequence[MapColumns]) -> Iterator[TableView]:
    first = 0
    for table, one in zip(tables, columns, strict=True):
        last = first + len(one)
        yield TableView(table.name, table.hashed, table.key_types, first, last)
        first = last


def _in_flight(snapshot: Snapshot, bundle: str) -> tuple[InFlight, ...]:
    return tuple(
        InFlight(migration.id, _touched(migration), migration.source_node, migration.target_node)
        for migration in snapshot.migrations.values()
        if migration.bundle == bundle and not migration.finished
    )


def _touched(migration: Migration) -> tuple[int, ...]:
    """The tablets before and after: what a split makes exists before the split has ended."""
    return tuple(dict.fromkeys((*migration.sources, *(target.id for target in migration.targets))))


@dataclass(frozen=True, slots=True)
class ReferenceTable:
    """A table that is everywhere."""

    table: Table
    tablet: Tablet
    """Its owner is the home."""
    streams: Mapping[str, str]
    """For each node with a copy, the name of its stream."""

    @property
    def home(self) -> str:
        return self.tablet.node

    @property
    def names(self) -> tuple[Name, ...]:
        return tuple(map(parse_name, self.table.roots))


def reference_tables(snapshot: Snapshot, bundle: str) -> list[ReferenceTable]:
    """Those of a bundle. A lost node no longer has a copy."""
    return [
        ReferenceTable(table, tablet, _streams(snapshot, tablet, bundle))
        for table in snapshot.tables.values()
        if table.everywhere and table.bundle == bundle
        for tablet in snapshot.tablets(table.id)
    ]


def _streams(snapshot: Snapshot, tablet: Tablet, bundle: str) -> dict[str, str]:
    home = Side(tablet.node, snapshot.nodes[tablet.node].generation)
    identity = identity_of(snapshot)
    return {
        node.id: stream_of(tablet.id, tablet.epoch, home, Side(node.id, node.generation), identity)
        for node in snapshot.nodes.values()
        if node.bundle == bundle and node.id != tablet.node and node.state is not NodeState.LOST
    }


def without_copies(snapshot: Snapshot, bundle: str, poll: ClusterPoll) -> dict[str, str]:
    """The nodes on which a copy is missing or not followed, by the last poll, each with the first such table."""
    found: dict[str, str] = {}
    for reference in reference_tables(snapshot, bundle):
        report = poll.nodes.get(reference.home)
        slots = report.poll.facts.slots if report is not None and report.poll is not None else ()
        active = {slot.name for slot in slots if slot.active}
        for node, stream in reference.streams.items():
            if stream_name(stream) not in active:
                found.setdefault(node, reference.table.name)
    return found
