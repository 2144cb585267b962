"""Tablets as documents: pages with filters, the hottest, those in quarantine. Made for a million of them.

Where a key lives: the coordinator's answer for applications that do not keep the directory themselves.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from balancer.api.shapes import (
    Place,
    RouteShape,
    TableList,
    TableShape,
    TabletList,
    TabletShape,
    cut_at,
    foreign,
    instant_or_none,
    read_cursor,
    write_cursor,
)
from balancer.api.source import Source
from balancer.directory.handover_record import signpost
from balancer.directory.locate import position_of, tablet_bounds
from balancer.directory.model import Table, Tablet, TabletState
from balancer.directory.snapshot import Snapshot
from balancer.directory.store.pages import STATES
from balancer.planner.bundle_state import BundleState
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.view import BundleView, Floats, Ints


@dataclass(frozen=True, slots=True)
class Filter:
    """Which tablets are wanted; None: all."""

    bundle: str | None = None
    table: str | None = None
    node: str | None = None
    state: TabletState | None = None


class TabletFigures:
    """The last poll's figures by tablet id."""

    def __init__(self, states: Mapping[str, BundleState]) -> None:
        self._states = states
        self._orders: dict[str, tuple[BundleView, Ints]] = {}

    def of(self, bundle: str, tablet: int) -> dict[str, Any]:
        """Size, rows and rates; empty if the tablet has not been polled yet."""
        if bundle not in self._orders:
            state = self._states.get(bundle)
            if state is None or state.view is None:
                return {}
            self._orders[bundle] = state.view, np.argsort(state.view.tablets.ids)
        view, order = self._orders[bundle]
        columns = view.tablets
        at = int(np.searchsorted(columns.ids, tablet, sorter=order))
        if at == len(order) or columns.ids[order[at]] != tablet:
            return {}
        row = order[at]
        return {
            "bytes": round(columns.sizes[row]),
            "rows": round(columns.rows[row]),
            "write_rate": round(float(columns.write_rate[row]), 3),
            "read_rate": round(float(columns.read_rate[row]), 3),
        }


class Shaper:
    """Makes documents of tablets of one snapshot."""

    def __init__(self, source: Source) -> None:
        self.snapshot = source.follower().snapshot
        self._figures = TabletFigures(source.states())

    def shape(self, tablet: Tablet) -> TabletShape:
        """One tablet with everything that is known about it."""
        table = self.snapshot.tables[tablet.table]
        pin, running = self.snapshot.pins.get(tablet.id), self.snapshot.migration_of(tablet.id)
        return TabletShape(
            id=tablet.id,
            table=table.name,
            bundle=table.bundle,
            node=tablet.node,
            epoch=tablet.epoch,
            state=tablet.state,
            pinned=pin is not None,
            pinned_until=instant_or_none(pin.until) if pin else None,
            migration=running.id if running else "",
            **tablet_bounds(table, tablet),
            **self._figures.of(table.bundle, tablet.id),
        )


def tables(snapshot: Snapshot, bundle: str | None = None) -> list[TableShape]:
    """All tables by bundle and name."""
    found = [table for table in snapshot.tables.values() if bundle in (None, table.bundle)]
    return [
        TableShape(
            name=table.name,
            bundle=table.bundle,
            layout=table.layout,
            key=[column.name for column in table.key_columns],
            key_types=list(table.key_types),
            roots=list(table.roots),
            tablets=len(snapshot.tablets(table.id)),
        )
        for table in sorted(found, key=lambda table: (table.bundle, table.name))
    ]


def table_list(snapshot: Snapshot, bundle: str | None, limit: int, cursor: str) -> TableList:
    """Some tables, by bundle and name."""
    items, following = cut_at(tables(snapshot, bundle), lambda one: (one.bundle, one.name), limit, cursor)
    return TableList(items=list(items), next=following)


def page(source: Source, wanted: Filter, limit: int, cursor: str) -> TabletList:
    """Up to `limit` tablets from the cursor's place on, table by table in key order."""
    shaper = Shaper(source)
    first_table, shown_to = _place(cursor)
    found: list[TabletShape] = []
    last: Place = ()
    for table in _tables(shaper.snapshot, wanted):
        if table.id < first_table:
            continue
        tablets = shaper.snapshot.tablets(table.id)
        first = bisect_right(tablets, shown_to, key=_start) if table.id == first_table else 0
        for row in _rows(shaper.snapshot, table, wanted, first):
            if len(found) == limit:
                return TabletList(items=found, next=write_cursor(last))
            found.append(shaper.shape(tablets[row]))
            last = table.id, _start(tablets[row])
    return TabletList(items=found)


