"""A table that a plain role owns on every node, and what that role may do before and after a migration of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
from psycopg import sql

from balancer.directory.model import Migration, MigrationMode
from balancer.features.repair.doctor import examine
from balancer.migration.begin import begin_move
from tests.support.cluster import Cluster, build, hash_table, hash_tablets
from tests.support.resharding import begin_split

Connection = psycopg.Connection[tuple[object, ...]]


@contextmanager
def plain_role(dsns: dict[str, str], *statements: str) -> Iterator[str]:
    """A role without any rights of its own, on every server, which has run these statements there."""
    role = f"r{uuid4().hex[:6]}"
    for dsn in dsns.values():
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {role}; GRANT ALL ON SCHEMA public TO {role}")
            run_as(connection, role, *statements)
    try:
        yield role
    finally:
        for dsn in dsns.values():
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


def run_as(connection: Connection, role: str, *statements: sql.Composed | str) -> None:
    """What the table's owner does, with its own rights."""
    connection.execute(f"SET ROLE {role}")
    for statement in statements:
        connection.execute(statement if isinstance(statement, sql.Composed) else statement.encode())
    connection.execute("RESET ROLE")


def rights(cluster: Cluster, role: str) -> list[tuple[object, ...]]:
    """What the role may do on each server, and which roles it is a member of."""
    found: list[tuple[object, ...]] = []
    for node in cluster.dsns:
        found += cluster.query(
            node,
            "SELECT rolsuper, rolcreaterole, rolcreatedb, rolreplication, rolbypassrls, rolcanlogin,"
            f" (SELECT count(*) FROM pg_auth_members WHERE member = r.oid) FROM pg_roles r WHERE rolname = '{role}'",
        )
    return found


def owned_cluster(folder: Path, dsns: dict[str, str], owner: str, *, columns: str, root: str) -> Cluster:
    """Two vbuckets on node a, in a table that the plain role owns on both nodes."""
    for dsn in dsns.values():
        with psycopg.connect(dsn, autocommit=True) as connection:
            run_as(connection, owner, f"CREATE TABLE {root} {columns} PARTITION BY HASH (id)")
    cluster = build(folder, dsns, hash_table((root,)), hash_tablets(2, ["a"]), columns=None)
    for (leaf,) in cluster.query(
        "a", f"SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = '{root}'::regclass"
    ):
        with cluster.connect("a") as connection:
            connection.execute(f"ALTER TABLE {leaf} OWNER TO {owner}".encode())
    return cluster


def move_or_split(cluster: Cluster, what: str, *, content: bool = True) -> Migration:
    """With `content`, nothing is found wrong afterwards."""
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    begun = (
        begin_split(directory, leadership, 2)
        if what == "split"
        else begin_move(directory, leadership, 2, "b", mode=MigrationMode(what))
    )
    done = cluster.runner(directory, leadership).run(begun.id)
    assert examine(directory, cluster.address) == [] or not content
    leadership.resign()
    return done
