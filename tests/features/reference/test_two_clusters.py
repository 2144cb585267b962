"""Two clusters in databases of one server, whose nodes and tables have the same names: each has streams of its own."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from balancer.directory.identity import made_identity
from balancer.embedded.postgres import PostgresServer
from balancer.nodes.tablets.replication import drop_slot
from tests.migration.test_failovers import Home
from tests.support.running import until
from tests.support.servers import Database, new_database, unsubscribe

SLOTS = "SELECT slot_name::text, active_pid FROM pg_replication_slots WHERE database = current_database()"


@pytest.fixture
def pair(tmp_path: Path, postgres15: PostgresServer) -> Iterator[list[Home]]:
    """Both on one server."""
    with ExitStack() as stack:
        made = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            dsns = {node: stack.enter_context(new_database(postgres15)).dsn for node in "ab"}
            made.append(Home(tmp_path / name, dsns, stack))
            made_identity("test", made[-1].directory, made[-1].leadership.epoch)
        yield made
        for dsn in (dsn for world in made for dsn in world.dsns.values()):
            unsubscribe(dsn)


def slots(world: Home) -> list[tuple[object, ...]]:
    with psycopg.connect(world.dsns["a"], autocommit=True) as connection:
        return connection.execute(SLOTS.encode()).fetchall()


def test_copies_of_both_follow_and_nobody_ends_the_others(pair: list[Home]) -> None:
    one, two = pair

    def follows(world: Home, rows: list[int]) -> Callable[[], bool]:
        def holds() -> bool:
            world.keep()
            try:
                return world.towns("b") == rows
            except psycopg.errors.UndefinedTable:
                return False

        return holds

    assert one.write("a", 1)
    assert two.write("a", 2)
    until(follows(one, [1]), "the first cluster's copy")
    until(follows(two, [2]), "the second cluster's copy")
    until(lambda: all(pid for world in pair for _, pid in slots(world)), "streams at work")
    before = [slots(world) for world in pair]
    assert before[0][0][0] != before[1][0][0], "two slots of one name"
    for number in range(3, 6):
        for world in pair:
            assert world.write("a", number)
            world.keep()
    until(follows(one, [1, 3, 4, 5]), "the first cluster's rows")
    until(follows(two, [2, 3, 4, 5]), "the second cluster's rows")
    assert [slots(world) for world in pair] == before


def test_a_slot_of_another_database_is_never_dropped(
    postgres15: PostgresServer, database: Callable[[PostgresServer], Database]
) -> None:
    mine, other = database(postgres15), database(postgres15)
    with other.connect() as connection, mine.connect() as asking:
        connection.execute("SELECT pg_create_logical_replication_slot('tb_r1e1h0g0x00000000', 'pgoutput')")
        with asking.cursor() as cursor:
            drop_slot(cursor, "r1e1h0g0x00000000")
        assert connection.execute(
            "SELECT count(*) FROM pg_replication_slots WHERE slot_name ~ '^tb_r1e1h0'"
        ).fetchone() == (1,)
        connection.execute("SELECT pg_drop_replication_slot('tb_r1e1h0g0x00000000')")
