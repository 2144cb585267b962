"""Pages as bytes: a header and two compressed parts. Only backends and `batch` call this.

The fixed part (ids, bounds) changes only when tablets are split or merged; a page keeps it as it was read, so that a
commit that moves a tablet does not encode it again. The other part is owners, epochs, states and names. Numbers are
stored by the weight of their bytes: first the lowest byte of every row, then the next one; what is zero in all rows is
left out. Differences would be smaller, but a million rows are put together again without a step of Python for each. A
page of 500 tablets takes two to three kilobytes.
"""

import struct
import sys
import zlib
from array import array
from itertools import accumulate, pairwise
from sys import intern
from typing import Any

from balancer.directory.codec import FORMAT, check_format, compress, damaged
from balancer.directory.pages import Page

_HEADER = struct.Struct("<BBqqIII")
"""Format, hashed, table, version, rows, bytes of the fixed part and of the names."""
_FIXED = struct.Struct("<II")
"""Bytes of the range tablets' keys and of the end."""


def pack_page(page: Page) -> bytes:
    """A page as stored bytes."""
    fixed = page.fixed or _pack_fixed(page)
    names = "\0".join(page.names).encode()
    partitions = "\1".join(page.partitions).encode()
    header = _HEADER.pack(FORMAT, page.hashed, page.table, page.version, len(page), len(fixed), len(names))
    columns = map(_planes, (page.node, page.epochs, page.states))
    return header + fixed + compress(b"".join((*columns, names, partitions)))


def _pack_fixed(page: Page) -> bytes:
    columns: list[Any]
    if page.hashed:
        columns = [page.ids, page.starts, page.bits]
        end, keys = page.end.to_bytes(9, "big"), b""
    else:
        columns = [page.ids, array("I", map(len, page.starts))]
        end, keys = page.end, b"".join(page.starts)
    return compress(b"".join((_FIXED.pack(len(keys), len(end)), *map(_planes, columns), keys, end)))


def unpack_page(data: bytes) -> Page:
    """The page in stored bytes."""
    check_format(data)
    try:
        return _unpack(data)
    except (ValueError, IndexError, struct.error, zlib.error) as error:
        raise damaged(error) from None


def _unpack(data: bytes) -> Page:
    _, hashed, table, version, rows, size, names = _HEADER.unpack_from(data)
    split = _HEADER.size + size
    fixed = data[_HEADER.size : split]
    ids, starts, end, bits = _unpack_fixed(bool(hashed), rows, fixed)
    reader = _Reader(zlib.decompress(data[split:]))
    node, epochs, states = (reader.numbers(code, rows) for code in "HQB")
    node_names = tuple(map(intern, reader.take(names).decode().split("\0")))
    partitions = reader.rest().decode()
    return Page(
        *(table, bool(hashed), version, ids, starts, end, bits, node_names, node, epochs, states),
        tuple(partitions.split("\1")) if partitions else (),
        fixed,
    )


def _unpack_fixed(hashed: bool, rows: int, fixed: bytes) -> tuple[Any, Any, Any, Any]:
    data = zlib.decompress(fixed)
    keys, end = _FIXED.unpack_from(data)
    reader = _Reader(data, _FIXED.size)
    ids = reader.numbers("q", rows)
    if hashed:
        starts, bits = reader.numbers("Q", rows), reader.numbers("B", rows)
        return ids, starts, int.from_bytes(reader.take(end), "big"), bits
    at = accumulate(reader.numbers("I", rows), initial=0)
    text = reader.take(keys)
    return ids, [text[first:last] for first, last in pairwise(at)], reader.take(end), array("B")


def _planes(column: "array[int]") -> bytes:
    """The numbers by the weight of their bytes; the first byte has a bit for each weight that occurs."""
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    data, size, zero = column.tobytes(), column.itemsize, bytes(len(column))
    planes = [data[weight::size] for weight in range(size)]
    used = sum(1 << weight for weight, plane in enumerate(planes) if plane != zero)
    return b"".join((bytes((used,)), *(plane for plane in planes if plane != zero)))


class _Reader:
    """Takes columns off the front of bytes."""

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
