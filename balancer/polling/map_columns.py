"""The directory's tablets as columns of numbers, made page by page and kept for as long as a page is the same.

Successive snapshots share every page that a commit leaves alone; so asking again after a commit costs in proportion to
what it changed, not to what there is. Belongs to one poller and the views made from its polls.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from balancer.directory.pages import Page
from balancer.directory.snapshot import Snapshot
from balancer.policies.bundle_view import Ints

Names = npt.NDArray[np.object_]


@dataclass(frozen=True, slots=True, eq=False)
class MapColumns:
    """All tablets of one table in key order, one entry each. The same object for as long as nothing in it changes."""

    ids: Ints
    owners: Ints
    """Numbers of nodes, by `ColumnBook.nodes`."""
    epochs: Ints
    states: Ints
    """Index into `pages.STATES`."""
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


class ColumnBook:
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
