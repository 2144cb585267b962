"""A bundle as a picture: nodes as rows, tablets as blocks. Small at any number of tablets: neighbours share a block.

The heat map as a document: a byte per cell, so that an hour of any table fits into one small answer.

A bundle over time, for charts: what the recorder has kept, and what the directory still has about its migrations.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from balancer.api.record_shapes import ClusterNode, ClusterShape, MovedShape, NodeSeries, SeriesShape
from balancer.api.shapes import Dimension, HeatBin, HeatShape, instant
from balancer.api.source import LogCache, Source
from balancer.directory.locate import bound_text
from balancer.directory.model import Migration
from balancer.errors import UserError
from balancer.logs import mask
from balancer.planner.bundle_state import BundleState
from balancer.planner.recorder import CARRIED, DAY_SLOT, DAY_SLOTS, PastMoment, Present
from balancer.policies.view import BundleView, Floats, Ints
from balancer.settings.migration import MigrationSettings

MOST_BLOCKS: Final = 12_000


@dataclass(frozen=True, slots=True)
class BlockColumns:
    """What blocks are made from: an entry for each tablet."""

    ids: Ints
    tables: Ints
    sizes: Floats
    writes: Floats
    reads: Floats


def cluster(state: BundleState) -> ClusterShape:
    """The newest picture of a bundle."""
    view = state.view
    return ClusterShape.model_construct(
        bundle=state.bundle,
        at=state.at,
        past=False,
        tables=[] if view is None else [table.name for table in view.tables],
        nodes=[_empty(report.id) for report in state.nodes] if view is None else _rows(state, view),
        tablets=0 if view is None else len(view.tablets),
        most_writes=0.0 if view is None else _most(view.tablets.write_rate),
        most_reads=0.0 if view is None else _most(view.tablets.read_rate),
        word=state.word,
        sentence=mask(state.sentence),
        score=None if state.plan is None else round(state.plan.score_before, 2),
    )


def fair_shares(sizes: Floats, weights: Floats, takes: Sequence[bool], gives: Sequence[bool]) -> list[int | None]:
    """Of the total load on nodes that take or give tablets, the share of each that takes them, by its weight."""
    taking = np.array(takes, dtype=np.bool_)
    shared = float(sizes[taking | np.array(gives, dtype=np.bool_)].sum())
    total = float(weights[taking].sum())
    if not total:
        return [None] * len(sizes)
    return [
        round(shared * float(weight) / total) if take else None for weight, take in zip(weights, takes, strict=True)
    ]


def _rows(state: BundleState, view: BundleView) -> list[ClusterNode]:
    reports = {report.id: report for report in state.nodes}
    reachable = [node.id not in reports or reports[node.id].reachable for node in view.nodes]
    words = [reports[node.id].state if node.id in reports else str(node.condition) for node in view.nodes]
    takes = [fine and word == "active" for fine, word in zip(reachable, words, strict=True)]
    gives = [fine and word == "draining" for fine, word in zip(reachable, words, strict=True)]
    count = len(view.nodes)
    sizes = np.bincount(view.tablets.node, weights=view.tablets.sizes, minlength=count).astype(np.float64)[:count]
    fair = fair_shares(sizes, np.array([node.weight for node in view.nodes]), takes, gives)
    columns = view.tablets
    blocks = BlockColumns(columns.ids, tables_of(view), columns.sizes, columns.write_rate, columns.read_rate)
    order = np.argsort(view.tablets.node, kind="stable")
    ends = np.searchsorted(view.tablets.node[order], np.arange(count + 1))
    most = max(1, MOST_BLOCKS // max(1, count))
    missing = [_empty(name) for name in reports if name not in {node.id for node in view.nodes}]
    return [
        *(
            row_of(blocks, order[ends[at] : ends[at + 1]], most, (node.id, fair[at], takes[at]))
            for at, node in enumerate(view.nodes)
        ),
        *missing,
    ]


def row_of(blocks: BlockColumns, rows: Ints, most: int, about: tuple[str, int | None, bool]) -> ClusterNode:
    """One node: its tablets, given by their places in the columns, in the order of tables."""
    name, fair, counts = about
    if not len(rows):
        return _empty(name, fair, counts)
    tables, firsts = blocks.tables, block_starts(blocks.tables[rows], most)
    sizes = blocks.sizes[rows]
    return ClusterNode.model_construct(
        id=name,
        fair=fair,
        counts=counts,
        ids=blocks.ids[rows][_largest(sizes, firsts)].tolist(),
        tablets=np.diff(np.append(firsts, len(rows))).tolist(),
        tables=tables[rows][firsts].tolist(),
        bytes=np.add.reduceat(sizes, firsts).round().astype(np.int64).tolist(),
        writes=significant(np.add.reduceat(blocks.writes[rows], firsts)),
        reads=significant(np.add.reduceat(blocks.reads[rows], firsts)),
    )


def block_starts(tables: Ints, most: int) -> Ints:
    """Where blocks begin: evenly, and wherever a table does."""
    count = len(tables)
    even = np.arange(min(most, count), dtype=np.int64) * count // min(most, count)
    return np.union1d(even, np.flatnonzero(np.diff(tables)) + 1).astype(np.int64)


def significant(column: Floats) -> list[float]:
    """To three digits: what a picture can show, and a third of what would otherwise be sent."""
    sizes = np.floor(np.log10(np.maximum(np.abs(column), 1e-3)))
    steps = 10.0 ** (2 - sizes)
    return [int(one) if one.is_integer() else round(one, 5) for one in (np.rint(column * steps) / steps).tolist()]


def _largest(sizes: Floats, firsts: Ints) -> Ints:
    """The place of each block's largest; the first of several."""
    ends = np.append(firsts[1:], len(sizes))
    found: Ints = np.array([first + int(np.argmax(sizes[first:end])) for first, end in zip(firsts, ends, strict=True)])
    return found


