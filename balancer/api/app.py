"""The application: endpoints, page, errors and guard put together. `server` runs it; the daemon provides the source."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp

from balancer import __version__
from balancer.api.access import Access
from balancer.api.guard import Guard
from balancer.api.health import health
from balancer.api.long_poll import VersionWatch
from balancer.api.openapi import description
from balancer.api.page_files import PAGE_PATHS, page
from balancer.api.problems import add_handlers
from balancer.api.routes import v1
from balancer.api.source import Source
from balancer.settings.files import HttpSettings


class Api:
    """The guarded application of one instance."""

    def __init__(self, source: Source, http: HttpSettings) -> None:
        self.watch = VersionWatch(source.follower)
        access = Access(http)
        self.fastapi = _application(source, self.watch, access)
        inner: ASGIApp = GZipMiddleware(self.fastapi, minimum_size=1024, compresslevel=5)
        self.asgi: ASGIApp = Guard(inner, access, source.instruments, source.clock, PAGE_PATHS)


def create_app(source: Source, http: HttpSettings) -> Api:
    """The whole API of an instance; `ApiServer` serves it."""
    return Api(source, http)


def _application(source: Source, watch: VersionWatch, access: Access) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watch.open()
        yield

    app = FastAPI(
        title="tablet-balancer",
        version=__version__,
        description="Keeps a sharded PostgreSQL cluster balanced. Errors are problem documents (RFC 9457).",
        openapi_url="/v1/openapi.json",
        docs_url=None,  # it would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        generate_unique_id_function=lambda route: route.name,
    )
    app.openapi = lambda: description(app)  # type: ignore[method-assign]
    add_handlers(app)
    app.include_router(health(source))
    app.include_router(v1(source, watch, access))
    app.include_router(page())
    return app
