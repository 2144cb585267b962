"""Reference tables: copies on every node that follow their home, are closed to writes, and are filled again when they
must be; a home that moves under writes, killed at each state; foreign keys of tablets that move."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from balancer.client import Router
from balancer.clock import SystemClock
from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import Layout, Migration, Node, NodeState, Put, TabletState, Transaction
from balancer.directory.open import open_directory
from balancer.directory.snapshot import Snapshot
from balancer.embedded.postgres import PostgresServer
from balancer.errors import Refused
from balancer.features.reference import keeper
from balancer.features.reference.findings import MENDS
from balancer.features.reference.keeper import ReferenceKeeper, make_copy
from balancer.features.reference.setup import adopt_reference, inspect_reference
from balancer.features.repair.doctor import examine
from balancer.features.repair.revive import make_ready, replacement
from balancer.features.tables.adopt import TableRequest
from balancer.features.tables.create import create
from balancer.instruments import Instruments
from balancer.migration.begin import begin_move
from balancer.migration.machine import State
from balancer.migration.progress import Observer
from balancer.migration.runner import Runner, recover
from balancer.naming import Name, parse_name
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.session.connection import Address, Connection, Cursor
from balancer.nodes.session.holder import NodeSessions
from balancer.nodes.tablets.closed import locked_rows, open_tablet
from balancer.nodes.tablets.reference_copies import check_copy
from balancer.nodes.tablets.replication import marker_statements
from balancer.planner.metrics import Reporter
from balancer.policies.check_options import CheckKind, CheckOptions
from balancer.polling.view import reference_tables
from balancer.settings import MigrationSettings
from tests.migration.test_chunks_owners import SPY
from tests.support.checking import checked
from tests.support.cluster import AMPLE
from tests.support.fleet import until
from tests.support.opening import connect
from tests.support.owned import run_as
from tests.support.sampling import thinned
from tests.support.servers import new_database, unsubscribe

TABLES = """
CREATE TABLE public.countries (code char(2) PRIMARY KEY, name text NOT NULL UNIQUE,
    seen int GENERATED ALWAYS AS IDENTITY, size int DEFAULT 0, twice int GENERATED ALWAYS AS (size * 2) STORED);
