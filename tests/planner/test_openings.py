"""Which windows are open, what they allow, and what is held when they close."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from balancer.directory.contract import Directory
from balancer.directory.model import Command, Put
from balancer.directory.open import open_directory
from balancer.planner import orders, windows
from balancer.planner.windows import Openings, look
from balancer.policies.finish_by import ANY, PARK, WINDOW
from balancer.policies.options import MB
from balancer.policies.view import Action, ActionKind
from balancer.settings import Settings, load_settings
from balancer.settings.schedules import too_short
from tests.support.directories import fill, migration, transaction

pytestmark = pytest.mark.quick

BUNDLE = """
[tablet_balancer_config]
tablet_balancer_schedule = "hours == 3"
[tablet_balancer_config.groups.bulk]
schedule = "hours == 4"
[heat]
schedule = "hours == 5"
[migration]
finish_by = "park"
[tables.orders]
roots = ["public.orders"]
layout = "hash"
key = ["user_id"]
[tables.events]
roots = ["public.events"]
layout = "range"
key = ["at"]
group = "bulk"
"""
ORDERS = Action(ActionKind.MOVE, "orders", (1,), "", "load", "a", "b")
EVENTS = Action(ActionKind.MOVE, "events", (1001,), "", "load", "a", "b")
HEAT = Action(ActionKind.SPLIT, "orders", (2,), "", "heat-split", "a")
FOLLOW_UP = Action(ActionKind.MOVE, "orders", (3,), "", "follow-up", "a", "b")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / "shop.toml").write_text(BUNDLE)
    (tmp_path / "balancer.toml").write_text('directory = "sqlite:///x.db"\n')
    return load_settings(tmp_path / "balancer.toml")


def at(settings: Settings, hour: int, minute: int = 0) -> Openings:
    now = datetime(2026, 3, 1, hour, minute, 30, tzinfo=UTC)
    return look(settings, settings.bundle("shop"), now, now)


@pytest.mark.parametrize(
    ("hour", "allowed"), [(2, []), (3, [ORDERS]), (4, [EVENTS]), (5, [HEAT, FOLLOW_UP]), (6, [])], ids=str
)
def test_each_window_allows_its_own(settings: Settings, hour: int, allowed: list[Action]) -> None:
    openings = at(settings, hour)
    assert [action for action in (ORDERS, EVENTS, HEAT, FOLLOW_UP) if openings.allows(action)] == allowed
    assert openings.any == bool(allowed)
    assert not openings.all


def test_options_are_narrowed_to_what_may_start(settings: Settings) -> None:
    bulk = at(settings, 4).narrowed()
    assert {name: group.enable_move for name, group in bulk.balancer.groups.items()} == {"default": False, "bulk": True}
    assert not bulk.heat.enable
    own = at(settings, 3).narrowed()
    assert {name: group.enable_move for name, group in own.balancer.groups.items()} == {"default": True, "bulk": False}
    assert at(settings, 5).narrowed().heat.enable


def test_the_time_left_is_that_of_the_open_window(settings: Settings) -> None:
    now = datetime(2026, 3, 1, 3, 59, 30, tzinfo=UTC)
    openings = at(settings, 3, 59)
    assert openings.seconds_left(now, WINDOW) == 30.0
    assert openings.seconds_left(now, PARK) == 30.0
    assert openings.seconds_left(now, ANY) is None
    assert at(settings, 5).seconds_left(datetime(2026, 3, 1, 5, 0, 30, tzinfo=UTC), WINDOW) == 3570.0


def test_before_a_window_opens_its_whole_length_counts(settings: Settings) -> None:
    now = datetime(2026, 3, 1, 2, 0, 30, tzinfo=UTC)
    assert at(settings, 2).seconds_left(now, WINDOW) == 3600.0
    assert at(settings, 2).seconds_left(now, ANY) is None


def test_what_has_started_may_have_to_be_done_by_a_time_of_day(settings: Settings) -> None:
    now = datetime(2026, 3, 1, 3, 0, 30, tzinfo=UTC)
    assert at(settings, 3).seconds_left(now, "06:00") == 3 * 3600 - 30
    assert at(settings, 2).seconds_left(now.replace(hour=2), "06:00") == 3 * 3600
    assert at(settings, 3, 30).seconds_left(now.replace(minute=30), "03:30") == 24 * 3600 - 30
    assert at(settings, 3).opened().seconds_left(now, "06:00") is None


def test_a_window_into_which_nothing_ever_fits_is_named(settings: Settings) -> None:
    bundle, now = settings.bundle("shop"), datetime(2026, 3, 1, tzinfo=UTC)
    assert too_short(settings, bundle, now) == "", "32 MB/s for an hour"
    options = bundle.options.balancer
    hasty = replace(options, tablet_balancer_schedule="minutes % 20 == 0", groups={})
    bundle = replace(bundle, options=replace(bundle.options, balancer=hasty))
    assert too_short(settings, bundle, now) == (
        "no tablet of the desired size fits into any window of the next seven days: 10.0 GB take 320 s at the"
        " 32.0 MB/s expected, the longest window leaves 60 s; the largest that fits has 1.9 GB. With finish_by ="
        ' "any" what has started may run on'
    )
    assert "the largest that fits has 5.9 GB" in too_short(settings, bundle, now, 100.0 * MB)
    assert too_short(settings, bundle, now, 200.0 * MB) == ""
    free = replace(bundle, migration=replace(bundle.migration, finish_by=ANY))
    assert too_short(settings, free, now) == ""
    by_noon = replace(bundle, migration=replace(bundle.migration, finish_by="12:00"))
    assert too_short(settings, by_noon, now) == ""


def test_what_runs_over_its_window_is_held_but_not_what_an_operator_asked_for(
    settings: Settings, tmp_path: Path
) -> None:
    with open_directory(f"sqlite://{tmp_path}/directory.db") as directory:
        fill(directory)
        begun = {
            number: begin(directory, number, code) for number, code in ((1, "load"), (2, "heat-x"), (3, "operator"))
        }
        snapshot, bundle = directory.snapshot(), settings.bundle("shop")
    assert at(settings, 2).overrunning(snapshot, bundle) == {begun[1], begun[2]}
    assert at(settings, 3).overrunning(snapshot, bundle) == {begun[2]}
    assert at(settings, 5).overrunning(snapshot, bundle) == {begun[1]}
    patient = replace(bundle, migration=replace(bundle.migration, finish_by=WINDOW))
    assert at(settings, 2).overrunning(snapshot, patient) == frozenset()


@pytest.mark.parametrize("at_once", [True, False])
def test_what_was_ordered_at_once_is_never_held(settings: Settings, tmp_path: Path, at_once: bool) -> None:
    with open_directory(f"sqlite://{tmp_path}/directory.db") as directory:
        snapshot = fill(directory)
        table = snapshot.table("orders")
        order = orders.place(snapshot, table, orders.DOUBLE, 1.0, at_once=at_once, author="ann")
        directory.commit(transaction((Put(order),), snapshot.version))
        ordered, own = begin(directory, 1, orders.DOUBLE), begin(directory, 2, "load")
        snapshot, bundle = directory.snapshot(), settings.bundle("shop")
    assert at(settings, 2).overrunning(snapshot, bundle) == ({own} if at_once else {ordered, own})
    assert at(settings, 3).overrunning(snapshot, bundle) == frozenset()


def test_what_a_round_has_started_is_never_held(settings: Settings, tmp_path: Path) -> None:
    with open_directory(f"sqlite://{tmp_path}/directory.db") as directory:
        fill(directory)
        started, own = begin(directory, 1, "load"), begin(directory, 2, "load")
        asked = Command("c1", windows.VERB, {"bundle": "shop", "migrations": 5}, "ann", 1.0)
        directory.commit(transaction((Put(asked),), directory.snapshot().version))
        bundle = settings.bundle("shop")
        assert at(settings, 2).overrunning(directory.snapshot(), bundle) == {started, own}
        done = windows.answered(asked, [directory.snapshot().migrations[started]], ["no room"])
        assert done.result == f"a round of bundle shop: 1 migration started: {started}; 1 could not be: no room"
        directory.commit(transaction((Put(done),), directory.snapshot().version))
        assert at(settings, 2).overrunning(directory.snapshot(), bundle) == {own}


def test_all_windows_may_be_taken_for_open(settings: Settings) -> None:
    openings = at(settings, 2).opened()
    assert openings.all
    assert openings.seconds_left(datetime(2026, 3, 1, 2, tzinfo=UTC), WINDOW) is None
    assert [action for action in (ORDERS, EVENTS, HEAT, FOLLOW_UP) if not openings.allows(action)] == []


def begin(directory: Directory, tablet: int, code: str) -> str:
    snapshot = directory.snapshot()
    found = snapshot.tablet(tablet)
    target = "pg-b" if found.node != "pg-b" else "pg-a"
    record = replace(migration(found, target, "copying"), detail={"code": code})
    directory.commit(transaction((Put(record),), snapshot.version))
    return record.id
