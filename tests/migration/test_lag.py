"""A catch-up that does not converge is seen by its trend, said in words, and given up."""

import threading
from dataclasses import replace

import pytest

from balancer.features.repair.doctor import examine
from balancer.migration.begin import begin_move
from balancer.migration.stream import Trend
from tests.support.cluster import Cluster
from tests.support.failing import Listener, obstacle

WRITE = "UPDATE orders SET n = n + 1 RETURNING 1"
NOISE = "SELECT pg_logical_emit_message(false, 'noise', repeat('x', 200000))"


class Noise:
    """Fills the log of a node with what nobody needs."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self._cluster, self._node = cluster, node
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        with self._cluster.connect(self._node) as connection:
            while not self._stop.wait(0.02):
                connection.execute(NOISE)


def test_a_lag_that_grows_is_said_and_ends_the_move(cluster: Cluster) -> None:
    cluster.settings = replace(cluster.settings, lag_patience=3.0)
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    migration = begin_move(directory, leadership, 2, "b")
    listener = Listener()
    noise = Noise(cluster, "a")
    with obstacle(cluster, "b", "orders_t2") as applying:

        def stop_applying() -> None:
            applying.hold()
            cluster.query("a", WRITE)
            noise.start()

        listener.work["entered:catching_up"] = stop_applying
        listener.work["entered:cancelling"] = applying.release
        done = cluster.runner(directory, leadership, listener).run(migration.id)
        noise.stop()
    assert done.state == "failed"
    assert done.error.startswith("node b does not catch up: ")
    assert "MB behind and growing by" in done.error
    assert any("MB behind and growing by" in text for text in listener.waited)
    assert len(cluster.rows()["a"]) == 1000
    assert [finding.text for finding in examine(directory, cluster.address)] == []


def test_a_lag_that_grows_for_a_while_does_not_end_it(cluster: Cluster) -> None:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    listener = Listener()
    noise = Noise(cluster, "a")
    with obstacle(cluster, "b", "orders_t2") as applying:

        def slow_down() -> None:
            applying.hold_for(2.0)
            cluster.query("a", WRITE)
            noise.start()

        listener.work["entered:catching_up"] = slow_down
        done = cluster.runner(directory, leadership, listener).run(begin_move(directory, leadership, 2, "b").id)
        noise.stop()
    assert (done.state, done.error) == ("done", "")
    assert any("MB behind" in text for text in listener.waited)


@pytest.mark.parametrize(
    ("lags", "words"),
    [
        ([], ""),
        ([5_000_000], "5.0 MB behind"),
        ([5_000_000, 6_000_000, 7_000_000, 8_000_000], "8.0 MB behind and growing by 1.00 MB/s"),
        ([8_000_000, 6_000_000, 4_000_000], "4.0 MB behind and shrinking by 2.00 MB/s, about 2 s left"),
        ([5_000_000] * 5, "5.0 MB behind and not shrinking"),
        ([100_000] * 5, "0.1 MB behind"),
    ],
)
@pytest.mark.quick
def test_a_trend_in_words(lags: list[int], words: str) -> None:
    trend = Trend()
    for second, lag in enumerate(lags):
        trend.add(float(second), lag)
    assert trend.words() == words


@pytest.mark.quick
def test_a_trend_forgets_what_was_long_ago() -> None:
    trend = Trend()
    for second in range(100):
        trend.add(float(second), 10_000_000 + 1_000_000 * second)
    for second in range(100, 130):
        trend.add(float(second), 110_000_000 - 1_000_000 * (second - 100))
    assert (trend.rate() or 0) < 0
