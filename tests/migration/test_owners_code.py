"""Code of a table's owner does not run with the balancer's rights: what would bring it along is refused by name."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from balancer.directory.model import Migration, MigrationMode
from balancer.migration.begin import begin_move
from balancer.migration.machine import State
from balancer.migration.progress import Observer
from tests.support.cluster import Cluster
from tests.support.owned import move_or_split, owned_cluster, plain_role, rights, run_as
from tests.support.sampling import crossed

pytestmark = pytest.mark.always

SPY = """
CREATE TABLE public.seen (who name); GRANT INSERT, SELECT ON public.seen TO PUBLIC;
CREATE FUNCTION public.write_down() RETURNS void LANGUAGE sql VOLATILE AS
    $$INSERT INTO public.seen VALUES (current_user)$$;
CREATE FUNCTION public.spy(bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS
    $$BEGIN PERFORM public.write_down(); RETURN $1; EXCEPTION WHEN read_only_sql_transaction THEN RETURN $1; END$$;
CREATE DOMAIN public.spied AS bigint CHECK (public.spy(VALUE) = VALUE);
CREATE DOMAIN public.harmless AS bigint CHECK (VALUE > -1);
CREATE TYPE public.pair AS (one bigint, other public.spied);
CREATE TYPE public.mood AS ENUM ('good', 'bad');
CREATE FUNCTION public.say(public.mood) RETURNS text LANGUAGE plpgsql IMMUTABLE AS
    $$BEGIN PERFORM public.write_down(); RETURN 'x'; EXCEPTION WHEN read_only_sql_transaction THEN RETURN 'x'; END$$;
CREATE OPERATOR public.### (RIGHTARG = bigint, FUNCTION = public.spy);
"""

UNSAFE = {
    "check": ("n bigint CHECK (public.spy(n) = n)", "function public.spy(bigint)"),
    "generated": ("n bigint, g bigint GENERATED ALWAYS AS (public.spy(n)) STORED", "function public.spy(bigint)"),
    "operator": ("n bigint CHECK ((OPERATOR(public.###) n) = n)", "operator public.###"),
    "domain": ("n public.spied", "domain public.spied"),
    "domain that may change": ("n public.harmless", "domain public.harmless"),
    "array of domains": ("n bigint, d public.spied[]", "domain public.spied"),
    "composite": ("n bigint, d public.pair", "domain public.spied"),
    "query in a check": (
        "n bigint CHECK (ts_rewrite('a', 'SELECT ''a''::tsquery, ''b''::tsquery WHERE public.spy(1) = 1') <> 'c')",
        "function ts_rewrite",
    ),
    "large object": ("n bigint CHECK (lo_creat(-1) > 0)", "function lo_creat"),
}


@pytest.fixture(params=["15 to 18", "18 to 15"])
def dsns(request: pytest.FixtureRequest, pair: dict[str, str]) -> dict[str, str]:
    """Node a owns the tablets; each version is the source once and the target once."""
    return pair if request.param == "15 to 18" else {"a": pair["b"], "b": pair["a"]}


@pytest.fixture
def owner(dsns: dict[str, str]) -> Iterator[str]:
    with plain_role(dsns, SPY) as role:
        yield role


def prepared(folder: Path, dsns: dict[str, str], owner: str, column: str, *statements: str) -> Cluster:
    columns = f"(id bigint NOT NULL, {column}, PRIMARY KEY (id))"
    cluster = owned_cluster(folder, dsns, owner, columns=columns, root="public.orders")
    for node in cluster.dsns:
        with cluster.connect(node) as connection:
            run_as(connection, owner, *statements)
    with cluster.connect("a") as connection:
        run_as(connection, owner, "INSERT INTO public.orders (id, n) SELECT i, i FROM generate_series(1, 50) i")
        connection.execute("TRUNCATE public.seen")
    return cluster


def seen(cluster: Cluster) -> set[object]:
    return {who for node in cluster.dsns for (who,) in cluster.query(node, "SELECT who FROM public.seen")}


@pytest.mark.parametrize(("case", "what"), crossed(list(UNSAFE), ["replicate", "split"], 1, "unsafe"))
def test_what_would_run_the_owners_code_is_refused_by_name(
    tmp_path: Path, dsns: dict[str, str], owner: str, case: str, what: str
) -> None:
    column, named = UNSAFE[case]
    cluster = prepared(tmp_path, dsns, owner, column)
    before = rights(cluster, owner)
    done = move_or_split(cluster, what, content=False)
    assert seen(cluster) <= {owner}
    assert done.state != "done"
    assert named in done.error
    assert "trust_table_owners" in done.error
    assert rights(cluster, owner) == before
    cluster.close()


@pytest.mark.parametrize("what", ["replicate", "read-only", "split"])
@pytest.mark.parametrize(
    "statement",
    [
        "CREATE INDEX ON public.orders (public.spy(n))",
        "CREATE INDEX ON public.orders (n) WHERE public.spy(1) = 1",
        "CREATE STATISTICS public.s ON (public.spy(n)), id FROM public.orders_t2",
    ],
    ids=["index", "predicate", "statistics"],
)
def test_indexes_and_statistics_are_looked_at_too(
    tmp_path: Path, dsns: dict[str, str], owner: str, statement: str, what: str
) -> None:
    cluster = prepared(tmp_path, dsns, owner, "n bigint")
    with cluster.connect("a") as connection:
        run_as(connection, owner, statement)
    if "INDEX" in statement:
        with cluster.connect("b") as connection:
            run_as(connection, owner, statement)
    done = move_or_split(cluster, what, content=False)
    assert seen(cluster) <= {owner}
    assert "function public.spy(bigint)" in done.error
    cluster.close()


def test_a_cast_that_our_checksums_would_call_is_refused(tmp_path: Path, dsns: dict[str, str], owner: str) -> None:
    cluster = prepared(tmp_path, dsns, owner, "n bigint, m public.mood DEFAULT 'good'")
    for node in cluster.dsns:
        with cluster.connect(node) as connection:
            run_as(connection, owner, "CREATE CAST (public.mood AS text) WITH FUNCTION public.say(public.mood)")
    done = move_or_split(cluster, "replicate", content=False)
    assert seen(cluster) <= {owner}
    assert "function public.say(public.mood)" in done.error
    cluster.close()


@pytest.mark.parametrize("what", ["replicate", "split"])
def test_ordinary_expressions_of_built_in_functions_are_carried(
    tmp_path: Path, dsns: dict[str, str], owner: str, what: str
) -> None:
    column = (
        "n bigint CHECK (n > 0 AND n::text ~ '^[0-9]+$'), made timestamptz DEFAULT now() CHECK (made < '2999-01-01'),"
        " note text DEFAULT lower('A') CHECK (length(note) < 9), m public.mood DEFAULT 'good' CHECK (m <> 'bad'),"
        " twice bigint GENERATED ALWAYS AS (n * 2) STORED, js jsonb DEFAULT '{}' CHECK (jsonb_typeof(js) = 'object')"
    )
    cluster = prepared(tmp_path, dsns, owner, column, "CREATE INDEX ON public.orders (lower(note)) WHERE n > 3")
    done = move_or_split(cluster, what)
    assert (done.state, done.error) == ("done", "")
    cluster.close()


def test_an_owner_who_is_trusted_is_not_refused(tmp_path: Path, dsns: dict[str, str], owner: str) -> None:
    cluster = prepared(tmp_path, dsns, owner, UNSAFE["check"][0])
    cluster.settings = replace(cluster.settings, trust_table_owners=True)
    done = move_or_split(cluster, "read-only")
    assert (done.state, done.error) == ("done", "")
    cluster.close()


def test_functions_of_a_superuser_are_nobodys_to_change(tmp_path: Path, dsns: dict[str, str], owner: str) -> None:
    cluster = prepared(tmp_path, dsns, owner, UNSAFE["check"][0])
    for node in cluster.dsns:
        with cluster.connect(node) as connection:
            connection.execute("ALTER FUNCTION public.spy(bigint) OWNER TO CURRENT_USER")
    done = move_or_split(cluster, "read-only")
    assert (done.state, done.error) == ("done", "")
    cluster.close()


class Intruder(Observer):
    """The table's owner, who tries to add a check to the new partition after each state of the move."""

    def __init__(self, cluster: Cluster, owner: str) -> None:
        self._cluster = cluster
        self._owner = owner
        self.answers: dict[State, str] = {}

    def left(self, migration: Migration, state: State) -> None:
        with self._cluster.connect("b") as connection:
            connection.execute(f"SET ROLE {self._owner}; SET lock_timeout TO '100ms'".encode())
            try:
                connection.execute("ALTER TABLE public.orders_t2 ADD CHECK (public.spy(n) = n) NOT VALID")
            except psycopg.Error as error:
                self.answers[state] = error.diag.message_primary or ""
            else:
                self.answers[state] = "done"


def test_nobody_else_can_change_a_partition_that_is_being_filled(
    tmp_path: Path, dsns: dict[str, str], owner: str
) -> None:
    cluster = prepared(tmp_path, dsns, owner, "n bigint")
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    intruder = Intruder(cluster, owner)
    begun = begin_move(directory, leadership, 2, "b", mode=MigrationMode.REPLICATE)
    cluster.runner(directory, leadership, intruder).run(begun.id)
    leadership.resign()
    for state in (State.PREPARING, State.COPYING, State.CATCHING_UP, State.DRAINING):
        assert intruder.answers[state] == "must be owner of table orders_t2"
    assert seen(cluster) <= {owner}
    assert cluster.query("b", "SELECT pg_get_userbyid(relowner) FROM pg_class WHERE relname = 'orders_t2'") == [
        (owner,)
    ]
    cluster.close()
