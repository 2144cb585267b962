"""What is in the way of a hand-over, each as one sentence, all at once. Changes only a note, which it removes again.

Nodes and reference tables belong to one bundle in every directory, and so does forwarding: moving whole bundles
separates none of these. Only messages and transactions over several keys reach from one bundle into another.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Final

from balancer.directory.contract import Directory
from balancer.directory.handover_record import ARRIVING, HandoverRecord, handover_of
from balancer.directory.identity import identity_of
from balancer.directory.model import Change, CommandState, NodeState, Put, Transaction
from balancer.directory.snapshot import Snapshot
from balancer.directory.store.commit import prepare
from balancer.errors import BalancerError, Fenced
from balancer.features.ddl.apply import changes_of
from balancer.features.handover.run import HandingOver, HandoverSide, head_changes, nodes_with_tablets, table_changes
from balancer.features.handover.statements import DirectoryIdentity, in_hands_of, why_not
from balancer.features.import_tables.record import imports_in
from balancer.features.messages import delivery as mail
from balancer.features.messages.enable import message_roots, message_tables
from balancer.naming import parse_name
from balancer.nodes.schema.install import install_schema
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.session.connection import connect, translated

_TOPIC: Final = "handover"
_MESSAGES_READ: Final = 10_000
_UNSETTLED: Final = ("pending", "failed")


def in_the_way(work: HandingOver, *, closed: bool, dry_run: bool = False) -> list[str]:
    """Everything. `closed`: the hand-over has begun, the giver's record is written. A dry run upgrades no node, and
    leaves to the real run what it cannot see on an outdated one."""
    giver = work.giver.directory.snapshot()
    missing = [bundle for bundle in work.bundles if bundle not in giver.bundles]
    if missing:
        return [f"there is no bundle {bundle} in {work.giver.url}" for bundle in missing]
    found = [*_rights(work.giver), *_rights(work.taker)]
    found += _under_way(work.giver.directory, giver, work.bundles)
    found += _nodes_faults(giver, work.bundles)
    if not closed:
        found += _taker_faults(work, giver)
    found += _node_faults(work, giver, dry_run)
    found += _messages_parted(work, giver)
    return found


def _rights(side: HandoverSide) -> Iterator[str]:
    """Whether we may write there: a reader may not make a note."""
    try:
        side.directory.publish(_TOPIC, "try", {})
        side.directory.unpublish(_TOPIC, "try")
    except BalancerError as error:
        yield f"the directory {side.url} cannot be written with these credentials: {error}"


def _under_way(directory: Directory, snapshot: Snapshot, bundles: Sequence[str]) -> Iterator[str]:
    for record in snapshot.migrations.values():
        if record.bundle in bundles and not record.finished:
            yield f"{record.operation} {record.id} of bundle {record.bundle} is under way ({record.state})"
    for command in snapshot.commands.values():
        if command.state is CommandState.WAITING:
            yield f"the command {command.verb} of {command.author} waits for the leader"
    for bundle, table, work in imports_in(snapshot):
        if bundle in bundles:
            yield f"the import of table {table} of bundle {bundle} has not ended ({work.state})"
    for bundle in bundles:
        for change in changes_of(directory, bundle):
            if not change.finished:
                yield f"a schema change of bundle {bundle} has not ended ({change.reason})"
    for plan in snapshot.plans.values():
        if plan.bundle in bundles and plan.state == "approved":
            yield f"the approved plan {plan.id} of bundle {plan.bundle} is being carried out"


def _nodes_faults(snapshot: Snapshot, bundles: Sequence[str]) -> Iterator[str]:
    for node in snapshot.nodes.values():
        if node.bundle in bundles and (node.state in (NodeState.LOST, NodeState.DOWN) or node.rewound):
            yield f"node {node.id} is {'rewound' if node.rewound else node.state}: every node must answer"


def _taker_faults(work: HandingOver, giver: Snapshot) -> Iterator[str]:
    try:
        taker = work.taker.directory.snapshot()
    except BalancerError as error:
        yield f"the directory {work.taker.url} cannot be read: {error}"
        return
    if work.giver.url == work.taker.url or (identity_of(giver) and identity_of(giver) == identity_of(taker)):
        yield f"{work.taker.url} is the directory that the bundle is in"
        return
    names = list(_same_names(work, giver, taker))
    yield from names
    if not names:
        yield from _rehearsal(work, giver, taker)


def _same_names(work: HandingOver, giver: Snapshot, taker: Snapshot) -> Iterator[str]:
    where = work.taker.url
    for bundle in work.bundles:
        if bundle in taker.bundles:
            known = handover_of(taker, bundle)
            yield f"{where} has a bundle {bundle} already{f': {known.sentence(bundle)}' if known else ''}"
    for node in giver.nodes.values():
        if node.bundle in work.bundles and node.id in taker.nodes:
            yield f"{where} has a node {node.id} already, in bundle {taker.nodes[node.id].bundle}"
    names = {table.name for table in taker.tables.values()}
    for table in giver.tables.values():
        if table.bundle not in work.bundles:
            continue
        if table.name in names:
            yield f"{where} has a table {table.name} already"
        if table.id in taker.tables:
            other = taker.tables[table.id].name
            yield f"{where} has a table with the number {table.id} of {table.name} already: {other}"
        same = [one.id for one in giver.tablets(table.id) if taker.find_tablet(one.id) is not None]
        if same:
            yield f"{where} has tablets with the numbers of {len(same)} of {table.name} already, {same[0]} first"


def _rehearsal(work: HandingOver, giver: Snapshot, taker: Snapshot) -> Iterator[str]:
    """Prepares all commits of the copy without sending them: what the taker's rules, or their size, would refuse."""
    mark = HandoverRecord("rehearsal", ARRIVING, work.giver.url, "")
    marks = [Put(mark.pause(bundle, work.author)) for bundle in work.bundles]
    parts: list[list[Change]] = [[*head_changes(giver, taker, work.bundles, work.giver.cluster, work.author), *marks]]
    parts += [[*table_changes(giver, one), *marks] for one in giver.tables.values() if one.bundle in work.bundles]
    for changes in parts:
        try:
            taker = prepare(
                taker, 1, Transaction(tuple(changes), taker.version, "rehearsal", work.author), 0.0
            ).snapshot
        except BalancerError as error:
            yield f"{work.taker.url} would refuse it: {error}"
            return


