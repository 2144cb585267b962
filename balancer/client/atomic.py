"""How a transaction over several nodes grows, commits and is given up: the steps, without any I/O of their own.

`Atomic` (blocking) and `AsyncAtomic` carry the requests out. Every participant proves that its node owns the key, as
in `client/transaction/steps`. If one node has all keys it is an ordinary transaction; otherwise every participant but
the first is prepared, and the first, the *home*, commits together with a row that is the decision. The argument why
this is all or nothing, whatever dies when, is in `balancer.nodes.schema.decisions`.

What `atomic` of both routers hands out: the connections of a transaction over several keys, and `send`.

A message sent from one of the keys is stored by the part of the transaction on that key's node, so that it exists if,
and after, the whole is committed. It is delivered when that part has reported that it is committed. Not sooner: nobody
sees what a part has only prepared, so its message would be taken for settled and forgotten at its target
(`balancer/nodes/schema/messages.sql`, 6), and delivered a second time when the leader finally ends the part.
"""

import threading
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from balancer.client.keys.routes import Routes
from balancer.client.messages import SEND, AsyncRoutedConnection, Outgoing, RoutedConnection, Tickets, Work, key_text
from balancer.client.transaction.failures import Failure, classify, classify_entry
from balancer.client.transaction.pools import Loan
from balancer.client.transaction.steps import (
    FIRST_PAUSE,
    LONGEST_BORROW,
    LONGEST_PAUSE,
    AwaitChange,
    Borrow,
    Execute,
    ExecuteEach,
    GiveBack,
    Held,
    Isolation,
    Request,
    TransactionRequest,
    Undo,
    check_open,
    enter,
    leave,
    too_late,
)
from balancer.directory.locate import NO_KEY, AnyKey, Location
from balancer.errors import OutcomeUnknown, Refused, Unavailable, UserError
from balancer.naming import LONGEST, PreparedId, transaction_id

AtomicWork = Generator[Request, Any, None]
Find = Callable[[], tuple[int, Location]]

LOCK_SECONDS = 2.0
"""How long a statement of an atomic transaction waits for a lock: PostgreSQL does not see deadlocks between nodes."""
FORGOTTEN_AT_ONCE = 100


