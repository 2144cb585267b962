"""Two instances: the leader dies in the middle of a move, or is told to go; the other goes on, and nothing is lost."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from balancer.directory.contract import Directory
from balancer.directory.model import Migration
from tests.support.fleet import Fleet, Process, application, owners, running, until

pytestmark = pytest.mark.always

SESSION = 2.0
SLOW = """
retire_grace = "100ms"
moves_per_node = 2
moves_total = 4
cool_down = "0s"
throttle = "30kB"
# How long writers wait is not the question here: on a busy machine a switch must not be given up for it.
write_pause_budget = "10s"
fence_deadline = "20s"
"""


@contextmanager
def pair(fleet: Fleet, session: float = SESSION) -> Iterator[tuple[Process, Process]]:
    """A leader and its standby; moves take some seconds each."""
    fleet.write("observe", migration=SLOW)
    fleet.create(["a"], rows=4000)
    first, second = (fleet.write_daemon(name, session_timeout=f"{session:.0f}s") for name in ("first", "second"))
    with running(first) as leader:
        until(leader.leads, 60, "an election")
        with running(second) as standby:
            yield leader, standby
            print(f"what the standby said last:\n{standby.log.read_text()[-6000:]}")  # shown if the test failed


def moving(directory: Directory) -> list[Migration]:
    """Unfinished moves that are copying rows."""
    records = directory.snapshot().migrations.values()
    return [record for record in records if record.state == "copying"]


def test_a_standby_goes_on_after_the_leader_was_killed_in_the_middle_of_a_move(fleet: Fleet) -> None:
    with pair(fleet) as (leader, _), fleet.directory() as directory:
        with application(fleet, seed=1) as ledger:
            fleet.write("autonomous")
            until(lambda: moving(directory), 60, "a move")
            begun = set(directory.snapshot().migrations)
            leader.kill()
            taken = until(lambda: directory.leader() == "second", SESSION + 30, "a failover")
            print(f"the standby led after {taken:.2f} s")
            fleet.write("autonomous", migration=SLOW.replace("30kB", "30MB"))
            until(lambda: finished(directory, begun), 180, "the end of what was begun")
            until(lambda: max(owners(directory.snapshot()).values()) == 3, 180, "the balance")
            fleet.write("observe")  # nothing new, once it has been read: what was begun before is finished
        shown = settled_rows(fleet)
    states = {record.state for record in records(fleet, begun)}
    assert states <= {"done", "cancelled", "failed"}
    assert ledger.faults(shown) == []
    assert ledger.operations > 100
    assert taken < SESSION + 10.0, "nothing is waited for but the end of the session"


def settled_rows(fleet: Fleet) -> dict[str, dict[int, int]]:
    """What the nodes show while nothing migrates: a former owner shows its rows until they are retired.

    Balanced or not, the leader may begin another move while node after node is read: then they are read again.
    """
    shown: dict[str, dict[int, int]] = {}
    with fleet.directory() as directory:

        def stood_still() -> bool:
            before = directory.snapshot().migrations
            shown.update(fleet.cluster(directory.snapshot()).rows())
            return set(directory.snapshot().migrations) == {one for one in before if before[one].finished}

        until(stood_still, 90, "a moment without migrations")
    return shown


def finished(directory: Directory, begun: set[str]) -> bool:
    migrations = directory.snapshot().migrations
    return all(migrations[one].finished for one in begun)


def records(fleet: Fleet, begun: set[str]) -> list[Migration]:
    with fleet.directory() as directory:
        return [directory.snapshot().migrations[one] for one in begun]


def test_a_leader_that_is_told_to_go_hands_over_at_once(fleet: Fleet) -> None:
    session = 10.0
    with pair(fleet, session) as (leader, standby), fleet.directory() as directory:
        began = time.monotonic()
        leader.send(signal.SIGTERM)
        until(lambda: directory.leader() == "second", 60, "a handover")
        took = time.monotonic() - began
        print(f"handed over in {took:.2f} s")
        assert leader.wait() == 0
        until(standby.leads, 60, "leading")
    assert took < session, "the standby did not have to wait for the session to end"
