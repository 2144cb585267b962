"""Which sets of records are lawful. Every commit is checked before it is sent; `violations` checks a whole directory.

A commit's check looks only at what the commit touches and at what that refers to, so its cost does not depend on the
size of the directory: the tablets that a commit removes and the tablets that it puts must cover the same positions, and
then the rest of the table still covers the rest. Nothing here does I/O.

What each single record must be, and what it may refer to. `invariants` applies this to commits and directories.

`find` looks a record up in the state after the commit. `standing` records are already in the directory: what is
required only of a new one (its migration's tablets exist, its pin's tablet exists) is not required of them, because a
split removes tablets while the records that name them remain.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from balancer.directory import handover_record
from balancer.directory.model import (
    Change,
    Counter,
    Migration,
    Node,
    Pause,
    Pin,
    Plan,
    Put,
    Record,
    RecordKind,
    Remove,
    Table,
    Tablet,
)
from balancer.directory.snapshot import Snapshot, typed_key
from balancer.directory.store.delta import key_of, tablets_of
from balancer.directory.store.pages import end_of, start_of, whole
from balancer.errors import Conflict, Refused
from balancer.policies.keyspace.hash_leaves import Leaf, check_leaf

Interval = tuple[Any, Any]


def check(snapshot: Snapshot, changes: Sequence[Change]) -> None:
    """Raises `Refused` if these changes would break an invariant, `Conflict` if they remove what does not exist."""
    for fault in _faults(Overlay(snapshot, changes), changes):
        raise Refused(f"the commit would break the directory: {fault}")


def faults_of(records: Sequence[Record]) -> Iterator[str]:
    """What is wrong with these records as a whole directory, before they are put into pages (which have no gaps)."""
    changes = tuple(map(Put, records))
    return _faults(Overlay(Snapshot(), changes), changes, standing=True)


class Overlay:
    """The snapshot with the changes over it, as far as the checks ask; nothing is copied."""

    def __init__(self, snapshot: Snapshot, changes: Sequence[Change]) -> None:
        self.before = snapshot
        self._found: dict[tuple[RecordKind, str], Any] = {}
        self.changed: dict[tuple[RecordKind, str], Any] = {}
        for change in changes:
            key = key_of(change)
            if key in self.changed:
                raise Refused(f"the commit changes {key[0]} {key[1]!r} twice")
            if isinstance(change, Remove) and self.find_before(*key) is None:
                raise Conflict(f"{key[0]} {key[1]!r} cannot be removed: it is not there any more")
            self.changed[key] = change.record if isinstance(change, Put) else None

    def find(self, kind: RecordKind, key: object) -> Any:
        """The record after the changes, or None."""
        text = str(key)
        if (kind, text) in self.changed:
            return self.changed[kind, text]
        return self.find_before(kind, text)

    def find_before(self, kind: RecordKind, key: str) -> Any:
        """The record before the changes, or None; cached, since every check asks and each look would make a tablet."""
        if (kind, key) not in self._found:
            self._found[kind, key] = self.before.find(kind, key)
        return self._found[kind, key]

    def every(self, kind: RecordKind) -> Iterator[Any]:
        """The records of a kind, other than tablets, after the changes."""
        for key, record in self.before.of(kind).items():
            if (kind, str(key)) not in self.changed:
                yield record
        yield from (record for (of, _), record in self.changed.items() if of is kind and record is not None)

    def touched(self, kind: RecordKind) -> bool:
        return any(of is kind for of, _ in self.changed)


def _faults(after: Overlay, changes: Sequence[Change], standing: bool = False) -> Iterator[str]:
    for change in changes:
        kind, key = key_of(change)
        if isinstance(change, Put):
            yield from record_faults(after.find_before(kind, key), change.record, after.find, standing)
        else:
            yield from _removal_faults(after, kind, key)
    yield from _coverage_faults(after)
    yield from _busy_faults(after)
    yield from _root_change_faults(after)
    yield from _name_faults(after)
    yield from handover_record.faults(after)
    if not standing:
        yield from _held_faults(after)


def _held_faults(after: Overlay) -> Iterator[str]:
    """Nothing begins in a bundle that a schema change holds: the change looks for migrations once, after taking the
    hold, and a migration that begins may have looked for the hold before that."""
    for (kind, key), migration in after.changed.items():
        if kind is not RecordKind.MIGRATION or migration is None or after.find_before(kind, key) is not None:
            continue
        pause = after.before.pauses.get(migration.bundle)
        if pause is not None and pause.reason.startswith(HELD_BY_CHANGE) and not migration.finished:
            yield f"no migration begins in bundle {migration.bundle!r}, which is held by {pause.reason}"


def _root_change_faults(after: Overlay) -> Iterator[str]:
    """A table that is given another root has no migration that would leave the root behind."""
    for (kind, key), table in after.changed.items():
        before = after.find_before(kind, key) if kind is RecordKind.TABLE else None
        if before is None or table is None or before.roots == table.roots:
            continue
        for migration in after.every(RecordKind.MIGRATION):
            if not migration.finished and migration.table == table.id:
                yield f"the roots of table {table.name!r} cannot change during migration {migration.id}"


def _removal_faults(after: Overlay, kind: RecordKind, key: str) -> Iterator[str]:
    if kind is RecordKind.BUNDLE:
        for of, word in ((RecordKind.NODE, "node"), (RecordKind.TABLE, "table")):
            for record in after.every(of):
                if record.bundle == key:
                    yield f"bundle {key!r} still has {word} {record.key!r}"
    elif kind is RecordKind.NODE:
        yield from _node_removal_faults(after, key)
    elif kind is RecordKind.TABLE:
        for migration in after.every(RecordKind.MIGRATION):
            if not migration.finished and migration.table == int(key):
                yield f"table {key} is still part of migration {migration.id}"


def _node_removal_faults(after: Overlay, node: str) -> Iterator[str]:
    for page in after.before.pages.values():
        if node in page.names:
            number = page.names.index(node)
            for row, owner in enumerate(page.node):
                tablet = after.find(RecordKind.TABLET, page.ids[row]) if owner == number else None
                if tablet is not None and tablet.node == node:
                    yield f"node {node!r} still owns tablet {tablet.id}"
                    return
    for migration in after.every(RecordKind.MIGRATION):
        if not migration.finished and node in (migration.source_node, migration.target_node):
            yield f"node {node!r} is still part of migration {migration.id}"


def _coverage_faults(after: Overlay) -> Iterator[str]:
    """For each table touched: the positions covered before and after must be the same. A tablet that stays where it is
    adds the same to both sides, so it is left out of both."""
    old: dict[int, list[Interval]] = defaultdict(list)
    new: dict[int, list[Interval]] = defaultdict(list)
    for (kind, key), record in after.changed.items():
        if kind is RecordKind.TABLET:
            before = after.find_before(kind, key)
            if before and record and (before.table, before.bounds) == (record.table, record.bounds):
                continue
            if before is not None:
                old[before.table].append((start_of(before.bounds), end_of(before.bounds)))
            if record is not None:
                new[record.table].append((start_of(record.bounds), end_of(record.bounds)))
        elif kind is RecordKind.TABLE:
            old.setdefault(int(key), [])
    for table_id in {**old, **new}:
        yield from _table_faults(after, table_id, old[table_id], new[table_id])


def _table_faults(after: Overlay, table_id: int, old: list[Interval], new: list[Interval]) -> Iterator[str]:
    table: Table | None = after.find(RecordKind.TABLE, table_id)
    before = after.find_before(RecordKind.TABLE, str(table_id))
    if table is not None and before is None:
        old = [whole(table.hashed)]
    elif table is None and before is not None and sum(map(len, after.before.pages_of(table_id))) != len(old):
        yield f"table {table_id} is removed, but some of its tablets are not"
        return
    if table is None:
        if new:
            yield f"there is no table {table_id} for tablets to belong to"
        return
    fault = _difference(_union(old), new)
    if fault:
        yield f"the tablets of table {table.name!r} {fault}"


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """Merges adjacent intervals; none of them overlap."""
    result: list[Interval] = []
    for start, end in sorted(intervals):
        if result and result[-1][1] == start:
            result[-1] = (result[-1][0], end)
        else:
            result.append((start, end))
    return result


def _difference(wanted: list[Interval], new: list[Interval]) -> str | None:
    """How intervals fail to cover the wanted positions exactly once."""
    ordered = sorted(new)
    for (_, end), (start, _) in itertools.pairwise(ordered):
        if start < end:
            return f"would overlap at {_show(start)}"
    covered = _union(ordered)
    if covered == wanted:
        return None
    for start, end in wanted:
        if not any(a <= start and end <= b for a, b in covered):
            return f"would leave a gap between {_show(start)} and {_show(end)}"
    for start, end in covered:
        if not any(a <= start and end <= b for a, b in wanted):
            return f"would overlap others between {_show(start)} and {_show(end)}"
    return None


def _show(position: Any) -> str:
    return position.hex() or "the lowest key" if isinstance(position, bytes) else f"position {position:#x}"


def _busy_faults(after: Overlay) -> Iterator[str]:
    """One unfinished migration per tablet."""
    claimed: dict[int, str] = {}
    for (kind, _), migration in after.changed.items():
        if kind is not RecordKind.MIGRATION or migration is None or migration.finished:
            continue
        for tablet_id in sorted(tablets_of(migration)):
            other = claimed.setdefault(tablet_id, migration.id)
            holder = after.before.busy.get(tablet_id)
            if other == migration.id and holder not in (None, migration.id):
                current = after.find(RecordKind.MIGRATION, holder)
                if current is not None and not current.finished and tablet_id in tablets_of(current):
                    other = holder or other
            if other != migration.id:
                yield f"tablet {tablet_id} is already part of migration {other}"


def _name_faults(after: Overlay) -> Iterator[str]:
    """Names and roots of tables are unique."""
    if not after.touched(RecordKind.TABLE):
        return
    names: set[str] = set()
    roots: set[tuple[str, str]] = set()
    for table in after.every(RecordKind.TABLE):
        if table.name in names:
            yield f"there are two tables named {table.name!r}"
        names.add(table.name)
        for root in table.roots:
            if (table.bundle, root) in roots:
                yield f"root {root!r} belongs to two tables of bundle {table.bundle!r}"
            roots.add((table.bundle, root))


def violations(snapshot: Snapshot) -> Iterator[str]:
    """Everything that is wrong with a whole directory, one sentence each."""
    find: Callable[[RecordKind, object], Any] = lambda kind, key: snapshot.find(kind, str(key))  # noqa: E731
    for kind in (kind for kind in RecordKind if kind is not RecordKind.TABLET):
        for key, record in snapshot.of(kind).items():
            if typed_key(kind, record.key) != key:
                yield f"{kind} {key!r} is stored under another key than its own"
            yield from record_faults(None, record, find, standing=True)
    overlay = Overlay(snapshot, ())
    yield from _name_faults(overlay)
    yield from _every_busy_fault(snapshot)
    seen: set[int] = set()
    for table_id in {*snapshot.tables, *snapshot.index}:
        yield from _whole_table_faults(snapshot, table_id, seen, find)


def _whole_table_faults(
    snapshot: Snapshot, table_id: int, seen: set[int], find: Callable[[RecordKind, object], Any]
) -> Iterator[str]:
    table = snapshot.tables.get(table_id)
    if table is None:
        yield f"there are tablets of table {table_id}, but no such table"
        return
    at, last = whole(table.hashed)
    for tablet in snapshot.tablets(table_id):
        start, end = start_of(tablet.bounds), end_of(tablet.bounds)
        if start != at:
            word = "overlap" if start < at else "leave a gap"  # type: ignore[operator]
            yield f"the tablets of table {table.name!r} {word} before tablet {tablet.id}"
        at = end
        if tablet.id in seen:
            yield f"tablet {tablet.id} is there twice"
        seen.add(tablet.id)
        if snapshot.find_tablet(tablet.id) != tablet:
            yield f"tablet {tablet.id} is not found by its id"
        yield from record_faults(None, tablet, find, standing=True)
    if at != last:
        yield f"the tablets of table {table.name!r} leave a gap at the end"


def _every_busy_fault(snapshot: Snapshot) -> Iterator[str]:
    claimed: dict[int, str] = {}
    for migration in snapshot.migrations.values():
        if not migration.finished:
            for tablet_id in tablets_of(migration):
                other = claimed.setdefault(tablet_id, migration.id)
                if other != migration.id:
                    yield f"tablet {tablet_id} is part of two migrations, {other} and {migration.id}"


Find = Callable[[RecordKind, object], Any]
_MAX_NAME = 200  # characters: a name is part of a znode's path
_LIMIT = 1 << 62
CLOSED_IDS = 1 << 47
"""For a counter of row ids: none are handed out, because the next one would be above all possible ids."""
HELD_BY_CHANGE = "schema change "
"""Prefix of the reason of a pause by which a schema change holds its bundle."""
IDENTITY = "cluster"
"""Name of the counter that holds the directory's identity."""
TABLET_COUNTER = "tablet"
"""Name of the counter that tablet ids come from."""


