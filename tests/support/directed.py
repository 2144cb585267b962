"""For tests that act at one point of a migration: every acknowledged write is counted, and must be kept."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import psycopg

from balancer.directory.model import Migration, MigrationMode
from balancer.errors import BalancerError
from balancer.features.repair.doctor import examine
from balancer.migration.begin import begin_move
from balancer.migration.progress import Observer
from tests.support.cluster import Cluster
from tests.support.resharding import begin_split
from tests.support.spy import Spy

TABLET = 2
LEAF = "public.orders_t2"
Work = Mapping[str, Callable[[], object]]


@dataclass
class Tally:
    """Increments of one row of the tablet, on any node, by any name."""

    cluster: Cluster
    key: int
    kept: int = 0
    answers: list[str] = field(default_factory=list)

    def write(self, node: str, relation: str = "public.orders") -> None:
        """One increment; counted if it was acknowledged and changed the row."""
        with self.cluster.connect(node) as connection:
            connection.execute("SET lock_timeout TO '300ms'")
            try:
                changed = connection.execute(f"UPDATE {relation} SET n = n + 1 WHERE id = {self.key}").rowcount
            except psycopg.Error as error:
                self.answers.append(error.sqlstate or "?")
                return
        self.answers.append(str(changed))
        self.kept += changed

    def write_everywhere(self) -> None:
        """Through the root and by the partition's own name, on every node."""
        for node in self.cluster.dsns:
            for relation in ("public.orders", LEAF):
                self.write(node, relation)

    def faults(self) -> list[str]:
        """What is wrong with the row in the end."""
        rows = {node: content[self.key] for node, content in self.cluster.rows().items() if self.key in content}
        if list(rows.values()) != [self.kept]:
            return [f"row {self.key} was incremented {self.kept} times, and is {rows or 'lost'} ({self.answers})"]
        return []


def tally(cluster: Cluster) -> Tally:
    return Tally(cluster, int(str(cluster.query("a", f"SELECT min(id) FROM {LEAF}")[0][0])))


def move(
    cluster: Cluster, work: Work | Observer, mode: MigrationMode = MigrationMode.REPLICATE, tablet: int = TABLET
) -> Migration:
    """Moves the tablet from a to b, with work at some points."""
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    observer = work if isinstance(work, Observer) else Spy(work)
    begun = begin_move(directory, leadership, tablet, "b", mode=mode)
    return cluster.runner(directory, leadership, observer).run(begun.id)


def split(cluster: Cluster, work: Work | Observer, mode: MigrationMode = MigrationMode.REPLICATE) -> Migration:
    """Splits it on a."""
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    observer = work if isinstance(work, Observer) else Spy(work)
    return cluster.runner(directory, leadership, observer).run(begin_split(directory, leadership, TABLET, mode=mode).id)


class Beside:
    """A migration in a thread, for tests that wait for it, or for something that may never come."""

    def __init__(self, run: Callable[[], Migration]) -> None:
        self._run = run
        self._thread = threading.Thread(target=self._work, daemon=True)
        self.done: Migration | None = None
        self.error: BalancerError | None = None
        self._thread.start()

    def _work(self) -> None:
        try:
            self.done = self._run()
        except BalancerError as error:
            self.error = error

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def result(self, seconds: float = 90.0) -> Migration:
        """Its record, once it has ended."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the migration does not come to an end"
        assert self.done is not None, self.error
        return self.done


def complaints(cluster: Cluster) -> list[str]:
    """What the doctor says."""
    return [finding.text for finding in examine(cluster.directory(), cluster.address)]
