"""The operator's archive command: run for each expired tablet before its rows go, and believed by its exit code alone.

No shell sees it, and what comes from a table's name is always behind `--word=`, so that no name becomes an option. Our
own secrets are not in its environment. It may be run again for the same tablet (after a crash, or when something else
failed): it must be able to begin from the start.
"""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from balancer.errors import Refused

LOOK: Final = 0.1  # seconds between two looks at a cancel
_OURS = "BALANCER_"


def run_archive(command: Sequence[str], facts: Sequence[tuple[str, str]], pause: Callable[[float], None]) -> None:
    """Runs it to its end. Raises `Refused` unless it says 0; whatever `pause` raises ends it first."""
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