CREATE TABLE public.towns (id serial PRIMARY KEY, country char(2) NOT NULL REFERENCES public.countries, name text);
INSERT INTO public.countries (code, name) VALUES ('de', 'Germany'), ('ru', 'Russia');
INSERT INTO public.towns (country, name) VALUES ('de', 'Berlin'), ('ru', 'Moscow');
"""
SETTINGS = MigrationSettings(retire_grace=0.0, **AMPLE)
REQUEST = TableRequest("shop", "countries", tuple(map(parse_name, ("countries", "towns"))), "everywhere", (), "test")
ACTIVE = "SELECT FROM pg_replication_slots WHERE database = current_database() AND active"
CONTENT = "SELECT code, name, seen, size, twice FROM countries ORDER BY 1"


@dataclass
class World:
    """Three nodes, a directory with the reference table, and a leadership."""

    dsns: dict[str, str]
    url: str
    directory: Directory
    leadership: Leadership

    def address(self, node: str) -> Address:
        return Address(node, self.dsns[node], cluster="directory")

    def query(self, node: str, statement: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.dsns[node], autocommit=True) as connection:
            found = connection.execute(statement.encode())
            return found.fetchall() if found.description else []

    def keep(self, known: Snapshot | None = None) -> Instruments:
        """One look, by the newest snapshot or by one that is not."""
        instruments = Instruments()
        snapshot = self.directory.snapshot if known is None else lambda: known
        ReferenceKeeper(self.leadership, snapshot, self.address, Reporter(instruments)).keep("shop")
        return instruments

    def home(self) -> str:
        snapshot = self.directory.snapshot()
        return snapshot.tablets(snapshot.table("countries").id)[0].node

    def runner(self, observer: Observer | None = None) -> Runner:
        clock = SystemClock()
        return Runner(self.directory, self.leadership, self.address, SETTINGS, clock=clock, observer=observer)

    def move_home(self, node: str) -> Migration:
        tablet = self.directory.snapshot().tablets(self.directory.snapshot().table("countries").id)[0]
        return self.runner().run(begin_move(self.directory, self.leadership, tablet.id, node).id)

    def alike(self, *nodes: str) -> None:
        """Waits until these, or all, have what the home has."""
        home = self.query(self.home(), CONTENT)
        for node in nodes or self.dsns:
            until(lambda node=node: self.query(node, CONTENT) == home, 30, f"a copy on {node}")  # type: ignore[misc]

    def follow(self) -> None:
        """Until every copy is there."""
        until(self._kept, 30, "all copies")

    def _kept(self) -> bool:
        registry = self.keep().registry
        others = [node for node in self.dsns if node != self.home()]
        named = {"bundle": "shop"}
        found = [
            registry.get_sample_value("balancer_reference_copies_missing", {**named, "node": one}) for one in others
        ]
        return found in ([0.0, 0.0], [0.0, None], [None, 0.0])


@pytest.fixture
def dsns(postgres15: PostgresServer, postgres18: PostgresServer) -> Iterator[dict[str, str]]:
    with ExitStack() as stack:
        servers = {"a": postgres15, "b": postgres18, "c": postgres15}
        yield {name: stack.enter_context(new_database(server)).dsn for name, server in servers.items()}


@pytest.fixture
def connections(dsns: dict[str, str]) -> Iterator[dict[str, Connection]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(connect(Address(name, dsn))) for name, dsn in dsns.items()}


@pytest.fixture
def world(tmp_path: Path, dsns: dict[str, str], connections: dict[str, Connection]) -> Iterator[World]:
    url = f"sqlite://{tmp_path}/directory.db"
    connections["a"].execute(TABLES.encode())
    records = [Node(name, "shop", dsn) for name, dsn in dsns.items()]
    with open_directory(url, lease=10.0) as directory:
        adopt_reference(REQUEST, directory, connections, records, "directory")
        leadership = directory.campaign("test", 20.0)
        assert leadership is not None
        yield World(dsns, url, directory, leadership)
    for dsn in dsns.values():  # all of them, before a database with slots is dropped: who is subscribed comes back
        unsubscribe(dsn)
    for dsn in dsns.values():
        with psycopg.connect(dsn, autocommit=True) as connection:
            until(lambda c=connection: not c.execute(ACTIVE).fetchall(), 20, "the end of streams")  # type: ignore[misc]


def sharded(world: World, connections: dict[str, Connection]) -> int:
    """A hash table with a foreign key to the reference table, its one tablet on a; returns the tablet's id."""
    definition = """
        CREATE TABLE public.orders (id bigint PRIMARY KEY, country char(2) REFERENCES public.countries)
        PARTITION BY HASH (id)
    """
    request = TableRequest("shop", "orders", (parse_name("orders"),), "hash", ("id",), "test")
    records = [Node("a", "shop", "postgresql:///shop")]
    made = create(request, world.directory, connections, records, "directory", tablets=1, definition=definition)
    return made.tablets[0].id


def test_every_node_has_a_copy_that_follows_and_refuses_writes(world: World) -> None:
    table = world.directory.snapshot().table("countries")
    assert (table.layout, table.key_types, world.home()) == (Layout.EVERYWHERE, (), "a")
    world.follow()
    before = world.query("b", "SELECT oid FROM pg_subscription")
    world.follow()
    assert world.query("b", "SELECT oid FROM pg_subscription") == before
    with psycopg.connect(world.dsns["a"]) as other:  # a lock in the tablet's row sends clients the long way
        other.execute("SELECT FROM balancer.tablet FOR UPDATE")
        other.rollback()
    with Router.connect(world.url) as router, router.transaction("countries") as connection:
        connection.execute("INSERT INTO countries (code, name) VALUES ('fr', 'France')")
        connection.execute("UPDATE countries SET size = 7 WHERE code = 'de'")
        connection.execute("DELETE FROM towns WHERE country = 'ru'")
    world.alike()
    assert world.query("b", "SELECT size, twice FROM countries WHERE code = 'de'") == [(7, 14)]
    assert world.query("c", "SELECT country FROM towns") == [("de",)]
    for statement in ("INSERT INTO towns (country) VALUES ('de')", "DELETE FROM countries", "TRUNCATE towns"):
        with pytest.raises(psycopg.errors.SerializationFailure, match=r"is a copy here: .* node a") as refused:
            world.query("b", statement)
        assert refused.value.diag.message_detail == "TB002 node=a epoch=1"
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="would not reach its copies"):
        world.query("a", "TRUNCATE towns")
    assert examine(world.directory, world.address) == []


