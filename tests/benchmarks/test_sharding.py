"""Sharding functions on a million keys, 20 nodes and then 21, beside uhashring and jump-consistent-hash."""

import time
from collections.abc import Callable, Sequence

import jump
import numpy as np
import numpy.typing as npt
import pytest
from uhashring import HashRing

from balancer.policies.placement.sharding import FUNCTIONS, Node, place
from tests.support.tables import show_table

pytestmark = pytest.mark.bench

SEED = 20
KEYS = 1_000_000
PEER_KEYS = 200_000  # the peers place one key at a time
NODES: list[Node] = [(f"node-{number}", 1.0) for number in range(20)]
MORE: list[Node] = [*NODES, ("node-20", 1.0)]
Places = npt.NDArray[np.int64]


def _ring(keys: Sequence[int], nodes: Sequence[Node]) -> Places:
    index = {name: place for place, (name, _) in enumerate(nodes)}
    ring = HashRing(nodes=[name for name, _ in nodes])
    return np.array([index[ring.get_node(str(key))] for key in keys])


def _jump(keys: Sequence[int], nodes: Sequence[Node]) -> Places:
    return np.array([jump.hash(key, len(nodes)) for key in keys])


def _row(name: str, count: int, place_on: Callable[[Sequence[Node]], Places]) -> tuple[object, ...]:
    began = time.perf_counter()
    now = place_on(NODES)
    taken = time.perf_counter() - began
    more = place_on(MORE)
    counts = np.bincount(now, minlength=len(NODES))
    mean = count / len(NODES)
    stays = f"{100 * float((now == more).mean()):.2f} %"
    return name, count, taken, count / taken / 1e6, stays, mean, f"{100 * float(counts.std()) / mean:.2f} %"


def test_sharding_functions_from_twenty_to_twenty_one_nodes() -> None:
    numbers = np.random.default_rng(SEED).integers(0, 1 << 64, KEYS, np.uint64)
    few = numbers[:PEER_KEYS].tolist()
    rows = [
        _row(function.value, KEYS, lambda nodes, function=function: place(function, numbers, nodes))  # type: ignore[misc]
        for function in FUNCTIONS
    ]
    rows.append(_row("uhashring", PEER_KEYS, lambda nodes: _ring(few, nodes)))
    rows.append(_row("jump-consistent-hash", PEER_KEYS, lambda nodes: _jump(few, nodes)))
    columns = ("function", "keys", "seconds", "million keys/s", "stay at 21 (best 95.24 %)", "keys/node", "deviation")
    show_table(f"sharding functions, 20 nodes (seed {SEED})", columns, rows)
