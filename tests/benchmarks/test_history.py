"""A directory that has lived through many commits, beside a fresh one in the same run: is it as quick, and as small?

Each round is what a migration leaves: its record, two more states, the tablet's new owner with the record's end; now
and then an answered command and a note that comes and goes; and, as the leader does it, old records are forgotten.
`BENCH_COMMITS=1000000` is a year of a busy cluster. In SQLite it lives in memory (`/dev/shm`), where a million commits
take ten minutes on an idle machine; ZooKeeper takes two milliseconds a commit, so it is measured up to 100,000 unless
`BENCH_COMMITS_ZOOKEEPER` says more.
"""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest

from balancer.clock import SystemClock
from balancer.daemon.housekeeping import forgettable
from balancer.directory.contract import Directory
from balancer.directory.model import Change, Command, CommandState, Counter, Put, Tablet, Transaction
from balancer.directory.open import open_directory
from balancer.embedded import process
from balancer.embedded.zookeeper import ZooKeeperServer
from balancer.policies.keyspace.hash_leaves import Leaf
from tests.support.directories import HASHED, NODES, frame, migration, moved
from tests.support.tables import show_table

pytestmark = [pytest.mark.bench, pytest.mark.timeout(7200)]

TABLETS = 8192
COMMITS = {"sqlite": int(os.environ.get("BENCH_COMMITS", "10000"))}
COMMITS["zookeeper"] = int(os.environ.get("BENCH_COMMITS_ZOOKEEPER", min(COMMITS["sqlite"], 100_000)))
MARKS = (2_000, 10_000, 100_000, 1_000_000)
FORGET_EVERY = 100  # rounds
clock = SystemClock()


@dataclass(frozen=True, slots=True)
class Place:
    """Where directories of one backend live."""

    backend: str
    url: Callable[[str], str]
    size: Callable[[str], int]
    """Bytes of a directory."""


