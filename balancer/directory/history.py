"""What a change in the history is about, and how to put it into words. One answer for the command line and the API.

The whole directory as one JSON document: what `balancer directory export` writes and `import` reads.

A document is validated in full before any of it is written: every field, then every invariant.
"""

from collections.abc import Sequence
from typing import Any

from balancer.directory.invariants import faults_of
from balancer.directory.model import (
    Bundle,
    Change,
    Command,
    CommandState,
    Counter,
    Json,
    LogEntry,
    Migration,
    Node,
    Pause,
    Pin,
    Plan,
    Record,
    RecordKind,
    Remove,
    Table,
    Tablet,
)
from balancer.directory.snapshot import Snapshot
from balancer.directory.store.codec import Malformed, from_document, to_document
from balancer.errors import UserError
from balancer.untrusted import quoted


def tablets_of(change: Change) -> set[int]:
    """The tablets that it is about, by id."""
    if isinstance(change, Remove):
        return {int(change.key)} if change.kind in (RecordKind.TABLET, RecordKind.PIN) else set()
    match change.record:
        case Tablet(id=tablet) | Pin(tablet=tablet):
            return {tablet}
        case Migration() as record:
            return {*record.sources, *(tablet.id for tablet in record.targets)}
        case Command(arguments=arguments):
            named = [arguments.get("tablet"), *_list(arguments.get("tablets"))]
            return {int(str(value)) for value in named if str(value).isdigit()}
        case _:
            return set()


def nodes_of(change: Change) -> set[str]:
    """The nodes that it is about, by id."""
    if isinstance(change, Remove):
        return {change.key} if change.kind is RecordKind.NODE else set()
    match change.record:
        case Node(id=node) | Tablet(node=node):
            return {node}
        case Migration() as record:
            return {record.source_node, record.target_node}
        case Command(arguments={"node": node}):
            return {str(node)}
        case _:
            return set()


def bundle_of(change: Change, snapshot: Snapshot) -> str | None:
    """The bundle that it is about, as far as that is known by now."""
    if isinstance(change, Remove):
        return change.key if change.kind in (RecordKind.BUNDLE, RecordKind.PAUSE) else None
    match change.record:
        case Bundle(name=bundle):
            return bundle
        case Node() | Table() | Migration() | Plan() | Pause() as record:
            return record.bundle
        case Tablet(table=number):
            table = snapshot.tables.get(number)
            return table.bundle if table else None
        case Command(arguments={"bundle": bundle}):
            return str(bundle)
        case _:
            return None


def is_step(entry: LogEntry) -> bool:
    """Whether a commit is only a step on the way: the states of a migration between its beginning and its end, plans
    that were made and carried out, commands that wait. Who owns what does not change with it."""
    return all(map(_is_step, entry.changes))


def _is_step(change: Change) -> bool:
    if isinstance(change, Remove):
        return change.kind in (RecordKind.PLAN, RecordKind.COUNTER, RecordKind.COMMAND, RecordKind.MIGRATION)
    match change.record:
        case Migration() as record:
            return not record.finished and record.state not in ("planned", "cancelling")
        case Command(state=state):
            return state is CommandState.WAITING
        case Plan(state=state):
            return state != "approved"
        case Counter():
            return True
        case _:
            return False


def told(change: Change) -> str:
    """In a few words."""
    return f"{change.kind} {change.key} removed" if isinstance(change, Remove) else _told(change.record)


def _told(record: Record) -> str:  # noqa: PLR0911 - one line for each kind of record
    match record:
        case Bundle():
            return f"bundle {record.name}"
        case Node():
            return f"node {record.id} is {record.state}" + (f": {record.reason}" if record.reason else "")
        case Table():
            return f"table {record.name} ({record.layout})"
        case Tablet():
            return f"tablet {record.id} on {record.node}, epoch {record.epoch}, {record.state}"
        case Migration():
            what = f"{record.operation} {record.id} of {', '.join(map(str, record.sources))}: {record.state}"
            return f"{what} ({record.error})" if record.error else what
        case Command():
            return f"command {record.verb} by {record.author}: {record.state}" + (
                f", {record.result}" if record.result else ""
            )
        case Plan():
            return f"plan {record.id} of {record.bundle}: {record.state}"
        case Pin():
            return f"tablet {record.tablet} pinned" + (f": {record.reason}" if record.reason else "")
        case Pause():
            return f"bundle {record.bundle} paused" + (f": {record.reason}" if record.reason else "")
        case Counter():
            return f"counter {record.name} at {record.next}"


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []


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
