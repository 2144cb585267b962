"""A node of one directory cannot come into another: two leaders with epochs of their own would act on it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from balancer.clock import SystemClock
from balancer.daemon.daemon import Daemon
from balancer.embedded.postgres import PostgresServer
from balancer.errors import Refused
from balancer.nodes.connection import Address
from tests.support.fleet import Fleet, until
from tests.support.opening import connect
from tests.support.servers import Database


@pytest.fixture
def mail(
    tmp_path: Path, fleet: Fleet, postgres18: PostgresServer, database: Callable[[PostgresServer], Database]
) -> Fleet:
    """A second directory: its own node c, and node a of the first one."""
    folder = tmp_path / "mail"
    folder.mkdir()
    made = Fleet(folder, f"sqlite://{folder}/mail.db", {"c": database(postgres18).dsn, "a": fleet.dsns["a"]}, tablets=2)
    made.bundle |= dict(fleet.bundle)
    made.write_daemon()
    made.write("autonomous")
    return made


def state_of(fleet: Fleet) -> list[tuple[object, ...]]:
    with connect(Address("a", fleet.dsns["a"])) as connection:
        return [
            *connection.execute("SELECT cluster, node, leader_epoch FROM balancer.node"),
            *connection.execute("SELECT id, epoch, state FROM balancer.tablet ORDER BY id"),
            *connection.execute("SELECT subname FROM pg_subscription"),
        ]


def test_a_table_is_not_made_on_a_node_of_another_directory(fleet: Fleet, mail: Fleet) -> None:
    before = state_of(fleet)
    with pytest.raises(Refused, match="this database is node a of cluster shop; it cannot be node a of mail"):
        mail.create(["c"])
    assert state_of(fleet) == before


def test_nothing_is_moved_to_a_node_of_another_directory(fleet: Fleet, mail: Fleet) -> None:
    before = state_of(fleet)
    alone = Fleet(mail.folder, mail.url, {"c": mail.dsns["c"]}, tablets=2)
    alone.create(["c"], rows=20)
    daemon = Daemon(mail.settings(), SystemClock())
    daemon.start()
    try:
        until(lambda: "shop" in daemon.states(), 30, "a tick")
        for _ in range(3):
            daemon.run_soon("shop")
            daemon.step()
        until(lambda: said(daemon), 30, "a sentence about it")
        print(said(daemon))
    finally:
        daemon.stop()
    assert state_of(fleet) == before


def said(daemon: Daemon) -> list[str]:
    state = daemon.states()["shop"]
    found = [text for node in state.nodes for text in node.disagreements]
    return [text for text in (state.sentence, *found) if "cluster shop" in text]
