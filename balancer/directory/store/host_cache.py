"""A snapshot in a file that the processes of one account on one host share, so that one of them loads it for all.

The file is a hint. A reader uses it only if the directory's own log says that its version was made by its transaction,
and continues from there by the log, so what it knows is never older than what it would have loaded. The folder must be
ours and closed to writers other than us. A file in it that is not ours, that others may read or write, that is not a
regular file, is truncated or damaged, or comes from other software is left alone, and replaced by the next one that is
written. Writers write a temporary file and rename it, so readers see a whole file, however many write at once.

A whole snapshot as bytes, with the index that finds its way in it: `host_cache` keeps it, `/v1/directory` sends it.

A mark, a checksum of everything after it, a head in JSON (what it is, and where each page begins), the records, the
index of ids, then the pages as a directory stores them. A reader that trusts the checksum decodes a page when it is
first looked into. The head names the transaction that made the version: no other directory, and no other history of
this one, has a transaction of that name. Nothing here does I/O.
"""

import fcntl
import logging
import os
import stat
import struct
import sys
from array import array
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import uuid4

from balancer.clock import Clock
from balancer.directory.model import Json, Put, RecordKind
from balancer.directory.snapshot import Snapshot, TableIndex
from balancer.directory.store.codec import (
    FORMAT,
    RECORD_KINDS,
    StoredEntry,
    from_document,
    not_negative,
    pack,
    reading_stored,
    to_document,
    unpack,
    unpack_entry,
)
from balancer.directory.store.commit import with_pages
from balancer.directory.store.delta import apply
from balancer.directory.store.page_codec import StoredPage, stored_bytes, unpack_page
from balancer.directory.store.pages import IdIndex, Page, PageMap
from balancer.errors import Refused, UserError

REWRITE_AFTER: Final = 50
"""Commits that the file may be behind before one of the processes that follow writes it again. With a million tablets
each commit costs a starting process a third of a millisecond, and writing the file costs some sixty."""
_RANDOM: Final = Random()  # noqa: S311 - our own: a program may have seeded the shared one
LARGEST: Final = 1 << 30
"""Bytes. A million tablets take 15 MB."""
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_OPEN: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO in its place must not block us
_LOOK: Final = 0.05  # seconds between checks whether the loading process has finished

log = logging.getLogger("balancer.directory.cache")


class HostCache:
    """The file of one directory, by the directory's address."""

    def __init__(self, folder: Path, address: str, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._name = blake2b(address.encode(), digest_size=12).hexdigest()
        self._due = REWRITE_AFTER * (1 + _RANDOM.random())  # so that not all processes write at once
        with self._opened():
            pass

    def read(self) -> Snapshot | None:
        """What the file says; None if there is none that may be used."""
        try:
            with self._opened() as folder:
                data = self._content(folder, LARGEST)
            return None if data is None else unpack_snapshot(data, lazy=True)
        except (OSError, Refused, UserError) as error:
            log.warning("the cache of the directory is left alone: %s", error)
            return None

    def write(self, view: Snapshot) -> None:
        """Replaces what is there with a snapshot. A cache that cannot be written costs the next process a load."""
        temporary = f"{self._name}.{uuid4().hex}"
        try:
            with self._opened() as folder:
                try:
                    made = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600, dir_fd=folder)
                    with os.fdopen(made, "wb") as file:
                        file.write(pack_snapshot(view))
                    os.replace(temporary, self._file, src_dir_fd=folder, dst_dir_fd=folder)
                except BaseException:
                    with suppress(OSError):
                        os.unlink(temporary, dir_fd=folder)
                    raise
        except (OSError, UserError) as error:
            log.warning("the cache of the directory could not be written: %s", error)

    def keep(self, view: Snapshot, known: int) -> int:
        """For a following process: rewrites the file if it has fallen behind. `known` is the version that the file had
        at the last call; returns the current one."""
        if view.version - known < self._due:
            return known
        known = self._version()  # another process may have written it
        if view.version - known >= REWRITE_AFTER:
            self.write(view)
            return view.version
        return known

    @contextmanager
    def turn(self, patience: float) -> Iterator[None]:
        """One process at a time; after `patience` seconds proceeds anyway: the one before may hang."""
        deadline = self._clock.monotonic() + patience
        held: int | None = None
        try:
            with suppress(OSError), self._opened() as folder:
                held = os.open(f"{self._name}.lock", os.O_RDWR | os.O_CREAT | _OPEN, 0o600, dir_fd=folder)
            while held is not None and not _locked(held) and self._clock.monotonic() < deadline:
                self._clock.sleep(_LOOK * (0.5 + _RANDOM.random()))
            yield
        finally:
            if held is not None:
                os.close(held)

    @property
    def _file(self) -> str:
        return f"{self._name}.snapshot"

    def _version(self) -> int:
        """Version of the file, by its first bytes; 0 if there is none."""
        try:
            with self._opened() as folder:
                beginning = self._content(folder, LARGEST, LONGEST_BEGINNING)
            found = None if beginning is None else peek(beginning)
        except (OSError, Refused, UserError):
            return 0
        return found[0] if found else 0

    def _content(self, folder: int, largest: int, most: int = -1) -> bytes | None:
        """The file's bytes; None: it is not there. `OSError` or `Refused`: it must not be read."""
        try:
            opened = os.open(self._file, os.O_RDONLY | _OPEN, dir_fd=folder)
        except FileNotFoundError:
            return None
        with os.fdopen(opened, "rb", buffering=0) as file:
            found = os.fstat(opened)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:  # 0: it has just been replaced
                raise Refused("it is not a file of its own")
            if found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
                raise Refused("it belongs to another account, or others may use it")
            if found.st_size > largest:
                raise Refused(f"it has {found.st_size} bytes")
            return file.read(most if most >= 0 else found.st_size)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """The folder as it is at this moment: made if it is missing, refused if it is not ours alone."""
        with suppress(FileExistsError):
            try:
                os.mkdir(self._folder, 0o700)
            except FileExistsError:
                raise
            except OSError as error:
                raise UserError(f"the cache folder {self._folder} cannot be made: {error.strerror}") from None
        try:
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | _OPEN)
        except OSError as error:
            raise UserError(f"the cache folder {self._folder} is none: {error.strerror}") from None
        try:
            found = os.fstat(folder)
            if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise UserError(
                    f"the cache folder {self._folder} must belong to the account that uses it,"
                    " and nobody else may write there"
                )
            yield folder
        finally:
            os.close(folder)


def _locked(held: int) -> bool:
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


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
