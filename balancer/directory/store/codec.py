"""Records as JSON documents and as bytes, versioned. Every stored document says which format it is in.

A document of another format is refused, not guessed at; missing fields take their defaults, so that newer software
reads older documents. `export` and `history` show the same documents to people. Nothing here does I/O.

Values of stored documents, each checked for its type: what comes from a store is hostile until then.

Records as stored bytes, and the mark of those that are over, which are decoded when somebody looks at them.

Finished migrations and answered commands are most of an old directory's records. No process needs them at start:
clients never do, a leader does at its first plan. They are stored with a mark of their own, so that a reader knows
without decoding that they change nothing; software that does not know the mark reads them as before.
"""

import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cache, partial
from typing import Any

from balancer.directory.model import (
    Bounds,
    Bundle,
    Change,
    Command,
    CommandState,
    Counter,
    Json,
    KeyColumn,
    Layout,
    LogEntry,
    Migration,
    MigrationKind,
    MigrationMode,
    Node,
    NodeState,
    Pause,
    Pin,
    Plan,
    Put,
    RangeBounds,
    Record,
    RecordKind,
    Remove,
    Table,
    Tablet,
    TabletState,
)
from balancer.directory.notes import SAMPLES
from balancer.directory.store.delta import LazyRecords, Repage
from balancer.errors import Damaged, Refused, UserError
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.keyspace.keys import KeyType
from balancer.untrusted import one_line, quoted

RECORD_KINDS = tuple(kind for kind in RecordKind if kind is not RecordKind.TABLET)
"""Kinds with a znode for each record; tablets are in pages."""


def text(value: Json) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{quoted(value)} is not a text")
    return value


def whole(value: Json) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{quoted(value)} is not a whole number")
    return value


def not_negative(value: Json) -> int:
    """A version, an epoch or a number of a page."""
    if whole(value) < 0:
        raise ValueError(f"{value} is negative")
    return int(value)


def number(value: Json) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{quoted(value)} is not a number")
    return float(value)


def flag(value: Json) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{quoted(value)} is not true or false")
    return value


def moment(value: Json) -> float | None:
    return None if value is None else number(value)


def mapping(value: Json) -> Mapping[str, Json]:
    if not isinstance(value, dict):
        raise TypeError(f"{quoted(value)} is not an object")
    return value


FORMAT = 2
"""The first byte of stored bytes. Raise it with every change that older software would misread."""
_FORMATS = range(1, 32)  # the only ones there will ever be: anything above begins a text, not one of our documents
_RAW, _DEFLATED = 0, 1
COLD = b"\2"
"""Instead of `_RAW`, for a record that is over: see `delta`. Software that does not know it reads it as raw."""
_COMPRESS_ABOVE = 1024  # bytes: the log entry of a few tablets is written and read uncompressed
MOST_INFLATED = 64 << 20
"""Bytes. A znode holds a megabyte at most, and what we write compresses to a tenth, not to a thousandth."""
MOST_OF_A_NOTE = 8 << 20
MOST_OF_SAMPLES = 1 << 20
"""Of one note of key samples, which any application may write: ours are at most half that size."""
DEEPEST = 64
"""Nesting depth of lists and objects: our documents have ten."""
_TOO_DEEP = f"a document has more than {DEEPEST} lists and objects within each other"
_DAMAGES = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
    *(UserError, struct.error, zlib.error),
)
_WINDOW, _MEMORY = 13, 6  # zlib's terms for 8 KB and 32 KB

_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)

CLASSES: Mapping[RecordKind, type[Any]] = {
    one.kind: one for one in (Bundle, Node, Table, Tablet, Migration, Command, Plan, Pin, Pause, Counter)
}


class Malformed(UserError):
    """A document that we did not write: which field, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """A commit as the log keeps it: what people see, and how the pages were redistributed."""

    entry: LogEntry
    repages: tuple[Repage, ...] = ()
    reset: bool = False
    """Everything was replaced (an import): followers load everything again."""


def pack(document: Json, *, cold: bool = False) -> bytes:
    """A document as stored bytes: format, compression, JSON."""
    text = _ENCODER.encode(document).encode()
    if cold:
        return bytes((FORMAT,)) + COLD + text
    if len(text) > _COMPRESS_ABOVE:
        return bytes((FORMAT, _DEFLATED)) + compress(text)
    return bytes((FORMAT, _RAW)) + text


def compress(data: bytes) -> bytes:
    """For `zlib.decompress`. Small tables: clearing zlib's usual ones takes longer than compressing a few kilobytes."""
    deflate = zlib.compressobj(1, zlib.DEFLATED, _WINDOW, _MEMORY)
    return deflate.compress(data) + deflate.flush()


def unpack(data: bytes, most: int = MOST_INFLATED) -> Json:
    """The document in stored bytes."""
    with reading_stored():
        check_format(data)
        return read_json(inflate(data[2:], most) if data[1] == _DEFLATED else data[2:])


