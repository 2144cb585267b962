"""Which sets of records are lawful. Every commit is checked before it is sent; `violations` checks a whole directory.

A commit's check looks only at what the commit touches and at what that refers to, so its cost does not depend on the
size of the directory: the tablets that a commit removes and the tablets that it puts must cover the same positions, and
then the rest of the table still covers the rest. Nothing here does I/O.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from balancer.directory import handover_record
from balancer.directory.delta import key_of, tablets_of
from balancer.directory.model import Change, Put, Record, RecordKind, Remove, Table
from balancer.directory.pages import end_of, start_of, whole
from balancer.directory.record_rules import HELD_BY_CHANGE, record_faults
from balancer.directory.snapshot import Snapshot, typed_key
from balancer.errors import Conflict, Refused

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
