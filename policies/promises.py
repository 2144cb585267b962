"""Moves that others have asked for: the second half of an exchange, the rest of a chain, the parts of a split.

Running migrations carry them along (`Action.then`), so that they survive a restart; they are started before anything
that a new plan proposes, and credited to their targets from the moment they are promised: no plan undoes half of a
step. The tick and the simulator call these.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from balancer.policies.budgets import Admission
from balancer.policies.bundle_view import Action, BundleView, InFlight
from balancer.policies.options import BundleOptions


def affordable(owed: Iterable[Action], view: BundleView, options: BundleOptions) -> list[Action]:
    """Those that the budgets and the window have room for, with their sizes."""
    running = tuple(migration for migration in view.in_flight if not migration.waits)
    admission, taken = Admission(replace(view, in_flight=running), options), []
    owed = list(owed)
    rows = rows_of(view, [action.tablets[0] for action in owed])
    for action in owed:
        row = rows.get(action.tablets[0])
        sized = replace(action, size=0.0 if row is None else float(view.tablets.sizes[row]))
        if admission.obstacle(sized) is None:
            admission.admit(sized)
            taken.append(sized)
    return taken


def credited(view: BundleView, started: Iterable[Action], waiting: Iterable[InFlight] = ()) -> BundleView:
    """The view as if these were already in flight: the plan gives their room to nobody else."""
    flights = tuple(InFlight(f"owed-{at}", one.tablets, one.source, one.target) for at, one in enumerate(started))
    flights += tuple(waiting)
    return replace(view, in_flight=(*view.in_flight, *flights)) if flights else view


def waiting_flights(pairs: Iterable[tuple[int, str]], view: BundleView) -> list[InFlight]:
    """Tablets and where they go later, as flights that wait; what is already on its node, or gone, is left out."""
    pairs = list(pairs)
    rows = rows_of(view, [tablet for tablet, _ in pairs])
    found = []
    for tablet, target in pairs:
        source = view.nodes[int(view.tablets.node[rows[tablet]])].id if tablet in rows else ""
        if source and source != target:
            found.append(InFlight(f"promised-{tablet}", (tablet,), source, target, waits=True))
    return found


def rows_of(view: BundleView, tablets: Sequence[int]) -> dict[int, int]:
    """The rows of these tablets, as far as they exist."""
    if not tablets:
        return {}
    rows = np.flatnonzero(np.isin(view.tablets.ids, np.array(tablets, dtype=np.int64)))
    return {int(view.tablets.ids[row]): int(row) for row in rows}
