"""Each step of the argument that a move rests on, tried at the very point where leaving it out would lose a write.

`tests/support/mutants.py` leaves the steps out one by one; these tests must then fail, with verification and without.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import sleep

import psycopg
import pytest

from balancer.directory.model import Migration, MigrationMode
from balancer.errors import Fenced
from balancer.migration.begin import begin_move
from balancer.migration.machine import State
from balancer.migration.runner import recover
from tests.support import nemeses
from tests.support.cluster import Cluster, build, hash_table, hash_tablets, insert_rows
from tests.support.crash_matrix import Victims
from tests.support.directed import LEAF, TABLET, Beside, Tally, complaints, move, tally
from tests.support.nemeses import ApplyWorker, EveryPoint, Sleeper
from tests.support.sampling import sampled
from tests.support.servers import new_database
from tests.support.spy import Spy

pytestmark = pytest.mark.always

HELD_BACK = ("left:draining", "entered:verifying", "entered:sealing", "entered:committing")


@pytest.fixture
def row(cluster: Cluster) -> Tally:
    return tally(cluster)


@pytest.fixture
def worker(cluster: Cluster) -> Iterator[ApplyWorker]:
    """What applies the stream on node b."""
    with ApplyWorker(cluster.dsns["b"]) as found:
        yield found


class Thawing(EveryPoint):
    """Freezes the stream at one point; it goes on where a fence was lifted, and where the rows are to be dropped."""

    def __init__(self, worker: ApplyWorker, point: str, work: Callable[[], object]) -> None:
        super().__init__(self._act)
        self._worker = worker
        self._point = point
        self._do = work

    def _act(self, point: str) -> None:
        if point == self._point:
            self._point = ""
            self._worker.stop()
            self._do()
        elif point in ("entered:catching_up", "entered:retiring", "entered:cancelling"):
            self._worker.resume()


@pytest.mark.parametrize("point", sampled((*HELD_BACK, "left:committing"), 2, "behind the fence"))
def test_behind_the_fence_a_write_is_refused_or_kept(
    cluster: Cluster, row: Tally, worker: ApplyWorker, point: str
) -> None:
    cluster.settings = replace(cluster.settings, write_pause_budget=5.0, fence_deadline=20.0)
    done = move(cluster, Thawing(worker, point, row.write_everywhere))
    assert (done.state, done.error) == ("done", "")
    assert row.faults() == []
    assert complaints(cluster) == []


@pytest.mark.parametrize("mode", list(MigrationMode))
def test_at_every_point_a_write_is_refused_or_kept(cluster: Cluster, row: Tally, mode: MigrationMode) -> None:
    cluster.settings = replace(cluster.settings, write_pause_budget=5.0, fence_deadline=20.0)
    points = EveryPoint(lambda _: row.write_everywhere())
    done = move(cluster, points, mode)
    assert (done.state, done.error) == ("done", "")
    assert row.faults() == []
    assert row.kept >= 3, "before the fence and after the opening writes are taken"
    assert len(points.points) > 15
    assert complaints(cluster) == []


def test_the_switch_waits_for_what_is_still_in_the_stream(cluster: Cluster, row: Tally, worker: ApplyWorker) -> None:
    done = move(cluster, Thawing(worker, "entered:fencing", lambda: row.write("a")))
    assert (done.state, done.error) == ("done", "")
    assert row.kept == 1
    assert row.faults() == []


def test_a_sealed_fence_does_not_expire(cluster: Cluster, row: Tally, worker: ApplyWorker) -> None:
    cluster.settings = replace(cluster.settings, fence_deadline=0.6)
    passed = f"SELECT clock_timestamp() > deadline FROM balancer.tablet WHERE id = {TABLET}"

    def write_late() -> None:
        nemeses.until(lambda: cluster.query("a", passed) == [(True,)], "the deadline")
        row.write_everywhere()

    done = move(cluster, Thawing(worker, "entered:committing", write_late))
    assert (done.state, done.error) == ("done", "")
    assert row.faults() == []


class Died(BaseException):
    """What the runner does not catch: its daemon is gone, and its sessions with it."""


@pytest.mark.parametrize("point", ["entered:committing", "entered:opening"])
def test_a_sealed_fence_outlives_its_daemon(cluster: Cluster, row: Tally, point: str) -> None:
    """No session holds the partition any more, and the deadline passes: before the commit, or after it."""
    cluster.settings = replace(cluster.settings, fence_deadline=0.6)
    passed = f"SELECT clock_timestamp() > deadline FROM balancer.tablet WHERE id = {TABLET}"

    def die() -> None:
        raise Died

    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    begun = begin_move(directory, leadership, TABLET, "b")
    with pytest.raises(Died):
        cluster.runner(directory, leadership, Spy({point: die})).run(begun.id)
    leadership.resign()
    nemeses.until(lambda: cluster.query("a", passed) == [(True,)], "the deadline")
    row.write_everywhere()
    leadership = cluster.become_leader(directory)
    runner = cluster.runner(directory, leadership)
    assert [runner.run(one.id).state for one in recover(directory, leadership)] == ["done"]
    assert row.faults() == []


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
def test_who_proves_its_tablet_goes_on_at_the_new_owner_although_the_daemon_died(
    cluster: Cluster, row: Tally, isolation: str
) -> None:
    """Right after the opening: the guard is switched off and still there."""

    def die() -> None:
        raise Died

    with pytest.raises(Died):
        move(cluster, {"entered:retiring": die})
    with cluster.connect("b") as connection:
        connection.execute(f"BEGIN ISOLATION LEVEL {isolation}".encode())
        connection.execute(f"CALL balancer.hold({TABLET}, 2, true)".encode())
        connection.execute(f"UPDATE orders SET n = 7 WHERE id = {row.key}".encode())
        connection.execute("COMMIT")
    assert cluster.query("b", f"SELECT n FROM {LEAF} WHERE id = {row.key}") == [(7,)]


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
def test_who_proves_its_tablet_goes_on_behind_a_fence_that_was_lifted(
    cluster: Cluster, row: Tally, isolation: str
) -> None:
    """The switch took too long, and comes again: until then the fence is switched off and still there."""
    cluster.settings = replace(cluster.settings, write_pause_budget=0.2)
    answers: list[int] = []

    def act() -> None:
        with cluster.connect("a") as connection:
            connection.execute(f"BEGIN ISOLATION LEVEL {isolation}".encode())
            connection.execute(f"CALL balancer.hold({TABLET}, 1, true)".encode())
            answers.append(connection.execute(f"UPDATE orders SET n = 7 WHERE id = {row.key}".encode()).rowcount)
            connection.execute("COMMIT")

    class Second(EveryPoint):
        def entered(self, migration: Migration, state: State) -> None:
            super().entered(migration, state)
            if state is State.FENCING and self.points.count("entered:fencing") == 2:
                act()
            if state is State.DRAINING and self.points.count("entered:fencing") == 1:
                sleep(0.3)

    assert move(cluster, Second(lambda _: None)).state == "done"
    assert answers == [1]


def test_a_fence_that_expired_is_not_sealed(cluster: Cluster, row: Tally, worker: ApplyWorker) -> None:
    # The budget must not decide it: a budget longer than the deadline has the effect of a clock that jumps.
    cluster.settings = replace(cluster.settings, write_pause_budget=5.0, fence_deadline=0.3)

    def write_when_expired() -> None:
        def let_through() -> bool:
            row.write("a")
            return row.kept > 0

        nemeses.until(let_through, "a write that the expired fence lets through")

    done = move(cluster, Thawing(worker, "entered:sealing", write_when_expired))
    assert (done.state, done.error) == ("done", "")
    assert row.kept == 1
    assert row.faults() == []


@pytest.mark.parametrize("point", ["left:copying", "entered:verifying", "entered:sealing"])
def test_a_clock_that_jumps_and_jumps_back_hides_no_write_of_a_read_only_move(
    cluster: Cluster, row: Tally, point: str
) -> None:
    """Its copy is made behind the fence, and no session holds the partition meanwhile."""
    cluster.settings = replace(cluster.settings, read_only_fence_deadline=20.0)

    def jump() -> None:
        with cluster.connect("a") as connection:
            nemeses.lift_and_put_back(connection, LEAF, lambda: row.write("a"))

    done = move(cluster, {point: jump}, MigrationMode.READ_ONLY)
    assert done.state in ("done", "failed")
    assert row.kept == 1
    assert row.faults() == []


def test_a_clock_that_jumps_and_jumps_back_hides_no_write(cluster: Cluster, row: Tally, worker: ApplyWorker) -> None:
    cluster.settings = replace(cluster.settings, write_pause_budget=5.0, fence_deadline=20.0)

    def jump() -> None:
        with cluster.connect("a") as connection:
            nemeses.lift_and_put_back(connection, LEAF, lambda: row.write("a"))

    done = move(cluster, Thawing(worker, "entered:sealing", jump))
    assert (done.state, done.error) == ("done", "")
    assert row.answers == ["55P03"]  # a session holds the partition from the fence on
    assert row.faults() == []


def test_a_writer_that_the_fence_waited_for_is_in_the_copy(cluster: Cluster, row: Tally, worker: ApplyWorker) -> None:
    """Its commit is before the fence's, so the marker must be behind it in the stream."""
    cluster.settings = replace(cluster.settings, write_pause_budget=1.0, lock_timeout=5.0, fence_deadline=20.0)
    writer = psycopg.connect(cluster.dsns["a"])
    waiting: list[Beside] = []

    def commit_late() -> None:
        with cluster.connect("a") as observer, cluster.connect("b") as target:
            nemeses.until(lambda: nemeses.waits_for_lock(observer, LEAF), "the fence's wait for the writer")
            known = "SELECT coalesce(max(number), 0) FROM balancer.marker"
            before = observer.execute(known).fetchone()
            # If the marker has been sent already, it has arrived by then.
            nemeses.came(lambda: target.execute(known).fetchone() == before, 1.0)
            worker.stop()
            writer.commit()
            row.kept += 1

    def write() -> None:
        if not waiting:
            writer.execute(f"UPDATE orders SET n = n + 1 WHERE id = {row.key}".encode())
            waiting.append(Beside(commit_late))  # type: ignore[arg-type]

    def at(point: str) -> None:
        if point == "entered:fencing":
            write()
        elif point in ("entered:catching_up", "entered:retiring", "entered:cancelling"):
            worker.resume()

    done = move(cluster, EveryPoint(at))
    writer.close()
    assert (done.state, done.error) == ("done", "")
    assert row.kept == 1
    assert row.faults() == []


