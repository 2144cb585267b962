"""Times as keys: where periods begin, what a bound says of the keys below it, and what is cut or retired when."""

import math
from dataclasses import replace
from datetime import UTC, date, datetime

import numpy as np
import pytest

from balancer.policies.keyspace.keys import HIGHEST, KeyType, encode_key
from balancer.policies.options import BalancerOptions, BundleOptions, GroupOptions, TableOptions
from balancer.policies.plan.plan import make_plan
from balancer.policies.resize.time_ranges import (
    AT_ONCE,
    DAY,
    LAST_ZONE,
    cuts,
    end_of_bound,
    in_words,
    key_at,
    next_expiry,
    next_period,
    plan_expiry,
    plan_premake,
    start_of_bound,
    timeless,
)
from balancer.policies.view import ActionKind, BundleView, InFlight, NodeCondition, NodeView, TabletColumns, TableView

pytestmark = pytest.mark.quick

NOW = datetime(2026, 3, 10, 12, tzinfo=UTC).timestamp()
MIDNIGHT = datetime(2026, 3, 10, tzinfo=UTC).timestamp()
DATE = (KeyType.DATE,)
DATE_ID = (KeyType.DATE, KeyType.BIGINT)
STAMP = (KeyType.TIMESTAMPTZ,)
DAILY = TableOptions(every=DAY, premake=3 * DAY, expire_after=10 * DAY)


def day(number: float, types: tuple[KeyType, ...] = DATE) -> bytes:
    """The bound so many days from today."""
    found = key_at(types, "", MIDNIGHT + number * DAY)
    assert found is not None
    return found


def events(
    lowers: list[bytes],
    owners: list[int],
    nodes: tuple[NodeView, ...] = (NodeView("a"), NodeView("b")),
    types: tuple[KeyType, ...] = DATE,
    sizes: float = 0.0,
) -> BundleView:
    count = len(lowers)
    full = np.full(count, sizes)
    none = np.zeros(count)
    whole = np.zeros(count, dtype=np.int64)
    columns = TabletColumns(
        np.arange(1, count + 1), np.array(owners), full, none, none, none, none, lowers, whole, whole
    )
    return BundleView("shop", NOW, nodes, (TableView("events", False, types, 0, count),), columns)


def options(**changes: object) -> BundleOptions:
    return BundleOptions(tables={"events": replace(DAILY, **changes)})  # type: ignore[arg-type]


def test_periods_begin_at_midnight_and_weeks_on_mondays() -> None:
    assert next_period(NOW, DAY) == MIDNIGHT + DAY
    assert next_period(MIDNIGHT, DAY) == MIDNIGHT + DAY
    assert in_words(next_period(NOW, 7 * DAY)) == "2026-03-16"
    assert next_period(NOW + 1, 3600) == NOW + 3600


def test_what_a_bound_says_of_the_keys_below_it() -> None:
    noon = datetime(2026, 3, 10, 12, tzinfo=UTC)
    # A date is over when it is over twelve hours west of Greenwich.
    assert end_of_bound(DATE, "", encode_key(DATE, (date(2026, 3, 10),))) == MIDNIGHT + LAST_ZONE
    assert end_of_bound(STAMP, "", encode_key(STAMP, (noon,))) == NOW
    # (day, 500) and (day, MAXVALUE) have keys of that very day below them.
    longer = encode_key(DATE_ID, (date(2026, 3, 10), 500))
    assert end_of_bound(DATE_ID, "", longer) == MIDNIGHT + DAY + LAST_ZONE
    assert end_of_bound(DATE_ID, "", encode_key(DATE_ID, (date(2026, 3, 10),), prefix=True) + HIGHEST) == (
        MIDNIGHT + DAY + LAST_ZONE
    )
    assert end_of_bound(DATE, "", HIGHEST) is None
    assert end_of_bound(DATE, "", encode_key(DATE, (math.inf,))) is None
    assert end_of_bound(DATE, "", encode_key(DATE, (-math.inf,))) == -math.inf
    assert start_of_bound(DATE, "", b"") is None
    for unit, number in (("s", 1), ("ms", 1000), ("us", 1_000_000)):
        assert end_of_bound((KeyType.BIGINT,), unit, encode_key((KeyType.BIGINT,), (round(NOW * number),))) == NOW
    assert key_at((KeyType.BIGINT,), "us", 1e30) is None
    assert key_at(DATE, "", 1e30) is None


def test_cuts_reach_ahead_and_do_not_guess_the_past() -> None:
    assert cuts(None, NOW, DAY, 2 * DAY, 32) == [MIDNIGHT + DAY, MIDNIGHT + 2 * DAY, MIDNIGHT + 3 * DAY]
    assert cuts(MIDNIGHT - DAY, NOW, DAY, 0, 32) == [MIDNIGHT, MIDNIGHT + DAY]
    assert cuts(MIDNIGHT + 3 * DAY, NOW, DAY, 2 * DAY, 32) == []
    assert cuts(MIDNIGHT + 2 * DAY, NOW, DAY, 2 * DAY, 32) == [MIDNIGHT + 3 * DAY]
    assert cuts(MIDNIGHT - 500 * DAY, NOW, DAY, 0, 2) == [MIDNIGHT, MIDNIGHT + DAY]


