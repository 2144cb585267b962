"""A sample of the crash matrix: somebody is killed in the middle of a migration under load, and nothing is lost.

The whole matrix: `make crash-matrix`. `CRASH_SEED` repeats a sample.
"""

import os
import random
from pathlib import Path

import pytest

from balancer.directory.model import MigrationKind, MigrationMode
from balancer.migration.machine import path
from tests.support.crash_cells import VICTIMS, Cell, absence, cells, every_cell, states
from tests.support.crash_matrix import Victims, run_cell

pytestmark = pytest.mark.always

SEED = int(os.environ.get("CRASH_SEED", random.SystemRandom().randrange(1_000_000)))
OPERATIONS = (MigrationKind.MOVE, MigrationKind.SPLIT, MigrationKind.MERGE)  # expiry: `test_expiry_crashes`
KINDS = [(operation, mode) for operation in OPERATIONS for mode in MigrationMode]


def sample(seed: int) -> list[Cell]:
    """A cell of each kind and mode; every victim is in one of them."""
    chosen = random.Random(seed)
    kinds = sorted(KINDS, key=lambda kind: (kind[0] is not MigrationKind.MOVE, chosen.random()))
    others = [victim for victim in VICTIMS if victim != "target"]
    chosen.shuffle(others)
    dying = ["target", *others, chosen.choice(VICTIMS[:3])]  # a move comes first, and it has a target
    every = list(cells())
    return [
        chosen.choice([cell for cell in every if (cell.operation, cell.mode) == kind and cell.victim == victim])
        for kind, victim in zip(kinds, dying, strict=True)
    ]


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_nothing_is_lost_whoever_is_killed(number: int, tmp_path: Path, killable: Victims) -> None:
    cell = sample(SEED)[number]
    print(f"CRASH_SEED={SEED}: {cell}")
    outcome = run_cell(cell, tmp_path, killable, SEED)
    assert outcome.faults == (), f"CRASH_SEED={SEED}: {cell}"


@pytest.mark.quick
@pytest.mark.parametrize("seed", range(50))
def test_every_sample_has_each_kind_and_each_victim(seed: int) -> None:
    chosen = sample(seed)
    assert {(cell.operation, cell.mode) for cell in chosen} == set(KINDS)
    assert {cell.victim for cell in chosen} == set(VICTIMS)


@pytest.mark.quick
def test_the_matrix_has_every_state_of_every_kind_and_says_what_it_leaves_out() -> None:
    for operation, mode in KINDS:
        mine = [cell for cell in cells() if (cell.operation, cell.mode) == (operation, mode)]
        track = mine[0].track
        assert {cell.state for cell in mine} == set(states(track))
        assert set(states(track)) >= set(path(track))
    left_out = set(every_cell()) - set(cells())
    assert all(absence(cell) for cell in left_out)
