"""Keys as bytes that compare as PostgreSQL compares the keys themselves.

A range tablet's bounds are two such byte strings, whatever the key's types: `lower <= key < upper`. Everything above
(the directory, the router, the policies) then needs no knowledge of types: it bisects bytes. `LOWEST` and `HIGHEST` are
the bounds of an unbounded tablet. A bound may stop early, as PostgreSQL's do: `(5, MINVALUE)` is the encoding of
`(5,)`, which sorts before every key that begins with 5; `(5, MAXVALUE)` is that followed by `HIGHEST`.

Text compares by its bytes (collation C). A key never contains NULL: PostgreSQL has no range partition for it.

Key values as text: as people write them, as PostgreSQL prints them (with UTC and ISO dates), and back.

The only place that knows both ways: the command line, the API, bundles' files and the nodes' catalogs all use it.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from uuid import UUID

LOWEST = b""
HIGHEST = b"\xff"

_PRESENT = 0x05  # opens every value, so that a shorter bound sorts first and HIGHEST sorts last
_SIGN = 1 << 63
_MASK = (1 << 64) - 1
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_EPOCH_DATE = date(2000, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_INFINITY = float("inf")
_INT_MAX = (1 << 63) - 1
_INT_MIN = -(1 << 63)

_NEG_INF, _NEGATIVE, _ZERO, _POSITIVE, _INF, _NAN = range(1, 7)

KeyValue = int | str | UUID | datetime | date | Decimal | float
"""One column of a key; the floats are only ±infinity, of a date or a timestamptz."""

Key = tuple[KeyValue, ...]


class KeyType(StrEnum):
    """The PostgreSQL types a key column may have, by the name PostgreSQL prints."""

    SMALLINT = "smallint"
    INTEGER = "integer"
    BIGINT = "bigint"
    TEXT = "text"
    UUID = "uuid"
    TIMESTAMPTZ = "timestamp with time zone"
    DATE = "date"
    NUMERIC = "numeric"


_LIMITS = {
    kind: (-(1 << bits - 1), (1 << bits - 1) - 1)
    for kind, bits in (
        (KeyType.SMALLINT, 16),
        (KeyType.INTEGER, 32),
        (KeyType.BIGINT, 64),
        (KeyType.TIMESTAMPTZ, 64),
    )
}


class KeyMismatch(ValueError):
    """A key does not fit the table's key columns."""


def encode_key(types: Sequence[KeyType], key: Sequence[KeyValue], *, prefix: bool = False) -> bytes:
    """The key's bytes. With `prefix`, fewer values than columns are allowed: the bound `(…, MINVALUE)`."""
    if len(key) > len(types) or (len(key) < len(types) and not prefix):
        raise KeyMismatch(f"the key has {len(key)} values, the table's key has {len(types)} columns")
    return b"".join(encode_value(kind, value) for kind, value in zip(types, key, strict=False))


def decode_key(types: Sequence[KeyType], data: bytes) -> Key:
    """The values of a whole key."""
    return decode_bound(types, data)[0]


def decode_bound(types: Sequence[KeyType], data: bytes) -> tuple[Key, bool]:
    """The values a bound names, and whether the columns it leaves out are MAXVALUE (True) or MINVALUE (False)."""
    values: list[KeyValue] = []
    at = 0
    for kind in types:
        if at >= len(data) or data[at] == HIGHEST[0]:
            break
        value, at = _decode_value(kind, data, at + 1)
        values.append(value)
    return tuple(values), data[at:] == HIGHEST


def encode_value(kind: KeyType, value: KeyValue) -> bytes:
    """One value's bytes, self-delimiting."""
    match kind:
        case KeyType.SMALLINT | KeyType.INTEGER | KeyType.BIGINT:
            return _encode_int(checked_int(kind, value))
        case KeyType.TEXT:
            return bytes((_PRESENT,)) + text_bytes(value) + b"\0"
        case KeyType.UUID:
            return bytes((_PRESENT,)) + uuid_bytes(value)
        case KeyType.TIMESTAMPTZ if isinstance(value, float | datetime):
            return _encode_int(timestamptz_to_int(value))
        case KeyType.DATE if isinstance(value, float | date):
            return _encode_int(date_to_int(value))
        case KeyType.NUMERIC:
            return bytes((_PRESENT,)) + _encode_numeric(checked_decimal(value))
        case _:
            raise KeyMismatch(f"{value!r} is not a value of type {kind}")


def text_bytes(value: KeyValue) -> bytes:
    """A text as PostgreSQL stores it in a database whose encoding is UTF-8."""
    if not isinstance(value, str):
        raise KeyMismatch(f"{value!r} is not a value of type {KeyType.TEXT}")
    if "\0" in value:
        raise KeyMismatch("a text key cannot contain the character NUL")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise KeyMismatch("a text key cannot contain half of a surrogate pair") from None


def uuid_bytes(value: KeyValue) -> bytes:
    """The 16 bytes of a UUID, which may be given as text."""
    if isinstance(value, UUID):
        return value.bytes
    try:
        return UUID(str(value)).bytes
    except ValueError:
        raise KeyMismatch(f"{value!r} is not a value of type {KeyType.UUID}") from None


def checked_decimal(value: KeyValue) -> Decimal:
    """The value as a numeric; floats are refused, because what they print is not what they hold."""
    if not isinstance(value, int | Decimal) or isinstance(value, bool):
        raise KeyMismatch(f"{value!r} is not a value of type {KeyType.NUMERIC}")
    return Decimal(value)


def timestamptz_to_int(value: float | datetime) -> int:
    """Microseconds since 2000-01-01 UTC, as PostgreSQL stores it; ±infinity are its extremes."""
    if isinstance(value, float):
        return _infinity(value)
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise KeyMismatch(f"{value!r} has no time zone; a timestamptz key needs one")
    return (value - _EPOCH) // _MICROSECOND


