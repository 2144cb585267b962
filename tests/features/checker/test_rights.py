"""Whose rights a check has: what an application's statement calls neither gets ours back nor writes anything."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import psycopg
import pytest

from balancer.features.checker.invariants import become_reader, number_of
from balancer.naming import Name
from balancer.nodes.session.connection import Address, Connection
from balancer.policies.check_options import CheckKind, CheckOptions, Invariant
from balancer.policies.checking import CheckRounds
from tests.support.checking import anomalies, checker_of, run_round
from tests.support.opening import connect
from tests.support.shards import Shards, user_of

ROLE = "checks_auditor"
NASTY = """
CREATE SCHEMA IF NOT EXISTS nasty AUTHORIZATION checks_auditor;
CREATE TABLE nasty.booty (who text);
GRANT ALL ON nasty.booty TO PUBLIC;
CREATE FUNCTION nasty.climb() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN PERFORM set_config('role', 'none', true); INSERT INTO nasty.booty VALUES (current_user); RETURN true; END $$;
CREATE FUNCTION nasty.steal() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN INSERT INTO nasty.booty VALUES (current_user); RETURN true; END $$;
CREATE FUNCTION nasty.reopen() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN PERFORM set_config('transaction_read_only', 'off', true); INSERT INTO nasty.booty VALUES (current_user);
RETURN true; END $$;
CREATE FUNCTION nasty.replace() RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE ours text;
BEGIN
    FOR ours IN SELECT name FROM pg_prepared_statements WHERE statement LIKE '%balancer_sum%' LOOP
        EXECUTE format('DEALLOCATE %I', ours);
        EXECUTE format('PREPARE %I (text) AS SELECT nasty.whoami()', ours);
    END LOOP;
    RETURN 0;
END $$;
CREATE FUNCTION nasty.whoami() RETURNS text LANGUAGE sql AS 'SELECT current_user::text';
"""


@pytest.fixture
def nodes(shards: Shards) -> Iterator[list[Connection]]:
    """Every node has the role, and functions of its own that want more."""
    found = [shards.node(name) for name in shards.dsns]
    for node in found:
        with suppress(psycopg.errors.DuplicateObject):
            node.execute(f"CREATE ROLE {ROLE}".encode())
        node.execute(f"GRANT pg_read_all_data TO {ROLE}".encode())
        node.execute(NASTY)
    yield found
    for node in found:
        node.execute("DROP SCHEMA nasty CASCADE")
        node.execute(f"REVOKE pg_read_all_data FROM {ROLE}".encode())
    for node in found:
        with suppress(psycopg.errors.UndefinedObject, psycopg.errors.DependentObjectsStillExist):
            node.execute(f"DROP ROLE {ROLE}".encode())


def asked(shards: Shards, statement: str, role: str = ROLE) -> CheckRounds:
    promise = Invariant("a promise", "orders", statement)
    options = CheckOptions(kinds=(CheckKind.INVARIANTS,), role=role, invariants=(promise,))
    with checker_of(shards, options) as checker:
        return run_round(checker)


def booty(nodes: list[Connection]) -> list[tuple[object, ...]]:
    return [row for node in nodes for row in node.execute("SELECT * FROM nasty.booty").fetchall()]


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("nasty.climb()", "cannot set parameter"),
        ("nasty.steal()", "read-only transaction"),
        ("nasty.reopen()", "must be set before any query"),
        ("pg_read_file('/etc/passwd') IS NOT NULL", "permission denied"),
    ],
)
def test_what_a_statement_calls_can_neither_climb_nor_write(
    shards: Shards, nodes: list[Connection], call: str, why: str
) -> None:
    book = asked(shards, f"SELECT n FROM {{orders}} WHERE {call}")
    assert anomalies(book) == []
    assert book.round is not None
    assert why in book.round.why[0]
    assert booty(nodes) == []


def test_a_statement_runs_as_the_role(shards: Shards, nodes: list[Connection]) -> None:
    book = asked(shards, "SELECT nasty.whoami() FROM (SELECT FROM {orders} LIMIT 1) AS one")
    assert all(f"({ROLE})" in one.text for one in anomalies(book))
    assert len(anomalies(book)) == 8
    assert nodes


def test_what_a_statement_prepares_in_the_place_of_ours_is_not_run(shards: Shards, nodes: list[Connection]) -> None:
    """The driver prepares what is sent often, as the sum over many tablets at one moment is."""
    address = Address("a", next(iter(shards.dsns.values())))
    with connect(address) as connection, connection.transaction(), connection.cursor() as cursor:
        become_reader(cursor, ROLE, Name("public", "orders"), 5.0, trusted=False)
        assert {number_of(cursor, "SELECT nasty.replace()") for _ in range(8)} == {"0"}
    assert nodes


@pytest.mark.parametrize(
    "statement", ["SELECT 1 FROM {orders}; DROP TABLE {orders}", "DELETE FROM {orders} RETURNING n"]
)
def test_it_is_one_statement_that_reads(shards: Shards, nodes: list[Connection], statement: str) -> None:
    before = shards.count()
    book = asked(shards, statement)
    assert book.round is not None
    assert len(book.round.unchecked["invariants"]) == 8, book.round.why
    assert shards.count() == before
    assert nodes


def test_a_superusers_rights_are_not_lent(shards: Shards) -> None:
    book = asked(shards, "SELECT n FROM {orders} WHERE false", role="")
    assert book.round is not None
    assert "with the rights of postgres, which is a superuser: name another as role under [checks]" in book.round.why[0]


def test_rows_that_a_policy_hides_are_not_taken_to_be_sound(shards: Shards, nodes: list[Connection]) -> None:
    _secure_leaves(nodes, "ENABLE")
    book = asked(shards, "SELECT n FROM {orders}")
    _secure_leaves(nodes, "DISABLE")
    assert book.round is not None
    assert len(book.round.unchecked["invariants"]) == 8
    assert "row-level security" in book.round.why[0]


def _secure_leaves(nodes: list[Connection], word: str) -> None:
    mine = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'orders'::regclass"
    for node in nodes:
        for (leaf,) in node.execute(mine).fetchall():
            node.execute(f"ALTER TABLE {leaf} {word} ROW LEVEL SECURITY".encode())


def test_code_of_a_tables_owner_is_not_run_by_reading_its_rows(shards: Shards, nodes: list[Connection]) -> None:
    """An index expression is folded by whoever plans a query: the checker refuses to, and says so."""
    tablet = shards.tablet(1)
    node, leaf = shards.node(tablet.node), "orders_t1"
    node.execute(
        f"CREATE FUNCTION nasty.twice(bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT $1 * 2';"
        f" ALTER FUNCTION nasty.twice(bigint) OWNER TO {ROLE}; CREATE INDEX owners ON {leaf} (nasty.twice(n))".encode()
    )
    options = CheckOptions(kinds=(CheckKind.BOUNDS,))
    try:
        with checker_of(shards, options) as checker:
            book = run_round(checker)
        assert book.round is not None
        assert book.round.unchecked == {"bounds": (1,)}
        assert "nasty.twice(bigint), which would run with the balancer's rights" in book.round.why[0]
        with checker_of(shards, replace(options), trusted=True) as checker:
            trusting = run_round(checker).round
        assert trusting is not None
        assert trusting.why == ()
    finally:
        node.execute("DROP INDEX owners")
    assert nodes
    assert user_of(shards, 1)
