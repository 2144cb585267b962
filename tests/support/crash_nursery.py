"""Starts daemons for the crash matrix without waiting for Python's imports: see `crash_daemon`, which it runs.

One nursery belongs to one thread. Its daemons end with it.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.crash_daemon import Plan


class Nursery:
    """A process that has imported everything, and forks on demand."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.crash_daemon"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=environment,
            cwd=Path(__file__).parents[2],
        )

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()

    def ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the nursery has ended"
        return answer.strip()

    @contextmanager
    def daemon(self, plan: Plan, file: Path) -> "Iterator[Daemon]":
        """A daemon for the length of a block."""
        plan.write(file)
        started = Daemon(self, int(self.ask(f"start {file}")), file.with_name("daemon.log"))
        try:
            yield started
        finally:
            started.end()


class Daemon:
    """One forked process."""

    def __init__(self, nursery: Nursery, pid: int, log: Path) -> None:
        self.pid = pid
        self._nursery = nursery
        self._log = log
        self._code: int | None = None

    def poll(self) -> int | None:
        """How it ended: its code, or minus the signal's number; None while it lives."""
        if self._code is None:
            answer = self._nursery.ask(f"poll {self.pid}")
            self._code = int(answer) if answer else None
        return self._code

    def wait(self, seconds: float) -> int | None:
        """How it ended; None if it has not within this time."""
        until = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        return self._code

    def stopped(self) -> bool:
        """Whether SIGSTOP holds it."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def end(self) -> None:
        self.send(signal.SIGKILL)
        self.wait(20)

    def words(self) -> str:
        """The end of what the cell's daemons said."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return " | ".join(lines[-3:]) or "(it said nothing)"
