"""`balancer` in a process killed at its N-th message to a node: `python -m tests.support.ddl_killed N ARGUMENT…`.

N counts statements and commits on connections for schema changes; the kill comes before odd ones are sent and after
even ones were answered. Prints how many there were, if it survives.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import psycopg

from balancer.cli.main import main


def killed_at(number: int, whose: str = "tablet-balancer ddl") -> Callable[[], int]:
    """Counts from here on; returns a function that tells the count."""
    count = 0
    turn = threading.Lock()  # nodes are changed in parallel

    def counted(original: Any, connection_of: Callable[[Any], Any]) -> Any:
        def instead(self: Any, *arguments: Any, **more: Any) -> Any:
            nonlocal count
            ours = (connection_of(self).info.parameter_status("application_name") or "").startswith(whose)
            with turn:
                count += 2 * ours
                mine = count
            if ours and mine - 1 == number:
                os.kill(os.getpid(), signal.SIGKILL)
            answer = original(self, *arguments, **more)
            if ours and mine == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return instead

    psycopg.Cursor.execute = counted(psycopg.Cursor.execute, lambda cursor: cursor.connection)  # type: ignore[method-assign]
    psycopg.Connection.commit = counted(psycopg.Connection.commit, lambda connection: connection)  # type: ignore[method-assign]
    return lambda: count


if __name__ == "__main__":
    told = killed_at(int(sys.argv[1]))
    sys.argv = ["balancer", *sys.argv[2:]]
    try:
        main()
    finally:
        print(f"words {told()}")
