"""Runs the command line as a user does: a process, its output, its exit code."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


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
