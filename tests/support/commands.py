"""Runs the command line as a user does: a process, its output, its exit code; and programs alongside the tests."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from balancer.cli.main import main


@dataclass(frozen=True)
class Result:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """For a Python that imports what we import, and knows nothing about the settings of the user who runs the tests."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BALANCER_")}
    return {**clean, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(changes or {})}


@contextmanager
def started(*arguments: str | Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A Python with these arguments alongside the test; killed if it is still running at the end, however that came."""
    command = [sys.executable, *map(str, arguments)]
    with subprocess.Popen(command, env=environment(), text=True, **options) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def balancer(*arguments: str | Path, env: Mapping[str, str] | None = None, timeout: float = 120) -> Result:
    """`balancer …`, not on a terminal."""
    done = subprocess.run(
        [sys.executable, "-m", "balancer", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment(env),
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def balancer_here(*arguments: str | Path, env: Mapping[str, str] | None = None) -> Result:
    """`balancer …` in this process, through its real entry: starting Python would take most of the time."""
    out, err = StringIO(), StringIO()
    patched = pytest.MonkeyPatch()
    with patched.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(gc, "freeze", lambda: None)  # this process continues: what tests leave behind must be found in it
        patch.setattr(sys, "argv", ["balancer", *map(str, arguments)])
        for name in [name for name in os.environ if name.startswith("BALANCER_")]:
            patch.delenv(name)
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            main()
    return Result(int(ended.value.code or 0), out.getvalue(), err.getvalue())
