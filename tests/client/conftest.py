"""A small cluster for each test that asks for one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from balancer.client import PoolSettings, Router
from balancer.client.keys.routes import Routes
from balancer.directory.open import open_directory
from balancer.embedded.postgres import PostgresServer
from tests.support.directories import fill
from tests.support.shards import Shards, databases, new_shards


@pytest.fixture(scope="module")
def dsns(postgres18: PostgresServer) -> Iterator[list[str]]:
    """The databases of a module's clusters."""
    with databases(postgres18) as made:
        yield made


@pytest.fixture
def shards(tmp_path: Path, dsns: list[str]) -> Iterator[Shards]:
    with new_shards(tmp_path, dsns) as made:
        yield made


@pytest.fixture
def router(shards: Shards) -> Iterator[Router]:
    with Router.connect(shards.url, PoolSettings(size=4), samples=False) as opened:
        yield opened


@pytest.fixture
def routes(tmp_path: Path) -> Iterator[Routes]:
    """A directory without servers behind it."""
    with open_directory(f"sqlite://{tmp_path}/directory.sqlite") as directory:
        fill(directory)
        opened = Routes(directory)
        yield opened
        opened.close()
