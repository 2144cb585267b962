"""A bundle as it was: the same picture as `pictures`, from what the recorder has kept; for moments before this instance
began, from the directory's log: owners as they were, with today's sizes and no rates.

If a table has more tablets than the recorder has bins, a block stands for a bin, and its figures are those of its
greatest tablet times their number: an estimate, which says so by `tablets`.

Who owned what at a moment of the past, from the directory's own log: the commits since then, undone. Pure.

Any instance can tell, even one that started a minute ago. A commit that gives a tablet away carries the migration with
its source; one that replaces tablets carries them as they were. So nothing older than the moment has to be read.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from balancer.api.record_shapes import ClusterNode, ClusterShape
from balancer.api.shapes import instant
from balancer.api.source import LogCache, Source
from balancer.api.views.pictures import MOST_BLOCKS, BlockColumns, row_of, tables_of
from balancer.directory.model import LogEntry, Migration, MigrationKind, Put, RecordKind, Remove, Table, Tablet
from balancer.directory.snapshot import NotFound
from balancer.logs import mask
from balancer.planner.recorder import DAY_SLOT, DAY_SLOTS, LAYERS, PastMoment, PastTable
from balancer.policies.view import BundleView, Ints


@dataclass(slots=True)
class Returned:
    """A tablet that existed then and does not now."""

    table: int
    node: str
    successors: tuple[int, ...]
    """What replaced it."""


@dataclass(slots=True)
class PastOwners:
    """What was different from now."""

    owners: dict[int, str] = field(default_factory=dict)
    absent: set[int] = field(default_factory=set)
    """Tablets that were not there yet."""
    returned: dict[int, Returned] = field(default_factory=dict)
    reached: bool = False
    """Whether the commits go back to that moment; otherwise the past is not known."""


def owners_at(newest_first: Iterable[LogEntry], at: float) -> PastOwners:
    """The commits since the moment, undone one after another."""
    past = PastOwners()
    for entry in newest_first:
        if entry.at <= at:
            past.reached = True
            break
        _undo(past, entry)
        past.reached = entry.version <= 1
    return past


def _undo(past: PastOwners, entry: LogEntry) -> None:
    records = [change.record for change in entry.changes if isinstance(change, Put)]
    migration = next((record for record in records if isinstance(record, Migration)), None)
    made = {record.id for record in records if isinstance(record, Table)}
    for record in records:
        if isinstance(record, Tablet):
            _undo_put(past, record, migration, with_table=record.table in made)
    for change in entry.changes:
        if isinstance(change, Remove) and change.kind is RecordKind.TABLET and migration is not None:
            _undo_remove(past, int(change.key), migration)


def _undo_put(past: PastOwners, tablet: Tablet, migration: Migration | None, *, with_table: bool) -> None:
    if migration is None:
        if with_table:
            _leave(past, tablet.id)
        return
    if migration.operation is MigrationKind.MOVE and tablet.id in migration.sources:
        _give_back(past, tablet.id, migration.source_node)
    elif tablet.id not in migration.sources and tablet.id in {target.id for target in migration.targets}:
        _leave(past, tablet.id)


def _undo_remove(past: PastOwners, tablet: int, migration: Migration) -> None:
    if tablet not in migration.sources:
        return
    before: Any = migration.detail.get("before", ())
    nodes = {one.get("id"): one.get("node") for one in before if isinstance(one, dict)}
    successors = tuple(target.id for target in migration.targets)
    past.returned[tablet] = Returned(migration.table, str(nodes.get(tablet, migration.source_node)), successors)


def _give_back(past: PastOwners, tablet: int, node: str) -> None:
    if tablet in past.returned:
        past.returned[tablet].node = node
    else:
        past.owners[tablet] = node


def _leave(past: PastOwners, tablet: int) -> None:
    if past.returned.pop(tablet, None) is None:
        past.owners.pop(tablet, None)
        past.absent.add(tablet)


def past_cluster(source: Source, log: LogCache, bundle: str, at: float) -> ClusterShape:
    """The picture of a moment."""
    moment = _moment(source.recorder.moments(bundle, day=True), at)
    tables, names = source.recorder.past(bundle, at)
    if moment is None or not tables:
        return _from_log(source, log, bundle, at)
    writes, reads = (LAYERS.index(name) for name in ("writes", "reads"))
    return ClusterShape(
        bundle=bundle,
        at=instant(moment.at),
        past=True,
        tables=[table.name for table in tables],
        nodes=[_node(name, names, tables, moment) for name in moment.loads],
        tablets=sum(sum(table.frame.bins.counts) for table in tables),
        most_writes=max(round(float(table.frame.cells[writes].max()), 2) for table in tables),
        most_reads=max(round(float(table.frame.cells[reads].max()), 2) for table in tables),
        word=moment.word,
        sentence=mask(moment.sentence),
        score=moment.score,
    )


def _from_log(source: Source, log: LogCache, bundle: str, at: float) -> ClusterShape:
    state = source.states().get(bundle)
    view = None if state is None else state.view
    past = owners_at(log.newest_first(at), at)
    if view is None or not past.reached or at < source.clock.now().timestamp() - DAY_SLOT * DAY_SLOTS:
        raise NotFound(f"nothing is kept of bundle {bundle} at that moment: see `since` of /v1/series")
    blocks, owners, names = _columns(source, view, past)
    order = np.lexsort((np.arange(len(owners)), blocks.tables, owners))
    ends = np.searchsorted(owners[order], np.arange(len(names) + 1))
    most = max(1, MOST_BLOCKS // max(1, len(names)))
    there = len(view.nodes)  # those removed since come after them, and get no share
    fair = round(float(blocks.sizes.sum()) / there) if there else None
    return ClusterShape.model_construct(
        bundle=bundle,
        at=instant(at),
        past=True,
        tables=[table.name for table in view.tables],
        nodes=[
            row_of(blocks, order[ends[place] : ends[place + 1]], most, _about(name, fair if place < there else None))
            for place, name in enumerate(names)
        ],
        tablets=len(owners),
        most_writes=0.0,
        most_reads=0.0,
        word=None,
        sentence="owners are from the directory's log; sizes are today's, and loads of that time are not known here",
        score=None,
    )


def _about(name: str, fair: int | None) -> tuple[str, int | None, bool]:
    return name, fair, fair is not None


def _columns(source: Source, view: BundleView, past: PastOwners) -> tuple[BlockColumns, Ints, list[str]]:
    """Today's columns as they were: without what did not exist yet, with what has gone since."""
    names = [node.id for node in view.nodes]
    columns, tables = view.tablets, tables_of(view)
    known = {table.name: place for place, table in enumerate(view.tables)}
    sizes = dict(zip(columns.ids.tolist(), columns.sizes.tolist(), strict=True)) if past.returned else {}
    nodes = {name: place for place, name in enumerate(names)}
    owners = columns.node.astype(np.int64).copy()
    if past.owners:
        for row in np.flatnonzero(np.isin(columns.ids, list(past.owners))).tolist():
            owners[row] = _number(nodes, names, past.owners[int(columns.ids[row])])
    kept = ~np.isin(columns.ids, list(past.absent)) if past.absent else np.ones(len(owners), dtype=np.bool_)
    added = []
    records = source.follower().snapshot.tables
    for tablet, one in past.returned.items():
        table = records.get(one.table)
        if table is not None and table.name in known:
            shared = sum(sizes.get(successor, 0.0) for successor in one.successors)
            together = sum(other.successors == one.successors for other in past.returned.values())
            sizes[tablet] = shared / together
            added.append((tablet, known[table.name], sizes[tablet], _number(nodes, names, one.node)))
    ids = np.append(columns.ids[kept], np.array([one[0] for one in added], dtype=np.int64)).astype(np.int64)
    nothing = np.zeros(len(ids))
    blocks = BlockColumns(
        ids,
        np.append(tables[kept], [one[1] for one in added]).astype(np.int64),
        np.append(columns.sizes[kept], [one[2] for one in added]),
        nothing,
        nothing,
    )
    return blocks, np.append(owners[kept], [one[3] for one in added]).astype(np.int64), names


