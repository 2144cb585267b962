"""What a router counts, and the spans that it makes where it was given a tracer."""

import asyncio
import threading
from typing import Any

import psycopg
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from balancer.client import AsyncRouter, PoolSettings, Router
from balancer.client.sqlalchemy import session
from balancer.errors import Unavailable
from tests.support.shards import Shards, user_of


def wait_for_a_lift(shards: Shards, router: Router, user: int) -> None:
    shards.fence(1, seconds=30)
    lifting = threading.Timer(0.1, shards.lift, (1,))
    lifting.start()
    with router.transaction("orders", user) as connection:
        connection.execute("SELECT 1")
    lifting.join()


def test_an_ordinary_transaction_counts_nothing(shards: Shards, router: Router) -> None:
    with router.transaction("orders", 1), router.transaction("orders", 2, read_only=True):
        pass
    with session(router, "orders", 1):
        pass
    assert set(router.counters.values().values()) == {0.0}
    assert set(router.counters.values()) == set(router.counters.meanings())


def test_waits_moves_and_retries_are_counted(shards: Shards, router: Router) -> None:
    user = user_of(shards, 1)
    wait_for_a_lift(shards, router, user)
    values = router.counters.values()
    assert values["waits"] == 1
    assert values["moving"] >= 1
    assert values["wait_seconds"] > 0
    shards.fence(1, seconds=30)
    with pytest.raises(Unavailable), router.transaction("orders", user, patience=0.05):
        pass
    shards.lift(1)
    assert router.counters.values()["gave_up"] == 1
    calls = 0

    def twice(_: psycopg.Connection[Any]) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise psycopg.errors.SerializationFailure("by hand")

    router.run("orders", user, twice)
    assert router.counters.values()["retries"] == 1


def test_a_try_that_was_refused_gives_its_connection_back(shards: Shards) -> None:
    user = user_of(shards, 1)
    with Router.connect(shards.url, PoolSettings(size=1), samples=False) as router:
        for _ in range(3):
            wait_for_a_lift(shards, router, user)
        assert router.counters.values()["lost"] == 0


def test_waits_are_spans_and_retries_events(shards: Shards) -> None:
    user, kept = user_of(shards, 1), InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("shop")
    calls = 0

    def twice(_: psycopg.Connection[Any]) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise psycopg.errors.DeadlockDetected("by hand")

    with (
        Router.connect(shards.url, samples=False, tracer=tracer) as router,
        tracer.start_as_current_span("request"),
    ):
        wait_for_a_lift(shards, router, user)
        router.run("orders", user, twice)
    wait, request = kept.get_finished_spans()
    assert (wait.name, request.name) == ("balancer.wait", "request")
    assert wait.parent is not None
    assert request.context is not None
    assert wait.parent.span_id == request.context.span_id
    assert dict(wait.attributes or {}) == {
        "balancer.table": "orders",
        "balancer.node": "pg-a",
        "balancer.gave_up": False,
    }
    assert {str((event.attributes or {})["balancer.reason"]) for event in wait.events} == {"moving"}
    assert [event.name for event in request.events] == ["balancer.retry"]


def test_with_asyncio(shards: Shards) -> None:
    user = user_of(shards, 1)

    async def work() -> dict[str, float]:
        async with await AsyncRouter.connect(shards.url, samples=False) as router:
            shards.fence(1, seconds=30)
            with pytest.raises(Unavailable):
                async with router.transaction("orders", user, patience=0.05):
                    pass
            shards.lift(1)
            return router.counters.values()

    values = asyncio.run(work())
    assert (values["waits"], values["gave_up"]) == (1, 1)
