"""One try of `Router.run` with `pipelined`: the proof, the statements and COMMIT in as few messages as possible.

It waits for nothing until the function reads rows, or ends. The server makes that safe: in a pipeline it skips every
command after a failed one until the next synchronisation. So when `hold` is refused, neither the statements after it
nor COMMIT are run; and the function's result is returned only when the answer to COMMIT has been read. `run` retries a
refused attempt, which it may: the function has no effects outside its transaction.
"""

from collections.abc import Callable
from typing import TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from balancer.client.messages import RoutedConnection
from balancer.client.transaction.drivers import BlockingDriver
from balancer.client.transaction.failures import Failure, classify
from balancer.client.transaction.pools import Loan
from balancer.client.transaction.steps import LONGEST_BORROW, AwaitChange, Borrow, GiveBack, TransactionRequest, Undo
from balancer.client.transaction.wire import OwnWords
from balancer.directory.locate import Location
from balancer.errors import OutcomeUnknown, UserError

Result = TypeVar("Result")
_SWALLOWED = "a statement in the transaction failed and its error was not passed on: nothing is committed"
_WAIT = 0.05
"""Seconds to wait for a newer map after a refusal, before `run` retries."""


def run_pipelined(
    hands: BlockingDriver,
    find: Callable[[], tuple[int, Location]],
    wish: TransactionRequest,
    function: Callable[[RoutedConnection], Result],
    left: float,
) -> Result:
    """Raises what `run` judges: the driver's errors; `OutcomeUnknown` if the connection broke once COMMIT was sent."""
    version, location = find()
    loan = hands._perform(Borrow(location.node, max(0.0, min(left, LONGEST_BORROW))))
    assert isinstance(loan, Loan)
    try:
        return _tried(loan, location, wish, function)
    except psycopg.Error as error:
        if classify(error) is Failure.MOVED:
            hands._perform(AwaitChange(version, min(left, _WAIT)))
        raise
    finally:
        _put_back(hands, loan)


def _tried(
    loan: Loan, location: Location, wish: TransactionRequest, function: Callable[[RoutedConnection], Result]
) -> Result:
    connection = loan.connection
    committing = False
    opening, _, hold = wish.opening(location).decode().partition("; ")
    try:
        with connection.pipeline():
            connection.execute(OwnWords(opening))
            if hold:
                writing = "false" if wish.read_only else "true"
                proof = f"CALL balancer.hold(%s::bigint, %s::bigint, {writing})"
                connection.execute(proof, (location.tablet, location.epoch), prepare=True)
            connection.pipelined = True
            try:
                result = function(connection)
            finally:
                connection.pipelined = False
            committing = True
            ended = connection.execute(OwnWords("COMMIT"))
    except psycopg.errors.PipelineAborted as error:
        if committing:
            raise UserError(_SWALLOWED) from error
        raise
    except psycopg.Error as error:
        if committing and classify(error) is Failure.LOST:
            raise OutcomeUnknown(f"the connection to node {location.node} broke during COMMIT") from error
        raise
    if ended.statusmessage != "COMMIT":
        raise UserError(_SWALLOWED)
    return result


def _put_back(hands: BlockingDriver, loan: Loan) -> None:
    connection = loan.connection
    try:
        if not connection.closed and connection.pgconn.transaction_status != TransactionStatus.IDLE:
            hands._perform(Undo(loan))
    except psycopg.Error:
        pass  # a broken connection is discarded when it is returned
    finally:
        hands._perform(GiveBack(loan))