def unpack_notes(topic: str, notes: Iterable[tuple[str, bytes]]) -> dict[str, Json]:
    """Notes by name. Skips what is not a note: any application may leave samples, and none may hide the others."""
    most = MOST_OF_SAMPLES if topic == SAMPLES else MOST_OF_A_NOTE
    found = {}
    for name, data in notes:
        with suppress(Refused):
            found[name] = unpack(data, most)
    return found


def inflate(data: bytes, most: int = MOST_INFLATED) -> bytes:
    """What `compress` was given; `ValueError` for more than we write: a few bytes can stand for gigabytes."""
    stream = zlib.decompressobj()
    inflated = stream.decompress(data, most)
    if not stream.eof:
        raise ValueError(f"a compressed part is cut off or longer than {most} bytes")
    return inflated


def read_json(data: bytes) -> Json:
    """The JSON in bytes; `ValueError` if it is not JSON, or nested deeper than anything that we write."""
    text = data.decode()
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if text.count("[") + text.count("{") > DEEPEST and _is_too_deep(document):
        raise ValueError(_TOO_DEEP)
    return document


def _is_too_deep(document: Json) -> bool:
    level = [document]
    for _ in range(DEEPEST):
        lists = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [part for parts in lists for part in parts]
        if not level:
            return False
    return True


def damaged(error: Exception) -> Damaged:
    """What a reader of stored bytes raises when they are not what was written."""
    what = f"there is no field {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
    return Damaged(f"the directory contains damaged data: {one_line(what, 300)}")


@contextmanager
def reading_stored() -> Iterator[None]:
    """Wraps everything that is made from stored bytes: whatever they make our readers do, the caller gets a sentence.

    That includes a `UserError`: nothing that a user gave is read here.
    """
    try:
        yield
    except _DAMAGES as error:
        raise damaged(error) from None


def check_format(data: bytes) -> None:
    """Refuses what another version of this software, or another program, has written."""
    if len(data) < 2 or data[0] not in _FORMATS:
        raise Damaged("the directory contains data that this software did not write: is it another program's?")
    if data[0] > FORMAT:
        raise Refused(f"the directory has format {data[0]}, written by a newer version; upgrade this one ({FORMAT})")
    if data[0] < FORMAT:
        raise Refused(
            f"the directory has format {data[0]}, written by an older version, and this one reads only {FORMAT}:"
            " export it with the older version and import it into an empty directory with this one"
        )


def to_document(record: Record) -> dict[str, Json]:
    """A record as JSON."""
    if isinstance(record, Tablet):
        return _tablet_document(record)
    if isinstance(record, Migration):
        plain = {f.name: getattr(record, f.name) for f in fields(record)}
        return plain | {"targets": [_tablet_document(tablet) for tablet in record.targets]}
    if isinstance(record, Table):
        return asdict(record)
    return {f.name: getattr(record, f.name) for f in fields(record)}


def from_document(kind: RecordKind, document: Json) -> Record:
    """The record in a document; `Malformed` names the field that is wrong."""
    if not isinstance(document, dict):
        raise Malformed(f"a {kind} must be an object, not {type(document).__name__}")
    values: dict[str, Any] = {}
    for name, reader, needed in _fields_of(kind):
        if name in document:
            try:
                values[name] = reader(document[name]) if reader else document[name]
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise Malformed(f"field {name!r} of a {kind} is wrong: {error}") from None
        elif needed:
            raise Malformed(f"a {kind} has no field {name!r}")
    record: Record = CLASSES[kind](**values)
    return record


@cache
def _fields_of(kind: RecordKind) -> list[tuple[str, Any, bool]]:
    """Name, reader and whether it is required: found out once, because a log entry may have hundreds of records."""
    return [
        (
            one.name,
            _READERS.get((kind, one.name)) or _READERS.get((None, one.name)),
            one.default is MISSING and one.default_factory is MISSING,
        )
        for one in fields(CLASSES[kind])
    ]


def bounds_document(bounds: Bounds) -> Json:
    """`[modulus, remainder]` of a leaf; hexadecimal lower and upper of a range."""
    if isinstance(bounds, Leaf):
        return [bounds.modulus, bounds.remainder]
    return {"lower": bounds.lower.hex(), "upper": bounds.upper.hex()}


def read_bounds(document: Json) -> Bounds:
    """The bounds in a document."""
    if isinstance(document, list):
        modulus, remainder = document
        return Leaf(int(modulus), int(remainder))
    return RangeBounds(bytes.fromhex(document["lower"]), bytes.fromhex(document["upper"]))


def _tablet_document(tablet: Tablet) -> dict[str, Json]:
    document = {
        "id": tablet.id,
        "table": tablet.table,
        "bounds": bounds_document(tablet.bounds),
        "node": tablet.node,
        "epoch": tablet.epoch,
    }
    if tablet.state is not TabletState.OWNED:
        document["state"] = tablet.state
    if tablet.partitions:
        document["partitions"] = list(tablet.partitions)
    return document


def _read_tablet(document: Json) -> Tablet:
    record = from_document(RecordKind.TABLET, document)
    assert isinstance(record, Tablet)
    return record


