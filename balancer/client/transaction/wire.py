"""The router's own commands: sent as they are, in one message, without the cursor that an application's query has.

A cursor costs as much as the round trip itself, and BEGIN, the proof of ownership and COMMIT need none: they have no
parameters, no rows and nothing to prepare. Not for ROLLBACK, after which psycopg forgets what it has prepared: that
goes through a cursor. Each router waits for the steps in its own way (`Connection.wait`), so both stay interruptible.

A block's first statement, which brings the transaction's beginning along: BEGIN, the proof and it in one round trip.

The three are sent in libpq's pipeline mode, so the server runs nothing after a refused proof; and the statement's
answer is read only after the proof's. psycopg's own pipeline would do the same, at a price: here the cursor sends and
reads the statement exactly as it always does, and only what precedes it and the synchronisation after it are added.
Anything that cannot travel this way begins the transaction first, in a round trip of its own: a statement without
parameters (which may be several, and then needs the simple protocol), one that psycopg is about to prepare, COPY,
`executemany`, `stream`, and cursors of other kinds.

Whether the text of a statement ends the transaction that it is sent in, as PostgreSQL would read it. Pure.

Inside a block that is refused before it is sent: what follows in the same text, by AND CHAIN or by another BEGIN, would
run without a proof. Only the text can end it: procedures and DO cannot inside a transaction, and PREPARE accepts none
of these statements.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import psycopg
from psycopg import generators
from psycopg._preparing import Prepare
from psycopg.abc import PQGen
from psycopg.errors import error_from_result
from psycopg.generators import fetch_many, send
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.sql import Composed
from psycopg.waiting import Ready

from balancer.errors import UserError

_FATAL = ExecStatus.FATAL_ERROR


def send_statements(connection: Any, statements: bytes) -> None:
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


_NO_SUCH_STATEMENT = "26000"
Beginning = Callable[[PQGen[None], bool], PQGen[None]]
"""What wraps a statement's own sending and reading; told whether the beginning needs a round trip of its own."""


OVER = (
    "the proven transaction is over: it was ended inside its block, or could not begin;"
    " leave COMMIT and ROLLBACK to the router"
)
_SPACE = rb"(?:\s|--[^\n]*\n|/\*.*?\*/)"
_CHAINED = re.compile(rb"\band" + _SPACE + rb"+chain\b", re.IGNORECASE | re.DOTALL)
_ENDED = frozenset({b"COMMIT", b"PREPARE TRANSACTION"})
_BEGINS = frozenset({b"BEGIN", b"START TRANSACTION"})


def note_ends(connection: Any, cursor: Any, results: Sequence[Any]) -> None:
    """Notes whether an application's statement has ended the transaction."""
    if ended_inside(cursor, results):
        connection.over = True


def ended_inside(cursor: Any, results: Sequence[Any]) -> bool:
    """Whether one of the application's statements has ended the transaction, going by what the server says it was. What
    may have followed at once, by AND CHAIN or another BEGIN, has no proof. ROLLBACK TO a savepoint is called ROLLBACK
    too.
    """
    tags = {result.command_status for result in results}
    if b"ROLLBACK" in tags:
        text = cursor._query.query if cursor._query is not None else b""
        return bool(tags & _ENDED or tags & _BEGINS or _CHAINED.search(text))
    return not tags.isdisjoint(_ENDED)


