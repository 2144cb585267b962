"""Who loses the leadership is told why: the directory did not answer, or the process itself stood still."""

import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest

from balancer.directory.contract import Lease
from balancer.directory.open import open_directory
from balancer.errors import Fenced
from tests.support.fleet import until
from tests.support.manual_clock import ManualClock


def test_a_file_that_another_process_keeps_locked_is_named(tmp_path: Path) -> None:
    with open_directory(f"sqlite://{tmp_path}/directory.db", lease=1.0) as directory:
        leadership = directory.campaign("one", timeout=10)
        assert leadership is not None
        other = sqlite3.connect(tmp_path / "directory.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        until(lambda: not leadership.held(), 30, "the deadline")
        other.execute("ROLLBACK")
        other.close()
        with pytest.raises(Fenced, match=r"sent \d+\.\d s ago, and one that was sent .* s ago was not answered"):
            leadership.check()


def test_a_process_that_stood_still_is_told_so() -> None:
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    holding = Lease(clock, 7, 10.0, clock.monotonic())
    clock.advance(2)
    holding.prolong(holding.trying())
    clock.advance(6)
    holding.check()
    clock.advance(2)
    with pytest.raises(Fenced, match=r"epoch 7 .* sent 8\.0 s ago, and none was sent since: this process stood still"):
        holding.check()
