"""How long a whole plan takes, everything at its defaults: bundles that are easy to balance beside ones that are hard.

Easy: tablets pulled to some nodes more than to others. Hard: ten tablets per node and lognormal rates, so that no
single move helps most nodes. Each hard figure is shown as a multiple of the easy one of its size.
"""

import time
import tracemalloc

import pytest

from balancer.policies.options import BalancerOptions, BundleOptions
from balancer.policies.plan.plan import make_plan
from balancer.policies.view import BundleView
from tests.support.bundle_views import in_tables, rough, skewed
from tests.support.tables import show_table

pytestmark = pytest.mark.bench

DEFAULTS = BundleOptions(balancer=BalancerOptions(enable_cell_balancer=True))
SEEDS = (1, 2, 3)
COLUMNS = ("family", "tablets", "nodes", "CPU s, best", "worst", "wall s, best", "× easy (CPU)", "actions", "pending")


def test_plans_of_bundles_that_are_easy_and_hard_to_balance() -> None:
    rows = []
    for tablets, nodes in ((1_000, 100), (3_000, 300), (10_000, 1_000)):
        easy = _measure("easy", tablets, nodes, [skewed(tablets, nodes, seed) for seed in SEEDS], None)
        rows.append(easy)
        for sigma in (1.0, 2.0):
            made = [rough(tablets, nodes, sigma, seed) for seed in SEEDS]
            rows.append(_measure(f"hard, σ {sigma:.0f}", tablets, nodes, made, float(str(easy[4]))))
    show_table("A plan at defaults, ten tablets per node, three seeds", COLUMNS, rows)


def test_plans_of_large_bundles() -> None:
    rows = []
    for tablets, nodes in ((10_000, 100), (100_000, 300), (1_000_000, 1_000)):
        easy = _measure("easy", tablets, nodes, [in_tables(skewed(tablets, nodes, 1))], None)
        hard = [in_tables(rough(tablets, nodes, 1.0, 1))]
        rows += [easy, _measure("hard, σ 1", tablets, nodes, hard, float(str(easy[4])))]
    show_table("A plan at defaults, one seed", COLUMNS, rows)


def test_memory_of_the_largest_plan() -> None:
    view = in_tables(skewed(1_000_000, 1_000, 1))
    tracemalloc.start()
    make_plan(view, DEFAULTS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    show_table("Memory of a plan", ("tablets", "peak MB", "bytes per tablet"), [(1_000_000, peak / 1e6, peak / 1e6)])


def _measure(name: str, tablets: int, nodes: int, views: list[BundleView], easy: float | None) -> tuple[object, ...]:
    cpu, wall, actions, pending = [], [], 0, 0
    for view in views:
        for _ in range(2 if tablets < 100_000 else 1):
            began, started = time.process_time(), time.perf_counter()
            plan = make_plan(view, DEFAULTS)
            cpu.append(time.process_time() - began)
            wall.append(time.perf_counter() - started)
        actions, pending = actions + len(plan.actions), pending + plan.pending_moves
    worst = max(cpu)
    return name, tablets, nodes, min(cpu), worst, min(wall), worst / easy if easy else "", actions, pending
