"""The history as documents: who changed what, when and why, newest first."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from balancer.api.documents import foreign, instant, read_cursor, write_cursor
from balancer.api.record_shapes import ChangeShape, ChangeWord, HistoryEntry, HistoryList
from balancer.directory.contract import Directory
from balancer.directory.delta import key_of
from balancer.directory.model import Change, LogEntry, Put
from balancer.directory.snapshot import Snapshot
from balancer.directory.telling import bundle_of, is_step, nodes_of, tablets_of, told
from balancer.logs import mask

_CHUNK: Final = 200
MOST_SCANNED: Final = 2000
"""Commits looked at for one answer: a rare filter continues with `next` instead of reading everything at once."""
_MOST_CHANGES: Final = 20


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """Which commits are wanted; None: all."""

    bundle: str | None = None
    node: str | None = None
    tablet: int | None = None
    steps: bool = True
    """Include what is only a step of a migration or plan."""


def page(directory: Directory, snapshot: Snapshot, wanted: HistoryQuery, limit: int, cursor: str = "") -> HistoryList:
    """Up to `limit` commits that are older than the cursor's."""
    found: list[HistoryEntry] = []
    last = top = _below(snapshot, cursor)
    for entry in backwards(directory, top):
        last = entry.version
        if _concerns(entry, wanted, snapshot):
            found.append(_shape(entry))
        if len(found) == limit:
            break
    return HistoryList(items=found, next=write_cursor((last,)) if last > 1 and last != top else None)


def _below(snapshot: Snapshot, cursor: str) -> int:
    place = read_cursor(cursor)
    if place is None:
        return snapshot.version + 1
    if len(place) != 1 or not isinstance(place[0], int) or not 0 < place[0] < 2**63:
        raise foreign(cursor)
    return place[0]


def backwards(directory: Directory, below: int, chunk: int = _CHUNK) -> Iterator[LogEntry]:
    """Commits below a version, newest first, as many as one answer may look at; reads this many at a time."""
    scanned = 0
    while below > 1 and scanned < MOST_SCANNED:
        after = max(0, below - 1 - chunk)
        entries = [entry for entry in directory.history(after, chunk) if entry.version < below]
        if not entries:
            return
        yield from reversed(entries)
        scanned += len(entries)
        below = entries[0].version


def _concerns(entry: LogEntry, wanted: HistoryQuery, snapshot: Snapshot) -> bool:
    if not wanted.steps and is_step(entry):
        return False
    if (wanted.bundle, wanted.node, wanted.tablet) == (None, None, None):
        return True
    return any(_change_concerns(change, wanted, snapshot) for change in entry.changes)


def _change_concerns(change: Change, wanted: HistoryQuery, snapshot: Snapshot) -> bool:
    return (
        (wanted.tablet is None or wanted.tablet in tablets_of(change))
        and (wanted.node is None or wanted.node in nodes_of(change))
        and (wanted.bundle is None or wanted.bundle == bundle_of(change, snapshot))
    )


def _shape(entry: LogEntry) -> HistoryEntry:
    return HistoryEntry(
        version=entry.version,
        at=instant(entry.at),
        author=entry.author,
        epoch=entry.leader_epoch,
        reason=mask(entry.reason),
        changes=[_change(change) for change in entry.changes[:_MOST_CHANGES]],
        change_count=len(entry.changes),
    )


def _change(change: Change) -> ChangeShape:
    kind, key = key_of(change)
    what = ChangeWord.PUT if isinstance(change, Put) else ChangeWord.REMOVE
    return ChangeShape(kind=kind, key=key, what=what, text=mask(told(change)))
