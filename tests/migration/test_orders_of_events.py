"""Events at exact points of a migration, each of which once lost a row, hid one or left a tablet without an owner."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any

import psycopg
import pytest

from balancer.cli.moves import migration_documents
from balancer.directory.contract import Directory
from balancer.directory.model import Migration, MigrationKind, MigrationMode, TabletState
from balancer.embedded.postgres import PostgresServer
from balancer.features.repair.doctor import examine
from balancer.migration import copy as chunk_copy
from balancer.migration import replay, swap
from balancer.migration.begin import begin_move
from balancer.migration.context import Context
from balancer.migration.journal import read_detail
from balancer.migration.machine import State, Track, path, track_of
from balancer.nodes.tablets import mirror
from balancer.policies.keyspace.keys import KeyType, encode_key
from tests.support.cluster import (
    AMPLE,
    Cluster,
    build,
    hash_table,
    hash_tablets,
    insert_rows,
    range_table,
    range_tablets,
)
from tests.support.refusals import refused_with
from tests.support.resharding import begin_merge, begin_split
from tests.support.running import until
from tests.support.sampling import crossed, sampled
from tests.support.servers import Database, new_database, postgres
from tests.support.spy import Spy
from tests.support.standby import standby

pytestmark = pytest.mark.always

Factory = Callable[[PostgresServer], Database]
Work = Mapping[str, Callable[[], object]]
NOTE = """
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO public.audit VALUES (TG_OP); RETURN NULL; END $$
"""


@pytest.fixture
def alone(tmp_path: Path, any_postgres: PostgresServer, database: Factory) -> Iterator[Cluster]:
    """One node with two vbuckets, each version of the server in turn."""
    tablets = hash_tablets(2, ["a"])
    made = build(tmp_path, {"a": database(any_postgres).dsn}, hash_table(), tablets)
    insert_rows(made, tablets, range(1000))
    made.settings = replace(made.settings, **AMPLE)
    yield made
    made.close()


def start(
    cluster: Cluster, work: Work | None = None, operation: str = "move", mode: MigrationMode = MigrationMode.REPLICATE
) -> Migration:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    if operation == "move":
        begun = begin_move(directory, leadership, 2, "b", mode=mode)
    elif operation == "split":
        begun = begin_split(directory, leadership, 2, mode=mode)
    else:
        begun = begin_merge(directory, leadership, [1, 2], mode=mode)
    return cluster.runner(directory, leadership, Spy(work)).run(begun.id)


def findings(cluster: Cluster) -> list[str]:
    return [finding.text for finding in examine(cluster.directory(), cluster.address)]


@contextmanager
def beside(work: Callable[[], object]) -> Iterator[None]:
    """Runs it in a thread; raises what it raised when the block is left."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()
    if raised:
        raise raised[0]


# --- a write by the partition's own name


LOCKED = {"mirror": (mirror, "start"), "swap": (swap, "_exchange")}


