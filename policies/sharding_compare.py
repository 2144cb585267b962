"""Sharding functions side by side: how much moves when a node comes or goes, and how even they are.

The command line prints it, with the time each takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from balancer.policies.options import Placement
from balancer.policies.sharding import Node, Places, UInts, place


@dataclass(frozen=True, slots=True)
class Comparison:
    """One way to place one set of keys."""

    function: str
    stay_when_one_comes: float | None
    """Share of the keys that keep their node when a node is added; `most` is what any even function could keep."""
    most_when_one_comes: float | None
    stay_when_one_goes: float | None
    most_when_one_goes: float | None
    keys_per_node: float
    deviation: float
    """Standard deviation of the keys per node from what is due to each by its weight."""
    fullest: float
    """Keys of the fullest node, as a multiple of what is due to it."""


def compare(
    function: Placement, keys: UInts, nodes: Sequence[Node], added: Node, placed: Places | None = None
) -> Comparison:
    """Places the keys on the nodes, on one more and on one less (the last). `placed` saves doing the first again."""
    now = place(function, keys, nodes) if placed is None else placed
    more = place(function, keys, [*nodes, added])
    fewer = place(function, keys, nodes[:-1]) if len(nodes) > 1 else np.full(len(keys), -1)
    total = sum(weight for _, weight in nodes)
    return Comparison(
        function.value,
        float((now == more).mean()),
        total / (total + added[1]),
        float((now == fewer).mean()),
        1 - nodes[-1][1] / total,
        len(keys) / len(nodes),
        *_evenness(now, nodes),
    )


def present(owners: Sequence[int], nodes: Sequence[Node]) -> Comparison:
    """How even keys are as they are placed now; an owner below 0 is not one of the nodes."""
    placed = np.array([owner for owner in owners if owner >= 0], np.int64)
    return Comparison("present", None, None, None, None, len(placed) / len(nodes), *_evenness(placed, nodes))


def _evenness(placed: Places, nodes: Sequence[Node]) -> tuple[float, float]:
    """The deviation from what is due, and the fullest node."""
    weights = np.array([weight for _, weight in nodes])
    due = weights / weights.sum() * len(placed)
    counts = np.bincount(placed, minlength=len(nodes))
    return float(np.sqrt(np.mean((counts - due) ** 2))), float((counts / np.maximum(due, 1e-9)).max())
