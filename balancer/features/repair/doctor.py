"""Compares the nodes with the directory: what migrations left behind, and what each says about ownership.

`examine` only reads and can be run at any time, by anybody; what belongs to a migration that is still running is not a
finding. `repair` is for a leader. Called by the command line and, after a recovery, by the daemon and the tests.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from balancer.clock import Clock, SystemClock
from balancer.directory.contract import Directory, Leadership
from balancer.directory.handover_record import without_handed_over
from balancer.directory.model import NodeState, Table, Tablet, TabletState
from balancer.directory.snapshot import Snapshot
from balancer.errors import OutcomeUnknown, Refused, Unavailable
from balancer.features.reference.findings import copy_findings
from balancer.features.repair.revive import owner_has
from balancer.migration.context import partitions_of
from balancer.migration.finish import leading_hosts, missing_standby, split_words
from balancer.migration.machine import State
from balancer.naming import Name, parse_name
from balancer.nodes.catalog.findings import compare_roots, leaf_findings, root_findings
from balancer.nodes.catalog.owners_code import owners_findings
from balancer.nodes.catalog.roots import Facts, facts_on, parent_of
from balancer.nodes.schema.install import (
    OwnedTablet,
    OwnState,
    forget_tablets,
    of_the_old_map,
    read_tablets,
    write_tablets,
)
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.session.connection import Connection, Cursor, translated
from balancer.nodes.session.holder import Addresses, NodeSessions
from balancer.nodes.tablets import partition
from balancer.nodes.tablets.closed import say_moved, stays_empty, triggers_until_gone
from balancer.nodes.tablets.leftovers import (
    Leftover,
    LeftoverKind,
    drop_or_set_aside,
    find_leftovers,
    kept_rows,
    remove_leftover,
)
from balancer.nodes.tablets.object_names import CLOSED, FENCE_TRIGGER, FENCE_TRUNCATE_TRIGGER
from balancer.polling.ownership import rewound_words
from balancer.polling.poller import known_standbys

_ORDER = list(LeftoverKind)
_FENCES = (FENCE_TRIGGER, FENCE_TRUNCATE_TRIGGER)

PATIENCE: Final = 10.0
"""Seconds for which one repair is retried: most transactions in its way are much shorter."""
LOCK_TIMEOUT: Final = 2.0
_PAUSE: Final = 0.2
"""Seconds in which writers that queued behind an attempt can proceed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that should not be. `leftover`, `stale` or `row` says how to repair it; else only a person can."""

    node: str
    text: str
    leftover: Leftover | None = None
    stale: OwnedTablet | None = None  # a row whose tablet is not coming, or has left
    row: OwnedTablet | None = None  # the row as it should be
    command: str = ""  # what a person may do about it
    unneeded: Callable[[NodeSessions], bool] | None = field(default=None, compare=False)
    """For rows that are about to be dropped: asks once more whether somebody else has them."""

    @property
    def repairable(self) -> bool:
        return self.leftover is not None or self.stale is not None or self.row is not None


def examine(directory: Directory, addresses: Addresses, nodes: Sequence[str] | None = None) -> list[Finding]:
    """Everything that is wrong, node by node. A node that is out of reach is a finding of its own."""
    snapshot = directory.snapshot()
    links = NodeSessions(addresses, "doctor")
    found: list[Finding] = []
    facts: dict[str, dict[Name, Facts]] = {}
    try:
        for node in nodes if nodes is not None else sorted(without_handed_over(snapshot).nodes):
            try:
                with translated(node):
                    found += _examine_node(snapshot, node, links)
                    found += _kept_for_standbys(directory, snapshot, node, links)
                    if not links.address(node).trusts_owners:
                        found += _owners_code(snapshot, node, links.control(node))
                    roots = [root for _, mine in _roots_of(snapshot, node) for root in mine]
                    facts[node] = facts_on(links.control(node), roots)
            except (Unavailable, Refused) as error:
                why = error.why if isinstance(error, Unavailable) else str(error).removeprefix(f"node {node} ")
                found.append(Finding(node, f"cannot be examined ({why})"))
        found += [Finding(one.node, one.text) for one in copy_findings(snapshot, links, facts)]
    finally:
        links.close()
    return [*found, *(Finding(node, text) for node, text in compare_roots(facts))]


@dataclass(frozen=True, slots=True)
class Repairs:
    """What became of the findings that can be repaired."""

    done: tuple[Finding, ...] = ()
    refused: tuple[tuple[Finding, str], ...] = ()
    """What was left as it was, each with the reason: a node, or the application's sessions there, were in the way."""


