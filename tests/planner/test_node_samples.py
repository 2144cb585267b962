"""The sampler answers from the owner's node, knows a move, and takes silence for no answer."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from balancer.clock import SystemClock
from balancer.directory.contract import Directory
from balancer.directory.model import Node, Put
from balancer.directory.open import open_directory
from balancer.embedded.postgres import PostgresServer
from balancer.features.tables.adopt import TableRequest, adopt
from balancer.naming import parse_name
from balancer.nodes.session.connection import Address
from balancer.planner.hot_keys import NodeSampler
from balancer.policies.keyspace.keys import decode_key
from balancer.policies.view import SampleSource
from tests.support.directories import moved, transaction
from tests.support.opening import connect
from tests.support.servers import Database


@pytest.fixture
def node(any_postgres: PostgresServer, database: Callable[[PostgresServer], Database]) -> Database:
    return database(any_postgres)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    with open_directory(f"sqlite://{tmp_path}/shop.db") as opened:
        yield opened


@pytest.fixture
def sampler(node: Database, directory: Directory) -> Iterator[NodeSampler]:
    def address(name: str) -> Address:
        return Address(name, node.dsn if name == "a" else "postgresql://u@127.0.0.1:1/x")

    made = NodeSampler(address, directory.snapshot, SystemClock())
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
    directory: Directory, node: Database, sampler: NodeSampler
) -> None:
    fill(directory, node, "RANGE")
    types = directory.snapshot().table("orders").key_types
    assert sampler.ask(1) is None
    idle = sampler.ask(1)
    assert idle is not None
    assert idle.source is SampleSource.STATISTICS
    with node.connect() as connection:
        connection.execute("UPDATE orders SET n = 1 WHERE id BETWEEN 100 AND 119")
    found = sampler.ask(1)
    assert found is not None
    assert found.source is SampleSource.ROW_AGES
    assert {decode_key(types, key)[0] for key in found.keys} == set(range(100, 120))


def test_positions_are_told_of_hash_tables(directory: Directory, node: Database, sampler: NodeSampler) -> None:
    fill(directory, node, "HASH")
    sampler.ask(1)
    with node.connect() as connection:
        connection.execute("UPDATE p0 SET n = 1")
    found = sampler.ask(1)
    assert found is not None
    assert {len(key) for key in found.keys} == {8}
    assert all(key < b"\x80" for key in found.keys)  # the lower half of the positions is tablet 1's


def test_neighbours_are_cut_together(directory: Directory, node: Database, sampler: NodeSampler) -> None:
    fill(directory, node, "RANGE")
    snapshot = directory.snapshot()
    types = snapshot.table("orders").key_types
    keys = sampler.split_keys(snapshot, [snapshot.tablet(1), snapshot.tablet(2)], 4)
    assert [decode_key(types, key)[0] for key in keys] == [2001, 4001, 6001]


def test_the_rows_keys_are_evenly_spaced(directory: Directory, node: Database, sampler: NodeSampler) -> None:
    fill(directory, node, "RANGE")
    types = directory.snapshot().table("orders").key_types
    keys = [decode_key(types, key)[0] for key in sampler.row_keys(2)]  # 5000 to 8000
    assert len(keys) == 19
    assert keys == pytest.approx([5000 + 150 * n for n in range(1, 20)], abs=2)


def test_after_a_move_a_new_baseline_is_taken_and_silence_is_no_answer(
    directory: Directory, node: Database, sampler: NodeSampler
) -> None:
    fill(directory, node, "RANGE")
    sampler.ask(1)
    for target in ("gone", "a"):
        snapshot = directory.snapshot()
        directory.commit(transaction([Put(moved(snapshot.tablet(1), target))], snapshot.version))
        assert sampler.ask(1) is None
    assert sampler.ask(1) is not None
    assert sampler.ask(999) is None