def test_rows_are_copied_at_the_snapshot_of_the_slot(cluster: Cluster, row: Tally) -> None:
    """A slot waits for open transactions. What commits meanwhile is in its snapshot, and not in its stream."""
    blocker = psycopg.connect(cluster.dsns["a"])
    asked = "SELECT count(*) FROM pg_locks WHERE locktype IN ('transactionid', 'virtualxid') AND NOT granted"

    def write_meanwhile() -> None:
        with cluster.connect("a") as observer:
            nemeses.until(
                lambda: observer.execute(asked.encode()).fetchone() != (0,), "the slot's wait for the open transaction"
            )
            row.write("a")
            blocker.commit()

    def block() -> None:
        blocker.execute("SELECT pg_current_xact_id()")
        Beside(write_meanwhile)  # type: ignore[arg-type]

    done = move(cluster, {"entered:copying": block})
    blocker.close()
    assert (done.state, done.error) == ("done", "")
    assert row.kept == 1
    assert row.faults() == []


def test_a_leader_that_slept_does_no_harm_on_a_node(cluster: Cluster, row: Tally) -> None:
    """It wakes up in `retiring`, when the tablet has come back to the node that it means to empty."""
    first = cluster.directory()
    sleeper = Sleeper(cluster.become_leader(first))

    def succeed() -> None:
        sleeper.fall_asleep()
        second = cluster.directory()
        leadership = cluster.become_leader(second)
        runner = cluster.runner(second, leadership)
        assert [runner.run(one.id).state for one in recover(second, leadership)] == ["done"]
        assert runner.run(begin_move(second, leadership, TABLET, "a").id).state == "done"
        row.write("a")

    begun = begin_move(first, sleeper.leadership, TABLET, "b")
    runner = cluster.runner(first, sleeper.leadership, Spy({"entered:retiring": succeed}))
    with pytest.raises(Fenced):
        runner.run(begun.id)
    row.write("a")
    row.write("a", LEAF)
    assert row.kept == 3
    assert row.faults() == []
    assert complaints(cluster) == []


