"""The steps of the argument that need somebody to die, or to sleep for too long: chosen cells of the crash matrix."""

from pathlib import Path

import pytest

from balancer.directory.model import MigrationKind, MigrationMode
from tests.support.crash_cells import Cell
from tests.support.crash_matrix import Victims, run_cell

pytestmark = pytest.mark.always

CELLS = {
    "step 3: what was drained survives the target's crash": ("entered:committing", "target"),
    "step 6: a sealed fence survives the source's crash": ("entered:committing", "source"),
    "step 9: a leader that slept over its successor cannot commit": ("entered:committing", "paused daemon"),
    "step 10: a successor opens what was committed": ("left:committing", "daemon"),
}


@pytest.mark.parametrize("step", list(CELLS))
def test_argument(step: str, tmp_path: Path, killable: Victims) -> None:
    point, victim = CELLS[step]
    outcome = run_cell(Cell(MigrationKind.MOVE, MigrationMode.REPLICATE, point, victim), tmp_path, killable, 1)
    assert outcome.faults == ()
