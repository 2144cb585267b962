"""What each single record must be, and what it may refer to. `invariants` applies this to commits and directories.

`find` looks a record up in the state after the commit. `standing` records are already in the directory: what is
required only of a new one (its migration's tablets exist, its pin's tablet exists) is not required of them, because a
split removes tablets while the records that name them remain.
"""

from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Any

from balancer.directory.model import (
    Counter,
    Migration,
    Node,
    Pause,
    Pin,
    Plan,
    Record,
    RecordKind,
    Table,
    Tablet,
)
from balancer.policies.hash_leaves import Leaf, check_leaf

Find = Callable[[RecordKind, object], Any]
_MAX_NAME = 200  # characters: a name is part of a znode's path
_LIMIT = 1 << 62
CLOSED_IDS = 1 << 47
"""For a counter of row ids: none are handed out, because the next one would be above all possible ids."""
HELD_BY_CHANGE = "schema change "
"""Prefix of the reason of a pause by which a schema change holds its bundle."""
IDENTITY = "cluster"
"""Name of the counter that holds the directory's identity."""
TABLET_COUNTER = "tablet"
"""Name of the counter that tablet ids come from."""


def record_faults(before: Record | None, record: Record, find: Find, standing: bool = False) -> Iterator[str]:
    """What is wrong with a record that replaces `before`, one sentence each."""
    if not _is_name(record.key):
        yield f"{record.key!r} cannot be the key of a {record.kind}: 1 to {_MAX_NAME} printable characters without '/'"
    faults = _FAULTS.get(record.kind)
    if faults is not None:
        yield from faults(before, record, find, standing)


def _is_name(key: str) -> bool:
    return 0 < len(key) <= _MAX_NAME and key.isprintable() and "/" not in key and key not in (".", "..")


def _bundle_faults(what: str, bundle: str, find: Find) -> Iterator[str]:
    if find(RecordKind.BUNDLE, bundle) is None:
        yield f"{what} names bundle {bundle!r}, which does not exist"


def _tablet_faults(before: Record | None, tablet: Tablet, find: Find, _: bool) -> Iterator[str]:
    what = f"tablet {tablet.id}"
    if not (1 <= tablet.id < _LIMIT and 1 <= tablet.epoch < _LIMIT):
        yield f"{what} has id {tablet.id} and epoch {tablet.epoch}; both begin at 1 and stay below 2 ** 62"
    table: Table | None = find(RecordKind.TABLE, tablet.table)
    node: Node | None = find(RecordKind.NODE, tablet.node)
    if table is None:
        yield f"{what} names table {tablet.table}, which does not exist"
        return
    if node is None:
        yield f"{what} names node {tablet.node!r}, which does not exist"
    elif node.bundle != table.bundle:
        yield f"{what} of bundle {table.bundle!r} cannot be on node {node.id!r} of bundle {node.bundle!r}"
    yield from _bounds_faults(what, tablet, table)
    if tablet.partitions and len(tablet.partitions) != len(table.roots):
        yield f"{what} names {len(tablet.partitions)} partitions for {len(table.roots)} roots"
    if isinstance(before, Tablet):
        yield from _succession_faults(what, before, tablet)
    else:
        counter: Counter | None = find(RecordKind.COUNTER, TABLET_COUNTER)
        if counter is not None and tablet.id >= counter.next:
            yield f"{what} has an id that the counter of ids has not given out yet (next is {counter.next})"


def _bounds_faults(what: str, tablet: Tablet, table: Table) -> Iterator[str]:
    if isinstance(tablet.bounds, Leaf) != table.hashed:
        yield f"{what} does not have the bounds of a {table.layout} table"
    elif isinstance(tablet.bounds, Leaf):
        try:
            check_leaf(*tablet.bounds)
        except ValueError as error:
            yield f"{what}: {error}"
        if table.whole and tablet.bounds != Leaf(1, 0):
            yield f"{what} is a part of table {table.name!r}, which is whole"
    elif tablet.bounds.lower >= tablet.bounds.upper:
        yield f"{what} is empty: its lower bound is not below its upper one"


def _succession_faults(what: str, before: Tablet, after: Tablet) -> Iterator[str]:
    if after.table != before.table:
        yield f"{what} cannot change from table {before.table} to table {after.table}"
    if after.epoch < before.epoch:
        yield f"{what} would go back from epoch {before.epoch} to {after.epoch}"
    if after.node != before.node and after.epoch == before.epoch:
        yield f"{what} would change its owner without a new epoch (it is {before.epoch})"


