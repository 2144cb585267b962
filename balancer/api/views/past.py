"""A bundle as it was: the same picture as `picture`, from what the recorder has kept.

Where a table has more tablets than the recorder has bins, a block stands for a bin, and its figures are those of its
greatest tablet times their number: an estimate, which says so by `tablets`.
"""

from collections.abc import Sequence

import numpy as np

from balancer.api.page_shapes import ClusterNode, ClusterShape
from balancer.api.source import Source
from balancer.directory.snapshot import NotFound
from balancer.logs import mask
from balancer.planner.moments import PastMoment
from balancer.planner.recorder import LAYERS, PastTable


def past_cluster(source: Source, bundle: str, at: float) -> ClusterShape:
    """The picture of a moment."""
    moment = _moment(source.recorder.moments(bundle, day=True), at)
    tables, names = source.recorder.past(bundle, at)
    if moment is None or not tables:
        raise NotFound(f"nothing is kept of bundle {bundle} at that moment: see `times` of /v1/series?day=true")
    writes, reads = (LAYERS.index(name) for name in ("writes", "reads"))
    return ClusterShape(
        bundle=bundle,
        at=moment.at,
        past=True,
        tables=[table.name for table in tables],
        nodes=[_node(name, names, tables, moment) for name in moment.loads],
        tablets=sum(sum(table.frame.bins.counts) for table in tables),
        most_writes=max(round(float(table.frame.cells[writes].max()), 2) for table in tables),
        most_reads=max(round(float(table.frame.cells[reads].max()), 2) for table in tables),
        word=str(moment.word),
        sentence=mask(moment.sentence),
        score=moment.score,
    )


def _moment(moments: Sequence[PastMoment], at: float) -> PastMoment | None:
    """The newest that is not younger."""
    return next((moment for moment in reversed(moments) if moment.at <= at), None)


def _node(name: str, names: Sequence[str], tables: Sequence[PastTable], moment: PastMoment) -> ClusterNode:
    number = names.index(name) if name in names else -1
    counted = [moment.loads[one][0] for one in moment.counted]
    made = ClusterNode(
        id=name,
        fair=sum(counted) / len(counted) if name in moment.counted else None,
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
            getattr(made, name).append(round(float(cells[name][bin_]) * count, 2))
