"""What a tick found out, as metrics."""

import math
from dataclasses import replace
from datetime import timedelta

import pytest

from balancer.directory.model import Migration, MigrationKind
from balancer.instruments import Instruments
from balancer.planner.bundle_state import NodeReport, ScheduleReport, StateWord
from balancer.planner.metrics import Reporter
from balancer.policies.options import MigrationMode
from balancer.policies.view import Action, ActionKind, InFlight, NodeView, PlanResult
from tests.support.bundle_states import NOON, state_of, view_of

pytestmark = pytest.mark.quick


class Metrics:
    """A reporter and what a scrape would see."""

    def __init__(self) -> None:
        self.instruments = Instruments()
        self.reporter = Reporter(self.instruments)

    def value(self, name: str, **labels: str) -> float | None:
        return self.instruments.registry.get_sample_value(f"balancer_{name}", labels)

    def count(self, name: str) -> int:
        return sum(
            1
            for family in self.instruments.registry.collect()
            for sample in family.samples
            if sample.name == f"balancer_{name}"
        )


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def test_loads_and_imbalance_are_given_per_node_and_dimension(metrics: Metrics) -> None:
    metrics.reporter.observe(state_of(view_of({"orders": 4}, sizes=[30, 10, 30, 10])))
    assert metrics.value("node_load", bundle="shop", node="pg-a", dimension="bytes") == 60
    assert metrics.value("imbalance_ratio", bundle="shop", dimension="bytes") == 1.5
    assert metrics.value("imbalance_ratio", bundle="shop", dimension="tablets") == 1.0
    assert metrics.value("imbalance_ratio", bundle="shop", dimension="memory") is None


def test_a_node_of_double_weight_is_due_double_the_load(metrics: Metrics) -> None:
    view = view_of({"orders": 4}, sizes=[20, 10, 20, 10])
    view = replace(view, nodes=(NodeView("pg-a", weight=2.0), NodeView("pg-b")))
    metrics.reporter.observe(state_of(view))
    assert metrics.value("imbalance_ratio", bundle="shop", dimension="bytes") == pytest.approx(1.0)


def test_each_tablet_is_counted_in_one_state(metrics: Metrics) -> None:
    view = replace(
        view_of({"orders": 8}),
        pinned=frozenset({1, 3}),
        in_flight=(InFlight("m1", (3, 5), "pg-a", "pg-b"),),
        quarantined=frozenset({5}),
    )
    metrics.reporter.observe(state_of(view))
    found = {
        state: metrics.value("tablets", bundle="shop", node="pg-a", state=state)
        for state in ("owned", "pinned", "migrating", "quarantined")
    }
    assert found == {"owned": 1, "pinned": 1, "migrating": 1, "quarantined": 1}
    assert metrics.value("quarantined_tablets", bundle="shop") == 1


def test_series_do_not_grow_with_the_tablets(metrics: Metrics) -> None:
    metrics.reporter.observe(state_of(view_of({"orders": 16})))
    few = len(list(metrics.instruments.registry.collect())), metrics.count("node_load"), metrics.count("tablets")
    metrics.reporter.observe(state_of(view_of({"orders": 1 << 16})))
    many = len(list(metrics.instruments.registry.collect())), metrics.count("node_load"), metrics.count("tablets")
    assert few == many


def test_reasons_that_no_longer_hold_disappear(metrics: Metrics) -> None:
    view = view_of({"orders": 4})
    action = Action(ActionKind.MOVE, "orders", (1,), "pg-a carries more", "load", "pg-a", "pg-b")
    metrics.reporter.observe(state_of(view, PlanResult((action,), counts={"pinned": 3}, score_before=80.0)))
    assert metrics.value("plan_actions", bundle="shop", kind="move", reason="load") == 1
    assert metrics.value("plan_rejections", bundle="shop", reason="pinned") == 3
    metrics.reporter.observe(state_of(view))
    assert metrics.value("plan_actions", bundle="shop", kind="move", reason="load") is None
    assert metrics.value("plan_rejections", bundle="shop", reason="pinned") is None
    assert metrics.value("plans_total", bundle="shop") == 2


