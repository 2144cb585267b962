"""Orders of many migrations: what is left of one is read from the directory, and the budgets bound what is started."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from balancer.directory.invariants import TABLET_COUNTER
from balancer.directory.model import Change, CommandState, Counter, Pin, Plan, Put, RecordKind, Remove, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.directory.sqlite.backend import SqliteDirectory
from balancer.planner import orders, plans
from balancer.planner.commands import decide, request
from balancer.planner.verbs import Outcome
from balancer.policies.budgets import Admission
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.options import BudgetOptions, BundleOptions, TableOptions
from balancer.policies.view import Action, ActionKind, BundleView, NodeCondition, PlanResult, TabletHistory
from balancer.settings import Mode
from tests.support.bundle_states import view_of_snapshot
from tests.support.directories import HASHED, RANGED, fill, frame, leaves, migration, ranges, transaction

pytestmark = pytest.mark.quick

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
OPTIONS = BundleOptions(budgets=BudgetOptions(moves_total=4, moves_per_node=2))


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[SqliteDirectory]:
    with SqliteDirectory(tmp_path / "directory.db") as directory:
        fill(directory, [*frame(), HASHED, RANGED, *leaves(8), *ranges([10]), Counter(TABLET_COUNTER, 2000)])
        yield directory


def test_old_orders_are_forgotten_but_not_a_table_s_newest(directory: SqliteDirectory) -> None:
    document = {"order": "double", "table": "orders", "tablets": [], "at_once": False, "actions": []}
    ended = [Plan(f"o{n:02}", "shop", float(n), orders.DONE, document) for n in range(15)]
    snapshot = directory.snapshot()
    directory.commit(transaction([Put(plan) for plan in ended], snapshot.version))
    forgotten = plans.forgotten_orders(directory.snapshot(), "shop")
    assert [change.key for change in forgotten] == ["o00", "o01", "o02", "o03"]


def give(directory: SqliteDirectory, verb: str, **arguments: Any) -> Outcome:
    snapshot = directory.snapshot()
    now = NOW + timedelta(seconds=snapshot.version)
    command, outcome = decide(request(verb, arguments, "ann@host", now), snapshot, now)
    if command.state is CommandState.DONE:
        directory.commit(transaction(outcome.changes, snapshot.version))
    return outcome


def the_order(directory: SqliteDirectory) -> Plan:
    (order,) = orders.open_orders(directory.snapshot(), "shop")
    return order


def view(snapshot: Snapshot, **changes: Any) -> BundleView:
    made: BundleView = view_of_snapshot(snapshot)
    return replace(made, now=NOW.timestamp(), **changes)


def due(directory: SqliteDirectory, **changes: Any) -> orders.Due:
    return orders.due(the_order(directory), view(directory.snapshot(), **changes), OPTIONS)


def carried_out(directory: SqliteDirectory, action: Action) -> None:
    """What the migration of an action comes to in the directory."""
    snapshot = directory.snapshot()
    old = [snapshot.tablet(number) for number in action.tablets]
    if action.kind is ActionKind.MOVE:
        changes: tuple[Change, ...] = (Put(replace(old[0], node=action.target, epoch=old[0].epoch + 1)),)
    else:
        first = snapshot.counters[TABLET_COUNTER].next
        made = [
            Tablet(first + at, old[0].table, part.leaf, old[0].node)
            for at, part in enumerate(action.parts)
            if part.leaf is not None
        ]
        gone = tuple(Remove(RecordKind.TABLET, str(tablet.id)) for tablet in old)
        changes = (*gone, *map(Put, made), Put(Counter(TABLET_COUNTER, first + len(made))))
    directory.commit(transaction(changes, snapshot.version))


def worked_off(directory: SqliteDirectory) -> int:
    """Ticks until an order is finished; each starts no more than the budgets allow."""
    for tick in range(100):
        left = due(directory)
        if left.finished:
            return tick
        admission = Admission(view(directory.snapshot()), OPTIONS)
        started = orders.startable([left], admission, schedule_open=True)
        assert 0 < len(started) <= OPTIONS.budgets.moves_total
        assert max(admission.per_node.values()) <= OPTIONS.budgets.moves_per_node
        for action in started:
            carried_out(directory, action)
    raise AssertionError("the order has no end")


def moduli(directory: SqliteDirectory) -> list[int]:
    found = [tablet.bounds for tablet in directory.snapshot().tablets(HASHED.id)]
    return [leaf.modulus for leaf in found if isinstance(leaf, Leaf)]


def test_doubling_splits_every_vbucket_once_whoever_leads(directory: SqliteDirectory) -> None:
    outcome = give(directory, "double", bundle="shop", table="orders")
    assert "0 of 8 vbuckets done; it begins when the schedule allows it" in outcome.result
    assert worked_off(directory) == 2  # eight splits, four at once
    assert moduli(directory) == [16] * 16
    assert orders.progress(the_order(directory), directory.snapshot())["done"] == 8


def test_halving_moves_siblings_together_first(directory: SqliteDirectory) -> None:
    give(directory, "halve", bundle="shop", table="orders")
    worked_off(directory)
    assert moduli(directory) == [4] * 4


def test_only_tablets_that_were_there_when_it_was_given_are_touched(directory: SqliteDirectory) -> None:
    give(directory, "double", bundle="shop", table="orders")
    carried_out(directory, due(directory).actions[0])
    mine = {tablet for action in due(directory).actions for tablet in action.tablets}
    assert mine == {tablet.id for tablet in directory.snapshot().tablets(HASHED.id) if tablet.id <= 8}
    assert len(mine) == 7


def test_what_is_in_the_way_for_a_while_is_waited_for(directory: SqliteDirectory) -> None:
    give(directory, "double", bundle="shop", table="orders")
    snapshot = directory.snapshot()
    down = tuple(replace(node, condition=NodeCondition.DOWN) for node in view(snapshot).nodes)
    assert due(directory, nodes=down).waiting == 8
    failed = {1: TabletHistory(failures=1, last_failed=NOW.timestamp())}
    resting = due(directory, history=failed)
    assert (len(resting.actions), resting.waiting, resting.impossible) == (7, 1, ())


def test_what_stays_in_the_way_is_named_at_the_end(directory: SqliteDirectory) -> None:
    give(directory, "double", bundle="shop", table="orders")
    broken = {1: TabletHistory(failures=3, last_failed=NOW.timestamp())}
    left = due(directory, history=broken, pinned=frozenset({2}))
    assert (len(left.actions), left.waiting) == (6, 0)
    assert {rejection.code for rejection in left.impossible} == {"quarantined", "pinned"}
    ended = orders.settled([replace(left, actions=())], view(directory.snapshot()))
    assert isinstance(ended[0].record, Plan)
    assert (ended[0].record.state, len(ended[0].record.document["not_started"])) == ("done", 2)
    assert orders.settled([left], view(directory.snapshot())) == ()


def test_the_balancer_does_not_undo_a_doubling_until_it_is_halved(directory: SqliteDirectory) -> None:
    give(directory, "double", bundle="shop", table="orders")
    worked_off(directory)
    assert least(directory) is None
    settle(directory)
    assert least(directory) == 16
    wanted = BundleOptions(tables={"orders": TableOptions(desired_tablet_count=4)})
    assert orders.respected(wanted, directory.snapshot(), "shop") == wanted
    give(directory, "halve", bundle="shop", table="orders")
    assert least(directory) == 16
    worked_off(directory)
    settle(directory)
    assert least(directory) is None


def least(directory: SqliteDirectory) -> int | None:
    return orders.respected(OPTIONS, directory.snapshot(), "shop").table("orders").min_tablet_count


def settle(directory: SqliteDirectory) -> None:
    snapshot = directory.snapshot()
    directory.commit(transaction(orders.settled([due(directory)], view(snapshot)), snapshot.version))


def test_an_order_waits_for_the_schedule_unless_it_was_told_not_to(directory: SqliteDirectory) -> None:
    give(directory, "double", bundle="shop", table="orders")
    admission = Admission(view(directory.snapshot()), OPTIONS)
    assert orders.startable([due(directory)], admission, schedule_open=False) == []
    give(directory, "cancel", migration=the_order(directory).id)
    give(directory, "double", bundle="shop", table="orders", at_once=True)
    assert len(orders.startable([due(directory)], admission, schedule_open=False)) == 4


def test_the_planner_does_not_work_against_an_order(directory: SqliteDirectory) -> None:
    give(directory, "double", bundle="shop", table="orders")
    merge = Action(ActionKind.MERGE, "orders", (1, 5), "too small", "merge-size")
    move = Action(ActionKind.MOVE, "orders", (2,), "load", "load", "pg-b", "pg-a")
    elsewhere = Action(ActionKind.SPLIT, "events", (1001,), "too large", "split-size")
    assert orders.beside([merge, move, elsewhere], [due(directory)]) == [move, elsewhere]


def test_a_second_order_and_impossible_ones_are_refused(directory: SqliteDirectory) -> None:
    give(directory, "double", bundle="shop", table="orders")
    number = the_order(directory).id
    again = give(directory, "halve", bundle="shop", table="orders")
    assert again.result.startswith(f"order {number} comes first: doubling the vbuckets of orders: 0 of 8")
    assert "is a range table" in give(directory, "double", bundle="shop", table="events").result
    withdrawn = give(directory, "cancel", migration=number)
    assert withdrawn.result.startswith(f"order {number} is withdrawn")
    assert orders.open_orders(directory.snapshot(), "shop") == []


def test_a_table_of_one_vbucket_cannot_be_halved(tmp_path: Path) -> None:
    with SqliteDirectory(tmp_path / "one.db") as directory:
        fill(directory, [*frame(), HASHED, *leaves(1), Counter(TABLET_COUNTER, 2000)])
        assert "there is nothing to halve" in give(directory, "halve", bundle="shop", table="orders").result


def test_orders_are_no_plans_of_the_planner(directory: SqliteDirectory) -> None:
    give(directory, "double", bundle="shop", table="orders")
    assert plans.of_bundle(directory.snapshot(), "shop") == []
    apply = give(directory, "apply", plan=the_order(directory).id)
    assert apply.result.endswith("is ordered, not proposed")


def test_a_plan_that_was_asked_for_is_kept_even_if_it_proposes_nothing(directory: SqliteDirectory) -> None:
    snapshot = directory.snapshot()
    seen = view(snapshot)
    assert plans.propose(snapshot, PlanResult(), seen, OPTIONS, Mode.AUTONOMOUS) == ("", ())
    number, changes = plans.propose(snapshot, PlanResult(), seen, OPTIONS, Mode.AUTONOMOUS, asked=True)
    (change,) = changes
    assert isinstance(change, Put)
    assert isinstance(change.record, Plan)
    assert (number, change.record.state, change.record.document["input"] is not None) == ("", "done", True)


def test_a_running_migration_counts_as_running(directory: SqliteDirectory) -> None:
    give(directory, "double", bundle="shop", table="orders")
    snapshot = directory.snapshot()
    busy = migration(snapshot.tablet(1), "pg-b", "copying")
    directory.commit(transaction((Put(busy), Put(Pin(3, None))), snapshot.version))
    assert orders.progress(the_order(directory), directory.snapshot())["running"] == 1