class EndedDecisions:
    """Decisions that nobody needs any more, because every part has answered, by home: deleted along the way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, list[str]] = {}

    def add(self, home: str, transactions: list[str]) -> None:
        with self._lock:
            self._known.setdefault(home, []).extend(transactions)

    def take(self, home: str) -> list[str]:
        with self._lock:
            waiting = self._known.pop(home, [])
            taken, rest = waiting[:FORGOTTEN_AT_ONCE], waiting[FORGOTTEN_AT_ONCE:]
            if rest:
                self._known[home] = rest
            return taken


class _AlreadyThere(Exception):
    """The key has moved to a node that already takes part."""


class AtomicSteps:
    """One atomic transaction. Used by one thread or task at a time."""

    def __init__(
        self, routes: Routes, ended: EndedDecisions, *, isolation: Isolation, patience: float, lock: float
    ) -> None:
        self._routes = routes
        self._ended = ended
        self._monotonic = routes.clock.monotonic
        self.deadline = self._monotonic() + patience
        waiting = f"; SET LOCAL lock_timeout TO {max(1, round(lock * 1000))}".encode()
        self._wish = TransactionRequest(
            self.deadline, isolation, also=waiting, proof=routes.proof, signpost=routes.signpost
        )
        self._held: dict[str, Held] = {}
        self._proven: set[tuple[int, int]] = set()
        self._later: dict[str, list[Location]] = {}
        """By node what it has proven after its first proof, perhaps below one of the application's savepoints."""
        self._secret = uuid4().hex  # only a caller that knows it may decide; see `balancer.nodes.schema.decisions`
        self.transaction = transaction_id(self._secret)
        self.unfinished: tuple[str, ...] = ()
        """Nodes whose part has not yet reported its commit: the leader will commit it."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Who takes part; the first is the home."""
        return tuple(self._held)

    def node_of(self, connection: object) -> str:
        """On which node a participant's connection is."""
        return next(node for node, held in self._held.items() if held.loan.connection is connection)

    def loan_on(self, node: str) -> Loan:
        """A participant's connection."""
        return self._held[node].loan

    def join(self, table: str, key: AnyKey) -> Generator[Request, Any, Loan]:
        """The connection for a key, whose node has proven that it owns it; waits out switches, as `enter` does."""
        self._routes.check_here(table, "a transaction over several keys")
        find = self._routes.finder(table, key)
        pause = FIRST_PAUSE
        while True:
            version, location = find()
            held = self._held.get(location.node)
            if held is None:
                try:
                    held = yield from enter(self._elsewhere(find), self._wish, self._monotonic)
                except _AlreadyThere:
                    continue
                self._held[held.location.node] = held
                held.loan.connection.begun, held.loan.connection.over = True, False
                held.loan.connection.undone = False
                self._proven.add((held.location.tablet, held.location.epoch))
                return held.loan
            if held.loan.connection.undone:
                yield from self._prove_again(held)
            failure = yield from self._prove(held.loan, location)
            if failure is None:
                return held.loan
            left = self.deadline - self._monotonic()
            if left <= 0:
                raise Unavailable(too_late(location, failure))
            yield AwaitChange(version, min(pause, left))
            pause = min(pause * 1.5, LONGEST_PAUSE)

    def commit(self) -> AtomicWork:
        """All or nothing. `OutcomeUnknown` if the home's answer was lost and it cannot be asked."""
        if not self._held:
            return
        try:
            for one in self._held.values():
                yield from self._prove_again(one)
        except BaseException:
            yield from self.abort()
            raise
        self._ending()
        home, *others = self._held.values()
        if not others:
            self._held = {}
            yield from leave(home, failed=False)
            return
        try:
            for one in (home, *others):
                check_open(one.loan.connection.info.transaction_status, over=one.loan.connection.over)
            yield from self._prepare(others)
            yield from self._decide(home, others)
        finally:
            yield from self._give_back()

    def abort(self) -> AtomicWork:
        """Rolls every participant back; the caller sees the block's own error."""
        self._ending()
        try:
            for one in self._held.values():
                yield from _undone(one.loan)
        finally:
            yield from self._give_back()

    def _ending(self) -> None:
        """From here on we end the transactions, not what the application sends."""
        for one in self._held.values():
            one.loan.connection.begun = False

    def _elsewhere(self, find: Find) -> Find:
        """A tablet may move to a node that already takes part, while we wait for a connection to another."""

        def look() -> tuple[int, Location]:
            version, location = find()
            if location.node in self._held:
                raise _AlreadyThere
            return version, location

        return look

    def _prove(self, loan: Loan, location: Location) -> Generator[Request, Any, Failure | None]:
        """Proves that the node owns another key too; None: it does. What was done before stays as it is."""
        if (location.tablet, location.epoch) in self._proven or not self._wish.proof:
            return None
        hold = f"CALL balancer.hold({location.tablet:d}, {location.epoch:d}, true)"
        try:
            yield Execute(loan, f"SAVEPOINT balancer_hold; {hold}; RELEASE SAVEPOINT balancer_hold".encode())
        except psycopg.Error as error:
            failure = classify_entry(error)
            if failure not in (Failure.MOVING, Failure.MOVED):
                raise
            yield Execute(loan, b"ROLLBACK TO SAVEPOINT balancer_hold; RELEASE SAVEPOINT balancer_hold")
            return failure
        self._proven.add((location.tablet, location.epoch))
        self._later.setdefault(location.node, []).append(location)
        return None

    def _prove_again(self, held: Held) -> AtomicWork:
        """Rolling back to a savepoint releases the locks of later proofs. A node that is still the owner with the same
        epoch has been so all along; if it is not, what was read and written there may be worthless, and the transaction
        ends. Before the commit always: not every cursor lets us see what it sends."""
        connection = held.loan.connection
        if connection.pgconn.transaction_status != TransactionStatus.INTRANS:
            return  # one that has failed commits nothing
        connection.undone = False
        holds = [
            f"CALL balancer.hold({one.tablet:d}, {one.epoch:d}, true)"
            for one in self._later.get(held.location.node, ())
        ]
        if holds:
            yield Execute(held.loan, "; ".join(holds).encode())

    def _prepare(self, others: list[Held]) -> AtomicWork:
        orders = tuple((one.loan, b"PREPARE TRANSACTION " + self._gid(one)) for one in others)
        errors = yield ExecuteEach(orders)
        failed = [(one, error) for one, error in zip(others, errors, strict=True) if error is not None]
        if not failed:
            return
        home = next(iter(self._held.values()))
        yield from _undone(home.loan)  # from here on nobody can decide to commit
        ready = [one for one, error in zip(others, errors, strict=True) if error is None]
        yield from self._end(ready, commits=False)
        raise _unprepared(*failed[0])

    def _decide(self, home: Held, others: list[Held]) -> AtomicWork:
        forgotten = self._ended.take(home.location.node)
        try:
            yield Execute(home.loan, _decision(self._secret, forgotten))
        except psycopg.Error as error:
            self._ended.add(home.location.node, forgotten)
            if classify(error) is not Failure.LOST:
                yield from _undone(home.loan)
                yield from self._end(others, commits=False)
                raise _given_up(error) from error
            yield from self._find_out(home, others)
        unfinished = yield from self._end(others, commits=True)
        self.unfinished = tuple(unfinished)
        if not unfinished:
            self._ended.add(home.location.node, [self._secret])

    def _find_out(self, home: Held, others: list[Held]) -> AtomicWork:
        """The home's answer was lost. Writes "abort" first: whatever is read afterwards can no longer change."""
        node = home.location.node
        loan: Loan | None = None
        try:
            loan = yield Borrow(node, max(LONGEST_BORROW, min(5.0, self.deadline - self._monotonic())))
            abandon = f"CALL balancer.abandon('{self._secret}')"
            yield Execute(loan, f"BEGIN; SET LOCAL lock_timeout TO '5s'; {abandon}; COMMIT".encode())
            yield Execute(loan, f"CALL balancer.committed('{self._secret}')".encode())
        except psycopg.errors.SerializationFailure as answer:
            yield from self._end(others, commits=False)
            raise Unavailable(f"the connection to node {node} broke during COMMIT; nothing was committed") from answer
        except psycopg.Error as again:
            raise OutcomeUnknown(
                f"the connection to node {node} broke during COMMIT, and it cannot be asked: the leader will end"
                f" transaction {self.transaction} as node {node} has decided"
            ) from again
        finally:
            if loan is not None:
                yield GiveBack(loan)

    def _end(self, parts: list[Held], *, commits: bool) -> Generator[Request, Any, list[str]]:
        """Ends prepared parts; returns the nodes that did not confirm it. The leader ends those."""
        word = b"COMMIT PREPARED " if commits else b"ROLLBACK PREPARED "
        errors = yield ExecuteEach(tuple((one.loan, word + self._gid(one)) for one in parts))
        return [one.location.node for one, error in zip(parts, errors, strict=True) if error is not None]

    def _gid(self, one: Held) -> bytes:
        home = next(iter(self._held))
        text = str(PreparedId(self._routes.cluster, home, one.location.node, self.transaction))
        if len(text) > LONGEST:
            raise UserError(
                f"the names of cluster {self._routes.cluster} and of nodes {home} and {one.location.node} are too long"
                f" for a transaction over both: PostgreSQL's ids of prepared transactions have {LONGEST} bytes"
            )
        return f"'{text}'".encode()  # percent-encoded: there is no quote in it

    def _give_back(self) -> AtomicWork:
        held, self._held = self._held, {}
        for one in held.values():
            yield GiveBack(one.loan)


