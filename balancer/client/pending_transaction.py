"""A transaction that a connection was lent for but that has not begun: how it begins, with or before a first statement.

A router's blocks and SQLAlchemy's sessions differ in what becomes of a refusal (`_again`) and who hears of the
beginning (`_begun`).
"""

from abc import abstractmethod
from typing import Any

import psycopg
from psycopg.abc import PQGen

from balancer.client.block_connections import Opening
from balancer.client.failures import classify_entry
from balancer.client.first_statement import with_statement
from balancer.client.locate import Location
from balancer.client.routing import Routes
from balancer.client.transaction_steps import Held, Wish
from balancer.client.wire import command
from balancer.errors import UserError


class PendingTransaction(Opening):
    """Begun once, on the connection of `_held` or on another that replaces it."""

    __slots__ = ("_asked", "_entered", "_held", "_routes", "_sent", "_wish")

    def __init__(self, routes: Routes, wish: Wish) -> None:
        self._routes = routes
        self._wish = wish
        self._held: Held | None = None
        self._sent = False
        self.sending = False
        self._entered = self._asked = 0.0

    @abstractmethod
    def _begun(self, location: Location) -> None:
        """Told where it is."""

    @abstractmethod
    def _again(self, held: Held, refused: psycopg.Error) -> None:
        """From the start, by the steps; the application's connection continues as the one that they find."""

    def begin(self) -> None:
        held = self._pending()
        refused: psycopg.Error | None = None
        self._asked = self._routes.clock.monotonic()
        self.sending = self._sent = True
        try:
            held.loan.connection.wait(self._alone(held))
        except psycopg.errors.QueryCanceled:
            held.loan.connection.show(self, None)
            raise
        except psycopg.Error as error:
            refused = error
        except BaseException:
            held.loan.connection.show(self, None)
            raise
        finally:
            self.sending = False
        if refused is not None:
            self._again(held, refused)

    def begin_with(self, cursor: Any, query: Any, params: Any, options: dict[str, Any]) -> None:
        held = self._pending()
        connection = held.loan.connection
        refused: psycopg.Error | None = None
        self._asked = self._routes.clock.monotonic()
        self.sending = True
        cursor.beginning, cursor.may_join = self._wrapped, self._wish.proof
        try:
            connection.wait(cursor._execute_gen(query, params, **options))
        except psycopg.Error as error:
            # Before anything was sent, or after the proof, it is the statement's own.
            if not self._sent or connection.opening is None:
                raise
            if isinstance(error, psycopg.errors.QueryCanceled):
                connection.show(self, None)  # a caller that cancels it does not want it sent again
                raise
            refused = error
        except BaseException:
            if self._sent and connection.opening is not None:
                connection.show(self, None)  # in the middle of something: the pool must see that
            raise
        finally:
            self.sending = False
            cursor.beginning = None
        if refused is not None:
            self._again(held, refused)
            cursor._pgconn = connection.pgconn
            psycopg.Cursor.execute(cursor, query, params, **options)

    def _pending(self) -> Held:
        if self._held is None:
            raise UserError("the block's transaction could not begin: its statements are not run")
        return self._held

    def _wrapped(self, statement: PQGen[None], alone: bool) -> PQGen[None]:
        """The beginning, then the statement; both at once if possible."""
        held = self._pending()
        self._sent = True
        if alone:
            return self._one_by_one(held, statement)
        location = held.location
        values = [b"%d" % location.tablet, b"%d" % location.epoch]
        return with_statement(held.loan.connection, self._wish.proof_apart, values, statement, self._proven)

    def _one_by_one(self, held: Held, statement: PQGen[None]) -> PQGen[None]:
        yield from self._alone(held)
        yield from statement

    def _alone(self, held: Held) -> PQGen[None]:
        yield from command(held.loan.connection, self._wish.opening(held.location))
        self._proven()

    def _proven(self) -> None:
        held = self._pending()
        held.loan.connection.show(self, held.location)
        self._begun(held.location)

    def _tried(self, location: Location, refused: psycopg.Error) -> None:
        """Before it begins once more: its patience starts now, however long the application has let it wait."""
        self._wish = self._wish._replace(deadline=self._wish.deadline + self._asked - self._entered)
        self._note(location, refused)

    def _note(self, location: Location, error: psycopg.Error) -> None:
        if self._wish.wait is not None:
            self._wish.wait.refused(location, classify_entry(error), self._routes.clock.monotonic())
