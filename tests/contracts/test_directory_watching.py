"""Following and notes, on every backend."""

import threading

import pytest

from balancer.clock import SystemClock
from balancer.directory.contract import Directory
from balancer.directory.model import Counter, Put
from balancer.errors import TooLarge, UserError
from tests.support.directories import Opener, fill, frame, moved, transaction
from tests.support.fleet import until


def test_a_follower_begins_with_the_newest_snapshot(directory: Directory, opener: Opener) -> None:
    base = fill(directory)
    follower = opener().follow()
    assert follower.snapshot.version == base.version
    assert list(follower.snapshot.tablets(1)) == list(base.tablets(1))


def test_a_follower_sees_commits_of_others(directory: Directory, opener: Opener) -> None:
    base = fill(directory)
    follower = opener().follow()
    for tablet in range(1, 6):
        version = directory.commit(transaction([Put(moved(base.tablet(tablet), "pg-c"))], base.version))
        view = follower.wait(version - 1, timeout=10)
        assert view.version >= version
        assert view.tablet(tablet).node == "pg-c"


def test_a_follower_learns_of_an_election_after_which_nothing_is_committed(
    directory: Directory, opener: Opener
) -> None:
    fill(directory)
    follower = opener().follow()
    for number in range(2):
        with opener() as candidate:
            won = candidate.campaign(f"leader {number}", timeout=20)
            assert won is not None
            until(lambda epoch=won.epoch: follower.snapshot.epoch == epoch, 10, "the news of an election")  # type: ignore[misc]
            won.resign()


def test_waiting_ends_at_the_timeout_with_the_newest_known(directory: Directory) -> None:
    base = fill(directory)
    follower = directory.follow()
    assert follower.wait(base.version, timeout=0.1).version == base.version


def test_the_age_stays_small_while_the_directory_can_be_reached(directory: Directory) -> None:
    follower = directory.follow()
    SystemClock().sleep(2.5)
    assert follower.age() < 2.0
    follower.close()
    follower.close()
    SystemClock().sleep(0.2)
    assert follower.age() >= 0.2


def test_followers_and_a_fast_writer_agree_at_the_end(directory: Directory, opener: Opener) -> None:
    fill(directory, frame())
    followers = [opener().follow() for _ in range(3)]
    for number in range(2, 60):
        version = directory.commit(transaction([Put(Counter("n", number))], directory.snapshot().version))
    for follower in followers:
        view = follower.wait(version - 1, timeout=20)
        assert view.version == version
        assert view.counters["n"].next == 59


def test_notes_are_left_read_and_taken_away(directory: Directory, opener: Opener) -> None:
    other = opener()
    assert other.published("progress") == {}
    directory.publish("progress", "m1", {"copied": 5})
    directory.publish("progress", "m1", {"copied": 6})
    directory.publish("progress", "m2", [1, 2])
    directory.publish("status", "one", "busy")
    assert other.published("progress") == {"m1": {"copied": 6}, "m2": [1, 2]}
    other.unpublish("progress", "m1")
    other.unpublish("progress", "m1")
    assert directory.published("progress") == {"m2": [1, 2]}
    assert directory.snapshot().version == 0


def test_notes_are_bounded(directory: Directory) -> None:
    with pytest.raises(TooLarge, match="262144 are allowed"):
        directory.publish("progress", "m1", "".join(f"{number:x}" for number in range(200_000)))
    with pytest.raises(UserError, match="cannot name a note"):
        directory.publish("progress", "a/b", 1)


def test_notes_may_be_left_by_several_threads_at_once(directory: Directory) -> None:
    threads = [threading.Thread(target=directory.publish, args=("t", f"n{number}", number)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert directory.published("t") == {f"n{number}": number for number in range(10)}