def test_a_leader_that_slept_cannot_commit(cluster: Cluster, row: Tally) -> None:
    """Its successor has lifted the fence, and writers went on."""
    first = cluster.directory()
    sleeper = Sleeper(cluster.become_leader(first))

    def succeed() -> None:
        sleeper.fall_asleep()
        second = cluster.directory()
        leadership = cluster.become_leader(second)
        runner = cluster.runner(second, leadership)
        (found,) = recover(second, leadership)
        runner.cancel(found.id)
        assert runner.run(found.id).state == "cancelled"
        row.write("a")

    begun = begin_move(first, sleeper.leadership, TABLET, "b")
    runner = cluster.runner(first, sleeper.leadership, Spy({"entered:committing": succeed}))
    with pytest.raises(Fenced):
        runner.run(begun.id)
    assert cluster.directory().snapshot().tablet(TABLET).node == "a"
    row.write("a")
    assert row.kept == 2
    assert row.faults() == []
    assert complaints(cluster) == []


@pytest.fixture
def mortal(tmp_path: Path, killable: Victims) -> Iterator[Cluster]:
    """The same cluster on servers that may be killed."""
    with new_database(killable.nodes["a"]) as a, new_database(killable.nodes["b"]) as b:
        tablets = hash_tablets(4, ["a"])
        made = build(tmp_path, {"a": a.dsn, "b": b.dsn}, hash_table(), tablets)
        insert_rows(made, tablets, range(1000))
        yield made
        made.close()


