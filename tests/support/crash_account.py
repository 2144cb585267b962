"""What must be true after a crash, and what at the moment of the crash: rows, owners, leftovers, progress of writers.

Called by `crash_matrix`. Everything is asked of the nodes themselves, whatever the directory says.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count, islice

import psycopg

from balancer.directory.model import Tablet
from balancer.directory.snapshot import Snapshot
from balancer.migration.doctor import examine
from balancer.migration.machine import State
from policies.hash_leaves import position
from policies.hashing import partition_hash
from policies.keys import KeyType
from tests.support.cluster import Cluster
from tests.support.refusals import refused_with
from tests.support.workload import Ledger

REFUSALS = {"TB001", "TB002", "23514"}
PROBES = 5_000_000  # ids from here on belong to nobody but this module
COMMITTED = {State.OPENING, State.RETIRING, State.DONE}


def tablet_of(cluster: Cluster, snapshot: Snapshot, number: int) -> Tablet:
    """Who owns an id under this map."""
    return snapshot.locate(cluster.table.id, position(partition_hash((KeyType.BIGINT,), (number,))))


def ids_in(cluster: Cluster, snapshot: Snapshot, tablet: int, first: int = PROBES) -> Iterator[int]:
    """Ids of a tablet that nobody has used."""
    return (number for number in count(first) if tablet_of(cluster, snapshot, number).id == tablet)


class Traffic:
    """Whether the application gets its writes through, to the tablets that are migrated."""

    def __init__(self, cluster: Cluster, ledger: Ledger, snapshot: Snapshot, tablets: tuple[int, ...]) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._snapshot = snapshot
        self._tablets = tablets
        self._known: dict[int, bool] = {}

    def await_writes(self, count: int, seconds: float) -> bool:
        """Waits until so many more writes to these tablets were acknowledged."""
        return self._await(self._ledger.writes, count, seconds)

    def await_reads(self, count: int, seconds: float) -> bool:
        """Waits until so many more reads of these tablets were asked for and answered."""
        return self._await(self._ledger.reads, count, seconds)

    def _await(self, log: list[tuple[float, int]], count: int, seconds: float) -> bool:
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            with self._ledger.lock:
                fresh = [number for at, number in reversed(log) if at >= began]
            if sum(map(self._concerned, fresh)) >= count:
                return True
            time.sleep(0.01)
        return False

    def _concerned(self, number: int) -> bool:
        if number not in self._known:
            self._known[number] = tablet_of(self._cluster, self._snapshot, number).id in self._tablets
        return self._known[number]


def owners_now(cluster: Cluster) -> Iterator[str]:
    """In the middle of it: at most one node takes a write.

    The first one's transaction stays open meanwhile, so no fence can come between: if both take it, both are open.
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


def account(cluster: Cluster, ledger: Ledger, crashed_in: State) -> Iterator[str]:
    """Everything that is wrong in the end."""
    snapshot = cluster.directory().snapshot()
    yield from ledger.faults(cluster.rows())
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
    """For some ids of each tablet: the owner takes a write, everybody else refuses it, and with the right words."""
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
