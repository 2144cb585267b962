"""The cells of the crash matrix: which migration, who is killed, and at what point of which state. Pure values.

A state has up to three points: its beginning (`entered`: journaled, if it is journaled at all, and nothing done yet),
its middle (`inside`: one of its transactions on a node has committed, the others have not) and its end (`left`: all
done, and what follows is not saved yet). Where a point or a victim does not exist, `absence` says why.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from balancer.directory.model import MigrationKind, MigrationMode
from balancer.migration.machine import State, Track, is_final, path, track_of

VICTIMS = ("daemon", "paused daemon", "source", "target", "directory")
POINTS = ("entered", "inside", "left")

_NO_STEPS_ON_NODES = {
    Track.MOVE_REPLICATE: {State.PLANNED, State.DRAINING, State.COMMITTING},
    Track.MOVE_READ_ONLY: {State.PLANNED, State.COMMITTING},
    Track.RESHARD_REPLICATE: {State.PLANNED, State.VERIFYING, State.COMMITTING},
    Track.RESHARD_READ_ONLY: {State.PLANNED, State.VERIFYING, State.COMMITTING},
}


@dataclass(frozen=True)
class Cell:
    """Who is killed, and when."""

    operation: MigrationKind
    mode: MigrationMode
    point: str  # entered:<state>, inside:<state> or left:<state>
    victim: str

    def __str__(self) -> str:
        return f"{self.operation}, {self.mode}: {self.victim} at {self.point}"

    @property
    def track(self) -> Track:
        return track_of(self.operation, self.mode)

    @property
    def kind(self) -> str:
        """A kind of migration in plain words."""
        return f"{self.operation}, {self.mode}"

    @property
    def state(self) -> State:
        return State(self.point.partition(":")[2])

    @property
    def words(self) -> str:
        """What makes `crash_matrix_main` run this cell alone."""
        return f"'{self}'"


def states(track: Track) -> tuple[State, ...]:
    """Every state that a migration of this track can be in: the way there, then the way back."""
    return (*path(track), State.CANCELLING, State.CANCELLED, State.FAILED)


def absence(cell: Cell) -> str | None:
    """Why there is no such cell; None if there is."""
    if cell.victim == "target" and cell.operation is not MigrationKind.MOVE:
        return "a split or merge has one node: its target is its source"
    point = cell.point.partition(":")[0]
    if point != "entered" and is_final(cell.state):
        return "a final state has no work, so it has only a beginning"
    if point == "inside" and cell.state in _NO_STEPS_ON_NODES[cell.track]:
        return "a state without a transaction on a node has no middle: its end is all there is"
    return None


def every_cell() -> Iterator[Cell]:
    """All combinations, including those that do not exist."""
    for operation in (MigrationKind.MOVE, MigrationKind.SPLIT, MigrationKind.MERGE):  # expiry: `test_expiry_crashes`
        for mode in MigrationMode:
            for state in states(track_of(operation, mode)):
                for point in POINTS:
                    for victim in VICTIMS:
                        yield Cell(operation, mode, f"{point}:{state}", victim)


def cells() -> Iterator[Cell]:
    """The whole matrix."""
    return (cell for cell in every_cell() if absence(cell) is None)
