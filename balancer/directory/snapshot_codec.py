"""A whole snapshot as bytes, with the index that finds its way in it: `host_cache` keeps it, `/v1/directory` sends it.

A mark, a checksum of everything after it, a head in JSON (what it is, and where each page begins), the records, the
index of ids, then the pages as a directory stores them. A reader that trusts the checksum decodes a page when it is
first looked into. The head names the transaction that made the version: no other directory, and no other history of
this one, has a transaction of that name. Nothing here does I/O.
"""

import struct
import sys
from array import array
from collections.abc import Collection, Iterable
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final

from balancer.directory.codec import (
    FORMAT,
    StoredEntry,
    from_document,
    pack,
    reading_stored,
    to_document,
    unpack,
    unpack_entry,
)
from balancer.directory.delta import apply
from balancer.directory.json_values import not_negative
from balancer.directory.model import Json, Put, RecordKind
from balancer.directory.page_codec import unpack_page
from balancer.directory.page_index import IdIndex
from balancer.directory.page_map import PageMap
from balancer.directory.pages import Page
from balancer.directory.paths import RECORD_KINDS
from balancer.directory.snapshot import Snapshot, TableIndex
from balancer.directory.stored_page import StoredPage, stored_bytes
from balancer.directory.views import with_pages

MARK: Final = b"tablet-balancer snapshot 1\n"
"""The number is that of the layout: raise it with every change that older software would misread."""
_DIGEST: Final = 16
_SIZE: Final = struct.Struct("<I")
_START: Final = len(MARK) + _DIGEST
LONGEST_BEGINNING: Final = 1024
"""Bytes in which `peek` finds which version it is."""


def pack_snapshot(view: Snapshot, kinds: Collection[RecordKind] = RECORD_KINDS) -> bytes:
    """The bytes of a snapshot, with records of these kinds in addition to its tablets."""
    tables: list[Json] = []
    pages: list[bytes] = []
    for table, index in view.index.items():
        own = [view.pages[number] for number in index.numbers]
        stored = [stored_bytes(page) for page in own]
        hashed = view.tables[table].hashed
        starts = list(index.starts) if hashed else [start.hex() for start in index.starts]
        tables.append([table, hashed, index.numbers, starts, [*map(len, own)], [*map(len, stored)]])
        pages += stored
    blocks = view.ids.blocks()
    records = pack({kind: [to_document(record) for record in view.of(kind).values()] for kind in kinds})
    identity = {"version": view.version, "transaction": view.transaction}
    places = {
        "format": FORMAT,
        "epoch": view.epoch,
        "next_page": view.next_page,
        "tables": tables,
        "blocks": list(blocks),
    }
    first, second = pack(identity), pack(places)
    body = b"".join(
        (
            *(_SIZE.pack(len(first)), first, _SIZE.pack(len(second)), second),
            *(_SIZE.pack(len(records)), records),
            *(_little(block).tobytes() for block in blocks.values()),
            *pages,
        )
    )
    return MARK + _digest(body) + body


def pack_log(entries: Iterable[bytes]) -> bytes:
    """Commits that follow each other, each as the log keeps it."""
    return b"".join(part for entry in entries for part in (_SIZE.pack(len(entry)), entry))


def unpack_log(data: bytes) -> list[StoredEntry]:
    """The commits in bytes."""
    entries: list[StoredEntry] = []
    at = 0
    with reading_stored():
        while at < len(data):
            (size,) = _SIZE.unpack_from(data, at)
            at += _SIZE.size + size
            entries.append(unpack_entry(data[at - size : at]))
    return entries


def peek(beginning: bytes) -> tuple[int, str] | None:
    """Version and transaction from the first bytes of a snapshot, unchecked; None: it is not one."""
    if not beginning.startswith(MARK):
        return None
    with reading_stored():
        identity, _ = _part(memoryview(beginning), _START)
        return not_negative(identity["version"]), str(identity["transaction"])


def unpack_snapshot(data: bytes, *, lazy: bool) -> Snapshot:
    """The snapshot in bytes; `Damaged` for anything else. `lazy`: pages are decoded later, trusting the checksum."""
    with reading_stored():
        if not data.startswith(MARK):
            raise ValueError("this is no snapshot of this version of the software")
        whole = memoryview(data)
        if _digest(whole[_START:]) != data[len(MARK) : _START]:
            raise ValueError("a snapshot does not have its checksum")
        identity, at = _part(whole, _START)
        places, at = _part(whole, at)
        records, at = _part(whole, at)
        if places["format"] != FORMAT:
            raise ValueError(f"a snapshot has format {places['format']}, not {FORMAT}")
        puts = [Put(from_document(kind, one)) for kind in RECORD_KINDS for one in records.get(kind, ())]
        epoch, version = not_negative(places["epoch"]), not_negative(identity["version"])
        bare = apply(Snapshot(epoch=epoch), puts, version, ()).snapshot
        bare = replace(bare, transaction=str(identity["transaction"]))
        return _with_tablets(bare, whole, at, places, lazy)


def _with_tablets(bare: Snapshot, whole: memoryview, at: int, places: Json, lazy: bool) -> Snapshot:
    size = IdIndex.BLOCK_BYTES
    blocks: dict[int, array[int]] = {}
    for high in places["blocks"]:
        block = array("I")
        block.frombytes(whole[at : at + size])
        blocks[high] = _little(block)
        at += size
    pages: dict[int, Page] = {}
    index: dict[int, TableIndex] = {}
    for table, hashed, numbers, starts, rows, sizes in places["tables"]:
        for number, count, length in zip(numbers, rows, sizes, strict=True):
            part = whole[at : at + length]
            pages[number] = StoredPage(part, count) if lazy else unpack_page(bytes(part))
            at += length
        index[table] = TableIndex(tuple(numbers), starts if hashed else [*map(bytes.fromhex, starts)])
    if at != len(whole):
        raise ValueError("a snapshot is cut off or too long")
    next_page = not_negative(places["next_page"])
    if not lazy:  # nothing that the sender says about its pages is taken on trust
        return with_pages(bare, pages, next_page)
    return replace(bare, pages=PageMap(pages), index=index, ids=IdIndex(blocks), next_page=next_page)


def _part(data: memoryview, at: int) -> tuple[Any, int]:
    (size,) = _SIZE.unpack_from(data, at)
    at += _SIZE.size
    return unpack(bytes(data[at : at + size])), at + size


def _little(block: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        block = block[:]
        block.byteswap()
    return block


def _digest(data: bytes | memoryview) -> bytes:
    return blake2b(data, digest_size=_DIGEST).digest()
