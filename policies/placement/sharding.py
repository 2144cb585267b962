"""Sharding functions: which node a key or a vbucket belongs to, computed and not stored.

A table with `placement = "jump"` (say) has its vbuckets placed by one of these; `balancer compare-placements` shows how
they differ. All take an array of 64-bit numbers (hashes, or the vbuckets' remainders) and nodes as (id, weight), and
return each number's place in the list of nodes. Ring and rendezvous know nodes by their ids: the order of the list does
not matter and any node may leave. Modulo, jump and fibonacci know them by their places: nodes come and go at the end.

Sharding functions side by side: how much moves when a node comes or goes, and how even they are.

The command line prints it, with the time each takes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt

from balancer.policies.keyspace.hashing import hash_bytes
from balancer.policies.options import VIRTUAL_NODES, Placement

UInts = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]
Node = tuple[str, float]

SLOTS = 16
"""Slots of a node of weight 1 for the functions that number them: weights are as fine as that."""
CHUNK = 1 << 14  # numbers at a time: the arrays that the mixing works on stay in the processor's cache

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_JUMP_FACTOR = np.uint64(2862933555777941757)
_JUMP_SCALE = float(1 << 31)


def place(function: Placement, numbers: UInts, nodes: Sequence[Node], points: int = VIRTUAL_NODES) -> Places:
    """Each number's node, as an index into `nodes`. `points`: those of a node of weight 1, if it is the ring."""
    if not nodes:
        raise ValueError("there is no node to place anything on")
    lightest = min(nodes, key=lambda node: node[1])
    if not lightest[1] > 0:
        raise ValueError(f"node {lightest[0]} has the weight {lightest[1]:g}, it must be above 0")
    if function not in FUNCTIONS:
        raise ValueError(f"{function} is not a sharding function; there are {', '.join(FUNCTIONS)}")
    taken = np.ascontiguousarray(numbers, np.uint64)
    return ring(taken, nodes, points) if function is Placement.RING else FUNCTIONS[function](taken, nodes)


def modulo(numbers: UInts, nodes: Sequence[Node]) -> Places:
    """The remainder by the number of slots: even and fast, but nearly everything moves when a node comes or goes."""
    counts = _slot_counts(nodes)
    slots = np.repeat(np.arange(len(nodes)), [count // gcd(*counts) for count in counts])
    return slots[(numbers % np.uint64(len(slots))).astype(np.int64)]


def fibonacci(numbers: UInts, nodes: Sequence[Node]) -> Places:
    """The number times the golden ratio, and the place of its fraction among the nodes' shares.

    Numbers in sequence spread evenly, as vbuckets are; when a node comes, every border moves a little, so half of the
    numbers stay. Where the fraction is taken modulo the number of nodes instead, one in as many nodes stays.
    """
    ends = np.cumsum([weight for _, weight in nodes])
    fractions = (numbers * _GOLDEN) * (1.0 / 2**64)
    return np.minimum(np.searchsorted(ends / ends[-1], fractions, side="right"), len(nodes) - 1)


def jump(numbers: UInts, nodes: Sequence[Node]) -> Places:
    """Jump consistent hash (Lamping and Veach): only what a new last node gets moves, and nothing is stored.

    The slots are never reduced, even if all weigh the same: a node of another weight may come later.
    """
    slots = np.repeat(np.arange(len(nodes)), _slot_counts(nodes))
    found = np.zeros(len(numbers), np.int64)
    for start in range(0, len(numbers), CHUNK):
        _jump_to_slots(numbers[start : start + CHUNK], len(slots), found[start : start + CHUNK])
    return slots[found]


def _jump_to_slots(numbers: UInts, count: int, found: Places) -> None:
    """All numbers jump at once; those that have jumped beyond the last slot stay where they were before."""
    at, state, jumped = np.arange(len(numbers)), numbers, np.zeros(len(numbers))
    while len(at):
        found[at] = jumped
        state = state * _JUMP_FACTOR + np.uint64(1)
        jumped = np.floor((jumped + 1) * (_JUMP_SCALE / ((state >> np.uint64(33)) + np.uint64(1))))
        going = jumped < count
        at, state, jumped = at[going], state[going], jumped[going]


def rendezvous(numbers: UInts, nodes: Sequence[Node]) -> Places:
    """The node that draws the highest ticket (Thaler and Ravishankar): least movement, cost grows with the nodes."""
    seeds = [np.uint64(hash_bytes(name.encode())) for name, _ in nodes]
    weights = [weight for _, weight in nodes]
    even = min(weights) == max(weights)
    found = np.zeros(len(numbers), np.int64)
    for start in range(0, len(numbers), CHUNK):
        mixed, places = _mix(numbers[start : start + CHUNK]), found[start : start + CHUNK]
        best = np.zeros(len(mixed), np.uint64 if even else np.float64)
        for index, (seed, weight) in enumerate(zip(seeds, weights, strict=True)):
            tickets: npt.NDArray[Any] = _mix(mixed ^ seed)
            if not even:
                # −weight / ln(ticket): the winner's chance is then its part of all weights
                tickets = -weight / np.log((tickets + 1.0) / (2.0**64 + 2.0**12))
            won = tickets > best
            np.copyto(best, tickets, where=won)
            np.copyto(places, index, where=won)
    return found


def ring(numbers: UInts, nodes: Sequence[Node], virtual_nodes: int = VIRTUAL_NODES) -> Places:
    """The next point on a ring on which every node has points by its weight (Karger and others)."""
    points, owners = [], []
    for index, (name, weight) in enumerate(nodes):
        count = max(1, round(virtual_nodes * weight))
        steps = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
        points.append(_mix(np.uint64(hash_bytes(name.encode())) + steps))
        owners.append(np.full(count, index, np.int64))
    order = np.argsort(np.concatenate(points), kind="stable")
    sorted_points, sorted_owners = np.concatenate(points)[order], np.concatenate(owners)[order]
    at = np.searchsorted(sorted_points, _mix(numbers), side="left")
    return sorted_owners[at % len(sorted_points)]


FUNCTIONS: dict[Placement, Callable[[UInts, Sequence[Node]], Places]] = {
    Placement.MODULO: modulo,
    Placement.RENDEZVOUS: rendezvous,
    Placement.RING: ring,
    Placement.JUMP: jump,
    Placement.FIBONACCI: fibonacci,
}


def _slot_counts(nodes: Sequence[Node]) -> list[int]:
    return [max(1, round(SLOTS * weight)) for _, weight in nodes]


def _mix(numbers: UInts) -> UInts:
    """splitmix64's finisher: every bit of the number reaches every bit of the result."""
    mixed = numbers >> np.uint64(30)
    mixed ^= numbers
    for factor, shift in ((0xBF58476D1CE4E5B9, 27), (0x94D049BB133111EB, 31)):
        mixed *= np.uint64(factor)
        mixed ^= mixed >> np.uint64(shift)
    return mixed


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
    function: Placement,
    keys: UInts,
    nodes: Sequence[Node],
    added: Node,
    *,
    placed: Places | None = None,
    points: int = VIRTUAL_NODES,
) -> Comparison:
    """Places the keys on the nodes, on one more and on one less (the last). `placed` saves doing the first again."""
    now = place(function, keys, nodes, points) if placed is None else placed
    more = place(function, keys, [*nodes, added], points)
    fewer = place(function, keys, nodes[:-1], points) if len(nodes) > 1 else np.full(len(keys), -1)
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
