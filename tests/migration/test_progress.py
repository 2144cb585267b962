"""How far a migration is: never more than all of it, and all of it when the copy has ended."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from balancer.directory.contract import Directory
from balancer.directory.model import Tablet
from balancer.directory.open import open_directory
from balancer.migration.machine import State
from balancer.migration.progress import TOPIC, Observer, ProgressMeter
from balancer.policies.keyspace.hash_leaves import Leaf
from tests.support.directories import migration
from tests.support.manual_clock import ManualClock

pytestmark = pytest.mark.quick


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    with open_directory(f"sqlite://{tmp_path}/shop.db", create=True) as made:
        yield made


@pytest.mark.parametrize("copied", [800, 1000, 6400])
def test_an_estimate_is_corrected_by_what_was_copied(directory: Directory, copied: int) -> None:
    meter = ProgressMeter(directory, Observer(), ManualClock(datetime(2026, 1, 1, tzinfo=UTC)), lambda: False)
    record = migration(Tablet(1, 1, Leaf(1, 0), "pg-a"), "pg-b")
    meter.enter(record, State.COPYING)
    meter.expect(1000)
    for _ in range(10):
        meter.done(copied // 10)
        now = meter.now(1.0)
        assert now.bytes_done <= now.bytes_total
    meter.enter(record, State.CATCHING_UP)
    meter.tell(force=True)
    note = directory.published(TOPIC)[record.id]
    assert (note["bytes_done"], note["bytes_total"]) == (copied, copied)
    meter.enter(record, State.COPYING)
    meter.expect(500)
    assert meter.now(2.0).bytes_total == 500
