"""Odd ways of writing, at every point of a copy: what arrives is what a table beside it got, which nobody moves."""

import importlib
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from balancer.migration import copy, replay
from balancer.nodes.tablets.copy import Chunk
from tests.support.cluster import AMPLE, Cluster, build, hash_table, hash_tablets, insert_rows
from tests.support.directed import LEAF, complaints, move
from tests.support.sampling import SEED, sampled
from tests.support.spy import Spy

pytestmark = pytest.mark.always

POINTS = (
    "balancer.migration.replay.replay",
    "balancer.migration.replay.complete_rows",
    "balancer.migration.copy._make_slot",
    "balancer.nodes.tablets.replication.create_subscription",
)
MORE = """
ALTER TABLE orders ADD COLUMN big text, ADD COLUMN twice bigint GENERATED ALWAYS AS (n * 2) STORED,
    ADD COLUMN slot bigint NOT NULL DEFAULT 0, ALTER COLUMN big SET STORAGE EXTERNAL,
    ADD CONSTRAINT orders_slot UNIQUE (id, slot) DEFERRABLE INITIALLY DEFERRED;
CREATE FUNCTION bump() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.n := NEW.n + 1000; RETURN NEW; END $$;
CREATE TRIGGER always BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION bump();
CREATE TRIGGER replica BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION bump();
ALTER TABLE orders ENABLE ALWAYS TRIGGER always, ENABLE REPLICA TRIGGER replica;
"""
ROUNDS = range(30)
ROWS = "SELECT id, n, note, md5(big), twice, slot FROM {} ORDER BY id"


