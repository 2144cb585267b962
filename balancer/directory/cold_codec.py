"""Records as stored bytes, and the mark of those that are over, which are decoded when somebody looks at them.

Finished migrations and answered commands are most of an old directory's records. No process needs them at start:
clients never do, a leader does at its first plan. They are stored with a mark of their own, so that a reader knows
without decoding that they change nothing; software that does not know the mark reads them as before.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from balancer.directory.codec import COLD, from_document, pack, reading_stored, to_document, unpack
from balancer.directory.lazy_records import LazyRecords
from balancer.directory.model import Command, CommandState, Migration, Record, RecordKind
from balancer.outside import quoted

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
