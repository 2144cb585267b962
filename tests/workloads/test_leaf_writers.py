"""Writers that name a partition, or are forwarded to one, take no lock on the root: a swap must lock the leaves too."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from balancer.directory.model import Migration
from balancer.embedded.postgres import PostgresServer
from tests.support.sampling import crossed, sampled
from tests.support.servers import Database
from tests.support.workloads.approach import FORWARDED, HELD_LEAF, HELD_SNAPSHOT_LEAF, PLAIN_LEAF, Approach
from tests.support.workloads.trial import KINDS, TABLET, Mover, run_trial, two_nodes

SEED = int(os.environ.get("WORKLOAD_SEED", random.SystemRandom().randrange(1_000_000)))
PACE = 0.005
Factory = Callable[[PostgresServer], Database]


def split_and_merge_twice(mover: Mover) -> list[Migration]:
    first = mover.split_and_merge(TABLET)
    done = first[-1].state == "done"
    return [*first, *(mover.split_and_merge(first[-1].targets[0].id) if done else [])]


APPROACHES = (PLAIN_LEAF, *sampled((HELD_LEAF, HELD_SNAPSHOT_LEAF), 1, "held"))


@pytest.mark.parametrize(
    ("kind", "approach"), crossed(sampled(tuple(KINDS), 2, "kinds"), APPROACHES, 1, "leaf writers"), ids=str
)
def test_splits_and_merges_beside_writers_that_name_the_partition(
    kind: str, approach: Approach, tmp_path: Path, pair: dict[str, str]
) -> None:
    with two_nodes(tmp_path, pair, kind) as (cluster, workload):
        found = run_trial(cluster, workload, approach, SEED, split_and_merge_twice, pace=PACE)
        assert found == [], f"WORKLOAD_SEED={SEED}"


@pytest.mark.parametrize("kind", sampled(tuple(KINDS), 1, "forwarded"))
def test_everything_beside_forwarded_writers(
    kind: str, tmp_path: Path, postgres15: PostgresServer, database: Factory
) -> None:
    """PostgreSQL 15: the embedded ones have no postgres_fdw."""

    def migrate(mover: Mover) -> list[Migration]:
        return [mover.move(TABLET, "b"), *mover.split_and_merge(TABLET)]

    dsns = {"a": database(postgres15).dsn, "b": database(postgres15).dsn}
    with two_nodes(tmp_path, dsns, kind) as (cluster, workload):
        found = run_trial(cluster, workload, FORWARDED, SEED, migrate, pace=PACE)
        assert found == [], f"WORKLOAD_SEED={SEED}"
