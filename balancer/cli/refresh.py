"""`--watch`: shows a view again and again. On a terminal each view replaces the previous one."""

from collections.abc import Callable
from typing import Annotated

import typer

from balancer.cli.output import console, say
from balancer.clock import Clock, SystemClock

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
