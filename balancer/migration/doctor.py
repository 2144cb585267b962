"""Compares the nodes with the directory: what migrations left behind, and who says what about ownership.

`examine` only reads and can be run at any time, by anybody; what belongs to a migration that still runs is no finding.
`repair` is for a leader. Called by the command line and, after a recovery, by the daemon and the tests.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from balancer.clock import Clock, SystemClock
from balancer.directory.contract import Directory, Leadership
from balancer.directory.handover_record import without_handed_over
from balancer.directory.model import NodeState, Table
from balancer.directory.snapshot import Snapshot
from balancer.errors import OutcomeUnknown, Refused, Unavailable
from balancer.migration.context import partitions_of
from balancer.migration.copy_findings import copy_findings
from balancer.migration.links import Addresses, Links
from balancer.migration.revive import owner_has
from balancer.nodes import partition
from balancer.nodes.connection import Connection, Cursor, translated
from balancer.nodes.epoch_check import node_transaction
from balancer.nodes.expired_keys import triggers_until_gone
from balancer.nodes.leftovers import Leftover, LeftoverKind, find_leftovers, remove_leftover
from balancer.nodes.names import Name, parse_name
from balancer.nodes.objects import CLOSED
from balancer.nodes.owners_code import owners_findings
from balancer.nodes.ownership import rewound_words
from balancer.nodes.root_facts import Facts, facts_on
from balancer.nodes.root_findings import compare_roots, leaf_findings, root_findings
from balancer.nodes.schema import OwnedTablet, OwnState, forget_tablets, read_tablets, write_tablets
from balancer.nodes.set_aside import drop_or_set_aside, kept_rows

_ORDER = list(LeftoverKind)

PATIENCE: Final = 10.0
"""Seconds for which one repair is tried again: most transactions that are in its way are much shorter."""
LOCK_TIMEOUT: Final = 2.0
_PAUSE: Final = 0.2
"""Seconds in which writers who queued behind an attempt get on."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that should not be. `leftover`, `stale` or `row` says how it can be repaired; none: by a person."""

    node: str
    text: str
    leftover: Leftover | None = None
    stale: OwnedTablet | None = None  # a row whose tablet is not coming, or has gone
    row: OwnedTablet | None = None  # the row as it should be
    command: str = ""  # what a person may do about it
    unneeded: Callable[[Links], bool] | None = field(default=None, compare=False)
    """Of rows that are to go: asks once more whether somebody else has them."""

    @property
    def repairable(self) -> bool:
        return self.leftover is not None or self.stale is not None or self.row is not None


def examine(directory: Directory, addresses: Addresses, nodes: Sequence[str] | None = None) -> list[Finding]:
    """Everything that is wrong, node by node. A node that is out of reach is a finding of its own."""
    snapshot = directory.snapshot()
    links = Links(addresses, "doctor")
    found: list[Finding] = []
    facts: dict[str, dict[Name, Facts]] = {}
    try:
        for node in nodes if nodes is not None else sorted(without_handed_over(snapshot).nodes):
            try:
                with translated(node):
                    found += _examine_node(snapshot, node, links)
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
    """What came of the findings that can be repaired."""

    done: tuple[Finding, ...] = ()
    refused: tuple[tuple[Finding, str], ...] = ()
    """What was left as it was, each with why: a node, or the application's sessions there, were in the way."""


def repair(
    leadership: Leadership, addresses: Addresses, findings: Sequence[Finding], clock: Clock | None = None
) -> Repairs:
    """Repairs what can be. Only for a leader, while no migration of these nodes is running.

    The findings must have been made since it leads: what was seen before may belong to a migration that began since.
    One that is refused keeps no other from being repaired.
    """
    clock = clock or SystemClock()
    links = Links(addresses, "doctor")
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