def test_a_tablet_is_made_ahead_where_the_fewest_are() -> None:
    view = events([b"", day(0), day(1), day(2), day(3)], [0, 0, 1, 0, 1])
    (action,) = plan_premake(view, options()).actions
    assert (action.kind, action.tablets, action.code, action.source) == (ActionKind.SPLIT, (5,), "premake", "b")
    # What comes next goes to b, which has one of the present and coming days; the end without an end stays.
    assert [(part.lower, part.node) for part in action.parts] == [(day(3), "b"), (day(4), "")]
    assert plan_premake(events([b"", day(0), day(4)], [0, 0, 0]), options()).actions == ()


def test_a_table_of_one_tablet_is_cut_from_tomorrow_on_and_its_rows_stay() -> None:
    (action,) = plan_premake(events([b""], [0]), options()).actions
    assert [(part.lower, part.node) for part in action.parts] == [
        (b"", ""),
        (day(1), "b"),
        (day(2), "a"),
        (day(3), "b"),
        (day(4), ""),
    ]


def test_new_tablets_go_only_where_they_may() -> None:
    nodes = (NodeView("a", NodeCondition.CLOSED), NodeView("b", zone="east"), NodeView("c", zone="west", weight=3.0))
    view = events([b"", day(1)], [0, 0], nodes)
    (action,) = plan_premake(view, options()).actions
    assert [part.node for part in action.parts] == ["c", "c", "b", ""]
    (action,) = plan_premake(view, options(zones=("east",))).actions
    assert [part.node for part in action.parts] == ["b", "b", "b", ""]
    (action,) = plan_premake(view, options(enable_auto_tablet_move=False)).actions
    assert [part.node for part in action.parts] == [""] * 4


def test_why_nothing_is_made_ahead() -> None:
    codes = []
    for view, wished in (
        (events([b""], [0], types=(KeyType.TEXT,)), options()),
        (events([b""], [0], types=(KeyType.BIGINT,)), options()),
        (events([b""], [0], (NodeView("a", NodeCondition.DOWN),)), options()),
        (events([b""], [0]), _group_off(options())),
    ):
        found = plan_premake(view, wished)
        assert found.actions == ()
        codes += [one.code for one in found.rejections]
    assert codes == ["not-a-time", "not-a-time", "source-down", "group-off"]
    assert plan_premake(events([b""], [0], types=(KeyType.BIGINT,)), options(key_unit="ms")).actions


def _group_off(wished: BundleOptions) -> BundleOptions:
    off = BalancerOptions(groups={"default": GroupOptions(enable_reshard=False)})
    return BundleOptions(balancer=off, tables=wished.tables)


def test_what_has_expired_goes_from_the_lowest_key_on_as_far_as_one_node_has_it() -> None:
    view = events([b"", day(-14), day(-13), day(-12), day(-9), day(0)], [0, 0, 1, 1, 0, 0])
    action = next_expiry(view, view.tables[0], DAILY)
    assert action is not None
    assert (action.kind, action.tablets, action.source, action.target) == (ActionKind.EXPIRE, (1, 2), "a", "a")
    floored = replace(view, expired=frozenset({1}))
    action = next_expiry(floored, view.tables[0], DAILY)
    assert action is not None
    assert action.tablets == (1, 2)  # the empty one goes along
    # Ten days after its end, and not before: it is noon, and the eleventh day ago ended at noon.
    edge = events([b"", day(-10), day(0)], [0, 0, 0])
    assert next_expiry(edge, edge.tables[0], DAILY) is not None
    edge = events([b"", day(-9), day(0)], [0, 0, 0])
    assert next_expiry(edge, edge.tables[0], DAILY) is None


def test_no_more_expire_at_once_than_one_swap_takes() -> None:
    view = events([b"", *(day(number) for number in range(-40, -10)), day(0)], [0] * 32)
    action = next_expiry(view, view.tables[0], DAILY)
    assert action is not None
    assert len(action.tablets) == AT_ONCE


def test_the_last_tablet_and_the_empty_one_alone_never_expire() -> None:
    assert plan_expiry(events([b""], [0]), options()) == ((), ())
    alone = events([b"", day(-12), day(0)], [0, 0, 0])
    floored = replace(alone, expired=frozenset({1}), now=NOW - 2 * DAY)
    assert plan_expiry(floored, options()) == ((), ())


def test_why_nothing_expires() -> None:
    view = events([b"", day(-14), day(0)], [0, 1, 1])
    held = replace(view, expiry_held=True)
    flying = replace(view, in_flight=(InFlight("m1", (1,), "a", "b"),))
    down = events([b"", day(-14), day(0)], [0, 1, 1], (NodeView("a", NodeCondition.DOWN), NodeView("b")))
    for found, code in ((held, "expiry-held"), (flying, "in-flight"), (down, "source-down")):
        assert [one.code for one in plan_expiry(found, options()).rejections] == [code]
        assert plan_expiry(found, options()).actions == ()
    assert [one.code for one in plan_expiry(view, _group_off(options())).rejections] == ["group-off"]


def test_empty_tablets_of_periods_are_not_merged() -> None:
    view = events([b"", day(-2), day(-1), day(0), day(1), day(2), day(3), day(4)], [0] * 8)
    assert make_plan(view, options()).actions == ()
    kinds = {action.kind for action in make_plan(view, BundleOptions()).actions}
    assert kinds == {ActionKind.MERGE}  # without `every` they would be


def test_the_plan_has_both() -> None:
    view = events([b"", day(-14), day(0)], [0, 0, 1])
    assert {action.code for action in make_plan(view, options()).actions} == {"premake", "expire"}
    assert make_plan(view, timeless(options())).actions == ()  # the simulator's keys are no times