def test_a_node_and_a_bundle_that_are_gone_leave_nothing_behind(metrics: Metrics) -> None:
    metrics.reporter.observe(state_of(view_of({"orders": 4})))
    metrics.reporter.observe(state_of(view_of({"orders": 4}, nodes=("pg-a",))))
    assert metrics.value("node_reachable", bundle="shop", node="pg-b") is None
    metrics.reporter.forget("shop")
    assert metrics.count("node_load") == metrics.count("bundle_state") == metrics.count("balance_score") == 0


def test_an_unreachable_node_ages(metrics: Metrics) -> None:
    silent = NodeReport("pg-b", "active", "", False, NOON - timedelta(seconds=40), "no route to host")
    state = state_of(view_of({"orders": 4}))
    metrics.reporter.observe(replace(state, nodes=(state.nodes[0], silent)))
    assert metrics.value("poll_age_seconds", bundle="shop", node="pg-b") == 40
    assert metrics.value("node_reachable", bundle="shop", node="pg-b") == 0
    assert metrics.value("node_connections", bundle="shop", node="pg-b") is None


@pytest.mark.parametrize(
    ("is_open", "after", "seconds"),
    [(True, None, 0.0), (False, timedelta(minutes=90), 5400.0), (False, None, math.inf)],
)
def test_the_schedule_says_how_long_it_stays_closed(
    metrics: Metrics, is_open: bool, after: timedelta | None, seconds: float
) -> None:
    schedule = ScheduleReport("hours < 6", "bundle shop", "UTC", is_open, None, NOON + after if after else None)
    metrics.reporter.observe(state_of(view_of({"orders": 4}), schedule=schedule, word=StateWord.WAITING))
    assert metrics.value("schedule_open", bundle="shop") == is_open
    assert metrics.value("schedule_opens_in_seconds", bundle="shop") == seconds
    assert metrics.value("bundle_state", bundle="shop", state="waiting for the schedule") == 1
    assert metrics.value("bundle_state", bundle="shop", state="balanced") == 0


def migration(**fields: object) -> Migration:
    base = Migration("m1", "shop", 1, MigrationKind.MOVE, MigrationMode.REPLICATE, (1,), (), "pg-a", "pg-b", "copying")
    return replace(base, **fields)  # type: ignore[arg-type]


def test_unfinished_migrations_of_the_bundle_are_counted_by_phase(metrics: Metrics) -> None:
    others = (migration(id="m2"), migration(id="m3", bundle="other"), migration(id="m4", state="done", finished=True))
    metrics.reporter.observe(state_of(view_of({"orders": 4})), (migration(), *others))
    assert metrics.value("migrations", bundle="shop", operation="move", phase="copying") == 2
    assert metrics.count("migrations") == 1


def test_a_finished_migration_counts_its_bytes_and_its_pause(metrics: Metrics) -> None:
    metrics.reporter.finished(migration(), "done", seconds=12.0, moved=1e9, pause=0.017)
    metrics.reporter.finished(migration(), "failed", seconds=2.0, moved=5e8, pause=None)
    metrics.reporter.verified("shop", True)
    assert metrics.value("moved_bytes_total", bundle="shop", operation="move") == 1e9
    assert metrics.value("write_pause_seconds_bucket", bundle="shop", operation="move", le="0.02") == 1
    assert metrics.value("write_pause_seconds_count", bundle="shop", operation="move") == 1
    assert metrics.value("migrations_finished_total", bundle="shop", operation="move", outcome="failed") == 1
    assert metrics.value("verifications_total", bundle="shop", result="equal") == 1


def test_a_first_failure_is_an_increase_for_prometheus(metrics: Metrics) -> None:
    metrics.reporter.observe(state_of(view_of({"orders": 4})))
    assert metrics.value("migrations_finished_total", bundle="shop", operation="split", outcome="failed") == 0
    assert metrics.value("verifications_total", bundle="shop", result="different") == 0
    assert metrics.value("tick_errors_total", bundle="shop") == 0
