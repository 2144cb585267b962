"""Splits and merges as tests ask for them: without keys a vbucket is halved, neighbours become one."""

import itertools
from collections.abc import Sequence

from balancer.clock import Clock
from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import Bounds, Migration, MigrationMode, RangeBounds
from balancer.errors import Refused
from balancer.migration.begin import begin_reshard
from balancer.policies.keyspace.hash_leaves import MAX_MODULUS, Leaf


def begin_split(
    directory: Directory,
    leadership: Leadership,
    tablet_id: int,
    cuts: Sequence[bytes] = (),
    *,
    mode: MigrationMode = MigrationMode.REPLICATE,
    reason: str = "",
    force: bool = False,
    clock: Clock | None = None,
) -> Migration:
    """Journals the split of a tablet: a range at these encoded keys, a vbucket into its two halves."""
    snapshot = directory.snapshot()
    bounds = snapshot.tablet(tablet_id).bounds
    parts: tuple[Bounds, ...]
    if isinstance(bounds, Leaf):
        if cuts:
            raise Refused(f"tablet {tablet_id} is a vbucket: it is split into its halves, not at keys")
        if bounds.modulus >= MAX_MODULUS:
            raise Refused(f"tablet {tablet_id} cannot be split further: its modulus is {bounds.modulus}")
        parts = bounds.children()
    else:
        edges = [bounds.lower, *sorted(set(cuts)), bounds.upper]
        if not cuts or not all(bounds.lower < cut < bounds.upper for cut in cuts):
            raise Refused(f"tablet {tablet_id} is split at keys inside of it: give at least one")
        parts = tuple(RangeBounds(low, high) for low, high in itertools.pairwise(edges))
    return begin_reshard(directory, leadership, (tablet_id,), parts, mode=mode, reason=reason, force=force, clock=clock)


def begin_merge(
    directory: Directory,
    leadership: Leadership,
    tablet_ids: Sequence[int],
    *,
    mode: MigrationMode = MigrationMode.REPLICATE,
    reason: str = "",
    force: bool = False,
    clock: Clock | None = None,
) -> Migration:
    """Journals the merge of neighbouring ranges, or of two sibling vbuckets, that are on one node."""
    tablets = [directory.snapshot().tablet(tablet) for tablet in tablet_ids]
    if len(tablets) < 2:
        raise Refused("a merge needs at least two tablets")
    joined: Bounds
    first = tablets[0].bounds
    if isinstance(first, Leaf):
        parent = first.parent()
        if len(tablets) != 2 or tablets[1].bounds != first.sibling() or parent is None:
            raise Refused(f"tablets {', '.join(map(str, tablet_ids))} are not the two halves of one vbucket")
        joined = parent
    else:
        ranges = sorted((t.bounds for t in tablets if isinstance(t.bounds, RangeBounds)), key=lambda r: r.lower)
        joined = RangeBounds(ranges[0].lower, ranges[-1].upper)
    return begin_reshard(
        directory, leadership, tablet_ids, (joined,), mode=mode, reason=reason, force=force, clock=clock
    )
