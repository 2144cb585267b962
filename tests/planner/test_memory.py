"""What a bundle's ticks remember of its tablets: heat that lasts, greatest rates, what migrations came to."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.directory.model import Migration, MigrationKind
from balancer.planner.memory import Memory, past
from balancer.policies.view import BundleView
from tests.support.bundle_views import Tablets, bundle_of, leaves
from tests.support.directories import leaves as tablets_of
from tests.support.directories import migration

pytestmark = pytest.mark.quick

TABLET = tablets_of(4)[0]


def view_at(seconds: float, rates: list[float]) -> BundleView:
    return bundle_of({"orders": Tablets([1.0] * 4, leaves(4), writes=rates)}, now=seconds)


def finished(state: str, updated: float, **changes: object) -> Migration:
    return replace(migration(TABLET, "pg-b", state), finished=True, updated=updated, **changes)  # type: ignore[arg-type]


def test_heat_is_counted_in_polls_in_a_row() -> None:
    memory = Memory()
    for hot in ([1, 2], [1], [1, 2]):
        memory.note_heat(hot)
    history = memory.history(view_at(0, [0.0] * 4), [], warm=1.0)
    assert {tablet: known.hot_polls for tablet, known in history.items()} == {1: 3, 2: 1}


@given(
    st.lists(
        st.tuples(st.integers(1, 90), st.lists(st.floats(0, 1e6), min_size=4, max_size=4)), min_size=1, max_size=12
    )
)
def test_the_greatest_rate_is_that_of_the_last_five_minutes(polls: list[tuple[int, list[float]]]) -> None:
    memory, now, seen = Memory(), 0, []
    for gap, rates in polls:
        now += gap
        seen.append((now, rates))
        memory.note_rates(view_at(now, rates))
    found = memory.history(view_at(now, polls[-1][1]), [], warm=0.0)
    lately = [rates for at, rates in seen if at // 60 >= now // 60 - 5]
    greatest = np.max(lately, axis=0)
    assert [found[tablet].max_rate_5m for tablet in (1, 2, 3, 4)] == pytest.approx(greatest.tolist())


def test_tablets_that_come_and_go_do_not_disturb_the_others() -> None:
    memory = Memory()
    memory.note_rates(view_at(60, [5.0, 6.0, 7.0, 8.0]))
    fewer = bundle_of({"orders": Tablets([1.0] * 2, leaves(2), writes=[1.0, 1.0])}, now=120)
    memory.note_rates(fewer)
    found = memory.history(fewer, [], warm=0.0)
    assert (found[1].max_rate_5m, found[2].max_rate_5m) == (5.0, 6.0)


def test_what_was_split_for_heat_is_not_called_cool_before_it_was_watched_for_five_minutes() -> None:
    split = replace(
        finished("done", 10.0, operation=MigrationKind.SPLIT), targets=(TABLET,), detail={"code": "heat-split"}
    )
    memory = Memory()
    memory.note_rates(view_at(60, [0.0] * 4))
    assert memory.history(view_at(60, [0.0] * 4), [split], warm=1.0)[TABLET.id].max_rate_5m == math.inf
    for minute in range(2, 8):
        memory.note_rates(view_at(60 * minute, [0.0] * 4))
    assert memory.history(view_at(420, [0.0] * 4), [split], warm=1.0)[TABLET.id].max_rate_5m != math.inf


def test_failures_count_in_a_row_and_end_with_a_success() -> None:
    failures = [finished("failed", 1.0), finished("failed", 2.0)]
    assert (past(failures)[TABLET.id].failures, past(failures)[TABLET.id].last_failed) == (2, 2.0)
    mended = past([*failures, finished("done", 3.0)])[TABLET.id]
    assert (mended.failures, mended.last_failed, mended.last_migrated) == (0, None, 3.0)


def test_what_was_cancelled_or_still_runs_says_nothing() -> None:
    assert past([finished("cancelled", 1.0), replace(finished("copying", 2.0), finished=False)]) == {}


def test_a_split_is_remembered_with_the_bytes_it_was_made_of() -> None:
    record = finished("done", 5.0, operation=MigrationKind.SPLIT, detail={"size": 640})
    assert [history.split_of for history in past([record]).values()] == [640.0] * len(record.targets)
    moved = replace(record, operation=MigrationKind.MOVE, updated=6.0, detail={"size": 7})
    assert {history.split_of for history in past([record, moved]).values()} == {640.0}, "a move changes nothing of that"
    for size in (None, "much", -1):
        odd = replace(record, detail={"size": size})
        assert {history.split_of for history in past([odd]).values()} == {None}
