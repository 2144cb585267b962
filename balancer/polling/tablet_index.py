"""Which partition on which node is which tablet, according to one snapshot of the directory.

Made once per version of the directory. What a commit leaves alone stays the same object, along with everything derived
from it: a poll of a node on which nothing has changed looks up nothing.

The directory's tablets as columns of numbers, made page by page and kept for as long as a page is the same.

Successive snapshots share every page that a commit leaves alone; so asking again after a commit costs in proportion to
what it changed, not to what there is. Belongs to one poller and the views made from its polls.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from balancer.directory.model import Table, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.directory.store.pages import Page
from balancer.naming import Name, parse_name, partition_name
from balancer.policies.view import Ints
from balancer.polling.node_poll import PartitionNames
from balancer.polling.ownership import Expected

Names = npt.NDArray[np.object_]


@dataclass(frozen=True, slots=True, eq=False)
class MapColumns:
    """All tablets of one table in key order, one entry each. The same object for as long as nothing in it changes."""

    ids: Ints
    owners: Ints
    """Numbers of nodes, by `ColumnCache.nodes`."""
    epochs: Ints
    states: Ints
    """Index into `directory/store/pages.STATES`."""
    lowers: list[bytes]
    """Where each begins; empty ones of a hash table."""
    moduli: Ints
    remainders: Ints
    partitions: Names | None
    """Names of partitions as pages have them; None: all are named after their tablets."""

    def __len__(self) -> int:
        return len(self.ids)


class _Part(NamedTuple):
    """One page's."""

    page: Page  # also keeps its identity from being reused
    columns: tuple[Ints, ...]  # ids, owners, epochs, states, moduli, remainders


_COLUMNS = 6


class ColumnCache:
    """Keeps them. For one thread at a time."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._tables: dict[int, tuple[list[Page], MapColumns]] = {}
        self._parts: dict[int, dict[int, _Part]] = {}

    @property
    def nodes(self) -> Sequence[str]:
        """The nodes by their numbers: a number stands for one node forever."""
        return list(self._numbers)

    def of(self, snapshot: Snapshot, table: int) -> MapColumns:
        """The columns of a table in a snapshot."""
        pages = snapshot.pages_of(table)
        known = self._tables.get(table)
        if known is None or not _same(known[0], pages):
            known = self._tables[table] = pages, self._joined(table, pages)
        return known[1]

    def forget(self, tables: Sequence[int]) -> None:
        """Keeps only these tables."""
        for table in [one for one in self._tables if one not in set(tables)]:
            del self._tables[table], self._parts[table]

    def _joined(self, table: int, pages: Sequence[Page]) -> MapColumns:
        before = self._parts.get(table, {})
        parts = [before.get(id(page)) or self._part(page) for page in pages]
        named = any(page.partitions for page in pages)
        columns = [_ints(part.columns[place] for part in parts) for place in range(_COLUMNS)]
        edges = np.cumsum([0, *map(len, pages)]).tolist()
        # What is kept of each page is slices of what was joined: nothing is stored twice.
        self._parts[table] = {
            id(page): _Part(page, tuple(column[first:last] for column in columns))
            for page, first, last in zip(pages, edges[:-1], edges[1:], strict=True)
        }
        ids, owners, epochs, states, moduli, remainders = columns
        return MapColumns(
            ids=ids,
            owners=owners,
            epochs=epochs,
            states=states,
            lowers=[b""] * len(ids) if not pages or pages[0].hashed else [at for page in pages for at in page.starts],
            moduli=moduli,
            remainders=remainders,
            partitions=np.array([name for page in pages for name in _partitions(page)], object) if named else None,
        )

    def _part(self, page: Page) -> _Part:
        local = np.array([self._numbers.setdefault(name, len(self._numbers)) for name in page.names], np.int64)
        moduli, remainders = _leaves(page) if page.hashed else (np.zeros(len(page), np.int64),) * 2
        ids, epochs, states = (np.array(column, np.int64) for column in (page.ids, page.epochs, page.states))
        return _Part(page, (ids, local[np.asarray(page.node, np.int64)], epochs, states, moduli, remainders))


def _same(before: Sequence[Page], after: Sequence[Page]) -> bool:
    return len(before) == len(after) and all(map(is_, before, after))


def _ints(parts: Any) -> Ints:
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _partitions(page: Page) -> Sequence[str]:
    return page.partitions or ("",) * len(page)


def _leaves(page: Page) -> tuple[Ints, Ints]:
    """Moduli and remainders: the remainder is the start with its bits in the opposite order."""
    moduli = np.left_shift(1, np.asarray(page.bits, np.int64))
    starts = np.asarray(page.starts, np.uint64).astype(">u8")
    bits = np.unpackbits(starts.view(np.uint8).reshape(-1, 8), axis=1)[:, ::-1]
    return moduli, np.packbits(bits, axis=1).view(">u8").ravel().astype(np.int64)


NOBODY = -1
_SEPARATOR = "\0"  # between the names of one tablet's partitions, as pages have them


class _Roots(NamedTuple):
    """A table as far as names of partitions depend on it."""

    table: int
    roots: tuple[Name, ...]
    everywhere: bool


class _Matched(NamedTuple):
    """A node's partitions and the tablets that they belong to."""

    named: PartitionNames
    owners: Ints
    detached: tuple[int, ...]