def test_a_copy_that_is_lost_old_or_different_is_named_and_filled_again(world: World) -> None:
    world.follow()
    world.alike()
    copies = CheckOptions(kinds=(CheckKind.COPIES,))
    assert checked(world, copies, cluster="directory") == []
    slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    with psycopg.connect(world.dsns["b"], autocommit=True) as connection:
        connection.execute("SET session_replication_role TO replica")
        connection.execute("UPDATE countries SET name = 'Atlantis' WHERE code = 'de'")
        connection.execute("INSERT INTO countries (code, name) VALUES ('xx', 'Nowhere')")
    [found] = examine(world.directory, world.address)
    assert (found.node, found.text) == ("b", "its copy of the reference table countries has other rows than a")
    [anomaly] = checked(world, copies, cluster="directory")
    assert (anomaly.node, anomaly.table, anomaly.text) == ("b", "countries", f"node b: {found.text}")
    assert "the leader fills it again" in anomaly.advice
    snapshot = world.directory.snapshot()
    accepted = replace(snapshot.nodes["b"], generation=1)  # as `node rejoin` leaves a node that had gone back in time
    world.directory.commit(Transaction((Put(accepted),), snapshot.version, "rejoin", "test"))
    kept = world.query("b", "SELECT xmin FROM countries WHERE code = 'ru'")
    world.follow()
    world.alike()
    assert world.query("b", "SELECT xmin FROM countries WHERE code = 'ru'") == kept  # what was right was left alone
    assert len(world.query("a", slots)) == 2
    [(stream,)] = world.query("c", "SELECT subname FROM pg_subscription WHERE subname ~ 'tb_r'")[:1]
    with psycopg.connect(world.dsns["a"], autocommit=True) as connection:

        def dropped() -> bool:  # the reader comes back within moments: it is ended until the slot is free just then
            connection.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", (stream,)
            )
            with suppress(psycopg.errors.ObjectInUse):
                connection.execute("SELECT pg_drop_replication_slot(%s)", (stream,))
                return True
            return False

        until(dropped, 20, "the loss of a slot")
        connection.execute("INSERT INTO countries (code, name) VALUES ('fr', 'France')")
    texts = [found.text for found in examine(world.directory, world.address) if found.node == "c"]
    assert texts == [f"its copy of the reference table countries does not follow a: {MENDS}"]
    world.follow()
    world.alike()
    assert examine(world.directory, world.address) == []


def test_a_fill_that_was_interrupted_is_begun_again_and_leaves_nothing(world: World) -> None:
    world.follow()
    snapshot = world.directory.snapshot()
    accepted = replace(snapshot.nodes["b"], generation=1)
    world.directory.commit(Transaction((Put(accepted),), snapshot.version, "rejoin", "test"))
    slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database() AND slot_name ~ 'g1x'"
    with psycopg.connect(world.dsns["b"]) as other:
        other.execute("LOCK TABLE countries IN ACCESS SHARE MODE; LOCK TABLE towns IN EXCLUSIVE MODE")
        for _ in range(2):
            world.keep()
            assert len(world.query("a", slots)) == 1  # it was begun, and could not be ended
        other.rollback()
    world.follow()
    world.alike()
    assert examine(world.directory, world.address) == []


def test_a_row_that_a_copy_has_is_not_taken_out_while_it_is_filled_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that goes on behind the snapshot of the new one brings rows that the snapshot does not have: who refers
    to one of them at that moment would find it gone."""
    world.follow()
    snapshot = world.directory.snapshot()
    accepted = replace(snapshot.nodes["b"], generation=1)
    world.directory.commit(Transaction((Put(accepted),), snapshot.version, "rejoin", "test"))
    follows = "SELECT FROM pg_subscription WHERE subname ~ 'tb_r'"
    there = "SELECT code FROM countries WHERE code = 'fr'"
    seen: list[list[tuple[object, ...]]] = []

    def between(cursor: Cursor, names: Sequence[Name], tablet: int) -> None:
        """The snapshot is taken, and the copy is not locked yet."""
        world.query("a", "INSERT INTO countries (code, name) VALUES ('fr', 'France')")
        until(lambda: bool(world.query("b", there)) or not world.query("b", follows), 30, "the row, or no stream")
        seen.append(world.query("b", there))
        check_copy(cursor, names, tablet)

    monkeypatch.setattr(keeper, "check_copy", between)
    world.keep()
    assert seen == [[]]
    world.alike()


def test_two_moves_at_once_send_markers_of_their_own(world: World) -> None:
    numbers: list[object] = []

    def send(connection: psycopg.Connection[tuple[object, ...]]) -> None:
        for statement in marker_statements("r1e1"):
            found = connection.execute(statement.as_string(None).encode())
        numbers.extend(found.fetchone() or ())

    with psycopg.connect(world.dsns["a"]) as first, psycopg.connect(world.dsns["a"]) as second:
        send(first)
        thread = threading.Thread(target=send, args=(second,))
        thread.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        until(lambda: world.query("a", waiting) == [(1,)], 20, "the second to wait")
        first.commit()
        thread.join()
    assert numbers == [1, 2]


class Writer(threading.Thread):
    """Writes to the reference table through the library, and remembers what was acknowledged."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self.over = threading.Event()
        self.written: list[int] = []
        self.errors: list[str] = []

    def run(self) -> None:
        with Router.connect(self._url, samples=False) as router:
            while not self.over.is_set():
                number = len(self.written)
                try:
                    router.run("countries", (), partial(self._write, number), patience=60)
                    self.written.append(number)
                except Exception as error:
                    self.errors.append(f"{type(error).__name__}: {error}")
                    return

    def _write(self, number: int, connection: psycopg.Connection[object]) -> None:
        connection.execute("INSERT INTO towns (id, country, name) VALUES (%s, 'de', 'T')", (1000 + number,))


