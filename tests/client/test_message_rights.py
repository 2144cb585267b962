"""Whose rights a message runs with: those of the role that sent it, whoever delivers; never the balancer's."""

from collections.abc import Iterator

import psycopg
import pytest

from balancer.client import PoolSettings, Router
from balancer.embedded.postgres import PostgresServer
from tests.support.mailing import Mailing, mailings, switch_messages_on
from tests.support.shards import databases

pytestmark = pytest.mark.always

ROLES = ("clerk", "mallory")


@pytest.fixture(scope="module", params=["postgres15", "postgres18"])
def server(request: pytest.FixtureRequest) -> PostgresServer:
    found: PostgresServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def mailing(tmp_path_factory: pytest.TempPathFactory, server: PostgresServer) -> Iterator[Mailing]:
    with databases(server) as dsns, mailings(tmp_path_factory.mktemp("rights"), dsns) as made:
        first = made.shards.node(min(made.shards.dsns))
        for role in ROLES:
            first.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
        for node in map(made.shards.node, made.shards.dsns):
            node.execute("GRANT SELECT, INSERT, UPDATE ON orders TO clerk; GRANT ALL ON SCHEMA public TO mallory")
        switch_messages_on(made.shards)
        yield made
        for node in map(made.shards.node, made.shards.dsns):
            for role in ROLES:
                node.execute(f"DROP OWNED BY {role} CASCADE")
        for role in ROLES:
            first.execute(f"DROP ROLE {role}")


@pytest.fixture(scope="module")
def clerk(mailing: Mailing) -> Iterator[Router]:
    login = PoolSettings(size=4, connection={"user": "clerk", "password": "secret"})
    with Router.connect(mailing.shards.url, login, samples=False) as router:
        yield router


def pay(router: Router, payer: int, payee: int, **options: bool) -> None:
    with router.transaction("orders", payer) as connection:
        connection.execute("UPDATE orders SET n = n - 5 WHERE user_id = %s", (payer,))
        connection.send("orders", payee, "credit", {"amount": 5, "mark": "x"}, **options)


def test_who_may_write_to_the_table_may_send_and_deliver(mailing: Mailing, clerk: Router) -> None:
    payer, payee = mailing.users(2)
    pay(clerk, payer, payee)
    assert (mailing.book(payee), mailing.outbox(payer)) == ((105, "x"), [])
    pay(clerk, payer, payee, deliver=False)
    mailing.look()
    assert (mailing.book(payee), mailing.outbox(payer)) == ((110, "xx"), [])


def test_nobody_can_send_as_somebody_else(mailing: Mailing, clerk: Router) -> None:
    payer, payee = mailing.users(2)
    pay(clerk, payer, payee, deliver=False)
    forged = (
        f"INSERT INTO balancer_outbox_1 (user_id, message_number, message_target, message_key, message_name,"
        f" message_body, message_role) VALUES ({payer}, 7, 'orders', '{{{payee}}}', 'credit', '{{}}', 'postgres')"
    )
    for statement in (forged, "UPDATE balancer_outbox_1 SET message_role = 'postgres'"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege), clerk.transaction("orders", payer) as connection:
            connection.execute(statement)
    mailing.look()


def test_a_handler_may_no_more_than_its_sender(mailing: Mailing, clerk: Router) -> None:
    """The clerk loses the right to change rows after it has sent: the leader, a superuser, does not lend its own."""
    payer, payee = mailing.users(2)
    pay(clerk, payer, payee, deliver=False)
    for node in map(mailing.shards.node, mailing.shards.dsns):
        node.execute("REVOKE UPDATE ON orders FROM clerk")
    assert mailing.look().outcomes == {"waiting": 1}
    ((state, tries, reason),) = mailing.outbox(payer)
    assert (state, tries) == ("pending", 0), "it is not the message that is wrong"
    assert "permission denied" in str(reason)
    for node in map(mailing.shards.node, mailing.shards.dsns):
        node.execute("GRANT UPDATE ON orders TO clerk")
    mailing.look()
    assert mailing.book(payee) == (105, "x")


