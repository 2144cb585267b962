"""`tablet lost` that comes to nothing after all: what it has made ready on the new node does not stay there."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from balancer.clock import SystemClock
from balancer.daemon.leader import Leader
from balancer.directory.contract import Directory
from balancer.directory.model import (
    Change,
    Command,
    CommandState,
    Migration,
    MigrationKind,
    MigrationMode,
    NodeState,
    Put,
    TabletState,
    Transaction,
)
from balancer.embedded.postgres import PostgresServer
from balancer.features.repair.doctor import examine
from balancer.features.repair.revive import make_ready, replacement
from balancer.instruments import Instruments
from balancer.migration.begin import Beginner
from balancer.migration.pool import MigrationPool
from balancer.migration.progress import Observer
from balancer.nodes.session.holder import NodeSessions
from balancer.planner.metrics import Reporter
from balancer.settings import MigrationSettings, load_settings
from tests.daemon.conftest import _logs_apart as _logs_apart
from tests.support.cluster import Cluster, blank_node, build, hash_table, hash_tablets, insert_rows
from tests.support.servers import new_database

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass
class World:
    """Two tablets on node a, none on node b, and a leader without its loop."""

    cluster: Cluster
    directory: Directory
    leading: Leader

    def change(self, *changes: Change) -> None:
        self.directory.commit(Transaction(changes, self.directory.snapshot().version, "a test", "test"))

    def ask(self, **arguments: Any) -> None:
        self.change(Put(Command("c1", "tablet-lost", {"accept_loss": True, **arguments}, "ann", NOW.timestamp())))

    def answer(self) -> tuple[str, str]:
        self.leading.answer_commands(self.directory.snapshot())
        found = self.directory.snapshot().commands["c1"]
        return found.state, found.result

    def die_before_the_commit(self, node: str, *, empty: bool) -> None:
        """What a leader has done by then."""
        snapshot = self.directory.snapshot()
        _, revived = replacement(snapshot, snapshot.tablet(2), node, former=False)
        links = NodeSessions(self.cluster.address, "test")
        make_ready(links, self.leading.leadership.epoch, snapshot.tables[1], revived, empty=empty)
        links.close()

    def on_b(self) -> list[tuple[object, ...]]:
        return self.cluster.query(
            "b", "SELECT (SELECT state FROM balancer.tablet WHERE id = 2), to_regclass('orders_t2') IS NOT NULL"
        )


@pytest.fixture
def world(tmp_path: Path, postgres18: PostgresServer) -> Iterator[World]:
    with ExitStack() as stack:
        dsns = {name: stack.enter_context(new_database(postgres18, fill=blank_node)).dsn for name in ("a", "b")}
        tablets = hash_tablets(2, ["a"])
        cluster = build(tmp_path, dsns, hash_table(), tablets)
        insert_rows(cluster, tablets, range(20))
        directory = cluster.directory()
        leadership = cluster.become_leader(directory)
        (tmp_path / "bundles").mkdir()
        (tmp_path / "bundles" / "shop.toml").write_text('mode = "observe"\n')
        (tmp_path / "balancer.toml").write_text(f'directory = "{cluster.url}"\ninstance = "host"\n')
        settings, clock = load_settings(tmp_path / "balancer.toml"), SystemClock()
        settings_of: Callable[[str], MigrationSettings] = lambda _: MigrationSettings()  # noqa: E731
        pool = MigrationPool(
            directory, leadership, addresses=cluster.address, settings_of=settings_of, observer=Observer(), clock=clock
        )
        leading = Leader(
            directory, leadership,
            pool=pool, beginner=Beginner(directory, leadership, lambda *_: [], clock), addresses=cluster.address,
            reporter=Reporter(Instruments()), settings=lambda: settings, replan=lambda _: None,
            polled=lambda *_: None, refused_copies=dict, clock=clock,
        )  # fmt: skip
        yield World(cluster, directory, leading)
        leading.close()
        leadership.resign()
        pool.close(20.0)
        cluster.close()


@pytest.mark.parametrize("empty", [True, False], ids=["made empty", "taken from b"])
def test_an_owner_that_comes_back_before_the_commit_stays_the_only_one(world: World, empty: bool) -> None:
    """Else b claims the tablet with an epoch above the owner's for good: it is not trusted any more, and a directory
    that is restored believes it."""
    node = world.directory.snapshot().node("a")
    if not empty:
        with world.cluster.connect("b") as connection:
            connection.execute("CREATE TABLE orders_t2 (LIKE orders INCLUDING ALL)")
    world.change(Put(replace(node, state=NodeState.LOST)))
    world.ask(tablet="2", node="b", empty=empty, former=False)
    world.die_before_the_commit("b", empty=empty)
    world.change(Put(replace(node, state=NodeState.ACTIVE)))
    state, result = world.answer()
    assert (state, result) == (CommandState.REFUSED, "tablet 2 is not lost: node a has it")
    assert world.on_b() == [(None, False) if empty else ("moved", True)]
    if empty:
        assert [one.text for one in examine(world.directory, world.cluster.address)] == []


def test_a_tablet_that_moves_again_before_the_command_is_answered_is_taken_back_too(world: World) -> None:
    """The command is refused before anything is looked at on a node."""
    node = world.directory.snapshot().node("a")
    world.change(Put(replace(node, state=NodeState.LOST)))
    world.ask(tablet="2", node="b", empty=True, former=False)
    world.die_before_the_commit("b", empty=True)
    target = world.directory.snapshot().tablet(2)
    move = Migration(
        "m1", "shop", 1, MigrationKind.MOVE, MigrationMode.REPLICATE, (2,), (replace(target, node="b", epoch=2),),
        "a", "b", "planned", reason="a test",
    )  # fmt: skip
    world.change(Put(replace(node, state=NodeState.ACTIVE)), Put(move))
    state, result = world.answer()
    assert (state, "part of migration m1" in result) == (CommandState.REFUSED, True)
    assert world.on_b() == [(None, False)]


def test_a_lost_owner_that_answers_again_keeps_its_tablet(world: World) -> None:
    """It takes writes of whoever has not heard: with another owner they would be lost, acknowledged as they are."""
    node = world.directory.snapshot().node("a")
    world.change(Put(replace(node, state=NodeState.LOST)))
    world.ask(tablet="2", node="b", empty=True, former=False)
    state, result = world.answer()
    assert (state, "node a answers, and has tablet 2" in result) == (CommandState.REFUSED, True), result
    assert "balancer undrain a" in result
    assert world.on_b() == [(None, False)]


def test_a_lost_owner_that_only_does_not_let_us_in_keeps_its_tablet(world: World) -> None:
    """All its sessions may be the application's, which goes on writing."""
    node = world.directory.snapshot().node("a")
    world.change(Put(replace(node, state=NodeState.LOST)))
    world.cluster.dsns["a"] += "?user=nobody_there"
    world.ask(tablet="2", node="b", empty=True, former=False)
    state, result = world.answer()
    assert (state, "does not let us in" in result) == (CommandState.REFUSED, True), result
    assert world.on_b() == [(None, False)]


def test_a_lost_owner_whose_database_is_gone_keeps_nothing(world: World) -> None:
    """Another server at its address."""
    node = world.directory.snapshot().node("a")
    world.change(Put(replace(node, state=NodeState.LOST)))
    world.cluster.dsns["a"] += "?dbname=nothing_there"
    world.ask(tablet="2", node="b", empty=True, former=False)
    assert world.answer()[0] == CommandState.DONE


def test_a_tablet_that_stands_for_expired_keys_takes_no_rows_at_its_new_place_either(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = world.directory.snapshot()
    world.change(
        Put(replace(snapshot.node("a"), state=NodeState.LOST)),
        Put(replace(snapshot.tablet(2), state=TabletState.EXPIRED)),
    )
    monkeypatch.setitem(world.cluster.dsns, "a", "host=127.0.0.1 port=1 dbname=nowhere")
    world.ask(tablet="2", node="b", empty=True, former=False)
    assert world.answer()[0] == CommandState.DONE
    assert world.directory.snapshot().tablet(2).state is TabletState.EXPIRED
    triggers = "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'orders_t2'::regclass AND tgname = 'balancer_expired'"
    assert world.cluster.query("b", triggers) == [(1,)]
