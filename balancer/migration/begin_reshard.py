"""The entry points of splits and merges: n tablets of one node become m others there, covering the same keys.

Called by the planner and the command line, like `begin.begin_move`. The new tablets' ids are assigned here, with the
journal's first entry.
"""

import itertools
from collections.abc import Sequence

from balancer.clock import Clock, SystemClock
from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import (
    Bounds,
    Counter,
    Migration,
    MigrationKind,
    MigrationMode,
    Put,
    RangeBounds,
    Tablet,
    Transaction,
)
from balancer.directory.record_rules import TABLET_COUNTER
from balancer.directory.snapshot import Snapshot
from balancer.errors import Refused
from balancer.migration.begin import Also, check_free, new_id, nothing_else
from balancer.migration.journal import AUTHOR
from balancer.migration.machine import State
from balancer.migration.record import Detail, pack_tablet


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
        detail=Detail(
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
