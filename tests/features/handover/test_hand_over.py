"""A bundle goes into another directory: all of it, once, with one leader at a time, whoever is killed when."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import cycle
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from balancer.client import Router
from balancer.directory.handover_record import handover_of
from balancer.directory.identity import identity_of, made_identity
from balancer.directory.invariants import violations
from balancer.directory.model import (
    Counter,
    Migration,
    MigrationKind,
    MigrationMode,
    NodeState,
    Pause,
    Pin,
    Put,
    Record,
    Tablet,
    Transaction,
)
from balancer.directory.open import open_directory
from balancer.directory.snapshot import BLOCK
from balancer.embedded.postgres import PostgresServer
from balancer.embedded.zookeeper import ZooKeeperServer
from balancer.errors import BalancerError, Refused, Unavailable
from balancer.features.ddl.apply import SchemaChange
from balancer.features.handover import statements
from balancer.features.handover.checks import in_the_way
from balancer.features.import_tables.record import ImportRecord
from balancer.naming import cluster_name
from balancer.nodes.schema.leader_transaction import node_command, node_transaction
from balancer.nodes.schema.texts import LEADER_LOCK
from balancer.nodes.session.addresses import address_in
from balancer.nodes.session.connection import Address
from balancer.settings import DaemonFile, Settings
from tests.support.handing_over import NODES, World, write
from tests.support.opening import connect
from tests.support.servers import Database
from tests.support.waiting import surely

STEPS = ["closing", "head", "table orders", "history", "changing", "node a", "node b", "arrival", "gone"]
BACK = STEPS[:5]
"""Killed before these take effect, it can be undone."""
KILLED = -9


@pytest.fixture
def world(tmp_path: Path, postgres18: PostgresServer, database: Callable[[PostgresServer], Database]) -> World:
    (tmp_path / "other").mkdir()
    dsns = {node: database(postgres18).dsn for nodes in NODES.values() for node in nodes}
    made = World(f"sqlite://{tmp_path}/all.db", f"sqlite://{tmp_path}/other/all.db", dsns)
    made.make()
    return made


@pytest.fixture
def old(world: World) -> Iterator[Router]:
    """An application of the directory that gives."""
    with Router.connect(world.giver) as router:
        yield router


def check_arrived(world: World) -> None:
    """Everything is with the taker, and nothing was changed on the way."""
    with open_directory(world.giver) as giver, open_directory(world.taker) as taker:
        before, after = giver.snapshot(), taker.snapshot()
        record = handover_of(before, "shop")
        assert record is not None
        assert record.state == "gone"
        assert handover_of(after, "shop") is None
        assert list(violations(before)) == list(violations(after)) == []
        table = before.table("orders")
        assert after.table("orders") == table
        assert list(after.tablets(table.id)) == list(before.tablets(table.id))
        assert {node: after.nodes[node] for node in "ab"} == {node: before.nodes[node] for node in "ab"}
        assert after.pauses["shop"].only == ""
        assert set(after.bundles) == {"shop"}
        identity = identity_of(after)
        assert identity not in ("", identity_of(before))
        for node in "ab":
            assert world.belongs(node) == (cluster_name(world.taker), identity, after.epoch, True)
        for node in "cd":
            assert world.belongs(node)[1] == identity_of(before)


@pytest.mark.parametrize(("step", "backend"), [*zip(STEPS, cycle(["sqlite", "zookeeper"]), strict=False)])
def test_killed_before_any_step_it_goes_on(
    world: World, old: Router, step: str, backend: str, tmp_path: Path, zookeeper: ZooKeeperServer
) -> None:
    if backend == "zookeeper":
        world.taker = f"zk://{zookeeper.address}/taker-{uuid4().hex}"
    first = old.ids("orders").next()
    write(old, "orders", 1)
    assert world.until(step, tmp_path) == KILLED
    write(old, "orders", 2)  # proofs are the nodes' own
    write(old, "letters", 2)
    assert world.hand_over() == "gone"
    check_arrived(world)
    assert world.hand_over() == "gone", "and once more there is nothing to do"
    write(old, "orders", 3)
    with Router.connect(world.taker) as new:
        write(new, "orders", 4)
        assert new.ids("orders").next() > first
    assert world.rows() == [1, 2, 3, 4]


@pytest.mark.parametrize("step", BACK)
def test_killed_before_the_nodes_changed_hands_it_is_undone(
    world: World, old: Router, step: str, tmp_path: Path
) -> None:
    given = {old.ids("orders").next()}
    before = {node: world.belongs(node) for node in world.dsns}
    assert world.until(step, tmp_path) == KILLED
    if step == "closing":
        with pytest.raises(Refused, match="no hand-over of this bundle has begun"):
            world.undo()
    else:
        assert world.until("opening", tmp_path, undo=True) == KILLED
        with pytest.raises(Refused, match="it is being undone"):
            world.hand_over()
        world.undo()
    assert {node: world.belongs(node) for node in world.dsns} == before
    with open_directory(world.giver) as giver, open_directory(world.taker) as taker:
        assert not giver.snapshot().pauses
        assert not taker.snapshot().bundles
        assert list(violations(giver.snapshot())) == list(violations(taker.snapshot())) == []
    with Router.connect(world.giver) as later:
        assert later.ids("orders").next() not in given
        write(later, "orders", 1)
    assert world.hand_over() == "gone"
    check_arrived(world)


@pytest.mark.parametrize("step", ["node a", "node b", "arrival", "gone"])
def test_from_the_first_node_on_there_is_no_way_back(world: World, step: str, tmp_path: Path) -> None:
    assert world.until(step, tmp_path) == KILLED
    with pytest.raises(Refused, match="there is no way back"):
        world.undo()


def test_a_node_that_is_away_in_the_middle_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(step: str) -> None:
        if step == "node b":
            monkeypatch.setitem(world.dsns, "b", "host=127.0.0.1 port=1 dbname=nowhere")

    with pytest.raises(Unavailable, match="node b"):
        world.hand_over(away)
    with open_directory(world.taker) as taker:  # node a is the taker's, and its leader still does nothing with it
        tablet = next(iter(taker.snapshot().tablets(taker.snapshot().table("orders").id)))
        change = Put(replace(tablet, epoch=tablet.epoch + 1))
        with pytest.raises(Refused, match="is arriving from the directory"):
            taker.commit(Transaction((change,), taker.snapshot().version, "test", "test"))
    monkeypatch.undo()
    assert world.hand_over() == "gone"
    check_arrived(world)


def test_a_node_that_is_gone_for_good_in_the_middle_does_not_keep_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it neither directory would ever do anything with the bundle again, not even give its tablets up."""

    def away(step: str) -> None:
        if step == "node b":
            monkeypatch.setitem(world.dsns, "b", "host=127.0.0.1 port=1 dbname=nowhere")

    with pytest.raises(Refused, match="while its nodes change hands"):
        world.hand_over(lost=("b",))
    with pytest.raises(Unavailable, match="node b"):
        world.hand_over(away)
    with pytest.raises(Refused, match="node a answers"):
        world.hand_over(lost=("a",))
    assert world.hand_over(lost=("b",)) == "gone"
    with open_directory(world.taker) as taker:
        snapshot = taker.snapshot()
        assert handover_of(snapshot, "shop") is None
        assert {node: snapshot.nodes[node].state for node in "ab"} == {"a": NodeState.ACTIVE, "b": NodeState.LOST}
        taken, identity = snapshot.epoch, identity_of(snapshot)
    monkeypatch.undo()  # it was not gone for good: the taker's leader does nothing there until it is told again
    assert world.belongs("b")[1] != identity
    assert world.hand_over() == "gone"
    assert world.belongs("b")[:3] == (cluster_name(world.taker), identity, taken)


