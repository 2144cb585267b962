"""Moves that a split asked for: the part that a hot front or a hot key got goes to a cooler node. Pure.

The policy that proposed the split has said where each part should live; the record of the finished split remembers it.
Each wish is tried once: what became of it is in the directory, and from then on the tablet is the policies' again.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from balancer.directory.model import NodeState, Pin, Tablet, TabletState
from balancer.directory.snapshot import Snapshot
from balancer.policies.budgets import Admission
from balancer.policies.bundle_view import Action, ActionKind, BundleView, InFlight
from balancer.policies.options import BundleOptions

CODE = "follow-up"
PATIENCE = 3600.0  # seconds after which the load has changed so much that the wish means nothing any more


def follow_ups(snapshot: Snapshot, bundle: str, now: float) -> Iterator[Action]:
    """The moves that are still owed, oldest first."""
    records = [record for record in snapshot.migrations.values() if record.bundle == bundle]
    tried = {tablet for record in records for tablet in record.sources}
    wishes = [record for record in records if record.state == "done" and now - record.updated < PATIENCE]
    for record in sorted(wishes, key=lambda record: record.updated):
        for number, node in record.detail.get("then", ()):
            tablet = snapshot.find_tablet(int(number))
            if tablet is None or tablet.id in tried or not _may_go(snapshot, tablet, node, now):
                continue
            table = snapshot.tables[tablet.table].name
            reason = f"the split {record.id} made it for {node}: {record.reason}"
            yield Action(ActionKind.MOVE, table, (tablet.id,), reason, CODE, tablet.node, node)


def affordable(owed: Iterable[Action], view: BundleView, options: BundleOptions) -> list[Action]:
    """Those that the budgets and the window have room for, with their sizes."""
    admission, taken = Admission(view, options), []
    sizes = dict(zip(view.tablets.ids.tolist(), view.tablets.sizes.tolist(), strict=True))
    for action in owed:
        sized = replace(action, size=sizes.get(action.tablets[0], 0.0))
        if admission.obstacle(sized) is None:
            admission.admit(sized)
            taken.append(sized)
    return taken


def credited(view: BundleView, owed: Iterable[Action]) -> BundleView:
    """The view as if these were on their way already: the plan gives their room to nobody else."""
    flights = tuple(InFlight(f"owed-{at}", one.tablets, one.source, one.target) for at, one in enumerate(owed))
    return replace(view, in_flight=(*view.in_flight, *flights)) if flights else view


def _may_go(snapshot: Snapshot, tablet: Tablet, node: str, now: float) -> bool:
    target = snapshot.nodes.get(node)
    if tablet.node == node or snapshot.migration_of(tablet.id) or target is None:
        return False
    left_alone = tablet.state is TabletState.QUARANTINED or _holds(snapshot.pins.get(tablet.id), now)
    return target.state is NodeState.ACTIVE and not left_alone


def _holds(pin: Pin | None, now: float) -> bool:
    return pin is not None and (pin.until is None or pin.until > now)
