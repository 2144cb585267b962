"""Keeps `balancer_all` on every node of a bundle right by the directory. `balancer forward` calls it.

It changes nothing but that schema, under the newest leader's epoch that the directory knows: a node that has seen a
newer one refuses, and the next look knows it too.
"""

from collections.abc import Callable, Sequence
from contextlib import closing

from balancer.directory.snapshot import Snapshot
from balancer.migration.context import places
from balancer.nodes.connection import Address, Cursor, connect
from balancer.nodes.forwarding import Forward, remove_forwarding, set_forwards, set_servers
from balancer.nodes.leader import node_transaction


def forwards_of(snapshot: Snapshot, bundle: str) -> list[Forward]:
    """Every partition of the bundle's tables, with its owner."""
    return [
        Forward(place, tablet.node)
        for table in snapshot.tables.values()
        if table.bundle == bundle
        for tablet in snapshot.tablets(table.id)
        for place in places(table, tablet)
    ]


def forward_bundle(snapshot: Snapshot, bundle: str, addresses: Callable[[str], Address]) -> int:
    """Brings every node to what the directory says; returns how many partitions were changed in all."""
    nodes = _nodes(snapshot, bundle)
    known = {node: addresses(node) for node in nodes}
    forwards = forwards_of(snapshot, bundle)

    def bring(cursor: Cursor) -> int:
        set_servers(cursor, known)
        return set_forwards(cursor, forwards)

    return sum(_on_node(snapshot, known[node], bring) for node in nodes)


def stop_forwarding(snapshot: Snapshot, bundle: str, addresses: Callable[[str], Address]) -> None:
    """Takes it away from every node."""

    def take_away(cursor: Cursor) -> int:
        remove_forwarding(cursor)
        return 0

    for node in _nodes(snapshot, bundle):
        _on_node(snapshot, addresses(node), take_away)


def _nodes(snapshot: Snapshot, bundle: str) -> Sequence[str]:
    return sorted(name for name, node in snapshot.nodes.items() if node.bundle == bundle)


def _on_node(snapshot: Snapshot, address: Address, act: Callable[[Cursor], int]) -> int:
    with (
        closing(connect(address, purpose="forwarding")) as connection,
        node_transaction(connection, snapshot.epoch, address.node) as cursor,
    ):
        return act(cursor)
