"""`router.explain(table, key)`: where a key is, why there, and what is happening to it; from memory, in a few words."""

from dataclasses import dataclass

from balancer.client.locate import AnyKey, RowId, locate_key
from balancer.directory.model import RangeBounds, TabletState
from balancer.directory.snapshot import Snapshot
from balancer.outside import quoted


@dataclass(frozen=True, slots=True)
class KeyExplanation:
    """The parts of the answer; as text, the answer itself."""

    table: str
    node: str
    tablet: int
    epoch: int
    why: str
    """Which part of the key space the tablet has, and that the key is in it."""
    migration: str
    """What is being done with the tablet; empty: nothing."""
    version: int
    """Of the directory."""
    age: float
    """Seconds since it was last known to be the newest."""

    def __str__(self) -> str:
        moving = f" {self.migration}." if self.migration else ""
        return (
            f"table {self.table}: {self.why}, which is on node {self.node} with epoch {self.epoch}.{moving}"
            f" By version {self.version} of the directory, heard {self.age:.1f} s ago."
        )


def explain(snapshot: Snapshot, table_name: str, key: AnyKey, age: float) -> KeyExplanation:
    """Raises `UserError` for an unknown table or a key that does not fit it."""
    found = locate_key(snapshot, table_name, key)
    table, tablet = snapshot.table(table_name), snapshot.tablet(found.tablet)
    shown = f"id {key.id}" if isinstance(key, RowId) else f"key {quoted(key)}"
    if table.whole:
        why = f"all of it is tablet {tablet.id}"
    elif isinstance(tablet.bounds, RangeBounds):
        why = f"{shown} lies in the range of tablet {tablet.id}"
    else:
        why = f"{shown} is of remainder {tablet.bounds.remainder} of {tablet.bounds.modulus}, tablet {tablet.id}"
    if tablet.state is not TabletState.OWNED:
        why += f" ({tablet.state})"
    return KeyExplanation(
        table_name,
        found.node,
        found.tablet,
        found.epoch,
        why,
        _migration(snapshot, found.tablet),
        snapshot.version,
        age,
    )


def _migration(snapshot: Snapshot, tablet: int) -> str:
    running = snapshot.migration_of(tablet)
    if running is None:
        return ""
    where = f" to node {running.target_node}" if running.target_node != running.source_node else ""
    return f"A {running.operation}{where} is under way ({running.state})"