@pytest.fixture
def writer(world: World) -> Iterator[Writer]:
    made = Writer(world.url)
    yield made
    made.over.set()
    if made.ident is not None:
        made.join()


def towns(world: World, node: str) -> set[int]:
    return {int(str(i)) - 1000 for (i,) in world.query(node, "SELECT id FROM towns WHERE id >= 1000")}


def test_the_home_moves_under_writes(world: World, writer: Writer) -> None:
    world.follow()
    writer.start()
    until(lambda: len(writer.written) > 20, 30, "writes")
    moved = world.move_home("b")
    assert (moved.error, moved.state) == ("", "done")
    reached = len(writer.written)
    until(lambda: len(writer.written) > reached + 20, 30, "writes to the new home")
    world.follow()
    writer.over.set()
    writer.join()
    assert writer.errors == []
    assert towns(world, "b") == set(writer.written)
    until(lambda: towns(world, "a") == towns(world, "b") == towns(world, "c"), 30, "copies like their home")
    with pytest.raises(psycopg.errors.SerializationFailure, match="node b"):
        world.query("a", "DELETE FROM towns")
    number = world.query("b", "INSERT INTO countries (code, name) VALUES ('fr', 'France') RETURNING seen")
    assert number == [(3,)]  # the sequence goes on
    assert examine(world.directory, world.address) == []


def test_a_keeper_with_an_old_snapshot_neither_opens_a_former_home_nor_closes_the_new_one(world: World) -> None:
    world.follow()
    before = world.directory.snapshot()
    assert world.move_home("b").state == "done"
    world.query("b", "INSERT INTO countries (code, name) VALUES ('fr', 'France')")
    world.keep(before)
    [old] = reference_tables(before, "shop")
    links = NodeSessions(world.address, "test")
    try:
        with pytest.raises(Refused, match=r"is the home of public.countries and no copy"):
            make_copy(links, world.leadership.epoch, old, "b", [])
    finally:
        links.close()
    with pytest.raises(psycopg.errors.SerializationFailure, match="node b"):
        world.query("a", "DELETE FROM towns")
    world.query("b", "INSERT INTO countries (code, name) VALUES ('it', 'Italy')")
    assert world.query("b", "SELECT count(*) FROM countries") == [(4,)]
    world.follow()
    world.alike()
    assert examine(world.directory, world.address) == []


def test_a_lost_home_is_replaced_by_a_copy(world: World) -> None:
    world.follow()
    world.alike()
    snapshot = world.directory.snapshot()
    table = snapshot.table("countries")
    tablet = snapshot.tablets(table.id)[0]
    gone = replace(snapshot.nodes["a"], state=NodeState.LOST)
    world.directory.commit(Transaction((Put(gone),), snapshot.version, "lost", "test"))
    _, [revived] = replacement(world.directory.snapshot(), tablet, "b", former=False)
    links = NodeSessions(world.address, "test")
    try:
        with pytest.raises(Refused, match="it has copies: take one with --take-from"):
            make_ready(links, world.leadership.epoch, table, [revived], empty=True)
        make_ready(links, world.leadership.epoch, table, [revived], empty=False)
        with pytest.raises(psycopg.Error, match="closed"):  # until the directory says so
            world.query("b", "DELETE FROM towns")
        snapshot = world.directory.snapshot()
        world.directory.commit(Transaction((Put(revived),), snapshot.version, "take b's copy", "test"))
        with node_transaction(links.control("b"), world.leadership.epoch, "b") as cursor:
            open_tablet(cursor, locked_rows(cursor, [tablet.id])[0], 1.0)  # as the leader's guard does
    finally:
        links.close()
    world.query("b", "INSERT INTO countries (code, name) VALUES ('fr', 'France')")
    world.follow()
    world.alike("b", "c")
    assert [found.text for found in examine(world.directory, world.address, ["b", "c"])] == []


