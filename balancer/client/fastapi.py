"""FastAPI: a router that lives as long as the application, and a dependency for the key of a request.

    app = FastAPI(lifespan=lifespan("zk://zk1:2181/shop"))
    install(app)
    Orders = Annotated[KeyShard, Depends(at_key("orders", "user_id"))]

    @app.post("/users/{user_id}/orders")
    async def place(orders: Orders) -> int:
        async with orders.transaction() as connection:
            ...

The dependency provides the place, and the endpoint opens the block: so the commit is done before the answer is sent. A
dependency with `yield` would commit after it (FastAPI ends those when the response is on its way), and an answer of 200
would promise what may still fail.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse

from balancer.client.async_router import AsyncRouter
from balancer.client.transaction.pools import PoolSettings
from balancer.directory.locate import AnyKey, Location, parse_key
from balancer.errors import OutcomeUnknown, Unavailable, UserError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

Result = TypeVar("Result")
_STATE = "balancer_router"


def lifespan(
    url: str, pools: PoolSettings | None = None, **options: Any
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """For `FastAPI(lifespan=…)`: opens the router when the application starts and closes it when it ends."""

    @asynccontextmanager
    async def opened(app: FastAPI) -> AsyncIterator[None]:
        async with await AsyncRouter.connect(url, pools, **options) as router:
            setattr(app.state, _STATE, router)
            yield

    return opened


def router_of(request: Request) -> AsyncRouter:
    """As a dependency: the application's router."""
    found = getattr(request.app.state, _STATE, None)
    if not isinstance(found, AsyncRouter):
        raise UserError("the application has no router: give balancer.client.fastapi.lifespan(url) to FastAPI")
    return found


class KeyShard:
    """The key of a request, and what can be done with its rows. The arguments are those of the router's methods."""

    def __init__(self, router: AsyncRouter, table: str, key: AnyKey) -> None:
        self.router = router
        self.table = table
        self.key = key

    @property
    def location(self) -> Location:
        """Where the key is."""
        return self.router.locate(self.table, self.key)

    def transaction(self, **options: Any) -> AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]:
        """See `Router.transaction`."""
        return self.router.transaction(self.table, self.key, **options)

    def session(self, **options: Any) -> "AbstractAsyncContextManager[AsyncSession]":
        """A SQLAlchemy session: see `balancer.client.sqlalchemy`."""
        from balancer.client.sqlalchemy import session  # noqa: PLC0415 - not everybody has SQLAlchemy

        return session(self.router, self.table, self.key, **options)

    async def run(
        self, function: Callable[[psycopg.AsyncConnection[Any]], Awaitable[Result]], **options: Any
    ) -> Result:
        """See `Router.run`."""
        return await self.router.run(self.table, self.key, function, **options)


def at_key(table: str, *parameters: str) -> Callable[[Request], KeyShard]:
    """A dependency: the place of the key that these parameters of the path (or of the query) have, one per column."""

    def of_request(request: Request) -> KeyShard:
        router = router_of(request)
        texts = [_text(request, name) for name in parameters]
        try:
            values = parse_key(router.snapshot.table(table), texts)
        except UserError as error:
            raise HTTPException(422, str(error)) from None
        return KeyShard(router, table, values[0] if len(values) == 1 else values)

    return of_request


def install(app: FastAPI) -> None:
    """Answers for failures that are not the request's fault: 503 if nothing was done, 500 if nobody knows."""

    @app.exception_handler(Unavailable)
    async def _unavailable(request: Request, error: Unavailable) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "1"})

    @app.exception_handler(OutcomeUnknown)
    async def _unknown(request: Request, error: OutcomeUnknown) -> JSONResponse:
        return JSONResponse({"detail": f"{error}: it may or may not have been done"}, 500)


def _text(request: Request, name: str) -> str:
    found = request.path_params.get(name, request.query_params.get(name))
    if found is None:
        raise HTTPException(422, f"the request has no parameter {name}, which says whose rows are meant")
    return str(found)
