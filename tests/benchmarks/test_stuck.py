"""Small random bundles at default budgets, carried out to rest: how many are called balanced that are not."""

from dataclasses import replace

import numpy as np
import pytest

from balancer.planner.bundle_state import StateWord
from balancer.policies.options import BalancerOptions, BudgetOptions, BundleOptions, HeatOptions
from tests.support.bundle_views import small
from tests.support.settling import settle, stands_below, word
from tests.support.tables import show_table

pytestmark = pytest.mark.bench

BALANCER = BalancerOptions(enable_cell_balancer=True, enable_tablet_size_balancer=False)
DEFAULTS = BundleOptions(balancer=BALANCER, heat=HeatOptions(enable=False))
UNLIMITED = replace(DEFAULTS, budgets=BudgetOptions(moves_per_node=1000, moves_total=1000))
BUNDLES = 1000


def test_bundles_at_rest_are_called_what_they_are() -> None:
    rows = []
    for name, options in (("defaults", DEFAULTS), ("no budgets", UNLIMITED)):
        found = [settle(small(seed), options) for seed in range(BUNDLES)]
        words = [word(settled) for settled in found]
        pending = sum(bool(settled.plan.pending_moves) for settled in found)
        below = sum(
            called is StateWord.BALANCED and stands_below(one, options)
            for called, one in zip(words, found, strict=True)
        )
        worse = sum(bool((np.diff(one.scores) < -0.01).any()) for one in found)
        again = sum(one.carried_again for one in found)
        scores = np.mean([one.scores[-1] for one in found])
        counts = [words.count(one) for one in (StateWord.BALANCED, StateWord.BLOCKED)]
        rows.append((name, scores, *counts, pending, below, worse, again, sum(one.moves for one in found)))
    columns = (
        "how",
        "score, mean",
        "balanced",
        "blocked",
        "moves pending",
        "balanced below",
        "worse",
        "twice",
        "moves",
    )
    show_table(f"{BUNDLES} bundles of 6 to 40 tablets on 2 to 5 nodes, at rest", columns, rows)
