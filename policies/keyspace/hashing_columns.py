"""PostgreSQL's hash of partition keys, for whole columns at once: `hashing` in numpy.

For bulk work: grouping many keys by tablet, judging samples, checking a table's rows. A column is a sequence of values
as `hashing.partition_hash` takes them (None is NULL) or, without any conversion per value, an array:

| type                        | array                                                        |
|-----------------------------|--------------------------------------------------------------|
| smallint, integer, bigint   | any integer dtype                                            |
| timestamptz                 | datetime64 (UTC), or int64 microseconds since 2000-01-01 UTC |
| date                        | datetime64, or integer days since 2000-01-01                 |
| uuid                        | uint8 of shape (n, 16)                                       |
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from balancer.policies.keyspace.hashing import COMBINE, SEED, START, numeric_digits, seeded_state, stored_days
from balancer.policies.keyspace.keys import (
    KeyMismatch,
    KeyType,
    KeyValue,
    checked_decimal,
    checked_int,
    encode_value,
    integer_limits,
    text_bytes,
    timestamptz_to_int,
    uuid_bytes,
)

UInts = npt.NDArray[np.uint64]
Words = npt.NDArray[np.uint32]
Column = npt.NDArray[Any] | Sequence[KeyValue | None]
Present = npt.NDArray[Any] | Sequence[KeyValue]
"""A column without its NULLs."""

CHUNK = 1 << 16  # values at a time: the few arrays that the mixing works on stay in the processor's cache
INTEGERS = (KeyType.SMALLINT, KeyType.INTEGER, KeyType.BIGINT)

_LOW = np.int64(0xFFFFFFFF)
_EPOCH = np.datetime64("2000-01-01", "us")
_EPOCH_DAY = np.datetime64("2000-01-01", "D")
_WORD_BYTES = 4
_BLOCK = 12
_UUID_BYTES = 16


def partition_hashes(types: Sequence[KeyType], columns: Sequence[Column]) -> UInts:
    """The 64-bit hash of each row's partition key; one column per key column, all of one length."""
    if len(columns) != len(types) or not types:
        raise KeyMismatch(f"there are {len(columns)} columns of keys, the table's key has {len(types)}")
    lengths = sorted({len(column) for column in columns})
    if len(lengths) > 1:
        raise KeyMismatch(f"the columns of keys differ in length: {lengths[0]} and {lengths[-1]}")
    rows = np.zeros(lengths[0], np.uint64)
    for kind, column in zip(types, columns, strict=True):
        _combine(rows, kind, column)
    return rows


def positions(hashes: UInts) -> UInts:
    """Where keys with these hashes lie among the leaves: the bits of each in reverse order."""
    bits = hashes.byteswap()
    for mask, shift in ((0x0F0F0F0F0F0F0F0F, 4), (0x3333333333333333, 2), (0x5555555555555555, 1)):
        low, by = np.uint64(mask), np.uint64(shift)
        bits = ((bits & low) << by) | ((bits >> by) & low)
    return bits


def _combine(rows: UInts, kind: KeyType, column: Column) -> None:
    """Mixes one column's hashes into the rows' in place; a NULL leaves its row as it was."""
    if isinstance(column, np.ndarray):
        rows ^= _mixed_in(rows, _hash_column(kind, column))
        return
    present = np.fromiter((value is not None for value in column), bool, len(column))
    before = rows[present]
    hashed = _hash_column(kind, [value for value in column if value is not None])
    rows[present] = before ^ _mixed_in(before, hashed)


def _mixed_in(before: UInts, hashed: UInts) -> UInts:
    hashed += np.uint64(COMBINE)
    hashed += before << np.uint64(54)
    hashed += before >> np.uint64(7)
    return hashed


def _hash_column(kind: KeyType, column: Present) -> UInts:
    if kind is KeyType.TEXT:
        return _hash_texts(column)
    if kind is KeyType.UUID:
        return _hash_uuids(column)
    if kind is KeyType.NUMERIC:
        return _hash_numerics(column)
    return _hash_ints(_stored_ints(kind, column))


def _stored_ints(kind: KeyType, column: Present) -> npt.NDArray[np.int64]:
    """What PostgreSQL stores for an integer, a date or a timestamptz."""
    if not isinstance(column, np.ndarray):
        return np.fromiter(_stored_values(kind, column), np.int64, len(column))
    if column.dtype.kind == "M" and kind in (KeyType.DATE, KeyType.TIMESTAMPTZ):
        return _stored_times(kind, column)
    if column.dtype.kind not in "iu":
        raise KeyMismatch(f"an array of {column.dtype} holds no values of type {kind}")
    lowest, highest = integer_limits(KeyType.INTEGER if kind is KeyType.DATE else kind)
    if len(column) and not (lowest <= int(column.min()) and int(column.max()) <= highest):
        raise KeyMismatch(f"the array has values that do not fit into {kind}")
    return column.astype(np.int64, copy=False)


