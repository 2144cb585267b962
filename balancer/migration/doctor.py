"""Compares the nodes with the directory: what migrations left behind, and who says what about ownership.

`examine` only reads and can be run at any time, by anybody; what belongs to a migration that still runs is no finding.
`repair` is for a leader. Called by the command line and, after a recovery, by the daemon and the tests.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from balancer.clock import Clock, SystemClock
from balancer.directory.contract import Directory, Leadership
from balancer.directory.snapshot import Snapshot
from balancer.errors import Unavailable
from balancer.migration.context import partitions_of
from balancer.migration.links import Addresses, Links
from balancer.nodes import partition
from balancer.nodes.connection import Connection, translated
from balancer.nodes.leader import node_command, node_transaction
from balancer.nodes.leftovers import Leftover, LeftoverKind, find_leftovers, remove_leftover
from balancer.nodes.names import Name
from balancer.nodes.objects import CLOSED
from balancer.nodes.ownership import rewound_words
from balancer.nodes.schema import OwnedTablet, OwnState, forget_tablets, read_tablets, write_tablets

_ORDER = list(LeftoverKind)

PATIENCE: Final = 10.0
"""Seconds for which one repair is tried again: most transactions that are in its way are much shorter."""
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

    @property
    def repairable(self) -> bool:
        return self.leftover is not None or self.stale is not None or self.row is not None


def examine(directory: Directory, addresses: Addresses, nodes: Sequence[str] | None = None) -> list[Finding]:
    """Everything that is wrong, node by node. A node that is out of reach is a finding of its own."""
    snapshot = directory.snapshot()
    links = Links(addresses, "doctor")
    found: list[Finding] = []
    try:
        for node in nodes if nodes is not None else sorted(snapshot.nodes):
            try:
                with translated(node):
                    found += _examine_node(snapshot, node, links.control(node))
            except Unavailable as error:
                found.append(Finding(node, f"cannot be examined: {error}"))
    finally:
        links.close()
    return found


def repair(
    leadership: Leadership, addresses: Addresses, findings: Sequence[Finding], clock: Clock | None = None
) -> list[Finding]:
    """Repairs what can be; returns what was. Only for a leader, while no migration of these nodes is running.

    Raises `Unavailable` where a node, or the application's sessions there, are in the way for too long.
    """
    clock = clock or SystemClock()
    links = Links(addresses, "doctor")
    done = []
    try:
        for finding in sorted(findings, key=_removal_order):
            if finding.repairable:
                _repair_patiently(links, leadership, finding, clock)
                done.append(finding)
    finally:
        links.close()
    return done


def _removal_order(finding: Finding) -> int:
    return _ORDER.index(finding.leftover.kind) if finding.leftover else len(_ORDER)


def _repair_patiently(links: Links, leadership: Leadership, finding: Finding, clock: Clock) -> None:
    deadline = clock.monotonic() + PATIENCE
    while True:
        try:
            return _repair_one(links.control(finding.node), leadership, finding)
        except Unavailable as error:
            if clock.monotonic() >= deadline:
                raise Unavailable(f"not repaired yet, try again later ({finding.text}): {error}") from error
        clock.sleep(_PAUSE)


def _repair_one(connection: Connection, leadership: Leadership, finding: Finding) -> None:
    if finding.leftover is not None:
        with node_command(connection, leadership.epoch, finding.node):
            remove_leftover(connection, finding.leftover)
        return
    with node_transaction(connection, leadership.epoch, finding.node) as cursor:
        if finding.stale is not None:
            for name in reversed(finding.stale.partitions):
                partition.drop_partition(cursor, name)
            if finding.stale.state is OwnState.INCOMING:
                forget_tablets(cursor, [finding.stale.id])
        if finding.row is not None:
            write_tablets(cursor, [finding.row])


def _examine_node(snapshot: Snapshot, node: str, connection: Connection) -> Iterator[Finding]:
    if (record := snapshot.nodes.get(node)) is not None and record.rewound:
        yield Finding(node, rewound_words(node, record.rewound), command=f"balancer node rejoin {node} --dry-run")
    running = {record.id for record in snapshot.migrations.values() if not record.finished}
    for leftover in find_leftovers(connection):
        # A fence of a former owner stays with its rows, until they are dropped with it.
        if leftover.migration not in running:
            yield Finding(node, f"leftover: {leftover}", leftover=leftover)
    with connection.cursor() as cursor:
        rows = {row.id: row for row in read_tablets(cursor)}
    for row in rows.values():
        if row.migration not in running:
            yield from _row_findings(snapshot, node, connection, row)
    for table in snapshot.tables.values():
        for tablet in snapshot.tablets(table.id):
            if tablet.node == node and snapshot.migration_of(tablet.id) is None:
                names = partitions_of(table, tablet)
                yield from _ownership_findings(
                    node, connection, rows.get(tablet.id), tablet=tablet.id, epoch=tablet.epoch, names=names
                )


def _row_findings(snapshot: Snapshot, node: str, connection: Connection, row: OwnedTablet) -> Iterator[Finding]:
    """What the node says of tablets that the directory does not give it."""
    tablet = snapshot.find_tablet(row.id)
    if snapshot.migration_of(row.id) is not None:
        return
    if row.state is OwnState.INCOMING:
        yield Finding(node, f"tablet {row.id} is incoming, but no migration brings it", stale=row)
    elif row.state is OwnState.MOVED:
        with connection.cursor() as cursor:
            if any(partition.exists(cursor, name) for name in row.partitions):
                yield Finding(node, f"tablet {row.id} has moved, but its rows are still here", stale=row)
    elif tablet is None or tablet.node != node:
        owner = f"node {tablet.node}" if tablet else "nobody"
        text = f"says it owns tablet {row.id}, but the directory says that {owner} does"
        yield Finding(node, text, command="balancer run: the leader closes it at its next poll")


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
