"""A directory with a small cluster in it, and a leadership over it."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from balancer.directory.contract import Directory, Leadership
from balancer.directory.open import open_directory
from balancer.embedded.postgres import PostgresServer
from balancer.logs import set_up_logs
from tests.support.directories import fill
from tests.support.fleet import Fleet
from tests.support.logs import kept_logs
from tests.support.servers import Database


@pytest.fixture(autouse=True)
def _logs_apart() -> Iterator[None]:
    """What a daemon of this process logs is no part of what a command prints at that moment."""
    with kept_logs():
        set_up_logs("info", "text", sys.__stderr__)
        yield


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    with open_directory(f"sqlite://{tmp_path}/directory.db", lease=5.0) as opened:
        fill(opened)
        yield opened


@pytest.fixture
def leadership(directory: Directory) -> Leadership:
    won = directory.campaign("test", 10.0)
    assert won is not None
    return won


@pytest.fixture
def fleet(tmp_path: Path, postgres18: PostgresServer, database: Callable[[PostgresServer], Database]) -> Fleet:
    """Two nodes and a SQLite directory; all eight vbuckets are on node a."""
    return small_fleet(tmp_path, {name: database(postgres18).dsn for name in ("a", "b")})


def small_fleet(folder: Path, dsns: dict[str, str]) -> Fleet:
    made = Fleet(folder, f"sqlite://{folder}/shop.db", dsns)
    made.bundle |= {
        "tablet_balancer_config": "enable_cell_balancer = true",
        "placement": "dimensions = { tablets = 1.0 }",
        "migration": 'retire_grace = "100ms"\nmoves_per_node = 4\nmoves_total = 4\ncool_down = "0s"',
    }
    made.write_daemon()
    made.write("autonomous")
    made.create(["a"], rows=2000)
    return made
