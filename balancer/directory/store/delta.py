"""Applies a commit's changes to a snapshot: the one way in which a new snapshot is made from an old one.

A committer lets this module decide how pages are split and merged (`Repage`); the decision is stored with the
commit, and everybody who follows applies the same one. So all views of one version have the same pages, whatever
version of this software they run. Lawfulness is not checked here: see `invariants`. Nothing here does I/O.

Records of one kind, some of which are decoded when somebody looks at them. `codec` makes them.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Any

from balancer.directory.model import Change, Migration, Put, Record, RecordKind, Tablet
from balancer.directory.snapshot import Snapshot, TableIndex, typed_key
from balancer.directory.store.pages import Draft, Page, cut, edited, joined, page_of, start_of
from balancer.policies.keyspace.hash_leaves import Leaf

MAX_ROWS = 1000
TARGET_ROWS = 500
MIN_ROWS = 200
MAX_WEIGHT = 128 * 1024
"""Bytes of keys and names in a page: a commit of three tablets rewrites three pages within one request."""


@dataclass(frozen=True, slots=True)
class Repage:
    """The rows of adjacent old pages, in order, redistributed to new ones. No old ones: a new table's first tablets."""

    table: int
    old: tuple[int, ...]
    new: tuple[tuple[int, int], ...]  # page number, rows

    def touched(self) -> set[int]:
        return {*self.old, *(number for number, _ in self.new)}


@dataclass(frozen=True, slots=True)
class Applied:
    """The next snapshot, and what has to be written to get there."""

    snapshot: Snapshot
    written: frozenset[int]  # pages made or changed
    dropped: frozenset[int]  # pages that no longer exist
    repages: tuple[Repage, ...]


def apply(snapshot: Snapshot, changes: Sequence[Change], version: int, repages: Sequence[Repage] | None) -> Applied:
    """The snapshot after these lawful changes. `repages` None: decide on page splits and merges here."""
    records, busy = _apply_records(snapshot, changes)
    build = _Build(snapshot, version)
    build.edit(changes)
    if repages is None:
        build.balance()
    else:
        for repage in repages:
            build.repage(repage)
    written = frozenset(number for number in build.touched if number in build.pages)
    after = replace(
        snapshot,
        version=version,
        records=records,
        busy=busy,
        pages=build.pages.finished(),
        index=build.index(),
        ids=snapshot.ids.changed(build.moves),
        next_page=build.next_page,
    )
    dropped = frozenset(number for number in build.touched if number not in build.pages and number in snapshot.pages)
    return Applied(after, written, dropped, tuple(build.repages))


def tablets_of(migration: Migration) -> set[int]:
    """The tablets that a migration concerns, before and after it."""
    return {*migration.sources, *(tablet.id for tablet in migration.targets)}


def _apply_records(snapshot: Snapshot, changes: Iterable[Change]) -> tuple[Any, Any]:
    records: dict[RecordKind, Any] = dict(snapshot.records)
    own: set[RecordKind] = set()
    busy: Any = snapshot.busy
    for change in changes:
        kind, key = key_of(change)
        if kind is RecordKind.TABLET:
            continue
        if kind not in own:
            own.add(kind)
            records[kind] = copied(records.get(kind, {}))
        if kind is RecordKind.MIGRATION:
            busy = _apply_busy(busy, records[kind].get(key), change)
        if isinstance(change, Put):
            records[kind][typed_key(kind, key)] = change.record
        else:
            records[kind].pop(typed_key(kind, key), None)
    return records, busy


def _apply_busy(held: Mapping[int, str], before: Migration | None, change: Change) -> dict[int, str]:
    busy = dict(held)
    if before is not None:
        for tablet_id in tablets_of(before):
            if busy.get(tablet_id) == before.id:
                del busy[tablet_id]
    after: Record | None = change.record if isinstance(change, Put) else None
    if isinstance(after, Migration) and not after.finished:
        busy.update(dict.fromkeys(tablets_of(after), after.id))
    return busy


def key_of(change: Change) -> tuple[RecordKind, str]:
    """What a change is about."""
    return (change.record.kind, change.record.key) if isinstance(change, Put) else (change.kind, change.key)


