"""Commits are timed by what became of them, and nothing else changes."""

from pathlib import Path

import pytest

from balancer.clock import SystemClock
from balancer.directory.contract import Directory
from balancer.directory.model import RecordKind, Remove
from balancer.directory.open import open_directory
from balancer.errors import Conflict, Fenced, Refused
from balancer.instruments import Instruments
from balancer.planner.metrics import MeteredDirectory
from tests.support.directories import fill, moved, puts, transaction

pytestmark = pytest.mark.quick


def test_each_outcome_is_counted_on_its_own(tmp_path: Path) -> None:
    instruments = Instruments()

    def count(outcome: str) -> float | None:
        return instruments.registry.get_sample_value("balancer_directory_commit_seconds_count", {"outcome": outcome})

    opened = open_directory(f"sqlite://{tmp_path}/directory.db")
    wrapped: Directory = MeteredDirectory(opened, instruments, SystemClock())
    with wrapped as directory:
        snapshot = fill(directory)
        assert count("committed") == 1
        directory.commit(transaction(puts([moved(snapshot.tablet(1), "pg-b")]), snapshot.version))
        with pytest.raises(Conflict):
            directory.commit(transaction(puts([moved(snapshot.tablet(1), "pg-c")]), snapshot.version))
        with pytest.raises(Refused):
            directory.commit(transaction([Remove(RecordKind.TABLET, "1")], directory.snapshot().version))
        with pytest.raises(Fenced):
            directory.commit(transaction(puts([moved(snapshot.tablet(1), "pg-c")]), directory.snapshot().version, 7))
        assert (count("committed"), count("conflict"), count("refused"), count("fenced")) == (2, 1, 1, 1)
        assert directory.snapshot().tablet(1).node == "pg-b"
        assert len(directory.history()) == 2
