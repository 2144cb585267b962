"""Standing for election goes on, whatever becomes of a leadership."""

import threading
from pathlib import Path

import pytest

from balancer.daemon.campaign import LeaderLoop
from balancer.directory.contract import Leadership
from balancer.directory.sqlite import SqliteDirectory
from tests.support.running import quiet_logs

pytestmark = pytest.mark.quick


def test_a_defect_in_leaving_does_not_end_the_campaigns(tmp_path: Path) -> None:
    epochs: list[int] = []
    twice = threading.Event()

    def elected(leadership: Leadership) -> None:
        epochs.append(leadership.epoch)
        if len(epochs) == 2:
            twice.set()
        leadership.resign()

    def deposed() -> None:
        raise TypeError("a defect")

    with quiet_logs(), SqliteDirectory(tmp_path / "directory.db") as directory:
        loop = LeaderLoop(directory, "host", elected, deposed)
        loop.start()
        assert twice.wait(60.0), "it led once and never again"
        loop.stop()
    assert epochs[:2] == [1, 2]
