"""What `repair` takes away is taken away without failing the application's writes, and nothing else goes with it."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import psycopg
import pytest

from balancer.directory.model import Change, NodeState, Put, Transaction
from balancer.features.repair.doctor import PATIENCE, examine, repair
from balancer.naming import Name
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.session.connection import connect
from balancer.nodes.tablets.closed import close_expired, give_away, locked_rows, refuse_rows
from tests.migration.conftest import database as database
from tests.support.cluster import Cluster
from tests.support.manual_clock import ManualClock

pytestmark = pytest.mark.always

PUBLICATIONS = "SELECT pubname FROM pg_publication ORDER BY 1"


class Pauses(ManualClock):
    """A clock that stands still between pauses; in each of them something happens."""

    def __init__(self, happens: Callable[[], None]) -> None:
        super().__init__(datetime(2026, 1, 1, tzinfo=UTC))
        self._happens = happens

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._happens()


def test_a_leftover_publication_is_dropped_once_its_writers_are_through(cluster: Cluster) -> None:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    with cluster.connect("a") as writer:
        writer.execute("CREATE PUBLICATION tb_mdead1 FOR TABLE orders_t2")
        writer.execute("BEGIN")
        writer.execute("UPDATE orders_t2 SET n = 7")
        there: list[object] = []

        def commit() -> None:
            there.extend(cluster.query("a", PUBLICATIONS))
            writer.execute("COMMIT")

        done = repair(leadership, cluster.address, examine(directory, cluster.address), Pauses(commit))
    assert there == [("tb_mdead1",)], "it stood while the writer was at work"
    assert [finding.text for finding in done.done] == ["leftover: publication tb_mdead1"]
    assert cluster.query("a", PUBLICATIONS) == []
    assert examine(directory, cluster.address) == []


def test_writers_who_do_not_end_are_named_and_keep_their_publication(cluster: Cluster) -> None:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    clock = Pauses(lambda: clock.advance(PATIENCE))
    with cluster.connect("a") as writer:
        writer.execute("CREATE PUBLICATION tb_mdead1 FOR TABLE orders_t2")
        writer.execute("BEGIN")
        writer.execute("UPDATE orders_t2 SET n = 7")
        [(finding, why)] = repair(leadership, cluster.address, examine(directory, cluster.address), clock).refused
        assert finding.text == "leftover: publication tb_mdead1"
        assert why.startswith("node a did not")
        assert cluster.query("a", PUBLICATIONS) == [("tb_mdead1",)]
        writer.execute("COMMIT")


def test_what_is_refused_keeps_nothing_else_from_being_repaired(cluster: Cluster) -> None:
    """The first publication has a writer who does not end; the others are on both nodes, before and behind it."""
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    clock = Pauses(lambda: clock.advance(PATIENCE))
    for node in ("a", "b"):
        with cluster.connect(node) as connection:
            connection.execute("CREATE PUBLICATION tb_mdead2; CREATE PUBLICATION tb_mdead0")
    with cluster.connect("b") as connection:
        connection.execute("CREATE TABLE orders_t2 (LIKE orders)")
        connection.execute(
            "INSERT INTO balancer.tablet VALUES (2, 2, 'incoming', '{public}', '{orders_t2}', 'mdead1', NULL, NULL)"
        )
    with cluster.connect("a") as writer:
        writer.execute("CREATE PUBLICATION tb_mdead1 FOR TABLE orders_t2")
        writer.execute("BEGIN")
        writer.execute("UPDATE orders_t2 SET n = 7")
        came = repair(leadership, cluster.address, examine(directory, cluster.address), clock)
        writer.execute("COMMIT")
    assert [finding.text for finding, _ in came.refused] == ["leftover: publication tb_mdead1"]
    assert len(came.done) == 5
    assert cluster.query("a", PUBLICATIONS) == [("tb_mdead1",)]
    assert cluster.query("b", PUBLICATIONS) == []
    assert cluster.query("b", "SELECT to_regclass('orders_t2')") == [(None,)]


def test_what_only_begins_like_ours_is_left_alone(cluster: Cluster) -> None:
    directory = cluster.directory()
    with cluster.connect("a") as connection:
        connection.execute("CREATE PUBLICATION tb_my_own FOR TABLE orders_t2")
    assert examine(directory, cluster.address) == []


def test_what_has_changed_since_it_was_found_is_left_alone(cluster: Cluster) -> None:
    """A tablet that was on its way to nowhere arrives between the look and the repair."""
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    with cluster.connect("b") as connection:
        connection.execute("CREATE TABLE orders_t2 (LIKE orders)")
        connection.execute(
            "INSERT INTO balancer.tablet VALUES (2, 2, 'incoming', '{public}', '{orders_t2}', 'mdead1', NULL, NULL)"
        )
        found = examine(directory, cluster.address)
        connection.execute("UPDATE balancer.tablet SET state = 'owned', migration = NULL")
        [(_, why)] = repair(leadership, cluster.address, found).refused
        assert "has changed since" in why
        assert connection.execute("SELECT to_regclass('orders_t2') IS NOT NULL").fetchone() == (True,)


def test_what_was_attached_and_is_on_its_way_to_nowhere_goes(cluster: Cluster) -> None:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    with cluster.connect("b") as connection:
        connection.execute("CREATE TABLE orders_t2 PARTITION OF orders FOR VALUES WITH (MODULUS 4, REMAINDER 1)")
        connection.execute(
            "INSERT INTO balancer.tablet VALUES (2, 2, 'incoming', '{public}', '{orders_t2}', 'mdead1', NULL, NULL)"
        )
    done = repair(leadership, cluster.address, examine(directory, cluster.address))
    assert [finding.text for finding in done.done] == ["tablet 2 is incoming, but no migration brings it"]
    assert examine(directory, cluster.address) == []
    assert cluster.query("b", "SELECT to_regclass('orders_t2')") == [(None,)]


@pytest.mark.parametrize(
    ("lost", "attached"), [("forgotten", True), ("forgotten", False), ("rewound", False), ("lost", False)]
)
def test_rows_of_a_former_owner_stay_where_the_new_one_may_not_have_them(
    cluster: Cluster, lost: str, attached: bool
) -> None:
    """They may be all that is left: `balancer tablet lost` takes them."""
    with cluster.connect("a") as connection:
        connection.execute("UPDATE balancer.tablet SET state = 'moved', epoch = 2, moved_to = 'b' WHERE id = 2")
        if not attached:
            connection.execute("ALTER TABLE orders DETACH PARTITION orders_t2")
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    snapshot = directory.snapshot()
    changes: list[Change] = [Put(replace(snapshot.tablet(2), node="b", epoch=2))]
    if lost != "forgotten":  # it says that it has them; which of its writes it has lost nobody knows
        with cluster.connect("b") as connection:
            connection.execute("CREATE TABLE orders_t2 PARTITION OF orders FOR VALUES WITH (MODULUS 4, REMAINDER 1)")
            connection.execute(
                "INSERT INTO balancer.tablet VALUES (2, 2, 'owned', '{public}', '{orders_t2}', NULL, NULL, NULL)"
            )
    if lost == "rewound":
        changes.append(Put(replace(snapshot.node("b"), rewound="it is as it was")))
    elif lost == "lost":
        changes.append(Put(replace(snapshot.node("b"), state=NodeState.LOST)))
    directory.commit(Transaction(tuple(changes), snapshot.version, "a test", "a test", leadership.epoch))
    before = cluster.query("a", "SELECT count(*) FROM orders_t2")
    repair(leadership, cluster.address, examine(directory, cluster.address))
    assert cluster.query("a", "SELECT count(*) FROM orders_t2") == before
    (found,) = [one for one in examine(directory, cluster.address) if "tablet 2 has moved" in one.text]
    assert found.command == "balancer tablet lost 2 --dry-run"


def test_rows_of_a_former_owner_stay_if_the_new_one_forgets_them_before_they_are_dropped(cluster: Cluster) -> None:
    """Another repair may be waited for between the look and the drop."""
    with cluster.connect("a") as connection:
        connection.execute("UPDATE balancer.tablet SET state = 'moved', epoch = 2, moved_to = 'b' WHERE id = 2")
        connection.execute("ALTER TABLE orders DETACH PARTITION orders_t2")
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    snapshot = directory.snapshot()
    moved = Put(replace(snapshot.tablet(2), node="b", epoch=2))
    directory.commit(Transaction((moved,), snapshot.version, "a test", "a test", leadership.epoch))
    before = cluster.query("a", "SELECT count(*) FROM orders_t2")
    with cluster.connect("b") as connection:
        connection.execute("CREATE TABLE orders_t2 PARTITION OF orders FOR VALUES WITH (MODULUS 4, REMAINDER 1)")
        connection.execute(
            "INSERT INTO balancer.tablet VALUES (2, 2, 'owned', '{public}', '{orders_t2}', NULL, NULL, NULL)"
        )
        found = examine(directory, cluster.address)
        connection.execute("DELETE FROM balancer.tablet WHERE id = 2; DROP TABLE orders_t2")
    came = repair(leadership, cluster.address, found)
    assert cluster.query("a", "SELECT to_regclass('orders_t2') IS NOT NULL") == [(True,)], "the last copy was dropped"
    assert cluster.query("a", "SELECT count(*) FROM orders_t2") == before
    assert "no longer known" in came.refused[0][1]


def test_a_former_owners_rows_go_that_are_still_attached(cluster: Cluster) -> None:
    """So a node has them that went back in time, and a move whose end was not waited for leaves them so."""
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    snapshot = directory.snapshot()
    with connect(cluster.address("a")) as connection, node_transaction(connection, leadership.epoch, "a") as cursor:
        (row,) = locked_rows(cursor, [2])
        give_away(cursor, row, "b", 2, leader_epoch=leadership.epoch, lock_timeout=1.0)
    with cluster.connect("b") as connection:
        connection.execute("CREATE TABLE orders_t2 PARTITION OF orders FOR VALUES WITH (MODULUS 4, REMAINDER 1)")
        connection.execute(
            "INSERT INTO balancer.tablet VALUES (2, 2, 'owned', '{public}', '{orders_t2}', NULL, NULL, NULL)"
        )
    moved = Put(replace(snapshot.tablet(2), node="b", epoch=2))
    directory.commit(Transaction((moved,), snapshot.version, "a test", "a test", leadership.epoch))
    came = repair(leadership, cluster.address, examine(directory, cluster.address))
    assert came.refused == ()
    assert cluster.query("a", "SELECT to_regclass('orders_t2')") == [(None,)]


def test_what_an_expiry_that_is_forgotten_has_closed_is_opened(cluster: Cluster) -> None:
    """Its directory was lost, and an older one recovered: nobody else knows why these tablets refuse writes."""
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    names = [Name("public", "orders_t2"), Name("public", "orders_t3")]
    with connect(cluster.address("a")) as connection, connection.transaction(), connection.cursor() as cursor:
        close_expired(cursor, names[:1], "gone", 1.0)
        refuse_rows(cursor, names[1], "gone for good")  # is to stay so
    came = repair(leadership, cluster.address, examine(directory, cluster.address))
    assert [finding.text for finding in came.done] == [
        "leftover: trigger balancer_expired on public.orders_t2",
        "leftover: trigger balancer_expired_truncate on public.orders_t2",
    ]
    cluster.query("a", "UPDATE orders_t2 SET n = 7 RETURNING n")
    assert examine(directory, cluster.address) == []


@pytest.mark.parametrize("said", [("owned", 3), ("owned", 1), ("moved", 3), ("incoming", 2)])
def test_what_tells_that_a_node_or_the_directory_is_old_is_not_written_over(
    cluster: Cluster, said: tuple[str, int]
) -> None:
    """The directory was restored from an older export, and nobody has had it recovered yet; or the node was restored.
    With the directory's word on it the former owner would be open again, and nobody could tell any more."""
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    snapshot = directory.snapshot()
    newer = Put(replace(snapshot.tablet(2), epoch=2))
    directory.commit(Transaction((newer,), snapshot.version, "a test", "a test", leadership.epoch))
    with cluster.connect("a") as connection:
        connection.execute(
            "UPDATE balancer.tablet SET state = %s, epoch = %s, moved_to = %s, migration = 'm1' WHERE id = 2",
            (*said, "b" if said[0] == "moved" else None),
        )
        connection.execute(
            'CREATE TRIGGER "!balancer_fence" BEFORE INSERT OR UPDATE OR DELETE ON orders_t2 FOR EACH ROW'
            " EXECUTE FUNCTION balancer.refuse_write('m1', '1', 'moved', '0', '2', 'b', '3')"
        )
    repair(leadership, cluster.address, examine(directory, cluster.address))
    assert cluster.query("a", "SELECT state, epoch FROM balancer.tablet WHERE id = 2") == [said]
    with cluster.connect("a") as connection, pytest.raises(psycopg.errors.SerializationFailure):
        connection.execute("UPDATE orders_t2 SET n = n + 1")
