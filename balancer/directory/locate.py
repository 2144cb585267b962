"""Which tablet owns a key: the plain way, for one key and any snapshot.

The coordinator (`/v1/route`) and `balancer route` call `locate_key`; the router keeps `client/keys/lookup.TableMap`s in
addition, for speed, and gives the same answers. Nothing here does I/O.

Keys as text: what comes in an address or a document, and how bounds are shown. `policies.keyspace.keys` knows the
bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from balancer.directory.model import RangeBounds, Table, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.directory.store.pages import Position
from balancer.errors import UserError
from balancer.policies.keyspace.hash_leaves import Leaf, position
from balancer.policies.keyspace.hashing import partition_hash
from balancer.policies.keyspace.keys import (
    HIGHEST,
    LOWEST,
    KeyMismatch,
    KeyType,
    KeyValue,
    decode_bound,
    encode_key,
    parse_value,
    show_value,
)
from balancer.untrusted import quoted

POSITION_BITS = 16
SEQUENCE_BITS = 63 - POSITION_BITS
"""For an id that carries its vbucket: see `client/keys/ids`."""


@dataclass(frozen=True, slots=True)
class RowId:
    """An id made by `client/keys/ids.LocatedIds`, to be given instead of the key that it was made for."""

    id: int

    @property
    def position(self) -> int:
        """The first of the positions that it stands for."""
        return self.id >> SEQUENCE_BITS << (64 - POSITION_BITS)


LONGEST_KEY_TEXT = 8192
"""Characters of one value: anything longer does not fit into a page, and so into no index."""

AnyKey = KeyValue | None | Sequence[KeyValue | None] | RowId
"""A key as applications give it: the value itself if the key has one column, otherwise a tuple or list of values."""

NO_KEY: AnyKey = ()
"""Of a whole table."""


class Location(NamedTuple):
    """Where a key lives."""

    node: str
    tablet: int
    epoch: int
    """The tablet's epoch: it grows with each change of owner, so the node can tell an old map from a new one."""


def locate_key(snapshot: Snapshot, table_name: str, key: AnyKey) -> Location:
    """The owner of a key. Raises `UserError` for an unknown table or a key that does not fit it."""
    table = snapshot.table(table_name)
    tablet = snapshot.locate(table.id, key_position(table, key))
    return Location(tablet.node, tablet.id, tablet.epoch)


def key_position(table: Table, key: AnyKey) -> int | bytes:
    """Where a key lies among the table's tablets."""
    if isinstance(key, RowId):
        if not table.hashed or table.whole or key.id < 0:
            raise UserError(f"{key} is not an id that tells where it is in table {table.name}")
        return key.position
    values = key_values(key)
    if table.whole and values:
        raise UserError(f"table {table.name} is whole: it has no key, and {quoted(key)} was given")
    try:
        if table.hashed:
            return position(partition_hash(table.key_types, values))
        present = [value for value in values if value is not None]
        if len(present) < len(values):
            raise KeyMismatch("a key of a range table cannot contain NULL")  # noqa: TRY301 - one sentence for all
        return encode_key(table.key_types, present)
    except KeyMismatch as error:
        columns = ", ".join(f"{column.name} {column.type}" for column in table.key_columns)
        raise UserError(f"key {quoted(key)} does not fit table {table.name} ({columns}): {error}") from None


def key_values(key: KeyValue | Sequence[KeyValue | None] | None) -> Sequence[KeyValue | None]:
    """The values of a key, one for each column."""
    return key if isinstance(key, tuple | list) else (key,)


def parse_key(table: Table, texts: Sequence[str]) -> tuple[KeyValue, ...]:
    """A key given as text, one for each column, as on a command line or in a URL."""
    columns = table.key_columns
    if table.whole and texts:
        raise UserError(f"table {table.name} is whole: it has no key, and {len(texts)} values were given")
    if len(texts) != len(columns):
        names = ", ".join(column.name for column in columns)
        raise UserError(f"table {table.name} has the key ({names}): {len(columns)} values, not {len(texts)}")
    if any(len(text) > LONGEST_KEY_TEXT for text in texts):
        raise UserError(f"a value of a key has at most {LONGEST_KEY_TEXT} characters, as an index page has")
    return tuple(_parsed(column.name, column.type, text) for column, text in zip(columns, texts, strict=True))


def _parsed(name: str, kind: KeyType, text: str) -> KeyValue:
    try:
        return parse_value(kind, text)
    except KeyMismatch as error:
        raise UserError(f"{error}, which key column {name} has") from None


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
