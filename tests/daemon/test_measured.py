"""Commits are timed, by what came of them."""

import pytest

from balancer.clock import SystemClock
from balancer.daemon.measured import MeasuredDirectory
from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import Kind, Pin, Put, Remove
from balancer.errors import BalancerError
from balancer.instruments import Instruments
from tests.support.directories import transaction

pytestmark = pytest.mark.quick


def test_every_outcome_has_its_own_series(directory: Directory, leadership: Leadership) -> None:
    instruments = Instruments()
    measured = MeasuredDirectory(directory, instruments, SystemClock())
    version = directory.snapshot().version
    measured.commit(transaction([Put(Pin(1, None))], version, leadership.epoch))
    wrong = [
        transaction([Put(Pin(1, 5.0))], version),  # changed since
        transaction([Put(Pin(2, None))], version, leadership.epoch - 1),  # a former leader's
        transaction([Remove(Kind.TABLET, "1")], measured.snapshot().version),  # leaves a hole in the keys
    ]
    for change in wrong:
        with pytest.raises(BalancerError):
            measured.commit(change)
    value = instruments.registry.get_sample_value
    counts = {
        outcome: value("balancer_directory_commit_seconds_count", {"outcome": outcome})
        for outcome in ("committed", "conflict", "fenced", "refused")
    }
    assert counts == dict.fromkeys(counts, 1.0)
