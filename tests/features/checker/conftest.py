"""A table with a colocated root on three nodes, of two versions of the server: shared by the tests of a module."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from balancer.client import PoolSettings, Router
from balancer.embedded.postgres import PostgresServer
from balancer.features.checker import loop
from tests.support.servers import new_database
from tests.support.shards import Shards, new_shards

USERS = range(1, 61)


@pytest.fixture(scope="module")
def shards(
    tmp_path_factory: pytest.TempPathFactory, postgres15: PostgresServer, postgres18: PostgresServer
) -> Iterator[Shards]:
    folder: Path = tmp_path_factory.mktemp("checks")
    with ExitStack() as stack:
        servers = (postgres15, postgres18, postgres18)
        dsns = [stack.enter_context(new_database(server)).dsn for server in servers]
        made = stack.enter_context(new_shards(folder, dsns, tablets=8))
        fill(made)
        yield made


def fill(shards: Shards) -> None:
    """Two rows of each user, in both roots."""
    with Router.connect(shards.url, PoolSettings(), samples=False) as router:
        router.ids("orders").next()  # what is below it counts as handed out
        for root in ("orders", "items"):
            rows = [(user, n, f"row {n}") for user in USERS for n in (1, 2)]
            router.copy_into("orders", rows, ("user_id", "n", "note"), root=root)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second look at what looks wrong comes without a pause."""
    monkeypatch.setattr(loop, "CONFIRM_PAUSE", 0.0)
