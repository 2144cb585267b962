"""PostgreSQL's hash of a partition key, for one key at a time: which vbucket a row belongs to.

The router in the client library calls it for every statement, so it is pure Python without dependencies;
`hashing_columns` does the same for whole columns. The result is what `PARTITION BY HASH` computes (equal to
`satisfies_hash_partition`): a row belongs to the leaf `(m, r)` where `partition_hash(...) % m == r`.

Text is hashed by its UTF-8 bytes, as in a database of that encoding under a deterministic collation. A numeric must
have the value that is stored: for a column `numeric(p, s)` round to `s` digits first.
"""

from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from struct import unpack

from balancer.policies.keyspace.keys import (
    KeyMismatch,
    KeyType,
    KeyValue,
    checked_decimal,
    checked_int,
    date_to_int,
    text_bytes,
    timestamptz_to_int,
    uuid_bytes,
)

SEED = 0x7A5B22367996DCFD
COMBINE = 0x49A0F4DD15E5A8E3
START = 0x9E3779B9 + 3923095  # plus the length in bytes: the state before anything was mixed in

_M32 = 0xFFFFFFFF
_M64 = 0xFFFFFFFFFFFFFFFF
_DATE_INFINITY = 0x7FFFFFFF
_DATE_MINUS_INFINITY = -0x80000000

State = tuple[int, int, int]


def partition_hash(types: Sequence[KeyType], key: Sequence[KeyValue | None]) -> int:
    """The 64-bit hash of a row's whole partition key. NULL, given as None, counts as absent."""
    if len(key) != len(types):
        raise KeyMismatch(f"the key has {len(key)} values, the table's key has {len(types)} columns")
    row = 0
    for kind, value in zip(types, key, strict=True):
        if value is not None:
            row ^= (_HASHERS[kind](kind, value) + COMBINE + (row << 54) + (row >> 7)) & _M64
    return row


def key_hasher(types: Sequence[KeyType]) -> Callable[[Sequence[KeyValue | None]], int]:
    """`partition_hash` for one table, made once: a key of one column, the usual case, takes the shortest path."""
    if len(types) != 1:
        return lambda key: partition_hash(types, key)
    kind = types[0]
    hasher = _HASHERS[kind]

    def hash_single(key: Sequence[KeyValue | None]) -> int:
        if len(key) != 1:
            return partition_hash(types, key)  # refuses it
        value = key[0]
        return 0 if value is None else (hasher(kind, value) + COMBINE) & _M64

    return hash_single


def hash_value(kind: KeyType, value: KeyValue) -> int:
    """The seeded 64-bit hash of one value, as the type's extended hash function gives it."""
    return _HASHERS[kind](kind, value)


def hash_bytes(data: bytes) -> int:
    """Jenkins' lookup3 over bytes, with the seed mixed in first."""
    length = len(data)
    a, b, c = _STATES[length] if length < len(_STATES) else seeded_state(length)
    whole = length - length % 12
    for x, y, z in zip(*[iter(unpack(f"<{whole // 4}I", data[:whole]))] * 3, strict=True):
        a, b, c = _mix((a + x) & _M32, (b + y) & _M32, (c + z) & _M32)
    x, y, z = unpack("<3I", data[whole:].ljust(12, b"\0"))
    # The length is in the lowest byte of the last word: the tail's last bytes are above it.
    return _final((a + x) & _M32, (b + y) & _M32, (c + (z << 8)) & _M32)


def hash_int(value: int) -> int:
    """The hash shared by all integer widths: a number hashes the same whatever column it is in."""
    low = value & _M32
    if not -0x80000000 <= value <= 0x7FFFFFFF:
        high = (value >> 32) & _M32
        low ^= high if value >= 0 else high ^ _M32
    a, b, c = _STATES[4]
    return _final((a + low) & _M32, b, c)


def seeded_state(length: int) -> State:
    """lookup3's state for a key of this many bytes after the seed was mixed in."""
    start = (START + length) & _M32
    return _mix((start + (SEED >> 32)) & _M32, (start + SEED) & _M32, start)


