"""Who gets the slots when splits and merges want them as well as moves: shares, turns, and the order by need.

`plan` asks. Each kind may use half of the slots while the other wants some, and all of them when it does not. The kind
that went last lets the other begin, so that even a single slot is shared; and a node that the next in turn waits for is
kept free for it: otherwise whatever needs one node would always be faster than what needs two.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from balancer.policies.budgets import moves_at_once
from balancer.policies.bundle_view import Action, ActionKind, BundleView
from balancer.policies.options import BundleOptions


@dataclass(frozen=True, slots=True)
class Shares:
    """How many of each kind may be started before the other has had its turn."""

    moves: int
    reshapes: int

    @classmethod
    def of(cls, view: BundleView, options: BundleOptions) -> "Shares":
        """Half of the slots each, less what runs already."""
        running = [migration.source == migration.target for migration in view.in_flight if not migration.waits]
        total = moves_at_once(view, options)
        half = max(1, total // 2)
        reshapes = sum(running)
        return cls(max(0, max(1, total - half) - (len(running) - reshapes)), max(0, half - reshapes))


def by_need(actions: Iterable[Action]) -> list[Action]:
    """Splits and merges of all tables in the order of need, as in YT; the two in turn, so that both make progress.

    Of merges those of most tablets, then the smallest; of splits those into most tablets, then the largest.
    """
    merges: list[Action] = []
    splits: list[Action] = []
    for action in actions:
        (splits if action.kind is ActionKind.SPLIT else merges).append(action)
    merges.sort(key=lambda action: (-len(action.tablets), action.size))
    splits.sort(key=lambda action: (-max(action.count, len(action.parts)), -action.size))
    return [action for pair in zip_longest(merges, splits) for action in pair if action is not None]


def first_nodes(actions: Sequence[Action], busy: frozenset[str]) -> frozenset[str]:
    """The nodes of the first action that waits for one of them; none if nothing waits for a node."""
    ends = ({action.source, action.target} - {""} for action in actions)
    return next((frozenset(nodes) for nodes in ends if nodes & busy), frozenset())
