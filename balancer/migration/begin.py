"""The entry points: an admitted action or an operator's request becomes a journaled migration. Touches no node.

Called by the planner and the command line; `Runner.run` then carries it out. Everything that can be refused from the
directory alone is refused here.
"""

from collections.abc import Callable
from dataclasses import replace
from uuid import uuid4

from balancer.clock import Clock, SystemClock
from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import (
    Change,
    Migration,
    MigrationKind,
    MigrationMode,
    Node,
    NodeState,
    Put,
    Tablet,
    TabletState,
    Transaction,
)
from balancer.directory.snapshot import Snapshot
from balancer.errors import Refused
from balancer.migration.journal import AUTHOR
from balancer.migration.machine import State
from balancer.migration.record import Detail

Also = Callable[[Migration], tuple[Change, ...]]
"""What else is recorded in the commit that begins a migration: the answer to the command that asked for it."""


def nothing_else(_: Migration) -> tuple[Change, ...]:
    """For a migration that no command asked for."""
    return ()


def begin_move(
    directory: Directory,
    leadership: Leadership,
    tablet_id: int,
    target_node: str,
    *,
    mode: MigrationMode = MigrationMode.REPLICATE,
    fallback: bool = False,
    reason: str = "",
    code: str = "",
    then: tuple[tuple[int, str], ...] = (),
    warm: bool = False,
    force: bool = False,
    also: Also = nothing_else,
    clock: Clock | None = None,
) -> Migration:
    """Journals the move of a tablet. With `force`, also to a node that is not active, or of a quarantined tablet.

    With `fallback` it becomes read-only where it cannot be replicated. `then` names tablets and the nodes they go to
    once this move is done, one after the other.
    """
    snapshot = directory.snapshot()
    tablet = snapshot.tablet(tablet_id)
    node = snapshot.nodes.get(target_node)
    if node is None:
        raise Refused(f"there is no node {target_node}")
    if tablet.node == target_node:
        raise Refused(f"tablet {tablet_id} is on node {target_node} already")
    check_free(snapshot, (tablet,), force)
    _check_receives(node, force)
    moved = replace(tablet, node=target_node, epoch=tablet.epoch + 1, state=_state_after(tablet))
    now = (clock or SystemClock()).now().timestamp()
    table = snapshot.tables[tablet.table]
    migration = Migration(
        id=new_id(),
        bundle=table.bundle,
        table=table.id,
        operation=MigrationKind.MOVE,
        mode=mode,
        sources=(tablet_id,),
        targets=(moved,),
        source_node=tablet.node,
        target_node=target_node,
        state=str(State.PLANNED),
        reason=reason,
        created=now,
        updated=now,
        detail=Detail(leader_epoch=leadership.epoch, code=code, then=then, fallback=fallback, warm=warm).document(),
    )
    directory.commit(
        Transaction(
            changes=(Put(migration), *also(migration)),
            base=snapshot.version,
            reason=f"move tablet {tablet_id} from {tablet.node} to {target_node}: {reason or 'asked for'}",
            author=AUTHOR,
            leader_epoch=leadership.epoch,
        )
    )
    return migration


def check_free(snapshot: Snapshot, tablets: tuple[Tablet, ...], force: bool) -> None:
    """Raises `Refused` if a tablet is being migrated or must be left alone."""
    for tablet in tablets:
        other = snapshot.migration_of(tablet.id)
        if other is not None:
            raise Refused(f"tablet {tablet.id} is part of migration {other.id}, which is {other.state}")
        owner = snapshot.nodes.get(tablet.node)
        if owner is not None and (owner.rewound or owner.state is NodeState.LOST):
            why = f"has gone back in time: {owner.rewound}" if owner.rewound else "is lost"
            raise Refused(f"tablet {tablet.id} cannot be migrated: its node {owner.id} {why}")
        if tablet.state is TabletState.QUARANTINED and not force:
            raise Refused(
                f"tablet {tablet.id} is quarantined: look at its last migrations with `balancer moves --all`,"
                f" then `balancer release {tablet.id}`"
            )


def _state_after(tablet: Tablet) -> TabletState:
    return TabletState.EXPIRED if tablet.state is TabletState.EXPIRED else TabletState.OWNED


def new_id() -> str:
    """An id that fits into the names of PostgreSQL's objects."""
    return f"m{uuid4().hex[:12]}"


def _check_receives(node: Node, force: bool) -> None:
    if node.rewound:
        raise Refused(f"node {node.id} has gone back in time: {node.rewound}; see `balancer node rejoin {node.id}`")
    if node.state is not NodeState.ACTIVE and not force:
        raise Refused(f"node {node.id} is {node.state} and gets no tablets: {node.reason or 'no reason given'}")
