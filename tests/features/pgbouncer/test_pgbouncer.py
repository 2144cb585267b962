"""A real PgBouncer follows the directory: aliases, switches under load, and a pause that nobody is left in."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import dict_row

from balancer.directory.model import RecordKind
from balancer.embedded.postgres import PostgresServer
from balancer.errors import Unavailable, UserError
from balancer.features.pgbouncer.bouncer import Bouncer, Per, aliases, read_targets, render
from tests.support.bouncers import PgBouncer, running_pgbouncer
from tests.support.nemeses import until
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


def waiting_clients(pgbouncer: PgBouncer) -> int:
    """By its console, which knows the simple protocol only."""
    with psycopg.connect(pgbouncer.admin, autocommit=True) as admin:
        pools = psycopg.ClientCursor(admin, row_factory=dict_row).execute("SHOW POOLS")
        return sum(int(pool["cl_waiting"]) for pool in pools)


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
    done: list[bool] = []

    def insert() -> None:
        connection.execute("INSERT INTO orders VALUES (%s, 1)", (user,))
        done.append(True)

    with connect(pgbouncer, "orders_t1") as connection:
        names = ["orders_t1"]
        bouncer.hold(names)
        client = threading.Thread(target=insert)
        client.start()
        until(lambda: waiting_clients(pgbouncer), "the client's wait")
        assert not done
        bouncer.release(names)
        client.join()
    assert done


def test_a_transaction_that_does_not_end_is_not_waited_for_for_ever(
    shards: Shards, pgbouncer: PgBouncer, bouncer: Bouncer
) -> None:
    bouncer.sync(shards.directory.snapshot())
    with connect(pgbouncer, "orders_t1") as busy, connect(pgbouncer, "orders_t1") as other:
        busy.execute("BEGIN")
        busy.execute("SELECT 1")
        with pytest.raises(Unavailable, match='has not finished PAUSE "orders_t1"'):
            bouncer.hold(["orders_t1"], 0.3)
        assert where(other) == "pg-a", "others are let on"
        busy.execute("COMMIT")


def test_what_a_dead_predecessor_left_paused_is_let_go(shards: Shards, pgbouncer: PgBouncer, bouncer: Bouncer) -> None:
    bouncer.sync(shards.directory.snapshot())
    bouncer.hold(["orders_t1", "orders_t3"])
    bouncer.hold(["orders_t1"])
    successor = Bouncer(pgbouncer.admin, pgbouncer.file)
    assert sorted(successor.resume_all()) == ["orders_t1", "orders_t3"]
    with connect(pgbouncer, "orders_t1") as connection:
        assert where(connection) == "pg-a"


def test_what_is_held_stays_held_while_the_file_changes(shards: Shards, pgbouncer: PgBouncer, bouncer: Bouncer) -> None:
    """Between a move's commit and its opening another move may finish and have the file written."""
    bouncer.sync(shards.directory.snapshot())
    bouncer.hold(["orders_t1"])
    shards.switch(2, "pg-a")
    shards.commit(1, "pg-b")
    assert bouncer.sync(shards.directory.snapshot()).changed == ("orders_t1", "orders_t2")
    with connect(pgbouncer, "orders_t2") as connection:
        assert where(connection) == "pg-a"
    assert paused(pgbouncer) == ["orders_t1"]
    bouncer.release(["orders_t1", "orders_t2"])
    with connect(pgbouncer, "orders_t1") as connection:
        assert where(connection) == "pg-b"


def test_a_file_that_pgbouncer_cannot_read_is_noticed(shards: Shards, pgbouncer: PgBouncer, bouncer: Bouncer) -> None:
    """RELOAD itself does not fail: the old aliases would lead to the former owner for ever."""
    bouncer.sync(shards.directory.snapshot())
    shards.switch(1, "pg-b")
    broken = Bouncer(pgbouncer.admin, pgbouncer.file, options="no_such_option=1")
    with pytest.raises(Unavailable, match="has not taken over alias orders_t1"):
        broken.sync(shards.directory.snapshot())
    assert paused(pgbouncer) == []
    bouncer.sync(shards.directory.snapshot())


def paused(pgbouncer: PgBouncer) -> list[str]:
    with psycopg.connect(pgbouncer.admin, autocommit=True) as console:
        cursor = console.execute("SHOW DATABASES")
        names = [column.name for column in cursor.description or ()]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return [row["name"] for row in rows if int(row["paused"])]


def test_a_console_out_of_reach_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="console cannot be reached"):
        Bouncer("host=127.0.0.1 port=1 dbname=pgbouncer", tmp_path / "f").resume_all()


def test_the_file_is_read_back_as_it_was_written(shards: Shards, tmp_path: Path) -> None:
    targets = aliases(shards.directory.snapshot(), Per.TABLET, "pool_size=5")
    (tmp_path / "databases.ini").write_text(render(targets))
    assert read_targets(tmp_path / "databases.ini") == targets
    assert read_targets(tmp_path / "nothing") == {}


@pytest.mark.parametrize("dsn", ["postgresql://u@h/d%0Aevil%20=%20host=h2", "host=h dbname='d\nevil = host=h2'"])
def test_a_line_end_in_an_address_does_not_become_an_alias(shards: Shards, dsn: str) -> None:
    snapshot = shards.directory.snapshot()
    nodes = {name: replace(node, dsn=dsn) for name, node in snapshot.nodes.items()}
    poisoned = replace(snapshot, records={**snapshot.records, RecordKind.NODE: nodes})
    with pytest.raises(UserError, match="control character"):
        render(aliases(poisoned, Per.TABLET))