def _stored_times(kind: KeyType, column: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    times = column.astype("datetime64[us]")
    if np.isnat(times).any():
        raise KeyMismatch(f"the array has times that are not a {kind}; give NULLs as None in a list")
    if kind is KeyType.DATE:
        return (times.astype("datetime64[D]") - _EPOCH_DAY).astype(np.int64)
    return (times - _EPOCH).astype(np.int64)


def _stored_values(kind: KeyType, column: Sequence[KeyValue]) -> Iterator[int]:
    for value in column:
        if kind in INTEGERS:
            yield checked_int(kind, value)
            continue
        encode_value(kind, value)  # refuses what is not of the type
        yield stored_days(value) if kind is KeyType.DATE else timestamptz_to_int(value)  # type: ignore[arg-type]


def _hash_ints(values: npt.NDArray[np.int64]) -> UInts:
    hashed = np.empty(len(values), np.uint64)
    a0, b0, c0 = (np.uint32(word) for word in seeded_state(_WORD_BYTES))
    for at in range(0, len(values), CHUNK):
        part = values[at : at + CHUNK]
        high = part >> np.int64(32)
        # For a negative number the high half is inverted: then every width of integer hashes alike.
        folded = ((part ^ high ^ (part >> np.int64(63))) & _LOW).astype(np.uint32)
        folded += a0
        hashed[at : at + CHUNK] = _final(folded, np.full(len(part), b0), np.full(len(part), c0))
    return hashed


def _hash_texts(column: Present) -> UInts:
    values = column.tolist() if isinstance(column, np.ndarray) else column
    return hash_bytes_column([text_bytes(value) for value in values])


def _hash_uuids(column: Present) -> UInts:
    if isinstance(column, np.ndarray) and column.dtype == np.uint8 and column.shape[1:] == (_UUID_BYTES,):
        octets: npt.NDArray[np.uint8] = np.ascontiguousarray(column, np.uint8)
    else:
        values = column.tolist() if isinstance(column, np.ndarray) else column
        joined = b"".join(uuid_bytes(value) for value in values)
        octets = np.frombuffer(joined, np.uint8).reshape(-1, _UUID_BYTES)
    words = np.zeros((len(octets), 2 * _BLOCK // _WORD_BYTES), "<u4")
    words[:, : _UUID_BYTES // _WORD_BYTES] = octets.view("<u4")
    return _hash_words(words, np.full(len(octets), _UUID_BYTES, np.uint32))


def _hash_numerics(column: Present) -> UInts:
    """The digits of each value are found one by one, then hashed together."""
    values = column.tolist() if isinstance(column, np.ndarray) else column
    digits, weights, special = [], np.zeros(len(values), np.int64), {}
    for row, value in enumerate(values):
        parts = numeric_digits(checked_decimal(value))
        if parts is None or not parts[0]:
            special[row] = SEED if parts is None else SEED - 1
        found, weights[row] = parts or (b"", 0)
        digits.append(found)
    hashed = hash_bytes_column(digits) ^ weights.view(np.uint64)
    hashed[list(special)] = list(special.values())
    return hashed


def hash_bytes_column(values: Sequence[bytes]) -> UInts:
    """`hashing.hash_bytes` of each. Values with equally many whole blocks of 12 bytes are mixed together."""
    hashed = np.empty(len(values), np.uint64)
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    blocks = lengths // _BLOCK
    for count in np.unique(blocks):
        rows = np.flatnonzero(blocks == count)
        width = (int(count) + 1) * _BLOCK
        padded = np.array([values[row] for row in rows.tolist()], f"S{width}")
        words = padded.view("<u4").reshape(len(rows), -1)
        hashed[rows] = _hash_words(words, lengths[rows].astype(np.uint32))
    return hashed


def _hash_words(words: Words, lengths: Words) -> UInts:
    """lookup3 over rows of words: whole blocks, and one more that holds the tail padded with zeros."""
    hashed = np.empty(len(words), np.uint64)
    for at in range(0, len(words), CHUNK):
        part = words[at : at + CHUNK]
        start = lengths[at : at + CHUNK] + np.uint32(START & 0xFFFFFFFF)
        a, b, c = _mix(start + np.uint32(SEED >> 32), start + np.uint32(SEED & 0xFFFFFFFF), start)
        tail = part.shape[1] - 3
        for block in range(0, tail, 3):
            a, b, c = _mix(a + part[:, block], b + part[:, block + 1], c + part[:, block + 2])
        # The length is in the lowest byte of the last word: the tail's last bytes are above it.
        last = c + (part[:, tail + 2] << np.uint32(8))
        hashed[at : at + CHUNK] = _final(a + part[:, tail], b + part[:, tail + 1], last)
    return hashed


def _rotated(words: Words, by: int) -> Words:
    return (words << np.uint32(by)) | (words >> np.uint32(32 - by))


def _mix(a: Words, b: Words, c: Words) -> tuple[Words, Words, Words]:
    for first, second, third in ((4, 6, 8), (16, 19, 4)):
        a = (a - c) ^ _rotated(c, first)
        c = c + b
        b = (b - a) ^ _rotated(a, second)
        a = a + c
        c = (c - b) ^ _rotated(b, third)
        b = b + a
    return a, b, c


def _final(a: Words, b: Words, c: Words) -> UInts:
    """Mixes the last words in place and returns the upper and the lower half of the hash as one."""
    for target, by, rotation in ((c, b, 14), (a, c, 11), (b, a, 25), (c, b, 16), (a, c, 4), (b, a, 14), (c, b, 24)):
        np.bitwise_xor(target, by, out=target)
        np.subtract(target, _rotated(by, rotation), out=target)
    return (b.astype(np.uint64) << np.uint64(32)) | c
