"""What is remembered about tablets from tick to tick: lasting heat, the highest rate in five minutes, past migrations.

The tick writes it and hands it to the policies as `TabletHistory`. Heat is forgotten with the process, which only means
that it must be confirmed again; what must not be forgotten (failures, times of migrations) is read from the directory.

How far the balancing of a bundle has come: begun at the start threshold, and not yet at the stop threshold.

A note in the directory, by bundle, so that a restart or another leader continues where moves have begun. Only the
leader writes it, when it changes; everybody else, and a leader at its first tick, reads it. A lost note only means that
moves start again at the start threshold.

Moves that migrations asked for: the parts of a split for heat, the second half of an exchange, the rest of a chain.

The policy that proposed the migration said what follows it; the record remembers that, so that a restart or another
leader does not forget it. Each wish is tried once: the directory has what became of it, and from then on the tablet is
up to the policies again. `policies.budgets` decides what is started and what has to wait. Pure.
"""

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Final

import numpy as np

from balancer.directory.contract import Directory
from balancer.directory.model import Json, Migration, MigrationKind, NodeState, Pin, Tablet, TabletState
from balancer.directory.snapshot import Snapshot
from balancer.policies.budgets import BalancingCredit
from balancer.policies.options import BundleOptions
from balancer.policies.plan.wanted import overloaded_since
from balancer.policies.view import Action, ActionKind, BundleView, Floats, Ints, TabletHistory

MINUTES = 5
FAILED = "failed"
DONE = "done"
FORGIVEN = "forgiven"
"""In the detail of a failed migration: an operator has released its tablets, and it no longer counts."""
HEAT = "heat-"  # how the codes of actions for heat begin


