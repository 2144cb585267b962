"""`--follow`: something is done with every change of the directory, until somebody interrupts it."""

from collections.abc import Callable
from typing import NoReturn

from balancer.cli.output import fail
from balancer.clock import SystemClock
from balancer.directory.contract import Directory
from balancer.directory.snapshot import Snapshot
from balancer.errors import Conflict, Fenced, Unavailable

_LOOK_SECONDS = 1.0
_RETRY_SECONDS = 1.0


def follow_changes(directory: Directory, act: Callable[[Snapshot], None]) -> NoReturn:
    """Calls `act` with the newest view whenever there is one; a temporary failure is reported and retried."""
    clock = SystemClock()
    follower = directory.follow()
    seen = -1
    try:
        while True:
            snapshot = follower.wait(seen, _LOOK_SECONDS)
            if snapshot.version == seen:
                continue
            try:
                act(snapshot)
            except (Unavailable, Fenced, Conflict) as error:
                fail(str(error))
                clock.sleep(_RETRY_SECONDS)
            else:
                seen = snapshot.version
    finally:
        follower.close()
