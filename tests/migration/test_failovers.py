"""A node is replaced by a standby that lagged behind, in the middle of a switch; and commits of which nobody knows
whether they were applied. No acknowledged write that the source still has is lost; every tablet can be written to in
the end, or its migration says what is missing.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from balancer.clock import SystemClock
from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import MigrationMode, Node, Put, Tablet, Transaction
from balancer.directory.open import open_directory
from balancer.embedded.postgres import PostgresServer
from balancer.errors import Fenced, OutcomeUnknown, Refused, Unavailable
from balancer.features.reference.setup import adopt_reference
from balancer.features.tables.adopt import TableRequest
from balancer.migration import finish, switch
from balancer.migration.begin import begin_move
from balancer.migration.context import Context
from balancer.migration.journal import read_detail
from balancer.migration.progress import Observer
from balancer.migration.runner import Runner
from balancer.naming import parse_name
from balancer.nodes.session.connection import Address
from balancer.nodes.tablets.object_names import stream_name
from balancer.polling.poller import FootingNotes, Poller
from balancer.settings import MigrationSettings
from tests.support.cluster import AMPLE, Cluster, build, hash_table, hash_tablets, insert_rows
from tests.support.directed import LEAF, TABLET, Beside, complaints, tally
from tests.support.failing import Listener, end_sessions
from tests.support.lagging import Lagging, primary_and_standby
from tests.support.opening import connect
from tests.support.running import until
from tests.support.servers import Database, new_database, postgres
from tests.support.spy import Spy

pytestmark = pytest.mark.always

Factory = Callable[[PostgresServer], Database]
Make = Callable[[str, int], tuple[Cluster, Lagging]]
BOTH_MODES = pytest.mark.parametrize("mode", list(MigrationMode))
LOST = "does not have what the switch had brought there"


@pytest.fixture
def make(tmp_path: Path, server_folder: Path, postgres18: PostgresServer, database: Factory) -> Iterator[Make]:
    """A cluster of nodes a and b, of which one has a standby, of a given version."""
    with ExitStack() as stack:

        def made(node: str, version: int) -> tuple[Cluster, Lagging]:
            folder = server_folder / f"failovers-{tmp_path.name}"
            primary, second = stack.enter_context(primary_and_standby(folder, version))
            own = stack.enter_context(new_database(primary))
            other = "b" if node == "a" else "a"
            dsns = {name: own.dsn if name == node else database(postgres18).dsn for name in sorted((node, other))}
            tablets = hash_tablets(4, ["a"])
            cluster = build(tmp_path, dsns, hash_table(), tablets)
            insert_rows(cluster, tablets, range(1000))
            cluster.settings = replace(cluster.settings, **AMPLE)
            stack.callback(cluster.close)
            return cluster, Lagging(primary, second, cluster.dsns, node)

        yield made


def moving(
    cluster: Cluster, observer: Observer, mode: MigrationMode, directory: Directory | None = None
) -> tuple[Beside, Callable[[], None]]:
    """A move of the tablet from a to b in a thread, and what ends it."""
    directory = directory or cluster.directory()
    leadership = cluster.become_leader(directory)
    begun = begin_move(directory, leadership, TABLET, "b", mode=mode)
    runner = cluster.runner(directory, leadership, observer)
    return Beside(lambda: runner.run(begun.id)), lambda: runner.end(begun.id)


def stuck(running: Beside, listener: Listener, words: str, end: Callable[[], None]) -> None:
    """Waits until the migration waits for this, and ends it there."""
    until(lambda: running.over or any(words in waited for waited in listener.waited), words, 60)
    assert not running.over, (running.done, running.error)
    end()
    until(lambda: running.over, "the end")
    assert isinstance(running.error, Fenced)


# --- the target


@BOTH_MODES
@pytest.mark.parametrize("version", [15, 18])
def test_a_target_that_falls_back_to_an_earlier_switch_of_the_same_move_is_not_opened(
    make: Make, version: int, mode: MigrationMode
) -> None:
    cluster, target = make("b", version)
    counted = tally(cluster)
    listener = Listener()

    def go_back() -> None:
        end_sessions(cluster.dsns["a"])  # the first switch is not committed
        listener.work["entered:fencing"] = write

    def write() -> None:
        for _ in range(77):
            counted.write("a")
        listener.work["left:committing"] = target.fail_over

    listener.work |= {
        "left:sealing": target.leave_behind,
        "entered:committing": go_back,
    }
    running, end = moving(cluster, listener, mode)
    stuck(running, listener, LOST, end)
    assert counted.kept == 77
    assert cluster.query("a", f"SELECT n FROM {LEAF} WHERE id = {counted.key}") == [(77,)]
    counted.write("b")
    assert counted.kept == 77, "the target was opened"


@BOTH_MODES
def test_a_target_that_fails_over_without_loss_after_the_commit_is_opened(make: Make, mode: MigrationMode) -> None:
    cluster, target = make("b", 15)
    counted = tally(cluster)
    counted.write("a")
    running, _ = moving(cluster, Spy({"left:committing": target.fail_over_without_loss}), mode)
    assert running.result().state == "done"
    assert counted.faults() == []
    counted.write("b")
    assert counted.kept == 2


@BOTH_MODES
@pytest.mark.parametrize("left", ["entered:fencing", "entered:sealing"])
def test_a_target_that_fails_over_between_attach_and_commit_leaves_a_tablet_that_can_be_written_to(
    make: Make, mode: MigrationMode, left: str
) -> None:
    cluster, target = make("b", 18)
    counted = tally(cluster)

    def leave() -> None:
        target.leave_behind()
        for _ in range(5 if left == "entered:fencing" else 0):
            counted.write("a")

    running, _ = moving(cluster, Spy({left: leave, "entered:committing": target.fail_over}), mode)
    done = running.result()
    assert done.state in ("done", "failed"), done
    before = counted.kept
    counted.write("b" if done.state == "done" else "a")
    assert counted.kept == before + 1
    assert counted.faults() == []


def test_a_target_that_forgets_the_rows_of_a_copy_is_not_attached_by_whatever_session(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read-only: nothing is streamed, so there is no marker to miss."""
    cluster, target = make("b", 15)
    counted = tally(cluster)
    counted.write("a")
    rows = cluster.rows()["a"]
    attach, fences = switch._attach, []

    def on_a_new_session(ctx: Context, shapes: Any) -> None:
        fences.append(ctx.detail.fences)
        if len(fences) == 1:
            target.fail_over()
            ctx.links.control("b").close()
            ctx.messages.clear()  # they name what was prepared on the former session
            ctx.planned_on.clear()
        attach(ctx, shapes)

    monkeypatch.setattr(switch, "_attach", on_a_new_session)
    spy = Spy({"entered:copying": target.leave_behind})
    running, _ = moving(cluster, spy, MigrationMode.READ_ONLY)
    done = running.result()
    assert fences[0] == 1
    assert done.state in ("done", "failed"), done
    found = cluster.rows()
    assert {**found["a"], **found["b"]} == rows