class NodeTablets(Mapping[int, Expected]):
    """What the directory says about one node's tablets, by id. Objects are made only for those that are asked for."""

    def __init__(
        self, node: str, ids: Ints, epochs: Ints, *, tables: Ints, roots: tuple[_Roots, ...], partitions: Names | None
    ) -> None:
        """`tables`: for each tablet, its table's place in `roots`."""
        self.node = node
        self.ids = ids
        self.epochs = epochs
        self._tables = tables
        self._roots = roots
        self._partitions = partitions
        self._matched: _Matched | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids.tolist())

    def __getitem__(self, number: int) -> Expected:
        row = int(np.searchsorted(self.ids, number))
        if row == len(self.ids) or self.ids[row] != number:
            raise KeyError(number)
        return Expected(self.node, int(self.epochs[row]), self._names(row))

    def same(self, other: "NodeTablets") -> bool:
        """Whether both say the same."""
        return (
            self._roots == other._roots
            and np.array_equal(self.ids, other.ids)
            and np.array_equal(self.epochs, other.epochs)
            and np.array_equal(self._tables, other._tables)
            and _equal_names(self._partitions, other._partitions)
        )

    def owners(self, named: PartitionNames) -> Ints:
        """For each of a node's partitions the tablet that it belongs to, or `NOBODY`."""
        return self._match(named).owners

    def detached(self, named: PartitionNames) -> tuple[int, ...]:
        """The tablets that are not attached with all their partitions."""
        return self._match(named).detached

    def _match(self, named: PartitionNames) -> _Matched:
        found = self._matched
        if found is None or found.named is not named:
            tablets: dict[Name, int] = {}
            missing: list[int] = []
            names_there = named.all()
            attached = set(names_there)
            for row, number in enumerate(self.ids.tolist()):
                names = self._names(row)
                tablets.update(dict.fromkeys(names, number))
                if not attached.issuperset(names):
                    missing.append(number)
            owners = np.array([tablets.get(name, NOBODY) for name in names_there], np.int64)
            found = self._matched = _Matched(named, owners, tuple(missing))
        return found

    def _names(self, row: int) -> tuple[Name, ...]:
        table = self._roots[self._tables[row]]
        if table.everywhere:
            return ()  # what is everywhere is not a partition: nothing of it is attached or measured
        given = "" if self._partitions is None else self._partitions[row]
        if given:
            pairs = zip(table.roots, given.split(_SEPARATOR), strict=True)
            return tuple(Name(root.schema, name) for root, name in pairs)
        number = int(self.ids[row])
        return tuple(partition_name(root, number) for root in table.roots)


