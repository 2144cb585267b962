"""`balancer table import`, as a user calls it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from balancer.directory.open import open_directory
from balancer.embedded.postgres import PostgresServer
from balancer.features.import_tables.record import imports_in
from tests.support.running import DAEMON, Running, quiet_logs
from tests.support.self_sharded import TABLETS, importer, make_tables
from tests.support.servers import new_database

TABLE = """
[migration]
write_pause_budget = "5s"
fence_deadline = "10s"
lock_timeout = "1s"

[tables.orders]
roots = ["public.orders"]
layout = "hash"
key = ["id"]
tablets = 4
"""


@pytest.fixture
def running(tmp_path: Path, postgres15: PostgresServer, postgres18: PostgresServer) -> Iterator[Running]:
    with (
        quiet_logs(),
        new_database(postgres15) as a,
        new_database(postgres18) as b,
        new_database(postgres15) as c,
    ):
        made = Running(tmp_path, {"a": a, "b": b, "c": c})
        make_tables({name: one.dsn for name, one in made.databases.items()}, 30)
        (tmp_path / "bundles").mkdir()
        made.config.write_text(DAEMON.format(folder=tmp_path, instance="none"))
        nodes = "".join(f"[nodes.{name}]\ndsn = '{one.dsn}'\n" for name, one in made.databases.items())
        (tmp_path / "bundles" / "shop.toml").write_text(nodes + TABLE)
        yield made


def test_an_import_is_shown_done_and_released(running: Running) -> None:
    shown = json.loads(running.balancer("table", "import", "shop", "orders", "--dry-run", "-o", "json").out)
    assert shown == {
        "table": "orders",
        "sources": ["a", "b", "c"],
        "nodes_without": [],
        "tablets": {"a": 1, "b": 2, "c": 1},
        "old_tables": ["public.orders_before_import"],
    }
    assert running.balancer("table", "import", "shop", "orders", "--cancel").err.endswith("to cancel\n")
    assert running.balancer("table", "import", "shop", "orders", "--cancel", "--dry-run").code == 2
    done = running.balancer("table", "import", "shop", "orders")
    assert done.code == 0, done.err
    assert done.out.startswith("imported table orders with 4 tablets and 30 rows; writers were refused for ")
    assert running.rows("orders") == list(range(1, 31))
    again = running.balancer("table", "import", "shop", "orders")
    assert (again.code, "is in the directory already" in again.err) == (4, True)
    said = "the old tables of orders would be dropped: 10 rows on a, 10 rows on b, 10 rows on c\n"
    assert running.balancer("table", "import", "shop", "orders", "--release", "--dry-run").out == said
    assert running.balancer("table", "import", "shop", "orders", "--release").out.startswith(
        "the old tables of orders are"
    )
    assert running.rows("orders") == list(range(1, 31))


def test_an_import_that_was_interrupted_is_named(running: Running) -> None:
    request = ("table", "import", "shop", "orders")
    dsns = {name: one.dsn for name, one in running.databases.items()}
    with open_directory(f"sqlite://{running.config.parent}/directory.db") as directory:
        stopped = importer(directory, dsns, _stop_at("seal b"))
        with stopped as work, pytest.raises(Stopped):
            work.run(TABLETS, ())
        found = running.balancer("doctor", "-o", "json")
        [finding] = [
            row for row in json.loads(found.out) if row["node"] == "(directory)" and "import" in row["finding"]
        ]
        assert finding["finding"] == (
            "the import of table orders has not ended (sealing): it runs, or was interrupted; writers of its old tables"
            " are refused"
        )
        assert finding["repair"] == "by hand: balancer table import shop orders"
        again = running.balancer(*request, "--dry-run")
        assert (again.code, "has begun and is sealing: run it again" in again.err) == (4, True)
        assert running.balancer(*request, "--cancel").code == 0
        assert list(imports_in(directory.snapshot())) == []


class Stopped(Exception):
    """As if the process had ended."""


def _stop_at(step: str) -> Callable[[str], None]:
    def observe(found: str) -> None:
        if found == step:
            raise Stopped

    return observe