@pytest.fixture(params=["sqlite", "zookeeper"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    run = uuid4().hex
    if request.param == "sqlite":
        memory = Path("/dev/shm")
        folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
        yield Place(
            "sqlite",
            lambda name: f"sqlite://{folder}/{name}.db",
            lambda name: sum(file.stat().st_size for file in folder.glob(f"{name}.db*")),
        )
        shutil.rmtree(folder)
    else:
        server: ZooKeeperServer = request.getfixturevalue("zookeeper")
        yield Place("zookeeper", lambda name: f"zk://{server.address}/{name}-{run}", lambda _: data_of(server))


def data_of(server: ZooKeeperServer) -> int:
    """Bytes of all znodes of a server: what its snapshots have. Its files grow until it purges them."""
    figures = dict(line.split("\t", 1) for line in process.ask(server.address, b"mntr").splitlines() if "\t" in line)
    return int(figures["zk_approximate_data_size"])


def made(url: str) -> None:
    tablets = [Tablet(i + 1, HASHED.id, Leaf(TABLETS, i), NODES[i % len(NODES)]) for i in range(TABLETS)]
    with open_directory(url) as directory:
        leadership = directory.campaign("bench", timeout=10)
        assert leadership is not None
        records = [*frame(NODES), HASHED, *tablets, Counter("tablet", TABLETS + 1)]
        directory.restore(records, reason="bench", author="bench", leader_epoch=leadership.epoch)
        leadership.resign()


class Life:
    """Commits as a leader makes them, each based on the one before: nobody else commits."""

    def __init__(self, directory: Directory, epoch: int, first: int) -> None:
        self._directory = directory
        self._epoch = epoch
        self._round = first
        view = directory.snapshot()
        self._version = view.version
        self._tablets = {tablet.id: tablet for tablet in view.tablets(HASHED.id)}
        self.commits = 0

    def commit(self, *changes: Change) -> None:
        wish = Transaction(changes, self._version, "a year", "bench", self._epoch)
        self._version = self._directory.commit(wish)
        self.commits += 1

    def live(self, commits: int) -> None:
        """So many commits, to the end of a round."""
        for number in count(self._round):
            self._live_once(number)
            if self.commits >= commits:
                self._round = number + 1
                return

    def _live_once(self, number: int) -> None:
        tablet = self._tablets[number % TABLETS + 1]
        target = next(node for node in NODES if node != tablet.node)
        record = replace(migration(tablet, target), id=f"m{number:012d}", updated=clock.now().timestamp())
        for state in ("planned", "copying", "catching_up"):
            record = replace(record, state=state)
            self.commit(Put(record))
        after = self._tablets[tablet.id] = moved(tablet, target)
        self.commit(Put(replace(record, state="done", finished=True)), Put(after))
        if number % 10 == 9:
            self._directory.publish("progress", record.id, {"bytes": number})
            self._directory.unpublish("progress", record.id)
            self.commit(Put(Command(f"c{number:012d}", "plan", {}, "ann", float(number), CommandState.DONE)))
        if number % FORGET_EVERY == FORGET_EVERY - 1:
            old = tuple(forgettable(self._directory.snapshot(), clock.now().timestamp() + 86400 * 365))
            for first in range(0, len(old), 500):
                self.commit(*old[first : first + 500])


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one start."""

    load_cpu: float
    lead: float
    """Seconds from the opening to the end of the first commit as the leader."""
    lead_cpu: float
    records: int


def start(url: str) -> Figures:
    """Opens and loads it, becomes its leader and commits once."""
    began, cpu = time.perf_counter(), time.process_time()
    with open_directory(url) as directory:
        snapshot = directory.snapshot()
        load_cpu = time.process_time() - cpu
        leadership = directory.campaign("second", timeout=10)
        assert leadership is not None
        directory.commit(
            Transaction((Put(Counter("bench", 1)),), snapshot.version, "a year", "bench", leadership.epoch)
        )
        lead, lead_cpu = time.perf_counter() - began, time.process_time() - cpu
        leadership.resign()
    return Figures(load_cpu, lead, lead_cpu, sum(len(records) for records in snapshot.records.values()))


def middle(starts: list[Figures]) -> Figures:
    names = ("load_cpu", "lead", "lead_cpu")
    load_cpu, lead, lead_cpu = (statistics.median(getattr(one, name) for one in starts) for name in names)
    return Figures(load_cpu, lead, lead_cpu, starts[-1].records)


def lived(url: str, done: int, commits: int) -> tuple[int, float]:
    """Commits in all after so many more, and milliseconds of processor time for each."""
    with open_directory(url) as directory:
        leadership = directory.campaign("bench", timeout=10)
        assert leadership is not None
        life = Life(directory, leadership.epoch, done)
        began = time.process_time()
        life.live(commits)
        spent = time.process_time() - began
        leadership.resign()
    return life.commits, spent / life.commits * 1000


def test_an_old_directory_is_as_quick_as_a_fresh_one(place: Place) -> None:
    fresh, old = place.url("fresh"), place.url("old")
    before = place.size("fresh")
    made(fresh)
    small = place.size("fresh") - before
    made(old)
    rows = []
    done = 0
    for mark in (mark for mark in MARKS if mark <= COMMITS[place.backend]):
        commits, each = lived(old, done, mark - done)
        done += commits
        pairs = [(start(fresh), start(old)) for _ in range(7)]  # alternating: both meet the same weather
        young, aged = (middle([pair[side] for pair in pairs]) for side in (0, 1))
        size = place.size("old") - (before + small if place.backend == "zookeeper" else 0)
        with open_directory(old) as directory:
            entries = len(directory.history(0, 1 << 20))
        loads = (young.load_cpu * 1000, aged.load_cpu * 1000)
        leads = (young.lead_cpu * 1000, aged.lead_cpu * 1000, aged.lead / young.lead)
        rows.append([f"{done:,}", each, *loads, *leads, aged.records, entries, small / 1e6, size / 1e6])
        print(f"{place.backend}: {done:,} commits", flush=True)
    show_table(
        f"{place.backend}: a directory of {TABLETS:,} tablets after so many commits, beside a fresh one",
        (
            *("commits", "cpu each, ms", "load fresh, cpu ms", "old", "to lead, cpu ms", "old", "ratio of time"),
            *("records", "log", "fresh, MB", "old, MB"),
        ),
        rows,
    )
