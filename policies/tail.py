"""Balancing that has begun continues below the start threshold, to the stop threshold, and ends there.

Moves off nodes that are over the start threshold earn bytes, which later pay for moves off nodes between the two
thresholds. So the tail of a bundle's balancing is never longer than what it finishes, and where load only wanders,
moves start at the start threshold as before. The tick and the simulator keep it from plan to plan.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from balancer.policies.bundle_view import Action, PlanResult
from balancer.policies.reasons import Taken

FOR_BALANCE = (Taken.LOAD, Taken.SWAP, Taken.CHAIN)
_TAIL = 0.25  # bytes that each byte moved off a node over the start threshold earns for the tail


@dataclass(frozen=True, slots=True)
class Tail:
    """What is left to do of what has begun."""

    bytes: float = 0.0  # that moves off nodes between the thresholds may still copy
    nodes: frozenset[str] = frozenset()  # over the start threshold at the last plan

    def after(self, plan: PlanResult, started: Iterable[Action]) -> "Tail":
        """How it stands after a plan of which these actions were started."""
        if not plan.unfinished:
            return NOTHING_BEGUN
        moves = [action for action in started if action.code in FOR_BALANCE]
        main = sum(action.size for action in moves if action.source in plan.overloaded)
        rest = sum(action.size for action in moves) - main
        # A node that was not over the threshold before is a new story, of changing load: nothing is earned for it.
        earned = self.bytes if plan.overloaded <= self.nodes else 0.0
        return Tail(max(0.0, earned + _TAIL * main - rest), plan.overloaded)


NOTHING_BEGUN = Tail()
