"""The block of `Router.transaction`: the fast path for when nothing is in the way, the steps for everything else.

Most transactions find their node by the newest map, an idle connection and a tablet that nobody moves. For those the
generators of `steps`, which know every way out, cost more than the proof itself. So a block borrows a
connection and sends nothing: BEGIN and the proof go with its first statement (`wire`), or before whatever
else the connection is asked for. If they are refused, nothing was done, not even the statement: the connection goes
back, the steps begin from the start, wait and follow the tablet, and the application's connection object continues as
the one that they have found, perhaps on another node. Then the statement is sent again. The same happens if the
connection broke before the answer came: its transaction is gone with it. The end is COMMIT directly; everything that is
not a plain commit is left to `leave`.

A transaction that a connection was lent for but that has not begun: how it begins, with or before a first statement.

A router's blocks and SQLAlchemy's sessions differ in what becomes of a refusal (`_again`) and who hears of the
beginning (`_begun`).

Notices statements about keys of other tablets: transactions with `checked=True`, as in an application's tests.

A statement on a node sees that node's rows and says nothing about the others. Two things reveal its keys. Keys that it
names in its conditions are looked up before it is sent (`client/keys/hints`). And of the rows that come back, those
columns that PostgreSQL says are the key of one of the table's roots, or of their partitions, are looked up as well.
What neither shows is not noticed: a condition on other columns, a write without RETURNING, a key of several columns in
a condition."""

from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, NamedTuple

import psycopg
from psycopg import sql
from psycopg.abc import PQGen
from psycopg.adapt import Transformer
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from balancer.client.keys.hints import BlockHints, elsewhere, named_keys, relation_names, text_of
from balancer.client.keys.routes import Routes
from balancer.client.messages import Outgoing, RoutedConnection, Tickets
from balancer.client.observing import Sampler
from balancer.client.open_blocks import OpenBlock, OpenBlocks
from balancer.client.transaction.connections import Opening
from balancer.client.transaction.drivers import BlockingDriver, borrow, give_back
from balancer.client.transaction.failures import classify_entry
from balancer.client.transaction.pools import Loan
from balancer.client.transaction.steps import (
    LONGEST_BORROW,
    Held,
    TransactionRequest,
    Undo,
    check_outcome,
    enter,
    leave,
)
from balancer.client.transaction.wire import command, with_statement
from balancer.directory.locate import AnyKey, Location
from balancer.directory.model import Table
from balancer.errors import UserError


class PendingTransaction(Opening):
    """Begun once, on the connection of `_held` or on another that replaces it."""

    __slots__ = ("_asked", "_entered", "_held", "_routes", "_sent", "_wish")

    def __init__(self, routes: Routes, wish: TransactionRequest) -> None:
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


_OPEN = TransactionStatus.INTRANS


class BlockParts(NamedTuple):
    """What all blocks of a router share."""

    routes: Routes
    sampler: Sampler | None
    blocks: OpenBlocks
    tickets: Tickets


