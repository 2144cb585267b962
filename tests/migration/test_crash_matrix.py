"""A sample of the crash matrix: somebody is killed in the middle of a migration under load, and nothing is lost.

The whole matrix: `make crash-matrix`.
"""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from balancer.embedded.postgres import PostgresServer
from tests.support.crash_matrix import Cell, cells, run_cell
from tests.support.servers import postgres

SEED = int(os.environ.get("CRASH_SEED", random.SystemRandom().randrange(1_000_000)))
SAMPLE = 6


def sample() -> list[Cell]:
    """One cell of each kind and mode, then any."""
    chosen = random.Random(SEED)
    every = list(cells())
    kinds = sorted({(cell.operation, cell.mode) for cell in every})
    picked = [chosen.choice([cell for cell in every if (cell.operation, cell.mode) == kind]) for kind in kinds]
    return picked + chosen.sample([cell for cell in every if cell not in picked], SAMPLE - len(picked))


@pytest.fixture(scope="module")
def killable(server_folder: Path) -> Iterator[dict[str, PostgresServer]]:
    """Two servers of different versions that nobody else uses."""
    folder = server_folder / "crash"
    folder.mkdir()
    folder.chmod(0o755)
    with postgres(folder / "a", 15) as a, postgres(folder / "b", 18) as b:
        yield {"a": a, "b": b}


@pytest.mark.parametrize("number", range(SAMPLE))
def test_nothing_is_lost_whoever_is_killed(number: int, tmp_path: Path, killable: dict[str, PostgresServer]) -> None:
    cell = sample()[number]
    print(f"CRASH_SEED={SEED}: {cell}")
    outcome = run_cell(cell, tmp_path, killable, SEED)
    assert outcome.faults == (), f"CRASH_SEED={SEED}: {cell}"
    assert outcome.operations > 0
