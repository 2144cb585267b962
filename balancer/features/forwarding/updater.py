"""Keeps `balancer_all` on every node of a bundle in line with the directory.

The daemon does so after each migration and when it is elected, for bundles with `forwarding = true`; `balancer forward`
does it by hand. A root that gets row level security loses it at the next poll, because forwarding would bypass that. It
changes only that schema, under the newest leader's epoch that the directory knows: a node that has seen a newer one
refuses, and by the next look the directory knows it too.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

import structlog

from balancer.directory.model import Migration, MigrationKind
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Refused
from balancer.features.forwarding.statements import (
    Forward,
    check_available,
    check_login,
    check_roots,
    explain_rekeys,
    is_forwarding,
    remove_forwarding,
    set_forwards,
    set_servers,
)
from balancer.migration.context import places
from balancer.migration.machine import State
from balancer.migration.progress import Observer
from balancer.nodes.schema.install import upgrade_schema
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.schema.proof import Proven, make_views, prune
from balancer.nodes.session.connection import Address, Cursor, connect
from balancer.polling.poller import ClusterPoll

log = structlog.get_logger()


def forwards_of(snapshot: Snapshot, bundle: str) -> list[Forward]:
    """Every partition of the bundle's tables, with its owner.

    Without outboxes and inboxes: through another node's login anybody could forge the role that sent a message.
    """
    return [
        Forward(tablet.id, place, tablet.node)
        for table in snapshot.tables.values()
        if table.bundle == bundle and not table.everywhere
        for tablet in snapshot.tablets(table.id)
        for number, place in enumerate(places(table, tablet))
        if number not in (table.message_roots or ())
    ]


def forward_bundle(snapshot: Snapshot, bundle: str, addresses: Callable[[str], Address]) -> int:
    """Brings every node in line with the directory; returns how many partitions were changed in all.

    First the owners' views, then what leads there; when nothing leads to the former owners any more, their tombstones
    go.
    """
    nodes = _nodes(snapshot, bundle)
    known = {node: addresses(node) for node in nodes}
    forwards = forwards_of(snapshot, bundle)
    for node in nodes:
        _on_node(snapshot, known[node], partial(_look, known[node]))
    try:
        for node in nodes:
            _on_node(snapshot, known[node], partial(_look_at_roots, forwards))
    except Refused:
        stop_forwarding(snapshot, bundle, addresses)  # what existed before must not continue either
        raise
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


def _look(address: Address, cursor: Cursor) -> int:
    """Checks every node before changing anything on one."""
    check_available(cursor)
    check_login(cursor, address)
    return 0


def _look_at_roots(forwards: Sequence[Forward], cursor: Cursor) -> int:
    check_roots(cursor, [one.place.root for one in forwards])
    return 0


def _show(mine: Sequence[Forward], role: str, cursor: Cursor) -> int:
    make_views(cursor, [Proven(one.tablet, one.place.partition) for one in mine], role)
    explain_rekeys(cursor, [one.place for one in mine], role)
    return 0


def _tidy(mine: Sequence[Forward], cursor: Cursor) -> int:
    return prune(cursor, [one.place.partition for one in mine])


def stop_forwarding(snapshot: Snapshot, bundle: str, addresses: Callable[[str], Address]) -> int:
    """Removes it from every node that can be reached; returns from how many. Then raises any other node's error."""
    failures: list[BalancerError] = []
    stopped = 0
    for node in _nodes(snapshot, bundle):
        try:
            stopped += _on_node(snapshot, addresses(node), _take_away)
        except BalancerError as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return stopped


def _take_away(cursor: Cursor) -> int:
    stands = is_forwarding(cursor)
    if stands:
        remove_forwarding(cursor)
    return int(stands)


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
        self._stopped: set[str] = set()  # bundles whose roots have row level security; of their own tick each

    def judge(self, poll: ClusterPoll, snapshot: Snapshot) -> None:
        """After each poll of a bundle's nodes: no root that has gained row level security stays forwarded."""
        secured = sorted(
            {str(root) for one in poll.nodes.values() if one.poll is not None for root in one.poll.secured}
        )
        for bundle in {snapshot.nodes[node].bundle for node in poll.nodes if node in snapshot.nodes}:
            if not secured and bundle in self._stopped:
                self._stopped.discard(bundle)
                self.follow(bundle)
            elif secured and bundle not in self._stopped:
                self._stop(snapshot, bundle, secured)

    def _stop(self, snapshot: Snapshot, bundle: str, secured: Sequence[str]) -> None:
        try:
            stopped = stop_forwarding(snapshot, bundle, self._addresses)
        except BalancerError as error:  # retried after the next poll
            log.warning("forwarding bypasses row level security", bundle=bundle, roots=secured, error=str(error))
            return
        self._stopped.add(bundle)
        if stopped:
            log.warning("forwarding was removed: it would bypass row level security", bundle=bundle, roots=secured)

    def follow(self, bundle: str) -> None:
        """Brings the bundle's nodes in line with the directory, if that is wanted."""
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
