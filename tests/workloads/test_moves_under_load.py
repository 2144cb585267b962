"""Tablets move, are split and merged under a thousand operations a second; nothing is lost, doubled or back.

`WORKLOAD_SEED` repeats a run. Writers that name partitions, and forwarded ones, are in `test_leaf_writers`.
"""

import os
import random
from pathlib import Path

import pytest

from balancer.directory.model import Migration, MigrationMode
from tests.support.sampling import sampled
from tests.support.workloads.approach import DIRECT, HELD, HELD_SNAPSHOT, PLAIN, Approach
from tests.support.workloads.trial import KINDS, TABLET, Mover, run_trial, two_nodes

SEED = int(os.environ.get("WORKLOAD_SEED", random.SystemRandom().randrange(1_000_000)))
PACE = 0.005


def to_and_fro(mover: Mover) -> list[Migration]:
    return [mover.move(TABLET, "b"), mover.move(TABLET, "a", MigrationMode.READ_ONLY)]


@pytest.mark.parametrize("kind", sampled(tuple(KINDS), 2, "moves"))
def test_a_tablet_moves_to_and_fro(kind: str, tmp_path: Path, pair: dict[str, str]) -> None:
    approach = random.Random(f"{SEED} moves {kind}").choice(DIRECT)
    with two_nodes(tmp_path, pair, kind) as (cluster, workload):
        assert run_trial(cluster, workload, approach, SEED, to_and_fro, pace=PACE) == [], (
            f"WORKLOAD_SEED={SEED}: {approach}"
        )


@pytest.mark.parametrize("kind", sampled(tuple(KINDS), 2, "reshards"))
def test_a_tablet_is_split_and_merged(kind: str, tmp_path: Path, pair: dict[str, str]) -> None:
    through_root: tuple[Approach, ...] = (PLAIN, HELD, HELD_SNAPSHOT)
    approach = random.Random(f"{SEED} reshards {kind}").choice(through_root)
    with two_nodes(tmp_path, pair, kind) as (cluster, workload):
        found = run_trial(cluster, workload, approach, SEED, lambda mover: mover.split_and_merge(TABLET), pace=PACE)
        assert found == [], f"WORKLOAD_SEED={SEED}: {approach}"
