"""SQLAlchemy sessions on the node that owns a key, blocking or with asyncio.

    with session(router, "orders", user_id) as orders:
        orders.add(Order(user_id=user_id, n=1))

A session is SQLAlchemy's own, and does what SQLAlchemy's documentation says: autoflush, `begin()`, `begin_nested()`,
`commit()`, `rollback()`. Every transaction begins on the key's current owner with the proof of ownership, waits while
the tablet is switched, and holds the tablet until it ends. After a `commit()` the next statement begins another,
perhaps on another node. What is not committed at the end of the block is committed there, as in `router.transaction`;
an exception rolls it back.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast, overload

import psycopg
import sqlalchemy
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from balancer.client.async_router import AsyncRouter
from balancer.client.keys.hints import BlockHints
from balancer.client.open_blocks import OpenBlock
from balancer.client.router import PATIENCE, Router
from balancer.client.sqlalchemy_engines import AsyncNodeEngines, NodeEngines
from balancer.client.transaction.failures import Attempts
from balancer.client.transaction.steps import Isolation, TransactionRequest
from balancer.directory.locate import NO_KEY, AnyKey, Location
from balancer.errors import UserError

Result = TypeVar("Result")

__all__ = ["KeySession", "configure", "run", "session"]


class _SessionBlock(OpenBlock):
    """A session's block, which has a transaction only at times."""

    connection: sqlalchemy.Connection | None = None

    def since(self) -> float | None:
        return None if self.connection is None or self.connection.closed else self.began


@dataclass(frozen=True, slots=True)
class _Place:
    """Whose rows a session is for, and how its transactions begin."""

    router: Router | AsyncRouter
    engines: NodeEngines
    table: str
    key: AnyKey
    read_only: bool
    isolation: Isolation
    patience: float
    weight: float
    block: "_SessionBlock"

    def connect(self) -> sqlalchemy.Connection:
        """A connection for a transaction that nobody has used yet."""
        kept = self.router.attachments
        if kept.sampler is not None:
            kept.sampler.note(self.table, self.key, self.weight, not self.read_only)
        monotonic = kept.routes.clock.monotonic
        wish = TransactionRequest(
            monotonic() + self.patience,
            self.isolation,
            self.read_only,
            proof=kept.routes.proof,
            wait=kept.counters.wait(self.table),
            signpost=kept.routes.signpost,
        )
        connection = self.engines.begin(self.table, self.key, wish, self._told)
        self.block.connection = connection
        return connection

    def _told(self, location: Location, driver: Any) -> None:
        kept = self.router.attachments
        driver.hints = partial(BlockHints, kept.routes, self.table, self.key, location, kept.blocks.hinted)
        self.block.location, self.block.began = location, kept.routes.clock.monotonic()

    @property
    def engine(self) -> sqlalchemy.Engine:
        """Of the node that owns the key now."""
        return self.engines.engine(self.router.locate(self.table, self.key).node)

    @property
    def dialect(self) -> sqlalchemy.Dialect:
        return self.engine.dialect


