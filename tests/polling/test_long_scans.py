"""What reads a whole tablet once is no heat: a real pg_dump and a real CREATE INDEX, on both versions of PostgreSQL."""

import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import numpy as np
import pytest

from balancer.directory.contract import Directory
from balancer.embedded.postgres import PostgresServer
from balancer.nodes.session.connection import Address
from balancer.policies.options import BundleOptions
from balancer.policies.resize.heat import hot_tablets, plan_heat
from balancer.policies.view import BundleView
from balancer.polling.poller import ClusterPoll, Poller
from balancer.polling.rates import COUNTERS
from balancer.polling.view import Remembered, build_view
from tests.polling.conftest import Adopt
from tests.support.manual_clock import ManualClock
from tests.support.servers import Database

SEQUENTIAL, SCANS = map(COUNTERS.index, ("sequential_reads", "sequential_scans"))

ROWS = 60_000
OPTIONS = BundleOptions()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def poller(clock: ManualClock) -> Iterator[Poller]:
    made = Poller("shop", clock)
    yield made
    made.close()


@pytest.fixture(params=[15, 18], ids=["postgres15", "postgres18"])
def server(request: pytest.FixtureRequest, postgres15: PostgresServer, postgres18: PostgresServer) -> PostgresServer:
    return postgres15 if request.param == 15 else postgres18


@pytest.fixture
def idle(
    server: PostgresServer, database: Callable[[PostgresServer], Database], directory: Directory, adopted: Adopt
) -> Database:
    """A table that nobody uses: its rows were written long before the first poll."""
    made = database(server)
    adopted(directory, {"a": made})
    with made.connect() as connection:
        connection.execute(f"INSERT INTO orders SELECT generate_series(1, {ROWS})".encode())
        connection.execute("VACUUM ANALYZE orders")
    return made


class Watch:
    """Polls of one node, ten seconds of its time apart."""

    def __init__(self, poller: Poller, clock: ManualClock, directory: Directory, database: Database) -> None:
        self.poller, self.clock, self.directory = poller, clock, directory
        self.addresses = {"a": Address("a", database.dsn)}

    def poll(self) -> ClusterPoll:
        self.clock.advance(10)
        return self.poller.poll(self.directory.snapshot(), self.addresses)

    def settled(self) -> None:
        """Polls until the counters of what was done before stand still, and its rates are forgotten."""
        before = self.poll().rates.last.counters
        for _ in range(20):
            time.sleep(0.1)
            after = self.poll().rates.last.counters
            if np.array_equal(before, after) and after[0, 0] == ROWS:
                break
            before = after
        self.clock.advance(7200)

    def until(self, counter: int, reached: float) -> BundleView:
        """The bundle at the first poll that has counted so much: a session's counters arrive a little later."""
        for _ in range(100):
            poll = self.poll()
            if poll.rates.last.counters[counter, 0] >= reached:
                snapshot = self.directory.snapshot()
                return build_view(snapshot, "shop", poll, options=OPTIONS, capacities={}, remembered=Remembered())
            time.sleep(0.05)
        raise AssertionError(f"counter {counter} did not reach {reached}: {poll.rates.last.counters}")

    def counted(self, counter: int) -> float:
        return float(self.poll().rates.last.counters[counter, 0])


def test_a_dump_and_a_new_index_make_no_tablet_hot(
    poller: Poller, clock: ManualClock, directory: Directory, idle: Database
) -> None:
    watch = Watch(poller, clock, directory, idle)
    watch.settled()
    before = watch.counted(SEQUENTIAL)
    dump = [str(idle.server.program("pg_dump")), "--data-only", "--file=/dev/null", idle.dsn]
    subprocess.run(dump, check=True, capture_output=True)
    with idle.connect() as connection:
        connection.execute("CREATE INDEX ON part0 (id)")
    view = watch.until(SEQUENTIAL, before + 2 * ROWS)
    assert view.tablets.scan_rate is not None
    assert view.tablets.scan_rate[0] > OPTIONS.heat.min_rows_per_second, "as keys it would be heat"
    assert view.tablets.read_rate[0] < 10
    assert hot_tablets(view, OPTIONS.heat) == {}
    actions, rejections = plan_heat(view, OPTIONS)
    assert not actions
    assert [(rejection.tablets, rejection.code) for rejection in rejections] == [((1,), "heat-long-scan")]


def test_lookups_make_it_hot_through_an_index_and_by_scanning_few_rows(
    poller: Poller, clock: ManualClock, directory: Directory, idle: Database
) -> None:
    watch = Watch(poller, clock, directory, idle)
    watch.settled()
    reads = watch.counted(SCANS)
    with idle.connect() as connection:
        connection.execute("DELETE FROM orders WHERE id > 50")
        connection.execute("VACUUM ANALYZE orders")
        connection.execute("SET enable_indexscan = off")
        connection.execute("SET enable_bitmapscan = off")
        connection.execute("SET enable_indexonlyscan = off")
        for key in range(2000):
            connection.execute(f"SELECT * FROM orders WHERE id = {key % 50 + 1}".encode())
    view = watch.until(SCANS, reads + 2000)
    assert view.tablets.read_rate[0] > 100, "fifty rows, again and again"
    assert list(hot_tablets(view, OPTIONS.heat)) == [1]
