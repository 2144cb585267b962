"""Groups many keys by node in one vectorised step. The only module of the library that needs numpy.

`Router.group` imports it when it is first called, so that an application that never groups needs no numpy. A `BulkMap`
belongs to one version of one table, as `lookup.TableMap` does.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from balancer.client.keys.lookup import TableMap
from balancer.directory.locate import AnyKey, key_position, key_values
from balancer.directory.model import Table
from balancer.directory.snapshot import Columns, Snapshot
from balancer.errors import UserError
from balancer.policies.keyspace.hashing_columns import INTEGERS, Column, partition_hashes, positions
from balancer.policies.keyspace.keys import KeyMismatch, decode_bound, integer_limits

Rows = npt.NDArray[np.intp]
Numbers = npt.NDArray[np.uint16]

MOST_SLOTS = 1 << 22
"""Beyond this modulus (8 MB of slots) keys are looked up by search instead."""


class BulkMap:
    """The nodes of a table's tablets, prepared for whole columns of keys."""

    def __init__(self, snapshot: Snapshot, known: TableMap) -> None:
        self._table = known.table
        if self._table.whole:
            raise UserError(f"table {self._table.name} is whole: it has no keys to group")
        columns = snapshot.columns(known.table.id)
        self._nodes = columns.nodes
        self._numbers: Callable[[Sequence[Column]], Numbers] = self._chosen(columns)

    def group(self, keys: npt.NDArray[Any] | Sequence[Any]) -> dict[str, Rows]:
        """For each node that owns any of the keys, which of them, by position and in their order."""
        try:
            numbers = self._numbers(_as_columns(self._table, keys))
        except KeyMismatch as error:
            raise UserError(f"the keys do not fit table {self._table.name}: {error}") from None
        order = np.argsort(numbers, kind="stable")  # a radix sort: the numbers have 16 bits
        ends = np.cumsum(np.bincount(numbers, minlength=len(self._nodes)))
        parts = np.split(order, ends[:-1])
        return {node: part for node, part in zip(self._nodes, parts, strict=True) if len(part)}

    def _chosen(self, columns: Columns) -> Callable[[Sequence[Column]], Numbers]:
        node = np.asarray(columns.node).astype(np.uint16)
        if self._table.hashed:
            return self._by_hash(columns, node)
        if len(self._table.columns) == 1 and self._table.key_types[0] in INTEGERS:
            return self._by_integer(columns, node)
        return self._by_encoding(columns, node)

    def _by_hash(self, columns: Columns, node: Numbers) -> Callable[[Sequence[Column]], Numbers]:
        types = self._table.key_types
        bits = np.asarray(columns.bits)
        depth = int(bits.max())
        if 1 << depth > MOST_SLOTS:
            starts = np.asarray(columns.starts, np.uint64)
            return lambda keys: node[np.searchsorted(starts, positions(partition_hashes(types, keys)), "right") - 1]
        in_order = np.repeat(node, 1 << (depth - bits.astype(np.int64)))
        places = positions(np.arange(1 << depth, dtype=np.uint64)) >> np.uint64(64 - depth) if depth else [0]
        slots = in_order[np.asarray(places, np.intp)]
        mask = np.uint64((1 << depth) - 1)
        return lambda keys: slots[(partition_hashes(types, keys) & mask).astype(np.intp)]

    def _by_integer(self, columns: Columns, node: Numbers) -> Callable[[Sequence[Column]], Numbers]:
        kind = self._table.key_types[0]
        lowest, highest = integer_limits(kind)
        bounds = [decode_bound((kind,), start)[0] for start in columns.starts]
        starts = np.array([bound[0] if bound else lowest for bound in bounds], np.int64)

        def numbers(keys: Sequence[Column]) -> Numbers:
            values = np.asarray(keys[0])
            if values.dtype.kind not in "iu" or (
                len(values) and not (lowest <= int(values.min()) and int(values.max()) <= highest)
            ):
                raise KeyMismatch(f"they are not all values of type {kind}")
            return node[np.searchsorted(starts, values.astype(np.int64, copy=False), "right") - 1]

        return numbers

    def _by_encoding(self, columns: Columns, node: Numbers) -> Callable[[Sequence[Column]], Numbers]:
        starts = np.array(columns.starts, object)

        def numbers(keys: Sequence[Column]) -> Numbers:
            rows: Sequence[AnyKey] = list(zip(*map(_values, keys), strict=True))
            encoded = np.empty(len(rows), object)
            encoded[:] = [key_position(self._table, key) for key in rows]
            return node[np.searchsorted(starts, encoded, "right") - 1]

        return numbers


def _as_columns(table: Table, keys: npt.NDArray[Any] | Sequence[Any]) -> Sequence[Column]:
    """One column per key column. Several columns come as a tuple of them, or as a list of keys."""
    width = len(table.columns)
    if width == 1:
        return (keys,)
    if isinstance(keys, tuple):
        return keys
    rows = [key_values(key) for key in keys]
    if any(len(row) != width for row in rows):
        raise KeyMismatch(f"each key must have {width} values")
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(width)]


def _values(column: Column) -> Sequence[Any]:
    values: Sequence[Any] = column.tolist() if isinstance(column, np.ndarray) else column
    return values
