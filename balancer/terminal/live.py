"""`--watch`: shows a view again and again. On a terminal each view replaces the previous one.

`--follow`: something is done with every change of the directory, until somebody interrupts it.
"""

from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

from balancer.clock import Clock, SystemClock
from balancer.directory.contract import Directory
from balancer.directory.snapshot import Snapshot
from balancer.errors import Conflict, Fenced, Unavailable
from balancer.terminal.output import console, fail, say

SECONDS = 1.0

WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="refresh every second; Ctrl-C stops")]


def shown(view: Callable[[], bool], watch: bool, clock: Clock | None = None) -> None:
    """Calls `view`, which prints and says whether there will be more to see: once, or until there is not."""
    clock = clock or SystemClock()
    while True:
        if watch and console.is_terminal:
            console.clear()
        more = view()
        if not (watch and more):
            return
        if not console.is_terminal:
            say("")
        clock.sleep(SECONDS)


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
