"""Server processes behind connections: lost by their client, and waited for."""

import contextlib
import socket
import threading
import time
from typing import Any

import psycopg


def lose_while_busy(connection: psycopg.Connection[Any]) -> int:
    """Breaks a connection in the middle of a statement that takes a minute; returns the server's process."""
    pid = connection.info.backend_pid

    def sleep() -> None:
        with contextlib.suppress(psycopg.Error):
            connection.execute("SELECT pg_sleep(60)")

    asking = threading.Thread(target=sleep)
    asking.start()
    with socket.socket(fileno=connection.fileno()) as line:
        time.sleep(0.2)  # so that the statement has begun; if not, the server ends even sooner
        line.shutdown(socket.SHUT_RDWR)
        line.detach()
    asking.join()
    return pid


def wait_until_gone(observer: psycopg.Connection[Any], pid: int, seconds: float = 20.0) -> None:
    """Asks the server until one of its processes has ended."""
    deadline = time.monotonic() + seconds
    while observer.execute("SELECT FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone() is not None:
        assert time.monotonic() < deadline, f"server process {pid} is still there"
        time.sleep(0.05)
