"""Keeps `balancer_all` on every node of a bundle right by the directory.

The daemon does so after each migration and when it is elected, for bundles with `forwarding = true`; `balancer forward`
does it by hand. It changes nothing but that schema, under the newest leader's epoch that the directory knows: a node
that has seen a newer one refuses, and the next look knows it too.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

import structlog

from balancer.directory.model import Migration, MigrationKind
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError
from balancer.migration.context import places
from balancer.migration.machine import State
from balancer.migration.observer import Observer
from balancer.nodes.connection import Address, Cursor, connect
from balancer.nodes.epoch_check import node_transaction
from balancer.nodes.forwarding import (
    Forward,
    check_available,
    check_login,
    check_roots,
    remove_forwarding,
    set_forwards,
    set_servers,
)
from balancer.nodes.proven_views import Proven, make_views, prune
from balancer.nodes.schema import upgrade_schema

log = structlog.get_logger()


def forwards_of(snapshot: Snapshot, bundle: str) -> list[Forward]:
    """Every partition of the bundle's tables, with its owner."""
    return [
        Forward(tablet.id, place, tablet.node)
        for table in snapshot.tables.values()
        if table.bundle == bundle
        for tablet in snapshot.tablets(table.id)
        for place in places(table, tablet)
    ]


def forward_bundle(snapshot: Snapshot, bundle: str, addresses: Callable[[str], Address]) -> int:
    """Brings every node to what the directory says; returns how many partitions were changed in all.

    First what the owners show, then what leads there, and when nobody is led to the former owners any more, their
    tombstones go.
    """
    nodes = _nodes(snapshot, bundle)
    known = {node: addresses(node) for node in nodes}
    forwards = forwards_of(snapshot, bundle)
    for node in nodes:
        _on_node(snapshot, known[node], partial(_look, known[node], forwards))
    for node in nodes:
        mine = [one for one in forwards if one.node == node]
        _on_node(snapshot, known[node], partial(_show, mine, known[node].forward_user))

    def lead(cursor: Cursor) -> int:
        set_servers(cursor, known)
        return set_forwards(cursor, forwards)

    changed = sum(_on_node(snapshot, known[node], lead) for node in nodes)
    for node in nodes if changed else ():
        _on_node(snapshot, known[node], partial(_tidy, [one for one in forwards if one.node == node]))
    return changed


def _look(address: Address, forwards: Sequence[Forward], cursor: Cursor) -> int:
    """On every node before anything is changed on one."""
    check_available(cursor)
    check_login(cursor, address)
    check_roots(cursor, [one.place.root for one in forwards])
    return 0


def _show(mine: Sequence[Forward], role: str, cursor: Cursor) -> int:
    make_views(cursor, [Proven(one.tablet, one.place.partition) for one in mine], role)
    return 0


def _tidy(mine: Sequence[Forward], cursor: Cursor) -> int:
    return prune(cursor, [one.place.partition for one in mine])


def stop_forwarding(snapshot: Snapshot, bundle: str, addresses: Callable[[str], Address]) -> None:
    """Takes it away from every node."""

    def take_away(cursor: Cursor) -> int:
        remove_forwarding(cursor)
        return 0

    for node in _nodes(snapshot, bundle):
        _on_node(snapshot, addresses(node), take_away)


class ForwardingUpdater(Observer):
    """Follows each migration. A node out of reach is brought up to date by the next one."""

    def __init__(
        self,
        wanted: Callable[[str], bool],
        snapshot: Callable[[], Snapshot],
        addresses: Callable[[str], Address],
    ) -> None:
        self._wanted = wanted
        self._snapshot = snapshot
        self._addresses = addresses

    def follow(self, bundle: str) -> None:
        """Brings the bundle's nodes to what the directory says, if that is wanted."""
        if not self._wanted(bundle):
            return
        try:
            forward_bundle(self._snapshot(), bundle, self._addresses)
        except BalancerError as error:
            log.warning("forwarding is not up to date", bundle=bundle, error=str(error))

    def left(self, migration: Migration, state: State) -> None:
        swapped = state is State.COMMITTING and migration.operation is not MigrationKind.MOVE
        if state is State.OPENING or swapped:
            self.follow(migration.bundle)

    def finished(self, migration: Migration) -> None:
        self.follow(migration.bundle)


def _nodes(snapshot: Snapshot, bundle: str) -> Sequence[str]:
    return sorted(name for name, node in snapshot.nodes.items() if node.bundle == bundle)


def _on_node(snapshot: Snapshot, address: Address, act: Callable[[Cursor], int]) -> int:
    with (
        closing(connect(address, purpose="forwarding")) as connection,
        node_transaction(connection, snapshot.epoch, address.node) as cursor,
    ):
        upgrade_schema(cursor)
        return act(cursor)