class RefuseCommit(Observer):
    """Another commit comes first, so that the switch has to be undone."""

    def __init__(self, world: World) -> None:
        self._world = world

    def entered(self, migration: Migration, state: State) -> None:
        if state is State.COMMITTING:
            directory = self._world.directory
            tablet = directory.snapshot().tablet(migration.sources[0])
            changed = Put(replace(tablet, state=TabletState.QUARANTINED))
            epoch = self._world.leadership.epoch
            directory.commit(Transaction((changed,), directory.snapshot().version, "meanwhile", "test", epoch))


def test_a_home_whose_switch_is_refused_goes_on_and_so_does_the_copy(world: World, writer: Writer) -> None:
    world.follow()
    writer.start()
    until(lambda: len(writer.written) > 5, 30, "writes")
    snapshot = world.directory.snapshot()
    tablet = snapshot.tablets(snapshot.table("countries").id)[0]
    migration = begin_move(world.directory, world.leadership, tablet.id, "b")
    assert world.runner(RefuseCommit(world)).run(migration.id).state == "failed"
    reached = len(writer.written)
    until(lambda: len(writer.written) > reached + 5, 30, "writes to the home that stays")
    writer.over.set()
    writer.join()
    assert (writer.errors, world.home()) == ([], "a")
    until(lambda: towns(world, "b") == set(writer.written), 30, "the copy to follow")  # without the keeper's help
    assert examine(world.directory, world.address) == []


class Killed(Exception):
    """In the place of the daemon's death."""


class KillAt(Observer):
    def __init__(self, state: State, *, after: bool) -> None:
        self._state, self._after = state, after

    def entered(self, migration: Migration, state: State) -> None:
        if state is self._state and not self._after:
            raise Killed

    def left(self, migration: Migration, state: State) -> None:
        if state is self._state and self._after:
            raise Killed


STATES = (
    State.CATCHING_UP,
    State.FENCING,
    State.DRAINING,
    State.SEALING,
    State.COMMITTING,
    State.OPENING,
    State.RETIRING,
)


def test_a_home_that_moves_is_killed_at_each_state_and_loses_nothing(world: World, writer: Writer) -> None:
    world.follow()
    writer.start()
    ways = [*((state, False) for state in STATES), (State.SEALING, True), (State.COMMITTING, True)]
    for state, after in thinned(ways, 2, "a home that moves"):
        there = "b" if world.home() == "a" else "a"
        tablet = world.directory.snapshot().tablets(world.directory.snapshot().table("countries").id)[0]
        migration = begin_move(world.directory, world.leadership, tablet.id, there)
        with pytest.raises(Killed):
            world.runner(KillAt(state, after=after)).run(migration.id)
        world.leadership.resign()
        again = world.directory.campaign("successor", 20.0)
        assert again is not None
        world.leadership = again
        for record in recover(world.directory, again):
            done = world.runner().run(record.id)
            assert (done.error, done.state) in (("", "done"), (f"interrupted in {state}", "cancelled")), (state, after)
        reached = len(writer.written)
        until(lambda reached=reached: len(writer.written) > reached, 60, f"writes after {state}")  # type: ignore[misc]
        world.follow()
    writer.over.set()
    writer.join()
    assert writer.errors == []
    assert towns(world, world.home()) == set(writer.written)
    until(lambda: towns(world, "a") == towns(world, "b") == towns(world, "c"), 30, "copies like their home")
    assert examine(world.directory, world.address) == []


