"""Sharding functions side by side: how much moves when a node comes or goes, and how even they are.

The command line prints it, with the time each takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policies.options import Placement
from policies.sharding import Node, Places, UInts, place


@dataclass(frozen=True, slots=True)
class Comparison:
    """One function over one set of keys."""

    function: str
    stay_when_one_comes: float
    """Share of the keys that keep their node when a node is added; `most` is what any even function could keep."""
    most_when_one_comes: float
    stay_when_one_goes: float
    most_when_one_goes: float
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
    due = np.array([weight for _, weight in nodes]) / total * len(keys)
    counts = np.bincount(now, minlength=len(nodes))
    return Comparison(
        function=function.value,
        stay_when_one_comes=float((now == more).mean()),
        most_when_one_comes=total / (total + added[1]),
        stay_when_one_goes=float((now == fewer).mean()),
        most_when_one_goes=1 - nodes[-1][1] / total,
        keys_per_node=len(keys) / len(nodes),
        deviation=float(np.sqrt(np.mean((counts - due) ** 2))),
        fullest=float((counts / due).max()),
    )
