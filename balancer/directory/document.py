"""The whole directory as one JSON document: what `balancer directory export` writes and `import` reads.

A document is validated in full before any of it is written: every field, then every invariant.
"""

from collections.abc import Sequence
from typing import Any

from balancer.directory.codec import Malformed, from_document, to_document
from balancer.directory.invariants import faults_of
from balancer.directory.model import Json, Record, RecordKind
from balancer.directory.snapshot import Snapshot
from balancer.errors import UserError
from balancer.outside import quoted

FORMAT = 1
"""Of the document, not of stored bytes: an export outlives changes to those, so it can carry data across them."""
_SHOWN = 10  # violations in one message


def records_of(snapshot: Snapshot) -> list[Record]:
    """Every record, in an order in which each comes after what it refers to."""
    records: list[Record] = []
    for kind in RecordKind:
        if kind is RecordKind.TABLET:
            records.extend(tablet for table in sorted(snapshot.index) for tablet in snapshot.tablets(table))
        else:
            records.extend(snapshot.of(kind)[key] for key in sorted(snapshot.of(kind)))
    return records


def export_document(snapshot: Snapshot, instead: Sequence[Record] = ()) -> dict[str, Json]:
    """The document of a snapshot; `instead` are records that replace those of the same key."""
    document: dict[str, Any] = {"format": FORMAT, "version": snapshot.version}
    replaced = {(record.kind, record.key) for record in instead}
    kept = [record for record in records_of(snapshot) if (record.kind, record.key) not in replaced]
    for record in (*kept, *instead):
        document.setdefault(f"{record.kind}s", []).append(to_document(record))
    return document


def import_document(document: Json) -> list[Record]:
    """The records of a document; a `UserError` names what is wrong with it."""
    if not isinstance(document, dict) or "format" not in document:
        raise UserError("this is not an exported directory: it has no field 'format'")
    if document["format"] != FORMAT:
        raise UserError(f"the document has format {quoted(document['format'])}; this software reads {FORMAT}")
    names = {f"{kind}s": kind for kind in RecordKind}
    unknown = set(document) - set(names) - {"format", "version"}
    if unknown:
        raise UserError(f"the document has unknown parts: {', '.join(sorted(unknown))}; known are {', '.join(names)}")
    records: list[Record] = []
    for name, kind in names.items():
        part = document.get(name, [])
        if not isinstance(part, list):
            raise UserError(f"the document's part {name!r} is {type(part).__name__}; a list is allowed")
        for number, one in enumerate(part):
            try:
                records.append(from_document(kind, one))
            except Malformed as error:
                raise UserError(f"{name}[{number}]: {error}") from None
    _check(records)
    return records


def _check(records: Sequence[Record]) -> None:
    keys: set[tuple[RecordKind, str]] = set()
    for record in records:
        if (record.kind, record.key) in keys:
            raise UserError(f"the document has {record.kind} {record.key!r} twice")
        keys.add((record.kind, record.key))
    found = list(faults_of(records))
    if found:
        shown = "; ".join(found[:_SHOWN])
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise UserError(f"the document breaks {len(found)} invariants: {shown}{more}")