class KeySession(Session):
    """A session each of whose transactions is on the owner of a key. Made by `session`."""

    single = False
    """Whether it has only one transaction."""

    def __init__(self, *arguments: Any, place: _Place, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._place = place
        self._open: sqlalchemy.Connection | None = None

    def get_bind(self, mapper: Any = None, *, bind: Any = None, **_: Any) -> Any:
        """The engine of the transaction's node; if none is open, what opens one."""
        if bind is not None:
            return bind
        if self._open is not None and not self._open.closed:
            return self._open.engine
        return self

    def connect(self) -> sqlalchemy.Connection:
        """Called by SQLAlchemy when a transaction needs its connection."""
        if self.single and self._open is not None:
            raise UserError(
                "a function of run has one transaction, because it may be called again: commit() or rollback() has"
                " ended it, so this statement is refused"
            )
        self._open = self._place.connect()
        return self._open

    @property
    def engine(self) -> sqlalchemy.Engine:
        return self._place.engine

    @property
    def dialect(self) -> sqlalchemy.Dialect:
        return self._place.dialect


def configure(router: Router | AsyncRouter, **engine_options: Any) -> None:
    """Options of `create_engine` for every node (`echo`, `json_serializer`, …), before the router's first session."""
    made = False

    def make(engines: type[NodeEngines]) -> NodeEngines:
        nonlocal made
        made = True
        return engines(router.attachments, engine_options)

    kind = NodeEngines if isinstance(router, Router) else AsyncNodeEngines
    router.attachments.get(kind, lambda _: make(kind))
    if not made:
        raise UserError("the router has engines already: call configure before its first session")


@overload
def session(
    router: Router,
    table: str,
    key: AnyKey = NO_KEY,
    *,
    read_only: bool = False,
    isolation: Isolation = Isolation.READ_COMMITTED,
    patience: float = PATIENCE,
    weight: float = 1.0,
    **options: Any,
) -> AbstractContextManager[Session]: ...


@overload
def session(
    router: AsyncRouter,
    table: str,
    key: AnyKey = NO_KEY,
    *,
    read_only: bool = False,
    isolation: Isolation = Isolation.READ_COMMITTED,
    patience: float = PATIENCE,
    weight: float = 1.0,
    **options: Any,
) -> AbstractAsyncContextManager[AsyncSession]: ...


def session(
    router: Router | AsyncRouter,
    table: str,
    key: AnyKey = NO_KEY,
    *,
    read_only: bool = False,
    isolation: Isolation = Isolation.READ_COMMITTED,
    patience: float = PATIENCE,
    weight: float = 1.0,
    **options: Any,
) -> Any:
    """A session for the rows of a key; a whole table has none. The arguments are those of `Router.transaction`.

    An `AsyncRouter` gives an `AsyncSession`, to be used with `async with`. Further options are SQLAlchemy's own
    (`expire_on_commit=False`, say). `patience` is each transaction's own.
    """
    kind = NodeEngines if isinstance(router, Router) else AsyncNodeEngines
    engines = router.attachments.get(kind, lambda attachments: kind(attachments, {}))
    block = _SessionBlock(table, sys._getframe(1))
    place = _Place(router, engines, table, key, read_only, isolation, patience, weight, block)
    return _blocking(place, options) if isinstance(router, Router) else _awaiting(place, options)


@contextmanager
def _blocking(place: _Place, options: dict[str, Any]) -> Iterator[Session]:
    with _noted(place), KeySession(place=place, **options) as opened:
        yield opened
        opened.commit()


@asynccontextmanager
async def _awaiting(place: _Place, options: dict[str, Any]) -> AsyncIterator[AsyncSession]:
    with _noted(place):
        async with AsyncSession(sync_session_class=KeySession, place=place, **options) as opened:
            yield opened
            await opened.commit()


@contextmanager
def _noted(place: _Place) -> Iterator[None]:
    blocks = place.router.attachments.blocks
    blocks.note(place.block)
    try:
        yield
    finally:
        blocks.forget(place.block)


@overload
def run(
    router: Router,
    table: str,
    key: AnyKey,
    function: Callable[[Session], Result],
    *,
    patience: float = PATIENCE,
    **options: Any,
) -> Result: ...


@overload
def run(
    router: AsyncRouter,
    table: str,
    key: AnyKey,
    function: Callable[[AsyncSession], Awaitable[Result]],
    *,
    patience: float = PATIENCE,
    **options: Any,
) -> Awaitable[Result]: ...


def run(
    router: Router | AsyncRouter,
    table: str,
    key: AnyKey,
    function: Callable[[Any], Any],
    *,
    patience: float = PATIENCE,
    **options: Any,
) -> Any:
    """Calls `function(session)` in a session's block, and retries it from the start if needed: see `Router.run`.

    The function must have no effects outside its one transaction: a second one after a `commit()` is refused, because a
    retry would repeat the first.
    """
    tries = _Tries(router, table, key, patience, options)
    return tries.block(function) if isinstance(router, Router) else tries.wait(function)


class _Tries:
    """The calls of one function until a deadline."""

    def __init__(
        self, router: Router | AsyncRouter, table: str, key: AnyKey, patience: float, options: dict[str, Any]
    ) -> None:
        self._clock = router.attachments.routes.clock
        self._deadline = self._clock.monotonic() + patience
        self._attempts = Attempts(self._deadline, self._clock.monotonic, router.attachments.counters)
        self._open: Callable[..., Any] = partial(session, router, table, key, **options)

    def block(self, function: Callable[[Session], Any]) -> Any:
        while True:
            try:
                with self._open(patience=self._left()) as opened:
                    opened.single = True
                    return function(opened)
            except (DBAPIError, psycopg.Error) as error:
                pause = self._pause_after(error)
            self._clock.sleep(pause)

    async def wait(self, function: Callable[[AsyncSession], Awaitable[Any]]) -> Any:
        while True:
            try:
                async with self._open(patience=self._left()) as opened:
                    opened.sync_session.single = True
                    return await function(opened)
            except (DBAPIError, psycopg.Error) as error:
                pause = self._pause_after(error)
            await asyncio.sleep(pause)

    def _left(self) -> float:
        return self._deadline - self._clock.monotonic()

    def _pause_after(self, error: Exception) -> float:
        """Raises the error as SQLAlchemy has it, if a retry is useless."""
        cause = error.orig if isinstance(error, DBAPIError) else error
        try:
            return self._attempts.pause_after(cast(psycopg.Error, cause))
        except psycopg.Error:
            raise error from None
