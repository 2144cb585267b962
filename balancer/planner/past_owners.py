"""Who owned what at a moment of the past, from the directory's own log: the commits since then, undone. Pure.

Any instance can tell, even one that started a minute ago. A commit that gives a tablet away carries the migration with
its source; one that replaces tablets carries them as they were. So nothing older than the moment has to be read.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from balancer.directory.model import LogEntry, Migration, MigrationKind, Put, RecordKind, Remove, Table, Tablet


@dataclass(slots=True)
class Returned:
    """A tablet that existed then and does not now."""

    table: int
    node: str
    successors: tuple[int, ...]
    """What replaced it."""


@dataclass(slots=True)
class PastOwners:
    """What was different from now."""

    owners: dict[int, str] = field(default_factory=dict)
    absent: set[int] = field(default_factory=set)
    """Tablets that were not there yet."""
    returned: dict[int, Returned] = field(default_factory=dict)
    reached: bool = False
    """Whether the commits go back to that moment; otherwise the past is not known."""


def owners_at(newest_first: Iterable[LogEntry], at: float) -> PastOwners:
    """The commits since the moment, undone one after another."""
    past = PastOwners()
    for entry in newest_first:
        if entry.at <= at:
            past.reached = True
            break
        _undo(past, entry)
        past.reached = entry.version <= 1
    return past


def _undo(past: PastOwners, entry: LogEntry) -> None:
    records = [change.record for change in entry.changes if isinstance(change, Put)]
    migration = next((record for record in records if isinstance(record, Migration)), None)
    made = {record.id for record in records if isinstance(record, Table)}
    for record in records:
        if isinstance(record, Tablet):
            _undo_put(past, record, migration, with_table=record.table in made)
    for change in entry.changes:
        if isinstance(change, Remove) and change.kind is RecordKind.TABLET and migration is not None:
            _undo_remove(past, int(change.key), migration)


def _undo_put(past: PastOwners, tablet: Tablet, migration: Migration | None, *, with_table: bool) -> None:
    if migration is None:
        if with_table:
            _leave(past, tablet.id)
        return
    if migration.operation is MigrationKind.MOVE and tablet.id in migration.sources:
        _give_back(past, tablet.id, migration.source_node)
    elif tablet.id not in migration.sources and tablet.id in {target.id for target in migration.targets}:
        _leave(past, tablet.id)


def _undo_remove(past: PastOwners, tablet: int, migration: Migration) -> None:
    if tablet not in migration.sources:
        return
    before: Any = migration.detail.get("before", ())
    nodes = {one.get("id"): one.get("node") for one in before if isinstance(one, dict)}
    successors = tuple(target.id for target in migration.targets)
    past.returned[tablet] = Returned(migration.table, str(nodes.get(tablet, migration.source_node)), successors)


def _give_back(past: PastOwners, tablet: int, node: str) -> None:
    if tablet in past.returned:
        past.returned[tablet].node = node
    else:
        past.owners[tablet] = node


def _leave(past: PastOwners, tablet: int) -> None:
    if past.returned.pop(tablet, None) is None:
        past.owners.pop(tablet, None)
        past.absent.add(tablet)
