"""Pages: the tablets of one table between two positions, in columns. A page never changes; an edit makes a new one.

A position is what tablets are ordered by: the encoded key for range tables, the 64-bit position of `hash_leaves` for
hash tables. `snapshot` reads pages, `delta` makes new ones, `page_codec` stores them. Nobody else looks inside: the
arrays are mutable, and must not be changed.

Which page a tablet is in, by its id: four bytes for each id, copied by the block when something changes.

Ids come from a counter, so blocks of consecutive ids are dense; a dictionary would cost more than the tablets do.
Used by `snapshot` and `delta` only.

The pages of a snapshot by their numbers, in blocks that successive snapshots share.

Every commit would copy a plain dictionary, and just visiting two thousand pages to copy them takes longer than
everything else that a commit of one tablet computes. `snapshot` reads it, `delta` makes the next one.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from sys import intern
from typing import Any, Generic, TypeVar, cast

from balancer.directory.model import Bounds, RangeBounds, Tablet, TabletState
from balancer.policies.keyspace.hash_leaves import POSITIONS, Leaf, reverse_bits
from balancer.policies.keyspace.keys import HIGHEST, LOWEST

Position = int | bytes

STATES = (TabletState.OWNED, TabletState.QUARANTINED, TabletState.EXPIRED)
"""The states by the number that is stored: append only."""

_STATE_NUMBERS = {state: number for number, state in enumerate(STATES)}
_SEPARATOR = "\0"  # between the names of one tablet's partitions; no PostgreSQL name contains it


def start_of(bounds: Bounds) -> Position:
    """The first position of a tablet."""
    return bounds.start() if isinstance(bounds, Leaf) else bounds.lower


def end_of(bounds: Bounds) -> Position:
    """The first position after a tablet."""
    return bounds.start() + bounds.width() if isinstance(bounds, Leaf) else bounds.upper


def find_number(column: "array[int]", number: int) -> int | None:
    """The first row with this number. Bytes are searched much faster than an array, which makes an object of every
    number that it passes; only a (rare) match across the border of two rows needs the array after all."""
    size = column.itemsize
    try:
        wanted = array(column.typecode, (number,)).tobytes()
    except OverflowError:
        return None
    at = column.tobytes().find(wanted)
    if at >= 0 and at % size:
        return column.index(number) if number in column else None
    return at // size if at >= 0 else None


def whole(hashed: bool) -> tuple[Position, Position]:
    """The positions of a whole table."""
    return (0, POSITIONS) if hashed else (LOWEST, HIGHEST)


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """Tablets without a gap between them, in key order; `version` is that of the commit that last changed it."""

    table: int
    hashed: bool
    version: int
    ids: "array[int]"
    starts: Sequence[Any]  # array of Q, or list of bytes
    end: Any  # Position
    bits: "array[int]"  # log2 of the modulus; empty for range tables
    names: tuple[str, ...]  # node ids
    node: "array[int]"  # index into names
    epochs: "array[int]"
    states: "array[int]"  # index into STATES
    partitions: tuple[str, ...]  # empty when no tablet names its partitions
    fixed: bytes = b""  # ids, bounds and partitions as `page_codec` stores them, where the page was read from a store

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Tablet]:
        return map(self.tablet, range(len(self.ids)))

    @property
    def start(self) -> Any:
        return self.starts[0]

    def holds(self, position: Any) -> bool:
        """Whether a position lies within it."""
        return bool(len(self.ids)) and bool(self.starts[0] <= position < self.end)

    def row_at(self, position: Any) -> int:
        """The row of the tablet that owns a position which this page holds."""
        return bisect_right(self.starts, position) - 1

    def row_of(self, tablet_id: int) -> int | None:
        """The row of a tablet, by its id."""
        return find_number(self.ids, tablet_id)

    def end_of_row(self, row: int) -> Any:
        """The first position after the tablet at this row."""
        return self.starts[row + 1] if row + 1 < len(self.starts) else self.end

    def bounds(self, row: int) -> Bounds:
        """The bounds of the tablet at this row."""
        start = self.starts[row]
        if self.hashed:
            return Leaf(1 << self.bits[row], reverse_bits(start))
        return RangeBounds(start, self.end_of_row(row))

    def tablet(self, row: int) -> Tablet:
        """The tablet at this row, made at each call."""
        return Tablet(
            self.ids[row],
            self.table,
            self.bounds(row),
            self.names[self.node[row]],
            self.epochs[row],
            STATES[self.states[row]],
            _split(self.partitions[row]) if self.partitions else (),
        )

    def weight(self) -> int:
        """Bytes that do not compress well: keys and names. A page is split by them too."""
        keys = 0 if self.hashed else sum(map(len, self.starts))
        return keys + sum(map(len, self.partitions))


def page_of(table: int, hashed: bool, version: int, tablets: Sequence[Tablet]) -> Page:
    """A page of tablets that follow one another without a gap."""
    rows = _Rows(table, hashed)
    rows.append(tablets)
    return rows.page(version, end_of(tablets[-1].bounds) if tablets else whole(hashed)[0])


def edited(page: Page, version: int, removed: Collection[int], added: Sequence[Tablet]) -> Page:
    """The page without the removed ids and with the added tablets; it may turn out empty."""
    if len(removed) == len(added):
        places = [(_row_of_same(page, tablet), tablet) for tablet in added]
        if all(row is not None and tablet.id in removed for row, tablet in places):
            return _replaced(page, version, cast("list[tuple[int, Tablet]]", places))
    rows = _Rows(page.table, page.hashed)
    rows.extend(page, 0, len(page))
    for tablet_id in removed:
        row = rows.ids.index(tablet_id)
        rows.delete(row)
    for tablet in added:
        rows.insert(bisect_left(rows.starts, start_of(tablet.bounds)), tablet)
    return rows.page(version, _new_end(page, rows, added))


def _row_of_same(page: Page, tablet: Tablet) -> int | None:
    """The row of this very tablet with these very bounds, or None."""
    row = page.row_at(start_of(tablet.bounds))
    return row if row >= 0 and page.ids[row] == tablet.id and page.bounds(row) == tablet.bounds else None


def _replaced(page: Page, version: int, places: Sequence[tuple[int, Tablet]]) -> Page:
    """What most commits do: tablets change owner or state and stay where they are; most columns are shared."""
    node, epochs, states = page.node[:], page.epochs[:], page.states[:]
    names, partitions, fixed = page.names, page.partitions, page.fixed
    for row, tablet in places:
        epochs[row] = tablet.epoch
        states[row] = _STATE_NUMBERS[tablet.state]
        if tablet.node != names[node[row]]:
            names = _with_owner(names, node, row, tablet.node)
        named = _SEPARATOR.join(tablet.partitions)
        if named != (partitions[row] if partitions else ""):
            before = partitions or ("",) * len(page)
            partitions, fixed = (*before[:row], named, *before[row + 1 :]), b""
    return Page(
        *(page.table, page.hashed, version, page.ids, page.starts, page.end, page.bits),
        *(names, node, epochs, states, partitions, fixed),
    )


def _with_owner(names: tuple[str, ...], node: "array[int]", row: int, owner: str) -> tuple[str, ...]:
    """Puts another owner into a row, and updates the names."""
    free = node[row]
    try:
        node[row] = names.index(owner)
    except ValueError:
        node[row] = len(names)
    else:
        return names
    if find_number(node, free) is not None:
        return (*names, intern(owner))
    node[row] = free  # no other row is on the node that it leaves: its place among the names is reused
    return (*names[:free], intern(owner), *names[free + 1 :])


def joined(pages: Sequence[Page], version: int) -> Page:
    """Adjacent pages as one."""
    rows = _Rows(pages[0].table, pages[0].hashed)
    for page in pages:
        rows.extend(page, 0, len(page))
    # The end of an emptied page says nothing: what replaced its tablets may reach beyond it.
    return rows.page(version, next((page.end for page in reversed(pages) if len(page)), pages[-1].end))


def cut(page: Page, first: int, last: int, version: int) -> Page:
    """The rows `first <= row < last` as a page of their own."""
    rows = _Rows(page.table, page.hashed)
    rows.extend(page, first, last)
    return rows.page(version, page.end_of_row(last - 1) if last > first else page.end)


def _new_end(page: Page, rows: "_Rows", added: Sequence[Tablet]) -> Position:
    """The end of the last row that is left: an added one's own, or where the old page says it ended."""
    if not rows.ids:
        return page.end  # type: ignore[no-any-return]
    last = rows.ids[-1]
    for tablet in added:
        if tablet.id == last:
            return end_of(tablet.bounds)
    row = page.row_of(last)
    assert row is not None
    return page.end_of_row(row)  # type: ignore[no-any-return]