def record_faults(before: Record | None, record: Record, find: Find, standing: bool = False) -> Iterator[str]:
    """What is wrong with a record that replaces `before`, one sentence each."""
    if not _is_name(record.key):
        yield f"{record.key!r} cannot be the key of a {record.kind}: 1 to {_MAX_NAME} printable characters without '/'"
    faults = _FAULTS.get(record.kind)
    if faults is not None:
        yield from faults(before, record, find, standing)


def _is_name(key: str) -> bool:
    return 0 < len(key) <= _MAX_NAME and key.isprintable() and "/" not in key and key not in (".", "..")


def _bundle_faults(what: str, bundle: str, find: Find) -> Iterator[str]:
    if find(RecordKind.BUNDLE, bundle) is None:
        yield f"{what} names bundle {bundle!r}, which does not exist"


def _tablet_faults(before: Record | None, tablet: Tablet, find: Find, _: bool) -> Iterator[str]:
    what = f"tablet {tablet.id}"
    if not (1 <= tablet.id < _LIMIT and 1 <= tablet.epoch < _LIMIT):
        yield f"{what} has id {tablet.id} and epoch {tablet.epoch}; both begin at 1 and stay below 2 ** 62"
    table: Table | None = find(RecordKind.TABLE, tablet.table)
    node: Node | None = find(RecordKind.NODE, tablet.node)
    if table is None:
        yield f"{what} names table {tablet.table}, which does not exist"
        return
    if node is None:
        yield f"{what} names node {tablet.node!r}, which does not exist"
    elif node.bundle != table.bundle:
        yield f"{what} of bundle {table.bundle!r} cannot be on node {node.id!r} of bundle {node.bundle!r}"
    yield from _bounds_faults(what, tablet, table)
    if tablet.partitions and len(tablet.partitions) != len(table.roots):
        yield f"{what} names {len(tablet.partitions)} partitions for {len(table.roots)} roots"
    if isinstance(before, Tablet):
        yield from _succession_faults(what, before, tablet)
    else:
        counter: Counter | None = find(RecordKind.COUNTER, TABLET_COUNTER)
        if counter is not None and tablet.id >= counter.next:
            yield f"{what} has an id that the counter of ids has not given out yet (next is {counter.next})"


