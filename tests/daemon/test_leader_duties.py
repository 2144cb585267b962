"""The leader's hands: commands carried out exactly once, refusals recorded, plans kept, nodes closed."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from balancer.clock import SystemClock
from balancer.daemon.leader import Leader
from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import Command, CommandState, Migration, MigrationMode, NodeState, Put
from balancer.errors import Fenced, Unavailable
from balancer.instruments import Instruments
from balancer.migration.begin import Beginner
from balancer.migration.journal import read_detail
from balancer.migration.pool import MigrationPool
from balancer.migration.progress import Observer
from balancer.nodes.session.connection import Address
from balancer.planner import orders
from balancer.planner.metrics import Reporter
from balancer.policies.view import NodeChange, NodeCondition
from balancer.settings import MigrationSettings, load_settings
from tests.support.bundle_states import view_of_snapshot
from tests.support.directories import transaction

pytestmark = pytest.mark.quick

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def nowhere(node: str) -> Address:
    """Migrations begin, and wait for nodes that cannot be reached."""
    raise Unavailable(f"node {node} is out of reach")


@pytest.fixture
def instruments() -> Instruments:
    return Instruments()


@pytest.fixture
def leading(tmp_path: Path, directory: Directory, leadership: Leadership, instruments: Instruments) -> Iterator[Leader]:
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / "shop.toml").write_text('mode = "autonomous"\n')
    (tmp_path / "balancer.toml").write_text(f'directory = "sqlite://{tmp_path}/directory.db"\ninstance = "host"\n')
    settings = load_settings(tmp_path / "balancer.toml")
    clock = SystemClock()
    replanned: list[str] = []
    pool = MigrationPool(
        directory,
        leadership,
        addresses=nowhere,
        settings_of=lambda _: MigrationSettings(),
        observer=Observer(),
        clock=clock,
    )
    made = Leader(
        directory,
        leadership,
        pool=pool,
        beginner=Beginner(directory, leadership, lambda *_: [], clock),
        addresses=nowhere,
        reporter=Reporter(instruments),
        settings=lambda: settings,
        replan=replanned.append,
        polled=lambda *_: None,
        refused_copies=dict,
        clock=clock,
    )
    made.replanned = replanned  # type: ignore[attr-defined]
    yield made
    leadership.resign()
    pool.close(20.0)
    assert not pool.running()


def ask(directory: Directory, verb: str, number: int = 1, **arguments: Any) -> str:
    command = Command(f"c{number}", verb, arguments, "ann@host", NOW.timestamp() + number)
    directory.commit(transaction([Put(command)], directory.snapshot().version))
    return command.id


def answer(directory: Directory, leading: Leader, command: str) -> tuple[str, str]:
    leading.answer_commands(directory.snapshot())
    found = directory.snapshot().commands[command]
    return found.state, found.result


def test_a_move_and_its_answer_are_one_commit(directory: Directory, leading: Leader) -> None:
    command = ask(directory, "move", tablet="1", node="pg-b")
    state, result = answer(directory, leading, command)
    (begun,) = directory.snapshot().migrations.values()
    assert (state, result) == (CommandState.DONE, f"move of tablet 1 starts: {begun.id}")
    entries = [entry for entry in directory.history(limit=100) if any_of(entry.changes, Migration)]
    first = entries[0]
    assert any_of(first.changes, Command), "whoever finds the migration finds the answer"


@pytest.mark.parametrize(
    ("asked", "mode", "fallback"),
    [
        ({}, MigrationMode.REPLICATE, True),
        ({"mode": "replicate"}, MigrationMode.REPLICATE, False),
        ({"mode": "read-only"}, MigrationMode.READ_ONLY, False),
    ],
)
def test_an_operator_may_ask_for_a_mode(
    directory: Directory, leading: Leader, asked: dict[str, Any], mode: MigrationMode, fallback: bool
) -> None:
    answer(directory, leading, ask(directory, "move", tablet="1", node="pg-b", **asked))
    (begun,) = directory.snapshot().migrations.values()
    assert (begun.mode, read_detail(begun).fallback) == (mode, fallback)


def any_of(changes: Any, kind: type) -> bool:
    return any(isinstance(change, Put) and isinstance(change.record, kind) for change in changes)


def test_commands_are_carried_out_once_however_often_they_are_looked_at(directory: Directory, leading: Leader) -> None:
    command = ask(directory, "move", tablet="1", node="pg-b")
    before = directory.snapshot()
    threads = [threading.Thread(target=leading.answer_commands, args=(before,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(directory.snapshot().migrations) == 1
    assert directory.snapshot().commands[command].state is CommandState.DONE


def test_a_refusal_is_the_answer(directory: Directory, leading: Leader, instruments: Instruments) -> None:
    command = ask(directory, "move", tablet="1", node="pg-a")
    assert answer(directory, leading, command) == (CommandState.REFUSED, "tablet 1 is on node pg-a already")
    assert instruments.registry.get_sample_value("balancer_commands_total", {"verb": "move", "result": "refused"}) == 1


def test_what_the_beginning_refuses_is_the_answer_too(directory: Directory, leading: Leader) -> None:
    snapshot = directory.snapshot()
    closed = replace(snapshot.nodes["pg-b"], state=NodeState.CLOSED, reason="old")
    directory.commit(transaction([Put(closed)], snapshot.version))
    command = ask(directory, "move", tablet="1", node="pg-b")
    state, result = answer(directory, leading, command)
    assert (state, result) == (CommandState.REFUSED, "node pg-b is closed and gets no tablets: old")
    assert not directory.snapshot().migrations


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("pin", {"tablet": "1", "seconds": "soon"}),
        ("split", {"tablet": "1002", "keys": ["zz"]}),
        ("split", {"tablet": "1002", "parts": "many"}),
        ("merge", {"tablets": 7}),
        ("pin", {"tablet": "²"}),
        ("explode", {}),
    ],
)
def test_a_wish_that_makes_no_sense_ends_nobody(
    directory: Directory, leading: Leader, verb: str, arguments: dict[str, Any]
) -> None:
    wrong = ask(directory, verb, 1, **arguments)
    right = ask(directory, "pin", 2, tablet="1")
    leading.answer_commands(directory.snapshot())
    commands = directory.snapshot().commands
    assert commands[wrong].state is CommandState.REFUSED
    assert commands[wrong].result
    assert commands[right].state is CommandState.DONE


def test_commands_are_answered_in_the_order_of_their_making(directory: Directory, leading: Leader) -> None:
    ask(directory, "drain", 2, node="pg-a")
    ask(directory, "undrain", 1, node="pg-a")
    leading.answer_commands(directory.snapshot())
    assert directory.snapshot().nodes["pg-a"].state is NodeState.DRAINING
    assert leading.replanned == ["shop"]  # type: ignore[attr-defined]


def test_steering_what_does_not_run_is_refused(directory: Directory, leading: Leader) -> None:
    command = ask(directory, "pause", migration="m0")
    assert answer(directory, leading, command) == (CommandState.REFUSED, "migration m0 does not run")


def test_a_deposed_leader_does_nothing_more(directory: Directory, leading: Leader) -> None:
    command = ask(directory, "move", tablet="1", node="pg-b")
    leading.leadership.resign()
    with pytest.raises(Fenced):
        leading.answer_commands(directory.snapshot())
    assert directory.snapshot().commands[command].state is CommandState.WAITING
    assert not directory.snapshot().migrations


@pytest.mark.parametrize(("withdrawn", "state"), [(False, orders.DONE), (True, orders.WITHDRAWN)])
def test_an_order_at_its_end_is_settled_unless_it_was_withdrawn_since_the_tick_saw_it(
    directory: Directory, leading: Leader, withdrawn: bool, state: str
) -> None:
    answer(directory, leading, ask(directory, "double", 1, bundle="shop", table="orders"))
    (order,) = orders.open_orders(directory.snapshot(), "shop")
    if withdrawn:
        answer(directory, leading, ask(directory, "cancel", 2, migration=order.id))
    leading.settle_orders("shop", [orders.Due(order)], view_of_snapshot(directory.snapshot()))
    assert directory.snapshot().plans[order.id].state == state


def test_a_node_is_closed_and_opened_by_the_daemon(directory: Directory, leading: Leader) -> None:
    leading.change_node(NodeChange("pg-a", NodeCondition.CLOSED, "disk-full", "its disk is nearly full"))
    node = directory.snapshot().nodes["pg-a"]
    assert (node.state, node.reason) == (NodeState.CLOSED, "closed by the daemon: its disk is nearly full")
    leading.change_node(NodeChange("pg-a", NodeCondition.ACTIVE, "reopened", "room again"))
    assert directory.snapshot().nodes["pg-a"].reason == ""