def test_a_tablet_moves_only_when_the_rows_it_refers_to_have_arrived(
    world: World, connections: dict[str, Connection]
) -> None:
    world.follow()
    tablet = sharded(world, connections)
    world.follow()  # the home learns that foreign keys point to it
    [(stream,)] = world.query("b", "SELECT subname FROM pg_subscription WHERE subname ~ 'tb_r'")
    world.query("b", f'ALTER SUBSCRIPTION "{stream}" DISABLE')
    world.query("a", "INSERT INTO countries (code, name) VALUES ('fr', 'France')")
    world.query("a", "INSERT INTO orders VALUES (1, 'fr')")
    migration = begin_move(world.directory, world.leadership, tablet, "b")
    thread = threading.Thread(target=lambda: world.runner().run(migration.id))
    thread.start()

    def stopped() -> bool:
        record = world.directory.snapshot().migrations[migration.id]
        return "has not caught up with the reference tables" in str(record.detail.get("retreat"))

    until(stopped, 60, "a switch that waits for the copy")
    assert world.query("b", "SELECT count(*) FROM orders") == [(0,)]
    world.query("b", f'ALTER SUBSCRIPTION "{stream}" ENABLE')
    thread.join()
    done = world.directory.snapshot().migrations[migration.id]
    assert (done.error, done.state) == ("", "done")
    assert world.query("b", "SELECT country FROM orders JOIN countries ON code = country") == [("fr",)]
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        world.query("b", "INSERT INTO orders VALUES (2, 'zz')")
    with pytest.raises(psycopg.errors.ForeignKeyViolation, match="rows of other nodes may refer to this row"):
        world.query("a", "DELETE FROM countries WHERE code = 'fr'")
    world.query("a", "UPDATE countries SET size = 1 WHERE code = 'fr'")
    world.query("a", "DELETE FROM towns; SET balancer.unreferenced = 'yes'; DELETE FROM countries WHERE code = 'ru'")
    world.alike()


def test_what_cannot_be_everywhere_is_refused_by_name(dsns: dict[str, str], connections: dict[str, Connection]) -> None:
    def refused(statements: str, text: str) -> None:
        connections["a"].execute("DROP TABLE IF EXISTS public.countries, public.towns, public.other CASCADE")
        connections["b"].execute("DROP TABLE IF EXISTS public.countries, public.towns CASCADE")
        connections["a"].execute(TABLES.encode())
        for node, statement in (part.split(": ", 1) for part in statements.split("\n")):
            connections[node].execute(statement.encode())
        with pytest.raises(Refused, match=text):
            inspect_reference(REQUEST, connections)

    refused("a: ALTER TABLE towns DROP CONSTRAINT towns_pkey", "public.towns has no primary key")
    refused("a: ALTER TABLE towns REPLICA IDENTITY FULL", "has another replica identity than its primary key")
    refused(
        "a: CREATE TABLE public.other (id int PRIMARY KEY)\na: ALTER TABLE towns ADD o int REFERENCES public.other",
        "has the foreign key towns_o_fkey, which points to",
    )
    refused("a: DROP TABLE towns", r"node a has public.countries, but not public.towns")
    other = f"b: {' '.join(TABLES.split())}"
    refused(f"{other}\nb: INSERT INTO towns (country) VALUES ('de')", r"different rows \(4 on a, 5 on b\)")
    connections["b"].execute("DELETE FROM towns WHERE name IS NULL")
    found = inspect_reference(REQUEST, connections)
    assert (found.home, found.others, found.without) == ("a", ("b",), ("c",))


READERS: dict[str, Callable[[World], object]] = {
    "doctor": lambda world: examine(world.directory, world.address),
    "a copy that is made": lambda world: world.keep(),
    "a home that moves": lambda world: world.move_home("b"),
}


@pytest.mark.parametrize("reader", list(READERS))
@pytest.mark.parametrize("what", ["INDEX bad ON countries ({}, code)", "STATISTICS bad ON {}, code FROM countries"])
def test_an_owners_code_on_the_home_does_not_run_as_the_balancer(
    world: World, server_folder: Path, tmp_path: Path, reader: str, what: str
) -> None:
    folder = server_folder / f"seen-{tmp_path.name}"
    folder.mkdir()
    folder.chmod(0o777)  # servers may run as another user
    role = f"r{uuid4().hex[:6]}"
    if reader != "a copy that is made":
        world.follow()
        world.alike()
    with psycopg.connect(world.dsns["a"], autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role}; GRANT ALL ON SCHEMA public TO {role}".encode())
        connection.execute(f"ALTER TABLE countries OWNER TO {role}".encode())
        run_as(connection, role, SPY.format(file=folder / "who"), "CREATE " + what.format("(size + public.spy(1))"))
        READERS[reader](world)
        seen = (folder / "who").exists()
        connection.execute(f"REASSIGN OWNED BY {role} TO CURRENT_USER; DROP OWNED BY {role}; DROP ROLE {role}".encode())
    assert not seen
