"""Moves that splits asked for: tried once, within the budgets, and never against an operator's wish."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from balancer.directory.contract import Directory
from balancer.directory.model import Migration, MigrationKind, NodeState, Pin, Put, Record, TabletState
from balancer.directory.open import open_directory
from balancer.planner.follow_up import PATIENCE, follow_ups
from balancer.policies.bundle_view import Action
from balancer.policies.options import BudgetOptions, BundleOptions
from balancer.policies.promises import affordable, credited
from tests.support.bundles import Tablets, bundle, leaves
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
    view = bundle({"orders": Tablets([5.0] * 8, leaves(8))}, nodes=("pg-a", "pg-b", "pg-c"))
    tight = BundleOptions(budgets=BudgetOptions(moves_per_node=1, moves_total=4))
    taken = affordable(owed(directory, NOW + 1), view, tight)
    assert [action.tablets for action in taken] == [(1,)]  # all three leave pg-a
    wide = BundleOptions(budgets=BudgetOptions(moves_per_node=2, moves_total=2))
    assert len(affordable(owed(directory, NOW + 1), view, wide)) == 2
    assert {action.size for action in taken} == {5.0}
    flight = credited(view, taken).in_flight[0]
    assert (flight.tablets, flight.source, flight.target) == ((1,), "pg-a", "pg-b")
    assert credited(view, []) is view
