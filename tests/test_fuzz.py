"""Generated input for everything that takes input: one sentence and a documented exit code, whatever it is.

`make fuzz` does the same for longer. A failure names the seed; FUZZ_SEED repeats it.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from random import SystemRandom

import pytest

from balancer.embedded.zookeeper import ZooKeeperServer
from tests.support.fuzz_targets import every_target
from tests.support.fuzzing import FuzzTarget, explore

SECONDS = 4.0
MOST = 150
NAMES = (
    "formulas",
    "configurations",
    "command lines",
    "scenarios",
    "imports",
    "requests",
    "stored rows",
    "znodes",
    "addresses",
    "messages",
    "snapshots",
)


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperServer) -> Iterator[dict[str, FuzzTarget]]:
    folder: Path = tmp_path_factory.mktemp("fuzz")
    with every_target(folder, zookeeper.address) as made:
        yield {target.name: target for target in made}


@pytest.mark.parametrize("name", NAMES)
def test_whatever_comes_in_is_answered(targets: dict[str, FuzzTarget], name: str) -> None:
    report = explore(
        targets[name], int(os.environ.get("FUZZ_SEED", SystemRandom().randrange(10**9))), seconds=SECONDS, most=MOST
    )
    print(report.row())
    assert report.cases, "nothing was tried"
    assert not report.failures, "\n".join(report.failures[:5])


def test_every_target_is_here(targets: dict[str, FuzzTarget]) -> None:
    assert tuple(targets) == NAMES
