"""Keeps every node ready for messages: roots, grants, and the statements that the bundles' files declare.

The leader's housekeeping calls it. A node that joined, a file that changed, a role that was given rights: the next look
brings each in line. A node known to be right is not asked again for a while.
"""

from contextlib import closing

import structlog

from balancer.clock import Clock
from balancer.directory.identity import identity_of
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError
from balancer.nodes.connection import Address, connect
from balancer.nodes.epoch_check import node_transaction
from balancer.polling.addresses import address_in
from balancer.settings import Settings
from balancer.tables.message_switch import message_handlers, message_tables, tell_node

log = structlog.get_logger()

SECONDS = 600.0
"""How long a node that was right is assumed to stay right."""


class MessageKeeper:
    """Under one leadership."""

    def __init__(self, leader_epoch: int, clock: Clock) -> None:
        self._epoch = leader_epoch
        self._clock = clock
        self._right: dict[str, tuple[str, float]] = {}

    def keep(self, snapshot: Snapshot, settings: Settings) -> None:
        """Brings every node in line; one out of reach waits."""
        tables = message_tables(snapshot)
        if not tables:
            return
        wanted = repr((tables, message_handlers(settings)))
        for bundle in settings.bundles.values():
            for node in bundle.nodes:
                then, at = self._right.get(node, ("", 0.0))
                if then != wanted or self._clock.monotonic() - at >= SECONDS:
                    self._bring(
                        address_in(settings, node, identity_of(snapshot)), snapshot, settings, bundle.name, wanted
                    )

    def _bring(self, address: Address, snapshot: Snapshot, settings: Settings, bundle: str, wanted: str) -> None:
        try:
            with (
                closing(connect(address, purpose="messages")) as connection,
                node_transaction(connection, self._epoch, address.node) as cursor,
            ):
                tell_node(cursor, snapshot, message_handlers(settings), bundle)
        except BalancerError as error:
            log.warning("a node is not ready for messages", node=address.node, error=str(error))
            return
        self._right[address.node] = wanted, self._clock.monotonic()
