"""Everything the page shows first, in one document that stays small at any number of tablets."""

from collections.abc import Sequence
from typing import Final

from balancer.api.note_cache import Notes
from balancer.api.shapes import Overview
from balancer.api.source import Source
from balancer.api.views import bundles, migrations, plans, tablets
from balancer.api.views.check_results import check_results
from balancer.api.views.schedule import schedule

_FEW: Final = 30
_POINTS: Final = 120


def overview(source: Source, notes: Notes) -> Overview:
    """The first paint, and every later one."""
    states = bundles.chosen(source, None)
    snapshot = source.follower().snapshot
    page = migrations.page(snapshot, notes.progress(snapshot), limit=2 * _FEW)
    return Overview(
        status=bundles.status(source, notes),
        tables=tablets.tables(snapshot),
        nodes=bundles.nodes(source, states),
        schedules=[schedule(source, state, windows=4) for state in states],
        scores={state.bundle: _thinned(source.recorder.scores(state.bundle)) for state in states},
        plans=plans.plans(states, _FEW),
        migrations=page.migrations,
        running=page.running,
        quarantined=tablets.quarantined(source, states, _FEW),
        hot=tablets.hottest(source, states, 10),
        checks=check_results(notes.checks()),
        history=notes.recent(snapshot),
    )


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Evenly chosen points, the newest always among them."""
    if not points:
        return []
    step = -(-len(points) // _POINTS)
    return [(round(at, 1), round(score, 2)) for at, score in reversed(points[::-1][::step])]
