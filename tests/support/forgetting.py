"""A leader killed while it forgets: `python -m tests.support.forgetting URL FOLDER N` stops at its N-th commit.

FOLDER has the configuration. It says `stands` before the commit is sent, and waits forever.
"""

import sys
import threading
from pathlib import Path

from balancer.clock import SystemClock
from balancer.daemon import housekeeping
from balancer.daemon.housekeeping import Housekeeping
from balancer.directory.contract import Directory
from balancer.directory.model import Transaction
from balancer.directory.open import open_directory
from balancer.settings import load_settings

AT_ONCE = 5
KEPT = 20
"""Instead of hundreds of records of each kind."""


def stop_at(directory: Directory, number: int) -> None:
    """Makes the directory stop at this commit."""
    commit, left = directory.commit, [number]

    def counted(transaction: Transaction) -> int:
        left[0] -= 1
        if not left[0]:
            print("stands", flush=True)
            threading.Event().wait()
        return commit(transaction)

    directory.commit = counted  # type: ignore[method-assign]


def main(url: str, folder: Path, number: int) -> None:
    housekeeping.AT_ONCE = AT_ONCE
    housekeeping.KEPT_MIGRATIONS = housekeeping.KEPT_COMMANDS = KEPT
    settings = load_settings(folder / "balancer.toml")
    with open_directory(url, lease=2.0) as directory:
        leadership = directory.campaign("first", timeout=20)
        assert leadership is not None
        stop_at(directory, number)
        Housekeeping(directory, leadership, lambda: settings, SystemClock()).forget()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
