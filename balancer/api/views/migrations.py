"""Migrations as documents: running ones with their progress, finished ones with how they ended.

The history as documents: who changed what, when and why, newest first.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from balancer.api.record_shapes import (
    ChangeShape,
    ChangeWord,
    HistoryEntry,
    HistoryList,
    MigrationFacts,
    MigrationList,
    MigrationProgress,
    MigrationShape,
)
from balancer.api.shapes import Place, cut_at, foreign, instant, instant_or_none, read_cursor, write_cursor
from balancer.directory.contract import Directory
from balancer.directory.history import bundle_of, is_step, nodes_of, tablets_of, told
from balancer.directory.model import Change, Json, LogEntry, Migration, Put
from balancer.directory.snapshot import Snapshot
from balancer.directory.store.delta import key_of
from balancer.logs import mask
from balancer.migration.machine import State, path, track_of


class Which(StrEnum):
    """Which migrations are wanted."""

    ALL = "all"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which migrations an answer is about; None: whatever it is."""

    which: Which = Which.ALL
    bundle: str | None = None
    tablet: int | None = None


def page(
    snapshot: Snapshot,
    progress: Mapping[str, Json],
    chosen: Chosen,
    *,
    limit: int,
    cursor: str = "",
) -> MigrationList:
    """Running ones first, then the newest."""
    found = [
        migration
        for migration in snapshot.migrations.values()
        if _wanted(migration, chosen.which)
        and chosen.bundle in (None, migration.bundle)
        and (chosen.tablet is None or chosen.tablet in _tablets(migration))
    ]
    found.sort(key=_order)
    items, following = cut_at(found, _order, limit, cursor)
    return MigrationList(items=[shape(snapshot, migration, progress) for migration in items], next=following)


def _order(migration: Migration) -> Place:
    return int(migration.finished), -migration.updated, migration.id


def shape(snapshot: Snapshot, migration: Migration, progress: Mapping[str, Json]) -> MigrationShape:
    """One migration."""
    table = snapshot.tables.get(migration.table)
    note = progress.get(migration.id) if not migration.finished else None
    return MigrationShape(
        id=migration.id,
        bundle=migration.bundle,
        table=table.name if table else str(migration.table),
        operation=migration.operation,
        mode=migration.mode,
        state=_state(migration, note),
        finished=migration.finished,
        sources=list(migration.sources),
        targets=[tablet.id for tablet in migration.targets],
        source_node=migration.source_node,
        target_node=migration.target_node,
        reason=mask(migration.reason),
        error=mask(migration.error),
        attempt=migration.attempt,
        created=instant(migration.created),
        updated=instant(migration.updated),
        detail=_facts(migration.detail),
        progress=_progress(note) if isinstance(note, dict) else None,
        way=[] if migration.finished else list(path(track_of(migration.operation, migration.mode))),
    )


def _state(migration: Migration, note: Any) -> State:
    """The note is newer than the journal: not every state is journaled."""
    told = note.get("state") if isinstance(note, dict) else None
    known = [word for word in (told, migration.state) if word in list(State)]
    return State(known[0]) if known else State.PLANNED


# The journal and the notes may be another version's: what cannot be read is not known.


def _facts(detail: Mapping[str, Any]) -> MigrationFacts:
    verified = detail.get("bulk_verified")
    return MigrationFacts(
        bytes=_whole(detail.get("size")),
        rows=_whole(detail.get("rows")),
        pause_seconds=_number(detail.get("pause")),
        predicted_pause_seconds=_number(detail.get("predicted_pause")),
        bulk_verified=verified if isinstance(verified, bool) else None,
        switched=instant_or_none(_number(detail.get("switched"))),
        fences=_whole(detail.get("fences")) or 0,
        retries=_whole(detail.get("retries")) or 0,
        restarts=_whole(detail.get("restarts")) or 0,
        retreat=mask(str(detail.get("retreat", ""))),
        mode_reason=mask(str(detail.get("mode_reason", ""))),
        kept=mask(str(detail.get("kept", ""))),
    )


def _progress(note: Mapping[str, Any]) -> MigrationProgress:
    total = _whole(note.get("bytes_total")) or 0
    return MigrationProgress(
        bytes_done=min(_whole(note.get("bytes_done")) or 0, total),
        bytes_total=total,
        rows_done=_whole(note.get("rows_done")) or 0,
        bytes_per_second=_number(note.get("rate")) or 0.0,
        eta_seconds=_number(note.get("eta")),
        lag_bytes=_whole(note.get("lag")),
        state_seconds=_number(note.get("since")) or 0.0,
        waiting_for=mask(str(note.get("waiting_for", ""))),
        paused=note.get("paused") is True,
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < 2**63 else None


def _whole(value: object) -> int | None:
    number = _number(value)
    return None if number is None else round(number)


def _wanted(migration: Migration, which: Which) -> bool:
    match which:
        case Which.ALL:
            return True
        case Which.RUNNING:
            return not migration.finished
        case Which.FINISHED:
            return migration.finished
        case Which.FAILED:
            return migration.finished and bool(migration.error)


def _tablets(migration: Migration) -> set[int]:
    return {*migration.sources, *(tablet.id for tablet in migration.targets)}


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


def history_page(
    directory: Directory, snapshot: Snapshot, wanted: HistoryQuery, limit: int, cursor: str = ""
) -> HistoryList:
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
