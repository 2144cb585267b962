"""A bundle that could be better and in which nothing starts says why, whatever its windows, sizes and rates are."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.planner.bundle_state import NodeReport, StateWord
from balancer.planner.verdict import VerdictFacts, verdict
from balancer.planner.windows import Openings, report
from balancer.policies.options import GB, MB, BalancerOptions, BudgetOptions, BundleOptions
from balancer.policies.plan.plan import make_plan
from balancer.policies.view import BundleView
from balancer.schedules import Level, applicable
from balancer.settings import Mode
from tests.support.bundle_states import view_of

pytestmark = pytest.mark.quick

NOW = datetime(2026, 3, 1, 12, 0, 5, tzinfo=UTC)
FORMULAS = ("", "minutes % 20 == 0", "minutes % 20 == 7", "hours == 13", "hours % 2 == 0 && minutes < 5", "hours > 30")


def openings(formula: str) -> Openings:
    one = report(applicable(Level("bundle shop", formula)), "UTC", NOW, NOW - timedelta(seconds=10), 900)
    return Openings(one, one, {}, BundleOptions())


def said(view: BundleView, options: BundleOptions, opened: Openings) -> tuple[StateWord, str]:
    plan = make_plan(view, options)
    nodes = [NodeReport(node.id, "active", "", True) for node in view.nodes]
    return verdict(
        VerdictFacts(
            now=NOW,
            mode=Mode.AUTONOMOUS,
            plan=plan,
            nodes=nodes,
            owned={},
            schedule=opened.bundle,
            running=(),
            held=(),
            started=0,
            paused=False,
            paused_until=None,
            leading=True,
            leader="host",
            waiting_plan="",
            refused="",
        )
    )


@given(
    sizes=st.lists(st.floats(0.2 * GB, 60 * GB), min_size=2, max_size=8),
    rate=st.floats(1 * MB, 400 * MB),
    formula=st.sampled_from(FORMULAS),
    finish_by=st.sampled_from(("any", "window", "park", "06:00", "12:01")),
    place=st.lists(st.integers(0, 1), min_size=8, max_size=8),
)
def test_what_could_be_better_and_does_not_start_is_said(
    sizes: list[float], rate: float, formula: str, finish_by: str, place: list[int]
) -> None:
    bounds = list(range(10, 10 * len(sizes), 10))
    view = view_of({"t": bounds}, ("a", "b"), sizes=sizes)
    view = replace(view, tablets=replace(view.tablets, node=view.tablets.node * 0 + place[: len(sizes)]))
    options = BundleOptions(
        balancer=BalancerOptions(enable_cell_balancer=True), budgets=BudgetOptions(expected_bytes_per_second=rate)
    )
    opened = openings(formula)
    limited = replace(view, window_seconds_left=opened.seconds_left(NOW, finish_by))
    word, sentence = said(limited, options, opened)
    if not make_plan(view, options).actions:
        return  # it could not be better
    assert word is not StateWord.BALANCED, sentence
    startable = make_plan(limited, options).actions
    if not startable:
        assert word is StateWord.BLOCKED, sentence
        assert "window" in sentence
    elif opened.any:
        assert word is StateWord.WORKING
    else:
        assert word is StateWord.WAITING