class _Rows:
    """Columns under construction."""

    def __init__(self, table: int, hashed: bool) -> None:
        self.table = table
        self.hashed = hashed
        self.ids = array("q")
        self.starts: MutableSequence[Any] = array("Q") if hashed else []
        self.bits = array("B")
        self.names: dict[str, int] = {}
        self.node = array("H")
        self.epochs = array("Q")
        self.states = array("B")
        self.partitions: list[str] = []

    def extend(self, page: Page, first: int, last: int) -> None:
        """Appends rows of a page."""
        if page.partitions:
            self.partitions.extend([""] * (len(self.ids) - len(self.partitions)))
            self.partitions.extend(page.partitions[first:last])
        self.ids.extend(page.ids[first:last])
        self.starts.extend(page.starts[first:last])
        self.bits.extend(page.bits[first:last])
        self.epochs.extend(page.epochs[first:last])
        self.states.extend(page.states[first:last])
        if not self.names:
            self.names = {name: number for number, name in enumerate(page.names)}
            self.node.extend(page.node[first:last])
        else:
            numbers = [self.names.setdefault(name, len(self.names)) for name in page.names]
            self.node.extend(map(numbers.__getitem__, page.node[first:last]))

    def append(self, tablets: Sequence[Tablet]) -> None:
        """Appends many tablets at once, to columns that are empty."""
        self.ids.extend([tablet.id for tablet in tablets])
        self.starts.extend([start_of(tablet.bounds) for tablet in tablets])
        if self.hashed:
            self.bits.extend([cast(Leaf, tablet.bounds).modulus.bit_length() - 1 for tablet in tablets])
        for name in sorted({tablet.node for tablet in tablets}):
            self.names[intern(name)] = len(self.names)
        self.node.extend([self.names[tablet.node] for tablet in tablets])
        self.epochs.extend([tablet.epoch for tablet in tablets])
        self.states.extend([_STATE_NUMBERS[tablet.state] for tablet in tablets])
        if any(tablet.partitions for tablet in tablets):
            self.partitions = [_SEPARATOR.join(tablet.partitions) for tablet in tablets]

    def delete(self, row: int) -> None:
        for column in (self.ids, self.starts, self.node, self.epochs, self.states):
            del column[row]
        if self.hashed:
            del self.bits[row]
        if self.partitions:
            del self.partitions[row]

    def insert(self, row: int, tablet: Tablet) -> None:
        if tablet.partitions and not self.partitions:
            self.partitions = [""] * len(self.ids)
        if tablet.partitions or self.partitions:
            self.partitions.extend([""] * (len(self.ids) - len(self.partitions)))
            self.partitions.insert(row, _SEPARATOR.join(tablet.partitions))
        self.ids.insert(row, tablet.id)
        self.starts.insert(row, start_of(tablet.bounds))
        if isinstance(tablet.bounds, Leaf):
            self.bits.insert(row, tablet.bounds.modulus.bit_length() - 1)
        self.node.insert(row, self.names.setdefault(intern(tablet.node), len(self.names)))
        self.epochs.insert(row, tablet.epoch)
        self.states.insert(row, _STATE_NUMBERS[tablet.state])

    def page(self, version: int, end: Position) -> Page:
        """The finished page, with only those node names that are used."""
        names, node = self._compact()
        if self.partitions:
            self.partitions.extend([""] * (len(self.ids) - len(self.partitions)))
        partitions = tuple(self.partitions) if any(self.partitions) else ()
        return Page(
            self.table,
            self.hashed,
            version,
            self.ids,
            self.starts,
            end,
            self.bits,
            names,
            node,
            self.epochs,
            self.states,
            partitions,
        )

    def _compact(self) -> "tuple[tuple[str, ...], array[int]]":
        used = sorted(set(self.node))
        if len(used) == len(self.names):
            return tuple(self.names), self.node
        every = tuple(self.names)
        renumbered = {old: new for new, old in enumerate(used)}
        return tuple(every[number] for number in used), array("H", map(renumbered.__getitem__, self.node))


