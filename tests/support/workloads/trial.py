"""A workload during migrations of the very tablet that it works on, and everything that is wrong afterwards.

Used by the tests and by `make soak`. Everything random comes from a seed that is printed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import Migration, MigrationMode
from balancer.features.forwarding.updater import ForwardingUpdater, forward_bundle
from balancer.features.repair.doctor import examine
from balancer.migration.begin import begin_move
from balancer.migration.progress import Observer
from balancer.migration.runner import Runner
from balancer.nodes.session.connection import Address
from tests.support.cluster import AMPLE, QUICK, Cluster, build, hash_table, hash_tablets
from tests.support.forward_login import with_login
from tests.support.resharding import begin_merge, begin_split
from tests.support.workloads.approach import Approach, Way
from tests.support.workloads.bank import Bank
from tests.support.workloads.crew import Crew, at_work, fill
from tests.support.workloads.hot_registers import HotRegisters
from tests.support.workloads.list_append import ListAppend
from tests.support.workloads.set_of_ids import SetOfIds
from tests.support.workloads.workload import Workload, ids_within

KINDS: Mapping[str, tuple[Callable[[Sequence[int]], Workload], int]] = {
    "set": (SetOfIds, 16),
    "list-append": (ListAppend, 12),
    "register": (HotRegisters, 3),
    "bank": (Bank, 8),
}
"""Each workload, and how many rows it begins with."""
TABLET = 2
SETTINGS = replace(
    QUICK,
    **{
        **AMPLE,
        # Changed keys are counted as often as they changed: at this pace a hot row would always have too many.
        "verify_keys_in_fence": 100_000,
        # A writer that names a new partition also asks for the root's lock, once: a swap that holds it must give way.
        "lock_timeout": 0.2,
        "fence_attempts": 200,
        "retry_back_off_limit": 0.2,
    },
)
ROOTS = ("public.orders", "public.items")


def workload_of(kind: str, cluster: Cluster, tablet: int = TABLET) -> Workload:
    """A workload on rows of this tablet."""
    make, count = KINDS[kind]
    bounds = cluster.directory().snapshot().tablet(tablet).bounds
    return make(tuple(islice(ids_within([bounds], 1), count)))


@dataclass
class Mover:
    """Migrates tablets, one after another, as the leading daemon does."""

    directory: Directory
    leadership: Leadership
    runner: Runner

    def move(self, tablet: int, node: str, mode: MigrationMode = MigrationMode.REPLICATE) -> Migration:
        return self.runner.run(begin_move(self.directory, self.leadership, tablet, node, mode=mode).id)

    def split(self, tablet: int) -> Migration:
        return self.runner.run(begin_split(self.directory, self.leadership, tablet).id)

    def merge(self, tablets: Sequence[int]) -> Migration:
        return self.runner.run(begin_merge(self.directory, self.leadership, tablets).id)

    def split_and_merge(self, tablet: int) -> list[Migration]:
        """Both; the tablet that is there afterwards has another id."""
        split = self.split(tablet)
        if split.state != "done":
            return [split]
        return [split, self.merge([half.id for half in split.targets])]


@contextmanager
def leading(cluster: Cluster, observer: Observer | None = None) -> Iterator[Mover]:
    """A leader for the length of a block."""
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    yield Mover(directory, leadership, cluster.runner(directory, leadership, observer))
    leadership.resign()


@contextmanager
def two_nodes(folder: Path, dsns: dict[str, str], kind: str) -> Iterator[tuple[Cluster, Workload]]:
    """Four tablets on node a, and the rows of a workload in one of them."""
    roots = ROOTS[: 2 if kind == "bank" else 1]
    cluster = build(folder, dsns, hash_table(roots), hash_tablets(4, ["a"]))
    cluster.settings = SETTINGS
    try:
        workload = workload_of(kind, cluster)
        fill(cluster, workload, "a")
        yield cluster, workload
    finally:
        cluster.close()


def forwarding(cluster: Cluster) -> ForwardingUpdater:
    """Brings `balancer_all` to every node; the returned object keeps it right, as the daemon does."""
    directory = cluster.directory()

    def addresses(node: str) -> Address:
        return with_login(cluster.address(node))

    forward_bundle(directory.snapshot(), "shop", addresses)
    return ForwardingUpdater(lambda _: True, directory.snapshot, addresses)


def run_trial(
    cluster: Cluster,
    workload: Workload,
    approach: Approach,
    seed: int,
    migrate: Callable[[Mover], Sequence[Migration]],
    *,
    observer: Observer | None = None,
    operations: int = 2000,
    pace: float = 0.0,
) -> list[str]:
    """Runs the migrations under load; returns what is wrong. At least this many operations are answered."""
    watch = forwarding(cluster) if approach.way is Way.FORWARDED else observer
    with at_work(cluster, workload, approach, [TABLET], seed=seed, pace=pace) as crew, leading(cluster, watch) as mover:
        found = [] if crew.await_operations(operations // 4) else ["the clients did not get going"]
        done = migrate(mover)
        found += [f"{one.operation} ended as {one.state}: {one.error}" for one in done if one.state != "done"]
        found += [] if crew.await_operations(operations) else ["the clients did not go on"]
        found += account(cluster, crew)
        print(f"seed {seed}: {crew.summary()}")
    return found


def account(cluster: Cluster, crew: Crew) -> list[str]:
    """What the clients and the doctor say in the end."""
    found = crew.faults()
    return found + [f"doctor, node {one.node}: {one.text}" for one in examine(cluster.directory(), cluster.address)]
