"""Moves that migrations asked for: the parts of a split for heat, the second half of an exchange, the rest of a chain.

The policy that proposed the migration said what follows it; the record remembers that, so that a restart or another
leader does not forget it. Each wish is tried once: the directory has what became of it, and from then on the tablet is
up to the policies again. `policies.promises` decides what is started and what has to wait. Pure.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from balancer.directory.model import Migration, MigrationKind, NodeState, Pin, Tablet, TabletState
from balancer.directory.snapshot import Snapshot
from balancer.policies.bundle_view import Action, ActionKind

CODE = "follow-up"
PATIENCE = 3600.0  # seconds after which the load has changed so much that the wish is meaningless


def follow_ups(snapshot: Snapshot, bundle: str, now: float) -> Iterator[Action]:
    """The moves that are owed now, oldest first: what asked for them is done.

    Parts of a split may go at the same time; what follows a move goes one after the other.
    """
    records = [record for record in snapshot.migrations.values() if record.bundle == bundle]
    wishes = [record for record in records if record.state == "done" and now - record.updated < PATIENCE]
    for record in sorted(wishes, key=lambda record: record.updated):
        wanted = _wanted(record)
        if record.operation is MigrationKind.MOVE:
            yield from _next_of_chain(snapshot, records, record, wanted, now)
            continue
        for number, node in wanted:
            tablet = _free(snapshot, records, record, (number, node), now)
            if tablet is not None:
                reason = f"the split {record.id} made it for {node}: {record.reason}"
                yield _move(snapshot, tablet, node, reason=reason, code=CODE)


def promised(
    snapshot: Snapshot, bundle: str, owed: Iterable[Action] = (), started: Collection[int] = ()
) -> list[tuple[int, str]]:
    """Tablets and where they will go: once a running move is done, and what is owed except what is `started`."""
    records = [record for record in snapshot.migrations.values() if record.bundle == bundle and not record.finished]
    moves = [record for record in records if record.operation is MigrationKind.MOVE]
    pairs = [pair for record in sorted(moves, key=lambda record: record.created) for pair in _wanted(record)]
    for action in owed:
        pairs += [] if action.tablets[0] in started else [(action.tablets[0], action.target)]
        pairs += action.then
    return pairs


def _next_of_chain(
    snapshot: Snapshot, records: Sequence[Migration], record: Migration, wanted: list[tuple[int, str]], now: float
) -> Iterator[Action]:
    if not wanted:
        return
    number, node = wanted[0]
    tablet = _free(snapshot, records, record, (number, node), now)
    if tablet is not None:
        reason = f"it belongs to the move of tablet {record.sources[0]}, which is done: {record.reason}"
        code = str(record.detail.get("code", CODE))
        yield _move(snapshot, tablet, node, reason=reason, code=code, then=tuple(wanted[1:]))


def _wanted(record: Migration) -> list[tuple[int, str]]:
    return [(int(number), str(node)) for number, node in record.detail.get("then", ())]


def _free(
    snapshot: Snapshot, records: Sequence[Migration], wish: Migration, wanted: tuple[int, str], now: float
) -> Tablet | None:
    """The tablet, if it may go to the node and has not been tried since the wish."""
    number, node = wanted
    tablet = snapshot.find_tablet(number)
    if tablet is None or not _may_go(snapshot, tablet, node, now):
        return None
    tried = any(number in record.sources and record.created >= wish.created for record in records if record != wish)
    return None if tried else tablet


def _move(
    snapshot: Snapshot, tablet: Tablet, node: str, *, reason: str, code: str, then: tuple[tuple[int, str], ...] = ()
) -> Action:
    table = snapshot.tables[tablet.table].name
    return Action(ActionKind.MOVE, table, (tablet.id,), reason, code, tablet.node, node, then=then)


def _may_go(snapshot: Snapshot, tablet: Tablet, node: str, now: float) -> bool:
    target = snapshot.nodes.get(node)
    if tablet.node == node or snapshot.migration_of(tablet.id) or target is None:
        return False
    left_alone = tablet.state is TabletState.QUARANTINED or _holds(snapshot.pins.get(tablet.id), now)
    return target.state is NodeState.ACTIVE and not left_alone


def _holds(pin: Pin | None, now: float) -> bool:
    return pin is not None and (pin.until is None or pin.until > now)