def _bounds_faults(what: str, tablet: Tablet, table: Table) -> Iterator[str]:
    if isinstance(tablet.bounds, Leaf) != table.hashed:
        yield f"{what} does not have the bounds of a {table.layout} table"
    elif isinstance(tablet.bounds, Leaf):
        try:
            check_leaf(*tablet.bounds)
        except ValueError as error:
            yield f"{what}: {error}"
        if table.whole and tablet.bounds != Leaf(1, 0):
            yield f"{what} is a part of table {table.name!r}, which is whole"
    elif tablet.bounds.lower >= tablet.bounds.upper:
        yield f"{what} is empty: its lower bound is not below its upper one"


def _succession_faults(what: str, before: Tablet, after: Tablet) -> Iterator[str]:
    if after.table != before.table:
        yield f"{what} cannot change from table {before.table} to table {after.table}"
    if after.epoch < before.epoch:
        yield f"{what} would go back from epoch {before.epoch} to {after.epoch}"
    if after.node != before.node and after.epoch == before.epoch:
        yield f"{what} would change its owner without a new epoch (it is {before.epoch})"


def _table_record_faults(before: Record | None, table: Table, find: Find, _: bool) -> Iterator[str]:
    what = f"table {table.name!r}"
    yield from _bundle_faults(what, table.bundle, find)
    if table.id < 1:
        yield f"{what} has id {table.id}; ids begin at 1"
    if not (table.columns or table.everywhere) or not table.roots:
        yield f"{what} needs at least one key column and one root"
    if table.whole and len(table.columns) != (0 if table.everywhere else len(table.roots)):
        yield f"{what} is whole and names {len(table.columns)} columns for {len(table.roots)} roots"
    if len(set(table.roots)) != len(table.roots):
        yield f"{what} names a root twice"
    if isinstance(before, Table) and (before.layout, before.columns, before.bundle) != (
        table.layout,
        table.columns,
        table.bundle,
    ):
        yield f"{what} cannot change its layout, its key or its bundle"