@pytest.fixture
def forgetful(
    tmp_path: Path, server_folder: Path, postgres15: PostgresServer, database: Factory
) -> Iterator[tuple[Cluster, PostgresServer]]:
    """Node b is on a server of its own."""
    folder = server_folder / f"forgetful-{tmp_path.name}"
    with postgres(folder, 18) as server:
        tablets = hash_tablets(4, ["a"])
        with new_database(server) as own:
            cluster = build(tmp_path, {"a": database(postgres15).dsn, "b": own.dsn}, hash_table(), tablets)
            insert_rows(cluster, tablets, range(1000))
            cluster.settings = replace(cluster.settings, **AMPLE)
            yield cluster, server
            cluster.close()


def forget(cluster: Cluster) -> None:
    """From here on node b keeps nothing over a crash but what a commit has waited for."""
    with cluster.connect("b") as connection:
        row = connection.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'").fetchone()
    assert row is not None
    os.kill(int(str(row[0])), signal.SIGSTOP)


def crash(server: PostgresServer) -> None:
    server.kill()
    server.start()


def test_what_the_target_loses_before_attach_is_seen_on_whatever_session_attaches(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash takes away what the stream applied last, and the session with it; no later switch may rely on that."""
    counted = tally(cluster)
    attach, fences = switch._attach, []

    def after_a_loss(ctx: Context, shapes: Any) -> None:
        fences.append(ctx.detail.fences)
        if len(fences) == 1:
            with cluster.connect("b") as connection:
                connection.execute("SET session_replication_role TO replica")
                connection.execute(f"ALTER SUBSCRIPTION {stream_name(ctx.id)} DISABLE".encode())
                connection.execute(f"UPDATE {LEAF} SET n = 0 WHERE id = {counted.key}".encode())
                last = "DELETE FROM balancer.marker WHERE migration = %s AND number = %s"
                assert connection.execute(last, (ctx.id, ctx.detail.marker)).rowcount == 1
            assert ctx.opened is not None
            ctx.opened.roll_back()
            ctx.opened = None
        attach(ctx, shapes)

    monkeypatch.setattr(switch, "_attach", after_a_loss)
    spy = Spy({"entered:fencing": lambda: counted.write("a")})
    running, _ = moving(cluster, spy, MigrationMode.REPLICATE)
    done = running.result()
    assert counted.kept == 1
    # What was lost is not streamed again here, as it is after a real crash: the move is given up, not committed.
    assert fences == [1]
    assert "has lost changes that it had applied" in (read_detail(done).retreat + done.error)
    assert counted.faults() == []


def test_an_opening_that_a_crash_takes_away_is_made_again(
    forgetful: tuple[Cluster, PostgresServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, server = forgetful
    counted = tally(cluster)
    make_durable = finish._make_durable
    crashes: list[bool] = []

    def after_a_crash(ctx: Context) -> None:
        if not crashes:
            crashes.append(True)
            crash(server)
            ctx.links.close()
        make_durable(ctx)

    monkeypatch.setattr(finish, "_make_durable", after_a_crash)
    spy = Spy({"entered:opening": lambda: forget(cluster)})
    running, _ = moving(cluster, spy, MigrationMode.REPLICATE)
    assert running.result().state == "done"
    assert crashes
    counted.write("b")
    assert counted.kept == 1
    assert counted.faults() == []


# --- the target's standbys, before the former owner's rows are dropped

ONE_MOVE = MigrationMode.READ_ONLY
GONE = "has no standby connected"


def poll(cluster: Cluster) -> None:
    """As the leader does every few seconds: what it has seen is in the directory."""
    directory = cluster.directory()
    book = FootingNotes.load(directory, "shop")
    poller = Poller("", SystemClock(), 20.0, book=book)
    poller.poll(directory.snapshot(), {node: cluster.address(node) for node in cluster.dsns})
    poller.close()
    book.publish(directory, "shop")


@pytest.mark.parametrize("version", [15, 18])
def test_rows_stay_while_the_target_has_lost_a_standby_that_it_was_known_to_have(make: Make, version: int) -> None:
    cluster, target = make("b", version)
    rows = cluster.rows()
    poll(cluster)
    target.split()  # whoever decides about failovers has made another server the node; this one does not know
    poll(cluster)
    listener = Listener()
    running, end = moving(cluster, listener, ONE_MOVE)
    stuck(running, listener, GONE, end)
    kept = cluster.query("a", f"SELECT count(*) FROM {LEAF}")
    assert kept != [(0,)]
    assert {**cluster.rows()["a"], **cluster.rows()["b"]} == {**rows["a"], **rows["b"]}
    assert any(GONE in text for text in complaints(cluster))


def test_rows_go_once_a_known_standby_follows_again(make: Make) -> None:
    cluster, target = make("b", 15)
    poll(cluster)
    target.leave_behind()
    listener = Listener()
    running, _ = moving(cluster, listener, ONE_MOVE)
    until(lambda: running.over or any(GONE in waited for waited in listener.waited), GONE, 60)
    assert not running.over, (running.done, running.error)
    target.come_back()
    assert running.result().state == "done"
    assert complaints(cluster) == []


def test_rows_stay_while_two_servers_of_the_target_take_writes(make: Make) -> None:
    """Even if no poll has seen the standby: the address names both."""
    cluster, target = make("b", 15)
    cluster.dsns["b"] = target.both_hosts()
    target.split()
    listener = Listener()
    running, end = moving(cluster, listener, ONE_MOVE)
    stuck(running, listener, "both take writes", end)
    assert cluster.query("a", f"SELECT count(*) FROM {LEAF}") != [(0,)]


def test_a_standby_that_an_operator_has_given_up_is_not_waited_for(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, target = make("b", 15)
    poll(cluster)
    target.leave_behind()
    whole = Cluster.address
    monkeypatch.setattr(Cluster, "address", lambda self, node: replace(whole(self, node), has_standbys=False))
    running, _ = moving(cluster, Spy(), ONE_MOVE)
    assert running.result().state == "done"


def test_a_standby_that_is_configured_is_waited_for_unseen(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, target = make("b", 15)
    target.leave_behind()
    whole = Cluster.address
    monkeypatch.setattr(Cluster, "address", lambda self, node: replace(whole(self, node), has_standbys=True))
    listener = Listener()
    running, end = moving(cluster, listener, ONE_MOVE)
    stuck(running, listener, GONE, end)


# --- the source


@BOTH_MODES
@pytest.mark.parametrize("version", [15, 18])
def test_what_a_source_without_its_seal_has_taken_after_the_commit_is_kept(
    make: Make, version: int, mode: MigrationMode
) -> None:
    cluster, source = make("a", version)
    counted = tally(cluster)
    counted.write("a")

    def fail_over() -> None:
        source.fail_over()
        with cluster.connect("a") as connection:
            for _ in range(55):
                connection.execute(f"UPDATE orders SET n = n + 100 WHERE id = {counted.key}".encode())

    running, _ = moving(cluster, Spy({"entered:fencing": source.leave_behind, "left:committing": fail_over}), mode)
    done = running.result()
    assert done.state == "done"
    assert counted.faults() == []  # on the new owner
    kept = read_detail(done).kept
    assert "the server had gone back in time" in kept
    schema = kept.partition(":")[0]
    assert cluster.query("a", f"SELECT n FROM {schema}.orders_t2 WHERE id = {counted.key}") == [(5501,)]
    assert any(schema in text for text in complaints(cluster))


# --- commits of which nobody knows


class Unsure:
    """A directory whose answers to the commits that change an owner are given by a test: one function for each."""

    def __init__(self, inner: Directory, *answers: Callable[[Transaction], int]) -> None:
        self._inner, self._answers = inner, list(answers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self, transaction: Transaction) -> int:
        changed = [change.record for change in transaction.changes if isinstance(change, Put)]
        if self._answers and any(isinstance(record, Tablet) for record in changed):
            return self._answers.pop(0)(transaction)
        return self._inner.commit(transaction)


@contextmanager
def unsure(cluster: Cluster, *answers: Callable[[Directory, Transaction], int]) -> Iterator[Directory]:
    inner = cluster.directory()
    yield cast(Directory, Unsure(inner, *(lambda given, one=one: one(inner, given) for one in answers)))


def applied(directory: Directory, transaction: Transaction) -> int:
    directory.commit(transaction)
    raise OutcomeUnknown("the answer was lost")


def lost(directory: Directory, transaction: Transaction) -> int:
    raise OutcomeUnknown("the request was lost")


def denied(directory: Directory, transaction: Transaction) -> int:
    raise Refused("the directory denies it")


@BOTH_MODES
def test_a_commit_that_was_applied_is_believed_whatever_its_second_sending_is_told(
    cluster: Cluster, mode: MigrationMode
) -> None:
    counted = tally(cluster)
    counted.write("a")
    with unsure(cluster, applied, denied) as directory:
        running, _ = moving(cluster, Spy(), mode, directory)
        done = running.result()
    assert (done.state, done.error) == ("done", "")
    assert cluster.directory().snapshot().tablet(TABLET).node == "b"
    assert counted.faults() == []
    counted.write("b")
    assert counted.kept == 2
    assert complaints(cluster) == []


@BOTH_MODES
def test_a_commit_that_was_lost_and_then_denied_leaves_the_tablet_where_it_is(
    cluster: Cluster, mode: MigrationMode
) -> None:
    counted = tally(cluster)
    with unsure(cluster, lost, denied) as directory:
        running, _ = moving(cluster, Spy(), mode, directory)
        assert running.result().state == "failed"
    counted.write("a")
    assert counted.kept == 1
    assert counted.faults() == []
    assert complaints(cluster) == []


@BOTH_MODES
def test_a_commit_is_not_sent_again_once_the_source_may_have_been_written_to(
    cluster: Cluster, mode: MigrationMode
) -> None:
    counted = tally(cluster)

    def away(directory: Directory, transaction: Transaction) -> int:
        end_sessions(cluster.dsns["a"])
        with cluster.connect("a") as connection, connection.transaction():
            connection.execute(f"ALTER TABLE {LEAF} DISABLE TRIGGER ALL".encode())
            connection.execute(f"UPDATE {LEAF} SET n = n + 1 WHERE id = {counted.key}".encode())
            connection.execute(f"ALTER TABLE {LEAF} ENABLE TRIGGER ALL".encode())
        counted.kept += 1
        raise Unavailable("the directory is away")

    with unsure(cluster, away) as directory:
        running, _ = moving(cluster, Spy(), mode, directory)
        done = running.result()
    assert counted.kept == 1
    assert counted.faults() == [], done
    assert read_detail(done).kept == ""


# --- the home of a reference table


TOWNS = "CREATE TABLE public.towns (id bigint PRIMARY KEY, name text)"
REQUEST = TableRequest("shop", "towns", (parse_name("towns"),), "everywhere", (), "test")


class Home:
    """A reference table on two nodes, of which one has a standby."""

    def __init__(self, folder: Path, dsns: dict[str, str], stack: ExitStack) -> None:
        self.dsns = dsns
        self.directory = stack.enter_context(open_directory(f"sqlite://{folder}/directory.db", lease=10.0))
        connections = {name: stack.enter_context(connect(Address(name, dsn))) for name, dsn in dsns.items()}
        connections["a"].execute(TOWNS.encode())
        records = [Node(name, "shop", dsn) for name, dsn in dsns.items()]
        adopt_reference(REQUEST, self.directory, connections, records, "directory")
        leadership = self.directory.campaign("test", 20.0)
        assert leadership is not None
        self.leadership: Leadership = leadership

    def address(self, node: str) -> Address:
        return Address(node, self.dsns[node], cluster="directory")

    def write(self, node: str, number: int) -> bool:
        try:
            with psycopg.connect(self.dsns[node], autocommit=True) as connection:
                connection.execute("INSERT INTO towns VALUES (%s, 'a town')", (number,))
        except psycopg.Error:
            return False
        return True

    def towns(self, node: str, table: str = "public.towns") -> list[int]:
        with psycopg.connect(self.dsns[node], autocommit=True) as connection:
            return [number for (number,) in connection.execute(f"SELECT id FROM {table} ORDER BY id".encode())]

    def keep(self) -> None:
        from balancer.features.reference.keeper import ReferenceKeeper  # noqa: PLC0415
        from balancer.instruments import Instruments  # noqa: PLC0415
        from balancer.planner.metrics import Reporter  # noqa: PLC0415

        reporter = Reporter(Instruments())
        ReferenceKeeper(self.leadership, self.directory.snapshot, self.address, reporter).keep("shop")

    def moving(self, observer: Observer) -> tuple[Beside, Callable[[], None]]:
        tablet = self.directory.snapshot().tablets(self.directory.snapshot().table("towns").id)[0]
        begun = begin_move(self.directory, self.leadership, tablet.id, "b")
        settings = MigrationSettings(retire_grace=0.0, **AMPLE)
        runner = Runner(self.directory, self.leadership, self.address, settings, clock=SystemClock(), observer=observer)
        return Beside(lambda: runner.run(begun.id)), lambda: runner.end(begun.id)


@pytest.fixture
def home(
    tmp_path: Path, server_folder: Path, postgres18: PostgresServer, plain_database: Factory
) -> Iterator[Callable[[str], tuple[Home, Lagging]]]:
    with ExitStack() as stack:

        def made(node: str) -> tuple[Home, Lagging]:
            folder = server_folder / f"homes-{tmp_path.name}"
            primary, second = stack.enter_context(primary_and_standby(folder, 15))
            own = stack.enter_context(new_database(primary))
            other = "b" if node == "a" else "a"
            dsns = {node: own.dsn, other: plain_database(postgres18).dsn}
            world = Home(tmp_path, dsns, stack)
            assert world.write("a", 1)

            def has_copy() -> bool:
                world.keep()
                return world.towns("b") == [1]

            until(has_copy, "a copy")
            return world, Lagging(primary, second, world.dsns, node)

        yield made


def test_a_home_is_not_opened_on_a_copy_that_fell_back(home: Callable[[str], tuple[Home, Lagging]]) -> None:
    world, target = home("b")
    listener = Listener()

    def leave() -> None:
        target.leave_behind()
        assert world.write("a", 2)

    listener.work |= {"entered:fencing": leave, "left:committing": target.fail_over}
    running, end = world.moving(listener)
    stuck(running, listener, LOST, end)
    assert world.towns("a") == [1, 2]
    assert not world.write("b", 3)


def test_a_home_fails_over_without_loss_after_the_commit(home: Callable[[str], tuple[Home, Lagging]]) -> None:
    world, target = home("b")
    running, _ = world.moving(Spy({"left:committing": target.fail_over_without_loss}))
    assert running.result().state == "done"
    assert world.write("b", 2)
    assert world.towns("b") == [1, 2]


def test_what_a_former_home_without_its_seal_has_taken_is_kept(home: Callable[[str], tuple[Home, Lagging]]) -> None:
    world, source = home("a")

    def fail_over() -> None:
        source.fail_over()
        assert world.write("a", 2)

    running, _ = world.moving(Spy({"entered:fencing": source.leave_behind, "left:committing": fail_over}))
    done = running.result()
    assert done.state == "done"
    schema = read_detail(done).kept.partition(":")[0]
    assert world.towns("a", f"{schema}.towns") == [1, 2]