class Memory:
    """One per bundle; belongs to its tick."""

    def __init__(self) -> None:
        self._hot: dict[int, int] = {}
        self._minutes: deque[Minute] = deque()
        self._overloaded: dict[str, float] = {}

    def note_nodes(self, view: BundleView, options: BundleOptions) -> Mapping[str, float]:
        """Nodes that are overloaded, and since when."""
        self._overloaded = overloaded_since(view, options, self._overloaded)
        return self._overloaded

    def note_rates(self, view: BundleView) -> None:
        """Remembers the rates of this tick, and forgets what is older than five minutes."""
        ids, rates = by_id(view)
        minute = int(view.now // 60)
        if self._minutes and self._minutes[-1].number == minute:
            rates = np.maximum(rates, self._minutes.pop().rates_of(ids))
        self._minutes.append(Minute(minute, ids, rates))
        while self._minutes[0].number < minute - MINUTES:
            self._minutes.popleft()

    def note_heat(self, hot: Iterable[int]) -> None:
        """These tablets are over a heat threshold in this poll; the others' counts start from zero."""
        self._hot = {tablet: self._hot.get(tablet, 0) + 1 for tablet in hot}

    def history(self, view: BundleView, migrations: Iterable[Migration], warm: float) -> Mapping[int, TabletHistory]:
        """What the policies are told, by tablet; only for those migrated, hot, or once warmer than `warm`."""
        found = past(migrations)
        for tablet, polls in self._hot.items():
            found[tablet] = replace(found.get(tablet, TabletHistory()), hot_polls=polls)
        for tablet, greatest in self._greatest(view, warm).items():
            found[tablet] = replace(found.get(tablet, TabletHistory()), max_rate_5m=greatest)
        if not self._minutes or self._minutes[0].number > int(view.now // 60) - MINUTES:
            # Not watched for long enough: what was split for heat must not be merged after a moment's calm.
            for tablet, history in found.items():
                if history.split_for_heat_at is not None:
                    found[tablet] = replace(history, max_rate_5m=math.inf)
        return found

    def _greatest(self, view: BundleView, warm: float) -> dict[int, float]:
        ids, rates = by_id(view)
        for minute in self._minutes:
            rates = np.maximum(rates, minute.rates_of(ids))
        rows = np.flatnonzero(rates >= warm)
        return dict(zip(ids[rows].tolist(), rates[rows].tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Minute:
    """The highest rates of one minute."""

    number: int  # minutes since 1970
    ids: Ints  # increasing
    rates: Floats

    def rates_of(self, ids: Ints) -> Floats:
        """The rates of these tablets (ids increasing); 0 for those it did not see."""
        if ids is self.ids or np.array_equal(ids, self.ids):
            return self.rates
        if not len(self.ids):
            return np.zeros(len(ids))
        places = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[places] == ids, self.rates[places], 0.0)


def by_id(view: BundleView) -> tuple[Ints, Floats]:
    """All tablets' ids, increasing, and the rows that each reads and writes per second."""
    ids, rates = view.tablets.ids, view.tablets.read_rate + view.tablets.write_rate
    if bool((ids[1:] > ids[:-1]).all()):
        return ids, rates  # as they were made, one after the other: nothing is copied
    order = np.argsort(ids, kind="stable")
    return ids[order], rates[order]


def failures_of(migrations: Iterable[Migration], tablet: int) -> list[Migration]:
    """The migrations of a tablet that failed in a row, up to now; what `past` counts."""
    failed: list[Migration] = []
    for migration in sorted(migrations, key=lambda migration: migration.updated):
        if migration.state == DONE and any(target.id == tablet for target in migration.targets):
            failed = []
        elif migration.state == FAILED and tablet in migration.sources and not migration.detail.get(FORGIVEN):
            failed.append(migration)
    return failed


def past(migrations: Iterable[Migration]) -> dict[int, TabletHistory]:
    """What finished migrations say about tablets: when they were last migrated, how often that failed in a row."""
    found: dict[int, TabletHistory] = {}
    for migration in sorted(migrations, key=lambda migration: migration.updated):
        if not migration.finished:
            continue
        if migration.state == FAILED and not migration.detail.get(FORGIVEN):
            for tablet in migration.sources:
                before = found.get(tablet, TabletHistory())
                found[tablet] = replace(before, failures=before.failures + 1, last_failed=migration.updated)
        elif migration.state == DONE:
            code = str(migration.detail.get("code", ""))
            heat = migration.operation is MigrationKind.SPLIT and code.startswith(HEAT)
            for target in migration.targets:
                before = found.get(target.id, TabletHistory())
                split = migration.updated if heat else before.split_for_heat_at
                found[target.id] = replace(
                    before,
                    last_migrated=migration.updated,
                    failures=0,
                    last_failed=None,
                    split_for_heat_at=split,
                    split_of=_split_of(migration) or before.split_of,
                )
    return found


def _split_of(migration: Migration) -> float | None:
    """The bytes of the tablet that a finished migration has split; None: it was no split, or nobody knows."""
    size = migration.detail.get("size")
    if migration.operation is not MigrationKind.SPLIT or not isinstance(size, int | float):
        return None
    return float(size) if size > 0 else None


TOPIC: Final = "balancing"
"""The topic of the notes; their names are those of the bundles."""


class BalancingNote:
    """What one bundle's ticks know about it."""

    def __init__(self, bundle: str) -> None:
        self._bundle = bundle
        self._known = BalancingCredit()
        self._leading: object | None = None

    def read(self, directory: Directory, leading: object | None) -> BalancingCredit:
        """How it stands. `leading` is this process's leadership: while it lasts, nobody else writes."""
        if leading is None or leading is not self._leading:
            self._known = read_tail(directory.published(TOPIC).get(self._bundle))
            self._leading = leading
        return self._known

    def write(self, directory: Directory, tail: BalancingCredit) -> None:
        """Leaves the note if something has changed; retried at the next tick if that fails."""
        if tail != self._known:
            directory.publish(TOPIC, self._bundle, tail_note(tail))
            self._known = tail


def tail_note(tail: BalancingCredit) -> dict[str, Json]:
    """{"bytes": what the end of it may copy, "nodes": those over the start threshold}."""
    return {"bytes": tail.bytes, "nodes": sorted(tail.nodes)}


def read_tail(note: Json) -> BalancingCredit:
    """The inverse. Anybody may leave a note: something that is not one means that nothing has begun."""
    try:
        left, nodes = float(note["bytes"]), frozenset(map(str, note["nodes"]))
    except (KeyError, TypeError, ValueError):
        return BalancingCredit()
    return BalancingCredit(left, nodes) if isfinite(left) and left >= 0 else BalancingCredit()


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
