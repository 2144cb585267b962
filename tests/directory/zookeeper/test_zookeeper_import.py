"""An import that dies half-way: nobody reads a mixture, and running it again completes it."""

import subprocess
from uuid import uuid4

import pytest

from balancer.directory.history import records_of
from balancer.directory.invariants import violations
from balancer.directory.model import Put
from balancer.directory.open import open_directory
from balancer.directory.zookeeper.backend import ZooKeeperDirectory
from balancer.embedded.zookeeper import ZooKeeperServer
from balancer.errors import Unavailable
from tests.support.commands import started
from tests.support.directories import RANGED, fill, frame, moved, ranges, transaction
from tests.support.importing import TABLETS


def test_an_import_that_was_killed_half_way_is_completed_by_running_it_again(zookeeper: ZooKeeperServer) -> None:
    url = f"zk://{zookeeper.address}/import-{uuid4().hex}"
    with open_directory(url, timeout=2.0, lease=2.0) as directory:
        assert isinstance(directory, ZooKeeperDirectory)
        before = fill(directory)
        follower = directory.follow()
        _kill_half_way(url)
        assert len(directory.session.client.get_children(directory.paths.pages)) == 4  # of six
        with pytest.raises(Unavailable, match="is being imported"):
            directory.snapshot()
        with pytest.raises(Unavailable, match="is being imported"), open_directory(url) as newcomer:
            newcomer.snapshot()
        with pytest.raises(Unavailable, match="is being imported"):
            directory.commit(transaction([Put(moved(before.tablet(1), "pg-c"))], before.version))
        assert follower.snapshot.version == before.version
        leadership = directory.campaign("again", timeout=30)  # when the session of the killed one has expired
        assert leadership is not None
        records = [*frame(), RANGED, *ranges(range(TABLETS - 1), first=1)]
        version = directory.restore(records, reason="again", author="test", leader_epoch=leadership.epoch)
        for view in (directory.snapshot(), follower.wait(before.version, 20)):
            assert view.version == version
            assert records_of(view) == records
            assert list(violations(view)) == []


def _kill_half_way(url: str) -> None:
    """The process stops itself between two of the import's requests and says so; then it is killed."""
    with started("-m", "tests.support.importing", url, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == "half-way\n"
        process.kill()
