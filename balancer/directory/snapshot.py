"""One consistent view of the directory at one version. A value: it never changes, and keeps no connection.

Tablets are kept in pages of columns, not as objects: a client with a million tablets pays a few dozen bytes for each;
`Tablet` objects are made when they are asked for. `directory/store/delta.apply` makes the next snapshot, sharing every
page and every mapping that a commit leaves alone. Nothing here does I/O.

Ids of rows: how the number of a block becomes ids, and how an export carries over what has been handed out.

Clients take whole blocks by number (`Directory.take_block`), with the reader's credential. That only counts up: a
client cannot make the directory hand out a block twice. A table's ids start from a counter in the map, which only the
writer changes: ids that an earlier version handed out, or those of an imported directory.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast, overload

from balancer.directory.model import (
    Bundle,
    Command,
    Counter,
    Migration,
    Node,
    Pause,
    Pin,
    Plan,
    Record,
    RecordKind,
    Table,
    Tablet,
)
from balancer.directory.store.pages import IdIndex, Page, PageMap, Position
from balancer.errors import BalancerError, Damaged, UserError

Records = Mapping[Any, Any]
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

EMPTY: Records = MappingProxyType({})


class NotFound(UserError, KeyError):
    """What was asked for by name or id is not in the directory: both a sentence for people and a `KeyError`."""

    __str__ = Exception.__str__


@dataclass(frozen=True, slots=True)
class TableIndex:
    """The pages of one table in key order, and the position at which each begins."""

    numbers: tuple[int, ...] = ()
    starts: Sequence[Any] = ()

    def page_at(self, position: Position) -> int:
        """The number of the page that holds a position."""
        return self.numbers[bisect_right(self.starts, position) - 1]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """All tablets of a table in key order, one entry each."""

    ids: "array[int]"
    starts: Sequence[Any]
    """Where each begins: encoded lower bounds (range) or 64-bit positions in an array (hash)."""
    bits: "array[int]"
    """Log2 of each leaf's modulus; empty for range tables. The remainder is the start with its bits reversed."""
    nodes: tuple[str, ...]
    """The node ids that occur, in order."""
    node: "array[int]"
    """Index into `nodes`."""
    epochs: "array[int]"
    states: "array[int]"
    """Index into `directory/store/pages.STATES`: 0 is owned."""

    def __len__(self) -> int:
        return len(self.ids)


