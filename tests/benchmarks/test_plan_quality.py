"""How good plans are: beside an exact solver, and beside the rule "longest first" that moves whatever it likes.

The figure is a node's greatest load over the mean, in its tightest dimension (weights as by default), divided by the
least that any placement can reach. The solver (HiGHS) gives that least value, or where its time is over the best bound
it has proved; for small bundles also the least for as many bytes as the planner has moved.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import highspy
import numpy as np
import pytest

from balancer.policies.options import BalancerOptions, BudgetOptions, BundleOptions, HeatOptions
from balancer.policies.placement.problem import Problem, build_problem
from balancer.policies.view import BundleView, Ints
from tests.support.bundle_views import GB, bundle, rough, small
from tests.support.settling import Settled, settle
from tests.support.tables import show_table

pytestmark = pytest.mark.bench

BALANCER = BalancerOptions(enable_cell_balancer=True, enable_tablet_size_balancer=False)
DEFAULTS = BundleOptions(balancer=BALANCER, heat=HeatOptions(enable=False))
UNLIMITED = replace(DEFAULTS, budgets=BudgetOptions(moves_per_node=1000, moves_total=1000))
SECONDS = 1.0  # of the solver, per bundle; afterwards the bound that it has proved by then counts


def test_hundred_tablets_on_ten_nodes() -> None:
    _hundred_on_ten("bytes and writes", two_dimensions)
    _hundred_on_ten("bytes, writes and reads", lambda seed: rough(100, 10, 1.0, seed))


def two_dimensions(seed: int) -> BundleView:
    """Bytes and writes of their own."""
    chance = np.random.default_rng(seed)
    owner = chance.integers(0, 10, 100).tolist()
    sizes, writes = chance.lognormal(0.0, 0.7, 100) * 5 * GB, chance.lognormal(3.0, 1.0, 100)
    return bundle(owner, 10, sizes=sizes, writes=writes)


def _hundred_on_ten(name: str, make: Callable[[int], BundleView]) -> None:
    found: dict[str, list[float]] = {"defaults": [], "no budgets": [], "longest first": []}
    moved: dict[str, list[float]] = {name: [] for name in found}
    for seed in range(20):
        view = make(seed)
        problem = build_problem(view, DEFAULTS)
        best = least_level(problem, None, SECONDS)
        longest = longest_first(problem)
        for how, owner in (
            ("defaults", owners(settle(view, DEFAULTS))),
            ("no budgets", owners(settle(view, UNLIMITED))),
            ("longest first", longest),
        ):
            found[how].append(level(problem, owner) / best)
            moved[how].append(float(problem.sizes[owner != problem.home].sum()) / float(problem.sizes.sum()))
    rows = [
        (how, np.mean(values), max(values), np.mean(moved[how]), np.mean(moved[how]) / np.mean(moved["defaults"]))
        for how, values in found.items()
    ]
    columns = ("how", "level / best, mean", "worst", "bytes moved / all bytes", "× defaults")
    show_table(f"100 tablets, 10 nodes, lognormal {name}, twenty seeds", columns, rows)


def test_small_bundles_beside_the_optimum_for_the_same_bytes() -> None:
    rows = []
    for name, options in (("defaults", DEFAULTS), ("no budgets", UNLIMITED)):
        ratios, used = [], []
        for seed in range(40):
            view = small(seed)
            problem = build_problem(view, options)
            owner = owners(settle(view, options))
            carried = float(problem.sizes[owner != problem.home].sum())
            # Below the stop threshold the planner does not look for more, and should not.
            goal = 1.0 + options.placement.stop_threshold
            best = max(least_level(problem, carried, SECONDS), goal)
            ratios.append(max(level(problem, owner), goal) / best)
            used.append(carried / float(problem.sizes.sum()))
        rows.append((name, np.mean(ratios), max(ratios), np.mean(used)))
    columns = ("how", "level / best for the same bytes, mean", "worst", "bytes moved / all bytes")
    show_table("6 to 40 tablets, 2 to 5 nodes, forty seeds", columns, rows)


def owners(settled: Settled) -> Ints:
    """The owners at rest, in the order of a problem: by id."""
    columns = settled.view.tablets
    return columns.node[np.argsort(columns.ids)]


def level(problem: Problem, owner: Ints) -> float:
    """1 + the tightest node's weighted excess."""
    nodes = len(problem.nodes)
    held = np.stack([np.bincount(owner, weights=column, minlength=nodes) for column in problem.loads.T], axis=1)
    return 1.0 + float(((held / problem.due - 1.0) * problem.weights).max())


def longest_first(problem: Problem) -> Ints:
    """Every tablet, the heaviest first, to the node that it makes least tight."""
    held = np.zeros_like(problem.due)
    owner = np.zeros(len(problem.ids), dtype=np.int64)
    for row in np.argsort(-(problem.loads * problem.weights).max(axis=1), kind="stable"):
        after = (held + problem.loads[row]) / problem.due * problem.weights
        node = int(np.lexsort((after.sum(axis=1), after.max(axis=1)))[0])
        owner[row] = node
        held[node] += problem.loads[row]
    return owner


def least_level(problem: Problem, most_bytes: float | None, seconds: float) -> float:
    """The least level of any placement that moves no more than so many bytes; a proved bound where time runs out."""
    tablets, nodes, dimensions = len(problem.ids), len(problem.nodes), len(problem.dimensions)
    model: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    model.setOptionValue("output_flag", False)
    model.setOptionValue("time_limit", seconds)
    model.setOptionValue("mip_rel_gap", 1e-3)
    model.setOptionValue("threads", 1)
    place = [[model.addBinary() for _ in range(nodes)] for _ in range(tablets)]
    worst = model.addVariable(lb=0.0)
    for row in range(tablets):
        model.addConstr(sum(place[row]) == 1)
    for node in range(nodes):
        for d in range(dimensions):
            factor = float(problem.weights[d] / problem.due[node, d])
            load = sum(float(problem.loads[row, d]) * factor * place[row][node] for row in range(tablets))
            model.addConstr(load - float(problem.weights[d]) <= worst)
    if most_bytes is not None:
        unit = float(problem.sizes.sum())
        stays = sum(float(problem.sizes[row]) / unit * place[row][int(problem.home[row])] for row in range(tablets))
        model.addConstr(stays >= 1.0 - most_bytes * 1.000001 / unit)
    model.minimize(worst)
    return 1.0 + max(0.0, float(model.getInfo().mip_dual_bound))
