"""Which part of a large table of tests the suite runs: a different one each time, the same in all its processes.

`SAMPLE_SEED` repeats a run; `SAMPLE_SEED=all` runs everything, as `make mutants` does.
"""

import os
import random
from collections.abc import Sequence
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")

SEED = os.environ["SAMPLE_SEED"]  # set by tests/conftest.py


def sampled(values: Sequence[T], count: int, name: str) -> list[T]:
    """This many of these values, in order. `name` distinguishes one sample of a run from another."""
    if SEED == "all":
        return list(values)
    chosen = random.Random(f"{SEED} {name}").sample(range(len(values)), count)
    return [values[place] for place in sorted(chosen)]


def crossed(first: Sequence[S], second: Sequence[T], each: int, name: str) -> list[tuple[S, T]]:
    """Pairs of two tables: every value of the first with this many of the second, in turns, so that all occur."""
    if SEED == "all":
        return [(one, other) for one in first for other in second]
    chance = random.Random(f"{SEED} {name}")
    turns = chance.sample(range(len(second)), len(second))
    places = [(row, turns[(row * each + turn) % len(second)]) for row in range(len(first)) for turn in range(each)]
    return [(first[row], second[column]) for row, column in sorted(places)]


def thinned(values: Sequence[T], step: int, name: str) -> list[T]:
    """Every n-th of these values: at least one of each group of neighbours, which are alike."""
    if SEED == "all":
        return list(values)
    return list(values[random.Random(f"{SEED} {name}").randrange(step) :: step])
