"""How a transaction begins on the right node and ends: the steps, without any I/O of their own.

`enter` and `leave` yield requests; `Router` carries them out with blocking calls, `AsyncRouter` with awaits, and each
throws the driver's errors back in. So there is one copy of the logic: what to wait for, what to retry, and when to give
up. `balancer.hold` on the node is what makes it safe (see `balancer/nodes/schema/hold.sql`).
"""

from collections.abc import Callable, Generator, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.sql import Composed

from balancer.client.transaction.failures import Failure, Wait, classify, classify_entry
from balancer.client.transaction.pools import Loan
from balancer.client.transaction.wire import Proof
from balancer.directory.locate import Location
from balancer.errors import OutcomeUnknown, Refused, Unavailable, UserError

FIRST_PAUSE = 0.005
LONGEST_PAUSE = 0.1
"""Seconds between two looks at a moving tablet: a switch takes some tens of milliseconds."""
_NOT_PREPARED = ("3F000", "42883")  # no schema, no function
LONGEST_BORROW = 1.0
"""Seconds to wait for a connection before asking the directory again: the node may be replaced meanwhile."""


class Isolation(StrEnum):
    """PostgreSQL's isolation levels, as SQL writes them."""

    READ_COMMITTED = "READ COMMITTED"
    REPEATABLE_READ = "REPEATABLE READ"
    SERIALIZABLE = "SERIALIZABLE"


class Borrow(NamedTuple):
    """A connection to a node, idle; answered with a `Loan`."""

    node: str
    timeout: float


class Execute(NamedTuple):
    """Statements to send as they are, in one message."""

    loan: Loan
    statements: bytes


class ExecuteEach(NamedTuple):
    """Statements for several loans, all sent before the first answer is awaited; answered with an error or None for
    each."""

    orders: tuple[tuple[Loan, bytes], ...]


class Query(NamedTuple):
    """Whole transactions in one message, each an opening and a statement; answered with the rows of each."""

    loan: Loan
    transactions: Sequence[tuple[bytes, Composed]]
    values: Any
    rows: Any = None
    """How rows are made, if not as the application has it on its connections."""


class Read(NamedTuple):
    """A statement in the transaction that is open; answered with its rows, as tuples."""

    loan: Loan
    statement: Composed


class CopyRows(NamedTuple):
    """COPY of rows from here."""

    loan: Loan
    statement: Composed
    rows: Sequence[Sequence[Any]]


class Undo(NamedTuple):
    """ROLLBACK."""

    loan: Loan


class GiveBack(NamedTuple):
    """Ends a loan; a connection that is broken or busy is discarded."""

    loan: Loan


class AwaitChange(NamedTuple):
    """Waits for the directory to pass a version, at most this many seconds."""

    version: int
    timeout: float


Request = Borrow | Execute | ExecuteEach | Query | Read | CopyRows | Undo | GiveBack | AwaitChange
Steps = Generator[Request, Any, "Held"]


class Held(NamedTuple):
    """A connection in a transaction on the owner of a tablet."""

    location: Location
    loan: Loan


def _opening(isolation: Isolation, read_only: bool) -> bytes:
    # Readers have one snapshot: then the rows cannot leave under them, and they delay nobody's switch.
    if read_only and isolation is Isolation.READ_COMMITTED:
        isolation = Isolation.REPEATABLE_READ
    access, writing = ("READ ONLY", "false") if read_only else ("READ WRITE", "true")
    return f"BEGIN ISOLATION LEVEL {isolation} {access}; CALL balancer.hold(%d, %d, {writing})".encode()


_OPENINGS = {
    (isolation, read_only): _opening(isolation, read_only) for isolation in Isolation for read_only in (True, False)
}
_UNPROVEN = {kind: opening.partition(b";")[0] for kind, opening in _OPENINGS.items()}


def _proof(isolation: Isolation, read_only: bool) -> Proof:
    writing = b"false" if read_only else b"true"
    call = b"CALL balancer.hold($1::bigint, $2::bigint, " + writing + b")"
    return Proof(_UNPROVEN[isolation, read_only], b"balancer_hold_" + writing, call)


_PROOFS = {kind: _proof(*kind) for kind in _OPENINGS}


class TransactionRequest(NamedTuple):
    """What is asked for: the transaction's kind, and until when (monotonic seconds) it may take to begin."""

    deadline: float
    isolation: Isolation = Isolation.READ_COMMITTED
    read_only: bool = False
    also: bytes = b""
    """A statement that follows in the same message."""
    proof: bool = True
    """False only if there is one database that owns everything: see `testing`."""
    wait: Wait | None = None
    """Is told what the beginning encounters."""
    signpost: Callable[[Location], str] | None = None
    """Where a tablet's bundle has gone, if to another directory: see `Routes.signpost`."""

    def refused(self, location: Location, failure: Failure, now: float) -> None:
        """An attempt failed; past the deadline it was the last."""
        if self.wait is not None:
            self.wait.refused(location, failure, now)
            if now >= self.deadline:
                self.wait.over(location, now, gave_up=True)
        # Its directory knows where it is; this one never will, so there is nothing to wait for.
        if failure is Failure.MOVED and (told := self.elsewhere(location)):
            if self.wait is not None:
                self.wait.over(location, now, gave_up=True)
            raise Refused(f"tablet {location.tablet} is not on node {location.node} any more: {told}")

    def elsewhere(self, location: Location) -> str:
        """Where to look for the tablet, if its bundle has gone to another directory; otherwise empty."""
        return "" if self.signpost is None else self.signpost(location)

    def opening(self, location: Location) -> bytes:
        """BEGIN and the proof of ownership: one message, one round trip."""
        if not self.proof:
            return _UNPROVEN[self.isolation, self.read_only] + self.also
        return _OPENINGS[self.isolation, self.read_only] % (location.tablet, location.epoch) + self.also

    @property
    def proof_apart(self) -> Proof:
        """The same for the extended protocol, where its values travel separately."""
        return _PROOFS[self.isolation, self.read_only]


