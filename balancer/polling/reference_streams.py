"""Reference tables by the directory: where their home is, which streams their copies have, which nodes lack a copy.

Pure. A copy is ready while its slot at the home has a reader: the subscription is made in the transaction that fills
the copy. A node without all copies of its bundle gets no tablets: their foreign keys would find nothing there.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from balancer.directory.model import NodeState, Table, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.nodes.names import Name, parse_name
from balancer.nodes.objects import stream_name
from balancer.nodes.reference_copies import Side, stream_of
from balancer.polling.poller import ClusterPoll


@dataclass(frozen=True, slots=True)
class ReferenceTable:
    """A table that is everywhere."""

    table: Table
    tablet: Tablet
    """Its owner is the home."""
    streams: Mapping[str, str]
    """For each node with a copy, the name of its stream."""

    @property
    def home(self) -> str:
        return self.tablet.node

    @property
    def names(self) -> tuple[Name, ...]:
        return tuple(map(parse_name, self.table.roots))


def reference_tables(snapshot: Snapshot, bundle: str) -> list[ReferenceTable]:
    """Those of a bundle. A lost node no longer has a copy."""
    return [
        ReferenceTable(table, tablet, _streams(snapshot, tablet, bundle))
        for table in snapshot.tables.values()
        if table.everywhere and table.bundle == bundle
        for tablet in snapshot.tablets(table.id)
    ]


def _streams(snapshot: Snapshot, tablet: Tablet, bundle: str) -> dict[str, str]:
    home = Side(tablet.node, snapshot.nodes[tablet.node].generation)
    return {
        node.id: stream_of(tablet.id, tablet.epoch, home, Side(node.id, node.generation))
        for node in snapshot.nodes.values()
        if node.bundle == bundle and node.id != tablet.node and node.state is not NodeState.LOST
    }


def without_copies(snapshot: Snapshot, bundle: str, poll: ClusterPoll) -> dict[str, str]:
    """The nodes on which a copy is missing or not followed, by the last poll, each with the first such table."""
    found: dict[str, str] = {}
    for reference in reference_tables(snapshot, bundle):
        report = poll.nodes.get(reference.home)
        slots = report.poll.facts.slots if report is not None and report.poll is not None else ()
        active = {slot.name for slot in slots if slot.active}
        for node, stream in reference.streams.items():
            if stream_name(stream) not in active:
                found.setdefault(node, reference.table.name)
    return found
