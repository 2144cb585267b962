"""The entry point of an expiry: the lowest tablets of a table, all expired, become one empty tablet that takes no rows.

Called like `begin_reshard`. What the clock and the bounds say is judged here for the first time; the steps judge it
again on the nodes, under their locks and by their clocks.
"""

from collections.abc import Sequence
from itertools import pairwise

from balancer.clock import Clock, SystemClock
from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import (
    EXPIRY,
    Counter,
    Migration,
    MigrationKind,
    MigrationMode,
    Put,
    RangeBounds,
    Tablet,
    TabletState,
    Transaction,
)
from balancer.directory.record_rules import TABLET_COUNTER
from balancer.directory.snapshot import Snapshot
from balancer.errors import Refused
from balancer.migration.begin import Also, check_free, new_id, nothing_else
from balancer.migration.journal import AUTHOR
from balancer.migration.machine import State
from balancer.migration.record import Detail, pack_tablet
from balancer.policies.figures import duration_text
from balancer.policies.keys import HIGHEST, LOWEST
from balancer.policies.periods import end_of_bound, in_words, is_time


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
        detail=Detail(
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
