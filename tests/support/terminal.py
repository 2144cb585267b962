"""A command on a real pseudo-terminal: reads what it draws, and presses keys."""

import fcntl
import os
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

# It makes the terminal its controlling one, as for a shell's job, so that Ctrl-C reaches it as a signal.
_START = (
    "import fcntl, runpy, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    " sys.argv[0] = 'balancer'; runpy.run_module('balancer', run_name='__main__')"
)


class Terminal:
    """`with Terminal("moves", "--watch") as terminal: terminal.until(lambda text: "copying" in text)`."""

    def __init__(self, *arguments: str | Path, columns: int = 80) -> None:
        self.text = ""
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        # Not to be passed on: the size is the terminal's, the settings are the test's.
        foreign = ("BALANCER_", "COLUMNS", "LINES")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, *map(str, arguments)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**clean, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._master)

    def until(self, holds: Callable[[str], object], what: str, seconds: float = 60.0) -> None:
        """Reads until the text so far is as wanted."""
        deadline = time.monotonic() + seconds
        while not holds(self.text):
            assert time.monotonic() < deadline, f"{what}; it shows:\n{self.text[-3000:]}"
            if not self._read(0.2):
                assert holds(self.text), f"{what}; it ended with:\n{self.text[-3000:]}"

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def end(self, seconds: float = 60.0) -> int:
        """Reads to the end; returns the exit code."""
        deadline = time.monotonic() + seconds
        while self._read(0.2):
            assert time.monotonic() < deadline, f"it does not end; it shows:\n{self.text[-3000:]}"
        return self._process.wait(seconds)

    def _read(self, seconds: float) -> bool:
        """False when the command has ended and all is read."""
        if not select.select([self._master], [], [], seconds)[0]:
            return self._process.poll() is None
        try:
            data = os.read(self._master, 65536)
        except OSError:  # Linux: the other side is closed
            return False
        self.text += data.decode(errors="replace")
        return bool(data)
