"""Tablets as documents: pages with filters, the hottest, those in quarantine. Made for a million of them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from balancer.api.keytext import tablet_bounds
from balancer.api.shapes import TableShape, TabletPage, TabletShape
from balancer.api.source import Source
from balancer.directory.model import Table, Tablet, TabletState
from balancer.directory.pages import STATES
from balancer.directory.snapshot import Snapshot
from balancer.errors import UserError
from balancer.planner.state import BundleState
from balancer.policies.bundle_view import BundleView, Floats, Ints


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

    def of(self, bundle: str, tablet: int) -> dict[str, float]:
        """Size, rows and rates; empty where the tablet was not polled yet."""
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
            "bytes": float(columns.sizes[row]),
            "rows": float(columns.rows[row]),
            "write_rate": round(float(columns.write_rate[row]), 3),
            "read_rate": round(float(columns.read_rate[row]), 3),
        }


class Shaper:
    """Makes documents of tablets of one snapshot."""

    def __init__(self, source: Source) -> None:
        self.snapshot = source.follower().snapshot
        self._figures = TabletFigures(source.states())

    def shape(self, tablet: Tablet) -> TabletShape:
        """One tablet with everything that is known of it."""
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
            pinned_until=pin.until if pin else None,
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


def page(source: Source, wanted: Filter, limit: int, after: str) -> TabletPage:
    """Up to `limit` tablets that follow the place `after`, table by table in key order."""
    shaper = Shaper(source)
    first_table, first_row = _place(after)
    found: list[TabletShape] = []
    for table in _tables(shaper.snapshot, wanted):
        if table.id < first_table:
            continue
        tablets = shaper.snapshot.tablets(table.id)
        for row in _rows(shaper.snapshot, table, wanted, first_row if table.id == first_table else 0):
            if len(found) == limit:
                return TabletPage(tablets=found, next=f"{table.id}.{row}")
            found.append(shaper.shape(tablets[row]))
    return TabletPage(tablets=found, next="")


def hottest(source: Source, states: Iterable[BundleState], limit: int) -> list[TabletShape]:
    """The tablets with the greatest shares of their bundle's writes and reads, that are still there.

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


def _place(after: str) -> tuple[int, int]:
    if not after:
        return 0, 0
    table, _, row = after.partition(".")
    if not (table.isdigit() and row.isdigit() and len(after) < 40):
        raise UserError(f"{after!r} is not a place to go on from: pass the `next` of the page before")
    return int(table), int(row)
