"""A leader that is stopped or killed, as a process of its own, on every backend."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from balancer.clock import SystemClock
from balancer.directory.model import Put
from balancer.directory.open import open_directory
from tests.support.commands import started
from tests.support.directories import fill, moved, transaction

LEASE = 2.0


@contextmanager
def leader(address: str) -> "Iterator[subprocess.Popen[str]]":
    with started(
        "-m", "tests.support.leading", address, str(LEASE), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield process


def ask(process: "subprocess.Popen[str]", line: str) -> str:
    assert process.stdin
    assert process.stdout
    if line:
        process.stdin.write(line + "\n")
        process.stdin.flush()
    return process.stdout.readline().strip()


def test_a_leader_that_was_stopped_finds_every_commit_fenced(address: str) -> None:
    with open_directory(address, lease=LEASE) as standby:
        view = fill(standby)
        with leader(address) as process:
            assert ask(process, "") == "leading 1"
            assert ask(process, "commit") == f"committed {view.version + 1}"
            assert ask(process, "held") == "True"
            assert standby.campaign("second", timeout=0.5) is None
            os.kill(process.pid, signal.SIGSTOP)
            second = standby.campaign("second", timeout=30)
            assert second is not None
            assert second.epoch == 2
            version = standby.snapshot().version
            standby.commit(transaction([Put(moved(view.tablet(3), "pg-a"))], version, second.epoch))
            os.kill(process.pid, signal.SIGCONT)
            assert ask(process, "held") == "False"
            assert [ask(process, "commit") for _ in range(5)] == ["Fenced"] * 5
        assert standby.snapshot().version == version + 1
        assert second.held()


def test_a_leader_that_was_killed_is_replaced(address: str) -> None:
    clock = SystemClock()
    with open_directory(address, lease=LEASE) as standby:
        fill(standby)
        with leader(address) as process:
            assert ask(process, "") == "leading 1"
            os.kill(process.pid, signal.SIGKILL)
            begun = clock.monotonic()
            second = standby.campaign("second", timeout=30)
            assert second is not None
            assert second.epoch == 2
            # A file's lock is free at once; ZooKeeper waits for the session, rounded up to its ticks.
            print(f"replaced after {clock.monotonic() - begun:.2f} s")
