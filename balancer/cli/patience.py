"""A line that moves while a command is silent: nobody should wonder whether it hangs. Only on a terminal.

`main` watches over every command; whatever prints calls `spoken` first, which removes the line again.
"""

import threading
from typing import Final

from rich.console import Console
from rich.status import Status

from balancer.clock import Clock, SystemClock

SILENCE: Final = 2.0
"""Seconds after which an operator is told that something is happening."""
_LOOK: Final = 0.25


class Patience:
    """Of one process. `spoken` may be called from any thread."""

    def __init__(self, console: Console, clock: Clock | None = None) -> None:
        self._console = console
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._last = self._clock.monotonic()
        self._line: Status | None = None
        self._over = threading.Event()

    def watch(self) -> None:
        """From now on, until `over`."""
        if self._console.is_terminal:
            self._last = self._clock.monotonic()
            threading.Thread(target=self._run, name="patience", daemon=True).start()

    def spoken(self) -> None:
        """Something is about to be printed."""
        with self._lock:
            self._last = self._clock.monotonic()
            if self._line is not None:
                self._line.stop()
                self._line = None

    def over(self) -> None:
        """The command has ended, or shows what it does by itself."""
        self._over.set()
        self.spoken()

    def _run(self) -> None:
        while not self._over.wait(_LOOK):
            with self._lock:
                silent = self._clock.monotonic() - self._last
                if silent < SILENCE or self._over.is_set():
                    continue
                if self._line is None:
                    self._line = self._console.status("")
                    self._line.start()
                self._line.update(f"at work for {silent:.0f} s; Ctrl-C ends it")