def repair(
    leadership: Leadership, addresses: Addresses, findings: Sequence[Finding], clock: Clock | None = None
) -> Repairs:
    """Repairs what can be. Only for a leader, while no migration of these nodes is running.

    The findings must be newer than its leadership: what was seen before may belong to a migration that began since. A
    repair that is refused does not prevent the others.
    """
    clock = clock or SystemClock()
    links = NodeSessions(addresses, "doctor")
    done, refused = [], []
    try:
        for finding in sorted(findings, key=_removal_order):
            if not finding.repairable:
                continue
            try:
                _repair_patiently(links, leadership, finding, clock)
            except (Unavailable, Refused, OutcomeUnknown) as error:
                refused.append((finding, str(error)))
            else:
                done.append(finding)
    finally:
        links.close()
    return Repairs(tuple(done), tuple(refused))


def _removal_order(finding: Finding) -> int:
    return _ORDER.index(finding.leftover.kind) if finding.leftover else len(_ORDER)


def _repair_patiently(links: NodeSessions, leadership: Leadership, finding: Finding, clock: Clock) -> None:
    deadline = clock.monotonic() + PATIENCE
    while True:
        try:
            # An earlier repair may have taken long, and the new owner may have gone back in time since it was asked.
            if finding.unneeded is not None and not finding.unneeded(links):
                raise Refused("whether another node has these rows is no longer known")
            with translated(finding.node):
                return _repair_one(links.control(finding.node), leadership, finding)
        except Unavailable:
            if clock.monotonic() >= deadline:
                raise
        clock.sleep(_PAUSE)


def _repair_one(connection: Connection, leadership: Leadership, finding: Finding) -> None:
    with node_transaction(connection, leadership.epoch, finding.node) as cursor:
        if finding.leftover is not None:
            remove_leftover(cursor, finding.leftover)
        if finding.stale is not None:
            _check_unchanged(cursor, finding.stale)
            _remove_rows(cursor, finding.stale)
        if finding.row is not None and finding.row.state is OwnState.MOVED:
            say_moved(cursor, finding.row, leader_epoch=leadership.epoch, lock_timeout=LOCK_TIMEOUT)
        elif finding.row is not None:
            write_tablets(cursor, [finding.row])


def _remove_rows(cursor: Cursor, row: OwnedTablet) -> None:
    """For a tablet that is not coming, or has left."""
    names = list(reversed(row.partitions))
    for name in names:  # a former owner may have been told so while they were attached
        partition.detach_wherever(cursor, name)
    if row.state is not OwnState.INCOMING:
        drop_or_set_aside(cursor, [row.id], names, f"tablet_{row.id}", LOCK_TIMEOUT)
        return
    for name in names:
        partition.drop_partition(cursor, name)
    forget_tablets(cursor, [row.id])


def _check_unchanged(cursor: Cursor, row: OwnedTablet) -> None:
    """Raises `Refused` if the node says something else by now."""
    cursor.execute("SELECT FROM balancer.tablet WHERE id = %s FOR UPDATE", (row.id,))
    if row not in read_tablets(cursor):
        raise Refused(f"what was found of tablet {row.id} has changed since: look again")


