"""Replacing a whole directory, on every backend."""

from collections.abc import Sequence

import pytest

from balancer.directory.contract import Directory
from balancer.directory.history import records_of
from balancer.directory.invariants import violations
from balancer.directory.model import Put, Record
from balancer.errors import Conflict, Fenced, Refused
from tests.support.directories import RANGED, Opener, fill, frame, moved, ranges, small_cluster, transaction


def restore(directory: Directory, records: Sequence[Record]) -> int:
    leadership = directory.campaign("import", timeout=10)
    assert leadership is not None
    try:
        return directory.restore(records, reason="import", author="test", leader_epoch=leadership.epoch)
    finally:
        leadership.resign()


def test_everything_is_replaced_and_everybody_loads_anew(directory: Directory, opener: Opener) -> None:
    before = fill(directory)
    other = opener()
    follower = other.follow()
    new = [*frame(), RANGED, *ranges(range(2500), first=1)]
    version = restore(directory, [*new])
    assert version > before.version
    for view in (directory.snapshot(), opener().snapshot(), follower.wait(before.version, 20)):
        assert view.version == version
        assert records_of(view) == new
        assert list(view.tables) == [RANGED.id]
        assert len(view.pages) > 1
        assert list(violations(view)) == []
    (entry,) = other.history()
    assert (entry.version, entry.reason) == (version, "import")
    view = other.snapshot()
    assert other.commit(transaction([Put(moved(view.tablet(1), "pg-c"))], view.version)) == version + 1
    with pytest.raises(Conflict, match="the log does not reach back"):
        other.commit(transaction([Put(moved(view.tablet(2), "pg-c"))], before.version))


def test_an_empty_directory_can_be_filled(directory: Directory, opener: Opener) -> None:
    restore(directory, [*small_cluster()])
    assert opener().snapshot().tablet_count() == 12


def test_only_the_leader_may(directory: Directory) -> None:
    fill(directory)
    leadership = directory.campaign("import", timeout=10)
    assert leadership is not None
    with pytest.raises(Fenced):
        directory.restore(frame(), reason="import", author="test", leader_epoch=leadership.epoch - 1)
    assert directory.snapshot().tablet_count() == 12


def test_a_gap_that_pages_could_not_express_is_refused(directory: Directory) -> None:
    tablets = ranges([10, 20, 30])
    del tablets[1]
    with pytest.raises(Refused, match="are not adjacent"):
        restore(directory, [*frame(), RANGED, *tablets])
