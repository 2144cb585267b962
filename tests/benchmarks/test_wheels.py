"""What an application installs and imports: the client's distribution beside the daemon's, and beside psycopg alone."""

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.pins import dependencies
from tests.support.tables import show_table
from tests.test_one_package import CLIENT, TREE

pytestmark = pytest.mark.bench

RUNS = 7
BARE = [Requirement("psycopg[binary]"), Requirement("psycopg-pool")]


def closure(waiting: list[Requirement]) -> set[str]:
    """Every package that these lead to here."""
    found: set[tuple[str, str]] = set()
    while waiting:
        wanted = waiting.pop()
        for extra in ("", *wanted.extras):
            name = canonicalize_name(wanted.name)
            if (name, extra) not in found:
                found.add((name, extra))
                needs = [Requirement(text) for text in distribution(name).requires or ()]
                waiting += [one for one in needs if one.marker is None or one.marker.evaluate({"extra": extra})]
    return {name for name, _ in found}


def megabytes(packages: set[str], ours: list[str]) -> float:
    files = [Path(str(file.locate())) for name in packages for file in distribution(name).files or ()]
    files += [TREE / name for name in ours]
    return sum(file.stat().st_size for file in files if file.suffix != ".pyc" and file.exists()) / 1e6


def seconds(line: str) -> float:
    timed = f"import time; began = time.perf_counter(); {line}; print(time.perf_counter() - began)"
    runs = [
        subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True) for _ in range(RUNS)
    ]
    return min(float(run.stdout) for run in runs)


def test_size_and_import_time() -> None:
    parts = (CLIENT / "parts.txt").read_text().split()
    everything = [
        str(file.relative_to(TREE))
        for folder in ("balancer", "policies", "schedules")
        for file in (TREE / folder).rglob("*.py")
    ]
    client = closure([*dependencies("packaging/client"), *BARE])
    daemon = closure([*dependencies("."), *BARE])
    rows = [
        (
            "psycopg and its pool",
            len(closure(list(BARE))),
            megabytes(closure(list(BARE)), []),
            seconds("import psycopg, psycopg_pool") * 1e3,
        ),
        ("tablet-balancer-client", len(client), megabytes(client, parts), seconds("import balancer.client") * 1e3),
        ("tablet-balancer", len(daemon), megabytes(daemon, everything), seconds("import balancer.cli.main") * 1e3),
    ]
    print(sorted(client))
    show_table("what is installed", ("distribution", "packages", "MB", "import, ms (best)"), rows)
