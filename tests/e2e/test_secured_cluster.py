"""A cluster whose directory is closed under a running instance and a client, and then works for a while.

Afterwards every znode has the access list of its place: those of moves, a split, commands, a pause, plans, notes, ids.
"""

import json
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from balancer.client import Router
from balancer.directory.model import Layout, MigrationKind
from balancer.directory.notes import SAMPLES
from balancer.directory.open import open_directory
from balancer.embedded.postgres import PostgresServer
from balancer.embedded.zookeeper import ZooKeeperServer
from tests.support.commands import balancer_here
from tests.support.fleet import Fleet, owners, running, until
from tests.support.servers import Database
from tests.support.two_credentials import READER, WRITER, every_znode, wrong_lists

SECURITY = """
[directory_security]
user = "{user}"
password_file = "{folder}/writer"
reader_user = "{reader}"
reader_password_file = "{folder}/reader"
"""


@pytest.fixture
def open_fleet(
    tmp_path: Path,
    postgres18: PostgresServer,
    database: Callable[[PostgresServer], Database],
    zookeeper: ZooKeeperServer,
) -> Fleet:
    """Two nodes, a table that is all on one of them, and a directory that was made without credentials."""
    dsns = {name: database(postgres18).dsn for name in ("a", "b")}
    made = Fleet(tmp_path, f"zk://{zookeeper.address}/open-{uuid4().hex}", dsns, tablets=4)
    made.bundle |= {
        "tablet_balancer_config": "enable_cell_balancer = true",
        "placement": "dimensions = { tablets = 1.0 }",
        "migration": 'retire_grace = "100ms"\nmoves_per_node = 4\nmoves_total = 4\ncool_down = "0s"',
    }
    made.write("observe")
    made.create(["a"], rows=500)
    (tmp_path / "writer").write_text(WRITER.password)
    (tmp_path / "reader").write_text(WRITER.reader_password)
    config = made.write_daemon()
    config.write_text(
        config.read_text() + SECURITY.format(user=WRITER.user, reader=WRITER.reader_user, folder=tmp_path)
    )
    return made


def test_a_directory_is_closed_under_load_and_stays_closed_after_a_days_work(open_fleet: Fleet) -> None:
    fleet = open_fleet
    with running(fleet.config) as instance, Router.connect(fleet.url, credentials=READER) as router:
        until(instance.leads, 60, "an election")
        until(lambda: instance.metric("balancer_directory_open") == 1.0, 60, "the metric")
        assert "WARNING: everybody may read, write" in balancer_here("status", "--config", fleet.config).out
        (shown,) = json.loads(balancer_here("status", "--config", fleet.config, "-o", "json").out)
        assert shown["directory_open_to"]
        examined = balancer_here("doctor", "--config", fleet.config)
        assert examined.code == 1
        assert "everybody may" in " ".join(examined.out.split())
        told = json.loads(balancer_here("directory", "secure", "--dry-run", "-o", "json", "--config", fleet.config).out)
        assert 0 < told["changed"] <= told["parts"]
        assert told["dry_run"] is True
        secured = balancer_here("directory", "secure", "-o", "json", "--config", fleet.config)
        assert secured.code == 0, secured.err
        assert json.loads(secured.out)["open"] == []
        assert balancer_here("doctor", "--config", fleet.config).code == 0
        assert "WARNING: everybody" not in balancer_here("status", "--config", fleet.config).out
        _work(fleet, router)
        assert instance.leads()
    with open_directory(fleet.url, credentials=WRITER, create=False) as directory:
        places = {path.removeprefix(directory.paths.base).split("/")[1] for path in every_znode(directory)[1:]}  # type: ignore[attr-defined]
        print("walked:", len(every_znode(directory)), "znodes in", sorted(places))
        assert places >= {"ids", "notes", "pages", "log", "migrations", "commands", "tables", "pauses", "counters"}
        assert wrong_lists(directory) == []


def _work(fleet: Fleet, router: Router) -> None:
    """What a day brings: moves by the planner, a split by command, a pause, ids and samples."""
    with open_directory(fleet.url, credentials=WRITER, create=False) as directory:
        fleet.write("autonomous")
        until(lambda: min(owners(directory.snapshot()).values()) == 2, 120, "the balance")
        fleet.write("observe")
        until(lambda: all(one.finished for one in directory.snapshot().migrations.values()), 120, "the end of moves")
        table = directory.snapshot().table("orders")
        assert table.layout is Layout.HASH
        tablet = next(iter(directory.snapshot().tablets(table.id)))
        split = balancer_here("split", str(tablet.id), "--parts", "2", "--wait", "--config", fleet.config)
        assert split.code == 0, split.err
        assert balancer_here("pause", "shop", "--config", fleet.config).code == 0
        operations = {record.operation for record in directory.snapshot().migrations.values()}
        assert operations >= {MigrationKind.MOVE, MigrationKind.SPLIT}
        assert len({router.ids("orders").next() for _ in range(10)}) == 10
        assert router._sampler is not None
        for key in range(20):
            router._sampler.note("orders", key, 1.0, False)
        router._sampler.publish()
        assert directory.published(SAMPLES)


def test_a_readers_command_is_refused_in_one_sentence(open_fleet: Fleet) -> None:
    fleet = open_fleet
    assert balancer_here("directory", "secure", "--config", fleet.config).code == 0
    given = (("AUTH", "digest"), ("USER", READER.user), ("PASSWORD", READER.password))
    env = {f"BALANCER_DIRECTORY_{name}": value for name, value in given}
    assert balancer_here("status", "--directory", fleet.url, env=env).code == 0
    refused = balancer_here("pause", "shop", "--directory", fleet.url, env=env)
    assert refused.code == 4
    assert "they are a reader's" in refused.err
    assert len(refused.err.splitlines()) == 1
    assert READER.password not in refused.err + refused.out