def _examine_node(snapshot: Snapshot, node: str, links: NodeSessions) -> Iterator[Finding]:
    connection = links.control(node)
    if (record := snapshot.nodes.get(node)) is not None and record.rewound:
        yield Finding(node, rewound_words(node, record.rewound), command=f"balancer node rejoin {node} --dry-run")
    for schema, text in kept_rows(connection):
        yield Finding(node, f"schema {schema}: {text}", command=f"look at them, then DROP SCHEMA {schema} CASCADE")
    with connection.cursor() as cursor:
        rows = {row.id: row for row in read_tablets(cursor)}
        closed = triggers_until_gone(cursor)
    yield from _migration_findings(snapshot, node, links, rows)
    for row in rows.values():
        if row.state is OwnState.OWNED and snapshot.migration_of(row.id) is None:  # its expiry was forgotten
            for name, trigger in (one for one in closed if one[0] in row.partitions):
                leftover = Leftover(LeftoverKind.TRIGGER, trigger, None, name)
                yield Finding(node, f"leftover: {leftover}", leftover=leftover)
    for table in snapshot.tables.values():
        for tablet in snapshot.tablets(table.id):
            if tablet.node == node and snapshot.migration_of(tablet.id) is None:
                names = partitions_of(table, tablet)
                check = _home_findings if table.everywhere else _ownership_findings
                yield from check(
                    node, connection, rows.get(tablet.id), tablet=tablet.id, epoch=tablet.epoch, names=names
                )

    yield from _root_findings(snapshot, node, connection)


def _kept_for_standbys(directory: Directory, snapshot: Snapshot, node: str, links: NodeSessions) -> Iterator[Finding]:
    """Moves to this node whose former owner keeps its rows, because no standby has them yet."""
    mine = [one for one in snapshot.migrations.values() if one.target_node == node and one.state == State.RETIRING]
    if not mine:
        return
    address = links.address(node)
    if len(set((leading := leading_hosts(address)).values())) > 1:
        why = split_words(address, leading)
    else:
        known = known_standbys(directory, mine[0].bundle, node)
        why = missing_standby(links.control(node), address, known, _BEGINNING)
    if why:
        yield Finding(node, f"{why}; until then former owners keep the rows of {', '.join(one.id for one in mine)}")


_BEGINNING: Final = "0/0"


def _migration_findings(
    snapshot: Snapshot, node: str, links: NodeSessions, rows: Mapping[int, OwnedTablet]
) -> Iterator[Finding]:
    """What migrations that no longer run have left here: objects, and what the node says about its tablets."""
    connection = links.control(node)
    running = {record.id for record in snapshot.migrations.values() if not record.finished}
    leftovers = [one for one in find_leftovers(connection) if one.migration not in running]
    # A fence on what is not the node's, or not yet, or not any more, goes with the rows that it closes, and not before:
    # a writer would get an answer, and its rows would be lost, or be on two nodes.
    fences = [one for one in leftovers if one.table is not None and one.name in _FENCES]
    own = _own_partitions(snapshot, node, rows) if fences else frozenset()
    shut = {one.table: one.migration for one in fences if one.table is not None and one.table not in own}
    for leftover in leftovers:
        if leftover.name not in _FENCES or leftover.table not in shut:
            yield Finding(node, f"leftover: {leftover}", leftover=leftover)
    named = {name for row in rows.values() for name in row.partitions}
    for row in rows.values():
        if row.migration in running:
            continue
        if snapshot.find_tablet(row.id) is None and of_the_old_map(row, list(rows.values())):
            gone = tuple(name for name, by in shut.items() if by == row.migration and name not in named)
            named.update(gone)
            right = replace(row, state=OwnState.MOVED, partitions=gone, migration=None, moved_to=node)
            text = f"tablet {row.id} was split, merged or has expired, and is answered for as if it were there"
            yield Finding(node, text, row=right)
        elif (heir := _expired_since(snapshot, connection, row)) is not None:
            right = replace(row, state=OwnState.MOVED, moved_to=heir.node)
            yield Finding(node, f"tablet {row.id} has expired, and tablet {heir.id} is in its place", row=right)
        else:
            yield from _row_findings(snapshot, node, links, row)
    for name in sorted(shut.keys() - named):
        text = f"{name} is closed by migration {shut[name]}, which no longer runs, and belongs to no tablet"
        yield Finding(node, text, command=f"look at its rows, then DROP TABLE {name}")