def _undone(loan: Loan) -> AtomicWork:
    try:
        if not loan.connection.closed:
            yield Undo(loan)
    except psycopg.Error:
        pass  # the server ends the transaction by itself; the connection is discarded when it is returned


def _decision(secret: str, forgotten: list[str]) -> bytes:
    """The home's last message. Secrets are hexadecimal digits of our own making."""
    forget = f"CALL balancer.forget('{{{','.join(forgotten)}}}'); " if forgotten else ""
    return f"{forget}CALL balancer.decide('{secret}'); COMMIT".encode()


def _unprepared(one: Held, error: psycopg.Error) -> Exception:
    """What the caller must do about a participant that could not be prepared. Nothing is committed."""
    node = one.location.node
    if error.sqlstate == "55000":
        return Refused(
            f"node {node} takes no part in transactions over several nodes: set max_prepared_transactions there"
            " (100, say) and restart it"
        )
    if error.sqlstate == "53200":
        return Unavailable(f"node {node} has no room for another prepared transaction: raise max_prepared_transactions")
    if error.sqlstate in ("3F000", "42883"):
        return Refused(f"node {node} lacks the balancer's schema, or has an older version of it")
    return error


def _given_up(error: psycopg.Error) -> psycopg.Error:
    """A home that finds "abort" in its place came too late: the whole may be retried."""
    if error.sqlstate == "23505" and error.diag.constraint_name == "decision_pkey":
        return psycopg.errors.SerializationFailure("the transaction took so long that the leader has given it up")
    return error


