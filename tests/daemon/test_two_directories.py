"""A node of one directory cannot come into another: two leaders with epochs of their own would act on it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from balancer.clock import SystemClock
from balancer.daemon.daemon import Daemon
from balancer.directory.identity import made_identity
from balancer.embedded.postgres import PostgresServer
from balancer.errors import Refused
from balancer.nodes.schema.leader_transaction import node_command, node_transaction
from balancer.nodes.session.connection import Address
from tests.support.fleet import Fleet, until
from tests.support.opening import connect
from tests.support.servers import Database

pytestmark = pytest.mark.always


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


@pytest.fixture
def namesake(tmp_path: Path, fleet: Fleet, postgres18: PostgresServer) -> Fleet:
    """Another directory of the very same name, elsewhere, whose file names the first one's nodes."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    made = Fleet(folder, f"sqlite://{folder}/shop.db", dict(fleet.dsns))
    made.bundle |= dict(fleet.bundle)
    made.write_daemon()
    made.write("autonomous")
    return made


def led(fleet: Fleet) -> tuple[str, int]:
    """The identity of a directory and the epoch of its newest leader, who has resigned."""
    with fleet.directory() as directory:
        leadership = directory.campaign("test", 10.0)
        assert leadership is not None
        return made_identity("test", directory, leadership.epoch), leadership.epoch


def address(fleet: Fleet, identity: str) -> Address:
    return Address("a", fleet.dsns["a"], cluster="shop", identity=identity)


def test_a_directory_of_the_same_name_is_another_one(fleet: Fleet, namesake: Fleet) -> None:
    ours, epoch = led(fleet)
    theirs, _ = led(namesake)
    with connect(address(fleet, ours)) as connection, node_transaction(connection, epoch, "a"):
        pass
    before = state_of(fleet)
    with pytest.raises(Refused, match=f"of another directory, named shop as well .its identity is {ours}, ours is"):
        connect(address(fleet, theirs))
    daemon = Daemon(namesake.settings(), SystemClock())
    daemon.start()
    try:
        until(lambda: "shop" in daemon.states() and daemon.leading, 30, "a tick of a leader")
        until(lambda: "another directory, named shop as well" in str(daemon.states()["shop"].nodes), 30, "a sentence")
    finally:
        daemon.stop()
    assert state_of(fleet) == before


def test_who_comes_first_to_a_node_of_a_former_version_keeps_it(fleet: Fleet, namesake: Fleet) -> None:
    """Both were let in by the name alone, on connections that are still open: only one of them acts from then on."""
    ours, epoch = led(fleet)
    theirs, _ = led(namesake)
    with connect(address(fleet, ours)) as mine, connect(address(fleet, theirs)) as other:
        with node_transaction(mine, epoch, "a"):
            pass
        words = "node a belongs to another directory: cluster shop, identity"
        with pytest.raises(Refused, match=words), node_transaction(other, epoch + 50, "a"):
            raise AssertionError("it was let in")
        with pytest.raises(Refused, match=words), node_command(other, epoch + 50, "a"):
            raise AssertionError("it was let in")
        with node_transaction(mine, epoch, "a"):
            pass