class Writers:
    """Each method is one odd way; all of them write the same to the root and to the table beside it."""

    def __init__(self, cluster: Cluster, seed: str) -> None:
        self.cluster, self.random = cluster, random.Random(seed)
        bound = f"SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid = '{LEAF}'::regclass"
        rest = int(str(cluster.query("a", bound)[0][0]).rstrip(")").split()[-1])
        self.mine, self.others = self._keys(rest), self._keys((rest + 1) % 4)
        self.open: list[psycopg.Connection[Any]] = []
        self.prepared: list[str] = []
        self.done: list[str] = []

    def _keys(self, rest: int) -> list[int]:
        """Of one tablet."""
        its = f"satisfies_hash_partition('orders'::regclass, 4, {rest}, n)"
        found = self.cluster.query("a", f"SELECT n FROM generate_series(1::bigint, 4000) AS n WHERE {its}")
        return [int(str(n)) for (n,) in found]

    def write(self) -> None:
        for _ in range(3):
            name = self.random.choice([one for one in dir(self) if one.startswith("by_")])
            self.done.append(name)
            try:
                with self.cluster.connect("a") as connection:
                    connection.execute("SET lock_timeout TO '100ms'")
                    getattr(self, name)(connection)
            except (psycopg.errors.LockNotAvailable, psycopg.errors.UniqueViolation) as error:
                self.done.append(type(error).__name__)  # on both, or on neither

    def both(self, connection: psycopg.Connection[Any], *statements: str) -> None:
        with connection.transaction():
            self.say(connection, *statements)

    def say(self, connection: psycopg.Connection[Any], *statements: str) -> None:
        for statement in statements:
            for table in ("orders", "beside"):
                connection.execute(statement.replace("{t}", table).encode())

    def key(self) -> int:
        return self.random.choice(self.mine[:150])

    def by_small_updates(self, c: Any) -> None:
        self.both(c, f"UPDATE {{t}} SET n = n + 1 WHERE id IN ({self.key()}, {self.key()})")

    def by_updates_that_leave_the_page(self, c: Any) -> None:
        self.both(c, f"UPDATE {{t}} SET note = repeat('y', 1500) WHERE id IN ({self.key()}, {self.key()})")

    def by_an_update_of_everything(self, c: Any) -> None:
        self.both(c, "UPDATE {t} SET n = n + 1")

    def by_a_new_key(self, c: Any) -> None:
        new = self.random.choice(self.mine[150:])
        self.both(c, f"UPDATE {{t}} SET id = {new} WHERE id = {self.key()}")

    def by_leaving_the_tablet(self, c: Any) -> None:
        self.both(c, f"UPDATE {{t}} SET id = {self.random.choice(self.others[150:])} WHERE id = {self.key()}")

    def by_coming_into_the_tablet(self, c: Any) -> None:
        new = self.random.choice(self.mine)
        self.both(c, f"UPDATE {{t}} SET id = {new} WHERE id = {self.random.choice(self.others)}")

    def by_delete_and_insert(self, c: Any) -> None:
        key = self.key()
        self.both(c, f"DELETE FROM {{t}} WHERE id = {key}", f"INSERT INTO {{t}} (id, n) VALUES ({key}, 7)")

    def by_toast(self, c: Any) -> None:
        key = self.key()
        big = f"(SELECT string_agg(md5((i * {key})::text), '') FROM generate_series(1, 200) i)"
        self.both(c, f"UPDATE {{t}} SET big = {big} WHERE id = {key}")
        self.both(c, f"UPDATE {{t}} SET n = n + 1 WHERE id = {key}")  # the value stays where it is

    def by_subtransactions(self, c: Any) -> None:
        with c.transaction():
            self.say(c, f"UPDATE {{t}} SET n = 5 WHERE id = {self.key()}")
            c.execute("SAVEPOINT s")
            self.say(c, f"DELETE FROM {{t}} WHERE id IN ({self.key()}, {self.key()})")
            c.execute("ROLLBACK TO s")
            self.say(c, f"UPDATE {{t}} SET slot = slot + 1 WHERE id = {self.key()}")

    def by_a_rollback(self, c: Any) -> None:
        with c.transaction(force_rollback=True):
            self.say(c, "DELETE FROM {t}")

    def by_a_replica(self, c: Any) -> None:
        c.execute("SET session_replication_role TO replica")
        self.both(
            c, f"UPDATE {{t}} SET note = 'r' WHERE id = {self.key()}", f"DELETE FROM {{t}} WHERE id = {self.key()}"
        )

    def by_on_conflict(self, c: Any) -> None:
        self.both(
            c, f"INSERT INTO {{t}} (id) VALUES ({self.random.choice(self.mine)}) ON CONFLICT (id) DO UPDATE SET n = 55"
        )

    def by_merge(self, c: Any) -> None:
        one = self.key()
        other = self.random.choice([key for key in self.mine if key != one])  # MERGE refuses the same row twice
        self.both(
            c,
            f"MERGE INTO {{t}} AS o USING (VALUES ({one}::bigint), ({other})) v (k)"
            " ON o.id = v.k WHEN MATCHED AND o.n % 2 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET n = 8"
            " WHEN NOT MATCHED THEN INSERT (id, n) VALUES (k, 9)",
        )

    def by_copy(self, c: Any) -> None:
        keys = self.random.sample(self.mine[150:], 3)
        with c.transaction():
            for table in ("orders", "beside"):
                c.execute(f"DELETE FROM {table} WHERE id = ANY(%s)", (keys,))
                with c.cursor().copy(f"COPY {table} (id, note) FROM STDIN") as copy:
                    for key in keys:
                        copy.write_row((key, "copied"))

    def by_its_own_name(self, c: Any) -> None:
        key = self.key()
        with c.transaction():
            for table in (LEAF, "beside"):
                c.execute(f"UPDATE {table} SET n = n + 3 WHERE id = {key}")

    def by_two_phases(self, c: Any) -> None:
        name = f"odd{len(self.done)}_{id(self)}"
        c.execute("BEGIN")
        self.say(
            c, f"UPDATE {{t}} SET n = n + 10 WHERE id = {self.key()}", f"DELETE FROM {{t}} WHERE id = {self.key()}"
        )
        c.execute(f"PREPARE TRANSACTION '{name}'")
        self.prepared.append(name)

    def by_a_long_transaction(self, c: Any) -> None:
        if not self.open:
            self.begin_long()
        self.say(self.open[-1], f"UPDATE {{t}} SET note = 'long' WHERE id = {self.key()}")

    def by_vacuum(self, c: Any) -> None:
        c.execute(f"VACUUM (FREEZE, ANALYZE) {LEAF}")

    def begin_long(self) -> None:
        self.open.append(self.cluster.connect("a"))
        self.open[-1].execute("SET lock_timeout TO '100ms'")
        self.open[-1].execute("BEGIN")
        self.open[-1].execute("SELECT count(*) FROM orders")

    def settle(self) -> None:
        """Everything that is open is ended, one way or the other."""
        for connection in self.open:
            connection.execute("COMMIT")
            connection.close()
        self.open.clear()
        with self.cluster.connect("a") as connection:
            for name in self.prepared:
                connection.execute(f"{self.random.choice(['COMMIT', 'ROLLBACK'])} PREPARED '{name}'".encode())
        self.prepared.clear()


