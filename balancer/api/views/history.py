"""The history as documents: who changed what, when and why, newest first."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from balancer.api.shapes import ChangeShape, HistoryEntry, HistoryPage
from balancer.directory.contract import Directory
from balancer.directory.model import (
    Bundle,
    Change,
    Command,
    Counter,
    LogEntry,
    Migration,
    Node,
    Pause,
    Pin,
    Plan,
    Record,
    Remove,
    Table,
    Tablet,
)
from balancer.directory.snapshot import Snapshot
from balancer.logs import mask

_CHUNK: Final = 200
_MOST_SCANNED: Final = 2000
"""Commits looked at for one answer: a rare filter goes on with `next` instead of reading everything at once."""
_MOST_CHANGES: Final = 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which commits are wanted; None: all."""

    bundle: str | None = None
    node: str | None = None
    tablet: int | None = None


def page(directory: Directory, snapshot: Snapshot, wanted: Wanted, before: int | None, limit: int) -> HistoryPage:
    """Up to `limit` commits below the version `before`."""
    found: list[HistoryEntry] = []
    last = top = (snapshot.version + 1) if before is None else before
    for entry in _backwards(directory, top):
        last = entry.version
        if _concerns(entry, wanted, snapshot):
            found.append(_shape(entry))
        if len(found) == limit:
            break
    return HistoryPage(entries=found, next=last if last > 1 and last != top else None)


def _backwards(directory: Directory, below: int) -> Iterator[LogEntry]:
    scanned = 0
    while below > 1 and scanned < _MOST_SCANNED:
        after = max(0, below - 1 - _CHUNK)
        entries = [entry for entry in directory.history(after, _CHUNK) if entry.version < below]
        if not entries:
            return
        yield from reversed(entries)
        scanned += len(entries)
        below = entries[0].version


def _concerns(entry: LogEntry, wanted: Wanted, snapshot: Snapshot) -> bool:
    if wanted == Wanted():
        return True
    return any(_change_concerns(change, wanted, snapshot) for change in entry.changes)


def _change_concerns(change: Change, wanted: Wanted, snapshot: Snapshot) -> bool:
    if isinstance(change, Remove):
        tablet = int(change.key) if change.kind == "tablet" else None
        return wanted.tablet is not None and tablet == wanted.tablet
    record = change.record
    return (
        (wanted.tablet is None or wanted.tablet in _tablets(record))
        and (wanted.node is None or wanted.node in _nodes(record))
        and (wanted.bundle is None or wanted.bundle == _bundle(record, snapshot))
    )


def _tablets(record: Record) -> set[int]:
    match record:
        case Tablet():
            return {record.id}
        case Pin():
            return {record.tablet}
        case Migration():
            return {*record.sources, *(tablet.id for tablet in record.targets)}
        case Command():
            named = [record.arguments.get("tablet"), *_list(record.arguments.get("tablets"))]
            return {int(str(value)) for value in named if str(value).isdigit()}
        case _:
            return set()


def _nodes(record: Record) -> set[str]:
    match record:
        case Node():
            return {record.id}
        case Tablet():
            return {record.node}
        case Migration():
            return {record.source_node, record.target_node}
        case Command():
            return {str(record.arguments.get("node"))}
        case _:
            return set()


def _bundle(record: Record, snapshot: Snapshot) -> str | None:
    match record:
        case Bundle():
            return record.name
        case Node() | Table() | Migration() | Plan() | Pause():
            return record.bundle
        case Tablet():
            table = snapshot.tables.get(record.table)
            return table.bundle if table else None
        case Command():
            return str(record.arguments.get("bundle"))
        case _:
            return None


def _shape(entry: LogEntry) -> HistoryEntry:
    return HistoryEntry(
        version=entry.version,
        at=entry.at,
        author=entry.author,
        epoch=entry.leader_epoch,
        reason=mask(entry.reason),
        changes=[_change(change) for change in entry.changes[:_MOST_CHANGES]],
        change_count=len(entry.changes),
    )


def _change(change: Change) -> ChangeShape:
    if isinstance(change, Remove):
        return ChangeShape(kind=change.kind, key=change.key, what="remove", text=f"{change.kind} {change.key} removed")
    record = change.record
    return ChangeShape(kind=record.kind, key=record.key, what="put", text=mask(_text(record)))


def _text(record: Record) -> str:  # noqa: PLR0911 - one line for each kind of record
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
