"""The entry points: an admitted action or an operator's request becomes a journaled migration. Touches no node.

Called by the planner and the command line; `Runner.run` then carries it out. Everything that can be refused from the
directory alone is refused here.

The entry points of splits and merges: n tablets of one node become m others there, covering the same keys.

Called by the planner and the command line, like `begin.begin_move`. The new tablets' ids are assigned here, with the
journal's first entry.

The entry point of an expiry: the lowest tablets of a table, all expired, become one empty tablet that takes no rows.

Called like `begin_reshard`. What the clock and the bounds say is judged here for the first time; the steps judge it
again on the nodes, under their locks and by their clocks.

Turns an admitted action into a journaled migration. Called for ticks and for operators' commands, only by a leader.

Decides only what needs a node: at which keys to cut a range if the policy only says into how many parts.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from uuid import uuid4

from balancer.clock import Clock, SystemClock
from balancer.directory.contract import Directory, Leadership
from balancer.directory.invariants import TABLET_COUNTER
from balancer.directory.model import (
    EXPIRY,
    Bounds,
    Change,
    Counter,
    Migration,
    MigrationKind,
    MigrationMode,
    Node,
    NodeState,
    Put,
    RangeBounds,
    Tablet,
    TabletState,
    Transaction,
)
from balancer.directory.snapshot import Snapshot
from balancer.errors import Refused
from balancer.migration.journal import AUTHOR, MigrationDetail, pack_tablet
from balancer.migration.machine import State
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.keyspace.keys import HIGHEST, LOWEST
from balancer.policies.options import InMemoryMode
from balancer.policies.reasons import duration_text
from balancer.policies.resize.time_ranges import end_of_bound, in_words, is_time
from balancer.policies.view import Action, ActionKind, Part
from balancer.settings import BundleSettings, WantedMode

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
        detail=MigrationDetail(
            leader_epoch=leadership.epoch, code=code, then=then, fallback=fallback, warm=warm
        ).document(),
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


def begin_reshard(
    directory: Directory,
    leadership: Leadership,
    tablet_ids: Sequence[int],
    parts: Sequence[Bounds],
    *,
    mode: MigrationMode = MigrationMode.REPLICATE,
    fallback: bool = False,
    reason: str = "",
    code: str = "",
    then: Sequence[str] = (),
    force: bool = False,
    also: Also = nothing_else,
    clock: Clock | None = None,
) -> Migration:
    """Journals that these tablets of one node become those parts, which must cover exactly the same keys.

    `then` names for each part the node it should go to afterwards; empty: it stays. With `fallback` it becomes
    read-only where it cannot be replicated.
    """
    snapshot = directory.snapshot()
    tablets = tuple(snapshot.tablet(tablet) for tablet in tablet_ids)
    _check_sources(snapshot, tablets, force)
    _check_cover(tablets, parts)
    first = tablets[0]
    counter = snapshot.counters.get(TABLET_COUNTER)
    if counter is None:
        raise Refused("the directory has no counter of tablet ids: it was not made by this program")
    targets = tuple(Tablet(counter.next + number, first.table, part, first.node) for number, part in enumerate(parts))
    now = (clock or SystemClock()).now().timestamp()
    operation = MigrationKind.SPLIT if len(parts) > 1 else MigrationKind.MERGE
    migration = Migration(
        id=new_id(),
        bundle=snapshot.tables[first.table].bundle,
        table=first.table,
        operation=operation,
        mode=mode,
        sources=tuple(tablet_ids),
        targets=targets,
        source_node=first.node,
        target_node=first.node,
        state=str(State.PLANNED),
        reason=reason,
        created=now,
        updated=now,
        detail=MigrationDetail(
            leader_epoch=leadership.epoch,
            code=code,
            fallback=fallback,
            then=tuple((target.id, node) for target, node in zip(targets, then, strict=False) if node),
            before=tuple(map(pack_tablet, tablets)),
        ).document(),
    )
    directory.commit(
        Transaction(
            changes=(Put(migration), Put(Counter(TABLET_COUNTER, counter.next + len(targets))), *also(migration)),
            base=snapshot.version,
            reason=f"{operation} tablets {', '.join(map(str, tablet_ids))}: {reason or 'asked for'}",
            author=AUTHOR,
            leader_epoch=leadership.epoch,
        )
    )
    return migration


def _check_sources(snapshot: Snapshot, tablets: tuple[Tablet, ...], force: bool) -> None:
    check_free(snapshot, tablets, force)
    if len({tablet.id for tablet in tablets}) != len(tablets):
        raise Refused("a tablet is named twice")
    if len({tablet.table for tablet in tablets}) != 1:
        raise Refused("the tablets are of different tables")
    nodes = sorted({tablet.node for tablet in tablets})
    if len(nodes) != 1:
        raise Refused(f"the tablets are on different nodes ({', '.join(nodes)}): move them together first")


def _check_cover(tablets: tuple[Tablet, ...], parts: Sequence[Bounds]) -> None:
    """Both sides must cover exactly the same set of keys, each key once."""
    sides = []
    for bounds in ([tablet.bounds for tablet in tablets], parts):
        spans = sorted(_span(part) for part in bounds)
        if any(before[1] > after[0] for before, after in itertools.pairwise(spans)):
            raise Refused("the parts overlap")
        sides.append(_joined(spans))
    if sides[0] != sides[1]:
        raise Refused("the parts do not cover exactly the keys of the tablets")


def _span(bounds: Bounds) -> tuple[bytes, bytes]:
    if isinstance(bounds, RangeBounds):
        return bounds.lower, bounds.upper
    start, end = bounds.start(), bounds.start() + bounds.width()
    return start.to_bytes(9, "big"), end.to_bytes(9, "big")


def _joined(spans: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    joined: list[tuple[bytes, bytes]] = []
    for low, high in spans:
        if joined and joined[-1][1] == low:
            joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    return joined


def begin_expiry(
    directory: Directory,
    leadership: Leadership,
    tablet_ids: Sequence[int],
    *,
    expire_after: float | None,
    unit: str = "",
    reason: str = "",
    code: str = "",
    also: Also = nothing_else,
    clock: Clock | None = None,
) -> Migration:
    """Journals that these tablets, from the lowest key up, are retired. An earlier expiry's empty one comes first."""
    snapshot = directory.snapshot()
    tablets = tuple(snapshot.tablet(tablet) for tablet in tablet_ids)
    now = (clock or SystemClock()).now().timestamp()
    floor, going = _checked(snapshot, tablets)
    for tablet in going:
        _check_expired(snapshot, tablet, expire_after, unit, now)
    table = snapshot.tables[going[0].table]
    counter = snapshot.counters.get(TABLET_COUNTER)
    if counter is None:
        raise Refused("the directory has no counter of tablet ids: it was not made by this program")
    bounds = RangeBounds(LOWEST, _range(going[-1]).upper)
    target = Tablet(counter.next, table.id, bounds, going[0].node, state=TabletState.EXPIRED)
    migration = Migration(
        id=new_id(),
        bundle=table.bundle,
        table=table.id,
        operation=MigrationKind.EXPIRE,
        mode=MigrationMode.READ_ONLY,
        sources=tuple(tablet_ids),
        targets=(target,),
        source_node=target.node,
        target_node=target.node,
        state=str(State.PLANNED),
        reason=reason,
        created=now,
        updated=now,
        detail=MigrationDetail(
            leader_epoch=leadership.epoch,
            code=code,
            before=tuple(map(pack_tablet, tablets)),
            expiry={"after": expire_after, "unit": unit, "floor": floor.id if floor else 0},
        ).document(),
    )
    directory.commit(
        Transaction(
            changes=(Put(migration), Put(Counter(TABLET_COUNTER, counter.next + 1)), *also(migration)),
            base=snapshot.version,
            reason=f"expire tablets {', '.join(str(tablet.id) for tablet in going)}: {reason or 'asked for'}",
            author=AUTHOR,
            leader_epoch=leadership.epoch,
        )
    )
    return migration


