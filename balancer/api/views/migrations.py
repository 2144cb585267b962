"""Migrations as documents: running ones with their progress, finished ones with how they ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from balancer.api.documents import Place, cut_at, instant, instant_or_none
from balancer.api.record_shapes import MigrationFacts, MigrationList, MigrationProgress, MigrationShape
from balancer.directory.model import Json, Migration
from balancer.directory.snapshot import Snapshot
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
