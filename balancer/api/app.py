"""The application: endpoints, page, errors and guard put together. `server` runs it; the daemon provides the source.

The OpenAPI document: what FastAPI makes of the endpoints, and who may call them, which the guard decides.

Serves the page's own files, which ship in the package. They reveal nothing about the cluster: `/v1` does.

What supervisors ask: `/healthz`, `/readyz`, `/metrics`. They tell nothing about the cluster but figures.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import blake2b
from importlib.resources import files
from typing import Annotated, Any, Final

from fastapi import APIRouter, FastAPI, Header, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic.json_schema import models_json_schema
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp

from balancer import __version__
from balancer.api.access import OPEN_PATHS, READING, Access, Guard
from balancer.api.directory_feed import VersionWatch
from balancer.api.problems import RESPONSES, ProblemDocument, add_handlers, problem
from balancer.api.routes import v1
from balancer.api.source import Source
from balancer.errors import BalancerError
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


_SCHEME: Final = "token"
_REFERENCE: Final = "#/components/schemas/{model}"
_SCHEMES: Final = {
    _SCHEME: {
        "type": "http",
        "scheme": "bearer",
        "description": "`token` of [http] reads and changes everything, `read_token` only reads. Reading needs none"
        " where the instance listens on loopback or has read_requires_token = false.",
    }
}
_TAGS: Final = (
    ("cluster", "Bundles, nodes, tables and tablets in their current state."),
    ("records", "What is planned, what is running, what has ended, and what the consistency checker has found."),
    ("pictures", "The cluster over space and time."),
    ("questions", "Why, and why not."),
    ("commands", "What operators ask the leader to do."),
    ("routing", "Which node owns a key, and which keys are in use."),
    ("health", "For supervisors and Prometheus."),
)


def description(app: FastAPI) -> dict[str, Any]:
    """The document, made once."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
            tags=[{"name": name, "description": about} for name, about in _TAGS],
        )
        components = made.setdefault("components", {})
        components["securitySchemes"] = _SCHEMES
        _, problems = models_json_schema([(ProblemDocument, "serialization")], ref_template=_REFERENCE)
        components.setdefault("schemas", {}).update(problems["$defs"])
        _drop_unused(made, components["schemas"])
        for path, operations in made["paths"].items():
            for method, operation in operations.items():
                operation["security"] = _security(path, method.upper())
        app.openapi_schema = made
    return app.openapi_schema


def _security(path: str, method: str) -> list[dict[str, list[str]]]:
    """An empty requirement among others says that it may be left out."""
    if path in OPEN_PATHS:
        return []
    return [{_SCHEME: []}, {}] if method in READING else [{_SCHEME: []}]


def _drop_unused(made: dict[str, Any], schemas: dict[str, Any]) -> None:
    """FastAPI describes its own answer to wrong parameters, which nobody ever gets: ours is a problem document."""
    for operations in made["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)


_TYPES: Final = {
    "index.html": "text/html",
    "actions.js": "text/javascript",
    "app.js": "text/javascript",
    "arrows.js": "text/javascript",
    "charts.js": "text/javascript",
    "cluster.js": "text/javascript",
    "dom.js": "text/javascript",
    "header.js": "text/javascript",
    "keys.js": "text/javascript",
    "lists.js": "text/javascript",
    "panel.js": "text/javascript",
    "scales.js": "text/javascript",
    "timeline.js": "text/javascript",
    "uplot.js": "text/javascript",
    "style.css": "text/css",
    "uplot.css": "text/css",
    "icon.svg": "image/svg+xml",
}
_PATHS: Final = {f"/{name}": name for name in _TYPES if name != "index.html"} | {"/": "index.html"}
PAGE_PATHS: Final = frozenset(_PATHS)


def page() -> APIRouter:
    """One route for each file; the files are read once."""
    router = APIRouter(include_in_schema=False)
    for path, name in _PATHS.items():
        _serve(router, path, name)
    return router


def _serve(router: APIRouter, path: str, name: str) -> None:
    content = (files("balancer.api") / "page" / name).read_bytes()
    headers = {"ETag": f'"{blake2b(content, digest_size=12).hexdigest()}"', "Cache-Control": "no-cache"}

    @router.get(path)
    def get_file(if_none_match: Annotated[str | None, Header()] = None) -> Response:
        if if_none_match == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=_TYPES[name])


STALLED_TICKS: Final = 6
STALLED_SECONDS: Final = 60.0
"""The loop is stalled when it has made no progress for six ticks, and never sooner than after a minute."""
STALE_SECONDS: Final = 300.0
"""A view of the directory this old is not worth asking for."""


def health(source: Source) -> APIRouter:
    """The three endpoints."""
    router = APIRouter(responses=RESPONSES, tags=["health"])

    @router.get("/healthz", response_class=PlainTextResponse)
    def get_health() -> Response:
        """200 while the loop makes progress; otherwise a supervisor should start the process again."""
        age = source.tick_age()
        limit = max(STALLED_SECONDS, STALLED_TICKS * source.settings().daemon.tick)
        if age > limit:
            return problem(503, f"the loop has made no progress for {age:.0f} s; {limit:.0f} s are allowed")
        return PlainTextResponse("ok\n")

    @router.get("/readyz", response_class=PlainTextResponse)
    def get_readiness() -> Response:
        """200 once the directory is loaded, and as long as the view of it is not old."""
        try:
            age = source.follower().age()
        except BalancerError as error:
            return problem(503, str(error))
        if age > STALE_SECONDS:
            return problem(503, f"the view of the directory is {age:.0f} s old")
        return PlainTextResponse("ok\n")

    @router.get("/metrics", response_class=PlainTextResponse)
    def get_metrics() -> Response:
        """Prometheus metrics."""
        _observe_directory(source)
        return Response(generate_latest(source.instruments.registry), media_type=CONTENT_TYPE_LATEST)

    return router


def _observe_directory(source: Source) -> None:
    """What is only true at the moment it is asked for."""
    try:
        follower = source.follower()
    except BalancerError:
        return  # it is not loaded yet: `/readyz` says so
    source.instruments.directory_age.set(follower.age())
    source.instruments.directory_version.set(follower.snapshot.version)
