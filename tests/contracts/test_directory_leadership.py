"""Leadership, on every backend."""

import threading

import pytest

from balancer.clock import SystemClock
from balancer.directory.contract import Directory
from balancer.directory.model import Bundle, Put
from balancer.directory.open import open_directory
from balancer.errors import Fenced
from tests.support.directories import Opener, fill, moved, transaction
from tests.support.fleet import until


def test_one_leads_and_another_waits_until_it_resigns(opener: Opener) -> None:
    one, other = opener(), opener()
    first = one.campaign("one", timeout=10)
    assert first is not None
    assert first.held()
    until(lambda: other.leader() == "one", 10, "its name seen through another server")
    assert other.campaign("other", timeout=0.3) is None
    first.resign()
    first.resign()
    assert not first.held()
    second = other.campaign("other", timeout=10)
    assert second is not None
    assert second.epoch > first.epoch
    until(lambda: one.leader() == "other", 10, "the new name")


def test_a_waiting_standby_takes_over(opener: Opener) -> None:
    one, other = opener(), opener()
    first = one.campaign("one", timeout=10)
    assert first is not None
    won: list[object] = []
    thread = threading.Thread(target=lambda: won.append(other.campaign("other", timeout=20)))
    thread.start()
    one.close()
    thread.join()
    assert won[0] is not None
    assert other.leader() == "other"


def test_commits_under_an_older_epoch_are_fenced(opener: Opener) -> None:
    one, other = opener(), opener()
    base = fill(one)
    first = one.campaign("one", timeout=10)
    assert first is not None
    version = one.commit(transaction([Put(moved(base.tablet(1), "pg-c"))], base.version, first.epoch))
    first.resign()
    second = other.campaign("other", timeout=10)
    assert second is not None
    with pytest.raises(Fenced, match="leader epoch"):
        one.commit(transaction([Put(moved(base.tablet(2), "pg-c"))], version, first.epoch))
    other.commit(transaction([Put(moved(base.tablet(2), "pg-b"))], version, second.epoch))
    with pytest.raises(Fenced):  # also where the record has changed since: stepping down comes before reading again
        one.commit(transaction([Put(moved(base.tablet(2), "pg-c"))], version, first.epoch))
    with pytest.raises(Fenced, match="not held any more"):
        first.check()
    assert one.snapshot().epoch == second.epoch


def test_an_epoch_that_never_was_is_fenced(directory: Directory) -> None:
    with pytest.raises(Fenced):
        directory.commit(transaction([Put(Bundle("shop"))], 0, 7))


def test_commits_without_an_epoch_pass_under_any_leader(opener: Opener) -> None:
    one, other = opener(), opener()
    assert one.campaign("one", timeout=10) is not None
    assert other.commit(transaction([Put(Bundle("shop"))], 0)) == 1


def test_leadership_outlasts_its_lease_while_the_holder_lives(address: str) -> None:
    with open_directory(address, lease=2.0) as directory:
        leadership = directory.campaign("one", timeout=10)
        assert leadership is not None
        SystemClock().sleep(2.5)
        assert leadership.held()


def test_closing_the_directory_ends_leadership(opener: Opener) -> None:
    one = opener()
    leadership = one.campaign("one", timeout=10)
    assert leadership is not None
    one.close()
    one.close()
    assert not leadership.held()
    assert opener().leader() is None
