"""Keys as text: what comes in an address or a document, and how bounds are shown. `policies.keys` knows the bytes."""

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from uuid import UUID

from balancer.directory.model import Layout, RangeBounds, Table, Tablet
from balancer.directory.pages import Position
from balancer.errors import UserError
from policies.hashing import partition_hash
from policies.keys import HIGHEST, LOWEST, KeyMismatch, KeyType, KeyValue, decode_bound, encode_key
from policies.leaves import Leaf, position

_INFINITIES = {"infinity": float("inf"), "-infinity": float("-inf")}


def parse_value(kind: KeyType, text: str) -> KeyValue:
    """One column of a key, written as PostgreSQL writes it (times in ISO 8601 with an offset)."""
    try:
        match kind:
            case KeyType.SMALLINT | KeyType.INTEGER | KeyType.BIGINT:
                return int(text)
            case KeyType.TEXT:
                return text
            case KeyType.UUID:
                return UUID(text)
            case KeyType.NUMERIC:
                return Decimal(text)
            case KeyType.DATE:
                return _INFINITIES[text] if text in _INFINITIES else date.fromisoformat(text)
            case KeyType.TIMESTAMPTZ:
                return _INFINITIES[text] if text in _INFINITIES else datetime.fromisoformat(text)
    except (ValueError, InvalidOperation):
        raise UserError(f"{text!r} is not a value of type {kind}") from None


def position_of(table: Table, key: Sequence[str]) -> Position:
    """Where a key stands in its table: what `Snapshot.locate` takes."""
    if len(key) != len(table.columns):
        names = ", ".join(column.name for column in table.columns)
        raise UserError(f"the key of {table.name} is ({names}): give one `key` for each, in this order")
    values = tuple(parse_value(kind, text) for kind, text in zip(table.key_types, key, strict=True))
    try:
        if table.layout is Layout.HASH:
            return position(partition_hash(table.key_types, values))
        return encode_key(table.key_types, values)
    except KeyMismatch as error:
        raise UserError(str(error)) from None


def bound_values(types: Sequence[KeyType], bound: bytes) -> list[str] | None:
    """The values of a bound as text; None: unbounded."""
    if bound in (LOWEST, HIGHEST):
        return None
    values, above = decode_bound(types, bound)
    return [*map(str, values), *(["MAXVALUE"] if above and len(values) < len(types) else [])]


def bound_text(types: Sequence[KeyType], bound: bytes) -> str:
    """A bound in a few characters; empty: unbounded."""
    values = bound_values(types, bound)
    return "" if values is None else ", ".join(values)


def tablet_bounds(table: Table, tablet: Tablet) -> dict[str, object]:
    """The fields of a tablet's document that say which keys it holds."""
    if isinstance(tablet.bounds, Leaf):
        return {"modulus": tablet.bounds.modulus, "remainder": tablet.bounds.remainder}
    assert isinstance(tablet.bounds, RangeBounds)
    types = table.key_types
    return {"lower": bound_values(types, tablet.bounds.lower), "upper": bound_values(types, tablet.bounds.upper)}