def test_what_was_committed_survives_the_crash_of_both_nodes(mortal: Cluster, killable: Victims) -> None:
    """Replication applies without waiting for the disk, and here nothing else makes the server write its log."""
    row = tally(mortal)
    a, b = killable.nodes["a"], killable.nodes["b"]
    port = a.port

    def kill() -> None:
        b.kill()
        a.kill()
        b.start()

    def at(point: str) -> None:
        if point == "entered:fencing":
            row.write("a")
        elif point == "left:committing":
            kill()
        elif point == "left:opening":
            a.start()
            assert a.port == port

    with nemeses.settings(b, wal_writer_delay="10s"), nemeses.settings(a, wal_writer_delay="10s"):
        done = move(mortal, EveryPoint(at))
    assert (done.state, done.error) == ("done", "")
    assert row.kept == 1
    assert row.faults() == []


def test_a_row_that_is_changed_on_its_way_ends_the_move(cluster: Cluster, row: Tally) -> None:
    """The bulk is compared at the snapshot of the copy."""
    spoil = (
        "CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN IF NEW.id = {row.key} THEN NEW.n := 77; END IF; RETURN NEW; END $$;"
        f"CREATE TRIGGER spoil BEFORE INSERT ON {LEAF} FOR EACH ROW EXECUTE FUNCTION spoil();"
        f"ALTER TABLE {LEAF} ENABLE ALWAYS TRIGGER spoil"
    )

    def meddle() -> None:
        with cluster.connect("b") as connection:
            connection.execute(spoil.encode())

    done = move(cluster, {"left:preparing": meddle})
    assert done.state == "failed"
    assert row.faults() == []
    assert cluster.rows()["b"] == {}
