"""An ensemble that loses its leader in the middle of commits."""

import threading
from collections.abc import Iterator
from uuid import uuid4

import pytest

from balancer.clock import SystemClock
from balancer.directory.contract import Directory
from balancer.directory.model import Counter, Put
from balancer.directory.open import open_directory
from tests.support.directories import fill, frame, transaction
from tests.support.zookeeper_ensemble import ZooKeeperEnsemble


@pytest.fixture
def ensemble(zookeeper_ensemble: ZooKeeperEnsemble) -> Iterator[ZooKeeperEnsemble]:
    """Whole again after the test."""
    yield zookeeper_ensemble
    zookeeper_ensemble.start()


def test_commits_resume_after_the_ensembles_leader_was_killed_and_none_is_lost(ensemble: ZooKeeperEnsemble) -> None:
    address = f"zk://{ensemble.address}/killed-{uuid4().hex}"
    with open_directory(address, timeout=30.0) as directory, open_directory(address, timeout=30.0) as other:
        fill(directory, frame())
        follower = other.follow()
        acknowledged: list[str] = []
        stop = threading.Event()
        writer = threading.Thread(target=_write, args=(directory, acknowledged, stop))
        writer.start()
        _until(lambda: len(acknowledged) >= 30)
        ensemble.leader().kill()
        before = len(acknowledged)
        _until(lambda: len(acknowledged) >= before + 30)
        stop.set()
        writer.join()
        history = directory.history(after=1, limit=2000)
        assert [entry.transaction for entry in history] == acknowledged
        assert follower.wait(len(acknowledged), 30).version == len(acknowledged) + 1
        assert directory.snapshot().counters["n"].next == len(acknowledged)


def _write(directory: Directory, acknowledged: list[str], stop: threading.Event) -> None:
    while not stop.is_set():
        wish = transaction([Put(Counter("n", len(acknowledged) + 1))], directory.snapshot().version)
        directory.commit(wish)
        acknowledged.append(wish.id)


def _until(condition: object) -> None:
    clock = SystemClock()
    deadline = clock.monotonic() + 60
    while not condition():  # type: ignore[operator]
        assert clock.monotonic() < deadline, "nothing was committed for a minute"
        clock.sleep(0.02)