@pytest.mark.parametrize("deferrable", [False, True])
def test_code_that_a_message_sets_off_never_has_our_rights(mailing: Mailing, clerk: Router, deferrable: bool) -> None:
    """A trigger notes who it is, and tries to become the leader's role; a deferred one waits for the commit."""
    payer, payee = mailing.users(2)
    kind = "CONSTRAINT TRIGGER spy AFTER UPDATE ON orders DEFERRABLE INITIALLY DEFERRED" if deferrable else ""
    kind = kind or "TRIGGER spy AFTER UPDATE ON orders"
    for node in map(mailing.shards.node, mailing.shards.dsns):
        node.execute(
            """
            CREATE TABLE IF NOT EXISTS seen (who text);
            GRANT ALL ON seen TO PUBLIC;
            SET ROLE mallory;
            CREATE OR REPLACE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                BEGIN
                    PERFORM set_config('role', 'none', false);
                EXCEPTION WHEN OTHERS THEN
                END;
                SET CONSTRAINTS ALL DEFERRED;
                INSERT INTO public.seen VALUES (current_user);
                RETURN NULL;
            END $$;
            RESET ROLE;
            """
        )
        node.execute(f"CREATE {kind} FOR EACH ROW EXECUTE FUNCTION spy()".encode())
    try:
        with clerk.transaction("orders", payer) as connection:
            connection.send("orders", payee, "credit", {"amount": 5, "mark": "x"}, deliver=False)
        done = mailing.look()
        found = {str(row[0]) for row in mailing._all("SELECT who FROM seen")}
        refused = deferrable and mailing.shards.node(min(mailing.shards.dsns)).info.server_version < 180000
        assert done.outcomes == ({"waiting": 1} if refused else {"applied": 1})
        assert found == (set() if refused else {"clerk"})
        if refused:
            ((_, _, reason),) = mailing.outbox(payer)
            assert "would run with the balancer's rights" in str(reason)
    finally:
        for node in map(mailing.shards.node, mailing.shards.dsns):
            node.execute("DROP TRIGGER spy ON orders; DROP TABLE seen")
    mailing.look()
    assert mailing.book(payee) == (105, "x")


@pytest.mark.parametrize(
    "left", ["DECLARE c CURSOR WITH HOLD FOR SELECT evil.note()", "SET search_path TO evil, public"]
)
def test_what_a_message_leaves_in_the_session_never_has_our_rights(mailing: Mailing, clerk: Router, left: str) -> None:
    """A cursor is read when we commit; a path decides what is called before."""
    payer, payee = mailing.users(2)
    for node in map(mailing.shards.node, mailing.shards.dsns):
        node.execute(
            """
            CREATE SCHEMA evil AUTHORIZATION mallory;
            GRANT ALL ON SCHEMA evil TO PUBLIC;
            CREATE TABLE evil.seen (who text);
            GRANT ALL ON evil.seen TO PUBLIC;
            SET ROLE mallory;
            CREATE FUNCTION evil.note() RETURNS int LANGUAGE plpgsql AS
                $$ BEGIN INSERT INTO evil.seen VALUES (current_user); RETURN 0; END $$;
            CREATE VIEW evil.pg_trigger AS SELECT t.*, evil.note() FROM pg_catalog.pg_trigger t;
            RESET ROLE;
            """
        )
        node.execute(
            f"CREATE FUNCTION evil.spy() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN EXECUTE '{left}'; RETURN NULL; END $$;"
            " CREATE TRIGGER spy AFTER UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION evil.spy()"
        )
    try:
        with clerk.transaction("orders", payer) as connection:
            connection.send("orders", payee, "credit", {"amount": 5, "mark": "x"}, deliver=False)
        assert mailing.look().outcomes == {"applied": 1}
        assert mailing._all("SELECT who FROM evil.seen WHERE who <> 'clerk'") == []
    finally:
        for node in map(mailing.shards.node, mailing.shards.dsns):
            node.execute("DROP TRIGGER spy ON orders; DROP SCHEMA evil CASCADE")
    assert mailing.book(payee) == (105, "x")


def test_row_security_applies_to_what_a_message_does(mailing: Mailing, clerk: Router) -> None:
    payer, payee = mailing.users(2)
    for node in map(mailing.shards.node, mailing.shards.dsns):
        node.execute(
            f"ALTER TABLE orders ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON orders USING (user_id <> {payee})"
        )
    try:
        with clerk.transaction("orders", payer) as connection:
            connection.send("orders", payee, "credit", {"amount": 5, "mark": "x"}, deliver=False)
        assert mailing.look().outcomes == {"refused": 1}
    finally:
        for node in map(mailing.shards.node, mailing.shards.dsns):
            node.execute("DROP POLICY p ON orders; ALTER TABLE orders DISABLE ROW LEVEL SECURITY")
    mailing.look()
    assert mailing.book(payee) == (105, "x")
