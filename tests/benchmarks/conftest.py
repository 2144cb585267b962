"""Servers of benchmarks keep their data on a disk, as everybody's do."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers import kept, new_folder


@pytest.fixture(scope="session")
def server_folder() -> Iterator[Path]:
    folder = new_folder(None)
    with kept(folder):
        yield folder
    shutil.rmtree(folder, ignore_errors=True)
