"""A bundle as it was: the same picture as `picture`, from what the recorder has kept; for moments before this instance
began, from the directory's log: owners as they were, with today's sizes and no rates.

If a table has more tablets than the recorder has bins, a block stands for a bin, and its figures are those of its
greatest tablet times their number: an estimate, which says so by `tablets`.
"""

from collections.abc import Sequence

import numpy as np

from balancer.api.documents import instant
from balancer.api.log_cache import LogCache
from balancer.api.page_shapes import ClusterNode, ClusterShape
from balancer.api.source import Source
from balancer.api.views.picture import MOST_BLOCKS, BlockColumns, row_of, tables_of
from balancer.directory.snapshot import NotFound
from balancer.logs import mask
from balancer.planner.moments import DAY_SLOT, DAY_SLOTS, PastMoment
from balancer.planner.past_owners import PastOwners, owners_at
from balancer.planner.recorder import LAYERS, PastTable
from balancer.policies.bundle_view import BundleView, Ints


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
