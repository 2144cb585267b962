"""An admitted action becomes a journaled migration. Called by the tick and by operators' commands, under a leader only.

Nothing is decided here but details that need a node: at which keys a range is cut where the policy only says into how
many parts.
"""

from collections.abc import Callable

from balancer.clock import Clock
from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import Migration
from balancer.directory.snapshot import Snapshot
from balancer.errors import Refused
from balancer.migration.begin import begin_move
from balancer.settings import BundleSettings
from policies.model import Action, ActionKind
from policies.options import InMemoryMode

SplitKeys = Callable[[Snapshot, tuple[int, ...], int], list[bytes]]
"""Tablets of a range table, neighbours on one node, and how many parts → the keys at which to cut them."""


class Beginner:
    """Begins migrations for one leadership."""

    def __init__(self, directory: Directory, leadership: Leadership, split_keys: SplitKeys, clock: Clock) -> None:
        self._directory = directory
        self._leadership = leadership
        self._split_keys = split_keys
        self._clock = clock

    def begin(self, action: Action, bundle: BundleSettings) -> Migration:
        """Journals the migration; raises an error of ours where that is not possible."""
        if action.kind is not ActionKind.MOVE:
            raise Refused(f"{action.kind} is not possible")
        options = bundle.options.table(action.table)
        return begin_move(
            self._directory,
            self._leadership,
            action.tablets[0],
            action.target,
            mode=bundle.migration.mode,
            reason=action.reason,
            warm=options.in_memory_mode is not InMemoryMode.NONE,
            clock=self._clock,
        )