def test_a_node_that_only_does_not_let_us_in_is_not_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sessions may all be the application's: its tablets would be made anew elsewhere beside them."""

    def away(step: str) -> None:
        if step == "node b":
            monkeypatch.setitem(world.dsns, "b", f"{world.dsns['b']}?user=nobody_there")

    with pytest.raises(Unavailable, match="node b does not let us in"):
        world.hand_over(away)
    with pytest.raises(Refused, match="node b answers, and does not let us in"):
        world.hand_over(lost=("b",))
    with world.work() as work:
        settings = Settings(Path("balancer.toml"), DaemonFile(directory=world.giver), {})
        work.addresses = lambda node: address_in(settings, node)
        with pytest.raises(Unavailable, match="node b is not in the configuration"):
            work.run(lambda closed: in_the_way(work, closed=closed), ("b",))
    monkeypatch.undo()
    assert world.hand_over() == "gone"


# One leader at a time.


def test_the_former_leader_is_refused_on_every_way_to_the_node(world: World) -> None:
    with open_directory(world.giver) as giver:
        leadership = giver.campaign("late", 10.0)
        assert leadership is not None
        identity = identity_of(giver.snapshot())
        with (
            connect(world.address("a", identity)) as late,
            connect(Address("a", world.dsns["a"])) as bare,
            psycopg.connect(world.dsns["a"], autocommit=True) as older,
        ):
            with node_transaction(late, leadership.epoch, "a"):
                pass
            assert world.hand_over() == "gone"
            words = "node a belongs to another directory: cluster all, identity"
            for epoch in (leadership.epoch, leadership.epoch + 1000):
                for connection in (late, bare):
                    with pytest.raises(Refused, match=words), node_transaction(connection, epoch, "a"):
                        raise AssertionError("it was let in")
                    with pytest.raises(Refused, match=words), node_command(connection, epoch, "a"):
                        raise AssertionError("it was let in")
                with pytest.raises(psycopg.Error, match="belongs to another directory"):  # as 0.2.0 asks
                    older.execute("SELECT balancer.enter(%s, 'a')", (epoch,))
            with pytest.raises(Refused, match="leads to node a of another directory"):
                connect(world.address("a", identity))
    with open_directory(world.taker) as taker:
        won = taker.campaign("new", 10.0)
        assert won is not None
        address = world.address("a", identity_of(taker.snapshot()))
        with connect(address) as connection, node_transaction(connection, won.epoch, "a"):
            pass