def _split(names: str) -> tuple[str, ...]:
    return tuple(names.split(_SEPARATOR)) if names else ()


_BITS = 10
_MASK = (1 << _BITS) - 1
_ABSENT = 0  # pages are numbered from 1
_SPARSE = 8  # ids per tablet, above which a flat array would waste too much
_EMPTY_BLOCK = array("I", bytes(4 << _BITS))


class IdIndex:
    """An immutable mapping of tablet id to page number."""

    __slots__ = ("_blocks",)

    BLOCK_BYTES = 4 << _BITS

    def __init__(self, blocks: "Mapping[int, array[int]] | None" = None) -> None:
        self._blocks: Mapping[int, array[int]] = blocks or {}

    def get(self, tablet_id: int) -> int | None:
        block = self._blocks.get(tablet_id >> _BITS)
        return (block[tablet_id & _MASK] or None) if block else None

    def blocks(self) -> "Mapping[int, array[int]]":
        """What it is made of, to be stored: the constructor takes it back."""
        return self._blocks

    @classmethod
    def of(cls, pages: "Mapping[int, array[int]]") -> "IdIndex":
        """The index of whole pages: number → ids. Ids are dense as a rule; then one flat array is filled and cut."""
        highest = max((max(ids) for ids in pages.values() if ids), default=0)
        if highest > _SPARSE * (sum(map(len, pages.values())) + (1 << _BITS)):
            return cls().changed((tablet_id, number) for number, ids in pages.items() for tablet_id in ids)
        flat = array("I", bytes(4 * ((highest | _MASK) + 1)))
        for number, ids in pages.items():
            for tablet_id in ids:
                flat[tablet_id] = number
        cuts = ((high, flat[high << _BITS : (high + 1) << _BITS]) for high in range(len(flat) >> _BITS))
        return cls({high: block for high, block in cuts if block != _EMPTY_BLOCK})

    def changed(self, updates: Iterable[tuple[int, int | None]]) -> "IdIndex":
        """An index with these ids moved, or removed; later updates win. Most commits leave every tablet in its page,
        and then it is the same object."""
        moved = [(tablet_id, number) for tablet_id, number in dict(updates).items() if self.get(tablet_id) != number]
        if not moved:
            return self
        blocks = dict(self._blocks)
        own: dict[int, array[int]] = {}
        for tablet_id, number in moved:
            high = tablet_id >> _BITS
            block = own.get(high)
            if block is None:
                block = own[high] = blocks[high] = array("I", blocks.get(high, _EMPTY_BLOCK))
            block[tablet_id & _MASK] = number or _ABSENT
        for high, block in own.items():
            if not any(block):
                del blocks[high]
        return IdIndex(blocks)