def _checked(snapshot: Snapshot, tablets: tuple[Tablet, ...]) -> tuple[Tablet | None, tuple[Tablet, ...]]:
    """The empty tablet of an earlier expiry, if there is one, and the tablets to be retired."""
    floor = tablets[0] if tablets and tablets[0].state is TabletState.EXPIRED else None
    going = tablets[1:] if floor else tablets
    if not going:
        raise Refused("name at least one tablet that can expire")
    if len({tablet.table for tablet in tablets}) != 1:
        raise Refused("the tablets are of different tables")
    table = snapshot.tables[going[0].table]
    if f"{table.bundle} {EXPIRY}" in snapshot.pauses:
        raise Refused(f"expiry in bundle {table.bundle} is held: `balancer expire {table.bundle} --release` first")
    if table.message_roots is not None:
        raise Refused(
            f"table {table.name} takes part in messages: those of expired keys would be lost;"
            " `balancer messages disable` ends it"
        )
    lowest = _range(tablets[0]).lower
    if lowest != LOWEST or any(_range(one).upper != _range(next_).lower for one, next_ in pairwise(tablets)):
        raise Refused(f"tablets of {table.name} expire from the lowest key upwards, without a gap")
    nodes = sorted({tablet.node for tablet in going})
    if len(nodes) != 1:
        raise Refused(f"the tablets are on different nodes ({', '.join(nodes)}): they expire one node after the other")
    check_free(snapshot, tablets, False)
    return floor, going


