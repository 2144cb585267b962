"""Keeps the directory's bundles and nodes in step with the configuration. The leader calls it.

At its election, after a reload, and now and then, because a node may become empty at any time.

Addresses, zones and weights follow the file; a node's state belongs to the operators and stays. A changed address is
published only when the server there has proven to be that node: clients go where the directory says, and a typing error
would send all of them to another node, or to an old copy. A node that is no longer in the file is removed once it owns
nothing; until then it stays, and the bundle says why.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial

import structlog

from balancer.directory.contract import Directory, Leadership
from balancer.directory.handover_record import WORD as HANDOVER
from balancer.directory.identity import identity_of
from balancer.directory.model import Bundle, Change, Node, Put, RecordKind, Remove, Transaction
from balancer.directory.newest import commit_on_newest
from balancer.directory.snapshot import Snapshot
from balancer.nodes.connection import Address, Timeouts, connect, translated
from balancer.nodes.schema import read_identity, read_tablets
from balancer.planner.command_nodes import tablets_on
from balancer.polling.addresses import address_in, records_of
from balancer.polling.askers import SHARED
from balancer.settings import Settings

log = structlog.get_logger()

Prove = Callable[[Snapshot, Settings, list[str]], Mapping[str, str]]
"""Of nodes whose addresses in the file are not those in the directory: why the server there is not that node."""
PATIENCE = Timeouts(connect=3.0, statement=5.0)


def enrol(directory: Directory, leadership: Leadership, settings: Settings, prove: Prove | None = None) -> int:
    """Brings the directory up to date; returns how many records were changed."""
    snapshot = directory.snapshot()
    odd = (prove or prove_addresses)(snapshot, settings, list(_changed_addresses(snapshot, settings)))
    for node, why in sorted(odd.items()):
        log.warning("a changed address is not published yet", node=node, why=why)

    def propose(snapshot: Snapshot) -> tuple[Transaction | None, int]:
        changes = tuple(changes_of(snapshot, settings, odd))
        transaction = Transaction(
            changes, snapshot.version, "configuration read", settings.daemon.instance, leadership.epoch
        )
        return transaction if changes else None, len(changes)

    return commit_on_newest(directory, propose, "the configuration could not be recorded")


def prove_addresses(snapshot: Snapshot, settings: Settings, nodes: list[str]) -> Mapping[str, str]:
    """Asks the servers at the addresses of the file, all at once."""
    identity = identity_of(snapshot)
    answers = SHARED.ask_all({node: partial(_prove, snapshot, address_in(settings, node, identity)) for node in nodes})
    return {node: str(answer) for node, answer in answers.items() if answer}


def _prove(snapshot: Snapshot, address: Address) -> str:
    asked = connect(address, purpose="proof of an address", timeouts=PATIENCE)
    with closing(asked), translated(address.node), asked.cursor() as cursor:
        known = read_identity(cursor)
        owned = read_tablets(cursor) if known is not None else []
    if known is None or known.node != address.node:
        return f"the server there is {'no node' if known is None else f'node {known.node}'}, not node {address.node}"
    mine = ((row, snapshot.find_tablet(row.id)) for row in owned)
    if not any(tablet and (tablet.node, tablet.epoch) == (address.node, row.epoch) for row, tablet in mine):
        return f"the server there has none of the tablets of node {address.node}"
    return ""


def _changed_addresses(snapshot: Snapshot, settings: Settings) -> Iterator[str]:
    """Of nodes that own something: nobody is sent to the others."""
    for bundle in settings.bundles.values():
        for node in bundle.nodes.values():
            known = snapshot.nodes.get(node.id)
            if known is not None and known.dsn != node.dsn and tablets_on(snapshot, node.id):
                yield node.id


def changes_of(snapshot: Snapshot, settings: Settings, odd: Mapping[str, str] | None = None) -> Iterator[Change]:
    """What the configuration changes in the directory; the addresses of the `odd` nodes stay as they are."""
    gone = {pause.bundle for pause in snapshot.pauses.values() if pause.only == HANDOVER}
    for bundle in settings.bundles.values():
        if bundle.name in gone:
            continue
        if bundle.name not in snapshot.bundles:
            yield Put(Bundle(bundle.name))
        for record in records_of(bundle):
            known = snapshot.nodes.get(record.id)
            wanted = record if known is None else _with_record(record, known)
            if known is not None and record.id in (odd or {}):
                wanted = replace(wanted, dsn=known.dsn)
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
