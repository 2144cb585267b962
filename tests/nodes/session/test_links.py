"""Sessions for long statements are lent again within a state: as new ones begin, and never after an error."""

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from balancer.errors import BalancerError
from balancer.nodes.session.connection import Connection
from balancer.nodes.session.holder import NodeSessions
from tests.migration.conftest import database as database
from tests.support.cluster import Cluster
from tests.support.waiting import surely


@pytest.fixture
def links(cluster: Cluster) -> Iterator[NodeSessions]:
    with closing(NodeSessions(cluster.address, "test", kept=1)) as made:
        yield made


def test_a_session_is_lent_again_and_is_as_a_new_one(links: NodeSessions) -> None:
    with links.data("a") as first:
        pid, new = _pid(first), _settings(first)
        first.execute("SELECT set_config('idle_in_transaction_session_timeout', '6h', false), pg_advisory_lock(7)")
        first.execute("SET jit TO on; SET search_path TO public; SET max_parallel_maintenance_workers TO 0")
        first.execute("BEGIN; CREATE TABLE public.left_open ()")
    with links.data("a") as second:
        assert _pid(second) == pid
        assert _settings(second) == new
        row = second.execute("SELECT to_regclass('public.left_open'), pg_try_advisory_lock(7)").fetchone()
        assert row == (None, True)
        assert second.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (1,)


def test_two_at_once_are_two_and_only_so_many_are_kept(links: NodeSessions, cluster: Cluster) -> None:
    with links.data("a") as one, links.data("a") as other:
        assert _pid(one) != _pid(other)
    assert surely(lambda: _sessions(cluster) == 1, 10)
    links.rest()
    assert surely(lambda: _sessions(cluster) == 0, 10)


def test_after_an_error_it_is_closed(links: NodeSessions, cluster: Cluster) -> None:
    with pytest.raises(BalancerError), links.data("a") as connection:
        connection.execute("SELECT 1 / 0")
    assert surely(lambda: _sessions(cluster) == 0, 10)


def test_one_that_was_ended_meanwhile_is_not_lent(links: NodeSessions, cluster: Cluster) -> None:
    with links.data("a") as connection:
        ended = _pid(connection)
    cluster.query("a", f"SELECT pg_terminate_backend({ended}, 10000)")
    with links.data("a") as connection:
        assert _pid(connection) != ended


def test_nothing_is_lent_on_a_schema_that_became_somebody_elses(links: NodeSessions, cluster: Cluster) -> None:
    with links.data("a"):
        pass
    with cluster.connect("a") as other:
        other.execute("CREATE ROLE links_thief")
        try:
            other.execute("ALTER SCHEMA balancer OWNER TO links_thief")
            with pytest.raises(BalancerError, match="belongs to links_thief"), links.data("a"):
                pass
        finally:
            other.execute("REASSIGN OWNED BY links_thief TO CURRENT_USER; DROP OWNED BY links_thief")
            other.execute("DROP ROLE links_thief")


def test_where_the_node_is_elsewhere_now_a_new_one_is_opened(cluster: Cluster) -> None:
    places = {"a": cluster.address("a")}
    with closing(NodeSessions(places.__getitem__, "test", kept=1)) as links:
        with links.data("a") as connection:
            here = connection.info.dbname
        places["a"] = cluster.address("b")
        with links.data("a") as connection:
            assert connection.info.dbname != here


def test_nothing_is_kept_unless_it_was_asked_for(cluster: Cluster) -> None:
    with closing(NodeSessions(cluster.address, "test")) as links:
        with links.data("a") as connection:
            pid = _pid(connection)
        with links.data("a") as connection:
            assert _pid(connection) != pid


def test_a_predecessors_sessions_are_ended_and_what_is_kept_with_them(links: NodeSessions, cluster: Cluster) -> None:
    with closing(NodeSessions(cluster.address, "test")) as before, before.data("a") as hanging:
        with links.data("a"):
            pass
        links.evict("a", 10)
        with pytest.raises(psycopg.OperationalError):
            hanging.execute("SELECT 1")
        with links.data("a") as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def _pid(connection: Connection) -> int:
    return connection.info.backend_pid


def _settings(connection: Connection) -> list[tuple[object, ...]]:
    """Without those of a language, which are there from its first use on."""
    return connection.execute("SELECT name, setting FROM pg_settings WHERE name NOT LIKE 'plpgsql.%'").fetchall()


def _sessions(cluster: Cluster) -> int:
    ((count,),) = cluster.query(
        "a",
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tablet-balancer migration test'"
        " AND datname = current_database()",
    )
    return int(str(count))
