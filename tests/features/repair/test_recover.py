"""The directory was lost and an old export imported: it learns from the nodes who owns what."""

import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from balancer.directory.identity import counter_of_identity
from balancer.directory.model import Put, Transaction
from balancer.embedded.postgres import PostgresServer
from balancer.errors import Fenced
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.session.connection import Address, connect
from tests.daemon.conftest import directory as directory
from tests.daemon.conftest import small_fleet
from tests.daemon.test_daemon import instance
from tests.support.commands import Result, balancer_here
from tests.support.fleet import Fleet, until
from tests.support.servers import new_database


def say(fleet: Fleet, *words: str) -> Result:
    return balancer_here(*words, "--config", fleet.config)


def lose_directory(fleet: Fleet, exported: Path) -> None:
    file = Path(fleet.url.removeprefix("sqlite://"))
    for part in file.parent.glob(f"{file.name}*"):
        part.unlink()
    assert say(fleet, "directory", "import", str(exported)).code == 0


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory, postgres18: PostgresServer) -> Iterator[tuple[Fleet, Path]]:
    """An instance's files and nodes, and an export: since then four tablets have moved, one was split, and leaders
    have changed."""
    folder = tmp_path_factory.mktemp("recover")
    with new_database(postgres18) as first, new_database(postgres18) as second:
        fleet = small_fleet(folder, {"a": first.dsn, "b": second.dsn})
        exported = folder / "export.json"
        assert say(fleet, "directory", "export", str(exported)).code == 0
        with instance(fleet) as running:
            until(lambda: running.owners() == {"a": 4, "b": 4}, 60, "the balance")
        fleet.write("observe")
        for _ in range(2):
            with instance(fleet) as running:
                until(running.leads, 30, "a leader")
        with instance(fleet) as running:
            until(running.leads, 30, "a leader")
            running.give("split", tablet=8)
            until(lambda: sum(running.owners().values()) == 9, 60, "the split")
            records = running.daemon.follower
            until(lambda: all(m.finished for m in records().snapshot.migrations.values()), 60, "its end")
        yield fleet, exported


@pytest.fixture
def restored(lost: tuple[Fleet, Path]) -> Iterator[Fleet]:
    """The directory as it was exported; what a test does to the records on node b is undone."""
    fleet, exported = lost
    lose_directory(fleet, exported)
    with psycopg.connect(fleet.dsns["b"], autocommit=True) as connection:
        for table in ("tablet", "node"):
            connection.execute(f"CREATE TEMP TABLE kept_{table} AS TABLE balancer.{table}".encode())
        yield fleet
        for table in ("tablet", "node"):
            put_back = f"DELETE FROM balancer.{table}; INSERT INTO balancer.{table} TABLE kept_{table}"
            connection.execute(put_back.encode())


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (
            (
                "INSERT INTO balancer.tablet (id, epoch, state, schemas, partitions)"
                " SELECT 3, 1, 'owned', schemas, partitions FROM balancer.tablet WHERE state = 'owned' LIMIT 1"
            ),
            "nodes a and b both own tablet 3 with epoch 1",
        ),
        ("DELETE FROM balancer.tablet WHERE id = 4", "table orders leaves a gap"),
        ("UPDATE balancer.node SET node = 'x'", "the database of node b is node x of cluster"),
        ("UPDATE balancer.tablet SET state = 'owned', epoch = 9 WHERE id = (SELECT max(id) FROM balancer.tablet)", ""),
    ],
)
def test_what_is_in_doubt_is_refused(restored: Fleet, statement: str, why: str) -> None:
    with psycopg.connect(restored.dsns["b"], autocommit=True) as connection:
        connection.execute(statement.encode())
    done = say(restored, "directory", "recover")
    if why:
        assert (done.code, why in done.err) == (4, True), done
        assert say(restored, "directory", "recover", "--dry-run").code == 4
    else:
        assert done.code == 0


def test_it_does_nothing_while_somebody_leads(restored: Fleet) -> None:
    with psycopg.connect(restored.dsns["b"]) as connection, restored.directory() as directory:
        (identity,) = connection.execute("SELECT identity FROM balancer.node").fetchone() or ("",)
        change = Put(counter_of_identity(identity))
        directory.commit(Transaction((change,), directory.snapshot().version, "as a newer export has it", "test"))
    restored.write("observe")
    with instance(restored) as running:
        until(running.leads, 30, "a leader")
        done = say(restored, "directory", "recover")
        assert (done.code, "leads: stop the daemons first" in done.err) == (4, True)


def leader_epochs(fleet: Fleet) -> set[int]:
    """What the nodes have seen."""
    found: set[int] = set()
    for dsn in fleet.dsns.values():
        with psycopg.connect(dsn) as connection:
            found.update(row[0] for row in connection.execute("SELECT leader_epoch FROM balancer.node"))
    return found


def test_it_learns_from_the_nodes_and_goes_on(restored: Fleet) -> None:
    """The last one here: what it does cannot be undone."""
    shown = say(restored, "directory", "recover", "--dry-run", "-o", "json")
    assert shown.code == 0, shown.err
    words = json.loads(shown.out)["changes"]
    assert len([one for one in words if "(epoch 2), not a" in one]) == 4
    assert [one for one in words if one.startswith("tablet 8")] == ["tablet 8 of orders is gone: split or merged"]
    assert len([one for one in words if "is new" in one]) == 2
    assert words[0].startswith("the directory is the one that the nodes know: its identity is ")
    assert words[1] == "node b has come since"
    assert say(restored, "verify", "orders").code == 1  # nothing was changed
    seen = max(leader_epochs(restored))
    done = say(restored, "directory", "recover")
    assert (done.code, done.out.splitlines()[-1]) == (0, "9 changes taken over from the nodes")
    with restored.directory() as directory:  # a leader that still follows the lost directory is shut out at once
        assert leader_epochs(restored) == {directory.snapshot().epoch}
    # So is one that was elected there and had not spoken to a node yet: its epoch is above all that nodes had seen.
    node_a = Address("a", restored.dsns["a"])
    with connect(node_a) as connection, pytest.raises(Fenced), node_transaction(connection, seen + 3, "a"):
        pass
    assert say(restored, "verify", "orders").code == 0
    assert say(restored, "doctor").code == 0
    assert "nothing was changed" in say(restored, "directory", "recover").out
    with instance(restored) as running:
        # Its epoch is above what the nodes have seen, so it can act; ids of tablets are not given a second time.
        assert "split of tablet 1 starts" in running.give("split", tablet=1)
        until(lambda: sum(running.owners().values()) == 10, 60, "the split")
        ids = {tablet.id for tablet in running.daemon.follower().snapshot.tablets(1)}
        assert max(ids) >= 12
    assert say(restored, "verify", "orders").code == 0
    rows = 0
    for dsn in restored.dsns.values():
        with psycopg.connect(dsn) as connection:
            rows += (connection.execute("SELECT count(*) FROM orders").fetchone() or (0,))[0]
    assert rows == len(restored.present)
