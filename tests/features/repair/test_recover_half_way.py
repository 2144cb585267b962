"""The directory is lost while a migration is under way: who owns what is taken over from the nodes all the same, the
doctor removes what is left, and every write that was acknowledged at any moment of it is there."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import psycopg
import pytest

from balancer.directory.contract import Directory, Leadership
from balancer.directory.history import export_document, import_document
from balancer.directory.model import Json, Migration, NodeState, Put, TabletState, Transaction
from balancer.embedded.postgres import PostgresServer
from balancer.errors import Refused
from balancer.features.repair.doctor import examine, repair
from balancer.features.repair.recover import lead_above, plan_recovery, recover, shut_out, tell_former_owners
from balancer.migration import finish
from balancer.migration.begin import begin_move
from balancer.policies.keyspace.keys import KeyType, encode_key
from tests.support import expiring
from tests.support.cluster import Cluster, blank_node, build, insert_rows, range_table, range_tablets
from tests.support.opening import connect
from tests.support.resharding import begin_merge, begin_split
from tests.support.servers import new_database
from tests.support.spy import Spy

Begin = Callable[[Directory, Leadership], Migration]
KEYS = range(300)
ROUNDS = 2
"""What the doctor must be asked for: what has left is told so in the first, and goes in the second."""


class Killed(BaseException):
    """The daemon is gone, and its directory with it."""


def move(directory: Directory, leadership: Leadership) -> Migration:
    return begin_move(directory, leadership, 1, "b")


def split(directory: Directory, leadership: Leadership) -> Migration:
    return begin_split(directory, leadership, 1, [encode_key((KeyType.BIGINT,), (50,))])


def merge(directory: Directory, leadership: Leadership) -> Migration:
    return begin_merge(directory, leadership, [1, 2])


@pytest.fixture
def dsns(postgres18: PostgresServer) -> Iterator[dict[str, str]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(new_database(postgres18, fill=blank_node)).dsn for name in ("a", "b")}


@pytest.fixture
def cluster(tmp_path: Path, dsns: dict[str, str]) -> Iterator[Cluster]:
    tablets = range_tablets([100, 200], ["a", "a", "b"])
    made = build(tmp_path, dsns, range_table(), tablets)
    insert_rows(made, tablets, KEYS)
    yield made
    made.close()


@dataclass
class Writers:
    """Increments of some rows by who knows nothing of any directory, on every node, by root and partition."""

    cluster: Cluster
    keys: tuple[int, ...] = (10, 60, 110)
    kept: dict[int, int] = field(default_factory=dict)

    def write(self) -> None:
        for node in self.cluster.dsns:
            with self.cluster.connect(node) as connection:
                for relation in ("orders", "orders_t1"):
                    for key in self.keys:
                        try:
                            done = connection.execute(f"UPDATE {relation} SET n = n + 1 WHERE id = {key}".encode())
                        except psycopg.Error:
                            continue
                        self.kept[key] = self.kept.get(key, 0) + done.rowcount

    def found(self) -> dict[int, int]:
        rows = [(key, n) for content in self.cluster.rows().values() for key, n in content.items() if key in self.keys]
        assert len(rows) == len(self.keys), rows
        return dict(rows)


def run_until(cluster: Cluster, begin: Begin, point: str) -> None:
    def die() -> None:
        raise Killed

    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    begun = begin(directory, leadership)
    with pytest.raises(Killed):
        cluster.runner(directory, leadership, Spy({point: die})).run(begun.id)
    leadership.resign()


def exported(cluster: Cluster) -> Json:
    return export_document(cluster.directory().snapshot())


def imported(cluster: Cluster, document: Json) -> tuple[Cluster, Directory]:
    """The same nodes with another directory."""
    folder = cluster.folder / "restored"
    folder.mkdir()
    made = Cluster(folder, cluster.dsns, cluster.table)
    directory = made.directory()
    leadership = made.become_leader(directory)
    directory.restore(import_document(document), reason="import", author="test", leader_epoch=leadership.epoch)
    leadership.resign()
    return made, directory


def recovered(cluster: Cluster, directory: Directory) -> Leadership:
    """As `balancer directory recover` does it."""
    with ExitStack() as stack:
        links = {node: stack.enter_context(connect(cluster.address(node))) for node in cluster.dsns}
        snapshot = directory.snapshot()
        nodes = list(snapshot.nodes.values())
        leadership = lead_above(directory, "test", plan_recovery(snapshot, links, nodes, "directory").epoch, 5.0)
        shut_out(links, leadership.epoch)
        snapshot = directory.snapshot()
        planned = plan_recovery(snapshot, links, nodes, "directory")
        tell_former_owners(links, planned, leadership.epoch)
        recover(directory, leadership, planned, snapshot, "test")
    return leadership


def mended(cluster: Cluster, directory: Directory, leadership: Leadership, after: Callable[[], None]) -> list[str]:
    """As `balancer doctor --fix` does it, with something after each step; what it says in the end."""
    for _ in range(ROUNDS):
        found = examine(directory, cluster.address)
        for kind in {type(one.leftover): one for one in found}:
            some = [one for one in found if type(one.leftover) is kind]
            assert repair(leadership, cluster.address, some).refused == ()
            after()
    return [one.text for one in examine(directory, cluster.address)]


@pytest.mark.parametrize(
    ("begin", "point"),
    [
        (move, "left:fencing"),
        (move, "left:sealing"),
        (move, "left:committing"),
        (move, "left:opening"),
        (split, "left:swapping"),
        (merge, "left:committing"),
        (merge, "left:retiring"),
    ],
)
def test_no_write_is_lost_and_nothing_is_left(cluster: Cluster, begin: Begin, point: str) -> None:
    document = exported(cluster)
    run_until(cluster, begin, point)
    new, directory = imported(cluster, document)
    writers = Writers(new)
    writers.write()
    leadership = recovered(new, directory)
    writers.write()
    assert mended(new, directory, leadership, writers.write) == []
    writers.write()
    assert writers.found() == writers.kept
    assert min(writers.kept.values()) > 0
    assert sorted(key for content in new.rows().values() for key in content) == list(KEYS)


def test_a_former_owner_that_was_not_told_yet_stays_closed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the new owner's opening and the former one's word: the leader would call the node rewound."""
    document = exported(cluster)
    monkeypatch.setattr(finish, "tell_source", lambda ctx: ctx.reopen())
    run_until(cluster, move, "left:opening")
    assert cluster.query("a", "SELECT state FROM balancer.tablet WHERE id = 1") == [("fenced",)]
    new, directory = imported(cluster, document)
    writers = Writers(new)
    leadership = recovered(new, directory)
    assert mended(new, directory, leadership, writers.write) == []
    assert writers.found() == writers.kept
    assert min(writers.kept.values()) > 0


