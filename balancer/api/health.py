"""What supervisors ask: `/healthz`, `/readyz`, `/metrics`. They tell nothing about the cluster but figures."""

from typing import Final

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from balancer.api.problems import RESPONSES, problem
from balancer.api.source import Source
from balancer.errors import BalancerError

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
