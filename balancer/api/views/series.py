"""A bundle over time, for charts: what the recorder has kept, and what the directory still has about its migrations."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from balancer.api.documents import instant
from balancer.api.log_cache import LogCache
from balancer.api.page_shapes import MovedShape, NodeSeries, SeriesShape
from balancer.api.source import Source
from balancer.api.views.picture import significant
from balancer.directory.model import Migration
from balancer.planner.moments import CARRIED, DAY_SLOT, DAY_SLOTS, PastMoment
from balancer.settings.migration import MigrationSettings

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
