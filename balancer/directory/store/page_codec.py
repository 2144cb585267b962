"""Pages as bytes: a header and two parts. Only backends and `commit` call this.

The fixed part (ids, bounds, names of partitions) changes only when tablets are split or merged; it is compressed, and a
page keeps it as it was read, so that a commit that moves a tablet does not encode it again. The other part is owners,
epochs and states; compressing it would be most of a commit's work, so that is done only if it is large. Numbers are
stored by the weight of their bytes: first the lowest byte of every row, then the next one; bytes that are zero in all
rows are left out. Differences would be smaller, but this way a million rows are reassembled without a Python step for
each. A page of 500 tablets takes two to five kilobytes.

A page that is decoded when somebody first looks into it.

Of a million tablets a process uses only those of its keys; decoding all of them would be most of the time it takes to
load. The reader checked the bytes as a whole, see `host_cache`. The number of tablets is known without decoding.
"""

import struct
import sys
from array import array
from dataclasses import fields
from itertools import accumulate, pairwise
from sys import intern
from typing import Any

from balancer.directory.model import TabletState
from balancer.directory.store.codec import FORMAT, check_format, compress, inflate, reading_stored
from balancer.directory.store.pages import Page
from balancer.errors import Damaged

_HEADER = struct.Struct("<BBBqqII")
"""Format, hashed, whether the second part is compressed, table, version, rows, bytes of the fixed part."""
_FIXED = struct.Struct("<III")
"""Bytes of the range tablets' keys, of the end and of the partitions' names."""
_COMPRESS_ABOVE = 8192  # bytes
_MOST_ROWS = 1 << 20  # our pages have hundreds


def pack_page(page: Page) -> bytes:
    """A page as stored bytes."""
    fixed = page.fixed or _pack_fixed(page)
    owners = b"".join((*map(_planes, (page.node, page.epochs, page.states)), "\0".join(page.names).encode()))
    large = len(owners) > _COMPRESS_ABOVE
    header = _HEADER.pack(FORMAT, page.hashed, large, page.table, page.version, len(page), len(fixed))
    return header + fixed + (compress(owners) if large else owners)


def _pack_fixed(page: Page) -> bytes:
    columns: list[Any]
    if page.hashed:
        columns = [page.ids, page.starts, page.bits]
        end, keys = page.end.to_bytes(9, "big"), b""
    else:
        columns = [page.ids, array("I", map(len, page.starts))]
        end, keys = page.end, b"".join(page.starts)
    names = "\1".join(page.partitions).encode()
    sizes = _FIXED.pack(len(keys), len(end), len(names))
    return compress(b"".join((sizes, *map(_planes, columns), keys, end, names)))


def unpack_page(data: bytes) -> Page:
    """The page in stored bytes."""
    with reading_stored():
        check_format(data)
        page = _unpack(data)
        _check(page)
        return page


def _check(page: Page) -> None:
    """Checks for what would fail long after the page was read, and far from here."""
    if not len(page) or min(page.ids) < 1:
        raise ValueError("a page has no tablets, or one without an id")
    if max(page.node) >= len(page.names) or max(page.states) >= len(TabletState):
        raise ValueError("a tablet names a node or a state that its page does not have")
    if page.hashed and max(page.bits) > 64:
        raise ValueError("a tablet of a hash table is too small to be one")
    if page.partitions and len(page.partitions) != len(page):
        raise ValueError("a page does not name the partitions of each tablet")


def _unpack(data: bytes) -> Page:
    _, hashed, large, table, version, rows, size = _HEADER.unpack_from(data)
    if rows > _MOST_ROWS:
        raise ValueError(f"a page has {rows} rows; {_MOST_ROWS} are the most")
    split = _HEADER.size + size
    fixed = data[_HEADER.size : split]
    ids, starts, end, bits, partitions = _unpack_fixed(bool(hashed), rows, fixed)
    reader = _Reader(inflate(data[split:]) if large else data, 0 if large else split)
    node, epochs, states = (reader.numbers(code, rows) for code in "HQB")
    names = tuple(map(intern, reader.rest().decode().split("\0")))
    return Page(
        *(table, bool(hashed), version, ids, starts, end, bits),
        *(names, node, epochs, states, partitions, fixed),
    )


def _unpack_fixed(hashed: bool, rows: int, fixed: bytes) -> tuple[Any, Any, Any, Any, tuple[str, ...]]:
    data = inflate(fixed)
    keys, end, names = _FIXED.unpack_from(data)
    reader = _Reader(data, _FIXED.size)
    ids = reader.numbers("q", rows)
    lengths_or_starts = reader.numbers("Q" if hashed else "I", rows)
    bits = reader.numbers("B", rows) if hashed else array("B")
    text, last = reader.take(keys), reader.take(end)
    partitions = tuple(reader.take(names).decode().split("\1")) if names else ()
    if hashed:
        return ids, lengths_or_starts, int.from_bytes(last, "big"), bits, partitions
    cuts = pairwise(accumulate(lengths_or_starts, initial=0))
    return ids, [text[first:after] for first, after in cuts], last, bits, partitions


def _planes(column: "array[int]") -> bytes:
    """The numbers by the weight of their bytes; the first byte has a bit for each weight that occurs."""
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    data, size, zero = column.tobytes(), column.itemsize, bytes(len(column))
    used, planes = 0, [b""]
    for weight in range(size):
        plane = data[weight::size]
        if plane != zero:
            used |= 1 << weight
            planes.append(plane)
    planes[0] = bytes((used,))
    return b"".join(planes)


class _Reader:
    """Takes columns from the front of bytes."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self._at = at

    def take(self, size: int) -> bytes:
        part = self._data[self._at : self._at + size]
        self._at += size
        return part

    def rest(self) -> bytes:
        return self._data[self._at :]

    def numbers(self, code: Any, rows: int) -> "array[int]":
        column: array[int] = array(code)
        size = column.itemsize
        used = self.take(1)[0]
        data = bytearray(size * rows)
        for weight in range(size):
            if used >> weight & 1:
                data[weight::size] = self.take(rows)  # bytes that are missing are a ValueError
        column.frombytes(data)
        if sys.byteorder == "big":
            column.byteswap()
        return column


_FIELDS = tuple(field.name for field in fields(Page))


class StoredPage(Page):
    """Once decoded it is like any other page; two threads that decode it at once get the same result."""

    __slots__ = ("_data", "_rows")

    def __init__(self, data: memoryview, rows: int) -> None:
        object.__setattr__(self, "_data", data)
        object.__setattr__(self, "_rows", rows)

    def __len__(self) -> int:
        return int(self._rows)

    def __getattr__(self, name: str) -> Any:
        """Called only for fields that are not there yet."""
        if name not in _FIELDS:
            raise AttributeError(name)
        page = unpack_page(bytes(self._data))
        if len(page) != self._rows:
            raise Damaged("the directory contains damaged data: a page has another number of tablets than was said")
        for field in _FIELDS:
            object.__setattr__(self, field, getattr(page, field))
        return getattr(self, name)

    def stored(self) -> bytes:
        """As it was stored."""
        return bytes(self._data)


def stored_bytes(page: Page) -> bytes:
    """A page as stored bytes, without decoding one that has not been decoded."""
    return page.stored() if isinstance(page, StoredPage) else pack_page(page)