def _number(nodes: dict[str, int], names: list[str], node: str) -> int:
    """A node may have been removed since."""
    if node not in nodes:
        nodes[node] = len(names)
        names.append(node)
    return nodes[node]


def _moment(moments: Sequence[PastMoment], at: float) -> PastMoment | None:
    """The newest that is not later."""
    return next((moment for moment in reversed(moments) if moment.at <= at), None)


def _node(name: str, names: Sequence[str], tables: Sequence[PastTable], moment: PastMoment) -> ClusterNode:
    number = names.index(name) if name in names else -1
    counted = [moment.loads[one][0] for one in moment.counted]
    made = ClusterNode(
        id=name,
        fair=round(sum(counted) / len(counted)) if name in moment.counted else None,
        counts=name in moment.counted,
        ids=[],
        tablets=[],
        tables=[],
        bytes=[],
        writes=[],
        reads=[],
    )
    for place, table in enumerate(tables):
        _add(made, place, table, number)
    return made


def _add(made: ClusterNode, place: int, table: PastTable, owner: int) -> None:
    frame = table.frame
    bins = np.flatnonzero(frame.owners == owner).tolist()
    cells = dict(zip(LAYERS, frame.cells, strict=True))
    for bin_ in bins:
        count = frame.bins.counts[bin_]
        made.ids.append(frame.bins.ids[bin_])
        made.tablets.append(count)
        made.tables.append(place)
        for name in LAYERS:
            figure = float(cells[name][bin_]) * count
            getattr(made, name).append(round(figure) if name == "bytes" else round(figure, 2))