def waited_too_long(seconds: float) -> psycopg.Error:
    """For a lock that was not granted in time; retry loops know what to do."""
    return psycopg.errors.SerializationFailure(
        f"waited {seconds:g} s for a lock in a transaction over several keys: perhaps a deadlock between nodes;"
        " nothing was done, try again"
    )


Sender = tuple[str, AnyKey]
"""The table and the key that a message is sent from."""


class AtomicMail:
    """The messages of one transaction, by the keys that they are sent from."""

    def __init__(self, routes: Routes, tickets: Tickets) -> None:
        self._routes = routes
        self._tickets = tickets
        self._of: dict[tuple[str, ...], tuple[str, Outgoing]] = {}

    def outgoing(self, sender: Sender, node: str) -> Outgoing:
        """Of one key, whose part of the transaction is on this node."""
        table, key = sender
        place = (table, *key_text(self._routes.snapshot.table(table), key))
        if place not in self._of:
            self._of[place] = node, Outgoing(self._routes, self._tickets, table, key)
        return self._of[place][1]

    def prepare(self, loan_of: Callable[[str], Loan]) -> Work:
        """Before anything is committed."""
        for node, outgoing in self._of.values():
            if outgoing.sent:
                yield from outgoing.prepare(loan_of(node))

    def deliver(self, unfinished: Sequence[str]) -> Work:
        """After the decision; those of parts that have not reported their commit are left to the leader."""
        for node, outgoing in self._of.values():
            if node not in unfinished:
                yield from outgoing.deliver()


class Atomic:
    """A transaction over several keys, wherever they are: see `Router.atomic`."""

    def __init__(
        self, steps: AtomicSteps, mail: AtomicMail, drive: Callable[[Generator[Request, Any, Loan]], Loan]
    ) -> None:
        self._steps = steps
        self._mail = mail
        self._drive = drive

    def on(self, table: str, key: AnyKey = NO_KEY) -> RoutedConnection:
        """The connection for rows of this key. Keys of one node share one; do not keep a cursor open beyond the end."""
        loan = self._drive(self._steps.join(table, key))
        connection: RoutedConnection = loan.connection
        return connection

    def send(
        self,
        table: str,
        key: AnyKey,
        message: str,
        body: Mapping[str, Any] | None = None,
        *,
        sender: Sender,
        deliver: bool = True,
    ) -> UUID:
        """Sends a message to another key, as `transaction`'s `send` does: `sender` is the table and the key that it is
        from, to which it is reversed if it is given up. It is applied if, and after, the whole is committed."""
        connection = self.on(*sender)
        outgoing = self._mail.outgoing(sender, self._steps.node_of(connection))
        values = outgoing.values(table, key, message, body or {})
        row = connection.cursor(row_factory=tuple_row).execute(SEND, values).fetchone()
        return outgoing.note(values, key, row, deliver=deliver)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Who takes part so far; the first decides."""
        return self._steps.nodes


class AsyncAtomic:
    """A transaction over several keys, wherever they are: see `Router.atomic`. For one task at a time."""

    def __init__(
        self,
        steps: AtomicSteps,
        mail: AtomicMail,
        drive: Callable[[Generator[Request, Any, Loan]], Awaitable[Loan]],
    ) -> None:
        self._steps = steps
        self._mail = mail
        self._drive = drive

    async def on(self, table: str, key: AnyKey = NO_KEY) -> AsyncRoutedConnection:
        """The connection for rows of this key."""
        loan = await self._drive(self._steps.join(table, key))
        connection: AsyncRoutedConnection = loan.connection
        return connection

    async def send(
        self,
        table: str,
        key: AnyKey,
        message: str,
        body: Mapping[str, Any] | None = None,
        *,
        sender: Sender,
        deliver: bool = True,
    ) -> UUID:
        """See `Atomic.send`."""
        connection = await self.on(*sender)
        outgoing = self._mail.outgoing(sender, self._steps.node_of(connection))
        values = outgoing.values(table, key, message, body or {})
        row = await (await connection.cursor(row_factory=tuple_row).execute(SEND, values)).fetchone()
        return outgoing.note(values, key, row, deliver=deliver)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Who takes part so far; the first decides."""
        return self._steps.nodes
