"""The objective at scale: time, balance and bytes, beside the least bytes any plan needs and beside a plain greedy."""

import heapq
import time
from collections.abc import Callable

import numpy as np
import pytest

from balancer.policies.options import BundleOptions, PlacementOptions
from balancer.policies.placement.balance import balance, ceilings
from balancer.policies.placement.bulk import least_bytes
from balancer.policies.placement.problem import LoadState, Problem, build_problem, excess, initial_state
from balancer.policies.placement.refine import MoveMask
from balancer.policies.view import BundleView
from tests.support.bundle_views import skewed
from tests.support.tables import show_table

pytestmark = pytest.mark.bench

SEED = 1
OPTIONS = BundleOptions(placement=PlacementOptions(dimensions={"bytes": 1.0, "write_rate": 1.0, "read_rate": 1.0}))
COLUMNS = (
    "how",
    "tablets",
    "nodes",
    "CPU seconds",
    "moves",
    "max/mean before",
    "max/mean after",
    "bytes / least bytes",
)


def test_cost_of_a_plan_at_three_sizes() -> None:
    rows = []
    for tablets, nodes in ((10_000, 100), (100_000, 300), (1_000_000, 1_000)):
        view = skewed(tablets, nodes, SEED)
        least = _least(view)
        rows.append(_measure("objective", view, _objective, least))
        rows.append(_measure("one move at a time, from the tightest node to the emptiest", view, _plain, least))
    show_table(f"LoadState, 3 dimensions, one core, seed {SEED}", COLUMNS, rows)


def _least(view: BundleView) -> float:
    problem = build_problem(view, OPTIONS)
    everything = np.ones(len(problem.ids), dtype=np.bool_)
    ceiling = ceilings(problem, OPTIONS.placement.stop_threshold)
    return least_bytes(problem, initial_state(problem), everything, ceiling, rounds=30)


def _measure(
    name: str, view: BundleView, plan: Callable[[Problem, LoadState], None], least: float
) -> tuple[object, ...]:
    began = time.process_time()
    problem = build_problem(view, OPTIONS)
    state = initial_state(problem)
    before = state.copy()
    plan(problem, state)
    seconds = time.process_time() - began
    moved = state.owner != problem.home
    worst = [1 + float(excess(problem, held).max()) for held in (before.held, state.held)]
    figures = (len(problem.ids), len(problem.nodes), seconds, int(moved.sum()), *worst)
    return (name, *figures, float(problem.sizes[moved].sum()) / least)


def _objective(problem: Problem, state: LoadState) -> None:
    everything = np.ones(len(problem.ids), dtype=np.bool_)
    balance(problem, state, MoveMask(everything, ~everything), OPTIONS)


def _plain(problem: Problem, state: LoadState) -> None:
    """What a simple balancer does: the tightest node's densest tablet goes to the node with the most room."""
    order = np.argsort(-(problem.loads.max(axis=1) / problem.sizes), kind="stable")
    queues: list[list[int]] = [[] for _ in problem.nodes]
    for row in order[::-1].tolist():
        queues[int(state.owner[row])].append(row)
    tight = [(-float(worst), node) for node, worst in enumerate(excess(problem, state.held).max(axis=1))]
    heapq.heapify(tight)
    room = [(float(worst), node) for worst, node in ((-negative, node) for negative, node in tight)]
    heapq.heapify(room)
    for _ in range(len(problem.ids)):
        worst, node = heapq.heappop(tight)
        if -worst <= OPTIONS.placement.stop_threshold or not queues[node]:
            break
        _, target = heapq.heappop(room)
        state.move(problem, queues[node].pop(), target)
        for changed, heap, sign in ((node, tight, -1), (target, room, 1)):
            now = float((state.held[changed] / problem.due[changed]).max()) - 1
            heapq.heappush(heap, (sign * now, changed))