def _migration_faults(before: Record | None, migration: Migration, find: Find, standing: bool) -> Iterator[str]:
    what = f"migration {migration.id}"
    if migration.finished:
        return
    if find(RecordKind.TABLE, migration.table) is None:
        yield f"{what} names table {migration.table}, which does not exist"
    for node in sorted({migration.source_node, migration.target_node}):
        if find(RecordKind.NODE, node) is None:
            yield f"{what} names node {node!r}, which does not exist"
    if isinstance(before, Migration):
        if before.finished:
            yield f"{what} is finished and cannot go on"
        if (before.operation, before.sources) != (migration.operation, migration.sources):
            yield f"{what} cannot change its operation or its sources"
    elif not standing:
        for tablet_id in migration.sources:
            if find(RecordKind.TABLET, tablet_id) is None:
                yield f"{what} names tablet {tablet_id}, which does not exist"
        yield from _root_faults(what, migration, find)


def _root_faults(what: str, migration: Migration, find: Find) -> Iterator[str]:
    """A migration planned before the table was given another root would leave that root behind."""
    table: Table | None = find(RecordKind.TABLE, migration.table)
    for target in migration.targets:
        if table is not None and target.partitions and len(target.partitions) != len(table.roots):
            yield f"{what} would carry {len(target.partitions)} of the {len(table.roots)} roots of table {table.name!r}"