class TransactionBlock(AbstractContextManager[RoutedConnection], PendingTransaction):
    """One block; opened once."""

    __slots__ = (
        "_checked",
        "_connection",
        "_guard",
        "_hands",
        "_key",
        "_noted",
        "_parts",
        "_table",
        "_weight",
    )

    def __init__(
        self,
        hands: BlockingDriver,
        parts: BlockParts,
        table: str,
        key: AnyKey,
        *,
        wish: TransactionRequest,
        weight: float,
        checked: bool,
    ) -> None:
        super().__init__(parts.routes, wish)
        self._hands = hands
        self._parts = parts
        self._table = table
        self._key = key
        self._weight = weight
        self._checked = checked
        self._guard: AbstractContextManager[None] | None = None
        self._noted: OpenBlock | None = None
        self._connection: RoutedConnection | None = None

    def __enter__(self) -> RoutedConnection:
        routes, sampler, blocks, tickets = self._parts
        if sampler is not None:
            sampler.note(self._table, self._key, self._weight, not self._wish.read_only)
        held = self._held = self._quickly() or self._by_steps()
        connection: RoutedConnection = held.loan.connection
        self._connection = connection
        self._noted = blocks.opened(self._table, held.location)
        if connection.opening is None:
            connection.location, connection.begun, connection.over = held.location, True, False
            self._begun(held.location)
        connection.hints = self._hints
        connection.outgoing = None if self._wish.read_only else Outgoing(routes, tickets, self._table, self._key)
        if self._checked:
            self._guarded()
        return connection

    def _guarded(self) -> None:
        """Statements are checked until the block ends."""
        try:
            self._begin_if_not_begun()
            assert self._held is not None
            guard = guarded(KeyGuard(self._parts.routes, self._table, self._key, self._held))
            guard.__enter__()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        self._guard = guard

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection, noted = self._connection, self._noted
        assert connection is not None
        assert noted is not None
        outgoing, connection.outgoing = connection.outgoing, None
        connection.hints = None
        if self._guard is not None:
            self._guard.__exit__(None, None, None)
        try:
            if kind is not None:
                connection.begun = False
                self._roll_back(connection)
            elif outgoing is None or not outgoing.sent:
                self._commit()
            else:
                self._commit_and_send(outgoing)
        finally:
            self._parts.blocks.forget(noted)

    def _roll_back(self, connection: RoutedConnection) -> None:
        if self._held is None:
            return  # it never began
        if connection.opening is not None:
            connection.show(self, None)
            connection.begun = False
            give_back(self._held.loan)
            return
        self._hands._drive(leave(self._held, failed=True))

    def _commit(self) -> None:
        held = self._begin_if_not_begun()
        connection = held.loan.connection
        connection.begun = False
        if connection.over or connection.pgconn.transaction_status != _OPEN:
            self._hands._drive(leave(held, failed=False))
            return
        try:
            with connection.lock:
                connection.wait(command(connection, b"COMMIT"))
        except psycopg.Error as failure:
            check_outcome(held, failure)
            raise
        finally:
            give_back(held.loan)

    def _commit_and_send(self, outgoing: Outgoing) -> None:
        held = self._begin_if_not_begun()
        try:
            self._hands._drive(outgoing.prepare(held.loan))
        except BaseException:
            held.loan.connection.begun = False
            self._hands._drive(leave(held, failed=True))
            raise
        held.loan.connection.begun = False
        self._hands._drive(leave(held, failed=False))
        self._hands._drive(outgoing.deliver())

    def _hints(self) -> BlockHints:
        held = self._pending()
        return BlockHints(self._parts.routes, self._table, self._key, held.location, self._parts.blocks.hinted)

    def _begin_if_not_begun(self) -> Held:
        """A block without a statement is proven too: its end means that this node had the key."""
        connection = self._connection
        assert connection is not None
        if connection.opening is not None:
            with connection.lock:
                self.begin()
        assert self._held is not None
        return self._held

    def _begun(self, location: Location) -> None:
        assert self._noted is not None
        self._noted.began = self._parts.routes.clock.monotonic()
        self._noted.location = location

    def _again(self, held: Held, refused: psycopg.Error) -> None:
        """From the start, by the steps; the application's connection continues as the one that they find."""
        connection = held.loan.connection
        connection.show(self, None)
        spare = connection.parted()
        connection.hide(self)
        self._held = None
        self._put_away(Loan(held.loan.pool, spare))
        self._tried(held.location, refused)
        found = self._by_steps()
        connection.take_over(found.loan.connection)
        self.pgconn = connection.__dict__["pgconn"]
        connection.show(self, found.location)
        self._held = Held(found.location, Loan(found.loan.pool, connection))
        self._begun(found.location)

    def _by_steps(self) -> Held:
        routes = self._parts.routes
        return self._hands._drive(enter(routes.finder(self._table, self._key), self._wish, routes.clock.monotonic))

    def _quickly(self) -> Held | None:
        """A connection to where the map says the key is; None: none is available at once, and nothing was done."""
        location = self._parts.routes.locate(self._table, self._key)
        try:
            pool = self._hands._pool(location.node)
            self._entered = self._parts.routes.clock.monotonic()
            left = self._wish.deadline - self._entered
            loan = borrow(pool, max(0.0, min(left, LONGEST_BORROW)))
        except psycopg.Error as error:
            self._note(location, error)
            return None
        loan.connection.hide(self)
        return Held(location, loan)

    def _put_away(self, loan: Loan) -> None:
        try:
            if not loan.connection.closed:
                self._hands._perform(Undo(loan))
        except psycopg.Error:
            pass  # a broken connection is discarded when it is returned
        finally:
            give_back(loan)


COLUMNS = sql.SQL(
    """
SELECT a.attrelid::int8, a.attnum::int4, a.attname FROM pg_catalog.pg_attribute a
JOIN pg_catalog.unnest({roots}::text[]) AS root (name) ON true
JOIN pg_catalog.pg_partition_tree(pg_catalog.to_regclass(root.name)) AS part ON part.relid = a.attrelid
WHERE a.attname = ANY({columns}::text[]) AND NOT a.attisdropped
"""
)
"""Where the key's columns are, in the roots and the partitions of this node."""