def _node_faults(work: HandingOver, giver: Snapshot, dry_run: bool) -> Iterator[str]:
    """Each node must answer, know this directory and have what it says. One with an older version is upgraded."""
    identity = identity_of(giver)
    hands = DirectoryIdentity(work.giver.cluster, identity)
    for node, tablets in nodes_with_tablets(giver, work.bundles).items():
        try:
            address = replace(work.addresses(node), cluster=work.giver.cluster, identity=identity)
            with closing(connect(address, purpose="hand-over")) as connection, translated(node):
                if identity and not dry_run:
                    install_schema(connection, work.giver.cluster, node)
                    with suppress(Fenced), node_transaction(connection, giver.epoch, node):
                        pass  # which gives it the directory's identity, if it has none
                if identity and not dry_run and not in_hands_of(connection, node, hands):
                    yield f"node {node} has not been told yet which directory it belongs to: try again"
                with connection.cursor() as cursor:
                    yield from why_not(cursor, node, tablets)
        except BalancerError as error:
            yield str(error)


def _messages_parted(work: HandingOver, giver: Snapshot) -> Iterator[str]:
    """Waiting or failed messages between tables that go and tables that stay."""
    tables = message_tables(giver)
    going = {table.name for table in tables if table.bundle in work.bundles}
    if not going or len(going) == len(tables):
        return
    for table in tables:
        far = [one.name for one in tables if (one.name in going) != (table.name in going)]
        for node in sorted(one.id for one in giver.nodes.values() if one.bundle == table.bundle):
            try:
                yield from _on_node(work, table.name, node, _outbox(giver, table.name), far)
            except BalancerError as error:
                yield str(error)


def _outbox(snapshot: Snapshot, table: str) -> tuple[str, list[str]]:
    known = snapshot.table(table)
    return str(message_roots(known).outbox), [column.name for column in known.key_columns]


def _on_node(
    work: HandingOver, table: str, node: str, outbox: tuple[str, list[str]], far: Sequence[str]
) -> Iterator[str]:
    with closing(work.connect(node)) as connection, translated(node):
        rows = mail.listed(connection, parse_name(outbox[0]), outbox[1], _UNSETTLED, limit=_MESSAGES_READ, only=None)
    counts: Mapping[str, int] = {name: sum(row.target == name for row in rows) for name in far}
    for name, count in counts.items():
        if count:
            yield f"{count} messages from {table} to {name} on node {node} wait or have failed, and would be parted"