def _node_faults(_: Record | None, node: Node, find: Find, _standing: bool) -> Iterator[str]:
    yield from _bundle_faults(f"node {node.id!r}", node.bundle, find)
    if not (isfinite(node.weight) and node.weight > 0):
        yield f"node {node.id!r} has weight {node.weight}; it must be above 0"


def _counter_faults(before: Record | None, counter: Counter, _: Find, _standing: bool) -> Iterator[str]:
    # Closed ids are reopened where a hand-over is undone, or in the directory that takes; an identity is not a count.
    if counter.name == IDENTITY:
        return
    if isinstance(before, Counter) and counter.next < before.next != CLOSED_IDS:
        yield f"counter {counter.name!r} would go back from {before.next} to {counter.next}"


def _plan_faults(_: Record | None, plan: Plan, find: Find, _standing: bool) -> Iterator[str]:
    yield from _bundle_faults(f"plan {plan.id!r}", plan.bundle, find)


def _pause_faults(_: Record | None, pause: Pause, find: Find, _standing: bool) -> Iterator[str]:
    yield from _bundle_faults("a pause", pause.bundle, find)


def _pin_faults(before: Record | None, pin: Pin, find: Find, standing: bool) -> Iterator[str]:
    if not standing and before is None and find(RecordKind.TABLET, pin.tablet) is None:
        yield f"there is no tablet {pin.tablet} to pin"


_FAULTS: Mapping[RecordKind, Any] = {
    RecordKind.NODE: _node_faults,
    RecordKind.TABLE: _table_record_faults,
    RecordKind.TABLET: _tablet_faults,
    RecordKind.MIGRATION: _migration_faults,
    RecordKind.PLAN: _plan_faults,
    RecordKind.PIN: _pin_faults,
    RecordKind.PAUSE: _pause_faults,
    RecordKind.COUNTER: _counter_faults,
}
"""Bundles and commands refer to nothing."""
