"""Plans in the directory: proposed once, superseded by others, approved, settled, and not kept for ever."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from balancer.directory.contract import Directory
from balancer.directory.model import Change, Plan, Put
from balancer.directory.open import open_directory
from balancer.planner import plans
from balancer.policies.options import BundleOptions
from balancer.policies.view import Action, ActionKind, PlanResult
from balancer.settings import Mode
from tests.support.bundle_views import Tablets, bundle_of, leaves
from tests.support.directories import fill, transaction

pytestmark = pytest.mark.quick

VIEW = bundle_of({"orders": Tablets([1.0] * 4, leaves(4))})


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    with open_directory(f"sqlite://{tmp_path}/directory.db") as opened:
        fill(opened)
        yield opened


def move(tablet: int, size: float = 1.0) -> Action:
    return Action(ActionKind.MOVE, "orders", (tablet,), "too full", "load", "a", "b", size=size)


def record(directory: Directory, changes: tuple[Change, ...]) -> None:
    if changes:
        directory.commit(transaction(changes, directory.snapshot().version))


def propose(
    directory: Directory, *actions: Action, at: float = 1.0, mode: Mode = Mode.APPROVE, asked: bool = False
) -> str:
    view, result = replace(VIEW, now=at), PlanResult(actions=actions)
    plan, changes = plans.propose(directory.snapshot(), result, view, BundleOptions(), mode, asked=asked)
    record(directory, changes)
    return plan


def states(directory: Directory) -> dict[str, str]:
    return {plan.id: plan.state for plan in directory.snapshot().plans.values()}


def approve(directory: Directory, plan: str) -> Plan:
    approved = replace(directory.snapshot().plans[plan], state=plans.APPROVED)
    record(directory, (Put(approved),))
    return approved


def test_the_same_plan_is_recorded_once_whatever_its_figures(directory: Directory) -> None:
    first = propose(directory, move(1, size=1.0))
    version = directory.snapshot().version
    assert propose(directory, move(1, size=2.0), at=2.0) == first
    assert directory.snapshot().version == version


def test_another_plan_takes_its_place(directory: Directory) -> None:
    first = propose(directory, move(1))
    second = propose(directory, move(2), at=2.0)
    assert states(directory) == {first: plans.SUPERSEDED, second: plans.PROPOSED}


def test_nothing_to_do_supersedes_what_was_proposed(directory: Directory) -> None:
    first = propose(directory, move(1))
    assert propose(directory, at=2.0) == ""
    assert states(directory) == {first: plans.SUPERSEDED}


def test_an_approved_plan_stands_until_it_is_settled(directory: Directory) -> None:
    first = propose(directory, move(1), move(2))
    approved = approve(directory, first)
    assert propose(directory, move(3), at=2.0) == first
    record(directory, (plans.settle(approved, [move(1)], []),))
    waiting = plans.in_state(directory.snapshot(), "shop", plans.APPROVED)
    assert waiting is not None
    assert plans.actions_of(waiting) == (move(2),)
    record(directory, (plans.settle(waiting, [move(2)], ["the disk is full"]),))
    done = directory.snapshot().plans[first]
    assert (done.state, done.document["not_started"]) == (plans.DONE, ["the disk is full"])
    assert propose(directory, move(3), at=3.0) not in ("", first)


def test_a_plan_asked_for_beside_an_approved_one_is_kept_but_takes_no_place(directory: Directory) -> None:
    first = propose(directory, move(1))
    approve(directory, first)
    assert propose(directory, move(2), at=2.0, asked=True) == first
    (other,) = set(states(directory)) - {first}
    assert states(directory) == {first: plans.APPROVED, other: plans.SUPERSEDED}
    assert directory.snapshot().plans[other].document["input"] is not None


def test_the_same_plan_is_recorded_again_where_it_was_asked_for(directory: Directory) -> None:
    first = propose(directory, move(1))
    second = propose(directory, move(1), at=2.0, asked=True)
    assert states(directory) == {first: plans.SUPERSEDED, second: plans.PROPOSED}


def test_a_plan_approved_in_another_mode_is_superseded(directory: Directory) -> None:
    first = propose(directory, move(1))
    approve(directory, first)
    second = propose(directory, move(2), at=2.0, mode=Mode.AUTONOMOUS)
    assert states(directory) == {first: plans.SUPERSEDED, second: plans.PROPOSED}


def test_only_the_newest_finished_plans_are_kept(directory: Directory) -> None:
    made = [propose(directory, move(1 + number % 2), at=float(number)) for number in range(plans.KEPT + 5)]
    kept = [plan.id for plan in plans.of_bundle(directory.snapshot(), "shop")]
    assert kept == made[-len(kept) :]
    assert len(kept) <= plans.KEPT + 2