def test_rows_that_may_be_all_that_is_left_stay_closed(cluster: Cluster) -> None:
    """No directory was lost here, but the new owner, for good, and its leader has ended the move."""
    run_until(cluster, move, "left:opening")
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    snapshot = directory.snapshot()
    ended = [Put(replace(one, state="failed", finished=True)) for one in snapshot.migrations.values()]
    lost = Put(replace(snapshot.nodes["b"], state=NodeState.LOST))
    directory.commit(Transaction((*ended, lost), snapshot.version, "lost", "test", leadership.epoch))
    repair(leadership, cluster.address, examine(directory, cluster.address, ["a"]))
    with cluster.connect("a") as connection, pytest.raises(psycopg.errors.SerializationFailure, match="TB002"):
        connection.execute("UPDATE orders SET n = n + 1 WHERE id = 10")


def test_an_export_from_the_middle_of_a_switch_is_refused_in_one_sentence(cluster: Cluster) -> None:
    """The leader brings that one to its end, if it is let."""
    run_until(cluster, move, "entered:opening")
    new, directory = imported(cluster, exported(cluster))
    with pytest.raises(Refused, match="node a owns tablet 1 with epoch 1, and the directory has seen epoch 2, on node"):
        recovered(new, directory)


@pytest.mark.parametrize("point", ["left:verifying", "left:swapping", "entered:retiring"])
def test_what_was_expiring_is_taken_over(tmp_path: Path, dsns: dict[str, str], point: str) -> None:
    """Also where the empty tablet of an earlier expiry is on another node."""
    cluster = expiring.made(tmp_path, dsns, expiring.tablets([40, 30, 20, 5], ["b", "b", "a", "a", "a"]))
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    cluster.runner(directory, leadership).run(expiring.begin(directory, leadership, [1, 2]).id)
    leadership.resign()
    document = exported(cluster)
    first = cluster.tablets()[0]
    assert (first.node, first.state) == ("b", TabletState.EXPIRED)
    run_until(cluster, lambda one, two: expiring.begin(one, two, [first.id, 3]), point)
    new, directory = imported(cluster, document)
    new.settings = cluster.settings
    leadership = recovered(new, directory)
    assert mended(new, directory, leadership, lambda: None) == []
    left = {tablet.id: tablet.state for tablet in directory.snapshot().tablets(1)}
    assert [*left.values()].count(TabletState.EXPIRED) == 1, left
