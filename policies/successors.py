"""The key right after a key: where a tablet that holds one key alone ends.

`heat` asks for it when it isolates a hot key. Both bounds must be ones that PostgreSQL can name, so a successor is made
from the key's last column: the next whole number, day, microsecond or UUID, or the text with the smallest character
appended. A numeric has none: between any two there is another.
"""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

from balancer.policies.keys import HIGHEST, KeyType, KeyValue, decode_key, encode_key, integer_limits

_LAST_UUID = UUID(int=(1 << 128) - 1)
_LAST_TIME = datetime.max.replace(tzinfo=UTC)


def successor(types: Sequence[KeyType], key: bytes) -> bytes | None:
    """The bound that immediately follows this key; None if there is no such bound.

    After the greatest value of the last column comes the end of all keys that begin with the other columns; for a key
    of one column that is the end of the table.
    """
    values = decode_key(types, key)
    kind, last = types[-1], values[-1]
    if isinstance(last, Decimal | float):
        return None
    following = _next_value(kind, last)
    if following is None:
        return encode_key(types, values[:-1], prefix=True) + HIGHEST
    return encode_key(types, (*values[:-1], following))


def _next_value(kind: KeyType, value: KeyValue) -> KeyValue | None:
    """The next value of a column; None after the greatest."""
    if isinstance(value, str):
        return value + "\x01"
    if isinstance(value, UUID):
        return None if value == _LAST_UUID else UUID(int=value.int + 1)
    if isinstance(value, datetime):
        return float("inf") if value == _LAST_TIME else value + timedelta(microseconds=1)
    if isinstance(value, date):
        return float("inf") if value == date.max else value + timedelta(days=1)
    assert isinstance(value, int)
    return None if value == integer_limits(kind)[1] else value + 1
