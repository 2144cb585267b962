"""The sampler answers from the owner's node, knows a move, and takes silence for no answer."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from balancer.clock import ManualClock
from balancer.directory.contract import Directory
from balancer.directory.model import Node, Put
from balancer.embedded.postgres import PostgresServer
from balancer.errors import Refused
from balancer.nodes.connection import Address, connect
from balancer.nodes.names import parse_name
from balancer.polling.sampler import RENEW_AFTER, NodeSampler
from balancer.tables.adopt import TableRequest, adopt
from policies.keys import decode_key
from policies.model import SampleSource
from tests.support.directories import moved, transaction
from tests.support.servers import Database


@pytest.fixture
def node(any_postgres: PostgresServer, database: Callable[[PostgresServer], Database]) -> Database:
    return database(any_postgres)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def sampler(node: Database, clock: ManualClock) -> Iterator[NodeSampler]:
    made = NodeSampler(lambda: {"a": Address("a", node.dsn)}, clock)
    yield made
    made.close()


def fill(directory: Directory, node: Database, layout: str) -> None:
    bounds = {
        "RANGE": ["FROM (MINVALUE) TO (5000)", "FROM (5000) TO (MAXVALUE)"],
        "HASH": ["WITH (MODULUS 2, REMAINDER 0)", "WITH (MODULUS 2, REMAINDER 1)"],
    }[layout]
    with connect(Address("a", node.dsn)) as connection:
        connection.execute(f"CREATE TABLE orders (id int PRIMARY KEY, n int) PARTITION BY {layout} (id)")
        for number, bound in enumerate(bounds):
            connection.execute(f"CREATE TABLE p{number} PARTITION OF orders FOR VALUES {bound}")
        connection.execute("INSERT INTO orders SELECT generate_series(1, 8000)")
        connection.execute("ANALYZE orders")
        request = TableRequest("shop", "orders", (parse_name("orders"),), layout.lower(), ("id",), "test")
        records = [Node(name, "shop", f"postgresql://{name}/shop") for name in ("a", "gone")]
        adopt(request, directory, {"a": connection}, records, "shop")


def test_written_keys_are_found_after_the_first_question(
    directory: Directory, node: Database, sampler: NodeSampler, clock: ManualClock
) -> None:
    fill(directory, node, "RANGE")
    snapshot = directory.snapshot()
    types = snapshot.table("orders").key_types
    first = sampler.ask(snapshot, 1)
    assert first is not None
    assert first.source is SampleSource.STATISTICS
    with node.connect() as connection:
        connection.execute("UPDATE orders SET n = 1 WHERE id BETWEEN 100 AND 119")
    second = sampler.ask(snapshot, 1)
    assert second is not None
    assert second.source is SampleSource.ROW_AGES
    assert {decode_key(types, key)[0] for key in second.keys} == set(range(100, 120))
    clock.advance(RENEW_AFTER + 1)
    sampler.ask(snapshot, 1)
    renewed = sampler.ask(snapshot, 1)
    assert renewed is not None
    assert renewed.keys == ()


def test_positions_are_told_of_hash_tables(directory: Directory, node: Database, sampler: NodeSampler) -> None:
    fill(directory, node, "HASH")
    snapshot = directory.snapshot()
    assert sampler.ask(snapshot, 1) is None
    with node.connect() as connection:
        connection.execute("UPDATE p0 SET n = 1")
    found = sampler.ask(snapshot, 1)
    assert found is not None
    assert {len(key) for key in found.keys} == {8}
    assert all(key < b"\x80" for key in found.keys)  # the lower half of the positions is tablet 1's
    with pytest.raises(Refused, match="is a hash table"):
        sampler.split_keys(snapshot, [snapshot.tablet(1)], 2)


def test_neighbours_are_cut_together(directory: Directory, node: Database, sampler: NodeSampler) -> None:
    fill(directory, node, "RANGE")
    snapshot = directory.snapshot()
    types = snapshot.table("orders").key_types
    keys = sampler.split_keys(snapshot, [snapshot.tablet(1), snapshot.tablet(2)], 4)
    assert [decode_key(types, key)[0] for key in keys] == [2001, 4001, 6001]


def test_after_a_move_a_new_baseline_is_taken_and_silence_is_no_answer(
    directory: Directory, node: Database, sampler: NodeSampler
) -> None:
    fill(directory, node, "RANGE")
    snapshot = directory.snapshot()
    sampler.ask(snapshot, 1)
    directory.commit(transaction([Put(moved(snapshot.tablet(1), "gone"))], snapshot.version))
    assert sampler.ask(directory.snapshot(), 1) is None
    assert sampler.ask(snapshot, 999) is None
    again = directory.snapshot()
    directory.commit(transaction([Put(moved(again.tablet(1), "a"))], again.version))
    back = sampler.ask(directory.snapshot(), 1)
    assert back is not None
    assert back.source is SampleSource.STATISTICS
