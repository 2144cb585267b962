"""A commit made ready to be written: checked, applied, encoded, measured. The same for every backend.

`prepare` is pure. Its result is complete: a backend writes it in one atomic request, conditional on the version before
it and on the leader's epoch, and adds nothing of its own.

Assembles a snapshot from pages that a backend has read. Pure; called only by the backends' loaders.
"""

import struct
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from balancer.directory import invariants
from balancer.directory.model import LogEntry, Put, Record, RecordKind, Tablet, Transaction
from balancer.directory.snapshot import Snapshot, TableIndex
from balancer.directory.store import delta
from balancer.directory.store.codec import (
    FORMAT,
    StoredEntry,
    check_format,
    not_negative,
    pack,
    pack_entry,
    pack_record,
    reading_stored,
    unpack,
)
from balancer.directory.store.page_codec import pack_page
from balancer.directory.store.pages import IdIndex, Page, PageMap, end_of, page_of, start_of
from balancer.errors import Refused, TooLarge
from balancer.policies.keyspace.hash_leaves import Leaf

LOG_KEPT = 2000
"""Commits kept in the log: a client that was away can catch up on these without loading everything again."""

MAX_REQUEST = 512 * 1024
"""Bytes of one request. ZooKeeper drops the connection at 1,048,575, which looks like an unknown outcome; half of it
leaves room. The same for every backend: what works on one machine works in production."""

NEWS = 2048
"""Bytes of a log entry that the root repeats at most."""
_ROOT = struct.Struct("<BI")  # format, bytes of the document; the news follow it
_OPERATION_OVERHEAD = 128  # bytes of path and header for each part of a request
_TRIM_AT_ONCE = 4

RecordKey = tuple[RecordKind, str]


@dataclass(frozen=True, slots=True)
class DirectoryRoot:
    """The small document that every commit rewrites: the version lives and grows here."""

    version: int
    first: int  # the oldest version whose commit the log still has; version + 1: none
    next_page: int
    transaction: str
    epoch: int = 0  # of the leader, from where the backend keeps it; not part of the document
    importing: bool = False
    news: bytes = b""
    """The newest log entry again, if it is small: a follower one version behind needs no second read."""

    def pack(self) -> bytes:
        document = pack(
            {
                "version": self.version,
                "first": self.first,
                "next_page": self.next_page,
                "transaction": self.transaction,
                "importing": self.importing,
            }
        )
        return _ROOT.pack(FORMAT, len(document)) + document + self.news

    @classmethod
    def unpack(cls, data: bytes, epoch: int) -> "DirectoryRoot":
        with reading_stored():
            check_format(data)
            end = _ROOT.size + _ROOT.unpack_from(data)[1]
            document = unpack(data[_ROOT.size : end])
            return cls(
                not_negative(document["version"]),
                not_negative(document["first"]),
                not_negative(document["next_page"]),
                str(document["transaction"]),
                not_negative(epoch),
                bool(document["importing"]),
                data[end:],
            )


@dataclass(frozen=True, slots=True)
class Batch:
    """Everything that one commit writes."""

    base: int  # the version that must still be the newest
    leader_epoch: int | None
    root: DirectoryRoot
    packed_root: bytes
    entry: bytes
    stored: StoredEntry
    created_pages: Mapping[int, bytes]
    changed_pages: Mapping[int, bytes]
    dropped_pages: frozenset[int]
    created_records: Mapping[RecordKey, bytes]
    changed_records: Mapping[RecordKey, bytes]
    removed_records: tuple[RecordKey, ...]
    trimmed: tuple[int, ...]
    snapshot: Snapshot

    @property
    def version(self) -> int:
        return self.root.version

    def size(self) -> int:
        """Roughly how many bytes the request will have."""
        written = (self.created_pages, self.changed_pages, self.created_records, self.changed_records)
        parts = [len(data) for mapping in written for data in mapping.values()]
        others = len(self.dropped_pages) + len(self.removed_records) + len(self.trimmed) + 3
        data = sum(parts) + len(self.entry) + len(self.packed_root)
        return data + _OPERATION_OVERHEAD * (len(parts) + others)


