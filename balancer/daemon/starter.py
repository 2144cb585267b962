"""Turns an admitted action into a journaled migration. Called for ticks and for operators' commands, only by a leader.

Decides only what needs a node: at which keys to cut a range if the policy only says into how many parts.
"""

from collections.abc import Callable, Sequence

from balancer.clock import Clock
from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import Bounds, Migration, MigrationMode, RangeBounds, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.errors import Refused
from balancer.migration.begin import Also, begin_move, nothing_else
from balancer.migration.begin_expiry import begin_expiry
from balancer.migration.begin_reshard import begin_reshard
from balancer.policies.bundle_view import Action, ActionKind, Part
from balancer.policies.hash_leaves import Leaf
from balancer.policies.options import InMemoryMode
from balancer.settings import BundleSettings, WantedMode

SplitKeys = Callable[[Snapshot, Sequence[Tablet], int], list[bytes]]
"""Neighbouring ranges on one node, and how many parts → the keys at which to cut them."""


class Beginner:
    """Begins migrations for one leadership."""

    def __init__(self, directory: Directory, leadership: Leadership, split_keys: SplitKeys, clock: Clock) -> None:
        self._directory = directory
        self._leadership = leadership
        self._split_keys = split_keys
        self._clock = clock

    def begin(self, action: Action, bundle: BundleSettings, also: Also = nothing_else) -> Migration:
        """Journals the migration, with whatever else belongs in the same commit.

        Raises one of our errors if that is not possible.
        """
        begin = {ActionKind.MOVE: self._move, ActionKind.EXPIRE: self._expire}.get(action.kind, self._reshard)
        return begin(action, bundle, also)

    def _move(self, action: Action, bundle: BundleSettings, also: Also) -> Migration:
        # The copies of a reference table are already streamed.
        streamed = self._directory.snapshot().table(action.table).everywhere
        return begin_move(
            self._directory,
            self._leadership,
            action.tablets[0],
            action.target,
            mode=MigrationMode.REPLICATE if streamed else bundle.migration.mode.first,
            fallback=bundle.migration.mode is WantedMode.AUTO and not streamed,
            reason=action.reason,
            code=action.code,
            then=action.then,
            warm=bundle.options.table(action.table).in_memory_mode is not InMemoryMode.NONE,
            also=also,
            clock=self._clock,
        )

    def _expire(self, action: Action, bundle: BundleSettings, also: Also) -> Migration:
        wished = bundle.options.table(action.table)
        return begin_expiry(
            self._directory,
            self._leadership,
            action.tablets,
            expire_after=wished.expire_after,
            unit=wished.key_unit,
            reason=action.reason,
            code=action.code,
            also=also,
            clock=self._clock,
        )

    def _reshard(self, action: Action, bundle: BundleSettings, also: Also) -> Migration:
        snapshot = self._directory.snapshot()
        tablets = [snapshot.tablet(tablet) for tablet in action.tablets]
        parts = action.parts or self._chosen(snapshot, tablets, action.count)
        source = tablets[0].node
        return begin_reshard(
            self._directory,
            self._leadership,
            action.tablets,
            bounds_of(parts, tablets),
            mode=bundle.migration.mode.first,
            fallback=bundle.migration.mode is WantedMode.AUTO,
            reason=action.reason,
            code=action.code,
            then=["" if part.node == source else part.node for part in parts],
            also=also,
            clock=self._clock,
        )

    def _chosen(self, snapshot: Snapshot, tablets: Sequence[Tablet], count: int) -> tuple[Part, ...]:
        """Parts of about the same size, as the node's own statistics see it."""
        first = tablets[0].bounds
        if isinstance(first, Leaf):
            raise Refused(f"tablet {tablets[0].id} is a vbucket: its parts must be named")
        if count == 1:
            return (Part(lower=first.lower),)
        keys = self._split_keys(snapshot, tablets, count)
        return (Part(lower=first.lower), *(Part(lower=key) for key in keys))


def bounds_of(parts: Sequence[Part], tablets: Sequence[Tablet]) -> list[Bounds]:
    """What the parts cover; the last range ends where the last tablet does."""
    if parts[0].leaf is not None:
        return [part.leaf for part in parts if part.leaf is not None]
    last = tablets[-1].bounds
    assert isinstance(last, RangeBounds), "parts without leaves are ranges"
    lowers = [part.lower for part in parts]
    return [RangeBounds(lower, upper) for lower, upper in zip(lowers, [*lowers[1:], last.upper], strict=True)]
