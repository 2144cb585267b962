"""An exchange on real nodes with one slot per node: its second half is finished, by whoever leads by then."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from balancer.clock import SystemClock
from balancer.daemon.daemon import Daemon
from balancer.directory.model import Migration
from balancer.embedded.postgres import PostgresServer
from balancer.migration.machine import State
from balancer.nodes.session.connection import Address
from balancer.planner.bundle_state import StateWord
from balancer.planner.memory import TOPIC, read_tail
from balancer.policies.budgets import NOTHING_BEGUN, BalancingCredit
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.settings import load_settings
from tests.support.fleet import Fleet, until
from tests.support.opening import connect
from tests.support.servers import Database

LARGE, SMALL = 9000, 6000  # rows


@pytest.fixture
def lopsided(tmp_path: Path, postgres18: PostgresServer, database: Callable[[PostgresServer], Database]) -> Fleet:
    """Two large vbuckets on node a and two small ones on b: no single move helps."""
    dsns = {name: database(postgres18).dsn for name in ("a", "b")}
    made = Fleet(tmp_path, f"sqlite://{tmp_path}/shop.db", dsns, tablets=4)
    made.bundle |= {
        "tablet_balancer_config": "enable_cell_balancer = true\nenable_tablet_size_balancer = false",
        "placement": "dimensions = { bytes = 1.0 }",
        "migration": 'retire_grace = "100ms"\nmoves_per_node = 1\nmoves_total = 4',
    }
    made.write_daemon()
    made.write("observe")
    made.create(["a", "b"])
    with made.directory() as directory:
        snapshot = directory.snapshot()
        for tablet in snapshot.tablets(snapshot.table("orders").id):
            assert isinstance(tablet.bounds, Leaf)
            _fill(dsns[tablet.node], tablet.bounds, LARGE if tablet.node == "a" else SMALL)
    return made


def _fill(dsn: str, leaf: Leaf, rows: int) -> None:
    inside = f"satisfies_hash_partition('orders'::regclass, {leaf.modulus}, {leaf.remainder}, n::bigint)"
    keys = f"SELECT n FROM generate_series(1, 100000) n WHERE {inside} LIMIT {rows}"
    with connect(Address("node", dsn)) as connection:
        connection.execute(f"INSERT INTO orders (id, note) SELECT n, repeat('x', 200) FROM ({keys}) k".encode())


@contextmanager
def stepped(fleet: Fleet) -> Iterator[Daemon]:
    daemon = Daemon(load_settings(fleet.config), SystemClock())
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.stop()


def migrations(fleet: Fleet) -> list[Migration]:
    with fleet.directory() as directory:
        return sorted(directory.snapshot().migrations.values(), key=lambda record: record.created)


def begun(fleet: Fleet) -> BalancingCredit:
    with fleet.directory() as directory:
        return read_tail(directory.published(TOPIC).get("shop"))


def step_until(daemon: Daemon, condition: Callable[[], object], what: str) -> None:
    def stepped_to() -> object:
        daemon.step()
        return condition()

    until(stepped_to, 120, what)


def test_the_other_half_of_an_exchange_is_moved_by_the_next_leader(lopsided: Fleet) -> None:
    lopsided.write("autonomous")
    with stepped(lopsided) as first:
        step_until(first, lambda: migrations(lopsided), "the first half")
        step_until(first, lambda: begun(lopsided).bytes > 0, "a note that balancing has begun")
        # Before its rows are copied a successor would take it back and begin once more.
        early = (State.PLANNED, State.PREPARING)
        until(lambda: migrations(lopsided)[0].state not in early, 60, "the copy")
    (half,) = migrations(lopsided)
    assert half.detail["code"] == "swap"
    ((other, target),) = half.detail["then"]
    assert target == half.source_node
    assert "they help only together" in half.reason
    with stepped(lopsided) as second:
        step_until(second, lambda: [one.state for one in migrations(lopsided)] == ["done", "done"], "the second half")
        last = migrations(lopsided)[1]
        assert (last.sources, last.target_node) == ((other,), target)
        assert last.created >= half.created
        assert f"it belongs to the move of tablet {half.sources[0]}" in last.reason
        step_until(
            second, lambda: getattr(second.states().get("shop"), "word", None) is StateWord.BALANCED, "the balance"
        )
        step_until(second, lambda: begun(lopsided) == NOTHING_BEGUN, "the end of balancing")
    assert len(migrations(lopsided)) == 2, "nothing is carried back"
