"""Keeps the directory's bundles and nodes in step with the configuration. The leader calls it, at election and reload.

Addresses, zones and weights follow the file; a node's state is the operators' and stays. A node that is no longer in
the file is removed once it owns nothing; until then it stays, and the bundle says why.
"""

from collections.abc import Iterator
from dataclasses import replace

from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import Bundle, Change, Kind, Put, Remove, Transaction
from balancer.directory.snapshot import Snapshot
from balancer.errors import Conflict
from balancer.planner.commands import tablets_on
from balancer.polling.addresses import records_of
from balancer.settings import Settings

ATTEMPTS = 5


def enrol(directory: Directory, leadership: Leadership, settings: Settings) -> int:
    """Brings the directory up to date; returns how many records were changed."""
    for _ in range(ATTEMPTS):
        snapshot = directory.snapshot()
        changes = tuple(changes_of(snapshot, settings))
        if not changes:
            return 0
        transaction = Transaction(
            changes, snapshot.version, "configuration read", settings.daemon.instance, leadership.epoch
        )
        try:
            directory.commit(transaction)
        except Conflict:
            continue
        return len(changes)
    raise Conflict("the configuration could not be recorded: others kept changing the directory")


def changes_of(snapshot: Snapshot, settings: Settings) -> Iterator[Change]:
    """What the configuration changes in the directory."""
    for bundle in settings.bundles.values():
        if bundle.name not in snapshot.bundles:
            yield Put(Bundle(bundle.name))
        for record in records_of(bundle):
            known = snapshot.nodes.get(record.id)
            wanted = record if known is None else replace(record, state=known.state, reason=known.reason)
            if wanted != known:
                yield Put(wanted)
    configured = {node for bundle in settings.bundles.values() for node in bundle.nodes}
    for node in snapshot.nodes.values():
        if node.id not in configured and node.bundle in settings.bundles and not tablets_on(snapshot, node.id):
            yield Remove(Kind.NODE, node.id)