def _repair_patiently(links: Links, leadership: Leadership, finding: Finding, clock: Clock) -> None:
    deadline = clock.monotonic() + PATIENCE
    while True:
        try:
            # One before it may have taken long, and the new owner may have been taken back in time since it was asked.
            if finding.unneeded is not None and not finding.unneeded(links):
                raise Refused("whether another node has these rows is not known any more")
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
        if finding.row is not None:
            write_tablets(cursor, [finding.row])


def _remove_rows(cursor: Cursor, row: OwnedTablet) -> None:
    """Of a tablet that is not coming, or has gone."""
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


def _examine_node(snapshot: Snapshot, node: str, links: Links) -> Iterator[Finding]:
    connection = links.control(node)
    if (record := snapshot.nodes.get(node)) is not None and record.rewound:
        yield Finding(node, rewound_words(node, record.rewound), command=f"balancer node rejoin {node} --dry-run")
    running = {record.id for record in snapshot.migrations.values() if not record.finished}
    for leftover in find_leftovers(connection):
        # A fence of a former owner stays with its rows, until they are dropped with it.
        if leftover.migration not in running:
            yield Finding(node, f"leftover: {leftover}", leftover=leftover)
    for schema, text in kept_rows(connection):
        yield Finding(node, f"schema {schema}: {text}", command=f"look at them, then DROP SCHEMA {schema} CASCADE")
    with connection.cursor() as cursor:
        rows = {row.id: row for row in read_tablets(cursor)}
        closed = triggers_until_gone(cursor)
    for row in rows.values():
        if row.migration not in running:
            yield from _row_findings(snapshot, node, links, row)
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


def _row_findings(snapshot: Snapshot, node: str, links: Links, row: OwnedTablet) -> Iterator[Finding]:
    """What the node says of tablets that the directory does not give it."""
    tablet = snapshot.find_tablet(row.id)
    if snapshot.migration_of(row.id) is not None:
        return
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
    elif tablet is None or tablet.node != node:
        owner = f"node {tablet.node}" if tablet else "nobody"
        text = f"says it owns tablet {row.id}, but the directory says that {owner} does"
        yield Finding(node, text, command="balancer run: the leader closes it at its next poll")


def _is_elsewhere(links: Links, snapshot: Snapshot, row: OwnedTablet) -> bool:
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
    """The same of the home of a reference table, which has plain tables."""
    right = OwnedTablet(tablet, epoch, OwnState.OWNED, names)
    with connection.cursor() as cursor:
        missing = [str(name) for name in names if not partition.exists(cursor, name)]
    if missing:
        yield Finding(node, f"is the home of tablet {tablet}, but {', '.join(missing)} is not there")
    elif row is None or (row.migration != CLOSED and (row.state, row.epoch) != (OwnState.OWNED, epoch)):
        said = f"{row.state} with epoch {row.epoch}" if row else "nothing"
        yield Finding(node, f"is the home of tablet {tablet} with epoch {epoch}, but says {said}", row=right)


def _ownership_findings(
    node: str, connection: Connection, row: OwnedTablet | None, *, tablet: int, epoch: int, names: tuple[Name, ...]
) -> Iterator[Finding]:
    """What the node does not say of a tablet that is its own."""
    right = OwnedTablet(tablet, epoch, OwnState.OWNED, names)
    attached = [partition.detach_pending(connection, name) is False for name in names]
    if not all(attached):
        missing = ", ".join(str(name) for name, there in zip(names, attached, strict=True) if not there)
        text = f"owns tablet {tablet}, but {missing} is not attached"
        yield Finding(node, text, command=f"balancer tablet lost {tablet} --dry-run")
    elif row is not None and row.migration == CLOSED:
        return  # of a node that has gone back in time: told once for all of them
    elif row is None or (row.state, row.epoch) != (OwnState.OWNED, epoch):
        said = f"{row.state} with epoch {row.epoch}" if row else "nothing"
        yield Finding(node, f"owns tablet {tablet} with epoch {epoch}, but says {said}", row=right)
