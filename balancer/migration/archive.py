"""The operator's archive command: run for each expired tablet before its rows go, and judged by its exit code alone.

It runs without a shell, and anything derived from a table's name follows `--word=`, so that no name becomes an option.
Our own secrets are not in its environment. It may run again for the same tablet (after a crash, or when something else
failed), so it must be able to start from the beginning.
"""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from balancer.errors import Refused

LOOK: Final = 0.1  # seconds between two checks for a cancel
_OURS = "BALANCER_"


def run_archive(command: Sequence[str], facts: Sequence[tuple[str, str]], pause: Callable[[float], None]) -> None:
    """Runs it to completion. Raises `Refused` unless it exits with 0; whatever `pause` raises ends it first."""
    arguments = [*command, *(f"--{word}={value}" for word, value in facts)]
    try:
        child = subprocess.Popen(  # noqa: S603 - the operator's own command, from the configuration, without a shell
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=_environment(os.environ)
        )
    except (OSError, ValueError) as error:
        raise Refused(f"the archive command {command[0]!r} cannot be run: {error}") from error
    try:
        while child.poll() is None:
            pause(LOOK)
    finally:
        if child.returncode is None:
            child.kill()
            child.wait()
    if child.returncode != 0:
        how = f"exit code {child.returncode}" if child.returncode > 0 else f"signal {-child.returncode}"
        raise Refused(f"the archive command {command[0]!r} ended with {how}: the tablet stays")


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in given.items() if not name.startswith(_OURS)}
