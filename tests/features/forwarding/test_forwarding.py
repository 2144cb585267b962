"""Every node answers for every key, before and after a move. PostgreSQL 15: the embedded ones have no postgres_fdw."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import pytest

from balancer.clock import SystemClock
from balancer.embedded.postgres import PostgresServer
from balancer.errors import Refused
from balancer.features.forwarding.updater import ForwardingUpdater, forward_bundle, stop_forwarding
from balancer.naming import cluster_name
from balancer.nodes.session.connection import Address
from balancer.polling.poller import ClusterPoll, Poller
from tests.support.commands import balancer_here as balancer
from tests.support.forward_login import PASSWORD, ROLE, with_login
from tests.support.mailing import switch_messages_on
from tests.support.refusals import refused_with
from tests.support.shards import Shards, databases, new_shards, user_of
from tests.support.spy import Spy

pytestmark = pytest.mark.always

USERS = 40


@pytest.fixture(scope="module")
def dsns(postgres15: PostgresServer) -> Iterator[list[str]]:
    with databases(postgres15) as made:
        yield made


@pytest.fixture
def shards(tmp_path: Path, dsns: list[str]) -> Iterator[Shards]:
    with new_shards(tmp_path, dsns) as made:
        yield made
        stop_forwarding(made.directory.snapshot(), "shop", address(made).__getitem__)


def address(shards: Shards) -> dict[str, Address]:
    return {node: with_login(Address(node, dsn)) for node, dsn in shards.dsns.items()}


def forward(shards: Shards) -> int:
    return forward_bundle(shards.directory.snapshot(), "shop", address(shards).__getitem__)


def everything(shards: Shards, node: str) -> list[int]:
    rows = shards.node(node).execute("SELECT user_id FROM balancer_all.orders ORDER BY user_id").fetchall()
    return [row[0] for row in rows]


def test_any_node_reads_and_writes_any_key(shards: Shards) -> None:
    assert forward(shards) == 16, "two nodes, two roots, four tablets"
    for user in range(USERS):
        writer = shards.node("pg-a" if user % 2 else "pg-b")
        writer.execute("INSERT INTO balancer_all.orders VALUES (%s, 1)", (user,))
    writer.execute("UPDATE balancer_all.orders SET note = 'seen' WHERE n = 1")
    assert everything(shards, "pg-a") == everything(shards, "pg-b") == list(range(USERS))
    owned = [row for node in shards.dsns for row in shards.node(node).execute("SELECT note FROM orders").fetchall()]
    assert owned == [("seen",)] * USERS
    assert forward(shards) == 0, "nothing changed, nothing done"


def test_outboxes_and_inboxes_are_not_forwarded(shards: Shards) -> None:
    """The login of other nodes could write there as whom a message was sent."""
    for node in map(shards.node, shards.dsns):
        node.execute("DROP TABLE IF EXISTS balancer_outbox_1, balancer_inbox_1")
    switch_messages_on(shards)
    assert forward(shards) == 16, "two nodes, two roots, four tablets"
    shown = "SELECT count(*) FROM pg_class WHERE relname ~ 'box' AND relnamespace::regnamespace::text ~ '^balancer_'"
    assert [shards.node(node).execute(shown).fetchone() for node in shards.dsns] == [(0,), (0,)]


def test_a_cross_shard_join_is_an_ordinary_query(shards: Shards) -> None:
    forward(shards)
    node = shards.node("pg-a")
    node.execute("INSERT INTO balancer_all.orders SELECT g, 1 FROM generate_series(1, 20) g")
    node.execute("INSERT INTO balancer_all.items SELECT g, i FROM generate_series(1, 20) g, generate_series(1, 3) i")
    joined = "SELECT count(*) FROM balancer_all.orders JOIN balancer_all.items USING (user_id)"
    assert shards.node("pg-b").execute(joined.encode()).fetchone() == (60,)


def test_a_move_is_followed_and_a_write_before_that_is_refused_not_lost(shards: Shards) -> None:
    forward(shards)
    user = user_of(shards, 1)
    shards.node("pg-b").execute("INSERT INTO balancer_all.orders VALUES (%s, 1)", (user,))
    with shards.leading() as move:
        assert move(1, "pg-b").state == "done"
    with pytest.raises(psycopg.Error):
        shards.node("pg-a").execute("INSERT INTO balancer_all.orders VALUES (%s, 2)", (user,))
    assert forward(shards) == 4
    shards.node("pg-a").execute("INSERT INTO balancer_all.orders VALUES (%s, 2)", (user,))
    assert everything(shards, "pg-a") == everything(shards, "pg-b") == [user, user]
    assert shards.count(user) == 2


STATEMENTS = (
    "SELECT * FROM balancer_all.orders WHERE user_id = {user}",
    "UPDATE balancer_all.orders SET note = 'late' WHERE user_id = {user}",
    "UPDATE balancer_all.orders SET note = 'late' WHERE user_id = {user} AND random() < 2",
    "DELETE FROM balancer_all.orders WHERE user_id = {user}",
    "INSERT INTO balancer_all.orders VALUES ({user}, 9)",
)


@pytest.mark.parametrize("moment", ["left:committing", "left:opening", "left:retiring"])
def test_who_has_not_heard_of_a_move_is_told_to_try_again_and_reads_nothing_old(shards: Shards, moment: str) -> None:
    """Before the forwarding has followed: the former owner still has its rows, or has not any more."""
    forward(shards)
    user = user_of(shards, 1)
    shards.node("pg-b").execute("INSERT INTO balancer_all.orders VALUES (%s, 1)", (user,))
    answers: list[tuple[str | None, str | None]] = []

    def ask() -> None:
        with psycopg.connect(shards.dsns["pg-b"], autocommit=True) as client:
            client.execute("SET lock_timeout TO '100ms'")
            for statement in STATEMENTS:
                try:
                    client.execute(statement.format(user=user).encode())
                except psycopg.Error as error:
                    answers.append((error.sqlstate, refused_with(error)))
                else:
                    answers.append((None, None))

    with shards.leading(Spy({moment: ask})) as move:
        assert move(1, "pg-b").state == "done"
    assert [state for state, _ in answers] == ["40001"] * len(STATEMENTS)
    assert shards.count(user) == 1
    forward(shards)
    assert everything(shards, "pg-a") == [user]
    assert shards.node("pg-a").execute("SELECT count(*) FROM pg_class WHERE relname = 'orders_t1'").fetchone() == (
        1,
    ), "the tombstone of the former owner is gone; the foreign table is there"


def test_a_split_is_followed_and_the_old_partition_is_not_read(shards: Shards) -> None:
    forward(shards)
    user = user_of(shards, 1)
    shards.node("pg-b").execute("INSERT INTO balancer_all.orders VALUES (%s, 1)", (user,))
    answers: list[str | None] = []

    def ask() -> None:
        with psycopg.connect(shards.dsns["pg-b"], autocommit=True) as client:
            try:
                client.execute("SELECT * FROM balancer_all.orders WHERE user_id = %s", (user,))
            except psycopg.Error as error:
                answers.append(refused_with(error))

    with shards.leading(Spy({"left:swapping": ask, "left:retiring": ask})) as leader:
        assert leader.split(1).state == "done"
    assert answers == ["TB002", "TB002"]
    forward(shards)
    assert everything(shards, "pg-a") == everything(shards, "pg-b") == [user]


PACE = 0.01


class Counting:
    """A row that one client counts up and others read, all through the forwarding, a hundred times a second each."""

    def __init__(self, shards: Shards, user: int) -> None:
        self._shards = shards
        self._user = user
        self.stop = threading.Event()
        self.odd: list[str] = []
        self.written = 0
        self.reads = 0

    def write(self) -> None:
        with psycopg.connect(self._shards.dsns["pg-a"], autocommit=True) as client:
            while not self.stop.is_set():
                change = f"UPDATE balancer_all.orders SET n = {self.written + 1} WHERE user_id = {self._user}"
                done = self._ask(client, change)
                if done is not None and done.rowcount != 1:
                    self.odd.append("no row was changed")
                self.written += done is not None
                self.stop.wait(PACE)

    def read(self, node: str) -> None:
        with psycopg.connect(self._shards.dsns[node], autocommit=True) as client:
            while not self.stop.is_set():
                least = self.written
                done = self._ask(client, f"SELECT n FROM balancer_all.orders WHERE user_id = {self._user}")
                if done is not None:
                    self.reads += 1
                    row = done.fetchone()
                    if row is None or int(str(row[0])) < least:
                        self.odd.append(f"read {row} after {least} was acknowledged")
                self.stop.wait(PACE)

    def _ask(self, client: psycopg.Connection[Any], statement: str) -> psycopg.Cursor[Any] | None:
        try:
            return client.execute(statement.encode())
        except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
            return None
        except psycopg.Error as error:
            self.odd.append(repr(error))
            return None


def test_reads_through_it_are_never_too_old_while_a_tablet_moves_around(shards: Shards) -> None:
    forward(shards)
    user = user_of(shards, 1)
    shards.node("pg-a").execute("INSERT INTO balancer_all.orders VALUES (%s, 0)", (user,))
    row = Counting(shards, user)
    threads = [threading.Thread(target=row.write)]
    threads += [threading.Thread(target=row.read, args=(node,)) for node in shards.dsns]
    for thread in threads:
        thread.start()
    watch = ForwardingUpdater(lambda _: True, shards.directory.snapshot, address(shards).__getitem__)
    try:
        with shards.leading(watch) as move:
            for number in range(4):
                assert move(1, "pg-a" if number % 2 else "pg-b").state == "done"
    finally:
        row.stop.set()
        for thread in threads:
            thread.join()
    print(f"{row.written} writes, {row.reads} reads")
    assert row.odd == []
    assert row.written > 20
    assert row.reads > 20


def test_a_migration_keeps_it_right(shards: Shards) -> None:
    forward(shards)
    user = user_of(shards, 1)
    watch = ForwardingUpdater(lambda _: True, shards.directory.snapshot, address(shards).__getitem__)
    with shards.leading(watch) as move:
        for target, number in (("pg-b", 1), ("pg-a", 2)):
            assert move(1, target).state == "done"
            shards.node("pg-a").execute("INSERT INTO balancer_all.orders VALUES (%s, %s)", (user, number))
            assert everything(shards, "pg-a") == everything(shards, "pg-b") == [user] * number


def test_it_is_left_alone_where_it_is_not_wanted(shards: Shards) -> None:
    ForwardingUpdater(lambda _: False, shards.directory.snapshot, address(shards).__getitem__).follow("shop")
    assert shards.node("pg-a").execute("SELECT to_regnamespace('balancer_all')").fetchone() == (None,)


def test_a_fence_is_told_through_the_forwarding(shards: Shards) -> None:
    forward(shards)
    shards.fence(1)
    with pytest.raises(psycopg.Error) as caught:
        shards.node("pg-b").execute("INSERT INTO balancer_all.orders VALUES (%s, 1)", (user_of(shards, 1),))
    assert refused_with(caught.value) == "TB001"


def test_whoever_may_read_the_root_may_read_ours_and_nothing_else(shards: Shards) -> None:
    node = shards.node("pg-a")
    node.execute("CREATE ROLE reader LOGIN PASSWORD 'reader'")
    try:
        node.execute("GRANT SELECT ON orders TO reader")
        forward(shards)
        with psycopg.connect(shards.dsns["pg-a"], user="reader", password="reader", autocommit=True) as reader:
            assert reader.execute("SELECT count(*) FROM balancer_all.orders").fetchone() == (0,)
            for forbidden in ("SELECT * FROM balancer_all.items", "INSERT INTO balancer_all.orders VALUES (1, 1)"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    reader.execute(forbidden.encode())
            hidden = reader.execute("SELECT umoptions FROM pg_user_mappings").fetchall()
            assert all(options == (None,) for options in hidden), "no password is shown"
    finally:
        node.execute("DROP OWNED BY reader")
        node.execute("DROP ROLE reader")


def test_the_command_brings_it_and_takes_it_away(shards: Shards, tmp_path: Path) -> None:
    (tmp_path / "bundles").mkdir()
    address(shards)
    (tmp_path / "bundles" / "forward").write_text(PASSWORD)
    login = f'forward_user = "{ROLE}"\nforward_password_file = "forward"\n'
    nodes = "".join(f'[nodes.{node}]\ndsn = "{dsn}"\n{login}' for node, dsn in shards.dsns.items())
    (tmp_path / "bundles" / "shop.toml").write_text(nodes)
    config = tmp_path / "balancer.toml"
    config.write_text(f'directory = "{shards.url}"\n')
    for node in shards.dsns:  # as nodes of this very directory
        shards.node(node).execute("UPDATE balancer.node SET cluster = %s", (cluster_name(shards.url),))
    brought = balancer("forward", "-c", config, "shop")
    assert (brought.code, brought.out) == (0, "16 partitions changed\n"), brought.err
    assert everything(shards, "pg-b") == []
    assert balancer("forward", "-c", config, "shop", "--off").code == 0
    assert shards.node("pg-a").execute("SELECT to_regnamespace('balancer_all')").fetchone() == (None,)
    assert balancer("forward", "-c", config, "nowhere").code == 2


def test_a_server_without_the_extension_says_so(tmp_path: Path, postgres18: PostgresServer) -> None:
    with (
        databases(postgres18, 1) as dsns,
        new_shards(tmp_path, dsns, tablets=1) as shards,
        pytest.raises(Refused, match="postgres_fdw is not installed"),
    ):
        forward(shards)


def test_code_of_a_tables_owner_runs_as_the_restricted_login(shards: Shards) -> None:
    forward(shards)
    user = user_of(shards, 1)
    owner = shards.node("pg-a")
    owner.execute(
        """
        CREATE TABLE seen (who name); GRANT INSERT ON seen TO PUBLIC;
        CREATE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS
            $$BEGIN INSERT INTO public.seen VALUES (current_user); RETURN NEW; END$$;
        CREATE TRIGGER spy BEFORE INSERT ON orders_t1 FOR EACH ROW EXECUTE FUNCTION spy();
        """
    )
    try:
        shards.node("pg-b").execute("INSERT INTO balancer_all.orders VALUES (%s, 1)", (user,))
        assert owner.execute("SELECT who FROM seen").fetchall() == [(ROLE,)]
    finally:
        owner.execute("DROP TABLE seen; DROP FUNCTION spy() CASCADE")


def test_the_login_may_use_the_views_and_nothing_else(shards: Shards) -> None:
    forward(shards)
    with psycopg.connect(shards.dsns["pg-a"], user=ROLE, password=PASSWORD, autocommit=True) as login:
        assert login.execute("SELECT count(*) FROM balancer_here.orders_t1").fetchone() == (0,)
        for forbidden in ("SELECT * FROM orders_t1", "SELECT * FROM orders", "SELECT * FROM balancer_all.orders"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                login.execute(forbidden.encode())
    mapped = shards.node("pg-a").execute("SELECT usename, umoptions[1] FROM pg_user_mappings").fetchall()
    assert mapped == [("public", f"user={ROLE}")] * 2


def test_a_root_with_row_level_security_is_refused_by_name(shards: Shards) -> None:
    shards.node("pg-b").execute("ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
    with pytest.raises(Refused, match=r"^public\.orders has row level security, which forwarding would go round"):
        forward(shards)
    assert shards.node("pg-a").execute("SELECT to_regnamespace('balancer_all')").fetchone() == (None,)


def polled(shards: Shards) -> ClusterPoll:
    poller = Poller("shards", SystemClock(), 5.0)
    try:
        return poller.poll(shards.directory.snapshot(), address(shards))
    finally:
        poller.close()


def test_row_level_security_that_comes_later_ends_it_at_the_next_poll(shards: Shards) -> None:
    forward(shards)
    shards.node("pg-b").execute("INSERT INTO balancer_all.orders VALUES (%s, 1)", (user_of(shards, 1),))
    watch = ForwardingUpdater(lambda _: True, shards.directory.snapshot, address(shards).__getitem__)
    watch.judge(polled(shards), shards.directory.snapshot())
    assert len(everything(shards, "pg-b")) == 1, "nothing was secured yet"
    shards.node("pg-a").execute("CREATE POLICY mine ON orders USING (note = current_user)")
    watch.judge(polled(shards), shards.directory.snapshot())
    for node in shards.dsns:
        with pytest.raises(psycopg.errors.UndefinedTable):
            everything(shards, node)
        assert shards.node(node).execute("SELECT count(*) FROM pg_user_mappings").fetchone() == (0,)
    watch.follow("shop")
    assert shards.node("pg-b").execute("SELECT to_regnamespace('balancer_all')").fetchone() == (None,)
    shards.node("pg-a").execute("DROP POLICY mine ON orders")
    watch.judge(polled(shards), shards.directory.snapshot())
    assert len(everything(shards, "pg-b")) == 1, "it comes back with the end of the policy"


def test_the_command_takes_away_what_stands_when_it_refuses(shards: Shards) -> None:
    forward(shards)
    shards.node("pg-b").execute("ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
    with pytest.raises(Refused, match="row level security"):
        forward(shards)
    for node in shards.dsns:
        assert shards.node(node).execute("SELECT to_regnamespace('balancer_all')").fetchone() == (None,)


def test_without_a_restricted_login_it_is_refused_with_what_to_do(shards: Shards) -> None:
    def forward_as(role: str) -> None:
        found = {node: replace(one, forward_user=role) for node, one in address(shards).items()}
        forward_bundle(shards.directory.snapshot(), "shop", found.__getitem__)

    with pytest.raises(Refused, match=r"its own on node pg-a: set \[nodes.pg-a\] forward_user and forward_pass"):
        forward_as("")
    with pytest.raises(Refused, match="names the role postgres, which is the balancer's own"):
        forward_as("postgres")
    with pytest.raises(Refused, match="names the role nobody, which is not on node pg-a"):
        forward_as("nobody")
    node = shards.node("pg-a")
    node.execute("CREATE ROLE mighty REPLICATION")
    try:
        with pytest.raises(Refused, match="names the role mighty, which may replicate"):
            forward_as("mighty")
    finally:
        node.execute("DROP ROLE mighty")


def test_no_password_stands_in_a_servers_log(shards: Shards, postgres15: PostgresServer) -> None:
    for node in shards.dsns:
        name = shards.node(node).info.dbname
        shards.node(node).execute(f"ALTER DATABASE \"{name}\" SET log_statement TO 'all'".encode())
        shards.node(node).execute(f'ALTER DATABASE "{name}" SET log_min_duration_statement TO 0'.encode())
    known = postgres15.log.stat().st_size
    watch = ForwardingUpdater(lambda _: True, shards.directory.snapshot, address(shards).__getitem__)
    try:
        with shards.leading(watch) as move:
            assert move(1, "pg-b").state == "done"
    finally:
        for node in shards.dsns:
            shards.node(node).execute(f'ALTER DATABASE "{shards.node(node).info.dbname}" RESET ALL'.encode())
    written = postgres15.log.read_bytes()[known:].decode(errors="replace")
    assert "CREATE PUBLICATION" in written, "statements are logged"
    assert [line for line in written.splitlines() if PASSWORD in line or postgres15.password() in line] == []


REKEYS = (
    "UPDATE balancer_all.orders SET user_id = {new} WHERE user_id = {old}",
    "UPDATE balancer_all.orders SET user_id = {new} WHERE user_id = {old} AND random() < 2",  # row by row
    "UPDATE balancer_all.orders SET note = 'x', user_id = {new} WHERE user_id = {old}",
    "UPDATE balancer_all.orders SET user_id = user_id + {new} - {old} WHERE user_id = {old}",
)


def test_a_key_of_another_tablet_is_refused_in_one_sentence_and_nothing_moves(shards: Shards) -> None:
    forward(shards)
    old = user_of(shards, 1)
    shards.node("pg-b").execute("INSERT INTO balancer_all.orders VALUES (%s, 1), (%s, 2)", (old, old))
    assert [shards.tablet(number).node for number in (1, 2, 3)] == ["pg-a", "pg-b", "pg-a"]
    for tablet in (2, 3):  # of another node, and of the same
        new = user_of(shards, tablet)
        for asked, statement in product(shards.dsns, REKEYS):
            with pytest.raises(psycopg.Error, match=r"through balancer_all: use router\.rekey") as refused:
                shards.node(asked).execute(statement.format(old=old, new=new).encode())
            assert refused.value.sqlstate == "TB008"
            assert (shards.count(old), shards.count(new)) == (2, 0), statement


def test_a_key_of_the_same_tablet_and_one_that_does_not_change_are_taken(shards: Shards) -> None:
    forward(shards)
    old = user_of(shards, 1)
    same = user_of(shards, 1, old)
    for asked in shards.dsns:
        node = shards.node(asked)
        node.execute("DELETE FROM balancer_all.orders")
        node.execute("INSERT INTO balancer_all.orders VALUES (%s, 1)", (old,))
        node.execute("UPDATE balancer_all.orders SET user_id = %s, note = 'as it was' WHERE user_id = %s", (old, old))
        node.execute("UPDATE balancer_all.orders SET user_id = %s WHERE user_id = %s", (same, old))
        assert (shards.count(old), shards.count(same)) == (0, 1)


def test_plain_updates_on_the_node_move_rows_between_its_tablets_as_before(shards: Shards) -> None:
    forward(shards)
    old, new = user_of(shards, 1), user_of(shards, 3)
    node = shards.node("pg-a")
    node.execute("INSERT INTO orders VALUES (%s, 1)", (old,))
    node.execute("UPDATE orders SET user_id = %s WHERE user_id = %s", (new, old))
    assert (shards.count(old), shards.count(new)) == (0, 1)
    stop_forwarding(shards.directory.snapshot(), "shop", address(shards).__getitem__)
    left = node.execute("SELECT count(*) FROM pg_trigger WHERE tgname = '!balancer_rekey'").fetchone()
    assert left == (0,)