def _check_expired(snapshot: Snapshot, tablet: Tablet, after: float | None, unit: str, now: float) -> None:
    table = snapshot.tables[tablet.table]
    if after is None:
        raise Refused(f"table {table.name} has no expire_after: nothing of it expires")
    if not is_time(table.key_types, unit):
        raise Refused(f"the key of {table.name} does not begin with a time: nothing of it expires")
    upper = _range(tablet).upper
    end = None if upper == HIGHEST else end_of_bound(table.key_types, unit, upper)
    if end is None:
        raise Refused(f"tablet {tablet.id} of {table.name} has no end: it cannot expire")
    if end + after > now:
        raise Refused(
            f"tablet {tablet.id} of {table.name} has keys up to {in_words(end)}: it expires at {in_words(end + after)}"
            f" (expire_after = {duration_text(after)})"
        )


def _range(tablet: Tablet) -> RangeBounds:
    if not isinstance(tablet.bounds, RangeBounds):
        raise Refused(f"tablet {tablet.id} is a vbucket: only ranges expire")
    return tablet.bounds


SplitKeys = Callable[[Snapshot, Sequence[Tablet], int], list[bytes]]
"""Neighbouring ranges on one node, and how many parts → the keys at which to cut them."""


class Beginner:
    """Begins migrations for one leadership."""

    def __init__(self, directory: Directory, leadership: Leadership, split_keys: SplitKeys, clock: Clock) -> None:
        self._directory = directory
        self._leadership = leadership
        self._split_keys = split_keys
        self._clock = clock

    def begin(self, action: Action, bundle: BundleSettings, also: Also = nothing_else) -> Migration:
        """Journals the migration, with whatever else belongs in the same commit.

        Raises one of our errors if that is not possible.
        """
        begin = {ActionKind.MOVE: self._move, ActionKind.EXPIRE: self._expire}.get(action.kind, self._reshard)
        return begin(action, bundle, also)

    def _move(self, action: Action, bundle: BundleSettings, also: Also) -> Migration:
        # The copies of a reference table are already streamed.
        streamed = self._directory.snapshot().table(action.table).everywhere
        return begin_move(
            self._directory,
            self._leadership,
            action.tablets[0],
            action.target,
            mode=MigrationMode.REPLICATE if streamed else bundle.migration.mode.first,
            fallback=bundle.migration.mode is WantedMode.AUTO and not streamed,
            reason=action.reason,
            code=action.code,
            then=action.then,
            warm=bundle.options.table(action.table).in_memory_mode is not InMemoryMode.NONE,
            also=also,
            clock=self._clock,
        )

    def _expire(self, action: Action, bundle: BundleSettings, also: Also) -> Migration:
        wished = bundle.options.table(action.table)
        return begin_expiry(
            self._directory,
            self._leadership,
            action.tablets,
            expire_after=wished.expire_after,
            unit=wished.key_unit,
            reason=action.reason,
            code=action.code,
            also=also,
            clock=self._clock,
        )

    def _reshard(self, action: Action, bundle: BundleSettings, also: Also) -> Migration:
        snapshot = self._directory.snapshot()
        tablets = [snapshot.tablet(tablet) for tablet in action.tablets]
        parts = action.parts or self._chosen(snapshot, tablets, action.count)
        source = tablets[0].node
        return begin_reshard(
            self._directory,
            self._leadership,
            action.tablets,
            bounds_of(parts, tablets),
            mode=bundle.migration.mode.first,
            fallback=bundle.migration.mode is WantedMode.AUTO,
            reason=action.reason,
            code=action.code,
            then=["" if part.node == source else part.node for part in parts],
            also=also,
            clock=self._clock,
        )

    def _chosen(self, snapshot: Snapshot, tablets: Sequence[Tablet], count: int) -> tuple[Part, ...]:
        """Parts of about the same size, as the node's own statistics see it."""
        first = tablets[0].bounds
        if isinstance(first, Leaf):
            raise Refused(f"tablet {tablets[0].id} is a vbucket: its parts must be named")
        if count == 1:
            return (Part(lower=first.lower),)
        keys = self._split_keys(snapshot, tablets, count)
        return (Part(lower=first.lower), *(Part(lower=key) for key in keys))


def bounds_of(parts: Sequence[Part], tablets: Sequence[Tablet]) -> list[Bounds]:
    """What the parts cover; the last range ends where the last tablet does."""
    if parts[0].leaf is not None:
        return [part.leaf for part in parts if part.leaf is not None]
    last = tablets[-1].bounds
    assert isinstance(last, RangeBounds), "parts without leaves are ranges"
    lowers = [part.lower for part in parts]
    return [RangeBounds(lower, upper) for lower, upper in zip(lowers, [*lowers[1:], last.upper], strict=True)]
