"""Fixtures that several folders share: real servers, started when first asked for, one of each per run."""

import gc
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from balancer.embedded.postgres import PostgresServer
from balancer.embedded.zookeeper import ZooKeeperServer
from tests.support.mutants import mutate_from_environment
from tests.support.servers import Database, fast_place, kept, new_database, new_folder, postgres
from tests.support.turns import area, not_their_turn, other_versions
from tests.support.zookeeper_ensemble import ZooKeeperEnsemble

# Set where the run begins, so that all its processes collect the same tests.
os.environ.setdefault("SAMPLE_SEED", str(random.SystemRandom().randrange(1_000_000)))
gc.disable()  # until all is collected: what is imported stays, and a search for garbage looks at it each time
mutate_from_environment()  # before anything that a mutant replaces is imported by name into a test


def pytest_report_header() -> str:
    return f"SAMPLE_SEED={os.environ['SAMPLE_SEED']} (all: every test on every version, every case of sampled tables)"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m quick` does not import files without such a test: every process collects, and most of that is importing."""
    asked = config.option.markexpr.split()
    outside = collection_path.suffix == ".py" and asked[:1] == ["quick"] and not _says_quick(collection_path)
    return True if outside else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("quick") is not None and not _says_quick(item.path):
        pytest.fail("`make quick` does not see this test: its file must have the mark `quick` itself", pytrace=False)


@cache
def _says_quick(file: Path) -> bool:
    """Whether a file or its folder's conftest has the mark. A test that gets it in another way fails in whole runs."""
    return any("quick" in path.read_text() for path in (file, file.with_name("conftest.py")) if path.exists())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Hands out long tests first and short ones last: otherwise one process ends long after the others."""
    left_out: set[pytest.Item] = set()
    if os.environ["SAMPLE_SEED"] != "all":
        left_out |= other_versions(items, os.environ["SAMPLE_SEED"])
        if not config.option.file_or_dir and not config.option.keyword:  # what is asked for by name runs whole
            left_out |= not_their_turn([item for item in items if item not in left_out], os.environ["SAMPLE_SEED"])
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = sorted((item for item in items if item not in left_out), key=_weight)


def pytest_collection_finish() -> None:
    """Thousands of tests are kept to the end: what looks for garbage need not look at them each time."""
    gc.enable()
    gc.collect()
    gc.freeze()


def _weight(item: pytest.Item) -> int:
    if item.get_closest_marker("quick") is not None:
        return len(_LONG) + 1
    folder = area(item.path)
    return _LONG.index(folder) if folder in _LONG else len(_LONG)


_LONG = ("e2e", "migration", "daemon", "client", "workloads", "features", "page", "cli", "upgrade")


# A busy machine is no reason to fail; the printed blob replays a failure.
settings.register_profile("balancer", deadline=None, print_blob=True)
settings.load_profile("balancer")


@pytest.fixture(scope="session")
def server_folder() -> Iterator[Path]:
    folder = new_folder(fast_place())
    with kept(folder):
        yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres18(server_folder: Path) -> Iterator[PostgresServer]:
    with postgres(server_folder / "postgres18", 18) as server:
        yield server


@pytest.fixture(scope="session")
def postgres15(server_folder: Path) -> Iterator[PostgresServer]:
    with postgres(server_folder / "postgres15", 15) as server:
        yield server


@pytest.fixture(scope="session", params=[15, 18], ids=["postgres15", "postgres18"])
def any_postgres(request: pytest.FixtureRequest) -> PostgresServer:
    """Runs a test on each of the versions."""
    server = request.getfixturevalue(f"postgres{request.param}")
    assert isinstance(server, PostgresServer)
    return server


@pytest.fixture
def database() -> Iterator[Callable[[PostgresServer], Database]]:
    """Makes databases that live as long as the test."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(new_database(server))


@pytest.fixture(scope="session")
def zookeeper(server_folder: Path) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(server_folder / "zookeeper") as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper_ensemble(server_folder: Path) -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble(server_folder / "ensemble") as ensemble:
        yield ensemble
