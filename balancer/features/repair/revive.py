"""Gives a lost tablet a new owner, on an operator's word: an empty one, or a node that still has an older copy.

The order is that of a move: first the tablet is made ready on its new node, closed; then the directory changes, in the
commit that answers the command; then the leader's guard opens it, as it opens all that is closed on a healthy node.
Each part may be repeated. If its leader died half-way and the command is then refused, because the owner has come back
or the tablet moves again, it takes back what was made ready. Called by the leader; the command line only looks
(`copies_of`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from balancer.directory.model import MigrationKind, Node, NodeState, Table, Tablet, TabletState
from balancer.directory.snapshot import Snapshot
from balancer.errors import Refused, Unavailable
from balancer.migration.context import partitions_of, places
from balancer.migration.journal import read_detail, unpack_tablet
from balancer.migration.machine import State
from balancer.naming import Name, parse_name
from balancer.nodes.catalog.owners_code import check_extendable, check_readable
from balancer.nodes.catalog.roots import read_root
from balancer.nodes.schema.install import OwnedTablet, OwnState, forget_tablets, read_tablets
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.session.connection import Cursor, is_up, lock_timeout, run_together, translated
from balancer.nodes.session.holder import NodeSessions
from balancer.nodes.tablets.closed import close_tablet, give_away, locked_rows, refuse_rows
from balancer.nodes.tablets.leftovers import drop_or_set_aside
from balancer.nodes.tablets.object_names import CLOSED
from balancer.nodes.tablets.partition import attach, attachments, count_rows, create_partition, detach_wherever, exists
from balancer.nodes.tablets.reference_copies import guard_home, read_streams
from balancer.nodes.tablets.replication import drop_subscription

LOCK_TIMEOUT = 2.0


@dataclass(frozen=True, slots=True)
class Copy:
    """What a node still has of a tablet."""

    node: str
    state: str
    """The node's own word: owned, fenced, incoming, moved; or why it cannot be asked."""
    epoch: int = 0
    rows: int | None = None
    """In the first root's partition; None: it is not there."""


def copies_of(links: NodeSessions, snapshot: Snapshot, tablet: Tablet) -> list[Copy]:
    """What every node of the tablet's bundle has of it. Only reads; counting reads all rows."""
    table = snapshot.tables[tablet.table]
    nodes = [node for node in snapshot.nodes.values() if node.bundle == table.bundle]
    return [found for node in nodes if (found := _copy(links, node, table, tablet)) is not None]


def reshard_of(snapshot: Snapshot, tablet: Tablet) -> tuple[tuple[Tablet, ...], tuple[Tablet, ...]]:
    """The split or merge that made a tablet: what it made, as it is now, and what it was made from. Only reads."""
    found = [
        record
        for record in snapshot.migrations.values()
        if record.finished
        and record.state == State.DONE
        and tablet.id in {made.id for made in record.targets}
        and record.operation in (MigrationKind.SPLIT, MigrationKind.MERGE)
    ]
    if not found:
        raise Refused(f"no split or merge is remembered that made tablet {tablet.id}")
    record = max(found, key=lambda one: one.updated)
    made = tuple(snapshot.find_tablet(target.id) for target in record.targets)
    for target, now in zip(record.targets, made, strict=True):
        if now is None or now.node != tablet.node:
            where = "is not there any more" if now is None else f"is on node {now.node}"
            raise Refused(f"tablet {target.id}, which {record.id} made together with {tablet.id}, {where}")
    before = tuple(unpack_tablet(document, tablet.table) for document in read_detail(record).before)
    return tuple(one for one in made if one is not None), before


def replacement(
    snapshot: Snapshot, tablet: Tablet, node: str, *, former: bool
) -> tuple[tuple[Tablet, ...], tuple[Tablet, ...]]:
    """The lost tablets, and what takes their place on the node, with an epoch above all that anybody may know."""
    lost, before = reshard_of(snapshot, tablet) if former else ((tablet,), (tablet,))
    for one in lost:
        if (running := snapshot.migration_of(one.id)) is not None:
            raise Refused(f"tablet {one.id} is part of migration {running.id}, which is {running.state}: end it first")
    epoch = max(one.epoch for one in (*lost, *before)) + 1
    return lost, tuple(replace(one, node=node, epoch=epoch, state=_state(one)) for one in before)


