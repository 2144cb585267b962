"""A bundle over time, for charts: what the recorder kept of it, and what the directory still has of its migrations."""

from collections.abc import Sequence
from typing import Final

from balancer.api.page_shapes import SeriesShape
from balancer.api.source import Source
from balancer.directory.model import Migration
from balancer.planner.moments import PastMoment
from balancer.settings.migration import MigrationSettings

MOST_POINTS: Final = 360
KEPT: Final = (
    "An hour in steps of a tick and a day in steps of four minutes, in this instance's memory since it started;"
    " migrations as long as the directory keeps them, the last 500"
)


def series(source: Source, bundle: str, *, day: bool) -> SeriesShape:
    """One bundle."""
    moments = thinned(source.recorder.moments(bundle, day=day), MOST_POINTS)
    ours = [one for one in source.follower().snapshot.migrations.values() if one.bundle == bundle]
    done = sorted((one for one in ours if one.finished and one.state == "done"), key=lambda one: one.updated)
    names = sorted({name for moment in moments for name in moment.loads})
    settings = source.settings().bundles.get(bundle)
    migration = MigrationSettings() if settings is None else settings.migration
    return SeriesShape(
        bundle=bundle,
        times=[round(moment.at, 1) for moment in moments],
        words=[str(moment.word) for moment in moments],
        scores=[None if moment.score is None else round(moment.score, 2) for moment in moments],
        running=[sum(_ran(one, moment.at) for one in ours) for moment in moments],
        nodes={name: [_figures(moment, name) for moment in moments] for name in names},
        uncounted={name: [at for at, one in enumerate(moments) if name not in one.counted] for name in names},
        pauses=[pause for one in done if (pause := _number(one, "pause")) is not None],
        pause_budget=migration.write_pause_budget,
        moved=[(one.updated, _number(one, "size") or 0.0) for one in done],
        kept=KEPT,
    )


def thinned(moments: Sequence[PastMoment], most: int) -> Sequence[PastMoment]:
    """Evenly chosen, the newest always among them."""
    step = max(1, -(-len(moments) // most))
    return moments[::-1][::step][::-1]


def _figures(moment: PastMoment, node: str) -> list[float] | None:
    loads = moment.loads.get(node)
    return None if loads is None else [round(one, 2) for one in loads]


def _ran(one: Migration, at: float) -> bool:
    return one.created <= at and (not one.finished or at < one.updated)


def _number(one: Migration, name: str) -> float | None:
    value = one.detail.get(name)
    return float(value) if isinstance(value, int | float) else None