class FirstCursor(psycopg.Cursor[Any]):
    """psycopg's cursor, on a connection whose transaction may not have begun."""

    beginning: Beginning | None = None
    may_join = True
    """Whether there is a proof that the statement can follow."""
    ends_message = False
    """Whether the statement is the last of what is sent together."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        connection: Any = self._conn
        try:
            if connection.opening is None or not self._begun_with(connection, query, params, options):
                self._pgconn = connection.pgconn  # it may differ from when the cursor was made
                super().execute(query, params, **options)
        except psycopg.errors.CheckViolation as error:
            if connection.hints is not None:
                connection.hints().no_partition(error)
            raise
        if connection.over:
            raise UserError(OVER)
        if self._rowcount == 0 and connection.hints is not None:
            connection.hints().found_nothing(query, params, connection)
        return self

    def _set_results(self, results: Any) -> None:
        super()._set_results(results)
        connection: Any = self._conn
        if connection.begun:
            note_ends(connection, self, results)

    def _begun_with(self, connection: Any, query: Any, params: Any, options: dict[str, Any]) -> bool:
        with connection.lock:
            if connection.opening is None:  # another thread was quicker
                return False
            connection.opening.begin_with(self, query, params, options)
            return True

    def executemany(self, *arguments: Any, **options: Any) -> None:
        self._pgconn = self._conn.pgconn
        super().executemany(*arguments, **options)

    def stream(self, *arguments: Any, **options: Any) -> Any:
        self._pgconn = self._conn.pgconn
        return super().stream(*arguments, **options)

    def copy(self, *arguments: Any, **options: Any) -> Any:
        self._pgconn = self._conn.pgconn
        return super().copy(*arguments, **options)

    def _maybe_prepare_gen(self, pgq: Any, *, prepare: bool | None = None, binary: bool | None = None) -> PQGen[None]:
        statement = super()._maybe_prepare_gen(pgq, prepare=prepare, binary=binary)
        if self.beginning is None:
            return statement
        self.ends_message = (
            self.may_join and bool(pgq.params) and self._get_prepared(pgq, prepare)[0] is not Prepare.SHOULD
        )
        return self.beginning(statement, not self.ends_message)

    def _execute_send(self, *arguments: Any, **options: Any) -> None:
        super()._execute_send(*arguments, **options)
        self._synchronise()

    def _send_query_prepared(self, *arguments: Any, **options: Any) -> None:
        super()._send_query_prepared(*arguments, **options)
        self._synchronise()

    def _synchronise(self) -> None:
        # Here, not after the statement has been flushed: a second packet would wake the server a second time.
        if self.ends_message:
            self.ends_message = False
            self._pgconn.pipeline_sync()


class Proof(NamedTuple):
    """BEGIN and the call of `balancer.hold`, as the extended protocol wants them."""

    begin: bytes
    name: bytes
    call: bytes

    def send(self, connection: Any, pgconn: Any, values: list[bytes]) -> int:
        """Sends both; returns the number of answers to read."""
        pgconn.send_query_params(self.begin, None)
        if connection.prepare_threshold is None:  # behind PgBouncer, say
            pgconn.send_query_params(self.call, values)
            return 2
        count = 2
        if self.name not in connection.proofs:
            pgconn.send_prepare(self.name, self.call)
            count = 3
        pgconn.send_query_prepared(self.name, values)
        return count


def with_statement(
    connection: Any, proof: Proof, values: list[bytes], statement: PQGen[None], proven: Callable[[], None]
) -> PQGen[None]:
    """Calls `proven` when the proof has been given, and only then lets the statement read its answer."""
    pgconn = connection.pgconn
    pgconn.enter_pipeline_mode()
    count = proof.send(connection, pgconn, values)
    next(statement)  # everything is sent, and it waits for its answer
    yield from send(pgconn)
    for left in range(count, 0, -1):
        for result in (yield from fetch_many(pgconn)):
            if result.status == _FATAL:
                error = error_from_result(result, encoding=connection.info.encoding)
                if error.sqlstate == _NO_SUCH_STATEMENT:  # the application has deallocated it
                    connection.proofs.discard(proof.name)
                with suppress(psycopg.Error):
                    for _ in range(left + 1):  # what was skipped, and the synchronisation
                        yield from fetch_many(pgconn)
                    pgconn.exit_pipeline_mode()
                raise error
        if left == 2:  # either it has just been prepared, or that is not done on this connection
            connection.proofs.add(proof.name)
    proven()
    try:
        ready: int = Ready.R  # its answer has come, as far as we know; nothing may follow that could be waited for
        while True:
            ready = yield statement.send(ready)
    except StopIteration:
        pass
    except psycopg.Error:
        with suppress(psycopg.Error):
            yield from _ended(pgconn)
        raise
    yield from _ended(pgconn)


def _ended(pgconn: Any) -> PQGen[None]:
    if pgconn.status == ConnStatus.OK:
        yield from fetch_many(pgconn)
        pgconn.exit_pipeline_mode()


_PART = re.compile(
    r"""(?P<hidden>[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n\r]*)
    |(?P<word>[^\W\d][\w$]*)                                   # a $ in a name begins no quotation
    |(?P<quoted>\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$)
    |(?P<comment>/\*)
    |(?P<other>[^\w'"$/\-]+|.)""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT = re.compile(r"/\*|\*/")
_ENDS = re.compile(
    r"\s*(?:commit|end|begin|(?:start|prepare)\s+transaction"
    r"|(?:rollback|abort)(?!\s+(?:(?:work|transaction)\s+)?to\b))\b",
    re.IGNORECASE,
)
_GOES_BACK = re.compile(r"\s*(?:rollback|abort)\s+(?:(?:work|transaction)\s+)?to\b", re.IGNORECASE)


@lru_cache(maxsize=1024)
def ends_transaction(text: str) -> bool:
    """Whether one of its statements ends it, or begins another."""
    return any(_ENDS.match(statement) for statement in bare(text).split(";"))


@lru_cache(maxsize=1024)
def goes_back(text: str) -> bool:
    """Whether one of its statements goes back to a savepoint."""
    return any(_GOES_BACK.match(statement) for statement in bare(text).split(";"))


def bare(text: str) -> str:
    """The text with a space for each comment and everything quoted."""
    return "".join(_bare(text))


def _bare(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        part = _PART.match(text, at)
        assert part is not None, "any character is a part"
        at = part.end()
        if part["comment"]:
            at = _end_of_comment(text, at)
        yield part["word"] or part["other"] or " "


def _end_of_comment(text: str, at: int) -> int:
    """Comments may be nested."""
    depth = 1
    for mark in _COMMENT.finditer(text, at):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(text)
