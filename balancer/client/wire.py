"""The router's own commands: sent as they are, in one message, without the cursor that an application's query has.

A cursor costs as much as the round trip itself, and BEGIN, the proof of ownership and COMMIT need none: they have no
parameters, no rows and nothing to prepare. Not for ROLLBACK, after which psycopg forgets what it has prepared: that
goes through a cursor. Each router waits for the steps in its own way (`Connection.wait`), so both stay interruptible.
"""

from collections.abc import Sequence
from typing import Any

from psycopg import generators
from psycopg.abc import PQGen
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.sql import Composed

_FATAL = ExecStatus.FATAL_ERROR


def send(connection: Any, statements: bytes) -> None:
    """Sends statements on a connection of either kind without waiting; `answers` waits."""
    connection.pgconn.send_query(statements)
    connection.pgconn.flush()


def answers(connection: Any) -> PQGen[None]:
    """Reads the answers to what was sent; raises the server's error, if any."""
    for result in (yield from generators.execute(connection.pgconn)):
        if result.status == _FATAL:
            raise error_from_result(result, encoding=connection.info.encoding)


def command(connection: Any, statements: bytes) -> PQGen[None]:
    """Both, for one connection."""
    connection.pgconn.send_query(statements)
    yield from answers(connection)


class OwnWords(str):
    """One of the library's own statements, sent by a cursor: it may begin and end the transaction."""

    __slots__ = ()


def together(cursor: Any, transactions: Sequence[tuple[bytes, Composed]], values: Any) -> OwnWords:
    """Whole transactions as one message. Without parameters of its own it is sent as it is: one round trip.

    COMMIT is on a line of its own: a statement may end with a comment.
    """
    whole = (f"{opening.decode()}; {cursor.mogrify(one, values)}\n; COMMIT" for opening, one in transactions)
    return OwnWords("; ".join(whole))


def rows_of(cursor: Any) -> list[list[Any]]:
    """The rows of each transaction of such a message; they have all arrived when the message has been answered."""
    found: list[list[Any]] = [[]]
    while True:
        if cursor.description is not None:
            found[-1] += cursor.fetchall()
        elif cursor.statusmessage == "COMMIT":
            found.append([])
        if not cursor.nextset():
            return found[:-1]


async def async_rows_of(cursor: Any) -> list[list[Any]]:
    """The same for a cursor whose fetches are awaited."""
    found: list[list[Any]] = [[]]
    while True:
        if cursor.description is not None:
            found[-1] += await cursor.fetchall()
        elif cursor.statusmessage == "COMMIT":
            found.append([])
        if not cursor.nextset():
            return found[:-1]
