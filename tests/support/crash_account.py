"""What must be true after a crash, and what at the moment of the crash: rows, owners, leftovers, progress of writers.

Called by `crash_matrix`. Everything is asked of the nodes themselves, whatever the directory says.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count, islice
from random import Random

import psycopg

from balancer.directory.model import Tablet, TabletState
from balancer.directory.snapshot import Snapshot
from balancer.features.repair.doctor import examine
from balancer.migration.machine import State
from balancer.policies.keyspace.hash_leaves import position
from balancer.policies.keyspace.hashing import partition_hash
from balancer.policies.keyspace.keys import KeyType
from tests.support.cluster import Cluster
from tests.support.refusals import refused_with
from tests.support.workloads.approach import HELD, HELD_SNAPSHOT, PLAIN, Approach, Proof
from tests.support.workloads.crew import Crew, at_work
from tests.support.workloads.hot_registers import HotRegisters
from tests.support.workloads.list_append import ListAppend
from tests.support.workloads.set_of_ids import SetOfIds
from tests.support.workloads.workload import is_within

REFUSALS = {"TB001", "TB002", "23514", "40001"}
PACE = 0.002  # seconds between two operations of a client
PROBES = 5_000_000  # ids from here on belong only to this module
COMMITTED = {State.OPENING, State.RETIRING, State.DONE}


def tablet_of(cluster: Cluster, snapshot: Snapshot, number: int) -> Tablet:
    """Who owns an id under this map."""
    return snapshot.locate(cluster.table.id, position(partition_hash((KeyType.BIGINT,), (number,))))


def ids_in(cluster: Cluster, snapshot: Snapshot, tablet: int, first: int = PROBES) -> Iterator[int]:
    """Unused ids of a tablet."""
    return (number for number in count(first) if tablet_of(cluster, snapshot, number).id == tablet)


class Traffic:
    """The application: one crew through the root that inserts and deletes, one by the partitions' names that changes
    few rows again and again. All of it is in the tablets that are migrated."""

    def __init__(self, crews: tuple[Crew, ...]) -> None:
        self._crews = crews

    def await_writes(self, count: int, seconds: float) -> bool:
        """Waits until this many more writes through the root were requested and acknowledged."""
        return self._crews[0].await_writes(count, seconds)

    def await_reads(self, count: int, seconds: float) -> bool:
        """Likewise for reads."""
        return self._crews[0].await_reads(count, seconds)

    @property
    def readers_are_held(self) -> bool:
        """Whether a fence holds the readers back like writers: each of their statements has its own snapshot."""
        return self._crews[0].approach.proof is Proof.HOLD

    def await_operations(self, count: int, seconds: float) -> bool:
        """Waits until this many were answered in all, from the beginning."""
        deadline = time.monotonic() + seconds
        while self.operations < count and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.operations >= count

    @property
    def operations(self) -> int:
        return sum(crew.operations for crew in self._crews)

    def faults(self) -> list[str]:
        """Ends the clients; everything that is wrong with their rows."""
        for crew in self._crews:
            crew.finish()
        return [f"{crew.workload.name}: {fault}" for crew in self._crews for fault in crew.faults()]


@contextmanager
def traffic(
    cluster: Cluster, tablets: tuple[int, ...], present: range, chance: Random, leaf: tuple[Approach, ...]
) -> Iterator[Traffic]:
    """Crews for the length of a block, on rows that already exist."""
    snapshot = cluster.directory().snapshot()
    bounds = [snapshot.tablet(tablet).bounds for tablet in tablets]
    mine = [number for number in present if is_within(bounds, number)]
    kind = chance.choice((ListAppend, HotRegisters))
    through_root = SetOfIds(mine, others=present)
    by_name = kind(mine[:6])
    root = chance.choice((PLAIN, HELD, HELD_SNAPSHOT))
    crew = partial(at_work, cluster, tablets=tablets, processes=1, writers=2, readers=1, pace=PACE)
    with (
        crew(through_root, root, seed=chance.randrange(10**6)) as first,
        crew(by_name, chance.choice(leaf), seed=chance.randrange(10**6)) as second,
    ):
        yield Traffic((first, second))


def owners_now(cluster: Cluster) -> Iterator[str]:
    """In the middle of it: at most one node takes a write.

    The first one's transaction stays open meanwhile, so no fence can come in between: if both take it, both are open.
    """
    root = cluster.table.roots[0]
    snapshot = cluster.directory().snapshot()
    tablets = [tablet.id for tablet in snapshot.tablets(cluster.table.id)]
    with ExitStack() as stack:
        connections = {node: stack.enter_context(psycopg.connect(dsn)) for node, dsn in cluster.dsns.items()}
        for number in (next(ids_in(cluster, snapshot, tablet)) for tablet in tablets):
            takers = [node for node, connection in connections.items() if _takes(connection, root, number)]
            for connection in connections.values():
                connection.rollback()
            if len(takers) > 1:
                yield f"nodes {' and '.join(takers)} both take a write of {number} at the moment of the crash"


def _takes(connection: psycopg.Connection[tuple[object, ...]], root: str, number: int) -> bool:
    connection.execute("SET LOCAL lock_timeout TO '200ms'")
    try:
        connection.execute(f"INSERT INTO {root} (id) VALUES ({number})")
    except psycopg.Error:
        return False
    return True


def account(cluster: Cluster, application: Traffic, crashed_in: State) -> Iterator[str]:
    """Everything that is wrong in the end."""
    snapshot = cluster.directory().snapshot()
    yield from application.faults()
    for tablet in snapshot.tablets(cluster.table.id):
        if tablet.state is TabletState.QUARANTINED:
            yield f"a copy of tablet {tablet.id} differed from it, though nobody had touched either"
    for finding in examine(cluster.directory(), cluster.address):
        yield f"doctor, node {finding.node}: {finding.text}"
    for record in snapshot.migrations.values():
        if not record.finished:
            yield f"migration {record.id} is unfinished: {record.state}"
        if crashed_in in COMMITTED and record.state != State.DONE:
            yield f"migration {record.id} had committed, and ended as {record.state}"
        if crashed_in in (State.CANCELLING, State.CANCELLED) and record.state != State.CANCELLED:
            yield f"migration {record.id} was cancelled, and ended as {record.state}"
        if crashed_in is State.FAILED and record.state != State.FAILED:
            yield f"migration {record.id} had failed, and ended as {record.state}"
    yield from owner_faults(cluster, snapshot)


def owner_faults(cluster: Cluster, snapshot: Snapshot) -> Iterator[str]:
    """For some ids of each tablet: the owner takes a write, everybody else refuses it, with the right words."""
    root = cluster.table.roots[0]
    wanted = {
        tablet: list(islice(ids_in(cluster, snapshot, tablet.id), 3)) for tablet in snapshot.tablets(cluster.table.id)
    }
    for node in cluster.dsns:
        with cluster.connect(node) as connection:
            for tablet, numbers in wanted.items():
                for number in numbers:
                    answer = _insert(connection, root, number)
                    if node == tablet.node and answer != "taken":
                        yield f"node {node} refused a write of {number} ({answer}), which it owns"
                    if node != tablet.node and answer not in REFUSALS:
                        yield f"node {node} answered {answer} to a write of {number}, which node {tablet.node} owns"


def _insert(connection: psycopg.Connection[tuple[object, ...]], root: str, number: int) -> str:
    try:
        connection.execute(f"INSERT INTO {root} (id) VALUES ({number})")
    except psycopg.Error as error:
        return refused_with(error) or repr(error)
    return "taken"
