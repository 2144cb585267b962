"""Keeps the roots of every node as `require_proof` wants them. The leader's housekeeping calls it.

A node that joined, a setting that changed, a root that somebody made again: the next look brings each in line. A node
known to be right is not asked again for a while.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial

import structlog

from balancer.clock import Clock
from balancer.directory.identity import identity_of
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError
from balancer.nodes.connection import Address, connect, translated
from balancer.nodes.epoch_check import node_transaction
from balancer.nodes.names import Name, parse_name
from balancer.nodes.proof import set_proof, unlike
from balancer.nodes.schema import upgrade_schema
from balancer.polling.addresses import address_in
from balancer.polling.askers import SHARED
from balancer.settings import BundleSettings, Settings

log = structlog.get_logger()

SECONDS = 600.0
"""How long a node that was right is assumed to stay right."""

Wanted = Mapping[Name, bool]


class ProofKeeper:
    """Under one leadership."""

    def __init__(self, leader_epoch: int, clock: Clock) -> None:
        self._epoch = leader_epoch
        self._clock = clock
        self._right: dict[str, tuple[Wanted, float]] = {}

    def keep(self, snapshot: Snapshot, settings: Settings) -> int:
        """Brings every node in line; returns how many roots were changed. One out of reach waits."""
        doubtful = {}
        for bundle in settings.bundles.values():
            wanted = dict(_wanted(snapshot, bundle))
            for node in bundle.nodes:
                if wanted and not self._known(node, wanted):
                    doubtful[node] = partial(self._bring, address_in(settings, node, identity_of(snapshot)), wanted)
        answers = SHARED.ask_all(doubtful)
        for answer in answers.values():
            if isinstance(answer, BalancerError):
                raise answer
        return sum(changed for changed in answers.values() if not isinstance(changed, BalancerError))

    def _known(self, node: str, wanted: Wanted) -> bool:
        then, at = self._right.get(node, ({}, 0.0))
        return then == wanted and self._clock.monotonic() - at < SECONDS

    def _bring(self, address: Address, wanted: Wanted) -> int:
        node = address.node
        try:
            with translated(node), closing(connect(address, purpose="proofs")) as connection:
                wrong = {root: needed for root, needed in wanted.items() if unlike(connection, [root], wanted=needed)}
                for root, needed in wrong.items():
                    # One root at a time: each needs a lock that writers wait behind.
                    with node_transaction(connection, self._epoch, node) as cursor:
                        upgrade_schema(cursor)
                        set_proof(cursor, [root], wanted=needed)
                    log.info("require_proof", node=node, root=str(root), on=needed)
        except BalancerError as error:
            log.warning("require_proof is not up to date", node=node, error=str(error))
            return 0
        self._right[node] = dict(wanted), self._clock.monotonic()
        return len(wrong)


def _wanted(snapshot: Snapshot, bundle: BundleSettings) -> Iterator[tuple[Name, bool]]:
    """Roots of tables that are in the directory: others are not made yet."""
    for table in snapshot.tables.values():
        shape = bundle.tables.get(table.name)
        if table.bundle == bundle.name and shape is not None and not table.everywhere:
            yield from ((parse_name(root), shape.require_proof) for root in table.roots)
