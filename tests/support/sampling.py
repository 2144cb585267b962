"""Which part of a large table of tests the suite runs: another one each time, the same in all its processes.

`SAMPLE_SEED` repeats a run; `SAMPLE_SEED=all` runs everything, as `make mutants` does.
"""

import os
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

SEED = os.environ["SAMPLE_SEED"]  # set by tests/conftest.py


def sampled(values: Sequence[T], count: int, name: str) -> list[T]:
    """So many of these values, in their order. `name` tells one sample of a run from another."""
    if SEED == "all":
        return list(values)
    chosen = random.Random(f"{SEED} {name}").sample(range(len(values)), count)
    return [values[place] for place in sorted(chosen)]
