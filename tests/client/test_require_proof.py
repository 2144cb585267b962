"""With `require_proof` the roots refuse writes of transactions that have not called `hold`, and nothing else."""

from collections.abc import Iterator

import psycopg
import pytest

from balancer.embedded.postgres import PostgresServer
from balancer.naming import Name, parse_name
from balancer.nodes.schema.proof import set_proof, unlike
from tests.support.shards import ROOTS, Shards, databases, leaves, user_of

Client = psycopg.Connection[tuple[object, ...]]
NAMES = [parse_name(root) for root in ROOTS]


@pytest.fixture(scope="module")
def dsns(any_postgres: PostgresServer) -> Iterator[list[str]]:
    """Each version in turn."""
    with databases(any_postgres) as made:
        yield made


@pytest.fixture
def closed(shards: Shards) -> Shards:
    """Tablet 1 is on node pg-a."""
    switch(shards, wanted=True)
    return shards


def switch(shards: Shards, *, wanted: bool) -> None:
    for node in shards.dsns:
        with shards.node(node).cursor() as cursor:
            set_proof(cursor, NAMES, wanted=wanted)


@pytest.fixture
def client(closed: Shards) -> Iterator[Client]:
    with psycopg.connect(closed.dsns["pg-a"], autocommit=True) as opened:
        yield opened


def refused(client: Client, statement: str) -> psycopg.Error:
    with pytest.raises(psycopg.Error) as caught:
        client.execute(statement.encode())
    assert caught.value.sqlstate == "TB005", caught.value
    return caught.value


def writes(user: int) -> list[str]:
    return [
        f"INSERT INTO orders VALUES ({user}, 1)",
        f"UPDATE orders SET note = 'x' WHERE user_id = {user}",
        f"DELETE FROM orders WHERE user_id = {user}",
        f"MERGE INTO orders USING (SELECT {user} AS u) AS s ON user_id = u WHEN NOT MATCHED THEN INSERT VALUES (u, 7)",
        "TRUNCATE orders",
    ]


def test_an_unproven_write_is_refused_and_told_what_to_do(closed: Shards, client: Client) -> None:
    for statement in writes(user_of(closed, 1)):
        error = refused(client, statement)
        assert error.diag.message_primary == (
            "public.orders takes writes only from transactions that have called balancer.hold"
        )
        assert "CALL balancer.hold" in (error.diag.message_hint or "")
    with pytest.raises(psycopg.Error) as caught, client.cursor().copy("COPY orders FROM STDIN") as copy:
        copy.write_row((user_of(closed, 1), 1, ""))
    assert caught.value.sqlstate == "TB005"
    assert client.execute("SELECT count(*) FROM orders").fetchone() == (0,)


@pytest.mark.parametrize("mode", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_proven_transaction_writes_and_the_next_one_does_not(closed: Shards, client: Client, mode: str) -> None:
    user = user_of(closed, 1)
    client.execute(f"BEGIN ISOLATION LEVEL {mode}; CALL balancer.hold(1, 1, true)".encode())
    for statement in writes(user):
        client.execute(statement.encode())
    client.execute("COMMIT")
    refused(client, writes(user)[0])


def test_a_proof_that_was_rolled_back_is_none(closed: Shards, client: Client) -> None:
    write = writes(user_of(closed, 1))[0]
    client.execute("BEGIN; SAVEPOINT s; CALL balancer.hold(1, 1, true); ROLLBACK TO s")
    refused(client, write)
    client.execute("ROLLBACK")
    client.execute("BEGIN")
    with pytest.raises(psycopg.Error):
        client.execute("CALL balancer.hold(1, 99, true)")
    client.execute("ROLLBACK")
    refused(client, write)


def test_a_proof_for_reading_with_one_snapshot_does_not_do_for_a_write(closed: Shards, client: Client) -> None:
    client.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; CALL balancer.hold(1, 1, false)")
    refused(client, writes(user_of(closed, 1))[0])
    client.execute("ROLLBACK")


def test_leaves_and_cascades_are_not_concerned(closed: Shards, client: Client) -> None:
    """The mover, replication and postgres_fdw name leaves; what a foreign key deletes belongs to their statement."""
    user = user_of(closed, 1)
    key = "FOREIGN KEY (user_id, n) REFERENCES orders ON DELETE CASCADE"
    client.execute(f"ALTER TABLE items ADD CONSTRAINT k {key}".encode())
    try:
        for leaf in leaves(1):
            client.execute(f"INSERT INTO {leaf} VALUES ({user}, 1, '')".encode())
        client.execute(f"DELETE FROM {leaves(1)[0]} WHERE user_id = {user}".encode())
        assert client.execute("SELECT count(*) FROM items").fetchone() == (0,)
    finally:
        client.execute("ALTER TABLE items DROP CONSTRAINT k")


def test_a_closed_table_moves_and_splits(closed: Shards) -> None:
    user = user_of(closed, 1)
    closed.node("pg-a").execute(f"INSERT INTO orders_t1 VALUES ({user}, 1, '')".encode())
    with closed.leading() as leader:
        assert leader(1, "pg-b").state == "done"
        assert leader.split(1).state == "done"
    assert closed.count(user) == 1
    for node in closed.dsns:
        with psycopg.connect(closed.dsns[node], autocommit=True) as connection:
            refused(connection, f"DELETE FROM orders WHERE user_id = {user}")


def test_it_is_switched_off_again(closed: Shards, client: Client) -> None:
    assert unlike(client, [*NAMES, Name("public", "not there")], wanted=True) == []
    switch(closed, wanted=False)
    assert unlike(client, NAMES, wanted=False) == []
    client.execute(writes(user_of(closed, 1))[0].encode())