def numeric_digits(number: Decimal) -> tuple[bytes, int] | None:
    """A finite numeric as PostgreSQL keeps it: digits of base 10,000 without outer zeros, and the first one's weight.

    Zero has no digits; NaN and the infinities give None.
    """
    if not number.is_finite():
        return None
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).lstrip("0")
    point = len(text) + exponent  # value = 0.text × 10 ** point
    weight = -(-point // 4) - 1
    text = ("0" * (4 * (weight + 1) - point) + text).rstrip("0")
    return b"".join(int(text[at : at + 4].ljust(4, "0")).to_bytes(2, "little") for at in range(0, len(text), 4)), weight


def stored_days(value: date | float) -> int:
    """A date as the 32-bit number that PostgreSQL hashes."""
    return max(_DATE_MINUS_INFINITY, min(date_to_int(value), _DATE_INFINITY))


def _hash_integer(kind: KeyType, value: KeyValue) -> int:
    return hash_int(checked_int(kind, value))


def _hash_text(_kind: KeyType, value: KeyValue) -> int:
    return hash_bytes(text_bytes(value))


def _hash_uuid(_kind: KeyType, value: KeyValue) -> int:
    return hash_bytes(uuid_bytes(value))


def _hash_timestamptz(kind: KeyType, value: KeyValue) -> int:
    if not isinstance(value, float | datetime):
        raise KeyMismatch(f"{value!r} is not a value of type {kind}")
    return hash_int(timestamptz_to_int(value))


def _hash_date(kind: KeyType, value: KeyValue) -> int:
    if not isinstance(value, float | date):
        raise KeyMismatch(f"{value!r} is not a value of type {kind}")
    return hash_int(stored_days(value))


def _hash_numeric(_kind: KeyType, value: KeyValue) -> int:
    parts = numeric_digits(checked_decimal(value))
    if parts is None:
        return SEED
    digits, weight = parts
    return hash_bytes(digits) ^ (weight & _M64) if digits else SEED - 1


_HASHERS: dict[KeyType, Callable[[KeyType, KeyValue], int]] = {
    KeyType.SMALLINT: _hash_integer,
    KeyType.INTEGER: _hash_integer,
    KeyType.BIGINT: _hash_integer,
    KeyType.TEXT: _hash_text,
    KeyType.UUID: _hash_uuid,
    KeyType.TIMESTAMPTZ: _hash_timestamptz,
    KeyType.DATE: _hash_date,
    KeyType.NUMERIC: _hash_numeric,
}


# In both, bits above the 32nd are cut off once per line: what a rotation leaves there cannot reach the lower ones.


def _mix(a: int, b: int, c: int) -> State:
    a = ((a - c) ^ (c << 4 | c >> 28)) & _M32
    c = (c + b) & _M32
    b = ((b - a) ^ (a << 6 | a >> 26)) & _M32
    a = (a + c) & _M32
    c = ((c - b) ^ (b << 8 | b >> 24)) & _M32
    b = (b + a) & _M32
    a = ((a - c) ^ (c << 16 | c >> 16)) & _M32
    c = (c + b) & _M32
    b = ((b - a) ^ (a << 19 | a >> 13)) & _M32
    a = (a + c) & _M32
    c = ((c - b) ^ (b << 4 | b >> 28)) & _M32
    return a, (b + a) & _M32, c


def _final(a: int, b: int, c: int) -> int:
    c = ((c ^ b) - (b << 14 | b >> 18)) & _M32
    a = ((a ^ c) - (c << 11 | c >> 21)) & _M32
    b = ((b ^ a) - (a << 25 | a >> 7)) & _M32
    c = ((c ^ b) - (b << 16 | b >> 16)) & _M32
    a = ((a ^ c) - (c << 4 | c >> 28)) & _M32
    b = ((b ^ a) - (a << 14 | a >> 18)) & _M32
    c = ((c ^ b) - (b << 24 | b >> 8)) & _M32
    return b << 32 | c


_STATES = tuple(seeded_state(length) for length in range(64))
