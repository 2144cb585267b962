"""One browser for all tests of the page, and an instance whose cluster they may change."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from balancer.api.app import create_app
from balancer.api.server import ApiServer
from tests.support.browser import chromium
from tests.support.bundle_states import report_small
from tests.support.directories import fill
from tests.support.instance import Instance, http_settings, instance_in


# Not for longer than a file: while the browser is driven, this thread counts as running an event loop.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    """Three nodes, a hash table of eight tablets, a range table of four; polled once."""
    with instance_in(tmp_path) as made:
        fill(made.directory())
        made.follower().wait(0, 5)
        report_small(made)
        yield made


@pytest.fixture
def server(instance: Instance) -> Iterator[ApiServer]:
    http = http_settings()
    with ApiServer(create_app(instance, http), http) as running:
        yield running