def prepare(view: Snapshot, first: int, transaction: Transaction, at: float) -> Batch:
    """The batch that takes `view` one version further; `first` is the oldest commit the log has.

    Raises `Refused`, `Conflict` (removing what does not exist) or `TooLarge`.
    """
    invariants.check(view, transaction.changes)
    version = view.version + 1
    applied = delta.apply(view, transaction.changes, version, None)
    entry = LogEntry(
        version,
        transaction.id,
        at,
        transaction.author,
        transaction.leader_epoch,
        transaction.reason,
        transaction.changes,
    )
    stored = StoredEntry(entry, applied.repages)
    packed = pack_entry(stored)
    trimmed = tuple(range(first, min(first + _TRIM_AT_ONCE, version - LOG_KEPT + 1)))
    news = packed if len(packed) <= NEWS else b""
    root = DirectoryRoot(version, first + len(trimmed), applied.snapshot.next_page, transaction.id, news=news)
    pages = {number: pack_page(applied.snapshot.pages[number]) for number in applied.written}
    created, changed, removed = _split_records(view, transaction)
    batch = Batch(
        view.version,
        transaction.leader_epoch,
        root,
        root.pack(),
        packed,
        stored,
        {number: data for number, data in pages.items() if number not in view.pages},
        {number: data for number, data in pages.items() if number in view.pages},
        applied.dropped,
        created,
        changed,
        removed,
        trimmed,
        applied.snapshot,
    )
    _check_size(batch)
    return batch


def _split_records(
    view: Snapshot, transaction: Transaction
) -> tuple[dict[RecordKey, bytes], dict[RecordKey, bytes], tuple[RecordKey, ...]]:
    created: dict[RecordKey, bytes] = {}
    changed: dict[RecordKey, bytes] = {}
    removed: list[RecordKey] = []
    for change in transaction.changes:
        key = delta.key_of(change)
        if key[0] is RecordKind.TABLET:
            continue
        if not isinstance(change, Put):
            removed.append(key)
        elif view.find(*key) is None:
            created[key] = pack_record(change.record)
        else:
            changed[key] = pack_record(change.record)
    return created, changed, tuple(removed)


def _check_size(batch: Batch) -> None:
    size = batch.size()
    if size > MAX_REQUEST:
        pages = len(batch.created_pages) + len(batch.changed_pages)
        raise TooLarge(
            f"the commit would take {size} bytes ({len(batch.stored.entry.changes)} changes, {pages} pages, "
            f"{len(batch.entry)} bytes of log); a request may have {MAX_REQUEST}: commit fewer changes at once"
        )


@dataclass(frozen=True, slots=True)
class Contents:
    """A whole directory, encoded, for a backend to write in as many requests as it needs."""

    records: Mapping[RecordKey, bytes]
    pages: Mapping[int, bytes]
    snapshot: Snapshot


def contents_of(records: Sequence[Record], version: int) -> Contents:
    """A directory made of these records at this version; the caller checks that they are lawful, except for gaps
    between tablets: a page cannot even express one."""
    plain = [record for record in records if not isinstance(record, Tablet)]
    tables: dict[int, list[Tablet]] = defaultdict(list)
    for record in records:
        if isinstance(record, Tablet):
            tables[record.table].append(record)
    pages: dict[int, Page] = {}
    for table, tablets in sorted(tables.items()):
        tablets.sort(key=lambda tablet: start_of(tablet.bounds))
        _check_adjacent(tablets)
        first = 0
        for number, rows in delta.deal(tablets, len(pages) + 1):
            part = tablets[first : first + rows]
            pages[number] = page_of(table, isinstance(part[0].bounds, Leaf), version, part)
            first += rows
    bare = delta.apply(Snapshot(), [Put(record) for record in plain], version, None).snapshot
    snapshot = with_pages(bare, pages, len(pages) + 1)
    return Contents(
        {(record.kind, record.key): pack_record(record) for record in plain},
        {number: pack_page(page) for number, page in snapshot.pages.items()},
        snapshot,
    )


def _check_adjacent(tablets: Sequence[Tablet]) -> None:
    for left, right in pairwise(tablets):
        if end_of(left.bounds) != start_of(right.bounds):
            raise Refused(f"tablets {left.id} and {right.id} of table {left.table} are not adjacent")


def with_pages(snapshot: Snapshot, pages: Mapping[int, Page], next_page: int) -> Snapshot:
    """The snapshot with these pages as all its tablets."""
    index = index_of(pages)
    ids = IdIndex.of({number: page.ids for number, page in pages.items()})
    return replace(snapshot, pages=PageMap(pages), index=index, ids=ids, next_page=next_page)


def index_of(pages: Mapping[int, Page]) -> dict[int, TableIndex]:
    """The pages of each table in key order."""
    tables: dict[int, list[int]] = defaultdict(list)
    for number, page in pages.items():
        tables[page.table].append(number)
    for numbers in tables.values():
        numbers.sort(key=lambda number: pages[number].start)
    return {
        table: TableIndex(tuple(numbers), [pages[number].start for number in numbers])
        for table, numbers in tables.items()
    }