def enter(find: Callable[[], tuple[int, Location]], wish: TransactionRequest, monotonic: Callable[[], float]) -> Steps:
    """Begins a transaction where the key is; waits out fences and follows moves until the wish's deadline.

    `find` returns the directory's version and the key's location by the newest snapshot known.
    """
    held, _ = yield from _begun(find, wish, monotonic, Execute)
    return held


def ask(
    find: Callable[[], tuple[int, Location]],
    wish: TransactionRequest,
    monotonic: Callable[[], float],
    statement: Composed,
    values: Any,
    *,
    rows_as: Any = None,
) -> Generator[Request, Any, tuple[Location, list[Any]]]:
    """A transaction of one statement in one message, where the tablet is; its rows."""
    whole = partial(_query, statement, values, rows_as)
    held, rows = yield from _begun(find, wish, monotonic, whole)
    yield GiveBack(held.loan)
    return held.location, rows[0]


def ask_together(
    node: str, transactions: Sequence[tuple[bytes, Composed]], values: Any
) -> Generator[Request, Any, list[list[Any]] | None]:
    """Several of them in one message to a node; None: one was refused, and all may be retried one by one."""
    loan: Loan | None = None
    try:
        loan = yield Borrow(node, LONGEST_BORROW)
        rows: list[list[Any]] = yield Query(loan, transactions, values)
    except psycopg.Error as error:
        if loan is not None:
            yield from _put_away(loan)
        if classify_entry(error) is Failure.OTHER:
            raise
        return None
    except BaseException:
        if loan is not None:
            yield GiveBack(loan)
        raise
    yield GiveBack(loan)
    return rows


def _query(statement: Composed, values: Any, rows_as: Any, loan: Loan, opening: bytes) -> Query:
    return Query(loan, [(opening, statement)], values, rows_as)


def _begun(
    find: Callable[[], tuple[int, Location]],
    wish: TransactionRequest,
    monotonic: Callable[[], float],
    message: Callable[[Loan, bytes], Execute | Query],
) -> Generator[Request, Any, tuple[Held, Any]]:
    pause = FIRST_PAUSE
    seen = Failure.LOST
    while True:
        version, location = find()
        left = wish.deadline - monotonic()
        loan: Loan | None = None
        try:
            loan = yield Borrow(location.node, max(0.0, min(left, LONGEST_BORROW)))
            answer = yield message(loan, wish.opening(location))
        except psycopg.Error as error:
            if loan is not None:
                yield from _put_away(loan)
            failure = classify_entry(error)
            if error.sqlstate in _NOT_PREPARED:
                raise Refused(
                    f"node {location.node} lacks the balancer's schema, or has an older version of it"
                ) from error
            if failure is Failure.OTHER:
                raise
            # What a node has said is more informative than that the last attempt had no time left.
            seen = seen if failure is Failure.LOST else failure
            now = monotonic()
            left = wish.deadline - now
            wish.refused(location, failure, now)
            if left <= 0:
                told = wish.elsewhere(location)
                raise Unavailable(too_late(location, seen) + (f"; {told}" if told else "")) from error
        except BaseException:
            if loan is not None:
                yield GiveBack(loan)
            raise
        else:
            if wish.wait is not None:
                wish.wait.over(location, monotonic())
            return Held(location, loan), answer
        yield AwaitChange(version, min(pause, left))
        pause = min(pause * 1.5, LONGEST_PAUSE)


def leave(held: Held, failed: bool) -> Generator[Request, Any, None]:
    """Commits, or rolls back if the block failed, and returns the connection."""
    loan = held.loan
    loan.connection.begun = False  # from here on we end it, not what the application sends
    try:
        if failed:
            if not loan.connection.closed:
                yield Undo(loan)
            return
        check_open(loan.connection.info.transaction_status, over=loan.connection.over)
        yield Execute(loan, b"COMMIT")
    except psycopg.Error as error:
        if failed:
            return  # the block's own error is what the caller sees; the server ends the transaction by itself
        check_outcome(held, error)
        raise
    finally:
        yield GiveBack(loan)


def check_outcome(held: Held, error: psycopg.Error) -> None:
    """For an error during COMMIT: raises `OutcomeUnknown` if the answer was lost."""
    if classify(error) is Failure.LOST:
        raise OutcomeUnknown(f"the connection to node {held.location.node} broke during COMMIT") from error


def _put_away(loan: Loan) -> Generator[Request, Any, None]:
    try:
        if not loan.connection.closed:
            yield Undo(loan)
    except psycopg.Error:
        pass  # a broken connection is discarded when it is returned
    finally:  # also when the task is cancelled meanwhile
        yield GiveBack(loan)


def check_open(status: TransactionStatus, *, over: bool = False) -> None:
    """Raises `UserError` if there is nothing to commit: the application has ended the transaction, or lost an error.

    `over`: it was ended, and another begun in its place, which the pool rolls back.
    """
    if status is TransactionStatus.INERROR:
        raise UserError("a statement in the transaction failed and its error was not passed on: nothing is committed")
    if over or status is TransactionStatus.IDLE:
        raise UserError(_ENDED)


_ENDED = "the transaction was ended inside its block: leave COMMIT and ROLLBACK to the router"


def too_late(location: Location, failure: Failure) -> str:
    what = {
        Failure.MOVING: "is still being moved",
        Failure.MOVED: "is not there, and the directory knows no other place",
    }.get(failure, "cannot be reached")
    return f"tablet {location.tablet} on node {location.node} {what}; gave up at the deadline, nothing was done"
