"""Which part of a large table of tests the suite runs: another one each time, the same in all its processes.

`SAMPLE_SEED` repeats a run; `SAMPLE_SEED=all` runs everything, as `make mutants` does.
"""

import os
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

# The processes of one run share the second: what they collect must be the same.
SEED = os.environ.get("SAMPLE_SEED") or os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(random.SystemRandom().random())


def sampled(values: Sequence[T], count: int, name: str) -> list[T]:
    """So many of these values, in their order. `name` tells one sample of a run from another."""
    if SEED == "all":
        return list(values)
    chosen = random.Random(f"{SEED} {name}").sample(range(len(values)), count)
    return [values[place] for place in sorted(chosen)]
