"""A poll of the cluster: measured nodes, and each kind of trouble as a value."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from balancer.directory.contract import Directory
from balancer.embedded.postgres import PostgresServer
from balancer.nodes.session.connection import Address
from balancer.polling.ownership import DisagreementKind
from balancer.polling.poller import ClusterPoll, Health, Poller
from tests.polling.conftest import Adopt
from tests.support.manual_clock import ManualClock
from tests.support.servers import Database
from tests.support.tcp_proxy import StallingProxy

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


PATIENCE = 5.0
"""Seconds. A node that answers does so within these, however busy the machine is; one that hangs costs them once."""


@pytest.fixture
def poller(clock: ManualClock) -> Iterator[Poller]:
    made = Poller("shop", clock, patience=PATIENCE)
    yield made
    made.close()


@pytest.fixture
def databases(
    postgres15: PostgresServer, postgres18: PostgresServer, database: Callable[[PostgresServer], Database]
) -> dict[str, Database]:
    return {"a": database(postgres15), "b": database(postgres18)}


def addresses(databases: dict[str, Database]) -> dict[str, Address]:
    return {name: Address(name, database.dsn) for name, database in databases.items()}


def healths(poll: ClusterPoll) -> dict[str, Health]:
    return {node: report.health for node, report in poll.nodes.items()}


def test_sizes_and_rates_of_every_tablet(
    poller: Poller, clock: ManualClock, directory: Directory, databases: dict[str, Database], adopted: Adopt
) -> None:
    adopted(directory, databases)
    snapshot = directory.snapshot()
    first = poller.poll(snapshot, addresses(databases))
    assert healths(first) == {"a": Health.GOOD, "b": Health.GOOD}
    assert list(first.rates.ids) == [1, 2]
    with databases["a"].connect() as connection:
        connection.execute(
            "INSERT INTO part0 SELECT n FROM generate_series(1, 2000) n"
            " WHERE satisfies_hash_partition('orders'::regclass, 2, 0, n)"
        )
        row = connection.execute("SELECT count(*) FROM orders").fetchone()
        assert row is not None
        written = int(str(row[0]))
    for _ in range(100):
        clock.advance(10)
        poll = poller.poll(snapshot, addresses(databases))
        if poll.rates.last.counters[0, 0] == written:
            break
        time.sleep(0.05)
    assert poll.rates.write_rate(1)[0] > 0
    assert poll.rates.write_rate(1)[1] == 0
    assert poll.rates.last.sizes[0] > 8192
    assert poll.rates.last.rows[0] == written


def test_a_dead_node_and_one_that_never_answers_do_not_hold_up_the_rest(
    poller: Poller, directory: Directory, databases: dict[str, Database], adopted: Adopt
) -> None:
    adopted(directory, databases)
    known = addresses(databases)
    with StallingProxy("127.0.0.1", databases["b"].server.port or 0) as proxy:
        known["b"] = Address("b", proxy.dsn(databases["b"].dsn))
        assert healths(poller.poll(directory.snapshot(), known)) == {"a": Health.GOOD, "b": Health.GOOD}
        proxy.stall()
        started = time.monotonic()
        poll = poller.poll(directory.snapshot(), known)
        assert time.monotonic() - started < 3 * PATIENCE
        assert healths(poll) == {"a": Health.GOOD, "b": Health.UNREACHABLE}
        assert poll.nodes["b"].unreachable is not None
        assert poll.nodes["b"].unreachable.since == START.timestamp()
        assert list(poll.rates.ids) == [1, 2]  # what was last known stays
        proxy.resume()
        wait_for(poller, directory, known, Health.GOOD)


def wait_for(poller: Poller, directory: Directory, known: dict[str, Address], health: Health) -> ClusterPoll:
    """The first poll in which node b is so."""
    for _ in range(60):
        poll = poller.poll(directory.snapshot(), known)
        if poll.nodes["b"].health is health:
            return poll
        time.sleep(0.1)
    raise AssertionError(f"node b did not become {health}: {poll.nodes['b']}")


def test_a_blocked_query_ends_by_its_timeout(
    poller: Poller, directory: Directory, databases: dict[str, Database], adopted: Adopt
) -> None:
    adopted(directory, databases)
    with databases["b"].connect(autocommit=False) as blocker:
        blocker.execute("LOCK TABLE balancer.tablet IN ACCESS EXCLUSIVE MODE")
        poll = poller.poll(directory.snapshot(), addresses(databases))
        assert healths(poll) == {"a": Health.GOOD, "b": Health.UNREACHABLE}
        assert "lock timeout" in poll.nodes["b"].reason
        blocker.rollback()
    wait_for(poller, directory, addresses(databases), Health.GOOD)


def test_a_node_restored_from_a_backup_is_quarantined(
    poller: Poller, directory: Directory, databases: dict[str, Database], adopted: Adopt
) -> None:
    adopted(directory, databases)
    with databases["b"].connect() as connection:
        connection.execute("UPDATE balancer.tablet SET epoch = 0")
    poll = poller.poll(directory.snapshot(), addresses(databases))
    assert healths(poll) == {"a": Health.GOOD, "b": Health.QUARANTINED}
    assert [found.kind for found in poll.nodes["b"].disagreements] == [
        DisagreementKind.REWOUND,
        DisagreementKind.OLD_EPOCH,
    ]
    assert poll.nodes["b"].rewound == "it claims tablet 2 with epoch 0, and the directory gave epoch 1 to node b"
    assert list(poll.rates.ids) == [1]  # its figures are not believed


def test_a_restart_costs_one_reconnect_and_keeps_the_rates(
    poller: Poller,
    clock: ManualClock,
    directory: Directory,
    primary: PostgresServer,
    database: Callable[[PostgresServer], Database],
    adopted: Adopt,
) -> None:
    databases = {"b": database(primary)}
    adopted(directory, databases)
    before = poller.poll(directory.snapshot(), addresses(databases))
    clock.advance(10)
    primary.kill()
    assert healths(poller.poll(directory.snapshot(), addresses(databases))) == {"b": Health.UNREACHABLE}
    primary.start()
    after = wait_for(poller, directory, addresses(databases), Health.GOOD)
    first, second = before.nodes["b"].poll, after.nodes["b"].poll
    assert first is not None
    assert second is not None
    assert second.facts.started > first.facts.started
    assert list(after.rates.ids) == [1]


def test_a_standby_is_called_one_and_a_failover_is_followed(
    poller: Poller, directory: Directory, primary: PostgresServer, standby: PostgresServer, adopted: Adopt
) -> None:
    adopted(directory, {"b": Database(primary, "postgres")})
    alone = {"b": Address("b", standby.dsn())}
    for _ in range(100):
        poll = poller.poll(directory.snapshot(), alone)
        if poll.nodes["b"].health is Health.STANDBY:
            break
        time.sleep(0.1)
    assert "standby" in poll.nodes["b"].reason
    both = f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres"
    known = {"b": Address("b", both, primary.password())}
    good = wait_for(poller, directory, known, Health.GOOD)
    wait_until_replayed(primary, standby)
    primary.stop()
    poller.poll(directory.snapshot(), known)
    with Database(standby, "postgres").connect() as connection:
        connection.execute("SELECT pg_promote()")
    after = wait_for(poller, directory, known, Health.GOOD)
    assert after.nodes["b"].poll is not None
    assert good.nodes["b"].poll is not None
    assert after.nodes["b"].poll.facts.started != good.nodes["b"].poll.facts.started
    assert list(after.nodes["b"].poll.claims) == list(good.nodes["b"].poll.claims)


def wait_until_replayed(primary: PostgresServer, standby: PostgresServer) -> None:
    with Database(primary, "postgres").connect() as source, Database(standby, "postgres").connect() as target:
        row = source.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        assert row is not None
        for _ in range(100):
            if target.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", row).fetchone() == (True,):
                return
            time.sleep(0.1)
    raise AssertionError("the standby did not follow")
