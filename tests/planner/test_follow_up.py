"""Moves that splits asked for: tried once, within the budgets, and never against an operator's wish."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from balancer.directory.contract import Directory
from balancer.directory.model import Migration, MigrationKind, NodeState, Pin, Put, Record, TabletState
from balancer.directory.open import open_directory
from balancer.planner.memory import PATIENCE, follow_ups, promised
from balancer.policies.budgets import affordable, credited, waiting_flights
from balancer.policies.options import BudgetOptions, BundleOptions
from balancer.policies.view import Action
from tests.support.bundle_views import Tablets, bundle_of, leaves
from tests.support.directories import fill, migration, transaction

pytestmark = pytest.mark.quick

NOW = 10_000.0


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    """Tablet 1 is on pg-a; a split has asked for it to go to pg-b."""
    with open_directory(f"sqlite://{tmp_path}/directory.db") as opened:
        fill(opened)
        put(opened, wish(opened, {1: "pg-b"}))
        yield opened


def put(directory: Directory, *records: Record) -> None:
    directory.commit(transaction(tuple(map(Put, records)), directory.snapshot().version))


def wish(directory: Directory, then: dict[int, str], at: float = NOW) -> Migration:
    snapshot = directory.snapshot()
    split = migration(snapshot.tablet(8), "pg-a", "done")
    return replace(
        split,
        operation=MigrationKind.SPLIT,
        finished=True,
        updated=at,
        detail={"then": [list(pair) for pair in then.items()]},
        reason="hot front",
    )


def owed(directory: Directory, now: float = NOW) -> list[Action]:
    return list(follow_ups(directory.snapshot(), "shop", now))


def test_a_split_owes_the_move_it_was_made_for(directory: Directory) -> None:
    (move,) = owed(directory)
    assert (move.tablets, move.source, move.target, move.code) == ((1,), "pg-a", "pg-b", "follow-up")
    assert "hot front" in move.reason


def test_a_wish_is_forgotten_after_an_hour(directory: Directory) -> None:
    assert not owed(directory, NOW + PATIENCE)


def test_a_wish_is_tried_once_whatever_came_of_it(directory: Directory) -> None:
    tablet = directory.snapshot().tablet(1)
    put(directory, replace(migration(tablet, "pg-b", "failed"), finished=True))
    assert not owed(directory)


def test_another_bundle_owes_nothing(directory: Directory) -> None:
    assert not list(follow_ups(directory.snapshot(), "other", NOW))


def test_operators_go_before_wishes(directory: Directory) -> None:
    snapshot = directory.snapshot()
    put(directory, Pin(1, NOW + 1))
    assert not owed(directory)
    assert owed(directory, NOW + 2)
    put(directory, replace(snapshot.nodes["pg-b"], state=NodeState.DRAINING))
    assert not owed(directory, NOW + 2)
    put(directory, snapshot.nodes["pg-b"], replace(snapshot.tablet(1), state=TabletState.QUARANTINED))
    assert not owed(directory, NOW + 2)


def test_budgets_hold_for_wishes_too(directory: Directory) -> None:
    put(directory, wish(directory, {4: "pg-c", 7: "pg-b"}, NOW + 1))
    view = bundle_of({"orders": Tablets([5.0] * 8, leaves(8))}, nodes=("pg-a", "pg-b", "pg-c"))
    tight = BundleOptions(budgets=BudgetOptions(moves_per_node=1, moves_total=4))
    taken = affordable(owed(directory, NOW + 1), view, tight)
    assert [action.tablets for action in taken] == [(1,)]  # all three leave pg-a
    wide = BundleOptions(budgets=BudgetOptions(moves_per_node=2, moves_total=2))
    assert len(affordable(owed(directory, NOW + 1), view, wide)) == 2
    assert {action.size for action in taken} == {5.0}
    flight = credited(view, taken).in_flight[0]
    assert (flight.tablets, flight.source, flight.target) == ((1,), "pg-a", "pg-b")
    assert credited(view, []) is view


def chain(directory: Directory, state: str, then: list[tuple[int, str]], at: float = NOW) -> Migration:
    """A move of tablet 8 upon which others follow."""
    move = migration(directory.snapshot().tablet(8), "pg-b", state)
    detail = {"then": [list(pair) for pair in then], "code": "chain"}
    return replace(
        move, finished=state in ("done", "failed"), created=at - 10, updated=at, detail=detail, reason="both help"
    )


def test_what_follows_on_a_move_goes_one_after_the_other(directory: Directory) -> None:
    put(directory, chain(directory, "done", [(4, "pg-c"), (7, "pg-b")]))
    (first,) = [action for action in owed(directory) if action.code == "chain"]
    assert (first.tablets, first.target, first.then) == ((4,), "pg-c", ((7, "pg-b"),))
    assert first.reason == "it belongs to the move of tablet 8, which is done: both help"


def test_nothing_follows_on_a_move_that_failed_or_runs(directory: Directory) -> None:
    put(directory, chain(directory, "failed", [(4, "pg-c")]))
    assert all(action.code != "chain" for action in owed(directory))
    put(directory, chain(directory, "copying", [(4, "pg-c")]))
    assert all(action.code != "chain" for action in owed(directory))


def test_what_a_running_move_promises_is_known(directory: Directory) -> None:
    put(directory, chain(directory, "copying", [(4, "pg-c"), (7, "pg-b")]))
    pairs = promised(directory.snapshot(), "shop")
    assert pairs == [(4, "pg-c"), (7, "pg-b")]
    assert promised(directory.snapshot(), "other") == []
    view = bundle_of({"orders": Tablets([5.0] * 8, leaves(8))}, nodes=("pg-a", "pg-b", "pg-c"))
    flights = waiting_flights([*pairs, (999, "pg-a"), (1, "pg-a")], view)
    assert [(one.tablets, one.target, one.waits) for one in flights] == [((4,), "pg-c", True), ((7,), "pg-b", True)]


def test_parts_of_a_split_that_wait_for_a_slot_are_promised(directory: Directory) -> None:
    put(directory, wish(directory, {4: "pg-c", 7: "pg-b"}, NOW + 1))
    moves = owed(directory, NOW + 1)
    assert promised(directory.snapshot(), "shop", moves) == [(1, "pg-b"), (4, "pg-c"), (7, "pg-b")]
    assert promised(directory.snapshot(), "shop", moves, {1, 7}) == [(4, "pg-c")]


def test_the_other_half_was_moved_long_ago_and_follows_all_the_same(directory: Directory) -> None:
    old = replace(migration(directory.snapshot().tablet(4), "pg-b", "done"), finished=True, created=NOW - 5000)
    put(directory, old, chain(directory, "done", [(4, "pg-c")]))
    assert [action.tablets for action in owed(directory) if action.code == "chain"] == [(4,)]
    tried = replace(migration(directory.snapshot().tablet(4), "pg-c", "failed"), finished=True, created=NOW + 1)
    put(directory, tried)
    assert [action.tablets for action in owed(directory, NOW + 2) if action.code == "chain"] == []
