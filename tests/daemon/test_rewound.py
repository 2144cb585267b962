"""Nodes that go back in time, on real servers that are really taken back: what they claim is fenced within a poll, in
every mode, and an operator is told what to do. A failover that loses nothing is left alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from balancer.embedded.postgres import PostgresServer
from balancer.nodes.standbys import not_replayed, position
from balancer.planner.state import Word
from tests.daemon.test_daemon import Instance
from tests.support.fleet import Fleet, until
from tests.support.servers import postgres
from tests.support.standby import copy_folder, make_standby, restore_folder, wait_until

SWIFT = 'retire_grace = "0s"\nwrite_pause_budget = "5s"\nfence_deadline = "10s"'


@dataclass
class Story:
    """Nodes a and b on servers of their own, all tablets on a, and a daemon that only observes."""

    version: int
    folder: Path
    fleet: Fleet
    servers: dict[str, PostgresServer]
    instance: Instance | None = None

    def start(self) -> Instance:
        self.instance = Instance(self.fleet.write_daemon(tick="300ms"))
        self.instance.start()
        until(self.instance.leads, 60, "an election")
        self.instance.ticks(3)
        return self.instance

    def stop(self) -> None:
        if self.instance is not None:
            self.instance.stop()
            self.instance = None

    def restart(self) -> Instance:
        """What is remembered is in the directory, not in the process."""
        self.stop()
        return self.start()

    def back_up(self, node: str) -> Path:
        self.servers[node].stop()
        backup = self.folder / f"backup-{node}"
        copy_folder(self.servers[node], backup)
        self.servers[node].start()
        return backup

    def take_back(self, node: str, backup: Path) -> None:
        """The server with its old data, on its old port."""
        self.servers[node].stop()
        restore_folder(self.servers[node], backup)
        self.servers[node].start()

    def execute(self, node: str, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.fleet.dsns[node], autocommit=True) as link:
            cursor = link.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def refusal(self, node: str, statement: str) -> psycopg.Error:
        with pytest.raises(psycopg.Error) as caught:
            self.execute(node, statement)
        return caught.value

    def state(self, node: str, tablet: int) -> tuple[Any, ...] | None:
        found = self.execute(node, f"SELECT state, epoch, moved_to, migration FROM balancer.tablet WHERE id = {tablet}")
        return found[0] if found else None

    def id_in(self, node: str, tablet: int) -> int:
        """A row of this tablet."""
        return int(self.execute(node, f"SELECT min(id) FROM orders_t{tablet}")[0][0])

    def rewound(self) -> dict[str, str]:
        with self.fleet.directory() as directory:
            return {node.id: node.rewound for node in directory.snapshot().nodes.values() if node.rewound}


@pytest.fixture(params=[15, 18], ids=["postgres15", "postgres18"])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def story(version: int, server_folder: Path, tmp_path: Path) -> Iterator[Story]:
    folder = server_folder / f"rewound-{tmp_path.name}"
    folder.mkdir()
    folder.chmod(0o755)
    with postgres(folder / "a", version) as a, postgres(folder / "b", version) as b:
        servers = {"a": a, "b": b}
        fleet = Fleet(tmp_path, f"sqlite://{tmp_path}/shop.db", {name: one.dsn() for name, one in servers.items()}, 4)
        fleet.write("observe", migration=SWIFT)
        fleet.create(["a"], rows=400)
        made = Story(version, folder, fleet, servers)
        try:
            yield made
        finally:
            made.stop()


def test_a_source_that_went_back_is_not_a_second_owner(story: Story) -> None:
    instance = story.start()
    lost = story.id_in("a", 1)
    backup = story.back_up("a")
    until(lambda: instance.word() is not Word.BLOCKED, 30, "the return of a")
    instance.give("move", tablet="1", node="b")
    until(lambda: story.state("a", 1) == ("moved", 2, "b", None), 60, "the move")
    until(lambda: all(one.finished for one in instance.daemon.follower().snapshot.migrations.values()), 60, "its end")
    story.stop()
    story.take_back("a", backup)
    assert story.state("a", 1) == ("owned", 1, None, None), "two owners"
    instance = story.start()
    until(story.rewound, 30, "the discovery")
    until(lambda: story.state("a", 1) == ("moved", 2, "b", None), 30, "the fence")
    update = f"UPDATE orders SET n = 7 WHERE id = {lost}"
    assert (story.refusal("a", update).sqlstate, story.execute("b", update)) in (("TB002", []), ("40001", []))
    assert story.refusal("a", "CALL balancer.hold(1, 1, true)").sqlstate in ("TB002", "40001")
    kept = story.id_in("a", 2)
    refused = story.refusal("a", f"UPDATE orders SET n = 7 WHERE id = {kept}")
    assert refused.sqlstate == "TB004"
    assert refused.diag.message_hint == "An operator decides: balancer node rejoin a"
    assert story.refusal("a", "CALL balancer.hold(2, 1, true)").sqlstate in ("TB001", "40001")
    assert story.refusal("a", "TRUNCATE orders_t2").sqlstate == "TB004"
    assert instance.word() is Word.BLOCKED
    assert "node a is not trusted: it has gone back in time" in instance.sentence()
    assert "`balancer node rejoin a --dry-run`" in instance.sentence()


def test_an_owner_that_went_back_although_nothing_moved_is_closed_until_the_loss_is_accepted(story: Story) -> None:
    instance = story.start()
    backup = story.back_up("a")
    story.execute("a", "UPDATE orders SET n = 1")
    until(lambda: instance.word() is not Word.BLOCKED, 30, "the return of a")
    instance.ticks(2)
    story.stop()
    story.take_back("a", backup)
    instance = story.start()
    until(story.rewound, 30, "the discovery")
    until(lambda: all(story.state("a", one) == ("fenced", 1, None, "rewound") for one in range(1, 5)), 30, "the fence")
    assert "bytes before where it was" in story.rewound()["a"]
    assert story.refusal("a", "UPDATE orders SET n = 2").sqlstate == "TB004"
    assert story.execute("a", "SELECT count(*) FROM orders") == [(400,)], "it may be read"
    instance = story.restart()
    story.execute("a", "CREATE TABLE filler AS SELECT n, repeat('x', 500) FROM generate_series(1, 20000) n")
    instance.ticks(3)
    assert story.refusal("a", "UPDATE orders SET n = 2").sqlstate == "TB004", "it stays so, however far its log comes"
    assert "say --accept-loss" in instance.give("rejoin", node="a")
    assert "4 tablets are opened" in instance.give("rejoin", node="a", accept_loss=True)
    until(lambda: all(story.state("a", one) == ("owned", 1, None, None) for one in range(1, 5)), 30, "the opening")
    story.execute("a", "UPDATE orders SET n = 2")
    story.execute("a", "CALL balancer.hold(2, 1, true)")
    instance.ticks(3)
    assert story.rewound() == {}
    assert instance.word() is Word.BALANCED, instance.sentence()


def test_a_target_that_went_back_after_the_rows_were_dropped_is_named(story: Story) -> None:
    instance = story.start()
    backup = story.back_up("b")
    until(lambda: instance.word() is not Word.BLOCKED, 30, "the return of b")
    instance.give("move", tablet="1", node="b")
    until(lambda: story.state("a", 1) == ("moved", 2, "b", None), 60, "the move")
    until(lambda: all(one.finished for one in instance.daemon.follower().snapshot.migrations.values()), 60, "its end")
    instance.ticks(2)
    story.stop()
    story.take_back("b", backup)
    instance = story.start()
    until(story.rewound, 30, "the discovery")
    assert set(story.rewound()) == {"b"}
    instance.ticks(2)
    state = instance.state()
    assert state is not None
    found = next(node for node in state.nodes if node.id == "b").disagreements
    assert any("tablet 1 should be here, and the node knows nothing of it" in one for one in found), found


def test_a_crash_and_a_restart_lose_nothing(story: Story) -> None:
    instance = story.start()
    for number in range(3):
        story.execute("a", f"UPDATE orders SET n = {number}")
        instance.ticks(1)
        story.servers["a"].kill()
        story.servers["a"].start()
        until(lambda: instance.word() is not Word.BLOCKED, 30, "the return of a")
        instance.ticks(2)
    assert story.rewound() == {}


@contextmanager
def with_standby(story: Story, restart: Callable[[], object]) -> Iterator[PostgresServer]:
    """Node a has a standby, and its address names both."""
    second = make_standby(story.servers["a"], story.folder / "second", story.version, "second")
    second.start()
    first = story.servers["a"]
    story.fleet.dsns["a"] = (
        f"postgresql://postgres:{first.password()}@127.0.0.1:{first.port},127.0.0.1:{second.port}/postgres"
        "?target_session_attrs=read-write"
    )
    story.fleet.write("observe")
    restart()
    try:
        yield second
    finally:
        second.stop()


def _caught_up(story: Story) -> None:
    with psycopg.connect(story.fleet.dsns["a"], autocommit=True) as link, link.cursor() as cursor:
        at = position(cursor)
        wait_until(lambda: not not_replayed(link, at))


def test_a_failover_to_a_standby_that_has_everything_is_left_alone(story: Story) -> None:
    with with_standby(story, story.start) as second:
        assert story.instance is not None
        story.execute("a", "UPDATE orders SET n = 1")
        story.instance.ticks(2)
        _caught_up(story)
        story.servers["a"].kill()
        with psycopg.connect(second.dsn(), autocommit=True) as link:
            link.execute("SELECT pg_promote()")
        until(lambda: story.instance and story.instance.word() is not Word.BLOCKED, 60, "the failover")
        story.restart().ticks(3)
        assert story.rewound() == {}
        story.execute("a", "UPDATE orders SET n = 2")
        story.stop()


def test_a_failover_to_a_standby_that_lagged_is_found_however_much_it_has_written_since(story: Story) -> None:
    with with_standby(story, story.start) as second:
        assert story.instance is not None
        _caught_up(story)
        second.stop()  # cut off from its primary
        story.execute("a", "UPDATE orders SET n = 1")
        story.instance.ticks(2)
        story.stop()
        story.servers["a"].kill()
        second.start()
        with psycopg.connect(second.dsn(), autocommit=True) as link:
            link.execute("SELECT pg_promote()")
        story.execute("a", "CREATE TABLE filler AS SELECT n, repeat('x', 500) FROM generate_series(1, 20000) n")
        story.start()
        until(story.rewound, 30, "the discovery")
        assert "promoted from a standby that lacked" in story.rewound()["a"]
        until(lambda: story.state("a", 1) == ("fenced", 1, None, "rewound"), 30, "the fence")
        assert story.refusal("a", "UPDATE orders SET n = 2").sqlstate == "TB004"
        story.stop()