def _expired_since(snapshot: Snapshot, connection: Connection, row: OwnedTablet) -> Tablet | None:
    """The empty tablet of a later expiry, for which the directory has forgotten this one of an earlier expiry."""
    if row.state is not OwnState.OWNED or snapshot.find_tablet(row.id) is not None:
        return None
    with connection.cursor() as cursor:
        roots = {parent_of(cursor, name) for name in row.partitions}
        if not stays_empty(cursor, row.partitions):
            return None
    mine = [one for one in snapshot.tables.values() if roots == set(map(parse_name, one.roots))]
    expired = (one for table in mine for one in snapshot.tablets(table.id) if one.state is TabletState.EXPIRED)
    return next(expired, None)


def _own_partitions(snapshot: Snapshot, node: str, rows: Mapping[int, OwnedTablet]) -> Set[Name]:
    """For the tablets that a node owns, by its own word and the directory's; and every copy of a reference table, which
    other triggers close."""
    return {
        name
        for table in snapshot.tables.values()
        for tablet in snapshot.tablets(table.id)
        if table.everywhere or (tablet.node == node and _agree(rows.get(tablet.id), tablet.epoch))
        for name in partitions_of(table, tablet)
    }


def _agree(row: OwnedTablet | None, epoch: int) -> bool:
    """Whether the node says that it owns what the directory gives it, closed or not."""
    return row is not None and row.epoch == epoch and row.state in (OwnState.OWNED, OwnState.FENCED)


def _root_findings(snapshot: Snapshot, node: str, connection: Connection) -> Iterator[Finding]:
    """What a move from or to this node would refuse."""
    with connection.cursor() as cursor:
        for table, roots in _roots_of(snapshot, node):
            if table.everywhere:
                continue
            key = [column.name for column in table.key_columns]
            for text in (*root_findings(cursor, roots, key), *leaf_findings(cursor, roots)):
                yield Finding(node, text)


def _owners_code(snapshot: Snapshot, node: str, connection: Connection) -> Iterator[Finding]:
    """Tables that would run their owners' code with our rights: they are neither moved, counted nor sampled."""
    with connection.cursor() as cursor:
        for _, roots in _roots_of(snapshot, node):
            for _, text in owners_findings(cursor, roots):
                yield Finding(node, text)


def _roots_of(snapshot: Snapshot, node: str) -> Iterator[tuple[Table, list[Name]]]:
    """The tables that the node's bundle has, with their roots."""
    bundle = snapshot.nodes[node].bundle if node in snapshot.nodes else None
    for table in snapshot.tables.values():
        if table.bundle == bundle:
            yield table, [parse_name(root) for root in table.roots]


def _row_findings(snapshot: Snapshot, node: str, links: NodeSessions, row: OwnedTablet) -> Iterator[Finding]:
    """What the node says about tablets that the directory does not give it."""
    tablet = snapshot.find_tablet(row.id)
    if snapshot.migration_of(row.id) is not None:
        return
    if row.state is OwnState.INCOMING and tablet is not None and tablet.node == node:
        return  # it has forgotten that it was opened, and these may be the only rows: see `_contradiction`
    if row.state is OwnState.INCOMING:
        yield Finding(node, f"tablet {row.id} is incoming, but no migration brings it", stale=row)
    elif row.state is OwnState.MOVED and tablet is not None and snapshot.tables[tablet.table].everywhere:
        return  # a former home that has gone back in time: it becomes a copy again
    elif row.state is OwnState.MOVED:
        with links.control(node).cursor() as cursor:
            there = any(partition.exists(cursor, name) for name in row.partitions)
        text = f"tablet {row.id} has moved, but its rows are still here"
        unneeded = partial(_is_elsewhere, snapshot=snapshot, row=row)
        if there and unneeded(links):
            yield Finding(node, text, stale=row, unneeded=unneeded)
        elif there:
            text += f", and may be all that is left: whether node {row.moved_to} has them is not known"
            yield Finding(node, text, command=f"balancer tablet lost {row.id} --dry-run")
    elif row.state is OwnState.FENCED and row.migration != CLOSED and _has_left(links, snapshot, row):
        assert tablet is not None
        right = replace(row, state=OwnState.MOVED, epoch=tablet.epoch, migration=None, moved_to=tablet.node)
        yield Finding(node, f"tablet {row.id} is closed, and node {tablet.node} has it: it must say so", row=right)
    elif tablet is None or tablet.node != node:
        owner = f"node {tablet.node}" if tablet else "nobody"
        text = f"says it owns tablet {row.id}, but the directory says that {owner} does"
        yield Finding(node, text, command="balancer run: the leader closes it at its next poll")


