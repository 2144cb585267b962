"""What a commit costs an ensemble of ZooKeeper with so many followers, and how long it takes until all know of it.

Followers are plain sockets in other processes (`tests.support.thin_followers`): what is measured is the servers. The
cost is the processor time of all three; what followers cost them without commits is taken off, and shown. The most
followers run once more as they used to be: they confirmed each second and read at once.
`BENCH_FOLLOWERS=100,400` runs a part; three minutes.
"""

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from balancer.client.keys.routes import CONFIRM_EVERY
from balancer.clock import SystemClock
from balancer.directory.contract import Directory
from balancer.directory.model import Put
from balancer.directory.open import open_directory
from tests.support.directories import fill, moved, transaction
from tests.support.tables import show_table
from tests.support.vitals import vitals
from tests.support.zookeeper_ensemble import ZooKeeperEnsemble

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

NUMBERS = [int(part) for part in os.environ.get("BENCH_FOLLOWERS", "100,400,1600").split(",")]
PROCESSES = 4
COMMITS, EVERY = 24, 0.4
MOVES, STEPS, STEP_EVERY = 4, 12, 0.05  # a move is so many commits, so many seconds apart
IDLE_SECONDS = 8.0
GOAL_MS = 0.2
PREDICTED = 10_000
TOP = Path(__file__).parents[2]
clock = SystemClock()


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one number of followers."""

    followers: int
    idle: float
    """Seconds of processor time a second, without commits."""
    commit: float
    """Seconds of processor time a commit, without that."""
    took: float
    """Seconds of a commit, median."""
    known: float
    """Seconds until the last follower knows of it, median."""
    move: float
    """Seconds of processor time for all commits of a move, which come one soon after the other."""


@contextmanager
def crowd(ensemble: ZooKeeperEnsemble, base: str, number: int, before: bool) -> Iterator[list[subprocess.Popen[str]]]:
    shares = [number // PROCESSES] * PROCESSES if number else []
    command = [sys.executable, "-m", "tests.support.thin_followers", ensemble.address, base]
    processes = [
        subprocess.Popen(
            [*command, str(share), *(("1.0", "0") if before else (str(CONFIRM_EVERY), "1"))],
            cwd=TOP,
            text=True,
            stdin=subprocess.PIPE,
            stdout=-1,
        )
        for share in shares
    ]
    try:
        for process in processes:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
        yield processes
    finally:
        for process in processes:
            process.terminate()
            process.communicate()


def used(ensemble: ZooKeeperEnsemble) -> float:
    """Seconds of processor time that the servers have used."""
    return sum(vitals(pid).cpu_seconds for server in ensemble.servers if (pid := server.pid()) is not None)


def idle_cost(ensemble: ZooKeeperEnsemble) -> float:
    before = used(ensemble)
    clock.sleep(IDLE_SECONDS)
    return (used(ensemble) - before) / IDLE_SECONDS


def cost(ensemble: ZooKeeperEnsemble, directory: Directory, base: str, number: int, *, before: bool = False) -> Cost:
    with crowd(ensemble, base, number, before) as processes:
        commit_all(directory, processes, 4)
        idle = idle_cost(ensemble)
        start, begun = used(ensemble), clock.monotonic()
        took, known = commit_all(directory, processes, COMMITS)
        spent, lasted = used(ensemble) - start, clock.monotonic() - begun
        start, begun = used(ensemble), clock.monotonic()
        for _ in range(MOVES):
            move(directory, processes)
        spent_on_moves, moving = used(ensemble) - start, clock.monotonic() - begun
    return Cost(
        *(number, idle, (spent - idle * lasted) / COMMITS, statistics.median(took), statistics.median(known)),
        (spent_on_moves - idle * moving) / MOVES,
    )


def move(directory: Directory, processes: Sequence[subprocess.Popen[str]]) -> None:
    """The commits of a move, and the wait until everybody knows of its end."""
    version = 0
    for number in range(STEPS):
        view = directory.snapshot()
        tablet = view.tablet(number % 8 + 1)
        version = directory.commit(transaction([Put(moved(tablet, tablet.node))], view.version))
        clock.sleep(STEP_EVERY)
    for process in processes:
        seen(process, version)


def commit_all(
    directory: Directory, processes: Sequence[subprocess.Popen[str]], commits: int
) -> tuple[list[float], list[float]]:
    """Seconds of each commit, and seconds until everybody knew of it."""
    took, known = [], []
    for number in range(commits):
        view = directory.snapshot()
        tablet = view.tablet(number % 8 + 1)
        begun = clock.monotonic()
        version = directory.commit(transaction([Put(moved(tablet, tablet.node))], view.version))
        took.append(clock.monotonic() - begun)
        known.append(max([seen(process, version) - begun for process in processes], default=0.0))
        clock.sleep(max(EVERY - (clock.monotonic() - begun), 0.0))
    return took, known


def seen(process: subprocess.Popen[str], version: int) -> float:
    """When the last follower of a process had this version."""
    assert process.stdout
    while True:
        found, at = process.stdout.readline().split()
        if int(found) >= version:
            return float(at)


def slope(costs: Sequence[Cost]) -> tuple[float, float]:
    """Seconds of processor time a follower and commit, and a follower and second, by least squares."""
    numbers = [one.followers for one in costs]
    return (
        statistics.linear_regression(numbers, [one.commit for one in costs]).slope,
        statistics.linear_regression(numbers, [one.idle for one in costs]).slope,
    )


def row(name: str, one: Cost, bare: float) -> list[object]:
    """A row of the table; servers that were busy all the time with what comes without commits tell nothing of these."""
    full = one.commit < 0
    each = (one.commit - bare) / one.followers * 1000 if one.followers and not full else ""
    commit, moving = ("", "") if full else (one.commit * 1000, one.move * 1000)
    return [name, one.idle * 1000, commit, one.took * 1000, one.known * 1000, each, moving]


def test_what_followers_cost_an_ensemble(zookeeper_ensemble: ZooKeeperEnsemble) -> None:
    base = f"/followers-{uuid4().hex}"
    with open_directory(f"zk://{zookeeper_ensemble.address}{base}") as directory:
        fill(directory)
        commit_all(directory, [], 50)  # the servers' own warming up
        costs = [cost(zookeeper_ensemble, directory, base, number) for number in (0, *NUMBERS)]
        former = cost(zookeeper_ensemble, directory, base, NUMBERS[-1], before=True)
    bare = costs[0].commit
    rows = [row(f"{one.followers:,}", one, bare) for one in costs]
    rows.append(row(f"{former.followers:,}, as before", former, bare))
    each, idle = slope(costs)
    predicted = (idle * PREDICTED * 1000, (bare + each * PREDICTED) * 1000)
    rows.append([f"{PREDICTED:,} (model)", *predicted, "", "", each * 1000, ""])
    show_table(
        f"An ensemble of three servers, {COMMITS} commits each; goal: ≤ {GOAL_MS} ms a follower",
        (
            "followers",
            "idle, ms/s",
            "cpu a commit, ms",
            "commit p50, ms",
            "all know p50, ms",
            "cpu a follower, ms",
            "move",
        ),
        rows,
    )
