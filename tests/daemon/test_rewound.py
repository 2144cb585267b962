"""Nodes that go back in time, on real servers that are really taken back: what they claim is fenced within a poll, in
every mode, and an operator is told what to do. A failover that loses nothing is left alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest

from balancer.embedded.postgres import PostgresServer
from balancer.nodes.tablets.leftovers import not_replayed, position
from balancer.planner.bundle_state import StateWord
from tests.daemon.test_daemon import Instance
from tests.support.commands import Result
from tests.support.commands import balancer_here as balancer
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

    def start(self, tick: str = "300ms") -> Instance:
        self.instance = Instance(self.fleet.write_daemon(tick=tick))
        self.instance.start()
        until(self.instance.leads, 60, "an election")
        for _ in range(3):
            before = self.instance.state()
            self.instance.daemon.run_soon("shop")
            until(lambda before=before: self.instance and self.instance.state() is not before, 30, "a tick")  # type: ignore[misc]
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

    def balancer(self, *arguments: str) -> Result:
        """A command, as an operator gives it."""
        return balancer(*arguments, "--config", self.fleet.config)

    def move_to_b(self) -> None:
        """Tablet 1, with its rows dropped on a, unless the grace is long."""
        assert self.instance is not None
        self.instance.give("move", tablet="1", node="b")
        until(lambda: self.state("b", 1) == ("owned", 2, None, None), 60, "the opening")
        until(lambda: self.state("a", 1) == ("moved", 2, "b", None), 60, "the end of the switch")

    def unfinished(self) -> list[str]:
        assert self.instance is not None
        records = self.instance.daemon.directory().snapshot().migrations.values()
        return [record.id for record in records if not record.finished]

    def tablets(self) -> set[int]:
        with self.fleet.directory() as directory:
            snapshot = directory.snapshot()
            return {tablet.id for table in snapshot.tables for tablet in snapshot.tablets(table)}

    def rewound(self) -> dict[str, str]:
        with self.fleet.directory() as directory:
            return {node.id: node.rewound for node in directory.snapshot().nodes.values() if node.rewound}


@pytest.fixture(params=[15, 18], ids=["postgres15", "postgres18"])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@dataclass(frozen=True)
class Pair:
    """Two servers that are made once, and are as good as new at the beginning of each test."""

    folder: Path
    servers: dict[str, PostgresServer]

    @classmethod
    def make(cls, folder: Path, version: int) -> "Pair":
        folder.mkdir()
        folder.chmod(0o755)
        made = cls(folder, {name: postgres(folder / name, version) for name in ("a", "b")})
        for name, server in made.servers.items():
            server.start()
            server.stop()
            copy_folder(server, made.folder / f"new-{name}")
        return made

    @contextmanager
    def running(self) -> Iterator[dict[str, PostgresServer]]:
        try:
            for name, server in self.servers.items():
                restore_folder(server, self.folder / f"new-{name}")
                server.start()
            yield dict(self.servers)
        finally:
            for server in self.servers.values():
                server.stop()


@pytest.fixture(scope="module")
def pairs(server_folder: Path) -> Callable[[int], Pair]:
    return cache(lambda version: Pair.make(server_folder / f"rewound-{version}", version))


@pytest.fixture
def story(version: int, pairs: Callable[[int], Pair], server_folder: Path, tmp_path: Path) -> Iterator[Story]:
    folder = server_folder / f"rewound-{tmp_path.name}"
    folder.mkdir()
    folder.chmod(0o755)
    with pairs(version).running() as servers:
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
    until(lambda: instance.word() is not StateWord.BLOCKED, 30, "the return of a")
    story.move_to_b()
    until(lambda: not story.unfinished(), 60, "its end")
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
    assert story.refusal("a", "CALL balancer.hold(2, 1, true)").sqlstate == "TB004"
    assert story.refusal("a", "TRUNCATE orders_t2").sqlstate == "TB004"
    assert instance.word() is StateWord.BLOCKED
    assert "node a is not trusted: it has gone back in time" in instance.sentence()
    assert "`balancer node rejoin a --dry-run`" in instance.sentence()


def test_an_owner_that_went_back_although_nothing_moved_is_closed_until_the_loss_is_accepted(story: Story) -> None:
    instance = story.start()
    backup = story.back_up("a")
    story.execute("a", "UPDATE orders SET n = 1")
    until(lambda: instance.word() is not StateWord.BLOCKED, 30, "the return of a")
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
    dry = story.balancer("node", "rejoin", "a", "--dry-run")
    assert dry.code == 0, dry.err
    assert "node a has gone back in time: its log ends" in dry.out
    assert "in any of its 4 tablets" in dry.out
    assert "opened again: 4 tablets that are closed now" in dry.out
    assert story.rewound(), "a dry run changes nothing"
    refused = story.balancer("node", "rejoin", "a")
    assert (refused.code, "use --accept-loss" in refused.err) == (4, True)
    assert f"{story.rewound()['a']}" in story.balancer("status").out
    assert "by hand: balancer node rejoin a --dry-run" in story.balancer("doctor").out
    assert instance.metric("balancer_node_rewound", bundle="shop", node="a") == 1
    accepted = story.balancer("node", "rejoin", "a", "--accept-loss")
    assert accepted.code == 0, accepted.err
    assert "its 4 tablets are opened after the next poll" in accepted.out
    until(lambda: all(story.state("a", one) == ("owned", 1, None, None) for one in range(1, 5)), 30, "the opening")
    story.execute("a", "UPDATE orders SET n = 2")
    story.execute("a", "CALL balancer.hold(2, 1, true)")
    instance.ticks(3)
    assert story.rewound() == {}
    assert instance.word() is StateWord.BALANCED, instance.sentence()
    assert instance.metric("balancer_node_rewound", bundle="shop", node="a") == 0
    assert story.balancer("doctor").out == "nothing is wrong\n"
    assert story.balancer("node", "rejoin", "a", "--accept-loss").code == 4


def test_a_target_that_went_back_after_the_rows_were_dropped_is_named(story: Story) -> None:
    instance = story.start()
    backup = story.back_up("b")
    until(lambda: instance.word() is not StateWord.BLOCKED, 30, "the return of b")
    story.move_to_b()
    until(lambda: not story.unfinished(), 60, "its end")
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
    first = story.balancer("node", "rejoin", "b", "--accept-loss")
    assert first.err == "1 tablets are not there at all (1): `balancer tablet lost 1` comes first\n"
    seen = story.balancer("tablet", "lost", "1")
    assert seen.out == ("tablet 1 belongs to node b with epoch 2\nnode a: moved, epoch 2, no rows\n"), seen.err
    no_copy = story.balancer("tablet", "lost", "1", "--take-from", "a", "--accept-loss")
    assert (no_copy.code, "node a has no copy of tablet 1" in no_copy.err) == (4, True)
    assert story.balancer("tablet", "lost", "1", "--recreate-empty-on", "a").code == 4, "the loss must be accepted"
    made = story.balancer("tablet", "lost", "1", "--recreate-empty-on", "a", "--accept-loss")
    assert made.code == 0, made.err
    assert "given up: all its rows" in made.out
    until(lambda: story.state("a", 1) == ("owned", 3, None, None), 30, "the opening")
    story.execute(
        "a",
        "INSERT INTO orders_t1 SELECT n FROM generate_series(1, 400) n"
        " WHERE satisfies_hash_partition('orders'::regclass, 4, 0, n::bigint)",
    )
    assert story.balancer("node", "rejoin", "b", "--accept-loss").code == 0
    instance.ticks(4)
    assert instance.word() is StateWord.BALANCED, instance.sentence()
    assert story.balancer("tablet", "lost", "1", "--recreate-empty-on", "b", "--accept-loss").code == 4, (
        "it is not lost"
    )
    assert story.balancer("doctor").out == "nothing is wrong\n"


def test_what_the_former_owner_still_has_is_kept_and_can_be_taken(story: Story) -> None:
    story.fleet.write("observe", migration=SWIFT.replace('"0s"', '"6s"'))
    instance = story.start()
    backup = story.back_up("b")
    until(lambda: instance.word() is not StateWord.BLOCKED, 30, "the return of b")
    rows = story.execute("a", "SELECT count(*) FROM orders_t1")[0][0]
    story.move_to_b()
    assert story.unfinished(), "its grace is not over"
    story.take_back("b", backup)
    until(story.rewound, 30, "the discovery")
    until(lambda: not story.unfinished(), 30, "the end of the move, or the rows would be dropped")
    assert story.execute("a", "SELECT count(*) FROM orders_t1") == [(rows,)]
    assert f"node a: moved, epoch 2, {rows} rows" in story.balancer("tablet", "lost", "1", "--dry-run").out
    taken = story.balancer("tablet", "lost", "1", "--take-from", "a", "--accept-loss")
    assert taken.code == 0, taken.err
    until(lambda: story.state("a", 1) == ("owned", 3, None, None), 30, "the opening")
    assert story.execute("a", "SELECT count(*) FROM orders") == [(400,)]
    story.execute("a", "UPDATE orders SET n = 5")
    story.execute("a", "CALL balancer.hold(1, 3, true)")
    assert story.balancer("node", "rejoin", "b", "--accept-loss").code == 0
    instance.ticks(4)
    assert instance.word() is StateWord.BALANCED, instance.sentence()


def test_a_target_that_went_back_by_less_than_the_time_between_two_polls_is_found(story: Story) -> None:
    story.start()
    story.stop()
    backup = story.back_up("b")
    story.start(tick="1h")
    story.move_to_b()  # no poll sees b after this
    until(lambda: not story.unfinished(), 60, "its end")
    story.stop()
    story.take_back("b", backup)
    story.execute("b", "CREATE TABLE filler AS SELECT n, repeat('x', 500) FROM generate_series(1, 20000) n")
    story.start()
    until(story.rewound, 30, "the discovery")
    assert story.rewound() == {"b": "it has forgotten tablet 1, which it had with epoch 2"}


@pytest.mark.parametrize("operation", ["split", "merge"])
def test_a_node_that_went_back_past_a_reshard_gets_its_former_tablets_again(story: Story, operation: str) -> None:
    """The directory has tablets that it does not know, and it has others that the directory does not know any more."""
    instance = story.start()
    row = story.id_in("a", 1)
    backup = story.back_up("a")
    until(lambda: instance.word() is not StateWord.BLOCKED, 30, "the return of a")
    if operation == "split":
        instance.give("split", tablet="1")
    else:
        instance.give("merge", tablets=["1", "2"])
    until(lambda: len(story.tablets()) == (5 if operation == "split" else 3), 60, "the reshard")
    until(lambda: not story.unfinished(), 60, "its end")
    made = max(story.tablets())
    story.stop()
    story.take_back("a", backup)
    story.start()
    until(story.rewound, 30, "the finding")
    until(lambda: (story.state("a", 1) or ("",))[0] == "fenced", 30, "the closing")

    shown = story.balancer("tablet", "lost", str(made))
    assert "node a has tablet 1, from which it was made, with" in shown.out
    assert "--former-on a" in shown.out
    refused = story.balancer("tablet", "lost", str(made), "--former-on", "a")
    assert "--accept-loss" in refused.err
    assert story.balancer("tablet", "lost", "4", "--former-on", "a", "--accept-loss").code != 0
    done = story.balancer("tablet", "lost", str(made), "--former-on", "a", "--accept-loss")
    assert done.code == 0, done.err
    assert story.tablets() == {1, 2, 3, 4}
    assert story.balancer("node", "rejoin", "a", "--accept-loss").code == 0
    until(lambda: (story.state("a", 1) or ("",))[0] == "owned", 30, "the opening")
    story.execute("a", f"UPDATE orders SET n = 5 WHERE id = {row}")
    assert story.execute("a", "SELECT count(*) FROM orders") == [(400,)]
    until(lambda: story.balancer("doctor").code == 0, 30, "a content doctor")


def test_a_node_that_is_gone_for_good_is_given_up(story: Story) -> None:
    instance = story.start()
    story.move_to_b()
    until(lambda: not story.unfinished(), 60, "its end")
    story.servers["b"].kill()
    until(lambda: instance.word() is StateWord.BLOCKED, 30, "the death of b")
    early = story.balancer("tablet", "lost", "1", "--recreate-empty-on", "a", "--accept-loss")
    assert (early.code, "see `balancer node lost`" in early.err) == (4, True)
    dry = story.balancer("node", "lost", "b", "--dry-run")
    assert "given up: 1 tablets on node b" in dry.out, dry.err
    assert story.balancer("node", "lost", "b").code == 4
    assert story.balancer("node", "lost", "b", "--accept-loss").code == 0
    assert story.balancer("tablet", "lost", "1", "--recreate-empty-on", "b", "--accept-loss").code == 4
    made = story.balancer("tablet", "lost", "1", "--recreate-empty-on", "a", "--accept-loss")
    assert made.code == 0, made.err
    until(lambda: story.state("a", 1) == ("owned", 3, None, None), 30, "the opening")
    instance.ticks(3)
    assert instance.word() is StateWord.BALANCED, instance.sentence()
    story.servers["b"].start()
    until(story.rewound, 30, "the return of b, with an old claim")
    until(lambda: story.state("b", 1) == ("moved", 3, "a", None), 30, "the fence")


def test_a_crash_and_a_restart_lose_nothing(story: Story) -> None:
    instance = story.start()
    for number in range(3):
        story.execute("a", f"UPDATE orders SET n = {number}")
        instance.ticks(1)
        story.servers["a"].kill()
        story.servers["a"].start()
        until(lambda: instance.word() is not StateWord.BLOCKED, 30, "the return of a")
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
        until(lambda: story.instance and story.instance.word() is not StateWord.BLOCKED, 60, "the failover")
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