def _state(tablet: Tablet) -> TabletState:
    """Quarantine is over; expired keys stay expired."""
    return TabletState.EXPIRED if tablet.state is TabletState.EXPIRED else TabletState.OWNED


def check_lost(links: NodeSessions, snapshot: Snapshot, tablet: Tablet) -> None:
    """Raises `Refused` if the tablet's owner has it, or cannot be asked and is not known to be lost.

    A node that was given up is asked as well: if it has come back, it takes writes from clients that have not heard of
    it.
    """
    owner = snapshot.nodes[tablet.node]
    if owner.rewound:
        return
    try:
        there = owner_has(links, snapshot, tablet)
    except Unavailable as error:
        if owner.state is NodeState.LOST and not is_up(error.why):
            return
        if owner.state is NodeState.LOST:
            raise Refused(
                f"{error}, and may let in others, who write to tablet {tablet.id}: fix that, or stop its server first"
            ) from None
        raise Refused(f"whether tablet {tablet.id} is lost is unknown: {error}; see `balancer node lost`") from None
    if there and owner.state is NodeState.LOST:
        raise Refused(
            f"node {owner.id} answers, and has tablet {tablet.id}: `balancer undrain {owner.id}` takes it back; if it"
            " is to be given up all the same, stop its server first"
        )
    if there:
        raise Refused(f"tablet {tablet.id} is not lost: node {owner.id} has it")


def owner_has(links: NodeSessions, snapshot: Snapshot, tablet: Tablet) -> bool:
    """Whether the node that the directory gives a tablet to says the same, and has its partitions. Only reads."""
    with translated(tablet.node), links.control(tablet.node).cursor() as cursor:
        row = _row(cursor, tablet.id)
        there = all(exists(cursor, name) for name in partitions_of(snapshot.tables[tablet.table], tablet))
    said = row is not None and row.state in (OwnState.OWNED, OwnState.FENCED) and row.epoch == tablet.epoch
    return there and said


def make_ready(links: NodeSessions, leader_epoch: int, table: Table, revived: Sequence[Tablet], *, empty: bool) -> None:
    """Readies tablets of a table on their new node: attached, closed, with their new epoch; all or none. Idempotent."""
    node = revived[0].node
    with node_transaction(links.control(node), leader_epoch, node, durable=True) as cursor:
        for tablet in revived:
            _make_ready(cursor, leader_epoch, table, tablet, empty=empty, trusted=links.address(node).trusts_owners)


def _make_ready(
    cursor: Cursor, leader_epoch: int, table: Table, revived: Tablet, *, empty: bool, trusted: bool
) -> None:
    node, names = revived.node, partitions_of(table, revived)
    closed = OwnedTablet(revived.id, revived.epoch, OwnState.FENCED, names)
    row = next(iter(locked_rows(cursor, [revived.id])), None)
    if row is not None and row.epoch == revived.epoch and row.state is OwnState.FENCED:
        return  # by an attempt before this one
    if row is not None and row.epoch >= revived.epoch:
        raise Refused(f"node {node} says that tablet {revived.id} is {row.state} with epoch {row.epoch}")
    if table.everywhere:
        _take_copy(cursor, node, table, revived, empty=empty)
        close_tablet(cursor, closed, node, leader_epoch, LOCK_TIMEOUT)
        return
    check_extendable(cursor, [parse_name(root) for root in table.roots], trusted=trusted)
    if empty:
        _create(cursor, node, table, revived)
    else:
        _attach(cursor, node, table, revived, trusted=trusted)
    close_tablet(cursor, closed, node, leader_epoch, LOCK_TIMEOUT)