def tables_of(view: BundleView) -> Ints:
    """Each tablet's table, as a place in the view's tables."""
    found = np.zeros(len(view.tablets), dtype=np.int64)
    for at, table in enumerate(view.tables):
        found[table.first : table.last] = at
    return found


def _most(column: Floats) -> float:
    return round(float(column.max()), 2) if len(column) else 0.0


def _empty(name: str, fair: int | None = None, counts: bool = False) -> ClusterNode:
    return ClusterNode(id=name, fair=fair, counts=counts, ids=[], tablets=[], tables=[], bytes=[], writes=[], reads=[])


_OTHER = 255


def heat(source: Source, bundle: str, table: str, dimension: Dimension, rows: int, *, day: bool = False) -> HeatShape:
    """One layer of a table over the last hour or day, in at most this many rows."""
    found = source.recorder.heat_map(bundle, table, str(dimension), day=day)
    if found is None:
        known = ", ".join(f"{a}/{b}" for a, b in source.recorder.tables()) or "none yet"
        raise UserError(f"nothing is recorded of the table {table!r} in {bundle!r}; recorded are: {known}")
    firsts = _firsts(len(found.times), rows)
    values = np.maximum.reduceat(found.values, firsts, axis=0)
    greatest = float(values.max())
    return HeatShape(
        bundle=bundle,
        table=table,
        dimension=dimension,
        times=[instant(found.times[first]) for first in firsts],
        bins=bins(found.present),
        max=greatest,
        cells=_packed(_levels(values, greatest)),
        nodes=list(found.nodes[:_OTHER]),
        owners=_packed(np.minimum(found.owners[[*firsts[1:] - 1, -1]], _OTHER).astype(np.uint8)),
    )