class Tablets(Sequence[Tablet]):
    """The tablets of a table in key order, each made when it is looked at."""

    def __init__(self, pages: Sequence[Page]) -> None:
        self._pages = pages
        self._firsts = [0, *accumulate(map(len, pages))]

    def __len__(self) -> int:
        return self._firsts[-1]

    def __iter__(self) -> Iterator[Tablet]:
        for page in self._pages:
            yield from page

    @overload
    def __getitem__(self, index: int) -> Tablet: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Tablet]: ...

    def __getitem__(self, index: int | slice) -> Tablet | Sequence[Tablet]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(index)
        page = bisect_right(self._firsts, row) - 1
        return self._pages[page].tablet(row - self._firsts[page])


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The directory at `version`. `epoch` is the newest leader's epoch known when it was read (0: never a leader)."""

    version: int = 0
    epoch: int = 0
    records: Mapping[RecordKind, Records] = field(default_factory=dict)
    """Everything but tablets: kind → key → record."""
    pages: PageMap[Page] = field(default_factory=PageMap)
    index: Mapping[int, TableIndex] = field(default_factory=dict)
    ids: IdIndex = field(default_factory=IdIndex)
    next_page: int = 1
    busy: Mapping[int, str] = field(default_factory=dict)
    """Tablet id → the unfinished migration that it is part of."""
    transaction: str = ""
    """The transaction that made this version, as the log calls it; empty if nobody has asked."""

    @property
    def bundles(self) -> Mapping[str, Bundle]:
        return cast(Mapping[str, Bundle], self.of(RecordKind.BUNDLE))

    @property
    def nodes(self) -> Mapping[str, Node]:
        return cast(Mapping[str, Node], self.of(RecordKind.NODE))

    @property
    def tables(self) -> Mapping[int, Table]:
        return cast(Mapping[int, Table], self.of(RecordKind.TABLE))

    @property
    def migrations(self) -> Mapping[str, Migration]:
        return cast(Mapping[str, Migration], self.of(RecordKind.MIGRATION))

    @property
    def commands(self) -> Mapping[str, Command]:
        return cast(Mapping[str, Command], self.of(RecordKind.COMMAND))

    @property
    def plans(self) -> Mapping[str, Plan]:
        return cast(Mapping[str, Plan], self.of(RecordKind.PLAN))

    @property
    def pins(self) -> Mapping[int, Pin]:
        """By tablet id."""
        return cast(Mapping[int, Pin], self.of(RecordKind.PIN))

    @property
    def pauses(self) -> Mapping[str, Pause]:
        """By bundle."""
        return cast(Mapping[str, Pause], self.of(RecordKind.PAUSE))

    @property
    def counters(self) -> Mapping[str, Counter]:
        return cast(Mapping[str, Counter], self.of(RecordKind.COUNTER))

    def of(self, kind: RecordKind) -> Records:
        """The records of a kind other than tablets, by key: an int for tables and pins."""
        return self.records.get(kind, EMPTY)

    def find(self, kind: RecordKind, key: str) -> Record | None:
        """Any record, by its kind and its key as text."""
        if kind is RecordKind.TABLET:
            return self.find_tablet(int(key))
        return cast("Record | None", self.of(kind).get(typed_key(kind, key)))

    def table(self, name: str) -> Table:
        """A table by its name; `NotFound` (a `UserError` and a `KeyError`) if there is none."""
        for table in self.tables.values():
            if table.name == name:
                return table
        known = ", ".join(sorted(table.name for table in self.tables.values())) or "none"
        raise NotFound(f"there is no table {name!r} in the directory; known tables: {known}")

    def node(self, name: str) -> Node:
        """A node by its id; `NotFound` if there is none."""
        found = self.nodes.get(name)
        if found is None:
            known = ", ".join(sorted(self.nodes)) or "none"
            raise NotFound(f"there is no node {name!r} in the directory; there are: {known}")
        return found

    def tablet(self, tablet_id: int) -> Tablet:
        """A tablet by its id; `NotFound` if there is none."""
        found = self.find_tablet(tablet_id)
        if found is None:
            raise NotFound(f"there is no tablet {tablet_id} in the directory")
        return found

    def find_tablet(self, tablet_id: int) -> Tablet | None:
        """A tablet by its id, or None."""
        number = self.ids.get(tablet_id)
        if number is None:
            return None
        page = self.pages[number]
        row = page.row_of(tablet_id)
        assert row is not None, "the index of ids agrees with the pages"
        return page.tablet(row)

    def tablets(self, table_id: int) -> Sequence[Tablet]:
        """The tablets of a table in key order, made lazily; empty for an unknown table."""
        return Tablets(self.pages_of(table_id))

    def tablet_count(self) -> int:
        """Tablets of all tables."""
        return sum(map(len, self.pages.values()))

    def pages_of(self, table_id: int) -> list[Page]:
        """The pages of a table in key order."""
        index = self.index.get(table_id)
        return [self.pages[number] for number in index.numbers] if index else []

    def locate(self, table_id: int, position: Position) -> Tablet:
        """The tablet that owns a position: the encoded key (range) or `policies.keyspace.hash_leaves.position(hash)`
        (hash)."""
        page, row = self.locate_row(table_id, position)
        return page.tablet(row)

    def locate_row(self, table_id: int, position: Position) -> tuple[Page, int]:
        """Where the tablet that owns a position is, without making an object of it."""
        try:
            page = self.pages[self.index[table_id].page_at(position)]
        except KeyError:
            raise self._not_located(table_id) from None
        return page, page.row_at(position)

    def _not_located(self, table_id: int) -> BalancerError:
        """No commit leaves a table without tablets: if one has none, somebody has changed its pages."""
        table = self.tables.get(table_id)
        if table is None:
            return NotFound(f"there is no table with id {table_id} in the directory")
        return Damaged(f"the directory contains damaged data: table {table.name!r} has no tablets")

    def columns(self, table_id: int) -> Columns:
        """All tablets of a table as columns, joined from its pages: for planning over many of them."""
        pages = self.pages_of(table_id)
        hashed = self.tables[table_id].hashed
        nodes = tuple(sorted({name for page in pages for name in page.names}))
        numbers = {name: number for number, name in enumerate(nodes)}
        columns = Columns(
            array("q"), array("Q") if hashed else [], array("B"), nodes, array("I"), array("Q"), array("B")
        )
        for page in pages:
            local = [numbers[name] for name in page.names]
            columns.ids.extend(page.ids)
            cast(Any, columns.starts).extend(page.starts)
            columns.bits.extend(page.bits)
            columns.node.extend(map(local.__getitem__, page.node))
            columns.epochs.extend(page.epochs)
            columns.states.extend(page.states)
        return columns

    def migration_of(self, tablet_id: int) -> Migration | None:
        """The unfinished migration that a tablet is part of, before or after it."""
        found = self.busy.get(tablet_id)
        return self.migrations[found] if found is not None else None


def typed_key(kind: RecordKind, key: str) -> str | int:
    """The key as the snapshot's mappings have it."""
    return int(key) if kind in (RecordKind.TABLE, RecordKind.TABLET, RecordKind.PIN) else key


BLOCK: Final = 1 << 16
"""Ids of one block. There are 2 ** 31 blocks of a table, as many as ZooKeeper counts versions: 2 ** 47 ids."""
MOST_BLOCKS: Final = (1 << 31) - 1


def counter_of(snapshot: Snapshot, table: int) -> Counter:
    """Where the ids of a table start."""
    name = f"ids {table}"
    return snapshot.counters.get(name) or Counter(name)


def carried_over(snapshot: Snapshot, taken: Mapping[int, int]) -> list[Counter]:
    """The counters with which another directory continues after the blocks that were taken from this one."""
    return [
        Counter(start.name, start.next + blocks * BLOCK)
        for table, blocks in sorted(taken.items())
        if blocks and table in snapshot.tables
        for start in [counter_of(snapshot, table)]
    ]
