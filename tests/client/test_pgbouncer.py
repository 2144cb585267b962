"""A real PgBouncer follows the directory: aliases, switches under load, and a pause that nobody is left in."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from balancer.client.pgbouncer import Bouncer, Per, aliases, read_targets, render
from balancer.embedded.postgres import PostgresServer
from balancer.errors import Unavailable
from tests.support.bouncers import PgBouncer, running_pgbouncer
from tests.support.shards import Shards, user_of


@pytest.fixture(scope="module")
def pgbouncer(server_folder: Path, postgres18: PostgresServer) -> Iterator[PgBouncer]:
    with running_pgbouncer(server_folder / "pgbouncer", postgres18) as running:
        yield running


@pytest.fixture
def bouncer(pgbouncer: PgBouncer) -> Iterator[Bouncer]:
    made = Bouncer(pgbouncer.admin, pgbouncer.file)
    yield made
    assert made.resume_all() == [], "no test leaves a pause behind"
    pgbouncer.file.write_text("[databases]\n")


def connect(pgbouncer: PgBouncer, alias: str) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(pgbouncer.dsn(alias), autocommit=True, prepare_threshold=None)


def where(connection: psycopg.Connection[tuple[object, ...]]) -> object:
    row = connection.execute("SELECT node FROM balancer.node").fetchone()
    assert row is not None
    return row[0]


def test_each_tablet_has_an_alias_that_leads_to_its_node(
    shards: Shards, pgbouncer: PgBouncer, bouncer: Bouncer
) -> None:
    done = bouncer.sync(shards.directory.snapshot())
    assert done.changed == ("orders_t1", "orders_t2", "orders_t3", "orders_t4")
    for tablet in shards.tablets():
        with connect(pgbouncer, f"orders_t{tablet.id}") as connection:
            assert where(connection) == tablet.node
    assert bouncer.sync(shards.directory.snapshot()).changed == (), "nothing changed, nothing written"
    assert "password" not in pgbouncer.file.read_text()


def test_each_node_has_an_alias_if_so_wished(shards: Shards, pgbouncer: PgBouncer) -> None:
    bouncer = Bouncer(pgbouncer.admin, pgbouncer.file, Per.NODE, "pool_size=3")
    assert bouncer.sync(shards.directory.snapshot()).changed == ("pg-a", "pg-b")
    with connect(pgbouncer, "pg-b") as connection:
        assert where(connection) == "pg-b"
    assert bouncer.names(shards.directory.snapshot(), [1, 3]) == ["pg-a"]
    pgbouncer.file.write_text("[databases]\n")


def test_a_client_that_stays_connected_is_led_to_the_new_owner(
    shards: Shards, pgbouncer: PgBouncer, bouncer: Bouncer
) -> None:
    bouncer.sync(shards.directory.snapshot())
    with connect(pgbouncer, "orders_t1") as connection:
        assert where(connection) == "pg-a"
        shards.switch(1, "pg-b")
        assert bouncer.sync(shards.directory.snapshot()).changed == ("orders_t1",)
        assert where(connection) == "pg-b"


def test_clients_wait_while_their_alias_is_paused(shards: Shards, pgbouncer: PgBouncer, bouncer: Bouncer) -> None:
    bouncer.sync(shards.directory.snapshot())
    user = user_of(shards, 1)
    taken: list[float] = []

    def insert() -> None:
        began = time.monotonic()
        connection.execute("INSERT INTO orders VALUES (%s, 1)", (user,))
        taken.append(time.monotonic() - began)

    with connect(pgbouncer, "orders_t1") as connection:
        with bouncer.paused(bouncer.names(shards.directory.snapshot(), [1])):
            client = threading.Thread(target=insert)
            client.start()
            time.sleep(0.3)
            assert taken == []
        client.join()
    assert taken[0] > 0.2


def test_a_transaction_that_does_not_end_is_not_waited_for_for_ever(
    shards: Shards, pgbouncer: PgBouncer, bouncer: Bouncer
) -> None:
    bouncer.sync(shards.directory.snapshot())
    with connect(pgbouncer, "orders_t1") as busy, connect(pgbouncer, "orders_t1") as other:
        busy.execute("BEGIN")
        busy.execute("SELECT 1")
        with pytest.raises(Unavailable, match='has not finished PAUSE "orders_t1"'), bouncer.paused(["orders_t1"], 0.3):
            pytest.fail("the block must not begin")
        assert where(other) == "pg-a", "others are let on"
        busy.execute("COMMIT")


def test_what_a_dead_predecessor_left_paused_is_let_go(shards: Shards, pgbouncer: PgBouncer, bouncer: Bouncer) -> None:
    bouncer.sync(shards.directory.snapshot())
    bouncer.pause(["orders_t1", "orders_t3"])
    bouncer.pause(["orders_t1"])
    successor = Bouncer(pgbouncer.admin, pgbouncer.file)
    assert sorted(successor.resume_all()) == ["orders_t1", "orders_t3"]
    with connect(pgbouncer, "orders_t1") as connection:
        assert where(connection) == "pg-a"


def test_an_error_in_the_block_still_ends_in_a_resume(shards: Shards, pgbouncer: PgBouncer, bouncer: Bouncer) -> None:
    bouncer.sync(shards.directory.snapshot())

    def fail() -> None:
        with bouncer.paused(["orders_t1"]):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with connect(pgbouncer, "orders_t1") as connection:
        assert where(connection) == "pg-a"


def test_a_console_out_of_reach_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="console cannot be reached"):
        Bouncer("host=127.0.0.1 port=1 dbname=pgbouncer", tmp_path / "f").resume_all()


def test_the_file_is_read_back_as_it_was_written(shards: Shards, tmp_path: Path) -> None:
    targets = aliases(shards.directory.snapshot(), Per.TABLET, "pool_size=5")
    (tmp_path / "databases.ini").write_text(render(targets))
    assert read_targets(tmp_path / "databases.ini") == targets
    assert read_targets(tmp_path / "nothing") == {}
