"""The short transaction of a conversion, and of its way back: retried until it fits into the pause allowed to writers.

Everybody who wants the tables waits while it lasts, so it waits only briefly for locks, and a swap that takes longer
than `write_pause_budget` is rolled back and retried. Used by `convert` and `unconvert`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from balancer.clock import Clock
from balancer.errors import Unavailable
from balancer.naming import Name
from balancer.nodes.catalog.owners_code import LOCK_TIMEOUT, check_readable
from balancer.nodes.catalog.roots import full_names
from balancer.nodes.schema.blockers import SWAP, find_blockers
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.session.connection import (
    Connection,
    Cursor,
    Statement,
    lock_timeout,
    run_single,
    statement_timeout,
    translated,
)
from balancer.settings import MigrationSettings

Observe = Callable[[str], None]
"""Is told of each step when it begins, by name; tests end the process there."""


@dataclass(slots=True)
class SwapSession:
    """The node on which a table is converted, and how long it may take."""

    node: str
    connection: Connection
    leader_epoch: int
    settings: MigrationSettings
    clock: Clock
    observe: Observe
    _locked: float | None = None
    """When others began to wait."""

    def short(self, tables: Sequence[Name], work: Callable[[Cursor], None]) -> float:
        """A transaction that keeps others out from where it calls `lock`; retried until that fits into the budget.

        Returns how long others waited, in seconds.
        """
        patience = self.clock.monotonic() + self.settings.retry_patience
        pause = self.settings.retry_back_off
        while True:
            self._locked = None
            try:
                self._attempt(work)
                return self.clock.monotonic() - (self._locked or self.clock.monotonic())
            except Unavailable as error:
                if self.clock.monotonic() + pause > patience:
                    limits = f"{self.settings.write_pause_budget * 1000:g} ms (write_pause_budget)"
                    raise Unavailable(
                        f"{error}; writers may wait {limits}, and it was tried for"
                        f" {self.settings.retry_patience:g} s{self._in_the_way(tables)}"
                    ) from error
            self.clock.sleep(pause)
            pause = min(pause * 2, self.settings.retry_back_off_limit)

    def _attempt(self, work: Callable[[Cursor], None]) -> None:
        budget = self.settings.write_pause_budget
        with node_transaction(self.connection, self.leader_epoch, self.node, durable=True) as cursor:
            run_single(cursor, lock_timeout(min(self.settings.lock_timeout, LOCK_TIMEOUT)))
            run_single(cursor, statement_timeout(budget * 4))
            with full_names(cursor):
                work(cursor)
            took = self.clock.monotonic() - (self._locked or self.clock.monotonic())
            if took > budget:
                raise Unavailable(f"the swap took {took * 1000:.0f} ms on node {self.node} and was undone")

    def lock(self, cursor: Cursor, statements: Sequence[Statement]) -> None:
        """Takes several locks within the time for one: it does not wait for a session that holds one and wants another
        until the server finds a deadlock, because that might end the other session and not this one."""
        self._locked = self.clock.monotonic()
        until = self._locked + min(self.settings.lock_timeout, LOCK_TIMEOUT)
        for statement in statements:
            left = until - self.clock.monotonic()
            if left <= 0:
                raise Unavailable(f"node {self.node} did not give all locks within lock_timeout")
            run_single(cursor, lock_timeout(left))
            run_single(cursor, statement)
        run_single(cursor, lock_timeout(min(self.settings.lock_timeout, LOCK_TIMEOUT)))

    def _in_the_way(self, tables: Sequence[Name]) -> str:
        with translated(self.node):
            found = find_blockers(self.connection, tables, SWAP)
        return f"; in the way: {', '.join(map(str, found))}" if found else ""

    def long(self, statement: Statement, tables: Sequence[Name] = ()) -> None:
        """A statement that keeps nobody out and may take hours; it must not run code of the owners of `tables`."""
        with node_transaction(self.connection, self.leader_epoch, self.node):
            pass  # the leader's epoch is checked but not held: a new leader need not wait for an index
        with translated(self.node), self._patient():
            if not tables:
                with self.connection.cursor() as cursor:
                    run_single(cursor, statement)
                return
            with self.connection.transaction(), self.connection.cursor() as cursor:
                check_readable(cursor, tables, trusted=self.settings.trust_table_owners)
                run_single(cursor, statement)

    @contextmanager
    def _patient(self) -> Iterator[None]:
        names = ("statement_timeout", "lock_timeout")
        row = self.connection.execute("SELECT current_setting(%s), current_setting(%s)", names).fetchone()
        assert row is not None
        self.connection.execute("SELECT set_config(n, '0', false) FROM unnest(%s::text[]) AS n", (list(names),))
        try:
            yield
        finally:
            if not self.connection.closed:
                set_back = "SELECT set_config(n, v, false) FROM unnest(%s::text[], %s::text[]) AS u (n, v)"
                self.connection.execute(set_back, (list(names), list(row)))


WorkplaceOf = Callable[[str, Connection, int], SwapSession]
"""Makes the place: node, its connection, the leader's epoch."""