_MAP_BITS = 6
_Page = TypeVar("_Page")


class PageMap(Mapping[int, _Page]):
    """An immutable mapping of page number to page."""

    __slots__ = ("_blocks",)

    def __init__(self, pages: Mapping[int, _Page] | None = None) -> None:
        self._blocks: dict[int, dict[int, _Page]] = {}
        for number, page in (pages or {}).items():
            self._blocks.setdefault(number >> _MAP_BITS, {})[number] = page

    def __getitem__(self, number: int) -> _Page:
        return self._blocks[number >> _MAP_BITS][number]

    def __iter__(self) -> Iterator[int]:
        return (number for block in self._blocks.values() for number in block)

    def __len__(self) -> int:
        return sum(map(len, self._blocks.values()))

    def changed(self, updates: Mapping[int, _Page | None]) -> "PageMap[_Page]":
        """A new mapping with these pages put in place, or removed (None); blocks without any of them are shared."""
        result: PageMap[_Page] = PageMap()
        blocks = result._blocks = dict(self._blocks)
        for high in {number >> _MAP_BITS for number in updates}:
            blocks[high] = dict(blocks.get(high, ()))
        for number, page in updates.items():
            if page is None:
                blocks[number >> _MAP_BITS].pop(number, None)
            else:
                blocks[number >> _MAP_BITS][number] = page
        return result


class Draft(Generic[_Page]):
    """The pages of the next snapshot while they are being made: changes over what is there."""

    def __init__(self, before: PageMap[_Page]) -> None:
        self._before = before
        self._changes: dict[int, _Page | None] = {}

    def get(self, number: int) -> _Page | None:
        """A page as it is by now; None if there is none."""
        return self._changes[number] if number in self._changes else self._before.get(number)

    def __getitem__(self, number: int) -> _Page:
        page = self.get(number)
        if page is None:
            raise KeyError(number)
        return page

    def __contains__(self, number: int) -> bool:
        return self.get(number) is not None

    def __setitem__(self, number: int, page: _Page) -> None:
        self._changes[number] = page

    def __delitem__(self, number: int) -> None:
        self._changes[number] = None

    def finished(self) -> PageMap[_Page]:
        """The mapping with all changes."""
        return self._before.changed(self._changes) if self._changes else self._before
