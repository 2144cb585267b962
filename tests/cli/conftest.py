"""A directory with some tables, and its address as the command line is given it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from balancer.directory.contract import Directory
from balancer.directory.open import open_directory
from tests.support.directories import fill


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/directory.db"


@pytest.fixture
def directory(address: str) -> Iterator[Directory]:
    with open_directory(address) as opened:
        fill(opened)
        yield opened
