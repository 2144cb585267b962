"""Keys as text: what comes in an address or a document, and how bounds are shown. `policies.keys` knows the bytes."""

from collections.abc import Sequence

from balancer.client.locate import key_position, parse_key
from balancer.directory.model import RangeBounds, Table, Tablet
from balancer.directory.pages import Position
from balancer.directory.snapshot import Snapshot
from balancer.errors import UserError
from balancer.outside import quoted
from balancer.policies.hash_leaves import Leaf
from balancer.policies.key_text import parse_value, show_value
from balancer.policies.keys import HIGHEST, LOWEST, KeyMismatch, KeyType, decode_bound, encode_key


def position_of(table: Table, key: Sequence[str]) -> Position:
    """Where a key lies in its table: what `Snapshot.locate` takes. `UserError` for one that does not fit."""
    return key_position(table, parse_key(table, key))


def bound_values(types: Sequence[KeyType], bound: bytes) -> list[str] | None:
    """The values of a bound as text; None: unbounded."""
    if bound in (LOWEST, HIGHEST):
        return None
    values, above = decode_bound(types, bound)
    return [*map(show_value, values), *(["MAXVALUE"] if above and len(values) < len(types) else [])]


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


def encoded_prefix(snapshot: Snapshot, tablet: int, key: Sequence[int | str]) -> bytes:
    """A key, or its first columns, as the directory keeps the place where a range is cut."""
    found = snapshot.tablet(tablet)
    if not isinstance(found.bounds, RangeBounds):
        raise UserError(f"tablet {tablet} is a vbucket: it is split into its halves, without keys")
    types = snapshot.tables[found.table].key_types
    if len(key) > len(types):
        raise UserError(f"a key of this table has {len(types)} columns, not {len(key)}")
    try:
        values = [parse_value(kind, str(value)) for kind, value in zip(types, key, strict=False)]
        return encode_key(types, values, prefix=True)
    except KeyMismatch as error:
        raise UserError(f"{quoted(', '.join(map(str, key)))} cannot be a key of this table: {error}") from None