def _firsts(count: int, rows: int) -> npt.NDArray[np.int64]:
    """Where the rows into which moments are joined begin: equally many in each, the oldest row has the remainder."""
    step = -(-count // rows)
    starts = np.arange(count % step or step, count, step)
    return np.concatenate(([0], starts)).astype(np.int64)


def bins(present: Present) -> list[HeatBin]:
    """The columns of the map, left to right."""
    view, table, columns = present.view, present.table, present.view.tablets
    firsts, busiest = present.firsts.tolist(), present.busiest.tolist()
    ends = [*firsts[1:], table.last]
    labels = [_start_text(present, row) for row in firsts]
    labels.append("1" if table.hash else "")
    made = []
    for at, (first, row, end) in enumerate(zip(firsts, busiest, ends, strict=True)):
        made.append(
            HeatBin.model_construct(
                tablets=end - first,
                first=int(columns.ids[first]),
                busiest=int(columns.ids[row]),
                node=view.nodes[columns.node[row]].id,
                lower=labels[at],
                upper=labels[at + 1],
                bytes=round(columns.sizes[row]),
                write_rate=round(float(columns.write_rate[row]), 2),
                read_rate=round(float(columns.read_rate[row]), 2),
            )
        )
    return made


def _start_text(present: Present, row: int) -> str:
    """Where a tablet begins: its key, or for a vbucket its place among all hashes, 0 to 1."""
    table, columns = present.table, present.view.tablets
    if table.hash:
        return f"{columns.leaf(row).start() / 2**64:.6g}"
    return bound_text(table.key_types, columns.lowers[row])


def _levels(values: npt.NDArray[np.float32], greatest: float) -> npt.NDArray[np.uint8]:
    if not greatest:
        return np.zeros(values.shape, dtype=np.uint8)
    levels: npt.NDArray[np.uint8] = np.rint(np.log1p(values) * (255 / np.log1p(greatest))).astype(np.uint8)
    return levels


def _packed(cells: npt.NDArray[np.uint8]) -> str:
    return base64.b64encode(cells.tobytes()).decode()


MOST_POINTS: Final = 360
MOST_FIGURES: Final = 9_000
"""Points of all nodes together: with a hundred nodes a chart has ninety points, as many as its pixels can show."""
FEWEST_POINTS: Final = 60
RATES: Final = ("write_rate", "read_rate")
KEPT: Final = (
    "An hour in steps of a tick and a day in steps of four minutes, in this instance's memory since it started; before"
    " that, owners from the directory's log; migrations as long as the directory keeps them, the last 500"
)


def series(source: Source, log: LogCache, bundle: str, *, day: bool) -> SeriesShape:
    """One bundle."""
    kept = source.recorder.moments(bundle, day=day)
    moments = thinned(kept, max(FEWEST_POINTS, min(MOST_POINTS, MOST_FIGURES // max(1, _most_nodes(kept)))))
    ours = [one for one in source.follower().snapshot.migrations.values() if one.bundle == bundle]
    done = sorted((one for one in ours if one.finished and one.state == "done"), key=lambda one: one.updated)
    names = sorted({name for moment in moments for name in moment.loads})
    settings = source.settings().bundles.get(bundle)
    migration = MigrationSettings() if settings is None else settings.migration
    return SeriesShape(
        bundle=bundle,
        since=instant(_since(source, log, kept)),
        times=[instant(moment.at) for moment in moments],
        words=[moment.word for moment in moments],
        scores=[None if moment.score is None else round(moment.score, 2) for moment in moments],
        running=[sum(_ran(one, moment.at) for one in ours) for moment in moments],
        nodes=[_node(moments, name) for name in names],
        pause_seconds=[pause for one in done if (pause := _number(one, "pause")) is not None],
        pause_budget_seconds=migration.write_pause_budget,
        moved=[MovedShape(at=instant(one.updated), bytes=round(_number(one, "size") or 0)) for one in done],
        kept=KEPT,
    )


def _since(source: Source, log: LogCache, moments: Sequence[PastMoment]) -> float:
    """The moment from which there is a picture: from this instance's memory, or from the directory's log."""
    now = source.clock.now().timestamp()
    return max(now - DAY_SLOT * DAY_SLOTS, min(log.oldest(), moments[0].at if moments else now))


def _most_nodes(moments: Sequence[PastMoment]) -> int:
    return max((len(moment.loads) for moment in moments), default=0)


def thinned(moments: Sequence[PastMoment], most: int) -> Sequence[PastMoment]:
    """Evenly chosen, the newest always among them."""
    step = max(1, -(-len(moments) // most))
    return moments[::-1][::step][::-1]


def _node(moments: Sequence[PastMoment], name: str) -> NodeSeries:
    carried = [
        dict(zip(CARRIED, moment.loads[name], strict=True)) if name in moment.loads else {} for moment in moments
    ]
    writes, reads = (significant(np.array([one.get(rate, 0.0) for one in carried])) for rate in RATES)
    return NodeSeries(
        id=name,
        bytes=[round(one["bytes"]) if one else None for one in carried],
        write_rate=[rate if one else None for one, rate in zip(carried, writes, strict=True)],
        read_rate=[rate if one else None for one, rate in zip(carried, reads, strict=True)],
        tablets=[round(one["tablets"]) if one else None for one in carried],
        uncounted=[at for at, moment in enumerate(moments) if name not in moment.counted],
    )


def _ran(one: Migration, at: float) -> bool:
    return one.created <= at and (not one.finished or at < one.updated)


def _number(one: Migration, name: str) -> float | None:
    value = one.detail.get(name)
    return float(value) if isinstance(value, int | float) else None