def hottest(source: Source, states: Iterable[BundleState], limit: int) -> list[TabletShape]:
    """The tablets with the greatest shares of their bundle's writes and reads that still exist.

    Shares, not rows: a scan reads more rows in a second than anybody writes in an hour.
    """
    shaper = Shaper(source)
    best: list[tuple[float, int]] = []
    for state in states:
        if state.view is not None and len(state.view.tablets):
            shares = _shares(state.view.tablets.write_rate) + _shares(state.view.tablets.read_rate)
            rows = np.argpartition(shares, -min(limit, len(shares)))[-limit:]
            best += [(float(shares[row]), int(state.view.tablets.ids[row])) for row in rows if shares[row] > 0]
    best.sort(reverse=True)
    found = (shaper.snapshot.find_tablet(tablet) for _, tablet in best[:limit])
    return [shaper.shape(tablet) for tablet in found if tablet is not None]


def _shares(rates: Floats) -> Floats:
    total = rates.sum()
    return rates / total if total > 0 else rates


def quarantined(source: Source, states: Iterable[BundleState], limit: int) -> list[TabletShape]:
    """The first tablets that wait for an operator."""
    shaper = Shaper(source)
    ids = sorted(tablet for state in states if state.view for tablet in state.view.quarantined)
    found = (shaper.snapshot.find_tablet(tablet) for tablet in ids[:limit])
    return [shaper.shape(tablet) for tablet in found if tablet is not None]


def _tables(snapshot: Snapshot, wanted: Filter) -> list[Table]:
    if wanted.table is not None:
        snapshot.table(wanted.table)
    return [
        table
        for _, table in sorted(snapshot.tables.items())
        if wanted.table in (None, table.name) and wanted.bundle in (None, table.bundle)
    ]


def _rows(snapshot: Snapshot, table: Table, wanted: Filter, first: int) -> Iterator[int]:
    """The rows of a table that are wanted, from `first` on."""
    if wanted.node is None and wanted.state is None:
        yield from range(first, len(snapshot.tablets(table.id)))
        return
    columns = snapshot.columns(table.id)
    kept = np.ones(len(columns), dtype=np.bool_)
    if wanted.node is not None:
        owner = columns.nodes.index(wanted.node) if wanted.node in columns.nodes else -1
        kept &= np.array(columns.node, dtype=np.int64) == owner
    if wanted.state is not None:
        kept &= np.array(columns.states, dtype=np.int64) == STATES.index(wanted.state)
    rows = np.flatnonzero(kept)
    yield from rows[rows >= first].tolist()


def _start(tablet: Tablet) -> str:
    """Where a tablet begins, in the order of its table's keys. A split after that place hides nothing of it."""
    bounds = tablet.bounds
    return f"{bounds.start():016x}" if isinstance(bounds, Leaf) else bounds.lower.hex()


def _place(cursor: str) -> tuple[int, str]:
    place = read_cursor(cursor)
    if place is None:
        return 0, ""
    if len(place) != 2 or not isinstance(place[0], int) or not isinstance(place[1], str):
        raise foreign(cursor)
    return place[0], place[1]


def route(snapshot: Snapshot, table_name: str, key: Sequence[str], with_dsn: bool) -> RouteShape:
    """The owner of a key."""
    table = snapshot.table(table_name)
    tablet = snapshot.locate(table.id, position_of(table, key))
    node = snapshot.nodes.get(tablet.node)
    return RouteShape(
        table=table.name,
        tablet=tablet.id,
        epoch=tablet.epoch,
        node=tablet.node,
        dsn=node.dsn if node and with_dsn else "",
        state=tablet.state,
        moving=snapshot.migration_of(tablet.id) is not None,
        version=snapshot.version,
        handed_over=signpost(snapshot, table.id),
    )


def version_of(tag: str | None) -> int | None:
    """The directory's version in our own ETag; None: there is none, or it is somebody else's."""
    text = (tag or "").removeprefix("W/").strip('"')
    return int(text) if text.isdecimal() and len(text) < 20 else None