def take_back_ready(
    links: NodeSessions, leader_epoch: int, snapshot: Snapshot, tablet: Tablet, node: str, *, empty: bool, former: bool
) -> None:
    """Undoes `make_ready`, which an attempt may have done before its leader died, for a command that is refused now.

    Otherwise the node would claim the tablet for good, with an epoch above its owner's. It was closed all along.
    Idempotent.
    """
    lost, before = reshard_of(snapshot, tablet) if former else ((tablet,), (tablet,))
    epoch = max(one.epoch for one in (*lost, *before))
    with node_transaction(links.control(node), leader_epoch, node, durable=True) as cursor:
        for row in locked_rows(cursor, [one.id for one in before]):
            known = snapshot.find_tablet(row.id)
            if row.migration != CLOSED or row.epoch <= epoch or (known is not None and known.node == node):
                continue
            if empty:
                run_together(cursor, [lock_timeout(LOCK_TIMEOUT)])
                for name in reversed(row.partitions):
                    detach_wherever(cursor, name)
                drop_or_set_aside(cursor, [row.id], list(reversed(row.partitions)), f"tablet_{row.id}", LOCK_TIMEOUT)
                forget_tablets(cursor, [row.id])
            else:
                give_away(cursor, row, tablet.node, epoch, leader_epoch=leader_epoch, lock_timeout=LOCK_TIMEOUT)


def _take_copy(cursor: Cursor, node: str, table: Table, revived: Tablet, *, empty: bool) -> None:
    """A copy of a reference table becomes its home, with what had arrived there."""
    names = partitions_of(table, revived)
    missing = _missing(cursor, names)
    if empty or missing:
        why = f"{missing[0]} is not there" if missing else "it has copies: take one with --take-from"
        raise Refused(f"reference table {table.name} cannot get its home on node {node}: {why}")
    for stream in sorted(read_streams(cursor).of(revived.id)):
        drop_subscription(cursor, stream)
    guard_home(cursor, names, revived.id)


def _create(cursor: Cursor, node: str, table: Table, revived: Tablet) -> None:
    for place in places(table, revived):
        if exists(cursor, place.partition):
            raise Refused(
                f"node {node} still has {place.partition}: take it with --take-from {node}, or drop it by hand first"
            )
        create_partition(cursor, read_root(cursor, place.root, whole=table.whole), place.partition, place.part)
        if revived.state is TabletState.EXPIRED:
            refuse_rows(
                cursor, place.partition, f"{table.name} takes no rows of these keys any more: they have expired"
            )


def _attach(cursor: Cursor, node: str, table: Table, revived: Tablet, *, trusted: bool) -> None:
    missing = _missing(cursor, partitions_of(table, revived))
    if missing:
        raise Refused(f"node {node} has no copy of tablet {revived.id}: {missing[0]} is not there")
    check_readable(cursor, partitions_of(table, revived), trusted=trusted)
    for place in places(table, revived):
        if attachments(cursor, [place.partition])[place.partition] is None:
            attach(cursor, place)


def _missing(cursor: Cursor, names: tuple[Name, ...]) -> list[Name]:
    return [name for name in names if not exists(cursor, name)]


def _row(cursor: Cursor, tablet: int) -> OwnedTablet | None:
    return next((row for row in read_tablets(cursor) if row.id == tablet), None)


def _count(cursor: Cursor, name: Name, *, trusted: bool) -> int:
    with cursor.connection.transaction():
        check_readable(cursor, [name], trusted=trusted)
        return count_rows(cursor, name)


def _copy(links: NodeSessions, node: Node, table: Table, tablet: Tablet) -> Copy | None:
    if node.state is NodeState.LOST:
        return Copy(node.id, "lost") if node.id == tablet.node else None
    try:
        with translated(node.id), links.control(node.id).cursor() as cursor:
            row, names = _row(cursor, tablet.id), partitions_of(table, tablet)
            missing = _missing(cursor, names)
            if row is None and missing:
                return None
            rows = None if missing else _count(cursor, names[0], trusted=links.address(node.id).trusts_owners)
            return Copy(node.id, str(row.state) if row else "not known", row.epoch if row else 0, rows)
    except Unavailable as error:
        return Copy(node.id, f"cannot be asked: {error}")
