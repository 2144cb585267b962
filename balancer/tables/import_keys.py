"""Foreign keys between tables that are imported together: validated when the names have changed, alongside the writers.

Until then they are on the partitions, enforced and not validated. They are found from the catalog alone, so a process
that is killed in between loses nothing. Called by `importing`.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from balancer.nodes.connection import Connection, translated
from balancer.nodes.names import Name
from balancer.nodes.near_keys import NearKey, read_near_keys
from balancer.nodes.root_facts import full_names
from balancer.tables.convert import give_key
from balancer.tables.swapping import Workplace


def finish_keys(
    place: Workplace, roots: Sequence[Name], partitions: Mapping[Name, Sequence[Name]], known: Sequence[NearKey]
) -> None:
    """On one node: validates what waits on partitions and gives it to their root.

    A root without partitions gets the `known` keys, which another node's roots have.
    """
    for root in roots:
        waiting = _keys(place.connection, place.node, partitions[root], roots)
        for key in waiting:
            if not key.validated:
                place.observe(f"foreign key {key.name} of {key.table} on {place.node}")
                place.long(key.validate(), [key.table])
        there = {key.name for key in _keys(place.connection, place.node, [root], roots)}
        elsewhere = [key for key in known if key.table == root and not partitions[root]]
        for name, key in {key.name: key for key in (*waiting, *elsewhere)}.items():
            if name not in there:
                place.observe(f"foreign key {name} of {root} on {place.node}")
                place.short([root, key.referenced], partial(give_key, place, roots, root, key))


def keys_of_roots(place: Workplace, roots: Sequence[Name]) -> list[NearKey]:
    """The foreign keys between the roots themselves, on one node."""
    return _keys(place.connection, place.node, roots, roots)


def _keys(connection: Connection, node: str, tables: Sequence[Name], to: Sequence[Name]) -> list[NearKey]:
    with translated(node), connection.cursor() as cursor, full_names(cursor):
        return read_near_keys(cursor, tables, to)