@pytest.mark.parametrize("where", LOCKED)
@pytest.mark.parametrize("statement", ["DELETE FROM orders_t2", "TRUNCATE orders_t2", "UPDATE orders_t2 SET n = 7"])
def test_while_the_mirror_begins_or_the_swap_is_made_no_write_by_a_partition_s_name_gets_in(
    alone: Cluster, statement: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[str | None] = []
    module, name = LOCKED[where]
    real = getattr(module, name)

    def meanwhile(*arguments: Any, **named: Any) -> None:
        with alone.connect("a") as connection:
            connection.execute("SET lock_timeout TO '50ms'")
            try:
                connection.execute(statement.encode())
            except psycopg.Error as error:
                answers.append(error.sqlstate)
            else:
                answers.append(None)
        real(*arguments, **named)

    monkeypatch.setattr(module, name, meanwhile)
    assert start(alone, operation="split").state == "done"
    assert answers == ["55P03"]
    assert len(alone.rows()["a"]) == 1000


@pytest.mark.parametrize("operation", ["split", "merge"])
@pytest.mark.parametrize("layout", ["hash", "range"])
def test_deletes_by_partition_and_root_stay_deleted(
    tmp_path: Path, any_postgres: PostgresServer, database: Factory, layout: str, operation: str
) -> None:
    if layout == "hash":
        table, tablets = hash_table(), hash_tablets(2, ["a"])
    else:
        table, tablets = range_table(), range_tablets([1500], ["a"])
    cluster = build(tmp_path, {"a": database(any_postgres).dsn}, table, tablets)
    insert_rows(cluster, tablets, range(3000))
    cluster.settings = replace(cluster.settings, **AMPLE)
    deleted: set[int] = set()
    odd: list[psycopg.Error] = []
    stop = threading.Event()

    def delete(part: int, name: str) -> None:
        ids = [int(str(i)) for (i,) in cluster.query("a", f"SELECT id FROM orders_t{part} WHERE id % 2 = {part - 1}")]
        with cluster.connect("a") as connection:
            for number in ids:
                if stop.is_set():
                    return
                try:
                    done = connection.execute(f"DELETE FROM {name} WHERE id = {number}".encode()).rowcount
                except psycopg.Error as error:
                    if refused_with(error) not in ("TB002", "42P01"):
                        odd.append(error)
                    return
                if done:
                    deleted.add(number)

    threads = [
        threading.Thread(target=delete, args=(part, name)) for part in (1, 2) for name in (f"orders_t{part}", "orders")
    ]
    for thread in threads:
        thread.start()
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    runner = cluster.runner(directory, leadership)
    if operation == "split":
        cuts = [] if layout == "hash" else [encode_key((KeyType.BIGINT,), (2000,))]
        done = runner.run(begin_split(directory, leadership, 2, cuts).id)
    else:
        done = runner.run(begin_merge(directory, leadership, [1, 2]).id)
    stop.set()
    for thread in threads:
        thread.join()
    assert (done.state, done.error) == ("done", "")
    assert not odd
    assert deleted
    assert deleted.isdisjoint(cluster.rows()["a"])
    cluster.close()


# --- DDL at every point


def points(track: Track) -> list[str]:
    states = [state for state in path(track) if state is not State.DONE]
    return [f"{word}:{state}" for state in states for word in ("entered", "left")]


CHANGES = {
    "type": "ALTER TABLE orders ALTER COLUMN n TYPE numeric USING n + 1000",
    "column": "ALTER TABLE orders ADD COLUMN fresh bigint DEFAULT 1000",
}


WAYS = [
    (operation, mode, point)
    for operation, mode in (
        ("move", MigrationMode.REPLICATE),
        ("move", MigrationMode.READ_ONLY),
        ("split", MigrationMode.REPLICATE),
    )
    for point in points(track_of(MigrationKind(operation), mode))
]


@pytest.mark.parametrize(
    ("way", "change"), crossed(sampled(WAYS, 10, "a change of the roots"), list(CHANGES), 1, "changes of the roots")
)
def test_a_change_of_the_roots_is_there_for_every_row_whenever_it_comes(
    cluster: Cluster, way: tuple[str, MigrationMode, str], change: str
) -> None:
    """Either the migration is undone, or it ends; the owner's rows have the change, and are all there."""
    operation, mode, point = way
    seen: list[str] = []

    def alter() -> None:
        for node in cluster.dsns:
            with cluster.connect(node) as connection:
                connection.execute("SET lock_timeout TO '10s'")
                connection.execute(CHANGES[change].encode())
        seen.append(point)

    done = start(cluster, {point: alter}, operation, mode)
    assert seen == [point], "the point was not reached"
    assert done.state in ("done", "failed"), done
    owner = cluster.directory().snapshot().tablet(1 if operation != "move" else 2).node
    column = "n" if change == "type" else "fresh"
    rows = {node: cluster.query(node, f"SELECT id, {column} FROM orders") for node in cluster.dsns}
    assert sum(len(found) for found in rows.values()) == 1000
    assert rows[owner]
    assert all(int(str(value)) == 1000 for found in rows.values() for _, value in found)
    with cluster.connect(owner) as connection:
        number = int(str(rows[owner][0][0]))
        assert connection.execute(f"UPDATE orders SET note = 'on' WHERE id = {number}".encode()).rowcount == 1
    assert findings(cluster) == []


AWAY = {
    "table": (
        "ALTER TABLE orders_t2 RENAME TO away; CREATE TABLE orders_t2 (LIKE away INCLUDING ALL)",
        "DROP TABLE orders_t2; ALTER TABLE away RENAME TO orders_t2",
    ),
    "schema": (
        "ALTER SCHEMA public RENAME TO away; CREATE SCHEMA public; CREATE TABLE public.orders_t2 (LIKE away.orders_t2)",
        "DROP SCHEMA public CASCADE; ALTER SCHEMA away RENAME TO public",
    ),
}


@pytest.mark.parametrize("what", AWAY)
@pytest.mark.parametrize("mode", list(MigrationMode))
def test_rows_of_a_table_that_had_a_partition_s_name_for_a_while_do_not_move_in_its_place(
    cluster: Cluster, mode: MigrationMode, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody tries another table under its name, and changes their mind, while it is copied and compared."""
    away, back = AWAY[what]
    cluster.settings = replace(cluster.settings, **AMPLE)
    copy, complete = chunk_copy.copy_chunks, replay.complete_rows
    with cluster.connect("a") as owner:

        def copied(*arguments: Any) -> None:
            owner.execute(away.encode())
            copy(*arguments)

        def completed(ctx: Context, shapes: Any, view: Any) -> None:
            complete(ctx, shapes, view)
            view.connection.execute("COMMIT")
            owner.execute(back.encode())

        monkeypatch.setattr(chunk_copy, "copy_chunks", copied)
        monkeypatch.setattr(replay, "complete_rows", completed)
        done = start(cluster, mode=mode)
    assert (done.state, done.error) == (
        "failed",
        "the definition of public.orders_t2 on node a was changed while the migration ran",
    )
    assert len(cluster.rows()["a"]) == 1000
    assert findings(cluster) == []


@pytest.mark.parametrize(
    ("point", "what"),
    crossed(sampled(points(Track.MOVE_REPLICATE)[4:], 6, "triggers in a move"), ["orders_t2", "orders"], 1, "switched"),
)
def test_an_update_with_all_triggers_switched_off_and_on_is_not_lost_in_a_move(
    cluster: Cluster, point: str, what: str
) -> None:
    _switch_triggers(cluster, "move", point, what)


@pytest.mark.parametrize("point", sampled(points(Track.RESHARD_REPLICATE)[4:], 4, "triggers in a split"))
def test_an_update_with_all_triggers_switched_off_and_on_is_not_lost_in_a_split(cluster: Cluster, point: str) -> None:
    _switch_triggers(cluster, "split", point, "orders_t2")


def _switch_triggers(cluster: Cluster, operation: str, point: str, what: str) -> None:
    number = int(str(cluster.query("a", "SELECT min(id) FROM orders_t2")[0][0]))
    changed: list[int] = []

    def switch() -> None:
        running = cluster.directory().snapshot().migrations.values()
        committed = any(State(one.state) in (State.OPENING, State.RETIRING) for one in running)
        count = switched_off(cluster, what, number, "300ms")
        # Who switches the fence off after the owner has changed writes to what is not the tablet any more.
        changed.append(0 if committed and operation == "move" else count)

    done = start(cluster, {point: switch}, operation)
    assert done.state in ("done", "failed"), done
    assert changed, "the point was not reached"
    rows = {number: n for found in cluster.rows().values() for number, n in found.items()}
    assert len(rows) == 1000
    assert rows[number] == (77 if changed[0] else 0), done


def switched_off(cluster: Cluster, what: str, number: int, patience: str) -> int:
    """An update with the triggers of a table switched off; how many rows it changed, if it came so far."""
    with cluster.connect("a") as connection:
        connection.execute(f"SET lock_timeout TO '{patience}'".encode())
        try:
            connection.execute(f"ALTER TABLE {what} DISABLE TRIGGER ALL".encode())
        except (psycopg.errors.UndefinedTable, psycopg.errors.LockNotAvailable):
            return 0
        try:
            return connection.execute(f"UPDATE orders SET n = 77 WHERE id = {number}".encode()).rowcount
        except (psycopg.errors.LockNotAvailable, psycopg.errors.SerializationFailure):
            return 0
        finally:
            connection.execute(f"ALTER TABLE {what} ENABLE TRIGGER ALL".encode())


def test_a_commit_is_not_sent_once_the_fence_was_left_alone(cluster: Cluster) -> None:
    """Who waits long enough for the lock that keeps everybody away from a sealed fence gets it, and nothing commits."""
    number = int(str(cluster.query("a", "SELECT min(id) FROM orders_t2")[0][0]))
    counts: list[int] = []

    def switch() -> None:
        counts.append(switched_off(cluster, "orders_t2", number, "9s"))

    done = start(cluster, {"entered:committing": switch})
    assert counts == [1]
    assert done.state == "failed"
    assert "the definition of public.orders_t2 on node a was changed" in done.error
    assert cluster.rows()["a"][number] == 77


# --- readers and writers by one snapshot


def test_a_split_waits_for_a_reader_by_an_older_snapshot_and_names_it(alone: Cluster) -> None:
    with psycopg.connect(alone.dsns["a"], application_name="report") as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT 1")
        ended: list[Migration] = []
        with beside(lambda: ended.append(start(alone, operation="split"))):
            watching = alone.directory()
            until(lambda: "(report, with an older snapshot" in _waits(watching), "the reader is named")
            assert reader.execute("SELECT count(*) FROM orders").fetchone() == (1000,)
            reader.rollback()
        assert ended[0].state == "done"


def _waits(directory: Directory) -> str:
    return " ".join(str(document["waits_for"] or "") for document in migration_documents(directory))


def test_a_reader_that_begins_while_a_split_runs_sees_every_row(alone: Cluster) -> None:
    readers: list[psycopg.Connection[Any]] = []

    def begin() -> None:
        reader = psycopg.connect(alone.dsns["a"])
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT 1")
        readers.append(reader)

    def read() -> None:
        for reader in readers:
            counts.append(reader.execute("SELECT count(*) FROM orders").fetchone())
            reader.close()

    counts: list[Any] = []
    with alone.connect("a") as connection:
        connection.execute("UPDATE orders SET n = n")

    def change() -> None:
        with alone.connect("a") as connection:
            connection.execute("UPDATE orders SET n = n + 1")
        begin()
        threading.Timer(0.3, read).start()

    assert start(alone, {"entered:swapping": change}, "split").state == "done"
    until(lambda: len(counts) == 1, "the reader has read")
    assert counts == [(1000,)]


def test_a_writer_by_an_older_snapshot_that_waited_for_the_swap_writes_to_the_new_partitions(
    alone: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = int(str(alone.query("a", "SELECT min(id) FROM orders_t2")[0][0]))
    answers: list[object] = []
    threads: list[threading.Thread] = []
    real = swap._exchange

    def write() -> None:
        with psycopg.connect(alone.dsns["a"], application_name="old writer") as writer:
            writer.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            try:
                answers.append(writer.execute(f"UPDATE orders SET n = 5 WHERE id = {number}".encode()).rowcount)
            except psycopg.Error as error:
                answers.append(refused_with(error))

    def meanwhile(*arguments: Any, **named: Any) -> Any:
        thread = threading.Thread(target=write)
        thread.start()
        threads.append(thread)
        waiting = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'old writer' AND wait_event_type = 'Lock'"
        until(lambda: alone.query("a", waiting), "the writer waits for the swap")
        return real(*arguments, **named)

    def change() -> None:
        with alone.connect("a") as connection:
            connection.execute(f"UPDATE orders SET n = 4 WHERE id = {number}".encode())

    monkeypatch.setattr(swap, "_exchange", meanwhile)
    assert start(alone, {"left:mirroring": change}, "split").state == "done"
    threads[0].join(30)
    assert answers == [1]
    assert alone.rows()["a"][number] == 5
    assert findings(alone) == []


def test_a_former_owner_keeps_what_an_older_snapshot_reads_and_refuses_writes_to_the_end_of_the_grace(
    cluster: Cluster,
) -> None:
    cluster.settings = replace(cluster.settings, retire_grace=0.5)
    number = int(str(cluster.query("a", "SELECT min(id) FROM orders_t2")[0][0]))
    answers: list[object] = []

    def write(node: str) -> None:
        with cluster.connect(node) as connection:
            try:
                answers.append(connection.execute(f"UPDATE orders SET n = 5 WHERE id = {number}".encode()).rowcount)
            except psycopg.Error as error:
                answers.append(refused_with(error))

    with psycopg.connect(cluster.dsns["a"], application_name="report") as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT 1")
        ended: list[Migration] = []
        work = {"left:committing": lambda: write("b"), "entered:retiring": lambda: write("a")}
        with beside(lambda: ended.append(start(cluster, work))):
            watching = cluster.directory()
            until(lambda: "(report, with an older snapshot" in _waits(watching), "the reader is named")
            write("a")
            assert reader.execute("SELECT count(*) FROM orders").fetchone() == (1000,)
            reader.rollback()
        assert ended[0].state == "done"
    assert answers == ["TB001", "TB002", "TB002"], "closed on both sides, never 0 rows"
    assert cluster.query("a", "SELECT to_regclass('orders_t2')") == [(None,)]


# --- the application's own triggers and foreign keys


def test_a_split_is_no_business_of_foreign_keys_and_triggers(alone: Cluster) -> None:
    """Deleting a row whose last reference is gone works while its copy is behind; one UPDATE is one in an audit."""
    number = int(str(alone.query("a", "SELECT min(id) FROM orders_t2")[0][0]))
    with alone.connect("a") as connection:
        for statement in (
            "CREATE TABLE kinds (kind text PRIMARY KEY)",
            "INSERT INTO kinds VALUES ('old'), ('new')",
            "ALTER TABLE orders ADD COLUMN kind text REFERENCES kinds",
            f"UPDATE orders SET kind = 'old' WHERE id = {number}",
            "CREATE TABLE audit (what text)",
            NOTE,
            "CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON orders_t2 FOR EACH ROW EXECUTE FUNCTION note()",
        ):
            connection.execute(statement)

    def change() -> None:
        with alone.connect("a") as connection:
            connection.execute(f"UPDATE orders SET kind = 'new' WHERE id = {number}".encode())
            connection.execute("DELETE FROM kinds WHERE kind = 'old'")

    assert start(alone, {"entered:catching_up": change}, "split").state == "done"
    assert alone.query("a", "SELECT what FROM audit") == [("UPDATE",)]
    with alone.connect("a") as connection:
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            connection.execute("DELETE FROM kinds")
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            connection.execute("UPDATE orders SET kind = 'none'")
        connection.execute(f"UPDATE orders SET kind = NULL WHERE id = {number}".encode())
        connection.execute("DELETE FROM kinds")
        assert connection.execute("SELECT count(*) FROM audit").fetchone() == (2,)


def test_what_fires_always_does_not_fire_while_changes_are_applied(cluster: Cluster) -> None:
    for node in cluster.dsns:
        with cluster.connect(node) as connection:
            connection.execute("CREATE TABLE audit (what text)")
            connection.execute(NOTE)
    with cluster.connect("a") as connection:
        connection.execute("CREATE TRIGGER note AFTER UPDATE ON orders_t2 FOR EACH ROW EXECUTE FUNCTION note()")
        connection.execute("ALTER TABLE orders_t2 ENABLE ALWAYS TRIGGER note")

    def change() -> None:
        with cluster.connect("a") as connection:
            connection.execute("UPDATE orders_t2 SET n = 3")

    assert start(cluster, {"entered:catching_up": change}).state == "done"
    assert cluster.query("b", "SELECT count(*) FROM audit") == [(0,)]
    with cluster.connect("b") as connection:
        changed = connection.execute("UPDATE orders SET n = 4").rowcount
    assert cluster.query("b", "SELECT count(*) FROM audit") == [(changed,)]


# --- verdicts


@pytest.mark.parametrize("point", ["entered:verifying", "entered:draining"])
def test_what_stalls_past_the_fence_s_deadline_is_no_difference(cluster: Cluster, point: str) -> None:
    number = int(str(cluster.query("a", "SELECT min(id) FROM orders_t2")[0][0]))
    cluster.settings = replace(cluster.settings, fence_deadline=0.3, write_pause_budget=5.0)

    def stall() -> None:
        sleep(0.35)
        with cluster.connect("a") as connection:
            connection.execute(f"UPDATE orders SET n = n + 1 WHERE id = {number}".encode())

    first = f"UPDATE orders SET n = 8 WHERE id = {number} RETURNING 1"
    done = start(cluster, {"entered:fencing": lambda: cluster.query("a", first), point: stall})
    assert (done.state, done.error) == ("done", "")
    assert read_detail(done).fences == 2
    assert cluster.rows()["b"][number] == 9
    assert cluster.directory().snapshot().tablet(2).state is TabletState.OWNED


def test_an_attach_that_fails_leaves_the_owner_as_it_was(cluster: Cluster) -> None:
    """A lock on the target's root for longer than anybody waits: given up in time, and the source goes on."""
    cluster.settings = replace(cluster.settings, fence_attempts=3)
    with psycopg.connect(cluster.dsns["b"], application_name="stubborn") as other:
        other.execute("LOCK TABLE ONLY orders IN SHARE ROW EXCLUSIVE MODE")
        done = start(cluster)
        assert done.state == "failed"
        assert "stubborn" in done.error
        assert "on node b" in done.error
    with cluster.connect("a") as connection:
        assert connection.execute("UPDATE orders SET n = 1").rowcount == 1000
    assert findings(cluster) == []


def test_the_former_owner_keeps_its_rows_until_the_new_one_s_standbys_have_replayed_the_switch(
    tmp_path: Path, postgres15: PostgresServer, server_folder: Path, database: Factory
) -> None:
    with (
        postgres(server_folder / "mirrored", 18) as primary,
        standby(primary, server_folder / "mirror", 18, "mirror") as mirror,
        new_database(primary) as there,
    ):
        tablets = hash_tablets(2, ["a"])
        cluster = build(tmp_path, {"a": database(postgres15).dsn, "b": there.dsn}, hash_table(), tablets)
        insert_rows(cluster, tablets, range(100))
        ended: list[Migration] = []

        def pause() -> None:
            with psycopg.connect(mirror.dsn(), autocommit=True) as connection:
                connection.execute("SELECT pg_wal_replay_pause()")

        with beside(lambda: ended.append(start(cluster, {"entered:fencing": pause}))):
            watching = cluster.directory()
            until(lambda: "standby 'mirror'" in _waits(watching), "the standby is named")
            assert len(cluster.rows()["a"]) == 100, "attached, and closed"
            with psycopg.connect(mirror.dsn(), autocommit=True) as connection:
                connection.execute("SELECT pg_wal_replay_resume()")
        assert ended[0].state == "done"
        assert len(cluster.rows()["a"]) < 100
        cluster.close()
