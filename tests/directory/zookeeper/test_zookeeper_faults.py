"""A network that loses requests, loses replies and delivers late: every commit is applied exactly once."""

import random
from uuid import uuid4

import pytest

from balancer.clock import SystemClock
from balancer.directory.model import Counter, Put
from balancer.directory.open import open_directory
from balancer.directory.store import commit
from balancer.embedded.zookeeper import ZooKeeperServer
from balancer.errors import OutcomeUnknown, Unavailable
from tests.support.directories import fill, frame, moved, transaction
from tests.support.proxy import Fault, Proxy


def test_200_commits_over_a_bad_network_are_each_applied_exactly_once(zookeeper: ZooKeeperServer) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    cluster = f"faults-{uuid4().hex}"
    with Proxy(zookeeper.address, seed, share=0.2) as proxy:
        sent: list[str] = []
        with open_directory(f"zk://{zookeeper.address}/{cluster}") as direct:
            fill(direct, frame())
            with open_directory(f"zk://{proxy.address}/{cluster}", timeout=60.0) as directory:
                for number in range(200):
                    wish = transaction([Put(Counter("n", number + 2))], directory.snapshot().version)
                    version = directory.commit(wish)
                    sent.append(wish.id)
                    assert version == number + 2
            history = direct.history(after=1, limit=1000)
            assert [entry.transaction for entry in history] == sent
            assert direct.snapshot().counters["n"].next == 201
    print(dict(proxy.faults))
    assert all(proxy.faults[fault] > 3 for fault in Fault)


def test_when_nothing_can_be_sent_nothing_was_applied(zookeeper: ZooKeeperServer) -> None:
    cluster = f"away-{uuid4().hex}"
    with Proxy(zookeeper.address) as proxy, open_directory(f"zk://{proxy.address}/{cluster}", timeout=1.5) as directory:
        view = fill(directory)
        proxy.down()
        SystemClock().sleep(0.2)
        with pytest.raises(Unavailable):
            directory.commit(transaction([Put(moved(view.tablet(1), "pg-c"))], view.version))
        with pytest.raises(Unavailable):
            directory.snapshot()
        proxy.up()
        assert directory.snapshot().version == view.version


def test_an_outcome_that_cannot_be_found_out_is_said_to_be_unknown(zookeeper: ZooKeeperServer) -> None:
    """Every request or reply is lost until the timeout; the caller asks again later with the same transaction."""
    cluster = f"unknown-{uuid4().hex}"
    with open_directory(f"zk://{zookeeper.address}/{cluster}") as direct:
        view = fill(direct)
        with Proxy(zookeeper.address, 1, share=1.0) as proxy:
            wish = transaction([Put(moved(view.tablet(1), "pg-c"))], view.version)
            with (
                open_directory(f"zk://{proxy.address}/{cluster}", timeout=2.0) as directory,
                pytest.raises(OutcomeUnknown, match=wish.id),
            ):
                directory.commit(wish)
        assert direct.commit(wish) == view.version + 1
        assert len(direct.history(after=view.version)) == 1


def test_a_server_that_accepts_and_never_answers_does_not_cost_the_session(zookeeper: ZooKeeperServer) -> None:
    """ZooKeeper leaves a connection open for ever that it got while it was starting."""
    cluster = f"silent-{uuid4().hex}"
    with Proxy(zookeeper.address) as proxy, open_directory(f"zk://{proxy.address}/{cluster}", lease=10.0) as directory:
        view = fill(directory)
        leadership = directory.campaign("me")
        assert leadership is not None
        proxy.ignore_next()
        version = directory.commit(transaction([Put(moved(view.tablet(1), "pg-c"))], view.version, leadership.epoch))
        assert version == view.version + 1
        assert leadership.held()


def test_a_follower_survives_broken_connections(zookeeper: ZooKeeperServer) -> None:
    cluster = f"cut-{uuid4().hex}"
    with open_directory(f"zk://{zookeeper.address}/{cluster}") as direct, Proxy(zookeeper.address) as proxy:
        view = fill(direct)
        with open_directory(f"zk://{proxy.address}/{cluster}") as away:
            follower = away.follow()
            for tablet in range(1, 9):
                proxy.cut()
                version = direct.commit(transaction([Put(moved(view.tablet(tablet), "pg-c"))], view.version))
                assert follower.wait(version - 1, 10).tablet(tablet).epoch == 2


@pytest.mark.parametrize("kept", [5, 2000], ids=["trimmed log", "whole log"])
def test_a_follower_survives_the_loss_of_its_session(
    zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(commit, "LOG_KEPT", kept)
    cluster = f"expired-{uuid4().hex}"
    with open_directory(f"zk://{zookeeper.address}/{cluster}") as direct, Proxy(zookeeper.address) as proxy:
        view = fill(direct)
        with open_directory(f"zk://{proxy.address}/{cluster}", lease=1.0, timeout=3.0) as away:
            follower = away.follow()
            before = follower.snapshot
            proxy.down()
            version = view.version
            for number in range(20):
                version = direct.commit(transaction([Put(Counter("n", number + 1))], version))
            SystemClock().sleep(3.0)
            assert follower.snapshot.version == before.version
            assert follower.age() > 2.5
            proxy.up()
            assert follower.wait(version - 1, 20).counters["n"].next == 20
            SystemClock().sleep(1.2)
            assert follower.age() < 2.0
        assert len(direct.history(limit=100)) == (21 if kept > 100 else 5)