class _Build:
    """The pages of the next snapshot under construction."""

    def __init__(self, snapshot: Snapshot, version: int) -> None:
        self.before = snapshot
        self.version = version
        self.pages: Draft[Page] = Draft(snapshot.pages)
        self.numbers: dict[int, list[int]] = {}  # of the tables touched, in key order
        self.touched: dict[int, int] = {}  # page → table, in the order in which they were touched
        self.moves: list[tuple[int, int | None]] = []
        self.repages: list[Repage] = []
        self.next_page = snapshot.next_page
        self.homeless: dict[int, list[Tablet]] = defaultdict(list)

    def edit(self, changes: Iterable[Change]) -> None:
        """Changes rows in the pages where they are; a page may come out too large, too small or empty."""
        removed: dict[int, list[int]] = defaultdict(list)
        added: dict[int, list[Tablet]] = defaultdict(list)
        for change in changes:
            kind, key = key_of(change)
            if kind is not RecordKind.TABLET:
                continue
            number = self.before.ids.get(int(key))
            if number is not None:
                removed[number].append(int(key))
                self.moves.append((int(key), None))
            if isinstance(change, Put) and isinstance(change.record, Tablet):
                self._place(change.record, added)
        for number in {**removed, **added}:
            page = self.pages[number]
            self._set(number, edited(page, self.version, removed[number], added[number]))
            self.moves.extend((tablet.id, number) for tablet in added[number])

    def balance(self) -> None:
        """Splits the pages that have grown too large, merges those that have become too small."""
        for table, tablets in sorted(self.homeless.items()):
            self.repage(Repage(table, (), deal(tablets, self.next_page)))
        for number, table in list(self.touched.items()):
            page = self.pages.get(number)
            if page is not None:
                self._balance_page(table, number, page)

    def repage(self, repage: Repage) -> None:
        """Redistributes rows."""
        if repage.old:
            whole = joined([self.pages[number] for number in repage.old], self.version)
        else:
            tablets = sorted(self.homeless[repage.table], key=lambda tablet: start_of(tablet.bounds))
            whole = page_of(repage.table, isinstance(tablets[0].bounds, Leaf), self.version, tablets)
        numbers = self._numbers(repage.table)
        at = numbers.index(repage.old[0]) if repage.old else 0
        numbers[at : at + len(repage.old)] = [number for number, _ in repage.new]
        for number in repage.old:
            del self.pages[number]
            self.touched[number] = repage.table
        first = 0
        for number, rows in repage.new:
            self._set(number, cut(whole, first, first + rows, self.version))
            self.moves.extend((tablet_id, number) for tablet_id in self.pages[number].ids)
            self.next_page = max(self.next_page, number + 1)
            first += rows
        self.repages.append(repage)

    def index(self) -> dict[int, TableIndex]:
        """The index of every table; those of untouched tables are shared."""
        index = dict(self.before.index)
        moved = {table for number, table in self.touched.items() if self._moved(number)}
        for table in moved:
            numbers = self._numbers(table)
            if numbers:
                index[table] = TableIndex(tuple(numbers), [self.pages[number].start for number in numbers])
            else:
                index.pop(table, None)
        return index

    def _moved(self, number: int) -> bool:
        """Whether a page has appeared, disappeared, or begins elsewhere than before."""
        before, after = self.before.pages.get(number), self.pages.get(number)
        return before is None or after is None or before.start != after.start

    def _place(self, tablet: Tablet, added: dict[int, list[Tablet]]) -> None:
        index = self.before.index.get(tablet.table)
        if index is None:
            self.homeless[tablet.table].append(tablet)
        else:
            added[index.page_at(start_of(tablet.bounds))].append(tablet)

    def _set(self, number: int, page: Page) -> None:
        self.pages[number] = page
        self.touched[number] = page.table

    def _numbers(self, table: int) -> list[int]:
        if table not in self.numbers:
            index = self.before.index.get(table)
            self.numbers[table] = list(index.numbers) if index else []
        return self.numbers[table]

    def _balance_page(self, table: int, number: int, page: Page) -> None:
        if not len(page):
            self.repage(Repage(table, (number,), ()))
        elif len(page) > MAX_ROWS or (page.weight() > MAX_WEIGHT and len(page) > 1):
            shares = _shares(len(page), page.weight())
            numbers = [number, *range(self.next_page, self.next_page + len(shares) - 1)]
            self.repage(Repage(table, (number,), tuple(zip(numbers, shares, strict=True))))
        elif len(page) < MIN_ROWS:
            pair = self._pair(table, number)
            if pair is not None:
                rows = sum(len(self.pages[one]) for one in pair)
                self.repage(Repage(table, pair, ((pair[0], rows),)))

    def _pair(self, table: int, number: int) -> tuple[int, int] | None:
        """The page and the smaller of its neighbours, in key order, if both fit into one."""
        numbers = self._numbers(table)
        at = numbers.index(number)
        pairs = [(numbers[i], numbers[i + 1]) for i in (at - 1, at) if i >= 0 and i + 1 < len(numbers)]
        fitting = [
            (len(self.pages[left]) + len(self.pages[right]), (left, right))
            for left, right in pairs
            if len(self.pages[left]) + len(self.pages[right]) <= TARGET_ROWS
            and self.pages[left].weight() + self.pages[right].weight() <= MAX_WEIGHT // 2
        ]
        return min(fitting)[1] if fitting else None


def deal(tablets: Sequence[Tablet], first: int) -> tuple[tuple[int, int], ...]:
    """Pages for a table's first tablets: numbers from `first` up, with equal shares of the rows."""
    weight = sum(
        (0 if isinstance(tablet.bounds, Leaf) else len(tablet.bounds.lower)) + sum(map(len, tablet.partitions))
        for tablet in tablets
    )
    shares = _shares(len(tablets), weight)
    return tuple(zip(range(first, first + len(shares)), shares, strict=True))


def _shares(rows: int, weight: int) -> list[int]:
    parts = min(rows, max(ceil(rows / TARGET_ROWS), ceil(2 * weight / MAX_WEIGHT), 1))
    ends = [rows * part // parts for part in range(parts + 1)]
    return [end - start for start, end in pairwise(ends)]


class LazyRecords(MutableMapping[Any, Any]):
    """Records of one kind by key, some of them still as stored. Two threads that decode one get the same."""

    def __init__(self, read: Callable[[str, bytes], Any], held: dict[Any, Any]) -> None:
        self._read = read
        self._held = held

    def __getitem__(self, key: Any) -> Any:
        found = self._held[key]
        if isinstance(found, bytes):
            found = self._held[key] = self._read(key, found)
        return found

    def __setitem__(self, key: Any, record: Any) -> None:
        self._held[key] = record

    def __delitem__(self, key: Any) -> None:
        del self._held[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: object) -> bool:
        return key in self._held

    def copy(self) -> "LazyRecords":
        """A second mapping of the same records; what is not decoded stays so."""
        return LazyRecords(self._read, dict(self._held))


def copied(records: Mapping[Any, Any]) -> MutableMapping[Any, Any]:
    """A mapping of the same records that may be changed."""
    return records.copy() if isinstance(records, LazyRecords) else dict(records)
