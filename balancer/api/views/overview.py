"""Everything the page shows first, in one document that stays small at any number of tablets."""

from typing import Final

from balancer.api.note_cache import Notes
from balancer.api.record_shapes import Overview
from balancer.api.source import Source
from balancer.api.views import bundles, migrations, plans, tablets
from balancer.api.views.check_results import check_results
from balancer.api.views.schedule import schedule

_FEW: Final = 30


def overview(source: Source, notes: Notes) -> Overview:
    """The first paint, and every later one."""
    states = bundles.chosen(source, None)
    snapshot = source.follower().snapshot
    shown = migrations.page(snapshot, notes.progress(snapshot), migrations.Chosen(), limit=2 * _FEW)
    return Overview(
        status=bundles.status(source, notes),
        tables=tablets.tables(snapshot),
        nodes=bundles.nodes(source, states),
        schedules=[schedule(source, state, windows=4) for state in states],
        plans=plans.plans(states, _FEW),
        migrations=shown.items,
        running=sum(not one.finished for one in snapshot.migrations.values()),
        quarantined=tablets.quarantined(source, states, _FEW),
        hot=tablets.hottest(source, states, 10),
        checks=check_results(notes.checks()),
        history=notes.recent(snapshot),
    )
