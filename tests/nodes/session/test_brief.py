"""What a server or a driver says at length is said in a few words, and the node is named once."""

import psycopg
import pytest

from balancer.errors import Refused, Unavailable
from balancer.nodes.session.connection import brief, translate

pytestmark = pytest.mark.quick

AT = 'connection to server at "127.0.0.1", port 5432 failed: '
HINT = "\n\tIs the server running on that host and accepting TCP/IP connections?"

SEVERAL = (
    f"connection failed: {AT}Connection refused{HINT}\nMultiple connection attempts failed. All failures were:\n"
    f"- host: 'a', port: '1', hostaddr: '127.0.0.1': connection failed: {AT}Connection refused{HINT}"
)
SOCKET = (
    'connection is bad: connection to server on socket "/run/.s.PGSQL.5432" failed: No such file or directory\n'
    "\tIs the server running locally and accepting connections on that socket?"
)
CLOSED = (
    "consuming input failed: server closed the connection unexpectedly\n"
    "\tThis probably means the server terminated abnormally\n\tbefore or while processing the request."
)


@pytest.mark.parametrize(
    ("text", "short"),
    [
        (f"connection failed: {AT}Connection refused{HINT}", "connection refused"),
        (SEVERAL, "connection refused"),
        (SOCKET, "no such file or directory"),
        ("failed to resolve host 'x': [Errno -2] Name or service not known", "failed to resolve host 'x': Name or"),
        (f'connection failed: {AT}FATAL:  password authentication failed for user "ann"', "password authentication"),
        (CLOSED, "server closed the connection unexpectedly"),
        ("permission denied for table orders", "permission denied for table orders"),
        ("", ""),
        ("\x1b[31mred\nline", "\\x1b[31mred line"),
    ],
)
def test_only_the_reason_is_kept(text: str, short: str) -> None:
    assert brief(text).startswith(short)
    assert len(brief(text)) <= max(60, len(short) + 30)


def test_a_node_is_named_once_and_the_reason_stands_alone() -> None:
    down = translate("pg-b", psycopg.OperationalError(f"connection failed: {AT}Connection refused{HINT}"))
    assert (str(down), isinstance(down, Unavailable)) == ("node pg-b cannot be reached (connection refused)", True)
    assert isinstance(down, Unavailable)
    assert down.why == "connection refused"
    locked = translate("pg-b", psycopg.OperationalError(f'{AT}FATAL:  role "ann" does not exist'))
    assert str(locked) == 'node pg-b does not let us in: role "ann" does not exist'
    full = translate("pg-b", psycopg.errors.DiskFull("could not extend file: No space left on device"))
    assert (str(full), isinstance(full, Refused)) == (
        "node pg-b has no space left (could not extend file: No space left on device)",
        True,
    )
    denied = translate("pg-b", psycopg.errors.InsufficientPrivilege("permission denied for table orders"))
    assert str(denied).endswith("denies us a right (permission denied for table orders): see `balancer node check`")
