"""Keeps the directory's bundles and nodes in step with the configuration. The leader calls it.

At its election, after a reload, and now and then, because a node may become empty at any time.

Addresses, zones and weights follow the file; a node's state belongs to the operators and stays. A node that is no
longer in the file is removed once it owns nothing; until then it stays, and the bundle says why.
"""

from collections.abc import Iterator
from dataclasses import replace

from balancer.directory.contract import Directory, Leadership
from balancer.directory.handover_record import WORD as HANDOVER
from balancer.directory.model import Bundle, Change, Node, Put, RecordKind, Remove, Transaction
from balancer.directory.newest import commit_on_newest
from balancer.directory.snapshot import Snapshot
from balancer.planner.command_nodes import tablets_on
from balancer.polling.addresses import records_of
from balancer.settings import Settings


def enrol(directory: Directory, leadership: Leadership, settings: Settings) -> int:
    """Brings the directory up to date; returns how many records were changed."""

    def propose(snapshot: Snapshot) -> tuple[Transaction | None, int]:
        changes = tuple(changes_of(snapshot, settings))
        transaction = Transaction(
            changes, snapshot.version, "configuration read", settings.daemon.instance, leadership.epoch
        )
        return transaction if changes else None, len(changes)

    return commit_on_newest(directory, propose, "the configuration could not be recorded")


def changes_of(snapshot: Snapshot, settings: Settings) -> Iterator[Change]:
    """What the configuration changes in the directory."""
    gone = {pause.bundle for pause in snapshot.pauses.values() if pause.only == HANDOVER}
    for bundle in settings.bundles.values():
        if bundle.name in gone:
            continue
        if bundle.name not in snapshot.bundles:
            yield Put(Bundle(bundle.name))
        for record in records_of(bundle):
            known = snapshot.nodes.get(record.id)
            wanted = record if known is None else _with_record(record, known)
            if wanted != known:
                yield Put(wanted)
    configured = {node for bundle in settings.bundles.values() for node in bundle.nodes}
    running = [record for record in snapshot.migrations.values() if not record.finished]
    busy = {node for record in running for node in (record.source_node, record.target_node)}
    for node in snapshot.nodes.values():
        unlisted = node.id not in configured | busy and node.bundle in settings.bundles and node.bundle not in gone
        if unlisted and not tablets_on(snapshot, node.id):
            yield Remove(RecordKind.NODE, node.id)


def _with_record(configured: Node, known: Node) -> Node:
    """What the file says, with what operators and the leader have recorded since."""
    return replace(
        configured, state=known.state, reason=known.reason, rewound=known.rewound, generation=known.generation
    )