class _Everywhere:
    """Tablets of every node, looked up one by one: few of a node's claims are on another node's tablets."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def get(self, number: int, /) -> Expected | None:
        found = self._snapshot.find_tablet(number)
        return None if found is None else Expected(found.node, found.epoch)


@dataclass(frozen=True, slots=True, eq=False)
class TabletIndex:
    """Lookups for one version."""

    version: int
    bundles: frozenset[str]
    """Those whose tables are in it."""
    roots: Mapping[str, tuple[Name, ...]]
    """Bundle → the roots of its tables."""
    ids: Ints
    """Of all tablets, sorted."""
    tablets: _Everywhere
    by_node: Mapping[str, NodeTablets]
    made_of: tuple[tuple[_Roots, ...], tuple[MapColumns, ...]] = ((), ())


def build_index(
    snapshot: Snapshot,
    bundles: Collection[str],
    book: ColumnCache | None = None,
    before: TabletIndex | None = None,
) -> TabletIndex:
    """Everything that polls need to know about the tablets of these bundles' tables."""
    book = book or ColumnCache()
    tables = [table for table in snapshot.tables.values() if table.bundle in bundles]
    columns = tuple(book.of(snapshot, table.id) for table in tables)
    roots = tuple(_roots(table) for table in tables)
    book.forget([table.id for table in tables])
    by_bundle: dict[str, tuple[Name, ...]] = {}
    for table, one in zip(tables, roots, strict=True):
        by_bundle[table.bundle] = (*by_bundle.get(table.bundle, ()), *(() if one.everywhere else one.roots))
    same = before is not None and before.made_of[0] == roots and _same_objects(before.made_of[1], columns)
    if before is not None and same:
        ids, by_node = before.ids, before.by_node
    else:
        ids = np.sort(np.concatenate([_NONE, *(one.ids for one in columns)]))
        if before is not None and np.array_equal(ids, before.ids):
            ids = before.ids
        by_node = _by_node(book, columns, roots, {} if before is None else before.by_node)
    return TabletIndex(
        snapshot.version, frozenset(bundles), by_bundle, ids, _Everywhere(snapshot), by_node, (roots, columns)
    )


_NONE = np.zeros(0, np.int64)


def nothing_on(node: str) -> NodeTablets:
    """A node without tablets."""
    return NodeTablets(node, _NONE, _NONE, tables=_NONE, roots=(), partitions=None)


def _by_node(
    book: ColumnCache, columns: tuple[MapColumns, ...], roots: tuple[_Roots, ...], before: Mapping[str, NodeTablets]
) -> dict[str, NodeTablets]:
    ids, owners, epochs, tables = (np.concatenate([_NONE, *parts]) for parts in zip(*_flat(columns), strict=True))
    order = np.lexsort((ids, owners))
    ids, owners, epochs, tables = ids[order], owners[order], epochs[order], tables[order]
    partitions = _all_partitions(columns, order)
    found: dict[str, NodeTablets] = {}
    names = book.nodes
    edges = np.searchsorted(owners, np.arange(len(names) + 1))
    for number, node in enumerate(names):
        here = slice(int(edges[number]), int(edges[number + 1]))
        if here.start == here.stop:
            continue
        made = NodeTablets(
            node,
            ids[here],
            epochs[here],
            tables=tables[here],
            roots=roots,
            partitions=None if partitions is None else partitions[here],
        )
        known = before.get(node)
        found[node] = known if known is not None and known.same(made) else made
    return found


def _flat(columns: tuple[MapColumns, ...]) -> Iterator[tuple[Ints, Ints, Ints, Ints]]:
    yield _NONE, _NONE, _NONE, _NONE
    for place, one in enumerate(columns):
        yield one.ids, one.owners, one.epochs, np.full(len(one), place)


def _all_partitions(columns: tuple[MapColumns, ...], order: Ints) -> Names | None:
    if all(one.partitions is None for one in columns):
        return None
    unnamed = ["" if one.partitions is None else None for one in columns]
    parts = [
        np.full(len(one), "", object) if none is not None else one.partitions
        for one, none in zip(columns, unnamed, strict=True)
    ]
    joined: Names = np.concatenate([part for part in parts if part is not None])[order]
    return joined if joined.astype(bool).any() else None


def _equal_names(left: Names | None, right: Names | None) -> bool:
    if left is None or right is None:
        return left is right
    return np.array_equal(left, right)


def _same_objects(before: tuple[object, ...], after: tuple[object, ...]) -> bool:
    return len(before) == len(after) and all(map(is_, before, after))


def _roots(table: Table) -> _Roots:
    return _Roots(table.id, _parsed(tuple(table.roots)), table.everywhere)


@lru_cache(maxsize=4096)
def _parsed(roots: tuple[str, ...]) -> tuple[Name, ...]:
    return tuple(map(parse_name, roots))


def partition_names(table: Table, tablet: Tablet) -> tuple[Name, ...]:
    """The partitions of a tablet, one per root of its table."""
    roots = _parsed(tuple(table.roots))
    if tablet.partitions:
        return tuple(Name(root.schema, name) for root, name in zip(roots, tablet.partitions, strict=True))
    return tuple(partition_name(root, tablet.id) for root in roots)