@pytest.fixture
def odd(tmp_path: Path, pair: dict[str, str]) -> Iterator[Cluster]:
    tablets = hash_tablets(4, ["a"])
    made = build(tmp_path, pair, hash_table(), tablets)
    made.settings = replace(made.settings, **AMPLE, chunk_size=8192, chunks_at_once=2)
    for node in pair:
        with made.connect(node) as connection:
            connection.execute(MORE.encode())
    insert_rows(made, tablets, range(1, 700))
    with made.connect("a") as connection:
        connection.execute("UPDATE orders SET note = repeat('x', 150)")
        connection.execute("CREATE TABLE beside (LIKE orders INCLUDING ALL) PARTITION BY HASH (id)")
        for rest in range(4):  # whose rows go from one to another as in the root
            values = f"FOR VALUES WITH (MODULUS 4, REMAINDER {rest})"
            connection.execute(f"CREATE TABLE beside_{rest} PARTITION OF beside {values}".encode())
        connection.execute("INSERT INTO beside (id, n, note, big, slot) SELECT id, n, note, big, slot FROM orders")
        connection.execute("CREATE TRIGGER always BEFORE INSERT ON beside FOR EACH ROW EXECUTE FUNCTION bump()")
        connection.execute("CREATE TRIGGER replica BEFORE UPDATE ON beside FOR EACH ROW EXECUTE FUNCTION bump()")
        connection.execute("ALTER TABLE beside ENABLE ALWAYS TRIGGER always, ENABLE REPLICA TRIGGER replica")
    yield made
    made.close()


def interrupted(monkeypatch: pytest.MonkeyPatch, path: str, work: Callable[[], None]) -> None:
    """The work is done before and after each call."""
    module, name = path.rsplit(".", 1)
    place = importlib.import_module(module)
    original = getattr(place, name)

    def around(*arguments: Any, **options: Any) -> Any:
        work()
        result = original(*arguments, **options)
        work()
        return result

    monkeypatch.setattr(place, name, around)


@pytest.mark.parametrize("number", sampled(ROUNDS, 1, "odd writers"))
def test_what_odd_writers_write_arrives(odd: Cluster, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    seed = f"{SEED} {number}"
    print(f"seed {seed}")
    monkeypatch.setattr(replay, "FEW", (0, 20_000)[number % 2])
    writers = Writers(odd, seed)
    lock = threading.Lock()
    original = copy._copy_chunk

    def copy_chunk(ctx: Any, chunk: Chunk, *rest: Any) -> None:
        with lock:
            writers.write()
        original(ctx, chunk, *rest)

    monkeypatch.setattr(copy, "_copy_chunk", copy_chunk)

    def settled() -> None:
        with lock:
            writers.settle()
            writers.write()
            writers.settle()

    for path in POINTS:
        interrupted(monkeypatch, path, settled)
    writers.begin_long()
    spy = Spy({f"{when}:catching_up": settled for when in ("entered", "left")} | {"entered:fencing": writers.settle})
    done = move(odd, spy)
    assert done.state == "done", (done.error, writers.done)
    writers.settle()
    arrived = sorted(row for node in ("a", "b") for row in odd.query(node, ROWS.format("orders")))
    assert arrived == odd.query("a", ROWS.format("beside")), writers.done
    assert complaints(odd) == []