class WrongKey(UserError):
    """A statement is about a key that this block is not for."""


class KeyGuard:
    """What one block is for, and what its statements are about."""

    def __init__(self, routes: Routes, table: str, key: AnyKey, held: Held) -> None:
        self._routes = routes
        self._table: Table = routes.snapshot.table(table)
        self._key = key
        self._location: Location = held.location
        self.connection: Any = held.loan.connection
        self._columns: dict[tuple[int, int], int] = {}

    @property
    def question(self) -> sql.Composed:
        """The first question to the node; `learn` takes the answer."""
        names = [column.name for column in self._table.key_columns]
        return COLUMNS.format(roots=sql.Literal(list(self._table.roots)), columns=sql.Literal(names))

    def learn(self, rows: Iterable[Sequence[Any]]) -> None:
        """Which columns of which relations are the key."""
        names = [column.name for column in self._table.key_columns]
        self._columns = {(int(relation), int(number)): names.index(name) for relation, number, name in rows}

    def check_statement(self, statement: str, values: Any) -> None:
        """Raises `WrongKey` if a statement names a key of another tablet."""
        columns = self._table.key_columns
        if len(columns) == 1:
            relations = relation_names(self._table.roots)
            for key in named_keys(statement, values, columns[0].name, columns[0].type, relations):
                self._check(key)

    def check_result(self, cursor: Any) -> None:
        """Raises `WrongKey` if a returned row belongs to another tablet."""
        result = cursor.pgresult
        if result is None or not result.ntuples or not self._columns:
            return
        places: dict[int, int] = {}
        for column in range(result.nfields):
            place = self._columns.get((result.ftable(column), result.ftablecol(column)))
            if place is not None:
                places.setdefault(place, column)
        if len(places) < len(self._table.key_columns):
            return
        loaders = Transformer(cursor.connection)
        read = [
            loaders.get_loader(result.ftype(places[place]), result.fformat(places[place])).load
            for place in range(len(places))
        ]
        seen = set()
        for row in range(result.ntuples):
            raw = tuple(result.get_value(row, places[place]) for place in range(len(places)))
            if raw not in seen and None not in raw:
                seen.add(raw)
                self._check(tuple(load(part) for load, part in zip(read, raw, strict=True)))

    def _check(self, key: Any) -> None:
        try:
            found = self._routes.locate(self._table.name, key)
        except UserError:
            return  # not a key of this table: PostgreSQL says what is wrong with it
        if found.tablet == self._location.tablet:
            return
        raise WrongKey(elsewhere(key, found, self._key, self._location))


class CheckedCursor(psycopg.Cursor[Any]):
    """A cursor whose statements are checked."""

    guard: KeyGuard

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        self.guard.check_statement(text_of(query, self.connection), params)
        super().execute(query, params, **options)
        self.guard.check_result(self)
        return self

    def executemany(self, query: Any, params_seq: Any, **options: Any) -> None:
        all_params = list(params_seq)
        text = text_of(query, self.connection)
        for params in all_params:
            self.guard.check_statement(text, params)
        super().executemany(query, all_params, **options)


class AsyncCheckedCursor(psycopg.AsyncCursor[Any]):
    """The same for asyncio."""

    guard: KeyGuard

    async def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        self.guard.check_statement(text_of(query, self.connection), params)
        await super().execute(query, params, **options)
        self.guard.check_result(self)
        return self

    async def executemany(self, query: Any, params_seq: Any, **options: Any) -> None:
        all_params = list(params_seq)
        text = text_of(query, self.connection)
        for params in all_params:
            self.guard.check_statement(text, params)
        await super().executemany(query, all_params, **options)


@contextmanager
def guarded(guard: KeyGuard) -> Iterator[None]:
    """Checks the block's statements, but not those of the connection's next user."""
    guard.learn(guard.connection.cursor(row_factory=tuple_row).execute(guard.question).fetchall())
    with _cursors(guard, CheckedCursor):
        yield


@asynccontextmanager
async def guarded_async(guard: KeyGuard) -> AsyncIterator[None]:
    """The same for asyncio."""
    guard.learn(await (await guard.connection.cursor(row_factory=tuple_row).execute(guard.question)).fetchall())
    with _cursors(guard, AsyncCheckedCursor):
        yield


@contextmanager
def _cursors(guard: KeyGuard, kind: type[Any]) -> Iterator[None]:
    connection = guard.connection
    before, connection.cursor_factory = connection.cursor_factory, type(kind.__name__, (kind,), {"guard": guard})
    try:
        yield
    finally:
        connection.cursor_factory = before
