"""An instance over a small real cluster, and a client of its server."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.bundle_states import report_small
from tests.support.directories import fill
from tests.support.instance import Instance, instance_in, serving


@contextmanager
def small(folder: Path) -> Iterator[Instance]:
    """Three nodes, a hash table of eight tablets, a range table of four; polled once."""
    with instance_in(folder) as made:
        fill(made.directory())
        made.follower().wait(0, 5)
        report_small(made)
        yield made


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    """For tests that change something."""
    with small(tmp_path) as made:
        yield made


@pytest.fixture
def client(instance: Instance) -> Iterator[httpx.Client]:
    with serving(instance) as found:
        yield found


@pytest.fixture(scope="package")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """For tests that change nothing: one server for all of them."""
    with small(tmp_path_factory.mktemp("reader")) as made, serving(made) as found:
        yield found
