"""What a dead migration has left on a node is counted; what a running one uses is not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from balancer.daemon.housekeeping import LeftoverWatch
from balancer.directory.model import Put
from balancer.directory.open import open_directory
from balancer.embedded.postgres import PostgresServer
from balancer.errors import Unavailable
from balancer.instruments import Instruments
from balancer.nodes.schema.install import install_schema
from balancer.nodes.session.connection import Address
from balancer.nodes.tablets.object_names import stream_name
from balancer.planner.metrics import Reporter
from tests.support.directories import fill, migration, transaction
from tests.support.opening import connect
from tests.support.servers import Database


def test_orphans_are_counted_and_running_migrations_are_not(
    postgres18: PostgresServer, database: Callable[[PostgresServer], Database], tmp_path: Path
) -> None:
    node, instruments = database(postgres18), Instruments()

    def address(name: str) -> Address:
        if name == "pg-b":
            raise Unavailable("node pg-b is not in the configuration")
        return Address(name, node.dsn)

    def count(name: str) -> float | None:
        return instruments.registry.get_sample_value("balancer_leftovers", {"bundle": "shop", "node": name})

    with (
        open_directory(f"sqlite://{tmp_path}/directory.db") as directory,
        connect(address("pg-a"), purpose="test") as connection,
    ):
        snapshot = fill(directory)
        watch = LeftoverWatch(directory.snapshot, address, Reporter(instruments))
        watch.look("shop", ["pg-a", "pg-b"])
        assert (count("pg-a"), count("pg-b")) == (0, None)
        install_schema(connection, "shop", "pg-a")
        running = replace(migration(snapshot.tablet(1), "pg-b", "copying"), id="m1live")
        directory.commit(transaction([Put(running)], snapshot.version))
        connection.execute(f"CREATE PUBLICATION {stream_name(running.id)}")
        watch.look("shop", ["pg-a"])
        assert count("pg-a") == 0
        connection.execute(f"CREATE PUBLICATION {stream_name('m0dead')}")
        watch.look("shop", ["pg-a"])
        assert count("pg-a") == 1
        ended = replace(running, state="done", finished=True)
        directory.commit(transaction([Put(ended)], directory.snapshot().version))
        watch.look("shop", ["pg-a"])
        assert count("pg-a") == 2
