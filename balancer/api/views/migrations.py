"""Migrations as documents: running ones with their progress, finished ones with how they ended."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from balancer.api.shapes import MigrationPage, MigrationShape
from balancer.directory.model import Json, Migration
from balancer.directory.snapshot import Snapshot
from balancer.logs import mask

_SHOWN = (
    *("rows", "size", "pause", "predicted_pause", "bulk_verified", "switched", "failed"),
    *("fences", "retries", "restarts", "retreat", "mode_reason", "kept"),
)
"""Of a migration's detail, what people want to know; the rest is for its successor."""


class Which(StrEnum):
    """Which migrations are wanted."""

    ALL = "all"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


def page(
    snapshot: Snapshot,
    progress: Mapping[str, Json],
    *,
    which: Which = Which.ALL,
    bundle: str | None = None,
    tablet: int | None = None,
    limit: int,
) -> MigrationPage:
    """Running ones first, then the newest."""
    found = [
        migration
        for migration in snapshot.migrations.values()
        if _wanted(migration, which)
        and bundle in (None, migration.bundle)
        and (tablet is None or tablet in _tablets(migration))
    ]
    found.sort(key=lambda migration: (migration.finished, -migration.updated, migration.id))
    running = sum(not migration.finished for migration in found)
    return MigrationPage(
        migrations=[shape(snapshot, migration, progress) for migration in found[:limit]],
        running=running,
        finished=len(found) - running,
    )


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
        created=migration.created,
        updated=migration.updated,
        detail={name: migration.detail[name] for name in _SHOWN if name in migration.detail},
        progress=note if isinstance(note, dict) else None,
    )


def _state(migration: Migration, note: Any) -> str:
    """The note is newer than the journal: not every state is journaled."""
    return str(note["state"]) if isinstance(note, dict) and note.get("state") else migration.state


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