def test_a_step_that_is_under_way_on_a_node_is_waited_for_and_seen(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader of a former version, which the closed record does not stop."""
    monkeypatch.setattr(statements, "LOCK_SECONDS", 0.3)
    with connect(Address("a", world.dsns["a"])) as late, open_directory(world.giver) as giver:
        epoch = giver.snapshot().epoch

        def act(step: str) -> None:
            if step == "node a":
                with node_transaction(late, epoch, "a") as cursor:
                    cursor.execute("UPDATE balancer.tablet SET state = 'fenced' WHERE id = 1")
                    with pytest.raises(Unavailable):
                        world.hand_over()

        with pytest.raises(Refused, match="node a calls tablet 1 fenced: something is under way there"):
            world.hand_over(act)
        with node_transaction(late, epoch, "a") as cursor:
            cursor.execute("UPDATE balancer.tablet SET state = 'owned' WHERE id = 1")
        with node_command(late, epoch, "a"), pytest.raises(Unavailable):
            world.hand_over()
    assert world.hand_over() == "gone"
    check_arrived(world)


def test_the_node_is_looked_at_when_its_former_leader_has_ended_what_it_was_at(world: World) -> None:
    """Not before: the change waits for the transaction, and sees what it did."""
    with (
        connect(Address("a", world.dsns["a"])) as late,
        open_directory(world.giver) as giver,
        ThreadPoolExecutor() as pool,
    ):

        def change(step: str) -> None:
            if step == "node a":
                entered.set()

        entered = threading.Event()
        with node_transaction(late, giver.snapshot().epoch, "a") as cursor:
            cursor.execute("UPDATE balancer.tablet SET state = 'fenced' WHERE id = 1")
            handing = pool.submit(world.hand_over, change)
            assert entered.wait(20)
            until_waiting(world.dsns["a"], "balancer.node")
        with pytest.raises(Refused, match="node a calls tablet 1 fenced"):
            handing.result(30)
    assert world.belongs("a")[3] is False


def test_a_command_that_waited_for_the_change_is_refused(world: World) -> None:
    """Its transaction came before the change, its command comes after it."""
    with (
        connect(world.address("a")) as late,
        psycopg.connect(world.dsns["a"]) as changing,
        open_directory(world.giver) as giver,
        ThreadPoolExecutor() as pool,
    ):
        changing.execute("SELECT pg_advisory_xact_lock(%s, 0)", (LEADER_LOCK,))

        def command() -> None:
            with node_command(late, giver.snapshot().epoch, "a"):
                raise AssertionError("it was let in")

        waiting = pool.submit(command)
        until_waiting(world.dsns["a"], "advisory")
        changing.execute("UPDATE balancer.node SET identity = 'another', changed_hands = true")
        changing.commit()
        with pytest.raises(Refused, match="node a belongs to another directory"):
            waiting.result(30)


def test_a_transaction_that_waited_for_the_change_is_refused(world: World) -> None:
    """It has seen the row as it was, and waits for it: what it then finds under the lock is what counts."""
    with (
        connect(world.address("a")) as late,
        psycopg.connect(world.dsns["a"]) as changing,
        open_directory(world.giver) as giver,
        ThreadPoolExecutor() as pool,
    ):
        changing.execute("SELECT FROM balancer.node FOR UPDATE")

        def step() -> None:
            with node_transaction(late, giver.snapshot().epoch, "a"):
                raise AssertionError("it was let in")

        waiting = pool.submit(step)
        until_waiting(world.dsns["a"], "balancer.node")
        changing.execute("UPDATE balancer.node SET identity = 'another', changed_hands = true")
        changing.commit()
        with pytest.raises(Refused, match="node a belongs to another directory"):
            waiting.result(30)


def until_waiting(dsn: str, what: str) -> None:
    """Until a session waits for a lock."""
    asked = "SELECT count(*) FROM pg_locks WHERE NOT granted AND (locktype = 'advisory') = (%s = 'advisory')"
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert surely(lambda: connection.execute(asked, (what,)).fetchone() != (0,), 20), f"nobody waits for {what}"


def test_a_migration_that_was_faster_than_the_close_is_respected(world: World) -> None:
    """Whatever was looked at before: the commit itself is refused."""
    with open_directory(world.giver) as giver:
        snapshot = giver.snapshot()
        table = snapshot.table("orders")
        one = next(iter(snapshot.tablets(table.id)))
        record = Migration(
            "m1", "shop", table.id, MigrationKind.MOVE, MigrationMode.REPLICATE, (one.id,), (one,), "a", "b", "copying"
        )
        giver.commit(Transaction((Put(record),), snapshot.version, "test", "test"))
        assert any("move m1 of bundle shop is under way" in text for text in reasons(world))
        with world.work() as work, pytest.raises(Refused, match="cannot be handed over during migration m1"):
            work.run(lambda closed: [])
        assert not giver.snapshot().pauses


def test_of_undoing_and_changing_one_wins(world: World) -> None:
    before = {node: world.belongs(node) for node in world.dsns}
    with pytest.raises(Refused, match="another process has changed the hand-over of shop: it was undone"):
        world.hand_over(lambda step: world.undo() if step == "changing" else None)
    assert {node: world.belongs(node) for node in world.dsns} == before

    def change(step: str) -> None:
        if step == "undoing":
            assert world.hand_over() == "gone"

    assert world.until("head", Path(world.giver.removeprefix("sqlite://")).parent) == KILLED
    with world.work(change) as work, pytest.raises(Refused, match="another process has changed the hand-over"):
        work.undo()
    check_arrived(world)


@pytest.mark.parametrize("step", ["head", "table orders", "history"])
def test_a_copy_that_was_undone_meanwhile_leaves_nothing_behind(world: World, step: str) -> None:
    with pytest.raises(Refused, match="another process has changed"):
        world.hand_over(lambda here: world.undo() if here == step else None)
    if step == "head":  # it began the copy before it could know: undone once more, that goes too
        world.undo()
    with open_directory(world.taker) as taker:
        assert not taker.snapshot().bundles
    assert world.belongs("a")[3] is False
    assert world.hand_over() == "gone"
    check_arrived(world)


def test_who_is_late_does_not_close_a_bundle_that_has_arrived(world: World) -> None:
    """Another process has handed it over meanwhile, and the taker may have begun to work."""

    def overtake(step: str) -> None:
        if step == "head":
            assert world.hand_over() == "gone"

    with pytest.raises(Refused, match="another process has changed the hand-over of shop"):
        world.hand_over(overtake)
    check_arrived(world)


@pytest.mark.parametrize("step", ["head", "node a", "arrival"])
def test_who_is_late_does_nothing_to_a_bundle_that_is_on_its_way_back(world: World, step: str) -> None:
    """Else ids would be open on both sides, or a node the other's."""

    def come_back(here: str) -> None:
        if here != step:
            return
        assert world.hand_over() == "gone"
        with world.work() as work:
            work.forget()
        assert World(world.taker, world.giver, world.dsns).hand_over() == "gone"

    with pytest.raises(Refused):
        world.hand_over(come_back)
    with open_directory(world.giver) as giver, open_directory(world.taker) as taker:
        assert handover_of(giver.snapshot(), "shop") is None
        gone = handover_of(taker.snapshot(), "shop")
        assert (gone and gone.state) == "gone"
        assert {world.belongs(node)[1] for node in ("a", "b")} == {identity_of(giver.snapshot())}


def test_a_node_that_has_forgotten_the_change_is_changed_again(world: World) -> None:
    """A standby that lagged was promoted: it is the former directory's by its own word."""
    before = world.belongs("b")
    world.hand_over()
    with connect(Address("b", world.dsns["b"])) as connection:
        back = "UPDATE balancer.node SET (cluster, identity, leader_epoch, changed_hands) = (%s, %s, %s, %s)"
        connection.execute(back, before)
    assert world.hand_over() == "gone"
    check_arrived(world)


def test_the_closed_bundle_is_changed_by_nobody(world: World, tmp_path: Path) -> None:
    world.until("head", tmp_path)
    with open_directory(world.giver) as giver:
        snapshot = giver.snapshot()
        table = snapshot.table("orders")
        tablet = next(iter(snapshot.tablets(table.id)))
        for record in (
            replace(tablet, epoch=9),
            replace(snapshot.nodes["a"], weight=2.0),
            replace(table, name="others"),
            Pin(tablet.id, None),
            Pause("shop", None),
            Counter(f"ids {table.id}", 7),
        ):
            with pytest.raises(Refused, match="bundle shop is being handed over to the directory"):
                giver.commit(Transaction((Put(record),), snapshot.version, "test", "test"))
        other: Tablet = next(iter(snapshot.tablets(snapshot.table("letters").id)))
        giver.commit(Transaction((Put(replace(other, epoch=9)),), snapshot.version, "test", "test"))


# Applications.


def test_an_application_is_told_where_to_go_once_the_tablet_has_moved_there(world: World, old: Router) -> None:
    """Never wrong rows, never a wait: its node says that it is not there, and the signpost says the rest."""
    world.hand_over()
    write(old, "orders", 1)
    tablet = old.locate("orders", 1)
    with connect(Address(tablet.node, world.dsns[tablet.node])) as connection:
        moved = "UPDATE balancer.tablet SET state = 'moved', moved_to = 'z', epoch = epoch + 1 WHERE id = %s"
        connection.execute(moved, (tablet.tablet,))
    words = f"bundle shop was handed over to the directory {world.taker}: its applications open that one"
    with pytest.raises(Refused, match=words):
        write(old, "orders", 1, patience=3600)
    with pytest.raises(Refused, match=words):
        list(old.map("orders", "SELECT id FROM orders", patience=3600))
    write(old, "letters", 1)


def test_what_ends_in_a_leaders_hands_needs_the_leaders_directory(world: World, old: Router) -> None:
    world.hand_over()
    words = "a transaction over several keys of table orders needs the directory that leads"
    with old.atomic() as both:
        both.on("letters", 1)
        with pytest.raises(Refused, match=words):
            both.on("orders", 1)
    with pytest.raises(Refused, match="ids of table orders are not handed out here: bundle shop was handed over"):
        old.ids("orders").next()
    assert old.ids("letters").next() > 0


def test_ids_are_given_once_whoever_takes_blocks_meanwhile(world: World, old: Router) -> None:
    """A process takes a block at every step, as fast as blocks are given: none is given twice."""
    given: list[int] = []

    def take(step: str) -> None:
        for url in (world.giver, world.taker):
            with open_directory(url) as directory:
                if any(table.name == "orders" for table in directory.snapshot().tables.values()):
                    with Router.connect(url) as router:
                        try:
                            given.append(router.ids("orders").next())
                        except BalancerError as error:
                            print(step, url, error)

    world.hand_over(take)
    for _ in range(3):
        take("afterwards")
    # One before the close, one between arrival and the signpost, three afterwards.
    assert len(given) == len(set(given)) == 5, given


def test_a_former_client_gets_no_ids_from_the_closed_directory(world: World) -> None:
    """It knows no signpost; the counter alone refuses it. So it is with the taker's, until the bundle has arrived."""

    def first(url: str) -> int:
        with open_directory(url) as directory:
            table = directory.snapshot().table("orders").id
            number = directory.take_block(table)
            return directory.snapshot().counters[f"ids {table}"].next + number * BLOCK

    seen: list[int] = []
    world.hand_over(lambda step: seen.append(first(world.taker)) if step in ("history", "arrival") else None)
    assert min(*seen, first(world.giver)) > (1 << 47) - BLOCK
    assert first(world.taker) < 1 << 40


# Refusals.


def reasons(world: World) -> list[str]:
    with world.work() as work:
        return in_the_way(work, closed=False, dry_run=True)


def test_nothing_is_in_the_way_of_an_idle_bundle(world: World) -> None:
    assert reasons(world) == []


def test_everything_in_the_way_is_said_at_once_and_nothing_is_touched(world: World) -> None:
    with open_directory(world.taker) as taker:
        made_identity("test", taker)
    namesake = World(world.taker, world.giver, {node: world.dsns[node] for node in "cd"})
    with open_directory(world.giver) as giver, open_directory(namesake.giver) as taker:
        snapshot = giver.snapshot()
        records: list[Record] = [*snapshot.bundles.values(), *snapshot.nodes.values(), snapshot.counters["tablet"]]
        for table in snapshot.tables.values():
            records += [table, *snapshot.tablets(table.id)]
        taker.commit(Transaction(tuple(map(Put, records)), 0, "the same names", "test"))
        before = giver.snapshot().version, taker.snapshot().version
    with connect(Address("b", world.dsns["b"])) as connection:
        least = "(SELECT min(id) FROM balancer.tablet)"
        row = connection.execute(
            f"UPDATE balancer.tablet SET epoch = 7 WHERE id = {least} RETURNING id".encode()
        ).fetchone()
        assert row is not None
    found = "\n".join(reasons(world))
    print(found)
    for words in (
        "has a bundle shop already",
        "has a node a already, in bundle shop",
        "has a table orders already",
        "has a table with the number 1 of orders already: orders",
        "has tablets with the numbers of 4 of orders already",
        f"node b and the directory differ in tablet {row[0]}: epoch 7 there, epoch 1 here",
    ):
        assert words in found
    with pytest.raises(Refused, match="has a bundle shop already"):
        world.hand_over()
    with open_directory(world.giver) as giver, open_directory(world.taker) as taker:
        assert (giver.snapshot().version, taker.snapshot().version) == before


def test_an_import_and_a_schema_change_that_have_not_ended_are_in_the_way(world: World) -> None:
    with open_directory(world.giver) as giver:
        work = json.dumps(asdict(ImportRecord("i1", "copying", 9, 100, ("a",), ("goods",))))
        records = [Put(Pause("shop", None, "ann", work, "import goods"))]
        giver.commit(Transaction(tuple(records), giver.snapshot().version, "an import", "ann"))
        giver.publish("ddl", "c1", asdict(SchemaChange("c1", "shop", "ALTER TABLE orders ADD x int", "ann", 1.0)))
    assert reasons(world) == [
        "the import of table goods of bundle shop has not ended (copying)",
        "a schema change of bundle shop has not ended (schema change c1)",
    ]


def test_a_node_that_has_seen_a_newer_leader_stops_it_while_there_is_a_way_back(world: World) -> None:
    """It takes no identity from who is late: its change of hands could not be compared later on."""
    with connect(Address("b", world.dsns["b"])) as connection:
        connection.execute("UPDATE balancer.node SET identity = NULL, leader_epoch = 1000")
    with pytest.raises(Refused, match="node b has not been told yet which directory it belongs to"):
        world.hand_over()
    with connect(Address("b", world.dsns["b"])) as connection:
        connection.execute("UPDATE balancer.node SET leader_epoch = 1")
    assert world.hand_over() == "gone"
    check_arrived(world)


def test_a_prepared_transaction_is_named(world: World) -> None:
    with psycopg.connect(world.dsns["a"]) as connection:
        connection.execute("SELECT 1")
        connection.execute("PREPARE TRANSACTION 'balancer/all/a/a/0123456789abcdef'")
        connection.commit()
    try:
        assert "prepared on node a and not ended" in "\n".join(reasons(world))
    finally:
        with psycopg.connect(world.dsns["a"], autocommit=True) as connection:
            connection.execute("ROLLBACK PREPARED 'balancer/all/a/a/0123456789abcdef'")


def test_the_same_directory_is_no_other(world: World) -> None:
    world.taker = world.giver
    assert any("is the directory that the bundle is in" in one for one in reasons(world))


# The signpost.


def test_the_signpost_is_forgotten_when_the_operator_says_so(world: World, tmp_path: Path) -> None:
    with world.work() as work, pytest.raises(Refused, match="only what has wholly been handed over can be forgotten"):
        work.forget()
    world.hand_over()
    with world.work() as work:
        work.forget()
        snapshot = work.giver.directory.snapshot()
    assert set(snapshot.bundles) == {"mail"}
    assert {table.name for table in snapshot.tables.values()} == {"letters"}
    assert set(snapshot.nodes) == {"c", "d"}
    assert list(violations(snapshot)) == []


def test_it_comes_back_the_same_way(world: World) -> None:
    with Router.connect(world.giver) as first:
        given = {first.ids("orders").next()}
    world.hand_over()
    with world.work() as work:
        work.forget()
    with Router.connect(world.taker) as second:
        given.add(second.ids("orders").next())
    back = World(world.taker, world.giver, world.dsns)
    assert back.hand_over() == "gone"
    with Router.connect(world.giver) as third:
        given.add(third.ids("orders").next())
        write(third, "orders", 5)
    assert len(given) == 3
    assert world.rows() == [5]


def test_further_bundles_follow_though_both_directories_have_made_tablets_since(world: World) -> None:
    world.hand_over()
    with open_directory(world.giver) as giver, open_directory(world.taker) as taker:
        numbers = giver.snapshot().counters["tablet"].next, taker.snapshot().counters["tablet"].next
    assert numbers[1] - numbers[0] > 1 << 31
    with world.work() as work:
        work.bundles = ("mail",)
        assert work.run(lambda closed: in_the_way(work, closed=closed)).state == "gone"
        assert set(work.taker.directory.snapshot().bundles) == {"shop", "mail"}
