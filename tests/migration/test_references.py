"""Foreign keys between colocated roots: they hold on the new owner, and cost the writers nothing in the switch."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from balancer.directory.model import Migration, MigrationMode
from balancer.features.repair.doctor import examine
from balancer.migration.begin import begin_move
from balancer.migration.journal import read_detail
from balancer.nodes.tablets import references
from tests.support.cluster import Cluster, build, hash_table, hash_tablets
from tests.support.resharding import begin_split
from tests.support.spy import Spy

ROWS = 50_000
ROOTS = """
    CREATE TABLE orders (id bigint PRIMARY KEY, n bigint NOT NULL DEFAULT 0) PARTITION BY HASH (id);
    CREATE TABLE items (
        id bigint, line int, PRIMARY KEY (id, line), FOREIGN KEY (id) REFERENCES orders (id) ON DELETE CASCADE
    ) PARTITION BY HASH (id);
"""
FOREIGN_KEYS = """
    SELECT conname, conrelid::regclass::text, convalidated, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE contype = 'f' AND conrelid = 'items_t2'::regclass
"""
INTERNAL = "SELECT tgrelid::regclass::text, tgfoid::regproc::text, tgenabled::text FROM pg_trigger WHERE tgisinternal"


def make(folder: Path, dsns: dict[str, str]) -> Cluster:
    """Tablet 1 on node b, tablet 2 on node a."""
    for dsn in dsns.values():
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(ROOTS)
    return build(folder, dsns, hash_table(("public.orders", "public.items")), hash_tablets(2, ["b", "a"]), columns=None)


@pytest.fixture(params=["from 15 to 18", "from 18 to 15"])
def either(request: pytest.FixtureRequest, tmp_path: Path, pair: dict[str, str]) -> Iterator[Cluster]:
    """A move goes from node a to node b; both ways between the versions."""
    dsns = pair if request.param == "from 15 to 18" else {"a": pair["b"], "b": pair["a"]}
    made = make(tmp_path, dsns)
    yield made
    made.close()


@pytest.fixture
def colocated(tmp_path: Path, pair: dict[str, str]) -> Iterator[Cluster]:
    made = make(tmp_path, pair)
    yield made
    made.close()


def fill(cluster: Cluster, rows: int) -> None:
    for node, remainder in (("a", 1), ("b", 0)):
        with cluster.connect(node) as connection:
            for root, columns in (("orders", "i, 0"), ("items", "i, 1")):
                connection.execute(
                    f"INSERT INTO {root} SELECT {columns} FROM generate_series(1, {rows}::bigint) AS i"
                    f" WHERE satisfies_hash_partition('{root}'::regclass, 2, {remainder}, i)"
                )
            connection.execute("ANALYZE")


def move(
    cluster: Cluster, mode: MigrationMode = MigrationMode.REPLICATE, work: dict[str, Callable[[], object]] | None = None
) -> Migration:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    done = cluster.runner(directory, leadership, Spy(work)).run(begin_move(directory, leadership, 2, "b", mode=mode).id)
    assert [finding.text for finding in examine(directory, cluster.address)] == []
    leadership.resign()
    return done


@pytest.mark.parametrize("mode", list(MigrationMode))
def test_the_keys_arrive_validated_and_enforced(either: Cluster, mode: MigrationMode) -> None:
    fill(either, 2000)
    before = either.query("a", FOREIGN_KEYS)
    done = move(either, mode)
    assert (done.state, done.error) == ("done", "")
    assert read_detail(done).attach == 0
    assert either.query("b", FOREIGN_KEYS) == before
    for node in ("a", "b"):
        assert {enabled for _, _, enabled in either.query(node, INTERNAL)} == {"O"}
    with either.connect("b") as connection:
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            connection.execute("INSERT INTO items SELECT i, 1 FROM generate_series(-50::bigint, -1) AS i")
        connection.execute("DELETE FROM orders")
        assert connection.execute("SELECT count(*) FROM items").fetchone() == (0,)


def test_the_owner_of_the_referenced_root_is_not_slowed_down_by_what_arrives(colocated: Cluster) -> None:
    """Its deletes cascade into its own rows, and look at nothing that is being filled."""
    fill(colocated, 2000)
    seen: list[set[object]] = []

    def look() -> None:
        with colocated.connect("b") as connection:
            connection.execute("BEGIN; DELETE FROM orders WHERE id = (SELECT min(id) FROM orders)")
            locks = (
                "SELECT relation::regclass::text FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation'"
            )
            seen.append({row[0] for row in connection.execute(locks)})
            connection.execute("ROLLBACK")

    assert move(colocated, work={"entered:copying": look, "entered:catching_up": look}).state == "done"
    assert len(seen) == 2
    assert all("items_t1" in tables and "items_t2" not in tables for tables in seen)


@pytest.mark.parametrize("state", ["copying", "fencing"])
def test_a_move_that_is_cancelled_takes_them_away(colocated: Cluster, state: str) -> None:
    fill(colocated, 200)
    before = sorted(map(str, colocated.query("b", INTERNAL)))
    directory = colocated.directory()
    leadership = colocated.become_leader(directory)
    migration = begin_move(directory, leadership, 2, "b")
    runner = colocated.runner(directory, leadership, spy := Spy())
    spy.work[f"entered:{state}"] = lambda: runner.cancel(migration.id)
    assert runner.run(migration.id).state == "cancelled"
    assert sorted(map(str, colocated.query("b", INTERNAL))) == before
    assert [finding.text for finding in examine(directory, colocated.address)] == []


def test_the_pause_does_not_grow_with_the_rows(either: Cluster) -> None:
    """Nothing is checked in the switch: a row that a check would refuse, put there behind its back, is not noticed."""
    fill(either, ROWS)

    def put_an_orphan() -> None:
        with either.connect("b") as connection:
            connection.execute("SET session_replication_role TO replica")
            connection.execute(
                f"INSERT INTO items_t2 SELECT i, 1 FROM generate_series({ROWS + 1}, {ROWS + 99}::bigint) AS i"
                " WHERE satisfies_hash_partition('items'::regclass, 2, 1, i) LIMIT 1"
            )

    done = move(either, work={"entered:sealing": put_an_orphan})
    print(f"a pause of {(read_detail(done).pause or 0) * 1000:.1f} ms with {ROWS // 2} rows in each of the roots")
    assert (done.state, done.error, read_detail(done).attach) == ("done", "", 0)
    assert either.query("b", "SELECT count(*) FROM items") == [(ROWS + 1,)]


def test_a_role_that_cannot_avoid_the_check_is_told_what_it_costs(
    colocated: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(colocated, 20_000)
    monkeypatch.setattr(references, "may_prepare", lambda _: False)  # as for any role that is no superuser
    done = move(colocated)
    assert (done.state, done.error) == ("done", "")
    assert read_detail(done).attach > 0
    assert (read_detail(done).predicted_pause or 0) > read_detail(done).attach


def slowly(count: Callable[..., int]) -> Callable[..., int]:
    """As with many more rows."""

    def counted(*given: object) -> int:
        time.sleep(1.0)
        return count(*given)

    return counted


@pytest.mark.parametrize("split", [False, True])
def test_a_check_that_would_take_too_long_is_refused_before_anybody_waits(
    colocated: Cluster, monkeypatch: pytest.MonkeyPatch, split: bool
) -> None:
    fill(colocated, 100)
    monkeypatch.setattr(references, "may_prepare", lambda _: False)
    monkeypatch.setattr(references, "count_orphans", slowly(references.count_orphans))
    colocated.settings = replace(colocated.settings, write_pause_budget=0.2)
    directory = colocated.directory()
    leadership = colocated.become_leader(directory)
    begun = begin_split(directory, leadership, 2) if split else begin_move(directory, leadership, 2, "b")
    done = colocated.runner(directory, leadership).run(begun.id)
    assert done.state == "failed"
    assert done.error.startswith("the foreign key between the roots takes ")
    assert [finding.text for finding in examine(directory, colocated.address)] == []
