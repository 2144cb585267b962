"""Pages as bytes: a header and two compressed parts. Only backends and `batch` call this.

The fixed part (ids, bounds) changes only when tablets are split or merged; a page keeps it as it was read, so that a
commit that moves a tablet does not encode it again. The other part is owners, epochs, states and names. Ids are stored
as differences and the starts of hash leaves not at all (the first one and the widths give them): a page of 500 tablets
takes about two kilobytes.
"""

import struct
import sys
import zlib
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import sub
from sys import intern
from typing import Any

from balancer.directory.codec import FORMAT, check_format, damaged
from balancer.directory.pages import Page
from policies.leaves import POSITIONS

_HEADER = struct.Struct("<BBqqIcII")
"""Format, hashed, table, version, rows, type of the epochs' numbers, bytes of the fixed part and of the names."""
_FIXED = struct.Struct("<cII")
"""Type of the ids' numbers, bytes of the keys and of the end."""
_LEVEL = 1
_WIDTHS = tuple(POSITIONS >> bits for bits in range(64))


def pack_page(page: Page) -> bytes:
    """A page as stored bytes."""
    fixed = page.fixed or _pack_fixed(page)
    names = "\0".join(page.names).encode()
    partitions = "\1".join(page.partitions).encode()
    epochs = _narrow("BHIQ", page.epochs)
    header = _HEADER.pack(
        *(FORMAT, page.hashed, page.table, page.version, len(page)),
        *(epochs.typecode.encode(), len(fixed), len(names)),
    )
    columns = (_little(page.node), _little(epochs), page.states.tobytes(), names, partitions)
    return header + fixed + zlib.compress(b"".join(columns), _LEVEL)


def _pack_fixed(page: Page) -> bytes:
    end = page.end.to_bytes(9, "big") if page.hashed else page.end
    if page.hashed:
        keys = page.start.to_bytes(8, "big") + page.bits.tobytes()
    else:
        keys = _little(array("I", map(len, page.starts))) + b"".join(page.starts)
    ids = _narrow("iq", list(map(sub, page.ids, [0, *page.ids[:-1]])))
    head = _FIXED.pack(ids.typecode.encode(), len(keys), len(end))
    return zlib.compress(b"".join((head, _little(ids), keys, end)), _LEVEL)


def unpack_page(data: bytes) -> Page:
    """The page in stored bytes."""
    check_format(data)
    try:
        return _unpack(data)
    except (ValueError, IndexError, struct.error, zlib.error) as error:
        raise damaged(error) from None


def _unpack(data: bytes) -> Page:
    _, hashed, table, version, rows, of_epochs, fixed, names = _HEADER.unpack_from(data)
    split = _HEADER.size + fixed
    ids, starts, end, bits = _unpack_fixed(bool(hashed), rows, data[_HEADER.size : split])
    reader = _Reader(zlib.decompress(data[split:]))
    node = reader.numbers("H", rows)
    epochs = array("Q", reader.numbers(of_epochs.decode(), rows))
    states = reader.numbers("B", rows)
    node_names = tuple(map(intern, reader.take(names).decode().split("\0")))
    partitions = reader.rest().decode()
    return Page(
        *(table, bool(hashed), version, ids, starts, end, bits, node_names, node, epochs, states),
        tuple(partitions.split("\1")) if partitions else (),
        data[_HEADER.size : split],
    )


def _unpack_fixed(hashed: bool, rows: int, fixed: bytes) -> tuple[Any, Any, Any, Any]:
    data = zlib.decompress(fixed)
    code, keys, end = _FIXED.unpack_from(data)
    reader = _Reader(data, _FIXED.size)
    ids = array("q", accumulate(reader.numbers(code.decode(), rows)))
    starts, bits = _read_starts(hashed, rows, reader.take(keys))
    last = reader.take(end)
    return ids, starts, int.from_bytes(last, "big") if hashed else last, bits


def _read_starts(hashed: bool, rows: int, keys: bytes) -> "tuple[Any, array[int]]":
    if hashed:
        bits = array("B", keys[8:])
        widths = map(_WIDTHS.__getitem__, bits[:-1])
        return array("Q", accumulate(widths, initial=int.from_bytes(keys[:8], "big"))), bits
    at = list(accumulate(_Reader(keys).numbers("I", rows), initial=4 * rows))
    return [keys[start:end] for start, end in pairwise(at)], array("B")


def _narrow(codes: str, numbers: Sequence[int]) -> "array[int]":
    """The numbers in the narrowest of these types of array that holds them."""
    for code in codes[:-1]:
        try:
            return array(code, numbers)
        except OverflowError:
            continue
    return array(codes[-1], numbers)


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
        column = array(code)
        column.frombytes(self.take(rows * column.itemsize))
        if sys.byteorder == "big":
            column.byteswap()
        return column


def _little(column: "array[int]") -> bytes:
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column.tobytes()
