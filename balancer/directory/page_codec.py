"""Pages as bytes: a small header, then the columns, compressed together. Only backends and `batch` call this.

Ids are stored as differences and the starts of hash leaves not at all (the first one and the widths give them), so
that a page of a thousand tablets takes a few kilobytes.
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

_HEADER = struct.Struct("<BBqqIccIIII")
"""Format, hashed, table, version, rows; types of the ids' and the epochs' numbers; bytes of the keys, of the names, of
the partitions, of the end."""
_LEVEL = 1
_WIDTHS = tuple(POSITIONS >> bits for bits in range(64))


def pack_page(page: Page) -> bytes:
    """A page as stored bytes."""
    names = "\0".join(page.names).encode()
    partitions = "\1".join(page.partitions).encode()
    end = page.end.to_bytes(9, "big") if page.hashed else page.end
    if page.hashed:
        keys = page.start.to_bytes(8, "big") + page.bits.tobytes()
    else:
        keys = _little(array("I", map(len, page.starts))) + b"".join(page.starts)
    ids = _narrow("iq", list(map(sub, page.ids, [0, *page.ids[:-1]])))
    epochs = _narrow("BHIQ", page.epochs)
    header = _HEADER.pack(
        *(FORMAT, page.hashed, page.table, page.version, len(page)),
        *(ids.typecode.encode(), epochs.typecode.encode()),
        *(len(keys), len(names), len(partitions), len(end)),
    )
    columns = (_little(ids), _little(page.node), _little(epochs), page.states.tobytes(), keys, names, partitions, end)
    return header + zlib.compress(b"".join(columns), _LEVEL)


def unpack_page(data: bytes) -> Page:
    """The page in stored bytes."""
    check_format(data)
    try:
        return _unpack(data)
    except (ValueError, IndexError, struct.error, zlib.error) as error:
        raise damaged(error) from None


def _unpack(data: bytes) -> Page:
    _, hashed, table, version, rows, of_ids, of_epochs, keys, names, partitions, end = _HEADER.unpack_from(data)
    reader = _Reader(zlib.decompress(data[_HEADER.size :]))
    ids = array("q", accumulate(reader.numbers(of_ids.decode(), rows)))
    node = reader.numbers("H", rows)
    epochs = array("Q", reader.numbers(of_epochs.decode(), rows))
    states = reader.numbers("B", rows)
    starts, bits = _read_starts(bool(hashed), rows, reader.take(keys))
    node_names = reader.take(names).decode()
    partition_names = reader.take(partitions).decode()
    last = reader.take(end)
    return Page(
        table,
        bool(hashed),
        version,
        ids,
        starts,
        int.from_bytes(last, "big") if hashed else last,
        bits,
        tuple(map(intern, node_names.split("\0"))) if rows else (),
        node,
        epochs,
        states,
        tuple(partition_names.split("\1")) if partitions else (),
    )


def _narrow(codes: str, numbers: Sequence[int]) -> "array[int]":
    """The numbers in the narrowest of these types of array that holds them."""
    for code in codes[:-1]:
        try:
            return array(code, numbers)
        except OverflowError:
            continue
    return array(codes[-1], numbers)


def _read_starts(hashed: bool, rows: int, keys: bytes) -> "tuple[Any, array[int]]":
    if hashed:
        bits = array("B", keys[8:])
        widths = map(_WIDTHS.__getitem__, bits[:-1])
        return array("Q", accumulate(widths, initial=int.from_bytes(keys[:8], "big"))), bits
    ends = accumulate(_Reader(keys).numbers("I", rows), initial=4 * rows)
    at = list(ends)
    return [keys[start:end] for start, end in pairwise(at)], array("B")


class _Reader:
    """Takes columns off the front of bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        part = self._data[self._at : self._at + size]
        self._at += size
        return part

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
