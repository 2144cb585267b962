"""Moves that a split asked for: the part that a hot front or a hot key got goes to a cooler node. Pure.

The policy that proposed the split has said where each part should live; the record of the finished split remembers it.
"""

from collections.abc import Iterator

from balancer.directory.model import NodeState
from balancer.directory.snapshot import Snapshot
from policies.model import Action, ActionKind

CODE = "follow-up"
PATIENCE = 3600.0  # seconds after which the load has changed so much that the wish means nothing any more


def follow_ups(snapshot: Snapshot, bundle: str, now: float) -> Iterator[Action]:
    """The moves that are still owed, oldest first."""
    finished = [
        record
        for record in snapshot.migrations.values()
        if record.bundle == bundle and record.state == "done" and now - record.updated < PATIENCE
    ]
    for record in sorted(finished, key=lambda record: record.updated):
        for number, node in record.detail.get("then", ()):
            tablet = snapshot.find_tablet(int(number))
            if tablet is None or tablet.epoch > 1 or tablet.node == node or snapshot.migration_of(tablet.id):
                continue  # it is gone, has been moved since, or is on its way
            target = snapshot.nodes.get(node)
            if target is None or target.state is not NodeState.ACTIVE:
                continue
            table = snapshot.tables[tablet.table].name
            reason = f"the split {record.id} made it for {node}: {record.reason}"
            yield Action(ActionKind.MOVE, table, (tablet.id,), reason, CODE, tablet.node, node)
