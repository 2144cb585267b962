"""Writers by the name of a new partition, before it is anybody's: refused, since the copy may yet be thrown away."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import psycopg
import pytest

from balancer.directory.model import Migration, MigrationMode
from tests.support.cluster import AMPLE, Cluster
from tests.support.directed import complaints, move, split
from tests.support.owned import plain_role

pytestmark = pytest.mark.always

GRANTS = "GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA public TO {}"
INCOMING = "SELECT partitions[1] FROM balancer.tablet WHERE state = 'incoming' ORDER BY id"
WAYS: Mapping[str, tuple[Callable[..., Migration], str]] = {"move": (move, "b"), "split": (split, "a")}


def on_every_node(cluster: Cluster, statement: str) -> None:
    for node in cluster.dsns:
        with cluster.connect(node) as connection:
            connection.execute(statement.encode())


def refusal(way: str, point: str) -> str:
    """Until there is a guard, nobody has any rights."""
    return "40001" if way == "move" and point != "left:preparing" else "42501"


@pytest.mark.parametrize("point", ["left:preparing", "left:copying", "left:verifying"])
@pytest.mark.parametrize("mode", list(MigrationMode))
@pytest.mark.parametrize("way", WAYS)
def test_who_may_write_to_a_partition_may_not_write_to_its_copy(
    cluster: Cluster, way: str, mode: MigrationMode, point: str
) -> None:
    migrate, node = WAYS[way]
    cluster.settings = replace(cluster.settings, **AMPLE)
    with plain_role(cluster.dsns) as role:
        on_every_node(cluster, GRANTS.format(role))
        answers: list[str | None] = []

        def write() -> None:
            name = cluster.query(node, INCOMING)[0][0]
            with cluster.connect(node) as connection:
                connection.execute(f"SET ROLE {role}".encode())
                for statement in (f"INSERT INTO {name} (id) VALUES (5000)", f"DELETE FROM {name}", f"TRUNCATE {name}"):
                    try:
                        connection.execute(statement.encode())
                    except psycopg.Error as error:
                        answers.append(error.sqlstate)
                    else:
                        answers.append(None)

        done = migrate(cluster, {point: write}, mode)
        assert answers == [refusal(way, point)] * 3
        assert (done.state, done.error) == ("done", "")
        assert sum(map(len, cluster.rows().values())) == 1000
        assert complaints(cluster) == []
        with cluster.connect(node) as connection:
            connection.execute(f"SET ROLE {role}".encode())
            name = "orders_t2" if way == "move" else "orders_t1000"
            assert connection.execute(f"UPDATE {name} SET n = n + 1".encode()).rowcount > 0


DEFAULTS = "ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON TABLES TO {}, PUBLIC"
RIGHTS = """
    SELECT DISTINCT g.privilege_type FROM pg_class c, aclexplode(c.relacl) g
    WHERE c.oid = to_regclass('{}') AND g.grantee <> c.relowner
"""


@pytest.mark.parametrize("mode", list(MigrationMode))
@pytest.mark.parametrize("way", WAYS)
def test_what_every_new_table_gives_to_others_is_not_given_by_a_partition(
    cluster: Cluster, way: str, mode: MigrationMode
) -> None:
    """It would go past the grants and policies of the root, and to a copy that nobody may write to."""
    migrate, node = WAYS[way]
    cluster.settings = replace(cluster.settings, **AMPLE)
    with plain_role(cluster.dsns) as role:
        on_every_node(cluster, DEFAULTS.format(role))
        found: list[object] = []

        def look() -> None:
            name = cluster.query(node, INCOMING)[0][0]
            found.extend(cluster.query(node, RIGHTS.format(name)))

        done = migrate(cluster, {"left:preparing": look}, mode)
        assert (done.state, done.error) == ("done", "")
        name = "orders_t2" if way == "move" else "orders_t1000"
        assert (found, cluster.query(node, RIGHTS.format(name))) == ([], [])
