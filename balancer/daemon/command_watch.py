"""Lets the leader carry out commands as they arrive, not at the next tick. The daemon starts and stops it."""

import threading
from collections.abc import Callable

import structlog

from balancer.daemon.leader_duties import Leading
from balancer.directory.contract import Follower
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError

log = structlog.get_logger()

LOOK_SECONDS = 0.5


class CommandWatch:
    """A thread that follows the directory."""

    def __init__(self, follower: Callable[[], Follower], leading: Callable[[], Leading | None]) -> None:
        self._follower = follower
        self._leading = leading
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="commands", daemon=True)

    def start(self) -> None:
        """Begins to follow."""
        self._thread.start()

    def stop(self) -> None:
        """Ends soon. Idempotent."""
        self._stopping.set()

    def close(self) -> None:
        """Waits for the end. Idempotent."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        follower = self._follower()
        seen = -1
        while not self._stopping.is_set():
            snapshot = follower.wait(seen, LOOK_SECONDS)
            leading = self._leading()
            if snapshot.version == seen or leading is None:
                seen = snapshot.version  # the elected leader answers what is waiting, from a newer snapshot than this
                continue
            if self._answer(leading, snapshot):
                seen = snapshot.version
            else:
                self._stopping.wait(1.0)

    def _answer(self, leading: Leading, snapshot: Snapshot) -> bool:
        try:
            leading.answer_commands(snapshot)
        except BalancerError as error:
            log.warning("commands wait", error=str(error))
            return False
        except Exception:
            # The thread's last boundary: a bug in one verb must not end the others forever.
            log.exception("commands wait")
            return False
        return True
