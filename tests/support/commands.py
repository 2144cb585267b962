"""Runs the command line as a user does: a process, its output, its exit code."""

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest

from balancer.cli.main import main


@dataclass(frozen=True)
class Result:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str


def balancer(*arguments: str | Path, env: Mapping[str, str] | None = None, timeout: float = 60) -> Result:
    """`balancer …`, not on a terminal."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BALANCER_")}
    environment = {**clean, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(env or {})}
    done = subprocess.run(
        [sys.executable, "-m", "balancer", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
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
        patch.setattr(sys, "argv", ["balancer", *map(str, arguments)])
        for name in [name for name in os.environ if name.startswith("BALANCER_")]:
            patch.delenv(name)
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            main()
    return Result(int(ended.value.code or 0), out.getvalue(), err.getvalue())
