"""Which records of a directory belong to bundles that are handed over, as changes of either directory. Pure values.

Called by `hand_over`, which says in what order, and by the checks before it, to see whether they fit into a commit.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from balancer.directory.handover_record import FORMER, WORD
from balancer.directory.model import Change, Counter, Pause, Put, RecordKind, Remove, Table
from balancer.directory.record_rules import CLOSED_IDS, TABLET_COUNTER
from balancer.directory.snapshot import Snapshot
from balancer.tables.adopt import TABLE_COUNTER

_SLOTS: Final = 1 << 14
_TABLETS_OF_A_SLOT, _TABLES_OF_A_SLOT = 1 << 32, 100_000


def nodes_with_tablets(snapshot: Snapshot, bundles: Sequence[str]) -> dict[str, dict[int, int]]:
    """For each node of the bundles, the tablets that it owns, with their epochs."""
    found: dict[str, dict[int, int]] = {one.id: {} for one in snapshot.nodes.values() if one.bundle in bundles}
    for table in snapshot.tables.values():
        if table.bundle in bundles:
            for tablet in snapshot.tablets(table.id):
                found[tablet.node][tablet.id] = tablet.epoch
    return dict(sorted(found.items()))


def head_changes(
    giver: Snapshot, taker: Snapshot, bundles: Sequence[str], cluster: str, author: str
) -> Iterator[Change]:
    """What comes before the tables: bundles, nodes, pauses, and numbers that are never assigned again."""
    for bundle in bundles:
        yield Put(giver.bundles[bundle])
        standing = [one for one in giver.pauses.values() if one.bundle == bundle and one.only != WORD]
        yield from map(Put, standing)
        if bundle not in {one.key for one in standing}:
            yield Put(Pause(bundle, None, author, f"handed over; `balancer resume {bundle}` lets it be balanced"))
    yield from (Put(node) for node in giver.nodes.values() if node.bundle in bundles)
    tables = {one.name: one.id for one in giver.tables.values() if one.bundle in bundles}
    tablets = [number for owned in nodes_with_tablets(giver, bundles).values() for number in owned]
    slot = 0 if TABLET_COUNTER in taker.counters else 1 + secrets.randbelow(_SLOTS - 1)
    for name, ids, size in (
        (TABLET_COUNTER, tablets, _TABLETS_OF_A_SLOT),
        (TABLE_COUNTER, tables.values(), _TABLES_OF_A_SLOT),
    ):
        known = taker.counters[name].next if name in taker.counters else 1
        # A directory's own numbers are far from those that the giver still assigns, so that further bundles can follow.
        yield Put(Counter(name, max(known, slot * size, 1 + max(ids, default=0))))
    for name in tables:
        lanes = giver.counters.get(f"lanes of {name}")
        if lanes is not None:
            yield Put(lanes)
    if FORMER.format(cluster) not in taker.counters:
        yield Put(Counter(FORMER.format(cluster)))


def table_changes(giver: Snapshot, table: Table) -> list[Change]:
    """One table with its tablets, their pins, and its ids, closed."""
    tablets = list(giver.tablets(table.id))
    pins = [giver.pins[one.id] for one in tablets if one.id in giver.pins]
    return [Put(table), *map(Put, tablets), *map(Put, pins), Put(Counter(f"ids {table.id}", CLOSED_IDS))]


def table_removal(snapshot: Snapshot, table: Table) -> list[Change]:
    """Removes the same. Its ids stay closed: a table of this number may have handed out some."""
    tablets = list(snapshot.tablets(table.id))
    pins = [Remove(RecordKind.PIN, one.key) for one in tablets if one.id in snapshot.pins]
    return [Remove(RecordKind.TABLE, table.key), *(Remove(RecordKind.TABLET, one.key) for one in tablets), *pins]


def rest_removal(snapshot: Snapshot, bundles: Sequence[str]) -> Iterator[Change]:
    """Everything else of bundles without tables, including their marks."""
    kinds: Mapping[RecordKind, Mapping[object, object]] = {
        kind: snapshot.of(kind) for kind in (RecordKind.NODE, RecordKind.PLAN, RecordKind.PAUSE)
    }
    for kind, records in kinds.items():
        for one in records.values():
            if one.bundle in bundles:  # type: ignore[attr-defined]
                yield Remove(kind, one.key)  # type: ignore[attr-defined]
    for bundle in bundles:
        yield Remove(RecordKind.BUNDLE, bundle)
