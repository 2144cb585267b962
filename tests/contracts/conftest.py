"""Every directory backend, each test with an empty directory of its own."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from balancer.directory.contract import Directory
from balancer.directory.open import open_directory
from tests.support.directories import Opener

BACKENDS = [pytest.param("sqlite", marks=pytest.mark.quick), "zookeeper", "zookeeper_ensemble"]
CACHED = "zookeeper_ensemble"
"""Opened with a cache of the host beside it: what holds of a directory holds of one that others have loaded, too."""


@pytest.fixture(params=BACKENDS)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty directory."""
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/directory.db"
    server = request.getfixturevalue(request.param)
    return f"zk://{server.address}/test-{uuid4().hex}"


@pytest.fixture
def opener(address: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens the directory again and again, as other processes would; all are closed after the test."""
    cache = tmp_path / "cache" if CACHED in request.node.name else None
    with ExitStack() as stack:
        opening: Callable[[], Directory] = lambda: stack.enter_context(open_directory(address, cache=cache))  # noqa: E731
        yield opening


@pytest.fixture
def directory(opener: Opener) -> Directory:
    return opener()
