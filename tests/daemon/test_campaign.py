"""Standing for election goes on, whatever becomes of a leadership; and it is handed to the instance that is wanted."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from balancer.clock import SystemClock
from balancer.daemon.leadership import LeaderLoop, Spreader
from balancer.directory.contract import Leadership
from balancer.directory.notes import INSTANCES
from balancer.directory.sqlite.backend import SqliteDirectory
from balancer.errors import Unavailable
from balancer.instruments import Instruments
from balancer.policies.leader_choice import Contender, wanted_leader
from balancer.settings.files import DaemonFile
from tests.support.fleet import until
from tests.support.running import quiet_logs

pytestmark = pytest.mark.quick

QUICK = {"spread": True, "settle": 0.2, "lead_at_least": 0.2}


def loop_of(
    directory: SqliteDirectory,
    name: str,
    elected: Callable[[Leadership], None],
    deposed: Callable[[], None],
    **leadership: object,
) -> LeaderLoop:
    file = DaemonFile(directory="zk://h:2181/shop", instance=name, session_timeout=1.0, leadership=leadership)
    spreader = Spreader(
        directory,
        lambda: file,
        unfit=lambda: "",
        under_way=lambda: "",
        instruments=Instruments(),
        clock=SystemClock(),
    )
    return LeaderLoop(directory, name, elected, deposed, spreader)


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
        loop = loop_of(directory, "host", elected, deposed)
        loop.start()
        assert twice.wait(60.0), "it led once and never again"
        loop.stop()
    assert epochs[:2] == [1, 2]


def test_the_wanted_one_is_handed_the_leadership_and_one_that_cannot_lead_gives_it_back(tmp_path: Path) -> None:
    wanted = wanted_leader("shop", [Contender("a"), Contender("b")])
    other = "b" if wanted == "a" else "a"
    terms: list[str] = []
    able = False

    def elected(name: str) -> Callable[[Leadership], None]:
        def lead(_: Leadership) -> None:
            terms.append(name)
            if name == wanted and not able:
                raise Unavailable("no node answers")

        return lead

    with quiet_logs(), SqliteDirectory(tmp_path / "directory.db") as directory:
        loops = [loop_of(directory, name, elected(name), lambda: None, **QUICK) for name in (other, str(wanted))]
        loops[0].start()
        until(lambda: loops[0].leadership, 8, "the first leads")
        loops[1].start()
        until(lambda: terms[:3] == [other, wanted, other], 8, "handed over, and given back")
        able = True
        until(lambda: directory.leader() == wanted and loops[1].leadership, 8, "another chance")
        for loop in loops:
            loop.stop()
        assert directory.published(INSTANCES) == {}, "those that leave are waited for by nobody"
        assert directory.leader() is None
    assert terms[:3] == [other, wanted, other]
