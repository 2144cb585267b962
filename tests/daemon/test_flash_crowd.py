"""A flash crowd on real nodes: the hot tablet is cut into many parts at once, and they go where the plan says."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from balancer.clock import SystemClock
from balancer.daemon.daemon import Daemon
from balancer.directory.model import Command, Migration, MigrationKind, Put, Tablet
from balancer.directory.notes import SAMPLES as TOPIC
from balancer.directory.notes import SLOTS, entry, sample_note
from balancer.directory.snapshot import Snapshot
from balancer.planner.plans import PROPOSED
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.settings import Mode, load_settings
from tests.support.directories import transaction
from tests.support.fleet import Fleet, until

SAMPLES = 400


@pytest.fixture(params=["autonomous", "approve"])
def daemon(fleet: Fleet, request: pytest.FixtureRequest) -> Iterator[Daemon]:
    """Heat alone acts: nothing else moves, splits or merges."""
    fleet.write(
        request.param,
        tablet_balancer_config="enable_cell_balancer = false\nenable_tablet_size_balancer = false",
        heat="polls_to_confirm = 2",
    )
    made = Daemon(load_settings(fleet.config), SystemClock())
    made.start()
    yield made
    made.stop()


class Crowd:
    """Clients that write to one tablet's keys, and report them."""

    def __init__(self, connection: psycopg.Connection[Any], daemon: Daemon, tablet: Tablet) -> None:
        self.connection, self.daemon, self.tablet = connection, daemon, tablet
        found = self.connection.execute(f"SELECT id FROM orders_t{tablet.id}".encode()).fetchall()
        self.keys = [number for (number,) in found]

    def write(self) -> None:
        """One write of each key, and a note about it."""
        with self.connection.transaction():
            self.connection.execute("UPDATE orders SET note = 'hot' WHERE id = ANY(%s)", [self.keys])
        leaf, now = self.tablet.bounds, SystemClock().now().timestamp()
        assert isinstance(leaf, Leaf)
        places = [entry(leaf.start() + leaf.width() * at // SAMPLES, 1.0, True) for at in range(SAMPLES)]
        note = sample_note(now, 1.0, {str(self.tablet.table): places})
        self.daemon.directory().publish(TOPIC, SLOTS[0], note)


def approve(daemon: Daemon) -> None:
    """Says yes to every plan that waits for it, as an operator does."""
    directory = daemon.directory()
    snapshot, now = directory.snapshot(), SystemClock().now().timestamp()
    asked = {command.arguments.get("plan") for command in snapshot.commands.values()}
    for plan in snapshot.plans.values():
        if plan.state == PROPOSED and plan.id not in asked:
            command = Command(f"c{plan.id}", "apply", {"plan": plan.id}, "ann@host", now)
            directory.commit(transaction([Put(command)], directory.snapshot().version))


def splits(snapshot: Snapshot) -> list[Migration]:
    return [record for record in snapshot.migrations.values() if record.operation is MigrationKind.SPLIT]


def test_a_hot_tablet_becomes_many_and_they_go_where_the_plan_says(fleet: Fleet, daemon: Daemon) -> None:
    until(lambda: daemon.leading is not None, 30, "a leader")
    snapshot = daemon.directory().snapshot()
    hot = next(iter(snapshot.tablets(snapshot.table("orders").id)))
    with psycopg.connect(fleet.dsns["a"], autocommit=True) as connection:
        follow_the_crowd(daemon, Crowd(connection, daemon, hot))


def follow_the_crowd(daemon: Daemon, crowd: Crowd) -> None:
    def cut() -> bool:
        crowd.write()
        if daemon.settings().bundle("shop").mode is Mode.APPROVE:
            approve(daemon)
        found = splits(daemon.directory().snapshot())
        return bool(found) and found[0].state == "done"

    until(cut, 120, "a split")
    split = splits(daemon.directory().snapshot())[0]
    then = {int(tablet): node for tablet, node in split.detail["then"]}
    assert (split.sources, split.detail["code"]) == ((crowd.tablet.id,), "heat-split")
    assert len(split.detail["then"]) >= 2
    assert set(then.values()) == {"b"}
    assert "parts go to b" in split.reason

    def placed() -> bool:
        now = daemon.directory().snapshot()
        return all((found := now.find_tablet(tablet)) is not None and found.node == "b" for tablet in then)

    until(placed, 120, "the parts' moves")
    moves = [one for one in daemon.directory().snapshot().migrations.values() if one.operation is MigrationKind.MOVE]
    assert sorted(one.sources[0] for one in moves) == sorted(then), "nothing else was moved, and nothing twice"