def _table_faults(before: Record | None, table: Table, find: Find, _: bool) -> Iterator[str]:
    what = f"table {table.name!r}"
    yield from _bundle_faults(what, table.bundle, find)
    if table.id < 1:
        yield f"{what} has id {table.id}; ids begin at 1"
    if not (table.columns or table.everywhere) or not table.roots:
        yield f"{what} needs at least one key column and one root"
    if table.whole and len(table.columns) != (0 if table.everywhere else len(table.roots)):
        yield f"{what} is whole and names {len(table.columns)} columns for {len(table.roots)} roots"
    if len(set(table.roots)) != len(table.roots):
        yield f"{what} names a root twice"
    if isinstance(before, Table) and (before.layout, before.columns, before.bundle) != (
        table.layout,
        table.columns,
        table.bundle,
    ):
        yield f"{what} cannot change its layout, its key or its bundle"


def _migration_faults(before: Record | None, migration: Migration, find: Find, standing: bool) -> Iterator[str]:
    what = f"migration {migration.id}"
    if migration.finished:
        return
    if find(RecordKind.TABLE, migration.table) is None:
        yield f"{what} names table {migration.table}, which does not exist"
    for node in sorted({migration.source_node, migration.target_node}):
        if find(RecordKind.NODE, node) is None:
            yield f"{what} names node {node!r}, which does not exist"
    if isinstance(before, Migration):
        if before.finished:
            yield f"{what} is finished and cannot go on"
        if (before.operation, before.sources) != (migration.operation, migration.sources):
            yield f"{what} cannot change its operation or its sources"
    elif not standing:
        for tablet_id in migration.sources:
            if find(RecordKind.TABLET, tablet_id) is None:
                yield f"{what} names tablet {tablet_id}, which does not exist"
        yield from _root_faults(what, migration, find)


def _root_faults(what: str, migration: Migration, find: Find) -> Iterator[str]:
    """A migration planned before the table was given another root would leave that root behind."""
    table: Table | None = find(RecordKind.TABLE, migration.table)
    for target in migration.targets:
        if table is not None and target.partitions and len(target.partitions) != len(table.roots):
            yield f"{what} would carry {len(target.partitions)} of the {len(table.roots)} roots of table {table.name!r}"


def _node_faults(_: Record | None, node: Node, find: Find, _standing: bool) -> Iterator[str]:
    yield from _bundle_faults(f"node {node.id!r}", node.bundle, find)
    if not (isfinite(node.weight) and node.weight > 0):
        yield f"node {node.id!r} has weight {node.weight}; it must be above 0"


def _counter_faults(before: Record | None, counter: Counter, _: Find, _standing: bool) -> Iterator[str]:
    # Closed ids are reopened where a hand-over is undone, or in the directory that takes; an identity is not a count.
    if counter.name == IDENTITY:
        return
    if isinstance(before, Counter) and counter.next < before.next != CLOSED_IDS:
        yield f"counter {counter.name!r} would go back from {before.next} to {counter.next}"


def _plan_faults(_: Record | None, plan: Plan, find: Find, _standing: bool) -> Iterator[str]:
    yield from _bundle_faults(f"plan {plan.id!r}", plan.bundle, find)


def _pause_faults(_: Record | None, pause: Pause, find: Find, _standing: bool) -> Iterator[str]:
    yield from _bundle_faults("a pause", pause.bundle, find)


def _pin_faults(before: Record | None, pin: Pin, find: Find, standing: bool) -> Iterator[str]:
    if not standing and before is None and find(RecordKind.TABLET, pin.tablet) is None:
        yield f"there is no tablet {pin.tablet} to pin"


_FAULTS: Mapping[RecordKind, Any] = {
    RecordKind.NODE: _node_faults,
    RecordKind.TABLE: _table_faults,
    RecordKind.TABLET: _tablet_faults,
    RecordKind.MIGRATION: _migration_faults,
    RecordKind.PLAN: _plan_faults,
    RecordKind.PIN: _pin_faults,
    RecordKind.PAUSE: _pause_faults,
    RecordKind.COUNTER: _counter_faults,
}
"""Bundles and commands refer to nothing."""