def _read_column(document: Json) -> KeyColumn:
    return KeyColumn(text(document["name"]), KeyType(document["type"]))


_READERS: dict[tuple[RecordKind | None, str], Any] = {
    (None, "id"): text,
    (RecordKind.TABLE, "id"): whole,
    (RecordKind.TABLET, "id"): whole,
    (None, "name"): text,
    (None, "bundle"): text,
    (None, "node"): text,
    (None, "dsn"): text,
    (None, "zone"): text,
    (None, "reason"): text,
    (None, "only"): text,
    (None, "rewound"): text,
    (None, "generation"): whole,
    (None, "author"): text,
    (None, "verb"): text,
    (None, "error"): text,
    (None, "result"): text,
    (None, "source_node"): text,
    (None, "target_node"): text,
    (None, "table"): whole,
    (None, "tablet"): whole,
    (None, "epoch"): whole,
    (None, "next"): whole,
    (None, "attempt"): whole,
    (None, "weight"): number,
    (None, "created"): number,
    (None, "updated"): number,
    (None, "until"): moment,
    (None, "finished"): flag,
    (None, "detail"): mapping,
    (None, "arguments"): mapping,
    (None, "bounds"): read_bounds,
    (None, "partitions"): lambda value: tuple(map(text, value)),
    (None, "roots"): lambda value: tuple(map(text, value)),
    (None, "columns"): lambda value: tuple(map(_read_column, value)),
    (None, "sources"): lambda value: tuple(map(whole, value)),
    (None, "targets"): lambda value: tuple(map(_read_tablet, value)),
    (None, "operation"): MigrationKind,
    (None, "mode"): MigrationMode,
    (None, "layout"): Layout,
    (None, "state"): text,
    (RecordKind.NODE, "state"): NodeState,
    (RecordKind.TABLET, "state"): TabletState,
    (RecordKind.COMMAND, "state"): CommandState,
}


def change_document(change: Change) -> list[Json]:
    """A change as `[kind, record]` (put) or `[kind, null, key]` (remove)."""
    if isinstance(change, Put):
        return [change.record.kind, to_document(change.record)]
    return [change.kind, None, change.key]


def read_change(document: Json) -> Change:
    """The change in a document."""
    kind = RecordKind(document[0])
    return Remove(kind, document[2]) if document[1] is None else Put(from_document(kind, document[1]))


def pack_entry(stored: StoredEntry) -> bytes:
    """A log entry as stored bytes."""
    entry = stored.entry
    return pack(
        {
            "version": entry.version,
            "transaction": entry.transaction,
            "at": entry.at,
            "author": entry.author,
            "leader_epoch": entry.leader_epoch,
            "reason": entry.reason,
            "changes": [change_document(change) for change in entry.changes],
            "repages": [[one.table, one.old, one.new] for one in stored.repages],
            "reset": stored.reset,
        }
    )


def unpack_entry(data: bytes) -> StoredEntry:
    """The log entry in stored bytes."""
    document = unpack(data)
    with reading_stored():
        return _read_entry(document)


def _read_entry(document: Json) -> StoredEntry:
    entry = LogEntry(
        not_negative(document["version"]),
        text(document["transaction"]),
        number(document["at"]),
        text(document["author"]),
        None if document["leader_epoch"] is None else not_negative(document["leader_epoch"]),
        text(document["reason"]),
        tuple(map(read_change, document["changes"])),
    )
    repages = tuple(
        Repage(table, tuple(old), tuple((number, rows) for number, rows in new))
        for table, old, new in document["repages"]
    )
    return StoredEntry(entry, repages, flag(document["reset"]))


_KINDS = frozenset((RecordKind.MIGRATION, RecordKind.COMMAND))


def pack_record(record: Record) -> bytes:
    """A record as stored bytes."""
    return pack(to_document(record), cold=is_over(record))


def is_over(record: Record) -> bool:
    """Whether nothing more will come of it."""
    if isinstance(record, Migration):
        return record.finished
    return isinstance(record, Command) and record.state in (CommandState.DONE, CommandState.REFUSED)


def is_cold(kind: RecordKind, data: bytes) -> bool:
    """Whether stored bytes are those of a record that is over, by their mark."""
    return kind in _KINDS and data[1:2] == COLD


def read_record(kind: RecordKind, key: str, data: bytes) -> Record:
    """The record in stored bytes, if it is the one that its place says: a copy under another name would be in force
    twice."""
    with reading_stored():
        record = from_document(kind, unpack(data))
        if record.key != key:
            raise ValueError(f"the place of {kind} {quoted(key)} holds {quoted(record.key)}")
        return record


def lazily(cold: Mapping[RecordKind, dict[str, bytes]]) -> dict[RecordKind, Mapping[Any, Any]]:
    """Stored records by kind and key, as a snapshot has them."""
    return {kind: LazyRecords(partial(read_record, kind), dict(stored)) for kind, stored in cold.items() if stored}
