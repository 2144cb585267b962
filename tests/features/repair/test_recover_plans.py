"""What a directory that is older than its nodes learns from them, beside who owns what: everything that it would
otherwise do a second time, or undo."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pytest

from balancer.directory.contract import Directory
from balancer.directory.identity import counter_of_identity
from balancer.directory.invariants import TABLET_COUNTER
from balancer.directory.model import Change, Counter, Node, NodeState, Put, Tablet, TabletState, Transaction
from balancer.embedded.postgres import PostgresServer
from balancer.errors import Refused
from balancer.features.repair.recover import TakenOver, plan_recovery
from balancer.naming import Name
from balancer.nodes.session.connection import Connection
from balancer.nodes.tablets.closed import close_expired, refuse_rows
from tests.support.cluster import Cluster, blank_node, build, range_table, range_tablets
from tests.support.opening import connect
from tests.support.servers import new_database

T = TypeVar("T", Node, Tablet, Counter)


@dataclass
class Old:
    """A cluster of two nodes, each with half of the keys, and its directory."""

    cluster: Cluster
    directory: Directory
    links: dict[str, Connection]

    def change(self, *changes: Change) -> None:
        version = self.directory.snapshot().version
        self.directory.commit(Transaction(changes, version, "a test", "test"))

    def plan(self) -> TakenOver:
        snapshot = self.directory.snapshot()
        return plan_recovery(snapshot, self.links, list(snapshot.nodes.values()), "directory")

    def put(self, kind: type[T]) -> dict[str, T]:
        """What would be recorded, by key."""
        records = [one.record for one in self.plan().changes if isinstance(one, Put)]
        return {record.key: record for record in records if isinstance(record, kind)}


@pytest.fixture
def old(tmp_path: Path, postgres18: PostgresServer) -> Iterator[Old]:
    with ExitStack() as stack:
        dsns = {name: stack.enter_context(new_database(postgres18, fill=blank_node)).dsn for name in ("a", "b")}
        cluster = build(tmp_path, dsns, range_table(), range_tablets([100], ["a", "b"]))
        stack.callback(cluster.close)
        links = {node: stack.enter_context(connect(cluster.address(node))) for node in dsns}
        yield Old(cluster, cluster.directory(), links)


def test_a_node_that_was_closed_stays_closed_until_a_person_has_accepted_it(old: Old) -> None:
    """The export is from before it went back in time: its leader would open it as one that was accepted."""
    old.links["b"].execute("UPDATE balancer.tablet SET state = 'fenced', migration = 'rewound' WHERE id = 2")
    assert "closed" in old.put(Node)["b"].rewound


def test_ids_that_only_a_node_remembers_are_not_given_again(old: Old) -> None:
    """A split that has not ended, and tablets of a table that came after the export."""
    for number, state in ((1200, "incoming"), (1300, "owned")):
        old.links["a"].execute(
            "INSERT INTO balancer.tablet (id, epoch, state, schemas, partitions) VALUES (%s, 1, %s, '{public}', %s)",
            (number, state, [f"others_t{number}"]),
        )
    assert old.put(Counter)[TABLET_COUNTER] == Counter(TABLET_COUNTER, 1301)
    assert any("1300" in text and "a" in text for text in old.plan().words), old.plan().words


def test_the_lane_of_a_node_that_came_since_is_not_given_again(old: Old) -> None:
    for node, lane in (("a", 0), ("b", 3)):
        old.links[node].execute(f"CREATE SEQUENCE ticket INCREMENT BY 1024 START {1024 + lane}".encode())
        old.links[node].execute("ALTER SEQUENCE ticket OWNED BY orders.n")
    old.change(Put(Counter("lanes of orders", 2)))
    assert old.put(Counter)["lanes of orders"] == Counter("lanes of orders", 4)


def test_what_has_expired_since_stays_so(old: Old) -> None:
    """The empty tablet that took the place of those that went."""
    link = old.links["a"]
    with link.cursor() as cursor, link.transaction():
        refuse_rows(cursor, Name("public", "orders_t1"), "gone")
    link.execute("UPDATE balancer.tablet SET id = 7 WHERE id = 1")
    assert old.put(Tablet)["7"].state is TabletState.EXPIRED


def test_what_an_expiry_has_only_closed_has_not_expired(old: Old) -> None:
    link = old.links["a"]
    with link.cursor() as cursor, link.transaction():
        close_expired(cursor, [Name("public", "orders_t1")], "gone", 1.0)
    assert not old.put(Tablet)


def test_a_node_that_was_lost_before_the_export_is_not_waited_for(old: Old) -> None:
    lost = Node("c", "shop", "postgresql:///c", state=NodeState.LOST)
    old.change(Put(lost))
    assert old.plan().changes == ()


def test_nodes_that_were_handed_over_since_are_not_taken_back(old: Old) -> None:
    """To another directory of the same last name: with its identity this one would be let in there."""
    ours, theirs = f"{(1 << 48) + 1:x}", f"{(1 << 48) + 2:x}"
    old.change(Put(counter_of_identity(ours)))
    for link in old.links.values():
        link.execute("UPDATE balancer.node SET identity = %s, changed_hands = true", (theirs,))
    with pytest.raises(Refused, match="handed over"):
        old.plan()


def test_a_tablet_that_was_only_made_ready_elsewhere_does_not_beat_its_owner(old: Old) -> None:
    """By `tablet lost`, whose leader died before the directory had it: with the higher epoch, and without a row."""
    old.links["b"].execute("CREATE TABLE orders_t1 PARTITION OF orders FOR VALUES FROM (MINVALUE) TO (100)")
    old.links["b"].execute(
        "INSERT INTO balancer.tablet (id, epoch, state, schemas, partitions, migration)"
        " VALUES (1, 2, 'fenced', '{public}', '{orders_t1}', 'rewound')"
    )
    with pytest.raises(Refused, match="node a owns tablet 1 with epoch 1, and node b was made ready"):
        old.plan()


def test_an_owner_that_has_gone_back_in_time_is_not_believed(old: Old) -> None:
    """Tablet 1 went to b and back. Node a is from a backup of before that: b still knows with which epoch it left."""
    old.links["b"].execute(
        "INSERT INTO balancer.tablet (id, epoch, state, schemas, partitions, moved_to)"
        " VALUES (1, 3, 'moved', '{public}', '{orders_t1}', 'a')"
    )
    with pytest.raises(Refused, match="node a owns tablet 1 with epoch 1, and node b says that it left with epoch 3"):
        old.plan()


def test_epochs_do_not_go_back(old: Old) -> None:
    """The export is newer than the node, which has forgotten what happened to the tablet since."""
    tablet = old.directory.snapshot().tablet(1)
    old.change(Put(replace(tablet, epoch=3)))
    with pytest.raises(Refused, match="node a owns tablet 1 with epoch 1, and the directory has seen epoch 3"):
        old.plan()


def test_nodes_of_another_directory_are_not_taken(old: Old) -> None:
    """An export of another cluster of the same name, or addresses of another one's nodes."""
    ours, theirs = f"{(1 << 48) + 1:x}", f"{(1 << 48) + 2:x}"
    old.change(Put(counter_of_identity(ours)))
    for link in old.links.values():
        link.execute("UPDATE balancer.node SET identity = %s", (theirs,))
    with pytest.raises(Refused, match=f"belongs to directory {theirs}, and this one is {ours}"):
        old.plan()


def test_what_became_of_a_lost_nodes_tablet_is_taken_over(old: Old) -> None:
    """Its node was lost before the export; `tablet lost` made it anew on another one since, where it was split."""
    tablet = old.directory.snapshot().tablet(1)
    old.change(Put(Node("c", "shop", "postgresql:///c", state=NodeState.LOST)))
    old.change(Put(replace(tablet, node="c", epoch=2)))
    link = old.links["a"]
    link.execute("UPDATE balancer.tablet SET state = 'moved', moved_to = 'a', epoch = 3 WHERE id = 1")
    link.execute("DROP TABLE orders_t1")
    for number, bounds in ((7, "FROM (MINVALUE) TO (50)"), (8, "FROM (50) TO (100)")):
        link.execute(f"CREATE TABLE orders_t{number} PARTITION OF orders FOR VALUES {bounds}".encode())
        link.execute(
            "INSERT INTO balancer.tablet (id, epoch, state, schemas, partitions)"
            " VALUES (%s, 1, 'owned', '{public}', %s)",
            (number, [f"orders_t{number}"]),
        )
    assert set(old.put(Tablet)) == {"7", "8"}
