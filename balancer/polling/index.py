"""Which partition on which node is which tablet, according to one snapshot of the directory. Pure.

Made once per version of the directory: a poll then only looks names up.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from balancer.directory.model import Table, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.nodes.names import Name, parse_name, partition_name
from balancer.nodes.ownership import Expected
from balancer.policies.bundle_view import Ints


@dataclass(frozen=True, slots=True)
class TabletIndex:
    """Lookups for one version."""

    version: int
    roots: Mapping[str, tuple[Name, ...]]
    """Bundle → the roots of its tables."""
    ids: Ints
    """Of all tablets, sorted."""
    tablets: Mapping[int, Expected]
    by_node: Mapping[str, Mapping[int, Expected]]
    by_partition: Mapping[str, Mapping[tuple[str, str], int]]
    """Node → partition's schema and name → tablet."""


def build_index(snapshot: Snapshot) -> TabletIndex:
    """Everything that polls need to know about the tablets of all tables."""
    roots: dict[str, list[Name]] = defaultdict(list)
    by_node: dict[str, dict[int, Expected]] = defaultdict(dict)
    by_partition: dict[str, dict[tuple[str, str], int]] = defaultdict(dict)
    for table in snapshot.tables.values():
        own_roots = [parse_name(root) for root in table.roots]
        # What is everywhere is no partition: nothing of it is attached or measured.
        roots[table.bundle] += own_roots if not table.everywhere else []
        for tablet in snapshot.tablets(table.id):
            names = _names(own_roots, tablet) if not table.everywhere else ()
            by_node[tablet.node][tablet.id] = Expected(tablet.node, tablet.epoch, names)
            mine = by_partition[tablet.node]
            for name in names:
                mine[name] = tablet.id
    tablets = {number: tablet for own in by_node.values() for number, tablet in own.items()}
    return TabletIndex(
        snapshot.version,
        {bundle: tuple(names) for bundle, names in roots.items()},
        np.fromiter(sorted(tablets), np.int64, len(tablets)),
        tablets,
        dict(by_node),
        dict(by_partition),
    )


def partition_names(table: Table, tablet: Tablet) -> tuple[Name, ...]:
    """The partitions of a tablet, one per root of its table."""
    return _names([parse_name(root) for root in table.roots], tablet)


def _names(roots: list[Name], tablet: Tablet) -> tuple[Name, ...]:
    if tablet.partitions:
        return tuple(Name(root.schema, name) for root, name in zip(roots, tablet.partitions, strict=True))
    return tuple(partition_name(root, tablet.id) for root in roots)
