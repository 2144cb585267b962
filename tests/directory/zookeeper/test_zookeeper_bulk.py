"""Many znodes in one request: the same contents as one by one, also from servers that do not know the request."""

from typing import Any
from uuid import uuid4

import pytest

from balancer.directory.model import Counter, Put
from balancer.directory.open import open_directory
from balancer.directory.zookeeper.backend import ZooKeeperDirectory
from balancer.directory.zookeeper.session import AT_ONCE, MultiRead
from balancer.embedded.zookeeper import ZooKeeperServer
from tests.support.directories import fill, puts, transaction

pytestmark = pytest.mark.quick

COUNTERS = [Counter(f"n{number}", number + 1) for number in range(2 * AT_ONCE + 1)]


def opened(zookeeper: ZooKeeperServer, cluster: str) -> ZooKeeperDirectory:
    directory = open_directory(f"zk://{zookeeper.address}/{cluster}")
    assert isinstance(directory, ZooKeeperDirectory)
    return directory


def requests_of(directory: ZooKeeperDirectory, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is sent from now on."""
    sent: list[str] = []
    call = directory.session.client._call

    def noted(request: Any, pending: Any) -> Any:
        sent.append(type(request).__name__)
        return call(request, pending)

    monkeypatch.setattr(directory.session.client, "_call", noted)
    return sent


def test_a_load_asks_for_many_znodes_at_once(zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = f"bulk-{uuid4().hex}"
    with opened(zookeeper, cluster) as writer, opened(zookeeper, cluster) as reader:
        fill(writer)
        writer.commit(transaction(puts(COUNTERS), 1))
        sent = requests_of(reader, monkeypatch)
        assert len(reader.snapshot().counters) == len(COUNTERS) + 1
        assert sent.count("MultiRead") <= 5  # pages, records in three parts, and what was committed meanwhile
        assert sent.count("GetData") <= 3  # the root


def test_a_server_that_has_no_such_request_is_asked_one_by_one(
    zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = f"bulk-{uuid4().hex}"
    with opened(zookeeper, cluster) as writer, opened(zookeeper, cluster) as reader:
        fill(writer)
        writer.commit(transaction(puts(COUNTERS), 1))
        monkeypatch.setattr(MultiRead, "type", 77)  # the server answers as one before 3.6 does
        sent = requests_of(reader, monkeypatch)
        view = reader.snapshot()
        assert {counter.next for counter in view.counters.values()} >= {counter.next for counter in COUNTERS}
        assert sent.count("GetData") > len(COUNTERS)
        assert sent.count("MultiRead") == 1  # it is not asked again
        writer.commit(transaction([Put(Counter("n0", 1000))], 2))
        writer.commit(transaction([Put(Counter("n1", 1000))], 3))
        assert reader.snapshot().counters["n0"].next == 1000
        assert len(reader.history()) == 4


def test_a_change_costs_a_follower_one_read(zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = f"bulk-{uuid4().hex}"
    with opened(zookeeper, cluster) as writer, opened(zookeeper, cluster) as reader:
        fill(writer)
        follower = reader.follow(confirm_every=1000.0)
        sent = requests_of(reader, monkeypatch)
        for version in range(1, 6):
            writer.commit(transaction([Put(Counter("n", version + 1))], version))
            assert follower.wait(version, 10).version == version + 1
        assert sent == ["GetData"] * 5