def date_to_int(value: float | date) -> int:
    """Days since 2000-01-01, as PostgreSQL stores it; ±infinity are the extremes of 64 bits here."""
    if isinstance(value, float):
        return _infinity(value)
    if isinstance(value, datetime):
        raise KeyMismatch(f"{value!r} is a timestamp; a date key needs a date")
    return (value - _EPOCH_DATE).days


def _infinity(value: float) -> int:
    if value == _INFINITY:
        return _INT_MAX
    if value == -_INFINITY:
        return _INT_MIN
    raise KeyMismatch(f"{value!r} is not a date; the only floats allowed are the infinities")


def integer_limits(kind: KeyType) -> tuple[int, int]:
    """The smallest and the largest number an integer type holds; a timestamptz is stored as a bigint."""
    return _LIMITS[kind]


def checked_int(kind: KeyType, value: KeyValue) -> int:
    """The value as a number that fits into this integer type."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise KeyMismatch(f"{value!r} is not a value of type {kind}")
    lowest, highest = _LIMITS[kind]
    if not lowest <= value <= highest:
        raise KeyMismatch(f"{value} does not fit into {kind}")
    return value


def _encode_int(value: int) -> bytes:
    return bytes((_PRESENT,)) + ((value & _MASK) ^ _SIGN).to_bytes(8, "big")


def _decode_int(data: bytes, at: int) -> tuple[int, int]:
    raw = int.from_bytes(data[at : at + 8], "big") ^ _SIGN
    return (raw - (1 << 64) if raw >= _SIGN else raw), at + 8


def _decode_value(kind: KeyType, data: bytes, at: int) -> tuple[KeyValue, int]:
    match kind:
        case KeyType.SMALLINT | KeyType.INTEGER | KeyType.BIGINT:
            return _decode_int(data, at)
        case KeyType.TEXT:
            end = data.index(b"\0", at)
            return data[at:end].decode(), end + 1
        case KeyType.UUID:
            return UUID(bytes=data[at : at + 16]), at + 16
        case KeyType.TIMESTAMPTZ:
            number, at = _decode_int(data, at)
            return _finite(number) or _EPOCH + number * _MICROSECOND, at
        case KeyType.DATE:
            number, at = _decode_int(data, at)
            return _finite(number) or _EPOCH_DATE + timedelta(days=number), at
        case KeyType.NUMERIC:
            return _decode_numeric(data, at)


def _finite(number: int) -> float | None:
    """The infinity this integer stands for, if it stands for one."""
    if number == _INT_MAX:
        return _INFINITY
    return -_INFINITY if number == _INT_MIN else None


def _encode_numeric(value: Decimal) -> bytes:
    """Class byte, then for finite non-zero values: exponent, digit pairs plus one, end; inverted if negative."""
    if value.is_nan():
        return bytes((_NAN,))
    if value.is_infinite():
        return bytes((_INF if value > 0 else _NEG_INF,))
    if not value:
        return bytes((_ZERO,))
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).lstrip("0")
    scale = len(text) + exponent  # value = 0.text × 10 ** scale
    text = text.rstrip("0")
    text += "0" * (len(text) % 2)
    body = (scale + (1 << 31)).to_bytes(4, "big")
    body += bytes(int(text[i : i + 2]) + 1 for i in range(0, len(text), 2)) + b"\0"
    if sign:
        return bytes((_NEGATIVE,)) + bytes(255 - byte for byte in body)
    return bytes((_POSITIVE,)) + body


def _decode_numeric(data: bytes, at: int) -> tuple[Decimal, int]:
    kind = data[at]
    special = {_NAN: "NaN", _INF: "Infinity", _NEG_INF: "-Infinity", _ZERO: "0"}.get(kind)
    if special is not None:
        return Decimal(special), at + 1
    negative = kind == _NEGATIVE
    end = data.index(b"\xff" if negative else b"\0", at + 5)
    body = data[at + 1 : end]
    if negative:
        body = bytes(255 - byte for byte in body)
    text = "".join(f"{pair - 1:02d}" for pair in body[4:]).rstrip("0")
    scale = int.from_bytes(body[:4], "big") - (1 << 31)
    return Decimal((int(negative), tuple(map(int, text)), scale - len(text))), end + 1


_INFINITIES = {"infinity": float("inf"), "-infinity": float("-inf")}


def parse_value(kind: KeyType, text: str) -> KeyValue:
    """The value; `KeyMismatch` if the text is not one, or is one that we cannot represent (a date before Christ)."""
    try:
        return _PARSERS[kind](text)
    except (ValueError, ArithmeticError):
        raise KeyMismatch(f"{text!r} is not a value of type {kind}") from None


def show_value(value: KeyValue) -> str:
    """What `parse_value` turns into this value again."""
    if isinstance(value, float):  # only the infinities
        return "infinity" if value > 0 else "-infinity"
    return str(value)


def _timestamptz(text: str) -> KeyValue:
    return _INFINITIES.get(text) or datetime.fromisoformat(text)


def _date(text: str) -> KeyValue:
    return _INFINITIES.get(text) or date.fromisoformat(text)


_PARSERS: Mapping[KeyType, Callable[[str], KeyValue]] = {
    KeyType.SMALLINT: int,
    KeyType.INTEGER: int,
    KeyType.BIGINT: int,
    KeyType.TEXT: str,
    KeyType.UUID: UUID,
    KeyType.TIMESTAMPTZ: _timestamptz,
    KeyType.DATE: _date,
    KeyType.NUMERIC: Decimal,
}