def _has_left(links: NodeSessions, snapshot: Snapshot, row: OwnedTablet) -> bool:
    """Whether a move has ended except for the former owner's word: the new one has a higher epoch, and knows it."""
    tablet = snapshot.find_tablet(row.id)
    if tablet is None or tablet.epoch <= row.epoch:
        return False
    return _is_elsewhere(links, snapshot, row)


def _is_elsewhere(links: NodeSessions, snapshot: Snapshot, row: OwnedTablet) -> bool:
    """Whether nobody needs a former owner's rows: the owner of today, or of what the tablet has become, has them."""
    tablet = snapshot.find_tablet(row.id)
    owner = snapshot.nodes.get(tablet.node if tablet is not None else row.moved_to or "")
    if owner is not None and (owner.state is NodeState.LOST or owner.rewound):
        return False
    try:
        return tablet is None or owner_has(links, snapshot, tablet)
    except (Unavailable, Refused):
        return False


def _home_findings(
    node: str, connection: Connection, row: OwnedTablet | None, *, tablet: int, epoch: int, names: tuple[Name, ...]
) -> Iterator[Finding]:
    """The same for the home of a reference table, which has plain tables."""
    with connection.cursor() as cursor:
        missing = [str(name) for name in names if not partition.exists(cursor, name)]
    if missing:
        yield Finding(node, f"is the home of tablet {tablet}, but {', '.join(missing)} is not there")
    elif row is None or (row.migration != CLOSED and (row.state, row.epoch) != (OwnState.OWNED, epoch)):
        right = OwnedTablet(tablet, epoch, OwnState.OWNED, names)
        yield _contradiction(node, f"is the home of tablet {tablet}", row, right)


def _ownership_findings(
    node: str, connection: Connection, row: OwnedTablet | None, *, tablet: int, epoch: int, names: tuple[Name, ...]
) -> Iterator[Finding]:
    """What the node fails to say about a tablet that is its own."""
    attached = [partition.detach_pending(connection, name) is False for name in names]
    if not all(attached):
        missing = ", ".join(str(name) for name, there in zip(names, attached, strict=True) if not there)
        text = f"owns tablet {tablet}, but {missing} is not attached"
        yield Finding(node, text, command=f"balancer tablet lost {tablet} --dry-run")
    elif row is not None and row.migration == CLOSED:
        return  # of a node that has gone back in time: reported once for all of them
    elif row is None or (row.state, row.epoch) != (OwnState.OWNED, epoch):
        yield _contradiction(node, f"owns tablet {tablet}", row, OwnedTablet(tablet, epoch, OwnState.OWNED, names))


def _contradiction(node: str, what: str, row: OwnedTablet | None, right: OwnedTablet) -> Finding:
    """A different epoch is not overwritten: it reveals that the node, or the directory, has gone back in time."""
    said = f"{row.state} with epoch {row.epoch}" if row else "nothing"
    text = f"{what} with epoch {right.epoch}, but says {said}"
    if row is None or _agree(row, right.epoch):
        return Finding(node, text, row=right)
    if row.epoch > right.epoch:
        return Finding(node, f"{text}: the directory is older than the node", command="balancer directory recover")
    return Finding(node, text, command="balancer run: the leader closes it at its next poll")
