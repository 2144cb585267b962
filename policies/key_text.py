"""Key values as text: as people write them, as PostgreSQL prints them (with UTC and ISO dates), and back.

The only place that knows both ways: the command line, the API, bundles' files and the nodes' catalogs all use it.
"""

from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from uuid import UUID

from balancer.policies.keys import KeyMismatch, KeyType, KeyValue

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
