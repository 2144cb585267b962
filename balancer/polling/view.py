"""One bundle as the policies see it: the directory's map and the last poll, joined into columns. Pure.

What a poll has not seen yet counts as nothing: no bytes, no rows, no rates. A node that is not to be trusted is down.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from balancer.directory.model import CLOSED_BY_DAEMON, EXPIRY, Migration, Node, NodeState, Table, TabletState
from balancer.directory.pages import STATES
from balancer.directory.snapshot import Columns, Snapshot
from balancer.policies.bundle_view import (
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
from balancer.policies.options import BundleOptions, InMemoryMode
from balancer.polling.poller import ClusterPoll, Health, NodeAnswer
from balancer.polling.reference_streams import without_copies

_CONDITIONS = {
    NodeState.ACTIVE: NodeCondition.ACTIVE,
    NodeState.DRAINING: NodeCondition.DRAINING,
    NodeState.CLOSED: NodeCondition.CLOSED,
    NodeState.DOWN: NodeCondition.DOWN,
    NodeState.LOST: NodeCondition.DOWN,
}
RATE_WINDOW = 1  # ten minutes: long enough not to chase bursts, short enough to see a change within the hour
LONG_WINDOW = 2  # an hour, for metrics that ask for it


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the bundle's file says of a node that PostgreSQL cannot know. Bytes, rows per second; None: not said."""

    disk: int | None = None
    memory: int | None = None
    write_rate: float | None = None
    read_rate: float | None = None


@dataclass(frozen=True, slots=True)
class Remembered:
    """What the caller keeps over ticks."""

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
) -> BundleView:
    """The view from which a plan is made."""
    nodes = [node for node in snapshot.nodes.values() if node.bundle == bundle]
    tables = [table for table in snapshot.tables.values() if table.bundle == bundle and not table.everywhere]
    parts = [_part(snapshot, table, nodes, poll, options) for table in tables]
    waiting = without_copies(snapshot, bundle, poll)
    return BundleView(
        bundle=bundle,
        now=poll.at,
        nodes=tuple(
            _node(node, poll.nodes.get(node.id), capacities.get(node.id, Capacity()), waits=node.id in waiting)
            for node in nodes
        ),
        tables=tuple(_tables(tables, parts)),
        tablets=_join(parts),
        in_flight=_in_flight(snapshot, bundle),
        pinned=frozenset(pin.tablet for pin in snapshot.pins.values() if pin.until is None or pin.until > poll.at),
        quarantined=frozenset(number for part in parts for number in part.quarantined),
        expired=frozenset(number for part in parts for number in part.expired),
        expiry_held=f"{bundle} {EXPIRY}" in snapshot.pauses,
        history=remembered.history,
        samples=remembered.samples,
        window_seconds_left=remembered.window_seconds_left,
        bytes_moved_in_window=remembered.bytes_moved_in_window,
        measured_bytes_per_second=remembered.measured_bytes_per_second,
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """The columns of one table."""

    columns: TabletColumns
    quarantined: tuple[int, ...]
    expired: tuple[int, ...] = ()


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


def _part(snapshot: Snapshot, table: Table, nodes: Sequence[Node], poll: ClusterPoll, options: BundleOptions) -> _Part:
    found = snapshot.columns(table.id)
    ids = np.asarray(found.ids, np.int64)
    numbers = {node.id: number for number, node in enumerate(nodes)}
    measured = _measured(ids, poll)
    in_memory = options.table(table.name).in_memory_mode is not InMemoryMode.NONE
    hashed = table.hashed
    moduli, remainders = _leaves(found) if hashed else (np.zeros(len(ids), np.int64), np.zeros(len(ids), np.int64))
    columns = TabletColumns(
        ids=ids,
        node=np.array([numbers[name] for name in found.nodes], np.int64)[np.asarray(found.node, np.int64)],
        sizes=measured["sizes"],
        memory=measured["sizes"] if in_memory else np.zeros(len(ids)),
        rows=measured["rows"],
        write_rate=measured["write_rate"],
        read_rate=measured["read_rate"],
        write_rate_1h=measured["write_rate_1h"],
        read_rate_1h=measured["read_rate_1h"],
        scan_rate=measured["scan_rate"],
        lowers=[b""] * len(ids) if hashed else list(found.starts),
        moduli=moduli,
        remainders=remainders,
    )
    states = np.asarray(found.states, np.int64)
    left_alone, gone = (STATES.index(state) for state in (TabletState.QUARANTINED, TabletState.EXPIRED))
    return _Part(columns, tuple(map(int, ids[states == left_alone])), tuple(map(int, ids[states == gone])))


def _leaves(found: Columns) -> tuple[Ints, Ints]:
    """Moduli and remainders: the remainder is the start with its bits in the opposite order."""
    moduli = np.left_shift(1, np.asarray(found.bits, np.int64))
    starts = np.asarray(found.starts, np.uint64).astype(">u8")
    bits = np.unpackbits(starts.view(np.uint8).reshape(-1, 8), axis=1)[:, ::-1]
    return moduli, np.packbits(bits, axis=1).view(">u8").ravel().astype(np.int64)


def _measured(ids: Ints, poll: ClusterPoll) -> dict[str, Floats]:
    """The measured columns of tablets, by name; 0 for what no poll has seen."""
    rates = poll.rates
    places = np.searchsorted(rates.ids, ids)
    places[places == len(rates.ids)] = 0
    seen = rates.ids[places] == ids if len(rates.ids) else np.zeros(len(ids), np.bool_)

    def pick(column: Floats) -> Floats:
        return np.where(seen, column[places], 0.0) if len(column) else np.zeros(len(ids))

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


def _tables(tables: Sequence[Table], parts: Sequence[_Part]) -> list[TableView]:
    views = []
    first = 0
    for table, part in zip(tables, parts, strict=True):
        last = first + len(part.columns)
        views.append(TableView(table.name, table.hashed, table.key_types, first, last))
        first = last
    return views


def _join(parts: Sequence[_Part]) -> TabletColumns:
    columns = [part.columns for part in parts]

    def ints(name: str) -> Ints:
        return np.concatenate([np.zeros(0, np.int64), *(getattr(part, name) for part in columns)])

    def floats(name: str) -> Floats:
        return np.concatenate([np.zeros(0), *(getattr(part, name) for part in columns)])

    return TabletColumns(
        ids=ints("ids"),
        node=ints("node"),
        sizes=floats("sizes"),
        memory=floats("memory"),
        rows=floats("rows"),
        write_rate=floats("write_rate"),
        read_rate=floats("read_rate"),
        write_rate_1h=floats("write_rate_1h"),
        read_rate_1h=floats("read_rate_1h"),
        scan_rate=floats("scan_rate"),
        lowers=[lower for part in columns for lower in part.lowers],
        moduli=ints("moduli"),
        remainders=ints("remainders"),
    )


def _in_flight(snapshot: Snapshot, bundle: str) -> tuple[InFlight, ...]:
    return tuple(
        InFlight(migration.id, _touched(migration), migration.source_node, migration.target_node)
        for migration in snapshot.migrations.values()
        if migration.bundle == bundle and not migration.finished
    )


def _touched(migration: Migration) -> tuple[int, ...]:
    """The tablets before and after: what a split makes exists before the split has ended."""
    return tuple(dict.fromkeys((*migration.sources, *(target.id for target in migration.targets))))
