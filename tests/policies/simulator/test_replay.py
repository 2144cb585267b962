"""Replays: recorded load under the replay's own placement, whatever the record's tablets did meanwhile."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.policies.options import BalancerOptions, BundleOptions, HeatOptions
from balancer.policies.simulator.replay import ReplayError, check_polls, places_of, recorded, replay
from balancer.policies.view import BundleView, InFlight, NodeCondition, NodeView
from tests.support.bundle_views import GB, NOW, Tablets, bundle_of, leaves
from tests.support.samples import encoded

pytestmark = pytest.mark.quick

STILL = BundleOptions(heat=HeatOptions(enable=False))
MOVING = replace(STILL, balancer=BalancerOptions(enable_cell_balancer=True))


def series(views: Sequence[BundleView], every: float = 60.0) -> list[BundleView]:
    return [replace(view, now=NOW + at * every) for at, view in enumerate(views)]


def crowded(**fields: Any) -> BundleView:
    """Eight vbuckets on the first of two nodes."""
    return bundle_of({"t": Tablets([GB] * 8, leaves(8), writes=100, reads=50)}, ("a", "b"), **fields)


def test_what_would_have_been_different_is_counted() -> None:
    views = series([crowded()] * 31)
    as_it_was, changed = replay(views, STILL), replay(views, MOVING)
    assert (as_it_was.moves, as_it_was.moved_bytes, as_it_was.minutes_above) == (0, 0.0, 31.0)
    assert (changed.moves, changed.moved_bytes) == (4, 4 * GB)
    assert 2 <= changed.minutes_above <= 6
    assert (changed.moved_back, changed.splits, changed.merges) == (0, 0, 0)
    assert changed.score_end == pytest.approx(100.0)


def test_what_really_happened_is_counted_from_the_polls() -> None:
    before = crowded()
    owner = before.tablets.node.copy()
    owner[:4] = 1
    after = replace(before, tablets=replace(before.tablets, node=owner))
    found = recorded(series([before, before, after, after]))
    assert (found.moves, found.moved_bytes, found.minutes_above) == (4, 4 * GB, 1.0)
    assert found.moved_back is None


def test_moves_of_the_record_do_not_happen_in_the_replay() -> None:
    before = crowded()
    after = replace(before, tablets=replace(before.tablets, node=np.ones_like(before.tablets.node)))
    views = series([before, *[after] * 5])
    assert (recorded(views).moves, replay(views, STILL).moves) == (8, 0)
    assert replay(views, STILL).minutes_above == 6.0


def test_a_schedule_that_is_closed_starts_nothing() -> None:
    views = series([crowded()] * 31)
    assert replay(views, MOVING, lambda minute: minute < 1).moves == 1
    assert replay(views, MOVING, lambda _: False).moves == 0


def test_pins_hold() -> None:
    assert replay(series([crowded(pinned=frozenset(range(1, 9)))] * 10), MOVING).moves == 0


@pytest.mark.parametrize(
    ("node", "moves"),
    [
        (NodeView("b", NodeCondition.DOWN), 0),
        (NodeView("b", NodeCondition.CLOSED), 0),
        (NodeView("b", NodeCondition.CLOSED, closed_by_daemon=True), 4),  # that is for the replay to decide
    ],
)
def test_nodes_are_as_they_were_polled(node: NodeView, moves: int) -> None:
    view = replace(crowded(), nodes=(NodeView("a"), node))
    assert replay(series([view] * 20), MOVING).moves == moves


def test_a_node_that_was_taken_away_is_emptied_and_one_that_came_is_used() -> None:
    view = bundle_of({"t": Tablets([GB] * 8, leaves(8), writes=100, nodes=[0, 1] * 4)}, ("a", "b"))
    without = replace(bundle_of({"t": Tablets([GB] * 8, leaves(8), writes=100)}, ("a",)), nodes=(NodeView("a"),))
    assert replay(series([view, *[without] * 20]), STILL).moves == 4
    assert replay(series([without, *[view] * 20]), MOVING).moves == 4


def test_a_table_that_came_or_went_does_too() -> None:
    both = bundle_of({"t": Tablets([GB] * 2, leaves(2)), "u": Tablets([GB] * 2, leaves(2))}, ("a", "b"))
    one = bundle_of({"t": Tablets([GB] * 2, leaves(2))}, ("a", "b"))
    assert replay(series([one, *[both] * 20]), MOVING).moves == 2
    assert replay(series([both, *[one] * 20]), MOVING).moves >= 1


@given(
    st.lists(st.lists(st.integers(1, 99), max_size=6, unique=True), min_size=2, max_size=4),
    st.lists(st.floats(0, 1000), min_size=7, max_size=7),
)
def test_a_poll_gives_all_that_it_measured_to_the_stretches_of_keys(cuts: list[list[int]], rates: list[float]) -> None:
    """Whatever bounds other polls have: sums over the recorded tablets are the recorded figures."""
    views = []
    for some in cuts:
        lowers = [b"", *encoded(*sorted(some))]
        figures = rates[: len(lowers)]
        views.append(bundle_of({"t": Tablets([rate * GB for rate in figures], writes=figures, lowers=lowers)}, ("a",)))
    places = places_of(views)["t"]
    content = places.empty()
    for view in views:
        table = view.tables[0]
        places.measure(content, view, table)
        starts = [places.lower(view, table, row)[0] for row in range(len(view.tablets))]
        edges = np.searchsorted(content.keys, starts)
        kept = (content.sizes, content.loads(0.0)[0])
        for one, measured in zip(kept, (view.tablets.sizes, view.tablets.write_rate), strict=True):
            assert len(one) == len(content.keys)
            assert np.add.reduceat(one, edges) == pytest.approx(measured)


def test_vbuckets_of_any_modulus_fit() -> None:
    view = bundle_of({"t": Tablets([GB] * 4096, leaves(4096), writes=range(4096))}, ("a", "b"))
    places = places_of([view])["t"]
    content = places.empty()
    places.measure(content, view, view.tables[0])
    assert content.loads(0.0)[0].sum() == pytest.approx(view.tablets.write_rate.sum())


def broken(view: BundleView, **columns: Any) -> BundleView:
    return replace(view, tablets=replace(view.tablets, **columns))


BASE = crowded()
RANGES = bundle_of({"t": Tablets([GB] * 3)}, ("a",))


@pytest.mark.parametrize(
    ("views", "part"),
    [
        ([], "fewer than two polls"),
        ([BASE], "fewer than two polls"),
        ([BASE, BASE], "not in the order of time"),
        ([BASE, replace(BASE, bundle="other", now=NOW + 60)], "several bundles"),
        (series([BASE, broken(BASE, sizes=np.ones(3))]), "poll 2 has columns of different lengths"),
        (series([BASE, broken(BASE, write_rate=np.full(8, np.nan))]), "poll 2 has a figure that is negative"),
        (series([broken(BASE, sizes=np.full(8, -1.0)), BASE]), "poll 1 has a figure that is negative"),
        (series([BASE, broken(BASE, node=np.full(8, 2))]), "a tablet without a node"),
        (series([BASE, replace(BASE, nodes=())]), "a tablet without a node"),
        (series([BASE, broken(BASE, ids=np.ones(8, np.int64))]), "a tablet or a node twice"),
        (series([BASE, replace(BASE, nodes=(NodeView("a"), NodeView("a")))]), "a tablet or a node twice"),
        (series([BASE, replace(BASE, tables=(replace(BASE.tables[0], last=7),))]), "do not fit its tablets"),
        (series([BASE, replace(BASE, tables=())]), "do not fit its tablets"),
        (series([BASE, broken(BASE, moduli=np.full(8, 3))]), "vbuckets of table 't' that there are not"),
        (series([BASE, broken(BASE, moduli=np.full(8, 1 << 40))]), "vbuckets of table 't' that there are not"),
        (series([BASE, broken(BASE, remainders=np.zeros(8, np.int64))]), "overlap or leave keys out"),
        (series([RANGES, broken(RANGES, lowers=[b"", b"b", b"a"])]), "bounds of table 't' that are not in order"),
    ],
)
def test_what_is_no_series_of_polls_is_refused(views: list[BundleView], part: str) -> None:
    with pytest.raises(ReplayError) as caught:
        check_polls(views)
    assert part in str(caught.value)


def test_a_table_that_changes_its_layout_is_refused() -> None:
    with pytest.raises(ReplayError, match="a hash table in some polls and a range table in others"):
        replay(series([BASE, RANGES]), STILL)


def test_a_good_series_is_not_refused_and_flights_of_the_record_do_not_matter() -> None:
    views = series([crowded(in_flight=(InFlight("m1", (1,), "a", "b"),))] * 3)
    check_polls(views)
    assert replay(views, STILL).moves == 0
