"""Fixtures that several folders share: real servers, started when first asked for, one of each per run."""

import gc
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from balancer.embedded.postgres import PostgresServer
from balancer.embedded.zookeeper_server import ZooKeeperServer
from tests.support.mutants import mutate_from_environment
from tests.support.servers import Database, fast_place, kept, new_database, new_folder, postgres
from tests.support.zookeeper_ensemble import ZooKeeperEnsemble

# Set where the run begins, so that all its processes collect the same tests.
os.environ.setdefault("SAMPLE_SEED", str(random.SystemRandom().randrange(1_000_000)))
gc.disable()  # until all is collected: what is imported stays, and a search for garbage looks at it each time
mutate_from_environment()  # before anything that a mutant replaces is imported by name into a test


def pytest_report_header() -> str:
    return f"SAMPLE_SEED={os.environ['SAMPLE_SEED']} (all: every case of the sampled tables)"


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
    """What takes long is handed out first, what takes moments last: else one process ends long after the others."""
    left_out = _other_versions(items) if os.environ["SAMPLE_SEED"] != "all" else set()
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = sorted((item for item in items if item not in left_out), key=_weight)


def pytest_collection_finish() -> None:
    """Thousands of tests are kept to the end: what looks for garbage need not look at them each time."""
    gc.enable()
    gc.collect()
    gc.freeze()


def _other_versions(items: list[pytest.Item]) -> set[pytest.Item]:
    """Of tests that take long and run on both versions of PostgreSQL, each run has one: the seed says which."""
    by_test: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.path.parent.name in _ONE_VERSION and _VERSION.search(item.nodeid):
            by_test.setdefault(_VERSION.sub("postgres", item.nodeid), []).append(item)
    chances = {name: random.Random(f"{os.environ['SAMPLE_SEED']} {name}") for name in by_test}
    kept = {chances[name].choice(found) for name, found in by_test.items()}
    return {item for found in by_test.values() for item in found} - kept


_VERSION = re.compile(r"postgres1[58]|15 to 18|18 to 15")
_ONE_VERSION = ("e2e", "upgrade", "migration", "daemon", "tables", "client", "cli", "polling", "policies")


def _weight(item: pytest.Item) -> int:
    if item.get_closest_marker("quick") is not None:
        return len(_LONG) + 1
    folder = item.path.parent.name
    return _LONG.index(folder) if folder in _LONG else len(_LONG)


_LONG = ("e2e", "migration", "daemon", "client", "workloads", "tables", "page", "cli", "upgrade")


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
