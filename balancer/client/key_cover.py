"""Every key of a table once, while tablets move, split and merge: which tablets are asked, and for which. Pure.

A question to all of a table goes to the tablets of one version of the map. One that has moved is asked where it went.
One that no longer exists has been split: its parts are asked instead. Or it was merged with others: then what replaced
it also has their rows, and asking it would count them twice. That ends the question, in one sentence.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from balancer.client.locate import Location
from balancer.directory.model import Table, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.errors import Unavailable
from balancer.relation_names import Name, parse_name, partition_name


class KeyStretch(NamedTuple):
    """A tablet to ask, and the part of the key space that it had in the map's version."""

    tablet: int
    start: Any
    end: Any  # None: to the end
    partitions: tuple[Name, ...]
    """In the order of the table's roots."""


class Vanished(Exception):
    """The tablet is no longer in the map."""


def stretches(snapshot: Snapshot, table: Table) -> list[KeyStretch]:
    """All tablets of a table, in key order."""
    columns = snapshot.columns(table.id)
    starts = [*columns.starts, None]
    return [
        KeyStretch(number, starts[at], starts[at + 1], leaves(table, snapshot.tablet(number)))
        for at, number in enumerate(columns.ids)
    ]


def leaves(table: Table, tablet: Tablet) -> tuple[Name, ...]:
    """The names of a tablet's partitions, in the order of the table's roots."""
    roots = tuple(map(parse_name, table.roots))
    if tablet.partitions:
        return tuple(Name(root.schema, name) for root, name in zip(roots, tablet.partitions, strict=True))
    return tuple(partition_name(root, tablet.id) for root in roots)


def parts(snapshot: Snapshot, table: Table, gone: KeyStretch) -> list[KeyStretch]:
    """What has exactly the keys of a tablet that is gone; `Unavailable` if others' keys are among them."""
    inside = [one for one in stretches(snapshot, table) if _within(one, gone)]
    if not inside or (inside[0].start, inside[-1].end) != (gone.start, gone.end):
        raise Unavailable(
            f"tablet {gone.tablet} of table {table.name} was merged with others while the table was read: ask again"
        )
    return inside


def _within(one: KeyStretch, gone: KeyStretch) -> bool:
    ends_inside = gone.end is None or (one.end is not None and one.end <= gone.end)
    return bool(one.start >= gone.start and ends_inside)


def tablet_finder(newest: Callable[[], Snapshot], tablet: int) -> Callable[[], tuple[int, Location]]:
    """For `enter` and `ask`: where a tablet is by the newest snapshot known; raises `Vanished`."""

    def find() -> tuple[int, Location]:
        snapshot = newest()
        found = snapshot.find_tablet(tablet)
        if found is None:
            raise Vanished
        return snapshot.version, Location(found.node, found.id, found.epoch)

    return find
